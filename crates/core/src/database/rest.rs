//! A process detaches from a database that its connections leave alone: LIVE → UNMARKED with its connections open.
//!
//! The last process to detach brings all home and takes the mark off: the file is a plain one again, for any program. The next
//! transaction that writes attaches anew. A transaction that only reads needs no log then.

use std::time::{Duration, Instant};

use super::mark::Ended;
use super::{Database, Inner, Phase};
use crate::checkpoint;
use crate::error::{Error, Result};
use crate::log::ring::Stream;
use crate::procs::member::Member;
use crate::queue::{Claim, ConnectionId};
use crate::types::Tid;

/// In the queue for the writer's place. Connections count from 1.
const RESTER: ConnectionId = ConnectionId(0);
/// How long a process that attaches or leaves at the same moment is waited for.
const ADMIN_WAIT: Duration = Duration::from_millis(5);
/// Pauses between two transactions that write tell of a rhythm where none is longer than this, nor twice as long as the other. Then the
/// process stays attached for twice the longer one.
const PAUSE_MAX: Duration = Duration::from_secs(60);
const ALIKE: u32 = 2;

/// How the transactions of this process follow each other, as far as looks at intervals tell.
#[derive(Debug, Default)]
pub struct Pace {
    /// Since when no transaction has been seen; `None`: one was under way or over at the last look.
    quiet_since: Option<Instant>,
    /// The newest transaction at the last look, and when a newer one than before was seen.
    newest: Tid,
    written_at: Option<Instant>,
    /// The last two pauses between transactions that write in which the process might have detached; the newest first.
    pauses: [Duration; 2],
}

impl Pace {
    /// Looks at `now`: whether there was a transaction since the last look, and which is the newest. Whether there was none for so long
    /// that the process detaches, where `idle` is the least.
    fn is_over(&mut self, now: Instant, was_used: bool, newest: Tid, idle: Duration) -> bool {
        if newest != self.newest {
            self.newest = newest;
            let pause = self.written_at.replace(now).map_or(Duration::ZERO, |before| now - before);
            if pause > idle {
                self.pauses = [pause, self.pauses[0]];
            }
        }
        if was_used {
            self.quiet_since = None;
            return false;
        }
        let since = *self.quiet_since.get_or_insert(now);
        now - since >= self.patience(idle)
    }

    /// How long a process stays attached without a transaction.
    fn patience(&self, idle: Duration) -> Duration {
        let [shorter, longer] = [self.pauses[0].min(self.pauses[1]), self.pauses[0].max(self.pauses[1])];
        let is_rhythm = longer <= PAUSE_MAX && longer <= shorter * ALIKE;
        if is_rhythm { (longer * ALIKE).max(idle) } else { idle }
    }
}

impl Inner {
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
        if !self.queue.acquire(RESTER, Claim::Firm, Duration::ZERO) {
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
        crate::locks::none(&*self.home)?;
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
        let done = self.take_off_mark(&mut writer, &mut inner, Stream::Drop, self.ended());
        done.map_err(|e| inner.poison(e))?;
        crate::locks::none(&*self.home)?;
        Ok(true)
    }

    /// Whether the removal of the mark is flushed.
    pub(super) fn ended(&self) -> Ended {
        let flushes = self.flushes_close.load(std::sync::atomic::Ordering::Relaxed);
        if flushes { Ended::Durable } else { Ended::Proven }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(1);

    /// Looks twice a second at a process that commits at these seconds, until that second: how often it detaches.
    fn detaches(commits: &[u64], until: u64) -> Vec<f64> {
        let begin = Instant::now();
        let mut pace = Pace::default();
        let mut due = commits.iter().copied().peekable();
        let (mut newest, mut is_attached) = (Tid(1), false);
        let mut detached = Vec::new();
        for half in 0..2 * until {
            let at = Duration::from_millis(500 * half);
            let mut was_used = false;
            while due.next_if(|second| Duration::from_secs(*second) <= at).is_some() {
                newest = newest.next();
                (was_used, is_attached) = (true, true);
            }
            // Nothing is looked at that is not attached.
            if is_attached && pace.is_over(begin + at, was_used, newest, IDLE) {
                is_attached = false;
                detached.push(at.as_secs_f64());
            }
        }
        detached
    }

    #[test]
    fn a_process_that_fell_silent_detaches_soon() {
        assert_eq!(detaches(&[0], 60), [1.5]);
        assert_eq!(detaches(&[0, 0, 1, 1, 2], 60), [3.5]);
        // Without a rhythm it does so after each transaction.
        assert_eq!(detaches(&[0, 4, 20, 23, 40], 60), [1.5, 5.5, 21.5, 24.5, 41.5]);
    }

    #[test]
    fn a_process_that_commits_regularly_stays_attached() {
        for pause in [2, 5, 10, 30, 60] {
            let commits: Vec<_> = (0..40).map(|n| n * pause).collect();
            // Until the rhythm is known, and in the end.
            let end = 39.0 * pause as f64 + (2.0 * pause as f64) + 0.5;
            let expected = [1.5, pause as f64 + 1.5, end];
            assert_eq!(detaches(&commits, 45 * pause), expected, "every {pause} s");
        }
        let hourly: Vec<_> = (0..5).map(|n| 3600 * n).collect();
        assert_eq!(detaches(&hourly, 5 * 3600).len(), 5);
    }
}
