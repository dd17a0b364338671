//! Troubles of users: other processes, crashes, files and directories that cannot be written, full
//! disks, files that are no database. Each gets an error that says so, and nothing is lost
//! (invariants I1, I6, I7).

use crate::support;

use std::fs;
use std::io::Write;
#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::ffi;
use support::mounted::Mounted;
use support::remote::Remote;
use support::{add_noise, explain, one, open, open_stock};
use tempfile::TempDir;

const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, b BLOB); INSERT INTO t(b) VALUES ('one'), ('two')";
const INSERT: &str = "INSERT INTO t(b) VALUES (noise(random(), 100))";
const COUNT: &str = "SELECT count(*) FROM t";

fn made_by_stock() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    (dir, path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn assert_stock_counts(path: &Path, rows: i64) {
    let stock = open_stock(path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&stock, COUNT), rows);
}

/// The code of a refusal, which must say something with `word` in it.
fn refused(reply: support::remote::Reply, word: &str) -> i32 {
    let (code, message) = reply.expect_err("this must be refused");
    assert!(message.contains(word), "{code}: {message:?} does not say {word:?}");
    code & 0xff
}

#[test]
fn a_second_process_joins_and_stock_sqlite_is_refused_until_both_have_left() {
    let (_dir, path) = made_by_stock();
    let mut first = Remote::ours(&path);
    first.sql(INSERT).unwrap();
    let (mut second, mut stock) = (Remote::ours(&path), Remote::stock(&path));
    for sql in [COUNT, INSERT, "BEGIN IMMEDIATE", "VACUUM"] {
        assert_eq!(refused(stock.sql(sql), "locked"), ffi::SQLITE_BUSY, "{sql}");
    }
    assert_eq!(second.sql(COUNT).unwrap(), "3");
    second.sql(INSERT).unwrap();
    second.sql("BEGIN IMMEDIATE").unwrap();
    assert_eq!(refused(first.sql(INSERT), "another process"), ffi::SQLITE_BUSY);
    second.sql("COMMIT").unwrap();
    second.sql("VACUUM").unwrap();
    assert_eq!(refused(stock.sql("PRAGMA journal_mode=wal"), "locked"), ffi::SQLITE_BUSY);
    first.sql(INSERT).unwrap();
    assert_eq!(first.sql(COUNT).unwrap(), "5");
    first.close();
    assert_eq!(refused(stock.sql(COUNT), "locked"), ffi::SQLITE_BUSY);
    assert_eq!(second.sql(COUNT).unwrap(), "5");
    second.close();
    stock.sql(INSERT).unwrap();
    let mut second = Remote::ours(&path);
    assert_eq!(second.sql(COUNT).unwrap(), "6");
    second.sql(INSERT).unwrap();
    second.close();
    // A warm cache of a stock process notices the changes.
    assert_eq!(stock.sql(COUNT).unwrap(), "7");
    stock.close();
    assert_stock_counts(&path, 7);
}

#[test]
fn stock_sqlite_in_another_process_is_waited_for() {
    let (_dir, path) = made_by_stock();
    let (mut ours, mut stock) = (Remote::ours(&path), Remote::stock(&path));
    // A reader: reading beside it works.
    stock.sql("BEGIN").unwrap();
    stock.sql(COUNT).unwrap();
    assert_eq!(ours.sql(COUNT).unwrap(), "2");
    assert_eq!(refused(ours.sql(INSERT), "another process"), ffi::SQLITE_BUSY);
    assert_eq!(ours.sql(COUNT).unwrap(), "2");
    // A writer that has not committed.
    stock.sql(INSERT).unwrap();
    assert_eq!(ours.sql(COUNT).unwrap(), "2");
    assert_eq!(refused(ours.sql(INSERT), "another process"), ffi::SQLITE_BUSY);
    stock.sql("COMMIT").unwrap();
    assert_eq!(ours.sql(COUNT).unwrap(), "3");
    // A writer that keeps all others out.
    stock.sql("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(refused(ours.sql(COUNT), "another process"), ffi::SQLITE_BUSY);
    stock.sql(INSERT).unwrap();
    stock.sql("COMMIT").unwrap();
    ours.sql(INSERT).unwrap();
    assert_eq!(ours.sql(COUNT).unwrap(), "5");
    // A reader of ours before the first write keeps stock writers from committing.
    ours.close();
    let mut ours = Remote::ours(&path);
    ours.sql("BEGIN").unwrap();
    ours.sql(COUNT).unwrap();
    assert_eq!(refused(stock.sql(INSERT), "locked"), ffi::SQLITE_BUSY);
    ours.sql("COMMIT").unwrap();
    stock.sql(INSERT).unwrap();
    assert_eq!(ours.sql(COUNT).unwrap(), "6");
    ours.close();
    stock.close();
    assert_stock_counts(&path, 6);
}

#[test]
fn rows_that_a_killed_process_acknowledged_are_there() {
    let (_dir, path) = made_by_stock();
    for round in 1..=3 {
        let mut killed = Remote::ours(&path);
        for _ in 0..20 {
            killed.sql(INSERT).unwrap();
        }
        killed.sql("BEGIN").unwrap();
        killed.sql("DELETE FROM t").unwrap();
        killed.kill();
        let mut stock = Remote::stock(&path);
        assert_eq!(refused(stock.sql(COUNT), "not a database"), ffi::SQLITE_NOTADB);
        stock.close();
        let mut next = Remote::ours(&path);
        assert_eq!(next.sql(COUNT).unwrap(), (2 + 20 * round).to_string());
        assert_eq!(next.sql("PRAGMA integrity_check").unwrap(), "ok");
        // In every other round the mark stays in between.
        if round == 2 { next.kill() } else { next.close() }
    }
    assert_stock_counts(&path, 62);
}

#[test]
fn a_marked_file_without_its_log_is_refused_until_the_log_is_back() {
    let (_dir, path) = made_by_stock();
    let mut killed = Remote::ours(&path);
    killed.sql(INSERT).unwrap();
    killed.kill();
    let (log, away) = (beside(&path, "-onewrite"), beside(&path, "-away"));
    fs::rename(&log, &away).unwrap();
    let before = fs::read(&path).unwrap();
    let mut ours = Remote::ours(&path);
    for sql in [COUNT, INSERT] {
        assert_eq!(refused(ours.sql(sql), "a.db-onewrite"), ffi::SQLITE_CANTOPEN);
    }
    ours.close();
    assert_eq!(fs::read(&path).unwrap(), before, "a refusal changes nothing");
    assert!(!log.exists());
    fs::rename(&away, &log).unwrap();
    let mut ours = Remote::ours(&path);
    assert_eq!(ours.sql(COUNT).unwrap(), "3");
    ours.close();
    assert_stock_counts(&path, 3);
}

#[test]
fn a_hot_journal_of_a_crashed_stock_process_is_rolled_back() {
    let dir = TempDir::new().unwrap();
    for mode in ["delete", "truncate", "persist"] {
        let path = dir.path().join(format!("{mode}.db"));
        let crashed = dir.path().join(format!("{mode}-crashed.db"));
        let stock = open_stock(&path);
        add_noise(&stock);
        one::<String>(&stock, &format!("PRAGMA journal_mode={mode}"));
        stock.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, b BLOB); CREATE INDEX i ON t(b)").unwrap();
        let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<500)
                    INSERT INTO t(b) SELECT noise(i, 200) FROM n";
        stock.execute_batch(fill).unwrap();
        let whole = fs::read(&path).unwrap();
        // A cache of few pages makes it write to the database before it commits.
        stock.execute_batch("PRAGMA cache_size=3; BEGIN; UPDATE t SET b = noise(id, 210)").unwrap();
        fs::copy(&path, &crashed).unwrap();
        fs::copy(beside(&path, "-journal"), beside(&crashed, "-journal")).unwrap();
        drop(stock);
        assert_ne!(fs::read(&crashed).unwrap(), whole, "the transaction reached the file");
        let ours = open(&crashed, "").unwrap();
        assert_eq!(one::<String>(&ours, "PRAGMA integrity_check"), "ok", "{mode}");
        assert_eq!(one::<i64>(&ours, "SELECT count(*) FROM t WHERE length(b) = 200"), 500, "{mode}");
        assert!(!beside(&crashed, "-journal").exists());
        ours.execute_batch("INSERT INTO t(b) VALUES ('after')").unwrap();
        drop(ours);
        assert_stock_counts(&crashed, 501);
    }
}

#[test]
fn a_file_that_is_no_database_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let mut marked = b"SQLite format 3\0".to_vec();
    marked.resize(8192, 87);
    for (name, bytes) in [
        ("text", b"a letter, not a database\n".repeat(400)),
        ("short", b"hello".to_vec()),
        ("noise", (0..9000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("almost", marked),
        ("few zeros", vec![0; 17]),
        ("zeros", vec![0; 8192]),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let db = open(&path, "").unwrap();
        for sql in ["SELECT * FROM sqlite_schema", "CREATE TABLE t(x)", "VACUUM", "BEGIN IMMEDIATE"] {
            let (code, message) = explain(&db.execute_batch(sql).expect_err(name));
            assert!([ffi::SQLITE_NOTADB, ffi::SQLITE_CANTOPEN].contains(&(code & 0xff)), "{name}: {sql}: {message}");
        }
        drop(db);
        assert_eq!(fs::read(&path).unwrap(), bytes, "{name} was changed");
        assert!(!beside(&path, "-onewrite").exists(), "{name} got a log");
    }
    let (code, _) = explain(&open(dir.path(), "").expect_err("a directory"));
    assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
    let (code, _) = explain(&open(&dir.path().join("none/at/all.db"), "").expect_err("no directory"));
    assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
}

#[cfg(unix)]
#[test]
fn a_database_that_may_not_be_written_is_read_and_refuses_writes() {
    let (dir, path) = made_by_stock();
    let root = fs::metadata(dir.path()).unwrap().uid() == 0;
    // Root may write anything: another user does the reading.
    let Some(mut user) = Remote::start_as(root.then_some(65534)) else {
        println!("skipped: no other user can run this test program");
        return;
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // A directory without write permission.
    mode(&path, 0o666);
    mode(dir.path(), 0o555);
    user.ask(&format!("ours {}", path.display())).unwrap();
    assert_eq!(user.sql(COUNT).unwrap(), "2");
    assert_eq!(refused(user.sql(INSERT), "directory"), ffi::SQLITE_READONLY);
    assert_eq!(user.sql(COUNT).unwrap(), "2");
    user.ask("close").unwrap();
    assert_stock_counts(&path, 2);
    // A file without.
    mode(dir.path(), 0o755);
    mode(&path, 0o444);
    user.ask(&format!("ours {}", path.display())).unwrap();
    assert_eq!(user.sql(COUNT).unwrap(), "2");
    assert_eq!(refused(user.sql(INSERT), "readonly"), ffi::SQLITE_READONLY);
    user.ask("close").unwrap();
    // Neither readable.
    mode(&path, 0o200);
    assert_eq!(refused(user.ask(&format!("ours {}", path.display())), ""), ffi::SQLITE_CANTOPEN);
    // A log without write permission.
    mode(&path, 0o666);
    fs::write(beside(&path, "-onewrite"), b"").unwrap();
    mode(&beside(&path, "-onewrite"), 0o444);
    user.ask(&format!("ours {}", path.display())).unwrap();
    assert_eq!(refused(user.sql(INSERT), "a.db-onewrite"), ffi::SQLITE_CANTOPEN);
    user.close();
    assert_stock_counts(&path, 2);
}

/// Takes up the room of a disk but for `left` bytes.
fn take_up(ballast: &Path, left: u64) {
    let mut file = fs::File::create(ballast).unwrap();
    let block = [7; 4096];
    while file.write_all(&block).is_ok() {}
    let bytes = file.metadata().unwrap().len();
    file.set_len(bytes.saturating_sub(left)).unwrap();
    file.sync_all().unwrap();
}

/// Inserts until the disk is full, and returns how many were acknowledged.
fn fill(db: &rusqlite::Connection, rows_max: i64) -> i64 {
    for done in 0..rows_max {
        if let Err(e) = db.execute_batch(INSERT) {
            assert_eq!(explain(&e).0 & 0xff, ffi::SQLITE_FULL, "{e}");
            return done;
        }
    }
    panic!("the disk did not fill up");
}

#[cfg_attr(
    any(feature = "portable", all(unix, not(target_os = "linux"))),
    ignore = "POSIX asks for no room in advance"
)]
#[test]
fn a_full_disk_loses_nothing_and_can_be_emptied() {
    for kind in ["tmpfs", "ext4"] {
        let Some(disk) = Mounted::new(kind, 8 << 10) else { continue };
        for scheme in ["log", "wal-opt", "off-opt"] {
            let path = disk.path(&format!("{scheme}.db"));
            let ballast = disk.path("ballast");
            let db = open(&path, &format!("scheme={scheme}&log_size=256k&table_size=64k&stream_size=64k")).unwrap();
            add_noise(&db);
            db.execute_batch(TABLE).unwrap();
            let mut rows = 2;
            take_up(&ballast, 256 << 10);
            rows += fill(&db, 100_000);
            assert_eq!(one::<i64>(&db, COUNT), rows, "{kind} {scheme}: what was acknowledged is there");
            let big = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<4000)
                       INSERT INTO t(b) SELECT noise(i, 500) FROM n";
            let (code, message) = explain(&db.execute_batch(big).unwrap_err());
            assert_eq!(code & 0xff, ffi::SQLITE_FULL, "{kind} {scheme}: {message}");
            assert_eq!(one::<i64>(&db, COUNT), rows, "{kind} {scheme}: nothing of a failed transaction");
            assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
            // Work that needs no room goes on: a full disk is emptied by deleting.
            if scheme != "wal-opt" {
                db.execute_batch("DELETE FROM t WHERE id = 2").unwrap();
                rows -= 1;
            }
            // A database with no room for its log is refused, and left as it was.
            let (other, rest) = (disk.path("other.db"), disk.path("rest"));
            take_up(&rest, 32 << 10);
            let (code, message) = explain(&open(&other, "").unwrap().execute_batch(TABLE).unwrap_err());
            assert_eq!(code & 0xff, ffi::SQLITE_FULL, "{kind} {scheme}: {message}");
            assert!(!beside(&other, "-onewrite").exists(), "a log that could not be made does not take up room");
            fs::remove_file(&rest).unwrap();
            fs::remove_file(&ballast).unwrap();
            db.execute_batch(INSERT).unwrap();
            db.execute_batch(INSERT).unwrap();
            drop(db);
            assert_stock_counts(&path, rows + 2);
            for suffix in ["", "-onewrite"] {
                fs::remove_file(beside(&path, suffix)).unwrap();
            }
            let _ = fs::remove_file(&other);
        }
    }
}

#[test]
fn a_database_closed_on_a_full_disk_opens_again() {
    for kind in ["tmpfs", "ext4"] {
        let Some(disk) = Mounted::new(kind, 8 << 10) else { continue };
        let path = disk.path("closed.db");
        let ballast = disk.path("ballast");
        let mut process = Remote::start();
        process.ask(&format!("ours {}?log_size=256k", path.display())).unwrap();
        process.sql("CREATE TABLE t(id INTEGER PRIMARY KEY, b BLOB)").unwrap();
        take_up(&ballast, 64 << 10);
        let mut rows = 0;
        let why = loop {
            match process.sql(INSERT) {
                Ok(_) => rows += 1,
                Err((code, message)) => break (code, message),
            }
        };
        assert_eq!(why.0 & 0xff, ffi::SQLITE_FULL, "{kind}: {}", why.1);
        // Whether the close could finish or not: with some room everything is there.
        let _ = process.ask("close");
        process.kill();
        fs::remove_file(&ballast).unwrap();
        let mut next = Remote::ours(&path);
        assert_eq!(next.sql(COUNT).unwrap(), rows.to_string(), "{kind}");
        next.sql(INSERT).unwrap();
        next.close();
        assert_stock_counts(&path, rows + 1);
    }
}
