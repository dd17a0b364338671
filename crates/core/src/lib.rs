//! onewrite's core: how a small SQLite transaction becomes durable with one block write and one
//! flush, how recovery works, and how readers see snapshots meanwhile.
//!
//! It knows SQLite's *file format* (public and stable), not its C API. Everything runs on
//! [`disk::Disk`], so tests run it on a simulated disk. Exports: [`Engine`] and [`Connection`] for
//! the VFS, [`Repair`] for the command line, [`disk`] for other disks, [`inspect`] for readers of
//! the formats; for all programs [`environment`] and [`text`].

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod base;
mod checkpoint;
mod commit;
mod connection;
mod database;
pub mod disk;
pub mod inspect;
mod log;
mod pages;
mod pairing;
mod processes;
mod recovery;
#[cfg(feature = "research")]
mod research;
mod session;
mod shared;
mod sqlite_format;

pub use base::clock::Instant;
pub use base::error::{Error, Result};
pub use base::options::{Network, Options, Preset, Split, Updates, bytes as parse_bytes, duration as parse_duration};
pub use base::{rules, text};
pub use connection::pragma::NAMES as PRAGMAS;
pub use connection::{Asks, Connection, Engine, LockLevel, Mode, nap};
pub use disk::environment;
pub use disk::stats::Stats;
pub use pairing::replay::Report;
pub use recovery::repair::Repair;
