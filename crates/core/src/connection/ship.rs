//! The process that ships a database whose commits wait for the store.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::role::{ReadTransaction, Role};
use super::{Connection, LockLevel};
use crate::base::clock::Instant;
use crate::base::error::{Error, IoContext, Result};
use crate::database::ship::{REPLICA, sync_path};
use crate::disk::beside;
use crate::disk::{OpenMode, system};
use crate::shared::member::Member;
use crate::shared::tail::Reach;
use crate::shared::words::Ship;

impl Connection {
    /// Whether commits wait for a store, by the file beside the database.
    pub fn is_signed(&self) -> Result<bool> {
        self.db.is_signed()
    }

    /// Writes that file for a replica, to which its follower alone commits from here on, unless
    /// commits wait for the store in a session that goes on.
    pub fn sign_replica(&self) -> Result<()> {
        self.write_sign(REPLICA)?;
        if let Some(member) = self.db.member().as_ref() {
            member.words.begin_replica();
        }
        Ok(())
    }

    fn write_sign(&self, text: &[u8]) -> Result<()> {
        let sign = sync_path(&self.db.path);
        let what = || format!("cannot make {}", sign.display());
        let file = beside::open(&*self.db.disk, &sign, OpenMode::Create, &*self.db.home, what)?;
        // Cut first: half of another text still makes commits wait.
        let cut = file.set_len(text.len() as u64).and_then(|()| file.write_at(text, 0));
        cut.and_then(|()| file.sync()).and_then(|()| self.db.disk.sync_dir_of(&sign)).context(what)
    }

    /// Removes that file: commits of the next session do not wait.
    pub fn unsign(&self) -> Result<()> {
        let sign = sync_path(&self.db.path);
        let what = || format!("cannot remove {}", sign.display());
        match self.db.disk.remove(&sign) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| self.db.disk.sync_dir_of(&sign)).context(what),
        }
    }

    /// From here on commits wait for [`Connection::shipped`], up to `patience`, also in later
    /// sessions. Needs `shipper=1` and no lock. `Busy`: try again.
    pub fn begin_shipping(&mut self, patience: Duration) -> Result<()> {
        self.begin_signed(patience, true)
    }

    /// The same before there is a shipper. Begins no session: commits in one that others use fail
    /// after `patience`.
    pub fn sign_waiting(&mut self, patience: Duration) -> Result<()> {
        self.begin_signed(patience, false)
    }

    fn begin_signed(&mut self, patience: Duration, begins: bool) -> Result<()> {
        self.write_sign(b"")?;
        self.lock(LockLevel::Shared)?;
        let begun = match begins || self.db.member().is_some() {
            true => self.begin_to_wait(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX)),
            false => Ok(()),
        };
        // No application sees its snapshot.
        if let Some(reader) = self.role.pinned_mut() {
            reader.unsettled = false;
        }
        let unlocked = self.unlock(LockLevel::None);
        let begun = begun.and(unlocked);
        self.noted(begun)
    }

    fn begin_to_wait(&mut self, patience_ms: u64) -> Result<()> {
        if let Some(member) = self.db.member().as_ref().filter(|member| member.words.ship().waits()) {
            // Not with the writer's place, whose holder may wait for the store.
            member.words.begin_shipping(patience_ms);
            member.words.set_shipper(member.me);
            self.list_changes();
            return Ok(());
        }
        self.lock(LockLevel::Reserved)?;
        let db = self.db.clone();
        let mut writer = db.writer.lock();
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a session without a log".into())) };
        // Commits acknowledged before are known not to have waited.
        db.flush_published(live)?;
        let member = self.shipping()?;
        member.words.begin_shipping(patience_ms);
        member.words.set_shipper(member.me);
        self.list_changes();
        Ok(())
    }

    /// This process commits nothing, so `PRAGMA onewrite_changes` knows all changes from here on.
    fn list_changes(&self) {
        let inner = self.db.inner.lock();
        self.db.table.write().lists_since(inner.published.tid);
    }

    fn shipping(&self) -> Result<Arc<Member>> {
        self.db.member().clone().ok_or_else(|| {
            Error::CantOpen(format!(
                "{} is not shared with other processes: its commits cannot wait",
                self.db.path.display()
            ))
        })
    }

    /// The number of transactions to send, after a wait for `count`, or for `nap`.
    pub fn wait_to_ship(&self, count: u64, nap: Duration) -> Result<u64> {
        let member = self.shipping()?;
        let words = &member.words;
        let until = Instant::now() + nap;
        loop {
            let rung = words.ship_bell().load(SeqCst);
            self.db.inner.lock().check()?;
            // A session's first state counts as one.
            let there = words.to_ship().map_or(0, |tid| tid.0.saturating_sub(words.shipped_to().0).max(1));
            let left = until.saturating_duration_since(Instant::now());
            if there >= count || left.is_zero() {
                return Ok(there);
            }
            system::wait(words.ship_bell(), rung, left);
        }
    }

    /// Flushes everything written, also by dead processes. Waits for a writer up to `patience`.
    pub fn flush_to_ship(&mut self, patience: Duration) -> Result<()> {
        let member = self.shipping()?;
        let flushed = self
            .db
            .end_turn_of_dead(&member, Instant::now() + patience)
            .and_then(|()| self.db.wait_flushed_here(&member, member.words.written()));
        self.noted(flushed)
    }

    /// Pins the newest flushed state, to read and unlock as with [`Connection::lock`]; returns its
    /// TID. It may be invisible yet.
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
                self.role =
                    Role::pinned_now(ReadTransaction { state, unsettled: false, looked: None, has_moved: false });
                self.level = LockLevel::Shared;
                return Ok(tid);
            }
            let tid = state.tid;
            db.unpin(&mut inner, &state)?;
            drop(inner);
            // It has followed further than that, to write.
            db.wait_flushed_here(&member, tid)?;
        }
    }

    /// Rule StoreHasIt: the store, still this database's, has all up to `tid`: it becomes visible.
    pub fn shipped(&self, tid: u64) -> Result<()> {
        let member = self.shipping()?;
        // A flush that failed meanwhile may have made this process blind.
        self.db.inner.lock().check()?;
        member.words.raise_shipped(crate::base::types::Tid(tid));
        Ok(())
    }

    /// New transactions do not build on states that the slow store lacks.
    pub fn store_is_late(&self) -> Result<()> {
        self.shipping()?.words.note_late();
        Ok(())
    }

    /// The store has another owner: commits fail.
    pub fn fence(&self) -> Result<()> {
        self.shipping()?.words.fence();
        Ok(())
    }

    /// Whether the store has everything written here.
    pub fn is_all_shipped(&self) -> Result<bool> {
        let member = self.shipping()?;
        Ok(member.words.ship() == Ship::On && member.words.shipped_to() >= member.words.written())
    }
}
