//! A log is small at first and beside a closed database, and grows under many writes (rule
//! SlotBeforeReuse).

use crate::common;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::{PAGE, plain};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::inspect::{LogFile, Slot};
use onewrite_core::{Connection, Engine, LockLevel, Result};

const HOME: &str = "/db";
const LOG: &str = "/db-onewrite";
const SMALL: usize = 64 << 10;
const HEAD: usize = 3 * PAGE;
const PAGES: u64 = 12;

fn try_open(disk: &SimDisk, options: &[(&str, &str)]) -> Result<Connection> {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options)
}

fn open(disk: &SimDisk, options: &[(&str, &str)]) -> Connection {
    try_open(disk, options).unwrap()
}

fn database(capacity: Option<u64>) -> SimDisk {
    let disk = SimDisk::new(
        capacity.map_or_else(SimConfig::default, |capacity| SimConfig { capacity, ..SimConfig::default() }),
    );
    let mut bytes = plain(0);
    bytes[28..32].copy_from_slice(&u32::try_from(PAGES).unwrap().to_be_bytes());
    bytes.resize(PAGES as usize * PAGE, 0);
    disk.put_file(Path::new(HOME), &bytes);
    disk
}

fn image(n: u64) -> Vec<u8> {
    (0..PAGE as u64).map(|at| (n.wrapping_mul(31) + at * 7 + 1) as u8).collect()
}

fn try_write(c: &mut Connection, n: u64, count: u64) -> Result<()> {
    common::try_write(c, (1..=count).map(|index| (index, image(n))))
}

fn write(c: &mut Connection, n: u64, count: u64) {
    try_write(c, n, count).unwrap();
}

fn read(c: &mut Connection, index: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    c.lock(LockLevel::Shared).unwrap();
    c.read_at(&mut page, index * PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    page
}

fn log_bytes(disk: &SimDisk) -> usize {
    disk.snapshot_file(Path::new(LOG)).map_or(0, |log| log.len())
}

fn slots(disk: &SimDisk) -> Vec<Slot> {
    LogFile::open(disk, Path::new(LOG), OpenMode::ReadOnly).unwrap().unwrap().slots().unwrap()
}

fn assert_closed(disk: &SimDisk, case: &str) {
    let bytes = disk.snapshot_file(Path::new(LOG)).unwrap();
    assert_eq!(bytes.len(), SMALL, "{case}");
    assert!(!slots(disk)[0].live, "{case}");
}

fn home_page(disk: &SimDisk, index: usize) -> Vec<u8> {
    disk.snapshot_file(Path::new(HOME)).unwrap()[index * PAGE..][..PAGE].to_vec()
}

#[test]
fn it_is_small_at_first_and_small_again() {
    for scheme in ["log", "wal-opt"] {
        let disk = database(None);
        for _ in 0..2 {
            let mut c = open(&disk, &[("scheme", scheme), ("log_size", "256k")]);
            write(&mut c, 1, 1);
            assert_eq!(log_bytes(&disk), SMALL, "{scheme}");
            let mut lengths = vec![SMALL];
            for n in 2..80 {
                write(&mut c, n, 3);
                lengths.push(log_bytes(&disk));
            }
            lengths.dedup();
            assert_eq!(lengths, [52 << 10, 104 << 10, 208 << 10, 256 << 10].map(|ring| HEAD + ring), "{scheme}");
            c.close().unwrap();
            assert_closed(&disk, scheme);
            assert_eq!(slots(&disk).len(), 2);
            assert!(home_page(&disk, 3) == image(79));
        }
    }
}

#[test]
fn it_stays_short_where_checkpoints_cost_little() {
    let disk = database(None);
    let mut c = open(&disk, &[]);
    for n in 1..20_000u64 {
        let mut page = image(1);
        page[100..108].copy_from_slice(&n.to_le_bytes());
        common::write(&mut c, &[(1, page)]);
    }
    let bytes = log_bytes(&disk);
    assert!(bytes > SMALL && bytes <= 512 << 10, "{bytes}");
    c.close().unwrap();
    assert_closed(&disk, "closed");
}

#[test]
fn a_transaction_that_does_not_fit_makes_it_as_long_as_it_needs() {
    let disk = database(None);
    let mut c = open(&disk, &[("log_size", "256k")]);
    let whole: Vec<(u64, Vec<u8>)> = (PAGES..PAGES + 20).map(|index| (index, image(index))).collect();
    let mut first = disk.snapshot_file(Path::new(HOME)).unwrap()[..PAGE].to_vec();
    first[28..32].copy_from_slice(&u32::try_from(PAGES + 20).unwrap().to_be_bytes());
    common::write(&mut c, &[&[(0, first)], whole.as_slice()].concat());
    assert_eq!(log_bytes(&disk), HEAD + (104 << 10));
    let crashed = disk.crash_by(&mut |_| 0);
    std::mem::forget(c);
    let mut c = open(&crashed, &[]);
    assert!(read(&mut c, PAGES + 19) == image(PAGES + 19));
    c.close().unwrap();
    assert_closed(&crashed, "closed");
}

#[test]
fn where_the_disk_is_full_it_stays_as_it_is() {
    let room = (PAGES as usize * PAGE + SMALL + (60 << 10)) as u64;
    let disk = database(Some(room));
    let mut c = open(&disk, &[]);
    for n in 1..100 {
        write(&mut c, n, 3);
        assert!(log_bytes(&disk) <= HEAD + (104 << 10));
    }
    disk.set_capacity(room - (50 << 10));
    c.close().unwrap();
    let disk = disk.survive();
    disk.set_capacity((PAGES as usize * PAGE + SMALL) as u64);
    let mut c = open(&disk, &[]);
    for n in 100..200 {
        write(&mut c, n, 3);
        assert_eq!(log_bytes(&disk), SMALL);
    }
    c.close().unwrap();
    assert!(home_page(&disk, 3) == image(199));
    assert_closed(&disk, "full");
}

#[test]
fn a_failure_while_it_grows_poisons() {
    for (op, times) in [(Op::Write, 1), (Op::Sync, 1), (Op::Reserve, 1), (Op::WriteDurable, 2)] {
        for nth in 1..=times {
            let case = format!("{op:?} {nth}");
            let disk = database(None);
            let mut c = open(&disk, &[]);
            (1..5).for_each(|n| write(&mut c, n, 3));
            assert_eq!(log_bytes(&disk), SMALL);
            disk.fail_nth(op, nth, ErrorKind::Other);
            assert!(try_write(&mut c, 5, 3).is_err(), "{case}");
            assert!(try_write(&mut c, 6, 1).is_err(), "{case}");
            drop(c);
            let after = disk.survive();
            let mut c = open(&after, &[]);
            assert!(read(&mut c, 1) == image(4), "{case}");
            c.close().unwrap();
            assert_closed(&after, &case);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Growing {
    /// First lap: they stay.
    Full,
    Wrapped,
    /// As `Wrapped`.
    Followed,
}

#[test]
fn a_power_cut_anywhere() {
    for growing in [Growing::Full, Growing::Wrapped, Growing::Followed] {
        cut_anywhere(growing);
    }
}

fn cut_anywhere(growing: Growing) {
    let session = |disk: &SimDisk, from: u64, done: &mut u64| -> Result<()> {
        let mut c = try_open(disk, &[("log_size", "256k")])?;
        for n in from..from + 12 {
            if n == from + 2 && growing == Growing::Wrapped {
                c.checkpoint()?;
            }
            try_write(&mut c, n, 3)?;
            *done = n;
            if n == from && growing == Growing::Followed {
                let mut other = try_open(disk, &[("log_size", "256k")])?;
                other.lock(LockLevel::Shared)?;
                other.unlock(LockLevel::None)?;
                std::mem::forget(other);
            }
        }
        c.close()
    };
    let run = |disk: &SimDisk| {
        let mut done = 0;
        let _ = session(disk, 1, &mut done).and_then(|()| session(disk, 13, &mut done));
        done
    };
    let whole = database(None);
    assert_eq!(run(&whole), 24);
    let mut longest = 0;
    for stop in 0..whole.ops() {
        let disk = database(None);
        disk.stop_after(stop);
        let done = run(&disk);
        for seed in 0..12 {
            let case = format!("{growing:?}, operation {stop}, seed {seed}, {done} acknowledged");
            let after = match seed {
                0 => disk.crash_by(&mut |_| 0),
                1 => disk.crash_by(&mut |choices| choices - 1),
                _ => disk.crash(seed),
            };
            longest = longest.max(after.snapshot_file(Path::new(LOG)).map_or(0, |log| log.len()));
            let mut c = try_open(&after, &[]).unwrap_or_else(|e| panic!("{case}: {e}"));
            c.lock(LockLevel::Shared).unwrap_or_else(|e| panic!("{case}: {e}"));
            c.unlock(LockLevel::None).unwrap();
            let got: Vec<_> = (1..4).map(|index| read(&mut c, index)).collect();
            let is = |n: u64| got.iter().all(|page| *page == if n == 0 { vec![0; PAGE] } else { image(n) });
            let is_before_all = done == 0 && got[1].iter().all(|byte| *byte == 0);
            assert!(is(done) || is(done + 1) || is_before_all, "{case}");
            write(&mut c, 77, 3);
            c.close().unwrap();
            assert_closed(&after, &case);
            assert!(home_page(&after, 2) == image(77), "{case}");
        }
    }
    assert!(longest >= HEAD + (104 << 10), "no crash left a long log: {longest}");
}

/// Rule SlotBeforeReuse.
#[test]
fn either_slot_leads_to_the_records_of_a_longer_ring() {
    for count in 4..40 {
        let disk = database(None);
        let mut c = open(&disk, &[("log_size", "256k")]);
        let mut length = 0;
        for n in 1..=count {
            length = log_bytes(&disk);
            write(&mut c, n, 3);
        }
        std::mem::forget(c);
        let has_grown = log_bytes(&disk) > length && length > 0;
        for slot in [1, 2] {
            let after = disk.crash(0);
            after.flip_bit(Path::new(LOG), slot * PAGE as u64 + 40, 3);
            let case = format!("{count} transactions, slot {slot}, grown: {has_grown}");
            match try_open(&after, &[]).and_then(|mut c| c.lock(LockLevel::Shared).map(|()| c)) {
                Ok(mut c) => {
                    c.unlock(LockLevel::None).unwrap();
                    assert!(read(&mut c, 1) == image(count), "{case}");
                    c.close().unwrap();
                }
                Err(e) => assert!(!has_grown, "{case}: {e}"),
            }
        }
    }
}

#[test]
fn another_process_follows_a_log_that_grows() {
    for every in [1, 2, 5, 9] {
        let disk = database(None);
        let mut c = open(&disk, &[("log_size", "300k")]);
        write(&mut c, 1, 3);
        let mut other = open(&disk, &[("log_size", "300k")]);
        for n in 2..100 {
            if n % 7 == 0 {
                write(&mut other, n, 3)
            } else {
                write(&mut c, n, 3)
            }
            if n % every == 0 {
                assert!(read(&mut other, 3) == image(n), "{every}, {n}");
                assert!(read(&mut c, 2) == image(n), "{every}, {n}");
            }
        }
        assert!(log_bytes(&disk) > HEAD + (290 << 10));
        c.close().unwrap();
        assert!(log_bytes(&disk) > SMALL, "the other one uses it");
        write(&mut other, 100, 3);
        other.close().unwrap();
        assert_closed(&disk, "closed");
        assert!(home_page(&disk, 1) == image(100));
    }
}

#[test]
fn flushes() {
    let disk = database(None);
    let mut n = 0;
    let mut cost = |many: u64| {
        disk.reset_counters();
        let mut c = open(&disk, &[]);
        for _ in 0..many {
            n += 1;
            write(&mut c, n, 3);
        }
        let before_close = disk.counters().flushes();
        c.close().unwrap();
        (disk.counters().flushes(), disk.counters().flushes() - before_close)
    };
    let made = cost(1);
    assert_eq!(cost(1), (2, 1));
    let grown = cost(40);
    assert_eq!(cost(1), (3, 1), "all of the ring proves that it has ended");
    assert_eq!(cost(1), (2, 1));
    assert_eq!((made.0, grown.1), (5, 2), "to make the log, and to give it back");
}

#[test]
fn a_mark_that_may_be_on_the_disk_keeps_the_log() {
    let (mut failed, mut grown) = (0, 0);
    for nth in 1..20 {
        let disk = database(None);
        let mut c = open(&disk, &[]);
        for n in 1..=40 {
            try_write(&mut c, n, 11).unwrap();
        }
        grown += usize::from(disk.snapshot_file(Path::new(LOG)).unwrap().len() > SMALL);
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        c.write_at(&image(41), PAGE as u64).unwrap();
        disk.fail_nth(Op::Sync, nth, ErrorKind::Other);
        if c.prepare(Some(Path::new("/another-mj"))).is_ok() || disk.snapshot_file(Path::new("/db-journal")).is_some() {
            break;
        }
        failed += 1;
        std::mem::forget(c);
        for seed in 0..16 {
            let cut = disk.crash(seed);
            let mut c = open(&cut, &[]);
            c.lock(LockLevel::Shared).unwrap_or_else(|e| panic!("flush {nth}, seed {seed}: {e}"));
            let mut page = vec![0; PAGE];
            c.read_at(&mut page, PAGE as u64).unwrap();
            assert!(page == image(40), "flush {nth}, seed {seed}");
        }
    }
    assert!(failed > 1 && grown > failed, "{failed} {grown}");
}

#[test]
fn a_full_ring_becomes_longer_with_its_records() {
    let disk = database(None);
    let mut c = open(&disk, &[("log_size", "256k")]);
    let before = home_page(&disk, 3);
    let mut n = 0;
    while log_bytes(&disk) < HEAD + (256 << 10) {
        n += 1;
        write(&mut c, n, 3);
        assert!(home_page(&disk, 3) == before, "{n} transactions");
    }
    std::mem::forget(c);
    for seed in 0..8 {
        let after = disk.crash(seed);
        let mut c = open(&after, &[]);
        assert!(read(&mut c, 3) == image(n), "seed {seed}");
        c.close().unwrap();
    }
}
