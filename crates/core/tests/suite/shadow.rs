//! Scheme `shadow`: the cost of a commit, and the two files after every failure.

use crate::common;

use std::io;
use std::path::Path;
use std::sync::Arc;

use common::{PAGE, page, plain, write};
#[cfg(unix)]
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, FileId, OpenMode};
use onewrite_core::{Connection, Engine, Error, LockLevel, Result};
use parking_lot::Mutex;

const HOME: &str = "/db";
const SECOND: &str = "/db-onewrite-shadow";

fn disk() -> SimDisk {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(HOME), &plain(0));
    disk
}

fn open_with(disk: impl Disk + 'static, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    Engine::new(Arc::new(disk)).open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
}

fn open(disk: &SimDisk) -> Connection {
    open_with(disk.clone(), &[("scheme", "dash"), ("log_size", "256k")])
}

fn try_commit(c: &mut Connection, n: u64) -> Result<()> {
    let done = (|| {
        c.lock(LockLevel::Shared)?;
        c.lock(LockLevel::Reserved)?;
        c.write_at(&page(n), PAGE as u64)?;
        c.prepare(None)?;
        c.sync()?;
        c.commit()
    })();
    c.unlock(LockLevel::None)?;
    done
}

fn newest(c: &mut Connection) -> Result<u64> {
    c.lock(LockLevel::Shared)?;
    let mut b = vec![0; PAGE];
    c.read_at(&mut b, PAGE as u64)?;
    c.unlock(LockLevel::None)?;
    let n = u64::from_le_bytes(b[200..208].try_into().unwrap());
    assert!(b == page(n), "a page of no transaction");
    Ok(n)
}

fn ends_with_all(disk: &SimDisk, c: Connection, n: u64) {
    c.close().unwrap();
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert_eq!((home.len(), home[19], &home[72..80]), (3 * PAGE, 1, &[0; 8][..]));
    assert!(home[PAGE..2 * PAGE] == page(n), "page 2 is not that of transaction {n}");
    assert!(!disk.exists(Path::new(SECOND)).unwrap());
}

/// No older home hides commits without a record (rule SlotsAgree).
#[test]
fn a_home_copied_before_a_recovery_does_not_fit_after_a_commit() {
    for scheme in ["dash", "wal-opt"] {
        let first = disk();
        let open = |disk: &SimDisk| open_with(disk.clone(), &[("scheme", scheme)]);
        let mut c = open(&first);
        write(&mut c, &[(1, page(1))]);
        let crashed = first.survive();
        let older = crashed.snapshot_file(Path::new(HOME)).unwrap();
        let mut c = open(&crashed);
        write(&mut c, &[(1, page(2))]);
        let again = crashed.survive();
        assert_eq!(newest(&mut open(&again.survive())).unwrap(), 2);
        again.put_file(Path::new(HOME), &older);
        match newest(&mut open(&again)) {
            Ok(found) => assert_eq!((scheme, found), ("wal-opt", 2)),
            Err(error) => {
                assert!(scheme != "wal-opt" && error.to_string().contains("older state"), "{scheme}: {error}")
            }
        }
    }
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_commit_writes_both_files_and_flushes_one_and_the_names() {
    let disk = disk();
    let mut c = open(&disk);
    write(&mut c, &[(1, page(1))]);
    for n in 2..6 {
        disk.reset_counters();
        write(&mut c, &[(1, page(n))]);
        let (home, second, all) = (disk.counters_of("/db"), disk.counters_of("-onewrite-shadow"), disk.counters());
        assert_eq!((home.writes, home.bytes_written), (1, 2 * PAGE as u64));
        assert_eq!((second.writes, second.bytes_written), (1, 2 * PAGE as u64));
        assert_eq!((home.syncs + second.syncs, all.dir_syncs, all.flushes()), (1, 1, 2));
        assert_eq!((home.syncs, second.syncs), (n % 2, 1 - n % 2), "they take turns");
    }
    let stats = c.pragma("stats", None).unwrap().unwrap();
    assert!(stats.contains("commits=5\n") && stats.contains("\nexchanges=6\n"), "{stats}");
    ends_with_all(&disk, c, 5);
}

#[test]
fn each_file_that_a_crash_leaves_has_all_acknowledged_commits() {
    let history = |disk: &SimDisk| {
        let mut acknowledged = 0;
        let mut c = open(disk);
        for n in 1..=3 {
            match try_commit(&mut c, n) {
                Ok(()) => acknowledged = n,
                Err(_) => break,
            }
        }
        let closed = c.close();
        (acknowledged, closed)
    };
    let whole = disk();
    assert_eq!(history(&whole).0, 3);
    for ops in 0..whole.ops() {
        let cut = disk();
        cut.stop_after(ops);
        let (acknowledged, _) = history(&cut);
        for seed in 0..8 {
            let crashed = cut.crash(seed);
            if seed % 3 == 0 {
                crashed.stop_after(seed);
                let _ = newest(&mut open(&crashed));
            }
            let crashed = crashed.crash(seed + 100);
            let mut c = open(&crashed);
            let found = newest(&mut c).unwrap();
            assert!(
                (acknowledged..=acknowledged + 1).contains(&found),
                "{found} of {acknowledged} after {ops} operations"
            );
            try_commit(&mut c, found + 1).unwrap();
            ends_with_all(&crashed, c, found + 1);
        }
    }
}

/// Rules Poisons and ExchangeFlushed: the files' state is unknown until a recovery looks.
#[test]
fn a_failure_in_a_commit_poisons() {
    for op in [Op::Write, Op::Sync, Op::Exchange, Op::SyncDir] {
        for before in 1..=2 {
            let disk = disk();
            let mut c = open(&disk);
            for n in 1..=before {
                try_commit(&mut c, n).unwrap();
            }
            for nth in 1..=1 + u64::from(op == Op::Write) {
                let disk = disk.survive();
                let mut c = open(&disk);
                try_commit(&mut c, before + 1).unwrap();
                disk.fail_nth(op, nth, io::ErrorKind::Other);
                try_commit(&mut c, before + 2).unwrap_err();
                assert!(matches!(newest(&mut c), Err(Error::Poisoned(_))), "{op:?} {nth}");
                c.close().unwrap();
                for crashed in [disk.survive(), disk.crash(nth)] {
                    let mut c = open(&crashed);
                    let found = newest(&mut c).unwrap();
                    assert!((before + 1..=before + 2).contains(&found), "{op:?} {nth}: {found}");
                    try_commit(&mut c, found + 1).unwrap();
                    ends_with_all(&crashed, c, found + 1);
                }
            }
            ends_with_all(&disk, c, before);
        }
    }
}

#[test]
fn a_failure_on_the_way_to_other_options_poisons() {
    for op in [Op::Sync, Op::Exchange, Op::SyncDir] {
        let disk = disk();
        let mut c = open(&disk);
        // After an even number of exchanges and the trial, the second file has the name.
        (1..=2).for_each(|n| try_commit(&mut c, n).unwrap());
        disk.fail_nth(op, 1, io::ErrorKind::Other);
        c.pragma("scheme", Some("log")).unwrap().unwrap_err();
        assert!(matches!(newest(&mut c), Err(Error::Poisoned(_))), "{op:?}");
        drop(c);
        let mut c = open(&disk);
        assert_eq!(newest(&mut c).unwrap(), 2);
        c.pragma("scheme", Some("log")).unwrap().unwrap();
        try_commit(&mut c, 3).unwrap();
        assert!(!disk.exists(Path::new(SECOND)).unwrap());
        ends_with_all(&disk, c, 3);
    }
}

#[test]
fn a_disk_without_room_for_two_files_is_said_to_be_full_and_nothing_is_lost() {
    let disk = disk();
    // Database, log, and two pages of three.
    disk.set_capacity((64 << 10) + (3 + 2) * PAGE as u64);
    let mut c = open(&disk);
    for _ in 0..2 {
        assert!(matches!(try_commit(&mut c, 1), Err(Error::Full(_))));
        assert!(!disk.exists(Path::new(SECOND)).unwrap(), "it gives back what it took");
        assert_eq!(newest(&mut c).unwrap(), 0);
    }
    disk.set_capacity(16 << 20);
    try_commit(&mut c, 1).unwrap();
    disk.set_capacity(disk.used_bytes() + 40 * PAGE as u64);
    let mut first = plain(0)[..PAGE].to_vec();
    first[31] = 33;
    let grow = |c: &mut Connection| {
        c.lock(LockLevel::Shared)?;
        c.lock(LockLevel::Reserved)?;
        c.write_at(&first, 0)?;
        let prepared = c.write_at(&page(9), 32 * PAGE as u64).and_then(|()| c.prepare(None));
        let done = prepared.and_then(|()| c.sync()).and_then(|()| c.commit());
        c.unlock(LockLevel::None)?;
        done
    };
    assert!(matches!(grow(&mut c), Err(Error::Full(_))));
    assert_eq!(newest(&mut c).unwrap(), 1);
    try_commit(&mut c, 2).unwrap();
    disk.set_capacity(16 << 20);
    grow(&mut c).unwrap();
    drop(c);
    assert_eq!(disk.snapshot_file(Path::new(HOME)).unwrap().len(), 33 * PAGE);
}

#[derive(Clone)]
struct Odd {
    sim: SimDisk,
    exchanges: bool,
    asked: Arc<Mutex<Option<Happening>>>,
}

type Happening = Box<dyn FnOnce() + Send>;

impl Disk for Odd {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.sim.open(path, mode)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        if self.exchanges { self.sim.exchange(one, other) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        let id = self.sim.identify(path);
        if let Some(happening) = self.asked.lock().take() {
            happening();
        }
        id
    }

    onewrite_core::forward_disk!(this => this.sim; remove, rename, names_beside, resolve, exists, sync_dir_of, sync_all_beside, temp_file);
}

#[test]
fn a_file_system_that_cannot_exchange_names_is_refused() {
    let disk = disk();
    let odd = Odd { sim: disk.clone(), exchanges: false, asked: Arc::default() };
    let mut c = open_with(odd, &[("scheme", "dash")]);
    for _ in 0..2 {
        let error = try_commit(&mut c, 1).unwrap_err();
        assert!(error.to_string().contains("cannot exchange the names"), "{error}");
        assert!(!disk.exists(Path::new(SECOND)).unwrap());
        assert_eq!(newest(&mut c).unwrap(), 0);
    }
    c.pragma("scheme", Some("log")).unwrap().unwrap();
    try_commit(&mut c, 1).unwrap();
    ends_with_all(&disk, c, 1);
}

/// Rule NameAskedUnderLock: it is the other file when the process recovers.
#[test]
fn a_process_with_the_wrong_one_of_the_two_open_must_open_again() {
    let disk = disk();
    let mut c = open(&disk);
    for n in 1..=4 {
        try_commit(&mut c, n).unwrap();
        let mut other = open(&disk);
        assert!(matches!(newest(&mut other), Err(Error::Busy(_))), "one process at a time");
    }
    let named = disk.identify(Path::new(HOME)).unwrap();
    let mut stale = open(&disk);
    try_commit(&mut c, 5).unwrap();
    assert_ne!(disk.identify(Path::new(HOME)).unwrap(), named);
    let error = stale.lock(LockLevel::Shared).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error}");
    c.abandon("it dies");
    let error = stale.lock(LockLevel::Shared).unwrap_err();
    assert!(error.to_string().contains("open it again"), "{error}");
    drop(stale);
    let mut again = open(&disk);
    assert_eq!(newest(&mut again).unwrap(), 5);
    ends_with_all(&disk, again, 5);
}

#[test]
fn the_name_is_asked_for_once_it_cannot_change() {
    let disk = disk();
    let mut c = open(&disk);
    try_commit(&mut c, 1).unwrap();
    let asked: Arc<Mutex<Option<Happening>>> = Arc::default();
    let odd = Odd { sim: disk.clone(), exchanges: true, asked: asked.clone() };
    let mut late = open_with(odd, &[("scheme", "log")]);
    let happened = Arc::new(Mutex::new(false));
    let noted = happened.clone();
    *asked.lock() = Some(Box::new(move || {
        try_commit(&mut c, 2).unwrap();
        c.abandon("it dies");
        *noted.lock() = true;
    }));
    late.lock(LockLevel::Shared).unwrap_err();
    assert!(!*happened.lock(), "nobody looks while another process may exchange the names");
}

#[test]
fn a_name_that_was_given_to_another_file_is_left_alone() {
    let disk = disk();
    let mut c = open(&disk);
    try_commit(&mut c, 1).unwrap();
    let foreign = disk.open(Path::new("/new"), OpenMode::Create).unwrap();
    foreign.write_at(b"not ours", 0).unwrap();
    disk.exchange(Path::new(HOME), Path::new("/new")).unwrap();
    try_commit(&mut c, 2).unwrap_err();
    drop(c);
    assert_eq!(disk.snapshot_file(Path::new(HOME)).unwrap(), b"not ours");
}

#[test]
fn a_shorter_state_and_a_sticky_close() {
    let disk = disk();
    let options = [("scheme", "dash"), ("sticky", "1")];
    let engine = Engine::new(Arc::new(disk.clone()));
    let open = || {
        let options = options.map(|(n, v)| (n.to_string(), v.to_string()));
        engine.open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
    };
    let (mut c, mut reader) = (open(), open());
    for n in 1..=2u64 {
        write(&mut c, &[(1, page(n)), (2, page(20 + n))]);
        reader.lock(LockLevel::Shared).unwrap();
        let mut first = plain(0)[..PAGE].to_vec();
        first[31] = 2;
        write(&mut c, &[(0, first)]);
        write(&mut c, &[(1, page(10 + n))]);
        let mut b = vec![0; PAGE];
        assert_eq!(reader.read_at(&mut b, 2 * PAGE as u64).unwrap(), PAGE);
        assert!(b == page(20 + n), "a page behind the end of the newest state");
        assert_eq!(reader.read_at(&mut b, PAGE as u64).unwrap(), PAGE);
        assert!(b == page(n));
        reader.unlock(LockLevel::None).unwrap();
        let mut first = plain(0)[..PAGE].to_vec();
        first[31] = 3;
        write(&mut c, &[(0, first)]);
        let crashed = disk.survive();
        let mut again = open_with(crashed, &options);
        assert_eq!(newest(&mut again).unwrap(), 10 + n);
        again.lock(LockLevel::Shared).unwrap();
        assert_eq!(again.read_at(&mut b, 2 * PAGE as u64).unwrap(), PAGE);
        assert!(b.iter().all(|byte| *byte == 0), "a page that was cut off and never written again");
    }
    drop((c, reader));
    assert_eq!(disk.snapshot_file(Path::new(HOME)).unwrap()[19], 87, "the mark stays");
    assert!(!disk.exists(Path::new(SECOND)).unwrap());
    let mut c = open_with(disk.clone(), &[("scheme", "log")]);
    assert_eq!(newest(&mut c).unwrap(), 12);
    ends_with_all(&disk, c, 12);
}

#[cfg(unix)]
#[test]
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
fn the_second_file_has_the_permissions_of_the_first() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    std::fs::write(&path, plain(0)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let named = || RealDisk::new().identify(&path).unwrap();
    let first = named();
    let options = [("scheme".to_string(), "dash".to_string())];
    let mut c = Engine::new(Arc::new(RealDisk::new())).open(&path, OpenMode::ReadWrite, &options).unwrap();
    for n in 1..=2 {
        try_commit(&mut c, n).unwrap();
        assert_eq!(mode(), 0o600);
    }
    assert_ne!(named(), first, "the second file has the name");
    c.abandon("it dies");
    assert_ne!(named(), first);
    let mut c = Engine::new(Arc::new(RealDisk::new())).open(&path, OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(newest(&mut c).unwrap(), 2);
    c.close().unwrap();
    assert_eq!((mode(), std::fs::read_dir(dir.path()).unwrap().count()), (0o600, 2));
}
