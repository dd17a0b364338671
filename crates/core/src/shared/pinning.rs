//! Which processes may have pinned a snapshot, so that a checkpoint reads no slot of a silent one.
//!
//! ```text
//! a process            the process with the turn
//! pin a snapshot       begin a checkpoint: raise the floor
//! its bit, if unset    finish with the process in CLEARING, if a dead process left one
//! look at the floor    of each process with a bit: read its pins. If it has none:
//!                          CLEARING = process; unset the bit
//!                          read its pins again; set the bit if there are some
//!                          CLEARING = 0
//! ```
//!
//! Rule AnnounceThenLook needs that each pin set before the floor was raised is read. Each step is
//! sequentially consistent. Behind its second step the process has the bit, or is in CLEARING: a
//! bit unset afterwards belongs to a process in CLEARING, whose pins are read once more. A death
//! between the two leaves the process there. One process at a time unsets bits, for one has the
//! turn.
//!
//! The bits of active processes stay, so a snapshot costs one load more.

pub trait PinBits {
    fn has(&self, process: usize) -> bool;
    fn set(&self, process: usize);
    fn unset(&self, process: usize);
    /// CLEARING.
    fn clearing(&self) -> Option<usize>;
    fn set_clearing(&self, process: Option<usize>);
    fn is_pinned(&self, process: usize) -> bool;
    /// Those with a bit.
    fn all(&self) -> impl Iterator<Item = usize>;
}

/// Behind a pin.
pub fn pinned(bits: &impl PinBits, process: usize) {
    if !bits.has(process) {
        bits.set(process);
    }
}

/// At least all processes with a snapshot that the floor does not keep out.
pub fn pinning(bits: &impl PinBits) -> Vec<usize> {
    if let Some(process) = bits.clearing() {
        end_clearing(bits, process);
    }
    let mut all = Vec::new();
    for process in bits.all() {
        if !bits.is_pinned(process) {
            bits.set_clearing(Some(process));
            bits.unset(process);
            if !end_clearing(bits, process) {
                continue;
            }
        }
        all.push(process);
    }
    all
}

fn end_clearing(bits: &impl PinBits, process: usize) -> bool {
    let is_pinned = bits.is_pinned(process);
    if is_pinned {
        bits.set(process);
    }
    bits.set_clearing(None);
    is_pinned
}
