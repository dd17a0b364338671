//! How long the ring of the log is: small at first, twice as long when it is full, if checkpoints would come faster than is worth it, up
//! to `log_size` (rule SlotBeforeReuse); small again when the log is closed.

use std::sync::atomic::Ordering;

use crate::base::error::{Error, Result};
use crate::base::options::Options;
use crate::checkpoint::checkpoint;
use crate::database::{Database, LiveDatabase};
use crate::log::ring::StreamedImages;

/// A checkpoint costs two flushes: where as many lie between two of them, they are no reason for a longer ring.
const FLUSHES_BETWEEN: u64 = 1024;
/// Nor are the pages that it writes, where so many transactions come to each.
const TRANSACTIONS_PER_PAGE: u64 = 16;
/// No record of one page is longer than the page by more than this.
const BESIDE_PAGE: u64 = 512;

/// Makes room in a ring that has none for a record of `len` bytes, which has blocks of its own or not: the ring becomes longer if that
/// pays, with the records that it has if it can, and is emptied else. An empty ring is left as it is.
pub fn make_room(
    db: &Database,
    live: &mut LiveDatabase,
    options: &Options,
    (len, own_block): (u64, bool),
    stream: StreamedImages,
) -> Result<()> {
    let was_full = live.log.live_bytes() > 0;
    let new_pages = db.table.read().new_bytes() / u64::from(live.log.slot().page_bytes.max(1));
    if was_full && pays(db, live, new_pages, transactions(live)) && may_grow_full(db, live, longer(live, options)) {
        grow(db, live, longer(live, options))?;
        if live.log.has_room(len, own_block) {
            return Ok(());
        }
    }
    let written = || db.stats.checkpoint_pages.load(Ordering::Relaxed);
    let (before, transactions) = (written(), transactions(live));
    checkpoint(db, live, stream)?;
    let pays = was_full && pays(db, live, written().saturating_sub(before), transactions);
    live.emptied_at = db.stats.flushes.load(Ordering::Relaxed);
    if pays { grow_empty(db, live, longer(live, options)) } else { Ok(()) }
}

/// How long a ring becomes next.
pub fn longer(live: &LiveDatabase, options: &Options) -> u64 {
    live.log.slot().ring_bytes.saturating_mul(2).min(ring_bytes_max(live, options))
}

/// Whether a longer ring is worth its room, where a checkpoint writes so many pages for so many transactions.
fn pays(db: &Database, live: &LiveDatabase, pages: u64, transactions: u64) -> bool {
    let between = db.stats.flushes.load(Ordering::Relaxed).saturating_sub(live.emptied_at);
    between < FLUSHES_BETWEEN || pages.saturating_mul(TRANSACTIONS_PER_PAGE) > transactions
}

/// Transactions that have records in the ring.
fn transactions(live: &LiveDatabase) -> u64 {
    live.log.last_tid().0.saturating_sub(live.log.slot().base_tid.0)
}

/// Whether a ring can become so long with the records that it has. Other processes would have to find their places in it anew.
pub fn may_grow_full(db: &Database, live: &LiveDatabase, ring_bytes: u64) -> bool {
    ring_bytes > live.log.slot().ring_bytes
        && live.log.fits_longer(ring_bytes)
        && !live.log.has_streamed()
        && db.member().is_none_or(|member| !member.has_others())
}

/// Before the first image of a transaction streams: the record that ends it has page 1 whole.
pub fn before_stream(db: &Database, live: &mut LiveDatabase, options: &Options, page_bytes: u32) -> Result<()> {
    // Its images would go home before the store has them (rule StoreHasIt).
    if db.is_shipped() {
        return Err(Error::Full(format!(
            "a transaction of {} is larger than log_size or stream_size, which it may not be while commits wait for a store",
            db.path.display()
        )));
    }
    fit(db, live, options, u64::from(page_bytes) + BESIDE_PAGE)
}

/// Makes the ring long enough for a record of `len` bytes, if it may become so. Nothing of this transaction has streamed.
pub fn fit(db: &Database, live: &mut LiveDatabase, options: &Options, len: u64) -> Result<()> {
    let max = ring_bytes_max(live, options);
    let mut longer = live.log.slot().ring_bytes;
    while longer < max && live.log.record_bytes_max_of(longer) < len {
        longer = longer.saturating_mul(2).min(max);
    }
    if live.log.record_bytes_max() >= len || live.log.record_bytes_max_of(longer) < len {
        return Ok(());
    }
    if may_grow_full(db, live, longer) {
        return grow(db, live, longer);
    }
    match checkpoint(db, live, StreamedImages::Drop) {
        // The images stream, and the checkpoint is tried again.
        Err(e) if e.is_short() => Ok(()),
        done => done.and_then(|()| grow_empty(db, live, longer)),
    }
}

/// How long the ring may become.
pub fn ring_bytes_max(live: &LiveDatabase, options: &Options) -> u64 {
    let slot = live.log.slot();
    options.log_bytes.next_multiple_of(u64::from(slot.block_bytes)).max(slot.ring_bytes)
}

/// Makes the ring longer if it is empty.
fn grow_empty(db: &Database, live: &mut LiveDatabase, ring_bytes: u64) -> Result<()> {
    let is_empty = live.log.live_bytes() == 0 && !live.log.has_streamed();
    if is_empty { grow(db, live, ring_bytes) } else { Ok(()) }
}

/// Makes the ring longer, one that is empty or that [`may_grow_full`]. Where the disk has no room it stays as it is: that only costs
/// checkpoints.
fn grow(db: &Database, live: &mut LiveDatabase, ring_bytes: u64) -> Result<()> {
    if ring_bytes <= live.log.slot().ring_bytes {
        return Ok(());
    }
    // The ring may be all that proves the end of the session before (rule CloseProven).
    db.flush_new_mark(live)?;
    if !live.log.grow(ring_bytes).map_err(|e| db.poison(e))? {
        return Ok(());
    }
    // Both slots tell of the new ring before it has a record (rule SlotBeforeReuse), and others know each before the next.
    db.tell_slot(live);
    live.log.settle_slots().map_err(|e| db.poison(e))?;
    db.tell_slot(live);
    Ok(())
}
