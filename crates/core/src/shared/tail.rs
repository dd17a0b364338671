//! Where a process is in the log that it follows.

use crate::log::file::LogCursor;
use crate::log::slot::Slot;

/// How far the log is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What readers may see.
    Visible,
    /// All that is written: what the next transaction builds on.
    Written,
    /// All that is written and on the medium: what the shipper sends.
    Flushed,
}

/// Where a process is in the log.
pub struct Tail {
    /// The newest slot it has seen.
    pub slot: Slot,
    /// Behind the last record it has, which made the newest state it knows.
    pub cursor: LogCursor,
}

impl Tail {
    /// At the start of the records behind `slot`.
    pub fn at(slot: Slot) -> Tail {
        Tail { cursor: LogCursor::at(&slot), slot }
    }

    /// Before everything: what `slot` says is yet to be learnt.
    pub fn nowhere(slot: Slot) -> Tail {
        let mut tail = Tail::at(slot);
        tail.slot.sequence = 0;
        tail
    }
}
