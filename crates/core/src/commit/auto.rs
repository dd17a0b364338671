//! Scheme `auto`: as `log`, except that a transaction of one page goes in place, without a record, where nothing
//! can tear it and nothing that the log still holds stands in the way.
//!
//! ```text
//!  the page is no larger than what the device writes all or nothing   → the old image or the new one (I1, I2)
//!  it has no entry in the live log                                    → replay does not bring an older image back
//!  everything before is durable, nobody waits for a flush             → nothing it builds on can be lost (I1)
//!  `synchronous=FULL`                                                 → one write that is also the flush
//! ```
//!
//! Later records hold absolute bytes over the image in place, so replay gives what it gives without this scheme.
//! The transaction has a TID and a change counter that no record tells; both are below the slot's ceilings.

use crate::commit::place::Placement;
use crate::database::{Database, Live};
use crate::error::{IoContext, Result};
use crate::home::State;
use crate::memory;
use crate::rules::{Rule, keeps};
use crate::table::Image;
use crate::txn::Txn;
use crate::types::PageNo;

/// A page that the kernel copies into its cache at once: death of the process cannot leave half of it there.
pub const PAGE_BYTES_MAX: u32 = 4096;

/// The only page of `images` and the image that home holds of it, if the transaction may go in place.
pub fn prepare(
    db: &Database,
    live: &Live,
    txn: &Txn,
    state: &State,
    images: &[(PageNo, Image)],
) -> Result<Option<Placement>> {
    let [(page, new)] = images else { return Ok(None) };
    let size = state.page_bytes;
    let fits = size <= live.home.atomic_unit && size <= PAGE_BYTES_MAX && new.len() == size as usize;
    // Page 1 carries the mark, and its size is the slot's to tell.
    let alone = txn.streamed.is_empty() && *page != PageNo::HEADER && state.page_count == txn.base.page_count;
    let quiet = live.log.group().is_quiet() || !keeps(Rule::InPlaceWhenDurable);
    let in_home = page.offset(size) + u64::from(size) <= live.home.bytes;
    if !(fits && alone && in_home && quiet && db.table.read().newest_is_home(*page)) {
        return Ok(None);
    }
    let mut old = memory::zeros(size as usize)?;
    let read = db.home.read_at(&mut old, page.offset(size)).context(|| db.what("cannot read"))?;
    let pages = vec![(*page, new.clone(), Some(Image::from(old)))];
    Ok((read == size as usize).then_some(Placement { pages, note: true, base: live.home_tid, count: 1 }))
}
