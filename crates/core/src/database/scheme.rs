//! Schemes: how a commit becomes durable.
//!
//! ```text
//! commit::prepare   Scheme::prepare   images and states → places; may fail, changes nothing
//! commit::publish   Scheme::commit    a record is finished, or home is written → Outcome, which
//!                                     readers and the next writer are shown under one lock
//!                                     (Scheme::show)
//! Published::wait   Scheme::wait      what the scheme keeps for a write of its own
//! checkpoint        Scheme::before_checkpoint, fit_home
//! last close        Scheme::detach
//! recovery          Scheme::roll_back, write_again, rest, page_count_without_log
//! ```
//!
//! Only `connection/schemes.rs` knows all schemes. The state of a scheme changes under the lock
//! `writer`.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::options::Options;
use crate::base::types::{PageNo, Tid};
use crate::database::{Database, DatabaseState, HomeFile, LiveDatabase};
use crate::disk::FileId;
use crate::log::file::LogFile;
use crate::log::group::Durability;
use crate::log::ring::{Ready, WrittenRecord};
use crate::log::slot::Slot;
use crate::pages::image::Image;
use crate::pages::table::{ImageLocation, PageTable};
use crate::pages::txn::{ChangedPage, PreparedCommit, Txn};
use crate::sqlite_format::home::{DatabaseHeader, State};
use crate::sqlite_format::node::Shape;

pub use crate::log::facts::Facts;

/// The caller has the writer's place.
pub struct Commit<'a> {
    pub db: &'a Database,
    pub live: &'a mut LiveDatabase,
    pub txn: &'a mut Txn,
    pub options: &'a Options,
}

impl Commit<'_> {
    pub fn parts(&mut self) -> Commit<'_> {
        Commit { db: self.db, live: self.live, txn: self.txn, options: self.options }
    }
}

pub enum CommitOutcome {
    Nothing,
    /// The next flush of the log covers it.
    Record(Ready),
    /// The record is in the log, and decided.
    Written(Box<WrittenRecord>),
    /// [`Scheme::show`] shows it. The snapshot of the state before was pinned during the write.
    Own(Option<Arc<State>>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubtful {
    /// The number of its pages there follows.
    pub last: Option<(Tid, u64)>,
    pub undone: bool,
}

pub struct CrashedSession<'a> {
    pub log: &'a LogFile,
    pub slot: &'a Slot,
    pub is_newest: bool,
    pub table: &'a PageTable,
    pub state: &'a State,
    /// Pages of a transaction in doubt are among the images.
    pub in_doubt: bool,
    pub options: &'a Options,
}

/// A page's gap and reserved bytes are the scheme's, not SQLite's.
pub trait Gaps {
    /// Gives `new`, page 1, the fields of `base` that commits do not write there.
    fn embed(&self, new: &mut [u8], base: &[u8]);

    /// Compares SQLite's part of a page.
    fn same(&self, shape: &Shape, page: PageNo, base: &[u8], new: &[u8]) -> bool;
}

/// Where a change fails, the scheme poisons.
pub trait Scheme: Send + Sync {
    fn facts(&self) -> Facts;

    fn gaps(&self) -> Option<&dyn Gaps> {
        None
    }

    fn check(&self, _db: &Database, _options: &Options, _state: &State) -> Result<()> {
        Ok(())
    }

    /// Page size and reserve of a new database, in bytes.
    fn new_pages(&self, _db: &Database, _options: &Options) -> Option<(u32, u8)> {
        None
    }

    /// May fail, and changes nothing that counts.
    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit>;

    fn is_stale(&self, _live: &LiveDatabase, _prepared: &PreparedCommit) -> bool {
        false
    }

    fn durability(&self, asked: Durability) -> Durability {
        asked
    }

    /// Nothing sees the transaction yet.
    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut PreparedCommit,
        durability: Durability,
    ) -> Result<CommitOutcome>;

    /// Shows [`CommitOutcome::Own`]: to readers, if it is in home; to the next writer, if it waits.
    fn show(&self, _db: &Database, _inner: &mut DatabaseState, _state: &Arc<State>, _images: Vec<(PageNo, Image)>) {}

    /// `joins`: the writer's place is free, so others may join.
    fn wait(&self, _db: &Database, _tid: Tid, _joins: bool) -> Result<()> {
        Ok(())
    }

    fn wants_checkpoint(&self, _live: &LiveDatabase) -> bool {
        false
    }

    fn before_checkpoint(&self, _db: &Database, _live: &mut LiveDatabase) -> Result<()> {
        Ok(())
    }

    /// Home has the pages of `state`, unflushed.
    fn fit_home(&self, _db: &Database, _live: &LiveDatabase, _state: &State) -> Result<()> {
        Ok(())
    }

    /// Home has everything. `stays`: the newest state, if the mark stays on.
    fn detach(&self, _db: &Database, _live: &mut LiveDatabase, _stays: Option<&State>) -> Result<()> {
        Ok(())
    }

    /// The log has no live record behind `slot`. Pages to write go into `table`; with
    /// `accept_loss`, damaged pages stay.
    fn roll_back(&self, _db: &Database, _slot: &Slot, _table: &mut PageTable, _accept_loss: bool) -> Result<Doubtful> {
        Ok(Doubtful::default())
    }

    /// Writes the last transaction again, or the one it leads back to, and cuts home to `state`.
    fn write_again(
        &self,
        _db: &Database,
        _home: &mut HomeFile,
        _state: &State,
        _pages: Vec<(PageNo, ImageLocation)>,
    ) -> Result<()> {
        Ok(())
    }

    /// Makes `session` durable and takes the mark off without a new one. False if one is needed.
    fn rest(&self, _db: &Database, _session: &CrashedSession<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Counts by the pages of a home with this `first`, marked with `session`, without its log.
    /// `None`: the header says it.
    fn page_count_without_log(&self, _db: &Database, _first: &DatabaseHeader, _session: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    fn takes_name(&self, _id: FileId) -> bool {
        false
    }
}
