//! What the log, the mark and recovery need to know of a scheme.

/// How the transactions of a scheme reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Transactions have records in the log, and its slot says how large home is; else home's header does.
    pub records: bool,
    /// Durable transactions may have no record.
    pub in_place: bool,
    /// Home gets what is committed by checkpoints, and the mark says by which it did; else by each commit.
    pub checkpoints: bool,
}

impl Facts {
    /// Records alone, in a ring.
    pub const LOG: Facts = Facts { records: true, in_place: false, checkpoints: true };

    /// Everything that is committed is in the log until a checkpoint: other processes can follow it there, a session can
    /// follow the one before, and the last checkpoint needs no slot.
    pub fn all_in_log(self) -> bool {
        self.records && !self.in_place
    }
}
