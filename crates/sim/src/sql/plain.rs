//! A VFS that stores as SQLite's own for this system does (`os_unix.c`: locks on the bytes of
//! SQLite's file format, a directory flushed with the first flush of a new journal, WAL mode), on a
//! simulated machine. onewrite passes through to it, and stock SQLite reads onewrite's files
//! through it.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite::ffi::{File, IoMethods, Vfs, code, iocap, open};
use onewrite_core::disk::{Disk, DiskFile, FileId, LockKind, OpenMode};
use parking_lot::Mutex;

use super::machine::Socket;

const PENDING: u64 = 0x4000_0000;
const RESERVED: u64 = PENDING + 1;
const SHARED: u64 = PENDING + 2;
const SHARED_BYTES: u64 = 510;
const LEVEL_SHARED: c_int = 1;
const LEVEL_RESERVED: c_int = 2;
const LEVEL_PENDING: c_int = 3;
const LEVEL_EXCLUSIVE: c_int = 4;
const DELETE_ON_CLOSE: c_int = 0x8;
const SHM_LOCKS: usize = 8;
const SHM_UNLOCK: c_int = 1;
const SHM_SHARED: c_int = 4;

struct Plain {
    socket: Socket,
    shared: Mutex<HashMap<FileId, Arc<Shm>>>,
}

/// The shared memory does not outlive the machine.
#[derive(Default)]
struct Shm {
    regions: Mutex<Vec<Region>>,
    /// Shared holders of each slot, or -1.
    locks: Mutex<[i32; SHM_LOCKS]>,
}

struct Region(*mut [u64]);

// SAFETY: only SQLite looks into the memory, under its own locks.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, dropped once, when no open file has the `Shm` any more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

#[repr(C)]
struct OpenFile {
    file: File,
    inner: *mut Inner,
}

struct Inner {
    plain: &'static Plain,
    file: Arc<dyn DiskFile>,
    path: Option<PathBuf>,
    delete_on_close: bool,
    /// The next flush also flushes the directory.
    is_new: bool,
    level: c_int,
    shm: Option<Arc<Shm>>,
    shm_shared: [bool; SHM_LOCKS],
    shm_exclusive: [bool; SHM_LOCKS],
}

static METHODS: IoMethods = IoMethods {
    version: 2,
    close: Some(close),
    read: Some(read),
    write: Some(write),
    truncate: Some(truncate),
    sync: Some(sync),
    file_size: Some(file_size),
    lock: Some(lock),
    unlock: Some(unlock),
    check_reserved_lock: Some(check_reserved_lock),
    file_control: Some(file_control),
    sector_size: Some(sector_size),
    device_characteristics: Some(device_characteristics),
    shm_map: Some(shm_map),
    shm_lock: Some(shm_lock),
    shm_barrier: Some(shm_barrier),
    shm_unmap: Some(shm_unmap),
    fetch: None,
    unfetch: None,
};

/// Registers the VFS `name` on the machine in `socket`. The structure is leaked.
pub fn register(name: &'static CStr, socket: Socket) {
    let plain: &'static Plain = Box::leak(Box::new(Plain { socket, shared: Mutex::default() }));
    let api = onewrite_rusqlite::api();
    // SAFETY: "unix" is a C string; a registered structure stays and is plain data.
    let unix = unsafe { (api.vfs_find)(c"unix".as_ptr()).read() };
    let vfs = Vfs {
        file_bytes: size_of::<OpenFile>() as c_int,
        path_bytes_max: 512,
        next: std::ptr::null_mut(),
        name: name.as_ptr(),
        app_data: std::ptr::from_ref(plain).cast_mut().cast(),
        open: Some(x_open),
        delete: Some(x_delete),
        access: Some(x_access),
        full_pathname: Some(x_full_pathname),
        ..unix
    };
    // SAFETY: the structure is leaked, so it lives as long as the process.
    let rc = unsafe { (api.vfs_register)(Box::leak(Box::new(vfs)), 0) };
    assert_eq!(rc, code::OK, "SQLite registers a VFS");
}

/// # Safety
/// `vfs` is a structure made by [`register`].
unsafe fn plain(vfs: *mut Vfs) -> &'static Plain {
    // SAFETY: `app_data` is the leaked `Plain`.
    unsafe { &*(*vfs).app_data.cast::<Plain>() }
}

/// # Safety
/// `file` was filled by [`x_open`] and is not closed; one call at a time uses it.
unsafe fn inner<'a>(file: *mut File) -> &'a mut Inner {
    // SAFETY: as promised by the caller.
    unsafe { &mut *(*file.cast::<OpenFile>()).inner }
}

fn path_of(name: &CStr) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(name.to_bytes()))
}

fn rc(result: std::io::Result<()>, otherwise: c_int) -> c_int {
    match result {
        Ok(()) => code::OK,
        Err(e) if e.kind() == ErrorKind::StorageFull => code::FULL,
        Err(_) => otherwise,
    }
}

// Below, SQLite promises: the VFS is the one registered, names are C strings, files were filled by
// `x_open`, buffers have the size given with them, and pointers for answers are valid (that for
// flags may be null).

unsafe extern "C" fn x_open(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: see above.
    let (plain, path) = unsafe {
        (*file).methods = std::ptr::null();
        (plain(vfs), (!name.is_null()).then(|| path_of(CStr::from_ptr(name))))
    };
    let mode = match flags {
        f if f & open::CREATE != 0 => OpenMode::Create,
        f if f & open::READWRITE != 0 => OpenMode::ReadWrite,
        _ => OpenMode::ReadOnly,
    };
    let is_journal = flags & (open::MAIN_JOURNAL | open::SUPER_JOURNAL | open::WAL) != 0;
    let opened = match &path {
        Some(path) => plain.socket.open(path, mode),
        None => plain.socket.temp_file(Path::new("/temporary")),
    };
    let Ok(opened) = opened else { return code::CANTOPEN };
    let inner = Box::new(Inner {
        plain,
        file: opened,
        path,
        delete_on_close: flags & DELETE_ON_CLOSE != 0,
        is_new: is_journal && mode == OpenMode::Create,
        level: 0,
        shm: None,
        shm_shared: [false; SHM_LOCKS],
        shm_exclusive: [false; SHM_LOCKS],
    });
    // SAFETY: see above; the buffer has the size the structure asks for.
    unsafe {
        file.cast::<OpenFile>()
            .write(OpenFile { file: File { methods: &raw const METHODS }, inner: Box::into_raw(inner) });
        if !out_flags.is_null() {
            out_flags.write(flags);
        }
    }
    code::OK
}

unsafe extern "C" fn x_delete(vfs: *mut Vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: see above.
    let (plain, path) = unsafe { (plain(vfs), path_of(CStr::from_ptr(name))) };
    match plain.socket.remove(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return code::IOERR_DELETE_NOENT,
        Err(_) => return code::IOERR_DELETE,
        Ok(()) if sync_dir == 0 => return code::OK,
        Ok(()) => {}
    }
    rc(plain.socket.sync_dir_of(&path), code::IOERR_FSYNC)
}

unsafe extern "C" fn x_access(vfs: *mut Vfs, name: *const c_char, _flags: c_int, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    let (plain, path) = unsafe { (plain(vfs), path_of(CStr::from_ptr(name))) };
    let there = plain.socket.exists(&path).and_then(|there| {
        // An empty file does not count, as in `unixAccess`.
        Ok(there && plain.socket.open(&path, OpenMode::ReadOnly)?.len()? > 0)
    });
    let Ok(there) = there else { return code::IOERR_ACCESS };
    // SAFETY: see above.
    unsafe { answer.write(c_int::from(there)) };
    code::OK
}

unsafe extern "C" fn x_full_pathname(_: *mut Vfs, name: *const c_char, bytes: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if usize::try_from(bytes).is_ok_and(|bytes| name.len() <= bytes) {
        // SAFETY: the text fits.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr().cast(), out, name.len()) };
        code::OK
    } else {
        code::CANTOPEN
    }
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: see above; SQLite closes a file once.
    let mut inner = unsafe {
        (*file).methods = std::ptr::null();
        Box::from_raw((*file.cast::<OpenFile>()).inner)
    };
    inner.drop_shm();
    if let Some(path) = inner.path.as_ref().filter(|_| inner.delete_on_close) {
        return rc(inner.plain.socket.remove(path), code::IOERR_DELETE);
    }
    code::OK
}

unsafe extern "C" fn read(file: *mut File, buf: *mut c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (inner, buf) = unsafe { (inner(file), std::slice::from_raw_parts_mut(buf.cast::<u8>(), amount as usize)) };
    match inner.file.read_at(buf, offset as u64) {
        Ok(got) if got == buf.len() => code::OK,
        Ok(got) => {
            buf[got..].fill(0);
            code::IOERR_SHORT_READ
        }
        Err(_) => code::IOERR_READ,
    }
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, amount: c_int, offset: i64) -> c_int {
    // SAFETY: see above.
    let (inner, data) = unsafe { (inner(file), std::slice::from_raw_parts(data.cast::<u8>(), amount as usize)) };
    rc(inner.file.write_at(data, offset as u64), code::IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: see above.
    rc(unsafe { inner(file) }.file.set_len(len as u64), code::IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut File, _flags: c_int) -> c_int {
    // SAFETY: see above.
    let inner = unsafe { inner(file) };
    let mut done = inner.file.sync();
    if let Some(path) = inner.path.as_ref().filter(|_| inner.is_new && done.is_ok()) {
        done = inner.plain.socket.sync_dir_of(path);
        inner.is_new = done.is_err();
    }
    rc(done, code::IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut File, answer: *mut i64) -> c_int {
    // SAFETY: see above.
    let Ok(len) = unsafe { inner(file) }.file.len() else { return code::IOERR_FSTAT };
    // SAFETY: see above.
    unsafe { answer.write(len as i64) };
    code::OK
}

unsafe extern "C" fn lock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    let inner = unsafe { inner(file) };
    match inner.raise(level) {
        Ok(true) => code::OK,
        Ok(false) => code::BUSY,
        Err(_) => code::IOERR_LOCK,
    }
}

unsafe extern "C" fn unlock(file: *mut File, level: c_int) -> c_int {
    // SAFETY: see above.
    let inner = unsafe { inner(file) };
    rc(inner.lower(level), code::IOERR_UNLOCK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    let inner = unsafe { inner(file) };
    let taken =
        if inner.level >= LEVEL_RESERVED { Ok(true) } else { inner.file.conflicts(RESERVED, 1, LockKind::Exclusive) };
    let Ok(taken) = taken else { return code::IOERR_CHECKRESERVEDLOCK };
    // SAFETY: see above.
    unsafe { answer.write(c_int::from(taken)) };
    code::OK
}

unsafe extern "C" fn file_control(_: *mut File, _op: c_int, _arg: *mut c_void) -> c_int {
    code::NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut File) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut File) -> c_int {
    iocap::POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut File,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    answer: *mut *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let inner = unsafe { inner(file) };
    let Ok(shm) = inner.shm() else { return code::IOERR_SHMMAP };
    let mut regions = shm.regions.lock();
    while extend != 0 && regions.len() <= region as usize {
        regions.push(Region(Box::into_raw(vec![0u64; bytes as usize / 8].into_boxed_slice())));
    }
    let place = regions.get(region as usize).map_or(std::ptr::null_mut(), |region| region.0.cast::<c_void>());
    // SAFETY: see above.
    unsafe { answer.write(place) };
    code::OK
}

unsafe extern "C" fn shm_lock(file: *mut File, offset: c_int, count: c_int, flags: c_int) -> c_int {
    // SAFETY: see above.
    let inner = unsafe { inner(file) };
    let Some(shm) = inner.shm.clone() else { return code::IOERR_SHMLOCK };
    let range = offset as usize..(offset + count) as usize;
    let mut locks = shm.locks.lock();
    if flags & SHM_UNLOCK != 0 {
        range.for_each(|slot| inner.shm_release(&mut locks, slot));
        return code::OK;
    }
    let shared = flags & SHM_SHARED != 0;
    let free = |slot: usize| match shared {
        true => locks[slot] >= 0 || inner.shm_exclusive[slot],
        false => locks[slot] == 0 || (locks[slot] == 1 && inner.shm_shared[slot]) || inner.shm_exclusive[slot],
    };
    if !range.clone().all(free) {
        return code::BUSY;
    }
    for slot in range {
        if shared && !inner.shm_shared[slot] {
            locks[slot] += 1;
            inner.shm_shared[slot] = true;
        } else if !shared {
            locks[slot] = -1;
            inner.shm_exclusive[slot] = true;
        }
    }
    code::OK
}

unsafe extern "C" fn shm_barrier(_: *mut File) {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut File, _delete: c_int) -> c_int {
    // SAFETY: see above.
    unsafe { inner(file) }.drop_shm();
    code::OK
}

impl Inner {
    fn raise(&mut self, level: c_int) -> std::io::Result<bool> {
        if level <= self.level {
            return Ok(true);
        }
        let file = &self.file;
        if level == LEVEL_SHARED {
            if !file.try_lock(PENDING, 1, LockKind::Shared)? {
                return Ok(false);
            }
            let got = file.try_lock(SHARED, SHARED_BYTES, LockKind::Shared);
            file.unlock(PENDING, 1)?;
            if !got? {
                return Ok(false);
            }
        } else if level == LEVEL_RESERVED {
            if !file.try_lock(RESERVED, 1, LockKind::Exclusive)? {
                return Ok(false);
            }
        } else {
            if self.level < LEVEL_PENDING && !file.try_lock(PENDING, 1, LockKind::Exclusive)? {
                return Ok(false);
            }
            self.level = LEVEL_PENDING;
            if level == LEVEL_EXCLUSIVE && !file.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive)? {
                return Ok(false);
            }
        }
        self.level = level;
        Ok(true)
    }

    fn lower(&mut self, level: c_int) -> std::io::Result<()> {
        if level >= self.level {
            return Ok(());
        }
        if level == LEVEL_SHARED {
            self.file.try_lock(SHARED, SHARED_BYTES, LockKind::Shared)?;
            self.file.unlock(PENDING, 2)?;
        } else {
            self.file.unlock(PENDING, 2 + SHARED_BYTES)?;
        }
        self.level = level;
        Ok(())
    }

    fn shm(&mut self) -> std::io::Result<Arc<Shm>> {
        if let Some(shm) = &self.shm {
            return Ok(shm.clone());
        }
        let shm = self.plain.shared.lock().entry(self.file.id()?).or_default().clone();
        self.shm = Some(shm.clone());
        Ok(shm)
    }

    fn shm_release(&mut self, locks: &mut [i32; SHM_LOCKS], slot: usize) {
        if std::mem::take(&mut self.shm_exclusive[slot]) {
            locks[slot] = 0;
            self.shm_shared[slot] = false;
        } else if std::mem::take(&mut self.shm_shared[slot]) {
            locks[slot] -= 1;
        }
    }

    fn drop_shm(&mut self) {
        let Some(shm) = self.shm.take() else { return };
        let mut locks = shm.locks.lock();
        (0..SHM_LOCKS).for_each(|slot| self.shm_release(&mut locks, slot));
        drop(locks);
        // The last user frees the memory, as `unixShmUnmap` does.
        self.plain.shared.lock().retain(|_, other| !Arc::ptr_eq(other, &shm) || Arc::strong_count(other) > 2);
    }
}
