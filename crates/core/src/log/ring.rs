//! The ring of the log: appending records, streaming images behind the ring, moving the slots.
//!
//! The tail block stays in memory and is rewritten until full, so a group of commits is one write
//! of whole blocks ([`Group`]). A record that would cross the ring's end begins the next lap.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use super::file::{LogCursor, LogFile};
use super::group::{Audience, Durability, Group};
use super::record::RecordHead;
use super::slot::Slot;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{SMALL_LOG_BLOCKS, SMALL_LOG_BYTES, STREAM_UNIT, slot};
use crate::base::memory::{self, Room};
use crate::base::options::LOG_BYTES_MAX;
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, Tid};
use crate::disk::shared::BYTES as SHARED_BYTES;
use crate::disk::{DiskFile, FileSeal, random};
use crate::log::facts::Facts;
use crate::sqlite_format::home::State;

/// Slots leave so many TIDs below their ceiling.
pub const TID_STEP: u64 = 1 << 32;
pub const COUNTER_STEP: u32 = 1 << 16;
/// A ring has fewer records, so no lost one had a TID so far behind the last one found (rule
/// OneNumberOneState).
pub const TIDS_APART: u64 = LOG_BYTES_MAX / 16;

/// Ring of a new log, and beside a closed database (rule SlotBeforeReuse).
pub fn small_ring_bytes(block_bytes: u32) -> u64 {
    let block = u64::from(block_bytes);
    SMALL_LOG_BYTES.max(SMALL_LOG_BLOCKS * block) - slot::BLOCKS_BEFORE_RING * block
}

/// Longer records are not copied for one write, in bytes.
const LONG_RECORD: usize = 256 << 10;

/// A TID above any that a crash behind `last` may have taken back.
pub fn number_apart(last: Tid) -> Result<Tid> {
    Ok(Tid(last.0.saturating_add(TIDS_APART + random()? % TIDS_APART)))
}

/// The size of home in a slot: schemes in place leave it to home's header.
pub fn slot_page_count(state: &State, facts: Facts) -> u32 {
    if facts.records { state.page_count } else { slot::PAGE_COUNT_IN_HOME }
}

/// Schemes without checkpoints tell none: they bring home or exchange it whatever the slot says.
pub fn told_tid(slot: &Slot, facts: Facts) -> Tid {
    if facts.checkpoints { slot.base_tid } else { Tid(0) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamedImages {
    /// They are home: give the space back.
    Drop,
    /// Some belong to an uncommitted transaction.
    Keep,
}

pub struct Ready {
    pub way: Way,
    pub crc: u32,
}

pub struct Log {
    log: LogFile,
    slot: Slot,
    tail: LogOffset,
    prev_crc: u32,
    /// Ahead of the group while a transaction goes in place; read under the writer's place alone.
    last_tid: Tid,
    group: Arc<Group>,
    /// A long record's first or last block, as far as it is filled.
    part: Vec<u8>,
    stream_tail: u64,
    /// Records share blocks: only where a torn write spares its neighbours.
    pack: bool,
    /// The older slot may count: it has live records, or is of an earlier session.
    older_slot: bool,
    /// The newest slot is not flushed: the first record's flush covers it (rule
    /// SlotWithFirstRecord).
    tentative: bool,
    /// This process has written no slot of the session. An earlier home may fit the newest or the
    /// older slot, so the close is flushed (rule SlotWithFirstRecord).
    recovered: bool,
    /// Bytes before the session's first that prove the last close, until the mark is durable (rule
    /// CloseProven).
    proof_bytes: u64,
    /// The log had its seal at the session's start, and has kept its length.
    is_sealed: bool,
    /// The last record is a prepared one (rule PreparedThenDecided), or of another process, whose
    /// may be.
    decided_elsewhere: bool,
}

#[derive(Debug)]
pub struct Way {
    at: LogOffset,
    /// The last block of a long record, which is written already.
    written: Option<u64>,
}

/// In the log, not yet in the log's state in memory.
#[derive(Debug)]
pub struct WrittenRecord {
    at: LogOffset,
    len: u64,
    crc: u32,
    tail: Vec<u8>,
    position: u64,
    durable: bool,
}

impl WrittenRecord {
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    pub fn to(&self) -> LogOffset {
        LogOffset(self.at.0 + self.len)
    }
}

/// The byte of the ring behind the last record. At the end of a lap it is not the first one: a ring
/// that grows goes on there (rule SlotBeforeReuse).
fn end_in_ring(slot: &Slot, tail: LogOffset) -> u64 {
    match tail > slot.start {
        true => (tail.0 - 1) % slot.ring_bytes + 1,
        false => tail.0 % slot.ring_bytes,
    }
}

impl Log {
    /// Writes zeros and no valid slot. [`Log::start`] with `all` flushes them.
    pub fn create(log: LogFile, ring_bytes: u64, block_bytes: u32) -> Result<LogFile> {
        let what = || format!("cannot create the log {}", log.path.display());
        let total =
            slot::BLOCKS_BEFORE_RING * u64::from(block_bytes) + ring_bytes.next_multiple_of(u64::from(block_bytes));
        log.file.set_len(total).context(what)?;
        write_zeros(&log, 0, total, what)?;
        Ok(log)
    }

    /// The slot is flushed before any other write (invariant I3); with `all`, so is the rest of the
    /// log.
    pub fn start(log: LogFile, mut slot: Slot, pack: bool, all: bool) -> Result<Log> {
        slot.start = LogOffset(slot.start.0.next_multiple_of(u64::from(slot.block_bytes)));
        let mut started = Log { older_slot: false, tentative: all, ..Log::join(log, slot, pack) };
        started.write_slot()?;
        Ok(started)
    }

    /// The session follows the one before, so no flush is needed (rule SlotWithFirstRecord).
    pub fn begin(log: LogFile, slot: Slot, pack: bool) -> Result<Log> {
        let mut begun = Log { older_slot: false, tentative: true, recovered: false, ..Log::join(log, slot, pack) };
        begun.put_slot()?;
        if keeps(Case::SlotWithFirstRecord) {
            begun.group.written_beside();
        }
        Ok(begun)
    }

    pub fn has_begun(&self) -> bool {
        !self.tentative || self.group.durable() > self.slot.base_tid
    }

    /// A log that another process writes; [`Log::resume`] comes before the first turn.
    pub fn join(log: LogFile, slot: Slot, pack: bool) -> Log {
        let ring_at = slot.ring_at();
        let block = usize::try_from(slot.block_bytes).unwrap_or(1);
        let position = ring_at + end_in_ring(&slot, slot.start);
        let group = Group::new(log.file.clone(), log.path.clone(), block, position, slot.base_tid);
        Log {
            tail: slot.start,
            prev_crc: slot.prev_crc,
            last_tid: slot.base_tid,
            group: Arc::new(group),
            part: Vec::new(),
            stream_tail: ring_at + slot.ring_bytes,
            pack,
            log,
            slot,
            older_slot: true,
            tentative: false,
            recovered: true,
            proof_bytes: 0,
            is_sealed: false,
            decided_elsewhere: false,
        }
    }

    /// Until the first record's flush no record goes to the `proof_bytes` before it (rules
    /// MarkWithFirstRecord and CloseProven).
    pub fn mark_with_first_record(&mut self, home: Arc<dyn DiskFile>, seal: FileSeal, proof_bytes: u64) {
        self.group.mark_written(home, seal);
        self.is_sealed = true;
        self.proof_bytes = if keeps(Case::ProofKept) { proof_bytes } else { 0 };
    }

    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    pub fn has_new_mark(&self) -> bool {
        self.group.is_mark_written()
    }

    pub fn settle_proof(&mut self) {
        if self.proof_bytes > 0 && !self.has_new_mark() {
            self.proof_bytes = 0;
        }
    }

    pub fn head(&self, state: &State) -> RecordHead {
        RecordHead {
            salt: self.slot.salt,
            tid: state.tid,
            durable_tid: self.group.recorded(),
            prev_crc: self.prev_crc,
            page_count: state.page_count,
            change_counter: state.change_counter,
        }
    }

    /// Nothing of this process is pending.
    pub fn resume(&mut self, slot: &Slot, cursor: &LogCursor, durable: Tid) -> Result<()> {
        let block = u64::from(slot.block_bytes);
        let in_block = cursor.tail.0 % block;
        let mut tail_block = memory::zeros_of(in_block)?;
        let position = slot.ring_at() + end_in_ring(slot, cursor.tail) - in_block;
        let what = || format!("cannot read the log {}", self.log.path.display());
        let read = self.log.file.read_at(&mut tail_block, position).context(what)?;
        if read != tail_block.len() {
            return Err(Error::Corrupt(format!("the log {} was cut short", self.log.path.display())));
        }
        self.group.reserve(0, false)?;
        self.is_sealed &= slot.ring_bytes == self.slot.ring_bytes;
        self.slot = slot.clone();
        self.tail = cursor.tail;
        self.prev_crc = cursor.prev_crc;
        self.decided_elsewhere |= cursor.last_tid != self.last_tid;
        self.last_tid = cursor.last_tid;
        self.group.resume(&tail_block, position, cursor.last_tid, durable.min(cursor.last_tid));
        if durable <= slot.base_tid && keeps(Case::SlotWithFirstRecord) {
            // Another process may have begun the session; its slot becomes durable here.
            self.tentative = true;
            self.group.written_beside();
        }
        self.stream_tail = self.ring_end();
        self.check();
        Ok(())
    }

    /// Holds between calls (rules RecordChain, OneNumberOneState).
    fn check(&self) {
        let Slot { start, ring_bytes, base_tid, tid_ceiling, .. } = self.slot;
        debug_assert!(start <= self.tail && self.tail.0 - start.0 <= ring_bytes, "{:?} behind {start:?}", self.tail);
        debug_assert!((base_tid..=tid_ceiling).contains(&self.last_tid), "{} of {:?}", self.last_tid, self.slot);
        debug_assert!(self.group.durable() <= self.last_tid, "a transaction without a number is durable");
    }

    /// The last record lies where the cursor says.
    fn check_pushed(&self) {
        debug_assert!(
            self.group.end() == self.ring_at() + end_in_ring(&self.slot, self.tail),
            "rule RecordChain: a record ends at {}, {:?} of {:?}",
            self.group.end(),
            self.tail,
            self.slot
        );
        self.check();
    }

    pub fn cursor(&self) -> LogCursor {
        LogCursor { tail: self.tail, prev_crc: self.prev_crc, last_tid: self.last_tid, first: self.slot.start }
    }

    pub fn stream_found(&mut self, streamed_end: u64) {
        self.stream_tail = streamed_end.next_multiple_of(STREAM_UNIT).max(self.ring_end());
    }

    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    pub fn file(&self) -> &LogFile {
        &self.log
    }

    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub fn last_tid(&self) -> Tid {
        self.last_tid
    }

    pub fn live_bytes(&self) -> u64 {
        self.tail.0 - self.slot.start.0
    }

    fn ring_at(&self) -> u64 {
        self.slot.ring_at()
    }

    pub fn ring_end(&self) -> u64 {
        self.ring_at() + self.slot.ring_bytes
    }

    pub fn closed_bytes(&self) -> u64 {
        self.ring_at() + small_ring_bytes(self.slot.block_bytes).min(self.slot.ring_bytes)
    }

    pub fn record_bytes_max(&self) -> u64 {
        self.record_bytes_max_of(self.slot.ring_bytes)
    }

    pub fn record_bytes_max_of(&self, ring_bytes: u64) -> u64 {
        ring_bytes.saturating_sub(2 * u64::from(self.slot.block_bytes))
    }

    /// `None` if the ring is too full.
    fn place(&self, len: u64, own_block: bool) -> Option<LogOffset> {
        self.place_aligned(len, own_block || !self.pack || (self.saves_block(len) && !self.group.is_filling()))
    }

    fn place_aligned(&self, len: u64, aligned: bool) -> Option<LogOffset> {
        let block = u64::from(self.slot.block_bytes);
        let mut at = self.tail.0;
        if aligned {
            at = at.next_multiple_of(block);
        }
        if at % self.slot.ring_bytes + len > self.slot.ring_bytes {
            at = at.next_multiple_of(self.slot.ring_bytes);
        }
        // Whole blocks are written, and the block of the first live record must stay.
        let end = (at + len).next_multiple_of(block);
        (end + self.proof_bytes <= self.slot.start.0 / block * block + self.slot.ring_bytes).then_some(LogOffset(at))
    }

    /// Whether a record alone takes one block instead of two if it skips the rest of the tail
    /// block.
    fn saves_block(&self, len: u64) -> bool {
        let block = u64::from(self.slot.block_bytes);
        len <= block && self.tail.0 % block + len > block
    }

    pub fn has_room(&self, len: u64, own_block: bool) -> bool {
        self.place_aligned(len, own_block || !self.pack || self.saves_block(len)).is_some()
    }

    /// The record's way and push then allocate nothing.
    pub fn reserve(&mut self, len: usize, own_block: bool) -> Result<()> {
        if len <= LONG_RECORD {
            return self.group.reserve(len, own_block || self.saves_block(len as u64));
        }
        self.part.clear();
        self.part.room(usize::try_from(self.slot.block_bytes).unwrap_or(0))?;
        self.group.reserve(0, false)
    }

    /// Writes pending records before the next lap begins (rule RecordChain), and a record too long
    /// to copy, not flushed. After an error the ring is unknown: the caller poisons.
    pub fn make_way(&mut self, record: &[u8], own_block: bool, audience: &dyn Audience) -> Result<Way> {
        let len = record.len() as u64;
        let at = self.place(len, own_block).ok_or_else(|| {
            Error::Misuse(format!("a record of {len} bytes was appended to a log without room for it"))
        })?;
        let in_ring = at.0 % self.slot.ring_bytes;
        let is_long = record.len() > LONG_RECORD;
        if in_ring == 0 || is_long {
            self.group.hand_over(audience)?;
        }
        if in_ring == 0 || (is_long && at != self.tail) {
            self.group.move_to(self.ring_at() + in_ring);
        }
        let written = if is_long { Some(self.write_long(record)?) } else { None };
        Ok(Way { at, written })
    }

    pub fn place_of(&self, len: u64, own_block: bool) -> Result<LogOffset> {
        self.place(len, own_block)
            .ok_or_else(|| Error::Misuse(format!("a record of {len} bytes was appended to a log without room for it")))
    }

    /// Writes behind all pushed records; [`Log::push_prepared`] makes it count. A failure poisons.
    pub fn write_prepared(
        &self,
        record: &[u8],
        crc: u32,
        at: LogOffset,
        flush: bool,
        audience: &dyn Audience,
    ) -> Result<WrittenRecord> {
        self.group.hand_over(audience)?;
        let block = usize::try_from(self.slot.block_bytes).unwrap_or(1);
        let in_ring = at.0 % self.slot.ring_bytes;
        let mut bytes = memory::list(record.len() + 2 * block)?;
        let mut position = self.ring_at() + in_ring;
        if at == self.tail && in_ring != 0 {
            let tail_at = self.group.tail_block(&mut bytes);
            debug_assert!(tail_at + bytes.len() as u64 == position, "the tail block ends where the next record begins");
            position = tail_at;
        }
        bytes.extend_from_slice(record);
        let whole = bytes.len() - bytes.len() % block;
        let tail = memory::copy(bytes.get(whole..).unwrap_or_default())?;
        let tail_position = position + whole as u64;
        bytes.resize(bytes.len().next_multiple_of(block), 0);
        self.group.write_prepared(bytes, position, flush, audience)?;
        Ok(WrittenRecord { at, len: record.len() as u64, crc, tail, position: tail_position, durable: flush })
    }

    pub fn push_prepared(&mut self, written: &WrittenRecord, state: &Arc<State>) {
        debug_assert!(written.at >= self.tail && state.tid > self.last_tid, "rule RecordChain: {written:?}, {state:?}");
        self.group.push_prepared(&written.tail, written.position, state, written.durable);
        self.tail = written.to();
        self.prev_crc = written.crc;
        self.last_tid = state.tid;
        self.decided_elsewhere = true;
        self.settle_proof();
        self.check_pushed();
    }

    /// All but the first and last block, which goes to `part` and whose position is returned.
    fn write_long(&mut self, record: &[u8]) -> Result<u64> {
        let what = || format!("cannot write to the log {}", self.log.path.display());
        let file = &self.log.file;
        let block = usize::try_from(self.slot.block_bytes).unwrap_or(1);
        let part = &mut self.part;
        let mut position = self.group.tail_block(part);
        let head = (block - part.len() % block) % block;
        let (first, rest) = record.split_at_checked(head).unwrap_or((record, &[]));
        let (whole, last) = rest.split_at_checked(rest.len() / block * block).unwrap_or((rest, &[]));
        part.extend_from_slice(first);
        for bytes in [part.as_slice(), whole] {
            file.write_at(bytes, position).context(what)?;
            position += bytes.len() as u64;
        }
        part.clear();
        part.extend_from_slice(last);
        part.resize(last.len().next_multiple_of(block), 0);
        file.write_at(part, position).context(what)?;
        part.truncate(last.len());
        Ok(position)
    }

    /// The caller publishes `state` under the same lock; [`Group::wait`] makes it durable.
    pub fn push(&mut self, way: &Way, record: &[u8], crc: u32, state: &Arc<State>, durability: Durability) {
        debug_assert!(way.at >= self.tail && state.tid > self.last_tid, "rule RecordChain: {way:?}, {state:?}");
        match way.written {
            None => self.group.push(record, way.at != self.tail, state, durability),
            Some(position) => self.group.push_written(&self.part, position, state, durability),
        }
        self.tail = LogOffset(way.at.0 + record.len() as u64);
        self.prev_crc = crc;
        self.last_tid = state.tid;
        self.decided_elsewhere = false;
        self.settle_proof();
        self.check_pushed();
    }

    /// An older image of the same transaction at `position` is overwritten.
    pub fn stream(&mut self, image: &[u8], position: Option<u64>) -> Result<u64> {
        let position = position.unwrap_or(self.stream_tail);
        if u32::try_from(position / STREAM_UNIT).is_err() {
            return Err(Error::Full(format!("the log {} cannot grow beyond 2 TiB", self.log.path.display())));
        }
        self.log
            .file
            .write_at(image, position)
            .context(|| format!("cannot write to the log {}", self.log.path.display()))?;
        self.group.written_beside();
        self.is_sealed = false;
        self.stream_tail = self.stream_tail.max((position + image.len() as u64).next_multiple_of(STREAM_UNIT));
        Ok(position)
    }

    pub fn has_streamed(&self) -> bool {
        self.stream_tail > self.ring_end()
    }

    pub fn stream_drop(&mut self, position: u64) -> Result<()> {
        let position = position.max(self.ring_end());
        if self.stream_tail > position {
            self.stream_tail = position;
            self.log.shorten(position)?;
        }
        Ok(())
    }

    fn is_longer(&self) -> Result<bool> {
        let what = || format!("cannot read the length of {}", self.log.path.display());
        Ok(self.log.file.len().context(what)? > self.ring_end())
    }

    /// Cuts off an earlier owner's streamed images.
    pub fn stream_reset(&mut self) -> Result<()> {
        if self.is_longer()? {
            self.log.shorten(self.ring_end())?;
        }
        self.stream_tail = self.ring_end();
        Ok(())
    }

    pub fn stream_tail(&self) -> u64 {
        self.stream_tail
    }

    /// Home holds `state`, the last record's, durable: writes a slot with an empty ring.
    /// `page_bytes`: of later records.
    pub fn checkpointed(&mut self, state: &State, facts: Facts, page_bytes: u32) -> Result<()> {
        debug_assert!(self.group.is_quiet(), "home holds durable states only (invariant I1)");
        debug_assert!(state.tid == self.last_tid, "home holds the newest state: {} of {}", state.tid, self.last_tid);
        self.slot.page_bytes = page_bytes;
        self.begin_at(&self.cursor(), state, facts)
    }

    /// The same for `state` before the record at `from`, which stays live.
    pub fn begin_at(&mut self, from: &LogCursor, state: &State, facts: Facts) -> Result<()> {
        debug_assert!(state.tid == from.last_tid && from.tail <= self.tail, "{from:?} is not behind {}", state.tid);
        debug_assert!(self.slot.start <= from.tail && self.group.durable() >= state.tid, "rule HomeBeforeSlot");
        self.slot.start = from.tail;
        self.slot.base_tid = from.last_tid;
        self.slot.prev_crc = from.prev_crc;
        self.slot.page_count = slot_page_count(state, facts);
        let change_counter = state.change_counter;
        self.slot.change_counter = change_counter;
        self.slot.tid_ceiling = Tid(from.last_tid.0.saturating_add(TID_STEP));
        self.slot.counter_ceiling = change_counter.wrapping_add(COUNTER_STEP);
        self.slot.in_place = facts.in_place;
        self.older_slot = true;
        self.check();
        self.write_slot()
    }

    /// In an empty ring elsewhere, as little as half of it may be contiguous.
    pub fn rewind(&mut self) -> Result<()> {
        debug_assert!(self.live_bytes() == 0 && self.group.is_quiet(), "only an empty ring can be rewound");
        self.tail = LogOffset(self.tail.0.next_multiple_of(self.slot.ring_bytes));
        self.group.move_to(self.ring_at());
        self.slot.start = self.tail;
        self.check();
        self.write_slot()
    }

    /// Their one lap must begin where one of that ring does.
    pub fn fits_longer(&self, ring_bytes: u64) -> bool {
        let begin = self.slot.start.0 - self.slot.start.0 % self.slot.ring_bytes;
        begin.is_multiple_of(ring_bytes) && self.tail.0 - begin <= self.slot.ring_bytes
    }

    /// Grows an empty ring, or one that [`Log::fits_longer`]; the new part is durable before its
    /// slot (rule SlotBeforeReuse). The older slot does not lead to the records:
    /// [`Log::settle_slots`] follows once others know this one. False without room.
    pub fn grow(&mut self, ring_bytes: u64) -> Result<bool> {
        let is_empty = self.live_bytes() == 0;
        debug_assert!(!self.has_streamed(), "what streams is behind the ring");
        debug_assert!(is_empty || self.fits_longer(ring_bytes), "rule SlotBeforeReuse: records do not move");
        let (from, to) = (self.ring_end(), self.ring_at() + ring_bytes);
        self.is_sealed = false;
        match write_zeros(&self.log, from, to, || self.log.what("cannot lengthen")) {
            Err(e) if e.is_short() => {
                self.log.shorten(from)?;
                return Ok(false);
            }
            written => written?,
        }
        if keeps(Case::RingGrownBeforeSlot) {
            self.log.flush()?;
        }
        self.slot.ring_bytes = ring_bytes;
        self.stream_tail = self.ring_end();
        if is_empty {
            debug_assert!(self.group.is_quiet(), "an empty ring has nothing that waits to be written");
            self.tail = LogOffset(self.tail.0.next_multiple_of(ring_bytes));
            self.slot.start = self.tail;
            self.group.move_to(self.ring_at());
        }
        self.older_slot = true;
        self.check();
        self.write_slot()?;
        Ok(true)
    }

    /// The older slot is live, of an ended session: it fits an older copy of home while no record
    /// is in the way (rule OneNumberOneState), and would lose a commit without a record.
    pub fn distrust_older_slot(&mut self) {
        self.older_slot = self.slot.in_place;
        self.recovered = true;
    }

    /// Makes the older slot not count. It could replay records over pages in place, end before a
    /// record whose streamed images are gone, or fit an older copy of home.
    pub fn settle_slots(&mut self) -> Result<()> {
        if self.older_slot {
            self.write_slot()?;
            self.older_slot = false;
        }
        Ok(())
    }

    /// [`Log::invalidate`] then needs no flush: this process wrote the newest slot, which is
    /// durable, and the records or the clean slot prove the close to a recovery (rule CloseProven).
    pub fn proves_close(&self) -> bool {
        self.has_begun() && !self.recovered && !self.decided_elsewhere
    }

    /// The mark is off, flushed unless [`Log::proves_close`]; with `wipes`, it is flushed, and the
    /// ring becomes zeros (rule NothingLeftBehind). Shrinks a grown ring (rule SlotBeforeReuse).
    pub fn invalidate(&mut self, stream: StreamedImages, wipes: bool) -> Result<()> {
        // The next session may begin without a flush, and follows this one: it must be on the
        // medium before a slot says that it is over (rule SlotWithFirstRecord).
        if !self.has_begun() {
            self.log.flush()?;
        }
        self.slot.live = false;
        let small = self.closed_bytes() - self.ring_at();
        // While one slot is of a live session, records may lead to the part that goes.
        let cuts = self.slot.ring_bytes > small || (stream == StreamedImages::Drop && self.is_longer()?);
        (self.slot.prev_crc, self.slot.start) = (self.prev_crc, self.tail);
        self.slot.ring_bytes = small;
        // Nothing is in flight: the next session may continue from here.
        self.slot.tid_ceiling = self.last_tid;
        self.slot.base_tid = self.last_tid;
        self.put_slot()?;
        if cuts && keeps(Case::LogGivenBack) {
            self.put_slot()?;
        }
        if self.recovered || wipes || (cuts && keeps(Case::LogGivenBack)) {
            self.log.flush()?;
        }
        // Before, a mark that comes back may need the records.
        if wipes || !keeps(Case::CloseProven) {
            self.log.wipe(&self.slot)?;
        }
        if wipes {
            self.log.flush()?;
        }
        match stream {
            StreamedImages::Drop if cuts => {
                self.stream_reset()?;
                if wipes {
                    self.log.wipe_rest(self.ring_end())?;
                }
            }
            StreamedImages::Drop => self.stream_tail = self.ring_end(),
            StreamedImages::Keep => {}
        }
        Ok(())
    }

    /// The older slot needs more of the log than remains (rule SlotBeforeReuse).
    pub fn repeat_slot(&mut self) -> Result<()> {
        self.older_slot = false;
        self.write_slot()
    }

    /// No slot leads there any more (rule SlotBeforeReuse).
    pub fn give_rest_back(&mut self, ring_bytes: u64) -> Result<()> {
        let is_longer = self.is_longer()?;
        if ring_bytes > self.slot.ring_bytes || is_longer {
            self.repeat_slot()?;
        }
        if is_longer { self.stream_reset() } else { Ok(()) }
    }

    pub fn at_ceiling(&self, change_counter: u32) -> bool {
        self.last_tid.next() >= self.slot.tid_ceiling
            || self.slot.counter_ceiling.wrapping_sub(change_counter) <= 2
            || self.slot.counter_ceiling.wrapping_sub(change_counter) > COUNTER_STEP
    }

    fn slot_position(&self) -> u64 {
        self.slot.position()
    }

    /// Flushes all of the log since the session began.
    fn write_slot(&mut self) -> Result<()> {
        self.recovered = false;
        if !keeps(Case::SlotFlushed) {
            return self.put_slot();
        }
        if std::mem::take(&mut self.tentative) {
            self.put_slot()?;
            return self.log.flush();
        }
        let bytes = self.next_slot();
        self.log.file.write_durable_at(&bytes, self.slot_position()).context(|| self.log.what("cannot write to"))
    }

    fn put_slot(&mut self) -> Result<()> {
        let bytes = self.next_slot();
        self.log.file.write_at(&bytes, self.slot_position()).context(|| self.log.what("cannot write to"))
    }

    fn next_slot(&mut self) -> [u8; slot::BYTES] {
        self.slot.sequence += 1;
        self.slot.encode()
    }
}

#[cfg(feature = "research")]
impl Log {
    pub fn skip(&mut self, tid: Tid) {
        self.last_tid = tid;
        self.group.skip(tid);
    }

    pub fn number(&mut self, tid: Tid) {
        self.last_tid = tid;
    }

    /// `tid` is durable in place, without a record.
    pub fn pass(&mut self, tid: Tid) {
        self.last_tid = tid;
        self.group.pass(tid);
    }
}

/// An unwritten ring would make each commit one of the file system's journal.
fn write_zeros(log: &LogFile, from: u64, to: u64, what: impl Fn() -> String + Copy) -> Result<()> {
    log.file.reserve(to).context(what)?;
    let zeros = memory::zeros(usize::try_from(to - from).unwrap_or(usize::MAX).min(256 << 10))?;
    let mut at = from;
    while at < to {
        // One call gets one folio of the kernel's cache, which a store to the mapped memory dirties
        // whole: no block of commits may share it.
        let max = if at == 0 { SHARED_BYTES } else { zeros.len() };
        let n = (to - at).min(max as u64);
        let part = zeros.get(..usize::try_from(n).unwrap_or(0)).unwrap_or_default();
        log.file.write_at(part, at).context(what)?;
        at += n;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::base::types::PageNo;
    use crate::disk::sim::{Op, SimConfig, SimDisk, TraceEntry};
    use crate::disk::{Disk, OpenMode};
    use crate::log::file::ScanEnd;
    use crate::log::record::Encoder;

    const RING: u64 = 1 << 20;
    const PAGE: usize = 65536;

    fn slot() -> Slot {
        Slot {
            block_bytes: 4096,
            sequence: 0,
            session: 1,
            salt: 2,
            start: LogOffset(0),
            ring_bytes: RING,
            base_tid: Tid(10),
            tid_ceiling: Tid(1 << 20),
            prev_crc: 0,
            page_bytes: 512,
            page_count: 1,
            change_counter: 0,
            counter_ceiling: COUNTER_STEP,
            live: true,
            in_place: false,
        }
    }

    fn log(disk: &SimDisk) -> Log {
        let path = Path::new("/db-onewrite");
        let log = Log::create(LogFile::make(disk, path), RING, 4096).unwrap();
        disk.sync_dir_of(path).unwrap();
        Log::start(log, slot(), true, true).unwrap()
    }

    struct Nobody;

    impl Audience for Nobody {
        fn show(&self, _: Arc<State>) {}
        fn poison(&self, error: Error) -> Error {
            error
        }
    }

    fn append(log: &mut Log, pages: u32, durability: Durability) -> u64 {
        let len = push(log, pages, durability);
        log.group().wait(log.last_tid(), durability, &Nobody).unwrap();
        len
    }

    fn push(log: &mut Log, pages: u32, durability: Durability) -> u64 {
        let mut e = Encoder::default();
        e.clear();
        for page in 1..=pages {
            e.add_delta(PageNo(page), None, &[page as u8 | 1; 512]).unwrap();
        }
        let made = State { page_count: pages, change_counter: 1, ..State::empty(log.last_tid().next()) };
        let head = log.head(&made);
        let (record, crc) = e.finish(&head);
        assert!(log.has_room(record.len() as u64, false));
        let way = log.make_way(record, false, &Nobody).unwrap();
        let state = Arc::new(State::empty(head.tid));
        log.push(&way, record, crc, &state, durability);
        record.len() as u64
    }

    fn scan(log: &Log, slot: &Slot) -> ScanEnd {
        log.file().scan(slot, |_| Ok(())).unwrap()
    }

    /// Else, on Linux with large folios, each commit rewrites the log's first 256 KiB or more.
    #[test]
    fn the_memory_that_processes_share_is_written_alone() {
        let disk = SimDisk::new(SimConfig { trace: true, ..SimConfig::default() });
        drop(Log::create(LogFile::make(&disk, Path::new("/db-onewrite")), RING, 4096).unwrap());
        let written: Vec<_> = disk
            .trace()
            .iter()
            .filter_map(|t| match t {
                TraceEntry::Call { op: Op::Write, offset, len, .. } => Some((*offset, *len)),
                _ => None,
            })
            .collect();
        assert_eq!(written.first(), Some(&(0, SHARED_BYTES as u64)));
        assert!(written.iter().skip(1).all(|w| w.0 >= SHARED_BYTES as u64));
    }

    #[test]
    fn records_short_and_long_follow_each_other_at_any_offset() {
        let disk = SimDisk::new(SimConfig::default());
        let mut log = log(&disk);
        // One page, then more than is copied, so that each edge falls inside a block.
        for pages in [1, 600, 3, 700, 2] {
            let len = append(&mut log, pages, Durability::Flushed);
            assert_eq!(len > LONG_RECORD as u64, pages > 500);
        }
        let end = scan(&log, log.slot());
        assert_eq!((end.records, end.last_tid, end.rot), (5, Tid(15), None));
        assert_eq!(end.tail, LogOffset(log.live_bytes()));
    }

    /// The older slot leads to the same end (rule SlotBeforeReuse), across a lap whose rest stayed
    /// free.
    #[test]
    fn the_slot_before_leads_to_records_where_its_first_did_not_fit() {
        let disk = SimDisk::new(SimConfig::default());
        let mut log = log(&disk);
        append(&mut log, 1300, Durability::Flushed);
        let mut slots = Vec::new();
        for pages in [800, 600] {
            log.checkpointed(&State::empty(log.last_tid()), Facts::LOG, 512).unwrap();
            slots.push(log.slot().clone());
            append(&mut log, pages, Durability::Flushed);
        }
        let [before, newest] = slots.try_into().unwrap();
        assert!(log.tail.0 > before.start.0 + RING && log.tail.0 < newest.start.0 + RING);
        let ends = [scan(&log, &before), scan(&log, &newest)];
        assert_eq!(ends.each_ref().map(|end| (end.tail, end.rot)), [(log.tail, None); 2]);
        assert_eq!(ends.map(|end| end.records), [2, 1]);
    }

    /// Blocks at a lap's end leave the buffer before the next lap's first enters (rule
    /// RecordChain).
    #[test]
    fn records_that_wait_at_the_end_of_a_lap_are_written_before_the_next_begins() {
        let disk = SimDisk::new(SimConfig::default());
        let mut log = log(&disk);
        append(&mut log, 1900, Durability::Flushed);
        log.checkpointed(&State::empty(log.last_tid()), Facts::LOG, 512).unwrap();
        push(&mut log, 1, Durability::Flushed);
        assert!(log.group().has_pending() && log.tail.0 < RING);
        let len = append(&mut log, 120, Durability::Flushed);
        assert!((log.tail.0 - len).is_multiple_of(RING) && len < LONG_RECORD as u64);
        let after = disk.crash_by(&mut |_| 0);
        let file = LogFile::open(&after, Path::new("/db-onewrite"), OpenMode::ReadOnly).unwrap().unwrap();
        let slot = file.slots().unwrap().remove(0);
        let end = file.scan(&slot, |_| Ok(())).unwrap();
        assert_eq!((end.records, end.tail), (2, log.tail));
    }

    /// Appends a record of `len` bytes.
    fn append_bytes(log: &mut Log, len: u64) {
        let image = |bytes: u64| (0..PAGE as u64).map(|at| u8::from(at < bytes)).collect::<Vec<u8>>();
        let mut e = Encoder::default();
        let fits = |bytes: &u64| {
            e.clear();
            e.add_delta(PageNo(1), None, &image(*bytes)).unwrap();
            e.record_bytes() as u64 == len
        };
        (len - 80..len).find(fits).unwrap();
        let made = State { page_count: 1, change_counter: 1, ..State::empty(log.last_tid().next()) };
        let (record, crc) = e.finish(&log.head(&made));
        let way = log.make_way(record, false, &Nobody).unwrap();
        log.push(&way, record, crc, &Arc::new(made), Durability::Flushed);
        log.group().wait(log.last_tid(), Durability::Flushed, &Nobody).unwrap();
    }

    /// Its next record goes behind the lap, not over the first ones, which live.
    #[test]
    fn a_ring_that_is_full_to_its_end_grows_also_for_one_that_takes_it_over() {
        let disk = SimDisk::new(SimConfig::default());
        let ring_bytes = small_ring_bytes(4096);
        let file = Log::create(LogFile::make(&disk, Path::new("/db-onewrite")), ring_bytes, 4096).unwrap();
        let slot = Slot { ring_bytes, page_bytes: PAGE as u32, ..slot() };
        let mut log = Log::start(file, slot, true, true).unwrap();
        append_bytes(&mut log, 30_000);
        let rest = ring_bytes - log.live_bytes();
        append_bytes(&mut log, rest);
        let (slot, cursor) = (log.slot().clone(), log.cursor());
        assert_eq!(cursor.tail, LogOffset(ring_bytes));
        let mut other = Log::join(log.file().clone(), slot.clone(), true);
        other.resume(&slot, &cursor, cursor.last_tid).unwrap();
        assert!(other.fits_longer(2 * ring_bytes) && other.grow(2 * ring_bytes).unwrap());
        append(&mut other, 1, Durability::Flushed);
        let end = scan(&other, other.slot());
        assert_eq!((end.records, end.tail, end.rot), (3, other.tail, None));
    }

    /// A process died before it could tell of the failure, and the slot was new, too.
    #[test]
    fn all_that_a_failed_flush_has_lost_is_written_again() {
        let disk = SimDisk::new(SimConfig::default());
        let path = Path::new("/db-onewrite");
        let file = Log::create(LogFile::make(&disk, path), RING, 4096).unwrap();
        disk.sync_dir_of(path).unwrap();
        file.flush().unwrap();
        let mut log = Log::begin(file, slot(), true).unwrap();
        append(&mut log, 1, Durability::Written);
        disk.fail_nth(Op::Sync, 1, std::io::ErrorKind::Other);
        assert!(log.file().flush_records().is_err());
        log.file().rewrite_live(log.slot(), log.tail, 0).unwrap();
        let after = disk.crash_by(&mut |_| 0);
        let file = LogFile::open(&after, path, OpenMode::ReadOnly).unwrap().unwrap();
        let slot = file.slots().unwrap().remove(0);
        assert_eq!((slot.session, file.scan(&slot, |_| Ok(())).unwrap().records), (1, 1));
    }

    #[test]
    fn one_record_is_one_write_that_is_also_the_flush() {
        let disk = SimDisk::new(SimConfig::default());
        let mut log = log(&disk);
        disk.reset_counters();
        for _ in 0..100 {
            append(&mut log, 1, Durability::Flushed);
        }
        let c = disk.counters();
        assert_eq!((c.writes, c.durable_writes, c.syncs), (0, 100, 0));
    }

    #[test]
    fn a_commit_alone_is_one_block() {
        let disk = SimDisk::new(SimConfig { trace: true, ..SimConfig::default() });
        let mut log = log(&disk);
        let writes_from = disk.trace().len();
        let mut records = 0;
        let mut used = 0;
        for pages in [1, 3, 6, 1, 5, 7, 2, 6, 1].repeat(4) {
            used += append(&mut log, pages, Durability::Flushed);
            records += 1;
        }
        assert!(used > 4 * 4096 && log.live_bytes() > used, "some leave the rest of a block free");
        let lengths: Vec<_> = disk.trace()[writes_from..]
            .iter()
            .filter_map(|t| match t {
                TraceEntry::Call { op: Op::WriteDurable, len, .. } => Some(*len),
                _ => None,
            })
            .collect();
        assert_eq!(lengths, vec![4096; records]);
        let before = log.live_bytes().next_multiple_of(4096);
        let first = push(&mut log, 7, Durability::Flushed);
        let begins = log.live_bytes() - first;
        assert!(begins == before || begins + first <= before);
        let rest: u64 = (0..9).map(|_| push(&mut log, 3, Durability::Flushed)).sum();
        assert_eq!(log.live_bytes(), begins + first + rest, "those that wait lie side by side");
        log.group().wait(log.last_tid(), Durability::Flushed, &Nobody).unwrap();
        let end = scan(&log, log.slot());
        assert_eq!((end.records, end.tail, end.rot), (records as u64 + 10, log.tail, None));
    }

    #[test]
    fn records_that_were_only_written_become_durable_with_the_next_that_is_flushed() {
        let disk = SimDisk::new(SimConfig::default());
        let mut log = log(&disk);
        append(&mut log, 1, Durability::Written);
        append(&mut log, 9, Durability::Written);
        append(&mut log, 1, Durability::Flushed);
        let after = disk.crash_by(&mut |_| 0);
        let file = LogFile::open(&after, Path::new("/db-onewrite"), OpenMode::ReadOnly).unwrap().unwrap();
        let slot = file.slots().unwrap().remove(0);
        assert_eq!(file.scan(&slot, |_| Ok(())).unwrap().records, 3);
    }
}
