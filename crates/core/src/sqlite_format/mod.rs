//! SQLite's own bytes: header, page, rollback journal, WAL.

pub mod home;
pub mod journal;
pub mod node;
pub mod wal;
