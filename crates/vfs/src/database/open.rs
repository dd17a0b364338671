//! Opening a main database: by the engine, or past it where it is only read.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use onewrite_core::disk::OpenMode;
use onewrite_core::inspect::home::mark;
use onewrite_core::inspect::layout::home::HEADER_BYTES;
use onewrite_core::text::printable;
use onewrite_core::{Connection, Error, LockLevel, Network, Options};

use super::main::Main;
use super::state::{MARKED, OpenName, marked_elsewhere};
use crate::host::Host;
use crate::host::base::BaseFile;
use crate::host::fault::{Fault, Outcome};
use crate::settings::{split, uri};
use crate::sqlite::api::path_of;
use crate::sqlite::ffi::{code, open as flag};

/// Opens a main database.
///
/// # Safety
/// `name` is the name SQLite passed to `xOpen` with the flag for a main database.
pub(crate) unsafe fn open(
    host: &'static Host,
    name: *const c_char,
    flags: c_int,
    out_flags: &mut c_int,
) -> Outcome<Arc<Main>> {
    // SAFETY: as promised by the caller.
    let (path, immutable, nolock, given) = unsafe {
        let path = path_of(CStr::from_ptr(name));
        let immutable = host.api.uri_flag(name, c"immutable");
        (path, immutable, host.api.uri_flag(name, c"nolock"), options(host, name)?)
    };
    let flags = flags & !flag::EXCLUSIVE;
    let Options { require: required, network, .. } = own_settings(&given)?;
    if let Some(why) = shared_between_machines(host, &path, network) {
        if required {
            return Err(Fault::Own(code::CANTOPEN, not_in_effect(&why)));
        }
        *out_flags = flags;
        // SAFETY: as promised by the caller.
        return unsafe { open_left(host, name, path, out_flags, immutable, why) };
    }
    let (mut conn, mut refused) = (None, None);
    if flags & flag::READWRITE != 0 && !immutable {
        if nolock {
            let message = "nolock=1: onewrite does not write a database without locks; leave it out or add mode=ro";
            return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
        }
        let mode = if flags & flag::CREATE != 0 { OpenMode::Create } else { OpenMode::ReadWrite };
        match host.engine().open(&path, mode, &given) {
            Ok(opened) => conn = Some(opened),
            Err(e) if forbids_writing(&e) && host.passes_through() => refused = Some(e),
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
        (conn, base) = unsafe { open_read_only(host, name, &path, base_flags, immutable || nolock, &given)? };
    }
    if required {
        let why = match (&refused, immutable) {
            (Some(e), _) => format!("it cannot be opened to write: {e}"),
            (None, true) => "immutable=1 was asked for".to_owned(),
            (None, false) => "it was opened to read only, and nobody writes it through onewrite now".to_owned(),
        };
        serves(conn.as_mut(), &why)?;
    }
    Ok(Arc::new(Main::new(host, OpenName(name), path, base_flags, conn, base, immutable)))
}

/// Why the database is left to SQLite's own modes, if its file system is one that machines share.
fn shared_between_machines(host: &Host, path: &Path, network: Network) -> Option<String> {
    if network == Network::Trust || !host.passes_through() {
        return None;
    }
    let system = host.disk.shared_between_machines(path)?;
    // A connection of this process that was told to trust it decides for the others.
    (!host.engine().is_attached(path)).then(|| {
        format!(
            "{} lies on {system}, a file system that several machines may use, whose locks and memory onewrite cannot share: \
             SQLite's own modes serve it (network=trust, if this machine alone uses it, has onewrite serve it)",
            path.display()
        )
    })
}

/// Opens a database for SQLite's own modes. `flags` become those of the open file.
///
/// # Safety
/// As [`open`].
unsafe fn open_left(
    host: &'static Host,
    name: *const c_char,
    path: PathBuf,
    flags: &mut c_int,
    immutable: bool,
    why: String,
) -> Outcome<Arc<Main>> {
    static SAID: Once = Once::new();
    SAID.call_once(|| host.api.log(code::WARNING, &format!("onewrite: {}", printable(&why))));
    if *flags & flag::READWRITE == 0 {
        let what = || format!("cannot open the database {}", path.display());
        host.disk.check_regular(&path).map_err(|e| Error::io(what(), e))?;
    }
    // SAFETY: as promised by the caller; the file is closed in `xClose`.
    let (mut file, opened) = unsafe { BaseFile::open(host.base, name, *flags)? };
    if opened != 0 {
        *flags = opened;
    }
    let mut header = [0; HEADER_BYTES];
    if file.read(&mut header, 0) == code::OK && mark(&header).is_some() {
        return Err(Fault::Own(code::CANTOPEN, marked_elsewhere(&why)));
    }
    Ok(Arc::new(Main::new(host, OpenName(name), path, *flags, None, Some(file), immutable).left_to_sqlite(why)))
}

/// A database that is only read goes past the engine, unless this process or another writes it.
/// `alone`: it is not locked either.
///
/// # Safety
/// As [`open`].
unsafe fn open_read_only(
    host: &Host,
    name: *const c_char,
    path: &Path,
    flags: c_int,
    alone: bool,
    given: &[(String, String)],
) -> Outcome<(Option<Connection>, Option<BaseFile>)> {
    let engine = host.engine();
    if !alone && engine.is_attached(path) {
        return Ok((Some(engine.open(path, OpenMode::ReadOnly, given).map_err(cannot_open)?), None));
    }
    if !host.passes_through() {
        let message = "read-only opens of a database that is not open for writing need the real disk";
        return Err(Fault::Own(code::CANTOPEN, message.to_owned()));
    }
    let mut options = Options::default();
    for (option, value) in given {
        options.set(option, value).map_err(cannot_open)?;
    }
    let what = || format!("cannot open the database {}", path.display());
    // The base would notice a directory at the first read.
    host.disk.check_regular(path).map_err(|e| Error::io(what(), e))?;
    // SAFETY: as promised by the caller; the file is closed in `xClose`.
    let (mut file, _) = unsafe { BaseFile::open(host.base, name, flags) }.map_err(|fault| match fault {
        Fault::Base(code::CANTOPEN) => Error::io(what(), host.base.last_error()).into(),
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
/// As [`open`].
pub(super) unsafe fn options(host: &Host, name: *const c_char) -> Outcome<Vec<(String, String)>> {
    // SAFETY: as promised by the caller.
    let (keys, vfs) = unsafe { (host.api.uri_keys(name), host.api.uri_value(name, "vfs")) };
    match uri::check(&keys) {
        Ok(()) => {}
        Err(message) if vfs.is_some_and(|vfs| vfs.as_bytes() == host.name.as_bytes()) => {
            return Err(Fault::Own(code::CANTOPEN, message));
        }
        // Meant for another library, it may be: SQLite itself ignores keys it does not know.
        Err(message) => {
            // SAFETY: as promised by the caller.
            let subject = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            host.api.log(code::WARNING, &format!("onewrite: ignored: {message} [{subject}]"));
        }
    }
    // In the order of NAMES, which is the order in which they apply.
    let given = Options::NAMES.iter().filter_map(|option| {
        // SAFETY: as promised by the caller.
        unsafe { host.api.uri_value(name, option) }.map(|value| ((*option).to_owned(), value))
    });
    if host.api.asks_split {
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

/// An error of opening, as one: an impossible option leaves the file as unopened as a missing one.
pub(super) fn cannot_open(error: Error) -> Fault {
    match error {
        Error::Option(message) | Error::Misuse(message) => Fault::Own(code::CANTOPEN, message),
        error => Fault::Core(error),
    }
}

/// `require` and `network` among the parameters, which count before there is an engine to ask.
fn own_settings(given: &[(String, String)]) -> Outcome<Options> {
    let mut options = Options::default();
    for (name, value) in given.iter().filter(|(name, _)| name == "require" || name == "network") {
        options.set(name, value).map_err(cannot_open)?;
    }
    Ok(options)
}

fn not_in_effect(why: &str) -> String {
    format!("require=1: onewrite would not be in effect: {why}")
}

/// Fails, with the reason, where the engine would not serve a connection that was just opened.
/// `why`: it has none.
fn serves(conn: Option<&mut Connection>, why: &str) -> Outcome {
    let message = |why: &str| Fault::Own(code::CANTOPEN, not_in_effect(why));
    match conn.map(Connection::look_ahead).transpose() {
        Ok(None) => Err(message(&format!("this connection would only read the file, past onewrite's engine: {why}"))),
        Err(Error::Required(why)) => Err(message(&why)),
        // The first transaction asks again.
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

/// Flags for a read-only open in place of `flags`.
fn read_only_flags(flags: c_int) -> c_int {
    flags & !(flag::READWRITE | flag::CREATE) | flag::READONLY
}
