//! Undo records: a page gives back its image before its last transaction.
//!
//! SQLite writes new cells into free space and moves cell pointers, so most of the old image
//! remains. The record has the rest: the old b-tree page header, the old middle of the cell pointer
//! array (LS-MVBT: the life spans that began or ended; DHL: the other slot header), overwritten
//! live bytes, the old trailer.
//!
//! Unused parts of the new image (gap, inside of free blocks, a freelist page) keep the old bytes,
//! so dropped cells cost only the heads of SQLite's free blocks (rule UndoLeadsHome).
//!
//! The record lies in the reserve before the trailer, or, if it does not fit, in the gap of the new
//! image. Unused parts of the old image are not restored.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use std::ops::Range;

use crate::base::layout::{be_u16, home, le_u16, put, trailer, undo as at};
use crate::base::memory;
use crate::base::rules::{Case, keeps};
use crate::base::types::PageNo;
use crate::research::trailer::{self as sealed, Trailer, UNCHECKED};
use crate::sqlite_format::node::{NodeLayout, Shape};

/// A shorter equal run is cheaper to repeat than to skip.
const MERGE_BYTES: usize = at::RANGE_BYTES;

#[derive(Clone, Copy)]
pub struct Edit<'a> {
    pub page: PageNo,
    /// In home.
    pub old: &'a [u8],
    pub before: Shape,
    /// First bytes with a meaning, if on the freelist.
    pub was_free: Option<usize>,
    /// By SQLite.
    pub new: &'a [u8],
    pub after: Shape,
    /// First bytes with a meaning, if on the freelist.
    pub is_free: Option<usize>,
}

struct UndoParts {
    old_node: Option<NodeLayout>,
    new_node: Option<NodeLayout>,
    live: Vec<Range<usize>>,
}

/// Adds the undo record, and `trailer` as the seal. `None` if it does not fit.
pub fn write(edit: Edit<'_>, trailer: Trailer) -> Option<Vec<u8>> {
    let new_node = edit.after.node(edit.page, edit.new).filter(|_| edit.is_free.is_none());
    let old_node = edit.before.node(edit.page, edit.old).filter(|_| edit.was_free.is_none());
    if edit.page == PageNo::HEADER && (new_node.is_none() || old_node.is_none()) {
        return None;
    }
    let live = live(&edit, old_node.as_ref());
    let parts = UndoParts { old_node, new_node, live };
    let image = with_old_bytes(&edit, &parts, true)?;
    let record = encode(&edit, &image, &parts)?;
    let reserve = edit.after.reserve();
    if record.len() <= reserve.len() {
        return put_record(&edit, image, &record, reserve.start, trailer);
    }
    let UndoParts { old_node, new_node: Some(new_node), .. } = &parts else { return None };
    // In both gaps the record destroys nothing; else it lies where the new image has room.
    let end = old_node.as_ref().map(|old| old.content_at.min(new_node.content_at));
    let starts_at = |end: usize, len: usize| end.checked_sub(len).filter(|start| *start >= new_node.pointers.end);
    if let Some(start) = end.and_then(|end| starts_at(end, record.len())) {
        return put_record(&edit, image, &record, start, trailer);
    }
    let image = with_old_bytes(&edit, &parts, false)?;
    let record = encode(&edit, &image, &parts)?;
    let start = starts_at(new_node.content_at, record.len())?;
    put_record(&edit, image, &record, start, trailer)
}

fn put_record(
    edit: &Edit<'_>,
    mut image: Vec<u8>,
    record: &[u8],
    start: usize,
    mut trailer: Trailer,
) -> Option<Vec<u8>> {
    put(&mut image, start, record);
    trailer.undo = (u16::try_from(start).ok()?, u16::try_from(record.len()).ok()?);
    trailer.seal(edit.page, &mut image);
    Some(image)
}

fn live(edit: &Edit<'_>, node: Option<&NodeLayout>) -> Vec<Range<usize>> {
    let Some(node) = node else {
        let end = edit.was_free.map_or(edit.before.usable(), |live| live.min(edit.before.usable()));
        return std::iter::once(0..end).collect();
    };
    let mut live = node.live_content();
    if edit.page == PageNo::HEADER {
        let mut from = 0;
        for left_out in UNCHECKED {
            live.push(from..left_out.start);
            from = left_out.end;
        }
        live.push(from..node.header_at);
    }
    live
}

/// The gap of the new image takes old bytes only with `in_gap`.
fn with_old_bytes(edit: &Edit<'_>, parts: &UndoParts, in_gap: bool) -> Option<Vec<u8>> {
    // Without memory the transaction goes through the log.
    let mut image = memory::copy(edit.new).ok()?;
    image.get_mut(edit.after.reserve())?.fill(0);
    let mut unused = Vec::new();
    if let Some(node) = &parts.new_node {
        let gap = node.pointers.end..node.content_at;
        image.get_mut(gap.clone())?.fill(0);
        unused.extend(in_gap.then_some(gap));
        unused.extend(node.free.iter().cloned());
    } else if let Some(live) = edit.is_free {
        unused.push(live..edit.after.usable());
    }
    for unused in unused {
        for live in &parts.live {
            let left = live.start.max(unused.start)..live.end.min(unused.end);
            if left.start < left.end {
                image.get_mut(left.clone())?.copy_from_slice(edit.old.get(left)?);
            }
        }
    }
    Some(image)
}

fn encode(edit: &Edit<'_>, image: &[u8], parts: &UndoParts) -> Option<Vec<u8>> {
    let mut record = vec![0; at::FIXED_BYTES];
    put(&mut record, at::AT_TRAILER, edit.old.get(edit.before.reserve().end..)?);
    if let Some(old) = &parts.old_node {
        let header = edit.old.get(old.header_at..old.pointers.start)?;
        put(&mut record, at::AT_HEADER, header);
        let old_pointers = edit.old.get(old.pointers.clone())?;
        let new_pointers = edit.new.get(parts.new_node.as_ref().map_or(0..0, |node| node.pointers.clone()))?;
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
    for live in &parts.live {
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

/// The image before `trailer`'s transaction: gap zero, free blocks of any content, no undo record
/// in its trailer. `None` without a record that [`write`] makes. `after` is the state of `image`;
/// `before` is smaller only where that is harmless.
pub fn restore(page: PageNo, image: &[u8], trailer: &Trailer, after: Shape, before: Shape) -> Option<Vec<u8>> {
    let (start, len) = (usize::from(trailer.undo.0), usize::from(trailer.undo.1));
    let end = start.checked_add(len)?;
    let record = image.get(start..end).filter(|r| r.len() >= at::FIXED_BYTES)?;
    let new_node = after.node(page, image);
    let in_reserve = after.reserve().start <= start && end <= after.reserve().end;
    let in_gap = new_node.as_ref().is_some_and(|node| node.pointers.end <= start && end <= node.content_at);
    if !in_reserve && !in_gap {
        return None;
    }
    let mut old = image.to_vec();
    old.get_mut(start..end)?.fill(0);
    let field = |at| le_u16(record, at).map(usize::from);
    let middle_bytes = field(at::AT_MIDDLE)?.checked_mul(2)?;
    let rest = record.get(at::FIXED_BYTES..)?;
    let (middle, mut ranges) = (rest.get(..middle_bytes)?, rest.get(middle_bytes..)?);
    let header = record.get(at::AT_HEADER..at::FIXED_BYTES)?;
    if header.first() != Some(&0) {
        let pointers = image.get(new_node.map_or(0..0, |node| node.pointers))?;
        let (prefix, suffix) = (field(at::AT_PREFIX)?.checked_mul(2)?, field(at::AT_SUFFIX)?.checked_mul(2)?);
        let mut array = pointers.get(..prefix)?.to_vec();
        array.extend_from_slice(middle);
        array.extend_from_slice(pointers.get(pointers.len().checked_sub(suffix)?..)?);
        let header_bytes = if matches!(header.first(), Some(2 | 5)) { 12 } else { 8 };
        let header_at = if page == PageNo::HEADER { home::HEADER_BYTES } else { 0 };
        put(&mut old, header_at, header.get(..header_bytes)?);
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
    if keeps(Case::RestoredSealed) {
        sealed::settle(page, &mut old);
    }
    ranges.is_empty().then_some(old)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::base::types::Tid;
    use proptest::prelude::*;

    const SIZE: usize = 512;
    const SHAPE: Shape = Shape { page_bytes: SIZE as u32, page_count: 9, pointer_maps: false, reserved_bytes: 32 };
    const ROOMY: Shape = Shape { reserved_bytes: 132, ..SHAPE };

    fn page(shape: Shape, number: PageNo, kind: u8, cells: &[Vec<u8>], hole: usize, gap: u8) -> Vec<u8> {
        let header_at = if number == PageNo::HEADER { 100 } else { 0 };
        let header_bytes = if kind < 8 { 12 } else { 8 };
        let mut image = vec![gap; SIZE];
        image[..header_at].fill(0x11);
        let mut at = shape.usable();
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

    fn any_page(shape: Shape, number: PageNo) -> impl Strategy<Value = Vec<u8>> {
        let cells = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..60), 0..20);
        let kind = prop_oneof![Just(2u8), Just(5), Just(10), Just(13)];
        (kind, cells, 0usize..5, any::<u8>()).prop_map(move |(k, c, h, g)| page(shape, number, k, &c, h, g))
    }

    /// As SQLite: a pointer inserted or removed, a cell in the gap, bytes overwritten, cells moved,
    /// free blocks chained and zeroed.
    fn edited(shape: Shape, mut image: Vec<u8>, number: PageNo, edits: &[(u8, u16, Vec<u8>)]) -> Vec<u8> {
        for (kind, at, bytes) in edits {
            let Some(node) = shape.node(number, &image) else { continue };
            let cells = node.pointers.len() / 2;
            let h = node.header_at;
            match kind % 5 {
                4 => {
                    let mut head = h + 1;
                    let mut from = node.content_at + usize::from(*at) % 60;
                    for byte in bytes.iter().take(6) {
                        let size = 4 + usize::from(*byte) % 40;
                        if from + size > node.usable {
                            break;
                        }
                        image[head..head + 2].copy_from_slice(&(from as u16).to_be_bytes());
                        image[from..from + size].fill(0);
                        image[from + 2..from + 4].copy_from_slice(&(size as u16).to_be_bytes());
                        head = from;
                        from += size + 4 + usize::from(*byte) % 9;
                    }
                }
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

    fn is_back(shape: Shape, number: PageNo, restored: &[u8], old: &[u8], new: &[u8]) -> bool {
        let mut wanted = old.to_vec();
        if number == PageNo::HEADER {
            UNCHECKED.iter().for_each(|r| wanted[r.clone()].copy_from_slice(&new[r.clone()]));
        }
        let told = shape.reserve().end..shape.reserve().end + trailer::AT_CRC;
        let gap = |image: &[u8]| shape.node(number, image).map(|n| image[n.pointers.end..n.content_at].to_vec());
        shape.same(number, restored, &wanted)
            && restored[told.clone()] == old[told]
            && Trailer::of(number, restored).is_some_and(|t| t.undo == (0, 0))
            && gap(restored).is_none_or(|gap| gap.iter().all(|b| *b == 0))
    }

    fn edit<'a>(shape: Shape, page: PageNo, old: &'a [u8], new: &'a [u8]) -> Edit<'a> {
        Edit { page, old, before: shape, was_free: None, new, after: shape, is_free: None }
    }

    fn check(shape: Shape, number: PageNo, old: &[u8], new: &[u8]) -> Result<bool, TestCaseError> {
        let Some(written) = write(edit(shape, number, old, new), trailer()) else { return Ok(false) };
        prop_assert!(shape.same(number, &written, new), "SQLite reads what it wrote");
        let found = Trailer::of(number, &written);
        prop_assert_eq!(found.map(|t| (t.tid, t.session, t.tx_pages)), Some((Tid(7), 8, 9)));
        let restored = restore(number, &written, &found.unwrap(), shape, shape);
        prop_assert!(restored.is_some_and(|restored| is_back(shape, number, &restored, old, new)));
        Ok(true)
    }

    type Edits = Vec<(u8, u16, Vec<u8>)>;

    fn any_edits() -> impl Strategy<Value = Edits> {
        let bytes = proptest::collection::vec(any::<u8>(), 1..50);
        proptest::collection::vec((any::<u8>(), any::<u16>(), bytes), 0..6)
    }

    proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn edits_of_a_page_are_undone(
    first in any::<bool>(),
    plain in (any_page(SHAPE, PageNo(1)), any_page(SHAPE, PageNo(2))),
    roomy in (any_page(ROOMY, PageNo(1)), any_page(ROOMY, PageNo(2))),
    before in any_edits(),
    edits in any_edits(),
    ) {
    for (shape, seed) in [(SHAPE, plain), (ROOMY, roomy)] {
    let (number, old) = if first { (PageNo(1), seed.0) } else { (PageNo(2), seed.1) };
    let old = edited(shape, old, number, &before);
    let new = edited(shape, old.clone(), number, &edits);
    check(shape, number, &old, &new)?;
    }
    }

    #[test]
    fn any_page_after_any_other_is_undone(
    plain in (any_page(SHAPE, PageNo(2)), any_page(SHAPE, PageNo(2))),
    roomy in (any_page(ROOMY, PageNo(2)), any_page(ROOMY, PageNo(2))),
    ) {
    check(SHAPE, PageNo(2), &plain.0, &plain.1)?;
    check(ROOMY, PageNo(2), &roomy.0, &roomy.1)?;
    }

    #[test]
    fn opaque_pages_are_undone(
    opaque in proptest::collection::vec(prop_oneof![9 => Just(0u8), 1 => any::<u8>()], SIZE),
    at in (0..SIZE, any::<u8>()),
    plain in any_page(SHAPE, PageNo(2)),
    roomy in any_page(ROOMY, PageNo(2)),
    ) {
    check(SHAPE, PageNo(2), &opaque, &plain)?;
    check(ROOMY, PageNo(2), &opaque, &roomy)?;
    check(ROOMY, PageNo(2), &roomy, &opaque)?;
    let mut other = opaque.clone();
    other[at.0] = at.1;
    prop_assert!(check(ROOMY, PageNo(2), &opaque, &other)?, "little changed, and there is a reserve");
    }

    #[test]
    fn pages_of_the_freelist_are_undone(
    stale in any_page(ROOMY, PageNo(2)),
    leaf in any_page(ROOMY, PageNo(2)),
    live in 0usize..40,
    ) {
    let taken = Edit { was_free: Some(live), ..edit(ROOMY, PageNo(2), &stale, &leaf) };
    let written = write(taken, trailer()).unwrap();
    prop_assert!(ROOMY.same(PageNo(2), &written, &leaf));
    let restored = restore(PageNo(2), &written, &Trailer::of(PageNo(2), &written).unwrap(), ROOMY, ROOMY).unwrap();
    prop_assert_eq!(&restored[..live], &stale[..live]);
    let mut trunk = vec![0; SIZE];
    trunk[1..live.max(2)].fill(9);
    let freed = Edit { is_free: Some(live), ..edit(ROOMY, PageNo(2), &leaf, &trunk) };
    if let Some(written) = write(freed, trailer()) {
    prop_assert_eq!(&written[..live], &trunk[..live]);
    let found = Trailer::of(PageNo(2), &written).unwrap();
    let restored = restore(PageNo(2), &written, &found, ROOMY, ROOMY).unwrap();
    prop_assert!(is_back(ROOMY, PageNo(2), &restored, &leaf, &trunk));
    }
    }

    #[test]
    fn no_bytes_panic(
    mut image in any_page(SHAPE, PageNo(2)),
    undo in (0u16..512, 0u16..512),
    noise in proptest::collection::vec((0..SIZE, any::<u8>()), 0..80),
    ) {
    noise.iter().for_each(|(at, byte)| image[*at] = *byte);
    let trailer = Trailer { undo, ..trailer() };
    let _ = restore(PageNo(2), &image, &trailer, SHAPE, SHAPE);
    let _ = restore(PageNo(2), &image, &trailer, ROOMY, ROOMY);
    let _ = Trailer::of(PageNo(2), &image);
    }
    }

    #[test]
    fn an_insertion_costs_little_more_than_the_fixed_part() {
        let cells: Vec<Vec<u8>> = (0..8).map(|n| vec![n; 30]).collect();
        let old = page(SHAPE, PageNo(2), 13, &cells, 0, 0);
        let new = edited(SHAPE, old.clone(), PageNo(2), &[(0, 4, vec![9; 30])]);
        let written = write(edit(SHAPE, PageNo(2), &old, &new), trailer()).unwrap();
        assert_eq!(usize::from(Trailer::of(PageNo(2), &written).unwrap().undo.1), at::FIXED_BYTES);
    }

    /// Zeroed or not, they cost their pointers and the heads of the free blocks.
    #[test]
    fn dropped_cells_are_not_copied() {
        let cells: Vec<Vec<u8>> = (0..8).map(|n| vec![n + 1; 40]).collect();
        let old = page(ROOMY, PageNo(2), 13, &cells, 0, 0);
        let mut new = old.clone();
        let at = ROOMY.usable() - 320;
        new[3..5].copy_from_slice(&4u16.to_be_bytes());
        new[1..3].copy_from_slice(&(at as u16).to_be_bytes());
        new[at..at + 160].fill(0);
        for (at, next, size) in [(at, at + 80, 80usize), (at + 80, 0, 80)] {
            new[at..at + 4].copy_from_slice(&[(next as u16).to_be_bytes(), (size as u16).to_be_bytes()].concat());
        }
        new[5..7].copy_from_slice(&(at as u16).to_be_bytes());
        let written = write(edit(ROOMY, PageNo(2), &old, &new), trailer()).unwrap();
        let record = usize::from(Trailer::of(PageNo(2), &written).unwrap().undo.1);
        assert!(record <= at::FIXED_BYTES + 4 * 2 + 2 * (at::RANGE_BYTES + 4), "{record}");
    }

    #[test]
    fn a_page_without_a_gap_cannot_carry_one() {
        let old = vec![0; SIZE];
        let mut new = old.clone();
        new[3] = 9;
        assert_eq!(write(edit(SHAPE, PageNo(2), &old, &new), trailer()), None);
        assert!(write(edit(ROOMY, PageNo(2), &old, &new), trailer()).is_some(), "but in the reserve");
    }
}
