//! WAL mode, which is the VFS's underneath, and `locking_mode=EXCLUSIVE`: the ways in and out, and
//! the connections shut out meanwhile.

#![allow(unsafe_code)]

use crate::common;

use std::ffi::{c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Once, OnceLock, mpsc};
use std::time::{Duration, Instant};

use common::{explain, one, open, open_stock, setup};
use onewrite::ffi::{File, IoMethods, Vfs};
use onewrite_core::disk::real::RealDisk;
use onewrite_core::inspect::layout::home::{MARK, READ_VERSION};
use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t(v) VALUES ('one'), ('two')";

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// Rule ModeUnderLock: SQLite removes a WAL by its name, unless it hears that the file of its
/// database has lost that name.
#[cfg_attr(windows, ignore = "stock SQLite lets nobody rename or remove a file it has open on Windows")]
#[test]
fn closing_leaves_the_wal_of_another_database_under_the_name_alone() {
    let dir = setup();
    let path = dir.path().join("again.db");
    let old = open_wal(&path);
    assert_eq!(one::<String>(&old, "PRAGMA journal_mode=wal"), "wal");
    old.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1); PRAGMA wal_checkpoint").unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    let (new, reader) = (open_wal(&path), open_wal(&path));
    assert_eq!(one::<String>(&new, "PRAGMA journal_mode=wal"), "wal");
    new.execute_batch("CREATE TABLE n(x); INSERT INTO n VALUES (1), (2)").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM n").unwrap();
    new.execute_batch("UPDATE n SET x = 3; PRAGMA wal_checkpoint").unwrap();
    reader.execute_batch("COMMIT").unwrap();
    old.close().unwrap();
    assert!(beside(&path, "-wal").exists(), "the WAL of the new database is removed");
    let fresh = open_wal(&path);
    assert_eq!(one::<String>(&fresh, "PRAGMA integrity_check"), "ok");
    for db in [new, reader, fresh] {
        db.close().unwrap();
    }
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT sum(x) FROM n"), 6);
}

/// Opens a database that WAL mode is asked for and had.
fn open_wal(path: &Path) -> Connection {
    open(path, "wal=stock").unwrap()
}

/// Counts onewrite's calls of SQLite's own VFS, and acts before that locks a file.
struct Underneath {
    at_shared: Option<Box<dyn FnOnce() + Send>>,
    locked: Vec<c_int>,
    unlocked: Vec<c_int>,
}

static UNDERNEATH: Mutex<Underneath> =
    Mutex::new(Underneath { at_shared: None, locked: Vec::new(), unlocked: Vec::new() });
static ONE: Mutex<()> = Mutex::new(());

type OpenFn = unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int;
static UNIX_OPEN: OnceLock<OpenFn> = OnceLock::new();
static UNIX_FILE: OnceLock<IoMethods> = OnceLock::new();

unsafe extern "C" fn hooked_open(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    static METHODS: OnceLock<IoMethods> = OnceLock::new();
    // SAFETY: a call of SQLite's, passed on as it is.
    let rc = unsafe { UNIX_OPEN.get().unwrap()(vfs, name, file, flags, out_flags) };
    // SAFETY: the buffer is that of an open file.
    let methods = unsafe { (*file).methods };
    if rc == ffi::SQLITE_OK && flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
        // SAFETY: the methods of an open file are static.
        let unix = UNIX_FILE.get_or_init(|| unsafe { methods.read() });
        let hooked =
            METHODS.get_or_init(|| IoMethods { lock: Some(hooked_lock), unlock: Some(hooked_unlock), ..*unix });
        // SAFETY: as above.
        unsafe { (*file).methods = hooked };
    }
    rc
}

unsafe extern "C" fn hooked_lock(file: *mut File, level: c_int) -> c_int {
    UNDERNEATH.lock().locked.push(level);
    let hook = UNDERNEATH.lock().at_shared.take_if(|_| level == ffi::SQLITE_LOCK_SHARED);
    if let Some(hook) = hook {
        hook();
    }
    // SAFETY: a call of SQLite's, passed on as it is.
    unsafe { UNIX_FILE.get().unwrap().lock.unwrap()(file, level) }
}

unsafe extern "C" fn hooked_unlock(file: *mut File, level: c_int) -> c_int {
    UNDERNEATH.lock().unlocked.push(level);
    // SAFETY: a call of SQLite's, passed on as it is.
    unsafe { UNIX_FILE.get().unwrap().unlock.unwrap()(file, level) }
}

/// A connection through onewrite over [`UNDERNEATH`], which never waits.
fn open_hooked(path: &Path) -> Connection {
    static ONCE: Once = Once::new();
    let name = c"onewrite-hooked";
    ONCE.call_once(|| {
        let api = onewrite_rusqlite::api();
        // SAFETY: the VFS is registered and stays; the structure is plain data.
        let unix = unsafe { (api.vfs_find)(common::STOCK.as_ptr()).read() };
        UNIX_OPEN.get_or_init(|| unix.open.unwrap());
        let vfs = Vfs { name: c"hooked".as_ptr(), next: std::ptr::null_mut(), open: Some(hooked_open), ..unix };
        // SAFETY: the structure is leaked, and the functions are those of the SQLite this program
        // is linked to.
        unsafe {
            assert_eq!((api.vfs_register)(Box::leak(Box::new(vfs)), 0), ffi::SQLITE_OK);
            onewrite::register_over(&api, name, Arc::new(RealDisk::new()), c"hooked").unwrap();
        }
    });
    let db =
        Connection::open_with_flags_and_vfs(format!("file:{}?wal=stock", path.display()), OpenFlags::default(), name)
            .unwrap();
    db.busy_timeout(Duration::ZERO).unwrap();
    db
}

fn make_wal(path: &Path) {
    let stock = open_stock(path);
    stock.execute_batch("PRAGMA journal_mode=wal; CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    stock.close().unwrap();
}

/// Rule ModeUnderLock: this connection sees the file in WAL mode and then locks the file
/// underneath; between the two another one tries to leave WAL mode and to write.
#[test]
fn a_file_stays_in_wal_mode_from_the_look_at_it_to_the_lock_on_it() {
    let (dir, _one) = (setup(), ONE.lock());
    let path = dir.path().join("between.db");
    make_wal(&path);
    let (reader, other) = (open_hooked(&path), open_hooked(&path));
    let (done, is_done) = mpsc::channel();
    UNDERNEATH.lock().at_shared = Some(Box::new(move || {
        let left = other.query_row("PRAGMA journal_mode=delete", [], |row| row.get::<_, String>(0));
        let wrote = other.execute_batch("INSERT INTO t VALUES (2)");
        done.send((left, wrote, other)).unwrap();
    }));
    let seen = reader.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
    let (left, wrote, other) = is_done.try_recv().expect("the file underneath was locked");
    assert_eq!(seen, Ok(2));
    assert_eq!(explain(left.unwrap_err()).0, ffi::SQLITE_BUSY, "the mode changed under a reader");
    wrote.unwrap();
    assert_eq!(one::<String>(&other, "PRAGMA journal_mode"), "wal");
    reader.close().unwrap();
    assert_eq!(one::<String>(&other, "PRAGMA journal_mode=delete"), "delete");
    other.close().unwrap();
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT sum(x) FROM t"), 3);
}

/// Rule ModeUnderLock: a connection that comes at that moment is in WAL mode as well.
#[test]
fn a_second_connection_sees_wal_mode_before_the_first_has_locked_the_file() {
    let (dir, _one) = (setup(), ONE.lock());
    let path = dir.path().join("second.db");
    make_wal(&path);
    let (reader, other) = (open_hooked(&path), open_hooked(&path));
    let (done, is_done) = mpsc::channel();
    UNDERNEATH.lock().at_shared = Some(Box::new(move || {
        let wrote = other.execute_batch("INSERT INTO t VALUES (2)");
        done.send((wrote, other)).unwrap();
    }));
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 2);
    let (wrote, other) = is_done.try_recv().expect("the file underneath was locked");
    wrote.unwrap();
    for db in [reader, other] {
        assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 3);
        db.close().unwrap();
    }
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT sum(x) FROM t"), 3);
}

/// SQLite goes back to SHARED after it asked for EXCLUSIVE in vain. PENDING may be left underneath,
/// and no other connection could begin to read. On Windows SQLite gives SHARED up while it tries,
/// and without RESERVED two that try have none behind it (rule ModeUnderLock).
#[test]
fn a_lock_that_was_refused_is_given_back_underneath() {
    let (dir, _one) = (setup(), ONE.lock());
    let path = dir.path().join("pending.db");
    make_wal(&path);
    let (db, reader) = (open_hooked(&path), open_hooked(&path));
    for db in [&db, &reader] {
        assert_eq!(one::<i64>(db, "SELECT x FROM t"), 1);
    }
    UNDERNEATH.lock().locked.clear();
    UNDERNEATH.lock().unlocked.clear();
    assert_eq!(explain(db.execute_batch("PRAGMA journal_mode=delete").unwrap_err()).0, ffi::SQLITE_BUSY);
    assert_eq!(UNDERNEATH.lock().locked, [ffi::SQLITE_LOCK_RESERVED, ffi::SQLITE_LOCK_EXCLUSIVE]);
    assert_eq!(UNDERNEATH.lock().unlocked, [ffi::SQLITE_LOCK_SHARED]);
    reader.close().unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode=delete"), "delete");
}

/// Rule CacheKnowsItsState: a commit in WAL mode leaves the change counter as it was. Stock SQLite
/// (3.40.1, 3.54.1) goes on with its cache behind `PRAGMA journal_mode=delete`.
#[test]
fn pages_cached_in_wal_mode_are_not_used_behind_it() {
    let dir = setup();
    let path = dir.path().join("cached.db");
    let stock = open_stock(&path);
    stock.execute_batch("PRAGMA journal_mode=wal; CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE)").unwrap();
    stock.close().unwrap();
    let (db, other) = (open_wal(&path), open_wal(&path));
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 0);
    other.execute_batch("INSERT INTO t(y) VALUES ('a')").unwrap();
    other.close().unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode=delete"), "delete");
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 1);
    db.execute_batch("INSERT INTO t(y) VALUES ('b')").unwrap();
    db.close().unwrap();
    let stock = open_stock(&path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 2);
}

/// Rule ModeUnderLock, with threads: two want a rollback journal and two want WAL mode, each
/// opening, writing and closing again and again; two read.
#[test]
fn threads_that_switch_between_wal_mode_and_a_rollback_journal_lose_nothing() {
    let dir = setup();
    let path = dir.path().join("switch.db");
    open_wal(&path).execute_batch("CREATE TABLE t(x INTEGER PRIMARY KEY, y UNIQUE)").unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    let busy = |e: rusqlite::Error| {
        let (code, message) = explain(e);
        assert_eq!(code & 0xff, ffi::SQLITE_BUSY, "{message}");
    };
    let written = AtomicI64::new(0);
    std::thread::scope(|scope| {
        for mode in ["delete", "wal", "delete", "wal"] {
            let (path, written) = (&path, &written);
            scope.spawn(move || {
                while Instant::now() < until {
                    let db = open_wal(path);
                    db.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap_or_else(busy);
                    db.execute_batch(&format!("PRAGMA journal_mode={mode}")).unwrap_or_else(busy);
                    match db.execute_batch("INSERT INTO t(y) VALUES (randomblob(100))") {
                        Ok(()) => _ = written.fetch_add(1, SeqCst),
                        Err(e) => busy(e),
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let db = open_wal(&path);
                    for _ in 0..50 {
                        db.query_row("SELECT max(x) FROM t", [], |_| Ok(())).unwrap_or_else(busy);
                    }
                }
            });
        }
    });
    let stock = open_stock(&path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), written.load(SeqCst));
}

#[test]
fn an_exclusive_connection_keeps_others_out_once_it_has_written() {
    let dir = setup();
    let path = dir.path().join("exclusive.db");
    let open = || open(&path, "busy_ms=20").unwrap();
    let (db, other) = (open(), open());
    for db in [&db, &other] {
        db.busy_timeout(Duration::ZERO).unwrap();
    }
    db.execute_batch(TABLE).unwrap();
    for before in ["", "BEGIN; SELECT * FROM t;"] {
        db.execute_batch(before).unwrap();
        assert_eq!(one::<String>(&db, "PRAGMA locking_mode=exclusive"), "exclusive");
        let rows = one::<i64>(&db, "SELECT count(*) FROM t");
        if !before.is_empty() {
            db.execute_batch("COMMIT").unwrap();
        }
        // SQLite never looks whether its cache still holds: no other connection may write. All may
        // read until it writes.
        let refused = |sql| assert_eq!(explain(other.execute_batch(sql).unwrap_err()).0, ffi::SQLITE_BUSY, "{sql}");
        refused("INSERT INTO t(v) VALUES ('other')");
        other.execute_batch("BEGIN").unwrap();
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), rows);
        let writes = "INSERT INTO t(v) VALUES ('three')";
        assert_eq!(explain(db.execute_batch(writes).unwrap_err()).0, ffi::SQLITE_BUSY, "somebody reads");
        other.execute_batch("COMMIT").unwrap();
        db.execute_batch(writes).unwrap();
        refused("SELECT * FROM t");
        refused("INSERT INTO t(v) VALUES ('other')");
        db.execute_batch("DELETE FROM t WHERE v='none'").unwrap();
        refused("SELECT * FROM t");
        assert_eq!(one::<String>(&db, "PRAGMA locking_mode=normal"), "normal");
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), rows + 1);
        other.execute_batch("INSERT INTO t(v) VALUES ('other')").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), rows + 2);
    }
}

#[cfg(unix)]
#[test]
fn an_exclusive_connection_goes_on_after_a_vacuum_that_failed() {
    let dir = setup();
    for (page_size, journal) in [(1024, "delete"), (1024, "memory"), (1024, "persist"), (4096, "delete")] {
        let path = dir.path().join(format!("vacuum-{page_size}-{journal}.db"));
        let open = || open(&path, "busy_ms=20").unwrap();
        let (db, other) = (open(), open());
        db.execute_batch(TABLE).unwrap();
        assert_eq!(one::<String>(&db, &format!("PRAGMA journal_mode={journal}")), journal);
        assert_eq!(one::<String>(&db, "PRAGMA locking_mode=exclusive"), "exclusive");
        db.execute_batch("INSERT INTO t(v) VALUES ('three')").unwrap();
        // The file cannot change its shape without a real journal.
        let _ = fs::remove_file(beside(&path, "-journal"));
        std::os::unix::fs::symlink(dir.path().join("no/such"), beside(&path, "-journal")).unwrap();
        let vacuumed = db.execute_batch(&format!("PRAGMA page_size={page_size}; VACUUM"));
        assert_eq!(vacuumed.is_ok(), page_size == 4096);
        let _ = fs::remove_file(beside(&path, "-journal"));
        db.execute_batch("UPDATE t SET v='four' WHERE id=3").unwrap();
        db.execute_batch("INSERT INTO t(v) VALUES ('five')").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 4);
        db.close().unwrap();
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 4);
        assert_eq!(one::<String>(&other, "SELECT v FROM t WHERE id=3"), "four");
        other.close().unwrap();
        let stock = open_stock(&path);
        assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
        assert_eq!(one::<String>(&stock, "SELECT v FROM t WHERE id=3"), "four");
    }
}

/// Rule BusyToHandler: SQLite is not told of a mode that does not come.
#[test]
fn a_change_to_wal_mode_that_fails_is_an_error_at_once() {
    let dir = setup();
    let path = dir.path().join("refused.db");
    let (db, reader) = (open(&path, "busy_ms=0&wal=stock").unwrap(), open_wal(&path));
    db.busy_timeout(Duration::ZERO).unwrap();
    db.execute_batch(TABLE).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    let mode = db.query_row("PRAGMA journal_mode=wal", [], |row| row.get::<_, String>(0));
    assert_eq!(explain(mode.unwrap_err()).0, ffi::SQLITE_BUSY);
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode"), "delete");
    // It takes nothing from a transaction that comes after it.
    db.execute_batch("BEGIN EXCLUSIVE; INSERT INTO t(v) VALUES ('three'); COMMIT").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 2);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode=wal"), "wal");
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 3);
    assert!(beside(&path, "-wal").exists());
}

#[test]
fn an_exclusive_connection_that_changed_to_wal_mode_goes_on_in_normal_mode() {
    let dir = setup();
    for rows in [0, 2] {
        let path = dir.path().join(format!("normal-{rows}.db"));
        let db = open_wal(&path);
        if rows > 0 {
            db.execute_batch(TABLE).unwrap();
        }
        assert_eq!(one::<String>(&db, "PRAGMA locking_mode=exclusive"), "exclusive");
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode=wal"), "wal");
        assert_eq!(one::<String>(&db, "PRAGMA locking_mode=normal"), "normal");
        assert_eq!(one::<i64>(&db, "PRAGMA user_version"), 0);
        db.execute_batch("CREATE TABLE n(x); INSERT INTO n VALUES (1)").unwrap();
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode"), "wal");
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode=delete"), "delete");
        db.execute_batch("INSERT INTO n VALUES (2)").unwrap();
        assert!(!beside(&path, "-wal").exists());
        let other = open_wal(&path);
        assert_eq!(one::<i64>(&other, "SELECT sum(x) FROM n"), 3);
        drop((db, other));
        let stock = open_stock(&path);
        assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
        assert_eq!(one::<i64>(&stock, "SELECT sum(x) FROM n"), 3);
    }
}

/// SQLite takes a WAL that lies beside a file for its own, with any header.
#[test]
fn a_wal_beside_a_plain_file_is_read_as_stock_sqlite_does() {
    let dir = setup();
    for through in [open as fn(&Path, &str) -> rusqlite::Result<Connection>, |path, _| Ok(open_stock(path))] {
        let path = dir.path().join("beside.db");
        open_stock(&path).execute_batch(TABLE).unwrap();
        fs::write(beside(&path, "-wal"), [7; 100]).unwrap();
        let db = through(&path, "").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
        db.execute_batch("INSERT INTO t(v) VALUES ('three')").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 3);
        db.close().unwrap();
        assert!(!beside(&path, "-wal").exists());
        let stock = open_stock(&path);
        assert_eq!(one::<String>(&stock, "PRAGMA journal_mode"), "delete");
        assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 3);
        stock.close().unwrap();
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_that_is_no_database_can_be_made_one() {
    let dir = setup();
    let path = dir.path().join("garbage.db");
    fs::write(&path, [0x55; 8192]).unwrap();
    let db = open(&path, "").unwrap();
    for sql in ["SELECT * FROM sqlite_schema", "CREATE TABLE t(x)"] {
        assert_eq!(explain(db.execute_batch(sql).unwrap_err()).0, ffi::SQLITE_NOTADB);
    }
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_RESET_DATABASE, true).unwrap();
    db.execute_batch("VACUUM").unwrap();
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_RESET_DATABASE, false).unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(fs::read(&path).unwrap()[READ_VERSION], MARK, "the engine writes it");
    assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
    db.close().unwrap();
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 2);
}
