//! Every state of committers, the shipper and a rival: acknowledged or shown transactions are
//! durable, and in the store where it counts.

use std::collections::HashSet;

use super::words::{Committing, ProcessWords, Ship};
use crate::base::types::Tid;

/// The missing safeguard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    Bound,
    CheckBehind,
    /// Pinned before the batch.
    TargetFirst,
    Flushed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shipper {
    Idle,
    Pinned(u64),
    Put(u64),
    Checked(u64),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Committer {
    Outside,
    Written(u64),
    Flushed(u64),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    words: Committing,
    medium: u64,
    store: u64,
    is_owner: bool,
    failures: u8,
    shipper: Shipper,
    committers: [Committer; 3],
    acknowledged: u64,
}

impl World {
    fn check(&self, words: &ProcessWords, without: Without) -> Result<(), String> {
        let shown = words.visible().0.max(self.acknowledged);
        if shown > self.store || shown > self.medium {
            return Err(format!("without {without:?}: {self:?} shows {shown}"));
        }
        Ok(())
    }

    fn commits(&mut self, words: &ProcessWords, n: usize) {
        self.committers[n] = match self.committers[n] {
            Committer::Outside => {
                let tid = words.written().0 + 1;
                if n > 0 {
                    words.raise_wanted(Tid(tid));
                }
                words.raise_written(Tid(tid));
                Committer::Written(tid)
            }
            Committer::Written(tid) => {
                self.medium = self.medium.max(words.written().0);
                words.raise_flushed(Tid(self.medium));
                words.show();
                Committer::Flushed(tid)
            }
            Committer::Flushed(tid) if words.visible().0 >= tid => {
                self.acknowledged = self.acknowledged.max(tid);
                Committer::Done
            }
            // It waits in vain.
            Committer::Flushed(_) if words.ship() == Ship::Fenced => Committer::Done,
            other => other,
        };
    }

    fn ships(&mut self, words: &ProcessWords, without: Without) {
        let to_ship = match without {
            Without::Flushed => Some(words.written()).filter(|tid| *tid > words.shipped_to()),
            _ => words.to_ship(),
        };
        self.shipper = match (self.shipper, to_ship) {
            (Shipper::Idle, Some(tid)) => Shipper::Pinned(tid.0),
            (Shipper::Pinned(tid), _) => {
                // Behind the rival's, it is no part of the history.
                if self.is_owner {
                    self.store = self.store.max(tid);
                }
                Shipper::Put(tid)
            }
            (Shipper::Put(tid), _) if self.is_owner || without == Without::CheckBehind => Shipper::Checked(tid),
            (Shipper::Put(_), _) => {
                words.fence();
                Shipper::Ended
            }
            (Shipper::Checked(tid), _) => {
                let tid = if without == Without::TargetFirst { words.flushed().0 } else { tid };
                words.raise_shipped(Tid(tid));
                Shipper::Idle
            }
            (other, _) => other,
        };
    }

    fn next(&self, words: &ProcessWords, without: Without) -> Vec<World> {
        let mut all = Vec::new();
        let mut go = |change: &dyn Fn(&mut World)| {
            words.set_committing(&self.words);
            let mut next = self.clone();
            change(&mut next);
            if without == Without::Bound {
                words.raise_shipped(words.flushed());
            }
            next.words = words.committing();
            if next != *self {
                all.push(next);
            }
        };
        (0..3).for_each(|n| go(&|world| world.commits(words, n)));
        go(&|world| world.ships(words, without));
        go(&|world| world.is_owner = false);
        if let (Shipper::Pinned(_), 0) = (self.shipper, self.failures) {
            // The store is away, or only its answer is lost.
            for arrives in [false, true] {
                go(&|world| {
                    if arrives {
                        world.ships(words, without);
                    }
                    words.note_late();
                    (world.shipper, world.failures) = (Shipper::Idle, 1);
                });
            }
        }
        all
    }
}

fn explore(without: Without) -> (Option<String>, usize) {
    let words = ProcessWords::new(std::sync::Arc::default());
    words.found(1, false, 1, Tid(0));
    words.begin_shipping(1000);
    let first = World {
        words: words.committing(),
        medium: 0,
        store: 0,
        is_owner: true,
        failures: 0,
        shipper: Shipper::Idle,
        committers: [Committer::Outside; 3],
        acknowledged: 0,
    };
    let mut seen = HashSet::from([first.clone()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        for next in world.next(&words, without) {
            words.set_committing(&next.words);
            if let Err(what) = next.check(&words, without) {
                return (Some(what), seen.len());
            }
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    (None, seen.len())
}

#[test]
fn no_state_shows_or_acknowledges_commits_that_the_store_lacks() {
    let (violation, states) = explore(Without::Nothing);
    assert_eq!(violation, None);
    assert!(states > 500, "{states}");
}

#[test]
fn each_safeguard_is_needed() {
    for without in [Without::Bound, Without::CheckBehind, Without::TargetFirst, Without::Flushed] {
        assert!(explore(without).0.is_some(), "{without:?}");
    }
}

#[test]
fn the_store_is_not_known_to_have_the_first_state_of_a_session() {
    let words = ProcessWords::new(std::sync::Arc::default());
    words.found(1, false, 1, Tid(7));
    words.begin_unshipped(1000);
    assert_eq!((words.ship(), words.to_ship()), (Ship::Begun, Some(Tid(7))));
    words.note_late();
    assert_eq!(words.ship(), Ship::Begun);
    words.raise_shipped(Tid(7));
    assert_eq!((words.ship(), words.to_ship(), words.visible()), (Ship::On, None, Tid(7)));
    words.fence();
    words.raise_shipped(Tid(8));
    assert_eq!(words.ship(), Ship::Fenced);
}
