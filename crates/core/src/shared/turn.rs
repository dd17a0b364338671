//! The writer's place between processes: a word with an owner and a lease.
//!
//! ```text
//!              enter                          leave
//!  LEASED(p) ─────────▶ BUSY(p) ──────────────────────────▶ LEASED(p), or LEASED(q) if q waits
//!      │                   │                                and p has had its slice
//!      │ old enough        │ p is dead
//!      ▼                   ▼
//!  LEASED(q), BUSY(q)   BUSY(q), which takes over
//! ```
//!
//! LEASED: all published is whole in the kernel's cache and nothing is in flight, so any process
//! may take the place, its owner dead or alive. The lease is a courtesy: its owner enters with one
//! compare-and-swap, and its new snapshot stays fresh until the first write. A busy place is taken
//! from the dead alone (rule OneWriter).

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::words::{PROCESSES, ProcessWords};
use crate::base::clock::Instant;
use crate::base::deadline::Deadline;
use crate::base::error::{Error, Result};
use crate::disk::system;

/// An unused lease is left alone this long.
const GRACE_US: u64 = 1000;
/// The same for a lease of a snapshot to be written on: its thread may lack a processor.
const SNAPSHOT_GRACE_US: u64 = 20_000;
/// The same while a thread thinks, after transactions that usually wrote.
pub const THINK: Duration = Duration::from_secs(2);
const SLICE: Duration = Duration::from_millis(2);
const POLL: Duration = Duration::from_millis(1);
/// More that wait look more seldom, so that all together look about as often.
const POLLERS: usize = 4;
const LOOK_FOR_DEAD: Duration = Duration::from_millis(10);

const STAMP_BITS: u32 = 48;
const STAMP_MAX: u64 = (1 << STAMP_BITS) - 1;
const BUSY: u64 = 1 << STAMP_BITS;
const TAKES_OVER: u64 = BUSY << 1;
const OWNER_BITS: u32 = STAMP_BITS + 4;
const _: () = assert!(PROCESSES <= 1 << (u64::BITS - OWNER_BITS));

const FOR_SNAPSHOT: u64 = BUSY << 2;
const THINKS: u64 = BUSY << 3;

/// How a process takes the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    Lease,
    /// A lease, also while its thread thinks.
    Thought,
    Busy,
}

impl From<bool> for Hold {
    fn from(firm: bool) -> Hold {
        if firm { Hold::Busy } else { Hold::Lease }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TurnWord {
    owner: usize,
    busy: bool,
    for_snapshot: bool,
    thinks: bool,
    stamp_us: u64,
}

impl TurnWord {
    fn of(word: u64) -> TurnWord {
        let owner = (word >> OWNER_BITS) as usize;
        let for_snapshot = word & FOR_SNAPSHOT != 0;
        let thinks = word & (BUSY | THINKS) == THINKS;
        TurnWord { owner, busy: word & BUSY != 0, for_snapshot, thinks, stamp_us: word & STAMP_MAX }
    }

    fn taken(owner: usize, hold: Hold) -> u64 {
        let kind = match hold {
            Hold::Busy => BUSY,
            Hold::Lease => FOR_SNAPSHOT,
            Hold::Thought => FOR_SNAPSHOT | THINKS,
        };
        // Its age counts in milliseconds.
        ((owner as u64) << OWNER_BITS) | kind | rough_us()
    }

    fn free(owner: usize) -> u64 {
        ((owner as u64) << OWNER_BITS) | (now_us().wrapping_sub(2 * GRACE_US) & STAMP_MAX)
    }

    fn age(&self) -> Duration {
        Duration::from_micros(now_us().wrapping_sub(self.stamp_us) & STAMP_MAX)
    }

    fn grace_us(&self) -> u64 {
        match (self.thinks, self.for_snapshot) {
            (true, _) => THINK.as_micros() as u64,
            (false, true) => SNAPSHOT_GRACE_US,
            (false, false) => GRACE_US,
        }
    }

    fn leased(owner: usize) -> u64 {
        ((owner as u64) << OWNER_BITS) | now_us()
    }
}

/// In microseconds, modulo the stamp's width.
pub fn now_us() -> u64 {
    system::clock_us() & STAMP_MAX
}

/// The same, as of the clock's last tick.
pub fn rough_us() -> u64 {
    system::clock_rough().as_micros() as u64 & STAMP_MAX
}

impl ProcessWords {
    pub fn busy_owner(&self) -> Option<usize> {
        let place = TurnWord::of(self.turn_seen());
        place.busy.then_some(place.owner)
    }

    pub fn busy_for(&self) -> Option<(usize, Duration)> {
        let place = TurnWord::of(self.turn_seen());
        place.busy.then(|| (place.owner, place.age()))
    }

    pub fn takes_over(&self) -> bool {
        self.turn_seen() & TAKES_OVER != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Ours,
    /// Ours; it died within a transaction.
    OfTheDead(usize),
    /// Not in time.
    Theirs,
}

/// The caller lets one thread at a time in.
pub struct Turns<'a> {
    pub words: &'a ProcessWords,
    pub me: usize,
}

impl Turns<'_> {
    /// The place is busy if this process `writes`, else leased to it.
    pub fn found(&self, writes: bool) {
        self.words.turns().fetch_add(1, SeqCst);
        let word = if writes { TurnWord::taken(self.me, Hold::Busy) } else { TurnWord::leased(self.me) };
        self.words.turn().store(word, SeqCst);
    }

    pub fn is_taken_by_another(&self) -> bool {
        let place = TurnWord::of(self.words.turn_seen());
        place.busy && place.owner != self.me
    }

    pub fn is_thought_by_another(&self) -> bool {
        let place = TurnWord::of(self.words.turn().load(SeqCst));
        place.thinks && place.owner != self.me && place.age() < THINK
    }

    pub fn kept_by_another(&self, kept: Duration) -> Option<usize> {
        let place = TurnWord::of(self.words.turn().load(SeqCst));
        (place.busy && place.owner != self.me && place.age() >= kept).then_some(place.owner)
    }

    /// Takes the place. A lease is taken at the `deadline` at the latest; with `kept` not that of a
    /// process that thinks. One that is busy or thinks for `kept` is not waited for. `is_dead`
    /// keeps others from judging the same dead process until its next call.
    pub fn take(
        &self,
        hold: impl Into<Hold>,
        deadline: &Deadline,
        kept: Option<Duration>,
        is_dead: &mut dyn FnMut(usize) -> Result<bool>,
    ) -> Result<Turn> {
        let hold = hold.into();
        let mut waiting = false;
        let mut looked: Option<Instant> = None;
        let wanting = self.words.wanting();
        let Some(bell) = self.words.bell(self.me) else {
            return Err(Error::Misuse("a turn for a process without a slot".into()));
        };
        let turn = loop {
            let rung = bell.load(SeqCst);
            let word = self.words.turn().load(SeqCst);
            let place = TurnWord::of(word);
            if place.owner == self.me {
                if self.join(word, place, hold) {
                    break Turn::Ours;
                }
                continue;
            }
            let now = Instant::now();
            let age = place.age();
            let age_us = age.as_micros() as u64;
            let is_kept = (place.busy || place.thinks) && kept.is_some_and(|kept| age >= kept);
            let over = now >= deadline.at() || is_kept;
            let is_due = |looked: Option<Instant>| over || looked.is_none_or(|at| now - at >= LOOK_FOR_DEAD);
            let mut nap = POLL;
            if !place.busy {
                let others_wait = self.others_wait();
                let old = age_us >= place.grace_us() && (waiting || !others_wait);
                let lost = old || (over && !(place.thinks && kept.is_some()));
                let looks = place.thinks && !lost && is_due(looked);
                if lost || (looks && (over || looked.is_some()) && is_dead(place.owner)?) {
                    if self.swap(word, TurnWord::taken(self.me, hold)) {
                        self.words.turns().fetch_add(1, SeqCst);
                        break Turn::Ours;
                    }
                    continue;
                }
                looked = if looks { Some(now) } else { looked };
                nap = POLL.min(Duration::from_micros(place.grace_us().saturating_sub(age_us).max(50)));
            } else if is_due(looked) {
                // At once without time to wait: a system call per wait, not per look.
                if (over || looked.is_some()) && is_dead(place.owner)? {
                    if self.swap(word, TurnWord::taken(self.me, Hold::Busy) | TAKES_OVER) {
                        self.words.turns().fetch_add(1, SeqCst);
                        break Turn::OfTheDead(place.owner);
                    }
                    continue;
                }
                looked = Some(now);
            }
            if over {
                break Turn::Theirs;
            }
            if !waiting {
                // Set before the next look at the word: a leaving process looks here after changing
                // it.
                waiting = true;
                wanting.set(self.me);
                continue;
            }
            let others = wanting.from(0).count().div_ceil(POLLERS).max(1) as u32;
            let until_kept = kept.map_or(Duration::MAX, |kept| kept.saturating_sub(age).max(nap));
            let nap = nap.saturating_mul(others).min(until_kept).min(deadline.at().saturating_duration_since(now));
            system::wait(bell, rung, nap);
        };
        if waiting {
            wanting.clear(self.me);
        }
        Ok(turn)
    }

    fn join(&self, word: u64, ours: TurnWord, hold: Hold) -> bool {
        let held = if ours.busy { Hold::Busy } else { hold };
        (ours.busy && hold != Hold::Busy) || self.swap(word, TurnWord::taken(self.me, held))
    }

    pub fn taken_over(&self) {
        self.words.turn().store(TurnWord::taken(self.me, Hold::Busy), SeqCst);
    }

    pub fn give_to_dead(&self, process: usize) {
        self.words.turn().store(TurnWord::taken(process, Hold::Busy), SeqCst);
    }

    pub fn others_wait(&self) -> bool {
        self.words.wanting().has_others(self.me)
    }

    /// Whether others wait, and the slice begun at `since` is over.
    pub fn should_pass_on(&self, since: Instant) -> bool {
        self.others_wait() && since.elapsed() >= SLICE
    }

    /// The snapshot was not written on: its lease is free to take.
    pub fn end_lease(&self) {
        let word = self.words.turn().load(SeqCst);
        let place = TurnWord::of(word);
        if place.owner == self.me
            && !place.busy
            && place.for_snapshot
            && self.swap(word, TurnWord::taken(self.me, Hold::Busy))
        {
            self.leave(true);
        }
    }

    /// With nothing in flight. `pass_on`: to the next that waits, else free to all.
    pub fn leave(&self, pass_on: bool) {
        let place = TurnWord::of(self.words.turn().load(SeqCst));
        if place.owner != self.me || !place.busy {
            return;
        }
        let next = || self.words.wanting().from(self.me).find(|process| *process != self.me);
        let Some(next) = pass_on.then(next).flatten() else {
            let word = if pass_on { TurnWord::free(self.me) } else { TurnWord::leased(self.me) };
            self.words.turn().store(word, SeqCst);
            return;
        };
        self.words.turns().fetch_add(1, SeqCst);
        self.words.turn().store(TurnWord::leased(next), SeqCst);
        // Else it looks by itself, soon.
        if self.words.reach(next).is_ok()
            && let Some(bell) = self.words.bell(next)
        {
            bell.fetch_add(1, SeqCst);
            system::wake(bell, false);
        }
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.words.turn().compare_exchange(from, to, SeqCst, SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::shared::{BYTES, SharedWords};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    fn words() -> ProcessWords {
        let words = ProcessWords::new(Arc::default());
        words.found(1, false, 1, crate::base::types::Tid(0));
        Turns { words: &words, me: 0 }.found(false);
        words
    }

    fn alive(_: usize) -> Result<bool> {
        Ok(false)
    }

    #[test]
    fn a_process_that_may_only_read_sees_the_turns_of_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES as u64).unwrap();
        let open = |file: &std::fs::File| ProcessWords::new(Arc::new(SharedWords::map(file, 1).unwrap()));
        let (words, observer) = (open(file.as_file()), open(&std::fs::File::open(file.path()).unwrap()));
        words.found(1, false, 1, crate::base::types::Tid(0));
        let (a, b) = (Turns { words: &words, me: 0 }, Turns { words: &observer, me: PROCESSES });
        a.found(true);
        assert!(observer.busy_owner() == Some(0) && b.is_taken_by_another() && !observer.takes_over());
        words.turn().fetch_or(TAKES_OVER, SeqCst);
        assert!(observer.takes_over());
        words.turn().fetch_and(!TAKES_OVER, SeqCst);
        a.leave(false);
        assert!(observer.busy_owner().is_none() && !b.is_taken_by_another());
    }

    #[test]
    fn a_lease_goes_on_without_a_turn_and_is_left_alone_for_a_while() {
        let words = words();
        let (a, b) = (Turns { words: &words, me: 0 }, Turns { words: &words, me: 1 });
        let turns = words.turns().load(SeqCst);
        let far = Instant::now() + Duration::from_secs(60);
        for _ in 0..3 {
            assert_eq!(a.take(true, &far.into(), None, &mut alive).unwrap(), Turn::Ours);
            assert_eq!(b.take(true, &Duration::ZERO.into(), None, &mut alive).unwrap(), Turn::Theirs);
            a.leave(false);
        }
        assert_eq!(words.turns().load(SeqCst), turns);
        assert_eq!(b.take(true, &far.into(), None, &mut alive).unwrap(), Turn::Ours);
        assert_eq!(words.turns().load(SeqCst), turns + 1);
        assert_eq!(a.take(true, &Duration::ZERO.into(), None, &mut alive).unwrap(), Turn::Theirs);
        assert_eq!(words.wanting().from(0).next(), None, "who gives up does not wait any more");
    }

    #[test]
    fn a_process_that_thinks_keeps_its_lease_from_one_that_can_wait_unless_it_is_dead() {
        let words = words();
        let (a, b) = (Turns { words: &words, me: 0 }, Turns { words: &words, me: 1 });
        let (soon, kept) = (Duration::from_millis(50), Some(Duration::from_secs(60)));
        assert_eq!(a.take(Hold::Thought, &soon.into(), None, &mut alive).unwrap(), Turn::Ours);
        assert!(b.is_thought_by_another() && !a.is_thought_by_another());
        assert_eq!(b.take(true, &soon.into(), kept, &mut alive).unwrap(), Turn::Theirs);
        assert_eq!(b.take(true, &(60 * soon).into(), Some(soon), &mut alive).unwrap(), Turn::Theirs);
        assert_eq!(a.take(true, &soon.into(), None, &mut alive).unwrap(), Turn::Ours, "it begins to write");
        assert!(!b.is_thought_by_another() && a.words.busy_owner() == Some(0));
        a.leave(false);
        for (dead, kept) in [(false, None), (true, kept)] {
            assert_eq!(a.take(Hold::Thought, &THINK.into(), None, &mut alive).unwrap(), Turn::Ours);
            let begun = Instant::now();
            let taken = b.take(true, &(10 * soon).into(), kept, &mut |process| Ok(dead && process == 0)).unwrap();
            assert_eq!(taken, Turn::Ours, "nothing of it is in flight: none takes over");
            assert!(!dead || begun.elapsed() < 10 * soon, "{:?}", begun.elapsed());
            b.leave(true);
        }
    }

    #[test]
    fn a_busy_place_is_taken_from_the_dead_and_no_one_else() {
        let words = words();
        let (a, b) = (Turns { words: &words, me: 0 }, Turns { words: &words, me: 1 });
        assert_eq!(a.take(true, &Duration::ZERO.into(), None, &mut alive).unwrap(), Turn::Ours);
        assert_eq!(b.take(false, &Duration::ZERO.into(), None, &mut alive).unwrap(), Turn::Theirs);
        let got = b.take(false, &Duration::ZERO.into(), None, &mut |process| Ok(process == 0)).unwrap();
        assert_eq!(got, Turn::OfTheDead(0));
        assert!(a.is_taken_by_another(), "even a lease is busy until the take-over is done");
    }

    #[test]
    fn one_process_is_inside_at_a_time_and_each_gets_a_turn() {
        let words = words();
        let inside = AtomicU64::new(0);
        let done = Instant::now() + Duration::from_millis(400);
        let entered: Vec<u64> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|me| {
                    let (words, inside) = (&words, &inside);
                    s.spawn(move || {
                        let turns = Turns { words, me };
                        let mut entered = 0;
                        let mut since = Instant::now();
                        let mut seen = u64::MAX;
                        while Instant::now() < done {
                            let far = Instant::now() + Duration::from_secs(60);
                            assert_eq!(turns.take(true, &far.into(), None, &mut alive).unwrap(), Turn::Ours);
                            assert_eq!(inside.fetch_add(1, SeqCst), 0);
                            let now = words.turns().load(SeqCst);
                            if seen != now {
                                since = Instant::now();
                            }
                            seen = now;
                            entered += 1;
                            assert_eq!(inside.fetch_sub(1, SeqCst), 1);
                            turns.leave(turns.should_pass_on(since));
                        }
                        entered
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(entered.iter().all(|n| *n > 0), "{entered:?}");
    }
}
