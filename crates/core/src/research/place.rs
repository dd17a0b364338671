use std::sync::atomic::Ordering;

use crate::base::error::{IoContext, Result};
use crate::base::memory;
use crate::base::options::Options;
use crate::base::research::{CommitMark, Garbage};
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid};
use crate::checkpoint::keep;
use crate::database::{Database, LiveDatabase};
use crate::disk::stats::Stats;
use crate::pages::image::Image;
use crate::pages::table::ImageLocation;
use crate::research::trailer;
use crate::sqlite_format::home::State;

/// The kernel copies it into its cache at once: a dying process cannot leave half.
pub const PAGE_BYTES_MAX: u32 = 4096;

pub struct Placement {
    /// Page, new image, home's image if any.
    pub pages: Vec<(PageNo, Image, Option<Image>)>,
    /// The transaction of home's image, to which undo records lead back.
    pub base: Tid,
    pub count: usize,
}

/// Older snapshots keep the old images until the state has changed.
pub fn commit(
    db: &Database,
    live: &mut LiveDatabase,
    state: &State,
    placed: &Placement,
    options: &Options,
) -> Result<()> {
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

/// Memory keeps them if a temporary file has no room.
fn hold(db: &Database, live: &mut LiveDatabase, placed: &Placement) -> Result<()> {
    let alone = db.inner.lock().snapshots.is_empty();
    for (page, _, old) in &placed.pages {
        let Some(old) = old else { continue };
        let in_memory = ImageLocation::Memory(old.clone());
        let place = match if alone { Ok(in_memory.clone()) } else { keep(db, live, old.clone()) } {
            Err(e) if e.is_short() => in_memory,
            place => place?,
        };
        db.table.write().hold_under(*page, placed.base, place);
    }
    Ok(())
}

/// `gc=eager`: the undo records go with another write.
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
