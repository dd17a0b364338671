//! A process's position in the followed log.

use crate::log::file::LogCursor;
use crate::log::slot::Slot;

/// How far to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Up to the state that readers see.
    Visible,
    /// All that is written: the next transaction's base.
    Written,
    Flushed,
}

pub struct Tail {
    /// The newest seen.
    pub slot: Slot,
    /// Behind the last record known.
    pub cursor: LogCursor,
    /// New at a look, as far as known.
    pub usual_bytes: u64,
}

impl Tail {
    pub fn at(slot: Slot) -> Tail {
        Tail { cursor: LogCursor::at(&slot), slot, usual_bytes: 0 }
    }

    /// `slot` is yet to be applied.
    pub fn nowhere(slot: Slot) -> Tail {
        let mut tail = Tail::at(slot);
        tail.slot.sequence = 0;
        tail
    }
}
