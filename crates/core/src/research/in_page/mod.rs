//! Scheme `in-page`: every page in place, with its undo record in its gap and its transaction in
//! its trailer (Doubleheader Logging; the multi-version B-tree of LS-MVBT).
//!
//! One transaction is in flight at a time: its flush makes the undo records of the one before
//! waste. One with a page that cannot carry its undo record goes through the log, which goes home
//! before the next goes in place (rule HomeBeforeNext).

mod freelist;
mod merge;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use self::freelist::Freed;
use self::merge::PendingMerge;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::trailer::{BYTES, reserved_bytes};
use crate::base::layout::{home as at, put};
use crate::base::memory;
use crate::base::options::Options;
use crate::base::research::Garbage;
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid};
use crate::checkpoint::checkpoint;
use crate::commit::{self, record};
use crate::database::scheme::{Commit, CommitOutcome, CrashedSession, Doubtful, Facts, Gaps, Scheme};
use crate::database::{Database, DatabaseState, HomeFile, LiveDatabase};
use crate::disk::stats::Stats;
use crate::disk::sync::Mutex;
use crate::log::group::Durability;
use crate::log::record::Encoder;
use crate::log::ring::StreamedImages;
use crate::log::slot::Slot;
use crate::pages::image::Image;
use crate::pages::table::{ImageLocation, PageTable};
use crate::pages::txn::{ChangedPage, PreparedCommit, Txn};
use crate::research::place::{PAGE_BYTES_MAX, Placement};
use crate::research::roll_back;
use crate::research::trailer::{self, Trailer};
use crate::research::undo::{self, Edit};
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind, State};
use crate::sqlite_format::node::Shape;

/// Beyond, the flushes of a checkpoint do not count.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// They pay for the extra checkpoint before one in place that follows records.
const CHECKPOINT_EVERY: u32 = 16;

pub struct InPage {
    merge: Mutex<PendingMerge>,
    /// At most twice the cost of a checkpoint.
    paid: AtomicU32,
}

impl Default for InPage {
    fn default() -> InPage {
        InPage { merge: Mutex::default(), paid: AtomicU32::new(CHECKPOINT_EVERY) }
    }
}

impl Scheme for InPage {
    fn facts(&self) -> Facts {
        Facts { records: false, in_place: true, checkpoints: true }
    }

    fn gaps(&self) -> Option<&dyn Gaps> {
        Some(self)
    }

    fn check(&self, db: &Database, options: &Options, state: &State) -> Result<()> {
        if state.kind != FileKind::Database {
            return Ok(());
        }
        let (name, path) = (options.preset, db.path.display());
        let unit = db.atomic_unit(options).min(PAGE_BYTES_MAX);
        if state.page_bytes > unit {
            return Err(Error::CantOpen(format!(
                "scheme={name} relies on pages that are written whole or not at all, but {path} has pages of {} bytes, and \
                 its device writes {unit} so (the kernel {PAGE_BYTES_MAX}): use scheme=log",
                state.page_bytes
            )));
        }
        if !home::has_room(&state.header) {
            return Err(Error::CantOpen(format!(
                "scheme={name} needs {BYTES} reserved bytes at the end of each page, and {path} has {}: run \
                 `onewrite research convert {path}`, or use scheme=log",
                home::reserved(&state.header).unwrap_or(0)
            )));
        }
        Ok(())
    }

    /// With room for trailers; the device writes larger pages in parts.
    fn new_pages(&self, db: &Database, options: &Options) -> Option<(u32, u8)> {
        let page_bytes = db.atomic_unit(options).min(PAGE_BYTES_MAX);
        Some((page_bytes, reserved_bytes(page_bytes)))
    }

    fn prepare(&self, c: &mut Commit<'_>, state: State, mut changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        let after = InPageCommit { txn: c.txn, changed: &changed, state: &state };
        let mut placed = None;
        if is_idle(c.db, c.live) {
            placed = place_all(c.db, c.live, &self.merge.lock(), after)?;
        } else if self.paid.load(Ordering::Relaxed) >= CHECKPOINT_EVERY
            && place_all(c.db, c.live, &self.merge.lock(), after)?.is_some()
        {
            // After the checkpoint it fits as well.
            self.paid.fetch_sub(CHECKPOINT_EVERY, Ordering::Relaxed);
            checkpoint(c.db, c.live, StreamedImages::Drop)?;
            placed = place_all(c.db, c.live, &self.merge.lock(), after)?;
        }
        if let Some(placed) = placed {
            // Readers take them from home until it is overwritten.
            debug_assert!(
                placed.pages.is_sorted_by_key(|(page, ..)| *page),
                "page 1 comes first, and the others as they were"
            );
            changed.retain(|c| placed.pages.binary_search_by_key(&c.page, |(page, ..)| *page).is_ok());
            return Ok(PreparedCommit { own: Some(Box::new(placed)), ..PreparedCommit::of(c.txn, state, changed)? });
        }
        if !self.merge.lock().is_empty() {
            // Alone, against the resulting home.
            self.before_checkpoint(c.db, c.live)?;
            return commit::plan(c);
        }
        encode(&mut c.live.encoder, &mut changed)?;
        record::prepare(c, &changed, state.page_count)?;
        PreparedCommit::of(c.txn, state, changed)
    }

    /// Undo records lead to a state before the group's write.
    fn is_stale(&self, live: &LiveDatabase, prepared: &PreparedCommit) -> bool {
        own(prepared).is_some_and(|placed| placed.base != live.home_tid)
    }

    /// A record goes home before the next transaction.
    fn durability(&self, _asked: Durability) -> Durability {
        Durability::Flushed
    }

    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut PreparedCommit,
        _durability: Durability,
    ) -> Result<CommitOutcome> {
        let paid = self.paid.load(Ordering::Relaxed).saturating_add(1).min(2 * CHECKPOINT_EVERY);
        self.paid.store(paid, Ordering::Relaxed);
        if let Some(Ok(placed)) = prepared.own.take().map(|own| own.downcast::<Placement>()) {
            self.merge.lock().join(&c.txn.base, state, *placed);
            c.live.log.number(state.tid);
            return Ok(CommitOutcome::Own(None));
        }
        if c.options.bundle.extra.garbage == Garbage::Eager {
            // The deltas' base went with an unflushed write of its undo records (rule
            // HomeBeforeNext).
            c.db.sync_home().map_err(|e| c.db.poison(e))?;
        }
        record::finish(c, state).map(CommitOutcome::Record).map_err(|e| c.db.poison(e))
    }

    /// Readers do not see the state before it is written.
    fn show(&self, db: &Database, inner: &mut DatabaseState, state: &Arc<State>, images: Vec<(PageNo, Image)>) {
        commit::show(&mut db.table.write(), inner, state.tid, images);
    }

    fn wait(&self, db: &Database, tid: Tid, joins: bool) -> Result<()> {
        merge::wait(&self.merge, db, tid, joins)
    }

    fn wants_checkpoint(&self, live: &LiveDatabase) -> bool {
        live.log.live_bytes() > LOG_BYTES_MAX
    }

    fn before_checkpoint(&self, db: &Database, live: &mut LiveDatabase) -> Result<()> {
        merge::write(&self.merge, db, live)
    }

    fn fit_home(&self, db: &Database, live: &LiveDatabase, state: &State) -> Result<()> {
        if keeps(Case::SizeHome) { bring_size_home(db, live, state) } else { Ok(()) }
    }

    fn roll_back(&self, db: &Database, slot: &Slot, table: &mut PageTable, accept_loss: bool) -> Result<Doubtful> {
        roll_back::scan(db, slot, table, accept_loss)
    }

    fn write_again(
        &self,
        db: &Database,
        home: &mut HomeFile,
        state: &State,
        pages: Vec<(PageNo, ImageLocation)>,
    ) -> Result<()> {
        roll_back::write_again(db, home, state, pages)
    }

    fn rest(&self, db: &Database, session: &CrashedSession<'_>) -> Result<bool> {
        roll_back::rest(db, session)
    }

    fn page_count_without_log(&self, db: &Database, first: &DatabaseHeader, session: u64) -> Result<Option<u32>> {
        let page_bytes = home::page_bytes(first).filter(|_| home::has_room(first));
        page_bytes.map(|page_bytes| roll_back::page_count_without_log(db, session, page_bytes)).transpose()
    }
}

/// SQLite's cache has old bytes of gap and trailer.
impl Gaps for InPage {
    /// The page count, which an in-page scheme derives from the pages.
    fn embed(&self, new: &mut [u8], base: &[u8]) {
        if let Some(old) = base.get(at::PAGE_COUNT..at::PAGE_COUNT + 4) {
            put(new, at::PAGE_COUNT, old);
        }
    }

    fn same(&self, shape: &Shape, page: PageNo, base: &[u8], new: &[u8]) -> bool {
        shape.same(page, base, new)
    }
}

fn own(prepared: &PreparedCommit) -> Option<&Placement> {
    prepared.own.as_ref()?.downcast_ref()
}

#[derive(Clone, Copy)]
struct InPageCommit<'a> {
    txn: &'a Txn,
    changed: &'a [ChangedPage],
    state: &'a State,
}

fn is_idle(db: &Database, live: &LiveDatabase) -> bool {
    (live.log.live_bytes() == 0 && !db.table.read().has_layer()) || !keeps(Case::HomeBeforeNext)
}

/// Each page must carry its undo record back to home, from before the waiting group. `None` beside
/// a group: perhaps after its write.
fn place_all(
    db: &Database,
    live: &LiveDatabase,
    merge: &PendingMerge,
    after: InPageCommit<'_>,
) -> Result<Option<Placement>> {
    let InPageCommit { txn, changed, state } = after;
    if !(txn.base.kind == FileKind::Database && txn.streamed.is_empty() && merge.takes(state.page_count)) {
        return Ok(None);
    }
    let base = merge.base().unwrap_or(&txn.base);
    let before = Shape::new(base.page_bytes, base.page_count, &base.header);
    let after = Shape::new(state.page_bytes, state.page_count, &state.header);
    if (before.pointer_maps, before.reserved_bytes) != (after.pointer_maps, after.reserved_bytes) {
        // Recovery reads both states' pages by the header of one.
        return Ok(None);
    }
    let freed = if merge.is_empty() { Freed::by(db, txn, changed, state)? } else { Freed::default() };
    let first = match merge.home(PageNo::HEADER) {
        Some(_) if !changed.iter().any(|c| c.page == PageNo::HEADER) => {
            let new = db.image(&txn.base, PageNo::HEADER)?;
            Some(ChangedPage { page: PageNo::HEADER, new, old: None })
        }
        _ => None,
    };
    let mut pages: Vec<&ChangedPage> = memory::list(changed.len() + 1)?;
    // Leaves of the freelist stay as they are.
    pages.extend(first.iter().chain(changed).filter(|c| c.old.is_none() || freed.live_after(c.page) != Some(0)));
    let sealed_by = Trailer {
        tid: state.tid,
        session: live.home.mark.session,
        tx_pages: u32::try_from(pages.len()).unwrap_or(u32::MAX),
        change_counter: state.change_counter,
        undo: (0, 0),
    };
    let mut placed = Placement { pages: memory::list(pages.len())?, base: live.home_tid, count: 1 };
    let mut undo_bytes = 0;
    for ChangedPage { page, new, old } in pages {
        let mut new = memory::copy(new)?;
        if *page == PageNo::HEADER {
            put(&mut new, 0, &db.with_asked(state.marked_header(live.home.mark))?);
        }
        let held = match (merge.home(*page), old) {
            (Some(held), _) => held.clone(),
            (None, Some(old)) => Some(old.clone()),
            (None, None) => in_home(db, live, state, *page)?,
        };
        let image = match held.as_deref().filter(|_| page.0 <= base.page_count) {
            // Nothing to restore beyond the old end.
            None => {
                sealed_by.seal(*page, &mut new);
                new
            }
            Some(old) => {
                let (was_free, is_free) = (freed.live_before(*page), freed.live_after(*page));
                let edit = Edit { page: *page, old, before, was_free, new: &new, after, is_free };
                let Some(image) = undo::write(edit, sealed_by) else {
                    Stats::add(&db.stats.undo_misfits, u64::from(merge.is_empty()));
                    return Ok(None);
                };
                undo_bytes += Trailer::of(*page, &image).map_or(0, |t| u64::from(t.undo.1));
                image
            }
        };
        placed.pages.push((*page, Image::from(image), held));
    }
    Stats::add(&db.stats.undo_bytes, undo_bytes);
    Ok(Some(placed))
}

/// Pages added in place left page 1 alone, and trailers count only above the slot's TID.
fn bring_size_home(db: &Database, live: &LiveDatabase, state: &State) -> Result<()> {
    let mut image = memory::zeros(state.page_bytes as usize)?;
    let read = db.home.read_at(&mut image, 0).context(|| db.what("cannot read"))?;
    if state.kind != FileKind::Database || read < image.len() || home::page_count(&image) == Some(state.page_count) {
        return Ok(());
    }
    let is_sealed = Trailer::of(PageNo::HEADER, &image).is_some();
    put(&mut image, 0, &db.with_asked(state.marked_header(live.home.mark))?);
    if is_sealed {
        trailer::settle(PageNo::HEADER, &mut image);
    }
    db.home.write_at(&image, 0).context(|| db.what("cannot write"))
}

/// Reads beyond the old end, where an older snapshot may read.
fn in_home(db: &Database, live: &LiveDatabase, state: &State, page: PageNo) -> Result<Option<Image>> {
    let offset = page.offset(state.page_bytes);
    if offset + u64::from(state.page_bytes) > live.home.bytes {
        return Ok(None);
    }
    let mut image = memory::zeros(state.page_bytes as usize)?;
    db.home.read_at(&mut image, offset).context(|| db.what("cannot read"))?;
    Ok(Some(image.into()))
}

/// SQLite carries stale trailers along, so they become zeros (rule TrailerSession).
fn encode(encoder: &mut Encoder, changed: &mut [ChangedPage]) -> Result<()> {
    encoder.clear();
    for ChangedPage { page, new, old } in changed {
        let mut bare = memory::copy(new)?;
        trailer::set(&mut bare, &[0; BYTES]);
        *new = bare.into();
        encoder.add_delta(*page, old.as_deref(), new)?;
    }
    Ok(())
}
