//! A checkpoint in slices (rule HomeBeforeSlot): no commit brings everything home, and nothing is
//! lost or seen too early.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{PAGE, plain, write};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::inspect::{LogFile, Slot};
use onewrite_core::{Connection, Engine, LockLevel, Result};

const HOME: &str = "/db";
const LOG: &str = "/db-onewrite";
const PAGES: u64 = 300;
const OPTIONS: [(&str, &str); 2] = [("table_size", "256k"), ("log_size", "1m")];

/// Of the last transaction of each page; 0: none.
type Model = Vec<u64>;

fn database(atomic_unit: u32) -> SimDisk {
    let disk = SimDisk::new(SimConfig { atomic_unit, ..SimConfig::default() });
    let mut bytes = plain(0);
    bytes[28..32].copy_from_slice(&(PAGES as u32).to_be_bytes());
    bytes[PAGE..].fill(0);
    bytes.resize(PAGES as usize * PAGE, 0);
    disk.put_file(Path::new(HOME), &bytes);
    disk
}

fn engine(disk: &SimDisk) -> Arc<Engine> {
    Engine::new(Arc::new(disk.clone()))
}

fn try_open(engine: &Arc<Engine>) -> Result<Connection> {
    let options = OPTIONS.map(|(n, v)| (n.to_owned(), v.to_owned()));
    engine.open(Path::new(HOME), OpenMode::ReadWrite, &options)
}

fn open(engine: &Arc<Engine>) -> Connection {
    try_open(engine).unwrap()
}

fn image(n: u64) -> Vec<u8> {
    let mut b = vec![0; PAGE];
    if n > 0 {
        b[8..16].copy_from_slice(&n.to_le_bytes());
        b[PAGE - 16..PAGE - 8].copy_from_slice(&n.to_le_bytes());
    }
    b
}

fn pages_of(n: u64) -> [u64; 3] {
    [31, 67, 101].map(|step| 1 + n.wrapping_mul(step).wrapping_mul(0x9e37_79b9) / 7 % (PAGES - 1))
}

fn commit(c: &mut Connection, model: &mut Model, n: u64) {
    let mut pages = pages_of(n).to_vec();
    pages.sort_unstable();
    pages.dedup();
    write(c, &pages.iter().map(|page| (*page, image(n))).collect::<Vec<_>>());
    pages.iter().for_each(|page| model[*page as usize] = n);
}

fn reads(c: &mut Connection) -> Model {
    let mut page = vec![0; PAGE];
    let mut read = |index: u64| {
        c.read_at(&mut page, index * PAGE as u64).unwrap();
        let n = u64::from_le_bytes(page[8..16].try_into().unwrap());
        assert!(page == image(n), "page {index} is torn");
        n
    };
    std::iter::once(0).chain((1..PAGES).map(&mut read)).collect()
}

fn look(c: &mut Connection) -> Model {
    c.lock(LockLevel::Shared).unwrap();
    let model = reads(c);
    c.unlock(LockLevel::None).unwrap();
    model
}

fn slot(disk: &SimDisk) -> Slot {
    LogFile::open(disk, Path::new(LOG), OpenMode::ReadOnly).unwrap().unwrap().slots().unwrap().remove(0)
}

fn is_on_its_way(disk: &SimDisk) -> bool {
    u32::from_le_bytes(disk.snapshot_file(Path::new(HOME)).unwrap()[88..92].try_into().unwrap()) > 1
}

#[test]
fn no_commit_brings_home_the_pages_of_all() {
    let disk = database(4096);
    let engine = engine(&disk);
    let (mut c, mut model) = (open(&engine), vec![0; PAGES as usize]);
    let (mut most, mut moved, mut base) = ((0, 0), 0, 0);
    for n in 1..1000 {
        let before = disk.counters_of(HOME);
        commit(&mut c, &mut model, n);
        let after = disk.counters_of(HOME);
        if n > 1 {
            most = (most.0.max(after.writes - before.writes), most.1.max(after.syncs - before.syncs));
        }
        let now = slot(&disk).base_tid.0;
        moved += u64::from(std::mem::replace(&mut base, now) != now);
    }
    assert!(moved > 15, "the slot moved {moved} times");
    assert!(most.0 <= 12 && most.1 <= 1, "one commit made {most:?} writes and flushes of home");
    assert!(look(&mut c) == model);
    c.close().unwrap();
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert!((1..PAGES as usize).all(|page| home[page * PAGE..][..PAGE] == image(model[page])));
}

#[test]
fn a_power_cut_anywhere() {
    for atomic_unit in [512, 4096] {
        let run = |disk: &SimDisk| {
            let engine = engine(disk);
            let (mut model, mut done) = (vec![0; PAGES as usize], vec![0; PAGES as usize]);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut c = open(&engine);
                for n in 1..100 {
                    commit(&mut c, &mut model, n);
                    done.clone_from(&model);
                }
            }));
            done
        };
        let whole = database(atomic_unit);
        run(&whole);
        for stop in (0..whole.ops()).step_by(7) {
            let disk = database(atomic_unit);
            disk.stop_after(stop);
            let done = run(&disk);
            for seed in 0..4 {
                let after = match seed {
                    0 => disk.crash_by(&mut |_| 0),
                    1 => disk.crash_by(&mut |choices| choices - 1),
                    _ => disk.crash(seed + stop),
                };
                let newest = done.iter().max().copied().unwrap_or(0);
                let mut next = done.clone();
                pages_of(newest + 1).iter().for_each(|page| next[*page as usize] = newest + 1);
                let found = look(&mut open(&engine_of(&after)));
                assert!(found == done || found == next, "operation {stop}, seed {seed}: {newest} acknowledged");
            }
        }
    }
}

fn engine_of(disk: &SimDisk) -> Arc<Engine> {
    engine(disk)
}

#[test]
fn snapshots_do_not_change_while_pages_go_home() {
    let disk = database(4096);
    let engine = engine(&disk);
    let (mut c, mut model) = (open(&engine), vec![0; PAGES as usize]);
    let mut readers: Vec<(Connection, Model)> = Vec::new();
    for n in 1..400 {
        commit(&mut c, &mut model, n);
        if n % 45 == 0 {
            let mut reader = open(&engine);
            reader.lock(LockLevel::Shared).unwrap();
            readers.push((reader, model.clone()));
        }
        if n % 70 == 0 {
            readers.iter_mut().for_each(|(reader, pinned)| assert!(reads(reader) == *pinned, "transaction {n}"));
        }
        if n % 110 == 0 {
            let (mut reader, _) = readers.remove(0);
            reader.unlock(LockLevel::None).unwrap();
            assert!(look(&mut reader) == model);
        }
    }
    assert!(slot(&disk).base_tid.0 > 1);
}

#[test]
fn another_process_joins_on_the_way() {
    for goes_first in [false, true] {
        let disk = database(4096);
        let (one, other) = (engine(&disk), engine(&disk));
        let (mut c, mut model) = (open(&one), vec![0; PAGES as usize]);
        let mut n = 0;
        for _ in 0..4 {
            while n % 7 < 3 || !is_on_its_way(&disk) {
                n += 1;
                commit(&mut c, &mut model, n);
            }
            let mut d = open(&other);
            assert!(look(&mut d) == model, "transaction {n}");
            d.lock(LockLevel::Shared).unwrap();
            let pinned = model.clone();
            for _ in 0..60 {
                n += 1;
                commit(&mut c, &mut model, n);
            }
            assert!(reads(&mut d) == pinned);
            d.unlock(LockLevel::None).unwrap();
            for _ in 0..60 {
                n += 1;
                commit(&mut d, &mut model, n);
            }
            assert!(look(&mut c) == model);
            if goes_first {
                c.close().unwrap();
                c = std::mem::replace(&mut d, open(&one));
            }
            d.close().unwrap();
            assert!(look(&mut c) == model);
        }
        let found = look(&mut open(&engine(&disk.crash_by(&mut |_| 0))));
        assert!(found == model);
    }
}

/// Rule HomeFitsLog.
#[test]
fn a_home_copied_on_the_way_fits_no_later_log() {
    let disk = database(4096);
    let engine = engine(&disk);
    let (mut c, mut model) = (open(&engine), vec![0; PAGES as usize]);
    let mut n = 0;
    while !is_on_its_way(&disk) {
        n += 1;
        commit(&mut c, &mut model, n);
    }
    let (home, before) = (disk.snapshot_file(Path::new(HOME)).unwrap(), slot(&disk));
    let with_home = || {
        let copy = disk.survive();
        copy.put_file(Path::new(HOME), &home);
        let mut c = try_open(&engine_of(&copy))?;
        c.lock(LockLevel::Shared)?;
        Ok::<_, onewrite_core::Error>(reads(&mut c))
    };
    while slot(&disk).sequence == before.sequence {
        assert!(with_home().unwrap() == model, "transaction {n}");
        n += 1;
        commit(&mut c, &mut model, n);
    }
    let refused = with_home().map(drop).unwrap_err().to_string();
    assert!(refused.contains("older than its log"), "{refused}");
}
