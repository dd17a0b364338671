//! Other tools on the same file, in each state of the database: `docs/living-together.md` names
//! these tests.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Command;
use std::time::{Duration, Instant};

use rusqlite::ffi;
use support::remote::{Remote, Reply};
use support::{one, open, open_stock};
use tempfile::TempDir;

const COUNT: &str = "SELECT count(*) FROM t";
const INSERT: &str = "INSERT INTO t VALUES (1)";

/// A database at rest, with one row.
fn at_rest() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.db");
    open(&path, "").unwrap().execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    // A program that another test starts has this process's files until it is executed, and with
    // them the locks that a close takes.
    open_stock(&path).execute_batch("BEGIN EXCLUSIVE; ROLLBACK").unwrap();
    (dir, path)
}

/// A program that has written and stays attached.
fn attached(path: &Path) -> Remote {
    let mut program = Remote::attached(path);
    program.sql(INSERT).unwrap();
    program
}

/// A program in the midst of a transaction.
fn writing(path: &Path) -> Remote {
    let mut program = attached(path);
    program.sql("BEGIN IMMEDIATE").unwrap();
    program.sql(INSERT).unwrap();
    program
}

fn crashed(path: &Path) {
    attached(path).kill();
}

/// With `busy_ms=0` it is refused while its own process brings the file to rest, too.
fn insert_soon(program: &mut Remote) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err((code, said)) = program.sql(INSERT) {
        assert!(code & 0xff == ffi::SQLITE_BUSY && Instant::now() < deadline, "{code}: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Until the mark and the locks are off.
fn until_at_rest(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut stock = Remote::stock(path);
        let is_free = stock.sql("BEGIN EXCLUSIVE").is_ok();
        // Until it has ended it holds its lock.
        stock.kill();
        if is_free {
            return;
        }
        assert!(Instant::now() < deadline, "the file stays in use");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn code(reply: Reply) -> i32 {
    reply.expect_err("this must be refused").0 & 0xff
}

fn stock_rows(path: &Path) -> i64 {
    let stock = open_stock(path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    one(&stock, COUNT)
}

#[test]
fn a_stock_shell_uses_the_file_at_rest_and_is_locked_out_else() {
    let (_dir, path) = at_rest();
    let shell = |sql: &str| Remote::stock(&path).sql(sql);
    assert_eq!(shell(COUNT).unwrap(), "1");
    shell(INSERT).unwrap();
    let mut program = attached(&path);
    assert_eq!([code(shell(COUNT)), code(shell(INSERT))], [ffi::SQLITE_BUSY; 2]);
    program.sql("BEGIN IMMEDIATE").unwrap();
    program.sql(INSERT).unwrap();
    assert_eq!([code(shell(COUNT)), code(shell(INSERT))], [ffi::SQLITE_BUSY; 2]);
    program.sql("COMMIT").unwrap();
    program.kill();
    assert_eq!([code(shell(COUNT)), code(shell(INSERT))], [ffi::SQLITE_NOTADB; 2]);
    Remote::ours(&path).close();
    let mut next = Remote::ours(&path);
    assert_eq!(next.sql(COUNT).unwrap(), "4");
    next.close();
    assert_eq!(shell(COUNT).unwrap(), "4");
}

#[test]
fn a_program_that_returns_without_closing_leaves_a_plain_file() {
    let (_dir, path) = at_rest();
    let mut program = Remote::attached(&path);
    program.sql(INSERT).unwrap();
    program.leave();
    assert_eq!(Remote::stock(&path).sql(COUNT).unwrap(), "2");
}

/// As DB Browser does.
#[test]
fn a_stock_program_that_stays_open_is_in_the_way_within_a_transaction_alone() {
    let (_dir, path) = at_rest();
    let mut browser = Remote::stock(&path);
    assert_eq!(browser.sql(COUNT).unwrap(), "1");
    // Without a transaction it holds nothing.
    let program = writing(&path);
    assert_eq!(code(browser.sql(COUNT)), ffi::SQLITE_BUSY);
    program.close();
    assert_eq!(browser.sql(COUNT).unwrap(), "2");
    // Within one, programs read beside it, and a write names it.
    browser.sql("BEGIN").unwrap();
    browser.sql(COUNT).unwrap();
    let mut program = Remote::attached(&path);
    assert_eq!(program.sql(COUNT).unwrap(), "2");
    let (_, said) = program.sql(INSERT).unwrap_err();
    let holder =
        if cfg!(windows) { "another process without onewrite".into() } else { format!("process {}", browser.pid()) };
    assert!(said.contains(&holder), "{said}");
    browser.sql(INSERT).unwrap();
    browser.sql("COMMIT").unwrap();
    program.sql(INSERT).unwrap();
    program.kill();
    assert_eq!(code(browser.sql(COUNT)), ffi::SQLITE_NOTADB);
    let mut next = Remote::attached(&path);
    assert_eq!(next.sql(COUNT).unwrap(), "4");
    next.close();
    assert_eq!(browser.sql(COUNT).unwrap(), "4");
}

/// As Datasette opens its files: `mode=ro`, or `immutable=1` with `-i`.
#[test]
fn a_stock_program_that_only_reads_never_takes_a_marked_file_for_a_plain_one() {
    let (_dir, path) = at_rest();
    let reader = |mode: &str| Remote::stock(Path::new(&format!("file:{}?{mode}", path.display())));
    let read = |mode: &str| reader(mode).sql(COUNT);
    assert_eq!([read("mode=ro").unwrap(), read("immutable=1").unwrap()], ["1", "1"]);
    assert_eq!(code(reader("mode=ro").sql(INSERT)), ffi::SQLITE_READONLY);
    // `immutable=1` asks for no lock.
    let program = attached(&path);
    assert_eq!([code(read("mode=ro")), code(read("immutable=1"))], [ffi::SQLITE_BUSY, ffi::SQLITE_NOTADB]);
    program.close();
    let program = writing(&path);
    assert_eq!([code(read("mode=ro")), code(read("immutable=1"))], [ffi::SQLITE_BUSY, ffi::SQLITE_NOTADB]);
    program.kill();
    assert_eq!([code(read("mode=ro")), code(read("immutable=1"))], [ffi::SQLITE_NOTADB; 2]);
}

fn copy(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
}

fn log_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-onewrite", path.display()))
}

#[test]
fn a_copy_by_cp_is_whole_or_an_error() {
    let (dir, path) = at_rest();
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let to = other.join("a.db");
    copy(&path, &to);
    assert_eq!(stock_rows(&to), 1);
    for program in [attached(&path), writing(&path)] {
        fs::remove_file(&to).unwrap();
        copy(&path, &to);
        assert_eq!(code(Remote::stock(&to).sql(COUNT)), ffi::SQLITE_NOTADB);
        let (rc, said) = Remote::ours(&to).sql(COUNT).unwrap_err();
        assert!(rc & 0xff == ffi::SQLITE_CANTOPEN && said.contains("is missing"), "{rc}: {said}");
        program.close();
    }
    crashed(&path);
    let rows = "4";
    copy(&path, &to);
    copy(&log_of(&path), &log_of(&to));
    let mut ours = Remote::ours(&to);
    assert_eq!(ours.sql(COUNT).unwrap(), rows);
    ours.close();
    assert_eq!(stock_rows(&to).to_string(), rows);
    // The original has lost nothing.
    assert_eq!(Remote::ours(&path).sql(COUNT).unwrap(), rows);
}

/// As rsync looks for what has changed.
#[test]
fn each_session_changes_the_time_of_the_file() {
    let (_dir, path) = at_rest();
    let changed = || fs::metadata(&path).unwrap().modified().unwrap();
    for _ in 0..3 {
        let before = changed();
        std::thread::sleep(Duration::from_millis(20));
        attached(&path).close();
        assert!(changed() > before);
    }
    let before = changed();
    let mut reader = Remote::ours(&path);
    reader.sql(COUNT).unwrap();
    reader.close();
    assert_eq!(changed(), before, "a reader changes nothing");
}

/// Another mount and another PID namespace, as a second container has. `None` where this user may
/// make none.
#[cfg(unix)]
fn in_container(dir: &Path) -> Option<(Remote, PathBuf)> {
    let mount = dir.join("mount");
    fs::create_dir(&mount).unwrap();
    let exe = std::env::current_exe().unwrap();
    let script = "mount --bind \"$1\" \"$2\" && exec \"$3\" --exact child --nocapture";
    let prepare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]);
        command.arg(dir.join("data")).arg(&mount).arg(&exe);
        command
    };
    let may = prepare("mount --bind \"$1\" \"$2\"").output().is_ok_and(|done| done.status.success());
    if !may {
        println!("skipped: no mount or PID namespace can be made here");
        return None;
    }
    Some((Remote::start_by(prepare(script)), mount.join("a.db")))
}

/// A program that has inserted a row, and is detached again.
fn wrote_and_rests(path: &Path) -> Remote {
    let mut program = Remote::start();
    program.ask(&format!("ours {}?busy_ms=0&idle=20ms", path.display())).unwrap();
    program.sql(INSERT).unwrap();
    until_at_rest(path);
    program
}

/// The thread that looks after databases has ended by then.
#[test]
fn a_program_that_asks_late_for_a_plain_file_gets_one() {
    let (_dir, path) = at_rest();
    let mut program = attached(&path);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(program.sql("PRAGMA onewrite_idle='20ms'").unwrap(), "20ms");
    until_at_rest(&path);
    insert_soon(&mut program);
    until_at_rest(&path);
    program.close();
}

#[cfg(unix)]
#[test]
fn a_second_container_writes_the_same_file() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let path = dir.path().join("data/a.db");
    open(&path, "").unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
    let Some((mut inside, seen)) = in_container(dir.path()) else { return };
    inside.ask(&format!("ours {}?busy_ms=0&idle=0", seen.display())).unwrap();
    let mut outside = Remote::attached(&path);
    for n in 1..=5 {
        inside.sql(INSERT).unwrap();
        outside.sql(INSERT).unwrap();
        assert_eq!(
            [inside.sql(COUNT).unwrap(), outside.sql(COUNT).unwrap()],
            [(2 * n).to_string(), (2 * n).to_string()]
        );
    }
    inside.sql("BEGIN IMMEDIATE").unwrap();
    inside.sql(INSERT).unwrap();
    assert_eq!(code(outside.sql(INSERT)), ffi::SQLITE_BUSY);
    // The container is killed: the other takes over.
    inside.kill();
    insert_soon(&mut outside);
    assert_eq!(outside.sql(COUNT).unwrap(), "11");
    outside.close();
    assert_eq!(stock_rows(&path), 11);
}

#[cfg(unix)]
#[test]
fn a_stopped_program_is_in_the_way_of_writers_within_a_transaction_alone() {
    let (_dir, path) = at_rest();
    // At rest it holds nothing.
    let mut program = wrote_and_rests(&path);
    program.signal(libc::SIGSTOP);
    Remote::stock(&path).sql(INSERT).unwrap();
    let mut other = Remote::attached(&path);
    other.sql(INSERT).unwrap();
    other.close();
    program.signal(libc::SIGCONT);
    assert_eq!(program.sql(COUNT).unwrap(), "4");
    program.close();
    // Attached, it keeps stock SQLite out, and no program of onewrite.
    let mut program = attached(&path);
    program.signal(libc::SIGSTOP);
    let mut other = Remote::attached(&path);
    other.sql(INSERT).unwrap();
    assert_eq!(code(Remote::stock(&path).sql(COUNT)), ffi::SQLITE_BUSY);
    program.signal(libc::SIGCONT);
    // In a transaction, readers go on, and writers wait.
    program.sql("BEGIN IMMEDIATE").unwrap();
    program.sql(INSERT).unwrap();
    program.signal(libc::SIGSTOP);
    assert_eq!(other.sql(COUNT).unwrap(), "6");
    assert_eq!(code(other.sql(INSERT)), ffi::SQLITE_BUSY);
    program.signal(libc::SIGCONT);
    program.sql("COMMIT").unwrap();
    other.sql(INSERT).unwrap();
    program.close();
    other.close();
    assert_eq!(stock_rows(&path), 8);
}

#[test]
fn a_program_killed_at_rest_leaves_a_plain_file() {
    let (_dir, path) = at_rest();
    let program = wrote_and_rests(&path);
    program.kill();
    assert_eq!(stock_rows(&path), 2);
}
