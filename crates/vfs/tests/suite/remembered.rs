//! WAL mode that was asked for is remembered in the header of the file, and every connection is
//! answered so.

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{built, one, open, open_stock, python, setup, within};
use onewrite_core::inspect::layout::home::{MARK, READ_VERSION, WRITE_VERSION};
use rusqlite::Connection;

const MARKED: [u8; 2] = [2, MARK];
/// While a process of onewrite may come back.
const AT_REST: [u8; 2] = [2, 1];
const CLOSED: [u8; 2] = [2, 2];
const FORGOTTEN: [u8; 2] = [1, 1];

fn versions(path: &Path) -> [u8; 2] {
    fs::read(path).unwrap()[WRITE_VERSION..=READ_VERSION].try_into().unwrap()
}

fn becomes(path: &Path, expected: [u8; 2]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while versions(path) != expected {
        assert!(Instant::now() < deadline, "{:?} is not {expected:?}", versions(path));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn mode(db: &Connection) -> String {
    one(db, "PRAGMA journal_mode")
}

fn rows(db: &Connection) -> i64 {
    one(db, "SELECT count(*) FROM t")
}

fn asked(path: &Path) {
    let db = open(path, "").unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode=wal"), "wal");
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(versions(path), MARKED);
    db.close().unwrap();
    assert_eq!(versions(path), CLOSED);
}

fn beside(path: &Path) -> Vec<PathBuf> {
    let names = ["-wal", "-shm", "-journal"].map(|suffix| PathBuf::from(format!("{}{suffix}", path.display())));
    names.into_iter().filter(|path| path.exists()).collect()
}

#[test]
fn every_connection_is_answered_and_stock_sqlite_goes_on_in_wal_mode() {
    let dir = setup();
    let path = dir.path().join("app.db");
    asked(&path);
    for round in 1..4 {
        // The first question, before any look at the file.
        let (db, other) = (open(&path, "require=1").unwrap(), open(&path, "").unwrap());
        assert_eq!([mode(&db), mode(&other)], ["wal", "wal"]);
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(versions(&path), MARKED);
        assert_eq!((rows(&other), mode(&other)), (2 * round, "wal".to_owned()));
        drop((db, other));
        assert_eq!(versions(&path), CLOSED);
        assert_eq!(beside(&path), Vec::<PathBuf>::new());
        let stock = open_stock(&path);
        assert_eq!((rows(&stock), mode(&stock)), (2 * round, "wal".to_owned()));
        stock.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        assert!(!beside(&path).is_empty(), "stock SQLite writes a WAL");
        assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    }
    let db = open(&path, "").unwrap();
    assert_eq!(rows(&db), 7);
}

/// As a killed process leaves them, and one that never had the database in WAL mode.
#[test]
fn a_wal_of_stock_sqlite_goes_home_and_is_remembered() {
    let dir = setup();
    let (path, copy) = (dir.path().join("app.db"), dir.path().join("copy.db"));
    asked(&path);
    let stock = open_stock(&path);
    stock.execute_batch("INSERT INTO t VALUES (2), (3)").unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::copy(format!("{}{suffix}", path.display()), format!("{}{suffix}", copy.display())).unwrap();
    }
    let db = open(&copy, "require=1").unwrap();
    assert_eq!((rows(&db), mode(&db)), (3, "wal".to_owned()));
    assert_eq!(versions(&copy), AT_REST);
    drop(db);
    assert_eq!((versions(&copy), beside(&copy)), (CLOSED, Vec::new()));
}

#[test]
fn another_mode_ends_it_for_all() {
    let dir = setup();
    for ending in ["delete", "truncate", "off"] {
        let path = dir.path().join(ending);
        asked(&path);
        // Before the first look, at rest and in use.
        for write in ["SELECT 1", "SELECT count(*) FROM t", "INSERT INTO t VALUES (1)"] {
            let (db, other) = (open(&path, "").unwrap(), open(&path, "").unwrap());
            db.query_row(write, [], |_| Ok(())).or_else(|_| db.execute_batch(write)).unwrap();
            assert_eq!(one::<String>(&db, &format!("PRAGMA journal_mode={ending}")), ending);
            assert_eq!([mode(&db), mode(&other)], [ending, "delete"]);
            drop((db, other));
            assert_eq!((versions(&path), mode(&open_stock(&path))), (FORGOTTEN, "delete".to_owned()));
            let db = open(&path, "").unwrap();
            assert_eq!(mode(&db), "delete");
            assert_eq!(one::<String>(&db, "PRAGMA journal_mode=wal"), "wal");
            assert_eq!(versions(&path), AT_REST);
            drop(db);
            assert_eq!(versions(&path), CLOSED);
        }
    }
}

#[test]
fn stock_sqlite_can_change_it_at_rest() {
    let dir = setup();
    let path = dir.path().join("app.db");
    asked(&path);
    for (told, left) in [("delete", FORGOTTEN), ("wal", CLOSED)] {
        let stock = open_stock(&path);
        assert_eq!(one::<String>(&stock, &format!("PRAGMA journal_mode={told}")), told);
        drop(stock);
        assert_eq!(versions(&path), left);
        let db = open(&path, "require=1").unwrap();
        assert_eq!((rows(&db), mode(&db)), (1, told.to_owned()));
        drop(db);
        assert_eq!(versions(&path), left);
    }
}

/// It keeps no lock of SQLite's, as it would in WAL mode.
#[test]
fn a_program_that_falls_silent_leaves_a_file_with_a_rollback_journal() {
    let dir = setup();
    let path = dir.path().join("app.db");
    asked(&path);
    let db = open(&path, "idle=20ms&require=1").unwrap();
    for round in 0..3 {
        db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        becomes(&path, AT_REST);
        let stock = open_stock(&path);
        assert_eq!(mode(&stock), "delete");
        stock.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        assert_eq!((rows(&db), mode(&db)), (3 + 2 * round, "wal".to_owned()));
    }
    db.close().unwrap();
    assert_eq!(versions(&path), CLOSED);
    assert_eq!(rows(&open_stock(&path)), 7);
}

#[test]
fn a_reader_leaves_the_file_as_it_was() {
    let dir = setup();
    let path = dir.path().join("app.db");
    asked(&path);
    let db = open(&path, "").unwrap();
    assert_eq!(rows(&db), 1);
    assert_eq!(versions(&path), AT_REST);
    // Beside one that has it open.
    let reader = open(&path, "mode=ro").unwrap();
    assert_eq!((rows(&reader), mode(&reader)), (1, "wal".to_owned()));
    drop(reader);
    drop(db);
    assert_eq!(versions(&path), CLOSED);
    let reader = open(&path, "mode=ro").unwrap();
    assert_eq!((rows(&reader), mode(&reader)), (1, "wal".to_owned()));
}

/// The answer is given at once, and the header follows with the next write.
#[test]
fn a_request_beside_a_writer_waits_for_no_turn() {
    let dir = setup();
    let path = dir.path().join("app.db");
    let (db, writer) = (open(&path, "").unwrap(), open(&path, "").unwrap());
    writer.execute_batch("CREATE TABLE t(x); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)").unwrap();
    let (mode_now, _) = within(Duration::from_secs(1), || one::<String>(&db, "PRAGMA journal_mode=wal"));
    assert_eq!(mode_now, "wal");
    assert_eq!([mode(&db), mode(&open(&path, "").unwrap())], ["wal", "wal"]);
    writer.execute_batch("COMMIT; INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(versions(&path), MARKED);
    drop((db, writer));
    assert_eq!(versions(&path), CLOSED);
}

const PROGRAM: &str = r#"
import ctypes, os, sqlite3, sys
loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(sys.argv[1])
db = sqlite3.connect("file:app.db?vfs=onewrite", uri=True, isolation_level=None)
for line in sys.stdin:
    line = line.strip()
    if line == "exit":
        ctypes.CDLL(None).exit(0)
    if line == "_exit":
        os._exit(0)
    print(db.execute(line).fetchall(), flush=True)
"#;

struct Program(Child, BufReader<std::process::ChildStdout>);

impl Program {
    fn start(dir: &Path) -> Option<Program> {
        let mut child = Command::new(python()?)
            .args(["-c", PROGRAM])
            .arg(built("libonewrite.so"))
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Some(Program(child, out))
    }

    fn run(&mut self, sql: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{sql}").unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn end(mut self, how: &str) {
        self.run(how);
        self.0.wait().unwrap();
    }
}

#[test]
fn other_processes_are_answered_and_a_death_forgets_nothing() {
    let dir = setup();
    let path = dir.path().join("app.db");
    let (Some(mut a), Some(mut b)) = (Program::start(dir.path()), Program::start(dir.path())) else { return };
    a.run("CREATE TABLE t(x)");
    assert_eq!([a.run("PRAGMA journal_mode"), b.run("PRAGMA journal_mode")], ["[('delete',)]"; 2]);
    assert_eq!(a.run("PRAGMA journal_mode=wal"), "[('wal',)]");
    assert_eq!([a.run("PRAGMA journal_mode"), b.run("PRAGMA journal_mode")], ["[('wal',)]"; 2]);
    b.run("INSERT INTO t VALUES (1)");
    a.end("_exit");
    assert_eq!((versions(&path), b.run("PRAGMA journal_mode")), (MARKED, "[('wal',)]".to_owned()));
    b.run("INSERT INTO t VALUES (2)");
    b.end("_exit");
    // The last one died: the next recovers.
    assert_eq!(versions(&path), MARKED);
    let mut c = Program::start(dir.path()).unwrap();
    assert_eq!([c.run("PRAGMA journal_mode"), c.run("SELECT count(*) FROM t")], ["[('wal',)]", "[(2,)]"]);
    c.run("INSERT INTO t VALUES (3)");
    // Handlers of exit() are the last close.
    c.end("exit");
    assert_eq!(versions(&path), CLOSED);
    let stock = open_stock(&path);
    assert_eq!((rows(&stock), mode(&stock)), (3, "wal".to_owned()));
}
