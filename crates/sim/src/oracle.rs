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

/// States that threads may see, while some of them commit.
#[derive(Clone, Debug)]
pub struct Timeline<S> {
    /// States that may have been committed, oldest first, and whether each is durable once seen.
    pub states: Vec<(S, bool)>,
    /// The newest acknowledged or seen.
    pub seen: usize,
    /// The newest state that no power cut may take back.
    pub floor: usize,
}

impl<S: Clone> Timeline<S> {
    /// Only `state`, which is durable.
    pub fn starting(state: S) -> Self {
        Self { states: vec![(state, true)], seen: 0, floor: 0 }
    }

    /// The states from index `at` on.
    pub fn from(&self, at: usize) -> Vec<S> {
        self.states[at..].iter().map(|(state, _)| state.clone()).collect()
    }

    /// A transaction saw it, or was told that it is committed (rule SeenWhenDurable).
    pub fn see(&mut self, at: usize) {
        self.seen = self.seen.max(at);
        let durable = self.states[..=at].iter().rposition(|(_, durable)| *durable);
        self.floor = self.floor.max(durable.unwrap_or(0));
    }

    /// The power went: only what is durable was seen.
    pub fn lose_power(&mut self) {
        self.seen = self.floor;
    }

    /// The newest seen is durable, and nothing else was committed.
    pub fn settle(&mut self) {
        self.states.truncate(self.seen + 1);
        self.floor = self.seen;
    }
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
