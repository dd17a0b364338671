//! F2FS's own blocks: everything before its main area, which the superblock locates, and nodes
//! within it.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::image::Image;
use crate::trace::{Operation, Trace};

const MAGIC: u64 = 0xf2f5_2010;
/// Offset of the first superblock.
const SUPERBLOCK: u64 = 1024;
/// A node's footer is at its end.
const BLOCK_BYTES: usize = 4096;
const CHECKPOINTS_MAX: u64 = 1 << 20;

/// Offsets from the superblock.
struct Layout {
    segment_bytes: u64,
    checkpoints: u64,
    main: u64,
}

impl Layout {
    fn of(superblock: &[u8; 512]) -> Option<Layout> {
        let field = |at: usize| little_endian(superblock, at, 4);
        let known = field(0)? == MAGIC && field(16)? == 12 && field(20)? < 20;
        known.then_some(Layout {
            segment_bytes: (BLOCK_BYTES as u64) << field(20)?,
            checkpoints: field(76)? * BLOCK_BYTES as u64,
            main: field(92)? * BLOCK_BYTES as u64,
        })
    }
}

fn little_endian(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    Some(bytes.get(at..at + len)?.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The area before the main one, and the main area's segments for nodes: types 3 to 5 of 0 to 5.
pub fn metadata(device: &Path) -> Result<Vec<Range<u64>>> {
    let mut superblock = [0; 512];
    File::open(device)?.read_exact_at(&mut superblock, SUPERBLOCK)?;
    let layout = Layout::of(&superblock).with_context(|| format!("{} has no F2FS", device.display()))?;
    let name = device.file_name().context("a device without a name")?;
    let path = Path::new("/proc/fs/f2fs").join(name).join("segment_info");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let types = types(&text);
    ensure!(!types.is_empty(), "{} lists no segment", path.display());
    let nodes = types.into_iter().zip(0..).filter(|(kind, _)| *kind >= 3);
    let start = |segment: u64| layout.main + segment * layout.segment_bytes;
    Ok(std::iter::once(0..layout.main).chain(nodes.map(|(_, segment)| start(segment)..start(segment + 1))).collect())
}

/// Reads lines of ten such as `0    3|12  0|0   ...`.
fn types(text: &str) -> Vec<u8> {
    let words = text.lines().skip_while(|line| !line.starts_with('0')).flat_map(str::split_ascii_whitespace);
    words.filter_map(|word| word.split_once('|')?.0.parse().ok()).collect()
}

/// F2FS's own written blocks; none without F2FS in `base`. It needs them whole: recovery believes a
/// node with an `fsync` mark in its footer, and no checksum covers the rest of the node.
pub fn own_blocks(base: &Image, trace: &Trace) -> Vec<Range<u64>> {
    let mut superblock = [0; 512];
    base.read(SUPERBLOCK, &mut superblock);
    let Some(layout) = Layout::of(&superblock) else { return Vec::new() };
    let version = |pack: u64| {
        let mut bytes = [0; 8];
        base.read(layout.checkpoints + pack * layout.segment_bytes, &mut bytes);
        u64::from_le_bytes(bytes) & 0xffff_ffff
    };
    let newest = version(0).max(version(1));
    let mut blocks = BTreeSet::new();
    for event in &trace.events {
        let Operation::Write { offset, data: Some(data), .. } = &event.operation else { continue };
        for (block, at) in data.chunks(BLOCK_BYTES).zip((*offset..).step_by(BLOCK_BYTES)) {
            if at < layout.main || is_node(block, newest) {
                blocks.insert(at);
            }
        }
    }
    blocks.into_iter().map(|at| at..at + BLOCK_BYTES as u64).collect()
}

/// Whether it ends with a node's footer: its number, its inode's, marks, the checkpoint's version
/// (32 bits of it; the others may be a checksum) and the next node's address.
fn is_node(block: &[u8], newest: u64) -> bool {
    let field = |at: usize| little_endian(block, BLOCK_BYTES - 24 + at, 4).unwrap_or(0);
    block.len() == BLOCK_BYTES
        && field(0) > 0
        && field(4) > 0
        && (newest.saturating_sub(CHECKPOINTS_MAX)..newest + CHECKPOINTS_MAX).contains(&field(12))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Event;

    #[test]
    fn types_of_segments_are_read_from_the_kernels_list() {
        let text = "format: segment_type|valid_blocks\nsegment_type(0:HD, 1:WD, 2:CD, 3:HN, 4:WN, 5:CN)\n\
                    0         3|1   4|0   0|512 \n10        5|0   \n";
        assert_eq!(types(text), [3, 4, 0, 5]);
    }

    #[test]
    fn nodes_and_the_blocks_before_the_main_area_are_its_own() {
        let block = BLOCK_BYTES as u64;
        let mut superblock = [0; 512];
        for (at, value) in [(0, MAGIC), (16, 12), (20, 9), (76, 2), (92, 40)] {
            superblock[at..at + 4].copy_from_slice(&value.to_le_bytes()[..4]);
        }
        let mut base = Image::new(1 << 22);
        base.write(SUPERBLOCK, &superblock);
        base.write(2 * block, &0x1234_5678_u64.to_le_bytes());
        let mut node = [7; BLOCK_BYTES];
        node[BLOCK_BYTES - 12..BLOCK_BYTES - 8].copy_from_slice(&0x1234_5679_u32.to_le_bytes());
        let data = [[7; BLOCK_BYTES], node].concat();
        let write = |offset, data: Vec<u8>| {
            let operation = Operation::Write { offset, len: data.len() as u64, data: Some(data.into()) };
            Event { arrived_ns: 0, done_ns: 0, operation }
        };
        let trace =
            Trace { events: vec![write(50 * block, data), write(3 * block, vec![1; 4096])], ..Trace::default() };
        assert_eq!(own_blocks(&base, &trace), [3 * block..4 * block, 51 * block..52 * block]);
        assert_eq!(own_blocks(&Image::new(1 << 22), &trace), []);
    }
}
