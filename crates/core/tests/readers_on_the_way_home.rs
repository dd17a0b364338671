//! A reader that comes while a transaction is on its way home sees one state whole, not what home happens to hold
//! (invariant I4): SQLite would keep an old page under the new change counter, and the next commit built on it would
//! lose an acknowledged one (I1).

mod common;

use std::path::Path;
use std::sync::Arc;

use common::hooked::{Call, Hooked};
use common::{PAGE, page, plain, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};
use parking_lot::Mutex;

/// Calls `visit` before each write to the database file.
fn visit(process: &Hooked, mut visit: impl FnMut() + Send + 'static) {
    process.at("/db", move |call| {
        if matches!(call, Call::Write { durable: false, .. }) {
            visit();
        }
    });
}

/// A database of `pages` pages without a transaction, and the disk of the process that uses it.
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
fn who_comes_while_a_big_transaction_goes_home_reads_it_with_older_snapshots_about() {
    const PAGES: u64 = 24;
    for scheme in ["log", "wal-opt"] {
        let (engine, process) = database(PAGES);
        let options = [("scheme", scheme), ("stream_size", "64K"), ("log_size", "1M")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let (mut older, mut comer, mut writer) = (open(), open(), open());
        write(&mut writer, &numbered(1..2, 1));
        writer.pragma("checkpoint", None).unwrap().unwrap();
        // Pinned until the end: what home holds is kept for it, and home listed as the place of what comes.
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

/// Under `off` every transaction goes home with its commit, under `dash` before or after it is one, and is no reader's before
/// that.
#[test]
fn who_comes_while_a_transaction_goes_home_with_its_commit_reads_none_of_it() {
    const PAGES: u64 = 12;
    for scheme in ["off", "dash"] {
        let (engine, process) = database(PAGES);
        let options = [("scheme".to_owned(), scheme.to_owned())];
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let mut writer = open();
        let every_other = |n| numbered(1..PAGES, n).into_iter().step_by(2).collect::<Vec<_>>();
        write(&mut writer, &every_other(1));
        // Twice, for two files that take turns.
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

/// The same for a process that attaches while another one brings a big transaction home, beside a third: header and pages are of one state.
#[test]
fn who_attaches_while_a_big_transaction_goes_home() {
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
        // Those that have read stay attached.
        comers.lock().push(comer);
    });
    write(&mut writer, &all(7));
    process.leave("/db");
    let seen = seen.lock();
    assert!(seen.len() > 1, "it went home with its commit");
    for (n, images) in seen.iter().enumerate() {
        let (free, old) = (images[0][FREE_PAGES], images[1..].iter().filter(|image| **image == page(0)).count());
        assert_eq!((free, old), (0, images.len() - 1), "before write {n} to home");
    }
}

/// The first process of several holds PENDING and has left, or died. The last one brings pages home and takes the mark off: SQLite without
/// onewrite, which looks at the length of the file and then at the header, must not come between (rule PendingHeld).
#[test]
fn who_closes_last_keeps_stock_sqlite_out() {
    const PENDING: u64 = 0x4000_0000;
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let process = Hooked::new(&sim);
    let open = |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
    let mut first = open(Arc::new(sim.clone()));
    let mut last = open(Arc::new(process.clone()));
    write(&mut first, &numbered(1..2, 1));
    reads(&mut last, 1..2);
    first.close().unwrap();
    let kept_out = Arc::new(Mutex::new(Vec::new()));
    let (into, stock) = (kept_out.clone(), sim.open(Path::new("/db"), OpenMode::ReadWrite).unwrap());
    visit(&process, move || into.lock().push(stock.conflicts(PENDING, 1, LockKind::Shared).unwrap()));
    last.close().unwrap();
    let kept_out = kept_out.lock();
    assert!(!kept_out.is_empty() && kept_out.iter().all(|kept_out| *kept_out), "{kept_out:?}");
}

/// SQLite without onewrite that has looked at the length of the file before a recovery, and reads the header behind it, while nobody held
/// PENDING: the last to close waits until it has read the mark (rule PendingHeld).
#[test]
fn who_closes_last_waits_for_stock_sqlite_that_has_begun_to_read() {
    const SHARED: (u64, u64) = (0x4000_0002, 510);
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
        if matches!(call, Call::Lock { start, len, kind: LockKind::Exclusive } if (start, len) == SHARED) {
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

/// A process dies as it brings a big transaction home, and another one goes on with that: nobody reads a state of which home has only a part
/// (rule KeptForSnapshots). It was alone, and others have come meanwhile.
#[test]
fn who_comes_before_a_process_dies_on_the_way_home() {
    a_process_dies_on_the_way_home(false);
}

/// The same with others beside it from the start, none of which reads at that moment: what was kept for them stays.
#[test]
fn who_is_there_before_a_process_dies_on_the_way_home() {
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
        // Every other page, so that each is a write of its own.
        let big: Vec<_> = numbered(1..PAGES, 2).into_iter().step_by(2).collect();
        let process = Hooked::new(&sim);
        let (mut next, mut comer) = (open(Arc::new(process.clone())), open(Arc::new(sim.clone())));
        if others_are_there {
            assert_eq!([reads(&mut next, 1..2), reads(&mut comer, 1..2)], [[page(0)], [page(0)]]);
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
                // The transaction is on its way home, and images of home are kept for those that were there.
                assert_eq!(c.lock(LockLevel::Shared).is_ok(), others_are_there);
                let _ = c.unlock(LockLevel::None);
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
        let mut mixed = Vec::new();
        let seen: Arc<Mutex<Vec<Vec<Vec<u8>>>>> = Arc::default();
        let into = seen.clone();
        let look = move |comer: &mut Connection| {
            if comer.lock(LockLevel::Shared).is_err() {
                return;
            }
            let images = (1..PAGES).step_by(2).map(|p| {
                let mut image = vec![0; PAGE];
                comer.read_at(&mut image, p * PAGE as u64).map(|_| image)
            });
            if let Ok(images) = images.collect::<Result<Vec<_>, _>>() {
                into.lock().push(images);
            }
            comer.unlock(LockLevel::None).unwrap();
        };
        let mut looks = 0;
        visit(&process, move || {
            looks += 1;
            if looks < 4 {
                look(&mut comer);
            }
        });
        if others_are_there {
            // Who goes on has no snapshot of its own yet.
            next = open(Arc::new(process.clone()));
        }
        for _ in 0..3 {
            if next.lock(LockLevel::Shared).is_ok() {
                let _ = next.lock(LockLevel::Reserved);
            }
            let _ = next.unlock(LockLevel::None);
        }
        process.leave("/db");
        for (n, images) in seen.lock().iter().enumerate() {
            let old = images.iter().filter(|image| **image != page(2)).count();
            if old != 0 && old != images.len() {
                mixed.push((n, old));
            }
        }
        assert!(mixed.is_empty(), "behind {lives} writes: reads with so many old pages: {mixed:?}");
        assert!(reads(&mut next, 1..PAGES).iter().step_by(2).all(|image| *image == page(2)), "behind {lives} writes");
    }
    assert_eq!(died, 3);
}
