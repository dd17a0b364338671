//! Replay: the live records of a log become versions in a page table, over what home holds. Nothing is written. Of most pages no image
//! is made before somebody needs it (`chains.rs`): that a record counts is decided by its own bytes.
//!
//! The bytes of a record are absolute and pages are not looked into (rule AbsoluteBytes), so a page that a crash
//! tore in home becomes whole (invariant I8), and what is replayed twice is the same.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use crate::chains::{Added, Chains};
use crate::checkpoint::ends_in_home;
use crate::database::Database;
use crate::error::{Error, IoContext, Result};
use crate::home::{self, Header, Kind, State};
use crate::image_file::ImageFile;
use crate::layout::home as at;
use crate::layout::slot::PAGE_COUNT_IN_HOME;
use crate::log::file::{Cursor, LogFile};
use crate::log::record::Decider;
use crate::log::record::{Change, Record};
use crate::log::slot::Slot;
use crate::memory;
use crate::roll_back;
use crate::rules::{Case, keeps};
use crate::snapshots::Snapshots;
use crate::table::{Image, PageTable, Place, Readers, Streamed};
use crate::types::{LogOffset, PageNo, Tid};

/// What recovery found, for people.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Transactions replayed.
    pub transactions: u64,
    /// Their first and last TID.
    pub tids: Option<(Tid, Tid)>,
    /// The last transaction that an in-page scheme had in flight, and whether it was undone.
    pub in_place: Option<(Tid, bool)>,
    /// Pages that differ from what home held below them.
    pub pages: u64,
    /// Damage that was passed over because the caller said so: the TID lost, and a later one that was seen.
    pub lost: Option<(Tid, Tid)>,
}

/// What replaying the log gives.
pub struct Replayed {
    /// Images newer than home.
    pub table: PageTable,
    /// The newest committed state.
    pub state: State,
    /// For people.
    pub report: Report,
    /// Behind the last record.
    pub cursor: Cursor,
    /// Up to here at least, the records have called each other durable.
    pub told_durable: LogOffset,
    /// What has decided the last one, if that was of a transaction over several files.
    pub decider: Option<Decider>,
}

/// Where the records lead.
pub enum Led {
    /// To this state.
    There(Box<Replayed>),
    /// Home is of a moment before the first of them (rule HomeFitsLog).
    HomeOlder,
    /// Home is of a moment that none of them led to (rule HomeFitsLog).
    HomeNewer,
}

/// What is replayed: the records of `log` behind `slot`, over what `db` holds in home.
struct Replay<'a> {
    db: &'a Database,
    log: &'a LogFile,
    slot: &'a Slot,
    /// A damaged record ends the log instead of being an error.
    accept_loss: bool,
    /// No image is made before somebody needs it, if there is memory for what leads to it.
    waits: bool,
}

/// Replays the records of `log` behind `slot` over what `db` holds in home. Nothing is written.
/// With `accept_loss`, a damaged record ends the log instead of being an error. `told`: the newest transaction that was written, where that
/// is known.
pub fn replay(db: &Database, log: &LogFile, slot: &Slot, told: Option<Tid>, accept_loss: bool) -> Result<Led> {
    Replay { db, log, slot, accept_loss, waits: true }.run(told)
}

impl Replay<'_> {
    /// `told`: as in [`replay`].
    fn run(&self, told: Option<Tid>) -> Result<Led> {
        let Replay { db, log, slot, accept_loss, waits } = *self;
        let mut first = [0; at::HEADER_BYTES];
        db.home.read_at(&mut first, 0).context(|| db.what("cannot read"))?;
        let mark = home::mark(&first).filter(|mark| mark.tid != Tid(0) && keeps(Case::HomeFitsLog));
        if mark.is_some_and(|mark| mark.whole < slot.base_tid) {
            return Ok(Led::HomeOlder);
        }
        let home_bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
        let (mut table, mut report) = (PageTable::default(), Report::default());
        let mut state = self.base(&mut first, &mut table, &mut report)?;
        // What was there from the checkpoint on is in home, also after a recovery that crashed when it had
        // shortened home to the size of the newest state.
        let mut page_count_min = state.page_count;
        let snapshots = Snapshots::default();
        let nobody = Readers { snapshots: &snapshots, visible: Tid(u64::MAX) };
        let home = |page: PageNo, image: &mut [u8]| read_home(db, slot, page, image);
        let source = Source { db, log, slot, home: &home };
        let mut overflow = Overflow { db, images: ImageFile::default() };
        let mut later = if waits { Some(Later::new(slot, home_bytes)?) } else { None };
        // Its owner is dead (rule PreparedThenDecided).
        let mut decider = None;
        // A checkpoint brings home what a record made; a log that goes on differently from there has none with its TID.
        let mut fits = mark.is_none_or(|mark| mark.tid == slot.base_tid);
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
                if later.as_ref().is_some_and(|later| !later.takes(record)) {
                    table.adopt(later.take().and_then(|later| later.chains.finish()));
                }
                let mut now =
                    Now { source: &source, table: &mut table, readers: nobody, overflow: Some(&mut overflow) };
                state = now.apply(&state, record, later.as_mut())?;
                page_count_min = page_count_min.min(state.page_count);
                fits |= mark.is_some_and(|mark| mark.tid == record.head.tid);
                if !record.is_of_recovery() {
                    report.transactions += 1;
                    report.tids = Some((report.tids.map_or(record.head.tid, |t| t.0), record.head.tid));
                }
                Ok(())
            },
        )?;
        if let Some(later) = later {
            table.adopt(later.chains.finish());
        }
        if let Some((lost, seen)) = end.rot {
            if !accept_loss {
                return Err(Error::Corrupt(format!(
                    "the log {} is damaged: transaction {lost} was durable and cannot be read any more (transaction \
                     {seen}, behind it, can). Nothing was changed. Restore the log, or give up all transactions from \
                     {lost} on with `onewrite recover --accept-loss`",
                    log.path.display()
                )));
            }
            report.lost = Some((lost, seen));
        }
        // What went in place has no record.
        if !fits && !slot.in_place {
            return Ok(Led::HomeNewer);
        }
        let cursor = Cursor { tail: end.tail, prev_crc: end.prev_crc, last_tid: end.last_tid, first: slot.start };
        let replayed = Replayed { table, state, report, cursor, told_durable: end.told_durable, decider };
        Ok(Led::There(Box::new(self.check(replayed, home_bytes, page_count_min)?)))
    }

    /// The state that records are applied to: what the slot says of home or, if that is left to its header, what that says when the
    /// last transaction that went in place is whole or undone, by versions in the table.
    fn base(&self, first: &mut Header, table: &mut PageTable, report: &mut Report) -> Result<State> {
        let Replay { db, log, slot, accept_loss, .. } = *self;
        let mut base = State::empty(Tid::HOME);
        let in_place = slot.page_count == PAGE_COUNT_IN_HOME;
        let has_records = in_place && !log.scan(slot, |_| Ok(()))?.is_empty();
        if slot.is_in_page() && !has_records && home::page_count(first) != Some(0) {
            let scan = roll_back::scan(db, slot, table, accept_loss)?;
            report.in_place = scan.last.map(|(tid, _)| (tid, scan.undone));
            if let Place::Memory(image) = table.find(PageNo::HEADER, Tid(u64::MAX))
                && let Some(header) = image.get(..at::HEADER_BYTES)
            {
                first.copy_from_slice(header);
            }
        }
        if in_place {
            if home::page_count(first) != Some(0) {
                home::unmark(first);
                // A checkpoint that was cut short has written the header before the last page.
                let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
                base = State::of_home(first, if has_records { u64::MAX } else { bytes });
                if !has_records && base.kind != Kind::Database {
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

    /// Whether what was replayed can be brought home: with a header of a database, over a home that has the pages which no record
    /// has. `page_count_min`: pages that every state had.
    fn check(&self, mut replayed: Replayed, home_bytes: u64, page_count_min: u32) -> Result<Replayed> {
        let Replay { db, log, slot, .. } = *self;
        let Replayed { table, state, report, .. } = &mut replayed;
        let shown = State::of_home(&state.header, state.bytes());
        if report.transactions > 0 && (shown.kind, shown.page_bytes) != (Kind::Database, slot.page_bytes) {
            // Written home, it would be a file that no recovery takes for the one that belongs to the log (invariant I8).
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
        // A page that a transaction adds is in its record (rule AbsoluteBytes), so no number alone makes home grow
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

/// Reads the image of a page in home.
fn read_home(db: &Database, slot: &Slot, page: PageNo, image: &mut [u8]) -> Result<()> {
    let what = || db.what("cannot read");
    let at = page.offset(slot.page_bytes);
    let read = db.home.read_at(image, at).context(what)?;
    // Home may end before a page that a later record cut off, but not within what it has (invariant I7).
    if read < image.len() && db.home.len().context(what)? > at + read as u64 {
        return Err(ends_in_home(db, page));
    }
    Ok(())
}

/// What a record is applied to.
pub struct Source<'a> {
    /// The database.
    pub db: &'a Database,
    /// Its log.
    pub log: &'a LogFile,
    /// The slot that counts.
    pub slot: &'a Slot,
    /// Reads the image of a page in home.
    pub home: &'a dyn Fn(PageNo, &mut [u8]) -> Result<()>,
}

/// Bytes of replayed images in memory; more go to a temporary file. A record of thirteen bytes can name a page of
/// 64 KiB, so a log of some megabytes can ask for gigabytes (invariant I6).
const REPLAYED_BYTES: u64 = 32 << 20;

/// Replayed images that are not in memory. Nobody reads older versions of them, so each page has one place.
pub struct Overflow<'a> {
    db: &'a Database,
    images: ImageFile,
}

impl Overflow<'_> {
    /// Where `image` of a page that is at `old` so far is to be.
    fn place(&mut self, table: &PageTable, old: &Place, image: Vec<u8>) -> Result<Place> {
        const WHAT: &str = "cannot keep a replayed image in a temporary file beside";
        if table.new_bytes() < REPLAYED_BYTES {
            return Ok(Place::Memory(Image::from(image)));
        }
        if let Place::Log(file, position) = old
            && self.images.is(file)
        {
            file.write_at(&image, *position).context(|| self.db.what(WHAT))?;
            return Ok(old.clone());
        }
        let (file, position) = self.images.append(&*self.db.disk, &self.db.path, &image, || self.db.what(WHAT))?;
        Ok(Place::Log(file, position))
    }
}

/// Changes of which no image is made before somebody needs it.
struct Later {
    chains: Chains,
    /// One of which home has a part.
    cut: Option<PageNo>,
}

impl Later {
    fn new(slot: &Slot, home_bytes: u64) -> Result<Later> {
        let page_bytes = u64::from(slot.page_bytes.max(1));
        let home_pages = u32::try_from(home_bytes / page_bytes).unwrap_or(u32::MAX);
        let cut = (!home_bytes.is_multiple_of(page_bytes)).then_some(PageNo(home_pages.saturating_add(1)));
        Ok(Later { chains: Chains::new(slot.page_bytes, home_pages, slot.ring_bytes)?, cut })
    }

    /// Whether the changes of `record` may wait: there is memory for them, and no streamed image lies over them.
    fn takes(&self, record: &Record<'_>) -> bool {
        record.head.stream.count == 0 && self.chains.has_room(record.bytes())
    }

    /// Page 1 has the header of the state.
    fn takes_page(&self, page: PageNo) -> bool {
        page != PageNo::HEADER && self.cut != Some(page)
    }
}

/// What records are applied to.
struct Now<'a, 'b> {
    source: &'a Source<'b>,
    table: &'a mut PageTable,
    readers: Readers<'a>,
    /// With it nobody reads, and each page has one version.
    overflow: Option<&'a mut Overflow<'b>>,
}

/// Applies a record to `state`; its images become versions in `table`, all of them in memory.
pub fn apply(
    source: &Source<'_>,
    table: &mut PageTable,
    state: &State,
    record: &Record<'_>,
    readers: Readers<'_>,
) -> Result<State> {
    Now { source, table, readers, overflow: None }.apply(state, record, None)
}

impl Now<'_, '_> {
    /// Applies a record to `state`, or what may wait of it to `later`.
    fn apply(&mut self, state: &State, record: &Record<'_>, mut later: Option<&mut Later>) -> Result<State> {
        let Source { log, slot, .. } = self.source;
        let tid = record.head.tid;
        let mut done = Ok(());
        let mut header: Option<Header> = None;
        record.for_each(|page, change| {
            if done.is_err() {
                return;
            }
            done = self.change(page, tid, change, later.as_deref_mut(), &mut header);
        });
        done?;
        if record.head.stream.count > 0 {
            let (mut streamed, mut end) = (Streamed::default(), record.head.stream.index_end());
            let is_whole = log.for_each_streamed(record, |page, position, crc| {
                end = end.max(position.saturating_add(slot.page_bytes.into()));
                streamed.set(PageNo(page), position, crc)
            })?;
            if !is_whole {
                return Err(Error::Corrupt(format!(
                    "the log {} has lost the index of what transaction {tid} streamed",
                    log.path.display()
                )));
            }
            if self.table.has_layer() {
                return Err(Error::Corrupt(format!(
                    "the log {} holds two big transactions without a checkpoint between them",
                    log.path.display()
                )));
            }
            self.table.publish_layer(tid, streamed, log.file.clone(), end);
        }
        if record.head.page_count == 0 {
            return Err(Error::Corrupt(format!("transaction {tid} in the log {} leaves no page", log.path.display())));
        }
        Ok(state.after(tid, slot.page_bytes, record.head.page_count, record.head.change_counter, header))
    }

    /// Makes the image that `change` leads to the newest one of `page`, if it may not wait. The `header` in it, if it is that of page 1.
    fn change(
        &mut self,
        page: PageNo,
        tid: Tid,
        change: Change<'_>,
        later: Option<&mut Later>,
        header: &mut Option<Header>,
    ) -> Result<()> {
        let mut note = |image: &[u8]| {
            if page == PageNo::HEADER {
                *header = image.get(..at::HEADER_BYTES).and_then(|h| h.try_into().ok());
            }
        };
        let mut made = None;
        if let Some(later) = later.filter(|later| later.takes_page(page)) {
            made = match later.chains.add(page, tid, change)? {
                Added::Waits => return Ok(()),
                Added::Made => None,
                Added::Long(last) => {
                    let home = |image: &mut [u8]| (self.source.home)(page, image).map(|()| image.len());
                    later.chains.image(page, last, home)?
                }
            };
        }
        if made.is_none()
            && self.overflow.is_some()
            && let Some(image) = self.table.amend(page, tid)
        {
            change.apply(image);
            note(image);
            return Ok(());
        }
        let old = self.table.find(page, tid);
        let mut image = match (made, change) {
            (Some(image), _) => image,
            (None, Change::Delta(_)) => previous_image(self.source, page, &old)?,
            (None, Change::Fresh(_) | Change::Image(_)) => memory::zeros(self.source.slot.page_bytes as usize)?,
        };
        self.table.room(1)?;
        change.apply(&mut image);
        note(&image);
        let place = match &mut self.overflow {
            Some(overflow) => overflow.place(self.table, &old, image)?,
            None => Place::Memory(Image::from(image)),
        };
        self.table.publish(page, tid, place, self.readers);
        Ok(())
    }
}

fn previous_image(source: &Source<'_>, page: PageNo, place: &Place) -> Result<Vec<u8>> {
    let Source { db, slot, home, .. } = source;
    let what = || db.what("cannot read");
    if let Place::Memory(old) = place {
        return memory::copy(old);
    }
    if let Place::Unmade(chain) = place {
        let size = |image: &mut [u8]| home(page, image).map(|()| image.len());
        return chain.image(page, size)?.ok_or_else(|| ends_in_home(db, page));
    }
    let mut image = memory::zeros(slot.page_bytes as usize)?;
    match place {
        Place::Memory(_) | Place::Unmade(_) => {}
        Place::Log(file, position) | Place::Kept(file, position) => {
            let read = file.read_at(&mut image, *position).context(what)?;
            if read < image.len() {
                return Err(Error::Corrupt(format!("the log of {} ends within page {page}", db.path.display())));
            }
        }
        Place::Home => {
            home(page, &mut image)?;
            if page == PageNo::HEADER {
                home::unmark(&mut image);
            }
        }
    }
    Ok(image)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::disk::{Disk, OpenMode};
    use crate::layout::home as at;
    use crate::log::group::{Audience, Durability};
    use crate::log::record::{Encoder, Stream};
    use crate::log::ring::Log;
    use crate::options::Options;
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

    /// Two records of some kilobytes each name 94 MiB of pages.
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
            zeroed: false,
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
            let head = log.head(&made, Stream::default());
            let (record, crc) = e.finish(&head);
            let way = log.make_way(record, false, &Nobody).unwrap();
            log.push(&way, record, crc, &Arc::new(State::empty(head.tid)), Durability::Flushed);
            log.group().wait(head.tid, Durability::Flushed, &Nobody).unwrap();
        }
        let db = Database::new(Arc::new(disk), Path::new("/db"), home, Options::default(), crate::scheme::table::of);
        for waits in [false, true] {
            holds_little(&db, log.file(), log.slot(), waits);
        }
    }

    fn holds_little(db: &Database, log: &LogFile, slot: &Slot, waits: bool) {
        let led = Replay { db, log, slot, accept_loss: false, waits }.run(None).unwrap();
        let Led::There(replayed) = led else { unreachable!("home has no mark") };
        assert_eq!((replayed.report.transactions, replayed.report.pages), (2, u64::from(PAGES) - 1));
        // What waits counts as if it were there: with so much of it, recovery brings all home, one page after the other.
        let counted = if waits { u64::from(PAGES - 1) * PAGE as u64 } else { REPLAYED_BYTES };
        assert!((counted..counted + PAGE as u64).contains(&replayed.table.new_bytes()));
        let mut temporary = 0;
        for page in 2..=PAGES {
            let mut image = vec![0; PAGE];
            match replayed.table.find(PageNo(page), Tid(u64::MAX)) {
                Place::Memory(i) => image.copy_from_slice(&i),
                Place::Log(file, position) => {
                    file.read_at(&mut image, position).unwrap();
                    temporary = file.len().unwrap();
                }
                Place::Unmade(chain) if waits => {
                    image = chain.image(PageNo(page), |_| unreachable!("home has one page")).unwrap().unwrap();
                }
                _ => unreachable!("every page was replayed"),
            }
            assert_eq!(image[..3], [0, page as u8 | 1, page as u8 | 1], "page {page}");
        }
        assert!(temporary <= u64::from(PAGES) * PAGE as u64, "each page has one place");
    }
}
