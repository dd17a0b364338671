//! After a power cut everything that concurrent writers acknowledged or saw is there, whole (I1,
//! I4), in a serial order.

use crate::common::slow;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::{Connection, Engine, Error, LockLevel};
use parking_lot::Mutex;

const PAGE: usize = 512;
const THREADS: usize = 4;
const OWN: u64 = 20;
const PAGES: u64 = 1 + THREADS as u64 * (1 + OWN);

fn counter(t: usize) -> u64 {
    2 + t as u64
}

fn own(t: usize, i: u64) -> u64 {
    2 + THREADS as u64 + t as u64 * OWN + i
}

fn fills(n: u64, i: u64) -> bool {
    (i + OWN - n * 7 % OWN) % OWN < 1 + n % 4
}

fn content(n: u64, i: u64) -> u64 {
    (1..=n).rev().find(|m| fills(*m, i)).unwrap_or(0)
}

fn plain() -> Vec<u8> {
    let mut b = vec![0; PAGE * PAGES as usize];
    b[..16].copy_from_slice(b"SQLite format 3\0");
    b[16..24].copy_from_slice(&[2, 0, 1, 1, 0, 64, 32, 32]);
    b[24..28].copy_from_slice(&1u32.to_be_bytes());
    b[28..32].copy_from_slice(&(PAGES as u32).to_be_bytes());
    b[92..96].copy_from_slice(&1u32.to_be_bytes());
    b
}

/// The transaction, and each thread's seen number plus one; 0: not looked at.
type Numbers = [u64; 1 + THREADS];

fn read(c: &mut Connection, page: u64) -> Result<Numbers, Error> {
    let mut b = [0; PAGE];
    assert_eq!(c.read_at(&mut b, (page - 1) * PAGE as u64)?, PAGE);
    let mut words = b.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    Ok(std::array::from_fn(|_| words.next().unwrap()))
}

fn image(numbers: Numbers) -> [u8; PAGE] {
    let mut b = [numbers[0] as u8; PAGE];
    for (to, n) in b.chunks_exact_mut(8).zip(numbers) {
        to.copy_from_slice(&n.to_le_bytes());
    }
    b
}

#[derive(Default)]
struct Known {
    acknowledged: [AtomicU64; THREADS],
    begun: [AtomicU64; THREADS],
    seen: [AtomicU64; THREADS],
    /// By thread and number.
    all: Mutex<BTreeMap<(usize, u64), Numbers>>,
    conflicts: AtomicU64,
}

fn commit(c: &mut Connection, t: usize, known: &Known, rng: &mut SplitMix64) -> Result<(), Error> {
    c.lock(LockLevel::Shared)?;
    let mut header = [0; PAGE];
    c.read_at(&mut header, 0)?;
    let mut numbers: Numbers = [0; 1 + THREADS];
    numbers[0] = read(c, counter(t))?[0] + 1;
    let n = numbers[0];
    known.begun[t].fetch_max(n, Ordering::SeqCst);
    if rng.below(3) == 0 {
        let other = rng.below(THREADS);
        numbers[1 + other] = read(c, counter(other))?[0] + 1;
    }
    std::thread::yield_now();
    c.lock(LockLevel::Reserved)?;
    c.write_at(&image(numbers), (counter(t) - 1) * PAGE as u64)?;
    for i in (0..OWN).filter(|i| fills(n, *i)) {
        read(c, own(t, i))?;
        c.write_at(&image([n; 1 + THREADS]), (own(t, i) - 1) * PAGE as u64)?;
    }
    header[24..28].copy_from_slice(&(n as u32).to_be_bytes());
    c.write_at(&header, 0)?;
    c.prepare(None)?;
    c.sync()?;
    c.commit()?;
    known.acknowledged[t].fetch_max(n, Ordering::SeqCst);
    known.all.lock().insert((t, n), numbers);
    let after = read(c, counter(t))?;
    assert_eq!(after[0], n, "it sees what it committed");
    c.unlock(LockLevel::None)
}

fn look(c: &mut Connection, known: &Known) -> Result<(), Error> {
    c.lock(LockLevel::Shared)?;
    check(c, "in a snapshot")?.into_iter().zip(&known.seen).for_each(|(n, seen)| {
        seen.fetch_max(n, Ordering::SeqCst);
    });
    c.unlock(LockLevel::None)
}

fn check(c: &mut Connection, when: &str) -> Result<[u64; THREADS], Error> {
    let mut newest = [0; THREADS];
    let mut saw = [[0; 1 + THREADS]; THREADS];
    for t in 0..THREADS {
        saw[t] = read(c, counter(t))?;
        newest[t] = saw[t][0];
        for i in 0..OWN {
            let is = read(c, own(t, i))?[0];
            assert_eq!(is, content(newest[t], i), "{when}: page {i} of thread {t} after {}", newest[t]);
        }
    }
    for (t, saw) in saw.iter().enumerate() {
        for (other, seen) in saw[1..].iter().enumerate().filter(|(_, seen)| **seen > 0) {
            assert!(newest[other] + 1 >= *seen, "{when}: thread {t} saw {} of {other}", seen - 1);
        }
    }
    Ok(newest)
}

fn check_order(all: &BTreeMap<(usize, u64), Numbers>) {
    for ((t, n), saw) in all {
        for (other, seen) in saw[1..].iter().enumerate().filter(|(other, seen)| **seen > 0 && other != t) {
            // It saw `seen - 1` of `other`, so it ran before that thread's next.
            let Some(next) = all.get(&(other, *seen)) else { continue };
            assert!(next[1 + t] == 0 || next[1 + t] > *n, "{t}:{n} and {other}:{seen} each ran before the other");
        }
    }
}

/// Returns commits and conflicts.
fn run(seed: u64, scheme: &str) -> (u64, u64) {
    let mut rng = SplitMix64::new(seed);
    let sim = SimDisk::new(SimConfig { atomic_unit: 512, ..SimConfig::default() });
    sim.put_file(Path::new("/db"), &plain());
    let options = [("scheme", scheme), ("log_size", "256k"), ("table_size", "64k"), ("concurrent", "1")];
    let options = options.map(|(n, v)| (n.to_owned(), v.to_owned()));
    let engine = Engine::new(Arc::new(slow::Slow(sim.clone())));
    let known = Known::default();
    let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    let mut first = open();
    commit(&mut first, 0, &known, &mut rng).unwrap();
    let (writers, mut reader) = ([(); THREADS].map(|()| open()), open());
    sim.stop_after(rng.below(800) as u64);
    std::thread::scope(|s| {
        for (t, mut c) in writers.into_iter().enumerate() {
            let known = &known;
            let mut rng = SplitMix64::new(seed ^ (t as u64 + 1) << 40);
            s.spawn(move || {
                loop {
                    match commit(&mut c, t, known, &mut rng) {
                        Ok(()) => {}
                        Err(Error::BusySnapshot) => {
                            known.conflicts.fetch_add(1, Ordering::Relaxed);
                            let _ = c.unlock(LockLevel::None);
                        }
                        Err(Error::Busy(e)) => panic!("{e}"),
                        Err(_) => return,
                    }
                }
            });
        }
        let known = &known;
        s.spawn(move || while look(&mut reader, known).is_ok() {});
    });
    drop(first);
    let mut c =
        Engine::new(Arc::new(sim.crash(rng.next_u64()))).open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
    c.lock(LockLevel::Shared).unwrap();
    let left = check(&mut c, &format!("seed {seed}, after the crash")).unwrap();
    for (t, left) in left.into_iter().enumerate() {
        let [acknowledged, seen, begun] =
            [&known.acknowledged[t], &known.seen[t], &known.begun[t]].map(|a| a.load(Ordering::SeqCst));
        assert!(left >= acknowledged, "seed {seed}: {t}:{acknowledged} was acknowledged, {left} is left (I1)");
        assert!(left >= seen, "seed {seed}: {t}:{seen} was seen, {left} is left (I4)");
        assert!(left <= begun, "seed {seed}: {t}:{left} is left, {begun} was begun");
    }
    let all = known.all.into_inner();
    check_order(&all);
    c.unlock(LockLevel::None).unwrap();
    c.close().unwrap();
    (all.len() as u64, known.conflicts.into_inner())
}

fn campaign(seeds: std::ops::Range<u64>, scheme: &str) {
    let (mut commits, mut conflicts) = (0, 0);
    for seed in seeds {
        let (c, again) = run(seed, scheme);
        commits += c;
        conflicts += again;
    }
    assert!(commits > 100 && conflicts > 0, "{commits} commits, {conflicts} conflicts: this tested nothing");
}

#[test]
fn a_power_cut_under_concurrent_writers_takes_back_nothing_and_mixes_nothing() {
    campaign(0..10, "log");
    campaign(16..20, "wal-opt");
}

/// For long: `cargo test --release -p onewrite-core --test suite -- --ignored concurrent_crashes`.
#[test]
#[ignore = "takes long"]
fn many_power_cuts() {
    campaign(1000..2000, "log");
    campaign(2000..2200, "wal-opt");
}
