//! Locates the files of a mounted file system and its journal on the device.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::device::Device;
use crate::f2fs;
use crate::file_system::FileSystem;
use crate::mkfs::{run, tool};
use crate::sys;
use crate::trace::{JOURNAL, METADATA, Region};

impl Device {
    /// [`regions`] of its mounted file system.
    pub fn regions(&self) -> Result<Vec<Region>> {
        self.file_system().map_or(Ok(Vec::new()), |kind| regions(kind, self.block_path(), self.mountpoint()))
    }
}

/// The present places of the file system's journal, of its metadata, and of each file by its path.
/// Metadata are those of ext4 without directories, and those of F2FS without directories, whose
/// places name their content. A file that moves or goes takes its region with it. btrfs has none:
/// it has addresses of its own. FAT and exFAT do not tell any.
pub fn regions(file_system: FileSystem, block_path: &Path, mountpoint: &Path) -> Result<Vec<Region>> {
    let (journal, mut metadata) = match file_system.kind() {
        "btrfs" | "vfat" | "exfat" => return Ok(Vec::new()),
        "xfs" => (xfs_log(block_path)?, Vec::new()),
        "f2fs" => (Vec::new(), f2fs::metadata(block_path)?),
        _ => {
            let block_bytes = std::fs::metadata(mountpoint)?.blksize();
            (ext4_journal(block_path, block_bytes)?, ext4_metadata(block_path, block_bytes)?)
        }
    };
    let mut files = Vec::new();
    let mut directories = vec![mountpoint.to_owned()];
    while let Some(directory) = directories.pop() {
        if file_system.kind() == "ext4" {
            metadata.extend(extents(&directory)?);
        }
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                files.push((path.strip_prefix(mountpoint)?.to_string_lossy().into_owned(), path));
            }
        }
    }
    files.sort();
    let own = [(JOURNAL, journal), (METADATA, metadata)].into_iter().filter(|(_, ranges)| !ranges.is_empty());
    let mut regions: Vec<Region> = own.map(|(name, ranges)| Region { name: name.to_owned(), ranges }).collect();
    for (name, path) in files {
        regions.push(Region { name, ranges: extents(&path)? });
    }
    Ok(regions)
}

fn extents(path: &Path) -> Result<Vec<Range<u64>>> {
    let file = File::open(path)?;
    sys::extents(&file).with_context(|| format!("the file system does not say where {} lies", path.display()))
}

/// The journal's inode has number 8.
fn ext4_journal(device: &Path, block_bytes: u64) -> Result<Vec<Range<u64>>> {
    let text = run(Command::new(tool("debugfs")?).args(["-R", "blocks <8>"]).arg(device))?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in text.split_ascii_whitespace().filter_map(|word| word.parse::<u64>().ok()) {
        let start = block * block_bytes;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end += block_bytes,
            _ => ranges.push(start..start + block_bytes),
        }
    }
    Ok(ranges)
}

/// `dumpe2fs` lists the places of the groups' metadata: `Inode table at 73-584 (+73)`.
fn ext4_metadata(device: &Path, block_bytes: u64) -> Result<Vec<Range<u64>>> {
    let text = run(Command::new(tool("dumpe2fs")?).arg(device))?;
    Ok(ext4_places(&text).into_iter().map(|blocks| blocks.start * block_bytes..blocks.end * block_bytes).collect())
}

/// The blocks that follow ` at `.
fn ext4_places(text: &str) -> Vec<Range<u64>> {
    let groups = text.lines().skip_while(|line| !line.starts_with("Group 0:"));
    let places = groups.flat_map(|line| line.split(" at ").skip(1));
    let range = |place: &str| {
        let word = place.split([' ', ',']).next()?;
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some(first.parse::<u64>().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
    };
    places.filter_map(range).collect()
}

/// The log's address in the superblock has the allocation group in its upper part.
fn xfs_log(device: &Path) -> Result<Vec<Range<u64>>> {
    let mut superblock = [0; 512];
    File::open(device)?.read_exact_at(&mut superblock, 0)?;
    let number =
        |at: usize, len: usize| superblock[at..at + len].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (block_bytes, start, group_blocks, log_blocks) = (number(4, 4), number(48, 8), number(84, 4), number(96, 4));
    let group_bits = number(124, 1).min(63);
    let block = (start >> group_bits) * group_blocks + (start & ((1 << group_bits) - 1));
    Ok(std::iter::once(block * block_bytes..(block + log_blocks) * block_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_metadata_are_read_from_the_list_of_groups() {
        let text = "Journal inode: 8 at 5\n\nGroup 0: (Blocks 0-32767) csum 0x10ce\n  \
                    Primary superblock at 0, Group descriptors at 1-1\n  Inode bitmap at 69 (+69), csum 0xff\n  \
                    Inode table at 73-584 (+73)\n  Free blocks: 2127-32767\n";
        assert_eq!(ext4_places(text), [0..1, 1..2, 69..70, 73..585]);
    }
}
