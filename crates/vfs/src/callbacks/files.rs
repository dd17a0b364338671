//! The callbacks of open files: `sqlite3_io_methods` of a main database and of its virtual journal.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;

use onewrite_core::{Connection, Error};

use super::registered::Onewrite;
use crate::controls::file_control;
use crate::database::Main;
use crate::host::offsets::{fill_short, offset_from};
use crate::sqlite::api::buffer;
use crate::sqlite::ffi::{File, IoMethods, code, iocap};

/// SQLite's buffer for an open file, of a main database or of its journal.
#[repr(C)]
pub(crate) struct OpenFile {
    file: File,
    vfs: &'static Onewrite,
    /// A counted reference, given back by `xClose`.
    main: *const Main,
}

/// Bytes of one sector: the smallest SQLite knows, so that a journal header takes no more.
pub(crate) const SECTOR_BYTES: c_int = 512;

/// Methods of a main database. The shared-memory methods forward in WAL mode, and SQLite enters WAL
/// mode only where they exist.
static MAIN_METHODS: IoMethods = IoMethods {
    version: 3,
    close: Some(main_close),
    read: Some(main_read),
    write: Some(main_write),
    truncate: Some(main_truncate),
    sync: Some(main_sync),
    file_size: Some(main_size),
    lock: Some(main_lock),
    unlock: Some(main_unlock),
    check_reserved_lock: Some(main_check_reserved_lock),
    file_control: Some(main_control),
    sector_size: Some(sector_size),
    device_characteristics: Some(device_characteristics),
    shm_map: Some(shm_map),
    shm_lock: Some(shm_lock),
    shm_barrier: Some(shm_barrier),
    shm_unmap: Some(shm_unmap),
    fetch: Some(main_fetch),
    unfetch: Some(main_unfetch),
};

/// Methods of a virtual journal.
static JOURNAL_METHODS: IoMethods = IoMethods {
    version: 1,
    close: Some(journal_close),
    read: Some(journal_read),
    write: Some(journal_write),
    truncate: Some(journal_truncate),
    sync: Some(journal_sync),
    file_size: Some(journal_size),
    lock: Some(no_lock),
    unlock: Some(no_lock),
    check_reserved_lock: Some(no_reserved_lock),
    file_control: Some(no_control),
    sector_size: Some(sector_size),
    device_characteristics: Some(device_characteristics),
    ..IoMethods::NONE
};

/// # Safety
/// `file` is the buffer of an `xOpen` call, with room for an [`OpenFile`].
pub(crate) unsafe fn place_main(file: *mut File, vfs: &'static Onewrite, main: Arc<Main>) {
    // SAFETY: as promised by the caller.
    unsafe { place(file, &MAIN_METHODS, vfs, main) }
}

/// # Safety
/// As [`place_main`].
pub(crate) unsafe fn place_journal(file: *mut File, vfs: &'static Onewrite, main: Arc<Main>) {
    // SAFETY: as promised by the caller.
    unsafe { place(file, &JOURNAL_METHODS, vfs, main) }
}

/// # Safety
/// As [`place_main`].
unsafe fn place(file: *mut File, methods: &'static IoMethods, vfs: &'static Onewrite, main: Arc<Main>) {
    // SAFETY: as promised by the caller.
    unsafe { file.cast::<OpenFile>().write(OpenFile { file: File { methods }, vfs, main: Arc::into_raw(main) }) }
}

/// The database behind an open file.
///
/// # Safety
/// `file` was filled by [`place`] and is not closed; the reference is not used after the callback.
unsafe fn main_of<'a>(file: *mut File) -> &'a Main {
    // SAFETY: `place` stored a counted reference that `xClose` has not given back yet.
    unsafe { &*(*file.cast::<OpenFile>()).main }
}

/// Takes the counted reference out of a file that is being closed.
///
/// # Safety
/// As [`main_of`], once per file.
unsafe fn take(file: *mut File) -> Arc<Main> {
    // SAFETY: as promised by the caller; SQLite clears the methods after `xClose` and calls none
    // again.
    unsafe {
        (*file).methods = std::ptr::null();
        Arc::from_raw((*file.cast::<OpenFile>()).main)
    }
}

/// The bytes of a write.
///
/// # Safety
/// As [`buffer`].
pub(crate) unsafe fn bytes<'a>(data: *const c_void, amount: c_int) -> &'a [u8] {
    match usize::try_from(amount) {
        // SAFETY: as promised by the caller.
        Ok(amount) if amount > 0 => unsafe { slice::from_raw_parts(data.cast(), amount) },
        _ => &[],
    }
}

// SQLite's promises for the callbacks below: `xOpen` filled the file, which is not closed; buffers
// have the size given with them; pointers for answers are valid.

unsafe extern "C" fn main_close(file: *mut File) -> c_int {
    // SAFETY: SQLite closes a file once, and `place` filled it.
    let (vfs, main) = unsafe { ((*file.cast::<OpenFile>()).vfs, take(file)) };
    // The names go before the connection: afterwards SQLite frees the text they are keyed by.
    vfs.forget_names(&main);
    main.close()
}

unsafe extern "C" fn main_read(file: *mut File, buf: *mut c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (main, buf) = unsafe { (main_of(file), buffer(buf, amount)) };
    main.call(code::IOERR_READ, |state| state.read(buf, offset))
}

unsafe extern "C" fn main_write(file: *mut File, data: *const c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (main, data) = unsafe { (main_of(file), bytes(data, amount)) };
    main.call(code::IOERR_WRITE, |state| state.write(data, offset))
}

unsafe extern "C" fn main_truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_TRUNCATE, |state| state.truncate(len))
}

unsafe extern "C" fn main_sync(file: *mut File, flags: c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_FSYNC, |state| state.sync(flags))
}

unsafe extern "C" fn main_size(file: *mut File, answer: *mut i64) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_FSTAT, |state| {
        let size = state.size()?;
        // SAFETY: see above.
        unsafe { answer.write(size) };
        Ok(code::OK)
    })
}

unsafe extern "C" fn main_lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.lock(level)
}

unsafe extern "C" fn main_unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.unlock(level)
}

unsafe extern "C" fn main_check_reserved_lock(file: *mut File, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_CHECKRESERVEDLOCK, |state| {
        let reserved = state.check_reserved_lock()?;
        // SAFETY: see above.
        unsafe { answer.write(c_int::from(reserved)) };
        Ok(code::OK)
    })
}

unsafe extern "C" fn main_control(file: *mut File, op: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    // SAFETY: the arguments are passed on as they are.
    main.call(code::IOERR_FSYNC, |state| unsafe { file_control(state, op, arg) })
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    SECTOR_BYTES
}

/// POWERSAFE_OVERWRITE, unless `psow=0` says that a write may damage its neighbours. No other bit,
/// even of a device that can do more: SQLite answers each with a shortcut that the engine cannot
/// serve.
///
/// - `SAFE_APPEND`, `SEQUENTIAL`: the journal is not synced, or does not count its records. A
///   journal written out to step aside could then not be trusted after a crash.
/// - `ATOMIC*`: a transaction of one page writes it without a journal and without a prepare;
/// - `BATCH_ATOMIC`: commits go through BEGIN/COMMIT_ATOMIC_WRITE instead of SYNC. The journal
///   stays in SQLite's memory, where stepping aside cannot write it out.
/// - `SUBPAGE_READ`: reads of part of a page past SQLite's cache, outside the page's version;
/// - `UNDELETABLE_WHEN_OPEN`, `IMMUTABLE`: other locking rules than the engine's.
unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    if main.psow() { iocap::POWERSAFE_OVERWRITE } else { 0 }
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    region_bytes: c_int,
    extend: c_int,
    answer: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_SHMMAP, |state| {
        // SAFETY: see above.
        unsafe { answer.write(std::ptr::null_mut()) };
        if let Some(conn) = state.connection().filter(|conn| conn.requires()) {
            // A hot journal may have led back to WAL mode.
            return Err(Error::Required(conn.why_stock()).into());
        }
        if !state.forwards() && !state.connection().map_or(Ok(false), Connection::goes_on_in_wal_mode)? {
            return Ok(code::IOERR_SHMMAP);
        }
        // SAFETY: the arguments are passed on as they are.
        Ok(unsafe { state.forward()?.shm_map(region, region_bytes, extend, answer) })
    })
}

unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_SHMLOCK, |state| Ok(state.base()?.shm_lock(offset, count, flags)))
}

unsafe extern "C" fn shm_barrier(file: *mut File) {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR, |state| {
        state.base()?.shm_barrier();
        Ok(code::OK)
    });
}

unsafe extern "C" fn shm_unmap(file: *mut File, delete: c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_SHMMAP, |state| state.shm_unmap(delete))
}

unsafe extern "C" fn main_fetch(file: *mut File, offset: i64, amount: c_int, answer: *mut *mut c_void) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    // SAFETY: see above. Null: SQLite reads the page.
    unsafe { answer.write(std::ptr::null_mut()) };
    main.call(code::IOERR_MMAP, |state| {
        let (rc, at) = state.fetch(offset, amount)?;
        // SAFETY: see above.
        unsafe { answer.write(at) };
        Ok(rc)
    })
}

unsafe extern "C" fn main_unfetch(file: *mut File, offset: i64, page: *mut c_void) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    if main.is_carried() {
        // It is the parent's, and no page comes from there again.
        return code::OK;
    }
    main.call(code::IOERR_MMAP, |state| Ok(state.unfetch(offset, page)))
}

/// The result of a call of the journal with which SQLite rolls back: its pager drops the pages of
/// the transaction after an I/O error alone.
fn not_rolled_back(rc: c_int, io_code: c_int) -> c_int {
    if rc == code::MISUSE { io_code } else { rc }
}

unsafe extern "C" fn journal_close(file: *mut File) -> c_int {
    // SAFETY: SQLite closes a file once.
    let main = unsafe { take(file) };
    if main.is_carried() {
        // It was the parent's, and nothing of it is on the disk.
        return code::OK;
    }
    main.call(code::IOERR_CLOSE, |state| {
        state.journal(code::IOERR_CLOSE)?.journal_close()?;
        Ok(code::OK)
    })
}

unsafe extern "C" fn journal_read(file: *mut File, buf: *mut c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (main, buf) = unsafe { (main_of(file), buffer(buf, amount)) };
    let rc = main.call(code::IOERR_READ, |state| {
        let offset = offset_from(offset, code::IOERR_READ)?;
        let got = state.journal(code::IOERR_READ)?.journal_read_at(buf, offset)?;
        Ok(fill_short(buf, got))
    });
    not_rolled_back(rc, code::IOERR_READ)
}

unsafe extern "C" fn journal_write(file: *mut File, data: *const c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (main, data) = unsafe { (main_of(file), bytes(data, amount)) };
    main.call(code::IOERR_WRITE, |state| {
        let offset = offset_from(offset, code::IOERR_WRITE)?;
        state.journal(code::IOERR_WRITE)?.journal_write_at(data, offset)?;
        Ok(code::OK)
    })
}

unsafe extern "C" fn journal_truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_TRUNCATE, |state| {
        let len = offset_from(len, code::IOERR_TRUNCATE)?;
        state.journal(code::IOERR_TRUNCATE)?.journal_truncate(len)?;
        Ok(code::OK)
    })
}

unsafe extern "C" fn journal_sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    main.call(code::IOERR_FSYNC, |state| {
        state.journal(code::IOERR_FSYNC)?.journal_sync()?;
        Ok(code::OK)
    })
}

unsafe extern "C" fn journal_size(file: *mut File, answer: *mut i64) -> c_int {
    // SAFETY: see above.
    let main = unsafe { main_of(file) };
    let rc = main.call(code::IOERR_FSTAT, |state| {
        let size = state.journal(code::IOERR_FSTAT)?.journal_size()?;
        // SAFETY: see above.
        unsafe { answer.write(i64::try_from(size).unwrap_or(i64::MAX)) };
        Ok(code::OK)
    });
    not_rolled_back(rc, code::IOERR_FSTAT)
}

pub(crate) unsafe extern "C" fn no_lock(_: *mut File, _level: c_int) -> c_int {
    code::OK
}

pub(crate) unsafe extern "C" fn no_reserved_lock(_: *mut File, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe { answer.write(0) };
    code::OK
}

pub(crate) unsafe extern "C" fn no_control(_: *mut File, _op: c_int, _arg: *mut c_void) -> c_int {
    code::NOTFOUND
}
