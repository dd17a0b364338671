//! Every state of two committing processes, on the real words: in each step one goes on, dies, or
//! sees its flush fail. The medium must have everything acknowledged or shown.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::flush::{self, Flusher, lead};
use crate::base::clock::Instant;
use crate::base::types::Tid;
use crate::disk::system;
use crate::log::group::Durability;
use crate::shared::words::{Committing, ProcessWords, reached};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// `written` before `wanted`.
    WantedFirst,
    /// A flush covers all that is written at its end.
    TargetFirst,
    /// A failed flush poisons.
    Poison,
    Rewrite,
    TakeOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum At {
    Outside,
    InTurn,
    Wanted,
    InCache,
    Written,
    Left,
    Leads,
    Targets(u64),
    Failed,
    Flushed(u64),
    Told,
    Acknowledged,
    Refused,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    words: Committing,
    turn: Option<usize>,
    cache: u64,
    medium: u64,
    /// Clean in the cache, not on the medium.
    limbo: u64,
    acknowledged: u64,
    at: [At; 2],
    tid: [u64; 2],
    failures: u8,
    deaths: u8,
}

impl World {
    fn flush(&mut self) {
        if self.limbo <= self.medium {
            self.medium = self.cache;
        }
    }

    fn rewrite(&mut self) {
        (self.medium, self.limbo) = (self.cache, 0);
    }

    fn check(&self, words: &ProcessWords) -> Result<(), String> {
        let shown = if words.is_poisoned() { 0 } else { words.visible().0 };
        if self.acknowledged > self.medium || shown > self.medium {
            return Err(format!("{self:?} shows {shown}"));
        }
        Ok(())
    }

    fn next(&self, words: &ProcessWords, me: usize, without: Without) -> Vec<World> {
        let mut all = Vec::new();
        let mut go = |change: &dyn Fn(&mut World)| {
            words.set_committing(&self.words);
            let mut next = self.clone();
            change(&mut next);
            next.words = words.committing();
            if next != *self {
                all.push(next);
            }
        };
        let other = 1 - me;
        let tid = self.tid[me];
        let alone_dead = self.at[other] == At::Dead;
        if matches!(self.at[me], At::Acknowledged | At::Refused | At::Dead) {
            return all;
        }
        if self.deaths == 0 {
            go(&|w| {
                w.at[me] = At::Dead;
                w.deaths += 1;
            });
        }
        go(&|w| match self.at[me] {
            At::Outside if words.is_poisoned() => w.at[me] = At::Refused,
            At::Outside => {
                if w.turn == Some(other) && alone_dead {
                    if without != Without::TakeOver {
                        w.rewrite();
                    }
                    words.publish(Tid(w.cache), Tid(w.cache));
                } else if w.turn.is_some() {
                    return;
                }
                w.turn = Some(me);
                w.tid[me] = words.written().0 + 1;
                w.at[me] = At::InTurn;
            }
            At::InTurn if without == Without::WantedFirst => w.at[me] = At::Wanted,
            At::InTurn => {
                words.raise_wanted(Tid(tid));
                w.at[me] = At::Wanted;
            }
            At::Wanted => {
                w.cache = tid;
                w.at[me] = At::InCache;
            }
            At::InCache => {
                words.raise_written(Tid(tid));
                w.at[me] = At::Written;
            }
            At::Written => {
                words.raise_wanted(Tid(tid));
                w.turn = None;
                w.at[me] = At::Left;
            }
            At::Left => {
                words.show();
                if reached(words, Tid(tid), Durability::Flushed) {
                    w.acknowledged = w.acknowledged.max(tid);
                    w.at[me] = At::Acknowledged;
                } else if words.is_poisoned() {
                    w.at[me] = At::Refused;
                } else {
                    match lead(words, me, 0) {
                        Flusher::Me => w.at[me] = At::Leads,
                        Flusher::Other(_) if alone_dead && (w.turn.is_none() || w.turn == Some(other)) => {
                            if without == Without::Rewrite {
                                w.flush();
                            } else {
                                w.rewrite();
                            }
                            w.turn = None;
                            words.publish(Tid(w.cache), Tid(w.cache));
                            words.flusher().store(0, SeqCst);
                        }
                        Flusher::Other(_) => {}
                    }
                }
            }
            At::Leads => w.at[me] = At::Targets(words.written().0),
            At::Targets(target) => {
                w.flush();
                let late = without == Without::TargetFirst;
                w.at[me] = At::Flushed(if late { words.written().0 } else { target });
            }
            At::Failed => {
                if without != Without::Poison {
                    words.poison();
                }
                flush::end(words, me, 0);
                w.at[me] = At::Refused;
            }
            At::Flushed(target) => {
                words.raise_flushed(Tid(target));
                w.at[me] = At::Told;
            }
            At::Told => {
                words.show();
                flush::end(words, me, 0);
                w.at[me] = At::Left;
            }
            At::Acknowledged | At::Refused | At::Dead => {}
        });
        if let At::Targets(_) = self.at[me]
            && self.failures == 0
        {
            go(&|w| {
                w.limbo = w.cache;
                w.failures += 1;
                w.at[me] = At::Failed;
            });
        }
        // The other may write before the late look at `written`.
        if let (Without::TargetFirst, At::Flushed(target)) = (without, self.at[me])
            && words.written().0 > target
        {
            go(&|w| w.at[me] = At::Flushed(words.written().0));
        }
        all
    }
}

fn explore(without: Without) -> (Option<String>, usize) {
    let words = ProcessWords::new(Arc::default());
    words.found(1, false, 1, Tid(0));
    let first = World {
        words: words.committing(),
        turn: None,
        cache: 0,
        medium: 0,
        limbo: 0,
        acknowledged: 0,
        at: [At::Outside; 2],
        tid: [0; 2],
        failures: 0,
        deaths: 0,
    };
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        for me in 0..2 {
            words.set_committing(&world.words);
            for next in world.next(&words, me, without) {
                words.set_committing(&next.words);
                if let Err(what) = next.check(&words) {
                    return (Some(what), seen.len());
                }
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
    }
    (None, seen.len())
}

#[test]
fn no_state_shows_or_acknowledges_commits_that_are_not_on_the_medium() {
    let (violation, states) = explore(Without::Nothing);
    assert_eq!(violation, None);
    assert!(states > 500, "{states}");
}

#[test]
fn each_safeguard_is_needed() {
    for without in [Without::WantedFirst, Without::TargetFirst, Without::Poison, Without::Rewrite, Without::TakeOver] {
        assert!(explore(without).0.is_some(), "{without:?}");
    }
}

#[test]
fn the_end_of_a_flush_wakes_covered_waiters_and_one_that_flushes_next() {
    let words = ProcessWords::new(Arc::default());
    words.found(1, false, 1, Tid(0));
    words.raise_written(Tid(3));
    assert!(lead(&words, 0, 0) == Flusher::Me);
    let (target, covered) = flush::begin(&words);
    assert_eq!((target, words.flushing()), (Tid(3), (Tid(3), covered)));
    let (asleep, awake) = (AtomicUsize::new(0), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let is_awake = || awake.each_ref().map(|count| count.load(SeqCst));
    let within = Instant::now() + Duration::from_secs(60);
    let wait_for = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < within, "{:?} are awake", is_awake());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|s| {
        for n in 0..6 {
            let (words, asleep, awake) = (&words, &asleep, &awake);
            s.spawn(move || {
                let bell = (covered + n) % 2;
                let rung = words.flush_bells()[bell].load(SeqCst);
                asleep.fetch_add(1, SeqCst);
                system::wait(words.flush_bells()[bell], rung, Duration::from_secs(120));
                awake[n % 2].fetch_add(1, SeqCst);
            });
        }
        wait_for(&|| asleep.load(SeqCst) == 6);
        words.raise_flushed(target);
        flush::end(&words, 0, covered);
        wait_for(&|| is_awake()[0] == 3 && is_awake()[1] > 0);
        assert!(lead(&words, 1, 0) == Flusher::Me);
        let (_, next) = flush::begin(&words);
        assert_eq!(next, 1 - covered);
        flush::end(&words, 1, next);
        wait_for(&|| is_awake() == [3, 3]);
    });
}
