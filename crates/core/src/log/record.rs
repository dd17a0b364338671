//! Records: one per transaction, with the absolute new bytes of each changed page.
//!
//! Each has the crc32c of the one before, so an old record in the ring never passes for a new one.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;

use crate::base::error::{Error, Result};
use crate::base::layout::{STREAM_UNIT, le_u16, le_u32, le_u64, put, record as at};
use crate::base::memory::{self, Room};
use crate::base::types::{PageNo, Tid};
use crate::disk::system;

use super::delta;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// As in the slot.
    pub salt: u64,
    pub tid: Tid,
    /// Newest durable TID at the write: broken records up to it are damage, not the log's end.
    pub durable_tid: Tid,
    /// Of the record before.
    pub prev_crc: u32,
    /// Pages of the database after the transaction.
    pub page_count: u32,
    pub change_counter: u32,
    /// Streamed before the commit.
    pub stream: StreamIndex,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamIndex {
    pub count: u32,
    /// In units of 512 bytes.
    pub index: u32,
    pub crc: u32,
}

impl StreamIndex {
    pub fn index_end(&self) -> u64 {
        u64::from(self.index) * STREAM_UNIT + u64::from(self.count) * at::STREAM_ITEM_BYTES as u64
    }
}

/// The record counts if that log has a decision with this token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decider {
    pub token: u64,
    /// The session of that log.
    pub session: u64,
    /// Relative to this database's directory.
    pub path: PathBuf,
}

#[derive(Default)]
pub struct Encoder {
    buf: Vec<u8>,
    entries: u32,
}

const END_BYTES: usize = at::ALIGN + at::CRC_BYTES;

impl Encoder {
    pub fn clear(&mut self) {
        if self.buf.capacity() == 0 {
            self.buf = memory::spare();
        }
        self.buf.clear();
        self.buf.resize(at::HEADER_BYTES, 0);
        self.entries = 0;
    }

    pub fn give_back(&mut self) {
        memory::give_back(&mut self.buf);
    }

    /// Zeros are a base even where nothing differs. False if nothing was added.
    pub fn add_delta(&mut self, page: PageNo, base: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        self.buf.room(at::ENTRY_BYTES + delta::bytes_max(new.len()) + END_BYTES)?;
        let entry_at = self.buf.len();
        let kind = if base.is_some() { at::KIND_COMPACT_DELTA } else { at::KIND_COMPACT_FRESH };
        self.buf.extend_from_slice(&page.0.to_le_bytes());
        self.buf.extend_from_slice(&kind.to_le_bytes());
        self.buf.extend_from_slice(&[0; 2]);
        let count = delta::encode(&mut self.buf, page, base, new);
        if count == 0 && base.is_some() {
            self.buf.truncate(entry_at);
            return Ok(false);
        }
        put(&mut self.buf, entry_at + 6, &count.to_le_bytes());
        self.entries += 1;
        Ok(true)
    }

    /// An entry has at most 65535 images of one size, aligned to `block`.
    pub fn add_frames(&mut self, pages: &[(PageNo, &[u8])], block: usize) -> Result<()> {
        for chunk in pages.chunks(usize::from(u16::MAX)) {
            let images: usize = chunk.iter().map(|(_, image)| image.len()).sum();
            self.buf.room(at::ENTRY_BYTES + 4 + 4 * chunk.len() + block + images + END_BYTES)?;
            self.buf.extend_from_slice(&0u32.to_le_bytes());
            self.buf.extend_from_slice(&at::KIND_FRAMES.to_le_bytes());
            self.buf.extend_from_slice(&u16::try_from(chunk.len()).unwrap_or(u16::MAX).to_le_bytes());
            let pad_at = self.buf.len();
            self.buf.extend_from_slice(&0u32.to_le_bytes());
            for (page, _) in chunk {
                self.buf.extend_from_slice(&page.0.to_le_bytes());
            }
            let aligned = self.buf.len().next_multiple_of(block);
            let pad = u32::try_from(aligned - self.buf.len()).unwrap_or(0);
            put(&mut self.buf, pad_at, &pad.to_le_bytes());
            self.buf.resize(aligned, 0);
            for (_, image) in chunk {
                self.buf.extend_from_slice(image);
            }
            self.entries += 1;
        }
        Ok(())
    }

    /// Nothing was added before.
    pub fn add_decider(&mut self, decider: &Decider) -> Result<()> {
        let path = system::bytes_of(decider.path.as_os_str());
        let len = u16::try_from(at::AT_DECIDER_PATH + path.len()).ok();
        let len = len.filter(|len| usize::from(*len) <= at::DECIDER_BYTES_MAX);
        let Some(len) = len.filter(|_| !path.is_empty() && self.entries == 0) else {
            let path = decider.path.display();
            return Err(Error::Misuse(format!("the path {path} is too long for a transaction over several files")));
        };
        self.buf.room(at::ENTRY_BYTES + usize::from(len) + END_BYTES)?;
        self.buf.extend_from_slice(&0u32.to_le_bytes());
        self.buf.extend_from_slice(&at::KIND_DECIDER.to_le_bytes());
        self.buf.extend_from_slice(&len.to_le_bytes());
        self.buf.extend_from_slice(&decider.token.to_le_bytes());
        self.buf.extend_from_slice(&decider.session.to_le_bytes());
        self.buf.extend_from_slice(path);
        self.entries += 1;
        Ok(())
    }

    pub fn entry_count(&self) -> u32 {
        self.entries
    }

    pub fn record_bytes(&self) -> usize {
        (self.buf.len() + at::CRC_BYTES).next_multiple_of(at::ALIGN)
    }

    pub fn finish(&mut self, head: &RecordHead) -> (&[u8], u32) {
        let len = self.record_bytes();
        self.buf.resize(len - at::CRC_BYTES, 0);
        let b = &mut self.buf;
        put(b, at::AT_SALT, &head.salt.to_le_bytes());
        put(b, at::AT_TID, &head.tid.0.to_le_bytes());
        put(b, at::AT_DURABLE_TID, &head.durable_tid.0.to_le_bytes());
        put(b, at::AT_PREV_CRC, &head.prev_crc.to_le_bytes());
        put(b, at::AT_LEN, &u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
        put(b, at::AT_PAGE_COUNT, &head.page_count.to_le_bytes());
        put(b, at::AT_CHANGE_COUNTER, &head.change_counter.to_le_bytes());
        put(b, at::AT_ENTRY_COUNT, &self.entries.to_le_bytes());
        put(b, at::AT_STREAM_COUNT, &head.stream.count.to_le_bytes());
        put(b, at::AT_STREAM_INDEX, &head.stream.index.to_le_bytes());
        put(b, at::AT_STREAM_CRC, &head.stream.crc.to_le_bytes());
        let crc = crc32c::crc32c(b);
        b.extend_from_slice(&crc.to_le_bytes());
        (b, crc)
    }

    pub fn finished(&self) -> &[u8] {
        &self.buf
    }
}

/// A verified record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The head.
    pub head: RecordHead,
    /// Its crc32c.
    pub crc: u32,
    entries: &'a [u8],
    entry_count: u32,
    page_bytes: u32,
    /// 0: unknown.
    known: [u32; KNOWN],
}

const KNOWN: usize = 8;

/// First fields, not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Salt.
    pub salt: u64,
    /// TID.
    pub tid: Tid,
    /// Previous record's crc32c.
    pub prev_crc: u32,
    /// Bytes: a multiple of [`at::ALIGN`], at least header and checksum.
    pub len: u32,
}

impl Peek {
    /// `None` if `b` is too short or the length impossible.
    pub fn at(b: &[u8]) -> Option<Peek> {
        let len = le_u32(b, at::AT_LEN)?;
        let whole = usize::try_from(len).ok()?;
        if whole < at::HEADER_BYTES + at::CRC_BYTES || !whole.is_multiple_of(at::ALIGN) {
            return None;
        }
        Some(Peek {
            salt: le_u64(b, at::AT_SALT)?,
            tid: Tid(le_u64(b, at::AT_TID)?),
            prev_crc: le_u32(b, at::AT_PREV_CRC)?,
            len,
        })
    }
}

impl RecordHead {
    /// The head and crc32c of a record whose checksum fits, whatever its entries.
    pub fn sealed(b: &[u8]) -> Option<(RecordHead, u32)> {
        let peek = Peek::at(b)?;
        let len = usize::try_from(peek.len).ok()?;
        let body = b.get(..len.checked_sub(at::CRC_BYTES)?)?;
        let crc = le_u32(b, len.checked_sub(at::CRC_BYTES)?)?;
        if crc != crc32c::crc32c(body) {
            return None;
        }
        let head = RecordHead {
            salt: peek.salt,
            tid: peek.tid,
            durable_tid: Tid(le_u64(b, at::AT_DURABLE_TID)?),
            prev_crc: peek.prev_crc,
            page_count: le_u32(b, at::AT_PAGE_COUNT)?,
            change_counter: le_u32(b, at::AT_CHANGE_COUNTER)?,
            stream: StreamIndex {
                count: le_u32(b, at::AT_STREAM_COUNT)?,
                index: le_u32(b, at::AT_STREAM_INDEX)?,
                crc: le_u32(b, at::AT_STREAM_CRC)?,
            },
        };
        Some((head, crc))
    }
}

impl<'a> Record<'a> {
    /// `None` unless `b` begins with a record as [`Encoder`] makes it for pages of `page_bytes`.
    pub fn decode(b: &'a [u8], page_bytes: u32) -> Option<Record<'a>> {
        let (head, crc) = RecordHead::sealed(b)?;
        let len = usize::try_from(Peek::at(b)?.len).ok()?;
        let body = b.get(..len.checked_sub(at::CRC_BYTES)?)?;
        let mut record = Record {
            head,
            crc,
            entries: body.get(at::HEADER_BYTES..)?,
            entry_count: le_u32(b, at::AT_ENTRY_COUNT)?,
            page_bytes,
            known: [0; KNOWN],
        };
        let mut entries = record.entries();
        let mut valid = true;
        let mut known = [0; KNOWN];
        let visit = &mut |n: usize, page: PageNo, change: PageChange<'_>| {
            valid &= page.0 != 0;
            if let (Some(length), PageChange::Delta(ranges) | PageChange::Fresh(ranges)) = (known.get_mut(n), change) {
                *length = u32::try_from(ranges.bytes.len()).unwrap_or(0);
            }
        };
        record.walk(visit, &mut entries)?;
        record.known = known;
        (valid && entries.len() < at::ALIGN && entries.iter().all(|&x| x == 0)).then_some(record)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        (at::HEADER_BYTES + self.entries.len() + at::CRC_BYTES) as u64
    }

    /// A recovery's record changes nothing (rule OneNumberOneState).
    pub fn is_of_recovery(&self) -> bool {
        self.entry_count == 0 && self.head.stream.count == 0
    }

    /// Of a transaction over several files.
    pub fn decider(&self) -> Option<Decider> {
        le_u16(self.entries, 4).filter(|kind| *kind == at::KIND_DECIDER && self.entry_count > 0)?;
        let len = usize::from(le_u16(self.entries, 6)?);
        let entry = self.entries.get(at::ENTRY_BYTES..at::ENTRY_BYTES.checked_add(len)?)?;
        Some(Decider {
            token: le_u64(entry, at::AT_DECIDER_TOKEN)?,
            session: le_u64(entry, at::AT_DECIDER_SESSION)?,
            path: system::path_of(entry.get(at::AT_DECIDER_PATH..)?),
        })
    }

    fn entries(&self) -> &'a [u8] {
        self.entries
    }

    /// Calls `apply` for each changed page, in order.
    pub fn for_each(&self, mut apply: impl FnMut(PageNo, PageChange<'a>)) {
        let mut rest = self.entries();
        // Cannot fail: `decode` has walked the same bytes.
        let walked = self.walk(&mut |_, page, change| apply(page, change), &mut rest);
        debug_assert!(walked.is_some(), "a decoded record walks");
    }

    fn walk(&self, apply: &mut impl FnMut(usize, PageNo, PageChange<'a>), rest: &mut &'a [u8]) -> Option<()> {
        let page_bytes = usize::try_from(self.page_bytes).ok()?;
        for n in 0..usize::try_from(self.entry_count).ok()? {
            let page = PageNo(le_u32(rest, 0)?);
            let kind = le_u16(rest, 4)?;
            let count = le_u16(rest, 6)?;
            *rest = rest.get(at::ENTRY_BYTES..)?;
            match kind {
                at::KIND_DELTA | at::KIND_FRESH | at::KIND_COMPACT_DELTA | at::KIND_COMPACT_FRESH => {
                    let is_fresh = matches!(kind, at::KIND_FRESH | at::KIND_COMPACT_FRESH);
                    let is_compact = matches!(kind, at::KIND_COMPACT_DELTA | at::KIND_COMPACT_FRESH);
                    if !is_fresh && count == 0 {
                        return None;
                    }
                    let start = *rest;
                    match self.known.get(n) {
                        Some(&known) if known != 0 => *rest = rest.get(usize::try_from(known).ok()?..)?,
                        _ if is_compact => delta::walk(rest, count, page_bytes)?,
                        _ => walk_ranges(rest, count, page_bytes)?,
                    }
                    let bytes = start.get(..start.len().checked_sub(rest.len())?)?;
                    let ranges = Ranges { bytes, is_compact };
                    apply(n, page, if is_fresh { PageChange::Fresh(ranges) } else { PageChange::Delta(ranges) });
                }
                at::KIND_FRAMES => {
                    let pad = usize::try_from(le_u32(rest, 0)?).ok()?;
                    let numbers = rest.get(4..)?;
                    let numbers_bytes = usize::from(count).checked_mul(4)?;
                    let images_at = 4usize.checked_add(numbers_bytes)?.checked_add(pad)?;
                    let mut images = rest.get(images_at..)?;
                    for i in 0..usize::from(count) {
                        let image = images.get(..page_bytes)?;
                        images = images.get(page_bytes..)?;
                        apply(n, PageNo(le_u32(numbers, i.checked_mul(4)?)?), PageChange::Image(image));
                    }
                    *rest = images;
                }
                at::KIND_DECIDER if n == 0 && page.0 == 0 => {
                    let entry = rest.get(..usize::from(count))?;
                    let path = entry.get(at::AT_DECIDER_PATH..)?;
                    if path.is_empty() || entry.len() > at::DECIDER_BYTES_MAX || path.contains(&0) {
                        return None;
                    }
                    *rest = rest.get(entry.len()..)?;
                }
                _ => return None,
            }
        }
        Some(())
    }
}

fn walk_ranges(rest: &mut &[u8], count: u16, page_bytes: usize) -> Option<()> {
    for _ in 0..count {
        let (offset, len) = range(rest)?;
        if offset.checked_add(len)? > page_bytes {
            return None;
        }
        *rest = rest.get(at::RANGE_BYTES.checked_add(len)?..)?;
    }
    Some(())
}

fn range(head: &[u8]) -> Option<(usize, usize)> {
    Some((usize::from(le_u16(head, 0)?), usize::from(le_u16(head, 2)?).checked_add(1)?))
}

/// A page's change.
#[derive(Clone, Copy, Debug)]
pub enum PageChange<'a> {
    /// Ranges over the previous image.
    Delta(Ranges<'a>),
    /// Ranges over zeros.
    Fresh(Ranges<'a>),
    /// The whole image.
    Image(&'a [u8]),
}

impl PageChange<'_> {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        match self {
            PageChange::Delta(Ranges { bytes, .. }) | PageChange::Fresh(Ranges { bytes, .. }) => bytes.len() as u64,
            PageChange::Image(image) => image.len() as u64,
        }
    }

    /// Changes the image before, which matters to a delta only.
    pub fn apply(&self, image: &mut [u8]) {
        match self {
            PageChange::Delta(ranges) => ranges.apply(image),
            PageChange::Fresh(ranges) => {
                image.fill(0);
                ranges.apply(image);
            }
            PageChange::Image(new) => put(image, 0, new),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ranges<'a> {
    bytes: &'a [u8],
    is_compact: bool,
}

impl<'a> Ranges<'a> {
    /// `bytes` are of [`Ranges::bytes`].
    pub fn of(bytes: &'a [u8], is_compact: bool) -> Ranges<'a> {
        Ranges { bytes, is_compact }
    }

    /// The ranges as they are in the record.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Pieces of few bits, not ranges.
    pub fn is_compact(&self) -> bool {
        self.is_compact
    }

    /// Copies the ranges into `image`, one page long.
    pub fn apply(&self, image: &mut [u8]) {
        if self.is_compact {
            return delta::apply(self.bytes, image);
        }
        let mut rest = self.bytes;
        while let Some((offset, len)) = range(rest) {
            let Some(bytes) = rest.get(at::RANGE_BYTES..at::RANGE_BYTES + len) else { return };
            put(image, offset, bytes);
            rest = rest.get(at::RANGE_BYTES + len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> RecordHead {
        RecordHead {
            salt: 1,
            tid: Tid(2),
            durable_tid: Tid(1),
            prev_crc: 3,
            page_count: 4,
            change_counter: 5,
            stream: StreamIndex::default(),
        }
    }

    fn replay(record: &Record<'_>, base: &[u8]) -> Vec<u8> {
        let mut image = base.to_vec();
        record.for_each(|_, change| match change {
            PageChange::Delta(r) => r.apply(&mut image),
            PageChange::Fresh(r) => {
                image.fill(0);
                r.apply(&mut image);
            }
            PageChange::Image(i) => image.copy_from_slice(i),
        });
        image
    }

    #[test]
    fn an_unchanged_page_makes_no_entry() {
        let mut e = Encoder::default();
        e.clear();
        assert!(!e.add_delta(PageNo(1), Some(&[7; 512]), &[7; 512]).unwrap());
        assert_eq!(e.entry_count(), 0);
        assert!(e.add_delta(PageNo(1), None, &[0; 512]).unwrap(), "a fresh page is said even if it is all zeros");
    }

    /// As in version 1 of the log.
    #[test]
    fn ranges_with_heads_of_four_bytes_are_read() {
        let entry = |kind: u16, count: u16, ranges: &[(u16, &[u8])]| {
            let mut e = Encoder::default();
            e.clear();
            e.buf.extend_from_slice(&1u32.to_le_bytes());
            e.buf.extend_from_slice(&kind.to_le_bytes());
            e.buf.extend_from_slice(&count.to_le_bytes());
            for (offset, bytes) in ranges {
                e.buf.extend_from_slice(&offset.to_le_bytes());
                e.buf.extend_from_slice(&(bytes.len() as u16 - 1).to_le_bytes());
                e.buf.extend_from_slice(bytes);
            }
            e.entries = 1;
            Record::decode(e.finish(&head()).0, 512).map(|record| replay(&record, &[7; 512]))
        };
        let (mut delta, mut fresh) = ([7; 512], [0; 512]);
        for image in [&mut delta, &mut fresh] {
            image[3..5].copy_from_slice(&[1, 2]);
            image[511] = 3;
        }
        let ranges: &[(u16, &[u8])] = &[(3, &[1, 2]), (511, &[3])];
        assert_eq!(entry(at::KIND_DELTA, 2, ranges).as_deref(), Some(&delta[..]));
        assert_eq!(entry(at::KIND_FRESH, 2, ranges).as_deref(), Some(&fresh[..]));
        assert_eq!(entry(at::KIND_FRESH, 0, &[]).as_deref(), Some(&[0; 512][..]));
        assert_eq!(entry(at::KIND_DELTA, 0, &[]), None);
        assert_eq!(entry(at::KIND_DELTA, 1, &[(511, &[1, 2])]), None);
    }

    #[test]
    fn frames_are_aligned_and_come_back() {
        let (a, b) = ([1u8; 4096], [2u8; 4096]);
        let mut e = Encoder::default();
        e.clear();
        e.add_frames(&[(PageNo(3), &a), (PageNo(9), &b)], 4096).unwrap();
        let (bytes, _) = e.finish(&head());
        assert_eq!(bytes[4096..8192], a);
        let record = Record::decode(bytes, 4096).unwrap();
        let mut seen = vec![];
        record.for_each(|p, c| {
            if let PageChange::Image(i) = c {
                seen.push((p, i[0]));
            }
        });
        assert_eq!(seen, [(PageNo(3), 1), (PageNo(9), 2)]);
    }

    fn pair() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let bytes = proptest::collection::vec(any::<u8>(), 1..64);
        let zeros = (1..600usize).prop_map(|len| vec![0; len]);
        let edits = proptest::collection::vec((0..4096usize, prop_oneof![3 => bytes, 1 => zeros]), 0..20);
        (any::<u8>(), edits).prop_map(|(fill, edits)| {
            let base: Vec<u8> = (0..4096usize).map(|i| fill.wrapping_add((i / 7) as u8)).collect();
            let mut new = base.clone();
            for (at, bytes) in edits {
                let end = (at + bytes.len()).min(4096);
                new[at..end].copy_from_slice(&bytes[..end - at]);
            }
            (base, new)
        })
    }

    proptest! {
    #[test]
    fn replay_gives_the_image_also_over_a_torn_page((base, new) in pair(), tear in 0..9usize, fresh: bool) {
    let mut e = Encoder::default();
    e.clear();
    let added = e.add_delta(PageNo(1), (!fresh).then_some(&base), &new).unwrap();
    prop_assert_eq!(added, fresh || base != new);
    if added {
    let (bytes, crc) = e.finish(&head());
    let record = Record::decode(bytes, 4096).unwrap();
    prop_assert_eq!(record.head, head());
    prop_assert_eq!(record.crc, crc);
    prop_assert_eq!(&replay(&record, &base), &new);
    // A checkpoint wrote only some sectors of the new image (invariant I8).
    let mut torn = base.clone();
    torn[..tear * 512 / 9 * 9].copy_from_slice(&new[..tear * 512 / 9 * 9]);
    prop_assert_eq!(&replay(&record, &torn), &new);
    }
    }

    #[test]
    fn a_changed_byte_is_refused((base, new) in pair(), at in any::<proptest::sample::Index>(), xor in 1u8..) {
    let mut e = Encoder::default();
    e.clear();
    e.add_delta(PageNo(1), Some(&base), &new).unwrap();
    let mut bytes = e.finish(&head()).0.to_vec();
    let at = at.index(bytes.len());
    bytes[at] ^= xor;
    prop_assert!(Record::decode(&bytes, 4096).is_none());
    }

    #[test]
    fn structure_is_checked_even_under_a_valid_checksum(
    mut body in proptest::collection::vec(any::<u8>(), 0..200), entries in 0u32..4,
    ) {
    let mut e = Encoder::default();
    e.clear();
    e.buf.append(&mut body);
    e.entries = entries;
    let bytes = e.finish(&head()).0.to_vec();
    if let Some(record) = Record::decode(&bytes, 512) {
    let mut image = [0; 512];
    record.for_each(|_, change| match change {
    PageChange::Delta(r) | PageChange::Fresh(r) => r.apply(&mut image),
    PageChange::Image(i) => image.copy_from_slice(i),
    });
    }
    }

    #[test]
    fn no_bytes_panic(b in proptest::collection::vec(any::<u8>(), 0..256)) {
    prop_assert!(Record::decode(&b, 4096).is_none());
    }
    }
}
