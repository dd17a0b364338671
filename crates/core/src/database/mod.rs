//! One database in one process: the state that its connections share.
//!
//! ```text
//!             first write: go_live                 step_aside
//! UNMARKED ───────────────────────▶ LIVE ───────────────────────▶ ASIDE
//!    ▲  ▲                            │ ▲                            │
//!    │  └── last close: detach ──────┘ └── open of a marked home:   │
//!    │                                     attach, recover          │
//!    └───────────────────── come_back ◀─────────────────────────────┘
//!
//! UNMARKED  home is a plain file. Readers hold SQLite's SHARED while they read. No log is in use.
//! LIVE      home carries the mark, this process holds SHARED and the log's attach lock, commits
//!           go through a scheme.
//! ASIDE     one connection is a plain SQLite for a while, with EXCLUSIVE and a real journal;
//!           others get BUSY.
//! POISONED  a write or flush failed; everything fails until all connections have closed.
//! ```
//!
//! Lock order: `writer`, then `inner`, then `table`. The holder of the writer's place holds
//! `writer` while it commits; `inner` is held for moments; `table` for look-ups and publication.

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
use crate::shared::member::{Files, Member};
use crate::shared::words::Due;
use crate::sqlite_format::home::{self, Header, Kind, Mark, State};

/// The state machine above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    Unmarked,
    Live,
    Aside(ConnectionId),
    Poisoned(String),
}

/// Called when a process attaches to the log of a database.
pub type AttachHook = Arc<std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>>;

/// A home in rollback mode, without a mark and without a WAL beside it.
pub struct Plain {
    first: Header,
    bytes: u64,
    state: Arc<State>,
}

/// State under the lock `inner`.
pub struct Inner {
    pub phase: Phase,
    /// The newest state that readers may see (rule SeenWhenDurable). The group and the shared words
    /// hold only its TID, and learn of it after the readers.
    pub latest: Arc<State>,
    /// The newest state, on which the next writer builds. States above `latest` wait for their
    /// flush.
    pub published: Arc<State>,
    /// Among several processes: the states after `latest`, up to `published`.
    pub hidden: VecDeque<Arc<State>>,
    /// A connection about to step aside, which keeps the others from beginning to read.
    pub reserved: Option<ConnectionId>,
    pub snapshots: Snapshots,
    /// Settings in force; a transaction takes a count of them, not a copy.
    pub options: Arc<Options>,
    /// Why the file stays in WAL mode, as of the last look.
    pub stays_wal: Option<String>,
    /// Home, when it was found plain and without a WAL.
    pub plain: Option<Plain>,
    /// When no other process was about to write home without onewrite.
    pub pending_free_at: Option<Instant>,
    /// The connection that lets no other begin to read.
    pub alone: Option<ConnectionId>,
    /// Number of open connections.
    pub connections: usize,
    /// A connection was opened to write, so this process recovers a marked file that no process
    /// uses.
    pub recovers: bool,
    /// This process among those that use the log; `None` while it has the file to itself.
    pub member: Option<Arc<Member>>,
    /// This process marked home when no other had a lock on it, and has held PENDING since (rule
    /// StockKeptOut).
    pub kept_stock_out: bool,
    /// The transaction that made home's content when this process marked it: [`Tid::HOME`] until
    /// then. A snapshot pinned before the mark needs it after the slot has moved on.
    pub home_tid: Tid,
    /// The number that this state had before a new log renumbered it; else [`Tid::HOME`].
    pub tid_before: Tid,
    /// A connection has begun a transaction since the last look.
    pub was_used: bool,
    pub pace: pace::Pace,
}

impl Inner {
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.count()
    }

    /// Makes `state` the newest one, for readers and the next writer.
    pub fn set_state(&mut self, state: Arc<State>) {
        self.latest = state.clone();
        self.published = state;
        self.hidden.clear();
    }

    /// The same for a state read from the file, which is mostly the known one.
    pub fn find_state(&mut self, state: State) {
        if *self.latest != state || !Arc::ptr_eq(&self.latest, &self.published) {
            self.set_state(Arc::new(state));
        }
    }

    /// Notes that home, with these first bytes and length, is what `latest` says, without a WAL.
    pub fn note_plain(&mut self, first: &[u8], bytes: u64) {
        let first = Header::try_from(first).ok().filter(|_| self.latest.kind == Kind::Database);
        self.plain = first.map(|first| Plain { first, bytes, state: self.latest.clone() });
    }

    /// Whether that still holds for a home with these first bytes and length (rule ModeUnderLock).
    pub fn is_plain(&self, first: &[u8], bytes: u64) -> bool {
        self.plain.as_ref().is_some_and(|plain| {
            plain.first == *first
                && plain.bytes == bytes
                && Arc::ptr_eq(&plain.state, &self.latest)
                && Arc::ptr_eq(&self.latest, &self.published)
        })
    }

    /// Adds a state for the next writer, of whichever process, that readers do not see yet.
    pub fn hide(&mut self, state: Arc<State>) {
        self.published = state.clone();
        self.hidden.push_back(state);
    }

    /// Among several processes: readers see the newest state that is visible to all and known here.
    pub fn advance(&mut self) {
        let Some(visible) = self.member.as_ref().map(|member| member.words.visible()) else { return };
        while self.hidden.front().is_some_and(|state| state.tid <= visible) {
            self.latest = self.hidden.pop_front().unwrap_or_else(|| self.latest.clone());
        }
    }

    /// The readers of versions older than the newest.
    pub fn readers(&self) -> Readers<'_> {
        Readers { snapshots: &self.snapshots, visible: self.latest.tid }
    }

    pub fn check(&self) -> Result<()> {
        match &self.phase {
            Phase::Poisoned(why) => Err(Error::Poisoned(why.clone())),
            _ => match self.member.as_ref().map(|member| &member.words).filter(|words| words.is_poisoned()) {
                Some(words) => Err(Error::Poisoned(words.poisoned_by().into())),
                None => Ok(()),
            },
        }
    }

    /// Everything fails from now on, in every process: a failed flush is never retried.
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

    pub fn is_newest(&self, snapshot: &State) -> bool {
        self.is_newest_tid(snapshot.tid)
    }

    pub fn is_newest_tid(&self, tid: Tid) -> bool {
        let newest = self.published.tid;
        tid == newest || ([Tid::HOME, self.tid_before].contains(&tid) && newest == self.home_tid)
    }
}

/// State that only the holder of the writer's place uses, while the database is live.
pub struct Live {
    pub log: Log,
    pub home: HomeFile,
    /// TID of the state in home: that of the slot, or of a transaction placed since.
    pub home_tid: Tid,
    pub encoder: Encoder,
    /// Page 1 of a state without its counters, which is all that most transactions change.
    pub first_page: Option<(Arc<State>, Image)>,
    /// Images kept for snapshots.
    pub kept: ImageFile,
    /// How commits become durable, with its pending work.
    pub scheme: Arc<dyn Scheme>,
    /// The number of flushes when a full ring was last emptied, or the ring begun.
    pub emptied_at: u64,
    /// The checkpoint in slices that is under way.
    pub sweep: Option<Sweep>,
    /// Work that recovery postponed; among several processes, the words hold it.
    pub due: Due,
    /// When the files were last seen in their places.
    pub looked_at: Option<Instant>,
}

impl Live {
    /// A log and a home with nothing under way.
    pub fn new(log: Log, home: HomeFile, home_tid: Tid, scheme: Arc<dyn Scheme>, stats: &Stats) -> Live {
        let (encoder, kept) = (Encoder::default(), ImageFile::default());
        let emptied_at = stats.flushes.load(Ordering::Relaxed);
        let (first_page, due) = (None, Due::default());
        let looked_at = Some(Instant::now());
        Live { log, home, home_tid, encoder, first_page, kept, scheme, emptied_at, sweep: None, due, looked_at }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct HomeFile {
    pub mark: Mark,
    /// Bytes.
    pub bytes: u64,
    /// Room asked for, in bytes.
    pub reserved_bytes: u64,
    /// Bytes that the device writes all or nothing when aligned.
    pub atomic_unit: u32,
}

impl HomeFile {
    /// Bytes from the beginning that have blocks, or that were asked for.
    pub fn room_bytes(&self) -> u64 {
        self.bytes.max(self.reserved_bytes)
    }
}

/// Makes a scheme by its name, with nothing under way.
pub type Schemes = fn(SchemeName) -> Arc<dyn Scheme>;

pub struct Database {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    journal_path: PathBuf,
    wal_path: PathBuf,
    pub(crate) home: Arc<dyn DiskFile>,
    /// Home cannot be written here: this process joins others, and neither takes over nor ends
    /// their session.
    pub(crate) read_only: bool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) queue: WriterQueue,
    pub(crate) table: RwLock<PageTable>,
    /// Grows before bytes that a reader may be reading are overwritten, and again before they are
    /// cut off.
    pub(crate) epoch: AtomicU64,
    /// Whether the last close flushes the mark's removal: `PRAGMA synchronous=EXTRA`.
    pub(crate) flushes_close: AtomicBool,
    pub(crate) inner: Mutex<Inner>,
    /// A copy of the option, which a transaction asks several times.
    pub(crate) psow: AtomicBool,
    /// The same.
    pub(crate) stream_bytes: AtomicU64,
    pub(crate) writer: parking_lot::Mutex<Option<Live>>,
    /// Bytes of home that were written and whose write-back has not been requested.
    pub(crate) write_back: Mutex<Option<(u64, u64)>>,
    /// The record of this process that waits for its decision. It is the last one in the log, and
    /// its writer keeps the writer's place (rule PreparedThenDecided).
    pub(crate) undecided: Mutex<Option<Undecided>>,
    /// A transaction over several files needed the plain file: the next one waits until it is
    /// alone.
    pub(crate) spans_aside: AtomicBool,
    /// Called when this process attaches to the log.
    pub(crate) attached: AttachHook,
    /// Logs that were lost while in use: some processes may still be attached to them.
    pub(crate) lost_logs: Mutex<Vec<LogFile>>,
    schemes: Schemes,
    /// The scheme in force, and of the log in use. Locked for moments, below every other lock.
    scheme: Mutex<Arc<dyn Scheme>>,
}

impl Database {
    /// The database at `path`, open as `home`. Reads nothing yet.
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
            inner: Mutex::new(Inner {
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

    pub fn journal_path(&self) -> &Path {
        &self.journal_path
    }

    /// Path of the WAL of stock SQLite.
    pub fn wal_path(&self) -> &Path {
        &self.wal_path
    }

    /// Whether all processes learn of a durable state at once (rule SeenWhenDurable).
    pub fn is_told_at_once(&self) -> bool {
        keeps(Case::SeenByAllAtOnce) || !self.table.read().has_layer()
    }

    /// The files that a member uses.
    pub fn files(&self) -> Files {
        Files { disk: self.disk.clone(), home: self.home.clone(), read_only: self.read_only }
    }

    pub fn scheme(&self) -> Arc<dyn Scheme> {
        self.scheme.lock().clone()
    }

    /// A scheme with nothing under way, to read what it left in a file.
    pub fn scheme_called(&self, name: SchemeName) -> Arc<dyn Scheme> {
        (self.schemes)(name)
    }

    pub fn facts(&self) -> Facts {
        self.scheme.lock().facts()
    }

    /// Changes the settings; the scheme only of a database that is not live.
    pub fn set_options(&self, inner: &mut Inner, options: Options) {
        if options.bundle.scheme != inner.options.bundle.scheme {
            debug_assert!(inner.phase != Phase::Live, "a live log keeps its scheme");
            *self.scheme.lock() = (self.schemes)(options.bundle.scheme);
        }
        self.psow.store(options.psow, Ordering::Relaxed);
        self.stream_bytes.store(options.stream_bytes, Ordering::Relaxed);
        inner.options = Arc::new(options);
    }

    /// Takes a log into use, with a scheme that has nothing under way.
    pub fn begin(&self, inner: &Inner, log: Log, home: HomeFile, home_tid: Tid) -> Live {
        let scheme = (self.schemes)(inner.options.bundle.scheme);
        *self.scheme.lock() = scheme.clone();
        Live::new(log, home, home_tid, scheme, &self.stats)
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

    /// Everything fails from now on: a failed flush is never retried.
    pub fn poison(&self, error: Error) -> Error {
        self.inner.lock().poison(error)
    }

    /// Poisons the database unless only room is short.
    pub fn poison_unless_short(&self, error: Error) -> Error {
        if error.is_short() { error } else { self.poison(error) }
    }

    /// The state in home's header, and the session id if the mark is on. The caller holds SHARED or
    /// more.
    pub fn read_state(&self) -> Result<(State, Option<u64>)> {
        let mut first = [0; at::HEADER_BYTES];
        let (first, bytes) = self.read_first(&mut first)?;
        Ok(state_of(first, bytes))
    }

    /// Home's first bytes, fewer if it is shorter, and its length.
    pub fn read_first<'a>(&self, first: &'a mut home::Header) -> Result<(&'a [u8], u64)> {
        let first = read_part(&*self.home, first, 0).context(|| self.what("cannot read"))?;
        let bytes = self.home.len().context(|| self.what("cannot read the length of"))?;
        Ok((first, bytes))
    }

    pub fn read_mark(&self) -> Result<Option<Mark>> {
        let mut first = [0; at::HEADER_BYTES];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        Ok(home::mark(first))
    }

    /// Bytes of home that the device writes all or nothing when aligned; `options` override.
    pub fn atomic_unit(&self, options: &Options) -> u32 {
        if options.atomic_unit != 0 { options.atomic_unit } else { self.home.atomic_unit_bytes() }
    }

    /// Writes the first bytes of home, durable. One sector holds them, so they are whole or as
    /// before.
    pub fn write_header(&self, header: &home::Header) -> Result<()> {
        self.home.write_at(header, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    /// Writes the first bytes of home again, durable: their writer may have died or failed before
    /// the flush.
    pub fn repeat_header(&self) -> Result<()> {
        let mut first = [0; at::HEADER_BYTES];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        self.home.write_at(first, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    /// Asks the system to start writing a slice to the medium.
    pub fn begin_write_back(&self) {
        if let Some((from, to)) = self.write_back.lock().take() {
            self.home.begin_write_back(from, to - from);
        }
    }

    /// Holds PENDING if no other process does: stock SQLite then gets BUSY while home is marked and
    /// in use (rule StockKeptOut), else NOTADB.
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

/// The state of a home with these first bytes and length, and the session id if the mark is on.
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
