//! Ships with the real program beside writing processes, and restores with this program and, where
//! installed, stock Litestream.

use onewrite_rusqlite::STOCK_VFS;
use rusqlite::Connection;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The database that the child writes.
const WRITES: &str = "ONEWRITE_TEST_WRITES";
const DOES_ANYTHING: &str = "ONEWRITE_TEST_DOES_ANYTHING";
const ROWS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ";

/// In a child process: moves money between two tables, at times in large transactions, until
/// killed.
#[test]
fn child() {
    let Some(path) = std::env::var_os(WRITES) else { return };
    let uri = format!("file:{}?log_size=256k", Path::new(&path).display());
    let db = onewrite_rusqlite::open(uri).unwrap();
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    println!("writing");
    for n in 0u64.. {
        let wide = if n % 97 == 0 { "1" } else { "k % 9 = 3" };
        db.execute_batch(&format!(
            "BEGIN IMMEDIATE; UPDATE one SET n = n - 1, v = printf('%0200d', {n}) WHERE k = {n} % 9 + 1;
             UPDATE two SET n = n + 1, v = printf('%0200d', {n}) WHERE k = {n} % 7 + 1;
             UPDATE noise SET v = randomblob(100 + k % 50) WHERE {wide}; COMMIT"
        ))
        .unwrap();
    }
}

/// The same with other changes: pages added and cut off, large transactions, VACUUM.
#[test]
fn child_that_does_anything() {
    let Some(path) = std::env::var_os(DOES_ANYTHING) else { return };
    let uri = format!("file:{}?log_size=256k", Path::new(&path).display());
    let db = onewrite_rusqlite::open(uri).unwrap();
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    println!("writing");
    let mut random = fastrand::Rng::new();
    loop {
        let (n, k) = (random.u32(1..300), random.u32(1..1000));
        let sql = match random.u32(..40) {
            0 => "VACUUM".to_owned(),
            1..=3 => format!("DELETE FROM noise WHERE k > {k}; PRAGMA incremental_vacuum({n})"),
            4 => format!("BEGIN IMMEDIATE; DELETE FROM noise; {ROWS}{n}) INSERT INTO noise SELECT i, i FROM n; COMMIT"),
            5 => format!("{ROWS}{n}) INSERT OR REPLACE INTO noise SELECT i, randomblob(9000) FROM n"),
            6..=9 => format!("{ROWS}{n}) INSERT INTO noise(v) SELECT randomblob(500) FROM n"),
            10 => "CREATE TABLE IF NOT EXISTS more AS SELECT * FROM noise; DROP TABLE IF EXISTS more".to_owned(),
            _ => format!("INSERT OR REPLACE INTO noise VALUES ({k}, randomblob({n}))"),
        };
        match db.execute_batch(&sql) {
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {}
            done => done.unwrap(),
        }
        std::thread::sleep(Duration::from_micros(random.u64(..8_000)));
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

struct Place {
    dir: tempfile::TempDir,
    file: PathBuf,
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn text(db: &Connection, sql: &str) -> String {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { file: dir.path().join("app.db"), dir };
        place.stock().execute_batch(
            "CREATE TABLE one(k INTEGER PRIMARY KEY, n INT, v TEXT); CREATE TABLE two(k INTEGER PRIMARY KEY, n INT, v TEXT);
             INSERT INTO one SELECT value, 100, printf('%0200d', value) FROM json_each('[1,2,3,4,5,6,7,8,9]');
             INSERT INTO two SELECT * FROM one; CREATE INDEX i ON two(v); CREATE TABLE noise(k INTEGER PRIMARY KEY, v)",
        ).unwrap();
        place.stock().execute_batch(&format!("{ROWS}500) INSERT INTO noise SELECT i, randomblob(100) FROM n")).unwrap();
        place
    }

    fn stock(&self) -> Connection {
        Connection::open_with_flags_and_vfs(&self.file, Default::default(), STOCK_VFS).unwrap()
    }

    fn url(&self) -> String {
        format!("file://{}", self.dir.path().join("store").display())
    }

    fn program(&self) -> Command {
        Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"))
    }

    fn replicate(&self, more: &[&str]) -> Command {
        let mut command = self.program();
        command.arg("replicate").args(more).arg(&self.file).arg(self.url());
        command
    }

    fn once(&self) -> String {
        let output = self.replicate(&["--once", "--verbose"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    fn restore(&self, more: &[&str]) -> (PathBuf, String) {
        let n = fs::read_dir(self.dir.path()).unwrap().count();
        let dest = self.dir.path().join(format!("restored-{n}.db"));
        let output = self.program().arg("restore").args(more).arg(self.url()).arg(&dest).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        (dest, said(&output))
    }

    /// The restored file equals the database to the byte, but for the request for WAL mode, which a
    /// store does not have; the database must be a plain file now.
    fn assert_shipped(&self) {
        let (restored, _) = self.restore(&[]);
        let mut file = fs::read(&self.file).unwrap();
        if file[18..20] == [2, 1] {
            file[18] = 1;
        }
        assert!(fs::read(&restored).unwrap() == file, "the restored file differs");
        assert_eq!(self.verify().status.code(), Some(0));
        let Some(litestream) = installed("litestream") else { return };
        let stock = self.dir.path().join("stock.db");
        let output = Command::new(litestream).args(["restore", "-o"]).arg(&stock).arg(self.url()).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(fs::read(&stock).unwrap() == file, "what Litestream restores differs");
        fs::remove_file(stock).unwrap();
    }

    fn verify(&self) -> Output {
        self.program().arg("verify").args(["--wait", "100ms"]).arg(&self.file).arg(self.url()).output().unwrap()
    }

    fn writer(&self) -> Killed {
        self.child("ship::child", WRITES)
    }

    fn child(&self, test: &str, variable: &str) -> Killed {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(variable, &self.file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")), "the writer has ended");
        Killed(child)
    }

    fn files(&self) -> Vec<PathBuf> {
        let levels = [self.dir.path().join("store/ltx/0"), self.dir.path().join("store/ltx/9")];
        let read = |dir: &PathBuf| fs::read_dir(dir).into_iter().flatten().map(|file| file.unwrap().path());
        let mut files: Vec<_> = levels.iter().flat_map(read).collect();
        files.sort();
        files
    }

    /// Files other than snapshots.
    fn batches(&self) -> Vec<PathBuf> {
        self.files().into_iter().filter(|file| file.parent().unwrap().ends_with("0")).collect()
    }

    /// All files are whole, and valid for the independent tool; batches are consecutive.
    fn assert_files_are_sound(&self) {
        let files = self.files();
        for (n, file) in self.batches().iter().enumerate() {
            let name = file.file_name().and_then(OsStr::to_str).unwrap();
            assert_eq!(name, format!("{:016x}-{:016x}.ltx", n + 1, n + 1));
        }
        let Some(ltx) = installed("ltx") else { return };
        let output = Command::new(ltx).arg("verify").args(&files).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
}

fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("{program} is not installed: not compared with it");
    }
    found
}

/// No money is lost: both tables are of one moment.
fn assert_of_one_moment(file: &Path) {
    let db = Connection::open(file).unwrap();
    let sum = "SELECT (SELECT sum(n) FROM one) + (SELECT sum(n) FROM two)";
    assert_eq!(db.query_row(sum, [], |row| row.get::<_, i64>(0)).unwrap(), 1800);
    assert_eq!(text(&db, "PRAGMA integrity_check"), "ok");
}

#[test]
fn commits_of_stock_sqlite_between_are_shipped() {
    let place = Place::new();
    assert!(place.once().contains("ltx/0/0000000000000001-0000000000000001.ltx a snapshot"));
    place.assert_shipped();
    let told = place.once();
    assert!(told.starts_with("onewrite: done: 0 files, 0 pages, 0 bytes, ") && told.lines().count() == 1, "{told}");
    let batches = [
        "UPDATE noise SET v = 'x' WHERE k = 77",
        "DELETE FROM noise WHERE k % 3 > 0; VACUUM",
        "CREATE TABLE more(x); INSERT INTO more SELECT randomblob(90000) FROM noise",
        "PRAGMA auto_vacuum=2; VACUUM; DROP TABLE more; PRAGMA incremental_vacuum",
    ];
    for sql in batches {
        place.stock().execute_batch(sql).unwrap();
        assert!(place.once().contains(" a batch of "));
        place.assert_shipped();
    }
    let third = fs::metadata(&place.files()[2]).unwrap().modified().unwrap();
    let before = humantime::format_rfc3339_millis(third).to_string();
    for (ours, theirs) in
        [(["--txid", "2"], ["-txid", "0000000000000002"]), (["--timestamp", &before], ["-timestamp", &before])]
    {
        let (restored, said) = place.restore(&ours);
        assert!(said.contains("transaction 0000000000000002"), "{said}");
        assert_eq!(text(&Connection::open(&restored).unwrap(), "SELECT v FROM noise WHERE k = 77"), "x");
        let Some(litestream) = installed("litestream") else { continue };
        let stock = place.dir.path().join("stock.db");
        let output = Command::new(litestream)
            .arg("restore")
            .args(theirs)
            .arg("-o")
            .arg(&stock)
            .arg(place.url())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", self::said(&output));
        assert!(fs::read(&stock).unwrap() == fs::read(restored).unwrap(), "what Litestream restores differs");
        fs::remove_file(stock).unwrap();
    }
    place.assert_files_are_sound();
}

#[test]
fn a_commit_through_onewrite_is_shipped_from_the_log() {
    let place = Place::new();
    let db = onewrite_rusqlite::open(&place.file).unwrap();
    db.execute_batch("INSERT INTO noise VALUES (1000, 'one')").unwrap();
    place.once();
    db.execute_batch("INSERT INTO noise VALUES (1001, 'two')").unwrap();
    place.once();
    assert_eq!(place.verify().status.code(), Some(0));
    for (txid, rows) in [("1", 501), ("2", 502)] {
        let (restored, _) = place.restore(&["--txid", txid]);
        // A plain file, while the database is in use.
        let copy = Connection::open_with_flags_and_vfs(restored, Default::default(), STOCK_VFS).unwrap();
        assert_eq!(copy.query_row("SELECT count(*) FROM noise", [], |row| row.get::<_, i64>(0)).unwrap(), rows);
    }
    db.execute_batch("INSERT INTO noise VALUES (1002, 'three')").unwrap();
    assert_eq!(place.verify().status.code(), Some(2));
    drop(db);
    place.once();
    place.assert_shipped();
}

/// Another file gets the database's name, even with the same counter, time and size in its header.
#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn another_database_under_its_name_is_shipped() {
    let place = Place::new();
    let before = fs::read(&place.file).unwrap();
    let mut shipper = Killed(place.replicate(&["--interval", "20ms"]).spawn().unwrap());
    wait_until(|| place.dir.path().join("store/ltx/0/0000000000000001-0000000000000001.ltx").exists());
    place.stock().execute_batch("UPDATE noise SET v = 'lost'").unwrap();
    wait_until(|| place.verify().status.success());
    let mut other = before.clone();
    // A change that no counter shows.
    let at = other.len() - 10;
    other[at] ^= 1;
    for image in [before, other] {
        let new = place.dir.path().join("new.db");
        fs::write(&new, image).unwrap();
        fs::rename(&new, &place.file).unwrap();
        wait_until(|| place.verify().status.success());
    }
    place.assert_files_are_sound();
    assert!(shipper.0.try_wait().unwrap().is_none());
}

#[test]
fn pages_of_another_size_begin_with_a_snapshot() {
    let place = Place::new();
    place.once();
    place.stock().execute_batch("PRAGMA page_size=1024; VACUUM").unwrap();
    assert!(place.once().contains("ltx/9/0000000000000001-0000000000000002.ltx a snapshot"));
    place.stock().execute_batch("DELETE FROM noise WHERE k < 50").unwrap();
    assert!(place.once().contains("ltx/0/0000000000000003-0000000000000003.ltx a batch"));
    place.assert_shipped();
    let (first, _) = place.restore(&["--txid", "1"]);
    assert_eq!(Connection::open(first).unwrap().query_row("PRAGMA page_size", [], |row| row.get(0)), Ok(4096));
}

#[test]
fn a_file_that_is_damaged_or_gone_is_found_and_a_snapshot_follows() {
    for how in ["damaged", "gone"] {
        let place = Place::new();
        for n in 0..3 {
            place.stock().execute("UPDATE noise SET v = ?1 WHERE k = 9", [n]).unwrap();
            place.once();
        }
        let second = &place.files()[1];
        if how == "gone" {
            fs::remove_file(second).unwrap();
        } else {
            let mut bytes = fs::read(second).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(second, bytes).unwrap();
        }
        let dest = place.dir.path().join("no.db");
        let output = place.program().arg("restore").arg(place.url()).arg(&dest).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!dest.exists());
        let word = if how == "gone" { "transaction 2 is missing" } else { "0000000000000002-0000000000000002.ltx" };
        assert!(said(&output).contains(word), "{}", said(&output));
        assert!(place.once().contains("ltx/9/0000000000000001-0000000000000004.ltx a snapshot"));
        place.assert_shipped();
    }
}

#[test]
fn every_state_is_of_one_moment_while_others_write() {
    let place = Place::new();
    let (one, two) = (place.writer(), place.writer());
    let shipper = Killed(place.replicate(&["--interval", "10ms"]).spawn().unwrap());
    wait_until(|| place.files().len() > 40);
    drop(shipper);
    drop((one, two));
    // The writers died: the next shipper recovers their commits, ships them, and leaves a plain
    // file.
    place.once();
    place.assert_shipped();
    place.assert_files_are_sound();
    for txid in (1..=place.batches().len()).step_by(9) {
        let (restored, _) = place.restore(&["--txid", &format!("{txid:x}")]);
        assert_of_one_moment(&restored);
    }
    assert_of_one_moment(&place.file);
}

/// The log names changed pages as far as it reaches back; this build compares all pages with it.
#[test]
fn the_log_tells_of_all_that_changes() {
    let place = Place::new();
    place.stock().execute_batch("PRAGMA auto_vacuum = 2; VACUUM").unwrap();
    for _ in 0..2 {
        let writers = [0, 1].map(|_| place.child("ship::child_that_does_anything", DOES_ANYTHING));
        let mut shipper = Killed(place.replicate(&["--interval", "5ms", "--verbose"]).spawn().unwrap());
        let files = place.files().len();
        wait_until(|| place.files().len() > files + 150 || shipper.0.try_wait().unwrap().is_some());
        assert_eq!(shipper.0.try_wait().unwrap(), None, "it has ended");
        drop(shipper);
        drop(writers);
    }
    place.once();
    place.assert_shipped();
}

#[test]
fn a_shipper_that_is_killed_at_any_moment_leaves_no_gap() {
    let place = Place::new();
    let writer = place.writer();
    let mut random = fastrand::Rng::new();
    for _ in 0..25 {
        let shipper = Killed(place.replicate(&["--interval", "1ms", "--snapshot-interval", "30s"]).spawn().unwrap());
        std::thread::sleep(Duration::from_micros(random.u64(5_000..400_000)));
        drop(shipper);
    }
    drop(writer);
    place.once();
    place.assert_files_are_sound();
    place.assert_shipped();
    assert!(place.files().len() > 1, "one of them shipped while it lived");
    let unfinished = fs::read_dir(place.dir.path().join("store/ltx/0")).unwrap();
    assert!(unfinished.flatten().all(|file| file.path().extension() == Some(OsStr::new("ltx"))));
}

#[test]
fn snapshots_are_repeated_and_restores_begin_there() {
    let place = Place::new();
    for n in 0..4 {
        place.stock().execute("UPDATE noise SET v = ?1 WHERE k = 9", [n]).unwrap();
        let output = place.replicate(&["--once", "--snapshot-interval", "1ms", "-v"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        std::thread::sleep(Duration::from_millis(3));
    }
    let snapshots = fs::read_dir(place.dir.path().join("store/ltx/9")).unwrap().count();
    assert_eq!(snapshots, 3);
    // Files before the newest snapshot are not needed.
    fs::remove_file(place.dir.path().join("store/ltx/0/0000000000000002-0000000000000002.ltx")).unwrap();
    place.assert_shipped();
}

#[test]
fn a_second_shipper_is_refused() {
    let place = Place::new();
    let _first = Killed(place.replicate(&["--interval", "20ms"]).spawn().unwrap());
    wait_until(|| place.dir.path().join("store/ltx/0/0000000000000001-0000000000000001.ltx").exists());
    let output = place.replicate(&[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("another process ships into"), "{}", said(&output));
}

#[test]
fn a_name_that_is_taken_stops_the_shipper() {
    let place = Place::new();
    let mut shipper = Killed(place.replicate(&["--interval", "20ms"]).stderr(Stdio::piped()).spawn().unwrap());
    wait_until(|| place.dir.path().join("store/ltx/0/0000000000000001-0000000000000001.ltx").exists());
    let second = place.dir.path().join("store/ltx/0/0000000000000002-0000000000000002.ltx");
    fs::write(&second, "somebody else's").unwrap();
    place.stock().execute_batch("UPDATE noise SET v = 'x' WHERE k = 77").unwrap();
    wait_until(|| shipper.0.try_wait().unwrap().is_some());
    assert_eq!(shipper.0.wait().unwrap().code(), Some(1));
    let lines = BufReader::new(shipper.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line.contains("another process ships into it")));
    assert_eq!(fs::read(second).unwrap(), b"somebody else's");
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_signal_ends_it_after_the_last_batch() {
    let place = Place::new();
    let mut shipper = Killed(place.replicate(&["--interval", "1h"]).spawn().unwrap());
    wait_until(|| place.dir.path().join("store/ltx/0/0000000000000001-0000000000000001.ltx").exists());
    place.stock().execute_batch("UPDATE noise SET v = 'x' WHERE k = 77").unwrap();
    let kill = Command::new("kill").arg(shipper.0.id().to_string()).status().unwrap();
    assert!(kill.success());
    assert_eq!(shipper.0.wait().unwrap().code(), Some(0));
    place.assert_shipped();
}

#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_signal_leaves_nothing_of_a_restore() {
    let place = Place::new();
    // This takes a while.
    place.stock().execute_batch("INSERT INTO noise VALUES (1000, randomblob(30000000))").unwrap();
    place.once();
    for (command, prefix, signal) in
        [("restore", ".onewrite-restore-", "-INT"), ("promote", ".onewrite-promote-", "-TERM")]
    {
        let dir = place.dir.path().join(command);
        fs::create_dir(&dir).unwrap();
        let names = || -> Vec<String> {
            let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            files.filter(|name| !name.starts_with("dest.db-")).collect()
        };
        let mut started = place.program();
        match command {
            "promote" => started.arg(command).arg(dir.join("dest.db")).arg(place.url()),
            _ => started.arg(command).arg(place.url()).arg(dir.join("dest.db")),
        };
        started.stderr(Stdio::null());
        let mut process = Killed(started.spawn().unwrap());
        wait_until(|| names().iter().any(|name| name.starts_with(prefix)));
        assert!(Command::new("kill").args([signal, &process.0.id().to_string()]).status().unwrap().success());
        assert_eq!(process.0.wait().unwrap().code(), Some(130), "{command}");
        assert_eq!(names(), Vec::<String>::new());
        // Nothing stops the next command.
        assert!(started.status().unwrap().success());
        assert_eq!(names(), ["dest.db"]);
    }
}

#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn errors_are_told() {
    let place = Place::new();
    let expect = |command: &mut Command, words: &str| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(words), "{words:?} is missing in: {}", said(&output));
    };
    let dest = place.dir.path().join("dest.db");
    expect(
        place.program().args(["restore", "file:///no/such/store"]).arg(&dest),
        "there is no directory /no/such/store",
    );
    expect(
        place.program().arg("replicate").arg(&place.file).arg("file:///no/such/store"),
        "there is no directory /no/such",
    );
    expect(place.program().args(["replicate", "--once"]).arg(&dest).arg(place.url()), "there is no database");
    expect(place.program().arg("replicate").arg(&place.file).arg("/backup"), "name a directory as file:///backup/app");
    place.once();
    let time = "2000-01-01T00:00:00Z";
    expect(
        place.program().args(["restore", "--timestamp", time, &place.url()]).arg(&dest),
        "no state of before 2000-01-01T00:00:00.000Z: its oldest file is of 2",
    );
    for (option, value, words) in [
        ("--interval", "0s", "'0s' for '--interval <TIME>': it has to be longer than 0: write it like"),
        ("--interval", "x", "'x' for '--interval <TIME>': expected number at 0: write it like 500ms"),
        ("--levels", "30s,x", "'x' for '--levels <TIME,...>': expected number at 0: write it like 500ms"),
    ] {
        let output = place.replicate(&["--once", option, value]).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains(words), "{}", said(&output));
    }
    let output = place.replicate(&["--sync", "--ship-timeout", "0s"]).output().unwrap();
    assert!(said(&output).contains("'0s' for '--ship-timeout <TIME>'"), "{}", said(&output));
    // As on a full disk.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" restore \"$@\""]);
    limited.arg(env!("CARGO_BIN_EXE_onewrite-replicate")).arg(place.url()).arg(&dest);
    let output = limited.output().unwrap();
    let words = format!("cannot restore {}: cannot write {}: File too large", place.url(), dest.display());
    assert!(output.status.code() == Some(1) && said(&output).contains(&words), "{}", said(&output));
    fs::write(&dest, "").unwrap();
    expect(place.program().arg("restore").arg(place.url()).arg(&dest), "is there already");
    fs::rename(&dest, place.dir.path().join("dest.db-onewrite")).unwrap();
    expect(place.program().arg("restore").arg(place.url()).arg(&dest), "dest.db-onewrite belongs to another database");
    place.stock().execute_batch("PRAGMA journal_mode=WAL; INSERT INTO noise VALUES (999, 1)").unwrap();
    let reader = place.stock();
    reader.query_row("SELECT count(*) FROM noise", [], |_| Ok(())).unwrap();
    expect(&mut place.replicate(&["--once"]), "WAL mode");
    // No process has it open: it leaves WAL mode.
    drop(reader);
    place.once();
    place.assert_shipped();
}

/// Else the store would belong to the wrong file, and the right shipper would be fenced.
#[test]
fn a_file_that_is_no_database_claims_no_store() {
    let place = Place::new();
    let (wrong, store) = (place.dir.path().join("wrong.db"), place.dir.path().join("store"));
    let mut header = fs::read(&place.file).unwrap();
    header[105..200].fill(b'x');
    let replicate =
        |more: &[&str]| place.program().arg("replicate").args(more).arg(&wrong).arg(place.url()).output().unwrap();
    for contents in [b"not a database, but text".to_vec(), header] {
        fs::write(&wrong, contents).unwrap();
        for more in [&["--once"][..], &[], &["--sync"]] {
            let output = replicate(more);
            assert_eq!(output.status.code(), Some(1), "{}", said(&output));
            assert!(said(&output).contains(&format!("cannot read {}: ", wrong.display())), "{}", said(&output));
            assert!(!store.exists() && !place.dir.path().join("wrong.db-node").exists());
        }
    }
    fs::write(&wrong, "").unwrap();
    let output = replicate(&["--once"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("wrong.db is empty: there is nothing to ship"), "{}", said(&output));
    assert!(!store.exists() && !place.dir.path().join("wrong.db-node").exists());
    place.once();
    place.assert_shipped();
    let output = replicate(&["--once"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
}

#[test]
fn a_store_of_litestream_is_restored_and_goes_on() {
    let Some(litestream) = installed("litestream") else { return };
    let place = Place::new();
    place.stock().execute_batch("PRAGMA journal_mode=WAL").unwrap();
    let db = place.stock();
    // Litestream keeps the WAL in a directory of its own, and prints much.
    let replicate = Command::new(litestream)
        .args(["replicate".as_ref(), place.file.as_os_str(), place.url().as_ref()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let replicate = Killed(replicate.unwrap());
    for n in 1..=2 {
        wait_until(|| place.dir.path().join(format!("store/ltx/0/{n:016x}-{n:016x}.ltx")).exists());
        db.execute("UPDATE noise SET v = ?1 WHERE k = 77", [n]).unwrap();
    }
    wait_until(|| place.dir.path().join("store/ltx/0/0000000000000003-0000000000000003.ltx").exists());
    drop(replicate);
    let (restored, _) = place.restore(&["--txid", "3"]);
    let restored = Connection::open(restored).unwrap();
    assert_eq!(restored.query_row("SELECT v FROM noise WHERE k = 77", [], |row| row.get::<_, i64>(0)), Ok(2));
    assert_eq!(text(&restored, "PRAGMA integrity_check"), "ok");
    db.execute_batch("PRAGMA journal_mode=DELETE; UPDATE noise SET v = 'x' WHERE k = 77").unwrap();
    drop(db);
    assert!(place.once().contains(" a batch of "));
    place.assert_shipped();
}

/// Only one process may use such a scheme.
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
fn a_database_that_others_may_not_share_is_shipped_later() {
    let place = Place::new();
    let uri = format!("file:{}?scheme=dash", place.file.display());
    let db = onewrite_rusqlite::open(uri).unwrap();
    db.execute_batch("UPDATE noise SET v = 'x' WHERE k = 77").unwrap();
    let mut shipper = Killed(place.replicate(&["--interval", "20ms"]).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(shipper.0.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("not shipped, trying again every 20ms")));
    db.execute_batch("UPDATE noise SET v = 'y' WHERE k = 77").unwrap();
    drop(db);
    assert!(lines.any(|line| line.unwrap().contains("shipping goes on")));
    drop(shipper);
    place.assert_shipped();
}

/// With a short interval the shipper stays among the database's processes during commits, and then
/// leaves.
#[test]
fn a_shipper_that_looks_often_gives_the_database_up_to_one_that_needs_it_alone() {
    let place = Place::new();
    let _shipper = Killed(place.replicate(&["--interval", "5ms"]).stderr(Stdio::null()).spawn().unwrap());
    wait_until(|| !place.files().is_empty());
    for bytes in [1024, 4096, 2048] {
        let db = onewrite_rusqlite::open(&place.file).unwrap();
        for n in 0..200 {
            db.execute("UPDATE noise SET v = randomblob(50) WHERE k = ?1", [n]).unwrap();
        }
        let sql = format!("PRAGMA page_size={bytes}; VACUUM");
        wait_until(|| db.execute_batch(&sql).is_ok());
        assert_eq!(db.query_row("PRAGMA page_size", [], |row| row.get(0)), Ok(bytes));
        drop(db);
        // It is a plain file before long.
        wait_until(|| {
            Connection::open(&place.file).unwrap().execute_batch("UPDATE noise SET v = 's' WHERE k = 1").is_ok()
        });
    }
    wait_until(|| place.verify().status.success());
}

/// As in a store with room for batches, but not for every page.
#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_snapshot_that_fails_holds_no_batch_up_and_is_not_tried_with_each() {
    for mode in [&["--interval", "10ms"][..], &["--sync"]] {
        let place = Place::new();
        let mut command = place.replicate(&["-v", "--snapshot-interval", "1ms"]);
        let mut shipper = Killed(command.args(mode).stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(shipper.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut first = ["a snapshot of", "shipping "].map(|words| (words, false));
        assert!(lines.any(|line| {
            first.iter_mut().for_each(|(words, is_there)| *is_there |= line.contains(*words));
            first.iter().all(|(_, is_there)| *is_there)
        }));
        let snapshots = place.dir.path().join("store/ltx/9");
        fs::remove_dir(&snapshots).unwrap();
        fs::write(&snapshots, "no room").unwrap();
        let db = onewrite_rusqlite::open(&place.file).unwrap();
        for n in 2..12 {
            db.execute("UPDATE noise SET v = ?1 WHERE k = 77", [n]).unwrap();
            wait_until(|| place.dir.path().join(format!("store/ltx/0/{n:016x}-{n:016x}.ltx")).exists());
        }
        drop(db);
        let kill = Command::new("kill").arg(shipper.0.id().to_string()).status().unwrap();
        assert!(kill.success());
        assert_eq!(shipper.0.wait().unwrap().code(), Some(0), "{mode:?}");
        let (told, rest): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("no snapshot can be made now"));
        assert!(told.len() == 1 && told[0].contains("batches are shipped"), "{told:?} {rest:?}");
        let (end, batches) = rest.split_last().unwrap();
        assert!(end.contains(" done: ") && batches.iter().all(|line| line.contains(" a batch of ")), "{rest:?}");
    }
}

#[test]
fn a_store_that_is_away_for_a_while() {
    let place = Place::new();
    let mut shipper = Killed(place.replicate(&["--interval", "20ms"]).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(shipper.0.stderr.take().unwrap()).lines();
    wait_until(|| place.dir.path().join("store/ltx/0/0000000000000001-0000000000000001.ltx").exists());
    let (store, away) = (place.dir.path().join("store"), place.dir.path().join("away"));
    fs::rename(&store, &away).unwrap();
    place.stock().execute_batch("UPDATE noise SET v = 'x' WHERE k = 77").unwrap();
    assert!(lines.any(|line| line.unwrap().contains("not shipped, trying again every 20ms, commits go on")));
    fs::rename(&away, &store).unwrap();
    assert!(lines.any(|line| line.unwrap().contains("shipping goes on")));
    place.assert_shipped();
    // An emptied store is begun anew, even without its directories.
    fs::remove_dir_all(store.join("ltx")).unwrap();
    place.stock().execute_batch("UPDATE noise SET v = 'y' WHERE k = 77").unwrap();
    assert!(lines.any(|line| line.unwrap().contains("is gone from the store")));
    assert!(lines.any(|line| line.unwrap().contains("a snapshot of")));
    assert!(lines.any(|line| line.unwrap().contains("shipping goes on")));
    place.assert_shipped();
    // Permissions do not stop root, so they are compared.
    #[cfg(unix)]
    {
        let data = fs::metadata(place.files().last().unwrap()).unwrap();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&data.permissions()) & 0o077, 0);
    }
}

fn wait_until(mut there: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !there() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// RFC 3339 with any offset; times before all files, and behind them.
#[test]
fn a_time_is_read_with_its_offset_and_one_that_no_file_reaches_is_said() {
    let place = Place::new();
    place.once();
    let first = fs::read(&place.file).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let between = std::time::SystemTime::now();
    std::thread::sleep(Duration::from_millis(20));
    place.stock().execute_batch("DELETE FROM one").unwrap();
    place.once();
    let at = |hours: i64| {
        let seconds = Duration::from_secs(hours.unsigned_abs() * 3600);
        let time = if hours < 0 { between - seconds } else { between + seconds };
        humantime::format_rfc3339_millis(time).to_string().replace('Z', "")
    };
    for time in
        [at(0), at(0) + "Z", at(0) + "+00:00", at(1) + "+01:00", at(-8) + "-08:00", at(5).replace('T', " ") + "+05"]
    {
        let (restored, told) = place.restore(&["--timestamp", &time]);
        assert!(fs::read(&restored).unwrap() == first, "{time}: {told}");
        assert!(told.contains("the state of transaction 0000000000000001, of 20"), "{told}");
    }
    let (restored, told) = place.restore(&["--timestamp", "2100-01-01T01:00:00+01:00"]);
    assert!(fs::read(&restored).unwrap() == fs::read(&place.file).unwrap());
    assert!(told.contains("the store has no state of 2100-01-01T00:00:00.000Z or later"), "{told}");
    let (_, told) = place.restore(&[]);
    assert!(!told.contains("or later"), "{told}");
    for (time, words) in [
        ("2001-01-01T00:00:00+01:00", "no state of before 2000-12-31T23:00:00.000Z"),
        ("yesterday", "2026-01-31T12:00:00+01:00"),
        ("2026-01-31T12:00:00[Europe/Berlin]", "2026-01-31T12:00:00+01:00"),
        ("2026-01-31T25:00:00Z", "2026-01-31T12:00:00+01:00"),
    ] {
        let dest = place.dir.path().join("none.db");
        let output =
            place.program().args(["restore", "--timestamp", time]).arg(place.url()).arg(&dest).output().unwrap();
        assert!(!output.status.success() && said(&output).contains(words), "{time}: {}", said(&output));
        assert!(!dest.exists());
    }
}
