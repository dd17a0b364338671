//! POSIX.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, alarm};

/// Whether a process can be stopped and let go on.
pub const STOPS: bool = true;
/// Whether a process can fork.
pub const FORKS: bool = true;

/// The child of a fork.
pub type Forked = Pid;

/// Whether it ended by being killed; the signal tells, whether or not it was `asked` to.
pub fn was_killed(status: ExitStatus, _asked: bool) -> bool {
    status.signal() == Some(Signal::SIGKILL as i32)
}

pub fn stop(child: &Child) -> Result<()> {
    Ok(kill(pid(child)?, Signal::SIGSTOP)?)
}

pub fn go_on(child: &Child) -> Result<()> {
    Ok(kill(pid(child)?, Signal::SIGCONT)?)
}

fn pid(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(child.id())?))
}

/// Kills this process.
pub fn die() -> Result<()> {
    Ok(kill(Pid::this(), Signal::SIGKILL)?)
}

/// Ends this process if it still lives then.
pub fn end_after(seconds: u32) {
    alarm::set(seconds);
}

/// Waits until the child has ended, in any way.
pub fn reap(child: Forked) -> Result<()> {
    waitpid(child, None)?;
    Ok(())
}
