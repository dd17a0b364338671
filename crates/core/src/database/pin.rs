//! Snapshots: a state is pinned, and nothing that it needs is dropped until it is given back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Database, Inner, Phase};
use crate::base::error::Result;
use crate::disk::stats::Stats;
use crate::shared::tail::Reach;
use crate::sqlite_format::home::State;

impl Database {
    /// Pins the newest state for a reader, after following what other processes committed.
    pub fn pin(&self, inner: &mut Inner) -> Result<Arc<State>> {
        self.pin_newest(inner, Reach::Visible)
    }

    /// Pins the newest state for the holder of the writer's place.
    pub fn pin_published(&self, inner: &mut Inner) -> Result<Arc<State>> {
        self.pin_newest(inner, Reach::Written)
    }

    pub fn pin_newest(&self, inner: &mut Inner, reach: Reach) -> Result<Arc<State>> {
        let state = match (inner.member.clone(), reach) {
            (Some(member), _) => self.pin_shared(&member, inner, reach)?,
            (None, Reach::Visible) => inner.latest.clone(),
            (None, Reach::Written | Reach::Flushed) => inner.published.clone(),
        };
        Ok(self.count_pin(inner, state))
    }

    /// Pins a state whose images are all still there: this process has the writer's place.
    pub fn pin_state(&self, inner: &mut Inner, state: Arc<State>) -> Arc<State> {
        if let Some(member) = inner.member.as_ref().filter(|_| !inner.snapshots.has(state.tid)) {
            member.announce_unseen(state.tid);
        }
        self.count_pin(inner, state)
    }

    fn count_pin(&self, inner: &mut Inner, state: Arc<State>) -> Arc<State> {
        inner.snapshots.pin(state.tid);
        Stats::add(&self.stats.snapshots, 1);
        state
    }

    /// Gives a snapshot back.
    pub fn unpin(&self, inner: &mut Inner, state: &State) -> Result<()> {
        self.stats.snapshots.fetch_sub(1, Ordering::Relaxed);
        if inner.snapshots.unpin(state.tid) {
            if let Some(member) = &inner.member {
                member.withdraw(state.tid)?;
            }
            if self.table.read().should_trim() {
                self.table.write().trim(inner.readers());
            }
        }
        if inner.phase == Phase::Unmarked && inner.snapshots.is_empty() {
            crate::disk::locks::none(&*self.home)?;
        }
        Ok(())
    }
}
