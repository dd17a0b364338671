//! The library and its process: forks, other copies of itself, the log of errors, a lock of
//! threads.

#[cfg(unix)]
pub(crate) mod end;
#[cfg(windows)]
#[path = "windows/end.rs"]
pub(crate) mod end;
pub(crate) mod fork;
pub(crate) mod log;
#[cfg(unix)]
mod sink;
#[cfg(windows)]
#[path = "windows/sink.rs"]
mod sink;
pub(crate) mod taken;
pub(crate) mod version;
