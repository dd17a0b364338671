//! A database on a file system that machines share is left to SQLite's own modes, unless
//! `network=trust` says that one machine uses it. The disk calls every directory `share` one.

#![allow(unsafe_code)]

use crate::common;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use common::{explain, logged, one, open_stock, setup};
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use rusqlite::{Connection, OpenFlags, ffi};
use tempfile::TempDir;

struct SharedDisk(RealDisk);

impl Disk for SharedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(path, mode)
    }

    fn shared_between_machines(&self, path: &Path) -> Option<String> {
        path.parent()?.ends_with("share").then(|| "NFS".to_owned())
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, syncs_all, temp_file
    );
}

/// The directory, and a name in its directory `share`.
fn share(name: &str) -> (TempDir, PathBuf) {
    let dir = setup();
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let disk = Arc::new(SharedDisk(RealDisk::new()));
        // SAFETY: SQLite's own functions.
        unsafe { onewrite::register_over(&onewrite_rusqlite::api(), c"sharing", disk, common::STOCK).unwrap() };
    });
    fs::create_dir(dir.path().join("share")).unwrap();
    let path = dir.path().join("share").join(name);
    (dir, path)
}

fn open(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    let uri = format!("file:{}?vfs=sharing&{parameters}", path.display());
    Connection::open_with_flags(uri, OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI)
}

fn status(db: &Connection) -> String {
    one(db, "PRAGMA onewrite_status")
}

fn beside(path: &Path, suffix: &str) -> bool {
    PathBuf::from(format!("{}{suffix}", path.display())).exists()
}

#[test]
fn a_shared_file_system_is_named_and_left_to_sqlite() {
    let (_dir, path) = share("left.db");
    for journal in ["delete", "persist", "truncate", "memory", "wal"] {
        let db = open(&path, "").unwrap();
        assert_eq!(one::<String>(&db, &format!("PRAGMA journal_mode = {journal}")), journal);
        db.execute_batch("CREATE TABLE IF NOT EXISTS t(x); DELETE FROM t; INSERT INTO t VALUES (1)").unwrap();
        db.execute_batch("BEGIN; INSERT INTO t VALUES (2); ROLLBACK; BEGIN; INSERT INTO t VALUES (3)").unwrap();
        assert_eq!(beside(&path, "-wal"), journal == "wal");
        let stock = open_stock(&path);
        assert_eq!(one::<i64>(&stock, "SELECT sum(x) FROM t"), 1, "{journal}");
        db.execute_batch("COMMIT").unwrap();
        assert_eq!(one::<i64>(&stock, "SELECT sum(x) FROM t"), 4, "{journal}");
        stock.execute_batch("INSERT INTO t VALUES (5)").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 9, "{journal}");
        assert!(!beside(&path, "-onewrite"), "{journal}");
        let said = status(&db);
        assert!(said.starts_with("in_effect=no:") && said.contains("lies on NFS"), "{said}");
        let (_, message) = explain(db.query_row("PRAGMA onewrite_stats", [], |_| Ok(())).unwrap_err());
        assert!(message.contains("lies on NFS"), "{message}");
        let reader = open(&path, "mode=ro").unwrap();
        assert_eq!(one::<i64>(&reader, "SELECT sum(x) FROM t"), 9, "{journal}");
        assert!(status(&reader).contains("lies on NFS"));
    }
    assert_eq!(one::<String>(&open_stock(&path), "PRAGMA integrity_check"), "ok");
}

#[test]
fn require_is_refused_and_trust_is_served() {
    let (dir, path) = share("trusted.db");
    let (code, _) = explain(open(&path, "require=1").unwrap_err());
    assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
    let (_, said) = logged(&path).unwrap();
    assert!(said.contains("require=1: onewrite would not be in effect") && said.contains("lies on NFS"), "{said}");
    assert!(!path.exists());
    let db = open(&path, "require=1&network=trust").unwrap();
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(status(&db).lines().next(), Some("in_effect=yes"));
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_network"), "trust");
    // Within a process all connections are served, or none.
    let second = open(&path, "").unwrap();
    assert_eq!(status(&second).lines().next(), Some("in_effect=yes"));
    assert!(open(&path, "network=perhaps").is_err());
    let local = open(&dir.path().join("local.db"), "require=1").unwrap();
    assert_eq!(one::<String>(&local, "PRAGMA onewrite_network"), "stock");
}

#[test]
fn a_connection_that_was_left_to_sqlite_joins_one_that_trusts() {
    let (_dir, path) = share("joins.db");
    let left = open(&path, "").unwrap();
    left.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    let trusts = open(&path, "network=trust").unwrap();
    trusts.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(one::<i64>(&left, "SELECT sum(x) FROM t"), 3);
    left.execute_batch("INSERT INTO t VALUES (3)").unwrap();
    assert_eq!(one::<i64>(&trusts, "SELECT sum(x) FROM t"), 6);
    drop((left, trusts));
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT sum(x) FROM t"), 6);
}

#[test]
fn a_marked_database_is_an_error_that_says_how_to_open_it() {
    let (_dir, path) = share("marked.db");
    let db = open(&path, "network=trust&sticky=1").unwrap();
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    drop(db);
    for parameters in ["", "mode=ro"] {
        let (code, _) = explain(open(&path, parameters).unwrap_err());
        assert_eq!(code & 0xff, ffi::SQLITE_CANTOPEN);
        let (_, said) = logged(&path).unwrap();
        assert!(said.contains("network=trust") && said.contains("in its log"), "{said}");
    }
    let trusts = open(&path, "network=trust").unwrap();
    assert_eq!(one::<i64>(&trusts, "SELECT x FROM t"), 1);
    drop(trusts);
    assert_eq!(one::<i64>(&open(&path, "").unwrap(), "SELECT x FROM t"), 1);
}

#[test]
fn a_transaction_over_a_shared_and_a_local_file_is_whole() {
    let (dir, path) = share("remote.db");
    let (second, local) = (path.with_file_name("second.db"), dir.path().join("local.db"));
    let db = open(&path, "").unwrap();
    for (name, file) in [("second", &second), ("here", &local)] {
        db.execute_batch(&format!("ATTACH 'file:{}?vfs=sharing' AS {name}", file.display())).unwrap();
        db.execute_batch(&format!("CREATE TABLE {name}.t(x)")).unwrap();
    }
    db.execute_batch("CREATE TABLE main.t(x)").unwrap();
    let all = "INSERT INTO main.t VALUES (1); INSERT INTO second.t VALUES (1); INSERT INTO here.t VALUES (1)";
    db.execute_batch(&format!("BEGIN; {all}; COMMIT; BEGIN; {all}; ROLLBACK")).unwrap();
    db.execute_batch("BEGIN; INSERT INTO main.t VALUES (1); INSERT INTO second.t VALUES (1); COMMIT").unwrap();
    assert!(one::<String>(&db, "PRAGMA here.onewrite_status").starts_with("in_effect=yes"));
    drop(db);
    for (file, rows) in [(&path, 2), (&second, 2), (&local, 1)] {
        assert_eq!(one::<i64>(&open_stock(file), "SELECT count(*) FROM t"), rows, "{}", file.display());
    }
    let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
    assert_eq!(names, 2, "no journal is left");
}
