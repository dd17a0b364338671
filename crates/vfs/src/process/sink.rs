//! Where lines of the log go, by POSIX.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub(crate) enum LogSink {
    StandardError,
    File(OwnedFd),
}

impl LogSink {
    pub fn standard_error() -> LogSink {
        LogSink::StandardError
    }

    /// Opens a log without waiting for the other end of a pipe. A link is followed, as
    /// `/dev/stderr` is one.
    pub fn open(path: &Path) -> io::Result<LogSink> {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file: File = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path)?;
        // SAFETY: the descriptor is open, and the answer is a new one, or -1. Below 3 the program
        // would write to it, too.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: the descriptor was just made and has no other owner.
            fd => Ok(LogSink::File(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Nothing, where the reader has no room.
    pub fn write(&self, line: &[u8]) {
        let to = match self {
            LogSink::StandardError => libc::STDERR_FILENO,
            LogSink::File(file) => file.as_raw_fd(),
        };
        // Asked, because standard error is not ours to make non-blocking.
        let mut room = libc::pollfd { fd: to, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one structure of ours, and no time to wait.
        if unsafe { libc::poll(&raw mut room, 1, 0) } != 1 {
            return;
        }
        without_broken_pipe(|| {
            // SAFETY: the bytes live across the call.
            let _lost = unsafe { libc::write(to, line.as_ptr().cast(), line.len()) };
        });
    }
}

/// Runs `write` so that a pipe without a reader is an error of it and no signal for the program.
fn without_broken_pipe(write: impl FnOnce()) {
    let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
    let (mut pending, mut before) = (pipe, pipe);
    // SAFETY: the sets are filled by the calls before they are read; the mask is this thread's, and
    // is put back.
    unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::sigemptyset(pending.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let is_ours = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 0;
        if libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr()) != 0 {
            return;
        }
        write();
        // One that came meanwhile is taken; one that waited before is the program's.
        if is_ours {
            take_pending(pipe.as_ptr());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}

/// Takes a blocked SIGPIPE, without waiting for one. It was sent to the thread that wrote, so no
/// other takes it in between. `sigtimedwait` is missing on macOS, and on Android before 6.0.
unsafe fn take_pending(signals: *const libc::sigset_t) {
    let (mut pending, mut taken) = (MaybeUninit::<libc::sigset_t>::uninit(), 0);
    // SAFETY: the set is the caller's, the other one is filled before it is read.
    unsafe {
        libc::sigemptyset(pending.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        if libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 {
            libc::sigwait(signals, &raw mut taken);
        }
    }
}
