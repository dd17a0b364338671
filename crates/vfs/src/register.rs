//! Registering onewrite with a SQLite library, and the entry points that do it from C.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onewrite_core::disk::Disk;
use onewrite_core::disk::real::RealDisk;
use parking_lot::Mutex;

use crate::api::{Api, CApi, VERSION_MIN, c_text, read_slot, version_error};
use crate::base::Base;
use crate::fault::{last_pointer, remember};
use crate::ffi::{AnyFn, OldMallocFn, code, slot};
use crate::main_file::panic_text;
use crate::vfs::Onewrite;

/// Name under which the VFS is registered: `vfs=onewrite` in a URI.
pub const VFS_NAME: &CStr = c"onewrite";

/// Environment variable that says whether the loadable extension makes onewrite the default VFS: `1` does,
/// `0` and its absence do not.
pub const DEFAULT_VARIABLE: &str = "ONEWRITE_DEFAULT";

/// Why onewrite could not be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterError {
    /// SQLite's result code.
    pub code: c_int,
    /// What is wrong, for people.
    pub message: String,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RegisterError {}

fn refuse<T>(message: impl Into<String>) -> Result<T, RegisterError> {
    Err(RegisterError { code: code::ERROR, message: message.into() })
}

/// Structures registered by this copy of the library. Also serialises registering.
static REGISTERED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Registers the VFS `name` on the files of the system. Doing so again changes nothing, except that
/// `make_default` makes it the default VFS now.
///
/// # Safety
/// The pointers in `api` are functions of one SQLite library that stays loaded for the life of the process.
pub unsafe fn register(api: &Api, name: &CStr, make_default: bool) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, make_default, None, None) }
}

/// Registers the VFS `name` on a disk of the caller's, for tests. Read-only opens, WAL mode and
/// super-journals need the files of the system and are refused.
///
/// # Safety
/// As [`register`].
pub unsafe fn register_with_disk(api: &Api, name: &CStr, disk: Arc<dyn Disk>) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, false, Some(disk), None) }
}

/// Registers the VFS `name` on a disk of the caller's that the registered VFS `base` works on as well, for tests:
/// what onewrite leaves alone goes there.
///
/// # Safety
/// As [`register`].
pub unsafe fn register_over(api: &Api, name: &CStr, disk: Arc<dyn Disk>, base: &CStr) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, false, Some(disk), Some(base)) }
}

/// # Safety
/// As [`register`].
unsafe fn register_on(
    api: &Api,
    name: &CStr,
    make_default: bool,
    disk: Option<Arc<dyn Disk>>,
    base: Option<&CStr>,
) -> Result<(), RegisterError> {
    // SAFETY: takes nothing and has no precondition.
    if let Some(message) = version_error(unsafe { (api.libversion_number)() }) {
        return refuse(message);
    }
    let mut registered = REGISTERED.lock();
    // SAFETY: the name lives across the call.
    let found = unsafe { (api.vfs_find)(name.as_ptr()) };
    let structure = if found.is_null() {
        let passes_through = disk.is_none() || base.is_some();
        let base = underneath(api, base, &registered)?;
        let disk = disk.unwrap_or_else(|| Arc::new(RealDisk::new()));
        let this: &'static Onewrite = Box::leak(Box::new(Onewrite::new(*api, base, name, disk, passes_through)));
        std::ptr::from_mut(Box::leak(Box::new(this.structure())))
    } else if !registered.contains(&(found as usize)) {
        let name = name.to_string_lossy();
        return refuse(format!("a VFS named {name} is registered already, by something else than this library"));
    } else if disk.is_some() {
        return refuse(format!("the VFS {} is registered already, on another disk", name.to_string_lossy()));
    } else if !make_default {
        return Ok(());
    } else {
        found
    };
    // SAFETY: the structure is leaked: it lives as long as the process.
    let rc = unsafe { (api.vfs_register)(structure, c_int::from(make_default)) };
    if rc != code::OK {
        return Err(RegisterError { code: rc, message: format!("SQLite did not register the VFS: error {rc}") });
    }
    if found.is_null() {
        registered.push(structure as usize);
    }
    Ok(())
}

/// The VFS that pass-through goes to: `named`, or else SQLite's own for files, or else the default.
fn underneath(api: &Api, named: Option<&CStr>, registered: &[usize]) -> Result<Base, RegisterError> {
    let candidates = [named.unwrap_or(c"unix").as_ptr(), named.map_or(std::ptr::null(), CStr::as_ptr)];
    for name in candidates {
        // SAFETY: the name is a C string, or null for the default.
        let found = unsafe { (api.vfs_find)(name) };
        if !found.is_null() && !registered.contains(&(found as usize)) {
            // SAFETY: found registered, and SQLite asks that registered structures stay.
            return Ok(unsafe { Base::new(found) });
        }
    }
    refuse("this SQLite has no VFS for files (\"unix\") that onewrite could build on")
}

/// What [`DEFAULT_VARIABLE`] says.
fn default_wanted(value: Option<OsString>) -> Result<bool, RegisterError> {
    match value {
        None => Ok(false),
        Some(v) if v == "0" => Ok(false),
        Some(v) if v == "1" => Ok(true),
        Some(v) => {
            let value = v.to_string_lossy().into_owned();
            refuse(format!(
                "{DEFAULT_VARIABLE}={value}: not a value of this variable; the choices are 1 (onewrite becomes the default VFS) and 0"
            ))
        }
    }
}

/// Entry point of the loadable extension, under the name SQLite derives from `libonewrite.so`.
///
/// # Safety
/// Called by SQLite, as it calls an extension's entry point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_onewrite_init(
    _db: *mut c_void,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: as promised by the caller.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { load(routines) }));
    let e = match outcome {
        // The VFS stays registered when the connection that loaded it closes, so the library must stay too.
        Ok(Ok(())) => return code::OK_LOAD_PERMANENTLY,
        Ok(Err(e)) => e,
        Err(panic) => RegisterError {
            code: code::INTERNAL,
            message: format!("onewrite: internal error: {}", panic_text(&*panic)),
        },
    };
    remember(&e.message, 0);
    if !error.is_null() {
        // SAFETY: as promised by the caller: the place takes a message that SQLite frees.
        unsafe { error.write(old_sqlite_string(routines, &e.message)) };
    }
    e.code
}

/// The same entry point under the name SQLite tries first, whatever the file is called.
///
/// # Safety
/// As [`sqlite3_onewrite_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_extension_init(
    db: *mut c_void,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { sqlite3_onewrite_init(db, error, routines) }
}

/// Registers the VFS with the SQLite library this code is part of, while that initialises; the variable
/// [`DEFAULT_VARIABLE`] says whether as the default. Answers with a result code, and tells SQLite's error log why.
///
/// # Safety
/// As [`register`].
pub unsafe fn register_inside(api: &Api) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let make_default = default_wanted(std::env::var_os(DEFAULT_VARIABLE))?;
        // SAFETY: as promised by the caller.
        unsafe { register(api, VFS_NAME, make_default) }
    }));
    let (code, message) = match outcome {
        Ok(Ok(())) => return code::OK,
        Ok(Err(e)) => (e.code, e.message),
        Err(panic) => (code::INTERNAL, format!("internal error: {}", panic_text(&*panic))),
    };
    api.log(code, &format!("onewrite: {message}"));
    remember(&message, 0);
    code
}

/// # Safety
/// `routines` is what SQLite passes to an extension's entry point.
unsafe fn load(routines: *const c_void) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller; an extension that stays loaded keeps its SQLite loaded.
    unsafe {
        let api = match Api::from_routines(routines) {
            Ok(api) => api,
            Err(message) => return refuse(message),
        };
        let make_default = default_wanted(std::env::var_os(DEFAULT_VARIABLE))?;
        register(&api, VFS_NAME, make_default)
    }
}

/// A message for a SQLite of any age; null where it has no memory.
///
/// # Safety
/// As [`load`].
unsafe fn old_sqlite_string(routines: *const c_void, text: &str) -> *mut c_char {
    let text = c_text(text);
    let bytes = text.as_bytes_with_nul();
    // SAFETY: the slot is in the table of every SQLite that loads extensions, and holds `sqlite3_malloc`.
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

/// `onewrite_register_api` of `onewrite.h`: what `onewrite_register` calls with the functions of the
/// SQLite the caller is linked to. Answers with a result code; the message is `onewrite_last_error()`.
///
/// # Safety
/// `api` points to a filled structure; otherwise as [`register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onewrite_register_api(api: *const CApi, make_default: c_int) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as promised by the caller.
        let Some(api) = (unsafe { api.as_ref() }).and_then(CApi::complete) else {
            return Err(RegisterError {
                code: code::MISUSE,
                message: "onewrite_register_api: the structure is not the one of this library's onewrite.h".to_owned(),
            });
        };
        // SAFETY: as promised by the caller.
        unsafe { register(&api, VFS_NAME, make_default != 0) }
    }));
    let e = match outcome {
        Ok(Ok(())) => return code::OK,
        Ok(Err(e)) => e,
        Err(panic) => RegisterError {
            code: code::INTERNAL,
            message: format!("onewrite: internal error: {}", panic_text(&*panic)),
        },
    };
    remember(&e.message, 0);
    e.code
}

/// `onewrite_version` of `onewrite.h`: the version of this library, as text that stays valid.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// `onewrite_last_error` of `onewrite.h`: message of onewrite's last error on this thread, null where the
/// last error was not onewrite's. Valid until this thread's next call into onewrite.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_last_error() -> *const c_char {
    last_pointer()
}

/// Message of onewrite's last error on this thread: SQLite tells "unable to open database file", this tells
/// why. `None` where the last error was not onewrite's.
pub fn last_error() -> Option<String> {
    crate::fault::last().map(|(message, _)| message)
}

const _: () = assert!(VERSION_MIN == 3_037_000, "onewrite.h tells the same version");
