//! No memory: the n-th large allocation of a workload fails, alone or with all that follow in the
//! same transaction, for every n. Each failure is an error of SQLite's, nothing acknowledged is
//! lost, nothing else is there (I1, I7), and the database goes on. So it is where the process that
//! has it open dies then, and where recovery is short of memory.

#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{explain, open, open_stock};
use rusqlite::{Connection, ffi};

/// Smaller ones never fail. They hold no page: most lists, and the state of a database (2,104 bytes
/// on Windows).
const LARGE_BYTES: usize = 2560;

/// Large allocations that succeed from here on, and how many fail then.
static PASS: AtomicU32 = AtomicU32::new(u32::MAX);
static FAIL: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);

struct Short;

impl Short {
    fn fails(layout_bytes: usize) -> bool {
        if layout_bytes < LARGE_BYTES || FAIL.load(Ordering::SeqCst) == 0 || std::thread::panicking() {
            return false;
        }
        let passes = PASS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if !passes {
            FAIL.fetch_sub(1, Ordering::SeqCst);
            FAILED.fetch_add(1, Ordering::SeqCst);
        }
        !passes
    }
}

// SAFETY: all is passed on to the system's allocator, or answered with null, as an allocator may.
unsafe impl GlobalAlloc for Short {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Short::fails(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if bytes > layout.size() && Short::fails(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Short = Short;

/// From the `n`-th large allocation on, `count` fail.
fn arm(n: u32, count: u32) {
    FAILED.store(0, Ordering::SeqCst);
    PASS.store(n, Ordering::SeqCst);
    FAIL.store(count, Ordering::SeqCst);
}

/// None fails any more; how many did.
fn disarm() -> u32 {
    FAIL.store(0, Ordering::SeqCst);
    FAILED.load(Ordering::SeqCst)
}

/// Each is one transaction.
const TRANSACTIONS: [&str; 12] = [
    "CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT)",
    "INSERT INTO t VALUES (1, 'one')",
    "INSERT INTO t SELECT value, printf('%0900d', value) FROM generate_series(2, 60)",
    "UPDATE t SET v = printf('%0900d', 7 * k) WHERE k % 3 = 0",
    // More than is kept of one transaction in memory: it streams, and goes home at once.
    "INSERT INTO t SELECT value, printf('%04000d', value) FROM generate_series(100, 190)",
    "UPDATE t SET v = v || 'x' WHERE k BETWEEN 5 AND 8",
    "SAVEPOINT s; UPDATE t SET v = 'gone'; ROLLBACK TO s; DELETE FROM t WHERE k % 7 = 0; RELEASE s",
    "PRAGMA onewrite_checkpoint",
    // A record that is too long to be copied, under a ring of 1 MiB.
    "UPDATE t SET v = printf('%03999d', k) WHERE k >= 100",
    "DELETE FROM t WHERE k > 150",
    "SELECT sum(length(v)) FROM t",
    "INSERT INTO t VALUES (1000, 'last')",
];

type Rows = BTreeMap<i64, String>;

fn rows(db: &Connection) -> Rows {
    let Ok(mut all) = db.prepare("SELECT k, v FROM t") else { return Rows::new() };
    let read = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    read.map(|row| row.unwrap()).collect()
}

/// SQLite's answer is the one for no memory.
fn is_nomem(error: rusqlite::Error) -> bool {
    let (code, message) = explain(error);
    assert_eq!(code, ffi::SQLITE_NOMEM, "{message}");
    true
}

/// Runs the transactions, with `count` failures from the `n`-th large allocation on; a control on
/// stock SQLite runs those that succeed. How many allocations failed.
fn run(dir: &Path, parameters: &str, n: u32, count: u32) -> u32 {
    let what = format!("{parameters}, {count} from {n} on");
    let path = dir.join("short.db");
    let stock = Connection::open_in_memory().unwrap();
    let db = open(&path, parameters).unwrap();
    db.execute_batch("PRAGMA cache_size=10; PRAGMA cache_spill=1").unwrap();
    for db in [&db, &stock] {
        rusqlite::vtab::series::load_module(db).unwrap();
    }
    let reader = open(&path, parameters).unwrap();
    let mut before = None;
    arm(n, count);
    for (at, sql) in TRANSACTIONS.iter().enumerate() {
        if at == 3 {
            // An old snapshot, for which images are kept.
            let seen = (|| {
                reader.execute_batch("BEGIN")?;
                reader.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
            })();
            let left = FAIL.swap(0, Ordering::SeqCst);
            before = seen.is_ok().then(|| rows(&stock));
            FAIL.store(left, Ordering::SeqCst);
        }
        let done = if sql.starts_with("SELECT") { db.query_row(sql, [], |_| Ok(())) } else { db.execute_batch(sql) };
        match done {
            Ok(()) if sql.starts_with("PRAGMA") => {}
            Ok(()) if sql.starts_with("SELECT") => {}
            Ok(()) => stock.execute_batch(sql).unwrap(),
            // A table that could not be made is missing.
            Err(e) if explain_missing(&e) => assert!(stock.prepare(sql).is_err(), "{what}: {sql}: {e}"),
            Err(e) => assert!(is_nomem(e), "{what}: {sql}"),
        }
        if !db.is_autocommit() {
            db.execute_batch("ROLLBACK").unwrap();
        }
    }
    let failed = disarm();
    let expected = rows(&stock);
    assert!(rows(&db) == expected, "{what}: the rows differ");
    if let Some(before) = before {
        assert!(rows(&reader) == before, "{what}: the snapshot has changed");
    }
    // As if the process had died.
    let copy = dir.join("copy.db");
    for suffix in ["", "-onewrite"] {
        let of = |path: &Path| std::path::PathBuf::from(format!("{}{suffix}", path.display()));
        if of(&path).exists() {
            std::fs::copy(of(&path), of(&copy)).unwrap();
        }
    }
    arm(n % 16, count);
    if let Ok(db) = open(&copy, parameters) {
        let read = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
        assert!(read.is_ok() || is_nomem(read.unwrap_err()), "{what}: recovery");
    }
    disarm();
    assert!(rows(&open(&copy, parameters).unwrap()) == expected, "{what}: the rows differ after recovery");
    for suffix in ["", "-onewrite"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", copy.display()));
    }
    // And it goes on.
    db.execute_batch("CREATE TABLE u AS SELECT 1").unwrap();
    drop((db, reader));
    let db = open_stock(&path);
    assert_eq!(common::one::<String>(&db, "PRAGMA integrity_check"), "ok", "{what}");
    assert!(rows(&db) == expected, "{what}: the rows differ after the close");
    drop(db);
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(format!("{}-onewrite", path.display())).unwrap();
    failed
}

fn explain_missing(error: &rusqlite::Error) -> bool {
    error.to_string().contains("no such table")
}

/// Threads that commit at the same time, with shared flushes: each keeps its acknowledged rows and
/// no others. Returns how many allocations failed.
fn run_threads(dir: &Path, n: u32, count: u32) -> u32 {
    let path = dir.join("threads.db");
    let db = open(&path, "").unwrap();
    db.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v TEXT)").unwrap();
    arm(n, count);
    let acknowledged: Vec<i64> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                s.spawn({
                    let path = &path;
                    move || {
                        let db = open(path, "").unwrap();
                        db.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
                        let keys = (0..12).map(|n| thread * 100 + n);
                        keys.filter(|k| match db.execute("INSERT INTO t VALUES (?1, printf('%05000d', ?1))", [k]) {
                            Ok(_) => true,
                            Err(e) => !is_nomem(e),
                        })
                        .collect::<Vec<_>>()
                    }
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let failed = disarm();
    let there: Vec<i64> = rows(&db).into_keys().collect();
    assert_eq!(there, acknowledged, "{count} from {n} on");
    drop(db);
    assert_eq!(common::one::<String>(&open_stock(&path), "PRAGMA integrity_check"), "ok");
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(format!("{}-onewrite", path.display())).unwrap();
    failed
}

/// One test: the allocator is the process's.
#[test]
fn every_large_allocation_may_fail() {
    // SAFETY: no other thread of this process runs yet that looks at it. A trace of calls takes
    // memory, too.
    unsafe { std::env::set_var("RUST_BACKTRACE", "0") };
    // Not the setup of the other tests: SQLite's error log, kept, is large.
    onewrite_rusqlite::register().unwrap();
    // Each run waits for a hundred flushes: there they cost nothing.
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
    let mut most = 0;
    for parameters in ["log_size=256k&stream_size=128k&table_size=256k", "log_size=1m", "scheme=wal-opt&log_size=1m"] {
        for count in [1, 20] {
            let mut n = 0;
            while run(dir.path(), parameters, n, count) > 0 {
                // Each one at the beginning, some later: pages come again and again.
                n += 1 + n / 5;
            }
            most = most.max(n);
        }
    }
    for count in [1, 20] {
        let mut n = 0;
        while run_threads(dir.path(), n, count) > 0 {
            n += 1 + n / 5;
        }
    }
    println!("the last of {most} large allocations failed");
    assert!(most > 200, "the last large allocation was number {most}");
}
