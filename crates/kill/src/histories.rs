//! Histories: threads of several processes append to lists and read them, in transactions of one to
//! eight operations. Some processes load the extension, some the drop-in library; they fork, stop
//! and are killed. Their history is proved strictly serializable, or a violation is named.
//!
//! Choices are drawn from the seed, timing is not: a violation keeps the files and the histories.

mod client;
mod cycle;
mod history;
mod judge;
#[cfg(test)]
mod judge_tests;

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::io::{PipeReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use fastrand::Rng;
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::{Connection, OpenFlags};

pub use client::{Client, run as run_client};
use client::{Fault, PROCESSES_MAX, READS_MORE, THREADS_MAX};
use history::Read;
use judge::Outcome;

use crate::host;
use crate::plan;
use crate::whereabouts::whereabouts;

/// A process that lives for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two looks whether a process has ended, or is to be stopped or killed.
const NAP: Duration = Duration::from_micros(500);
/// URI parameters, one of which each round draws, and whether a few hundred KiB are streamed under
/// them.
const PARAMETERS: [(&str, bool); 9] = [
    ("", false),
    ("idle=1ms", false),
    ("idle=20ms&log_size=256k&table_size=128k&stream_size=64k", true),
    ("log_size=256k&table_size=128k&stream_size=64k", true),
    ("log_size=256k&table_size=128k&stream_size=64k", true),
    ("log_size=256k&table_size=128k&stream_size=64k&busy_ms=1", true),
    ("stream_size=64k", true),
    ("scheme=wal-opt&log_size=256k&table_size=128k&stream_size=64k", true),
    ("concurrent=1&log_size=256k&table_size=128k&stream_size=64k", true),
];

/// How many transactions, and through which libraries.
#[derive(Args, Clone, Debug)]
pub struct Histories {
    /// End when so many transactions are acknowledged
    #[arg(long, default_value_t = 100_000)]
    transactions: u64,
    /// Transactions that are begun on one set of files, which is then judged
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..=200_000))]
    round: u64,
    /// Where the random numbers begin: the same seed draws the same choices, but the timing differs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the databases; otherwise a temporary one. A violation keeps files and
    /// histories there
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The drop-in libsqlite3 that half of the processes load; otherwise the one beside this
    /// program, if it is there
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// URI parameters of all rounds, such as stream_size=64k; otherwise each round draws some
    #[arg(long)]
    parameters: Option<String>,
    /// Databases of all rounds, 2 to 5 of them attached to one another; otherwise each round draws
    /// a number
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=5))]
    files: Option<u8>,
    /// SQLite's own VFS in WAL mode, on one file: these histories must pass
    #[arg(long, conflicts_with_all = ["library", "parameters", "files", "canary"])]
    stock: bool,
    /// Clients that lie, one round for each lie: each must be found
    #[arg(long)]
    canary: bool,
}

#[derive(Default)]
struct Totals {
    rounds: u64,
    acknowledged: u64,
    rolled_back: u64,
    unknown: u64,
    unknown_committed: u64,
    reads: u64,
    processes: u64,
    forks: u64,
    kills: u64,
    stops: u64,
    several_files: u64,
    drop_in: u64,
    edges: u64,
    judging: Duration,
}

/// Runs the campaign; the last line says how many violations there were.
pub fn run(histories: &Histories) -> ExitCode {
    let library = match histories.library() {
        Ok(library) => library,
        Err(e) => {
            eprintln!("onewrite-kill: {e:#}");
            return ExitCode::from(2);
        }
    };
    if histories.canary {
        return canaries(histories, library.as_deref());
    }
    let begun = Instant::now();
    let mut totals = Totals::default();
    let bar = bar(histories.transactions);
    let mut failed = None;
    while totals.acknowledged < histories.transactions && failed.is_none() {
        failed = round(histories, library.as_deref(), None, &mut totals).err();
        bar.set_position(totals.acknowledged.min(histories.transactions));
    }
    bar.finish_and_clear();
    totals.print(begun.elapsed(), library.as_deref());
    println!("kills: {}, violations: {}", totals.kills, u32::from(failed.is_some()));
    let Some(e) = failed else { return ExitCode::SUCCESS };
    println!("violation: {e:#}");
    ExitCode::FAILURE
}

/// One round for each lie.
fn canaries(histories: &Histories, library: Option<&Path>) -> ExitCode {
    let mut missed = 0;
    for fault in Fault::value_variants() {
        let mut totals = Totals::default();
        let done = round(histories, library, Some(*fault), &mut totals);
        match done {
            Err(e) => println!("{fault:?}: found: {e:#}"),
            Ok(()) => {
                missed += 1;
                println!("{fault:?}: NOT FOUND in {} transactions", totals.acknowledged);
            }
        }
    }
    println!("canaries: {}, not found: {missed}", Fault::value_variants().len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Histories {
    /// The drop-in library, if there is one.
    fn library(&self) -> Result<Option<PathBuf>> {
        if let Some(path) = &self.library {
            ensure!(path.is_file(), "--library {}: there is no such file", path.display());
            return Ok(Some(path.clone()));
        }
        let program = std::env::current_exe()?;
        let name = format!("{DLL_PREFIX}sqlite3{DLL_SUFFIX}");
        let beside = program.parent().map(|dir| dir.join(name));
        Ok(beside.filter(|path| path.is_file() && !self.stock))
    }
}

fn bar(transactions: u64) -> ProgressBar {
    let bar = ProgressBar::new(transactions);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} transactions  {elapsed}, {eta} left") {
        bar.set_style(style);
    }
    bar
}

impl Totals {
    fn print(&self, took: Duration, library: Option<&Path>) {
        let seconds = took.as_secs_f64();
        println!(
            "{} rounds, {} of them with several files; {} transactions acknowledged ({:.0} a second), {} rolled back, {} \
             unknown, of which {} committed",
            self.rounds,
            self.several_files,
            self.acknowledged,
            self.acknowledged as f64 / seconds,
            self.rolled_back,
            self.unknown,
            self.unknown_committed
        );
        println!(
            "{} lists read; {} edges judged in {:.1} of {seconds:.0} s",
            self.reads,
            self.edges,
            self.judging.as_secs_f64()
        );
        println!(
            "{} processes, {} of them through {}, {} forked, {} stopped",
            self.processes,
            self.drop_in,
            library.map_or("no drop-in library".into(), |path| path.display().to_string()),
            self.forks,
            self.stops
        );
    }
}

/// The choices of a round.
#[derive(Debug)]
struct Setup {
    files: u8,
    parameters: String,
    big: usize,
    at_once: usize,
    threads_max: u64,
    slots: u64,
    length: usize,
    busy_ms: i32,
    /// Transactions of a connection, at most.
    session: u64,
    kills: bool,
    stops: bool,
    forks: bool,
    page_size: u32,
    auto_vacuum: u32,
}

impl Setup {
    fn draw(histories: &Histories, rng: &mut Rng) -> Setup {
        let mut drawn = PARAMETERS[rng.usize(0..PARAMETERS.len())];
        while histories.files.is_some_and(|files| files > 1) && drawn.0.contains("concurrent=1") {
            drawn = PARAMETERS[rng.usize(0..PARAMETERS.len())];
        }
        let (parameters, streams) = match &histories.parameters {
            Some(given) => (given.clone(), given.contains("stream_size")),
            None if histories.stock => (String::new(), false),
            None => (drawn.0.to_owned(), drawn.1),
        };
        // One process has such a database alone, and a transaction over several needs each without
        // any reader.
        let is_alone = parameters.contains("concurrent=1");
        let drawn_files = if rng.bool() || is_alone { 1 } else { rng.u8(2..=5) };
        let files = if histories.stock { 1 } else { histories.files.unwrap_or(drawn_files) };
        Setup {
            files,
            big: if streams { [4_000, 100_000, 300_000, 1_000_000][rng.usize(0..4)] } else { 20_000 },
            parameters,
            at_once: if is_alone { 1 } else { rng.usize(2..=4) },
            threads_max: if is_alone { 6 } else { 3 },
            slots: rng.u64(2..=5) * u64::from(files).max(3),
            length: rng.usize(8..80),
            busy_ms: if files > 1 { [20, 200][rng.usize(0..2)] } else { [20, 1000, 5000][rng.usize(0..3)] },
            session: [10, 100, 3000][rng.usize(0..3)],
            kills: rng.u32(0..4) != 0,
            stops: rng.u32(0..3) != 0 && host::STOPS,
            // SQLite's own VFS hangs in the child of a fork now and then.
            forks: rng.bool() && !is_alone && !histories.stock && host::FORKS,
            page_size: [512, 1024, 4096, 4096, 4096, 16384][rng.usize(0..6)],
            auto_vacuum: rng.u32(0..3),
        }
    }
}

/// A process that runs.
struct Running {
    child: Child,
    since: Instant,
    dies: Option<Instant>,
    stops: Option<Instant>,
    goes_on: Option<Instant>,
    killed: bool,
}

impl Running {
    fn kill(&mut self) -> Result<()> {
        self.killed = true;
        Ok(self.child.kill()?)
    }
}

struct Round<'a> {
    setup: Setup,
    at: &'a Path,
    rng: Rng,
    library: Option<&'a Path>,
    fault: Option<Fault>,
    stock: bool,
    number: u64,
    running: Vec<Running>,
    /// Every process, also a forked one, has this pipe open.
    pipe: Option<std::io::PipeWriter>,
    ended: Receiver<()>,
    totals: &'a mut Totals,
}

/// One set of files, from its making to its judgement.
fn round(histories: &Histories, library: Option<&Path>, fault: Option<Fault>, totals: &mut Totals) -> Result<()> {
    totals.rounds += 1;
    let number = totals.rounds;
    let mut rng = Rng::with_seed(plan::mix(&[histories.seed, number]));
    let setup = Setup::draw(histories, &mut rng);
    let parent = histories.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("onewrite-histories-").tempdir_in(parent)?;
    let (from, pipe) = std::io::pipe()?;
    let (ended, stock) = (when_all_ended(from), histories.stock);
    let at = dir.path();
    let (running, pipe) = (Vec::new(), Some(pipe));
    let mut one = Round { setup, at, rng, library, fault, stock, number: 1, running, pipe, ended, totals };
    let done = one.all(histories.round);
    one.kill_all();
    let Err(e) = done else { return Ok(()) };
    // The children of forks go on by themselves: nothing changes the files from here on.
    one.pipe = None;
    let _ = one.ended.recv_timeout(PATIENCE);
    let setup = format!("{:?}", one.setup);
    drop(one);
    if fault.is_some() {
        return Err(e);
    }
    fs::write(dir.path().join("violation"), format!("seed {}, round {number}: {setup}\n{e:#}\n", histories.seed))?;
    let kept = dir.keep();
    let (seed, kept) = (histories.seed, kept.display());
    Err(e).with_context(|| format!("seed {seed}, round {number} ({setup}); {kept} has the files and histories"))
}

/// Tells when no process has the other end of a pipe any more.
fn when_all_ended(mut from: PipeReader) -> Receiver<()> {
    let (send, ended) = channel();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // The output is not used: processes tell it in their histories, too.
        let _ = from.read_to_end(&mut said);
        let _ = send.send(());
    });
    ended
}

impl Round<'_> {
    fn all(&mut self, transactions: u64) -> Result<()> {
        self.totals.several_files += u64::from(self.setup.files > 1);
        for file in 0..self.setup.files {
            self.create(file)?;
        }
        let mut begun = 0;
        while begun < transactions || !self.running.is_empty() {
            if begun < transactions && self.running.len() < self.setup.at_once {
                begun += self.start()?;
            }
            std::thread::sleep(NAP);
            self.look()?;
        }
        self.pipe = None;
        ensure!(self.ended.recv_timeout(PATIENCE).is_ok(), "the child of a fork hangs");
        self.last()?;
        self.judge()
    }

    /// Makes the tables, through stock SQLite.
    fn create(&self, file: u8) -> Result<()> {
        let path = Client::path(self.at, file);
        let db = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), STOCK_VFS)?;
        let (page, vacuum) = (self.setup.page_size, self.setup.auto_vacuum);
        let mode = if self.stock { "wal" } else { "delete" };
        db.execute_batch(&format!(
            "PRAGMA page_size={page}; PRAGMA auto_vacuum={vacuum}; PRAGMA journal_mode={mode}; \
             CREATE TABLE list(k INTEGER PRIMARY KEY, v TEXT); CREATE TABLE big(k INTEGER PRIMARY KEY, b BLOB)"
        ))?;
        db.close().map_err(|(_, e)| e.into())
    }

    fn client(&mut self, threads: u64, transactions: u64) -> Client {
        let setup = &self.setup;
        let drop_in = self.library.filter(|_| self.rng.bool());
        self.totals.drop_in += u64::from(drop_in.is_some());
        self.totals.processes += 1;
        self.number += 1;
        Client {
            at: self.at.to_owned(),
            number: self.number - 1,
            seed: self.rng.u64(..),
            files: setup.files,
            parameters: setup.parameters.clone(),
            library: drop_in.map(Path::to_owned),
            threads,
            transactions,
            slots: setup.slots,
            length: setup.length,
            big: setup.big,
            busy_ms: setup.busy_ms,
            session: setup.session,
            forks: setup.forks,
            stock: self.stock,
            last: false,
            fault: self.fault,
        }
    }

    /// Starts a process; how many transactions it begins at most.
    fn start(&mut self) -> Result<u64> {
        ensure!(self.number < PROCESSES_MAX, "a round has at most {PROCESSES_MAX} processes: choose a smaller --round");
        let threads = self.rng.u64(1..=self.setup.threads_max.min(THREADS_MAX));
        let transactions = self.rng.u64(50..2500);
        let client = self.client(threads, transactions);
        let child = self.spawn(&client)?;
        let since = Instant::now();
        let at = |us: Option<u64>| us.map(|us| since + Duration::from_micros(us));
        let kills = (self.setup.kills && self.rng.u32(0..3) == 0).then(|| self.rng.u64(0..800_000));
        let stops = (self.setup.stops && self.rng.u32(0..4) == 0).then(|| self.rng.u64(5_000..800_000));
        self.running.push(Running { child, since, dies: at(kills), stops: at(stops), goes_on: None, killed: false });
        // Those that are killed do a part of it, those that read do more.
        let about = threads * transactions;
        Ok(if kills.is_some() { about / 4 } else { about * READS_MORE / 4 })
    }

    fn spawn(&self, client: &Client) -> Result<Child> {
        let pipe = self.pipe.as_ref().context("a pipe")?.try_clone()?;
        Ok(client.command()?.stdin(Stdio::null()).stdout(pipe).spawn()?)
    }

    /// Stops, lets go on and kills those whose time has come, and looks which ones have ended.
    fn look(&mut self) -> Result<()> {
        let mut kept = Vec::new();
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        for mut one in std::mem::take(&mut self.running) {
            if let Some(status) = one.child.try_wait()? {
                let is_right = status.success() || host::was_killed(status, one.killed);
                if !is_right {
                    self.read()?;
                    bail!("a process ended with {status}");
                }
                continue;
            }
            if is_due(one.goes_on) {
                one.goes_on = None;
                host::go_on(&one.child)?;
            }
            if is_due(one.stops) {
                one.stops = None;
                self.totals.stops += 1;
                host::stop(&one.child)?;
                let long = self.rng.u32(0..20) == 0;
                one.goes_on = Some(now + Duration::from_millis(self.rng.u64(1..if long { 3000 } else { 60 })));
            }
            if is_due(one.dies) {
                one.dies = None;
                self.totals.kills += 1;
                one.kill()?;
                // Some die together.
                let together = self.rng.u32(0..5) == 0;
                for other in kept.iter_mut().filter(|_| together) {
                    let other: &mut Running = other;
                    self.totals.kills += 1;
                    other.kill()?;
                }
            }
            if one.since.elapsed() > PATIENCE {
                let id = one.child.id();
                kept.push(one);
                self.running = kept;
                bail!("process {id} hangs: {}", whereabouts(id));
            }
            kept.push(one);
        }
        self.running = kept;
        Ok(())
    }

    /// All is read at the end, by a process that finds the files alone.
    fn last(&mut self) -> Result<()> {
        let client = Client { last: true, forks: false, busy_ms: 5000, ..self.client(1, 0) };
        let status = client.command()?.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
        if !status.success() {
            self.read()?;
            bail!("the process that reads all at the end ended with {status}");
        }
        Ok(())
    }

    /// Reads the histories: an error that must not happen is told before anything is judged.
    fn read(&self) -> Result<Read> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(self.at)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("h-")) {
                paths.push(path);
            }
        }
        paths.sort();
        let mut read = Read::default();
        for path in &paths {
            read.add(path)?;
        }
        if let Some(first) = read.wrong.first() {
            let all = read.wrong.len();
            bail!("{first} ({all} such in all)");
        }
        Ok(read)
    }

    fn judge(&mut self) -> Result<()> {
        let begun = Instant::now();
        let read = self.read()?;
        let judged = judge::judge(&read.transactions);
        let count = |outcome| read.transactions.iter().filter(|t| t.outcome == outcome).count() as u64;
        self.totals.acknowledged += count(Outcome::Ok);
        self.totals.rolled_back += count(Outcome::Failed);
        self.totals.unknown += count(Outcome::Unknown);
        let steps = read.transactions.iter().filter(|t| t.outcome == Outcome::Ok).flat_map(|t| &t.steps);
        self.totals.reads += steps.filter(|s| matches!(s, judge::Step::Read(..))).count() as u64;
        self.totals.forks += forks(&read.files);
        self.totals.judging += begun.elapsed();
        match judged {
            Ok(proof) => {
                self.totals.unknown_committed += proof.unknown_committed as u64;
                self.totals.edges += proof.edges as u64;
                Ok(())
            }
            Err(violation) => bail!("{}", read.explain(&violation)),
        }
    }

    fn kill_all(&mut self) {
        for one in &mut self.running {
            // It may be gone already.
            let _ = one.child.kill();
            let _ = one.child.wait();
        }
        self.running.clear();
    }
}

/// Processes that were forked, by the names of their histories.
fn forks(files: &[String]) -> u64 {
    let number = |name: &String| name.split('-').nth(1).and_then(|number| number.parse::<u64>().ok());
    let mut all: Vec<u64> = files.iter().filter_map(number).filter(|number| *number >= PROCESSES_MAX).collect();
    all.sort_unstable();
    all.dedup();
    all.len() as u64
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.kill_all();
    }
}

impl Client {
    /// The process that does it.
    fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("history").arg("--at").arg(&self.at).args(["--parameters", &self.parameters]);
        let numbers = [
            ("--number", self.number),
            ("--seed", self.seed),
            ("--files", u64::from(self.files)),
            ("--threads", self.threads),
            ("--transactions", self.transactions),
            ("--slots", self.slots),
            ("--length", self.length as u64),
            ("--big", self.big as u64),
            ("--busy-ms", self.busy_ms.unsigned_abs().into()),
            ("--session", self.session),
        ];
        for (name, number) in numbers {
            command.args([name, &number.to_string()]);
        }
        for (name, given) in [("--forks", self.forks), ("--stock", self.stock), ("--last", self.last)] {
            if given {
                command.arg(name);
            }
        }
        if let Some(library) = &self.library {
            command.arg("--library").arg(library);
        }
        if let Some(fault) = self.fault.and_then(|fault| fault.to_possible_value()) {
            command.args(["--fault", fault.get_name()]);
        }
        Ok(command)
    }
}

impl Read {
    /// A violation with its transactions, and where their histories have them.
    fn explain(&self, violation: &judge::Violation) -> String {
        let mut text = format!("{}: {}", violation.name, violation.what);
        for t in &violation.transactions {
            let (Some(one), Some((file, line))) = (self.transactions.get(*t), self.from.get(*t)) else { continue };
            let file = self.files.get(*file as usize).map_or("", String::as_str);
            let steps: Vec<String> = one.steps.iter().map(describe).collect();
            text.push_str(&format!(
                "\n  T{t} (line {line} of {file}): {} to {}, {:?}: {}",
                one.invoked,
                if one.completed == u64::MAX { "?".into() } else { one.completed.to_string() },
                one.outcome,
                steps.join(" ")
            ));
        }
        text
    }
}

/// A step, with the end of a list that was read.
fn describe(step: &judge::Step) -> String {
    match step {
        judge::Step::Append(list, value) => format!("{list}+{}", history::text_of(*value)),
        judge::Step::Read(list, values) => {
            let last = values.last().map_or("nothing".into(), |value| history::text_of(*value));
            format!("{list}?{} up to {last}", values.len())
        }
    }
}
