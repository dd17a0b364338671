//! A forked child cannot use the connections it inherits, may open new ones, and does the parent no
//! harm.

#![allow(unsafe_code)]

mod common;

use common::{explain, one, open, setup};
use rusqlite::ffi;

#[test]
fn a_child_gets_an_error_for_an_inherited_connection() {
    let dir = setup();
    let path = dir.path().join("fork.db");
    let own = dir.path().join("child.db");
    let db = open(&path, "").unwrap();
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2)").unwrap();
    // SAFETY: the child leaves through `_exit`, and no other thread of this program holds a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (code, _) = explain(db.execute_batch("INSERT INTO t VALUES (3); COMMIT").unwrap_err());
            assert_eq!(code & 0xff, ffi::SQLITE_IOERR);
            drop(db);
            let fresh = open(&own, "").unwrap();
            fresh.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (7)").unwrap();
            assert_eq!(one::<i64>(&fresh, "SELECT x FROM t"), 7);
        }));
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = -1;
    // SAFETY: waits for the child above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
    db.execute_batch("INSERT INTO t VALUES (4); COMMIT").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 7);
}
