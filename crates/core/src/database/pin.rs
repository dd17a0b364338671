//! Snapshots: a state is pinned, and nothing that it needs is dropped until it is given back.

use std::sync::Arc;
use std::time::Duration;

use super::{Database, DatabaseState, follow};
use crate::base::clock;
use crate::base::error::{Error, Result};
use crate::base::rules::{Case, keeps};
use crate::disk::stats::Stats;
use crate::shared::member::Member;
use crate::shared::tail::Reach;
use crate::sqlite_format::home::{FileKind, State};

impl Database {
    pub fn pin(&self, inner: &mut DatabaseState) -> Result<Arc<State>> {
        self.pin_newest(inner, Reach::Visible)
    }

    /// The caller has the writer's place.
    pub fn pin_published(&self, inner: &mut DatabaseState) -> Result<Arc<State>> {
        self.pin_newest(inner, Reach::Written)
    }

    pub fn pin_newest(&self, inner: &mut DatabaseState, reach: Reach) -> Result<Arc<State>> {
        let state = match (inner.member.clone(), reach) {
            (Some(member), _) => self.pin_shared(&member, inner, reach)?,
            (None, Reach::Visible) => inner.latest.clone(),
            (None, Reach::Written | Reach::Flushed) => inner.published.clone(),
        };
        Ok(self.count_pin(inner, state))
    }

    /// Its images exist still: this process has the writer's place.
    pub fn pin_state(&self, inner: &mut DatabaseState, state: Arc<State>) -> Arc<State> {
        if let Some(member) = inner.member.as_ref().filter(|_| !inner.snapshots.has(state.tid)) {
            member.announce_unseen(state.tid);
        }
        self.count_pin(inner, state)
    }

    /// `Busy`: others' checkpoints overtake it again and again.
    pub fn pin_shared(&self, member: &Member, inner: &mut DatabaseState, reach: Reach) -> Result<Arc<State>> {
        for _ in 0..1000 {
            let words = &member.words;
            inner.advance();
            let behind = match reach {
                Reach::Visible => words.visible() > inner.latest.tid,
                Reach::Written => words.written() > inner.published.tid,
                Reach::Flushed => words.written().min(words.flushed()) > inner.published.tid,
            };
            if behind || words.generation() != member.generation.load(std::sync::atomic::Ordering::Relaxed) {
                follow::catch_up(self, member, inner, reach)?;
            }
            let state = match reach {
                Reach::Visible => inner.latest.clone(),
                Reach::Written | Reach::Flushed => inner.published.clone(),
            };
            let announced = inner.snapshots.has(state.tid) || !keeps(Case::SnapshotsAnnounced);
            if announced || member.announce(state.tid)? {
                return Ok(state);
            }
            clock::sleep(Duration::from_micros(20));
        }
        Err(Error::Busy("other processes bring pages home faster than this one can follow".into()))
    }

    fn count_pin(&self, inner: &mut DatabaseState, state: Arc<State>) -> Arc<State> {
        // A file that is no database has no known size.
        let pages = if state.kind == FileKind::Foreign { u32::MAX } else { state.page_count };
        inner.snapshots.pin(state.tid, pages);
        inner.kept.is_taken();
        inner.was_used = true;
        Stats::add_alone(&self.stats.snapshots, 1);
        state
    }

    pub fn unpin(&self, inner: &mut DatabaseState, state: &State) -> Result<()> {
        self.count_unpin(inner, state)?;
        self.unlock_unused(inner)
    }

    pub(super) fn count_unpin(&self, inner: &mut DatabaseState, state: &State) -> Result<()> {
        Stats::add_alone(&self.stats.snapshots, 1_u64.wrapping_neg());
        if inner.snapshots.unpin(state.tid) {
            if let Some(member) = &inner.member {
                member.withdraw(state.tid)?;
            }
            if self.table.read().should_trim() {
                self.table.write().trim(inner.readers());
            }
        }
        Ok(())
    }
}
