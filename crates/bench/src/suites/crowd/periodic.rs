//! The part `periodic`: a process that commits now and then, and rests between.
//!
//! Each engine and rhythm has a process and a database of its own, and all run side by side, since
//! they sleep most of the time. A second process of each is traced, for the counts.

use super::engine::CrowdEngine;
use super::worker::{ProcessOrder, ROWS, VALUE_BYTES, create_table};
use crate::counting::syscalls::{self, Marks};
use crate::numbers::measure::{INTERRUPTED, NoProbe, Probe, median, round};
use crate::numbers::random::Random;
use crate::text;
use anyhow::{Context, Result, ensure};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Cycles before the first that counts: onewrite learns a rhythm from them.
const LEARNT: u64 = 4;
/// Cycles that count, of the rhythms with the longest pauses.
const COUNTED: u64 = 3;

/// So many commits in a row, and then a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rhythm {
    pub commits: u64,
    pub pause_ms: u64,
}

pub const RHYTHMS: [Rhythm; 4] = [
    Rhythm { commits: 1, pause_ms: 100 },
    Rhythm { commits: 1, pause_ms: 1_000 },
    Rhythm { commits: 1, pause_ms: 5_000 },
    Rhythm { commits: 3, pause_ms: 3_000 },
];

impl Rhythm {
    pub fn name(self) -> String {
        let commits = if self.commits == 1 { "a commit".to_owned() } else { format!("{} commits", self.commits) };
        format!("{commits} every {} s", self.pause_ms as f64 / 1e3)
    }

    /// Cycles that count: enough for a few seconds.
    fn cycles(self) -> u64 {
        COUNTED.max(2_000 / self.pause_ms.max(100))
    }

    fn takes(self) -> Duration {
        Duration::from_millis((LEARNT + self.cycles()) * self.pause_ms)
    }
}

/// The time of a run.
pub fn takes() -> Duration {
    RHYTHMS.into_iter().map(Rhythm::takes).max().unwrap_or_default()
}

pub const ENGINES: [CrowdEngine; 4] =
    [CrowdEngine::Onewrite, CrowdEngine::OnewriteAttached, CrowdEngine::WalFull, CrowdEngine::Truncate];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeriodicRole {
    /// Times the first commit after each pause.
    Timed,
    /// Counts the calls of a child.
    Tracer,
    Traced,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeriodicOrder {
    engine: CrowdEngine,
    path: PathBuf,
    seed: u64,
    rhythm: Rhythm,
    role: PeriodicRole,
}

/// Calls between the first and the last cycle that count.
#[derive(Serialize, Deserialize)]
struct CountedCalls {
    writes: u64,
    flushes: u64,
    bytes: u64,
}

/// The process of an order: its answer is a line of JSON, of a traced one the number of commits.
pub fn process(order: &PeriodicOrder) -> Result<()> {
    match order.role {
        PeriodicRole::Timed => {
            crate::engines::register_onewrite().map_err(anyhow::Error::msg)?;
            let first_ms = work(order, &mut NoProbe)?;
            println!("{}", serde_json::to_string(&first_ms)?);
        }
        PeriodicRole::Traced => {
            syscalls::offer_to_be_traced()?;
            crate::engines::register_onewrite().map_err(anyhow::Error::msg)?;
            work(order, &mut Marks)?;
            println!("{}", order.rhythm.cycles() * order.rhythm.commits);
        }
        PeriodicRole::Tracer => {
            let traced = command(&PeriodicOrder { role: PeriodicRole::Traced, ..order.clone() })?;
            let calls = syscalls::count(traced).map_err(anyhow::Error::msg)?;
            let bytes = calls.log_bytes + calls.database_bytes;
            println!("{}", serde_json::to_string(&CountedCalls { writes: calls.writes, flushes: calls.syncs, bytes })?);
        }
    }
    Ok(())
}

/// Milliseconds of the first commit after each pause.
fn work(order: &PeriodicOrder, probe: &mut impl Probe) -> Result<Vec<f64>> {
    let c = order.engine.open(&order.path)?;
    c.execute_batch("BEGIN IMMEDIATE")?;
    create_table(&c, order.seed)?;
    c.execute_batch("COMMIT")?;
    let mut random = Random::new(order.seed ^ 1);
    let mut insert = c.prepare("INSERT INTO t VALUES(?1, ?2)")?;
    let (rhythm, mut first_ms) = (order.rhythm, Vec::new());
    for cycle in 0..LEARNT + rhythm.cycles() {
        if cycle == LEARNT {
            probe.begin()?;
        }
        for commit in 0..rhythm.commits {
            let begun = Instant::now();
            insert.execute(((random.next() >> 1) as i64, &[1_u8; VALUE_BYTES][..]))?;
            if commit == 0 && cycle >= LEARNT {
                first_ms.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        std::thread::sleep(Duration::from_millis(rhythm.pause_ms));
    }
    probe.end()?;
    Ok(first_ms)
}

fn command(order: &PeriodicOrder) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "--worker", &serde_json::to_string(&ProcessOrder::Periodic(order.clone()))?]);
    Ok(command)
}

fn start(order: &PeriodicOrder) -> Result<Child> {
    command(order)?.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting a process")
}

/// The answer of a process, whose rows are there.
fn answer<T: serde::de::DeserializeOwned>(child: Child, order: &PeriodicOrder) -> Result<T> {
    let out = child.wait_with_output()?;
    ensure!(out.status.success(), "{} failed, by {}", order.rhythm.name(), order.engine.name());
    let c = Connection::open(&order.path)?;
    let wanted = ROWS + (LEARNT + order.rhythm.cycles()) * order.rhythm.commits;
    let found: i64 = c.query_row("SELECT count(*) FROM t", [], |r| r.get(0))?;
    ensure!(found == wanted as i64, "{found} rows where {wanted} were acknowledged");
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// A line of the table, per commit.
#[derive(Serialize)]
pub struct PeriodicRow {
    engine: &'static str,
    preset: &'static str,
    rhythm: String,
    writes: f64,
    flushes: f64,
    kib: f64,
    /// The first commit after a pause.
    first_ms_p50: f64,
    first_ms_max: f64,
    first_ms_p50_runs: Vec<f64>,
}

/// All engines and rhythms, side by side.
pub fn measure(
    dir: &Path,
    engines: &[CrowdEngine],
    rhythms: &[Rhythm],
    (runs, seed): (usize, u64),
    mut progress: impl FnMut(&str),
) -> Result<Vec<PeriodicRow>> {
    let pairs: Vec<(Rhythm, CrowdEngine)> =
        rhythms.iter().flat_map(|rhythm| engines.iter().map(|engine| (*rhythm, *engine))).collect();
    let mut first_ms: Vec<Vec<Vec<f64>>> = vec![Vec::new(); pairs.len()];
    let mut counts: Vec<CountedCalls> = Vec::new();
    for run in 0..runs.max(1) {
        progress(&format!("run {} of {runs}, commits every 0.1 to 5 s: all engines", run + 1));
        let dir = tempfile::tempdir_in(dir)?;
        let order = |at: usize, role: PeriodicRole| PeriodicOrder {
            engine: pairs[at].1,
            path: dir.path().join(format!("{at}-{role:?}")),
            seed: seed + run as u64,
            rhythm: pairs[at].0,
            role,
        };
        let roles = if run == 0 { &[PeriodicRole::Timed, PeriodicRole::Tracer][..] } else { &[PeriodicRole::Timed] };
        let orders: Vec<_> = roles.iter().flat_map(|role| (0..pairs.len()).map(|at| order(at, *role))).collect();
        let mut children = Vec::new();
        for order in &orders {
            children.push(start(order)?);
            // So that their commits do not come at the same moments.
            std::thread::sleep(Duration::from_millis(17));
        }
        for (at, (child, order)) in children.into_iter().zip(&orders).enumerate() {
            match order.role {
                PeriodicRole::Timed => first_ms[at].push(answer(child, order)?),
                _ => counts.push(answer(child, order)?),
            }
        }
        ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
    }
    Ok(pairs
        .iter()
        .zip(first_ms)
        .zip(counts)
        .map(|(((rhythm, engine), ms), calls)| row(*rhythm, *engine, ms, &calls))
        .collect())
}

fn row(rhythm: Rhythm, engine: CrowdEngine, first_ms: Vec<Vec<f64>>, calls: &CountedCalls) -> PeriodicRow {
    let commits = (rhythm.cycles() * rhythm.commits) as f64;
    let medians: Vec<f64> = first_ms.iter().filter_map(|of| median(of.iter().copied())).collect();
    PeriodicRow {
        engine: engine.names().0,
        preset: engine.names().1,
        rhythm: rhythm.name(),
        writes: round(calls.writes as f64 / commits, 2),
        flushes: round(calls.flushes as f64 / commits, 2),
        kib: round(calls.bytes as f64 / 1024.0 / commits, 2),
        first_ms_p50: round(median(medians.iter().copied()).unwrap_or(0.0), 3),
        first_ms_max: round(first_ms.iter().flatten().copied().fold(0.0, f64::max), 3),
        first_ms_p50_runs: medians.into_iter().map(|v| round(v, 3)).collect(),
    }
}

pub const HEADS: [&str; 6] = ["", "writes", "flushes", "KiB", "first ms", "longest"];

impl PeriodicRow {
    pub fn name(&self) -> String {
        format!("{}/{}", self.engine, self.preset)
    }

    pub fn rhythm(&self) -> &str {
        &self.rhythm
    }

    pub fn cells(&self) -> Vec<String> {
        vec![
            self.name(),
            format!("{:.2}", self.writes),
            format!("{:.2}", self.flushes),
            format!("{:.1}", self.kib),
            format!("{:.2}", self.first_ms_p50),
            format!("{:.2}", self.first_ms_max),
        ]
    }
}

/// A table of each rhythm.
pub fn table(rows: &[PeriodicRow], columns: u16) -> String {
    let (mut lines, mut before) = (Vec::new(), "");
    for row in rows {
        if row.rhythm != before {
            lines.push(vec![row.rhythm.clone()]);
            before = &row.rhythm;
        }
        let mut cells = row.cells();
        cells[0].insert(0, ' ');
        lines.push(cells);
    }
    text::table(&HEADS.map(str::to_owned), &lines, columns)
}

/// The lines below it.
pub fn below() -> Vec<String> {
    vec![
        format!(
            "Commits now and then: inserts of {VALUE_BYTES} B in autocommit, each process with a database of its own; after \
             {LEARNT} cycles, from which onewrite learns the rhythm. writes, flushes, KiB: calls and bytes of a commit, \
             with what detaching and attaching between costs (ptrace). first ms: of the first commit after a pause, median; \
             longest: of all."
        ),
        "onewrite/log-attached: with idle=0 the process stays attached while it rests, and keeps stock SQLite out."
            .to_owned(),
    ]
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn rows() -> Vec<PeriodicRow> {
        let calls = CountedCalls { writes: 1018, flushes: 612, bytes: 9000 * 4096 };
        let of = |rhythm| ENGINES.map(|engine| row(rhythm, engine, vec![vec![1.0, 1234.5]], &calls));
        RHYTHMS.into_iter().flat_map(of).collect()
    }

    #[test]
    fn a_rhythm_is_counted_per_commit() {
        let rhythm = Rhythm { commits: 3, pause_ms: 3_000 };
        assert_eq!((rhythm.cycles(), rhythm.name().as_str()), (3, "3 commits every 3 s"));
        let calls = CountedCalls { writes: 18, flushes: 12, bytes: 9 * 4096 };
        let row = row(rhythm, CrowdEngine::Onewrite, vec![vec![1.0, 2.0, 9.0], vec![4.0]], &calls);
        assert_eq!((row.writes, row.flushes, row.kib), (2.0, 1.33, 4.0));
        assert_eq!((row.first_ms_p50, row.first_ms_max), (3.0, 9.0));
        let text = table(&[row], 80);
        assert!(text.contains("3 commits every 3 s\n onewrite/log") && text.lines().all(|l| l.len() <= 80), "{text}");
    }
}
