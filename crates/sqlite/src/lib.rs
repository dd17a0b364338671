//! A drop-in `libsqlite3`: SQLite, patched to split pages as `split.c` says, with onewrite's VFS registered
//! when it initialises. Built as a shared and as a static library; see `README.md` at the root.
//!
//! Not for Rust programs, which have `onewrite-rusqlite`: the symbols here are those of the SQLite that
//! other crates bring along, and must not meet them in one program.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use onewrite::Api;
use onewrite::ffi::{AnyFn, Vfs};

// As `sqlite3.h` declares them.
unsafe extern "C" {
    fn sqlite3_libversion_number() -> c_int;
    fn sqlite3_vfs_find(name: *const c_char) -> *mut Vfs;
    fn sqlite3_vfs_register(vfs: *mut Vfs, make_default: c_int) -> c_int;
    fn sqlite3_malloc64(bytes: u64) -> *mut c_void;
    fn sqlite3_log(code: c_int, format: *const c_char, ...);
    fn sqlite3_uri_parameter(name: *const c_char, parameter: *const c_char) -> *const c_char;
    fn sqlite3_uri_boolean(name: *const c_char, parameter: *const c_char, otherwise: c_int) -> c_int;
    fn sqlite3_uri_key(name: *const c_char, index: c_int) -> *const c_char;
    fn sqlite3_filename_journal(name: *const c_char) -> *const c_char;
    fn sqlite3_filename_wal(name: *const c_char) -> *const c_char;
    fn sqlite3_auto_extension(entry: Option<AnyFn>) -> c_int;
}

/// Called by `sqlite3_initialize()`, under its mutex (`SQLITE_EXTRA_INIT_MUTEXED`). What is wrong, a bad value of
/// `ONEWRITE_DEFAULT` for one, is the error that every open fails with.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_sqlite_init(_: *const c_char) -> c_int {
    let api = Api {
        asks_split: true,
        libversion_number: sqlite3_libversion_number,
        vfs_find: sqlite3_vfs_find,
        vfs_register: sqlite3_vfs_register,
        malloc64: sqlite3_malloc64,
        log: sqlite3_log,
        uri_parameter: sqlite3_uri_parameter,
        uri_boolean: sqlite3_uri_boolean,
        uri_key: sqlite3_uri_key,
        filename_journal: sqlite3_filename_journal,
        filename_wal: sqlite3_filename_wal,
        auto_extension: sqlite3_auto_extension,
    };
    // SAFETY: the functions are those of the SQLite in this library.
    unsafe { onewrite::register_inside(&api) }
}

/// Called with every connection that opens (`SQLITE_EXTRA_AUTOEXT`), before the automatic extensions are: the first call
/// adds onewrite's to them.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_sqlite_connect(_: *mut c_void) -> c_int {
    // SAFETY: the function is that of the SQLite in this library.
    unsafe { onewrite::serve_connections(sqlite3_auto_extension) }
}
