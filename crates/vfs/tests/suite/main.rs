//! The VFS, through SQLite's C API. One binary, for a build links each of them anew.

mod absorb;
mod c_library;
#[path = "../common/mod.rs"]
mod common;
mod contract;
mod idle;
mod layout;
mod modes;
mod network;
mod panic;
mod privileged;
mod python;
mod remembered;
mod require;
mod shell;
mod split;
mod waits;
