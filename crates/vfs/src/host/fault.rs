//! Errors on their way out. Core's classes become SQLite's result codes. The message goes to
//! SQLite's error log and stays with the thread for `xGetLastError` and `onewrite_last_error()`.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::ptr;

use onewrite_core::Error;
use onewrite_core::text::printable;

use crate::sqlite::api::{Api, c_text};
use crate::sqlite::ffi::code;

pub(crate) enum Fault {
    /// An error of core's.
    Core(Error),
    /// A result code of the underlying VFS, which has done its own logging.
    Base(c_int),
    /// A refusal of this layer: the code and the message.
    Own(c_int, String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Core(error)
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Fault>;

/// The process, or the system, has no room for another open file.
#[cfg(unix)]
const NO_HANDLE: [i32; 2] = [libc::EMFILE, libc::ENFILE];
/// `ERROR_TOO_MANY_OPEN_FILES`, `ERROR_NO_SYSTEM_RESOURCES`.
#[cfg(windows)]
const NO_HANDLE: [i32; 2] = [4, 1450];

/// The result code of an error; `io_code` is that of a failed read, write or flush in this call.
pub(crate) fn result_code(error: &Error, io_code: c_int) -> c_int {
    match error {
        Error::Busy(_) => code::BUSY,
        Error::BusySnapshot | Error::NotAlone(_) => code::BUSY_SNAPSHOT,
        Error::Full(_) => code::FULL,
        // SQLite takes it for "out of memory", its pager for an I/O error: it drops its cache.
        Error::NoMemory => code::IOERR_NOMEM,
        Error::Io { error, .. } => match error.raw_os_error() {
            // The error of an open, or of the first read of a directory.
            Some(e) if NO_HANDLE.contains(&e) => code::CANTOPEN,
            _ if error.kind() == io::ErrorKind::IsADirectory => code::CANTOPEN,
            _ if error.kind() == io::ErrorKind::OutOfMemory => code::IOERR_NOMEM,
            _ => io_code,
        },
        Error::Poisoned(_) | Error::WrittenLate(_) | Error::Unshipped(_) => io_code,
        Error::Corrupt(_) => code::CORRUPT,
        Error::NotADatabase(_) => code::NOTADB,
        Error::CantOpen(_) => code::CANTOPEN,
        Error::ReadOnly(_) => code::READONLY,
        Error::Moved(_) => code::READONLY_DBMOVED,
        Error::ReadOnlyDirectory(_) => code::READONLY_DIRECTORY,
        Error::Option(_) | Error::Required(_) => code::ERROR,
        Error::Misuse(_) => code::MISUSE,
    }
}

impl Fault {
    /// The result code, and the message as a line that may be shown, if there is one to give.
    pub(crate) fn into_parts(self, io_code: c_int) -> (c_int, Option<String>, c_int) {
        match self {
            Fault::Core(error) => {
                let os_error = match &error {
                    Error::Io { error, .. } => error.raw_os_error().unwrap_or(0),
                    _ => 0,
                };
                (result_code(&error, io_code), Some(printable(&error.to_string()).into_owned()), os_error)
            }
            Fault::Base(rc) => (rc, None, 0),
            Fault::Own(rc, message) => (rc, Some(printable(&message).into_owned()), 0),
        }
    }

    /// Logs, remembers, and answers with the result code. `subject` names the file.
    pub(crate) fn report(self, api: &Api, subject: &str, io_code: c_int) -> c_int {
        let (rc, message, os_error) = self.into_parts(io_code);
        match message {
            None => forget(),
            Some(message) => {
                // BUSY is ordinary: remembered, but not logged.
                if rc & 0xff != code::BUSY {
                    api.log(rc, &format!("onewrite: {message} [{subject}]"));
                }
                remember(&message, os_error);
            }
        }
        rc
    }
}

thread_local! {
    /// Message and `errno` of the last error on this thread.
    static LAST: RefCell<Option<(CString, c_int)>> = const { RefCell::new(None) };
}

pub(crate) fn remember(message: &str, os_error: c_int) {
    let told = Some((c_text(&printable(message)), os_error));
    LAST.set(told.filter(|(message, _)| !message.is_empty()));
}

/// Drops the message of this thread: the next failure is not ours to explain.
pub(crate) fn forget() {
    LAST.set(None);
}

/// Message and `errno` of the last error on this thread, if the last one was ours.
pub(crate) fn last() -> Option<(String, c_int)> {
    LAST.with_borrow(|last| {
        last.as_ref().map(|(message, os_error)| (message.to_string_lossy().into_owned(), *os_error))
    })
}

/// The same for C; null where there is none. Valid until the next call of onewrite's on this
/// thread.
pub(crate) fn last_pointer() -> *const c_char {
    LAST.with_borrow(|last| last.as_ref().map_or(ptr::null(), |(message, _)| message.as_ptr()))
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic")
}
