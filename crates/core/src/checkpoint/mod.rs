//! Checkpoints: the newest image of each page goes home, and the ring starts afresh.
//!
//! Only durable transactions go home: recovery must be able to finish a torn checkpoint (invariants
//! I1, I3). Images that older snapshots read are kept first (I4).

pub mod growth;
pub mod sweep;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::memory::{self, Room};
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid, whole_pages};
use crate::database::{Database, HomeFile, LiveDatabase};
use crate::disk::image_file::{self, ImageFile};
use crate::disk::stats::Stats;
use crate::disk::{DiskFile, random};
use crate::log::ring::StreamedImages;
use crate::pages::image::Image;
use crate::pages::table::ImageLocation;
use crate::shared::words::RecoveryDebt;
use crate::sqlite_format::home::{self, FileKind, HomeMark, State};

const RUN_BYTES: usize = 256 << 10;
/// Bytes in memory for snapshots; more go to a temporary file.
const KEPT_BYTES: u64 = 2 << 20;

/// The mark comes off next. No slot follows: until then, recovery repeats it (rule
/// CloseWithoutSlot).
pub fn bring_home(db: &Database, live: &mut LiveDatabase) -> Result<()> {
    if !live.scheme.facts().all_in_log() {
        return checkpoint(db, live, StreamedImages::Drop);
    }
    flush_into_home(db, live).map_err(|e| db.poison_unless_short(e)).map(drop)
}

impl Database {
    /// Due before the ring changes or a record overwrites the proof of the last session's end (rule
    /// CloseProven). An error poisons.
    pub fn flush_new_mark(&self, live: &mut LiveDatabase) -> Result<()> {
        if live.log.has_new_mark() {
            self.sync_home().map_err(|e| self.poison(e))?;
            live.log.group().mark_flushed();
        }
        live.log.settle_proof();
        Ok(())
    }

    /// Keeps home's images for readers of other processes before those of `state` come. True if
    /// none reads an older state. The caller has the writer's place.
    pub fn keep_for_others(
        &self,
        live: &LiveDatabase,
        state: &State,
        pages: &[(PageNo, ImageLocation)],
    ) -> Result<bool> {
        let Some(member) = &live.member else { return Ok(true) };
        let words = &member.words;
        words.set_home_floor(state.tid);
        let others = member.pins_of_others()?;
        let oldest_kept = words.kept_until();
        let mine = words.pins(member.me);
        let afresh = !others.iter().chain([&mine]).any(|pins| pins.within(Tid(0), oldest_kept));
        let needed = others.iter().any(|pins| pins.within(Tid(0), state.tid));
        if needed || (afresh && words.kept().1 > 0) {
            let mut run = member.kept.begin(afresh)?;
            let home_pages = whole_pages(live.home.bytes, state.page_bytes);
            let mut image = memory::zeros(state.page_bytes as usize)?;
            for (page, _) in pages.iter().filter(|(page, _)| page.0 <= home_pages) {
                let until = self.table.read().newest_tid(*page).unwrap_or(state.tid);
                let reads = |tid: &Tid| *tid < until && !member.kept.covers(*page, *tid);
                let last = Tid(until.0.saturating_sub(1));
                let keep = others.iter().any(|pins| {
                    pins.exact.iter().any(reads) || pins.floor.is_some_and(|floor| floor < until && reads(&last))
                });
                if keep {
                    self.home
                        .read_at(&mut image, page.offset(state.page_bytes))
                        .context(|| self.what("cannot read"))?;
                    member.kept.add(&mut run, *page, until, &image)?;
                }
            }
            member.kept.finish(run)?;
        }
        Ok(!needed)
    }
}

impl LiveDatabase {
    /// Others follow a new slot (rule SlotBeforeReuse), also if its transaction fails.
    pub fn tell_slot(&self) {
        if let Some(member) = self.member().filter(|_| keeps(Case::SlotTold)) {
            member.note(self.log.slot(), &self.log.cursor());
        }
    }

    /// No older slot counts then, and others know the newer one (rule SlotBeforeReuse).
    pub fn settle_slots(&mut self) -> Result<()> {
        self.log.settle_slots()?;
        self.tell_slot();
        Ok(())
    }
}

/// The caller has the writer's place. Without room everything stays as it was; other errors poison.
pub fn checkpoint(db: &Database, live: &mut LiveDatabase, stream: StreamedImages) -> Result<()> {
    let emptied = flush_into_home(db, live).and_then(|state| match state {
        Some(state) => empty_ring(db, live, &state, stream),
        None => Ok(()),
    });
    emptied.map_err(|e| db.poison_unless_short(e))
}

/// False without room. Images of no open transaction are behind the ring.
pub fn checkpoint_with_room(db: &Database, live: &mut LiveDatabase) -> Result<bool> {
    match checkpoint(db, live, StreamedImages::Drop) {
        Err(e) if e.is_short() => Ok(false),
        done => done.map(|()| true),
    }
}

/// The state that home has got; `None`: it has everything, and the ring is empty.
fn flush_into_home(db: &Database, live: &mut LiveDatabase) -> Result<Option<Arc<State>>> {
    let scheme = live.scheme.clone();
    scheme.before_checkpoint(db, live)?;
    let state = db.inner.lock().published.clone();
    let idle = live.log.live_bytes() == 0 && !live.log.at_ceiling(state.change_counter);
    if idle && db.table.read().new_bytes() == 0 && !db.table.read().has_layer() {
        return Ok(None);
    }
    db.check_mark(live)?;
    // Now visible (rule LogBeforeHome).
    if keeps(Case::HomeNotAheadOfLog) {
        db.flush_published(live)?;
        // Rule StoreHasIt.
        db.wait_all_shipped()?;
    } else {
        live.log.group().hand_over(db)?;
    }
    debug_assert!(
        live.log.group().durable() >= state.tid || !keeps(Case::HomeNotAheadOfLog),
        "rule LogBeforeHome: {} goes home",
        state.tid
    );
    debug_assert!(db.inner.lock().latest.tid >= state.tid, "rule LogBeforeHome: readers see {}", state.tid);
    let pages = db.table.read().dirty(state.page_count)?;
    let (last, whole) = (live.log.last_tid(), live.log.slot().base_tid);
    tell(db, live, last, whole)?;
    write_home(db, live, &state, pages)?;
    scheme.fit_home(db, live, &state)?;
    tell(db, live, last, last)?;
    if keeps(Case::HomeBeforeSlot) {
        db.sync_home()?;
    }
    live.sweep = None;
    Stats::add(&db.stats.checkpoints, 1);
    Ok(Some(state))
}

fn empty_ring(db: &Database, live: &mut LiveDatabase, state: &State, stream: StreamedImages) -> Result<()> {
    live.log.checkpointed(state, live.scheme.facts(), state.page_bytes.max(512))?;
    debug_assert!(live.log.live_bytes() == 0 && live.log.slot().base_tid == state.tid, "rule HomeBeforeSlot");
    {
        let mut inner = db.inner.lock();
        inner.advance();
        let mut table = db.table.write();
        table.checkpointed(state.tid, state.page_count, inner.readers());
        if table.is_empty() {
            live.kept = ImageFile::default();
        }
        if let Some(member) = &live.member {
            // Before the old records can be overwritten.
            member.note(live.log.slot(), &live.log.cursor());
            member.words.publish(state.tid, live.log.group().durable());
        }
    }
    live.home_tid = state.tid;
    db.epoch.fetch_add(1, Ordering::SeqCst);
    if stream == StreamedImages::Drop && live.log.has_streamed() {
        // The second slot may replace the one that others know (rule SlotBeforeReuse).
        live.settle_slots()?;
    }
    if stream == StreamedImages::Drop {
        live.log.stream_drop(0)?;
    }
    Ok(())
}

/// The mark says up to which transaction pages go home, before the first, and up to which all did,
/// after the last; unflushed. So a copy of home fits no log of another moment (rule HomeFitsLog).
pub fn tell(db: &Database, live: &mut LiveDatabase, tid: Tid, whole: Tid) -> Result<()> {
    if live.home.mark.tid == Tid(0) || tid == live.log.slot().base_tid {
        return Ok(());
    }
    debug_assert!(live.log.has_begun(), "home gets what is durable");
    live.home.mark = HomeMark { whole, ..HomeMark::new(live.home.mark.session, tid) };
    write_mark(db, live.home.mark)
}

/// All pages that the next record needs at home are there. The number for the record: a copy of
/// home from before does not have it (rule HomeFitsLog).
pub fn tell_streamed(db: &Database, live: &LiveDatabase) -> Result<u32> {
    let mark = db.check_mark(live)?.unwrap_or(live.home.mark);
    let streamed = 1 + random()? as u32 % home::NUMBER_MAX;
    write_mark(db, HomeMark { streamed, ..mark })?;
    Ok(streamed)
}

/// This guards against a log put back by hand, not against a power cut, so it is not flushed (rule
/// SlotWithFirstRecord).
pub fn settle_mark(db: &Database, live: &mut LiveDatabase) -> Result<()> {
    // Recovery takes another mark for flushed (rule MarkWithFirstRecord).
    if !live.home.mark.tentative || !live.log.has_begun() || live.log.has_new_mark() {
        return Ok(());
    }
    live.home.mark.tentative = false;
    // Another process may have brought pages home, and told more.
    match db.read_mark()? {
        Some(mark) if mark.tentative => {
            live.home.mark = HomeMark { tentative: false, ..mark };
            write_mark(db, live.home.mark)
        }
        _ => Ok(()),
    }
}

/// After a recovery that left the records in place, the mark names the newest, so that no older log
/// fits (rule OneNumberOneState), and names are flushed (rule WrittenAgain). An error poisons.
/// Returns the rest of that work.
pub fn tell_recovery(db: &Database, live: &mut LiveDatabase) -> Result<RecoveryDebt> {
    let due = live.member.as_ref().map_or(live.due, |member| member.words.due());
    if due.stayed == Some(live.log.last_tid()) {
        // Foreign changes to the log are flushed before a commit depends on them.
        live.log.group().written_beside();
    }
    let Some(tid) = due.untold else { return Ok(due) };
    tell_record(db, live, tid).map_err(|e| db.poison_unless_short(e))?;
    live.due.untold = None;
    let rest = RecoveryDebt { untold: None, ..due };
    if let Some(member) = &live.member {
        member.words.set_due(rest);
    }
    Ok(rest)
}

fn tell_record(db: &Database, live: &mut LiveDatabase, tid: Tid) -> Result<()> {
    db.check_mark(live)?;
    if keeps(Case::LeftoversFlushed) {
        db.flush_names(live.log.file())?;
    }
    if !keeps(Case::NewSession) {
        return Ok(());
    }
    live.home.mark = match db.read_mark()? {
        // A later checkpoint told more.
        Some(mark) if mark.tid >= tid => mark,
        _ => HomeMark { whole: live.log.slot().base_tid, ..HomeMark::new(live.home.mark.session, tid) },
    };
    write_mark(db, live.home.mark)?;
    db.sync_home()
}

fn write_mark(db: &Database, mark: HomeMark) -> Result<()> {
    db.home.write_at(&mark.encode(), at::SESSION as u64).context(|| db.what("cannot write the header of"))
}

/// Writes unflushed, after keeping the images that older snapshots read.
pub fn write_home(
    db: &Database,
    live: &mut LiveDatabase,
    state: &State,
    pages: Vec<(PageNo, ImageLocation)>,
) -> Result<()> {
    // Rule OldImageKept.
    pages.iter().try_for_each(|(page, place)| db.make_beside(*page, place))?;
    let nobody_else = !keeps(Case::KeptForOthers) || db.keep_for_others(live, state, &pages)?;
    let older = keep_for_snapshots(db, live, state, &pages)?;
    db.epoch.fetch_add(1, Ordering::SeqCst);
    if let Some(member) = &live.member {
        member.words.next_epoch();
    }
    write_pages(db, &*db.home, &mut live.home, state, pages)?;
    // Snapshots of a longer state read pages behind the end.
    if !older && nobody_else { fit_length(db, &*db.home, &mut live.home, state) } else { Ok(()) }
}

pub fn fit_length(db: &Database, file: &dyn DiskFile, home: &mut HomeFile, state: &State) -> Result<()> {
    let bytes = state.bytes().max(home.streamed_bytes);
    if state.kind != FileKind::Empty && home.bytes != bytes {
        file.set_len(bytes).context(|| db.what("cannot fit the length of"))?;
        home.ends_at(bytes);
    }
    Ok(())
}

/// Writes in page order, unflushed; the file becomes no shorter than `state`.
pub fn write_pages(
    db: &Database,
    file: &dyn DiskFile,
    home: &mut HomeFile,
    state: &State,
    pages: Vec<(PageNo, ImageLocation)>,
) -> Result<()> {
    if state.kind == FileKind::Empty {
        return Ok(());
    }
    let what = || db.what("cannot write");
    let size = state.page_bytes as usize;
    if home.room_bytes() < state.bytes() {
        // A full disk fails here, before a write.
        file.reserve(state.bytes()).context(what)?;
    }
    let mut run: Vec<u8> = Vec::new();
    let mut run_at = 0u64;
    let mut count = 0u64;
    let mut rest = pages.as_slice();
    while let Some(((page, place), others)) = rest.split_first() {
        rest = others;
        let at = page.offset(state.page_bytes);
        if !run.is_empty() && (run_at + run.len() as u64 != at || run.len() >= RUN_BYTES) {
            file.write_at(&run, run_at).context(what)?;
            run.clear();
        }
        if run.is_empty() {
            run_at = at;
        }
        run.room(size)?;
        let from = run.len();
        match place {
            ImageLocation::Memory(image) => run.extend_from_slice(image),
            ImageLocation::Log(images, position) | ImageLocation::Kept(images, position) => {
                let more = others.iter().take(RUN_BYTES.saturating_sub(from + 1) / size.max(1)).zip(1..);
                let more =
                    more.take_while(|((next, place), n)| follows((*page, images, *position), *n, *next, place, size));
                let bytes = size * (1 + more.count());
                run.room(bytes)?;
                run.resize(from + bytes, 0);
                let to = run.get_mut(from..).unwrap_or_default();
                let read = images.read_at(to, *position).context(what)?;
                if read != bytes {
                    return Err(Error::log_ends_within(PageNo(page.0 + (read / size.max(1)) as u32)));
                }
                let followed = bytes / size.max(1) - 1;
                rest = others.get(followed..).unwrap_or_default();
                count += followed as u64;
            }
            ImageLocation::Unmade(chain) => {
                // A reader builds the same from any mix of old and new bytes.
                let home = |image: &mut [u8]| db.home.read_at(image, at).context(|| db.what("cannot read"));
                run.extend_from_slice(
                    &chain.image(*page, home)?.ok_or_else(|| Error::home_ends_within(&db.path, *page))?,
                );
            }
            ImageLocation::Home => continue,
        }
        if *page == PageNo::HEADER && keeps(Case::MarkStays) {
            let header = db.with_asked(state.marked_header(home.mark))?;
            run.get_mut(from..from + header.len()).unwrap_or_default().copy_from_slice(&header);
        }
        count += 1;
    }
    if !run.is_empty() {
        file.write_at(&run, run_at).context(what)?;
    }
    Stats::add(&db.stats.checkpoint_pages, count);
    if home.bytes < state.bytes() { fit_length(db, file, home, state) } else { Ok(()) }
}

fn follows(first: (PageNo, &Arc<dyn DiskFile>, u64), n: u32, page: PageNo, place: &ImageLocation, size: usize) -> bool {
    let (ImageLocation::Log(images, position) | ImageLocation::Kept(images, position)) = place else { return false };
    let (first_page, first_images, first_position) = first;
    page.0.checked_sub(n) == Some(first_page.0)
        && Arc::ptr_eq(images, first_images)
        && position.checked_sub(u64::from(n) * size as u64) == Some(first_position)
}

/// True if a snapshot older than `state` reads home.
fn keep_for_snapshots(
    db: &Database,
    live: &mut LiveDatabase,
    state: &State,
    pages: &[(PageNo, ImageLocation)],
) -> Result<bool> {
    let is_old = |tid: &Tid| *tid < state.tid;
    let older = db.inner.lock().snapshots.clone();
    if !older.tids().any(|tid| is_old(&tid)) || !keeps(Case::KeptForSnapshots) {
        return Ok(false);
    }
    let home_pages = whole_pages(live.home.bytes, state.page_bytes);
    let member = live.member.clone();
    // It may find the page in images kept by another process.
    let is_kept = |page, tid| member.as_ref().map_or(Ok(false), |m| m.kept.has(page, tid));
    for (page, _) in pages {
        if page.0 > home_pages {
            continue;
        }
        // From the oldest that reads home on, the kept image replaces it.
        let at_home: Vec<Tid> = {
            let table = db.table.read();
            let at_home = |tid: &Tid| matches!(table.find(*page, *tid), ImageLocation::Home);
            older.tids_with(*page).take_while(is_old).filter(at_home).collect()
        };
        let mut first = None;
        for tid in at_home {
            if !is_kept(*page, tid)? {
                first = Some(tid);
                break;
            }
        }
        let Some(first) = first else { continue };
        let mut image = memory::zeros(state.page_bytes as usize)?;
        db.home.read_at(&mut image, page.offset(state.page_bytes)).context(|| db.what("cannot read"))?;
        let place = keep(db, live, Image::from(image))?;
        db.table.write().keep(*page, first, state.tid, place);
    }
    Ok(true)
}

pub fn keep(db: &Database, live: &mut LiveDatabase, image: Image) -> Result<ImageLocation> {
    if db.table.read().kept_bytes() < image_file::in_memory(KEPT_BYTES) {
        Ok(ImageLocation::Memory(image))
    } else {
        keep_in_file(db, live, &image)
    }
}

fn keep_in_file(db: &Database, live: &mut LiveDatabase, image: &[u8]) -> Result<ImageLocation> {
    let (file, position) = live.kept.append(&*db.disk, &db.path, image, || {
        db.what("cannot keep an old image in a temporary file for a snapshot of")
    })?;
    Ok(ImageLocation::Kept(file, position))
}
