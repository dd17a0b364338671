//! The callbacks of the VFS itself: which files are onewrite's, and the rest to the VFS underneath.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onewrite_core::Options;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::home::mark;
use onewrite_core::inspect::layout::home::HEADER_BYTES;
use onewrite_core::{Connection, Engine, Error, LockLevel};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::api::Api;
use crate::base::{Base, BaseFile};
use crate::fault::{Fault, Outcome, forget, last, remember};
use crate::ffi::{AnyFn, File, Vfs, access, code, open};
use crate::files::{OpenFile, place_journal, place_main};
use crate::fork;
use crate::keeper;
use crate::main_file::{MARKED, Main, Name, panic_text, path_of, read_only_flags};
use crate::register::{VERSION_CALL, onewrite_version};
use crate::split;
use crate::super_journal;
use crate::uri;

/// One registered VFS. Lives as long as the process: SQLite may call it at any time.
pub(crate) struct Onewrite {
    pub(crate) api: Api,
    pub(crate) base: Base,
    pub(crate) name: CString,
    disk: Arc<dyn Disk>,
    /// Whether `disk` is the one the VFS underneath works on.
    passes_through: bool,
    /// The engine, and the [`fork::generation`] it belongs to.
    engine: Mutex<(u32, Arc<Engine>)>,
    /// Names of journals and WAL files of open databases. SQLite passes one and the same pointer for
    /// all its calls on a connection's journal, so the pointer says whose it is; the text would not:
    /// each connection to a file has a virtual journal of its own.
    names: RwLock<FxHashMap<usize, (NameOf, Arc<Main>)>>,
}

/// What a name passed by pointer is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameOf {
    Journal,
    Wal,
}

/// An engine of this process, whose idle databases are detached.
fn engine_on(disk: &Arc<dyn Disk>) -> Arc<Engine> {
    let engine = Engine::in_process(Arc::clone(disk), fork::generation);
    keeper::keep(&engine);
    engine
}

impl Onewrite {
    pub(crate) fn new(api: Api, base: Base, name: &CStr, disk: Arc<dyn Disk>, passes_through: bool) -> Onewrite {
        fork::watch();
        let engine = engine_on(&disk);
        Onewrite {
            api,
            base,
            name: name.to_owned(),
            disk,
            passes_through,
            engine: Mutex::new((fork::generation(), engine)),
            names: RwLock::default(),
        }
    }

    /// The structure to register.
    pub(crate) fn structure(&'static self) -> Vfs {
        let base = self.base.methods();
        let file_bytes = size_of::<OpenFile>().max(size_of::<super_journal::OpenSuperJournal>());
        let file_bytes = c_int::try_from(file_bytes).unwrap_or(c_int::MAX);
        Vfs {
            version: 3,
            // Files that pass through are opened by the base right in SQLite's buffer.
            file_bytes: file_bytes.max(base.file_bytes),
            path_bytes_max: base.path_bytes_max,
            next: std::ptr::null_mut(),
            name: self.name.as_ptr(),
            app_data: std::ptr::from_ref(self).cast_mut().cast(),
            open: Some(x_open),
            delete: Some(x_delete),
            access: Some(x_access),
            full_pathname: Some(x_full_pathname),
            dl_open: Some(x_dl_open),
            dl_error: Some(x_dl_error),
            dl_sym: Some(x_dl_sym),
            dl_close: Some(x_dl_close),
            randomness: Some(x_randomness),
            sleep: Some(x_sleep),
            current_time: Some(x_current_time),
            get_last_error: Some(x_get_last_error),
            current_time_i64: Some(x_current_time_i64),
            set_system_call: Some(x_set_system_call),
            get_system_call: Some(x_get_system_call),
            next_system_call: Some(x_next_system_call),
        }
    }

    pub(crate) fn passes_through(&self) -> bool {
        self.passes_through
    }

    /// The engine of this process; a forked child gets a new one, and leaves the parent's alone.
    pub(crate) fn engine(&self) -> Arc<Engine> {
        let mut engine = self.engine.lock();
        let generation = fork::generation();
        if engine.0 != generation {
            let fresh = (generation, engine_on(&self.disk));
            std::mem::forget(std::mem::replace(&mut *engine, fresh));
        }
        Arc::clone(&engine.1)
    }

    /// Whose journal or WAL file the pointer names.
    fn owner(&self, name: *const c_char) -> Option<(NameOf, Arc<Main>)> {
        self.names.read().get(&(name as usize)).cloned()
    }

    fn remember_name(&self, name: *const c_char, what: NameOf, main: &Arc<Main>) {
        if !name.is_null() {
            self.names.write().insert(name as usize, (what, Arc::clone(main)));
        }
    }

    /// Drops the names of a database that is being closed.
    pub(crate) fn forget_names(&self, main: &Arc<Main>) {
        self.names.write().retain(|_, (_, owner)| !Arc::ptr_eq(owner, main));
    }

    /// Runs one callback, turning errors and panics into result codes.
    pub(crate) fn call(&self, subject: &CStr, io_code: c_int, f: impl FnOnce() -> Outcome<c_int>) -> c_int {
        let fault = match catch_unwind(AssertUnwindSafe(f)) {
            Ok(Ok(rc)) => return rc,
            Ok(Err(fault)) => fault,
            Err(panic) => Fault::Own(code::INTERNAL, format!("internal error: {}", panic_text(&*panic))),
        };
        fault.report(&self.api, &subject.to_string_lossy(), io_code)
    }

    /// Opens a main database.
    ///
    /// # Safety
    /// `name` is the name SQLite passed to `xOpen` with the flag for a main database.
    unsafe fn open_main(&'static self, name: *const c_char, flags: c_int, out_flags: &mut c_int) -> Outcome<Arc<Main>> {
        // SAFETY: as promised by the caller.
        let (path, immutable, nolock, given) = unsafe {
            let path = path_of(CStr::from_ptr(name));
            let immutable = self.api.uri_flag(name, c"immutable");
            (path, immutable, self.api.uri_flag(name, c"nolock"), self.options(name)?)
        };
        let flags = flags & !open::EXCLUSIVE;
        let required = required(&given)?;
        let (mut conn, mut refused) = (None, None);
        if flags & open::READWRITE != 0 && !immutable {
            if nolock {
                let message = "nolock=1: onewrite does not write a database without locks; leave it out or add mode=ro";
                return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
            }
            let mode = if flags & open::CREATE != 0 { OpenMode::Create } else { OpenMode::ReadWrite };
            match self.engine().open(&path, mode, &given) {
                Ok(opened) => conn = Some(opened),
                Err(e) if forbids_writing(&e) && self.passes_through => refused = Some(e),
                Err(e) => return Err(cannot_open(e)),
            }
        }
        *out_flags = flags;
        let mut base = None;
        let mut base_flags = flags;
        if conn.is_none() {
            base_flags = read_only_flags(flags);
            *out_flags = base_flags;
            // SAFETY: as promised by the caller.
            (conn, base) = unsafe { self.open_read_only(name, &path, base_flags, immutable || nolock, &given)? };
        }
        if required {
            let why = match (&refused, immutable) {
                (Some(e), _) => format!("it cannot be opened to write: {e}"),
                (None, true) => "immutable=1 was asked for".to_owned(),
                (None, false) => "it was opened to read only, and nobody writes it through onewrite now".to_owned(),
            };
            serves(conn.as_mut(), &why)?;
        }
        let main = Arc::new(Main::new(self, Name(name), path, base_flags, conn, base, immutable));
        // SAFETY: as promised by the caller; both answer with a pointer behind the name, or null.
        let (journal, wal) = unsafe { ((self.api.filename_journal)(name), (self.api.filename_wal)(name)) };
        self.remember_name(journal, NameOf::Journal, &main);
        self.remember_name(wal, NameOf::Wal, &main);
        Ok(main)
    }

    /// A database that is only read goes past the engine, unless this process or another writes it. `alone`: it is not
    /// locked either.
    ///
    /// # Safety
    /// As [`Onewrite::open_main`].
    unsafe fn open_read_only(
        &self,
        name: *const c_char,
        path: &Path,
        flags: c_int,
        alone: bool,
        given: &[(String, String)],
    ) -> Outcome<(Option<Connection>, Option<BaseFile>)> {
        let engine = self.engine();
        if !alone && engine.is_attached(path) {
            return Ok((Some(engine.open(path, OpenMode::ReadOnly, given).map_err(cannot_open)?), None));
        }
        if !self.passes_through {
            let message = "read-only opens of a database that is not open for writing need the real disk";
            return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
        }
        let mut options = Options::default();
        for (option, value) in given {
            options.set(option, value).map_err(cannot_open)?;
        }
        let what = || format!("cannot open the database {}", path.display());
        // The base would wait for the other end of a pipe, and find out at the first read that a directory is none.
        regular(path).map_err(|e| Error::io(what(), e))?;
        // SAFETY: as promised by the caller; the file is closed in `xClose`.
        let (mut file, _) = unsafe { BaseFile::open(self.base, name, flags) }.map_err(|fault| match fault {
            Fault::Base(code::CANTOPEN) => Error::io(what(), self.base.last_error()).into(),
            fault => fault,
        })?;
        // Through the base's own file: closing another descriptor of it would drop the POSIX locks that
        // this process holds on it.
        let mut header = [0; HEADER_BYTES];
        if file.read(&mut header, 0) != code::OK || mark(&header).is_none() {
            return Ok((None, Some(file)));
        }
        if alone {
            return Err(Fault::Own(code::CANTOPEN, MARKED.to_owned()));
        }
        let mut conn = engine.open(path, OpenMode::ReadOnly, given).map_err(cannot_open)?;
        match conn.lock(LockLevel::Shared) {
            Ok(()) => conn.unlock(LockLevel::None)?,
            Err(Error::Busy(_)) => {}
            Err(e) => return Err(cannot_open(e)),
        }
        Ok((Some(conn), Some(file)))
    }

    /// The options among the URI parameters of a database.
    ///
    /// # Safety
    /// As [`Onewrite::open_main`].
    unsafe fn options(&self, name: *const c_char) -> Outcome<Vec<(String, String)>> {
        // SAFETY: as promised by the caller.
        let (keys, vfs) = unsafe { (self.api.uri_keys(name), self.api.uri_value(name, "vfs")) };
        match uri::check(&keys) {
            Ok(()) => {}
            Err(message) if vfs.is_some_and(|vfs| vfs.as_bytes() == self.name.as_bytes()) => {
                return Err(Fault::Own(code::CANTOPEN, message));
            }
            // Meant for another library, it may be: SQLite itself ignores keys it does not know.
            Err(message) => {
                // SAFETY: as promised by the caller.
                let subject = unsafe { CStr::from_ptr(name) }.to_string_lossy();
                self.api.log(code::WARNING, &format!("onewrite: ignored: {message} [{subject}]"));
            }
        }
        // In the order of NAMES, which is the order in which they apply.
        let given = Options::NAMES.iter().filter_map(|option| {
            // SAFETY: as promised by the caller.
            unsafe { self.api.uri_value(name, option) }.map(|value| ((*option).to_owned(), value))
        });
        if self.api.asks_split {
            return Ok(given.collect());
        }
        let mut honoured = Vec::new();
        for (option, value) in given {
            match split::without(&option, Some(&value)) {
                Ok(None) => honoured.push((option, value)),
                Ok(Some(_)) => {}
                Err(message) => return Err(Fault::Own(code::CANTOPEN, message)),
            }
        }
        Ok(honoured)
    }

    /// What a super-journal that is opened holds, if it is in memory, or may be.
    fn super_journal(&self, name: &CStr, flags: c_int) -> Option<Vec<u8>> {
        let known = self.engine().super_journal(&path_of(name));
        known.or_else(|| (flags & open::CREATE != 0).then(Vec::new))
    }

    /// Deletes a file that is no database's journal.
    fn delete_plain(&self, name: &CStr, sync_dir: bool) -> Outcome<c_int> {
        if self.engine().remove_super_journal(&path_of(name), sync_dir)? {
            return Ok(code::OK);
        }
        if self.passes_through {
            return Ok(self.base.delete(name, sync_dir));
        }
        let path = path_of(name);
        match self.disk.remove(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(code::IOERR_DELETE_NOENT),
            Err(e) => return Err(Error::io(format!("deleting {}", path.display()), e).into()),
        }
        if sync_dir {
            let sync = self.disk.sync_dir_of(&path);
            sync.map_err(|e| Error::io(format!("flushing the directory of {}", path.display()), e))?;
        }
        Ok(code::OK)
    }

    /// Looks for a file that is no database's journal.
    fn access_plain(&self, name: &CStr, flags: c_int) -> Outcome<bool> {
        if self.engine().super_journal(&path_of(name)).is_some() {
            return Ok(true);
        }
        if self.passes_through || flags != access::EXISTS {
            return self.base.access(name, flags);
        }
        let path = path_of(name);
        Ok(self.disk.exists(&path).map_err(|e| Error::io(format!("looking for {}", path.display()), e))?)
    }
}

/// Fails where there is no regular file.
fn regular(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    match found.is_file() {
        true => Ok(()),
        false if found.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// An error of opening, as one: an impossible option leaves the file as unopened as a missing one.
fn cannot_open(error: Error) -> Fault {
    match error {
        Error::Option(message) | Error::Misuse(message) => Fault::Own(code::CANTOPEN, message),
        error => Fault::Core(error),
    }
}

/// Whether `require=1` is among the parameters.
fn required(given: &[(String, String)]) -> Outcome<bool> {
    let mut options = Options::default();
    for (name, value) in given.iter().filter(|(name, _)| name == "require") {
        options.set(name, value).map_err(cannot_open)?;
    }
    Ok(options.require)
}

/// Fails, with the reason, where the engine would not serve a connection that was just opened. `why`: it has none.
fn serves(conn: Option<&mut Connection>, why: &str) -> Outcome {
    let message = |why: &str| Fault::Own(code::CANTOPEN, format!("require=1: onewrite would not be in effect: {why}"));
    match conn.map(Connection::look_ahead).transpose() {
        Ok(None) => Err(message(&format!("this connection would only read the file, past onewrite's engine: {why}"))),
        Err(Error::Required(why)) => Err(message(&why)),
        // Whoever is in the way now is asked again with the first transaction.
        Ok(Some(_)) | Err(Error::Busy(_) | Error::BusySnapshot | Error::NotAlone(_)) => Ok(()),
        Err(e) => Err(cannot_open(e)),
    }
}

/// Whether the file may be read all the same.
fn forbids_writing(error: &Error) -> bool {
    match error {
        Error::ReadOnly(_) => true,
        Error::Io { error, .. } => {
            matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        }
        _ => false,
    }
}

/// # Safety
/// `vfs` is a structure made by [`Onewrite::structure`].
unsafe fn onewrite(vfs: *mut Vfs) -> &'static Onewrite {
    // SAFETY: `app_data` is the leaked `Onewrite` the structure was made from.
    unsafe { &*(*vfs).app_data.cast::<Onewrite>() }
}

/// The text of a name, empty where there is none.
///
/// # Safety
/// `name` is null or a C string that lives across the callback.
unsafe fn text<'a>(name: *const c_char) -> &'a CStr {
    // SAFETY: as promised by the caller.
    if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } }
}

// In what follows SQLite promises: the VFS is the one registered, names are C strings, buffers have the size
// given with them, and pointers for answers are valid (that for flags may be null).

unsafe extern "C" fn x_open(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: see above. Without methods SQLite does not close the file when the open fails.
    let (this, subject) = unsafe {
        (*file).methods = std::ptr::null();
        (onewrite(vfs), text(name))
    };
    forget();
    this.call(subject, code::CANTOPEN, || {
        // SAFETY: the arguments are passed on as they are.
        let pass_through = || unsafe { this.base.open_into(name, file, flags, out_flags) };
        let mut answer = flags;
        if flags & open::MAIN_DB != 0 && !name.is_null() {
            // SAFETY: see above.
            let main = unsafe { this.open_main(name, flags, &mut answer)? };
            // SAFETY: the buffer has the size the structure asks for.
            unsafe { place_main(file, main) };
        } else if flags & open::MAIN_JOURNAL != 0
            && let Some((NameOf::Journal, main)) = this.owner(name)
        {
            let mut forwards = false;
            let rc = main.call(code::CANTOPEN, |state| {
                match state.engine() {
                    Some(conn) => conn.journal_open()?,
                    None => forwards = true,
                }
                Ok(code::OK)
            });
            if forwards {
                return Ok(pass_through());
            }
            if rc != code::OK {
                return Ok(rc);
            }
            // SAFETY: the buffer has the size the structure asks for.
            unsafe { place_journal(file, main) };
        } else if flags & open::SUPER_JOURNAL != 0
            && let Some(bytes) = this.super_journal(subject, flags)
        {
            // SAFETY: the buffer has the size the structure asks for.
            unsafe { super_journal::place(this, name, file, flags, bytes) };
        } else if !this.passes_through && flags & (open::MAIN_JOURNAL | open::SUPER_JOURNAL | open::WAL) != 0 {
            let message = "WAL files and foreign journals need the real disk";
            return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
        } else {
            return Ok(pass_through());
        }
        if !out_flags.is_null() {
            // SAFETY: see above.
            unsafe { out_flags.write(answer) };
        }
        Ok(code::OK)
    })
}

unsafe extern "C" fn x_delete(vfs: *mut Vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: see above.
    let (this, subject) = unsafe { (onewrite(vfs), text(name)) };
    this.call(subject, code::IOERR_DELETE, || {
        let Some((what, main)) = this.owner(name) else { return this.delete_plain(subject, sync_dir != 0) };
        Ok(main.call(code::IOERR_DELETE, |state| {
            match (what, state.engine()) {
                (NameOf::Journal, Some(conn)) => conn.journal_delete(sync_dir != 0)?,
                _ => return this.delete_plain(subject, sync_dir != 0),
            }
            Ok(code::OK)
        }))
    })
}

unsafe extern "C" fn x_access(vfs: *mut Vfs, name: *const c_char, flags: c_int, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    let (this, subject) = unsafe { (onewrite(vfs), text(name)) };
    let respond = |exists: bool| {
        // SAFETY: see above.
        unsafe { answer.write(c_int::from(exists)) };
        Ok(code::OK)
    };
    this.call(subject, code::IOERR_ACCESS, || {
        let owner = if flags == access::EXISTS { this.owner(name) } else { None };
        let Some((what, main)) = owner else { return respond(this.access_plain(subject, flags)?) };
        Ok(main.call(code::IOERR_ACCESS, |state| {
            let known = match (what, state.engine()) {
                (NameOf::Journal, Some(conn)) => Some(conn.journal_exists()?),
                (NameOf::Wal, Some(conn)) => conn.wal_exists()?,
                (_, None) => None,
            };
            match known {
                Some(exists) => respond(exists),
                None => respond(this.access_plain(subject, flags)?),
            }
        }))
    })
}

/// Calls a method of the base's, with the base as its first argument.
macro_rules! forward {
    ($vfs:ident, $method:ident ( $($arg:expr),* ), $otherwise:expr) => {
        // SAFETY: see above; the arguments are passed on as they are.
        unsafe {
            let base = onewrite($vfs).base;
            match base.methods().$method {
                Some(method) => method(base.as_ptr(), $($arg),*),
                None => $otherwise,
            }
        }
    };
}

/// The base's asks for the times of the file, too, and so makes its next flush dearer.
unsafe extern "C" fn x_full_pathname(vfs: *mut Vfs, name: *const c_char, bytes: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    let (this, path) = unsafe { (onewrite(vfs), text(name)) };
    let full = catch_unwind(AssertUnwindSafe(|| this.disk.full_path(&path_of(path)).filter(|_| this.base.is_unix())));
    if let Ok(Some(full)) = full
        && let Ok(full) = CString::new(full.into_os_string().into_vec())
        && full.as_bytes_with_nul().len() <= usize::try_from(bytes).unwrap_or(0)
    {
        // SAFETY: SQLite gives room for `bytes`.
        unsafe { out.copy_from_nonoverlapping(full.as_ptr(), full.as_bytes_with_nul().len()) };
        return code::OK;
    }
    let rc = forward!(vfs, full_pathname(name, bytes, out), code::CANTOPEN);
    // SQLite does not get to `xOpen` then, and the reason of an error before this one would be taken for this one's.
    if rc & 0xff != code::OK {
        let _none_in_a_panic = catch_unwind(|| unnamed(&path_of(path), bytes));
    }
    rc
}

/// Keeps the reason for which a path has no absolute form of at most `bytes`.
fn unnamed(path: &Path, bytes: c_int) {
    let (why, number) = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => (e.to_string(), e.raw_os_error().unwrap_or(0)),
        _ => {
            (format!("its absolute path has more than the {bytes} bytes that this SQLite takes, or too many links"), 0)
        }
    };
    remember(&format!("cannot open the database {}: {why}", path.display()), number);
}

unsafe extern "C" fn x_dl_open(vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    forward!(vfs, dl_open(name), std::ptr::null_mut())
}

unsafe extern "C" fn x_dl_error(vfs: *mut Vfs, bytes: c_int, out: *mut c_char) {
    forward!(vfs, dl_error(bytes, out), ())
}

unsafe extern "C" fn x_dl_sym(vfs: *mut Vfs, library: *mut c_void, symbol: *const c_char) -> Option<AnyFn> {
    forward!(vfs, dl_sym(library, symbol), None)
}

unsafe extern "C" fn x_dl_close(vfs: *mut Vfs, library: *mut c_void) {
    forward!(vfs, dl_close(library), ())
}

unsafe extern "C" fn x_randomness(vfs: *mut Vfs, bytes: c_int, out: *mut c_char) -> c_int {
    forward!(vfs, randomness(bytes, out), 0)
}

/// The busy handler of `sqlite3_busy_timeout` sleeps here, with the thread that was told BUSY.
unsafe extern "C" fn x_sleep(vfs: *mut Vfs, microseconds: c_int) -> c_int {
    let time = Duration::from_micros(u64::try_from(microseconds).unwrap_or(0));
    if catch_unwind(|| onewrite_core::nap(time)).unwrap_or(false) {
        return microseconds;
    }
    forward!(vfs, sleep(microseconds), 0)
}

unsafe extern "C" fn x_current_time(vfs: *mut Vfs, out: *mut f64) -> c_int {
    forward!(vfs, current_time(out), code::ERROR)
}

/// `xCurrentTimeInt64`: milliseconds of the Julian day; derived from days where the base has days only.
unsafe extern "C" fn x_current_time_i64(vfs: *mut Vfs, out: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = onewrite(vfs).base;
        match base.methods().current_time_i64.filter(|_| base.methods().version >= 2) {
            Some(method) => method(base.as_ptr(), out),
            None => {
                let mut days = 0.0;
                let rc = x_current_time(vfs, &raw mut days);
                out.write((days * 86_400_000.0) as i64);
                rc
            }
        }
    }
}

/// `xGetLastError`: the message of this thread's last error if it was ours, else whatever the base says.
unsafe extern "C" fn x_get_last_error(vfs: *mut Vfs, bytes: c_int, out: *mut c_char) -> c_int {
    let Some((message, os_error)) = last() else {
        return forward!(vfs, get_last_error(bytes, out), 0);
    };
    if let Ok(room) = usize::try_from(bytes)
        && room > 0
        && !out.is_null()
    {
        let len = (0..room).rev().find(|&len| message.is_char_boundary(len)).unwrap_or(0);
        // SAFETY: `len + 1` bytes fit into the buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr().cast(), out, len);
            out.add(len).write(0);
        }
    }
    os_error
}

unsafe extern "C" fn x_set_system_call(vfs: *mut Vfs, name: *const c_char, call: Option<AnyFn>) -> c_int {
    forward!(vfs, set_system_call(name, call), code::NOTFOUND)
}

unsafe extern "C" fn x_get_system_call(vfs: *mut Vfs, name: *const c_char) -> Option<AnyFn> {
    // SAFETY: see above.
    if unsafe { text(name) } == VERSION_CALL {
        // SAFETY: whoever calls it by this type is told that the type is another one.
        return Some(unsafe { std::mem::transmute::<extern "C" fn() -> *const c_char, AnyFn>(onewrite_version) });
    }
    forward!(vfs, get_system_call(name), None)
}

unsafe extern "C" fn x_next_system_call(vfs: *mut Vfs, name: *const c_char) -> *const c_char {
    forward!(vfs, next_system_call(name), std::ptr::null())
}
