//! A process's position in the log that it follows.

use crate::log::file::Cursor;
use crate::log::slot::Slot;

/// How far the log is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the newest state that readers may see.
    Visible,
    /// To all that is written: the base of the next transaction.
    Written,
    /// To all that is written and flushed: the shipper's.
    Flushed,
}

pub struct Tail {
    /// The newest slot seen.
    pub slot: Slot,
    /// Behind the last record known, which made the newest known state.
    pub cursor: Cursor,
}

impl Tail {
    /// At the start of the records behind `slot`.
    pub fn at(slot: Slot) -> Tail {
        Tail { cursor: Cursor::at(&slot), slot }
    }

    /// Before everything: `slot` is yet to be applied.
    pub fn nowhere(slot: Slot) -> Tail {
        let mut tail = Tail::at(slot);
        tail.slot.sequence = 0;
        tail
    }
}
