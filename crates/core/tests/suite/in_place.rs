//! Scheme `auto`: which transactions go in place, and what they survive.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{PAGE, leaves, page, plain, write};
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::LogFile;
use onewrite_core::{Connection, Engine, LockLevel};

const HOME: &str = "/db";

fn open_with(disk: &SimDisk, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
}

fn disk(atomic_unit: u32) -> SimDisk {
    let disk = SimDisk::new(SimConfig { atomic_unit, ..SimConfig::default() });
    disk.put_file(Path::new(HOME), &plain(0));
    disk
}

fn open(disk: &SimDisk) -> Connection {
    open_with(disk, &[("scheme", "auto")])
}

fn stat(c: &mut Connection, name: &str) -> u64 {
    let text = c.pragma("stats", None).unwrap().unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(&format!("{name}="))).unwrap();
    line.parse().unwrap()
}

fn read(c: &mut Connection, index: u64) -> Vec<u8> {
    c.lock(LockLevel::Shared).unwrap();
    let mut b = vec![0; PAGE];
    c.read_at(&mut b, index * PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    b
}

/// Everything unflushed is lost.
fn after_the_worst_crash(disk: &SimDisk) -> Connection {
    open(&disk.crash_by(&mut |_| 0))
}

#[test]
fn one_page_goes_in_place_and_survives() {
    let disk = disk(4096);
    let mut c = open(&disk);
    for n in 1..=5 {
        write(&mut c, &[(1, page(n))]);
        write(&mut c, &[(2, page(10 + n))]);
    }
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (10, 0));
    let mut again = after_the_worst_crash(&disk);
    assert!(read(&mut again, 1) == page(5) && read(&mut again, 2) == page(15));
}

#[test]
fn it_costs_one_write_that_is_also_the_flush_and_a_note_in_the_cache() {
    let disk = disk(4096);
    let mut c = open(&disk);
    write(&mut c, &[(1, page(1))]);
    for (index, notes) in [(1, 0), (2, 1), (2, 0), (1, 1)] {
        disk.reset_counters();
        write(&mut c, &[(index, page(100 + index + notes))]);
        let (home, log) = (disk.counters_of("db"), disk.counters_of("-onewrite"));
        assert_eq!((home.durable_writes, home.writes, home.syncs), (1, 0, 0));
        assert_eq!((log.durable_writes, log.writes, log.syncs), (0, notes, 0), "page {}", index + 1);
    }
}

#[test]
fn a_page_with_an_entry_in_the_live_log_does_not_until_the_checkpoint() {
    let disk = disk(4096);
    let mut c = open(&disk);
    write(&mut c, &[(1, page(1)), (2, page(11))]);
    write(&mut c, &[(1, page(2))]);
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (0, 2));
    c.pragma("checkpoint", None).unwrap().unwrap();
    write(&mut c, &[(1, page(3))]);
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (1, 2));
    // After a TID without a record.
    write(&mut c, &[(1, page(4)), (2, page(14))]);
    write(&mut c, &[(1, page(5))]);
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (1, 4));
    let mut again = after_the_worst_crash(&disk);
    assert!(read(&mut again, 1) == page(5) && read(&mut again, 2) == page(14));
}

/// Rule SlotsAgree: no older home hides commits without a record.
#[test]
fn a_home_copied_before_a_recovery_does_not_fit_after_a_commit_in_place() {
    let first = disk(4096);
    let mut c = open(&first);
    write(&mut c, &[(1, page(1))]);
    let crashed = first.survive();
    let older = crashed.snapshot_file(Path::new(HOME)).unwrap();
    let mut c = open(&crashed);
    write(&mut c, &[(1, page(2))]);
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (1, 0));
    let again = crashed.survive();
    again.put_file(Path::new(HOME), &older);
    let error = open(&again).lock(LockLevel::Shared).unwrap_err();
    assert!(error.to_string().contains("older state"), "{error}");
}

#[test]
fn nothing_goes_in_place_that_a_crash_could_tear_or_that_need_not_be_flushed() {
    let small = disk(512);
    let mut c = open(&small);
    write(&mut c, &[(1, page(1))]);
    assert_eq!(stat(&mut c, "in_place"), 0, "a page larger than the atomic unit");

    let asked = disk(4096);
    let mut c = open_with(&asked, &[("scheme", "auto"), ("atomic_unit", "512")]);
    write(&mut c, &[(1, page(1))]);
    assert_eq!(stat(&mut c, "in_place"), 0, "the option says less than the device");

    let whole = disk(4096);
    let mut c = open(&whole);
    let mut first = plain(0);
    first.truncate(PAGE);
    first[60..64].copy_from_slice(&7u32.to_be_bytes());
    write(&mut c, &[(0, first)]);
    assert_eq!(stat(&mut c, "in_place"), 0, "page 1");
    c.note_synchronous("normal");
    c.pragma("checkpoint", None).unwrap().unwrap();
    write(&mut c, &[(1, page(2))]);
    assert_eq!(stat(&mut c, "in_place"), 0, "synchronous=NORMAL");
    c.note_synchronous("full");
    write(&mut c, &[(2, page(3))]);
    assert_eq!(stat(&mut c, "in_place"), 0, "what it builds on is not durable");
    write(&mut c, &[(1, page(4)), (2, page(5)), (3, page(6))]);
    c.pragma("checkpoint", None).unwrap().unwrap();
    write(&mut c, &[(1, page(7))]);
    assert_eq!(stat(&mut c, "in_place"), 1, "now nothing stands in the way");
}

/// The page is clean in the cache and not on the disk.
#[test]
fn a_page_whose_flush_failed_is_made_durable_before_anything_builds_on_it() {
    let disk = disk(4096);
    let mut c = open(&disk);
    write(&mut c, &[(1, page(1))]);
    disk.fail_nth(Op::WriteDurable, 1, std::io::ErrorKind::Other);
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    c.write_at(&page(2), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit().unwrap_err();
    drop(c);
    let next = disk.survive();
    let mut c = open(&next);
    let seen = read(&mut c, 1);
    assert!(seen == page(1) || seen == page(2));
    write(&mut c, &[(2, page(12))]);
    let mut again = after_the_worst_crash(&next);
    assert!(read(&mut again, 2) == page(12));
    assert!(read(&mut again, 1) == seen, "a page that the acknowledged transaction built on is gone");
}

#[test]
fn a_damaged_slot_does_not_bring_older_images_back() {
    for scheme in ["auto", "dhl-cc", "lsmvbt"] {
        let disk = leaves::disk(4096, 32);
        let mut c = leaves::open(&disk, scheme);
        write(&mut c, &[(1, leaves::leaf(1)), (2, leaves::opaque(7))]);
        c.pragma("checkpoint", None).unwrap().unwrap();
        write(&mut c, &leaves::leaves(2, 1..2));
        assert_eq!((stat(&mut c, "records"), stat(&mut c, "in_place")), (1, 1), "{scheme}");
        std::mem::forget(c);
        let log_path = Path::new("/db-onewrite");
        let log = LogFile { file: disk.open(log_path, OpenMode::ReadOnly).unwrap(), path: log_path.into() };
        let newest = log.slots().unwrap().remove(0);
        let crashed = disk.crash_by(&mut |_| 0);
        assert!(crashed.flip_bit(log_path, (1 + newest.sequence % 2) * u64::from(newest.block_bytes) + 40, 1));
        let found = leaves::cells(&mut leaves::open(&crashed, scheme));
        assert_eq!(found[..2], [2, u64::from_le_bytes([7; 8])], "{scheme}");
    }
}

#[test]
fn the_change_counter_goes_on_above_every_one_that_was_shown() {
    let disk = disk(4096);
    let counter = |c: &mut Connection| u32::from_be_bytes(read(c, 0)[24..28].try_into().unwrap());
    let mut c = open(&disk);
    let mut shown = Vec::new();
    for n in 1..=5 {
        write(&mut c, &[(1, page(n))]);
        shown.push(counter(&mut c));
    }
    assert!(shown.is_sorted_by(|a, b| a < b));
    let mut again = after_the_worst_crash(&disk);
    assert!(counter(&mut again) > shown[4]);
}

/// Without an unlock it sees its writes.
#[test]
fn what_was_read_ahead_is_forgotten_at_a_commit() {
    for scheme in ["auto", "log"] {
        let disk = SimDisk::new(SimConfig::default());
        let mut home = plain(0);
        home[31] = 12;
        (4..=12).for_each(|_| home.extend(page(0)));
        disk.put_file(Path::new(HOME), &home);
        let mut c = open_with(&disk, &[("scheme", scheme)]);
        c.lock(LockLevel::Shared).unwrap();
        let read = |c: &mut Connection, index: u64| {
            let mut b = vec![0; PAGE];
            c.read_at(&mut b, index * PAGE as u64).unwrap();
            b
        };
        // By the third page in a row.
        (1..4).for_each(|index| drop(read(&mut c, index)));
        c.lock(LockLevel::Reserved).unwrap();
        c.write_at(&page(5), 4 * PAGE as u64).unwrap();
        c.prepare(None).unwrap();
        c.sync().unwrap();
        c.commit().unwrap();
        c.unlock(LockLevel::Shared).unwrap();
        c.pragma("checkpoint", None).unwrap().unwrap();
        assert!(read(&mut c, 4) == page(5), "{scheme}: the image before the commit");
    }
}
