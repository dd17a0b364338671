//! Schemes that write pages in place: what their commits survive.

use crate::common;

use std::path::Path;

use common::leaves::{HOME, cells, disk, leaf, leaves, opaque, open, stat};
use common::{PAGE, page, plain, write};
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::LogFile;
use onewrite_core::{Connection, LockLevel};

const IN_PAGE: [&str; 2] = ["dhl-cc", "lsmvbt"];

fn read(c: &mut Connection, index: u64) -> Vec<u8> {
    c.lock(LockLevel::Shared).unwrap();
    let mut b = vec![0; PAGE];
    c.read_at(&mut b, index * PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    b
}

fn after_the_worst_crash(disk: &SimDisk, scheme: &str) -> Connection {
    open(&disk.crash_by(&mut |_| 0), scheme)
}

/// Rule SlotsAgree: no older home hides commits without a record.
#[test]
fn a_home_copied_before_a_recovery_does_not_fit_after_a_commit_in_place() {
    for scheme in IN_PAGE {
        let first = disk(4096, 32);
        let mut c = open(&first, scheme);
        write(&mut c, &[(1, opaque(1))]);
        let crashed = first.survive();
        let older = crashed.snapshot_file(Path::new(HOME)).unwrap();
        let mut c = open(&crashed, scheme);
        write(&mut c, &leaves(2, 2..3));
        assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (1, 0));
        let again = crashed.survive();
        again.put_file(Path::new(HOME), &older);
        let error = open(&again, scheme).lock(LockLevel::Shared).unwrap_err();
        assert!(error.to_string().contains("older state"), "{scheme}: {error}");
    }
}

#[test]
fn a_page_whose_flush_failed_is_made_durable_before_anything_builds_on_it() {
    for scheme in IN_PAGE {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        write(&mut c, &leaves(1, 1..2));
        disk.fail_nth(Op::WriteDurable, 1, std::io::ErrorKind::Other);
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        c.write_at(&leaf(2), PAGE as u64).unwrap();
        c.prepare(None).unwrap();
        c.sync().unwrap();
        c.commit().unwrap_err();
        drop(c);
        let next = disk.survive();
        let mut c = open(&next, scheme);
        let seen = cells(&mut c)[0];
        assert!(seen == 1 || seen == 2);
        write(&mut c, &leaves(12, 2..3));
        let found = cells(&mut after_the_worst_crash(&next, scheme));
        assert_eq!(found[..2], [seen, 12], "{scheme}: a page that the acknowledged transaction built on is gone");
    }
}

#[test]
fn a_damaged_slot_does_not_bring_older_images_back() {
    for scheme in IN_PAGE {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        write(&mut c, &[(1, leaf(1)), (2, opaque(7))]);
        c.pragma("checkpoint", None).unwrap().unwrap();
        write(&mut c, &leaves(2, 1..2));
        assert_eq!((stat(&mut c, "records"), stat(&mut c, "in_place")), (1, 1), "{scheme}");
        std::mem::forget(c);
        let log_path = Path::new("/db-onewrite");
        let log = LogFile { file: disk.open(log_path, OpenMode::ReadOnly).unwrap(), path: log_path.into() };
        let newest = log.slots().unwrap().remove(0);
        let crashed = disk.crash_by(&mut |_| 0);
        assert!(crashed.flip_bit(log_path, (1 + newest.sequence % 2) * u64::from(newest.block_bytes) + 40, 1));
        let found = cells(&mut open(&crashed, scheme));
        assert_eq!(found[..2], [2, u64::from_le_bytes([7; 8])], "{scheme}");
    }
}

#[test]
fn the_change_counter_goes_on_above_every_one_that_was_shown() {
    for scheme in ["dash", "dhl-cc", "lsmvbt"] {
        let disk = disk(4096, 32);
        let counter = |c: &mut Connection| u32::from_be_bytes(read(c, 0)[24..28].try_into().unwrap());
        let mut c = open(&disk, scheme);
        let mut shown = Vec::new();
        for n in 1..=5 {
            write(&mut c, &leaves(n, 1..2));
            shown.push(counter(&mut c));
        }
        assert!(shown.is_sorted_by(|a, b| a < b));
        let mut again = after_the_worst_crash(&disk, scheme);
        assert!(counter(&mut again) > shown[4], "{scheme}");
    }
}

#[test]
fn pages_read_ahead_are_forgotten_at_a_commit() {
    for scheme in ["dash", "log"] {
        let disk = SimDisk::new(SimConfig::default());
        let mut home = plain(0);
        home[31] = 12;
        (4..=12).for_each(|_| home.extend(page(0)));
        disk.put_file(Path::new(HOME), &home);
        let mut c = open(&disk, scheme);
        c.lock(LockLevel::Shared).unwrap();
        let read = |c: &mut Connection, index: u64| {
            let mut b = vec![0; PAGE];
            c.read_at(&mut b, index * PAGE as u64).unwrap();
            b
        };
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
