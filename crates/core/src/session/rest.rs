//! A process detaches from an idle database: LIVE → UNMARKED with its connections open.
//!
//! The last process to detach brings all home and takes the mark off, so that any program can use
//! the file. The next writing transaction attaches anew; one that only reads needs no log then.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::mark::MarkRemoval;
use crate::base::clock::Instant;
use crate::base::error::{Error, Result};
use crate::checkpoint;
use crate::database::queue::{ConnectionId, TurnClaim};
use crate::database::{Database, DatabaseState, Phase};
use crate::disk::locks;
use crate::log::ring::StreamedImages;
use crate::shared::member::{self, Member};

/// Connections count from 1.
const RESTER: ConnectionId = ConnectionId(0);
/// Longest wait for a process that attaches or leaves.
const ADMIN_WAIT: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Idle,
    ForGood,
}

impl Database {
    fn can_rest(&self, inner: &DatabaseState) -> bool {
        let options = &inner.options;
        inner.phase == Phase::Live && !options.sticky && !options.concurrent && self.is_unused(inner)
    }

    fn is_unused(&self, inner: &DatabaseState) -> bool {
        inner.snapshots.is_empty() && inner.reserved.is_none() && self.alone.load(SeqCst) == 0
    }

    /// The time to the next look at an attached database; `None`: it needs none.
    pub fn looks_in(&self) -> Option<Duration> {
        let inner = self.inner.lock();
        if inner.phase == Phase::Live { inner.options.look_after() } else { None }
    }

    /// As the process ends, none of its connections comes back.
    pub fn rest_for_good(&self) -> Result<()> {
        if self.rest_as(Rest::ForGood)? { self.end_plain() } else { Ok(()) }
    }

    pub fn rest_if_quiet(&self, now: Instant) -> Result<()> {
        let is_over = {
            let mut inner = self.inner.lock();
            let was_used = std::mem::take(&mut inner.was_used) || !self.is_unused(&inner);
            let (newest, idle) = (inner.published.tid, inner.options.idle);
            if inner.phase == Phase::Live && !self.is_log_replaced(&inner) {
                self.keep_stock_out(&mut inner)?;
            }
            inner.pace.is_over(now, was_used, newest, idle)
        };
        if is_over { self.rest().map(drop) } else { Ok(()) }
    }

    /// The last process leaves a plain file. True: detached.
    pub fn rest(&self) -> Result<bool> {
        self.rest_as(Rest::Idle)
    }

    fn rest_as(&self, rest: Rest) -> Result<bool> {
        if !self.can_rest(&self.inner.lock()) || !self.facts().all_in_log() || self.undecided.lock().is_some() {
            return Ok(self.inner.lock().phase == Phase::Unmarked);
        }
        if !self.queue.acquire(RESTER, TurnClaim::Firm, Duration::ZERO) {
            return Ok(false);
        }
        let rested = self.leave_unused(rest);
        self.queue.release(RESTER);
        rested
    }

    /// The caller has the writer's place.
    fn leave_unused(&self, rest: Rest) -> Result<bool> {
        let member = self.member();
        let Some(member) = member.as_ref() else { return self.rest_plain(rest) };
        if member.words.is_replaced() || member.is_undecided() {
            return Ok(false);
        }
        // A process that leaves at the same moment finds an observer gone or attached.
        let is_last = match member.observes {
            true => member::admin_to_look(&member.log, ADMIN_WAIT).map(|()| false),
            false => self.is_last(ADMIN_WAIT),
        };
        let left = match is_last {
            Ok(true) => self.rest_plain(rest),
            // Behind the last process that may write the log, the others could not come again.
            Ok(false) if !matches!(member.has_living_others(), Ok(true)) => Ok(false),
            // Behind a lost log no process would come again. The next write says why it stays lost.
            Ok(false) if !matches!(self.is_log_in_place(&member.log), Ok(true)) => {
                let _ = self.replace_before_leaving();
                Ok(false)
            }
            Ok(false) => self.leave_to_others(member),
            Err(e) => Err(e),
        };
        if !matches!(left, Ok(true)) {
            self.let_others_in(member)?;
        }
        match left {
            Err(Error::Busy(_)) => Ok(false),
            left => left,
        }
    }

    pub(super) fn let_others_in(&self, member: &Member) -> Result<()> {
        // Without a member, its locks are given back.
        if self.member().is_some() { member.not_alone() } else { Ok(()) }
    }

    fn leave_to_others(&self, member: &Member) -> Result<bool> {
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        // A thread that waits for a turn would take it behind the session (rule OneWriter).
        if !self.can_rest(&inner) || !member.end_turns(0) {
            return Ok(false);
        }
        *writer = None;
        self.forget(&mut inner);
        self.quit(&mut inner)?;
        inner.phase = Phase::Unmarked;
        locks::none(&*self.home)?;
        Ok(true)
    }

    /// The caller has the writer's place, which stays only behind an end. Readers that begin
    /// meanwhile wait, or have `may` refuse.
    pub(super) fn leave_plain(&self, may: impl FnOnce(&DatabaseState) -> Option<MarkRemoval>) -> Result<bool> {
        let left = self.make_plain(may);
        if !matches!(left, Ok(true)) {
            self.leave(false);
        }
        left
    }

    fn make_plain(&self, may: impl FnOnce(&DatabaseState) -> Option<MarkRemoval>) -> Result<bool> {
        self.wait_for_stock()?;
        let mut writer = self.writer.lock();
        let Some(live) = writer.as_mut() else { return Ok(false) };
        checkpoint::bring_home(self, live)?;
        let mut inner = self.inner.lock();
        let Some(ended) = may(&inner) else { return Ok(false) };
        // After an error, mark and names are unknown.
        let done = self.take_off_mark(&mut writer, &mut inner, StreamedImages::Drop, ended);
        done.map_err(|e| inner.poison(e))?;
        locks::none(&*self.home)?;
        Ok(true)
    }

    fn rest_plain(&self, rest: Rest) -> Result<bool> {
        let ends_turns = |inner: &DatabaseState| inner.member.as_ref().is_none_or(|member| member.end_turns(1));
        let ended = |inner: &DatabaseState| match rest {
            Rest::Idle => self.ended(),
            Rest::ForGood => self.closed(inner),
        };
        match self.leave_plain(|inner| (self.can_rest(inner) && ends_turns(inner)).then(|| ended(inner))) {
            // It stays attached.
            Err(e) if e.is_short() && self.inner.lock().check().is_ok() => Ok(false),
            left => left,
        }
    }

    pub(super) fn ended(&self) -> MarkRemoval {
        let flushes = self.flushes_close.load(std::sync::atomic::Ordering::Relaxed);
        if flushes { MarkRemoval::Durable } else { MarkRemoval::Proven }
    }
}
