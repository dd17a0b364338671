//! dump, backup, shell, check and inspect while another process writes the database.

use crate::common;

use common::{Db, crashed, expect, plain, said};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Tells the child which database to write.
const WRITES: &str = "ONEWRITE_TEST_WRITES";

/// In a process of its own: moves money between two tables, until it is killed.
#[test]
fn child() {
    let Some(path) = std::env::var_os(WRITES) else { return };
    let uri = format!("file:{}?log_size=256k", Path::new(&path).display());
    let db = onewrite_rusqlite::open(uri).unwrap();
    db.execute_batch(
        "CREATE TABLE one(k INTEGER PRIMARY KEY, n INT, v TEXT); CREATE TABLE two(k INTEGER PRIMARY KEY, n INT, v TEXT);
         INSERT INTO one SELECT value, 100, printf('%0200d', value) FROM json_each('[1,2,3,4,5,6,7,8,9]');
         INSERT INTO two SELECT * FROM one; CREATE INDEX i ON two(v); CREATE VIEW w AS SELECT sum(n) FROM one",
    )
    .unwrap();
    for n in 0u64.. {
        db.execute_batch(&format!(
            "BEGIN IMMEDIATE; UPDATE one SET n = n - 1, v = printf('%0200d', {n}) WHERE k = {n} % 9 + 1;
             UPDATE two SET n = n + 1, v = printf('%0200d', {n}) WHERE k = {n} % 7 + 1; COMMIT"
        ))
        .unwrap();
        if n == 50 {
            println!("writing");
        }
    }
}

/// A process that writes, killed when dropped.
struct Writer(Child);

impl Writer {
    fn of(db: &Db) -> Writer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["live::child", "--exact", "--nocapture"])
            .env(WRITES, &db.home)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")), "the writer has ended");
        Writer(child)
    }

    fn assert_alive(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "the writer has ended");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn run(args: &[&str], paths: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onewrite")).args(args).args(paths).output().unwrap()
}

/// No money is lost: both tables are of one moment.
fn assert_of_one_moment(db: &rusqlite::Connection) {
    let total: i64 =
        db.query_row("SELECT (SELECT sum(n) FROM one) + (SELECT sum(n) FROM two)", [], |r| r.get(0)).unwrap();
    assert_eq!(total, 1800);
    let sound: String = db.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[test]
fn a_dump_of_a_database_that_is_being_written() {
    let db = Db::new();
    let mut writer = Writer::of(&db);
    for _ in 0..5 {
        let dumped = run(&["dump"], &[&db.home]);
        assert!(dumped.status.success(), "{}", said(&dumped));
        let copy = rusqlite::Connection::open_in_memory().unwrap();
        copy.execute_batch(std::str::from_utf8(&dumped.stdout).unwrap()).unwrap();
        assert_of_one_moment(&copy);
    }
    writer.assert_alive();
}

#[test]
fn a_dump_has_everything() {
    let db = Db::new();
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    stock
        .execute_batch(
            "CREATE TABLE \"a \"\"b\"(k INTEGER PRIMARY KEY AUTOINCREMENT, \"x y\", g AS (k * 2) STORED);
             INSERT INTO \"a \"\"b\"(\"x y\") VALUES (NULL), (-7), (0.1), (1e300), (2.0), (9e999), ('it''s'), (x'00ff'),
                (CAST(x'610062' AS TEXT)), ('line
break'), (''), (x''), ('return' || char(13, 10) || 'it''s \\r' || char(13));
             CREATE TABLE wr(a TEXT PRIMARY KEY, b) WITHOUT ROWID; INSERT INTO wr VALUES ('z', 1), ('a', 2);
             CREATE VIRTUAL TABLE f USING fts5(t); INSERT INTO f VALUES ('hello world'), ('bye');
             CREATE INDEX i ON wr(b); CREATE VIEW v AS SELECT * FROM wr;
             CREATE TRIGGER tr AFTER INSERT ON wr BEGIN DELETE FROM wr WHERE b = 99; END; ANALYZE",
        )
        .unwrap();
    drop(stock);
    let dumped = run(&["dump"], &[&db.home]);
    assert!(dumped.status.success(), "{}", said(&dumped));
    let sql = std::str::from_utf8(&dumped.stdout).unwrap();
    assert!(!sql.contains('\r'), "the program sqlite3 drops it");
    let copy_file = db.dir.path().join("copy.db");
    let copy = rusqlite::Connection::open(&copy_file).unwrap();
    copy.execute_batch(sql).unwrap_or_else(|e| panic!("{e}: {sql}"));
    drop(copy);
    // Opened anew, so that the schema is read as the text left it.
    let rows = |path: &Path, sql: &str| -> Vec<String> {
        let db = rusqlite::Connection::open(path).unwrap();
        let mut all = db.prepare(sql).unwrap();
        let rows = all.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    for query in [
        "SELECT type || name || coalesce(sql, '') FROM sqlite_schema ORDER BY 1",
        "SELECT k || typeof(\"x y\") || quote(\"x y\") || hex(\"x y\") || g FROM \"a \"\"b\"",
        "SELECT a || b FROM wr ORDER BY a",
        "SELECT t FROM f WHERE f MATCH 'hello'",
        "SELECT name || seq FROM sqlite_sequence",
        "SELECT tbl || coalesce(idx, '') || stat FROM sqlite_stat1 ORDER BY 1",
        "PRAGMA integrity_check",
    ] {
        assert_eq!(rows(&copy_file, query), rows(&db.home, query), "{query}");
    }
}

#[test]
fn a_dump_says_how_much_it_was() {
    let db = plain();
    let dumped = run(&["dump"], &[&db.home]);
    let (sql, line) = (&dumped.stdout, String::from_utf8(dumped.stderr).unwrap());
    let bytes = format!("1 table, 200 rows, {},{:03} bytes of SQL", sql.len() / 1000, sql.len() % 1000);
    assert!(dumped.status.success() && line.contains(&bytes) && line.lines().count() == 1, "{line}");
    let quiet = run(&["dump", "--quiet"], &[&db.home]);
    assert!(quiet.status.success() && quiet.stderr.is_empty() && quiet.stdout == *sql);
}

#[test]
fn a_backup_says_how_much_it_was() {
    let db = plain();
    let (copy, other) = (db.dir.path().join("copy.db"), db.dir.path().join("other.db"));
    let made = run(&["backup"], &[&db.home, &copy]);
    let pages = std::fs::metadata(&copy).unwrap().len() / 4096;
    assert!(said(&made).contains(&format!("copy.db is the copy: {pages} pages, ")), "{}", said(&made));
    let object = |args: &[&str], to: &Path, status: i32| -> serde_json::Value {
        let made = run(&[&["backup", "--json"], args].concat(), &[&db.home, to]);
        assert_eq!(made.status.code(), Some(status), "{}", said(&made));
        serde_json::from_slice(&made.stdout).unwrap()
    };
    let found = object(&["--vacuum"], &other, 0);
    assert_eq!((found["status"].as_u64(), found["page_bytes"].as_u64()), (Some(0), Some(4096)), "{found}");
    assert_eq!(found["bytes"].as_u64(), Some(std::fs::metadata(&other).unwrap().len()), "{found}");
    assert_eq!(found["bytes"].as_u64(), found["pages"].as_u64().map(|pages| pages * 4096), "{found}");
    assert_eq!((&found["dest"], &found["vacuumed"]), (&other.to_str().unwrap().into(), &true.into()), "{found}");
    assert!(found["seconds"].is_number(), "{found}");
    let found = object(&[], &other, 1);
    assert!(found["status"] == 1 && found["error"].as_str().unwrap().contains("--force"), "{found}");
}

#[test]
fn files_that_cannot_be_dumped() {
    let db = Db::new();
    expect(1, &["dump"], &db.home, &["app.db", "No such file"]);
    std::fs::write(&db.home, "hello, this is a text and no database at all\n".repeat(40)).unwrap();
    expect(1, &["dump"], &db.home, &["not a database"]);
    // The transactions before the crash are in the log: recovery needs a writer.
    expect(1, &["dump"], &crashed(3).home, &["onewrite recover"]);
    // Damage is met on the way.
    let db = plain();
    db.patch_home(2 * common::PAGE, &[0xff; common::PAGE]);
    let said = expect(1, &["dump"], &db.home, &["malformed", "CREATE TABLE", "ROLLBACK"]);
    assert!(!said.contains("COMMIT"), "{said}");
}

#[test]
fn a_backup_of_a_database_that_is_being_written() {
    let db = Db::new();
    let mut writer = Writer::of(&db);
    let dest = db.dir.path().join("backup.db");
    for args in [&["backup"][..], &["backup", "--force"], &["backup", "--vacuum", "--force"]] {
        let done = run(args, &[&db.home, &dest]);
        assert!(done.status.success(), "{args:?}: {}", said(&done));
        let copy = std::fs::read(&dest).unwrap();
        assert!(
            copy.starts_with(b"SQLite format 3\0") && copy[19] == 1 && copy[72..80] == [0; 8],
            "{args:?}: no plain file"
        );
        assert_of_one_moment(&rusqlite::Connection::open(&dest).unwrap());
    }
    let before = std::fs::read(&dest).unwrap();
    let refused = run(&["backup"], &[&db.home, &dest]);
    assert!(!refused.status.success() && said(&refused).contains("--force"), "{}", said(&refused));
    let own = run(&["backup", "--force"], &[&db.home, &db.home]);
    assert!(!own.status.success() && said(&own).contains("the database itself"), "{}", said(&own));
    assert_eq!(std::fs::read(&dest).unwrap(), before);
    writer.assert_alive();
    drop(writer);
    // No temporary file is left, and a copy does not end up beside another database's files.
    let left: Vec<PathBuf> = db.files().into_iter().map(|(path, _)| path).collect();
    assert!(left.iter().all(|path| !path.display().to_string().contains("onewrite-backup")), "{left:?}");
    let source = plain();
    let onto = run(&["backup", "--force"], &[&source.home, &db.home]);
    assert!(!onto.status.success() && said(&onto).contains("-onewrite belongs to"), "{}", said(&onto));
    let journal = source.beside("-copy-journal");
    std::fs::write(&journal, "of another").unwrap();
    let beside = run(&["backup"], &[&source.home, &source.beside("-copy")]);
    assert!(!beside.status.success() && said(&beside).contains("move it away"), "{}", said(&beside));
}

#[test]
fn a_backup_that_is_stopped_leaves_nothing() {
    let db = Db::new();
    let source = rusqlite::Connection::open(&db.home).unwrap();
    source.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(zeroblob(40000000))").unwrap();
    drop(source);
    // Their contents would take longer to read than the copy takes.
    let names =
        || std::fs::read_dir(db.dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let has_begun = || names().any(|name| name.contains("onewrite-backup"));
    let dest = db.dir.path().join("backup.db");
    // It may be done before it is stopped.
    let stopped = (0..50).any(|_| {
        let _ = std::fs::remove_file(&dest);
        let mut child = Command::new(env!("CARGO_BIN_EXE_onewrite"))
            .args(["backup", "--vacuum"])
            .args([&db.home, &dest])
            .spawn()
            .unwrap();
        while !has_begun() && child.try_wait().unwrap().is_none() {}
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        child.wait().unwrap().code() == Some(130)
    });
    assert!(stopped && !has_begun() && !dest.exists(), "{:?}", names().collect::<Vec<_>>());
}

/// Only a writer can roll the journal back, so a reader gets its name.
#[test]
fn a_reader_names_a_hot_journal() {
    let db = plain();
    let journal = db.beside("-journal");
    {
        let source = rusqlite::Connection::open(&db.home).unwrap();
        source
            .execute_batch(
                "PRAGMA cache_spill=1; PRAGMA cache_size=1; CREATE TABLE hot(a); BEGIN; INSERT INTO hot VALUES(1)",
            )
            .unwrap();
        source.execute_batch("INSERT INTO hot SELECT zeroblob(200000)").unwrap();
        let copy = std::fs::read(&journal).unwrap();
        let home = std::fs::read(&db.home).unwrap();
        drop(source);
        std::fs::write(&journal, copy).unwrap();
        std::fs::write(&db.home, home).unwrap();
    }
    let dest = db.beside("-copy");
    for done in [run(&["dump"], &[&db.home]), run(&["backup"], &[&db.home, &dest])] {
        assert!(!done.status.success() && said(&done).contains("-journal) waits to be rolled back"), "{}", said(&done));
    }
    assert!(journal.exists() && !dest.exists());
}

#[test]
fn a_backup_of_a_plain_database_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let db = plain();
    let dest = db.dir.path().join("backup.db");
    for mode in [0o640, 0o600] {
        std::fs::set_permissions(&db.home, std::fs::Permissions::from_mode(mode)).unwrap();
        let done = run(&["backup", "--force", "--vacuum"], &[&db.home, &dest]);
        assert!(done.status.success(), "{}", said(&done));
        assert_eq!(std::fs::metadata(&dest).unwrap().permissions().mode() & 0o777, mode);
    }
    let nowhere = run(&["backup"], &[&db.home, Path::new("/no/such/directory/copy.db")]);
    assert!(!nowhere.status.success() && said(&nowhere).contains("/no/such/directory"), "{}", said(&nowhere));
}

#[test]
fn check_and_inspect_while_another_process_writes() {
    let db = Db::new();
    let mut writer = Writer::of(&db);
    for _ in 0..10 {
        expect(0, &["check"], &db.home, &["sound, and in use", "snapshot"]);
        expect(0, &["inspect", "--limit", "3"], &db.home, &[": in use", "newest: sequence"]);
    }
    let json = run(&["inspect", "--json"], &[&db.home]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&json.stdout).unwrap()["in_use"], true);
    writer.assert_alive();
    drop(writer);
    expect(0, &["check"], &db.home, &["sound; recovery waits"]);
}

/// A database that was in use at the first look waits for a recovery at the next one.
#[test]
fn check_while_the_last_process_is_killed() {
    for round in 0..40 {
        let db = Db::new();
        let writer = Writer::of(&db);
        let check = Command::new(env!("CARGO_BIN_EXE_onewrite"))
            .arg("check")
            .arg(&db.home)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 300));
        drop(writer);
        let done = check.wait_with_output().unwrap();
        assert!(done.status.code() == Some(0), "round {round}: {}", said(&done));
    }
}

#[test]
fn several_are_checked() {
    let (sound, damaged, missing) = (plain(), crashed(6), Db::new());
    damaged.flip_log(damaged.records()[2] + 8);
    let status = |paths: &[&Path]| {
        let done = run(&["check"], paths);
        (done.status.code(), said(&done))
    };
    let (code, text) = status(&[&sound.home, &sound.home]);
    assert_eq!((code, text.matches(": sound").count()), (Some(0), 2), "{text}");
    let (code, text) = status(&[&damaged.home, &missing.home, &sound.home]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("DAMAGED") && text.contains("not checked") && text.contains(": sound"), "{text}");
    assert_eq!(status(&[&sound.home, &missing.home]).0, Some(2));
    assert_eq!(status(&[]).0, Some(2));
}

/// The extension as built beside this test.
fn extension() -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    [deps.join("libonewrite.so"), deps.parent().unwrap().join("libonewrite.so")].into_iter().find(|path| path.exists())
}

#[test]
fn a_shell_on_a_database_that_is_being_written() {
    let extension = extension().expect("libonewrite.so is built with its crate");
    if !Command::new("sqlite3").arg("--version").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: no sqlite3");
        return;
    }
    let db = Db::new();
    let mut writer = Writer::of(&db);
    let shell = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_onewrite"))
            .args(["shell"])
            .arg(&db.home)
            .args(args)
            .env("ONEWRITE_EXTENSION", &extension)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let done = shell(&["-csv", "SELECT (SELECT sum(n) FROM one) + (SELECT sum(n) FROM two)", "PRAGMA onewrite_scheme"]);
    assert_eq!(String::from_utf8_lossy(&done.stdout).lines().collect::<Vec<_>>(), ["1800", "log"], "{}", said(&done));
    assert!(!shell(&["SELECT * FROM missing"]).status.success());
    writer.assert_alive();
    drop(writer);
    // A name that is not easily said, and a database that is new.
    let odd = db.dir.path().join("it's 100% #1?.db");
    let made = Command::new(env!("CARGO_BIN_EXE_onewrite"))
        .args(["shell", "--extension"])
        .arg(&extension)
        .arg(&odd)
        .arg("CREATE TABLE t(a); INSERT INTO t VALUES (1)")
        .output()
        .unwrap();
    assert!(made.status.success() && odd.exists(), "{}", said(&made));
    let missing = |args: &[&str], words: &str| {
        let done = Command::new(env!("CARGO_BIN_EXE_onewrite")).arg("shell").args(args).arg(&db.home).output().unwrap();
        assert!(done.status.code() == Some(1) && said(&done).contains(words), "{args:?}: {}", said(&done));
    };
    missing(&["--extension", "/no/libonewrite.so"], "no library /no/libonewrite.so");
    let named = extension.display().to_string();
    missing(&["--extension", &named, "--sqlite3", "/no/sqlite3"], "apt install sqlite3");
    std::fs::write(&odd, "hello, this is a text and no database at all\n".repeat(40)).unwrap();
    let text =
        Command::new(env!("CARGO_BIN_EXE_onewrite")).args(["shell", "--extension", &named]).arg(&odd).output().unwrap();
    assert!(!text.status.success() && said(&text).contains("not a database"), "{}", said(&text));
    let folder = Command::new(env!("CARGO_BIN_EXE_onewrite"))
        .args(["shell", "--extension", &named])
        .arg(db.dir.path())
        .output()
        .unwrap();
    assert!(!folder.status.success() && said(&folder).contains("Is a directory"), "{}", said(&folder));
}

/// A FILE that is no database, and the reason that each command gives for it.
#[test]
fn each_command_names_the_file_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, folder, other) = (dir.path().join("pi\npe"), dir.path().join("folder"), dir.path().join("other.db"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::create_dir(&folder).unwrap();
    let (missing, inside) = (dir.path().join("no/such.db"), dir.path().join("text/a.db"));
    std::fs::write(dir.path().join("text"), "hello").unwrap();
    let run = |args: &[&str], file: &Path, more: &[&Path]| {
        // A command that waits for a pipe is stopped, with status 124.
        let mut command = Command::new("timeout");
        command.arg("60").arg(env!("CARGO_BIN_EXE_onewrite")).args(args).arg(file).args(more);
        let done = command.stdin(Stdio::null()).output().unwrap();
        (done.status.code().unwrap(), said(&done))
    };
    let commands: [(&str, &[&str], &[&Path]); 7] = [
        ("dump", &["dump"], &[]),
        ("backup", &["backup"], &[&other]),
        ("check", &["check"], &[]),
        ("inspect", &["inspect"], &[]),
        ("convert", &["research", "convert"], &[]),
        ("recover", &["recover"], &[]),
        ("recover", &["recover", "--dry-run"], &[]),
    ];
    for (name, args, more) in commands {
        for (file, shown, reason) in [
            (&missing, "no/such.db", "No such file or directory"),
            (&folder, "folder", "Is a directory"),
            (&pipe, "pi\\npe", "not a regular file"),
            (&inside, "text/a.db", "Not a directory"),
        ] {
            let (status, said) = run(args, file, more);
            let expected = if name == "check" { 2 } else { 1 };
            assert!(status == expected && said.contains(shown) && said.contains(reason), "{args:?} {status}: {said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        let (status, said) = run(args, Path::new(""), more);
        assert!(status == 2 && said.contains("FILE"), "{args:?} {status}: {said}");
    }
    assert!(!other.exists());
    let (status, said) = run(&["dump"], Path::new(":memory:"), &[]);
    assert!(status == 1 && said.contains("No such file"), "{said}");
}

#[test]
fn a_backup_into_a_directory_has_the_name_of_the_database() {
    let (db, to) = (plain(), tempfile::tempdir().unwrap());
    let done = run(&["backup"], &[&db.home, to.path()]);
    assert!(done.status.success(), "{}", said(&done));
    let copy = to.path().join(db.home.file_name().unwrap());
    assert_eq!(std::fs::metadata(&copy).unwrap().len(), std::fs::metadata(&db.home).unwrap().len());
    let again = run(&["backup"], &[&db.home, to.path()]);
    assert!(!again.status.success() && said(&again).contains("--force"), "{}", said(&again));
    assert!(run(&["backup", "--force"], &[&db.home, to.path()]).status.success());
    // Into its own directory it would be the database itself.
    let own = run(&["backup", "--force"], &[&db.home, db.dir.path()]);
    assert!(said(&own).contains("is the database itself"), "{}", said(&own));
    let missing = run(&["backup"], &[&db.home, &to.path().join("none/")]);
    assert!(!missing.status.success() && said(&missing).contains("there is no directory"), "{}", said(&missing));
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 1);
}

/// The program as setuid root: a library that its user names would run as that user's code with
/// root's rights.
#[test]
fn a_privileged_command_takes_no_word_of_its_users_environment() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    if std::fs::metadata(dir.path()).unwrap().uid() != 0 {
        println!("skipped: this process is not root");
        return;
    }
    let (program, evil, log) = (dir.path().join("onewrite"), dir.path().join("evil.so"), dir.path().join("log"));
    // `cp` writes it: if this process did, a child of another test would keep the file open, and
    // busy.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_onewrite")).arg(&program).status().unwrap().success());
    std::fs::write(&evil, "").unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = |mode: u32, args: &[&str]| {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(args).arg(dir.path().join("a.db")).env("ONEWRITE_EXTENSION", &evil).env("ONEWRITE_LOG", &log);
        said(&command.uid(1000).gid(1000).output().unwrap())
    };
    assert!(run(0o755, &["shell"]).contains("evil.so"));
    for args in [&["shell"], &["dump"]] {
        let said = run(0o4755, args);
        assert!(!said.contains("evil.so") && said.contains("there is no") | said.contains("No such file"), "{said}");
    }
    assert!(!log.exists());
}
