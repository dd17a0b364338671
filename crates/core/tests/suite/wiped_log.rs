//! After the last close the files beside the database contain nothing that was written (rule
//! NothingLeftBehind).

use crate::common;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::try_fill;
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::inspect::layout::SECTOR_BYTES;
use onewrite_core::inspect::{LogFile, is_wiped};
use onewrite_core::{Connection, Engine};

const HOME: &str = "/db";
const LOG: &str = "/db-onewrite";

fn open(disk: &SimDisk, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::Create, &options).unwrap()
}

fn write(c: &mut Connection, pages: u32, byte: u8) {
    try_fill(c, pages, byte).unwrap();
}

fn left(disk: &SimDisk) -> usize {
    let bytes = disk.snapshot_file(Path::new(LOG)).unwrap();
    let log = LogFile::open(disk, Path::new(LOG), OpenMode::ReadOnly).unwrap().unwrap();
    let slot = log.slots().unwrap().remove(0);
    let ring_at = 3 * slot.block_bytes as usize;
    assert!(slot.live || bytes.len() as u64 == ring_at as u64 + slot.ring_bytes, "nothing is behind the ring");
    bytes[ring_at..].chunks(SECTOR_BYTES).filter(|sector| !is_wiped(sector)).count()
}

#[test]
fn a_close_leaves_nothing() {
    for scheme in ["log", "wal-opt"] {
        let disk = SimDisk::new(SimConfig::default());
        for (times, pages) in [(1, 3), (40, 9), (2, 300)] {
            let mut c = open(&disk, &[("scheme", scheme), ("log_size", "256k"), ("stream_size", "64k")]);
            for n in 0..times {
                write(&mut c, pages, 1 + n);
                assert!(left(&disk) > 0 || n > 0, "the log is not looked at");
            }
            c.close().unwrap();
            assert_eq!(left(&disk), 0, "{scheme}, {times} times {pages} pages");
        }
    }
}

#[test]
fn the_last_process_wipes_what_all_have_written() {
    let disk = SimDisk::new(SimConfig::default());
    let mut c = open(&disk, &[("log_size", "256k")]);
    write(&mut c, 3, 1);
    let mut last = open(&disk, &[("log_size", "256k")]);
    (2..30).for_each(|n| write(&mut c, 9, n));
    write(&mut last, 3, 30);
    c.close().unwrap();
    assert!(left(&disk) > 0);
    last.close().unwrap();
    assert_eq!(left(&disk), 0);
}

#[test]
fn what_a_crash_left_goes_with_the_next_close() {
    let disk = SimDisk::new(SimConfig::default());
    let mut c = open(&disk, &[("log_size", "256k")]);
    (1..30).for_each(|n| write(&mut c, 9, n));
    let crashed = disk.survive();
    drop(c);
    let mut c = open(&crashed, &[("log_size", "256k")]);
    write(&mut c, 3, 1);
    c.close().unwrap();
    assert_eq!(left(&crashed), 0);
}

#[test]
fn what_a_power_cut_brings_back_goes_with_the_next_session() {
    let disk = SimDisk::new(SimConfig::default());
    let mut c = open(&disk, &[("log_size", "256k")]);
    (1..6).for_each(|n| write(&mut c, 2, n));
    c.close().unwrap();
    let mut brought_back = 0;
    for seed in 0..60 {
        let after = disk.crash(seed);
        brought_back += usize::from(left(&after) > 0);
        let mut c = open(&after, &[("log_size", "256k")]);
        write(&mut c, 3, 30);
        c.close().unwrap();
        assert_eq!(left(&after), 0, "seed {seed}");
        let mut c = open(&after, &[("log_size", "256k")]);
        write(&mut c, 3, 31);
        let medium = after.crash_by(&mut |_| 0);
        let bytes = medium.snapshot_file(Path::new(LOG)).unwrap();
        assert!(
            !(1..6).any(|n| bytes.windows(200).any(|w| w == [n; 200])),
            "seed {seed}: content of the first session"
        );
    }
    assert!(brought_back > 10, "{brought_back}");
}

/// The last close's zeros are clean in the cache alone.
#[test]
fn zeros_whose_flush_failed_are_written_again() {
    // `log` flushes its session with the first record, `dash` by itself.
    for scheme in ["log", "dash"] {
        let mut failed = 0;
        for nth in 1..5 {
            let disk = SimDisk::new(SimConfig::default());
            let options = [("log_size", "256k"), ("scheme", scheme)];
            let mut c = open(&disk, &[("log_size", "256k")]);
            (1..6).for_each(|n| write(&mut c, 2, n));
            c.close().unwrap();
            let mut c = open(&disk, &options);
            disk.fail_nth(Op::Sync, nth, ErrorKind::Other);
            failed += usize::from(try_fill(&mut c, 3, 7).is_err());
            drop(c);
            let disk = disk.survive();
            for n in 8..10 {
                let mut c = open(&disk, &options);
                write(&mut c, 3, n);
                c.close().unwrap();
            }
            let mut c = open(&disk, &options);
            write(&mut c, 3, 10);
            let medium = disk.crash_by(&mut |_| 0);
            let bytes = medium.snapshot_file(Path::new(LOG)).unwrap();
            let there = (1..6).find(|n| bytes.windows(200).any(|w| w == [*n; 200]));
            assert_eq!(there, None, "{scheme}, flush {nth}: content of the first session");
        }
        assert!(failed > 0, "{scheme}");
    }
}

#[test]
fn the_log_of_an_older_version_is_wiped_as_a_whole() {
    let disk = SimDisk::new(SimConfig::default());
    let mut c = open(&disk, &[("log_size", "256k")]);
    write(&mut c, 3, 1);
    c.close().unwrap();
    let log = LogFile::open(&disk, Path::new(LOG), OpenMode::ReadWrite).unwrap().unwrap();
    let slot = log.slots().unwrap().remove(0);
    let old = onewrite_core::inspect::Slot { zeroed: false, ..slot.clone() };
    let at = (1 + slot.sequence % 2) * u64::from(slot.block_bytes);
    log.file.write_at(&old.encode(), at).unwrap();
    log.file.write_at(&[7; 300], 100_000).unwrap();
    let mut c = open(&disk, &[("log_size", "256k")]);
    write(&mut c, 3, 2);
    c.close().unwrap();
    assert_eq!(left(&disk), 0);
}

#[test]
fn wiping_takes_no_flush() {
    let disk = SimDisk::new(SimConfig::default());
    let mut costs = Vec::new();
    for n in 1..4 {
        disk.reset_counters();
        let mut c = open(&disk, &[("log_size", "256k")]);
        write(&mut c, 3, n);
        c.close().unwrap();
        costs.push((disk.counters().flushes(), disk.counters_of("-onewrite").flushes()));
    }
    assert_eq!(costs, [(5, 2), COST, COST]);
    assert_eq!(left(&disk), 0);
}

/// Of all files, and of the log, for one commit beside an existing log.
const COST: (u64, u64) = (2, 0);
