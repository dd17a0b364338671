//! Reading ahead: a connection that reads home page after page gets several with one system call.
//!
//! The bytes are good for the snapshot they were read for, and for no other, which a connection that keeps its lock
//! goes on to with each commit: as long as that finds a page in home, home has not been overwritten there. A page that was not home's to give when the run was read is left out, for
//! home may have been overwritten there at that very moment (invariant I4).

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::memory::Room;
use crate::base::types::PageNo;
use crate::sqlite_format::home::State;

/// Pages of the first run.
const RUN_PAGES_MIN: u32 = 4;
/// Bytes of the longest run.
const RUN_BYTES_MAX: u32 = 64 << 10;

/// What one connection has read of home beyond what it was asked for.
#[derive(Default)]
pub struct ReadAhead {
    bytes: Vec<u8>,
    /// The snapshot that the run was read for.
    state: Option<Arc<State>>,
    /// Which pages of the run were home's.
    good: u64,
    first: u32,
    /// Pages of the run.
    count: u32,
    /// The page read last.
    last: u32,
    /// Pages of the next run.
    next_count: u32,
}

impl ReadAhead {
    /// Forgets everything: the snapshot ends.
    pub fn forget(&mut self) {
        self.state = None;
        self.count = 0;
        self.last = 0;
        self.next_count = 0;
    }

    /// The image of `page`, which the snapshot `state` finds in home, if it was read ahead for that.
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

    /// Notes that `page` is not there. The pages to read with it, itself included: more than one if the
    /// connection reads page after page. `page_count`: size of the snapshot.
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

    /// Room for a run of `count` pages.
    pub fn room(&mut self, count: u32, page_bytes: u32) -> Result<&mut [u8]> {
        self.count = 0;
        let len = count as usize * page_bytes as usize;
        self.bytes.room(len.saturating_sub(self.bytes.len()))?;
        self.bytes.resize(len, 0);
        Ok(&mut self.bytes)
    }

    /// The run is there: `read` bytes from `first` on, of which the pages in `good` (bit by bit) were home's
    /// before and after the read. For `state`.
    pub fn filled(&mut self, state: &Arc<State>, first: PageNo, read: usize, good: u64) {
        self.state = Some(state.clone());
        self.first = first.0;
        self.count = u32::try_from(read / state.page_bytes.max(1) as usize).unwrap_or(0);
        self.good = good;
    }
}
