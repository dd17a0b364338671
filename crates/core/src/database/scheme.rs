//! Schemes: how a commit becomes durable.
//!
//! ```text
//! commit::prepare   Scheme::prepare   images and states → places; may fail, changes nothing
//! commit::publish   Scheme::commit    a record is finished, or home is written → Outcome, which
//!                                     readers and the next writer are shown under one lock
//! Published::wait   Scheme::wait      what the scheme keeps for a write of its own
//! checkpoint        Scheme::before_checkpoint, fit_home
//! last close        Scheme::detach
//! recovery          Scheme::roll_back, page_count_without_log
//! ```
//!
//! The default scheme is in `commit/log.rs`, the others are in `research/`; only
//! `connection/schemes.rs` knows them all. A scheme keeps its own state, which changes under the
//! lock `writer`.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::options::Options;
use crate::base::types::{PageNo, Tid};
use crate::database::{Database, Live};
use crate::disk::FileId;
use crate::log::group::Durability;
use crate::log::ring::{Ready, Written};
use crate::log::slot::Slot;
use crate::pages::table::PageTable;
use crate::pages::txn::{Changed, Prepared, Txn};
use crate::sqlite_format::home::{Header, State};

pub use crate::log::facts::Facts;

/// A transaction under way, and the state that its commit changes. The caller has the writer's
/// place.
pub struct Commit<'a> {
    pub db: &'a Database,
    pub live: &'a mut Live,
    pub txn: &'a mut Txn,
    pub options: &'a Options,
}

impl Commit<'_> {
    /// The parts, borrowed again.
    pub fn parts(&mut self) -> Commit<'_> {
        Commit { db: self.db, live: self.live, txn: self.txn, options: self.options }
    }
}

/// How a scheme has committed a transaction.
pub enum Outcome {
    /// It changed nothing.
    Nothing,
    /// Its record is finished: the next flush of the log covers it.
    Record(Ready),
    /// Its record is in the log, and counts since its super-journal is gone.
    Written(Box<Written>),
    /// In home, durable, with a number that no record has; its pages were held for older snapshots.
    Placed(Vec<PageNo>),
    /// In home. A snapshot of the state before, if one was pinned while home was written.
    InHome(Option<Arc<State>>),
    /// The next writer builds on it; readers see it once [`Scheme::wait`] has written it.
    Waits,
}

/// The last transaction of a crashed session, where home alone has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubtful {
    /// The transaction, and how many of its pages are there.
    pub last: Option<(Tid, u64)>,
    pub undone: bool,
}

/// How a commit becomes durable. Where a change fails, the scheme poisons the database.
pub trait Scheme: Send + Sync {
    fn facts(&self) -> Facts;

    /// Refuses a database that the scheme cannot protect.
    fn check(&self, _db: &Database, _options: &Options, _state: &State) -> Result<()> {
        Ok(())
    }

    /// Page size and reserved bytes for a new database, both in bytes.
    fn new_pages(&self, _db: &Database, _options: &Options) -> Option<(u32, u8)> {
        None
    }

    /// Plans the commit of a transaction that makes `state`. May fail, and changes nothing that
    /// counts.
    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<Changed>) -> Result<Prepared>;

    /// Whether the plan no longer fits home.
    fn is_stale(&self, _live: &Live, _prepared: &Prepared) -> bool {
        false
    }

    /// The durability for a transaction that `asked` for one.
    fn durability(&self, asked: Durability) -> Durability {
        asked
    }

    /// Commits the plan; nothing sees the transaction yet.
    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut Prepared,
        durability: Durability,
    ) -> Result<Outcome>;

    /// Waits until `tid`, if it [`Outcome::Waits`], is durable. `joins`: the writer's place is
    /// free, so others may join the write.
    fn wait(&self, _db: &Database, _tid: Tid, _joins: bool) -> Result<()> {
        Ok(())
    }

    /// Whether the log's content goes home now rather than when the log is full.
    fn wants_checkpoint(&self, _live: &Live) -> bool {
        false
    }

    /// Writes pending transactions.
    fn before_checkpoint(&self, _db: &Database, _live: &mut Live) -> Result<()> {
        Ok(())
    }

    /// Home has the pages of `state`, not flushed: adds the scheme's own data.
    fn fit_home(&self, _db: &Database, _live: &Live, _state: &State) -> Result<()> {
        Ok(())
    }

    /// The last connection closes, and home has everything. `stays`: the newest state, if the mark
    /// stays on.
    fn detach(&self, _db: &Database, _live: &mut Live, _stays: Option<&State>) -> Result<()> {
        Ok(())
    }

    /// Finds the last transaction in a home behind `slot`, whose log has no live record, and puts
    /// the pages to write into `table`. With `accept_loss`, damaged pages stay as they are.
    fn roll_back(&self, _db: &Database, _slot: &Slot, _table: &mut PageTable, _accept_loss: bool) -> Result<Doubtful> {
        Ok(Doubtful::default())
    }

    /// The size in pages by the pages of a home that begins with `first`, carries the mark of
    /// `session` and lost its log. `None`: the header says it.
    fn page_count_without_log(&self, _db: &Database, _first: &Header, _session: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Whether a file of the scheme, other than home, may have the name of the database.
    fn takes_name(&self, _id: FileId) -> bool {
        false
    }
}
