//! Counting the write and the sync system calls of an engine: on Linux alone.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
use elsewhere as system;
#[cfg(target_os = "linux")]
use linux as system;

pub use system::{METHOD, count, count_within, kill_before_write, offer_to_be_traced};

use crate::numbers::measure::Probe;
use anyhow::Result;
use std::collections::BTreeMap;

/// Calls between the marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub writes: u64,
    pub syncs: u64,
    /// Bytes written to files that are a journal or a log by their names.
    pub log_bytes: u64,
    /// Bytes written to other files.
    pub database_bytes: u64,
    /// By name, for the card.
    pub by_name: BTreeMap<String, u64>,
    /// The transactions they served.
    pub transactions: u64,
}

/// In the child: marks the first and the last measured transaction for the tracer.
pub struct Marks;

impl Probe for Marks {
    fn begin(&mut self) -> Result<()> {
        system::mark()
    }
    fn end(&mut self) -> Result<()> {
        system::mark()
    }
}
