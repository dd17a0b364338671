//! Schemes: how a commit becomes durable.
//!
//! ```text
//!  commit::prepare   Scheme::prepare   images and states → what goes where; may fail, changes nothing
//!  commit::publish   Scheme::commit    a record is finished, or home is written → Outcome, which readers and the next
//!                                      writer are shown under one lock
//!  Published::wait   Scheme::wait      what the scheme keeps for a write of its own
//!  checkpoint        Scheme::before_checkpoint, fit_home
//!  last close        Scheme::detach
//!  recovery          Scheme::roll_back, page_count_without_log
//! ```
//!
//! The default scheme is in `commit/log.rs`, the others are in `research/`, and `connection/schemes.rs` alone knows them all. What a
//! scheme keeps between commits is its own, and changes under the lock `writer`.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::options::Options;
use crate::base::types::{PageNo, Tid};
use crate::database::{Database, LiveDatabase};
use crate::disk::FileId;
use crate::log::group::Durability;
use crate::log::ring::{Ready, WrittenRecord};
use crate::log::slot::Slot;
use crate::pages::table::PageTable;
use crate::pages::txn::{ChangedPage, PreparedCommit, Txn};
use crate::sqlite_format::home::{DatabaseHeader, State};

pub use crate::log::facts::Facts;

/// A transaction on its way, and what its commit changes. Its caller has the writer's place.
pub struct Commit<'a> {
    /// The database.
    pub db: &'a Database,
    /// What the holder of the writer's place uses.
    pub live: &'a mut LiveDatabase,
    /// The transaction.
    pub txn: &'a mut Txn,
    /// The settings in force.
    pub options: &'a Options,
}

impl Commit<'_> {
    /// Its parts, for as long as they are needed.
    pub fn parts(&mut self) -> Commit<'_> {
        Commit { db: self.db, live: self.live, txn: self.txn, options: self.options }
    }
}

/// What became of a transaction that a scheme has committed.
pub enum CommitOutcome {
    /// It changed nothing.
    Nothing,
    /// Its record is finished: the next flush of the log covers it.
    Record(Ready),
    /// Its record is in the log, and counts since its super-journal is gone.
    Written(Box<WrittenRecord>),
    /// It is in home, durable, with a number that no record has; its pages were held for the snapshots before.
    Placed(Vec<PageNo>),
    /// It is in home. A snapshot of the state before, if one was pinned while home was written.
    InHome(Option<Arc<State>>),
    /// The next writer builds on it, and readers do not see it before [`Scheme::wait`] has written it.
    Waits,
}

/// The last transaction of a session that a crash ended, where home alone has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubtful {
    /// The transaction, and how many of its pages are there.
    pub last: Option<(Tid, u64)>,
    /// Whether it was undone.
    pub undone: bool,
}

/// How a commit becomes durable. An error of what changes something poisons; the scheme sees to that.
pub trait Scheme: Send + Sync {
    /// How its transactions reach the disk.
    fn facts(&self) -> Facts;

    /// Refuses a database that the scheme cannot protect.
    fn check(&self, _db: &Database, _options: &Options, _state: &State) -> Result<()> {
        Ok(())
    }

    /// Page size and reserved bytes that SQLite is told to make a new database with, both in bytes.
    fn new_pages(&self, _db: &Database, _options: &Options) -> Option<(u32, u8)> {
        None
    }

    /// What a transaction that makes `state` will commit. May fail, and changes nothing that counts.
    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit>;

    /// Whether what was prepared no longer fits what home holds.
    fn is_stale(&self, _live: &LiveDatabase, _prepared: &PreparedCommit) -> bool {
        false
    }

    /// How durable a transaction is made that was to be `asked`.
    fn durability(&self, asked: Durability) -> Durability {
        asked
    }

    /// Commits what was prepared. Nobody sees it yet.
    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut PreparedCommit,
        durability: Durability,
    ) -> Result<CommitOutcome>;

    /// Waits until `tid`, if it [`CommitOutcome::Waits`], is durable. `joins`: others may join before it is written, since the
    /// writer's place is free.
    fn wait(&self, _db: &Database, _tid: Tid, _joins: bool) -> Result<()> {
        Ok(())
    }

    /// Whether what the log holds goes home now rather than when the log is full.
    fn wants_checkpoint(&self, _live: &LiveDatabase) -> bool {
        false
    }

    /// Writes what waits.
    fn before_checkpoint(&self, _db: &Database, _live: &mut LiveDatabase) -> Result<()> {
        Ok(())
    }

    /// Home has the pages of `state`, not flushed: what else it needs.
    fn fit_home(&self, _db: &Database, _live: &LiveDatabase, _state: &State) -> Result<()> {
        Ok(())
    }

    /// The last connection closes, and home has everything. `stays`: the newest state, if the mark stays on.
    fn detach(&self, _db: &Database, _live: &mut LiveDatabase, _stays: Option<&State>) -> Result<()> {
        Ok(())
    }

    /// Looks for the last transaction in a home behind `slot`, whose log has no live record, and puts the pages to be written into `table`.
    /// With `accept_loss`, damaged pages stay as they are.
    fn roll_back(&self, _db: &Database, _slot: &Slot, _table: &mut PageTable, _accept_loss: bool) -> Result<Doubtful> {
        Ok(Doubtful::default())
    }

    /// The size in pages that the pages of home tell, which begins with `first`, carries the mark of `session` and has lost its log. `None`:
    /// its header says it.
    fn page_count_without_log(&self, _db: &Database, _first: &DatabaseHeader, _session: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Whether a file of the scheme's own, other than home, may have the name of the database.
    fn takes_name(&self, _id: FileId) -> bool {
        false
    }
}
