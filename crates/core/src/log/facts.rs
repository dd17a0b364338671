//! A scheme's facts for the log, the mark and recovery.

/// How a scheme's transactions reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Transactions have log records and the slot has home's size; else home's header has it.
    pub records: bool,
    /// Durable transactions may have no record.
    pub in_place: bool,
    /// Checkpoints bring commits home, and the mark names the last one; else each commit does.
    pub checkpoints: bool,
    /// A page's gap and reserved bytes are the scheme's, not SQLite's.
    pub in_gaps: bool,
}

impl Facts {
    pub const LOG: Facts = Facts { records: true, in_place: false, checkpoints: true, in_gaps: false };

    /// Every commit since the last checkpoint is in the log: other processes follow it there, a
    /// session may follow another, and the last checkpoint needs no slot.
    pub fn all_in_log(self) -> bool {
        self.records && !self.in_place
    }
}
