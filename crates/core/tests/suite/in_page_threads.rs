//! Threads under an in-page scheme share flushes. After a power cut everything acknowledged or seen
//! is there, whole, in place or through the log (invariants I1, I4).

use crate::common::slow;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::{Connection, Engine, Error, LockLevel};

const PAGE: usize = 512;
const PAGES: u64 = 40;
const CELL: usize = PAGE - 32 - 100;

fn pages_of(n: u64) -> impl Iterator<Item = u64> {
    let count = [0, 1, 3, 7][n as usize % 4];
    (0..count).map(move |i| 3 + (n.wrapping_mul(7919) + i) % (PAGES - 2))
}

/// No gap for undo records: single transactions, and several in a row.
fn is_full(n: u64) -> bool {
    n % 10 == 3 || n % 100 >= 96
}

fn size_after(n: u64) -> u64 {
    PAGES + n % 50 / 5
}

fn number_on(n: u64, page: u64) -> u64 {
    if page > PAGES {
        (1..=n).rev().find(|m| size_after(*m) >= page && size_after(*m - 1) < page).unwrap_or(0)
    } else if page == 2 {
        n
    } else {
        (1..=n).rev().find(|m| pages_of(*m).any(|p| p == page)).unwrap_or(0)
    }
}

fn image(n: u64, full: bool) -> Vec<u8> {
    let mut b = vec![0; PAGE];
    if !full {
        b[0] = 13;
        b[4] = 1;
        b[5..7].copy_from_slice(&(CELL as u16).to_be_bytes());
        b[8..10].copy_from_slice(&(CELL as u16).to_be_bytes());
    }
    b[CELL..CELL + 8].copy_from_slice(&n.to_le_bytes());
    b
}

fn plain() -> Vec<u8> {
    let mut b = vec![0; PAGE];
    b[..16].copy_from_slice(b"SQLite format 3\0");
    b[16..24].copy_from_slice(&[2, 0, 1, 1, 32, 64, 32, 32]);
    b[24..28].copy_from_slice(&1u32.to_be_bytes());
    b[28..32].copy_from_slice(&(PAGES as u32).to_be_bytes());
    b[92..96].copy_from_slice(&1u32.to_be_bytes());
    b[100] = 13;
    b[105..107].copy_from_slice(&(PAGE as u16 - 32).to_be_bytes());
    (2..=PAGES).for_each(|_| b.extend(image(0, false)));
    b
}

#[derive(Default)]
struct Known {
    acknowledged: AtomicU64,
    seen: AtomicU64,
    begun: AtomicU64,
}

fn read(c: &mut Connection, page: u64) -> Result<u64, Error> {
    let mut b = [0; PAGE];
    assert_eq!(c.read_at(&mut b, (page - 1) * PAGE as u64)?, PAGE);
    Ok(u64::from_le_bytes(b[CELL..CELL + 8].try_into().unwrap()))
}

fn commit(c: &mut Connection, known: &Known) -> Result<(), Error> {
    c.lock(LockLevel::Shared)?;
    c.lock(LockLevel::Reserved)?;
    let n = read(c, 2)? + 1;
    known.begun.fetch_max(n, Ordering::SeqCst);
    c.write_at(&image(n, false), PAGE as u64)?;
    let (before, after) = (size_after(n - 1), size_after(n));
    for page in before + 1..=after {
        c.write_at(&image(n, false), (page - 1) * PAGE as u64)?;
    }
    if before != after {
        let mut first = plain();
        first.truncate(PAGE);
        first[28..32].copy_from_slice(&(after as u32).to_be_bytes());
        c.write_at(&first, 0)?;
        if after < before {
            c.truncate(after * PAGE as u64)?;
        }
    }
    for page in pages_of(n) {
        c.write_at(&image(n, is_full(n)), (page - 1) * PAGE as u64)?;
    }
    c.prepare(None)?;
    c.sync()?;
    c.commit()?;
    known.acknowledged.fetch_max(n, Ordering::SeqCst);
    c.unlock(LockLevel::None)
}

fn look(c: &mut Connection, known: &Known, floor: &mut u64) -> Result<(), Error> {
    c.lock(LockLevel::Shared)?;
    let n = read(c, 2)?;
    assert!(n >= *floor, "a reader went back from {floor} to {n}");
    *floor = n;
    known.seen.fetch_max(n, Ordering::SeqCst);
    assert_eq!(c.size()?, size_after(n) * PAGE as u64, "the snapshot of transaction {n}");
    for page in 3..=size_after(n) {
        assert_eq!(read(c, page)?, number_on(n, page), "page {page} in the snapshot of transaction {n}");
    }
    c.unlock(LockLevel::None)
}

fn repeat(c: &mut Connection, mut once: impl FnMut(&mut Connection) -> Result<(), Error>) {
    loop {
        match once(c) {
            Ok(()) => {}
            Err(Error::Busy(_) | Error::BusySnapshot) => drop(c.unlock(LockLevel::None)),
            Err(_) => return,
        }
    }
}

#[derive(Default)]
struct Ways {
    in_place: u64,
    records: u64,
    flushes: u64,
}

fn run(seed: u64, scheme: &str, gc: &str, ways: &mut Ways) {
    let mut rng = SplitMix64::new(seed);
    let sim = SimDisk::new(SimConfig { atomic_unit: 512, ..SimConfig::default() });
    sim.put_file(Path::new("/db"), &plain());
    let options = [("scheme", scheme), ("gc", gc), ("log_size", "256k")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let engine = Engine::new(Arc::new(slow::Slow(sim.clone())));
    let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    let known = Known::default();
    let mut first = open();
    commit(&mut first, &known).unwrap();
    let (writers, readers) = ([(); 4].map(|()| open()), [(); 2].map(|()| open()));
    sim.stop_after(rng.below(600) as u64);
    std::thread::scope(|s| {
        for mut c in writers {
            let known = &known;
            s.spawn(move || repeat(&mut c, |c| commit(c, known)));
        }
        for mut c in readers {
            let (known, mut floor) = (&known, 0);
            s.spawn(move || repeat(&mut c, |c| look(c, known, &mut floor)));
        }
    });
    let stats = first.pragma("stats", None).unwrap().unwrap();
    let stat = |name: &str| -> u64 {
        stats.lines().find_map(|l| l.strip_prefix(&format!("{name}="))).unwrap().parse().unwrap()
    };
    ways.in_place += stat("in_place");
    ways.records += stat("records");
    ways.flushes += sim.counters_of("db").flushes();
    drop(first);
    let mut c =
        Engine::new(Arc::new(sim.crash(rng.next_u64()))).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    let n = read(&mut c, 2).unwrap();
    assert_eq!(c.size().unwrap(), size_after(n) * PAGE as u64, "seed {seed}: after transaction {n}");
    for page in 3..=size_after(n) {
        assert_eq!(read(&mut c, page).unwrap(), number_on(n, page), "seed {seed}: page {page} after transaction {n}");
    }
    let [acknowledged, seen, begun] =
        [&known.acknowledged, &known.seen, &known.begun].map(|a| a.load(Ordering::SeqCst));
    assert!(n >= acknowledged.max(seen), "seed {seed}: {acknowledged} acknowledged, {seen} seen, {n} left (I1, I4)");
    assert!(n <= begun, "seed {seed}: {n} left, {begun} begun");
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap();
}

#[test]
fn threads_that_write_in_place_share_flushes_and_lose_nothing_to_a_power_cut() {
    for (scheme, gc, flushes) in [
        ("dhl-cc", "lazy", 1),
        ("dhl-cc", "eager", 1),
        ("dhl-tc", "lazy", 2),
        ("lsmvbt", "lazy", 2),
        ("mvbt", "lazy", 2),
    ] {
        let mut ways = Ways::default();
        (0..8).for_each(|seed| run(seed, scheme, gc, &mut ways));
        let Ways { in_place, records, flushes: done } = ways;
        assert!(in_place > 50 && records > 5, "{scheme}: {in_place} in place, {records} records");
        // Then each record is flushed, too.
        assert!(gc == "eager" || done < flushes * in_place, "{scheme}: {done} flushes for {in_place} transactions");
    }
}
