//! The log file: creating it, its slots, appending records to the ring, streaming images behind the
//! ring, and scanning after a crash.
//!
//! The tail block is kept in memory and rewritten until it is full, so a commit is one write of whole
//! blocks that overwrites preallocated, written space. A record never crosses the end of the ring: it
//! begins at the next lap instead.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::{Peek, Record};
use super::slot::Slot;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{Error, IoContext, Result};
use crate::home::State;
use crate::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, STREAM_UNIT, record as at, slot};
use crate::options::Scheme;
use crate::types::{LogOffset, Tid};

/// How far TIDs may run ahead of the ceiling a slot announced.
pub const TID_STEP: u64 = 1 << 32;
/// How far change counters may run ahead of the ceiling a slot announced.
pub const COUNTER_STEP: u32 = 1 << 16;

/// Records longer than this are not copied to be written with one call.
const LONG_RECORD: usize = 256 << 10;

/// The path of the log of the database at `home`.
pub fn log_path(home: &Path) -> PathBuf {
    let mut name = home.as_os_str().to_owned();
    name.push(crate::layout::LOG_SUFFIX);
    PathBuf::from(name)
}

/// A log file opened for reading its slots: nothing in it is trusted yet.
pub struct LogFile {
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// Its path, for messages.
    pub path: PathBuf,
}

/// Where the valid records end, and whether that is an honest end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    /// Position behind the last valid record.
    pub tail: LogOffset,
    /// crc32c of the last valid record (or what the slot says).
    pub prev_crc: u32,
    /// TID of the last valid record (or what the slot says).
    pub last_tid: Tid,
    /// Number of valid records.
    pub records: u64,
    /// A record that was once durable is broken: the TID that is missing, and a later one that proves it.
    pub rot: Option<(Tid, Tid)>,
}

impl ScanEnd {
    /// Whether there is no record, whole or damaged.
    pub fn is_empty(&self) -> bool {
        self.records == 0 && self.rot.is_none()
    }
}

impl LogFile {
    /// Opens the log at `path`; `None` if there is none.
    pub fn open(disk: &dyn Disk, path: &Path, mode: OpenMode) -> Result<Option<LogFile>> {
        match disk.open(path, mode) {
            Ok(file) => Ok(Some(LogFile { file, path: path.to_owned() })),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(Error::CantOpen(format!("cannot open the log {}: {e}", path.display())))
            }
            Err(e) => Err(Error::io(format!("cannot open the log {}", path.display()), e)),
        }
    }

    /// The valid slots, newest first.
    pub fn slots(&self) -> Result<Vec<Slot>> {
        let file_bytes = self.file.len().context(|| self.what("cannot read the length of"))?;
        let mut found: Vec<Slot> = Vec::new();
        let mut block = BLOCK_BYTES_MIN;
        while block <= BLOCK_BYTES_MAX {
            for n in 1..=2u64 {
                let mut b = [0; slot::BYTES];
                let read = self.file.read_at(&mut b, n * u64::from(block)).context(|| self.what("cannot read"))?;
                let slot = Slot::decode(b.get(..read).unwrap_or_default(), file_bytes);
                found.extend(slot.filter(|s| s.block_bytes == block));
            }
            block *= 2;
        }
        found.sort_by_key(|s| std::cmp::Reverse(s.sequence));
        Ok(found)
    }

    /// Walks the live records below `slot` in order, verified, calling `visit` with each.
    pub fn scan(&self, slot: &Slot, mut visit: impl FnMut(&Record<'_>) -> Result<()>) -> Result<ScanEnd> {
        let ring_at = 3 * u64::from(slot.block_bytes);
        let mut end =
            ScanEnd { tail: slot.start, prev_crc: slot.prev_crc, last_tid: slot.base_tid, records: 0, rot: None };
        let mut buf = Vec::new();
        'records: loop {
            for at in next_places(slot, end.tail) {
                if at.0.saturating_sub(slot.start.0) >= slot.ring_bytes {
                    continue;
                }
                if self.read_record(slot, ring_at, at, end.last_tid, &mut buf)?
                    && let Some(record) = Record::decode(&buf, slot.page_bytes)
                    && record.head.salt == slot.salt
                    && record.head.tid == end.last_tid.next()
                    && record.head.prev_crc == end.prev_crc
                    && self.stream_is_whole(&record, slot)?
                {
                    visit(&record)?;
                    end.tail = LogOffset(at.0 + buf.len() as u64);
                    end.prev_crc = record.crc;
                    end.last_tid = record.head.tid;
                    end.records += 1;
                    continue 'records;
                }
            }
            break;
        }
        end.rot = self.find_rot(slot, ring_at, end.last_tid.next())?;
        Ok(end)
    }

    /// Reads the bytes of the record that might be at `at` and be newer than `newer_than` into `buf`; false
    /// if none can be.
    fn read_record(
        &self,
        slot: &Slot,
        ring_at: u64,
        at: LogOffset,
        newer_than: Tid,
        buf: &mut Vec<u8>,
    ) -> Result<bool> {
        let in_ring = at.0 % slot.ring_bytes;
        let mut head = [0; at::HEADER_BYTES];
        let read = self.file.read_at(&mut head, ring_at + in_ring).context(|| self.what("cannot read"))?;
        let Some(peek) = Peek::at(head.get(..read).unwrap_or_default()) else { return Ok(false) };
        if peek.salt != slot.salt || peek.tid <= newer_than || in_ring + u64::from(peek.len) > slot.ring_bytes {
            return Ok(false);
        }
        buf.clear();
        buf.resize(usize::try_from(peek.len).unwrap_or(0), 0);
        let read = self.file.read_at(buf, ring_at + in_ring).context(|| self.what("cannot read"))?;
        Ok(read == buf.len())
    }

    /// Whether every image that streamed out before the commit of `record` is on the disk.
    fn stream_is_whole(&self, record: &Record<'_>, slot: &Slot) -> Result<bool> {
        let mut image = vec![0; usize::try_from(slot.page_bytes).unwrap_or(0)];
        let mut whole = true;
        let index_whole = self.for_each_streamed(record, |_, position, crc| {
            let read = self.file.read_at(&mut image, position).context(|| self.what("cannot read"))?;
            whole &= read == image.len() && crc32c::crc32c(&image) == crc;
            Ok(())
        })?;
        Ok(index_whole && whole)
    }

    /// Calls `visit` with page number, position in bytes and crc32c of each streamed image of
    /// `record`; false if the index is broken. Memory stays bounded whatever the record claims.
    pub fn for_each_streamed(
        &self,
        record: &Record<'_>,
        mut visit: impl FnMut(u32, u64, u32) -> Result<()>,
    ) -> Result<bool> {
        const ITEMS: u32 = 4096;
        let stream = record.head.stream;
        let mut crc = 0;
        for pass in 0..2 {
            let mut left = stream.count;
            let mut position = u64::from(stream.index) * STREAM_UNIT;
            while left > 0 {
                let items = left.min(ITEMS);
                let mut b = vec![0; items as usize * at::STREAM_ITEM_BYTES];
                if self.file.read_at(&mut b, position).context(|| self.what("cannot read"))? != b.len() {
                    return Ok(false);
                }
                if pass == 0 {
                    crc = crc32c::crc32c_append(crc, &b);
                } else {
                    for item in b.chunks_exact(at::STREAM_ITEM_BYTES) {
                        let field = |i| crate::layout::le_u32(item, i).unwrap_or(0);
                        visit(field(0), u64::from(field(4)) * STREAM_UNIT, field(8))?;
                    }
                }
                position += b.len() as u64;
                left -= items;
            }
            if stream.count > 0 && crc != stream.crc {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Searches the ring for a valid record that says TID `missing` was durable: then its absence is
    /// damage and not the end of the log.
    fn find_rot(&self, slot: &Slot, ring_at: u64, missing: Tid) -> Result<Option<(Tid, Tid)>> {
        const WINDOW: usize = 256 << 10;
        let salt = slot.salt.to_le_bytes();
        let mut window = vec![0; WINDOW];
        let mut buf = Vec::new();
        // Records do not overlap, so what might be one adds up to the ring, and a bit for data that looks like it.
        let mut left = 4 * slot.ring_bytes;
        let mut from = 0u64;
        while from < slot.ring_bytes {
            let read = self.file.read_at(&mut window, ring_at + from).context(|| self.what("cannot read"))?;
            let bytes = window.get(..read).unwrap_or_default();
            for (n, word) in bytes.chunks_exact(at::ALIGN).enumerate() {
                if word != salt {
                    continue;
                }
                let place = from + (n * at::ALIGN) as u64;
                if place >= slot.ring_bytes || !self.read_record(slot, ring_at, LogOffset(place), missing, &mut buf)? {
                    continue;
                }
                left = left.checked_sub(buf.len() as u64).ok_or_else(|| {
                    Error::Corrupt(format!("the log {} is damaged: its records overlap", self.path.display()))
                })?;
                if let Some(record) = Record::decode(&buf, slot.page_bytes)
                    && record.head.durable_tid >= missing
                {
                    return Ok(Some((missing, record.head.tid)));
                }
            }
            from += WINDOW as u64;
        }
        Ok(None)
    }

    /// Writes the live bytes of the ring, from the slot's start to `tail`, and everything behind the
    /// ring once more, and flushes: what a failed flush left in the cache alone becomes durable.
    pub fn rewrite_live(&self, slot: &Slot, tail: LogOffset) -> Result<()> {
        let block = u64::from(slot.block_bytes);
        let ring_at = 3 * block;
        let mut at = slot.start.0 / block * block;
        while at < tail.0 {
            let in_ring = at % slot.ring_bytes;
            let n = (tail.0 - at).next_multiple_of(block).min(slot.ring_bytes - in_ring);
            self.rewrite(ring_at + in_ring, n)?;
            at += n;
        }
        let file_bytes = self.file.len().context(|| self.what("cannot read the length of"))?;
        let ring_end = ring_at + slot.ring_bytes;
        self.rewrite(ring_end, file_bytes.saturating_sub(ring_end))?;
        self.sync()
    }

    /// Flushes. Any error is a failed flush, also one that says the disk is full.
    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(|source| Error::Io { what: self.what("cannot flush"), source })
    }

    fn rewrite(&self, from: u64, len: u64) -> Result<()> {
        let mut buf = vec![0; 256 << 10];
        let mut done = 0;
        while done < len {
            let n = usize::try_from(len - done).unwrap_or(usize::MAX).min(buf.len());
            let part = buf.get_mut(..n).unwrap_or_default();
            let read = self.file.read_at(part, from + done).context(|| self.what("cannot read"))?;
            if read == 0 {
                break;
            }
            let part = buf.get(..read).unwrap_or_default();
            self.file.write_at(part, from + done).context(|| self.what("cannot write to"))?;
            done += read as u64;
        }
        Ok(())
    }

    fn what(&self, verb: &str) -> String {
        format!("{verb} the log {}", self.path.display())
    }
}

/// Where the record behind `tail` may begin: there, in the next block (if records have blocks of their own), or
/// with the next lap.
pub fn next_places(slot: &Slot, tail: LogOffset) -> [LogOffset; 3] {
    [1, u64::from(slot.block_bytes), slot.ring_bytes].map(|unit| LogOffset(tail.0.next_multiple_of(unit)))
}

/// What a slot says of the size of home: a scheme that writes in place leaves that to home's header.
pub fn slot_page_count(state: &State, scheme: Scheme) -> u32 {
    match scheme {
        Scheme::Log => state.page_count,
        Scheme::Off => slot::PAGE_COUNT_IN_HOME,
    }
}

/// A log this process writes.
pub struct Log {
    log: LogFile,
    /// The newest slot on the disk.
    slot: Slot,
    /// Where the next record goes.
    tail: LogOffset,
    prev_crc: u32,
    last_tid: Tid,
    /// Records up to here are durable.
    durable: LogOffset,
    durable_tid: Tid,
    /// The bytes of the tail block in front of `tail`.
    tail_block: Vec<u8>,
    /// Where the next streamed image goes, in bytes of the file.
    stream_tail: u64,
    /// Records share blocks; needs a device that leaves the neighbours of a torn write alone.
    pack: bool,
    /// Whether a flush happens at all (`synchronous`): images streamed since the last one.
    stream_dirty: bool,
}

/// How durable an append must be when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the medium.
    Flushed,
    /// With the operating system; a later flush makes it durable, in order.
    Written,
}

impl Log {
    /// Creates (or wholly rewrites) the log at `path` with written zeros, durable with its name, and
    /// no valid slot. An unwritten ring would make each commit a commit of the file system's journal.
    pub fn create(disk: &dyn Disk, path: &Path, ring_bytes: u64, block_bytes: u32) -> Result<LogFile> {
        let what = || format!("cannot create the log {}", path.display());
        let file = disk.open(path, OpenMode::Create).context(what)?;
        let total = 3 * u64::from(block_bytes) + ring_bytes.next_multiple_of(u64::from(block_bytes));
        file.set_len(total).context(what)?;
        file.reserve(total).context(what)?;
        let zeros = vec![0; 256 << 10];
        let mut done = 0;
        while done < total {
            let n = (total - done).min(zeros.len() as u64);
            let part = zeros.get(..usize::try_from(n).unwrap_or(0)).unwrap_or_default();
            file.write_at(part, done).context(what)?;
            done += n;
        }
        file.sync().context(what)?;
        disk.sync_dir_of(path).context(what)?;
        Ok(LogFile { file, path: path.to_owned() })
    }

    /// Takes a log file into use for writing after `slot`, which becomes durable here with the next
    /// sequence number, before anything else is written (invariant I3).
    pub fn start(log: LogFile, mut slot: Slot, pack: bool) -> Result<Log> {
        slot.start = LogOffset(slot.start.0.next_multiple_of(u64::from(slot.block_bytes)));
        let mut started = Log {
            tail: slot.start,
            prev_crc: slot.prev_crc,
            last_tid: slot.base_tid,
            durable: slot.start,
            durable_tid: slot.base_tid,
            tail_block: Vec::new(),
            stream_tail: 3 * u64::from(slot.block_bytes) + slot.ring_bytes,
            pack,
            stream_dirty: false,
            log,
            slot,
        };
        started.write_slot()?;
        Ok(started)
    }

    /// The newest slot on the disk.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The file and its path.
    pub fn file(&self) -> &LogFile {
        &self.log
    }

    /// TID of the last record appended.
    pub fn last_tid(&self) -> Tid {
        self.last_tid
    }

    /// Newest TID known to be durable.
    pub fn durable_tid(&self) -> Tid {
        self.durable_tid
    }

    /// crc32c the next record must chain to.
    pub fn prev_crc(&self) -> u32 {
        self.prev_crc
    }

    /// Bytes of live records.
    pub fn live_bytes(&self) -> u64 {
        self.tail.0 - self.slot.start.0
    }

    /// Bytes of streamed images behind the ring.
    pub fn stream_bytes(&self) -> u64 {
        self.stream_tail - self.ring_end()
    }

    fn ring_at(&self) -> u64 {
        3 * u64::from(self.slot.block_bytes)
    }

    fn ring_end(&self) -> u64 {
        self.ring_at() + self.slot.ring_bytes
    }

    /// Longest record the ring can take, in bytes.
    pub fn record_bytes_max(&self) -> u64 {
        self.slot.ring_bytes - 2 * u64::from(self.slot.block_bytes)
    }

    /// Where a record of `len` bytes would begin; `None` if the ring is too full for it.
    /// Aligned to a block if `own_block`.
    fn place(&self, len: u64, own_block: bool) -> Option<LogOffset> {
        let block = u64::from(self.slot.block_bytes);
        let mut at = self.tail.0;
        if own_block || !self.pack {
            at = at.next_multiple_of(block);
        }
        if at % self.slot.ring_bytes + len > self.slot.ring_bytes {
            at = at.next_multiple_of(self.slot.ring_bytes);
        }
        // Whole blocks are written, and the block in which live records begin must stay.
        let end = (at + len).next_multiple_of(block);
        (end <= self.slot.start.0 / block * block + self.slot.ring_bytes).then_some(LogOffset(at))
    }

    /// Whether a record of `len` bytes fits without a checkpoint.
    pub fn has_room(&self, len: u64, own_block: bool) -> bool {
        self.place(len, own_block).is_some()
    }

    /// Appends a finished record. One write, which is also the flush if nothing older is unflushed.
    /// On an error the state of the ring is unknown: the caller poisons the database.
    pub fn append(&mut self, record: &[u8], crc: u32, own_block: bool, durability: Durability) -> Result<()> {
        let len = record.len() as u64;
        let at = self.place(len, own_block).ok_or_else(|| {
            Error::Misuse(format!("a record of {len} bytes was appended to a log without room for it"))
        })?;
        let block = u64::from(self.slot.block_bytes);
        let in_block = usize::try_from(at.0 % block).unwrap_or(0);
        if at != self.tail {
            self.tail_block.clear();
        }
        self.tail_block.resize(in_block, 0);
        let position = self.ring_at() + (at.0 - in_block as u64) % self.slot.ring_bytes;
        let what = || format!("cannot write to the log {}", self.log.path.display());
        let file = &self.log.file;
        let block = usize::try_from(block).unwrap_or(1);
        // A long record is written from where it is, all but its first and last block.
        let head = if record.len() > LONG_RECORD { (block - in_block) % block } else { record.len() };
        let middle = (record.len() - head) / block * block;
        let (first, rest) = record.split_at_checked(head).unwrap_or((record, &[]));
        let (whole, last) = rest.split_at_checked(middle).unwrap_or((rest, &[]));
        self.tail_block.extend_from_slice(first);
        let mut used = self.tail_block.len();
        self.tail_block.resize(used.next_multiple_of(block), 0);
        let flushed = durability == Durability::Flushed;
        if flushed && self.durable == self.tail && !self.stream_dirty && rest.is_empty() {
            file.write_durable_at(&self.tail_block, position).context(what)?;
        } else {
            file.write_at(&self.tail_block, position).context(what)?;
            if !rest.is_empty() {
                let position = position + self.tail_block.len() as u64;
                file.write_at(whole, position).context(what)?;
                self.tail_block.clear();
                self.tail_block.extend_from_slice(last);
                used = last.len();
                self.tail_block.resize(used.next_multiple_of(block), 0);
                file.write_at(&self.tail_block, position + whole.len() as u64).context(what)?;
            }
            if flushed {
                self.log.sync()?;
                self.stream_dirty = false;
            }
        }
        let keep_from = used - used % block;
        self.tail_block.truncate(used);
        self.tail_block.drain(..keep_from);
        self.tail = LogOffset(at.0 + len);
        self.prev_crc = crc;
        self.last_tid = self.last_tid.next();
        if durability == Durability::Flushed {
            self.durable = self.tail;
            self.durable_tid = self.last_tid;
        }
        Ok(())
    }

    /// Makes every record appended so far durable. Does nothing if all are.
    pub fn flush(&mut self) -> Result<()> {
        if self.durable != self.tail || self.stream_dirty {
            self.log.sync()?;
            self.durable = self.tail;
            self.durable_tid = self.last_tid;
            self.stream_dirty = false;
        }
        Ok(())
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
        self.stream_dirty = true;
        self.stream_tail = self.stream_tail.max((position + image.len() as u64).next_multiple_of(STREAM_UNIT));
        Ok(position)
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
    pub fn checkpointed(&mut self, state: &State, scheme: Scheme, page_bytes: u32) -> Result<()> {
        self.slot.start = self.tail;
        self.slot.base_tid = self.last_tid;
        self.slot.prev_crc = self.prev_crc;
        self.slot.page_count = slot_page_count(state, scheme);
        self.slot.page_bytes = page_bytes;
        let change_counter = state.change_counter;
        self.slot.change_counter = change_counter;
        self.slot.tid_ceiling = Tid(self.last_tid.0.saturating_add(TID_STEP));
        self.slot.counter_ceiling = change_counter.wrapping_add(COUNTER_STEP);
        self.write_slot()
    }

    /// Begins an empty, durable ring at its first byte, where the longest record fits: a record never crosses
    /// the end of the ring, so elsewhere as little as half of the ring may be of use to one.
    pub fn rewind(&mut self) -> Result<()> {
        debug_assert!(self.live_bytes() == 0 && self.durable == self.tail, "only an empty ring can be rewound");
        self.tail = LogOffset(self.tail.0.next_multiple_of(self.slot.ring_bytes));
        self.tail_block.clear();
        self.durable = self.tail;
        self.slot.start = self.tail;
        self.write_slot()
    }

    /// A transaction became durable without a record.
    pub fn skip(&mut self, tid: Tid) {
        self.last_tid = tid;
        self.durable_tid = tid;
    }

    /// After the mark is off: the log holds nothing. Need not be flushed, for an unmarked home never
    /// reads a log without records.
    pub fn invalidate(&mut self) -> Result<()> {
        self.slot.live = false;
        // Nothing is in flight any more, so the next session may go on from here.
        self.slot.tid_ceiling = self.last_tid;
        self.slot.base_tid = self.last_tid;
        self.slot.sequence += 1;
        let position = self.slot_position();
        self.log
            .file
            .write_at(&self.slot.encode(), position)
            .context(|| format!("cannot write to the log {}", self.log.path.display()))
    }

    /// Whether the next transaction would pass a ceiling of the slot.
    pub fn at_ceiling(&self, change_counter: u32) -> bool {
        self.last_tid.next() >= self.slot.tid_ceiling
            || self.slot.counter_ceiling.wrapping_sub(change_counter) <= 2
            || self.slot.counter_ceiling.wrapping_sub(change_counter) > COUNTER_STEP
    }

    fn slot_position(&self) -> u64 {
        (1 + self.slot.sequence % 2) * u64::from(self.slot.block_bytes)
    }

    fn write_slot(&mut self) -> Result<()> {
        self.slot.sequence += 1;
        let position = self.slot_position();
        let what = || format!("cannot write to the log {}", self.log.path.display());
        self.log.file.write_durable_at(&self.slot.encode(), position).context(what)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::log::record::{Encoder, Head, Stream};
    use crate::types::PageNo;

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
        }
    }

    fn log(disk: &SimDisk) -> Log {
        Log::start(Log::create(disk, Path::new("/db-onewrite"), RING, 4096).unwrap(), slot(), true).unwrap()
    }

    /// Appends a record of `pages` fresh pages; returns its length.
    fn append(log: &mut Log, pages: u32, durability: Durability) -> u64 {
        let mut e = Encoder::default();
        e.clear();
        for page in 1..=pages {
            e.add_delta(PageNo(page), None, &[page as u8 | 1; 512]);
        }
        let head = Head {
            salt: 2,
            tid: log.last_tid().next(),
            durable_tid: log.durable_tid(),
            prev_crc: log.prev_crc(),
            page_count: pages,
            change_counter: 1,
            stream: Stream::default(),
        };
        let (record, crc) = e.finish(&head);
        assert!(log.has_room(record.len() as u64, false));
        log.append(record, crc, false, durability).unwrap();
        record.len() as u64
    }

    fn scan(log: &Log, slot: &Slot) -> ScanEnd {
        log.file().scan(slot, |_| Ok(())).unwrap()
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
