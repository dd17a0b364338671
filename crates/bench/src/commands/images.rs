//! File systems on loop images, for measuring on ones that no disk of this machine has. Needs root,
//! `mount` and the file system's `mkfs`. A missing one is named, and that file system left out.

use crate::host;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Those known, by name.
pub const NAMES: [&str; 6] = ["ext4-ordered", "ext4-writeback", "ext4-journal", "xfs", "btrfs", "f2fs"];

/// A mounted file system, gone when dropped.
#[derive(Debug)]
pub struct MountedImage {
    dir: tempfile::TempDir,
}

impl MountedImage {
    /// Makes and mounts one in a temporary directory inside `parent`.
    pub fn mount(name: &str, parent: &Path, mib: u64) -> Result<MountedImage> {
        let (mkfs, options): (&[&str], &str) = match name {
            "ext4-ordered" => (&["mkfs.ext4", "-q", "-F"], "data=ordered"),
            "ext4-writeback" => (&["mkfs.ext4", "-q", "-F"], "data=writeback"),
            "ext4-journal" => (&["mkfs.ext4", "-q", "-F"], "data=journal"),
            "xfs" => (&["mkfs.xfs", "-q", "-f"], "defaults"),
            "btrfs" => (&["mkfs.btrfs", "-q", "-f"], "defaults"),
            "f2fs" => (&["mkfs.f2fs", "-q", "-f"], "defaults"),
            _ => anyhow::bail!("choose from {}", NAMES.join(", ")),
        };
        ensure!(host::may_mount(), "needs root on Linux, to mount a loop image");
        let dir = tempfile::Builder::new().prefix("onewrite-image-").tempdir_in(parent)?;
        let image = dir.path().join("image");
        // Allocated, so that the measurement does not include the growth of the image.
        let file = File::create(&image)?;
        host::reserve(&file, mib << 20).context("allocating")?;
        file.sync_all()?;
        drop(file);
        let arguments = mkfs[1..].iter().map(OsStr::new).chain([image.as_os_str()]);
        command(mkfs[0], arguments)?;
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point)?;
        let options = format!("loop,{options}");
        command("mount", [OsStr::new("-o"), options.as_ref(), image.as_os_str(), point.as_os_str()])?;
        Ok(MountedImage { dir })
    }

    pub fn point(&self) -> std::path::PathBuf {
        self.dir.path().join("mnt")
    }
}

impl Drop for MountedImage {
    fn drop(&mut self) {
        // The loop device goes with the mount.
        if let Err(e) = command("umount", [self.point().as_os_str()]) {
            eprintln!("onewrite: {e:#}");
        }
    }
}

fn command<'a>(program: &str, arguments: impl IntoIterator<Item = &'a OsStr>) -> Result<()> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("no {program} here"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.lines().next().unwrap_or("failed"));
    Ok(())
}
