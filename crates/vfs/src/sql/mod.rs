//! The SQL that every connection gets beside the VFS: three functions and the table
//! `onewrite_stats`.

mod attach;
mod functions;
mod library;
mod stats_table;

pub(crate) use attach::{attach, each_connection, refuse_all};
