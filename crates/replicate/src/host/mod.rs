//! Calls of the operating system that Rust's standard library has for one system alone.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

pub(crate) use system::{
    HOME, computer_name, give, give_file, mark, mode_of, open_unwaiting, path_of_url, refusal, set_file_mode, set_mode,
    sync_directory, url_path, with_mode,
};
pub use system::{kill_self, read_exact_at, resolved, write_all_at};

use std::time::SystemTime;

/// Which file it is, and whether it is as it was. Each write changes the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMark {
    /// Device and inode; volume and number.
    pub(crate) identity: (u64, u64),
    pub(crate) changed: SystemTime,
    pub(crate) bytes: u64,
    /// Hard links.
    pub(crate) names: u64,
}
