//! What every connection is given beside the VFS: the SQL functions `onewrite_version()`, `onewrite_status([SCHEMA])`
//! and `onewrite_last_error()`, and the table `onewrite_stats`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use onewrite_core::text::printable;
use parking_lot::Mutex;

use crate::api::{c_text, read_slot, sqlite_copy};
use crate::fault::last_pointer;
use crate::ffi::{
    AnyFn, CreateFunctionFn, CreateModuleFn, DbHandleFn, DeclareVtabFn, FileControlFn, FreeFn, MallocFn, Opaque,
    ResultDoubleFn, ResultIntFn, ResultNullFn, ResultTextFn, SqlFn, ValueTextFn, code, fcntl, slot, sql,
};
use crate::register::onewrite_version;
use crate::stats_table;

/// The functions of one SQLite library that SQL functions and tables are made of.
pub(crate) struct Sql {
    create_function_v2: CreateFunctionFn,
    create_module_v2: CreateModuleFn,
    file_control: FileControlFn,
    free: FreeFn,
    malloc64: MallocFn,
    context_db_handle: DbHandleFn,
    value_text: ValueTextFn,
    result_text: ResultTextFn,
    result_null: ResultNullFn,
    pub(crate) declare_vtab: DeclareVtabFn,
    pub(crate) result_int64: ResultIntFn,
    pub(crate) result_double: ResultDoubleFn,
}

/// SQLite libraries that one process may have loaded, each with functions of its own.
const LIBRARIES_MAX: usize = 4;

/// The address of the table that each SQLite library hands to extensions, and its functions. An SQL function is told
/// nothing that says whose it is without asking that library, so there is a copy of each for each library.
static LIBRARIES: [OnceLock<(usize, Sql)>; LIBRARIES_MAX] = [const { OnceLock::new() }; LIBRARIES_MAX];

/// Serialises filling [`LIBRARIES`].
static FILLING: Mutex<()> = Mutex::new(());

/// Name, number of arguments, flags, and what is behind it.
type Function = (&'static CStr, c_int, c_int, SqlFn);

/// The SQL functions of each library.
static FUNCTIONS: [[Function; 4]; LIBRARIES_MAX] =
    [functions::<0>(), functions::<1>(), functions::<2>(), functions::<3>()];

const fn functions<const N: usize>() -> [Function; 4] {
    [
        (c"onewrite_version", 0, sql::DETERMINISTIC, version::<N>),
        (c"onewrite_last_error", 0, 0, last_error::<N>),
        (c"onewrite_status", 0, 0, status::<N>),
        (c"onewrite_status", 1, 0, status::<N>),
    ]
}

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
    // SAFETY: SQLite passes an open connection, a place for a message, and its table, or null without extensions.
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

/// Gives one connection its functions and its table. Doing so again replaces them by the same.
///
/// # Safety
/// `db` is an open connection, and `routines` the table of its SQLite library, 3.37 or newer.
pub(crate) unsafe fn attach(db: *mut Opaque, routines: *const c_void) -> Result<(), String> {
    // SAFETY: as promised by the caller; names are C strings, and `Sql` and the module live as long as the process.
    unsafe {
        let (number, sql) = library(routines)?;
        for (name, arguments, flags, function) in FUNCTIONS.get(number).into_iter().flatten() {
            let (create, none, function) = (sql.create_function_v2, std::ptr::null_mut(), Some(*function));
            let rc = create(db, name.as_ptr(), *arguments, sql::UTF8 | flags, none, function, None, None, None);
            // BUSY: the connection has the function, and the statement that loads the extension once more is running.
            if rc != code::OK && rc != code::BUSY {
                return Err(format!("SQLite did not take the function {}: error {rc}", name.to_string_lossy()));
            }
        }
        let data = std::ptr::from_ref(sql).cast_mut().cast::<c_void>();
        match (sql.create_module_v2)(db, c"onewrite_stats".as_ptr(), &raw const stats_table::MODULE, data, None) {
            code::OK => Ok(()),
            rc => Err(format!("SQLite did not take the table onewrite_stats: error {rc}")),
        }
    }
}

/// The number and the functions of the library whose table this is.
///
/// # Safety
/// As [`attach`].
unsafe fn library(routines: *const c_void) -> Result<(usize, &'static Sql), String> {
    let _filling = FILLING.lock();
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
            // SAFETY: a SQLite of this age has this slot, which holds a function of the type of the field it is
            // assigned to (checked against SQLite's own functions in tests/suite/layout.rs).
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
    /// What `PRAGMA schema.NAME` answers, if the file's VFS knows it: the text, or what is wrong. No SQL runs.
    ///
    /// # Safety
    /// `db` is an open connection of this library.
    pub(crate) unsafe fn pragma(&self, db: *mut Opaque, schema: &CStr, name: &CStr) -> Option<Result<String, String>> {
        let mut arguments =
            [std::ptr::null_mut::<c_char>(), name.as_ptr().cast_mut(), std::ptr::null_mut(), std::ptr::null_mut()];
        // SAFETY: this is the argument that the control asks for; the answer is null or a string to be freed here.
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

    /// The name of the VFS of a database; `None` where the connection has no such schema, or it has no file.
    ///
    /// # Safety
    /// As [`Sql::pragma`].
    pub(crate) unsafe fn vfs_name(&self, db: *mut Opaque, schema: &CStr) -> Option<String> {
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
    pub(crate) unsafe fn text_of(&self, value: *mut Opaque) -> Option<String> {
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
    pub(crate) unsafe fn answer(&self, context: *mut Opaque, text: &str) {
        let text = c_text(text);
        // SAFETY: as promised by the caller; SQLite copies the text.
        unsafe { (self.result_text)(context, text.as_ptr(), -1, sql::TRANSIENT) }
    }

    /// A copy of `text` that SQLite frees.
    pub(crate) fn copy(&self, text: &str) -> *mut c_char {
        crate::api::copy_into(self.malloc64, text)
    }
}

/// Whether and how onewrite serves a database of a connection, in words.
///
/// # Safety
/// As [`Sql::pragma`].
pub(crate) unsafe fn status_of(sql: &Sql, db: *mut Opaque, schema: &CStr) -> String {
    // SAFETY: as promised by the caller.
    match unsafe { (sql.pragma(db, schema, c"onewrite_status"), sql.vfs_name(db, schema)) } {
        (Some(Ok(text)), _) => text,
        (Some(Err(why)), _) => format!("in_effect=no: {}", printable(&why)),
        (None, Some(vfs)) => format!("in_effect=no: this database was opened through the VFS {vfs:?}"),
        (None, None) => "in_effect=no: this connection has no such database, or it is not in a file".to_owned(),
    }
}

/// The functions of the library that a copy of an SQL function belongs to.
fn sql_of<const N: usize>() -> Option<&'static Sql> {
    LIBRARIES.get(N)?.get().map(|(_, sql)| sql)
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
    // What a panic leaves is a NULL.
    let _ = catch_unwind(AssertUnwindSafe(run));
}
