//! onewrite as a SQLite VFS: the glue between SQLite's C interface and the engine in `onewrite-core`.
//!
//! Three ways in: the loadable extension (`.load ./libonewrite`), the C library with `onewrite.h`, and
//! [`register`] for Rust (most comfortably through the crate `onewrite-rusqlite`). The library is
//! linked to no SQLite: it calls the one that registers it, through the pointers in [`Api`]. Programs that
//! cannot name a VFS set the environment variable `ONEWRITE_DEFAULT=1` before they load the extension:
//! it is then the default one.
//!
//! Read in this order: `register` (entry points) → `vfs` (which files are ours) → `main_file` (engine, or
//! the VFS underneath) → `files` (callbacks of open files) → `control` (commit, pragmas). Beside
//! them: `split` (page splits), `ffi` (C declarations), `api` (SQLite's functions), `base` (the VFS underneath), `fault`
//! (errors on their way out), `fork`.

mod api;
mod base;
mod control;
mod fault;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod ffi;
mod files;
mod fork;
mod main_file;
mod register;
mod split;
mod vfs;

pub use api::{Api, CApi, VERSION_MIN};
pub use register::{
    DEFAULT_VARIABLE, RegisterError, VFS_NAME, last_error, onewrite_last_error, onewrite_register_api,
    onewrite_version, register, register_inside, register_over, register_with_disk, sqlite3_extension_init,
    sqlite3_onewrite_init,
};
