//! Files in use that are removed, moved or overwritten (rules LostLogReplaced, HomeFitsLog).

use crate::common;

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::hooked::Hooked;
use common::{PAGE, Pair, commit, engine, page, plain};
use onewrite_core::Repair;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, Engine, Error, LockLevel, Result};

const DB: &str = "/db";
const LOG: &str = "/db-onewrite";

fn disk() -> SimDisk {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(DB), &plain(0));
    disk
}

fn open_with(disk: &SimDisk, given: &[(&str, &str)]) -> Result<Connection> {
    let mut options = vec![("log_size".to_owned(), "256k".to_owned()), ("busy_ms".to_owned(), "0".to_owned())];
    options.extend(given.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    Engine::new(Arc::new(disk.clone())).open(Path::new(DB), OpenMode::ReadWrite, &options)
}

fn open(disk: &SimDisk) -> Connection {
    open_with(disk, &[]).unwrap()
}

fn read(c: &mut Connection) -> Result<u64> {
    let mut b = vec![0; PAGE];
    c.read_at(&mut b, PAGE as u64)?;
    let n = u64::from_le_bytes(b[200..208].try_into().unwrap());
    assert!(b == page(n), "a page of no transaction");
    Ok(n)
}

fn newest(c: &mut Connection) -> Result<u64> {
    c.lock(LockLevel::Shared)?;
    let n = read(c);
    c.unlock(LockLevel::None)?;
    n
}

fn try_commit(c: &mut Connection, n: u64) -> Result<()> {
    let done = common::try_write(c, [(1, page(n))].into_iter());
    if done.is_err() {
        c.unlock(LockLevel::None)?;
    }
    done
}

fn number(disk: &SimDisk) -> u64 {
    let home = disk.snapshot_file(Path::new(DB)).unwrap();
    assert_eq!((home.len(), home[19]), (3 * PAGE, 1), "a plain file");
    u64::from_le_bytes(home[PAGE + 200..PAGE + 208].try_into().unwrap())
}

fn names(disk: &SimDisk) -> Vec<String> {
    disk.paths().iter().map(|path| path.display().to_string()).collect()
}

fn lose(disk: &SimDisk, is_removed: bool) -> std::io::Result<()> {
    let log = Path::new(LOG);
    match is_removed {
        true => disk.remove(log)?,
        false => disk.rename(log, Path::new("/away/log"))?,
    }
    disk.sync_dir_of(log)
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_log_that_is_lost_is_made_anew() {
    for is_removed in [true, false] {
        for schemed in [&[][..], &[("scheme", "wal-opt")]] {
            let disk = disk();
            let mut c = open_with(&disk, schemed).unwrap();
            commit(&mut c, 1);
            commit(&mut c, 2);
            for n in [3, 5] {
                lose(&disk, is_removed).unwrap();
                commit(&mut c, n);
                assert!(names(&disk).contains(&LOG.to_owned()), "{:?}", names(&disk));
                assert_eq!(newest(&mut open(&disk.survive())).unwrap(), n);
                commit(&mut c, n + 1);
                assert_eq!(newest(&mut open(&disk.survive())).unwrap(), n + 1);
                if !is_removed {
                    disk.remove(Path::new("/away/log")).unwrap();
                }
            }
            assert_eq!(newest(&mut c).unwrap(), 6);
            c.close().unwrap();
            assert_eq!(number(&disk), 6);
            assert_eq!(names(&disk), [DB, LOG]);
        }
    }
}

/// The one that makes the new log has given it a name, but no slot yet.
#[test]
fn a_process_that_attaches_while_a_new_log_is_made_waits() {
    let disk = disk();
    let mut c = open(&disk);
    commit(&mut c, 1);
    lose(&disk, true).unwrap();
    let mut other = open(&disk);
    assert!(matches!(newest(&mut other), Err(Error::Busy(why)) if why.contains("they make a new one")));
    other.unlock(LockLevel::None).unwrap();
    disk.put_file(Path::new(LOG), &[0; 64 << 10]);
    assert!(matches!(newest(&mut other), Err(Error::Busy(why)) if why.contains("they make a new one")));
    other.unlock(LockLevel::None).unwrap();
    disk.remove(Path::new(LOG)).unwrap();
    commit(&mut c, 2);
    assert_eq!(newest(&mut other).unwrap(), 2);
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_file_with_the_name_of_a_lost_log_is_set_aside() {
    let disk = disk();
    let mut c = open(&disk);
    commit(&mut c, 1);
    disk.remove(Path::new(LOG)).unwrap();
    disk.put_file(Path::new(LOG), b"something else");
    commit(&mut c, 2);
    assert_eq!(newest(&mut open(&disk.survive())).unwrap(), 2);
    c.close().unwrap();
    let aside = disk.paths().into_iter().find(|path| path.to_string_lossy().starts_with("/db-onewrite-")).unwrap();
    assert_eq!(disk.snapshot_file(&aside).unwrap(), b"something else");
    assert_eq!(number(&disk), 2);
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn all_processes_go_on_with_the_new_log() {
    for is_removed in [true, false] {
        let disk = disk();
        let [mut writer, mut other, mut reader, mut idle] = [(); 4].map(|()| open(&disk));
        commit(&mut writer, 1);
        commit(&mut other, 2);
        for c in [&mut reader, &mut idle] {
            assert_eq!(newest(c).unwrap(), 2);
        }
        reader.lock(LockLevel::Shared).unwrap();
        lose(&disk, is_removed).unwrap();
        let error = newest(&mut open(&disk)).unwrap_err();
        assert!(matches!(error, Error::Busy(_)) && error.to_string().contains("is missing"), "{error}");
        for c in [&mut writer, &mut other] {
            let error = try_commit(c, 3).unwrap_err();
            assert!(matches!(error, Error::Busy(_)) && error.to_string().contains("/db-onewrite"), "{error}");
            assert_eq!(newest(c).unwrap(), 2, "who reads goes on");
        }
        assert_eq!(read(&mut reader).unwrap(), 2);
        reader.unlock(LockLevel::None).unwrap();
        commit(&mut other, 3);
        assert_eq!(newest(&mut reader).unwrap(), 3);
        commit(&mut writer, 4);
        commit(&mut reader, 5);
        let mut joins = open(&disk);
        commit(&mut joins, 6);
        for c in [&mut writer, &mut other, &mut reader, &mut joins] {
            assert_eq!(newest(c).unwrap(), 6);
        }
        assert_eq!(newest(&mut open(&disk.survive())).unwrap(), 6);
        for c in [idle, writer, other, reader] {
            c.close().unwrap();
            assert_eq!(newest(&mut joins).unwrap(), 6);
        }
        commit(&mut joins, 7);
        joins.close().unwrap();
        assert_eq!(number(&disk), 7);
    }
}

#[test]
fn a_connection_that_has_not_seen_the_new_log_stops_no_other() {
    let disk = disk();
    let [mut writer, mut idle] = [(); 2].map(|()| open(&disk));
    commit(&mut idle, 1);
    commit(&mut writer, 2);
    disk.remove(Path::new(LOG)).unwrap();
    commit(&mut writer, 3);
    writer.close().unwrap();
    let mut comes = open(&disk);
    assert_eq!(newest(&mut comes).unwrap(), 3);
    commit(&mut comes, 4);
    assert_eq!(newest(&mut idle).unwrap(), 4);
    commit(&mut idle, 5);
    comes.close().unwrap();
    idle.close().unwrap();
    assert_eq!(number(&disk), 5);
}

#[test]
fn one_that_has_not_seen_the_new_log_closes_as_the_last() {
    let disk = disk();
    let [mut writer, mut idle] = [(); 2].map(|()| open(&disk));
    commit(&mut idle, 1);
    commit(&mut writer, 2);
    disk.remove(Path::new(LOG)).unwrap();
    commit(&mut writer, 3);
    writer.close().unwrap();
    idle.close().unwrap();
    assert_eq!(number(&disk), 3);
}

/// The last process may only read, so it cannot take the mark off.
#[test]
fn a_process_that_closes_beside_a_reader_leaves_a_log() {
    for (is_removed, notices) in [(true, true), (true, false), (false, true), (false, false)] {
        let disk = disk();
        let engine = Engine::new(Arc::new(disk.clone()));
        let options = [("busy_ms".to_owned(), "0".to_owned())];
        let [mut writer, mut older] =
            [(); 2].map(|()| engine.open(Path::new(DB), OpenMode::ReadWrite, &options).unwrap());
        commit(&mut writer, 1);
        older.lock(LockLevel::Shared).unwrap();
        commit(&mut writer, 2);
        let reads = Engine::new(Arc::new(Hooked::that_reads(&disk)));
        let mut reader = reads.open(Path::new(DB), OpenMode::ReadOnly, &[]).unwrap();
        assert_eq!(newest(&mut reader).unwrap(), 2);
        lose(&disk, is_removed).unwrap();
        if notices {
            let error = try_commit(&mut writer, 3).unwrap_err();
            assert!(matches!(error, Error::Busy(_)), "{error}");
        }
        older.unlock(LockLevel::None).unwrap();
        older.close().unwrap();
        writer.close().unwrap();
        assert_eq!(newest(&mut open(&disk.survive())).unwrap(), 2);
        let mut next = open(&disk);
        commit(&mut next, 3);
        assert_eq!(newest(&mut reader).unwrap(), 3);
        reader.close().unwrap();
        next.close().unwrap();
        assert_eq!(number(&disk), 3);
    }
}

#[test]
fn readers_of_the_process_that_makes_the_log() {
    let disk = disk();
    let engine = Engine::new(Arc::new(disk.clone()));
    let [mut writer, mut older, mut newer] =
        [(); 3].map(|()| engine.open(Path::new(DB), OpenMode::ReadWrite, &[]).unwrap());
    commit(&mut writer, 1);
    older.lock(LockLevel::Shared).unwrap();
    commit(&mut writer, 2);
    newer.lock(LockLevel::Shared).unwrap();
    disk.remove(Path::new(LOG)).unwrap();
    let error = try_commit(&mut writer, 3).unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error}");
    assert_eq!(read(&mut older).unwrap(), 1);
    older.unlock(LockLevel::None).unwrap();
    commit(&mut writer, 3);
    for n in 4..9 {
        assert_eq!(read(&mut newer).unwrap(), 2);
        commit(&mut writer, n);
        writer.pragma("checkpoint", None).unwrap().unwrap();
    }
    assert_eq!(read(&mut newer).unwrap(), 2);
    newer.unlock(LockLevel::None).unwrap();
    assert_eq!(newest(&mut newer).unwrap(), 8);
    [writer, older, newer].into_iter().for_each(|c| c.close().unwrap());
    assert_eq!(number(&disk), 8);
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn without_a_new_log_commits_are_errors_and_nothing_is_lost() {
    let disk = disk();
    let mut c = open(&disk);
    commit(&mut c, 1);
    commit(&mut c, 2);
    disk.remove(Path::new(LOG)).unwrap();
    for _ in 0..2 {
        disk.fail_nth(Op::Create, 1, ErrorKind::PermissionDenied);
        let error = try_commit(&mut c, 3).unwrap_err().to_string();
        assert!(error.contains("/db-onewrite") && error.contains("no longer there"), "{error}");
        assert!(error.contains("no new one can be made"), "{error}");
    }
    let home = disk.snapshot_file(Path::new(DB)).unwrap();
    assert!(home[PAGE..2 * PAGE] == page(2), "everything is at home");
    assert_eq!(newest(&mut c).unwrap(), 2);
    commit(&mut c, 3);
    assert_eq!(newest(&mut open(&disk.survive())).unwrap(), 3);
    disk.remove(Path::new(LOG)).unwrap();
    disk.fail_nth(Op::Create, 1, ErrorKind::PermissionDenied);
    try_commit(&mut c, 4).unwrap_err();
    c.close().unwrap();
    assert_eq!(number(&disk), 3);
}

/// The mark would ask for a log that is gone.
#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_sticky_database_whose_log_is_lost_closes_as_a_plain_file() {
    for is_removed in [true, false] {
        let disk = disk();
        let mut c = open_with(&disk, &[("sticky", "1")]).unwrap();
        try_commit(&mut c, 1).unwrap();
        lose(&disk, is_removed).unwrap();
        c.close().unwrap();
        assert_eq!(number(&disk), 1);
        let mut c = open_with(&disk, &[("sticky", "1")]).unwrap();
        try_commit(&mut c, 2).unwrap();
        c.close().unwrap();
        assert_eq!(newest(&mut open(&disk)).unwrap(), 2);
    }
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn schemes_that_make_no_new_log_bring_everything_home() {
    for given in [("concurrent", "1"), ("scheme", "dash")] {
        let disk = disk();
        let mut c = open_with(&disk, &[given]).unwrap();
        commit(&mut c, 1);
        commit(&mut c, 2);
        disk.remove(Path::new(LOG)).unwrap();
        let error = try_commit(&mut c, 3).unwrap_err().to_string();
        assert!(error.contains("/db-onewrite") && error.contains("Close every connection"), "{error}");
        assert!(disk.snapshot_file(Path::new(DB)).unwrap()[PAGE..2 * PAGE] == page(2), "everything is at home");
        assert_eq!(newest(&mut c).unwrap(), 2);
        c.close().unwrap();
        assert_eq!(number(&disk), 2, "{given:?}");
    }
}

fn history(disk: &SimDisk, is_removed: bool, acknowledged: &mut u64, is_lost: &mut bool) -> Result<()> {
    let (mut one, mut other) = (open_with(disk, &[])?, open_with(disk, &[])?);
    for n in 1..=6 {
        if n == 3 {
            *is_lost = true;
            if lose(disk, is_removed).is_err() {
                return Ok(());
            }
        }
        try_commit(if n % 2 == 0 { &mut other } else { &mut one }, n)?;
        *acknowledged = n;
        *is_lost = false;
    }
    one.close()?;
    other.close()
}

/// Except before the new log's first slot: the lost log's content may be gone.
#[test]
fn power_cuts_while_a_new_log_is_made_lose_nothing() {
    for is_removed in [true, false] {
        let whole = disk();
        history(&whole, is_removed, &mut 0, &mut false).unwrap();
        let ops = whole.ops();
        let mut given_up = 0;
        for stop in 0..ops {
            for seed in 0..8 {
                let first = disk();
                let (mut n, mut is_lost) = (0, false);
                first.stop_after(stop);
                let _ = history(&first, is_removed, &mut n, &mut is_lost);
                let crashed = first.crash(seed);
                let case = format!("operation {stop} of {ops}, seed {seed}, {n}, {:?}", names(&crashed));
                let mut c = open(&crashed);
                match newest(&mut c) {
                    Ok(found) => assert!(found == n || found == n + 1, "{case}: {found}"),
                    Err(e) => {
                        let is_told = matches!(e, Error::CantOpen(_) | Error::Corrupt(_))
                            && e.to_string().contains("without-log");
                        assert!(is_lost && is_told, "{case}: {e}");
                        drop(c);
                        let repair = Repair::open(Arc::new(crashed.clone()), Path::new(DB), OpenMode::ReadWrite);
                        repair.unwrap().unmark().unwrap();
                        let found = newest(&mut open(&crashed)).unwrap();
                        assert!(found <= n, "{case}: {found}");
                        given_up += u64::from(found == n);
                        c = open(&crashed);
                    }
                }
                let found = newest(&mut c).unwrap();
                commit(&mut c, found + 1);
                assert_eq!(newest(&mut open(&crashed.survive())).unwrap(), found + 1, "{case}");
                c.close().unwrap();
                assert_eq!(number(&crashed), found + 1, "{case}");
            }
        }
        assert!(given_up > 0, "the steps between the last flush of home and the new slot");
    }
}

#[test]
fn another_process_goes_on_where_one_died_that_made_the_log() {
    let run = |stop: Option<usize>| {
        let disk = disk();
        let mut other = open(&disk);
        commit(&mut other, 1);
        let process = Hooked::new(&disk);
        let options = [("busy_ms".to_owned(), "0".to_owned())];
        let mut one =
            Engine::new(Arc::new(process.clone())).open(Path::new(DB), OpenMode::ReadWrite, &options).unwrap();
        commit(&mut one, 2);
        assert_eq!(newest(&mut other).unwrap(), 2);
        disk.remove(Path::new(LOG)).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        for path in [DB, LOG] {
            let (calls, process) = (calls.clone(), process.clone());
            process.clone().at(path, move |_| {
                if Some(calls.fetch_add(1, Ordering::Relaxed)) == stop {
                    process.die();
                }
            });
        }
        let done = catch_unwind(AssertUnwindSafe(|| try_commit(&mut one, 3)));
        assert!(stop.is_some() || matches!(done, Ok(Ok(()))), "{done:?}");
        let calls = calls.load(Ordering::Relaxed);
        [DB, LOG].into_iter().for_each(|path| process.leave(path));
        match done {
            Ok(_) => one.close().unwrap(),
            Err(_) => std::mem::forget(one),
        }
        let found = newest(&mut other).unwrap_or_else(|e| panic!("{stop:?}: {e}"));
        assert!(found == 3 || (found == 2 && done.is_err()), "{stop:?}: {found}");
        commit(&mut other, 4);
        assert_eq!(newest(&mut other).unwrap(), 4);
        assert_eq!(newest(&mut open(&disk.survive())).unwrap(), 4, "{stop:?}");
        other.close().unwrap();
        assert_eq!(number(&disk), 4, "{stop:?}");
        calls
    };
    let calls = run(None);
    assert!(calls > 20, "{calls}");
    for stop in 0..calls {
        run(Some(stop));
    }
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_database_that_is_overwritten_is_left_alone() {
    for (checkpoints, older) in [(false, false), (true, false), (false, true), (true, true)] {
        let disk = disk();
        let [mut c, mut other] = [(); 2].map(|()| open(&disk));
        commit(&mut c, 1);
        let copied = disk.snapshot_file(Path::new(DB)).unwrap();
        c.pragma("checkpoint", None).unwrap().unwrap();
        commit(&mut other, 2);
        let new = if older { copied } else { plain(50) };
        disk.open(Path::new(DB), OpenMode::ReadWrite).unwrap().write_at(&new, 0).unwrap();
        let error = match checkpoints {
            true => c.pragma("checkpoint", None).unwrap().unwrap_err().to_string(),
            false => try_commit(&mut c, 3).unwrap_err().to_string(),
        };
        assert!(error.contains("/db") && error.contains("overwritten"), "{error}");
        for c in [&mut c, &mut other] {
            let error = newest(c).unwrap_err().to_string();
            assert!(error.contains("overwritten"), "{error}");
        }
        let _ = (c.close(), other.close());
        assert!(disk.snapshot_file(Path::new(DB)).unwrap() == new);
        match newest(&mut open(&disk)) {
            Ok(n) => assert!(n == 50 && !older, "{n}"),
            Err(e) => assert!(older && e.to_string().contains("older"), "{e}"),
        }
    }
}

#[test]
fn an_overwritten_database_is_not_unmarked() {
    let disk = disk();
    let mut c = open(&disk);
    commit(&mut c, 1);
    let new = plain(50);
    disk.open(Path::new(DB), OpenMode::ReadWrite).unwrap().write_at(&new, 0).unwrap();
    let error = c.close().unwrap_err().to_string();
    assert!(error.contains("overwritten"), "{error}");
    assert!(disk.snapshot_file(Path::new(DB)).unwrap() == new);
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_database_that_is_moved_away_says_so() {
    let disk = disk();
    let mut c = open(&disk);
    commit(&mut c, 1);
    let away = Path::new("/away/db");
    disk.rename(Path::new(DB), away).unwrap();
    for _ in 0..2 {
        let error = try_commit(&mut c, 2).unwrap_err();
        assert!(matches!(error, Error::Moved(_)), "{error}");
        assert!(error.to_string().contains("another directory") && error.to_string().contains(LOG), "{error}");
    }
    assert!(disk.snapshot_file(away).unwrap()[PAGE..2 * PAGE] == page(1), "everything is at home");
    disk.rename(away, Path::new(DB)).unwrap();
    commit(&mut c, 2);
    disk.rename(Path::new(DB), away).unwrap();
    c.close().unwrap();
    let home = disk.snapshot_file(away).unwrap();
    assert!(home[19] == 1 && home[PAGE..2 * PAGE] == page(2), "a plain file");
}

/// A process looks at the files once a second, and a removed log vanishes with it: so a commit
/// looks.
#[cfg_attr(windows, ignore = "Wine keeps a removed name until the last handle is closed")]
#[test]
fn a_removed_log_gets_no_commit() {
    let dir = tempfile::tempdir().unwrap();
    let pair = Pair::at(dir.path());
    std::fs::write(&pair.home, plain(0)).unwrap();
    let open = |home: &Path, given: &[(String, String)]| engine().open(home, OpenMode::ReadWrite, given).unwrap();
    let left = || {
        let killed = pair.copy();
        newest(&mut open(&killed.home, &[])).unwrap()
    };
    // In a burst of commits one each millisecond asks.
    let pause = || std::thread::sleep(std::time::Duration::from_millis(5));
    let mut c = open(&pair.home, &[]);
    commit(&mut c, 1);
    std::fs::remove_file(pair.log()).unwrap();
    pause();
    commit(&mut c, 2);
    assert_eq!(left(), 2, "removed between two transactions");
    pause();
    common::try_write(&mut c, [(1, page(3))].into_iter().inspect(|_| std::fs::remove_file(pair.log()).unwrap()))
        .unwrap();
    assert_eq!(left(), 3, "removed within a transaction");
    c.close().unwrap();

    let mut c = open(&pair.home, &[("stream_size".to_owned(), "64k".to_owned())]);
    let pages = |byte| (0..100).map(move |n| (n, common::filled(n, 100, byte)));
    common::try_write(&mut c, pages(1)).unwrap();
    pause();
    let lose = |(n, _): &(u64, _)| {
        if *n == 99 {
            std::fs::remove_file(pair.log()).unwrap()
        }
    };
    let refused = common::try_write(&mut c, pages(2).inspect(lose)).unwrap_err();
    // Its ROLLBACK fails alike: only behind an I/O error SQLite drops its cache.
    assert!(matches!(&refused, Error::Io { .. }) && refused.to_string().contains("was removed"), "{refused}");
    c.unlock(LockLevel::None).unwrap();
    common::try_write(&mut c, pages(3)).unwrap();
    let killed = pair.copy();
    assert!(std::fs::metadata(killed.log()).unwrap().len() > 0);
    common::lock(&killed.home).unwrap();
    assert_eq!(std::fs::read(&killed.home).unwrap()[99 * PAGE..], common::filled(99, 100, 3));
}
