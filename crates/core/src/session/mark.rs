//! The mark: how it gets on a plain home, with a log of its own, and how it comes off.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::lock_bytes::SLOTS;
use crate::base::layout::slot::PAGE_COUNT_IN_HOME;
use crate::base::layout::{BLOCK_BYTES_MIN, home as at};
use crate::base::rules::{Case, keeps};
use crate::base::types::{LogOffset, Tid};
use crate::database::identity::may_have_mark;
use crate::database::names::RollbackJournal;
use crate::database::scheme::Facts;
use crate::database::{Database, DatabaseState, HomeFile, LiveDatabase, Phase};
use crate::disk::beside;
use crate::disk::stats::CountedFile;
use crate::disk::{DiskFile, FileSeal, LockKind, OpenMode, random};
use crate::log::file::{LogFile, aside_path, is_aside, log_path};
use crate::log::ring::{COUNTER_STEP, Log, StreamedImages, TID_STEP, slot_page_count, small_ring_bytes, told_tid};
use crate::log::slot::{Slot, session_after};
use crate::pairing::Pairing;
use crate::pairing::evidence::HomeAndLog;
use crate::shared::{kept, member, users};
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind, HomeMark, State};

/// Longest wait for the log after home was given back.
const OTHERS_LEAVE: Duration = Duration::from_millis(10);

/// SQLite's default; another one costs two slots.
const PAGE_BYTES_USUAL: u32 = 4096;

struct UsableLog {
    log: LogFile,
    /// Valid ones, the newest first.
    slots: Vec<Slot>,
    /// It is new, and unflushed.
    created: bool,
    /// The file that last used it, if known.
    noted: Option<u64>,
}

/// The slot of a new session on `state`; it may go on with the sequence of the `old` one.
fn first_slot(state: &State, facts: Facts, old: Option<&Slot>, block_bytes: u32, base_tid: Tid) -> Result<Slot> {
    Ok(Slot {
        block_bytes,
        sequence: old.map_or(0, |s| s.sequence),
        session: 0,
        salt: random()?,
        start: LogOffset(0),
        ring_bytes: small_ring_bytes(block_bytes),
        base_tid,
        tid_ceiling: Tid(base_tid.0.saturating_add(TID_STEP)),
        prev_crc: 0,
        page_bytes: if state.page_bytes == 0 { PAGE_BYTES_USUAL } else { state.page_bytes },
        page_count: slot_page_count(state, facts),
        change_counter: state.change_counter,
        counter_ceiling: state.change_counter.wrapping_add(COUNTER_STEP),
        live: true,
        in_place: facts.in_place,
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkRemoval {
    /// Another program goes on, or the caller asked for it.
    Durable,
    /// It is flushed unless the log proves the session's end.
    Proven,
    /// Durable, and home goes into WAL mode.
    IntoWal,
}

impl Database {
    /// With its slots, and whether it is new. It notes the file that it is of.
    fn log_for_mark(&self, unlinked: bool, is_lost: bool, block_bytes: u32) -> Result<(LogFile, Vec<Slot>, bool)> {
        let UsableLog { log, slots, created, noted } = match unlinked {
            true => UsableLog { log: self.nameless_log(block_bytes)?, slots: Vec::new(), created: true, noted: None },
            false if is_lost => self.another_log(block_bytes)?,
            false => self.usable_log(block_bytes)?,
        };
        let log = LogFile { file: CountedFile::wrap(log.file, self.stats.clone()), path: log.path };
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        match created {
            true => log.note_first_home(home)?,
            false if noted != Some(home.ino) => log.note_home(home)?,
            false => {}
        }
        Ok((log, slots, created))
    }

    /// Writes `mark`, or seals home so that the first record of `log` marks it; the length of home.
    fn mark_home(
        &self,
        inner: &mut DatabaseState,
        log: &mut Log,
        state: &State,
        mark: HomeMark,
        (unlinked, proof_bytes): (bool, u64),
    ) -> Result<u64> {
        let seal = if mark.tentative && !unlinked { self.seal_beside_home(log.file())? } else { None };
        let marked = self.with_asked(state.marked_or_empty(mark))?;
        self.write_mark(inner, &marked, seal.is_some())?;
        self.note_header(&marked);
        if let Some(seal) = seal {
            log.mark_with_first_record(self.home.clone(), seal, proof_bytes);
        }
        self.home.len().context(|| self.what("cannot read the length of"))
    }

    /// Order (invariant I3): log created, synced with its directory → slot, flushed → mark,
    /// flushed. `lost`: the session that continues with the new log, all in home.
    pub(super) fn place_mark(&self, inner: &mut DatabaseState, lost: Option<&LiveDatabase>) -> Result<LiveDatabase> {
        self.mappings.end();
        // No program will open this file again, and its name is another file's.
        let unlinked = self.home.is_unlinked().context(|| self.what("cannot look at"))?;
        if !unlinked {
            self.check_name()?;
        }
        let journal = self.rollback_journal()?;
        if journal == RollbackJournal::Hot {
            return Err(Error::Busy("a rollback journal waits to be rolled back".into()));
        }
        let state = inner.published.clone();
        let (options, facts) = (&inner.options, self.facts());
        let unit = self.atomic_unit(options);
        let block_bytes = unit.clamp(BLOCK_BYTES_MIN, crate::base::layout::BLOCK_BYTES_MAX);
        let (log, slots, created) = self.log_for_mark(unlinked, lost.is_some(), block_bytes)?;
        let old = slots.first();
        if !created && keeps(Case::LogBeforeMark) {
            self.flush_found_log(&log)?;
        }
        self.end_leftovers(&log, unlinked, journal, old.is_some_and(|slot| slot.live))?;
        let ring_bytes = small_ring_bytes(block_bytes);
        // Closed in order, its end is durable; a slot of a longer ring is not (rule
        // SlotBeforeReuse).
        let may_be_marked = |slot: &&Slot| !slot.live && slot.page_count != PAGE_COUNT_IN_HOME;
        let follows = old.filter(may_be_marked).filter(|slot| !created && slot.ring_bytes == ring_bytes);
        let follows = follows.filter(|_| facts.all_in_log() && state.kind == FileKind::Database);
        let before = lost.map(|live| live.home.mark.session).or(follows.map(|slot| slot.session));
        let session = before.map_or_else(random, |before| Ok(session_after(before, random()?)))?;
        let (start, proof_bytes) = match follows.filter(|_| keeps(Case::ProofKept)) {
            Some(closed) => begin_beside(proof(closed, slots.get(1)), ring_bytes, block_bytes.into()),
            None => (LogOffset(0), 0),
        };
        // Home may have changed without a number: its state gets a new one (rule
        // CacheKnowsItsState).
        let last_tid = lost.map(|live| live.log.last_tid().max(live.home.mark.tid));
        let base_tid = last_tid.unwrap_or(Tid(old.map_or(0, |s| s.tid_ceiling.0))).next();
        let slot = Slot { session, start, ..first_slot(&state, facts, old, block_bytes, base_tid)? };
        let tentative = follows.is_some();
        // Without succession, this slot proves nothing of the last session, whose own may not be on
        // the medium (rule CloseProven).
        if !tentative && !created && old.is_some_and(|old| may_be_marked(&old)) {
            self.repeat_header()?;
        }
        let mut log = match tentative {
            true => Log::begin(log, slot, options.psow)?,
            false => Log::start(log, slot, options.psow, created)?,
        };
        if old.is_some_and(|slot| slot.live) {
            log.distrust_older_slot();
        }
        if let Some(live) = lost {
            self.leave_log(inner, live, log.file(), log.slot())?;
        }
        let rest = old.filter(|_| !created).map_or(0, |slot| slot.ring_bytes);
        log.give_rest_back(rest)?;
        let mark = HomeMark { tentative, ..HomeMark::new(session, told_tid(log.slot(), facts)) };
        let bytes = self.mark_home(inner, &mut log, &state, mark, (unlinked, proof_bytes))?;
        let home = HomeFile::new(mark, bytes, unit);
        let home_tid = log.slot().base_tid;
        Ok(self.begin(inner, log, home, home_tid))
    }

    /// The `noted` file's mark may come back, and this log will no longer prove its end (rule
    /// CloseProven).
    fn end_elsewhere(&self, noted: Option<u64>) -> Result<()> {
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        match noted {
            // Else each end was flushed.
            Some(file) if file != home.ino && self.disk.syncs_all() => {
                self.disk.sync_all_beside(&self.path).context(|| self.what("cannot flush the file system of"))
            }
            _ => Ok(()),
        }
    }

    /// A dead process may have left unflushed: names, a removed or cleared rollback journal, and a
    /// removed mark, if its slot is live (`is_slot_live`).
    fn end_leftovers(
        &self,
        log: &LogFile,
        is_unlinked: bool,
        journal: RollbackJournal,
        is_slot_live: bool,
    ) -> Result<()> {
        if !is_unlinked {
            if journal != RollbackJournal::Absent {
                beside::remove(&*self.disk, self.journal_path())
                    .context(|| self.what("cannot remove the rollback journal of"))?;
            }
            // Home is whole.
            beside::remove_second(&*self.disk, &self.path)?;
            if keeps(Case::LogBeforeMark) {
                self.flush_names(log)?;
            }
        }
        if is_slot_live {
            self.repeat_header()?;
        }
        Ok(())
    }

    /// The seal exists if a flush of home covers writes to the log (rule MarkWithFirstRecord).
    fn seal_beside_home(&self, log: &LogFile) -> Result<Option<FileSeal>> {
        let what = || self.what("cannot look at");
        let is_beside = self.home.id().context(what)?.dev == log.file.id().context(what)?.dev;
        if is_beside { log.sealed() } else { Ok(None) }
    }

    /// Makes it durable before the first record (rule LogBeforeMark), or `with_first_record` (rule
    /// MarkWithFirstRecord).
    fn write_mark(&self, inner: &mut DatabaseState, marked: &DatabaseHeader, with_first_record: bool) -> Result<()> {
        let written = match keeps(Case::MarkBeforeRecord) && !with_first_record {
            true => self.write_header(marked),
            false => self.home.write_at(marked, 0).context(|| self.what("cannot write the header of")),
        };
        if with_first_record {
            self.home.begin_write_back(0, marked.len() as u64);
        }
        // It may be in the cache only: no commit may follow. A full disk has not taken all of it.
        if let Err(e) = &written
            && !matches!(e, Error::Full(_))
        {
            inner.fail(e);
        }
        written
    }

    /// LIVE → UNMARKED after the checkpoint: the mark comes off, then the log is invalidated. The
    /// removal is flushed, except as `ended` allows where the log proves the end (rule
    /// CloseProven). SHARED stays, and streamed images as `stream` says.
    pub fn take_off_mark(
        &self,
        writer: &mut Option<LiveDatabase>,
        inner: &mut DatabaseState,
        stream: StreamedImages,
        ended: MarkRemoval,
    ) -> Result<()> {
        let Some(live) = writer.as_mut() else { return Ok(()) };
        let mark = self.read_mark()?;
        if !may_have_mark(live, mark) {
            return Err(self.overwritten(live, inner));
        }
        live.scheme.clone().detach(self, live, None)?;
        // The mark names the session.
        let removed = match &inner.member {
            Some(member) if !member.words.may_have_files() => Ok(()),
            _ => kept::remove(&*self.disk, &live.log.file().path, live.home.mark.session),
        };
        let state = inner.latest.clone();
        let is_in_place = self.is_log_in_place(live.log.file())?;
        let wipes = self.wipes_log.load(Ordering::Relaxed) && keeps(Case::LogWiped);
        if state.kind == FileKind::Empty {
            self.home.set_len(0).context(|| self.what("cannot write"))?;
            self.sync_home()?;
        } else {
            let may_be_proven = is_in_place && ended == MarkRemoval::Proven && removed.is_ok() && !wipes;
            let is_proven = may_be_proven && self.disk.syncs_all() && is_close_proven(live, &state, mark);
            // Snapshots or a recovery may have left pages behind the end.
            if live.home.bytes != state.bytes() || live.home.reserved_bytes > 0 {
                self.home.set_len(state.bytes()).context(|| self.what("cannot fit the length of"))?;
            }
            let mut header = self.with_asked(state.final_header())?;
            if ended == MarkRemoval::IntoWal {
                home::put_wal(&mut header);
            }
            match is_proven {
                // Its write-back is for a file that is moved without its log.
                true => self.write_header_unflushed(&header)?,
                false => self.write_header(&header)?,
            }
            self.note_header(&header);
            let comes_back = home::asks_for_wal(&header) && ended != MarkRemoval::IntoWal;
            inner.left_wal = comes_back.then(|| Box::new([0; at::HEADER_BYTES]));
        }
        live.log.invalidate(stream, wipes)?;
        if stream == StreamedImages::Drop && live.scheme.facts().all_in_log() && !live.log.is_sealed() {
            live.log.file().seal()?;
        }
        removed?;
        if !is_in_place {
            self.remove_aside(live)?;
        }
        *writer = None;
        self.table.write().clear();
        self.quit(inner)?;
        inner.phase = Phase::Unmarked;
        inner.set_state(Arc::new(self.read_state()?.0));
        Ok(())
    }

    /// Whether it lies where a recovery looks first.
    pub(super) fn is_log_in_place(&self, log: &LogFile) -> Result<bool> {
        Ok(log.path == log_path(&self.path) && log.is_at(&*self.disk, &log.path)?)
    }

    /// The log is locked, long enough, without records. Home is unmarked, under EXCLUSIVE and has
    /// its name, so a locked or needed log is of an earlier file: it is set aside for
    /// `path_of_session` (rule LogFoundBySession).
    fn usable_log(&self, block_bytes: u32) -> Result<UsableLog> {
        let path = &log_path(&self.path);
        let what = || format!("cannot open the log {}", path.display());
        let file = match self.disk.open_beside(path, OpenMode::ReadWrite, None) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return self.create_log(path, block_bytes, Vec::new());
            }
            Err(e) => {
                let refused = e.kind() == std::io::ErrorKind::PermissionDenied;
                let error = beside::refused(what(), e);
                // Only its name is wanted.
                return match refused && self.set_aside(path, None, random()?).is_ok() {
                    true => self.create_log(path, block_bytes, Vec::new()),
                    false => Err(error),
                };
            }
        };
        let log = LogFile { file, path: path.clone() };
        let locked = lock_log(&log, LockKind::Exclusive, OTHERS_LEAVE);
        let slots = log.slots()?;
        let newest = slots.first();
        let other_version = if newest.is_none() { log.other_version()? } else { None };
        let busy = match (locked, newest) {
            (Ok(()), None) if other_version.is_some() => {
                self.set_aside(path, Some(&log), random()?)?;
                return self.create_log(path, block_bytes, slots);
            }
            (Ok(()), _) => false,
            (Err(Error::Busy(_)), Some(_)) => true,
            (Err(e), _) => return Err(other_version.unwrap_or(e)),
        };
        if let Some(slot) = newest.filter(|slot| busy || slot.live) {
            // Home has every record (rule CloseWithoutSlot).
            if busy || HomeAndLog::new(self, &log)?.judge(false)? != Pairing::Closed {
                self.set_aside(path, Some(&log), slot.session)?;
                if !busy {
                    kept::remove(&*self.disk, path, slot.session)?;
                }
                return self.create_log(path, block_bytes, slots);
            }
        }
        let noted = log.noted_home()?;
        if newest.is_some_and(|slot| slot.page_count != PAGE_COUNT_IN_HOME) {
            self.end_elsewhere(noted)?;
        }
        let is_long_enough = |s: &Slot| s.ring_bytes >= small_ring_bytes(block_bytes) && s.block_bytes == block_bytes;
        if newest.is_some_and(is_long_enough) {
            // If it admits more users than home, its permissions are narrowed.
            let access = |file: &dyn DiskFile| file.access().context(|| self.what("cannot look at"));
            if access(&*log.file)?.zip(access(&*self.home)?).is_some_and(|(own, homes)| own.admits_more_than(homes)) {
                beside::open(&*self.disk, path, OpenMode::ReadWrite, &*self.home, what)?;
            }
            return Ok(UsableLog { log, slots, created: false, noted });
        }
        if let Some(slot) = newest {
            // The proof of its session's end goes with it (rule CloseProven).
            self.repeat_header()?;
            if log.has_decision(slot)? {
                self.set_aside(path, Some(&log), slot.session)?;
            }
        }
        drop(log);
        self.create_log(path, block_bytes, slots)
    }

    /// Another file of that name is set aside.
    fn another_log(&self, block_bytes: u32) -> Result<UsableLog> {
        let path = &log_path(&self.path);
        if self.disk.exists(path).context(|| format!("cannot look for the log {}", path.display()))? {
            self.set_aside(path, None, random()?)?;
        }
        self.create_log(path, block_bytes, Vec::new())
    }

    fn set_aside(&self, path: &Path, log: Option<&LogFile>, session: u64) -> Result<()> {
        let aside = aside_path(path, session);
        let what = || format!("cannot set the log {} aside as {}", path.display(), aside.display());
        self.check_name()?;
        if let Some(log) = log
            && !log.is_at(&*self.disk, path)?
        {
            return Err(Error::Busy(format!("the log {} was just replaced", path.display())));
        }
        self.disk.rename(path, &aside).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Error::CantOpen(format!("{}: {e}. Move that file away", what())),
            _ => Error::io(what(), e),
        })
    }

    fn nameless_log(&self, block_bytes: u32) -> Result<LogFile> {
        let path = log_path(&self.path);
        let file = self.disk.temp_file(&self.path).context(|| format!("cannot create the log {}", path.display()))?;
        let log = Log::create(LogFile { file, path }, small_ring_bytes(block_bytes), block_bytes)?;
        lock_log(&log, LockKind::Exclusive, Duration::ZERO)?;
        Ok(log)
    }

    fn create_log(&self, path: &Path, block_bytes: u32, slots: Vec<Slot>) -> Result<UsableLog> {
        let what = || format!("cannot create the log {} in the directory of the database", path.display());
        let file = beside::open(&*self.disk, path, OpenMode::Create, &*self.home, what)?;
        match Log::create(LogFile { file, path: path.to_owned() }, small_ring_bytes(block_bytes), block_bytes) {
            Ok(log) => {
                lock_log(&log, LockKind::Exclusive, Duration::ZERO)?;
                Ok(UsableLog { log, slots, created: true, noted: None })
            }
            Err(e) => {
                // It would hold the last free blocks.
                let _ = self.disk.remove(path);
                Err(e)
            }
        }
    }

    /// Acts if its name is wanted for another database's. Other files may need a decision in it
    /// (rule PreparedThenDecided).
    fn remove_aside(&self, live: &LiveDatabase) -> Result<()> {
        let log = live.log.file();
        if log.has_decision(live.log.slot())? {
            return Ok(());
        }
        let what = || format!("cannot remove the log {}", log.path.display());
        for path in [log.path.clone(), aside_path(&log.path, live.home.mark.session)] {
            if is_aside(&path) && log.is_at(&*self.disk, &path)? {
                self.disk.remove(&path).context(what)?;
            }
        }
        Ok(())
    }
}

/// A home found marked needs proof: mark and log name the same last transaction.
fn is_close_proven(live: &LiveDatabase, state: &State, mark: Option<HomeMark>) -> bool {
    let last = live.log.last_tid();
    live.scheme.facts().all_in_log()
        && live.log.proves_close()
        && live.home.bytes == state.bytes()
        && mark == Some(HomeMark::new(live.home.mark.session, last))
        && last != Tid(0)
}

/// The records that lead to the end of a `closed` session where its slot is lost.
fn proof(closed: &Slot, older: Option<&Slot>) -> (LogOffset, LogOffset) {
    let is_of = |older: &&Slot| older.live && older.session == closed.session && older.start <= closed.start;
    let live = older.filter(is_of);
    live.map_or((closed.start, closed.start), |live| (live.start, closed.start))
}

/// The next session's first byte, and the bytes before it that prove the last one's end (rule
/// CloseProven). At the beginning if there is as much room as that used, else behind it: blocks of
/// short sessions and slots reach the device in one request.
fn begin_beside((from, to): (LogOffset, LogOffset), ring_bytes: u64, block_bytes: u64) -> (LogOffset, u64) {
    let lap = from.0 / ring_bytes * ring_bytes;
    let (from, to) = (LogOffset(from.0 / block_bytes * block_bytes - lap), LogOffset(to.0 - lap));
    let end = to.0.next_multiple_of(block_bytes);
    let used = end.saturating_sub(from.0).min(ring_bytes);
    let start = if end <= ring_bytes && used <= from.0 { 0 } else { end % ring_bytes };
    let room = (from.0 % ring_bytes + ring_bytes - start) % ring_bytes;
    (LogOffset(start), if used == 0 { 0 } else { ring_bytes - room })
}

/// The lock is exclusive, or shared to read. `Busy` after `patience`.
pub fn lock_log(log: &LogFile, kind: LockKind, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !member::try_alone(log, kind)? {
        if Instant::now() >= deadline {
            return Err(Error::Busy(format!(
                "another process has this database open through onewrite (it holds the log {}){}",
                log.path.display(),
                users::holders(log, SLOTS, patience)
            )));
        }
        clock::sleep(Duration::from_micros(500));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_begins_beside_the_one_before_and_goes_not_over_it() {
        const BLOCK: u64 = 4096;
        const RING: u64 = 13 * BLOCK;
        let begin = |from, bytes| {
            let (start, proof) = begin_beside((LogOffset(from * BLOCK), LogOffset(from * BLOCK + bytes)), RING, BLOCK);
            (start.0 / BLOCK, proof / BLOCK)
        };
        assert_eq!([begin(0, 300), begin(1, 300), begin(1, 5000)], [(1, 1), (0, 12), (3, 2)]);
        assert_eq!([begin(0, 0), begin(0, RING), begin(12, 5000)], [(0, 0), (0, 13), (1, 2)]);
        for (from, bytes) in (0..13).flat_map(|from| (1..=13).map(move |blocks| (from, blocks * BLOCK))) {
            let (start, proof) = begin(from, bytes);
            let used = |block: u64| (block + 13 - from) % 13 < bytes / BLOCK;
            assert!((0..13 - proof).all(|n| !used((start + n) % 13)), "{from} {bytes}: {start} {proof}");
        }
    }
}
