//! The snapshots that are pinned, by the transaction that each reads up to.
//!
//! There are few of them, and the newest comes and goes with each transaction: a sorted list, which keeps its memory.

use crate::base::types::Tid;

/// Pinned snapshots: TID and how many, in the order of the TIDs.
#[derive(Clone, Debug, Default)]
pub struct Snapshots(Vec<(Tid, usize)>);

impl Snapshots {
    /// Adds one.
    pub fn pin(&mut self, tid: Tid) {
        let at = self.below(tid);
        match self.0.get_mut(at) {
            Some((known, count)) if *known == tid => *count += 1,
            _ => self.0.insert(at, (tid, 1)),
        }
    }

    /// Takes one away; whether it was the last of its TID.
    pub fn unpin(&mut self, tid: Tid) -> bool {
        let at = self.below(tid);
        let Some((_, count)) = self.0.get_mut(at).filter(|(known, _)| *known == tid) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.0.remove(at);
        true
    }

    /// Whether there is one of `tid`.
    pub fn has(&self, tid: Tid) -> bool {
        self.has_any(tid, tid.next())
    }

    /// Whether there is one from `from` on and before `until`.
    pub fn has_any(&self, from: Tid, until: Tid) -> bool {
        self.0.get(self.below(from)).is_some_and(|(tid, _)| *tid < until)
    }

    /// The TIDs, each once, in order.
    pub fn tids(&self) -> impl Iterator<Item = Tid> {
        self.0.iter().map(|(tid, _)| *tid)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many TIDs are below `tid`.
    fn below(&self, tid: Tid) -> usize {
        self.0.partition_point(|(known, _)| *known < tid)
    }
}

#[cfg(test)]
impl<const N: usize> From<[u64; N]> for Snapshots {
    fn from(tids: [u64; N]) -> Self {
        let mut snapshots = Snapshots::default();
        tids.iter().for_each(|tid| snapshots.pin(Tid(*tid)));
        snapshots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pinned_twice_is_there_until_it_is_given_back_twice() {
        let mut snapshots = Snapshots::from([5, 2, 5, 9]);
        assert_eq!((snapshots.count(), snapshots.tids().collect::<Vec<_>>()), (4, vec![Tid(2), Tid(5), Tid(9)]));
        assert!(!snapshots.unpin(Tid(5)) && snapshots.has(Tid(5)));
        assert!(snapshots.unpin(Tid(5)) && !snapshots.has(Tid(5)));
        assert!(!snapshots.unpin(Tid(5)) && !snapshots.unpin(Tid(10)));
        assert!(snapshots.unpin(Tid(2)) && snapshots.unpin(Tid(9)) && snapshots.is_empty());
    }

    #[test]
    fn a_range_ends_before_its_end() {
        let snapshots = Snapshots::from([2, 5]);
        let some: Vec<_> = (0..7).map(|from| snapshots.has_any(Tid(from), Tid(5))).collect();
        assert_eq!(some, [true, true, true, false, false, false, false]);
        assert!(!snapshots.has_any(Tid(2), Tid(2)) && snapshots.has_any(Tid(5), Tid(6)));
    }
}
