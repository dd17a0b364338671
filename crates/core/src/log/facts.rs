//! A scheme's facts for the log, the mark and recovery.

/// How a scheme's transactions reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Else home's header, not the slot, has its size.
    pub records: bool,
    /// Durable transactions may have no record.
    pub in_place: bool,
    /// The mark names the last one; else each commit goes home.
    pub checkpoints: bool,
    /// A page's gap and reserved bytes are the scheme's, not SQLite's.
    pub in_gaps: bool,
}

impl Facts {
    pub const LOG: Facts = Facts { records: true, in_place: false, checkpoints: true, in_gaps: false };

    /// So other processes and sessions follow the log, and the last checkpoint needs no slot.
    pub fn all_in_log(self) -> bool {
        self.records && !self.in_place
    }
}
