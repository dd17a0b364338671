//! Every interleaving of a reader with a checkpointing process, on the real words: the simulated
//! disk has no call between two words.

use super::words::{ProcessWords, SnapshotCell};
use crate::base::types::Tid;
use crate::disk::processes::ProcessTag;

struct World {
    words: ProcessWords,
    home: u64,
    kept: Vec<(u64, u64)>,
}

/// The missing safeguard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    Floor,
    Kept,
    Epoch,
    /// The floor is raised after the look at the pins.
    Order,
}

#[derive(Default)]
struct Reader {
    at: usize,
    snapshot: u64,
    epoch: u64,
    found: Option<u64>,
    read: u64,
}

impl Reader {
    fn step(&mut self, w: &World) -> Result<(), String> {
        let me = 1;
        self.at += 1;
        match self.at {
            1 => self.snapshot = w.words.visible().0,
            2 => w.words.set_pin(me, SnapshotCell::Own(0), Some(Tid(self.snapshot))),
            3 if w.words.home_floor() > Tid(self.snapshot) => {
                w.words.set_pin(me, SnapshotCell::Own(0), None);
                self.at = 0;
            }
            4 => self.epoch = w.words.epoch(),
            5 => {
                let newer = w.kept.iter().filter(|(until, _)| *until > self.snapshot).min();
                self.found = newer.map(|(_, of)| *of);
            }
            6 => self.read = self.found.unwrap_or(w.home),
            7 if !w.words.same_epoch(self.epoch) => self.at = 3,
            // An older state is right, for the page table has the rest.
            8 if self.read > self.snapshot => {
                return Err(format!("snapshot {} reads the image of {}", self.snapshot, self.read));
            }
            8 => w.words.set_pin(me, SnapshotCell::Own(0), None),
            _ => {}
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.at >= 8
    }
}

/// Commits 1, brings it home, the same with 2.
#[derive(Default)]
struct Writer {
    at: usize,
    needed: bool,
}

impl Writer {
    fn step(&mut self, w: &mut World, without: Without) {
        let tid = self.at as u64 / 6 + 1;
        let floor = |w: &World| {
            if without != Without::Floor {
                w.words.set_home_floor(Tid(tid));
            }
        };
        let look = |w: &World| w.words.pins(1).within(Tid(0), Tid(tid));
        match self.at % 6 {
            0 => w.words.publish(Tid(tid), Tid(tid)),
            1 if without == Without::Order => self.needed = look(w),
            1 => floor(w),
            2 if without == Without::Order => floor(w),
            2 => self.needed = look(w),
            3 if self.needed && without != Without::Kept && !w.kept.iter().any(|(until, _)| *until == tid) => {
                w.kept.push((tid, w.home));
            }
            4 if without != Without::Epoch => w.words.next_epoch(),
            5 => w.home = tid,
            _ => {}
        }
        self.at += 1;
    }
}

fn run(words: &ProcessWords, path: &mut Vec<bool>, without: Without) -> Result<(), String> {
    words.set_committing(&[0; 8]);
    words.set_home_floor(Tid(0));
    words.set_pin(1, SnapshotCell::Own(0), None);
    let mut world = World { words: words.clone(), home: 0, kept: Vec::new() };
    let (mut reader, mut writer) = (Reader::default(), Writer::default());
    let mut choices = 0;
    while !reader.is_done() {
        let reads = if writer.at == 12 {
            true
        } else {
            choices += 1;
            if path.len() < choices {
                path.push(false);
            }
            path[choices - 1]
        };
        if reads {
            reader.step(&world)?;
        } else {
            writer.step(&mut world, without);
        }
    }
    path.truncate(choices);
    Ok(())
}

fn first_violation(without: Without) -> Option<String> {
    let words = ProcessWords::new(std::sync::Arc::default());
    words.found(1, false, 1, Tid(0));
    words.enter(1, ProcessTag::UNKNOWN);
    let mut path = Vec::new();
    loop {
        if let Err(violation) = run(&words, &mut path, without) {
            return Some(violation);
        }
        while path.pop_if(|reads| *reads).is_some() {}
        *path.last_mut()? = true;
    }
}

#[test]
fn no_interleaving_lets_a_snapshot_read_later_pages() {
    assert_eq!(first_violation(Without::Nothing), None);
}

#[test]
fn each_safeguard_is_needed() {
    for without in [Without::Floor, Without::Kept, Without::Epoch, Without::Order] {
        assert!(first_violation(without).is_some());
    }
}
