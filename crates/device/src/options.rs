//! The options of a device.

use std::path::PathBuf;

use crate::file_system::FileSystem;
use crate::image::Image;
use crate::profile::{Profile, Timing};

/// Options of a device.
#[derive(Clone)]
pub struct DeviceOptions {
    /// In bytes, raised to the file system's minimum.
    pub size_bytes: u64,
    /// Logical and physical block size, 512 to 4096: the claimed atomic unit.
    pub block_bytes: u32,
    /// The device to imitate.
    pub profile: Profile,
    /// Times that replace the profile's.
    pub timing: Option<Timing>,
    /// Whether the trace keeps written bytes: power cuts need them, and they take memory.
    pub keep_data: bool,
    /// Content, zeros otherwise. Its size replaces `size_bytes`.
    pub image: Option<Image>,
    /// Mounted; made first unless there is an image.
    pub file_system: Option<FileSystem>,
    /// Further arguments of `mkfs`.
    pub mkfs_arguments: Vec<String>,
    /// Mount point; a temporary directory otherwise.
    pub mountpoint: Option<PathBuf>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            size_bytes: 64 << 20,
            block_bytes: 512,
            profile: Profile::None,
            timing: None,
            keep_data: false,
            image: None,
            file_system: None,
            mkfs_arguments: Vec::new(),
            mountpoint: None,
        }
    }
}
