//! The tables of functions that SQLite calls: of the VFS, of a database and its journal, of a
//! super-journal.

mod files;
mod registered;
mod super_journal;
mod vfs;

pub(crate) use registered::Onewrite;
pub(crate) use vfs::structure;
