//! Schemes: how a commit becomes durable.
//!
//! ```text
//!  commit::prepare   Scheme::prepare   images and states → what goes where; may fail, changes nothing
//!  commit::publish   Scheme::commit    a record is finished, or home is written → Outcome, which readers and the next
//!                                      writer are shown under one lock (Scheme::show)
//!  Published::wait   Scheme::wait      what the scheme keeps for a write of its own
//!  checkpoint        Scheme::before_checkpoint, fit_home
//!  last close        Scheme::detach
//!  recovery          Scheme::roll_back, write_again, rest, page_count_without_log
//! ```
//!
//! The default scheme is in `commit/log.rs`, the others are in `research/`, and `connection/schemes.rs` alone knows them all. What a
//! scheme keeps between commits is its own, and changes under the lock `writer`.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::options::Options;
use crate::base::types::{PageNo, Tid};
use crate::database::{Database, HomeFile, Inner, Live};
use crate::disk::FileId;
use crate::log::file::LogFile;
use crate::log::group::Durability;
use crate::log::ring::{Ready, Written};
use crate::log::slot::Slot;
use crate::pages::table::{Image, PageTable, Place};
use crate::pages::txn::{Changed, Prepared, Txn};
use crate::sqlite_format::home::{Header, State};
use crate::sqlite_format::node::Shape;

pub use crate::log::facts::Facts;

/// A transaction on its way, and what its commit changes. Its caller has the writer's place.
pub struct Commit<'a> {
    /// The database.
    pub db: &'a Database,
    /// What the holder of the writer's place uses.
    pub live: &'a mut Live,
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
pub enum Outcome {
    /// It changed nothing.
    Nothing,
    /// Its record is finished: the next flush of the log covers it.
    Record(Ready),
    /// Its record is in the log, and counts since its super-journal is gone.
    Written(Box<Written>),
    /// [`Scheme::show`] shows it. A snapshot of the state before, if one was pinned while home was written.
    Own(Option<Arc<State>>),
}

/// The last transaction of a session that a crash ended, where home alone has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doubtful {
    /// The transaction, and how many of its pages are there.
    pub last: Option<(Tid, u64)>,
    /// Whether it was undone.
    pub undone: bool,
}

/// What a session that a crash ended has left.
pub struct Left<'a> {
    /// Its log.
    pub log: &'a LogFile,
    /// The slot that counts.
    pub slot: &'a Slot,
    /// Whether it is the newest one.
    pub is_newest: bool,
    /// Images newer than home.
    pub table: &'a PageTable,
    /// The newest committed state.
    pub state: &'a State,
    /// Whether the pages of a transaction in doubt are among the images.
    pub in_doubt: bool,
    /// The settings in force.
    pub options: &'a Options,
}

/// What of a page is the scheme's and not SQLite's: its gap and its reserved bytes.
pub trait Gaps {
    /// Gives `new`, page 1, what `base` says in the fields that commits do not write there.
    fn embed(&self, new: &mut [u8], base: &[u8]);

    /// Whether SQLite's part of a page is the same.
    fn same(&self, shape: &Shape, page: PageNo, base: &[u8], new: &[u8]) -> bool;
}

/// How a commit becomes durable. An error of what changes something poisons; the scheme sees to that.
pub trait Scheme: Send + Sync {
    /// How its transactions reach the disk.
    fn facts(&self) -> Facts;

    /// What of a page is the scheme's, if anything is.
    fn gaps(&self) -> Option<&dyn Gaps> {
        None
    }

    /// Refuses a database that the scheme cannot protect.
    fn check(&self, _db: &Database, _options: &Options, _state: &State) -> Result<()> {
        Ok(())
    }

    /// Page size and reserved bytes that SQLite is told to make a new database with, both in bytes.
    fn new_pages(&self, _db: &Database, _options: &Options) -> Option<(u32, u8)> {
        None
    }

    /// What a transaction that makes `state` will commit. May fail, and changes nothing that counts.
    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<Changed>) -> Result<Prepared>;

    /// Whether what was prepared no longer fits what home holds.
    fn is_stale(&self, _live: &Live, _prepared: &Prepared) -> bool {
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
        prepared: &mut Prepared,
        durability: Durability,
    ) -> Result<Outcome>;

    /// Shows a transaction that is neither nothing nor a record: to readers, if it is in home; to the next writer, if it waits.
    fn show(&self, _db: &Database, _inner: &mut Inner, _state: &Arc<State>, _images: Vec<(PageNo, Image)>) {}

    /// Waits until `tid`, if it is yet to be written, is durable. `joins`: others may join before it is written, since the
    /// writer's place is free.
    fn wait(&self, _db: &Database, _tid: Tid, _joins: bool) -> Result<()> {
        Ok(())
    }

    /// Whether what the log holds goes home now rather than when the log is full.
    fn wants_checkpoint(&self, _live: &Live) -> bool {
        false
    }

    /// Writes what waits.
    fn before_checkpoint(&self, _db: &Database, _live: &mut Live) -> Result<()> {
        Ok(())
    }

    /// Home has the pages of `state`, not flushed: what else it needs.
    fn fit_home(&self, _db: &Database, _live: &Live, _state: &State) -> Result<()> {
        Ok(())
    }

    /// The last connection closes, and home has everything. `stays`: the newest state, if the mark stays on.
    fn detach(&self, _db: &Database, _live: &mut Live, _stays: Option<&State>) -> Result<()> {
        Ok(())
    }

    /// Looks for the last transaction in a home behind `slot`, whose log has no live record, and puts the pages to be written into `table`.
    /// With `accept_loss`, damaged pages stay as they are.
    fn roll_back(&self, _db: &Database, _slot: &Slot, _table: &mut PageTable, _accept_loss: bool) -> Result<Doubtful> {
        Ok(Doubtful::default())
    }

    /// Writes the last transaction of a session that a crash ended again, or what it leads back to, and cuts home to `state`.
    fn write_again(
        &self,
        _db: &Database,
        _home: &mut HomeFile,
        _state: &State,
        _pages: Vec<(PageNo, Place)>,
    ) -> Result<()> {
        Ok(())
    }

    /// Makes what `left` has durable and takes the mark off, without a session of its own. False where nothing can be done so.
    fn rest(&self, _db: &Database, _left: &Left<'_>) -> Result<bool> {
        Ok(false)
    }

    /// The size in pages that the pages of home tell, which begins with `first`, carries the mark of `session` and has lost its log. `None`:
    /// its header says it.
    fn page_count_without_log(&self, _db: &Database, _first: &Header, _session: u64) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Whether a file of the scheme's own, other than home, may have the name of the database.
    fn takes_name(&self, _id: FileId) -> bool {
        false
    }
}
