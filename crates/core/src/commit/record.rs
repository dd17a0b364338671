//! A transaction as one log record: deltas or whole pages, and the index of images that streamed.

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::options::{Images, Options};
use crate::base::types::PageNo;
use crate::checkpoint::growth;
use crate::commit::stream;
use crate::database::scheme::Commit;
use crate::database::{Database, LiveDatabase};
use crate::disk::stats::Stats;
use crate::log::group::Durability;
use crate::log::ring::{Ready, StreamedImages as Streams, WrittenRecord};
use crate::pages::txn::{ChangedPage, Txn};
use crate::sqlite_format::home::State;

pub fn begin(db: &Database, live: &mut LiveDatabase, txn: &Txn) -> Result<()> {
    live.encoder.clear();
    let Some(several) = &txn.several else { return Ok(()) };
    live.encoder.add_decider(&several.decider(&db.path, live.log.slot().session))
}

/// Images that do not fit the ring stream.
pub fn prepare(c: &mut Commit<'_>, changed: &[ChangedPage], page_count: u32) -> Result<()> {
    let Commit { db, live, txn, options } = c.parts();
    if options.bundle.images == Images::Full {
        let block = live.log.slot().block_bytes as usize;
        let mut frames: Vec<(PageNo, &[u8])> = memory::list(changed.len())?;
        frames.extend(changed.iter().map(|c| (c.page, &*c.new)));
        live.encoder.add_frames(&frames, block)?;
    }
    let len = live.encoder.record_bytes() as u64;
    if len > live.log.record_bytes_max() && txn.streamed.is_empty() {
        growth::fit(db, live, options, len)?;
    }
    if len > live.log.record_bytes_max() {
        if txn.streamed.is_empty() {
            stream::begin(db, live, options, txn)?;
        }
        begin(db, live, txn)?;
        for c in changed {
            if c.page == PageNo::HEADER {
                // Whole, over zeros: the same as its delta.
                live.encoder.add_delta(c.page, None, &c.new)?;
            } else {
                stream::page(db, live, txn, c.page, &c.new)?;
            }
        }
    }
    txn.streamed.truncate(page_count);
    stream::finish(db, live, txn)?;
    let len = live.encoder.record_bytes() as u64;
    if !live.log.has_room(len, own_block(options)) {
        db.flush_new_mark(live)?;
    }
    if !live.log.has_room(len, own_block(options)) {
        let keep = if txn.streamed.is_empty() { Streams::Drop } else { Streams::Keep };
        growth::make_room(db, live, options, (len, own_block(options)), keep)?;
        if !live.log.has_room(len, own_block(options)) && live.log.live_bytes() == 0 {
            live.log.rewind().map_err(|e| db.poison(e))?;
            live.tell_slot();
        }
    }
    if !live.log.has_room(len, own_block(options)) {
        return Err(Error::Full(format!(
            "a transaction needs {len} bytes of the log {}, which has {}",
            live.log.file().path.display(),
            live.log.slot().ring_bytes
        )));
    }
    Stats::add_alone(&db.stats.streamed_pages, txn.streamed.len().into());
    Ok(())
}

pub fn own_block(options: &Options) -> bool {
    options.bundle.images == Images::Full
}

pub fn finish(c: &mut Commit<'_>, state: &State) -> Result<Ready> {
    let Commit { db, live, options, .. } = c.parts();
    let crc = seal(db, live, state);
    let way = live.log.make_way(live.encoder.finished(), own_block(options), db)?;
    Ok(Ready { way, crc })
}

pub fn seal(db: &Database, live: &mut LiveDatabase, state: &State) -> u32 {
    if let Some(member) = &live.member {
        // The record proves others' flushes, too (rule DamageIsTold).
        live.log.group().flushed_elsewhere(member.words.flushed());
    }
    let head = live.log.head(state);
    Stats::add_alone(&db.stats.record_pages, u64::from(live.encoder.entry_count()));
    let (record, crc) = live.encoder.finish(&head);
    Stats::add_alone(&db.stats.records, 1);
    Stats::add_alone(&db.stats.record_bytes, record.len() as u64);
    crc
}

/// The caller has the lock that publishes `state`.
pub fn push(live: &mut LiveDatabase, ready: &Ready, state: &Arc<State>, durability: Durability) {
    live.log.push(&ready.way, live.encoder.finished(), ready.crc, state, durability);
    live.encoder.give_back();
}

pub fn push_prepared(live: &mut LiveDatabase, written: &WrittenRecord, state: &Arc<State>) {
    live.log.push_prepared(written, state);
    live.encoder.give_back();
}
