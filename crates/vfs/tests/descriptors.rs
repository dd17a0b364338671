//! Codes where a file cannot be opened. One test, for it takes all descriptors of the process.

#![cfg(unix)]
#![allow(unsafe_code)]

mod common;

use std::ffi::{CString, c_int};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{explain, one, open, setup};
use onewrite::VFS_NAME;
use rusqlite::ffi;

/// The code of `sqlite3_open_v2`, and the system's error number.
fn open_in_vain(path: &Path) -> (c_int, c_int) {
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let mut db = std::ptr::null_mut();
    let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE;
    // SAFETY: the texts live across the call, and the connection is closed once.
    unsafe {
        let rc = ffi::sqlite3_open_v2(name.as_ptr(), &raw mut db, flags, VFS_NAME.as_ptr());
        let said = ffi::sqlite3_system_errno(db);
        ffi::sqlite3_close(db);
        (rc, said)
    }
}

/// Runs `f` as a user for whom permissions hold.
fn as_nobody<T>(f: impl FnOnce() -> T + Send) -> T
where
    T: Send,
{
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            // Elsewhere a superuser stays one, and the test skips.
            // SAFETY: changes only the rights of this thread to files; without the right to,
            // changes nothing.
            #[cfg(target_os = "linux")]
            unsafe {
                libc::setfsuid(65534)
            };
            f()
        });
        run.join().unwrap()
    })
}

#[test]
fn a_file_that_cannot_be_opened_has_the_code_that_stock_sqlite_gives_it() {
    let dir = setup();
    assert_eq!(open_in_vain(&dir.path().join("no/such.db")), (ffi::SQLITE_CANTOPEN, libc::ENOENT));
    assert_eq!(open_in_vain(dir.path()), (ffi::SQLITE_CANTOPEN, libc::EISDIR));

    // A directory in the place of the journal.
    let path = dir.path().join("journal.db");
    fs::create_dir(dir.path().join("journal.db-journal")).unwrap();
    let created = open(&path, "").unwrap().execute_batch("CREATE TABLE t(x)");
    assert_eq!(explain(created.unwrap_err()).0 & 0xff, ffi::SQLITE_CANTOPEN);

    // A directory in which nothing can be made.
    let shut = dir.path().join("shut");
    let path = shut.join("a.db");
    fs::create_dir(&shut).unwrap();
    open(&path, "").unwrap().execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    fs::remove_file(shut.join("a.db-onewrite")).unwrap();
    for (path, mode) in [(dir.path(), 0o755), (&shut, 0o555), (&path, 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let code = as_nobody(|| {
        let db = open(&path, "").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT x FROM t"), 1);
        explain(db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err()).0
    });
    assert_eq!(code, ffi::SQLITE_READONLY_DIRECTORY);

    // No descriptor left for the log.
    let path = dir.path().join("few.db");
    open(&path, "").unwrap().execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    fs::remove_file(dir.path().join("few.db-onewrite")).unwrap();
    let db = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT x FROM t"), 1);
    let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: a valid structure; lowers the limit of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
    let taken: Vec<File> = std::iter::repeat_with(|| File::open("/dev/null")).map_while(Result::ok).collect();
    assert_eq!(explain(db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err()).0, ffi::SQLITE_CANTOPEN);
    assert_eq!(open_in_vain(&dir.path().join("new.db")), (ffi::SQLITE_CANTOPEN, libc::EMFILE));
    drop(taken);
    db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM t"), 3);
}
