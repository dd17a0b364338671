//! Commits: from an overlay to a durable transaction.
//!
//! ```text
//!  SQLITE_FCNTL_SYNC      prepare   compare with the base, encode, make room; may fail, changes nothing
//!  SQLITE_FCNTL_COMMIT_…  commit    the scheme makes it durable → publish to the table and the readers
//! ```
//!
//! One file per scheme: [`log`] appends a record, [`off`] overwrites home.

pub mod log;
pub mod off;

use std::sync::Arc;

use crate::checkpoint::{Stream, checkpoint};
use crate::database::{Database, Live};
use crate::error::Result;
use crate::home::{self, State};
use crate::layout::home as at;
use crate::log::record::Encoder;
use crate::log::ring::Durability;
use crate::options::{HeaderPage, Images, Options, Scheme};
use crate::stats::Stats;
use crate::table::Image;
use crate::txn::{Prepared, Stage, Txn};
use crate::types::PageNo;

/// Pages of home reserved at a time, so that growing costs a call once in a while.
const RESERVE_BYTES: u64 = 1 << 20;

/// One page that a transaction changed.
pub struct Changed {
    /// Page number.
    pub page: PageNo,
    /// The image after.
    pub new: Image,
}

/// Prepares the commit of `txn`: everything that can fail without harm happens here.
pub fn prepare(db: &Database, live: &mut Live, txn: &mut Txn, options: &Options, normal: bool) -> Result<()> {
    // A big transaction's images behind the ring must be home before others join them, and the
    // ceilings of the slot hold for whoever comes.
    let pressed = db.table.read().new_bytes() > options.table_bytes
        || db.table.read().has_layer()
        || live.log.at_ceiling(txn.base.change_counter);
    if pressed {
        let keep = if txn.streamed.is_empty() { Stream::Drop } else { Stream::Keep };
        checkpoint(db, live, keep)?;
    }
    let change_counter = txn.base.change_counter.wrapping_add(1);
    let page_count = page_count(txn);
    live.encoder.clear();
    let encoder = (options.scheme == Scheme::Log && options.images == Images::Delta).then_some(&mut live.encoder);
    let (changed, header) = changes(db, txn, options, page_count, change_counter, encoder)?;
    if changed.is_empty() && txn.streamed.is_empty() && page_count == txn.base.page_count {
        let state = txn.base.after(txn.base.tid, txn.base.page_bytes, page_count, change_counter, None);
        txn.stage = Stage::Prepared(Prepared {
            state: if page_count == 0 { (*txn.base).clone() } else { state },
            images: Vec::new(),
            stream: Default::default(),
            changed: false,
            normal,
        });
        return Ok(());
    }
    let bytes = u64::from(page_count) * u64::from(txn.page_bytes);
    if bytes > live.home.bytes.max(live.home.reserved_bytes) {
        let want = bytes.next_multiple_of(RESERVE_BYTES);
        let what = || db.what("no room for the pages added to");
        crate::error::IoContext::context(db.home.reserve(want), what)?;
        live.home.reserved_bytes = want;
    }
    if live.log.slot().page_bytes != txn.page_bytes {
        live.log.checkpointed(&txn.base, options.scheme, txn.page_bytes).map_err(|e| db.poison(e))?;
    }
    let tid = live.log.last_tid().next();
    let state = txn.base.after(tid, txn.page_bytes, page_count, change_counter, header);
    let stream = match options.scheme {
        Scheme::Log => log::prepare(db, live, txn, options, &changed, page_count)?,
        Scheme::Off => Default::default(),
    };
    let images = changed.into_iter().filter(|c| txn.streamed.get(c.page).is_none()).map(|c| (c.page, c.new)).collect();
    txn.stage = Stage::Prepared(Prepared { state, images, stream, changed: true, normal });
    Ok(())
}

/// Size in pages after the transaction: what page 1 says, if it was written.
fn page_count(txn: &Txn) -> u32 {
    let by_size = || u32::try_from(txn.file_bytes / u64::from(txn.page_bytes.max(1))).unwrap_or(u32::MAX);
    match txn.pages.get(&PageNo::HEADER) {
        Some(image) => home::page_count(image).filter(|n| *n != 0).unwrap_or_else(by_size),
        None if txn.base.page_count == 0 => by_size(),
        None => txn.base.page_count,
    }
}

/// The pages whose images differ from the base, in page order, and the new header if page 1 does. Their
/// deltas go into `encoder`.
fn changes(
    db: &Database,
    txn: &Txn,
    options: &Options,
    page_count: u32,
    change_counter: u32,
    mut encoder: Option<&mut Encoder>,
) -> Result<(Vec<Changed>, Option<home::Header>)> {
    let mut pages: Vec<PageNo> = txn.pages.keys().copied().filter(|p| p.0 <= page_count).collect();
    // Pages that SQLite added and never wrote (leaves of the freelist) are zeros, whatever home holds there.
    let end_of_base = txn.base_limit.min(txn.base.page_count);
    if page_count > end_of_base {
        let added = (end_of_base + 1..=page_count).map(PageNo);
        pages.extend(added.filter(|p| !txn.pages.contains_key(p) && txn.streamed.get(*p).is_none()));
    }
    if options.header_page == HeaderPage::Write && page_count > 0 && !txn.pages.contains_key(&PageNo::HEADER) {
        pages.push(PageNo::HEADER);
    }
    pages.sort_unstable();
    let mut header = None;
    let mut changed = Vec::with_capacity(pages.len());
    for page in pages {
        let base = if page.0 <= txn.base.page_count { Some(db.image(&txn.base, page)?) } else { None };
        let mut new = match (txn.pages.get(&page), &base) {
            (Some(image), _) => image.clone(),
            (None, Some(base)) if page == PageNo::HEADER => Image::from(base.as_slice()),
            (None, _) => Image::from(vec![0; txn.page_bytes as usize]),
        };
        if page == PageNo::HEADER {
            let mut image = new.to_vec();
            match (&base, options.header_page) {
                (Some(base), HeaderPage::Embed) => home::embed_counters(&mut image, base),
                _ => home::put_counter(&mut image, change_counter),
            }
            header = image.get(..at::HEADER_BYTES).and_then(|h| h.try_into().ok());
            new = Image::from(image);
        }
        let differs = match &mut encoder {
            Some(encoder) => encoder.add_delta(page, base.as_deref(), &new),
            None => base.as_deref() != Some(&*new),
        };
        if differs {
            changed.push(Changed { page, new });
        } else if page == PageNo::HEADER {
            header = None;
        }
    }
    Ok((changed, header))
}

/// Makes a prepared transaction durable and visible. Returns the state it made. An error poisons.
pub fn commit(
    db: &Database,
    live: &mut Live,
    txn: &mut Txn,
    options: &Options,
    durability: Durability,
) -> Result<Arc<State>> {
    let Stage::Prepared(prepared) = std::mem::replace(&mut txn.stage, Stage::Open) else {
        return Ok(txn.base.clone());
    };
    let state = Arc::new(prepared.state);
    if prepared.changed {
        match options.scheme {
            Scheme::Log => log::commit(db, live, &state, prepared.stream, options, durability),
            Scheme::Off => off::commit(db, live, txn, &state, &prepared.images, durability),
        }
        .map_err(|e| db.poison(e))?;
        Stats::add(&db.stats.commits, 1);
    } else if durability == Durability::Flushed {
        // It changed nothing, but what it built on may not be durable yet (invariant I1).
        live.log.flush().map_err(|e| db.poison(e))?;
    }
    {
        // Readers pin under `inner`, so they see the table and the state change as one (invariant I4).
        let mut inner = db.inner.lock();
        if prepared.changed && options.scheme == Scheme::Log {
            let mut table = db.table.write();
            for (page, image) in prepared.images {
                table.publish(page, state.tid, image, &inner.snapshots);
            }
            if !txn.streamed.is_empty() {
                let file = live.log.file().file.clone();
                table.publish_layer(state.tid, std::mem::take(&mut txn.streamed), file);
            }
        }
        inner.latest = state.clone();
    }
    if db.table.read().has_layer() {
        // A big transaction goes home at once. If the disk is full, its images stay where they are,
        // and the next commit tries again.
        match checkpoint(db, live, Stream::Drop) {
            Ok(()) | Err(crate::error::Error::Full(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(state)
}
