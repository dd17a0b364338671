//! The device of a system that has no loop devices over FUSE: none ever starts.

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, bail};

use crate::options::DeviceOptions;
use crate::trace::{Event, Region, Trace};

const WHY: &str = "a block device in user space needs Linux, with FUSE and loop devices";

/// The reason why no device can start here.
pub fn unavailable() -> Option<String> {
    Some(WHY.to_owned())
}

/// Mounts of the calling thread's own: no system but Linux has them.
pub fn own_mounts() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A running device.
pub struct Device(Infallible);

impl Device {
    /// Refused, with the reason.
    pub fn start(_options: DeviceOptions) -> Result<Device> {
        bail!(WHY)
    }

    /// Where its file system is mounted.
    pub fn mountpoint(&self) -> &Path {
        match self.0 {}
    }

    /// The number of requests so far.
    pub fn position(&self) -> usize {
        match self.0 {}
    }

    /// These requests.
    pub fn events(&self, _range: Range<usize>) -> Vec<Event> {
        match self.0 {}
    }

    /// All requests.
    pub fn trace(&self) -> Trace {
        match self.0 {}
    }

    /// The places of its files.
    pub fn regions(&self) -> Result<Vec<Region>> {
        match self.0 {}
    }
}
