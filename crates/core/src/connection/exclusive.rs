//! `locking_mode=exclusive`: a connection that never gives its locks back, nor looks again whether its cache still holds.

use std::time::{Duration, Instant};

use super::{Connection, LockLevel};
use crate::database::Phase;
use crate::error::{Error, Result};
use crate::home::State;

impl Connection {
    /// SQLite will neither give this lock back nor look again whether its cache still holds (`locking_mode=exclusive`):
    /// nobody else may write from here on.
    pub(super) fn lock_for_good(&mut self) -> Result<()> {
        let wait = Duration::from_millis(self.busy_ms);
        self.acquire_place()?;
        let pinned = self.pin_snapshot(true).and_then(|()| self.keep_newest(wait));
        if pinned.is_err() || self.wal || self.aside {
            self.leave(false);
            self.db.queue.release(self.id);
        }
        if pinned.is_err() && self.snapshot.is_some() {
            self.give_snapshot_back()?;
        }
        pinned
    }

    /// Keeps the other processes from writing as well, and reads the newest state of theirs.
    fn keep_newest(&mut self, wait: Duration) -> Result<()> {
        if self.wal || self.aside {
            return Ok(());
        }
        self.db.enter(true, Instant::now() + wait)?;
        self.entered = true;
        let db = self.db.clone();
        let mut inner = db.inner.lock();
        if let Some(old) = self.snapshot.take_if(|snapshot| !inner.is_newest(snapshot)) {
            db.unpin(&mut inner, &old)?;
            return self.pin(&mut inner, true);
        }
        Ok(())
    }

    /// `PRAGMA locking_mode=…` was seen. Under a lock it takes hold at once, or is refused.
    pub fn note_locking_mode(&mut self, value: &str) -> Result<()> {
        let exclusive = value.eq_ignore_ascii_case("exclusive");
        let reads =
            self.snapshot.clone().filter(|_| self.level == LockLevel::Shared && !self.aside && !self.db.read_only);
        if let Some(snapshot) = reads.filter(|_| exclusive && !self.exclusive_said) {
            let kept = self.keep_for_good(&snapshot);
            self.noted(kept)?;
        }
        self.exclusive_said = exclusive;
        Ok(())
    }

    fn keep_for_good(&mut self, snapshot: &State) -> Result<()> {
        let wait = Duration::from_millis(self.busy_ms);
        let had = self.db.queue.holds(self.id);
        self.acquire_place()?;
        let entered = self.db.enter(true, Instant::now() + wait);
        self.leased &= entered.is_err();
        self.entered = entered.is_ok();
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

    /// Stepping aside may have failed when the mark was off: the pages are what they were, the state is that of a plain
    /// file, and a connection that keeps its lock goes on from there.
    pub(super) fn look_for_log(&mut self) -> Result<()> {
        let db = self.db.clone();
        let mut inner = db.inner.lock();
        if inner.phase != Phase::Unmarked {
            return Ok(());
        }
        self.txn = None;
        if let Some(old) = self.snapshot.take() {
            db.unpin(&mut inner, &old)?;
        }
        self.pin(&mut inner, true)
    }

    /// Takes the file into use for writing once more, under a lock that was never given back.
    pub(super) fn mark_again(&mut self) -> Result<()> {
        match self.snapshot.clone() {
            Some(snapshot) if self.level >= LockLevel::Reserved && !self.wal => self.begin_write(&snapshot),
            _ => Ok(()),
        }
    }
}
