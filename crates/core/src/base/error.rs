//! What can go wrong, in the classes a caller acts on.

use std::io;
use std::path::Path;

use crate::base::types::PageNo;

/// Result of a core operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error, with a message for people. The class decides which SQLite result code it becomes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody else holds what is needed; trying again later may succeed. Nothing was changed.
    #[error("{0}")]
    Busy(String),
    /// The snapshot is older than the newest commit, so it cannot be written on. Start over.
    #[error("the snapshot of this transaction is no longer the newest state; roll back and start again")]
    BusySnapshot,
    /// The transaction needs the database for this process alone, and others have it open. Roll back, and start over
    /// without them.
    #[error("{0}")]
    NotAlone(String),
    /// No room on the disk. Nothing acknowledged is lost.
    #[error("{0}")]
    Full(String),
    /// No memory for a page, a record or a list of pages. Nothing acknowledged is lost.
    #[error("out of memory")]
    NoMemory,
    /// Reading or writing failed.
    #[error("{what}: {error}")]
    Io {
        /// The operation and the file.
        what: String,
        /// What the system said. Part of the message, so not a source: a chain of causes would print it again.
        error: io::Error,
    },
    /// Pages that were written behind FCNTL_SYNC and cannot be part of the transaction any more, whose journal is gone:
    /// it is rolled back. SQLite drops its cache, as at an I/O error.
    #[error("cannot commit pages that were written behind FCNTL_SYNC: {0}")]
    WrittenLate(String),
    /// A write or flush failed earlier: the state of the disk is unknown until every connection has
    /// closed and recovery has run. Or the database file was overwritten.
    #[error("the database is closed to use after a failure ({0}); close all connections and open it again to recover")]
    Poisoned(String),
    /// Where commits wait for a store: it did not take a transaction in time, or belongs to another database by now. Whether it
    /// has the transaction is not known.
    #[error("{0}")]
    Unshipped(String),
    /// The bytes of the database or its log contradict each other or themselves.
    #[error("{0}")]
    Corrupt(String),
    /// The file is not a SQLite database.
    #[error("{0}")]
    NotADatabase(String),
    /// The database cannot be opened; the message says what to do.
    #[error("{0}")]
    CantOpen(String),
    /// A write to what may only be read.
    #[error("{0}")]
    ReadOnly(String),
    /// The name of the database leads to another file by now.
    #[error("{0}")]
    Moved(String),
    /// A file cannot be made beside the database, because its directory may not be written.
    #[error("{0}")]
    ReadOnlyDirectory(String),
    /// An option is unknown or impossible; the message names it, its value and the choices.
    #[error("{0}")]
    Option(String),
    /// `require=1`: what was asked for would work on the file past the engine.
    #[error("require=1: {0}")]
    Required(String),
    /// The call does not fit the state of the connection.
    #[error("{0}")]
    Misuse(String),
}

impl Error {
    /// Classifies an error of the system; `what` names the operation and the file.
    pub fn io(what: impl Into<String>, error: io::Error) -> Self {
        let what = what.into();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::Full(format!("{what}: {error}"))
            }
            _ => Error::Io { what, error },
        }
    }

    /// Home, the file at `path`, ends where an image should be that changes lie over.
    pub fn home_ends_within(path: &Path, page: PageNo) -> Self {
        Error::Corrupt(format!("{} ends within page {page}", path.display()))
    }

    /// The log ends where an image should be: zeros would be a wrong answer (invariant I7).
    pub fn log_ends_within(page: PageNo) -> Self {
        Error::Corrupt(format!("the log ends within the image of page {page}"))
    }

    /// Whether room was short, on the disk or in memory, or the store that is waited for slow: nothing was overwritten that is
    /// still needed, so that what was tried may be tried again.
    pub fn is_short(&self) -> bool {
        matches!(self, Error::Full(_) | Error::NoMemory | Error::Unshipped(_))
    }
}

/// Adds the operation and the file to an error of the system.
pub trait IoContext<T> {
    /// Turns an `io::Result` into a [`Result`], naming what was tried.
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
    fn what_the_system_said_is_told_once() {
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
