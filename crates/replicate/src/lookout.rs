//! Finding newer files of a store at little cost: while nothing happens, one request a look.

use crate::report::now_ms;
use crate::store::{BATCHES, Name, Store};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// While the next batch is missing: each so many looks, one for the batch after it.
const LOOKS_FURTHER: u32 = 10;
/// Each so often a listing, since a replica that is far behind goes on with merged files.
const LISTS_EVERY: Duration = Duration::from_secs(600);
/// After a longer pause the store is listed: a removed batch may be there again, made by an owner
/// that was stopped and does not know of the next one. Only merged files count then (see
/// [`crate::fence`]).
pub const AWAY_MS: i64 = 60_000;
/// Without a next batch behind a state of this age, the store is listed once.
const OLD_MS: i64 = 5_000;

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No newer file.
    Nothing,
    /// The next batch.
    Batch(Name),
    /// Only a listing can tell.
    Unknown,
}

/// Looks for newer files.
#[derive(Debug, Default)]
pub struct Lookout {
    /// When the store was listed last; `None`: list it next.
    listed: Option<Instant>,
    /// The newest known transaction at that listing.
    listed_txid: u64,
    /// When the next batch was looked for last, in milliseconds since 1970. A monotonic clock would
    /// stand still while the machine sleeps.
    looked_ms: i64,
    looks: u32,
}

impl Lookout {
    /// Looks for what follows transaction `txid`, whose state is of `state_ms`.
    pub fn look(&mut self, store: &dyn Store, txid: u64, state_ms: i64) -> Result<Seen> {
        let batch = |txid: u64| Name { level: BATCHES, min: txid, max: txid };
        let next = txid.checked_add(1).context("no transaction follows")?;
        let looked_ms = std::mem::replace(&mut self.looked_ms, now_ms());
        let was_away = !(0..AWAY_MS).contains(&self.looked_ms.saturating_sub(looked_ms));
        if was_away || self.listed.is_none_or(|listed| listed.elapsed() >= LISTS_EVERY) {
            return Ok(Seen::Unknown);
        }
        if store.has(batch(next))? {
            self.looks = 0;
            return Ok(Seen::Batch(batch(next)));
        }
        self.looks = self.looks.wrapping_add(1);
        // Perhaps it was merged and removed: of many batches few are kept. A listing tells.
        let is_old = self.listed_txid != txid && now_ms().saturating_sub(state_ms) > OLD_MS;
        let lists = is_old || self.looks.is_multiple_of(LOOKS_FURTHER) && store.has(batch(next.saturating_add(1)))?;
        Ok(if lists { Seen::Unknown } else { Seen::Nothing })
    }

    /// The store was listed, where `txid` was the newest known transaction.
    pub fn listed(&mut self, txid: u64) {
        (self.listed, self.listed_txid) = (Some(Instant::now()), txid);
    }

    /// The next look lists.
    pub fn forget(&mut self) {
        self.listed = None;
    }
}
