//! Tombstones: the last close writes one over each ring sector that held records.
//!
//! All of the named session is durable at home: this tells a recovery whose home is still marked
//! after a power cut, with part of the records gone (rule CloseProven).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::layout::{SECTOR_BYTES, le_u32, le_u64, put, tombstone as at};
use crate::base::types::Tid;

/// A session that ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// As in its slots.
    pub session: u64,
    /// Home holds all up to it.
    pub tid: Tid,
}

impl Tombstone {
    /// Its sector.
    pub fn encode(&self) -> [u8; SECTOR_BYTES] {
        let mut b = [0; SECTOR_BYTES];
        put(&mut b, at::AT_MAGIC, &at::MAGIC.to_le_bytes());
        put(&mut b, at::AT_SESSION, &self.session.to_le_bytes());
        put(&mut b, at::AT_TID, &self.tid.0.to_le_bytes());
        let crc = crc32c::crc32c(b.get(..at::AT_CRC).unwrap_or_default());
        put(&mut b, at::AT_CRC, &crc.to_le_bytes());
        b
    }

    /// `None` unless it is exactly a tombstone.
    pub fn decode(sector: &[u8]) -> Option<Tombstone> {
        let sound = le_u64(sector, at::AT_MAGIC)? == at::MAGIC
            && le_u32(sector, at::AT_CRC)? == crc32c::crc32c(sector.get(..at::AT_CRC)?)
            && is_zeros(sector.get(at::BYTES..)?);
        sound.then_some(Tombstone { session: le_u64(sector, at::AT_SESSION)?, tid: Tid(le_u64(sector, at::AT_TID)?) })
    }
}

/// Whether nothing else is left.
pub fn is_wiped(sectors: &[u8]) -> bool {
    is_zeros(sectors) || sectors.chunks(SECTOR_BYTES).all(|s| is_zeros(s) || Tombstone::decode(s).is_some())
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_and_nothing_near_it(session: u64, tid: u64, at in 0..SECTOR_BYTES, xor in 1u8..) {
            let stone = Tombstone { session, tid: Tid(tid) };
            let mut b = stone.encode();
            prop_assert_eq!(Tombstone::decode(&b), Some(stone));
            prop_assert!(is_wiped(&[b, [0; SECTOR_BYTES]].concat()));
            b[at] ^= xor;
            prop_assert_eq!(Tombstone::decode(&b), None);
            prop_assert!(!is_wiped(&b));
        }

        #[test]
        fn no_bytes_panic(b in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert_eq!(Tombstone::decode(&b), None);
            let _ = is_wiped(&b);
        }
    }
}
