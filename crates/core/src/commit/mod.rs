//! Commits: from an overlay to a durable transaction.
//!
//! ```text
//! SQLITE_FCNTL_SYNC     before_commit   work that earlier commits or a recovery left to this one
//!                       encode          compare, encode, make room; may fail, changes nothing
//! SQLITE_FCNTL_COMMIT_… publish         to the table and the next writer, which is let in
//!                       wait            until it is durable
//!                       after_commit    write-back of pages that went home
//! ```
//!
//! The scheme decides the destinations ([`Scheme`]).

pub mod log;
pub mod record;
pub mod stream;

use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::layout::home as at;
use crate::base::memory;
use crate::base::options::{HeaderPage, Images, Options};
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, PageNo, Tid, whole_pages};
use crate::checkpoint::sweep;
use crate::checkpoint::{checkpoint, checkpoint_with_room, settle_mark, tell_recovery};
use crate::database::scheme::{Commit, CommitOutcome, Facts, Gaps, Scheme};
use crate::database::{Database, DatabaseState, LiveDatabase};
use crate::disk::stats::Stats;
use crate::log::group::{Durability, Group};
use crate::log::record::Encoder;
use crate::log::ring::{StreamedImages, WrittenRecord, number_apart};
use crate::log::several::Undecided;
use crate::pages::image::Image;
use crate::pages::table::{ImageLocation, PageTable};
use crate::pages::txn::{ChangedPage, PreparedCommit, Txn, TxnStage};
use crate::shared::member::Member;
use crate::shared::words::RecoveryDebt;
use crate::sqlite_format::home::{self, FileKind, State};
use crate::sqlite_format::node::Shape;

/// Reserves as much again, within limits, so that growth rarely costs a call.
pub fn reserve_bytes(bytes: u64) -> u64 {
    let step = bytes.checked_next_power_of_two().unwrap_or(u64::MAX).clamp(64 << 10, 1 << 20);
    bytes.next_multiple_of(step)
}

/// The first half: everything that can fail without harm.
pub fn prepare(c: &mut Commit<'_>) -> Result<()> {
    c.txn.stage = TxnStage::Prepared(plan(c)?);
    Ok(())
}

pub fn plan(c: &mut Commit<'_>) -> Result<PreparedCommit> {
    let planned = before_commit(c).and_then(|due| encode(c, due));
    if planned.is_err() {
        // SQLite may go on in the transaction.
        stream::leave_to_memory(c.db, c.live, c.txn)?;
    }
    planned
}

/// Work of commits before, or of a recovery, that is due before the next record; the rest of it.
fn before_commit(c: &mut Commit<'_>) -> Result<RecoveryDebt> {
    let Commit { db, live, txn, options } = c.parts();
    // Streamed images must be home before later ones, and the slot's ceilings bind every process.
    debug_assert!(live.home_tid >= live.log.slot().base_tid, "home is behind its slot: {}", live.home_tid);
    let is_full = |table: &PageTable| table.new_bytes() > options.table_bytes || table.has_layer();
    let pressed = is_full(&db.table.read()) || live.log.at_ceiling(txn.base.change_counter);
    if pressed {
        let keep = if txn.streamed.is_empty() { StreamedImages::Drop } else { StreamedImages::Keep };
        checkpoint(db, live, keep)?;
    } else {
        sweep::advance(db, live, options)?;
    }
    settle_mark(db, live)?;
    tell_recovery(db, live)
}

fn encode(c: &mut Commit<'_>, due: RecoveryDebt) -> Result<PreparedCommit> {
    let Commit { db, live, txn, options } = c.parts();
    let scheme = live.scheme.clone();
    check_new(db, &*scheme, options, txn)?;
    let change_counter = txn.base.change_counter.wrapping_add(1);
    let page_count = page_count(txn);
    record::begin(db, live, txn)?;
    let facts = scheme.facts();
    let encoder = (facts.records && options.bundle.images == Images::Delta).then_some(&mut live.encoder);
    let known = live.first_page.take().filter(|(state, _)| Arc::ptr_eq(state, &txn.base)).map(|(_, image)| image);
    let Changes { changed, header, first_page } =
        changes(db, txn, options, HeaderNumbers { page_count, change_counter }, scheme.gaps(), encoder, known)?;
    live.first_page = first_page.filter(|_| facts == Facts::LOG).map(|image| (txn.base.clone(), image));
    if changed.is_empty() && txn.streamed.is_empty() && page_count == txn.base.page_count {
        return Ok(PreparedCommit::nothing(&txn.base));
    }
    let bytes = u64::from(page_count) * u64::from(txn.page_bytes);
    if bytes > live.home.room_bytes() {
        let want = reserve_bytes(bytes);
        let what = || db.what("no room for the pages added to");
        crate::base::error::IoContext::context(db.home.reserve(want), what)?;
        live.home.reserved_bytes = want;
    }
    if live.log.slot().page_bytes != txn.page_bytes {
        db.flush_published(live)?;
        // Rule StoreHasIt.
        db.wait_all_shipped()?;
        live.log.checkpointed(&txn.base, facts, txn.page_bytes).map_err(|e| db.poison(e))?;
        live.tell_slot();
        // No record of another page size can be read under the slot (rule SlotBeforeReuse).
        live.log.settle_slots().map_err(|e| db.poison(e))?;
        live.tell_slot();
    }
    let last = live.log.last_tid();
    // Rule FlushedStays.
    let tid = if due.stayed == Some(last) { number_apart(last)? } else { last.next() };
    let state = txn.base.after(tid, txn.page_bytes, page_count, change_counter, header);
    scheme.prepare(c, state, changed)
}

/// The caller has the writer's place, so nothing follows the record until its decision (rule
/// PreparedThenDecided).
pub fn write_prepared(c: &mut Commit<'_>, flush: bool) -> Result<()> {
    let Some(several) = c.txn.several.clone() else { return Ok(()) };
    if !matches!(&c.txn.stage, TxnStage::Prepared(prepared) if prepared.changed) {
        return Ok(());
    }
    // Once decided, nothing may fail for want of memory (rule TableAndStateAtOnce).
    make_room(c)?;
    let Commit { db, live, txn, options } = c.parts();
    let TxnStage::Prepared(prepared) = &mut txn.stage else { return Ok(()) };
    let flush = flush && keeps(Case::PreparedFlushed);
    if flush {
        db.flush_published(live)?;
    }
    let crc = record::seal(db, live, &prepared.state);
    let record = live.encoder.finished();
    let at = live.log.place_of(record.len() as u64, record::own_block(options))?;
    debug_assert!(db.undecided.lock().is_none(), "rule PreparedThenDecided");
    debug_assert!(live.log.group().durable() == live.log.last_tid() || !flush, "rule PreparedThenDecided");
    // It may be in the log now, also after an error.
    let to = LogOffset(at.0 + record.len() as u64);
    let (log, slot) = (live.log.file().clone(), live.log.slot().clone());
    several.note_prepared(&db.path, slot.session);
    let tid = prepared.state.tid;
    *db.undecided.lock() = Some(Undecided { several, log, slot, from: at, to, tid, flushed: flush });
    prepared.written = Some(Box::new(live.log.write_prepared(record, crc, at, flush, db)?));
    Ok(())
}

fn check_new(db: &Database, scheme: &dyn Scheme, options: &Options, txn: &Txn) -> Result<()> {
    let Some(first) = txn.pages.get(&PageNo::HEADER).filter(|_| txn.base.kind == FileKind::Empty) else {
        return Ok(());
    };
    let header = first.get(..at::HEADER_BYTES).and_then(|h| h.try_into().ok()).unwrap_or([0; at::HEADER_BYTES]);
    let state = State { kind: FileKind::Database, page_bytes: txn.page_bytes, header, ..(*txn.base).clone() };
    scheme.check(db, options, &state)
}

/// Page 1 states it, if it was written.
fn page_count(txn: &Txn) -> u32 {
    let by_size = || whole_pages(txn.file_bytes, txn.page_bytes);
    match txn.pages.get(&PageNo::HEADER) {
        Some(image) => home::page_count(image).filter(|n| *n != 0).unwrap_or_else(by_size),
        None if txn.base.page_count == 0 => by_size(),
        None => txn.base.page_count,
    }
}

struct HeaderNumbers {
    page_count: u32,
    change_counter: u32,
}

struct Changes {
    changed: Vec<ChangedPage>,
    header: Option<home::DatabaseHeader>,
    /// Without its counters, if unchanged.
    first_page: Option<Image>,
}

/// The base is this engine's, never SQLite's journal (rule AbsoluteBytes). Deltas go into
/// `encoder`.
fn changes(
    db: &Database,
    txn: &mut Txn,
    options: &Options,
    HeaderNumbers { page_count, change_counter }: HeaderNumbers,
    gaps: Option<&dyn Gaps>,
    mut encoder: Option<&mut Encoder>,
    mut first_page: Option<Image>,
) -> Result<Changes> {
    let end_of_base = txn.base_limit.min(txn.base.page_count);
    let added = page_count.saturating_sub(end_of_base);
    let mut pages: Vec<PageNo> = memory::list(txn.pages.len() + added as usize + 1)?;
    pages.extend(txn.pages.keys().copied().filter(|p| p.0 <= page_count));
    // Leaves of the freelist that SQLite never wrote are zeros, whatever home holds there.
    if added > 0 && keeps(Case::ZerosBeyondEnd) {
        let added = (end_of_base + 1..=page_count).map(PageNo);
        pages.extend(added.filter(|p| !txn.pages.contains_key(p) && txn.streamed.get(*p).is_none()));
    }
    if options.bundle.header_page == HeaderPage::Write && page_count > 0 && !txn.pages.contains_key(&PageNo::HEADER) {
        pages.push(PageNo::HEADER);
    }
    pages.sort_unstable();
    let mut header = None;
    let mut changed = memory::list(pages.len())?;
    let shape = Shape::new(txn.page_bytes, page_count.max(txn.base.page_count), &txn.base.header);
    let embeds = options.bundle.header_page == HeaderPage::Embed && gaps.is_none();
    for page in pages {
        let known = first_page.as_ref().filter(|_| page == PageNo::HEADER && embeds);
        if known.zip(txn.pages.get(&page)).is_some_and(|(old, new)| home::same_header(new, old, home::COUNTERS)) {
            continue;
        }
        let read = txn.take_read(page).filter(|image| gaps.is_none() && image.len() == txn.page_bytes as usize);
        let base = match read {
            Some(image) => Some(image),
            None if page.0 <= txn.base.page_count => Some(db.image(&txn.base, page)?),
            None => None,
        };
        let mut new = match (txn.pages.get(&page), &base) {
            (Some(image), _) => image.clone(),
            (None, Some(base)) if page == PageNo::HEADER => base.clone(),
            (None, _) => Image::from(memory::zeros(txn.page_bytes as usize)?),
        };
        if page == PageNo::HEADER {
            let mut image = memory::copy(&new)?;
            home::clear_mark_bytes(&mut image);
            match (&base, options.bundle.header_page) {
                (Some(base), HeaderPage::Embed) => {
                    home::embed_counters(&mut image, base);
                    if let Some(gaps) = gaps.filter(|_| page_count >= txn.base.page_count) {
                        gaps.embed(&mut image, base);
                    }
                }
                _ => home::put_counter(&mut image, change_counter),
            }
            new = Image::from(image);
        }
        let embedding = gaps.filter(|_| options.bundle.header_page == HeaderPage::Embed);
        let differs = match (&mut encoder, embedding) {
            (Some(encoder), _) => encoder.add_delta(page, base.as_deref(), &new)?,
            (None, Some(gaps)) => base.as_deref().is_none_or(|base| !gaps.same(&shape, page, base, &new)),
            (None, None) => base.as_deref() != Some(&*new),
        };
        if differs {
            if page == PageNo::HEADER {
                header = new.get(..at::HEADER_BYTES).and_then(|h| h.try_into().ok());
            }
            let old = base.filter(|_| gaps.is_some());
            changed.push(ChangedPage { page, new, old });
        } else if page == PageNo::HEADER {
            first_page = base;
        }
    }
    Ok(Changes { changed, header, first_page: first_page.filter(|_| header.is_none()) })
}

pub struct Published {
    pub state: Arc<State>,
    group: Arc<Group>,
    durability: Durability,
    /// The place is passed on before the flush.
    pub goes_on: bool,
    scheme: Arc<dyn Scheme>,
    shared: Option<Arc<Member>>,
}

impl Published {
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns with the record in the kernel's cache. An error poisons.
    pub fn write(&self, db: &Database) -> Result<()> {
        self.group.wait(self.state.tid, Durability::Written, db)
    }

    /// `turn`: others may join, and usually hold the place so long. An error poisons.
    pub fn wait(&self, db: &Database, turn: Option<std::time::Duration>) -> Result<()> {
        if let Some(member) = &self.shared {
            return db.wait_flushed(member, self.state.tid, self.durability, None);
        }
        self.scheme.wait(db, self.state.tid, turn.is_some())?;
        match turn {
            Some(turn) => self.group.wait_for_others(self.state.tid, self.durability, turn, db)?,
            None => self.group.wait(self.state.tid, self.durability, db)?,
        }
        let member = db.member();
        let Some(member) = member.as_ref() else { return Ok(()) };
        if member.words.written() >= self.state.tid {
            // Others' unflushed records may keep this one invisible.
            db.wait_flushed(member, self.state.tid, self.durability, None)?;
        }
        // Another process's failed flush may have hidden a loss.
        db.check(Some(member))
    }
}

/// Nothing may fail for want of memory after publication (rule TableAndStateAtOnce).
fn make_room(c: &mut Commit<'_>) -> Result<()> {
    if let TxnStage::Prepared(PreparedCommit { changed: true, images, written: None, .. }) = &c.txn.stage {
        memory::headroom()?;
        c.live.log.reserve(c.live.encoder.record_bytes(), record::own_block(c.options))?;
        c.db.table.write().room(images.len())?;
    }
    Ok(())
}

/// What was prepared may be stale, and is then prepared anew.
fn take_prepared(c: &mut Commit<'_>) -> Result<PreparedCommit> {
    make_room(c)?;
    if matches!(&c.txn.stage, TxnStage::Prepared(prepared) if c.live.scheme.is_stale(c.live, prepared)) {
        prepare(c).map_err(|e| c.db.poison(e))?;
        make_room(c)?;
    }
    let TxnStage::Prepared(prepared) = std::mem::replace(&mut c.txn.stage, TxnStage::Open) else {
        return Err(Error::Misuse("a commit that was not prepared".into()));
    };
    Ok(prepared)
}

/// Big ones are flushed and go home in their turn; others know nothing of a mark that the flush
/// covers. One that flushes by itself makes a dead process's flush good first.
fn may_share(c: &mut Commit<'_>, goes_on: bool) -> Result<bool> {
    let may_share = goes_on && c.txn.streamed.is_empty() && !c.live.log.has_new_mark();
    if !may_share {
        c.db.flush_of_dead(c.live)?;
    }
    Ok(may_share)
}

/// The committer's snapshot, if it `moves`, is of its own state then. An error poisons, except for
/// want of memory.
pub fn publish(
    c: &mut Commit<'_>,
    moves: Option<&mut Arc<State>>,
    durability: Durability,
    goes_on: bool,
) -> Result<Published> {
    let (db, scheme) = (c.db, c.live.scheme.clone());
    let may_share = may_share(c, goes_on)?;
    let mut prepared = take_prepared(c)?;
    let group = c.live.log.group().clone();
    let state = Arc::new(prepared.state.clone());
    let durability = scheme.durability(durability);
    let (outcome, durability) = match (prepared.written.take(), prepared.changed) {
        (Some(written), _) => (CommitOutcome::Written(written), Durability::Written),
        (None, true) => (scheme.commit(c, &state, &mut prepared, durability)?, durability),
        (None, false) => (CommitOutcome::Nothing, durability),
    };
    let Commit { live, txn, .. } = c.parts();
    live.first_page = live.first_page.take().filter(|(of, _)| Arc::ptr_eq(of, &txn.base) && txn.streamed.is_empty());
    if let Some((of, _)) = live.first_page.as_mut().filter(|_| prepared.changed) {
        *of = state.clone();
    }
    live.home.streamed_bytes = 0;
    // Readers pin under `inner`, and see table and state change as one (invariant I4, rule
    // TableAndStateAtOnce).
    debug_assert!(db.undecided.lock().is_none(), "rule PreparedThenDecided");
    let mut inner = db.inner.lock();
    inner.check()?;
    inner.advance();
    debug_assert!(state.tid > inner.published.tid || !prepared.changed, "{} after {:?}", state.tid, inner.published);
    if let Some(own) = &moves {
        // Else it would keep every image that this commit or its checkpoint replaces.
        db.unpin(&mut inner, own)?;
    }
    let shared = inner.member.as_ref().filter(|member| may_share && member.shares_flushes()).cloned();
    // It is pinned until the newest state has changed, for good if it never does: readers need its
    // images until then (invariant I4).
    let mut before = None;
    match outcome {
        CommitOutcome::Nothing => {}
        CommitOutcome::Record(ready) => {
            show_record(db, live, txn, &inner, &state, prepared.images);
            let wanted = shared.as_ref().filter(|_| durability == Durability::Flushed);
            wanted.inspect(|member| member.words.raise_wanted(state.tid));
            let in_group = if wanted.is_some() { Durability::Written } else { durability };
            record::push(live, &ready, &state, in_group);
            hide(live, &mut inner, &state);
        }
        CommitOutcome::Written(written) => {
            show_record(db, live, txn, &inner, &state, prepared.images);
            push_written(live, &inner, &written, &state);
            hide(live, &mut inner, &state);
        }
        CommitOutcome::Own(pinned) => {
            live.scheme.show(db, &mut inner, &state, prepared.images);
            before = pinned;
        }
    }
    if prepared.changed {
        inner.published = state.clone();
    }
    Stats::add_alone(&db.stats.commits, u64::from(prepared.changed));
    debug_assert!(inner.home_tid <= inner.latest.tid, "readers see less than home held");
    debug_assert!(inner.latest.tid <= inner.published.tid, "invariant I4: what readers see is published");
    before.iter().try_for_each(|before| db.unpin(&mut inner, before))?;
    if let Some(own) = moves {
        *own = db.pin_state(&mut inner, state.clone());
    }
    // The base of an empty commit may not be durable yet (invariant I1).
    let waits = prepared.changed || keeps(Case::EmptyCommitFlushes);
    let durability = if waits { durability } else { Durability::Written };
    Ok(Published { state, group, durability, goes_on, scheme, shared })
}

fn show_record(
    db: &Database,
    live: &LiveDatabase,
    txn: &mut Txn,
    inner: &DatabaseState,
    state: &State,
    images: Vec<(PageNo, Image)>,
) {
    let mut table = db.table.write();
    let is_told = txn.streamed.is_empty() && live.scheme.facts() == Facts::LOG && !inner.options.concurrent;
    if is_told {
        table.note_step(&txn.base, state, images.iter().map(|(page, _)| *page));
    }
    show(&mut table, inner, state.tid, images);
    if !txn.streamed.is_empty() {
        let file = live.log.file().file.clone();
        table.publish_streamed(state.tid, std::mem::take(&mut txn.streamed), file, live.log.stream_tail());
    }
    if table.should_trim() {
        table.trim(inner.readers());
    }
}

fn push_written(live: &mut LiveDatabase, inner: &DatabaseState, written: &WrittenRecord, state: &Arc<State>) {
    if let Some(member) = &inner.member {
        live.log.group().flushed_elsewhere(member.words.flushed());
    }
    record::push_prepared(live, written, state);
    if let Some(member) = inner.member.as_ref().filter(|_| written.is_durable()) {
        member.words.raise_flushed(state.tid);
    }
}

fn hide(live: &LiveDatabase, inner: &mut DatabaseState, state: &Arc<State>) {
    let Some(member) = &inner.member else { return };
    member.note(live.log.slot(), &live.log.cursor());
    inner.hide(state.clone());
}

pub fn show(table: &mut PageTable, inner: &DatabaseState, tid: Tid, images: Vec<(PageNo, Image)>) {
    for (page, image) in images {
        table.publish(page, tid, ImageLocation::Memory(image), inner.readers());
    }
}

/// The medium is free, and writes the pages that slices brought home while the application goes on.
pub fn after_commit(db: &Database) {
    db.begin_write_back();
}

/// Behind a commit that streamed, or whose scheme wants it. Without room the images stay, and the
/// next commit tries again.
pub fn send_home(db: &Database, live: &mut LiveDatabase, streamed: bool) -> Result<()> {
    if !streamed && !live.scheme.wants_checkpoint(live) {
        return Ok(());
    }
    checkpoint_with_room(db, live).map(drop)
}
