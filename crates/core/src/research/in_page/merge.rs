//! Merged groups of the in-page schemes: published transactions wait together, and all of their
//! pages go in place as one transaction, with one flush (two with `commit_mark=page`).
//!
//! ```text
//! join      pages with undo records back to home's images; their images in the page table, for the
//!           next writer only
//! wait      a thread that expects no other writes all pages, sealed with the newest TID, and shows
//!           the newest state to the readers
//! ```
//!
//! All under the lock `writer`: nothing is prepared or published during the write, so no page
//! changes twice before its flush (rule UndoLeadsHome).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::error::{IoContext, Result};
use crate::base::memory;
use crate::base::options::Options;
use crate::base::types::{PageNo, Tid};
use crate::database::{Database, LiveDatabase};
use crate::disk::image_file::ImageFile;
use crate::disk::sync::{Event, Mutex};
use crate::pages::image::Image;
use crate::research::place::{self, Placement};
use crate::research::trailer::Trailer;
use crate::sqlite_format::home::State;

/// A group does not wait for a slower write.
const USUAL_MAX: Duration = Duration::from_millis(4);
const PAGES_MAX: usize = 1024;
/// The most at a time, so that few additions change the file system.
const AHEAD_PAGES: u64 = 32;

struct Page {
    image: Image,
    home: Option<Image>,
}

#[derive(Default)]
pub struct PendingMerge {
    /// The one in home, to which undo records lead, and the newest.
    states: Option<(Arc<State>, Arc<State>)>,
    pages: BTreeMap<PageNo, Page>,
    joined: usize,
    /// A cut ends the group: home has other images of the pages that a later transaction would add.
    closed: bool,
    expected: usize,
    usual: Duration,
    added: u64,
    waiting: Vec<Arc<Event>>,
}

impl PendingMerge {
    pub fn is_empty(&self) -> bool {
        self.states.is_none()
    }

    pub fn takes(&self, page_count: u32) -> bool {
        self.states.as_ref().is_none_or(|(_, newest)| !self.closed && page_count >= newest.page_count)
    }

    pub fn base(&self) -> Option<&Arc<State>> {
        self.states.as_ref().map(|(base, _)| base)
    }

    /// The outer `None`: not in the group.
    pub fn home(&self, page: PageNo) -> Option<&Option<Image>> {
        self.pages.get(&page).map(|p| &p.home)
    }

    pub fn join(&mut self, base: &Arc<State>, state: &Arc<State>, placed: Placement) {
        let first = self.states.take().map_or_else(|| base.clone(), |(first, _)| first);
        self.closed |= state.page_count < base.page_count;
        self.states = Some((first, state.clone()));
        self.joined += 1;
        for (page, image, home) in placed.pages {
            self.pages.insert(page, Page { image, home });
        }
    }

    fn expects_more(&self) -> bool {
        self.joined < self.expected && self.pages.len() < PAGES_MAX && !self.closed
    }
}

/// `joins`: the writer's place is free, so others may.
pub fn wait(merge: &Mutex<PendingMerge>, db: &Database, tid: Tid, joins: bool) -> Result<()> {
    let mut joins = joins;
    loop {
        let (event, nap) = {
            let mut writer = db.writer.lock();
            db.inner.lock().check()?;
            let Some(live) = writer.as_mut() else { return Ok(()) };
            let mut waits = merge.lock();
            if waits.base().is_none_or(|base| base.tid >= tid) {
                return Ok(());
            }
            if !joins || !waits.expects_more() {
                drop(waits);
                return write(merge, db, live);
            }
            let event = Arc::new(Event::new());
            waits.waiting.push(event.clone());
            (event, waits.usual / 2)
        };
        // Once: they may not come.
        joins = event.nap(nap);
    }
}

/// An error poisons.
pub fn write(merge: &Mutex<PendingMerge>, db: &Database, live: &mut LiveDatabase) -> Result<()> {
    let mut merge = merge.lock();
    if merge.is_empty() {
        return Ok(());
    }
    let options = db.inner.lock().options.clone();
    let told = std::mem::take(&mut merge.waiting);
    let written = write_group(&mut merge, db, live, &options).map_err(|e| db.poison(e));
    told.iter().for_each(|event| event.set());
    written
}

fn write_group(merge: &mut PendingMerge, db: &Database, live: &mut LiveDatabase, options: &Options) -> Result<()> {
    let Some((base, state)) = merge.states.take() else { return Ok(()) };
    let pages = std::mem::take(&mut merge.pages);
    let joined = std::mem::take(&mut merge.joined);
    merge.closed = false;
    db.inner.lock().check()?;
    let tx_pages = u32::try_from(pages.len()).unwrap_or(u32::MAX);
    let mut placed = Placement { pages: memory::list(pages.len())?, base: base.tid, count: joined };
    for (page, Page { image, home }) in pages {
        let sealed = match Trailer::of(page, &image) {
            Some(trailer) if joined > 1 => {
                let mut image = memory::copy(&image)?;
                Trailer { tid: state.tid, tx_pages, change_counter: state.change_counter, ..trailer }
                    .seal(page, &mut image);
                Image::from(image)
            }
            _ => image,
        };
        placed.pages.push((page, sealed, home));
    }
    let begun = Instant::now();
    live.log.group().flush(db)?;
    lengthen(&mut merge.added, db, live, &state)?;
    place::commit(db, live, &state, &placed, options)?;
    merge.usual = (merge.usual * 7 + begun.elapsed().min(USUAL_MAX)) / 8;
    merge.expected = joined + db.queue.crowd();
    let mut inner = db.inner.lock();
    inner.check()?;
    inner.latest = state.clone();
    let mut table = db.table.write();
    placed.pages.iter().for_each(|(page, ..)| table.brought_home(*page, inner.readers()));
    if table.is_empty() {
        live.kept = ImageFile::default();
    }
    live.log.pass(state.tid);
    Ok(())
}

/// Later pages overwrite these zeros in reserved room, so their flush writes no new length. The
/// group's flush covers them, and a close or recovery cuts off the rest.
fn lengthen(added: &mut u64, db: &Database, live: &mut LiveDatabase, state: &State) -> Result<()> {
    let page_bytes = u64::from(state.page_bytes.max(1));
    if state.bytes() <= live.home.bytes {
        return Ok(());
    }
    let ahead = (*added).min(AHEAD_PAGES);
    *added += (state.bytes() - live.home.bytes) / page_bytes + ahead;
    let end = live.home.reserved_bytes.min(state.bytes() + ahead * page_bytes);
    let zeros = end.saturating_sub(state.bytes()) / page_bytes * page_bytes;
    if zeros > 0 {
        let zeros = memory::zeros(usize::try_from(zeros).unwrap_or(0))?;
        db.home.write_at(&zeros, state.bytes()).context(|| db.what("cannot write"))?;
        live.home.bytes = state.bytes() + zeros.len() as u64;
    }
    Ok(())
}
