//! Recovery of the in-page schemes: the pages of home are scanned for the last transaction that was in flight. If all
//! of its pages are there it is committed, else each is undone.
//!
//! Only one can be in doubt, for each is flushed before the next one writes. Its pages are written again either way: a
//! flush that failed may have left them in the cache and not on the disk.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use crate::database::Database;
use crate::error::{Error, IoContext, Result};
use crate::layout::home as at;
use crate::layout::le_u64;
use crate::layout::trailer::{AT_SESSION, AT_TID, BYTES};
use crate::log::slot::Slot;
use crate::node::Shape;
use crate::options::STREAM_BYTES_MAX;
use crate::rules::{Rule, keeps};
use crate::table::{Image, PageTable, Place, Readers};
use crate::trailer::Trailer;
use crate::types::{PageNo, Tid};
use crate::undo;

/// Bytes of home read at once.
const RUN_BYTES: usize = 1 << 20;

/// What the scan found, and did to the images in `table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The last transaction, and how many of its pages are there.
    pub last: Option<(Tid, u64)>,
    /// Whether it was undone.
    pub undone: bool,
}

/// Scans home behind `slot`, of an in-page scheme without live records; the pages to be written go into `table`. With
/// `accept_loss`, damaged pages stay as they are.
pub fn scan(db: &Database, slot: &Slot, table: &mut PageTable, accept_loss: bool) -> Result<Scan> {
    let mut last: Option<Trailer> = None;
    let mut count = 0u64;
    for_each_page(db, slot, |page, image| {
        let Some(trailer) = of_session(db, slot, page, image, accept_loss)? else { return Ok(()) };
        match &last {
            Some(newest) if newest.tid > trailer.tid => {}
            Some(newest) if newest.tid == trailer.tid => count += 1,
            _ => {
                last = Some(trailer);
                count = 1;
            }
        }
        Ok(())
    })?;
    let Some(last) = last else { return Ok(Scan { last: None, undone: false }) };
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
    let undone = count < u64::from(last.tx_pages);
    let mut header = [0; at::HEADER_BYTES];
    db.home.read_at(&mut header, 0).context(|| db.what("cannot read"))?;
    // Below the page count from where on pages are ambiguous, only the pointer maps matter, and a commit in place
    // cannot change whether there are any.
    let shape = Shape { page_count: 0, ..Shape::new(slot.page_bytes, 0, &header) };
    let snapshots = BTreeMap::new();
    let nobody = Readers { snapshots: &snapshots, visible: Tid(u64::MAX) };
    for_each_page(db, slot, |page, image| {
        let Some(trailer) = of_session(db, slot, page, image, accept_loss)?.filter(|t| t.tid == last.tid) else {
            return Ok(());
        };
        let image = if !undone {
            image.to_vec()
        } else if trailer.undo.1 == 0 {
            return Ok(()); // Beyond the end of the state before.
        } else {
            undo::restore(page, image, &trailer, shape, shape).ok_or_else(|| {
                Error::Corrupt(format!("{} is damaged: the undo record of page {page} is broken", db.path.display()))
            })?
        };
        table.publish(page, last.tid, Place::Memory(Image::from(image)), nobody);
        Ok(())
    })?;
    Ok(Scan { last: Some((last.tid, count)), undone })
}

/// The trailer of a page that was written in place behind `slot`.
fn of_session(db: &Database, slot: &Slot, page: PageNo, image: &[u8], accept_loss: bool) -> Result<Option<Trailer>> {
    let bytes = image.get(image.len().saturating_sub(BYTES)..).unwrap_or_default();
    let tid = Tid(le_u64(bytes, AT_TID).unwrap_or(0));
    let session = le_u64(bytes, AT_SESSION) == Some(slot.session) || !keeps(Rule::TrailerSession);
    let ours = session && tid > slot.base_tid && tid <= slot.tid_ceiling;
    if !ours {
        return Ok(None);
    }
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

fn for_each_page(db: &Database, slot: &Slot, mut visit: impl FnMut(PageNo, &[u8]) -> Result<()>) -> Result<()> {
    let what = || db.what("cannot read");
    let size = slot.page_bytes as usize;
    let mut run = vec![0; (RUN_BYTES / size.max(1)).max(1) * size];
    let mut number = 1;
    loop {
        let read = db.home.read_at(&mut run, PageNo(number).offset(slot.page_bytes)).context(what)?;
        for image in run.get(..read).unwrap_or_default().chunks_exact(size.max(1)) {
            visit(PageNo(number), image)?;
            let Some(next) = number.checked_add(1) else { return Ok(()) };
            number = next;
        }
        if read < run.len() {
            return Ok(());
        }
    }
}
