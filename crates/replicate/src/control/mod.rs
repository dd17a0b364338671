//! The control socket of a process that ships many databases. It answers those requests of
//! Litestream's that mean the same here.

mod http;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{ask, listen};
#[cfg(windows)]
pub use windows::{ask, listen};

use crate::report::{Level, say};
use std::fs;
use std::path::{Path, PathBuf};

/// Where a process listens, and who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    /// The socket.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
}

/// The file at which a process listens; removed when dropped.
pub struct Listening(PathBuf);

impl Drop for Listening {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

fn tell(path: &Path) {
    let path = path.display().to_string();
    say(Level::Info, "control", &[("socket", path.as_str().into())], &format!("control socket at {path}"));
}
