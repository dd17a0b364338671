//! The interface for the VFS glue: databases of this process, and connections with SQLite's lock
//! levels, reads, writes and the two steps of a commit.
//!
//! ```text
//! xLock SHARED      pin a snapshot (or find the file in WAL mode, or a hot journal)
//! xLock RESERVED    take the writer's place; the first one marks home
//! xWrite            into the overlay
//! FCNTL_SYNC        prepare
//! COMMIT_PHASETWO   commit
//! xUnlock           drop what was not committed, give the place and the snapshot back
//! ```

mod cache;
mod carried;
#[cfg(all(test, debug_assertions))]
mod commit_tests;
mod concurrent;
mod engine;
mod exclusive;
mod fetch;
mod forward;
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

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use engine::Engine;
pub use wait::{Asks, nap};

use role::{Role, WriterTurn};
use said::{Habit, PragmaState, Synchronous};
use wait::Waits;

use crate::base::error::{Error, Result};
use crate::base::options::{OptionValue, Options, Split, Updates, Wal};
use crate::base::types::PageNo;
use crate::database::queue::ConnectionId;
use crate::database::{Database, LiveDatabase, Phase};
use crate::disk::FileId;
use crate::pages::ahead::ReadAhead;
use crate::recovery::recover;
use crate::sqlite_format::journal::VirtualJournal;
use crate::sqlite_format::node::Shape;

/// SQLite's lock levels (SQLite file locking, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockLevel {
    /// No lock.
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

/// How a connection serves SQLite now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not locked.
    Idle,
    /// In a transaction, of the engine or aside.
    Engine,
    /// The file is in WAL mode, or about to become a database: the caller uses the VFS below until
    /// it unlocks.
    Wal,
}

/// One connection, used from one thread at a time.
pub struct Connection {
    engine: Arc<Engine>,
    db: Arc<Database>,
    id: ConnectionId,
    /// Longest wait in one call, in milliseconds.
    busy_ms: u64,
    requires: bool,
    ships: bool,
    /// In force when it last took the writer's place.
    options: Arc<Options>,
    waits: Waits,
    level: LockLevel,
    role: Role,
    place: WriterTurn,
    /// No WAL was found under this lock.
    has_no_wal: bool,
    shuts_out: bool,
    /// It is alone, since SQLite writes other files in the same transaction.
    reserves: bool,
    journal: VirtualJournal,
    said: PragmaState,
    habit: Habit,
    last_error: Option<String>,
    closed: bool,
    ahead: ReadAhead,
    cache: cache::CacheVersion,
    mapped: fetch::MappedHome,
}

impl Connection {
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
            options: Arc::new(options.clone()),
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
            mapped: fetch::MappedHome::default(),
        }
    }

    /// How it serves SQLite now.
    pub fn mode(&self) -> Mode {
        match self.role {
            Role::Idle => Mode::Idle,
            Role::Below(_) => Mode::Wal,
            Role::Reader(_) | Role::Writer(_) | Role::Aside(_) | Role::Lost => Mode::Engine,
        }
    }

    /// Whether the next transaction may write.
    pub fn probably_writes(&self) -> bool {
        self.habit.may_write > 0
    }

    /// Before a lock: whether the application began the transaction itself, and whether it has read
    /// in it, so that SQLite does not ask the busy handler.
    pub fn note_transaction(&mut self, explicit: bool, has_read: bool, may_ask: bool) {
        if self.level == LockLevel::None {
            self.said.explicit = explicit;
        }
        (self.waits.upgrades, self.waits.may_ask) = (has_read, may_ask);
    }

    /// Whether the busy handler is to be asked for the lock that was refused.
    pub fn asks(&mut self) -> Option<Asks> {
        self.waits.asks.take()
    }

    /// The handler refused: the next try of the lock is the last.
    pub fn wait_no_longer(&mut self) {
        self.waits.is_last = true;
    }

    /// Whether this process uses the log.
    pub fn is_live(&self) -> bool {
        self.db.inner.lock().phase == Phase::Live
    }

    /// Its engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whether a write leaves its sector's neighbours alone.
    pub fn psow(&self) -> bool {
        self.db.psow.load(Ordering::Relaxed)
    }

    /// How pages are split, how many cells keep room, and where records are rewritten.
    pub fn split(&self) -> (Split, u32, Updates) {
        let bundle = self.db.inner.lock().options.bundle;
        (bundle.split, bundle.reserve_cells, bundle.updates)
    }

    /// Whether bytes of a b-tree page were in use in the transaction's base.
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

    /// Whether it has the plain file to itself.
    pub fn is_aside(&self) -> bool {
        self.role.is_aside()
    }

    /// Path of the database.
    pub fn path(&self) -> &Path {
        &self.db.path
    }

    /// Message of its last error.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    #[inline]
    pub(crate) fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        let result = result.map_err(|e| self.note_error(e));
        // In a child of a fork a lock may never end.
        if cfg!(debug_assertions) && self.check_process().is_ok() {
            self.assert_state();
        }
        result
    }

    #[cold]
    fn note_error(&mut self, error: Error) -> Error {
        let error = if self.journal.rolls_back() { self.not_rolled_back(error) } else { error };
        self.last_error = Some(error.to_string());
        error
    }

    /// Behind another error of a rollback SQLite trusts its cache (`pager_error` of `pager.c`).
    pub(super) fn not_rolled_back(&self, e: Error) -> Error {
        if e.is_short() || matches!(e, Error::Io { .. } | Error::Poisoned(_) | Error::WrittenLate(_)) {
            return e;
        }
        Error::io(self.db.what("cannot roll back a transaction of"), io::Error::other(e.to_string()))
    }

    fn check_process(&self) -> Result<()> {
        let (process, ours) = self.engine.process;
        if process() == ours {
            return Ok(());
        }
        Err(Error::Misuse("a connection was carried across fork(): open the database anew in the child process".into()))
    }

    /// xAccess of the `-wal` name; `None`: ask the file system.
    pub fn wal_exists(&mut self) -> Result<Option<bool>> {
        let has_none = self.has_no_wal || self.is_live();
        Ok(has_none.then_some(false))
    }

    /// `PRAGMA synchronous=…` was seen.
    pub fn note_synchronous(&mut self, value: &str) {
        self.said.synchronous = Synchronous::of(value);
        self.db.flushes_close.store(said::is_extra(value), Ordering::Relaxed);
    }

    /// `PRAGMA secure_delete=…` was seen. `fast` overwrites only pages that are written anyway.
    pub fn note_secure_delete(&mut self, value: &str) {
        let is_on = matches!(OptionValue::parse("secure_delete", value), Ok(true));
        self.db.wipes_log.store(is_on, Ordering::Relaxed);
    }

    /// `PRAGMA journal_mode=…` was seen. SQLite reports the new mode before the transaction ends,
    /// and again if that fails: the first lock is refused where the end would be (rule
    /// BusyToHandler).
    pub fn note_journal_mode(&mut self, value: &str) {
        self.said.wal = value.eq_ignore_ascii_case("wal");
    }

    /// `PRAGMA page_count` or `freelist_count` was seen: the sizes must be durable, too. An error:
    /// they will not be.
    pub fn note_size_asked(&mut self) -> Result<()> {
        self.habit.may_write = 0;
        let settled = self.settle();
        self.noted(settled)
    }

    /// Whether a file is the database, or one of its scheme.
    pub fn has_file(&self, id: FileId) -> bool {
        self.db.is_home(id)
    }

    pub(crate) fn snapshot(&self) -> Option<&Arc<crate::sqlite_format::home::State>> {
        self.role.snapshot()
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.db
    }

    /// How the next transaction will be served. Leaves no lock.
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

    /// SQLite does not know of this lock: its cache stays as it was.
    fn unlock_unseen(&mut self) -> Result<()> {
        let cache = std::mem::take(&mut self.cache);
        let unlocked = self.unlock(LockLevel::None);
        self.cache = cache;
        unlocked
    }

    /// Runs a checkpoint, with the writer's place, perhaps after a recovery.
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
        if self.role.txn().is_some_and(|txn| !txn.is_untouched()) || self.is_aside() {
            return Err(Error::Busy("this connection is writing; checkpoint after its commit".into()));
        }
        self.with_turn(Duration::from_millis(self.busy_ms), |db, live| {
            crate::checkpoint::checkpoint(db, live, crate::log::ring::StreamedImages::Drop)
        })
    }

    fn with_turn(&self, wait: Duration, act: impl FnOnce(&Database, &mut LiveDatabase) -> Result<()>) -> Result<()> {
        let db = &*self.db;
        let had = db.queue.holds(self.id);
        if !had {
            self.acquire_place(wait)?;
        }
        // From one that thinks the place is not taken: a commit would follow.
        let done = db.enter_soon(true, wait, Some(Duration::MAX)).and_then(|()| {
            let done = db.writer.lock().as_mut().map_or(Ok(()), |live| act(db, live));
            db.leave(false);
            done
        });
        if !had {
            db.queue.release(self.id);
        }
        done
    }

    pub(crate) fn is_sole_and_idle(&self) -> bool {
        self.level == LockLevel::None && self.db.inner.lock().connections == 1
    }

    /// Closes after a panic: the database is poisoned, and the next process recovers.
    pub fn abandon(mut self, why: &str) {
        self.db.poison(Error::Misuse(why.to_owned()));
        self.role.give_up();
        // Poisoned, it only gives locks back.
        let _ = self.close_once();
    }

    /// Adds this connection's own ([`Options::OWN`]).
    pub(crate) fn own_options(&self) -> Options {
        Options {
            busy_ms: self.busy_ms,
            require: self.requires,
            shipper: self.ships,
            ..(*self.db.inner.lock().options).clone()
        }
    }

    pub(crate) fn set_own_options(&mut self, options: &Options) {
        (self.busy_ms, self.requires, self.ships) = (options.busy_ms, options.require, options.shipper);
    }

    /// Whether it fails rather than bypass the engine.
    pub fn requires(&self) -> bool {
        self.requires
    }

    /// Whether a request for WAL mode keeps the engine.
    pub fn absorbs_wal(&self) -> bool {
        self.db.inner.lock().options.wal == Wal::Absorb
    }

    /// Why a file stays in WAL mode.
    pub fn why_stock(&self) -> String {
        let inner = self.db.inner.lock();
        let why = match (&inner.stays_wal, inner.options.wal) {
            (_, Wal::Stock) => "wal=stock leaves it there",
            (Some(why), Wal::Absorb) => why,
            (None, Wal::Absorb) => "it was changed to that mode meanwhile",
        };
        format!("the database is in WAL mode, which is SQLite's own: {why}")
    }

    /// Whether SQLite said that it keeps its locks.
    pub fn keeps_locks(&self) -> bool {
        self.said.exclusive
    }

    /// xClose. The last connection leaves a plain file.
    pub fn close(mut self) -> Result<()> {
        self.close_once()
    }

    fn close_once(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        if self.check_process().is_err() {
            // Locks and log are the parent's.
            return Ok(());
        }
        let unlocked = self.unlock(LockLevel::None);
        // It may have got the place while SQLite slept.
        self.db.queue.release(self.id);
        let engine = self.engine.clone();
        let _waits_for_looks = engine.looking.lock();
        let mut databases = engine.databases.lock();
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
        // Recovery finds any failure.
        let _ = self.close_once();
    }
}
