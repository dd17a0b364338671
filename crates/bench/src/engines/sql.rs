//! SQLite's C API behind a table of functions: the SQLite linked into this program, or any other
//! `libsqlite3.so` loaded by path. All engines go through it, so it costs all the same. The only
//! module of the bench with `unsafe`.

#![allow(unsafe_code)]

use anyhow::{Context, Result};
use rusqlite::ffi::{self, sqlite3, sqlite3_stmt, sqlite3_vfs};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

type ExecCallback = Option<unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int>;
type Destructor = ffi::sqlite3_destructor_type;

/// Declares the table, with two ways to fill it.
macro_rules! api {
    ($($name:ident = $symbol:ident: fn($($arg:ty),*) $(-> $result:ty)?;)*) => {
        struct Api { $($name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)* }

        impl Api {
            fn linked() -> Api {
                Api { $($name: ffi::$symbol,)* }
            }

            fn loaded(library: &libloading::Library) -> Result<Api> {
                Ok(Api { $($name: {
                    let name = stringify!($symbol);
                    // SAFETY: the type is the one that SQLite's interface, stable since 3.5, gives
                    // this name.
                    let symbol = unsafe { library.get::<unsafe extern "C" fn($($arg),*) $(-> $result)?>(name.as_bytes()) };
                    *symbol.with_context(|| format!("no {name} in it"))?
                },)* })
            }
        }
    };
}

api! {
    libversion = sqlite3_libversion: fn() -> *const c_char;
    open_v2 = sqlite3_open_v2: fn(*const c_char, *mut *mut sqlite3, c_int, *const c_char) -> c_int;
    close = sqlite3_close: fn(*mut sqlite3) -> c_int;
    errmsg = sqlite3_errmsg: fn(*mut sqlite3) -> *const c_char;
    exec = sqlite3_exec: fn(*mut sqlite3, *const c_char, ExecCallback, *mut c_void, *mut *mut c_char) -> c_int;
    prepare_v2 = sqlite3_prepare_v2:
        fn(*mut sqlite3, *const c_char, c_int, *mut *mut sqlite3_stmt, *mut *const c_char) -> c_int;
    bind_int64 = sqlite3_bind_int64: fn(*mut sqlite3_stmt, c_int, i64) -> c_int;
    bind_blob = sqlite3_bind_blob: fn(*mut sqlite3_stmt, c_int, *const c_void, c_int, Destructor) -> c_int;
    bind_text = sqlite3_bind_text: fn(*mut sqlite3_stmt, c_int, *const c_char, c_int, Destructor) -> c_int;
    step = sqlite3_step: fn(*mut sqlite3_stmt) -> c_int;
    reset = sqlite3_reset: fn(*mut sqlite3_stmt) -> c_int;
    finalize = sqlite3_finalize: fn(*mut sqlite3_stmt) -> c_int;
    column_count = sqlite3_column_count: fn(*mut sqlite3_stmt) -> c_int;
    column_int64 = sqlite3_column_int64: fn(*mut sqlite3_stmt, c_int) -> i64;
    column_blob = sqlite3_column_blob: fn(*mut sqlite3_stmt, c_int) -> *const c_void;
    column_bytes = sqlite3_column_bytes: fn(*mut sqlite3_stmt, c_int) -> c_int;
    column_type = sqlite3_column_type: fn(*mut sqlite3_stmt, c_int) -> c_int;
    changes = sqlite3_changes: fn(*mut sqlite3) -> c_int;
    busy_timeout = sqlite3_busy_timeout: fn(*mut sqlite3, c_int) -> c_int;
    complete = sqlite3_complete: fn(*const c_char) -> c_int;
    extended_errcode = sqlite3_extended_errcode: fn(*mut sqlite3) -> c_int;
    get_autocommit = sqlite3_get_autocommit: fn(*mut sqlite3) -> c_int;
    db_status = sqlite3_db_status: fn(*mut sqlite3, c_int, *mut c_int, *mut c_int, c_int) -> c_int;
    vfs_find = sqlite3_vfs_find: fn(*const c_char) -> *mut sqlite3_vfs;
}

/// A SQLite: the one in this program, or a shared library.
pub struct Library {
    api: Api,
    /// Keeps the functions where they are.
    _handle: Option<libloading::Library>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SQLite {}", self.version())
    }
}

impl Library {
    /// The SQLite linked into this program.
    pub fn linked() -> Arc<Library> {
        Arc::new(Library { api: Api::linked(), _handle: None })
    }

    /// The one at `path`.
    pub fn load(path: &Path) -> Result<Arc<Library>> {
        let context = || format!("{} as a SQLite library", path.display());
        // SAFETY: the user says that this is a SQLite; its initialisers do nothing but set up the C
        // library.
        let handle = unsafe { libloading::Library::new(path) }.with_context(context)?;
        let api = Api::loaded(&handle).with_context(context)?;
        Ok(Arc::new(Library { api, _handle: Some(handle) }))
    }

    /// Its version, as `3.46.0`.
    pub fn version(&self) -> String {
        // SAFETY: returns a string constant.
        unsafe { text((self.api.libversion)()) }
    }

    /// Whether it knows a VFS of this name.
    pub fn has_vfs(&self, name: &str) -> bool {
        // SAFETY: the name is a C string that outlives the call.
        CString::new(name).is_ok_and(|name| !unsafe { (self.api.vfs_find)(name.as_ptr()) }.is_null())
    }

    /// Whether `sql` ends with a whole statement.
    pub fn is_complete(&self, sql: &str) -> bool {
        // SAFETY: the text is a C string that outlives the call.
        CString::new(sql).is_ok_and(|sql| unsafe { (self.api.complete)(sql.as_ptr()) } == 1)
    }
}

/// # Safety
/// `p` is null or points to a C string.
unsafe fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// An error of SQLite, which the errors of connections and statements have as their cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    /// The result code of the call.
    pub code: c_int,
    /// The same with its details, where SQLite has them.
    pub extended: c_int,
    /// SQLite's words.
    pub message: String,
}

impl std::fmt::Display for SqlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (SQLite's code {})", self.message, self.code)
    }
}

impl std::error::Error for SqlError {}

/// A value bound to a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// Text in UTF-8.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

/// A connection.
pub struct Db {
    library: Arc<Library>,
    raw: *mut sqlite3,
}

impl Db {
    /// Opens `name`, a path, or a URI if `uri`, creating the file.
    pub fn open(library: &Arc<Library>, name: &str, uri: bool) -> Result<Db> {
        let c_name = CString::new(name)?;
        let mut raw = ptr::null_mut();
        let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | if uri { ffi::SQLITE_OPEN_URI } else { 0 };
        // SAFETY: the strings outlive the call; `raw` becomes ours, also where the open fails.
        let code = unsafe { (library.api.open_v2)(c_name.as_ptr(), &mut raw, flags, ptr::null()) };
        let db = Db { library: library.clone(), raw };
        db.check(code).with_context(|| format!("opening {name}"))?;
        Ok(db)
    }

    fn check(&self, code: c_int) -> Result<()> {
        if code == ffi::SQLITE_OK {
            return Ok(());
        }
        // SAFETY: the connection is open, or null, which SQLite answers with "out of memory".
        let message = unsafe { text((self.library.api.errmsg)(self.raw)) };
        // SAFETY: likewise.
        let extended = unsafe { (self.library.api.extended_errcode)(self.raw) };
        let extended = if extended & 0xff == code & 0xff { extended } else { code };
        Err(SqlError { code, extended, message }.into())
    }

    /// Whether no transaction is open.
    pub fn is_autocommit(&self) -> bool {
        // SAFETY: the connection is open.
        unsafe { (self.library.api.get_autocommit)(self.raw) != 0 }
    }

    /// Runs all statements of `sql`, rows ignored, as `sqlite3_exec` does.
    pub fn execute_batch(&self, sql: &str) -> Result<()> {
        let c_sql = CString::new(sql)?;
        // SAFETY: the connection is open, the text outlives the call, no callback.
        let code = unsafe { (self.library.api.exec)(self.raw, c_sql.as_ptr(), None, ptr::null_mut(), ptr::null_mut()) };
        self.check(code).with_context(|| shorten(sql))
    }

    /// Prepares the first statement of `sql`.
    pub fn prepare(&self, sql: &str) -> Result<Stmt<'_>> {
        let c_sql = CString::new(sql)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the connection is open, the text outlives the call; the statement becomes ours.
        let code = unsafe { (self.library.api.prepare_v2)(self.raw, c_sql.as_ptr(), -1, &mut raw, ptr::null_mut()) };
        self.check(code).with_context(|| shorten(sql))?;
        Ok(Stmt { db: self, raw })
    }

    /// Rows changed by the last statement.
    pub fn changes(&self) -> i64 {
        // SAFETY: the connection is open.
        i64::from(unsafe { (self.library.api.changes)(self.raw) })
    }

    /// Pages that this connection has written to a database or a write-ahead log.
    pub fn cache_writes(&self) -> Result<u64> {
        let (mut now, mut highest) = (0, 0);
        let op = ffi::SQLITE_DBSTATUS_CACHE_WRITE;
        // SAFETY: the connection is open, and both numbers outlive the call.
        self.check(unsafe { (self.library.api.db_status)(self.raw, op, &mut now, &mut highest, 0) })?;
        Ok(u64::try_from(now)?)
    }

    /// How long to wait for another connection's lock, in milliseconds.
    pub fn busy_timeout(&self, ms: c_int) -> Result<()> {
        // SAFETY: the connection is open.
        self.check(unsafe { (self.library.api.busy_timeout)(self.raw, ms) })
    }

    /// The first column of the first row as text; `None` where there is no row.
    pub fn query_text(&self, sql: &str) -> Result<Option<String>> {
        let mut statement = self.prepare(sql)?;
        Ok(if statement.step()? { Some(String::from_utf8_lossy(statement.column_blob(0)).into_owned()) } else { None })
    }

    /// The first column of the first row.
    pub fn query_int(&self, sql: &str) -> Result<Option<i64>> {
        let mut statement = self.prepare(sql)?;
        Ok(if statement.step()? { Some(statement.column_int(0)) } else { None })
    }

    /// Closes the connection, and says why where that fails.
    pub fn close(mut self) -> Result<()> {
        // SAFETY: the connection is open, and no statement of it exists: they borrow it.
        let code = unsafe { (self.library.api.close)(self.raw) };
        self.check(code).context("closing the database")?;
        self.raw = ptr::null_mut();
        Ok(())
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: open or null, which is a no-op; errors have nowhere to go.
        unsafe { (self.library.api.close)(self.raw) };
    }
}

/// A prepared statement.
pub struct Stmt<'db> {
    db: &'db Db,
    raw: *mut sqlite3_stmt,
}

impl Stmt<'_> {
    fn api(&self) -> &Api {
        &self.db.library.api
    }

    /// Binds an integer to the parameter `i`, from 1 on.
    pub fn bind_int(&mut self, i: usize, value: i64) -> Result<()> {
        // SAFETY: the statement is ours.
        self.db.check(unsafe { (self.api().bind_int64)(self.raw, c_int::try_from(i)?, value) })
    }

    /// Binds bytes to the parameter `i`, from 1 on.
    pub fn bind_blob(&mut self, i: usize, value: &[u8]) -> Result<()> {
        let (i, n) = (c_int::try_from(i)?, c_int::try_from(value.len())?);
        // SAFETY: SQLite copies the bytes before the call returns (SQLITE_TRANSIENT).
        let code = unsafe { (self.api().bind_blob)(self.raw, i, value.as_ptr().cast(), n, ffi::SQLITE_TRANSIENT()) };
        self.db.check(code)
    }

    /// Binds a value to the parameter `i`, from 1 on.
    pub fn bind(&mut self, i: usize, value: &Value) -> Result<()> {
        match value {
            Value::Int(v) => self.bind_int(i, *v),
            Value::Blob(v) => self.bind_blob(i, v),
            Value::Text(v) => {
                let (i, n) = (c_int::try_from(i)?, c_int::try_from(v.len())?);
                // SAFETY: SQLite copies the bytes before the call returns (SQLITE_TRANSIENT).
                let code =
                    unsafe { (self.api().bind_text)(self.raw, i, v.as_ptr().cast(), n, ffi::SQLITE_TRANSIENT()) };
                self.db.check(code)
            }
        }
    }

    /// The next row, if there is one.
    pub fn step(&mut self) -> Result<bool> {
        // SAFETY: the statement is ours.
        match unsafe { (self.api().step)(self.raw) } {
            ffi::SQLITE_ROW => Ok(true),
            ffi::SQLITE_DONE => Ok(false),
            code => {
                let failed = self.db.check(code);
                self.reset();
                failed.map(|()| false)
            }
        }
    }

    /// Ready for the next execution; the values stay bound.
    pub fn reset(&mut self) {
        // SAFETY: the statement is ours; the code repeats that of `step`.
        unsafe { (self.api().reset)(self.raw) };
    }

    /// Steps to the end and resets. How many rows came.
    pub fn run(&mut self) -> Result<usize> {
        let mut rows = 0;
        while self.step()? {
            rows += 1;
        }
        self.reset();
        Ok(rows)
    }

    /// Columns of a row.
    pub fn column_count(&self) -> usize {
        // SAFETY: the statement is ours.
        usize::try_from(unsafe { (self.api().column_count)(self.raw) }).unwrap_or(0)
    }

    /// The column `i`, from 0 on, as an integer.
    pub fn column_int(&self, i: usize) -> i64 {
        // SAFETY: the statement is ours; a column that is not there reads as 0.
        unsafe { (self.api().column_int64)(self.raw, i as c_int) }
    }

    /// SQLite's number of the type: 1 integer, 2 real, 3 text, 4 blob, 5 null.
    pub fn column_type(&self, i: usize) -> c_int {
        // SAFETY: the statement is ours.
        unsafe { (self.api().column_type)(self.raw, i as c_int) }
    }

    /// The bytes of a text or a blob, of a number its text, valid until the next step.
    pub fn column_blob(&self, i: usize) -> &[u8] {
        // SAFETY: in this order, as SQLite's documentation asks; the bytes stay until the statement
        // is stepped, reset or finalized, all of which need it mutably.
        unsafe {
            let data = (self.api().column_blob)(self.raw, i as c_int);
            let n = (self.api().column_bytes)(self.raw, i as c_int);
            if data.is_null() { &[] } else { std::slice::from_raw_parts(data.cast(), usize::try_from(n).unwrap_or(0)) }
        }
    }
}

impl Drop for Stmt<'_> {
    fn drop(&mut self) {
        // SAFETY: the statement is ours, and used no more.
        unsafe { (self.api().finalize)(self.raw) };
    }
}

fn shorten(sql: &str) -> String {
    let text: String = sql.chars().take(80).collect();
    if text.len() < sql.len() { text + "..." } else { text }
}

/// The libraries a bench uses, each loaded once.
#[derive(Debug)]
pub struct Libraries {
    linked: Arc<Library>,
    loaded: Vec<(PathBuf, Arc<Library>)>,
}

impl Libraries {
    /// The linked one, and those at `paths`.
    pub fn load<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<Libraries> {
        let mut loaded: Vec<(PathBuf, Arc<Library>)> = Vec::new();
        for path in paths {
            if !loaded.iter().any(|(p, _)| p == path) {
                loaded.push((path.clone(), Library::load(path)?));
            }
        }
        Ok(Libraries { linked: Library::linked(), loaded })
    }

    /// The one at `path`, or the linked one.
    pub fn get(&self, path: Option<&Path>) -> Result<&Arc<Library>> {
        let Some(path) = path else { return Ok(&self.linked) };
        let found = self.loaded.iter().find(|(p, _)| p == path);
        found.map(|(_, l)| l).with_context(|| format!("{} is not loaded", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        let db = Db::open(&Library::linked(), ":memory:", false).unwrap();
        db.execute_batch("CREATE TABLE t(a, b, c)").unwrap();
        {
            let mut insert = db.prepare("INSERT INTO t VALUES(?1, ?2, ?3)").unwrap();
            insert.bind(1, &Value::Int(-7)).unwrap();
            insert.bind(2, &Value::Text("é".to_owned())).unwrap();
            insert.bind(3, &Value::Blob(vec![0, 255])).unwrap();
            assert_eq!(insert.run().unwrap(), 0);
        }
        assert_eq!(db.changes(), 1);
        let mut select = db.prepare("SELECT a, b, c FROM t").unwrap();
        assert!(select.step().unwrap());
        assert_eq!((select.column_int(0), select.column_type(0)), (-7, 1));
        assert_eq!(select.column_blob(1), "é".as_bytes());
        assert_eq!(select.column_blob(2), [0, 255]);
        assert!(!select.step().unwrap());
    }

    #[test]
    fn errors_carry_sqlites_words() {
        let db = Db::open(&Library::linked(), ":memory:", false).unwrap();
        let error = format!("{:#}", db.execute_batch("SELECT absent").unwrap_err());
        assert!(error.contains("no such column: absent"), "{error}");
        let error = format!("{:#}", Library::load(Path::new("/dev/null")).unwrap_err());
        assert!(error.contains("/dev/null"), "{error}");
    }

    #[test]
    fn whole_statements_are_told_from_halves() {
        let library = Library::linked();
        assert!(library.is_complete("INSERT INTO t VALUES(';');"));
        assert!(!library.is_complete("INSERT INTO t VALUES(';"));
        assert!(!library.is_complete("CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM t;"));
    }
}
