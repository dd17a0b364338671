//! `require=1`: where onewrite would not be in effect, the open is an error that says why.

use crate::common;

use std::fs;
use std::path::Path;

use common::{explain, logged, one, open, open_stock, setup};
use rusqlite::{Connection, ffi};

const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t(v) VALUES ('one'), ('two')";

/// The open fails, and says this.
fn refused(path: &Path, parameters: &str, why: &str) {
    let (code, message) = explain(open(path, &format!("require=1&{parameters}")).unwrap_err());
    assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN, "{message}");
    let (_, said) = logged(path).unwrap();
    assert!(said.contains("require=1: onewrite would not be in effect") && said.contains(why), "{said}");
}

fn plain(path: &Path) {
    open_stock(path).execute_batch(TABLE).unwrap();
}

/// A process of root may ignore permissions.
fn is_root(path: &Path) -> bool {
    fs::OpenOptions::new().write(true).open(path).is_ok()
}

#[test]
fn a_database_that_is_served_is_opened() {
    let dir = setup();
    let path = dir.path().join("served.db");
    for _ in 0..2 {
        let db = open(&path, "require=1").unwrap();
        db.execute_batch("CREATE TABLE IF NOT EXISTS t(x); INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(one::<String>(&db, "PRAGMA journal_mode=wal"), "wal");
        assert_eq!(one::<String>(&db, "PRAGMA onewrite_require"), "1");
        let other = open(&path, "").unwrap();
        assert_eq!(one::<String>(&other, "PRAGMA onewrite_require"), "0");
        // One that only reads joins those that write.
        let reader = open(&path, "mode=ro&require=1").unwrap();
        assert!(one::<i64>(&reader, "SELECT count(*) FROM t") > 0);
    }
}

#[test]
fn an_open_past_the_engine_is_refused() {
    let dir = setup();
    let path = dir.path().join("past.db");
    plain(&path);
    refused(&path, "mode=ro", "opened to read only");
    refused(&path, "immutable=1", "immutable=1");
    refused(&path, "mode=ro&nolock=1", "opened to read only");
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    if !is_root(&path) {
        refused(&path, "", "cannot be opened to write");
    }
}

#[test]
fn a_database_that_stays_in_wal_mode_is_refused() {
    let dir = setup();
    let path = dir.path().join("wal.db");
    let stock = open_stock(&path);
    stock.execute_batch(&format!("PRAGMA journal_mode=wal; {TABLE}")).unwrap();
    refused(&path, "", "in WAL mode");
    refused(&path, "wal=stock", "wal=stock leaves it there");
    let db = open(&path, "wal=stock").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    let status = one::<String>(&db, "PRAGMA onewrite_status");
    assert!(status.starts_with("in_effect=no: the database is in WAL mode"), "{status}");
}

#[test]
fn a_live_connection_does_not_step_aside() {
    let dir = setup();
    let path = dir.path().join("live.db");
    let db = open(&path, "require=1&wal=stock").unwrap();
    db.execute_batch(TABLE).unwrap();
    let attached = dir.path().join("attached.db");
    db.execute_batch(&format!("ATTACH 'file:{}' AS a; CREATE TABLE a.u(x)", attached.display())).unwrap();
    let fails = |db: &Connection, sql: &str| {
        let (code, message) = explain(db.execute_batch(sql).unwrap_err());
        assert_eq!(code, ffi::SQLITE_ERROR, "{sql}: {message}");
        let said = one::<String>(db, "PRAGMA onewrite_error");
        assert!(said.contains("require=1") && said.contains("step aside"), "{sql}: {said}");
    };
    db.execute_batch("BEGIN; DELETE FROM t WHERE 0; INSERT INTO u VALUES (3); UPDATE t SET v = v; COMMIT").unwrap();
    db.execute_batch(&format!("DETACH a; ATTACH 'file:{}?scheme=dash' AS a", attached.display())).unwrap();
    fails(&db, "BEGIN; INSERT INTO t(v) VALUES ('three'); INSERT INTO u VALUES (3); COMMIT");
    assert!(db.is_autocommit() || db.execute_batch("ROLLBACK").is_ok());
    db.execute_batch("DETACH a; PRAGMA page_size=1024").unwrap();
    fails(&db, "VACUUM");
    fails(&db, "PRAGMA journal_mode=wal");
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    db.execute_batch("INSERT INTO t(v) VALUES ('three'); PRAGMA onewrite_require=0; VACUUM").unwrap();
    assert_eq!(one::<i64>(&db, "PRAGMA page_size"), 1024);
    drop(db);
    assert_eq!(one::<String>(&open_stock(&path), "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 3);
}

#[test]
fn a_file_that_is_no_database_is_not_made_one() {
    let dir = setup();
    let path = dir.path().join("garbage.db");
    fs::write(&path, [0x55; 8192]).unwrap();
    let db = open(&path, "require=1").unwrap();
    db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_RESET_DATABASE, true).unwrap();
    assert_eq!(explain(db.execute_batch("VACUUM").unwrap_err()).0, ffi::SQLITE_NOTADB);
    assert_eq!(fs::read(&path).unwrap(), [0x55; 8192]);
}
