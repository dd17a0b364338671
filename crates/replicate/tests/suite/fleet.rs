//! Promotions and rejoins with the real program and a directory: refusals, kept files, and
//! leftovers of a machine that fails in between.

use rusqlite::Connection;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
            "replicate" | "verify" => command.args(args).arg(file).arg(url),
            _ => command.args(args).arg(url).arg(file),
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

#[test]
fn there_and_back_again() {
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

#[test]
fn what_would_be_lost_is_not_touched() {
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
