//! Threads commit at the same time. After a power cut everything acknowledged (invariant I1) or
//! seen (I4) is there, whole and in order.

use crate::common::slow;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::{Connection, Engine, Error, LockLevel};

const PAGES: u32 = 300;
const PAGE: usize = 512;

fn reach(n: u64) -> (u64, u64) {
    let room = u64::from(PAGES) - 2;
    let count = match n % 64 {
        63 => room, // More than fits in memory: it streams.
        32 => 150,
        rest => 1 + rest % 3,
    };
    (count, n.wrapping_mul(7919) % room)
}

fn fills(n: u64, page: u64) -> bool {
    let room = u64::from(PAGES) - 2;
    let (count, first) = reach(n);
    (page - 3 + room - first) % room < count
}

fn content(n: u64, page: u64) -> [u8; PAGE] {
    let newest = if page == 2 { n } else { (1..=n).rev().find(|m| fills(*m, page)).unwrap_or(0) };
    image(newest)
}

fn image(n: u64) -> [u8; PAGE] {
    let mut image = [n as u8; PAGE];
    image[..8].copy_from_slice(&n.to_le_bytes());
    image
}

fn plain() -> Vec<u8> {
    let mut b = vec![0; PAGE * PAGES as usize];
    b[..16].copy_from_slice(b"SQLite format 3\0");
    b[16..24].copy_from_slice(&[2, 0, 1, 1, 0, 64, 32, 32]);
    b[24..28].copy_from_slice(&1u32.to_be_bytes());
    b[28..32].copy_from_slice(&PAGES.to_be_bytes());
    b[92..96].copy_from_slice(&1u32.to_be_bytes());
    b
}

#[derive(Default)]
struct Known {
    acknowledged: AtomicU64,
    seen: AtomicU64,
    begun: AtomicU64,
    commits: AtomicU64,
}

fn read_page(c: &mut Connection, page: u64) -> Result<[u8; PAGE], Error> {
    let mut b = [0; PAGE];
    assert_eq!(c.read_at(&mut b, (page - 1) * PAGE as u64)?, PAGE);
    Ok(b)
}

fn number(image: &[u8; PAGE]) -> u64 {
    u64::from_le_bytes(image[..8].try_into().unwrap())
}

fn commit(c: &mut Connection, known: &Known, flush: bool) -> Result<(), Error> {
    c.lock(LockLevel::Shared)?;
    c.lock(LockLevel::Reserved)?;
    let n = number(&read_page(c, 2)?) + 1;
    known.begun.fetch_max(n, Ordering::SeqCst);
    let (count, first) = reach(n);
    let room = u64::from(PAGES) - 2;
    c.write_at(&image(n), PAGE as u64)?;
    for i in 0..count {
        c.write_at(&image(n), (2 + (first + i) % room) * PAGE as u64)?;
    }
    c.prepare(None)?;
    if flush {
        c.sync()?;
    }
    c.commit()?;
    known.commits.fetch_add(1, Ordering::SeqCst);
    if flush {
        known.acknowledged.fetch_max(n, Ordering::SeqCst);
    }
    assert_eq!(number(&read_page(c, 2)?), n);
    c.unlock(LockLevel::None)
}

fn look(c: &mut Connection, known: &Known, rng: &mut SplitMix64, floor: &mut u64) -> Result<(), Error> {
    c.lock(LockLevel::Shared)?;
    let n = number(&read_page(c, 2)?);
    known.seen.fetch_max(n, Ordering::SeqCst);
    assert!(n >= *floor, "a reader went back from {floor} to {n}");
    *floor = n;
    for _ in 0..4 {
        let page = 3 + rng.below(PAGES as usize - 2) as u64;
        let (is, should) = (number(&read_page(c, page)?), number(&content(n, page)));
        assert_eq!(is, should, "page {page} in the snapshot of transaction {n}");
    }
    c.unlock(LockLevel::None)
}

fn repeat(mut once: impl FnMut() -> Result<(), Error>, mut start_over: impl FnMut(&Error)) {
    loop {
        match once() {
            Ok(()) => {}
            Err(e @ (Error::Busy(_) | Error::BusySnapshot)) => start_over(&e),
            Err(_) => return,
        }
    }
}

fn run(seed: u64, scheme: &str, atomic_unit: u32, all_flush: bool) -> (u64, u64) {
    let mut rng = SplitMix64::new(seed);
    let sim = SimDisk::new(SimConfig { atomic_unit, ..SimConfig::default() });
    sim.put_file(Path::new("/db"), &plain());
    let options = [("scheme", scheme), ("log_size", "256k"), ("stream_size", "64k")];
    let options = options.map(|(n, v)| (n.to_owned(), v.to_owned()));
    let engine = Engine::new(Arc::new(slow::Slow(sim.clone())));
    let known = Known::default();
    let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    let mut first = open();
    commit(&mut first, &known, true).unwrap();
    let (writers, readers) = ([(); 4].map(|()| open()), [(); 2].map(|()| open()));
    sim.reset_counters();
    sim.stop_after(rng.below(400) as u64);
    std::thread::scope(|s| {
        for (t, mut c) in writers.into_iter().enumerate() {
            let known = &known;
            let flush = all_flush || t % 2 == 0;
            s.spawn(move || {
                let c = std::cell::RefCell::new(&mut c);
                repeat(
                    || commit(&mut c.borrow_mut(), known, flush),
                    |_| {
                        let _ = c.borrow_mut().unlock(LockLevel::None);
                    },
                );
            });
        }
        for (t, mut c) in readers.into_iter().enumerate() {
            let known = &known;
            let (mut rng, mut floor) = (SplitMix64::new(seed ^ (t as u64 + 1) << 32), 0);
            s.spawn(move || repeat(|| look(&mut c, known, &mut rng, &mut floor), |e| panic!("a reader got {e}")));
        }
    });
    drop(first);
    let flushes = sim.counters_of("-onewrite").flushes();
    let crashed = sim.crash(rng.next_u64());
    let mut c = Engine::new(Arc::new(crashed)).open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    let n = number(&read_page(&mut c, 2).unwrap());
    for page in 2..=u64::from(PAGES) {
        assert!(read_page(&mut c, page).unwrap() == content(n, page), "seed {seed}: page {page} after transaction {n}");
    }
    let [acknowledged, seen, begun] =
        [&known.acknowledged, &known.seen, &known.begun].map(|a| a.load(Ordering::SeqCst));
    assert!(n >= acknowledged, "seed {seed}: {acknowledged} was acknowledged, {n} is left (I1)");
    assert!(!all_flush || n >= seen, "seed {seed}: {seen} was seen, {n} is left (I4)");
    assert!(n <= begun, "seed {seed}: {n} is left, {begun} was begun");
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap();
    (known.commits.load(Ordering::SeqCst), flushes)
}

fn campaign(seeds: std::ops::Range<u64>, scheme: &str, atomic_unit: u32, all_flush: bool) {
    let (mut commits, mut flushes) = (0, 0);
    for seed in seeds {
        let (c, f) = run(seed, scheme, atomic_unit, all_flush);
        commits += c;
        flushes += f;
    }
    assert!(commits > flushes, "{commits} commits, {flushes} flushes: no two shared one, so this tested nothing");
}

#[test]
fn a_power_cut_under_writing_threads_takes_back_nothing_that_was_acknowledged_or_seen() {
    campaign(0..12, "log", 512, true);
    campaign(12..24, "log", 4096, true);
    campaign(24..36, "wal-opt", 512, true);
}

#[test]
fn commits_without_a_flush_change_nothing_for_commits_with_one() {
    campaign(36..48, "log", 512, false);
}

/// For hours: `cargo test --release -p onewrite-core --test suite -- --ignored group_crashes`.
#[test]
#[ignore = "takes long"]
fn many_power_cuts() {
    for (n, scheme) in [(1, "log"), (2, "wal-opt")] {
        for atomic_unit in [512, 4096] {
            campaign(n * 10_000..n * 10_000 + 500, scheme, atomic_unit, true);
            campaign(n * 20_000..n * 20_000 + 100, scheme, atomic_unit, false);
        }
    }
}
