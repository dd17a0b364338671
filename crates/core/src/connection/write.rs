//! The two steps of a commit.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::Connection;
use super::role::{WriteTransaction, WriterTurn};
use super::said::Synchronous;
use crate::base::error::{Error, Result};
use crate::base::rules::{Case, keeps};
use crate::base::types::PageNo;
use crate::commit::{self, Published, stream};
use crate::database::scheme::Commit;
use crate::database::{Database, LiveDatabase};
use crate::log::group::Durability;
use crate::pages::txn::{Txn, TxnStage};
use crate::session::aside;
use crate::sqlite_format::home;

impl Connection {
    /// SQLITE_FCNTL_SYNC: prepare. `super_journal`: the one over several files.
    pub fn prepare(&mut self, super_journal: Option<&Path>) -> Result<()> {
        self.db.queue.set_inside(self.id, true);
        let prepared = self.prepare_txn(super_journal);
        self.db.queue.set_inside(self.id, false);
        self.noted(prepared)
    }

    fn prepare_txn(&mut self, super_journal: Option<&Path>) -> Result<()> {
        let (looks, has_moved) = (self.looked().is_some(), self.has_moved());
        let Some(txn) = self.role.txn_mut() else { return Ok(()) };
        if txn.doomed && looks {
            return Ok(());
        }
        if txn.doomed {
            // SQLite has played its journal back, and may go on under its lock (rule
            // MergeIsSerial).
            self.db.inner.lock().check()?;
            if needs_plain_file(txn) {
                return Err(Error::BusySnapshot);
            }
            txn.doomed = false;
            self.roll_back()?;
            return self.look_for_log();
        }
        self.reopen()?;
        self.check_process()?;
        if self.plays_back()? {
            return self.db.inner.lock().check();
        }
        self.line_up(super_journal.is_some())?;
        self.take_place_again()?;
        let Some(txn) = self.role.txn_mut() else { return Ok(()) };
        txn.several = None;
        if super_journal.is_some() && txn.is_untouched() {
            // SQLite ignores later errors, so a late page would be lost (I7).
            return Err(late("a transaction over several files whose pages come later"));
        }
        (txn.synced, txn.normal) = (false, self.journal.syncs_are_normal());
        let plain = needs_plain_file(txn);
        if let Some(several) = super_journal.and_then(|path| self.engine.several(path)) {
            if plain {
                self.doom();
                return Err(Error::NotAlone(
                    "several files cannot be committed together with a change of page size".into(),
                ));
            }
            return self.prepare_several(several);
        }
        let Some(txn) = self.role.txn_mut() else { return Ok(()) };
        let db = &*self.db;
        let mut writer = db.writer.lock();
        if (looks || self.said.exclusive) && txn.streamed.is_empty() {
            db.see_to_files(&mut writer).map_err(aside::stale)?;
        }
        db.see_to_removed_log(&mut writer, !txn.streamed.is_empty()).map_err(aside::stale)?;
        check_newest(db, writer.as_ref(), txn)?;
        if !txn.is_untouched() && (super_journal.is_some() || plain) {
            db.spans_aside.fetch_or(super_journal.is_some(), Relaxed);
            // Behind a move, SQLite's journal would restore the counters of an older state.
            let refused = self.requires.then(|| stays_here("this transaction"));
            let refused = refused.or(has_moved.then_some(Error::BusySnapshot));
            let logged = refused.map_or_else(|| stream::all_to_log(db, &mut writer, txn), Err);
            let aside = logged.and_then(|()| aside::step_aside(db, &mut writer, txn, &self.journal, self.id));
            drop(writer);
            return match aside {
                Ok(journal) => {
                    self.role.step_aside(journal);
                    Ok(())
                }
                Err(e) => {
                    // Its streamed images may have gone with the log.
                    self.doom();
                    self.roll_back().and(Err(e))
                }
            };
        }
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        commit::prepare(&mut Commit { db, live, txn, options: &self.options })
    }

    /// Writes of a VFS that keeps them back until xSync are part of the transaction (rule
    /// WholeTransaction). The journal is gone: an error is final.
    fn prepare_late(&mut self) -> Result<()> {
        let db = self.db.clone();
        self.check_process()?;
        self.line_up(false)?;
        self.take_place_again()?;
        let Some(txn) = self.role.txn_mut() else { return Err(no_transaction()) };
        txn.several = None;
        let mut writer = db.writer.lock();
        check_newest(&db, writer.as_ref(), txn)?;
        if needs_plain_file(txn) {
            return Err(late("another page size or journal mode"));
        }
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        commit::prepare(&mut Commit { db: &db, live, txn, options: &self.options })
    }

    /// xSync: `synchronous` is not OFF.
    pub fn sync(&mut self) -> Result<()> {
        if self.is_aside() {
            let synced = self.db.sync_home();
            let synced = synced.map_err(|e| self.db.poison(e));
            return self.noted(synced);
        }
        let Some(txn) = self.role.txn_mut() else { return Ok(()) };
        txn.synced = true;
        if txn.several.is_some() && matches!(txn.stage, TxnStage::Open) {
            // The record lacks these pages.
            return self.noted(Err(late("a transaction over several files has prepared its record without them")));
        }
        Ok(())
    }

    /// SQLITE_FCNTL_COMMIT_PHASETWO: commit. Under `synchronous=FULL`, it then survives any crash
    /// (invariant I1).
    pub fn commit(&mut self) -> Result<()> {
        self.db.queue.set_inside(self.id, true);
        let committed = self.commit_txn();
        self.db.queue.set_inside(self.id, false);
        self.noted(committed)
    }

    /// The second half of a commit; [`commit::prepare`] is the first.
    pub(super) fn commit_txn(&mut self) -> Result<()> {
        if !self.is_ready_to_commit()? {
            return Ok(());
        }
        let published = self.publish()?;
        let waited = self.wait_for(&published);
        commit::after_commit(&self.db);
        waited
    }

    /// Whether there is a transaction to commit; prepares it where SQLite wrote after it was
    /// prepared.
    fn is_ready_to_commit(&mut self) -> Result<bool> {
        self.check_commit()?;
        if self.is_aside() {
            return Ok(false); // Its journal is gone: it is committed as SQLite's own.
        }
        if self.is_undecided() {
            self.take_decision()?;
        } else if self.is_prepared_with_others() {
            // It was taken for rolled back, and commits all the same.
            self.reopen()?;
        }
        let Some(txn) = self.role.txn() else { return Ok(false) };
        if matches!(txn.stage, TxnStage::Open) {
            if txn.is_untouched() || !keeps(Case::LateWritesCommitted) {
                return Ok(false);
            }
            if let Err(e) = self.prepare_late() {
                // The journal is gone: neither retry nor rollback.
                self.roll_back()?;
                return Err(match e {
                    Error::Busy(_) | Error::BusySnapshot | Error::NotAlone(_) => late(&e.to_string()),
                    e => e,
                });
            }
        }
        Ok(true)
    }

    fn publish(&mut self) -> Result<Published> {
        let Some(txn) = self.role.txn() else { return Err(no_transaction()) };
        let normal = txn.normal || (self.said.synchronous == Synchronous::Normal && self.journal.is_empty());
        let durability = if txn.synced && !normal && keeps(Case::AcknowledgedAfterFlush) {
            Durability::Flushed
        } else {
            Durability::Written
        };
        let is_merged = self.is_merged();
        let goes_on = self.habit.returns_lock && !self.said.exclusive;
        let db = &*self.db;
        let mut writer = db.writer.lock();
        db.check(writer.as_ref().and_then(LiveDatabase::member))?;
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        let Some(WriteTransaction { reader, txn, .. }) = self.role.writer_mut() else { return Err(no_transaction()) };
        let streamed = !txn.streamed.is_empty();
        let mut commit = Commit { db, live, txn, options: &self.options };
        // Until it unlocks, SQLite reads a merged transaction's old snapshot and its own pages.
        let moves = (!is_merged).then_some(&mut reader.state);
        let published = commit::publish(&mut commit, moves, durability, goes_on)?;
        if let Some(looked) = reader.looked.as_mut().filter(|_| is_merged) {
            looked.commit();
        }
        (*txn, reader.unsettled) = (Txn::new(reader.state.clone()), false);
        self.journal.forget_syncs();
        commit::send_home(db, live, streamed)?;
        Ok(published)
    }

    fn wait_for(&mut self, published: &Published) -> Result<()> {
        if !published.goes_on {
            return published.wait(&self.db, None);
        }
        // The next writer builds on this transaction during its flush, and may share it.
        self.place = WriterTurn::Given { in_turn: true };
        let released = self.db.queue.release_for(self.id, self.habit.comes_again());
        self.habit.gave_place(released.waited_for);
        if published.is_shared() {
            published.write(&self.db)?;
            self.leave(self.db.queue.is_idle());
            self.place = WriterTurn::Given { in_turn: false };
        }
        published.wait(&self.db, Some(released.usual))
    }
}

fn late(why: &str) -> Error {
    Error::WrittenLate(why.to_owned())
}

pub(super) fn stays_here(what: &str) -> Error {
    Error::Required(format!(
        "{what} needs SQLite's own journal (attached files that are not all onewrite's, another page size, or WAL mode \
         under wal=stock), so onewrite would step aside for it"
    ))
}

/// With the writer's place, the end of the log tells.
pub(super) fn check_newest(db: &Database, live: Option<&LiveDatabase>, txn: &Txn) -> Result<()> {
    db.check(live.and_then(LiveDatabase::member))?;
    let is_newest = live.is_some_and(|live| live.log.last_tid() == txn.base.tid);
    if is_newest || db.inner.lock().is_newest(&txn.base) { Ok(()) } else { Err(Error::BusySnapshot) }
}

fn no_transaction() -> Error {
    Error::Misuse("a commit without a transaction".into())
}

/// Whether it changes page size, reserve, or to WAL mode.
pub(super) fn needs_plain_file(txn: &Txn) -> bool {
    let Some(new) = txn.pages.get(&PageNo::HEADER) else { return false };
    let resized = home::page_bytes(new) != Some(txn.page_bytes);
    let reserve = txn.base.page_count > 0 && home::reserved(new) != home::reserved(&txn.base.header);
    resized || reserve || home::wants_wal(new)
}
