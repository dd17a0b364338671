//! Power-cut campaigns: one run of a writing process on a real file system on the device gives a trace, and the
//! trace hundreds of power cuts, each mounted and checked.

mod check;
mod engine;
mod load;
pub mod writer;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::disk::sim::SplitMix64;
use onewrite_device::{Device, DeviceOptions, FileSystem, Image, Kept, PowerCuts, Trace};
use serde::Serialize;

use check::{Allowed, Expected, Wrong, check};
use engine::{Engine, Setting};
use load::Rows;
use writer::Acknowledged;

/// Cut power under a writing process, again and again, and check what is left
///
/// A child process makes random transactions under synchronous=FULL and reports each one that is acknowledged,
/// with the device's position at that moment. Then power cuts are taken from the recording: everything flushed is
/// kept, and of the rest any subset of atomic units. Each is mounted, so that the kernel replays the file system's
/// journal, and opened: every acknowledged transaction must be there, every other whole or absent, the database
/// sound, the same at a second open, writable, and the same again for stock SQLite. Some of these recoveries are
/// cut too.
#[derive(Args)]
pub struct CutArgs {
    /// File system: ext4-ordered, ext4-writeback, ext4-journal, xfs, btrfs
    #[arg(long, default_value = "ext4-ordered")]
    fs: FileSystem,
    /// Power cuts to make
    #[arg(long, default_value_t = 500)]
    cuts: u64,
    /// Seed of the first run; each run takes the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Power cuts taken from one run
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u64).range(1..))]
    cuts_per_run: u64,
    /// Transactions of one run
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(3..))]
    transactions: u64,
    /// Who stores the transactions
    #[arg(long, value_enum, default_value = "onewrite")]
    engine: Engine,
    /// What the device writes atomically, in bytes; each run draws one otherwise. btrfs and XFS are always given
    /// what they need of a device: see docs/faults.md
    #[arg(long, value_parser = ["512", "4096"])]
    atomic_unit: Option<String>,
    /// Go on after a violation and count them
    #[arg(long)]
    keep_going: bool,
    /// Keep the image of the first violation in this file
    #[arg(long)]
    save: Option<PathBuf>,
    /// Print a summary as JSON before the last line
    #[arg(long)]
    json: bool,
}

/// What a campaign did.
#[derive(Default, Serialize)]
struct Totals {
    file_system: String,
    engine: String,
    runs: u64,
    cuts: u64,
    /// Of them: cuts of a recovery.
    cuts_of_recoveries: u64,
    /// Cuts with something unflushed.
    cuts_with_choice: u64,
    transactions: u64,
    /// Acknowledged transactions that were looked for, all cuts together.
    acknowledged_checked: u64,
    writes_recorded: u64,
    flushes_recorded: u64,
    violations: u64,
    file_system_violations: u64,
    elapsed_ms: u64,
}

/// One run's recording and what is known of it.
struct Recording {
    base: Image,
    trace: Trace,
    acknowledged: Vec<Acknowledged>,
    /// By thread and number of transactions.
    digests: Vec<Vec<u64>>,
}

/// Runs a campaign. False if there was a violation.
pub fn run(args: &CutArgs, stop: &AtomicBool) -> Result<bool> {
    if let Some(why) = onewrite_device::unavailable().or_else(|| args.fs.unavailable()) {
        println!("skipped: {why}");
        return Ok(true);
    }
    let started = Instant::now();
    let mut totals = Totals { file_system: args.fs.to_string(), ..Totals::default() };
    totals.engine =
        clap::ValueEnum::to_possible_value(&args.engine).map_or_else(String::new, |v| v.get_name().to_owned());
    let bar = ProgressBar::new(args.cuts);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} cuts  {msg}  {elapsed}, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    let mut seed = args.seed;
    while totals.cuts < args.cuts && !stop.load(Ordering::Relaxed) && (args.keep_going || totals.violations == 0) {
        one_run(args, seed, stop, &mut totals, &bar).with_context(|| format!("seed {seed}"))?;
        seed += 1;
    }
    bar.finish_and_clear();
    totals.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&totals)?);
    }
    println!("cuts: {}, violations: {}", totals.cuts, totals.violations);
    Ok(totals.violations == 0)
}

fn one_run(args: &CutArgs, seed: u64, stop: &AtomicBool, totals: &mut Totals, bar: &ProgressBar) -> Result<()> {
    let mut random = SplitMix64::new(seed);
    let drawn = [512, 4096][random.below(2)];
    let atomic_unit = match &args.atomic_unit {
        Some(unit) => unit.parse()?,
        None => drawn,
    };
    let setting = Setting::draw(args.engine, seed);
    // A small journal comes round often.
    let journal = if args.fs.kind() == "ext4" { vec!["-J".to_owned(), "size=4".to_owned()] } else { Vec::new() };
    let device = Device::start(DeviceOptions {
        file_system: Some(args.fs),
        block_bytes: atomic_unit,
        keep_data: true,
        mkfs_arguments: journal,
        ..DeviceOptions::default()
    })?;
    let path = device.mountpoint().join("campaign.db");
    bar.set_message(format!("seed {seed}: writing"));
    let recording = record(args, seed, &setting, &device, &path)?;
    totals.runs += 1;
    let writes = recording.trace.summary(0..usize::MAX, &[]);
    totals.writes_recorded += writes.writes;
    totals.flushes_recorded += writes.flushes;
    totals.transactions += recording.digests.iter().map(|d| d.len() as u64 - 1).sum::<u64>();
    let mut positions = positions(&recording, args.cuts_per_run.min(args.cuts - totals.cuts), &mut random);
    positions.sort_unstable();
    let mut cuts = PowerCuts::new(recording.base.clone(), &recording.trace, atomic_unit);
    for position in positions {
        if stop.load(Ordering::Relaxed) || totals.cuts >= args.cuts {
            break;
        }
        bar.set_message(format!("seed {seed}, cut at {position}, {} violations", totals.violations));
        cuts.advance(position);
        let kept = Kept::draw(&mut random);
        let image = cuts.image(kept, &mut random);
        totals.cuts_with_choice += u64::from(cuts.unflushed().next().is_some());
        let expected = expected(&recording, position);
        totals.acknowledged_checked += expected.threads.iter().map(|t| t.least).sum::<u64>();
        totals.cuts += 1;
        bar.inc(1);
        let mut tell = |wrong: Wrong, place: String, image: &Image| -> Result<()> {
            totals.violations += 1;
            let (owner, what) = match wrong {
                Wrong::FileSystem(what) => ("file system", what),
                Wrong::Database(what) => ("database", what),
            };
            totals.file_system_violations += u64::from(owner == "file system");
            bar.suspend(|| {
                println!("violation ({owner}): {what}");
                println!("  {place}, atomic unit {atomic_unit}, {}, {}", args.fs, setting.describe());
            });
            if let (Some(file), 1) = (&args.save, totals.violations) {
                image.save(file).with_context(|| format!("cannot write {}", file.display()))?;
            }
            Ok(())
        };
        let place =
            format!("seed {seed}, cut before event {position} of {}, {kept:?} kept", recording.trace.events.len());
        let passed = match check(&device, image.clone(), &path, &setting, &expected) {
            Ok(passed) => passed,
            Err(wrong) => {
                tell(wrong, place, &image)?;
                if args.keep_going { continue } else { break }
            }
        };
        if random.below(6) == 0 {
            let trace = device.trace();
            let again = random.below(trace.events.len() + 1);
            let mut expected = expected;
            if let (Some(found), true) = (&passed.found, again >= passed.read_at) {
                expected.schema = true;
                for (allowed, found) in expected.threads.iter_mut().zip(found) {
                    (allowed.least, allowed.most) = (found.count, found.count);
                }
            }
            let mut second = PowerCuts::new(image, &trace, atomic_unit);
            second.advance(again);
            let kept = Kept::draw(&mut random);
            let image = second.image(kept, &mut random);
            totals.cuts += 1;
            totals.cuts_of_recoveries += 1;
            bar.inc(1);
            if let Err(wrong) = check(&device, image.clone(), &path, &setting, &expected) {
                let place =
                    format!("{place}; its recovery cut before event {again} of {}, {kept:?} kept", trace.events.len());
                tell(wrong, place, &image)?;
                if !args.keep_going {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Lets a child write on the device and takes the recording, which ends with the unmount.
fn record(args: &CutArgs, seed: u64, setting: &Setting, device: &Device, path: &Path) -> Result<Recording> {
    device.unmount()?;
    let base = device.image();
    device.replace(base.clone())?;
    device.mount()?;
    let engine = clap::ValueEnum::to_possible_value(&args.engine).context("an engine without a name")?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("writer")
        .args(["--seed", &seed.to_string(), "--transactions", &args.transactions.to_string()])
        .args(["--engine", engine.get_name()])
        .arg("--db")
        .arg(path)
        .arg("--position")
        .arg(device.position_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut acknowledged = Vec::new();
    let mut problem = None;
    if let Some(lines) = child.stdout.take() {
        for line in BufReader::new(lines).lines() {
            match line.map_err(Into::into).and_then(|line| Acknowledged::parse(&line)) {
                Ok(one) => acknowledged.push(one),
                Err(e) => problem = problem.or(Some(e)),
            }
        }
    }
    let status = child.wait()?;
    device.unmount()?;
    if let Some(problem) = problem {
        return Err(problem);
    }
    ensure!(status.success(), "the writer failed: {status}");
    ensure!(acknowledged.first().is_some_and(|a| a.thread.is_none()), "the writer did not make its schema");
    let mut digests = Vec::new();
    for thread in 0..setting.threads {
        let mut rows = Rows::new(seed, thread);
        let mut by_count = vec![rows.digest()];
        let count = acknowledged.iter().filter(|a| a.thread == Some(thread)).map(|a| a.count).max().unwrap_or(0);
        while rows.count < count {
            let plan = rows.plan();
            rows.apply(&plan);
            by_count.push(rows.digest());
        }
        digests.push(by_count);
    }
    let trace = device.trace();
    if trace.events.is_empty() {
        bail!("the device recorded nothing");
    }
    Ok(Recording { base, trace, acknowledged, digests })
}

/// Where to cut: anywhere, before flushes, where most is at stake, and right after acknowledgements.
fn positions(recording: &Recording, count: u64, random: &mut SplitMix64) -> Vec<usize> {
    let events = &recording.trace.events;
    let flush = |e: &onewrite_device::Event| matches!(e.operation, onewrite_device::Operation::Flush { .. });
    let flushes: Vec<usize> = events.iter().enumerate().filter(|(_, e)| flush(e)).map(|(i, _)| i).collect();
    let mut one = || {
        let anywhere = random.below(events.len() + 1);
        match random.below(4) {
            0 => flushes.get(random.below(flushes.len().max(1))).copied().unwrap_or(anywhere),
            1 => {
                let at = random.below(recording.acknowledged.len().max(1));
                recording.acknowledged.get(at).map_or(anywhere, |a| a.position)
            }
            _ => anywhere,
        }
    };
    (0..count).map(|_| one()).collect()
}

/// What may be found after a cut at `position`: a transaction begins after the one before it is acknowledged.
fn expected(recording: &Recording, position: usize) -> Expected<'_> {
    let before = recording.acknowledged.iter().filter(|a| a.position <= position);
    let schema = before.clone().any(|a| a.thread.is_none());
    let allowed = |(thread, digests)| {
        let least = before.clone().filter(|a| a.thread == Some(thread)).map(|a| a.count).max().unwrap_or(0);
        Allowed { least, most: least + 1, digests }
    };
    let threads = recording.digests.iter().map(Vec::as_slice).enumerate().map(allowed).collect();
    Expected { schema, threads }
}
