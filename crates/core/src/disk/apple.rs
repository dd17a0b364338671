//! What macOS adds, by its manual. Never run.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::libc::MNT_LOCAL;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

unsafe extern "C" {
    fn fsync_volume_np(file: c_int, flags: c_int) -> c_int;
}
const SYNC_VOLUME_FULLSYNC: c_int = 1;
const SYNC_VOLUME_WAIT: c_int = 2;

/// `F_FULLFSYNC`: "as fsync(2), then asks the drive to flush all buffered data to the permanent
/// storage device". A file system without it has `fsync` alone.
pub fn flush(file: &File) -> rustix::io::Result<()> {
    match rustix::fs::fcntl_fullfsync(file) {
        Err(Errno::NOTSUP | Errno::NOTTY | Errno::INVAL) => rustix::fs::fsync(file),
        done => done,
    }
}

pub fn flush_file_system(file: &File) -> io::Result<()> {
    // SAFETY: takes numbers, and the descriptor is open.
    match unsafe { fsync_volume_np(file.as_raw_fd(), SYNC_VOLUME_FULLSYNC | SYNC_VOLUME_WAIT) } {
        0 => Ok(()),
        // An error's number, or -1.
        e if e > 0 => Err(io::Error::from_raw_os_error(e)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `renameatx_np`: `RENAME_EXCL` "returns EEXIST if the destination already exists",
/// `RENAME_SWAP` exchanges atomically; not on all file systems (`ENOTSUP`).
pub fn rename_as(from: &Path, to: &Path, how: RenameFlags) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, how) {
        Err(Errno::NOTSUP) => Err(Errno::NOSYS),
        done => done,
    }
}

/// `MNT_LOCAL`: "the file system is stored locally".
pub fn shared_at(path: &Path) -> Option<String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(parent)).ok()?;
    let is_local = found.f_flags & MNT_LOCAL as u32 != 0;
    let name: Vec<u8> = found.f_fstypename.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    (!is_local).then(|| String::from_utf8_lossy(&name).into_owned())
}
