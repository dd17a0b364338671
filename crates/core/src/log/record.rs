//! Records: one per transaction, with the absolute new bytes of each changed page.
//!
//! Each has the crc32c of the one before, so an old record in the ring never passes for a new one.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;

use crate::base::error::{Error, Result};
use crate::base::layout::{STREAM_UNIT, le_u32, le_u64, put, record as at};
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
}

/// Images that were streamed before the commit, if any were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamIndex {
    /// Of images in the log.
    pub count: u32,
    /// In units of 512 bytes.
    pub index: u32,
    pub crc: u32,
    /// Number of those at home, as in its mark; 0: none are there.
    pub at_home: u32,
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

    /// With room for `more` bytes behind the head.
    fn begin(&mut self, kind: u8, number: u16, more: usize) -> Result<()> {
        self.buf.room(at::ENTRY_HEAD_BYTES_MAX + more + END_BYTES)?;
        self.buf.push(kind);
        self.buf.extend_from_slice(&number.to_le_bytes());
        self.entries += 1;
        Ok(())
    }

    /// Zeros are a base even where nothing differs. False if nothing was added.
    pub fn add_delta(&mut self, page: PageNo, base: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        let begin = self.buf.len();
        let kind = if base.is_some() { at::KIND_DELTA } else { at::KIND_FRESH };
        self.begin(kind, 0, delta::bytes_max(new.len()))?;
        delta::put_number(&mut self.buf, page.0);
        let from = self.buf.len();
        delta::encode(&mut self.buf, page, base, new);
        let len = self.buf.len() - from;
        if let Some(len) = u16::try_from(len).ok().filter(|len| *len > 0 || base.is_none()) {
            put(&mut self.buf, begin + 1, &len.to_le_bytes());
            return Ok(true);
        }
        self.buf.truncate(begin);
        self.entries -= 1;
        if len > 0 {
            self.add_frames(&[(page, new)], 1)?;
        }
        Ok(len > 0)
    }

    /// An entry has at most 65535 images of one size, aligned to `block`.
    pub fn add_frames(&mut self, pages: &[(PageNo, &[u8])], block: usize) -> Result<()> {
        for chunk in pages.chunks(usize::from(u16::MAX)) {
            let images: usize = chunk.iter().map(|(_, image)| image.len()).sum();
            let count = u16::try_from(chunk.len()).unwrap_or(u16::MAX);
            self.begin(at::KIND_FRAMES, count, 4 * chunk.len() + block + images)?;
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
        self.begin(at::KIND_DECIDER, len, usize::from(len))?;
        self.buf.extend_from_slice(&decider.token.to_le_bytes());
        self.buf.extend_from_slice(&decider.session.to_le_bytes());
        self.buf.extend_from_slice(path);
        Ok(())
    }

    /// Nothing is added behind it.
    pub fn add_stream(&mut self, stream: StreamIndex) -> Result<()> {
        self.buf.room(1 + at::STREAM_BYTES + END_BYTES)?;
        self.buf.push(at::KIND_STREAM);
        let StreamIndex { count, index, crc, at_home } = stream;
        [count, index, crc, at_home].iter().for_each(|n| self.buf.extend_from_slice(&n.to_le_bytes()));
        Ok(())
    }

    /// Of pages, and of a decider.
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
    /// Streamed images.
    pub stream: StreamIndex,
    /// With the zeros behind them.
    entries: &'a [u8],
    page_bytes: u32,
}

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
        };
        Some((head, crc))
    }
}

impl<'a> Record<'a> {
    /// `None` unless `b` begins with a record as [`Encoder`] makes it for pages of `page_bytes`.
    pub fn decode(b: &'a [u8], page_bytes: u32) -> Option<Record<'a>> {
        let (head, crc) = RecordHead::sealed(b)?;
        let len = usize::try_from(Peek::at(b)?.len).ok()?;
        let entries = b.get(at::HEADER_BYTES..len.checked_sub(at::CRC_BYTES)?)?;
        let mut record = Record { head, crc, stream: StreamIndex::default(), entries, page_bytes };
        let (mut rest, mut valid) = (entries, true);
        record.stream = record.walk(&mut |page, _| valid &= page.0 != 0, &mut rest)?;
        (valid && rest.len() < at::ALIGN && rest.iter().all(|&x| x == 0)).then_some(record)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        (at::HEADER_BYTES + self.entries.len() + at::CRC_BYTES) as u64
    }

    /// A recovery's record changes nothing (rule OneNumberOneState).
    pub fn is_of_recovery(&self) -> bool {
        kind(self.entries).is_none()
    }

    /// Of a transaction over several files.
    pub fn decider(&self) -> Option<Decider> {
        let mut rest = self.entries;
        take(&mut rest).filter(|kind| **kind == [at::KIND_DECIDER])?;
        let entry = take_decider(&mut rest)?;
        Some(Decider {
            token: le_u64(entry, at::AT_DECIDER_TOKEN)?,
            session: le_u64(entry, at::AT_DECIDER_SESSION)?,
            path: system::path_of(entry.get(at::AT_DECIDER_PATH..)?),
        })
    }

    /// Calls `apply` for each changed page, in order.
    pub fn for_each(&self, mut apply: impl FnMut(PageNo, PageChange<'a>)) {
        let mut rest = self.entries;
        // Cannot fail: `decode` has walked the same bytes.
        let walked = self.walk(&mut apply, &mut rest);
        debug_assert!(walked.is_some(), "a decoded record walks");
    }

    /// Whether pieces fit their page is known when they are applied. The index of streamed images
    /// ends the walk.
    fn walk(&self, visit: &mut impl FnMut(PageNo, PageChange<'a>), rest: &mut &'a [u8]) -> Option<StreamIndex> {
        let whole = *rest;
        while let Some(kind) = kind(rest) {
            let is_first = rest.len() == whole.len();
            *rest = rest.get(1..)?;
            match kind {
                at::KIND_DELTA | at::KIND_FRESH => {
                    let len = u16::from_le_bytes(*take(rest)?);
                    let page = PageNo(delta::take_number(rest)?);
                    let (pieces, behind) = rest.split_at_checked(len.into())?;
                    *rest = behind;
                    let change = match kind {
                        at::KIND_FRESH => PageChange::Fresh(pieces),
                        _ if pieces.is_empty() => return None,
                        _ => PageChange::Delta(pieces),
                    };
                    visit(page, change);
                }
                at::KIND_FRAMES => self.walk_frames(visit, rest)?,
                at::KIND_DECIDER if is_first => {
                    take_decider(rest)?;
                }
                at::KIND_STREAM => {
                    let fields = [take(rest)?, take(rest)?, take(rest)?, take(rest)?];
                    let [count, index, crc, at_home] = fields.map(|field| u32::from_le_bytes(*field));
                    return Some(StreamIndex { count, index, crc, at_home }).filter(|_| count > 0 || at_home > 0);
                }
                _ => return None,
            }
        }
        Some(StreamIndex::default())
    }

    fn walk_frames(&self, visit: &mut impl FnMut(PageNo, PageChange<'a>), rest: &mut &'a [u8]) -> Option<()> {
        let page_bytes = usize::try_from(self.page_bytes).ok()?;
        let count = u16::from_le_bytes(*take(rest)?);
        let pad = usize::try_from(u32::from_le_bytes(*take(rest)?)).ok()?;
        let (numbers, behind) = rest.split_at_checked(usize::from(count).checked_mul(4)?)?;
        *rest = behind.get(pad..)?;
        for number in numbers.as_chunks().0 {
            let (image, behind) = rest.split_at_checked(page_bytes)?;
            *rest = behind;
            visit(PageNo(u32::from_le_bytes(*number)), PageChange::Image(image));
        }
        Some(())
    }
}

/// Of the next entry. Zeros are behind the last.
fn kind(entries: &[u8]) -> Option<u8> {
    entries.first().copied().filter(|kind| *kind != 0)
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (bytes, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(bytes)
}

fn take_decider<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u16::from_le_bytes(*take(rest)?);
    let (entry, behind) = rest.split_at_checked(usize::from(len))?;
    *rest = behind;
    let path = entry.get(at::AT_DECIDER_PATH..)?;
    (!path.is_empty() && entry.len() <= at::DECIDER_BYTES_MAX && !path.contains(&0)).then_some(entry)
}

/// A page's change.
#[derive(Clone, Copy, Debug)]
pub enum PageChange<'a> {
    /// Pieces over the previous image.
    Delta(&'a [u8]),
    /// Pieces over zeros.
    Fresh(&'a [u8]),
    /// The whole image.
    Image(&'a [u8]),
}

impl PageChange<'_> {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        let (PageChange::Delta(bytes) | PageChange::Fresh(bytes) | PageChange::Image(bytes)) = self;
        bytes.len() as u64
    }

    /// Whether [`PageChange::apply`] will.
    pub fn fits(&self, page_bytes: u32) -> bool {
        match self {
            PageChange::Delta(pieces) | PageChange::Fresh(pieces) => delta::fit(pieces, page_bytes as usize),
            PageChange::Image(image) => image.len() == page_bytes as usize,
        }
    }

    /// Changes the image before, which matters to a delta only. `None` if the change does not fit
    /// it: the image is useless then.
    pub fn apply(&self, image: &mut [u8]) -> Option<()> {
        match self {
            PageChange::Delta(pieces) => delta::apply(pieces, image),
            PageChange::Fresh(pieces) => {
                image.fill(0);
                delta::apply(pieces, image)
            }
            PageChange::Image(new) => {
                put(image, 0, new);
                Some(())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> RecordHead {
        RecordHead { salt: 1, tid: Tid(2), durable_tid: Tid(1), prev_crc: 3, page_count: 4, change_counter: 5 }
    }

    fn replay(record: &Record<'_>, base: &[u8]) -> Vec<u8> {
        let mut image = base.to_vec();
        record.for_each(|_, change| change.apply(&mut image).unwrap());
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

    #[test]
    fn a_streamed_index_is_the_last_entry() {
        let stream = StreamIndex { count: 3, index: 8, crc: 9, at_home: 4 };
        let mut e = Encoder::default();
        e.clear();
        e.add_delta(PageNo(70_000), Some(&[7; 512]), &[8; 512]).unwrap();
        e.add_stream(stream).unwrap();
        let record = Record::decode(e.finish(&head()).0, 512).unwrap();
        assert_eq!((record.stream, record.is_of_recovery()), (stream, false));
        assert_eq!(replay(&record, &[7; 512]), [8; 512]);
        e.clear();
        e.add_stream(stream).unwrap();
        e.add_delta(PageNo(1), Some(&[7; 512]), &[8; 512]).unwrap();
        assert!(Record::decode(e.finish(&head()).0, 512).is_none(), "an entry lies behind it");
        for at_home in [0, 4] {
            e.clear();
            e.add_stream(StreamIndex { at_home, ..StreamIndex::default() }).unwrap();
            assert_eq!(Record::decode(e.finish(&head()).0, 512).is_some(), at_home > 0, "a stream of nothing");
        }
        e.clear();
        let record = e.finish(&head()).0;
        assert_eq!(record.len(), 48);
        assert!(Record::decode(record, 512).unwrap().is_of_recovery());
    }

    /// A length has 16 bits.
    #[test]
    fn a_change_of_all_bytes_of_the_longest_page_is_an_image() {
        let image = [1; 65536];
        let mut e = Encoder::default();
        e.clear();
        assert!(e.add_delta(PageNo(3), Some(&[0; 65536]), &image).unwrap());
        assert_eq!(e.entry_count(), 1);
        let record = Record::decode(e.finish(&head()).0, 65536).unwrap();
        assert_eq!(replay(&record, &[0; 65536]), image);
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
    mut body in proptest::collection::vec(prop_oneof![0u8..8, any::<u8>()], 0..200),
    ) {
    let mut e = Encoder::default();
    e.clear();
    e.buf.append(&mut body);
    let bytes = e.finish(&head()).0.to_vec();
    if let Some(record) = Record::decode(&bytes, 512) {
    let mut image = [0; 512];
    record.for_each(|_, change| {
    let _fits = change.apply(&mut image);
    });
    }
    }

    #[test]
    fn no_bytes_panic(b in proptest::collection::vec(any::<u8>(), 0..256)) {
    prop_assert!(Record::decode(&b, 4096).is_none());
    }
    }
}
