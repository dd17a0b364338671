//! As many processes as there are slots: found, forgotten when they die, and silent ones cost
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::member::{Member, TakeResult};
use super::member_tests::{first, joined};
use super::slots::slots_path;
use super::words::{PROCESSES, Pins};
use crate::base::error::Error;
use crate::base::layout::words::SLOTS_HERE;
use crate::base::types::Tid;
use crate::disk::sim::{SimConfig, SimDisk};
use crate::disk::{Disk, OpenMode};

fn full() -> (SimDisk, Vec<Arc<Member>>) {
    let disk = SimDisk::new(SimConfig::default());
    let mut members = vec![first(&disk)];
    members.extend((1..PROCESSES).map(|_| joined(&disk).unwrap()));
    (disk, members)
}

fn slots_file() -> PathBuf {
    slots_path(Path::new("/db-onewrite"), 2)
}

fn exact(pins: &[Pins]) -> Vec<Tid> {
    pins.iter().flat_map(|pins| pins.exact.clone()).collect()
}

fn with_turn<T>(member: &Member, then: impl FnOnce() -> T) -> T {
    assert_ne!(member.take(true, &Duration::from_secs(60).into(), None).unwrap(), TakeResult::Not);
    member.settle().unwrap();
    let done = then();
    member.leave(false);
    done
}

#[test]
fn each_of_a_thousand_processes_has_its_slot() {
    let (disk, members) = full();
    let mut slots: Vec<_> = members.iter().map(|member| member.me).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..PROCESSES).collect::<Vec<_>>());
    let refused = joined(&disk).map(drop);
    assert!(matches!(refused, Err(Error::Busy(why)) if why.contains("in 1024 processes")));
    // The last one waits for its turn until the first, which never looked at its slot, passes it
    // on.
    let (first, last) = (&members[0], &members[PROCESSES - 1]);
    let far = Duration::from_secs(60);
    std::thread::scope(|scope| {
        assert_ne!(first.take(true, &far.into(), None).unwrap(), TakeResult::Not);
        first.settle().unwrap();
        scope.spawn(|| with_turn(last, || {}));
        while !first.shares_flushes() {
            std::thread::yield_now();
        }
        first.leave(true);
    });
}

#[test]
fn the_file_of_slots_is_made_for_processes_that_need_it() {
    let disk = SimDisk::new(SimConfig::default());
    let mut members = vec![first(&disk)];
    members.extend((1..SLOTS_HERE).map(|_| joined(&disk).unwrap()));
    assert!(!disk.exists(&slots_file()).unwrap());
    members.push(joined(&disk).unwrap());
    assert!(disk.exists(&slots_file()).unwrap());
    // A process that finds another file under its name uses it for nothing.
    disk.remove(&slots_file()).unwrap();
    let other = disk.open(&slots_file(), OpenMode::Create).unwrap();
    other.set_len(1 << 20).unwrap();
    assert!(matches!(joined(&disk).map(drop), Err(Error::CantOpen(_))));
    // A checkpoint keeps images for slots that it cannot read.
    members.last().unwrap().announce_unseen(Tid(7));
    let unread = Pins { exact: Vec::new(), floor: Some(Tid(0)) };
    assert_eq!(with_turn(&members[1], || members[1].pins_of_others().unwrap()), [unread]);
}

#[test]
fn a_checkpoint_reads_no_slot_of_a_silent_process() {
    let (_disk, members) = full();
    let checkpoints = &members[3];
    for member in &members {
        member.announce_unseen(Tid(5));
    }
    assert_eq!(with_turn(checkpoints, || checkpoints.pins_of_others().unwrap()).len(), PROCESSES - 1);
    for member in &members {
        member.withdraw(Tid(5)).unwrap();
    }
    let noted = || checkpoints.words.pinning().from(0).count();
    assert_eq!(noted(), PROCESSES, "their bits are unset by the next checkpoint");
    assert_eq!(with_turn(checkpoints, || checkpoints.pins_of_others().unwrap()), []);
    assert_eq!(noted(), 0);
    for reader in [0, SLOTS_HERE, PROCESSES - 1] {
        members[reader].announce_unseen(Tid(reader as u64));
        assert_eq!(noted(), 1);
        let found = with_turn(checkpoints, || checkpoints.pins_of_others().unwrap());
        assert_eq!(exact(&found), [Tid(reader as u64)]);
        members[reader].withdraw(Tid(reader as u64)).unwrap();
        assert_eq!(with_turn(checkpoints, || checkpoints.pins_of_others().unwrap()), []);
    }
}

#[test]
fn slots_of_the_dead_are_given_again() {
    let (disk, mut members) = full();
    for member in members.drain(100..150) {
        member.announce_unseen(Tid(5));
        drop(member);
    }
    let pins = with_turn(&members[0], || members[0].pins_of_others().unwrap());
    assert_eq!(exact(&pins), []);
    members.extend((0..50).map(|_| joined(&disk).unwrap()));
    assert!(joined(&disk).is_err());
}

#[test]
fn processes_that_come_and_die_take_few_slots() {
    let disk = SimDisk::new(SimConfig::default());
    let mut members = vec![first(&disk)];
    members.extend((0..20).map(|_| joined(&disk).unwrap()));
    for _ in 0..1000 {
        drop(joined(&disk).unwrap());
    }
    let used = members[0].words.used().from(0).count();
    assert!(used < 2 * members.len(), "{used} slots are in use");
}
