use std::time::Duration;

use super::role::WriterTurn;
use super::{Connection, LockLevel};
use crate::base::clock::{self, Instant};
use crate::base::error::{Error, Result};
use crate::base::layout::home as at;
use crate::base::options::Wal;
use crate::database::{DatabaseState, Phase};
use crate::disk::locks;
use crate::session::wal;
use crate::sqlite_format::home::{self, FileKind, State};

/// Wait for others that look. Users in WAL mode keep their lock for longer.
const LOOKERS_LEAVE: Duration = Duration::from_millis(20);
/// Longest wait for the turn of a writer.
const TELL_WAIT: Duration = Duration::from_millis(10);
/// Wait for another process that takes the file out of WAL mode.
const OTHERS_CHANGE: Duration = Duration::from_millis(50);

impl Connection {
    /// The caller has SHARED.
    pub(super) fn leaves_wal_mode(&mut self, state: &State, inner: &DatabaseState) -> Result<bool> {
        if inner.options.wal == Wal::Stock || self.db.read_only || !inner.recovers {
            return Ok(false);
        }
        match state.kind {
            FileKind::Wal => Ok(true),
            // Pages may be in it.
            FileKind::Database | FileKind::Foreign if home::has_rollback_journal(&state.header) => {
                let beside = wal::is_beside(&self.db)?;
                self.has_no_wal = !beside;
                Ok(beside)
            }
            _ => Ok(false),
        }
    }

    /// Fails if another process has the file open in WAL mode; SHARED is held before and after.
    /// False if others changed it: look again.
    pub(super) fn leave_wal_mode(&mut self, inner: &mut DatabaseState) -> Result<bool> {
        let db = self.db.clone();
        let home = &*db.home;
        if !locks::reserve(home)? {
            // Another process doing the same needs this lock.
            locks::none(home)?;
            let deadline = Instant::now() + OTHERS_CHANGE;
            loop {
                clock::sleep(Duration::from_millis(1));
                if !locks::is_reserved(home)? && locks::shared(home)? {
                    return Ok(false);
                }
                if Instant::now() >= deadline {
                    return Err(Error::Busy("another process takes the database out of WAL mode".into()));
                }
            }
        }
        if !locks::alone_from_reserved(home, LOOKERS_LEAVE)? {
            locks::unreserve(home)?;
            inner.stays_wal = Some("others have it open in that mode".into());
            return Ok(true);
        }
        let looked = self.look_alone(inner);
        let Ok(Some(state)) = looked else {
            locks::downgrade(home)?;
            return looked.map(|_| false);
        };
        let left = wal::leave(&db, &state);
        let left = match left {
            // A retry would not know which names are gone for good.
            Ok(None) => wal::discard(&db).map(|()| None).map_err(|e| inner.poison(e)),
            left => left,
        };
        locks::downgrade(home)?;
        // A shipper would find another counter at each look.
        if matches!(left, Ok(None)) && !self.ships {
            let mut first = [0; at::HEADER_BYTES];
            db.read_first(&mut first)?;
            inner.left_wal = Some(Box::new(first));
        }
        if matches!(inner.phase, Phase::Poisoned(_)) {
            locks::none(home)?;
        }
        inner.stays_wal = left?;
        Ok(true)
    }

    /// Whether WAL mode was asked for, of this connection or another one.
    pub fn asks_for_wal(&self) -> bool {
        matches!(self.db.asks_for_wal(), Ok(true))
    }

    /// `PRAGMA journal_mode` asked for WAL mode, or for another one. Where others are in the way,
    /// this process's next write or last close tells it.
    pub fn ask_for_wal(&mut self, asked: bool) {
        if self.db.read_only || self.asks_for_wal() == asked {
            return;
        }
        self.db.ask_for_wal(asked);
        match self.tell_asked() {
            Ok(()) | Err(Error::Busy(_) | Error::BusySnapshot | Error::NotAlone(_)) => {}
            Err(e) => drop(self.note_error(e)),
        }
    }

    fn tell_asked(&mut self) -> Result<()> {
        if self.level > LockLevel::None {
            return match self.db.writer.lock().as_ref() {
                Some(live) if self.place == WriterTurn::Firm => self.db.tell_asked(live),
                _ => Ok(()),
            };
        }
        self.lock(LockLevel::Shared)?;
        let told = match (self.role.is_below() || self.is_aside(), self.is_live()) {
            // SQLite's own mode is changed by SQLite.
            (true, _) => Ok(()),
            (false, true) => self.with_turn(TELL_WAIT, |db, live| db.tell_asked(live)),
            (false, false) => {
                let mut inner = self.db.inner.lock();
                let is_alone = inner.snapshot_count() <= 1 && inner.reserved.is_none();
                if is_alone { self.db.change_plain(&mut inner, false) } else { Ok(()) }
            }
        };
        told.and(self.unlock_unseen())
    }

    /// Users in WAL mode bring pages home, the header too, until this process is alone. `None` if
    /// the file is not to leave that mode, or not yet.
    fn look_alone(&mut self, inner: &DatabaseState) -> Result<Option<State>> {
        let (state, mark) = self.db.read_state()?;
        let leaves = mark.is_none() && self.leaves_wal_mode(&state, inner)? && !self.db.has_hot_journal()?;
        Ok(leaves.then_some(state))
    }
}
