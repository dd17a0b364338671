//! SQLite's WAL: valid frames have its salt and chained checksums, up to the last that ends a
//! transaction.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use crate::base::layout::{be_u32, wal};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalChecksum {
    /// In bytes.
    pub page_bytes: u32,
    big_endian: bool,
    salt: [u8; wal::SALT_BYTES],
    sums: (u32, u32),
}

/// A WAL by its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalHead {
    /// Nothing valid.
    Nothing,
    /// Another version of the format.
    Version(u32),
    /// Frames follow.
    Chain(WalChecksum),
}

impl WalHead {
    /// Decodes the header of a WAL.
    pub fn decode(bytes: &[u8]) -> WalHead {
        let field = |at| be_u32(bytes, at).unwrap_or(0);
        let (magic, page_bytes) = (field(wal::AT_MAGIC), field(wal::AT_PAGE_BYTES));
        let sized = page_bytes.is_power_of_two() && (512..=65536).contains(&page_bytes);
        let salt = bytes.get(wal::AT_SALT..wal::AT_CHECKSUM).and_then(|salt| salt.try_into().ok());
        let (Some(salt), Some(summed), true) = (salt, bytes.get(..wal::AT_CHECKSUM), magic & !1 == wal::MAGIC && sized)
        else {
            return WalHead::Nothing;
        };
        let big_endian = magic & 1 == 1;
        let sums = sum((0, 0), summed, big_endian);
        if sums != (field(wal::AT_CHECKSUM), field(wal::AT_CHECKSUM + 4)) || bytes.len() < wal::HEADER_BYTES {
            return WalHead::Nothing;
        }
        match field(wal::AT_VERSION) {
            wal::VERSION => WalHead::Chain(WalChecksum { page_bytes, big_endian, salt, sums }),
            version => WalHead::Version(version),
        }
    }
}

impl WalChecksum {
    /// Its page, and the database's page count if it ends a transaction, else 0. `None`: the WAL's
    /// end.
    pub fn next(&mut self, frame: &[u8]) -> Option<(u32, u32)> {
        let (head, image) = frame.split_at_checked(wal::FRAME_HEAD_BYTES)?;
        let page = be_u32(head, wal::AT_FRAME_PAGE).filter(|page| *page != 0)?;
        let commit = be_u32(head, wal::AT_FRAME_COMMIT)?;
        let salt = head.get(wal::AT_FRAME_SALT..wal::AT_FRAME_CHECKSUM)?;
        if salt != self.salt || image.len() != self.page_bytes as usize {
            return None;
        }
        let sums = sum(self.sums, head.get(..wal::AT_FRAME_SALT)?, self.big_endian);
        let sums = sum(sums, image, self.big_endian);
        if (be_u32(head, wal::AT_FRAME_CHECKSUM)?, be_u32(head, wal::AT_FRAME_CHECKSUM + 4)?) != sums {
            return None;
        }
        self.sums = sums;
        Some((page, commit))
    }
}

fn sum(mut sums: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let word = |b: &[u8]| {
        let word = <[u8; 4]>::try_from(b).unwrap_or_default();
        if big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    };
    for pair in bytes.chunks_exact(8) {
        let (one, two) = pair.split_at(4);
        sums.0 = sums.0.wrapping_add(word(one)).wrapping_add(sums.1);
        sums.1 = sums.1.wrapping_add(word(two)).wrapping_add(sums.0);
    }
    sums
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::base::layout::put;
    use proptest::prelude::*;

    fn sealed(frames: &[(u32, u32, u8)], page_bytes: usize, big_endian: bool) -> Vec<u8> {
        let mut log = vec![0; wal::HEADER_BYTES];
        put(&mut log, wal::AT_MAGIC, &(wal::MAGIC | u32::from(big_endian)).to_be_bytes());
        put(&mut log, wal::AT_VERSION, &wal::VERSION.to_be_bytes());
        put(&mut log, wal::AT_PAGE_BYTES, &(page_bytes as u32).to_be_bytes());
        put(&mut log, wal::AT_SALT, b"salt1234");
        let mut sums = sum((0, 0), &log[..wal::AT_CHECKSUM], big_endian);
        put(&mut log, wal::AT_CHECKSUM, &sums.0.to_be_bytes());
        put(&mut log, wal::AT_CHECKSUM + 4, &sums.1.to_be_bytes());
        for (page, commit, fill) in frames {
            let mut frame = vec![*fill; wal::FRAME_HEAD_BYTES + page_bytes];
            put(&mut frame, wal::AT_FRAME_PAGE, &page.to_be_bytes());
            put(&mut frame, wal::AT_FRAME_COMMIT, &commit.to_be_bytes());
            put(&mut frame, wal::AT_FRAME_SALT, b"salt1234");
            sums = sum(sums, &frame[..wal::AT_FRAME_SALT], big_endian);
            sums = sum(sums, &frame[wal::FRAME_HEAD_BYTES..], big_endian);
            put(&mut frame, wal::AT_FRAME_CHECKSUM, &sums.0.to_be_bytes());
            put(&mut frame, wal::AT_FRAME_CHECKSUM + 4, &sums.1.to_be_bytes());
            log.extend(frame);
        }
        log
    }

    fn walk(log: &[u8]) -> Vec<(u32, u32)> {
        let WalHead::Chain(mut chain) = WalHead::decode(&log[..log.len().min(wal::HEADER_BYTES)]) else {
            return Vec::new();
        };
        let frames = log[wal::HEADER_BYTES..].chunks(wal::FRAME_HEAD_BYTES + chain.page_bytes as usize);
        frames.map_while(|frame| chain.next(frame)).collect()
    }

    #[test]
    fn a_frame_counts_up_to_the_first_that_does_not() {
        for big_endian in [false, true] {
            let frames = [(1, 0, 3), (2, 2, 4), (1, 2, 5)];
            let log = sealed(&frames, 512, big_endian);
            assert_eq!(walk(&log), [(1, 0), (2, 2), (1, 2)]);
            for at in 0..log.len() {
                let mut bad = log.clone();
                bad[at] ^= 0x10;
                let whole = at.saturating_sub(wal::HEADER_BYTES) / (wal::FRAME_HEAD_BYTES + 512);
                let left = if at < wal::HEADER_BYTES { 0 } else { whole };
                assert_eq!(walk(&bad).len(), left, "byte {at}");
            }
            assert_eq!(walk(&log[..log.len() - 1]).len(), 2);
        }
        let mut other = sealed(&[], 512, false);
        other[wal::AT_VERSION + 3] ^= 1;
        let sums = sum((0, 0), &other[..wal::AT_CHECKSUM], false);
        put(&mut other, wal::AT_CHECKSUM, &sums.0.to_be_bytes());
        put(&mut other, wal::AT_CHECKSUM + 4, &sums.1.to_be_bytes());
        assert_eq!(WalHead::decode(&other), WalHead::Version(wal::VERSION ^ 1));
    }

    proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), seal: bool) {
    let mut log = if seal { sealed(&[(1, 1, 0)], 512, false) } else { Vec::new() };
    log.extend(&bytes);
    if log.len() >= wal::HEADER_BYTES {
    let _ = walk(&log);
    }
    let _ = WalHead::decode(&bytes);
    }
    }
}
