//! Checkpoints in slices: commits bring a few pages home each, so that none waits for all of them
//! (`docs/commit.md` has the states).
//!
//! A slice brings the newest image of some pages home, durable in the log by then (rule
//! LogBeforeHome), and removes them from the table. Replay over a newer home gives the same (rule
//! AbsoluteBytes), so a sweep can be given up at any time, and a whole checkpoint ends it.

use std::sync::Arc;

use crate::base::error::Result;
use crate::base::memory;
use crate::base::options::Options;
use crate::base::rules::{Case, keeps};
use crate::base::types::PageNo;
use crate::checkpoint::growth;
use crate::checkpoint::{tell, write_home};
use crate::database::progress::{AfterSweep, Sweep};
use crate::database::{Database, LiveDatabase};
use crate::disk::image_file::ImageFile;
use crate::disk::stats::Stats;
use crate::pages::table::ImageLocation;
use crate::sqlite_format::home::State;

/// The least, for short sweeps, and the most: fewer, bigger slices cost less.
const SLICE_PAGES: (usize, usize) = (4, 16);
/// The least number, but for the shortest sweeps.
const SLICES: usize = 32;

/// A whole checkpoint of so many is over in a moment.
const FEW_BYTES: u64 = 128 << 10;

/// The caller has the writer's place, and everything is published. Without room the sweep is given
/// up, and a whole checkpoint reports the error.
pub fn advance(db: &Database, live: &mut LiveDatabase, options: &Options) -> Result<()> {
    let begun = live.sweep.take();
    let then = begun.as_ref().map(|sweep| sweep.then).or_else(|| due(db, live, options));
    let Some(then) = then.filter(|_| may_sweep(db, live)) else { return Ok(()) };
    let went_on = begun.map_or_else(|| begin(db, live, then), Ok).and_then(|mut sweep| {
        debug_assert!(sweep.to.last_tid > live.log.slot().base_tid, "a whole checkpoint ends the sweep");
        let is_over = step(db, live, &mut sweep)?;
        live.sweep = Some(sweep).filter(|_| !is_over);
        Ok(())
    });
    match went_on {
        Err(e) if e.is_short() => Ok(()),
        went_on => went_on.map_err(|e| db.poison(e)),
    }
}

/// With other writers, whole checkpoints follow.
fn may_sweep(db: &Database, live: &LiveDatabase) -> bool {
    live.scheme.facts().all_in_log() && !db.is_shipped() && !db.table.read().has_layer() && !live.has_other_processes()
}

fn due(db: &Database, live: &LiveDatabase, options: &Options) -> Option<AfterSweep> {
    let (ring_bytes, live_bytes) = (live.log.slot().ring_bytes, live.log.live_bytes());
    let new_bytes = db.table.read().new_bytes();
    let is_long = ring_bytes >= growth::ring_bytes_max(live, options);
    if live_bytes == 0 {
        return None;
    }
    if new_bytes >= options.table_bytes / 4 * 3
        || (is_long && live_bytes >= ring_bytes / 16 * 15 && new_bytes >= FEW_BYTES)
    {
        return Some(AfterSweep::Slot);
    }
    let ends_in_checkpoint = || !growth::may_grow_full(live, growth::longer(live, options));
    (!is_long && live_bytes >= ring_bytes / 2 && new_bytes >= options.table_bytes / 2 && ends_in_checkpoint())
        .then_some(AfterSweep::Nothing)
}

fn begin(db: &Database, live: &mut LiveDatabase, then: AfterSweep) -> Result<Sweep> {
    db.flush_published(live)?;
    let state = db.inner.lock().published.clone();
    let to = live.log.cursor();
    debug_assert!(state.tid == to.last_tid, "the newest state is that of the last record");
    let table = db.table.read();
    let pages = table.dirty(state.page_count)?.into_iter().map(|(page, _)| page).collect();
    let free_bytes = live.log.slot().ring_bytes.saturating_sub(live.log.live_bytes());
    let begun_bytes = table.new_bytes();
    Ok(Sweep {
        to,
        state,
        pages,
        next: 0,
        later: Vec::new(),
        begun_bytes,
        swept_bytes: 0,
        free_bytes,
        flushed: false,
        then,
    })
}

/// True when the sweep is over.
fn step(db: &Database, live: &mut LiveDatabase, sweep: &mut Sweep) -> Result<bool> {
    if sweep.flushed {
        finish(db, live, sweep)?;
        return Ok(true);
    }
    if sweep.next == sweep.pages.len() {
        if sweep.then == AfterSweep::Nothing {
            return Ok(true);
        }
        if keeps(Case::HomeBeforeSlot) {
            db.sync_home()?;
        }
        sweep.flushed = true;
        return Ok(false);
    }
    let due =
        if keeps(Case::SlotBehindSweep) { sweep.due(live.log.cursor().tail, db.table.read().new_bytes()) } else { 0 };
    let is_last = due == sweep.pages.len() || !keeps(Case::SlotBehindSweep);
    let slice_pages = (sweep.pages.len() / SLICES).clamp(SLICE_PAGES.0, SLICE_PAGES.1);
    if due < sweep.next + slice_pages && !is_last {
        return Ok(false);
    }
    let state = newest_durable(db, live, sweep);
    let turn: Vec<PageNo> = sweep.pages.get(sweep.next..due).unwrap_or_default().to_vec();
    slice(db, live, sweep, &state, &turn)?;
    sweep.next = due.max(sweep.next);
    if !is_last {
        return Ok(false);
    }
    sweep.next = sweep.pages.len();
    let mut state = state;
    let later = std::mem::take(&mut sweep.later);
    if !later.is_empty() {
        db.flush_published(live)?;
        state = db.inner.lock().published.clone();
        slice(db, live, sweep, &state, &later)?;
        debug_assert!(sweep.later.is_empty(), "everything is durable");
    }
    // Of home: everything up to `to`, and some later pages (rule HomeFitsLog).
    let tid = live.home.mark.tid.max(state.tid);
    tell(db, live, tid, sweep.to.last_tid)?;
    Ok(false)
}

/// The state is visible, and at least the one that the sweep began with.
fn newest_durable(db: &Database, live: &LiveDatabase, sweep: &Sweep) -> Arc<State> {
    let durable = live.log.group().durable();
    let latest = db.inner.lock().latest.clone();
    let is_durable = latest.tid <= durable || !keeps(Case::HomeNotAheadOfLog);
    if latest.tid > sweep.state.tid && is_durable { latest } else { sweep.state.clone() }
}

/// The images are of `state` or before; others come later.
fn slice(db: &Database, live: &mut LiveDatabase, sweep: &mut Sweep, state: &State, pages: &[PageNo]) -> Result<()> {
    let mut images: Vec<(PageNo, ImageLocation)> = memory::list(pages.len())?;
    {
        let table = db.table.read();
        // The table has pages behind the end, for snapshots.
        for page in pages.iter().filter(|page| page.0 <= state.page_count) {
            match table.to_sweep(*page) {
                Some((tid, place)) if tid <= state.tid => images.push((*page, place)),
                Some(_) => sweep.later.push(*page),
                None => {}
            }
        }
    }
    let Some(((first, _), (last, _))) = images.first().zip(images.last()) else { return Ok(()) };
    let (from, to) = (first.offset(state.page_bytes), last.offset(state.page_bytes) + u64::from(state.page_bytes));
    let swept: Vec<PageNo> = images.iter().map(|(page, _)| *page).collect();
    db.check_mark(live)?;
    if live.home.mark.tid < state.tid || live.home.mark.whole < live.log.slot().base_tid {
        tell(db, live, state.tid, live.log.slot().base_tid)?;
    }
    debug_assert!(
        live.log.group().durable() >= state.tid || !keeps(Case::HomeNotAheadOfLog),
        "rule LogBeforeHome: {} goes home",
        state.tid
    );
    write_home(db, live, state, images)?;
    let mut due = db.write_back.lock();
    *due = Some(due.map_or((from, to), |(first, last)| (first.min(from), last.max(to))));
    drop(due);
    let inner = db.inner.lock();
    let mut table = db.table.write();
    let before = table.new_bytes();
    swept.iter().for_each(|page| table.swept(*page, inner.readers()));
    sweep.swept_bytes += before - table.new_bytes();
    Ok(())
}

/// The slot makes older records unneeded (rule HomeBeforeSlot).
fn finish(db: &Database, live: &mut LiveDatabase, sweep: &Sweep) -> Result<()> {
    live.log.begin_at(&sweep.to, &sweep.state, live.scheme.facts())?;
    live.tell_slot();
    live.home_tid = sweep.to.last_tid;
    if !db.table.read().keeps_in_file() {
        live.kept = ImageFile::default();
    }
    Stats::add(&db.stats.checkpoints, 1);
    Ok(())
}
