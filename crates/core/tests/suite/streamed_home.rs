//! A big transaction's pages behind the end of home go there before its record (rule
//! WholeTransaction).

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::hooked::{Call, Hooked};
use common::{PAGE, commit, page, plain, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, Engine, Error, LockLevel};
use parking_lot::Mutex;

/// Of the mark, in the header (docs/format.md).
const FLAGS: usize = 88;
/// None but page 1 is left for the record.
const PAGES: u64 = 1 + 12 * 16;

fn open(disk: impl Disk + 'static) -> Connection {
    open_as("log", disk)
}

fn open_as(scheme: &str, disk: impl Disk + 'static) -> Connection {
    let options = [("scheme", scheme), ("stream_size", "64k"), ("log_size", "256k")];
    let options = options.map(|(n, v)| (n.to_owned(), v.to_owned()));
    Engine::new(Arc::new(disk)).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap()
}

/// A database of three pages, in use.
fn database() -> (SimDisk, Connection) {
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let mut c = open(sim.clone());
    commit(&mut c, 1);
    c.pragma("checkpoint", None).unwrap().unwrap();
    (sim, c)
}

/// All of the larger database.
fn all(n: u64) -> Vec<(u64, Vec<u8>)> {
    let mut first = plain(0)[..PAGE].to_vec();
    first[31] = PAGES as u8;
    (0..PAGES).map(|p| (p, if p == 0 { first.clone() } else { page(n + p) })).collect()
}

fn home(sim: &SimDisk) -> Vec<u8> {
    sim.snapshot_file(Path::new("/db")).unwrap()
}

fn begin(c: &mut Connection) {
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
}

#[test]
fn an_added_page_is_written_once_and_another_twice() {
    let (sim, mut c) = database();
    let mut written = |added: bool, n| {
        sim.reset_counters();
        write(&mut c, &all(n));
        let [home, log] = ["/db", "-onewrite"].map(|of| sim.counters_of(of).bytes_written / PAGE as u64);
        assert!((PAGES - 1..PAGES + 4).contains(&home), "{home} pages to home");
        assert_eq!(log < 20, added, "{log} to the log");
    };
    written(true, 100);
    written(false, 500);
    c.close().unwrap();
    assert!(home(&sim)[PAGE..].chunks(PAGE).zip(501..).all(|(image, n)| image == page(n)));
}

#[test]
fn a_rollback_leaves_home_as_it_was() {
    let (sim, mut c) = database();
    let before = home(&sim);
    for prepares in [false, true] {
        begin(&mut c);
        let added = |n| all(n).into_iter().filter(|(n, _)| *n == 0 || *n > 2);
        added(100).for_each(|(n, image)| c.write_at(&image, n * PAGE as u64).unwrap());
        assert!(home(&sim).len() > 100 * PAGE, "it streams home");
        // A savepoint's page is written again, and read.
        c.write_at(&page(7), 150 * PAGE as u64).unwrap();
        let mut image = vec![0; PAGE];
        c.read_at(&mut image, 150 * PAGE as u64).unwrap();
        assert!(image == page(7));
        if prepares {
            c.prepare(None).unwrap();
        } else {
            // All of them are cut off, and others come.
            c.truncate(3 * PAGE as u64).unwrap();
            added(300).for_each(|(n, image)| c.write_at(&image, n * PAGE as u64).unwrap());
            c.truncate(3 * PAGE as u64).unwrap();
        }
        c.unlock(LockLevel::None).unwrap();
        // The mark may have a number of streamed pages, which no record names.
        let after = home(&sim);
        assert!(after[..FLAGS] == before[..FLAGS] && after[FLAGS + 4..] == before[FLAGS + 4..], "prepared: {prepares}");
    }
    commit(&mut c, 2);
    c.close().unwrap();
    assert_eq!(home(&sim).len(), before.len());
}

#[test]
fn a_disk_that_gets_full_takes_nothing_from_home() {
    let (sim, mut c) = database();
    let before = home(&sim);
    let used = sim.used_bytes();
    sim.set_capacity(used + 100 * PAGE as u64);
    begin(&mut c);
    let full = all(100).iter().find_map(|(n, image)| c.write_at(image, n * PAGE as u64).err());
    assert!(matches!(full, Some(Error::Full(_))), "{full:?}");
    c.unlock(LockLevel::None).unwrap();
    assert!(home(&sim) == before);
    commit(&mut c, 2);
    c.close().unwrap();
    assert_eq!(home(&sim).len(), before.len());
}

/// A commit that adds pages asks for their room again, which the cut gave back.
#[test]
fn a_rollback_that_cuts_home_gives_reserved_room_back() {
    let (sim, mut c) = database();
    let grow = |pages: u64| {
        let mut first = all(0).remove(0).1;
        first[31] = pages as u8;
        [(0, first), (pages - 1, page(pages))]
    };
    write(&mut c, &grow(4));
    begin(&mut c);
    all(100).iter().for_each(|(n, image)| c.write_at(image, n * PAGE as u64).unwrap());
    c.unlock(LockLevel::None).unwrap();
    sim.set_capacity(sim.used_bytes());
    begin(&mut c);
    grow(5).iter().for_each(|(n, image)| c.write_at(image, n * PAGE as u64).unwrap());
    let full = c.prepare(None);
    assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
    c.unlock(LockLevel::None).unwrap();
    sim.set_capacity(SimConfig::default().capacity);
    write(&mut c, &grow(5));
    c.close().unwrap();
    assert_eq!(home(&sim).len(), 5 * PAGE);
}

/// It checkpoints when there is room again: images for the other's snapshot need some. Records may
/// follow, for all that streamed is at home.
#[test]
fn a_process_without_room_for_its_checkpoint_follows_the_others() {
    let (sim, c) = database();
    c.close().unwrap();
    let (mut streams, mut other, mut reader) = (open(sim.clone()), open(sim.clone()), open(sim.clone()));
    commit(&mut streams, 2);
    commit(&mut other, 3);
    reader.lock(LockLevel::Shared).unwrap();
    begin(&mut streams);
    let added = all(100).into_iter().filter(|(n, _)| *n == 0 || *n > 2);
    added.for_each(|(n, image)| streams.write_at(&image, n * PAGE as u64).unwrap());
    streams.prepare(None).unwrap();
    streams.sync().unwrap();
    sim.set_capacity(sim.used_bytes());
    streams.commit().unwrap();
    streams.unlock(LockLevel::None).unwrap();
    let checkpoints = |c: &mut Connection| {
        let stats = c.pragma("stats", None).unwrap().unwrap();
        stats.lines().find_map(|line| line.strip_prefix("checkpoints=")).unwrap().to_owned()
    };
    let before = checkpoints(&mut streams);
    for n in [4, 5] {
        commit(&mut other, n);
        commit(&mut streams, n + 10);
        streams.lock(LockLevel::Shared).unwrap();
        let mut image = vec![0; PAGE];
        for (page, expected) in [(1, page(n + 10)), (PAGES - 1, page(100 + PAGES - 1))] {
            streams.read_at(&mut image, page * PAGE as u64).unwrap();
            assert!(image == expected, "page {page} behind commit {n}");
        }
        streams.unlock(LockLevel::None).unwrap();
    }
    assert_eq!(checkpoints(&mut streams), before, "there was no room");
    let mut old = vec![0; PAGE];
    reader.read_at(&mut old, PAGE as u64).unwrap();
    assert!(old == page(3), "the snapshot from before");
    reader.unlock(LockLevel::None).unwrap();
    sim.set_capacity(SimConfig::default().capacity);
    commit(&mut streams, 6);
    [reader, other, streams].into_iter().for_each(|c| c.close().unwrap());
    assert!(home(&sim)[PAGE..2 * PAGE] == page(6) && home(&sim).len() == PAGES as usize * PAGE);
}

/// SQLite goes on in the transaction of a commit that failed: it writes old pages to roll back, and
/// in exclusive mode those of the next one.
#[test]
fn a_commit_that_found_no_room_leaves_its_pages_in_memory() {
    const FEW: usize = 13;
    let few = |n: u64| {
        let mut pages: Vec<_> = all(n).into_iter().take(FEW).map(|(_, image)| image).collect();
        pages[0][31] = FEW as u8;
        pages.concat()
    };
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &few(100));
    // A record has whole pages, and they fill more than half of the ring.
    let mut c = open_as("wal-opt", sim.clone());
    write(&mut c, &[(1, page(101))]);
    let used = sim.used_bytes();
    let seen = |c: &mut Connection| {
        let mut home = vec![0; FEW * PAGE];
        home.chunks_mut(PAGE).zip(0..).for_each(|(to, n)| assert_eq!(c.read_at(to, n * PAGE as u64).unwrap(), PAGE));
        home
    };
    let overwrite = |c: &mut Connection, n| {
        few(n).chunks(PAGE).zip(0..).for_each(|(image, n)| c.write_at(image, n * PAGE as u64).unwrap());
    };
    for behind in [100, 300] {
        sim.set_capacity(used + 6 * PAGE as u64);
        begin(&mut c);
        overwrite(&mut c, 200);
        let full = c.prepare(None);
        assert!(matches!(full, Err(Error::Full(_))), "{full:?}");
        overwrite(&mut c, behind);
        assert!(seen(&mut c) == few(behind), "a page of the commit that failed is read");
        sim.set_capacity(1 << 20);
        c.prepare(None).unwrap();
        c.sync().unwrap();
        c.commit().unwrap();
        assert!(seen(&mut c)[PAGE..] == few(behind)[PAGE..], "a page of the commit that failed is committed");
        c.unlock(LockLevel::None).unwrap();
    }
    c.close().unwrap();
    assert!(home(&sim)[PAGE..] == few(300)[PAGE..]);
}

/// Between the record and the checkpoint that follows it, no list of changes has these pages.
#[test]
fn another_process_knows_that_its_list_of_changes_lacks_them() {
    let (sim, c) = database();
    c.close().unwrap();
    let process = Hooked::new(&sim);
    let mut writer = open(process.clone());
    let mut other = open(sim.clone());
    commit(&mut writer, 2);
    let mut look = move || {
        other.lock(LockLevel::Shared).unwrap();
        let said = other.pragma("changes", None).unwrap().unwrap();
        other.unlock(LockLevel::None).unwrap();
        said
    };
    look();
    commit(&mut writer, 3);
    assert!(look().contains("pages=2:"), "a small one is listed");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    process.at("/db", move |call| {
        if matches!(call, Call::Write { offset: 0, .. }) {
            into.lock().push(look());
        }
    });
    write(&mut writer, &all(100));
    process.leave("/db");
    let seen = seen.lock();
    let of = |said: &str, name: &str| said.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    let newest = seen.iter().rev().find(|said| of(said, "tid=").is_some()).expect("it was looked at");
    assert_eq!(of(newest, "since="), of(newest, "tid="), "{newest}");
}

/// A slot that a device damaged leaves the older one, whose records have pages behind home's end.
#[test]
fn records_of_a_longer_state_are_not_replayed_over_them() {
    let (sim, mut c) = database();
    let first = |pages: u64| {
        (0, {
            let mut first = plain(0)[..PAGE].to_vec();
            first[31] = pages as u8;
            first
        })
    };
    let longer: Vec<_> = [first(9)].into_iter().chain((3..9).map(|p| (p, page(p)))).collect();
    write(&mut c, &longer);
    begin(&mut c);
    c.write_at(&first(3).1, 0).unwrap();
    c.truncate(3 * PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
    begin(&mut c);
    all(100).iter().for_each(|(n, image)| c.write_at(image, n * PAGE as u64).unwrap());
    c.prepare(None).unwrap();
    c.sync().unwrap();
    // The record's write and flush, and no checkpoint.
    sim.stop_after(2);
    let _ = c.commit();
    std::mem::forget(c);
    for slot in [1, 2] {
        let crashed = sim.survive();
        assert!(crashed.flip_bit(Path::new("/db-onewrite"), slot * PAGE as u64 + 40, 0));
        let mut c = open(crashed.clone());
        c.lock(LockLevel::Shared).unwrap();
        c.unlock(LockLevel::None).unwrap();
        c.close().unwrap();
        let home = home(&crashed);
        assert_eq!(home.len(), PAGES as usize * PAGE, "slot {slot}");
        let other = home[PAGE..].chunks(PAGE).zip(101..).find(|(image, n)| *image != page(*n));
        assert!(other.is_none(), "slot {slot}: page {:?}", other.map(|(_, n)| n - 99));
    }
}

/// Another program copies home, and the log behind the commit (rule HomeFitsLog).
#[test]
fn a_copy_of_home_without_the_streamed_pages_does_not_fit_the_record() {
    let (sim, mut c) = database();
    let mut copies = vec![home(&sim)];
    for n in [300, 100] {
        begin(&mut c);
        for (at, image) in all(n) {
            c.write_at(&image, at * PAGE as u64).unwrap();
            if at == PAGES / 2 || at == PAGES - 1 {
                copies.push(home(&sim));
            }
        }
        c.prepare(None).unwrap();
        copies.push(home(&sim));
        if n == 300 {
            c.unlock(LockLevel::None).unwrap();
        }
    }
    c.sync().unwrap();
    // The record's write and flush, and no checkpoint.
    sim.stop_after(2);
    let _ = c.commit();
    std::mem::forget(c);
    let fitting = copies.len() - 1;
    for (n, copy) in copies.iter().enumerate() {
        let pair = sim.survive();
        pair.put_file(Path::new("/db"), copy);
        let mut c = open(pair.clone());
        match c.lock(LockLevel::Shared) {
            Err(e) => assert!(n != fitting && e.to_string().contains("older"), "copy {n}: {e}"),
            Ok(()) => {
                assert_eq!(n, fitting, "a pair");
                let pages = read(&mut c);
                assert!(pages.iter().zip(101..).all(|(image, n)| *image == page(n)));
            }
        }
    }
}

/// All pages but the first.
fn read(c: &mut Connection) -> Vec<Vec<u8>> {
    let one = |n: u64| {
        let mut image = vec![0; PAGE];
        c.read_at(&mut image, n * PAGE as u64).unwrap();
        image
    };
    (1..PAGES).map(one).collect()
}
