//! Reading and writing the database file: the overlay of a writer over the snapshot.

use std::sync::atomic::Ordering;

use super::role::{ReadTransaction, Role, WriteTransaction, WriterTurn};
use super::{Connection, LockLevel, concurrent};
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{home as at, put};
use crate::base::memory::{self, Room};
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid};
use crate::commit::stream;
use crate::database::{Database, LiveDatabase};
use crate::pages::image::Image;
use crate::pages::table::part;
use crate::pages::txn::{Txn, TxnStage};
use crate::sqlite_format::home::{self, FileKind, HomeMark, State};

/// The bytes by which SQLite checks its cache. Applications see the sizes only by pragmas
/// ([`Connection::note_size_asked`]).
const SIZES: std::ops::Range<usize> = at::CHANGE_COUNTER..at::CHANGE_COUNTER + at::VERSION_BYTES;

/// How much of an invisible state a read may show.
enum Shows {
    Nothing,
    /// A write transaction reads it as well.
    FirstPage,
    /// No write transaction begins with it.
    MorePages,
}

impl Connection {
    /// xRead; returns the bytes read, fewer only at the end.
    pub fn read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.journal.end_rollback();
        match self.read_at_rest(buf, offset) {
            Ok(false) => self.read_and_see(buf, offset),
            read => self.noted(read.map(|_whole| buf.len())),
        }
    }

    /// A page of the snapshot, where home rests. False: it is read in another way.
    fn read_at_rest(&mut self, buf: &mut [u8], offset: u64) -> Result<bool> {
        let Role::Reader(reader) = &self.role else { return Ok(false) };
        if self.may_show_too_much() {
            return Ok(false);
        }
        let Some(page) = reader.whole_page(offset, buf.len()) else { return Ok(false) };
        let is_read = self.db.read_page_at_rest(&reader.state, page, &mut self.ahead, buf)?;
        if is_read {
            self.habit.has_read = true;
            self.cache.note(page, false);
        }
        Ok(is_read)
    }

    #[inline(never)]
    fn read_and_see(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.read(buf, offset);
        // Rule MergeIsSerial.
        let empties = self.role.txn().is_none() && self.looked().is_some();
        match (&read, self.role.snapshot()) {
            (Ok(n), Some(snapshot)) if *n == at::VERSION_BYTES && offset == at::CHANGE_COUNTER as u64 => {
                if let Ok(version) = buf.try_into() {
                    self.cache.answer(snapshot, version, empties);
                }
            }
            (Ok(n), _) => self.cache.saw(buf.get(..*n).unwrap_or_default(), offset),
            _ => {}
        }
        self.noted(read)
    }

    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.habit.has_read |= offset >= at::HEADER_BYTES as u64;
        if self.may_show_too_much() {
            match self.shows(offset, buf.len())? {
                Shows::Nothing => {}
                Shows::FirstPage => self.settle()?,
                Shows::MorePages => {
                    self.doubt();
                    self.settle()?;
                }
            }
        }
        let db = &*self.db;
        let (reader, mut txn) = match &mut self.role {
            Role::Reader(reader) | Role::Below(Some(reader)) => (Some(reader), None),
            Role::Writer(WriteTransaction { reader, txn, .. }) => (Some(reader), Some(txn)),
            Role::Idle | Role::Aside(_) | Role::Below(None) | Role::Lost => (None, None),
        };
        let notes_all = reader.as_ref().is_some_and(|reader| reader.runs_apart());
        let Some(ReadTransaction { state: snapshot, looked, .. }) =
            reader.filter(|r| r.state.kind != FileKind::Foreign)
        else {
            return self.read_home(buf, offset);
        };
        let (size, limit) = match &txn {
            Some(txn) => (txn.page_bytes, txn.file_bytes),
            None => (snapshot.page_bytes, snapshot.bytes()),
        };
        let limit = looked.as_ref().and_then(|looked| looked.file_bytes()).unwrap_or(limit);
        let len = usize::try_from(limit.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let asks_for_sizes = offset == SIZES.start as u64 && len == SIZES.len();
        let strange = asks_for_sizes && txn.is_none() && looked.is_some();
        for piece in Txn::split(size, offset, len) {
            let (page, in_page, range) = piece?;
            let Some(to) = buf.get_mut(range) else { continue };
            self.cache.note(page, notes_all);
            if let Some(own) = looked.as_ref().and_then(|looked| looked.read(page)) {
                to.copy_from_slice(part(own, in_page, to.len())?);
                continue;
            }
            match &mut txn {
                Some(txn) => {
                    let is_home = read_overlay(db, txn, page, in_page, to)?;
                    if is_home && to.len() == size as usize {
                        txn.note_read(page, to);
                    }
                }
                None if to.len() == size as usize => db.read_page_ahead(snapshot, page, &mut self.ahead, to)?,
                None => drop(db.read_page(snapshot, page, in_page, to)?),
            }
        }
        if strange {
            concurrent::strange_sizes(buf);
        }
        Ok(len)
    }

    /// Pages of SQLite's cache that differ, page 1 perhaps missing; `None`: any may.
    pub fn changed_pages(&mut self) -> Option<&[u32]> {
        let snapshot = match &self.role {
            Role::Reader(ReadTransaction { state, looked: None, .. }) => state,
            _ => return None,
        };
        self.cache.changed(snapshot, &self.db.table.read())
    }

    pub(super) fn may_show_too_much(&self) -> bool {
        let doubtless = self.place == WriterTurn::Tentative { doubtless: true };
        let unsettled = || self.role.pinned().is_some_and(|reader| reader.unsettled);
        (doubtless || unsettled()) && self.role.txn().is_none()
    }

    /// A write transaction reads page 1 before it takes its lock, and the next page after that.
    fn shows(&self, offset: u64, len: usize) -> Result<Shows> {
        let Some(ReadTransaction { state: snapshot, unsettled, .. }) = self.role.pinned() else {
            return Ok(Shows::Nothing);
        };
        let end = offset.saturating_add(len as u64);
        if end > u64::from(snapshot.page_bytes) {
            return Ok(Shows::MorePages);
        }
        if !unsettled || (offset >= SIZES.start as u64 && end <= SIZES.end as u64) {
            return Ok(Shows::Nothing);
        }
        let visible = self.db.inner.lock().latest.clone();
        let changed = self.db.table.read().made_by(PageNo::HEADER, snapshot.tid).is_some_and(|tid| tid > visible.tid);
        if !changed {
            return Ok(Shows::Nothing);
        }
        if visible.page_bytes != snapshot.page_bytes || visible.page_count == 0 {
            return Ok(Shows::FirstPage);
        }
        // A transaction that only grew the file changed only sizes. If the visible state moves on,
        // an older image is compared, and this snapshot is visible, too.
        let (now, before) = (self.db.image(snapshot, PageNo::HEADER)?, self.db.image(&visible, PageNo::HEADER)?);
        Ok(if without_sizes(&now) == without_sizes(&before) { Shows::Nothing } else { Shows::FirstPage })
    }

    /// SQLite reads the page size before its first lock, into no cache; aside, all is plain.
    fn read_home(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if self.level > LockLevel::None {
            self.cache.note_any();
        }
        let db = &self.db;
        let n = db.home.read_at(buf, offset).context(|| db.what("cannot read"))?;
        if offset > 0 || self.is_aside() {
            return Ok(n);
        }
        let read = buf.get(..n).unwrap_or_default();
        let is_empty = match home::mark(read) {
            Some(_) => {
                home::unmark(buf);
                home::page_count(buf) == Some(0)
            }
            // A power cut may leave the mark's length without its bytes.
            None if read.iter().all(|byte| *byte == 0) => {
                let bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
                State::of_home(read, bytes).kind == FileKind::Empty
            }
            None => false,
        };
        if is_empty { Ok(self.header_to_come(buf)) } else { Ok(n) }
    }

    /// SQLite makes a new database with the pages of this header, as the scheme needs them.
    fn header_to_come(&self, buf: &mut [u8]) -> usize {
        let asked = self.db.scheme().new_pages(&self.db, &self.db.inner.lock().options);
        let Some((page_bytes, reserved)) = asked.filter(|_| buf.len() == at::HEADER_BYTES) else { return 0 };
        buf.copy_from_slice(&home::empty_marked(page_bytes, HomeMark::new(0, Tid(0))));
        home::unmark(buf);
        put(buf, at::RESERVED, &[reserved]);
        at::HEADER_BYTES
    }

    /// xWrite: any offset and length.
    pub fn write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        self.cache.saw(data, offset);
        let written = self.write(data, offset);
        self.noted(written)
    }

    fn write(&mut self, data: &[u8], offset: u64) -> Result<()> {
        if self.is_aside() {
            self.cache.note_any();
            return self.db.home.write_at(data, offset).context(|| self.db.what("cannot write"));
        }
        if self.plays_back()? {
            return Ok(());
        }
        self.begin_again()?;
        if self.role.is_doomed() && !self.is_apart() {
            // SQLite plays its journal back: the snapshot has these pages.
            return Ok(());
        }
        let db = &*self.db;
        let runs_apart = self.role.pinned().is_some_and(ReadTransaction::runs_apart);
        let Some(txn) = self.role.txn_mut() else {
            return Err(Error::Misuse("a write without a write lock".into()));
        };
        if txn.page_bytes == 0 {
            let size = u32::try_from(data.len()).unwrap_or(0);
            if !(size.is_power_of_two() && (512..=65536).contains(&size)) {
                return Err(Error::Misuse(format!("the first write to an empty database has {size} bytes")));
            }
            txn.page_bytes = size;
        }
        let size = txn.page_bytes as usize;
        for piece in Txn::split(txn.page_bytes, offset, data.len()) {
            let (page, in_page, range) = piece?;
            self.cache.note(page, runs_apart);
            let bytes = part(data, range.start, range.len())?;
            let image = if bytes.len() == size {
                Image::copy(bytes)?
            } else {
                let mut whole = memory::zeros(size)?;
                read_overlay(db, txn, page, 0, &mut whole)?;
                whole.get_mut(in_page..in_page + bytes.len()).unwrap_or_default().copy_from_slice(bytes);
                Image::from(whole)
            };
            if txn.streamed.get(page).is_some() {
                let mut writer = db.writer.lock();
                let live = writer.as_mut().ok_or_else(|| Error::Misuse("a write without a log".into()))?;
                stream::page(db, live, txn, page, &image)?;
            } else {
                txn.pages.room(1)?;
                txn.pages.insert(page, image);
            }
        }
        txn.file_bytes = txn.file_bytes.max(offset + data.len() as u64);
        let limit = db.stream_bytes.load(Ordering::Relaxed);
        if txn.memory_bytes() > limit && !txn.doomed {
            self.line_up(true)?;
            let db = &*self.db;
            let Some(txn) = self.role.txn_mut() else { return Ok(()) };
            let mut writer = db.writer.lock();
            let live = writer.as_mut().ok_or_else(|| Error::Misuse("a write without a log".into()))?;
            // Also the pages that a rollback writes.
            db.check(live.member())?;
            if txn.streamed.is_empty() {
                let options = db.inner.lock().options.clone();
                stream::begin(db, live, &options, txn)?;
            }
            stream_out(db, live, txn)?;
        }
        Ok(())
    }

    /// SQLite plays its journal back: the snapshot has the pages, so that a rollback needs neither
    /// room nor a log (rule RollbackIsReal).
    pub(super) fn plays_back(&mut self) -> Result<bool> {
        if !self.journal.rolls_back() || self.is_apart() || self.role.is_doomed() {
            return Ok(false);
        }
        if self.role.txn().is_some_and(|txn| !txn.is_untouched()) {
            self.reopen()?;
            self.roll_back()?;
        }
        Ok(true)
    }

    /// Begins anew after a commit without an unlock, or a prepare without a commit.
    pub(super) fn begin_again(&mut self) -> Result<()> {
        self.write_after_merge()?;
        self.take_place_again()?;
        match self.role.txn() {
            Some(_) => self.reopen(),
            None => self.mark_again(),
        }
    }

    /// After a prepare SQLite rolls back by writing old pages, or a VFS on top kept pages back
    /// until xSync: earlier writes stay (rule WholeTransaction).
    pub(super) fn reopen(&mut self) -> Result<()> {
        self.cancel()?;
        let Some(txn) = self.role.txn_mut().filter(|txn| matches!(txn.stage, TxnStage::Prepared(_))) else {
            return Ok(());
        };
        txn.stage = TxnStage::Open;
        match self.db.writer.lock().as_mut() {
            Some(live) => stream::leave_to_memory(&self.db, live, txn),
            None => Ok(()),
        }
    }

    pub(super) fn roll_back(&mut self) -> Result<()> {
        let Some((base, doomed)) = self.role.txn().map(|txn| (txn.base.clone(), txn.doomed)) else { return Ok(()) };
        self.drop_txn()?;
        self.role.write(Txn { doomed, ..Txn::new(base) });
        Ok(())
    }

    /// xTruncate.
    pub fn truncate(&mut self, len: u64) -> Result<()> {
        if self.is_aside() {
            let cut = self.cut_home(len);
            return self.noted(cut);
        }
        let plays_back = self.plays_back();
        if self.noted(plays_back)? {
            return Ok(());
        }
        if let Some(Txn { stage: TxnStage::Prepared(prepared), .. }) = self.role.txn()
            && len == prepared.state.bytes()
        {
            // Auto-vacuum cuts after the prepare; the record says so already.
            return Ok(());
        }
        let begun = self.begin_again();
        self.noted(begun)?;
        match self.role.txn_mut() {
            Some(txn) => txn.truncate(len),
            None => return Err(Error::Misuse("a truncation without a write lock".into())),
        }
        Ok(())
    }

    /// SQLite cuts off pages that its journal need not have, and a power cut may bring back a
    /// journal that was removed or cut to nothing (rule JournalInOrder).
    fn cut_home(&mut self, len: u64) -> Result<()> {
        let db = self.db.clone();
        let what = || db.what("cannot flush the end of the rollback journal of");
        match self.role.real_journal() {
            _ if !keeps(Case::JournalRemovalFlushed) => {}
            None => db.disk.sync_dir_of(db.journal_path()).context(what)?,
            Some(journal) if journal.file.len().context(what)? == 0 => journal.file.sync().context(what)?,
            Some(_) => {}
        }
        db.home.set_len(len).context(|| db.what("cannot shorten"))
    }

    /// xFileSize.
    pub fn size(&mut self) -> Result<u64> {
        let db = &*self.db;
        let size = match (self.role.txn(), self.role.snapshot()) {
            (Some(txn), _) => Ok(txn.file_bytes),
            (None, Some(snapshot)) if snapshot.kind != FileKind::Foreign => Ok(snapshot.bytes()),
            _ => db.home.len().context(|| db.what("cannot read the length of")),
        };
        self.noted(size)
    }
}

fn without_sizes(image: &[u8]) -> [Option<&[u8]>; 3] {
    let parts = [0..SIZES.start, SIZES.end..at::VERSION_VALID_FOR, at::HEADER_BYTES..image.len()];
    parts.map(|part| image.get(part))
}

/// Returns whether the bytes are from home.
fn read_overlay(db: &Database, txn: &Txn, page: PageNo, in_page: usize, to: &mut [u8]) -> Result<bool> {
    if let Some(image) = txn.pages.get(&page) {
        to.copy_from_slice(part(image, in_page, to.len())?);
    } else if stream::read(db, txn, page, in_page, to)? {
        return Ok(false);
    } else if page.0 <= txn.base_limit && page.0 <= txn.base.page_count {
        return db.read_page(&txn.base, page, in_page, to);
    } else {
        to.fill(0);
    }
    Ok(false)
}

/// Page 1 stays in memory: the commit needs it.
fn stream_out(db: &Database, live: &mut LiveDatabase, txn: &mut Txn) -> Result<()> {
    let mut pages: Vec<PageNo> = memory::list(txn.pages.len())?;
    pages.extend(txn.pages.keys().copied().filter(|p| *p != PageNo::HEADER));
    pages.sort_unstable();
    stream::pages(db, live, txn, &pages)?;
    txn.pages.shrink_to(64);
    Ok(())
}
