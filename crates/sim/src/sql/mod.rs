//! The engine `sql`: a stock SQLite on the VFS on the simulated disk.
//!
//! - [`machine`]: the disk of a registered VFS across crashes.
//! - [`plain`]: SQLite's own storage on that disk, to which onewrite passes through.
//! - [`process`]: opens connections.
//! - [`mod@print`]: tells states of a database apart.
//! - [`statements`]: draws SQL.
//! - [`history`]: runs histories, with `transact`, `overlap`, `events` and `deaths`.
//! - [`attached`]: runs histories of transactions over several databases.
//! - [`threads`]: runs histories on threads, with `merges`.
//! - [`check`]: judges the disk after a crash.
//! - `recover`: runs `onewrite recover` before that judgement.

// The two files of a history index several lists at once.
#![allow(clippy::needless_range_loop)]

pub mod attached;
pub mod check;
mod deaths;
mod events;
pub mod history;
pub mod machine;
mod merges;
mod overlap;
pub mod plain;
pub mod print;
pub mod process;
mod recover;
pub mod statements;
pub mod threads;
mod transact;
