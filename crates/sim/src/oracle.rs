//! The oracle: which committed states there were, and which of them a crash may leave.

/// Committed states, oldest first, and how far each kind of death can go back.
#[derive(Clone, Debug, Default)]
pub struct Oracle<S> {
    /// Every state that was committed or may have been, oldest first.
    pub states: Vec<S>,
    /// The newest that no crash may take back.
    pub floor: usize,
    /// The newest that the processes have seen committed.
    pub committed: usize,
    /// What was durable before the last flush: nothing proves a record that was flushed with the last one.
    pub proven: usize,
    /// A connection is beside the log, so a kill may leave what a later crash rolls back.
    pub aside: bool,
}

impl<S: Clone> Oracle<S> {
    /// Only `state`, durable.
    pub fn starting(state: S) -> Self {
        Self { states: vec![state], floor: 0, committed: 0, proven: 0, aside: false }
    }

    /// The newest committed state.
    pub fn latest(&self) -> &S {
        &self.states[self.committed]
    }

    /// The states a power cut may leave.
    pub fn after_crash(&self) -> Vec<S> {
        self.states[self.floor..].to_vec()
    }

    /// The states the death of the process may leave.
    pub fn after_kill(&self) -> Vec<S> {
        self.states[if self.aside { self.floor } else { self.committed }..].to_vec()
    }

    /// The states that damage to a record or a slot may leave, if nothing tells it from a crash.
    pub fn after_rot(&self) -> Vec<S> {
        self.states[self.proven..].to_vec()
    }

    /// Floor, committed and attempted, for people.
    pub fn marks(&self) -> (usize, usize, usize) {
        (self.floor, self.committed, self.states.len() - 1)
    }

    /// Whether no crash can take back what was committed.
    pub fn is_certain(&self) -> bool {
        self.floor == self.committed
    }

    /// Whether a transaction was attempted and not acknowledged.
    pub fn is_undecided(&self) -> bool {
        self.committed + 1 < self.states.len()
    }

    /// A transaction leads to `state`, if nothing goes wrong from here on.
    pub fn attempt(&mut self, state: S, aside: bool) {
        self.states.truncate(self.committed + 1);
        self.states.push(state);
        self.aside = aside;
    }

    /// The last attempt succeeded.
    pub fn acknowledge(&mut self, durable: bool) {
        self.committed = self.states.len() - 1;
        self.aside = false;
        if durable {
            self.settle();
        }
    }

    /// The last attempt came to nothing.
    pub fn withdraw(&mut self) {
        self.states.truncate(self.committed + 1);
        self.aside = false;
    }

    /// Everything committed is durable.
    pub fn settle(&mut self) {
        self.proven = self.floor;
        self.floor = self.committed;
    }

    /// A recovery is done, and the log goes on: what it found is durable, and nothing proves more of it than before.
    pub fn go_on(&mut self) {
        self.floor = self.committed;
    }

    /// A process recovers and finds the state at `index` of [`Self::states`]; until it is done, a crash may still
    /// take back what was not durable before.
    pub fn recovers(&mut self, index: usize) {
        self.states.truncate(index + 1);
        self.committed = index;
        self.floor = self.floor.min(index);
        self.proven = self.proven.min(index);
        self.aside = false;
    }
}
