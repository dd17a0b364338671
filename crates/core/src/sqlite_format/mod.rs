//! The meaning of SQLite's own bytes: header, page, rollback journal.

pub mod home;
pub mod journal;
pub mod node;
