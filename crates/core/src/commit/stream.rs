//! Images of a big transaction, written before its record (rule WholeTransaction).
//!
//! A page behind the end of home goes to its place there: no state has it yet, so it is written
//! once, and the flush of home precedes the record. Any other page goes behind the ring of the log,
//! and an index tells of it.

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::record as at;
use crate::base::memory;
use crate::base::options::Options;
use crate::base::rules::{Case, keeps};
use crate::base::types::PageNo;
use crate::checkpoint::{checkpoint_with_room, growth, tell_streamed};
use crate::database::{Database, LiveDatabase};
use crate::log::facts::Facts;
use crate::log::record::StreamIndex;
use crate::pages::image::Image;
use crate::pages::table::{StreamedTo, stream_units};
use crate::pages::txn::Txn;

const RUN_BYTES: usize = 256 << 10;

/// The first image may stream next. The caller has the writer's place until the commit.
pub fn begin(db: &Database, live: &mut LiveDatabase, options: &Options, txn: &mut Txn) -> Result<()> {
    if txn.has_begun_to_stream() {
        // It has cut all of them off.
        give_up(db, live, txn)?;
    }
    growth::before_stream(db, live, options, txn.page_bytes)?;
    txn.stream_from = live.log.stream_tail();
    txn.home_bytes = match live.scheme.facts() == Facts::LOG && end_at_home(db, live)? {
        true if keeps(Case::StreamedBehindEnd) => live.home.bytes,
        true => txn.base.bytes(),
        false => u64::MAX,
    };
    Ok(())
}

/// No record that a recovery would replay has a page behind the end of home then, and no snapshot
/// reads there. False if home lacks the room.
fn end_at_home(db: &Database, live: &mut LiveDatabase) -> Result<bool> {
    if !keeps(Case::StreamedBehindEnd) {
        return Ok(true);
    }
    if !checkpoint_with_room(db, live)? {
        return Ok(false);
    }
    // Else a power cut could leave a plain file with bytes behind its end.
    db.flush_new_mark(live)?;
    live.settle_slots().map_err(|e| db.poison(e))?;
    Ok(true)
}

/// Writes unflushed; the image counts only with the commit record.
pub fn page(db: &Database, live: &mut LiveDatabase, txn: &mut Txn, page: PageNo, image: &Image) -> Result<()> {
    match txn.streamed.get(page) {
        Some(StreamedTo::Log(position, _)) => to_log(live, txn, page, image, Some(position)),
        None if !txn.is_behind_home(page) => to_log(live, txn, page, image, None),
        None | Some(StreamedTo::Home) => {
            to_home(db, live, txn, page, image)?;
            txn.streamed.set(page, StreamedTo::Home)
        }
    }
}

fn to_log(live: &mut LiveDatabase, txn: &mut Txn, page: PageNo, image: &[u8], position: Option<u64>) -> Result<()> {
    let position = live.log.stream(image, position)?;
    txn.streamed.set(page, StreamedTo::Log(position, crc32c::crc32c(image)))
}

fn to_home(db: &Database, live: &mut LiveDatabase, txn: &Txn, first: PageNo, images: &[u8]) -> Result<()> {
    let from = first.offset(txn.page_bytes);
    let end = from + images.len() as u64;
    live.home.streamed_bytes = live.home.streamed_bytes.max(end);
    live.home.bytes = live.home.bytes.max(end);
    db.home.write_at(images, from).context(|| db.what("cannot write"))
}

/// They leave the overlay. `pages` are in order.
pub fn pages(db: &Database, live: &mut LiveDatabase, txn: &mut Txn, pages: &[PageNo]) -> Result<()> {
    let size = txn.page_bytes as usize;
    let run_pages = (RUN_BYTES / size.max(1)).max(1);
    let mut run = memory::list(RUN_BYTES.max(size))?;
    let (logged, at_home) = pages.split_at(pages.partition_point(|page| !txn.is_behind_home(*page)));
    for pages in logged.chunks(run_pages) {
        gather(&mut run, txn, pages);
        let mut position = live.log.stream(&run, None)?;
        for (page, image) in pages.iter().zip(run.chunks(size.max(1))) {
            txn.streamed.set(*page, StreamedTo::Log(position, crc32c::crc32c(image)))?;
            txn.pages.remove(page);
            position += image.len() as u64;
        }
    }
    let follows = |page: &PageNo, next: &PageNo| next.0 - page.0 == 1;
    for pages in at_home.chunk_by(follows).flat_map(|pages| pages.chunks(run_pages)) {
        let Some(first) = pages.first() else { continue };
        gather(&mut run, txn, pages);
        to_home(db, live, txn, *first, &run)?;
        for page in pages {
            txn.streamed.set(*page, StreamedTo::Home)?;
            txn.pages.remove(page);
        }
    }
    Ok(())
}

fn gather(run: &mut Vec<u8>, txn: &Txn, pages: &[PageNo]) {
    run.clear();
    pages.iter().filter_map(|page| txn.pages.get(page)).for_each(|image| run.extend_from_slice(image));
    debug_assert!(run.len() == pages.len() * txn.page_bytes as usize, "all are in the overlay");
}

/// Nothing streams behind it: the index is written, home marked and flushed. A failed flush
/// poisons.
pub fn finish(db: &Database, live: &mut LiveDatabase, txn: &Txn) -> Result<()> {
    if txn.streamed.is_empty() {
        return Ok(());
    }
    let at_home = txn.streamed.at_home();
    let mut index = StreamIndex { count: txn.streamed.len() - at_home, ..StreamIndex::default() };
    if at_home > 0 {
        index.at_home = tell_streamed(db, live)?;
        if keeps(Case::StreamedHomeFirst) {
            db.sync_home().map_err(|e| db.poison(e))?;
        }
    }
    if index.count == 0 {
        return live.encoder.add_stream(index);
    }
    let mut position = live.log.stream_tail();
    index.index = stream_units(position)?;
    let mut part = memory::list(4096 * at::STREAM_ITEM_BYTES)?;
    let mut flush = |part: &mut Vec<u8>, position: &mut u64| -> Result<()> {
        index.crc = crc32c::crc32c_append(index.crc, part);
        live.log.stream(part, Some(*position))?;
        *position += part.len() as u64;
        part.clear();
        Ok(())
    };
    for (page, image_at, crc) in txn.streamed.in_log() {
        part.extend_from_slice(&page.0.to_le_bytes());
        part.extend_from_slice(&stream_units(image_at)?.to_le_bytes());
        part.extend_from_slice(&crc.to_le_bytes());
        if part.len() >= 4096 * at::STREAM_ITEM_BYTES {
            flush(&mut part, &mut position)?;
        }
    }
    flush(&mut part, &mut position)?;
    live.encoder.add_stream(index)
}

/// Reads `to.len()` bytes of the page from `in_page` on, if it has streamed.
pub fn read(db: &Database, txn: &Txn, page: PageNo, in_page: usize, to: &mut [u8]) -> Result<bool> {
    match txn.streamed.get(page) {
        None => return Ok(false),
        Some(StreamedTo::Home) => {
            let read = db.home.read_at(to, page.offset(txn.page_bytes) + in_page as u64);
            if read.context(|| db.what("cannot read"))? < to.len() {
                return Err(Error::home_ends_within(&db.path, page));
            }
        }
        Some(StreamedTo::Log(position, _)) => {
            let writer = db.writer.lock();
            let live = writer.as_ref().ok_or_else(|| Error::Misuse("a read without a log".into()))?;
            let read = live.log.file().file.read_at(to, position + in_page as u64);
            if read.context(|| db.what("cannot read the log of"))? < to.len() {
                return Err(Error::log_ends_within(page));
            }
        }
    }
    Ok(true)
}

/// Behind a commit that was prepared or failed: images in memory are newer than streamed ones.
pub fn leave_to_memory(db: &Database, live: &mut LiveDatabase, txn: &mut Txn) -> Result<()> {
    let streamed = txn.streamed.len();
    for page in txn.pages.keys() {
        txn.streamed.remove(*page);
    }
    if streamed > 0 && txn.streamed.is_empty() { give_up(db, live, txn) } else { Ok(()) }
}

/// The transaction ends without its images, and no record names them.
pub fn give_up(db: &Database, live: &mut LiveDatabase, txn: &Txn) -> Result<()> {
    live.log.stream_drop(txn.stream_from)?;
    cut_home(db, live, txn)
}

/// A checkpoint does it later where the state is no longer the transaction's base.
fn cut_home(db: &Database, live: &mut LiveDatabase, txn: &Txn) -> Result<()> {
    let streamed_bytes = std::mem::take(&mut live.home.streamed_bytes);
    if streamed_bytes == 0 || !db.inner.lock().is_newest(&txn.base) {
        return Ok(());
    }
    let bytes = txn.home_bytes.max(txn.base.bytes());
    db.home.set_len(bytes).context(|| db.what("cannot fit the length of"))?;
    live.home.ends_at(bytes);
    Ok(())
}

/// Before home becomes a plain file of the base: images there go behind the ring.
pub fn all_to_log(db: &Database, writer: &mut Option<LiveDatabase>, txn: &mut Txn) -> Result<()> {
    let Some(live) = writer.as_mut().filter(|_| txn.streamed.at_home() > 0) else { return Ok(()) };
    let mut pages = memory::list(txn.streamed.at_home() as usize)?;
    pages.extend(txn.streamed.iter().filter(|(_, to)| *to == StreamedTo::Home).map(|(page, _)| page));
    let mut image = memory::zeros(txn.page_bytes as usize)?;
    for page in pages {
        read(db, txn, page, 0, &mut image)?;
        to_log(live, txn, page, &image, None)?;
    }
    cut_home(db, live, txn)?;
    txn.home_bytes = u64::MAX;
    Ok(())
}
