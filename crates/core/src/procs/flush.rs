//! Flushes that processes share: a transaction is written in its turn, and flushed after it, by one process for all.
//!
//! ```text
//!  in the turn     the record goes to the kernel's cache: WRITTEN; the next process builds on it
//!  after it        who finds nobody flushing flushes all that is written by then: FLUSHED, and with it VISIBLE
//! ```
//!
//! The word FLUSHER names the process that does (its number plus one; 0: none). It only keeps two from doing the same:
//! flushes may overlap. After a flush, those that it covered have as long as it took to come back with their next
//! transaction before the next one begins, so that all of them share one instead of taking turns with two.
//! It is taken from a process that is stopped for long, and from a dead one together with what
//! a flush of it that failed may have left: records that are in the cache, clean, and not on the disk.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::member::Member;
use super::turn::now_us;
use super::words::ProcessWords;
use crate::database::{Database, Live};
use crate::disk::system;
use crate::error::{Error, Result};
use crate::log::group::Durability;
use crate::rules::{Rule, keeps};
use crate::types::Tid;

/// How often a waiter looks whether the process that flushes is dead.
const LOOK_FOR_DEAD: Duration = Duration::from_millis(10);
/// How long one that is alive may take before another flushes as well, unless the wait for the writer's place is shorter.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest time for those that a flush covered to come back, in microseconds.
const GATHER_US_MAX: u64 = 1000;

/// What flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flusher {
    /// Nobody else does.
    Me,
    /// Another thread or process.
    Other(usize),
}

/// The process that a word FLUSHER names.
fn flusher_of(word: u64) -> Option<usize> {
    usize::try_from(word).ok()?.checked_sub(1)
}

/// Becomes the one that flushes, in the place of `instead`.
pub fn lead(words: &ProcessWords, me: usize, instead: u64) -> Flusher {
    match words.flusher().compare_exchange(instead, me as u64 + 1, SeqCst, SeqCst) {
        Ok(_) => Flusher::Me,
        Err(other) => Flusher::Other(flusher_of(other).unwrap_or(me)),
    }
}

/// What was written before `lead` is on the medium: up to `tid`.
pub fn led(words: &ProcessWords, me: usize, tid: Tid) {
    words.raise_flushed(tid);
    words.show();
    end(words, me);
}

/// Flushes no more.
pub fn end(words: &ProcessWords, me: usize) {
    let _ = words.flusher().compare_exchange(me as u64 + 1, 0, SeqCst, SeqCst);
    words.ring();
}

/// How long the next flush waits for those that the last one covered.
fn gather(words: &ProcessWords) -> Option<Duration> {
    if words.covered().load(SeqCst) & !words.awaiting().load(SeqCst) == 0 {
        return None;
    }
    let since_us = now_us().wrapping_sub(words.flush_ended().load(SeqCst));
    let time_us = words.flush_us().load(SeqCst).min(GATHER_US_MAX);
    time_us.checked_sub(since_us).filter(|left| *left > 0).map(Duration::from_micros)
}

/// Whether a transaction is as far as its commit waits for.
pub fn reached(words: &ProcessWords, tid: Tid, durability: Durability) -> bool {
    words.frontier().reached(tid, durability == Durability::Flushed)
}

impl Database {
    /// Waits until every process may see `tid`, which is written, and until it is on the medium if `durability` says
    /// so. Flushes for all if nobody does. `Busy` after the `deadline`, if there is one.
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
        // What the store waits for is on the medium, whatever the commit asked for.
        if reached(&member.words, tid, durability) { Ok(()) } else { self.wait_shipped(member, tid, deadline) }
    }

    /// The same as far as this machine is concerned: the store may lack it.
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
        let words = &member.words;
        let patience = PATIENCE.min(Duration::from_millis(self.inner.lock().options.busy_ms));
        let mut since = Instant::now();
        let mut looked = since;
        loop {
            let rung = words.flush_bell().load(SeqCst);
            words.show();
            if reached(words, tid, durability) || (words.ship().waits() && words.flushed() >= tid) {
                return Ok(());
            }
            self.inner.lock().check()?;
            if !keeps(Rule::Poisons) {
                // What failed is never written, and nobody says so.
                return Ok(());
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::Busy("a flush of another process takes long".into()));
            }
            let others = if words.flusher().load(SeqCst) == 0 && !patience.is_zero() { gather(words) } else { None };
            let nap = others.unwrap_or(LOOK_FOR_DEAD);
            let may = others.is_none() && words.written() >= tid && !member.observes;
            let mut turn = if may { lead(words, member.me, 0) } else { Flusher::Other(member.me) };
            if let Flusher::Other(other) = turn
                && (now - looked >= LOOK_FOR_DEAD || now - since >= patience)
            {
                looked = now;
                if other != member.me && member.is_dead(other)? {
                    self.flush_for_dead(member, other, deadline)?;
                    continue;
                }
                if now - since >= patience && words.written() >= tid && !member.observes {
                    turn = lead(words, member.me, other as u64 + 1);
                    since = now;
                }
            }
            if turn == Flusher::Me {
                self.flush_for_all(member)?;
                continue;
            }
            system::wait(words.flush_bell(), rung, nap);
        }
    }

    /// The one that flushes does.
    fn flush_for_all(&self, member: &Member) -> Result<()> {
        let words = &member.words;
        let began_us = now_us();
        words.covered().store(words.awaiting().load(SeqCst), SeqCst);
        let target = words.written();
        // One of another process that failed meanwhile may have made this one blind to what is not on the medium.
        match member.log.flush().and_then(|()| self.inner.lock().check()) {
            Ok(()) => {
                let ended_us = now_us();
                words.flush_ended().store(ended_us, SeqCst);
                words.flush_us().store(ended_us.wrapping_sub(began_us), SeqCst);
                led(words, member.me, target);
                Ok(())
            }
            Err(e) => {
                let e = self.poison(e);
                end(words, member.me);
                Err(e)
            }
        }
    }

    /// A process died while it flushed; perhaps its flush had failed. Everything is written again, in a turn (rule
    /// LostFlushRepeated).
    fn flush_for_dead(&self, member: &Member, dead: usize, deadline: Option<Instant>) -> Result<()> {
        // A commit that waits in a turn of its own would wait for itself, where that turn is to be passed on.
        if !member.join_turn() {
            let soon = Instant::now() + LOOK_FOR_DEAD;
            match self.enter(true, deadline.map_or(soon, |deadline| deadline.min(soon))) {
                Ok(()) => {}
                Err(Error::Busy(_)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let done = match self.writer.lock().as_mut() {
            // Somebody else may have seen to it meanwhile.
            Some(live) if member.words.flusher().load(SeqCst) == dead as u64 + 1 => self.flush_published(live),
            _ => Ok(()),
        };
        self.leave(false);
        done
    }

    /// Everything published is on the medium, and every process may see it. The caller has the writer's place.
    pub fn flush_published(&self, live: &mut Live) -> Result<()> {
        let group = live.log.group().clone();
        let Some(member) = self.member() else { return group.flush(self) };
        let words = &member.words;
        group.hand_over(self)?;
        let flusher = words.flusher().load(SeqCst);
        let other = flusher_of(flusher).filter(|other| *other != member.me);
        if let Some(dead) = other
            && member.is_dead(dead)?
        {
            let cursor = live.log.cursor();
            // What this process streams for a transaction to come may have been taken along by the flush that failed.
            let streamed_end = live.log.stream_tail();
            member.log.rewrite_live(live.log.slot(), cursor.tail, streamed_end).map_err(|e| self.poison(e))?;
            group.flushed_elsewhere(cursor.last_tid);
            let _ = words.flusher().compare_exchange(flusher, 0, SeqCst, SeqCst);
        } else {
            group.flushed_elsewhere(words.flushed());
            group.flush(self)?;
        }
        self.inner.lock().check()?;
        let mut inner = self.inner.lock();
        // Rule SeenByAllAtOnce.
        if self.is_told_at_once() {
            words.publish(inner.published.tid, group.durable());
            words.show();
            inner.advance();
            words.ring();
        }
        Ok(())
    }
}
