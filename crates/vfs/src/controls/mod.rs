//! What SQLite asks of an open main database besides pages: file controls, pragmas, the journal mode.

mod control;
mod journal_mode;

pub(crate) use control::file_control;
