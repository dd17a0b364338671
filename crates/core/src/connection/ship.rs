//! What the process does that ships a database whose commits wait for the store.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::role::{ReadTransaction, Role};
use super::{Connection, LockLevel};
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::SYNC_SUFFIX;
use crate::disk::beside;
use crate::disk::{OpenMode, system};
use crate::shared::member::Member;
use crate::shared::tail::Reach;
use crate::shared::words::Ship;

impl Connection {
    /// Whether a file beside the database says that commits wait for a store.
    pub fn is_signed(&self) -> Result<bool> {
        self.db.is_signed()
    }

    /// Removes that file: commits wait no more from the next session on.
    pub fn unsign(&self) -> Result<()> {
        let sign = beside::path(&self.db.path, SYNC_SUFFIX);
        let what = || format!("cannot remove {}", sign.display());
        match self.db.disk.remove(&sign) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| self.db.disk.sync_dir_of(&sign)).context(what),
        }
    }

    /// From here on commits wait for the store, `patience` long, also those of sessions to come: [`Connection::shipped`] says that
    /// it has them. Needs a connection with `shipper=1`, without a lock. `Busy`: try again.
    pub fn begin_shipping(&mut self, patience: Duration) -> Result<()> {
        let sign = beside::path(&self.db.path, SYNC_SUFFIX);
        let what = || format!("cannot make {}", sign.display());
        let file = beside::open(&*self.db.disk, &sign, OpenMode::Create, &*self.db.home, what)?;
        file.sync().context(what)?;
        self.db.disk.sync_dir_of(&sign).context(what)?;
        self.lock(LockLevel::Shared)?;
        let begun = self.begin_to_wait(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
        // Nobody is shown what it may have pinned, and nobody else ships it.
        if let Some(reader) = self.role.pinned_mut() {
            reader.unsettled = false;
        }
        let unlocked = self.unlock(LockLevel::None);
        let begun = begun.and(unlocked);
        self.noted(begun)
    }

    fn begin_to_wait(&mut self, patience_ms: u64) -> Result<()> {
        if let Some(member) = self.db.member().filter(|member| member.words.ship() != Ship::Off) {
            // Not with the writer's place: whoever has it may wait for the store.
            member.words.begin_shipping(patience_ms);
            self.list_changes();
            return Ok(());
        }
        self.lock(LockLevel::Reserved)?;
        let db = self.db.clone();
        let mut writer = db.writer.lock();
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a session without a log".into())) };
        // Whoever was told of a commit before, knows that it did not wait.
        db.flush_published(live)?;
        self.shipping()?.words.begin_shipping(patience_ms);
        self.list_changes();
        Ok(())
    }

    /// `PRAGMA onewrite_changes` knows all of them from here on: this process commits nothing itself.
    fn list_changes(&self) {
        let inner = self.db.inner.lock();
        self.db.table.write().lists_since(inner.published.tid);
    }

    fn shipping(&self) -> Result<Arc<Member>> {
        self.db.member().ok_or_else(|| {
            Error::CantOpen(format!(
                "{} is not shared with other processes: its commits cannot wait",
                self.db.path.display()
            ))
        })
    }

    /// How many transactions there are to send; waits for `count` of them, `nap` long at most.
    pub fn wait_to_ship(&self, count: u64, nap: Duration) -> Result<u64> {
        let member = self.shipping()?;
        let words = &member.words;
        let until = Instant::now() + nap;
        loop {
            let rung = words.ship_bell().load(SeqCst);
            self.db.inner.lock().check()?;
            // What a session begins with counts as one.
            let there = words.to_ship().map_or(0, |tid| tid.0.saturating_sub(words.shipped_to().0).max(1));
            let left = until.saturating_duration_since(Instant::now());
            if there >= count || left.is_zero() {
                return Ok(there);
            }
            system::wait(words.ship_bell(), rung, left);
        }
    }

    /// What is written is on the medium afterwards, also what a process has left that died, so that it can be shipped: perhaps nobody
    /// else comes to see to it. A process that is writing is waited for no longer than `patience`.
    pub fn flush_to_ship(&mut self, patience: Duration) -> Result<()> {
        let member = self.shipping()?;
        let flushed = self
            .db
            .end_turn_of_dead(&member, Instant::now() + patience)
            .and_then(|()| self.db.wait_flushed_here(&member, member.words.written()));
        self.noted(flushed)
    }

    /// Pins the newest state that is on the medium here, to be read and unlocked as with [`Connection::lock`]; its transaction.
    /// Readers may not see it yet.
    pub fn lock_to_ship(&mut self) -> Result<u64> {
        self.check_process()?;
        if self.level > LockLevel::None {
            return Err(Error::Misuse("a second snapshot".into()));
        }
        let pinned = self.pin_flushed();
        self.noted(pinned)
    }

    fn pin_flushed(&mut self) -> Result<u64> {
        let db = self.db.clone();
        let member = self.shipping()?;
        loop {
            let mut inner = db.inner.lock();
            inner.check()?;
            let state = db.pin_newest(&mut inner, Reach::Flushed)?;
            if state.tid <= member.words.flushed() {
                let tid = state.tid.0;
                self.role = Role::pinned_now(ReadTransaction { state, unsettled: false, looked: None });
                self.level = LockLevel::Shared;
                return Ok(tid);
            }
            let tid = state.tid;
            db.unpin(&mut inner, &state)?;
            drop(inner);
            // This process has followed further than that, to write.
            db.wait_flushed_here(&member, tid)?;
        }
    }

    /// Rule StoreHasIt: the store has everything up to `tid`, and still belongs to this database: who waits goes on, and readers see it.
    pub fn shipped(&self, tid: u64) -> Result<()> {
        let member = self.shipping()?;
        // A flush that failed meanwhile may have made this process blind.
        self.db.inner.lock().check()?;
        member.words.raise_shipped(crate::base::types::Tid(tid));
        Ok(())
    }

    /// The store takes nothing now: transactions that begin do not build on what it lacks.
    pub fn store_is_late(&self) -> Result<()> {
        self.shipping()?.words.note_late();
        Ok(())
    }

    /// The store belongs to another database: what waits fails, and nothing more is committed.
    pub fn fence(&self) -> Result<()> {
        self.shipping()?.words.fence();
        Ok(())
    }

    /// Whether everything written here is in the store.
    pub fn is_all_shipped(&self) -> Result<bool> {
        let member = self.shipping()?;
        Ok(member.words.ship() == Ship::On && member.words.shipped_to() >= member.words.written())
    }
}
