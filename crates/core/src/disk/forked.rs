//! A forked child keeps none of its parent's files: locks belong to the open file, so it would keep
//! the locks of a parent that has closed or died.
//!
//! The `pthread_atfork` handlers ([`before`] and its like) replace all open files and mappings with
//! nothing. Descriptors and addresses stay taken, so later uses close no other file (rule
//! OneWriter).

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;

use crate::base::clock;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    File(RawFd),
    /// Address and length.
    Map(usize, usize),
}

/// A spinning lock: no thread of a child would wake a sleeper.
struct OpenFiles {
    taken: AtomicBool,
    held: UnsafeCell<Vec<Held>>,
}

// SAFETY: the list is only touched by the thread that has taken the lock.
unsafe impl Sync for OpenFiles {}

static OPEN: OpenFiles = OpenFiles { taken: AtomicBool::new(false), held: UnsafeCell::new(Vec::new()) };

/// Excludes forks while it lives.
pub(super) struct NoFork(());

impl NoFork {
    pub(super) fn new() -> NoFork {
        before();
        NoFork(())
    }

    fn held(&mut self) -> &mut Vec<Held> {
        // SAFETY: the lock is taken, by this value alone.
        unsafe { &mut *OPEN.held.get() }
    }

    fn forget(&mut self, gone: Held) {
        if let Some(at) = self.held().iter().position(|held| *held == gone) {
            self.held().swap_remove(at);
        }
    }

    pub(super) fn mapped(&mut self, at: usize, len: usize) {
        self.held().push(Held::Map(at, len));
    }

    pub(super) fn unmapped(&mut self, at: usize, len: usize) {
        self.forget(Held::Map(at, len));
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        in_parent();
    }
}

#[derive(Debug)]
pub(super) struct ForkSafeFile(ManuallyDrop<File>);

impl ForkSafeFile {
    /// No fork happens during `open`.
    pub(super) fn by(open: impl FnOnce() -> io::Result<File>) -> io::Result<ForkSafeFile> {
        let mut no_fork = NoFork::new();
        let file = open()?;
        no_fork.held().push(Held::File(file.as_raw_fd()));
        Ok(ForkSafeFile(ManuallyDrop::new(file)))
    }
}

impl Drop for ForkSafeFile {
    fn drop(&mut self) {
        let mut no_fork = NoFork::new();
        no_fork.forget(Held::File(self.0.as_raw_fd()));
        // SAFETY: this is the file's last use here.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl Deref for ForkSafeFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl AsFd for ForkSafeFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Call before a fork.
pub fn before() {
    while OPEN.taken.swap(true, Ordering::Acquire) {
        clock::yield_now();
    }
}

/// Call in the parent after a fork.
pub fn in_parent() {
    OPEN.taken.store(false, Ordering::Release);
}

/// Gives up the parent's open files. Calls only the system.
pub fn in_child() {
    // SAFETY: `before` has taken the lock, and this thread is the only one.
    let held = unsafe { &mut *OPEN.held.get() };
    // Reads and writes of a pipe at a position fail.
    let mut pipe = [-1; 2];
    // SAFETY: `pipe` has room for two numbers.
    let nothing = if unsafe { libc::pipe(pipe.as_mut_ptr()) } == 0 { pipe[0] } else { -1 };
    for one in held.iter() {
        match *one {
            Held::File(file) if nothing >= 0 => {
                // SAFETY: the number is that of a file of ours, which no thread in this process
                // uses any more.
                unsafe {
                    libc::dup2(nothing, file);
                    libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC);
                }
            }
            Held::File(_) => {}
            Held::Map(at, len) => {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
                // SAFETY: replaces a mapping of ours, of atomics or never read, by one as large of
                // zeros.
                unsafe { libc::mmap(at as *mut c_void, len, access, flags, -1, 0) };
            }
        }
    }
    held.clear();
    if nothing >= 0 {
        for end in pipe {
            // SAFETY: it is this function's.
            unsafe { libc::close(end) };
        }
    }
    in_parent();
}
