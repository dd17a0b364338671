//! The control socket of a process that ships many databases. It answers those requests of
//! Litestream's that mean the same here.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{Listening, ask, listen};
#[cfg(windows)]
pub use windows::{Listening, ask, listen};

use std::path::PathBuf;

/// Where a process listens, and who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    /// The socket.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
}
