//! Processes as Linux and Windows have them: how one is killed, stopped and forked.

#[cfg(unix)]
mod forked;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

#[cfg(unix)]
pub use forked::{bystander, start as fork};
pub use system::{FORKS, Forked, STOPS, die, end_after, go_on, reap, stop, was_killed};
#[cfg(windows)]
pub use windows::fork;
