//! Which state SQLite takes its page cache for.
//!
//! SQLite keeps its cache from one transaction to the next if the 16 bytes from offset 24 of the file (change counter,
//! sizes) are those it has seen with page 1 last, or has written itself (`sqlite3PagerSharedLock`). It writes one more
//! than it saw also where there is no transaction, since nothing changed, and that number is later another
//! transaction's, perhaps of another process (rule CacheKnowsItsState).

use crate::home::State;
use crate::layout::{be_u32, home as at};
use crate::types::Tid;

/// Bytes from [`at::CHANGE_COUNTER`] on that SQLite compares.
pub const VERSION_BYTES: usize = 16;

/// Which state it is: a log begun anew gives what home holds the TID of the transaction before, and what a connection that
/// stepped aside wrote there has another counter.
type Is = (Tid, u32);

/// What is known of SQLite's page cache.
#[derive(Default)]
pub struct CacheVersion {
    /// The change counter that SQLite saw with page 1 last, or wrote.
    counter: Option<u32>,
    /// The state whose pages the cache holds, and the counter SQLite knows it by.
    left: Option<(Is, u32)>,
}

impl CacheVersion {
    /// SQLite has read or written `bytes` of page 1 from `offset` on.
    pub fn saw(&mut self, bytes: &[u8], offset: u64) {
        if offset == 0
            && bytes.len() > at::HEADER_BYTES
            && let Some(counter) = be_u32(bytes, at::CHANGE_COUNTER)
        {
            self.counter = Some(counter);
        }
    }

    /// SQLite gives back its lock, with the pages of `state` in its cache; `None`: what they are of is for the file below to
    /// say.
    pub fn leave(&mut self, state: Option<&State>) {
        self.left = state.map(is).zip(self.counter);
    }

    /// SQLite looks whether its cache still holds: the answer is in `version`, as `state` says it, and becomes
    /// different from what it remembers if it would mistake another state for its own, and the same if it is its own.
    pub fn answer(&self, state: &State, version: &mut [u8; VERSION_BYTES]) {
        let Some((left, counter)) = self.left else { return };
        let (head, _) = version.split_at_mut(4);
        if state.tid == Tid::HOME && left.0 == Tid::HOME {
            // A plain file, whose counter every writer raises.
        } else if is(state) == left {
            head.copy_from_slice(&counter.to_be_bytes());
        } else if state.change_counter == counter {
            head.copy_from_slice(&(!counter).to_be_bytes());
        }
    }
}

fn is(state: &State) -> Is {
    (state.tid, state.change_counter)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn state(tid: u64, counter: u32) -> State {
        State { change_counter: counter, ..State::empty(Tid(tid)) }
    }

    fn answer(cache: &CacheVersion, state: &State) -> u32 {
        let mut version = [0; VERSION_BYTES];
        version[..4].copy_from_slice(&state.change_counter.to_be_bytes());
        cache.answer(state, &mut version);
        be_u32(&version, 0).unwrap_or(0)
    }

    #[test]
    fn only_the_state_in_the_cache_has_the_number_that_sqlite_knows_it_by() {
        let mut cache = CacheVersion::default();
        assert_eq!(answer(&cache, &state(7, 5)), 5);
        let mut page = vec![0; 512];
        page[24..28].copy_from_slice(&6u32.to_be_bytes());
        // A commit that changed nothing: transaction 7, whose counter is 5, is in the cache as 6.
        cache.saw(&page, 0);
        cache.leave(Some(&state(7, 5)));
        assert_eq!(answer(&cache, &state(7, 5)), 6);
        assert_eq!(answer(&cache, &state(8, 6)), !6);
        assert_eq!(answer(&cache, &state(9, 7)), 7);
        // What a connection that stepped aside left in home, under a log begun anew.
        assert_eq!(answer(&cache, &state(7, 8)), 8);
        assert_eq!(answer(&cache, &state(7, 6)), !6);
        // Part of the page, or another, says nothing.
        cache.saw(&page[..100], 0);
        cache.saw(&page, 512);
        cache.leave(None);
        assert_eq!(answer(&cache, &state(8, 6)), 6);
    }
}
