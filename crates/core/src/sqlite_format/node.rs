//! Used parts of a SQLite page: b-tree header, cell pointers, cells, the gap between, free blocks
//! (SQLite file format, section 1.6). Cells are not parsed.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::base::layout::{be_u16, be_u32, home as at, trailer};
use crate::base::types::PageNo;

/// From here on a page number may begin like a b-tree page's type.
const AMBIGUOUS_PAGES: u32 = 0x0200_0000;
/// In the database header; nonzero with pointer maps.
const LARGEST_ROOT: usize = 52;
/// SQLite's first lock byte, on an unused page.
const PENDING_BYTE: u32 = 0x4000_0000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLayout {
    /// B-tree page header.
    pub header_at: usize,
    pub pointers: Range<usize>,
    pub content_at: usize,
    pub usable: usize,
    /// Free blocks without heads, in page order. None if SQLite would not make their chain (rule
    /// UndoLeadsHome).
    pub free: Vec<Range<usize>>,
}

/// Tells b-tree pages from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// In bytes.
    pub page_bytes: u32,
    /// In pages.
    pub page_count: u32,
    /// Pointer maps exist.
    pub pointer_maps: bool,
    /// Per page, with the trailer.
    pub reserved_bytes: u32,
}

impl Shape {
    /// By this header.
    pub fn new(page_bytes: u32, page_count: u32, header: &[u8]) -> Shape {
        let pointer_maps = be_u32(header, LARGEST_ROOT).unwrap_or(0) != 0;
        // An empty database's header says nothing.
        let reserved_bytes = header.get(at::RESERVED).map_or(0, |n| u32::from(*n)).max(trailer::BYTES as u32);
        Shape { page_bytes, page_count, pointer_maps, reserved_bytes }
    }

    /// SQLite's bytes.
    pub fn usable(self) -> usize {
        self.page_bytes.saturating_sub(self.reserved_bytes) as usize
    }

    /// Before the trailer.
    pub fn reserve(self) -> Range<usize> {
        self.usable()..(self.page_bytes as usize).saturating_sub(trailer::BYTES)
    }

    /// With SQLite's lock bytes.
    pub fn pending_page(self) -> u32 {
        PENDING_BYTE.checked_div(self.page_bytes).unwrap_or(0).saturating_add(1)
    }

    /// SQLite file format, section 1.8.
    fn is_pointer_map(self, page: PageNo) -> bool {
        let Ok(usable) = u32::try_from(self.usable()) else { return true };
        let (Some(group), Some(mut first)) = ((usable / 5).checked_add(1), page.0.checked_sub(2)) else { return false };
        first = first.wrapping_sub(first.checked_rem(group).unwrap_or(0)).saturating_add(2);
        page.0 == if first == self.pending_page() { first.saturating_add(1) } else { first }
    }

    /// The parts of a page that is certainly a b-tree page: others, but for pointer maps, begin
    /// with a page number or zero.
    pub fn node(self, page: PageNo, image: &[u8]) -> Option<NodeLayout> {
        if self.page_count >= AMBIGUOUS_PAGES || (self.pointer_maps && self.is_pointer_map(page)) {
            return None;
        }
        let header_at = if page == PageNo::HEADER { at::HEADER_BYTES } else { 0 };
        let header_bytes = match image.get(header_at)? {
            2 | 5 => 12usize,
            10 | 13 => 8,
            _ => return None,
        };
        let cells = usize::from(be_u16(image, header_at.checked_add(3)?)?);
        let content_at = match be_u16(image, header_at.checked_add(5)?)? {
            0 => 65536,
            n => usize::from(n),
        };
        let from = header_at.checked_add(header_bytes)?;
        let pointers = from..from.checked_add(cells.checked_mul(2)?)?;
        let usable = self.usable();
        let fits = pointers.end <= content_at && content_at <= usable && image.len() == self.page_bytes as usize;
        let first = usize::from(be_u16(image, header_at.checked_add(1)?)?);
        fits.then(|| {
            let free = free_blocks(image, first, content_at, usable).unwrap_or_default();
            NodeLayout { header_at, pointers, content_at, usable, free }
        })
    }

    /// Of b-tree pages the used parts count, of others all but the reserve.
    pub fn same(self, page: PageNo, a: &[u8], b: &[u8]) -> bool {
        let equal = |range: Range<usize>| a.get(range.clone()) == b.get(range);
        match (self.node(page, a), self.node(page, b)) {
            (Some(node), Some(other)) => {
                node == other && equal(0..node.pointers.end) && node.live_content().into_iter().all(equal)
            }
            _ => equal(0..self.usable()),
        }
    }
}

impl NodeLayout {
    /// Without free blocks.
    pub fn live_content(&self) -> Vec<Range<usize>> {
        let mut live = Vec::with_capacity(self.free.len().saturating_add(1));
        let mut from = self.content_at;
        for free in &self.free {
            live.push(from..free.start);
            from = free.end;
        }
        live.push(from..self.usable);
        live
    }
}

/// Next block, size.
const FREE_HEAD: usize = 4;

/// `None` unless in order within the content area.
fn free_blocks(image: &[u8], first: usize, content_at: usize, usable: usize) -> Option<Vec<Range<usize>>> {
    let mut free: Vec<Range<usize>> = Vec::new();
    let (mut at, mut from) = (first, content_at);
    while at != 0 {
        let (next, size) = (be_u16(image, at)?, usize::from(be_u16(image, at.checked_add(2)?)?));
        let end = at.checked_add(size)?;
        if at < from || size < FREE_HEAD || end > usable {
            return None;
        }
        free.push(at.checked_add(FREE_HEAD)?..end);
        (at, from) = (usize::from(next), end);
    }
    Some(free)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_may_be_something_else_are_no_nodes() {
        let mut leaf = vec![0; 512];
        leaf[0] = 13;
        leaf[3..7].copy_from_slice(&[0, 2, 1, 0]);
        let shape = Shape { page_bytes: 512, page_count: 9, pointer_maps: false, reserved_bytes: 32 };
        let node = shape.node(PageNo(2), &leaf).unwrap();
        assert_eq!((node.pointers, node.content_at, node.usable), (8..12, 256, 480));
        assert_eq!(Shape { pointer_maps: true, ..shape }.node(PageNo(2), &leaf), None, "a pointer map");
        assert!(Shape { pointer_maps: true, ..shape }.node(PageNo(3), &leaf).is_some());
        assert_eq!(Shape { pointer_maps: true, ..shape }.node(PageNo(2 + 97), &leaf), None, "the second one");
        assert_eq!(Shape { page_count: u32::MAX, ..shape }.node(PageNo(2), &leaf), None);
        leaf[5..7].copy_from_slice(&[1, 255]);
        assert_eq!(shape.node(PageNo(2), &leaf), None, "cells in the reserved bytes");
        leaf[5..7].copy_from_slice(&[0, 11]);
        assert_eq!(shape.node(PageNo(2), &leaf), None, "cells in the pointer array");
        leaf[0] = 0;
        assert_eq!(shape.node(PageNo(2), &leaf), None);
    }

    #[test]
    fn free_blocks_are_left_aside_if_their_chain_is_in_order() {
        let shape = Shape { page_bytes: 512, page_count: 9, pointer_maps: false, reserved_bytes: 100 };
        assert_eq!((shape.usable(), shape.reserve()), (412, 412..480));
        let mut leaf = vec![7; 512];
        leaf[..8].copy_from_slice(&[13, 1, 44, 0, 1, 1, 0, 0]);
        leaf[300..304].copy_from_slice(&[1, 84, 0, 10]);
        leaf[340..344].copy_from_slice(&[0, 0, 0, 72]);
        let node = shape.node(PageNo(2), &leaf).unwrap();
        assert_eq!(node.free, [304..310, 344..412]);
        assert_eq!(node.live_content(), [256..304, 310..344, 412..412]);
        for (at, same) in [(303, false), (305, true), (310, false), (343, false), (400, true), (420, true), (20, true)]
        {
            let mut other = leaf.clone();
            other[at] ^= 1;
            assert_eq!(shape.same(PageNo(2), &leaf, &other), same, "{at}");
        }
        for (at, bytes) in [(301, 44), (343, 73), (303, 41), (303, 3)] {
            let mut broken = leaf.clone();
            broken[at] = bytes;
            assert_eq!(shape.node(PageNo(2), &broken).unwrap().free, [], "{at}");
        }
    }
}
