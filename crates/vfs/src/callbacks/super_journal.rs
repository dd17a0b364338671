//! Super-journals: `sqlite3_io_methods` of the file by which SQLite commits several databases
//! together. It stays in memory if all of them commit by their logs. Else it is a file of the VFS
//! underneath from the first sync on.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use super::files::{SECTOR_BYTES, bytes, no_control, no_lock, no_reserved_lock};
use crate::host::Host;
use crate::host::base::{BaseFile, check};
use crate::host::fault::{Fault, Outcome};
use crate::host::offsets::{fill_short, offset_from};
use crate::sqlite::api::buffer;
use crate::sqlite::api::path_of;
use crate::sqlite::ffi::{File, IoMethods, code, iocap};

/// Longest super-journal that is kept in memory.
const BYTES_MAX: usize = 1 << 20;

/// SQLite's buffer for an open super-journal.
#[repr(C)]
pub(crate) struct OpenSuperJournal {
    file: File,
    /// Owned, given back by `xClose`.
    state: *mut SuperJournal,
}

struct SuperJournal {
    host: &'static Host,
    /// As SQLite passed it to `xOpen`: it stays until `xClose`.
    name: *const c_char,
    flags: c_int,
    bytes: Vec<u8>,
    base: Option<BaseFile>,
}

static METHODS: IoMethods = IoMethods {
    version: 1,
    close: Some(close),
    read: Some(read),
    write: Some(write),
    truncate: Some(truncate),
    sync: Some(sync),
    file_size: Some(size),
    lock: Some(no_lock),
    unlock: Some(no_lock),
    check_reserved_lock: Some(no_reserved_lock),
    file_control: Some(no_control),
    sector_size: Some(sector_size),
    device_characteristics: Some(device_characteristics),
    ..IoMethods::NONE
};

/// Opens a super-journal in memory that holds `bytes`.
///
/// # Safety
/// `file`, `name` and `flags` are those of an `xOpen` call; `file` has room for an
/// [`OpenSuperJournal`].
pub(crate) unsafe fn place(host: &'static Host, name: *const c_char, file: *mut File, flags: c_int, bytes: Vec<u8>) {
    let state = Box::into_raw(Box::new(SuperJournal { host, name, flags, bytes, base: None }));
    // SAFETY: as promised by the caller.
    unsafe { file.cast::<OpenSuperJournal>().write(OpenSuperJournal { file: File { methods: &METHODS }, state }) }
}

impl SuperJournal {
    fn name(&self) -> &CStr {
        // SAFETY: SQLite keeps the name until `xClose`.
        unsafe { CStr::from_ptr(self.name) }
    }

    fn call(&mut self, io_code: c_int, f: impl FnOnce(&mut SuperJournal) -> Outcome<c_int>) -> c_int {
        let host = self.host;
        let name = self.name().to_owned();
        host.call(&name, io_code, || f(self))
    }

    /// It is a file of the base's from now on.
    fn materialize(&mut self, sync_flags: c_int) -> Outcome {
        if !self.host.passes_through() {
            let message = "a transaction over several files that steps aside needs the real disk";
            return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
        }
        // SAFETY: the name and the flags are those of SQLite's own call, and it keeps the name
        // until `xClose`.
        let (mut base, _) = unsafe { BaseFile::open(self.host.base, self.name, self.flags)? };
        check(base.write(&self.bytes, 0))?;
        check(base.sync(sync_flags))?;
        self.base = Some(base);
        self.bytes = Vec::new();
        Ok(())
    }
}

/// The state behind an open file.
///
/// # Safety
/// `file` was filled by [`place`] and is not closed. SQLite makes one call on a file at a time.
unsafe fn state<'a>(file: *mut File) -> &'a mut SuperJournal {
    // SAFETY: `place` stored an owned pointer that `xClose` has not given back yet.
    unsafe { &mut *(*file.cast::<OpenSuperJournal>()).state }
}

// SQLite's promises for the callbacks below: `place` filled the file, which is not closed; buffers
// have the size given with them; pointers for answers are valid.

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: SQLite closes a file once, and clears the methods.
    let mut state = unsafe {
        (*file).methods = std::ptr::null();
        Box::from_raw((*file.cast::<OpenSuperJournal>()).state)
    };
    state.base.take().map_or(code::OK, BaseFile::close)
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (state, buf) = unsafe { (state(file), buffer(buf, amount)) };
    state.call(code::IOERR_READ, |state| {
        if let Some(base) = &mut state.base {
            return Ok(base.read(buf, offset));
        }
        let from = usize::try_from(offset_from(offset, code::IOERR_READ)?).unwrap_or(usize::MAX);
        let rest = state.bytes.get(from..).unwrap_or_default();
        let got = rest.len().min(buf.len());
        buf.iter_mut().zip(rest).for_each(|(to, byte)| *to = *byte);
        Ok(fill_short(buf, got))
    })
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (state, data) = unsafe { (state(file), bytes(data, amount)) };
    state.call(code::IOERR_WRITE, |state| {
        if let Some(base) = &mut state.base {
            return Ok(base.write(data, offset));
        }
        let from = usize::try_from(offset_from(offset, code::IOERR_WRITE)?).unwrap_or(usize::MAX);
        let Some(end) = from.checked_add(data.len()).filter(|end| *end <= BYTES_MAX) else {
            return Err(Fault::Own(code::FULL, "a super-journal that is too long".to_owned()));
        };
        if state.bytes.len() < end {
            state.bytes.resize(end, 0);
        }
        if let Some(to) = state.bytes.get_mut(from..end) {
            to.copy_from_slice(data);
        }
        Ok(code::OK)
    })
}

unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: see above.
    let state = unsafe { state(file) };
    state.call(code::IOERR_TRUNCATE, |state| {
        if let Some(base) = &mut state.base {
            return Ok(base.truncate(len));
        }
        let len = usize::try_from(offset_from(len, code::IOERR_TRUNCATE)?).unwrap_or(usize::MAX);
        state.bytes.truncate(len);
        Ok(code::OK)
    })
}

unsafe extern "C" fn sync(file: *mut File, flags: c_int) -> c_int {
    // SAFETY: see above.
    let state = unsafe { state(file) };
    state.call(code::IOERR_FSYNC, |state| {
        if let Some(base) = &mut state.base {
            return Ok(base.sync(flags));
        }
        if !state.host.engine().sync_super_journal(&path_of(state.name()), &state.bytes)? {
            state.materialize(flags)?;
        }
        Ok(code::OK)
    })
}

unsafe extern "C" fn size(file: *mut File, answer: *mut i64) -> c_int {
    // SAFETY: see above.
    let state = unsafe { state(file) };
    state.call(code::IOERR_FSTAT, |state| {
        let mut size = i64::try_from(state.bytes.len()).unwrap_or(i64::MAX);
        let rc = state.base.as_mut().map_or(code::OK, |base| base.size(&mut size));
        // SAFETY: see above.
        unsafe { answer.write(size) };
        Ok(rc)
    })
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    SECTOR_BYTES
}

/// Not `SEQUENTIAL`: SQLite would leave the sync out, which tells where the super-journal is to be.
unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    iocap::POWERSAFE_OVERWRITE
}
