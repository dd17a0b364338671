//! What every connection gets in SQL beside the VFS: three functions and the table `onewrite_stats`.

mod attach;
mod functions;
mod library;
mod stats_table;

pub(crate) use attach::{attach, each_connection, refuse_all};
