//! The engine `sql`: a stock SQLite on the VFS on the simulated disk.
//!
//! The disk of a registered VFS across crashes is in [`machine`]. A VFS on that disk that stores as
//! SQLite's own does is in [`plain`]; onewrite passes through to it. Connections are opened by
//! [`process`].
//!
//! Histories are run by [`history`], with `transact`, `overlap`, `events` and `deaths`. Those over
//! several databases are run by [`attached`], and those on threads by [`threads`], with `merges`.
//! Their SQL is drawn by [`statements`].
//!
//! States of a database are told apart by [`mod@print`]. The disk after a crash is judged by
//! [`check`], and recovered before that by `recover`.

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
