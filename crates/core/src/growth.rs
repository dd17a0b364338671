//! How long the ring of the log is: small at first, twice as long when checkpoints come faster than is worth it, up to
//! `log_size` (rule RingGrownBeforeSlot); small again when the log is closed (rule LogGivenBack).

use std::sync::atomic::Ordering;

use crate::checkpoint::checkpoint;
use crate::database::{Database, Live};
use crate::error::{Error, Result};
use crate::log::ring::Stream;
use crate::options::Options;

/// A checkpoint costs two flushes: where as many lie between two of them, they are no reason for a longer ring.
const FLUSHES_BETWEEN: u64 = 1024;
/// Nor are the pages that it writes, where so many transactions come to each.
const TRANSACTIONS_PER_PAGE: u64 = 16;
/// No record of one page is longer than the page by more than this.
const BESIDE_PAGE: u64 = 512;

/// Empties a ring that has no room, and makes it longer if that pays. An empty ring is left as it is.
pub fn empty(db: &Database, live: &mut Live, options: &Options, stream: Stream) -> Result<()> {
    let was_full = live.log.live_bytes() > 0;
    let transactions = live.log.last_tid().0.saturating_sub(live.log.slot().base_tid.0);
    let written = || db.stats.checkpoint_pages.load(Ordering::Relaxed);
    let before = written();
    checkpoint(db, live, stream)?;
    let pages = written().saturating_sub(before);
    let flushes = db.stats.flushes.load(Ordering::Relaxed);
    let between = flushes.saturating_sub(std::mem::replace(&mut live.emptied_at, flushes));
    let is_rare = between >= FLUSHES_BETWEEN && pages.saturating_mul(TRANSACTIONS_PER_PAGE) <= transactions;
    if was_full && !is_rare {
        let longer = live.log.slot().ring_bytes.saturating_mul(2).min(ring_bytes_max(live, options));
        grow(db, live, longer)?;
    }
    Ok(())
}

/// Before the first image of a transaction streams: the record that ends it has page 1 whole.
pub fn before_stream(db: &Database, live: &mut Live, options: &Options, page_bytes: u32) -> Result<()> {
    // Its images would go home before the store has them (rule HomeNotAheadOfStore).
    if db.is_shipped() {
        return Err(Error::Full(format!(
            "a transaction of {} is larger than log_size or stream_size, which it may not be while commits wait for a store",
            db.path.display()
        )));
    }
    fit(db, live, options, u64::from(page_bytes) + BESIDE_PAGE)
}

/// Makes the ring long enough for a record of `len` bytes, if it may become so. Nothing of this transaction has streamed.
pub fn fit(db: &Database, live: &mut Live, options: &Options, len: u64) -> Result<()> {
    let max = ring_bytes_max(live, options);
    let mut longer = live.log.slot().ring_bytes;
    while longer < max && live.log.record_bytes_max_of(longer) < len {
        longer = longer.saturating_mul(2).min(max);
    }
    if live.log.record_bytes_max() >= len || live.log.record_bytes_max_of(longer) < len {
        return Ok(());
    }
    match checkpoint(db, live, Stream::Drop) {
        // The images stream, and the checkpoint is tried again.
        Err(e) if e.is_short() => Ok(()),
        done => done.and_then(|()| grow(db, live, longer)),
    }
}

/// How long the ring may become.
pub fn ring_bytes_max(live: &Live, options: &Options) -> u64 {
    let slot = live.log.slot();
    options.log_bytes.next_multiple_of(u64::from(slot.block_bytes)).max(slot.ring_bytes)
}

/// Makes an empty ring longer. Where the disk has no room it stays as it is: that only costs checkpoints.
fn grow(db: &Database, live: &mut Live, ring_bytes: u64) -> Result<()> {
    let is_empty = live.log.live_bytes() == 0 && !live.log.has_streamed();
    if !is_empty || ring_bytes <= live.log.slot().ring_bytes || !live.log.grow(ring_bytes).map_err(|e| db.poison(e))? {
        return Ok(());
    }
    // Both slots tell of the new ring before it has a record (rule SlotsBeforeCut), and others know each before the next.
    db.tell_slot(live);
    live.log.settle_slots().map_err(|e| db.poison(e))?;
    db.tell_slot(live);
    Ok(())
}
