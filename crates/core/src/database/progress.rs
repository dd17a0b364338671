//! What a checkpoint in slices has to do, and how far it is.

use std::sync::Arc;

use crate::base::types::{LogOffset, PageNo};
use crate::log::file::LogCursor;
use crate::sqlite_format::home::State;

/// A checkpoint in slices.
pub struct Sweep {
    /// Where the live records will begin.
    pub to: LogCursor,
    /// What the transactions before that made.
    pub state: Arc<State>,
    /// The pages that had an image newer than home, in order.
    pub pages: Vec<PageNo>,
    /// How many of them had their turn.
    pub next: usize,
    /// Those whose newest image was not durable in their turn.
    pub later: Vec<PageNo>,
    /// Bytes in the table when it began.
    pub begun_bytes: u64,
    /// Of those, bytes that it took away since.
    pub swept_bytes: u64,
    /// Free bytes of the ring when it began.
    pub free_bytes: u64,
    /// Home has all of it, flushed.
    pub flushed: bool,
    /// What follows.
    pub then: AfterSweep,
}

/// What follows when all of a sweep is home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSweep {
    /// Home is flushed, and the slot moves.
    Slot,
    /// Nothing: the ring will grow when it is full, with a whole checkpoint, to which little is left then.
    Nothing,
}

impl Sweep {
    /// How many of its pages should be home by now: all of them, before three quarters of the room that is left are used, and of as
    /// many pages as it brings home.
    pub fn due(&self, tail: LogOffset, new_bytes: u64) -> usize {
        let share = |used: u64, room: u64| used.saturating_mul(4) as f64 / room.saturating_mul(3).max(1) as f64;
        let added = (new_bytes + self.swept_bytes).saturating_sub(self.begun_bytes);
        let appended = tail.0 - self.to.tail.0;
        let share = share(added, self.begun_bytes).max(share(appended, self.free_bytes));
        if share >= 1.0 { self.pages.len() } else { (self.pages.len() as f64 * share) as usize }
    }
}
