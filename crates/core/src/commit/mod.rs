//! Commits: from an overlay to a durable transaction.
//!
//! ```text
//!  SQLITE_FCNTL_SYNC      prepare   compare with the base, encode, make room; may fail, changes nothing
//!  SQLITE_FCNTL_COMMIT_…  commit    publish to the table and the next writer → let that one in → wait until it is durable
//! ```
//!
//! One file per scheme: [`log`] pushes a record to the group that waits for the next flush, [`auto`] overwrites a page in
//! home where that is safe, [`in_page`] overwrites pages that carry their undo records, [`off`] overwrites home, [`shadow`]
//! writes the second of two files and exchanges their names.

pub mod auto;
pub mod in_page;
pub mod log;
pub mod merge;
pub mod off;
pub mod place;
pub mod shadow;

use std::sync::Arc;

use crate::checkpoint::{Stream, checkpoint, settle_mark};
use crate::database::{Database, Live};
use crate::error::{Error, Result};
use crate::home::{self, State};
use crate::layout::home as at;
use crate::log::group::{Durability, Group};
use crate::log::record::Encoder;
use crate::memory;
use crate::node::Shape;
use crate::options::{Garbage, HeaderPage, Images, Options, Scheme};
use crate::procs::member::Member;
use crate::rules::{Rule, keeps};
use crate::stats::Stats;
use crate::super_journal::Undecided;
use crate::table::{Image, Place};
use crate::txn::{Prepared, Stage, Txn};
use crate::types::{LogOffset, PageNo};

/// Pages of home reserved at a time, so that growing costs a call once in a while.
const RESERVE_BYTES: u64 = 1 << 20;

/// One page that a transaction changed.
pub struct Changed {
    /// Page number.
    pub page: PageNo,
    /// The image after.
    pub new: Image,
    /// The image before, if the page was there; for the in-page scheme only.
    pub old: Option<Image>,
}

/// Prepares the commit of `txn`: everything that can fail without harm happens here.
pub fn prepare(db: &Database, live: &mut Live, txn: &mut Txn, options: &Options) -> Result<()> {
    // A big transaction's images behind the ring must be home before others join them, and the
    // ceilings of the slot hold for whoever comes.
    let pressed = db.table.read().new_bytes() > options.table_bytes
        || db.table.read().has_layer()
        || live.log.at_ceiling(txn.base.change_counter);
    if pressed {
        let keep = if txn.streamed.is_empty() { Stream::Drop } else { Stream::Keep };
        checkpoint(db, live, keep)?;
    }
    settle_mark(db, live)?;
    let in_page = options.scheme == Scheme::InPage;
    if in_page {
        in_page::check_new(db, options, txn)?;
    }
    let change_counter = txn.base.change_counter.wrapping_add(1);
    let page_count = page_count(txn);
    log::begin_record(live, txn)?;
    let encoder = (options.scheme.has_records() && options.images == Images::Delta).then_some(&mut live.encoder);
    let (mut changed, header) = changes(db, txn, options, page_count, change_counter, encoder)?;
    if changed.is_empty() && txn.streamed.is_empty() && page_count == txn.base.page_count {
        txn.stage = Stage::Prepared(Prepared {
            state: (*txn.base).clone(),
            images: Vec::new(),
            stream: Default::default(),
            in_place: None,
            changed: false,
            written: None,
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
        db.flush_published(live)?;
        live.log.checkpointed(&txn.base, options.scheme, txn.page_bytes).map_err(|e| db.poison(e))?;
        db.tell_slot(live);
        // Under the slot before, of another page size, no record can be read (rule SlotsBeforeCut).
        live.log.settle_slots().map_err(|e| db.poison(e))?;
        db.tell_slot(live);
    }
    if options.scheme == Scheme::Shadow {
        shadow::prepare(db, live, bytes)?;
    }
    let tid = live.log.last_tid().next();
    let state = txn.base.after(tid, txn.page_bytes, page_count, change_counter, header);
    let mut in_place = None;
    if in_page {
        in_place = in_page::prepare(db, live, txn, &changed, &state)?.map(Box::new);
        if in_place.is_none() && !live.merge.is_empty() {
            // Alone, and against what home then holds, also for a record.
            merge::write(db, live)?;
            return prepare(db, live, txn, options);
        }
        if in_place.is_none() {
            in_page::encode(&mut live.encoder, &mut changed)?;
        }
    }
    let stream = match options.scheme {
        Scheme::Off | Scheme::Shadow => Default::default(),
        Scheme::InPage if in_place.is_some() => Default::default(),
        Scheme::Log | Scheme::Auto | Scheme::InPage => log::prepare(db, live, txn, options, &changed, page_count)?,
    };
    let mut images: Vec<(PageNo, Image)> = memory::list(changed.len())?;
    images.extend(changed.into_iter().filter(|c| txn.streamed.get(c.page).is_none()).map(|c| (c.page, c.new)));
    if options.scheme == Scheme::Auto {
        in_place = auto::prepare(db, live, txn, &state, &images)?.map(Box::new);
    }
    txn.stage = Stage::Prepared(Prepared { state, images, stream, in_place, changed: true, written: None });
    Ok(())
}

/// Writes the record of a transaction over several files that was prepared, flushed if `flush` says so: it waits for its
/// super-journal to go, and is then published. Until it is decided, nothing comes behind it: the caller has the writer's place (rule
/// NothingBehindUndecided).
pub fn write_prepared(db: &Database, live: &mut Live, txn: &mut Txn, options: &Options, flush: bool) -> Result<()> {
    let Some(super_journal) = txn.super_journal.clone() else { return Ok(()) };
    let Stage::Prepared(prepared) = &mut txn.stage else { return Ok(()) };
    if !prepared.changed {
        return Ok(());
    }
    // Nothing may fail for want of memory once it is decided (rule MemoryBeforePublication).
    memory::headroom()?;
    live.log.reserve(0)?;
    db.table.write().room(prepared.images.len())?;
    // Rule PreparedFlushed.
    let flush = flush && keeps(Rule::PreparedFlushed);
    if flush {
        db.flush_published(live)?;
    }
    let crc = log::seal(db, live, &prepared.state, prepared.stream);
    let record = live.encoder.finished();
    let at = live.log.place_of(record.len() as u64, log::own_block(options))?;
    // From here on it may be in the log, whatever fails.
    let to = LogOffset(at.0 + record.len() as u64);
    let (log, slot) = (live.log.file().clone(), live.log.slot().clone());
    *db.undecided.lock() = Some(Undecided { super_journal, log, slot, from: at, to });
    prepared.written = Some(live.log.write_prepared(record, crc, at, flush, db)?);
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
/// deltas go into `encoder`. The base is what this engine has, never what SQLite's journal says (rule BaseFromState).
fn changes(
    db: &Database,
    txn: &Txn,
    options: &Options,
    page_count: u32,
    change_counter: u32,
    mut encoder: Option<&mut Encoder>,
) -> Result<(Vec<Changed>, Option<home::Header>)> {
    let end_of_base = txn.base_limit.min(txn.base.page_count);
    let added = page_count.saturating_sub(end_of_base);
    let mut pages: Vec<PageNo> = memory::list(txn.pages.len() + added as usize + 1)?;
    pages.extend(txn.pages.keys().copied().filter(|p| p.0 <= page_count));
    // Pages that SQLite added and never wrote (leaves of the freelist) are zeros, whatever home holds there.
    if added > 0 && keeps(Rule::ZerosBeyondEnd) {
        let added = (end_of_base + 1..=page_count).map(PageNo);
        pages.extend(added.filter(|p| !txn.pages.contains_key(p) && txn.streamed.get(*p).is_none()));
    }
    if options.header_page == HeaderPage::Write && page_count > 0 && !txn.pages.contains_key(&PageNo::HEADER) {
        pages.push(PageNo::HEADER);
    }
    pages.sort_unstable();
    let mut header = None;
    let mut changed = memory::list(pages.len())?;
    let in_page = options.scheme == Scheme::InPage;
    let shape = Shape::new(txn.page_bytes, page_count.max(txn.base.page_count), &txn.base.header);
    for page in pages {
        let base = if page.0 <= txn.base.page_count { Some(db.image(&txn.base, page)?) } else { None };
        let mut new = match (txn.pages.get(&page), &base) {
            (Some(image), _) => image.clone(),
            (None, Some(base)) if page == PageNo::HEADER => base.clone(),
            (None, _) => Image::from(memory::zeros(txn.page_bytes as usize)?),
        };
        if page == PageNo::HEADER {
            let mut image = memory::copy(&new)?;
            match (&base, options.header_page) {
                (Some(base), HeaderPage::Embed) => {
                    home::embed_counters(&mut image, base);
                    if in_page && page_count >= txn.base.page_count {
                        home::embed_page_count(&mut image, base);
                    }
                }
                _ => home::put_counter(&mut image, change_counter),
            }
            new = Image::from(image);
        }
        let differs = match &mut encoder {
            Some(encoder) => encoder.add_delta(page, base.as_deref(), &new)?,
            // Neither the gap nor the trailer is SQLite's; what it has cached of them is old (rule GapNotCompared).
            None if in_page && options.header_page == HeaderPage::Embed => {
                base.as_deref().is_none_or(|base| !shape.same(page, base, &new))
            }
            None => base.as_deref() != Some(&*new),
        };
        if differs {
            if page == PageNo::HEADER {
                header = new.get(..at::HEADER_BYTES).and_then(|h| h.try_into().ok());
            }
            let old = base.filter(|_| in_page);
            changed.push(Changed { page, new, old });
        }
    }
    Ok((changed, header))
}

/// A transaction that is published: what is left is to wait for it.
pub struct Published {
    /// The state it made.
    pub state: Arc<State>,
    group: Arc<Group>,
    durability: Durability,
    /// Perhaps it waits to be written in place.
    merges: bool,
    /// This process among others that write: one flushes for all.
    shared: Option<Arc<Member>>,
}

impl Published {
    /// Whether the flush is one that processes share: after the turn.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The record is in the kernel's cache when this returns. An error poisons.
    pub fn write(&self, db: &Database) -> Result<()> {
        self.group.wait(self.state.tid, Durability::Written, db)
    }

    /// Waits until the transaction is durable and readers see it. `turn`: others may join it, and how long one of them
    /// usually has the writer's place. An error poisons.
    pub fn wait(&self, db: &Database, turn: Option<std::time::Duration>) -> Result<()> {
        if let Some(member) = &self.shared {
            return db.wait_flushed(member, self.state.tid, self.durability, None);
        }
        if self.merges {
            merge::wait(db, self.state.tid, turn.is_some())?;
        }
        if let Some(turn) = turn {
            self.group.wait_for_others(self.state.tid, self.durability, turn, db)?;
        }
        self.group.wait(self.state.tid, self.durability, db)?;
        let Some(member) = db.member() else { return Ok(()) };
        if member.words.written() >= self.state.tid {
            // What another process left unflushed keeps this one from being seen, too.
            db.wait_flushed(&member, self.state.tid, self.durability, None)?;
        }
        // A flush of another process that failed meanwhile may have made this one blind.
        db.inner.lock().check()
    }
}

/// Publishes a prepared transaction: the next writer may build on it. Pins the state it made for the committer, whose
/// snapshot has ended: kept pinned, every image the commit replaces would be kept for it. An error poisons, except that memory
/// is short.
/// `goes_on`: the place goes to the next before the flush.
pub fn publish(
    db: &Database,
    live: &mut Live,
    txn: &mut Txn,
    options: &Options,
    durability: Durability,
    goes_on: bool,
) -> Result<Published> {
    if let Stage::Prepared(Prepared { changed: true, images, written: None, .. }) = &txn.stage {
        // From publication on nothing may fail for want of memory (rule MemoryBeforePublication); until then it is
        // still prepared.
        memory::headroom()?;
        live.log.reserve(live.encoder.record_bytes())?;
        db.table.write().room(images.len())?;
    }
    let Stage::Prepared(prepared) = std::mem::replace(&mut txn.stage, Stage::Open) else {
        return Err(Error::Misuse("a commit that was not prepared".into()));
    };
    if prepared.in_place.as_ref().is_some_and(|placed| !placed.note && placed.base != live.home_tid) {
        // Those that waited have been written since: its undo records lead back to a state before them.
        prepare(db, live, txn, options).map_err(|e| db.poison(e))?;
        return publish(db, live, txn, options, durability, goes_on);
    }
    let group = live.log.group().clone();
    let state = Arc::new(prepared.state);
    let mut placed = prepared.in_place;
    let joins = durability == Durability::Written || !group.is_quiet();
    if options.scheme == Scheme::Auto && joins && keeps(Rule::InPlaceWhenDurable) {
        placed = None;
    }
    // The only other thing under an in-page scheme is a record that is home before the next transaction.
    let durability = if options.scheme == Scheme::InPage { Durability::Flushed } else { durability };
    // As durable as it is to be, since it was prepared.
    let durability = if prepared.written.is_some() { Durability::Written } else { durability };
    // Pinned until the newest state has changed (for good if it never does): whoever comes before that reads what was
    // there (invariant I4).
    let mut before = None;
    let ready = match (options.scheme, &placed) {
        _ if !prepared.changed || prepared.written.is_some() => None,
        (Scheme::InPage, Some(_)) => None,
        (_, Some(placement)) => {
            if keeps(Rule::InPlaceWhenDurable) {
                group.flush(db)?;
            }
            place::commit(db, live, &state, placement, options).map_err(|e| db.poison(e))?;
            None
        }
        (Scheme::Log | Scheme::Auto | Scheme::InPage, None) => {
            if options.scheme == Scheme::InPage && options.garbage == Garbage::Eager {
                // The record's deltas are against images whose undo records went with a write that nobody flushed
                // (rule BaseBeforeRecord).
                db.sync_home().map_err(|e| db.poison(e))?;
            }
            Some(log::finish(db, live, &state, prepared.stream, options).map_err(|e| db.poison(e))?)
        }
        (Scheme::Shadow, None) => {
            before = Some(db.pin(&mut db.inner.lock())?);
            shadow::commit(db, live, txn, &state, &prepared.images).map_err(|e| db.poison(e))?;
            None
        }
        (Scheme::Off, None) => {
            off::commit(db, live, txn, &state, &prepared.images, durability).map_err(|e| db.poison(e))?;
            None
        }
    };
    // Readers pin under `inner`, so they see the table and the state change as one (invariant I4, rule
    // TableAndStateAtOnce).
    let mut inner = db.inner.lock();
    inner.check()?;
    inner.advance();
    // A big transaction is flushed and goes home in its turn.
    let shared = inner.member.clone().filter(|m| goes_on && txn.streamed.is_empty() && m.shares_flushes());
    if let Some(placement) = placed.take_if(|placement| !placement.note) {
        let mut table = db.table.write();
        for (page, image) in prepared.images {
            table.publish(page, state.tid, Place::Memory(image), inner.readers());
        }
        live.merge.join(&txn.base, &state, *placement);
        live.log.number(state.tid);
    } else if let Some(placement) = &placed {
        inner.latest = state.clone();
        let mut table = db.table.write();
        placement.pages.iter().for_each(|(page, ..)| table.release(*page, inner.readers()));
        live.log.pass(state.tid);
    } else if ready.is_some() || prepared.written.is_some() {
        let mut table = db.table.write();
        for (page, image) in prepared.images {
            table.publish(page, state.tid, Place::Memory(image), inner.readers());
        }
        if !txn.streamed.is_empty() {
            let file = live.log.file().file.clone();
            table.publish_layer(state.tid, std::mem::take(&mut txn.streamed), file);
        }
        if table.should_trim() {
            table.trim(inner.readers());
        }
        let mut in_group = durability;
        if let Some(member) = &inner.member {
            live.log.group().flushed_elsewhere(member.words.flushed());
            if durability == Durability::Flushed && shared.is_some() {
                member.words.raise_wanted(state.tid);
                in_group = Durability::Written;
            }
        }
        match (&ready, &prepared.written) {
            (_, Some(written)) => {
                live.log.push_prepared(written, &state);
                live.encoder.shrink(log::ENCODER_BYTES);
                if let Some(member) = inner.member.as_ref().filter(|_| written.is_durable()) {
                    member.words.raise_flushed(state.tid);
                }
            }
            (Some(ready), None) => log::push(live, ready, &state, in_group),
            (None, None) => {}
        }
        if let Some(member) = inner.member.clone() {
            member.note(live.log.slot(), &live.log.cursor());
            inner.hide(state.clone());
        }
    } else if prepared.changed {
        // In home already.
        inner.latest = state.clone();
    }
    if prepared.changed {
        inner.published = state.clone();
    }
    Stats::add(&db.stats.commits, u64::from(prepared.changed));
    before.iter().try_for_each(|before| db.unpin(&mut inner, before))?;
    let state = db.pin_state(&mut inner, state);
    // What changed nothing waits as well: what it built on may not be durable yet (invariant I1).
    let waits = prepared.changed || keeps(Rule::EmptyCommitFlushes);
    let durability = if waits { durability } else { Durability::Written };
    let merges = options.scheme == Scheme::InPage;
    Ok(Published { state, group, durability, merges, shared })
}

/// Sends home what should not wait for a full log: the images of a big transaction, and what an in-page scheme has in
/// the log, if it is enough to be worth a checkpoint. If room is short they stay where they are, and the next commit
/// tries again.
pub fn send_home(db: &Database, live: &mut Live, options: &Options) -> Result<()> {
    let home_first = options.scheme == Scheme::InPage && live.log.live_bytes() > in_page::LOG_BYTES_MAX;
    if !home_first && !db.table.read().has_layer() {
        return Ok(());
    }
    match checkpoint(db, live, Stream::Drop) {
        Err(e) if !e.is_short() => Err(e),
        _ => Ok(()),
    }
}
