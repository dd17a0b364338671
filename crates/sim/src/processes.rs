//! Several processes on one simulated disk, each with its own engine. During a process's disk calls
//! the others act, and it may die. Writes and flushes fail; power cuts end all.
//!
//! A reader sees a whole state that is no older than the newest acknowledged or seen one, for as
//! long as it reads; a writer that succeeds wrote on the newest.

use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use onewrite_core::disk::sim::{Op, SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, DiskFile, LockKind, OpenMode};
use onewrite_core::inspect::layout::{KEPT_SUFFIX, SLOTS_SUFFIX};
use onewrite_core::{Engine, Error};
use parking_lot::Mutex;

use crate::baton::alone;
use crate::check::{
    DB, ROOMY, Setting, Violation, asks_for_writer, end_write, engine_on, home_is_plain, is_fault, is_full, is_marked,
    open, read_again, read_all,
};
use crate::model::{Plan, Room, State, Taste};
use crate::pager::{Client, Course, Synchronous};

const PROCESSES: usize = 3;
const LOG: &str = "db-onewrite";

/// Unwinds a dying process; destructors on the way must have no effect.
struct Death;

#[derive(Clone)]
struct ProcessDisk {
    sim: SimDisk,
    /// Its open files, which close with its death and so release its locks.
    files: Arc<Mutex<Vec<Weak<OpenFile>>>>,
    /// Calls until death.
    fuse: Arc<AtomicU64>,
    /// Other processes act during its calls.
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
    /// Another connection of this process acts while a commit brings pages home: no lock that it
    /// takes is held then.
    beside: Arc<Mutex<Option<Meanwhile>>>,
    alive: Arc<AtomicBool>,
    /// Its user may not write the files.
    only_reads: bool,
}

/// `None` once its process is dead.
type OpenFile = Mutex<Option<Arc<dyn DiskFile>>>;

type Meanwhile = Box<dyn FnMut() + Send>;

impl ProcessDisk {
    fn new(sim: SimDisk, only_reads: bool) -> Self {
        ProcessDisk {
            sim,
            only_reads,
            files: Arc::default(),
            fuse: Arc::new(AtomicU64::new(u64::MAX)),
            meanwhile: Arc::default(),
            beside: Arc::default(),
            alive: Arc::new(AtomicBool::new(true)),
        }
    }

    /// True if the process dies halfway: the caller does half of the call, then calls
    /// [`ProcessDisk::die`].
    fn call(&self) -> bool {
        if !self.alive.load(Ordering::SeqCst) {
            resume_unwind(Box::new(Death));
        }
        let meanwhile = self.meanwhile.lock().take();
        if let Some(mut act) = meanwhile {
            act();
            *self.meanwhile.lock() = Some(act);
        }
        let left = self.fuse.load(Ordering::SeqCst);
        if left == u64::MAX {
            return false;
        }
        self.fuse.store(left.saturating_sub(1), Ordering::SeqCst);
        left == 0
    }

    fn die(&self) -> ! {
        self.kill();
        resume_unwind(Box::new(Death))
    }

    fn kill(&self) {
        self.alive.store(false, Ordering::SeqCst);
        for file in self.files.lock().drain(..).filter_map(|file| file.upgrade()) {
            *file.lock() = None;
        }
    }

    fn point(&self) {
        if self.call() {
            self.die();
        }
    }

    /// Before a call that changes names.
    fn point_of_names(&self) -> io::Result<()> {
        self.point();
        if self.only_reads { Err(ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>, path: Option<&Path>) -> Arc<dyn DiskFile> {
        let is_home = path.is_some_and(|path| path == Path::new(DB));
        let file = Arc::new(Mutex::new(Some(file)));
        let mut files = self.files.lock();
        files.retain(|f| f.strong_count() > 0);
        files.push(Arc::downgrade(&file));
        Arc::new(ProcessFile { disk: self.clone(), file, is_home })
    }
}

impl Disk for ProcessDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.point();
        if self.only_reads && mode != OpenMode::ReadOnly {
            return Err(ErrorKind::PermissionDenied.into());
        }
        Ok(self.wrap(self.sim.open(path, mode)?, Some(path)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.point_of_names()?;
        self.sim.remove(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.point();
        self.sim.exists(path)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.point_of_names()?;
        self.sim.exchange(one, other)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.point_of_names()?;
        self.sim.rename(from, to)
    }

    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        self.point();
        self.sim.sync_dir_of(path)
    }

    fn sync_all_beside(&self, path: &Path) -> io::Result<()> {
        self.point();
        self.sim.sync_all_beside(path)
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.point_of_names()?;
        Ok(self.wrap(self.sim.temp_file(near)?, None))
    }

    onewrite_core::forward_disk!(this => this.sim; identify, resolve, names_beside, names_stamp, syncs_all, system_start);
}

struct ProcessFile {
    disk: ProcessDisk,
    file: Arc<OpenFile>,
    is_home: bool,
}

impl ProcessFile {
    fn file(&self) -> Arc<dyn DiskFile> {
        let file = self.file.lock().clone();
        file.unwrap_or_else(|| resume_unwind(Box::new(Death)))
    }
}

impl DiskFile for ProcessFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.point();
        self.file().len()
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.point();
        self.file().read_once_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let beside = if self.is_home && buf.len() >= 512 { self.disk.beside.lock().take() } else { None };
        if let Some(mut act) = beside {
            act();
            *self.disk.beside.lock() = Some(act);
        }
        if self.disk.call() {
            // The kernel stops between pages.
            let pages = buf.len() / 4096 / 2 * 4096;
            let _ = self.file().write_at(&buf[..pages], offset);
            self.disk.die();
        }
        self.file().write_at(buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.disk.call() {
            // All of it, half or nothing is in the cache, unflushed.
            let part = [buf.len(), buf.len() / 4096 / 2 * 4096, 0][(offset / 512 % 3) as usize];
            let _ = self.file().write_at(&buf[..part], offset);
            self.disk.die();
        }
        self.file().write_durable_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_from(0)
    }

    fn sync_from(&self, from: u64) -> io::Result<()> {
        if self.disk.call() {
            if self.disk.sim.ops().is_multiple_of(2) {
                // The process dies before it can tell of the failed flush: the pages stay in the
                // cache as clean.
                self.disk.sim.fail_nth(Op::Sync, 1, ErrorKind::Other);
                let _ = self.file().sync_from(from);
            }
            self.disk.die();
        }
        self.file().sync_from(from)
    }

    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        self.disk.point();
        self.file().finish_write_back(from)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.point();
        self.file().set_len(len)
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        self.disk.point();
        self.file().try_lock(offset, len, kind)
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.point();
        self.file().unlock(offset, len)
    }

    /// Those that may write lock and unlock, as on a system without such a question.
    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        if self.disk.only_reads {
            self.disk.point();
            return self.file().conflicts(offset, len, kind);
        }
        let is_free = self.try_lock(offset, len, kind)?;
        if is_free {
            self.unlock(offset, len)?;
        }
        Ok(!is_free)
    }

    onewrite_core::forward_disk_file!(this => this.file(); id, made, is_unlinked, seal, has_seal, reserve, shared_words, atomic_unit_bytes);
}

/// A dead process runs no destructor of its engine.
struct Process {
    disk: ProcessDisk,
    engine: Arc<Engine>,
    clients: Vec<Client>,
}

impl Process {
    fn new(sim: SimDisk, only_reads: bool) -> Process {
        let disk = ProcessDisk::new(sim, only_reads);
        Process { engine: engine_on(Arc::new(disk.clone())), disk, clients: Vec::new() }
    }

    /// One more connection; one that may not write needs the file to be there.
    fn open(&mut self, setting: &Setting, synchronous: Synchronous) -> Result<(), String> {
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let opened = if self.disk.only_reads {
            let conn = self.engine.open(Path::new(DB), OpenMode::ReadOnly, &setting.options);
            conn.map(|conn| Client::new(conn, disk, Path::new(DB)))
        } else {
            open(&self.engine, disk, setting)
        };
        let mut client = opened.map_err(|e| format!("open: {e} ({e:?})"))?;
        client.synchronous = synchronous;
        self.clients.push(client);
        Ok(())
    }
}

/// The oracle.
#[derive(Default)]
struct Known {
    /// States that may have been committed, oldest first.
    states: Vec<Arc<State>>,
    /// The newest acknowledged or seen.
    seen: usize,
    /// The newest state that no power cut may take back.
    floor: usize,
}

/// Counters of the campaign.
#[derive(Debug, Default)]
pub struct Tally {
    /// Acknowledged transactions.
    pub commits: u64,
    /// States read.
    pub reads: u64,
    /// States read by a process that may not write.
    pub observed: u64,
    /// Most transactions of a process that read at once.
    pub readers_max: usize,
    /// Reads during another process's disk call.
    pub reads_meanwhile: u64,
    /// Reads while another connection of the process brought pages home.
    pub reads_beside: u64,
    /// Transactions tried during another process's disk call.
    pub writes_meanwhile: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Deaths during a disk call.
    pub deaths_inside: u64,
    /// Failed writes and flushes.
    pub faults: u64,
    /// Processes refused after another's failure.
    pub refused: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Closes that left a plain file.
    pub plain: u64,
    /// Commits of transactions that stepped aside.
    pub asides: u64,
    /// Logs that were removed while in use, and made anew.
    pub lost_logs: u64,
    /// Tries to detach with connections open.
    pub rests: u64,
    /// Of those, with a plain file behind them.
    pub plain_rests: u64,
}

struct World {
    sim: SimDisk,
    processes: Arc<Mutex<Vec<Option<Process>>>>,
    known: Arc<Mutex<Known>>,
    found: Arc<Mutex<Option<String>>>,
    setting: Setting,
    tally: Arc<Mutex<Tally>>,
    rng: SplitMix64,
    /// A write or flush will fail, or has failed.
    faulty: bool,
    /// A failed flush is told to all, as Linux does. As `rests`.
    tells_each: bool,
    /// A process was told of the failure.
    struck: Arc<AtomicBool>,
    /// Draws when the disk gets full, and its room, in a history where it does. As `rests`.
    rooms: Option<SplitMix64>,
    full: bool,
    /// A crash, or a close on a full disk, may have left home longer than its state.
    crashed: bool,
    /// Processes detach while their connections are open. Not drawn: earlier seeds keep their
    /// histories.
    rests: bool,
    /// The last process may not write. As `rests`.
    observes: bool,
    /// Processes attach during another's calls. As `rests`.
    joins: bool,
    /// Another program removes logs that are in use. As `rests`.
    loses: bool,
    /// Some transactions step aside. As `rests`.
    steps_aside: bool,
    /// One is removed, and no other is there yet: a death may take what it had.
    lost: bool,
    /// Many connections of a process read at once, and few processes die. As `rests`.
    crowded: bool,
    notes: Vec<String>,
}

/// Runs the history of `seed`.
pub fn run(seed: u64, steps: usize, tally: &Arc<Mutex<Tally>>) -> Result<(), Violation> {
    alone(seed, || run_alone(seed, steps, tally))
}

fn run_alone(seed: u64, steps: usize, tally: &Arc<Mutex<Tally>>) -> Result<(), Violation> {
    let mut rng = SplitMix64::new(seed);
    let page_bytes = [512, 1024, 4096, 4096][rng.below(4)];
    let taste = Taste { room: Room::No, page_bytes, pages_max: (300_000 / page_bytes).clamp(12, 60), big: 40 };
    let scheme = ["log", "log", "wal-opt"][rng.below(3)];
    let mut options = vec![("scheme", scheme), ("log_size", "256k"), ("busy_ms", "0")];
    if rng.below(2) == 0 {
        options.push(("stream_size", "64k"));
    }
    if rng.below(2) == 0 {
        options.push(("table_size", "64k"));
    }
    let options = options.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let setting = Setting { options, taste, counts: Arc::default(), durable: true, wipes: false };
    let tells_each = matches!(seed % 11, 0 | 2 | 5 | 6);
    let config = SimConfig {
        capacity: ROOMY,
        atomic_unit: [512, 4096][rng.below(2)],
        as_windows: rng.below(2) == 0,
        tells_each,
        ..SimConfig::default()
    };
    let known = Known { states: vec![Arc::default()], ..Known::default() };
    let mut world = World {
        sim: SimDisk::new(config),
        processes: Arc::default(),
        known: Arc::new(Mutex::new(known)),
        found: Arc::default(),
        setting,
        tally: tally.clone(),
        rng,
        faulty: false,
        tells_each,
        struck: Arc::default(),
        rooms: matches!(seed % 9, 4 | 8).then(|| SplitMix64::new(seed ^ 0x6675_6c6c)),
        full: false,
        crashed: false,
        rests: matches!(seed % 7, 4 | 5),
        observes: matches!(seed % 13, 4 | 8),
        joins: matches!(seed % 19, 1 | 4 | 6 | 9 | 14),
        loses: matches!(seed % 23, 2 | 5 | 13 | 20),
        steps_aside: matches!(seed % 29, 3 | 9 | 11 | 19 | 23),
        lost: false,
        crowded: matches!(seed % 17, 2 | 5 | 10 | 13),
        notes: Vec::new(),
    };
    for _ in 0..PROCESSES {
        world.processes.lock().push(None);
    }
    let mut done = Ok(());
    for _ in 0..steps {
        done = done.and_then(|()| world.step()).and_then(|()| world.verdict());
    }
    let done = done.and_then(|()| world.end()).and_then(|()| world.verdict());
    for process in world.processes.lock().drain(..).flatten() {
        bury(process);
    }
    done.map_err(|what| Violation {
        what: format!("{what} [{:?}]", world.setting.options),
        trace: Vec::new(),
        notes: world.notes,
    })
}

/// The memory is forgotten without destructors.
fn bury(process: Process) {
    process.disk.kill();
    std::mem::forget(process);
}

/// Reads every page, through the client's snapshot if it has one.
fn look(client: &mut Client, known: &Mutex<Known>, tally: &Mutex<Tally>) -> Result<(), String> {
    if let Some(state) = client.reading.clone() {
        tally.lock().reads += 1;
        return read_again(client, &state);
    }
    let from = known.lock().seen;
    let (_, bytes) = match client.begin() {
        Ok(begun) => begun,
        Err(e) => {
            let _ = client.end();
            return match &e {
                Error::Busy(_) | Error::BusySnapshot => Ok(()),
                Error::CantOpen(why) | Error::ReadOnly(why) if asks_for_writer(why) => Ok(()),
                _ => Err(format!("begin: {e} ({e:?})")),
            };
        }
    };
    // Others may have written since it began, and will while it reads.
    let allowed = known.lock().states[from..].to_vec();
    let found = read_all(client, bytes, &allowed)?;
    tally.lock().reads += 1;
    if allowed[found].count() == 1 {
        // A writer may read page 1 of a state that others do not see yet, not the number of pages.
        client.connection().note_size_asked().map_err(|e| format!("the size: {e} ({e:?})"))?;
    }
    client.reading = Some(allowed[found].clone());
    let mut known = known.lock();
    if known.states.get(from + found) == Some(&allowed[found]) {
        known.seen = known.seen.max(from + found);
    }
    Ok(())
}

/// A full disk alone is no reason to fail for good.
fn unless_full(outcome: Result<(), String>, full: bool, clients: &mut [Client]) -> Result<(), String> {
    if !full || !matches!(&outcome, Err(what) if is_full(what)) {
        return outcome;
    }
    let mut begins = clients.iter_mut().filter(|client| client.reading.is_none());
    begins.try_for_each(|client| client.end().map_err(|e| format!("end behind a full disk: {e} ({e:?})")))
}

/// Whether a transaction had images in a log that was removed, or a process attaches that sees no
/// other.
fn is_loss(what: &str) -> bool {
    what.contains("begin that again") || what.contains("its log db-onewrite is missing")
}

fn end_all(clients: &mut [Client]) -> Result<(), String> {
    clients.iter_mut().try_for_each(|client| client.end().map_err(|e| format!("end: {e}")))
}

/// Detaches `process` from the database; whether it is.
fn rest(process: &Process) -> Result<bool, String> {
    let failed = std::cell::RefCell::default();
    process.engine.rest(|_, e| *failed.borrow_mut() = Some(format!("rest: {e} ({e:?})")));
    match failed.into_inner() {
        Some(what) => Err(what),
        None => Ok(!process.clients.iter().any(|client| client.is_live())),
    }
}

#[derive(Clone)]
struct Shared {
    commits: Arc<AtomicBool>,
    known: Arc<Mutex<Known>>,
    tally: Arc<Mutex<Tally>>,
    taste: Taste,
    steps_aside: bool,
}

/// Returns a description of the transaction.
fn write(client: &mut Client, shared: &Shared, rng: &mut SplitMix64) -> Result<String, String> {
    let Shared { commits, known, tally, taste, steps_aside } = shared;
    if client.reading.is_some() && rng.below(4) > 0 {
        client.end().map_err(|e| format!("end: {e}"))?;
    }
    look(client, known, tally).map_err(|e| format!("before a write: {e}"))?;
    let Some(base) = client.reading.clone() else { return Ok("could not begin".into()) };
    let mut plan = Plan::draw(&base, *taste, rng);
    let mut course = Course::draw(client.synchronous, rng);
    if *steps_aside && rng.below(3) == 0 {
        // With a file of another VFS, or to another page size.
        course = Course { late: false, ..course };
        let size = [512, 1024, 2048, 4096][rng.below(4)];
        if rng.below(2) == 0 {
            course.super_journal = true;
        } else if base.count() > 0 && size != base.page_bytes {
            plan = Plan::resized(&base, size, rng);
        }
    }
    let durable = client.synchronous == Synchronous::Full;
    let mut stale = false;
    let own = std::cell::Cell::new(0);
    let mut attempt = |is_aside| {
        commits.store(true, Ordering::SeqCst);
        tally.lock().asides += u64::from(is_aside);
        let mut known = known.lock();
        // The writer has the newest state, so no later one was committed.
        match known.states.iter().rposition(|s| **s == *base).filter(|at| *at >= known.seen) {
            Some(at) => known.seen = at,
            None => stale = true,
        }
        let seen = known.seen;
        known.states.truncate(seen + 1);
        known.states.push(plan.next.clone());
        own.set(seen + 1);
    };
    let mut acknowledged = || {
        let mut known = known.lock();
        // Others may have written on it since.
        known.seen = known.seen.max(own.get());
        if durable {
            known.floor = known.floor.max(own.get());
        }
        tally.lock().commits += 1;
    };
    let written = client.write(&base, &plan, course, &mut attempt, &mut acknowledged);
    let line = format!("writes {} -> {} pages: {written:?}", base.count(), plan.next.count());
    // One that steps aside is alone with the file.
    let written = written.map_err(|e| if matches!(e, Error::NotAlone(_)) { Error::BusySnapshot } else { e });
    end_write(client, written, stale, base, course)?;
    if rng.below(3) > 0 {
        client.end().map_err(|e| format!("end: {e}"))?;
    }
    Ok(line)
}

impl World {
    fn shared(&self) -> Shared {
        Shared {
            commits: Arc::default(),
            known: self.known.clone(),
            tally: self.tally.clone(),
            taste: self.setting.taste,
            steps_aside: self.steps_aside,
        }
    }

    fn verdict(&self) -> Result<(), String> {
        self.found.lock().take().map_or(Ok(()), Err)
    }

    fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    fn step(&mut self) -> Result<(), String> {
        if self.struck.load(Ordering::SeqCst) {
            return self.after_fault();
        }
        if !self.faulty && self.rng.below(30) == 0 {
            let op = [Op::Write, Op::WriteDurable, Op::Sync, Op::Sync][self.rng.below(4)];
            let nth = 1 + self.rng.below(12) as u64;
            self.sim.fail_nth(op, nth, ErrorKind::Other);
            self.faulty = true;
            self.note(format!("{op:?} {nth} from here fails"));
        }
        if let Some(rooms) = &mut self.rooms
            && rooms.below(10) == 0
        {
            let room = rooms.below(100_000) as u64;
            (self.full, self.crashed) = (!self.full, true);
            self.sim.set_capacity(if self.full { self.sim.used_bytes() + room } else { ROOMY });
            self.note(if self.full { format!("room for {room} bytes") } else { "room enough".to_owned() });
        }
        let mut n = self.rng.below(self.processes.lock().len());
        if self.only_reads(n) {
            match self.rng.below(16) {
                0 => {
                    self.kill(n);
                    return Ok(());
                }
                1..14 => return self.act(n, Self::observe),
                _ => n = 0,
            }
        }
        if self.rests && self.rng.below(6) == 0 {
            return self.act(n, Self::rest);
        }
        if self.loses && self.rng.below(12) == 0 {
            return self.lose_log();
        }
        let drawn = match self.rng.below(200) {
            150..160 | 193..199 if self.crowded && self.rng.below(8) > 0 => 0,
            drawn => drawn,
        };
        match drawn {
            0..110 => self.act(n, Self::write),
            110..150 => self.act(n, Self::read),
            150..160 => self.act(n, Self::end_read),
            160..185 => self.act(n, Self::checkpoint),
            185..193 => self.act(n, Self::close),
            193..197 => {
                self.kill(n);
                Ok(())
            }
            197 => self.all_die(),
            198 => self.cut_power(),
            _ => self.close_all(),
        }
    }

    fn only_reads(&self, n: usize) -> bool {
        self.observes && n + 1 == PROCESSES
    }

    /// During the disk calls of `what` others act, and the process may die.
    fn act(&mut self, n: usize, what: fn(&mut World, usize, &mut Process) -> Result<(), String>) -> Result<(), String> {
        let process = self.processes.lock()[n].take();
        let mut process = process.unwrap_or_else(|| Process::new(self.sim.clone(), self.only_reads(n)));
        if !self.lost && self.rng.below(if self.crowded { 60 } else { 12 }) == 0 {
            let fuse = if self.rng.below(2) == 0 { self.rng.below(12) } else { self.rng.below(150) };
            process.disk.fuse.store(fuse as u64, Ordering::SeqCst);
        }
        *process.disk.meanwhile.lock() = Some(self.meanwhile(n));
        let outcome = catch_unwind(AssertUnwindSafe(|| what(self, n, &mut process)));
        *process.disk.meanwhile.lock() = None;
        let readers = process.clients.iter().filter(|client| client.reading.is_some()).count();
        {
            let mut tally = self.tally.lock();
            tally.readers_max = tally.readers_max.max(readers);
        }
        match outcome {
            Ok(outcome) => {
                process.disk.fuse.store(u64::MAX, Ordering::SeqCst);
                let outcome = unless_full(outcome, self.full, &mut process.clients);
                self.processes.lock()[n] = Some(process);
                self.unless_fault(outcome)
            }
            Err(panic) if panic.is::<Death>() => {
                bury(process);
                self.note(format!("{n} dies inside"));
                // Others may be told of a flush that failed as it died.
                self.faulty |= self.tells_each;
                let mut tally = self.tally.lock();
                tally.deaths += 1;
                tally.deaths_inside += 1;
                Ok(())
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// All processes leave after an injected failure.
    fn unless_fault(&mut self, outcome: Result<(), String>) -> Result<(), String> {
        match outcome {
            Err(what) if self.faulty && is_fault(&what) => {
                self.note(format!("told: {what}"));
                self.struck.store(true, Ordering::SeqCst);
                Ok(())
            }
            Err(what) if self.lost && is_loss(&what) => {
                self.note(format!("told: {what}"));
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Every read is refused until the last attached process has left; then the next one recovers.
    fn after_fault(&mut self) -> Result<(), String> {
        self.tally.lock().faults += 1;
        let is_poisoned = self.is_poisoned();
        self.note(format!("after a fault; poisoned: {is_poisoned}"));
        for n in 0..PROCESSES {
            let process = self.processes.lock()[n].take();
            let Some(mut process) = process else { continue };
            if let Some(client) = process.clients.first_mut() {
                if !self.only_reads(n) {
                    let _ = client.roll_back();
                }
                let _ = client.end();
                match client.begin() {
                    // Busy: one that could not make its mark durable has the log to itself.
                    Err(Error::Poisoned(_) | Error::Busy(_)) => self.tally.lock().refused += 1,
                    begun if is_poisoned => return Err(format!("process {n} goes on after a failure: {begun:?}")),
                    _ => {}
                }
            }
            self.processes.lock()[n] = Some(process);
        }
        for n in 0..PROCESSES {
            if self.rng.below(2) == 0 {
                self.kill(n);
                continue;
            }
            let process = self.processes.lock()[n].take();
            let Some(mut process) = process else { continue };
            while let Some(client) = process.clients.pop() {
                let closed = client.close().map_err(|e| format!("process {n}: close: {e} ({e:?})"));
                self.unless_fault(unless_full(closed, self.full, &mut []))?;
            }
        }
        self.crashed = true;
        if self.rng.below(3) == 0 {
            return self.cut_power();
        }
        if self.tells_each {
            // The planned fault may not have struck.
            self.sim = self.sim.survive();
        }
        self.no_fault();
        self.settle()
    }

    fn no_fault(&mut self) {
        self.sim.set_capacity(ROOMY);
        (self.faulty, self.full) = (false, false);
        self.struck.store(false, Ordering::SeqCst);
    }

    /// Whether the log's words are poisoned and an attached process reads them. No process is
    /// attached to a plain home: after a failed flush of a mark's removal, the others go on
    /// reading.
    fn is_poisoned(&self) -> bool {
        const ATTACH: u64 = 0;
        const POISON: usize = 3;
        if !is_marked(&self.sim) {
            return false;
        }
        let Ok(log) = self.sim.open(Path::new(LOG), OpenMode::ReadWrite) else { return false };
        let poison = log.shared_words(1).map_or(0, |words| words.longs[POISON].load(Ordering::SeqCst));
        poison != 0 && !log.try_lock(ATTACH, 1, LockKind::Exclusive).unwrap_or(true)
    }

    /// `acting`: the process that calls the disk.
    fn meanwhile(&mut self, acting: usize) -> Meanwhile {
        let (processes, found, shared) = (self.processes.clone(), self.found.clone(), self.shared());
        let (faulty, full, lost, struck) = (self.faulty, self.full, self.lost, self.struck.clone());
        let mut rng = SplitMix64::new(self.rng.next_u64());
        let every = [4, 16, 64][self.rng.below(3)];
        let (rests, crowded, setting) = (self.rests, self.crowded, self.setting.clone());
        let sims: Vec<_> =
            (0..PROCESSES).map(|n| (self.joins && !self.only_reads(n)).then(|| self.sim.clone())).collect();
        Box::new(move || {
            if rng.below(every) != 0 || found.lock().is_some() {
                return;
            }
            let n = rng.below(processes.lock().len());
            let left = processes.lock()[n].take();
            let joined = || Some(Process::new(sims[n].clone().filter(|_| acting != n)?, false));
            let Some(mut process) = left.or_else(joined) else { return };
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                if process.clients.is_empty() && sims[n].is_none() {
                    return Ok(());
                }
                if process.clients.is_empty() {
                    process.open(&setting, Synchronous::Full)?;
                }
                if rests && rng.below(8) == 0 {
                    shared.tally.lock().rests += 1;
                    return rest(&process).map(drop);
                }
                let i = rng.below(process.clients.len());
                let client = &mut process.clients[i];
                let begins = client.reading.is_none();
                if !begins && rng.below(if crowded { 200 } else { 20 }) == 0 {
                    return client.end().map_err(|e| format!("end: {e}"));
                }
                match rng.below(16) {
                    0..4 if process.disk.only_reads => Ok(()),
                    0..3 if i < 2 => {
                        shared.tally.lock().writes_meanwhile += 1;
                        write(client, &shared, &mut rng).map(drop)
                    }
                    3 => match client.connection().pragma("checkpoint", None) {
                        Some(Err(Error::Busy(_)) | Ok(_)) => Ok(()),
                        other => Err(format!("checkpoint: {other:?}")),
                    },
                    // Else all of them read one state.
                    _ if crowded && begins && i >= 2 => Ok(()),
                    _ => {
                        shared.tally.lock().reads_meanwhile += 1;
                        look(client, &shared.known, &shared.tally)
                    }
                }
            }));
            match outcome.map(|done| unless_full(done, full, &mut process.clients)) {
                Ok(Ok(())) => {}
                Ok(Err(what)) if faulty && is_fault(&what) => struck.store(true, Ordering::SeqCst),
                Ok(Err(what)) if lost && is_loss(&what) => {}
                Ok(Err(what)) => *found.lock() = Some(format!("process {n}, during a call of another: {what}")),
                Err(panic) => resume_unwind(panic),
            }
            processes.lock()[n] = Some(process);
        })
    }

    /// Takes the last connection behind `i`, if any. It reads while `i` brings pages home, and no
    /// other process may read an older state afterwards (rule SeenWhenDurable).
    fn beside(&mut self, process: &mut Process, i: usize, shared: Shared) -> Option<Arc<Mutex<Option<Client>>>> {
        let client = if process.clients.len() > i + 1 { process.clients.pop() } else { None };
        let client = Arc::new(Mutex::new(Some(client?)));
        let (reads, found) = (client.clone(), self.found.clone());
        let (faulty, full, struck) = (self.faulty, self.full, self.struck.clone());
        *process.disk.beside.lock() = Some(Box::new(move || {
            let Some(mut client) = reads.lock().take_if(|_| shared.commits.load(Ordering::SeqCst)) else { return };
            shared.tally.lock().reads_beside += 1;
            let looked = catch_unwind(AssertUnwindSafe(|| {
                client.end().map_err(|e| format!("end: {e}"))?;
                look(&mut client, &shared.known, &shared.tally)
            }));
            match looked.map(|done| unless_full(done, full, std::slice::from_mut(&mut client))) {
                Ok(Ok(())) => {}
                Ok(Err(what)) if faulty && is_fault(&what) => struck.store(true, Ordering::SeqCst),
                Ok(Err(what)) => *found.lock() = Some(format!("beside one that brings pages home: {what}")),
                Err(death) => {
                    std::mem::forget(client);
                    resume_unwind(death);
                }
            }
            *reads.lock() = Some(client);
        }));
        Some(client)
    }

    fn client(&mut self, process: &mut Process) -> Result<usize, String> {
        let count = process.clients.len();
        if count == 0 || (count < 4 && self.rng.below(4) == 0) || (count < 16 && self.crowded) {
            let drawn = [Synchronous::Full, Synchronous::Full, Synchronous::Full, Synchronous::Normal];
            process.open(&self.setting, drawn[self.rng.below(4)])?;
        }
        Ok(self.rng.below(process.clients.len()))
    }

    /// A step of the process that may not write.
    fn observe(&mut self, n: usize, process: &mut Process) -> Result<(), String> {
        if !self.sim.exists(Path::new(DB)).unwrap_or(true) {
            return Ok(());
        }
        let i = self.client(process)?;
        let client = &mut process.clients[i];
        match self.rng.below(16) {
            0..12 => {
                let seen = look(client, &self.known, &self.tally);
                self.tally.lock().observed += u64::from(client.reading.is_some());
                seen.map_err(|e| format!("process {n}: {e}"))
            }
            12..15 => client.end().map_err(|e| format!("process {n}: end: {e} ({e:?})")),
            _ => {
                let client = process.clients.swap_remove(i);
                client.close().map_err(|e| format!("process {n}: close: {e} ({e:?})"))
            }
        }
    }

    fn read(&mut self, n: usize, process: &mut Process) -> Result<(), String> {
        let i = self.client(process)?;
        look(&mut process.clients[i], &self.known, &self.tally).map_err(|e| format!("process {n}: {e}"))
    }

    fn end_read(&mut self, _: usize, process: &mut Process) -> Result<(), String> {
        let Some(client) = process.clients.iter_mut().find(|c| c.reading.is_some()) else { return Ok(()) };
        client.end().map_err(|e| format!("end: {e}"))
    }

    fn write(&mut self, n: usize, process: &mut Process) -> Result<(), String> {
        if self.steps_aside && !self.lost && self.rng.below(6) == 0 {
            // This one is alone then.
            self.close_all()?;
        }
        // Only the first two connections write, so others keep their reads.
        let i = self.client(process)?.min(1);
        let shared = self.shared();
        let beside = self.beside(process, i, shared.clone());
        let line = write(&mut process.clients[i], &shared, &mut self.rng);
        if let Some(beside) = beside {
            *process.disk.beside.lock() = None;
            process.clients.extend(beside.lock().take());
        }
        let line = line.map_err(|e| format!("process {n}: {e}"))?;
        self.note(format!("{n}.{i} {line}"));
        // One more reads the new state, for long.
        let next = process.clients.iter_mut().skip(2).find(|client| self.crowded && client.reading.is_none());
        next.map_or(Ok(()), |client| look(client, &self.known, &self.tally)).map_err(|e| format!("process {n}: {e}"))
    }

    /// Those that have it open see to it as they write (rule LostLogReplaced).
    fn lose_log(&mut self) -> Result<(), String> {
        let writes = PROCESSES - usize::from(self.observes);
        let n = self.rng.below(writes);
        if self.faulty || self.full || self.processes.lock()[n].is_none() {
            return Ok(());
        }
        self.lost = true;
        // With a new snapshot it uses the log.
        self.act(n, |_, _, process| end_all(&mut process.clients))?;
        self.act(n, Self::read)?;
        let reads = self.processes.lock()[n]
            .iter()
            .any(|p| p.clients.iter().any(|client| client.reading.is_some() && client.is_live()));
        if !reads || !self.has_log() || !is_marked(&self.sim) {
            self.lost = false;
            return Ok(());
        }
        self.note("another program removes the log");
        self.sim.remove(Path::new(LOG)).map_err(|e| format!("the log cannot be removed: {e}"))?;
        for tries in 0..40 {
            if self.has_log() || !is_marked(&self.sim) {
                self.lost = false;
                self.tally.lock().lost_logs += 1;
                return Ok(());
            }
            if tries > 8 {
                // A snapshot needs the lost one.
                self.processes.lock().iter_mut().flatten().try_for_each(|process| end_all(&mut process.clients))?;
            }
            let writes = self.rng.below(writes);
            self.act(if tries > 20 { n } else { writes }, Self::write)?;
        }
        Err("no process makes a new log for the lost one".to_owned())
    }

    fn has_log(&self) -> bool {
        self.sim.exists(Path::new(LOG)).unwrap_or(false)
    }

    fn checkpoint(&mut self, n: usize, process: &mut Process) -> Result<(), String> {
        let i = self.client(process)?;
        self.note(format!("{n}.{i} checkpoints"));
        match process.clients[i].connection().pragma("checkpoint", None) {
            Some(Err(Error::Busy(_))) | Some(Ok(_)) => Ok(()),
            other => Err(format!("process {n}: checkpoint: {other:?}")),
        }
    }

    fn close(&mut self, n: usize, process: &mut Process) -> Result<(), String> {
        let all = self.rng.below(3) > 0;
        // A connection that never read would leave the files as they are.
        let Some(client) = process.clients.first_mut() else { return Ok(()) };
        look(client, &self.known, &self.tally).map_err(|e| format!("process {n}: {e}"))?;
        self.note(format!("{n} closes {}", if all { "all" } else { "one" }));
        while let Some(client) = process.clients.pop() {
            client.close().map_err(|e| format!("process {n}: close: {e} ({e:?})"))?;
            if !all {
                return Ok(());
            }
        }
        let others = self.processes.lock().iter().flatten().any(|p| !p.clients.is_empty());
        // One that may not write leaves the mark to the next that may.
        if others || (self.observes && is_marked(&self.sim)) { Ok(()) } else { self.is_plain() }
    }

    /// Detaches, where no connection of the process reads; the last process leaves a plain file.
    fn rest(&mut self, n: usize, process: &mut Process) -> Result<(), String> {
        self.tally.lock().rests += 1;
        for client in &mut process.clients {
            if client.reading.is_some() && self.rng.below(4) > 0 {
                client.end().map_err(|e| format!("end: {e}"))?;
            }
        }
        let is_detached = rest(process).map_err(|e| format!("process {n}: {e}"))?;
        self.note(format!("{n} rests: {is_detached}"));
        let is_live = |process: &Process| process.clients.iter().any(|client| client.is_live());
        // The next to read rolls back.
        let is_hot = self.sim.exists(Path::new("db-journal")).unwrap_or(true);
        if is_detached && !is_hot && !self.processes.lock().iter().flatten().any(is_live) && !is_marked(&self.sim) {
            self.tally.lock().plain_rests += 1;
            return self.is_plain();
        }
        Ok(())
    }

    fn is_plain(&mut self) -> Result<(), String> {
        if self.sim.snapshot_file(Path::new(DB)).is_none() {
            return Ok(());
        }
        let mut known = self.known.lock();
        let all = known.states.clone();
        let mut why = String::new();
        for (at, state) in all.iter().enumerate().skip(known.seen).rev() {
            match home_is_plain(&self.sim, state, self.crashed) {
                Ok(()) => {
                    known.seen = at;
                    known.floor = at;
                    known.states.truncate(at + 1);
                    let outlives = |path: &PathBuf| {
                        [KEPT_SUFFIX, SLOTS_SUFFIX].iter().any(|suffix| path.to_string_lossy().contains(suffix))
                    };
                    if !self.crashed && self.sim.paths().iter().any(outlives) {
                        return Err("the kept images or further slots outlive the last process".into());
                    }
                    self.tally.lock().plain += 1;
                    return Ok(());
                }
                Err(e) => why = e,
            }
        }
        Err(format!("after the last close: {why}"))
    }

    fn kill(&mut self, n: usize) {
        if let Some(process) = self.processes.lock()[n].take() {
            // A process without a transaction that marked nothing leaves nothing in either case.
            bury(process);
            self.tally.lock().deaths += 1;
            self.crashed = true;
            self.notes.push(format!("{n} is killed"));
        }
    }

    fn all_die(&mut self) -> Result<(), String> {
        for n in 0..PROCESSES {
            self.kill(n);
        }
        self.note("all are dead");
        Ok(())
    }

    fn cut_power(&mut self) -> Result<(), String> {
        self.all_die()?;
        self.sim = self.sim.crash(self.rng.next_u64());
        self.no_fault();
        self.crashed = true;
        self.tally.lock().cuts += 1;
        self.note("power goes");
        let mut known = self.known.lock();
        known.seen = known.floor;
        drop(known);
        self.settle()
    }

    /// The next process to open the database decides for good.
    fn settle(&mut self) -> Result<(), String> {
        self.act(0, |world, n, process| {
            process.disk.fuse.store(u64::MAX, Ordering::SeqCst);
            world.read(n, process)
        })?;
        let mut known = self.known.lock();
        let seen = known.seen;
        known.states.truncate(seen + 1);
        known.floor = seen;
        Ok(())
    }

    fn close_all(&mut self) -> Result<(), String> {
        self.note("all close");
        for n in 0..PROCESSES {
            let process = self.processes.lock()[n].take();
            let Some(mut process) = process else { continue };
            while let Some(client) = process.clients.pop() {
                let closed = client.close().map_err(|e| format!("process {n}: close: {e} ({e:?})"));
                self.unless_fault(unless_full(closed, self.full, &mut []))?;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        self.sim.set_capacity(ROOMY);
        (self.full, self.joins) = (false, false);
        if self.struck.load(Ordering::SeqCst) {
            self.after_fault()?;
        }
        if self.faulty {
            // A pending fault must not strike later.
            self.cut_power()?;
        }
        self.close_all()?;
        // If the last processes died, one more recovers.
        self.act(0, |world, n, process| {
            process.disk.fuse.store(u64::MAX, Ordering::SeqCst);
            world.read(n, process)?;
            while let Some(client) = process.clients.pop() {
                client.close().map_err(|e| format!("close: {e}"))?;
            }
            Ok(())
        })?;
        self.is_plain()
    }
}
