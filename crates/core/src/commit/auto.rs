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

use std::sync::atomic::Ordering;

use crate::checkpoint::keep;
use crate::database::{Database, Live};
use crate::error::{Error, IoContext, Result};
use crate::home::State;
use crate::stats::Stats;
use crate::table::{Image, Place};
use crate::txn::Txn;
use crate::types::PageNo;

/// A page that the kernel copies into its cache at once: death of the process cannot leave half of it there.
const PAGE_BYTES_MAX: u32 = 4096;

/// The image that home holds of the only page of `images`, if the transaction may go in place.
pub fn prepare(
    db: &Database,
    live: &Live,
    txn: &Txn,
    state: &State,
    images: &[(PageNo, Image)],
) -> Result<Option<Image>> {
    let [(page, new)] = images else { return Ok(None) };
    let size = state.page_bytes;
    let fits = size <= live.home.atomic_unit && size <= PAGE_BYTES_MAX && new.len() == size as usize;
    // Page 1 carries the mark, and its size is the slot's to tell.
    let alone = txn.streamed.is_empty() && *page != PageNo::HEADER && state.page_count == txn.base.page_count;
    let in_home = page.offset(size) + u64::from(size) <= live.home.bytes;
    if !(fits && alone && in_home && live.log.group().is_quiet() && db.table.read().newest_is_home(*page)) {
        return Ok(None);
    }
    let mut old = vec![0; size as usize];
    let read = db.home.read_at(&mut old, page.offset(size)).context(|| db.what("cannot read"))?;
    Ok((read == old.len()).then(|| old.into()))
}

/// Overwrites `page` in home, durable. `old` stays for the snapshots before, until the state has changed. False,
/// and nothing is done, if there is no room for it.
pub fn commit(db: &Database, live: &mut Live, state: &State, page: PageNo, old: Image, new: &Image) -> Result<bool> {
    let old = if db.inner.lock().snapshots.is_empty() {
        Place::Memory(old)
    } else {
        match keep(db, live, old) {
            Ok(place) => place,
            Err(Error::Full(_)) => return Ok(false),
            Err(e) => return Err(e),
        }
    };
    live.log.note_in_place(page)?;
    {
        let mut table = db.table.write();
        if table.is_empty() {
            live.kept = None;
        }
        table.hold(page, state.tid, old);
    }
    db.epoch.fetch_add(1, Ordering::SeqCst);
    db.home.write_durable_at(new, page.offset(state.page_bytes)).context(|| db.what("cannot write"))?;
    live.home_tid = state.tid;
    Stats::add(&db.stats.in_place, 1);
    Ok(true)
}
