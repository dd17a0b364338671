//! `locking_mode=exclusive`, and how a connection gets the database for itself.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::role::{Role, WriterTurn};
use super::{Connection, LockLevel};
use crate::base::error::{Error, Result};
use crate::database::{Database, DatabaseState, Phase};
use crate::shared::member::Member;
use crate::shared::words::Pins;
use crate::sqlite_format::home::{FileKind, State};

impl Connection {
    /// SQLite will neither unlock nor check its cache again (`locking_mode=exclusive`), so no other
    /// may write from now on (rule CacheKnowsItsState).
    pub(super) fn lock_for_good(&mut self) -> Result<()> {
        self.take_place_here()?;
        let pinned = self.pin_snapshot(true).and_then(|()| self.keep_newest());
        if pinned.is_err() || self.role.is_below() || self.is_aside() {
            self.give_place_back();
        }
        if pinned.is_err() {
            self.has_no_wal = false;
            if !matches!(self.role, Role::Idle) {
                self.give_snapshot_back()?;
            }
        }
        pinned
    }

    fn keep_newest(&mut self) -> Result<()> {
        if self.role.is_below() || self.is_aside() {
            return Ok(());
        }
        self.enter_for_good()?;
        let db = self.db.clone();
        let mut inner = db.inner.lock();
        if self.role.snapshot().is_none_or(|snapshot| inner.is_newest(snapshot)) {
            return Ok(());
        }
        self.pin_again(&db, &mut inner)
    }

    fn pin_again(&mut self, db: &Database, inner: &mut DatabaseState) -> Result<()> {
        let old = self.role.take_reader();
        let pinned = self.pin(inner, true);
        // Only now: the last snapshot of a plain file gives its SHARED back.
        let unpinned = old.map_or(Ok(()), |old| db.unpin(inner, &old.state));
        pinned.and(unpinned)
    }

    /// `Busy` while another reads: the caller asks again (rule AnnounceThenLook).
    pub(super) fn shut_others_out(&mut self) -> Result<()> {
        let db = self.db.clone();
        let inner = db.inner.lock();
        self.shuts_out = true;
        db.alone.store(self.id.0, SeqCst);
        let mut read = inner.snapshot_count() > usize::from(self.role.pinned().is_some());
        if let Some(member) = &inner.member {
            member.words.shut_out(member.me);
            read |= member.pins_of_others()?.iter().any(|pins| *pins != Pins::default());
        }
        if read { Err(Error::Busy("others still read the database".into())) } else { Ok(()) }
    }

    pub(super) fn let_others_in(&mut self) {
        if std::mem::take(&mut self.shuts_out) {
            let inner = self.db.inner.lock();
            self.db.alone.store(0, SeqCst);
            if let Some(member) = &inner.member {
                member.words.let_in(member.me);
            }
        }
    }

    /// Between processes, the snapshot is announced before.
    pub(super) fn check_let_in(&self, member: Option<&Arc<Member>>) -> Result<()> {
        let alone = ![0, self.id.0].contains(&self.db.alone.load(SeqCst));
        if let Some(member) = member.filter(|_| !alone) {
            self.db.check_replaced(member)?;
        }
        if alone || member.map_or(Ok(false), |member| member.is_shut_out())? {
            return Err(Error::Busy("another connection has taken the database for itself".into()));
        }
        Ok(())
    }

    /// `PRAGMA locking_mode=…` was seen. Under a lock it acts at once, or is refused.
    pub fn note_locking_mode(&mut self, value: &str) -> Result<()> {
        let exclusive = value.eq_ignore_ascii_case("exclusive");
        let reads = self.role.snapshot().cloned().filter(|_| self.level == LockLevel::Shared && !self.db.read_only);
        if let Some(snapshot) = reads.filter(|_| exclusive && !self.said.exclusive) {
            let kept = self.keep_for_good(&snapshot);
            self.noted(kept)?;
        }
        self.said.exclusive = exclusive;
        Ok(())
    }

    fn keep_for_good(&mut self, snapshot: &State) -> Result<()> {
        let wait = Duration::from_millis(self.busy_ms);
        let had = self.db.queue.holds(self.id);
        self.acquire_place(wait)?;
        let entered = self.db.enter(true, wait);
        if entered.is_ok() {
            self.place = WriterTurn::Firm;
        }
        let kept = entered.and_then(|()| match self.db.inner.lock().is_newest(snapshot) && !self.is_apart() {
            true => Ok(()),
            false => Err(Error::BusySnapshot),
        });
        if kept.is_err() {
            self.leave(false);
            if !had {
                self.db.queue.release(self.id);
            }
        }
        kept
    }

    /// SQLite maps a WAL's index: it found a WAL, or keeps the lock under which it changed the
    /// mode. The caller then uses the VFS below. False if neither can be.
    pub fn goes_on_in_wal_mode(&mut self) -> Result<bool> {
        let reads = self.level == LockLevel::Shared && self.db.inner.lock().phase == Phase::Unmarked;
        let back = match self.is_aside() {
            true if self.db.read_state()?.0.kind == FileKind::Wal => self.come_back(),
            false if reads => {
                self.role.go_below();
                Ok(())
            }
            _ => return Ok(false),
        };
        self.let_others_in();
        self.give_place_back();
        self.noted(back)?;
        Ok(self.role.is_below())
    }

    /// SQLite locks a file that is no database, to make it one (`SQLITE_DBCONFIG_RESET_DATABASE`,
    /// `VACUUM`) or to report the error. The caller then uses the VFS below.
    pub fn leaves_foreign_file(&mut self) -> bool {
        let foreign = self.role.snapshot().is_some_and(|snapshot| snapshot.kind == FileKind::Foreign);
        if foreign && !self.requires {
            self.role.go_below();
            self.give_place_back();
        }
        self.role.is_below()
    }

    /// Stepping aside may have failed after the mark was off: the file is plain, its pages are
    /// unchanged, and a kept lock goes on.
    pub(super) fn look_for_log(&mut self) -> Result<()> {
        let db = self.db.clone();
        let mut inner = db.inner.lock();
        if inner.phase != Phase::Unmarked {
            return Ok(());
        }
        self.pin_again(&db, &mut inner)
    }

    pub(super) fn mark_again(&mut self) -> Result<()> {
        match &self.role {
            Role::Reader(reader) if self.level >= LockLevel::Reserved => {
                let snapshot = reader.state.clone();
                let begun = self.begin_write(&snapshot);
                // The rollback of a journal in memory is refused, too: nothing tells of it.
                begun.map_err(|e| if self.journal.is_empty() { self.not_rolled_back(e) } else { e })
            }
            _ => Ok(()),
        }
    }
}
