//! The suites `threads` and `processes`: the work that several connections to one database get done
//! together.
//!
//! | part | measures |
//! |---|---|
//! | `writers` | durable autocommit inserts of 1 to 16 connections (`--connections`); shares |
//! | `readers` | a lookup by key: alone, beside four writers, and beside four of another database |
//! | `long-reader` | four writers beside a read transaction that stays open; size of the log |
//! | `concurrent` | long transactions, each in a table of its own: do they run at once, refusals |
//! | `db-bench` | DB Bench of the byte-range-locking study, checkpoint delayed or not |
//! | `read-think-write` | transactions that read, pause, and insert; and lookups beside them |
//! | `cold-start` | processes that start at once on a database that does not exist |
//! | `periodic` | a process that commits now and then: calls, and the first commit after a pause |
//!
//! Writers of another database take processors and device from a reader, and nothing else.
//!
//! Each connection lives in a thread or in a process of its own. The engines take turns within a
//! run, so that drift hits all of them.

mod engine;
mod page;
mod periodic;
mod shape;
mod table;
mod worker;

use crate::counting::device::Device;
use crate::host::Mount;
use crate::numbers::measure::{INTERRUPTED, histogram, median, round};
use crate::parameters::card::{self, Machine};
use crate::parameters::suite::{CrowdPart, SuiteOptions};
use crate::progress::{self, Progress};
use crate::report::leads::{self, Contender};
use crate::text;

use crate::files::OutputFiles;
use crate::html;
use crate::numbers::stats::{Known, Ratio};
use anyhow::{Result, anyhow, bail, ensure};
use clap::ValueEnum;
use engine::{CrowdEngine, OpenedSettings};
use periodic::PeriodicRow;
use rusqlite::Connection;
use serde::Serialize;
use shape::SectionShape;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use worker::{Worker, WorkerOrder, WorkerResult};
pub use worker::{WorkerKind, process};

const RUNS: usize = 5;

/// The numbers of a step of a section.
struct MeasuredStep {
    writers: Vec<WorkerResult>,
    readers: Vec<WorkerResult>,
    log_bytes: u64,
}

/// Operations per second of all together, until the last was done.
fn rate(of: &[WorkerResult]) -> f64 {
    let longest_us = of.iter().map(|d| d.elapsed_us).max().unwrap_or(1).max(1);
    of.iter().map(|d| d.operations as f64).sum::<f64>() * 1e6 / longest_us as f64
}

/// The slowest by the mean of all.
fn fairness(of: &[WorkerResult]) -> f64 {
    let each = || of.iter().map(|d| d.operations as f64 / d.elapsed_us.max(1) as f64);
    each().fold(f64::INFINITY, f64::min) / (each().sum::<f64>() / of.len() as f64).max(1e-12)
}

impl MeasuredStep {
    /// Those whom the section is about.
    fn shown(&self) -> &[WorkerResult] {
        if self.readers.is_empty() { &self.writers } else { &self.readers }
    }

    fn lookup_us(&self, percentile: f64) -> Result<f64> {
        let mut all = histogram();
        for (ns, count) in self.readers.iter().flat_map(|d| &d.latency_ns) {
            all.record_n(*ns, *count)?;
        }
        Ok(all.value_at_percentile(percentile) as f64 / 1e3)
    }
}

/// One section: every step of it.
fn section(
    place: WorkerKind,
    dir: &Path,
    shape: &SectionShape,
    engine: CrowdEngine,
    seed: u64,
) -> Result<Vec<MeasuredStep>> {
    let dir = tempfile::tempdir_in(dir)?;
    let (path, other) = (dir.path().join("db"), dir.path().join("other"));
    // It stays open, as in a program whose connections come and go.
    let keeper = if shape.is_cold() {
        None
    } else {
        let keeper = engine.open(&path)?;
        shape.prepare(&keeper, seed)?;
        Some(keeper)
    };
    let elsewhere = if shape.writers_elsewhere {
        let c = engine.open(&other)?;
        shape.prepare(&c, seed)?;
        Some(c)
    } else {
        None
    };
    let long = shape.long_reader.then(|| engine.open(&path)).transpose()?;
    let count = |c: &Connection| -> Result<i64> { Ok(c.query_row("SELECT count(*) FROM t", [], |r| r.get(0))?) };
    if let Some(long) = &long {
        long.execute_batch("BEGIN")?;
        count(long)?;
    }
    let orders = (0..shape.writers + shape.readers).map(|number| {
        let writes = number < shape.writers;
        WorkerOrder {
            engine,
            path: if writes && shape.writers_elsewhere { other.clone() } else { path.clone() },
            seed: seed ^ ((number as u64 + 1) << 40),
            number,
            preloaded: (seed, shape.rows()),
            steps: if writes { shape.steps.clone() } else { shape.reader_steps() },
        }
    });
    let mut workers = Vec::new();
    let measured = orders
        .map(|order| Worker::start(place, order))
        .try_for_each(|worker| worker.map(|w| workers.push(w)))
        .and_then(|()| drive(&mut workers, shape, engine, &path, keeper.as_ref()));
    // The error of a connection explains more than its absence.
    let ends: Vec<Result<()>> = workers.into_iter().map(Worker::end).collect();
    let measured = match measured {
        Ok(measured) => ends.into_iter().collect::<Result<()>>().map(|()| measured),
        Err(e) => {
            let ended_early = |e: &anyhow::Error| e.to_string().contains("the section ended early");
            Err(ends.into_iter().filter_map(Result::err).find(|e| !ended_early(e)).unwrap_or(e))
        }
    }?;
    if let Some(long) = &long {
        let (before, rows) = (count(long)?, shape.rows());
        ensure!(before == rows as i64, "the open read transaction sees {before} rows instead of {rows}");
        long.execute_batch("COMMIT")?;
    }
    drop((long, keeper, elsewhere));
    shape.verify(&Connection::open(&path)?, &measured)?;
    Ok(measured)
}

/// Lets all connections do each step together.
fn drive(
    workers: &mut [Worker],
    shape: &SectionShape,
    engine: CrowdEngine,
    path: &Path,
    keeper: Option<&Connection>,
) -> Result<Vec<MeasuredStep>> {
    let mut measured = Vec::new();
    for step in &shape.steps {
        workers.iter_mut().try_for_each(Worker::wait_ready)?;
        workers.iter_mut().try_for_each(Worker::go)?;
        let mut writers = workers.iter_mut().map(Worker::done).collect::<Result<Vec<_>>>()?;
        let readers = writers.split_off(shape.writers);
        if let Some(keeper) = keeper {
            shape.verify_step(*step, &writers, keeper)?;
        }
        measured.push(MeasuredStep { writers, readers, log_bytes: engine.log_bytes(path) });
        if INTERRUPTED.load(Relaxed) {
            bail!("interrupted");
        }
    }
    Ok(measured)
}

/// One line of the table and of the JSON, with all that `bench compare` needs.
#[derive(Serialize)]
pub struct CrowdRow {
    engine: &'static str,
    preset: &'static str,
    workload: String,
    /// Connections that do it, and those that write meanwhile.
    threads: usize,
    writers_beside: usize,
    tx_per_s: f64,
    tx_per_s_runs: Vec<f64>,
    tx_per_s_known: Option<Known>,
    /// To stock WAL/FULL.
    ratio: Option<Ratio>,
    /// To one connection of the same engine, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_to_one: Option<Ratio>,
    /// Of a hundred attempts at a transaction, how many were refused, where that may happen.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_percent: Option<f64>,
    #[serde(skip)]
    durable: bool,
    /// Slowest connection by the mean.
    fairness: f64,
    wait_ms_max: f64,
    busy_seen: u64,
    lookup_us_p50: Option<f64>,
    lookup_us_p99: Option<f64>,
    writes_beside_per_s: Option<f64>,
    log_bytes_max: u64,
}

impl CrowdRow {
    /// Operations per second as shown, marked where they are not safe to quote.
    fn rate(&self) -> String {
        let mark = if self.tx_per_s_known.is_some_and(|known| known.steady) { "" } else { "~" };
        format!("{}{mark}", crate::text::thousands(self.tx_per_s))
    }
}

#[derive(Serialize)]
struct CrowdJson<'a> {
    parameters: &'a CrowdParameters,
    results: &'a [CrowdRow],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    periodic: &'a [PeriodicRow],
}

#[derive(Serialize)]
struct CrowdParameters {
    onewrite_version: &'static str,
    made_at: String,
    command: String,
    build: &'static str,
    sqlite_version: String,
    compile_options: Vec<String>,
    connections_in: &'static str,
    engines: BTreeMap<String, OpenedSettings>,
    workloads: BTreeMap<String, String>,
    section_ms: u64,
    runs: usize,
    run_order: &'static str,
    seed: u64,
    unknown: Vec<String>,
    machine: Machine,
}

impl CrowdParameters {
    /// The card in a few lines.
    fn short(&self) -> Vec<(String, String)> {
        let sqlite = format!("{}, {} build", self.sqlite_version, self.build);
        let runs = format!("{}, {}; seed {}", self.runs, self.run_order, self.seed);
        card::in_short(sqlite, runs, &self.machine, &self.unknown)
    }
}

/// The steps of each run of a section, by its shape's number and its engine.
type Sections = BTreeMap<(usize, CrowdEngine), Vec<Vec<MeasuredStep>>>;

/// A row of each step of each section.
fn rows(shapes: &[SectionShape], engines: &[CrowdEngine], sections: &Sections) -> Result<Vec<CrowdRow>> {
    let mut rows = Vec::new();
    for (at, shape) in shapes.iter().enumerate() {
        for step in 0..shape.steps.len() {
            for engine in shape.engines(engines).into_iter().filter(|e| sections.contains_key(&(at, *e))) {
                let of = |engine| -> Vec<&MeasuredStep> {
                    sections.get(&(at, engine)).into_iter().flatten().map(|steps| &steps[step]).collect()
                };
                let alone = shapes.iter().position(|s| s.name == shape.name && s.writers == 1 && s.readers == 0);
                let one: Vec<&MeasuredStep> = alone
                    .filter(|one| *one != at)
                    .and_then(|one| sections.get(&(one, engine)))
                    .into_iter()
                    .flatten()
                    .map(|steps| &steps[step])
                    .collect();
                rows.push(row(shape, step, engine, &of(engine), (&of(CrowdEngine::WalFull), &one))?);
            }
        }
    }
    Ok(rows)
}

/// Everything that was measured, and the reasons of the sections that failed.
struct Measured {
    sections: Sections,
    periodic: Vec<PeriodicRow>,
    failed: Vec<String>,
    /// Whole ones.
    runs: usize,
}

/// Each section in each run.
fn measure(
    args: &SuiteOptions,
    place: WorkerKind,
    (shapes, engines): (&[SectionShape], &[CrowdEngine]),
    dir: &Path,
    runs: usize,
) -> Result<Measured> {
    let of = |shape: &SectionShape| shape.engines(engines);
    let steps = |s: &SectionShape| s.steps.iter().filter(|step| step.is_timed()).count();
    let timed_ms = shapes.iter().map(|s| (of(s).len() * steps(s) * runs) as u64 * args.crowd.section_ms).sum();
    let now_and_then = rhythmic(args, place, engines);
    let periodic_runs = if now_and_then.is_empty() { 0 } else { runs };
    let timed = Duration::from_millis(timed_ms) + periodic::takes() * periodic_runs as u32;
    let how_long = format!("{} and the time between them", progress::spelled(timed));
    let progress = Progress::new(runs * shapes.iter().map(|s| of(s).len()).sum::<usize>() + periodic_runs, &how_long);
    let mut sections = Sections::new();
    let mut failed: BTreeMap<(usize, CrowdEngine), String> = BTreeMap::new();
    let mut interrupted = None;
    'runs: for run in 0..runs {
        for (at, shape) in shapes.iter().enumerate() {
            let engines = of(shape);
            for turn in 0..engines.len() {
                let engine = engines[(turn + run) % engines.len()];
                let what = format!("{} by {}: {}", shape.name, shape.connections(), engine.name());
                progress.section(&format!("run {} of {runs}, {what}", run + 1));
                if failed.contains_key(&(at, engine)) {
                    continue;
                }
                let seed = args.common.seed.wrapping_mul(1000) + run as u64;
                match section(place, dir, shape, engine, seed) {
                    Ok(done) => sections.entry((at, engine)).or_default().push(done),
                    Err(_) if run > 0 && INTERRUPTED.load(Relaxed) => {
                        sections.values_mut().for_each(|sections| sections.truncate(run));
                        interrupted = Some(run);
                        break 'runs;
                    }
                    Err(e) if INTERRUPTED.load(Relaxed) => return Err(e),
                    Err(e) => drop(failed.insert((at, engine), format!("{what}, run {}: {e:#}", run + 1))),
                }
            }
        }
    }
    let mut failed: Vec<String> = failed.into_values().collect();
    let mut periodic = Vec::new();
    if !now_and_then.is_empty() && interrupted.is_none() {
        let say = |text: &str| progress.section(text);
        match periodic::measure(dir, &now_and_then, &periodic::RHYTHMS, (runs, args.common.seed), say) {
            Ok(rows) => periodic = rows,
            Err(e) if INTERRUPTED.load(Relaxed) => return Err(e),
            Err(e) => failed.push(format!("commits now and then: {e:#}")),
        }
    }
    failed.extend(interrupted.map(progress::interrupted));
    progress.done();
    Ok(Measured { sections, periodic, failed, runs: interrupted.unwrap_or(runs) })
}

/// The engines of the part `periodic`, if it is measured.
fn rhythmic(args: &SuiteOptions, place: WorkerKind, engines: &[CrowdEngine]) -> Vec<CrowdEngine> {
    let parts = &args.crowd.part;
    let wanted = place == WorkerKind::Processes && (parts.is_empty() || parts.contains(&CrowdPart::Periodic));
    periodic::ENGINES.into_iter().filter(|engine| wanted && engines.contains(engine)).collect()
}

pub fn run(args: &SuiteOptions, place: WorkerKind) -> Result<()> {
    refuse(args, place)?;
    crate::engines::register_onewrite().map_err(anyhow::Error::msg)?;
    let files = OutputFiles::create(&args.common)?;
    let engines = chosen(&args.only)?;
    let simulated = args.common.simulated.start(None)?;
    let parent = simulated.as_ref().map(|s| s.dir()).or(args.common.dir.as_deref()).unwrap_or(Path::new("."));
    let dir = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(parent)?;
    let runs = args.common.runs.map_or(RUNS, |n| n as usize);
    let connections: BTreeSet<usize> = args.crowd.connections.iter().map(|n| usize::from(*n)).collect();
    let connections: Vec<usize> = connections.into_iter().collect();
    let sizes = shape::Sizes {
        connections: &connections,
        ms: args.crowd.section_ms,
        scale: args.common.transactions.unwrap_or(1000),
        think_rows: args.crowd.think_rows,
        think_ms: args.crowd.think_ms,
    };
    let shapes = shape::all(place, &args.crowd.part, &sizes);
    let Measured { sections, periodic, failed, runs } = measure(args, place, (&shapes, &engines), dir.path(), runs)?;
    let rows = rows(&shapes, &engines, &sections)?;
    let is_empty = rows.is_empty() && periodic.is_empty();
    ensure!(failed.is_empty() || !is_empty, "nothing was measured: {}", failed.join("; "));
    ensure!(!is_empty, "nothing was measured: no part that was asked for is for these engines here");
    let (sqlite_version, compile_options) = card::sqlite()?;
    let mount = Mount::of(dir.path());
    let device = Device::under(dir.path(), mount.as_ref());
    let machine = Machine::look(dir.path(), mount.as_ref(), &device, simulated.as_ref());
    let has_row =
        |e: &CrowdEngine| sections.keys().any(|(_, of)| of == e) || periodic.iter().any(|r| r.name() == e.name());
    let measured = engines.iter().filter(|e| has_row(e));
    let opened = measured.map(|e| Ok((e.name(), e.opened(dir.path())?))).collect::<Result<_>>()?;
    let parameters = CrowdParameters {
        onewrite_version: env!("CARGO_PKG_VERSION"),
        made_at: card::made_at(),
        command: card::command(),
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        sqlite_version,
        compile_options,
        connections_in: if place == WorkerKind::Threads { "threads of one process" } else { "processes of their own" },
        engines: opened,
        workloads: shapes.iter().flat_map(SectionShape::describe).collect(),
        section_ms: args.crowd.section_ms,
        runs,
        run_order: "interleaved, order of engines turned per run",
        seed: args.common.seed,
        unknown: card::all_unknown(&machine, &BTreeMap::new()),
        machine,
    };
    let mut below =
        if rows.is_empty() { Vec::new() } else { table::below(place, &shapes, &engines, runs, args.crowd.section_ms) };
    if !periodic.is_empty() {
        below.extend(periodic::below());
    }
    below.extend(failed.iter().map(|why| format!("Note: {}", progress::unfinished(why))));
    let leads = leads(&rows);
    print!("{}", told(&rows, &periodic, leads.iter().chain(&below), &parameters, text::columns()));
    files.write(&CrowdJson { parameters: &parameters, results: &rows, periodic: &periodic }, || {
        page::page(&parameters, (&rows, &periodic), &leads, &below)
    })?;
    ensure!(failed.is_empty(), "a part failed: {}", failed.join("; "));
    Ok(())
}

/// The text of the terminal.
fn told<'l>(
    rows: &[CrowdRow],
    periodic: &[PeriodicRow],
    lines: impl Iterator<Item = &'l String>,
    parameters: &CrowdParameters,
    columns: u16,
) -> String {
    let mut out = String::new();
    if !rows.is_empty() {
        out += &(table::table(rows, columns) + "\n");
    }
    if !periodic.is_empty() {
        out += &(periodic::table(periodic, columns) + "\n");
    }
    out += &text::wrapped(lines, columns);
    format!("{out}\n{}\n", card::lines(&parameters.short(), text::line(columns)).join("\n"))
}

/// Options that no part of the suite asked for heeds.
fn refuse(args: &SuiteOptions, place: WorkerKind) -> Result<()> {
    let parts = &args.crowd.part;
    let has = |is: fn(CrowdPart) -> bool| parts.is_empty() || parts.iter().any(|part| is(*part));
    let given = &args.common.given;
    let counted = has(|part| part == CrowdPart::DbBench) || !given.any(&["--transactions"]);
    let fixed =
        |part| matches!(part, CrowdPart::Readers | CrowdPart::LongReader | CrowdPart::DbBench | CrowdPart::Periodic);
    let vary = !parts.is_empty() && parts.iter().all(|part| fixed(*part));
    ensure!(
        !vary || !given.any(&["--connections"]),
        "--connections would change nothing: it concerns the parts writers, concurrent, read-think-write and cold-start"
    );
    let pauses =
        has(|part| matches!(part, CrowdPart::ReadThinkWrite | CrowdPart::ColdStart)) || !given.any(&["--think-ms"]);
    ensure!(pauses, "--think-ms would change nothing: it concerns the parts read-think-write and cold-start");
    let thinks =
        place == WorkerKind::Threads && has(|part| part == CrowdPart::Concurrent) || !given.any(&["--think-rows"]);
    ensure!(thinks, "--think-rows would change nothing: it concerns the part concurrent, by threads");
    ensure!(counted, "--transactions would change nothing: it scales the part db-bench, which is not measured");
    let untimed = |part| matches!(part, CrowdPart::DbBench | CrowdPart::ColdStart | CrowdPart::Periodic);
    let untimed = !parts.is_empty() && parts.iter().all(|part| untimed(*part));
    ensure!(
        !untimed || !given.any(&["--section-ms"]),
        "--section-ms would change nothing: the part db-bench is as long as --transactions makes it, cold-start and \
         periodic have lengths of their own"
    );
    let of_processes = |part: &&CrowdPart| matches!(part, CrowdPart::ColdStart | CrowdPart::Periodic);
    if let Some(part) = parts.iter().find(of_processes).filter(|_| place == WorkerKind::Threads) {
        let name = part.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
        bail!("--part {name} is of the suite processes alone");
    }
    Ok(())
}

/// The page's first sentences: the engine that got most done in each workload, by as many
/// connections as it had, and the cost of writers for a reader.
fn leads(rows: &[CrowdRow]) -> Vec<String> {
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|(workload, _)| *workload == row.workload) {
            Some((_, most)) => *most = (*most).max(row.threads),
            None => groups.push((&row.workload, row.threads)),
        }
    }
    let mut all: Vec<String> = groups
        .into_iter()
        .filter_map(|(workload, most)| {
            let of = |r: &&CrowdRow| r.workload == workload && r.threads == most;
            let contender = |r: &CrowdRow| Contender {
                name: format!("{}/{}", r.engine, r.preset),
                rate: r.tx_per_s,
                runs: r.tx_per_s_runs.clone(),
                durable: r.durable,
            };
            let by = if most > 1 { format!("{workload}, {most} connections") } else { workload.to_owned() };
            leads::sentence(&by, "operations", &rows.iter().filter(of).map(contender).collect::<Vec<_>>())
        })
        .collect();
    let p99 = |workload: &str, r: &CrowdRow| {
        let same = |o: &&CrowdRow| o.workload == workload && (o.engine, o.preset) == (r.engine, r.preset);
        rows.iter().find(same).and_then(|o| o.lookup_us_p99)
    };
    for r in rows.iter().filter(|r| r.workload == shape::BESIDE_WRITERS) {
        if let (Some(beside), Some(elsewhere)) = (r.lookup_us_p99, p99(shape::WRITERS_ELSEWHERE, r)) {
            all.push(format!(
                "{}/{}: a lookup's p99 beside four writers is {} µs, {:.2} times that beside four of another database \
                 ({} and {} commits/s).",
                r.engine,
                r.preset,
                html::number(Some(beside), 1),
                beside / elsewhere.max(1e-3),
                text::thousands(r.writes_beside_per_s.unwrap_or(0.0)),
                text::thousands(
                    rows.iter()
                        .find(|o| {
                            o.workload == shape::WRITERS_ELSEWHERE && (o.engine, o.preset) == (r.engine, r.preset)
                        })
                        .and_then(|o| o.writes_beside_per_s)
                        .unwrap_or(0.0)
                )
            ));
        }
    }
    all
}

/// The engines named with `--only`, and the one that ratios refer to.
fn chosen(only: &[String]) -> Result<Vec<CrowdEngine>> {
    if only.is_empty() {
        return Ok(CrowdEngine::ALL.to_vec());
    }
    let named = |name: &String| {
        let found = CrowdEngine::ALL.into_iter().find(|e| e.name() == *name);
        let names = || CrowdEngine::ALL.map(CrowdEngine::name).join(", ");
        found.ok_or_else(|| anyhow!("--only: there is no `{name}` in this suite; choose from {}", names()))
    };
    only.iter().map(named).collect()
}

fn row(
    shape: &SectionShape,
    step: usize,
    engine: CrowdEngine,
    mine: &[&MeasuredStep],
    (wal_full, one): (&[&MeasuredStep], &[&MeasuredStep]),
) -> Result<CrowdRow> {
    let rates = |of: &[&MeasuredStep]| of.iter().map(|m| rate(m.shown())).collect::<Vec<f64>>();
    let lookups = |percentile| -> Result<Option<f64>> {
        let each = mine.iter().map(|m| m.lookup_us(percentile)).collect::<Result<Vec<f64>>>()?;
        Ok(median(each).map(|v| round(v, 2)).filter(|_| shape.readers > 0))
    };
    let all = || mine.iter().flat_map(|m| m.shown());
    let beside = if shape.readers > 0 { shape.writers } else { 0 };
    let seen = |of: fn(&WorkerResult) -> u64| {
        mine.iter().flat_map(|m| m.writers.iter().chain(&m.readers)).map(of).sum::<u64>()
    };
    let (done, busy_seen) = (seen(|d| d.operations), seen(|d| d.busy));
    let refused = 100.0 * busy_seen as f64 / (done + busy_seen).max(1) as f64;
    Ok(CrowdRow {
        engine: engine.names().0,
        preset: engine.names().1,
        workload: shape.step_name(step),
        threads: shape.connections(),
        writers_beside: beside,
        tx_per_s: round(median(rates(mine)).unwrap_or(0.0), 1),
        tx_per_s_runs: rates(mine).into_iter().map(|v| round(v, 1)).collect(),
        tx_per_s_known: Known::of(&rates(mine)),
        ratio: Ratio::paired(&rates(mine), &rates(wal_full)),
        ratio_to_one: Ratio::paired(&rates(mine), &rates(one)),
        refused_percent: [CrowdPart::Concurrent, CrowdPart::ReadThinkWrite]
            .contains(&shape.part)
            .then(|| round(refused, 2)),
        durable: engine.is_durable(),
        fairness: round(median(mine.iter().map(|m| fairness(m.shown()))).unwrap_or(0.0), 3),
        wait_ms_max: all().map(|d| d.wait_us_max as f64 / 1e3).fold(0.0, f64::max),
        busy_seen,
        lookup_us_p50: lookups(50.0)?,
        lookup_us_p99: lookups(99.0)?,
        writes_beside_per_s: median(mine.iter().map(|m| rate(&m.writers))).filter(|_| beside > 0).map(|v| round(v, 1)),
        log_bytes_max: mine.iter().map(|m| m.log_bytes).max().unwrap_or(0),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn parameters() -> CrowdParameters {
        let of = crate::parameters::card::tests::parameters();
        CrowdParameters {
            onewrite_version: of.onewrite_version,
            made_at: of.made_at,
            command: of.command,
            build: of.build,
            sqlite_version: of.sqlite_version,
            compile_options: of.compile_options,
            connections_in: "processes of their own",
            engines: BTreeMap::new(),
            workloads: all_shapes().iter().flat_map(SectionShape::describe).collect(),
            section_ms: 1000,
            runs: 5,
            run_order: of.run_order,
            seed: 1,
            unknown: of.unknown,
            machine: of.machine,
        }
    }

    fn all_shapes() -> Vec<SectionShape> {
        let sizes = shape::Sizes { connections: &[], ms: 1000, scale: 1000, think_rows: 10_000, think_ms: 10 };
        shape::all(WorkerKind::Processes, &[], &sizes)
    }

    /// Rows of every step of every section.
    fn sample() -> (Vec<CrowdRow>, Vec<String>) {
        let mut rows = Vec::new();
        for shape in all_shapes() {
            for step in 0..shape.steps.len() {
                let row = |e| table::tests::row(e, &shape.step_name(step), shape.connections());
                rows.extend(shape.engines(&CrowdEngine::ALL).into_iter().map(row));
            }
        }
        let mut below = table::below(WorkerKind::Processes, &all_shapes(), &CrowdEngine::ALL, 5, 1000);
        below.extend(periodic::below());
        (rows, below)
    }

    #[cfg(target_os = "linux")]
    pub fn sample_page() -> String {
        let (mut rows, below) = sample();
        rows.retain(|row| !row.workload.starts_with("DB Bench: row"));
        page::page(&parameters(), (&rows, &periodic::tests::rows()), &leads(&rows), &below).unwrap()
    }

    #[test]
    fn the_text_of_the_terminal_has_eighty_columns() {
        let (rows, below) = sample();
        let lines = leads(&rows);
        let told = told(&rows, &periodic::tests::rows(), lines.iter().chain(&below), &parameters(), 80);
        assert!(text::width(&told) <= 80 && told.contains("by 32") && told.contains("SQLite"), "{told}");
    }

    fn done(operations: u64, elapsed_us: u64) -> WorkerResult {
        WorkerResult { operations, elapsed_us, ..WorkerResult::default() }
    }

    #[test]
    fn rates_and_fairness() {
        let of = [done(300, 1_000_000), done(100, 1_000_000), done(200, 2_000_000)];
        // Six hundred until the last was done; 300, 100 and 100 per second.
        assert_eq!(rate(&of), 300.0);
        assert!((fairness(&of) - 0.6).abs() < 1e-9, "{}", fairness(&of));
        assert_eq!(fairness(&[done(5, 10)]), 1.0);
    }

    #[test]
    fn every_shape_is_done_and_verified_by_threads() {
        crate::engines::register_onewrite().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let sizes = shape::Sizes { connections: &[], ms: 10, scale: 5, think_rows: 100, think_ms: 1 };
        for shape in
            shape::all(WorkerKind::Threads, &[], &sizes).iter().filter(|s| s.connections() < 4 || s.long_reader)
        {
            for engine in CrowdEngine::ALL.into_iter().filter(|e| shape.is_for(*e)) {
                let steps = section(WorkerKind::Threads, dir.path(), shape, engine, 1).unwrap();
                assert_eq!(steps.len(), shape.steps.len(), "{}", shape.name);
                assert!(steps.iter().all(|m| rate(m.shown()) > 0.0), "{} {engine:?}", shape.name);
                assert!(steps[0].readers.iter().all(|d| !d.latency_ns.is_empty()));
            }
        }
    }

    #[test]
    fn a_lost_row_fails_the_section() {
        let sizes = shape::Sizes { connections: &[3, 64], ms: 10, scale: 5, think_rows: 100, think_ms: 1 };
        let shapes = shape::all(WorkerKind::Threads, &[CrowdPart::Writers], &sizes);
        assert_eq!(shapes.iter().map(SectionShape::connections).collect::<Vec<_>>(), [3, 64]);
        let shape = &shapes[0];
        let c = Connection::open_in_memory().unwrap();
        shape.prepare(&c, 1).unwrap();
        let measured = |n| [MeasuredStep { writers: vec![done(n, 1)], readers: Vec::new(), log_bytes: 0 }];
        shape.verify(&c, &measured(0)).unwrap();
        let error = shape.verify(&c, &measured(1)).unwrap_err().to_string();
        assert!(error.contains("2000 rows") && error.contains("2001"), "{error}");
    }
}
