//! Read-ahead: a connection that reads home page by page gets several with one call.
//!
//! The bytes serve the snapshot they were read for, and a later one of a connection that keeps its
//! lock: while it finds a page in home, home was not overwritten there. A page that was not home's
//! during the read is left out (invariant I4).

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::memory::Room;
use crate::base::types::PageNo;
use crate::sqlite_format::home::State;

/// Pages of the first run.
const RUN_PAGES_MIN: u32 = 4;
/// Longest run in bytes.
const RUN_BYTES_MAX: u32 = 64 << 10;

/// Pages of home read beyond the request, for one connection.
#[derive(Default)]
pub struct ReadAhead {
    bytes: Vec<u8>,
    /// The snapshot of the run.
    state: Option<Arc<State>>,
    /// Bit by bit, the run's pages that were home's.
    good: u64,
    first: u32,
    count: u32,
    last: u32,
    next_count: u32,
}

impl ReadAhead {
    /// The snapshot ends.
    pub fn forget(&mut self) {
        self.state = None;
        self.count = 0;
        self.last = 0;
        self.next_count = 0;
    }

    /// The image of `page`, which `state` finds in home, if read ahead for it.
    pub fn get(&mut self, page: PageNo, state: &Arc<State>) -> Option<&[u8]> {
        let nth = page.0.checked_sub(self.first).filter(|n| *n < self.count)?;
        let is_of = self.state.as_ref().is_some_and(|of| Arc::ptr_eq(of, state));
        if !is_of || self.good >> nth & 1 == 0 {
            return None;
        }
        self.last = page.0;
        let size = state.page_bytes as usize;
        self.bytes.get(nth as usize * size..(nth as usize + 1) * size)
    }

    /// Notes that `page` is missing. Returns the pages to read, itself included: more than one for
    /// sequential reads. `page_count`: the snapshot's.
    pub fn plan(&mut self, page: PageNo, page_bytes: u32, page_count: u32) -> u32 {
        let follows = page.0 == self.last.wrapping_add(1) || (self.count > 0 && page.0 == self.first + self.count);
        self.last = page.0;
        if !follows {
            self.next_count = 0;
            return 1;
        }
        let most = (RUN_BYTES_MAX / page_bytes.max(1)).min(u64::BITS);
        self.next_count = (self.next_count * 2).clamp(RUN_PAGES_MIN, most.max(RUN_PAGES_MIN));
        self.next_count.min(most).min(page_count.saturating_sub(page.0).saturating_add(1)).max(1)
    }

    pub fn room(&mut self, count: u32, page_bytes: u32) -> Result<&mut [u8]> {
        self.count = 0;
        let len = count as usize * page_bytes as usize;
        self.bytes.room(len.saturating_sub(self.bytes.len()))?;
        self.bytes.resize(len, 0);
        Ok(&mut self.bytes)
    }

    /// The run arrived for `state`: `read` bytes from `first` on; `good` are the pages that were
    /// home's before and after the read.
    pub fn filled(&mut self, state: &Arc<State>, first: PageNo, read: usize, good: u64) {
        self.state = Some(state.clone());
        self.first = first.0;
        self.count = u32::try_from(read / state.page_bytes.max(1) as usize).unwrap_or(0);
        self.good = good;
    }
}
