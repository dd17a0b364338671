//! The questions that a measurement asks the operating system, and the calls that it takes beside
//! those of its engines.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

pub use system::{
    DURABLE_WRITE, computer, device_number, flush, forget_pages, free_bytes, may_mount, reserve, source_number,
    write_durable, written_bytes,
};

use std::path::PathBuf;

/// The file system that holds a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: PathBuf,
    pub fs_type: String,
    pub source: String,
    /// None where the system does not tell them.
    pub options: Vec<String>,
}

/// The computer and its system. `None` is unknown.
#[derive(Clone, Debug, Default)]
pub struct Computer {
    pub system: &'static str,
    /// The version of its kernel.
    pub kernel: Option<String>,
    pub cpu_model: Option<String>,
    pub cpu_governor: Option<String>,
    pub memory_bytes: Option<u64>,
}
