//! Histories of several processes, each from its seed.

#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::Engine;
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_sim::check::{DB, read_all};
use onewrite_sim::model::{Plan, State};
use onewrite_sim::pager::{Client, Course, Synchronous};
use onewrite_sim::processes::{Tally, run};
use parking_lot::Mutex;

fn check(seed: u64, tally: &Arc<Mutex<Tally>>) {
    if let Err(violation) = run(seed, 100, tally) {
        panic!("seed {seed}: {}\n{}", violation.what, violation.notes.join("\n"));
    }
}

/// `ONEWRITE_SIM_SEEDS=FROM..TO` runs other seeds.
#[test]
fn processes_share_a_database_and_die() {
    let seeds = std::env::var("ONEWRITE_SIM_SEEDS").ok();
    let seeds = seeds.as_deref().and_then(|s| s.split_once("..")).map(|(from, to)| (from.parse(), to.parse()));
    let (seeds, usual) = match seeds {
        Some((Ok(from), Ok(to))) => (from..to, false),
        _ => (0..150, true),
    };
    let tally = Arc::new(Mutex::new(Tally::default()));
    for seed in seeds {
        check(seed, &tally);
    }
    let tally = tally.lock();
    println!("{tally:?}");
    if !usual {
        return;
    }
    assert!(
        tally.commits > 1000 && tally.reads_meanwhile > 1000 && tally.reads_beside > 50 && tally.deaths_inside > 50,
        "{tally:?}"
    );
    assert!(tally.cuts > 50 && tally.plain > 100, "{tally:?}");
    assert!(tally.faults > 50 && tally.refused > 50, "{tally:?}");
    assert!(tally.rests > 300 && tally.plain_rests > 20, "{tally:?}");
    assert!(tally.observed > 200 && tally.readers_max > 7, "{tally:?}");
    assert!(tally.lost_logs > 20 && tally.asides > 10, "{tally:?}");
}

/// A process could not flush the removal of a mark. The others had a plain file then, and went on
/// reading it.
#[test]
fn a_plain_file_is_read_beside_a_process_that_failed() {
    check(109_454, &Arc::default());
}

/// The write of a slot failed. The pages that the rollback wrote streamed, too, and others were
/// told of that slot.
#[test]
fn a_rollback_behind_a_slot_that_was_not_written() {
    check(7_003_811, &Arc::default());
}

/// The newest state, of one page, was not visible yet: a writer reads that page, and asks for the
/// size first where it tells.
#[test]
fn a_state_of_one_page_is_seen_by_all() {
    check(222_247, &Arc::default());
}

/// A page of a pinned snapshot changed. In 24 and 3552 it was a big transaction's image, and a
/// process had missed that checkpoint; from 2031 to 11538 the page was cut off, and came home anew.
/// In 2701 a page that no snapshot had was looked for behind the end of home.
#[test]
fn snapshots_that_once_changed() {
    for seed in [24, 2031, 2701, 3537, 3552, 4494, 10510, 11538] {
        check(seed, &Arc::default());
    }
}

/// A process could not flush home in its close, and kept its locks: the others got BUSY behind it.
#[test]
fn a_close_that_could_not_flush_gives_its_locks_back() {
    check(3825, &Arc::default());
}

/// A process could not flush in its take-over, and tried that again: what the first try had left
/// passed for damage.
#[test]
fn a_take_over_that_failed_is_a_failure() {
    check(5_039_685, &Arc::default());
}

/// The one that made the log had attached beside a reader, and so did not look like one that uses
/// the database.
#[test]
fn a_process_waits_for_the_one_that_makes_a_log_anew() {
    check(5_011_598, &Arc::default());
}

/// Two processes on one disk, whose transactions replace whole pages.
struct Pair {
    disk: SimDisk,
    clients: [Client; 2],
    state: Arc<State>,
    rng: SplitMix64,
}

impl Pair {
    fn new() -> Pair {
        let disk = SimDisk::new(SimConfig { capacity: 64 << 20, ..SimConfig::default() });
        let clients = [Pair::client(&disk), Pair::client(&disk)];
        Pair { disk, clients, state: Arc::default(), rng: SplitMix64::new(1) }
    }

    fn client(disk: &SimDisk) -> Client {
        let options = [("scheme", "log"), ("log_size", "256k"), ("stream_size", "1m")];
        let options: Vec<_> = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let conn = Engine::new(Arc::new(disk.clone())).open(Path::new(DB), OpenMode::Create, &options).unwrap();
        Client::new(conn, Arc::new(disk.clone()), Path::new(DB))
    }

    /// Finds the newest state, then writes `pages` random pages of `page_bytes`; `undone`: rolls
    /// back after all of it is prepared.
    fn write(&mut self, n: usize, page_bytes: usize, pages: u32, undone: bool) {
        let client = &mut self.clients[n];
        let (_, bytes) = client.begin().unwrap();
        read_all(client, bytes, std::slice::from_ref(&self.state)).unwrap();
        let count = self.state.count().max(pages) as usize;
        let base = State { page_bytes, pages: vec![vec![0; page_bytes].into(); count] };
        let mut plan = Plan::resized(&base, page_bytes, &mut self.rng);
        let mut next = State { page_bytes, pages: plan.next.pages.clone() };
        for page in next.pages.iter_mut().skip(1) {
            let words = std::iter::repeat_with(|| self.rng.next_u64().to_le_bytes());
            *page = words.take(page_bytes / 8).flatten().collect();
        }
        for number in pages as usize + 1..=self.state.pages.len() {
            next.pages[number - 1] = self.state.pages[number - 1].clone();
        }
        plan.next = Arc::new(next);
        plan.writes = (1..=pages).collect();
        let course = Course { undo_prepared: undone, ..Course::COMMIT };
        client.write(&self.state, &plan, course, &mut |_| {}, &mut || {}).unwrap();
        client.end().unwrap();
        if !undone {
            self.state = plan.next;
        }
    }

    fn cut_power(self) {
        let disk = self.disk.crash(1);
        std::mem::forget(self.clients);
        let mut client = Pair::client(&disk);
        let (_, bytes) = client.begin().unwrap();
        read_all(&mut client, bytes, &[self.state]).unwrap();
    }
}

#[test]
fn an_attachment_finds_the_slots_of_a_first_transaction_that_was_rolled_back() {
    let mut pair = Pair::new();
    pair.write(0, 4096, 3, true);
    pair.write(1, 1024, 3, false);
    pair.write(0, 1024, 2, false);
    pair.cut_power();
}

#[test]
fn the_next_to_write_goes_on_from_a_log_rewound_for_a_transaction_that_was_rolled_back() {
    let mut pair = Pair::new();
    pair.write(1, 4096, 1, false);
    pair.write(0, 4096, 32, false);
    pair.write(0, 4096, 40, true);
    pair.write(1, 4096, 1, false);
    pair.cut_power();
}

/// A process asked for a flush and died before it wrote the record. The next writer with
/// `synchronous=NORMAL` waits for no flush of its own, and its transaction is seen all the same.
#[test]
fn a_commit_is_seen_by_its_process_when_it_returns() {
    const VISIBLE: usize = 24;
    const WANTED: usize = 27;
    let disk = SimDisk::new(SimConfig { capacity: 64 << 20, ..SimConfig::default() });
    let engine = Engine::new(Arc::new(disk.clone()));
    let connect = || {
        let options = [("scheme".to_owned(), "log".to_owned())];
        let conn = engine.open(Path::new(DB), OpenMode::Create, &options).unwrap();
        Client::new(conn, Arc::new(disk.clone()), Path::new(DB))
    };
    let clients = [connect(), Pair::client(&disk)];
    let mut pair = Pair { disk: disk.clone(), clients, state: Arc::default(), rng: SplitMix64::new(1) };
    let mut reader = connect();
    for n in [0, 1, 0, 0] {
        pair.write(n, 4096, 2, false);
        let (_, bytes) = reader.begin().unwrap();
        read_all(&mut reader, bytes, std::slice::from_ref(&pair.state)).unwrap();
        reader.end().unwrap();
    }
    // Then the other process does not count as a writer.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let log = disk.open(Path::new(&format!("{DB}-onewrite")), OpenMode::ReadWrite).unwrap();
    let words = log.shared_words(1).unwrap();
    words.longs[WANTED].store(words.longs[VISIBLE].load(Ordering::SeqCst) + 1, Ordering::SeqCst);
    pair.clients[0].synchronous = Synchronous::Normal;
    pair.write(0, 4096, 2, false);
    let (_, bytes) = reader.begin().unwrap();
    read_all(&mut reader, bytes, &[pair.state]).unwrap();
}

/// As a process that dies in a flush of `file`, which fails.
fn die_in_flush(disk: &SimDisk, file: &str) {
    const FLUSHER: usize = 28;
    const USED: usize = 64;
    const DEAD: u64 = 5;
    disk.fail_nth(Op::Sync, 1, ErrorKind::Other);
    assert!(disk.open(Path::new(file), OpenMode::ReadWrite).unwrap().sync().is_err());
    let log = disk.open(Path::new(&format!("{DB}-onewrite")), OpenMode::ReadWrite).unwrap();
    let words = log.shared_words(1).unwrap();
    words.longs[USED].fetch_or(1 << DEAD, Ordering::SeqCst);
    words.longs[FLUSHER].store(DEAD + 1, Ordering::SeqCst);
}

/// The first transaction of a connection is flushed in its turn.
#[test]
fn records_that_were_lost_with_a_dead_process_are_written_again() {
    let mut pair = Pair::new();
    pair.write(0, 4096, 2, false);
    pair.clients[0].synchronous = Synchronous::Normal;
    pair.write(0, 4096, 2, false);
    die_in_flush(&pair.disk.clone(), &format!("{DB}-onewrite"));
    pair.write(1, 4096, 2, false);
    pair.cut_power();
}

/// A process that attached died in its flush of home, which failed: the mark that the first process
/// has not flushed yet is in the cache alone.
#[test]
fn a_mark_that_was_lost_with_a_dead_process_is_written_again() {
    let mut pair = Pair::new();
    pair.write(0, 4096, 2, false);
    let disk = pair.disk.clone();
    pair.clients.into_iter().for_each(|client| client.close().unwrap());
    pair.clients = [Pair::client(&disk), Pair::client(&disk)];
    pair.clients[0].synchronous = Synchronous::Normal;
    pair.write(0, 4096, 2, false);
    die_in_flush(&disk, DB);
    pair.clients[0].synchronous = Synchronous::Full;
    pair.write(0, 4096, 2, false);
    pair.cut_power();
}
