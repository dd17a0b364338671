//! onewrite's core: how a small SQLite transaction becomes durable with one block write and one
//! flush, how it is recovered, and how readers see snapshots meanwhile.
//!
//! Knows SQLite's *file format* (public and stable) and nothing of its C API. Everything runs on
//! [`disk::Disk`], so all of it runs on a simulated disk in tests.

pub mod disk;
pub mod error;
pub mod options;

pub use error::{Error, Result};
