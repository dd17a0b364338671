//! Runs the committed corpora and bounded random changes of them: the fuzz targets' work on stable
//! Rust.
//!
//! `PROPTEST_CASES=n` sets the number of cases.

use std::fs;
use std::path::PathBuf;

use onewrite_entry::files::Files;
use onewrite_entry::{ALL, Entry, Reach};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// In mebibytes: above two disks of 16 MiB with pending writes, and tests beside them.
const MEMORY_MIB_MAX: f32 = 400.0;

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), fs::read(p).unwrap())).collect()
}

#[test]
fn every_corpus_gets_somewhere() {
    for (name, entry) in ALL {
        let reached: Vec<(String, Reach)> =
            corpus(name).into_iter().map(|(file, input)| (file, entry(&input))).collect();
        assert!(reached.iter().filter(|(_, reach)| reach.accepted > 0).count() >= 3, "{name}: {reached:?}");
        assert!(reached.iter().any(|(_, reach)| reach.refused > 0), "{name}: {reached:?}");
    }
    memory_is_bounded();
}

fn memory_is_bounded() {
    let peak = MEMORY.peak_usage_as_mb();
    assert!(peak < MEMORY_MIB_MAX, "{peak} MiB were in use at once");
}

#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Word(Index, u32),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Cut(Index),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let number = prop_oneof![any::<u32>(), 0..1000u32, Just(u32::MAX), Just(1 << 31)];
    let change = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        4 => (any::<Index>(), number).prop_map(|(at, word)| Change::Word(at, word)),
        2 => (any::<Index>(), proptest::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, b)| Change::Insert(at, b)),
        1 => (any::<Index>(), 1..60usize).prop_map(|(at, len)| Change::Remove(at, len)),
        1 => any::<Index>().prop_map(Change::Cut),
    ];
    proptest::collection::vec(change, 0..8)
}

fn apply(input: &mut Vec<u8>, change: &Change) {
    let len = input.len();
    match change {
        _ if len < 8 => {}
        Change::Set(at, byte) => input[at.index(len)] = *byte,
        Change::Word(at, word) => {
            let at = at.index(len - 4);
            input[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        Change::Insert(at, bytes) => {
            let at = at.index(len);
            input.splice(at..at, bytes.iter().copied());
        }
        Change::Remove(at, count) => {
            let at = at.index(len);
            input.drain(at..len.min(at + count));
        }
        Change::Cut(at) => input.truncate(at.index(len)),
    }
}

fn bounded(name: &str, entry: Entry, cases: u32) {
    let seeds: Vec<Vec<u8>> = corpus(name).into_iter().map(|(_, input)| input).collect();
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..600);
    let inputs = prop_oneof![
        3 => (any::<Index>(), changes()).prop_map(move |(seed, changes)| {
            let mut input = seeds[seed.index(seeds.len())].clone();
            changes.iter().for_each(|change| apply(&mut input, change));
            input
        }),
        1 => any_bytes,
    ];
    runner
        .run(&inputs, |input| {
            entry(&input);
            Ok(())
        })
        .unwrap();
    memory_is_bounded();
}

#[test]
fn decoders_take_any_bytes() {
    bounded("decoders", onewrite_entry::decoders::run, 4000);
}

#[test]
fn recovery_takes_any_bytes() {
    bounded("recovery", onewrite_entry::recovery::run, 300);
}

/// The header asks for WAL mode, and there is neither a WAL nor a mark.
#[test]
fn a_file_that_ends_within_its_first_page_is_an_error_to_its_readers() {
    let mut home = b"SQLite format 3\0".to_vec();
    home.resize(100, 0);
    home[16..24].copy_from_slice(&[0x10, 0, 2, 2, 0, 64, 32, 32]);
    let files = Files { atomic_unit: 512, home, log: None };
    let reach = onewrite_entry::recovery::run(&files.encode());
    assert_eq!((reach.accepted, reach.refused), (0, 1));
}

#[test]
fn walking_takes_any_bytes() {
    bounded("walk", onewrite_entry::walk::run, 300);
}

#[test]
fn connections_take_calls_in_any_order() {
    bounded("calls", onewrite_entry::calls::run, 300);
}
