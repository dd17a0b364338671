//! One database in one process: what its connections share.
//!
//! ```text
//!              first write: go_live                 step_aside
//!  UNMARKED ───────────────────────▶ LIVE ───────────────────────▶ ASIDE
//!     ▲  ▲                            │ ▲                            │
//!     │  └── last close: detach ──────┘ └── open of a marked home:   │
//!     │                                     attach, recover          │
//!     └───────────────────── come_back ◀─────────────────────────────┘
//!
//!  UNMARKED  home is a plain file. Readers hold SQLite's SHARED while they read. No log is in use.
//!  LIVE      home carries the mark, this process holds SHARED and the log's attach lock, commits go
//!            through a scheme.
//!  ASIDE     one connection is a plain SQLite for a while, with EXCLUSIVE and a real journal; others get BUSY.
//!  POISONED  a write or flush failed; everything fails until all connections have closed.
//! ```
//!
//! Lock order: `writer`, then `inner`, then `table`. `writer` is held by whoever has the writer's
//! place while it commits; `inner` only for moments; `table` only for look-ups and publication.

pub mod decide;
pub mod follow;
pub mod identity;
pub mod names;
pub mod pace;
pub mod pin;
pub mod progress;
pub mod publish;
pub mod queue;
#[cfg(test)]
mod queue_tests;
pub mod read;
pub mod scheme;
pub mod ship;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::options::{Options, SchemeName};
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::database::progress::Sweep;
use crate::database::queue::{ConnectionId, WriterQueue};
use crate::database::scheme::{Facts, Scheme};
use crate::disk::image_file::ImageFile;
use crate::disk::stats::{CountedFile, Stats};
use crate::disk::sync::Mutex;
use crate::disk::{Disk, DiskFile, FileId, read_part};
use crate::log::file::LogFile;
use crate::log::group::Audience;
use crate::log::record::Encoder;
use crate::log::ring::Log;
use crate::log::several::Undecided;
use crate::pages::snapshots::Snapshots;
use crate::pages::table::{Image, PageTable, Readers};
use crate::shared::member::{Member, MemberFiles};
use crate::shared::words::RecoveryDebt;
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind, HomeMark, State};

/// See the state machine above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Home is a plain file.
    Unmarked,
    /// Home is marked and the log in use.
    Live,
    /// A connection has the plain file to itself.
    Aside(ConnectionId),
    /// A write or flush failed.
    Poisoned(String),
}

/// Called when a process attaches to the log of a database; once it is set.
pub type AttachHook = Arc<std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// A home without a mark, in rollback mode, that has no WAL beside it.
pub struct Plain {
    first: DatabaseHeader,
    bytes: u64,
    /// The state that it is in.
    state: Arc<State>,
}

/// What changes under the lock `inner`.
pub struct DatabaseState {
    /// Phase.
    pub phase: Phase,
    /// The newest state readers may see: a crash cannot take it back (under `synchronous=FULL`). The group, and the words of
    /// several processes, say of which TID it is, but not what it is; they learn of it after the readers (rule SeenWhenDurable).
    pub latest: Arc<State>,
    /// The newest state, which the next writer builds on. Those above `latest` wait for their flush.
    pub published: Arc<State>,
    /// Among several processes: the states after `latest`, up to `published`.
    pub hidden: VecDeque<Arc<State>>,
    /// A connection that will step aside keeps the others from beginning to read.
    pub reserved: Option<ConnectionId>,
    /// Pinned snapshots.
    pub snapshots: Snapshots,
    /// Settings in force; a transaction takes a count of them, not a copy.
    pub options: Arc<Options>,
    /// Why the file was left in WAL mode, when this process last looked at one that is.
    pub stays_wal: Option<String>,
    /// What home was when it was found to be a plain file without a WAL beside it.
    pub plain: Option<Plain>,
    /// When no other process was about to write home without onewrite.
    pub pending_free_at: Option<Instant>,
    /// The connection that lets no other begin to read.
    pub alone: Option<ConnectionId>,
    /// Open connections.
    pub connections: usize,
    /// One of them was opened to write: if nobody uses a marked file, it is recovered here.
    pub recovers: bool,
    /// This process among those that use the log; `None` while it has the file to itself.
    pub member: Option<Arc<Member>>,
    /// This process marked home when nobody else had a lock on it, and has held PENDING since (rule StockKeptOut).
    pub kept_stock_out: bool,
    /// The transaction that made what home held when this process marked it: [`Tid::HOME`] until then. Slots move on, and a
    /// snapshot that was pinned before the mark does not.
    pub home_tid: Tid,
    /// The same state by the number that it had before a new log gave it this one; else [`Tid::HOME`].
    pub tid_before: Tid,
    /// A connection has begun a transaction since this was asked last.
    pub was_used: bool,
    /// How the transactions of this process follow each other.
    pub pace: pace::Pace,
}

impl DatabaseState {
    /// Number of pinned snapshots.
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.count()
    }

    /// Everybody sees `state` from now on.
    pub fn set_state(&mut self, state: Arc<State>) {
        self.latest = state.clone();
        self.published = state;
        self.hidden.clear();
    }

    /// The same for one that was found in the file, as it mostly was before.
    pub fn find_state(&mut self, state: State) {
        if *self.latest != state || !Arc::ptr_eq(&self.latest, &self.published) {
            self.set_state(Arc::new(state));
        }
    }

    /// Home, with these first bytes and so long, is what `latest` says, and no WAL lies beside it.
    pub fn note_plain(&mut self, first: &[u8], bytes: u64) {
        let first = DatabaseHeader::try_from(first).ok().filter(|_| self.latest.kind == FileKind::Database);
        self.plain = first.map(|first| Plain { first, bytes, state: self.latest.clone() });
    }

    /// Whether that still holds for a home which is found with these first bytes and so long (rule ModeUnderLock).
    pub fn is_plain(&self, first: &[u8], bytes: u64) -> bool {
        self.plain.as_ref().is_some_and(|plain| {
            plain.first == *first
                && plain.bytes == bytes
                && Arc::ptr_eq(&plain.state, &self.latest)
                && Arc::ptr_eq(&self.latest, &self.published)
        })
    }

    /// A state after the newest, for the next writer, whichever process it is of.
    pub fn hide(&mut self, state: Arc<State>) {
        self.published = state.clone();
        self.hidden.push_back(state);
    }

    /// Among several processes: readers see what all of them may see, of what is known here.
    pub fn advance(&mut self) {
        let Some(visible) = self.member.as_ref().map(|member| member.words.visible()) else { return };
        while self.hidden.front().is_some_and(|state| state.tid <= visible) {
            self.latest = self.hidden.pop_front().unwrap_or_else(|| self.latest.clone());
        }
    }

    /// Who reads versions older than the newest.
    pub fn readers(&self) -> Readers<'_> {
        Readers { snapshots: &self.snapshots, visible: self.latest.tid }
    }

    /// Fails if the database is poisoned.
    pub fn check(&self) -> Result<()> {
        match &self.phase {
            Phase::Poisoned(why) => Err(Error::Poisoned(why.clone())),
            _ => match self.member.as_ref().map(|member| &member.words).filter(|words| words.is_poisoned()) {
                Some(words) => Err(Error::Poisoned(words.poisoned_by().into())),
                None => Ok(()),
            },
        }
    }

    /// From now on everything fails, in every process (a failed flush is never retried).
    pub fn poison(&mut self, error: Error) -> Error {
        if !keeps(Case::Poisons) {
            return error;
        }
        if let Some(member) = &self.member {
            member.words.poison();
        }
        if !matches!(self.phase, Phase::Poisoned(_)) {
            self.phase = Phase::Poisoned(error.to_string());
        }
        error
    }

    /// Whether a snapshot is of the newest state.
    pub fn is_newest(&self, snapshot: &State) -> bool {
        self.is_newest_tid(snapshot.tid)
    }

    /// The same by its number.
    pub fn is_newest_tid(&self, tid: Tid) -> bool {
        let newest = self.published.tid;
        tid == newest || ([Tid::HOME, self.tid_before].contains(&tid) && newest == self.home_tid)
    }
}

/// What only the holder of the writer's place uses, while the database is live.
pub struct LiveDatabase {
    /// The log.
    pub log: Log,
    /// Home's mark and length.
    pub home: HomeFile,
    /// TID of the state in home: what the slot says, or that of a transaction that went in place since.
    pub home_tid: Tid,
    /// Buffer for the record being built.
    pub encoder: Encoder,
    /// Page 1 of a state but for its counters, which most transactions leave as it is.
    pub first_page: Option<(Arc<State>, Image)>,
    /// Images kept for snapshots.
    pub kept: ImageFile,
    /// How commits become durable, and what that has under way.
    pub scheme: Arc<dyn Scheme>,
    /// How many flushes there had been when the ring was emptied last because it was full, or begun.
    pub emptied_at: u64,
    /// The checkpoint in slices that is under way.
    pub sweep: Option<Sweep>,
    /// What the recovery that this log was taken over by has left to do; among several processes, the words say so.
    pub due: RecoveryDebt,
    /// When it was seen last that the files are where they were.
    pub looked_at: Option<Instant>,
}

impl LiveDatabase {
    /// A log and a home of which nothing is under way.
    pub fn new(log: Log, home: HomeFile, home_tid: Tid, scheme: Arc<dyn Scheme>, stats: &Stats) -> LiveDatabase {
        let (encoder, kept) = (Encoder::default(), ImageFile::default());
        let emptied_at = stats.flushes.load(Ordering::Relaxed);
        let (first_page, due) = (None, RecoveryDebt::default());
        let looked_at = Some(Instant::now());
        LiveDatabase { log, home, home_tid, encoder, first_page, kept, scheme, emptied_at, sweep: None, due, looked_at }
    }
}

/// What is known of a marked home.
#[derive(Clone, Copy, Debug)]
pub struct HomeFile {
    /// What the mark says.
    pub mark: HomeMark,
    /// Length in bytes.
    pub bytes: u64,
    /// Room asked for, in bytes.
    pub reserved_bytes: u64,
    /// Bytes of it that the device writes all or nothing when aligned.
    pub atomic_unit: u32,
}

impl HomeFile {
    /// Bytes from the beginning that it has blocks for, or that were asked for.
    pub fn room_bytes(&self) -> u64 {
        self.bytes.max(self.reserved_bytes)
    }
}

/// Makes a scheme by its name, with nothing under way.
pub type Schemes = fn(SchemeName) -> Arc<dyn Scheme>;

/// A database.
pub struct Database {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    journal_path: PathBuf,
    wal_path: PathBuf,
    pub(crate) home: Arc<dyn DiskFile>,
    /// Home cannot be written by this process: it joins others, and neither takes their place nor ends their session.
    pub(crate) read_only: bool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) queue: WriterQueue,
    pub(crate) table: RwLock<PageTable>,
    /// Grows before bytes that a reader may be reading are overwritten, and again before they are cut off.
    pub(crate) epoch: AtomicU64,
    /// Whether the last close flushes the mark's removal: `PRAGMA synchronous=EXTRA`.
    pub(crate) flushes_close: AtomicBool,
    pub(crate) inner: Mutex<DatabaseState>,
    /// As the options say, which are asked several times in a transaction.
    pub(crate) psow: AtomicBool,
    /// The same.
    pub(crate) stream_bytes: AtomicU64,
    pub(crate) writer: parking_lot::Mutex<Option<LiveDatabase>>,
    /// Bytes of home that were written and that nobody has asked the system to begin to write to the medium.
    pub(crate) write_back: Mutex<Option<(u64, u64)>>,
    /// The record of this process that waits for its decision. It is the last one in the log, and whoever wrote it has
    /// the writer's place (rule PreparedThenDecided).
    pub(crate) undecided: Mutex<Option<Undecided>>,
    /// A transaction over several files needed the plain file: the next one waits until it is alone.
    pub(crate) spans_aside: AtomicBool,
    /// Is called when this process attaches to the log.
    pub(crate) attached: AttachHook,
    /// Logs that were lost while in use: processes that have not seen it are attached to them.
    pub(crate) lost_logs: Mutex<Vec<LogFile>>,
    schemes: Schemes,
    /// The one in force, and of the log in use. Locked for moments, below every other lock.
    scheme: Mutex<Arc<dyn Scheme>>,
}

impl Database {
    /// The database at `path`, whose file is open as `home`. Nothing is read yet.
    pub fn new(
        disk: Arc<dyn Disk>,
        path: &Path,
        home: Arc<dyn DiskFile>,
        options: Options,
        schemes: Schemes,
    ) -> Database {
        let scheme = Mutex::new(schemes(options.bundle.scheme));
        let stats = Arc::new(Stats::default());
        let empty = Arc::new(State::empty(Tid::HOME));
        let with = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        Database {
            disk,
            path: path.to_owned(),
            journal_path: with(crate::base::layout::JOURNAL_SUFFIX),
            wal_path: with(crate::base::layout::wal::SUFFIX),
            home: CountedFile::wrap(home, stats.clone()),
            read_only: false,
            stats,
            queue: WriterQueue::default(),
            table: RwLock::default(),
            epoch: AtomicU64::new(0),
            flushes_close: AtomicBool::new(false),
            psow: AtomicBool::new(options.psow),
            stream_bytes: AtomicU64::new(options.stream_bytes),
            inner: Mutex::new(DatabaseState {
                phase: Phase::Unmarked,
                latest: empty.clone(),
                published: empty,
                hidden: VecDeque::new(),
                reserved: None,
                snapshots: Snapshots::default(),
                options: Arc::new(options),
                stays_wal: None,
                plain: None,
                pending_free_at: None,
                alone: None,
                connections: 0,
                recovers: true,
                member: None,
                kept_stock_out: false,
                home_tid: Tid::HOME,
                tid_before: Tid::HOME,
                was_used: false,
                pace: pace::Pace::default(),
            }),
            writer: parking_lot::Mutex::new(None),
            write_back: Mutex::new(None),
            undecided: Mutex::new(None),
            spans_aside: AtomicBool::new(false),
            attached: AttachHook::default(),
            lost_logs: Mutex::default(),
            schemes,
            scheme,
        }
    }

    /// This process among others; `None` while it has the file to itself.
    pub fn member(&self) -> Option<Arc<Member>> {
        self.inner.lock().member.clone()
    }

    /// Path of the real rollback journal.
    pub fn journal_path(&self) -> &Path {
        &self.journal_path
    }

    /// Path of the WAL of stock SQLite.
    pub fn wal_path(&self) -> &Path {
        &self.wal_path
    }

    /// Whether all processes are told of what is as durable as it is to be (rule SeenWhenDurable).
    pub fn is_told_at_once(&self) -> bool {
        keeps(Case::SeenByAllAtOnce) || !self.table.read().has_layer()
    }

    /// What a member uses of it.
    pub fn files(&self) -> MemberFiles {
        MemberFiles { disk: self.disk.clone(), home: self.home.clone(), read_only: self.read_only }
    }

    /// The scheme in force.
    pub fn scheme(&self) -> Arc<dyn Scheme> {
        self.scheme.lock().clone()
    }

    /// Another one, with nothing under way: of what is found in a file that it has left.
    pub fn scheme_called(&self, name: SchemeName) -> Arc<dyn Scheme> {
        (self.schemes)(name)
    }

    /// What is to be known of it.
    pub fn facts(&self) -> Facts {
        self.scheme.lock().facts()
    }

    /// Other settings, for a database that is not live if they are of another scheme.
    pub fn set_options(&self, inner: &mut DatabaseState, options: Options) {
        if options.bundle.scheme != inner.options.bundle.scheme {
            debug_assert!(inner.phase != Phase::Live, "a live log keeps its scheme");
            *self.scheme.lock() = (self.schemes)(options.bundle.scheme);
        }
        self.psow.store(options.psow, Ordering::Relaxed);
        self.stream_bytes.store(options.stream_bytes, Ordering::Relaxed);
        inner.options = Arc::new(options);
    }

    /// What the holder of the writer's place uses of a log that is taken into use: of the scheme, too, nothing is under way.
    pub fn begin(&self, inner: &DatabaseState, log: Log, home: HomeFile, home_tid: Tid) -> LiveDatabase {
        let scheme = (self.schemes)(inner.options.bundle.scheme);
        *self.scheme.lock() = scheme.clone();
        LiveDatabase::new(log, home, home_tid, scheme, &self.stats)
    }

    /// Whether a file is home, or a file of the scheme that may have its name.
    pub fn is_home(&self, id: FileId) -> bool {
        self.home.id().is_ok_and(|home| home == id) || self.takes_name(id)
    }

    /// Whether a file of the scheme, other than home, may have the name of the database.
    pub fn takes_name(&self, id: FileId) -> bool {
        self.scheme().takes_name(id)
    }

    /// "verb the database PATH", for messages.
    pub fn what(&self, verb: &str) -> String {
        format!("{verb} the database {}", self.path.display())
    }

    /// From now on everything fails (a failed flush is never retried).
    pub fn poison(&self, error: Error) -> Error {
        self.inner.lock().poison(error)
    }

    /// Poisons the database unless the error says only that room is short.
    pub fn poison_unless_short(&self, error: Error) -> Error {
        if error.is_short() { error } else { self.poison(error) }
    }

    /// What home's first bytes say, and the session id if the mark is on. The caller holds SHARED or more.
    pub fn read_state(&self) -> Result<(State, Option<u64>)> {
        let mut first = [0; at::HEADER_BYTES];
        let (first, bytes) = self.read_first(&mut first)?;
        Ok(state_of(first, bytes))
    }

    /// Home's first bytes, all of them unless it is shorter, and its length.
    pub fn read_first<'a>(&self, first: &'a mut home::DatabaseHeader) -> Result<(&'a [u8], u64)> {
        let first = read_part(&*self.home, first, 0).context(|| self.what("cannot read"))?;
        let bytes = self.home.len().context(|| self.what("cannot read the length of"))?;
        Ok((first, bytes))
    }

    /// The mark of home, if it is on.
    pub fn read_mark(&self) -> Result<Option<HomeMark>> {
        let mut first = [0; at::HEADER_BYTES];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        Ok(home::mark(first))
    }

    /// Bytes of home that the device writes all or nothing when aligned, unless `options` know better.
    pub fn atomic_unit(&self, options: &Options) -> u32 {
        if options.atomic_unit != 0 { options.atomic_unit } else { self.home.atomic_unit_bytes() }
    }

    /// Writes the first bytes of home, durable. They lie in one sector, so they are whole or as before.
    pub fn write_header(&self, header: &home::DatabaseHeader) -> Result<()> {
        self.home.write_at(header, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    /// Writes the first bytes of home once more, as they are, durable: who wrote them may have died, or failed to flush them.
    pub fn repeat_header(&self) -> Result<()> {
        let mut first = [0; at::HEADER_BYTES];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        self.home.write_at(first, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    /// Asks the system to begin to write what went home in a slice.
    pub fn begin_write_back(&self) {
        if let Some((from, to)) = self.write_back.lock().take() {
            self.home.begin_write_back(from, to - from);
        }
    }

    /// Stock SQLite gets BUSY while home is marked and in use, as long as one of the processes holds PENDING: this one, if no
    /// other does (rule StockKeptOut). Where that fails it gets NOTADB.
    pub fn hold_pending(&self) {
        if !self.read_only {
            let _ = crate::disk::locks::pending(&*self.home);
        }
    }

    /// Flushes home. Any error is a failed flush, also one that says the disk is full.
    pub fn sync_home(&self) -> Result<()> {
        self.home.sync().map_err(|error| Error::Io { what: self.what("cannot flush"), error })
    }
}

/// The state that a home with these first bytes and this length is in, and the session id if the mark is on.
pub fn state_of(first: &[u8], bytes: u64) -> (State, Option<u64>) {
    (State::of_home(first, bytes), home::mark(first).map(|mark| mark.session))
}

impl Audience for Database {
    fn flushed(&self, tid: Tid) {
        if let Some(member) = self.member() {
            member.words.raise_flushed(tid);
            member.words.show();
        }
    }

    fn show(&self, state: Arc<State>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        debug_assert!(state.tid <= inner.published.tid, "states are shown in order");
        // Rule SeenWhenDurable.
        let member = inner.member.clone().filter(|_| self.is_told_at_once());
        if let Some(member) = member {
            member.words.raise_written(state.tid);
            member.words.show();
            inner.advance();
        } else {
            inner.hidden.retain(|hidden| hidden.tid > state.tid);
            inner.latest = state;
        }
    }

    fn is_to_publish(&self) -> bool {
        !self.queue.is_idle()
    }

    fn poison(&self, error: Error) -> Error {
        Database::poison(self, error)
    }
}
