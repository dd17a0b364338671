//! A history: processes start and end, connections read and write, and crashes come at every
//! operation.

use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{Op, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::log_path;
use onewrite_core::{Engine, Error};
use parking_lot::Mutex;

use crate::baton::alone;
use crate::check::{
    Copies, Counts, DB, Oracle, ROOMY, Setting, SharedOracle, Violation, check, drawn_disk, engine_on, home_is_plain,
    is_marked, log_is_empty, open, read_all, rotten_slot,
};
use crate::hook::{HookDisk, Point};
use crate::model::{Plan, Room, State, Taste, same};
use crate::pager::{Client, Course, JournalMode, Synchronous};

/// A campaign's settings; `None`: each history draws its own.
#[derive(Clone, Debug, Default)]
pub struct Campaign {
    /// Preset.
    pub scheme: Option<String>,
    /// Atomic unit of the device in bytes.
    pub atomic_unit: Option<u32>,
    /// Traces the disk's operations.
    pub trace: bool,
    /// Most steps of a history.
    pub steps: usize,
    /// Operations fail now and then.
    pub faults: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    Faults,
    /// Not of `dash` and `off`: an image that finds no room fails their commits in the middle.
    Full,
}

struct World {
    setting: Setting,
    rng: SplitMix64,
    disk: HookDisk,
    engine: Arc<Engine>,
    clients: Vec<Client>,
    oracle: SharedOracle,
    found: Arc<Mutex<Option<Violation>>>,
    trouble: Trouble,
    /// The present processes met a fault.
    faulty: bool,
    full: bool,
    /// On a full disk, no process could recover the database since the last one ended.
    unrecovered: bool,
    points: u64,
    /// One session follows another in the log.
    brief: bool,
    /// Small commits follow each other: checkpoints in slices come to their end.
    steady: bool,
    crashed: bool,
    /// A close was cut between its clean slot and its zeros.
    unwiped: bool,
    /// Another program does, between two sessions.
    copies_logs: bool,
    /// The traced steps, each with the number of the disk's operation.
    notes: Option<Vec<String>>,
}

type Step<T> = Result<T, Violation>;

/// Whether a preset writes undo records into pages.
pub fn in_page(scheme: &str) -> bool {
    ["dhl-cc", "dhl-tc", "lsmvbt", "mvbt", "mvbt-opt"].contains(&scheme)
}

/// Whether all connections close again and again.
pub fn is_brief(seed: u64) -> bool {
    seed % 7 == 3
}

/// Whether small commits follow each other for long.
fn is_steady(seed: u64) -> bool {
    SplitMix64::new(seed ^ 0x7377).below(4) == 0
}

/// Whether records are too long for the buffer of a group.
fn is_wide(seed: u64) -> bool {
    SplitMix64::new(seed ^ 0x7769).below(24) == 0
}

fn draw_options(seed: u64, rng: &mut SplitMix64, scheme: &str) -> Vec<(String, String)> {
    let mut options = vec![("scheme", scheme), ("log_size", "256k"), ("busy_ms", "0")];
    if rng.below(3) > 0 {
        options.push(("stream_size", "64k"));
    }
    if rng.below(3) == 0 {
        options.push(("table_size", "64k"));
    }
    if rng.below(5) == 0 {
        options.push(("sticky", "1"));
    }
    if rng.below(8) == 0 {
        options.push(("psow", "0"));
    }
    if in_page(scheme) && rng.below(3) == 0 {
        options.push(("gc", "eager"));
    }
    let own = match (is_steady(seed), is_wide(seed) && !in_page(scheme)) {
        (true, _) => &[("stream_size", ""), ("table_size", "64k")][..],
        (false, true) => &[("stream_size", ""), ("log_size", "2m")],
        (false, false) => &[],
    };
    options.retain(|(name, _)| own.iter().all(|(own, _)| own != name));
    options.extend(own.iter().filter(|(_, value)| !value.is_empty()));
    options.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

/// `b_trees`: pages are those of an in-page scheme. The atomic unit is in bytes.
fn draw_taste(seed: u64, rng: &mut SplitMix64, b_trees: bool, atomic_unit: u32) -> Taste {
    let page_bytes = [512, 512, 1024, 1024, 2048, 4096, 4096, 4096, 4096, 65536][rng.below(10)];
    let page_bytes = if b_trees { page_bytes.min(4096).min(atomic_unit as usize) } else { page_bytes };
    // Not drawn, so that earlier seeds keep their histories.
    let room = match (b_trees, seed % 5) {
        (false, _) => Room::No,
        (true, 2 | 3) => Room::Trailer,
        (true, _) => Room::Reserve,
    };
    let pages_max = (600_000 / page_bytes).clamp(12, 160);
    let big = if is_steady(seed) { 4 } else { (150_000 / page_bytes).clamp(4, 150) };
    if is_wide(seed) && !is_steady(seed) && !b_trees {
        return Taste { page_bytes: 65536, pages_max: 12, big: 8, room };
    }
    Taste { page_bytes, pages_max, big, room }
}

/// Runs the history of `seed`.
pub fn run(seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Result<(), Violation> {
    alone(seed, || run_alone(seed, campaign, counts))
}

fn run_alone(seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Result<(), Violation> {
    let mut rng = SplitMix64::new(seed);
    let drawn_scheme =
        ["log", "log", "log", "log", "wal-opt", "off", "off-opt", "dhl-cc", "dhl-tc", "mvbt"][rng.below(10)];
    let scheme = campaign.scheme.as_deref().unwrap_or(drawn_scheme).to_owned();
    let drawn_unit = [512, 4096, 4096, 16384][rng.below(4)];
    let atomic_unit = campaign.atomic_unit.unwrap_or(drawn_unit);
    let durable = !scheme.starts_with("off");
    let b_trees = in_page(&scheme);
    let config = drawn_disk(&mut rng, atomic_unit, campaign.trace);
    let steady = is_steady(seed);
    let taste = draw_taste(seed, &mut rng, b_trees, atomic_unit);
    let options = draw_options(seed, &mut rng, &scheme);
    // No draw, which would give all seeds other histories.
    let setting = Setting { options, taste, counts: counts.clone(), durable, wipes: seed.is_multiple_of(4) };
    let trouble = match rng.below(4) {
        _ if campaign.faults && durable => Trouble::Faults,
        0 if durable => Trouble::Faults,
        1 if durable && scheme != "dash" => Trouble::Full,
        _ => Trouble::None,
    };
    let oracle = Arc::new(Mutex::new(Oracle::starting(Arc::default())));
    // A crash point is checked with this chance, so that long histories end in time.
    let points = if durable { 3 + rng.below(6) as u64 } else { 0 };
    let found = Arc::default();
    let disk = HookDisk::new(SimDisk::new(config), None);
    let engine = engine_on(Arc::new(disk.clone()));
    // A panic leaves it as it is: closing its connections could panic again, and end the process.
    let mut world = ManuallyDrop::new(World {
        setting,
        rng,
        disk,
        engine,
        clients: Vec::new(),
        oracle,
        found,
        trouble,
        faulty: false,
        full: false,
        unrecovered: false,
        points,
        brief: is_brief(seed) && !steady,
        steady,
        crashed: false,
        unwiped: false,
        // No draw, as above.
        copies_logs: durable && seed % 6 == 1,
        notes: campaign.trace.then(Vec::new),
    });
    let first = SimDisk::new(config);
    world.boot(first);
    let steps = (10 + world.rng.below(campaign.steps.max(1))) * if steady { 2 } else { 1 };
    let mut done = Ok(());
    for _ in 0..steps {
        done = done.and_then(|()| world.step()).and_then(|()| world.verdict());
    }
    let done = done.and_then(|()| world.finish());
    let mut world = ManuallyDrop::into_inner(world);
    done.map_err(|mut v| {
        v.what = format!("{} [{:?}, {:?}]", v.what, world.setting.options, world.setting.taste);
        v.notes = world.notes.take().unwrap_or_default();
        v
    })
}

impl World {
    fn bad(&self, what: impl Into<String>) -> Violation {
        Violation::on(self.disk.sim(), what)
    }

    fn note(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.notes.is_some() {
            let line = format!("{:>6} {}", self.disk.sim().ops(), what(self));
            self.notes.iter_mut().for_each(|notes| notes.push(line.clone()));
        }
    }

    fn verdict(&self) -> Step<()> {
        let found = self.found.lock().take();
        found.map_or(Ok(()), Err)
    }

    fn boot(&mut self, sim: SimDisk) {
        self.clients.clear();
        let point = (self.points > 0).then(|| self.crash_points());
        self.disk = HookDisk::new(sim, point);
        self.engine = engine_on(Arc::new(self.disk.clone()));
        self.faulty = false;
    }

    fn crash_points(&mut self) -> Point {
        let (setting, oracle, found) = (self.setting.clone(), self.oracle.clone(), self.found.clone());
        let mut rng = SplitMix64::new(self.rng.next_u64());
        let every = self.points;
        // Writes in place have no record, so an older log fits (`docs/faults.md`).
        let copies = self.setting.options.iter().any(|(n, v)| n == "scheme" && (v == "log" || v == "wal-opt"));
        let mut earlier: Option<Copies> = None;
        Box::new(move |operation, inside| {
            let drawn = usize::from(rng.below(every as usize) == 0);
            for _ in 0..operation.crashes_min().max(drawn) {
                if found.lock().is_some() {
                    return;
                }
                if copies && rng.below(6) == 0 {
                    let Oracle { aside, states, .. } = oracle.lock().clone();
                    let now = Copies::of(&inside().survive(), states).filter(|_| !aside);
                    if let (Some(earlier), Some(now)) = (&earlier, &now)
                        && let Err(v) = earlier.check_apart(now, &setting, &mut rng)
                    {
                        *found.lock() = Some(v);
                    }
                    if earlier.is_none() || rng.below(4) == 0 {
                        earlier = now;
                    }
                    continue;
                }
                if rng.below(12) == 0 {
                    let (proven, disk) = (oracle.lock().after_rot(), inside().crash(rng.next_u64()));
                    if let Err(mut v) = rotten_slot(&setting, &disk, &proven, &mut rng) {
                        v.what = format!("after rot: {}", v.what);
                        *found.lock() = Some(v);
                    }
                    continue;
                }
                let killed = rng.below(6) == 0;
                let unflushed = oracle.lock().after_crash();
                let allowed = if killed { oracle.lock().after_kill() } else { unflushed.clone() };
                let depth = [0, 0, 1, 2][rng.below(4)];
                let disk = inside();
                let disk = if killed { disk.survive() } else { disk.crash(rng.next_u64()) };
                let verdict = check(&setting, &disk, &allowed, &unflushed, &mut rng, depth);
                if let Err(mut v) = verdict {
                    v.what = format!("{}: {}", if killed { "after a kill" } else { "after a crash" }, v.what);
                    *found.lock() = Some(v);
                }
            }
        })
    }

    fn step(&mut self) -> Step<()> {
        if self.brief && self.rng.below(3) == 0 {
            return self.close_all();
        }
        if self.trouble == Trouble::Faults && !self.faulty && self.rng.below(8) == 0 {
            return self.make_trouble();
        }
        if self.steady && self.rng.below(10) > 0 {
            return if self.rng.below(12) == 0 { self.release() } else { self.write() };
        }
        match self.rng.below(40) {
            0..22 => self.write(),
            22..27 => self.pin_or_read(),
            27..30 => self.release(),
            30..32 => self.checkpoint(),
            32 => self.close_all(),
            33 => self.resize(),
            34 | 35 if self.setting.durable => self.die(),
            36..38 => self.make_trouble(),
            _ => self.close_one(),
        }
    }

    /// A client that is not exclusive.
    fn client(&mut self) -> Step<Option<usize>> {
        if self.clients.is_empty() || (self.clients.len() < 4 && self.rng.below(6) == 0) {
            let opened = open(&self.engine, Arc::new(self.disk.clone()), &self.setting);
            let mut client = match opened {
                Ok(client) => client,
                Err(e) => return self.tolerate(&e, "open").map(|()| None),
            };
            client.synchronous = [Synchronous::Full, Synchronous::Full, Synchronous::Normal][self.rng.below(3)];
            if self.rng.below(10) == 0 {
                client.synchronous = Synchronous::Off;
            }
            client.journal_mode = [JournalMode::Delete, JournalMode::Truncate, JournalMode::Persist][self.rng.below(3)];
            self.clients.push(client);
        }
        Ok(Some(self.rng.below(self.clients.len())))
    }

    /// An expected error, or a violation. Processes with a broken database are restarted.
    fn tolerate(&mut self, error: &Error, doing: &str) -> Step<()> {
        match error {
            Error::Busy(_) | Error::BusySnapshot => Ok(()),
            Error::Full(_) if self.full => Ok(()),
            Error::Io { .. } if self.faulty => match self.rng.below(2) {
                0 => Ok(()),
                _ => self.die(),
            },
            Error::Poisoned(_) if self.faulty => self.die(),
            // A full disk alone is no reason to fail for good.
            other => Err(self.bad(format!("{doing}: {other} ({other:?})"))),
        }
    }

    /// Checks the state that client `i` sees. False: it could not begin.
    fn begin(&mut self, i: usize) -> Step<bool> {
        if self.clients[i].reading.is_some() {
            return Ok(true);
        }
        let (cached, bytes) = match self.clients[i].begin() {
            Ok(begun) => begun,
            Err(e) => {
                // A failed begin may leave locks.
                let _ = self.clients[i].end();
                self.unrecovered = matches!(e, Error::Full(_));
                self.tolerate(&e, "begin")?;
                return Ok(false);
            }
        };
        self.unrecovered = false;
        let latest = self.oracle.lock().latest().clone();
        if bytes != latest.bytes() as u64 {
            return Err(self.bad(format!("a reader sees {bytes} bytes instead of {}", latest.bytes())));
        }
        if cached.is_some_and(|cached| !cached.same(&latest)) {
            return Err(self.bad("the cache of an older state would be taken for valid"));
        }
        let kept = self.clients[i].check_kept(&latest);
        kept.map_err(|what| self.bad(what))?;
        self.clients[i].reading = Some(latest);
        self.note(|_| format!("{i} reads"));
        Ok(true)
    }

    fn write(&mut self) -> Step<()> {
        let Some(i) = self.client()? else { return Ok(()) };
        if !self.begin(i)? {
            return Ok(());
        }
        let Some(base) = self.clients[i].reading.clone() else { return Ok(()) };
        // Sometimes an empty transaction follows one that is not durable.
        let empty = !base.pages.is_empty() && !self.oracle.lock().is_certain() && self.rng.below(4) == 0;
        let plan = if empty { Plan::nothing(&base) } else { Plan::draw(&base, self.setting.taste, &mut self.rng) };
        let spill_after = if self.rng.below(3) == 0 { 1 + self.rng.below(20) } else { usize::MAX };
        let mut course = Course {
            commit: self.rng.below(6) > 0,
            spill_after,
            // Beside the log, SQLite's own rule holds: a crash may tear a rollback under OFF.
            super_journal: self.rng.below(24) == 0
                && !self.clients[i].exclusive
                && self.clients[i].synchronous != Synchronous::Off,
            by_log: self.oracle.lock().states.len().is_multiple_of(2),
            undo_prepared: self.rng.below(16) == 0,
            late: self.rng.below(12) == 0,
        };
        course.late &= !course.super_journal && self.clients[i].synchronous != Synchronous::Off;
        self.transact(i, &base, &plan, course)?;
        if self.rng.below(3) > 0 && self.clients.get(i).is_some_and(|c| !c.exclusive) {
            self.end(i)?;
        }
        Ok(())
    }

    fn transact(&mut self, i: usize, base: &Arc<State>, plan: &Plan, course: Course) -> Step<()> {
        let stale = !base.same(self.oracle.lock().latest());
        let (oracle, counts) = (self.oracle.clone(), self.setting.counts.clone());
        self.note(|w| {
            let (c, pages) = (&w.clients[i], (base.count(), plan.next.count(), plan.writes.len()));
            let settings = (c.synchronous, c.journal_mode, c.exclusive);
            format!("{i} writes: pages {pages:?}, stale {stale}, {course:?}, {settings:?}")
        });
        let client = &mut self.clients[i];
        let durable = client.synchronous == Synchronous::Full && self.setting.durable;
        let written =
            client.write(base, plan, course, &mut |aside| oracle.lock().attempt(plan.next.clone(), aside), &mut || {
                oracle.lock().acknowledge(durable);
                counts.commits.fetch_add(1, Ordering::Relaxed);
            });
        self.note(|w| format!("  {written:?}; floor, committed: {:?}", w.oracle.lock().marks()));
        self.verdict()?;
        match written {
            // A rollback under a lock that was kept may end without a call of the engine.
            Ok(()) if stale && !course.commit && self.clients[i].exclusive => Ok(()),
            Ok(()) if stale => Err(self.bad("a stale snapshot was written on")),
            Ok(()) => {
                let client = &mut self.clients[i];
                client.reading = Some(self.oracle.lock().latest().clone());
                let others_read = self.clients.iter().enumerate().any(|(n, c)| n != i && c.reading.is_some());
                if !others_read && self.rng.below(12) == 0 {
                    self.clients[i].exclusive ^= true;
                    if self.rng.below(2) == 0 {
                        // Otherwise the database counts as attached: SQLite passes the pragma to
                        // the main database alone.
                        let mode = if self.clients[i].exclusive { "exclusive" } else { "normal" };
                        if self.clients[i].connection().note_locking_mode(mode).is_err() {
                            // Then SQLite does not know that the lock is kept.
                            self.clients[i].exclusive = false;
                        }
                    }
                    if !self.clients[i].exclusive {
                        self.end(i)?;
                    }
                }
                Ok(())
            }
            Err(e) => {
                let attempted = self.oracle.lock().is_undecided();
                // SQLite does this after any error, and ignores errors of it.
                let _ = self.clients[i].roll_back();
                self.clients[i].exclusive = false;
                let _ = self.clients[i].end();
                self.verdict()?;
                if attempted {
                    // Late pages are prepared at this point, and the disk may lack room for them.
                    let no_room = course.late && self.full && matches!(e, Error::Full(_));
                    if !self.faulty && !no_room {
                        return Err(self.bad(format!("the second phase of a commit fails: {e}")));
                    }
                    return if self.rng.below(2) == 0 { self.press_on() } else { self.die() };
                }
                self.tolerate(&e, "write")
            }
        }
    }

    /// Continues after a failed commit, as a careless application does: a poisoned database answers
    /// nothing, and the answers of any other must last.
    fn press_on(&mut self) -> Step<()> {
        for i in 0..self.clients.len() {
            let _ = self.clients[i].roll_back();
            self.clients[i].exclusive = false;
            let _ = self.clients[i].end();
            let Ok((_, bytes)) = self.clients[i].begin() else { continue };
            let undecided = {
                let oracle = self.oracle.lock();
                oracle.states[oracle.committed..].to_vec()
            };
            let index = read_all(&mut self.clients[i], bytes, &undecided).map_err(|what| self.bad(what))?;
            if index > 0 {
                self.oracle.lock().acknowledge(false);
            }
            let base = undecided[index].clone();
            let plan = Plan::draw(&base, self.setting.taste, &mut self.rng);
            let course = Course::COMMIT;
            self.clients[i].synchronous = Synchronous::Full;
            self.note(|_| format!("{i} writes behind a failure"));
            self.transact_behind(i, &base, &plan, course);
            self.verdict()?;
        }
        self.die()
    }

    fn transact_behind(&mut self, i: usize, base: &Arc<State>, plan: &Plan, course: Course) {
        let oracle = self.oracle.clone();
        let attempt = &mut |aside| oracle.lock().attempt(plan.next.clone(), aside);
        let written = self.clients[i].write(base, plan, course, attempt, &mut || oracle.lock().acknowledge(true));
        self.note(|_| format!("  {written:?}"));
        let _ = self.clients[i].end();
    }

    fn resize(&mut self) -> Step<()> {
        let Some(i) = self.client()? else { return Ok(()) };
        if self.clients[i].exclusive || !self.begin(i)? {
            return Ok(());
        }
        let Some(base) = self.clients[i].reading.clone() else { return Ok(()) };
        if base.pages.is_empty() || base.page_bytes > 4096 {
            return Ok(());
        }
        let unit = self.disk.sim().atomic_unit() as usize;
        let b_trees = self.setting.taste.room.b_trees();
        let sizes = [512, 1024, 2048, 4096].map(|size| if b_trees { unit.min(size) } else { size });
        let Some(page_bytes) = sizes.into_iter().filter(|s| *s != base.page_bytes).nth(self.rng.below(3)) else {
            return Ok(());
        };
        let plan = Plan::resized(&base, page_bytes, &mut self.rng);
        let course = Course::COMMIT;
        self.transact(i, &base, &plan, course)
    }

    fn end(&mut self, i: usize) -> Step<()> {
        match self.clients[i].end() {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate(&e, "end"),
        }
    }

    fn pin_or_read(&mut self) -> Step<()> {
        let Some(i) = self.client()? else { return Ok(()) };
        if !self.begin(i)? {
            return Ok(());
        }
        let Some(state) = self.clients[i].reading.clone() else { return Ok(()) };
        let mut page = vec![0; state.page_bytes];
        for number in 1..=state.count() {
            if self.rng.below(3) == 0 {
                continue;
            }
            match self.clients[i].read(number, &mut page) {
                Ok(_) => {}
                Err(e) => return self.tolerate(&e, "read"),
            }
            if !same(number, &page, &state.pages[number as usize - 1]) {
                return Err(self.bad(format!("page {number} of a snapshot changed")));
            }
        }
        Ok(())
    }

    fn release(&mut self) -> Step<()> {
        let pinned: Vec<usize> = (0..self.clients.len()).filter(|i| self.clients[*i].reading.is_some()).collect();
        if pinned.is_empty() {
            return Ok(());
        }
        let i = pinned[self.rng.below(pinned.len())];
        if self.clients[i].exclusive { Ok(()) } else { self.end(i) }
    }

    fn checkpoint(&mut self) -> Step<()> {
        let Some(i) = self.client()? else { return Ok(()) };
        match self.clients[i].connection().pragma("checkpoint", None) {
            Some(Ok(_)) => {
                self.oracle.lock().settle();
                self.note(|_| format!("{i} checkpoints"));
                Ok(())
            }
            Some(Err(e)) => self.tolerate(&e, "checkpoint"),
            None => Err(self.bad("there is no pragma for a checkpoint")),
        }
    }

    fn close_one(&mut self) -> Step<()> {
        if self.clients.len() < 2 {
            return Ok(());
        }
        let i = self.rng.below(self.clients.len());
        self.note(|_| format!("{i} closes"));
        match self.clients.remove(i).close() {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate(&e, "close"),
        }
    }

    fn close_all(&mut self) -> Step<()> {
        let any = !self.clients.is_empty();
        self.note(|_| "all close".to_owned());
        while let Some(client) = self.clients.pop() {
            if let Err(e) = client.close() {
                self.clients.clear();
                self.verdict()?;
                return self.tolerate(&e, "close");
            }
        }
        self.verdict()?;
        // A poisoned database stays marked, for recovery.
        if any && !self.faulty && !self.unrecovered {
            self.oracle.lock().settle();
            let state = self.oracle.lock().latest().clone();
            let sticky = self.setting.options.iter().any(|(name, value)| name == "sticky" && value == "1");
            if !sticky {
                home_is_plain(self.disk.sim(), &state, self.crashed).map_err(|what| self.bad(what))?;
                if self.setting.wipes && !self.full {
                    match log_is_empty(self.disk.sim()) {
                        Ok(()) => self.unwiped = false,
                        // Such a log waits for the next session that writes.
                        Err(_) if self.unwiped => {}
                        Err(what) => return Err(self.bad(what)),
                    }
                }
            }
            if !sticky && self.rng.below(4) == 0 {
                self.lose_log()?;
            } else if !sticky && self.copies_logs {
                self.copy_log()?;
            }
        }
        Ok(())
    }

    /// Copies the database without its log, which a home without mark does not need. The copy has
    /// the cache's bytes, also after a failed flush.
    fn lose_log(&mut self) -> Step<()> {
        let (home, log) = (Path::new(DB), log_path(Path::new(DB)));
        if let Some(image) = self.disk.sim().snapshot_file(home).filter(|_| self.disk.exists(&log).unwrap_or(false)) {
            self.disk.sim().put_file(home, &image);
            let lost = self.disk.remove(&log).and_then(|()| self.disk.sync_dir_of(&log));
            lost.map_err(|e| self.bad(format!("cannot remove the log: {e}")))?;
            self.note(|_| "the log is lost".to_owned());
        }
        self.verdict()
    }

    /// Another program writes the log's bytes, to a new file of its name or the same, and does not
    /// flush. It may fail half-way. The close has reached the medium by then, also behind a failed
    /// flush.
    fn copy_log(&mut self) -> Step<()> {
        let (home, log) = (Path::new(DB), log_path(Path::new(DB)));
        let image = self.disk.sim().snapshot_file(home).unwrap_or_default();
        let closed = self.disk.open(home, OpenMode::ReadWrite);
        let closed = closed.and_then(|home| home.write_at(&image, 0).and_then(|()| home.sync()));
        if let Some(bytes) = self.disk.sim().snapshot_file(&log).filter(|_| closed.is_ok()) {
            // Only a seal tells of that.
            let in_place = self.setting.taste.room == Room::No && self.rng.below(2) == 0;
            let removed = if in_place { Ok(()) } else { self.disk.remove(&log) };
            let made = removed.and_then(|()| self.disk.open(&log, OpenMode::Create));
            let copied = made.and_then(|file| file.set_len(0).and_then(|()| file.write_at(&bytes, 0)));
            self.note(|_| format!("the log is copied: {copied:?}"));
        }
        self.verdict()
    }

    /// A kill or a power cut; new processes recover.
    fn die(&mut self) -> Step<()> {
        self.verdict()?;
        let killed = self.rng.below(2) == 0;
        let sim = if killed { self.disk.sim().survive() } else { self.disk.sim().crash(self.rng.next_u64()) };
        sim.set_capacity(ROOMY);
        self.full = false;
        self.unwiped = !is_marked(&sim) && log_is_empty(&sim).is_err();
        let allowed = if killed { self.oracle.lock().after_kill() } else { self.oracle.lock().after_crash() };
        // Stops the old disk, because the destructors of its connections must have no effect.
        self.disk.sim().stop_after(0);
        let _ = self.disk.sync_dir_of(Path::new(DB));
        *self.found.lock() = None;
        self.crashed = true;
        self.note(|w| {
            format!("{}; floor, committed: {:?}", if killed { "kill" } else { "crash" }, w.oracle.lock().marks())
        });
        self.setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
        let was_aside = self.oracle.lock().aside;
        {
            let mut oracle = self.oracle.lock();
            // Until recovery has ended, a crash may lose a killed process's writes.
            oracle.states = oracle.after_crash();
            oracle.committed = if killed { oracle.states.len() - allowed.len() } else { 0 };
            (oracle.floor, oracle.proven) = (0, 0);
        }
        let before = sim.survive();
        self.boot(sim);
        let mut client = open(&self.engine, Arc::new(self.disk.clone()), &self.setting)
            .map_err(|e| self.bad(format!("cannot open after {}: {e}", if killed { "a kill" } else { "a crash" })))?;
        let what = if killed { "after a kill" } else { "after a crash" };
        let on_before = |message: String| Violation::on(&before, format!("{what}: {message}"));
        let begun = client.begin();
        self.verdict()?;
        let (_, bytes) = begun.map_err(|e| on_before(format!("recovery fails: {e}")))?;
        let index = read_all(&mut client, bytes, &allowed).map_err(on_before)?;
        client.end().map_err(|e| on_before(format!("cannot end a read: {e}")))?;
        self.verdict()?;
        let mut oracle = self.oracle.lock();
        let index = oracle.states.len() - allowed.len() + index;
        oracle.states.truncate(index + 1);
        oracle.committed = index;
        // A crash may still roll back the last commit of a process that was beside the log.
        oracle.floor = if killed && was_aside { 0 } else { index };
        oracle.aside = false;
        drop(oracle);
        self.note(|w| format!("recovered; floor, committed: {:?}", w.oracle.lock().marks()));
        self.clients.push(client);
        Ok(())
    }

    fn make_trouble(&mut self) -> Step<()> {
        match self.trouble {
            Trouble::None => {}
            Trouble::Faults => {
                use Op::{Read, Reserve, SetLen, Sync, Write, WriteDurable};
                let ops = [WriteDurable, WriteDurable, Sync, Sync, SetLen, Reserve, Read, Write, Write];
                // In-page schemes rely on whole pages, and a failed write leaves half a page.
                let op = ops[self.rng.below(if self.setting.taste.room.b_trees() { 7 } else { ops.len() })];
                let soon = [1, 6][self.rng.below(2)];
                self.disk.sim().fail_nth(op, 1 + self.rng.below(soon) as u64, ErrorKind::Other);
                self.faulty = true;
                self.note(|_| format!("{op:?} will fail"));
            }
            Trouble::Full => {
                self.full ^= true;
                let (sim, room) = (self.disk.sim(), self.rng.below(60_000) as u64);
                sim.set_capacity(if self.full { sim.used_bytes() + room } else { ROOMY });
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Step<()> {
        self.disk.sim().set_capacity(ROOMY);
        if self.faulty {
            self.die()?;
        }
        self.full = false;
        self.close_all()?;
        self.verdict()
    }
}
