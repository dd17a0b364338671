//! The order of things: which section when, for how long, and what becomes of the numbers.

use super::card::{self, Machine, Parameters};
use super::device::{Counters, Device, Mount};
use super::engines::{self, Engine, Kind, Settings};
use super::measure::{INTERRUPTED, Probe, Section, histogram, median, paired_ratio};
use super::report::Row;
use super::syscalls::{self, Calls};
use super::workload::{self, Plan, Size, WARM_UP, WalStart, Workload};
use super::{Args, floor};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Without `--runs` and `--transactions` the bench ends within two minutes; this leaves some for the end.
const BUDGET: Duration = Duration::from_secs(110);
const RUNS: usize = 5;
/// How long the device is watched before a section, for writes of others.
const IDLE: Duration = Duration::from_millis(200);
/// Writes of others below this share of a section's are not worth a note.
const NOISE_SHARE: f64 = 0.1;

/// What one section gave.
struct Measured {
    section: Section,
    device: Option<Counters>,
    /// Writes of others, as a share of the device's writes during the section.
    noise: f64,
}

type Key = (usize, usize);

/// Does one section for the tracer: the bench calls its own program with the hidden options.
pub fn traced(args: &Args, workload: Workload) -> Result<()> {
    let engine = args.only.first().context("--traced needs --only")?.0;
    syscalls::offer_to_be_traced()?;
    if engine.is_onewrite() {
        engines::register_onewrite().map_err(anyhow::Error::msg)?;
    }
    let size = size(args, workload, args.traced_ms.map(Duration::from_millis));
    let plan = Plan::draw(workload, &size, args.seed);
    let dir = args.dir.as_ref().context("--traced needs --dir")?;
    let (section, _) = workload::run(engine, dir, &plan, &size, || Ok(()), &mut syscalls::Marks)?;
    println!("{}", section.transactions);
    Ok(())
}

/// Everything between the options and the table.
pub fn run(args: &Args) -> Result<(Parameters, Vec<Row>)> {
    let start = Instant::now();
    let mut notes = Vec::new();
    let workloads: Vec<Workload> = match &args.workload[..] {
        [] => Workload::DEFAULT.to_vec(),
        asked => Workload::ALL.into_iter().filter(|w| asked.contains(w)).collect(),
    };
    let engines = choose(args, &workloads, &mut notes)?;
    // By workload, then by engine.
    let does = |e: usize, w: usize| {
        engines[e].does(workloads[w]) && (!args.only.is_empty() || engines[e].is_default_for(workloads[w]))
    };
    let parent = args.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let parent = fs::canonicalize(&parent).with_context(|| parent.display().to_string())?;
    let temporary = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(&parent);
    let temporary = temporary.with_context(|| format!("no temporary directory in {}", parent.display()))?;
    let mount = Mount::of(temporary.path());
    let device = Device::under(temporary.path(), mount.as_ref());
    if let Err(e) = &device {
        notes.push(format!("block writes, KiB and flushes are n/a: {e}"));
    }
    if cfg!(debug_assertions) {
        notes.push("this is a debug build; measure with `cargo run --release`".to_owned());
    }

    let runs_asked = args.runs.map_or(RUNS, |n| n as usize);
    let budget = if args.runs.is_none() && args.transactions.is_none() { Some(BUDGET) } else { None };
    let sections = (0..workloads.len()).map(|w| (0..engines.len()).filter(|e| does(*e, w)).count()).sum::<usize>();
    // However slow the device: the counting round and the first run share the time, then there is a result.
    let limit = |sections_done: usize| -> Option<Duration> {
        let left = (2 * sections).saturating_sub(sections_done).max(4);
        budget.map(|b| b.saturating_sub(start.elapsed()) / left as u32)
    };
    let progress = Progress::new((runs_asked + 1) * sections);
    let bench = Bench { args, dir: temporary.path(), device: device.as_ref().ok() };

    let mut calls: BTreeMap<Key, Calls> = BTreeMap::new();
    let mut calls_unknown = None;
    for (w, workload) in workloads.iter().copied().enumerate() {
        for (e, engine) in engines.iter().enumerate().filter(|(e, _)| does(*e, w)) {
            progress.section(&format!("counting system calls, {}: {}", workload.name(), engine.name()));
            if calls_unknown.is_none() {
                match bench.count_calls(engine, workload, limit(progress.begun() - 1)) {
                    Ok(c) => drop(calls.insert((e, w), c)),
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

    let mut measured: BTreeMap<Key, Vec<Measured>> = BTreeMap::new();
    let mut settings: BTreeMap<String, Settings> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    let mut runs = 0;
    while runs < runs_asked {
        if runs > 0 && budget.is_some_and(|b| start.elapsed() + longest.mul_f64(1.1) > b) {
            notes.push(format!("{runs} runs instead of {runs_asked}, to end within two minutes (--runs overrides)"));
            break;
        }
        let run_start = Instant::now();
        for (w, workload) in workloads.iter().copied().enumerate() {
            let plan = Plan::draw(workload, &size(args, workload, None), args.seed.wrapping_add(runs as u64));
            for e in (0..engines.len()).map(|turn| (turn + runs) % engines.len()).filter(|e| does(*e, w)) {
                progress.section(&format!(
                    "run {} of {runs_asked}, {}: {}",
                    runs + 1,
                    workload.name(),
                    engines[e].name()
                ));
                let (m, s) = bench.section(engines[e], workload, &plan, limit(progress.begun() - 1))?;
                settings.extend(s.map(|s| (engines[e].name(), s)));
                measured.entry((e, w)).or_default().push(m);
            }
        }
        longest = longest.max(run_start.elapsed());
        runs += 1;
    }
    progress.done();

    let stock_wal = |e: &&Engine| matches!(e.kind, Kind::Stock { journal_mode: "wal", .. });
    if args.wal_start == WalStart::Empty && engines.iter().any(stock_wal) && !workloads.iter().all(|w| w.reads()) {
        notes.push(
            "stock WAL began empty and grew, as in Mobibench; a program that runs on overwrites a WAL that has grown, \
             which is cheaper: --wal-start grown measures that"
                .to_owned(),
        );
    }
    let rows = rows(&engines, &workloads, &measured, &calls);
    notes.extend(warn(args, &engines, &workloads, &measured));
    let (sqlite_version, compile_options) = card::sqlite()?;
    let per_tx = |c: &Calls| c.by_name.iter().map(|(n, v)| (n.clone(), *v as f64 / c.transactions as f64)).collect();
    let syscalls =
        calls.iter().map(|((e, w), c)| (format!("{} {}", engines[*e].name(), workloads[*w].name()), per_tx(c)));
    let first = size(args, workloads[0], None);
    let sizes = workloads.iter().map(|w| (w.name(), size(args, *w, None))).map(|(n, s)| (n, (s.rows, s.transactions)));
    let parameters = Parameters {
        onewrite_version: env!("CARGO_PKG_VERSION"),
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        sqlite_version,
        compile_options,
        engines: settings,
        schema: workload::schema(args.indexes as usize),
        indexes: args.indexes as usize,
        statements: card::statements(&workloads, args.indexes as usize),
        prepared: true,
        transaction: "one statement, autocommit",
        threads: 1,
        connections: 1,
        preloaded_rows: first.rows,
        sizes: sizes.collect(),
        row_bytes: args.row_bytes as usize,
        key_order: "random 63-bit keys",
        transactions: first.transactions,
        warm_up_transactions: WARM_UP,
        cold: workload::COLD,
        wal_at_start: args.wal_start.describe(),
        checkpoint_at_end: "none; checkpoints are timed where the engine makes them",
        runs,
        runs_asked,
        run_order: "interleaved, order of engines turned per run",
        seed: args.seed,
        floor: floor::DESCRIPTION,
        syscall_counting: syscalls::METHOD,
        syscalls: syscalls.collect(),
        machine: Machine::look(mount.as_ref(), &device),
        notes,
    };
    temporary.close().context("removing the temporary directory")?;
    Ok((parameters, rows))
}

/// The engines asked for; of the default ones those that this build has.
fn choose(args: &Args, workloads: &[Workload], notes: &mut Vec<String>) -> Result<Vec<&'static Engine>> {
    let asked = |e: &&'static Engine| match &args.only[..] {
        [] => workloads.iter().any(|w| e.is_default_for(*w)),
        only => only.iter().any(|c| c.0 == *e),
    };
    let mut engines: Vec<_> = engines::ALL.iter().filter(asked).collect();
    if let Some(idle) = engines.iter().find(|e| !workloads.iter().any(|w| e.does(*w))) {
        let its: Vec<_> = Workload::ALL.into_iter().filter(|w| idle.does(*w)).map(Workload::name).collect();
        bail!("{} has none of these workloads; give --workload one of {}", idle.name(), its.join(", "));
    }
    let wanted = engines.iter().any(|e| e.is_onewrite());
    if let Some(reason) = wanted.then(engines::register_onewrite).and_then(Result::err) {
        if !args.only.is_empty() {
            bail!("onewrite cannot be measured: {reason}");
        }
        engines.retain(|e| !e.is_onewrite());
        notes.push(format!("onewrite was left out: {reason}"));
    }
    Ok(engines)
}

fn size(args: &Args, workload: Workload, limit: Option<Duration>) -> Size {
    Size {
        rows: args.rows.map_or(workload.rows(), |n| n as usize),
        row_bytes: args.row_bytes as usize,
        transactions: args.transactions.map_or(workload.transactions(), |n| n as usize),
        indexes: args.indexes as usize,
        wal_start: args.wal_start,
        limit,
    }
}

fn stop_if_interrupted() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { bail!("interrupted") } else { Ok(()) }
}

/// What every section needs.
struct Bench<'a> {
    args: &'a Args,
    dir: &'a Path,
    device: Option<&'a Device>,
}

impl Bench<'_> {
    /// One timed section in a directory of its own.
    fn section(
        &self,
        engine: &Engine,
        workload: Workload,
        plan: &Plan,
        limit: Option<Duration>,
    ) -> Result<(Measured, Option<Settings>)> {
        stop_if_interrupted()?;
        let dir = tempfile::tempdir_in(self.dir)?;
        let mut idle = None;
        let mut probe = Watch { device: self.device, before: None, during: None };
        let ready = || {
            // What loading left to be written must not reach the device while it is being counted.
            rustix::fs::syncfs(File::open(dir.path())?)?;
            idle = self.device.map(watch_idle).transpose()?;
            Ok(())
        };
        let size = size(self.args, workload, limit);
        let (section, settings) = workload::run(engine, dir.path(), plan, &size, ready, &mut probe)?;
        let during = probe.during;
        let noise = match (idle, during) {
            (Some(per_s), Some(d)) if !workload.reads() => per_s * section.seconds / (d.bytes as f64).max(1.0),
            _ => 0.0,
        };
        Ok((Measured { section, device: during, noise }, settings))
    }

    /// The same section once more in a child process that is traced.
    fn count_calls(&self, engine: &Engine, workload: Workload, limit: Option<Duration>) -> Result<Calls, String> {
        let dir = tempfile::tempdir_in(self.dir).map_err(|e| e.to_string())?;
        let mut child = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
        child.args(["bench", "--traced", workload.name(), "--only", &engine.name(), "--dir"]).arg(dir.path());
        let size = size(self.args, workload, limit);
        let numbers = [
            ("--rows", size.rows as u64),
            ("--row-bytes", self.args.row_bytes),
            ("--transactions", size.transactions as u64),
            ("--indexes", self.args.indexes),
            ("--seed", self.args.seed),
        ];
        for (option, n) in numbers {
            child.args([option, &n.to_string()]);
        }
        if self.args.wal_start == WalStart::Grown {
            child.args(["--wal-start", "grown"]);
        }
        if let Some(limit) = limit {
            child.args(["--traced-ms", &limit.as_millis().to_string()]);
        }
        syscalls::count(child)
    }
}

/// Bytes per second that reach the device while the bench does nothing.
fn watch_idle(device: &Device) -> Result<f64> {
    let before = device.counters()?;
    let start = Instant::now();
    std::thread::sleep(IDLE);
    Ok(device.counters()?.since(before).bytes as f64 / start.elapsed().as_secs_f64())
}

/// Reads the device's counters around the measured transactions.
struct Watch<'a> {
    device: Option<&'a Device>,
    before: Option<Counters>,
    during: Option<Counters>,
}

impl Probe for Watch<'_> {
    fn begin(&mut self) -> Result<()> {
        self.before = self.device.map(Device::counters).transpose()?;
        Ok(())
    }
    fn end(&mut self) -> Result<()> {
        let after = self.device.map(Device::counters).transpose()?;
        self.during = after.zip(self.before).map(|(a, b)| a.since(b));
        Ok(())
    }
}

fn rows(
    engines: &[&'static Engine],
    workloads: &[Workload],
    measured: &BTreeMap<Key, Vec<Measured>>,
    calls: &BTreeMap<Key, Calls>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (w, workload) in workloads.iter().enumerate() {
        let rates = |e: usize| -> Option<Vec<f64>> {
            Some(measured.get(&(e, w))?.iter().map(|m| m.section.tx_per_s()).collect())
        };
        let rates_of = |is: fn(&Engine) -> bool| engines.iter().position(|e| is(e)).and_then(rates);
        let reference = rates_of(engines::is_reference);
        let stock_default = rates_of(engines::is_stock_default).filter(|_| workload.reads());
        let floor = rates_of(|e| e.kind == Kind::Floor);
        for (e, engine) in engines.iter().enumerate() {
            let (Some(runs), Some(rate)) = (measured.get(&(e, w)), rates(e)) else { continue };
            let to = |of: &Option<Vec<f64>>| of.as_ref().and_then(|of| paired_ratio(&rate, of)).map(|v| round(v, 3));
            let mut pool = histogram();
            for m in runs {
                pool.add(&m.section.latency_ns).expect("histograms that grow take any value");
            }
            let us = |percentile| round(pool.value_at_percentile(percentile) as f64 / 1000.0, 1);
            let per_tx = |count: fn(&Counters) -> Option<u64>| {
                // A reader writes nothing: what reached the device meanwhile came from others.
                if workload.reads() {
                    return None;
                }
                let of = |m: &Measured| Some(count(&m.device?)? as f64 / m.section.transactions as f64);
                median(runs.iter().filter_map(of)).map(|v| round(v, 3))
            };
            let calls = calls.get(&(e, w));
            let calls_per_tx = |n: fn(&Calls) -> u64| calls.map(|c| round(n(c) as f64 / c.transactions as f64, 3));
            rows.push(Row {
                engine: engine.engine,
                preset: engine.preset,
                workload: workload.name(),
                threads: 1,
                tx_per_s: round(median(rate.iter().copied()).unwrap_or(0.0), 1),
                ratio_to_wal_full: to(&reference),
                ratio_to_stock_default: to(&stock_default),
                p50_us: us(50.0),
                p99_us: us(99.0),
                p999_us: us(99.9),
                block_writes_per_tx: per_tx(|c| Some(c.writes)),
                kib_per_tx: per_tx(|c| Some(c.bytes)).map(|b| round(b / 1024.0, 3)),
                flushes_per_tx: per_tx(|c| c.flushes),
                write_syscalls_per_tx: calls_per_tx(|c| c.writes),
                sync_syscalls_per_tx: calls_per_tx(|c| c.syncs),
                floors: floor.as_ref().and_then(|f| paired_ratio(f, &rate)),
                of: engine,
            });
        }
    }
    rows
}

fn round(v: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (v * scale).round() / scale
}

/// Notes on sections that others disturbed, or that had to stop early.
fn warn(
    args: &Args,
    engines: &[&'static Engine],
    workloads: &[Workload],
    measured: &BTreeMap<Key, Vec<Measured>>,
) -> Vec<String> {
    let name = |(e, w): &Key| format!("{} {}", engines[*e].name(), workloads[*w].name());
    let mut notes = Vec::new();
    let early: Vec<String> = measured
        .iter()
        .filter_map(|(key, runs)| Some((key, runs.iter().map(|m| m.section.transactions).min()?)))
        .map(|(key, least)| (key, least, size(args, workloads[key.1], None).transactions))
        .filter(|(_, least, wanted)| least < wanted)
        .map(|(key, least, wanted)| format!("{} ({least} of {wanted})", name(key)))
        .collect();
    if !early.is_empty() {
        notes.push(format!("stopped before all transactions, to end within two minutes: {}", early.join(", ")));
    }
    // Others may start after the device was watched: then the runs disagree.
    let disturbed: Vec<String> = measured
        .iter()
        .filter(|((_, w), _)| !workloads[*w].reads())
        .filter_map(|(key, runs)| {
            let per_tx = runs.iter().filter_map(|m| Some(m.device?.bytes as f64 / m.section.transactions as f64));
            let typical = median(per_tx.clone())?;
            let apart = per_tx.filter(|v| (v - typical).abs() > NOISE_SHARE * typical.max(1.0)).count();
            let n = runs.iter().filter(|m| m.noise > NOISE_SHARE).count().max(apart);
            (n > 0).then(|| format!("{} ({n} of {})", name(key), runs.len()))
        })
        .collect();
    if !disturbed.is_empty() {
        notes.push(format!(
            "something else was writing to the device, or runs differ by more than 10 % in bytes written; \
             their medians are shown: {}",
            disturbed.join(", ")
        ));
    }
    notes
}

/// A bar on a terminal, a line now and then elsewhere.
struct Progress {
    bar: ProgressBar,
    terminal: bool,
    total: u64,
}

impl Progress {
    fn new(sections: usize) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        // Drawn between sections only: a drawing thread would share the processor with what is timed.
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(sections as u64), target);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3}%  {elapsed}  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar, terminal, total: sections as u64 }
    }

    /// A section begins.
    fn section(&self, what: &str) {
        let done = self.bar.position();
        self.bar.set_message(what.to_owned());
        if !self.terminal && done.is_multiple_of((self.total / 6).max(1)) {
            eprintln!("{:>3} %  {what}", 100 * done / self.total);
        }
        self.bar.inc(1);
    }

    /// Sections begun so far.
    fn begun(&self) -> usize {
        self.bar.position() as usize
    }

    fn done(&self) {
        self.bar.finish_and_clear();
    }
}
