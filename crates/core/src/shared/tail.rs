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
}

impl Tail {
    pub fn at(slot: Slot) -> Tail {
        Tail { cursor: LogCursor::at(&slot), slot }
    }

    /// `slot` is yet to be applied.
    pub fn nowhere(slot: Slot) -> Tail {
        let mut tail = Tail::at(slot);
        tail.slot.sequence = 0;
        tail
    }
}
