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
//! back with their next transaction, so that all share the next flush. FLUSHER is taken from a
//! process that stops for long, and from a dead one (rule WrittenAgain).

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use crate::base::error::{Error, Result};
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::database::Database;
use crate::disk::system;
use crate::log::group::Durability;
use crate::shared::member::Member;
use crate::shared::turn::now_us;
use crate::shared::words::{PROCESSES, ProcessWords, reached};

const LOOK_FOR_DEAD: Duration = Duration::from_millis(10);
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

/// Ends a flush of everything written before `lead`, up to `tid`.
pub fn led(words: &ProcessWords, me: usize, tid: Tid) {
    words.raise_flushed(tid);
    words.show();
    end(words, me);
}

pub fn end(words: &ProcessWords, me: usize) {
    let _ = words.flusher().compare_exchange(me as u64 + 1, 0, SeqCst, SeqCst);
    words.ring();
}

fn gather(words: &ProcessWords) -> Option<Duration> {
    if words.covered().are_in(&words.awaiting()) {
        return None;
    }
    let since_us = now_us().wrapping_sub(words.flush_ended().load(SeqCst));
    let time_us = words.flush_us().load(SeqCst).min(GATHER_US_MAX);
    time_us.checked_sub(since_us).filter(|left| *left > 0).map(Duration::from_micros)
}

/// For a message.
fn flusher_named(words: &ProcessWords) -> String {
    let flusher = ProcessWords::flusher_of(words.flusher().load(SeqCst)).filter(|process| *process < PROCESSES);
    let tag = flusher.map(|process| words.tag(process)).filter(|tag| tag.pid().is_some());
    tag.map_or(String::new(), |tag| format!(": {}", tag.name()))
}

impl Database {
    /// For all, and on the medium if `durability` says so; flushes for all if no other does. `Busy`
    /// after the `deadline`.
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
        let words = &member.words;
        let patience = PATIENCE.min(Duration::from_millis(self.busy_ms.load(Relaxed)));
        let mut since = Instant::now();
        let mut looked = since;
        loop {
            let rung = words.flush_bell().load(SeqCst);
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
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::Busy(format!("a flush of another process takes long{}", flusher_named(words))));
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

    fn flush_for_all(&self, member: &Member) -> Result<()> {
        let words = &member.words;
        let began_us = now_us();
        words.covered().copy(&words.awaiting());
        let target = words.written();
        let block_bytes = member.tail.lock().slot.block_bytes;
        // Another process's failed flush may have hidden a loss.
        match member.log.flush_records(block_bytes).and_then(|()| self.check(Some(member))) {
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

    /// The dead process's flush may have failed: everything is written again, in a turn (rule
    /// WrittenAgain).
    fn flush_for_dead(&self, member: &Member, dead: usize, deadline: Option<Instant>) -> Result<()> {
        // A commit in its own turn would wait for itself.
        if !member.join_turn() {
            let soon = Instant::now() + LOOK_FOR_DEAD;
            match self.enter(true, deadline.map_or(soon, |deadline| deadline.min(soon))) {
                Ok(()) => {}
                Err(Error::Busy(_)) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let done = match self.writer.lock().as_mut() {
            Some(live) if member.words.flusher().load(SeqCst) == dead as u64 + 1 => self.flush_published(live),
            _ => Ok(()),
        };
        self.leave(false);
        done
    }
}
