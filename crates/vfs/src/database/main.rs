//! An open main database as SQLite calls it: one call at a time; an error or a panic becomes a
//! result code.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use lock_api::Mutex;
use onewrite_core::{Asks, Connection};

use super::siblings::Siblings;
use super::state::{MainFileState, OpenName};
use crate::host::Host;
use crate::host::base::BaseFile;
use crate::host::fault::{Fault, Outcome, panic_text};
use crate::process::taken::OneCall;
use crate::sqlite::ffi::code;

/// A main database and its lock. SQLite calls one connection from one thread at a time, so the lock
/// is free; it makes it sound to share the state with the journal's file object.
pub(crate) struct Main {
    host: &'static Host,
    path: PathBuf,
    state: Mutex<OneCall, MainFileState>,
}

impl Main {
    pub(crate) fn new(
        host: &'static Host,
        name: OpenName,
        path: PathBuf,
        flags: c_int,
        conn: Option<Connection>,
        base: Option<BaseFile>,
        immutable: bool,
    ) -> Main {
        let state = MainFileState::new(host, name, path.clone(), flags, conn, base, immutable);
        Main { host, path, state: Mutex::new(state) }
    }

    /// SQLite's own modes serve it, for this reason.
    pub(super) fn left_to_sqlite(mut self, why: String) -> Main {
        self.state.get_mut().left = Some(why);
        self
    }

    /// Runs one callback: an error or a panic becomes its result code. After a panic the connection
    /// serves no call. `io_code` is the code for a failure of the disk in this call.
    pub(crate) fn call(&self, io_code: c_int, f: impl FnOnce(&mut MainFileState) -> Outcome<c_int>) -> c_int {
        self.settle(io_code, || {
            let mut state = self.state.lock();
            state.check_alive(io_code)?;
            f(&mut state)
        })
    }

    /// `xLock`. Where SQLite would not ask the busy handler, or asks it too late, it is asked here.
    pub(crate) fn lock(&self, level: c_int) -> c_int {
        loop {
            let rc = self.call(code::IOERR_LOCK, |state| state.lock(level));
            if rc & 0xff != code::BUSY {
                return rc;
            }
            let asks = {
                let mut state = self.state.lock();
                let busy = state.caller.busy();
                state.connection().and_then(Connection::asks).zip(busy)
            };
            let Some((asks, busy)) = asks else { return rc };
            // SAFETY: this is a call of SQLite's, and the state's lock is free.
            let waits = unsafe { busy.waits() };
            match (waits, asks) {
                (true, Asks::Once) => return rc,
                (true, Asks::Again) => {}
                (false, _) => {
                    if let Some(conn) = self.state.lock().connection() {
                        conn.wait_no_longer();
                    }
                }
            }
        }
    }

    /// `xUnlock`.
    pub(crate) fn unlock(&self, level: c_int) -> c_int {
        self.settle(code::IOERR_UNLOCK, || {
            let mut state = self.state.lock();
            if state.is_carried() {
                return state.unlock_carried(level);
            }
            state.check_alive(code::IOERR_UNLOCK)?;
            state.unlock(level)
        })
    }

    /// Whether a fork carried it into this process and nothing has used it here yet.
    pub(crate) fn is_carried(&self) -> bool {
        self.state.lock().is_carried()
    }

    /// `xClose`: the result is the connection's, and no call is served afterwards.
    pub(crate) fn close(&self) -> c_int {
        let (conn, base, usable, forked) = {
            let mut state = self.state.lock();
            let forked = state.is_carried();
            let usable = !forked && state.dead.is_none();
            state.dead = Some("the connection is closed");
            state.siblings = Siblings::default();
            (state.conn.take(), state.base.take(), usable, forked)
        };
        self.settle(code::IOERR_CLOSE, || {
            let base = base.map_or(code::OK, BaseFile::close);
            match conn {
                Some(conn) if usable => conn.close()?,
                // After a panic it may contradict itself: ending it in the regular way would write
                // that into the database.
                Some(conn) if !forked => conn.abandon("a panic inside onewrite"),
                // After a fork it is the parent's.
                unusable => std::mem::forget(unusable),
            }
            Ok(base)
        })
    }

    /// Whether a write may be assumed to leave the bytes around it alone when the power fails.
    pub(crate) fn psow(&self) -> bool {
        self.state.lock().psow()
    }

    fn settle(&self, io_code: c_int, f: impl FnOnce() -> Outcome<c_int>) -> c_int {
        let fault = match catch_unwind(AssertUnwindSafe(f)) {
            Ok(Ok(rc)) => return rc,
            Ok(Err(fault)) => fault,
            Err(panic) => {
                self.state.lock().dead = Some("an earlier call failed inside onewrite; close this connection");
                Fault::Own(io_code, format!("internal error: {}", panic_text(&*panic)))
            }
        };
        if let Fault::Own(_, message) = &fault {
            self.state.lock().last_error = Some(message.clone());
        }
        fault.report(&self.host.api, &self.path.to_string_lossy(), io_code)
    }
}
