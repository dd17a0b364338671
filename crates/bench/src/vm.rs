//! The suite `vm`: what a durable insert writes on the file systems of another kernel, F2FS among them, in a virtual machine
//! whose drive is the simulated device.
//!
//! Its processor is emulated, so its clock says nothing: the table has what reached the device, and the time that flash would take
//! over it. Each file system has a machine of its own, and all engines do their section in it one after the other.

use crate::measure::INTERRUPTED;
use crate::schemes::engine::{self, Engine};
use crate::schemes::load::{self, Load, Operation, Watch};
use crate::sql::Library;
use crate::{Args, Files, schemes};
use anyhow::{Context, Result, bail};
use comfy_table::{Cell, CellAlignment, Table, TableStyle};
use onewrite_device::vm::{self, BLOCK_PATH, Guest, Machine, MachineOptions};
use onewrite_device::{Device, DeviceOptions, FileSystem, JOURNAL, METADATA, Profile, Region, regions, time_ns};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

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
/// Of the drive, and of what it writes whole: the schemes in place need pages that are.
const BLOCK_BYTES: u32 = 4096;
const DEVICE_BYTES: u64 = 512 << 20;
/// Whose time is computed.
const PROFILES: [Profile; 3] = [Profile::Emmc, Profile::Ufs, Profile::SdCard];

/// A section, for the guest.
#[derive(Serialize, Deserialize)]
struct Asked {
    file_system: String,
    engine: Engine,
    library: Option<PathBuf>,
    load: Load,
    seed: u64,
}

/// What the guest says of it, in this order.
#[derive(Serialize, Deserialize)]
enum Said {
    /// The first measured transaction follows.
    Begin,
    /// The last one is done; where the files lie.
    End(Vec<Region>),
    Done,
    Failed(String),
}

/// What one transaction wrote, on average.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Counts {
    file_system: String,
    engine: String,
    kib: f64,
    /// Of it to the database; with the other two and the file system's own less than all where a file was removed or moved.
    kib_database: f64,
    kib_log: f64,
    kib_file_system: f64,
    requests: f64,
    flushes: f64,
    /// Of the device, by profile.
    ms: Vec<(&'static str, f64)>,
}

/// What is measured, and which library each runs in.
struct Plan {
    engines: Vec<(Engine, Option<PathBuf>)>,
    notes: Vec<String>,
}

impl Plan {
    fn new(args: &Args) -> Result<Plan> {
        let mut notes = Vec::new();
        let own = schemes::built()?;
        let own = own.exists().then(|| std::fs::canonicalize(&own)).transpose()?;
        let mut engines: Vec<(Engine, Option<PathBuf>)> = ["delete", "truncate", "persist", "wal"]
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
                let db = crate::sql::Db::open(&Library::load(&path)?, ":memory:", false)?;
                if db.query_int("SELECT sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')")? != Some(1) {
                    bail!("{} was built without SQLITE_ENABLE_BATCH_ATOMIC_WRITE", path.display());
                }
                db.close()?;
                engines.push((engine::stock(BATCH_ATOMIC, "delete"), Some(path)));
            }
            _ => bail!("the suite {NAME} takes one --library: a libsqlite3 with batch-atomic writes"),
        }
        engines.push((engine::preset("log"), own.clone()));
        match &own {
            Some(_) => engines.extend(["lsmvbt", "dhl-cc"].map(|name| (engine::preset(name), own.clone()))),
            None => notes.push(
                "lsmvbt and dhl-cc are left out: they split pages as only the drop-in library does (`cargo build --release -p \
                 onewrite-sqlite`)"
                    .to_owned(),
            ),
        }
        Ok(Plan { engines, notes })
    }

    fn libraries(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.engines.iter().filter_map(|(_, path)| path.clone()).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// Measures and prints; where there can be no virtual machine it says why and does nothing.
pub fn run(args: &Args) -> Result<()> {
    let plan = Plan::new(args)?;
    let files = Files::create(&args.common)?;
    if let Some(why) = vm::prepare(&FileSystem::ALL) {
        println!("skipped: {why}");
        return Ok(());
    }
    let transactions = args.common.transactions.map_or(TRANSACTIONS, |n| n as usize);
    let load = Load::new(Operation::Insert, ROWS, transactions);
    let mut all = Vec::new();
    let mut notes = plan.notes.clone();
    let mut release = String::new();
    for file_system in FileSystem::ALL {
        if let Some(why) = file_system.unmakeable() {
            notes.push(format!("{file_system} is left out: {why}"));
            continue;
        }
        let device = Device::start(DeviceOptions {
            size_bytes: DEVICE_BYTES,
            block_bytes: BLOCK_BYTES,
            ..DeviceOptions::default()
        })?;
        device.format(file_system, &[])?;
        let libraries = plan.libraries();
        let mut machine = Machine::boot(
            &device,
            &MachineOptions {
                arguments: &["bench", "--suite", NAME, "--traced", "guest"],
                file_systems: &[file_system],
                libraries: &libraries,
                block_bytes: BLOCK_BYTES,
            },
        )?;
        machine.release().clone_into(&mut release);
        for (engine, library) in &plan.engines {
            if engine.name == BATCH_ATOMIC && file_system != FileSystem::F2fs {
                continue;
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            eprintln!("{file_system}: {}", engine.name);
            let asked = Asked {
                file_system: file_system.to_string(),
                engine: engine.clone(),
                library: library.clone(),
                load: load.clone(),
                seed: args.common.seed,
            };
            let counts =
                section(&device, &mut machine, &asked).with_context(|| format!("{} on {file_system}", engine.name))?;
            all.push(counts);
        }
    }
    files.write(&all, || bail!("the suite {NAME} has no page"))?;
    println!(
        "What a single-row insert writes, by file system and engine; {ROWS} rows before, {transactions} inserts; Linux {release}, emulated\n\n{}\n",
        table(&all)
    );
    println!(
        "KiB, requests and flushes as they left the machine; ms are computed from them, for a device that does nothing else."
    );
    println!(
        "db, log: where the files lay at the end, so without a journal that was removed, nor what F2FS wrote elsewhere since."
    );
    notes.iter().for_each(|note| println!("{note}"));
    Ok(())
}

/// One section in the machine.
fn section(device: &Device, machine: &mut Machine, asked: &Asked) -> Result<Counts> {
    machine.send(asked)?;
    let (mut from, mut counts) = (0, None);
    loop {
        match machine.receive()? {
            Said::Begin => {
                from = device.position();
                machine.send(&())?;
            }
            Said::End(regions) => {
                counts = Some(count(device, from..device.position(), &regions, asked));
                machine.send(&())?;
            }
            Said::Done => return counts.context("the guest measured nothing"),
            Said::Failed(why) => bail!("{why}"),
        }
    }
}

fn count(device: &Device, positions: std::ops::Range<usize>, regions: &[Region], asked: &Asked) -> Counts {
    let each = |n: f64| n / asked.load.transactions.max(1) as f64;
    let summary = device.trace().summary(positions.clone(), regions);
    let events = device.events(positions);
    let mut counts = Counts {
        file_system: asked.file_system.clone(),
        engine: asked.engine.name.clone(),
        kib: each(summary.write_bytes as f64 / 1024.0),
        requests: each(summary.writes as f64),
        flushes: each(summary.flushes as f64),
        ms: PROFILES.map(|profile| (profile.name(), each(time_ns(profile, &events) as f64 / 1e6))).to_vec(),
        ..Counts::default()
    };
    for volume in &summary.regions {
        let is_log = ["-journal", "-wal", "-onewrite"].iter().any(|suffix| volume.region.ends_with(suffix));
        let part = match volume.region.as_str() {
            JOURNAL | METADATA => &mut counts.kib_file_system,
            _ if is_log => &mut counts.kib_log,
            region if region.ends_with("/db") => &mut counts.kib_database,
            _ => continue,
        };
        *part += each(volume.bytes as f64 / 1024.0);
    }
    counts
}

fn table(all: &[Counts]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    let mut head = vec!["", "", "KiB", "db", "log", "file system", "requests", "flushes"];
    head.extend(PROFILES.map(Profile::name));
    table.set_header(head);
    for counts in all {
        let known = counts.kib_database + counts.kib_log + counts.kib_file_system > 0.0;
        let part = |kib: f64| if known { format!("{kib:.1}") } else { "?".to_owned() };
        let mut cells = vec![counts.file_system.clone(), counts.engine.clone(), format!("{:.1}", counts.kib)];
        cells.extend([counts.kib_database, counts.kib_log, counts.kib_file_system].map(part));
        cells.extend([counts.requests, counts.flushes].map(|n| format!("{n:.2}")));
        cells.extend(counts.ms.iter().map(|(_, ms)| format!("{ms:.2}")));
        table.add_row(cells.into_iter().enumerate().map(|(at, text)| {
            Cell::new(text).set_alignment(if at < 2 { CellAlignment::Left } else { CellAlignment::Right })
        }));
    }
    table
}

/// The guest's part.
pub fn guest() -> ! {
    Guest::run(|guest| {
        while let Some(asked) = guest.receive::<Asked>()? {
            let done = measure(guest, &asked);
            guest.send(&done.map_or_else(|e| Said::Failed(format!("{e:#}")), |()| Said::Done))?;
        }
        Ok(())
    })
}

struct Inside<'g> {
    guest: &'g Guest,
    file_system: FileSystem,
}

impl Watch for Inside<'_> {
    fn begin(&mut self) -> Result<()> {
        self.guest.ask(&Said::Begin)
    }

    fn end(&mut self) -> Result<()> {
        let regions = regions(self.file_system, Path::new(BLOCK_PATH), Path::new(MOUNTPOINT))?;
        self.guest.ask(&Said::End(regions))
    }
}

fn measure(guest: &Guest, asked: &Asked) -> Result<()> {
    let library = match &asked.library {
        Some(path) => Library::load(path)?,
        None => {
            crate::engines::register_onewrite().map_err(anyhow::Error::msg)?;
            Library::linked()
        }
    };
    let file_system: FileSystem = asked.file_system.parse().map_err(anyhow::Error::msg)?;
    let mountpoint = Path::new(MOUNTPOINT);
    file_system.mount(Path::new(BLOCK_PATH), mountpoint).context("mounting")?;
    let result = tempfile::tempdir_in(mountpoint).map_err(anyhow::Error::from).and_then(|dir| {
        let mut watch = Inside { guest, file_system };
        load::section(&library, &asked.engine, &asked.load, dir.path(), asked.seed, None, &mut watch)?;
        dir.close().context("removing the directory of the section")
    });
    nix::mount::umount(mountpoint).context("unmounting")?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_what_is_not_known() {
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
        let text = table(&[counts, known]).to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["f2fs", "log", "4.2", "?", "?", "?", "1.00", "1.00", "0.90", "0.50", "2.00"]);
        assert_eq!(lines[2], ["f2fs", "log", "4.2", "0.0", "4.0", "0.0", "1.00", "1.00", "0.90", "0.50", "2.00"]);
    }
}
