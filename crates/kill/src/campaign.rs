//! Starts processes, kills them, and judges the files that they leave.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use indicatif::{ProgressBar, ProgressStyle};

use crate::check::{self, Reached};
use crate::connect::{self, Through};
use crate::host;
use crate::plan::{self, WRITERS};
use crate::{Arguments, Job};

const KILLS_PER_DATABASE: u64 = 25;
/// A process without a line for this time hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(arguments: &Arguments) -> ExitCode {
    let bar = ProgressBar::new(arguments.rounds);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} kills  {msg}  {elapsed}, {eta} left") {
        bar.set_style(style);
    }
    let begun = Instant::now();
    let mut totals = Totals::default();
    let mut failed = None;
    let mut number = 0;
    while totals.kills < arguments.rounds && failed.is_none() {
        number += 1;
        failed = database(arguments, number, &mut totals, &bar).err();
    }
    bar.finish_and_clear();
    println!(
        "{number} databases, {} transactions acknowledged, {} recoveries killed, {} checked; {:.0} s",
        totals.acknowledged,
        totals.recoveries_killed,
        totals.checked,
        begun.elapsed().as_secs_f64()
    );
    println!("kills: {}, violations: {}", totals.kills, u32::from(failed.is_some()));
    let Some(e) = failed else { return ExitCode::SUCCESS };
    println!("violation: {e:#}");
    ExitCode::FAILURE
}

#[derive(Default)]
struct Totals {
    kills: u64,
    acknowledged: u64,
    recoveries_killed: u64,
    checked: u64,
}

fn database(arguments: &Arguments, number: u64, totals: &mut Totals, bar: &ProgressBar) -> Result<()> {
    let mut rng = Rng::with_seed(plan::mix(&[arguments.seed, number]));
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new().prefix("onewrite-kill-").tempdir_in(parent)?;
    let at = dir.path().join("at");
    fs::create_dir(&at)?;
    let mut one = Campaign {
        job: Job { at, plan: rng.u64(..), parameters: parameters(arguments, &mut rng) },
        reached: [Reached::default(); WRITERS as usize],
        may_be_ahead: [false; WRITERS as usize],
        rng,
        totals,
    };
    let end = (one.totals.kills + KILLS_PER_DATABASE).min(arguments.rounds);
    let mut round = || -> Result<()> {
        while one.totals.kills < end {
            one.write()?;
            keep_evidence(dir.path(), one.totals.kills)?;
            if one.rng.u32(0..4) > 0 || one.totals.kills >= end {
                one.judge()?;
            }
            bar.set_position(one.totals.kills);
            bar.set_message(format!("{} acknowledged", one.totals.acknowledged));
        }
        Ok(())
    };
    round().or_else(|e| {
        let job = one.job.clone();
        let kept = dir.keep();
        Err(e).with_context(|| {
            format!(
                "seed {}, database {number} ({}, plan {}); {} has the files (`after-N`: as kill N left them) and a history",
                arguments.seed,
                job.parameters,
                job.plan,
                kept.display()
            )
        })
    })
}

fn parameters(arguments: &Arguments, rng: &mut Rng) -> String {
    let scheme = arguments.scheme.clone().unwrap_or_else(|| ["log", "wal-opt"][rng.usize(0..2)].to_owned());
    let sizes = ["log_size=256k&table_size=64k&stream_size=64k", "log_size=1m&stream_size=64k", "log_size=512k"];
    format!("scheme={scheme}&busy_ms=30&{}&psow={}", sizes[rng.usize(0..3)], u32::from(rng.u32(0..4) > 0))
}

/// The last four copies are evidence of a violation.
fn keep_evidence(dir: &Path, kill: u64) -> Result<()> {
    let after = |kill| dir.join(format!("after-{kill}"));
    if after(kill).exists() {
        fs::remove_dir_all(after(kill))?;
    }
    if kill >= 4 && after(kill - 4).exists() {
        fs::remove_dir_all(after(kill - 4))?;
    }
    let before = after(kill);
    fs::create_dir(&before)?;
    for entry in fs::read_dir(dir.join("at"))? {
        let path = entry?.path();
        fs::copy(&path, before.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

struct Campaign<'a> {
    job: Job,
    /// By writer.
    reached: [Reached; WRITERS as usize],
    /// Its process was killed: the next transaction may be there, too.
    may_be_ahead: [bool; WRITERS as usize],
    rng: Rng,
    totals: &'a mut Totals,
}

impl Campaign<'_> {
    /// Now and then a process ends by itself.
    fn write(&mut self) -> Result<()> {
        let threads = [1, 1, 2, 3, WRITERS][self.rng.usize(0..5)];
        let steps = if self.rng.u32(0..10) == 0 { self.rng.u64(1..20) } else { 0 };
        let mut arguments = vec!["--threads".to_owned(), threads.to_string()];
        arguments.extend(["--nonce".to_owned(), self.rng.u64(..).to_string()]);
        arguments.extend(["--steps".to_owned(), steps.to_string()]);
        let mut process = Process::start("write", &self.job, &arguments)?;
        let when = match self.rng.u32(0..4) {
            _ if steps > 0 => When::Never,
            0 => When::After(Duration::from_micros(self.rng.u64(0..12_000))), // Start, recovery, first commits.
            _ => When::AfterLines(self.rng.u64(1..80), Duration::from_micros(self.rng.u64(0..2500))),
        };
        let (lines, killed) = process.wait(when)?;
        self.note(&format!("write {}", arguments.join(" ")), &lines, killed)?;
        for line in &lines {
            self.line(line)?;
        }
        if killed {
            self.totals.kills += 1;
            // A killed writer that was not checked since may still be ahead.
            self.may_be_ahead = std::array::from_fn(|writer| (writer as u32) < threads || self.may_be_ahead[writer]);
        }
        Ok(())
    }

    /// A process recovers and checks, perhaps after others were killed while they recovered; then
    /// stock SQLite checks.
    fn judge(&mut self) -> Result<()> {
        while self.rng.bool() {
            let mut process = Process::start("check", &self.job, &[])?;
            let (lines, killed) = process.wait(When::After(Duration::from_micros(self.rng.u64(0..15_000))))?;
            self.note("check", &lines, killed)?;
            for line in &lines {
                self.line(line)?;
            }
            self.totals.kills += u64::from(killed);
            self.totals.recoveries_killed += u64::from(killed);
        }
        let (lines, killed) = Process::start("check", &self.job, &[])?.wait(When::Never)?;
        self.note("check", &lines, killed)?;
        ensure!(lines.len() == WRITERS as usize, "the check says: {lines:?}");
        for line in &lines {
            self.line(line).context("found by a check through onewrite")?;
        }
        let header = fs::read(connect::main_path(&self.job.at))?;
        if let Some(version) = header.get(19) {
            ensure!(*version <= 2, "the mark is on after a close in order");
        }
        let stock = connect::open(&self.job, Through::Stock)?;
        let reached = check::all(&stock, &self.job).context("found by stock SQLite")?;
        ensure!(reached == self.reached, "stock SQLite finds {reached:?}, onewrite {:?}", self.reached);
        stock.close().map_err(|(_, e)| e)?;
        self.totals.checked += 1;
        Ok(())
    }

    /// Evidence of a violation.
    fn note(&self, what: &str, lines: &[String], killed: bool) -> Result<()> {
        let path = self.job.at.with_file_name("history");
        let mut history = fs::OpenOptions::new().append(true).create(true).open(path)?;
        let last = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default().join(", ");
        let end = if killed { "killed" } else { "ended" };
        writeln!(history, "{} kills: {what} {end} after {} lines: {last}", self.totals.kills, lines.len())?;
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<()> {
        if let Some(error) = line.strip_prefix("E ") {
            bail!("a process failed: {error}");
        }
        let numbers: Vec<i64> = line.split(' ').skip(1).map_while(|n| n.parse().ok()).collect();
        let (&[writer, n, pair], Some(kind)) = (numbers.as_slice(), line.chars().next()) else {
            bail!("a process says {line:?}");
        };
        let writer = usize::try_from(writer)?;
        let known = self.reached.get_mut(writer).context("no such writer")?;
        match kind {
            'A' => {
                ensure!(n == known.n + 1, "writer {writer} acknowledges {n} after {}", known.n);
                known.n = n;
                if pair == 1 {
                    known.pair = n;
                }
                self.totals.acknowledged += 1;
            }
            'S' => {
                let ahead = self.may_be_ahead.get_mut(writer).context("no such writer")?;
                ensure!(
                    n == known.n || *ahead && n == known.n + 1,
                    "transactions up to {} of writer {writer} were acknowledged, and {n} is the last",
                    known.n
                );
                ensure!(
                    pair == known.pair || n == known.n + 1 && pair == n,
                    "transaction {} of writer {writer} was the last over both files, and {pair} is",
                    known.pair
                );
                *ahead = false;
                *known = Reached { n, pair };
            }
            _ => bail!("a process says {line:?}"),
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum When {
    /// By itself, without an error.
    Never,
    After(Duration),
    AfterLines(u64, Duration),
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(what: &str, job: &Job, arguments: &[String]) -> Result<Process> {
        let program: PathBuf = std::env::current_exe()?;
        let mut child = Command::new(program)
            .arg(what)
            .arg("--at")
            .arg(&job.at)
            .args(["--plan", &job.plan.to_string(), "--parameters", &job.parameters])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let from = child.stdout.take().context("a pipe")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process { child, lines })
    }

    /// The lines, and whether the process was killed.
    fn wait(&mut self, when: When) -> Result<(Vec<String>, bool)> {
        let begun = Instant::now();
        let (mut lines, mut asked) = (Vec::new(), false);
        let mut kill_at = match when {
            When::After(time) => begun + time,
            _ => begun + PATIENCE,
        };
        loop {
            match self.lines.recv_timeout(kill_at.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    lines.push(line);
                    if let When::AfterLines(count, time) = when
                        && lines.len() as u64 == count
                    {
                        kill_at = Instant::now() + time;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    asked = true;
                    self.child.kill()?;
                    // The pipe still holds lines from before the kill.
                    lines.extend(self.lines.iter());
                    break;
                }
            }
        }
        let status = self.child.wait()?;
        let killed = host::was_killed(status, asked);
        if let Some(error) = lines.iter().find(|line| line.starts_with("E ")) {
            bail!("a process failed: {error}");
        }
        ensure!(killed || status.success(), "a process ended with {status}");
        let hung = killed && !matches!(when, When::After(_)) && begun.elapsed() >= PATIENCE;
        ensure!(!hung, "a process hung for {PATIENCE:?}; it had said {} lines", lines.len());
        Ok((lines, killed))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After an error, it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
