//! A drop-in `libsqlite3`: SQLite, patched to split pages as `split.c` says, with onewrite's VFS
//! registered when it initialises. Built as a shared and as a static library; see `README.md` at
//! the root.
//!
//! Not for Rust programs, which have `onewrite-rusqlite`: the symbols here are those of the SQLite
//! that other crates bring along, and must not meet them in one program.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

/// Called by `sqlite3_initialize()`, under its mutex (`SQLITE_EXTRA_INIT_MUTEXED`). An error, as of
/// a bad value of `ONEWRITE_DEFAULT`, becomes the error of every open.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_sqlite_init(_: *const c_char) -> c_int {
    let api = onewrite::linked_api!(true);
    // SAFETY: the functions are those of the SQLite in this library.
    unsafe { onewrite::register_inside(&api) }
}

/// Called with every connection that opens (`SQLITE_EXTRA_AUTOEXT`), before the automatic
/// extensions are: the first call adds onewrite's to them.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_sqlite_connect(_: *mut c_void) -> c_int {
    // SAFETY: the function is that of the SQLite in this library.
    unsafe { onewrite::serve_connections(onewrite::linked_api!(true).auto_extension) }
}
