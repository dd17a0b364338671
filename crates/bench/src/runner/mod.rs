//! The order of things: which section when, for how long.

mod job;
mod results;

#[cfg(test)]
pub use job::tests;
pub use job::{Case, Job, MeasuredSection, RunOutcome, SectionKey};

use crate::counting::blocks::Blocks;
use crate::counting::device::{Device, DeviceCounters, WriteCounter};
use crate::counting::simulated::Simulated;
use crate::counting::syscalls::{self, Calls};
use crate::engines::sql::Libraries;
use crate::engines::{self, BenchEngine, EngineKind, EngineSettings, KeyValueStore};
use crate::host::{self, Mount};
use crate::numbers::measure::{INTERRUPTED, Probe};
use crate::parameters::card::{self, Machine, Parameters};
use crate::progress::{self, Progress};
use crate::workload::floor;
use crate::workload::{
    self, CrashedProcess, Originals, Plan, SectionStage, Size, WARM_UP, WalStart, Workload, WorkloadCard,
};
use anyhow::{Context, Result, bail};
use onewrite_core::inspect::layout::LOG_SUFFIX;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Without `--runs` the bench goes on until medians are known, but by default not longer than this.
const MINUTES: f64 = 2.0;
/// The share of that for the runs; the rest is for the end.
const FOR_RUNS: f64 = 0.92;
/// Fewer cannot tell how well a median is known.
const RUNS_MIN: usize = 5;
/// Where counting the system calls of a section takes longer than this, they are not told.
const COUNTED: Duration = Duration::from_secs(20);
/// How long the device is watched before a section, for writes of others.
const IDLE: Duration = Duration::from_millis(50);

/// The work of a process for the tracer: the bench hands it to its own program as JSON.
#[derive(Serialize, Deserialize)]
enum Traced {
    Section(Box<OneSection>),
    /// Being killed.
    Crash(Box<CrashedProcess>),
}

#[derive(Serialize, Deserialize)]
struct OneSection {
    engine: BenchEngine,
    workload: String,
    size: Size,
    seed: u64,
    dir: PathBuf,
    original: Option<PathBuf>,
}

/// Does it: the bench calls its own program with the hidden option.
pub fn traced(json: &str) -> Result<()> {
    let t = match serde_json::from_str(json).context("--traced is for the bench itself")? {
        Traced::Section(section) => section,
        Traced::Crash(crash) => {
            engines::register_onewrite().map_err(anyhow::Error::msg)?;
            return workload::crash(&crash);
        }
    };
    let workload: Workload = t.workload.parse().map_err(anyhow::Error::msg)?;
    syscalls::offer_to_be_traced()?;
    if t.engine.is_onewrite() {
        engines::register_onewrite().map_err(anyhow::Error::msg)?;
    }
    let libraries = Libraries::load(&t.engine.library)?;
    let plan = Plan::draw(workload, &t.size, t.seed, 0)?;
    let stage = SectionStage {
        libraries: &libraries,
        dir: &t.dir,
        original: t.original.as_deref(),
        ready: Box::new(|| Ok(())),
        probe: &mut syscalls::Marks,
    };
    let (section, _) = workload::run(&t.engine, workload, &plan, &t.size, stage)?;
    println!("{}", section.transactions);
    Ok(())
}

/// Where a job runs.
struct Surroundings<'a> {
    libraries: &'a Libraries,
    temporary: &'a Path,
    mount: Option<Mount>,
    device: Result<Device, String>,
    /// The simulated device of the whole job.
    shared: Option<&'a Simulated>,
    /// Of each case.
    dirs: Vec<&'a Path>,
    counters: Vec<Option<WriteCounter>>,
    simulated: Vec<Option<&'a Simulated>>,
}

/// How long a job may take.
struct Timing {
    start: Instant,
    runs_min: usize,
    minutes: f64,
    budget: Option<Duration>,
    /// None where a number of transactions was given: it stays, in as many runs as a median takes.
    free: Option<Duration>,
    sections: usize,
    longest: Duration,
}

impl Timing {
    fn of(job: &Job) -> Timing {
        let minutes = job.common.minutes.unwrap_or(MINUTES);
        let budget = job.common.runs.is_none().then(|| Duration::from_secs_f64(60.0 * minutes * FOR_RUNS));
        Timing {
            start: Instant::now(),
            runs_min: job.common.runs.map_or(RUNS_MIN, |n| n as usize),
            minutes,
            budget,
            free: budget.filter(|_| job.common.transactions.is_none()),
            sections: (0..job.workloads.len()).map(|w| job.cases_of(w).count()).sum(),
            longest: Duration::ZERO,
        }
    }

    /// However slow the device: the counting round and the first run share the time, then there is
    /// a result. A later run is begun where its time is left.
    fn limit(&self, sections_done: usize) -> Option<Duration> {
        let left = (2 * self.sections).saturating_sub(sections_done);
        self.free.map(|b| b.saturating_sub(self.start.elapsed()) / left.max(4) as u32).filter(|_| left > 0)
    }

    /// The words for the user, before the first section.
    fn describe(&self) -> String {
        match self.free {
            Some(_) => format!("in at most {} minutes (--minutes)", self.minutes),
            None => "as long as it takes: the first run will tell".to_owned(),
        }
    }

    /// Whether another run would not end in time.
    fn is_over(&self, of: Option<Duration>) -> bool {
        of.is_some_and(|b| self.start.elapsed() + self.longest.mul_f64(1.1) > b)
    }

    /// Whether `runs` are enough, of which so many lines are not known well.
    fn is_enough(&self, runs: usize, unsteady: usize) -> bool {
        let known = self.budget.is_none() || unsteady == 0 || self.is_over(self.budget);
        runs >= self.runs_min && known || runs > 0 && self.is_over(self.free)
    }
}

/// What the runs have measured.
#[derive(Default)]
struct Measurements {
    runs: usize,
    measured: BTreeMap<SectionKey, Vec<MeasuredSection>>,
    settings: BTreeMap<String, EngineSettings>,
    described: BTreeMap<String, WorkloadCard>,
    failed: BTreeMap<SectionKey, String>,
    is_interrupted: bool,
}

impl Measurements {
    /// The whole runs count: pairs are of one run.
    fn interrupt(&mut self) {
        self.measured.values_mut().for_each(|sections| sections.truncate(self.runs));
        self.is_interrupted = true;
    }

    /// The reasons why parts are missing, each noted.
    fn missing(&mut self, notes: &mut Vec<String>) -> Vec<String> {
        let mut missing: Vec<String> = std::mem::take(&mut self.failed).into_values().collect();
        missing.extend(self.is_interrupted.then(|| progress::interrupted(self.runs)));
        notes.extend(missing.iter().map(progress::unfinished));
        missing
    }

    /// One section of every case and workload.
    fn run(
        &mut self,
        job: &Job,
        place: &Surroundings<'_>,
        timing: &Timing,
        (plans, progress): (&mut Plans, &mut Progress),
        (unsteady, lines): (usize, usize),
    ) -> Result<()> {
        for (w, workload) in job.workloads.iter().copied().enumerate() {
            let all: Vec<usize> = job.cases_of(w).collect();
            for c in (0..all.len()).map(|turn| all[(turn + self.runs) % all.len()]) {
                let case = &job.cases[c];
                let why = if self.runs < timing.runs_min {
                    format!("run {} of {}", self.runs + 1, timing.runs_min)
                } else {
                    format!("run {}, {unsteady} of {lines} lines are not yet known to ±10 %", self.runs + 1)
                };
                let what = format!("{why}, {}: {}", workload.name(), case.name());
                progress.section(&what);
                if self.failed.contains_key(&(c, w)) {
                    continue;
                }
                let size = case.size(&job.common, workload, timing.limit(progress.begun() - 1));
                let (plan, original) = plans.of(place.libraries, &case.engine, workload, &size, self.runs as u64)?;
                let own = if case.label.is_some() {
                    format!("{}, {}", workload.name(), case.name())
                } else {
                    workload.name().to_owned()
                };
                self.described.entry(own).or_insert_with(|| plan.describe());
                let section = Sectioned {
                    libraries: place.libraries,
                    dir: place.dirs[c],
                    counter: place.counters[c].as_ref().filter(|_| place.simulated[c].is_none()),
                    simulated: place.simulated[c].filter(|_| !workload.reads()),
                };
                let (mut m, s) = match section.run(&case.engine, workload, plan, &size, original) {
                    Ok(done) => done,
                    Err(e) if INTERRUPTED.load(Ordering::Relaxed) => return Err(e),
                    Err(e) => {
                        let what = format!("{} {}, run {}: {e:#}", case.name(), workload.name(), self.runs + 1);
                        self.failed.insert((c, w), what);
                        continue;
                    }
                };
                if let (1.., Some(blocks)) = (self.runs, &mut m.blocks) {
                    blocks.requests = Vec::new();
                }
                self.settings.extend(s.map(|s| (case.name(), s)));
                self.measured.entry((c, w)).or_default().push(m);
            }
        }
        Ok(())
    }
}

/// The system calls of each section, and notes on those that were not counted.
fn count_sections(
    job: &Job,
    place: &Surroundings<'_>,
    timing: &Timing,
    (plans, progress): (&mut Plans, &mut Progress),
    notes: &mut Vec<String>,
) -> Result<BTreeMap<SectionKey, Calls>> {
    let mut calls: BTreeMap<SectionKey, Calls> = BTreeMap::new();
    let mut calls_unknown = None;
    for (w, workload) in job.workloads.iter().copied().enumerate().filter(|_| job.count_calls) {
        for c in job.cases_of(w) {
            let case = &job.cases[c];
            progress.section(&format!("counting system calls, {}: {}", workload.name(), case.name()));
            // A recovery is a crash first, which is traced itself.
            if calls_unknown.is_none() && !workload.recovers() {
                let size = case.size(&job.common, workload, timing.limit(progress.begun() - 1));
                let (_, original) = plans.of(place.libraries, &case.engine, workload, &size, 0)?;
                match count_calls(case, workload, &size, job.common.seed, place.dirs[c], original) {
                    Ok(Some(found)) => drop(calls.insert((c, w), found)),
                    Ok(None) => notes.push(format!(
                        "write and sync calls of {} {} are n/a: they are so many that counting them takes longer than {} s",
                        case.name(),
                        workload.name(),
                        COUNTED.as_secs()
                    )),
                    Err(reason) => calls_unknown = Some(reason),
                }
                stop_if_interrupted()?;
            }
        }
    }
    if let Some(reason) = calls_unknown {
        notes.push(format!("write and sync calls are n/a: {reason}"));
        calls.clear();
    }
    Ok(calls)
}

/// The card, without notes.
fn parameters(
    job: &Job,
    place: &Surroundings<'_>,
    timing: &Timing,
    measurements: Measurements,
    calls: &BTreeMap<SectionKey, Calls>,
) -> Result<Parameters> {
    let (sqlite_version, compile_options) = card::sqlite()?;
    let per_tx = |c: &Calls| c.by_name.iter().map(|(n, v)| (n.clone(), *v as f64 / c.transactions as f64)).collect();
    let syscalls =
        calls.iter().map(|((c, w), n)| (format!("{} {}", job.cases[*c].name(), job.workloads[*w].name()), per_tx(n)));
    let own = job.cases.iter().zip(&place.dirs).filter(|(case, _)| case.dir.is_some()).map(|(case, dir)| {
        let mount = Mount::of(dir);
        let device = Device::under(dir, mount.as_ref());
        (case.name(), Machine::look(dir, mount.as_ref(), &device, case.simulated.as_deref()))
    });
    let machines: BTreeMap<String, Machine> = own.collect();
    let machine = match job.cases.first().filter(|_| machines.len() == job.cases.len()) {
        Some(Case { dir: Some(_), simulated, .. }) => {
            let (mount, device) =
                (Mount::of(place.dirs[0]), Device::under(place.dirs[0], Mount::of(place.dirs[0]).as_ref()));
            Machine::look(place.dirs[0], mount.as_ref(), &device, simulated.as_deref())
        }
        _ => Machine::look(place.temporary, place.mount.as_ref(), &place.device, place.shared),
    };
    let stores = job.cases.iter().filter_map(|case| match case.engine.kind {
        EngineKind::Store(store) => {
            Some((if store == KeyValueStore::Lmdb { "lmdb" } else { "redb" }, store.describe()))
        }
        _ => None,
    });
    Ok(Parameters {
        onewrite_version: env!("CARGO_PKG_VERSION"),
        made_at: card::made_at(),
        command: card::command(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        sqlite_version,
        compile_options,
        engines: measurements.settings,
        stores: stores.collect(),
        preloaded_rows: job.common.size(job.workloads[0], None).rows,
        row_bytes: job.common.row_bytes as usize,
        key_order: measurements.described.values().next().map_or("none", |d| d.key_order),
        transactions: job.common.size(job.workloads[0], None).transactions,
        indexes: job.common.indexes as usize,
        workloads: measurements.described,
        warm_up_transactions: WARM_UP,
        cold: workload::COLD,
        wal_at_start: job.common.wal_start.describe(),
        checkpoint_at_end: "none, but in Mobibench's workloads; checkpoints are timed where the engine makes them",
        runs: measurements.runs,
        minutes_max: timing.budget.map(|_| timing.minutes),
        run_order: "interleaved, order of engines turned per run",
        seed: job.common.seed,
        wear: job.common.wear.clone(),
        floor: floor::description(),
        syscall_counting: syscalls::METHOD,
        syscalls: syscalls.collect(),
        unknown: card::all_unknown(&machine, &machines),
        machine,
        machines,
        notes: Vec::new(),
    })
}

/// The runs that this job has time for, after a round that counts the system calls.
fn measure(
    job: &Job,
    place: &Surroundings<'_>,
    timing: &mut Timing,
    notes: &mut Vec<String>,
) -> Result<(Measurements, BTreeMap<SectionKey, Calls>)> {
    let sections = (timing.runs_min + usize::from(job.count_calls)) * timing.sections;
    let mut progress = Progress::new(sections, &timing.describe());
    let mut plans = Plans {
        originals: Originals::in_dir(job.common.dir.as_deref().unwrap_or(Path::new(".")))?,
        seed: job.common.seed,
        drawn: None,
    };
    let calls = count_sections(job, place, timing, (&mut plans, &mut progress), notes)?;
    let mut measurements = Measurements::default();
    loop {
        let (unsteady, lines) = results::unsteady(job, &measurements.measured);
        if timing.is_enough(measurements.runs, unsteady) {
            notes.extend(unsteady_note(timing, measurements.runs, unsteady, lines));
            break;
        }
        if measurements.runs >= timing.runs_min {
            progress.extend(timing.sections);
        }
        let run_start = Instant::now();
        let done = measurements.run(job, place, timing, (&mut plans, &mut progress), (unsteady, lines));
        if done.is_err() && measurements.runs > 0 && INTERRUPTED.load(Ordering::Relaxed) {
            measurements.interrupt();
            break;
        }
        done?;
        timing.longest = timing.longest.max(run_start.elapsed());
        measurements.runs += 1;
        if measurements.runs == 1 && timing.free.is_none() {
            progress.first_run(run_start.elapsed(), timing.runs_min);
        }
    }
    progress.done();
    Ok((measurements, calls))
}

pub fn run(mut job: Job) -> Result<RunOutcome> {
    let mut timing = Timing::of(&job);
    let mut notes = job.check_sizes()?;
    if let Some(path) = &job.common.replay {
        File::open(path).with_context(|| format!("--replay {}", path.display()))?;
    }
    notes.splice(..0, std::mem::take(&mut job.notes));
    let libraries = Libraries::load(job.cases.iter().filter_map(|c| c.engine.library.as_ref()))?;
    let own = job.cases.iter().any(|c| c.simulated.is_some());
    // Dropped after the temporary directories on it.
    let shared = if own { None } else { job.common.simulated.start(None)?.map(Arc::new) };
    let simulated: Vec<Option<&Simulated>> =
        job.cases.iter().map(|c| c.simulated.as_deref().or(shared.as_deref())).collect();
    let on_it = shared.as_ref().map(|s| s.dir().to_owned());
    let parent = on_it.or_else(|| job.common.dir.clone()).unwrap_or_else(|| PathBuf::from("."));
    let temporary = temporary_in(&parent)?;
    let elsewhere: Vec<Option<tempfile::TempDir>> =
        job.cases.iter().map(|c| c.dir.as_deref().map(temporary_in).transpose()).collect::<Result<_>>()?;
    let dirs: Vec<&Path> = elsewhere.iter().map(|d| d.as_ref().map_or(temporary.path(), |d| d.path())).collect();
    let mount = Mount::of(temporary.path());
    let device = Device::under(temporary.path(), mount.as_ref());
    let counter = WriteCounter::of(temporary.path());
    let counter_of = |own: &Option<tempfile::TempDir>| match own {
        Some(own) => WriteCounter::of(own.path()),
        None => counter.clone(),
    };
    let counters: Vec<Option<WriteCounter>> = elsewhere.iter().map(counter_of).collect();
    if let Err(e) = &device {
        let what = match counter {
            Some(_) => "block writes and flushes are n/a, and KiB are those that this process asked the system for",
            None => "block writes, KiB and flushes are n/a",
        };
        notes.push(format!("{what}: {e}"));
    }
    if cfg!(debug_assertions) {
        notes.push("this is a debug build; measure with `cargo run --release`".to_owned());
    }
    let place = Surroundings {
        libraries: &libraries,
        temporary: temporary.path(),
        mount,
        device,
        shared: shared.as_deref(),
        dirs,
        counters,
        simulated,
    };
    let (mut measurements, calls) = measure(&job, &place, &mut timing, &mut notes)?;
    let failed = measurements.missing(&mut notes);
    if measurements.measured.is_empty() {
        bail!("nothing was measured: {}", failed.join("; "));
    }
    notes.extend(wal_note(&job));
    let rows = results::rows(&job, &measurements.measured, &calls);
    notes.extend(results::warn(&job, &measurements.measured));
    let traces = results::traces(&job, &mut measurements.measured);
    let parameters = Parameters { notes, ..parameters(&job, &place, &timing, measurements, &calls)? };
    drop(place);
    for dir in elsewhere.into_iter().flatten() {
        dir.close().context("removing a temporary directory")?;
    }
    temporary.close().context("removing the temporary directory")?;
    Ok(RunOutcome {
        parameters,
        rows,
        traces,
        failed,
        reference: job.reference.map(|(_, name)| name).unwrap_or_default(),
    })
}

/// The lines that are not known well at the end.
fn unsteady_note(timing: &Timing, runs: usize, unsteady: usize, lines: usize) -> Option<String> {
    let more = match timing.budget {
        Some(_) => format!("--minutes {} gives", 5.0 * timing.minutes),
        None => "more --runs give".to_owned(),
    };
    let note = || format!("{unsteady} of {lines} lines are not known to ±10 % after {runs} runs; {more} better ones");
    (unsteady > 0).then(note)
}

/// A WAL that begins empty is dearer than one of a program that runs on.
fn wal_note(job: &Job) -> Option<String> {
    let writes = !job.workloads.iter().all(|w| w.reads());
    let grows = job.common.wal_start == WalStart::Empty && job.cases.iter().any(|c| c.engine.is_stock_wal());
    (grows && writes).then(|| {
        "stock WAL began empty and grew, as in Mobibench; a program that runs on overwrites a WAL that has grown, \
         which is cheaper: --wal-start grown measures that"
            .to_owned()
    })
}

fn temporary_in(parent: &Path) -> Result<tempfile::TempDir> {
    let parent = fs::canonicalize(parent).with_context(|| parent.display().to_string())?;
    let temporary = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(&parent);
    temporary.with_context(|| format!("no temporary directory in {}", parent.display()))
}

fn stop_if_interrupted() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
}

/// The plans of sections, and the databases they begin with.
struct Plans {
    originals: Originals,
    seed: u64,
    /// The newest, since engines take turns with the same.
    drawn: Option<(Workload, u64, Size, Plan)>,
}

impl Plans {
    fn of(
        &mut self,
        libraries: &Libraries,
        engine: &BenchEngine,
        workload: Workload,
        size: &Size,
        run: u64,
    ) -> Result<(&Plan, Option<PathBuf>)> {
        let same = |(w, r, of, _): &(Workload, u64, Size, Plan)| (*w, *r) == (workload, run) && of.same_plan(size);
        let plan = match self.drawn.take().filter(same) {
            Some((.., plan)) => plan,
            None => Plan::draw(workload, size, self.seed, run)?,
        };
        let (.., plan) = self.drawn.insert((workload, run, size.clone(), plan));
        let original = self.originals.of(libraries, engine, plan, size)?;
        Ok((plan, original))
    }
}

struct Sectioned<'a> {
    libraries: &'a Libraries,
    dir: &'a Path,
    /// Of writes to a device that is not simulated.
    counter: Option<&'a WriteCounter>,
    simulated: Option<&'a Simulated>,
}

impl Sectioned<'_> {
    /// In a directory of its own.
    fn run(
        &self,
        engine: &BenchEngine,
        workload: Workload,
        plan: &Plan,
        size: &Size,
        original: Option<PathBuf>,
    ) -> Result<(MeasuredSection, Option<EngineSettings>)> {
        stop_if_interrupted()?;
        let dir = tempfile::tempdir_in(self.dir)?;
        let mut idle = None;
        let mut probe = DeviceWatch {
            of: self,
            dir: dir.path(),
            before: None,
            during: None,
            log_before: 0,
            log_grown: 0,
            from: 0,
            blocks: None,
        };
        let original = original.as_deref();
        let ready = || {
            // The writes left from loading must not reach the device while it is being counted.
            host::flush(dir.path())?;
            idle = self.counter.map(watch_idle).transpose()?;
            Ok(())
        };
        let ready = Box::new(ready);
        let stage = SectionStage { libraries: self.libraries, dir: dir.path(), original, ready, probe: &mut probe };
        let (section, settings) = workload::run(engine, workload, plan, size, stage)?;
        let (blocks, during, log_grown_bytes) = (probe.blocks, probe.during, probe.log_grown);
        let during = blocks.as_ref().map(Blocks::counters).or(during);
        let noise = match (idle, during) {
            (Some(per_s), Some(d)) if !workload.reads() => per_s * section.seconds / (d.bytes as f64).max(1.0),
            _ => 0.0,
        };
        Ok((MeasuredSection { section, device: during, blocks, log_grown_bytes, noise }, settings))
    }
}

/// The same section once more in a child process that is traced.
fn count_calls(
    case: &Case,
    workload: Workload,
    size: &Size,
    seed: u64,
    dir: &Path,
    original: Option<PathBuf>,
) -> Result<Option<Calls>, String> {
    let dir = tempfile::tempdir_in(dir).map_err(|e| e.to_string())?;
    let traced = Traced::Section(Box::new(OneSection {
        engine: case.engine.clone(),
        workload: workload.name().to_owned(),
        size: size.clone(),
        seed,
        dir: dir.path().to_owned(),
        original,
    }));
    let json = serde_json::to_string(&traced).map_err(|e| e.to_string())?;
    let mut child = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    child.args(["bench", "--traced", &json]);
    syscalls::count_within(child, COUNTED)
}

/// Bytes per second that reach the device while the bench does nothing.
fn watch_idle(counter: &WriteCounter) -> Result<f64> {
    let before = counter.counters()?;
    let start = Instant::now();
    std::thread::sleep(IDLE);
    Ok(counter.counters()?.since(before).bytes as f64 / start.elapsed().as_secs_f64())
}

/// The length of onewrite's logs in this directory.
fn log_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().ends_with(LOG_SUFFIX) {
            bytes += entry.metadata()?.len();
        }
    }
    Ok(bytes)
}

/// Reads the device's counters around the measured transactions, or the record of a simulated
/// device.
struct DeviceWatch<'a> {
    of: &'a Sectioned<'a>,
    /// Of the section.
    dir: &'a Path,
    before: Option<DeviceCounters>,
    during: Option<DeviceCounters>,
    /// Bytes of onewrite's logs at the begin, and those they grew by.
    log_before: u64,
    log_grown: u64,
    from: usize,
    blocks: Option<Blocks>,
}

impl Probe for DeviceWatch<'_> {
    fn begin(&mut self) -> Result<()> {
        self.log_before = log_bytes(self.dir)?;
        self.before = self.of.counter.map(WriteCounter::counters).transpose()?;
        self.from = self.of.simulated.map_or(0, Simulated::position);
        Ok(())
    }
    fn end(&mut self) -> Result<()> {
        let after = self.of.counter.map(WriteCounter::counters).transpose()?;
        self.log_grown += log_bytes(self.dir)?.saturating_sub(self.log_before);
        let blocks = self.of.simulated.map(|s| s.blocks(self.from)).transpose()?;
        // There may be several such parts of a section.
        if let Some(blocks) = blocks {
            self.blocks.get_or_insert_default().add(blocks);
        }
        if let Some(during) = after.zip(self.before).map(|(a, b)| a.since(b)) {
            self.during = Some(self.during.map_or(during, |before| before.and(during)));
        }
        Ok(())
    }
}
