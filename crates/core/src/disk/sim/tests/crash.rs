use super::*;

#[test]
fn units_of_one_write_arrive_each_on_their_own() {
    let (disk, file) = at_rest(&[0; 2 * UNIT]);
    file.write_at(&[1; 2 * UNIT], 0).unwrap();
    assert_eq!(disk.crash_choices(), [2, 2]);
    assert_eq!(outcomes(&disk), set([&[0, 0], &[0, 1], &[1, 0], &[1, 1]]));
}

#[test]
fn a_unit_is_never_torn() {
    let (disk, file) = at_rest(&[0; UNIT]);
    file.write_at(&[1; 100], 50).unwrap();
    file.write_at(&[2; 100], 100).unwrap();
    let mut both = vec![0; UNIT];
    both[50..150].fill(1);
    let first = both.clone();
    both[100..200].fill(2);
    let seen: Vec<_> = disk.crashes().map(|(_, crashed)| crashed.snapshot_file(db()).unwrap()).collect();
    assert_eq!(seen, [vec![0; UNIT], first, both]);
}

#[test]
fn a_unit_may_end_in_any_version_since_the_last_flush() {
    let (disk, file) = at_rest(&[0; UNIT]);
    for version in 1..=3 {
        file.write_at(&[version; UNIT], 0).unwrap();
    }
    assert_eq!(outcomes(&disk), set([&[0], &[1], &[2], &[3]]));
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[3]]));
}

#[test]
fn sync_covers_one_file_only() {
    let (disk, file) = at_rest(&[0; UNIT]);
    disk.put_file(Path::new("log"), &[0; UNIT]);
    let log = disk.open(Path::new("log"), OpenMode::ReadWrite).unwrap();
    file.write_at(&[1; UNIT], 0).unwrap();
    log.write_at(&[1; UNIT], 0).unwrap();
    log.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[0], &[1]]));
    assert!(disk.crashes().all(|(_, crashed)| crashed.snapshot_file(Path::new("log")) == Some(vec![1; UNIT])));
}

#[test]
fn a_length_lags_or_leads_its_data() {
    let (disk, file) = at_rest(&[7; UNIT]);
    file.write_at(&[1; UNIT], UNIT as u64).unwrap();
    assert_eq!(outcomes(&disk), set([&[7], &[7, 0], &[7, 1]]));
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[7, 1]]));
}

#[test]
fn a_long_write_raises_the_length_step_by_step() {
    let (disk, file) = at_rest(&[]);
    file.write_at(&[1; 2 * UNIT + 10], 0).unwrap();
    let lens: BTreeSet<_> = disk.crashes().map(|(_, crashed)| crashed.snapshot_file(db()).unwrap().len()).collect();
    assert_eq!(lens, BTreeSet::from([0, UNIT, 2 * UNIT, 2 * UNIT + 10]));
}

#[test]
fn a_truncation_zeroes_with_its_length_and_never_without() {
    let (disk, file) = at_rest(&[7; 2 * UNIT]);
    file.set_len(0).unwrap();
    assert_eq!(outcomes(&disk), set([&[7, 7], &[]]));
    file.set_len(2 * UNIT as u64).unwrap();
    assert_eq!(outcomes(&disk), set([&[7, 7], &[], &[0, 0]]));
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), set([&[0, 0]]));
}

#[test]
fn data_written_before_a_truncation_does_not_come_back() {
    let (disk, file) = at_rest(&[7; UNIT]);
    file.write_at(&[8; UNIT], 0).unwrap();
    file.set_len(0).unwrap();
    file.write_at(&[9; 1], UNIT as u64 - 1).unwrap();
    assert_eq!(disk.crash_choices(), [3, 3]);
    let ends = |length, version| {
        let bytes = disk.crash_with(&[length, version]).snapshot_file(db()).unwrap();
        Some((*bytes.first()?, *bytes.last()?))
    };
    assert_eq!([ends(0, 0), ends(0, 1), ends(0, 2)], [Some((7, 7)), Some((8, 8)), Some((0, 9))]);
    assert_eq!([ends(1, 0), ends(1, 1), ends(1, 2)], [None; 3]);
    assert_eq!([ends(2, 0), ends(2, 1), ends(2, 2)], [Some((0, 0)), Some((0, 0)), Some((0, 9))]);
}

#[test]
fn a_durable_write_flushes_its_units_and_no_others() {
    let (disk, file) = at_rest(&[0; 3 * UNIT]);
    file.write_at(&[1; 3 * UNIT], 0).unwrap();
    file.write_durable_at(&[2; 10], UNIT as u64 + 100).unwrap();
    // The middle unit arrived as cached, with the write before.
    assert_eq!(outcomes(&disk), set([&[0, 1, 0], &[0, 1, 1], &[1, 1, 0], &[1, 1, 1]]));
    let middle = disk.crash_with(&[0, 0]).snapshot_file(db()).unwrap()[UNIT..2 * UNIT].to_vec();
    assert_eq!(middle[100..110], [2; 10]);
    assert_eq!((middle[99], middle[110]), (1, 1));
}

#[test]
fn a_durable_write_takes_the_length_it_needs() {
    let (disk, file) = at_rest(&[]);
    file.write_durable_at(&[1; UNIT], 0).unwrap();
    file.write_at(&[2; UNIT], UNIT as u64).unwrap();
    assert_eq!(outcomes(&disk), set([&[1], &[1, 0], &[1, 2]]));
    file.write_durable_at(&[3; UNIT], 2 * UNIT as u64).unwrap();
    assert_eq!(outcomes(&disk), set([&[1, 0, 3], &[1, 2, 3]]));
}

#[test]
fn a_truncation_pending_before_a_durable_write_cannot_undo_it() {
    let (disk, file) = at_rest(&[7; 2 * UNIT]);
    file.set_len(0).unwrap();
    file.write_durable_at(&[1; UNIT], 0).unwrap();
    assert_eq!(outcomes(&disk), set([&[1]]));
}

#[test]
fn the_newest_crash_of_a_durable_write_past_a_truncation_is_the_view() {
    let (disk, file) = at_rest(&[7; 2 * UNIT]);
    file.set_len(100).unwrap();
    file.write_at(&[8; 10], 100).unwrap();
    file.write_durable_at(&[9; 10], 90).unwrap();
    let newest = || disk.crash_by(&mut |count| count - 1).snapshot_file(db());
    assert_eq!(newest(), disk.snapshot_file(db()));
    assert!(disk.crashes().all(|(_, crashed)| crashed.snapshot_file(db()).unwrap()[90..100] == [9; 10]));
    file.write_durable_at(&[9; 10], UNIT as u64).unwrap();
    assert_eq!(newest(), disk.snapshot_file(db()), "the truncation went to the medium after its unit");
}

#[test]
fn a_creation_is_pending_until_its_directory_is_synced() {
    let disk = disk();
    let file = create(&disk, "db");
    file.write_durable_at(&[1; UNIT], 0).unwrap();
    file.sync().unwrap();
    disk.sync_dir_of(Path::new("other/x")).unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([None, Some(vec![1])]));
    disk.sync_dir_of(Path::new("any-name")).unwrap();
    assert_eq!(outcomes(&disk), set([&[1]]));
}

#[test]
fn sync_covers_the_creation_if_configured() {
    let disk = SimDisk::new(SimConfig { sync_covers_creation: true, ..SimConfig::default() });
    let (_other, file) = (create(&disk, "other"), create(&disk, "db"));
    file.sync().unwrap();
    let seen: BTreeSet<_> = disk.crashes().map(|(_, crashed)| crashed.paths().len()).collect();
    assert_eq!(seen, BTreeSet::from([1, 2]));
    assert!(disk.crashes().all(|(_, crashed)| crashed.exists(db()).unwrap()));
}

#[test]
fn a_covered_creation_settles_earlier_changes_and_no_later_ones() {
    let disk = SimDisk::new(SimConfig { sync_covers_creation: true, ..SimConfig::default() });
    disk.put_file(db(), &[7]);
    disk.remove(db()).unwrap();
    let file = create(&disk, "db");
    file.write_at(&[8], 0).unwrap();
    disk.remove(db()).unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&disk), BTreeSet::from([None, Some(vec![8])]));
}

#[test]
fn a_removal_is_pending_and_gives_the_old_file_back() {
    let (disk, file) = at_rest(&[7; UNIT]);
    let old = file.id().unwrap();
    disk.remove(db()).unwrap();
    let mut bytes = [0; 1];
    assert_eq!((file.read_at(&mut bytes, 0).unwrap(), bytes), (1, [7]));
    let new = create(&disk, "db");
    assert_ne!(new.id().unwrap(), old);
    new.write_durable_at(&[8; UNIT], 0).unwrap();
    // A name's states arrive in order: old file, none, new file.
    assert_eq!(outcomes(&disk), BTreeSet::from([Some(vec![7]), None, Some(vec![8])]));
    disk.sync_dir_of(db()).unwrap();
    assert_eq!(outcomes(&disk), set([&[8]]));
}

#[test]
fn names_are_lost_each_on_their_own() {
    let disk = disk();
    create(&disk, "a");
    create(&disk, "b");
    assert_eq!(disk.crash_choices(), [2, 2]);
    let seen: BTreeSet<_> = disk.crashes().map(|(_, crashed)| crashed.paths()).collect();
    assert_eq!(seen.len(), 4);
}

fn pairs(disk: &SimDisk) -> BTreeSet<[Option<u8>; 2]> {
    let first = |disk: &SimDisk, path| disk.snapshot_file(Path::new(path)).map(|bytes| bytes[0]);
    disk.crashes().map(|(_, crashed)| ["db", "other"].map(|path| first(&crashed, path))).collect()
}

#[test]
fn names_are_exchanged_in_one_step() {
    let (disk, _file) = at_rest(&[7; UNIT]);
    disk.put_file(Path::new("other"), &[8; UNIT]);
    disk.exchange(db(), Path::new("other")).unwrap();
    assert_eq!(disk.snapshot_file(db()), Some(vec![8; UNIT]));
    assert_eq!(pairs(&disk), BTreeSet::from([[Some(7), Some(8)], [Some(8), Some(7)]]));
    // Later changes of other names arrive at any time.
    disk.remove(Path::new("other")).unwrap();
    create(&disk, "third");
    assert_eq!(disk.crash_choices().iter().product::<usize>(), 6);
    assert_eq!(pairs(&disk), BTreeSet::from([[Some(7), Some(8)], [Some(8), Some(7)], [Some(8), None]]));
    disk.sync_dir_of(db()).unwrap();
    assert_eq!(pairs(&disk), BTreeSet::from([[Some(8), None]]));
}

#[test]
fn a_covered_creation_takes_the_exchanges_before_it_along() {
    let disk = SimDisk::new(SimConfig { sync_covers_creation: true, ..SimConfig::default() });
    disk.put_file(db(), &[7]);
    disk.put_file(Path::new("other"), &[8]);
    disk.exchange(db(), Path::new("other")).unwrap();
    disk.remove(Path::new("other")).unwrap();
    let file = create(&disk, "other");
    file.write_at(&[9], 0).unwrap();
    file.sync().unwrap();
    disk.exchange(db(), Path::new("other")).unwrap();
    assert_eq!(pairs(&disk), BTreeSet::from([[Some(8), Some(9)], [Some(9), Some(8)]]));
}

#[test]
fn a_path_is_taken_for_the_file_that_it_names() {
    let disk = disk();
    let file = create(&disk, "dir/db");
    let again = disk.open(Path::new("./dir/sub/.././db"), OpenMode::ReadOnly).unwrap();
    assert_eq!(file.id().unwrap(), again.id().unwrap());
    assert_eq!(normal(Path::new("../a/./b/..")), Path::new("../a"));
    assert_eq!(normal(Path::new("../../a")), Path::new("../../a"));
}

#[test]
fn a_seed_names_one_crash_and_seeds_reach_them_all() {
    let (disk, file) = at_rest(&[0; 3 * UNIT]);
    file.write_at(&[1; 3 * UNIT], 0).unwrap();
    let after = |seed| disk.crash(seed).snapshot_file(db()).unwrap();
    let seen: BTreeSet<_> = (0..100).map(after).collect();
    assert_eq!(seen.len(), 8);
    assert_eq!(after(5), after(5));
}

#[test]
fn a_file_goes_when_nothing_refers_to_it() {
    let (disk, file) = at_rest(&[7; UNIT]);
    let inodes = || disk.state.lock().inodes.len();
    drop(disk.temp_file(db()).unwrap());
    assert_eq!(inodes(), 1);
    disk.remove(db()).unwrap();
    disk.sync_dir_of(db()).unwrap();
    assert_eq!(inodes(), 1);
    drop(file);
    assert_eq!(inodes(), 0);
}

#[test]
fn a_kill_keeps_seen_and_pending_writes() {
    let (disk, file) = at_rest(&[0; UNIT]);
    file.write_at(&[1; UNIT], 0).unwrap();
    assert!(file.try_lock(0, 1, LockKind::Exclusive).unwrap());
    let _temp = disk.temp_file(db()).unwrap();
    let survivor = disk.survive();
    assert_eq!(survivor.snapshot_file(db()), Some(vec![1; UNIT]));
    assert_eq!(outcomes(&survivor), set([&[0], &[1]]));
    let again = survivor.open(db(), OpenMode::ReadWrite).unwrap();
    assert_eq!(again.id().unwrap(), file.id().unwrap());
    assert!(again.try_lock(0, 1, LockKind::Exclusive).unwrap());
    assert_eq!(survivor.state.lock().inodes.len(), 1);
    let crashed = disk.crash(0).open(db(), OpenMode::ReadWrite).unwrap();
    assert!(crashed.try_lock(0, 1, LockKind::Exclusive).unwrap(), "a crash drops locks too");
    again.sync().unwrap();
    assert_eq!(outcomes(&survivor), set([&[1]]));
    assert_eq!(outcomes(&disk), set([&[0], &[1]]), "the disk it came from is another one");
}
