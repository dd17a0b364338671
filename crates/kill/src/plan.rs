//! The plan: each transaction is a function of the plan's seed, the writer and the transaction's
//! number.
//!
//! A writer owns [`SLOTS`] slots of the table, which its transactions fill and empty. So the number
//! of its last transaction gives all rows of a writer, whenever its process was killed.

use fastrand::Rng;

/// With or without a thread in a process.
pub const WRITERS: u32 = 4;
/// Slots of one writer.
pub const SLOTS: u32 = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Puts a body of this many bytes into a slot.
    Put(u32, u32),
    /// Empties a slot.
    Delete(u32),
}

/// The changes of transaction `n`, in order.
pub fn transaction(plan: u64, writer: u32, n: i64) -> Vec<Op> {
    let mut rng = Rng::with_seed(mix(&[plan, u64::from(writer), n.cast_unsigned()]));
    let (count, bytes_max) = match rng.u32(0..20) {
        0 => (rng.u32(20..SLOTS), 12_000), // Streams: more than the smallest stream_size, 64 KiB.
        1..=6 => (rng.u32(2..9), 900),
        _ => (1, 200),
    };
    (0..count)
        .map(|_| {
            let slot = rng.u32(0..SLOTS);
            if rng.u32(0..8) == 0 { Op::Delete(slot) } else { Op::Put(slot, rng.u32(0..bytes_max)) }
        })
        .collect()
}

/// After transaction `n`: for each slot, the transaction and the bytes of the body.
pub fn rows(plan: u64, writer: u32, n: i64) -> Vec<Option<(i64, u32)>> {
    let mut rows = vec![None; SLOTS as usize];
    for n in 1..=n {
        for op in transaction(plan, writer, n) {
            let (slot, row) = match op {
                Op::Put(slot, bytes) => (slot, Some((n, bytes))),
                Op::Delete(slot) => (slot, None),
            };
            if let Some(place) = rows.get_mut(slot as usize) {
                *place = row;
            }
        }
    }
    rows
}

/// It does not compress.
pub fn body(plan: u64, writer: u32, n: i64, slot: u32, bytes: u32) -> Vec<u8> {
    let mut body = vec![0; bytes as usize];
    Rng::with_seed(mix(&[plan, u64::from(writer), n.cast_unsigned(), u64::from(slot)])).fill(&mut body);
    body
}

pub fn mix(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9_7f4a_7c15, |seed, n| Rng::with_seed(seed ^ n).u64(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_the_same_each_time_and_has_big_and_small_transactions() {
        let all: Vec<_> = (1..200).map(|n| transaction(7, 1, n)).collect();
        assert_eq!(all, (1..200).map(|n| transaction(7, 1, n)).collect::<Vec<_>>());
        assert!(all.iter().any(|t| t.len() == 1) && all.iter().any(|t| t.len() >= 20));
        assert_eq!(body(7, 1, 3, 5, 100), body(7, 1, 3, 5, 100));
        assert_ne!(body(7, 1, 3, 5, 100), body(7, 1, 4, 5, 100));
        let slots = rows(7, 1, 199);
        assert!(slots.iter().any(Option::is_some) && rows(7, 1, 0).iter().all(Option::is_none));
    }
}
