//! Histories of SQL on threads: connections of two to four threads, of one to three processes, use
//! two databases, and transactions over both. One thread runs at a time, as the baton says.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use onewrite_core::Instant;
use onewrite_core::disk::Disk;
use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64, point};
use onewrite_core::inspect::home::mark;
use parking_lot::Mutex;
use rusqlite::{Connection, ffi};

use super::check::{
    Allowed, Setting, asks_for_writer, bytes_of, damage, draw_mapped, empty, log_path, path, said, stock_reads,
};
use super::history::last_row;
use super::merges::{self, Merged, Mirror, SLOTS, observe};
use super::print::{Print, print, print_slowly};
use super::process::{Level, SCHEMAS, abandon_levels, add_noise, attach_side, explain, level, set_up};
use super::recover::check_or_recover;
use super::statements::{self, Shape};
use crate::baton::{GoesOn, alone};
use crate::check::{Counts, ROOMY, Violation, drawn_disk};
use crate::history::Campaign;
use crate::hook::{HookDisk, Point};
use crate::oracle::Timeline;
use crate::pager::Synchronous;
use crate::threads::process::Death;
use crate::threads::{Found, Notes, draw_fault, left_by, outcome, report, run_each};

/// The processes' levels; those of nested checks count from 0.
const PROCESSES: usize = usize::MAX / 2;

/// The oracle of both databases.
#[derive(Clone)]
pub(super) struct Known {
    files: [Timeline<Print>; 2],
    /// In place of the first, where transactions merge.
    pub(super) merged: Option<Merged>,
    /// Indexes of the states that transactions over both may have led to.
    pairs: Vec<[usize; 2]>,
}

/// A transaction's change of a database.
#[derive(Clone, Copy)]
struct Change {
    file: usize,
    base: usize,
    next: Print,
}

impl Known {
    fn allowed(&self, killed: bool) -> Allowed {
        let files = [0, 1].map(|file| self.files[file].from(0));
        let first = [0, 1].map(|file| if killed { self.files[file].seen } else { self.files[file].floor });
        let mut allowed = Allowed { files, pairs: self.pairs.clone() }.from(first);
        if let Some(merged) = &self.merged {
            allowed.files[0] = merged.allowed(killed);
        }
        allowed
    }

    /// From here on the transaction may be permanent. Its writer has each base's successor to
    /// itself, so no later state was committed. Returns the new states' indexes.
    fn attempt(&mut self, changes: &[Change], durable: bool) -> Result<Vec<usize>, String> {
        for change in changes {
            let timeline = &mut self.files[change.file];
            timeline.states.truncate(change.base + 1);
            let is_gone = |pair: &[usize; 2]| pair[change.file] > change.base;
            let gone: Vec<_> = self.pairs.iter().copied().filter(is_gone).collect();
            self.pairs.retain(|pair| !is_gone(pair));
            let other = 1 - change.file;
            for pair in gone {
                if self.files[other].seen >= pair[other] {
                    return Err(format!("a transaction over both is in database {other} alone: {pair:?}"));
                }
                self.files[other].states.truncate(pair[other]);
            }
        }
        let own: Vec<usize> = changes.iter().map(|change| self.files[change.file].states.len()).collect();
        for change in changes {
            self.files[change.file].states.push((change.next, durable));
        }
        if let [first, second] = own[..] {
            self.pairs.push([first, second]);
        }
        Ok(own)
    }

    /// The attempt failed. Another may have followed, where SQLite gave its place back at once.
    fn withdraw(&mut self, changes: &[Change], own: &[usize]) {
        let is_last = |(change, at): (&Change, &usize)| {
            let states = &self.files[change.file].states;
            states.len() == at + 1 && states[*at].0 == change.next
        };
        if !changes.iter().zip(own).all(is_last) {
            return;
        }
        for (change, at) in changes.iter().zip(own) {
            self.files[change.file].states.truncate(*at);
        }
        if own.len() > 1 {
            self.pairs.pop();
        }
    }
}

#[derive(Clone)]
pub(super) struct Shared {
    pub(super) setting: Setting,
    pub(super) known: Arc<Mutex<Known>>,
    /// Transactions merge.
    pub(super) merges: Option<Arc<Mutex<Mirror>>>,
    found: Found,
    pub(super) notes: Notes,
    /// Transactions have numbers, so no two states are equal.
    pub(super) stamps: Arc<AtomicU64>,
    /// A write or flush fails in this round.
    faulty: bool,
    /// The disk is full in this round.
    full: bool,
    /// A thread was told of the failure.
    struck: Arc<AtomicBool>,
    /// Another program has removed a log in this round.
    lost: Arc<AtomicBool>,
    /// The user of the last process may not write the files.
    observes: bool,
    /// Another program removes logs.
    loses: bool,
    /// Connections step aside. Then none is under OFF: as in stock SQLite, a power cut may undo its
    /// rollback of a dead one's journal in part.
    steps_aside: bool,
}

pub(super) struct Client {
    pub(super) db: Connection,
    pub(super) synchronous: Synchronous,
    /// `journal_mode=MEMORY`.
    journal_in_memory: bool,
    has_side: bool,
    /// The states that its transaction reads.
    pub(super) reading: Option<Vec<usize>>,
    /// The same, where transactions merge.
    pub(super) snapshot: Option<Print>,
}

impl Client {
    /// Beside the log SQLite's own rules hold: no promise under OFF, or with a journal in memory.
    fn may_step_aside(&self) -> bool {
        self.synchronous != Synchronous::Off && !self.journal_in_memory
    }

    fn files(&self) -> usize {
        1 + usize::from(self.has_side)
    }
}

/// A thread, with its connection.
pub(super) struct Worker {
    pub(super) name: usize,
    /// No other living thread has it.
    pub(super) slot: usize,
    process: usize,
    pub(super) level: Level,
    /// All processes.
    all: Vec<Level>,
    pub(super) disk: HookDisk,
    pub(super) client: Option<Client>,
    /// Its last open was with `mode=ro`.
    pub(super) reads_only: bool,
    pub(super) rng: SplitMix64,
    pub(super) shared: Shared,
}

struct World {
    rng: SplitMix64,
    disk: HookDisk,
    shared: Shared,
    levels: Vec<Level>,
    workers: Vec<Worker>,
    now: Duration,
    hired: usize,
    every: usize,
}

pub(super) type Step = Result<(), String>;

/// More points of the baton than a transaction of another thread has.
const LONG_PAUSE: usize = 20_000;

const IMMEDIATE: &str = "BEGIN IMMEDIATE";

/// `integrity_check` found SQLITE_BUSY_SNAPSHOT.
const REFUSED: &str = "error code=517";

/// The disk and the settings of a history.
fn draw_setting(seed: u64, rng: &mut SplitMix64, campaign: &Campaign, counts: &Arc<Counts>) -> (SimConfig, Setting) {
    let drawn_scheme = ["log", "log", "log", "wal-opt"][rng.below(4)];
    let scheme = campaign.scheme.as_deref().unwrap_or(drawn_scheme);
    let drawn_unit = [512, 4096][rng.below(2)];
    let config = drawn_disk(rng, campaign.atomic_unit.unwrap_or(drawn_unit), campaign.trace);
    // Else processes that flush in the same moment depend on more than onewrite promises.
    let config = SimConfig { tells_each: true, ..config };
    let shape = Shape {
        page_bytes: [512, 1024, 2048, 4096][rng.below(4)],
        page_bytes_max: 4096,
        auto_vacuum: rng.below(3),
        bytes_max: 120_000,
        big_bytes: 40_000 + rng.below(60_000),
    };
    let mut options = vec![("scheme", scheme), ("log_size", "256k"), ("busy_ms", ["0", "20", "5000"][rng.below(3)])];
    options.push(("idle", ["0", "10s"][rng.below(2)]));
    if rng.below(2) == 0 {
        options.push(("stream_size", "64k"));
    }
    if rng.below(3) == 0 {
        options.push(("table_size", "64k"));
    }
    options.push(("wal", "stock"));
    let options = options.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let (durable, sticky, in_page, absorbs) = (true, rng.below(8) == 0, false, false);
    let (counts, mapped_bytes) = (counts.clone(), draw_mapped(seed));
    (config, Setting { options, shape, counts, sticky, durable, in_page, absorbs, mapped_bytes })
}

/// Runs the history of `seed`.
pub fn run(seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Result<(), Violation> {
    let mut rng = SplitMix64::new(seed ^ 0x7468);
    let (config, mut setting) = draw_setting(seed, &mut rng, campaign, counts);
    let count = [1, 1, 2, 3][rng.below(4)];
    let empty = empty();
    let merges = SplitMix64::new(seed ^ 0x6d65).below(3) == 0;
    if merges {
        setting.options.push(("concurrent".to_owned(), "1".to_owned()));
        // Else those that add pages meet in the pointer map.
        setting.shape.auto_vacuum = 0;
    }
    let mirror = merges.then(Mirror::new).transpose();
    let mirror = mirror.map_err(|e| Violation::on(&SimDisk::new(config), format!("the mirror: {}", said(&e))))?;
    let merged = merges.then(Merged::new);
    let known = Known { files: [(); 2].map(|()| Timeline::starting(empty)), merged, pairs: Vec::new() };
    let shared = Shared {
        setting,
        known: Arc::new(Mutex::new(known)),
        merges: mirror.map(|mirror| Arc::new(Mutex::new(mirror))),
        found: Arc::default(),
        notes: Notes::new(campaign.trace, SimDisk::new(config)),
        stamps: Arc::default(),
        faulty: false,
        full: false,
        struck: Arc::default(),
        lost: Arc::default(),
        observes: count > 1 && rng.below(4) == 0,
        loses: rng.below(4) == 0 && !merges,
        steps_aside: SplitMix64::new(seed ^ 0x6173).below(3) > 0,
    };
    let mut world = World {
        every: 12 + rng.below(60),
        rng,
        disk: HookDisk::new(SimDisk::new(config), None),
        shared,
        levels: (0..count).map(|n| level(PROCESSES + n)).collect(),
        workers: Vec::new(),
        now: Duration::from_secs(1000),
        hired: 0,
    };
    world.boot(SimDisk::new(config));
    let rounds = 1 + world.rng.below(campaign.steps.div_ceil(12).max(1));
    let mut done = world.begin();
    for _ in 0..rounds {
        done = done.and_then(|()| world.round());
    }
    let done = done.and_then(|()| world.finish());
    // Behind a violation a destructor may wait for ever.
    match &done {
        Err(_) => {
            std::mem::forget(std::mem::take(&mut world.workers));
            abandon_levels();
        }
        Ok(()) => world.power_off(),
    }
    done.map_err(|mut v| {
        v.what = format!("{} [{:?}, {:?}]", v.what, world.shared.setting.options, world.shared.setting.shape);
        v.notes = world.shared.notes.lines();
        v
    })
}

/// Each call of a dead process fails, and all of its locks are granted: a thread of it may wait for
/// others for ever. It ends in one of its waits, which are in calls that catch that.
fn end_waits_of_dead(worker: &Worker) -> GoesOn {
    let (level, turns) = (worker.level.clone(), AtomicU64::new(0));
    Box::new(move || {
        let turn = if !level.is_alive() { turns.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if turn % TURNS_OF_DEAD == TURNS_OF_DEAD - 1 && !std::thread::panicking() {
            resume_unwind(Box::new(Death));
        }
    })
}

/// More than a call without a wait for others has.
const TURNS_OF_DEAD: u64 = 10_000;

impl World {
    fn bad(&self, what: impl Into<String>) -> Violation {
        Violation::on(self.disk.sim(), what)
    }

    fn power_off(&mut self) {
        self.levels.iter().for_each(Level::halt);
        let seed = self.rng.next_u64();
        alone(seed, || self.workers.clear());
    }

    /// New processes; the old ones are killed.
    fn boot(&mut self, sim: SimDisk) {
        self.power_off();
        self.shared.faulty = false;
        self.shared.struck = Arc::default();
        self.shared.notes.go_on(sim.clone());
        let point = self.crash_points();
        self.disk = HookDisk::new(sim, Some(point));
        (0..self.levels.len()).for_each(|process| self.start(process));
    }

    fn start(&self, process: usize) {
        let only_reads = self.shared.observes && process + 1 == self.levels.len();
        self.levels[process].boot_with_threads(self.disk.clone(), only_reads);
    }

    /// At some operations of a round the disk is checked as a crash would leave it.
    fn crash_points(&mut self) -> Point {
        let (shared, every) = (self.shared.clone(), self.every);
        let mut rng = SplitMix64::new(self.rng.next_u64());
        Box::new(move |_, inside| {
            // Until a new log is there, a death leaves a home without one (rule LostLogReplaced).
            let is_lost = shared.lost.load(Ordering::SeqCst);
            if rng.below(every) > 0 || shared.found.lock().is_some() || is_lost {
                return;
            }
            if let Err(what) = observe(&shared, &inside()) {
                report(&shared.found, &shared.notes, true, &inside(), Violation::on(&inside(), what));
                return;
            }
            let known = shared.known.lock().clone();
            let (killed, recoveries) = (rng.below(6) == 0, [0, 0, 0, 1][rng.below(4)]);
            // Merged states have no single order, by which crashes of a recovery are judged.
            let recoveries = if known.merged.is_some() { 0 } else { recoveries };
            let disk = left_by(&inside(), killed, &mut rng);
            let (allowed, unflushed) = (known.allowed(killed), known.allowed(false));
            let verdict = check_or_recover(&shared.setting, &disk, &allowed, &unflushed, &mut rng, 0, recoveries);
            if let Err(v) = verdict {
                report(&shared.found, &shared.notes, killed, &inside(), v);
            }
        })
    }

    fn hire(&mut self, process: usize) {
        let (name, rng) = (self.hired, SplitMix64::new(self.rng.next_u64()));
        let slot = (0..SLOTS).find(|slot| self.workers.iter().all(|worker| worker.slot != *slot)).unwrap_or(0);
        self.hired += 1;
        let (level, disk) = (self.levels[process].clone(), self.disk.clone());
        let (client, reads_only, shared) = (None, false, self.shared.clone());
        let all = self.levels.clone();
        self.workers.push(Worker { name, slot, process, level, all, disk, client, reads_only, rng, shared });
    }

    /// One thread makes the tables.
    fn begin(&mut self) -> Result<(), Violation> {
        self.hire(0);
        self.act(Worker::make_tables)
    }

    /// Some of the workers act, then all go on or all die.
    fn round(&mut self) -> Result<(), Violation> {
        while self.workers.len() < 4 && (self.workers.len() < 2 || self.rng.below(3) > 0) {
            let process = self.rng.below(self.levels.len());
            self.hire(process);
        }
        if self.rng.below(6) == 0 {
            let fault = draw_fault(self.disk.sim(), &mut self.rng);
            self.shared.faulty = true;
            self.shared.notes.add(|| fault);
        }
        self.shared.full = !self.shared.faulty && self.rng.below(6) == 0;
        let sim = self.disk.sim();
        let room = self.rng.below(80_000) as u64;
        sim.set_capacity(if self.shared.full { sim.used_bytes() + room } else { ROOMY });
        if self.shared.full {
            self.shared.notes.add(|| format!("the disk has {room} bytes left"));
        }
        let steps = 1 + self.rng.below(8);
        let closes = self.rng.below(6) == 0;
        self.act(move |worker| {
            for _ in 0..steps {
                worker.step()?;
            }
            if closes { worker.leave() } else { Ok(()) }
        })?;
        self.shared.full = false;
        self.disk.sim().set_capacity(ROOMY);
        if self.shared.lost.load(Ordering::SeqCst) {
            return self.close_behind_loss();
        }
        if self.shared.faulty || self.rng.below(8) == 0 { self.die() } else { Ok(()) }
    }

    /// Each worker runs `what` on a thread of its own.
    fn act(&mut self, what: impl Fn(&mut Worker) -> Step + Clone + Send + 'static) -> Result<(), Violation> {
        let shared = self.shared.clone();
        let act = move |worker: &mut Worker| {
            worker.shared = shared.clone();
            worker.run(&what);
        };
        let (seed, workers) = (self.rng.next_u64(), std::mem::take(&mut self.workers));
        let (workers, ended) = run_each(seed, &mut self.now, workers, end_waits_of_dead, act);
        self.workers = workers;
        outcome(&self.shared.found, ended, self.disk.sim())?;
        if let Some(mirror) = self.shared.merges.clone() {
            let seed = self.rng.next_u64();
            alone(seed, || observe(&self.shared, self.disk.sim())).map_err(|what| self.bad(what))?;
            mirror.lock().none_is_pending();
        }
        let dead: Vec<usize> = (0..self.levels.len()).filter(|process| !self.levels[*process].is_alive()).collect();
        let seed = self.rng.next_u64();
        alone(seed, || self.workers.retain(|worker| !dead.contains(&worker.process)));
        dead.into_iter().for_each(|process| self.start(process));
        Ok(())
    }

    /// All connections end their transactions and close, so that a new log can be made.
    fn close_behind_loss(&mut self) -> Result<(), Violation> {
        self.act(|worker| {
            worker.abort();
            Ok(())
        })?;
        self.act(Worker::close)?;
        self.shared.lost.store(false, Ordering::SeqCst);
        self.decide()
    }

    /// All processes die, and perhaps the power goes; the next process decides for good.
    fn die(&mut self) -> Result<(), Violation> {
        // A kernel that calls lost bytes clean keeps the end of a rollback journal no better than
        // stock SQLite's.
        let is_kept = self.shared.struck.load(Ordering::SeqCst) && self.shared.steps_aside;
        let killed = self.rng.below(2) == 0 && !is_kept;
        let sim = left_by(self.disk.sim(), killed, &mut self.rng);
        self.shared.notes.add(|| if killed { "all die".to_owned() } else { "power goes".to_owned() });
        if !killed {
            let mut known = self.shared.known.lock();
            known.files.iter_mut().for_each(Timeline::lose_power);
            known.merged.iter_mut().for_each(Merged::lose_power);
        }
        self.boot(sim);
        self.decide()
    }

    /// A process that may write looks, alone.
    fn decide(&mut self) -> Result<(), Violation> {
        self.levels.iter().for_each(|level| level.die_after(u64::MAX));
        let seed = self.rng.next_u64();
        alone(seed, || self.workers.clear());
        self.hire(0);
        self.act(Worker::decide)
    }

    /// All connections close at once. Behind dead processes, and readers, another does.
    fn finish(&mut self) -> Result<(), Violation> {
        self.act(Worker::close)?;
        self.decide()?;
        if self.shared.setting.sticky {
            return Ok(());
        }
        let known = self.shared.known.lock().clone();
        let mut prints = [0, 1].map(|file| known.files[file].states[known.files[file].seen].0);
        if let Some(merged) = &known.merged {
            prints[0] = merged.newest();
        }
        let beside = level(0);
        beside.boot(HookDisk::new(self.disk.sim().clone(), None));
        let read = alone(self.rng.next_u64(), || stock_reads(&beside, self.disk.sim(), prints));
        beside.halt();
        read.map_err(|what| self.bad(format!("after the last close: {what}")))
    }
}

/// A connection that only reads recovers nothing.
fn is_for_writers(error: &rusqlite::Error) -> bool {
    matches!(explain(error).0 & 0xff, ffi::SQLITE_CANTOPEN | ffi::SQLITE_READONLY) && asks_for_writer(error)
}

impl Worker {
    fn run(&mut self, what: impl FnOnce(&mut Worker) -> Step) {
        let Err(what) = what(self) else { return };
        self.shared.notes.add(|| format!("{} is told: {what}", self.name));
        let (what, trace, notes) = (format!("thread {}: {what}", self.name), Vec::new(), Vec::new());
        self.shared.found.lock().get_or_insert(Violation { what, trace, notes });
    }

    fn step(&mut self) -> Step {
        let is_over = self.shared.found.lock().is_some() || self.shared.struck.load(Ordering::SeqCst);
        if is_over || !self.level.is_alive() {
            return Ok(());
        }
        if self.rng.below(30) == 0 && !self.shared.lost.load(Ordering::SeqCst) {
            let calls = self.rng.below(200) as u64;
            self.shared.notes.add(|| format!("the process of {} dies after {calls} calls", self.name));
            self.level.die_after(calls);
        }
        if self.shared.setting.mapped_bytes > 0 && self.rng.below(3) == 0 {
            return self.map_at_rest();
        }
        match self.rng.below(41) {
            0..23 if self.shared.merges.is_some() => self.write_merged(),
            0..23 => self.write(),
            23..29 => self.read(),
            29..31 => self.end(),
            31..33 => self.run_pragma("onewrite_checkpoint"),
            33 => {
                let mode = ["exclusive", "normal"][self.rng.below(2)];
                self.change_locking(mode)
            }
            34 => self.vacuum(),
            35..37 => self.look_after(),
            37 => self.lose_log(),
            _ => self.leave(),
        }
    }

    /// An error that the history expects, or a violation.
    pub(super) fn tolerate(&mut self, error: &rusqlite::Error, doing: &str) -> Step {
        let said = said(error);
        self.shared.notes.add(|| format!("{} {doing}: {said}", self.name));
        self.abort();
        let code = explain(error).0 & 0xff;
        let is_full = self.shared.full && code == ffi::SQLITE_FULL;
        let is_lost = self.shared.lost.load(Ordering::SeqCst);
        if !self.level.is_alive() || code == ffi::SQLITE_BUSY || is_full || is_lost {
            return Ok(());
        }
        if self.shared.faulty {
            self.shared.struck.store(true, Ordering::SeqCst);
            return Ok(());
        }
        // As in stock SQLite: the journal of a dead process that stepped aside.
        let is_hot = explain(error).0 == ffi::SQLITE_READONLY_ROLLBACK && self.reads_only;
        if is_hot || is_for_writers(error) { Ok(()) } else { Err(format!("{doing}: {said}")) }
    }

    /// Ends its transaction, whose errors change nothing.
    pub(super) fn abort(&mut self) {
        if let Some(client) = &mut self.client {
            (client.reading, client.snapshot) = (None, None);
            if !client.db.is_autocommit() {
                let _ = client.db.execute_batch("ROLLBACK");
            }
        }
    }

    fn open(&mut self) -> rusqlite::Result<Client> {
        self.reads_only = (self.shared.observes && self.process > 0) || self.rng.below(8) == 0;
        let reads_only = self.reads_only;
        let has_side = self.rng.below(3) > 0 && self.shared.merges.is_none();
        let mut options = self.shared.setting.options.clone();
        if self.shared.setting.sticky {
            options.push(("sticky".to_owned(), "1".to_owned()));
        }
        if reads_only {
            options.push(("mode".to_owned(), "ro".to_owned()));
        }
        let db = self.level.open(0, &options)?;
        add_noise(&db)?;
        if has_side {
            attach_side(&db, self.level.uri(1, &options), is_for_writers)?;
        }
        let drawn = [Synchronous::Full, Synchronous::Full, Synchronous::Full, Synchronous::Normal, Synchronous::Off];
        let synchronous = match drawn[self.rng.below(drawn.len())] {
            Synchronous::Off if self.shared.steps_aside => Synchronous::Full,
            drawn => drawn,
        };
        let mode = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY"][self.rng.below(4)];
        let cache = [6, 20, 200][self.rng.below(3)];
        let writes = (!reads_only).then_some((mode, self.shared.setting.shape));
        let (journal, shape) = writes.unzip();
        set_up(&db, 1 + usize::from(has_side), synchronous, cache, journal, self.shared.setting.mapped_bytes, shape)?;
        self.shared.notes.add(|| {
            let (name, process) = (self.name, self.process);
            format!(
                "{name} opens in process {process}: {synchronous:?}, side {has_side}, {mode}, cache {cache}, only reads {reads_only}"
            )
        });
        let journal_in_memory = mode == "MEMORY";
        Ok(Client { db, synchronous, journal_in_memory, has_side, reading: None, snapshot: None })
    }

    /// False if it cannot open.
    pub(super) fn has_client(&mut self) -> Result<bool, String> {
        if self.client.is_none() {
            match self.open() {
                Ok(client) => self.client = Some(client),
                Err(e) => return self.tolerate(&e, "open").map(|()| false),
            }
        }
        Ok(true)
    }

    pub(super) fn prints(&mut self) -> rusqlite::Result<Vec<Print>> {
        let Some(client) = &self.client else { return Ok(Vec::new()) };
        // Others act while SQLite holds the mapped pages of a row.
        let waits = self.shared.setting.mapped_bytes > 0 && self.rng.below(3) == 0;
        let (at, points) = if waits { (self.rng.below(60) as u32, self.rng.below(LONG_PAUSE)) } else { (0, 0) };
        let pause = |row| {
            if row == at {
                (0..points).for_each(|_| point())
            }
        };
        SCHEMAS[..client.files()].iter().map(|schema| print_slowly(&client.db, schema, pause)).collect()
    }

    pub(super) fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.client.as_ref().map_or(Ok(()), |client| client.db.execute_batch(sql))
    }

    fn make_tables(&mut self) -> Step {
        for file in 0..2 {
            let setting = &self.shared.setting;
            let made = self.level.open(file, &setting.options).and_then(|db| {
                db.execute_batch(&statements::settings(setting.shape, "main"))?;
                let merges = file == 0 && self.shared.merges.is_some();
                let all = statements::schema("main").join("; ") + "; INSERT INTO t VALUES (1000, 'stamp', NULL)";
                db.execute_batch(&format!("BEGIN IMMEDIATE; {}", if merges { merges::schema() } else { all }))?;
                let next = print(&db, "main")?;
                if let Some(merged) = self.shared.known.lock().merged.as_mut().filter(|_| merges) {
                    merged.make_tables(next);
                }
                let own = self.shared.known.lock().attempt(&[Change { file, base: 0, next }], true);
                db.execute_batch("COMMIT")?;
                let mut known = self.shared.known.lock();
                known.files[file].see(own.map_or(0, |own| own[0]));
                if let Some(merged) = known.merged.as_mut().filter(|_| merges) {
                    merged.see(1);
                }
                drop(known);
                db.close().map_err(|(_, e)| e)
            });
            if let Err(e) = made {
                return Err(format!("making tables: {}", said(&e)));
            }
        }
        Ok(())
    }

    /// Behind a crash: the states that it reads are the ones.
    fn decide(&mut self) -> Step {
        let from = self.shared.known.lock().allowed(true);
        let mut prints = [empty(); 2];
        for file in 0..2 {
            if self.disk.sim().snapshot_file(&path(file)).is_none() {
                continue;
            }
            let seen = self.level.open(file, &self.shared.setting.options).and_then(|db| {
                let seen = print(&db, "main")?;
                db.close().map_err(|(_, e)| e)?;
                Ok(seen)
            });
            prints[file] = seen.map_err(|e| format!("it cannot decide: {}", said(&e)))?;
        }
        let found = from.find(prints)?;
        let mut known = self.shared.known.lock();
        let first = usize::from(known.merged.is_some());
        for file in first..2 {
            let seen = known.files[file].seen + found[file];
            known.files[file].see(seen);
            known.files[file].settle();
        }
        known.pairs.clear();
        if let Some(merged) = &mut known.merged {
            merged.settle(prints[0]);
        }
        self.shared.notes.add(|| format!("{} finds {:?}", self.name, [0, 1].map(|file| known.files[file].seen)));
        Ok(())
    }

    pub(super) fn end(&mut self) -> Step {
        let Some(client) = self.client.as_mut().filter(|client| client.reading.is_some()) else { return Ok(()) };
        (client.reading, client.snapshot) = (None, None);
        match client.db.execute_batch("COMMIT") {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate(&e, "end of a read"),
        }
    }

    /// Not behind a lost log, which connections that only read would leave without another
    /// (docs/faults.md).
    fn leave(&mut self) -> Step {
        if self.shared.lost.load(Ordering::SeqCst) { Ok(()) } else { self.close() }
    }

    fn close(&mut self) -> Step {
        self.end()?;
        self.abort();
        let Some(client) = self.client.take() else { return Ok(()) };
        let closed = client.db.close();
        self.shared.notes.add(|| format!("{} closes: {}", self.name, closed.is_ok()));
        match closed {
            Ok(()) => Ok(()),
            Err((_, e)) => self.tolerate(&e, "close"),
        }
    }

    /// Another program removes a log that is in use, unless a process may die before it notices.
    fn lose_log(&mut self) -> Step {
        let Shared { faulty, full, loses, lost, .. } = self.shared.clone();
        if faulty || full || !loses || lost.load(Ordering::SeqCst) {
            return Ok(());
        }
        // With a snapshot its process uses the log.
        self.end()?;
        if !self.read_behind("BEGIN")? || self.reads_only {
            return Ok(());
        }
        let sim = self.disk.sim();
        let file = self.rng.below(self.client.as_ref().map_or(1, Client::files));
        let is_marked = sim.snapshot_file(&path(file)).is_some_and(|home| mark(&home).is_some());
        let log = log_path(file);
        let may_die = self.all.iter().any(|level| !level.is_alive());
        if !is_marked || may_die || lost.load(Ordering::SeqCst) || sim.snapshot_file(&log).is_none() {
            return Ok(());
        }
        lost.store(true, Ordering::SeqCst);
        self.all.iter().for_each(|level| level.die_after(u64::MAX));
        self.shared.notes.add(|| format!("another program removes the log of {file}"));
        sim.remove(&log).map_err(|e| format!("the log cannot be removed: {e}"))
    }

    /// The thread for idle databases, or the end of a program that does not close.
    fn look_after(&mut self) -> Step {
        self.end()?;
        let failed = Mutex::new(None);
        let tell = |_: &std::path::Path, e: &onewrite_core::Error| *failed.lock() = Some(format!("{e} ({e:?})"));
        match self.rng.below(3) {
            0 => self.level.rest(tell),
            _ => self.level.look_after(Instant::now() + Duration::from_secs(20 * self.rng.below(2) as u64), tell),
        }
        self.shared.notes.add(|| format!("{} looks after its process", self.name));
        match failed.into_inner() {
            Some(what) if self.level.is_alive() && !self.shared.faulty => Err(format!("at rest: {what}")),
            _ => Ok(()),
        }
    }

    /// Pages are mapped where no transaction has made a log for the file since its rest.
    fn map_at_rest(&mut self) -> Step {
        self.end()?;
        if self.rng.below(2) == 0 {
            self.look_after()?;
        }
        self.read()?;
        self.end()
    }

    fn run_pragma(&mut self, sql: &str) -> Step {
        if !self.has_client()? {
            return Ok(());
        }
        let Some(client) = self.client.as_ref().filter(|_| !self.reads_only) else { return Ok(()) };
        let sql = format!("PRAGMA {}.{sql}", SCHEMAS[self.rng.below(client.files())]);
        let done = last_row(&client.db, &sql);
        self.shared.notes.add(|| format!("{} runs {sql}: {done:?}", self.name));
        match done {
            Ok(_) => Ok(()),
            Err(e) => self.tolerate(&e, &sql),
        }
    }

    fn change_locking(&mut self, mode: &str) -> Step {
        // It may stay beside the log for good, where NORMAL and a journal in memory are not safe.
        let is_safe = |client: &Client| client.synchronous != Synchronous::Normal && !client.journal_in_memory;
        if !self.has_client()? || !self.client.as_ref().is_some_and(is_safe) {
            return Ok(());
        }
        self.run_pragma(&format!("locking_mode={mode}"))
    }

    fn vacuum(&mut self) -> Step {
        self.end()?;
        if !self.has_client()? || self.reads_only || !self.shared.steps_aside {
            return Ok(());
        }
        if !self.client.as_ref().is_some_and(Client::may_step_aside) {
            return Ok(());
        }
        let page_bytes = [512, 1024, 2048, 4096][self.rng.below(4)];
        let sql = match self.rng.below(3) {
            0 => "VACUUM".to_owned(),
            _ => format!("PRAGMA page_size={page_bytes}; VACUUM"),
        };
        let done = self.execute(&sql);
        self.shared.notes.add(|| format!("{} runs {sql}: {done:?}", self.name));
        match done {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate(&e, "vacuum"),
        }
    }

    /// Reads both databases, in its transaction if it has one.
    fn read(&mut self) -> Step {
        if self.shared.merges.is_some() {
            return self.read_merged();
        }
        self.read_behind("BEGIN").map(|_| ())
    }

    /// False where that fails.
    fn read_behind(&mut self, begin: &str) -> Result<bool, String> {
        if !self.has_client()? {
            return Ok(false);
        }
        let from: Vec<usize> = self.shared.known.lock().files.iter().map(|file| file.seen).collect();
        let pinned = self.client.as_ref().and_then(|client| client.reading.clone());
        let begun = if pinned.is_none() { self.execute(begin) } else { Ok(()) };
        let prints = match begun.and_then(|()| self.prints()) {
            Ok(prints) => prints,
            Err(e) => return self.tolerate(&e, "read").map(|()| false),
        };
        let mut known = self.shared.known.lock();
        let mut found = Vec::new();
        for (file, seen) in prints.iter().enumerate() {
            let timeline = &mut known.files[file];
            let at = timeline.states.iter().rposition(|(state, _)| state == seen);
            let expected = pinned.as_ref().map_or(from[file].., |pinned| pinned[file]..);
            let Some(at) = at.filter(|at| expected.contains(at)) else {
                // A dead process reads nothing.
                if !self.level.is_alive() {
                    return Ok(false);
                }
                let (states, at) = (timeline.from(from[file]), from[file]);
                return Err(format!(
                    "{} is {seen:?} ({begin}, {pinned:?}), of none of {states:?} from {at}",
                    SCHEMAS[file]
                ));
            };
            if pinned.as_ref().is_some_and(|pinned| pinned[file] != at) {
                return Err(format!(
                    "a snapshot changed from state {} to {at}",
                    pinned.as_ref().map_or(0, |p| p[file])
                ));
            }
            // With its lock to write, a transaction reads what may not be durable until it ends.
            if begin != IMMEDIATE || pinned.is_some() {
                timeline.see(at);
            }
            found.push(at);
        }
        drop(known);
        self.shared.notes.add(|| format!("{} reads states {found:?} behind {begin}", self.name));
        if let Some(client) = &mut self.client {
            client.reading = Some(found);
        }
        if self.rng.below(8) == 0 { self.check_indexes() } else { Ok(true) }
    }

    pub(super) fn check_indexes(&mut self) -> Result<bool, String> {
        let Some(client) = &self.client else { return Ok(false) };
        for schema in &SCHEMAS[..client.files()] {
            match damage(&client.db, schema) {
                Ok(None) => {}
                // integrity_check reports a page as damage that it cannot read, or has no room for.
                Ok(Some(_)) if !self.level.is_alive() || self.shared.faulty || self.shared.full => return Ok(true),
                // It needs room in SQLite's cache: another commit refuses the pages that it spills.
                Ok(Some(damage)) if self.shared.merges.is_some() && damage.contains(REFUSED) => return Ok(true),
                Ok(Some(damage)) => return Err(format!("integrity_check of {schema}: {damage}")),
                Err(e) => return self.tolerate(&e, "integrity_check").map(|()| false),
            }
        }
        Ok(true)
    }

    fn draw_statements(&mut self, files: &[usize]) -> Vec<String> {
        let setting = &self.shared.setting;
        let is_large = |file: &usize| bytes_of(self.disk.sim(), *file) > setting.shape.bytes_max;
        let large: Vec<usize> = files.iter().copied().filter(is_large).collect();
        if !large.is_empty() {
            return large.iter().flat_map(|file| statements::shrink(SCHEMAS[*file])).collect();
        }
        let schemas: Vec<&str> = files.iter().map(|file| SCHEMAS[*file]).collect();
        statements::transaction(setting.shape, &schemas, &mut self.rng)
    }

    fn write(&mut self) -> Step {
        if self.rng.below(4) > 0 {
            self.end()?;
        }
        if !self.has_client()? {
            return Ok(());
        }
        if self.reads_only {
            return self.read();
        }
        let begin = ["BEGIN", IMMEDIATE][self.rng.below(2)];
        if !self.read_behind(begin)? {
            return Ok(());
        }
        let Some(client) = &self.client else { return Ok(()) };
        let files = match self.rng.below(4) {
            _ if !client.has_side => vec![0],
            0 => vec![0],
            1 => vec![1],
            // A log takes undecided transactions over both with it (docs/faults.md).
            _ if self.shared.steps_aside && client.may_step_aside() && !self.shared.loses => vec![0, 1],
            other => vec![other % 2],
        };
        let bases = client.reading.clone().unwrap_or_default();
        let all = self.draw_statements(&files);
        self.shared.notes.add(|| format!("{} writes {files:?} on {bases:?}: {}", self.name, all.join("; ")));
        for sql in &all {
            match self.execute(sql) {
                Ok(()) => {}
                Err(e) if explain(&e).0 & 0xff == ffi::SQLITE_CONSTRAINT => {}
                Err(e) => return self.tolerate(&e, sql),
            }
        }
        for file in &files {
            let stamp = self.shared.stamps.fetch_add(1, Ordering::SeqCst);
            let sql = format!("INSERT OR REPLACE INTO {}.t VALUES (1000, 'stamp {stamp}', NULL)", SCHEMAS[*file]);
            if let Err(e) = self.execute(&sql) {
                return self.tolerate(&e, "stamp");
            }
        }
        let prints = match self.prints() {
            Ok(prints) => prints,
            Err(e) => return self.tolerate(&e, "read of a transaction's own"),
        };
        if self.rng.below(8) == 0 && !self.check_indexes()? {
            return Ok(());
        }
        if self.rng.below(8) == 0 {
            self.abort();
            return Ok(());
        }
        let changes: Vec<Change> =
            files.iter().map(|file| Change { file: *file, base: bases[*file], next: prints[*file] }).collect();
        self.commit(&changes)
    }

    fn commit(&mut self, changes: &[Change]) -> Step {
        let Some(client) = &mut self.client else { return Ok(()) };
        let read = client.reading.take().unwrap_or_default();
        let (stale, own) = {
            let mut known = self.shared.known.lock();
            let stale = changes.iter().any(|change| change.base < known.files[change.file].seen);
            // A dead process may believe that it has the writer's place.
            if !self.level.is_alive() {
                return Ok(());
            }
            (stale, if stale { Vec::new() } else { known.attempt(changes, client.synchronous == Synchronous::Full)? })
        };
        self.shared.notes.add(|| format!("{} may commit states {own:?}", self.name));
        let done = client.db.execute_batch("COMMIT");
        self.shared.notes.add(|| format!("{} commits: {done:?}", self.name));
        match done {
            Ok(()) if !self.level.is_alive() => Ok(()),
            Ok(()) if stale => Err("a stale snapshot was written on".to_owned()),
            Ok(()) => {
                let mut known = self.shared.known.lock();
                read.iter().enumerate().for_each(|(file, at)| known.files[file].see(*at));
                changes.iter().zip(&own).for_each(|(change, at)| known.files[change.file].see(*at));
                self.shared.setting.counts.commits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => {
                let is_refused = [ffi::SQLITE_BUSY, ffi::SQLITE_FULL].contains(&(explain(&e).0 & 0xff));
                if is_refused && !self.shared.faulty && self.level.is_alive() && !stale {
                    self.shared.known.lock().withdraw(changes, &own);
                }
                self.tolerate(&e, "commit")
            }
        }
    }
}
