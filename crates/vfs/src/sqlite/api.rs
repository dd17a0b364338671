//! [`Api`]: the functions of SQLite that a VFS calls, as pointers. So this library is linked to no
//! SQLite, and serves each one that registers it, several in one process included.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;

use onewrite_core::disk::system;
use onewrite_core::text::printable;

use super::ffi::{
    AnyFn, AutoExtensionFn, AutocommitFn, FilenameFn, LogFn, MallocFn, OldMallocFn, TxnStateFn, UriBooleanFn, UriKeyFn,
    UriParameterFn, VersionFn, VfsFindFn, VfsRegisterFn, slot,
};
use crate::process::log;

/// Oldest SQLite served, as `sqlite3_libversion_number()` tells it.
pub const VERSION_MIN: c_int = 3_037_000;

/// The functions of one SQLite library that onewrite calls. `onewrite_api` of `onewrite.h` lists
/// the same ones in the same order.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // Each field is named after the function of SQLite it points to.
pub struct Api {
    /// Whether this SQLite asks how to split pages: onewrite's own libsqlite3 does.
    pub asks_split: bool,
    pub libversion_number: VersionFn,
    pub vfs_find: VfsFindFn,
    pub vfs_register: VfsRegisterFn,
    pub malloc64: MallocFn,
    pub log: LogFn,
    pub uri_parameter: UriParameterFn,
    pub uri_boolean: UriBooleanFn,
    pub uri_key: UriKeyFn,
    pub filename_journal: FilenameFn,
    pub filename_wal: FilenameFn,
    pub auto_extension: AutoExtensionFn,
    pub get_autocommit: AutocommitFn,
    pub txn_state: TxnStateFn,
}

/// `onewrite_api` of `onewrite.h`: [`Api`] as C fills it.
#[repr(C)]
#[allow(missing_docs)]
pub struct CApi {
    /// `sizeof(onewrite_api)` of the header the caller was compiled with.
    pub struct_bytes: usize,
    pub libversion_number: Option<VersionFn>,
    pub vfs_find: Option<VfsFindFn>,
    pub vfs_register: Option<VfsRegisterFn>,
    pub malloc64: Option<MallocFn>,
    pub log: Option<LogFn>,
    pub uri_parameter: Option<UriParameterFn>,
    pub uri_boolean: Option<UriBooleanFn>,
    pub uri_key: Option<UriKeyFn>,
    pub filename_journal: Option<FilenameFn>,
    pub filename_wal: Option<FilenameFn>,
    pub auto_extension: Option<AutoExtensionFn>,
    pub get_autocommit: Option<AutocommitFn>,
    pub txn_state: Option<TxnStateFn>,
}

impl CApi {
    /// The same functions, if all are there.
    pub(crate) fn complete(&self) -> Option<Api> {
        if self.struct_bytes < size_of::<CApi>() {
            return None;
        }
        Some(Api {
            asks_split: false,
            libversion_number: self.libversion_number?,
            vfs_find: self.vfs_find?,
            vfs_register: self.vfs_register?,
            malloc64: self.malloc64?,
            log: self.log?,
            uri_parameter: self.uri_parameter?,
            uri_boolean: self.uri_boolean?,
            uri_key: self.uri_key?,
            filename_journal: self.filename_journal?,
            filename_wal: self.filename_wal?,
            auto_extension: self.auto_extension?,
            get_autocommit: self.get_autocommit?,
            txn_state: self.txn_state?,
        })
    }
}

/// Text for a version number: 3037002 is 3.37.2.
fn version_text(number: c_int) -> String {
    format!("{}.{}.{}", number / 1_000_000, number / 1000 % 1000, number % 1000)
}

pub(crate) fn version_error(number: c_int) -> Option<String> {
    (number < VERSION_MIN).then(|| {
        format!("onewrite needs SQLite {} or newer; this is {}", version_text(VERSION_MIN), version_text(number))
    })
}

impl Api {
    /// Reads the functions out of the table that SQLite hands to a loadable extension.
    ///
    /// # Safety
    /// `routines` is the `sqlite3_api_routines` pointer that a SQLite library passed to an
    /// extension's entry point.
    pub unsafe fn from_routines(routines: *const c_void) -> Result<Api, String> {
        // SAFETY: the table of every SQLite since 3.5 reaches to this slot; which later ones it has
        // follows from the version.
        let version = unsafe {
            std::mem::transmute::<AnyFn, VersionFn>(
                read_slot(routines, slot::LIBVERSION_NUMBER).ok_or("libversion_number")?,
            )
        };
        // SAFETY: takes nothing and has no precondition.
        if let Some(message) = version_error(unsafe { version() }) {
            return Err(message);
        }
        macro_rules! function {
            ($slot:ident: $type:ty) => {
                // SAFETY: the version above has this slot, with a function of the type of the field
                // (checked against SQLite's own functions in tests/suite/layout.rs).
                unsafe {
                    std::mem::transmute::<AnyFn, $type>(
                        read_slot(routines, slot::$slot)
                            .ok_or(concat!("this SQLite was built without ", stringify!($slot)))?,
                    )
                }
            };
        }
        Ok(Api {
            asks_split: false,
            libversion_number: version,
            vfs_find: function!(VFS_FIND: VfsFindFn),
            vfs_register: function!(VFS_REGISTER: VfsRegisterFn),
            malloc64: function!(MALLOC64: MallocFn),
            log: function!(LOG: LogFn),
            uri_parameter: function!(URI_PARAMETER: UriParameterFn),
            uri_boolean: function!(URI_BOOLEAN: UriBooleanFn),
            uri_key: function!(URI_KEY: UriKeyFn),
            filename_journal: function!(FILENAME_JOURNAL: FilenameFn),
            filename_wal: function!(FILENAME_WAL: FilenameFn),
            auto_extension: function!(AUTO_EXTENSION: AutoExtensionFn),
            get_autocommit: function!(GET_AUTOCOMMIT: AutocommitFn),
            txn_state: function!(TXN_STATE: TxnStateFn),
        })
    }

    /// Writes a line to SQLite's error log, and to the one that
    /// [`LOG_VARIABLE`](crate::LOG_VARIABLE) names.
    pub fn log(&self, code: c_int, message: &str) {
        log::line(code, message);
        let message = c_text(&printable(message));
        // SAFETY: the format takes exactly one string, which lives across the call.
        unsafe { (self.log)(code, c"%s".as_ptr(), message.as_ptr()) }
    }

    /// A copy of `text` that SQLite frees with `sqlite3_free`; null if there is no memory.
    pub fn sqlite_string(&self, text: &str) -> *mut c_char {
        copy_into(self.malloc64, text)
    }

    /// The value of a URI parameter of a database name.
    ///
    /// # Safety
    /// `name` is the name SQLite passed to `xOpen` for a main database, still open.
    pub unsafe fn uri_value(&self, name: *const c_char, parameter: &str) -> Option<String> {
        let parameter = c_text(parameter);
        // SAFETY: as promised by the caller; the value lives as long as the name.
        unsafe {
            let value = (self.uri_parameter)(name, parameter.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }

    /// A URI parameter as SQLite understands a boolean; false where it is missing.
    ///
    /// # Safety
    /// As [`Api::uri_value`].
    pub(crate) unsafe fn uri_flag(&self, name: *const c_char, parameter: &CStr) -> bool {
        // SAFETY: as promised by the caller.
        unsafe { (self.uri_boolean)(name, parameter.as_ptr(), 0) != 0 }
    }

    /// The names of all URI parameters of a database name.
    ///
    /// # Safety
    /// As [`Api::uri_value`].
    pub unsafe fn uri_keys(&self, name: *const c_char) -> Vec<String> {
        (0..c_int::MAX)
            .map_while(|n| {
                // SAFETY: as promised by the caller; null ends the list.
                unsafe {
                    let key = (self.uri_key)(name, n);
                    (!key.is_null()).then(|| CStr::from_ptr(key).to_string_lossy().into_owned())
                }
            })
            .collect()
    }
}

/// Reads one function pointer of `sqlite3_api_routines`.
///
/// # Safety
/// The table has at least `index + 1` slots.
pub(crate) unsafe fn read_slot(routines: *const c_void, index: usize) -> Option<AnyFn> {
    // SAFETY: the table is an array of function pointers, null where a function was left out.
    unsafe { routines.cast::<Option<AnyFn>>().add(index).read() }
}

/// A copy of `text` in memory of SQLite's; null if there is none.
pub(crate) fn copy_into(malloc64: MallocFn, text: &str) -> *mut c_char {
    let text = c_text(text);
    let bytes = text.as_bytes_with_nul();
    // SAFETY: any size may be asked for; the answer is null or room for that many bytes.
    unsafe {
        let copy = malloc64(bytes.len() as u64).cast::<c_char>();
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), copy, bytes.len());
        }
        copy
    }
}

/// A message for a SQLite of any age; null where it has no memory.
///
/// # Safety
/// `routines` is the table that a SQLite handed to an extension.
pub unsafe fn sqlite_copy(routines: *const c_void, text: &str) -> *mut c_char {
    let text = c_text(text);
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the slot is in the table of every SQLite that loads extensions, and holds
    // `sqlite3_malloc`.
    unsafe {
        let Some(malloc) = read_slot(routines, slot::MALLOC) else { return std::ptr::null_mut() };
        let malloc = std::mem::transmute::<AnyFn, OldMallocFn>(malloc);
        let copy = malloc(c_int::try_from(bytes.len()).unwrap_or(0)).cast::<c_char>();
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), copy, bytes.len());
        }
        copy
    }
}

/// Text for C: up to the first zero byte, if it has one.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(text.get(..end).unwrap_or_default()).unwrap_or_default()
}

/// The path SQLite gave as text.
pub(crate) fn path_of(name: &CStr) -> PathBuf {
    system::path_of(name.to_bytes())
}

/// The text of a name, empty where there is none.
///
/// # Safety
/// `name` is null or a C string that lives across the callback.
pub unsafe fn text<'a>(name: *const c_char) -> &'a CStr {
    // SAFETY: as promised by the caller.
    if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } }
}

/// The buffer of a read.
///
/// # Safety
/// `buf` has room for `amount` bytes, for as long as the callback runs.
pub unsafe fn buffer<'a>(buf: *mut c_void, amount: c_int) -> &'a mut [u8] {
    match usize::try_from(amount) {
        // SAFETY: as promised by the caller.
        Ok(amount) if amount > 0 => unsafe { std::slice::from_raw_parts_mut(buf.cast(), amount) },
        _ => &mut [],
    }
}
