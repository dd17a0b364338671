//! onewrite as the default VFS, in a process of its own: the default is the whole process's.

mod common;

use common::{one, setup};
use rusqlite::Connection;

#[test]
fn a_connection_that_names_no_vfs_uses_the_default() {
    let dir = setup();
    let path = dir.path().join("default.db");
    let before = Connection::open(&path).unwrap();
    assert!(before.query_row("PRAGMA onewrite_scheme", [], |_| Ok(())).is_err());
    drop(before);
    onewrite_rusqlite::register_default().unwrap();
    let db = Connection::open(&path).unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA onewrite_scheme"), "log");
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1); VACUUM").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT x FROM t"), 1);
}
