//! Without crashes, the simulated and a real disk agree; after one, flushed bytes are there.

use proptest::prelude::*;

use super::*;
use crate::disk::real::RealDisk;

fn on_both(test: impl Fn(&dyn Disk, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    test(&RealDisk::new(), dir.path());
    test(&disk(), Path::new("/dir"));
}

#[test]
fn locks_exclude_other_handles() {
    use LockKind::{Exclusive, Shared};
    on_both(|disk, dir| {
        let path = dir.join("db");
        let open = || disk.open(&path, OpenMode::Create).unwrap();
        let (a, b) = (open(), open());
        let far = 1 << 40;
        assert!(a.try_lock(far, 10, Shared).unwrap());
        assert!(b.try_lock(far, 10, Shared).unwrap());
        assert!(!a.try_lock(far, 10, Exclusive).unwrap(), "an upgrade against another's shared lock");
        b.unlock(far, 10).unwrap();
        assert!(a.try_lock(far, 10, Exclusive).unwrap());
        assert!(!b.try_lock(far + 9, 5, Shared).unwrap());
        assert!(b.try_lock(far + 10, 5, Exclusive).unwrap(), "ranges that touch do not conflict");
        assert!(a.try_lock(far, 10, Shared).unwrap(), "a downgrade");
        assert!(b.try_lock(far, 10, Shared).unwrap());
        drop(b);
        assert!(a.try_lock(far, 15, Exclusive).unwrap(), "a dropped handle gives its locks back");
        let c = open();
        a.unlock(far + 3, 2).unwrap();
        assert!(c.try_lock(far + 3, 2, Exclusive).unwrap(), "a hole in a range");
        assert!(!c.try_lock(far + 2, 1, Shared).unwrap());
        assert!(!c.try_lock(far + 5, 1, Shared).unwrap());
    });
}

#[test]
fn a_failed_upgrade_keeps_the_lock_held() {
    use LockKind::{Exclusive, Shared};
    on_both(|disk, dir| {
        let path = dir.join("db");
        let [a, b, c] = [(); 3].map(|()| disk.open(&path, OpenMode::Create).unwrap());
        assert!(a.try_lock(0, 1, Shared).unwrap() && b.try_lock(0, 1, Shared).unwrap());
        assert!(!a.try_lock(0, 1, Exclusive).unwrap());
        b.unlock(0, 1).unwrap();
        assert!(!c.try_lock(0, 1, Exclusive).unwrap());
    });
}

#[test]
fn locks_that_make_no_sense_are_errors() {
    on_both(|disk, dir| {
        let path = dir.join("db");
        let file = disk.open(&path, OpenMode::Create).unwrap();
        for (offset, len) in [(0, 0), (u64::MAX, 1), (0, u64::MAX), (i64::MAX as u64, 1)] {
            assert_eq!(file.try_lock(offset, len, LockKind::Shared).unwrap_err().kind(), ErrorKind::InvalidInput);
            assert!(file.unlock(offset, len).is_err());
        }
        let read_only = disk.open(&path, OpenMode::ReadOnly).unwrap();
        assert!(read_only.try_lock(0, 1, LockKind::Shared).unwrap());
        let error = read_only.try_lock(0, 1, LockKind::Exclusive).unwrap_err();
        #[cfg(unix)]
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::BADF.raw_os_error()));
        #[cfg(windows)]
        assert!(error.raw_os_error() == Some(9) || error.kind() == ErrorKind::PermissionDenied);
    });
}

#[test]
fn a_file_opened_for_reading_is_not_written() {
    on_both(|disk, dir| {
        let path = dir.join("db");
        disk.open(&path, OpenMode::Create).unwrap();
        let file = disk.open(&path, OpenMode::ReadOnly).unwrap();
        assert!(file.write_at(b"x", 0).is_err() && file.write_durable_at(b"x", 0).is_err());
        assert!(file.set_len(1).is_err());
        assert!(file.is_empty().unwrap());
        let kind = |mode| disk.open(&dir.join("none"), mode).err().unwrap().kind();
        assert_eq!([OpenMode::ReadOnly, OpenMode::ReadWrite].map(kind), [ErrorKind::NotFound; 2]);
        assert_eq!(disk.remove(&dir.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        let exchanged = disk.exchange(&path, &dir.join("none")).unwrap_err().kind();
        assert!(matches!(exchanged, ErrorKind::NotFound | ErrorKind::Unsupported), "{exchanged}");
    });
}

#[derive(Clone, Debug)]
enum Call {
    Write { offset: u64, len: usize, durable: bool },
    Read { offset: u64, len: usize },
    SetLen(u64),
    Reserve(u64),
    Sync,
    SyncDir,
    Replace,
    Exchange,
    Reopen,
}

fn any_call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => (0..3000u64, 0..1500usize, any::<bool>())
            .prop_map(|(offset, len, durable)| Call::Write { offset, len, durable }),
        4 => (0..5000u64, 0..2000usize).prop_map(|(offset, len)| Call::Read { offset, len }),
        2 => (0..5000u64).prop_map(Call::SetLen),
        1 => (0..9000u64).prop_map(Call::Reserve),
        1 => Just(Call::Sync),
        1 => Just(Call::SyncDir),
        1 => Just(Call::Replace),
        1 => Just(Call::Exchange),
        1 => Just(Call::Reopen),
    ]
}

fn make(disk: &dyn Disk, path: &Path, file: &mut Arc<dyn DiskFile>, call: &Call, fill: u8) -> (Vec<u8>, u64) {
    let mut read = Vec::new();
    match *call {
        Call::Write { offset, len, durable: false } => file.write_at(&vec![fill; len], offset).unwrap(),
        Call::Write { offset, len, durable: true } => file.write_durable_at(&vec![fill; len], offset).unwrap(),
        Call::Read { offset, len } => {
            read.resize(len, 0xee);
            let count = file.read_at(&mut read, offset).unwrap();
            read.truncate(count);
        }
        Call::SetLen(len) => file.set_len(len).unwrap(),
        Call::Reserve(len) => file.reserve(len).unwrap(),
        Call::Sync => file.sync().unwrap(),
        Call::SyncDir => disk.sync_dir_of(path).unwrap(),
        Call::Replace => {
            disk.remove(path).unwrap();
            assert!(!disk.exists(path).unwrap());
            *file = disk.open(path, OpenMode::Create).unwrap();
        }
        // The open file keeps its identity under the other name.
        Call::Exchange => {
            let other = path.with_extension("other");
            disk.open(&other, OpenMode::Create).unwrap();
            match disk.exchange(path, &other) {
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    let between = path.with_extension("between");
                    for (from, to) in [(path, &*between), (&other, path), (&between, &other)] {
                        disk.rename(from, to).unwrap();
                    }
                }
                done => done.unwrap(),
            }
        }
        Call::Reopen => *file = disk.open(path, OpenMode::ReadWrite).unwrap(),
    }
    (read, file.len().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_the_bytes_of_a_real_disk(calls in prop::collection::vec(any_call(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let (real, sim) = (RealDisk::new(), disk());
        let mut real_file = real.open(&path, OpenMode::Create).unwrap();
        let mut sim_file = sim.open(&path, OpenMode::Create).unwrap();
        for (number, call) in calls.iter().enumerate() {
            let fill = number as u8 + 1;
            let shown = make(&real, &path, &mut real_file, call, fill);
            prop_assert_eq!(make(&sim, &path, &mut sim_file, call, fill), shown, "{:?}", call);
        }
        prop_assert_eq!(sim.snapshot_file(&path).unwrap(), std::fs::read(&path).unwrap());
    }

    #[test]
    fn flushed_bytes_survive_and_the_newest_crash_is_the_view(
        calls in prop::collection::vec(any_call(), 1..40), seed in any::<u64>(),
    ) {
        let sim = disk();
        let mut file = create(&sim, "db");
        sim.sync_dir_of(db()).unwrap();
        for (number, call) in calls.iter().enumerate() {
            // The name's file, not an earlier one.
            let call = if let Call::Exchange = call { &Call::Reopen } else { call };
            make(&sim, db(), &mut file, call, number as u8 + 1);
            let view = sim.snapshot_file(db());
            prop_assert_eq!(&sim.crash_by(&mut |count| count - 1).snapshot_file(db()), &view);
            prop_assert_eq!(&sim.survive().snapshot_file(db()), &view);
            if !sim.state.lock().names.choices().is_empty() {
                continue; // The name is perhaps still that of a file before this one.
            }
            let crashed = sim.crash(seed.wrapping_add(number as u64)).snapshot_file(db()).unwrap();
            match *call {
                Call::Sync => prop_assert_eq!(Some(crashed), view),
                Call::Write { offset, len, durable: true } => {
                    let range = offset as usize..offset as usize + len;
                    let written = vec![number as u8 + 1; len];
                    prop_assert!(len == 0 || crashed.get(range) == Some(&written[..]));
                }
                _ => {}
            }
        }
        file.sync().unwrap();
        sim.sync_dir_of(db()).unwrap();
        prop_assert!(sim.crash_choices().is_empty());
        prop_assert_eq!(sim.crash(seed).snapshot_file(db()), sim.snapshot_file(db()));
    }
}
