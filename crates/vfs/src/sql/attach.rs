//! Giving a connection its functions and its tables.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use super::functions::FUNCTIONS;
use super::library::library;
use super::tables;
use crate::sqlite::api::sqlite_copy;
use crate::sqlite::ffi::{Opaque, code, sql};

/// Why the library that this code is part of is not to open anything.
static REFUSAL: OnceLock<String> = OnceLock::new();

/// Has every open of a database fail with `message`.
pub(crate) fn refuse_all(message: &str) {
    let _ = REFUSAL.set(message.to_owned());
}

/// An automatic extension: SQLite calls it with every connection that it opens.
pub(crate) unsafe extern "C" fn each_connection(
    db: *mut Opaque,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    let refusal = REFUSAL.get();
    // SAFETY: SQLite passes an open connection, a place for a message, and its table, or null
    // without extensions.
    let attached = unsafe {
        match (refusal, routines.is_null()) {
            (Some(message), _) => Err(message.clone()),
            (None, true) => Ok(()),
            (None, false) => catch_unwind(AssertUnwindSafe(|| attach(db, routines)))
                .unwrap_or_else(|_| Err("internal error".to_owned())),
        }
    };
    let Err(message) = attached else { return code::OK };
    if !error.is_null() && !routines.is_null() {
        // SAFETY: as above; SQLite frees the message.
        unsafe { error.write(sqlite_copy(routines, &format!("onewrite: {message}"))) };
    }
    code::ERROR
}

/// Gives one connection its functions and its tables. Doing so again replaces them by the same.
///
/// # Safety
/// `db` is an open connection, and `routines` the table of its SQLite library, 3.37 or newer.
pub(crate) unsafe fn attach(db: *mut Opaque, routines: *const c_void) -> Result<(), String> {
    // SAFETY: as promised by the caller; names are C strings, and `Sql` and the module live as long
    // as the process.
    unsafe {
        let (number, sql) = library(routines)?;
        for (name, arguments, flags, function) in FUNCTIONS.get(number).into_iter().flatten() {
            let (create, none, function) = (sql.create_function_v2, std::ptr::null_mut(), Some(*function));
            let rc = create(db, name.as_ptr(), *arguments, sql::UTF8 | flags, none, function, None, None, None);
            // BUSY: the connection has the function, and the statement that loads the extension
            // once more is running.
            if rc != code::OK && rc != code::BUSY {
                return Err(format!("SQLite did not take the function {}: error {rc}", name.to_string_lossy()));
            }
        }
        let data = std::ptr::from_ref(sql).cast_mut().cast::<c_void>();
        for (name, module) in &tables::MODULES {
            let rc = (sql.create_module_v2)(db, name.as_ptr(), std::ptr::from_ref(module), data, None);
            if rc != code::OK {
                return Err(format!("SQLite did not take the table {}: error {rc}", name.to_string_lossy()));
            }
        }
        Ok(())
    }
}
