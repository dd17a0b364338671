//! A reader that comes while a transaction goes home sees one whole state (invariant I4). Else
//! SQLite would keep an old page under the new change counter, and the next commit would lose an
//! acknowledged one (I1).

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::hooked::{Call, Hooked};
use common::{PAGE, page, plain, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};
use parking_lot::Mutex;

fn visit(process: &Hooked, mut visit: impl FnMut() + Send + 'static) {
    process.at("/db", move |call| {
        if matches!(call, Call::Write { durable: false, .. }) {
            visit();
        }
    });
}

fn database(pages: u64) -> (Arc<Engine>, Hooked) {
    let sim = SimDisk::new(SimConfig::default());
    let mut bytes = plain(0)[..PAGE].to_vec();
    bytes[31] = pages as u8;
    bytes.extend((1..pages).flat_map(|_| page(0)));
    sim.put_file(Path::new("/db"), &bytes);
    let process = Hooked::new(&sim);
    (Engine::new(Arc::new(process.clone())), process)
}

fn numbered(pages: std::ops::Range<u64>, n: u64) -> Vec<(u64, Vec<u8>)> {
    pages.map(|p| (p, page(n))).collect()
}

fn reads(c: &mut Connection, pages: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    c.lock(LockLevel::Shared).unwrap();
    let mut images = Vec::new();
    for p in pages {
        let mut image = vec![0; PAGE];
        assert_eq!(c.read_at(&mut image, p * PAGE as u64).unwrap(), PAGE);
        images.push(image);
    }
    c.unlock(LockLevel::None).unwrap();
    images
}

#[test]
fn a_process_that_comes_while_a_big_transaction_goes_home_reads_it_beside_older_snapshots() {
    const PAGES: u64 = 24;
    for scheme in ["log", "wal-opt"] {
        let (engine, process) = database(PAGES);
        let options = [("scheme", scheme), ("stream_size", "64K"), ("log_size", "1M")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let (mut older, mut comer, mut writer) = (open(), open(), open());
        write(&mut writer, &numbered(1..2, 1));
        writer.pragma("checkpoint", None).unwrap().unwrap();
        older.lock(LockLevel::Shared).unwrap();

        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        visit(&process, move || into.lock().push(reads(&mut comer, 1..PAGES)));
        write(&mut writer, &numbered(1..PAGES, 2));
        process.leave("/db");

        let seen = seen.lock();
        assert!(!seen.is_empty(), "{scheme}: it went home with its commit");
        for (write, images) in seen.iter().enumerate() {
            let old: Vec<_> = (1..PAGES).zip(images).filter(|(_, image)| **image != page(2)).map(|(p, _)| p).collect();
            assert!(old.is_empty(), "{scheme}: before write {write} to home, old bytes are read at pages {old:?}");
        }
        older.unlock(LockLevel::None).unwrap();
        assert!(reads(&mut writer, 1..PAGES).iter().all(|image| *image == page(2)));
    }
}

#[test]
fn a_read_of_a_home_that_rests_is_of_its_snapshot_though_it_is_written_meanwhile() {
    const PAGES: u64 = 12;
    // The first page of several, and one by itself.
    for asked in [[4, 5], [4, 9]] {
        let (engine, process) = database(PAGES);
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
        let (mut reader, mut writer) = (open(), open());
        reader.lock(LockLevel::Shared).unwrap();
        let at = asked[1] * PAGE as u64;
        process.at("/db", move |call| {
            if matches!(call, Call::Read { offset, bytes } if offset == at && bytes >= PAGE) {
                write(&mut writer, &numbered(1..PAGES, 1));
                writer.pragma("checkpoint", None).unwrap().unwrap();
            }
        });
        for page_number in asked {
            let mut image = vec![0; PAGE];
            assert_eq!(reader.read_at(&mut image, page_number * PAGE as u64).unwrap(), PAGE);
            assert!(image == page(0), "page {page_number} of {asked:?}");
        }
        process.leave("/db");
        reader.unlock(LockLevel::None).unwrap();
        assert!(reads(&mut reader, 1..PAGES).iter().all(|image| *image == page(1)), "{asked:?}: it was written");
    }
}

#[test]
fn a_process_that_comes_while_a_transaction_goes_home_with_its_commit_reads_none_of_it() {
    const PAGES: u64 = 12;
    for scheme in ["off", "dash"] {
        let (engine, process) = database(PAGES);
        let options = [("scheme".to_owned(), scheme.to_owned())];
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let mut writer = open();
        let every_other = |n| numbered(1..PAGES, n).into_iter().step_by(2).collect::<Vec<_>>();
        write(&mut writer, &every_other(1));
        for n in 2..4 {
            let mut comer = open();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let into = seen.clone();
            let before = reads(&mut comer, 1..PAGES);
            visit(&process, move || into.lock().push(reads(&mut comer, 1..PAGES)));
            write(&mut writer, &every_other(n));
            process.leave("/db");
            let seen = seen.lock();
            assert!(seen.len() > 1, "{scheme}: {} writes to home", seen.len());
            assert!(seen.iter().all(|images| *images == before), "{scheme}: transaction {n}");
            assert_eq!(reads(&mut writer, 1..2), [page(n)]);
        }
    }
}

fn newest(c: &mut Connection, pages: u64) -> u64 {
    let images = reads(c, 1..pages);
    let number = u64::from_le_bytes(images[0][200..208].try_into().unwrap());
    let other = images.iter().position(|image| *image != page(number));
    assert_eq!(other, None, "a page that is not of transaction {number}");
    number
}

/// Each streams to the place of the one before. No reader sees an older state than another
/// process's (rule SeenWhenDurable).
#[test]
fn a_process_that_comes_after_a_reader_of_another_reads_no_older_state() {
    const PAGES: u64 = 24;
    for scheme in ["log", "wal-opt"] {
        let sim = SimDisk::new(SimConfig::default());
        let mut bytes = plain(0)[..PAGE].to_vec();
        bytes[31] = PAGES as u8;
        bytes.extend((1..PAGES).flat_map(|_| page(0)));
        sim.put_file(Path::new("/db"), &bytes);
        let options = [("scheme", scheme), ("stream_size", "64K"), ("log_size", "1M"), ("busy_ms", "0")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let open = |engine: &Arc<Engine>| engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let process = Hooked::new(&sim);
        let own = Engine::new(Arc::new(process.clone()));
        let elsewhere: [_; 2] = std::array::from_fn(|_| Engine::new(Arc::new(sim.clone())));
        let mut writer = open(&own);
        write(&mut writer, &numbered(1..PAGES, 0));
        let readers = Mutex::new([&own, &elsewhere[0], &elsewhere[1]].map(&open));
        let pinned = Mutex::new(Vec::new());
        let found: Arc<Mutex<Vec<String>>> = Arc::default();
        let into = found.clone();
        let (mut told, mut calls, mut seen_early) = (0, 0, 0);
        let ahead = Arc::new(Mutex::new((0, 0)));
        let counts = ahead.clone();
        let snapshots: [_; 6] = std::array::from_fn(|n| open(&elsewhere[n % 2]));
        let mut snapshots = snapshots.into_iter();
        process.at("/db", move |call| {
            if !matches!(call, Call::Write { .. }) {
                return;
            }
            calls += 1;
            for at in [calls, calls + 1, calls + 2] {
                let number = newest(&mut readers.lock()[at % 3], PAGES);
                if number < told {
                    into.lock().push(format!("call {calls}: reader {} finds {number} behind {told}", at % 3));
                }
                seen_early += u64::from(number > told);
                told = told.max(number);
            }
            if calls % 4 == 1
                && let Some(mut snapshot) = snapshots.next()
            {
                snapshot.lock(LockLevel::Shared).unwrap();
                let mut image = vec![0; PAGE];
                snapshot.read_at(&mut image, PAGE as u64).unwrap();
                pinned.lock().push((u64::from_le_bytes(image[200..208].try_into().unwrap()), snapshot));
            }
            for (number, snapshot) in pinned.lock().iter_mut() {
                let mut image = vec![0; PAGE];
                let mut is_changed = |p| {
                    snapshot.read_at(&mut image, p * PAGE as u64).unwrap();
                    image != page(*number)
                };
                if let Some(p) = (1..PAGES).find(|p| is_changed(*p)) {
                    into.lock().push(format!("call {calls}: page {p} of the snapshot {number} has changed"));
                }
            }
            *counts.lock() = (calls, seen_early);
        });
        for n in 1..6 {
            write(&mut writer, &numbered(1..PAGES, n));
        }
        process.leave("/db");
        assert_eq!(*found.lock(), [""; 0], "{scheme}");
        let (calls, early) = *ahead.lock();
        assert!(calls > 10 && early == 5, "{scheme}: {calls} writes to home, {early} of 5 seen on the way");
    }
}

#[test]
fn an_attachment_while_a_big_transaction_goes_home() {
    const PAGES: u64 = 24;
    const FREE_PAGES: usize = 39;
    let sim = SimDisk::new(SimConfig::default());
    let image = |p: u64, n: u8| match p {
        0 => {
            let mut header = plain(0)[..PAGE].to_vec();
            (header[31], header[FREE_PAGES]) = (PAGES as u8, n);
            header
        }
        _ => page(n.into()),
    };
    let all = |n: u8| (0..PAGES).map(|p| (p, image(p, n))).collect::<Vec<_>>();
    sim.put_file(Path::new("/db"), &all(0).into_iter().flat_map(|(_, image)| image).collect::<Vec<_>>());
    let options = [("stream_size", "64K"), ("log_size", "1M")];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let process = Hooked::new(&sim);
    let open = |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    let mut writer = open(Arc::new(process.clone()));
    write(&mut writer, &numbered(1..2, 0));
    let mut other = open(Arc::new(sim.clone()));
    reads(&mut other, 1..2);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (into, comers) = (seen.clone(), Arc::new(Mutex::new(Vec::new())));
    let given = options.clone();
    visit(&process, move || {
        let mut comer = Engine::new(Arc::new(sim.clone())).open(Path::new("/db"), OpenMode::ReadWrite, &given).unwrap();
        into.lock().push(reads(&mut comer, 0..PAGES));
        comers.lock().push(comer);
    });
    write(&mut writer, &all(7));
    process.leave("/db");
    let seen = seen.lock();
    assert!(seen.len() > 1, "it went home with its commit");
    for (n, images) in seen.iter().enumerate() {
        let (free, new) = (images[0][FREE_PAGES], images[1..].iter().filter(|image| **image == page(7)).count());
        assert_eq!((free, new), (7, images.len() - 1), "before write {n} to home");
    }
}

#[test]
fn a_snapshot_that_a_page_was_added_behind_is_kept_no_image_of_it() {
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let [here, elsewhere] = std::array::from_fn(|_| Engine::new(Arc::new(sim.clone())));
    let open = |engine: &Arc<Engine>| engine.open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
    let (mut writer, mut checkpointer) = (open(&elsewhere), open(&here));
    write(&mut writer, &numbered(1..2, 1));
    let pin = || {
        let mut c = open(&here);
        c.lock(LockLevel::Shared).unwrap();
        c
    };
    let _too_short = pin();
    let mut first = plain(0)[..PAGE].to_vec();
    first[31] = 4;
    write(&mut writer, &[(0, first), (3, page(2))]);
    let mut added = pin();
    write(&mut writer, &numbered(3..4, 3));
    writer.pragma("checkpoint", None).unwrap().unwrap();
    let mut changed = pin();
    write(&mut writer, &numbered(3..4, 4));
    checkpointer.pragma("checkpoint", None).unwrap().unwrap();
    for (snapshot, n) in [(&mut added, 2), (&mut changed, 3), (&mut pin(), 4)] {
        let mut image = vec![0; PAGE];
        snapshot.read_at(&mut image, 3 * PAGE as u64).unwrap();
        assert!(image == page(n), "the snapshot of {n}");
    }
}

const SHARED: (u64, u64) = (0x4000_0002, 510);

/// Stock SQLite, which reads the length and then the header, must not come between the pages and
/// the mark's removal (rule StockKeptOut).
#[test]
fn the_first_and_the_last_close_keep_stock_sqlite_out() {
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let process = Hooked::new(&sim);
    let open = |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
    let mut first = open(Arc::new(process.clone()));
    let mut last = open(Arc::new(process.clone()));
    write(&mut first, &numbered(1..2, 1));
    reads(&mut last, 1..2);
    let kept_out = Arc::new(Mutex::new(Vec::new()));
    let (into, stock) = (kept_out.clone(), sim.open(Path::new("/db"), OpenMode::ReadWrite).unwrap());
    let is_kept_out = move || stock.conflicts(SHARED.0, SHARED.1, LockKind::Shared).unwrap();
    first.close().unwrap();
    assert!(is_kept_out());
    visit(&process, move || into.lock().push(is_kept_out()));
    last.close().unwrap();
    let kept_out = kept_out.lock();
    assert!(!kept_out.is_empty() && kept_out.iter().all(|kept_out| *kept_out), "{kept_out:?}");
}

/// Stock SQLite reads the length before a recovery and the header after it, with a lock from
/// before that (rule StockKeptOut).
#[test]
fn the_last_close_waits_for_stock_sqlite_that_has_begun_to_read() {
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let open = |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
    let dead = Hooked::new(&sim);
    let mut first = open(Arc::new(dead.clone()));
    write(&mut first, &numbered(1..3, 1));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dead.die())).is_err());
    std::mem::forget(first);
    let stock = sim.open(Path::new("/db"), OpenMode::ReadWrite).unwrap();
    assert!(stock.try_lock(SHARED.0, SHARED.1, LockKind::Shared).unwrap());
    let process = Hooked::new(&sim);
    let mut last = open(Arc::new(process.clone()));
    assert_eq!(reads(&mut last, 1..2), [page(1)]);
    let marks = Arc::new(Mutex::new(Vec::new()));
    let into = marks.clone();
    process.at("/db", move |call| {
        if matches!(call, Call::Lock { start, len: 1, kind: LockKind::Exclusive } if start == SHARED.0) {
            let mut read_version = [0];
            stock.read_at(&mut read_version, 19).unwrap();
            into.lock().push(read_version[0]);
            stock.unlock(SHARED.0, SHARED.1).unwrap();
        }
    });
    last.close().unwrap();
    assert_eq!(*marks.lock(), [87], "it is asked for with the mark on, and had as soon as nobody reads");
    assert_eq!(sim.snapshot_file(Path::new("/db")).unwrap()[19], 1, "the mark is off");
}

/// The dead process was alone at first (rule OldImageKept).
#[test]
fn a_process_that_comes_before_another_dies_on_the_way_home() {
    a_process_dies_on_the_way_home(false);
}

#[test]
fn a_process_that_is_attached_when_another_dies_on_the_way_home() {
    a_process_dies_on_the_way_home(true);
}

fn a_process_dies_on_the_way_home(others_are_there: bool) {
    const PAGES: u64 = 40;
    let mut died = 0;
    for lives in [1, 5, 9] {
        let sim = SimDisk::new(SimConfig::default());
        let mut bytes = plain(0)[..PAGE].to_vec();
        bytes[31] = PAGES as u8;
        bytes.extend((1..PAGES).flat_map(|_| page(0)));
        sim.put_file(Path::new("/db"), &bytes);
        let options = [("stream_size", "64K"), ("log_size", "1M"), ("busy_ms", "20")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let open =
            |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let mortal = Hooked::new(&sim);
        let mut writer = open(Arc::new(mortal.clone()));
        write(&mut writer, &numbered(1..2, 0));
        let big: Vec<_> = numbered(1..PAGES, 2).into_iter().step_by(2).collect();
        let process = Hooked::new(&sim);
        let (mut next, mut comer) = (open(Arc::new(process.clone())), open(Arc::new(sim.clone())));
        let mut older = others_are_there.then(|| open(Arc::new(sim.clone())));
        if let Some(older) = &mut older {
            assert_eq!([reads(&mut next, 1..2), reads(&mut comer, 1..2)], [[page(0)], [page(0)]]);
            older.lock(LockLevel::Shared).unwrap();
        }
        let come = Arc::new(Mutex::new(None));
        let into = come.clone();
        let (mut others, mut writes, dies) = (Some((next, comer)), 0, mortal.clone());
        mortal.at("/db", move |call| {
            if !matches!(call, Call::Write { bytes, .. } if bytes > 100) {
                return;
            }
            writes += 1;
            if writes <= lives {
                return;
            }
            let (mut next, mut comer) = others.take().unwrap();
            for c in [&mut next, &mut comer] {
                assert_eq!(reads(c, 1..2), [page(2)]);
            }
            *into.lock() = Some((next, comer));
            dies.die();
        });
        let dead = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write(&mut writer, &big))).is_err();
        std::mem::forget(writer);
        if !dead {
            continue;
        }
        died += 1;
        let (mut next, mut comer) = come.lock().take().unwrap();
        let seen: Arc<Mutex<Vec<Vec<Vec<u8>>>>> = Arc::default();
        let into = seen.clone();
        let mut looks = 0;
        visit(&process, move || {
            looks += 1;
            if looks < 4 {
                into.lock().push(reads(&mut comer, 1..PAGES).into_iter().step_by(2).collect());
            }
        });
        if others_are_there {
            next = open(Arc::new(process.clone()));
        }
        for _ in 0..3 {
            if next.lock(LockLevel::Shared).is_ok() {
                let _ = next.lock(LockLevel::Reserved);
            }
            let _ = next.unlock(LockLevel::None);
        }
        process.leave("/db");
        let seen = seen.lock();
        assert!(!seen.is_empty(), "behind {lives} writes: it went home");
        let old = |images: &Vec<Vec<u8>>| images.iter().filter(|image| **image != page(2)).count();
        let old: Vec<_> = seen.iter().map(old).collect();
        assert!(old.iter().all(|old| *old == 0), "behind {lives} writes: reads with so many old pages: {old:?}");
        assert!(reads(&mut next, 1..PAGES).iter().step_by(2).all(|image| *image == page(2)), "behind {lives} writes");
        for p in 1..older.as_ref().map_or(1, |_| PAGES) {
            let mut image = vec![0; PAGE];
            older.as_mut().unwrap().read_at(&mut image, p * PAGE as u64).unwrap();
            assert!(image == page(0), "behind {lives} writes: page {p} of an older snapshot");
        }
    }
    assert_eq!(died, 3);
}
