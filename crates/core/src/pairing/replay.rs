//! Replay: the live records of a log become versions in a page table, over home. Most images are
//! made when first needed (`pages/chains.rs`): whether a record counts depends on its bytes alone.
//!
//! Records hold absolute bytes and pages are not parsed (rule AbsoluteBytes), so a page that a
//! crash tore becomes whole (invariant I8), and a second replay gives the same.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::layout::slot::PAGE_COUNT_IN_HOME;
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, PageNo, Tid, whole_pages};
use crate::database::Database;
use crate::log::file::{LogCursor, LogFile};
use crate::log::record::Decider;
use crate::log::slot::Slot;
use crate::pages::apply::{Overflow, RecordApplier, RecordSource};
use crate::pages::snapshots::Snapshots;
use crate::pages::table::{ImageLocation, PageTable, Readers};
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind, State};

/// The findings of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number replayed.
    pub transactions: u64,
    /// First and last.
    pub tids: Option<(Tid, Tid)>,
    /// The last one in flight of an in-page scheme, and whether it was undone.
    pub in_place: Option<(Tid, bool)>,
    /// Number that differ from home.
    pub pages: u64,
    /// Accepted damage: the TID lost, and a later one.
    pub lost: Option<(Tid, Tid)>,
}

pub struct Replayed {
    pub table: PageTable,
    /// Newest committed state.
    pub state: State,

    pub report: Report,
    /// Position behind the last record.
    pub cursor: LogCursor,
    /// The records call each other durable up to here, at least.
    pub told_durable: LogOffset,
    /// Decider of the last record, if over several files.
    pub decider: Option<Decider>,
}

pub enum Led {
    There(Box<Replayed>),
    /// Home is from before the first of them (rule HomeFitsLog).
    HomeOlder,
    /// None of them led to home (rule HomeFitsLog).
    HomeNewer,
}

/// Images of later changes are made at once.
const WAITING_BYTES: u64 = 8 << 20;

struct Replay<'a> {
    db: &'a Database,
    log: &'a LogFile,
    slot: &'a Slot,

    accept_loss: bool,
    may_wait_bytes: u64,
}

/// Writes nothing. With `accept_loss`, a damaged record ends the log. `told`: the newest written
/// transaction, if known.
pub fn replay(db: &Database, log: &LogFile, slot: &Slot, told: Option<Tid>, accept_loss: bool) -> Result<Led> {
    Replay { db, log, slot, accept_loss, may_wait_bytes: WAITING_BYTES }.run(told)
}

impl Replay<'_> {
    /// `rot`: the first transaction that cannot be read, and one behind it that can.
    fn allow_loss(&self, rot @ (lost, seen): (Tid, Tid)) -> Result<(Tid, Tid)> {
        if self.accept_loss {
            return Ok(rot);
        }
        Err(Error::Corrupt(format!(
            "the log {} is damaged: transaction {lost} was durable and cannot be read any more (transaction {seen}, \
             behind it, can). Nothing was changed. Restore the log, or give up all transactions from {lost} on with \
             `onewrite recover --accept-loss`",
            self.log.path.display()
        )))
    }

    fn run(&self, told: Option<Tid>) -> Result<Led> {
        let Replay { db, log, slot, may_wait_bytes, .. } = *self;
        let mut first = [0; at::HEADER_BYTES];
        db.home.read_at(&mut first, 0).context(|| db.what("cannot read"))?;
        let mark = home::mark(&first).filter(|mark| mark.tid != Tid(0) && keeps(Case::HomeFitsLog));
        if mark.is_some_and(|mark| mark.whole < slot.base_tid) {
            return Ok(Led::HomeOlder);
        }
        let home_bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
        let (mut table, mut report) = (PageTable::default(), Report::default());
        let mut state = self.base(&mut first, &mut table, &mut report)?;
        // These pages exist since the checkpoint, even if a crashed recovery cut home.
        let mut page_count_min = state.page_count;
        let snapshots = Snapshots::default();
        let home = |page: PageNo, image: &mut [u8]| read_home(db, slot, page, image);
        let home_pages = whole_pages(home_bytes, slot.page_bytes);
        let source = RecordSource { path: &db.path, log, slot, home_pages, home: &home };
        let mut applier = RecordApplier {
            source: &source,
            table: &mut table,
            readers: Readers { snapshots: &snapshots, visible: Tid(u64::MAX) },
            overflow: Some(&mut Overflow::new(&*db.disk, &db.path)),
            may_wait_bytes,
        };
        // Its owner is dead (rule PreparedThenDecided).
        let mut decider = None;
        // Checkpoints bring home only recorded states: a log of another history lacks home's TID.
        let mut fits = mark.is_none_or(|mark| mark.tid == slot.base_tid);
        let mut lacks_streamed = false;
        let end = log.scan_decided(
            slot,
            told,
            |found| {
                let committed = db.is_committed(found, log, slot)?;
                decider = committed.then(|| found.clone());
                Ok(committed)
            },
            |record| {
                debug_assert!(
                    record.head.tid > state.tid || state.tid == Tid::HOME,
                    "rule RecordChain: {}",
                    record.head.tid
                );
                state = applier.apply(&state, record)?;
                page_count_min = page_count_min.min(state.page_count);
                fits |= mark.is_some_and(|mark| mark.tid == record.head.tid);
                lacks_streamed |= record.stream.at_home > 0
                    && mark.is_some_and(|mark| mark.tid < record.head.tid && mark.streamed != record.stream.at_home);
                if !record.is_of_recovery() {
                    report.transactions += 1;
                    report.tids = Some((report.tids.map_or(record.head.tid, |t| t.0), record.head.tid));
                }
                Ok(())
            },
        )?;
        if let Some(rot) = end.rot {
            report.lost = Some(self.allow_loss(rot)?);
        }

        if lacks_streamed {
            return Ok(Led::HomeOlder);
        }
        if !fits && !slot.in_place {
            return Ok(Led::HomeNewer);
        }
        let cursor = LogCursor { tail: end.tail, prev_crc: end.prev_crc, last_tid: end.last_tid, first: slot.start };
        let replayed = Replayed { table, state, report, cursor, told_durable: end.told_durable, decider };
        Ok(Led::There(Box::new(self.check(replayed, home_bytes, page_count_min)?)))
    }

    /// The slot's state or, where that leaves it to home's header, the header's, with the last
    /// transaction in place whole or undone in the table.
    fn base(&self, first: &mut DatabaseHeader, table: &mut PageTable, report: &mut Report) -> Result<State> {
        let Replay { db, log, slot, accept_loss, .. } = *self;
        let mut base = State::empty(Tid::HOME);
        let in_place = slot.page_count == PAGE_COUNT_IN_HOME;
        let has_records = in_place && !log.scan(slot, |_| Ok(()))?.is_empty();
        if slot.is_in_page() && !has_records && home::page_count(first) != Some(0) {
            let Some(in_page) = db.scheme_with_trailers() else {
                return Err(Error::CantOpen(format!(
                    "{} was in use under a scheme of the research (dhl-cc, dhl-tc, lsmvbt, mvbt, mvbt-opt or dash) when \
                     its process ended, and this build has none. Nothing was changed. Open it with a build that has them \
                     (cargo's feature `research`)",
                    db.path.display()
                )));
            };
            let found = in_page.roll_back(db, slot, table, accept_loss)?;
            report.in_place = found.last.map(|(tid, _)| (tid, found.undone));
            if let ImageLocation::Memory(image) = table.find(PageNo::HEADER, Tid(u64::MAX))
                && let Some(header) = image.get(..at::HEADER_BYTES)
            {
                first.copy_from_slice(header);
            }
        }
        if in_place {
            if home::page_count(first) != Some(0) {
                home::unmark(first);
                // A checkpoint cut short wrote the header before the last page.
                let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
                base = State::of_home(first, if has_records { u64::MAX } else { bytes });
                if !has_records && base.kind != FileKind::Database {
                    return Err(Error::Corrupt(format!(
                        "{} is damaged: its header does not fit a file of {bytes} bytes (it states {} pages of {} bytes). \
                     Nothing was changed",
                        db.path.display(),
                        base.page_count,
                        base.page_bytes
                    )));
                }
            }
        } else if slot.page_count > 0 {
            if home::page_bytes(first) != Some(slot.page_bytes) {
                return Err(Error::Corrupt(format!(
                    "the header of {} does not state the page size of its log ({} bytes)",
                    db.path.display(),
                    slot.page_bytes
                )));
            }
            home::unmark(first);
            base = base.after(Tid::HOME, slot.page_bytes, slot.page_count, slot.change_counter, Some(*first));
        }
        base.change_counter = base.change_counter.max(slot.change_counter);
        Ok(base)
    }

    /// The result needs a database header, and every page in home or in a record. `page_count_min`:
    /// pages of every state.
    fn check(&self, mut replayed: Replayed, home_bytes: u64, page_count_min: u32) -> Result<Replayed> {
        let Replay { db, log, slot, .. } = *self;
        let Replayed { table, state, report, .. } = &mut replayed;
        let shown = State::of_home(&state.header, state.bytes());
        if report.transactions > 0 && (shown.kind, shown.page_bytes) != (FileKind::Database, slot.page_bytes) {
            // No recovery would take it for the log's home (invariant I8).
            return Err(Error::Corrupt(format!(
                "the transactions in the log {} lead to a header that is not one of a database with pages of {} bytes. \
             Nothing was changed",
                log.path.display(),
                slot.page_bytes
            )));
        }
        let says_size = slot.page_count != PAGE_COUNT_IN_HOME;
        if says_size && home_bytes < u64::from(page_count_min) * u64::from(slot.page_bytes) {
            return Err(Error::Corrupt(format!(
                "{} is shorter than its log says: {home_bytes} bytes, where {page_count_min} pages of {} bytes belong. It \
             was cut short or copied in part; nothing was changed. Put the whole file back beside its log",
                db.path.display(),
                slot.page_bytes
            )));
        }
        // Added pages are in records (rule AbsoluteBytes): a number alone cannot make home grow
        // (rule DamageIsTold, invariant I6).
        let home_pages = home_bytes / u64::from(slot.page_bytes);
        let (pages, added) = table.count_dirty(state.page_count, home_pages)?;
        if report.transactions > 0 && u64::from(state.page_count) > home_pages.saturating_add(added) {
            return Err(Error::Corrupt(format!(
                "the transactions in the log {} state a size of {} pages, of which neither they nor {} have all. Nothing was \
             changed",
                log.path.display(),
                state.page_count,
                db.path.display()
            )));
        }
        report.pages = pages;
        Ok(replayed)
    }
}

fn read_home(db: &Database, slot: &Slot, page: PageNo, image: &mut [u8]) -> Result<()> {
    let what = || db.what("cannot read");
    let at = page.offset(slot.page_bytes);
    let read = db.home.read_at(image, at).context(what)?;
    // Home may lack pages that are cut off later, but no part of one (invariant I7).
    if read < image.len() && db.home.len().context(what)? > at + read as u64 {
        return Err(Error::home_ends_within(&db.path, page));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::layout::home as at;
    use crate::base::options::Options;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::disk::{Disk, OpenMode};
    use crate::log::group::{Audience, Durability};
    use crate::log::record::Encoder;
    use crate::log::ring::Log;
    use crate::pages::apply::REPLAYED_BYTES;
    use std::path::Path;
    use std::sync::Arc;

    const PAGE: usize = 65536;
    const PAGES: u32 = 1500;

    struct Nobody;

    impl Audience for Nobody {
        fn show(&self, _: Arc<State>) {}
        fn poison(&self, error: Error) -> Error {
            error
        }
    }

    #[test]
    fn a_log_that_names_more_than_memory_should_hold() {
        let disk = SimDisk::new(SimConfig { capacity: 1 << 28, ..SimConfig::default() });
        let home = disk.open(Path::new("/db"), OpenMode::Create).unwrap();
        let mut first = vec![0; PAGE];
        first[..16].copy_from_slice(at::MAGIC);
        first[at::PAGE_SIZE + 1] = 1; // 65536

        (first[at::WRITE_VERSION], first[at::READ_VERSION], first[at::PAGE_COUNT + 3]) = (1, 1, 1);
        home.write_at(&first, 0).unwrap();
        let slot = Slot {
            block_bytes: 4096,
            sequence: 0,
            session: 1,
            salt: 2,
            start: LogOffset(0),
            ring_bytes: 1 << 20,
            base_tid: Tid(10),
            tid_ceiling: Tid(1000),
            prev_crc: 0,
            page_bytes: PAGE as u32,
            page_count: 1,
            change_counter: 0,
            counter_ceiling: 1000,
            live: true,
            in_place: false,
        };
        let file = Log::create(LogFile::make(&disk, Path::new("/db-onewrite")), 1 << 20, 4096).unwrap();
        let mut log = Log::start(file, slot, true, true).unwrap();
        let zeros = vec![0; PAGE];
        for round in 1..3u8 {
            let mut e = Encoder::default();
            e.clear();
            for page in 2..=PAGES {
                let mut image = vec![0; PAGE];
                image[usize::from(round)] = page as u8 | 1;
                e.add_delta(PageNo(page), (round > 1).then_some(zeros.as_slice()), &image).unwrap();
            }
            let made =
                State { page_count: PAGES, change_counter: u32::from(round), ..State::empty(log.last_tid().next()) };
            let head = log.head(&made);
            let (record, crc) = e.finish(&head);
            let way = log.make_way(record, false, &Nobody).unwrap();
            log.push(&way, record, crc, &Arc::new(State::empty(head.tid)), Durability::Flushed);
            log.group().wait(head.tid, Durability::Flushed, &Nobody).unwrap();
        }
        let db =
            Database::new(Arc::new(disk), Path::new("/db"), home, Options::default(), crate::connection::schemes::of);
        // Waiting images count as made: with so many, recovery brings all home.
        let all = u64::from(PAGES - 1) * PAGE as u64;
        // Enough for the first change of each page, of 3 bytes, and for some second ones.
        let few_bytes = u64::from(PAGES) * 4;
        for (may_wait_bytes, counted) in
            [(0, REPLAYED_BYTES), (few_bytes, REPLAYED_BYTES - PAGE as u64), (WAITING_BYTES, all)]
        {
            let led = Replay { db: &db, log: log.file(), slot: log.slot(), accept_loss: false, may_wait_bytes };
            let Led::There(replayed) = led.run(None).unwrap() else { unreachable!("home has no mark") };
            let counted = counted..counted + 2 * PAGE as u64;
            assert!(counted.contains(&replayed.table.new_bytes()), "{} in {counted:?}", replayed.table.new_bytes());
            holds_little(&replayed, may_wait_bytes > 0);
        }
    }

    fn holds_little(replayed: &Replayed, waits: bool) {
        assert_eq!((replayed.report.transactions, replayed.report.pages), (2, u64::from(PAGES) - 1));
        let mut temporary = 0;
        for page in 2..=PAGES {
            let mut image = vec![0; PAGE];
            match replayed.table.find(PageNo(page), Tid(u64::MAX)) {
                ImageLocation::Memory(i) => image.copy_from_slice(&i),
                ImageLocation::Log(file, position) => {
                    file.read_at(&mut image, position).unwrap();
                    temporary = file.len().unwrap();
                }
                ImageLocation::Unmade(chain) if waits => {
                    image = chain.image(PageNo(page), |_| unreachable!("home has one page")).unwrap().unwrap();
                }
                _ => unreachable!("every page was replayed"),
            }
            assert_eq!(image[..3], [0, page as u8 | 1, page as u8 | 1], "page {page}");
        }
        assert!(temporary <= u64::from(PAGES) * PAGE as u64, "each page has one place");
    }
}
