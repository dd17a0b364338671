//! The questions that SQLite asks of an open main database: file controls, pragmas, the journal
//! mode.

mod control;
mod journal_mode;

pub(crate) use control::file_control;
