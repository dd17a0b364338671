//! After the last close under `secure_delete` the log contains nothing that was written (rule
//! NothingLeftBehind).

use crate::common;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::try_fill;
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::inspect::LogFile;
use onewrite_core::{Connection, Engine};

const HOME: &str = "/db";
const LOG: &str = "/db-onewrite";

fn open(disk: &SimDisk, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let mut c = Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::Create, &options).unwrap();
    c.note_secure_delete("on");
    c
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
    bytes[ring_at..].iter().filter(|byte| **byte != 0).count()
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
fn the_last_process_wipes_the_records_of_all() {
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
fn records_that_a_crash_left_go_with_the_next_close() {
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
fn a_power_cut_brings_nothing_back() {
    let disk = SimDisk::new(SimConfig::default());
    let mut c = open(&disk, &[("log_size", "256k")]);
    (1..6).for_each(|n| write(&mut c, 2, n));
    c.close().unwrap();
    for after in (0..60).map(|seed| disk.crash(seed)).chain([disk.crash_by(&mut |_| 0)]) {
        assert_eq!(left(&after), 0);
        let mut c = open(&after, &[("log_size", "256k")]);
        write(&mut c, 3, 30);
        c.close().unwrap();
    }
}

/// Zeros whose flush failed are clean in the cache alone.
#[test]
fn zeros_whose_flush_failed_are_written_again() {
    for scheme in ["log", "dash"] {
        let mut failed = 0;
        for nth in 1..6 {
            let disk = SimDisk::new(SimConfig::default());
            let options = [("log_size", "256k"), ("scheme", scheme)];
            let mut c = open(&disk, &options);
            (1..6).for_each(|n| write(&mut c, 2, n));
            disk.fail_nth(Op::Sync, nth, ErrorKind::Other);
            failed += usize::from(c.close().is_err());
            let disk = disk.survive();
            let mut c = open(&disk, &options);
            write(&mut c, 3, 8);
            c.close().unwrap();
            assert_eq!(left(&disk.crash_by(&mut |_| 0)), 0, "{scheme}, flush {nth}");
        }
        assert!(failed > 0, "{scheme}");
    }
}

#[test]
fn wiping_takes_flushes_and_no_wiping_none() {
    for (value, cost) in [("fast", (2, 0)), ("on", (5, 2))] {
        let disk = SimDisk::new(SimConfig::default());
        let mut costs = Vec::new();
        for n in 1..4 {
            disk.reset_counters();
            let mut c = open(&disk, &[("log_size", "256k")]);
            c.note_secure_delete(value);
            write(&mut c, 3, n);
            c.close().unwrap();
            costs.push((disk.counters().flushes(), disk.counters_of("-onewrite").flushes()));
        }
        // Of all files, and of the log.
        assert_eq!(costs[1..], [cost, cost], "{value}");
        assert_eq!(left(&disk) == 0, value == "on");
    }
}
