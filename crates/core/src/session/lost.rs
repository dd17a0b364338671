//! Files that are removed, moved or overwritten while in use. A lost log is replaced (rule
//! LostLogReplaced has the order); a moved home gives errors; an overwritten home is not written.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::base::error::{Error, IoContext, Result};
use crate::checkpoint::checkpoint;
use crate::database::identity::replaced;
use crate::database::{Database, DatabaseState, LiveDatabase, Phase};
use crate::disk::sync::MutexGuard;
use crate::log::file::LogFile;
use crate::log::ring::StreamedImages;
use crate::log::slot::Slot;
use crate::shared::kept;
use crate::shared::member::Member;
use crate::shared::words::Pins;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Where flushes are free, asking before each commit would take 6 % of it.
const ASK_EVERY: Duration = Duration::from_millis(1);
const READERS_LEAVE: Duration = Duration::from_millis(20);

impl Database {
    /// The caller has the writer's place. An error repeats until its cause is mended.
    pub fn see_to_files(&self, writer: &mut MutexGuard<'_, Option<LiveDatabase>>) -> Result<()> {
        let Some(live) = writer.as_mut() else { return Ok(()) };
        if !self.disk.is_due(&mut live.looked_at, LOOK_EVERY) {
            return Ok(());
        }
        self.check(self.member().as_deref())?;
        // Closing an unused lost log gives its room back.
        self.has_stragglers()?;
        let seen = self.look_at_files(writer);
        if let (Err(_), Some(live)) = (&seen, writer.as_mut()) {
            live.looked_at = None;
        }
        seen
    }

    /// Asks before each record: a removed log vanishes with its processes. With streamed images the
    /// commit fails, for the new log lacks them.
    pub fn see_to_removed_log(&self, writer: &mut MutexGuard<'_, Option<LiveDatabase>>, streams: bool) -> Result<()> {
        let Some(live) = writer.as_mut() else { return Ok(()) };
        if !self.disk.is_due(&mut live.asked_at, ASK_EVERY) {
            return Ok(());
        }
        let log = live.log.file();
        let is_removed = log.file.is_unlinked().context(|| log.what("cannot look at"))?;
        if !is_removed || self.home.is_unlinked().context(|| self.what("cannot look at"))? {
            return Ok(());
        }
        (live.looked_at, live.asked_at) = (None, None);
        if streams {
            let lost = io::Error::other("it was removed, and this transaction had images in it: begin that again");
            return Err(Error::io(live.log.file().what("cannot commit by"), lost));
        }
        self.see_to_files(writer)
    }

    /// A process that leaves the mark to others leaves a log that the next process finds. False: it
    /// does, or another process writes and sees to it.
    pub(super) fn replace_before_leaving(&self) -> Result<bool> {
        let member = self.member();
        let may_replace = |member: &&Arc<Member>| !self.read_only && !member.observes && !member.words.is_replaced();
        let Some(member) = member.as_ref().filter(may_replace) else { return Ok(false) };
        if self.is_log_in_place(&member.log)? {
            return Ok(false);
        }
        match self.enter(true, Duration::ZERO) {
            Err(Error::Busy(_)) => return Ok(false),
            entered => entered?,
        }
        let mut writer = self.writer.lock();
        if let Some(live) = writer.as_mut() {
            live.looked_at = None;
        }
        let seen = self.see_to_files(&mut writer);
        drop(writer);
        self.leave(false);
        seen.map(|()| true)
    }

    fn look_at_files(&self, writer: &mut MutexGuard<'_, Option<LiveDatabase>>) -> Result<()> {
        let Some(live) = writer.as_mut() else { return Ok(()) };
        self.check_mark(live)?;
        let has_name = self.has_name()?;
        if has_name && live.log.file().is_at(&*self.disk, &live.log.file().path)? {
            return Ok(());
        }
        // No other process can open a removed home.
        if self.home.is_unlinked().context(|| self.what("cannot look at"))? {
            return Ok(());
        }
        if !has_name && !self.is_beside()? {
            checkpoint(self, live, StreamedImages::Drop)?;
            return Err(Error::Moved(format!(
                "the file of {} was moved to another directory while it is in use, and does not find its log {} there. All that was \
                 committed is in the file. Move it back, or close it and open it where it is now: nothing is committed before",
                self.path.display(),
                live.log.file().path.display()
            )));
        }
        if self.finds_log(live)? { Ok(()) } else { self.replace_log(writer) }
    }

    /// Whether the next process would find it.
    pub(super) fn finds_log(&self, live: &LiveDatabase) -> Result<bool> {
        live.log.file().is_at(&*self.disk, &self.path_of_log(live.home.mark.session)?)
    }

    fn is_beside(&self) -> Result<bool> {
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        let beside = self.disk.names_beside(&self.path).unwrap_or_default();
        Ok(beside.iter().any(|path| matches!(self.disk.identify(path), Ok(Some(id)) if id == home)))
    }

    /// The next process would not find the log (rule LostLogReplaced).
    fn replace_log(&self, writer: &mut MutexGuard<'_, Option<LiveDatabase>>) -> Result<()> {
        let Some(live) = writer.as_mut() else { return Ok(()) };
        let lost = format!(
            "the log {} is no longer there: it was removed, moved or replaced while the database is in use",
            live.log.file().path.display()
        );
        checkpoint(self, live, StreamedImages::Drop).map_err(|e| because(&lost, e))?;
        let mut inner = self.inner.lock();
        // A process that attaches meanwhile waits for those that use home.
        self.keep_stock_out(&mut inner)?;
        let facts = live.scheme.facts();
        if !facts.all_in_log() || inner.options.concurrent || inner.ships() || self.is_signed()? {
            return Err(Error::CantOpen(format!(
                "{lost}. All that was committed is in the database file. Close every connection: with scheme={}, concurrent={} and \
                 commits that {} for a store no new log can be made before, and nothing is committed",
                inner.options.preset,
                u8::from(inner.options.concurrent),
                if inner.ships() { "wait" } else { "do not wait" }
            )));
        }
        let deadline = Instant::now() + READERS_LEAVE.min(Duration::from_millis(inner.options.busy_ms));
        while self.is_older_read(&inner).map_err(|e| because(&lost, e))? {
            if Instant::now() >= deadline {
                self.let_in(&inner);
                return Err(because(&lost, still_read()));
            }
            drop(inner);
            clock::sleep(Duration::from_micros(500));
            inner = self.inner.lock();
        }
        let made = self.place_mark(&mut inner, Some(live));
        if made.is_err() {
            self.let_in(&inner);
        }
        let made = made.map_err(|e| because(&lost, e))?;
        self.go_on_with(made, writer, &mut inner).map_err(|e| inner.poison(e))
    }

    /// Whether a snapshot of any process is older than the newest state.
    fn is_older_read(&self, inner: &DatabaseState) -> Result<bool> {
        debug_assert!(inner.latest.tid == inner.published.tid, "everything is at home");
        let mut is_read = inner.snapshots.tids().any(|tid| !inner.is_newest_tid(tid));
        if let Some(member) = &inner.member {
            member.words.shut_out(member.me);
            is_read |= member.pins_of_others()?.iter().any(|pins| *pins != Pins::default());
        }
        Ok(is_read)
    }

    fn let_in(&self, inner: &DatabaseState) {
        if let Some(member) = inner.member.as_ref().filter(|_| self.alone.load(SeqCst) == 0) {
            member.words.let_in(member.me);
        }
    }

    /// The new log has its first durable slot, and gets the decisions that other files'
    /// transactions need.
    pub(super) fn leave_log(
        &self,
        inner: &DatabaseState,
        lost: &LiveDatabase,
        log: &LogFile,
        slot: &Slot,
    ) -> Result<()> {
        if lost.log.slot().block_bytes == slot.block_bytes {
            for sector in lost.log.file().decisions(lost.log.slot())? {
                if let Some((decision, _)) = sector.decision {
                    log.decide(sector.position, &decision)?;
                }
            }
        }
        if let Some(member) = &inner.member {
            member.words.replace();
        }
        Ok(())
    }

    fn go_on_with(
        &self,
        made: LiveDatabase,
        writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
        inner: &mut DatabaseState,
    ) -> Result<()> {
        let session = writer.as_ref().map_or(0, |live| live.home.mark.session);
        let (before, home_tid) = (inner.published.tid, made.home_tid);
        let old = inner.member.take();
        let in_flight = old.as_ref().map_or(0, |member| member.move_turn());
        self.share(made, writer, inner, in_flight)?;
        inner.tid_before = before;
        self.table.write().lists_since(home_tid);
        if let Some(member) = inner.member.as_ref().filter(|_| self.alone.load(SeqCst) != 0) {
            member.words.shut_out(member.me);
        }
        let Some(old) = old else { return Ok(()) };
        old.leave_for_good()?;
        kept::remove(&*self.disk, &old.log.path, session)?;
        self.lost_logs.lock().push(old.log.clone());
        Ok(())
    }

    pub fn is_log_replaced(&self, inner: &DatabaseState) -> bool {
        inner.phase == Phase::Live && inner.member.as_ref().is_some_and(|member| member.words.is_replaced())
    }

    /// Home is then looked at anew. `Busy` while a connection of this process reads.
    pub fn leave_lost_log(&self, writer: &mut Option<LiveDatabase>, inner: &mut DatabaseState) -> Result<()> {
        if !self.is_log_replaced(inner) {
            return Ok(());
        }
        if !inner.snapshots.is_empty() {
            return Err(replaced());
        }
        *writer = None;
        self.table.write().clear();
        self.quit(inner)?;
        inner.phase = Phase::Unmarked;
        Ok(())
    }
}

fn still_read() -> Error {
    Error::Busy(
        "all that was committed is in the database file. A new log is made when no connection reads an older state, and no other \
         process reads"
            .into(),
    )
}

fn because(lost: &str, error: Error) -> Error {
    match error {
        Error::Busy(why) => Error::Busy(format!("{lost}; {why}")),
        Error::Full(why) => Error::Full(format!("{lost}; {why}")),
        Error::NoMemory | Error::Poisoned(_) | Error::Unshipped(_) => error,
        Error::ReadOnlyDirectory(why) => Error::ReadOnlyDirectory(format!("{lost}, and no new one can be made: {why}")),
        error => Error::CantOpen(format!("{lost}, and no new one can be made: {error}")),
    }
}
