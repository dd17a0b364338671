//! Recovery crashes after each of its operations on the disk, and is run again (invariants I1, I8).

use crate::common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use common::{PAGE, filled, page, plain, try_write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::{LogFile, log_path};
use onewrite_core::{Connection, Engine, Error, LockLevel, Result};

const HOME: &str = "/db";

fn recover(disk: &SimDisk) -> Result<()> {
    let mut c = Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &[])?;
    c.lock(LockLevel::Shared)?;
    c.unlock(LockLevel::None)?;
    c.close()
}

/// The last transaction writes all `pages` of a database that had `old`.
fn crashed(old: u64, pages: u64) -> SimDisk {
    let disk = SimDisk::new(SimConfig::default());
    let mut bytes = plain(0);
    bytes[31] = old as u8;
    bytes.extend((3..old).flat_map(page));
    disk.put_file(Path::new(HOME), &bytes);
    let options = [("stream_size", "65536"), ("log_size", "262144")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let engine = Engine::new(Arc::new(disk.clone()));
    let mut c = engine.open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap();
    for n in 1..=3 {
        common::commit(&mut c, n);
    }
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    let mut first = plain(0);
    first.truncate(PAGE);
    first[28..32].copy_from_slice(&u32::try_from(pages).unwrap().to_be_bytes());
    c.write_at(&first, 0).unwrap();
    for n in 1..pages {
        c.write_at(&page(100 + n), n * PAGE as u64).unwrap();
    }
    c.prepare(None).unwrap();
    c.sync().unwrap();
    // The cut is between the commit's flush and the checkpoint of a big transaction.
    disk.stop_after(if pages > 16 { 2 } else { 1 });
    let _ = c.commit();
    std::mem::forget(c);
    disk.crash(0)
}

fn assert_whole(disk: &SimDisk, pages: u64, case: &str) {
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert_eq!(home.len(), pages as usize * PAGE, "{case}");
    assert_eq!(home[19], 1, "{case}: the mark is off");
    for n in 1..pages {
        let at = n as usize * PAGE;
        assert!(home[at..at + PAGE] == page(100 + n), "{case}: page {}", n + 1);
    }
}

#[test]
fn recovery_crashes_anywhere_and_finishes_the_next_time() {
    // A big one streams home where pages are added, and behind the ring where there were some.
    for (old, pages) in [(3, 8), (3, 60), (60, 60), (30, 60)] {
        let crashed = crashed(old, pages);
        let whole = crashed.crash(0);
        recover(&whole).unwrap();
        assert_whole(&whole, pages, "without a crash");
        let ops = whole.ops();
        assert!(ops > 8, "{ops}");
        for stop in 0..ops {
            for seed in 0..12 {
                let first = crashed.crash(0);
                first.stop_after(stop);
                let _ = recover(&first);
                let again = first.crash(seed);
                let case = format!("{old} and {pages} pages, operation {stop} of {ops}, seed {seed}");
                recover(&again).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_whole(&again, pages, &case);
            }
        }
    }
}

fn open(disk: &SimDisk, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
}

fn newest(c: &mut Connection) -> u64 {
    let mut seen = vec![0; PAGE];
    c.lock(LockLevel::Shared).unwrap();
    c.read_at(&mut seen, PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    let n = u64::from_le_bytes(seen[200..208].try_into().unwrap());
    assert!(seen == page(n), "a torn page");
    n
}

fn killed(count: u64, options: &[(&str, &str)]) -> SimDisk {
    let (disk, c) = used(count, options);
    std::mem::forget(c);
    disk.survive()
}

fn used(count: u64, options: &[(&str, &str)]) -> (SimDisk, Connection) {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(HOME), &plain(0));
    let mut c = open(&disk, options);
    (1..=count).for_each(|n| common::commit(&mut c, n));
    (disk, c)
}

/// Records stay: one flush, of the log, or none after a kill.
#[test]
fn the_first_row_takes_one_flush_or_none() {
    let disk = killed(5, &[]);
    first_row(&disk.survive(), 0);
    first_row(&disk.crash(0), 1);
    let again = disk.survive();
    let mut c = open(&again, &[]);
    assert_eq!(newest(&mut c), 5);
    std::mem::forget(c);
    first_row(&again.survive(), 0);
}

fn first_row(disk: &SimDisk, flushes: u64) {
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    disk.reset_counters();
    let mut c = open(disk, &[]);
    assert_eq!(newest(&mut c), 5);
    assert_eq!((disk.counters().flushes(), disk.counters_of("-onewrite").flushes()), (flushes, flushes));
    assert!(disk.snapshot_file(Path::new(HOME)).unwrap() == home, "home is as it was");
    let costs: Vec<_> = (6..9)
        .map(|n| {
            disk.reset_counters();
            common::commit(&mut c, n);
            disk.counters().flushes()
        })
        .collect();
    // Names, if the system was restarted since their flush; home; the record.
    assert_eq!(costs, [2 + flushes, 1, 1]);
    c.close().unwrap();
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert!(home.len() == 3 * PAGE && home[19] == 1 && home[PAGE..2 * PAGE] == page(8));
}

fn flushes(disk: &SimDisk) -> u64 {
    disk.reset_counters();
    let mut c = open(disk, &[]);
    assert_eq!(newest(&mut c), 5);
    let flushes = disk.counters().flushes();
    std::mem::forget(c);
    flushes
}

/// Rule FlushedStays.
#[test]
fn records_that_the_words_do_not_cover_are_flushed() {
    let killed = killed(5, &[]);
    assert_eq!(flushes(&killed.survive()), 0);
    // Poison, generation, start, file, flushed, written, flusher, commits that wait for a store.
    for word in [3, 4, 11, 12, 25, AT_WRITTEN, 28, 40] {
        for change in [1, u64::MAX] {
            let disk = killed.survive();
            let words = disk.open(&log(), OpenMode::ReadWrite).unwrap().shared_words(1).unwrap();
            words.longs[word].fetch_add(change, Relaxed);
            assert_eq!(flushes(&disk), 1, "word {word}");
        }
    }
    let disk = killed.survive();
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    disk.remove(Path::new(HOME)).unwrap();
    disk.put_file(Path::new(HOME), &home);
    assert_eq!(flushes(&disk), 1);
    let (disk, mut c) = used(4, &[]);
    commit_unflushed(&mut c, 5);
    std::mem::forget(c);
    assert_eq!(flushes(&disk.survive()), 1);
}

#[test]
fn a_record_that_was_begun_is_not_left() {
    let disk = killed(5, &[]);
    let file = disk.open(&log(), OpenMode::ReadWrite).unwrap();
    let read = LogFile::open(&disk, &log(), OpenMode::ReadOnly).unwrap().unwrap();
    let slot = read.slots().unwrap().remove(0);
    let end = read.scan(&slot, |_| Ok(())).unwrap();
    for at in [end.tail.0, end.tail.0.next_multiple_of(4096), slot.ring_bytes] {
        for tid in [end.last_tid.0, end.last_tid.0 + 1] {
            let head = [slot.salt.to_le_bytes(), tid.to_le_bytes()].concat();
            let offset = 3 * 4096 + at % slot.ring_bytes;
            let mut before = [0; 16];
            file.read_at(&mut before, offset).unwrap();
            file.write_at(&head, offset).unwrap();
            if at != slot.ring_bytes {
                assert_eq!(flushes(&disk.survive()), u64::from(tid > end.last_tid.0), "at {at}");
            }
            file.write_at(&before, offset).unwrap();
        }
    }
    assert_eq!(flushes(&disk.survive()), 0);
}

/// A repeated transaction's same bytes must not join the record behind it (rule FlushedStays).
#[test]
fn a_record_that_a_medium_has_left_behind_stays_lost() {
    let options = [("psow", "0")];
    let (disk, mut c) = used(3, &options);
    c.note_synchronous("normal");
    let words = || disk.open(&log(), OpenMode::ReadWrite).unwrap().shared_words(1).unwrap();
    let told = words().copy();
    (4..=5).for_each(|n| commit_unflushed(&mut c, n));
    std::mem::forget(c);
    let mut found = [0; 6];
    for (choices, after) in disk.crashes() {
        let words = after.open(&log(), OpenMode::ReadWrite).unwrap().shared_words(1).unwrap();
        words.longs.iter().zip(&told.longs).for_each(|(word, told)| word.store(told.load(Relaxed), Relaxed));
        words.longs[11].store(after.system_start().unwrap(), Relaxed);
        after.reset_counters();
        let mut c = open(&after, &options);
        let newest_found = newest(&mut c);
        assert_eq!(after.counters().flushes(), u64::from(newest_found != 3), "{choices:?}");
        found[newest_found as usize] += 1;
        for n in newest_found + 1..=4 {
            commit_unflushed(&mut c, n);
            assert_eq!(newest(&mut c), n);
        }
        std::mem::forget(c);
        assert_eq!(newest(&mut open(&after.survive(), &options)), newest_found.max(4), "{choices:?}");
    }
    assert!(found[3] > 1 && found[5] > 0, "{found:?}");
}

const AT_WRITTEN: usize = 26;

fn damaged_behind_end(damaged: u64, told: u64) -> SimDisk {
    let disk = killed(5, &[]);
    let log = disk.open(Path::new("/db-onewrite"), OpenMode::ReadWrite).unwrap();
    let number = |at: u64, bytes: usize| {
        let mut b = [0; 8];
        assert_eq!(log.read_at(&mut b[..bytes], at).unwrap(), bytes);
        u64::from_le_bytes(b)
    };
    let mut at = 3 * 4096;
    let tids: Vec<u64> = (1..=5)
        .map(|n| {
            let tid = number(at + 8, 8);
            if n == damaged {
                log.write_at(&[!(number(at + 60, 1) as u8)], at + 60).unwrap();
            }
            at += number(at + 28, 4);
            tid
        })
        .collect();
    let words = log.shared_words(1).unwrap();
    assert_eq!(words.longs[AT_WRITTEN].load(Relaxed), tids[4], "each commit is told");
    words.longs[AT_WRITTEN].store(tids[told as usize - 1], Relaxed);
    log.sync().unwrap();
    disk
}

fn read_of_log(disk: &SimDisk) -> u64 {
    disk.reset_counters();
    let mut c = open(disk, &[]);
    newest(&mut c);
    let read = disk.counters_of("-onewrite").bytes_read;
    std::mem::forget(c);
    read
}

/// Rule EndTold.
#[test]
fn the_rest_of_the_ring_is_not_read_where_the_end_is_told() {
    const RING: u64 = 52 << 10;
    let disk = killed(5, &[]);
    assert!(read_of_log(&disk.survive()) < RING / 2);
    assert!(read_of_log(&disk.crash(0)) > RING, "the system was started since");
    let words = disk.open(Path::new("/db-onewrite"), OpenMode::ReadWrite).unwrap().shared_words(1).unwrap();
    words.longs[AT_WRITTEN].fetch_add(1, Relaxed);
    assert!(read_of_log(&disk.survive()) > RING, "one more was written, and may be damaged");
}

#[test]
fn a_short_read_ends_no_log() {
    for (nth, len, cut) in (1..30).flat_map(|nth| [(nth, 1, false), (nth, 600, false), (nth, 600, true)]) {
        let killed = killed(5, &[]);
        let disk = if cut { killed.crash(0) } else { killed };
        disk.shorten_nth_read(nth, len);
        assert_eq!(newest(&mut open(&disk, &[])), 5, "read {nth} gives {len} bytes");
    }
}

#[test]
fn damage_that_words_do_not_hide() {
    for (damaged, told, starts) in [(3, 5, false), (3, 5, true), (3, 3, false), (3, 2, true), (1, 2, false)] {
        let disk = damaged_behind_end(damaged, told);
        let disk = if starts { disk.crash(0) } else { disk.survive() };
        let mut c = open(&disk, &[]);
        let refused = c.lock(LockLevel::Shared).unwrap_err();
        let case = format!("{damaged} is damaged, {told} told, {starts}: {refused}");
        assert!(matches!(refused, Error::Corrupt(_)), "{case}");
    }
}

#[test]
fn shown_states_stay() {
    let disk = killed(5, &[]);
    let mut c = open(&disk, &[]);
    assert_eq!(newest(&mut c), 5);
    for (choices, after) in disk.crashes() {
        assert_eq!(newest(&mut open(&after, &[])), 5, "{choices:?}");
    }
    let mut joins = open(&disk, &[]);
    assert_eq!(newest(&mut joins), 5);
    common::commit(&mut joins, 6);
    assert_eq!(newest(&mut c), 6);
    std::mem::forget((c, joins));
    for (choices, after) in disk.crashes() {
        assert_eq!(newest(&mut open(&after, &[])), 6, "{choices:?}");
    }
}

/// The same, after a power cut that takes the transaction before (rule OneNumberOneState).
#[test]
fn a_record_that_a_power_cut_left_behind_stays_lost() {
    // Of two records in own blocks, one can be lost alone.
    let options = [("psow", "0")];
    let (disk, mut c) = used(3, &options);
    c.note_synchronous("normal");
    let before = disk.snapshot_file(&log()).unwrap();
    (4..=5).for_each(|n| commit_unflushed(&mut c, n));
    let whole = disk.snapshot_file(&log()).unwrap();
    let last = (0..whole.len() / PAGE).rev().find(|n| whole[n * PAGE..][..PAGE] != before[n * PAGE..][..PAGE]).unwrap();
    std::mem::forget(c);
    let mut left_behind = 0;
    for (choices, after) in disk.crashes() {
        let is_there = after.snapshot_file(&log()).unwrap()[last * PAGE..][..PAGE] == whole[last * PAGE..][..PAGE];
        let mut c = open(&after, &options);
        let found = newest(&mut c);
        left_behind += u32::from(found == 3 && is_there);
        for n in found + 1..=4 {
            commit_unflushed(&mut c, n);
            assert_eq!(newest(&mut c), n);
        }
        std::mem::forget(c);
        let again = after.survive();
        assert_eq!(newest(&mut open(&again, &options)), found.max(4), "{choices:?}");
    }
    assert!(left_behind > 0);
}

fn commit_unflushed(c: &mut Connection, n: u64) {
    c.note_synchronous("normal");
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    c.write_at(&page(n), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
}

fn log() -> PathBuf {
    onewrite_core::inspect::log_path(Path::new(HOME))
}

/// On Windows a log that another process maps is not shortened, so the session's first slot is
/// written twice, and flushed. The mark is not (rule MarkWithFirstRecord).
#[test]
fn recovery_flushes_a_mark_that_no_flushed_record_covers() {
    let disk = SimDisk::new(SimConfig { as_windows: true, ..SimConfig::default() });
    disk.put_file(Path::new(HOME), &plain(0));
    let mut c = open(&disk, &[]);
    common::commit(&mut c, 1);
    let other = disk.open(&log(), OpenMode::ReadWrite).unwrap();
    let _mapped = other.shared_words(1).unwrap();
    other.set_len(other.len().unwrap() + (16 << 10)).unwrap();
    c.close().unwrap();
    let mut c = open(&disk, &[]);
    c.note_synchronous("normal");
    try_write(&mut c, [(1, page(2)), (2, page(2))].into_iter()).unwrap();
    std::mem::forget(c);
    let before = [disk.snapshot_file(Path::new(HOME)).unwrap()[2 * PAGE..].to_vec(), page(2)];
    let whole = disk.survive();
    recover(&whole).unwrap();
    for stop in 0..whole.ops() {
        let first = disk.survive();
        first.stop_after(stop);
        let _ = recover(&first);
        for seed in 0..20 {
            let again = first.crash(seed);
            recover(&again).unwrap_or_else(|e| panic!("operation {stop}, seed {seed}: {e}"));
            let home = again.snapshot_file(Path::new(HOME)).unwrap();
            let found = [&home[PAGE..2 * PAGE], &home[2 * PAGE..3 * PAGE]];
            let is_old = found == [&page(1)[..], &before[0][..]];
            assert!(is_old || found == [&page(2)[..]; 2], "operation {stop}, seed {seed}: half of a transaction");
        }
    }
}

/// A log from before the recovery does not fit (rule OneNumberOneState).
#[test]
fn another_process_tells_of_the_recovery() {
    let (disk, before, mut recovers) = recovered();
    let mut joins = open(&disk, &[]);
    common::commit(&mut joins, 6);
    assert_eq!(newest(&mut recovers), 6);
    std::mem::forget((recovers, joins));
    fits_no_older_log(&disk, &before);
}

/// The first was killed before it told of itself.
#[test]
fn a_second_recovery_tells_of_the_first() {
    let (disk, before, recovers) = recovered();
    std::mem::forget(recovers);
    let disk = disk.survive();
    let mut again = open(&disk, &[]);
    common::commit(&mut again, 6);
    std::mem::forget(again);
    fits_no_older_log(&disk, &before);
}

/// A disk behind a power cut, the log as that left it, and a process that has recovered.
fn recovered() -> (SimDisk, Vec<u8>, Connection) {
    let disk = killed(5, &[]).crash(0);
    let before = disk.snapshot_file(&log()).unwrap();
    let mut recovers = open(&disk, &[]);
    assert_eq!(newest(&mut recovers), 5);
    (disk, before, recovers)
}

fn fits_no_older_log(disk: &SimDisk, before: &[u8]) {
    let cut = disk.crash_by(&mut |_| 0);
    cut.put_file(&log(), before);
    let error = Engine::new(Arc::new(cut.clone()))
        .open(Path::new(HOME), OpenMode::ReadWrite, &[])
        .and_then(|mut c| c.lock(LockLevel::Shared))
        .unwrap_err();
    assert!(error.to_string().contains("different moments"), "{error}");
    assert_eq!(newest(&mut open(&disk.crash_by(&mut |_| 0), &[])), 6);
}

#[test]
fn recoveries_behind_recoveries() {
    let mut disk = killed(3, &[]);
    let mut n = 3;
    for round in 0..200u64 {
        let mut c = open(&disk, &[]);
        assert_eq!(newest(&mut c), n, "round {round}");
        if round % 3 == 2 {
            n += 1;
            common::commit(&mut c, n);
        }
        std::mem::forget(c);
        disk = if round % 2 == 0 { disk.survive() } else { disk.crash(round) };
    }
    let mut c = open(&disk, &[]);
    assert_eq!(newest(&mut c), n);
    c.close().unwrap();
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert!(home[19] == 1 && home[PAGE..2 * PAGE] == page(n));
}

/// The copy is refused, or leads to the newest state (rules OneNumberOneState,
/// SlotWithFirstRecord).
#[test]
fn an_older_home_does_not_fit_a_log_that_was_closed() {
    for (commits, another) in [(0, false), (2, false), (0, true), (2, true)] {
        let disk = killed(5, &[]);
        let before = disk.snapshot_file(Path::new(HOME)).unwrap();
        let mut c = open(&disk, &[]);
        assert_eq!(newest(&mut c), 5);
        if another {
            let mut joins = open(&disk, &[]);
            assert_eq!(newest(&mut joins), 5);
            std::mem::replace(&mut c, joins).close().unwrap();
        }
        let last = 5 + commits;
        (6..=last).for_each(|n| common::commit(&mut c, n));
        c.close().unwrap();
        let mut refused = 0;
        for seed in 0..64 {
            let cut = disk.crash(seed);
            cut.put_file(Path::new(HOME), &before);
            let mut c = open(&cut, &[]);
            match c.lock(LockLevel::Shared) {
                Err(_) => refused += 1,
                Ok(()) => {
                    c.unlock(LockLevel::None).unwrap();
                    assert_eq!(newest(&mut c), last, "{commits} commits, {another}, seed {seed}");
                }
            }
        }
        assert!(refused > 0, "{commits} commits, {another}");
    }
}

/// Else nothing proves that a damaged record existed (rule DamageIsTold).
#[test]
fn a_record_beside_another_process_proves_the_records_before_it() {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(HOME), &plain(0));
    let open = || Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &[]).unwrap();
    let mut c = open();
    common::commit(&mut c, 1);
    let mut other = open();
    other.lock(LockLevel::Shared).unwrap();
    other.unlock(LockLevel::None).unwrap();
    for n in 2..=10 {
        common::commit(if n % 4 == 2 { &mut other } else { &mut c }, n);
    }
    let log = LogFile::open(&disk, &log_path(Path::new(HOME)), OpenMode::ReadOnly).unwrap().unwrap();
    let slot = log.slots().unwrap().remove(0);
    let (mut before, mut count) = (None, 0);
    let scanned = log.scan(&slot, |record| {
        let head = &record.head;
        assert!(
            before.is_none_or(|tid| head.durable_tid == tid),
            "{} calls {} durable, not {before:?}",
            head.tid,
            head.durable_tid
        );
        before = Some(head.tid);
        count += 1;
        Ok(())
    });
    assert_eq!((scanned.unwrap().rot, count), (None, 10));
}

/// The recovery writes pages of transactions that the older log lacks (rule HomeFitsLog).
#[test]
fn a_home_copied_in_a_recovery_fits_no_older_log() {
    const PAGES: u32 = 20;
    let options = [("table_size".to_owned(), "65536".to_owned())];
    let open = |disk: &SimDisk| {
        Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
    };
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(HOME), &(0..u64::from(PAGES)).flat_map(|n| filled(n, PAGES, 1)).collect::<Vec<_>>());
    let mut c = open(&disk);
    try_write(&mut c, [0, 3].map(|n| (n, filled(n, PAGES, 2))).into_iter()).unwrap();
    let older = disk.snapshot_file(&log_path(Path::new(HOME))).unwrap();
    common::try_fill(&mut c, PAGES, 3).unwrap();
    std::mem::forget(c);
    let (mut refused, mut whole) = (0, 0);
    for operations in 0.. {
        let copied = disk.survive();
        copied.stop_after(operations);
        let ended = open(&copied).lock(LockLevel::Shared).is_ok() && !copied.is_off();
        let apart = SimDisk::new(SimConfig::default());
        apart.put_file(Path::new(HOME), &copied.snapshot_file(Path::new(HOME)).unwrap());
        apart.put_file(&log_path(Path::new(HOME)), &older);
        let mut c = open(&apart);
        let mut seen = Vec::new();
        if c.lock(LockLevel::Shared).is_ok() {
            let mut image = vec![0; PAGE];
            for n in 1..u64::from(PAGES) {
                c.read_at(&mut image, n * PAGE as u64).unwrap();
                seen.push(image[200]);
            }
            let states = [vec![1, 1, 2], vec![3, 3, 3]];
            assert!(states.iter().any(|state| seen.starts_with(state)), "behind {operations} operations: {seen:?}");
            assert!(seen[3..].iter().all(|byte| *byte == seen[0]), "behind {operations} operations: {seen:?}");
            whole += 1;
        } else {
            refused += 1;
        }
        if ended {
            break;
        }
    }
    assert!(refused > 2 && whole > 0, "{refused}, {whole}");
}
