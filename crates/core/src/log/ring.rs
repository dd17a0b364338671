//! The ring of the log: appending records, streaming images behind the ring, the slots that say where the
//! live records begin.
//!
//! The tail block is kept in memory and rewritten until it is full, so a group of commits is one write of whole
//! blocks that overwrites preallocated, written space ([`Group`]). A record never crosses the end of the ring: it
//! begins at the next lap instead.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use super::file::{LogCursor, LogFile};
use super::group::{Audience, Durability, Group};
use super::record::{self, RecordHead};
use super::slot::Slot;
use super::tombstone::Tombstone;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{SMALL_LOG_BLOCKS, SMALL_LOG_BYTES, STREAM_UNIT, shared, slot};
use crate::base::memory::{self, Room};
use crate::base::options::LOG_BYTES_MAX;
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, PageNo, Tid};
use crate::disk::shared::BYTES as SHARED_BYTES;
use crate::disk::{DiskFile, FileSeal, random};
use crate::log::facts::Facts;
use crate::sqlite_format::home::State;

/// How far TIDs may run ahead of the ceiling a slot announced.
pub const TID_STEP: u64 = 1 << 32;
/// How far change counters may run ahead of the ceiling a slot announced.
pub const COUNTER_STEP: u32 = 1 << 16;
/// How far the TID of a recovery's record is behind the last one found, at least and with a random part as large: more than records fit
/// into a ring, so that none which a crash took back had a larger one (rule OneNumberOneState).
pub const TIDS_APART: u64 = LOG_BYTES_MAX / 16;

/// Size of the ring that a log begins with, and has beside a closed database (rule SlotBeforeReuse).
pub fn small_ring_bytes(block_bytes: u32) -> u64 {
    let block = u64::from(block_bytes);
    SMALL_LOG_BYTES.max(SMALL_LOG_BLOCKS * block) - slot::BLOCKS_BEFORE_RING * block
}

/// Records longer than this are not copied to be written with one call.
const LONG_RECORD: usize = 256 << 10;

/// The number of a record that follows `last` where a crash may have taken some back: none of those had a larger one.
pub fn number_apart(last: Tid) -> Result<Tid> {
    Ok(Tid(last.0.saturating_add(TIDS_APART + random()? % TIDS_APART)))
}

/// What a slot says of the size of home: a scheme that writes in place leaves that to home's header.
pub fn slot_page_count(state: &State, facts: Facts) -> u32 {
    if facts.records { state.page_count } else { slot::PAGE_COUNT_IN_HOME }
}

/// What the mark says of home beside `slot`. Schemes without checkpoints say nothing: they bring home, or exchange it, whatever
/// the slot says.
pub fn told_tid(slot: &Slot, facts: Facts) -> Tid {
    if facts.checkpoints { slot.base_tid } else { Tid(0) }
}

/// What becomes of images streamed behind the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamedImages {
    /// They are home now: give the space back.
    Drop,
    /// A transaction that is not committed has some: leave them.
    Keep,
}

/// A record that is finished and has its way made, ready to be pushed.
pub struct Ready {
    /// Its way.
    pub way: Way,
    /// Its checksum.
    pub crc: u32,
}

/// A log this process writes.
pub struct Log {
    log: LogFile,
    /// The newest slot on the disk.
    slot: Slot,
    /// Where the next record goes.
    tail: LogOffset,
    prev_crc: u32,
    /// The newest number that was given. The group knows the same of what is published; this one is ahead of it while a
    /// transaction goes in place, and is read under the writer's place alone, without the group's lock.
    last_tid: Tid,
    /// What is not on the medium yet.
    group: Arc<Group>,
    /// The first or the last block of a long record, and of the last one what does not fill its block.
    part: Vec<u8>,
    /// Where the next streamed image goes, in bytes of the file.
    stream_tail: u64,
    /// Records share blocks; needs a device that leaves the neighbours of a torn write alone.
    pack: bool,
    /// The slot before the newest may count: it is of this session and has live records of its own, or of one before.
    older_slot: bool,
    /// Page number noted in block 0.
    noted: u32,
    /// The newest slot is written and not flushed: the first flush of a record covers it (rule SlotWithFirstRecord).
    tentative: bool,
    /// This process goes on with a session, perhaps behind a recovery, and has written no slot since: a home of before may fit the
    /// newest slot, or the one before, which is of another session. So the close is flushed (rule SlotWithFirstRecord).
    recovered: bool,
    /// Where the session began, as far as this process knows: no later.
    begins: u64,
    /// As many bytes before that prove that the session before has ended, while the mark of this one may not be on the medium: no record goes
    /// there (rule CloseProven).
    proof_bytes: u64,
    /// The log had its seal when the session began, and has kept its length since, as far as this process knows.
    is_sealed: bool,
    /// The last record is a prepared one: another file's log says that it counts (rule PreparedThenDecided).
    decided_elsewhere: bool,
}

/// A way made for a record.
#[derive(Debug)]
pub struct Way {
    at: LogOffset,
    /// Of a long record that is written already: where its last block is in the file.
    written: Option<u64>,
}

/// A record that is in the log and does not count yet: nothing of the log's state in memory has changed.
#[derive(Debug)]
pub struct WrittenRecord {
    at: LogOffset,
    len: u64,
    crc: u32,
    /// Its bytes in its last block, if it did not fill that one, and where that is in the file.
    tail: Vec<u8>,
    position: u64,
    durable: bool,
}

impl WrittenRecord {
    /// Whether it was flushed.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Where it ends.
    pub fn to(&self) -> LogOffset {
        LogOffset(self.at.0 + self.len)
    }
}

impl Log {
    /// Makes (or wholly rewrites) the log with written zeros and no valid slot. Not flushed: [`Log::start`] does that, with
    /// `all`.
    pub fn create(log: LogFile, ring_bytes: u64, block_bytes: u32) -> Result<LogFile> {
        let what = || format!("cannot create the log {}", log.path.display());
        let total =
            slot::BLOCKS_BEFORE_RING * u64::from(block_bytes) + ring_bytes.next_multiple_of(u64::from(block_bytes));
        log.file.set_len(total).context(what)?;
        write_zeros(&log, 0, total, what)?;
        Ok(log)
    }

    /// Takes a log file into use for writing after `slot`, which becomes durable here with the next
    /// sequence number, before anything else is written (invariant I3). With `all`, so does whatever else of the log is in the
    /// cache alone.
    pub fn start(log: LogFile, mut slot: Slot, pack: bool, all: bool) -> Result<Log> {
        slot.start = LogOffset(slot.start.0.next_multiple_of(u64::from(slot.block_bytes)));
        let begins = slot.start.0;
        let mut started = Log { older_slot: false, tentative: all, begins, ..Log::join(log, slot, pack) };
        started.write_slot()?;
        Ok(started)
    }

    /// The same without a flush: the slot, and whatever else of the log is in the cache alone, becomes durable with the first
    /// record. `slot` is of a session that follows the one before (rule SlotWithFirstRecord).
    pub fn begin(log: LogFile, slot: Slot, pack: bool) -> Result<Log> {
        let begins = slot.start.0;
        let mut begun =
            Log { older_slot: false, tentative: true, recovered: false, begins, ..Log::join(log, slot, pack) };
        begun.put_slot()?;
        if keeps(Case::SlotWithFirstRecord) {
            begun.group.written_beside();
        }
        Ok(begun)
    }

    /// Whether the newest slot is known to be durable.
    pub fn has_begun(&self) -> bool {
        !self.tentative || self.group.durable() > self.slot.base_tid
    }

    /// A log that another process writes, for when its turn comes: nothing is written, and [`Log::resume`] comes first.
    pub fn join(log: LogFile, slot: Slot, pack: bool) -> Log {
        let ring_at = slot.ring_at();
        let block = usize::try_from(slot.block_bytes).unwrap_or(1);
        let position = ring_at + slot.start.0 % slot.ring_bytes;
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
            noted: 0,
            tentative: false,
            recovered: true,
            begins: 0,
            proof_bytes: 0,
            is_sealed: false,
            decided_elsewhere: false,
        }
    }

    /// The mark of home is written and not flushed: the first flush of a record takes it along, if the log has its `seal` still. Until then no
    /// record goes to the `proof_bytes` before the first (rules MarkWithFirstRecord and CloseProven).
    pub fn mark_with_first_record(&mut self, home: Arc<dyn DiskFile>, seal: FileSeal, proof_bytes: u64) {
        self.group.mark_written(home, seal);
        self.is_sealed = true;
        self.proof_bytes = if keeps(Case::ProofKept) { proof_bytes } else { 0 };
    }

    /// Whether the log need not be sealed again.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Whether the mark may not be on the medium yet.
    pub fn has_new_mark(&self) -> bool {
        self.group.is_mark_written()
    }

    /// A record may go everywhere once the mark is on the medium.
    pub fn settle_proof(&mut self) {
        if self.proof_bytes > 0 && !self.has_new_mark() {
            self.proof_bytes = 0;
        }
    }

    /// The head of the next record, which makes `state`.
    pub fn head(&self, state: &State, stream: record::StreamIndex) -> RecordHead {
        RecordHead {
            salt: self.slot.salt,
            tid: state.tid,
            durable_tid: self.group.recorded(),
            prev_crc: self.prev_crc,
            page_count: state.page_count,
            change_counter: state.change_counter,
            stream,
        }
    }

    /// Goes on behind what other processes wrote up to `cursor`, of which all up to `durable` is; `slot` is the newest.
    /// Nothing of this process waits to be written.
    pub fn resume(&mut self, slot: &Slot, cursor: &LogCursor, durable: Tid) -> Result<()> {
        let block = u64::from(slot.block_bytes);
        let in_block = cursor.tail.0 % block;
        let mut tail_block = memory::zeros_of(in_block)?;
        let position = slot.ring_at() + (cursor.tail.0 - in_block) % slot.ring_bytes;
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
        self.last_tid = cursor.last_tid;
        self.group.resume(&tail_block, position, cursor.last_tid, durable.min(cursor.last_tid));
        if durable <= slot.base_tid && keeps(Case::SlotWithFirstRecord) {
            // Another process may have begun the session, whose slot then becomes durable here.
            self.tentative = true;
            self.group.written_beside();
        }
        self.stream_tail = self.ring_end();
        self.check();
        Ok(())
    }

    /// What holds between two calls: the live records are in the ring, and TIDs are between what the slot says of home and its
    /// ceiling (rules RecordChain, OneNumberOneState).
    fn check(&self) {
        let Slot { start, ring_bytes, base_tid, tid_ceiling, .. } = self.slot;
        debug_assert!(start <= self.tail && self.tail.0 - start.0 <= ring_bytes, "{:?} behind {start:?}", self.tail);
        debug_assert!((base_tid..=tid_ceiling).contains(&self.last_tid), "{} of {:?}", self.last_tid, self.slot);
        debug_assert!(self.group.durable() <= self.last_tid, "a transaction without a number is durable");
    }

    /// Behind the last record.
    pub fn cursor(&self) -> LogCursor {
        LogCursor { tail: self.tail, prev_crc: self.prev_crc, last_tid: self.last_tid, first: self.slot.start }
    }

    /// Keeps the images that another process streamed behind the ring, which end at byte `streamed_end`.
    pub fn stream_found(&mut self, streamed_end: u64) {
        self.stream_tail = streamed_end.next_multiple_of(STREAM_UNIT).max(self.ring_end());
    }

    /// The newest slot on the disk.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The file and its path.
    pub fn file(&self) -> &LogFile {
        &self.log
    }

    /// What is not on the medium yet.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// TID of the last record pushed.
    pub fn last_tid(&self) -> Tid {
        self.last_tid
    }

    /// Bytes of live records.
    pub fn live_bytes(&self) -> u64 {
        self.tail.0 - self.slot.start.0
    }

    fn ring_at(&self) -> u64 {
        self.slot.ring_at()
    }

    /// Where the ring ends in the file.
    pub fn ring_end(&self) -> u64 {
        self.ring_at() + self.slot.ring_bytes
    }

    /// Length of the file once the log is closed.
    pub fn closed_bytes(&self) -> u64 {
        self.ring_at() + small_ring_bytes(self.slot.block_bytes).min(self.slot.ring_bytes)
    }

    /// Longest record the ring can take, in bytes.
    pub fn record_bytes_max(&self) -> u64 {
        self.record_bytes_max_of(self.slot.ring_bytes)
    }

    /// The same of a ring of `ring_bytes`.
    pub fn record_bytes_max_of(&self, ring_bytes: u64) -> u64 {
        ring_bytes.saturating_sub(2 * u64::from(self.slot.block_bytes))
    }

    /// Where a record of `len` bytes would begin; `None` if the ring is too full for it.
    fn place(&self, len: u64, own_block: bool) -> Option<LogOffset> {
        self.place_aligned(len, own_block || !self.pack || (self.saves_block(len) && !self.group.is_filling()))
    }

    /// The same; aligned to a block if `aligned`.
    fn place_aligned(&self, len: u64, aligned: bool) -> Option<LogOffset> {
        let block = u64::from(self.slot.block_bytes);
        let mut at = self.tail.0;
        if aligned {
            at = at.next_multiple_of(block);
        }
        if at % self.slot.ring_bytes + len > self.slot.ring_bytes {
            at = at.next_multiple_of(self.slot.ring_bytes);
        }
        // Whole blocks are written, and the block in which live records begin must stay.
        let end = (at + len).next_multiple_of(block);
        (end + self.proof_bytes <= self.slot.start.0 / block * block + self.slot.ring_bytes).then_some(LogOffset(at))
    }

    /// Whether a record of `len` bytes, written alone, is one block instead of two if it leaves the rest of the tail block free.
    fn saves_block(&self, len: u64) -> bool {
        let block = u64::from(self.slot.block_bytes);
        len <= block && self.tail.0 % block + len > block
    }

    /// Whether a record of `len` bytes fits without a checkpoint, wherever it begins.
    pub fn has_room(&self, len: u64, own_block: bool) -> bool {
        self.place_aligned(len, own_block || !self.pack || self.saves_block(len)).is_some()
    }

    /// Takes the memory for a record of `len` bytes: making way for it and pushing it take none.
    pub fn reserve(&mut self, len: usize, own_block: bool) -> Result<()> {
        if len <= LONG_RECORD {
            return self.group.reserve(len, own_block || self.saves_block(len as u64));
        }
        self.part.clear();
        self.part.room(usize::try_from(self.slot.block_bytes).unwrap_or(0))?;
        self.group.reserve(0, false)
    }

    /// Makes way for a finished record: what is pending at the end of the ring is written before the record begins
    /// the next lap (rule RecordChain), and a record too long to be copied is written here, without a flush. On
    /// an error the state of the ring is unknown: the caller poisons the database.
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

    /// Where a record of `len` bytes, for which there is room, will be: for [`Log::write_prepared`].
    pub fn place_of(&self, len: u64, own_block: bool) -> Result<LogOffset> {
        self.place(len, own_block)
            .ok_or_else(|| Error::Misuse(format!("a record of {len} bytes was appended to a log without room for it")))
    }

    /// Writes a finished record, `at` the place that [`Log::place_of`] gave, behind everything that is pushed, and flushes
    /// it if `flush` says so. It becomes one of the log with [`Log::push_prepared`]. A failed write or flush poisons.
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

    /// The prepared record counts: it is one of the log, and the caller publishes `state`, which it makes, under the same
    /// lock.
    pub fn push_prepared(&mut self, written: &WrittenRecord, state: &Arc<State>) {
        debug_assert!(written.at >= self.tail && state.tid > self.last_tid, "rule RecordChain: {written:?}, {state:?}");
        self.group.push_prepared(&written.tail, written.position, state, written.durable);
        self.tail = written.to();
        self.prev_crc = written.crc;
        self.last_tid = state.tid;
        self.decided_elsewhere = true;
        self.settle_proof();
        self.check();
    }

    /// Writes a record from where it is, all but its first and last block, behind the tail block. Leaves the
    /// bytes of its last block in `part`, and returns where that is in the file.
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

    /// Appends the record that way was made for. The caller publishes `state`, which it makes, under the same lock.
    /// It is durable when [`Group::wait`] says so.
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
        self.check();
    }

    /// Writes an image that does not fit in memory behind the ring, over an older one of the same
    /// transaction at `position`, or at the end. Returns its position in the file in bytes.
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

    /// Whether something streamed behind the ring and was not given back.
    pub fn has_streamed(&self) -> bool {
        self.stream_tail > self.ring_end()
    }

    /// Gives back what streamed behind the ring from `position` on (a rollback, or a checkpoint).
    pub fn stream_drop(&mut self, position: u64) -> Result<()> {
        let position = position.max(self.ring_end());
        if self.stream_tail > position {
            self.stream_tail = position;
            self.log
                .file
                .set_len(position)
                .context(|| format!("cannot shorten the log {}", self.log.path.display()))?;
        }
        Ok(())
    }

    /// Whether there is something behind the ring, which [`Log::stream_reset`] cuts off.
    fn is_longer(&self) -> Result<bool> {
        let what = || format!("cannot read the length of {}", self.log.path.display());
        Ok(self.log.file.len().context(what)? > self.ring_end())
    }

    /// Cuts off what an earlier owner streamed behind the ring.
    pub fn stream_reset(&mut self) -> Result<()> {
        let what = || format!("cannot shorten the log {}", self.log.path.display());
        if self.log.file.len().context(what)? > self.ring_end() {
            self.log.file.set_len(self.ring_end()).context(what)?;
        }
        self.stream_tail = self.ring_end();
        Ok(())
    }

    /// Where the next streamed image would go.
    pub fn stream_tail(&self) -> u64 {
        self.stream_tail
    }

    /// After home holds `state`, that of the last record, durable: a new slot says so, and the ring is
    /// empty. `page_bytes` as records from now on have it.
    pub fn checkpointed(&mut self, state: &State, facts: Facts, page_bytes: u32) -> Result<()> {
        debug_assert!(self.group.is_quiet(), "home holds durable states only (invariant I1)");
        debug_assert!(state.tid == self.last_tid, "home holds the newest state: {} of {}", state.tid, self.last_tid);
        self.slot.page_bytes = page_bytes;
        self.begin_at(&self.cursor(), state, facts)
    }

    /// After home holds all pages of `state`, that of the record before `from`, durable: a new slot says so, and the live records
    /// begin at `from`.
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

    /// Begins an empty, durable ring at its first byte, where the longest record fits: a record never crosses
    /// the end of the ring, so elsewhere as little as half of the ring may be of use to one.
    pub fn rewind(&mut self) -> Result<()> {
        debug_assert!(self.live_bytes() == 0 && self.group.is_quiet(), "only an empty ring can be rewound");
        self.tail = LogOffset(self.tail.0.next_multiple_of(self.slot.ring_bytes));
        self.group.move_to(self.ring_at());
        self.slot.start = self.tail;
        self.check();
        self.write_slot()
    }

    /// Whether the live records are where they are in a ring of `ring_bytes`, too: they lie in one lap that begins with one of the
    /// longer ring.
    pub fn fits_longer(&self, ring_bytes: u64) -> bool {
        let begin = self.slot.start.0 - self.slot.start.0 % self.slot.ring_bytes;
        begin.is_multiple_of(ring_bytes) && self.tail.0 - begin <= self.slot.ring_bytes
    }

    /// Makes the ring `ring_bytes` long: an empty one from its first byte on, one that [`Log::fits_longer`]
    /// with its records where they are. The new part is durable before the slot that says so (rule SlotBeforeReuse), and the slot before this one does not
    /// lead to its records: [`Log::settle_slots`] follows, when other processes know this one. Where room is short, the ring stays as it
    /// is: false.
    pub fn grow(&mut self, ring_bytes: u64) -> Result<bool> {
        let is_empty = self.live_bytes() == 0;
        debug_assert!(!self.has_streamed(), "what streams is behind the ring");
        debug_assert!(is_empty || self.fits_longer(ring_bytes), "rule SlotBeforeReuse: records do not move");
        let (from, to) = (self.ring_end(), self.ring_at() + ring_bytes);
        self.is_sealed = false;
        match write_zeros(&self.log, from, to, || self.log.what("cannot lengthen")) {
            Err(e) if e.is_short() => {
                self.log.file.set_len(from).context(|| self.log.what("cannot shorten"))?;
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

    /// A transaction became durable without a record.
    pub fn skip(&mut self, tid: Tid) {
        self.last_tid = tid;
        self.group.skip(tid);
    }

    /// The slot before the newest is live and of a session that is over. It counts for a copy of home from then, while
    /// no record is in the way (rule OneNumberOneState); what is committed without one must not be passed over so.
    pub fn distrust_older_slot(&mut self) {
        self.older_slot = self.slot.in_place;
        self.recovered = true;
    }

    /// The slot before the newest must not count any more, should the newest be damaged: it would replay records over
    /// pages that were written in place and have none, or end before one whose streamed images are gone. Nor for a copy of
    /// home that is older than this session.
    pub fn settle_slots(&mut self) -> Result<()> {
        if std::mem::take(&mut self.older_slot) { self.write_slot() } else { Ok(()) }
    }

    /// Notes the number of a page that is about to be written in place, not flushed: if this process dies while the
    /// flush of that page fails, the page may be in the kernel's cache and not on the disk, and no record tells the
    /// next process to write it again.
    pub fn note_in_place(&mut self, page: PageNo) -> Result<()> {
        if self.noted != page.0 {
            let what = || format!("cannot write to the log {}", self.log.path.display());
            self.log.file.write_at(&page.0.to_le_bytes(), shared::AT_IN_PLACE_PAGE as u64).context(what)?;
            self.noted = page.0;
        }
        Ok(())
    }

    /// The transaction `tid` is published and will go in place: the next one has a larger number.
    pub fn number(&mut self, tid: Tid) {
        self.last_tid = tid;
    }

    /// The transaction `tid` became durable in place, and readers see it: no record has its number.
    pub fn pass(&mut self, tid: Tid) {
        self.last_tid = tid;
        self.group.pass(tid);
    }

    /// Whether the end of this session shows, in what a power cut may leave of [`Log::invalidate`], to a recovery that finds home marked
    /// still (rule CloseProven): its records are all there; or it finds the clean slot, or a tombstone.
    pub fn proves_close(&self) -> bool {
        self.owns_slot() && !self.decided_elsewhere
    }

    /// Whether this process has written the newest slot, and that is known to be durable.
    fn owns_slot(&self) -> bool {
        self.has_begun() && !self.recovered
    }

    /// After the mark is off, which need not be flushed if [`Log::proves_close`]: the log holds nothing, and nothing of what was in it
    /// can be read there (rule NothingLeftBehind). Not flushed, unless a part of the file goes, for the next session looks once
    /// more. What streamed behind the ring stays if `stream` says so. A ring that has grown is small again (rule SlotBeforeReuse).
    /// `system_start`: of the system now, if that is known.
    pub fn invalidate(&mut self, stream: StreamedImages, system_start: Option<u64>) -> Result<()> {
        // The next session begins without a flush: it follows this one, which therefore is durable, and no slot before counts
        // for anybody (rule SlotWithFirstRecord).
        let begun = self.owns_slot();
        self.slot.live = false;
        let small = self.closed_bytes() - self.ring_at();
        let (from, bytes) = (self.begins % small, self.tail.0.saturating_sub(self.begins));
        let is_one_lap = self.slot.zeroed && self.slot.ring_bytes == small && bytes <= small;
        let (from, to) = if is_one_lap { (from, from + bytes) } else { (0, small) };
        let used = (LogOffset(from), LogOffset(to));
        // Records may lead to what goes as long as one of the two slots is that of a session under way.
        let cuts = self.slot.ring_bytes > small || (stream == StreamedImages::Drop && self.is_longer()?);
        let stone = Tombstone { session: self.slot.session, tid: self.last_tid };
        // Behind a recovery nobody knows what a flush that failed left in the cache alone.
        let wiped = match self.slot.zeroed {
            true => self.log.wipe(&self.slot, used, &stone),
            false => self.log.wipe_again(&self.slot, used, &stone),
        };
        // Where that fails (a file system that writes elsewhere is full), the next session knows and tries again.
        self.slot.zeroed = wiped.is_ok();
        (self.slot.prev_crc, self.slot.start) = (u32::try_from(from).unwrap_or(0), used.1);
        self.slot.ring_bytes = small;
        self.slot.salt = system_start.unwrap_or(0);
        // Nothing is in flight any more, so the next session may go on from here.
        self.slot.tid_ceiling = self.last_tid;
        self.slot.base_tid = self.last_tid;
        self.put_slot()?;
        if cuts && keeps(Case::LogGivenBack) {
            self.put_slot()?;
        }
        if !begun || (cuts && keeps(Case::LogGivenBack)) {
            self.log.flush()?;
        }
        match stream {
            StreamedImages::Drop if cuts => self.stream_reset()?,
            StreamedImages::Drop => self.stream_tail = self.ring_end(),
            StreamedImages::Keep => {}
        }
        Ok(())
    }

    /// Writes the newest slot once more, durable, over the one before, which needs more than what will be left of the log
    /// (rule SlotBeforeReuse).
    pub fn repeat_slot(&mut self) -> Result<()> {
        self.older_slot = false;
        self.write_slot()
    }

    /// What is behind the ring goes: what an earlier owner streamed, and the rest of a ring that was `ring_bytes` long, once no
    /// slot leads there (rule SlotBeforeReuse).
    pub fn give_rest_back(&mut self, ring_bytes: u64) -> Result<()> {
        let is_longer = self.is_longer()?;
        if ring_bytes > self.slot.ring_bytes || is_longer {
            self.repeat_slot()?;
        }
        if is_longer { self.stream_reset() } else { Ok(()) }
    }

    /// Whether the next transaction would pass a ceiling of the slot.
    pub fn at_ceiling(&self, change_counter: u32) -> bool {
        self.last_tid.next() >= self.slot.tid_ceiling
            || self.slot.counter_ceiling.wrapping_sub(change_counter) <= 2
            || self.slot.counter_ceiling.wrapping_sub(change_counter) > COUNTER_STEP
    }

    fn slot_position(&self) -> u64 {
        self.slot.position()
    }

    /// Writes the next slot, durable, and with it whatever else of the log was not since the session began.
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

    /// Writes the next slot, not flushed.
    fn put_slot(&mut self) -> Result<()> {
        let bytes = self.next_slot();
        self.log.file.write_at(&bytes, self.slot_position()).context(|| self.log.what("cannot write to"))
    }

    fn next_slot(&mut self) -> [u8; slot::BYTES] {
        self.slot.sequence += 1;
        self.slot.encode()
    }
}

/// Writes zeros over the bytes of the log from `from` to `to`. An unwritten ring would make each commit a commit of the file
/// system's journal.
fn write_zeros(log: &LogFile, from: u64, to: u64, what: impl Fn() -> String + Copy) -> Result<()> {
    log.file.reserve(to).context(what)?;
    let zeros = memory::zeros(usize::try_from(to - from).unwrap_or(usize::MAX).min(256 << 10))?;
    let mut at = from;
    while at < to {
        // One call gets one piece of the kernel's cache, and a store to the memory mapped at the beginning
        // dirties a piece whole: it must not reach into the blocks that commits write.
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
    use crate::log::record::{Encoder, StreamIndex as RecordStream};

    const RING: u64 = 1 << 20;

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
            zeroed: false,
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

    /// Appends a record of `pages` fresh pages; returns its length.
    fn append(log: &mut Log, pages: u32, durability: Durability) -> u64 {
        let len = push(log, pages, durability);
        log.group().wait(log.last_tid(), durability, &Nobody).unwrap();
        len
    }

    /// The same without waiting for its write.
    fn push(log: &mut Log, pages: u32, durability: Durability) -> u64 {
        let mut e = Encoder::default();
        e.clear();
        for page in 1..=pages {
            e.add_delta(PageNo(page), None, &[page as u8 | 1; 512]).unwrap();
        }
        let made = State { page_count: pages, change_counter: 1, ..State::empty(log.last_tid().next()) };
        let head = log.head(&made, RecordStream::default());
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

    /// Else each commit in the first 256 KiB or more of the log writes all of them, on Linux with large folios.
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
        // One page, then more than is copied for one write, so that every edge falls inside a block.
        for pages in [1, 600, 3, 700, 2] {
            let len = append(&mut log, pages, Durability::Flushed);
            assert_eq!(len > LONG_RECORD as u64, pages > 500);
        }
        let end = scan(&log, log.slot());
        assert_eq!((end.records, end.last_tid, end.rot), (5, Tid(15), None));
        assert_eq!(end.tail, LogOffset(log.live_bytes()));
    }

    /// Should the newest slot be damaged, the one before leads to the same end (rule SlotBeforeReuse), also where its
    /// first record left the rest of a lap free and the last one lies there.
    #[test]
    fn the_slot_before_leads_to_what_lies_where_its_first_record_did_not_fit() {
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

    /// The blocks at the end of a lap leave the buffer before the first of the next lap are in it (rule RecordChain).
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

    /// One that the tail block has no room for begins the next; those that wait for one write share blocks.
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
