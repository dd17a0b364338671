//! Scheme `log`: one record in the ring, written and flushed together with those of other waiting
//! connections.

use std::sync::Arc;

use crate::base::error::Result;
use crate::commit::record;
use crate::database::scheme::{Commit, CommitOutcome, Facts, Scheme};
use crate::log::group::Durability;
use crate::pages::txn::{ChangedPage, PreparedCommit};
use crate::sqlite_format::home::State;

pub struct LogScheme;

impl Scheme for LogScheme {
    fn facts(&self) -> Facts {
        Facts::LOG
    }

    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        record::prepare(c, &changed, state.page_count)?;
        PreparedCommit::of(c.txn, state, changed)
    }

    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        _prepared: &mut PreparedCommit,
        _durability: Durability,
    ) -> Result<CommitOutcome> {
        record::finish(c, state).map(CommitOutcome::Record).map_err(|e| c.db.poison(e))
    }
}
