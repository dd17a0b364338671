//! Registering onewrite with a SQLite library, and the entry points that do it from C.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onewrite_core::disk::Disk;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::environment;
use onewrite_core::text::printable;
use parking_lot::Mutex;

use crate::api::{Api, CApi, VERSION_MIN, sqlite_copy, version_error};
use crate::base::Base;
use crate::fault::{last_pointer, remember};
use crate::ffi::{AnyFn, AutoExtensionFn, EntryFn, Opaque, Vfs, code};
use crate::functions::{attach, each_connection, refuse_all};
use crate::log;
use crate::main_file::panic_text;
use crate::vfs::Onewrite;

/// Name under which the VFS is registered: `vfs=onewrite` in a URI.
pub const VFS_NAME: &CStr = c"onewrite";

/// Environment variable that says whether the loadable extension's first entry point makes onewrite the default VFS: `1`
/// does, `0` and its absence do not.
pub const DEFAULT_VARIABLE: &str = "ONEWRITE_DEFAULT";

/// The system call by which one copy of this library knows another.
pub(crate) const VERSION_CALL: &CStr = c"onewrite_version";

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
    unsafe {
        if register_on(api, name, make_default, None, None)? != Registered::Now {
            return Ok(());
        }
        let rc = serve_connections(api.auto_extension);
        if rc != code::OK {
            return Err(RegisterError { code: rc, message: format!("SQLite took no automatic extension: error {rc}") });
        }
    }
    Ok(())
}

/// Registers the VFS with the SQLite that this program is linked to, whichever crate brings it: rusqlite, sqlx, diesel,
/// `libsqlite3-sys` of any version. `register!()` leaves the default VFS as it is, `register!(default)` makes onewrite the
/// default. Answers with a `Result<(), RegisterError>`.
///
/// ```
/// use rusqlite as _; // for the SQLite it brings
/// # fn main() -> Result<(), onewrite::RegisterError> {
/// onewrite::register!()?;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! register {
    () => {
        $crate::register!(@ false)
    };
    (default) => {
        $crate::register!(@ true)
    };
    (@ $default:literal) => {{
        #[allow(unsafe_code)]
        let outcome: ::std::result::Result<(), $crate::RegisterError> = {
            let api = $crate::linked_api!(false);
            // SAFETY: the functions are those of the SQLite that this program is linked to, which stays.
            unsafe { $crate::register(&api, $crate::VFS_NAME, $default) }
        };
        outcome
    }};
}

/// The functions of the SQLite that this program, or this library, is linked to, as an [`Api`]. With `true`, it splits pages as
/// onewrite's drop-in library does.
#[macro_export]
#[doc(hidden)]
macro_rules! linked_api {
    ($asks_split:literal) => {{
        // Declared as in `sqlite3.h`, so that no crate of bindings has to be of one version.
        unsafe extern "C" {
            fn sqlite3_libversion_number() -> ::std::ffi::c_int;
            fn sqlite3_vfs_find(name: *const ::std::ffi::c_char) -> *mut $crate::ffi::Vfs;
            fn sqlite3_vfs_register(vfs: *mut $crate::ffi::Vfs, default: ::std::ffi::c_int) -> ::std::ffi::c_int;
            fn sqlite3_malloc64(bytes: u64) -> *mut ::std::ffi::c_void;
            fn sqlite3_log(code: ::std::ffi::c_int, format: *const ::std::ffi::c_char, ...);
            fn sqlite3_uri_parameter(
                name: *const ::std::ffi::c_char,
                key: *const ::std::ffi::c_char,
            ) -> *const ::std::ffi::c_char;
            fn sqlite3_uri_boolean(
                name: *const ::std::ffi::c_char,
                key: *const ::std::ffi::c_char,
                otherwise: ::std::ffi::c_int,
            ) -> ::std::ffi::c_int;
            fn sqlite3_uri_key(name: *const ::std::ffi::c_char, index: ::std::ffi::c_int) -> *const ::std::ffi::c_char;
            fn sqlite3_filename_journal(name: *const ::std::ffi::c_char) -> *const ::std::ffi::c_char;
            fn sqlite3_filename_wal(name: *const ::std::ffi::c_char) -> *const ::std::ffi::c_char;
            fn sqlite3_auto_extension(entry: ::std::option::Option<$crate::ffi::AnyFn>) -> ::std::ffi::c_int;
        }
        $crate::Api {
            asks_split: $asks_split,
            libversion_number: sqlite3_libversion_number,
            vfs_find: sqlite3_vfs_find,
            vfs_register: sqlite3_vfs_register,
            malloc64: sqlite3_malloc64,
            log: sqlite3_log,
            uri_parameter: sqlite3_uri_parameter,
            uri_boolean: sqlite3_uri_boolean,
            uri_key: sqlite3_uri_key,
            filename_journal: sqlite3_filename_journal,
            filename_wal: sqlite3_filename_wal,
            auto_extension: sqlite3_auto_extension,
        }
    }};
}

/// Whose the VFS is that serves from now on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Registered {
    /// This copy of the library's, since this call.
    Now,
    /// This copy's, since before.
    Before,
    /// Another copy's: the one inside the SQLite library, for one.
    Elsewhere,
}

/// Registers the VFS `name` on a disk of the caller's, for tests. Read-only opens, WAL mode and
/// transactions over several files that step aside need the files of the system and are refused.
///
/// # Safety
/// As [`register`].
pub unsafe fn register_with_disk(api: &Api, name: &CStr, disk: Arc<dyn Disk>) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, false, Some(disk), None).map(drop) }
}

/// Registers the VFS `name` on a disk of the caller's that the registered VFS `base` works on as well, for tests:
/// what onewrite leaves alone goes there.
///
/// # Safety
/// As [`register`].
pub unsafe fn register_over(api: &Api, name: &CStr, disk: Arc<dyn Disk>, base: &CStr) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, false, Some(disk), Some(base)).map(drop) }
}

/// # Safety
/// As [`register`].
unsafe fn register_on(
    api: &Api,
    name: &CStr,
    make_default: bool,
    disk: Option<Arc<dyn Disk>>,
    base: Option<&CStr>,
) -> Result<Registered, RegisterError> {
    // SAFETY: takes nothing and has no precondition.
    if let Some(message) = version_error(unsafe { (api.libversion_number)() }) {
        return refuse(message);
    }
    let mut registered = REGISTERED.lock();
    // SAFETY: the name lives across the call.
    let found = unsafe { (api.vfs_find)(name.as_ptr()) };
    let mut whose = Registered::Before;
    let structure = if found.is_null() {
        whose = Registered::Now;
        let passes_through = disk.is_none() || base.is_some();
        let base = underneath(api, base, &registered)?;
        let disk = disk.unwrap_or_else(|| Arc::new(RealDisk::new()));
        let this: &'static Onewrite = Box::leak(Box::new(Onewrite::new(*api, base, name, disk, passes_through)));
        std::ptr::from_mut(Box::leak(Box::new(this.structure())))
    } else if disk.is_none() && !registered.contains(&(found as usize)) && is_another_copy(found) {
        whose = Registered::Elsewhere;
        found
    } else if !registered.contains(&(found as usize)) {
        let name = name.to_string_lossy();
        return refuse(format!("a VFS named {name} is registered already, by something else than this library"));
    } else if disk.is_some() {
        return refuse(format!("the VFS {} is registered already, on another disk", name.to_string_lossy()));
    } else {
        found
    };
    if whose != Registered::Now && !make_default {
        return Ok(whose);
    }
    // SAFETY: the structure is leaked, or was registered before: it lives as long as the process.
    let rc = unsafe { (api.vfs_register)(structure, c_int::from(make_default)) };
    if rc != code::OK {
        return Err(RegisterError { code: rc, message: format!("SQLite did not register the VFS: error {rc}") });
    }
    if found.is_null() {
        registered.push(structure as usize);
    }
    Ok(whose)
}

/// Whether a registered VFS that is not this copy's is another copy of this library's: it names
/// [`VERSION_CALL`] among its system calls, as any VFS may be asked.
fn is_another_copy(vfs: *mut Vfs) -> bool {
    // SAFETY: found registered, so alive; version 3 has the method, which takes any name.
    unsafe {
        let method = (*vfs).get_system_call.filter(|_| (*vfs).version >= 3);
        method.is_some_and(|method| method(vfs, VERSION_CALL.as_ptr()).is_some())
    }
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
            let value = v.to_string_lossy();
            refuse(format!(
                "{DEFAULT_VARIABLE}={}: not a value of this variable; the choices are 1 (onewrite becomes the default VFS) and 0",
                printable(&value)
            ))
        }
    }
}

/// Entry point of the loadable extension, under the name SQLite derives from `libonewrite.so`. Registers the VFS, as the
/// default one if [`DEFAULT_VARIABLE`] says so.
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

/// The entry point for bindings that cannot name a VFS: makes onewrite the default one, whatever the environment says.
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
        // The VFS stays registered when the connection that loaded it closes, so the library must stay too.
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
/// [`DEFAULT_VARIABLE`] says whether as the default. What is wrong becomes the error of every open: an error of
/// initialising would reach nobody but as "SQL logic error".
///
/// # Safety
/// As [`register`].
pub unsafe fn register_inside(api: &Api) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let make_default = default_wanted(environment::variable(DEFAULT_VARIABLE))?;
        // SAFETY: as promised by the caller.
        unsafe { register_on(api, VFS_NAME, make_default, None, None) }
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

/// Gives every connection its SQL functions, from the one on that opens; for the SQLite library this code is part of, which
/// cannot take an automatic extension while it initialises (`sqlite3_auto_extension` would wait for itself).
///
/// # Safety
/// As [`register`].
pub unsafe fn serve_connections(auto_extension: AutoExtensionFn) -> c_int {
    // SAFETY: `each_connection` is an entry point, and stays.
    unsafe { auto_extension(Some(std::mem::transmute::<EntryFn, AnyFn>(each_connection))) }
}

/// # Safety
/// `db` and `routines` are what SQLite passes to an extension's entry point.
unsafe fn load(db: *mut Opaque, routines: *const c_void, make_default: bool) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller; an extension that stays loaded keeps its SQLite loaded.
    unsafe {
        let api = match Api::from_routines(routines) {
            Ok(api) => api,
            Err(message) => return refuse(message),
        };
        register(&api, VFS_NAME, make_default)?;
        // Connections that open from now on are served by `each_connection`. Where another copy has registered, this one
        // would know nothing of errors.
        let found = (api.vfs_find)(VFS_NAME.as_ptr());
        if !db.is_null() && REGISTERED.lock().contains(&(found as usize)) {
            attach(db, routines).map_err(|message| RegisterError { code: code::ERROR, message })?;
        }
        Ok(())
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
    log::line(e.code, &e.message);
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
