//! Connections that a fork carries into the child: one without a transaction works there, one
//! inside a transaction works after ROLLBACK, and the parent notices neither.

#![cfg(unix)]
#![allow(unsafe_code)]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use common::{explain, logged, one, open, open_stock, setup};
use rusqlite::{Connection, ffi};

/// Nothing but the test that forks runs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A child that runs `f`.
struct Child(libc::pid_t);

impl Child {
    fn forked(f: impl FnOnce()) -> Child {
        // SAFETY: the child leaves through `_exit`, and no other thread of this program holds a
        // lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: ends the child without running the parent's handlers.
            unsafe { libc::_exit(i32::from(outcome.is_err())) };
        }
        Child(child)
    }

    fn join(self) {
        let mut status = -1;
        // SAFETY: waits for the child of this value.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        assert_eq!(status, 0, "the child failed");
    }
}

/// What the child drops: its own copy, since it never comes back to where the value is dropped.
fn childs<T>(value: &T) -> T {
    // SAFETY: as above, in a child only.
    unsafe { std::ptr::read(value) }
}

/// One step of parent or child, told to the other.
fn tell(mut to: &UnixStream) {
    to.write_all(b".").unwrap();
}

fn wait(mut on: &UnixStream) {
    on.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    on.read_exact(&mut [0]).unwrap();
}

fn last_error(db: &Connection) -> String {
    one::<Option<String>>(db, "SELECT onewrite_last_error()").unwrap_or_default()
}

/// The table `t` with so many rows on many pages, in the page cache.
fn filled(db: &Connection, rows: u32) {
    db.execute_batch("CREATE TABLE t(x INTEGER PRIMARY KEY, y)").unwrap();
    let fill = "INSERT INTO t SELECT value, zeroblob(500) FROM generate_series";
    let series = format!(
        "WITH RECURSIVE generate_series(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM generate_series \
         WHERE value < {rows}) {fill}"
    );
    db.execute_batch(&series).unwrap();
    assert_eq!(one::<u32>(db, "SELECT count(y) FROM t"), rows);
}

fn is_sound(path: &std::path::Path) {
    assert_eq!(one::<String>(&open_stock(path), "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_transaction_that_a_child_inherits_is_an_error_until_it_is_rolled_back() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("fork.db");
    let own = dir.path().join("child.db");
    let db = open(&path, "").unwrap();
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2)").unwrap();
    let child = Child::forked(|| {
        let (code, message) = explain(db.execute_batch("INSERT INTO t VALUES (3); COMMIT").unwrap_err());
        assert_eq!((code, message.as_str()), (ffi::SQLITE_MISUSE, "bad parameter or other API misuse"));
        assert!(last_error(&db).contains("inside a transaction when the process forked"), "{}", last_error(&db));
        let (code, line) = logged(&path).unwrap();
        assert!(code & 0xff == ffi::SQLITE_MISUSE || code & 0xff == ffi::SQLITE_IOERR, "{code} {line}");
        assert!(line.contains("roll it back"), "{line}");
        let _over = db.execute_batch("ROLLBACK");
        assert!(db.is_autocommit());
        assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 1, "what the parent has not committed");
        drop(childs(&db));
        let fresh = open(&own, "").unwrap();
        fresh.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (7)").unwrap();
        assert_eq!(one::<i64>(&fresh, "SELECT x FROM t"), 7);
    });
    child.join();
    db.execute_batch("INSERT INTO t VALUES (4); COMMIT").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 7);
}

#[test]
fn nothing_that_the_parent_has_written_stays_in_the_page_cache_of_the_child() {
    let _alone = alone();
    let dir = setup();
    for journal in ["delete", "truncate", "persist", "memory", "off", "wal"] {
        let path = dir.path().join(format!("{journal}.db"));
        let db = open(&path, "").unwrap();
        db.pragma_update(None, "journal_mode", journal).unwrap();
        filled(&db, 100);
        db.execute_batch("BEGIN; UPDATE t SET y = 'parent'").unwrap();
        let child = Child::forked(|| {
            let (code, _) = explain(db.execute_batch("DELETE FROM t; COMMIT").unwrap_err());
            assert_eq!(code, ffi::SQLITE_MISUSE, "{journal}");
            let _over = db.execute_batch("ROLLBACK");
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE y = zeroblob(500)"), 100, "{journal}");
        });
        child.join();
        db.execute_batch("COMMIT").unwrap();
        let child = Child::forked(|| {
            assert_eq!(db.execute("UPDATE t SET y = 'child' WHERE y = 'parent'", []).unwrap(), 100);
        });
        child.join();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE y = 'child'"), 100, "{journal}");
        db.close().unwrap();
        is_sound(&path);
    }
}

#[test]
fn a_transaction_that_only_read_is_an_error_until_it_is_rolled_back() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("reader.db");
    for journal in ["delete", "truncate", "persist", "memory", "wal"] {
        let db = open(&path, "").unwrap();
        db.pragma_update(None, "journal_mode", journal).unwrap();
        db.execute_batch("CREATE TABLE IF NOT EXISTS t(x); INSERT INTO t VALUES (1); BEGIN").unwrap();
        let before = one::<i64>(&db, "SELECT count(*) FROM t");
        let child = Child::forked(|| {
            let (code, _) = explain(db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err());
            assert_eq!(code, ffi::SQLITE_MISUSE);
            db.execute_batch("ROLLBACK; INSERT INTO t VALUES (3)").unwrap();
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), before + 1);
        });
        child.join();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), before, "the parent's snapshot");
        db.execute_batch("COMMIT").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), before + 1);
        db.close().unwrap();
        is_sound(&path);
    }
}

#[test]
fn an_idle_connection_works_in_the_child_and_shows_no_page_from_before_the_fork() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("idle.db");
    for idle in ["0", "1s"] {
        let db = open(&path, &format!("idle={idle}")).unwrap();
        db.execute_batch("DROP TABLE IF EXISTS t").unwrap();
        filled(&db, 300);
        db.execute_batch("BEGIN IMMEDIATE; COMMIT").unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let child = Child::forked(|| {
            wait(&there);
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE y = 'new'"), 300);
            assert_eq!(db.execute("UPDATE t SET y = 'newer' WHERE x <= 100", []).unwrap(), 100);
            tell(&there);
            wait(&there);
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE y = 'newest'"), 300);
            let grandchild = Child::forked(|| {
                assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE y = 'newest'"), 300);
                db.execute_batch("INSERT INTO t VALUES (1000, 'grandchild')").unwrap();
            });
            grandchild.join();
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 301);
            childs(&db).close().unwrap();
        });
        db.execute_batch("UPDATE t SET y = 'new'").unwrap();
        tell(&here);
        wait(&here);
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE y = 'newer'"), 100);
        db.execute_batch("UPDATE t SET y = 'newest'").unwrap();
        tell(&here);
        child.join();
        assert_eq!(one::<String>(&db, "SELECT y FROM t WHERE x = 1000"), "grandchild");
        db.execute_batch("DELETE FROM t WHERE x = 1000").unwrap();
        db.close().unwrap();
        is_sound(&path);
    }
}

#[test]
fn settings_of_a_connection_go_with_it() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("told.db");
    let db = open(&path, "busy_ms=123").unwrap();
    let told = "PRAGMA onewrite_log_size = '512k'; PRAGMA journal_mode = wal; PRAGMA synchronous = normal";
    db.execute_batch(told).unwrap();
    db.execute_batch("CREATE TABLE t(x)").unwrap();
    let child = Child::forked(|| {
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode"), "wal");
        assert_eq!(one::<String>(&db, "PRAGMA onewrite_busy_ms"), "123");
        assert_eq!(one::<String>(&db, "PRAGMA onewrite_log_size"), "524288");
        assert!(one::<String>(&db, "PRAGMA onewrite_status").starts_with("in_effect=yes"));
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    });
    child.join();
    assert_eq!(one::<i64>(&db, "SELECT x FROM t"), 1);
}

#[test]
fn parent_and_children_write_at_once() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("both.db");
    let db = open(&path, "").unwrap();
    db.busy_timeout(Duration::from_secs(30)).unwrap();
    db.execute_batch("CREATE TABLE t(who, n)").unwrap();
    let write = |who: i32| {
        for n in 0..100 {
            db.execute("INSERT INTO t VALUES (?, ?)", (who, n)).unwrap();
        }
    };
    let children: Vec<Child> = (1..4).map(|who| Child::forked(|| write(who))).collect();
    write(0);
    children.into_iter().for_each(Child::join);
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM (SELECT DISTINCT who, n FROM t)"), 400);
    db.close().unwrap();
    is_sound(&path);
}

#[test]
fn the_connections_of_a_pool_work_in_the_threads_of_a_child() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("threads.db");
    let pool: Vec<Connection> = (0..4).map(|_| open(&path, "").unwrap()).collect();
    for db in &pool {
        db.busy_timeout(Duration::from_secs(30)).unwrap();
    }
    pool[0].execute_batch("CREATE TABLE t(who, n)").unwrap();
    let write_all = |pool: Vec<Connection>, from: i64| {
        std::thread::scope(|scope| {
            for (who, db) in (from..).zip(pool) {
                scope.spawn(move || {
                    for n in 0..50 {
                        db.execute("INSERT INTO t VALUES (?, ?)", (who, n)).unwrap();
                    }
                });
            }
        });
    };
    let child = Child::forked(|| write_all(childs(&pool), 10));
    write_all(pool, 0);
    child.join();
    let db = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM (SELECT DISTINCT who, n FROM t)"), 400);
    db.close().unwrap();
    is_sound(&path);
}

#[test]
fn a_child_that_closes_inherited_connections_takes_nothing_from_the_parent() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("closes.db");
    let [idle, writer, reader] = [(); 3].map(|()| open(&path, "").unwrap());
    filled(&idle, 50);
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 50);
    writer.execute_batch("BEGIN; DELETE FROM t WHERE x > 25").unwrap();
    let child = Child::forked(|| {
        for db in [&idle, &writer, &reader] {
            childs(db).close().unwrap();
        }
        let fresh = open(&path, "").unwrap();
        let (code, _) = explain(fresh.execute_batch("PRAGMA busy_timeout = 0; DELETE FROM t").unwrap_err());
        assert_eq!(code & 0xff, ffi::SQLITE_BUSY, "the parent writes");
    });
    child.join();
    assert_eq!(one::<i64>(&reader, "SELECT count(y) FROM t"), 50);
    writer.execute_batch("COMMIT").unwrap();
    reader.execute_batch("COMMIT").unwrap();
    for db in [idle, writer, reader] {
        assert_eq!(one::<i64>(&db, "SELECT count(y) FROM t"), 25);
        db.close().unwrap();
    }
    is_sound(&path);
}

#[test]
fn a_connection_that_only_reads_sees_the_commits_after_the_fork() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("reads.db");
    let db = open(&path, "").unwrap();
    filled(&db, 100);
    let reader = open(&path, "mode=ro").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(y) FROM t"), 100);
    let (here, there) = UnixStream::pair().unwrap();
    let child = Child::forked(|| {
        wait(&there);
        assert_eq!(one::<i64>(&reader, "SELECT count(y) FROM t"), 99);
        tell(&there);
        wait(&there);
        assert_eq!(one::<i64>(&reader, "SELECT count(y) FROM t"), 98);
    });
    db.execute_batch("DELETE FROM t WHERE x = 50").unwrap();
    tell(&here);
    wait(&here);
    db.execute_batch("DELETE FROM t WHERE x = 51").unwrap();
    db.close().unwrap();
    tell(&here);
    child.join();
}

#[test]
fn a_file_that_took_the_name_since_the_fork_is_not_taken_for_the_database() {
    let _alone = alone();
    let dir = setup();
    let path = dir.path().join("other.db");
    let db = open(&path, "").unwrap();
    db.execute_batch("CREATE TABLE t(x)").unwrap();
    let child = Child::forked(|| {
        std::fs::rename(&path, dir.path().join("moved.db")).unwrap();
        std::fs::write(&path, b"").unwrap();
        let (code, _) = explain(db.execute_batch("INSERT INTO t VALUES (1)").unwrap_err());
        assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
        assert!(last_error(&db).contains("opened before the process forked"), "{}", last_error(&db));
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(dir.path().join("moved.db"), &path).unwrap();
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    });
    child.join();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 1);
}

/// The thread of the parent sleeps at each fork, and is not there in the child. A wait queue that
/// all locks of a process share would still lead to it.
#[test]
fn a_child_detaches_idle_databases_though_the_thread_of_its_parent_slept() {
    let _alone = alone();
    let dir = setup();
    let db = open(&dir.path().join("parent.db"), "idle=60m").unwrap();
    db.execute_batch("CREATE TABLE t(x)").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    for round in 0..24 {
        let path = dir.path().join(format!("{round}.db"));
        let child = Child::forked(|| {
            // SAFETY: the child ends by a signal where one of its threads waits for ever.
            unsafe { libc::alarm(20) };
            let own = open(&path, "idle=2ms").unwrap();
            own.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
            while std::fs::read(&path).unwrap()[19] != 1 {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        child.join();
        is_sound(&path);
    }
    db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
}

#[test]
fn a_lock_that_is_kept_for_good_is_the_parents() {
    let _alone = alone();
    let dir = setup();
    for (name, parameters, kept) in
        [("exclusive", "", "PRAGMA locking_mode = exclusive"), ("stock", "wal=stock", "PRAGMA journal_mode = wal")]
    {
        let path = dir.path().join(name);
        let db = open(&path, parameters).unwrap();
        db.execute_batch(kept).unwrap();
        db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
        let child = Child::forked(|| {
            let (code, _) = explain(db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err());
            assert!(code == ffi::SQLITE_MISUSE || code & 0xff == ffi::SQLITE_IOERR, "{code}");
            assert!(last_error(&db).contains("open a new one"), "{}", last_error(&db));
        });
        child.join();
        db.execute_batch("INSERT INTO t VALUES (3)").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 4);
    }
}
