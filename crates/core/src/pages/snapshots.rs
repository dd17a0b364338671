//! Pinned snapshots by TID: a sorted list, for they are few and the newest comes and goes with each
//! transaction.

use crate::base::types::{PageNo, Tid};

#[derive(Clone, Debug, Default)]
pub struct Snapshots(Vec<PinnedSnapshots>);

#[derive(Clone, Debug)]
struct PinnedSnapshots {
    tid: Tid,
    count: usize,
    pages: u32,
}

impl Snapshots {
    pub fn pin(&mut self, tid: Tid, pages: u32) {
        let at = self.below(tid);
        match self.0.get_mut(at) {
            Some(pinned) if pinned.tid == tid => {
                pinned.count += 1;
                pinned.pages = pinned.pages.max(pages);
            }
            _ => self.0.insert(at, PinnedSnapshots { tid, count: 1, pages }),
        }
    }

    /// Returns whether it was the last of its TID.
    pub fn unpin(&mut self, tid: Tid) -> bool {
        let at = self.below(tid);
        let Some(pinned) = self.0.get_mut(at).filter(|pinned| pinned.tid == tid) else { return false };
        pinned.count -= 1;
        if pinned.count > 0 {
            return false;
        }
        self.0.remove(at);
        true
    }

    pub fn has(&self, tid: Tid) -> bool {
        self.has_any(tid, tid.next())
    }

    pub fn has_any(&self, from: Tid, until: Tid) -> bool {
        self.0.get(self.below(from)).is_some_and(|pinned| pinned.tid < until)
    }

    pub fn has_any_with(&self, page: PageNo, from: Tid, until: Tid) -> bool {
        let mut from = self.0.iter().skip(self.below(from)).take_while(|pinned| pinned.tid < until);
        from.any(|pinned| page.0 <= pinned.pages)
    }

    pub fn tids(&self) -> impl Iterator<Item = Tid> {
        self.0.iter().map(|pinned| pinned.tid)
    }

    /// Each TID comes once, in order.
    pub fn tids_with(&self, page: PageNo) -> impl Iterator<Item = Tid> {
        self.0.iter().filter(move |pinned| page.0 <= pinned.pages).map(|pinned| pinned.tid)
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|pinned| pinned.count).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn below(&self, tid: Tid) -> usize {
        self.0.partition_point(|pinned| pinned.tid < tid)
    }
}

#[cfg(test)]
impl<const N: usize> From<[u64; N]> for Snapshots {
    fn from(tids: [u64; N]) -> Self {
        let mut snapshots = Snapshots::default();
        tids.iter().for_each(|tid| snapshots.pin(Tid(*tid), u32::MAX));
        snapshots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_pinned_twice_stays_until_it_is_given_back_twice() {
        let mut snapshots = Snapshots::from([5, 2, 5, 9]);
        assert_eq!((snapshots.count(), snapshots.tids().collect::<Vec<_>>()), (4, vec![Tid(2), Tid(5), Tid(9)]));
        assert!(!snapshots.unpin(Tid(5)) && snapshots.has(Tid(5)));
        assert!(snapshots.unpin(Tid(5)) && !snapshots.has(Tid(5)));
        assert!(!snapshots.unpin(Tid(5)) && !snapshots.unpin(Tid(10)));
        assert!(snapshots.unpin(Tid(2)) && snapshots.unpin(Tid(9)) && snapshots.is_empty());
    }

    #[test]
    fn a_page_is_in_the_longest_state_of_a_transaction() {
        let mut snapshots = Snapshots::default();
        for (tid, pages) in [(9, 4), (9, 3), (5, 2), (7, 8)] {
            snapshots.pin(Tid(tid), pages);
        }
        let with = |page| snapshots.tids_with(PageNo(page)).map(|tid| tid.0).collect::<Vec<_>>();
        assert_eq!([with(2), with(4), with(5)], [vec![5, 7, 9], vec![7, 9], vec![7]]);
        let any = |page, from, until| snapshots.has_any_with(PageNo(page), Tid(from), Tid(until));
        assert!(any(2, 5, 6) && !any(3, 5, 7) && any(3, 5, 8) && !any(5, 8, 10));
    }

    #[test]
    fn a_range_ends_before_its_end() {
        let snapshots = Snapshots::from([2, 5]);
        let some: Vec<_> = (0..7).map(|from| snapshots.has_any(Tid(from), Tid(5))).collect();
        assert_eq!(some, [true, true, true, false, false, false, false]);
        assert!(!snapshots.has_any(Tid(2), Tid(2)) && snapshots.has_any(Tid(5), Tid(6)));
    }
}
