//! Which state SQLite takes its page cache for.
//!
//! SQLite keeps its cache from one transaction to the next if the 16 bytes from offset 24 of the file (change counter,
//! sizes) are those it has seen with page 1 last, or has written itself (`sqlite3PagerSharedLock`). It writes one more
//! than it saw also where there is no transaction, since nothing changed, and that number is later another
//! transaction's, perhaps of another process (rule CacheKnowsItsState).
//!
//! The drop-in library keeps the pages that are the same in the state that it finds (rule CacheKnowsItsState).

use crate::base::layout::{be_u32, home as at};
use crate::base::types::Tid;
use crate::pages::table::{PageTable, StateId, state_id};
use crate::sqlite_format::home::State;

/// Bytes from [`at::CHANGE_COUNTER`] on that SQLite compares.
pub const VERSION_BYTES: usize = 16;

/// What is known of SQLite's page cache.
#[derive(Default)]
pub struct CacheVersion {
    /// The change counter that SQLite saw with page 1 last, or wrote.
    counter: Option<u32>,
    /// The state whose pages the cache holds, and the counter SQLite knows it by.
    left: Option<(StateId, u32)>,
    /// Under its lock SQLite has looked whether its cache still holds, or read page 1.
    has_looked: bool,
    /// The pages that differ from the state whose pages the cache holds.
    changed: Vec<u32>,
}

impl CacheVersion {
    /// SQLite has read or written `bytes` of page 1 from `offset` on.
    pub fn saw(&mut self, bytes: &[u8], offset: u64) {
        if offset == 0
            && bytes.len() > at::HEADER_BYTES
            && let Some(counter) = be_u32(bytes, at::CHANGE_COUNTER)
        {
            self.counter = Some(counter);
            self.has_looked = true;
        }
    }

    /// SQLite gives back its lock, with the pages of `state` in its cache; `None`: what they are of is for the file below to
    /// say. If it has not come to look, they are of what they were before.
    pub fn leave(&mut self, state: Option<&State>) {
        if std::mem::take(&mut self.has_looked) || state.is_none() {
            self.left = state.map(state_id).zip(self.counter);
        }
    }

    /// SQLite looks whether its cache still holds: the answer is in `version`, as `state` says it, and becomes
    /// different from what it remembers if it would mistake another state for its own, and the same if it is its own.
    pub fn answer(&mut self, state: &State, version: &mut [u8; VERSION_BYTES]) {
        self.has_looked = true;
        let Some((left, counter)) = self.left else { return };
        let (head, _) = version.split_at_mut(4);
        if state.tid == Tid::HOME && left.0 == Tid::HOME {
            // A plain file, whose counter every writer raises.
        } else if state_id(state) == left {
            head.copy_from_slice(&counter.to_be_bytes());
        } else if state.change_counter == counter {
            head.copy_from_slice(&(!counter).to_be_bytes());
        }
    }

    /// The pages in which `state` may differ from what the cache holds, page 1 among them or not; `None`: any. Asked where the
    /// version was found to be another one.
    pub fn changed(&mut self, state: &State, table: &PageTable) -> Option<&[u32]> {
        let (left, _) = self.left?;
        self.changed.clear();
        let is_known = left.0 != Tid::HOME && table.changed_between(left, state_id(state), &mut self.changed);
        is_known.then_some(&*self.changed)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::base::types::PageNo;

    fn state(tid: u64, counter: u32) -> State {
        State { change_counter: counter, ..State::empty(Tid(tid)) }
    }

    fn answer(cache: &mut CacheVersion, state: &State) -> u32 {
        let mut version = [0; VERSION_BYTES];
        version[..4].copy_from_slice(&state.change_counter.to_be_bytes());
        cache.answer(state, &mut version);
        be_u32(&version, 0).unwrap_or(0)
    }

    #[test]
    fn only_the_state_in_the_cache_has_the_number_that_sqlite_knows_it_by() {
        let mut cache = CacheVersion::default();
        assert_eq!(answer(&mut cache, &state(7, 5)), 5);
        let mut page = vec![0; 512];
        page[24..28].copy_from_slice(&6u32.to_be_bytes());
        // A commit that changed nothing: transaction 7, whose counter is 5, is in the cache as 6.
        cache.saw(&page, 0);
        cache.leave(Some(&state(7, 5)));
        assert_eq!(answer(&mut cache, &state(7, 5)), 6);
        assert_eq!(answer(&mut cache, &state(8, 6)), !6);
        assert_eq!(answer(&mut cache, &state(9, 7)), 7);
        // What a connection that stepped aside left in home, under a log begun anew.
        assert_eq!(answer(&mut cache, &state(7, 8)), 8);
        assert_eq!(answer(&mut cache, &state(7, 6)), !6);
        // Part of the page, or another, says nothing.
        cache.saw(&page[..100], 0);
        cache.saw(&page, 512);
        cache.leave(None);
        assert_eq!(answer(&mut cache, &state(8, 6)), 6);
    }

    #[test]
    fn a_lock_under_which_sqlite_did_not_look_leaves_the_cache_as_it_was() {
        let mut cache = CacheVersion::default();
        let mut page = vec![0; 512];
        page[24..28].copy_from_slice(&5u32.to_be_bytes());
        cache.saw(&page, 0);
        cache.leave(Some(&state(7, 5)));
        cache.leave(Some(&state(8, 6)));
        assert_eq!(answer(&mut cache, &state(8, 6)), 6, "another than the cache is known by");
        cache.leave(Some(&state(8, 6)));
        assert_eq!(answer(&mut cache, &state(8, 6)), 5);
    }

    #[test]
    fn what_changed_since_is_known_as_long_as_no_step_is_missing() {
        let mut table = PageTable::default();
        assert!(!table.changed_between((Tid(6), 6), (Tid(7), 7), &mut Vec::new()), "told from here on");
        let of = |pages: &[u32]| pages.iter().map(|page| PageNo(*page)).collect::<Vec<_>>();
        for (tid, pages) in [(8, vec![1, 4]), (9, vec![1, 5]), (11, vec![6])] {
            let (from, to) = (state(tid - 1, tid as u32 - 1), state(tid, tid as u32));
            table.note_step(&from, &to, of(&pages).into_iter());
        }
        let mut cache = CacheVersion { left: Some(((Tid(7), 7), 7)), ..CacheVersion::default() };
        assert_eq!(cache.changed(&state(8, 8), &table), Some(&[1, 4][..]));
        assert_eq!(cache.changed(&state(9, 9), &table), Some(&[1, 5, 1, 4][..]));
        for unknown in [state(9, 10), state(10, 10), state(11, 11), state(12, 12)] {
            assert_eq!(cache.changed(&unknown, &table), None);
        }
        // Many pages, fewer of them than before, and another size are not told.
        let many: Vec<PageNo> = (1..100).map(PageNo).collect();
        table.note_step(&state(11, 11), &state(12, 12), many.into_iter());
        table.note_step(&State { page_count: 9, ..state(12, 12) }, &state(13, 13), of(&[1]).into_iter());
        table.note_step(&state(13, 13), &State { page_bytes: 512, ..state(14, 14) }, of(&[1]).into_iter());
        for tid in 11..14 {
            cache.left = Some(((Tid(tid), tid as u32), 0));
            assert_eq!(cache.changed(&state(tid + 1, tid as u32 + 1), &table), None, "{tid}");
        }
    }
}
