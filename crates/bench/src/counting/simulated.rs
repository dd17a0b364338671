//! `--device`: a simulated device, as slow as a class of flash, with a real file system under the
//! measurement, and the trace of its requests.

use super::blocks::Blocks;
use crate::host;
use anyhow::{Context, Result, ensure};
use onewrite_device::{Device, DeviceOptions, FileSystem, Profile, Timing, time_ns};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The device, and the file system on it.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "device-options")]
pub struct SimulatedOptions {
    /// Measure on a simulated device that is as slow as: emmc, ufs, sdcard, sata, nvme (or none,
    /// not slowed down), with its block trace; needs root
    #[arg(long, value_name = "PROFILE", conflicts_with = "dir")]
    pub device: Option<Profile>,
    /// The file system on it: ext4 (that is ext4-ordered), ext4-writeback, ext4-journal, xfs, btrfs
    /// [default: ext4]
    #[arg(long, value_name = "FS", requires = "device")]
    pub fs: Option<FileSystem>,
    /// Its size; its content is in memory
    #[arg(long, value_name = "MIB", default_value_t = 512, requires = "device",
        value_parser = clap::value_parser!(u64).range(64..=16384))]
    pub device_mib: u64,
    /// Write the block trace of the first run to this file, as CSV
    #[arg(long, value_name = "FILE", requires = "device")]
    pub trace: Option<PathBuf>,
    /// A random write of 4 KiB takes it so long, instead of as long as the profile says
    #[arg(long, value_name = "MICROSECONDS", requires = "device", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub write_us: Option<u64>,
    /// And a flush that has something to do so long
    #[arg(long, value_name = "MICROSECONDS", requires = "device", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub flush_us: Option<u64>,
    /// Bytes that it writes whole or not at all, if not the default of devices.
    #[arg(skip)]
    pub block_bytes: Option<u32>,
}

impl SimulatedOptions {
    /// Starts the device asked for, with the file system asked for or `file_system`.
    pub fn start(&self, file_system: Option<FileSystem>) -> Result<Option<Simulated>> {
        let Some(profile) = self.device else { return Ok(None) };
        let file_system = file_system.or(self.fs).unwrap_or(FileSystem::Ext4Ordered);
        let size_bytes = (self.device_mib << 20).max(file_system.size_bytes_min());
        let usual = DeviceOptions::default();
        let options = DeviceOptions {
            profile,
            timing: self.timing(profile)?,
            file_system: Some(file_system),
            size_bytes,
            block_bytes: self.block_bytes.unwrap_or(usual.block_bytes),
            ..usual
        };
        Simulated::start(options, file_system).with_context(|| format!("--device {profile}")).map(Some)
    }
}

impl SimulatedOptions {
    /// The times of the device, where they are not the profile's.
    fn timing(&self, profile: Profile) -> Result<Option<Timing>> {
        if self.write_us.or(self.flush_us).is_none() {
            return Ok(None);
        }
        let timing = profile.timing();
        ensure!(
            timing.is_some(),
            "--write-us and --flush-us are of a device that takes time, which --device {profile} does not"
        );
        Ok(timing.map(|t| Timing {
            random_write_us: self.write_us.unwrap_or(t.random_write_us),
            flush_us: self.flush_us.unwrap_or(t.flush_us),
            ..t
        }))
    }
}

/// Its lines of the card.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceCard {
    pub profile: &'static str,
    pub size_bytes: u64,
    pub block_bytes: u32,
    /// Of 4 KiB. Nothing of a device that is not slowed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_write_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequential_write_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flush_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<usize>,
}

/// A device with its file system, gone when dropped.
pub struct Simulated {
    device: Device,
    file_system: FileSystem,
    timing: Option<Timing>,
    described: DeviceCard,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on a simulated {}", self.file_system, self.described.profile)
    }
}

impl Simulated {
    fn start(options: DeviceOptions, file_system: FileSystem) -> Result<Simulated> {
        // Mounts of this thread and those it starts end with the process, however it ends. Once: in
        // a second namespace the first device's threads would keep the mounts of the second, and
        // neither could end.
        static OWN: AtomicBool = AtomicBool::new(false);
        if onewrite_device::unavailable().is_none() && !OWN.swap(true, Ordering::Relaxed) {
            onewrite_device::own_mounts().context("a namespace for its mounts")?;
        }
        let (profile, size_bytes, block_bytes) = (options.profile, options.size_bytes, options.block_bytes);
        let timing = options.timing.or(profile.timing());
        let device = Device::start(options)?;
        let described = DeviceCard {
            profile: profile.name(),
            size_bytes,
            block_bytes,
            random_write_us: timing.map(|t| t.random_write_us),
            sequential_write_us: timing.map(|t| t.sequential_write_us),
            flush_us: timing.map(|t| t.flush_us),
            channels: timing.map(|t| t.channels),
        };
        Ok(Simulated { device, file_system, timing, described })
    }

    /// Where its file system is mounted.
    pub fn dir(&self) -> &Path {
        self.device.mountpoint()
    }

    pub fn describe(&self) -> &DeviceCard {
        &self.described
    }

    /// The number of requests so far.
    pub fn position(&self) -> usize {
        self.device.position()
    }

    /// Its requests from `from` until now, and then those for the rest in the kernel's cache. The
    /// files of the measurement must still be there.
    pub fn blocks(&self, from: usize) -> Result<Blocks> {
        let to = self.position();
        let regions = self.device.regions()?;
        host::flush(self.dir())?;
        let (during, left) = (self.device.events(from..to), self.device.events(to..self.position()));
        // On ext4 a place that is neither its own nor a file's was a rollback journal's that is
        // gone.
        let gone_is_journal = self.file_system.kind() == "ext4";
        let device_ns = self.timing.map(|_| time_ns(self.timing, &during));
        Ok(Blocks { device_ns, ..Blocks::of(&during, &left, &regions, gone_is_journal) })
    }
}
