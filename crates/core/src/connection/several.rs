//! The part of this process's connections in transactions over several files (`log/several.rs`).

use std::path::Path;
use std::sync::Arc;

use super::Connection;
use super::engine::Engine;
use super::said::Synchronous;
use super::write::check_newest;
use crate::base::error::{Error, IoContext, Result};
use crate::base::types::Tid;
use crate::commit;
use crate::database::decide::is_over;
use crate::database::scheme::Commit;
use crate::database::{Database, DatabaseState, Phase};
use crate::disk::OpenMode;
use crate::log::decision::{Decision, DecisionPart};
use crate::log::file::{LogFile, log_path};
use crate::log::several::{Several, databases_of};
use crate::pages::txn::{PreparedCommit, TxnStage};
use crate::session::aside;

pub(super) fn prepares(db: &Database, inner: &DatabaseState) -> bool {
    // SQLite ignores the error of a store that lacks one of them (rule StoreHasIt).
    db.facts().all_in_log() && !inner.options.concurrent && inner.options.psow && !inner.ships()
}

impl Engine {
    /// xSync of a super-journal over `journals`. True: all its files commit by their logs, so it
    /// stays in memory, and is [`removed`](Engine::remove_super_journal) here. All do, or none:
    /// SQLite removes a super-journal without rollback journals, and knows no logs (rule
    /// PreparedThenDecided).
    pub fn sync_super_journal(&self, path: &Path, journals: &[u8]) -> Result<bool> {
        let Some(names) = databases_of(journals) else { return Ok(false) };
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let what = || format!("cannot look at {}", name.display());
            let name = self.disk.resolve(&name).context(what)?;
            let id = self.disk.identify(&name).context(what)?;
            let Some(db) = id.and_then(|id| self.find(id)) else { return Ok(false) };
            let inner = db.inner.lock();
            let is_ours = inner.phase == Phase::Live && prepares(&db, &inner);
            drop(inner);
            if !is_ours || !db.queue.is_taken() {
                return Ok(false);
            }
            all.push(db);
        }
        let several = Several::new(journals)?;
        for db in &all {
            // Any file may have the first record and so decide (rule PreparedThenDecided).
            let records = all.iter().map(|other| (other.path.clone(), 0, Tid::HOME, true));
            if self.room_to_decide(db, &several.decision(&db.path, records))?.is_none() {
                return Ok(false);
            }
        }
        self.several.lock().insert(path.to_owned(), Arc::new(several));
        Ok(true)
    }

    /// The super-journal at `path`, if in memory.
    pub fn super_journal(&self, path: &Path) -> Option<Vec<u8>> {
        self.several.lock().get(path).map(|several| several.journals.clone())
    }

    /// xDelete of a super-journal, to commit or after a rollback. False: it is not in memory.
    pub fn remove_super_journal(&self, path: &Path, commits: bool) -> Result<bool> {
        let Some(several) = self.several.lock().remove(path) else { return Ok(false) };
        let all = self.undecided(&several);
        let done = if commits { self.decide(&several, &all) } else { cancel(&all) };
        done.map(|()| true)
    }

    pub(super) fn several(&self, path: &Path) -> Option<Arc<Several>> {
        self.several.lock().get(path).cloned()
    }

    fn undecided(&self, several: &Arc<Several>) -> Vec<Arc<Database>> {
        let waits =
            |db: &&Arc<Database>| db.undecided.lock().as_ref().is_some_and(|u| Arc::ptr_eq(&u.several, several));
        self.databases.lock().values().filter(waits).cloned().collect()
    }

    /// An error poisons, for the disk's state is unknown.
    fn decide(&self, several: &Several, all: &[Arc<Database>]) -> Result<()> {
        let poison = |e: Error| {
            all.iter().for_each(|db| drop(db.poison(Error::Misuse(e.to_string()))));
            e
        };
        let Some(home) = all.iter().find(|db| several.is_decided_at(&db.path)) else {
            debug_assert!(all.is_empty(), "the first one with a record decides");
            return Ok(());
        };
        let mut records = Vec::with_capacity(all.len());
        let mut log = None;
        for db in all {
            db.inner.lock().check()?;
            let undecided = db.undecided.lock();
            let Some(undecided) = undecided.as_ref() else { continue };
            records.push((db.path.clone(), undecided.slot.session, undecided.tid, undecided.flushed));
            if Arc::ptr_eq(db, home) {
                log = Some(undecided.log.clone());
            }
        }
        let decision = several.decision(&home.path, records.into_iter());
        let (Some(log), Some(position)) = (log, self.room_to_decide(home, &decision)?) else {
            return Err(poison(Error::Misuse("a decision without a place in the log".into())));
        };
        log.decide(position, &decision).map_err(poison)?;
        several.set_decided();
        Ok(())
    }

    fn room_to_decide(&self, db: &Database, decision: &Decision) -> Result<Option<u64>> {
        db.room_to_decide(decision, |path, part, flushed| self.is_settled(path, part, flushed))
    }

    fn is_settled(&self, path: &Path, part: &DecisionPart, flushed: bool) -> Result<bool> {
        let db = self.databases.lock().values().find(|db| db.path == path).cloned();
        if let Some(settled) = db.and_then(|db| db.is_followed(part, flushed)) {
            return Ok(settled);
        }
        match LogFile::open(&*self.disk, &log_path(path), OpenMode::ReadOnly)? {
            Some(log) => is_over(&log, part),
            None => Ok(false),
        }
    }
}

/// Goes on after an error: each cancelled one spares a recovery.
fn cancel(all: &[Arc<Database>]) -> Result<()> {
    let cancelled: Vec<Result<()>> = all.iter().map(|db| db.cancel()).collect();
    cancelled.into_iter().collect()
}

impl Connection {
    /// It may also be there after a failed write.
    pub(super) fn is_undecided(&self) -> bool {
        self.role.txn().is_some_and(|txn| txn.several.is_some()) && self.db.undecided.lock().is_some()
    }

    /// A file's record that could not be cancelled keeps all from rolling back.
    pub(super) fn waits_with_others(&self) -> bool {
        let several = self.role.txn().and_then(|txn| txn.several.as_ref());
        several.is_some_and(|several| !self.engine.undecided(several).is_empty())
    }

    /// Also true of a cancelled record.
    pub(super) fn is_prepared_with_others(&self) -> bool {
        matches!(self.role.txn(), Some(txn) if matches!(&txn.stage, TxnStage::Prepared(PreparedCommit { written: Some(_), .. })))
    }

    /// Cancels in all files: SQLite rolls back one after the other.
    pub(super) fn cancel(&mut self) -> Result<()> {
        let several = self.role.txn().and_then(|txn| txn.several.clone());
        let Some(several) = several else { return Ok(()) };
        let all = self.engine.undecided(&several);
        if !all.is_empty() && several.is_decided() {
            let why = "a transaction over several files was rolled back behind its commit";
            all.iter().for_each(|db| drop(db.poison(Error::Misuse(why.into()))));
            return Err(Error::Poisoned(why.into()));
        }
        cancel(&all)
    }

    pub(super) fn finish_several(&mut self) -> Result<()> {
        if !self.is_undecided() {
            return Ok(());
        }
        if self.role.txn().and_then(|txn| txn.several.as_ref()).is_some_and(|several| several.is_decided()) {
            return self.commit_txn().map_err(|e| self.db.poison(e));
        }
        self.cancel()
    }

    pub(super) fn take_decision(&mut self) -> Result<()> {
        let mut undecided = self.db.undecided.lock();
        let Some(several) = undecided.as_ref().map(|undecided| &undecided.several) else { return Ok(()) };
        // A record that an error left in doubt is for recovery, and keeps its streamed images.
        self.db.inner.lock().check()?;
        if !several.is_decided() {
            return Err(Error::Misuse("a commit while the super-journal is there".into()));
        }
        *undecided = None;
        Ok(())
    }

    pub(super) fn prepare_several(&mut self, several: Arc<Several>) -> Result<()> {
        let db = self.db.clone();
        // Under OFF SQLite flushes nothing; without a journal on the file, only the pragma tells.
        let flush =
            if self.journal.is_empty() { self.said.synchronous != Synchronous::Off } else { self.journal.is_synced() };
        let Some(txn) = self.role.txn_mut() else { return Ok(()) };
        let mut writer = db.writer.lock();
        db.see_to_removed_log(&mut writer, !txn.streamed.is_empty()).map_err(aside::stale)?;
        check_newest(&db, writer.as_ref(), txn)?;
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        txn.several = Some(several);
        let mut c = Commit { db: &db, live, txn, options: &self.options };
        commit::prepare(&mut c)?;
        commit::write_prepared(&mut c, flush)
    }
}
