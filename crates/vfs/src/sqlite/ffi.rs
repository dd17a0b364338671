//! The part of SQLite's C interface that a VFS is made of, as declared in `sqlite3.h`: structures,
//! function types and constants. Nothing here is linked against SQLite; every function of SQLite's
//! is reached through [`crate::Api`]. `tests/suite/layout.rs` compares all of it with the real
//! headers.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `sqlite3_file`: SQLite allocates it for an open file; a VFS puts its own fields behind it.
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

impl IoMethods {
    /// No method: what a file leaves out.
    pub const NONE: IoMethods = IoMethods {
        version: 1,
        close: None,
        read: None,
        write: None,
        truncate: None,
        sync: None,
        file_size: None,
        lock: None,
        unlock: None,
        check_reserved_lock: None,
        file_control: None,
        sector_size: None,
        device_characteristics: None,
        shm_map: None,
        shm_lock: None,
        shm_barrier: None,
        shm_unmap: None,
        fetch: None,
        unfetch: None,
    };
}

/// `void (*)(void)`: the answer of `xDlSym` and `xGetSystemCall`.
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

/// Index of each function used in `sqlite3_api_routines`, a table of pointers that SQLite hands to
/// an extension and only ever appends to.
pub mod slot {
    pub const DECLARE_VTAB: usize = 50;
    pub const FREE: usize = 58;
    pub const GET_AUTOCOMMIT: usize = 60;
    pub const LIBVERSION_NUMBER: usize = 67;
    pub const MALLOC: usize = 68;
    pub const RESULT_DOUBLE: usize = 79;
    pub const RESULT_INT64: usize = 83;
    pub const RESULT_NULL: usize = 84;
    pub const RESULT_TEXT: usize = 85;
    pub const VALUE_TEXT: usize = 109;
    pub const CREATE_MODULE_V2: usize = 119;
    pub const FILE_CONTROL: usize = 127;
    pub const VFS_FIND: usize = 141;
    pub const VFS_REGISTER: usize = 142;
    pub const CONTEXT_DB_HANDLE: usize = 149;
    pub const CREATE_FUNCTION_V2: usize = 162;
    pub const LOG: usize = 167;
    pub const URI_BOOLEAN: usize = 187;
    pub const URI_PARAMETER: usize = 189;
    pub const AUTO_EXTENSION: usize = 192;
    pub const MALLOC64: usize = 197;
    pub const URI_KEY: usize = 245;
    pub const FILENAME_JOURNAL: usize = 247;
    pub const FILENAME_WAL: usize = 248;
    pub const TXN_STATE: usize = 252;
}

/// Result codes.
pub mod code {
    use std::ffi::c_int;
    pub const OK: c_int = 0;
    pub const ERROR: c_int = 1;
    pub const INTERNAL: c_int = 2;
    pub const BUSY: c_int = 5;
    pub const LOCKED: c_int = 6;
    pub const NOMEM: c_int = 7;
    pub const READONLY: c_int = 8;
    pub const READONLY_DBMOVED: c_int = 8 | (4 << 8);
    pub const READONLY_DIRECTORY: c_int = 8 | (6 << 8);
    pub const IOERR: c_int = 10;
    pub const CORRUPT: c_int = 11;
    pub const NOTFOUND: c_int = 12;
    pub const FULL: c_int = 13;
    pub const CANTOPEN: c_int = 14;
    pub const CONSTRAINT: c_int = 19;
    pub const MISUSE: c_int = 21;
    pub const WARNING: c_int = 28;
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
    pub const IOERR_NOMEM: c_int = IOERR | (12 << 8);
    pub const IOERR_ACCESS: c_int = IOERR | (13 << 8);
    pub const IOERR_CHECKRESERVEDLOCK: c_int = IOERR | (14 << 8);
    pub const IOERR_LOCK: c_int = IOERR | (15 << 8);
    pub const IOERR_CLOSE: c_int = IOERR | (16 << 8);
    pub const IOERR_SHMLOCK: c_int = IOERR | (20 << 8);
    pub const IOERR_SHMMAP: c_int = IOERR | (21 << 8);
    pub const IOERR_MMAP: c_int = IOERR | (24 << 8);
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
    pub const BUSYHANDLER: c_int = 15;
    pub const TEMPFILENAME: c_int = 16;
    pub const MMAP_SIZE: c_int = 18;
    pub const HAS_MOVED: c_int = 20;
    pub const SYNC: c_int = 21;
    pub const COMMIT_PHASETWO: c_int = 22;
    pub const PDB: c_int = 30;
    /// `ONEWRITE_FCNTL_SPLIT` of `onewrite.h`: onewrite's own.
    pub const SPLIT: c_int = 0x6f77_0001;
    /// `ONEWRITE_FCNTL_IN_USE` of `onewrite.h`: onewrite's own.
    pub const IN_USE: c_int = 0x6f77_0002;
    /// `ONEWRITE_FCNTL_CHANGED` of `onewrite.h`: onewrite's own.
    pub const CHANGED: c_int = 0x6f77_0003;
}

/// `onewrite_split` of `onewrite.h`: the argument of [`fcntl::SPLIT`].
#[repr(C)]
pub struct SplitPolicy {
    pub policy: c_int,
    pub reserve_cells: c_uint,
    pub beside: c_int,
}

/// `onewrite_in_use` of `onewrite.h`: the argument of [`fcntl::IN_USE`].
#[repr(C)]
pub struct InUse {
    pub page: c_uint,
    pub offset: c_uint,
    pub bytes: c_uint,
    pub in_use: c_int,
}

/// `onewrite_changed` of `onewrite.h`: the argument of [`fcntl::CHANGED`].
#[repr(C)]
pub struct ChangedPages {
    pub pages: *const c_uint,
    pub count: usize,
}

/// Values of [`SplitPolicy::policy`].
pub mod split {
    use std::ffi::c_int;
    pub const STOCK: c_int = 0;
    pub const LAZY: c_int = 1;
    pub const LEGACY: c_int = 2;
}

/// `sqlite3`, `sqlite3_context` and `sqlite3_value`: only ever passed on.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

/// `sqlite3_get_autocommit`.
pub type AutocommitFn = unsafe extern "C" fn(*mut Opaque) -> c_int;
/// `sqlite3_txn_state`.
pub type TxnStateFn = unsafe extern "C" fn(*mut Opaque, *const c_char) -> c_int;
/// The busy handler of a connection, as `SQLITE_FCNTL_BUSYHANDLER` tells it.
pub type BusyFn = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `sqlite3_auto_extension`, and the entry points it takes.
pub type AutoExtensionFn = unsafe extern "C" fn(Option<AnyFn>) -> c_int;
/// The entry point of an extension.
pub type EntryFn = unsafe extern "C" fn(*mut Opaque, *mut *mut c_char, *const c_void) -> c_int;
/// The function behind an SQL function: context, number of arguments, arguments.
pub type SqlFn = unsafe extern "C" fn(*mut Opaque, c_int, *mut *mut Opaque);
/// `sqlite3_create_function_v2`.
pub type CreateFunctionFn = unsafe extern "C" fn(
    *mut Opaque,
    *const c_char,
    c_int,
    c_int,
    *mut c_void,
    Option<SqlFn>,
    Option<SqlFn>,
    Option<unsafe extern "C" fn(*mut Opaque)>,
    Option<unsafe extern "C" fn(*mut c_void)>,
) -> c_int;
/// `sqlite3_create_module_v2`.
pub type CreateModuleFn = unsafe extern "C" fn(
    *mut Opaque,
    *const c_char,
    *const Module,
    *mut c_void,
    Option<unsafe extern "C" fn(*mut c_void)>,
) -> c_int;
/// `sqlite3_declare_vtab`.
pub type DeclareVtabFn = unsafe extern "C" fn(*mut Opaque, *const c_char) -> c_int;
/// `sqlite3_file_control`.
pub type FileControlFn = unsafe extern "C" fn(*mut Opaque, *const c_char, c_int, *mut c_void) -> c_int;
/// `sqlite3_free`.
pub type FreeFn = unsafe extern "C" fn(*mut c_void);
/// `sqlite3_context_db_handle`.
pub type DbHandleFn = unsafe extern "C" fn(*mut Opaque) -> *mut Opaque;
/// `sqlite3_value_text`.
pub type ValueTextFn = unsafe extern "C" fn(*mut Opaque) -> *const u8;
/// `sqlite3_result_text`: the last argument is a destructor, or -1 for text that SQLite copies.
pub type ResultTextFn = unsafe extern "C" fn(*mut Opaque, *const c_char, c_int, isize);
/// `sqlite3_result_null`.
pub type ResultNullFn = unsafe extern "C" fn(*mut Opaque);
/// `sqlite3_result_int64`.
pub type ResultIntFn = unsafe extern "C" fn(*mut Opaque, i64);
/// `sqlite3_result_double`.
pub type ResultDoubleFn = unsafe extern "C" fn(*mut Opaque, f64);

/// `sqlite3_vtab`.
#[repr(C)]
pub struct Vtab {
    pub module: *const Module,
    pub references: c_int,
    pub error: *mut c_char,
}

/// `sqlite3_vtab_cursor`.
#[repr(C)]
pub struct VtabCursor {
    pub vtab: *mut Vtab,
}

/// `sqlite3_index_constraint`.
#[repr(C)]
pub struct IndexConstraint {
    pub column: c_int,
    pub op: u8,
    pub usable: u8,
    pub term_offset: c_int,
}

/// `sqlite3_index_constraint_usage`.
#[repr(C)]
pub struct IndexConstraintUsage {
    pub argv_index: c_int,
    pub omit: u8,
}

/// `sqlite3_index_info`, up to the field that was last when 3.8 was new.
#[repr(C)]
pub struct IndexInfo {
    pub constraint_count: c_int,
    pub constraints: *mut IndexConstraint,
    pub order_by_count: c_int,
    pub order_by: *mut c_void,
    pub usage: *mut IndexConstraintUsage,
    pub index_number: c_int,
    pub index_text: *mut c_char,
    pub free_index_text: c_int,
    pub order_by_consumed: c_int,
    pub estimated_cost: f64,
}

/// `sqlite3_module`, version 1, of a table that is only read.
#[repr(C)]
pub struct Module {
    pub version: c_int,
    pub create: Option<ConnectFn>,
    pub connect: Option<ConnectFn>,
    pub best_index: Option<unsafe extern "C" fn(*mut Vtab, *mut IndexInfo) -> c_int>,
    pub disconnect: Option<unsafe extern "C" fn(*mut Vtab) -> c_int>,
    pub destroy: Option<unsafe extern "C" fn(*mut Vtab) -> c_int>,
    pub open: Option<unsafe extern "C" fn(*mut Vtab, *mut *mut VtabCursor) -> c_int>,
    pub close: Option<unsafe extern "C" fn(*mut VtabCursor) -> c_int>,
    pub filter: Option<unsafe extern "C" fn(*mut VtabCursor, c_int, *const c_char, c_int, *mut *mut Opaque) -> c_int>,
    pub next: Option<unsafe extern "C" fn(*mut VtabCursor) -> c_int>,
    pub eof: Option<unsafe extern "C" fn(*mut VtabCursor) -> c_int>,
    pub column: Option<unsafe extern "C" fn(*mut VtabCursor, *mut Opaque, c_int) -> c_int>,
    pub rowid: Option<unsafe extern "C" fn(*mut VtabCursor, *mut i64) -> c_int>,
    /// xUpdate, xBegin, xSync, xCommit, xRollback, xFindFunction, xRename.
    pub unused: [Option<AnyFn>; 7],
}

/// `xConnect`.
pub type ConnectFn = unsafe extern "C" fn(
    *mut Opaque,
    *mut c_void,
    c_int,
    *const *const c_char,
    *mut *mut Vtab,
    *mut *mut c_char,
) -> c_int;

/// Properties of an SQL function when it is made, and of a constraint.
pub mod sql {
    use std::ffi::c_int;
    pub const UTF8: c_int = 1;
    pub const DETERMINISTIC: c_int = 0x800;
    pub const INDEX_CONSTRAINT_EQ: u8 = 2;
    /// The destructor that has SQLite copy a text.
    pub const TRANSIENT: isize = -1;
}
