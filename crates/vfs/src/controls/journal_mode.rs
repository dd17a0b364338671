//! `PRAGMA journal_mode` and `wal_checkpoint` under `wal=absorb`: the answers are SQLite's in WAL
//! mode, and onewrite goes on, which keeps WAL mode's promises.

use std::ffi::c_int;

use onewrite_core::{Connection, Error};

use crate::database::MainFileState;
use crate::host::fault::{Fault, Outcome};
use crate::sqlite::ffi::{code, open};

/// The modes. SQLite takes the first that begins with the value given.
const MODES: [&str; 6] = ["delete", "persist", "off", "truncate", "memory", "wal"];

/// An answer to a pragma: a text, or a result code with its message.
pub(crate) type Answer = Result<String, (c_int, String)>;

/// The mode that SQLite takes `value` for; `None`: it only answers with the one in force.
fn mode_of(value: &str) -> Option<&'static str> {
    MODES.into_iter().find(|mode| mode.get(..value.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(value)))
}

/// `PRAGMA journal_mode`, with or without a value. `None`: SQLite answers itself.
pub(crate) fn answer(state: &mut MainFileState, value: Option<&str>) -> Option<Answer> {
    let mode = value.and_then(mode_of);
    if let Some(mode) = mode.filter(|mode| *mode != "wal") {
        state.siblings.set_off(mode == "off");
    }
    if !absorbs(state) {
        // SQLite refuses to change to WAL mode within a transaction.
        let taken = mode.filter(|mode| *mode != "wal" || !in_transaction(state));
        if let (Some(conn), Some(mode)) = (state.connection(), taken) {
            conn.note_journal_mode(mode);
            state.journal_off = mode == "off";
        }
        // A connection that only reads is told, and SQLite refuses its changes.
        return (mode.is_none() && state.asks_for_wal()).then(|| Ok("wal".to_owned()));
    }
    let off = state.journal_off;
    let absorbed = !off && state.asks_for_wal();
    match mode {
        None | Some("wal") if absorbed => Some(Ok("wal".to_owned())),
        None => None,
        Some(mode) if (absorbed || mode == "wal") && in_transaction(state) => {
            if !state.caller.is_in_transaction(&state.host().api) {
                return Some(Err((code::LOCKED, "database table is locked".to_owned())));
            }
            let way = if mode == "wal" { "into" } else { "out of" };
            Some(Err((code::ERROR, format!("cannot change {way} wal mode from within a transaction"))))
        }
        Some("wal") if off || state.siblings.is_off() => {
            let message = "journal_mode=off is in force, which keeps nothing to roll back with, as WAL mode would: \
                           set journal_mode=delete first, then wal";
            Some(Err((code::ERROR, message.to_owned())))
        }
        Some("wal") => {
            if let Some(conn) = state.connection() {
                conn.ask_for_wal(true);
            }
            Some(Ok("wal".to_owned()))
        }
        Some(mode) => {
            state.journal_off = mode == "off";
            if let Some(conn) = state.connection() {
                conn.ask_for_wal(false);
                conn.note_journal_mode(mode);
            }
            None
        }
    }
}

/// `PRAGMA wal_checkpoint`: a checkpoint of the engine's. SQLite then answers with the row of a
/// database that has no WAL, for a VFS can answer with one text only.
pub(crate) fn checkpoint(state: &mut MainFileState, value: Option<&str>) -> Option<Answer> {
    // SQLite refuses it within a transaction.
    if !absorbs(state) || in_transaction(state) || value.is_some_and(|mode| mode.eq_ignore_ascii_case("noop")) {
        return None;
    }
    let waits = value.is_some_and(|mode| ["full", "restart", "truncate"].iter().any(|m| mode.eq_ignore_ascii_case(m)));
    let done: Outcome = state.connection().map_or(Ok(()), |conn| conn.checkpoint().map_err(Fault::Core));
    match done {
        Ok(()) => None,
        Err(Fault::Core(Error::Busy(_) | Error::BusySnapshot | Error::NotAlone(_))) if !waits => None,
        Err(fault) => {
            let (rc, message, _) = fault.into_parts(code::IOERR);
            Some(Err((rc, message.unwrap_or_default())))
        }
    }
}

/// Whether the answer is `wal`, and onewrite serves the connection.
pub(crate) fn is_absorbed(state: &mut MainFileState) -> bool {
    !state.journal_off && absorbs(state) && state.asks_for_wal()
}

fn absorbs(state: &mut MainFileState) -> bool {
    state.flags() & open::READONLY == 0 && state.engine().is_some_and(|conn| conn.absorbs_wal())
}

/// Whether a transaction is open: the application's own, or by this file's locks. A connection in
/// exclusive mode keeps them, and one that shares the cache may have taken them.
fn in_transaction(state: &mut MainFileState) -> bool {
    let (explicit, _) = state.caller.transaction(&state.host().api);
    explicit || (state.level_number() > 0 && !state.connection().is_some_and(|conn| Connection::keeps_locks(conn)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_known_by_how_it_begins() {
        for (said, mode) in [
            ("WAL", Some("wal")),
            ("w", Some("wal")),
            ("", Some("delete")),
            ("D", Some("delete")),
            ("o", Some("off")),
            ("wall", None),
            ("wél", None),
            ("deleted", None),
        ] {
            assert_eq!(mode_of(said), mode, "{said:?}");
        }
    }
}
