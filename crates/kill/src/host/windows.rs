//! Windows: a process is killed by TerminateProcess, and neither stopped nor forked.

use std::convert::Infallible;
use std::process::{Child, ExitStatus};
use std::sync::RwLock;

use anyhow::{Result, bail};

/// Whether a process can be stopped and let go on.
pub const STOPS: bool = false;
/// Whether a process can fork.
pub const FORKS: bool = false;

/// None is ever forked.
pub type Forked = Infallible;

/// Whether it ended by being killed: by the code that the standard library gives to
/// TerminateProcess, which is also that of an error, so only if it was `asked` to end.
pub fn was_killed(status: ExitStatus, asked: bool) -> bool {
    asked && status.code() == Some(1)
}

pub fn stop(_child: &Child) -> Result<()> {
    bail!("Windows stops no process")
}

pub fn go_on(_child: &Child) -> Result<()> {
    bail!("Windows stops no process")
}

/// Ends this process at once, as a crash.
pub fn die() -> Result<()> {
    std::process::abort()
}

pub fn end_after(_seconds: u32) {}

pub fn fork(_gate: &RwLock<()>, _life: impl FnOnce() -> i32) -> Option<Forked> {
    None
}

pub fn reap(child: Forked) -> Result<()> {
    match child {}
}
