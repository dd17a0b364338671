//! From a plain file to a live one and back: the transitions of [`Phase`].

use std::sync::Arc;
use std::time::Duration;

use super::mark::MarkRemoval;
use crate::base::clock::{self, Instant};
use crate::base::error::{Error, IoContext, Result};
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::checkpoint;
use crate::database::{Database, DatabaseState, LiveDatabase, Phase};
use crate::disk::locks;
use crate::disk::sync::MutexGuard;
use crate::log::ring::StreamedImages;
use crate::shared::member::Member;
use crate::shared::tail::Tail;
use crate::sqlite_format::home::State;

/// Longest wait for another that attaches or leaves.
const ADMIN_WAIT: Duration = Duration::from_secs(20);
/// Longest wait before home is marked, or unmarked after a dead process.
const READERS_LEAVE: Duration = Duration::from_millis(10);
const READERS_LOOK: Duration = Duration::from_millis(1);

/// Held for a look at home.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LookLock {
    Shared,
    /// Others use a marked home: not for one at rest.
    Common,
}

impl Database {
    /// UNMARKED → LIVE, with the writer's place and SHARED. `Busy` while others read: RESERVED
    /// stays until the caller gives up, so that one of several gets on.
    pub fn go_live(&self, writer: &mut MutexGuard<'_, Option<LiveDatabase>>, inner: &mut DatabaseState) -> Result<()> {
        if !locks::reserve(&*self.home)? {
            return Err(Error::Busy(format!(
                "another process is about to write {}{}",
                self.path.display(),
                locks::by_owner(&*self.home)
            )));
        }
        // For programs that only look; longer readers go on.
        let patience = READERS_LEAVE.min(Duration::from_millis(inner.options.busy_ms));
        if !locks::exclusive_from_reserved(&*self.home, patience)? {
            return Err(Error::Busy(format!(
                "the database {} is in use by another process without onewrite{}",
                self.path.display(),
                locks::by_owner(&*self.home)
            )));
        }
        let made = self.place_mark(inner, None);
        match &made {
            Ok(_) => inner.kept_stock_out = locks::in_use(&*self.home)?,
            Err(_) => locks::downgrade(&*self.home)?,
        }
        let made = made?;
        self.share(made, writer, inner, 1)
    }

    /// Waits for those that read a file at rest; with `keeps_out`, new ones do not come meanwhile.
    /// With the writer's place. False at `deadline`.
    pub fn outlast_readers(&self, deadline: Instant, keeps_out: bool) -> Result<bool> {
        loop {
            let inner = self.inner.lock();
            if inner.phase != Phase::Unmarked {
                return Ok(true);
            }
            let home = &*self.home;
            // Without RESERVED, as in `locks::exclusive`.
            let mine = keeps_out && !locks::is_reserved(home)? && locks::pending(home)?;
            if keeps_out && !mine {
                // One that is about to write needs PENDING.
                locks::release_pending(home)?;
            }
            let left = match mine || !keeps_out {
                true => !locks::has_others(home)?,
                false => self.read_mark()?.is_some(),
            };
            if left || Instant::now() >= deadline {
                if keeps_out {
                    locks::release_pending(home)?;
                }
                return Ok(left);
            }
            drop(inner);
            clock::sleep(READERS_LOOK.min(deadline.saturating_duration_since(Instant::now())));
        }
    }

    /// For a look at home. `None` while another program is about to write.
    pub fn lock_to_look(&self, inner: &mut DatabaseState) -> Result<Option<LookLock>> {
        inner.kept_stock_out = false;
        let locked = match locks::shared(&*self.home)? {
            true => Some(LookLock::Shared),
            false => (self.read_mark()?.is_some() && locks::common(&*self.home)?).then_some(LookLock::Common),
        };
        if locked.is_some() {
            self.note_look(inner)?;
        }
        Ok(locked)
    }

    /// Stock SQLite gets BUSY while home is marked and in use, else NOTADB (rule StockKeptOut).
    pub fn keep_stock_out(&self, inner: &mut DatabaseState) -> Result<()> {
        if self.read_only {
            return locks::common(&*self.home).map(drop);
        }
        inner.kept_stock_out = inner.kept_stock_out || locks::in_use(&*self.home)?;
        Ok(())
    }

    /// Precedes bringing pages home and the mark's removal: stock SQLite that has read the length
    /// reads the header now, and finds the mark.
    pub(super) fn wait_for_stock(&self) -> Result<()> {
        let deadline = Instant::now() + READERS_LEAVE;
        loop {
            let mut inner = self.inner.lock();
            self.keep_stock_out(&mut inner)?;
            if inner.kept_stock_out || self.read_only || Instant::now() >= deadline {
                return Ok(());
            }
            drop(inner);
            clock::sleep(Duration::from_micros(200));
        }
    }

    /// Others may join a log that this process alone made `live`, all durable, unless the scheme
    /// forbids it. `in_flight`: transactions under way, as after [`Database::enter`]; home is just
    /// marked.
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
        inner.set_state(Arc::new(State { tid: cursor.last_tid, ..(*inner.latest).clone() }));
        **writer = Some(live);
        if self.facts().all_in_log() && !inner.options.concurrent {
            let options = inner.options.clone();
            let tail = Tail { cursor, ..Tail::at(slot) };
            self.enrol(Member::found(self.files(), log, tail, due, options.psow, in_flight)?, writer, inner);
        }
        self.tell_attached(inner);
        self.sign()?.map_or(Ok(()), |sign| self.begin_signed(inner.member.as_deref(), sign))
    }

    /// The thread that looks after idle databases begins behind the first transaction, which needs
    /// it no sooner; the end of the process detaches from now on.
    pub fn tell_attached(&self, inner: &mut DatabaseState) {
        self.asks_to_look_within(None);
        inner.look_is_due = true;
    }

    pub fn look_if_due(&self, inner: &mut DatabaseState) {
        if std::mem::take(&mut inner.look_is_due) && inner.phase == Phase::Live {
            self.asks_to_look_within(inner.options.look_after());
        }
    }

    /// Whether a thread looks after this database now.
    pub fn asks_to_look_within(&self, time: Option<Duration>) -> bool {
        self.attached.get().is_some_and(|attached| attached(time))
    }

    pub fn enrol(&self, member: Option<Arc<Member>>, writer: &mut Option<LiveDatabase>, inner: &mut DatabaseState) {
        if let Some(member) = &member {
            inner.snapshots.tids().for_each(|tid| member.announce_unseen(tid));
        }
        self.set_member(member.clone());
        if let Some(live) = writer {
            live.member = member.clone();
        }
        inner.member = member;
    }

    fn set_member(&self, member: Option<Arc<Member>>) {
        let mut table = self.table.write();
        table.is_shared = member.is_some();
        self.member.store(member);
    }

    pub(super) fn forget(&self, inner: &mut DatabaseState) {
        self.table.write().clear();
        inner.plain = None;
    }

    /// Undoes [`Database::enrol`]; gives back all locks of the log.
    pub fn quit(&self, inner: &mut DatabaseState) -> Result<()> {
        self.set_member(None);
        (inner.home_tid, inner.tid_before) = (Tid::HOME, Tid::HOME);
        inner.member.take().map_or(Ok(()), |member| member.leave_for_good())
    }

    /// LIVE → UNMARKED: the next write starts with other options. `Busy` beside other processes.
    pub fn detach_for_options(&self) -> Result<()> {
        let leave = || self.leave_plain(|_| Some(MarkRemoval::Durable)).map(drop);
        let member = self.member();
        let Some(member) = member.as_ref() else { return leave() };
        self.be_alone(member, Duration::ZERO)?;
        let left = self.enter(true, Duration::ZERO).and_then(|()| leave());
        if left.is_err() {
            self.let_others_in(member)?;
        }
        left
    }

    /// Whether this process is the last one. Else it leaves a log that the others find.
    fn ends_session(&self) -> Result<bool> {
        let is_last = self.is_last(ADMIN_WAIT)? || (self.replace_before_leaving()? && self.is_last(ADMIN_WAIT)?);
        if is_last {
            self.wait_for_stock()?;
        }
        Ok(is_last)
    }

    pub fn detach(&self) -> Result<()> {
        let live = self.inner.lock().phase == Phase::Live;
        let last = if live { self.ends_session() } else { Ok(true) };
        let closed = match last {
            Ok(true) if live => self.end_session(),
            Ok(true) => self.end_plain(),
            last => last.map(drop),
        };
        // Even after a failure: recovery needs all locks.
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        *writer = None;
        let left = self.quit(&mut inner);
        if inner.phase == Phase::Live {
            inner.phase = Phase::Unmarked;
        }
        let unlocked = self.unlock_home(&mut inner);
        closed.and(left).and(unlocked)
    }

    /// A failure leaves it to recovery.
    fn end_session(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        let inner = self.inner.lock();
        if inner.phase != Phase::Live || inner.check().is_err() {
            return Ok(());
        }
        let mut sticky = inner.options.sticky;
        drop(inner);
        // A mark whose log is lost could not be opened. Its removal looks at the mark.
        if sticky && let Some(live) = writer.as_ref() {
            sticky = self.finds_log(live)?;
            if sticky {
                self.check_mark(live)?;
            }
        }
        if !keeps(Case::MarkOffLast) {
            let header = self.inner.lock().latest.final_header();
            self.write_header(&self.with_asked(header)?)?;
        }
        if let Some(live) = writer.as_mut() {
            match sticky {
                true => checkpoint::checkpoint(self, live, StreamedImages::Drop)?,
                false => checkpoint::bring_home(self, live)?,
            }
        }
        let mut inner = self.inner.lock();
        if !sticky {
            let ended = self.closed(&inner);
            return self.take_off_mark(&mut writer, &mut inner, StreamedImages::Drop, ended);
        }
        if let Some(live) = writer.as_mut() {
            live.scheme.clone().detach(self, live, Some(&inner.latest))?;
            if live.home.reserved_bytes > 0 {
                self.home.set_len(live.home.bytes).context(|| self.what("cannot fit the length of"))?;
            }
        }
        Ok(())
    }
}
