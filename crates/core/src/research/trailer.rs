//! Trailers in the reserved bytes of pages, of the in-page schemes.
//!
//! A trailer counts only with the session of the log's slot, a TID above the slot's, and the page's
//! checksum. All others are legal: SQLite carries trailers along when it copies pages.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::layout::{home, le_u16, le_u32, le_u64, put, trailer as at};
use crate::base::types::{PageNo, Tid};

/// Bytes of page 1 outside its trailer's checksum: versions, change counter, mark, the counter
/// again with SQLite's version.
pub const UNCHECKED: [std::ops::Range<usize>; 4] = [18..20, 24..28, MARK, 92..100];
/// Bytes after the session count as zeros, as SQLite has them.
const MARK: std::ops::Range<usize> = home::SESSION..home::SESSION + home::MARK_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The transaction that wrote the page.
    pub tid: Tid,
    pub session: u64,
    /// Pages of that transaction.
    pub tx_pages: u32,
    /// Change counter after it.
    pub change_counter: u32,
    /// Start and length; length 0: no record.
    pub undo: (u16, u16),
}

impl Trailer {
    /// The trailer, if the page is whole.
    pub fn of(page: PageNo, image: &[u8]) -> Option<Trailer> {
        let b = image.get(image.len().checked_sub(at::BYTES)?..)?;
        let trailer = Trailer {
            tid: Tid(le_u64(b, at::AT_TID)?),
            session: le_u64(b, at::AT_SESSION)?,
            tx_pages: le_u32(b, at::AT_TX_PAGES)?,
            change_counter: le_u32(b, at::AT_CHANGE_COUNTER)?,
            undo: (le_u16(b, at::AT_UNDO_AT)?, le_u16(b, at::AT_UNDO_LEN)?),
        };
        (le_u32(b, at::AT_CRC)? == checksum(page, image)).then_some(trailer)
    }

    pub fn seal(&self, page: PageNo, image: &mut [u8]) {
        let mut b = [0; at::BYTES];
        put(&mut b, at::AT_TID, &self.tid.0.to_le_bytes());
        put(&mut b, at::AT_SESSION, &self.session.to_le_bytes());
        put(&mut b, at::AT_TX_PAGES, &self.tx_pages.to_le_bytes());
        put(&mut b, at::AT_CHANGE_COUNTER, &self.change_counter.to_le_bytes());
        put(&mut b, at::AT_UNDO_AT, &self.undo.0.to_le_bytes());
        put(&mut b, at::AT_UNDO_LEN, &self.undo.1.to_le_bytes());
        set(image, &b);
        reseal(page, image);
    }
}

pub fn set(image: &mut [u8], trailer: &[u8]) {
    let at = image.len().saturating_sub(at::BYTES);
    put(image, at, trailer);
}

pub fn settle(page: PageNo, image: &mut [u8]) {
    let at = image.len().saturating_sub(at::BYTES);
    put(image, at.saturating_add(at::AT_UNDO_AT), &[0; 4]);
    reseal(page, image);
}

fn reseal(page: PageNo, image: &mut [u8]) {
    let crc = checksum(page, image);
    let at = image.len().saturating_sub(at::BYTES).saturating_add(at::AT_CRC);
    put(image, at, &crc.to_le_bytes());
}

/// crc32c of page number and page, without changing bytes and itself.
fn checksum(page: PageNo, image: &[u8]) -> u32 {
    let mut crc = crc32c::crc32c(&page.0.to_le_bytes());
    let mut from = 0;
    let crc_at = image.len().saturating_sub(at::BYTES).saturating_add(at::AT_CRC);
    let unchecked: &[_] = if page == PageNo::HEADER { &UNCHECKED } else { &[] };
    for left_out in unchecked.iter().cloned().chain(std::iter::once(crc_at..crc_at.saturating_add(4))) {
        crc = crc32c::crc32c_append(crc, image.get(from..left_out.start).unwrap_or_default());
        from = left_out.end;
        if left_out == MARK {
            crc = crc32c::crc32c_append(crc, &[0; home::MARK_BYTES - 8]);
        }
    }
    crc32c::crc32c_append(crc, image.get(from..).unwrap_or_default())
}
