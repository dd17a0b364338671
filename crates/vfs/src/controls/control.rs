//! File controls of a main database: prepare and commit, pragmas, and smaller questions of
//! SQLite's.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use onewrite_core::text::printable;
use onewrite_core::{Connection, Error, Mode, Options, PRAGMAS};

use super::journal_mode::{self, Answer};
use crate::database::{MainFileState, Siblings};
use crate::host::fault::{Fault, Outcome, last};
use crate::settings::split;
use crate::sqlite::api::path_of;
use crate::sqlite::ffi::{ChangedPages, InUse, SplitPolicy, code, fcntl};

/// Prefix of every pragma that is ours.
const PREFIX: &str = "onewrite_";

/// # Safety
/// `op` and `arg` are those of a call of `xFileControl`.
pub(crate) unsafe fn file_control(state: &mut MainFileState, op: c_int, arg: *mut c_void) -> Outcome<c_int> {
    match op {
        // The argument is the name of the super-journal, null where there is none.
        fcntl::SYNC => match state.engine() {
            Some(conn) => {
                // SAFETY: as promised by the caller, it is a string or null.
                let super_journal = (!arg.is_null()).then(|| unsafe { CStr::from_ptr(arg.cast()) });
                conn.prepare(super_journal.map(path_of).as_deref())?;
                Ok(code::OK)
            }
            // SAFETY: as promised by the caller.
            None => unsafe { forward(state, op, arg) },
        },
        fcntl::COMMIT_PHASETWO => match state.engine() {
            Some(conn) => {
                conn.commit()?;
                Ok(code::OK)
            }
            // SAFETY: as promised by the caller.
            None => unsafe { forward(state, op, arg) },
        },
        // SAFETY: the argument of this control is an array of at least three strings.
        fcntl::PRAGMA => unsafe { answer_pragma(state, arg.cast()) },
        // No size to prepare for: the engine never writes ahead of a commit, and in WAL mode the
        // file underneath grows by the page.
        fcntl::SIZE_HINT => Ok(code::OK),
        fcntl::LOCKSTATE
        | fcntl::LAST_ERRNO
        | fcntl::VFSNAME
        | fcntl::POWERSAFE_OVERWRITE
        | fcntl::HAS_MOVED
        | fcntl::MMAP_SIZE => {
            // SAFETY: as promised by the caller.
            unsafe { answer_control(state, op, arg) };
            Ok(code::OK)
        }
        fcntl::PDB => {
            // SAFETY: the argument of this control is an sqlite3**, in SQLite's b-tree.
            unsafe {
                state.siblings = Siblings::of(arg.cast::<usize>().read());
                state.caller.set_connection(arg.cast());
            }
            Ok(code::NOTFOUND)
        }
        fcntl::BUSYHANDLER => {
            // SAFETY: the argument of this control is a function and its argument.
            unsafe { state.caller.set_busy(arg.cast()) };
            Ok(code::OK)
        }
        // The file underneath keeps these for the time in WAL mode, so they may come before that
        // time. The name of a temporary file is the same from either.
        fcntl::PERSIST_WAL | fcntl::CHUNK_SIZE | fcntl::TEMPFILENAME if state.host().passes_through() => {
            // SAFETY: as promised by the caller.
            Ok(unsafe { state.base()?.control(op, arg) })
        }
        // Where the file is worked on past the engine, pages are split as under any other VFS.
        fcntl::SPLIT | fcntl::IN_USE | fcntl::CHANGED => match state.engine() {
            // SAFETY: as promised by the caller.
            Some(conn) => unsafe { share_pages(conn, op, arg) },
            None => Ok(code::NOTFOUND),
        },
        // SAFETY: as promised by the caller.
        _ if state.forwards() => unsafe { forward(state, op, arg) },
        _ => Ok(code::NOTFOUND),
    }
}

/// Answers a question about the file or the VFS.
///
/// # Safety
/// `op` and `arg` are those of a call of `xFileControl`.
unsafe fn answer_control(state: &mut MainFileState, op: c_int, arg: *mut c_void) {
    match op {
        fcntl::LOCKSTATE => {
            // SAFETY: the argument of this control is an int.
            unsafe { arg.cast::<c_int>().write(state.level_number()) };
        }
        fcntl::LAST_ERRNO => {
            // SAFETY: the argument of this control is an int.
            unsafe { arg.cast::<c_int>().write(last().map_or(0, |(_, os_error)| os_error)) };
        }
        fcntl::VFSNAME => {
            let host = state.host();
            let name = host.api.sqlite_string(&host.name.to_string_lossy());
            // SAFETY: the argument of this control is a char*, which SQLite frees.
            unsafe { arg.cast::<*mut c_char>().write(name) };
        }
        fcntl::POWERSAFE_OVERWRITE => {
            // SAFETY: the argument of this control is an int: negative asks, else sets.
            unsafe {
                let value = arg.cast::<c_int>();
                match value.read() {
                    n if n < 0 => value.write(c_int::from(state.psow())),
                    n => state.set_psow(n != 0),
                }
            }
        }
        fcntl::MMAP_SIZE => {
            // SAFETY: the argument of this control is an sqlite3_int64: negative asks, else sets.
            unsafe {
                let value = arg.cast::<i64>();
                let before = state.mmap_limit;
                state.limit_mmap(value.read());
                value.write(before);
            }
        }
        fcntl::HAS_MOVED => {
            let moved = state.has_moved();
            // SAFETY: the argument of this control is an int.
            unsafe { arg.cast::<c_int>().write(c_int::from(moved)) };
        }
        _ => {}
    }
}

/// The controls of the SQLite that splits pages as the engine says.
///
/// # Safety
/// `op` and `arg` are those of a call of `xFileControl`.
unsafe fn share_pages(conn: &mut Connection, op: c_int, arg: *mut c_void) -> Outcome<c_int> {
    match op {
        fcntl::SPLIT => {
            // SAFETY: the argument of this control is such a structure.
            unsafe { arg.cast::<SplitPolicy>().write(split::policy(conn)) };
        }
        fcntl::IN_USE => {
            // SAFETY: the argument of this control is such a structure.
            let asked = unsafe { &mut *arg.cast::<InUse>() };
            asked.in_use = c_int::from(conn.in_use(asked.page, asked.offset, asked.bytes)?);
        }
        _ => {
            let Some(pages) = conn.changed_pages() else { return Ok(code::NOTFOUND) };
            // SAFETY: the argument of this control is such a structure.
            unsafe { arg.cast::<ChangedPages>().write(ChangedPages { pages: pages.as_ptr(), count: pages.len() }) };
        }
    }
    Ok(code::OK)
}

/// # Safety
/// As [`file_control`].
unsafe fn forward(state: &mut MainFileState, op: c_int, arg: *mut c_void) -> Outcome<c_int> {
    if !state.host().passes_through() {
        return Ok(code::NOTFOUND);
    }
    // SAFETY: as promised by the caller.
    Ok(unsafe { state.base()?.control(op, arg) })
}

/// `SQLITE_FCNTL_PRAGMA`: element 0 takes the answer or the error message (SQLite frees it), 1 is
/// the name, 2 the value or null. SQLite asks while it compiles the statement, and again each time
/// it runs.
///
/// # Safety
/// `args` is the argument of that control.
unsafe fn answer_pragma(state: &mut MainFileState, args: *mut *mut c_char) -> Outcome<c_int> {
    // SAFETY: as promised by the caller; the strings live across the call.
    let (name, value) = unsafe {
        let (name, value) = (*args.add(1), *args.add(2));
        let text = |p: *mut c_char| (!p.is_null()).then(|| CStr::from_ptr(p).to_string_lossy().into_owned());
        (text(name).unwrap_or_default().to_ascii_lowercase(), text(value))
    };
    if matches!(name.as_str(), "synchronous" | "secure_delete") {
        if let (Some(conn), Some(value)) = (state.connection(), &value) {
            match name.as_str() {
                "synchronous" => conn.note_synchronous(value),
                _ => conn.note_secure_delete(value),
            }
        }
        return Ok(code::NOTFOUND);
    }
    let known = match name.as_str() {
        "journal_mode" => Some(journal_mode::answer(state, value.as_deref())),
        "wal_checkpoint" => Some(journal_mode::checkpoint(state, value.as_deref())),
        _ => None,
    };
    match known {
        // SAFETY: as promised by the caller.
        Some(Some(answer)) => return unsafe { respond(state, args, answer) },
        Some(None) => return Ok(code::NOTFOUND),
        None => {}
    }
    if name == "locking_mode" {
        if let (Some(conn), Some(value)) = (state.connection(), &value) {
            conn.note_locking_mode(value)?;
        }
        return Ok(code::NOTFOUND);
    }
    if matches!(name.as_str(), "page_count" | "freelist_count") {
        if let Some(conn) = state.connection() {
            conn.note_size_asked()?;
        }
        return Ok(code::NOTFOUND);
    }
    let Some(name) = name.strip_prefix(PREFIX) else { return Ok(code::NOTFOUND) };
    let answer = match answer(state, name, value.as_deref()) {
        Ok(answer) => Ok(answer),
        Err(fault) => {
            let (rc, message, _) = fault.into_parts(code::IOERR);
            Err((rc, message.unwrap_or_default()))
        }
    };
    // SAFETY: as promised by the caller.
    unsafe { respond(state, args, answer) }
}

/// # Safety
/// As [`answer_pragma`].
unsafe fn respond(state: &mut MainFileState, args: *mut *mut c_char, answer: Answer) -> Outcome<c_int> {
    let (rc, text) = match answer {
        Ok(text) => (code::OK, text),
        Err((rc, message)) => (rc, message),
    };
    let text = state.host().api.sqlite_string(&text);
    if text.is_null() && rc == code::OK {
        return Err(Fault::Own(code::NOMEM, "no memory for the answer to a pragma".to_owned()));
    }
    // SAFETY: as promised by the caller.
    unsafe { *args = text };
    Ok(rc)
}

fn answer(state: &mut MainFileState, name: &str, value: Option<&str>) -> Outcome<String> {
    if !state.host().api.asks_split
        && let Some(answer) = split::without(name, value).map_err(|message| Fault::Own(code::ERROR, message))?
    {
        return Ok(answer);
    }
    if name == "status" {
        let effect = effect(state);
        let rest = state.connection().and_then(|conn| conn.pragma(name, value)).transpose()?;
        return Ok(rest.map_or(effect.clone(), |rest| format!("{effect}\n{rest}")));
    }
    if let Some(conn) = state.connection() {
        if let Some(answer) = conn.pragma(name, value) {
            return Ok(answer?);
        }
    } else if known().any(|known| known == name) {
        return match (name, state.last_error()) {
            ("error", last) => Ok(last.unwrap_or_default().to_owned()),
            _ => {
                let message = format!("{PREFIX}{name}: {}", state.why_past());
                Err(Fault::Own(code::ERROR, message))
            }
        };
    }
    let known: Vec<String> = known().map(|known| format!("{PREFIX}{known}")).collect();
    Err(Fault::Own(code::ERROR, format!("no such pragma: {PREFIX}{name}; there are {}", known.join(", "))))
}

/// Whether onewrite serves this connection, in words.
fn effect(state: &mut MainFileState) -> String {
    let absorbed = journal_mode::is_absorbed(state);
    let mode = match state.connection().map(Connection::look_ahead).transpose() {
        // A connection that is in the way now will not stay there.
        Err(Error::Busy(_) | Error::BusySnapshot | Error::NotAlone(_)) => Some(Mode::Idle),
        Err(e) => return format!("in_effect=no: {}", printable(&e.to_string())),
        Ok(mode) => mode,
    };
    match mode {
        Some(Mode::Wal) => {
            let why = state.connection().map(|conn| conn.why_stock()).unwrap_or_default();
            format!("in_effect=no: {}", printable(&why))
        }
        Some(_) if absorbed => {
            "in_effect=yes\njournal_mode=wal: answered for, and onewrite commits, which keeps what WAL mode \
                                promises (wal=absorb)"
                .to_owned()
        }
        Some(_) => "in_effect=yes".to_owned(),
        None => format!("in_effect=no: {}", printable(state.why_past())),
    }
}

/// The names of all pragmas, without the prefix.
fn known() -> impl Iterator<Item = &'static str> {
    PRAGMAS.into_iter().chain(Options::NAMES)
}
