//! The part of SQLite's C interface that a VFS is made of, as declared in `sqlite3.h`: structures,
//! function types and constants. Nothing here is linked against SQLite; every function of SQLite's
//! is reached through [`crate::Api`]. `tests/layout.rs` compares all of it with the real headers.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `sqlite3_file`: what SQLite allocates for an open file; a VFS puts its own fields behind it.
#[repr(C)]
pub struct File {
    pub methods: *const IoMethods,
}

/// `sqlite3_io_methods`.
#[repr(C)]
pub struct IoMethods {
    pub version: c_int,
    pub close: Option<unsafe extern "C" fn(*mut File) -> c_int>,
    pub read: Option<unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int>,
    pub write: Option<unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int>,
    pub truncate: Option<unsafe extern "C" fn(*mut File, i64) -> c_int>,
    pub sync: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub file_size: Option<unsafe extern "C" fn(*mut File, *mut i64) -> c_int>,
    pub lock: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub unlock: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub check_reserved_lock: Option<unsafe extern "C" fn(*mut File, *mut c_int) -> c_int>,
    pub file_control: Option<unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int>,
    pub sector_size: Option<unsafe extern "C" fn(*mut File) -> c_int>,
    pub device_characteristics: Option<unsafe extern "C" fn(*mut File) -> c_int>,
    // Version 2.
    pub shm_map: Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub shm_lock: Option<unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int>,
    pub shm_barrier: Option<unsafe extern "C" fn(*mut File)>,
    pub shm_unmap: Option<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    // Version 3.
    pub fetch: Option<unsafe extern "C" fn(*mut File, i64, c_int, *mut *mut c_void) -> c_int>,
    pub unfetch: Option<unsafe extern "C" fn(*mut File, i64, *mut c_void) -> c_int>,
}

/// `void (*)(void)`: what `xDlSym` and `xGetSystemCall` answer with.
pub type AnyFn = unsafe extern "C" fn();

/// `sqlite3_vfs`, version 3.
#[repr(C)]
pub struct Vfs {
    pub version: c_int,
    pub file_bytes: c_int,
    pub path_bytes_max: c_int,
    pub next: *mut Vfs,
    pub name: *const c_char,
    pub app_data: *mut c_void,
    pub open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int>,
    pub delete: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int>,
    pub access: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub full_pathname: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub dl_sym: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Option<AnyFn>>,
    pub dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub randomness: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub sleep: Option<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>,
    pub current_time: Option<unsafe extern "C" fn(*mut Vfs, *mut f64) -> c_int>,
    pub get_last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    // Version 2.
    pub current_time_i64: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int>,
    // Version 3.
    pub set_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, Option<AnyFn>) -> c_int>,
    pub get_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> Option<AnyFn>>,
    pub next_system_call: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *const c_char>,
}

/// `sqlite3_libversion_number`.
pub type VersionFn = unsafe extern "C" fn() -> c_int;
/// `sqlite3_vfs_find`.
pub type VfsFindFn = unsafe extern "C" fn(*const c_char) -> *mut Vfs;
/// `sqlite3_vfs_register`.
pub type VfsRegisterFn = unsafe extern "C" fn(*mut Vfs, c_int) -> c_int;
/// `sqlite3_malloc64`.
pub type MallocFn = unsafe extern "C" fn(u64) -> *mut c_void;
/// `sqlite3_malloc`.
pub type OldMallocFn = unsafe extern "C" fn(c_int) -> *mut c_void;
/// `sqlite3_uri_parameter`.
pub type UriParameterFn = unsafe extern "C" fn(*const c_char, *const c_char) -> *const c_char;
/// `sqlite3_uri_boolean`.
pub type UriBooleanFn = unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int;
/// `sqlite3_uri_key`.
pub type UriKeyFn = unsafe extern "C" fn(*const c_char, c_int) -> *const c_char;
/// `sqlite3_filename_journal` and `sqlite3_filename_wal`.
pub type FilenameFn = unsafe extern "C" fn(*const c_char) -> *const c_char;
/// `sqlite3_log`. Variadic: called with the format `%s` and one string, nothing else.
pub type LogFn = unsafe extern "C" fn(c_int, *const c_char, ...);

/// Index of each function used in `sqlite3_api_routines`, a table of function pointers that SQLite
/// hands to a loadable extension and only ever appends to.
pub mod slot {
    pub const LIBVERSION_NUMBER: usize = 67;
    pub const MALLOC: usize = 68;
    pub const VFS_FIND: usize = 141;
    pub const VFS_REGISTER: usize = 142;
    pub const LOG: usize = 167;
    pub const URI_BOOLEAN: usize = 187;
    pub const URI_PARAMETER: usize = 189;
    pub const MALLOC64: usize = 197;
    pub const URI_KEY: usize = 245;
    pub const FILENAME_JOURNAL: usize = 247;
    pub const FILENAME_WAL: usize = 248;
}

/// Result codes.
pub mod code {
    use std::ffi::c_int;
    pub const OK: c_int = 0;
    pub const ERROR: c_int = 1;
    pub const INTERNAL: c_int = 2;
    pub const BUSY: c_int = 5;
    pub const NOMEM: c_int = 7;
    pub const READONLY: c_int = 8;
    pub const IOERR: c_int = 10;
    pub const CORRUPT: c_int = 11;
    pub const NOTFOUND: c_int = 12;
    pub const FULL: c_int = 13;
    pub const CANTOPEN: c_int = 14;
    pub const MISUSE: c_int = 21;
    pub const NOTADB: c_int = 26;
    pub const NOTICE: c_int = 27;
    pub const OK_LOAD_PERMANENTLY: c_int = 256;
    pub const BUSY_SNAPSHOT: c_int = BUSY | (2 << 8);
    pub const IOERR_READ: c_int = IOERR | (1 << 8);
    pub const IOERR_SHORT_READ: c_int = IOERR | (2 << 8);
    pub const IOERR_WRITE: c_int = IOERR | (3 << 8);
    pub const IOERR_FSYNC: c_int = IOERR | (4 << 8);
    pub const IOERR_TRUNCATE: c_int = IOERR | (6 << 8);
    pub const IOERR_FSTAT: c_int = IOERR | (7 << 8);
    pub const IOERR_UNLOCK: c_int = IOERR | (8 << 8);
    pub const IOERR_DELETE: c_int = IOERR | (10 << 8);
    pub const IOERR_ACCESS: c_int = IOERR | (13 << 8);
    pub const IOERR_CHECKRESERVEDLOCK: c_int = IOERR | (14 << 8);
    pub const IOERR_LOCK: c_int = IOERR | (15 << 8);
    pub const IOERR_CLOSE: c_int = IOERR | (16 << 8);
    pub const IOERR_SHMLOCK: c_int = IOERR | (20 << 8);
    pub const IOERR_SHMMAP: c_int = IOERR | (21 << 8);
    pub const IOERR_DELETE_NOENT: c_int = IOERR | (23 << 8);
}

/// Flags of `xOpen`.
pub mod open {
    use std::ffi::c_int;
    pub const READONLY: c_int = 0x1;
    pub const READWRITE: c_int = 0x2;
    pub const CREATE: c_int = 0x4;
    pub const EXCLUSIVE: c_int = 0x10;
    pub const MAIN_DB: c_int = 0x100;
    pub const MAIN_JOURNAL: c_int = 0x800;
    pub const SUPER_JOURNAL: c_int = 0x4000;
    pub const WAL: c_int = 0x80000;
}

/// Flags of `xAccess`.
pub mod access {
    use std::ffi::c_int;
    pub const EXISTS: c_int = 0;
}

/// Bits of `xDeviceCharacteristics`.
pub mod iocap {
    use std::ffi::c_int;
    pub const POWERSAFE_OVERWRITE: c_int = 0x1000;
}

/// Operations of `xFileControl`.
pub mod fcntl {
    use std::ffi::c_int;
    pub const LOCKSTATE: c_int = 1;
    pub const LAST_ERRNO: c_int = 4;
    pub const SIZE_HINT: c_int = 5;
    pub const CHUNK_SIZE: c_int = 6;
    pub const PERSIST_WAL: c_int = 10;
    pub const VFSNAME: c_int = 12;
    pub const POWERSAFE_OVERWRITE: c_int = 13;
    pub const PRAGMA: c_int = 14;
    pub const TEMPFILENAME: c_int = 16;
    pub const MMAP_SIZE: c_int = 18;
    pub const HAS_MOVED: c_int = 20;
    pub const SYNC: c_int = 21;
    pub const COMMIT_PHASETWO: c_int = 22;
    /// `ONEWRITE_FCNTL_SPLIT` of `onewrite.h`: onewrite's own.
    pub const SPLIT: c_int = 0x6f77_0001;
}

/// `onewrite_split` of `onewrite.h`: the argument of [`fcntl::SPLIT`].
#[repr(C)]
pub struct SplitPolicy {
    pub policy: c_int,
    pub reserve_cells: c_uint,
}

/// Values of [`SplitPolicy::policy`].
pub mod split {
    use std::ffi::c_int;
    pub const STOCK: c_int = 0;
    pub const LAZY: c_int = 1;
    pub const LEGACY: c_int = 2;
}
