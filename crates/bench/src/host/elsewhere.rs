//! Systems other than Linux, as the crate `sysinfo` knows them.

use super::{Computer, Mount};
use anyhow::{Result, bail};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use sysinfo::{Disk, Disks, Pid, ProcessRefreshKind, ProcessesToUpdate, System};

const SYSTEM: &str = match () {
    () if cfg!(windows) => "Windows",
    () if cfg!(target_os = "macos") => "macOS",
    () => std::env::consts::OS,
};

/// Makes the files in `dir` durable.
pub fn flush(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_file() {
            File::options().read(true).write(true).open(path)?.sync_all()?;
        }
    }
    Ok(())
}

/// The names of [`write_durable`]'s calls.
pub const DURABLE_WRITE: &str =
    if cfg!(windows) { "one WriteFile and FlushFileBuffers" } else { "one write and one flush to the medium" };

/// One write and one flush.
pub fn write_durable(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)?;
    file.sync_data()
}

pub fn forget_pages(_path: &Path) -> Result<()> {
    bail!("making the system forget its cache of a file takes Linux's posix_fadvise")
}

/// Loop images are Linux's.
pub fn may_mount() -> bool {
    false
}

pub fn reserve(_file: &File, _bytes: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Bytes that users may write to the file system of `dir`.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    with_disk(dir, |disk| disk.available_space())
}

/// Bytes that this process has asked the system to write so far.
pub fn written_bytes() -> Option<u64> {
    let (mut system, own) = (System::new(), Pid::from_u32(process::id()));
    let look = ProcessRefreshKind::nothing().with_disk_usage();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), false, look);
    system.process(own).map(|process| process.disk_usage().total_written_bytes)
}

/// Linux numbers devices for its counters.
pub fn device_number(_path: &Path) -> Result<String, String> {
    Err(format!("{SYSTEM} does not tell what a device was asked for"))
}

pub fn source_number(_path: &str) -> Option<String> {
    None
}

pub fn computer() -> Computer {
    let mut system = System::new();
    system.refresh_memory();
    system.refresh_cpu_all();
    Computer {
        system: SYSTEM,
        kernel: System::kernel_version(),
        cpu_model: system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).filter(|brand| !brand.is_empty()),
        cpu_governor: None,
        memory_bytes: Some(system.total_memory()),
    }
}

impl Mount {
    /// The mount that holds `dir`, an absolute path without links.
    pub fn of(dir: &Path) -> Option<Mount> {
        with_disk(dir, |disk| Mount {
            point: disk.mount_point().to_owned(),
            fs_type: disk.file_system().to_string_lossy().into_owned(),
            source: disk.name().to_string_lossy().into_owned(),
            options: Vec::new(),
        })
    }
}

fn with_disk<T>(dir: &Path, of: impl FnOnce(&Disk) -> T) -> Option<T> {
    let disks = Disks::new_with_refreshed_list();
    let dir = plain(dir);
    let holds = disks.list().iter().filter(|disk| dir.starts_with(disk.mount_point()));
    holds.max_by_key(|disk| disk.mount_point().components().count()).map(of)
}

/// Windows' absolute paths without links begin with `\\?\`, its drives do not.
fn plain(path: &Path) -> PathBuf {
    path.to_str().and_then(|text| text.strip_prefix(r"\\?\")).map_or_else(|| path.to_owned(), PathBuf::from)
}
