//! Compares the declarations of `ffi.rs` with SQLite's: structures field by field, constants, and
//! the functions in the slots of an extension's table.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

use onewrite::ffi as ours;
use rusqlite::ffi as theirs;

macro_rules! same_layout {
    ($ours:ty, $theirs:ty, $($field:ident = $name:ident),+ $(,)?) => {
        $(assert_eq!(
            offset_of!($ours, $field), offset_of!($theirs, $name),
            concat!(stringify!($theirs), ".", stringify!($name))
        );)+
    };
}

#[test]
fn structures_have_sqlites_layout() {
    same_layout!(ours::File, theirs::sqlite3_file, methods = pMethods);
    assert_eq!(size_of::<ours::File>(), size_of::<theirs::sqlite3_file>());
    same_layout!(
        ours::IoMethods,
        theirs::sqlite3_io_methods,
        version = iVersion,
        close = xClose,
        read = xRead,
        write = xWrite,
        truncate = xTruncate,
        sync = xSync,
        file_size = xFileSize,
        lock = xLock,
        unlock = xUnlock,
        check_reserved_lock = xCheckReservedLock,
        file_control = xFileControl,
        sector_size = xSectorSize,
        device_characteristics = xDeviceCharacteristics,
        shm_map = xShmMap,
        shm_lock = xShmLock,
        shm_barrier = xShmBarrier,
        shm_unmap = xShmUnmap,
        fetch = xFetch,
        unfetch = xUnfetch,
    );
    assert_eq!(size_of::<ours::IoMethods>(), size_of::<theirs::sqlite3_io_methods>());
    same_layout!(
        ours::Vfs,
        theirs::sqlite3_vfs,
        version = iVersion,
        file_bytes = szOsFile,
        path_bytes_max = mxPathname,
        next = pNext,
        name = zName,
        app_data = pAppData,
        open = xOpen,
        delete = xDelete,
        access = xAccess,
        full_pathname = xFullPathname,
        dl_open = xDlOpen,
        dl_error = xDlError,
        dl_sym = xDlSym,
        dl_close = xDlClose,
        randomness = xRandomness,
        sleep = xSleep,
        current_time = xCurrentTime,
        get_last_error = xGetLastError,
        current_time_i64 = xCurrentTimeInt64,
        set_system_call = xSetSystemCall,
        get_system_call = xGetSystemCall,
        next_system_call = xNextSystemCall,
    );
    assert_eq!(size_of::<ours::Vfs>(), size_of::<theirs::sqlite3_vfs>());
    same_layout!(
        ours::Module,
        theirs::sqlite3_module,
        version = iVersion,
        create = xCreate,
        connect = xConnect,
        best_index = xBestIndex,
        disconnect = xDisconnect,
        destroy = xDestroy,
        open = xOpen,
        close = xClose,
        filter = xFilter,
        next = xNext,
        eof = xEof,
        column = xColumn,
        rowid = xRowid,
        unused = xUpdate,
    );
    assert_eq!(size_of::<ours::Module>(), offset_of!(theirs::sqlite3_module, xSavepoint));
    same_layout!(ours::Vtab, theirs::sqlite3_vtab, module = pModule, references = nRef, error = zErrMsg);
    assert_eq!(size_of::<ours::Vtab>(), size_of::<theirs::sqlite3_vtab>());
    same_layout!(ours::VtabCursor, theirs::sqlite3_vtab_cursor, vtab = pVtab);
    same_layout!(
        ours::IndexInfo,
        theirs::sqlite3_index_info,
        constraint_count = nConstraint,
        constraints = aConstraint,
        order_by_count = nOrderBy,
        order_by = aOrderBy,
        usage = aConstraintUsage,
        index_number = idxNum,
        index_text = idxStr,
        free_index_text = needToFreeIdxStr,
        order_by_consumed = orderByConsumed,
        estimated_cost = estimatedCost,
    );
    same_layout!(
        ours::IndexConstraint,
        theirs::sqlite3_index_constraint,
        column = iColumn,
        op = op,
        usable = usable,
        term_offset = iTermOffset,
    );
    same_layout!(
        ours::IndexConstraintUsage,
        theirs::sqlite3_index_constraint_usage,
        argv_index = argvIndex,
        omit = omit,
    );
    assert_eq!(
        (size_of::<ours::IndexConstraint>(), size_of::<ours::IndexConstraintUsage>()),
        (size_of::<theirs::sqlite3_index_constraint>(), size_of::<theirs::sqlite3_index_constraint_usage>())
    );
}

#[test]
fn constants_are_sqlites() {
    assert_eq!(c_int::from(ours::sql::INDEX_CONSTRAINT_EQ), theirs::SQLITE_INDEX_CONSTRAINT_EQ);
    macro_rules! same {
        ($($module:ident::$ours:ident = $theirs:ident),+ $(,)?) => {
            $(assert_eq!(ours::$module::$ours, theirs::$theirs, stringify!($theirs));)+
        };
    }
    same!(
        code::OK = SQLITE_OK,
        code::ERROR = SQLITE_ERROR,
        code::INTERNAL = SQLITE_INTERNAL,
        code::BUSY = SQLITE_BUSY,
        code::NOMEM = SQLITE_NOMEM,
        code::READONLY = SQLITE_READONLY,
        code::IOERR = SQLITE_IOERR,
        code::CORRUPT = SQLITE_CORRUPT,
        code::NOTFOUND = SQLITE_NOTFOUND,
        code::FULL = SQLITE_FULL,
        code::CANTOPEN = SQLITE_CANTOPEN,
        code::CONSTRAINT = SQLITE_CONSTRAINT,
        code::MISUSE = SQLITE_MISUSE,
        code::NOTADB = SQLITE_NOTADB,
        code::OK_LOAD_PERMANENTLY = SQLITE_OK_LOAD_PERMANENTLY,
        code::BUSY_SNAPSHOT = SQLITE_BUSY_SNAPSHOT,
        code::IOERR_READ = SQLITE_IOERR_READ,
        code::IOERR_SHORT_READ = SQLITE_IOERR_SHORT_READ,
        code::IOERR_WRITE = SQLITE_IOERR_WRITE,
        code::IOERR_FSYNC = SQLITE_IOERR_FSYNC,
        code::IOERR_TRUNCATE = SQLITE_IOERR_TRUNCATE,
        code::IOERR_FSTAT = SQLITE_IOERR_FSTAT,
        code::IOERR_UNLOCK = SQLITE_IOERR_UNLOCK,
        code::IOERR_DELETE = SQLITE_IOERR_DELETE,
        code::IOERR_ACCESS = SQLITE_IOERR_ACCESS,
        code::IOERR_CHECKRESERVEDLOCK = SQLITE_IOERR_CHECKRESERVEDLOCK,
        code::IOERR_LOCK = SQLITE_IOERR_LOCK,
        code::IOERR_CLOSE = SQLITE_IOERR_CLOSE,
        code::IOERR_SHMLOCK = SQLITE_IOERR_SHMLOCK,
        code::IOERR_SHMMAP = SQLITE_IOERR_SHMMAP,
        code::IOERR_DELETE_NOENT = SQLITE_IOERR_DELETE_NOENT,
        open::READONLY = SQLITE_OPEN_READONLY,
        open::READWRITE = SQLITE_OPEN_READWRITE,
        open::CREATE = SQLITE_OPEN_CREATE,
        open::EXCLUSIVE = SQLITE_OPEN_EXCLUSIVE,
        open::MAIN_DB = SQLITE_OPEN_MAIN_DB,
        open::MAIN_JOURNAL = SQLITE_OPEN_MAIN_JOURNAL,
        open::SUPER_JOURNAL = SQLITE_OPEN_SUPER_JOURNAL,
        open::WAL = SQLITE_OPEN_WAL,
        sql::UTF8 = SQLITE_UTF8,
        sql::DETERMINISTIC = SQLITE_DETERMINISTIC,
        access::EXISTS = SQLITE_ACCESS_EXISTS,
        iocap::POWERSAFE_OVERWRITE = SQLITE_IOCAP_POWERSAFE_OVERWRITE,
        fcntl::LOCKSTATE = SQLITE_FCNTL_LOCKSTATE,
        fcntl::LAST_ERRNO = SQLITE_FCNTL_LAST_ERRNO,
        fcntl::SIZE_HINT = SQLITE_FCNTL_SIZE_HINT,
        fcntl::CHUNK_SIZE = SQLITE_FCNTL_CHUNK_SIZE,
        fcntl::PERSIST_WAL = SQLITE_FCNTL_PERSIST_WAL,
        fcntl::VFSNAME = SQLITE_FCNTL_VFSNAME,
        fcntl::POWERSAFE_OVERWRITE = SQLITE_FCNTL_POWERSAFE_OVERWRITE,
        fcntl::PRAGMA = SQLITE_FCNTL_PRAGMA,
        fcntl::TEMPFILENAME = SQLITE_FCNTL_TEMPFILENAME,
        fcntl::MMAP_SIZE = SQLITE_FCNTL_MMAP_SIZE,
        fcntl::HAS_MOVED = SQLITE_FCNTL_HAS_MOVED,
        fcntl::SYNC = SQLITE_FCNTL_SYNC,
        fcntl::COMMIT_PHASETWO = SQLITE_FCNTL_COMMIT_PHASETWO,
    );
}

/// The table that SQLite passed to the entry point below.
static ROUTINES: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn keep_routines(
    _db: *mut theirs::sqlite3,
    _error: *mut *mut c_char,
    routines: *const theirs::sqlite3_api_routines,
) -> c_int {
    ROUTINES.store(routines as usize, Ordering::SeqCst);
    0
}

/// SQLite hands its table to every automatic extension when a connection opens.
fn routines() -> *const c_void {
    // SAFETY: the entry point has the type SQLite asks for, and is taken back.
    unsafe {
        assert_eq!(theirs::sqlite3_auto_extension(Some(keep_routines)), 0);
        rusqlite::Connection::open_in_memory().unwrap();
        theirs::sqlite3_cancel_auto_extension(Some(keep_routines));
    }
    ROUTINES.load(Ordering::SeqCst) as *const c_void
}

#[test]
fn slots_hold_the_functions_they_are_taken_for() {
    let table = routines().cast::<usize>();
    assert!(!table.is_null());
    let expected = [
        (ours::slot::LIBVERSION_NUMBER, theirs::sqlite3_libversion_number as *const () as usize, "libversion_number"),
        (ours::slot::MALLOC, theirs::sqlite3_malloc as *const () as usize, "malloc"),
        (ours::slot::VFS_FIND, theirs::sqlite3_vfs_find as *const () as usize, "vfs_find"),
        (ours::slot::VFS_REGISTER, theirs::sqlite3_vfs_register as *const () as usize, "vfs_register"),
        (ours::slot::DECLARE_VTAB, theirs::sqlite3_declare_vtab as *const () as usize, "declare_vtab"),
        (ours::slot::FREE, theirs::sqlite3_free as *const () as usize, "free"),
        (ours::slot::RESULT_DOUBLE, theirs::sqlite3_result_double as *const () as usize, "result_double"),
        (ours::slot::RESULT_INT64, theirs::sqlite3_result_int64 as *const () as usize, "result_int64"),
        (ours::slot::RESULT_NULL, theirs::sqlite3_result_null as *const () as usize, "result_null"),
        (ours::slot::RESULT_TEXT, theirs::sqlite3_result_text as *const () as usize, "result_text"),
        (ours::slot::VALUE_TEXT, theirs::sqlite3_value_text as *const () as usize, "value_text"),
        (ours::slot::CREATE_MODULE_V2, theirs::sqlite3_create_module_v2 as *const () as usize, "create_module_v2"),
        (ours::slot::FILE_CONTROL, theirs::sqlite3_file_control as *const () as usize, "file_control"),
        (ours::slot::CONTEXT_DB_HANDLE, theirs::sqlite3_context_db_handle as *const () as usize, "context_db_handle"),
        (
            ours::slot::CREATE_FUNCTION_V2,
            theirs::sqlite3_create_function_v2 as *const () as usize,
            "create_function_v2",
        ),
        (ours::slot::AUTO_EXTENSION, theirs::sqlite3_auto_extension as *const () as usize, "auto_extension"),
        (ours::slot::GET_AUTOCOMMIT, theirs::sqlite3_get_autocommit as *const () as usize, "get_autocommit"),
        (ours::slot::TXN_STATE, theirs::sqlite3_txn_state as *const () as usize, "txn_state"),
        (ours::slot::LOG, theirs::sqlite3_log as *const () as usize, "log"),
        (ours::slot::URI_BOOLEAN, theirs::sqlite3_uri_boolean as *const () as usize, "uri_boolean"),
        (ours::slot::URI_PARAMETER, theirs::sqlite3_uri_parameter as *const () as usize, "uri_parameter"),
        (ours::slot::MALLOC64, theirs::sqlite3_malloc64 as *const () as usize, "malloc64"),
        (ours::slot::URI_KEY, theirs::sqlite3_uri_key as *const () as usize, "uri_key"),
        (ours::slot::FILENAME_JOURNAL, theirs::sqlite3_filename_journal as *const () as usize, "filename_journal"),
        (ours::slot::FILENAME_WAL, theirs::sqlite3_filename_wal as *const () as usize, "filename_wal"),
    ];
    for (slot, function, name) in expected {
        // SAFETY: the table of the SQLite these tests are built with has all of these slots.
        let held = unsafe { table.add(slot).read() };
        assert_eq!(held, function, "slot {slot} does not hold sqlite3_{name}");
    }
}

#[test]
fn the_table_of_an_extension_is_read_as_the_linked_functions() {
    // SAFETY: this is the table SQLite passes to extensions.
    let read = unsafe { onewrite::Api::from_routines(routines()) }.unwrap();
    let linked = onewrite_rusqlite::api();
    assert_eq!(read.vfs_find as *const () as usize, linked.vfs_find as *const () as usize);
    assert_eq!(read.filename_wal as *const () as usize, linked.filename_wal as *const () as usize);
    // SAFETY: has no precondition.
    assert!(unsafe { (read.libversion_number)() } >= onewrite::VERSION_MIN);
}
