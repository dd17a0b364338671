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
//! It needs root, `/dev/fuse` and loop devices: [`unavailable`] names the missing one. On other
//! systems than Linux there is the model alone: no device starts.

mod cut;
#[cfg(target_os = "linux")]
mod device;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod f2fs;
mod file_system;
#[cfg(target_os = "linux")]
mod fs;
mod image;
#[cfg(target_os = "linux")]
mod mkfs;
mod options;
mod profile;
#[cfg(target_os = "linux")]
mod regions;
#[cfg(target_os = "linux")]
mod sys;
mod trace;
#[cfg(target_os = "linux")]
pub mod vm;

pub use cut::{Kept, PowerCuts};
#[cfg(target_os = "linux")]
pub use device::{Device, own_mounts, unavailable};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{Device, own_mounts, unavailable};
pub use file_system::FileSystem;
pub use image::Image;
pub use options::DeviceOptions;
pub use profile::{Profile, Queue, Timing, time_ns};
#[cfg(target_os = "linux")]
pub use regions::regions;
pub use trace::{Event, JOURNAL, METADATA, Operation, Region, Summary, Trace, Volume, split};
