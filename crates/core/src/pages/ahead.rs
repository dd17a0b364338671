//! Read-ahead of home, several pages with one call.
//!
//! The bytes serve their snapshot, and later ones of a connection that keeps its lock: a page it
//! still finds in home was not overwritten. A page that was not home's during the read is left out
//! (invariant I4).

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::memory::Room;
use crate::base::types::PageNo;
use crate::sqlite_format::home::State;

const RUN_PAGES_MIN: u32 = 4;
const RUN_BYTES_MAX: u32 = 64 << 10;

#[derive(Default)]
pub struct ReadAhead {
    bytes: Vec<u8>,
    state: Option<Arc<State>>,
    /// Pages that were home's, bit by bit.
    good: u64,
    first: u32,
    count: u32,
    last: u32,
    next_count: u32,
}

impl ReadAhead {
    pub fn forget(&mut self) {
        self.state = None;
        self.count = 0;
        self.last = 0;
        self.next_count = 0;
    }

    /// Whether `buf` got the page. `state` must find it in home.
    pub fn give(&mut self, page: PageNo, state: &Arc<State>, buf: &mut [u8]) -> bool {
        self.get(page, state).map(|image| buf.copy_from_slice(image)).is_some()
    }

    fn get(&mut self, page: PageNo, state: &Arc<State>) -> Option<&[u8]> {
        let nth = page.0.checked_sub(self.first).filter(|n| *n < self.count)?;
        let is_of = self.state.as_ref().is_some_and(|of| Arc::ptr_eq(of, state));
        if !is_of || self.good >> nth & 1 == 0 {
            return None;
        }
        self.last = page.0;
        let size = state.page_bytes as usize;
        self.bytes.get(nth as usize * size..(nth as usize + 1) * size)
    }

    /// Returns how many pages to read: several for sequential reads. `page_count`: the snapshot's.
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

    /// `read` bytes from `first` on; `good` pages were home's before and after the read.
    pub fn filled(&mut self, state: &Arc<State>, first: PageNo, read: usize, good: u64) {
        self.state = Some(state.clone());
        self.first = first.0;
        self.count = u32::try_from(read / state.page_bytes.max(1) as usize).unwrap_or(0);
        self.good = good;
    }
}
