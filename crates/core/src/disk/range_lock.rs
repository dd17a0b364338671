//! Locks on bytes of a file that belong to the open file.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::libc::{self, F_OFD_GETLK, F_OFD_SETLK, c_int};
use rustix::io::Errno;

pub use own::RangeLock;

#[cfg(not(all(any(target_os = "linux", target_os = "android"), target_pointer_width = "32")))]
mod own {
    pub use super::libc::flock as RangeLock;
    use super::*;

    pub unsafe fn call(file: c_int, call: c_int, lock: *mut RangeLock) -> c_int {
        // SAFETY: the caller's.
        unsafe { libc::fcntl(file, call, lock) }
    }
}

/// The kernel's own call, with 64 bits for a place in the file: which structure `fcntl` takes
/// differs among C libraries and versions of them.
#[cfg(all(any(target_os = "linux", target_os = "android"), target_pointer_width = "32"))]
mod own {
    pub use super::libc::flock64 as RangeLock;
    use super::*;

    pub unsafe fn call(file: c_int, call: c_int, lock: *mut RangeLock) -> c_int {
        // SAFETY: the caller's.
        unsafe { libc::syscall(libc::SYS_fcntl64, file, call, lock) as c_int }
    }
}

pub fn set(file: &File, lock: &RangeLock) -> rustix::io::Result<()> {
    // SAFETY: the lock lives, and the call does not write it.
    done(unsafe { own::call(file.as_raw_fd(), F_OFD_SETLK, std::ptr::from_ref(lock).cast_mut()) })
}

/// `lock` becomes one that is in its way, or of the type `F_UNLCK`.
pub fn find(file: &File, lock: &mut RangeLock) -> rustix::io::Result<()> {
    // SAFETY: the lock lives, and the call has it to itself.
    done(unsafe { own::call(file.as_raw_fd(), F_OFD_GETLK, lock) })
}

fn done(result: c_int) -> rustix::io::Result<()> {
    match result {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}
