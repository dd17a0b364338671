//! The log's ring doubles when it is full and checkpoints would come too often, up to `log_size`,
//! and is small again when the log is closed (rule SlotBeforeReuse).

use std::sync::atomic::Ordering;

use crate::base::error::{Error, Result};
use crate::base::options::Options;
use crate::checkpoint::{checkpoint, checkpoint_with_room};
use crate::database::{Database, LiveDatabase};
use crate::log::ring::StreamedImages;

/// A checkpoint costs two flushes: with so many between two, a longer ring gains nothing.
const FLUSHES_BETWEEN: u64 = 1024;
/// Nor does it with so many transactions for each page written.
const TRANSACTIONS_PER_PAGE: u64 = 16;
const BESIDE_PAGE: u64 = 512;

/// The ring grows if that pays, with its records if it can, and is emptied otherwise. An empty ring
/// stays as it is.
pub fn make_room(
    db: &Database,
    live: &mut LiveDatabase,
    options: &Options,
    (len, own_block): (u64, bool),
    stream: StreamedImages,
) -> Result<()> {
    let was_full = live.log.live_bytes() > 0;
    let new_pages = db.table.read().new_bytes() / u64::from(live.log.slot().page_bytes.max(1));
    if was_full && pays(db, live, new_pages, transactions(live)) && may_grow_full(live, longer(live, options)) {
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

pub fn longer(live: &LiveDatabase, options: &Options) -> u64 {
    live.log.slot().ring_bytes.saturating_mul(2).min(ring_bytes_max(live, options))
}

fn pays(db: &Database, live: &LiveDatabase, pages: u64, transactions: u64) -> bool {
    let between = db.stats.flushes.load(Ordering::Relaxed).saturating_sub(live.emptied_at);
    between < FLUSHES_BETWEEN || pages.saturating_mul(TRANSACTIONS_PER_PAGE) > transactions
}

fn transactions(live: &LiveDatabase) -> u64 {
    live.log.last_tid().0.saturating_sub(live.log.slot().base_tid.0)
}

/// Other processes would have to find their places again.
pub fn may_grow_full(live: &LiveDatabase, ring_bytes: u64) -> bool {
    ring_bytes > live.log.slot().ring_bytes
        && live.log.fits_longer(ring_bytes)
        && !live.log.has_streamed()
        && !live.has_other_processes()
}

/// The final record has page 1 whole.
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

pub fn fit(db: &Database, live: &mut LiveDatabase, options: &Options, len: u64) -> Result<()> {
    let max = ring_bytes_max(live, options);
    let mut longer = live.log.slot().ring_bytes;
    while longer < max && live.log.record_bytes_max_of(longer) < len {
        longer = longer.saturating_mul(2).min(max);
    }
    if live.log.record_bytes_max() >= len || live.log.record_bytes_max_of(longer) < len {
        return Ok(());
    }
    if may_grow_full(live, longer) {
        return grow(db, live, longer);
    }
    // Without room the images stream, and the checkpoint is tried again.
    if checkpoint_with_room(db, live)? { grow_empty(db, live, longer) } else { Ok(()) }
}

pub fn ring_bytes_max(live: &LiveDatabase, options: &Options) -> u64 {
    let slot = live.log.slot();
    options.log_bytes.next_multiple_of(u64::from(slot.block_bytes)).max(slot.ring_bytes)
}

fn grow_empty(db: &Database, live: &mut LiveDatabase, ring_bytes: u64) -> Result<()> {
    let is_empty = live.log.live_bytes() == 0 && !live.log.has_streamed();
    if is_empty { grow(db, live, ring_bytes) } else { Ok(()) }
}

/// The ring must be empty, or [`may_grow_full`]. On a full disk it stays, which only costs
/// checkpoints.
fn grow(db: &Database, live: &mut LiveDatabase, ring_bytes: u64) -> Result<()> {
    if ring_bytes <= live.log.slot().ring_bytes {
        return Ok(());
    }
    // It may be the only proof of the last session's end (rule CloseProven).
    db.flush_new_mark(live)?;
    if !live.log.grow(ring_bytes).map_err(|e| db.poison(e))? {
        return Ok(());
    }
    // Before the first record, both slots tell of the new ring (rule SlotBeforeReuse), and others
    // learn each before the next.
    live.tell_slot();
    live.settle_slots().map_err(|e| db.poison(e))?;
    Ok(())
}
