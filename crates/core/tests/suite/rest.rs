//! A process detaches with open connections: home is a plain file until the next transaction.

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use common::hooked::{Call, Hooked};
use common::{PAGE, commit, page, plain};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use onewrite_core::{Connection, Engine, Error, Instant, LockLevel};
use parking_lot::Mutex;

const DB: &str = "/db";

fn disk() -> SimDisk {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(DB), &plain(0));
    disk
}

fn process(disk: impl Disk + 'static) -> Arc<Engine> {
    Engine::new(Arc::new(disk))
}

fn open(engine: &Arc<Engine>, given: &[(&str, &str)]) -> Connection {
    let mut options = vec![("log_size".to_owned(), "256k".to_owned()), ("busy_ms".to_owned(), "0".to_owned())];
    options.extend(given.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    engine.open(Path::new(DB), OpenMode::ReadWrite, &options).unwrap()
}

fn rest(engine: &Engine) {
    engine.rest(|path, e| panic!("{}: {e}", path.display()));
}

fn number(bytes: &[u8]) -> u64 {
    let n = u64::from_le_bytes(bytes[200..208].try_into().unwrap());
    assert!(bytes == page(n), "a page of no transaction");
    n
}

fn newest(c: &mut Connection) -> u64 {
    c.lock(LockLevel::Shared).unwrap();
    let mut b = vec![0; PAGE];
    c.read_at(&mut b, PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    number(&b)
}

fn at_rest(disk: &SimDisk) -> Option<u64> {
    let home = disk.snapshot_file(Path::new(DB)).unwrap();
    (home[19] == 1).then(|| {
        assert_eq!(home.len(), 3 * PAGE);
        number(&home[PAGE..2 * PAGE])
    })
}

#[test]
fn an_unused_connection_leaves_a_plain_file_and_goes_on_with_the_next_transaction() {
    let disk = disk();
    let engine = process(disk.clone());
    let mut c = open(&engine, &[]);
    for n in 1..=5 {
        commit(&mut c, n);
        assert_eq!((at_rest(&disk), c.is_live()), (None, true));
        rest(&engine);
        assert_eq!((at_rest(&disk), c.is_live()), (Some(n), false));
        assert_eq!(newest(&mut c), n);
    }
    disk.reset_counters();
    rest(&engine);
    assert_eq!((disk.counters().writes, disk.counters().flushes()), (0, 0));
    c.close().unwrap();
    assert_eq!(at_rest(&disk), Some(5));
}

/// SQLite's busy handler: between two tries it sleeps by xSleep, without a lock.
fn write_lock(c: &mut Connection) {
    loop {
        match c.lock(LockLevel::Shared).and_then(|()| c.lock(LockLevel::Reserved)) {
            Ok(()) => return,
            Err(Error::Busy(_)) => {
                c.unlock(LockLevel::None).unwrap();
                let time = Duration::from_millis(100);
                if !onewrite_core::nap(time) {
                    std::thread::sleep(time);
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
}

/// A read ends when another has begun, or none could for a while.
#[test]
fn readers_that_overlap_for_ever_make_way_for_a_writer() {
    const READS: u32 = 200;
    let disk = disk();
    let written = AtomicBool::new(false);
    let (made, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let read = || {
        let engine = process(disk.clone());
        let mut c = open(&engine, &[]);
        while !written.load(Relaxed) && made.load(Relaxed) < READS {
            match c.lock(LockLevel::Shared) {
                Ok(()) => {}
                Err(Error::Busy(_)) => {
                    refused.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(e) => panic!("{e}"),
            }
            refused.store(0, Relaxed);
            let n = 1 + made.fetch_add(1, Relaxed);
            std::thread::sleep(Duration::from_millis(2));
            while made.load(Relaxed) == n && refused.load(Relaxed) < 30 && !written.load(Relaxed) && n < READS {
                std::thread::sleep(Duration::from_millis(1));
            }
            c.unlock(LockLevel::None).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(read);
        }
        while made.load(Relaxed) < 3 {
            std::thread::yield_now();
        }
        let engine = process(disk.clone());
        let mut c = open(&engine, &[]);
        write_lock(&mut c);
        written.store(true, Relaxed);
        c.unlock(LockLevel::None).unwrap();
    });
    assert!(made.into_inner() < READS, "it came to write after the last of them");
}

#[test]
fn another_program_writes_the_file_at_rest() {
    let disk = disk();
    let engine = process(disk.clone());
    let mut c = open(&engine, &[]);
    commit(&mut c, 1);
    rest(&engine);
    let mut home = disk.snapshot_file(Path::new(DB)).unwrap();
    home[PAGE..2 * PAGE].copy_from_slice(&page(7));
    let counter = u32::from_be_bytes(home[24..28].try_into().unwrap()) + 1;
    home[24..28].copy_from_slice(&counter.to_be_bytes());
    home[92..96].copy_from_slice(&counter.to_be_bytes());
    let file = disk.open(Path::new(DB), OpenMode::ReadWrite).unwrap();
    file.write_at(&home, 0).unwrap();
    assert_eq!(newest(&mut c), 7);
    commit(&mut c, 8);
    assert_eq!(newest(&mut c), 8);
    rest(&engine);
    assert_eq!(at_rest(&disk), Some(8));
}

#[test]
fn a_transaction_keeps_the_process_attached() {
    let disk = disk();
    let engine = process(disk.clone());
    let mut c = open(&engine, &[]);
    let mut other = open(&engine, &[]);
    commit(&mut c, 1);
    other.lock(LockLevel::Shared).unwrap();
    rest(&engine);
    assert_eq!((at_rest(&disk), c.is_live()), (None, true));
    other.lock(LockLevel::Reserved).unwrap();
    rest(&engine);
    assert_eq!((at_rest(&disk), c.is_live()), (None, true));
    other.unlock(LockLevel::None).unwrap();
    rest(&engine);
    assert_eq!(at_rest(&disk), Some(1));
}

#[test]
fn the_last_of_several_processes_leaves_the_plain_file() {
    let disk = disk();
    let engines = [(); 3].map(|()| process(disk.clone()));
    let mut all = engines.each_ref().map(|engine| open(engine, &[]));
    for round in 0..4 {
        for (n, c) in (1..).zip(&mut all) {
            commit(c, 3 * round + n);
        }
        for n in 0..3 {
            assert_eq!(at_rest(&disk), None);
            rest(&engines[(round as usize + n) % 3]);
        }
        assert_eq!(at_rest(&disk), Some(3 * round + 3));
        assert!(all.iter().all(|c| !c.is_live()));
    }
}

#[test]
fn a_silent_process_keeps_stock_out_behind_one_that_left() {
    let disk = disk();
    let engines = [(); 2].map(|()| process(disk.clone()));
    let [mut first, mut second] = engines.each_ref().map(|engine| open(engine, &[]));
    let home = disk.open(Path::new(DB), OpenMode::ReadWrite).unwrap();
    let is_kept_out = || home.conflicts(0x4000_0002, 510, LockKind::Shared).unwrap();
    let look = || engines[1].look_after(Instant::now(), |path, e| panic!("{}: {e}", path.display()));
    for n in [1, 3] {
        commit(&mut first, n);
        commit(&mut second, n + 1);
        rest(&engines[0]);
        assert_eq!((at_rest(&disk), second.is_live()), (None, true));
        assert!(look().is_some() && is_kept_out(), "while it may commit again");
        rest(&engines[1]);
        assert_eq!(at_rest(&disk), Some(n + 1));
        assert!(look().is_none() && !is_kept_out());
    }
}

#[test]
fn a_database_marked_on_purpose_does_not_rest() {
    for given in [("sticky", "1"), ("concurrent", "1"), ("scheme", "dash")] {
        let disk = disk();
        let engine = process(disk.clone());
        let mut c = open(&engine, &[given]);
        commit(&mut c, 1);
        rest(&engine);
        assert!(c.is_live(), "{given:?}");
        assert_eq!(newest(&mut c), 1);
    }
}

#[test]
fn a_rest_may_be_cut_short_or_overtaken_anywhere() {
    let (mut cuts, mut overtaken) = (0, 0);
    for (n, cut) in (1..40).flat_map(|n| [(n, true), (n, false)]) {
        let disk = disk();
        let entered = Hooked::new(&disk);
        let engine = process(entered.clone());
        let mut c = open(&engine, &[]);
        commit(&mut c, 1);
        commit(&mut c, 2);
        let found = Arc::new(Mutex::new(None));
        let (seen, whole, mut calls) = (found.clone(), disk.clone(), 0);
        let mut other = open(&process(disk.clone()), &[]);
        entered.at(DB, move |_: Call| {
            calls += 1;
            if calls == n && cut {
                *seen.lock() = Some(whole.crash(n));
            } else if calls == n && common::try_write(&mut other, [(1, page(3))].into_iter()).is_ok() {
                *seen.lock() = Some(whole.clone());
            }
        });
        rest(&engine);
        entered.leave(DB);
        let Some(found) = found.lock().take() else { continue };
        cuts += u32::from(cut);
        overtaken += u32::from(!cut);
        let newest_now = if cut { 2 } else { 3 };
        assert_eq!(newest(&mut open(&process(found), &[])), newest_now, "call {n}, cut {cut}");
        assert_eq!(newest(&mut c), newest_now, "call {n}, cut {cut}");
    }
    assert!(cuts > 3 && overtaken > 0, "{cuts} {overtaken}");
}
