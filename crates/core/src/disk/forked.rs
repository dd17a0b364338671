//! A child of a fork has none of the files that its parent had open: locks belong to the open file, which the two would share,
//! so a child that lives on would keep the locks of a parent that has closed its database, or died.
//!
//! What is open is noted here. Whoever watches for forks ([`before`] and its like, for `pthread_atfork`) has the child put
//! nothing in the place of each file and each mapping, before anything else runs in it. Descriptors and addresses stay
//! taken: what still refers to them gets errors and zeros, and closes nothing that is somebody else's by then (rule
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    File(RawFd),
    /// Address and length.
    Map(usize, usize),
}

/// What is open. No lock that sleeps: a fork may find it taken, and the child has nobody who would wake it.
struct OpenFiles {
    taken: AtomicBool,
    held: UnsafeCell<Vec<Held>>,
}

// SAFETY: the list is only touched by who has taken the lock.
unsafe impl Sync for OpenFiles {}

static OPEN: OpenFiles = OpenFiles { taken: AtomicBool::new(false), held: UnsafeCell::new(Vec::new()) };

/// While it lives, nobody forks.
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

    /// Memory of a file that was mapped under this lock.
    pub(super) fn mapped(&mut self, at: usize, len: usize) {
        self.held().push(Held::Map(at, len));
    }

    /// Memory that is about to be unmapped under this lock.
    pub(super) fn unmapped(&mut self, at: usize, len: usize) {
        self.forget(Held::Map(at, len));
    }
}

impl Drop for NoFork {
    fn drop(&mut self) {
        in_parent();
    }
}

/// An open file that no child of a fork keeps.
#[derive(Debug)]
pub(super) struct ForkSafeFile(ManuallyDrop<File>);

impl ForkSafeFile {
    /// What `open` opens. Nobody forks meanwhile.
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
        // SAFETY: this is the last that happens to the file here.
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

/// To be called before a fork.
pub fn before() {
    while OPEN.taken.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// To be called in the parent after a fork.
pub fn in_parent() {
    OPEN.taken.store(false, Ordering::Release);
}

/// To be called in the child of a fork: gives up what the parent has open. Calls nothing but the system.
pub fn in_child() {
    // SAFETY: `before` has taken the lock, and this thread is the only one.
    let held = unsafe { &mut *OPEN.held.get() };
    // SAFETY: takes numbers. Reads and writes of such a file at a position fail.
    let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    for one in held.iter() {
        match *one {
            Held::File(file) if nothing >= 0 => {
                // SAFETY: the number is that of a file of ours, which nobody in this process uses any more.
                unsafe { libc::dup3(nothing, file, libc::O_CLOEXEC) };
            }
            Held::File(_) => {}
            Held::Map(at, len) => {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                // SAFETY: replaces a mapping of ours, which holds atomics and nothing else, by one as large of zeros.
                unsafe { libc::mmap(at as *mut c_void, len, access, flags, -1, 0) };
            }
        }
    }
    held.clear();
    if nothing >= 0 {
        // SAFETY: it is this function's.
        unsafe { libc::close(nothing) };
    }
    in_parent();
}
