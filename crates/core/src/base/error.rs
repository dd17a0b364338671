//! Errors, in the classes a caller acts on.

use std::io;
use std::path::Path;

use crate::base::types::PageNo;

/// Result of a core operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with a message. Its class decides the SQLite result code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another connection or process holds a lock; nothing was changed, and a later try may
    /// succeed.
    #[error("{0}")]
    Busy(String),
    /// The snapshot is older than the newest commit: start over.
    #[error("the snapshot of this transaction is no longer the newest state; roll back and start again")]
    BusySnapshot,
    /// The transaction needs the database alone, and other processes have it open: roll back.
    #[error("{0}")]
    NotAlone(String),
    /// No room on the disk; nothing acknowledged is lost.
    #[error("{0}")]
    Full(String),
    /// No memory; nothing acknowledged is lost.
    #[error("out of memory")]
    NoMemory,
    /// Reading or writing failed.
    #[error("{what}: {error}")]
    Io {
        /// Operation and file.
        what: String,
        /// Not a source: the message has it, and a chain would repeat it.
        error: io::Error,
    },
    /// Pages came behind FCNTL_SYNC and their journal is gone: a rollback, and SQLite drops its
    /// cache as at an I/O error.
    #[error("cannot commit pages that were written behind FCNTL_SYNC: {0}")]
    WrittenLate(String),
    /// A write or flush failed, or home was overwritten.
    #[error("the database is closed to use after a failure ({0}); close all connections and open it again to recover")]
    Poisoned(String),
    /// The store was too slow or belongs to another database. Whether it has the transaction is
    /// unknown.
    #[error("{0}")]
    Unshipped(String),
    /// The database or its log is contradictory.
    #[error("{0}")]
    Corrupt(String),
    /// The file is not a SQLite database.
    #[error("{0}")]
    NotADatabase(String),
    /// The database cannot be opened; the message gives the remedy.
    #[error("{0}")]
    CantOpen(String),
    /// A write to a read-only file.
    #[error("{0}")]
    ReadOnly(String),
    /// The database's name leads to another file now.
    #[error("{0}")]
    Moved(String),
    /// No file can be made beside the database: its directory is read-only.
    #[error("{0}")]
    ReadOnlyDirectory(String),
    /// An option is unknown or impossible.
    #[error("{0}")]
    Option(String),
    /// `require=1` forbids bypassing the engine.
    #[error("require=1: {0}")]
    Required(String),
    /// The connection's state forbids the call.
    #[error("{0}")]
    Misuse(String),
}

impl Error {
    /// Classifies an error of the system; `what` names operation and file.
    pub fn io(what: impl Into<String>, error: io::Error) -> Self {
        let what = what.into();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::Full(format!("{what}: {error}"))
            }
            _ => Error::Io { what, error },
        }
    }

    /// Home, at `path`, ends within an image that changes build on.
    pub fn home_ends_within(path: &Path, page: PageNo) -> Self {
        Error::Corrupt(format!("{} ends within page {page}", path.display()))
    }

    /// The log ends within an image: zeros would be a wrong answer (invariant I7).
    pub fn log_ends_within(page: PageNo) -> Self {
        Error::Corrupt(format!("the log ends within the image of page {page}"))
    }

    /// A record has bytes of a page where the page has none.
    pub fn unfit_change(page: PageNo) -> Self {
        Error::Corrupt(format!("a record of the log does not fit page {page}"))
    }

    /// Whether room, memory or the store was short: nothing needed was overwritten, so the caller
    /// may try again.
    pub fn is_short(&self) -> bool {
        matches!(self, Error::Full(_) | Error::NoMemory | Error::Unshipped(_))
    }
}

/// Adds operation and file to an error of the system.
pub trait IoContext<T> {
    /// Turns an `io::Result` into a [`Result`].
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::io(what(), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_the_system_is_told_once() {
        let error = Error::io("cannot open the database", io::Error::from_raw_os_error(2));
        let mut told = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(next) = cause {
            told += &format!(": {next}");
            cause = next.source();
        }
        assert_eq!(told.matches("os error").count(), 1, "{told}");
    }
}
