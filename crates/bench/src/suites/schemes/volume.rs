//! Where the bytes of a transaction go: database, log, the file system's journal, other blocks.
//!
//! A block device in user space sees every write; the file system says where its files and its
//! journal lie. Without root or FUSE there is none: the disk's counters tell the total, the write
//! calls tell the files, and the rest is the file system's.

use super::child::{Child, ChildWork};
use super::engine::SchemeEngine;
use super::load::{self, Load, MeasureHooks, Timed};
use crate::counting::device::{Device as Disk, DeviceCounters};
use crate::counting::syscalls;
use crate::engines::sql::Library;
use crate::host::Mount;
use anyhow::Result;
use onewrite_device::{Device, DeviceOptions, FileSystem};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// KiB of a transaction, by where they went.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransactionVolume {
    pub database: f64,
    pub log: f64,
    /// With `other` where the two cannot be told apart.
    pub journal: f64,
    pub other: f64,
    pub writes: f64,
    pub flushes: f64,
}

/// Where it is counted.
pub enum Counter {
    Device(Box<Device>),
    /// The disk under the directory, and why there is no device.
    Disk(Disk),
}

impl Counter {
    /// The best there is; with it, the table's words for it.
    pub fn start(dir: &Path) -> Result<(Counter, String), String> {
        // The in-page schemes need pages that are written whole or not at all.
        let options = DeviceOptions {
            file_system: Some(FileSystem::Ext4Ordered),
            size_bytes: 128 << 20,
            block_bytes: 4096,
            ..Default::default()
        };
        let why = match Device::start(options) {
            Ok(device) => {
                let what = "every write to a block device in user space with ext4 data=ordered, told apart by where \
                            files and journal lie";
                return Ok((Counter::Device(Box::new(device)), what.to_owned()));
            }
            Err(e) => format!("{e:#}"),
        };
        let disk = Disk::under(dir, Mount::of(dir).as_ref()).map_err(|e| format!("{why}; {e}"))?;
        let what = format!(
            "write calls by file, and as `journal` what the disk's own counters have beyond them, others' writes \
             included, for no block device in user space can be had: {why}"
        );
        Ok((Counter::Disk(disk), what))
    }

    pub fn section(
        &self,
        library: &Arc<Library>,
        library_path: Option<PathBuf>,
        engine: &SchemeEngine,
        load: &Load,
        dir: &Path,
        seed: u64,
    ) -> Result<(TransactionVolume, Timed)> {
        match self {
            Counter::Device(device) => on_device(device, library, engine, load, seed),
            Counter::Disk(disk) => {
                let own = tempfile::tempdir_in(dir)?;
                let mut watch = OnDisk { disk, before: DeviceCounters::default(), during: DeviceCounters::default() };
                let timed = load::section(library, engine, load, own.path(), seed, None, &mut watch)?;
                let own = tempfile::tempdir_in(dir)?;
                let work = ChildWork::Section { load: load.clone() };
                let child =
                    Child { engine: engine.clone(), library: library_path, dir: own.path().to_owned(), seed, work };
                let calls = syscalls::count(child.command()?).map_err(anyhow::Error::msg)?;
                let each = |n: u64| n as f64 / timed.transactions as f64;
                let (database, log) = (each(calls.database_bytes) / 1024.0, each(calls.log_bytes) / 1024.0);
                let volume = TransactionVolume {
                    database,
                    log,
                    journal: (each(watch.during.bytes) / 1024.0 - database - log).max(0.0),
                    other: 0.0,
                    writes: each(watch.during.block_writes().unwrap_or(watch.during.requests)),
                    flushes: each(watch.during.flushes.unwrap_or(0)),
                };
                Ok((volume, timed))
            }
        }
    }
}

struct OnDisk<'a> {
    disk: &'a Disk,
    before: DeviceCounters,
    during: DeviceCounters,
}

impl MeasureHooks for OnDisk<'_> {
    fn begin(&mut self) -> Result<()> {
        self.before = self.disk.counters()?;
        Ok(())
    }
    fn end(&mut self) -> Result<()> {
        self.during = self.disk.counters()?.since(self.before);
        Ok(())
    }
}

struct OnDevice<'a> {
    device: &'a Device,
    from: usize,
    volume: TransactionVolume,
}

impl MeasureHooks for OnDevice<'_> {
    fn begin(&mut self) -> Result<()> {
        self.from = self.device.position();
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let to = self.device.position();
        let summary = self.device.trace().summary(self.from..to, &self.device.regions()?);
        self.volume.writes = summary.writes as f64;
        self.volume.flushes = summary.flushes as f64;
        for region in &summary.regions {
            let kib = region.bytes as f64 / 1024.0;
            let name = region.region.as_str();
            let is_log = ["-journal", "-wal", "-onewrite"].iter().any(|suffix| name.ends_with(suffix));
            *match name {
                "file system's journal" => &mut self.volume.journal,
                "other" => &mut self.volume.other,
                _ if is_log => &mut self.volume.log,
                _ => &mut self.volume.database,
            } += kib;
        }
        Ok(())
    }
}

fn on_device(
    device: &Device,
    library: &Arc<Library>,
    engine: &SchemeEngine,
    load: &Load,
    seed: u64,
) -> Result<(TransactionVolume, Timed)> {
    let dir = tempfile::tempdir_in(device.mountpoint())?;
    let mut watch = OnDevice { device, from: 0, volume: TransactionVolume::default() };
    let timed = load::section(library, engine, load, dir.path(), seed, None, &mut watch)?;
    let each = |n: f64| n / timed.transactions as f64;
    let TransactionVolume { database, log, journal, other, writes, flushes } = watch.volume;
    let volume = TransactionVolume {
        database: each(database),
        log: each(log),
        journal: each(journal),
        other: each(other),
        writes: each(writes),
        flushes: each(flushes),
    };
    Ok((volume, timed))
}
