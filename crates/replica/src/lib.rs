//! `vfs=onewrite-replica`: a SQLite VFS that reads a database out of its store, without a copy of
//! it on this machine.
//!
//! The database is read-only. Pages are fetched when SQLite asks for them, kept in memory, and read
//! ahead of a scan. Each read transaction has one state of the store, the newest when it began, or
//! one of the past. `docs/replication.md` is the user's page.
//!
//! | module | duty |
//! |---|---|
//! | [`state`] | one state of the database: which file of the store has which page |
//! | [`replica`] | the newest state and its pages, shared by connections of a process |
//! | [`hydrate`] | a local copy, made in the background |
//! | [`reader`] | one connection: the state of its transaction, its pragmas |
//! | [`settings`] | the parameters of a database's URI |
//! | `vfs` | the functions that SQLite calls |

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod hydrate;
pub mod reader;
pub mod replica;
pub mod settings;
pub mod state;
mod vfs;

pub use vfs::{VFS_NAME, register, sqlite3_onewritereplica_init};
