//! Whether explicit transactions usually write: of a connection, of a process, of a database.
//!
//! The nearest of the three that knows any decides: a process that only reads is judged by itself.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// How an explicit transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Read,
    Wrote,
    /// It was to write on a stale snapshot, and will come again.
    Stale,
}

/// 0: unknown; 1 and 2: they read; 3 and 4: they write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tendency(u8);

const READS: u8 = 2;
const WRITES: u8 = 3;
const SURELY: u8 = 4;

impl Tendency {
    pub fn is_unknown(self) -> bool {
        self.0 == 0
    }

    pub fn writes(self) -> Option<bool> {
        (!self.is_unknown()).then_some(self.0 >= WRITES)
    }

    #[must_use]
    pub fn after(self, ended: Ended) -> Tendency {
        Tendency(match (ended, self.0) {
            (Ended::Stale, _) => SURELY,
            (Ended::Wrote, 0) => WRITES,
            (Ended::Read, 0) => READS,
            (Ended::Wrote, n) => n.saturating_add(1).min(SURELY),
            (Ended::Read, n) => n.saturating_sub(1).max(1),
        })
    }

    pub fn of(word: &AtomicU64) -> Tendency {
        Tendency(u8::try_from(word.load(Relaxed)).unwrap_or(0).min(SURELY))
    }

    /// What another thread learns meanwhile may be lost: it is a guess.
    pub fn learn(word: &AtomicU64, ended: Ended) {
        let (before, after) = (Tendency::of(word), Tendency::of(word).after(ended));
        if before != after {
            word.store(u64::from(after.0), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(all: &[Ended]) -> Option<bool> {
        all.iter().fold(Tendency::default(), |tends, ended| tends.after(*ended)).writes()
    }

    #[test]
    fn one_of_its_kind_is_enough_and_one_of_the_other_kind_is_forgiven_where_many_were_alike() {
        use Ended::{Read, Stale, Wrote};
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[Wrote]), Some(true));
        assert_eq!(after(&[Read]), Some(false));
        assert_eq!(after(&[Wrote, Read]), Some(false));
        assert_eq!(after(&[Wrote, Wrote, Read]), Some(true));
        assert_eq!(after(&[Wrote, Wrote, Read, Read]), Some(false));
        assert_eq!(after(&[Read, Read, Wrote]), Some(false));
        assert_eq!(after(&[Read, Read, Read, Stale]), Some(true));
        assert_eq!(after(&[Read, Stale, Read]), Some(true));
    }

    #[test]
    fn a_damaged_word_is_no_more_than_a_guess() {
        let word = AtomicU64::new(u64::MAX);
        assert_eq!(Tendency::of(&word).writes(), None);
        word.store(200, Relaxed);
        assert_eq!(Tendency::of(&word).writes(), Some(true));
        Tendency::learn(&word, Ended::Read);
        assert_eq!(word.load(Relaxed), 3);
    }
}
