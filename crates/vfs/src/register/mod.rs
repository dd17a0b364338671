//! Registering onewrite with a SQLite library, from Rust, from C and as a loadable extension.

mod entry;
mod registry;

pub use entry::{
    DEFAULT_VARIABLE, last_error, onewrite_last_error, onewrite_register_api, register_inside, sqlite3_extension_init,
    sqlite3_onewrite_default_init, sqlite3_onewrite_init,
};
pub use registry::{RegisterError, VFS_NAME, register, register_over, register_with_disk, serve_connections};
