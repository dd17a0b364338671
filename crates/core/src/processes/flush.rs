//! Flushes that processes share: a transaction is written in its turn, and flushed after it, by one
//! process for all.
//!
//! ```text
//! in the turn     the record goes to the kernel's cache: WRITTEN; the next process builds on it
//! after it        a process that sees no flusher flushes all that is written: FLUSHED, so VISIBLE
//! ```
//!
//! The word FLUSHER is the flushing process's number plus one; 0: none. It only saves work, for
//! flushes may overlap. After a flush, the processes that it covered get as long as it took to come
//! back with their next transaction, so that all share the next flush. One process, GATHERER,
//! watches that time. FLUSHER is taken from a process that stops for long, and from a dead one
//! (rule WrittenAgain).
//!
//! The processes that a flush covers sleep on its bell, others on the next flush's. Its end wakes
//! all of the former and one of the latter, which begins the next flush or becomes GATHERER. A
//! wake-up that is lost with a process costs the others [`LOOK_FOR_DEAD`].

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::error::{Error, Result};
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::database::{Database, DatabaseState};
use crate::disk::system;
use crate::log::group::Durability;
use crate::shared::member::Member;
use crate::shared::turn::now_us;
use crate::shared::words::{PROCESSES, ProcessWords, reached};

const LOOK_FOR_DEAD: Duration = Duration::from_millis(10);
/// Between the looks of one that may not flush.
const LOOK_ONLY: Duration = Duration::from_millis(1);
/// Longest time for a live flusher, unless the wait for the writer's place is shorter.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest time for covered processes to come back.
const GATHER_US_MAX: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flusher {
    Me,
    Other(usize),
}

pub fn lead(words: &ProcessWords, me: usize, instead: u64) -> Flusher {
    match words.flusher().compare_exchange(instead, me as u64 + 1, SeqCst, SeqCst) {
        Ok(_) => Flusher::Me,
        Err(other) => Flusher::Other(ProcessWords::flusher_of(other).unwrap_or(me)),
    }
}

/// A flush by the process that leads begins: returns the newest transaction that it covers, and its
/// bell.
pub fn begin(words: &ProcessWords) -> (Tid, usize) {
    words.gatherer().store(0, SeqCst);
    words.covered().copy(&words.awaiting());
    let target = words.written();
    (target, words.set_flushing(target))
}

/// It has ended, and its result is told.
pub fn end(words: &ProcessWords, me: usize, bell: usize) {
    words.ring_flushed(bell, || {
        let _ = words.flusher().compare_exchange(me as u64 + 1, 0, SeqCst, SeqCst);
    });
}

/// How long the next flush should wait for the processes that the last one covered.
fn gather(words: &ProcessWords) -> Option<Duration> {
    if words.covered().are_in(&words.awaiting()) {
        return None;
    }
    let since_us = now_us().wrapping_sub(words.flush_ended().load(SeqCst));
    let time_us = words.flush_us().load(SeqCst).min(GATHER_US_MAX);
    time_us.checked_sub(since_us).filter(|left| *left > 0).map(Duration::from_micros)
}

/// No flush is under way: the flusher of the next, and how long to sleep if it is another process.
fn next_flusher(words: &ProcessWords, me: usize, gathers: bool) -> (Flusher, Duration) {
    let Some(left) = gather(words).filter(|_| gathers) else { return (lead(words, me, 0), LOOK_FOR_DEAD) };
    let mine = me as u64 + 1;
    let gatherer = words.gatherer().compare_exchange(0, mine, SeqCst, SeqCst).map_or_else(|other| other, |_| mine);
    (Flusher::Other(me), if gatherer == mine { left } else { LOOK_FOR_DEAD })
}

/// For a message.
fn flusher_named(words: &ProcessWords) -> String {
    let flusher = ProcessWords::flusher_of(words.flusher().load(SeqCst)).filter(|process| *process < PROCESSES);
    let tag = flusher.map(|process| words.tag(process)).filter(|tag| tag.pid().is_some());
    tag.map_or(String::new(), |tag| format!(": {}", tag.name()))
}

impl Database {
    /// For all, and on the medium if `durability` says so; flushes for all if no other process that
    /// lives does. `Busy` if one does at the `deadline`.
    pub fn wait_flushed(
        &self,
        member: &Member,
        tid: Tid,
        durability: Durability,
        deadline: Option<Instant>,
    ) -> Result<()> {
        if reached(&member.words, tid, durability) {
            return Ok(());
        }
        member.awaits(true);
        let done = self.wait_for_flush(member, tid, durability, deadline);
        member.awaits(false);
        done?;
        // A store gets only flushed records.
        if reached(&member.words, tid, durability) { Ok(()) } else { self.wait_shipped(member, tid, deadline) }
    }

    /// The store may lack it.
    pub fn wait_flushed_here(&self, member: &Member, tid: Tid) -> Result<()> {
        while member.words.flushed() < tid {
            self.wait_for_flush(member, tid, Durability::Flushed, None)?;
        }
        Ok(())
    }

    fn wait_for_flush(
        &self,
        member: &Member,
        tid: Tid,
        durability: Durability,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let done = self.look_until_flushed(member, tid, durability, deadline);
        let _ = member.words.gatherer().compare_exchange(member.me as u64 + 1, 0, SeqCst, SeqCst);
        done
    }

    fn look_until_flushed(
        &self,
        member: &Member,
        tid: Tid,
        durability: Durability,
        deadline: Option<Instant>,
    ) -> Result<()> {
        let words = &member.words;
        let patience = PATIENCE.min(Duration::from_millis(self.busy_ms.load(Relaxed)));
        let mut since = Instant::now();
        let mut looked = since;
        loop {
            let bells = words.flush_bells().map(|bell| (bell, bell.load(SeqCst)));
            let shown = words.shown_bell().load(SeqCst);
            words.show();
            if reached(words, tid, durability) || (words.ship().waits() && words.flushed() >= tid) {
                return Ok(());
            }
            self.check(Some(member))?;
            if !keeps(Case::Poisons) {
                // No process would report a failed write.
                return Ok(());
            }
            let now = Instant::now();
            let is_late = deadline.is_some_and(|deadline| now >= deadline);
            let may = words.written() >= tid && !member.observes;
            // Before the flusher: else that of a later flush could be taken for this one's.
            let (target, bell) = words.flushing();
            let flusher = ProcessWords::flusher_of(words.flusher().load(SeqCst));
            let (mut turn, nap) = match flusher {
                None if may => next_flusher(words, member.me, !patience.is_zero()),
                _ => (Flusher::Other(flusher.unwrap_or(member.me)), LOOK_FOR_DEAD),
            };
            if let Flusher::Other(other) = turn
                && (now - looked >= LOOK_FOR_DEAD || now - since >= patience || is_late)
            {
                looked = now;
                if other != member.me && member.is_dead(other)? {
                    if self.flush_for_dead(member, deadline)? || !is_late {
                        continue;
                    }
                } else if now - since >= patience && may && !is_late {
                    turn = lead(words, member.me, other as u64 + 1);
                    since = now;
                }
            }
            if turn == Flusher::Me {
                self.flush_for_all(member)?;
                continue;
            }
            if is_late {
                return Err(Error::Busy(format!("a flush of another process takes long{}", flusher_named(words))));
            }
            let is_covered = flusher.is_some() && target >= tid;
            match bells.get(if is_covered { bell } else { 1 - bell }) {
                Some((bell, rung)) if may => system::wait(bell, *rung, nap),
                // It could not do what the one that is woken must.
                _ => system::wait(words.shown_bell(), shown, LOOK_ONLY),
            }
        }
    }

    /// The first process may flush its mark with its first record, unknown here. If this one dies
    /// in the flush of home, another writes the mark again.
    pub fn flush_mark_of_first(&self, member: &Member, inner: &mut DatabaseState) -> Result<()> {
        let words = &member.words;
        let bell = (lead(words, member.me, 0) == Flusher::Me).then(|| begin(words).1);
        let flushed = self.sync_home().map_err(|e| inner.poison(e));
        bell.into_iter().for_each(|bell| end(words, member.me, bell));
        flushed
    }

    fn flush_for_all(&self, member: &Member) -> Result<()> {
        let words = &member.words;
        let began_us = now_us();
        let (target, bell) = begin(words);
        // Another process's failed flush may have hidden a loss.
        match member.log.flush_records().and_then(|()| self.check(Some(member))) {
            Ok(()) => {
                let ended_us = now_us();
                words.flush_ended().store(ended_us, SeqCst);
                words.flush_us().store(ended_us.wrapping_sub(began_us), SeqCst);
                words.raise_flushed(target);
                words.show();
                end(words, member.me, bell);
                Ok(())
            }
            Err(e) => {
                let e = self.poison(e);
                end(words, member.me, bell);
                Err(e)
            }
        }
    }

    /// The dead process's flush may have failed: everything is written again, in a turn (rule
    /// WrittenAgain). False: another process has the turn.
    fn flush_for_dead(&self, member: &Member, deadline: Option<Instant>) -> Result<bool> {
        // A commit in its own turn would wait for itself.
        if !member.join_turn() {
            let soon = Instant::now() + LOOK_FOR_DEAD;
            match self.enter(true, deadline.map_or(soon, |deadline| deadline.min(soon))) {
                Ok(()) => {}
                Err(Error::Busy(_)) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let done = match self.writer.lock().as_mut() {
            Some(live) => self.flush_of_dead(live),
            None => Ok(()),
        };
        self.leave(false);
        done.map(|()| true)
    }
}
