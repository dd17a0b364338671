//! Power cuts, injected faults, a full disk, counters and the trace.

use super::*;

/// 7 mutating operations.
fn scenario(disk: &SimDisk) -> io::Result<()> {
    let file = disk.open(db(), OpenMode::Create)?;
    file.write_at(&[1; 2 * UNIT], 0)?;
    file.sync()?;
    disk.sync_dir_of(db())?;
    file.write_durable_at(&[2; 2 * UNIT], 0)?;
    file.set_len(UNIT as u64)?;
    file.read_at(&mut [0; 1], 0)?;
    disk.remove(db())
}

#[test]
fn power_can_be_cut_in_each_operation() {
    let whole = disk();
    scenario(&whole).unwrap();
    assert_eq!(whole.ops(), 7);
    let (lost, all) = (None, Some(vec![2, 2]));
    let torn = || set([&[1, 1], &[1, 2], &[2, 1], &[2, 2]]);
    let of_lengths = [None, Some(vec![]), Some(vec![0]), Some(vec![1]), Some(vec![0, 0]), Some(vec![0, 1])];
    let before_sync =
        || -> BTreeSet<_> { of_lengths.iter().cloned().chain([Some(vec![1, 0]), Some(vec![1, 1])]).collect() };
    let expected = [
        BTreeSet::from([lost, Some(vec![])]),
        before_sync(),
        before_sync(),
        BTreeSet::from([None, Some(vec![1, 1])]),
        torn(),
        BTreeSet::from([all, Some(vec![2])]),
        BTreeSet::from([None, Some(vec![2]), Some(vec![2, 2])]),
    ];
    for (k, expected) in expected.into_iter().enumerate() {
        let disk = disk();
        disk.stop_after(k as u64);
        assert!(scenario(&disk).is_err());
        assert!(disk.is_off());
        assert_eq!(disk.ops(), k as u64);
        assert_eq!(outcomes(&disk), expected, "cut in operation {k}");
    }
    let disk = disk();
    disk.stop_after(7);
    scenario(&disk).unwrap();
    assert!(!disk.is_off());
}

#[test]
fn nothing_works_without_power() {
    let (disk, file) = at_rest(&[7; UNIT]);
    disk.stop_after(0);
    assert!(file.sync().is_err());
    let failures = [
        file.id().is_err(),
        file.len().is_err(),
        file.read_at(&mut [0; 1], 0).is_err(),
        file.write_at(&[], 0).is_err(),
        file.write_durable_at(&[1], 0).is_err(),
        file.set_len(0).is_err(),
        file.reserve(1).is_err(),
        file.try_lock(0, 1, LockKind::Shared).is_err(),
        file.unlock(0, 1).is_err(),
        disk.open(db(), OpenMode::ReadOnly).is_err(),
        disk.open(Path::new("new"), OpenMode::Create).is_err(),
        disk.remove(db()).is_err(),
        disk.exchange(db(), db()).is_err(),
        disk.exists(db()).is_err(),
        disk.sync_dir_of(db()).is_err(),
        disk.temp_file(db()).is_err(),
    ];
    assert_eq!(failures, [true; 16]);
    let crashed = disk.crash(0);
    assert_eq!(crashed.snapshot_file(db()), Some(vec![7; UNIT]));
    crashed.open(db(), OpenMode::ReadWrite).unwrap().sync().unwrap();
}

#[test]
fn the_nth_call_fails_and_no_other() {
    let (disk, file) = at_rest(&[7; UNIT]);
    disk.put_file(Path::new("other"), b"");
    let calls: [(Op, &dyn Fn() -> io::Result<()>); 13] = [
        (Op::Open, &|| disk.open(db(), OpenMode::ReadOnly).map(drop)),
        (Op::Create, &|| {
            disk.open(Path::new("new"), OpenMode::Create)?;
            disk.remove(Path::new("new"))
        }),
        (Op::Remove, &|| {
            disk.put_file(Path::new("old"), b"");
            disk.remove(Path::new("old"))
        }),
        (Op::Exchange, &|| disk.exchange(db(), Path::new("other"))),
        (Op::SyncDir, &|| disk.sync_dir_of(db())),
        (Op::TempFile, &|| disk.temp_file(db()).map(drop)),
        (Op::Read, &|| file.read_at(&mut [0; 1], 0).map(drop)),
        (Op::Write, &|| file.write_at(&[1; 2], 0)),
        (Op::WriteDurable, &|| file.write_durable_at(&[1; 2], 0)),
        (Op::Sync, &|| file.sync()),
        (Op::SetLen, &|| file.set_len(10)),
        (Op::Reserve, &|| file.reserve(10)),
        (Op::Lock, &|| file.try_lock(0, 1, LockKind::Shared).map(drop)),
    ];
    for (op, call) in calls {
        disk.fail_nth(op, 2, ErrorKind::TimedOut);
        let results = [call(), call(), call()].map(|result| result.err().map(|e| e.kind()));
        assert_eq!(results, [None, Some(ErrorKind::TimedOut), None], "{op:?}");
    }
}

#[test]
fn calls_that_fail_without_a_trace_change_nothing() {
    let (disk, file) = at_rest(&[7; UNIT]);
    for op in [Op::SetLen, Op::Remove, Op::Create] {
        disk.fail_nth(op, 1, ErrorKind::Other);
    }
    assert!(file.set_len(0).is_err());
    assert!(disk.remove(db()).is_err());
    assert!(disk.open(Path::new("new"), OpenMode::Create).is_err());
    assert_eq!(disk.paths(), [db()]);
    assert_eq!(outcomes(&disk), set([&[7]]));
}

#[test]
fn a_failed_write_may_have_written_a_part() {
    let (disk, file) = at_rest(&[0; 2 * UNIT]);
    disk.fail_nth(Op::Write, 1, ErrorKind::Other);
    assert!(file.write_at(&[1; 2 * UNIT], 0).is_err());
    assert_eq!(outcomes(&disk), set([&[0, 0], &[1, 0]]));
}

#[test]
fn a_sync_after_a_failed_one_says_ok_and_covers_only_rewritten_bytes() {
    let (disk, file) = at_rest(&[0; 2 * UNIT]);
    file.write_at(&[1; 2 * UNIT], 0).unwrap();
    disk.fail_nth(Op::Sync, 1, ErrorKind::Other);
    assert!(file.sync().is_err());
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[0, 0], &[0, 1], &[1, 0], &[1, 1]]));
    file.write_at(&[1; UNIT], 0).unwrap();
    assert!(outcomes(&disk).contains(&Some(vec![0, 0])), "rewritten, not yet flushed");
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[1, 0], &[1, 1]]));
    file.write_durable_at(&[1; UNIT], UNIT as u64).unwrap();
    assert_eq!(outcomes(&disk), set([&[1, 1]]));
}

#[test]
fn each_open_handle_is_told_of_a_failed_flush_once() {
    for tells_each in [false, true] {
        let disk = SimDisk::new(SimConfig { tells_each, ..SimConfig::default() });
        let [one, other] = [(); 2].map(|()| disk.open(Path::new("a"), OpenMode::Create).unwrap());
        one.write_at(&[1; 4096], 0).unwrap();
        disk.fail_nth(Op::Sync, 1, ErrorKind::Other);
        one.sync().unwrap_err();
        assert_eq!(other.sync().is_err(), tells_each);
        let later = disk.open(Path::new("a"), OpenMode::ReadWrite).unwrap();
        for file in [one, other, later] {
            file.write_durable_at(&[2; 4096], 0).unwrap();
        }
    }
}

#[test]
fn a_failed_durable_write_leaves_its_own_units_uncertain() {
    let (disk, file) = at_rest(&[0; 2 * UNIT]);
    file.write_at(&[1; UNIT], 0).unwrap();
    disk.fail_nth(Op::WriteDurable, 1, ErrorKind::Other);
    assert!(file.write_durable_at(&[2; UNIT], UNIT as u64).is_err());
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[1, 0], &[1, 2]]));
}

#[test]
fn a_failed_directory_sync_can_be_made_good() {
    let disk = disk();
    create(&disk, "db");
    disk.fail_nth(Op::SyncDir, 1, ErrorKind::Other);
    assert!(disk.sync_dir_of(db()).is_err());
    assert_eq!(disk.crash_choices(), [2]);
    disk.sync_dir_of(db()).unwrap();
    assert!(disk.crash_choices().is_empty());
}

#[test]
fn a_full_disk_refuses_growth_and_nothing_else() {
    let (disk, file) = at_rest(&[7; 100]);
    let full = |result: io::Result<()>| result.unwrap_err().kind() == ErrorKind::StorageFull;
    disk.set_capacity(1300);
    assert!(full(file.write_at(&[8; 1500], 100)));
    assert_eq!(disk.snapshot_file(db()).unwrap()[100..], [8; 924], "whole sectors that fit are written");
    file.set_len(100).unwrap();
    disk.set_capacity(150);
    assert!(full(file.write_at(&[8; 100], 100)));
    assert_eq!(disk.snapshot_file(db()).unwrap(), [7; 100]);
    file.write_at(&[9; 150], 0).unwrap();
    assert!(full(file.write_durable_at(&[8; 1], 150)));
    assert!(full(file.set_len(151)));
    assert!(full(file.reserve(151)));
    assert!(full(file.write_at(&[1], 1 << 40)));
    let other = create(&disk, "other");
    assert!(full(other.write_at(&[1], 0)));
    file.set_len(100).unwrap();
    file.reserve(120).unwrap();
    other.write_at(&[1; 30], 0).unwrap();
    assert!(full(other.write_at(&[1], 30)));
    file.write_at(&[1; 20], 100).unwrap();
    assert_eq!(file.len().unwrap(), 120);
    file.set_len(0).unwrap();
    other.write_at(&[1; 150], 0).unwrap();
    other.set_len(0).unwrap();
    file.write_at(&[1; 150], 0).unwrap();
    drop(file);
    disk.remove(db()).unwrap();
    other.write_at(&[1; 150], 0).unwrap();
    disk.set_capacity(0);
    other.write_at(&[2; 150], 0).unwrap();
}

#[test]
fn a_read_can_be_short_once() {
    let (disk, file) = at_rest(&[7; 100]);
    disk.shorten_nth_read(1, 3);
    assert_eq!(file.read_once_at(&mut [0; 10], 0).unwrap(), 3);
    disk.shorten_nth_read(1, 3);
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
    assert_eq!(file.read_at(&mut [0; 10], 95).unwrap(), 5);
    assert_eq!(file.read_at(&mut [0; 10], u64::MAX).unwrap(), 0);
}

#[test]
fn a_flipped_bit_is_seen_and_stays() {
    let (disk, file) = at_rest(&[0; 2 * UNIT]);
    file.write_at(&[0; UNIT], UNIT as u64).unwrap();
    assert!(disk.flip_bit(db(), 3, 1));
    assert!(disk.flip_bit(db(), UNIT as u64, 7));
    assert!(!disk.flip_bit(db(), 2 * UNIT as u64, 0));
    assert!(!disk.flip_bit(Path::new("none"), 0, 0));
    assert_eq!(outcomes(&disk), set([&[0, 128]]));
    file.sync().unwrap();
    assert_eq!(disk.crash(0).snapshot_file(db()), disk.snapshot_file(db()));
    assert_eq!(disk.snapshot_file(db()).unwrap()[..4], [0, 0, 0, 2]);
}

#[test]
fn a_file_put_there_is_at_rest() {
    let disk = disk();
    let file = create(&disk, "db");
    file.write_at(&[1; UNIT], 0).unwrap();
    disk.put_file(db(), b"abc");
    assert!(disk.crash_choices().is_empty());
    let mut bytes = [0; 3];
    assert_eq!((file.read_at(&mut bytes, 0).unwrap(), &bytes), (3, b"abc"));
    assert_eq!(disk.snapshot_file(Path::new("none")), None);
}

#[test]
fn calls_are_counted_by_file() {
    let disk = disk();
    let (file, log) = (create(&disk, "a/db"), create(&disk, "a/db-onewrite"));
    file.write_at(&[0; 10], 0).unwrap();
    file.read_at(&mut [0; 7], 0).unwrap();
    file.set_len(3).unwrap();
    log.write_durable_at(&[0; 20], 0).unwrap();
    log.sync().unwrap();
    disk.sync_dir_of(Path::new("a/db")).unwrap();
    let of_log = CallCounters { durable_writes: 1, syncs: 1, bytes_written: 20, ..CallCounters::default() };
    assert_eq!(disk.counters_of("-onewrite"), of_log);
    let of_file = CallCounters {
        writes: 1,
        reads: 1,
        set_lens: 1,
        dir_syncs: 1,
        bytes_read: 7,
        bytes_written: 10,
        ..CallCounters::default()
    };
    assert_eq!(disk.counters_of("db"), of_file);
    assert_eq!(disk.counters().bytes_written, 30);
    assert_eq!(disk.counters().flushes(), 3);
    disk.reset_counters();
    assert_eq!(disk.counters(), CallCounters::default());
}

#[test]
fn the_trace_lists_the_operations() {
    let disk = SimDisk::new(SimConfig { trace: true, ..SimConfig::default() });
    let file = create(&disk, "db");
    disk.fail_nth(Op::Sync, 1, ErrorKind::Other);
    file.write_at(&[1; 10], 4096).unwrap();
    file.sync().unwrap_err();
    let lines: Vec<_> = disk.crash_with(&[1, 1, 1]).trace().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "     0 Create       db 0+0",
            "     1 Write        db 4096+10",
            "     2 Sync         db 0+0  FAILS: injected fault",
            "------ crash [1, 1, 1]"
        ]
    );
}

#[test]
#[cfg(target_os = "linux")]
fn what_is_mapped_shows_each_change() {
    let (disk, file) = at_rest(&[7; 4 * UNIT]);
    let map = file.map(4 * UNIT as u64).unwrap().unwrap();
    let firsts =
        || -> Vec<u8> { (0..4).map(|n| crate::disk::mapped::peek(map.at(n * UNIT as u64, 1).unwrap())).collect() };
    file.write_at(&[1; UNIT], UNIT as u64).unwrap();
    assert_eq!(firsts(), [7, 1, 7, 7]);
    disk.flip_bit(db(), 3 * UNIT as u64, 3);
    assert_eq!(firsts(), [7, 1, 7, 15]);
    file.set_len(2 * UNIT as u64).unwrap();
    assert_eq!(firsts(), [7, 1, 0xdb, 0xdb], "bytes that a look would die of");
    file.write_at(&[2; 1], 3 * UNIT as u64).unwrap();
    assert_eq!(firsts(), [7, 1, 0, 2]);
    let before = disk.survive();
    before.open(db(), OpenMode::ReadWrite).unwrap().write_at(&[9; 1], 0).unwrap();
    assert_eq!(firsts(), [7, 1, 0, 2], "another disk");
    disk.put_file(db(), &[3; UNIT]);
    assert_eq!(firsts(), [3, 0xdb, 0xdb, 0xdb]);
}
