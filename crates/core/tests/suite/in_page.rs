//! The in-page schemes: refusals, costs of a commit, crashes.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::leaves::{HOME, cells, disk, leaf, leaves, opaque, open, stat};
use common::{PAGE, write, write_and_sync};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::{Engine, Error, LockLevel};

#[test]
fn a_database_it_cannot_protect_is_refused_with_the_reason() {
    for (atomic_unit, reserved, why) in [
        (512, 32, "whole or not at all"),
        (4096, 0, "onewrite research convert"),
        (4096, 40, "onewrite research convert"),
    ] {
        let disk = disk(atomic_unit, reserved);
        let before = disk.snapshot_file(Path::new(HOME)).unwrap();
        for scheme in ["dhl-cc", "dhl-tc", "lsmvbt", "mvbt", "mvbt-opt"] {
            let mut c = open(&disk, scheme);
            c.lock(LockLevel::Shared).unwrap();
            let error = c.lock(LockLevel::Reserved).unwrap_err();
            assert!(matches!(error, Error::CantOpen(_)) && error.to_string().contains(why), "{error}");
            c.unlock(LockLevel::None).unwrap();
        }
        assert!(disk.snapshot_file(Path::new(HOME)).unwrap() == before);
    }
}

#[test]
fn counting_commit_flushes_once_and_traditional_commit_twice() {
    for (scheme, one, many, first_page) in [("dhl-cc", 1, 1, 0), ("dhl-tc", 1, 2, 0), ("mvbt", 2, 2, 1)] {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        write(&mut c, &leaves(1, 1..2));
        for (pages, flushes) in [(1, one), (2, many), (9, many)] {
            disk.reset_counters();
            write(&mut c, &leaves(10 + pages, 1..1 + pages));
            let (home, log) = (disk.counters_of("db"), disk.counters_of("-onewrite"));
            assert_eq!(home.flushes(), flushes, "{scheme}, {pages} pages");
            assert_eq!(home.writes + home.durable_writes, pages + first_page, "{scheme}: one write for each page");
            assert_eq!((log.writes, log.durable_writes, log.syncs), (0, 0, 0));
        }
        assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records")), (4, 0));
        let mut again = open(&disk.crash_by(&mut |_| 0), scheme);
        assert_eq!(cells(&mut again), [vec![19; 9], vec![0; 2]].concat());
        c.close().unwrap();
    }
}

#[test]
fn a_transaction_of_which_a_page_is_missing_is_undone() {
    for scheme in ["dhl-cc", "dhl-tc"] {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        write(&mut c, &leaves(1, 1..4));
        write(&mut c, &leaves(2, 1..6));
        write_and_sync(&mut c, &leaves(3, 2..5));
        disk.stop_after(if scheme == "dhl-cc" { 3 } else { 2 });
        c.commit().unwrap_err();
        std::mem::forget(c);
        let mut seen = [0, 0];
        for (choices, crashed) in disk.crashes() {
            let mut c = open(&crashed, scheme);
            let found = cells(&mut c);
            let whole = found == [2, 3, 3, 3, 2, 0, 0, 0, 0, 0, 0];
            assert!(whole || found == [2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0], "{scheme} {choices:?}: {found:?}");
            seen[usize::from(whole)] += 1;
            write(&mut c, &leaves(4, 1..3));
            c.close().unwrap();
            let home = crashed.snapshot_file(Path::new(HOME)).unwrap();
            assert_eq!((home[19], home.len()), (1, 12 * PAGE));
        }
        assert!(seen[0] >= 3, "{scheme}: {seen:?}");
        assert_eq!(seen[1], usize::from(scheme == "dhl-cc"));
    }
}

#[test]
fn recovery_flushes_twice_and_leaves_a_plain_file() {
    for (pages, whole) in [(1, false), (3, true)] {
        let disk = disk(4096, 32);
        let mut c = open(&disk, "dhl-cc");
        write(&mut c, &leaves(1, 1..9));
        write_and_sync(&mut c, &leaves(2, 1..4));
        disk.stop_after(pages);
        c.commit().unwrap_err();
        std::mem::forget(c);
        let killed = disk.survive();
        let mut c = open(&killed, "dhl-cc");
        let n = if whole { 2 } else { 1 };
        let expected = [vec![n; 3], vec![1; 5], vec![0; 3]].concat();
        assert_eq!(cells(&mut c), expected);
        let (home, log) = (killed.counters_of("db"), killed.counters_of("-onewrite"));
        assert_eq!((home.flushes(), log.flushes()), (2, 0), "{pages} pages");
        let (disk, mut crashed) = (killed.survive(), killed.crash_by(&mut |_| 0));
        c.close().unwrap();
        for next in [&disk, &mut crashed] {
            let home = next.snapshot_file(Path::new(HOME)).unwrap();
            assert_eq!((home[19], home.len()), (1, 12 * PAGE), "a plain file");
            let mut c = open(next, "dhl-cc");
            write(&mut c, &leaves(5, 11..12));
            assert_eq!(cells(&mut c)[..10], expected[..10]);
            c.close().unwrap();
            assert_eq!(next.paths().len(), 2, "{:?}", next.paths());
        }
    }
}

#[test]
fn pages_whose_flush_failed_are_made_durable_before_anything_builds_on_them() {
    let disk = disk(4096, 32);
    let mut c = open(&disk, "dhl-cc");
    write(&mut c, &leaves(1, 1..4));
    disk.fail_nth(Op::Sync, 1, std::io::ErrorKind::Other);
    write_and_sync(&mut c, &leaves(2, 1..4));
    c.commit().unwrap_err();
    drop(c);
    let next = disk.survive();
    let mut c = open(&next, "dhl-cc");
    let seen = cells(&mut c);
    write(&mut c, &leaves(9, 10..11));
    let again = cells(&mut open(&next.crash_by(&mut |_| 0), "dhl-cc"));
    assert_eq!(again[..9], seen[..9], "what the acknowledged transaction built on is gone");
    assert_eq!(again[9], 9);
}

#[test]
fn a_page_without_room_for_its_undo_record_sends_its_transaction_alone_through_the_log() {
    let disk = disk(4096, 32);
    let mut c = open(&disk, "dhl-cc");
    write(&mut c, &leaves(1, 1..2));
    write(&mut c, &[(1, leaf(2)), (2, opaque(7))]);
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "undo_misfits"), stat(&mut c, "records")), (1, 1, 1));
    // An older record must not replay over an image in place.
    write(&mut c, &leaves(3, 1..2));
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "records"), stat(&mut c, "checkpoints")), (2, 1, 1));
    let found = cells(&mut open(&disk.crash_by(&mut |_| 0), "dhl-cc"));
    assert_eq!(found[..2], [3, u64::from_le_bytes([7; 8])]);
}

/// A checkpoint after each would cost more.
#[test]
fn many_pages_without_room_take_the_others_with_them_through_the_log() {
    let disk = disk(4096, 32);
    let mut c = open(&disk, "dhl-cc");
    for n in 0..40 {
        write(&mut c, &[(2, opaque(n))]);
        write(&mut c, &leaves(u64::from(n), 3..4));
    }
    let (in_place, checkpoints) = (stat(&mut c, "in_place"), stat(&mut c, "checkpoints"));
    assert!((1..8).contains(&in_place) && checkpoints <= 8, "{in_place} in place, {checkpoints} checkpoints");
    assert_eq!(cells(&mut open(&disk.crash_by(&mut |_| 0), "dhl-cc"))[1..3], [u64::from_le_bytes([39; 8]), 39]);
}

#[test]
fn the_reserve_has_room_for_undo_records() {
    let disk = disk(4096, 248);
    let mut c = open(&disk, "dhl-cc");
    let (mut one, mut other) = (opaque(7), opaque(7));
    one[PAGE - 248..].fill(0);
    other[PAGE - 248..].fill(0);
    other[100..200].fill(8);
    write(&mut c, &[(2, one)]);
    write(&mut c, &[(2, other), (3, roomy_leaf(1))]);
    assert_eq!((stat(&mut c, "in_place"), stat(&mut c, "undo_misfits")), (0, 2), "all of a page changed");
    let mut again = opaque(7);
    again[PAGE - 248..].fill(0);
    write_and_sync(&mut c, &[(3, roomy_leaf(9)), (2, again)]);
    disk.stop_after(2);
    c.commit().unwrap_err();
    std::mem::forget(c);
    let mut seen = [0, 0];
    for (choices, crashed) in disk.crashes() {
        let mut c = open(&crashed, "dhl-cc");
        let mut image = vec![0; PAGE];
        c.lock(LockLevel::Shared).unwrap();
        c.read_at(&mut image, 2 * PAGE as u64).unwrap();
        let whole = image[150] == 7;
        assert!(whole || image[100..200].iter().all(|b| *b == 8), "{choices:?}");
        c.read_at(&mut image, 3 * PAGE as u64).unwrap();
        assert_eq!(image[PAGE - 300], if whole { 9 } else { 1 }, "{choices:?}");
        seen[usize::from(whole)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

fn roomy_leaf(n: u8) -> Vec<u8> {
    let mut page = vec![5; PAGE];
    page[PAGE - 320..PAGE - 280].fill(n);
    page[..8].copy_from_slice(&[13, 0, 0, 0, 0, 0, 8, 0]);
    page[PAGE - 248..].fill(0);
    page
}

#[test]
fn a_damaged_page_in_flight_is_an_error_that_changes_nothing() {
    let disk = disk(4096, 32);
    let mut c = open(&disk, "dhl-cc");
    write(&mut c, &leaves(1, 1..4));
    std::mem::forget(c);
    let crashed = disk.crash_by(&mut |_| 0);
    assert!(crashed.flip_bit(Path::new(HOME), 2 * PAGE as u64 + 3000, 0));
    let before = crashed.snapshot_file(Path::new(HOME)).unwrap();
    let mut c = open(&crashed, "dhl-cc");
    let error = c.lock(LockLevel::Shared).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("page 3"), "{error}");
    assert!(crashed.snapshot_file(Path::new(HOME)).unwrap() == before);
}

#[test]
fn a_new_database_gets_pages_that_the_device_writes_whole() {
    for (atomic_unit, page_bytes, reserved) in
        [(512u32, 512u16, 32), (1024, 1024, 64), (4096, 4096, 248), (16384, 4096, 248)]
    {
        let disk = SimDisk::new(SimConfig { atomic_unit, ..SimConfig::default() });
        let options = [("scheme".to_owned(), "dhl-cc".to_owned())];
        let engine = Engine::new(Arc::new(disk));
        let mut c = engine.open(Path::new(HOME), OpenMode::Create, &options).unwrap();
        let mut header = [0; 100];
        assert_eq!(c.read_at(&mut header, 0).unwrap(), 100);
        assert_eq!(
            (u16::from_be_bytes([header[16], header[17]]), header[20]),
            (page_bytes, reserved),
            "unit {atomic_unit}"
        );
    }
}

/// An undo record is read by the header, and recovery has one of the two.
#[test]
fn the_meaning_of_pages_does_not_change_in_place() {
    for (at, byte, more) in [(60, 7, 1), (55, 3, 0), (20, 255, 0)] {
        let disk = disk(4096, 248);
        let mut c = open(&disk, "dhl-cc");
        let mut first = vec![0; PAGE];
        c.lock(LockLevel::Shared).unwrap();
        c.read_at(&mut first, 0).unwrap();
        c.unlock(LockLevel::None).unwrap();
        first[105..107].copy_from_slice(&(PAGE as u16 - 248).to_be_bytes());
        write(&mut c, &[(0, first.clone()), (1, roomy_leaf(1))]);
        c.pragma("checkpoint", None).unwrap().unwrap();
        let in_place = stat(&mut c, "in_place");
        first[at] = byte;
        write(&mut c, &[(0, first), (1, roomy_leaf(2))]);
        assert_eq!(stat(&mut c, "in_place"), in_place + more, "byte {at}");
    }
}
