//! A database file that is renamed or removed while in use, and another one under its name: neither
//! loses anything (rule LogFoundBySession, invariants I1 and I7).

use crate::common;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{PAGE, commit, page, plain};
use onewrite_core::Repair;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, Engine, Error, LockLevel, Result};

const DB: &str = "/db";
const OLD: &str = "/old";
const NEW: u64 = 50;

fn disk() -> SimDisk {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(DB), &plain(0));
    disk
}

fn open(disk: &SimDisk, path: &str) -> Connection {
    let options = [("log_size".to_owned(), "256k".to_owned())];
    Engine::new(Arc::new(disk.clone())).open(Path::new(path), OpenMode::ReadWrite, &options).unwrap()
}

fn newest(c: &mut Connection) -> Result<u64> {
    c.lock(LockLevel::Shared)?;
    let mut b = vec![0; PAGE];
    let read = c.read_at(&mut b, PAGE as u64);
    c.unlock(LockLevel::None)?;
    read?;
    let n = u64::from_le_bytes(b[200..208].try_into().unwrap());
    assert!(b == page(n), "a page of no transaction");
    Ok(n)
}

fn replace(disk: &SimDisk, rename: bool) -> std::io::Result<()> {
    let path = Path::new(DB);
    if rename {
        disk.rename(path, Path::new(OLD))?
    } else {
        disk.remove(path)?
    }
    disk.sync_dir_of(path)?;
    let draft = Path::new("/draft");
    let file = disk.open(draft, OpenMode::Create)?;
    file.write_at(&plain(NEW), 0)?;
    file.sync()?;
    disk.sync_dir_of(path)?;
    disk.rename(draft, path)?;
    disk.sync_dir_of(path)
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.paths().iter().map(|path| path.display().to_string()).collect()
}

fn number(disk: &SimDisk, path: &str) -> u64 {
    let home = disk.snapshot_file(Path::new(path)).unwrap();
    assert_eq!((home.len(), home[19]), (3 * PAGE, 1), "{path} is a plain file");
    u64::from_le_bytes(home[PAGE + 200..PAGE + 208].try_into().unwrap())
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_new_file_under_the_name_of_one_in_use_has_its_own_log_at_once() {
    for rename in [true, false] {
        for old_first in [true, false] {
            let disk = disk();
            let mut old = open(&disk, DB);
            commit(&mut old, 1);
            replace(&disk, rename).unwrap();
            let mut new = open(&disk, DB);
            for n in 1..5 {
                commit(&mut new, NEW + n);
                commit(&mut old, 1 + n);
                assert_eq!((newest(&mut new).unwrap(), newest(&mut old).unwrap()), (NEW + n, 1 + n));
            }
            let mut other = open(&disk, DB);
            assert_eq!(newest(&mut other).unwrap(), NEW + 4, "another process joins the new one");
            let all = if old_first { [old, new, other] } else { [new, other, old] };
            all.into_iter().for_each(|c| c.close().unwrap());
            let mut left = vec![DB, "/db-onewrite"];
            left.extend(rename.then_some(OLD));
            assert_eq!(names(&disk), left);
            assert_eq!(number(&disk, DB), NEW + 4);
            if rename {
                assert_eq!(number(&disk, OLD), 5);
            }
        }
    }
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_renamed_database_is_joined_under_its_new_name() {
    let disk = disk();
    let mut old = open(&disk, DB);
    commit(&mut old, 1);
    let mut idle = open(&disk, DB);
    newest(&mut idle).unwrap();
    disk.rename(Path::new(DB), Path::new(OLD)).unwrap();
    for replaced in [false, true] {
        if replaced {
            disk.put_file(Path::new(DB), &plain(NEW));
            commit(&mut open(&disk, DB), NEW + 1);
        }
        let mut joins = open(&disk, OLD);
        assert_eq!(newest(&mut joins).unwrap(), newest(&mut old).unwrap());
        for n in [2, 3] {
            idle.lock(LockLevel::Shared).unwrap();
            let before = newest(&mut joins).unwrap();
            commit(&mut joins, 10 * before + n);
            joins.pragma("checkpoint", None).unwrap().unwrap();
            commit(&mut old, 10 * before + n + 1);
            old.pragma("checkpoint", None).unwrap().unwrap();
            let mut b = vec![0; PAGE];
            idle.read_at(&mut b, PAGE as u64).unwrap();
            assert!(b == page(before), "a snapshot stays");
            idle.unlock(LockLevel::None).unwrap();
        }
        let expected = newest(&mut old).unwrap();
        assert_eq!(newest(&mut joins).unwrap(), expected);
        joins.close().unwrap();
    }
    let last = newest(&mut old).unwrap();
    idle.close().unwrap();
    old.close().unwrap();
    assert_eq!(number(&disk, OLD), last);
    assert_eq!(number(&disk, DB), NEW + 1);
    assert_eq!(names(&disk), [DB, "/db-onewrite", OLD]);
}

#[test]
fn one_process_opens_the_renamed_and_the_new_file() {
    let disk = disk();
    let engine = Engine::new(Arc::new(disk.clone()));
    let open = |path| engine.open(Path::new(path), OpenMode::ReadWrite, &[]).unwrap();
    let mut old = open(DB);
    newest(&mut old).unwrap();
    replace(&disk, true).unwrap();
    let (mut renamed, mut new) = (open(OLD), open(DB));
    commit(&mut renamed, 1);
    commit(&mut new, NEW + 1);
    assert_eq!((newest(&mut renamed).unwrap(), newest(&mut new).unwrap()), (1, NEW + 1));
    assert_eq!(newest(&mut old).unwrap(), 1);
    [renamed, old, new].into_iter().for_each(|c| c.close().unwrap());
    assert_eq!((number(&disk, OLD), number(&disk, DB)), (1, NEW + 1));
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_crashed_database_is_recovered_under_its_new_name() {
    for replaced in [false, true] {
        for repair in [false, true] {
            let first = disk();
            let mut c = open(&first, DB);
            commit(&mut c, 1);
            commit(&mut c, 2);
            let disk = first.survive();
            if replaced {
                replace(&disk, true).unwrap();
                let mut new = open(&disk, DB);
                commit(&mut new, NEW + 1);
                new.close().unwrap();
            } else {
                disk.rename(Path::new(DB), Path::new(OLD)).unwrap();
            }
            if repair {
                let repair = Repair::open(Arc::new(disk.clone()), Path::new(OLD), OpenMode::ReadWrite).unwrap();
                let session = repair.mark().unwrap().unwrap();
                assert_eq!(repair.recover(session, false).unwrap().transactions, 2);
            } else {
                let mut c = open(&disk, OLD);
                assert_eq!(newest(&mut c).unwrap(), 2);
                commit(&mut c, 3);
                assert!(names(&disk).contains(&"/old-onewrite".to_owned()), "its log has its name again");
                c.close().unwrap();
            }
            assert_eq!(number(&disk, OLD), if repair { 2 } else { 3 });
            let homes_and_logs = |name: &String| !name.contains("-onewrite") || name.ends_with("-onewrite");
            assert!(names(&disk).iter().all(homes_and_logs), "{:?}", names(&disk));
        }
    }
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_file_that_was_renamed_is_not_marked_under_its_old_name() {
    let disk = disk();
    let mut old = open(&disk, DB);
    newest(&mut old).unwrap();
    replace(&disk, true).unwrap();
    disk.put_file(Path::new("/db-journal"), &[1; 512]);
    assert_eq!(newest(&mut old).unwrap(), 0, "the journal is not its own");
    old.lock(LockLevel::Shared).unwrap();
    let error = old.lock(LockLevel::Reserved).unwrap_err();
    assert!(matches!(error, Error::Moved(_)) && error.to_string().contains("renamed or replaced"), "{error}");
    old.unlock(LockLevel::None).unwrap();
    old.close().unwrap();
    assert_eq!(names(&disk), [DB, "/db-journal", OLD]);
}

#[test]
fn a_file_without_a_name_has_a_log_without_one() {
    let disk = disk();
    let mut old = open(&disk, DB);
    newest(&mut old).unwrap();
    disk.remove(Path::new(DB)).unwrap();
    commit(&mut old, 1);
    assert!(names(&disk).is_empty());
    disk.put_file(Path::new(DB), &plain(NEW));
    let mut new = open(&disk, DB);
    commit(&mut new, NEW + 1);
    commit(&mut old, 2);
    assert_eq!((newest(&mut old).unwrap(), newest(&mut new).unwrap()), (2, NEW + 1));
    old.close().unwrap();
    new.close().unwrap();
    assert_eq!((names(&disk).len(), number(&disk, DB)), (2, NEW + 1));
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_log_of_a_database_that_is_gone_is_set_aside_whole() {
    let first = disk();
    let mut c = open(&first, DB);
    commit(&mut c, 1);
    let disk = first.survive();
    let log = disk.snapshot_file(Path::new("/db-onewrite")).unwrap();
    let marked = disk.snapshot_file(Path::new(DB)).unwrap();
    disk.put_file(Path::new(DB), &plain(NEW));
    let mut new = open(&disk, DB);
    commit(&mut new, NEW + 1);
    new.close().unwrap();
    assert_eq!(number(&disk, DB), NEW + 1);
    let aside: PathBuf =
        disk.paths().into_iter().find(|path| path.to_string_lossy().starts_with("/db-onewrite-")).unwrap();
    assert_eq!(disk.snapshot_file(&aside).unwrap(), log);
    disk.put_file(Path::new("/found"), &marked);
    assert_eq!(newest(&mut open(&disk, "/found")).unwrap(), 1);
}

fn history(disk: &SimDisk, acknowledged: &mut [u64; 2]) -> Result<()> {
    let opened = |path: &str| {
        let options = [("log_size".to_owned(), "256k".to_owned())];
        Engine::new(Arc::new(disk.clone())).open(Path::new(path), OpenMode::ReadWrite, &options)
    };
    let mut old = opened(DB)?;
    try_commit(&mut old, 1, &mut acknowledged[0])?;
    if replace(disk, true).is_err() {
        return Ok(());
    }
    let mut new = opened(DB)?;
    for n in 1..4 {
        try_commit(&mut new, NEW + n, &mut acknowledged[1])?;
        try_commit(&mut old, 1 + n, &mut acknowledged[0])?;
        let mut joins = opened(OLD)?;
        try_commit(&mut joins, 11 + n, &mut acknowledged[0])?;
        if n == 2 {
            old.pragma("checkpoint", None).unwrap()?;
        }
    }
    new.close()?;
    old.close()
}

fn try_commit(c: &mut Connection, n: u64, acknowledged: &mut u64) -> Result<()> {
    c.lock(LockLevel::Shared)?;
    c.lock(LockLevel::Reserved)?;
    c.write_at(&page(n), PAGE as u64)?;
    c.prepare(None)?;
    c.sync()?;
    c.commit()?;
    *acknowledged = n;
    c.unlock(LockLevel::None)
}

#[test]
fn power_cuts_while_a_database_is_renamed_and_replaced_lose_nothing() {
    let next = |n: u64| match n {
        0 => 1,
        1 => 2,
        12..=14 => n - 9,
        2..=4 => n + 10,
        n => n + 1,
    };
    let whole = disk();
    history(&whole, &mut [0, NEW]).unwrap();
    let ops = whole.ops();
    assert!(ops > 60, "{ops}");
    for stop in 0..ops {
        for seed in 0..6 {
            let first = disk();
            let mut acknowledged = [0, NEW];
            first.stop_after(stop);
            let _ = history(&first, &mut acknowledged);
            let crashed = first.crash(seed);
            let case = format!("operation {stop} of {ops}, seed {seed}, {acknowledged:?}, {:?}", names(&crashed));
            let order = if seed % 2 == 0 { [DB, OLD] } else { [OLD, DB] };
            let mut found = [None, None];
            for path in order {
                if !crashed.exists(Path::new(path)).unwrap() {
                    continue;
                }
                let mut c = open(&crashed, path);
                let n = newest(&mut c).unwrap_or_else(|e| panic!("{case}: {path}: {e}"));
                found[usize::from(n >= NEW)] = Some(n);
                if seed % 3 == 0 {
                    commit(&mut c, n);
                    assert_eq!(newest(&mut c).unwrap(), n);
                }
                c.close().unwrap_or_else(|e| panic!("{case}: {path}: {e}"));
                assert_eq!(number(&crashed, path), n, "{case}");
            }
            let [old, new] = found;
            assert!(old.is_some_and(|n| n == acknowledged[0] || n == next(acknowledged[0])), "{case}: {old:?}");
            let is_right = |n| n == acknowledged[1] || n == next(acknowledged[1]);
            assert!(new.map_or(acknowledged[1] == NEW, is_right), "{case}: {new:?}");
        }
    }
}

#[test]
fn a_copy_of_the_file_is_not_the_file() {
    let disk = disk();
    let mut c = open(&disk, DB);
    commit(&mut c, 1);
    for path in ["/copy", DB] {
        if path == DB {
            disk.remove(Path::new(DB)).unwrap();
            disk.rename(Path::new("/copy"), Path::new(DB)).unwrap();
        } else {
            disk.put_file(Path::new(path), &disk.snapshot_file(Path::new(DB)).unwrap());
        }
        let error = newest(&mut open(&disk, path)).unwrap_err();
        assert!(matches!(error, Error::CantOpen(_)), "{error}");
        let crashed = disk.survive();
        if path != DB {
            let error = newest(&mut open(&crashed, path)).unwrap_err();
            assert!(error.to_string().contains("is missing"), "{error}");
            assert_eq!(newest(&mut open(&crashed, DB)).unwrap(), 1);
        }
    }
    commit(&mut c, 2);
    assert_eq!(newest(&mut c).unwrap(), 2);
}

/// A journal that another program removed must not come back (rule NamesFlushedOnce).
#[test]
fn names_are_flushed_where_they_have_changed() {
    let disk = disk();
    let mut n = 0;
    let mut session = |disk: &SimDisk, dir_syncs: u64, why: &str| {
        disk.reset_counters();
        let mut c = open(disk, DB);
        n += 1;
        commit(&mut c, n);
        c.close().unwrap();
        assert_eq!(disk.counters().dir_syncs, dir_syncs, "{why}");
    };
    session(&disk, 1, "the log was made");
    session(&disk, 0, "nothing has changed");
    let journal = Path::new("/db-journal");
    for (path, why) in [(journal, "a journal came and went"), (Path::new("/other"), "so did another file")] {
        let file = disk.open(path, OpenMode::Create).unwrap();
        file.write_at(&[7; 600], 0).unwrap();
        file.sync().unwrap();
        disk.sync_dir_of(path).unwrap();
        disk.remove(path).unwrap();
        session(&disk, 1, why);
        session(&disk, 0, "nothing has changed");
        assert!(disk.crashes().all(|(_, after)| !after.exists(path).unwrap()), "{why}");
    }
    let restarted = disk.crash(0);
    session(&restarted, 1, "nobody knows behind a power cut");
    session(&restarted, 0, "nothing has changed");
}
