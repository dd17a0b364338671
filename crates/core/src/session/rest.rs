//! A process detaches from a database that its connections leave alone: LIVE → UNMARKED with its connections open.
//!
//! The last process to detach brings all home and takes the mark off: the file is a plain one again, for any program. The next
//! transaction that writes attaches anew. A transaction that only reads needs no log then.

use std::time::{Duration, Instant};

use super::mark::MarkRemoval;
use crate::base::error::{Error, Result};
use crate::checkpoint;
use crate::database::queue::{ConnectionId, TurnClaim};
use crate::database::{Database, DatabaseState, Phase};
use crate::disk::locks;
use crate::log::ring::StreamedImages;
use crate::shared::member::Member;

/// In the queue for the writer's place. Connections count from 1.
const RESTER: ConnectionId = ConnectionId(0);
/// How long a process that attaches or leaves at the same moment is waited for.
const ADMIN_WAIT: Duration = Duration::from_millis(5);

impl DatabaseState {
    /// Whether this process has the log of the database in use, and detaches from it while connections are open.
    fn can_rest(&self) -> bool {
        self.phase == Phase::Live && !self.options.sticky && !self.options.concurrent && self.is_unused()
    }

    /// Whether no connection of this process has a transaction.
    fn is_unused(&self) -> bool {
        self.snapshots.is_empty() && self.reserved.is_none() && self.alone.is_none()
    }
}

impl Database {
    /// Whether this process is attached, and when it is to be looked at again.
    pub fn attached_for(&self) -> Option<Duration> {
        let inner = self.inner.lock();
        let looked_after = inner.phase == Phase::Live && !inner.options.idle.is_zero();
        looked_after.then(|| inner.options.idle)
    }

    /// A look at `now` at a database that this process is attached to: detaches, where there was no transaction for long enough.
    pub fn rest_if_quiet(&self, now: Instant) -> Result<()> {
        let is_over = {
            let mut inner = self.inner.lock();
            let was_used = std::mem::take(&mut inner.was_used) || !inner.is_unused();
            let (newest, idle) = (inner.published.tid, inner.options.idle);
            inner.pace.is_over(now, was_used, newest, idle)
        };
        if is_over { self.rest().map(drop) } else { Ok(()) }
    }

    /// Detaches this process where no connection of it has a transaction; the last process leaves a plain file. Whether it is detached.
    pub fn rest(&self) -> Result<bool> {
        if !self.inner.lock().can_rest() || !self.facts().all_in_log() || self.undecided.lock().is_some() {
            return Ok(self.inner.lock().phase == Phase::Unmarked);
        }
        if !self.queue.acquire(RESTER, TurnClaim::Firm, Duration::ZERO) {
            return Ok(false);
        }
        let rested = self.leave_unused();
        self.queue.release(RESTER);
        rested
    }

    /// The same with the writer's place of this process.
    fn leave_unused(&self) -> Result<bool> {
        let Some(member) = self.member() else { return self.leave_plain() };
        if member.words.is_replaced() {
            return Ok(false);
        }
        let left = match self.is_last(ADMIN_WAIT) {
            Ok(true) => {
                let left = self.leave_plain();
                if !matches!(left, Ok(true)) {
                    self.leave(false);
                }
                left
            }
            // Behind observers alone nobody would take the mark off.
            Ok(false) if !self.read_only && !member.has_others() => Ok(false),
            Ok(false) => self.leave_to_others(),
            Err(e) => Err(e),
        };
        if !matches!(left, Ok(true)) && !member.observes {
            // Others may come again, and go.
            self.let_others_in(&member)?;
        }
        match left {
            Err(Error::Busy(_)) => Ok(false),
            left => left,
        }
    }

    fn let_others_in(&self, member: &Member) -> Result<()> {
        // A process that could not take the mark off has given its locks back.
        if self.member().is_some() { member.not_alone() } else { Ok(()) }
    }

    /// Other processes go on.
    fn leave_to_others(&self) -> Result<bool> {
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        if !inner.can_rest() {
            return Ok(false);
        }
        *writer = None;
        self.forget(&mut inner);
        self.quit(&mut inner)?;
        inner.phase = Phase::Unmarked;
        locks::none(&*self.home)?;
        Ok(true)
    }

    /// The last process makes home a plain file. Readers that begin meanwhile wait for the removal of the mark, or keep the process attached.
    fn leave_plain(&self) -> Result<bool> {
        self.keep_stock_out()?;
        let mut writer = self.writer.lock();
        let Some(live) = writer.as_mut() else { return Ok(false) };
        match checkpoint::bring_home(self, live) {
            // Where room is short, it stays attached.
            Err(e) if e.is_short() => return Ok(false),
            brought => brought?,
        }
        let mut inner = self.inner.lock();
        if !inner.can_rest() {
            return Ok(false);
        }
        let done = self.take_off_mark(&mut writer, &mut inner, StreamedImages::Drop, self.ended());
        done.map_err(|e| inner.poison(e))?;
        locks::none(&*self.home)?;
        Ok(true)
    }

    /// Whether the removal of the mark is flushed.
    pub(super) fn ended(&self) -> MarkRemoval {
        let flushes = self.flushes_close.load(std::sync::atomic::Ordering::Relaxed);
        if flushes { MarkRemoval::Durable } else { MarkRemoval::Proven }
    }
}
