//! A transaction that has read and begins to write on a stale snapshot goes on with the newest
//! state where SQLite's cache holds no page that differs (rule CacheKnowsItsState). So all that it
//! has read is still so, whether it read in this transaction or found it in the cache.

use std::sync::Arc;

use super::Connection;
use super::concurrent::is_unchanged;
use crate::base::error::{Error, Result};
use crate::base::types::{PageNo, Tid};
use crate::database::Phase;
use crate::database::scheme::Facts;
use crate::shared::words::Ship;
use crate::sqlite_format::home::{self, FileKind, State};

impl Connection {
    /// Whether the transaction could go on with the newest state that is known here.
    pub(super) fn may_move(&self, snapshot: &State, ship: Ship) -> Result<bool> {
        if !self.waits.upgrades || ship.is_away() || self.said.exclusive || self.db.facts() != Facts::LOG {
            return Ok(false);
        }
        let newest = {
            let inner = self.db.inner.lock();
            if inner.phase != Phase::Live {
                return Ok(false);
            }
            inner.published.clone()
        };
        self.holds_in(snapshot, &newest)
    }

    /// The state to write on: with the writer's place, the newest one. BUSY_SNAPSHOT where it
    /// differs in what was read.
    pub(super) fn move_forward(&mut self, snapshot: Arc<State>) -> Result<Arc<State>> {
        let db = self.db.clone();
        let (newest, ship) = {
            let inner = db.inner.lock();
            if inner.is_newest(&snapshot) {
                return Ok(snapshot);
            }
            (inner.published.clone(), inner.ship())
        };
        if !self.may_move(&snapshot, ship)? {
            return Err(Error::BusySnapshot);
        }
        let mut inner = db.inner.lock();
        inner.check()?;
        let Some(reader) = self.role.pinned_mut() else { return Err(Error::BusySnapshot) };
        reader.state = db.pin_state(&mut inner, newest.clone());
        reader.unsettled = newest.tid > inner.latest.tid;
        reader.has_moved = true;
        db.unpin(&mut inner, &snapshot)?;
        drop(inner);
        // The application has seen this state's pages as durable ones.
        self.settle()?;
        Ok(newest)
    }

    /// Whether no page in SQLite's cache, and nothing on page 1 but counters, differs.
    fn holds_in(&self, snapshot: &State, newest: &State) -> Result<bool> {
        let Some(cached) = self.cache.pages() else { return Ok(false) };
        let is_alike = snapshot.tid > Tid::HOME
            && (snapshot.kind, newest.kind) == (FileKind::Database, FileKind::Database)
            && (snapshot.page_bytes, snapshot.page_count) == (newest.page_bytes, newest.page_count);
        if !is_alike || !is_unchanged(&self.db, cached.iter(), snapshot.tid) {
            return Ok(false);
        }
        let (now, before) = (self.db.image(newest, PageNo::HEADER)?, self.db.image(snapshot, PageNo::HEADER)?);
        Ok(home::same_header(&now, &before, home::COUNTERS))
    }

    /// SQLite's journal has page 1 of an older state.
    pub(super) fn has_moved(&self) -> bool {
        self.role.pinned().is_some_and(|reader| reader.has_moved)
    }
}
