//! The entry points that register onewrite from C.

#![allow(unsafe_code)]

use std::ffi::{OsString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use onewrite_core::environment;
use onewrite_core::text::printable;

use super::registry::{REGISTERED, RegisterError, VFS_NAME, refuse, register, register_on};
use crate::host::fault::{last, last_pointer, panic_text, remember};
use crate::process::log;
use crate::sql::{attach, refuse_all};
use crate::sqlite::api::{Api, CApi, sqlite_copy};
use crate::sqlite::ffi::{Opaque, code};

/// Environment variable that says whether the loadable extension's first entry point makes onewrite
/// the default VFS: `1` does, `0` and its absence do not.
pub const DEFAULT_VARIABLE: &str = "ONEWRITE_DEFAULT";

fn default_wanted(value: Option<OsString>) -> Result<bool, RegisterError> {
    match value {
        None => Ok(false),
        Some(v) if v == "0" => Ok(false),
        Some(v) if v == "1" => Ok(true),
        Some(v) => {
            let value = v.to_string_lossy();
            refuse(format!(
                "{DEFAULT_VARIABLE}={}: not a value of this variable; the choices are 1 (onewrite becomes the default VFS) and 0",
                printable(&value)
            ))
        }
    }
}

/// Entry point of the loadable extension, under the name SQLite derives from `libonewrite.so`.
/// Registers the VFS, as the default one if [`DEFAULT_VARIABLE`] says so.
///
/// # Safety
/// Called by SQLite, as it calls an extension's entry point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_onewrite_init(
    db: *mut c_void,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { enter(db, error, routines, || default_wanted(environment::variable(DEFAULT_VARIABLE))) }
}

/// The entry point for bindings that cannot name a VFS: makes onewrite the default one, with any
/// environment.
///
/// # Safety
/// As [`sqlite3_onewrite_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_onewrite_default_init(
    db: *mut c_void,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: as promised by the caller.
    unsafe { enter(db, error, routines, || Ok(true)) }
}

/// # Safety
/// As [`sqlite3_onewrite_init`].
unsafe fn enter(
    db: *mut c_void,
    error: *mut *mut c_char,
    routines: *const c_void,
    default_wanted: impl FnOnce() -> Result<bool, RegisterError>,
) -> c_int {
    // SAFETY: as promised by the caller.
    let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { load(db.cast(), routines, default_wanted()?) }));
    let e = match outcome {
        // The VFS stays registered when the connection that loaded it closes, so the library must
        // stay too.
        Ok(Ok(())) => return code::OK_LOAD_PERMANENTLY,
        Ok(Err(e)) => e,
        Err(panic) => RegisterError {
            code: code::INTERNAL,
            message: format!("onewrite: internal error: {}", panic_text(&*panic)),
        },
    };
    log::line(e.code, &e.message);
    remember(&e.message, 0);
    if !error.is_null() {
        // SAFETY: as promised by the caller: the place takes a message that SQLite frees.
        unsafe { error.write(sqlite_copy(routines, &e.message)) };
    }
    e.code
}

/// The same entry point under the name that SQLite tries first, for a file of any name.
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

/// Registers the VFS with the SQLite library this code is part of, while that initialises;
/// [`DEFAULT_VARIABLE`] says whether as the default. An error here becomes the error of every open:
/// an error of initialising would appear as "SQL logic error" only.
///
/// # Safety
/// As [`register()`].
pub unsafe fn register_inside(api: &Api) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let make_default = default_wanted(environment::variable(DEFAULT_VARIABLE))?;
        // SAFETY: as promised by the caller.
        unsafe { register_on(api, VFS_NAME, make_default, None) }
    }));
    let (code, message) = match outcome {
        Ok(Ok(_)) => return code::OK,
        Ok(Err(e)) => (e.code, e.message),
        Err(panic) => (code::INTERNAL, format!("internal error: {}", panic_text(&*panic))),
    };
    api.log(code, &format!("onewrite: {message}"));
    remember(&message, 0);
    refuse_all(&message);
    code::OK
}

/// # Safety
/// `db` and `routines` are the arguments of an extension's entry point.
unsafe fn load(db: *mut Opaque, routines: *const c_void, make_default: bool) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller; an extension that stays loaded keeps its SQLite loaded.
    unsafe {
        let api = match Api::from_routines(routines) {
            Ok(api) => api,
            Err(message) => return refuse(message),
        };
        register(&api, VFS_NAME, make_default)?;
        // Connections that open from now on are served by `each_connection`. Where another copy has
        // registered, this one would know nothing of errors.
        let found = (api.vfs_find)(VFS_NAME.as_ptr());
        if !db.is_null() && REGISTERED.lock().contains(&(found as usize)) {
            attach(db, routines).map_err(|message| RegisterError { code: code::ERROR, message })?;
        }
        Ok(())
    }
}

/// `onewrite_register_api` of `onewrite.h`: `onewrite_register` calls it with the functions of the
/// SQLite that the caller is linked to. Returns a result code; the message is
/// `onewrite_last_error()`.
///
/// # Safety
/// `api` points to a filled structure; otherwise as [`register()`].
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
    log::line(e.code, &e.message);
    remember(&e.message, 0);
    e.code
}

/// `onewrite_last_error` of `onewrite.h`: message of onewrite's last error on this thread, null
/// where the last error was not onewrite's. Valid until this thread's next call into onewrite.
#[unsafe(no_mangle)]
pub extern "C" fn onewrite_last_error() -> *const c_char {
    last_pointer()
}

/// Message of onewrite's last error on this thread: SQLite tells "unable to open database file",
/// this tells why. `None` where the last error was not onewrite's.
pub fn last_error() -> Option<String> {
    last().map(|(message, _)| message)
}
