//! How far the log is: the newest transaction of each kind, in one process or in shared words.
//!
//! | mark | in memory (`log/group.rs`) | in shared words (`shared/words.rs`) |
//! |---|---|---|
//! | published | in the group's buffer | WRITTEN: whole in the kernel's cache |
//! | requested | to be flushed before it shows | WANTED: before WRITTEN (rule SeenWhenDurable) |
//! | flushed | on the medium | FLUSHED: before WRITTEN |
//! | recorded | newest flushed one with a record | each has one |
//! | visible | readers may pin it | VISIBLE |
//!
//! The next transaction builds on a published one: in shared words, of any process.
//!
//! ```text
//!  visible ≤ published
//!  visible < requested, or requested ≤ flushed      a crash takes back nothing shown (I4)
//!  recorded ≤ flushed ≤ published                   in memory
//!  requested ≤ published                            in memory
//! ```
//!
//! Asserted at each change.

use crate::base::types::Tid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    Published,
    Requested,
    Flushed,
    Visible,
}

pub trait FrontierStore {
    fn get(&self, mark: Milestone) -> Tid;
    /// All up to `tid` are of this kind.
    fn raise(&mut self, mark: Milestone, tid: Tid);
    /// Readers may see no more than the store has (rule StoreHasIt).
    fn shipped(&self) -> Tid {
        Tid(u64::MAX)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontier<B>(pub B);

impl<B: FrontierStore> Frontier<B> {
    pub fn published(&self) -> Tid {
        self.0.get(Milestone::Published)
    }

    pub fn flushed(&self) -> Tid {
        self.0.get(Milestone::Flushed)
    }

    pub fn visible(&self) -> Tid {
        self.0.get(Milestone::Visible)
    }

    /// Whether readers may see `tid`, and it is on the medium if `flushed`.
    pub fn reached(&self, tid: Tid, flushed: bool) -> bool {
        self.visible() >= tid && (!flushed || self.flushed() >= tid)
    }

    pub fn raise(&mut self, mark: Milestone, tid: Tid) {
        self.0.raise(mark, tid);
        self.check();
    }

    pub fn show(&mut self) {
        // First: `requested` must cover all of it.
        let published = self.published();
        let requested = self.0.get(Milestone::Requested);
        let flushed = self.flushed();
        let visible = if requested <= flushed { published } else { published.min(flushed) };
        // Last: commits published after the wait for the store began must not count as earlier.
        self.raise(Milestone::Visible, visible.min(self.0.shipped()));
    }

    /// Of two growing values, the smaller is read first.
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
    pub fn at(tid: Tid) -> Frontier<Memory> {
        Frontier(Memory { published: tid, requested: tid, flushed: tid, recorded: tid, visible: tid })
    }

    /// Other processes wrote up to `published`, all of it visible.
    pub fn behind(published: Tid, flushed: Tid) -> Frontier<Memory> {
        let memory = Memory { published, requested: flushed, flushed, recorded: flushed, visible: published };
        Frontier(memory).checked()
    }

    pub fn recorded(&self) -> Tid {
        self.0.recorded
    }

    /// Whether a transaction must be flushed before it is shown.
    pub fn wants_flush(&self) -> bool {
        self.0.requested > self.0.flushed
    }

    /// Whether readers see more than the medium has.
    pub fn is_ahead_of_medium(&self) -> bool {
        self.0.visible > self.0.flushed
    }

    pub fn has_hidden(&self) -> bool {
        self.0.visible < self.0.published
    }

    pub fn publish(&mut self, tid: Tid, asked: bool) {
        debug_assert!(tid > self.0.published, "transactions are published in order: {tid} after {self:?}");
        self.0.published = tid;
        if asked {
            self.0.requested = tid;
        }
        *self = self.checked();
    }

    pub fn record_flushed(&mut self) {
        self.flush_to(self.0.published);
    }

    /// All up to `tid` is written and shown, and on the medium if `flushed`.
    pub fn end_write(&mut self, tid: Tid, flushed: bool) {
        if flushed {
            self.flush_to(tid);
        }
        self.0.visible = self.0.visible.max(tid);
        *self = self.checked();
    }

    pub fn flushed_elsewhere(&mut self, tid: Tid) {
        self.flush_to(tid.min(self.0.visible));
    }

    /// With all before shown: `tid` is durable in place, without a record.
    #[cfg(feature = "research")]
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
    fn a_commit_with_a_flush_is_shown_once_flushed() {
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
