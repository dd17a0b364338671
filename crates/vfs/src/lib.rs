//! onewrite as a SQLite VFS: the glue between SQLite's C interface and the engine in `onewrite-core`.
//!
//! Three ways in: the loadable extension (`.load ./libonewrite`), the C library with `onewrite.h`, and
//! [`register`] for Rust (most comfortably through the crate `onewrite-rusqlite`). The library is
//! linked to no SQLite: it calls the one that registers it, through the pointers in [`Api`]. Programs that
//! cannot name a VFS load the extension by its entry point `sqlite3_onewrite_default_init`, or set the environment
//! variable `ONEWRITE_DEFAULT=1` before they load it: it is then the default one.
//!
//! Read in this order: `register` (entry points) → `vfs` (which files are ours) → `main_file` (engine, or
//! the VFS underneath) → `files` (callbacks of open files) → `control` (commit, pragmas). Beside
//! them: `journal_mode` (requests for WAL mode), `split` (page splits), `ffi` (C declarations), `api` (SQLite's functions), `base` (the VFS underneath), `fault`
//! (errors on their way out), `log`, `uri` (which keys are whose), `functions` and `stats_table` (what SQL sees), `fork`, `keeper` (idle databases).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod api;
mod base;
mod control;
mod fault;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod ffi;
mod files;
mod fork;
mod functions;
mod journal_mode;
mod keeper;
mod log;
mod main_file;
mod register;
mod siblings;
mod split;
mod stats_table;
mod super_journal;
mod taken;
mod uri;
mod vfs;

pub use api::{Api, CApi, VERSION_MIN};
pub use log::LOG_VARIABLE;
pub use register::{
    DEFAULT_VARIABLE, RegisterError, VFS_NAME, last_error, onewrite_last_error, onewrite_register_api,
    onewrite_version, register, register_inside, register_over, register_with_disk, serve_connections,
    sqlite3_extension_init, sqlite3_onewrite_default_init, sqlite3_onewrite_init,
};
