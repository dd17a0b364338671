//! The suite `processes`: what several processes that write one database get done together.
//!
//! Each process starts this program again, opens a connection of its own and makes durable autocommit inserts for as
//! long as it is told. The engines take turns within a run, so that what drifts hits all of them.

use super::Args;
use super::measure::{median, paired_ratio};
use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Cell, CellAlignment, Table, TableStyle};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SECTION: Duration = Duration::from_millis(1500);
const RUNS: usize = 3;
const PROCESSES: [usize; 3] = [1, 2, 4];
const VALUE_BYTES: usize = 128;
/// Busy timeout of stock SQLite: without one it fails at once. onewrite's connections have none.
const STOCK_BUSY: Duration = Duration::from_secs(10);
/// Tells a process of the suite what to do.
const ORDER: &str = "ONEWRITE_BENCH_PROCESS";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Engine {
    Onewrite,
    WalFull,
}

const ENGINES: [Engine; 2] = [Engine::Onewrite, Engine::WalFull];

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Onewrite => "onewrite/log",
            Engine::WalFull => "stock/wal-full",
        }
    }

    fn open(self, path: &Path) -> Result<Connection> {
        let c = match self {
            Engine::Onewrite => {
                let c = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), c"onewrite")?;
                c.busy_timeout(Duration::ZERO)?;
                c
            }
            Engine::WalFull => {
                let c = Connection::open(path)?;
                c.busy_timeout(STOCK_BUSY)?;
                c.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
                c
            }
        };
        c.pragma_update(None, "synchronous", "FULL")?;
        Ok(c)
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    engine: Engine,
    path: PathBuf,
    seed: u64,
    section_ms: u64,
}

/// What one process did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Done {
    inserts: u64,
    busy: u64,
    elapsed_us: u64,
    wait_us_max: u64,
}

/// One process: says when it is ready, waits for a line, writes, says what it did.
fn work(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let c = order.engine.open(&order.path)?;
    let mut insert = c.prepare("INSERT INTO t VALUES (?1, zeroblob(?2))")?;
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let mut key = order.seed | 1;
    let mut done = Done { inserts: 0, busy: 0, elapsed_us: 0, wait_us_max: 0 };
    let begun = Instant::now();
    let mut last = begun;
    while begun.elapsed() < Duration::from_millis(order.section_ms) {
        key = key.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(order.seed | 1);
        match insert.execute((key as i64, VALUE_BYTES as i64)) {
            Ok(_) => {}
            Err(e) if matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)) => {
                done.busy += 1;
                continue;
            }
            Err(e) => return Err(e.into()),
        }
        let now = Instant::now();
        done.wait_us_max = done.wait_us_max.max((now - last).as_micros() as u64);
        done.inserts += 1;
        last = now;
    }
    // Who got nothing for so long that the section ended waited, too.
    done.wait_us_max = done.wait_us_max.max(last.elapsed().as_micros() as u64);
    done.elapsed_us = begun.elapsed().as_micros() as u64;
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}

struct Worker {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Worker {
    fn start(order: &Order) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "--suite", "processes"])
            .env(ORDER, serde_json::to_string(order)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process")?;
        let out = child.stdout.take().context("no output of a process")?;
        Ok(Worker { child, out: BufReader::new(out) })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.out.read_line(&mut line)? > 0, "a process of the suite failed");
        Ok(line)
    }
}

fn section(dir: &Path, engine: Engine, processes: usize, seed: u64) -> Result<Vec<Done>> {
    let path = dir.join("processes.db");
    for suffix in ["", "-wal", "-shm", "-journal", "-onewrite", "-onewrite-kept"] {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        match std::fs::remove_file(PathBuf::from(name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    // Stays open, as a program that has a database open in several processes would.
    let keeper = engine.open(&path)?;
    keeper.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)")?;
    let section_ms = SECTION.as_millis() as u64;
    let orders = (0..processes as u64).map(|n| Order {
        engine,
        path: path.clone(),
        seed: (seed << 8 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        section_ms,
    });
    let mut workers = orders.map(|order| Worker::start(&order)).collect::<Result<Vec<_>>>()?;
    for worker in &mut workers {
        worker.line()?;
    }
    for worker in &mut workers {
        worker.child.stdin.take().context("no input of a process")?.write_all(b"go\n")?;
    }
    let mut all = Vec::new();
    for mut worker in workers {
        all.push(serde_json::from_str(&worker.line()?)?);
        ensure!(worker.child.wait()?.success(), "a process of the suite failed");
    }
    let rows: i64 = keeper.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?;
    let inserts: u64 = all.iter().map(|done: &Done| done.inserts).sum();
    if rows as u64 != inserts {
        bail!("{} lost rows: {rows} of {inserts}", engine.name());
    }
    Ok(all)
}

#[derive(Serialize)]
struct Row {
    processes: usize,
    engine: Engine,
    inserts_per_s: f64,
    ratio_to_wal_full: Option<f64>,
    fairness: f64,
    wait_ms_max: f64,
    busy_seen: u64,
}

/// The suite.
pub fn run(args: &Args) -> Result<()> {
    super::engines::register_onewrite().map_err(anyhow::Error::msg)?;
    if let Ok(order) = std::env::var(ORDER) {
        return work(&order);
    }
    let parent = args.common.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let dir = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(&parent)?;
    let runs = args.common.runs.map_or(RUNS, |n| n as usize);
    let mut rows = Vec::new();
    for processes in PROCESSES {
        let mut sections: [Vec<Vec<Done>>; 2] = Default::default();
        for run in 0..runs {
            for turn in 0..ENGINES.len() {
                let at = (turn + run) % ENGINES.len();
                let seed = args.common.seed.wrapping_mul(1000) + run as u64;
                sections[at].push(section(dir.path(), ENGINES[at], processes, seed)?);
            }
        }
        let rate = |d: &Done| d.inserts as f64 * 1e6 / d.elapsed_us.max(1) as f64;
        let total = |at: usize| sections[at].iter().map(|s| s.iter().map(rate).sum()).collect::<Vec<f64>>();
        for (at, engine) in ENGINES.into_iter().enumerate() {
            let fairness = sections[at].iter().map(|s| {
                let mean = s.iter().map(rate).sum::<f64>() / s.len() as f64;
                s.iter().map(rate).fold(f64::INFINITY, f64::min) / mean.max(1e-9)
            });
            let all = || sections[at].iter().flatten();
            rows.push(Row {
                processes,
                engine,
                inserts_per_s: median(total(at)).unwrap_or(0.0),
                ratio_to_wal_full: paired_ratio(&total(at), &total(1)),
                fairness: median(fairness).unwrap_or(0.0),
                wait_ms_max: all().map(|d| d.wait_us_max as f64 / 1000.0).fold(0.0, f64::max),
                busy_seen: all().map(|d| d.busy).sum(),
            });
        }
    }
    println!("{}", table(&rows));
    println!("Durable autocommit inserts of {VALUE_BYTES} B at random keys, each process with one connection.");
    println!("Medians of {runs} runs of {} ms; the longest wait and BUSY are of all runs.", SECTION.as_millis());
    println!(
        "BUSY: seen by the application. Stock SQLite has a busy timeout of {} s, onewrite's connections have none.",
        STOCK_BUSY.as_secs()
    );
    if cfg!(debug_assertions) {
        println!("This is a debug build; measure with `cargo run --release`.");
    }
    if let Some(path) = &args.common.json {
        std::fs::write(path, serde_json::to_vec_pretty(&rows)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new();
    t.load_style(TableStyle::new());
    t.set_header(["processes", "engine", "commits/s", "× WAL/FULL", "slowest/mean", "longest wait ms", "BUSY"]);
    for r in rows {
        let cells = [
            r.processes.to_string(),
            r.engine.name().to_owned(),
            format!("{:.0}", r.inserts_per_s),
            r.ratio_to_wal_full.map_or(String::new(), |x| format!("{x:.2}")),
            format!("{:.2}", r.fairness),
            format!("{:.1}", r.wait_ms_max),
            r.busy_seen.to_string(),
        ];
        t.add_row(
            cells.into_iter().enumerate().map(|(n, c)| {
                Cell::new(c).set_alignment(if n == 1 { CellAlignment::Left } else { CellAlignment::Right })
            }),
        );
    }
    t
}
