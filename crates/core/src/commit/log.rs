//! Scheme `log`: one record in the ring, written and flushed with one call, together with those of
//! other waiting connections.

use std::sync::Arc;

use crate::base::error::Result;
use crate::commit::record;
use crate::database::scheme::{Commit, Facts, Outcome, Scheme};
use crate::log::group::Durability;
use crate::pages::txn::{Changed, Prepared};
use crate::sqlite_format::home::State;

pub struct Log;

impl Scheme for Log {
    fn facts(&self) -> Facts {
        Facts::LOG
    }

    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<Changed>) -> Result<Prepared> {
        let stream = record::prepare(c, &changed, state.page_count)?;
        Ok(Prepared { stream, ..Prepared::of(c.txn, state, changed)? })
    }

    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut Prepared,
        _durability: Durability,
    ) -> Result<Outcome> {
        record::finish(c, state, prepared.stream).map(Outcome::Record).map_err(|e| c.db.poison(e))
    }
}
