//! The oracle: the committed states, and those that a crash may leave.

/// Committed states, and the oldest that each kind of death may leave.
#[derive(Clone, Debug, Default)]
pub struct Oracle<S> {
    /// States that may have been committed, oldest first.
    pub states: Vec<S>,
    /// The newest state that no crash may take back.
    pub floor: usize,
    /// The newest state that the processes have seen committed.
    pub committed: usize,
    /// The floor before the last flush: no later flush proves a record of the last one.
    pub proven: usize,
    /// A connection is beside the log, so a kill may leave writes that a later crash rolls back.
    pub aside: bool,
}

impl<S: Clone> Oracle<S> {
    /// Only `state`, which is durable.
    pub fn starting(state: S) -> Self {
        Self { states: vec![state], floor: 0, committed: 0, proven: 0, aside: false }
    }

    /// The newest committed state.
    pub fn latest(&self) -> &S {
        &self.states[self.committed]
    }

    /// The states that a power cut may leave.
    pub fn after_crash(&self) -> Vec<S> {
        self.states[self.floor..].to_vec()
    }

    /// The states that a kill may leave.
    pub fn after_kill(&self) -> Vec<S> {
        self.states[if self.aside { self.floor } else { self.committed }..].to_vec()
    }

    /// The states after damage to a record or slot that looks like a crash.
    pub fn after_rot(&self) -> Vec<S> {
        self.states[self.proven..].to_vec()
    }

    /// Floor, committed and attempted.
    pub fn marks(&self) -> (usize, usize, usize) {
        (self.floor, self.committed, self.states.len() - 1)
    }

    /// Whether no crash can take back the committed state.
    pub fn is_certain(&self) -> bool {
        self.floor == self.committed
    }

    /// Whether an attempt is unacknowledged.
    pub fn is_undecided(&self) -> bool {
        self.committed + 1 < self.states.len()
    }

    /// A transaction leads to `state`, if it succeeds.
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

    /// The last attempt had no effect.
    pub fn withdraw(&mut self) {
        self.states.truncate(self.committed + 1);
        self.aside = false;
    }

    /// Makes every committed state durable.
    pub fn settle(&mut self) {
        self.proven = self.floor;
        self.floor = self.committed;
    }

    /// A recovery has ended, and the log continues: its state is durable, but no new flush proves
    /// the records.
    pub fn go_on(&mut self) {
        self.floor = self.committed;
    }

    /// Recovery finds the state at `index` of [`Self::states`]. Until it has ended, a crash may
    /// still take back states that were not durable before.
    pub fn recovers(&mut self, index: usize) {
        self.states.truncate(index + 1);
        self.committed = index;
        self.floor = self.floor.min(index);
        self.proven = self.proven.min(index);
        self.aside = false;
    }
}
