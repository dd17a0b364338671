//! The SQL that every connection gets beside the VFS: three functions and the tables
//! `onewrite_stats` and `onewrite_who`.

mod attach;
mod functions;
mod library;
mod tables;

pub(crate) use attach::{attach, each_connection, refuse_all};
