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

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::beside;
use crate::checkpoint::{self, ImageFile, Stream};
use crate::disk::{Disk, DiskFile, FileId, LockKind, OpenMode, system};
use crate::error::{Error, IoContext, Result};
use crate::home::{self, Kind, Mark, State};
use crate::journal::super_journal;
use crate::layout::{BLOCK_BYTES_MIN, home as at};
use crate::log::file::{LogFile, aside_path, is_aside, log_path, path_of_session};
use crate::log::group::Audience;
use crate::log::record::Encoder;
use crate::log::ring::{COUNTER_STEP, Log, TID_STEP, slot_page_count, small_ring_bytes, told_tid};
use crate::log::slot::{Slot, session_after};
use crate::options::{Options, SchemeName};
use crate::procs::kept;
use crate::procs::member::Member;
use crate::procs::tail::Reach;
use crate::queue::{ConnectionId, WriterQueue};
use crate::rules::{Rule, keeps};
use crate::scheme::{Facts, Scheme};
use crate::snapshots::Snapshots;
use crate::stats::{CountedFile, Stats};
use crate::table::{PageTable, Readers};
use crate::types::{LogOffset, Tid};

/// How long other processes are kept from looking at an unmarked home that is about to be marked.
const READERS_LEAVE: Duration = Duration::from_millis(10);

/// Page size that a new database probably gets: SQLite's default. Another one costs two slots.
const PAGE_BYTES_USUAL: u32 = 4096;

/// How long a process that has given home back may still have the log.
const OTHERS_LEAVE: Duration = Duration::from_millis(10);

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

/// What changes under the lock `inner`.
pub struct Inner {
    /// Phase.
    pub phase: Phase,
    /// The newest state readers may see: a crash cannot take it back (under `synchronous=FULL`).
    pub latest: Arc<State>,
    /// The newest state, which the next writer builds on. Those above `latest` wait for their flush.
    pub published: Arc<State>,
    /// Among several processes: the states after `latest`, up to `published`.
    pub hidden: VecDeque<Arc<State>>,
    /// A connection that will step aside keeps the others from beginning to read.
    pub reserved: Option<ConnectionId>,
    /// Pinned snapshots.
    pub snapshots: Snapshots,
    /// Settings in force.
    pub options: Options,
    /// Why the file was left in WAL mode, when this process last looked at one that is.
    pub stays_wal: Option<String>,
    /// The connection that lets no other begin to read.
    pub alone: Option<ConnectionId>,
    /// Open connections.
    pub connections: usize,
    /// One of them was opened to write: if nobody uses a marked file, it is recovered here.
    pub recovers: bool,
    /// This process among those that use the log; `None` while it has the file to itself.
    pub member: Option<Arc<Member>>,
    /// The transaction that made what home held when this process marked it: [`Tid::HOME`] until then.
    pub home_tid: Tid,
}

impl Inner {
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
            _ if self.member.as_ref().is_some_and(|member| member.words.is_poisoned()) => {
                Err(Error::Poisoned("in another process".into()))
            }
            _ => Ok(()),
        }
    }

    /// From now on everything fails, in every process (a failed flush is never retried).
    pub fn poison(&mut self, error: Error) -> Error {
        if !keeps(Rule::Poisons) {
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
        let newest = self.published.tid;
        snapshot.tid == newest || (snapshot.tid == Tid::HOME && newest == self.home_tid)
    }
}

/// What only the holder of the writer's place uses, while the database is live.
pub struct Live {
    /// The log.
    pub log: Log,
    /// Home's mark and length.
    pub home: HomeFile,
    /// TID of the state in home.
    pub home_tid: Tid,
    /// Buffer for the record being built.
    pub encoder: Encoder,
    /// Images kept for snapshots.
    pub kept: ImageFile,
    /// How commits become durable, and what that has under way.
    pub scheme: Arc<dyn Scheme>,
    /// How many flushes there had been when the ring was emptied last because it was full, or begun.
    pub emptied_at: u64,
}

impl Live {
    /// A log and a home of which nothing is under way.
    pub fn new(log: Log, home: HomeFile, home_tid: Tid, scheme: Arc<dyn Scheme>, stats: &Stats) -> Live {
        let (encoder, kept) = (Encoder::default(), ImageFile::default());
        let emptied_at = stats.flushes.load(Ordering::Relaxed);
        Live { log, home, home_tid, encoder, kept, scheme, emptied_at }
    }
}

/// A log without records, for a file that is about to be marked.
struct Found {
    log: LogFile,
    /// The newest slot that was in it.
    newest: Option<Slot>,
    /// It is new, and nothing of it is flushed.
    created: bool,
}

/// What is known of a marked home.
#[derive(Clone, Copy, Debug)]
pub struct HomeFile {
    /// What the mark says.
    pub mark: Mark,
    /// Length in bytes.
    pub bytes: u64,
    /// Room asked for, in bytes.
    pub reserved_bytes: u64,
    /// Bytes of it that the device writes all or nothing when aligned.
    pub atomic_unit: u32,
}

/// A database.
pub struct Database {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    journal_path: PathBuf,
    pub(crate) home: Arc<dyn DiskFile>,
    /// Home cannot be written by this process: it joins others, and neither takes their place nor ends their session.
    pub(crate) read_only: bool,
    pub(crate) stats: Arc<Stats>,
    pub(crate) queue: WriterQueue,
    pub(crate) table: RwLock<PageTable>,
    /// Grows before bytes that a reader may be reading are overwritten, and again before they are cut off.
    pub(crate) epoch: AtomicU64,
    pub(crate) inner: Mutex<Inner>,
    pub(crate) writer: Mutex<Option<Live>>,
    /// Makes a scheme by its name.
    schemes: fn(SchemeName) -> Arc<dyn Scheme>,
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
        schemes: fn(SchemeName) -> Arc<dyn Scheme>,
    ) -> Database {
        let scheme = Mutex::new(schemes(options.scheme));
        let stats = Arc::new(Stats::default());
        let empty = Arc::new(State::empty(Tid::HOME));
        let mut journal_path = path.as_os_str().to_owned();
        journal_path.push(crate::layout::JOURNAL_SUFFIX);
        Database {
            disk,
            path: path.to_owned(),
            journal_path: journal_path.into(),
            home: CountedFile::wrap(home, stats.clone()),
            read_only: false,
            stats,
            queue: WriterQueue::default(),
            table: RwLock::default(),
            epoch: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                phase: Phase::Unmarked,
                latest: empty.clone(),
                published: empty,
                hidden: VecDeque::new(),
                reserved: None,
                snapshots: Snapshots::default(),
                options,
                stays_wal: None,
                alone: None,
                connections: 0,
                recovers: true,
                member: None,
                home_tid: Tid::HOME,
            }),
            writer: Mutex::new(None),
            schemes,
            scheme,
        }
    }

    /// Path of the real rollback journal.
    pub fn journal_path(&self) -> &Path {
        &self.journal_path
    }

    /// The scheme in force.
    pub fn scheme(&self) -> Arc<dyn Scheme> {
        self.scheme.lock().clone()
    }

    /// What is to be known of it.
    pub fn facts(&self) -> Facts {
        self.scheme.lock().facts()
    }

    /// Other settings, for a database that is not live if they are of another scheme.
    pub fn set_options(&self, inner: &mut Inner, options: Options) {
        if options.scheme != inner.options.scheme {
            debug_assert!(inner.phase != Phase::Live, "a live log keeps its scheme");
            *self.scheme.lock() = (self.schemes)(options.scheme);
        }
        inner.options = options;
    }

    /// What the holder of the writer's place uses of a log that is taken into use: of the scheme, too, nothing is under way.
    pub fn begin(&self, inner: &Inner, log: Log, home: HomeFile, home_tid: Tid) -> Live {
        let scheme = (self.schemes)(inner.options.scheme);
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

    /// From now on everything fails (a failed flush is never retried).
    pub fn poison(&self, error: Error) -> Error {
        self.inner.lock().poison(error)
    }

    /// Poisons the database unless the error says only that room is short.
    pub fn poison_unless_short(&self, error: Error) -> Error {
        if error.is_short() { error } else { self.poison(error) }
    }

    /// Pins the newest state for a reader, after following what other processes committed.
    pub fn pin(&self, inner: &mut Inner) -> Result<Arc<State>> {
        self.pin_newest(inner, Reach::Visible)
    }

    /// Pins the newest state for the holder of the writer's place.
    pub fn pin_published(&self, inner: &mut Inner) -> Result<Arc<State>> {
        self.pin_newest(inner, Reach::Written)
    }

    fn pin_newest(&self, inner: &mut Inner, reach: Reach) -> Result<Arc<State>> {
        let state = match (inner.member.clone(), reach) {
            (Some(member), _) => self.pin_shared(&member, inner, reach)?,
            (None, Reach::Visible) => inner.latest.clone(),
            (None, Reach::Written) => inner.published.clone(),
        };
        Ok(self.count_pin(inner, state))
    }

    /// Pins a state whose images are all still there: this process has the writer's place.
    pub fn pin_state(&self, inner: &mut Inner, state: Arc<State>) -> Arc<State> {
        if let Some(member) = inner.member.as_ref().filter(|_| !inner.snapshots.has(state.tid)) {
            member.announce_unseen(state.tid);
        }
        self.count_pin(inner, state)
    }

    fn count_pin(&self, inner: &mut Inner, state: Arc<State>) -> Arc<State> {
        inner.snapshots.pin(state.tid);
        Stats::add(&self.stats.snapshots, 1);
        state
    }

    /// Gives a snapshot back.
    pub fn unpin(&self, inner: &mut Inner, state: &State) -> Result<()> {
        self.stats.snapshots.fetch_sub(1, Ordering::Relaxed);
        if inner.snapshots.unpin(state.tid) {
            if let Some(member) = &inner.member {
                member.withdraw(state.tid);
            }
            if self.table.read().should_trim() {
                self.table.write().trim(inner.readers());
            }
        }
        if inner.phase == Phase::Unmarked && inner.snapshots.is_empty() {
            crate::locks::none(&*self.home)?;
        }
        Ok(())
    }

    /// What home's first bytes say, and the session id if the mark is on. The caller holds SHARED or more.
    pub fn read_state(&self) -> Result<(State, Option<u64>)> {
        let mut first = [0; at::HEADER_BYTES];
        let n = self.home.read_at(&mut first, 0).context(|| self.what("cannot read"))?;
        let first = first.get(..n).unwrap_or_default();
        let bytes = self.home.len().context(|| self.what("cannot read the length of"))?;
        Ok((State::of_home(first, bytes), home::mark(first).map(|mark| mark.session)))
    }

    /// Whether a rollback journal of a crashed stock SQLite waits to be rolled back.
    pub fn has_hot_journal(&self) -> Result<bool> {
        let what = || self.what("cannot look for the rollback journal of");
        let path = self.journal_path();
        if !self.disk.exists(path).context(what)? {
            return Ok(false);
        }
        if !self.has_name()? {
            return Ok(false); // It is that of the file that has the name.
        }
        let journal = match self.open_journal(OpenMode::ReadOnly, what) {
            Ok(journal) => journal,
            Err(Error::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        let mut first = [0];
        Ok(journal.read_at(&mut first, 0).context(what)? == 1 && first != [0])
    }

    /// Opens the real rollback journal. `what` says what cannot be done.
    pub fn open_journal(&self, mode: OpenMode, what: impl FnOnce() -> String) -> Result<Arc<dyn DiskFile>> {
        beside::open(&*self.disk, self.journal_path(), mode, &*self.home, what)
    }

    /// Before SQLite judges a journal by whether the super-journal that it names is there: what was done to that name
    /// stays so through a power cut (rule SuperJournalNameFlushed). Else the first file would be kept as committed, and
    /// the next one rolled back after it.
    pub fn settle_super_journal(&self) -> Result<()> {
        let what = || self.what("cannot read the rollback journal of");
        let journal = self.open_journal(OpenMode::ReadOnly, what)?;
        let len = journal.len().context(what)?;
        let named = super_journal(len, |buf, offset| journal.read_at(buf, offset).context(what))?;
        match named.map(|path| self.disk.sync_dir_of(&path)) {
            Some(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(self.what("cannot flush the directory of the super-journal of"), e))
            }
            _ => Ok(()),
        }
    }

    /// Where the log of `session` is.
    pub fn path_of_log(&self, session: u64) -> Result<PathBuf> {
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        Ok(path_of_session(&*self.disk, &self.path, home, session))
    }

    /// The mark of home, if it is on.
    pub fn read_mark(&self) -> Result<Option<Mark>> {
        let mut first = [0; at::HEADER_BYTES];
        let read = self.home.read_at(&mut first, 0).context(|| self.what("cannot read"))?;
        Ok(home::mark(first.get(..read).unwrap_or_default()))
    }

    /// Whether the name of the database leads to the file that was opened.
    pub fn has_name(&self) -> Result<bool> {
        let what = || self.what("cannot look at");
        let named = self.disk.identify(&self.path).context(what)?;
        let Some(named) = named else { return Ok(false) };
        // Two files may take turns in having the name.
        Ok(named == self.home.id().context(what)? || self.takes_name(named))
    }

    /// `Moved` if another file may have the name: what lies beside that is not this one's (rule LostNameNotMarked).
    pub fn check_name(&self) -> Result<()> {
        if self.has_name()? {
            return Ok(());
        }
        Err(Error::Moved(format!(
            "{} is another file now than the one that was opened, which was renamed or replaced: close it and open it again",
            self.path.display()
        )))
    }

    /// UNMARKED → LIVE. The caller has the writer's place and a snapshot (so SHARED is held). `Busy` while others read:
    /// RESERVED stays, so that of several processes that try this one gets on; the caller gives it back when it gives
    /// up.
    pub fn go_live(&self, writer: &mut MutexGuard<'_, Option<Live>>, inner: &mut Inner) -> Result<()> {
        if !crate::locks::reserve(&*self.home)? {
            return Err(Error::Busy(format!("another process is about to write {}", self.path.display())));
        }
        // Long enough for those that only look; who reads for longer is not kept from it.
        let patience = READERS_LEAVE.min(Duration::from_millis(inner.options.busy_ms));
        if !crate::locks::exclusive_from_reserved(&*self.home, patience)? {
            return Err(Error::Busy(format!(
                "the database {} is in use by another process without onewrite",
                self.path.display()
            )));
        }
        let made = self.place_mark(inner);
        // SHARED stays: it keeps stock writers out for as long as the mark is on.
        crate::locks::downgrade(&*self.home)?;
        let made = made?;
        self.share(made, writer, inner)
    }

    /// This process alone has made `live`, with every lock of the log: from here on others may join, unless the
    /// scheme takes the file for one process.
    pub fn share(&self, live: Live, writer: &mut MutexGuard<'_, Option<Live>>, inner: &mut Inner) -> Result<()> {
        let (slot, log) = (live.log.slot().clone(), live.log.file().clone());
        inner.phase = Phase::Live;
        inner.home_tid = slot.base_tid;
        inner.set_state(Arc::new(State { tid: slot.base_tid, ..(*inner.latest).clone() }));
        **writer = Some(live);
        if self.facts().all_in_log() && !inner.options.concurrent {
            let options = inner.options.clone();
            self.enrol(Member::found(self, log, &slot, &options)?, inner);
        }
        Ok(())
    }

    /// This process is one of several from now on.
    pub fn enrol(&self, member: Option<Arc<Member>>, inner: &mut Inner) {
        if let Some(member) = &member {
            inner.snapshots.tids().for_each(|tid| member.announce_unseen(tid));
        }
        self.table.write().member = member.clone();
        inner.member = member;
    }

    /// The opposite of [`Database::enrol`]; every lock of the log goes.
    pub fn quit(&self, inner: &mut Inner) -> Result<()> {
        self.table.write().member = None;
        inner.home_tid = Tid::HOME;
        inner.member.take().map_or(Ok(()), |member| member.leave_for_good())
    }

    /// Order (invariant I3): log created, synced with its directory → slot, flushed → mark, flushed.
    fn place_mark(&self, inner: &mut Inner) -> Result<Live> {
        // Nobody opens a file again that has no name: its log needs none, and what has the name is another's.
        let unlinked = self.home.is_unlinked().context(|| self.what("cannot look at"))?;
        if !unlinked {
            self.check_name()?;
        }
        if self.has_hot_journal()? {
            return Err(Error::Busy("a rollback journal waits to be rolled back".into()));
        }
        let state = inner.published.clone();
        let (options, facts) = (&inner.options, self.facts());
        let unit = self.atomic_unit(options);
        let block_bytes = unit.clamp(BLOCK_BYTES_MIN, crate::layout::BLOCK_BYTES_MAX);
        let Found { log, newest: old, created } = match unlinked {
            true => Found { log: self.nameless_log(block_bytes)?, newest: None, created: true },
            false => self.usable_log(block_bytes, &state)?,
        };
        let log = LogFile { file: CountedFile::wrap(log.file, self.stats.clone()), path: log.path };
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        if created {
            log.note_first_home(home)?
        } else {
            log.note_home(home)?
        }
        // What a process before left unflushed when it died must not come back beside the new mark: a rollback
        // journal it removed, cut or zeroed, the mark it took off while its slot, which goes now, was the newest.
        if !unlinked {
            match self.disk.remove(self.journal_path()) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io(self.what("cannot remove the rollback journal of"), e)),
            }
            // Home is whole: a second file that a close left means nothing.
            beside::remove_second(&*self.disk, &self.path)?;
        }
        if !unlinked && keeps(Rule::LogBeforeMark) {
            self.disk.sync_dir_of(&self.path).context(|| self.what("cannot flush the directory of"))?;
        }
        if old.as_ref().is_some_and(|slot| slot.live) {
            let mut first = [0; at::HEADER_BYTES];
            let n = self.home.read_at(&mut first, 0).context(|| self.what("cannot read"))?;
            self.home.write_at(first.get(..n).unwrap_or_default(), 0).context(|| self.what("cannot write"))?;
            self.sync_home()?;
        }
        // How much of the ring the close before has overwritten; `None`: nobody has. It was not flushed, so a power cut
        // may have brought some of it back: what is still in the cache alone becomes durable with the slot
        // (rule LogWiped).
        let used = old.as_ref().map_or(Some(0), |slot| (slot.zeroed && !slot.live).then_some(slot.start.0));
        let ring_bytes = small_ring_bytes(block_bytes);
        if let (Some(used), Some(slot)) = (used, &old) {
            log.wipe(slot, used.min(ring_bytes))?;
        }
        // The session of a log that was closed in order is durable, and so is its end: nothing of it can be missed. Nor is
        // its slot, when the rest of a longer ring is cut off (rule LogGivenBack).
        let follows = old.as_ref().filter(|slot| used.is_some() && !slot.live && slot.ring_bytes == ring_bytes);
        let follows = follows.filter(|_| facts.all_in_log() && state.kind == Kind::Database);
        let session = follows.map_or_else(random, |before| Ok(session_after(before.session, random()?)))?;
        // Home may have changed without a number since the last transaction: its state gets one of its own
        // (rule CacheKnowsItsState).
        let base_tid = Tid(old.as_ref().map_or(0, |s| s.tid_ceiling.0)).next();
        let slot = Slot {
            block_bytes,
            sequence: old.as_ref().map_or(0, |s| s.sequence),
            session,
            salt: random()?,
            start: LogOffset(0),
            ring_bytes,
            base_tid,
            tid_ceiling: Tid(base_tid.0.saturating_add(TID_STEP)),
            prev_crc: 0,
            page_bytes: if state.page_bytes == 0 { PAGE_BYTES_USUAL } else { state.page_bytes },
            page_count: slot_page_count(&state, facts),
            change_counter: state.change_counter,
            counter_ceiling: state.change_counter.wrapping_add(COUNTER_STEP),
            live: true,
            zeroed: used.is_some(),
            in_place: facts.in_place,
        };
        let tentative = follows.is_some();
        let mut log = match tentative {
            true => Log::begin(log, slot, options.psow)?,
            false => Log::start(log, slot, options.psow, created || used.is_some_and(|used| used > 0))?,
        };
        if old.as_ref().is_some_and(|slot| slot.live) {
            log.distrust_older_slot();
        }
        if !created && old.is_some_and(|slot| slot.ring_bytes > ring_bytes) {
            log.repeat_slot()?;
        }
        log.stream_reset()?;
        let mark = Mark { tentative, ..Mark::new(session, told_tid(log.slot(), facts)) };
        let marked = state.marked_or_empty(mark);
        let written = match keeps(Rule::MarkBeforeRecord) {
            true => self.write_header(&marked),
            false => self.home.write_at(&marked, 0).context(|| self.what("cannot write the header of")),
        };
        if let Err(e) = written {
            // The mark may be in the cache and not on the disk: nothing may be committed under it. A full
            // disk has not taken all of it.
            if !matches!(e, Error::Full(_)) {
                inner.phase = Phase::Poisoned(e.to_string());
            }
            return Err(e);
        }
        let bytes = self.home.len().context(|| self.what("cannot read the length of"))?;
        let home = HomeFile { mark, bytes, reserved_bytes: 0, atomic_unit: unit };
        let home_tid = log.slot().base_tid;
        Ok(self.begin(inner, log, home, home_tid))
    }

    /// Bytes of home that the device writes all or nothing when aligned, unless `options` know better.
    pub fn atomic_unit(&self, options: &Options) -> u32 {
        if options.atomic_unit != 0 { options.atomic_unit } else { self.home.atomic_unit_bytes() }
    }

    /// The log of the right name, locked for this process, long enough and without records of anyone; created where
    /// needed. With the newest slot that was there. The caller has EXCLUSIVE on home, which is not marked and has its name: so
    /// a log that is locked, or that holds what its home needs, is that of another file, which had the name before and was
    /// renamed, removed or replaced. It is set aside, where [`path_of_session`] finds it (rule ForeignLogSetAside).
    fn usable_log(&self, block_bytes: u32, state: &State) -> Result<Found> {
        let path = &log_path(&self.path);
        let what = || format!("cannot open the log {}", path.display());
        let file = match self.disk.open_beside(path, OpenMode::ReadWrite, None) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return self.create_log(path, block_bytes, None);
            }
            Err(e) => {
                let refused = e.kind() == std::io::ErrorKind::PermissionDenied;
                let error = beside::refused(what(), e);
                // Not needed, nor known: the name is all that is asked of it.
                return match refused && self.set_aside(path, None, random()?).is_ok() {
                    true => self.create_log(path, block_bytes, None),
                    false => Err(error),
                };
            }
        };
        let log = LogFile { file, path: path.clone() };
        let locked = lock_log(&log, LockKind::Exclusive, OTHERS_LEAVE);
        let newest = log.slots()?.into_iter().next();
        let busy = match (locked, &newest) {
            (Ok(()), _) => false,
            (Err(Error::Busy(_)), Some(_)) => true,
            (Err(e), _) => return Err(e),
        };
        if let Some(slot) = newest.as_ref().filter(|slot| busy || slot.live) {
            // Counters go on by two as the mark comes off, and not at all until it is on.
            if busy || !self.has_ended(&log, slot, state)? {
                self.set_aside(path, Some(&log), slot.session)?;
                if !busy {
                    kept::remove(&*self.disk, path, slot.session)?;
                }
                return self.create_log(path, block_bytes, newest);
            }
        }
        let is_long_enough = |s: &Slot| s.ring_bytes >= small_ring_bytes(block_bytes) && s.block_bytes == block_bytes;
        if newest.as_ref().is_some_and(is_long_enough) {
            // It is this database's: one that admits more is shut.
            beside::open(&*self.disk, path, OpenMode::ReadWrite, &*self.home, what)?;
            return Ok(Found { log, newest, created: false });
        }
        drop(log);
        self.create_log(path, block_bytes, newest)
    }

    /// Whether the live `slot` is of a session that took the mark off this home, and lost what it did to its log then: every
    /// record is home (rule CloseWithoutSlot).
    fn has_ended(&self, log: &LogFile, slot: &Slot, state: &State) -> Result<bool> {
        // Counters go on by two as the mark comes off, and not at all until it is on.
        let ends = |counter: u32| state.change_counter.wrapping_sub(counter) <= 2;
        let mut counter = slot.change_counter;
        let end = log.scan(slot, |record| {
            counter = record.head.change_counter;
            Ok(())
        })?;
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        Ok(ends(counter) && (end.is_empty() || (end.rot.is_none() && log.noted_home()? == Some(home.ino))))
    }

    /// Gives the log at `path`, which is another database's, a name of its own.
    fn set_aside(&self, path: &Path, log: Option<&LogFile>, session: u64) -> Result<()> {
        let aside = aside_path(path, session);
        let what = || format!("cannot set the log {} aside as {}", path.display(), aside.display());
        self.check_name()?;
        if let Some(log) = log
            && self.disk.identify(path).context(what)? != Some(log.file.id().context(what)?)
        {
            return Err(Error::Busy(format!("the log {} was just replaced", path.display())));
        }
        self.disk.rename(path, &aside).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Error::CantOpen(format!("{}: {e}. Move that file away", what())),
            _ => Error::io(what(), e),
        })
    }

    /// A log for a file that no name leads to.
    fn nameless_log(&self, block_bytes: u32) -> Result<LogFile> {
        let path = log_path(&self.path);
        let file = self.disk.temp_file(&self.path).context(|| format!("cannot create the log {}", path.display()))?;
        let log = Log::create(LogFile { file, path }, small_ring_bytes(block_bytes), block_bytes)?;
        lock_log(&log, LockKind::Exclusive, Duration::ZERO)?;
        Ok(log)
    }

    fn create_log(&self, path: &Path, block_bytes: u32, newest: Option<Slot>) -> Result<Found> {
        let what = || format!("cannot create the log {} in the directory of the database", path.display());
        let file = beside::open(&*self.disk, path, OpenMode::Create, &*self.home, what)?;
        match Log::create(LogFile { file, path: path.to_owned() }, small_ring_bytes(block_bytes), block_bytes) {
            Ok(log) => {
                lock_log(&log, LockKind::Exclusive, Duration::ZERO)?;
                Ok(Found { log, newest, created: true })
            }
            Err(e) => {
                // A log cut short by a full disk must not stay and hold the last free blocks.
                let _ = self.disk.remove(path);
                Err(e)
            }
        }
    }

    /// Writes the first bytes of home, durable. They lie in one sector, so they are whole or as before.
    pub fn write_header(&self, header: &home::Header) -> Result<()> {
        self.home.write_at(header, 0).context(|| self.what("cannot write the header of"))?;
        self.sync_home()
    }

    /// Flushes home. Any error is a failed flush, also one that says the disk is full.
    pub fn sync_home(&self) -> Result<()> {
        self.home.sync().map_err(|error| Error::Io { what: self.what("cannot flush"), error })
    }

    /// LIVE → UNMARKED: the checkpoint is done, the mark comes off, the log is invalidated (in this
    /// order, each flushed before the next). SHARED stays as it is, and what streamed behind the ring if `stream` says so.
    pub fn take_off_mark(&self, writer: &mut Option<Live>, inner: &mut Inner, stream: Stream) -> Result<()> {
        let Some(live) = writer.as_mut() else { return Ok(()) };
        live.scheme.clone().detach(self, live, None)?;
        // Not behind the mark: nobody knows the session then.
        let removed = kept::remove(&*self.disk, &live.log.file().path, live.home.mark.session);
        let state = inner.latest.clone();
        if state.kind == Kind::Empty {
            self.home.set_len(0).context(|| self.what("cannot write"))?;
            self.sync_home()?;
        } else {
            // A checkpoint leaves the pages behind the end that snapshots read, and recovery what it found.
            if live.home.bytes != state.bytes() || live.home.reserved_bytes > 0 {
                self.home.set_len(state.bytes()).context(|| self.what("cannot fit the length of"))?;
            }
            self.write_header(&state.final_header())?;
        }
        live.log.invalidate(stream)?;
        removed?;
        self.remove_aside(live)?;
        *writer = None;
        self.table.write().clear();
        self.quit(inner)?;
        inner.phase = Phase::Unmarked;
        inner.set_state(Arc::new(self.read_state()?.0));
        Ok(())
    }

    /// Removes the log, which nobody else uses and nobody needs any more, if its name was needed for that of another database.
    fn remove_aside(&self, live: &Live) -> Result<()> {
        let log = live.log.file();
        let what = || format!("cannot remove the log {}", log.path.display());
        let id = log.file.id().context(what)?;
        for path in [log.path.clone(), aside_path(&log.path, live.home.mark.session)] {
            if is_aside(&path) && self.disk.identify(&path).context(what)? == Some(id) {
                self.disk.remove(&path).context(what)?;
            }
        }
        Ok(())
    }

    /// LIVE → UNMARKED with the file still open, so that the next write starts with other options. `Busy` if another
    /// process has it open.
    pub fn detach_for_options(&self) -> Result<()> {
        let member = self.member();
        if let Some(member) = &member {
            self.be_alone(member, std::time::Duration::ZERO)?;
            if let Err(e) = self.enter(true, std::time::Instant::now()) {
                member.not_alone()?;
                return Err(e);
            }
        }
        let done = self.unmark_alone();
        if let (Err(_), Some(member)) = (&done, member.filter(|_| self.member().is_some())) {
            // Still live: others may come again.
            self.leave(false);
            member.not_alone()?;
        }
        done
    }

    fn unmark_alone(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        if let Some(live) = writer.as_mut() {
            checkpoint::bring_home(self, live)?;
        }
        let mut inner = self.inner.lock();
        // Cut short, nobody knows whether the mark is on, nor which name leads where.
        self.take_off_mark(&mut writer, &mut inner, Stream::Drop).map_err(|e| inner.poison(e))?;
        crate::locks::none(&*self.home)
    }

    /// The last connection closes: home becomes a plain, complete file again.
    pub fn detach(&self) -> Result<()> {
        let live = self.inner.lock().phase == Phase::Live;
        let last = if live { self.is_last() } else { Ok(true) };
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        if !matches!(last, Ok(true)) || inner.check().is_err() {
            // Others go on, or recovery does.
            *writer = None;
            self.quit(&mut inner)?;
            inner.phase = match &inner.phase {
                Phase::Live => Phase::Unmarked,
                other => other.clone(),
            };
            crate::locks::none(&*self.home)?;
            return last.map(drop);
        }
        if inner.phase == Phase::Live {
            let sticky = inner.options.sticky;
            drop(inner);
            if !keeps(Rule::MarkOffLast) {
                let header = self.inner.lock().latest.final_header();
                self.write_header(&header)?;
            }
            if let Some(live) = writer.as_mut() {
                match sticky {
                    true => checkpoint::checkpoint(self, live, Stream::Drop)?,
                    false => checkpoint::bring_home(self, live)?,
                }
            }
            inner = self.inner.lock();
            if !sticky {
                self.take_off_mark(&mut writer, &mut inner, Stream::Drop)?;
            } else if let Some(live) = writer.as_mut() {
                live.scheme.clone().detach(self, live, Some(&inner.latest))?;
                if live.home.reserved_bytes > 0 {
                    // Gives back the room that was asked for and not used.
                    self.home.set_len(live.home.bytes).context(|| self.what("cannot fit the length of"))?;
                }
            }
        }
        *writer = None;
        self.quit(&mut inner)?;
        crate::locks::none(&*self.home)
    }
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
        // Others see a big transaction only once it is home.
        let home_first = self.table.read().has_layer() && keeps(Rule::BigHomeFirst);
        let words = inner.member.as_ref().filter(|_| !home_first).map(|member| &member.words);
        if let Some(words) = words {
            words.raise_written(state.tid);
            words.show();
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

/// Takes the locks by which one process has a log to itself; shared, to read it while nobody uses it. `Busy` if somebody
/// does for longer than `patience`.
pub fn lock_log(log: &LogFile, kind: LockKind, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !crate::procs::member::try_alone(log, kind)? {
        if Instant::now() >= deadline {
            return Err(Error::Busy(format!(
                "another process has this database open through onewrite (it holds the log {})",
                log.path.display()
            )));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// A random number from the operating system.
pub fn random() -> Result<u64> {
    system::random().context(|| "cannot get a random number from the system".into())
}
