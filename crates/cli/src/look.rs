//! Opening a database and its log to look only, and walking the records, for `check` and `inspect`.
//!
//! Files are opened for reading and locked so that no process changes them meanwhile. Where others
//! use the database through onewrite, both are read without the locks, again if a checkpoint came
//! between.

use onewrite_core::Repair;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::Slot;
use onewrite_core::inspect::Tid;
use onewrite_core::inspect::home::{self, State};
use onewrite_core::inspect::layout::home::HEADER_BYTES;
use onewrite_core::inspect::layout::record as record_layout;
use onewrite_core::inspect::layout::slot as slot_layout;
use onewrite_core::inspect::layout::wal::SUFFIX as WAL_SUFFIX;
use onewrite_core::inspect::{LogFile, ScanEnd, before_recovery, next_places};
use onewrite_core::inspect::{PageChange, Peek, Record};
use onewrite_core::inspect::{path_beside, second_path};
use onewrite_core::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A database and its log, open for reading, and locked unless it is in use.
pub struct Look {
    /// Others use it through onewrite.
    pub in_use: bool,
    /// The database.
    pub repair: Repair,
    /// The first bytes of home, fewer than a header in a shorter file.
    pub first: Vec<u8>,
    /// Length of home in bytes.
    pub home_bytes: u64,
    /// The state in home's header, without the mark.
    pub state: State,
    /// The session id of the mark.
    pub mark: Option<u64>,
    /// A rollback journal that waits to be rolled back.
    pub hot_journal: Option<PathBuf>,
    /// A write-ahead log of SQLite with something in it, and its length in bytes.
    pub wal: Option<(PathBuf, u64)>,
    /// The file without the name, which a process of the scheme `dash` left when it died.
    pub second: Option<PathBuf>,
    /// The log.
    pub log: Option<Log>,
}

/// A log, valid or not.
pub struct Log {
    /// The file, locked unless it is in use.
    pub file: LogFile,
    in_use: bool,
    /// Its length in bytes.
    pub bytes: u64,
    /// Both slots, as they stand in blocks 1 and 2.
    pub slots: [SlotFound; 2],
    /// The valid slot with the larger sequence.
    pub newest: Option<Slot>,
}

/// The content of a slot's place.
pub enum SlotFound {
    /// Zeros, or the end of the file.
    Empty,
    /// Bytes that are no slot.
    Damaged,
    /// A valid slot.
    Valid(Slot),
}

impl SlotFound {
    fn valid(&self) -> Option<&Slot> {
        match self {
            SlotFound::Valid(slot) => Some(slot),
            _ => None,
        }
    }
}

/// The disk of this machine.
pub fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk::new())
}

/// A write-ahead log of SQLite beside the database at `path` that is not empty, and its length in
/// bytes.
pub fn wal_beside(path: &Path) -> Option<(PathBuf, u64)> {
    let wal = path_beside(path, WAL_SUFFIX);
    let bytes = std::fs::metadata(&wal).ok()?.len();
    (bytes > 0).then_some((wal, bytes))
}

impl Look {
    /// Opens the database at `path` and the log beside it.
    pub fn open(path: &Path) -> Result<Look> {
        let locked = Repair::open(disk(), path, OpenMode::ReadOnly).and_then(|repair| {
            let log = repair.lock_log()?;
            Look::at(repair, log, false)
        });
        let Err(Error::Busy(why)) = locked else { return locked };
        let repair = Repair::beside(disk(), path)?;
        let log = LogFile::open(&*disk(), &repair.log_path(), OpenMode::ReadOnly)?;
        let look = Look::at(repair, log, true)?;
        // Else one of stock SQLite has it.
        if look.mark.is_some() && look.log.is_some() { Ok(look) } else { Err(Error::Busy(why)) }
    }

    /// Looks with `look` at the database at `path`. It looks again when a checkpoint of another
    /// process came between, or the answer is `Busy`.
    pub fn with<T>(path: &Path, mut look: impl FnMut(&Look) -> Result<T>) -> Result<(Look, T)> {
        for _ in 0..20 {
            let at = Look::open(path)?;
            let seen = look(&at);
            let again = matches!(seen, Err(Error::Busy(_))) || (at.in_use && at.has_moved()?);
            if !again {
                return Ok((at, seen?));
            }
        }
        Err(Error::Busy(format!("checkpoints of {} come faster than it can be looked at", path.display())))
    }

    /// Whether the log goes on behind another slot by now, or the database is not in use any more.
    fn has_moved(&self) -> Result<bool> {
        let sequence = |slot: Option<&Slot>| slot.map(|slot| slot.sequence);
        let Some(log) = &self.log else { return Ok(false) };
        Ok(sequence(log.file.slots()?.first()) != sequence(log.newest.as_ref()) || self.repair.mark()? != self.mark)
    }

    fn at(repair: Repair, log: Option<LogFile>, in_use: bool) -> Result<Look> {
        let path = repair.path().to_owned();
        let what = || format!("cannot read {}", path.display());
        let mut first = vec![0; HEADER_BYTES + 8];
        let read = repair.home().read_at(&mut first, 0).map_err(|e| Error::io(what(), e))?;
        first.truncate(read);
        let home_bytes = repair.home().len().map_err(|e| Error::io(what(), e))?;
        let log = log.map(|file| Log::look(file, in_use)).transpose()?;
        let (state, hot_journal) = (repair.state()?, repair.hot_journal()?);
        let wal = wal_beside(repair.path());
        let second = second_path(repair.path());
        let second = disk().exists(&second).map_err(|e| Error::io(what(), e))?.then_some(second);
        Ok(Look {
            in_use,
            mark: home::mark(&first).map(|mark| mark.session),
            repair,
            first,
            home_bytes,
            state,
            hot_journal,
            wal,
            second,
            log,
        })
    }
}

impl Log {
    fn look(file: LogFile, in_use: bool) -> Result<Log> {
        let what = || format!("cannot read the log {}", file.path.display());
        let bytes = file.file.len().map_err(|e| Error::io(what(), e))?;
        let newest = file.slots()?.into_iter().next();
        let block = newest.as_ref().map_or(onewrite_core::inspect::layout::BLOCK_BYTES_MIN, |s| s.block_bytes);
        let slot_at = |n: u64| {
            let mut b = [0; slot_layout::BYTES];
            file.file.read_at(&mut b, n * u64::from(block)).map_err(|e| Error::io(what(), e))?;
            Ok::<_, Error>(match Slot::decode(&b, bytes) {
                _ if b.iter().all(|&x| x == 0) => SlotFound::Empty,
                Some(slot) if slot.block_bytes == block => SlotFound::Valid(slot),
                _ => SlotFound::Damaged,
            })
        };
        Ok(Log { bytes, slots: [slot_at(1)?, slot_at(2)?], newest, file, in_use })
    }

    /// The slot that recovery would start from: the newest, unless a recovery crashed between its
    /// slot and its mark.
    pub fn slot_for(&self, session: Option<u64>) -> Result<Option<&Slot>> {
        let Some(newest) = &self.newest else { return Ok(None) };
        let mut valid: Vec<_> = self.slots.iter().filter_map(SlotFound::valid).cloned().collect();
        valid.sort_by_key(|slot| std::cmp::Reverse(slot.sequence));
        let older = session.and_then(|session| before_recovery(&valid, session));
        if let Some(older) = older
            && self.file.scan(newest, |_| Ok(()))?.is_empty()
        {
            return Ok(self.slots.iter().filter_map(SlotFound::valid).find(|slot| *slot == older));
        }
        Ok(Some(newest))
    }

    /// Walks the live records below `slot`, and tells which bytes follow the last one.
    pub fn walk(&self, slot: &Slot, mut visit: impl FnMut(Entry)) -> Result<(ScanEnd, Behind)> {
        let mut end = self.file.scan(slot, |record| {
            visit(Entry::of(record, &self.file)?);
            Ok(())
        })?;
        if let Some((lost, _)) = end.rot.filter(|_| self.in_use)
            && self.file.scan(slot, |_| Ok(()))?.last_tid >= lost
        {
            // The walk had passed its place before it was written, and so was the record that
            // seemed to prove that it was lost.
            end.rot = None;
        }
        let behind = self.behind(slot, &end)?;
        Ok((end, behind))
    }

    /// The content of the places at which a next record may begin.
    fn behind(&self, slot: &Slot, end: &ScanEnd) -> Result<Behind> {
        let ring_at = slot.ring_at();
        for at in next_places(slot, end.tail) {
            let in_ring = at.0 % slot.ring_bytes;
            let read = |len: usize| {
                let mut b = vec![0; len];
                let read = self.file.file.read_at(&mut b, ring_at + in_ring);
                let read =
                    read.map_err(|e| Error::io(format!("cannot read the log {}", self.file.path.display()), e))?;
                b.truncate(read);
                Ok::<_, Error>(b)
            };
            let Some(peek) = Peek::at(&read(record_layout::HEADER_BYTES)?) else { continue };
            if peek.salt != slot.salt || peek.tid != end.last_tid.next() || peek.prev_crc != end.prev_crc {
                continue;
            }
            let len = u64::from(peek.len).min(slot.ring_bytes.saturating_sub(in_ring));
            let whole = Record::decode(&read(usize::try_from(len).unwrap_or(0))?, slot.page_bytes).is_some();
            return Ok(if whole { Behind::StreamInPart(peek.tid) } else { Behind::RecordInPart(peek.tid) });
        }
        Ok(Behind::Nothing)
    }
}

/// The bytes behind the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing that belongs to the log.
    Nothing,
    /// A record of the next transaction whose checksum is wrong.
    RecordInPart(Tid),
    /// A whole record of the next transaction that names streamed images which are not all there.
    StreamInPart(Tid),
}

/// One record, as `inspect` shows it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The transaction.
    pub tid: Tid,
    /// Length in bytes.
    pub bytes: u64,
    /// Size of the database after it, in pages.
    pub page_count: u32,
    /// Change counter after it.
    pub change_counter: u32,
    /// Newest TID known to be durable when it was written.
    pub durable_tid: Tid,
    /// Pages of which ranges changed.
    pub deltas: u32,
    /// Pages added to the database.
    pub fresh: u32,
    /// Whole images.
    pub images: u32,
    /// Whole images that streamed behind the ring.
    pub streamed: u32,
    /// The pages, in order.
    pub pages: Pages,
}

impl Entry {
    fn of(record: &Record<'_>, log: &LogFile) -> Result<Entry> {
        let head = record.head;
        let mut entry = Entry {
            tid: head.tid,
            bytes: record.bytes(),
            page_count: head.page_count,
            change_counter: head.change_counter,
            durable_tid: head.durable_tid,
            deltas: 0,
            fresh: 0,
            images: 0,
            streamed: record.stream.count,
            pages: Pages::default(),
        };
        let mut pages = Vec::new();
        record.for_each(|page, change| {
            match change {
                PageChange::Delta(_) => entry.deltas += 1,
                PageChange::Fresh(_) => entry.fresh += 1,
                PageChange::Image(_) => entry.images += 1,
            }
            pages.push(page.0);
        });
        log.for_each_streamed(record, |page, _, _| {
            pages.push(page);
            Ok(())
        })?;
        entry.pages = Pages::of(pages);
        Ok(entry)
    }
}

/// Page numbers, as runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// First and last page of each run, ascending.
    pub runs: Vec<(u32, u32)>,
    /// Number of pages.
    pub count: u64,
}

impl Pages {
    fn of(mut pages: Vec<u32>) -> Pages {
        pages.sort_unstable();
        pages.dedup();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &page in &pages {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(page) => *last = page,
                _ => runs.push((page, page)),
            }
        }
        Pages { runs, count: pages.len() as u64 }
    }

    /// The largest page number.
    pub fn last(&self) -> u32 {
        self.runs.last().map_or(0, |(_, last)| *last)
    }

    /// "1, 3-7, 12 and 40 more", not much longer than `width`.
    pub fn summary(&self, width: usize) -> String {
        let mut text = String::new();
        let mut shown = 0;
        for &(first, last) in &self.runs {
            let run = if first == last { first.to_string() } else { format!("{first}-{last}") };
            if !text.is_empty() && text.len() + run.len() > width {
                return format!("{text} and {} more", grouped(self.count - shown));
            }
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(&run);
            shown += u64::from(last - first) + 1;
        }
        text
    }
}

/// 1234567 as "1,234,567".
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 page", "2 pages".
pub fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_summed_up() {
        let pages = |p: &[u32]| Pages::of(p.to_vec()).summary(20);
        assert_eq!(pages(&[]), "");
        assert_eq!(pages(&[7]), "7");
        assert_eq!(pages(&[3, 1, 2, 2, 9]), "1-3, 9");
        assert_eq!(pages(&[10, 20, 30, 40, 50, 60, 61]), "10, 20, 30, 40, 50 and 2 more");
        assert_eq!(pages(&[u32::MAX, u32::MAX - 1]), "4294967294-4294967295");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((counted(1, "page"), counted(1000, "page")), ("1 page".into(), "1,000 pages".into()));
    }
}
