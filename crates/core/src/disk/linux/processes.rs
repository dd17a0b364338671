//! Processes by `/proc`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use crate::disk::FileId;
use crate::disk::processes::{FileUser, HeldLock};

pub fn namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino())
}

pub fn process_text(pid: u32, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    File::open(format!("/proc/{pid}/{name}"))?.take(bytes_max).read_to_end(&mut read)?;
    Ok(read)
}

pub fn thread_number() -> Option<u32> {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok()
}

pub fn thread_state(thread: u32) -> Option<(bool, u64)> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((matches!(state, "R" | "D"), user + system))
}

pub fn users_of(files: &[FileId]) -> Vec<FileUser> {
    let mut users = locks_of_all(files);
    for pid in fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| number(&entry)) {
        let opened = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for descriptor in opened.filter_map(|entry| number(&entry)) {
            let Some(id) = opened_as(&format!("/proc/{pid}/fd/{descriptor}")) else { continue };
            let Some(file) = files.iter().position(|file| *file == id) else { continue };
            let held = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
            let locks = held.lines().filter_map(|line| line.strip_prefix("lock:")).filter_map(parsed);
            users.push(FileUser { pid, file, locks: locks.map(|line| line.lock).collect() });
        }
    }
    users
}

fn number(entry: &fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}

/// Never waits for another machine.
fn opened_as(descriptor: &str) -> Option<FileId> {
    let found = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some(FileId { dev: makedev(found.stx_dev_major, found.stx_dev_minor), ino: found.stx_ino })
}

/// POSIX locks of all users, which the kernel lists with their processes.
fn locks_of_all(files: &[FileId]) -> Vec<FileUser> {
    let text = fs::read_to_string("/proc/locks").unwrap_or_default();
    let lines = text.lines().filter_map(parsed).filter(|line| line.pid > 0);
    lines
        .filter_map(|line| {
            let file = files.iter().position(|file| *file == line.file)?;
            Some(FileUser { pid: u32::try_from(line.pid).ok()?, file, locks: vec![line.lock] })
        })
        .collect()
}

struct LockLine {
    pid: i64,
    file: FileId,
    lock: HeldLock,
}

/// `1: POSIX  ADVISORY  WRITE 497 fe:00:9986208 1073741825 1073741825`; not of a waiter.
fn parsed(line: &str) -> Option<LockLine> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let kind = fields.next().filter(|kind| matches!(*kind, "POSIX" | "OFDLCK"))?;
    let exclusive = fields.nth(1)? == "WRITE";
    let pid: i64 = fields.next()?.parse().ok()?;
    let mut place = fields.next()?.split(':');
    let mut part = |radix| u64::from_str_radix(place.next()?, radix).ok();
    let (major, minor, ino) = (part(16)?, part(16)?, part(10)?);
    let file = FileId { dev: makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?), ino };
    let first = fields.next()?.parse().ok()?;
    let last = fields.next().map(|last| last.parse().unwrap_or(u64::MAX))?;
    let pid = if kind == "POSIX" { pid } else { -1 };
    Some(LockLine { pid, file, lock: HeldLock { exclusive, first, last } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::real::RealDisk;
    use crate::disk::{Disk, LockKind, OpenMode};

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealDisk::new().open(&dir.path().join("db"), OpenMode::Create).unwrap();
        assert!(file.try_lock(10, 5, LockKind::Exclusive).unwrap() && file.try_lock(20, 1, LockKind::Shared).unwrap());
        let users = users_of(&[FileId { dev: 0, ino: 0 }, file.id().unwrap()]);
        let [user] = &users[..] else { panic!("{users:?}") };
        assert_eq!((user.pid, user.file), (std::process::id(), 1));
        let mut locks = user.locks.clone();
        locks.sort_by_key(|lock| lock.first);
        let lock = |exclusive, first, last| HeldLock { exclusive, first, last };
        assert_eq!(locks, [lock(true, 10, 14), lock(false, 20, 20)]);
    }

    #[test]
    fn lines_of_the_kernel() {
        let line = parsed("19: POSIX  ADVISORY  WRITE 497 fe:00:9986208 1073741825 1073741825").unwrap();
        assert_eq!((line.pid, line.file.ino), (497, 9_986_208));
        assert_eq!(line.lock, HeldLock { exclusive: true, first: 1_073_741_825, last: 1_073_741_825 });
        let line = parsed("\t1: OFDLCK ADVISORY  READ -1 00:1b:517957 0 EOF").unwrap();
        assert_eq!((line.pid, line.lock), (-1, HeldLock { exclusive: false, first: 0, last: u64::MAX }));
        for no_lock in ["1: -> POSIX  ADVISORY  WRITE 5 fe:00:1 0 0", "2: FLOCK  ADVISORY  WRITE 1 fe:00:7 0 EOF", ""] {
            assert!(parsed(no_lock).is_none(), "{no_lock}");
        }
    }
}
