//! The functions of a SQLite library that SQL functions and tables are made of.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use onewrite_core::text::printable;

use crate::sqlite::api::{c_text, copy_into, read_slot};
use crate::sqlite::ffi::{
    AnyFn, CreateFunctionFn, CreateModuleFn, DbHandleFn, DeclareVtabFn, FileControlFn, FreeFn, MallocFn, Opaque,
    ResultDoubleFn, ResultIntFn, ResultNullFn, ResultTextFn, ValueTextFn, code, fcntl, slot, sql,
};

/// The functions of one SQLite library that SQL functions and tables are made of.
pub(super) struct Sql {
    pub(super) create_function_v2: CreateFunctionFn,
    pub(super) create_module_v2: CreateModuleFn,
    file_control: FileControlFn,
    free: FreeFn,
    malloc64: MallocFn,
    pub(super) context_db_handle: DbHandleFn,
    value_text: ValueTextFn,
    pub(super) result_text: ResultTextFn,
    pub(super) result_null: ResultNullFn,
    pub(super) declare_vtab: DeclareVtabFn,
    pub(super) result_int64: ResultIntFn,
    pub(super) result_double: ResultDoubleFn,
}

/// SQLite libraries that one process may have loaded, each with functions of its own.
pub(super) const LIBRARIES_MAX: usize = 4;

/// The address of the table that each SQLite library hands to extensions, and its functions. A call
/// of an SQL function does not tell its library, so each library gets a copy of each function.
static LIBRARIES: [OnceLock<(usize, Sql)>; LIBRARIES_MAX] = [const { OnceLock::new() }; LIBRARIES_MAX];

/// Of the whole program, so no simulator chooses who gets it.
static FILLING: Mutex<()> = Mutex::new(());

/// The number and the functions of the library whose table this is.
///
/// # Safety
/// As [`attach`](super::attach()).
pub(super) unsafe fn library(routines: *const c_void) -> Result<(usize, &'static Sql), String> {
    let _filling = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
    let known =
        |place: &&'static OnceLock<(usize, Sql)>| place.get().is_none_or(|(table, _)| *table == routines as usize);
    let (number, place) = LIBRARIES
        .iter()
        .enumerate()
        .find(|(_, place)| known(place))
        .ok_or_else(|| format!("this process has more than {LIBRARIES_MAX} SQLite libraries"))?;
    if let Some((_, sql)) = place.get() {
        return Ok((number, sql));
    }
    macro_rules! function {
        ($slot:ident: $type:ty) => {
            // SAFETY: a SQLite of this age has this slot, with a function of the type of the field
            // (checked against SQLite's own functions in tests/suite/layout.rs).
            unsafe {
                std::mem::transmute::<AnyFn, $type>(
                    read_slot(routines, slot::$slot)
                        .ok_or(concat!("this SQLite was built without ", stringify!($slot)))?,
                )
            }
        };
    }
    let sql = Sql {
        create_function_v2: function!(CREATE_FUNCTION_V2: CreateFunctionFn),
        create_module_v2: function!(CREATE_MODULE_V2: CreateModuleFn),
        file_control: function!(FILE_CONTROL: FileControlFn),
        free: function!(FREE: FreeFn),
        malloc64: function!(MALLOC64: MallocFn),
        context_db_handle: function!(CONTEXT_DB_HANDLE: DbHandleFn),
        value_text: function!(VALUE_TEXT: ValueTextFn),
        result_text: function!(RESULT_TEXT: ResultTextFn),
        result_null: function!(RESULT_NULL: ResultNullFn),
        declare_vtab: function!(DECLARE_VTAB: DeclareVtabFn),
        result_int64: function!(RESULT_INT64: ResultIntFn),
        result_double: function!(RESULT_DOUBLE: ResultDoubleFn),
    };
    Ok((number, &place.get_or_init(|| (routines as usize, sql)).1))
}

impl Sql {
    /// The answer to `PRAGMA schema.NAME`, or its error, if the file's VFS knows it. No SQL runs.
    ///
    /// # Safety
    /// `db` is an open connection of this library.
    pub(super) unsafe fn pragma(&self, db: *mut Opaque, schema: &CStr, name: &CStr) -> Option<Result<String, String>> {
        let mut arguments =
            [std::ptr::null_mut::<c_char>(), name.as_ptr().cast_mut(), std::ptr::null_mut(), std::ptr::null_mut()];
        // SAFETY: this is the argument that the control asks for; the answer is null or a string to
        // be freed here.
        unsafe {
            let rc = (self.file_control)(db, schema.as_ptr(), fcntl::PRAGMA, arguments.as_mut_ptr().cast());
            let text = self.take(arguments[0]);
            match (rc, text) {
                (code::OK, text) => Some(Ok(text.unwrap_or_default())),
                // The second: the connection has no such schema.
                (code::NOTFOUND, _) | (code::ERROR, None) => None,
                (_, text) => Some(Err(text.unwrap_or_else(|| format!("error {rc}")))),
            }
        }
    }

    /// The name of the VFS of a database; `None` where the connection has no such schema, or it has
    /// no file.
    ///
    /// # Safety
    /// As [`Sql::pragma`].
    pub(super) unsafe fn vfs_name(&self, db: *mut Opaque, schema: &CStr) -> Option<String> {
        let mut name = std::ptr::null_mut::<c_char>();
        // SAFETY: this control takes the place for a string that the caller frees.
        unsafe {
            (self.file_control)(db, schema.as_ptr(), fcntl::VFSNAME, (&raw mut name).cast());
            self.take(name)
        }
    }

    /// # Safety
    /// `text` is null, or a C string of SQLite's that is the caller's to free.
    unsafe fn take(&self, text: *mut c_char) -> Option<String> {
        if text.is_null() {
            return None;
        }
        // SAFETY: as promised by the caller.
        unsafe {
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.free)(text.cast());
            Some(copy)
        }
    }

    /// The text of an argument; `None` for NULL.
    ///
    /// # Safety
    /// `value` is an argument of the function or filter that runs.
    pub(super) unsafe fn text_of(&self, value: *mut Opaque) -> Option<String> {
        // SAFETY: as promised by the caller; the text ends with a zero byte and is copied at once.
        unsafe {
            let text = (self.value_text)(value);
            (!text.is_null()).then(|| CStr::from_ptr(text.cast()).to_string_lossy().into_owned())
        }
    }

    /// Answers with a text.
    ///
    /// # Safety
    /// `context` is the one of the function or column that runs.
    pub(super) unsafe fn answer(&self, context: *mut Opaque, text: &str) {
        let text = c_text(text);
        // SAFETY: as promised by the caller; SQLite copies the text.
        unsafe { (self.result_text)(context, text.as_ptr(), -1, sql::TRANSIENT) }
    }

    /// A copy of `text` that SQLite frees.
    pub(super) fn copy(&self, text: &str) -> *mut c_char {
        copy_into(self.malloc64, text)
    }
}

/// Whether and how onewrite serves a database of a connection, in words.
///
/// # Safety
/// As [`Sql::pragma`].
pub(super) unsafe fn status_of(sql: &Sql, db: *mut Opaque, schema: &CStr) -> String {
    // SAFETY: as promised by the caller.
    match unsafe { (sql.pragma(db, schema, c"onewrite_status"), sql.vfs_name(db, schema)) } {
        (Some(Ok(text)), _) => text,
        (Some(Err(why)), _) => format!("in_effect=no: {}", printable(&why)),
        (None, Some(vfs)) => format!("in_effect=no: this database was opened through the VFS {vfs:?}"),
        (None, None) => "in_effect=no: this connection has no such database, or it is not in a file".to_owned(),
    }
}

/// The functions of the library that a copy of an SQL function belongs to.
pub(super) fn sql_of<const N: usize>() -> Option<&'static Sql> {
    LIBRARIES.get(N)?.get().map(|(_, sql)| sql)
}
