//! The log file: its slots, and reading, rewriting and wiping its records.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::memmem;

use super::record::{Decider, Peek, Record, RecordHead};
use super::slot::Slot;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home::HEADER_BYTES;
use crate::base::layout::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, LOG_SUFFIX, STREAM_UNIT, le_u32, le_u64, record as at, shared, slot,
};
use crate::base::memory::{self, Room};
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, Tid};
use crate::disk::beside;
use crate::disk::shared::BYTES as WORDS_BYTES;
use crate::disk::{Disk, DiskFile, FileId, FileSeal, NamesStamp, OpenMode, random, read_part, system};
use crate::sqlite_format::home::mark;

/// The log of the database at `home`.
pub fn log_path(home: &Path) -> PathBuf {
    beside::path(home, LOG_SUFFIX)
}

/// Another database needs the log's name.
pub fn aside_path(log: &Path, session: u64) -> PathBuf {
    beside::path(&base(log), &format!("{LOG_SUFFIX}-{session:016x}"))
}

pub fn is_aside(log: &Path) -> bool {
    parts(log).is_some_and(|(_, session)| session)
}

pub fn base(log: &Path) -> PathBuf {
    parts(log).map_or_else(|| log.to_owned(), |(name, _)| log.with_file_name(name))
}

fn parts(log: &Path) -> Option<(&OsStr, bool)> {
    let name = system::bytes_of(log.file_name()?);
    let suffix = LOG_SUFFIX.as_bytes();
    if let Some(base) = name.strip_suffix(suffix) {
        return Some((system::name_of(base), false));
    }
    // A hyphen and 16 hexadecimal digits.
    let (name, session) = name.split_last_chunk::<17>()?;
    let is_session =
        session.split_first().is_some_and(|(hyphen, id)| *hyphen == b'-' && id.iter().all(u8::is_ascii_hexdigit));
    Some((system::name_of(name.strip_suffix(suffix).filter(|_| is_session)?), true))
}

/// By name or beside it (rule LogFoundBySession). If none or no single one fits, the path where it
/// should be.
pub fn path_of_session(disk: &dyn Disk, path: &Path, home: FileId, session: u64) -> PathBuf {
    // An unreadable file is skipped: its open tells why.
    let look = |path: &Path| {
        let log = LogFile::open(disk, path, OpenMode::ReadOnly).ok()??;
        Some((log.slots().ok()?, log.noted_home().ok()?))
    };
    let named = log_path(path);
    if look(&named).is_some_and(|(slots, _)| slots.iter().any(|slot| slot.session == session)) {
        return named;
    }
    let beside = disk.names_beside(path).unwrap_or_default();
    // Inodes are reused: only a file marked with the session is the noted one.
    let is_marked = |path: &PathBuf| {
        let mut first = [0; HEADER_BYTES];
        let read = disk.open(path, OpenMode::ReadOnly).and_then(|file| file.read_at(&mut first, 0));
        read.is_ok() && mark(&first).is_some_and(|mark| mark.session == session)
    };
    let leads_to =
        |path: &PathBuf, file| matches!(disk.identify(path), Ok(Some(id)) if id.ino == file) && is_marked(path);
    let is_ours = |log: &PathBuf| {
        let Some((_, aside)) = parts(log).filter(|_| *log != named) else { return false };
        let Some((slots, noted)) = look(log) else { return false };
        // After a crash in recovery the older slot counts, but in another database's log it is that
        // one's.
        let fits = slots.iter().take(if aside { 2 } else { 1 }).any(|slot| slot.session == session);
        fits && match noted {
            Some(file) if file == home.ino => true,
            // The noted file still has a name: this one is a copy. Not for a log set aside, whose
            // name leads to another file.
            Some(file) if beside.iter().any(|path| *path != base(log) && leads_to(path, file)) => false,
            _ => aside || matches!(disk.exists(&base(log)), Ok(false)),
        }
    };
    let mut found = beside.iter().filter(|log| is_ours(log));
    match (found.next(), found.next()) {
        (Some(log), None) => log.clone(),
        _ => named,
    }
}

/// An open log file, its content not trusted.
#[derive(Clone)]
pub struct LogFile {
    /// The open file.
    pub file: Arc<dyn DiskFile>,
    /// Its path.
    pub path: PathBuf,
}

/// So many records are decoded before they are applied.
const BATCH: u64 = 64;

/// Noted instead of a seal: the file system makes none.
const NO_SEAL: [u64; 2] = [u64::MAX; 2];

#[derive(Default)]
pub struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn fill(&mut self, log: &LogFile, at: u64, len: usize) -> Result<()> {
        self.at = at;
        self.bytes.truncate(len);
        self.bytes.room(len - self.bytes.len())?;
        self.bytes.resize(len, 0);
        let read = log.file.read_at(&mut self.bytes, at).context(|| log.what("cannot read"))?;
        self.bytes.truncate(read);
        Ok(())
    }

    fn part(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = offset.checked_sub(self.at).and_then(|from| usize::try_from(from).ok())?;
        self.bytes.get(from..from.checked_add(len)?)
    }

    /// Whether a record that follows `cursor` in its own block begins and has its head there.
    pub(crate) fn reaches(&self, slot: &Slot, cursor: &LogCursor) -> bool {
        let next = cursor.tail.0.next_multiple_of(slot.block_bytes.into()) % slot.ring_bytes;
        let from = slot.ring_at().saturating_add(next);
        let end = self.at.saturating_add(self.bytes.len() as u64);
        self.at <= from && from.saturating_add(at::HEADER_BYTES as u64) <= end
    }

    /// The records here that are known to be written and follow `cursor` one behind the other, up
    /// to `last`, each with its end. One that streamed images ends them.
    pub(crate) fn written(&self, slot: &Slot, cursor: &LogCursor, last: Tid) -> Result<Vec<(LogCursor, Record<'_>)>> {
        let count = last.0.saturating_sub(cursor.last_tid.0).min(BATCH) as usize;
        let mut all: Vec<(LogCursor, Record<'_>)> = memory::list(count)?;
        let mut end = *cursor;
        while all.len() < count && end.last_tid < last {
            let found = places_in_lap(slot, &end).find_map(|(at, first)| {
                let len = record_bytes(slot, at, end.last_tid, self.part(place(slot, at), at::HEADER_BYTES)?)?;
                found_at(slot, &end, (at, first), self.part(place(slot, at), len)?)
            });
            let Some(next) = found.filter(|(_, record)| record.stream.count == 0) else { break };
            end = next.0;
            all.push(next);
        }
        Ok(all)
    }

    /// The window may have it. Fewer bytes come at the file's end.
    fn read<'a>(&'a self, log: &LogFile, buf: &'a mut Vec<u8>, offset: u64, len: usize) -> Result<&'a [u8]> {
        if let Some(bytes) = self.part(offset, len) {
            return Ok(bytes);
        }
        buf.clear();
        buf.room(len)?;
        buf.resize(len, 0);
        let part = read_part(&*log.file, buf, offset).context(|| log.what("cannot read"))?;
        Ok(part)
    }
}

/// Where the valid records end, and whether by damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanEnd {
    /// Position behind the last record.
    pub tail: LogOffset,
    /// Its crc32c (or the slot's).
    pub prev_crc: u32,
    /// Its TID (or the slot's).
    pub last_tid: Tid,
    /// Number of records.
    pub records: u64,
    /// A broken, once durable record's TID, and a later one that proves it.
    pub rot: Option<(Tid, Tid)>,
    /// Later records call all up to here durable.
    pub told_durable: LogOffset,
}

/// A position between records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCursor {
    /// Behind the last record.
    pub tail: LogOffset,
    pub prev_crc: u32,
    pub last_tid: Tid,
    /// Earliest start of the first record; live records end within a ring from there.
    pub first: LogOffset,
}

impl LogCursor {
    pub fn at(slot: &Slot) -> LogCursor {
        LogCursor { tail: slot.start, prev_crc: slot.prev_crc, last_tid: slot.base_tid, first: slot.start }
    }
}

/// Each next read is twice as long.
const SCAN_BYTES_FIRST: u64 = 8 << 10;
const SCAN_BYTES: u64 = 64 << 10;

/// Records not yet called durable.
#[derive(Default)]
struct Untold(VecDeque<(Tid, LogOffset)>);

impl Untold {
    /// Few records wait for a flush at once.
    const MOST: usize = 128;

    fn next(&mut self, head: &RecordHead, end: LogOffset) -> Option<LogOffset> {
        let told = self.0.iter().take_while(|(tid, _)| *tid <= head.durable_tid).count();
        let last = self.0.drain(..told).next_back();
        if self.0.len() < Self::MOST {
            self.0.push_back((head.tid, end));
        }
        last.map(|(_, end)| end)
    }
}

impl ScanEnd {
    /// Whether no record is there, not even a damaged one.
    pub fn is_empty(&self) -> bool {
        self.records == 0 && self.rot.is_none()
    }
}

/// The records behind a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRecords {
    /// Readable ones.
    pub count: u64,
    /// Whether a durable record cannot be read.
    pub has_rot: bool,
    /// TID of the last one, or of the slot.
    pub last_tid: Tid,
    /// Change counter of the last one, or of the slot.
    pub counter: u32,
    /// Whether one calls another durable: else no commit was acknowledged, and the mark may be
    /// missing (rule MarkWithFirstRecord).
    pub is_flushed: bool,
}

impl LiveRecords {
    /// Whether there is none, not even a damaged one.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && !self.has_rot
    }
}

/// The first and the second block of each size that a log may have.
fn slot_places() -> impl Iterator<Item = u64> {
    let places = std::iter::successors(Some(u64::from(BLOCK_BYTES_MIN)), |at| Some(at * 2));
    places.take_while(|at| *at <= 2 * u64::from(BLOCK_BYTES_MAX))
}

impl LogFile {
    /// `None` if there is none.
    pub fn open(disk: &dyn Disk, path: &Path, mode: OpenMode) -> Result<Option<LogFile>> {
        match disk.open_beside(path, mode, None) {
            Ok(file) => Ok(Some(LogFile { file, path: path.to_owned() })),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(beside::refused(format!("cannot open the log {}", path.display()), e)),
        }
    }

    #[cfg(test)]
    #[allow(clippy::unwrap_used)]
    pub(crate) fn make(disk: &dyn Disk, path: &Path) -> LogFile {
        LogFile { file: disk.open(path, OpenMode::Create).unwrap(), path: path.to_owned() }
    }

    /// The valid slots, newest first.
    pub fn slots(&self) -> Result<Vec<Slot>> {
        let file_bytes = self.file.len().context(|| self.what("cannot read the length of"))?;
        let mut found: Vec<Slot> = Vec::new();
        let mut last = u64::MAX;
        for at in slot_places() {
            if at > last || at >= file_bytes {
                break;
            }
            let mut b = [0; slot::BYTES];
            let b = read_part(&*self.file, &mut b, at).context(|| self.what("cannot read"))?;
            let slot = Slot::decode(b, file_bytes).filter(|s| [at, at / 2].contains(&u64::from(s.block_bytes)));
            if let Some(slot) = slot {
                last = 2 * u64::from(slot.block_bytes);
                found.push(slot);
            }
        }
        found.sort_by_key(|s| std::cmp::Reverse(s.sequence));
        Ok(found)
    }

    /// The refusal of a log whose slots have another version than this one, by its number.
    pub fn other_version(&self) -> Result<Option<Error>> {
        for at in slot_places() {
            let mut b = [0; slot::BYTES];
            self.file.read_at(&mut b, at).context(|| self.what("cannot read"))?;
            if let Some(other) = super::slot::version(&b).filter(|version| *version != slot::VERSION) {
                return Ok(Some(Error::CantOpen(format!(
                    "the log {} has version {other} of its format, and this version of onewrite reads version {}. Open and \
                     close the database with the version of onewrite that wrote the log",
                    self.path.display(),
                    slot::VERSION
                ))));
            }
        }
        Ok(None)
    }

    /// Whether both places have a valid slot or are empty.
    pub fn has_sound_slots(&self, block_bytes: u32) -> Result<bool> {
        let file_bytes = self.file.len().context(|| self.what("cannot read the length of"))?;
        for n in 1..=2u64 {
            let mut b = [0; slot::BYTES];
            self.file.read_at(&mut b, n * u64::from(block_bytes)).context(|| self.what("cannot read"))?;
            if Slot::decode(&b, file_bytes).is_none() && b.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A last, prepared record is visited, too.
    pub fn scan(&self, slot: &Slot, visit: impl FnMut(&Record<'_>) -> Result<()>) -> Result<ScanEnd> {
        self.scan_decided(slot, None, |_| Ok(true), visit)
    }

    /// The live records, without a look at their pages.
    pub fn live_records(&self, slot: &Slot) -> Result<LiveRecords> {
        let (mut counter, mut is_flushed) = (slot.change_counter, false);
        let end = self.scan(slot, |record| {
            counter = record.head.change_counter;
            is_flushed |= record.head.durable_tid > slot.base_tid;
            Ok(())
        })?;
        let has_rot = end.rot.is_some();
        Ok(LiveRecords {
            count: end.records,
            has_rot,
            last_tid: end.last_tid,
            counter,
            is_flushed: is_flushed || has_rot,
        })
    }

    /// `decide` judges a last, prepared record, as nothing is appended before its decision (rule
    /// PreparedThenDecided). `told`: the newest TID written, if known (rule EndTold).
    pub fn scan_decided(
        &self,
        slot: &Slot,
        told: Option<Tid>,
        mut decide: impl FnMut(&Decider) -> Result<bool>,
        mut visit: impl FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<ScanEnd> {
        let mut end = ScanEnd {
            tail: slot.start,
            prev_crc: slot.prev_crc,
            last_tid: slot.base_tid,
            records: 0,
            rot: None,
            told_durable: slot.start,
        };
        let mut buf = Vec::new();
        let mut cursor = LogCursor::at(slot);
        let mut window = Window::default();
        let mut untold = Untold::default();
        let mut len = SCAN_BYTES_FIRST;
        loop {
            if !window.reaches(slot, &cursor) {
                self.look(&mut window, slot, &cursor, len)?;
                len = SCAN_BYTES.min(2 * len);
            }
            let next = self.next_record(slot, &cursor, &window, &mut buf, |next, record| {
                if let Some(decider) = self.undecided(slot, record, &next)?
                    && !decide(&decider)?
                {
                    return Ok(None);
                }
                visit(record)?;
                Ok(Some((next, record.head)))
            })?;
            let Some((next, head)) = next.flatten() else { break };
            end.records += 1;
            cursor = next;
            if let Some(told) = untold.next(&head, next.tail) {
                end.told_durable = told;
            }
        }
        (end.tail, end.prev_crc, end.last_tid) = (cursor.tail, cursor.prev_crc, cursor.last_tid);
        if told != Some(end.last_tid) {
            end.rot = self.find_rot(slot, window, &end)?;
        }
        Ok(end)
    }

    /// Its decider, if no record follows, whole or not: nothing begins behind an undecided one.
    pub fn undecided(&self, slot: &Slot, record: &Record<'_>, next: &LogCursor) -> Result<Option<Decider>> {
        let Some(decider) = record.decider() else { return Ok(None) };
        let follows = self.begins(slot, next, |head| le_u32(head, at::AT_PREV_CRC) == Some(next.prev_crc))?;
        Ok((!follows).then_some(decider))
    }

    /// The record may be whole or not: its head is written first (rule FlushedStays).
    pub fn is_begun(&self, slot: &Slot, cursor: &LogCursor) -> Result<bool> {
        self.begins(slot, cursor, |head| le_u64(head, at::AT_TID).is_some_and(|tid| tid > cursor.last_tid.0))
    }

    fn begins(&self, slot: &Slot, cursor: &LogCursor, fits: impl Fn(&[u8]) -> bool) -> Result<bool> {
        for at in next_places(slot, cursor.tail) {
            let mut head = [0; at::HEADER_BYTES];
            let from = slot.ring_at() + at.0 % slot.ring_bytes;
            let head = read_part(&*self.file, &mut head, from).context(|| self.what("cannot read"))?;
            if le_u64(head, at::AT_SALT) == Some(slot.salt) && fits(head) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Overwrites durably: they never count.
    pub fn erase(&self, slot: &Slot, from: LogOffset, to: LogOffset) -> Result<()> {
        self.wipe_between(slot, from, to)?;
        self.flush()
    }

    /// Fewer bytes at the ring's end.
    pub(crate) fn look(&self, window: &mut Window, slot: &Slot, cursor: &LogCursor, len: u64) -> Result<()> {
        let in_ring = cursor.tail.0 % slot.ring_bytes;
        let len = usize::try_from(len.min(slot.ring_bytes - in_ring)).map_err(|_| Error::NoMemory)?;
        window.fill(self, slot.ring_at() + in_ring, len)
    }

    pub(crate) fn next_record<T>(
        &self,
        slot: &Slot,
        cursor: &LogCursor,
        window: &Window,
        buf: &mut Vec<u8>,
        visit: impl FnOnce(LogCursor, &Record<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.next_if(slot, cursor, window, buf, |record| self.stream_is_whole(record, slot), visit)
    }

    /// For a record known to be written: its streamed images are there, unless a checkpoint cut
    /// them off.
    pub(crate) fn next_written<T>(
        &self,
        slot: &Slot,
        cursor: &LogCursor,
        window: &Window,
        buf: &mut Vec<u8>,
        visit: impl FnOnce(LogCursor, &Record<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.next_if(slot, cursor, window, buf, |record| self.for_each_streamed(record, |_, _, _| Ok(())), visit)
    }

    fn next_if<T>(
        &self,
        slot: &Slot,
        cursor: &LogCursor,
        window: &Window,
        buf: &mut Vec<u8>,
        counts: impl Fn(&Record<'_>) -> Result<bool>,
        visit: impl FnOnce(LogCursor, &Record<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        for (at, first) in places_in_lap(slot, cursor) {
            let bytes = self.read_record(window, slot, at, cursor.last_tid, buf)?;
            let found = bytes.and_then(|bytes| found_at(slot, cursor, (at, first), bytes));
            if let Some((next, record)) = found
                && counts(&record)?
            {
                return visit(next, &record).map(Some);
            }
        }
        Ok(None)
    }

    fn read_record<'a>(
        &self,
        window: &'a Window,
        slot: &Slot,
        at: LogOffset,
        newer_than: Tid,
        buf: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>> {
        let from = place(slot, at);
        let head = window.read(self, buf, from, at::HEADER_BYTES)?;
        let Some(len) = record_bytes(slot, at, newer_than, head) else { return Ok(None) };
        let bytes = window.read(self, buf, from, len)?;
        Ok((bytes.len() == len).then_some(bytes))
    }

    fn stream_is_whole(&self, record: &Record<'_>, slot: &Slot) -> Result<bool> {
        if record.stream.count == 0 {
            return Ok(true);
        }
        let mut image = memory::zeros_of(slot.page_bytes.into())?;
        let mut whole = true;
        let index_whole = self.for_each_streamed(record, |_, position, crc| {
            let read = self.file.read_at(&mut image, position).context(|| self.what("cannot read"))?;
            whole &= read == image.len() && crc32c::crc32c(&image) == crc;
            Ok(())
        })?;
        Ok((index_whole && whole) || !keeps(Case::StreamedWhole))
    }

    /// Visits page, byte position and crc32c of each streamed image; false if the index is broken.
    /// Memory stays bounded.
    pub fn for_each_streamed(
        &self,
        record: &Record<'_>,
        mut visit: impl FnMut(u32, u64, u32) -> Result<()>,
    ) -> Result<bool> {
        const ITEMS: u32 = 4096;
        let stream = record.stream;
        let mut crc = 0;
        for pass in 0..2 {
            let mut left = stream.count;
            let mut position = u64::from(stream.index) * STREAM_UNIT;
            while left > 0 {
                let items = left.min(ITEMS);
                let mut b = memory::zeros(items as usize * at::STREAM_ITEM_BYTES)?;
                if self.file.read_at(&mut b, position).context(|| self.what("cannot read"))? != b.len() {
                    return Ok(false);
                }
                if pass == 0 {
                    crc = crc32c::crc32c_append(crc, &b);
                } else {
                    for item in b.chunks_exact(at::STREAM_ITEM_BYTES) {
                        let field = |i| crate::base::layout::le_u32(item, i).unwrap_or(0);
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

    /// A record that calls the next TID durable proves that that one is damaged. `window`: the last
    /// read.
    fn find_rot(&self, slot: &Slot, mut window: Window, end: &ScanEnd) -> Result<Option<(Tid, Tid)>> {
        if !keeps(Case::LaterRecordProves) {
            return Ok(None);
        }
        let missing = end.last_tid.next();
        let salt = slot.salt.to_le_bytes();
        let salt = memmem::Finder::new(&salt);
        let begin = slot.start.0 % slot.ring_bytes;
        let behind = begin + (end.tail.0 - slot.start.0);
        // Empty if the walk wraps: older records may lie between the laps.
        let walked = if behind <= slot.ring_bytes { begin..behind - behind % at::ALIGN as u64 } else { 0..0 };
        let mut buf = Vec::new();
        // Real records do not overlap, so they add up to the ring; data may look like some more.
        let mut left = 4 * slot.ring_bytes;
        let mut from = 0u64;
        while from < slot.ring_bytes {
            if walked.contains(&from) {
                from = walked.end;
                continue;
            }
            let here = slot.ring_at() + from;
            if window.part(here, at::HEADER_BYTES).is_none() {
                let len = usize::try_from(SCAN_BYTES.min(slot.ring_bytes - from)).map_err(|_| Error::NoMemory)?;
                window.fill(self, here, len)?;
            }
            let skip = usize::try_from(here - window.at).map_err(|_| Error::NoMemory)?;
            let mut looked = skip;
            while let Some(found) = window.bytes.get(looked..).and_then(|bytes| salt.find(bytes)) {
                let found = looked + found;
                looked = found + 1;
                let place = from + (found - skip) as u64;
                if !place.is_multiple_of(at::ALIGN as u64) || place >= slot.ring_bytes {
                    continue;
                }
                let Some(bytes) = self.read_record(&window, slot, LogOffset(place), missing, &mut buf)? else {
                    continue;
                };
                left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                    Error::Corrupt(format!("the log {} is damaged: its records overlap", self.path.display()))
                })?;
                // The seal is enough: under another slot, entries may not fit the page size.
                if let Some((head, _)) = RecordHead::sealed(bytes)
                    && head.durable_tid >= missing
                {
                    return Ok(Some((missing, head.tid)));
                }
            }
            let read = window.bytes.len().saturating_sub(skip) as u64;
            if read < at::ALIGN as u64 {
                break;
            }
            from += read - read % at::ALIGN as u64;
        }
        Ok(None)
    }

    pub(crate) fn note_home(&self, home: FileId) -> Result<()> {
        if self.noted_home()? == Some(home.ino) {
            return Ok(());
        }
        let at = shared::AT_HOME_FILE as u64;
        self.file.write_durable_at(&home.ino.to_le_bytes(), at).context(|| self.what("cannot write to"))
    }

    /// A new log is flushed as a whole.
    pub(crate) fn note_first_home(&self, home: FileId) -> Result<()> {
        self.note(shared::AT_HOME_FILE, [home.ino])
    }

    pub(crate) fn noted_home(&self) -> Result<Option<u64>> {
        Ok(self.noted(shared::AT_HOME_FILE)?.map(|[file]| file))
    }

    /// Not flushed: worthless after a power cut.
    pub(crate) fn note_names(&self, stamp: NamesStamp) -> Result<()> {
        self.note(shared::AT_NAMES, stamp.0)
    }

    pub(crate) fn noted_names(&self) -> Result<Option<NamesStamp>> {
        Ok(self.noted(shared::AT_NAMES)?.map(NamesStamp))
    }

    fn note<const COUNT: usize>(&self, at: usize, numbers: [u64; COUNT]) -> Result<()> {
        self.file
            .write_at(numbers.map(u64::to_le_bytes).as_flattened(), at as u64)
            .context(|| self.what("cannot write to"))
    }

    fn noted<const COUNT: usize>(&self, at: usize) -> Result<Option<[u64; COUNT]>> {
        let mut b = [[0; 8]; COUNT];
        let bytes = b.as_flattened_mut();
        let len = bytes.len();
        let read = self.file.read_at(bytes, at as u64).context(|| self.what("cannot read"))?;
        Ok(Some(b.map(u64::from_le_bytes)).filter(|numbers| read == len && *numbers != [0; COUNT]))
    }

    /// The noted seal, if the file still has it (rule MarkWithFirstRecord).
    pub(crate) fn sealed(&self) -> Result<Option<FileSeal>> {
        let Some(seal) = self.noted(shared::AT_SEAL)?.filter(|noted| *noted != NO_SEAL).map(FileSeal) else {
            return Ok(None);
        };
        let has_it = self.file.has_seal(seal).context(|| self.what("cannot look at"))?;
        Ok((has_it || !keeps(Case::LogSealed)).then_some(seal))
    }

    /// Whether a session has closed it where the file system makes no seals.
    pub(crate) fn has_no_seal(&self) -> Result<bool> {
        Ok(self.noted(shared::AT_SEAL)? == Some(NO_SEAL))
    }

    /// Every byte of the file has been flushed once. The note is not flushed.
    pub(crate) fn seal(&self) -> Result<()> {
        if self.sealed()?.is_some() {
            return Ok(());
        }
        let seal = self.file.seal().context(|| self.what("cannot look at"))?;
        self.note(shared::AT_SEAL, seal.map_or(NO_SEAL, |seal| seal.0))
    }

    /// Rewrites and flushes the slot, live records and streamed images: a failed flush may have
    /// left them in the cache alone.
    pub(crate) fn rewrite_live(&self, slot: &Slot, tail: LogOffset, streamed_end: u64) -> Result<()> {
        if !keeps(Case::RecordsRewritten) {
            return Ok(());
        }
        self.write_again(slot, slot.start, tail)?;
        // Not to the file's end: bytes behind the streamed ones have no known use.
        let ring_end = slot.ring_at() + slot.ring_bytes;
        self.write_over(ring_end, streamed_end.saturating_sub(ring_end), 256 << 10, |_| true)?;
        self.flush()
    }

    /// The slot, and its records from `from` on.
    pub(crate) fn write_again(&self, slot: &Slot, from: LogOffset, tail: LogOffset) -> Result<()> {
        self.file.write_at(&slot.encode(), slot.position()).context(|| self.what("cannot write to"))?;
        let block = u64::from(slot.block_bytes);
        let blocks = (LogOffset(from.0 / block * block), LogOffset(tail.0.next_multiple_of(block)));
        self.write_over_between(slot, blocks, 256 << 10, |_| true)
    }

    /// Behind a failed flush, whose bytes the next one would not flush again.
    pub(crate) fn write_all_again(&self) -> Result<()> {
        let len = self.file.len().context(|| self.what("cannot read the length of"))?;
        self.write_over(0, len, 256 << 10, |_| true)
    }

    /// Every error is a failed flush, a full disk too.
    pub(crate) fn flush(&self) -> Result<()> {
        self.file.sync().map_err(|error| Error::Io { what: self.what("cannot flush"), error })
    }

    /// Without the words that processes share: a store to them would be a write of each flush.
    pub(crate) fn flush_records(&self) -> Result<()> {
        let flushed = self.file.sync_from(WORDS_BYTES as u64);
        flushed.map_err(|error| Error::Io { what: self.what("cannot flush"), error })
    }

    /// Zeros the ring (rule NothingLeftBehind).
    pub(crate) fn wipe(&self, slot: &Slot) -> Result<()> {
        self.zero(slot.ring_at(), slot.ring_bytes)
    }

    fn zero(&self, from: u64, len: u64) -> Result<()> {
        self.write_over(from, len, 256 << 10, |part| {
            part.fill(0);
            true
        })
    }

    /// What [`LogFile::shorten`] could not cut off, to the medium (rule NothingLeftBehind).
    pub(crate) fn wipe_rest(&self, end: u64) -> Result<()> {
        let len = self.file.len().context(|| self.what("cannot read the length of"))?;
        if len > end {
            self.zero(end, len - end)?;
            self.flush()?;
        }
        Ok(())
    }

    /// Writes a slot, not flushed: `session` has ended in home up to `tid`.
    pub(crate) fn end(&self, newest: &Slot, session: u64, tid: Tid) -> Result<Slot> {
        let sequence = newest.sequence.saturating_add(1);
        // No record has this salt.
        let ended = Slot { sequence, session, salt: random()?, base_tid: tid, live: false, ..newest.clone() };
        self.file.write_at(&ended.encode(), ended.position()).context(|| self.what("cannot write to"))?;
        Ok(ended)
    }

    /// The older slot may need the rest, so the newest is first written over it and flushed (rule
    /// SlotBeforeReuse).
    pub(crate) fn give_back(&self, slot: &Slot) -> Result<()> {
        let end = slot.ring_at().saturating_add(slot.ring_bytes);
        if self.file.len().context(|| self.what("cannot read the length of"))? <= end {
            return Ok(());
        }
        if keeps(Case::LogGivenBack) {
            let again = Slot { sequence: slot.sequence.saturating_add(1), ..slot.clone() };
            self.file.write_at(&again.encode(), again.position()).context(|| self.what("cannot write to"))?;
            self.flush()?;
        }
        self.shorten(end)
    }

    /// Windows keeps the length of a file that is mapped: then the rest stays, and no slot leads
    /// there.
    pub(crate) fn shorten(&self, end: u64) -> Result<()> {
        match self.file.set_len(end) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => Ok(()),
            done => done.context(|| self.what("cannot shorten")),
        }
    }

    pub(crate) fn is_at(&self, disk: &dyn Disk, path: &Path) -> Result<bool> {
        let what = || format!("cannot look at the log {}", path.display());
        Ok(disk.identify(path).context(what)? == Some(self.file.id().context(what)?))
    }

    pub(crate) fn wipe_free(&self, slot: &Slot, tail: LogOffset) -> Result<()> {
        let block = u64::from(slot.block_bytes);
        self.wipe_between(slot, tail, LogOffset(slot.start.0 / block * block + slot.ring_bytes))
    }

    /// Zeros the rest of the block of `tail`: no uncounted record may stay before one that begins
    /// behind it (rule PreparedThenDecided).
    pub(crate) fn wipe_tail(&self, slot: &Slot, tail: LogOffset) -> Result<()> {
        self.wipe_between(slot, tail, LogOffset(tail.0.next_multiple_of(slot.block_bytes.into())))
    }

    fn wipe_between(&self, slot: &Slot, from: LogOffset, to: LogOffset) -> Result<()> {
        self.write_over_between(slot, (from, to), 64 << 10, |part| {
            let holds = part.iter().any(|byte| *byte != 0);
            part.fill(0);
            holds
        })
    }

    fn write_over_between(
        &self,
        slot: &Slot,
        (from, to): (LogOffset, LogOffset),
        piece: usize,
        mut change: impl FnMut(&mut [u8]) -> bool,
    ) -> Result<()> {
        let end = to.0.min(from.0.saturating_add(slot.ring_bytes));
        let mut at = from.0;
        while at < end {
            let in_ring = at % slot.ring_bytes;
            let n = (end - at).min(slot.ring_bytes - in_ring);
            self.write_over(slot.ring_at() + in_ring, n, piece, &mut change)?;
            at += n;
        }
        Ok(())
    }

    fn write_over(&self, from: u64, len: u64, piece: usize, mut change: impl FnMut(&mut [u8]) -> bool) -> Result<()> {
        let mut buf = memory::zeros(usize::try_from(len).unwrap_or(usize::MAX).min(piece))?;
        let mut done = 0;
        while done < len {
            let n = usize::try_from(len - done).unwrap_or(usize::MAX).min(buf.len());
            let Some(part) = buf.get_mut(..n) else { break };
            let part = read_part(&*self.file, part, from + done).context(|| self.what("cannot read"))?;
            let read = part.len();
            if read == 0 {
                break;
            }
            if change(part) {
                self.file.write_at(part, from + done).context(|| self.what("cannot write to"))?;
            }
            done += read as u64;
        }
        Ok(())
    }

    pub(crate) fn what(&self, verb: &str) -> String {
        format!("{verb} the log {}", self.path.display())
    }
}

/// In the file.
fn place(slot: &Slot, at: LogOffset) -> u64 {
    slot.ring_at() + at.0 % slot.ring_bytes
}

/// Length of the record with this `head`; `None` if it cannot be one of the ring that is newer.
fn record_bytes(slot: &Slot, at: LogOffset, newer_than: Tid, head: &[u8]) -> Option<usize> {
    let peek = Peek::at(head)?;
    let follows = (peek.salt == slot.salt && peek.tid > newer_than) || !keeps(Case::RecordChain);
    let is_within = at.0 % slot.ring_bytes + u64::from(peek.len) <= slot.ring_bytes;
    usize::try_from(peek.len).ok().filter(|_| follows && is_within)
}

/// Of the places of the next record, each with the place of the first one, those before that in the
/// next lap.
fn places_in_lap(slot: &Slot, cursor: &LogCursor) -> impl Iterator<Item = (LogOffset, LogOffset)> + use<> {
    let (ring_bytes, first) = (slot.ring_bytes, (cursor.tail != slot.start).then_some(cursor.first));
    // The first record may begin the next lap; later ones may then use the space it skipped.
    let places = next_places(slot, cursor.tail).into_iter().map(move |at| (at, first.unwrap_or(at)));
    places.filter(move |(at, first)| at.0.saturating_sub(first.0) < ring_bytes)
}

/// The record in `bytes`, if it is the next behind `cursor`, and its end.
fn found_at<'a>(
    slot: &Slot,
    cursor: &LogCursor,
    (at, first): (LogOffset, LogOffset),
    bytes: &'a [u8],
) -> Option<(LogCursor, Record<'a>)> {
    // A record that ends in the next lap must not reach the first.
    let end = at.0.checked_sub(first.0)?.saturating_add(bytes.len() as u64);
    let record = Record::decode(bytes, slot.page_bytes).filter(|_| end <= slot.ring_bytes)?;
    let tail = LogOffset(at.0 + record.bytes());
    let next = LogCursor { tail, prev_crc: record.crc, last_tid: record.head.tid, first };
    follows(&record.head, slot, cursor).then_some((next, record))
}

/// Whether the record is the one behind `end`.
fn follows(head: &RecordHead, slot: &Slot, end: &LogCursor) -> bool {
    // TIDs of pages in place are missing; the checksum proves that no record is.
    let chains = head.salt == slot.salt && head.tid > end.last_tid && head.prev_crc == end.prev_crc;
    chains || !keeps(Case::RecordChain)
}

/// The places are there, in the next block, and at the next lap.
pub fn next_places(slot: &Slot, tail: LogOffset) -> [LogOffset; 3] {
    [1, u64::from(slot.block_bytes), slot.ring_bytes].map(|unit| LogOffset(tail.0.next_multiple_of(unit)))
}
