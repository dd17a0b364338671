//! Undo records: how the image of a page before its last transaction is got back from the page itself.
//!
//! SQLite writes new cells into the gap and moves cell pointers, so most of the old image is still there. The record
//! holds the rest: the old b-tree page header, the old middle of the cell pointer array (LS-MVBT: the life spans that
//! began or ended; DHL: the other slot header), the old bytes of what was live and is overwritten, the old trailer.
//!
//! The record lies in the gap of the new image. The gap of the old image is not brought back: nothing is in it.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::layout::{be_u16, le_u16, put, trailer, undo as at};
use crate::memory;
use crate::node::{Node, Shape};
use crate::rules::{Rule, keeps};
use crate::trailer::{self as sealed, Trailer, UNCHECKED};
use crate::types::PageNo;

/// A shorter run of equal bytes between two ranges is cheaper to repeat than to skip.
const MERGE_BYTES: usize = at::RANGE_BYTES;

/// A page to be written: its number, and the images before and after, with the state each belongs to.
#[derive(Clone, Copy)]
pub struct Edit<'a> {
    /// Page number.
    pub page: PageNo,
    /// The image before, as home holds it.
    pub old: &'a [u8],
    /// The state before.
    pub before: Shape,
    /// The image after, as SQLite wrote it.
    pub new: &'a [u8],
    /// The state after.
    pub after: Shape,
}

/// The image to write for `edit`: with the undo record in its gap, sealed by `trailer`. `None` if there is no room for
/// the record.
pub fn write(edit: Edit<'_>, trailer: Trailer) -> Option<Vec<u8>> {
    let new_node = edit.after.node(edit.page, edit.new)?;
    let old_node = edit.before.node(edit.page, edit.old);
    // Where both have their gap, the record destroys nothing; else wherever the new image has room.
    let shared = old_node.as_ref().map(|old| old.content_at.min(new_node.content_at));
    shared
        .and_then(|end| place(edit, &new_node, old_node.as_ref(), end, true, trailer))
        .or_else(|| place(edit, &new_node, old_node.as_ref(), new_node.content_at, false, trailer))
}

/// With the record ending at `end`. `leave`: old cells that lie in the new gap stay there.
fn place(
    edit: Edit<'_>,
    new_node: &Node,
    old_node: Option<&Node>,
    end: usize,
    leave: bool,
    mut trailer: Trailer,
) -> Option<Vec<u8>> {
    // Without memory it does not fit either, and the transaction goes through the log.
    let mut image = memory::copy(edit.new).ok()?;
    let gap = new_node.pointers.end..new_node.content_at;
    image.get_mut(gap.clone())?.fill(0);
    if let Some(old) = old_node.filter(|_| leave) {
        let left = old.content_at.max(gap.start)..gap.end;
        if left.start < left.end {
            image.get_mut(left.clone())?.copy_from_slice(edit.old.get(left)?);
        }
    }
    let record = encode(edit, &image, new_node, old_node)?;
    let start = end.checked_sub(record.len()).filter(|start| *start >= gap.start)?;
    put(&mut image, start, &record);
    trailer.undo = (u16::try_from(start).ok()?, u16::try_from(record.len()).ok()?);
    trailer.seal(edit.page, &mut image);
    Some(image)
}

/// The record that leads from `image`, the new one without a record, back to the old one.
fn encode(edit: Edit<'_>, image: &[u8], new_node: &Node, old_node: Option<&Node>) -> Option<Vec<u8>> {
    let mut record = vec![0; at::FIXED_BYTES];
    let old_trailer = edit.old.get(edit.before.usable()..)?;
    put(&mut record, at::AT_TRAILER, old_trailer);
    if let Some(old) = old_node {
        let header = edit.old.get(old.header_at..old.pointers.start)?;
        put(&mut record, at::AT_HEADER, header);
        let old_pointers = edit.old.get(old.pointers.clone())?;
        let new_pointers = edit.new.get(new_node.pointers.clone())?;
        let equal = |a: &mut dyn Iterator<Item = (&[u8], &[u8])>| a.take_while(|(a, b)| a == b).count();
        let prefix = equal(&mut old_pointers.chunks_exact(2).zip(new_pointers.chunks_exact(2)));
        let left = old_pointers.len().min(new_pointers.len()).saturating_sub(prefix.saturating_mul(2));
        let ends = old_pointers.rchunks_exact(2).zip(new_pointers.rchunks_exact(2));
        let suffix = equal(&mut ends.take(left / 2));
        let middle =
            old_pointers.get(prefix.saturating_mul(2)..old_pointers.len().checked_sub(suffix.checked_mul(2)?)?)?;
        for (field, count) in [(at::AT_PREFIX, prefix), (at::AT_SUFFIX, suffix), (at::AT_MIDDLE, middle.len() / 2)] {
            put(&mut record, field, &u16::try_from(count).ok()?.to_le_bytes());
        }
        record.extend_from_slice(middle);
    }
    let mut count = 0u16;
    for live in kept_as_bytes(edit.page, edit.before, old_node) {
        let mut from = live.start;
        while let Some(range) = next_difference(edit.old, image, from, live.end) {
            record.extend_from_slice(&u16::try_from(range.start).ok()?.to_le_bytes());
            record.extend_from_slice(&u16::try_from(range.len().checked_sub(1)?).ok()?.to_le_bytes());
            from = range.end;
            record.extend_from_slice(edit.old.get(range)?);
            count = count.checked_add(1)?;
        }
    }
    put(&mut record, at::AT_RANGES, &count.to_le_bytes());
    Some(record)
}

/// What of an old image is told by ranges: all that is live besides the page header and the pointers.
fn kept_as_bytes(page: PageNo, shape: Shape, node: Option<&Node>) -> Vec<Range<usize>> {
    let Some(node) = node else { return std::iter::once(0..shape.usable()).collect() };
    let mut live = Vec::with_capacity(6);
    if page == PageNo::HEADER {
        let mut from = 0;
        for left_out in UNCHECKED {
            live.push(from..left_out.start);
            from = left_out.end;
        }
        live.push(from..node.header_at);
    }
    live.push(node.content_at..node.usable);
    live
}

/// The next run of bytes in `from..end` in which `old` differs from `new`.
fn next_difference(old: &[u8], new: &[u8], from: usize, end: usize) -> Option<Range<usize>> {
    let differs = |from: usize| -> Option<usize> {
        let (old, new) = (old.get(from..end)?, new.get(from..end)?);
        old.iter().zip(new).position(|(a, b)| a != b)
    };
    let start = from.checked_add(differs(from)?)?;
    let mut last = start.checked_add(1)?;
    while let Some(equal) = differs(last).filter(|equal| *equal < MERGE_BYTES) {
        last = last.checked_add(equal)?.checked_add(1)?;
    }
    Some(start..last)
}

/// The image of `page` before the transaction that `trailer`, the one of `image`, names: its gap is zeros, and its
/// trailer holds without an undo record. `None` if there is no record, or it is not one that [`write`] makes.
/// `after`: the state `image` belongs to; the one before is as large or smaller only where it does not matter.
pub fn restore(page: PageNo, image: &[u8], trailer: &Trailer, after: Shape, before: Shape) -> Option<Vec<u8>> {
    let (start, len) = (usize::from(trailer.undo.0), usize::from(trailer.undo.1));
    let end = start.checked_add(len)?;
    let record = image.get(start..end).filter(|r| r.len() >= at::FIXED_BYTES)?;
    let new_node = after.node(page, image).filter(|n| n.pointers.end <= start && end <= n.content_at)?;
    let mut old = image.to_vec();
    old.get_mut(start..end)?.fill(0);
    let field = |at| le_u16(record, at).map(usize::from);
    let middle_bytes = field(at::AT_MIDDLE)?.checked_mul(2)?;
    let rest = record.get(at::FIXED_BYTES..)?;
    let (middle, mut ranges) = (rest.get(..middle_bytes)?, rest.get(middle_bytes..)?);
    let header = record.get(at::AT_HEADER..at::FIXED_BYTES)?;
    if header.first() != Some(&0) {
        let pointers = image.get(new_node.pointers.clone())?;
        let (prefix, suffix) = (field(at::AT_PREFIX)?.checked_mul(2)?, field(at::AT_SUFFIX)?.checked_mul(2)?);
        let mut array = pointers.get(..prefix)?.to_vec();
        array.extend_from_slice(middle);
        array.extend_from_slice(pointers.get(pointers.len().checked_sub(suffix)?..)?);
        let header_bytes = if matches!(header.first(), Some(2 | 5)) { 12 } else { 8 };
        put(&mut old, new_node.header_at, header.get(..header_bytes)?);
        if usize::from(be_u16(header, 3)?).checked_mul(2)? != array.len() {
            return None;
        }
        let node = before.node(page, &old)?;
        old.get_mut(node.pointers.clone())?.copy_from_slice(&array);
        old.get_mut(node.pointers.end..node.content_at)?.fill(0);
    }
    for _ in 0..field(at::AT_RANGES)? {
        let offset = usize::from(le_u16(ranges, 0)?);
        let len = usize::from(le_u16(ranges, 2)?).checked_add(1)?;
        ranges = ranges.get(at::RANGE_BYTES..)?;
        let to =
            old.get_mut(offset..offset.checked_add(len)?).filter(|_| offset.saturating_add(len) <= before.usable())?;
        to.copy_from_slice(ranges.get(..len)?);
        ranges = ranges.get(len..)?;
    }
    sealed::set(&mut old, record.get(..trailer::BYTES)?);
    if keeps(Rule::RestoredSealed) {
        sealed::settle(page, &mut old);
    }
    ranges.is_empty().then_some(old)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::types::Tid;
    use proptest::prelude::*;

    const SIZE: usize = 512;
    const SHAPE: Shape = Shape { page_bytes: SIZE as u32, page_count: 9, pointer_maps: false };

    /// A leaf or an interior page with these cells, laid out from the end on with `holes` bytes between them.
    fn page(number: PageNo, kind: u8, cells: &[Vec<u8>], hole: usize, gap: u8) -> Vec<u8> {
        let header_at = if number == PageNo::HEADER { 100 } else { 0 };
        let header_bytes = if kind < 8 { 12 } else { 8 };
        let mut image = vec![gap; SIZE];
        image[..header_at].fill(0x11);
        let mut at = SHAPE.usable();
        let mut pointer = header_at + header_bytes;
        let mut used = Vec::new();
        for cell in cells {
            if at < pointer + 2 + cell.len() + hole {
                break;
            }
            at -= cell.len();
            image[at..at + cell.len()].copy_from_slice(cell);
            used.push(at as u16);
            image[at - hole..at].fill(0x77);
            at -= hole;
            pointer += 2;
        }
        image[header_at] = kind;
        image[header_at + 1..header_at + header_bytes].fill(3);
        image[header_at + 3..header_at + 5].copy_from_slice(&(used.len() as u16).to_be_bytes());
        image[header_at + 5..header_at + 7].copy_from_slice(&(at as u16).to_be_bytes());
        for (n, at) in used.iter().enumerate() {
            let to = header_at + header_bytes + 2 * n;
            image[to..to + 2].copy_from_slice(&at.to_be_bytes());
        }
        image
    }

    fn any_page(number: PageNo) -> impl Strategy<Value = Vec<u8>> {
        let cells = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..60), 0..20);
        let kind = prop_oneof![Just(2u8), Just(5), Just(10), Just(13)];
        (kind, cells, 0usize..5, any::<u8>()).prop_map(move |(k, c, h, g)| page(number, k, &c, h, g))
    }

    /// What SQLite does to a page: a pointer inserted or removed, a cell in the gap, bytes overwritten, cells moved.
    fn edited(mut image: Vec<u8>, number: PageNo, edits: &[(u8, u16, Vec<u8>)]) -> Vec<u8> {
        for (kind, at, bytes) in edits {
            let Some(node) = SHAPE.node(number, &image) else { continue };
            let cells = node.pointers.len() / 2;
            let h = node.header_at;
            match kind % 4 {
                0 if node.pointers.end + 2 + bytes.len() <= node.content_at => {
                    let content_at = node.content_at - bytes.len();
                    image[content_at..node.content_at].copy_from_slice(bytes);
                    let to = node.pointers.start + 2 * (usize::from(*at) % (cells + 1));
                    image.copy_within(to..node.pointers.end, to + 2);
                    image[to..to + 2].copy_from_slice(&(content_at as u16).to_be_bytes());
                    image[h + 3..h + 5].copy_from_slice(&(cells as u16 + 1).to_be_bytes());
                    image[h + 5..h + 7].copy_from_slice(&(content_at as u16).to_be_bytes());
                }
                1 if cells > 0 => {
                    let from = node.pointers.start + 2 * (usize::from(*at) % cells);
                    image.copy_within(from + 2..node.pointers.end, from);
                    image[h + 3..h + 5].copy_from_slice(&(cells as u16 - 1).to_be_bytes());
                    image[h + 1..h + 3].copy_from_slice(&at.to_be_bytes());
                }
                2 => {
                    // A cell at the beginning of the content is freed.
                    let content_at = (node.content_at + bytes.len()).min(node.usable);
                    image[h + 5..h + 7].copy_from_slice(&(content_at as u16).to_be_bytes());
                }
                _ => {
                    let at = node.content_at + usize::from(*at) % (node.usable - node.content_at + 1);
                    let n = bytes.len().min(node.usable - at);
                    image[at..at + n].copy_from_slice(&bytes[..n]);
                }
            }
        }
        image
    }

    fn trailer() -> Trailer {
        Trailer { tid: Tid(7), session: 8, tx_pages: 9, change_counter: 10, undo: (0, 0) }
    }

    /// What must come back: `old` without its gap, its trailer settled.
    fn wanted(number: PageNo, old: &[u8], new: &[u8]) -> Vec<u8> {
        let mut wanted = old.to_vec();
        if let Some(node) = SHAPE.node(number, old) {
            wanted[node.pointers.end..node.content_at].fill(0);
            if number == PageNo::HEADER {
                UNCHECKED.iter().for_each(|r| wanted[r.clone()].copy_from_slice(&new[r.clone()]));
            }
        }
        sealed::settle(number, &mut wanted);
        wanted
    }

    fn check(number: PageNo, old: &[u8], new: &[u8]) -> Result<bool, TestCaseError> {
        let edit = Edit { page: number, old, before: SHAPE, new, after: SHAPE };
        let Some(written) = write(edit, trailer()) else { return Ok(false) };
        prop_assert!(SHAPE.same(number, &written, new), "SQLite reads what it wrote");
        let found = Trailer::of(number, &written);
        prop_assert_eq!(found.map(|t| (t.tid, t.session, t.tx_pages)), Some((Tid(7), 8, 9)));
        let restored = restore(number, &written, &found.unwrap(), SHAPE, SHAPE);
        prop_assert_eq!(restored, Some(wanted(number, old, new)));
        Ok(true)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn edits_of_a_page_are_undone(
            first in any::<bool>(),
            seed in (any_page(PageNo(1)), any_page(PageNo(2))),
            edits in proptest::collection::vec((any::<u8>(), any::<u16>(), proptest::collection::vec(any::<u8>(), 1..50)), 0..6),
        ) {
            let (number, old) = if first { (PageNo(1), seed.0) } else { (PageNo(2), seed.1) };
            let new = edited(old.clone(), number, &edits);
            check(number, &old, &new)?;
        }

        #[test]
        fn any_page_after_any_other_is_undone(old in any_page(PageNo(2)), new in any_page(PageNo(2))) {
            check(PageNo(2), &old, &new)?;
        }

        #[test]
        fn opaque_pages_are_undone(
            old in proptest::collection::vec(prop_oneof![9 => Just(0u8), 1 => any::<u8>()], SIZE),
            new in any_page(PageNo(2)),
        ) {
            check(PageNo(2), &old, &new)?;
        }

        #[test]
        fn no_bytes_panic(
            mut image in any_page(PageNo(2)),
            undo in (0u16..512, 0u16..512),
            noise in proptest::collection::vec((0..SIZE, any::<u8>()), 0..80),
        ) {
            noise.iter().for_each(|(at, byte)| image[*at] = *byte);
            let trailer = Trailer { undo, ..trailer() };
            let _ = restore(PageNo(2), &image, &trailer, SHAPE, SHAPE);
            let _ = Trailer::of(PageNo(2), &image);
        }
    }

    #[test]
    fn an_insertion_costs_little_more_than_the_fixed_part() {
        let cells: Vec<Vec<u8>> = (0..8).map(|n| vec![n; 30]).collect();
        let old = page(PageNo(2), 13, &cells, 0, 0);
        let new = edited(old.clone(), PageNo(2), &[(0, 4, vec![9; 30])]);
        let edit = Edit { page: PageNo(2), old: &old, before: SHAPE, new: &new, after: SHAPE };
        let written = write(edit, trailer()).unwrap();
        assert_eq!(usize::from(Trailer::of(PageNo(2), &written).unwrap().undo.1), at::FIXED_BYTES);
    }

    #[test]
    fn a_page_without_a_gap_cannot_carry_one() {
        let old = vec![0; SIZE];
        let mut new = old.clone();
        new[3] = 9;
        let edit = Edit { page: PageNo(2), old: &old, before: SHAPE, new: &new, after: SHAPE };
        assert_eq!(write(edit, trailer()), None);
    }
}
