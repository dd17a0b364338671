//! Makes and mounts the file systems on the device.

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use nix::mount::MsFlags;

use crate::f2fs;
use crate::image::Image;
use crate::trace::Trace;

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
}

impl FileSystem {
    /// Every file system.
    pub const ALL: [FileSystem; 6] = [
        FileSystem::Ext4Ordered,
        FileSystem::Ext4Writeback,
        FileSystem::Ext4Journal,
        FileSystem::Xfs,
        FileSystem::Btrfs,
        FileSystem::F2fs,
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
        }
    }

    /// The kernel's name for it.
    pub fn kind(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered | FileSystem::Ext4Writeback | FileSystem::Ext4Journal => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
            FileSystem::F2fs => "f2fs",
        }
    }

    /// Smallest device for `mkfs`, with some room.
    pub fn size_bytes_min(self) -> u64 {
        match self.kind() {
            "ext4" => 32 << 20,
            "xfs" => 320 << 20,
            "f2fs" => 128 << 20,
            _ => 160 << 20,
        }
    }

    /// The mount options besides `noatime`.
    pub fn mount_options(self) -> &'static str {
        match self {
            FileSystem::Ext4Ordered => "data=ordered",
            FileSystem::Ext4Writeback => "data=writeback",
            FileSystem::Ext4Journal => "data=journal",
            FileSystem::Xfs | FileSystem::Btrfs | FileSystem::F2fs => "",
        }
    }

    /// Ranges written whole even by a device with a smaller atomic unit: the superblock, which is
    /// overwritten in place under one checksum; if torn, only a repair program helps. F2FS needs
    /// one of its two, but all other blocks of its own (`f2fs::own_blocks`). `base` is the image
    /// before `trace`.
    pub fn whole(self, base: &Image, trace: &Trace) -> Vec<Range<u64>> {
        let superblock = match self.kind() {
            "ext4" => 0..4096,
            "xfs" => 0..512,
            "f2fs" => return f2fs::own_blocks(base, trace),
            _ => 65536..69632,
        };
        std::iter::once(superblock).collect()
    }

    /// The reason why it cannot be used here.
    pub fn unavailable(self) -> Option<String> {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !known.lines().any(|line| line.trim() == self.kind()) {
            return Some(format!("this kernel has no {} (or has not loaded it)", self.kind()));
        }
        self.unmakeable()
    }

    /// The reason why it cannot be made here.
    pub fn unmakeable(self) -> Option<String> {
        let program = format!("mkfs.{}", self.kind());
        let package = self.package();
        tool(&program).err().map(|_| format!("there is no {program} here: install {package}"))
    }

    /// Debian's package with `mkfs`.
    pub(crate) fn package(self) -> &'static str {
        match self.kind() {
            "ext4" => "e2fsprogs",
            "xfs" => "xfsprogs",
            "f2fs" => "f2fs-tools",
            _ => "btrfs-progs",
        }
    }

    /// Formats a block device. `more` are further arguments of `mkfs`.
    pub fn format(self, device: &Path, more: &[String]) -> Result<()> {
        // The trace shall show only the workload: no background thread writes later, and nothing is
        // discarded. On a small device, ext4 would take blocks of 1 KiB.
        let arguments: &[&str] = match self.kind() {
            "ext4" => &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"],
            "f2fs" => &["-q", "-f", "-t", "0"],
            _ => &["-q", "-f", "-K"],
        };
        run(Command::new(tool(&format!("mkfs.{}", self.kind()))?).args(arguments).args(more).arg(device))?;
        Ok(())
    }

    /// The kernel's error is passed on: after a power cut it is a finding.
    pub fn mount(self, device: &Path, at: &Path) -> nix::Result<()> {
        nix::mount::mount(Some(device), at, Some(self.kind()), MsFlags::MS_NOATIME, Some(self.mount_options()))
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

/// `/sbin` is not on every user's path.
pub(crate) fn tool(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(name)).find(|file| file.is_file()).with_context(|| format!("{name} is not installed"))
}

/// Returns standard output; an error contains standard error.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        let program = command.get_program().display();
        bail!("{program} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
