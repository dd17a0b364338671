//! Snapshots of a process, while checkpointing processes unset its bit and die at any step. None
//! raises the floor above a snapshot that it does not see.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Unseen, Ordering::SeqCst};

use shuttle::rand::Rng;
use shuttle::sync::atomic::{AtomicU64, AtomicUsize};

use crate::pinning::{PinBits, pinned, pinning};
use crate::sync;

const NONE: u64 = u64::MAX;

/// The missing safeguard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The dead leave no number.
    Clearing,
    /// The pins are read again.
    Again,
    /// The pin before its bit.
    PinFirst,
    /// The floor before the look at the pins.
    FloorFirst,
}

struct World {
    without: Without,
    bit: AtomicUsize,
    clearing: AtomicUsize,
    pin: AtomicU64,
    floor: AtomicU64,
    /// For the judge alone.
    reads: Unseen,
}

/// A process that sees and stores nothing once its steps are over.
struct Mortal<'a> {
    world: &'a World,
    steps: Cell<u32>,
}

impl Mortal<'_> {
    fn lives(&self) -> bool {
        let left = self.steps.get();
        self.steps.set(left.saturating_sub(1));
        left > 0
    }
}

impl PinBits for Mortal<'_> {
    fn has(&self, _: usize) -> bool {
        self.lives() && self.world.bit.load(SeqCst) != 0
    }

    fn set(&self, _: usize) {
        if self.lives() {
            self.world.bit.store(1, SeqCst);
        }
    }

    fn unset(&self, _: usize) {
        if self.lives() {
            self.world.bit.store(0, SeqCst);
        }
    }

    fn clearing(&self) -> Option<usize> {
        let left = if self.lives() { self.world.clearing.load(SeqCst) } else { 0 };
        left.checked_sub(1)
    }

    fn set_clearing(&self, process: Option<usize>) {
        if self.world.without != Without::Clearing && self.lives() {
            self.world.clearing.store(process.map_or(0, |process| process + 1), SeqCst);
        }
    }

    fn is_pinned(&self, _: usize) -> bool {
        let world = self.world;
        let is_skipped = world.without == Without::Again && world.bit.load(SeqCst) == 0;
        self.lives() && !is_skipped && world.pin.load(SeqCst) != NONE
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        self.has(0).then_some(0).into_iter()
    }
}

fn reads(world: &World) {
    let me = Mortal { world, steps: Cell::new(u32::MAX) };
    for _ in 0..3 {
        let tid = world.floor.load(SeqCst);
        let pin = || world.pin.store(tid, SeqCst);
        if world.without == Without::PinFirst {
            pinned(&me, 0);
            pin();
        } else {
            pin();
            pinned(&me, 0);
        }
        if world.floor.load(SeqCst) <= tid {
            world.reads.store(tid, SeqCst);
            sync::thread::yield_now();
            world.reads.store(NONE, SeqCst);
        }
        world.pin.store(NONE, SeqCst);
    }
}

/// With the turn.
fn checkpoints(world: &World, floor: u64, steps: u32) {
    let me = Mortal { world, steps: Cell::new(steps) };
    let raise = || world.floor.store(floor, SeqCst);
    let early = (world.without == Without::FloorFirst).then(|| pinning(&me));
    raise();
    let found = early.unwrap_or_else(|| pinning(&me));
    let is_seen = me.steps.get() == 0 || !found.is_empty();
    let read = world.reads.load(SeqCst);
    assert!(is_seen || read == NONE || read >= floor, "the snapshot {read} is not seen");
}

fn run(without: Without) {
    let world = Arc::new(World {
        without,
        bit: AtomicUsize::new(0),
        clearing: AtomicUsize::new(0),
        pin: AtomicU64::new(NONE),
        floor: AtomicU64::new(0),
        reads: Unseen::new(NONE),
    });
    let reader = sync::thread::spawn({
        let world = world.clone();
        move || reads(&world)
    });
    for floor in 1..=4 {
        checkpoints(&world, floor, shuttle::rand::thread_rng().gen_range(1..14));
    }
    reader.join().unwrap();
}

#[test]
fn no_checkpoint_misses_a_snapshot_though_bits_are_unset_and_processes_die() {
    shuttle::check_random(|| run(Without::Nothing), 20_000);
    shuttle::check_pct(|| run(Without::Nothing), 20_000, 3);
}

#[test]
fn each_safeguard_of_the_bits_is_needed() {
    for without in [Without::Clearing, Without::Again, Without::PinFirst, Without::FloorFirst] {
        let tried = catch_unwind(AssertUnwindSafe(|| shuttle::check_random(move || run(without), 100_000)));
        assert!(tried.is_err());
    }
}
