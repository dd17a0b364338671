//! The control socket of a process that ships many databases. It answers those requests of
//! Litestream's that mean the same here.

mod http;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{Listening, ask, listen};
#[cfg(windows)]
pub use windows::{Listening, ask, listen};

use crate::report::{Level, say};
use std::path::{Path, PathBuf};

/// Where a process listens, and who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    /// The socket.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
}

fn tell(path: &Path) {
    let path = path.display().to_string();
    say(Level::Info, "control", &[("socket", path.as_str().into())], &format!("control socket at {path}"));
}
