//! The block device under a directory: its name, its settings, and the bytes it has written.

use crate::host::{self, Mount};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Counts of `/sys/block/*/stat` since boot. Only those that the bench reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceCounters {
    /// Of writes, with data or without: a flush alone is one, too.
    pub requests: u64,
    pub bytes: u64,
    /// Kernels before 5.5 do not count flushes.
    pub flushes: Option<u64>,
    /// Of those, the ones before and behind a write with data, by the commits of ext4's journal.
    pub flushes_of_data: u64,
}

impl DeviceCounters {
    /// From the text of a `stat` file (Documentation/block/stat.rst). Field 5 is write requests
    /// completed, 7 sectors of 512 B written, 16 flush requests completed.
    pub fn parse(text: &str) -> Result<DeviceCounters> {
        let fields = text.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>();
        let fields = fields.with_context(|| format!("not a block device's statistics: {text:?}"))?;
        let field = |n: usize| fields.get(n - 1).copied();
        let (requests, sectors) =
            field(5).zip(field(7)).context("the block device's statistics have too few fields")?;
        Ok(DeviceCounters { requests, bytes: sectors * 512, flushes: field(16), flushes_of_data: 0 })
    }

    /// Requests with data. Unknown where the flushes among all are not counted.
    pub fn block_writes(&self) -> Option<u64> {
        Some(self.requests.saturating_sub(self.flushes?.saturating_sub(self.flushes_of_data)))
    }

    pub fn and(self, more: DeviceCounters) -> DeviceCounters {
        DeviceCounters {
            requests: self.requests + more.requests,
            bytes: self.bytes + more.bytes,
            flushes: self.flushes.zip(more.flushes).map(|(a, b)| a + b),
            flushes_of_data: self.flushes_of_data + more.flushes_of_data,
        }
    }

    pub fn since(self, earlier: DeviceCounters) -> DeviceCounters {
        DeviceCounters {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            flushes: self.flushes.zip(earlier.flushes).map(|(a, b)| a.saturating_sub(b)),
            flushes_of_data: self.flushes_of_data.saturating_sub(earlier.flushes_of_data),
        }
    }
}

/// The device's settings that change the cost of a commit. `None` is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    pub name: String,
    pub model: Option<String>,
    pub write_cache: Option<String>,
    pub fua: Option<bool>,
    pub physical_block_size: Option<u64>,
    pub logical_block_size: Option<u64>,
    /// The largest write that the device does whole or not at all; 0: it claims none beyond the
    /// physical block.
    pub atomic_write_bytes_max: Option<u64>,
    pub scheduler: Option<String>,
    pub rotational: Option<bool>,
}

/// The counter of a section's writes.
#[derive(Clone, Debug)]
pub enum WriteCounter {
    Device(Device),
    /// Bytes alone, where the system counts no device's requests: those of this process.
    Process,
}

impl WriteCounter {
    /// The best there is of files in `dir`; `None` where nothing counts.
    pub fn of(dir: &Path) -> Option<WriteCounter> {
        match Device::under(dir, Mount::of(dir).as_ref()) {
            Ok(device) => Some(WriteCounter::Device(device)),
            Err(_) => sees_a_write(dir).unwrap_or(false).then_some(WriteCounter::Process),
        }
    }

    pub fn counters(&self) -> Result<DeviceCounters> {
        match self {
            WriteCounter::Device(device) => device.counters(),
            WriteCounter::Process => {
                let bytes = host::written_bytes().context("this process's counter of bytes is gone")?;
                Ok(DeviceCounters { bytes, ..DeviceCounters::default() })
            }
        }
    }
}

/// Whether the process's counter notices a write there: none to memory, and on some systems none.
fn sees_a_write(dir: &Path) -> Option<bool> {
    const BYTES: usize = 1 << 16;
    let before = host::written_bytes()?;
    let mut file = tempfile::tempfile_in(dir).ok()?;
    file.write_all(&[1; BYTES]).and_then(|()| file.sync_all()).ok()?;
    Some(host::written_bytes()? >= before + BYTES as u64)
}

/// A whole disk: flushes are not counted per partition.
#[derive(Clone, Debug)]
pub struct Device {
    sys: PathBuf,
    /// Of ext4's journal on it, whose first number is that of its commits.
    journal: Option<PathBuf>,
    /// How many flushes belong to the block that ends such a commit.
    flushes_of_commit: u64,
}

impl Device {
    /// The disk that `mount`, which holds `dir`, is on; or the reason why there is none.
    pub fn under(dir: &Path, mount: Option<&Mount>) -> Result<Device, String> {
        let number = host::device_number(dir)?;
        if !Path::new("/sys/dev/block").exists() {
            return Err("there is no /sys/dev/block here".to_owned());
        }
        let mut sys = Path::new("/sys/dev/block").join(number);
        if !sys.exists() {
            // btrfs and others give files a device number of their own; their mount names the disk.
            let source = mount.map_or("", |m| m.source.as_str());
            let disk = host::source_number(source).filter(|_| source.starts_with("/dev/"));
            let kind = mount.map_or("this file system", |m| m.fs_type.as_str());
            sys = Path::new("/sys/dev/block").join(disk.ok_or(format!("{kind} is on no block device"))?);
        }
        let sys = fs::canonicalize(&sys).map_err(|e| format!("{}: {e}", sys.display()))?;
        let whole = if sys.join("partition").exists() { sys.parent().map(Path::to_path_buf) } else { None };
        let journal = journal(&sys.file_name().unwrap_or_default().to_string_lossy());
        let mut device = Device { sys: whole.unwrap_or(sys), journal, flushes_of_commit: 0 };
        // Without FUA the device is flushed before and behind that block.
        device.flushes_of_commit = if device.queue().fua == Some(true) { 1 } else { 2 };
        device.counters().map_err(|e| format!("{e:#}"))?;
        Ok(device)
    }

    pub fn name(&self) -> String {
        self.sys.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn counters(&self) -> Result<DeviceCounters> {
        let path = self.sys.join("stat");
        let all = DeviceCounters::parse(&fs::read_to_string(&path).with_context(|| path.display().to_string())?)?;
        let said = self.journal.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let commits = said.as_deref().and_then(commits).unwrap_or(0);
        Ok(DeviceCounters { flushes_of_data: commits * self.flushes_of_commit, ..all })
    }

    pub fn queue(&self) -> Queue {
        let read = |name: &str| Some(fs::read_to_string(self.sys.join(name)).ok()?.trim().to_owned());
        let number = |name: &str| read(name)?.parse().ok();
        Queue {
            name: self.name(),
            model: read("device/model"),
            write_cache: read("queue/write_cache"),
            fua: number("queue/fua").map(|n: u64| n != 0),
            physical_block_size: number("queue/physical_block_size"),
            logical_block_size: number("queue/logical_block_size"),
            atomic_write_bytes_max: number("queue/atomic_write_unit_max_bytes"),
            scheduler: read("queue/scheduler").map(|s| chosen(&s).to_owned()),
            rotational: number("queue/rotational").map(|n: u64| n != 0),
        }
    }
}

/// What the kernel says of the journal of the ext4 on this device.
fn journal(device: &str) -> Option<PathBuf> {
    let all = fs::read_dir("/proc/fs/jbd2").ok()?.flatten();
    let mut its = all.filter(|entry| entry.file_name().to_string_lossy().split('-').next() == Some(device));
    Some(its.next()?.path().join("info"))
}

/// Of a text as `1035 transactions (1035 requested), each up to 1024 blocks`.
fn commits(info: &str) -> Option<u64> {
    let (number, rest) = info.split_once(' ')?;
    number.parse().ok().filter(|_| rest.starts_with("transactions"))
}

/// The one in brackets, as in `none [mq-deadline] kyber`.
fn chosen(choices: &str) -> &str {
    choices.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(choices, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_new_and_old_kernels() {
        let new = "   30424     6990  4577690    13342     6245    12625   907464     1956        0     5508    \
                   15527     3498       29   154160      216      326       12\n";
        let counters = DeviceCounters::parse(new).unwrap();
        let counted = |requests, bytes, flushes| DeviceCounters { requests, bytes, flushes, flushes_of_data: 0 };
        assert_eq!(counters, counted(6245, 907_464 * 512, Some(326)));
        let old = DeviceCounters::parse("1 2 3 4 5 6 7 8 9 10 11").unwrap();
        assert_eq!((old, old.block_writes()), (counted(5, 7 * 512, None), None));
        assert!(DeviceCounters::parse("1 2 3").is_err());
        assert!(DeviceCounters::parse("a b c d e f g").is_err());
        let since = counters.since(counted(6000, 512, Some(300)));
        assert_eq!((since, since.block_writes()), (counted(245, 907_463 * 512, Some(26)), Some(219)));
        // A commit of the file system's journal: of four flushes, two came with its last block.
        assert_eq!(DeviceCounters { flushes_of_data: 2, ..counted(8, 4096, Some(4)) }.block_writes(), Some(6));
        assert_eq!(commits("1035 transactions (1035 requested), each up to 1024 blocks\n"), Some(1035));
        assert_eq!(commits("none"), None);
        assert_eq!(counters.since(old).flushes, None);
    }

    #[test]
    fn schedulers() {
        assert_eq!(chosen("none [mq-deadline] kyber bfq"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }
}
