//! Makes and mounts the file systems on the device.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::mount::MsFlags;

use crate::f2fs;
use crate::file_system::FileSystem;
use crate::image::Image;
use crate::trace::Trace;

impl FileSystem {
    /// Ranges written whole even by a device with a smaller atomic unit: the superblock, which is
    /// overwritten in place under one checksum; if torn, only a repair program helps. F2FS needs
    /// one of its two, but all other blocks of its own (`f2fs::own_blocks`). `base` is the image
    /// before `trace`.
    pub fn whole(self, base: &Image, trace: &Trace) -> Vec<Range<u64>> {
        let superblock = match self.kind() {
            "ext4" => 0..4096,
            "xfs" | "vfat" | "exfat" => 0..512,
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
            "vfat" => "dosfstools",
            "exfat" => "exfatprogs",
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
            "vfat" => &["-F", "32"],
            "exfat" => &[],
            _ => &["-q", "-f", "-K"],
        };
        run(Command::new(tool(&format!("mkfs.{}", self.kind()))?).args(arguments).args(more).arg(device))?;
        Ok(())
    }

    /// The content behind `fsck`, which systems run before they mount what was not unmounted.
    pub fn repaired(self, image: &Image) -> Result<Image> {
        let file = tempfile::NamedTempFile::new()?;
        image.save(file.path())?;
        let mut fsck = Command::new(tool(&format!("fsck.{}", self.kind()))?);
        let output = fsck.arg("-p").arg(file.path()).output()?;
        // 1: errors were corrected.
        if !matches!(output.status.code(), Some(0 | 1)) {
            bail!(
                "fsck.{} failed ({}): {}",
                self.kind(),
                output.status,
                String::from_utf8_lossy(&output.stdout).trim()
            );
        }
        Ok(Image::load(file.path())?)
    }

    /// The kernel's error is passed on: after a power cut it is a finding.
    pub fn mount(self, device: &Path, at: &Path) -> nix::Result<()> {
        nix::mount::mount(Some(device), at, Some(self.kind()), MsFlags::MS_NOATIME, Some(self.mount_options()))
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
