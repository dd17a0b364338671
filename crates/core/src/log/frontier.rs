//! How far the log is: the newest transaction that is published, flushed, visible; in the memory of one process, and in words that
//! processes share.
//!
//! | mark | in memory (`log/group.rs`) | in shared words (`shared/words.rs`) |
//! |---|---|---|
//! | published | in the group's buffer: the next transaction of this process builds on it | WRITTEN: whole in the kernel's cache, the next one of any process builds on it |
//! | requested | must be flushed before it is shown | WANTED: told before it is written (rule SeenWhenDurable) |
//! | flushed | on the medium | FLUSHED: told before it is told to be written |
//! | recorded | the newest of those with a record | each has one |
//! | visible | readers may pin it | VISIBLE |
//!
//! ```text
//!  visible ≤ published
//!  visible < requested, or requested ≤ flushed      nobody sees what a crash could take back (invariant I4)
//!  recorded ≤ flushed ≤ published                   in memory
//!  requested ≤ published                            in memory
//! ```
//!
//! Asserted at each change.

use crate::base::types::Tid;

/// What a [`Frontier`] tells the newest transaction of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The next one builds on it.
    Published,
    /// Must be flushed before it is shown.
    Requested,
    /// On the medium.
    Flushed,
    /// Readers may see it.
    Visible,
}

/// Where the TIDs are kept. They only grow.
pub trait FrontierStore {
    /// The newest transaction of a kind.
    fn get(&self, mark: Milestone) -> Tid;
    /// All up to `tid` are of a kind.
    fn raise(&mut self, mark: Milestone, tid: Tid);
    /// Readers may see none behind this one, whatever is flushed: the store has no more (rule StoreHasIt).
    fn shipped(&self) -> Tid {
        Tid(u64::MAX)
    }
}

/// The newest transaction of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontier<B>(pub B);

impl<B: FrontierStore> Frontier<B> {
    /// The newest transaction that the next one builds on.
    pub fn published(&self) -> Tid {
        self.0.get(Milestone::Published)
    }

    /// The newest one known to be on the medium.
    pub fn flushed(&self) -> Tid {
        self.0.get(Milestone::Flushed)
    }

    /// The newest one that readers may see.
    pub fn visible(&self) -> Tid {
        self.0.get(Milestone::Visible)
    }

    /// Whether readers may see `tid`, and it is on the medium if it is to be `flushed`.
    pub fn reached(&self, tid: Tid, flushed: bool) -> bool {
        self.visible() >= tid && (!flushed || self.flushed() >= tid)
    }

    /// All up to `tid` are of a kind.
    pub fn raise(&mut self, mark: Milestone, tid: Tid) {
        self.0.raise(mark, tid);
        self.check();
    }

    /// Lets readers see what they may: as durable as its commits and all before asked for.
    pub fn show(&mut self) {
        // In this order: nothing up to `published` is requested later than `requested` says.
        let published = self.published();
        let requested = self.0.get(Milestone::Requested);
        let flushed = self.flushed();
        let visible = if requested <= flushed { published } else { published.min(flushed) };
        // Last: what is published after commits began to wait for the store is not taken for what was before.
        self.raise(Milestone::Visible, visible.min(self.0.shipped()));
    }

    /// The relations that hold in both backings. What only grows is read first where it must not be larger.
    fn check(&self) {
        if cfg!(debug_assertions) {
            let visible = self.visible();
            let requested = self.0.get(Milestone::Requested);
            let flushed = self.flushed();
            let published = self.published();
            assert!(visible <= published, "{visible} can be seen, {published} is published");
            assert!(
                visible < requested || requested <= flushed,
                "{visible} can be seen, {requested} is to be flushed before, {flushed} is"
            );
        }
    }
}

/// In the memory of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    published: Tid,
    requested: Tid,
    flushed: Tid,
    recorded: Tid,
    visible: Tid,
}

impl FrontierStore for Memory {
    fn get(&self, mark: Milestone) -> Tid {
        match mark {
            Milestone::Published => self.published,
            Milestone::Requested => self.requested,
            Milestone::Flushed => self.flushed,
            Milestone::Visible => self.visible,
        }
    }

    fn raise(&mut self, mark: Milestone, tid: Tid) {
        let at = match mark {
            Milestone::Published => &mut self.published,
            Milestone::Requested => &mut self.requested,
            Milestone::Flushed => &mut self.flushed,
            Milestone::Visible => &mut self.visible,
        };
        *at = tid.max(*at);
    }
}

impl Frontier<Memory> {
    /// Everything up to `tid` is flushed and visible.
    pub fn at(tid: Tid) -> Frontier<Memory> {
        Frontier(Memory { published: tid, requested: tid, flushed: tid, recorded: tid, visible: tid })
    }

    /// What other processes wrote: all up to `published` is visible here, and up to `flushed` on the medium.
    pub fn behind(published: Tid, flushed: Tid) -> Frontier<Memory> {
        let memory = Memory { published, requested: flushed, flushed, recorded: flushed, visible: published };
        Frontier(memory).checked()
    }

    /// The newest flushed one with a record.
    pub fn recorded(&self) -> Tid {
        self.0.recorded
    }

    /// Whether a transaction was published that is to be flushed before it is shown.
    pub fn wants_flush(&self) -> bool {
        self.0.requested > self.0.flushed
    }

    /// Whether readers see what is not on the medium yet.
    pub fn is_ahead_of_medium(&self) -> bool {
        self.0.visible > self.0.flushed
    }

    /// Whether something is published that readers do not see.
    pub fn has_hidden(&self) -> bool {
        self.0.visible < self.0.published
    }

    /// `tid` is published, and must be flushed before it is shown if that was `asked` for.
    pub fn publish(&mut self, tid: Tid, asked: bool) {
        debug_assert!(tid > self.0.published, "transactions are published in order: {tid} after {self:?}");
        self.0.published = tid;
        if asked {
            self.0.requested = tid;
        }
        *self = self.checked();
    }

    /// The record of what was published last is on the medium, with all before it.
    pub fn record_flushed(&mut self) {
        self.flush_to(self.0.published);
    }

    /// All up to `tid` is written and shown, and on the medium if it was `flushed`.
    pub fn end_write(&mut self, tid: Tid, flushed: bool) {
        if flushed {
            self.flush_to(tid);
        }
        self.0.visible = self.0.visible.max(tid);
        *self = self.checked();
    }

    /// Somebody else's flush covers everything up to `tid`.
    pub fn flushed_elsewhere(&mut self, tid: Tid) {
        self.flush_to(tid.min(self.0.visible));
    }

    /// With everything flushed and shown: so is `tid`, which went in place and has no record.
    pub fn pass(&mut self, tid: Tid) {
        debug_assert!(self.reached(self.0.published, true) && tid >= self.0.published, "in flight: {self:?}");
        *self = Frontier(Memory { recorded: self.0.recorded, ..Frontier::at(tid).0 }).checked();
    }

    fn flush_to(&mut self, tid: Tid) {
        (self.0.flushed, self.0.recorded) = (self.0.flushed.max(tid), self.0.recorded.max(tid));
        *self = self.checked();
    }

    fn checked(self) -> Frontier<Memory> {
        let m = &self.0;
        debug_assert!(m.recorded <= m.flushed && m.flushed <= m.published && m.requested <= m.published, "{m:?}");
        self.check();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_flushed_is_shown_when_it_is() {
        let mut frontier = Frontier::at(Tid(3));
        frontier.publish(Tid(4), false);
        frontier.publish(Tid(5), true);
        frontier.show();
        assert_eq!((frontier.visible(), frontier.wants_flush()), (Tid(3), true));
        frontier.end_write(Tid(4), false);
        assert!(frontier.reached(Tid(4), false) && !frontier.reached(Tid(4), true) && frontier.has_hidden());
        frontier.end_write(Tid(5), true);
        assert!(frontier.reached(Tid(5), true) && !frontier.has_hidden() && !frontier.wants_flush());
        assert_eq!(frontier, Frontier::at(Tid(5)));
    }

    #[test]
    fn a_relation_that_does_not_hold_is_found() {
        let found = |change: fn(&mut Frontier<Memory>)| {
            let mut frontier = Frontier::at(Tid(3));
            frontier.publish(Tid(4), true);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&mut frontier))).is_err()
        };
        assert!(found(|frontier| frontier.publish(Tid(4), false)), "one TID twice");
        assert!(found(|frontier| frontier.end_write(Tid(4), false)), "shown before its flush");
        assert!(found(|frontier| frontier.raise(Milestone::Visible, Tid(5))), "shown and not published");
        assert!(found(|frontier| frontier.pass(Tid(5))), "in place beside a record that waits");
        assert!(!found(|frontier| frontier.end_write(Tid(4), true)));
    }
}
