//! Shipping: at each interval the pages that differ from the store's state become its next file.
//!
//! Hashes of all pages show the difference, however the pages were changed: through onewrite, by
//! stock SQLite, by VACUUM, by another file under this name. After a start or an error the hashes
//! are those of the store's files, so the store alone has the position, and a killed process leaves
//! no gap.
//!
//! A [`StoreClaim`] guards each new file: it reports when the store belongs to another process.

mod background;
mod beside;
#[cfg(test)]
mod sim;

use crate::compact::{Copy, Levels, Recent, Tee, many_wait, waits_for_snapshot};
use crate::ending::moved;
use crate::fence::{self, ClaimMode, Fenced, Node, Put, StoreClaim, check_is_free};
use crate::fetch::Damaged;
use crate::ltx::{self, Header, Merge, Reader, Writer};
use crate::plan::{self, Target, look_at, onward, plan};
use crate::promote::check_ended;
use crate::report::{COUNTERS, Level, now_ms, say};
use crate::rules::{Rule, keeps};
use crate::source::{KeptConnection, LogPosition, Mark, RestMark, Session, Source, StateDiff, is_signed};
use crate::state::{HashedState, PageHash, byte_bar, hash, index, page_bar};
use crate::store::{BATCHES, Entry, Name, SNAPSHOTS, Store, is_away_or_full};
use crate::times::millis;
use anyhow::{Context, Result, bail, ensure};
use background::Background;
pub use background::MergeWork;
use beside::Beside;
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pause between two rounds of merging and removing, and before a failed snapshot or round is tried
/// again.
const TIDY_EVERY: Duration = Duration::from_secs(1);
const TIDY_AFTER_ERROR: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(60) };
/// Time between two looks at the owner and for the batches of meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The same where commits wait for the store.
const LOOK_EVERY_SYNC: Duration = Duration::from_secs(1);
/// With `--sync`: commits begin to wait once all changes are shipped within this time, or after so
/// many attempts: each ships what was changed during the one before.
const FILLED: Duration = Duration::from_secs(1);
const FILLS_MAX: u32 = 8;
/// With `--sync`: longest wait for committers that the last batch let go on.
const GATHER_MAX: Duration = Duration::from_millis(20);
/// Files removed in one round, so that the next batch need not wait.
const REMOVED_AT_ONCE: usize = 64;
/// Attempts at reading the store's newest state, each behind a listing.
const READS: u32 = 2;
/// Longest time that the shipper stays among the database's processes.
const STAYS_MAX: Duration = Duration::from_secs(1);

/// A database whose files lie there as before is opened this often.
const REST_MAX: Duration = Duration::from_secs(60);
/// All pages are compared this often: a write past SQLite's locks is in no log.
const COMPARE_EVERY: Duration = Duration::from_secs(600);

/// How to ship.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time after which every page is shipped again.
    pub snapshot_interval: Duration,
    /// When files are merged and removed; `None`: never.
    pub levels: Option<Levels>,
    /// How long commits wait for the store at most; `None`: they do not wait.
    pub sync: Option<Duration>,
    /// Where files are merged and removed.
    pub merges: Merges,
    /// Stays among the database's processes between two looks, while each look finds commits.
    pub stays: bool,
}

/// Where files are merged and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merges {
    /// At the end of each step.
    InStep,
    /// On a thread of the shipper's, so that no batch waits.
    OnThread,
    /// By the caller, on any thread: [`Shipper::merge_work`].
    ByCaller,
}

/// Ships one database into one store.
pub struct Shipper {
    file: PathBuf,
    store: Arc<dyn Store>,
    settings: Settings,
    claim: StoreClaim,
    recent: Recent,
    bad: BTreeSet<Name>,
    tidy_at: Instant,
    trouble: Option<String>,
    snapshot_failed: Option<Instant>,
    /// The store's state; unknown at the start and after an error.
    at: Option<At>,
    /// The newest state that was looked at and that the store has.
    seen: Option<Mark>,
    /// The store was away or full in the last step: the position is checked before it is used.
    was_away: bool,
    /// The newest state that was shipped, kept after an error.
    shipped: Option<Mark>,
    /// The database's files when it was last opened and found unchanged, and when that was.
    rest: Option<(RestMark, Instant)>,
    /// The connection by which the shipper stays among the database's processes.
    kept: KeptConnection,
    stays_since: Option<Instant>,
    /// `Some` with `--sync`.
    session: Option<Session>,
    /// With `--sync`: steps in which commits do not wait, since the store has too little of the
    /// database.
    filling: u32,
    look: LastLook,
    /// The store heeds the conditions of requests.
    heeds: bool,
    /// `Some`: batches do not wait for merging and removing.
    background: Option<Background>,
    /// The snapshot that is being made beside the batches.
    beside: Option<Beside>,
    /// No snapshot begins any more.
    ends: bool,
    /// Transactions that will probably wait before long.
    expected: u64,
    took: Duration,
    /// The database's transaction that the store has, since a batch of this process.
    tid: Option<u64>,
}

/// The last look at the owner and for batches.
struct LastLook {
    at: Instant,
    every: Duration,
    /// The newest transaction then.
    txid: u64,
}

struct At {
    txid: u64,
    last: Option<Name>,
    /// `None`: no files, or files that make no state.
    state: Option<HashedState>,
    /// Where that state was read in the database's log.
    place: Option<LogPosition>,
    compared: Instant,
    files: Vec<Entry>,
    last_ms: i64,
}

impl At {
    fn add(&mut self, entry: Entry) {
        let place = self.files.partition_point(|other| other.name < entry.name);
        // Listed after it was made.
        if self.files.get(place).is_none_or(|other| other.name != entry.name) {
            self.files.insert(place, entry);
        }
    }
}

struct NextFile<'a> {
    name: Name,
    size: (u32, u32),
    pages: &'a [u32],
    /// Images of `pages`, if they are in memory.
    images: Option<Vec<u8>>,
    hashes: &'a [PageHash],
    time_ms: i64,
}

/// Compares `source` with the state `before`: the pages that the log has `told` of, or all.
fn compare(at: &mut At, source: &Source, before: Option<HashedState>, told: Option<Vec<u32>>) -> Result<StateDiff> {
    let bar = page_bar("comparing");
    let by_log = told.is_some();
    let changed = match (before, told) {
        (None, _) => {
            let (hashes, pages) = (source.hashes(&bar)?, source.numbers().collect());
            StateDiff { is_same: false, hashes, pages, images: None, replaced: Vec::new() }
        }
        (Some(state), told) => {
            if told.is_none() {
                at.compared = Instant::now();
            }
            source.compare(state.hashes, told.as_deref(), &bar)?
        }
    };
    bar.finish_and_clear();
    if cfg!(debug_assertions) && by_log {
        let all = source.hashes(&ProgressBar::hidden())?;
        assert!(changed.hashes == all, "the log tells of less than has changed");
    }
    Ok(changed)
}

/// What a batch that the store may lack has replaced in the position.
struct PositionBefore {
    place: Option<LogPosition>,
    compared: Instant,
    pages: usize,
    hashes: Vec<(u32, PageHash)>,
}

impl PositionBefore {
    fn put_back(self, at: &mut At, page_bytes: u32, mut hashes: Vec<PageHash>) {
        hashes.resize(self.pages, 0);
        for (page, hash) in self.hashes {
            if let Some(of_page) = hashes.get_mut(index(page)) {
                *of_page = hash;
            }
        }
        (at.state, at.place, at.compared) = (Some(HashedState { page_bytes, hashes }), self.place, self.compared);
    }
}

/// A file that was shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// The file.
    pub name: Name,
    /// Pages in it.
    pub pages: u32,
    /// Its length.
    pub bytes: u64,
    /// Pages of the database in the store's state before; 0 if it had none.
    pub pages_before: u32,
}

/// A process that does not ask for the owner took the next file's name. To go on would mix two
/// databases.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} is in the store already, and not from here: another process ships into it. Give each database a store of its own"
)]
pub struct Taken(String);

impl Shipper {
    /// Claims `store` and ships `file` into it.
    pub fn new(file: &Path, mut store: Box<dyn Store>, settings: Settings) -> Result<Shipper> {
        let ended = if keeps(Rule::Ended) { check_ended(file) } else { Ok(()) };
        if ended.is_ok() {
            // First, so that a file that is no database claims no store.
            Source::look(file)?;
        }
        let node = Node { sync: settings.sync.is_some(), ..Node::of(file)? };
        if ended.is_err() {
            // A fenced process cannot help by being started again, so `Fenced` comes before this
            // error.
            check_is_free(fence::owner(&*store)?.as_ref(), &node)?;
        }
        ended?;
        if let Some(patience) = settings.sync {
            store.hurry(patience);
        }
        let conditions = store.begin(node.id)?;
        let heeds = conditions.create && conditions.replace;
        ensure!(
            heeds || settings.sync.is_none(),
            "the server does not heed the conditions of requests: of two databases that ship into the store, both would take their \
             commits for stored"
        );
        if !heeds {
            let message = "the server does not heed the conditions of requests: if a second process ships into the store, perhaps \
                           nobody will notice";
            say(Level::Warning, "unconditional", &[], message);
        }
        let claim = StoreClaim::take(&*store, &node, ClaimMode::Resume)?;
        store.tidy()?;
        let sync = settings.sync;
        let mut shipper = Shipper { heeds, ..Shipper::idle(file.to_owned(), store.into(), settings, claim) };
        if let Some(patience) = sync {
            // First: a process that reads must know the store's position.
            let at = shipper.load()?;
            // Commits that wait already go on waiting.
            if at.state.is_none() && !is_signed(file)? {
                shipper.filling = FILLS_MAX;
            } else {
                shipper.session = Some(Session::begin(file, patience)?);
            }
            shipper.at = Some(at);
        }
        Ok(shipper)
    }

    fn idle(file: PathBuf, store: Arc<dyn Store>, settings: Settings, claim: StoreClaim) -> Shipper {
        let every = if settings.sync.is_some() { LOOK_EVERY_SYNC } else { LOOK_EVERY };
        Shipper {
            file,
            store,
            settings,
            claim,
            recent: Recent::default(),
            bad: BTreeSet::new(),
            tidy_at: Instant::now(),
            trouble: None,
            snapshot_failed: None,
            at: None,
            seen: None,
            was_away: false,
            shipped: None,
            rest: None,
            kept: KeptConnection::default(),
            stays_since: None,
            session: None,
            filling: 0,
            look: LastLook { at: Instant::now(), every, txid: 0 },
            heeds: true,
            background: None,
            beside: None,
            ends: false,
            expected: 0,
            took: Duration::ZERO,
            tid: None,
        }
    }

    /// With `--sync`: whether the store has so much of the database that commits wait for it.
    pub fn makes_wait(&self) -> bool {
        self.session.is_some()
    }

    /// With `--sync`: whether a commit waits for the store. Waits for one, `nap` at most.
    pub fn wait(&self, nap: Duration) -> Result<bool> {
        self.session.as_ref().map_or(Ok(false), |session| Ok(session.wait(1, nap)? > 0))
    }

    /// The store's newest transaction, as far as known.
    pub fn txid(&self) -> Option<u64> {
        self.at.as_ref().map(|at| at.txid)
    }

    /// What is to be merged and removed, where the caller does that.
    pub fn merge_work(&self) -> Option<MergeWork> {
        self.background.as_ref()?.work()
    }

    /// Whether a step would find no change, by the database's files alone: it is not opened.
    pub fn is_at_rest(&self) -> bool {
        let is_still = |(mark, since): &(RestMark, Instant)| {
            since.elapsed() < REST_MAX && RestMark::of(&self.file).is_some_and(|now| now == *mark)
        };
        let has_told = self.background.as_ref().is_some_and(Background::has_told);
        self.at.as_ref().is_some_and(|at| self.not_looked_for(at).is_none())
            && !has_told
            && self.beside.is_none()
            && self.settings.sync.is_none()
            && self.rest.as_ref().is_some_and(is_still)
    }

    /// As [`step`](Shipper::step), unless the database [is at rest](Shipper::is_at_rest).
    pub fn step_unless_at_rest(&mut self, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        let before_ms = now_ms();
        match self.txid().filter(|_| self.is_at_rest()) {
            Some(txid) => {
                COUNTERS.same(txid, 0, before_ms);
                Ok(())
            }
            None => self.step(said),
        }
    }

    /// Ships the changes since the last step; calls `said` for each file.
    pub fn step(&mut self, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        let done = self.try_step(said);
        if done.is_err() {
            self.leave();
        }
        if let (Err(e), Some(session)) = (&done, &self.session) {
            match e.downcast_ref::<Fenced>() {
                // Another process of this database continues the session.
                Some(fenced) if fenced.same_node => {}
                Some(_) => session.fence()?,
                None => session.is_late()?,
            }
        }
        done
    }

    fn try_step(&mut self, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        if self.was_away
            && let Some(mut at) = self.at.take()
        {
            let checked = self.claim.check_position(&*self.store, at.txid).and_then(|()| self.take_late(&mut at));
            self.at = Some(at).filter(|_| checked.as_ref().err().is_none_or(is_away_or_full));
            checked?;
        }
        self.was_away = false;
        let mut at = match self.at.take() {
            Some(at) => at,
            None => {
                self.seen = None;
                self.load()?
            }
        };
        if self.filling == 0
            && let Err(e) = self.begin_anew()
        {
            // Another process has the database, and the position is as it was.
            self.at = Some(at);
            return Err(e);
        }
        let done = self.step_from(&mut at, said);
        // After another error the next step reads the position from the store. A batch that comes
        // late has the next one's name.
        self.was_away = matches!(&done, Err(e) if is_away_or_full(e) && at.state.is_some());
        if self.was_away || matches!(done, Ok(true)) {
            self.at = Some(at);
        }
        done.map(drop)
    }

    /// Behind an outage: takes note of the next batch, if that was made, and the answer lost.
    fn take_late(&self, at: &mut At) -> Result<()> {
        let txid = at.txid.saturating_add(1);
        let files = self.store.list_from(BATCHES, txid)?;
        let late = files.into_iter().find(|entry| entry.name == Name { level: BATCHES, min: txid, max: txid });
        let (Some(entry), Some(state)) = (late, &at.state) else { return Ok(()) };
        if !self.claim.is_own(&*self.store, entry.name)? {
            return Ok(());
        }
        // The log's place before the batch tells of its pages, too.
        at.state = Some(state.behind(&*self.store, &[entry], &ProgressBar::hidden())?);
        (at.txid, at.last, at.last_ms) = (txid, Some(entry.name), entry.time_ms);
        match &self.background {
            Some(background) => background.add(entry, Copy::none()),
            None => at.add(entry),
        }
        Ok(())
    }

    /// `false`: the position must be read anew.
    fn step_from(&mut self, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<bool> {
        if let Some(mode) = fence::mode_of(&self.file).filter(|mode| self.claim.mode() != Some(*mode)) {
            self.claim.set_mode(&*self.store, mode)?;
        }
        self.take_snapshot(at, said);
        let before_ms = now_ms();
        let before = self.tid;
        match self.session.take() {
            None if self.filling > 0 => self.fill(at, said)?,
            None => {
                self.look_if_due(at)?;
                self.ship(at, said)?;
            }
            Some(session) => {
                let done = self.ship_waiting(&session, at, said);
                self.session = Some(session);
                done?;
            }
        }
        let commits = match (&self.seen, &self.shipped) {
            (Some(seen), Some(shipped)) => seen.commits_since(shipped),
            _ => before
                .zip(self.tid)
                .map_or(0, |(before, tid)| u32::try_from(tid.saturating_sub(before)).unwrap_or(u32::MAX)),
        };
        self.shipped.clone_from(&self.seen);
        COUNTERS.same(at.txid, commits, before_ms);
        match &self.background {
            Some(background) => Ok(background.tell(said)),
            None => self.tidy(at, said),
        }
    }

    /// With `--sync`: ships all that there is while commits do not wait, until little is left.
    fn fill(&mut self, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        let begun = Instant::now();
        self.ship(at, said)?;
        // The next step begins the session.
        self.filling = if begun.elapsed() < FILLED { 0 } else { self.filling.saturating_sub(1) };
        if self.filling == 0 {
            self.leave();
        }
        Ok(())
    }

    /// With `--sync`: begins a session with the database that has the name now, if it is another
    /// file.
    fn begin_anew(&mut self) -> Result<()> {
        let Some(patience) = self.settings.sync else { return Ok(()) };
        if let Some(session) = &self.session {
            if session.is_of(&self.file)? {
                return Ok(());
            }
            let message = format!("{} is another file now: it is shipped from here on", self.file.display());
            say(Level::Warning, "replaced", &[], &message);
            // Commits to the old file wait in vain. An error means that its session has ended
            // already.
            let _late = session.is_late();
        }
        // First: the files of both sessions may have the same names.
        self.session = None;
        // The new file numbers its transactions anew.
        self.tid = None;
        self.session = Some(Session::begin(&self.file, patience)?);
        Ok(())
    }

    /// Merges and removes files that are due. Reports an error and tries again later, unless
    /// another process owns the store. `false`: the position must be read anew.
    fn tidy(&mut self, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<bool> {
        let Some(levels) = self.settings.levels.clone() else { return Ok(true) };
        if Instant::now() < self.tidy_at {
            return Ok(true);
        }
        let known_bad = self.bad.len();
        let merged = self.merge(&levels, at, said);
        // A merged file that comes late has a name that is taken once.
        let is_certain = merged.as_ref().err().is_none_or(is_away_or_full);
        match merged.and_then(|()| self.remove(&levels, at)) {
            Ok(is_done) => {
                let shortest = levels.intervals.iter().chain([&levels.keep_batches]).min().copied();
                let pause = if is_done { shortest.unwrap_or(TIDY_EVERY).min(TIDY_EVERY) } else { Duration::ZERO };
                (self.tidy_at, self.trouble) = (Instant::now() + pause, None);
            }
            Err(e) if e.is::<Fenced>() => return Err(e),
            Err(e) => {
                COUNTERS.error();
                let message = format!("files cannot be merged or removed now, batches go on: {e:#}");
                if self.trouble.as_ref() != Some(&message) {
                    say(Level::Warning, "not_merged", &[], &message);
                    self.trouble = Some(message);
                }
                // The other files can be merged without the damaged one.
                let pause = if self.bad.len() > known_bad { Duration::ZERO } else { TIDY_AFTER_ERROR };
                self.tidy_at = Instant::now() + pause;
            }
        }
        Ok(is_certain)
    }

    fn merge(&mut self, levels: &Levels, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        while let Some((name, run)) = levels.to_merge(&at.files, &self.bad, self.claim.firsts(), now_ms()) {
            self.ask_before()?;
            let mut merge = Merge::default();
            for entry in &run {
                let added = match self.recent.get(entry.name) {
                    Some(bytes) => Reader::open(bytes).and_then(|reader| merge.add(reader)),
                    None => Reader::open(self.store.open(entry.name)?.take(entry.bytes))
                        .and_then(|reader| merge.add(reader)),
                };
                if matches!(added, Err(ltx::LtxError::Damaged(_) | ltx::LtxError::Unsupported(_))) {
                    self.bad.insert(entry.name);
                }
                added.with_context(|| format!("cannot use {}", entry.name))?;
            }
            let mut copy = Copy::default();
            // Of the last file: a state before a time must contain nothing from after it.
            let time_ms = merge.time_ms();
            let (mut merge, mut told) = (Some(merge), None);
            let created = self.store.create(name, time_ms, &mut |to| {
                let merge = merge.take().context("a file is written once")?;
                let (_, header, pages, bytes) = merge.write(Tee(to, &mut copy), self.claim.node())?;
                told = Some((header, pages, bytes));
                Ok(())
            })?;
            let Some((header, pages, bytes)) = told.filter(|_| created) else {
                bail!("{name} is in the store already")
            };
            ensure!((header.min, header.max) == (name.min, name.max), "{name} was made of other files");
            for entry in &run {
                self.recent.forget(entry.name);
            }
            self.recent.keep(name, copy);
            COUNTERS.file(name.level, bytes, pages);
            at.add(Entry { name, time_ms, bytes });
            said(&Shipped { name, pages, bytes, pages_before: header.pages });
        }
        Ok(())
    }

    /// The own record's batches that stay.
    fn ask_before(&self) -> Result<Vec<u64>> {
        let asks = keeps(Rule::AskBefore);
        if asks { Ok(self.claim.check(&*self.store)?.firsts) } else { Ok(self.claim.firsts().to_vec()) }
    }

    /// Removes files that are due; `false`: some are left.
    fn remove(&mut self, levels: &Levels, at: &mut At) -> Result<bool> {
        let due = |firsts: &[u64]| levels.to_remove(&at.files, at.txid, firsts, now_ms());
        let mut names = due(self.claim.firsts());
        if !names.is_empty() {
            names = due(&self.ask_before()?);
        }
        let mut there = None;
        for (name, stands_in) in names.iter().take(REMOVED_AT_ONCE) {
            if there != Some(*stands_in) && keeps(Rule::StandInIsThere) && !self.store.has(*stands_in)? {
                // A missing file stands in for no other file.
                at.files.retain(|entry| entry.name != *stands_in);
                bail!("{stands_in} is gone from the store: {name} stays");
            }
            there = Some(*stands_in);
            self.store.remove(*name)?;
            COUNTERS.removed();
            self.recent.forget(*name);
            at.files.retain(|entry| entry.name != *name);
        }
        Ok(names.len() <= REMOVED_AT_ONCE)
    }

    /// Counts the commits that are not in the store, for the metrics.
    pub fn look_behind(&self) {
        // The step has reported errors of the database.
        if let Some(shipped) = &self.shipped
            && let Ok(Some((_, mark))) = Source::pin(&self.file)
        {
            COUNTERS.behind(mark.commits_since(shipped));
        }
    }

    /// The last [`step`](Shipper::step): also ships pages that this process changes when it closes
    /// the database after a crash, or as its last user.
    pub fn last_step(&mut self, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        self.settings.stays = false;
        self.ends = self.settings.merges != Merges::InStep;
        if let Some(beside) = self.beside.take() {
            beside.give_up();
        }
        if self.settings.sync.is_some() && self.session.is_none() && !is_signed(&self.file)? {
            // Commits do not wait yet, and this process begins nothing more.
            self.settings.sync = None;
        }
        self.step(said)?;
        if let Some(session) = &self.session {
            // Perhaps no other process flushes the leftovers of a dead one.
            session.flush()?;
            self.step(said)?;
        }
        if self.session.take().is_some() {
            // Commits wait for the next shipper. This one reads as any other process does.
            self.settings.sync = None;
            self.step(said)?;
        }
        self.step(said)
    }

    fn load(&mut self) -> Result<At> {
        self.background = None;
        let (entries, state) = self.read_state()?;
        let txid = plan::newest(&entries);
        self.has_looked(txid);
        if entries.is_empty() {
            let (compared, files) = (Instant::now(), entries);
            return Ok(At { txid, last: None, state: None, place: None, compared, files, last_ms: 0 });
        }
        let state = match state {
            Ok(state) => Some(state),
            Err(e) => {
                let message = format!("the store's newest state cannot be read, a new snapshot follows: {e:#}");
                say(Level::Warning, "unreadable", &[], &message);
                None
            }
        };
        let newest = entries.iter().find(|e| e.name.max == txid);
        let (last, last_ms) = (newest.map(|e| e.name), newest.map_or(0, |e| e.time_ms));
        Ok(At { txid, last, state, place: None, compared: Instant::now(), files: entries, last_ms })
    }

    /// The store's files, and their newest state; an error inside: they make none.
    fn read_state(&mut self) -> Result<(Vec<Entry>, Result<HashedState>)> {
        let mut tries = 1;
        loop {
            let (entries, planned) = look_at(&*self.store, |entries| {
                let plan = plan(entries, Target::Newest)?;
                let txid = plan::newest(entries);
                ensure!(plan::newest(&plan) == txid, "its newest transaction {txid:x} cannot be reached");
                Ok(plan)
            })?;
            self.claim.check_position(&*self.store, plan::newest(&entries))?;
            let plan = match planned {
                Ok(plan) => plan,
                Err(e) => return Ok((entries, Err(e))),
            };
            let bar = byte_bar("reading the store");
            let state = HashedState::read(&*self.store, &plan, &bar);
            bar.finish_and_clear();
            match state {
                Ok(state) => return Ok((entries, Ok(state))),
                // Perhaps an earlier owner has removed a file since the listing.
                Err(_) if tries < READS => tries += 1,
                Err(e) if e.is::<Damaged>() => return Ok((entries, Err(e))),
                // The store fails, and tells nothing about the files.
                Err(e) => return Err(e),
            }
        }
    }

    /// Ships, and then leaves the database's processes unless more commits are expected, so that a
    /// process that needs the database alone gets it.
    fn ship(&mut self, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        let shipped = self.ship_and_stay(at, said);
        let since = *self.stays_since.get_or_insert_with(Instant::now);
        if !self.settings.stays || !matches!(shipped, Ok(true)) || since.elapsed() >= STAYS_MAX {
            self.leave();
        }
        shipped.map(drop)
    }

    fn leave(&mut self) {
        self.kept.close();
        self.stays_since = None;
    }

    fn ship_and_stay(&mut self, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<bool> {
        // First: a change of meanwhile is looked at again. With commits that wait none is at rest.
        let rest = self.settings.sync.is_none().then(|| RestMark::of(&self.file)).flatten();
        self.rest = None;
        // No request while the snapshot is held: a writer may wait for log space that it holds.
        let Some((source, mark)) = Source::pin_by(&self.file, &self.kept)? else {
            if at.txid > 0 {
                bail!("{} is empty, and what the store has is not", self.file.display());
            }
            return Ok(false);
        };
        if self.seen.as_ref() == Some(&mark) {
            self.rest = rest.map(|rest| (rest, Instant::now()));
            return Ok(false);
        }
        self.start_background(at);
        self.send(at, source, &mut || Ok(()), said)?;
        self.seen = Some(mark);
        Ok(true)
    }

    fn start_background(&mut self, at: &mut At) {
        if self.settings.merges != Merges::InStep && self.background.is_none() && self.settings.levels.is_some() {
            self.background = Some(Background::start(self, at));
            // The background thread has the others.
            at.files.retain(|entry| entry.name.min == 1);
        }
    }

    /// With `--sync`: ships waiting commits, and lets them go on.
    fn ship_waiting(&mut self, session: &Session, at: &mut At, said: &mut dyn FnMut(&Shipped)) -> Result<()> {
        if session.wait(1, Duration::ZERO)? == 0 {
            return Ok(());
        }
        self.start_background(at);
        // Gathers the committers that the last batch let go on: else two halves of them take turns.
        session.wait(self.expected, (self.took / 4).min(GATHER_MAX))?;
        let began = Instant::now();
        let (source, tid) = session.pin()?;
        let Some(source) = source else {
            ensure!(at.txid == 0, "{} is empty, and what the store has is not", self.file.display());
            return session.shipped(tid);
        };
        let last = self.look_is_due(at);
        let mut looking = last.map_or_else(Vec::new, |last| self.look_beside(last));
        let mut expected = 0;
        let stored = &mut || {
            for look in looking.drain(..) {
                look.join().unwrap_or_else(|_| bail!("the thread that looks at the store has ended"))?;
            }
            expected = session.wait(0, Duration::ZERO)?;
            session.shipped(tid)
        };
        self.send(at, source, stored, said)?;
        if let Some(last) = last {
            self.has_looked(last.max);
        }
        (self.expected, self.tid) = (expected, Some(tid));
        self.took = began.elapsed();
        Ok(())
    }

    /// The newest file, if it is time to look for batches up to it.
    fn look_is_due(&self, at: &At) -> Option<Name> {
        at.last.filter(|_| self.look.at.elapsed() >= self.look.every)
    }

    /// The same, if there are batches that no look has found.
    fn not_looked_for(&self, at: &At) -> Option<Name> {
        self.look_is_due(at).filter(|last| last.max > self.look.txid)
    }

    fn look_if_due(&mut self, at: &At) -> Result<()> {
        let Some(last) = self.not_looked_for(at) else { return Ok(()) };
        self.claim.check(&*self.store)?;
        check_are_there(&*self.store, self.look.txid, last)?;
        self.has_looked(last.max);
        Ok(())
    }

    fn has_looked(&mut self, txid: u64) {
        (self.look.at, self.look.txid) = (Instant::now(), txid);
    }

    /// Looks at the owner and for the batches up to `last` on threads, so that commits wait for one
    /// round trip.
    fn look_beside(&self, last: Name) -> Vec<JoinHandle<Result<()>>> {
        let (claim, store) = (self.claim.clone(), self.store.clone());
        let owner = thread::spawn(move || claim.check(&*store).map(drop));
        let (store, first) = (self.store.clone(), self.look.txid.saturating_add(1));
        vec![owner, thread::spawn(move || check_are_there(&*store, first, last))]
    }

    /// Ships every page of the state that `at` has.
    fn send_snapshot(
        &mut self,
        at: &mut At,
        source: &mut Option<Source>,
        size: (u32, u32),
        every_page: &[u32],
        time_ms: i64,
    ) -> Result<Shipped> {
        let name = Name { level: SNAPSHOTS, min: 1, max: at.txid };
        let hashes = at.state.as_ref().map_or(&[][..], |state| &state.hashes);
        let file = NextFile { name, size, pages: every_page, images: None, hashes, time_ms };
        let (shipped, _) = self.create(&file, source, false)?;
        let entry = Entry { name, time_ms, bytes: shipped.bytes };
        if let Some(background) = &self.background {
            background.add(entry, Copy::default());
        }
        at.add(entry);
        self.snapshot_failed = None;
        Ok(shipped)
    }

    /// Ships the difference to the store's state, if any, and a snapshot if due. Calls `stored`
    /// when the store has it.
    fn send(
        &mut self,
        at: &mut At,
        source: Source,
        stored: &mut dyn FnMut() -> Result<()>,
        said: &mut dyn FnMut(&Shipped),
    ) -> Result<()> {
        // Read after the snapshot, so all content is older. A clock that was set back may make it
        // older than the last file.
        let time_ms = now_ms();
        let before = at.state.take().filter(|state| state.page_bytes == source.page_bytes);
        let pages_before = u32::try_from(before.as_ref().map_or(0, |state| state.hashes.len()))?;
        // Another page size, or files that make no state: a snapshot must follow. The batch goes
        // first, since only one shipper gets its name.
        let begins_anew = before.is_none() && at.txid > 0;
        let place = source.place()?;
        let (place_before, compared) = (at.place.take(), at.compared);
        let told = self.told_by_log(place.as_ref(), place_before.as_ref(), compared);
        let changed = compare(at, &source, before, told)?;
        let StateDiff { is_same, hashes, pages, images, replaced } = changed;
        at.place = place.map(LogPosition::without_pages);
        let page_bytes = source.page_bytes;
        if is_same {
            at.state = Some(HashedState { page_bytes, hashes });
            return stored();
        }
        let txid = at.txid.saturating_add(1);
        let name = Name { level: BATCHES, min: txid, max: txid };
        // Except the snapshot, which has the same state.
        let snapshot = name.min > 1 && (begins_anew || self.snapshot_is_due(at, time_ms));
        // A new beginning is waited for: without its snapshot the batch makes no state.
        let beside = snapshot && !begins_anew && self.background.is_some();
        let pins_anew = beside && self.settings.sync.is_some();
        let every_page: Vec<u32> = if snapshot && !beside { source.numbers().collect() } else { Vec::new() };
        let size = (page_bytes, source.pages);
        let again = snapshot && !pins_anew;
        let mut source = Some(source).filter(|_| images.is_none() || again);
        let file = NextFile { name, size, pages: &pages, images, hashes: &hashes, time_ms };
        let created = self.create(&file, &mut source, again);
        if matches!(&created, Err(e) if is_away_or_full(e) && !begins_anew && pages_before > 0) {
            let pages = usize::try_from(pages_before)?;
            PositionBefore { place: place_before, compared, pages, hashes: replaced }.put_back(at, page_bytes, hashes);
            return created.map(drop);
        }
        let (shipped, copy) = created?;
        let told = stored();
        if matches!(&told, Err(e) if !is_away_or_full(e)) {
            return told;
        }
        let entry = Entry { name, time_ms, bytes: shipped.bytes };
        match &self.background {
            Some(background) => background.add(entry, copy),
            None if self.settings.levels.is_some() && name.min > 1 => self.recent.keep(name, copy),
            None => {}
        }
        // Other files matter only for merging.
        let merges = self.background.is_none() && self.settings.levels.is_some();
        if merges || name.min == 1 {
            at.add(entry);
        }
        said(&Shipped { pages_before, ..shipped });
        (at.txid, at.last_ms) = (name.max, time_ms);
        at.state = Some(HashedState { page_bytes, hashes });
        // The file is there, and the owner unknown: the next look is for the file before it.
        told?;
        at.last = Some(name);
        if beside {
            self.begin_snapshot(at, source, time_ms);
        } else if snapshot {
            match self.send_snapshot(at, &mut source, size, &every_page, time_ms) {
                Ok(shipped) => said(&Shipped { pages_before, ..shipped }),
                // The batch alone makes no state.
                Err(e) if begins_anew => return Err(e),
                Err(e) => self.no_snapshot(&e),
            }
        }
        Ok(())
    }

    /// The pages that the log names; `None`: all are to be compared.
    fn told_by_log(
        &self,
        now: Option<&LogPosition>,
        before: Option<&LogPosition>,
        compared: Instant,
    ) -> Option<Vec<u32>> {
        // With `--sync` all changes are in the log.
        let may = self.settings.sync.is_some() || compared.elapsed() < COMPARE_EVERY;
        now.zip(before).filter(|_| may).and_then(|(now, before)| now.changed_since(before))
    }

    fn no_snapshot(&mut self, error: &anyhow::Error) {
        COUNTERS.error();
        if self.snapshot_failed.replace(Instant::now()).is_none() {
            let pause = humantime::format_duration(TIDY_AFTER_ERROR);
            let message =
                format!("no snapshot can be made now, batches are shipped, trying again after {pause}: {error:#}");
            say(Level::Warning, "no_snapshot", &[], &message);
        }
    }

    /// Begins a snapshot of the store's state, of which `source` is one; `None`: readers see it.
    fn begin_snapshot(&mut self, at: &At, source: Option<Source>, time_ms: i64) {
        let name = Name { level: SNAPSHOTS, min: 1, max: at.txid };
        let source = match source
            .map_or_else(|| Ok(Source::pin(&self.file)?.map(|(source, _)| source)), |source| Ok(Some(source)))
        {
            Ok(Some(source)) => source.apart(),
            Ok(None) => return,
            Err(e) => return self.no_snapshot(&e),
        };
        let hashes = at.state.as_ref().map_or_else(Vec::new, |state| state.hashes.clone());
        self.beside = Some(Beside::start(&self.store, &self.claim, source, name, hashes, time_ms));
    }

    /// Takes note of a snapshot that was made beside the batches.
    fn take_snapshot(&mut self, at: &mut At, said: &mut dyn FnMut(&Shipped)) {
        let Some(done) = self.beside.as_ref().and_then(Beside::done) else { return };
        self.beside = None;
        match done {
            Ok((entry, shipped)) => {
                if let Some(background) = &self.background {
                    background.add(entry, Copy::default());
                }
                at.add(entry);
                self.snapshot_failed = None;
                said(&shipped);
            }
            Err(e) => self.no_snapshot(&e),
        }
    }

    fn snapshot_is_due(&self, at: &At, now_ms: i64) -> bool {
        if self.ends || self.beside.is_some() {
            return false;
        }
        if self.snapshot_failed.is_some_and(|failed| failed.elapsed() < TIDY_AFTER_ERROR) {
            return false;
        }
        let whole = at.files.iter().filter(|e| e.name.min == 1 && matches!(e.name.level, BATCHES | SNAPSHOTS));
        let (come, to_come): (Vec<&Entry>, Vec<&Entry>) = whole.partition(|e| e.time_ms <= now_ms);
        let age = match come.iter().max_by_key(|e| e.name.max) {
            Some(newest) => now_ms.saturating_sub(newest.time_ms),
            // If all files are of a later time, this clock is slow: no snapshot is due.
            None if !to_come.is_empty() && at.last_ms > now_ms => 0,
            None => i64::MAX,
        };
        // The first snapshot lets merging begin.
        let first = self.settings.levels.as_ref().and_then(|levels| levels.intervals.first());
        let is_due = |first: &Duration| age >= millis(*first) || many_wait(&at.files, at.txid);
        let merges = first.is_some_and(|first| is_due(first) && waits_for_snapshot(&at.files));
        merges || age >= millis(self.settings.snapshot_interval)
    }

    /// Makes a file. Drops the database snapshot once its pages are read, unless `again`.
    fn create(&mut self, file: &NextFile<'_>, source: &mut Option<Source>, again: bool) -> Result<(Shipped, Copy)> {
        let NextFile { name, size: (page_bytes, pages_after), pages, time_ms, .. } = *file;
        let (min, max, node) = (name.min, name.max, self.claim.node());
        let header = Header { page_bytes, pages: pages_after, min, max, time_ms, node };
        let bar = page_bar(if name.min == 1 { "snapshot" } else { "shipping" });
        let (mut bytes, mut copy, claim) = (0, Copy::default(), self.claim.clone());
        let mut fill = |to: &mut dyn Write| {
            bytes = fill(file, header, source.as_ref(), to, &mut copy, &bar, &mut || Ok(()))?;
            if !again {
                *source = None;
            }
            // Else nothing keeps two processes from one name.
            if self.heeds { Ok(()) } else { claim.check(&*self.store).map(drop) }
        };
        let put = match name.level {
            BATCHES => self.claim.put(&*self.store, name, time_ms, &mut fill),
            // An existing snapshot has the same state: its last batch has the same number.
            _ => self.store.create(name, time_ms, &mut fill).map(|_| Put::Shipped),
        };
        bar.finish_and_clear();
        match put? {
            Put::Shipped => {}
            Put::Beaten => bail!("{name} was in the store already: what is there is looked at"),
            Put::Foreign => return Err(Taken(name.to_string()).into()),
        }
        let pages = u32::try_from(pages.len())?;
        COUNTERS.file(name.level, bytes, pages);
        Ok((Shipped { name, pages, bytes, pages_before: 0 }, copy))
    }
}

/// Whether the transactions from `first` to the batch `last` are in the store, batches or merged.
fn check_are_there(store: &dyn Store, first: u64, last: Name) -> Result<()> {
    if !keeps(Rule::BatchesAreThere) {
        return Ok(());
    }
    let first = first.clamp(1, last.max);
    if first == last.max {
        ensure!(store.has(last)?, "{last} is gone from the store: what is left there is looked at");
        return Ok(());
    }
    let (mut files, mut at) = (Vec::new(), first.saturating_sub(1));
    // Upwards, the way files are merged, so that a file on its way is seen.
    for level in BATCHES..=SNAPSHOTS {
        files.extend(if level == BATCHES { store.list_from(level, first)? } else { store.list(level)? });
        while let Ok(next) = onward(&files, at) {
            at = next.name.max;
        }
        if at >= last.max {
            return Ok(());
        }
    }
    let next = at.saturating_add(1);
    bail!("transaction {next:x} is gone from the store: what is left there is looked at")
}

/// Writes a file, and returns its length. Calls `looks` for each page.
fn fill(
    file: &NextFile<'_>,
    header: Header,
    source: Option<&Source>,
    to: &mut dyn Write,
    copy: &mut Copy,
    bar: &ProgressBar,
    looks: &mut dyn FnMut() -> Result<()>,
) -> Result<u64> {
    let page_bytes = usize::try_from(header.page_bytes)?;
    bar.set_length(file.pages.len() as u64);
    let mut writer = Writer::begin(Tee(to, copy), header)?;
    let mut image = Vec::new();
    for (page, at) in file.pages.iter().zip((0usize..).step_by(page_bytes)) {
        looks()?;
        moved();
        match &file.images {
            Some(images) => {
                let kept = images.get(at..).and_then(|rest| rest.get(..page_bytes));
                image.clear();
                image.extend_from_slice(kept.context("an image is missing")?);
            }
            None => source.context("a file is written once")?.read(*page, &mut image)?,
        }
        // Else the store would not have the pages that these hashes promise.
        if file.hashes.get(index(*page)) != Some(&hash(&image)) {
            bail!("page {page} has changed under a snapshot: something writes past SQLite's locks");
        }
        writer.page(*page, &image)?;
        bar.inc(1);
    }
    Ok(writer.finish()?.1)
}

impl std::fmt::Display for Shipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match (self.name.min, self.name.level) {
            (1, _) => "a snapshot",
            (_, BATCHES) => "a batch",
            _ => "merged,",
        };
        let (pages, bytes) = (HumanCount(self.pages.into()), HumanBytes(self.bytes));
        write!(f, "{} {what} of {pages} pages, {bytes}", self.name)
    }
}
