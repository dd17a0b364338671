//! The VFS, through SQLite's C API. One binary, for a build links each of them anew.

mod absorb;
#[cfg(unix)]
mod c_library;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod idle;
mod layout;
mod modes;
mod network;
mod panic;
#[cfg(unix)]
mod privileged;
#[cfg(unix)]
mod python;
mod remembered;
mod require;
#[cfg(unix)]
mod shell;
mod split;
mod waits;
