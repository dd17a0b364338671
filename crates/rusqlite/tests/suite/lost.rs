//! Real files that are removed, moved or overwritten while several processes use the database
//! (rules LostLogReplaced and HomeFitsLog).

use crate::support;

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::ffi;
use support::open_stock;
use support::remote::{Remote, Reply};

/// A process looks once a second: longer than that.
const NEXT_LOOK: Duration = Duration::from_millis(1100);
const INSERT: &str = "INSERT INTO t VALUES (zeroblob(100))";
const COUNT: &str = "SELECT count(*) FROM t";

fn made() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    open_stock(&path).execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2)").unwrap();
    (dir, path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn stock_counts(path: &Path) -> i64 {
    let stock = open_stock(path);
    assert_eq!(support::one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    support::one(&stock, COUNT)
}

/// The code of an error whose message has these words.
fn refused(reply: Reply, words: &[&str]) -> i32 {
    let (code, message) = reply.unwrap_err();
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
    code
}

#[cfg_attr(windows, ignore = "Wine keeps a removed name until the last handle is closed")]
#[test]
fn a_log_that_is_lost_is_made_anew_for_every_process() {
    for is_removed in [true, false] {
        let (dir, path) = made();
        let log = beside(&path, "-onewrite");
        let [mut one, mut other, mut idle] = [(); 3].map(|()| Remote::attached(&path));
        for process in [&mut one, &mut other] {
            process.sql(INSERT).unwrap();
        }
        assert_eq!(idle.sql(COUNT).unwrap(), "4");
        match is_removed {
            true => fs::remove_file(&log).unwrap(),
            false => fs::rename(&log, dir.path().join("elsewhere")).unwrap(),
        }
        std::thread::sleep(NEXT_LOOK);
        for process in [&mut one, &mut other, &mut idle] {
            process.sql(INSERT).unwrap();
        }
        assert!(log.exists());
        let mut comes = Remote::attached(&path);
        assert_eq!(comes.sql(COUNT).unwrap(), "7");
        for process in [one, other, idle, comes] {
            process.kill();
        }
        let mut next = Remote::attached(&path);
        assert_eq!(next.sql(COUNT).unwrap(), "7");
        next.close();
        assert_eq!(stock_counts(&path), 7);
    }
}

/// The log of one of two files is removed while their transaction is open.
#[cfg_attr(windows, ignore = "Wine keeps a removed name until the last handle is closed")]
#[test]
fn a_transaction_over_two_files_goes_to_no_removed_log() {
    for lost in [0, 1] {
        let (_dir, path) = made();
        let other = beside(&path, "-two");
        let mut one = Remote::attached(&path);
        one.sql(&format!("ATTACH 'file:{}?vfs=onewrite' AS two", other.display())).unwrap();
        for sql in ["CREATE TABLE two.u(a)", "BEGIN", INSERT, "INSERT INTO u VALUES (1)"] {
            one.sql(sql).unwrap();
        }
        fs::remove_file(beside([&path, &other][lost], "-onewrite")).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        one.sql("COMMIT").unwrap();
        one.kill();
        assert_eq!(Remote::attached(&path).sql(COUNT).unwrap(), "3", "{lost}");
        assert_eq!(Remote::attached(&other).sql("SELECT count(*) FROM u").unwrap(), "1", "{lost}");
    }
}

/// A log is moved to another directory, and a link to it takes its place. The next process would
/// use neither: it follows no link to a log, and beside the moved database there is none.
#[cfg(unix)]
#[test]
fn a_moved_database_with_a_link_in_its_place_is_lost_as_well() {
    let (dir, path) = made();
    let log = beside(&path, "-onewrite");
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let move_and_link = |from: &Path| {
        let to = elsewhere.join(from.file_name().unwrap());
        fs::rename(from, &to).unwrap();
        symlink(to, from).unwrap();
    };
    let mut one = Remote::attached(&path);
    one.sql(INSERT).unwrap();
    move_and_link(&log);
    std::thread::sleep(NEXT_LOOK);
    one.sql(INSERT).unwrap();
    assert!(!log.symlink_metadata().unwrap().is_symlink());
    one.kill();
    let mut one = Remote::attached(&path);
    assert_eq!(one.sql(COUNT).unwrap(), "4");

    one.sql(INSERT).unwrap();
    move_and_link(&path);
    std::thread::sleep(NEXT_LOOK);
    let code = refused(one.sql(INSERT), &["was moved to another directory"]);
    assert_eq!(code, ffi::SQLITE_READONLY_DBMOVED);
    one.close();
    assert_eq!(stock_counts(&elsewhere.join("a.db")), 5);
}

/// A process that was idle all the while finds the new log also where every other one has left.
#[test]
fn an_idle_process_finds_the_new_log() {
    let (_dir, path) = made();
    let [mut one, mut idle] = [(); 2].map(|()| Remote::attached(&path));
    idle.sql(INSERT).unwrap();
    one.sql(INSERT).unwrap();
    fs::remove_file(beside(&path, "-onewrite")).unwrap();
    std::thread::sleep(NEXT_LOOK);
    one.sql(INSERT).unwrap();
    one.close();
    let mut comes = Remote::attached(&path);
    comes.sql(INSERT).unwrap();
    assert_eq!(idle.sql(COUNT).unwrap(), "6");
    idle.sql(INSERT).unwrap();
    comes.close();
    idle.close();
    assert_eq!(stock_counts(&path), 7);
}

#[cfg(unix)]
#[test]
fn in_a_directory_that_may_not_be_written_commits_are_errors() {
    let (dir, path) = made();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(dir.path(), 0o777);
    mode(&path, 0o666);
    let Some(mut user) = Remote::start_as(Some(65534)) else {
        println!("skipped: no other user can run this test program");
        return;
    };
    user.ask(&format!("ours {}?idle=0", path.display())).unwrap();
    user.sql(INSERT).unwrap();
    fs::remove_file(beside(&path, "-onewrite")).unwrap();
    mode(dir.path(), 0o555);
    std::thread::sleep(NEXT_LOOK);
    for _ in 0..2 {
        let code = refused(user.sql(INSERT), &["a.db-onewrite", "no longer there", "no new one can be made"]);
        assert_eq!(code & 0xff, ffi::SQLITE_READONLY);
        assert_eq!(user.sql(COUNT).unwrap(), "3");
    }
    user.close();
    assert_eq!(stock_counts(&path), 3, "everything is at home");
}

/// `cp other.db a.db`, beside two processes that use it.
#[test]
fn a_database_that_is_overwritten_is_left_alone() {
    let (dir, path) = made();
    let other = dir.path().join("other.db");
    open_stock(&other).execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1)").unwrap();
    let [mut one, mut two] = [(); 2].map(|()| Remote::attached(&path));
    one.sql(INSERT).unwrap();
    two.sql(INSERT).unwrap();
    let new = fs::read(&other).unwrap();
    fs::write(&path, &new).unwrap();
    std::thread::sleep(NEXT_LOOK);
    refused(one.sql(INSERT), &["a.db", "was overwritten while it is in use"]);
    refused(two.sql(INSERT), &["overwritten"]);
    refused(one.sql("PRAGMA wal_checkpoint"), &["overwritten"]);
    let _ = (one.ask("close"), two.ask("close"));
    one.kill();
    two.kill();
    assert!(fs::read(&path).unwrap() == new);
    let mut next = Remote::attached(&path);
    next.sql(INSERT).unwrap();
    next.close();
    assert_eq!(stock_counts(&path), 2);
}

#[test]
fn a_database_that_is_moved_says_so() {
    let (dir, path) = made();
    let away = dir.path().join("away");
    fs::create_dir(&away).unwrap();
    let away = away.join("a.db");
    let mut one = Remote::attached(&path);
    one.sql(INSERT).unwrap();
    fs::rename(&path, &away).unwrap();
    // SQLite asks for the name in each transaction, and the VFS looks again after some
    // milliseconds.
    let mut late = 0i64;
    let reply = loop {
        match one.sql(INSERT) {
            Ok(_) => late += 1,
            refused => break refused,
        }
    };
    assert_eq!(refused(reply, &["a.db", "moved"]), ffi::SQLITE_READONLY_DBMOVED);
    std::thread::sleep(NEXT_LOOK);
    let said = ["moved to another directory", "a.db-onewrite"];
    assert_eq!(refused(one.sql(INSERT), &said), ffi::SQLITE_READONLY_DBMOVED);
    assert_eq!(one.sql(COUNT).unwrap(), (3 + late).to_string());
    fs::rename(&away, &path).unwrap();
    one.sql(INSERT).unwrap();
    fs::rename(&path, &away).unwrap();
    one.close();
    assert_eq!(stock_counts(&away), 4 + late);
}
