//! onewrite for [`rusqlite`]: registers the VFS with the SQLite that rusqlite uses.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("app.db");
//! let db = onewrite_rusqlite::open(&path)?;
//! db.execute_batch("CREATE TABLE note(text TEXT); INSERT INTO note VALUES ('durable')")?;
//! let text: String = db.query_row("SELECT text FROM note", [], |row| row.get(0))?;
//! assert_eq!(text, "durable");
//! # Ok(())
//! # }
//! ```
//!
//! After [`register`] any connection may name the VFS itself, with settings in the URI:
//! `Connection::open("file:app.db?vfs=onewrite&scheme=log")`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite::ffi::{AutoExtensionFn, AutocommitFn, TxnStateFn, VfsFindFn, VfsRegisterFn};
use onewrite::{Api, VFS_NAME};
use onewrite_core::disk::Disk;
use rusqlite::{Connection, OpenFlags, ffi};

pub use onewrite::{RegisterError as Error, STOCK_VFS, last_error};

type RawFindFn = unsafe extern "C" fn(*const c_char) -> *mut ffi::sqlite3_vfs;
type RawRegisterFn = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, c_int) -> c_int;
type RawAutoExtensionFn = unsafe extern "C" fn(
    Option<unsafe extern "C" fn(*mut ffi::sqlite3, *mut *mut c_char, *const ffi::sqlite3_api_routines) -> c_int>,
) -> c_int;

type RawAutocommitFn = unsafe extern "C" fn(*mut ffi::sqlite3) -> c_int;
type RawTxnStateFn = unsafe extern "C" fn(*mut ffi::sqlite3, *const c_char) -> c_int;

/// The functions of the SQLite that rusqlite is linked to.
pub fn api() -> Api {
    // SAFETY: the functions differ from the declared types only in where types are declared: an
    // entry point, `sqlite3`, which is only passed on, and `sqlite3_vfs`, which has the same layout
    // (onewrite asserts that in tests/layout.rs).
    let (vfs_find, vfs_register, auto_extension, get_autocommit, txn_state) = unsafe {
        (
            transmute::<RawFindFn, VfsFindFn>(ffi::sqlite3_vfs_find),
            transmute::<RawRegisterFn, VfsRegisterFn>(ffi::sqlite3_vfs_register),
            transmute::<RawAutoExtensionFn, AutoExtensionFn>(ffi::sqlite3_auto_extension),
            transmute::<RawAutocommitFn, AutocommitFn>(ffi::sqlite3_get_autocommit),
            transmute::<RawTxnStateFn, TxnStateFn>(ffi::sqlite3_txn_state),
        )
    };
    Api {
        asks_split: false,
        libversion_number: ffi::sqlite3_libversion_number,
        vfs_find,
        vfs_register,
        malloc64: ffi::sqlite3_malloc64,
        log: ffi::sqlite3_log,
        uri_parameter: ffi::sqlite3_uri_parameter,
        uri_boolean: ffi::sqlite3_uri_boolean,
        uri_key: ffi::sqlite3_uri_key,
        filename_journal: ffi::sqlite3_filename_journal,
        filename_wal: ffi::sqlite3_filename_wal,
        auto_extension,
        get_autocommit,
        txn_state,
    }
}

/// Registers the VFS `onewrite`. Doing so again changes nothing.
pub fn register() -> Result<(), Error> {
    // SAFETY: the functions are those of the SQLite this program is linked to.
    unsafe { onewrite::register(&api(), VFS_NAME, false) }
}

/// Registers the VFS `onewrite` and makes it the default: databases opened without naming a VFS use
/// it.
pub fn register_default() -> Result<(), Error> {
    // SAFETY: the functions are those of the SQLite this program is linked to.
    unsafe { onewrite::register(&api(), VFS_NAME, true) }
}

/// Registers a VFS under another `name`, on a disk of the caller's. It refuses read-only opens, and
/// all that needs the files of the system: WAL mode that stays, and transactions over several files
/// that step aside.
pub fn register_on_disk(name: &CStr, disk: Arc<dyn Disk>) -> Result<(), Error> {
    // SAFETY: the functions are those of the SQLite this program is linked to.
    unsafe { onewrite::register_with_disk(&api(), name, disk) }
}

/// Asks for reserved bytes at the end of each page of a database that is still to be made, or of
/// the copy that `VACUUM INTO` makes of this one. The in-page schemes need 32, and take more of
/// large pages.
pub fn reserve_bytes(db: &Connection, bytes: u8) -> rusqlite::Result<()> {
    let mut bytes = c_int::from(bytes);
    // SAFETY: the connection is open while `db` is borrowed; this operation takes a pointer to an
    // int and does not keep it.
    let code = unsafe {
        let op = ffi::SQLITE_FCNTL_RESERVE_BYTES;
        ffi::sqlite3_file_control(db.handle(), c"main".as_ptr(), op, (&raw mut bytes).cast())
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)) }
}

/// Reads the main database's file at `offset` past SQLite's cache, as the read transaction of `db`
/// sees it. Reads whole pages, where `bytes` has their length; zeros behind the end. SQLITE_MISUSE
/// outside a transaction that has begun to read, or inside one that writes.
pub fn read_file_at(db: &Connection, bytes: &mut [u8], offset: u64) -> rusqlite::Result<()> {
    let error = |code| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
    if db.transaction_state(Some(c"main"))? != rusqlite::TransactionState::Read {
        return Err(error(ffi::SQLITE_MISUSE));
    }
    let misuse = |_| error(ffi::SQLITE_MISUSE);
    let (len, offset) = (c_int::try_from(bytes.len()).map_err(misuse)?, i64::try_from(offset).map_err(misuse)?);
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is open while `db` is borrowed; this operation stores a pointer to the
    // file, which lives as long as the connection.
    let code = unsafe {
        let op = ffi::SQLITE_FCNTL_FILE_POINTER;
        ffi::sqlite3_file_control(db.handle(), c"main".as_ptr(), op, (&raw mut file).cast())
    };
    if code != ffi::SQLITE_OK || file.is_null() {
        return Err(error(if code == ffi::SQLITE_OK { ffi::SQLITE_MISUSE } else { code }));
    }
    // SAFETY: an open file has methods, which are constant while it is open.
    let read = unsafe { (*file).pMethods.as_ref() }.and_then(|methods| methods.xRead);
    let read = read.ok_or_else(|| error(ffi::SQLITE_MISUSE))?;
    // SAFETY: one thread at a time uses a connection (`Connection` is not Sync), so SQLite calls
    // nothing of this file meanwhile. It may write `len` bytes, which are borrowed for writing.
    let code = unsafe { read(file, bytes.as_mut_ptr().cast(), len, offset) };
    if matches!(code, ffi::SQLITE_OK | ffi::SQLITE_IOERR_SHORT_READ) { Ok(()) } else { Err(error(code)) }
}

/// Opens a database, creating it where there is none, through onewrite. The path may be a URI with
/// settings; one that is unknown is an error that names the choices. Where the open fails for a
/// reason of onewrite's, the error tells it.
pub fn open(path: impl AsRef<Path>) -> rusqlite::Result<Connection> {
    open_with_flags(path, OpenFlags::default())
}

/// [`open`] with flags of the caller's choice.
pub fn open_with_flags(path: impl AsRef<Path>, flags: OpenFlags) -> rusqlite::Result<Connection> {
    if let Err(e) = register() {
        return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(e.code), Some(e.message)));
    }
    let path = naming_the_vfs(path.as_ref(), flags);
    Connection::open_with_flags_and_vfs(path, flags, VFS_NAME).map_err(|error| match (error, last_error()) {
        (rusqlite::Error::SqliteFailure(code, _), Some(message)) => rusqlite::Error::SqliteFailure(code, Some(message)),
        (error, _) => error,
    })
}

/// A URI with `vfs=onewrite` in it: where that is missing, keys that onewrite does not know are
/// ignored.
fn naming_the_vfs(path: &Path, flags: OpenFlags) -> Cow<'_, Path> {
    let uri = path.to_str().filter(|path| flags.contains(OpenFlags::SQLITE_OPEN_URI) && path.starts_with("file:"));
    let Some(uri) = uri else { return Cow::Borrowed(path) };
    let (uri, fragment) = uri.split_at(uri.find('#').unwrap_or(uri.len()));
    let (file, query) = uri.split_once('?').unwrap_or((uri, ""));
    if query.split('&').any(|pair| pair.starts_with("vfs=")) {
        return Cow::Borrowed(path);
    }
    let joint = if query.is_empty() { "" } else { "&" };
    Cow::Owned(PathBuf::from(format!("{file}?{query}{joint}vfs=onewrite{fragment}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_the_vfs_once() {
        let of = |path: &str, flags| naming_the_vfs(Path::new(path), flags).display().to_string();
        let flags = OpenFlags::default();
        assert_eq!(of("file:a.db", flags), "file:a.db?vfs=onewrite");
        assert_eq!(of("file:a.db?log_size=8m#x?y", flags), "file:a.db?log_size=8m&vfs=onewrite#x?y");
        for same in ["file:a.db?vfs=onewrite&x-y=1", "a.db?b", "/file:a.db"] {
            assert_eq!(of(same, flags), same);
        }
        assert_eq!(of("file:a.db", OpenFlags::SQLITE_OPEN_READ_ONLY), "file:a.db");
    }
}
