//! SHARED on a file at rest, kept between the transactions of a process that reads often.
//!
//! To lock a plain home and to look at it takes six system calls. No process changes home while
//! this one has SHARED, so a transaction that finds it kept begins with none.

use std::time::Duration;

use super::{Database, DatabaseState, Phase};
use crate::base::clock::Instant;
use crate::base::error::Result;
use crate::disk::locks;
use crate::sqlite_format::home::State;

/// Longer between the begins of two transactions is not often.
const OFTEN: Duration = Duration::from_micros(50);
/// A process has read so often in a row before it keeps SHARED.
const RUN: u32 = 16;
/// A look at home counts for so long: who waits for readers to leave is seen then.
const LOOK: Duration = Duration::from_micros(100);
/// Without a transaction for so long, SHARED is given back.
const IDLE: Duration = Duration::from_millis(1);

#[derive(Default)]
pub struct KeptShared {
    /// Taken, with no snapshot to need it.
    is_kept: bool,
    /// Behind the last look, while no other process wrote.
    may_keep: bool,
    /// Transactions that began soon after the one before.
    run: u32,
    began: Option<Instant>,
    looked: Option<Instant>,
    /// Whether a thread calls [`Database::give_up_kept`], once asked.
    is_watched: Option<bool>,
}

impl KeptShared {
    /// A transaction begins. Whether SHARED was kept, behind a look that counts.
    fn begins(&mut self, now: Instant) -> bool {
        let is_within = |since: Option<Instant>, time| since.is_some_and(|at| now.saturating_duration_since(at) < time);
        self.run = if is_within(self.began, OFTEN) { self.run.saturating_add(1) } else { 0 };
        self.began = Some(now);
        self.is_kept && is_within(self.looked, LOOK)
    }

    fn is_often(&self) -> bool {
        self.run >= RUN
    }

    /// UNMARKED: whether a transaction begins under SHARED that was kept.
    pub fn takes(&mut self) -> bool {
        self.begins(Instant::now())
    }

    /// By a snapshot.
    pub fn is_taken(&mut self) {
        self.is_kept = false;
    }
}

impl Database {
    /// SHARED was taken, and home is looked at next.
    pub fn note_look(&self, inner: &mut DatabaseState) -> Result<()> {
        // With the lock that a writer takes first, no more is kept: one without patience gets on.
        inner.kept.may_keep = inner.kept.is_often() && !locks::is_reserved(&*self.home)?;
        inner.kept.looked = inner.kept.began;
        Ok(())
    }

    /// Ends a read transaction; the last one keeps SHARED if the next comes soon.
    pub fn unpin_reader(&self, inner: &mut DatabaseState, state: &State) -> Result<()> {
        self.count_unpin(inner, state)?;
        if inner.phase != Phase::Unmarked || !inner.snapshots.is_empty() {
            return Ok(());
        }
        let comes_again = inner.kept.may_keep && inner.kept.is_often() && inner.is_still_plain();
        inner.kept.is_kept = comes_again && self.watches_kept(inner);
        if inner.kept.is_kept { Ok(()) } else { self.unlock_home(inner) }
    }

    fn watches_kept(&self, inner: &mut DatabaseState) -> bool {
        *inner.kept.is_watched.get_or_insert_with(|| self.asks_to_look_within(Some(IDLE)))
    }

    /// Gives SHARED back that no transaction has taken for a while. Returns when to ask again, if
    /// at all.
    pub fn give_up_kept(&self, now: Instant) -> Result<Option<Duration>> {
        let mut inner = self.inner.lock();
        if inner.kept.began.is_some_and(|began| now.saturating_duration_since(began) < IDLE) {
            return Ok((inner.kept.is_watched == Some(true)).then_some(IDLE));
        }
        inner.kept.is_watched = None;
        self.give_kept_back(&mut inner).map(|()| None)
    }

    pub fn give_kept_back(&self, inner: &mut DatabaseState) -> Result<()> {
        if inner.kept.is_kept { self.unlock_home(inner) } else { Ok(()) }
    }

    /// UNMARKED, without snapshots.
    pub fn unlock_home(&self, inner: &mut DatabaseState) -> Result<()> {
        inner.kept.is_kept = false;
        self.mappings.end();
        locks::none(&*self.home)
    }

    pub fn unlock_unused(&self, inner: &mut DatabaseState) -> Result<()> {
        if inner.phase == Phase::Unmarked && inner.snapshots.is_empty() { self.unlock_home(inner) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_kept_behind_a_run_and_counts_until_the_next_look() {
        let (mut kept, mut now) = (KeptShared::default(), Instant::now());
        let mut begins = |kept: &mut KeptShared, later| {
            now += later;
            (kept.begins(now), kept.is_often())
        };
        let soon = OFTEN / 5;
        for n in 0..=RUN {
            assert_eq!(begins(&mut kept, soon), (false, n == RUN), "{n}");
        }
        (kept.looked, kept.is_kept) = (kept.began, true);
        let until = (1u32..).take_while(|n| soon * *n < LOOK).count();
        (0..until).for_each(|_| assert_eq!(begins(&mut kept, soon), (true, true)));
        assert_eq!(begins(&mut kept, soon), (false, true), "home is looked at");
        kept.looked = kept.began;
        assert_eq!(begins(&mut kept, soon), (true, true));
        assert_eq!(begins(&mut kept, OFTEN), (true, false), "a pause ends the run");
        kept.is_taken();
        assert_eq!(begins(&mut kept, soon), (false, false));
    }
}
