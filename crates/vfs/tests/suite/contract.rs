//! The VFS as SQLite sees it: SQL through SQLite's C interface, one test for each rule of the glue.

#![allow(unsafe_code)]

use crate::common;

use std::ffi::{CStr, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{explain, logged, one, open, open_stock, setup};
use onewrite::VFS_NAME;
use onewrite_core::disk::real::RealDisk;
use rusqlite::{Connection, OpenFlags, ffi};

const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t(v) VALUES ('one'), ('two')";

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// A file control on the main database.
fn control<T>(db: &Connection, op: c_int, arg: &mut T) -> c_int {
    // SAFETY: the caller passes an argument of the type of the control.
    unsafe { ffi::sqlite3_file_control(db.handle(), c"main".as_ptr(), op, std::ptr::from_mut(arg).cast::<c_void>()) }
}

#[test]
fn rows_stay_and_stock_sqlite_reads_them() {
    let dir = setup();
    let path = dir.path().join("a.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    db.close().unwrap();
    let db = open(&path, "").unwrap();
    assert_eq!(one::<String>(&db, "SELECT v FROM t WHERE id = 2"), "two");
    db.close().unwrap();
    let stock = open_stock(&path);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 2);
}

#[test]
fn the_journal_is_virtual_in_every_journal_mode() {
    let dir = setup();
    for mode in ["delete", "truncate", "persist", "memory", "off"] {
        let path = dir.path().join(format!("{mode}.db"));
        let db = open(&path, "").unwrap();
        assert_eq!(one::<String>(&db, &format!("PRAGMA journal_mode={mode}")), mode);
        db.execute_batch(TABLE).unwrap();
        // A cache of few pages makes SQLite write pages, and read its journal, before the end.
        db.execute_batch("PRAGMA cache_size=5; BEGIN").unwrap();
        let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<2000)
                    INSERT INTO t(v) SELECT hex(randomblob(100)) FROM n";
        db.execute_batch(many).unwrap();
        assert!(!beside(&path, "-journal").exists(), "{mode}: a journal on disk");
        if mode == "off" {
            db.execute_batch("COMMIT").unwrap();
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2002);
        } else {
            db.execute_batch("SAVEPOINT s; DELETE FROM t WHERE id > 10; ROLLBACK TO s").unwrap();
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2002, "{mode}: savepoint");
            db.execute_batch("ROLLBACK").unwrap();
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2, "{mode}: rollback");
        }
        assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok", "{mode}");
        assert!(!beside(&path, "-journal").exists(), "{mode}: a journal left on disk");
    }
}

#[test]
fn each_connection_has_a_journal_of_its_own() {
    let dir = setup();
    let path = dir.path().join("two.db");
    let first = open(&path, "busy_ms=0").unwrap();
    first.execute_batch(TABLE).unwrap();
    let second = open(&path, "").unwrap();
    first.execute_batch("BEGIN IMMEDIATE; INSERT INTO t(v) VALUES ('mine')").unwrap();
    // The other one looks for a hot journal when it starts to read, and must not see this one's.
    assert_eq!(one::<i64>(&second, "SELECT count(*) FROM t"), 2);
    first.execute_batch("ROLLBACK").unwrap();
    second.execute_batch("INSERT INTO t(v) VALUES ('theirs')").unwrap();
    assert_eq!(one::<i64>(&first, "SELECT count(*) FROM t"), 3);
}

#[test]
fn a_second_writer_is_told_busy() {
    let dir = setup();
    let path = dir.path().join("busy.db");
    let (first, second) = (open(&path, "busy_ms=0").unwrap(), open(&path, "busy_ms=0").unwrap());
    first.execute_batch(TABLE).unwrap();
    second.busy_timeout(std::time::Duration::ZERO).unwrap();
    first.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (code, _) = explain(second.execute_batch("BEGIN IMMEDIATE").unwrap_err());
    assert_eq!(code & 0xff, ffi::SQLITE_BUSY);
    assert!(logged(&path).is_none(), "BUSY is no line in the log");
}

#[test]
fn threads_write_through_connections_of_their_own() {
    let dir = setup();
    let path = dir.path().join("threads.db");
    open(&path, "").unwrap().execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let db = open(path, "").unwrap();
                db.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
                for n in 0..50 {
                    let insert = format!("BEGIN IMMEDIATE; INSERT INTO t(v) VALUES ('{thread}/{n}'); COMMIT");
                    db.execute_batch(&insert).unwrap();
                }
            });
        }
    });
    let db = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(DISTINCT v) FROM t"), 200);
    assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
}

#[test]
fn an_impossible_value_or_unknown_parameter_is_named_with_the_choices() {
    let dir = setup();
    let path = dir.path().join("bad.db");
    for (parameters, expected) in [
        ("scheme=fast", ["fast", "wal-opt"]),
        ("onewrite_scheme=log", ["onewrite_scheme", "header_page"]),
        ("Onewrite=1", ["Onewrite", "log_size"]),
        ("mode=ro&log_size=7", ["7", "262144"]),
    ] {
        if parameters.starts_with("mode=ro") {
            open_stock(&path).execute_batch(TABLE).unwrap();
        }
        let (code, message) = explain(open(&path, parameters).unwrap_err());
        assert_eq!(code, ffi::SQLITE_CANTOPEN, "{parameters}");
        let (logged_code, line) = logged(&path).unwrap();
        assert_eq!(logged_code, ffi::SQLITE_CANTOPEN);
        for word in expected {
            assert!(message.contains(word), "{parameters}: {message}");
            assert!(line.contains(word), "{parameters}: {line}");
        }
    }
    assert!(open(&path, "scheme=log&log_size=512k&cache=private").is_ok());
}

#[test]
fn writing_without_locks_is_refused() {
    let dir = setup();
    let path = dir.path().join("nolock.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    let (code, message) = explain(open(&path, "nolock=1").unwrap_err());
    assert_eq!(code, ffi::SQLITE_CANTOPEN);
    assert!(message.contains("nolock=1"), "{message}");
    let reader = open(&path, "nolock=1&mode=ro").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 2);
}

#[test]
fn a_read_only_connection_reads_past_the_engine() {
    let dir = setup();
    let path = dir.path().join("ro.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    for parameters in ["mode=ro", "immutable=1"] {
        let reader = open(&path, parameters).unwrap();
        assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 2);
        assert!(reader.is_readonly("main").unwrap());
        let (code, _) = explain(reader.execute_batch("DELETE FROM t").unwrap_err());
        assert_eq!(code & 0xff, ffi::SQLITE_READONLY);
        let (_, message) = explain(reader.execute_batch("PRAGMA onewrite_scheme").unwrap_err());
        assert!(message.contains("only reads"), "{message}");
        let (_, message) = explain(reader.execute_batch("PRAGMA onewrite_colour").unwrap_err());
        assert!(message.contains("onewrite_scheme"), "{message}");
    }
}

#[test]
fn a_read_only_connection_joins_a_writer_of_this_process() {
    let dir = setup();
    let path = dir.path().join("join.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    let early = open(&path, "mode=ro").unwrap();
    assert_eq!(one::<i64>(&early, "SELECT count(*) FROM t"), 2);
    let writer = open(&path, "").unwrap();
    writer.execute_batch("INSERT INTO t(v) VALUES ('three')").unwrap();
    let late = open(&path, "mode=ro").unwrap();
    for reader in [&early, &late] {
        assert_eq!(one::<i64>(reader, "SELECT count(*) FROM t"), 3);
        let (code, _) = explain(reader.execute_batch("DELETE FROM t").unwrap_err());
        assert_eq!(code & 0xff, ffi::SQLITE_READONLY);
    }
    drop(writer);
    assert_eq!(one::<i64>(&early, "SELECT count(*) FROM t"), 3);
}

#[test]
fn a_marked_file_is_not_read_past_its_log() {
    let dir = setup();
    let path = dir.path().join("marked.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    let reader = open(&path, "mode=ro").unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[19] = 87;
    fs::write(&path, bytes).unwrap();
    for (parameters, why) in [("mode=ro", "is missing"), ("immutable=1", "for writing")] {
        let (code, message) = explain(open(&path, parameters).unwrap_err());
        assert_eq!(code, ffi::SQLITE_CANTOPEN, "{parameters}");
        assert!(message.contains(why), "{message}");
    }
    // A connection that was there before is told when it reads the mark.
    let (code, _) = explain(reader.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap_err());
    assert_eq!(code, ffi::SQLITE_CANTOPEN);
    assert!(logged(&path).unwrap().1.contains("is missing"));
}

/// A connection that came to read does not bring home the log of a crash.
#[test]
fn a_read_only_connection_recovers_nothing() {
    let dir = setup();
    let path = dir.path().join("left.db");
    let writer = open(&path, "").unwrap();
    writer.execute_batch(TABLE).unwrap();
    let (home, log) = (fs::read(&path).unwrap(), fs::read(beside(&path, "-onewrite")).unwrap());
    drop(writer);
    fs::write(&path, &home).unwrap();
    fs::write(beside(&path, "-onewrite"), &log).unwrap();
    let (code, message) = explain(open(&path, "mode=ro").unwrap_err());
    assert_eq!(code, ffi::SQLITE_CANTOPEN);
    assert!(message.contains("for writing"), "{message}");
    assert!(fs::read(&path).unwrap() == home);
    let again = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&again, "SELECT count(*) FROM t"), 2);
    assert_eq!(one::<i64>(&open(&path, "mode=ro").unwrap(), "SELECT count(*) FROM t"), 2);
}

#[test]
fn pragmas_answer_set_and_name_their_choices() {
    let dir = setup();
    let db = open(&dir.path().join("pragma.db"), "").unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_scheme"), "log");
    assert_eq!(one::<String>(&db, "PRAGMA main.OneWrite_Busy_Ms"), "2000");
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_busy_ms=5"), "5");
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_busy_ms"), "5");
    let (_, message) = explain(db.execute_batch("PRAGMA onewrite_busy_ms=soon").unwrap_err());
    assert!(message.contains("soon") && message.contains("3600000"), "{message}");
    assert!(one::<String>(&db, "PRAGMA onewrite_error").contains("soon"));
    let (_, message) = explain(db.execute_batch("PRAGMA onewrite_colour=red").unwrap_err());
    assert!(message.contains("onewrite_colour") && message.contains("onewrite_log_size"), "{message}");
    // SQLite's settings stay SQLite's.
    db.execute_batch("PRAGMA synchronous=NORMAL").unwrap();
    assert_eq!(one::<i64>(&db, "PRAGMA synchronous"), 1);
    assert_eq!(one::<i64>(&db, "PRAGMA mmap_size"), 0);
    for (said, limit) in
        [("1000000", 1_000_000), ("0x200000", 0x20_0000), ("1", 1), ("-1", 0), ("9999999999", 0x7fff_0000)]
    {
        assert_eq!(one::<i64>(&db, &format!("PRAGMA mmap_size={said}")), limit);
        assert_eq!(one::<i64>(&db, "PRAGMA mmap_size"), limit);
    }
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode"), "delete");
}

#[test]
fn wal_mode_is_the_vfs_underneath_until_another_mode_is_chosen() {
    let dir = setup();
    for locking in ["normal", "exclusive"] {
        let path = dir.path().join(format!("wal-{locking}.db"));
        let db = open(&path, "wal=stock").unwrap();
        db.execute_batch(TABLE).unwrap();
        assert_eq!(one::<String>(&db, &format!("PRAGMA locking_mode={locking}")), locking);
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode=wal"), "wal");
        db.execute_batch("INSERT INTO t(v) VALUES ('three')").unwrap();
        assert!(beside(&path, "-wal").exists());
        assert_eq!(beside(&path, "-shm").exists(), locking == "normal");
        if locking == "normal" {
            let other = open(&path, "wal=stock").unwrap();
            other.execute_batch("INSERT INTO t(v) VALUES ('four')").unwrap();
            assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 4);
            assert_eq!(one::<i64>(&db, "PRAGMA wal_checkpoint"), 0);
            let reader = open(&path, "mode=ro&wal=stock").unwrap();
            assert_eq!(one::<i64>(&reader, "SELECT count(*) FROM t"), 4);
        } else {
            db.execute_batch("INSERT INTO t(v) VALUES ('four')").unwrap();
        }
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 4);
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode=delete"), "delete");
        assert!(!beside(&path, "-wal").exists());
        db.execute_batch("INSERT INTO t(v) VALUES ('five')").unwrap();
        // Under a lock that is never given up the connection may stay with the VFS underneath,
        // journal and all.
        assert!(locking == "exclusive" || !beside(&path, "-journal").exists());
        assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
        db.close().unwrap();
        assert!(!beside(&path, "-journal").exists());
        assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 5);
    }
}

#[test]
fn a_wal_database_of_stock_sqlite_is_shared_with_it() {
    let dir = setup();
    let path = dir.path().join("stock-wal.db");
    let stock = open_stock(&path);
    assert_eq!(one::<String>(&stock, "PRAGMA journal_mode=wal"), "wal");
    stock.execute_batch(TABLE).unwrap();
    let db = open(&path, "wal=stock").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    db.execute_batch("INSERT INTO t(v) VALUES ('ours')").unwrap();
    stock.execute_batch("INSERT INTO t(v) VALUES ('theirs')").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 4);
}

#[test]
fn temporary_files_attached_files_vacuum_and_backup_work() {
    let dir = setup();
    let (path, second) = (dir.path().join("main.db"), dir.path().join("second.db"));
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    db.execute_batch("PRAGMA temp_store=1; PRAGMA cache_size=5; CREATE TEMP TABLE big(b BLOB)").unwrap();
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3000)
                INSERT INTO big SELECT randomblob(500) FROM n; CREATE INDEX temp.bi ON big(b)";
    db.execute_batch(many).unwrap();
    db.execute_batch(&format!("ATTACH 'file:{}' AS second", second.display())).unwrap();
    db.execute_batch("BEGIN; CREATE TABLE second.u(x); INSERT INTO u VALUES (1); DELETE FROM t WHERE id=1; COMMIT")
        .unwrap();
    db.execute_batch("DETACH second; VACUUM").unwrap();
    db.execute_batch("PRAGMA page_size=1024; VACUUM").unwrap();
    assert_eq!(one::<i64>(&db, "PRAGMA page_size"), 1024);
    assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
    let into = dir.path().join("into.db");
    db.execute_batch(&format!("VACUUM INTO '{}'", into.display())).unwrap();
    let mut copy = open(&dir.path().join("copy.db"), "").unwrap();
    rusqlite::backup::Backup::new(&db, &mut copy).unwrap().step(-1).unwrap();
    assert_eq!(one::<i64>(&copy, "SELECT count(*) FROM t"), 1);
    drop((db, copy));
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 1);
    assert_eq!(one::<i64>(&open_stock(&second), "SELECT count(*) FROM u"), 1);
    assert_eq!(one::<i64>(&open_stock(&into), "SELECT count(*) FROM t"), 1);
}

#[test]
fn databases_without_a_file_work() {
    setup();
    for name in [":memory:", "", "file::memory:?cache=shared"] {
        let db = onewrite_rusqlite::open(name).unwrap();
        db.execute_batch(TABLE).unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    }
}

#[cfg_attr(windows, ignore = "stock SQLite lets nobody rename or remove a file it has open on Windows")]
#[test]
fn file_controls_answer() {
    let dir = setup();
    let path = dir.path().join("control.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();

    let mut name: *mut std::ffi::c_char = std::ptr::null_mut();
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_VFSNAME, &mut name), ffi::SQLITE_OK);
    // SAFETY: the control answered with a string that the caller frees.
    unsafe {
        assert_eq!(CStr::from_ptr(name), VFS_NAME);
        ffi::sqlite3_free(name.cast());
    }

    let mut flag = -1;
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE, &mut flag), ffi::SQLITE_OK);
    assert_eq!(flag, 1);
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE, &mut 0), ffi::SQLITE_OK);
    flag = -1;
    control(&db, ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE, &mut flag);
    assert_eq!(flag, 0);

    let mut level = -1;
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_LOCKSTATE, &mut level), ffi::SQLITE_OK);
    assert_eq!(level, 2);
    db.execute_batch("COMMIT").unwrap();
    control(&db, ffi::SQLITE_FCNTL_LOCKSTATE, &mut level);
    assert_eq!(level, 0);

    // Remembered for the time in WAL mode.
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_PERSIST_WAL, &mut 1), ffi::SQLITE_OK);
    let mut persist = -1;
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_PERSIST_WAL, &mut persist), ffi::SQLITE_OK);
    assert_eq!(persist, 1);

    assert_eq!(control(&db, ffi::SQLITE_FCNTL_SIZE_HINT, &mut 1_000_000_i64), ffi::SQLITE_OK);
    assert_eq!(control(&db, 4711, &mut 0), ffi::SQLITE_NOTFOUND);

    let mut moved = -1;
    assert_eq!(control(&db, ffi::SQLITE_FCNTL_HAS_MOVED, &mut moved), ffi::SQLITE_OK);
    assert_eq!(moved, 0);
    fs::rename(&path, dir.path().join("elsewhere.db")).unwrap();
    control(&db, ffi::SQLITE_FCNTL_HAS_MOVED, &mut moved);
    assert_eq!(moved, 1);
    let (code, _) = explain(db.execute_batch("INSERT INTO t(v) VALUES ('lost')").unwrap_err());
    assert_eq!(code, ffi::SQLITE_READONLY_DBMOVED);
}

#[test]
fn only_powersafe_overwrite_and_small_sectors_are_claimed() {
    let dir = setup();
    for (parameters, expected) in [("", ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE), ("psow=0", 0)] {
        let db = open(&dir.path().join(format!("cap{expected}.db")), parameters).unwrap();
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        assert_eq!(control(&db, ffi::SQLITE_FCNTL_FILE_POINTER, &mut file), ffi::SQLITE_OK);
        // SAFETY: the file of an open connection has methods.
        let methods = unsafe { &*(*file).pMethods };
        // SAFETY: as above.
        let (claimed, sector) =
            unsafe { (methods.xDeviceCharacteristics.unwrap()(file), methods.xSectorSize.unwrap()(file)) };
        assert_eq!((claimed, sector, methods.iVersion), (expected, 512, 3));
    }
}

#[test]
fn a_missing_file_is_the_systems_error() {
    let dir = setup();
    let path = dir.path().join("no-directory/x.db");
    let (code, _) = explain(open(&path, "").unwrap_err());
    assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
    let missing = dir.path().join("missing.db");
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let (code, message) = explain(onewrite_rusqlite::open_with_flags(&missing, flags).unwrap_err());
    assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
    assert!(!message.is_empty());
    assert!(!missing.exists());
}

#[test]
fn the_last_error_is_told_through_the_vfs() {
    let dir = setup();
    open(&dir.path().join("x.db"), "scheme=fast").unwrap_err();
    let mut text = [0_u8; 24];
    // SAFETY: a registered VFS and a buffer of the size given.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(VFS_NAME.as_ptr());
        (*vfs).xGetLastError.unwrap()(vfs, text.len() as c_int, text.as_mut_ptr().cast());
    }
    let text = CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap();
    assert!("scheme=fast: not a value of this option".starts_with(text) && text.len() == 23, "{text}");
    open(&dir.path().join("x.db"), "").unwrap();
    assert_eq!(onewrite::last_error(), None);
}

#[test]
fn registering_again_changes_nothing_and_foreign_names_are_respected() {
    let dir = setup();
    let api = onewrite_rusqlite::api();
    // SAFETY: SQLite's own functions.
    unsafe {
        let before = ffi::sqlite3_vfs_find(VFS_NAME.as_ptr());
        onewrite_rusqlite::register().unwrap();
        assert_eq!(ffi::sqlite3_vfs_find(VFS_NAME.as_ptr()), before);
        assert!(CStr::from_ptr((*ffi::sqlite3_vfs_find(std::ptr::null())).zName) == common::STOCK);

        let theirs = if cfg!(windows) { c"win32-none" } else { c"unix-none" };
        let taken = onewrite::register(&api, theirs, false).unwrap_err();
        assert!(taken.message.contains("-none"), "{taken}");

        onewrite::register_with_disk(&api, c"onewrite-test", Arc::new(RealDisk::new())).unwrap();
        let again = onewrite::register_with_disk(&api, c"onewrite-test", Arc::new(RealDisk::new())).unwrap_err();
        assert!(again.message.contains("onewrite-test"), "{again}");
    }
    // A disk of the caller's has no VFS underneath.
    let path = dir.path().join("sim.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let refused = Connection::open_with_flags_and_vfs(&path, read_only, c"onewrite-test").unwrap_err();
    assert_eq!(explain(refused).0, ffi::SQLITE_CANTOPEN);
    assert!(onewrite::last_error().unwrap().contains("real disk"));
}

#[test]
fn closing_leaves_the_locks_of_a_stock_reader_in_this_process_alone() {
    let dir = setup();
    let path = dir.path().join("posix.db");
    open_stock(&path).execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1)").unwrap();
    let stock = open_stock(&path);
    stock.execute_batch("BEGIN").unwrap();
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 1);
    let through = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&through, "SELECT count(*) FROM t"), 1);
    through.close().unwrap();
    // POSIX locks die with any descriptor of the file: another process must still find the
    // reader's.
    let program = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1],timeout=0); c.execute('INSERT INTO t VALUES(2)'); c.commit()";
    let Ok(run) = std::process::Command::new("python3").arg("-c").arg(program).arg(&path).output() else {
        eprintln!("skipped: no python3");
        return;
    };
    assert!(String::from_utf8_lossy(&run.stderr).contains("database is locked"), "{run:?}");
    stock.execute_batch("COMMIT").unwrap();
    // The descriptor that stayed open is used again, and closed with the next one.
    let again = open(&path, "").unwrap();
    again.execute_batch("INSERT INTO t VALUES(3)").unwrap();
    assert_eq!(one::<i64>(&again, "SELECT count(*) FROM t"), 2);
}

/// Rows of `onewrite_stats`, by name.
fn stats(db: &Connection, table: &str) -> rusqlite::Result<Vec<(String, f64, String)>> {
    let mut rows = db.prepare(&format!("SELECT * FROM {table}"))?;
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

#[test]
fn every_connection_can_ask_for_version_status_and_counters() {
    let dir = setup();
    let path = dir.path().join("asks.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(one::<String>(&db, "SELECT onewrite_version()"), env!("CARGO_PKG_VERSION"));
    assert_eq!(one::<String>(&db, "SELECT onewrite_status()"), one::<String>(&db, "PRAGMA onewrite_status"));
    assert!(one::<String>(&db, "SELECT onewrite_status('main')").starts_with("in_effect=yes\nphase=marked"));
    let rows = stats(&db, "onewrite_stats").unwrap();
    assert!(rows.contains(&("commits".to_owned(), 2.0, "transactions".to_owned())), "{rows:?}");
    assert_eq!(one::<String>(&db, "SELECT typeof(value) FROM onewrite_stats WHERE name='write_bytes'"), "integer");
    assert_eq!(one::<String>(&db, "SELECT typeof(value) FROM onewrite_stats WHERE name='bytes_per_commit'"), "real");
    // Inside a transaction, of an attached database, joined with itself, and with a schema that
    // another table names.
    let second = dir.path().join("second.db");
    db.execute_batch(&format!("ATTACH 'file:{}' AS aux; CREATE TABLE aux.u(a)", second.display())).unwrap();
    db.execute_batch("BEGIN; INSERT INTO t(v) VALUES ('three')").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT value FROM onewrite_stats('aux') WHERE name='commits'"), 1);
    let each = "SELECT group_concat(s.schema || s.value) FROM pragma_database_list d, onewrite_stats(d.name) s WHERE s.name='commits'";
    assert_eq!(one::<String>(&db, each), "main2,aux1");
    let joined = "SELECT count(*) FROM onewrite_stats a, onewrite_stats b USING (name)";
    assert_eq!(one::<u32>(&db, joined) as usize, rows.len());
    db.execute_batch("ROLLBACK").unwrap();
    drop(db);
    // Stock SQLite in the same process is told that it is stock, and never gets an empty table for
    // an answer.
    let stock = open_stock(&path);
    assert_eq!(
        one::<String>(&stock, "SELECT onewrite_status()"),
        format!("in_effect=no: this database was opened through the VFS {:?}", common::STOCK.to_str().unwrap())
    );
    let (_, message) = explain(stats(&stock, "onewrite_stats").unwrap_err());
    assert!(message.contains(&format!("through the VFS {:?}", common::STOCK.to_str().unwrap())), "{message}");
    let (_, message) = explain(stats(&stock, "onewrite_stats('nowhere')").unwrap_err());
    assert!(message.contains("no such database"), "{message}");
}

#[test]
#[cfg_attr(any(feature = "portable", all(unix, not(target_os = "linux"))), ignore = "POSIX has no /proc")]
fn sql_tells_which_processes_use_a_database() {
    let dir = setup();
    let path = dir.path().join("used.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    let me = i64::from(std::process::id());
    let mine = |what: &str| format!("SELECT {what} FROM onewrite_who WHERE pid = {me}");
    assert_eq!(one::<String>(&db, &mine("state || ' ' || activity")), "running reading");
    assert!(one::<String>(&db, &mine("command")).contains("suite"));
    assert_eq!(one::<Option<f64>>(&db, &mine("writing_s")), None);
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(one::<String>(&db, &mine("activity || ' ' || typeof(writing_s) || schema")), "writing realmain");
    assert_eq!(one::<String>(&db, &mine("typeof(pid) || typeof(attached_s) || ships")), "integerinteger0");
    let line = one::<String>(&db, "PRAGMA onewrite_who");
    assert!(line.starts_with(&format!("pid={me}\tcommand=")) && line.contains("\tactivity=writing\t"), "{line}");
    db.execute_batch("COMMIT").unwrap();
    let (_, message) = explain(stats(&open_stock(&path), "onewrite_who").unwrap_err());
    assert!(message.contains(&format!("through the VFS {:?}", common::STOCK.to_str().unwrap())), "{message}");
    db.execute_batch(&format!("ATTACH 'file:{}' AS aux", dir.path().join("second.db").display())).unwrap();
    // Windows tells of no process that has a file open and is not attached.
    #[cfg(unix)]
    assert_eq!(one::<String>(&db, "SELECT activity || schema FROM onewrite_who('aux')"), "openaux");
}

#[test]
fn the_status_says_where_onewrite_is_not_in_effect() {
    let dir = setup();
    let path = dir.path().join("not.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    drop(db);
    let reader = open(&path, "mode=ro").unwrap();
    assert!(one::<String>(&reader, "PRAGMA onewrite_status").starts_with("in_effect=no: this connection only reads"));
}

#[test]
fn sql_tells_the_last_error_of_this_thread() {
    let dir = setup();
    open(&dir.path().join("x.db"), "logsize=8m").unwrap_err();
    let asks = Connection::open_in_memory().unwrap();
    let told = one::<Option<String>>(&asks, "SELECT onewrite_last_error()").unwrap();
    assert!(told.contains("\"logsize\" (do you mean log_size?)"), "{told}");
    open(&dir.path().join("x.db"), "x-logsize=8m").unwrap();
    assert_eq!(one::<Option<String>>(&asks, "SELECT onewrite_last_error()"), None);
}
