use std::sync::Arc;

use crate::base::types::{LogOffset, PageNo};
use crate::log::file::LogCursor;
use crate::sqlite_format::home::State;

pub struct Sweep {
    pub to: LogCursor,
    pub state: Arc<State>,
    pub pages: Vec<PageNo>,
    pub next: usize,
    /// Their newest image was not durable in their turn.
    pub later: Vec<PageNo>,
    pub begun_bytes: u64,
    pub swept_bytes: u64,
    pub free_bytes: u64,
    pub flushed: bool,
    pub then: AfterSweep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSweep {
    Slot,
    /// The full ring grows with a whole checkpoint, to which little is left.
    Nothing,
}

impl Sweep {
    /// All are due before three quarters of the ring's rest are used, and before new pages have
    /// three quarters of the bytes that it brings home.
    pub fn due(&self, tail: LogOffset, new_bytes: u64) -> usize {
        let share = |used: u64, room: u64| used.saturating_mul(4) as f64 / room.saturating_mul(3).max(1) as f64;
        let added = (new_bytes + self.swept_bytes).saturating_sub(self.begun_bytes);
        let appended = tail.0 - self.to.tail.0;
        let share = share(added, self.begun_bytes).max(share(appended, self.free_bytes));
        if share >= 1.0 { self.pages.len() } else { (self.pages.len() as f64 * share) as usize }
    }
}
