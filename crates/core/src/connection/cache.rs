//! The state that SQLite's page cache holds.
//!
//! SQLite keeps its cache between transactions if the 16 bytes from offset 24 of the file (change
//! counter, sizes) are those it last saw with page 1 or wrote (`sqlite3PagerSharedLock`). It also
//! writes the seen counter plus one where nothing changed and there is no transaction; a later
//! transaction, perhaps of another process, has that number (rule CacheKnowsItsState).
//!
//! The drop-in library keeps the pages that are the same in the new state.

use rustc_hash::FxHashSet;

use crate::base::layout::{be_u32, home as at};
use crate::base::types::{PageNo, Tid};
use crate::pages::table::{PageTable, StateId, state_id};
use crate::sqlite_format::home::State;

/// No state is this one.
const NO_STATE: StateId = (Tid(u64::MAX), 0);

#[derive(Default)]
pub struct CacheVersion {
    /// The counter last seen with page 1, or written.
    counter: Option<u32>,
    /// The cached state, and the counter SQLite knows it by.
    left: Option<(StateId, u32)>,
    has_looked: bool,
    changed: Vec<u32>,
    cached: Cached,
}

/// More pages are not noted, but for a transaction of `concurrent=1`.
const CACHED_MAX: usize = 4096;

/// The pages that SQLite's cache may hold: those read and written since it was emptied.
#[derive(Default)]
struct Cached {
    pages: FxHashSet<PageNo>,
    /// Those before SQLite looked at the state last: own SQLite may keep them.
    before: FxHashSet<PageNo>,
    /// It may hold others, too.
    is_unknown: bool,
    was_unknown: bool,
}

impl Cached {
    /// SQLite finds its cache stale.
    fn empty(&mut self) {
        std::mem::swap(&mut self.pages, &mut self.before);
        self.pages.clear();
        self.was_unknown = std::mem::take(&mut self.is_unknown);
    }

    /// It keeps the pages that are the same.
    fn keep(&mut self) {
        if self.before.len() > self.pages.len() {
            std::mem::swap(&mut self.pages, &mut self.before);
        }
        self.is_unknown |= self.was_unknown || self.pages.try_reserve(self.before.len()).is_err();
        if !self.is_unknown {
            self.pages.extend(self.before.drain());
        }
        self.before.clear();
    }

    fn note(&mut self, page: PageNo, limit: usize) {
        if self.is_unknown || self.pages.contains(&page) {
            return;
        }
        self.is_unknown = self.pages.len() >= limit || self.pages.try_reserve(1).is_err();
        if self.is_unknown {
            self.pages = FxHashSet::default();
        } else {
            self.pages.insert(page);
        }
    }
}

impl CacheVersion {
    /// In a child of a fork the states are others: the cache holds pages of none of them.
    pub fn carried(self) -> CacheVersion {
        CacheVersion {
            left: self.counter.map(|counter| (NO_STATE, counter)),
            cached: Cached { is_unknown: true, ..Cached::default() },
            ..CacheVersion::default()
        }
    }

    /// SQLite has this page from now on. `all`: more than [`CACHED_MAX`] if need be.
    pub fn note(&mut self, page: PageNo, all: bool) {
        self.cached.note(page, if all { usize::MAX } else { CACHED_MAX });
    }

    /// SQLite reads or writes past the snapshot.
    pub fn note_any(&mut self) {
        self.cached.is_unknown = true;
    }

    pub fn pages(&self) -> Option<&FxHashSet<PageNo>> {
        (!self.cached.is_unknown).then_some(&self.cached.pages)
    }

    pub fn saw(&mut self, bytes: &[u8], offset: u64) {
        if offset == 0
            && bytes.len() > at::HEADER_BYTES
            && let Some(counter) = be_u32(bytes, at::CHANGE_COUNTER)
        {
            self.counter = Some(counter);
            self.has_looked = true;
        }
    }

    /// SQLite unlocks with the pages of `state` cached; `None`: the file below says which. Without
    /// a check, the cache is as before.
    pub fn leave(&mut self, state: Option<&State>) {
        self.cached.is_unknown |= state.is_none();
        if std::mem::take(&mut self.has_looked) || state.is_none() {
            self.left = state.map(state_id).zip(self.counter);
        }
    }

    /// Answers SQLite's check: the counter it remembers if its cache is of `state`, and another one
    /// if it would mistake `state` for that. `empties`: no cache passes it.
    pub fn answer(&mut self, state: &State, version: &mut [u8; at::VERSION_BYTES], empties: bool) {
        self.has_looked = true;
        if empties {
            self.cached.empty();
        }
        let Some((left, counter)) = self.left else { return };
        let (head, _) = version.split_at_mut(4);
        if state.tid == Tid::HOME && left.0 == Tid::HOME {
            // A plain file, whose counter every writer raises.
        } else if state_id(state) == left {
            head.copy_from_slice(&counter.to_be_bytes());
        } else if state.change_counter == counter {
            head.copy_from_slice(&(!counter).to_be_bytes());
        }
        if !empties && *head != counter.to_be_bytes() {
            self.cached.empty();
        }
    }

    /// Pages in which `state` may differ from the cache, with or without page 1; `None`: any.
    pub fn changed(&mut self, state: &State, table: &PageTable) -> Option<&[u32]> {
        let (left, _) = self.left?;
        self.changed.clear();
        let is_known = left.0 != Tid::HOME && table.changed_between(left, state_id(state), &mut self.changed);
        if is_known {
            self.cached.keep();
        }
        is_known.then_some(&*self.changed)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn state(tid: u64, counter: u32) -> State {
        State { change_counter: counter, ..State::empty(Tid(tid)) }
    }

    fn answer(cache: &mut CacheVersion, state: &State) -> u32 {
        let mut version = [0; at::VERSION_BYTES];
        version[..4].copy_from_slice(&state.change_counter.to_be_bytes());
        cache.answer(state, &mut version, false);
        be_u32(&version, 0).unwrap_or(0)
    }

    #[test]
    fn only_the_state_in_the_cache_has_the_number_that_sqlite_knows_it_by() {
        let mut cache = CacheVersion::default();
        assert_eq!(answer(&mut cache, &state(7, 5)), 5);
        let mut page = vec![0; 512];
        page[24..28].copy_from_slice(&6u32.to_be_bytes());
        // An empty commit: transaction 7, with counter 5, is cached as 6.
        cache.saw(&page, 0);
        cache.leave(Some(&state(7, 5)));
        assert_eq!(answer(&mut cache, &state(7, 5)), 6);
        assert_eq!(answer(&mut cache, &state(8, 6)), !6);
        assert_eq!(answer(&mut cache, &state(9, 7)), 7);
        assert_eq!(answer(&mut cache, &state(7, 8)), 8);
        assert_eq!(answer(&mut cache, &state(7, 6)), !6);
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
    fn the_pages_in_the_cache_are_known_from_when_it_was_last_emptied() {
        let mut cache = CacheVersion::default();
        let pages = |cache: &CacheVersion| {
            cache.pages().map(|pages| {
                let mut pages: Vec<u32> = pages.iter().map(|page| page.0).collect();
                pages.sort_unstable();
                pages
            })
        };
        let mut page = vec![0; 512];
        page[24..28].copy_from_slice(&5u32.to_be_bytes());
        cache.saw(&page, 0);
        cache.note(PageNo(1), false);
        cache.note(PageNo(7), false);
        cache.leave(Some(&state(7, 5)));
        assert_eq!((answer(&mut cache, &state(7, 5)), pages(&cache)), (5, Some(vec![1, 7])), "kept");
        cache.note(PageNo(8), false);
        cache.leave(Some(&state(7, 5)));
        assert_eq!((answer(&mut cache, &state(8, 6)), pages(&cache)), (6, Some(vec![])), "emptied");
        cache.note(PageNo(9), false);
        let mut table = PageTable::default();
        let _asked = table.changed_between((Tid(7), 5), (Tid(8), 6), &mut Vec::new());
        table.note_step(&state(7, 5), &state(8, 6), [PageNo(8)].into_iter());
        assert!(cache.changed(&state(8, 6), &table).is_some());
        assert_eq!(pages(&cache), Some(vec![1, 7, 8, 9]), "those that are the same stay");
        (10..10 + CACHED_MAX as u32).for_each(|page| cache.note(PageNo(page), false));
        assert_eq!(pages(&cache), None);
        cache.leave(Some(&state(8, 6)));
        assert_eq!((answer(&mut cache, &state(8, 6)), pages(&cache)), (5, None));
        cache.leave(Some(&state(8, 6)));
        assert_eq!((answer(&mut cache, &state(9, 7)), pages(&cache)), (7, Some(vec![])));
        (10..10 + 2 * CACHED_MAX as u32).for_each(|page| cache.note(PageNo(page), true));
        assert_eq!(cache.pages().map(FxHashSet::len), Some(2 * CACHED_MAX));
        cache.leave(None);
        assert_eq!(pages(&cache), None, "the file below has filled it");
    }

    #[test]
    fn a_cache_from_before_a_fork_is_of_no_state() {
        let mut cache = CacheVersion::default();
        let mut page = vec![0; 512];
        page[24..28].copy_from_slice(&5u32.to_be_bytes());
        cache.saw(&page, 0);
        cache.leave(Some(&state(7, 5)));
        let mut cache = cache.carried();
        for same_number in [state(7, 5), state(0, 5), state(8, 5)] {
            assert_eq!(answer(&mut cache, &same_number), !5);
        }
        assert_eq!(answer(&mut cache, &state(8, 6)), 6);
        assert_eq!(cache.changed(&state(8, 6), &PageTable::default()), None);
    }

    #[test]
    fn changed_pages_are_known_while_no_step_is_missing() {
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
