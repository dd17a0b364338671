//! The engine `sql`: a stock SQLite on the VFS on the simulated disk.
//!
//! [`machine`] is the disk that a registered VFS sees, whatever crashed meanwhile; [`plain`] is SQLite's own
//! way to store on that disk, which onewrite passes through to and which judges what onewrite left;
//! [`process`] opens connections; [`print`] tells states of a database apart; [`statements`] draws SQL;
//! [`attached`] has transactions over two and three databases alone;
//! [`check`] judges what a crash left; [`history`] runs histories (with `transact` and `deaths`).

// The two files of a history are counted through in several lists at once.
#![allow(clippy::needless_range_loop)]

pub mod attached;
pub mod check;
mod deaths;
pub mod history;
pub mod machine;
pub mod plain;
pub mod print;
pub mod process;
pub mod statements;
mod transact;
