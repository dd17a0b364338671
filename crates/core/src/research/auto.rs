//! Scheme `auto`: as `log`, but a transaction of one page goes in place, without a record, where
//! that is safe.
//!
//! ```text
//! the page is no larger than the device's atomic write    → the old or the new image (I1, I2)
//! it has no entry in the live log                         → replay restores no older image
//! everything before is durable, no commit waits           → its base cannot be lost (I1)
//! `synchronous=FULL`                                      → one write that is also the flush
//! ```
//!
//! Later records hold absolute bytes over the image in place, so replay gives the same. No record
//! tells the transaction's TID and change counter; both are below the slot's ceilings.

use std::sync::Arc;

use crate::base::error::{IoContext, Result};
use crate::base::memory;
use crate::base::rules::{Case, keeps};
use crate::base::types::PageNo;
use crate::commit::record;
use crate::database::scheme::{Commit, CommitOutcome, Facts, Scheme};
use crate::database::{Database, LiveDatabase};
use crate::log::group::Durability;
use crate::pages::table::Image;
use crate::pages::txn::{ChangedPage, Placement, PreparedCommit, Txn};
use crate::research::place;
use crate::research::place::PAGE_BYTES_MAX;
use crate::sqlite_format::home::State;

pub struct Auto;

impl Scheme for Auto {
    fn facts(&self) -> Facts {
        Facts { in_place: true, ..Facts::LOG }
    }

    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        let stream = record::prepare(c, &changed, state.page_count)?;
        let mut prepared = PreparedCommit { stream, ..PreparedCommit::of(c.txn, state, changed)? };
        prepared.in_place = place_alone(c.db, c.live, c.txn, &prepared.state, &prepared.images)?.map(Box::new);
        Ok(prepared)
    }

    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut PreparedCommit,
        durability: Durability,
    ) -> Result<CommitOutcome> {
        let group = c.live.log.group().clone();
        let joins = durability == Durability::Written || !group.is_quiet();
        let placed = prepared.in_place.take().filter(|_| !joins || !keeps(Case::InPlaceWhenDurable));
        let Some(placed) = placed else {
            return record::finish(c, state, prepared.stream).map(CommitOutcome::Record).map_err(|e| c.db.poison(e));
        };
        if keeps(Case::InPlaceWhenDurable) {
            group.flush(c.db)?;
        }
        place::commit(c.db, c.live, state, &placed, c.options).map_err(|e| c.db.poison(e))?;
        Ok(CommitOutcome::Placed(placed.pages.iter().map(|(page, ..)| *page).collect()))
    }
}

/// Home's image comes with the page, if it may go in place.
fn place_alone(
    db: &Database,
    live: &LiveDatabase,
    txn: &Txn,
    state: &State,
    images: &[(PageNo, Image)],
) -> Result<Option<Placement>> {
    let [(page, new)] = images else { return Ok(None) };
    let size = state.page_bytes;
    let fits = size <= live.home.atomic_unit && size <= PAGE_BYTES_MAX && new.len() == size as usize;
    // Page 1 has the mark, and the slot the size.
    let alone = txn.streamed.is_empty() && *page != PageNo::HEADER && state.page_count == txn.base.page_count;
    let quiet = live.log.group().is_quiet() || !keeps(Case::InPlaceWhenDurable);
    let in_home = page.offset(size) + u64::from(size) <= live.home.bytes;
    if !(fits && alone && in_home && quiet && db.table.read().newest_is_home(*page)) {
        return Ok(None);
    }
    let mut old = memory::zeros(size as usize)?;
    let read = db.home.read_at(&mut old, page.offset(size)).context(|| db.what("cannot read"))?;
    let pages = vec![(*page, new.clone(), Some(Image::from(old)))];
    Ok((read == size as usize).then_some(Placement { pages, note: true, base: live.home_tid, count: 1 }))
}
