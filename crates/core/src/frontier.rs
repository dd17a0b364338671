//! How far the log is, as one process knows it: the newest transaction that is published, visible, flushed.
//!
//! ```text
//!  recorded ≤ flushed ≤ published      what went in place has no record
//!  visible ≤ published                 readers may pin no state before it is as durable as its commit asked for
//!  requested ≤ published               what must be flushed before it is shown
//! ```
//!
//! Asserted at each change. The same between processes is in shared words, with WRITTEN for what is in the kernel's cache
//! (`procs/words.rs`).

use crate::types::Tid;

/// The newest transaction of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontier {
    published: Tid,
    visible: Tid,
    flushed: Tid,
    recorded: Tid,
    requested: Tid,
}

impl Frontier {
    /// Everything up to `tid` is flushed and visible.
    pub fn at(tid: Tid) -> Frontier {
        Frontier { published: tid, visible: tid, flushed: tid, recorded: tid, requested: tid }
    }

    /// What other processes wrote: all up to `published` is visible here, and up to `flushed` on the medium.
    pub fn behind(published: Tid, flushed: Tid) -> Frontier {
        let frontier = Frontier { published, visible: published, flushed, recorded: flushed, requested: flushed };
        frontier.check()
    }

    /// The newest transaction that the next one builds on.
    pub fn published(&self) -> Tid {
        self.published
    }

    /// The newest one known to be on the medium.
    pub fn flushed(&self) -> Tid {
        self.flushed
    }

    /// The newest one with a record of which that is known.
    pub fn recorded(&self) -> Tid {
        self.recorded
    }

    /// Whether readers may see `tid`, and it is on the medium if it is to be `flushed`.
    pub fn reached(&self, tid: Tid, flushed: bool) -> bool {
        self.visible >= tid && (!flushed || self.flushed >= tid)
    }

    /// Whether a transaction was published that is to be flushed before it is shown.
    pub fn wants_flush(&self) -> bool {
        self.requested > self.flushed
    }

    /// Whether readers see what is not on the medium yet.
    pub fn is_ahead_of_medium(&self) -> bool {
        self.visible > self.flushed
    }

    /// `tid` is published, and must be flushed before it is shown if that was `asked` for.
    pub fn publish(&mut self, tid: Tid, asked: bool) {
        debug_assert!(tid > self.published, "transactions are published in order: {tid} after {self:?}");
        self.published = tid;
        if asked {
            self.requested = tid;
        }
        *self = self.check();
    }

    /// The record of what was published last is on the medium, with all before it.
    pub fn record_flushed(&mut self) {
        (self.flushed, self.recorded) = (self.published, self.published);
        *self = self.check();
    }

    /// All up to `tid` is written and shown, and on the medium if it was `flushed`.
    pub fn show(&mut self, tid: Tid, flushed: bool) {
        self.visible = self.visible.max(tid);
        if flushed {
            (self.flushed, self.recorded) = (self.flushed.max(tid), self.recorded.max(tid));
        }
        *self = self.check();
    }

    /// Somebody else's flush covers everything up to `tid`.
    pub fn flushed_elsewhere(&mut self, tid: Tid) {
        let tid = tid.min(self.visible);
        (self.flushed, self.recorded) = (self.flushed.max(tid), self.recorded.max(tid));
        *self = self.check();
    }

    /// With everything flushed and shown: so is `tid`, which went in place and has no record.
    pub fn pass(&mut self, tid: Tid) {
        debug_assert!(self.reached(self.published, true) && tid >= self.published, "something is in flight: {self:?}");
        *self = Frontier { recorded: self.recorded, ..Frontier::at(tid) }.check();
    }

    fn check(self) -> Frontier {
        debug_assert!(self.recorded <= self.flushed && self.flushed <= self.published, "{self:?}");
        debug_assert!(self.visible <= self.published && self.requested <= self.published, "{self:?}");
        self
    }
}
