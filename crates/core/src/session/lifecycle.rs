//! From a plain file to a live one and back: the transitions of [`Phase`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::mark::MarkRemoval;
use crate::base::error::{Error, IoContext, Result};
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::checkpoint;
use crate::database::{Database, DatabaseState, LiveDatabase, Phase};
use crate::log::ring::StreamedImages;
use crate::shared::member::Member;
use crate::shared::tail::Tail;
use crate::sqlite_format::home::State;

/// How long a process that closes waits for another that attaches or leaves: none does so for long.
const ADMIN_WAIT: Duration = Duration::from_secs(20);
/// How long those are waited for that look at home, when it is about to be marked, or unmarked behind a process that died.
const READERS_LEAVE: Duration = Duration::from_millis(10);

impl Database {
    /// UNMARKED → LIVE. The caller has the writer's place and a snapshot (so SHARED is held). `Busy` while others read:
    /// RESERVED stays, so that of several processes that try this one gets on; the caller gives it back when it gives
    /// up.
    pub fn go_live(&self, writer: &mut MutexGuard<'_, Option<LiveDatabase>>, inner: &mut DatabaseState) -> Result<()> {
        if !crate::disk::locks::reserve(&*self.home)? {
            return Err(Error::Busy(format!("another process is about to write {}", self.path.display())));
        }
        // Long enough for those that only look; who reads for longer is not kept from it.
        let patience = READERS_LEAVE.min(Duration::from_millis(inner.options.busy_ms));
        if !crate::disk::locks::exclusive_from_reserved(&*self.home, patience)? {
            return Err(Error::Busy(format!(
                "the database {} is in use by another process without onewrite",
                self.path.display()
            )));
        }
        let made = self.place_mark(inner, None);
        // SHARED stays: it keeps stock writers out for as long as the mark is on. So does PENDING (rule StockKeptOut).
        match &made {
            Ok(_) => crate::disk::locks::downgrade_to_pending(&*self.home)?,
            Err(_) => crate::disk::locks::downgrade(&*self.home)?,
        }
        let made = made?;
        self.share(made, writer, inner, 1)
    }

    /// Takes SHARED on home, whose PENDING another process may hold that uses it through onewrite. False while somebody is
    /// about to write it without.
    pub fn lock_shared(&self, inner: &mut DatabaseState) -> Result<bool> {
        let is_live = || Ok(self.read_mark()?.is_some());
        crate::disk::locks::shared_again(&*self.home, &mut inner.pending_free_at, is_live)
    }

    /// This process alone is about to bring pages home and to take the mark off. Stock SQLite that looked at the length of the file while
    /// nobody held PENDING reads the header before, and finds the mark (rule StockKeptOut).
    pub(super) fn keep_stock_out(&self) -> Result<()> {
        if !self.inner.lock().kept_stock_out {
            self.hold_pending();
            // Who stays for longer is no such reader.
            crate::disk::locks::readers_leave(&*self.home, READERS_LEAVE)?;
        }
        Ok(())
    }

    /// This process alone has made `live`, with every lock of the log, and all of its records are durable: from here on others may
    /// join, unless the scheme takes the file for one process. The newest state is that of the last record. If `in_flight` transactions of this
    /// process are under way, as behind [`Database::enter`], it has just marked home.
    pub fn share(
        &self,
        live: LiveDatabase,
        writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
        inner: &mut DatabaseState,
        in_flight: usize,
    ) -> Result<()> {
        let (slot, log, due) = (live.log.slot().clone(), live.log.file().clone(), live.due);
        let cursor = live.log.cursor();
        inner.phase = Phase::Live;
        inner.home_tid = slot.base_tid;
        inner.kept_stock_out = in_flight > 0;
        inner.set_state(Arc::new(State { tid: cursor.last_tid, ..(*inner.latest).clone() }));
        **writer = Some(live);
        if self.facts().all_in_log() && !inner.options.concurrent {
            let options = inner.options.clone();
            let tail = Tail { slot, cursor };
            self.enrol(Member::found(self.files(), log, tail, due, options.psow, in_flight)?, inner);
        }
        self.tell_attached();
        if self.is_signed()? { self.begin_signed(inner.member.as_deref()) } else { Ok(()) }
    }

    /// This process uses the log from now on.
    pub fn tell_attached(&self) {
        if let Some(attached) = self.attached.get() {
            attached();
        }
    }

    /// This process is one of several from now on.
    pub fn enrol(&self, member: Option<Arc<Member>>, inner: &mut DatabaseState) {
        if let Some(member) = &member {
            inner.snapshots.tids().for_each(|tid| member.announce_unseen(tid));
        }
        self.table.write().member = member.clone();
        inner.member = member;
    }

    /// What this process knows of the database is not looked at any more: others may change it.
    pub(super) fn forget(&self, inner: &mut DatabaseState) {
        self.table.write().clear();
        inner.plain = None;
    }

    /// The opposite of [`Database::enrol`]; every lock of the log goes.
    pub fn quit(&self, inner: &mut DatabaseState) -> Result<()> {
        self.table.write().member = None;
        (inner.home_tid, inner.tid_before) = (Tid::HOME, Tid::HOME);
        inner.kept_stock_out = false;
        inner.member.take().map_or(Ok(()), |member| member.leave_for_good())
    }

    /// LIVE → UNMARKED with the file still open, so that the next write starts with other options. `Busy` if another
    /// process has it open.
    pub fn detach_for_options(&self) -> Result<()> {
        let member = self.member();
        if let Some(member) = &member {
            self.be_alone(member, std::time::Duration::ZERO)?;
            if let Err(e) = self.enter(true, std::time::Duration::ZERO) {
                member.not_alone()?;
                return Err(e);
            }
        }
        let done = self.unmark_alone();
        if let (Err(_), Some(member)) = (&done, member.filter(|_| self.member().is_some())) {
            // Still live: others may come again.
            self.leave(false);
            member.not_alone()?;
        }
        done
    }

    fn unmark_alone(&self) -> Result<()> {
        self.keep_stock_out()?;
        let mut writer = self.writer.lock();
        if let Some(live) = writer.as_mut() {
            checkpoint::bring_home(self, live)?;
        }
        let mut inner = self.inner.lock();
        // Cut short, nobody knows whether the mark is on, nor which name leads where.
        let done = self.take_off_mark(&mut writer, &mut inner, StreamedImages::Drop, MarkRemoval::Durable);
        done.map_err(|e| inner.poison(e))?;
        crate::disk::locks::none(&*self.home)
    }

    /// The last connection closes: home becomes a plain, complete file again.
    pub fn detach(&self) -> Result<()> {
        let live = self.inner.lock().phase == Phase::Live;
        let keep_out = |last: bool| if last { self.keep_stock_out().map(|()| true) } else { Ok(false) };
        let last = if live { self.is_last(ADMIN_WAIT).and_then(keep_out) } else { Ok(true) };
        // A home that was overwritten is not written.
        let last = last.and_then(|last| if live && last { self.check_mark_of_live().map(|()| last) } else { Ok(last) });
        let closed = match last {
            Ok(true) => self.end_session(),
            // Others go on.
            last => last.map(drop),
        };
        // Whatever failed: nobody is left here who could use a lock, and recovery needs them all.
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        *writer = None;
        let left = self.quit(&mut inner);
        if inner.phase == Phase::Live {
            inner.phase = Phase::Unmarked;
        }
        let unlocked = crate::disk::locks::none(&*self.home);
        closed.and(left).and(unlocked)
    }

    /// The last process brings all home and takes the mark off, unless a failure leaves that to recovery.
    fn end_session(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        let inner = self.inner.lock();
        if inner.phase != Phase::Live || inner.check().is_err() {
            return Ok(());
        }
        let sticky = inner.options.sticky;
        drop(inner);
        if !keeps(Case::MarkOffLast) {
            let header = self.inner.lock().latest.final_header();
            self.write_header(&header)?;
        }
        if let Some(live) = writer.as_mut() {
            match sticky {
                true => checkpoint::checkpoint(self, live, StreamedImages::Drop)?,
                false => checkpoint::bring_home(self, live)?,
            }
        }
        let mut inner = self.inner.lock();
        if !sticky {
            return self.take_off_mark(&mut writer, &mut inner, StreamedImages::Drop, self.ended());
        }
        if let Some(live) = writer.as_mut() {
            live.scheme.clone().detach(self, live, Some(&inner.latest))?;
            if live.home.reserved_bytes > 0 {
                // Gives back the room that was asked for and not used.
                self.home.set_len(live.home.bytes).context(|| self.what("cannot fit the length of"))?;
            }
        }
        Ok(())
    }
}
