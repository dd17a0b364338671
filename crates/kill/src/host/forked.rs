//! Forks a client. The child goes on with a life of its own, and must not use the connections of
//! its parent.

#![allow(unsafe_code)]

use std::sync::RwLock;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

/// How long a fork waits for the other threads to be between two statements.
const WAITS: Duration = Duration::from_millis(10);

/// Forks while no other thread is in SQLite, since the child would have its locks for ever: threads
/// hold `gate` there. The child does `life` and ends with its result. `None` if the others are
/// busy, or there is no memory.
pub fn start(gate: &RwLock<()>, life: impl FnOnce() -> i32) -> Option<Pid> {
    let until = Instant::now() + WAITS;
    let _alone = loop {
        match gate.try_write() {
            Ok(alone) => break alone,
            Err(_) if Instant::now() > until => return None,
            Err(_) => std::thread::yield_now(),
        }
    };
    // SAFETY: no other thread is in SQLite or in a call of ours that holds a lock; the C library
    // keeps its own usable in the child.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => Some(child),
        Err(_) => None,
        Ok(ForkResult::Child) => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life)).unwrap_or(101);
            // SAFETY: ends this process at once, without the destructors of the parent's values on
            // the stack.
            unsafe { libc::_exit(code) }
        }
    }
}

/// Forks while other threads are anywhere. The child has all files of its parent, uses none, and
/// ends after `lives`, or with its parent: it may have the locks of a killed one.
pub fn bystander(lives: Duration) -> nix::Result<()> {
    let parent = getpid();
    // SAFETY: the child sleeps and ends, and takes no lock that another thread may have held.
    match unsafe { fork() }? {
        ForkResult::Child => {
            if set_pdeathsig(Signal::SIGKILL).is_ok() && getppid() == parent {
                std::thread::sleep(lives);
            }
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            std::thread::spawn(move || waitpid(child, None));
            Ok(())
        }
    }
}
