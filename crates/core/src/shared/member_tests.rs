//! No thread goes on before the writer's state is in order.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use super::member::{Member, MemberFiles, TakeResult, try_alone};
use super::tail::Tail;
use super::words::{Pins, RecoveryDebt};
use crate::base::clock::Instant;
use crate::base::error::Result;
use crate::base::options::Options;
use crate::base::types::{LogOffset, Tid};
use crate::database::Database;
use crate::disk::sim::{SimConfig, SimDisk};
use crate::disk::{Disk, LockKind, OpenMode};
use crate::log::file::LogFile;
use crate::log::ring::Log;
use crate::log::slot::Slot;

fn files(disk: &SimDisk) -> MemberFiles {
    let home = Path::new("/db");
    let file = disk.open(home, OpenMode::Create).unwrap();
    Database::new(Arc::new(disk.clone()), home, file, Options::default(), crate::connection::schemes::of).files()
}

fn two() -> [Arc<Member>; 2] {
    let disk = SimDisk::new(SimConfig::default());
    [first(&disk), joined(&disk).unwrap()]
}

pub fn first(disk: &SimDisk) -> Arc<Member> {
    let created = Log::create(LogFile::make(disk, Path::new("/db-onewrite")), 64 << 10, 4096).unwrap();
    assert!(try_alone(&created, LockKind::Exclusive).unwrap());
    let slot = Slot {
        block_bytes: 4096,
        sequence: 1,
        session: 2,
        salt: 3,
        start: LogOffset(0),
        ring_bytes: 64 << 10,
        base_tid: Tid(4),
        tid_ceiling: Tid(1000),
        prev_crc: 0,
        page_bytes: 4096,
        page_count: 1,
        change_counter: 1,
        counter_ceiling: 1000,
        live: true,
        in_place: false,
    };
    let started = Log::start(created.clone(), slot, true, true).unwrap();
    let tail = Tail::at(started.slot().clone());
    Member::found(files(disk), created, tail, RecoveryDebt::default(), true, 0).unwrap().unwrap()
}

pub fn joined(disk: &SimDisk) -> Result<Arc<Member>> {
    let path = Path::new("/db-onewrite");
    let log = LogFile { file: disk.open(path, OpenMode::ReadWrite).unwrap(), path: path.to_owned() };
    Member::join(files(disk), log, 2, Some(true))
}

#[test]
fn no_process_goes_on_while_records_of_others_are_not_in_order() {
    let [_, member] = two();
    let far = Instant::now() + Duration::from_secs(60);
    assert_eq!(member.take(true, &far.into(), None).unwrap(), TakeResult::Anew);
    let soon = || Instant::now() + Duration::from_millis(1);
    assert_eq!([true, false].map(|firm| member.take(firm, &soon().into(), None).unwrap()), [TakeResult::Not; 2]);
    member.settle().unwrap();
    assert_eq!([true, false].map(|firm| member.take(firm, &soon().into(), None).unwrap()), [TakeResult::Again; 2]);
    member.leave(false);
    assert!(member.is_busy());
    member.leave(false);
    assert!(!member.is_busy());
}

/// A commit that waited for those that wait for its turn would wait for ever.
#[test]
fn a_turn_is_joined_though_others_wait_for_it() {
    let [other, member] = two();
    let far = Instant::now() + Duration::from_secs(60);
    let soon = |ms| (Instant::now() + Duration::from_millis(ms)).into();
    assert!(!member.join_turn(), "it has none");
    assert_eq!(member.take(true, &far.into(), None).unwrap(), TakeResult::Anew);
    assert!(!member.join_turn(), "it is not in order yet");
    member.settle().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.take(true, &far.into(), None).unwrap());
        while member.take(true, &soon(1), None).unwrap() == TakeResult::Again {
            member.leave(false);
        }
        assert!(member.join_turn());
        member.leave(false);
        member.leave(false);
        assert_eq!(waiting.join().unwrap(), TakeResult::Anew);
    });
    assert!(!member.join_turn());
}

#[test]
fn threads_that_let_another_process_go_first_wait_for_its_commits() {
    let members = two();
    let end = Instant::now() + Duration::from_millis(600);
    let entered = [AtomicU64::new(0), AtomicU64::new(0)];
    let early = AtomicU64::new(0);
    let resuming = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        for n in [0, 0, 0, 1, 1] {
            let (member, early, entered, resuming) = (&members[n], &early, &entered[n], &resuming[n]);
            scope.spawn(move || {
                while Instant::now() < end {
                    let taken = member.take(true, &Duration::from_secs(60).into(), None).unwrap();
                    if taken == TakeResult::Anew {
                        resuming.store(true, SeqCst);
                        std::thread::sleep(Duration::from_micros(300));
                        resuming.store(false, SeqCst);
                        member.settle().unwrap();
                    }
                    early.fetch_add(u64::from(resuming.load(SeqCst)), SeqCst);
                    entered.fetch_add(1, SeqCst);
                    std::thread::sleep(Duration::from_micros(500));
                    member.leave(false);
                }
            });
        }
    });
    assert_eq!(early.load(SeqCst), 0, "so many began before another thread was done");
    assert!(entered.iter().all(|n| n.load(SeqCst) > 20), "{entered:?}");
}

/// Else others would rely on its flush, or clear the slot of the next process.
#[test]
fn looks_at_a_dead_process_leave_it_dead_and_its_slot_to_the_take_over() {
    let disk = SimDisk::new(SimConfig::default());
    let [heir, other, dying] = [first(&disk), joined(&disk).unwrap(), joined(&disk).unwrap()];
    let far = Instant::now() + Duration::from_secs(60);
    assert_eq!(dying.take(true, &far.into(), None).unwrap(), TakeResult::Anew);
    dying.announce_unseen(Tid(5));
    let dead = dying.me;
    assert!(!heir.is_dead(dead).unwrap() && !other.is_dead(dead).unwrap());
    drop(dying);
    assert_eq!(heir.take(true, &far.into(), None).unwrap(), TakeResult::FromDead(dead));
    for member in [&other, &heir] {
        assert!(member.is_dead(dead).unwrap());
        assert!(member.pins_of_others().unwrap().iter().all(|pins| *pins == Pins::default()));
    }
    let next = joined(&disk).unwrap();
    assert_ne!(next.me, dead);
    next.announce_unseen(Tid(6));
    heir.settle().unwrap();
    assert_eq!(heir.pins_of_others().unwrap().iter().flat_map(|pins| pins.exact.clone()).collect::<Vec<_>>(), [Tid(6)]);
}
