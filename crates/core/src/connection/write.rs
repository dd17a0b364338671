//! The two steps of a commit.

use super::Connection;
use crate::aside;
use crate::commit;
use crate::error::{Error, Result};
use crate::home;
use crate::log::group::Durability;
use crate::rules::{Rule, keeps};
use crate::txn::{Stage, Txn};
use crate::types::PageNo;

impl Connection {
    /// SQLITE_FCNTL_SYNC: prepare. `super_journal`: the transaction spans several files.
    pub fn prepare(&mut self, super_journal: bool) -> Result<()> {
        let prepared = self.prepare_txn(super_journal);
        self.noted(prepared)
    }

    fn prepare_txn(&mut self, super_journal: bool) -> Result<()> {
        let db = self.db.clone();
        let Some(txn) = &mut self.txn else { return Ok(()) };
        if self.aside || (self.doomed && self.looked.is_some()) {
            return Ok(());
        }
        if self.doomed {
            // SQLite has played its journal back, and may go on without giving its lock back.
            db.inner.lock().check()?;
            if needs_plain_file(txn) {
                return Err(Error::BusySnapshot);
            }
            self.doomed = false;
            self.roll_back()?;
            return self.look_for_log();
        }
        if matches!(txn.stage, Stage::Prepared(_)) {
            // A second one without a commit between: SQLite has played its journal back.
            return self.begin_again();
        }
        self.check_process()?;
        self.line_up(super_journal)?;
        self.take_place_again()?;
        let Some(txn) = &mut self.txn else { return Ok(()) };
        let mut writer = db.writer.lock();
        let options = {
            let inner = db.inner.lock();
            inner.check()?;
            if !inner.is_newest(&txn.base) {
                return Err(Error::BusySnapshot);
            }
            inner.options.clone()
        };
        txn.synced = false;
        if !txn.is_untouched() && (super_journal || needs_plain_file(txn)) {
            match aside::step_aside(&db, &mut writer, txn, &self.journal, self.id) {
                Ok(journal) => {
                    self.aside = true;
                    self.real_journal = Some(journal);
                    self.txn = None;
                    return Ok(());
                }
                Err(e) => {
                    self.doomed = true;
                    return Err(e);
                }
            }
        }
        let normal = self.journal.syncs_are_normal();
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        commit::prepare(&db, live, txn, &options, normal)
    }

    /// xSync of the database file: tells that `synchronous` is not OFF.
    pub fn sync(&mut self) -> Result<()> {
        if self.aside {
            let synced = self.db.sync_home();
            let synced = synced.map_err(|e| self.db.poison(e));
            return self.noted(synced);
        }
        if let Some(txn) = &mut self.txn {
            txn.synced = true;
        }
        Ok(())
    }

    /// SQLITE_FCNTL_COMMIT_PHASETWO: commit. When it returns under `synchronous=FULL`, the transaction
    /// survives any crash (invariant I1).
    pub fn commit(&mut self) -> Result<()> {
        let committed = self.commit_txn();
        self.noted(committed)
    }

    fn commit_txn(&mut self) -> Result<()> {
        let db = self.db.clone();
        self.check_commit()?;
        let Some(txn) = self.txn.as_mut().filter(|_| !self.aside) else { return Ok(()) };
        let Stage::Prepared(prepared) = &txn.stage else { return Ok(()) };
        let normal = prepared.normal || (self.normal_said && self.journal.is_empty());
        let durability = if txn.synced && !normal && keeps(Rule::AcknowledgedAfterFlush) {
            Durability::Flushed
        } else {
            Durability::Written
        };
        let mut writer = db.writer.lock();
        let options = {
            let inner = db.inner.lock();
            inner.check()?;
            inner.options.clone()
        };
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        // The writer's own snapshot ends here: kept pinned, every image that the commit replaces, or that
        // its checkpoint overwrites, would be kept for it.
        let merged = self.own_pages();
        let own = self.snapshot.take();
        if let Some(own) = own.as_ref().filter(|_| merged.is_none()) {
            db.unpin(&mut db.inner.lock(), own)?;
        }
        let goes_on = self.returns_lock && !self.exclusive_said;
        let Some(txn) = self.txn.as_mut() else { return Ok(()) };
        let published = match commit::publish(&db, live, txn, &options, durability, goes_on) {
            Ok(published) => published,
            Err(e) => {
                self.snapshot = match merged {
                    Some(_) => own,
                    None => own.map(|own| db.pin_state(&mut db.inner.lock(), own)),
                };
                return Err(e);
            }
        };
        match (merged, own) {
            (Some(pages), Some(own)) => {
                // SQLite's cache is of the old snapshot and of its own pages; so is what it reads until it unlocks.
                db.unpin(&mut db.inner.lock(), &published.state)?;
                self.txn = Some(Txn::new(own.clone()));
                self.snapshot = Some(own);
                self.has_committed(pages);
            }
            _ => {
                self.snapshot = Some(published.state.clone());
                self.txn = Some(Txn::new(published.state.clone()));
            }
        }
        self.unsettled = false;
        self.journal.forget_syncs();
        commit::send_home(&db, live, &options)?;
        drop(writer);
        if goes_on {
            // The next writer builds on this transaction while this one waits for its flush, perhaps the same one.
            self.gave_place = true;
            let turn = db.queue.release(self.id);
            if published.is_shared() {
                published.write(&db)?;
                self.leave(db.queue.is_idle());
            }
            return published.wait(&db, Some(turn));
        }
        published.wait(&db, None)
    }
}

/// What only the plain file can take: another page size or reserve, or WAL mode.
pub(super) fn needs_plain_file(txn: &Txn) -> bool {
    let Some(new) = txn.pages.get(&PageNo::HEADER) else { return false };
    let resized = home::page_bytes(new) != Some(txn.page_bytes);
    let reserve = txn.base.page_count > 0 && home::reserved(new) != home::reserved(&txn.base.header);
    resized || reserve || home::wants_wal(new)
}
