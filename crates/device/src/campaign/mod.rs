//! Power-cut campaigns: one run of a writing process on a real file system gives a trace, and the
//! trace hundreds of power cuts, each mounted and checked.

mod check;
mod engine;
mod load;
pub mod place;
mod recording;
pub mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::disk::sim::SplitMix64;
use onewrite_device::{Device, DeviceOptions, FileSystem, Image, Kept, PowerCuts, Profile, vm};
use parking_lot::Mutex;
use serde::Serialize;

use check::{Expected, Passed, Wrong};
use engine::{Engine, Setting};
use place::{Here, Place, There};
use recording::Recording;
use writer::Order;

/// Cut power under a writing process, again and again, and check what is left
///
/// A child process makes random transactions under synchronous=FULL and reports each acknowledged
/// one. Power cuts are then taken from the device's recording: flushed requests are kept, and of
/// the rest any subset of atomic units. The kernel mounts each, and replays the file system's
/// journal. Every acknowledged transaction must be there, and every other whole or absent. The
/// database must be sound and writable. A second open and stock SQLite must find the same. Some of
/// these recoveries are cut too.
#[derive(Args)]
pub struct CutArgs {
    /// File system: ext4-ordered, ext4-writeback, ext4-journal, xfs, btrfs, f2fs, vfat, exfat
    #[arg(long, default_value = "ext4-ordered")]
    fs: FileSystem,
    /// Mount it in a virtual machine with Debian's kernel and an emulated processor: for file
    /// systems that this kernel does not have. Missing packages are installed and downloaded once
    #[arg(long)]
    vm: bool,
    /// Run `fsck` before each mount, as systems do with FAT and exFAT: these have no journal, and a
    /// power cut may leave their own blocks in part
    #[arg(long)]
    fsck: bool,
    /// Device to be as slow as: none, emmc, ufs, sdcard, sata, nvme. A slow device has more
    /// unanswered requests when it is cut
    #[arg(long, default_value = "none")]
    profile: Profile,
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
    /// Engine that stores the transactions
    #[arg(long, value_enum, default_value = "onewrite")]
    engine: Engine,
    /// Bytes that the device writes atomically; each run draws a size otherwise
    #[arg(long, value_parser = ["512", "4096"])]
    atomic_unit: Option<String>,
    /// Runs at a time, each on a device of its own; the number of processors otherwise, of virtual
    /// machines one
    #[arg(long)]
    jobs: Option<usize>,
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

/// Counts of a campaign.
#[derive(Default, Serialize)]
struct Totals {
    file_system: String,
    engine: String,
    runs: u64,
    cuts: u64,
    cuts_of_recoveries: u64,
    /// Cuts with unflushed requests.
    cuts_with_choice: u64,
    transactions: u64,
    acknowledged_checked: u64,
    writes_recorded: u64,
    flushes_recorded: u64,
    violations: u64,
    file_system_violations: u64,
    elapsed_ms: u64,
}

struct Campaign<'a> {
    args: &'a CutArgs,
    stop: &'a AtomicBool,
    bar: ProgressBar,
    /// Cuts that runs have claimed.
    claimed: AtomicU64,
    seeds: AtomicU64,
    totals: Mutex<Totals>,
}

/// False after a violation or an early end.
pub fn run(args: &CutArgs, stop: &AtomicBool) -> Result<bool> {
    let why = if args.vm {
        vm::prepare(&[args.fs]).or_else(|| args.fs.unmakeable())
    } else {
        onewrite_device::unavailable().or_else(|| args.fs.unavailable())
    };
    if let Some(why) = why {
        println!("skipped: {why}");
        return Ok(true);
    }
    let started = Instant::now();
    let engine = args.engine.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    let bar = ProgressBar::new(args.cuts);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} cuts  {msg}  {elapsed}, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    let campaign = Campaign {
        args,
        stop,
        bar,
        claimed: AtomicU64::new(0),
        seeds: AtomicU64::new(args.seed),
        totals: Mutex::new(Totals { file_system: args.fs.to_string(), engine, ..Totals::default() }),
    };
    let processors = || std::thread::available_parallelism().ok().map(Into::into).filter(|_| !args.vm);
    let jobs = args.jobs.or_else(processors).unwrap_or(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(|| campaign.work())).collect();
        workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| Err(anyhow!("a run panicked"))))
    })?;
    campaign.bar.finish_and_clear();
    let mut totals = campaign.totals.into_inner();
    totals.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&totals)?);
    }
    println!("cuts: {}, violations: {}", totals.cuts, totals.violations);
    let interrupted = stop.load(Ordering::Relaxed);
    if interrupted {
        eprintln!("interrupted before the {} cuts were made", args.cuts);
    }
    Ok(totals.violations == 0 && !interrupted)
}

struct Cut<'a> {
    setting: &'a Setting,
    atomic_unit: u32,
    moment: String,
    image: Image,
}

impl Campaign<'_> {
    fn work(&self) -> Result<()> {
        while !self.over() {
            let wanted = self.args.cuts_per_run;
            let left = self.args.cuts.saturating_sub(self.claimed.fetch_add(wanted, Ordering::Relaxed));
            if left == 0 {
                break;
            }
            let (setting, random) = self.next_run()?;
            let result = self.one_run(&setting, random, wanted.min(left));
            let result = result.with_context(|| format!("seed {}", setting.seed));
            if result.is_err() && !self.stop.swap(true, Ordering::Relaxed) {
                return result;
            }
        }
        Ok(())
    }

    fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || (!self.args.keep_going && self.totals.lock().violations > 0)
    }

    /// Of the next seed whose engine can run on the file system, with the generator of all further
    /// draws.
    fn next_run(&self) -> Result<(Setting, SplitMix64)> {
        loop {
            let seed = self.seeds.fetch_add(1, Ordering::Relaxed);
            let mut random = SplitMix64::new(seed);
            let drawn = [512, 4096][random.below(2)];
            let atomic_unit = self.args.atomic_unit.as_deref().map_or(Ok(drawn), str::parse)?;
            let setting = Setting::draw(self.args.engine, seed, atomic_unit);
            if self.args.fs.exchanges_names() || !setting.exchanges_names() {
                return Ok((setting, random));
            }
        }
    }

    fn one_run(&self, setting: &Setting, mut random: SplitMix64, count: u64) -> Result<()> {
        let args = self.args;
        let Setting { seed, atomic_unit, .. } = *setting;
        let small_blocks = atomic_unit == 512 && random.below(2) == 0;
        let mkfs_arguments: &[&str] = match args.fs.kind() {
            // A small journal wraps around often.
            "ext4" if small_blocks => &["-b", "1024", "-J", "size=4"],
            "ext4" => &["-J", "size=4"],
            _ => &[],
        };
        let mkfs_arguments: Vec<String> = mkfs_arguments.iter().map(|a| (*a).to_owned()).collect();
        let options = DeviceOptions {
            size_bytes: DeviceOptions::default().size_bytes.max(args.fs.size_bytes_min()),
            block_bytes: atomic_unit,
            profile: args.profile,
            keep_data: true,
            ..DeviceOptions::default()
        };
        let (device, mut here, mut there);
        let place: &mut dyn Place = if args.vm {
            device = Device::start(options)?;
            device.format(args.fs, &mkfs_arguments)?;
            there = There::boot(&device, args.fs, atomic_unit)?;
            &mut there
        } else {
            device = Device::start(DeviceOptions { file_system: Some(args.fs), mkfs_arguments, ..options })?;
            here = Here::new(&device)?;
            &mut here
        };
        let recording = Recording::make(&Order { setting, transactions: args.transactions }, place)?;
        self.count_run(&recording);
        let events = recording.trace.events.len();
        let whole = args.fs.whole(&recording.base, &recording.trace);
        let mut cuts = PowerCuts::new(recording.base.clone(), &recording.trace, atomic_unit).keeping_whole(whole);
        for position in recording.positions(count, &mut random) {
            if self.over() {
                break;
            }
            self.bar.set_message(format!("seed {seed}, cut at {position} of {events}"));
            cuts.advance(position);
            let kept = Kept::draw(&mut random);
            let moment = format!("seed {seed}, cut before event {position} of {events}, {kept:?} kept");
            let cut = Cut { setting, atomic_unit, moment, image: self.repaired(cuts.image(kept, &mut random))? };
            let expected = recording.expected(position);
            {
                let mut totals = self.totals.lock();
                totals.cuts_with_choice += u64::from(!cuts.unflushed().is_empty());
                totals.acknowledged_checked += expected.threads.iter().map(|t| t.least).sum::<u64>();
            }
            let passed = self.check(place, &cut, &expected)?;
            if let (Some(passed), 0) = (passed, random.below(6)) {
                self.cut_recovery(place, cut, expected, &passed, &mut random)?;
            }
        }
        Ok(())
    }

    fn repaired(&self, image: Image) -> Result<Image> {
        if self.args.fsck { self.args.fs.repaired(&image) } else { Ok(image) }
    }

    /// The device still has the trace of `cut`'s recovery.
    fn cut_recovery(
        &self,
        place: &mut dyn Place,
        cut: Cut,
        mut expected: Expected,
        passed: &Passed,
        random: &mut SplitMix64,
    ) -> Result<()> {
        let trace = place.device().trace();
        let position = random.below(trace.events.len() + 1);
        if let (Some(found), true) = (&passed.found, position >= passed.read_at) {
            // A reader saw this state, so it must last.
            expected.schema = true;
            for (allowed, found) in expected.threads.iter_mut().zip(found) {
                (allowed.least, allowed.most) = (found.count, found.count);
            }
        }
        let whole = self.args.fs.whole(&cut.image, &trace);
        let mut cuts = PowerCuts::new(cut.image, &trace, cut.atomic_unit).keeping_whole(whole);
        cuts.advance(position);
        let kept = Kept::draw(random);
        let events = trace.events.len();
        let moment = format!("{}; its recovery cut before event {position} of {events}, {kept:?} kept", cut.moment);
        self.totals.lock().cuts_of_recoveries += 1;
        self.check(place, &Cut { moment, image: self.repaired(cuts.image(kept, random))?, ..cut }, &expected)?;
        Ok(())
    }

    /// `None` after a violation.
    fn check(&self, place: &mut dyn Place, cut: &Cut, expected: &Expected) -> Result<Option<Passed>> {
        place.device().replace(cut.image.clone())?;
        let result = place.check(cut.setting, expected);
        self.bar.inc(1);
        let mut totals = self.totals.lock();
        totals.cuts += 1;
        let (owner, what) = match result {
            Ok(passed) => return Ok(Some(passed)),
            Err(Wrong::FileSystem(what)) => ("file system", what),
            Err(Wrong::Database(what)) => ("database", what),
        };
        totals.violations += 1;
        totals.file_system_violations += u64::from(owner == "file system");
        let (fs, unit, setting) = (self.args.fs, cut.atomic_unit, cut.setting.describe());
        self.bar.suspend(|| {
            println!("violation ({owner}): {what}\n  {}\n  {fs}, atomic unit {unit}, {setting}", cut.moment);
        });
        if let (Some(file), 1) = (&self.args.save, totals.violations) {
            cut.image.save(file).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(None)
    }

    fn count_run(&self, recording: &Recording) {
        let summary = recording.trace.summary(0..usize::MAX, &[]);
        let mut totals = self.totals.lock();
        totals.runs += 1;
        totals.writes_recorded += summary.writes;
        totals.flushes_recorded += summary.flushes;
        totals.transactions += recording.transactions();
    }
}
