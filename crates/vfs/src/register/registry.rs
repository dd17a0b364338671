//! Registering onewrite with a SQLite library.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::Arc;

use onewrite_core::Engine;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, Mutex};

use crate::callbacks::{Onewrite, structure};
use crate::host::Host;
use crate::host::base::{Base, STOCK_VFS};
use crate::process::fork;
use crate::process::version::VERSION_CALL;
use crate::sql::each_connection;
use crate::sqlite::api::{Api, VERSION_MIN, version_error};
use crate::sqlite::ffi::{AnyFn, AutoExtensionFn, EntryFn, Vfs, code};

/// Name under which the VFS is registered: `vfs=onewrite` in a URI.
pub const VFS_NAME: &CStr = c"onewrite";

/// Why onewrite could not be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterError {
    /// SQLite's result code.
    pub code: c_int,
    /// The reason, as text for people.
    pub message: String,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RegisterError {}

pub(super) fn refuse<T>(message: impl Into<String>) -> Result<T, RegisterError> {
    Err(RegisterError { code: code::ERROR, message: message.into() })
}

/// Structures registered by this copy of the library. Also serialises registering.
pub(super) static REGISTERED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Registers the VFS `name` on the files of the system. Doing so again changes nothing, except that
/// `make_default` makes it the default VFS now.
///
/// # Safety
/// The pointers in `api` are functions of one SQLite library that stays loaded for the life of the
/// process.
pub unsafe fn register(api: &Api, name: &CStr, make_default: bool) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    unsafe {
        if register_on(api, name, make_default, None)? != Registered::Now {
            return Ok(());
        }
        let rc = serve_connections(api.auto_extension);
        if rc != code::OK {
            return Err(RegisterError { code: rc, message: format!("SQLite took no automatic extension: error {rc}") });
        }
    }
    Ok(())
}

/// Registers the VFS with the SQLite that this program is linked to, by any crate: rusqlite, sqlx,
/// diesel, `libsqlite3-sys` of any version. `register!()` leaves the default VFS as it is,
/// `register!(default)` makes onewrite the default. Returns a `Result<(), RegisterError>`.
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
            // SAFETY: the functions are those of the SQLite that this program is linked to, which
            // stays.
            unsafe { $crate::register(&api, $crate::VFS_NAME, $default) }
        };
        outcome
    }};
}

/// The functions of the SQLite that this program, or this library, is linked to, as an [`Api`].
/// With `true`, it splits pages as onewrite's drop-in library does.
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
            fn sqlite3_get_autocommit(connection: *mut $crate::ffi::Opaque) -> ::std::ffi::c_int;
            fn sqlite3_txn_state(
                connection: *mut $crate::ffi::Opaque,
                schema: *const ::std::ffi::c_char,
            ) -> ::std::ffi::c_int;
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
            get_autocommit: sqlite3_get_autocommit,
            txn_state: sqlite3_txn_state,
        }
    }};
}

/// Whose the VFS is that serves from now on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Registered {
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
/// As [`register()`].
pub unsafe fn register_with_disk(api: &Api, name: &CStr, disk: Arc<dyn Disk>) -> Result<(), RegisterError> {
    // SAFETY: as promised by the caller.
    let own = OwnDisk { disk, engine: None, base: None };
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, false, Some(own)).map(drop) }
}

/// Registers the VFS `name` on a disk of the caller's, for tests. The registered VFS `base` works
/// on that disk as well and serves the files that are not onewrite's. No thread looks after idle
/// databases: the caller does, by [`Engine::on_attach`] and [`Engine::look_after`].
///
/// # Safety
/// As [`register()`].
pub unsafe fn register_over(
    api: &Api,
    name: &CStr,
    disk: Arc<dyn Disk>,
    base: &CStr,
) -> Result<Arc<Engine>, RegisterError> {
    let engine = Engine::in_process(Arc::clone(&disk), fork::generation);
    let own = OwnDisk { disk, engine: Some(Arc::clone(&engine)), base: Some(base) };
    // SAFETY: as promised by the caller.
    unsafe { register_on(api, name, false, Some(own)).map(|_| engine) }
}

/// The storage of a VFS for tests; without an engine it gets one with a thread that looks after
/// idle databases.
pub(super) struct OwnDisk<'a> {
    disk: Arc<dyn Disk>,
    engine: Option<Arc<Engine>>,
    base: Option<&'a CStr>,
}

/// # Safety
/// As [`register()`].
pub(super) unsafe fn register_on(
    api: &Api,
    name: &CStr,
    make_default: bool,
    own: Option<OwnDisk<'_>>,
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
        let base_name = own.as_ref().and_then(|own| own.base);
        let passes_through = own.is_none() || base_name.is_some();
        let base = underneath(api, base_name, &registered)?;
        let (disk, engine) = own.map_or_else(|| (Arc::new(RealDisk::new()) as _, None), |own| (own.disk, own.engine));
        let this: &'static Onewrite = {
            let host = Host::new(*api, base, name, disk, engine, passes_through);
            Box::leak(Box::new(Onewrite::new(host)))
        };
        std::ptr::from_mut(Box::leak(Box::new(structure(this))))
    } else if own.is_none() && !registered.contains(&(found as usize)) && is_another_copy(found) {
        whose = Registered::Elsewhere;
        found
    } else if !registered.contains(&(found as usize)) {
        let name = name.to_string_lossy();
        return refuse(format!("a VFS named {name} is registered already, by something else than this library"));
    } else if own.is_some() {
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

/// Whether a registered VFS that is not this copy's is another copy's: any VFS may be asked for its
/// system calls, and a copy has [`VERSION_CALL`] among them.
fn is_another_copy(vfs: *mut Vfs) -> bool {
    // SAFETY: found registered, so alive; version 3 has the method, which takes any name.
    unsafe {
        let method = (*vfs).get_system_call.filter(|_| (*vfs).version >= 3);
        method.is_some_and(|method| method(vfs, VERSION_CALL.as_ptr()).is_some())
    }
}

/// The VFS that pass-through goes to: `named`, or else SQLite's own for files, or else the default.
fn underneath(api: &Api, named: Option<&CStr>, registered: &[usize]) -> Result<Base, RegisterError> {
    let candidates = [named.unwrap_or(STOCK_VFS).as_ptr(), named.map_or(std::ptr::null(), CStr::as_ptr)];
    for name in candidates {
        // SAFETY: the name is a C string, or null for the default.
        let found = unsafe { (api.vfs_find)(name) };
        if !found.is_null() && !registered.contains(&(found as usize)) {
            // SAFETY: found registered, and SQLite asks that registered structures stay.
            return Ok(unsafe { Base::new(found) });
        }
    }
    refuse(format!("this SQLite has no VFS for files ({:?}) that onewrite could build on", STOCK_VFS))
}

/// Gives every connection that opens from now on its SQL functions. The SQLite library that this
/// code is part of calls it later: `sqlite3_auto_extension` waits for the end of initialising.
///
/// # Safety
/// As [`register()`].
pub unsafe fn serve_connections(auto_extension: AutoExtensionFn) -> c_int {
    // SAFETY: `each_connection` is an entry point, and stays.
    unsafe { auto_extension(Some(std::mem::transmute::<EntryFn, AnyFn>(each_connection))) }
}

const _: () = assert!(VERSION_MIN == 3_037_000, "onewrite.h tells the same version");
