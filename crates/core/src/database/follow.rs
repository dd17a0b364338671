//! Following the log: records of other processes become versions in the page table of this one.
//!
//! Home may be overwritten while its pages are the base of a delta here. Every byte that a
//! checkpoint to T changed is in some record up to T, so applying those makes it right; and no
//! snapshot is pinned before its TID is known to be at or above
//! [`ProcessWords::home_floor`](crate::shared::words::ProcessWords::home_floor).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::error::{Error, Result};
use crate::base::layout::home as at;
use crate::base::types::{PageNo, PagePart, Tid};
use crate::database::{Database, DatabaseState};
use crate::log::file::{LogCursor, Window};
use crate::log::record::Record;
use crate::log::slot::Slot;
use crate::pages::apply;
use crate::pages::table::Readers;
use crate::shared::member::Member;
use crate::shared::tail::{Reach, Tail};
use crate::sqlite_format::home::{self, State};

/// The least and the most of a look at the log.
const WINDOW_BYTES: (u64, u64) = (4096, 64 << 10);

pub fn catch_up(db: &Database, member: &Member, inner: &mut DatabaseState, reach: Reach) -> Result<()> {
    let words = &member.words;
    let mut tail = member.tail.lock();
    // Each round but the last sees another generation.
    for _ in 0..1000 {
        // Read first: a checkpoint of all that is visible by now may come a round later.
        let goal = match reach {
            Reach::Visible => words.visible(),
            Reach::Written => words.written(),
            Reach::Flushed => words.written().min(words.flushed()),
        };
        let generation = words.generation();
        inner.advance();
        if tail.slot.sequence != generation {
            let slots = member.log.slots()?;
            let Some(slot) = slots.into_iter().find(|s| s.sequence == generation && s.session == tail.slot.session)
            else {
                continue; // Overwritten by now.
            };
            if !turn_page(db, member, &mut tail, slot, inner)? {
                if words.generation() != generation {
                    continue;
                }
                return Err(lost(member, inner.published.tid));
            }
            member.generation.store(generation, Ordering::Relaxed);
        }
        let begin = tail.cursor.tail.0;
        let followed = follow(db, member, inner, &mut tail, goal);
        // About as much is new the next time.
        let bytes = tail.cursor.tail.0.saturating_sub(begin);
        if bytes > 0 {
            tail.usual_bytes = bytes.max(tail.usual_bytes / 2);
        }
        match followed {
            // A newer slot gave a record up, and its images were overwritten meanwhile.
            Err(Error::Corrupt(_)) if words.generation() != generation => {}
            followed => followed?,
        }
        if words.generation() != generation {
            continue;
        }
        debug_assert!(
            tail.cursor.last_tid == inner.published.tid && inner.latest.tid <= inner.published.tid,
            "the cursor is behind the newest record: {:?}",
            tail.cursor
        );
        if inner.published.tid >= goal {
            return Ok(());
        }
        return Err(lost(member, inner.published.tid.next()));
    }
    inner.check()?;
    Err(Error::Busy("other processes write faster than this one can follow".into()))
}

/// Up to `goal`, or where the records end.
fn follow(db: &Database, member: &Member, inner: &mut DatabaseState, tail: &mut Tail, goal: Tid) -> Result<()> {
    // The ring may have reused it.
    let (mut window, mut window_bytes) = (Window::default(), tail.usual_bytes);
    let mut buf = Vec::new();
    // No record follows streamed images before they are home, and a newer slot says that they are.
    while inner.published.tid < goal && !db.table.read().has_layer() {
        if !window.reaches(&tail.slot, &tail.cursor) {
            let bytes = window_bytes.clamp(WINDOW_BYTES.0, WINDOW_BYTES.1);
            member.log.look(&mut window, &tail.slot, &tail.cursor, bytes)?;
            window_bytes = 4 * bytes;
        }
        let batch = window.written(&tail.slot, &tail.cursor, goal)?;
        db.table.read().look_ahead(|look| batch.iter().for_each(|(_, record)| record.for_each(|page, _| look(page))));
        for (end, record) in &batch {
            let state = apply(db, member, &tail.slot, record, &inner.published, readers(member, inner, record))?;
            arrive(inner, tail, *end, state);
        }
        if !batch.is_empty() {
            continue;
        }
        let next = member.log.next_written(&tail.slot, &tail.cursor, &window, &mut buf, |end, record| {
            Ok((end, apply(db, member, &tail.slot, record, &inner.published, readers(member, inner, record))?))
        })?;
        let Some((end, state)) = next else { break };
        arrive(inner, tail, end, state);
    }
    Ok(())
}

fn readers<'a>(member: &Member, inner: &'a DatabaseState, record: &Record<'_>) -> Readers<'a> {
    let visible = member.words.visible().min(record.head.tid).max(inner.latest.tid);
    Readers { snapshots: &inner.snapshots, visible }
}

fn arrive(inner: &mut DatabaseState, tail: &mut Tail, end: LogCursor, state: State) {
    tail.cursor = end;
    inner.hide(Arc::new(state));
    inner.advance();
}

fn lost(member: &Member, tid: Tid) -> Error {
    Error::Corrupt(format!(
        "the log {} has lost transaction {tid}, which another process committed",
        member.log.path.display()
    ))
}

/// False if the records before `slot` are gone.
fn turn_page(db: &Database, member: &Member, tail: &mut Tail, slot: Slot, inner: &mut DatabaseState) -> Result<bool> {
    let home_tid = slot.base_tid;
    let newest = inner.published.tid;
    if tail.slot.sequence == 0 || newest < home_tid {
        let mut state = State { change_counter: slot.change_counter, ..State::empty(home_tid) };
        if slot.page_count > 0 {
            let mut first = [0; at::HEADER_BYTES];
            read_home(db, member, home_tid, PageNo::HEADER, slot.page_bytes, &mut first)?;
            home::unmark(&mut first);
            state = state.after(home_tid, slot.page_bytes, slot.page_count, slot.change_counter, Some(first));
        }
        let mut table = db.table.write();
        table.checkpointed_elsewhere(home_tid, &inner.snapshots);
        table.lists_since(home_tid);
        drop(table);
        inner.set_state(Arc::new(state));
        tail.cursor = LogCursor::at(&slot);
    } else if newest == home_tid {
        inner.set_state(inner.published.clone());
        db.table.write().checkpointed(home_tid, inner.published.page_count, inner.readers());
        tail.cursor = LogCursor::at(&slot);
    } else if tail.slot.ring_bytes != slot.ring_bytes {
        match place_in_ring(member, &slot, newest)? {
            Some(cursor) => tail.cursor = cursor,
            None => return Ok(false),
        }
    }
    if newest > home_tid {
        tail.cursor.first = tail.cursor.first.max(slot.start);
        if member.observes {
            // Sweeps elsewhere go on, and no whole checkpoint drops these versions.
            db.table.write().swept_elsewhere(home_tid, inner.readers());
        }
    }
    tail.slot = slot;
    Ok(true)
}

/// Both rings begin at one place, so records were found before the slot was known (rule
/// SlotBeforeReuse). `None` if `tid` is gone.
fn place_in_ring(member: &Member, slot: &Slot, tid: Tid) -> Result<Option<LogCursor>> {
    let mut cursor = LogCursor::at(slot);
    let mut buf = Vec::new();
    while cursor.last_tid < tid {
        let next = member.log.next_record(slot, &cursor, &Window::default(), &mut buf, |next, _| Ok(next))?;
        let Some(next) = next else { return Ok(None) };
        cursor = next;
    }
    Ok(Some(cursor))
}

pub fn apply(
    db: &Database,
    member: &Member,
    slot: &Slot,
    record: &Record<'_>,
    state: &State,
    readers: Readers<'_>,
) -> Result<State> {
    let before = Tid(record.head.tid.0.saturating_sub(1));
    let mut table = db.table.write();
    let home = |page: PageNo, image: &mut [u8]| read_home(db, member, before, page, slot.page_bytes, image);
    let source = apply::RecordSource { path: &db.path, log: &member.log, slot, home_pages: u32::MAX, home: &home };
    let next = apply::apply(&source, &mut table, state, record, readers)?;
    if next.tid != state.tid.next() || next.page_count < state.page_count {
        // One transaction has no record, or pages may come back without one.
        table.lists_since(next.tid);
    }
    Ok(next)
}

fn read_home(db: &Database, member: &Member, tid: Tid, page: PageNo, page_bytes: u32, image: &mut [u8]) -> Result<()> {
    let part = PagePart { page, page_bytes, at: 0 };
    loop {
        let epoch = member.words.epoch();
        let n = db.read_home_once(Some(member), tid, part, image)?;
        if member.words.same_epoch(epoch) {
            image.get_mut(n..).unwrap_or_default().fill(0);
            return Ok(());
        }
    }
}
