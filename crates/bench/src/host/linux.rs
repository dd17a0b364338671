//! Linux.

use super::{Computer, Mount};
use anyhow::{Context, Result};
use rustix::io::ReadWriteFlags;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Makes all files of the file system that holds `dir` durable.
pub fn flush(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

/// The name of [`write_durable`]'s call.
pub const DURABLE_WRITE: &str = "one pwritev2(RWF_DSYNC)";

/// One write that is also the flush of its bytes.
pub fn write_durable(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let written = rustix::io::pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC)?;
    if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Makes the kernel forget its cache of the file. No connection of SQLite's own VFS may be open
/// here: closing the file would take its locks away.
pub fn forget_pages(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    // Only written pages can be forgotten.
    rustix::fs::fdatasync(&file)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("posix_fadvise")
}

/// Whether this process may mount loop images.
pub fn may_mount() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gives the file blocks for so many bytes.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
}

/// Bytes that users may write to the file system of `dir`.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    rustix::fs::statvfs(dir).ok().map(|v| v.f_bavail * v.f_frsize)
}

/// Bytes for storage that this process has caused so far.
pub fn written_bytes() -> Option<u64> {
    let io = fs::read_to_string("/proc/self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

/// `major:minor` of the device that holds `path`, as `/sys/dev/block` names it.
pub fn device_number(path: &Path) -> Result<String, String> {
    fs::metadata(path).map(|m| number(m.dev())).map_err(|e| e.to_string())
}

/// The same of the device that `path` is.
pub fn source_number(path: &str) -> Option<String> {
    fs::metadata(path).ok().map(|m| number(m.rdev()))
}

fn number(dev: u64) -> String {
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

pub fn computer() -> Computer {
    Computer {
        system: "Linux",
        kernel: read("/proc/sys/kernel/osrelease"),
        cpu_model: read("/proc/cpuinfo").as_deref().and_then(cpu_model),
        cpu_governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes: read("/proc/meminfo").as_deref().and_then(memory_bytes),
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    ["model name", "Model", "Hardware"].into_iter().find_map(|key| {
        let line = cpuinfo.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    })
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|k| k * 1024)
}

/// From `/proc/self/mountinfo`.
impl Mount {
    /// The mount that holds `dir`, an absolute path without links.
    pub fn of(dir: &Path) -> Option<Mount> {
        Mount::find(&fs::read_to_string("/proc/self/mountinfo").ok()?, dir)
    }

    /// The longest mount point that `dir` is under; of several at one point the last hides the
    /// others.
    pub fn find(mountinfo: &str, dir: &Path) -> Option<Mount> {
        let holds = mountinfo.lines().filter_map(Mount::parse).filter(|m| dir.starts_with(&m.point));
        holds.max_by_key(|m| m.point.components().count())
    }

    /// `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue`
    fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let (left, right): (Vec<_>, Vec<_>) = (left.split(' ').collect(), right.split(' ').collect());
        let mut options: Vec<String> = left.get(5)?.split(',').map(str::to_owned).collect();
        for option in right.get(2).unwrap_or(&"").split(',').filter(|o| !o.is_empty()) {
            if !options.iter().any(|o| o == option) {
                options.push(option.to_owned());
            }
        }
        Some(Mount {
            point: PathBuf::from(unescape(left.get(4)?)),
            fs_type: (*right.first()?).to_owned(),
            source: unescape(right.get(1)?),
            options,
        })
    }
}

/// Blanks and backslashes in paths are written as `\040` and the like.
fn unescape(s: &str) -> String {
    let mut parts = s.split('\\');
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            _ => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_with_the_longest_point_and_of_equals_the_last() {
        let info = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard,data=ordered
40 27 7:1 / /mnt/with\\040blank rw,noatime shared:3 master:1 - xfs /dev/loop1 rw,attr2
41 27 7:2 / /mnt/with\\040blank rw - btrfs /dev/loop2 rw,compress=zstd
broken line
";
        let find = |dir| Mount::find(info, Path::new(dir)).unwrap();
        assert_eq!(find("/home/me").fs_type, "ext4");
        assert_eq!(find("/home/me").options, ["rw", "relatime", "discard", "data=ordered"]);
        assert_eq!(find("/mnt/with blank/db").fs_type, "btrfs");
        assert_eq!(find("/mnt/with blankets").point, Path::new("/"));
        assert_eq!(Mount::find("", Path::new("/")), None);
        assert_eq!(unescape("a\\134b\\x"), "a\\b\\x");
    }

    #[test]
    fn processors_and_memory() {
        let x86 = "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some CPU @ 2.00GHz\n";
        assert_eq!(cpu_model(x86).as_deref(), Some("Some CPU @ 2.00GHz"));
        let arm = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 4\n";
        assert_eq!(cpu_model(arm).as_deref(), Some("Raspberry Pi 4"));
        assert_eq!(cpu_model("processor: 0"), None);
        assert_eq!(memory_bytes("MemTotal:        2048 kB\nMemFree: 1 kB\n"), Some(2 << 20));
        assert_eq!(memory_bytes(""), None);
    }
}
