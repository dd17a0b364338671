//! The system calls that no safe crate offers in this form. The only module with unsafe code.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

mod ioctl {
    // BLKFLSBUF and FS_IOC_FIEMAP of linux/fs.h; the second number has the header's size alone.
    nix::ioctl_none!(flush_buffers, 0x12, 97);
    nix::ioctl_readwrite_bad!(map_extents, nix::request_code_readwrite!(b'f', 11, 32), super::Extents);
}

/// `struct fiemap` of linux/fiemap.h with room for some extents.
#[repr(C)]
pub struct Extents {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [Extent; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_wide: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNKNOWN: u32 = 0x2;
const MAP_SYNC: u32 = 0x1;

/// Gives the calling thread, and threads that it starts, a table of descriptors with standard
/// input, output and error alone.
pub fn own_descriptors() -> io::Result<()> {
    // SAFETY: the call takes no pointers. The descriptors it closes are copies in the table that
    // this call creates for this thread; the calling thread must own no descriptor, which
    // `device::serve` sees to by calling this first in a new thread. The other threads' table is
    // not touched.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes out and drops the kernel's cache of a block device.
pub fn drop_cache(device: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the length of the call, and BLKFLSBUF takes no argument.
    unsafe { ioctl::flush_buffers(device.as_raw_fd()) }.map(drop).map_err(io::Error::from)
}

/// A file's places on its device, in the order of the file.
pub fn extents(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    loop {
        let mut map = Extents {
            start,
            length: u64::MAX - start,
            flags: MAP_SYNC,
            mapped: 0,
            room: 64,
            reserved: 0,
            extents: [Extent::default(); 64],
        };
        // SAFETY: the argument has the layout of `struct fiemap` followed by as many extents as it
        // says there is room for, and lives for the length of the call.
        unsafe { ioctl::map_extents(file.as_raw_fd(), &raw mut map) }?;
        let mapped = map.extents.get(..map.mapped as usize).unwrap_or_default();
        for extent in mapped.iter().filter(|e| e.flags & EXTENT_UNKNOWN == 0) {
            ranges.push(extent.physical..extent.physical + extent.length);
        }
        match mapped.last() {
            Some(last) if last.flags & EXTENT_LAST == 0 => start = last.logical + last.length,
            _ => return Ok(ranges),
        }
    }
}
