//! A connection that a fork carried into the child goes on there as a connection of the child's
//! own.

use std::mem;
use std::sync::atomic::Ordering;

use super::Connection;
use crate::base::clock;
use crate::base::options::Options;
use crate::database::DatabaseState;
use crate::disk::sync::MutexGuard;

/// So often a lock is looked at that another thread of the child may have for a moment.
const LOOKS: u32 = 1000;

impl Connection {
    /// The settings of the connection and of its database; `None`: a thread of the parent was
    /// changing them during the fork.
    pub fn settings(&self) -> Option<Vec<(String, String)>> {
        let shared = (*self.lock_inherited()?.options).clone();
        let options = Options { busy_ms: self.busy_ms, require: self.requires, shipper: self.ships, ..shared };
        Some(Options::NAMES.iter().filter_map(|name| Some(((*name).to_owned(), options.get(name)?))).collect())
    }

    /// In a child of a fork the lock may be one that no thread gives back.
    fn lock_inherited(&self) -> Option<MutexGuard<'_, DatabaseState>> {
        (0..LOOKS).find_map(|_| {
            let inner = self.db.inner.try_lock();
            if inner.is_none() {
                clock::yield_now();
            }
            inner
        })
    }

    /// `before` had no lock when a fork carried it into this process, and stays the parent's.
    /// SQLite's page cache is of a state of the parent's, so it is taken for no other (rule
    /// CacheKnowsItsState).
    pub fn take_place_of(&mut self, mut before: Connection) {
        (self.busy_ms, self.requires, self.ships) = (before.busy_ms, before.requires, before.ships);
        self.said = mem::take(&mut before.said);
        self.said.spans = false;
        self.habit = before.habit.carried();
        self.cache = mem::take(&mut before.cache).carried();
        self.db.flushes_close.fetch_or(before.db.flushes_close.load(Ordering::Relaxed), Ordering::Relaxed);
        self.db.wipes_log.fetch_or(before.db.wipes_log.load(Ordering::Relaxed), Ordering::Relaxed);
        mem::forget(before);
    }
}
