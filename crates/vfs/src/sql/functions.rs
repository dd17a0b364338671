//! The SQL functions `onewrite_version()`, `onewrite_status([SCHEMA])` and `onewrite_last_error()`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::library::{LIBRARIES_MAX, sql_of, status_of};
use crate::host::fault::last_pointer;
use crate::process::version::onewrite_version;
use crate::sqlite::api::c_text;
use crate::sqlite::ffi::{Opaque, SqlFn, sql};

/// Name, number of arguments, flags, and the code behind it.
pub(super) type Function = (&'static CStr, c_int, c_int, SqlFn);

pub(super) static FUNCTIONS: [[Function; 4]; LIBRARIES_MAX] =
    [functions::<0>(), functions::<1>(), functions::<2>(), functions::<3>()];

const fn functions<const N: usize>() -> [Function; 4] {
    [
        (c"onewrite_version", 0, sql::DETERMINISTIC, version::<N>),
        (c"onewrite_last_error", 0, 0, last_error::<N>),
        (c"onewrite_status", 0, 0, status::<N>),
        (c"onewrite_status", 1, 0, status::<N>),
    ]
}

unsafe extern "C" fn version<const N: usize>(context: *mut Opaque, _: c_int, _: *mut *mut Opaque) {
    // SAFETY: called by SQLite as such a function; the text is static.
    unsafe {
        if let Some(sql) = sql_of::<N>() {
            (sql.result_text)(context, onewrite_version(), -1, sql::TRANSIENT);
        }
    }
}

unsafe extern "C" fn last_error<const N: usize>(context: *mut Opaque, _: c_int, _: *mut *mut Opaque) {
    // SAFETY: called by SQLite as such a function; SQLite copies the text.
    unsafe {
        if let Some(sql) = sql_of::<N>() {
            match last_pointer() {
                none if none.is_null() => (sql.result_null)(context),
                text => (sql.result_text)(context, text, -1, sql::TRANSIENT),
            }
        }
    }
}

unsafe extern "C" fn status<const N: usize>(context: *mut Opaque, count: c_int, arguments: *mut *mut Opaque) {
    let run = || {
        // SAFETY: called by SQLite as such a function, with `count` arguments.
        unsafe {
            let Some(sql) = sql_of::<N>() else { return };
            let schema = if count > 0 { sql.text_of(arguments.read()) } else { None };
            let schema = c_text(schema.as_deref().unwrap_or("main"));
            let text = status_of(sql, (sql.context_db_handle)(context), &schema);
            sql.answer(context, &text);
        }
    };
    // A panic leaves a NULL.
    let _ = catch_unwind(AssertUnwindSafe(run));
}
