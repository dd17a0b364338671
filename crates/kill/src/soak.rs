//! The soak: threads of several processes write and read one database for minutes; processes die
//! and restart at random. No acknowledged transaction may be lost; memory and the log must not
//! grow.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use fastrand::Rng;
use onewrite_core::Repair;
use onewrite_core::disk::real::RealDisk;
use rusqlite::Connection;

use crate::host::was_killed;
use crate::soaked::{self, Part};
use crate::whereabouts::whereabouts;

const SAMPLE: Duration = Duration::from_millis(500);
/// By this age, a process has all its memory.
const GROWN: Duration = Duration::from_secs(10);
/// Milliseconds of a nap, and number of naps. A stopped machine counts as one nap.
const ENDS: (u64, u32) = (5, 10_000);
/// Without a transaction for so long (the default of `idle`) a process detaches; and how much later
/// a busy machine may have done it.
const IDLE: Duration = Duration::from_secs(1);
const PLAIN_WITHIN: Duration = Duration::from_millis(1_500);
/// Header, ring, and as much again for images that do not fit.
const LOG_BYTES_MAX: u64 = 2 << 20;

/// The options of the soak.
#[derive(Args, Clone, Debug)]
pub struct Soak {
    /// How long, in minutes
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Threads of all processes together
    #[arg(long, default_value_t = 16)]
    threads: u64,
    /// Processes
    #[arg(long, default_value_t = 3)]
    processes: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the database; otherwise a temporary one
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Processes also think within transactions, fork, and fall silent together for 3 and 12 s.
    /// Then stock SQLite must be able to read the database
    #[arg(long)]
    silences: bool,
    /// Most memory that a process may have resident, in MiB
    #[arg(long, default_value_t = 64)]
    rss_mib_max: u64,
}

/// The processes' reports.
#[derive(Default)]
struct Said {
    /// The newest acknowledged transaction of each writer.
    reached: Vec<i64>,
    /// Its process was killed since: the next transaction may be there, too.
    may_be_ahead: Vec<bool>,
    acknowledged: u64,
    busy: u64,
    snapshots: u64,
    wait_us_max: u64,
    /// The last report.
    last: Option<Instant>,
    failed: Option<String>,
}

impl Said {
    fn line(&mut self, line: &str) -> Result<()> {
        self.last = Some(Instant::now());
        let (what, rest) = line.split_at_checked(1).unwrap_or((line, ""));
        let numbers: Vec<i64> = rest.split_whitespace().map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
        match (what, numbers[..].as_ref()) {
            ("A", [writer, n, us]) => {
                let writer = *writer as usize;
                let known = self.reached.get_mut(writer).context("no such writer")?;
                ensure!(*n == *known + 1, "writer {writer} was at {known}, and says {n}");
                *known = *n;
                self.acknowledged += 1;
                self.wait_us_max = self.wait_us_max.max(*us as u64);
            }
            ("S", [writer, n]) => self.found(*writer as usize, *n)?,
            ("B", []) => self.busy += 1,
            ("R", [seen]) => self.snapshots += *seen as u64,
            _ => bail!("a process says: {line}"),
        }
        Ok(())
    }

    /// A writer begins, or the final check reads: all acknowledged transactions must be there.
    fn found(&mut self, writer: usize, n: i64) -> Result<()> {
        let known = self.reached.get_mut(writer).context("no such writer")?;
        let ahead = self.may_be_ahead.get_mut(writer).context("no such writer")?;
        let right = n == *known || (*ahead && n == *known + 1);
        ensure!(right, "transactions of writer {writer} up to {known} were acknowledged, and {n} is the last");
        (*known, *ahead) = (n, false);
        Ok(())
    }
}

struct Running {
    child: Child,
    listener: std::thread::JoinHandle<()>,
    part: Part,
    since: Instant,
    ends: Option<Instant>,
    /// Resident memory at the age [`GROWN`].
    grown_kib: Option<u64>,
    kib_max: u64,
}

impl Running {
    fn start(part: Part, writers: u64, said: &Arc<Mutex<Said>>) -> Result<Running> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("soaked")
            .arg("--at")
            .arg(&part.at)
            .args(["--first", &part.first.to_string(), "--threads", &part.threads.to_string()])
            .args(["--plan", &part.plan.to_string(), "--life-ms", &part.life_ms.to_string()])
            .args(["--writers", &writers.to_string()])
            .args(part.silences.then_some("--silences"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let from = child.stdout.take().context("a pipe")?;
        let said = said.clone();
        let listener = std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if let Err(e) = said.line(&line) {
                    said.failed.get_or_insert(e.to_string());
                }
            }
        });
        let ends = (part.life_ms > 0).then(|| Instant::now() + Duration::from_millis(part.life_ms));
        Ok(Running { child, listener, part, since: Instant::now(), ends, grown_kib: None, kib_max: 0 })
    }

    fn sample(&mut self) {
        let Some(kib) = resident_kib(self.child.id()) else { return };
        self.kib_max = self.kib_max.max(kib);
        if self.grown_kib.is_none() && self.since.elapsed() >= GROWN {
            self.grown_kib = Some(self.kib_max);
        }
    }

    /// Reports each thread's place if the process does not end.
    fn wait(&mut self) -> Result<ExitStatus> {
        let (nap_ms, naps) = ENDS;
        for _ in 0..naps {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(nap_ms));
        }
        bail!("a process does not end: {}", whereabouts(self.child.id()))
    }

    /// Waits for a process that ends by itself.
    fn end(mut self) -> Result<Part> {
        let status = self.wait()?;
        let _ = self.listener.join();
        ensure!(status.success(), "a process ended with {status}");
        Ok(self.part)
    }

    fn kill(mut self, said: &Mutex<Said>) -> Result<Part> {
        self.child.kill()?;
        let status = self.wait()?;
        let _ = self.listener.join();
        ensure!(status.success() || was_killed(status, true), "a process ended with {status}");
        let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let writers = self.part.first as usize..(self.part.first + self.part.threads - 1) as usize;
        said.may_be_ahead.get_mut(writers).context("no such writers")?.fill(true);
        Ok(self.part)
    }
}

fn resident_kib(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn len(at: &Path, suffix: &str) -> u64 {
    let mut path = at.as_os_str().to_owned();
    path.push(suffix);
    fs::metadata(PathBuf::from(path)).map_or(0, |m| m.len())
}

/// Bytes kept for readers of any session.
fn kept(at: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(at.parent().unwrap_or(at))? {
        let path = entry?.path();
        if path.to_string_lossy().contains("-onewrite-kept") {
            // A session may have removed it by now.
            bytes += fs::metadata(&path).map_or(0, |m| m.len());
        }
    }
    Ok(bytes)
}

#[derive(Default)]
struct Measured {
    kills: u64,
    orderly: u64,
    all_killed: u64,
    kib_max: u64,
    /// Growth since a process's first seconds.
    growth_kib_max: u64,
    /// The longest measured life.
    life_s_max: f64,
    log_bytes_max: u64,
    kept_bytes_max: u64,
    home_bytes_max: u64,
    /// Silences in which stock SQLite read the database, and how long that took at most after the
    /// last report.
    rests: u64,
    at_rest_after_max: Duration,
}

/// A silence of all processes, as stock SQLite sees it.
#[derive(Default)]
struct Rest {
    was_read: bool,
    /// Its answers in this silence, each with the milliseconds from which on it was the same.
    refused: Vec<(u128, String)>,
}

impl Rest {
    /// Whether the processes are silent. Stock SQLite then reads the database, as soon as it can.
    fn look(&mut self, at: &Path, said: &Mutex<Said>, measured: &mut Measured) -> Result<bool> {
        let Some(silent_for) = soaked::silent_for() else {
            *self = Rest::default();
            return Ok(false);
        };
        let last = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner).last;
        let quiet_for = last.map_or(silent_for, |last| last.elapsed().min(silent_for));
        if self.was_read || quiet_for < IDLE / 2 {
            return Ok(true);
        }
        match Connection::open(at)?.query_row("SELECT count(*) FROM last", [], |row| row.get::<_, i64>(0)) {
            Ok(_) => {
                self.was_read = true;
                measured.rests += 1;
                measured.at_rest_after_max = measured.at_rest_after_max.max(quiet_for);
            }
            Err(e) => {
                let why = e.to_string();
                if self.refused.last().is_none_or(|(_, last)| *last != why) {
                    self.refused.push((quiet_for.as_millis(), why));
                }
                ensure!(
                    quiet_for < IDLE + PLAIN_WITHIN,
                    "{} ms after the last report of a silent process stock SQLite cannot read; from which ms it got \
                     which answer: {:?}; users: {:?}",
                    quiet_for.as_millis(),
                    self.refused,
                    Repair::beside(Arc::new(RealDisk::new()), at).and_then(|beside| beside.users())
                );
            }
        }
        Ok(true)
    }
}

impl Measured {
    fn sample(&mut self, at: &Path, running: &mut [Option<Running>], soak: &Soak) -> Result<()> {
        for process in running.iter_mut().flatten() {
            process.sample();
            self.kib_max = self.kib_max.max(process.kib_max);
            if let Some(grown) = process.grown_kib {
                self.growth_kib_max = self.growth_kib_max.max(process.kib_max.saturating_sub(grown));
            }
            self.life_s_max = self.life_s_max.max(process.since.elapsed().as_secs_f64());
        }
        self.log_bytes_max = self.log_bytes_max.max(len(at, "-onewrite"));
        self.kept_bytes_max = self.kept_bytes_max.max(kept(at)?);
        self.home_bytes_max = self.home_bytes_max.max(len(at, ""));
        ensure!(self.kib_max <= soak.rss_mib_max << 10, "a process has {} KiB resident", self.kib_max);
        ensure!(self.log_bytes_max <= LOG_BYTES_MAX, "the log has {} bytes", self.log_bytes_max);
        Ok(())
    }
}

/// The last line has the number of violations.
pub fn run(soak: &Soak) -> ExitCode {
    let said = Arc::new(Mutex::new(Said::default()));
    let mut measured = Measured::default();
    let begun = Instant::now();
    let done = soak_in(soak, &said, &mut measured);
    let said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!(
        "{:.1} minutes, {} threads in {} processes: {} transactions acknowledged, {} snapshots read twice, BUSY seen {} \
         times, longest transaction {:.0} ms",
        begun.elapsed().as_secs_f64() / 60.0,
        soak.threads,
        soak.processes,
        said.acknowledged,
        said.snapshots,
        said.busy,
        said.wait_us_max as f64 / 1000.0
    );
    println!(
        "{} processes killed, {} times all at once; {} ended in order",
        measured.kills, measured.all_killed, measured.orderly
    );
    println!(
        "resident at most {} KiB; after the first {} s of a process at most {} KiB more (longest life {:.0} s)",
        measured.kib_max,
        GROWN.as_secs(),
        measured.growth_kib_max,
        measured.life_s_max
    );
    println!(
        "at most: log {} bytes, kept images {} bytes, database {} bytes",
        measured.log_bytes_max, measured.kept_bytes_max, measured.home_bytes_max
    );
    if soak.silences {
        println!(
            "{} silences in which stock SQLite read the database, {:.0} ms after the last report at the latest",
            measured.rests,
            measured.at_rest_after_max.as_secs_f64() * 1000.0
        );
    }
    println!("violations: {}", u32::from(done.is_err()));
    let Err(e) = done else { return ExitCode::SUCCESS };
    println!("violation: {e:#}");
    ExitCode::FAILURE
}

fn soak_in(soak: &Soak, said: &Arc<Mutex<Said>>, measured: &mut Measured) -> Result<()> {
    ensure!(
        soak.processes > 0 && soak.threads >= 2 * soak.processes,
        "each process has a thread that reads and one that writes: at least two"
    );
    let mut rng = Rng::with_seed(soak.seed);
    let parent = soak.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("onewrite-soak-").tempdir_in(parent)?;
    let at = dir.path().join("soak.db");
    let writers = soak.threads - soak.processes;
    {
        let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        said.reached = vec![0; writers as usize];
        said.may_be_ahead = vec![false; writers as usize];
    }
    let plan = rng.u64(..);
    let db = soaked::open(&at)?;
    soaked::create(&db, writers)?;
    db.close().map_err(|(_, e)| e)?;
    let mut parts = Vec::new();
    let mut first = 0;
    for process in 0..soak.processes {
        let threads = soak.threads / soak.processes + u64::from(process < soak.threads % soak.processes);
        parts.push(Part { at: at.clone(), first, threads, plan, life_ms: 0, silences: soak.silences });
        first += threads - 1;
    }
    let mut running: Vec<Option<Running>> = Vec::new();
    for part in parts {
        running.push(Some(Running::start(part, writers, said)?));
    }
    let done = live_and_die(soak, &at, &mut rng, &mut running, writers, said, measured);
    let mut killed = Ok(());
    for process in running.into_iter().flatten() {
        killed = killed.and(process.kill(said).map(drop));
        measured.kills += 1;
    }
    // A process's last report explains more than its exit status.
    let told = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner).failed.clone();
    let done = told.map_or(done, |why| Err(anyhow::anyhow!(why))).and(killed);
    let done = done.and_then(|()| judge(&at, plan, writers, said));
    done.or_else(|e| {
        let kept = dir.keep();
        Err(e).with_context(|| format!("seed {}; {} has the files", soak.seed, kept.display()))
    })
}

/// The first process dies only with all the others, so its memory shows leaks.
fn live_and_die(
    soak: &Soak,
    at: &Path,
    rng: &mut Rng,
    running: &mut [Option<Running>],
    writers: u64,
    said: &Arc<Mutex<Said>>,
    measured: &mut Measured,
) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(soak.minutes * 60.0);
    let all_die_every = Duration::from_secs_f64((soak.minutes * 60.0 / 5.0).max(1.0));
    let mut all_die = Instant::now() + all_die_every;
    let mut next = Instant::now();
    let mut sample = Instant::now();
    let mut rest = Rest::default();
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
        if let Some(why) = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner).failed.clone() {
            bail!(why);
        }
        if Instant::now() >= sample {
            sample = Instant::now() + SAMPLE;
            measured.sample(at, running, soak)?;
        }
        if soak.silences && rest.look(at, said, measured)? {
            continue;
        }
        let all = Instant::now() >= all_die;
        if all {
            all_die = Instant::now() + all_die_every;
            measured.all_killed += 1;
        }
        let chosen = (Instant::now() >= next && running.len() > 1).then(|| rng.usize(1..running.len()));
        if chosen.is_some() {
            next = Instant::now() + Duration::from_millis(rng.u64(50..2500));
        }
        for (number, place) in running.iter_mut().enumerate() {
            let over = place.as_ref().and_then(|p| p.ends).is_some_and(|at| Instant::now() >= at);
            let mut part = match place.take() {
                Some(process) if over && !all => {
                    measured.orderly += 1;
                    process.end()?
                }
                Some(process) if all || chosen == Some(number) => {
                    measured.kills += 1;
                    process.kill(said)?
                }
                other => {
                    *place = other;
                    let Some(process) = place else { continue };
                    match process.child.try_wait()? {
                        None => {}
                        // Its life began before `ends` was computed, so it may end before that
                        // moment.
                        Some(status) if status.success() && process.ends.is_some() => {
                            process.ends = Some(Instant::now())
                        }
                        Some(status) => bail!("a process ended with {status}"),
                    }
                    continue;
                }
            };
            part.life_ms = if number > 0 && rng.u32(0..4) == 0 { rng.u64(100..3000) } else { 0 };
            *place = Some(Running::start(part, writers, said)?);
        }
    }
    measured.sample(at, running, soak)
}

/// With all processes dead, the next open recovers, and closes in order; stock SQLite finds the
/// same.
fn judge(at: &Path, plan: u64, writers: u64, said: &Mutex<Said>) -> Result<()> {
    let mut said = said.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let db = soaked::open(at)?;
    let reached = soaked::look(&db, plan, writers).context("found through onewrite")?;
    for (writer, n) in reached.iter().enumerate() {
        said.found(writer, *n)?;
    }
    db.close().map_err(|(_, e)| e).context("close")?;
    let stock = Connection::open(at)?;
    let whole: String = stock.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(whole == "ok", "integrity_check: {whole}");
    let found = soaked::look(&stock, plan, writers).context("found by stock SQLite")?;
    ensure!(found == reached, "stock SQLite finds {found:?}, onewrite {reached:?}");
    ensure!(kept(at)? == 0, "the kept images outlive the last process");
    Ok(())
}
