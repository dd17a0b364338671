//! The suite `threads`: what several connections of one process get done together.
//!
//! | part | measures |
//! |---|---|
//! | writers | durable autocommit inserts of 1 to 16 threads, and how they share |
//! | readers | a lookup by key, alone and beside four writers |
//! | long reader | four writers beside a read transaction that stays open, and what the log grows to |
//!
//! The engines take turns within a run, so that what drifts hits all of them.

use super::Args;
use super::measure::{INTERRUPTED, histogram, median, paired_ratio};
use super::random::Random;
use anyhow::{Context, Result, bail, ensure};
use comfy_table::{Cell, CellAlignment, Table, TableStyle};
use hdrhistogram::Histogram;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long each section is measured.
const SECTION: Duration = Duration::from_millis(1000);
const RUNS: usize = 5;
const WRITERS: [usize; 5] = [1, 2, 4, 8, 16];
/// Writers beside readers.
const BESIDE: usize = 4;
const ROWS: u64 = 2_000;
const VALUE_BYTES: usize = 128;
/// Busy timeout of stock SQLite: without one it fails at once. onewrite's connections have none.
const STOCK_BUSY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Engine {
    Onewrite,
    WalFull,
    Truncate,
}

const ENGINES: [Engine; 3] = [Engine::Onewrite, Engine::WalFull, Engine::Truncate];

impl Engine {
    fn name(self) -> &'static str {
        match self {
            Engine::Onewrite => "onewrite/log",
            Engine::WalFull => "stock/wal-full",
            Engine::Truncate => "stock/truncate",
        }
    }

    fn open(self, path: &Path) -> Result<Connection> {
        let stock = |mode: &str| -> Result<Connection> {
            let c = Connection::open(path)?;
            c.busy_timeout(STOCK_BUSY)?;
            c.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(()))?;
            Ok(c)
        };
        let c = match self {
            Engine::Onewrite => {
                let path = path.to_str().context("the directory's name is not UTF-8")?;
                let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
                let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
                let c = Connection::open_with_flags(format!("file:{path}?vfs=onewrite"), flags)?;
                c.busy_timeout(Duration::ZERO)?;
                c
            }
            Engine::WalFull => stock("wal")?,
            Engine::Truncate => stock("truncate")?,
        };
        c.pragma_update(None, "synchronous", "FULL")?;
        Ok(c)
    }

    /// What the log or write-ahead log has grown to, in bytes.
    fn log_bytes(self, path: &Path) -> u64 {
        let suffix = match self {
            Engine::Onewrite => "-onewrite",
            Engine::WalFull => "-wal",
            Engine::Truncate => "-journal",
        };
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |m| m.len())
    }
}

fn key(random: &mut Random) -> i64 {
    (random.next() >> 1) as i64
}

/// What one thread did in a section.
#[derive(Default)]
struct Done {
    transactions: u64,
    longest: Duration,
    busy: u64,
    latency_ns: Option<Histogram<u64>>,
}

/// What a section is.
#[derive(Clone, Copy)]
struct Setting {
    engine: Engine,
    writers: usize,
    readers: usize,
    /// A read transaction is open all the time.
    long_reader: bool,
    seed: u64,
}

/// What a section gave.
struct Section {
    writers: Vec<Done>,
    readers: Vec<Done>,
    seconds: f64,
    log_bytes: u64,
}

impl Section {
    fn written_per_s(&self) -> f64 {
        self.writers.iter().map(|d| d.transactions as f64).sum::<f64>() / self.seconds
    }

    /// Slowest thread by the mean of all.
    fn fairness(&self) -> f64 {
        let counts = || self.writers.iter().map(|d| d.transactions as f64);
        counts().fold(f64::INFINITY, f64::min) / (counts().sum::<f64>() / self.writers.len() as f64).max(1.0)
    }

    fn longest_ms(&self) -> f64 {
        self.writers.iter().map(|d| d.longest.as_secs_f64() * 1e3).fold(0.0, f64::max)
    }

    fn busy(&self) -> u64 {
        self.writers.iter().chain(&self.readers).map(|d| d.busy).sum()
    }

    fn read_us(&self, percentile: f64) -> f64 {
        let mut all = histogram();
        for h in self.readers.iter().filter_map(|d| d.latency_ns.as_ref()) {
            let _ = all.add(h);
        }
        all.value_at_percentile(percentile) as f64 / 1e3
    }
}

fn is_busy(e: &rusqlite::Error) -> bool {
    matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Does `once` until `stop`, again after each BUSY.
fn repeat(stop: &AtomicBool, mut once: impl FnMut() -> rusqlite::Result<()>, keep: bool) -> Result<Done> {
    let mut done = Done { latency_ns: keep.then(histogram), ..Done::default() };
    let mut begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match once() {
            Ok(()) => {}
            Err(e) if is_busy(&e) => {
                done.busy += 1;
                continue;
            }
            Err(e) => return Err(e.into()),
        }
        let now = Instant::now();
        done.transactions += 1;
        done.longest = done.longest.max(now - begun);
        if let Some(h) = &mut done.latency_ns {
            h.record((now - begun).as_nanos() as u64)?;
        }
        begun = now;
    }
    // Who got nothing for so long that the section ended waited, too.
    done.longest = done.longest.max(begun.elapsed());
    Ok(done)
}

fn preload(c: &Connection, random: &mut Random) -> Result<Vec<i64>> {
    c.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB NOT NULL); BEGIN")?;
    let mut keys = Vec::new();
    let mut insert = c.prepare("INSERT INTO t VALUES(?1, ?2)")?;
    for _ in 0..ROWS {
        let key = key(random);
        insert.execute((key, vec![key as u8; VALUE_BYTES]))?;
        keys.push(key);
    }
    drop(insert);
    c.execute_batch("COMMIT")?;
    Ok(keys)
}

fn section(dir: &Path, s: Setting) -> Result<Section> {
    let dir = tempfile::tempdir_in(dir)?;
    let path = dir.path().join("db");
    let mut random = Random(s.seed);
    let first = s.engine.open(&path)?;
    let keys = preload(&first, &mut random)?;
    let long = s.long_reader.then(|| s.engine.open(&path)).transpose()?;
    if let Some(long) = &long {
        long.execute_batch("BEGIN")?;
        long.query_row("SELECT count(*) FROM t", [], |_| Ok(()))?;
    }
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(s.writers + s.readers + 1);
    let (writers, readers, seconds, log_bytes) = std::thread::scope(|scope| -> Result<_> {
        let (stop, barrier, path, keys) = (&stop, &barrier, &path, &keys);
        let mut threads = Vec::new();
        for n in 0..s.writers + s.readers {
            let mut random = Random(s.seed ^ ((n as u64 + 1) << 40));
            threads.push(scope.spawn(move || -> Result<Done> {
                let ready = s.engine.open(path);
                barrier.wait();
                let c = ready?;
                if n < s.writers {
                    let mut insert = c.prepare("INSERT INTO t VALUES(?1, ?2)")?;
                    repeat(stop, || insert.execute((key(&mut random), [n as u8; VALUE_BYTES])).map(drop), false)
                } else {
                    let mut lookup = c.prepare("SELECT v FROM t WHERE k = ?1")?;
                    let mut key = || keys[random.next() as usize % keys.len()];
                    repeat(stop, || lookup.query_row([key()], |r| r.get_ref(0).map(|_| ())), true)
                }
            }));
        }
        barrier.wait();
        let begun = Instant::now();
        std::thread::sleep(SECTION);
        stop.store(true, Ordering::Relaxed);
        let mut done = Vec::new();
        for thread in threads {
            done.push(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        let seconds = begun.elapsed().as_secs_f64();
        let readers = done.split_off(s.writers);
        Ok((done, readers, seconds, s.engine.log_bytes(path)))
    })?;
    if let Some(long) = long {
        let before: i64 = long.query_row("SELECT count(*) FROM t", [], |r| r.get(0))?;
        ensure!(before == ROWS as i64, "the open read transaction sees {before} rows instead of {ROWS}");
        long.execute_batch("COMMIT")?;
    }
    drop(first);
    check(&path, ROWS + writers.iter().map(|d| d.transactions).sum::<u64>())?;
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(Section { writers, readers, seconds, log_bytes })
}

/// Everything that was acknowledged is in the file, as stock SQLite sees it.
fn check(path: &Path, rows: u64) -> Result<()> {
    let c = Connection::open(path)?;
    let found: i64 = c.query_row("SELECT count(*) FROM t", [], |r| r.get(0))?;
    ensure!(found == rows as i64, "{found} rows in {} where {rows} were inserted", path.display());
    let verdict: String = c.query_row("PRAGMA integrity_check", [], |r| r.get(0))?;
    ensure!(verdict == "ok", "{}: {verdict}", path.display());
    Ok(())
}

/// One line of the JSON.
#[derive(Serialize)]
struct Row {
    part: &'static str,
    engine: Engine,
    writers: usize,
    readers: usize,
    long_reader: bool,
    writes_per_s: Option<f64>,
    ratio_to_wal_full: Option<f64>,
    /// Slowest thread by the mean.
    fairness: Option<f64>,
    wait_ms_max: Option<f64>,
    busy_seen: u64,
    lookup_us_p50: Option<f64>,
    lookup_us_p99: Option<f64>,
    log_bytes_max: u64,
}

#[derive(Serialize)]
struct Json {
    section_ms: u64,
    runs: usize,
    rows: u64,
    value_bytes: usize,
    cpus: Option<usize>,
    stock_busy_timeout_ms: u64,
    results: Vec<Row>,
}

type Shape = (&'static str, usize, usize, bool);

/// The suite.
pub fn run(args: &Args) -> Result<()> {
    super::engines::register_onewrite().map_err(anyhow::Error::msg)?;
    let parent = args.common.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let dir = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(&parent)?;
    let runs = args.common.runs.map_or(RUNS, |n| n as usize);
    let mut shapes: Vec<Shape> = WRITERS.iter().map(|n| ("writers", *n, 0, false)).collect();
    shapes.extend([("readers", 0, 1, false), ("readers", BESIDE, 1, false)]);
    shapes.extend([("long reader", BESIDE, 0, false), ("long reader", BESIDE, 0, true)]);
    let mut sections: BTreeMap<(usize, Engine), Vec<Section>> = BTreeMap::new();
    for run in 0..runs {
        for (at, (_, writers, readers, long_reader)) in shapes.iter().copied().enumerate() {
            for turn in 0..ENGINES.len() {
                let engine = ENGINES[(turn + run) % ENGINES.len()];
                let seed = args.common.seed.wrapping_mul(1000) + run as u64;
                let setting = Setting { engine, writers, readers, long_reader, seed };
                let done = section(dir.path(), setting)
                    .with_context(|| format!("{} with {writers} writers and {readers} readers", engine.name()))?;
                sections.entry((at, engine)).or_default().push(done);
            }
        }
    }
    let results: Vec<Row> = shapes
        .iter()
        .enumerate()
        .flat_map(|(at, shape)| ENGINES.map(|engine| (at, *shape, engine)))
        .map(|(at, shape, engine)| row(&sections, at, shape, engine))
        .collect();
    println!("{}", table(&results));
    println!("Durable autocommit inserts of {VALUE_BYTES} B at random keys, each thread with a connection of its own.");
    println!(
        "Medians of {runs} runs of {} ms a section; the longest wait and BUSY are of all runs.",
        SECTION.as_millis()
    );
    println!(
        "BUSY: seen by the application. Stock SQLite has a busy timeout of {} s, onewrite's connections have none.",
        STOCK_BUSY.as_secs()
    );
    if cfg!(debug_assertions) {
        println!("This is a debug build; measure with `cargo run --release`.");
    }
    if let Some(path) = &args.common.json {
        let json = Json {
            section_ms: SECTION.as_millis() as u64,
            runs,
            rows: ROWS,
            value_bytes: VALUE_BYTES,
            cpus: std::thread::available_parallelism().ok().map(usize::from),
            stock_busy_timeout_ms: STOCK_BUSY.as_millis() as u64,
            results,
        };
        std::fs::write(path, serde_json::to_vec_pretty(&json)?).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn row(sections: &BTreeMap<(usize, Engine), Vec<Section>>, at: usize, shape: Shape, engine: Engine) -> Row {
    let (part, writers, readers, long_reader) = shape;
    let of = |engine| sections.get(&(at, engine)).map_or(&[][..], Vec::as_slice);
    let mine = of(engine);
    let written = |engine| of(engine).iter().map(Section::written_per_s).collect::<Vec<f64>>();
    let writes = |value: Option<f64>| value.filter(|_| writers > 0);
    let reads = |percentile| median(mine.iter().map(|s| s.read_us(percentile))).filter(|_| readers > 0);
    Row {
        part,
        engine,
        writers,
        readers,
        long_reader,
        writes_per_s: writes(median(written(engine))),
        ratio_to_wal_full: writes(paired_ratio(&written(engine), &written(Engine::WalFull))),
        fairness: writes(median(mine.iter().map(Section::fairness))),
        wait_ms_max: writes(mine.iter().map(Section::longest_ms).reduce(f64::max)),
        busy_seen: mine.iter().map(Section::busy).sum(),
        lookup_us_p50: reads(50.0),
        lookup_us_p99: reads(99.0),
        log_bytes_max: mine.iter().map(|s| s.log_bytes).max().unwrap_or(0),
    }
}

fn table(rows: &[Row]) -> Table {
    let mut t = Table::new();
    t.load_style(TableStyle::new());
    t.set_header([
        "part",
        "writers",
        "readers",
        "engine",
        "commits/s",
        "× WAL/FULL",
        "slowest/\nmean",
        "longest\nwait ms",
        "BUSY",
        "lookup\np50 µs",
        "lookup\np99 µs",
        "log KiB",
    ]);
    let number = |value: Option<f64>, digits: usize| value.map_or(String::new(), |v| format!("{v:.digits$}"));
    for r in rows {
        let readers = if r.long_reader { "1 for long".to_owned() } else { r.readers.to_string() };
        let cells = [
            r.part.to_owned(),
            r.writers.to_string(),
            readers,
            r.engine.name().to_owned(),
            number(r.writes_per_s, 0),
            number(r.ratio_to_wal_full, 2),
            number(r.fairness, 2),
            number(r.wait_ms_max, 1),
            r.busy_seen.to_string(),
            number(r.lookup_us_p50, 1),
            number(r.lookup_us_p99, 1),
            (r.log_bytes_max / 1024).to_string(),
        ];
        let left = [0, 3];
        t.add_row(cells.into_iter().enumerate().map(|(n, c)| {
            Cell::new(c).set_alignment(if left.contains(&n) { CellAlignment::Left } else { CellAlignment::Right })
        }));
    }
    t
}
