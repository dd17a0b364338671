//! How long connections wait for each other: as long as their busy handlers say, and readers not at
//! all.

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use common::{explain, one, open, open_stock, setup, timed, within};
use rusqlite::{Connection, ffi};

/// Far above the times on a busy machine, and far below those of timeouts that multiply.
const SOON: Duration = Duration::from_secs(1);

fn busy(result: rusqlite::Result<()>) -> i32 {
    explain(result.unwrap_err()).0
}

/// A database of one table, with a connection that keeps a transaction open.
fn kept_open(path: &Path) -> Connection {
    let holder = open(path, "").unwrap();
    holder.execute_batch("CREATE TABLE t(v); BEGIN IMMEDIATE; INSERT INTO t VALUES (1)").unwrap();
    holder
}

/// Runs it while the thread of another connection has a transaction open and sleeps.
fn beside_a_kept_transaction(path: &Path, f: impl FnOnce(&mut Connection)) {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            let _holder = kept_open(path);
            ready.send(()).unwrap();
            let _ = is_done.recv();
        });
        is_ready.recv().unwrap();
        f(&mut open(path, "").unwrap());
        drop(done);
    });
}

#[test]
fn a_transaction_that_is_kept_open_costs_the_busy_timeout_and_no_more() {
    let dir = setup();
    let wait = |db: &mut Connection| {
        for ms in [0, 300] {
            db.busy_timeout(Duration::from_millis(ms)).unwrap();
            let (code, took) = within(SOON, || busy(db.execute_batch("INSERT INTO t VALUES (2)")));
            assert_eq!(code, ffi::SQLITE_BUSY);
            assert!(took >= Duration::from_millis(ms), "{ms} ms became {took:?}");
        }
    };
    beside_a_kept_transaction(&dir.path().join("other thread"), wait);
    let path = dir.path().join("same thread");
    let _holder = kept_open(&path);
    wait(&mut open(&path, "").unwrap());
}

#[test]
fn the_busy_handler_of_the_application_is_asked_and_has_the_last_word() {
    static ASKED: AtomicI32 = AtomicI32::new(0);
    let dir = setup();
    beside_a_kept_transaction(&dir.path().join("handler"), |db| {
        db.busy_handler(Some(|count| {
            ASKED.store(count, Ordering::SeqCst);
            count < 20
        }))
        .unwrap();
        let (code, _) = within(SOON, || busy(db.execute_batch("BEGIN IMMEDIATE")));
        assert_eq!((code, ASKED.load(Ordering::SeqCst)), (ffi::SQLITE_BUSY, 20));
    });
}

#[test]
fn a_writer_that_waits_wakes_up_when_it_is_its_turn() {
    let dir = setup();
    let path = dir.path().join("turn");
    let holder = kept_open(&path);
    let wake = || {
        std::thread::scope(|s| {
            let waiters: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        let db = open(&path, "").unwrap();
                        db.busy_timeout(Duration::from_secs(60)).unwrap();
                        db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(400));
            holder.execute_batch("COMMIT").unwrap();
            timed(|| waiters.into_iter().for_each(|waiter| waiter.join().unwrap())).1
        })
    };
    let mut rounds = 1;
    // A busy machine may take longer now and then.
    while wake() >= SOON {
        assert!(rounds < 10, "it took {SOON:?} or longer each time");
        rounds += 1;
        holder.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)").unwrap();
    }
    assert_eq!(one::<i64>(&holder, "SELECT count(*) FROM t"), 5 * rounds);
}

#[test]
fn readers_do_not_wait_for_a_transaction_that_is_kept_open() {
    let dir = setup();
    let path = dir.path().join("readers");
    let writer = open(&path, "").unwrap();
    writer.execute_batch("CREATE TABLE r(v)").unwrap();
    for _ in 0..10 {
        writer.execute_batch("INSERT INTO r VALUES (1)").unwrap();
    }
    beside_a_kept_transaction(&path, |fresh| {
        for db in [&writer, &*fresh] {
            // It was 2 s on a connection that writes.
            let (rows, _) = within(Duration::from_millis(180), || one::<i64>(db, "SELECT count(*) FROM r"));
            assert_eq!(rows, 10);
            // It was 200 ms for each of the first two reads of another.
            within(Duration::from_millis(180), || one::<i64>(&open(&path, "").unwrap(), "SELECT count(*) FROM r"));
        }
    });
}

#[test]
fn a_write_that_finds_its_snapshot_stale_at_its_beginning_is_tried_again_unseen() {
    let dir = setup();
    let path = dir.path().join("stale");
    open(&path, "")
        .unwrap()
        .execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, n); INSERT INTO t VALUES (1, 0)")
        .unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let db = open(&path, "").unwrap();
                db.busy_timeout(Duration::from_secs(60)).unwrap();
                for n in 0..60 {
                    // Reads first, so that the write is not expected, and its snapshot is taken
                    // without the place.
                    for _ in 0..3 {
                        one::<i64>(&db, "SELECT n FROM t");
                    }
                    match n % 2 {
                        0 => db.execute_batch("UPDATE t SET n = n + 1").unwrap(),
                        _ => db.execute_batch("BEGIN IMMEDIATE; UPDATE t SET n = n + 1; COMMIT").unwrap(),
                    }
                }
            });
        }
    });
    assert_eq!(one::<i64>(&open(&path, "").unwrap(), "SELECT n FROM t"), 240);
}

const THINK: Duration = Duration::from_millis(10);

/// Reads, thinks and writes in one transaction, so often.
fn read_and_write(db: &Connection, times: u32) -> rusqlite::Result<()> {
    for _ in 0..times {
        db.execute_batch("BEGIN")?;
        let n: i64 = one(db, "SELECT n FROM t");
        std::thread::sleep(THINK);
        db.execute("UPDATE t SET n = ?1", [n + 1])?;
        db.execute_batch("COMMIT")?;
    }
    Ok(())
}

/// A database whose transactions usually read first and then write, all the same row.
fn with_readers_that_write(path: &Path) -> Connection {
    let db = open(path, "").unwrap();
    db.execute_batch("CREATE TABLE t(n); INSERT INTO t VALUES (0)").unwrap();
    read_and_write(&db, 1).unwrap();
    db
}

/// Runs it while another thread thinks in such a transaction, for longer than anything waits here.
/// Returns whether that one could write.
fn beside_one_that_thinks(path: &Path, f: impl FnOnce()) -> rusqlite::Result<()> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|s| {
        let thinker = s.spawn(move || {
            let db = with_busy_timeout(path, 0);
            db.execute_batch("BEGIN").unwrap();
            let n: i64 = one(&db, "SELECT n FROM t");
            ready.send(()).unwrap();
            let _ = is_done.recv();
            db.execute("UPDATE t SET n = ?1", [n + 1])?;
            db.execute_batch("COMMIT")
        });
        is_ready.recv().unwrap();
        f();
        drop(done);
        thinker.join().unwrap()
    })
}

fn with_busy_timeout(path: &Path, ms: u64) -> Connection {
    let db = open(path, "").unwrap();
    db.busy_timeout(Duration::from_millis(ms)).unwrap();
    db
}

#[test]
fn transactions_that_read_and_write_wait_for_each_other() {
    let dir = setup();
    let path = dir.path().join("read, then write");
    let db = with_readers_that_write(&path);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| read_and_write(&with_busy_timeout(&path, 60_000), 10).unwrap());
        }
    });
    assert_eq!(one::<i64>(&db, "SELECT n FROM t"), 41);
}

#[test]
fn the_first_transaction_that_writes_after_it_has_read_teaches_the_others() {
    let dir = setup();
    let path = dir.path().join("first");
    open(&path, "").unwrap().execute_batch("CREATE TABLE t(n); INSERT INTO t VALUES (0)").unwrap();
    let (a, b) = (with_busy_timeout(&path, 60_000), with_busy_timeout(&path, 60_000));
    let begin = "BEGIN; SELECT n FROM t";
    a.execute_batch(begin).unwrap();
    b.execute_batch("UPDATE t SET n = n + 1").unwrap();
    assert_eq!(busy(a.execute_batch("UPDATE t SET n = 7")), ffi::SQLITE_BUSY_SNAPSHOT);
    a.execute_batch("ROLLBACK").unwrap();
    std::thread::scope(|s| {
        for db in [a, b] {
            s.spawn(move || read_and_write(&db, 10).unwrap());
        }
    });
    assert_eq!(one::<i64>(&open(&path, "").unwrap(), "SELECT n FROM t"), 21);
}

#[test]
fn a_reader_does_not_wait_for_a_writer_that_thinks() {
    let dir = setup();
    let path = dir.path().join("readers");
    let writer = with_readers_that_write(&path);
    writer.busy_timeout(Duration::from_secs(60)).unwrap();
    let reader = with_busy_timeout(&path, 60_000);
    let reads = "BEGIN; SELECT n FROM t; SELECT n FROM t; COMMIT";
    reader.execute_batch(reads).unwrap();
    beside_one_that_thinks(&path, || {
        for (db, sql) in [(&reader, reads), (&reader, "SELECT n FROM t"), (&writer, "SELECT n FROM t")] {
            within(Duration::from_millis(180), || db.execute_batch(sql).unwrap());
        }
    })
    .unwrap();
}

#[test]
fn one_that_was_to_write_reads_without_the_place_where_the_busy_handler_refuses() {
    let dir = setup();
    let path = dir.path().join("handler");
    let db = with_readers_that_write(&path);
    for ms in [0, 300] {
        db.busy_timeout(Duration::from_millis(ms)).unwrap();
        // Each attempt teaches anew: one that only read is no longer expected to write.
        let (took, _) = within(SOON, || {
            read_and_write(&db, 2).unwrap();
            let before = one::<i64>(&db, "SELECT n FROM t");
            let mut read = None;
            beside_one_that_thinks(&path, || {
                read = Some(timed(|| {
                    db.execute_batch("BEGIN").unwrap();
                    let n = one::<i64>(&db, "SELECT n FROM t");
                    db.execute_batch("COMMIT").unwrap();
                    n
                }));
            })
            .unwrap();
            let (n, took) = read.unwrap();
            assert_eq!(n, before);
            took
        });
        assert!(took >= Duration::from_millis(ms), "{ms} ms became {took:?}");
    }
}

#[test]
fn one_that_does_not_wait_takes_the_place_of_one_that_thinks() {
    let dir = setup();
    let path = dir.path().join("impatient");
    let db = with_readers_that_write(&path);
    db.busy_timeout(Duration::ZERO).unwrap();
    let lost = beside_one_that_thinks(&path, || db.execute_batch("UPDATE t SET n = 10").unwrap());
    assert_eq!(busy(lost), ffi::SQLITE_BUSY_SNAPSHOT);
    assert_eq!(one::<i64>(&db, "SELECT n FROM t"), 10);
}

#[test]
fn one_that_thinks_for_too_long_loses_the_place() {
    let dir = setup();
    let path = dir.path().join("too long");
    let db = with_readers_that_write(&path);
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    let lost = beside_one_that_thinks(&path, || {
        let (written, took) = timed(|| db.execute_batch("UPDATE t SET n = 10"));
        written.unwrap();
        assert!(took > SOON && took < 10 * SOON, "{took:?}");
    });
    assert_eq!(busy(lost), ffi::SQLITE_BUSY_SNAPSHOT);
}

/// Tables `t0` to `t5` of a row each, on a page each.
#[test]
fn one_that_reads_first_waits_for_other_readers_of_the_file_at_rest() {
    let dir = setup();
    let path = dir.path().join("rest");
    open_stock(&path).execute_batch("CREATE TABLE t(v)").unwrap();
    let reader = open_stock(&path);
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let read_and_write = |db: &Connection| db.execute_batch("BEGIN; SELECT * FROM t; INSERT INTO t VALUES (1); COMMIT");
    let without_timeout = with_busy_timeout(&path, 0);
    assert_eq!(busy(read_and_write(&without_timeout)), ffi::SQLITE_BUSY);
    without_timeout.execute_batch("ROLLBACK").unwrap();
    std::thread::scope(|s| {
        let waits = s.spawn(|| read_and_write(&with_busy_timeout(&path, 60_000)));
        std::thread::sleep(Duration::from_millis(400));
        reader.execute_batch("COMMIT").unwrap();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(one::<i64>(&without_timeout, "SELECT count(*) FROM t"), 1);
}

fn tables(path: &Path) -> Connection {
    let db = open(path, "").unwrap();
    for n in 0..TABLES {
        db.execute_batch(&format!("CREATE TABLE t{n}(v); INSERT INTO t{n} VALUES (0)")).unwrap();
    }
    db
}

const TABLES: u32 = 6;

fn value(db: &Connection, table: u32) -> i64 {
    one(db, &format!("SELECT v FROM t{table}"))
}

fn set(db: &Connection, table: u32, value: i64) -> rusqlite::Result<()> {
    db.execute_batch(&format!("UPDATE t{table} SET v = {value}"))
}

#[test]
fn a_stale_snapshot_moves_forward_where_nothing_that_was_read_has_changed() {
    let dir = setup();
    for (end, now) in [("COMMIT", 1), ("ROLLBACK", 0)] {
        let path = dir.path().join(end);
        drop(tables(&path));
        let (db, other) = (with_busy_timeout(&path, 0), with_busy_timeout(&path, 0));
        // A snapshot of the plain file stays.
        set(&other, 3, 0).unwrap();
        db.execute_batch("BEGIN").unwrap();
        assert_eq!(value(&db, 0), 0);
        set(&other, 1, 10).unwrap();
        set(&other, 2, 20).unwrap();
        set(&db, 0, 1).unwrap();
        assert_eq!((value(&db, 1), value(&db, 2)), (10, 20), "it goes on with the newest state");
        db.execute_batch(end).unwrap();
        for db in [&db, &other] {
            assert_eq!((value(db, 0), value(db, 1), value(db, 2)), (now, 10, 20));
        }
        set(&db, 3, 30).unwrap();
        set(&other, 4, 40).unwrap();
        assert_eq!((value(&other, 3), value(&db, 4)), (30, 40));
        drop((db, other));
        assert_eq!(one::<String>(&open_stock(&path), "PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn a_stale_snapshot_stays_where_a_page_in_the_cache_or_the_size_of_the_file_has_changed() {
    let dir = setup();
    let path = dir.path().join("stale cache");
    drop(tables(&path));
    let refused = |reads: &str, change: &str| {
        let (db, other) = (with_busy_timeout(&path, 0), with_busy_timeout(&path, 0));
        db.execute_batch(reads).unwrap();
        db.execute_batch("BEGIN; SELECT v FROM t0").unwrap();
        other.execute_batch(change).unwrap();
        let written = db.execute_batch("UPDATE t5 SET v = v + 1");
        assert_eq!(written.map_err(|e| explain(e).0), Err(ffi::SQLITE_BUSY_SNAPSHOT), "{reads}; {change}");
        db.execute_batch("ROLLBACK; UPDATE t5 SET v = v + 1").unwrap();
    };
    refused("SELECT v FROM t1", "UPDATE t0 SET v = v + 1");
    refused("SELECT v FROM t1", "UPDATE t1 SET v = v + 1");
    refused("SELECT v FROM t1", "INSERT INTO t2 VALUES (zeroblob(9000))");
    refused("SELECT v FROM t1", "CREATE TABLE more(v)");
    refused("SELECT v FROM t1", "PRAGMA user_version=1");
    assert_eq!(value(&open(&path, "").unwrap(), 5), 5);
}

/// Each transaction adds one to a table after it has read others. None is lost, whatever the caches
/// held before.
#[test]
fn transactions_that_move_forward_lose_nothing() {
    let dir = setup();
    let path = dir.path().join("lost update");
    drop(tables(&path));
    let mut expected = [0i64; TABLES as usize];
    let (mut moved, mut refused) = (0, 0);
    let dbs: Vec<Connection> = (0..3).map(|_| with_busy_timeout(&path, 0)).collect();
    let mut seed = 7u64;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u32 % below
    };
    for _ in 0..600 {
        let (db, other) = (&dbs[random(3) as usize], &dbs[random(3) as usize]);
        db.execute_batch("BEGIN").unwrap();
        let table = random(TABLES);
        let reads = [table, random(TABLES)];
        let read = reads.map(|n| value(db, n));
        assert_eq!(read, reads.map(|n| expected[n as usize]), "the state when it began");
        let mut is_stale = false;
        if !std::ptr::eq(db, other) {
            for _ in 0..random(3) {
                let n = random(TABLES);
                set(other, n, expected[n as usize] + 1).unwrap();
                expected[n as usize] += 1;
                is_stale = true;
            }
        }
        match set(db, table, read[0] + 1) {
            Ok(()) => {
                moved += i32::from(is_stale);
                for n in 0..TABLES {
                    assert_eq!(value(db, n), expected[n as usize] + i64::from(n == table));
                }
                let commits = random(4) > 0;
                db.execute_batch(if commits { "COMMIT" } else { "ROLLBACK" }).unwrap();
                expected[table as usize] += i64::from(commits);
            }
            Err(e) => {
                assert_eq!((explain(e).0, is_stale), (ffi::SQLITE_BUSY_SNAPSHOT, true));
                refused += 1;
                db.execute_batch("ROLLBACK").unwrap();
            }
        }
    }
    assert!(moved > 20 && refused > 20, "{moved} went on, {refused} did not");
    drop(dbs);
    let stock = open_stock(&path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    (0..TABLES).for_each(|n| assert_eq!(value(&stock, n), expected[n as usize]));
}

/// A connection with two files and a transaction over both, and one that reads the first.
fn over_two_files(dir: &Path, scheme: &str) -> (Connection, Connection) {
    let (first, second) = (dir.join("first.db"), dir.join("second.db"));
    let option = format!("scheme={scheme}");
    let (db, reader) = (open(&first, &option).unwrap(), open(&first, &option).unwrap());
    db.execute("ATTACH ?1 AS second", [format!("file:{}?vfs=onewrite&{option}", second.display())]).unwrap();
    db.execute_batch("CREATE TABLE t(v); CREATE TABLE second.u(v)").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    db.execute_batch("BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)").unwrap();
    (db, reader)
}

#[test]
fn a_commit_over_two_files_leaves_readers_alone() {
    for scheme in ["log", "wal-opt"] {
        for mode in ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF"] {
            let dir = setup();
            let (db, reader) = over_two_files(dir.path(), scheme);
            db.execute_batch(&format!("ROLLBACK; PRAGMA journal_mode={mode}; PRAGMA second.journal_mode={mode}"))
                .unwrap();
            db.execute_batch("BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); COMMIT").unwrap();
            let both = "SELECT (SELECT count(*) FROM t) || (SELECT count(*) FROM u)";
            assert_eq!(one::<String>(&db, both), "11", "{mode}");
            assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 0, "its snapshot stays");
            reader.execute_batch("COMMIT").unwrap();
            assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 1);
            reader.execute_batch("INSERT INTO t VALUES (3)").unwrap();
            assert_eq!(one::<String>(&db, both), "21", "{mode}");
            let names = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let left: Vec<String> = names.filter(|name| name.contains("-mj") || name.contains("-journal")).collect();
            assert_eq!(left, [""; 0], "{mode}");
            drop((db, reader));
            let stock = Connection::open(dir.path().join("first.db")).unwrap();
            assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
            assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 2);
        }
    }
}

/// A transaction with a file of another VFS commits by SQLite's journal, and so does the file
/// beside it: alone, or not at all.
#[test]
fn a_commit_over_a_file_of_another_vfs_steps_aside() {
    let dir = setup();
    let (first, second) = (dir.path().join("first.db"), dir.path().join("second.db"));
    let (db, reader) = (open(&first, "").unwrap(), open(&first, "").unwrap());
    db.execute("ATTACH ?1 AS second", [format!("file:{}?{}", second.display(), common::BY_STOCK)]).unwrap();
    db.execute_batch("CREATE TABLE t(v); CREATE TABLE second.u(v)").unwrap();
    let write = "BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); COMMIT";
    db.execute_batch(write).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    assert_eq!(busy(db.execute_batch(write)) & 0xff, ffi::SQLITE_BUSY);
    if !db.is_autocommit() {
        db.execute_batch("ROLLBACK").unwrap();
    }
    let both = "SELECT (SELECT count(*) FROM t) || (SELECT count(*) FROM u)";
    assert_eq!(one::<String>(&db, both), "11");
    reader.execute_batch("COMMIT").unwrap();
    db.execute_batch(write).unwrap();
    assert_eq!(one::<String>(&db, both), "22");
}

#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
fn a_commit_over_two_files_that_step_aside_is_busy_beside_a_reader_and_can_be_repeated() {
    let dir = setup();
    let (db, reader) = over_two_files(dir.path(), "dash");
    db.busy_timeout(Duration::from_millis(200)).unwrap();
    let (code, took) = timed(|| busy(db.execute_batch("COMMIT")));
    assert_eq!(code, ffi::SQLITE_BUSY);
    assert!(took >= Duration::from_millis(200), "the busy handler was not asked");
    assert!(!db.is_autocommit(), "the transaction goes on");
    reader.execute_batch("COMMIT").unwrap();
    db.execute_batch("COMMIT").unwrap();
    let both = "SELECT (SELECT count(*) FROM t) || (SELECT count(*) FROM u)";
    assert_eq!(one::<String>(&db, both), "11");
    // The connection that could not begin to read may do so again, also after a rollback.
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    db.execute_batch("BEGIN; INSERT INTO t VALUES (2); INSERT INTO u VALUES (2)").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    assert_eq!(busy(db.execute_batch("COMMIT")), ffi::SQLITE_BUSY);
    db.execute_batch("ROLLBACK").unwrap();
    assert_eq!(one::<String>(&db, both), "11");
    reader.execute_batch("COMMIT; INSERT INTO t VALUES (3)").unwrap();
}

#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
fn a_commit_over_two_files_that_step_aside_waits_for_a_reader() {
    let dir = setup();
    let (db, reader) = over_two_files(dir.path(), "dash");
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    std::thread::scope(|s| {
        s.spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            reader.execute_batch("COMMIT").unwrap();
        });
        db.execute_batch("COMMIT").unwrap();
    });
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM u"), 1);
}

#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
fn a_commit_of_one_file_of_two_does_not_need_it_alone() {
    let dir = setup();
    let (db, reader) = over_two_files(dir.path(), "dash");
    db.execute_batch("ROLLBACK; BEGIN; INSERT INTO t VALUES (1); COMMIT").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 0, "its snapshot stays");
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 1);
}
