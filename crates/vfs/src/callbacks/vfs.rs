//! The callbacks of the VFS itself: which files are onewrite's, and the rest to the VFS underneath.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use onewrite_core::Error;
use onewrite_core::disk::system;

use super::files::{OpenFile, place_journal, place_main};
use super::registered::{NameOf, Onewrite};
use super::super_journal;
use crate::host::Host;
use crate::host::fault::{Fault, Outcome, forget, last, remember};
use crate::process::version::{VERSION_CALL, onewrite_version};
use crate::sqlite::api::{path_of, text};
use crate::sqlite::ffi::{AnyFn, File, Vfs, access, code, open};

/// The structure to register.
pub(crate) fn structure(vfs: &'static Onewrite) -> Vfs {
    let base = vfs.host.base.methods();
    let file_bytes = size_of::<OpenFile>().max(size_of::<super_journal::OpenSuperJournal>());
    let file_bytes = c_int::try_from(file_bytes).unwrap_or(c_int::MAX);
    Vfs {
        version: 3,
        // Files that pass through are opened by the base right in SQLite's buffer.
        file_bytes: file_bytes.max(base.file_bytes),
        path_bytes_max: base.path_bytes_max,
        next: std::ptr::null_mut(),
        name: vfs.host.name.as_ptr(),
        app_data: std::ptr::from_ref(vfs).cast_mut().cast(),
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

/// The bytes of a super-journal that is in memory, or none of one that is to be created.
fn in_memory(host: &Host, name: &CStr, flags: c_int) -> Option<Vec<u8>> {
    let known = host.engine().super_journal(&path_of(name));
    known.or_else(|| (flags & open::CREATE != 0).then(Vec::new))
}

/// Deletes a file that is no database's journal.
fn delete_plain(host: &Host, name: &CStr, sync_dir: bool) -> Outcome<c_int> {
    if host.engine().remove_super_journal(&path_of(name), sync_dir)? {
        return Ok(code::OK);
    }
    if host.passes_through() {
        return Ok(host.base.delete(name, sync_dir));
    }
    let path = path_of(name);
    match host.disk.remove(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(code::IOERR_DELETE_NOENT),
        Err(e) => return Err(Error::io(format!("deleting {}", path.display()), e).into()),
    }
    if sync_dir {
        let sync = host.disk.sync_dir_of(&path);
        sync.map_err(|e| Error::io(format!("flushing the directory of {}", path.display()), e))?;
    }
    Ok(code::OK)
}

/// Looks for a file that is no database's journal.
fn access_plain(host: &Host, name: &CStr, flags: c_int) -> Outcome<bool> {
    if host.engine().super_journal(&path_of(name)).is_some() {
        return Ok(true);
    }
    if host.passes_through() || flags != access::EXISTS {
        return host.base.access(name, flags);
    }
    let path = path_of(name);
    Ok(host.disk.exists(&path).map_err(|e| Error::io(format!("looking for {}", path.display()), e))?)
}

/// # Safety
/// `vfs` is a structure made by [`structure`].
unsafe fn onewrite(vfs: *mut Vfs) -> &'static Onewrite {
    // SAFETY: `app_data` is the leaked `Onewrite` the structure was made from.
    unsafe { &*(*vfs).app_data.cast::<Onewrite>() }
}

// SQLite's promises for the callbacks below: the VFS is the one registered; names are C strings;
// buffers have the size given with them; pointers for answers are valid, and that for flags may be
// null.

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
    this.host.call(subject, code::CANTOPEN, || {
        // SAFETY: the arguments are passed on as they are.
        let pass_through = || unsafe { this.host.base.open_into(name, file, flags, out_flags) };
        let mut answer = flags;
        if flags & open::MAIN_DB != 0 && !name.is_null() {
            // SAFETY: see above.
            let main = unsafe { this.open_main(name, flags, &mut answer)? };
            // SAFETY: the buffer has the size the structure asks for.
            unsafe { place_main(file, this, main) };
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
            unsafe { place_journal(file, this, main) };
        } else if flags & open::SUPER_JOURNAL != 0
            && let Some(bytes) = in_memory(&this.host, subject, flags)
        {
            // SAFETY: the buffer has the size the structure asks for.
            unsafe { super_journal::place(&this.host, name, file, flags, bytes) };
        } else if !this.host.passes_through() && flags & (open::MAIN_JOURNAL | open::SUPER_JOURNAL | open::WAL) != 0 {
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
    this.host.call(subject, code::IOERR_DELETE, || {
        let Some((what, main)) = this.owner(name) else { return delete_plain(&this.host, subject, sync_dir != 0) };
        Ok(main.call(code::IOERR_DELETE, |state| {
            match (what, state.engine()) {
                (NameOf::Journal, Some(conn)) => conn.journal_delete(sync_dir != 0)?,
                _ => return delete_plain(&this.host, subject, sync_dir != 0),
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
    this.host.call(subject, code::IOERR_ACCESS, || {
        let owner = if flags == access::EXISTS { this.owner(name) } else { None };
        let Some((what, main)) = owner else { return respond(access_plain(&this.host, subject, flags)?) };
        Ok(main.call(code::IOERR_ACCESS, |state| {
            let known = match (what, state.engine()) {
                (NameOf::Journal, Some(conn)) => Some(conn.journal_exists()?),
                (NameOf::Wal, Some(conn)) => conn.wal_exists()?,
                (_, None) => None,
            };
            match known {
                Some(exists) => respond(exists),
                None => respond(access_plain(&this.host, subject, flags)?),
            }
        }))
    })
}

macro_rules! forward {
    ($vfs:ident, $method:ident ( $($arg:expr),* ), $otherwise:expr) => {
        // SAFETY: see above; the arguments are passed on as they are.
        unsafe {
            let base = onewrite($vfs).host.base;
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
    let full = catch_unwind(AssertUnwindSafe(|| {
        this.host.disk.full_path(&path_of(path)).filter(|_| this.host.base.is_unix())
    }));
    if let Ok(Some(full)) = full
        && let Ok(full) = CString::new(system::bytes_of(full.as_os_str()))
        && full.as_bytes_with_nul().len() <= usize::try_from(bytes).unwrap_or(0)
    {
        // SAFETY: SQLite gives room for `bytes`.
        unsafe { out.copy_from_nonoverlapping(full.as_ptr(), full.as_bytes_with_nul().len()) };
        return code::OK;
    }
    let rc = forward!(vfs, full_pathname(name, bytes, out), code::CANTOPEN);
    // SQLite does not get to `xOpen` then, and the reason of an error before this one would be
    // taken for this one's.
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

/// `xCurrentTimeInt64`: milliseconds of the Julian day; derived from days where the base has days
/// only.
unsafe extern "C" fn x_current_time_i64(vfs: *mut Vfs, out: *mut i64) -> c_int {
    // SAFETY: see above.
    unsafe {
        let base = onewrite(vfs).host.base;
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

/// `xGetLastError`: the message of this thread's last error if it was ours, else the base's.
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
        // SAFETY: a caller by this type knows that the real type is another one.
        return Some(unsafe { std::mem::transmute::<extern "C" fn() -> *const c_char, AnyFn>(onewrite_version) });
    }
    forward!(vfs, get_system_call(name), None)
}

unsafe extern "C" fn x_next_system_call(vfs: *mut Vfs, name: *const c_char) -> *const c_char {
    forward!(vfs, next_system_call(name), std::ptr::null())
}
