//! Recovery of the in-page schemes: if all pages of home's last transaction in flight are there it
//! is committed, else each is undone.
//!
//! Only one can be in doubt, for each is flushed before the next one writes. Its pages are
//! rewritten either way: a failed flush may have left them in the cache only.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::Ordering;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::layout::le_u64;
use crate::base::layout::trailer::{AT_SESSION, AT_TID, BYTES};
use crate::base::memory::{self, Room};
use crate::base::options::STREAM_BYTES_MAX;
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid};
use crate::checkpoint::{fit_length, write_pages};
use crate::database::scheme::{CrashedSession, Doubtful};
use crate::database::{Database, HomeFile};
use crate::disk::beside;
use crate::log::ring::small_ring_bytes;
use crate::log::slot::Slot;
use crate::pages::image::Image;
use crate::pages::snapshots::Snapshots;
use crate::pages::table::{ImageLocation, PageTable, Readers};
use crate::research::trailer::{self, Trailer};
use crate::research::undo;
use crate::sqlite_format::home::{self, FileKind, HomeMark, State};
use crate::sqlite_format::node::Shape;

const RUN_BYTES: u64 = 256 << 10;

/// The trailer of the newest transaction in home, with the number of its pages and where they are.
fn newest(db: &Database, slot: &Slot, accept_loss: bool) -> Result<Option<(Trailer, u64, Vec<PageNo>)>> {
    let mut last: Option<Trailer> = None;
    let mut count = 0u64;
    // No more than go in place, as checked below.
    let mut pages: Vec<PageNo> = Vec::new();
    for_each_page(db, slot.page_bytes, PageNo::HEADER, |page, image| {
        let Some(trailer) = of_session(db, slot, page, image, accept_loss)? else { return Ok(()) };
        match &last {
            Some(newest) if newest.tid > trailer.tid => return Ok(()),
            Some(newest) if newest.tid == trailer.tid => count += 1,
            _ => {
                last = Some(trailer);
                count = 1;
                pages.clear();
            }
        }
        if pages.len() as u64 * u64::from(slot.page_bytes) <= STREAM_BYTES_MAX {
            pages.room(1)?;
            pages.push(page);
        }
        Ok(())
    })?;
    let Some(last) = last else { return Ok(None) };
    if count > u64::from(last.tx_pages) {
        return Err(Error::Corrupt(format!(
            "{} is damaged: {count} pages say that transaction {} wrote {}",
            db.path.display(),
            last.tid,
            last.tx_pages
        )));
    }
    if count * u64::from(slot.page_bytes) > STREAM_BYTES_MAX {
        return Err(Error::Corrupt(format!(
            "{} is damaged: transaction {} wrote {count} pages, more than any does in place",
            db.path.display(),
            last.tid
        )));
    }
    Ok(Some((last, count, pages)))
}

/// The log has no live records. Pages to write go into `table`; with `accept_loss`, damaged ones
/// stay.
pub fn scan(db: &Database, slot: &Slot, table: &mut PageTable, accept_loss: bool) -> Result<Doubtful> {
    let Some((last, count, pages)) = newest(db, slot, accept_loss)? else { return Ok(Doubtful::default()) };
    let undone = count < u64::from(last.tx_pages);
    let mut header = [0; at::HEADER_BYTES];
    db.home.read_at(&mut header, 0).context(|| db.what("cannot read"))?;
    // Below the page count that makes pages ambiguous only pointer maps matter, and a commit in
    // place cannot add or remove those.
    let shape = Shape { page_count: 0, ..Shape::new(slot.page_bytes, 0, &header) };
    let snapshots = Snapshots::default();
    let nobody = Readers { snapshots: &snapshots, visible: Tid(u64::MAX) };
    let mut first = None;
    for page in pages {
        let mut image = memory::zeros(slot.page_bytes as usize)?;
        db.home.read_at(&mut image, page.offset(slot.page_bytes)).context(|| db.what("cannot read"))?;
        let trailer = of_session(db, slot, page, &image, accept_loss)?.filter(|t| t.tid == last.tid);
        let Some(trailer) = trailer else {
            return Err(Error::Corrupt(format!("page {page} of {} changed while it was recovered", db.path.display())));
        };
        if undone {
            if trailer.undo.1 == 0 {
                continue; // Beyond the end of the state before.
            }
            image = undo::restore(page, &image, &trailer, shape, shape).ok_or_else(|| {
                Error::Corrupt(format!("{} is damaged: the undo record of page {page} is broken", db.path.display()))
            })?;
        }
        if page == PageNo::HEADER {
            first = Some(image);
        } else {
            table.room(1)?;
            table.publish(page, last.tid, ImageLocation::Memory(Image::from(image)), nobody);
        }
    }
    let lost = undone.then_some(last.tid);
    if let Some(first) = with_size(db, slot, first, lost)? {
        table.publish(PageNo::HEADER, last.tid, ImageLocation::Memory(Image::from(first)), nobody);
    }
    Ok(Doubtful { last: Some((last.tid, count)), undone })
}

/// The last transaction's pages: first all but page 1, whose size may count pages that a crash
/// takes; last the file's end, whose pages may prove the transaction before (rule SizeLast).
pub fn write_again(
    db: &Database,
    home: &mut HomeFile,
    state: &State,
    mut pages: Vec<(PageNo, ImageLocation)>,
) -> Result<()> {
    let first: Vec<_> = pages.extract_if(.., |(page, _)| *page == PageNo::HEADER && keeps(Case::SizeLast)).collect();
    write_pages(db, &*db.home, home, state, pages)?;
    if !first.is_empty() {
        db.sync_home()?;
        write_pages(db, &*db.home, home, state, first)?;
    }
    fit_end(db, home, state)
}

/// A power cut must not take the end of the file without the size on page 1 (rule SizeLast).
fn fit_end(db: &Database, home: &mut HomeFile, state: &State) -> Result<()> {
    if home.bytes > state.bytes() {
        db.sync_home()?;
    }
    fit_length(db, &*db.home, home, state)
}

/// One flush is for the in-page transaction, another for its size and the mark; one more before the
/// file's end comes nearer (rule SizeLast). Without the unflushed slot, `usable_log` still knows
/// that the session is over (rule CloseWithoutSlot). False if the log has something to replay or
/// give back.
pub fn rest(db: &Database, session: &CrashedSession<'_>) -> Result<bool> {
    let CrashedSession { log, slot, is_newest, table, state, in_doubt, options } = *session;
    let log_bytes = log.file.len().context(|| format!("cannot read the length of {}", log.path.display()))?;
    let can_rest = state.kind == FileKind::Database
        && slot.ring_bytes <= small_ring_bytes(slot.block_bytes)
        && log_bytes <= slot.ring_at() + slot.ring_bytes
        && is_newest
        && log.scan(slot, |_| Ok(()))?.is_empty();
    if !can_rest {
        return Ok(false);
    }
    let counter = if slot.in_place { slot.counter_ceiling } else { state.change_counter };
    let recovered = state.after(Tid::HOME, state.page_bytes, state.page_count, counter, Some(state.header));
    let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
    let mark = HomeMark::new(slot.session, slot.base_tid);
    let mut home = HomeFile::new(mark, bytes, db.atomic_unit(options));
    log.note_home(db.home.id().context(|| db.what("cannot look at"))?)?;
    // Home's name may be in the cache alone (rule ExchangeFlushed).
    if db.disk.exists(&beside::second_path(&db.path)).context(|| db.what("cannot look beside"))? {
        db.flush_names(log)?;
    }
    let mut pages = table.dirty(recovered.page_count)?;
    let first: Vec<_> = pages.extract_if(.., |(page, _)| *page == PageNo::HEADER && keeps(Case::SizeLast)).collect();
    write_pages(db, &*db.home, &mut home, &recovered, pages)?;
    // Each other page was flushed before (rules MarkWhileNeeded and SizeLast).
    if (in_doubt || home.bytes != recovered.bytes()) && keeps(Case::MarkOffLast) {
        db.sync_home()?;
    }
    write_pages(db, &*db.home, &mut home, &recovered, first)?;
    fit_end(db, &mut home, &recovered)?;
    beside::remove_second(&*db.disk, &db.path)?;
    db.write_header(&db.with_asked(recovered.final_header())?)?;
    let ended = log.end(slot, slot.session, slot.base_tid)?;
    if db.wipes_log.load(Ordering::Relaxed) {
        log.flush()?;
        log.wipe(&ended)?;
        log.flush()?;
    }
    Ok(true)
}

#[derive(Clone, Copy)]
struct Ours {
    session: u64,
    above: Tid,
    up_to: Tid,
}

impl Ours {
    fn behind(slot: &Slot) -> Ours {
        Ours { session: slot.session, above: slot.base_tid, up_to: slot.tid_ceiling }
    }

    /// Also of a torn page.
    fn tid(self, image: &[u8]) -> Option<Tid> {
        let bytes = image.get(image.len().saturating_sub(BYTES)..).unwrap_or_default();
        let tid = Tid(le_u64(bytes, AT_TID)?);
        let session = le_u64(bytes, AT_SESSION) == Some(self.session) || !keeps(Case::TrailerSession);
        (session && tid > self.above && tid <= self.up_to).then_some(tid)
    }

    /// Transactions that only added pages left page 1, `first`, alone; their pages lie behind its
    /// end with newer trailers (rule SizeHome). Those of `undone` count only with an undo record, a
    /// proof that they existed before.
    fn page_count(self, db: &Database, page_bytes: u32, first: &[u8], undone: Option<Tid>) -> Result<u32> {
        let stated = home::page_count(first).unwrap_or(0);
        let written_by = self.tid(first).unwrap_or(self.above);
        let mut end = stated;
        for_each_page(db, page_bytes, PageNo(stated.saturating_add(1)), |page, image| {
            let was_there = || Trailer::of(page, image).is_some_and(|trailer| trailer.undo.1 > 0);
            if self.tid(image).is_some_and(|tid| tid > written_by && (Some(tid) != undone || was_there())) {
                end = page.0;
            }
            Ok(())
        })?;
        Ok(end)
    }
}

pub fn page_count_without_log(db: &Database, session: u64, page_bytes: u32) -> Result<u32> {
    let mut first = memory::zeros(page_bytes as usize)?;
    db.home.read_at(&mut first, 0).context(|| db.what("cannot read"))?;
    Ours { session, above: Tid(0), up_to: Tid(u64::MAX) }.page_count(db, page_bytes, &first, None)
}

/// `None` if home's can stay. `first`: after recovery.
fn with_size(db: &Database, slot: &Slot, first: Option<Vec<u8>>, undone: Option<Tid>) -> Result<Option<Vec<u8>>> {
    let mut image = memory::zeros(slot.page_bytes as usize)?;
    match &first {
        Some(first) => image.copy_from_slice(first),
        None => _ = db.home.read_at(&mut image, 0).context(|| db.what("cannot read"))?,
    }
    let page_count = Ours::behind(slot).page_count(db, slot.page_bytes, &image, undone)?;
    if home::page_count(&image) == Some(page_count) {
        return Ok(first);
    }
    let is_sealed = Trailer::of(PageNo::HEADER, &image).is_some();
    home::put_page_count(&mut image, page_count);
    if is_sealed {
        trailer::settle(PageNo::HEADER, &mut image);
    }
    Ok(Some(image))
}

fn of_session(db: &Database, slot: &Slot, page: PageNo, image: &[u8], accept_loss: bool) -> Result<Option<Trailer>> {
    let Some(tid) = Ours::behind(slot).tid(image) else { return Ok(None) };
    let trailer = Trailer::of(page, image);
    if trailer.is_none() && !accept_loss {
        return Err(Error::Corrupt(format!(
            "page {page} of {} is damaged: transaction {tid} wrote it, and its checksum does not match. Nothing was \
             changed. Restore a copy, or go on with the page as it is with `onewrite recover --accept-loss`",
            db.path.display()
        )));
    }
    Ok(trailer)
}

fn for_each_page(
    db: &Database,
    page_bytes: u32,
    from: PageNo,
    mut visit: impl FnMut(PageNo, &[u8]) -> Result<()>,
) -> Result<()> {
    let what = || db.what("cannot read");
    let page_len = u64::from(page_bytes.max(1));
    // For a small file the buffer is the main cost.
    let left = (db.home.len().context(what)? / page_len).saturating_sub(u64::from(from.0.saturating_sub(1)));
    let run_pages = (RUN_BYTES / page_len).max(1).min(left);
    let mut run = memory::zeros_of(run_pages * page_len)?;
    let mut number = from.0;
    while !run.is_empty() {
        // A hole has no trailer.
        let at = PageNo(number).offset(page_bytes);
        let Some(data) = db.home.next_data(at).context(what)? else { break };
        let skipped = u32::try_from(data.saturating_sub(at) / page_len).ok();
        let Some(next) = skipped.and_then(|skipped| number.checked_add(skipped)) else { break };
        number = next;
        let read = db.home.read_at(&mut run, PageNo(number).offset(page_bytes)).context(what)?;
        for image in run.get(..read).unwrap_or_default().chunks_exact(page_bytes.max(1) as usize) {
            visit(PageNo(number), image)?;
            let Some(next) = number.checked_add(1) else { return Ok(()) };
            number = next;
        }
        if read < run.len() {
            break;
        }
    }
    Ok(())
}
