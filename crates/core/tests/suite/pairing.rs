//! Home and log of two moments, wherever a session, its close or a recovery was cut off: judge,
//! open and recovery on request agree (invariants I7 and I8).

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use common::{PAGE, page, plain};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::{Pairing, home, log_path};
use onewrite_core::{Connection, Engine, Error, LockLevel, Repair, Result};

const HOME: &str = "/db";

fn open(disk: &SimDisk) -> Connection {
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &[]).unwrap()
}

fn newest(disk: &SimDisk) -> Result<u64> {
    let mut c = open(disk);
    c.lock(LockLevel::Shared)?;
    let mut seen = vec![0; PAGE];
    c.read_at(&mut seen, PAGE as u64)?;
    c.unlock(LockLevel::None)?;
    let n = u64::from_le_bytes(seen[200..208].try_into().unwrap());
    if n > 0 && seen != page(n) {
        return Err(Error::Corrupt(format!("page 2 is of transaction {n} in part")));
    }
    Ok(n)
}

fn used() -> (SimDisk, Connection, Vec<u8>, Vec<u8>) {
    let disk = SimDisk::new(SimConfig::default());
    let file = |disk: &SimDisk| disk.snapshot_file(Path::new(HOME)).unwrap();
    disk.put_file(Path::new(HOME), &plain(0));
    let mut c = open(&disk);
    (1..3).for_each(|n| common::commit(&mut c, n));
    c.close().unwrap();
    let backup = file(&disk);
    let mut c = open(&disk);
    common::commit(&mut c, 3);
    let marked = file(&disk);
    c.pragma("checkpoint", None).unwrap().unwrap();
    (4..6).for_each(|n| common::commit(&mut c, n));
    (disk, c, backup, marked)
}

fn agree(disk: &SimDisk, case: &str) -> Option<Pairing> {
    let copy = || disk.crash(0);
    let repair = |disk: &SimDisk, mode| Repair::open(Arc::new(disk.clone()), Path::new(HOME), mode).unwrap();
    let looked = copy();
    let look = repair(&looked, OpenMode::ReadOnly);
    let log = look.lock_log().unwrap();
    let judged = log.as_ref().map(|log| look.judge(log).unwrap());
    let opened = newest(&copy());
    let Some(session) = look.mark().unwrap() else {
        if look.state().unwrap().kind == home::FileKind::Database {
            assert!(opened.is_ok(), "{case}: {opened:?}");
        }
        return judged.map(|judged| judged.pairing);
    };
    let fits = judged.as_ref().is_some_and(|judged| judged.recovered.is_some());
    let pairing = judged.map(|judged| judged.pairing);
    let goes_on = matches!(pairing, Some(Pairing::Fits(_) | Pairing::NeverBegun | Pairing::ClosedMarkBack));
    let recovered = copy();
    let done = repair(&recovered, OpenMode::ReadWrite).recover(session, false);
    assert_eq!(
        (fits, opened.is_ok(), done.is_ok()),
        (goes_on, goes_on, goes_on),
        "{case}: {pairing:?} {opened:?} {done:?}"
    );
    if let Ok(opened) = opened {
        assert_eq!(newest(&recovered).unwrap(), opened, "{case}: {pairing:?}");
    }
    pairing
}

fn exchanged(disk: &SimDisk, backup: &[u8], marked: &[u8], case: &str, seen: &mut BTreeMap<String, u32>) {
    let own = disk.snapshot_file(Path::new(HOME)).unwrap();
    let cut = |keep: usize| own[..keep.min(own.len())].to_vec();
    let mut later = own.clone();
    if home::mark(&own).is_none() && own.len() > PAGE {
        let counter = u32::from_be_bytes(own[24..28].try_into().unwrap());
        home::put_counter(&mut later, counter.wrapping_add(10));
    }
    let homes = [
        ("as it is", own.clone()),
        ("its backup", backup.to_vec()),
        ("its marked file of before", marked.to_vec()),
        ("another file", plain(0)),
        ("cut short", cut(PAGE + PAGE / 2)),
        ("cut in the header", cut(60)),
        ("written without onewrite", later),
        ("empty", Vec::new()),
    ];
    for (name, bytes) in &homes {
        let changed = disk.crash(0);
        changed.put_file(Path::new(HOME), bytes);
        let pairing = agree(&changed, &format!("{case}, {name}"));
        let kind = pairing.map_or("no log".to_owned(), |pairing| format!("{pairing:?}"));
        *seen.entry(kind.split('(').next().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let without = disk.crash(0);
    if without.remove(&log_path(Path::new(HOME))).is_ok() {
        without.sync_dir_of(Path::new(HOME)).unwrap();
        agree(&without, &format!("{case}, without its log"));
    }
}

#[test]
fn the_judge_the_open_and_the_recovery_agree() {
    let mut seen = BTreeMap::new();
    let (disk, c, backup, marked) = used();
    std::mem::forget(c);
    let killed = disk.survive();
    exchanged(&disk.crash(0), &backup, &marked, "crashed", &mut seen);
    exchanged(&killed, &backup, &marked, "killed", &mut seen);
    for stop in 0.. {
        let (disk, c, ..) = used();
        disk.stop_after(stop);
        let closed = c.close().is_ok();
        for seed in 0..6 {
            let case = format!("closing stopped after {stop} operations, seed {seed}");
            exchanged(&disk.crash(seed), &backup, &marked, &case, &mut seen);
        }
        if closed {
            break;
        }
    }
    for stop in 0.. {
        let first = killed.crash(0);
        first.stop_after(stop);
        let mut c = open(&first);
        let done = c.lock(LockLevel::Shared).and_then(|()| c.unlock(LockLevel::None)).and_then(|()| c.close());
        for seed in 0..6 {
            let case = format!("recovery stopped after {stop} operations, seed {seed}");
            exchanged(&first.crash(seed), &backup, &marked, &case, &mut seen);
        }
        if done.is_ok() {
            break;
        }
    }
    for kind in ["Fits", "Closed", "ClosedMarkBack", "HomeOlder", "HomeNewer", "OtherFile", "Damaged"] {
        assert!(seen.contains_key(kind), "no pair is {kind}: {seen:?}");
    }
}
