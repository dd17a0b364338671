//! The file systems that a device may have, by name.

use std::fmt;
use std::str::FromStr;

/// A file system with its journal mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, `data=ordered`: data goes before the metadata that names it.
    Ext4Ordered,
    /// ext4, `data=writeback`: only metadata is ordered.
    Ext4Writeback,
    /// ext4, `data=journal`: data is journaled too.
    Ext4Journal,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// F2FS.
    F2fs,
    /// FAT32 with long names.
    Vfat,
    /// exFAT.
    Exfat,
}

impl FileSystem {
    /// Every file system.
    pub const ALL: [FileSystem; 8] = [
        FileSystem::Ext4Ordered,
        FileSystem::Ext4Writeback,
        FileSystem::Ext4Journal,
        FileSystem::Xfs,
        FileSystem::Btrfs,
        FileSystem::F2fs,
        FileSystem::Vfat,
        FileSystem::Exfat,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered => "ext4-ordered",
            FileSystem::Ext4Writeback => "ext4-writeback",
            FileSystem::Ext4Journal => "ext4-journal",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::F2fs => "f2fs",
            FileSystem::Vfat => "vfat",
            FileSystem::Exfat => "exfat",
        }
    }

    /// The kernel's name for it.
    pub fn kind(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered | FileSystem::Ext4Writeback | FileSystem::Ext4Journal => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::F2fs => "f2fs",
            FileSystem::Vfat => "vfat",
            FileSystem::Exfat => "exfat",
        }
    }

    /// The kernel modules that a mount needs by name: FAT has two tables of characters.
    pub fn modules(self) -> impl Iterator<Item = &'static str> {
        let tables: &[&str] = if self == FileSystem::Vfat { &["nls_cp437", "nls_ascii"] } else { &[] };
        std::iter::once(self.kind()).chain(tables.iter().copied())
    }

    /// exFAT cannot. FAT writes the two entries at different times, and a power cut may leave both
    /// names with the same file.
    pub fn exchanges_names(self) -> bool {
        !matches!(self, FileSystem::Vfat | FileSystem::Exfat)
    }

    /// Smallest device for `mkfs`, with some room.
    pub fn size_bytes_min(self) -> u64 {
        match self.kind() {
            "ext4" => 32 << 20,
            "xfs" => 320 << 20,
            "f2fs" => 128 << 20,
            "vfat" => 36 << 20,
            "exfat" => 32 << 20,
            _ => 160 << 20,
        }
    }

    /// The mount options besides `noatime`.
    pub fn mount_options(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered => "data=ordered",
            FileSystem::Ext4Writeback => "data=writeback",
            FileSystem::Ext4Journal => "data=journal",
            _ => "",
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = String;

    /// `ext4` alone is its default mode.
    fn from_str(text: &str) -> Result<FileSystem, String> {
        let text = if text == "ext4" { "ext4-ordered" } else { text };
        FileSystem::ALL.into_iter().find(|fs| fs.name() == text).ok_or_else(|| {
            let names = FileSystem::ALL.map(FileSystem::name).join(", ");
            format!("no file system is called {text:?}: choose {names}")
        })
    }
}
