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

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::aside;
use crate::checkpoint::Stream;
use crate::commit;
use crate::database::{Database, Phase};
use crate::disk::{Disk, DiskFile, FileId, OpenMode};
use crate::error::{Error, IoContext, Result};
use crate::home::{self, Kind, State};
use crate::journal::VirtualJournal;
use crate::locks;
use crate::log::ring::Durability;
use crate::options::Options;
use crate::queue::ConnectionId;
use crate::recover;
use crate::table::Image;
use crate::txn::{Stage, Txn};
use crate::types::PageNo;

/// Longest wait for a tentative place: the transaction may turn out to read only, and readers do not wait.
const TENTATIVE_WAIT: Duration = Duration::from_millis(50);

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
    /// The file is in WAL mode: the caller uses the VFS below until it unlocks.
    Wal,
}

/// The databases of this process on one disk.
pub struct Engine {
    disk: Arc<dyn Disk>,
    databases: Mutex<FxHashMap<FileId, Arc<Database>>>,
    /// Open files of closed databases that could not be closed yet: closing any descriptor of a file gives
    /// up all POSIX locks this process has on it, those of a stock SQLite beside us included.
    parked: Mutex<FxHashMap<FileId, Arc<dyn DiskFile>>>,
    connections: AtomicU64,
    /// Tells processes apart, and what it said when the engine was made.
    process: (fn() -> u32, u32),
}

impl Engine {
    /// An engine on `disk`.
    pub fn new(disk: Arc<dyn Disk>) -> Arc<Engine> {
        Engine::in_process(disk, std::process::id)
    }

    /// An engine on `disk`. `process` answers differently in a child of a fork; it is called in every
    /// transaction, and the operating system's process id costs a system call.
    pub fn in_process(disk: Arc<dyn Disk>, process: fn() -> u32) -> Arc<Engine> {
        let (databases, parked) = (Mutex::default(), Mutex::default());
        Arc::new(Engine { disk, databases, parked, connections: AtomicU64::new(1), process: (process, process()) })
    }

    /// Opens a connection to the database at `path`. `given`: options the connection names itself; with
    /// other connections open, they must agree with what is in force. Reads nothing of the file yet.
    pub fn open(self: &Arc<Self>, path: &Path, mode: OpenMode, given: &[(String, String)]) -> Result<Connection> {
        let mut options = Options::default();
        // A preset first: it resets what it bundles.
        for pass in [true, false] {
            for (name, value) in given.iter().filter(|(n, _)| (n == "scheme") == pass) {
                options.set(name, value)?;
            }
        }
        let what = || format!("cannot open the database {}", path.display());
        // The name of the file itself, so that every link to it finds one log.
        let path = self.disk.resolve(path).context(what)?;
        let mut databases = self.databases.lock();
        let id = self.disk.identify(&path).context(what)?;
        let known = id.and_then(|id| databases.get(&id).cloned());
        if known.is_none() && mode == OpenMode::ReadOnly {
            // Its next writer would inherit a file it cannot write.
            return Err(Error::CantOpen(format!("{} is not open for writing in this process", path.display())));
        }
        let db = match known {
            Some(db) => {
                let inner = db.inner.lock();
                for (name, _) in given.iter().filter(|(name, _)| name != "busy_ms") {
                    let (asked, in_force) = (options.get(name), inner.options.get(name));
                    if asked != in_force {
                        return Err(Error::Option(format!(
                            "{name}={} was asked for, but {} is open in this process with {name}={}",
                            asked.unwrap_or_default(),
                            path.display(),
                            in_force.unwrap_or_default()
                        )));
                    }
                }
                drop(inner);
                db
            }
            None => {
                let parked = id.and_then(|id| self.parked.lock().remove(&id));
                let home = match parked {
                    Some(home) => home,
                    None => self.disk.open(&path, mode).context(what)?,
                };
                let id = home.id().context(what)?;
                let db = Arc::new(Database::new(self.disk.clone(), &path, home, options.clone()));
                databases.insert(id, db.clone());
                db
            }
        };
        db.inner.lock().connections += 1;
        let id = ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed));
        Ok(Connection {
            engine: self.clone(),
            db,
            id,
            busy_ms: options.busy_ms,
            level: LockLevel::None,
            snapshot: None,
            txn: None,
            aside: false,
            doomed: false,
            wal: false,
            journal: VirtualJournal::default(),
            real_journal: None,
            wrote_last: false,
            writes_now: false,
            normal_said: false,
            last_error: None,
            closed: false,
        })
    }

    /// Closes `home` if nobody in this process has a lock on it that closing would take away; else keeps it.
    fn close_home(&self, home: &Arc<dyn DiskFile>) {
        let mut parked = self.parked.lock();
        if let Ok(id) = home.id() {
            parked.insert(id, home.clone());
        }
        // Whoever has every lock of a file knows that nobody else has one. They go with the file.
        parked.retain(|_, home| !matches!(locks::everything(&**home), Ok(true)));
    }

    /// Whether a connection of this process has the file at `path` open.
    pub fn is_attached(&self, path: &Path) -> bool {
        let id = self.disk.identify(path).ok().flatten();
        id.is_some_and(|id| self.databases.lock().contains_key(&id))
    }
}

/// One connection to a database. SQLite uses it from one thread at a time.
pub struct Connection {
    engine: Arc<Engine>,
    db: Arc<Database>,
    id: ConnectionId,
    /// Longest wait for the writer's place, in milliseconds.
    busy_ms: u64,
    level: LockLevel,
    snapshot: Option<Arc<State>>,
    txn: Option<Txn>,
    /// The plain file is ours until the transaction ends.
    aside: bool,
    /// The transaction cannot commit any more; SQLite is rolling it back.
    doomed: bool,
    wal: bool,
    journal: VirtualJournal,
    real_journal: Option<Arc<dyn DiskFile>>,
    /// The last transaction wrote or tried to, so the next one probably will.
    wrote_last: bool,
    /// So does the one under way.
    writes_now: bool,
    /// `PRAGMA synchronous` was last set to NORMAL.
    normal_said: bool,
    last_error: Option<String>,
    closed: bool,
}

impl Connection {
    /// What the connection is at the moment.
    pub fn mode(&self) -> Mode {
        match self.level {
            LockLevel::None => Mode::Idle,
            _ if self.wal => Mode::Wal,
            _ => Mode::Engine,
        }
    }

    /// Whether writes may be assumed to leave their neighbours in a sector alone.
    pub fn psow(&self) -> bool {
        self.db.inner.lock().options.psow
    }

    /// Path of the database.
    pub fn path(&self) -> &Path {
        &self.db.path
    }

    /// Message of the last error of this connection.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    fn noted<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.last_error = Some(e.to_string());
        }
        result
    }

    /// xLock. `Busy`: try again later. `BusySnapshot`: somebody committed since the snapshot; start over.
    pub fn lock(&mut self, level: LockLevel) -> Result<()> {
        if level <= self.level {
            return Ok(());
        }
        let locked = match level {
            LockLevel::None => Ok(()),
            LockLevel::Shared => self.lock_shared(),
            LockLevel::Reserved => self.lock_reserved(),
            LockLevel::Pending | LockLevel::Exclusive => self.lock_exclusive(),
        };
        if locked.is_ok() {
            self.level = level;
        }
        self.noted(locked)
    }

    fn check_process(&self) -> Result<()> {
        let (process, ours) = self.engine.process;
        if process() == ours {
            return Ok(());
        }
        Err(Error::Misuse("a connection was carried across fork(): open the database anew in the child process".into()))
    }

    fn lock_shared(&mut self) -> Result<()> {
        self.check_process()?;
        if self.wrote_last {
            // Taken before the snapshot, so that the upgrade is not stale; given up if it only reads.
            let wait = Duration::from_millis(self.busy_ms).min(TENTATIVE_WAIT);
            self.db.queue.acquire(self.id, true, wait);
        }
        let pinned = self.pin_snapshot();
        if pinned.is_err() || self.wal {
            self.db.queue.release(self.id);
        }
        pinned
    }

    fn pin_snapshot(&mut self) -> Result<()> {
        let db = self.db.clone();
        {
            let mut inner = db.inner.lock();
            inner.check()?;
            let joins_reader = inner.phase == Phase::Unmarked && !inner.snapshots.is_empty();
            if inner.phase == Phase::Live || joins_reader {
                self.snapshot = Some(db.pin(&mut inner));
                return Ok(());
            }
        }
        // The file may have changed since this process last looked, or need recovery.
        let mut writer = db.writer.lock();
        let mut inner = db.inner.lock();
        inner.check()?;
        match inner.phase {
            Phase::Live => {}
            Phase::Aside(_) => return Err(busy_aside()),
            _ if !inner.snapshots.is_empty() => {}
            _ => {
                if !locks::shared(&*db.home)? {
                    return Err(Error::Busy("another process is writing the database without onewrite".into()));
                }
                let looked = self.look(&db, &mut writer, &mut inner);
                if inner.phase == Phase::Unmarked && (looked.is_err() || self.wal) {
                    locks::none(&*db.home)?;
                }
                looked?;
                if self.wal || self.aside {
                    return Ok(());
                }
            }
        }
        self.snapshot = Some(db.pin(&mut inner));
        Ok(())
    }

    /// First look at a file nobody in this process is using. SHARED is held.
    fn look(
        &mut self,
        db: &Database,
        writer: &mut parking_lot::MutexGuard<'_, Option<crate::database::Live>>,
        inner: &mut crate::database::Inner,
    ) -> Result<()> {
        let (state, mark) = db.read_state()?;
        if db.has_hot_journal()? {
            if mark.is_some() {
                return Err(Error::CantOpen(format!(
                    "{} carries onewrite's mark and has a rollback journal beside it ({}): one of the two belongs to \
                     another copy. Move the journal away if the database was last used through onewrite",
                    db.path.display(),
                    db.journal_path().display()
                )));
            }
            if locks::exclusive(&*db.home)? {
                // SQLite rolls it back itself, through the plain file.
                inner.phase = Phase::Aside(self.id);
                self.aside = true;
                return Ok(());
            }
            if !locks::is_reserved(&*db.home)? {
                return Err(Error::Busy("a rollback journal waits to be rolled back, and others read".into()));
            }
        }
        if let Some(session) = mark {
            let options = inner.options.clone();
            return recover::attach(db, writer, inner, session, &options);
        }
        self.wal = state.kind == Kind::Wal;
        inner.latest = Arc::new(state);
        Ok(())
    }

    fn lock_reserved(&mut self) -> Result<()> {
        if self.aside || self.wal {
            return Ok(());
        }
        self.check_process()?;
        let Some(snapshot) = self.snapshot.clone() else {
            return Err(Error::Misuse("a write lock was asked for without a read lock".into()));
        };
        if snapshot.kind == Kind::Foreign {
            return Err(Error::NotADatabase(format!("{} is not a database", self.db.path.display())));
        }
        let wait = Duration::from_millis(self.busy_ms);
        let deadline = Instant::now() + wait;
        if self.db.inner.lock().latest.tid != snapshot.tid {
            self.writes_now = true;
            return Err(Error::BusySnapshot);
        }
        if !self.db.queue.acquire(self.id, false, wait) {
            return Err(Error::Busy("another connection of this process is writing".into()));
        }
        let begun = loop {
            match self.begin_write(&snapshot) {
                Err(Error::Busy(_)) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                result => break result,
            }
        };
        self.writes_now = true;
        if begun.is_err() {
            self.db.queue.release(self.id);
        }
        begun
    }

    fn begin_write(&mut self, snapshot: &Arc<State>) -> Result<()> {
        let db = self.db.clone();
        let mut writer = db.writer.lock();
        let mut inner = db.inner.lock();
        inner.check()?;
        if inner.latest.tid != snapshot.tid {
            return Err(Error::BusySnapshot);
        }
        if inner.phase == Phase::Unmarked {
            db.go_live(&mut writer, &mut inner)?;
        }
        self.doomed = false;
        self.txn = Some(Txn::new(inner.latest.clone()));
        Ok(())
    }

    fn lock_exclusive(&mut self) -> Result<()> {
        if self.level < LockLevel::Reserved {
            self.lock_reserved()?;
            self.level = LockLevel::Reserved;
        }
        if !self.aside && !self.wal && self.journal.names_super_journal()? {
            // Several files commit together: this one will step aside and needs to be alone. BUSY here
            // is before SQLite's point of no return, so the application may try the commit again.
            aside::alone(&self.db).map_err(|_| Error::Busy("others read a database that steps aside".into()))?;
        }
        Ok(())
    }

    /// xUnlock, to `Shared` or `None`.
    pub fn unlock(&mut self, level: LockLevel) -> Result<()> {
        if level >= self.level {
            return Ok(());
        }
        let unlocked = self.unlock_to(level);
        self.level = level;
        self.noted(unlocked)
    }

    fn unlock_to(&mut self, level: LockLevel) -> Result<()> {
        let dropped = self.drop_txn();
        let back = if self.aside { self.come_back() } else { Ok(()) };
        if level == LockLevel::None {
            self.wal = false;
            self.wrote_last = std::mem::take(&mut self.writes_now);
            if let Some(snapshot) = self.snapshot.take() {
                let mut inner = self.db.inner.lock();
                self.db.unpin(&mut inner, &snapshot)?;
            } else if self.db.inner.lock().phase == Phase::Unmarked && self.db.inner.lock().snapshots.is_empty() {
                locks::none(&*self.db.home)?;
            }
        }
        self.db.queue.release(self.id);
        dropped.and(back)
    }

    /// Drops an overlay that did not commit.
    fn drop_txn(&mut self) -> Result<()> {
        self.journal.forget_syncs();
        let Some(txn) = self.txn.take() else { return Ok(()) };
        if !txn.streamed.is_empty()
            && let Some(live) = self.db.writer.lock().as_mut()
        {
            live.log.stream_drop(txn.stream_from)?;
        }
        Ok(())
    }

    fn come_back(&mut self) -> Result<()> {
        self.aside = false;
        if self.real_journal.take().is_some() {
            self.journal.truncate(0);
        }
        aside::come_back(&self.db)?;
        let mut inner = self.db.inner.lock();
        // The state this transaction made, or that rolling back made: nobody else had one.
        if let Some(old) = self.snapshot.take() {
            let keep_lock = self.db.pin(&mut inner);
            self.db.unpin(&mut inner, &old)?;
            self.snapshot = Some(keep_lock);
        } else {
            self.snapshot = Some(self.db.pin(&mut inner));
        }
        Ok(())
    }

    /// xCheckReservedLock: whether anybody is writing.
    pub fn is_reserved(&mut self) -> Result<bool> {
        if self.aside {
            return Ok(false);
        }
        let phase = self.db.inner.lock().phase.clone();
        let reserved = match phase {
            Phase::Unmarked => locks::is_reserved(&*self.db.home),
            _ => Ok(self.db.queue.is_taken()),
        };
        self.noted(reserved)
    }

    /// xRead; returns the bytes read, fewer only at the end of the database.
    pub fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.read(buf, offset);
        self.noted(read)
    }

    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let db = &*self.db;
        let Some(snapshot) = self.snapshot.as_ref().filter(|s| !self.aside && s.kind != Kind::Foreign) else {
            // Before the first lock SQLite reads the header to learn the page size; aside, all is plain.
            let n = db.home.read_at(buf, offset).context(|| db.what("cannot read"))?;
            if !self.aside && offset == 0 && home::mark(buf.get(..n).unwrap_or_default()).is_some() {
                home::unmark(buf);
                if home::page_count(buf) == Some(0) {
                    return Ok(0);
                }
            }
            return Ok(n);
        };
        let (size, limit) = match &self.txn {
            Some(txn) => (txn.page_bytes, txn.file_bytes),
            None => (snapshot.page_bytes, snapshot.bytes()),
        };
        let len = usize::try_from(limit.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        for part in Txn::split(size, offset, len) {
            let (page, in_page, range) = part?;
            let Some(to) = buf.get_mut(range) else { continue };
            match &self.txn {
                Some(txn) => read_overlay(db, txn, page, in_page, to)?,
                None => db.read_page(snapshot, page, in_page, to)?,
            }
        }
        Ok(len)
    }

    /// xWrite of the database file: any offset and length.
    pub fn write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        let written = self.write(data, offset);
        self.noted(written)
    }

    fn write(&mut self, data: &[u8], offset: u64) -> Result<()> {
        let db = self.db.clone();
        if self.aside {
            return db.home.write_at(data, offset).context(|| db.what("cannot write"));
        }
        self.begin_again()?;
        let Some(txn) = &mut self.txn else {
            return Err(Error::Misuse("a write without a write lock".into()));
        };
        if txn.page_bytes == 0 {
            let size = u32::try_from(data.len()).unwrap_or(0);
            if !(size.is_power_of_two() && (512..=65536).contains(&size)) {
                return Err(Error::Misuse(format!("the first write to an empty database has {size} bytes")));
            }
            txn.page_bytes = size;
        }
        let size = txn.page_bytes as usize;
        for part in Txn::split(txn.page_bytes, offset, data.len()) {
            let (page, in_page, range) = part?;
            let bytes = data.get(range).unwrap_or_default();
            let image = if bytes.len() == size {
                Image::from(bytes)
            } else {
                let mut whole = vec![0; size];
                read_overlay(&db, txn, page, 0, &mut whole)?;
                whole.get_mut(in_page..in_page + bytes.len()).unwrap_or_default().copy_from_slice(bytes);
                Image::from(whole)
            };
            if txn.streamed.get(page).is_some() {
                let mut writer = db.writer.lock();
                let live = writer.as_mut().ok_or_else(|| Error::Misuse("a write without a log".into()))?;
                commit::log::stream_page(live, txn, page, &image)?;
            } else {
                txn.pages.insert(page, image);
            }
        }
        txn.file_bytes = txn.file_bytes.max(offset + data.len() as u64);
        let limit = db.inner.lock().options.stream_bytes;
        if txn.memory_bytes() > limit {
            let mut writer = db.writer.lock();
            let live = writer.as_mut().ok_or_else(|| Error::Misuse("a write without a log".into()))?;
            stream_out(live, txn)?;
        }
        Ok(())
    }

    /// A write after a prepare that no commit followed: SQLite rolled that transaction back.
    fn begin_again(&mut self) -> Result<()> {
        let Some(txn) = &self.txn else { return Ok(()) };
        if matches!(txn.stage, Stage::Prepared(_)) {
            let base = txn.base.clone();
            self.drop_txn()?;
            self.txn = Some(Txn::new(base));
        }
        Ok(())
    }

    /// xTruncate of the database file.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        let db = self.db.clone();
        if self.aside {
            let cut = db.home.set_len(len).context(|| db.what("cannot shorten"));
            return self.noted(cut);
        }
        if let Some(Txn { stage: Stage::Prepared(prepared), .. }) = &self.txn
            && len == prepared.state.bytes()
        {
            // Auto-vacuum cuts the file between prepare and commit; the record says so already.
            return Ok(());
        }
        let begun = self.begin_again();
        self.noted(begun)?;
        match &mut self.txn {
            Some(txn) => txn.truncate(len),
            None => return Err(Error::Misuse("a truncation without a write lock".into())),
        }
        Ok(())
    }

    /// xFileSize.
    pub fn size(&mut self) -> Result<u64> {
        let db = &*self.db;
        let plain = self.aside || self.snapshot.as_ref().is_none_or(|s| s.kind == Kind::Foreign);
        let size = match (&self.txn, &self.snapshot) {
            (Some(txn), _) if !self.aside => Ok(txn.file_bytes),
            (None, Some(snapshot)) if !plain => Ok(snapshot.bytes()),
            _ => db.home.len().context(|| db.what("cannot read the length of")),
        };
        self.noted(size)
    }

    /// SQLITE_FCNTL_SYNC: prepare. `super_journal`: the transaction spans several files.
    pub fn prepare(&mut self, super_journal: bool) -> Result<()> {
        let prepared = self.prepare_txn(super_journal);
        self.noted(prepared)
    }

    fn prepare_txn(&mut self, super_journal: bool) -> Result<()> {
        let db = self.db.clone();
        let Some(txn) = &mut self.txn else { return Ok(()) };
        if self.aside || self.doomed {
            return Ok(());
        }
        if matches!(txn.stage, Stage::Prepared(_)) {
            // A second one without a commit between: SQLite has played its journal back.
            return self.begin_again();
        }
        self.check_process()?;
        let Some(txn) = &mut self.txn else { return Ok(()) };
        let mut writer = db.writer.lock();
        let options = {
            let inner = db.inner.lock();
            inner.check()?;
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
        let Some(txn) = self.txn.as_mut().filter(|_| !self.aside) else { return Ok(()) };
        let Stage::Prepared(prepared) = &txn.stage else { return Ok(()) };
        let normal = prepared.normal || (self.normal_said && self.journal.is_empty());
        let durability = if txn.synced && !normal { Durability::Flushed } else { Durability::Written };
        let mut writer = db.writer.lock();
        let options = {
            let inner = db.inner.lock();
            inner.check()?;
            inner.options.clone()
        };
        let Some(live) = writer.as_mut() else { return Err(Error::Misuse("a commit without a log".into())) };
        // The writer's own snapshot ends here: kept pinned, every image that the commit replaces, or that
        // its checkpoint overwrites, would be kept for it.
        let own = self.snapshot.clone();
        if let Some(own) = &own {
            db.unpin(&mut db.inner.lock(), own)?;
        }
        let committed = commit::commit(&db, live, txn, &options, durability);
        let mut inner = db.inner.lock();
        if let Some(own) = own {
            self.snapshot = Some(if committed.is_ok() { db.pin(&mut inner) } else { db.pin_again(&mut inner, own) });
        }
        self.txn = Some(Txn::new(committed?));
        self.journal.forget_syncs();
        Ok(())
    }

    /// xOpen of the rollback journal.
    pub fn journal_open(&mut self) -> Result<()> {
        if self.aside && self.real_journal.is_none() {
            let path = self.db.journal_path();
            let opened = self.db.disk.open(path, OpenMode::Create);
            let opened = opened.context(|| format!("cannot open the rollback journal {}", path.display()));
            self.real_journal = Some(self.noted(opened)?);
        }
        Ok(())
    }

    /// xRead of the rollback journal.
    pub fn journal_read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = match &self.real_journal {
            Some(file) => file.read_at(buf, offset).context(|| self.db.what("cannot read the rollback journal of")),
            None => self.journal.read_at(buf, offset),
        };
        self.noted(read)
    }

    /// xWrite of the rollback journal.
    pub fn journal_write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        let db = self.db.clone();
        let written = match &self.real_journal {
            Some(file) => file.write_at(data, offset).context(|| db.what("cannot write the rollback journal of")),
            None => self.journal.write_at(data, offset, || {
                db.disk.temp_file(&db.path).context(|| db.what("cannot make a temporary file for the rollback of"))
            }),
        };
        self.noted(written)
    }

    /// xTruncate of the rollback journal.
    pub fn journal_truncate(&mut self, len: u64) -> Result<()> {
        let cut = match &self.real_journal {
            Some(file) => file.set_len(len).context(|| self.db.what("cannot shorten the rollback journal of")),
            None => {
                self.journal.truncate(len);
                Ok(())
            }
        };
        self.noted(cut)
    }

    /// xFileSize of the rollback journal.
    pub fn journal_size(&mut self) -> Result<u64> {
        let size = match &self.real_journal {
            Some(file) => file.len().context(|| self.db.what("cannot read the length of the rollback journal of")),
            None => Ok(self.journal.len()),
        };
        self.noted(size)
    }

    /// xSync of the rollback journal.
    pub fn journal_sync(&mut self) -> Result<()> {
        let synced = match &self.real_journal {
            Some(file) => file.sync().context(|| self.db.what("cannot flush the rollback journal of")),
            None => {
                self.journal.sync();
                Ok(())
            }
        };
        self.noted(synced)
    }

    /// xClose of the rollback journal.
    pub fn journal_close(&mut self) -> Result<()> {
        Ok(())
    }

    /// xDelete of the rollback journal's name.
    pub fn journal_delete(&mut self, sync_dir: bool) -> Result<()> {
        self.journal.truncate(0);
        if !self.aside {
            return Ok(());
        }
        let db = self.db.clone();
        let path = db.journal_path();
        self.real_journal = None;
        let removed = db.disk.remove(path).context(|| db.what("cannot remove the rollback journal of"));
        self.noted(removed)?;
        if sync_dir {
            let synced = db.disk.sync_dir_of(path).context(|| db.what("cannot flush the directory of"));
            self.noted(synced)?;
        }
        Ok(())
    }

    /// xAccess of the rollback journal's name: only a real one counts.
    pub fn journal_exists(&mut self) -> Result<bool> {
        if !self.aside {
            return Ok(false);
        }
        let exists = self.db.disk.exists(self.db.journal_path());
        let exists = exists.context(|| self.db.what("cannot look for the rollback journal of"));
        self.noted(exists)
    }

    /// xAccess of the `-wal` name: a marked database has none; `None`: ask the file system.
    pub fn wal_exists(&mut self) -> Result<Option<bool>> {
        let live = self.db.inner.lock().phase == Phase::Live;
        Ok(live.then_some(false))
    }

    /// `PRAGMA synchronous=…` was seen.
    pub fn note_synchronous(&mut self, value: &str) {
        self.normal_said = value.eq_ignore_ascii_case("normal") || value == "1";
    }

    /// `PRAGMA onewrite_NAME` with or without a value; `None` if there is no such pragma.
    pub fn pragma(&mut self, name: &str, value: Option<&str>) -> Option<Result<String>> {
        let answer = crate::pragma::answer(self, name, value)?;
        Some(match name {
            "error" => answer,
            _ => self.noted(answer),
        })
    }

    /// The database, for pragmas.
    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.db
    }

    /// Runs a checkpoint now, waiting for the writer's place as a writer does.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        let db = self.db.clone();
        let wait = Duration::from_millis(self.busy_ms);
        let had = db.queue.holds(self.id);
        if self.txn.as_ref().is_some_and(|t| !t.is_untouched()) || self.aside {
            return Err(Error::Busy("this connection is writing; checkpoint after its commit".into()));
        }
        if !had && !db.queue.acquire(self.id, false, wait) {
            return Err(Error::Busy("another connection of this process is writing".into()));
        }
        let done = match db.writer.lock().as_mut() {
            Some(live) => crate::checkpoint::checkpoint(&db, live, Stream::Drop),
            None => Ok(()),
        };
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
        self.txn = None;
        self.aside = false;
        // Poisoned, it only gives locks back; a failure changes nothing any more.
        let _ = self.close_once();
    }

    /// The longest wait for the writer's place, in milliseconds: each connection has its own.
    pub(crate) fn busy_ms(&mut self) -> &mut u64 {
        &mut self.busy_ms
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
        let mut databases = self.engine.databases.lock();
        let last = {
            let mut inner = self.db.inner.lock();
            inner.connections -= 1;
            inner.connections == 0
        };
        if !last {
            return unlocked;
        }
        let detached = self.db.detach();
        databases.retain(|_, db| !Arc::ptr_eq(db, &self.db));
        self.engine.close_home(&self.db.home);
        unlocked.and(detached)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Whatever fails here is found by recovery.
        let _ = self.close_once();
    }
}

fn busy_aside() -> Error {
    Error::Busy("another connection of this process has stepped aside from the log for its transaction".into())
}

/// What only the plain file can take: another page size or reserve, or WAL mode.
fn needs_plain_file(txn: &Txn) -> bool {
    let Some(new) = txn.pages.get(&PageNo::HEADER) else { return false };
    let resized = home::page_bytes(new) != Some(txn.page_bytes);
    let reserve = txn.base.page_count > 0 && home::reserved(new) != home::reserved(&txn.base.header);
    resized || reserve || home::wants_wal(new)
}

fn read_overlay(db: &Database, txn: &Txn, page: PageNo, in_page: usize, to: &mut [u8]) -> Result<()> {
    if let Some(image) = txn.pages.get(&page) {
        to.copy_from_slice(image.get(in_page..in_page + to.len()).unwrap_or_default());
    } else if let Some((at, _)) = txn.streamed.get(page) {
        let writer = db.writer.lock();
        let live = writer.as_ref().ok_or_else(|| Error::Misuse("a read without a log".into()))?;
        let log = &live.log.file().file;
        let n = log.read_at(to, at + in_page as u64).context(|| db.what("cannot read the log of"))?;
        to.get_mut(n..).unwrap_or_default().fill(0);
    } else if page.0 <= txn.base_limit && page.0 <= txn.base.page_count {
        db.read_page(&txn.base, page, in_page, to)?;
    } else {
        to.fill(0);
    }
    Ok(())
}

/// Moves a big transaction's pages out of memory. Page 1 stays: the commit needs it.
fn stream_out(live: &mut crate::database::Live, txn: &mut Txn) -> Result<()> {
    let mut pages: Vec<PageNo> = txn.pages.keys().copied().filter(|p| *p != PageNo::HEADER).collect();
    pages.sort_unstable();
    for page in pages {
        if let Some(image) = txn.pages.get(&page).cloned() {
            commit::log::stream_page(live, txn, page, &image)?;
            txn.pages.remove(&page);
        }
    }
    txn.pages.shrink_to(64);
    Ok(())
}
