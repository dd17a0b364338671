//! One database in one process: the state that its connections share.
//!
//! ```text
//!             first write: go_live                 step_aside
//! UNMARKED ───────────────────────▶ LIVE ───────────────────────▶ ASIDE
//!    ▲  ▲                            │ ▲                            │
//!    │  └── last close: detach ──────┘ └── open of a marked home:   │
//!    │                                     attach, recover          │
//!    └───────────────────── come_back ◀─────────────────────────────┘
//! ```
//!
//! `docs/commit.md` has the table of these states, and of POISONED.
//!
//! Lock order: `writer`, then `inner`, then `table`. The holder of the writer's place holds
//! `writer` while it commits; `inner` is held for moments; `table` for look-ups and publication.

pub mod decide;
pub mod follow;
pub mod identity;
pub mod kept;
pub mod mapped;
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
pub mod state_lock;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::options::{Options, SchemeName};
use crate::base::research;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::database::progress::Sweep;
use crate::database::queue::{ConnectionId, WriterQueue};
use crate::database::scheme::{Facts, Scheme};
use crate::database::state_lock::StateLock;
use crate::disk::image_file::ImageFile;
use crate::disk::stats::{CountedFile, Stats};
use crate::disk::sync::{Mutex, RwLock};
use crate::disk::{Disk, DiskFile, FileId, read_part, system};
use crate::log::file::LogFile;
use crate::log::group::Audience;
use crate::log::record::Encoder;
use crate::log::ring::Log;
use crate::log::several::Undecided;
use crate::pages::image::Image;
use crate::pages::snapshots::Snapshots;
use crate::pages::table::{PageTable, Readers};
use crate::shared::member::{Member, MemberFiles};
use crate::shared::words::RecoveryDebt;
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind, HomeMark, State};

/// See above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    Unmarked,
    Live,
    Aside(ConnectionId),
    Poisoned(String),
}

/// [`Engine::look_after`](crate::Engine::look_after) is due within this time, or never. Whether a
/// thread will call it.
pub type AttachHook = Arc<std::sync::OnceLock<Box<dyn Fn(Option<Duration>) -> bool + Send + Sync>>>;

pub struct Plain {
    first: DatabaseHeader,
    bytes: u64,
    state: Arc<State>,
}

pub struct DatabaseState {
    pub phase: Phase,
    /// Whether it is POISONED.
    has_failed: Arc<AtomicBool>,
    /// The newest visible state (rule SeenWhenDurable). Group and shared words have only its TID,
    /// and learn of it after the readers.
    pub latest: Arc<State>,
    /// The next writer builds on it. States above `latest` wait for their flush.
    pub published: Arc<State>,
    /// States after `latest`, up to `published`, among several processes.
    pub hidden: VecDeque<Arc<State>>,
    pub reserved: Option<ConnectionId>,
    pub snapshots: Snapshots,
    /// Transactions take a count, not a copy.
    pub options: Arc<Options>,
    pub stays_wal: Option<String>,
    pub plain: Option<Plain>,
    pub kept: kept::KeptShared,
    pub connections: usize,
    /// One connection was opened to write: a marked file is recovered here.
    pub recovers: bool,
    /// `None` while this process is alone.
    pub member: Option<Arc<Member>>,
    /// This process has its byte of SHARED (rule StockKeptOut).
    pub kept_stock_out: bool,
    /// The transaction that made home's content at the mark, else [`Tid::HOME`]. Snapshots from
    /// before the mark need it after the slot has moved on.
    pub home_tid: Tid,
    /// Before a new log renumbered the state; else [`Tid::HOME`].
    pub tid_before: Tid,
    pub was_used: bool,
    /// Since this process attached or `idle` changed.
    pub look_is_due: bool,
    pub pace: pace::Pace,
    /// The header with which this process took home out of WAL mode.
    pub left_wal: Option<Box<DatabaseHeader>>,
}

impl DatabaseState {
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.count()
    }

    pub fn set_state(&mut self, state: Arc<State>) {
        self.latest = state.clone();
        self.published = state;
        self.hidden.clear();
    }

    pub fn find_state(&mut self, state: State) {
        if *self.latest != state || !Arc::ptr_eq(&self.latest, &self.published) {
            self.set_state(Arc::new(state));
        }
    }

    pub fn note_plain(&mut self, first: &[u8], bytes: u64) {
        let first = DatabaseHeader::try_from(first).ok().filter(|_| self.latest.kind == FileKind::Database);
        self.plain = first.map(|first| Plain { first, bytes, state: self.latest.clone() });
    }

    /// Whether home, with these first bytes and length, is still plain (rule ModeUnderLock).
    pub fn is_plain(&self, first: &[u8], bytes: u64) -> bool {
        self.plain.as_ref().is_some_and(|plain| plain.first == *first && plain.bytes == bytes) && self.is_still_plain()
    }

    /// The same under a lock kept since.
    pub fn is_still_plain(&self) -> bool {
        let is_newest = |plain: &Plain| Arc::ptr_eq(&plain.state, &self.latest);
        self.plain.as_ref().is_some_and(is_newest) && Arc::ptr_eq(&self.latest, &self.published)
    }

    /// Adds a state for the next writer, of whichever process, not yet for readers.
    pub fn hide(&mut self, state: Arc<State>) {
        self.published = state.clone();
        self.hidden.push_back(state);
    }

    /// Readers see the newest state that is visible to all and known here.
    pub fn advance(&mut self) {
        let Some(visible) = self.member.as_ref().map(|member| member.words.visible()) else { return };
        while self.hidden.front().is_some_and(|state| state.tid <= visible) {
            self.latest = self.hidden.pop_front().unwrap_or_else(|| self.latest.clone());
        }
    }

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

    /// Everything fails in every process: a failed flush is never retried.
    pub fn poison(&mut self, error: Error) -> Error {
        if !keeps(Case::Poisons) {
            return error;
        }
        if let Some(member) = &self.member {
            member.words.poison();
        }
        self.fail(&error);
        error
    }

    pub fn fail(&mut self, error: &Error) {
        self.has_failed.store(true, Ordering::SeqCst);
        if !matches!(self.phase, Phase::Poisoned(_)) {
            self.phase = Phase::Poisoned(error.to_string());
        }
    }

    pub fn is_newest(&self, snapshot: &State) -> bool {
        self.is_newest_tid(snapshot.tid)
    }

    pub fn is_newest_tid(&self, tid: Tid) -> bool {
        let newest = self.published.tid;
        tid == newest || ([Tid::HOME, self.tid_before].contains(&tid) && newest == self.home_tid)
    }
}

/// Used only by the holder of the writer's place.
pub struct LiveDatabase {
    /// As [`Database::member`].
    pub member: Option<Arc<Member>>,
    pub log: Log,
    pub home: HomeFile,
    /// TID of the slot's state, or of one placed since.
    pub home_tid: Tid,
    pub encoder: Encoder,
    /// It lacks counters, the only bytes that most transactions change.
    pub first_page: Option<(Arc<State>, Image)>,
    /// Old images for snapshots.
    pub kept: ImageFile,
    pub scheme: Arc<dyn Scheme>,
    /// Number of flushes when a full ring was last emptied, or the ring begun.
    pub emptied_at: u64,
    pub sweep: Option<Sweep>,
    /// Work that recovery postponed; among several processes, the words hold it.
    pub due: RecoveryDebt,
    pub looked_at: Option<Duration>,
    /// When a commit asked last whether the log was removed.
    pub asked_at: Option<Duration>,
}

impl LiveDatabase {
    pub fn new(log: Log, home: HomeFile, home_tid: Tid, scheme: Arc<dyn Scheme>, stats: &Stats) -> LiveDatabase {
        let (encoder, kept) = (Encoder::default(), ImageFile::default());
        let emptied_at = stats.flushes.load(Ordering::Relaxed);
        let (first_page, due) = (None, RecoveryDebt::default());
        let looked_at = Some(system::clock_rough());
        LiveDatabase {
            member: None,
            log,
            home,
            home_tid,
            encoder,
            first_page,
            kept,
            scheme,
            emptied_at,
            sweep: None,
            due,
            looked_at,
            asked_at: looked_at,
        }
    }

    pub fn member(&self) -> Option<&Member> {
        self.member.as_deref()
    }

    pub fn has_other_processes(&self) -> bool {
        self.member().is_some_and(Member::has_others)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct HomeFile {
    pub mark: HomeMark,
    /// Bytes.
    pub bytes: u64,
    /// Bytes.
    pub reserved_bytes: u64,
    /// Bytes, if aligned.
    pub atomic_unit: u32,
    /// Where the images that an open transaction streamed here end, in bytes; 0: none.
    pub streamed_bytes: u64,
}

impl HomeFile {
    pub fn new(mark: HomeMark, bytes: u64, atomic_unit: u32) -> HomeFile {
        HomeFile { mark, bytes, reserved_bytes: 0, atomic_unit, streamed_bytes: 0 }
    }

    /// Bytes with blocks, or asked for.
    pub fn room_bytes(&self) -> u64 {
        self.bytes.max(self.reserved_bytes)
    }

    /// The file has `bytes` now: blocks behind a nearer end were given back.
    pub fn ends_at(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.reserved_bytes = self.reserved_bytes.min(bytes);
        }
        self.bytes = bytes;
    }
}

/// This process among others, if it is one of several that may be.
pub type MemberGuard = arc_swap::Guard<Option<Arc<Member>>>;

pub type Schemes = fn(SchemeName) -> Arc<dyn Scheme>;

pub struct Database {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    journal_path: PathBuf,
    wal_path: PathBuf,
    pub(crate) home: Arc<dyn DiskFile>,
    /// This process joins others, and neither takes over nor ends their session.
    pub(crate) read_only: bool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) queue: WriterQueue,
    pub(crate) table: RwLock<PageTable>,
    /// This process among others. Changed under the lock of `table`.
    pub(crate) member: ArcSwapOption<Member>,
    /// Grows before bytes that a reader may be reading are overwritten, and again before a cut.
    pub(crate) epoch: AtomicU64,
    /// `PRAGMA synchronous=EXTRA`.
    pub(crate) flushes_close: AtomicBool,
    pub(crate) mappings: mapped::Mappings,
    pub(crate) inner: StateLock,
    has_failed: Arc<AtomicBool>,
    /// The connection that lets no other begin to read; 0: none. Changed under `inner`.
    pub(crate) alone: AtomicU64,
    /// `PRAGMA secure_delete=ON`.
    pub(crate) wipes_log: AtomicBool,
    /// A copy of the option, asked several times in a transaction.
    pub(crate) psow: AtomicBool,
    /// The same.
    pub(crate) stream_bytes: AtomicU64,
    /// The same.
    pub(crate) concurrent: AtomicBool,
    /// The same.
    pub(crate) busy_ms: AtomicU64,
    pub(crate) writer: Mutex<Option<LiveDatabase>>,
    /// Bytes of home for which no write-back was requested.
    pub(crate) write_back: Mutex<Option<(u64, u64)>>,
    /// The last record in the log, until its decision. Its writer keeps the writer's place (rule
    /// PreparedThenDecided).
    pub(crate) undecided: Mutex<Option<Undecided>>,
    /// Several files needed the plain file: the next such transaction waits until it is alone.
    pub(crate) spans_aside: AtomicBool,
    pub(crate) attached: AttachHook,
    pub(crate) tends: AtomicU64,
    /// A change that the header lacks (`session/asked.rs`).
    pub(crate) wal_asked: AtomicU8,
    /// Some processes may still be attached to them.
    pub(crate) lost_logs: Mutex<Vec<LogFile>>,
    schemes: Schemes,
    /// Locked for moments, below every other lock.
    scheme: Mutex<Arc<dyn Scheme>>,
}

impl Database {
    /// Reads nothing yet.
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
        let has_failed = Arc::new(AtomicBool::new(false));
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
            member: ArcSwapOption::empty(),
            epoch: AtomicU64::new(0),
            mappings: mapped::Mappings::default(),
            flushes_close: AtomicBool::new(false),
            wipes_log: AtomicBool::new(false),
            psow: AtomicBool::new(options.psow),
            stream_bytes: AtomicU64::new(options.stream_bytes),
            concurrent: AtomicBool::new(options.concurrent),
            busy_ms: AtomicU64::new(options.busy_ms),
            has_failed: has_failed.clone(),
            alone: AtomicU64::new(0),
            inner: StateLock::new(DatabaseState {
                phase: Phase::Unmarked,
                has_failed,
                latest: empty.clone(),
                published: empty,
                hidden: VecDeque::new(),
                reserved: None,
                snapshots: Snapshots::default(),
                options: Arc::new(options),
                stays_wal: None,
                plain: None,
                kept: kept::KeptShared::default(),
                connections: 0,
                recovers: true,
                member: None,
                kept_stock_out: false,
                home_tid: Tid::HOME,
                tid_before: Tid::HOME,
                was_used: false,
                look_is_due: false,
                pace: pace::Pace::default(),
                left_wal: None,
            }),
            writer: Mutex::new(None),
            write_back: Mutex::new(None),
            undecided: Mutex::new(None),
            spans_aside: AtomicBool::new(false),
            attached: AttachHook::default(),
            tends: AtomicU64::new(0),
            wal_asked: AtomicU8::new(0),
            lost_logs: Mutex::default(),
            schemes,
            scheme,
        }
    }

    /// As it is now. It may end while the guard is held.
    pub fn member(&self) -> MemberGuard {
        self.member.load()
    }

    /// As [`DatabaseState::check`], and without a lock until something has failed.
    pub fn check(&self, member: Option<&Member>) -> Result<()> {
        let has_failed = self.has_failed.load(Ordering::SeqCst) || member.is_some_and(|m| m.words.is_poisoned());
        if has_failed { self.inner.lock().check() } else { Ok(()) }
    }

    pub fn journal_path(&self) -> &Path {
        &self.journal_path
    }

    pub fn wal_path(&self) -> &Path {
        &self.wal_path
    }

    /// Rule SeenWhenDurable.
    pub fn is_told_at_once(&self) -> bool {
        keeps(Case::SeenByAllAtOnce) || !self.table.read().has_layer()
    }

    pub fn files(&self) -> MemberFiles {
        MemberFiles { disk: self.disk.clone(), home: self.home.clone(), read_only: self.read_only }
    }

    pub fn scheme(&self) -> Arc<dyn Scheme> {
        self.scheme.lock().clone()
    }

    /// The scheme of trailers, if built in, to read the content that it left in a file.
    pub fn scheme_with_trailers(&self) -> Option<Arc<dyn Scheme>> {
        research::WITH_TRAILERS.map(self.schemes)
    }

    pub fn facts(&self) -> Facts {
        self.scheme.lock().facts()
    }

    /// The scheme changes only while the database is not live.
    pub fn set_options(&self, inner: &mut DatabaseState, options: Options) {
        if options.bundle.scheme != inner.options.bundle.scheme {
            debug_assert!(inner.phase != Phase::Live, "a live log keeps its scheme");
            *self.scheme.lock() = (self.schemes)(options.bundle.scheme);
        }
        self.psow.store(options.psow, Ordering::Relaxed);
        self.stream_bytes.store(options.stream_bytes, Ordering::Relaxed);
        self.concurrent.store(options.concurrent, Ordering::Relaxed);
        self.busy_ms.store(options.busy_ms, Ordering::Relaxed);
        inner.options = Arc::new(options);
        if inner.phase == Phase::Live {
            inner.look_is_due = true;
            self.look_if_due(inner);
        }
    }

    pub fn begin(&self, inner: &DatabaseState, log: Log, home: HomeFile, home_tid: Tid) -> LiveDatabase {
        let scheme = (self.schemes)(inner.options.bundle.scheme);
        *self.scheme.lock() = scheme.clone();
        LiveDatabase::new(log, home, home_tid, scheme, &self.stats)
    }

    pub fn is_home(&self, id: FileId) -> bool {
        self.home.id().is_ok_and(|home| home == id) || self.takes_name(id)
    }

    pub fn takes_name(&self, id: FileId) -> bool {
        self.scheme().takes_name(id)
    }

    pub fn what(&self, verb: &str) -> String {
        format!("{verb} the database {}", self.path.display())
    }

    pub fn poison(&self, error: Error) -> Error {
        self.inner.lock().poison(error)
    }

    pub fn poison_unless_short(&self, error: Error) -> Error {
        if error.is_short() { error } else { self.poison(error) }
    }

    /// The caller holds SHARED or more. The session id, if the mark is on.
    pub fn read_state(&self) -> Result<(State, Option<u64>)> {
        let mut first = [0; at::HEADER_BYTES];
        let (first, bytes) = self.read_first(&mut first)?;
        Ok(state_of(first, bytes))
    }

    /// The length is home's; fewer bytes come if it is shorter.
    pub fn read_first<'a>(&self, first: &'a mut home::DatabaseHeader) -> Result<(&'a [u8], u64)> {
        let first = read_part(&*self.home, first, 0).context(|| self.what("cannot read"))?;
        let bytes = self.home.len().context(|| self.what("cannot read the length of"))?;
        Ok((first, bytes))
    }

    pub fn read_mark(&self) -> Result<Option<HomeMark>> {
        let mut first = [0; at::HEADER_BYTES];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        Ok(home::mark(first))
    }

    /// Bytes, if aligned; `options` override.
    pub fn atomic_unit(&self, options: &Options) -> u32 {
        if options.atomic_unit != 0 { options.atomic_unit } else { self.home.atomic_unit_bytes() }
    }

    /// Writes durably. One sector holds the bytes, so they are whole or as before.
    pub fn write_header(&self, header: &home::DatabaseHeader) -> Result<()> {
        self.home.write_at(header, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    /// A flush that comes later, or the kernel, makes it durable.
    pub fn write_header_unflushed(&self, header: &[u8]) -> Result<()> {
        self.home.write_at(header, 0).context(|| self.what("cannot write the header of"))?;
        self.home.begin_write_back(0, header.len() as u64);
        Ok(())
    }

    /// Their writer may have died or failed before the flush.
    pub fn repeat_header(&self) -> Result<()> {
        let mut first = [0; at::HEADER_BYTES];
        let first = read_part(&*self.home, &mut first, 0).context(|| self.what("cannot read"))?;
        self.home.write_at(first, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    pub fn begin_write_back(&self) {
        if let Some((from, to)) = self.write_back.lock().take() {
            self.home.begin_write_back(from, to - from);
        }
    }

    /// Any error is a failed flush, also a full disk.
    pub fn sync_home(&self) -> Result<()> {
        self.home.sync().map_err(|error| Error::Io { what: self.what("cannot flush"), error })
    }
}

/// Adds the session id, if the mark is on.
pub fn state_of(first: &[u8], bytes: u64) -> (State, Option<u64>) {
    (State::of_home(first, bytes), home::mark(first).map(|mark| mark.session))
}

impl Audience for Database {
    fn flushed(&self, tid: Tid) {
        if let Some(member) = self.member().as_ref() {
            member.words.raise_flushed(tid);
            member.words.show();
        }
    }

    fn show(&self, state: Arc<State>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        debug_assert!(state.tid <= inner.published.tid, "states are shown in order");
        // Rule SeenWhenDurable.
        if let Some(member) = inner.member.as_ref().filter(|_| self.is_told_at_once()) {
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
