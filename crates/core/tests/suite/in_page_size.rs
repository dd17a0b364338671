//! The in-page schemes add pages without writing page 1: the database's size after a crash (rules
//! SizeHome and SizeLast).

use crate::common;

use std::path::Path;

use common::leaves::{HOME, cells, disk, leaf, leaves, opaque, open, stat};
use common::{PAGE, write};
use onewrite_core::disk::sim::SimDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, LockLevel};

fn page_1(c: &mut Connection, page_count: u8) -> (u64, Vec<u8>) {
    let mut first = vec![0; PAGE];
    c.lock(LockLevel::Shared).unwrap();
    c.read_at(&mut first, 0).unwrap();
    c.unlock(LockLevel::None).unwrap();
    first[31] = page_count;
    (0, first)
}

fn size(c: &mut Connection) -> u64 {
    c.lock(LockLevel::Shared).unwrap();
    let size = c.size().unwrap();
    c.unlock(LockLevel::None).unwrap();
    size / PAGE as u64
}

#[test]
fn a_page_is_added_without_writing_page_1_and_the_size_survives() {
    for (scheme, pages) in [("dhl-cc", 2), ("lsmvbt", 2), ("mvbt", 3)] {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        write(&mut c, &leaves(1, 1..2));
        let before = stat(&mut c, "in_place_pages");
        let first = page_1(&mut c, 13);
        write(&mut c, &[first, (1, leaf(2)), (12, leaf(2))]);
        assert_eq!(stat(&mut c, "in_place_pages") - before, pages, "{scheme}");
        write(&mut c, &leaves(3, 2..3));
        assert_eq!(size(&mut c), 13);
        let mut crashed = disk.crash_by(&mut |_| 0);
        for round in 0..2 {
            let mut c = open(&crashed, scheme);
            assert_eq!(size(&mut c), 13, "{scheme}");
            assert_eq!(cells(&mut c)[..2], [2, 3]);
            if round == 0 {
                crashed = crashed.crash_by(&mut |_| 0);
            } else {
                c.close().unwrap();
            }
        }
        let home = crashed.snapshot_file(Path::new(HOME)).unwrap();
        assert_eq!((home[19], home[31], home.len()), (1, 13, 13 * PAGE));
        c.close().unwrap();
        assert_eq!(disk.snapshot_file(Path::new(HOME)).unwrap()[31], 13);
    }
}

/// A power cut may leave the length of an empty database's mark without its bytes.
#[test]
fn a_file_of_zeros_becomes_a_database_with_room_for_trailers() {
    for len in [0, 100] {
        let disk = disk(4096, 32);
        let home = disk.open(Path::new(HOME), OpenMode::Create).unwrap();
        home.set_len(0).and_then(|()| home.write_at(&vec![0; len], 0)).unwrap();
        let mut header = [0; 100];
        assert_eq!(open(&disk, "dhl-cc").read_at(&mut header, 0).unwrap(), 100, "{len}");
        assert!(header[20] >= 32, "{len}: {} reserved bytes", header[20]);
    }
}

#[test]
fn pages_that_are_added_one_by_one_rarely_make_home_longer() {
    for scheme in ["dhl-cc", "lsmvbt"] {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        write(&mut c, &leaves(1, 1..2));
        let length = |disk: &SimDisk| disk.snapshot_file(Path::new(HOME)).unwrap().len() / PAGE;
        let mut lengths = vec![length(&disk)];
        for count in 13..=112 {
            let first = page_1(&mut c, count);
            write(&mut c, &[first, (1, leaf(count.into())), (u64::from(count) - 1, leaf(count.into()))]);
            assert_eq!(size(&mut c), count.into());
            lengths.push(length(&disk));
            assert!(*lengths.last().unwrap() >= count.into());
            if count % 10 == 0 {
                for choice in [0, 1] {
                    let mut crashed = open(&disk.crash_by(&mut |_| choice), scheme);
                    assert_eq!((size(&mut crashed), cells(&mut crashed)[0]), (count.into(), count.into()), "{scheme}");
                }
            }
        }
        lengths.dedup();
        assert!((3..12).contains(&lengths.len()), "{scheme}: {lengths:?}");
        assert_eq!(stat(&mut c, "in_place"), 101);
        c.close().unwrap();
        let home = disk.snapshot_file(Path::new(HOME)).unwrap();
        assert_eq!((home[31], home.len()), (112, 112 * PAGE));
    }
}

#[test]
fn the_size_after_a_crash_is_that_of_the_last_whole_transaction() {
    for scheme in ["dhl-cc", "dhl-tc"] {
        let disk = disk(4096, 32);
        let mut c = open(&disk, scheme);
        let first = page_1(&mut c, 14);
        write(&mut c, &[first, (1, leaf(2)), (12, leaf(2)), (13, leaf(2))]);
        let first = page_1(&mut c, 16);
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        for (index, page) in [first, (1, leaf(3)), (14, leaf(3)), (15, leaf(3))] {
            c.write_at(&page, index * PAGE as u64).unwrap();
        }
        c.prepare(None).unwrap();
        c.sync().unwrap();
        disk.stop_after(3);
        let _ = c.commit();
        std::mem::forget(c);
        let mut seen = [0, 0];
        for (choices, crashed) in disk.crashes() {
            let mut disk = crashed;
            for _ in 0..2 {
                let mut c = open(&disk, scheme);
                let (found, size) = (cells(&mut c)[0], size(&mut c));
                assert!([(2, 14), (3, 16)].contains(&(found, size)), "{scheme} {choices:?}: {found}, {size} pages");
                seen[usize::from(size == 16)] += 1;
                disk = disk.crash_by(&mut |_| 0);
            }
        }
        assert!(seen[0] >= 6 && seen[1] > 0, "{scheme}: {seen:?}");
    }
}

/// A checkpoint raises the TID from which trailers count, so page 1 must state the size.
#[test]
fn pages_added_in_place_are_there_after_a_checkpoint() {
    let disk = disk(4096, 32);
    let mut c = open(&disk, "dhl-cc");
    let first = page_1(&mut c, 13);
    write(&mut c, &[first, (1, leaf(2)), (12, leaf(2))]);
    // Through the log until a checkpoint pays, then in place again.
    let mut n = 0;
    while stat(&mut c, "checkpoints") < 2 {
        n += 1;
        write(&mut c, &[(2, opaque(n))]);
        let mut crashed = open(&disk.crash_by(&mut |_| 0), "dhl-cc");
        assert_eq!((size(&mut crashed), cells(&mut crashed)[0]), (13, 2), "after {n} records");
    }
    let in_place = stat(&mut c, "in_place");
    write(&mut c, &leaves(4, 1..2));
    assert_eq!(stat(&mut c, "in_place"), in_place + 1);
    let mut crashed = open(&disk.crash_by(&mut |_| 0), "dhl-cc");
    assert_eq!((size(&mut crashed), cells(&mut crashed)[0]), (13, 4));
}

fn cut_short(scheme: &str, grows: bool, ops: u64) -> SimDisk {
    let disk = disk(4096, 32);
    let mut c = open(&disk, scheme);
    let first = page_1(&mut c, 14);
    write(&mut c, &[first, (1, leaf(2)), (12, leaf(2)), (13, leaf(2))]);
    let (first, pages) = match grows {
        // Page 1 does not count the last page so far.
        true => (page_1(&mut c, 16), [(1, leaf(3)), (13, leaf(3)), (14, leaf(3)), (15, leaf(3))].to_vec()),
        false => (page_1(&mut c, 12), [(1, leaf(3)), (2, leaf(3))].to_vec()),
    };
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    for (index, page) in pages.into_iter().chain([first]) {
        c.write_at(&page, index * PAGE as u64).unwrap();
    }
    if !grows {
        c.truncate(12 * PAGE as u64).unwrap();
    }
    c.prepare(None).unwrap();
    c.sync().unwrap();
    disk.stop_after(ops);
    let _ = c.commit();
    std::mem::forget(c);
    disk
}

#[test]
fn the_size_outlives_a_power_cut_in_the_recovery_of_a_dead_process() {
    for (scheme, grows) in [("dhl-cc", true), ("dhl-cc", false), ("dhl-tc", true)] {
        let mut seen = [0, 0];
        for ops in 1..=5 {
            for stop in 0.. {
                let killed = cut_short(scheme, grows, ops).survive();
                killed.stop_after(stop);
                let mut c = open(&killed, scheme);
                let is_over = c.lock(LockLevel::Shared).is_ok();
                std::mem::forget(c);
                for (choices, crashed) in killed.crashes() {
                    let mut c = open(&crashed, scheme);
                    let (size, found) = (size(&mut c), cells(&mut c));
                    let case = format!("{scheme}, {ops} operations, then {stop}, {choices:?}: {size} pages, {found:?}");
                    let after = if grows { (16, [3, 0]) } else { (12, [3, 3]) };
                    assert!([(14, [2, 0]), after].contains(&(size, [found[0], found[1]])), "{case}");
                    seen[usize::from(size != 14)] += 1;
                    write(&mut c, &leaves(5, 5..7));
                    c.close().unwrap_or_else(|e| panic!("{case}: {e}"));
                    let home = crashed.snapshot_file(Path::new(HOME)).unwrap();
                    assert_eq!(
                        (home[19], u64::from(home[31]), home.len() as u64),
                        (1, size, size * PAGE as u64),
                        "{case}"
                    );
                }
                if is_over {
                    break;
                }
            }
        }
        assert!(seen.iter().all(|n| *n > 50), "{scheme}, {grows}: {seen:?}");
    }
}
