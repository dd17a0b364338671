//! Litestream's file format, LTX version 3: the pages of a database that one or more transactions
//! changed.
//!
//! Numbers are big-endian.
//!
//! | part | bytes |
//! |---|---|
//! | header | 100: [`Header`] |
//! | page frames | page number u32, flags u16 = 1, length u32, LZ4 block; page numbers ascend |
//! | end of the pages | 6 zeros |
//! | index | per frame page number, offset, length as LEB128; a 0; length of all that, u64 |
//! | trailer | 16: checksum of the database (0: not kept), checksum of the file |
//!
//! A file is valid if and only if its numbers are possible, its index fits its frames, and its
//! checksum is that of all bytes before it, with pages uncompressed: CRC-64 GO-ISO with bit 63 set.
//! A file whose first transaction is 1 is a *snapshot*: it has every page but the lock page, which
//! no file has.
//!
//! Two variants of other programs are refused by name: pages as LZ4 frames (Litestream before
//! 0.5.16), and files with a checksum of the database (LiteFS).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

mod index;
mod merge;
mod read;
#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]
mod tests;
mod write;

pub use index::{TailIndex, page_of_frame, read_tail};
pub use merge::Merge;
pub use read::Reader;
pub use write::Writer;

use crc::{CRC_64_GO_ISO, Crc, Table};
use std::io;

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 100;
/// Bytes before each page.
const FRAME_HEADER_BYTES: usize = 10;
/// Bytes after the last page.
const END_BYTES: usize = 6;
/// Bytes of the trailer, and of the checksum at its end.
const TRAILER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

const MAGIC: &[u8; 4] = b"LTX1";
/// Flag of a header: no checksum of the database is kept.
const NO_CHECKSUM: u32 = 1 << 1;
/// Flag of a page: its length is given, and it is an LZ4 block.
const SIZED: u16 = 1;
const CHECKSUM_FLAG: u64 = 1 << 63;
/// For Litestream, the WAL offset of the first frame: it continues behind a file with this value.
const WAL_OFFSET: u64 = 32;

static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_GO_ISO);

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages of the database after it.
    pub pages: u32,
    /// First transaction in the file.
    pub min: u64,
    /// Last transaction in the file.
    pub max: u64,
    /// When the state was read, in milliseconds since 1970.
    pub time_ms: i64,
    /// The writer; 0: unknown.
    pub node: u64,
}

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LtxError {
    /// The file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is invalid.
    #[error("{0}")]
    Damaged(&'static str),
    /// The file may be valid, but this program does not support it.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// The page with SQLite's lock bytes, which SQLite does not use and no file has.
pub fn lock_page(page_bytes: u32) -> u32 {
    0x4000_0000u32.checked_div(page_bytes).unwrap_or(0).saturating_add(1)
}

impl Header {
    /// Whether the file has every page of the database.
    pub fn is_snapshot(&self) -> bool {
        self.min == 1
    }

    fn check(&self) -> Result<(), LtxError> {
        if !self.page_bytes.is_power_of_two() || !(512..=65_536).contains(&self.page_bytes) {
            return Err(LtxError::Damaged("no such page size"));
        }
        if self.pages == 0 {
            return Err(LtxError::Damaged("a database without a page"));
        }
        if self.min == 0 || self.min > self.max {
            return Err(LtxError::Damaged("no such transactions"));
        }
        Ok(())
    }

    fn encode(&self) -> Result<[u8; HEADER_BYTES], LtxError> {
        self.check()?;
        let mut bytes = [0; HEADER_BYTES];
        let fields: [(usize, &[u8]); 9] = [
            (0, MAGIC),
            (4, &NO_CHECKSUM.to_be_bytes()),
            (8, &self.page_bytes.to_be_bytes()),
            (12, &self.pages.to_be_bytes()),
            (16, &self.min.to_be_bytes()),
            (24, &self.max.to_be_bytes()),
            (32, &self.time_ms.to_be_bytes()),
            // 40: checksum of the database before; not kept.
            (48, &WAL_OFFSET.to_be_bytes()),
            // 56: bytes of a WAL; 64, 68: its salts.
            (72, &self.node.to_be_bytes()),
        ];
        for (at, field) in fields {
            let end = at.saturating_add(field.len());
            bytes.get_mut(at..end).ok_or(LtxError::Damaged("a header too short"))?.copy_from_slice(field);
        }
        Ok(bytes)
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, LtxError> {
        if bytes.first_chunk() != Some(MAGIC) {
            return Err(LtxError::Damaged("not an LTX file"));
        }
        let flags = u32_at(bytes, 4);
        if flags & !NO_CHECKSUM != 0 {
            return Err(LtxError::Unsupported("it has flags this version does not know"));
        }
        if flags & NO_CHECKSUM == 0 {
            return Err(LtxError::Unsupported("it keeps a checksum of the database, which Litestream's files do not"));
        }
        if u64_at(bytes, 40) != 0 {
            return Err(LtxError::Damaged("a checksum where there should be none"));
        }
        let header = Header {
            page_bytes: u32_at(bytes, 8),
            pages: u32_at(bytes, 12),
            min: u64_at(bytes, 16),
            max: u64_at(bytes, 24),
            time_ms: u64_at(bytes, 32).cast_signed(),
            node: u64_at(bytes, 72),
        };
        header.check()?;
        Ok(header)
    }
}

/// Zero if the bytes are missing: callers check the length.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u32::from_be_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b))
}

/// Where a page lies in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The page's number.
    pub page: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes in the file, with those before the page.
    pub bytes: u64,
}

/// Most bytes of a compressed page.
fn packed_bytes_max(page_bytes: u32) -> usize {
    lz4_flex::block::get_maximum_output_size(usize::try_from(page_bytes).unwrap_or(0))
}

/// Decompresses a page into `image`.
fn unpack(packed: &[u8], page_bytes: u32, image: &mut Vec<u8>) -> Result<(), LtxError> {
    image.resize(usize::try_from(page_bytes).unwrap_or(0), 0);
    match lz4_flex::block::decompress_into(packed, image) {
        Ok(unpacked) if unpacked == image.len() => Ok(()),
        _ => Err(LtxError::Damaged("a page that cannot be decompressed")),
    }
}

fn index(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        for number in [u64::from(frame.page), frame.offset, frame.bytes] {
            push_varint(&mut bytes, number);
        }
    }
    bytes.push(0);
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while let low @ 0x80.. = number {
        bytes.push(u8::try_from(low & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
}

/// The last page so far, so that neither side writes or accepts a wrong order.
#[derive(Debug)]
struct Order {
    header: Header,
    last: u32,
}

impl Order {
    fn new(header: Header) -> Order {
        Order { header, last: 0 }
    }

    fn next(&self) -> u32 {
        let next = self.last.saturating_add(1);
        if next == lock_page(self.header.page_bytes) { next.saturating_add(1) } else { next }
    }

    fn note(&mut self, page: u32) -> Result<(), LtxError> {
        if page <= self.last || page > self.header.pages || page == lock_page(self.header.page_bytes) {
            return Err(LtxError::Damaged("a page where it cannot be"));
        }
        if self.header.is_snapshot() && page != self.next() {
            return Err(LtxError::Damaged("a snapshot that lacks a page"));
        }
        self.last = page;
        Ok(())
    }

    fn end(&self) -> Result<(), LtxError> {
        if self.header.is_snapshot() && self.next() <= self.header.pages {
            return Err(LtxError::Damaged("a snapshot that lacks its last pages"));
        }
        Ok(())
    }
}
