//! Facts of a file without its times.
//!
//! On Linux 6.13 and newer (ext4, XFS, btrfs, tmpfs) a query for times gives the next write a new
//! time. That changes the inode, and a flush on ext4 without a journal then writes it: 155 to 220
//! µs instead of 110 to 130.

use std::fs::{self, File, Metadata};
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustc_hash::FxBuildHasher;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, makedev, statx};
use rustix::io::Errno;

use crate::disk::look::FileFacts;

pub fn at(file: &File) -> io::Result<FileFacts> {
    ask(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH, || file.metadata())
}

pub fn made(file: &File) -> io::Result<Option<u64>> {
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    let found = match statx(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH, asked) {
        Err(Errno::NOSYS | Errno::PERM) => return Ok(None),
        found => found?,
    };
    let at = found.stx_btime;
    if found.stx_mask & asked.bits() != asked.bits() || at.tv_nsec == 0 {
        return Ok(None);
    }
    let dev = makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(Some(FxBuildHasher.hash_one((dev, found.stx_ino, at.tv_sec, at.tv_nsec))))
}

pub fn at_path(path: &Path) -> io::Result<FileFacts> {
    ask(CWD, path, AtFlags::empty(), || fs::metadata(path))
}

pub fn at_name(path: &Path) -> io::Result<FileFacts> {
    ask(CWD, path, AtFlags::SYMLINK_NOFOLLOW, || fs::symlink_metadata(path))
}

/// `otherwise`: for kernels, and sandboxes, without `statx`.
fn ask(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: AtFlags,
    otherwise: impl FnOnce() -> io::Result<Metadata>,
) -> io::Result<FileFacts> {
    let asked = StatxFlags::TYPE
        | StatxFlags::MODE
        | StatxFlags::NLINK
        | StatxFlags::UID
        | StatxFlags::GID
        | StatxFlags::INO
        | StatxFlags::SIZE;
    match statx(dir, path, flags, asked) {
        Ok(found) => Ok(of_statx(&found)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(otherwise()?.into()),
        Err(e) => Err(e.into()),
    }
}

fn of_statx(found: &Statx) -> FileFacts {
    FileFacts {
        dev: makedev(found.stx_dev_major, found.stx_dev_minor),
        ino: found.stx_ino,
        names: found.stx_nlink.into(),
        mode: found.stx_mode.into(),
        uid: found.stx_uid,
        gid: found.stx_gid,
        bytes: found.stx_size,
    }
}
