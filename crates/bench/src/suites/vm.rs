//! The suite `vm`: the writes of a durable insert on the file systems of another kernel, F2FS among
//! them, in a virtual machine whose drive is the simulated device.
//!
//! Its processor is emulated, so its clock says nothing: the table has the requests that reached
//! the device, and the time that flash would take for them. Each file system has a machine of its
//! own, and all engines do their section in it one after the other.

use super::schemes;
use super::schemes::engine::{self, SchemeEngine};
use super::schemes::load::{self, Load, MeasureHooks, Operation};
use crate::engines;
use crate::engines::sql::{Libraries, Library};
use crate::files::OutputFiles;
use crate::host;
use crate::numbers::measure::{INTERRUPTED, Probe};
use crate::parameters::options::Common;
use crate::parameters::suite::SuiteOptions;
use crate::progress::spelled;
use crate::text;
use crate::workload::{self, SectionStage, Size, Workload};
use anyhow::{Context, Result, bail};
use onewrite_device::vm::{self, BLOCK_PATH, Guest, Machine, MachineOptions};
use onewrite_device::{Device, DeviceOptions, FileSystem, JOURNAL, METADATA, Profile, Region, regions, time_ns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// On the command line.
pub const NAME: &str = "vm";
/// Stock's rollback mode where the file system takes several writes as one, as only F2FS does.
const BATCH_ATOMIC: &str = "delete, batch-atomic";
/// Transactions of a section, unless `--transactions` says.
const TRANSACTIONS: usize = 200;
/// As in the suite `schemes`.
const ROWS: usize = 2000;
/// Where the guest mounts its drive.
const MOUNTPOINT: &str = "/mnt";
/// Of the drive, and the unit that it writes whole: the schemes in place need pages of it.
const BLOCK_BYTES: u32 = 4096;
const DEVICE_BYTES: u64 = 512 << 20;
/// Whose time is computed.
const PROFILES: [Profile; 3] = [Profile::Emmc, Profile::Ufs, Profile::SdCard];

#[derive(Serialize, Deserialize)]
struct GuestTask {
    file_system: String,
    work: GuestWork,
    seed: u64,
}

/// The work inside the machine.
#[derive(Serialize, Deserialize)]
enum GuestWork {
    /// Of this suite.
    Load { engine: SchemeEngine, library: Option<PathBuf>, load: Load },
    /// A workload by its name, of the suite `phone`.
    Workload { engine: Box<engines::BenchEngine>, workload: String, size: Box<Size> },
}

/// The guest's messages, in this order.
#[derive(Serialize, Deserialize)]
enum GuestMessage {
    /// The first measured transaction of a part follows.
    Begin,
    /// The last one is done; where the files lie.
    End(Vec<Region>),
    /// The rest of the part in the kernel's cache has been written, too.
    Left,
    /// Of so many transactions.
    Done(usize),
    Failed(String),
}

/// The counts of one transaction, on average.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Counts {
    file_system: String,
    engine: String,
    kib: f64,
    /// Of it to the database. With the other two and the file system's own it is less than all
    /// where a file was removed or moved.
    kib_database: f64,
    kib_log: f64,
    kib_file_system: f64,
    requests: f64,
    flushes: f64,
    /// Of the device, by profile.
    ms: Vec<(&'static str, f64)>,
}

impl Counts {
    /// Of one of so many transactions.
    fn each(self, transactions: usize) -> Counts {
        let of = |n: f64| n / transactions.max(1) as f64;
        Counts {
            kib: of(self.kib),
            kib_database: of(self.kib_database),
            kib_log: of(self.kib_log),
            kib_file_system: of(self.kib_file_system),
            requests: of(self.requests),
            flushes: of(self.flushes),
            ms: self.ms.iter().map(|(name, ms)| (*name, of(*ms))).collect(),
            ..self
        }
    }
}

/// The engines and workloads, and the library of each.
struct MachinePlan {
    engines: Vec<(SchemeEngine, Option<PathBuf>)>,
    notes: Vec<String>,
}

impl MachinePlan {
    fn new(args: &SuiteOptions) -> Result<MachinePlan> {
        let mut notes = Vec::new();
        let own = schemes::built()?;
        let own = own.exists().then(|| std::fs::canonicalize(&own)).transpose()?;
        let mut engines: Vec<(SchemeEngine, Option<PathBuf>)> = ["delete", "truncate", "persist", "wal"]
            .iter()
            .map(|mode| (engine::stock(mode, mode), own.clone()))
            .collect();
        match &args.library[..] {
            [] => notes.push(
                "batch-atomic writes are left out: name with --library a libsqlite3 that was built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE"
                    .to_owned(),
            ),
            [path] => {
                let path = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
                if !has_batch_atomic(&path)? {
                    bail!("{} was built without SQLITE_ENABLE_BATCH_ATOMIC_WRITE", path.display());
                }
                engines.push((engine::stock(BATCH_ATOMIC, "delete"), Some(path)));
            }
            _ => bail!("the suite {NAME} takes one --library: a libsqlite3 with batch-atomic writes"),
        }
        engines.push((engine::preset("log"), own.clone()));
        match &own {
            Some(_) => engines.extend(["lsmvbt", "dhl-cc"].map(|name| (engine::preset(name), own.clone()))),
            None => notes.push(
                "lsmvbt and dhl-cc are left out: they split pages as only the drop-in library does (`cargo build --release -p \
                 onewrite-sqlite --features research`)"
                    .to_owned(),
            ),
        }
        Ok(MachinePlan { engines, notes })
    }
}

#[derive(Default)]
struct MachineResults {
    counts: Vec<Counts>,
    /// The reason of each failure.
    failed: Vec<String>,
    /// Of the kernel in the machines.
    release: String,
}

impl MachineResults {
    /// A section of each engine, in a machine of their own. False where there is none.
    fn measure(&mut self, plan: &MachinePlan, file_system: FileSystem, load: &Load, seed: u64) -> Result<bool> {
        let libraries = plan.engines.iter().filter_map(|(_, path)| path.clone());
        let device = match device(file_system) {
            Ok(device) => device,
            Err(e) => {
                self.failed.push(format!("{file_system}: {e:#}"));
                return Ok(false);
            }
        };
        let mut machine = match boot(&device, file_system, libraries) {
            Ok(machine) => machine,
            Err(e) => {
                self.failed.push(format!("{file_system}: {e:#}"));
                return Ok(false);
            }
        };
        machine.release().clone_into(&mut self.release);
        for (engine, library) in &plan.engines {
            if engine.name == BATCH_ATOMIC && file_system != FileSystem::F2fs {
                continue;
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                break;
            }
            eprintln!("{file_system}: {}", engine.name);
            let library = library.as_deref().map(vm::in_guest);
            let work = GuestWork::Load { engine: engine.clone(), library, load: load.clone() };
            let asked = GuestTask { file_system: file_system.to_string(), work, seed };
            match section(&device, &mut machine, &asked) {
                Ok(counts) => {
                    self.counts.push(Counts { file_system: asked.file_system, engine: engine.name.clone(), ..counts })
                }
                Err(e) => {
                    self.failed.push(format!("{} on {file_system}: {e:#}", engine.name));
                    if !e.is::<GuestFailed>() {
                        break;
                    }
                }
            }
        }
        Ok(true)
    }
}

/// Whether the library at `path` was built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE.
pub fn has_batch_atomic(path: &Path) -> Result<bool> {
    let db = crate::engines::sql::Db::open(&Library::load(path)?, ":memory:", false)?;
    let used = db.query_int("SELECT sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')")?;
    db.close()?;
    Ok(used == Some(1))
}

/// Measures and prints; where there can be no virtual machine it says why and does nothing.
pub fn run(args: &SuiteOptions) -> Result<()> {
    let plan = MachinePlan::new(args)?;
    let files = OutputFiles::create(&args.common)?;
    if let Some(why) = vm::prepare(&FileSystem::ALL) {
        println!("skipped: {why}");
        return Ok(());
    }
    let transactions = args.common.transactions.map_or(TRANSACTIONS, |n| n as usize);
    let load = Load::new(Operation::Insert, ROWS, transactions);
    let (mut results, mut is_first) = (MachineResults::default(), true);
    let mut notes = plan.notes.clone();
    eprintln!(
        "{} file systems, a virtual machine for each: the first will tell how long that takes",
        FileSystem::ALL.len()
    );
    for file_system in FileSystem::ALL {
        if INTERRUPTED.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        if let Some(why) = file_system.unmakeable() {
            notes.push(format!("{file_system} is left out: {why}"));
            continue;
        }
        if results.measure(&plan, file_system, &load, args.common.seed)? && std::mem::take(&mut is_first) {
            eprintln!("this took {}, and so will each further one", spelled(started.elapsed()));
        }
    }
    if INTERRUPTED.load(Ordering::Relaxed) {
        results.failed.push("interrupted".into());
    }
    let MachineResults { counts: all, failed, release } = results;
    if all.is_empty() && !failed.is_empty() {
        bail!("nothing was measured: {}", failed.join("; "));
    }
    notes.extend(failed.iter().map(|why| format!("failed: {why}")));
    print!("{}", told(&all, (transactions, &release), &notes, text::columns()));
    files.write(&all, || bail!("the suite {NAME} has no page"))?;
    if failed.is_empty() { Ok(()) } else { bail!("a part failed: {}", failed.join("; ")) }
}

/// The guest measures on after it said so.
#[derive(Debug)]
struct GuestFailed(String);

impl std::fmt::Display for GuestFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GuestFailed {}

fn device(file_system: FileSystem) -> Result<Device> {
    let options = DeviceOptions { size_bytes: DEVICE_BYTES, block_bytes: BLOCK_BYTES, ..DeviceOptions::default() };
    let device = Device::start(options)?;
    device.format(file_system, &[])?;
    Ok(device)
}

/// A machine with the device, which can mount the file system and open these libraries.
fn boot(device: &Device, file_system: FileSystem, libraries: impl Iterator<Item = PathBuf>) -> Result<Machine<'_>> {
    let libraries: Vec<PathBuf> = libraries.collect::<BTreeSet<_>>().into_iter().collect();
    let options = MachineOptions {
        arguments: &["bench", "--suite", NAME, "--traced", "guest"],
        file_systems: &[file_system],
        libraries: &libraries,
        block_bytes: BLOCK_BYTES,
    };
    Machine::boot(device, &options)
}

/// One section in the machine; its counts have no names yet.
fn section(device: &Device, machine: &mut Machine, asked: &GuestTask) -> Result<Counts> {
    machine.send(asked)?;
    let (mut from, mut counts) = (0, Counts::default());
    loop {
        match machine.receive()? {
            GuestMessage::Begin => {
                from = device.position();
                machine.send(&())?;
            }
            GuestMessage::End(regions) => {
                count(&mut counts, device, from..device.position(), &regions);
                from = device.position();
                machine.send(&())?;
            }
            GuestMessage::Left => {
                counts.kib += device.trace().summary(from..device.position(), &[]).write_bytes as f64 / 1024.0;
                machine.send(&())?;
            }
            GuestMessage::Done(0) => bail!("the guest measured nothing"),
            GuestMessage::Done(transactions) => return Ok(counts.each(transactions)),
            GuestMessage::Failed(why) => return Err(GuestFailed(why).into()),
        }
    }
}

/// Adds a part of a section.
fn count(counts: &mut Counts, device: &Device, positions: std::ops::Range<usize>, regions: &[Region]) {
    let summary = device.trace().summary(positions.clone(), regions);
    let events = device.events(positions);
    counts.kib += summary.write_bytes as f64 / 1024.0;
    counts.requests += summary.writes as f64;
    counts.flushes += summary.flushes as f64;
    counts.ms.resize(PROFILES.len(), ("", 0.0));
    for (profile, (name, ms)) in PROFILES.into_iter().zip(&mut counts.ms) {
        *name = profile.name();
        *ms += time_ns(profile.timing(), &events) as f64 / 1e6;
    }
    for volume in &summary.regions {
        let is_log = ["-journal", "-wal", "-onewrite"].iter().any(|suffix| volume.region.ends_with(suffix));
        let part = match volume.region.as_str() {
            JOURNAL | METADATA => &mut counts.kib_file_system,
            _ if is_log => &mut counts.kib_log,
            region if region.ends_with("/db") => &mut counts.kib_database,
            _ => continue,
        };
        *part += volume.bytes as f64 / 1024.0;
    }
}

/// The counts of a transaction of a workload of the suite `phone`, and how many per second a device
/// does that has nothing else to do and waits for no processor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OnF2fs {
    pub workload: &'static str,
    pub engine: String,
    pub kib: f64,
    pub flushes: f64,
    /// By the name of the device.
    pub tx_per_s: Vec<(&'static str, f64)>,
}

/// The suite `phone` on F2FS: each of these engines, which have names of their own there, doing
/// each workload. Why not, where there can be no virtual machine.
pub fn on_f2fs(
    engines: &[(&str, engines::BenchEngine)],
    workloads: &[Workload],
    common: &Common,
) -> Result<Result<Vec<OnF2fs>, String>> {
    let file_system = FileSystem::F2fs;
    if let Some(why) = vm::prepare(&[file_system]).or_else(|| file_system.unmakeable()) {
        return Ok(Err(why));
    }
    let device = device(file_system)?;
    let libraries = engines.iter().filter_map(|(_, engine)| engine.library.clone());
    let mut machine = boot(&device, file_system, libraries)?;
    let mut all = Vec::new();
    for (workload, (name, engine)) in workloads.iter().flat_map(|w| engines.iter().map(move |e| (w, e))) {
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let what = format!("{}: {name}", workload.name());
        eprintln!("in a virtual machine, {what}");
        let work = GuestWork::Workload {
            engine: Box::new(engines::BenchEngine {
                library: engine.library.as_deref().map(vm::in_guest),
                ..(*engine).clone()
            }),
            workload: workload.name().to_owned(),
            size: Box::new(common.size(*workload, None)),
        };
        let asked = GuestTask { file_system: file_system.to_string(), work, seed: common.seed };
        let counts = section(&device, &mut machine, &asked).context(what)?;
        all.push(OnF2fs {
            workload: workload.name(),
            engine: (*name).to_owned(),
            kib: counts.kib,
            flushes: counts.flushes,
            tx_per_s: counts.ms.iter().map(|(device, ms)| (*device, 1000.0 / ms)).collect(),
        });
    }
    Ok(Ok(all))
}

/// The text of the terminal.
fn told(all: &[Counts], (transactions, release): (usize, &str), notes: &[String], columns: u16) -> String {
    let title = format!(
        "What a single-row insert writes, by file system and engine; {ROWS} rows before, {transactions} inserts; Linux \
         {release}, emulated"
    );
    let below = [
        "KiB, requests and flushes as they left the machine; ms are computed from them, for a device that does nothing else.",
        "db, log: where the files lay at the end, so without a journal that was removed, nor what F2FS wrote elsewhere \
         since.",
    ];
    let lines = below.into_iter().chain(notes.iter().map(String::as_str));
    format!("{}\n{}\n\n{}", text::wrapped([title], columns), table(all, columns), text::wrapped(lines, columns))
}

fn table(all: &[Counts], columns: u16) -> String {
    let heads = ["", "KiB", "db", "log", "file\nsystem", "re\nquests", "flu\nshes"].into_iter().map(str::to_owned);
    let heads: Vec<String> = heads.chain(PROFILES.map(|profile| format!("{}\nms", profile.name()))).collect();
    let mut lines: Vec<Vec<String>> = Vec::new();
    for (i, counts) in all.iter().enumerate() {
        if i == 0 || all[i - 1].file_system != counts.file_system {
            lines.push(vec![counts.file_system.clone()]);
        }
        let known = counts.kib_database + counts.kib_log + counts.kib_file_system > 0.0;
        let part = |kib: f64| if known { format!("{kib:.1}") } else { "?".to_owned() };
        let mut cells = vec![format!(" {}", counts.engine), format!("{:.1}", counts.kib)];
        cells.extend([counts.kib_database, counts.kib_log, counts.kib_file_system].map(part));
        cells.extend([counts.requests, counts.flushes].map(|n| format!("{n:.2}")));
        cells.extend(counts.ms.iter().map(|(_, ms)| format!("{ms:.2}")));
        lines.push(cells);
    }
    text::table(&heads, &lines, columns)
}

/// The guest's part.
pub fn guest() -> ! {
    Guest::run(|guest| {
        while let Some(asked) = guest.receive::<GuestTask>()? {
            let done = measure(guest, &asked);
            guest.send(&done.map_or_else(|e| GuestMessage::Failed(format!("{e:#}")), GuestMessage::Done))?;
        }
        Ok(())
    })
}

struct Inside<'g> {
    guest: &'g Guest,
    file_system: FileSystem,
}

impl Inside<'_> {
    fn begin(&self) -> Result<()> {
        self.guest.ask(&GuestMessage::Begin)
    }

    fn end(&self) -> Result<()> {
        let regions = regions(self.file_system, Path::new(BLOCK_PATH), Path::new(MOUNTPOINT))?;
        self.guest.ask(&GuestMessage::End(regions))
    }
}

impl MeasureHooks for Inside<'_> {
    fn begin(&mut self) -> Result<()> {
        Inside::begin(self)
    }

    fn end(&mut self) -> Result<()> {
        Inside::end(self)
    }
}

/// The suite `phone` counts the rest in the kernel's cache as well.
impl Probe for Inside<'_> {
    fn begin(&mut self) -> Result<()> {
        Inside::begin(self)
    }

    fn end(&mut self) -> Result<()> {
        Inside::end(self)?;
        host::flush(MOUNTPOINT.as_ref())?;
        self.guest.ask(&GuestMessage::Left)
    }
}

fn measure(guest: &Guest, asked: &GuestTask) -> Result<usize> {
    let file_system: FileSystem = asked.file_system.parse().map_err(anyhow::Error::msg)?;
    let mountpoint = Path::new(MOUNTPOINT);
    file_system.mount(Path::new(BLOCK_PATH), mountpoint).context("mounting")?;
    let mut inside = Inside { guest, file_system };
    let result = tempfile::tempdir_in(mountpoint).map_err(anyhow::Error::from).and_then(|dir| {
        let transactions = match &asked.work {
            GuestWork::Load { engine, library, load } => {
                let library = match library {
                    Some(path) => Library::load(path)?,
                    None => {
                        engines::register_onewrite().map_err(anyhow::Error::msg)?;
                        Library::linked()
                    }
                };
                load::section(&library, engine, load, dir.path(), asked.seed, None, &mut inside)?.transactions
            }
            GuestWork::Workload { engine, workload, size } => {
                run_workload(engine, workload, size, asked.seed, dir.path(), &mut inside)?
            }
        };
        dir.close().context("removing the directory of the section")?;
        Ok(transactions)
    });
    nix::mount::umount(mountpoint).context("unmounting")?;
    result
}

fn run_workload(
    engine: &engines::BenchEngine,
    workload: &str,
    size: &Size,
    seed: u64,
    dir: &Path,
    probe: &mut Inside<'_>,
) -> Result<usize> {
    let workload: Workload = workload.parse().map_err(anyhow::Error::msg)?;
    if engine.is_onewrite() {
        engines::register_onewrite().map_err(anyhow::Error::msg)?;
    }
    let libraries = Libraries::load(&engine.library)?;
    let plan = workload::Plan::draw(workload, size, seed, 0)?;
    let ready = Box::new(|| Ok(host::flush(dir)?));
    let stage = SectionStage { libraries: &libraries, dir, original: None, ready, probe };
    Ok(workload::run(engine, workload, &plan, size, stage)?.0.transactions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_one_transaction() {
        let all = Counts { kib: 40.0, requests: 8.0, flushes: 4.0, ms: vec![("emmc", 6.0)], ..Counts::default() };
        let each = all.each(4);
        assert_eq!((each.kib, each.requests, each.flushes, each.ms), (10.0, 2.0, 1.0, vec![("emmc", 1.5)]));
    }

    #[test]
    fn a_table_names_unknown_values() {
        let counts = Counts {
            file_system: "f2fs".to_owned(),
            engine: "log".to_owned(),
            kib: 4.25,
            requests: 1.0,
            flushes: 1.0,
            ms: vec![("emmc", 0.9), ("ufs", 0.5), ("sdcard", 2.0)],
            ..Counts::default()
        };
        let known = Counts { kib_log: 4.0, ..counts.clone() };
        let text = table(&[counts, known], 80);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["f2fs"]);
        assert_eq!(lines[3], ["log", "4.2", "?", "?", "?", "1.00", "1.00", "0.90", "0.50", "2.00"]);
        assert_eq!(lines[4], ["log", "4.2", "0.0", "4.0", "0.0", "1.00", "1.00", "0.90", "0.50", "2.00"]);
    }

    #[test]
    fn eighty_columns_are_enough() {
        let counts = |file_system: &str, engine: &str| Counts {
            file_system: file_system.to_owned(),
            engine: engine.to_owned(),
            kib: 1040.3,
            kib_database: 12.5,
            kib_log: 1004.2,
            kib_file_system: 23.6,
            requests: 18.75,
            flushes: 4.05,
            ms: vec![("emmc", 12.34), ("ufs", 4.56), ("sdcard", 123.45)],
        };
        let engines = ["delete", BATCH_ATOMIC, "log", "dhl-cc"];
        let systems = ["ext4-writeback", "f2fs"];
        let all: Vec<Counts> = systems.iter().flat_map(|fs| engines.map(|engine| counts(fs, engine))).collect();
        let note = "failed: delete on f2fs: /usr/lib/x86_64-linux-gnu/libsqlite3.so.0: no such file or directory";
        let text = told(&all, (200, "6.1.0-13-amd64"), &[note.to_owned()], 80);
        assert!(text::width(&text) <= 80 && text.contains("\n delete, batch-atomic 1040.3"), "{text}");
    }
}
