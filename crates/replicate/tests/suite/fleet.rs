//! Promotions and rejoins with the real program and a directory: refusals, kept files, and
//! leftovers of a machine that fails in between.

use crate::place::Killed;
use rusqlite::Connection;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

struct Fleet {
    dir: tempfile::TempDir,
    first: PathBuf,
    second: PathBuf,
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn sql(file: &Path, sql: &str) {
    onewrite_rusqlite::open(file).unwrap().execute_batch(sql).unwrap();
}

fn rows(file: &Path) -> String {
    let db = Connection::open(file).unwrap();
    db.query_row("SELECT group_concat(x) FROM t", [], |row| row.get(0)).unwrap()
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Fleet {
    fn new() -> Fleet {
        let dir = tempfile::tempdir().unwrap();
        let machine = |name| {
            fs::create_dir(dir.path().join(name)).unwrap();
            dir.path().join(name).join("app.db")
        };
        let fleet = Fleet { first: machine("first"), second: machine("second"), dir };
        sql(&fleet.first, "CREATE TABLE t(x); INSERT INTO t VALUES ('one')");
        fleet
    }

    fn run(&self, args: &[&str], file: &Path) -> Output {
        let url = format!("file://{}", self.dir.path().join("store").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"));
        match args[0] {
            "follow" => command.args(args).arg(url).arg(file),
            "unsync" => command.args(args).arg(file),
            _ => command.args(args).arg(file).arg(url),
        };
        command.output().unwrap()
    }

    fn done(&self, args: &[&str], file: &Path) -> String {
        let output = self.run(args, file);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        said(&output)
    }

    fn refused(&self, args: &[&str], file: &Path, status: i32, words: &[&str]) {
        let output = self.run(args, file);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", said(&output));
        assert!(words.iter().all(|word| said(&output).contains(word)), "{args:?}: {}", said(&output));
    }

    fn ship(&self, file: &Path) -> String {
        self.done(&["replicate", "--once"], file)
    }
}

#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn promote_and_rejoin_there_and_back() {
    let fleet = Fleet::new();
    let (first, second) = (&*fleet.first, &*fleet.second);
    fleet.ship(first);
    sql(first, "INSERT INTO t VALUES ('two')");
    fleet.ship(first);
    let text = fleet.done(&["promote"], second);
    assert!(text.contains(&format!("belonged to {} on ", first.display())) && text.contains("epoch 3"), "{text}");
    assert_eq!(rows(second), "one,two");
    sql(first, "INSERT INTO t VALUES ('lost')");
    fleet.refused(&["replicate", "--once"], first, 3, &["fenced", "onewrite rejoin", "onewrite promote"]);
    fleet.refused(&["promote"], first, 1, &["pages differ", "onewrite rejoin"]);
    sql(second, "INSERT INTO t VALUES ('three')");
    fleet.ship(second);
    let text = fleet.done(&["rejoin"], first);
    assert!(text.contains("app.db.diverged"), "{text}");
    assert_eq!(rows(first), "one,two,three");
    assert_eq!(rows(&beside(first, ".diverged")), "one,two,lost");
    // The replica follows, and is promoted.
    sql(second, "INSERT INTO t VALUES ('followed')");
    fleet.ship(second);
    fleet.done(&["follow", "--once"], first);
    assert_eq!(rows(first), "one,two,three,followed");
    sql(second, "INSERT INTO t VALUES ('not yet')");
    fleet.ship(second);
    let text = fleet.done(&["promote"], first);
    assert!(text.contains("was a replica, is up to date"), "{text}");
    assert_eq!(rows(first), "one,two,three,followed,not yet");
    assert!(!beside(first, "-follow").exists());
    fleet.refused(&["rejoin"], first, 1, &["belongs to this database"]);
    assert!(fleet.done(&["promote"], second).contains("is as the store has it"));
    fleet.refused(&["replicate", "--once"], first, 3, &["fenced"]);
    assert!(fleet.done(&["rejoin"], first).contains("is as transaction"));
    fleet.done(&["promote"], first);
    fleet.refused(&["replicate", "--once"], second, 3, &["fenced"]);
    sql(first, "INSERT INTO t VALUES ('four')");
    fleet.ship(first);
    fleet.done(&["verify"], first);
    if let Some(litestream) = installed("litestream") {
        let (stock, url) = (fleet.dir.path().join("stock.db"), fleet.dir.path().join("store"));
        let mut command = Command::new(litestream);
        command.arg("restore").arg("-o").arg(&stock).arg(format!("file://{}", url.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(fs::read(&stock).unwrap() == fs::read(first).unwrap(), "what Litestream restores differs");
    }
    // Each machine is recognized; a copy of its database elsewhere is not.
    let copy = fleet.dir.path().join("copy.db");
    fs::copy(first, &copy).unwrap();
    fleet.refused(&["replicate", "--once"], &copy, 3, &["fenced"]);
}

#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn a_database_that_would_lose_rows_is_not_touched() {
    let fleet = Fleet::new();
    let (first, second) = (&*fleet.first, &*fleet.second);
    fleet.refused(&["promote"], second, 1, &["there is no directory"]);
    fleet.ship(first);
    sql(first, "INSERT INTO t VALUES ('not shipped')");
    fleet.refused(&["rejoin"], first, 1, &["belongs to this database", "would be lost"]);
    fs::write(beside(second, "-journal"), "another's").unwrap();
    fleet.refused(&["promote"], second, 1, &["-journal", "move it away"]);
    // The first machine was not disturbed.
    fleet.ship(first);
    fs::remove_file(beside(second, "-journal")).unwrap();
    fleet.done(&["promote"], second);
    let open = onewrite_rusqlite::open(first).unwrap();
    open.execute_batch("INSERT INTO t VALUES ('lost')").unwrap();
    fleet.refused(&["rejoin"], first, 1, &["in use"]);
    drop(open);
    fs::write(beside(first, ".diverged"), "another's").unwrap();
    fleet.refused(&["rejoin"], first, 1, &["app.db.diverged is there already", "move it away"]);
    fs::remove_file(beside(first, ".diverged")).unwrap();
    assert_eq!(rows(first), "one,not shipped,lost");
    // Killed after the old database got its second name.
    fs::hard_link(first, beside(first, ".diverged")).unwrap();
    fleet.done(&["rejoin"], first);
    assert_eq!(
        (rows(first), rows(&beside(first, ".diverged"))),
        ("one,not shipped".into(), "one,not shipped,lost".into())
    );
    let node = beside(first, "-node");
    fs::write(&node, "nothing").unwrap();
    fleet.refused(&["replicate", "--once"], first, 1, &["app.db-node holds no number", "remove it"]);
}

#[test]
fn a_store_that_was_emptied_keeps_its_owner_and_its_epoch_rises() {
    let fleet = Fleet::new();
    fleet.ship(&fleet.first);
    let owner = fleet.dir.path().join("store/owner.json");
    let epoch = || {
        let owner: serde_json::Value = serde_json::from_slice(&fs::read(&owner).unwrap()).unwrap();
        owner["epoch"].as_u64().unwrap()
    };
    assert_eq!(epoch(), 1);
    fleet.ship(&fleet.first);
    assert_eq!(epoch(), 2);
    fs::write(&owner, "{").unwrap();
    fleet.refused(&["replicate", "--once"], &fleet.first, 1, &["owner.json", "does not tell its owner"]);
    fs::remove_dir_all(fleet.dir.path().join("store")).unwrap();
    fleet.ship(&fleet.first);
    fleet.done(&["verify"], &fleet.first);
}

#[test]
fn of_promotions_that_race_one_wins_each_epoch() {
    let fleet = Fleet::new();
    fleet.ship(&fleet.first);
    let files: Vec<_> = (0..16).map(|n| fleet.dir.path().join(format!("{n}.db"))).collect();
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let racing: Vec<_> = files.iter().map(|file| scope.spawn(|| fleet.run(&["promote"], file))).collect();
        racing.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut won = Vec::new();
    for (file, output) in files.iter().zip(&outputs) {
        match output.status.code() {
            Some(0) => won.push(file),
            Some(3) => assert!(!file.exists() && said(output).contains("fenced"), "{}", said(output)),
            _ => panic!("{}", said(output)),
        }
    }
    let owners: Vec<_> = won.iter().filter(|file| fleet.run(&["replicate", "--once"], file).status.success()).collect();
    assert_eq!(owners.len(), 1, "{won:?}");
}

fn installed(program: &str) -> Option<PathBuf> {
    let found =
        std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// A process that runs on, from the line with these words.
fn runs(fleet: &Fleet, args: &[&str], file: &Path, words: &str) -> Killed {
    let url = format!("file://{}", fleet.dir.path().join("store").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite-replicate"));
    match args[0] {
        "replicate" => command.args(args).arg(file).arg(url),
        _ => command.args(args).arg(url).arg(file),
    };
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut all = String::new();
    while !all.contains(words) {
        assert!(said.read_line(&mut all).unwrap() > 0, "{all}");
    }
    std::thread::spawn(move || _ = std::io::copy(&mut said, &mut std::io::sink()));
    Killed(child)
}

fn ends(mut process: Killed) {
    assert!(Command::new("kill").args(["-TERM", &process.0.id().to_string()]).status().unwrap().success());
    assert!(process.0.wait().unwrap().success());
}

/// The error of a commit, with its reason.
fn commit(file: &Path, value: &str) -> Result<(), String> {
    let db = onewrite_rusqlite::open(file).unwrap();
    db.busy_timeout(Duration::from_millis(50)).unwrap();
    let done = db.execute("INSERT INTO t VALUES (?1)", [value]);
    done.map(drop).map_err(|e| format!("{e}: {}", onewrite_rusqlite::last_error().unwrap_or_default()))
}

fn seen(file: &Path) -> String {
    let db = onewrite_rusqlite::open(file).unwrap();
    db.query_row("SELECT group_concat(x) FROM t", [], |row| row.get(0)).unwrap()
}

/// An application that starts before the shipper, behind each step of a failover and back.
#[cfg_attr(windows, ignore = "sends signals, which Windows has not")]
#[test]
fn a_database_whose_commits_wait_stays_so_until_a_person_ends_it() {
    let fleet = Fleet::new();
    let (first, second) = (&*fleet.first, &*fleet.second);
    let sync = ["replicate", "--sync", "--ship-timeout", "300ms"];
    let waits = |file| runs(&fleet, &sync, file, "commits wait for it");
    let is_refused = |file: &Path, why: &str| {
        let error = commit(file, "refused").unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    let shipper = waits(first);
    commit(first, "two").unwrap();
    ends(shipper);
    is_refused(first, "start `onewrite replicate --sync`");

    let text = fleet.done(&["promote"], second);
    assert!(text.contains("start `onewrite replicate --sync`"), "{text}");
    is_refused(second, "start `onewrite replicate --sync`");
    assert_eq!(seen(second), "one,two");
    fleet.refused(&["replicate", "--once"], second, 1, &["add --sync", "onewrite unsync"]);
    let shipper = waits(second);
    commit(second, "three").unwrap();

    fleet.done(&["rejoin"], first);
    is_refused(first, "is a replica");
    assert_eq!(seen(first), "one,two,three");
    commit(second, "four").unwrap();
    fleet.done(&["follow", "--once"], first);
    is_refused(first, "is a replica");
    assert_eq!(seen(first), "one,two,three,four");
    // Also within the session of the follower, and of one that was killed in it.
    let follower = runs(&fleet, &["follow", "--interval", "10ms", "-v"], first, "has transaction");
    for (value, all) in [("five", "one,two,three,four,five"), ("six", "one,two,three,four,five,six")] {
        commit(second, value).unwrap();
        crate::place::until("it is applied", || seen(first) == all);
        is_refused(first, "is a replica");
    }
    drop(follower);
    is_refused(first, "is a replica");
    fleet.done(&["follow", "--once"], first);
    let third = fleet.dir.path().join("third.db");
    fleet.done(&["follow", "--once"], &third);
    is_refused(&third, "is a replica");
    ends(shipper);

    // A reader of the replica goes on through the promotion, in a session that the follower began.
    let follower = runs(&fleet, &["follow", "--interval", "10ms", "-v"], first, "has transaction");
    let shipper = waits(second);
    commit(second, "seven").unwrap();
    crate::place::until("it is applied", || seen(first).ends_with("seven"));
    let reader = onewrite_rusqlite::open(first).unwrap();
    reader.busy_timeout(Duration::from_millis(50)).unwrap();
    let count = |db: &Connection| db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count(&reader), 7);
    ends(shipper);
    ends(follower);
    fleet.done(&["promote"], first);
    assert_eq!(count(&reader), 7);
    drop(reader);
    is_refused(first, "start `onewrite replicate --sync`");
    let shipper = waits(first);
    commit(first, "eight").unwrap();
    ends(shipper);

    // A database that equals the store.
    fleet.done(&["rejoin"], second);
    fleet.done(&["promote"], second);
    is_refused(second, "start `onewrite replicate --sync`");
    fleet.refused(&["unsync"], &third, 1, &["is a replica"]);
    let text = String::from_utf8_lossy(&unsync(second).stderr).into_owned();
    assert!(text.contains("no more"), "{text}");
    commit(second, "nine").unwrap();
    fleet.ship(second);
    // The store's record says so, too.
    fs::remove_file(&third).unwrap();
    for suffix in ["-follow", "-onewrite-sync"] {
        fs::remove_file(beside(&third, suffix)).unwrap();
    }
    fleet.done(&["promote"], &third);
    commit(&third, "ten").unwrap();
}

fn unsync(file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onewrite-replicate")).arg("unsync").arg(file).output().unwrap()
}

#[test]
fn a_database_in_use_goes_on_waiting() {
    let fleet = Fleet::new();
    let first = &*fleet.first;
    let shipper = runs(&fleet, &["replicate", "--sync"], first, "commits wait for it");
    commit(first, "two").unwrap();
    let output = unsync(first);
    assert!(!output.status.success() && said(&output).contains("in use"), "{}", said(&output));
    // Killed, it leaves commits that only the next shipper shows.
    drop(shipper);
    assert!(commit(first, "three").unwrap_err().contains("start `onewrite replicate --sync`"));
    assert!(said(&unsync(first)).contains("no more"));
    assert!(said(&unsync(first)).contains("do not wait"));
    commit(first, "three").unwrap();
    assert_eq!(seen(first), "one,two,three");
}
