//! Separate because the model checker compiles the group by itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::group::{Audience, Durability, Group};
use crate::base::error::Error;
use crate::base::types::Tid;
use crate::disk::sim::{Op, SimConfig, SimDisk};
use crate::disk::sync::Mutex;
use crate::disk::{Disk, OpenMode};
use crate::sqlite_format::home::State;

const BLOCK: usize = 512;

#[derive(Default)]
struct Seen(Mutex<(Vec<u64>, u32)>);

impl Audience for Seen {
    fn show(&self, state: Arc<State>) {
        self.0.lock().0.push(state.tid.0);
    }

    fn poison(&self, error: Error) -> Error {
        self.0.lock().1 += 1;
        error
    }
}

fn group(disk: &SimDisk) -> Group {
    let file = disk.open(Path::new("/log"), OpenMode::Create).unwrap();
    file.set_len(1 << 16).unwrap();
    file.sync().unwrap();
    disk.sync_dir_of(Path::new("/log")).unwrap();
    disk.reset_counters();
    Group::new(file, PathBuf::from("/log"), BLOCK, 0, Tid(0))
}

fn push(group: &Group, tid: u64, durability: Durability) {
    group.push(&[tid as u8; 100], false, &Arc::new(State::empty(Tid(tid))), durability);
}

/// After a power cut.
fn left(disk: &SimDisk) -> Vec<u8> {
    let after = disk.crash_by(&mut |_| 0);
    let file = after.open(Path::new("/log"), OpenMode::ReadOnly).unwrap();
    let mut b = vec![0; 1 << 12];
    file.read_at(&mut b, 0).unwrap();
    b.chunks_exact(100).map(|c| c[0]).take_while(|b| *b != 0).collect()
}

#[test]
fn one_write_that_is_also_the_flush_serves_all_waiters() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    for tid in 1..=8 {
        push(&group, tid, Durability::Flushed);
    }
    assert!(seen.0.lock().0.is_empty() && group.recorded() == Tid(0));
    group.wait(Tid(3), Durability::Flushed, &seen).unwrap();
    let c = disk.counters();
    assert_eq!((c.durable_writes, c.writes, c.syncs), (1, 0, 0));
    assert_eq!((seen.0.lock().0.as_slice(), group.recorded()), ([8].as_slice(), Tid(8)));
    push(&group, 9, Durability::Flushed);
    group.wait(Tid(9), Durability::Flushed, &seen).unwrap();
    assert_eq!(left(&disk), (1..=9).collect::<Vec<u8>>());
    assert_eq!(disk.counters().bytes_written, 2 * 512 + 512);
}

#[test]
fn expected_committers_are_waited_for_and_not_for_ever() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    for tid in 1..=8 {
        push(&group, tid, Durability::Flushed);
    }
    group.wait(Tid(8), Durability::Flushed, &seen).unwrap();
    // Seven more are expected, and none comes.
    push(&group, 9, Durability::Flushed);
    group.wait_for_others(Tid(9), Durability::Flushed, Duration::ZERO, &seen).unwrap();
    // A newcomer leads if as many are here as expected.
    for tid in 10..=12 {
        push(&group, tid, Durability::Flushed);
    }
    group.wait_for_others(Tid(12), Durability::Flushed, Duration::ZERO, &seen).unwrap();
    assert_eq!(left(&disk), (1..=12).collect::<Vec<u8>>());
    assert_eq!(disk.counters().durable_writes, 3);
}

#[test]
fn of_waiters_for_a_committer_that_never_comes_the_first_leads_for_all() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    for tid in 1..=8 {
        push(&group, tid, Durability::Flushed);
    }
    group.wait(Tid(8), Durability::Flushed, &seen).unwrap();
    for (first, count) in [(9, 5), (14, 3), (17, 2)] {
        let begun = std::time::Instant::now();
        let tids = first..first + count;
        tids.clone().for_each(|tid| push(&group, tid, Durability::Flushed));
        std::thread::scope(|s| {
            for tid in tids {
                let (group, seen) = (&group, &seen);
                let wait = move || group.wait_for_others(Tid(tid), Durability::Flushed, Duration::ZERO, seen);
                s.spawn(move || wait().unwrap());
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(5), "{count} that wait for one another");
    }
    assert_eq!(left(&disk), (1..=18).collect::<Vec<u8>>());
    assert_eq!(disk.counters().durable_writes, 4);
}

#[test]
fn a_failed_flush_reaches_all_waiters_and_shows_nothing() {
    for op in [Op::WriteDurable, Op::Sync] {
        let disk = SimDisk::new(SimConfig::default());
        let (group, seen) = (group(&disk), Seen::default());
        if op == Op::Sync {
            group.written_beside();
        }
        for tid in 1..=4 {
            push(&group, tid, Durability::Flushed);
        }
        disk.fail_nth(op, 1, std::io::ErrorKind::Other);
        std::thread::scope(|s| {
            let waiting: Vec<_> = (1..=4)
                .map(|t| {
                    s.spawn({
                        let (g, a) = (&group, &seen);
                        move || g.wait(Tid(t), Durability::Flushed, a)
                    })
                })
                .collect();
            let results: Vec<_> = waiting.into_iter().map(|t| t.join().unwrap()).collect();
            let first = results.iter().filter(|r| matches!(r, Err(Error::Io { .. }))).count();
            let others = results.iter().filter(|r| matches!(r, Err(Error::Poisoned(_)))).count();
            assert_eq!((first, others), (1, 3), "{results:?}");
        });
        // Never retried, not for later commits either.
        push(&group, 5, Durability::Written);
        assert!(group.wait(Tid(5), Durability::Written, &seen).is_err());
        assert_eq!(*seen.0.lock(), (vec![], 1));
        assert_eq!((group.recorded(), disk.counters().flushes()), (Tid(0), 1));
    }
}

#[test]
fn a_written_commit_is_flushed_with_the_next_one_that_asks() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    push(&group, 1, Durability::Written);
    group.wait(Tid(1), Durability::Written, &seen).unwrap();
    assert_eq!((left(&disk), group.recorded(), disk.counters().flushes()), (vec![], Tid(0), 0));
    push(&group, 2, Durability::Flushed);
    group.wait(Tid(2), Durability::Flushed, &seen).unwrap();
    assert_eq!((left(&disk), group.recorded(), disk.counters().syncs), (vec![1, 2], Tid(2), 1));
    assert_eq!(seen.0.lock().0, [1, 2]);
}

#[test]
fn commits_without_a_flush_show_readers_none_that_wait_for_one() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    push(&group, 1, Durability::Flushed);
    push(&group, 2, Durability::Written);
    group.wait(Tid(2), Durability::Written, &seen).unwrap();
    assert_eq!((left(&disk), seen.0.lock().0.as_slice()), (vec![1, 2], [2].as_slice()));
}

#[test]
fn a_record_in_a_block_of_its_own_leaves_the_block_before_alone() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    let state = |tid| Arc::new(State::empty(Tid(tid)));
    group.push(&[1; 100], true, &state(1), Durability::Flushed);
    group.flush(&seen).unwrap();
    group.push(&[2; 100], true, &state(2), Durability::Flushed);
    group.push(&[3; 100], true, &state(3), Durability::Flushed);
    group.flush(&seen).unwrap();
    assert_eq!((disk.counters().bytes_written, disk.counters().durable_writes), (3 * 512, 2));
    let file = disk.open(Path::new("/log"), OpenMode::ReadOnly).unwrap();
    let mut b = [0; 3 * BLOCK];
    file.read_at(&mut b, 0).unwrap();
    assert_eq!([b[0], b[99], b[100], b[BLOCK], b[2 * BLOCK]], [1, 1, 0, 2, 3]);
}

#[test]
fn a_record_written_beside_is_durable_with_the_flush_that_covers_it() {
    let disk = SimDisk::new(SimConfig::default());
    let (group, seen) = (group(&disk), Seen::default());
    push(&group, 1, Durability::Flushed);
    group.flush(&seen).unwrap();
    // A long record: the rest of the tail block, then more.
    let mut tail = Vec::new();
    let at = group.tail_block(&mut tail);
    tail.resize(BLOCK + 188, 2);
    let file = disk.open(Path::new("/log"), OpenMode::ReadWrite).unwrap();
    file.write_at(&tail, at).unwrap();
    group.push_written(&tail[BLOCK..], at + BLOCK as u64, &Arc::new(State::empty(Tid(2))), Durability::Flushed);
    assert_eq!(left(&disk), [1]);
    group.wait(Tid(2), Durability::Flushed, &seen).unwrap();
    push(&group, 3, Durability::Flushed);
    group.flush(&seen).unwrap();
    assert_eq!(left(&disk), [1, 2, 2, 2, 2, 2, 2, 3]);
}
