//! Committing in place: pages of home are overwritten and flushed, while snapshots go on reading what was there.

use std::sync::atomic::Ordering;

use crate::base::error::{IoContext, Result};
use crate::base::memory;
use crate::base::options::Options;
use crate::base::research::{CommitMark, Garbage};
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid};
use crate::checkpoint::keep;
use crate::database::{Database, Live};
use crate::disk::stats::Stats;
use crate::pages::table::{Image, Place};
use crate::research::trailer;
use crate::sqlite_format::home::State;

/// A page that the kernel copies into its cache at once: death of the process cannot leave half of it there.
pub const PAGE_BYTES_MAX: u32 = 4096;

/// What a transaction writes in place: pages with trailers.
pub struct Placement {
    /// Page, image to write, and what home holds there now, if it has the page.
    pub pages: Vec<(PageNo, Image, Option<Image>)>,
    /// The transaction that made what home holds, where the undo records lead back to.
    pub base: Tid,
    /// How many transactions.
    pub count: usize,
}

/// Overwrites the pages in home, durable. The images before stay for the snapshots before, until the state has changed.
pub fn commit(db: &Database, live: &mut Live, state: &State, placed: &Placement, options: &Options) -> Result<()> {
    if keeps(Case::HeldInPlace) {
        hold(db, live, placed)?;
    }
    if keeps(Case::SlotsAgree) {
        live.log.settle_slots()?;
    }
    db.epoch.fetch_add(1, Ordering::SeqCst);
    let what = || db.what("cannot write");
    let offset = |page: PageNo| page.offset(state.page_bytes);
    let mut last = None;
    match (placed.pages.as_slice(), options.bundle.extra.commit_mark) {
        ([only], _) => last = Some(only),
        (pages, CommitMark::Page) => last = pages.iter().find(|(p, ..)| *p == PageNo::HEADER).or(pages.last()),
        (_, CommitMark::Count) => {}
    }
    let is_last = |page: PageNo| last.is_some_and(|(p, ..)| *p == page);
    let mut wrote = false;
    for (page, image, _) in placed.pages.iter().filter(|(page, ..)| !is_last(*page)) {
        db.home.write_at(image, offset(*page)).context(what)?;
        wrote = true;
    }
    if wrote {
        db.sync_home()?;
    }
    if let Some((page, image, _)) = last {
        db.home.write_durable_at(image, offset(*page)).context(what)?;
    }
    let end = placed.pages.iter().map(|(page, ..)| offset(*page) + u64::from(state.page_bytes)).max().unwrap_or(0);
    live.home.bytes = live.home.bytes.max(end);
    live.home_tid = state.tid;
    collect(db, state, placed, options)?;
    Stats::add(&db.stats.in_place, placed.count as u64);
    Stats::add(&db.stats.in_place_pages, placed.pages.len() as u64);
    Ok(())
}

/// Home's images stay for the snapshots before: in memory, if there is no room for them in a temporary file.
fn hold(db: &Database, live: &mut Live, placed: &Placement) -> Result<()> {
    let alone = db.inner.lock().snapshots.is_empty();
    for (page, _, old) in &placed.pages {
        let Some(old) = old else { continue };
        let in_memory = Place::Memory(old.clone());
        let place = match if alone { Ok(in_memory.clone()) } else { keep(db, live, old.clone()) } {
            Err(e) if e.is_short() => in_memory,
            place => place?,
        };
        db.table.write().hold_under(*page, placed.base, place);
    }
    Ok(())
}

/// With `gc=eager`: once the transaction is durable, its undo records go with a write of their own.
fn collect(db: &Database, state: &State, placed: &Placement, options: &Options) -> Result<()> {
    if options.bundle.extra.garbage == Garbage::Lazy {
        return Ok(());
    }
    for (page, image, _) in &placed.pages {
        let Some(found) = trailer::Trailer::of(*page, image).filter(|t| t.undo.1 > 0) else { continue };
        let mut settled = memory::copy(image)?;
        let start = usize::from(found.undo.0);
        settled.get_mut(start..start + usize::from(found.undo.1)).unwrap_or_default().fill(0);
        trailer::settle(*page, &mut settled);
        db.home.write_at(&settled, page.offset(state.page_bytes)).context(|| db.what("cannot write"))?;
    }
    Ok(())
}
