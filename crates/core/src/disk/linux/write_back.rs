//! Linux's `sync_file_range` and `FS_IOC_FIEMAP`, which no crate wraps.

#![allow(unsafe_code)]

use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use rustc_hash::FxBuildHasher;
use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::disk::FileSeal;

/// Errors stay for the next flush: only a wait would consume them.
pub fn begin_write_back(file: &File, offset: u64, len: u64) {
    let _seen_by_the_flush = sync_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE);
}

/// Waits until the device, perhaps its cache, has the bytes from `from` on.
pub fn finish_write_back(file: &File, from: u64) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // Zero length means all to the end.
    sync_range(file, from, 0, all)
}

fn sync_range(file: &File, offset: u64, len: u64, flags: libc::c_uint) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: numbers alone are given to the kernel, and the descriptor is open as long as `file`
    // is.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A log of 64 KiB has fewer pieces.
const EXTENTS: usize = 8;

#[repr(C)]
#[derive(Default)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

#[repr(C)]
#[derive(Clone, Copy, Default, Hash)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 0x1;
/// `FIEMAP_EXTENT_UNWRITTEN`.
const UNWRITTEN: u32 = 0x800;
/// `FIEMAP_EXTENT_MERGED`.
const MERGED: u32 = 0x1000;

mod request {
    // `FS_IOC_FIEMAP` has the size of `struct fiemap` without extents.
    nix::ioctl_readwrite_bad!(fiemap, nix::request_code_readwrite!(b'f', 11, 32), super::Fiemap);
}

/// In bytes, if writes go to the file's blocks alone. A data journal (`data=journal`) would hold
/// them first; ext4 then refuses direct I/O, from Linux 6.1 on.
fn bytes_in_place(file: &File) -> Option<u64> {
    let asked = StatxFlags::DIOALIGN | StatxFlags::SIZE;
    let found = statx(file, c"", AtFlags::EMPTY_PATH, asked).ok()?;
    (found.stx_mask & asked.bits() == asked.bits() && found.stx_dio_mem_align > 0).then_some(found.stx_size)
}

/// A seal is at most a block.
const SEAL_BYTES: u64 = 4096;

fn seal_at(bytes: u64) -> u64 {
    bytes.next_multiple_of(SEAL_BYTES)
}

/// Where blocks stay in place (ext4 and its kin): the seal is a block behind the end, which every
/// truncation takes (rule MarkWithFirstRecord).
pub fn seal(file: &File, len: u64) -> io::Result<Option<FileSeal>> {
    const EXT4: u64 = 0xef53;
    let is_ext4 = u64::try_from(rustix::fs::fstatfs(file)?.f_type) == Ok(EXT4);
    let is_sealed = is_ext4 && super::reserve(file, seal_at(len), SEAL_BYTES).is_ok();
    Ok(if is_sealed { sealed(file) } else { None })
}

/// Every block of the file is written and its own, with a seal behind: unwritten room at the end
/// (rule MarkWithFirstRecord).
pub fn sealed(file: &File) -> Option<FileSeal> {
    let end = seal_at(bytes_in_place(file)?);
    let mut map = Fiemap { length: u64::MAX, extent_count: EXTENTS as u32, ..Fiemap::default() };
    // SAFETY: `map` is laid out as the kernel's, with room for as many extents as it says, and the
    // descriptor is open.
    unsafe { request::fiemap(file.as_raw_fd(), &raw mut map) }.ok()?;
    let (seal, extents) = map.extents.get(..map.mapped_extents as usize)?.split_last()?;
    let mut reached = 0;
    for extent in extents {
        let follows = extent.logical == reached && extent.flags & !MERGED == 0;
        reached = reached.checked_add(extent.length).filter(|_| follows)?;
    }
    let is_seal = reached == end && seal.logical == end && seal.flags & !MERGED == LAST | UNWRITTEN;
    is_seal.then(|| FileSeal([FxBuildHasher.hash_one(extents), seal.physical]))
}
