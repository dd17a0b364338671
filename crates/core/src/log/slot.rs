//! Header slots: where a log's live records begin, and home's state below them.
//!
//! Two are written in turn, so a torn write leaves the other. A slot is durable before the first
//! record that depends on it (invariant I3).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, le_u32, le_u64, put, slot as at};
use crate::base::options::LOG_BYTES_MAX;
use crate::base::types::{LogOffset, Tid};

/// The fields of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Block size of the log in bytes.
    pub block_bytes: u32,
    /// Grows with each slot written.
    pub sequence: u64,
    /// Also in the marked home.
    pub session: u64,
    /// In each record of the session.
    pub salt: u64,
    /// First live record. Of a closed log: behind the last record.
    pub start: LogOffset,
    /// In bytes.
    pub ring_bytes: u64,
    /// TID of home's state; the first live record has the next one.
    pub base_tid: Tid,
    /// No larger TID was ever used.
    pub tid_ceiling: Tid,
    /// crc32c to which the first live record chains.
    pub prev_crc: u32,
    /// In bytes.
    pub page_bytes: u32,
    /// Home's pages; 0: no database yet.
    pub page_count: u32,
    /// Change counter of home's state.
    pub change_counter: u32,
    /// No larger change counter was shown to a connection.
    pub counter_ceiling: u32,
    /// Whether home is marked with it.
    pub live: bool,
    /// Whether transactions behind the slot may have no record.
    pub in_place: bool,
}

/// The version of the slot at the beginning of `b`, valid or not; `None`: no slot.
pub fn version(b: &[u8]) -> Option<u32> {
    le_u32(b, at::AT_VERSION).filter(|_| le_u64(b, at::AT_MAGIC) == Some(at::MAGIC))
}

/// Random, yet recognizable as `before`'s successor in the same log.
pub fn session_after(before: u64, random: u64) -> u64 {
    (u64::from(crc32c::crc32c(&before.to_le_bytes())) << 32) | (random & u64::from(u32::MAX))
}

/// Whether `session` was made for `before`.
pub fn follows_session(session: u64, before: u64) -> bool {
    session_after(before, session) == session
}

impl Slot {
    /// Byte in the file.
    pub fn ring_at(&self) -> u64 {
        at::BLOCKS_BEFORE_RING * u64::from(self.block_bytes)
    }

    /// The two alternate.
    pub fn position(&self) -> u64 {
        let block = u64::from(self.block_bytes);
        if self.sequence.is_multiple_of(2) { block } else { block.saturating_mul(2) }
    }

    /// Whether pages have trailers of this session.
    pub fn is_in_page(&self) -> bool {
        self.in_place && self.page_count == at::PAGE_COUNT_IN_HOME
    }

    /// The slot's bytes.
    pub fn encode(&self) -> [u8; at::BYTES] {
        let mut b = [0; at::BYTES];
        put(&mut b, at::AT_MAGIC, &at::MAGIC.to_le_bytes());
        put(&mut b, at::AT_VERSION, &at::VERSION.to_le_bytes());
        put(&mut b, at::AT_BLOCK_BYTES, &self.block_bytes.to_le_bytes());
        put(&mut b, at::AT_SEQUENCE, &self.sequence.to_le_bytes());
        put(&mut b, at::AT_SESSION, &self.session.to_le_bytes());
        put(&mut b, at::AT_SALT, &self.salt.to_le_bytes());
        put(&mut b, at::AT_START, &self.start.0.to_le_bytes());
        put(&mut b, at::AT_RING_BYTES, &self.ring_bytes.to_le_bytes());
        put(&mut b, at::AT_BASE_TID, &self.base_tid.0.to_le_bytes());
        put(&mut b, at::AT_TID_CEILING, &self.tid_ceiling.0.to_le_bytes());
        put(&mut b, at::AT_PREV_CRC, &self.prev_crc.to_le_bytes());
        put(&mut b, at::AT_PAGE_BYTES, &self.page_bytes.to_le_bytes());
        put(&mut b, at::AT_PAGE_COUNT, &self.page_count.to_le_bytes());
        put(&mut b, at::AT_CHANGE_COUNTER, &self.change_counter.to_le_bytes());
        put(&mut b, at::AT_COUNTER_CEILING, &self.counter_ceiling.to_le_bytes());
        let state = match (self.live, self.in_place) {
            (false, _) => at::STATE_CLEAN,
            (true, false) => at::STATE_LIVE,
            (true, true) => at::STATE_LIVE_IN_PLACE,
        };
        put(&mut b, at::AT_STATE, &state.to_le_bytes());
        let crc = crc32c::crc32c(b.get(..at::AT_CRC).unwrap_or_default());
        put(&mut b, at::AT_CRC, &crc.to_le_bytes());
        b
    }

    /// Decodes a slot; `None` unless name, version, checksum and numbers are valid, and the file
    /// holds the ring.
    pub fn decode(b: &[u8], file_bytes: u64) -> Option<Slot> {
        if version(b)? != at::VERSION {
            return None;
        }
        if le_u32(b, at::AT_CRC)? != crc32c::crc32c(b.get(..at::AT_CRC)?) {
            return None;
        }
        let state = le_u32(b, at::AT_STATE)?;
        let (live, in_place) = match state {
            at::STATE_CLEAN => (false, false),
            at::STATE_LIVE => (true, false),
            at::STATE_LIVE_IN_PLACE => (true, true),
            _ => return None,
        };
        let slot = Slot {
            block_bytes: le_u32(b, at::AT_BLOCK_BYTES)?,
            sequence: le_u64(b, at::AT_SEQUENCE)?,
            session: le_u64(b, at::AT_SESSION)?,
            salt: le_u64(b, at::AT_SALT)?,
            start: LogOffset(le_u64(b, at::AT_START)?),
            ring_bytes: le_u64(b, at::AT_RING_BYTES)?,
            base_tid: Tid(le_u64(b, at::AT_BASE_TID)?),
            tid_ceiling: Tid(le_u64(b, at::AT_TID_CEILING)?),
            prev_crc: le_u32(b, at::AT_PREV_CRC)?,
            page_bytes: le_u32(b, at::AT_PAGE_BYTES)?,
            page_count: le_u32(b, at::AT_PAGE_COUNT)?,
            change_counter: le_u32(b, at::AT_CHANGE_COUNTER)?,
            counter_ceiling: le_u32(b, at::AT_COUNTER_CEILING)?,
            live,
            in_place,
        };
        let block = u64::from(slot.block_bytes);
        let possible = slot.block_bytes.is_power_of_two()
            && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&slot.block_bytes)
            && (block..=LOG_BYTES_MAX).contains(&slot.ring_bytes)
            && slot.ring_bytes.checked_rem(block)? == 0
            && block.checked_mul(3)?.checked_add(slot.ring_bytes)? <= file_bytes
            && slot.page_bytes.is_power_of_two()
            && (512..=65536).contains(&slot.page_bytes)
            && slot.base_tid <= slot.tid_ceiling
            && slot.sequence < u64::MAX / 2
            && slot.start.0 < u64::MAX / 2
            && slot.tid_ceiling.0 < u64::MAX / 2;
        possible.then_some(slot)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot() -> Slot {
        Slot {
            block_bytes: 4096,
            sequence: 7,
            session: 11,
            salt: 13,
            start: LogOffset(4096),
            ring_bytes: 1 << 20,
            base_tid: Tid(17),
            tid_ceiling: Tid(19),
            prev_crc: 23,
            page_bytes: 4096,
            page_count: 29,
            change_counter: 31,
            counter_ceiling: 37,
            live: true,
            in_place: true,
        }
    }

    #[test]
    fn slots_are_decoded_as_encoded() {
        assert_eq!(Slot::decode(&slot().encode(), 2 << 20), Some(slot()));
    }

    #[test]
    fn a_slot_of_another_version_is_not_read() {
        let of = |version: u32| {
            let mut b = slot().encode();
            put(&mut b, at::AT_VERSION, &version.to_le_bytes());
            let crc = crc32c::crc32c(&b[..at::AT_CRC]);
            put(&mut b, at::AT_CRC, &crc.to_le_bytes());
            Slot::decode(&b, 2 << 20)
        };
        assert_eq!([0, 4, 5, 6].map(of), [None, None, Some(slot()), None]);
    }

    #[test]
    fn a_ring_longer_than_the_file_is_refused() {
        assert_eq!(Slot::decode(&slot().encode(), 1 << 20), None);
    }

    #[test]
    fn numbers_that_leave_no_room_to_count_on_are_refused() {
        let end = u64::MAX / 2;
        let last = Slot { sequence: end - 1, start: LogOffset(end - 1), tid_ceiling: Tid(end - 1), ..slot() };
        assert_eq!(Slot::decode(&last.encode(), 2 << 20), Some(last.clone()));
        for slot in [
            Slot { sequence: end, ..last.clone() },
            Slot { start: LogOffset(end), ..last.clone() },
            Slot { tid_ceiling: Tid(end), ..last },
        ] {
            assert_eq!(Slot::decode(&slot.encode(), 2 << 20), None, "{slot:?}");
        }
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_refused(at in 0..at::BYTES, xor in 1u8..) {
            let mut b = slot().encode();
            b[at] ^= xor;
            prop_assert_eq!(Slot::decode(&b, u64::MAX), None);
        }

        #[test]
        fn no_bytes_panic(b in proptest::collection::vec(any::<u8>(), 0..128)) {
            prop_assert_eq!(Slot::decode(&b, u64::MAX), None);
        }
    }
}
