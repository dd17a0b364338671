//! A minimal pager that calls a connection in the order of SQLite's pager in rollback-journal mode
//! (`pager.c`; the format of the journal: SQLite file format, section 3).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite_core::disk::sim::SplitMix64;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::journal::MAGIC;
use onewrite_core::inspect::layout::{be_u32, put};
use onewrite_core::{Connection, Error, LockLevel, Result};

use crate::model::{Plan, State, same};

/// `PRAGMA synchronous`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronous {
    /// No flush.
    Off,
    /// Flushes at checkpoints.
    Normal,
    /// Flushes at commits.
    Full,
}

/// `PRAGMA journal_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalMode {
    /// The journal is deleted.
    Delete,
    /// The journal is cut to nothing.
    Truncate,
    /// The journal's header is zeroed.
    Persist,
}

/// A transaction's course.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Commits, or rolls back.
    pub commit: bool,
    /// The cache spills after this many pages.
    pub spill_after: usize,
    /// Several files commit together.
    pub super_journal: bool,
    /// All use onewrite, so none steps aside.
    pub by_log: bool,
    /// Rolls back after the first phase of the commit.
    pub undo_prepared: bool,
    /// A VFS in between keeps writes back until xSync: the last pages come after FCNTL_SYNC.
    pub late: bool,
}

impl Course {
    /// An ordinary commit.
    pub const COMMIT: Course = Course {
        commit: true,
        spill_after: usize::MAX,
        super_journal: false,
        by_log: false,
        undo_prepared: false,
        late: false,
    };

    /// Draws a transaction over one file.
    pub fn draw(synchronous: Synchronous, rng: &mut SplitMix64) -> Course {
        Course {
            commit: rng.below(8) > 0,
            spill_after: if rng.below(4) == 0 { 1 + rng.below(20) } else { usize::MAX },
            undo_prepared: rng.below(16) == 0,
            late: synchronous != Synchronous::Off && rng.below(12) == 0,
            ..Course::COMMIT
        }
    }
}

const SECTOR: u64 = 512;

struct Journal {
    header_at: u64,
    end: u64,
    count: u32,
    nonce: u32,
    page_bytes: usize,
}

/// A connection's pager.
pub struct Client {
    conn: Connection,
    disk: Arc<dyn Disk>,
    path: PathBuf,
    /// `PRAGMA synchronous`.
    pub synchronous: Synchronous,
    /// `PRAGMA journal_mode`.
    pub journal_mode: JournalMode,
    /// `PRAGMA locking_mode=EXCLUSIVE`.
    pub exclusive: bool,
    /// The current transaction's state.
    pub reading: Option<Arc<State>>,
    journal: Option<Journal>,
    dirty: bool,
    aside: bool,
    nonce: u32,
    /// Bytes 24..40 of page 1 as last read or written (`Pager.dbFileVers`).
    version: Option<Version>,
    /// The state of SQLite's cache.
    cached: Option<Arc<State>>,
    /// The pages that the cache of the drop-in library keeps in a new state: those of this one, but
    /// for some.
    kept: Option<(Arc<State>, Vec<u32>)>,
}

/// Shows SQLite whether its cache is valid.
type Version = [u8; 16];

const VERSION_AT: usize = 24;

impl Client {
    /// A pager on `conn`.
    pub fn new(conn: Connection, disk: Arc<dyn Disk>, path: &Path) -> Self {
        Self {
            conn,
            disk,
            path: path.to_owned(),
            synchronous: Synchronous::Full,
            journal_mode: JournalMode::Delete,
            exclusive: false,
            reading: None,
            journal: None,
            dirty: false,
            aside: false,
            nonce: 0,
            version: None,
            cached: None,
            kept: None,
        }
    }

    /// The connection.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.conn
    }

    /// Whether its process uses the log.
    pub fn is_live(&self) -> bool {
        self.conn.is_live()
    }

    /// Rolls back a hot journal and begins a read transaction. Returns the state of the cache, if
    /// SQLite would keep it, and the file's size.
    pub fn begin(&mut self) -> Result<(Option<Arc<State>>, u64)> {
        let locked = self.conn.lock(LockLevel::Shared);
        self.conn.assert_state();
        locked?;
        if self.conn.journal_exists()? && !self.conn.is_reserved()? {
            let mut first = [0];
            self.conn.journal_open()?;
            if self.conn.journal_read_at(&mut first, 0)? == 1 && first != [0] {
                self.conn.lock(LockLevel::Exclusive)?;
                self.conn.journal_sync()?;
                self.playback(true)?;
                self.conn.unlock(LockLevel::Shared)?;
            }
        }
        let bytes = self.conn.size()?;
        self.kept = None;
        if let Some(cached) = self.cached.take().filter(|_| bytes > 0) {
            let mut version = Version::default();
            self.conn.read_at(&mut version, VERSION_AT as u64)?;
            if self.version == Some(version) {
                self.kept = Some((cached.clone(), Vec::new()));
                return Ok((Some(cached), bytes));
            }
            let changed = self.conn.changed_pages();
            self.kept = changed.map(|pages| (cached, pages.iter().copied().chain([1]).collect()));
        }
        self.version = None;
        if bytes > 0 {
            let mut header = [0; 100];
            self.conn.read_at(&mut header, 0)?;
            let page_bytes = match u16::from_be_bytes([header[16], header[17]]) {
                1 => 65536,
                n => usize::from(n),
            };
            let mut page = vec![0; page_bytes];
            self.conn.read_at(&mut page, 0)?;
            self.saw(&page);
        }
        Ok((None, bytes))
    }

    fn saw(&mut self, page: &[u8]) {
        self.version = page.get(VERSION_AT..).and_then(|v| v.first_chunk()).copied();
    }

    fn write_page(&mut self, page: &[u8], number: u32) -> Result<()> {
        if number == 1 {
            self.saw(page);
        }
        self.conn.write_at(page, u64::from(number - 1) * page.len() as u64)
    }

    /// Reads page `number` of `buf.len()` bytes.
    pub fn read(&mut self, number: u32, buf: &mut [u8]) -> Result<usize> {
        let read = self.conn.read_at(buf, u64::from(number - 1) * buf.len() as u64)?;
        if number == 1 && read == buf.len() {
            self.saw(buf);
        }
        Ok(read)
    }

    /// The transaction reads `state`: the pages that the cache has kept are its pages.
    pub fn check_kept(&mut self, state: &State) -> std::result::Result<(), String> {
        let Some((cached, changed)) = self.kept.take() else { return Ok(()) };
        let differs = |number: &u32| match (cached.page(*number), state.page(*number)) {
            (Some(cached), Some(page)) => !changed.contains(number) && !same(*number, cached, page),
            _ => false,
        };
        match (1..=cached.count()).find(differs) {
            Some(number) => {
                Err(format!("page {number} in the cache is of another state ({changed:?} were told to differ)"))
            }
            None => Ok(()),
        }
    }

    /// Ends a read transaction.
    pub fn end(&mut self) -> Result<()> {
        self.cached = self.reading.take();
        let ended = self.conn.unlock(LockLevel::None);
        self.conn.assert_state();
        ended
    }

    /// Journals the pages that `plan` touches, and writes some early where the course says so;
    /// those that are still to be written.
    fn journal(&mut self, base: &State, plan: &Plan, course: Course, size: usize) -> Result<Vec<u32>> {
        let resized = plan.next.page_bytes != size;
        let touched: Vec<u32> = if resized {
            (1..=base.count()).collect()
        } else {
            let cut = plan.next.count() + 1..=base.count();
            plan.writes.iter().chain(&plan.lost).copied().chain(cut).collect()
        };
        let mut pending = Vec::new();
        let mut old = vec![0; size];
        for number in touched {
            if number <= base.count() {
                self.read(number, &mut old)?;
                self.journal_page(number, &old)?;
            }
            if !resized && (number <= plan.next.count() || plan.lost.contains(&number)) {
                pending.push(number);
            }
            if pending.len() >= course.spill_after && number != 1 {
                self.sync_journal(true)?;
                self.conn.lock(LockLevel::Exclusive)?;
                self.write_pages(base, plan, &mut pending)?;
            }
        }
        Ok(pending)
    }

    /// Writes `pending`, or everything where the page size changes, and gives the file its length.
    fn write_home(&mut self, base: &State, plan: &Plan, pending: &mut Vec<u32>, size: usize) -> Result<()> {
        self.write_pages(base, plan, pending)?;
        if plan.next.page_bytes != size {
            self.dirty = true;
            let mut content = plan.next.flat();
            self.count_change(&mut content);
            for (n, chunk) in content.chunks(size).enumerate() {
                self.write_page(chunk, n as u32 + 1)?;
            }
            self.conn.truncate(plan.next.bytes() as u64)?;
        } else if self.conn.size()? < plan.next.bytes() as u64 {
            self.conn.write_at(&vec![0; size], (plan.next.bytes() - size) as u64)?;
        }
        Ok(())
    }

    /// Writes `plan` on `base`, the state that this client reads. `at_commit` is called right
    /// before the operation that may make the transaction permanent (with whether the client
    /// stepped aside), `committed` when the application may rely on it.
    pub fn write(
        &mut self,
        base: &State,
        plan: &Plan,
        course: Course,
        at_commit: &mut dyn FnMut(bool),
        committed: &mut dyn FnMut(),
    ) -> Result<()> {
        let locked = self.conn.lock(LockLevel::Reserved);
        self.conn.assert_state();
        locked?;
        let size = if base.pages.is_empty() { plan.next.page_bytes } else { base.page_bytes };
        self.open_journal(base.count(), size)?;
        let mut pending = self.journal(base, plan, course, size)?;
        if !course.commit {
            return self.roll_back();
        }
        let super_name = course.super_journal.then(|| self.make_super_journal(course.by_log)).transpose()?;
        if let Some(name) = &super_name {
            self.name_super_journal(name)?;
        }
        self.sync_journal(false)?;
        self.conn.lock(LockLevel::Exclusive)?;
        pending.retain(|number| *number <= plan.next.count());
        if course.late {
            self.conn.prepare(None)?;
        }
        self.write_home(base, plan, &mut pending, size)?;
        if !course.late {
            self.conn.prepare(super_name.as_deref())?;
        }
        if self.synchronous != Synchronous::Off {
            self.conn.sync()?;
        }
        self.aside = self.conn.is_aside();
        if course.undo_prepared {
            let rolled_back = self.roll_back();
            if let Some(name) = super_name.filter(|_| rolled_back.is_ok()) {
                self.remove_super_journal(&name, false)?;
            }
            return rolled_back;
        }
        if self.aside || super_name.is_some() {
            at_commit(self.aside);
        }
        if let Some(name) = &super_name {
            self.remove_super_journal(name, true)?;
        }
        self.finalise(super_name.is_some())?;
        if self.conn.size()? > plan.next.bytes() as u64 {
            self.conn.truncate(plan.next.bytes() as u64)?;
        }
        if !self.aside && super_name.is_none() {
            at_commit(false);
        }
        let done = self.conn.commit();
        self.conn.assert_state();
        done?;
        if !self.aside {
            committed();
        }
        self.dirty = false;
        if !self.exclusive || self.aside {
            self.conn.unlock(LockLevel::Shared)?;
        }
        if std::mem::take(&mut self.aside) {
            committed();
        }
        self.reading = Some(plan.next.clone());
        Ok(())
    }

    fn write_pages(&mut self, base: &State, plan: &Plan, pending: &mut Vec<u32>) -> Result<()> {
        for number in pending.drain(..) {
            let page = plan.next.page(number).or_else(|| base.page(number)).cloned();
            let Some(page) = page else { continue };
            let mut page = page.to_vec();
            if number == 1 {
                self.count_change(&mut page);
            }
            self.dirty = true;
            self.write_page(&page, number)?;
        }
        Ok(())
    }

    /// Sets the change counter to one above the counter that SQLite knows.
    fn count_change(&self, page: &mut [u8]) {
        let known = self.version.and_then(|v| be_u32(&v, 0)).unwrap_or(0);
        let counter = known.wrapping_add(1).to_be_bytes();
        put(page, VERSION_AT, &counter);
        put(page, 92, &counter);
    }

    /// ROLLBACK, also after an error.
    pub fn roll_back(&mut self) -> Result<()> {
        let played = if self.dirty && self.journal.is_some() { self.playback(false) } else { self.finalise(false) };
        self.journal = None;
        self.dirty = false;
        self.aside = false;
        let unlocked = if self.exclusive { Ok(()) } else { self.conn.unlock(LockLevel::Shared) };
        self.conn.assert_state();
        played.and(unlocked)
    }

    fn open_journal(&mut self, pages: u32, page_bytes: usize) -> Result<()> {
        self.conn.journal_open()?;
        self.nonce = self.nonce.wrapping_mul(0x9e37_79b1).wrapping_add(12345);
        self.journal = Some(Journal { header_at: 0, end: 0, count: 0, nonce: self.nonce, page_bytes });
        self.write_journal_header(pages)
    }

    fn write_journal_header(&mut self, pages: u32) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut header = vec![0; SECTOR as usize];
        if self.synchronous == Synchronous::Off {
            put(&mut header, 0, &MAGIC);
            put(&mut header, 8, &u32::MAX.to_be_bytes());
        }
        put(&mut header, 12, &journal.nonce.to_be_bytes());
        put(&mut header, 16, &pages.to_be_bytes());
        put(&mut header, 20, &(SECTOR as u32).to_be_bytes());
        put(&mut header, 24, &(journal.page_bytes as u32).to_be_bytes());
        journal.header_at = journal.end.next_multiple_of(SECTOR);
        journal.end = journal.header_at + SECTOR;
        journal.count = 0;
        self.conn.journal_write_at(&header, journal.header_at)
    }

    fn journal_page(&mut self, number: u32, page: &[u8]) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        self.conn.journal_write_at(&number.to_be_bytes(), journal.end)?;
        self.conn.journal_write_at(page, journal.end + 4)?;
        let sum = checksum(journal.nonce, page);
        self.conn.journal_write_at(&sum.to_be_bytes(), journal.end + 4 + page.len() as u64)?;
        journal.end += page.len() as u64 + 8;
        journal.count += 1;
        Ok(())
    }

    /// `syncJournal` of `pager.c`; with `again`, records may follow.
    fn sync_journal(&mut self, again: bool) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if self.synchronous == Synchronous::Off {
            return Ok(());
        }
        // Older bytes must not look like the next header.
        let next = journal.end.next_multiple_of(SECTOR);
        let mut magic = [0; 8];
        if self.conn.journal_read_at(&mut magic, next)? == 8 && magic == MAGIC {
            self.conn.journal_write_at(&[0], next)?;
        }
        if self.synchronous == Synchronous::Full {
            self.conn.journal_sync()?;
        }
        let mut header = MAGIC.to_vec();
        header.extend(journal.count.to_be_bytes());
        self.conn.journal_write_at(&header, journal.header_at)?;
        self.conn.journal_sync()?;
        if again {
            let mut pages = [0; 4];
            self.conn.journal_read_at(&mut pages, 16)?;
            self.write_journal_header(u32::from_be_bytes(pages))?;
        }
        Ok(())
    }

    /// `by_log`: all named databases commit by their logs.
    fn make_super_journal(&mut self, by_log: bool) -> Result<PathBuf> {
        let what = "making the super-journal";
        let mut name = self.path.as_os_str().to_owned();
        // SQLite's random names never repeat.
        let known = self.version.and_then(|version| be_u32(&version, 0)).unwrap_or(0);
        name.push(format!("-mj{known:08x}{:08x}", self.nonce));
        let name = PathBuf::from(name);
        let mut journals = format!("{}-journal\0", self.path.display());
        if !by_log {
            journals.push_str("other-journal\0");
        }
        if self.conn.engine().sync_super_journal(&name, journals.as_bytes())? {
            return Ok(name);
        }
        let file = self.disk.open(&name, OpenMode::Create).map_err(|e| Error::io(what, e))?;
        file.write_at(journals.as_bytes(), 0).map_err(|e| Error::io(what, e))?;
        file.sync().map_err(|e| Error::io(what, e))?;
        self.disk.sync_dir_of(&name).map_err(|e| Error::io(what, e))?;
        Ok(name)
    }

    fn name_super_journal(&mut self, name: &Path) -> Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let name = name.as_os_str().as_encoded_bytes();
        let at = match self.synchronous {
            Synchronous::Full => journal.end.next_multiple_of(SECTOR),
            _ => journal.end,
        };
        // No record has the page of the lock bytes.
        let lock_page = (0x4000_0000 / journal.page_bytes as u32 + 1).to_be_bytes();
        let sum: u32 = name.iter().map(|b| u32::from(*b)).sum();
        self.conn.journal_write_at(&lock_page, at)?;
        self.conn.journal_write_at(name, at + 4)?;
        let after = at + 4 + name.len() as u64;
        self.conn.journal_write_at(&(name.len() as u32).to_be_bytes(), after)?;
        self.conn.journal_write_at(&sum.to_be_bytes(), after + 4)?;
        self.conn.journal_write_at(&MAGIC, after + 8)?;
        journal.end = after + 16;
        if self.conn.journal_size()? > journal.end {
            self.conn.journal_truncate(journal.end)?;
        }
        Ok(())
    }

    fn finalise(&mut self, had_super: bool) -> Result<()> {
        self.journal = None;
        let flush = self.synchronous == Synchronous::Full;
        if self.journal_mode == JournalMode::Truncate {
            self.conn.journal_truncate(0)?;
            if flush {
                self.conn.journal_sync()?;
            }
        } else if self.journal_mode == JournalMode::Persist || self.exclusive {
            if self.conn.journal_size()? > 0 {
                if had_super {
                    self.conn.journal_truncate(0)?;
                } else {
                    self.conn.journal_write_at(&[0; 28], 0)?;
                }
                if self.synchronous != Synchronous::Off {
                    self.conn.journal_sync()?;
                }
            }
        } else {
            self.conn.journal_close()?;
            self.conn.journal_delete(false)?;
        }
        Ok(())
    }

    /// `pager_playback` of `pager.c`.
    fn playback(&mut self, hot: bool) -> Result<()> {
        let size = self.conn.journal_size()?;
        let super_name = self.super_journal_named(size)?;
        let exists = |client: &Self, name: &Path| {
            client.conn.engine().super_journal(name).is_some() || client.disk.exists(name).unwrap_or(false)
        };
        if let Some(name) = super_name.as_ref().filter(|_| hot)
            && !exists(self, name)
        {
            return self.finalise(true);
        }
        let mut at = 0u64;
        let mut first = true;
        'segments: loop {
            at = at.next_multiple_of(SECTOR);
            let mut header = [0; 28];
            if self.conn.journal_read_at(&mut header, at)? < 28 {
                break;
            }
            let own = self.journal.as_ref().is_some_and(|j| j.header_at == at);
            if !header.starts_with(&MAGIC) && (hot || !own) {
                break;
            }
            let field = |i| be_u32(&header, i).unwrap_or(0);
            let (mut count, nonce, pages, page_bytes) = (field(8), field(12), field(16), field(24) as usize);
            if !page_bytes.is_power_of_two() || !(512..=65536).contains(&page_bytes) {
                break;
            }
            at += SECTOR;
            let record = page_bytes as u64 + 8;
            if count == u32::MAX || (count == 0 && own && !hot) {
                count = (size.saturating_sub(at) / record) as u32;
            }
            if std::mem::take(&mut first) {
                let bytes = u64::from(pages) * page_bytes as u64;
                if self.conn.size()? > bytes {
                    self.conn.truncate(bytes)?;
                } else if self.conn.size()? + page_bytes as u64 <= bytes {
                    self.conn.write_at(&vec![0; page_bytes], bytes - page_bytes as u64)?;
                }
            }
            for _ in 0..count {
                let mut record_bytes = vec![0; page_bytes + 8];
                if self.conn.journal_read_at(&mut record_bytes, at)? < record_bytes.len() {
                    break 'segments;
                }
                let number = be_u32(&record_bytes, 0).unwrap_or(0);
                let page = record_bytes[4..page_bytes + 4].to_vec();
                let sum = be_u32(&record_bytes, page_bytes + 4).unwrap_or(0);
                if number == 0 || sum != checksum(nonce, &page) {
                    break 'segments;
                }
                at += record;
                if number <= pages {
                    self.write_page(&page, number)?;
                }
            }
        }
        self.conn.prepare(None)?;
        if self.synchronous != Synchronous::Off {
            self.conn.sync()?;
        }
        self.finalise(super_name.is_some())?;
        if let Some(name) = super_name.filter(|name| hot && exists(self, name)) {
            self.remove_super_journal(&name, false)?;
        }
        Ok(())
    }

    fn remove_super_journal(&self, name: &Path, sync_dir: bool) -> Result<()> {
        if self.conn.engine().remove_super_journal(name, sync_dir)? {
            return Ok(());
        }
        let what = "removing the super-journal";
        self.disk.remove(name).map_err(|e| Error::io(what, e))?;
        if sync_dir {
            self.disk.sync_dir_of(name).map_err(|e| Error::io(what, e))?;
        }
        Ok(())
    }

    fn super_journal_named(&mut self, size: u64) -> Result<Option<PathBuf>> {
        let Some(at) = size.checked_sub(16) else { return Ok(None) };
        let mut tail = [0; 16];
        self.conn.journal_read_at(&mut tail, at)?;
        let len = be_u32(&tail, 0).unwrap_or(0) as usize;
        if tail[8..] != MAGIC || len == 0 || len as u64 > at {
            return Ok(None);
        }
        let mut name = vec![0; len];
        self.conn.journal_read_at(&mut name, at - len as u64)?;
        let sum: u32 = name.iter().map(|b| u32::from(*b)).sum();
        if be_u32(&tail, 4) != Some(sum) {
            return Ok(None);
        }
        Ok(String::from_utf8(name).ok().map(PathBuf::from))
    }

    /// Closes the connection.
    pub fn close(self) -> Result<()> {
        self.conn.close()
    }
}

/// The sum of every 200th byte from the end, as in `pager.c`.
fn checksum(nonce: u32, page: &[u8]) -> u32 {
    let mut at = page.len() as i64 - 200;
    let mut sum = nonce;
    while at > 0 {
        sum = sum.wrapping_add(u32::from(page[at as usize]));
        at -= 200;
    }
    sum
}
