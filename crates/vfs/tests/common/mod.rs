//! Shared by the tests: SQLite's error log, directories, the built libraries, other programs.

#![allow(dead_code, unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, ffi};
use tempfile::TempDir;

static LOG: Mutex<Vec<(c_int, String)>> = Mutex::new(Vec::new());

extern "C" fn keep(_: *mut c_void, code: c_int, message: *const c_char) {
    // SAFETY: SQLite passes a C string.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    LOG.lock().unwrap().push((code, message));
}

/// Catches SQLite's error log and registers onewrite; every test starts with it.
pub fn setup() -> TempDir {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let keep: extern "C" fn(*mut c_void, c_int, *const c_char) = keep;
        // SAFETY: before SQLite is initialised, with the arguments of this setting.
        let rc = unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_LOG, keep, std::ptr::null_mut::<c_void>()) };
        assert_eq!(rc, ffi::SQLITE_OK);
        onewrite_rusqlite::register().unwrap();
    });
    tempfile::tempdir().unwrap()
}

/// The line of SQLite's error log that names `path`, if there is one.
pub fn logged(path: &Path) -> Option<(c_int, String)> {
    let path = path.to_string_lossy().into_owned();
    LOG.lock().unwrap().iter().rev().find(|(_, message)| message.contains(&path)).cloned()
}

pub fn open(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    onewrite_rusqlite::open(format!("file:{}?{parameters}", path.display()))
}

/// SQLite's own VFS.
pub const STOCK: &std::ffi::CStr = if cfg!(windows) { c"win32" } else { c"unix" };
/// It, as a parameter of a URI.
pub const BY_STOCK: &str = if cfg!(windows) { "vfs=win32" } else { "vfs=unix" };

pub fn open_stock(path: &Path) -> Connection {
    Connection::open_with_flags_and_vfs(path, OpenFlags::default(), STOCK).unwrap()
}

pub fn one<T: rusqlite::types::FromSql>(db: &Connection, sql: &str) -> T {
    db.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// The message and extended code of an error of SQLite's.
pub fn explain(error: rusqlite::Error) -> (c_int, String) {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => (code.extended_code, message.unwrap_or_default()),
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.extended_code, msg),
        other => panic!("not an error of SQLite's: {other}"),
    }
}

/// A file of the library as built for these tests.
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = f();
    (done, begun.elapsed())
}

/// Runs it until it takes less than the limit: a wait is there each time, a busy machine's now and
/// then.
pub fn within<T>(limit: Duration, mut f: impl FnMut() -> T) -> (T, Duration) {
    for _ in 0..10 {
        let (done, took) = timed(&mut f);
        if took < limit {
            return (done, took);
        }
    }
    panic!("it took {limit:?} or longer each time");
}

pub fn built(file: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    // Cargo leaves it beside the test program, or one up when the library itself was asked for.
    let places = [deps.join(file), deps.parent().unwrap().join(file)];
    places.iter().find(|path| path.exists()).cloned().unwrap_or_else(|| panic!("{file} is not in {places:?}"))
}

/// A Python whose `sqlite3` module loads extensions: Debian's does, others often do not. Without
/// one it prints a line and returns `None`.
pub fn python() -> Option<&'static str> {
    let probe = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
    let loads = |python: &&str| Command::new(python).args(["-c", probe]).output().is_ok_and(|out| out.status.success());
    let found = ["/usr/bin/python3", "python3"].into_iter().find(loads);
    if found.is_none() {
        println!("skipped: no python3 whose sqlite3 module loads extensions");
    }
    found
}

/// Whether a program can be started; tests that need it say so and pass where it is missing.
pub fn has_program(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success())
}
