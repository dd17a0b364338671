//! A block device in user space: a loop device on a file of a FUSE file system. It records every
//! write and flush, can be as slow as a class of flash, and gives the image that a power cut at any
//! recorded point could have left.
//!
//! ```no_run
//! use onewrite_device::{Device, DeviceOptions, FileSystem, Profile};
//!
//! # fn main() -> anyhow::Result<()> {
//! let device = Device::start(DeviceOptions {
//!     profile: Profile::Emmc,
//!     file_system: Some(FileSystem::Ext4Ordered),
//!     size_bytes: 256 << 20,
//!     ..DeviceOptions::default()
//! })?;
//! let before = device.position();
//! std::fs::write(device.mountpoint().join("file"), "bytes")?;
//! let summary = device.trace().summary(before..device.position(), &[]);
//! println!("{} bytes, {} flushes", summary.write_bytes, summary.flushes);
//! # Ok(())
//! # }
//! ```
//!
//! It needs root, `/dev/fuse` and loop devices: [`unavailable`] names the missing one.

mod cut;
mod device;
mod f2fs;
mod file_system;
mod fs;
mod image;
mod profile;
mod regions;
mod sys;
mod trace;
pub mod vm;

pub use cut::{Kept, PowerCuts};
pub use device::{Device, DeviceOptions, own_mounts, unavailable};
pub use file_system::FileSystem;
pub use image::Image;
pub use profile::{Profile, Queue, Timing, time_ns};
pub use regions::{JOURNAL, METADATA, regions};
pub use trace::{Event, Operation, Region, Summary, Trace, Volume, split};
