//! Asking Linux to begin to write a part of a file: `sync_file_range`, which no crate wraps.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc;

/// Begins to write what is dirty in these bytes, without waiting for it. What fails is seen by the next flush: only a wait for
/// the writes would take the error from it.
pub fn begin(file: &File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: numbers alone are given to the kernel, and the descriptor is open as long as `file` is.
    let _seen_by_the_flush =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}
