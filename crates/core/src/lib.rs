//! onewrite's core: how a small SQLite transaction becomes durable with one block write and one
//! flush, how it is recovered, and how readers see snapshots meanwhile.
//!
//! Knows SQLite's *file format* (public and stable) and nothing of its C API. Everything runs on
//! [`disk::Disk`], so all of it runs on a simulated disk in tests.

mod ahead;
mod aside;
pub mod beside;
pub mod checkpoint;
pub mod commit;
pub mod connection;
pub mod database;
pub mod disk;
pub mod error;
mod growth;
pub mod home;
mod image_file;
pub mod journal;
pub mod layout;
pub mod locks;
pub mod log;
mod memory;
pub mod node;
pub mod options;
pub mod pragma;
pub mod procs;
pub mod queue;
#[cfg(test)]
mod queue_tests;
mod read;
pub mod recover;
pub mod repair;
pub mod replay;
mod research;
pub mod roll_back;
pub mod rules;
pub mod scheme;
pub mod snapshots;
pub mod stats;
mod sync;
pub mod table;
pub mod trailer;
pub mod txn;
pub mod types;
pub mod undo;
pub mod wal;

pub use connection::{Connection, Engine, LockLevel, Mode, nap};
pub use error::{Error, Result};
