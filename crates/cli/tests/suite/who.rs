//! `who`: which processes use a database, also while they stop, die and wait.

use crate::common;

use common::{Db, plain};
use onewrite_rusqlite::{last_error, open};
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Tells the child which database to use, and how.
const FILE: &str = "ONEWRITE_TEST_WHO";
const SQL: &str = "ONEWRITE_TEST_WHO_SQL";
const STOCK: &str = "ONEWRITE_TEST_WHO_STOCK";

/// The name of such a process would forge a line and clear the screen.
const HOSTILE: &str = "evil\n\u{1b}[2Jname";
const ESCAPED: &str = "evil\\n\\u{1b}[2Jname";

/// In a process of its own: runs statements, and stays until its input ends.
#[test]
fn child() {
    let (Some(path), Ok(sql)) = (std::env::var_os(FILE), std::env::var(SQL)) else { return };
    let path = Path::new(&path);
    let db = match std::env::var_os(STOCK) {
        Some(_) => rusqlite::Connection::open(path).unwrap(),
        None => open(path).unwrap(),
    };
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    db.execute_batch(&sql).unwrap();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let _ = db.execute_batch("COMMIT");
}

/// Such a process, killed when dropped.
struct Other {
    child: Child,
    input: ChildStdin,
    /// A closed pipe would be an error of its.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn run(db: &Db, stock: bool, sql: &str) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg0(HOSTILE).args(["who::child", "--exact", "--nocapture"]).env(FILE, &db.home).env(SQL, sql);
        if stock {
            command.env(STOCK, "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")), "the process has ended");
        Other { input: child.stdin.take().unwrap(), child, _output: lines }
    }

    fn pid(&self) -> u64 {
        u64::from(self.child.id())
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap().success());
    }

    fn end(mut self) {
        self.input.write_all(b"\n").unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn who(args: &[&str], db: &Db) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onewrite")).arg("who").args(args).arg(&db.home).output().unwrap()
}

fn told(db: &Db) -> Value {
    let output = who(&["--json"], db);
    assert_eq!(text(&output).lines().count(), 1, "as other commands answer: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// The row of a process.
fn row(told: &Value, pid: u64) -> Value {
    let rows = told["processes"].as_array().unwrap();
    rows.iter().find(|row| row["pid"] == pid).unwrap_or_else(|| panic!("process {pid} is not in {told:#}")).clone()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

const ROW: &str = "INSERT INTO t VALUES((SELECT max(k) FROM t) + 1, 'x')";

#[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
#[test]
fn each_process_is_listed_with_its_holds() {
    let db = plain();
    let none = who(&[], &db);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    assert!(text(&none).ends_with(": a plain file; no process uses it, as far as this user may look\n"), "{none:?}");

    let reader = Other::run(&db, false, &format!("{ROW}; BEGIN; SELECT count(*) FROM t"));
    let writer = Other::run(&db, false, &format!("{ROW}; BEGIN IMMEDIATE; {ROW}"));
    std::thread::sleep(Duration::from_millis(1100));
    let seen = told(&db);
    assert_eq!(seen["marked"], true);
    assert!(seen["log"]["bytes"].as_u64().unwrap() >= 64 << 10);
    let writes = row(&seen, writer.pid());
    assert_eq!((&writes["activity"], &writes["state"]), (&"writing".into(), &"running".into()), "{seen:#}");
    assert!((1.0..60.0).contains(&writes["writing_s"].as_f64().unwrap()), "{seen:#}");
    assert!((1..60).contains(&writes["attached_s"].as_u64().unwrap()), "{seen:#}");
    let reads = row(&seen, reader.pid());
    assert_eq!((&reads["activity"], &reads["snapshots"]), (&"reading".into(), &1.into()), "{seen:#}");
    assert_eq!(reads["behind"], 1, "{seen:#}");
    assert!((1..60).contains(&reads["snapshot_s"].as_u64().unwrap()), "{seen:#}");
    assert_eq!(reads["command"], format!("{HOSTILE} who::child --exact --nocapture"), "{seen:#}");

    let table = who(&[], &db);
    assert!(table.status.success(), "{table:?}");
    let table = text(&table);
    assert!(table.contains(&format!("{ESCAPED} who::child")) && !table.contains('\u{1b}'), "{table}");
    assert!(table.contains("the writer's place") && table.contains("1 snapshot for "), "{table}");
    assert!(table.contains(&format!("The file stays marked because of process {} (writing for ", writer.pid())));
    writer.end();
    reader.end();
    assert_eq!(who(&[], &db).status.code(), Some(2));
}

#[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
#[test]
fn a_stopped_and_a_killed_process_are_said_so() {
    let db = plain();
    let writer = Other::run(&db, false, &format!("{ROW}; BEGIN IMMEDIATE; {ROW}"));
    let waiter = open(&db.home).unwrap();
    waiter.busy_timeout(Duration::from_millis(50)).unwrap();
    waiter.execute_batch(ROW).unwrap_err();
    let said = last_error().unwrap();
    let named = format!(" s by process {} ({ESCAPED} who::child)", writer.pid());
    assert!(said.contains("another process is writing the database through onewrite: held for "), "{said}");
    assert!(said.ends_with(&named), "{said}");

    writer.signal("-STOP");
    let until = Instant::now() + Duration::from_secs(10);
    while row(&told(&db), writer.pid())["state"] != "stopped" {
        assert!(Instant::now() < until);
    }
    assert!(text(&who(&[], &db)).contains(" s, stopped (SIGSTOP)"), "{:?}", who(&[], &db));
    waiter.execute_batch(ROW).unwrap_err();
    let said = last_error().unwrap();
    assert!(said.ends_with("who::child), which is stopped (SIGSTOP)"), "{said}");
    drop(waiter);

    let pid = writer.pid();
    drop(writer);
    let seen = told(&db);
    assert_eq!(row(&seen, pid)["state"], "ended", "{seen:#}");
    let table = text(&who(&[], &db));
    assert!(table.contains("has ended without closing"), "{table}");
    assert!(table.contains("No process is attached: the next open through onewrite recovers"), "{table}");
    open(&db.home).unwrap().execute_batch(ROW).unwrap();
    assert_eq!(who(&[], &db).status.code(), Some(2));
}

#[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
#[test]
fn a_process_of_stock_sqlite_and_its_locks() {
    let db = plain();
    let stock = Other::run(&db, true, &format!("BEGIN IMMEDIATE; {ROW}"));
    let seen = told(&db);
    let locks = row(&seen, stock.pid());
    assert_eq!((&locks["activity"], &locks["attached"]), (&"locking".into(), &false.into()), "{seen:#}");
    assert_eq!(locks["locks"], serde_json::json!(["SHARED", "RESERVED"]), "{seen:#}");
    assert!(text(&who(&[], &db)).contains("SHARED; RESERVED"), "{:?}", who(&[], &db));
    let waiter = open(&db.home).unwrap();
    waiter.execute_batch(ROW).unwrap_err();
    let said = last_error().unwrap();
    assert!(
        said.contains(&format!(": process {} ({ESCAPED} who::child)", stock.pid()))
            && said.ends_with(" holds RESERVED"),
        "{said}"
    );
    stock.end();
    waiter.execute_batch(ROW).unwrap();
}

#[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
#[test]
fn a_process_at_rest_has_it_open() {
    let db = plain();
    let rests = Other::run(&db, false, "SELECT count(*) FROM t");
    let seen = told(&db);
    assert_eq!((&seen["marked"], &row(&seen, rests.pid())["activity"]), (&false.into(), &"open".into()), "{seen:#}");
}

#[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
#[test]
fn a_user_sees_the_processes_of_others() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: only root has processes of two users");
        return;
    }
    let db = plain();
    let program = db.dir.path().join("onewrite");
    std::fs::copy(env!("CARGO_BIN_EXE_onewrite"), &program).unwrap();
    for (path, mode) in [(db.dir.path(), 0o755), (&program, 0o755), (&db.home, 0o644)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let as_other = || {
        let output = Command::new(&program).args(["who", "--json"]).arg(&db.home).uid(65534).gid(65534).output();
        let output = output.unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    };
    let writer = Other::run(&db, false, &format!("{ROW}; BEGIN IMMEDIATE; {ROW}"));
    let seen = as_other();
    let row = row(&seen, writer.pid());
    assert_eq!((&row["activity"], &row["state"]), (&"writing".into(), &"running".into()), "{seen:#}");
    writer.end();
    let stock = Other::run(&db, true, &format!("BEGIN IMMEDIATE; {ROW}"));
    let seen = as_other();
    assert_eq!(self::row(&seen, stock.pid())["activity"], "locking", "{seen:#}");
}
