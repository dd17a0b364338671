//! The functions that SQLite calls.

#![allow(unsafe_code)]

use crate::reader::Reader;
use crate::replica::Merged;
use crate::settings::Settings;
use anyhow::{Context, Result, bail};
use onewrite::ffi::{AnyFn, File, IoMethods, Vfs, code, fcntl, open};
use onewrite::{Api, STOCK_VFS, buffer, sqlite_copy, text};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The name under which it is registered.
pub const VFS_NAME: &CStr = c"onewrite-replica";

/// Begins the name that a database has in SQLite. No file of this machine is meant by it, nor by
/// the names that SQLite derives from it.
const PREFIX: &str = "onewrite-replica:";
const PATH_BYTES_MAX: c_int = 4096;
/// Level of a read lock.
const SHARED: c_int = 1;

struct Registered {
    api: Api,
    base: *mut Vfs,
    /// A copy of it: SQLite links the original into its list.
    methods: Vfs,
}

// SAFETY: a registered VFS stays registered, and its methods may be called from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// The SQLite that registered it first; messages go to its log.
static LOG: OnceLock<Api> = OnceLock::new();

/// Writes to SQLite's error log, and to the one that `ONEWRITE_LOG` names.
pub(crate) fn note(code: c_int, message: &str) {
    if let Some(api) = LOG.get() {
        api.log(code, &format!("onewrite-replica: {message}"));
    }
}

#[repr(C)]
struct OpenReader {
    file: File,
    vfs: &'static Registered,
    reader: *mut Reader,
}

/// The entry point of the loadable extension, under the name that SQLite derives from
/// `libonewrite_replica.so`. Registers the VFS; never as the default one.
///
/// # Safety
/// Called by SQLite, as it calls an extension's entry point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_onewritereplica_init(
    _: *mut c_void,
    error: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as promised by the caller; SQLite stays while its extension is loaded.
        unsafe { register(&Api::from_routines(routines)?) }
    }));
    let message = match outcome {
        // The VFS stays registered when the connection that loaded it closes.
        Ok(Ok(())) => return code::OK_LOAD_PERMANENTLY,
        Ok(Err(message)) => message,
        Err(_) => "internal error".to_owned(),
    };
    if !error.is_null() {
        // SAFETY: the place takes a message that SQLite frees.
        unsafe { error.write(sqlite_copy(routines, &format!("onewrite-replica: {message}"))) };
    }
    code::ERROR
}

/// Registers the VFS with a SQLite library. Doing so again changes nothing.
///
/// # Safety
/// The functions are those of a SQLite library that stays loaded as long as the process.
pub unsafe fn register(api: &Api) -> Result<(), String> {
    // SAFETY: as promised by the caller; names are C strings.
    let (found, base) = unsafe { ((api.vfs_find)(VFS_NAME.as_ptr()), (api.vfs_find)(STOCK_VFS.as_ptr())) };
    if !found.is_null() {
        return Ok(());
    }
    if base.is_null() {
        return Err("this SQLite has no VFS of the name unix".to_owned());
    }
    let _ = LOG.set(*api);
    // SAFETY: the structure is plain data.
    let methods = unsafe { base.read() };
    let file_bytes = c_int::try_from(size_of::<OpenReader>()).unwrap_or(c_int::MAX).max(methods.file_bytes);
    let registered = Box::leak(Box::new(Registered { api: *api, base, methods }));
    let vfs = Vfs {
        version: 1,
        file_bytes,
        path_bytes_max: PATH_BYTES_MAX,
        next: std::ptr::null_mut(),
        name: VFS_NAME.as_ptr(),
        app_data: std::ptr::from_ref(registered).cast_mut().cast(),
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
        current_time_i64: None,
        set_system_call: None,
        get_system_call: None,
        next_system_call: None,
    };
    // SAFETY: the structure lives as long as the process.
    match unsafe { (api.vfs_register)(Box::leak(Box::new(vfs)), 0) } {
        code::OK => Ok(()),
        rc => Err(format!("SQLite does not register the VFS: result {rc}")),
    }
}

/// # Safety
/// `vfs` is a structure made by [`register`].
unsafe fn registered(vfs: *mut Vfs) -> &'static Registered {
    // SAFETY: `app_data` is the leaked structure.
    unsafe { &*(*vfs).app_data.cast::<Registered>() }
}

fn is_ours(name: &CStr) -> bool {
    name.to_bytes().starts_with(PREFIX.as_bytes())
}

/// The result code of an error that SQLite is told, which cannot take its text: that is logged.
fn told(error: &anyhow::Error, code: c_int) -> c_int {
    let code = if error.is::<Merged>() { code::BUSY_SNAPSHOT } else { code };
    note(code, &format!("{error:#}"));
    code
}

/// Runs a callback: an error becomes its result code, a panic an internal one.
fn call(failed: c_int, run: impl FnOnce() -> Result<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(code)) => code,
        Ok(Err(e)) => told(&e, failed),
        Err(_) => {
            note(code::INTERNAL, "internal error");
            failed
        }
    }
}

// SQLite's promises for the callbacks below: the VFS is the one registered. Names are C strings.
// Buffers have the size given with them. Pointers for answers are valid; that for flags may be
// null. A file was filled by `x_open`, and one thread uses it at a time.

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
        (registered(vfs), text(name))
    };
    if !is_ours(subject) {
        // Temporary files.
        return match this.methods.open {
            // SAFETY: the arguments are passed on as they are; there is room for the base's file.
            Some(open) => unsafe { open(this.base, name, file, flags, out_flags) },
            None => code::CANTOPEN,
        };
    }
    call(code::CANTOPEN, || {
        if flags & open::MAIN_DB == 0 {
            bail!("a replica is for reading: it has no journal and no WAL");
        }
        // SAFETY: SQLite passed the name of a main database.
        let keys = unsafe { this.api.uri_keys(name) };
        // SAFETY: as above.
        let value = |key: &String| unsafe { this.api.uri_value(name, key) };
        let parameters: Vec<_> = keys.iter().filter_map(|key| Some((key.clone(), value(key)?))).collect();
        let reader = Box::new(Reader::open(&Settings::new(&parameters)?)?);
        let opened = OpenReader { file: File { methods: &METHODS }, vfs: this, reader: Box::into_raw(reader) };
        // SAFETY: the buffer has the size that the structure asks for.
        unsafe { file.cast::<OpenReader>().write(opened) };
        if !out_flags.is_null() {
            let answer = flags & !(open::READWRITE | open::CREATE) | open::READONLY;
            // SAFETY: see above.
            unsafe { out_flags.write(answer) };
        }
        Ok(code::OK)
    })
}

unsafe extern "C" fn x_delete(vfs: *mut Vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: see above.
    let (this, subject) = unsafe { (registered(vfs), text(name)) };
    match this.methods.delete {
        _ if is_ours(subject) => code::OK,
        // SAFETY: the arguments are passed on as they are.
        Some(delete) => unsafe { delete(this.base, name, sync_dir) },
        None => code::IOERR_DELETE,
    }
}

unsafe extern "C" fn x_access(vfs: *mut Vfs, name: *const c_char, flags: c_int, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    let (this, subject) = unsafe { (registered(vfs), text(name)) };
    if is_ours(subject) {
        // SAFETY: see above. There is no journal and no WAL.
        unsafe { answer.write(0) };
        return code::OK;
    }
    match this.methods.access {
        // SAFETY: the arguments are passed on as they are.
        Some(access) => unsafe { access(this.base, name, flags, answer) },
        None => code::IOERR_ACCESS,
    }
}

unsafe extern "C" fn x_full_pathname(_: *mut Vfs, name: *const c_char, bytes: c_int, to: *mut c_char) -> c_int {
    // SAFETY: see above.
    let name = unsafe { text(name) };
    call(code::CANTOPEN, || {
        let mut full = if is_ours(name) { Vec::new() } else { PREFIX.as_bytes().to_vec() };
        full.extend_from_slice(name.to_bytes_with_nul());
        if full.len() > usize::try_from(bytes).unwrap_or(0) {
            bail!("the name is too long");
        }
        // SAFETY: the room was checked.
        unsafe { std::ptr::copy_nonoverlapping(full.as_ptr().cast(), to, full.len()) };
        Ok(code::OK)
    })
}

/// Passes a call on to the VFS underneath.
macro_rules! pass {
    ($name:ident = $method:ident($($argument:ident: $type:ty),*) -> $result:ty, $else:expr) => {
        unsafe extern "C" fn $name(vfs: *mut Vfs, $($argument: $type),*) -> $result {
            // SAFETY: see above; the arguments are passed on as they are.
            unsafe {
                let this = registered(vfs);
                match this.methods.$method {
                    Some(method) => method(this.base, $($argument),*),
                    None => $else,
                }
            }
        }
    };
}

pass!(x_dl_open = dl_open(name: *const c_char) -> *mut c_void, std::ptr::null_mut());
pass!(x_dl_error = dl_error(bytes: c_int, to: *mut c_char) -> (), ());
pass!(x_dl_sym = dl_sym(library: *mut c_void, name: *const c_char) -> Option<AnyFn>, None);
pass!(x_dl_close = dl_close(library: *mut c_void) -> (), ());
pass!(x_randomness = randomness(bytes: c_int, to: *mut c_char) -> c_int, 0);
pass!(x_sleep = sleep(micros: c_int) -> c_int, 0);
pass!(x_current_time = current_time(to: *mut f64) -> c_int, code::ERROR);
pass!(x_get_last_error = get_last_error(bytes: c_int, to: *mut c_char) -> c_int, 0);

static METHODS: IoMethods = IoMethods {
    version: 1,
    close: Some(x_close),
    read: Some(x_read),
    write: Some(x_write),
    truncate: Some(x_truncate),
    sync: Some(x_sync),
    file_size: Some(x_file_size),
    lock: Some(x_lock),
    unlock: Some(x_unlock),
    check_reserved_lock: Some(x_check_reserved_lock),
    file_control: Some(x_file_control),
    sector_size: Some(x_sector_size),
    device_characteristics: Some(x_device_characteristics),
    ..IoMethods::NONE
};

/// # Safety
/// `file` was filled by `x_open` and is not closed; the reference is not used after the callback.
unsafe fn reader<'a>(file: *mut File) -> &'a mut Reader {
    // SAFETY: as promised by the caller.
    unsafe { &mut *(*file.cast::<OpenReader>()).reader }
}

/// The SQLite that opened the file.
///
/// # Safety
/// As [`reader`].
unsafe fn api(file: *mut File) -> &'static Api {
    // SAFETY: as promised by the caller.
    unsafe { &(*file.cast::<OpenReader>()).vfs.api }
}

unsafe extern "C" fn x_close(file: *mut File) -> c_int {
    // SAFETY: see above; SQLite calls nothing after it.
    unsafe {
        (*file).methods = std::ptr::null();
        drop(Box::from_raw((*file.cast::<OpenReader>()).reader));
    }
    code::OK
}

unsafe extern "C" fn x_read(file: *mut File, buf: *mut c_void, amount: c_int, offset: i64) -> c_int {
    call(code::IOERR_READ, || {
        // SAFETY: see above.
        let (reader, to) = unsafe { (reader(file), buffer(buf, amount)) };
        let read = reader.read_at(to, u64::try_from(offset).context("a read before the file")?)?;
        // SQLite's demand for a short read.
        to.get_mut(read..).unwrap_or_default().fill(0);
        Ok(if read < to.len() { code::IOERR_SHORT_READ } else { code::OK })
    })
}

unsafe extern "C" fn x_write(_: *mut File, _: *const c_void, _: c_int, _: i64) -> c_int {
    code::READONLY
}

unsafe extern "C" fn x_truncate(_: *mut File, _: i64) -> c_int {
    code::READONLY
}

unsafe extern "C" fn x_sync(_: *mut File, _: c_int) -> c_int {
    code::OK
}

unsafe extern "C" fn x_file_size(file: *mut File, size: *mut i64) -> c_int {
    call(code::IOERR_FSTAT, || {
        // SAFETY: see above.
        unsafe { size.write(i64::try_from(reader(file).size())?) };
        Ok(code::OK)
    })
}

unsafe extern "C" fn x_lock(file: *mut File, level: c_int) -> c_int {
    if level > SHARED {
        return code::READONLY;
    }
    call(code::IOERR_LOCK, || {
        // SAFETY: see above.
        if let Err(e) = unsafe { reader(file) }.begin() {
            // It reads what is known.
            note(code::WARNING, &format!("{e:#}"));
        }
        Ok(code::OK)
    })
}

unsafe extern "C" fn x_unlock(file: *mut File, level: c_int) -> c_int {
    if level < SHARED {
        // SAFETY: see above.
        unsafe { reader(file) }.end();
    }
    code::OK
}

unsafe extern "C" fn x_check_reserved_lock(_: *mut File, answer: *mut c_int) -> c_int {
    // SAFETY: see above.
    unsafe { answer.write(0) };
    code::OK
}

unsafe extern "C" fn x_file_control(file: *mut File, operation: c_int, argument: *mut c_void) -> c_int {
    match operation {
        fcntl::HAS_MOVED => {
            // SAFETY: the argument of this operation.
            unsafe { argument.cast::<c_int>().write(0) };
            code::OK
        }
        fcntl::VFSNAME => {
            // SAFETY: the argument of this operation is a place for a text that SQLite frees.
            unsafe { argument.cast::<*mut c_char>().write(api(file).sqlite_string("onewrite-replica")) };
            code::OK
        }
        // SAFETY: the argument of this operation.
        fcntl::PRAGMA => unsafe { pragma(reader(file), api(file), argument.cast()) },
        _ => code::NOTFOUND,
    }
}

/// # Safety
/// `arguments` is the argument of `SQLITE_FCNTL_PRAGMA`: a place for the answer, name, value or
/// null.
unsafe fn pragma(reader: &mut Reader, api: &Api, arguments: *mut *mut c_char) -> c_int {
    // SAFETY: as promised by the caller.
    let (name, value) = unsafe {
        let value = arguments.add(2).read();
        (text(arguments.add(1).read()), (!value.is_null()).then(|| text(value)))
    };
    let answered = catch_unwind(AssertUnwindSafe(|| {
        let name = name.to_string_lossy().to_ascii_lowercase();
        reader.pragma(&name, value.map(CStr::to_string_lossy).as_deref())
    }));
    let (code, answer) = match answered {
        Ok(None) => return code::NOTFOUND,
        Ok(Some(Ok(answer))) => (code::OK, answer),
        Ok(Some(Err(e))) => (code::ERROR, format!("{e:#}")),
        Err(_) => (code::INTERNAL, "onewrite-replica: internal error".to_owned()),
    };
    // SAFETY: as promised by the caller.
    unsafe { arguments.write(api.sqlite_string(&answer)) };
    code
}

unsafe extern "C" fn x_sector_size(_: *mut File) -> c_int {
    0
}

unsafe extern "C" fn x_device_characteristics(_: *mut File) -> c_int {
    0
}
