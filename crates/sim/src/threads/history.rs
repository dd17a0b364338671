//! Histories of threads: in each round some of them write, read, bring pages home, close and open;
//! then another round follows, in the same processes or behind a crash.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onewrite_core::disk::Disk;
use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64, point};
use onewrite_core::{Engine, Error, LockLevel};
use parking_lot::Mutex;

use super::process::ProcessDisk;
use super::store::{self, PATIENCE, Store};
use super::{Found, Notes, draw_fault, left_by, outcome, report, run_each};
use crate::baton::GoesOn;
use crate::check::{
    Counts, DB, ROOMY, Setting, Violation, check, drawn_disk, end_write, engine_on, home_is_plain, is_fault, is_full,
    open, read_again, read_all,
};
use crate::history::Campaign;
use crate::hook::{HookDisk, Point};
use crate::model::{Plan, Room, State, Taste};
use crate::oracle::Timeline;
use crate::pager::{Client, Course, Synchronous};

/// So often a thread tries to begin.
const DECISIONS_MAX: usize = 200;

/// Those that several processes can use at a time.
pub const SCHEMES: [&str; 2] = ["log", "wal-opt"];

#[derive(Clone)]
struct Shared {
    setting: Setting,
    known: Arc<Mutex<Timeline<Arc<State>>>>,
    found: Found,
    notes: Notes,
    /// A write or flush fails in this round.
    faulty: bool,
    /// The disk has little room in this round.
    full: bool,
    /// A thread was told of the failure.
    struck: Arc<AtomicBool>,
    /// Commits wait for it.
    store: Option<Arc<Store>>,
    shipper: Shipper,
}

impl Shared {
    /// Where commits wait for a store, it has the state that a transaction saw or committed.
    fn check_stored(&self, at: usize, known: &Timeline<Arc<State>>) -> Result<(), String> {
        self.store.as_ref().map_or(Ok(()), |store| store.check(at, known))
    }
}

/// Of the states from `from` on, the first that equals the one that was read: later ones may not be
/// committed yet.
fn index_of(read: &Arc<State>, known: &Timeline<Arc<State>>, from: usize) -> Result<usize, String> {
    let at = known.states[from..].iter().position(|(state, _)| Arc::ptr_eq(state, read) || **state == **read);
    at.map(|at| from + at).ok_or_else(|| "it reads a state whose transaction failed".to_owned())
}

/// Others act before the next try.
fn pause() {
    (0..1000).for_each(|_| point());
}

/// The course of the shipper in this round.
#[derive(Clone, Copy, Default)]
struct Shipper {
    dies: bool,
    is_slow: bool,
    closes: bool,
}

/// Its threads end together.
#[derive(Clone)]
struct Process {
    disk: ProcessDisk,
    engine: Arc<Engine>,
}

impl Process {
    fn new(disk: &HookDisk) -> Process {
        let disk = ProcessDisk::new(disk.clone());
        Process { engine: engine_on(Arc::new(disk.clone())), disk }
    }

    fn bury(self) {
        self.disk.bury();
        std::mem::forget(self);
    }
}

/// A thread, with its connection.
struct Worker {
    name: usize,
    /// It sends commits to the store.
    ships: bool,
    process: Process,
    client: Option<Client>,
    rng: SplitMix64,
    shared: Shared,
}

struct World {
    rng: SplitMix64,
    disk: HookDisk,
    shared: Shared,
    processes: Vec<Process>,
    workers: Vec<Worker>,
    now: Duration,
    hired: usize,
    /// A crash, or a close on a full disk, may have left home longer than its state.
    crashed: bool,
    /// Draws the room of a round, in a history whose disk gets full.
    rooms: Option<SplitMix64>,
}

/// Runs the history of `seed`.
pub fn run(seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Result<(), Violation> {
    let mut rng = SplitMix64::new(seed);
    let drawn_scheme = ["log", "log", "log", "wal-opt"][rng.below(4)];
    let scheme = campaign.scheme.as_deref().unwrap_or(drawn_scheme);
    let drawn_unit = [512, 4096, 4096, 16384][rng.below(4)];
    let config = drawn_disk(&mut rng, campaign.atomic_unit.unwrap_or(drawn_unit), campaign.trace);
    // Else processes that flush in the same moment depend on more than onewrite promises.
    let config = SimConfig { tells_each: true, ..config };
    let page_bytes = [512, 1024, 4096, 4096][rng.below(4)];
    let taste = Taste { room: Room::No, page_bytes, pages_max: (300_000 / page_bytes).clamp(12, 60), big: 40 };
    let mut options = vec![("scheme", scheme), ("log_size", "256k")];
    options.push(("busy_ms", ["0", "20", "5000"][rng.below(3)]));
    if rng.below(2) == 0 {
        options.push(("stream_size", "64k"));
    }
    if rng.below(3) == 0 {
        options.push(("table_size", "64k"));
    }
    let options = options.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let setting = Setting { options, taste, counts: counts.clone(), durable: true, wipes: rng.below(4) == 0 };
    let shared = Shared {
        setting,
        known: Arc::new(Mutex::new(Timeline::starting(Arc::default()))),
        found: Arc::default(),
        notes: Notes::new(campaign.trace, SimDisk::new(config)),
        faulty: false,
        full: false,
        struck: Arc::default(),
        store: (SplitMix64::new(seed ^ 0x7368).below(4) == 0).then(Arc::default),
        shipper: Shipper::default(),
    };
    let disk = HookDisk::new(SimDisk::new(config), None);
    let (processes, workers) = Default::default();
    let mut rooms = SplitMix64::new(seed ^ 0x6675_6c6c);
    let rooms = (rooms.below(4) == 0 && shared.store.is_none()).then_some(rooms);
    let now = Duration::from_secs(1000);
    let mut world = World { rng, disk, shared, processes, workers, now, hired: 0, crashed: false, rooms };
    world.boot(SimDisk::new(config));
    let rounds = 1 + world.rng.below(campaign.steps.div_ceil(8).max(1));
    let mut done = Ok(());
    for _ in 0..rounds {
        done = done.and_then(|()| world.round());
    }
    let done = done.and_then(|()| world.finish());
    // Behind a violation a destructor may wait for ever.
    let World { shared, workers, processes, .. } = world;
    if done.is_err() {
        std::mem::forget((workers, processes));
    }
    done.map_err(|mut v| {
        v.what = format!("{} [{:?}, {:?}]", v.what, shared.setting.options, shared.setting.taste);
        v.notes = shared.notes.lines();
        v
    })
}

impl World {
    fn bad(&self, what: impl Into<String>) -> Violation {
        Violation::on(self.disk.sim(), what)
    }

    /// New processes; the old ones are killed.
    fn boot(&mut self, sim: SimDisk) {
        // They run no destructor.
        std::mem::forget(std::mem::take(&mut self.workers));
        self.processes.drain(..).for_each(Process::bury);
        self.shared.faulty = false;
        self.shared.struck = Arc::default();
        self.shared.notes.go_on(sim.clone());
        let point = self.crash_points();
        self.disk = HookDisk::new(sim, Some(point));
        let count = [1, 1, 2, 3][self.rng.below(4)] + usize::from(self.shared.store.is_some());
        self.processes = (0..count).map(|_| Process::new(&self.disk)).collect();
    }

    /// At some operations of a round the disk is checked as a crash would leave it.
    fn crash_points(&mut self) -> Point {
        let shared = self.shared.clone();
        let mut rng = SplitMix64::new(self.rng.next_u64());
        let every = 3 + rng.below(12);
        Box::new(move |operation, inside| {
            let drawn = usize::from(rng.below(every) == 0);
            for _ in 0..operation.crashes_min().max(drawn) {
                if shared.found.lock().is_some() {
                    return;
                }
                let known = shared.known.lock().clone();
                let killed = rng.below(6) == 0;
                let disk = left_by(&inside(), killed, &mut rng);
                if shared.store.is_some() {
                    store::forget(&disk);
                }
                let unflushed = known.from(known.floor);
                let allowed = if killed { known.from(known.seen) } else { unflushed.clone() };
                let depth = [0, 0, 0, 1][rng.below(4)];
                let verdict = check(&shared.setting, &disk, &allowed, &unflushed, &mut rng, depth);
                if let Err(v) = verdict {
                    report(&shared.found, &shared.notes, killed, &inside(), v);
                }
            }
        })
    }

    /// Some of the workers act, then all go on or all die.
    fn round(&mut self) -> Result<(), Violation> {
        while self.workers.len() < 4 && (self.workers.len() < 2 || self.rng.below(3) > 0) {
            self.hire();
        }
        if self.rng.below(5) == 0 {
            let fault = draw_fault(self.disk.sim(), &mut self.rng);
            self.shared.faulty = true;
            self.shared.notes.add(|| fault);
        }
        if let Some(rooms) = &mut self.rooms
            && rooms.below(2) == 0
        {
            let room = rooms.below(100_000) as u64;
            let sim = self.disk.sim();
            sim.set_capacity(sim.used_bytes() + room);
            (self.shared.full, self.crashed) = (true, true);
            self.shared.notes.add(|| format!("room for {room} bytes"));
        }
        let steps = 1 + self.rng.below(12);
        let closes = self.rng.below(6) == 0;
        if self.shared.store.is_some() {
            let mut draw = |one_in| self.rng.below(one_in) == 0;
            self.shared.shipper = Shipper { dies: draw(8), is_slow: draw(4), closes: draw(6) };
        }
        self.act(move |worker| {
            for _ in 0..steps {
                worker.step()?;
            }
            let closed = if closes { worker.close() } else { Ok(()) };
            worker.goes_on_behind(closed)
        })?;
        self.shared.shipper = Shipper::default();
        self.disk.sim().set_capacity(ROOMY);
        self.shared.full = false;
        if self.shared.faulty || self.rng.below(8) == 0 { self.die() } else { Ok(()) }
    }

    /// The first process is the shipper's, if there is one.
    fn hire(&mut self) {
        let first = usize::from(self.shared.store.is_some());
        let process = first + self.rng.below(self.processes.len() - first);
        self.hire_for(process, false);
    }

    fn hire_for(&mut self, process: usize, ships: bool) {
        let process = self.processes[process].clone();
        let (name, rng) = (self.hired, SplitMix64::new(self.rng.next_u64()));
        self.hired += 1;
        self.workers.push(Worker { name, ships, process, client: None, rng, shared: self.shared.clone() });
    }

    /// Each worker runs `what` on a thread of its own.
    fn act(
        &mut self,
        what: impl Fn(&mut Worker) -> Result<(), String> + Clone + Send + 'static,
    ) -> Result<(), Violation> {
        if let Some(store) = self.shared.store.clone() {
            if !self.workers.iter().any(|worker| worker.ships) {
                self.hire_for(0, true);
            }
            store.begin_round(self.workers.len() - 1, &self.processes[0].disk);
        }
        let shared = self.shared.clone();
        let goes_on = |worker: &Worker| -> GoesOn {
            let process = worker.process.disk.clone();
            Box::new(move || drop(process.end_thread_of_dead()))
        };
        let act = move |worker: &mut Worker| {
            worker.shared = shared.clone();
            let _busy = worker.shared.store.clone().filter(|_| !worker.ships).map(|store| store.busy());
            if worker.ships { worker.run(Worker::ship) } else { worker.run(&what) }
        };
        let (seed, workers) = (self.rng.next_u64(), std::mem::take(&mut self.workers));
        let (workers, ended) = run_each(seed, &mut self.now, workers, goes_on, act);
        self.workers = workers;
        outcome(&self.shared.found, ended, self.disk.sim())?;
        for worker in std::mem::take(&mut self.workers) {
            if worker.process.disk.is_dead() {
                self.crashed = true;
                std::mem::forget(worker);
            } else {
                self.workers.push(worker);
            }
        }
        for process in &mut self.processes {
            if process.disk.is_dead() {
                std::mem::replace(process, Process::new(&self.disk)).bury();
            }
        }
        Ok(())
    }

    /// All processes die, and perhaps the power goes; the next process decides for good.
    fn die(&mut self) -> Result<(), Violation> {
        let killed = self.rng.below(2) == 0;
        let sim = left_by(self.disk.sim(), killed, &mut self.rng);
        self.shared.notes.add(|| if killed { "all die".to_owned() } else { "power goes".to_owned() });
        self.crashed = true;
        let mut known = self.shared.known.lock();
        if !killed {
            known.lose_power();
        }
        // The store has flushed states, seen or not.
        known.seen = known.seen.max(known.floor);
        drop(known);
        self.boot(sim);
        self.hire();
        self.act(Worker::decide)?;
        self.shared.known.lock().settle();
        Ok(())
    }

    /// All connections close at once, and leave a plain file. Behind dead processes, another does.
    fn finish(&mut self) -> Result<(), Violation> {
        self.act(Worker::close)?;
        self.processes.iter().for_each(|process| process.disk.live_on());
        self.workers.clear();
        self.hire();
        self.shared.shipper.closes = true;
        self.act(|worker| worker.decide().and_then(|()| worker.close()))?;
        if self.disk.sim().snapshot_file(Path::new(DB)).is_none() {
            return Ok(());
        }
        let known = self.shared.known.lock().clone();
        let mut why = String::new();
        for state in known.from(known.seen).iter().rev() {
            match home_is_plain(self.disk.sim(), state, self.crashed) {
                Ok(()) => return Ok(()),
                Err(e) => why = e,
            }
        }
        Err(self.bad(format!("after the last close: {why}")))
    }
}

impl Worker {
    fn run(&mut self, what: impl FnOnce(&mut Worker) -> Result<(), String>) {
        let Err(what) = what(self) else { return };
        if self.process.disk.is_dead() {
            // By the end of another thread, before this one's next call.
            return;
        }
        let Shared { faulty, struck, found, store, .. } = &self.shared;
        self.shared.notes.add(|| format!("{} is told: {what}", self.name));
        if self.ships {
            store.iter().for_each(|store| store.fail());
        }
        if store.as_ref().is_some_and(|store| store.is_expected(&what)) {
            // Its transaction may still be open.
            if let Some(client) = &mut self.client {
                let _ = client.end();
            }
            return;
        }
        if *faulty && is_fault(&what) {
            struck.store(true, Ordering::SeqCst);
        } else {
            let (what, trace, notes) = (format!("thread {}: {what}", self.name), Vec::new(), Vec::new());
            found.lock().get_or_insert(Violation { what, trace, notes });
        }
    }

    fn step(&mut self) -> Result<(), String> {
        if self.shared.found.lock().is_some() || self.shared.struck.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.rng.below(40) == 0 {
            let calls = self.rng.below(100) as u64;
            self.shared.notes.add(|| format!("the process of {} dies after {calls} calls", self.name));
            self.process.disk.die_after(calls);
        }
        let done = match self.rng.below(24) {
            0..13 => self.write(),
            13..17 => self.look(),
            17..19 => self.end(),
            19..21 => self.checkpoint(),
            21 => self.close(),
            22 => self.rest(),
            _ => Ok(()),
        };
        self.goes_on_behind(done)
    }

    /// A full disk alone is no reason to fail for good.
    fn goes_on_behind(&mut self, done: Result<(), String>) -> Result<(), String> {
        match done {
            Err(what) if self.shared.full && is_full(&what) => {
                self.shared.notes.add(|| format!("{} finds no room: {what}", self.name));
                match &mut self.client {
                    Some(client) => client.end().map_err(|e| format!("end behind a full disk: {e} ({e:?})")),
                    None => Ok(()),
                }
            }
            done => done,
        }
    }

    fn client(&mut self) -> Result<&mut Client, String> {
        if self.client.is_none() {
            let disk: Arc<dyn Disk> = Arc::new(self.process.disk.clone());
            let mut setting = self.shared.setting.clone();
            if self.ships {
                setting.options.push(("shipper".to_owned(), "1".to_owned()));
            }
            let opened = open(&self.process.engine, disk, &setting);
            let mut client = opened.map_err(|e| format!("open: {e} ({e:?})"))?;
            client.synchronous =
                [Synchronous::Full, Synchronous::Full, Synchronous::Full, Synchronous::Normal][self.rng.below(4)];
            self.shared.notes.add(|| format!("{} opens, {:?}", self.name, client.synchronous));
            self.client = Some(client);
        }
        self.client.as_mut().ok_or_else(|| "no connection".to_owned())
    }

    fn end(&mut self) -> Result<(), String> {
        match self.client.as_mut().filter(|client| client.reading.is_some()) {
            Some(client) => client.end().map_err(|e| format!("end: {e}")),
            None => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        self.end()?;
        let Some(client) = self.client.take() else { return Ok(()) };
        let closed = client.close();
        self.shared.notes.add(|| format!("{} closes: {closed:?}", self.name));
        closed.map_err(|e| format!("close: {e} ({e:?})"))
    }

    /// Detaches its process from the database if no connection uses it.
    fn rest(&mut self) -> Result<(), String> {
        self.end()?;
        let failed = Mutex::new(None);
        self.process.engine.rest(|_, e| *failed.lock() = Some(format!("rest: {e} ({e:?})")));
        self.shared.notes.add(|| format!("{} rests", self.name));
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        let done = self.client()?.connection().pragma("checkpoint", None);
        self.shared.notes.add(|| format!("{} checkpoints: {done:?}", self.name));
        match done {
            Some(Err(Error::Busy(_)) | Ok(_)) => Ok(()),
            other => Err(format!("checkpoint: {other:?}")),
        }
    }

    /// Reads every page, through its snapshot if it has one.
    fn look(&mut self) -> Result<(), String> {
        self.client()?;
        let Worker { client: Some(client), shared, name, .. } = self else { return Ok(()) };
        if let Some(state) = client.reading.clone() {
            return read_again(client, &state);
        }
        let from = shared.known.lock().seen;
        let (_, bytes) = match client.begin() {
            Ok(begun) => begun,
            Err(e @ (Error::Busy(_) | Error::BusySnapshot)) => {
                let _ = client.end();
                shared.notes.add(|| format!("{name} does not begin: {e}"));
                return Ok(());
            }
            Err(e) => {
                let _ = client.end();
                return Err(format!("begin: {e} ({e:?})"));
            }
        };
        // Others may have written since it began, and will while it reads.
        let allowed = shared.known.lock().from(from);
        let found = allowed[read_all(client, bytes, &allowed)?].clone();
        if found.count() == 1 {
            // A writer may read page 1 of a state that others do not see yet, not the number of
            // pages.
            client.connection().note_size_asked().map_err(|e| format!("the size: {e} ({e:?})"))?;
        }
        client.reading = Some(found.clone());
        let mut known = shared.known.lock();
        let at = index_of(&found, &known, from)?;
        shared.check_stored(at, &known)?;
        known.see(at);
        shared.notes.add(|| format!("{name} reads state {at}"));
        Ok(())
    }

    /// Looks until it sees a state. Where commits wait for a store, the shipper begins first.
    fn decide(&mut self) -> Result<(), String> {
        for _ in 0..DECISIONS_MAX {
            self.look()?;
            if self.shared.store.is_none() || self.client.as_ref().is_some_and(|client| client.reading.is_some()) {
                return Ok(());
            }
            pause();
        }
        Err("it sees no state".to_owned())
    }

    /// Sends states to the store while others may commit, and then the rest.
    fn ship(&mut self) -> Result<(), String> {
        let Some(store) = self.shared.store.clone() else { return Ok(()) };
        if self.shared.shipper.dies {
            let calls = self.rng.below(300) as u64;
            self.shared.notes.add(|| format!("the shipper dies after {calls} calls"));
            self.process.disk.die_after(calls);
        }
        if !self.begin_to_ship(&store)? {
            return Ok(());
        }
        let failed = |e: Error| format!("ship: {e} ({e:?})");
        let mut is_flushed = false;
        loop {
            let is_last = !store.is_busy();
            let conn = self.client()?.connection();
            let waiting = conn.wait_to_ship(1, Duration::from_millis(1)).map_err(failed)?;
            if waiting > 0 && self.shared.shipper.is_slow && self.rng.below(8) == 0 {
                // New transactions are turned away meanwhile.
                self.shared.notes.add(|| "the store is slow".to_owned());
                store.fail();
                let conn = self.client()?.connection();
                let slow = conn.store_is_late().and_then(|()| conn.wait_to_ship(u64::MAX, 2 * PATIENCE));
                slow.map_err(failed)?;
            } else if waiting > 0 {
                self.send(&store)?;
            } else if is_last && is_flushed {
                break;
            } else if is_last {
                // Perhaps no other process flushes the leftovers of a dead one.
                self.client()?.connection().flush_to_ship(PATIENCE).map_err(failed)?;
                is_flushed = true;
            }
        }
        if self.shared.shipper.closes { self.close() } else { Ok(()) }
    }

    /// False where others are in the way for long.
    fn begin_to_ship(&mut self, store: &Store) -> Result<bool, String> {
        if self.client.is_some() {
            return Ok(true);
        }
        for _ in 0..DECISIONS_MAX {
            match self.client()?.connection().begin_shipping(PATIENCE) {
                Ok(()) => {
                    store.begin(&self.shared.known.lock());
                    self.shared.notes.add(|| format!("{} ships", self.name));
                    return Ok(true);
                }
                Err(Error::Busy(_) | Error::BusySnapshot) => pause(),
                Err(e) => return Err(format!("begin of shipping: {e} ({e:?})")),
            }
        }
        self.client = None;
        Ok(false)
    }

    fn send(&mut self, store: &Store) -> Result<(), String> {
        self.client()?;
        let Worker { client: Some(client), shared, name, .. } = self else { return Ok(()) };
        let failed = |e: Error| format!("send: {e} ({e:?})");
        let tid = match client.connection().lock_to_ship() {
            Err(Error::Busy(_) | Error::BusySnapshot) => return Ok(()),
            locked => locked.map_err(failed)?,
        };
        let bytes = client.connection().size().map_err(failed)?;
        let from = shared.known.lock().floor;
        let allowed = shared.known.lock().from(from);
        let found = allowed[read_all(client, bytes, &allowed)?].clone();
        client.connection().unlock(LockLevel::None).map_err(failed)?;
        {
            let mut known = shared.known.lock();
            let at = index_of(&found, &known, from)?;
            store.put(at, &mut known);
            shared.notes.add(|| format!("{name} sends state {at}, transaction {tid}"));
        }
        client.connection().shipped(tid).map_err(failed)
    }

    fn write(&mut self) -> Result<(), String> {
        if self.rng.below(4) > 0 {
            self.end()?;
        }
        let explicit = self.rng.below(2) == 0;
        self.client()?.connection().note_transaction(explicit, false, false);
        self.look().map_err(|e| format!("before a write: {e}"))?;
        let Worker { client: Some(client), shared, name, rng, .. } = self else { return Ok(()) };
        let Some(base) = client.reading.clone() else { return Ok(()) };
        let plan = Plan::draw(&base, shared.setting.taste, rng);
        let course = Course::draw(client.synchronous, rng);
        let durable = client.synchronous == Synchronous::Full;
        let mut stale = false;
        let own = std::cell::Cell::new(0);
        let mut attempt = |_| {
            let mut known = shared.known.lock();
            // The writer has the newest state, so no later one was committed.
            let base = known.states.iter().rposition(|(state, _)| **state == *base).filter(|at| *at >= known.seen);
            stale = base.is_none();
            let at = base.unwrap_or(known.seen);
            known.states.truncate(at + 1);
            known.states.push((plan.next.clone(), durable));
            own.set(at + 1);
            shared.notes.add(|| format!("{name} may commit state {}", at + 1));
        };
        let mut unstored = Ok(());
        let mut acknowledged = || {
            let mut known = shared.known.lock();
            unstored = shared.check_stored(own.get(), &known);
            known.see(own.get());
            shared.setting.counts.commits.fetch_add(1, Ordering::Relaxed);
        };
        let written = client.write(&base, &plan, course, &mut attempt, &mut acknowledged);
        shared.notes.add(|| format!("{name} writes {} -> {} pages: {written:?}", base.count(), plan.next.count()));
        unstored?;
        end_write(client, written, stale, base, course)?;
        if rng.below(3) > 0 { self.end() } else { Ok(()) }
    }
}
