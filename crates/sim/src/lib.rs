//! Crash campaigns: histories of transactions on a simulated disk whose power is cut at every
//! operation, and an oracle of the states that may be left.
//!
//! [`model`] has the states of a database, [`pager`] calls core as SQLite's pager does, [`hook`]
//! meets every crash point of one run, [`check`] judges the disk after a crash. [`history`] draws
//! histories from seeds, [`small`] enumerates small ones. In [`processes`] several processes share
//! a disk and die, and in [`threads`] their threads run in an order that [`baton`] draws.

pub mod baton;
#[cfg(feature = "canary")]
pub mod canary;
pub mod check;
pub mod history;
pub mod hook;
pub mod model;
pub mod oracle;
pub mod pager;
pub mod processes;
pub mod small;
pub mod sql;
pub mod threads;
pub mod wal_mode;
