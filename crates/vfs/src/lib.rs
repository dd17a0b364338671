//! onewrite as a SQLite VFS: the glue between SQLite's C interface and the engine in
//! `onewrite-core`.
//!
//! Three ways in: the loadable extension (`.load ./libonewrite`), the C library with `onewrite.h`,
//! and [`register()`] for Rust, most comfortably through the crate `onewrite-rusqlite`. The library
//! is linked to no SQLite. It calls the one that registers it, through the pointers in [`Api`]. A
//! program that cannot name a VFS loads the extension by `sqlite3_onewrite_default_init`, or sets
//! `ONEWRITE_DEFAULT=1` before it loads it; onewrite is the default VFS then.
//!
//! Folders, in the order of their imports: each imports only from those above it.
//!
//! | folder | duty |
//! |---|---|
//! | `process/` | the process: forks, other copies of the library, the log of errors, a lock |
//! | `sqlite/` | SQLite's C interface: declarations, functions as pointers, text |
//! | `host/` | the foundations of a VFS: the VFS underneath, disk, engine, errors |
//! | `settings/` | which settings a connection may ask for |
//! | `database/` | one open main database: engine, or the VFS underneath |
//! | `controls/` | SQLite's questions about it: file controls, pragmas, the journal mode |
//! | `callbacks/` | the tables of functions that SQLite calls |
//! | `sql/` | the SQL of every connection: functions and a table |
//! | `register/` | registering with a SQLite library, and the entry points |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod callbacks;
mod controls;
mod database;
mod host;
mod process;
mod register;
mod settings;
mod sql;
mod sqlite;

pub use host::base::STOCK_VFS;
pub use process::log::LOG_VARIABLE;
pub use process::version::onewrite_version;
pub use register::{
    DEFAULT_VARIABLE, RegisterError, VFS_NAME, last_error, onewrite_last_error, onewrite_register_api, register,
    register_inside, register_over, register_with_disk, serve_connections, sqlite3_extension_init,
    sqlite3_onewrite_default_init, sqlite3_onewrite_init,
};
pub use sqlite::api::{Api, CApi, VERSION_MIN};
#[doc(hidden)]
pub use sqlite::api::{buffer, sqlite_copy, text};
#[doc(hidden)]
pub use sqlite::ffi;
