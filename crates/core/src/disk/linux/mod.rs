//! What Linux offers beside POSIX.

mod look;
mod network;
mod processes;
mod range_flush;
mod write_back;

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::time::ClockId;
use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use rustix::io::ReadWriteFlags;
use rustix::thread::futex;

pub use look::{at, at_name, at_path, made};
pub use network::shared_at;
pub use processes::{namespace, process_text, thread_number, thread_state, users_of};
pub use range_flush::flush_from;
pub use write_back::{begin_write_back, finish_write_back, seal, sealed};

pub fn write_flushed(file: &File, buf: &[u8], offset: u64) -> rustix::io::Result<usize> {
    rustix::io::pwritev2(file, &[IoSlice::new(buf)], offset, ReadWriteFlags::DSYNC)
}

pub fn flush(file: &File) -> rustix::io::Result<()> {
    rustix::fs::fdatasync(file)
}

pub fn flush_names(dir: &File) -> rustix::io::Result<()> {
    rustix::fs::fsync(dir)
}

pub fn flush_file_system(file: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

pub fn reserve(file: &File, from: u64, len: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, len)
}

pub fn nameless_in(dir: &Path) -> io::Result<File> {
    tempfile::tempfile_in(dir)
}

pub fn rename_as(from: &Path, to: &Path, how: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, from, CWD, to, how)
}

pub fn wait(word: &AtomicU32, seen: u32, nap: Duration) {
    let tv_sec = i64::try_from(nap.as_secs()).unwrap_or(i64::MAX);
    let timeout = futex::Timespec { tv_sec, tv_nsec: i64::from(nap.subsec_nanos()) };
    // The caller's condition decides in any case.
    let _ = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

pub fn wake(word: &AtomicU32, all: bool) {
    let _ = futex::wake(word, futex::Flags::empty(), if all { u32::MAX >> 1 } else { 1 });
}

/// By libc: rustix reads past the part of the vDSO that valgrind shows.
pub fn clock() -> Duration {
    ClockId::CLOCK_MONOTONIC.now().map_or(Duration::ZERO, Duration::from)
}

/// A tick of the kernel late, for a quarter of the time.
pub fn clock_rough() -> Duration {
    ClockId::CLOCK_MONOTONIC_COARSE.now().map_or(Duration::ZERO, Duration::from)
}

pub fn processor() -> Option<usize> {
    nix::sched::sched_getcpu().ok()
}

pub fn this_boot() -> Option<u64> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    let id = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    u64::try_from((id >> 64) ^ (id & u128::from(u64::MAX))).ok()
}

pub fn physical_block_bytes(dev: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    of_device(&Path::new("/sys/dev/block").join(format!("{major}:{minor}")))
}

/// The physical block of the device or its partition's disk; none if unknown or misaligned.
fn of_device(device: &Path) -> Option<u64> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // -1, misaligned, fails to parse and counts as an offset.
    let offset_path = device.join("alignment_offset");
    if offset_path.exists() && number(offset_path) != Some(0) {
        return None;
    }
    number(device.join("queue/physical_block_size")).or_else(|| number(device.join("../queue/physical_block_size")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_physical_block_comes_from_the_disk_under_a_partition() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("vda");
        let partition = disk.join("vda1");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(&partition).unwrap();
        fs::write(disk.join("queue/physical_block_size"), "4096\n").unwrap();
        fs::write(partition.join("alignment_offset"), "0\n").unwrap();
        assert_eq!(of_device(&disk), Some(4096));
        assert_eq!(of_device(&partition), Some(4096));
        for misaligned in ["512\n", "-1\n"] {
            fs::write(partition.join("alignment_offset"), misaligned).unwrap();
            assert_eq!(of_device(&partition), None);
        }
        assert_eq!(of_device(&sys.path().join("0:99")), None);
    }
}
