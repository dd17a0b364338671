//! onewrite's core: how a small SQLite transaction becomes durable with one block write and one
//! flush, how it is recovered, and how readers see snapshots meanwhile.
//!
//! Knows SQLite's *file format* (public and stable) and nothing of its C API. Everything runs on
//! [`disk::Disk`], so all of it runs on a simulated disk in tests. What is exported is [`Engine`] and [`Connection`] for the
//! VFS, [`Repair`] for the command line, [`disk`] for those that bring another one, [`inspect`] for those that only look, and what all
//! programs share: [`environment`] and [`text`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ahead;
mod aside;
mod beside;
mod chains;
mod checkpoint;
mod closed;
mod commit;
mod connection;
mod database;
mod deadline;
mod decide;
pub mod disk;
mod error;
mod evidence;
mod frontier;
mod growth;
mod home;
mod image_file;
pub mod inspect;
mod journal;
mod layout;
mod locks;
mod log;
mod memory;
mod node;
mod options;
mod pairing;
mod pragma;
mod procs;
mod queue;
#[cfg(test)]
mod queue_tests;
mod read;
mod recover;
mod repair;
mod replay;
mod research;
mod roll_back;
pub mod rules;
mod scheme;
mod several;
mod snapshots;
mod stats;
mod sweep;
mod sync;
mod table;
pub mod text;
mod trailer;
mod txn;
mod types;
mod undo;
mod wal;

pub use connection::{Connection, Engine, LockLevel, Mode, nap};
pub use disk::environment;
pub use error::{Error, Result};
pub use options::{Options, Preset, Split, Updates};
pub use pragma::NAMES as PRAGMAS;
pub use repair::Repair;
pub use replay::Report;
pub use stats::Stats;
