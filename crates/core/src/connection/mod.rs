//! What the VFS glue calls: databases of this process, and connections with SQLite's lock levels, reads,
//! writes and the two steps of a commit.
//!
//! ```text
//!  xLock SHARED      pin a snapshot (or find the file in WAL mode, or a hot journal)
//!  xLock RESERVED    take the writer's place; the first one marks home
//!  xWrite            into the overlay
//!  FCNTL_SYNC        prepare
//!  COMMIT_PHASETWO   commit
//!  xUnlock           drop what was not committed, give the place and the snapshot back
//! ```

mod cache;
mod concurrent;
mod engine;
mod exclusive;
mod journal_file;
mod lock;
mod looked;
mod pages;
pub mod pragma;
mod renumber;
mod repair;
mod role;
mod said;
pub mod schemes;
mod several;
mod ship;
mod wait;
mod wal;
mod write;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use engine::Engine;
pub use wait::nap;

use role::{Role, WriterTurn};
use said::{Habit, PragmaState, Synchronous};
use wait::Waits;

use crate::base::error::{Error, Result};
use crate::base::options::{Options, Split, Updates, Wal};
use crate::base::types::PageNo;
use crate::database::queue::ConnectionId;
use crate::database::{Database, Phase};
use crate::disk::FileId;
use crate::pages::ahead::ReadAhead;
use crate::recovery::recover;
use crate::sqlite_format::journal::VirtualJournal;
use crate::sqlite_format::node::Shape;

/// SQLite's lock levels (SQLite file locking, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockLevel {
    /// Nothing.
    None,
    /// Reading.
    Shared,
    /// About to write.
    Reserved,
    /// Waiting for readers.
    Pending,
    /// Writing.
    Exclusive,
}

/// What a connection is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not locked.
    Idle,
    /// In a transaction of the engine, or aside in a plain one.
    Engine,
    /// The file is in WAL mode, or is no database and about to become one: the caller uses the VFS below until it unlocks.
    Wal,
}

/// One connection to a database. SQLite uses it from one thread at a time.
pub struct Connection {
    engine: Arc<Engine>,
    db: Arc<Database>,
    id: ConnectionId,
    /// Longest wait inside of one call while others get their turns, in milliseconds.
    busy_ms: u64,
    /// It fails rather than work on the file past the engine.
    requires: bool,
    /// It is the shipper's.
    ships: bool,
    /// What is left of tries that were in vain.
    waits: Waits,
    /// SQLite's lock.
    level: LockLevel,
    /// What the connection is under it.
    role: Role,
    /// Whether it may write, of all connections and processes.
    place: WriterTurn,
    /// No WAL lay beside the file when it was looked for under this lock.
    has_no_wal: bool,
    /// It lets nobody else begin to read.
    shuts_out: bool,
    /// It has the database to itself, since SQLite writes other files in the same transaction.
    reserves: bool,
    journal: VirtualJournal,
    said: PragmaState,
    habit: Habit,
    last_error: Option<String>,
    closed: bool,
    ahead: ReadAhead,
    cache: cache::CacheVersion,
}

impl Connection {
    /// One to `db` that has no lock. With `reads_only`, it was not opened to write.
    fn new(
        engine: Arc<Engine>,
        db: Arc<Database>,
        id: ConnectionId,
        options: &Options,
        reads_only: bool,
    ) -> Connection {
        Connection {
            engine,
            db,
            id,
            busy_ms: options.busy_ms,
            requires: options.require,
            ships: options.shipper,
            waits: Waits::default(),
            level: LockLevel::None,
            role: Role::Idle,
            place: WriterTurn::None,
            has_no_wal: false,
            shuts_out: false,
            reserves: false,
            journal: VirtualJournal::default(),
            said: PragmaState::default(),
            habit: Habit::new(reads_only),
            last_error: None,
            closed: false,
            ahead: ReadAhead::default(),
            cache: cache::CacheVersion::default(),
        }
    }

    /// What the connection is at the moment.
    pub fn mode(&self) -> Mode {
        match self.role {
            Role::Idle => Mode::Idle,
            Role::Below(_) => Mode::Wal,
            Role::Reader(_) | Role::Writer(_) | Role::Aside(_) | Role::Lost => Mode::Engine,
        }
    }

    /// Whether the next transaction is taken to write, perhaps.
    pub fn probably_writes(&self) -> bool {
        self.habit.may_write > 0
    }

    /// Whether this process uses the log, so that nobody else has the file to itself.
    pub fn is_live(&self) -> bool {
        self.db.inner.lock().phase == Phase::Live
    }

    /// The databases of its process.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whether writes may be assumed to leave their neighbours in a sector alone.
    pub fn psow(&self) -> bool {
        self.db.psow.load(Ordering::Relaxed)
    }

    /// How pages are to be split, how many cells both halves keep room for, and where records are written anew.
    pub fn split(&self) -> (Split, u32, Updates) {
        let bundle = self.db.inner.lock().options.bundle;
        (bundle.split, bundle.reserve_cells, bundle.updates)
    }

    /// Whether some of these bytes of a b-tree page were in use in the state that the transaction builds on.
    pub fn in_use(&self, page: u32, offset: u32, bytes: u32) -> Result<bool> {
        let Some(base) = self.role.txn().map(|txn| &txn.base).or(self.role.snapshot()) else { return Ok(true) };
        let page = PageNo(page);
        if page < PageNo::HEADER || page.0 > base.page_count {
            return Ok(false);
        }
        let image = self.db.image(base, page)?;
        let Some(node) = Shape::new(base.page_bytes, base.page_count, &base.header).node(page, &image) else {
            return Ok(true);
        };
        let (from, to) = (offset as usize, offset.saturating_add(bytes) as usize);
        let overlaps = |live: &std::ops::Range<usize>| live.start < to && from < live.end;
        Ok(node.live_content().iter().any(overlaps) || from < node.pointers.end)
    }

    /// Whether the plain file is this connection's until its transaction ends.
    pub fn is_aside(&self) -> bool {
        self.role.is_aside()
    }

    /// Path of the database.
    pub fn path(&self) -> &Path {
        &self.db.path
    }

    /// Message of the last error of this connection.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    #[inline]
    pub(crate) fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.note_error(e);
        }
        // In a child of a fork a lock may be one that nobody gives back.
        if cfg!(debug_assertions) && self.check_process().is_ok() {
            self.assert_state();
        }
        result
    }

    #[cold]
    fn note_error(&mut self, error: &Error) {
        self.last_error = Some(error.to_string());
    }

    fn check_process(&self) -> Result<()> {
        let (process, ours) = self.engine.process;
        if process() == ours {
            return Ok(());
        }
        Err(Error::Misuse("a connection was carried across fork(): open the database anew in the child process".into()))
    }

    /// xAccess of the `-wal` name: a marked database has none, nor one for which none was found under this lock; `None`: ask
    /// the file system.
    pub fn wal_exists(&mut self) -> Result<Option<bool>> {
        let has_none = self.has_no_wal || self.is_live();
        Ok(has_none.then_some(false))
    }

    /// `PRAGMA synchronous=…` was seen.
    pub fn note_synchronous(&mut self, value: &str) {
        self.said.synchronous = Synchronous::of(value);
        self.db.flushes_close.store(said::is_extra(value), Ordering::Relaxed);
    }

    /// `PRAGMA journal_mode=…` was seen. SQLite answers with the new mode before the transaction that changes to WAL
    /// mode ends, and once more if that fails: so the lock with which it begins is refused where the end would be
    /// (rule BusyToHandler).
    pub fn note_journal_mode(&mut self, value: &str) {
        self.said.wal = value.eq_ignore_ascii_case("wal");
    }

    /// `PRAGMA page_count` or `freelist_count` was seen: what it reads of page 1 must be durable, too.
    pub fn note_size_asked(&mut self) {
        self.habit.may_write = 0;
        let settled = self.settle();
        // An error poisoned the database: the next call says so.
        let _ = self.noted(settled);
    }

    /// Whether a file is the database, or one of its scheme that has its name at times.
    pub fn has_file(&self, id: FileId) -> bool {
        self.db.is_home(id)
    }

    /// The snapshot it reads, if it reads one.
    pub(crate) fn snapshot(&self) -> Option<&Arc<crate::sqlite_format::home::State>> {
        self.role.snapshot()
    }

    /// The database, for pragmas.
    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.db
    }

    /// What the next transaction will be, as far as the file says now. Nothing is locked afterwards.
    pub fn look_ahead(&mut self) -> Result<Mode> {
        if self.level > LockLevel::None {
            return Ok(self.mode());
        }
        let may_write = self.habit.may_write;
        let locked = self.lock(LockLevel::Shared);
        let mode = self.mode();
        let unlocked = self.unlock_unseen();
        self.habit.may_write = may_write;
        locked.and(unlocked).map(|()| mode)
    }

    /// Gives back a lock of which SQLite knows nothing: its cache is of the state it was of.
    fn unlock_unseen(&mut self) -> Result<()> {
        let cache = std::mem::take(&mut self.cache);
        let unlocked = self.unlock(LockLevel::None);
        self.cache = cache;
        unlocked
    }

    /// Runs a checkpoint now, waiting for the writer's place as a writer does. A database that this process does not use yet
    /// may have to be recovered first.
    pub fn checkpoint(&mut self) -> Result<()> {
        let done = self.checkpoint_now();
        self.noted(done)
    }

    fn checkpoint_now(&mut self) -> Result<()> {
        if self.level > LockLevel::None {
            return self.checkpoint_locked();
        }
        self.lock(LockLevel::Shared)?;
        let done = self.checkpoint_locked();
        done.and(self.unlock_unseen())
    }

    fn checkpoint_locked(&mut self) -> Result<()> {
        let db = self.db.clone();
        let wait = Duration::from_millis(self.busy_ms);
        let had = db.queue.holds(self.id);
        if self.role.txn().is_some_and(|txn| !txn.is_untouched()) || self.is_aside() {
            return Err(Error::Busy("this connection is writing; checkpoint after its commit".into()));
        }
        if !had {
            self.acquire_place()?;
        }
        let entered = db.enter(true, wait);
        let done = entered.and_then(|()| {
            let done = match db.writer.lock().as_mut() {
                Some(live) => crate::checkpoint::checkpoint(&db, live, crate::log::ring::StreamedImages::Drop),
                None => Ok(()),
            };
            db.leave(false);
            done
        });
        if !had {
            db.queue.release(self.id);
        }
        done
    }

    /// Whether this is the only connection and in no transaction: then options may change.
    pub(crate) fn is_sole_and_idle(&self) -> bool {
        self.level == LockLevel::None && self.db.inner.lock().connections == 1
    }

    /// Closes a connection of which a panic left the state unknown: the database is poisoned, and the
    /// next process to open it recovers.
    pub fn abandon(mut self, why: &str) {
        self.db.poison(Error::Misuse(why.to_owned()));
        self.role.give_up();
        // Poisoned, it only gives locks back; a failure changes nothing any more.
        let _ = self.close_once();
    }

    /// The options in force, with what is this connection's own among them ([`Options::OWN`]).
    pub(crate) fn own_options(&self) -> Options {
        Options {
            busy_ms: self.busy_ms,
            require: self.requires,
            shipper: self.ships,
            ..(*self.db.inner.lock().options).clone()
        }
    }

    /// Takes over what is each connection's own.
    pub(crate) fn set_own_options(&mut self, options: &Options) {
        (self.busy_ms, self.requires, self.ships) = (options.busy_ms, options.require, options.shipper);
    }

    /// Whether it fails rather than work on the file past the engine.
    pub fn requires(&self) -> bool {
        self.requires
    }

    /// Whether a request for WAL mode leaves the engine in effect.
    pub fn absorbs_wal(&self) -> bool {
        self.db.inner.lock().options.wal == Wal::Absorb
    }

    /// Why a file in WAL mode is left in it.
    pub fn why_stock(&self) -> String {
        let inner = self.db.inner.lock();
        let why = match (&inner.stays_wal, inner.options.wal) {
            (_, Wal::Stock) => "wal=stock leaves it there",
            (Some(why), Wal::Absorb) => why,
            (None, Wal::Absorb) => "it was changed to that mode meanwhile",
        };
        format!("the database is in WAL mode, which is SQLite's own: {why}")
    }

    /// Whether SQLite keeps its locks between transactions, as far as it was said.
    pub fn keeps_locks(&self) -> bool {
        self.said.exclusive
    }

    /// xClose. The last connection makes home a plain file again.
    pub fn close(mut self) -> Result<()> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        if self.check_process().is_err() {
            // The parent's: neither its locks nor its log are ours to touch.
            return Ok(());
        }
        let unlocked = self.unlock(LockLevel::None);
        // It may have had the place while SQLite slept, and not have come for it.
        self.db.queue.release(self.id);
        let mut databases = self.engine.databases.lock();
        let last = {
            let mut inner = self.db.inner.lock();
            inner.connections -= 1;
            inner.connections == 0
        };
        if !last {
            return unlocked;
        }
        recover::attach_to_close(&self.db);
        let detached = self.db.detach();
        databases.retain(|_, db| !Arc::ptr_eq(db, &self.db));
        self.engine.close_home(&self.db);
        unlocked.and(detached)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Whatever fails here is found by recovery.
        let _ = self.close_once();
    }
}
