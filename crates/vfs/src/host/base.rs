//! The VFS underneath (SQLite's own for this system): files that onewrite leaves alone go there.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;

use super::fault::{Fault, Outcome};
use crate::sqlite::ffi::{File, IoMethods, Vfs, code, fcntl};

/// A registered VFS that is not ours.
#[derive(Clone, Copy)]
pub(crate) struct Base {
    /// The structure itself, the first argument of its methods.
    vfs: *mut Vfs,
    /// A copy of it: SQLite links the original into its list, which is not ours to read.
    methods: &'static Vfs,
}

// SAFETY: SQLite's contract for a registered VFS: it stays registered, and its methods may be
// called from any thread.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// The name of SQLite's own VFS for files of this system.
pub const STOCK_VFS: &CStr = if cfg!(windows) { c"win32" } else { c"unix" };

impl Base {
    /// # Safety
    /// `vfs` is registered with the SQLite library that registers onewrite, and stays so.
    pub(crate) unsafe fn new(vfs: *mut Vfs) -> Base {
        // SAFETY: as promised by the caller; the structure is plain data.
        let copy = unsafe { vfs.read() };
        Base { vfs, methods: Box::leak(Box::new(copy)) }
    }

    /// To pass as the first argument of its methods.
    pub(crate) fn as_ptr(self) -> *mut Vfs {
        self.vfs
    }

    pub(crate) fn methods(self) -> &'static Vfs {
        self.methods
    }

    /// Whether it is SQLite's own for this system, or a variant with other locks: all know the same
    /// paths.
    pub(crate) fn is_unix(self) -> bool {
        // SAFETY: a VFS has a name, which lives as long as it.
        let name = unsafe { CStr::from_ptr(self.methods.name) };
        name.to_bytes() == b"unix" || name.to_bytes().starts_with(b"unix-")
    }

    /// Opens straight into SQLite's buffer: from then on the file is the base's own.
    ///
    /// # Safety
    /// The arguments are those of an `xOpen` call, and `file` has room for the base's file.
    pub(crate) unsafe fn open_into(
        self,
        name: *const c_char,
        file: *mut File,
        flags: c_int,
        out_flags: *mut c_int,
    ) -> c_int {
        match self.methods().open {
            // SAFETY: as promised by the caller.
            Some(open) => unsafe { open(self.vfs, name, file, flags, out_flags) },
            None => code::CANTOPEN,
        }
    }

    /// `xGetLastError`: the system's error of the call that failed.
    pub(crate) fn last_error(self) -> io::Error {
        match self.methods().get_last_error {
            // SAFETY: without room for a message it answers with a number alone.
            Some(last) => match unsafe { last(self.vfs, 0, std::ptr::null_mut()) } {
                0 => io::Error::other("the VFS underneath does not say why"),
                number => io::Error::from_raw_os_error(number),
            },
            None => io::Error::other("the VFS underneath does not say why"),
        }
    }

    pub(crate) fn delete(self, name: &CStr, sync_dir: bool) -> c_int {
        match self.methods().delete {
            // SAFETY: the name lives across the call.
            Some(delete) => unsafe { delete(self.vfs, name.as_ptr(), c_int::from(sync_dir)) },
            None => code::IOERR_DELETE,
        }
    }

    pub(crate) fn access(self, name: &CStr, flags: c_int) -> Outcome<bool> {
        let mut answer = 0;
        let rc = match self.methods().access {
            // SAFETY: name and answer live across the call.
            Some(access) => unsafe { access(self.vfs, name.as_ptr(), flags, &raw mut answer) },
            None => code::IOERR_ACCESS,
        };
        check(rc)?;
        Ok(answer != 0)
    }
}

/// A file of the base's that onewrite opened for itself, closed when dropped.
pub(crate) struct BaseFile {
    /// Room for the base's `sqlite3_file`, aligned as SQLite aligns its own.
    room: Box<[u64]>,
}

impl BaseFile {
    /// Opens `name` with the flags of `xOpen`; also answers with the flags the base reports.
    ///
    /// # Safety
    /// `name` is a name SQLite passed to `xOpen` and stays valid until the file is closed (the base
    /// keeps the pointer and reads URI parameters behind it).
    pub(crate) unsafe fn open(base: Base, name: *const c_char, flags: c_int) -> Outcome<(BaseFile, c_int)> {
        let bytes = usize::try_from(base.methods().file_bytes).unwrap_or(0).max(size_of::<File>());
        let mut file = BaseFile { room: vec![0u64; bytes.div_ceil(size_of::<u64>())].into_boxed_slice() };
        let mut out_flags = 0;
        // SAFETY: the room is zeroed, aligned and large enough; the name is as promised by the
        // caller.
        let rc = unsafe { base.open_into(name, file.as_ptr(), flags, &raw mut out_flags) };
        // A failed open may leave methods behind, and then must be closed: dropping `file` does.
        check(rc)?;
        Ok((file, out_flags))
    }

    fn as_ptr(&mut self) -> *mut File {
        self.room.as_mut_ptr().cast()
    }

    fn methods(&mut self) -> Option<&'static IoMethods> {
        // SAFETY: the room holds a `sqlite3_file`; its methods are static data of the base, or null
        // when closed.
        unsafe { (*self.as_ptr()).methods.as_ref() }
    }

    /// Methods of `sqlite3_io_methods` version 2, where the base has them.
    fn shm_methods(&mut self) -> Option<&'static IoMethods> {
        self.methods().filter(|m| m.version >= 2)
    }

    pub(crate) fn read(&mut self, buf: &mut [u8], offset: i64) -> c_int {
        let (Some(read), Ok(len)) = (self.methods().and_then(|m| m.read), c_int::try_from(buf.len())) else {
            return code::IOERR_READ;
        };
        // SAFETY: the file is open and the buffer has `len` bytes.
        unsafe { read(self.as_ptr(), buf.as_mut_ptr().cast(), len, offset) }
    }

    pub(crate) fn write(&mut self, data: &[u8], offset: i64) -> c_int {
        let (Some(write), Ok(len)) = (self.methods().and_then(|m| m.write), c_int::try_from(data.len())) else {
            return code::IOERR_WRITE;
        };
        // SAFETY: the file is open and the data has `len` bytes.
        unsafe { write(self.as_ptr(), data.as_ptr().cast(), len, offset) }
    }

    pub(crate) fn truncate(&mut self, len: i64) -> c_int {
        // SAFETY: the file is open.
        self.methods().and_then(|m| m.truncate).map_or(code::IOERR_TRUNCATE, |f| unsafe { f(self.as_ptr(), len) })
    }

    pub(crate) fn sync(&mut self, flags: c_int) -> c_int {
        // SAFETY: the file is open.
        self.methods().and_then(|m| m.sync).map_or(code::IOERR_FSYNC, |f| unsafe { f(self.as_ptr(), flags) })
    }

    pub(crate) fn size(&mut self, size: &mut i64) -> c_int {
        // SAFETY: the file is open and `size` lives across the call.
        self.methods().and_then(|m| m.file_size).map_or(code::IOERR_FSTAT, |f| unsafe { f(self.as_ptr(), size) })
    }

    pub(crate) fn lock(&mut self, level: c_int) -> c_int {
        // SAFETY: the file is open.
        self.methods().and_then(|m| m.lock).map_or(code::IOERR_LOCK, |f| unsafe { f(self.as_ptr(), level) })
    }

    pub(crate) fn unlock(&mut self, level: c_int) -> c_int {
        // SAFETY: the file is open.
        self.methods().and_then(|m| m.unlock).map_or(code::IOERR_UNLOCK, |f| unsafe { f(self.as_ptr(), level) })
    }

    pub(crate) fn check_reserved_lock(&mut self, answer: &mut c_int) -> c_int {
        let Some(f) = self.methods().and_then(|m| m.check_reserved_lock) else { return code::IOERR_CHECKRESERVEDLOCK };
        // SAFETY: the file is open and `answer` lives across the call.
        unsafe { f(self.as_ptr(), answer) }
    }

    /// # Safety
    /// `op` and `arg` are those of a call of `xFileControl`.
    pub(crate) unsafe fn control(&mut self, op: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: the file is open; the arguments are as promised by the caller.
        self.methods().and_then(|m| m.file_control).map_or(code::NOTFOUND, |f| unsafe { f(self.as_ptr(), op, arg) })
    }

    /// # Safety
    /// The arguments are those of a call of `xShmMap`.
    pub(crate) unsafe fn shm_map(&mut self, region: c_int, bytes: c_int, extend: c_int, to: *mut *mut c_void) -> c_int {
        let Some(f) = self.shm_methods().and_then(|m| m.shm_map) else { return code::IOERR_SHMMAP };
        // SAFETY: the file is open; the arguments are as promised by the caller.
        unsafe { f(self.as_ptr(), region, bytes, extend, to) }
    }

    pub(crate) fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> c_int {
        let Some(f) = self.shm_methods().and_then(|m| m.shm_lock) else { return code::IOERR_SHMLOCK };
        // SAFETY: the file is open.
        unsafe { f(self.as_ptr(), offset, count, flags) }
    }

    pub(crate) fn shm_barrier(&mut self) {
        if let Some(f) = self.shm_methods().and_then(|m| m.shm_barrier) {
            // SAFETY: the file is open.
            unsafe { f(self.as_ptr()) }
        }
    }

    pub(crate) fn shm_unmap(&mut self, delete: c_int) -> c_int {
        // SAFETY: the file is open.
        self.shm_methods().and_then(|m| m.shm_unmap).map_or(code::OK, |f| unsafe { f(self.as_ptr(), delete) })
    }

    /// Methods of version 3, where the base has them.
    fn mapping_methods(&mut self) -> Option<&'static IoMethods> {
        self.methods().filter(|m| m.version >= 3)
    }

    /// `xFetch`: its result, and null where the page has to be read.
    pub(crate) fn fetch(&mut self, offset: i64, len: c_int) -> (c_int, *mut c_void) {
        let mut at = std::ptr::null_mut();
        let Some(f) = self.mapping_methods().and_then(|m| m.fetch) else { return (code::OK, at) };
        // SAFETY: the file is open, and `at` lives across the call.
        let rc = unsafe { f(self.as_ptr(), offset, len, &raw mut at) };
        (rc, at)
    }

    /// `xUnfetch`; null: the file need not be mapped any more.
    pub(crate) fn unfetch(&mut self, offset: i64, page: *mut c_void) -> c_int {
        let Some(f) = self.mapping_methods().and_then(|m| m.unfetch) else { return code::OK };
        // SAFETY: the file is open; SQLite gives back a page that `fetch` gave.
        unsafe { f(self.as_ptr(), offset, page) }
    }

    /// `SQLITE_FCNTL_MMAP_SIZE`.
    pub(crate) fn limit_mmap(&mut self, mut bytes: i64) {
        // SAFETY: the argument of this control is an sqlite3_int64.
        unsafe { self.control(fcntl::MMAP_SIZE, (&raw mut bytes).cast()) };
    }

    /// Closes, with the base's result code.
    pub(crate) fn close(mut self) -> c_int {
        self.close_once()
    }

    fn close_once(&mut self) -> c_int {
        let Some(close) = self.methods().and_then(|m| m.close) else { return code::OK };
        // SAFETY: the file is open; without methods it is not closed again.
        unsafe {
            let rc = close(self.as_ptr());
            (*self.as_ptr()).methods = std::ptr::null();
            rc
        }
    }
}

impl Drop for BaseFile {
    fn drop(&mut self) {
        self.close_once();
    }
}

pub(crate) fn check(rc: c_int) -> Outcome {
    if rc == code::OK { Ok(()) } else { Err(Fault::Base(rc)) }
}
