//! Transactions over several files, as `super_journal` says: what one of them does.

use std::path::Path;
use std::sync::Arc;

use super::Connection;
use super::engine::Engine;
use super::said::Synchronous;
use crate::commit;
use crate::database::{Database, Inner, Phase};
use crate::error::{Error, IoContext, Result};
use crate::scheme::Commit;
use crate::super_journal::{database_of, journals};
use crate::txn::{Prepared, Stage};

/// Whether the log of a database takes prepared records.
pub(super) fn prepares(db: &Database, inner: &Inner) -> bool {
    db.facts().all_in_log() && !inner.options.concurrent
}

impl Engine {
    /// The databases of this process that wait for the super-journal at `path`.
    fn undecided(&self, path: &Path) -> Vec<Arc<Database>> {
        let waits = |db: &&Arc<Database>| db.undecided.lock().as_ref().is_some_and(|u| u.super_journal == path);
        self.databases.lock().values().filter(waits).cloned().collect()
    }

    /// Whether every file that the super-journal at `path` names commits by its log. All do, or none: SQLite removes the
    /// super-journal when no rollback journal names it any more, and of logs it knows nothing (rule AllPrepareOrNone).
    fn all_prepare(&self, path: &Path) -> Result<bool> {
        let journals = match journals(&*self.disk, path) {
            Err(Error::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            journals => journals?,
        };
        for journal in journals {
            let Some(database) = database_of(&journal) else { return Ok(false) };
            let id = self.disk.identify(database).context(|| format!("cannot look at {}", database.display()))?;
            let Some(db) = id.and_then(|id| self.find(id)) else { return Ok(false) };
            let inner = db.inner.lock();
            let is_ours = inner.phase == Phase::Live && prepares(&db, &inner);
            drop(inner);
            if !is_ours || !db.queue.is_taken() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Connection {
    /// Whether this file and all others of the transaction that `super_journal` decides commit by their logs.
    pub(super) fn all_prepare(&self, super_journal: &Path) -> Result<bool> {
        if !self.engine.undecided(super_journal).is_empty() {
            return Ok(true);
        }
        Ok(!self.is_apart() && self.engine.all_prepare(super_journal)?)
    }

    /// Whether the record of this transaction waits for its super-journal to go, or may be there behind a write that failed.
    pub(super) fn is_undecided(&self) -> bool {
        self.role.txn().is_some_and(|txn| txn.super_journal.is_some()) && self.db.undecided.lock().is_some()
    }

    /// Whether a record of this transaction, in the log of whichever file, waits or may wait for the super-journal to go: one
    /// that could not be cancelled keeps every file from rolling back, and SQLite from removing the super-journal.
    pub(super) fn waits_with_others(&self) -> bool {
        let named = self.role.txn().and_then(|txn| txn.super_journal.as_ref());
        named.is_some_and(|path| !self.engine.undecided(path).is_empty())
    }

    /// Whether its record was in the log, also if it is cancelled by now.
    pub(super) fn is_prepared_with_others(&self) -> bool {
        matches!(self.role.txn(), Some(txn) if matches!(&txn.stage, Stage::Prepared(Prepared { written: Some(_), .. })))
    }

    /// The transaction does not commit, in no file: SQLite rolls back one after the other, and removes the super-journal
    /// behind the first (rule CancelledBeforeSuperJournalGoes).
    pub(super) fn cancel(&mut self) -> Result<()> {
        let named = self.role.txn().and_then(|txn| txn.super_journal.clone());
        let Some(path) = named else { return Ok(()) };
        let all = self.engine.undecided(&path);
        if all.is_empty() {
            return Ok(()); // Another file of the transaction was first.
        }
        let exists = self.db.disk.exists(&path).context(|| format!("cannot look for {}", path.display()));
        let stays = match exists {
            Ok(true) => Ok(()),
            // Its removal has failed behind the point of no return, and nobody knows what the disk has.
            Ok(false) => {
                Err("the super-journal of a transaction over several files went before it was rolled back".into())
            }
            Err(e) => Err(e.to_string()),
        };
        if let Err(why) = stays {
            all.iter().for_each(|db| drop(db.poison(Error::Misuse(why.clone()))));
            return Err(Error::Poisoned(why));
        }
        // Each is tried: the more are cancelled, the fewer wait for a recovery.
        let cancelled: Vec<Result<()>> = all.iter().map(|db| db.cancel()).collect();
        cancelled.into_iter().collect()
    }

    /// SQLite gives its lock back and has neither committed nor rolled back.
    pub(super) fn decide(&mut self) -> Result<()> {
        if !self.is_undecided() {
            return Ok(());
        }
        let path = self.role.txn().and_then(|txn| txn.super_journal.clone());
        let gone = path.map_or(Ok(false), |path| self.db.is_gone(&path));
        match gone {
            Ok(true) => self.commit_txn().map_err(|e| self.db.poison(e)),
            Ok(false) => self.cancel(),
            Err(e) => Err(self.db.poison(e)),
        }
    }

    /// The super-journal is gone: the record that waits for it counts.
    pub(super) fn take_decision(&mut self) -> Result<()> {
        let mut undecided = self.db.undecided.lock();
        let Some(path) = undecided.as_ref().map(|undecided| &undecided.super_journal) else { return Ok(()) };
        // What an error left in doubt is for the recovery: the record keeps what it needs.
        self.db.inner.lock().check()?;
        if self.db.disk.exists(path).context(|| format!("cannot look for {}", path.display()))? {
            return Err(Error::Misuse(format!("a commit while its super-journal {} is there", path.display())));
        }
        *undecided = None;
        Ok(())
    }

    /// Prepares the transaction and writes its record, which waits for the super-journal to go.
    pub(super) fn prepare_several(&mut self, super_journal: &Path) -> Result<()> {
        let db = self.db.clone();
        // Under OFF SQLite flushes nothing, and without a journal on the file the pragma says so.
        let flush =
            if self.journal.is_empty() { self.said.synchronous != Synchronous::Off } else { self.journal.is_synced() };
        let Some(txn) = self.role.txn_mut() else { return Ok(()) };
        let mut writer = db.writer.lock();
        let options = db.inner.lock().options.clone();
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        txn.super_journal = Some(super_journal.to_owned());
        let mut c = Commit { db: &db, live, txn, options: &options };
        commit::prepare(&mut c)?;
        commit::write_prepared(&mut c, flush)
    }
}
