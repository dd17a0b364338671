//! A dead process left a database in SQLite's WAL mode; onewrite opens it and takes it out of that
//! mode, with power cuts at each operation. Content, size, flushed parts and the bytes behind the
//! end of the WAL are drawn.
//!
//! The result is read twice: as stock SQLite reads home and the valid part of the WAL, and through
//! onewrite. Both find the same of the transactions that a power cut may leave.
//!
//! [`run_asked`] draws histories of a database that was asked for WAL mode. onewrite serves it and
//! leaves it in that mode, and SQLite without onewrite goes on with a WAL.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::home::{FileKind, State, asks_for_wal, mark, put_counter, put_page_count};
use onewrite_core::inspect::layout::{home, put, wal};
use onewrite_core::inspect::wal::WalHead;
use onewrite_core::{Connection, LockLevel, Result};

use crate::check::{Counts, Violation, engine_on};

const HOME: &str = "/db";
const WAL: &str = "/db-wal";
const INDEX: &str = "/db-shm";
/// Crashes drawn at each operation.
const CRASHES: u64 = 4;

type Pages = Vec<Vec<u8>>;

/// The dead process's files.
struct Left {
    disk: SimDisk,
    page_bytes: usize,
    /// By transaction in the WAL; the first is home's.
    states: Vec<Pages>,
    /// The first state that a power cut may leave.
    flushed: usize,
}

/// Checks one database.
pub fn run(seed: u64, counts: &Counts) -> std::result::Result<(), Violation> {
    let mut rng = SplitMix64::new(seed ^ 0x3a1);
    let left = draw(&mut rng).expect("the disk works");
    let bad = |disk: &SimDisk, what: String| Violation::on(disk, format!("{what} [seed {seed}]"));
    let whole = left.disk.survive();
    open_and_close(&whole).map_err(|e| bad(&whole, e.to_string()))?;
    let newest = left.states.len() - 1;
    for stop in 0..=whole.ops() {
        for _ in 0..CRASHES {
            counts.crashes.fetch_add(1, Ordering::Relaxed);
            let first = left.disk.survive();
            first.stop_after(stop);
            let opened = open_and_close(&first);
            let crashed = first.crash(rng.next_u64());
            let case = |what: String| bad(&crashed, format!("operation {stop} of {}: {what}", whole.ops()));
            let stock = as_stock_reads(&crashed, left.page_bytes).map_err(case)?;
            let at = left.states.iter().rposition(|state| *state == stock);
            let Some(at) = at.filter(|at| *at >= left.flushed) else {
                return Err(case(format!("stock SQLite would find {at:?}, not one of {}..={newest}", left.flushed)));
            };
            if opened.is_ok() && at != newest {
                return Err(case(format!("transaction {at} of {newest} is the newest, though the open had ended")));
            }
            // An index whose WAL a power cut took has no meaning.
            let has = |path: &str| crashed.snapshot_file(Path::new(path));
            let is_wal_mode = has(WAL).is_some() || has(HOME).is_some_and(|home| home[home::WRITE_VERSION] == 2);
            let found = through_onewrite(&crashed, left.page_bytes).map_err(|e| case(e.to_string()))?;
            if found != left.states[at] {
                return Err(case(format!("onewrite finds another state than stock SQLite, transaction {at}")));
            }
            if let Some(path) = [WAL, INDEX].into_iter().find(|path| is_wal_mode && has(path).is_some()) {
                return Err(case(format!("{path} is still there")));
            }
            let home = crashed.snapshot_file(Path::new(HOME)).unwrap_or_default();
            let state = State::of_home(&home[..home.len().min(home::HEADER_BYTES)], home.len() as u64);
            let is_plain = matches!(state.kind, FileKind::Database | FileKind::Wal);
            if !is_plain || pages_of(&home, left.page_bytes) != left.states[at] {
                return Err(case(format!("a plain file of transaction {at} is expected, not {:?}", state.kind)));
            }
            commit_and_crash(&crashed, &left.states[at], left.page_bytes, &mut rng).map_err(case)?;
        }
    }
    Ok(())
}

/// A step of a history.
enum Step {
    /// Commits through onewrite; whether it asks for WAL mode first.
    Session(usize, bool, End),
    /// Transactions of SQLite without onewrite, whose WAL goes home at the end or stays.
    Stock(usize, bool),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    /// It was silent for long before.
    Silent,
    /// The process ends with its connection open.
    Rest,
    Die,
}

/// Checks one history.
pub fn run_asked(seed: u64, counts: &Counts) -> std::result::Result<(), Violation> {
    let mut rng = SplitMix64::new(seed ^ 0x3a2);
    let config = SimConfig {
        atomic_unit: [512, 4096][rng.below(2)],
        sync_covers_creation: rng.below(2) == 0,
        ..SimConfig::default()
    };
    let steps: Vec<Step> = (0..2 + rng.below(4))
        .map(|n| match n == 0 || rng.below(5) < 3 {
            true => Step::Session(
                rng.below(3),
                n == 0 || rng.below(4) == 0,
                [End::Close, End::Silent, End::Rest, End::Die][rng.below(4)],
            ),
            false => Step::Stock(1 + rng.below(3), rng.below(2) == 0),
        })
        .collect();
    let begun = SimDisk::new(config);
    begun.put_file(Path::new(HOME), &asked_pages(0).concat());
    let play = |stop: Option<u64>| {
        let disk = begun.survive();
        stop.iter().for_each(|stop| disk.stop_after(*stop));
        let mut told = 0;
        let played = steps.iter().try_fold(0, |n, step| play_step(&disk, step, n, &mut told, seed));
        (disk, told, played.is_ok())
    };
    let (whole, all, ended) = play(None);
    let bad = |disk: &SimDisk, what: String| Violation::on(disk, format!("{what} [asked, seed {seed}]"));
    if !ended {
        return Err(bad(&whole, "a step fails without a crash".to_owned()));
    }
    for stop in 0..=whole.ops() {
        counts.crashes.fetch_add(1, Ordering::Relaxed);
        let (disk, told, _) = play(Some(stop));
        let crashed = disk.crash(rng.next_u64());
        let case = |what: String| bad(&crashed, format!("operation {stop} of {}: {what}", whole.ops()));
        let header = crashed.snapshot_file(Path::new(HOME)).unwrap_or_default();
        let stock = match mark(&header) {
            Some(_) => None,
            None => Some(as_stock_reads(&crashed, ASKED_BYTES).map_err(case)?),
        };
        let found = through_onewrite(&crashed, ASKED_BYTES).map_err(|e| case(e.to_string()))?;
        let at = (0..=all).rev().find(|n| pages_of(&asked_pages(*n).concat(), ASKED_BYTES) == found);
        if at.is_none_or(|at| at < told) {
            return Err(case(format!("{at:?} is found, and {told} transactions were acknowledged")));
        }
        if stock.is_some_and(|stock| stock != found) {
            return Err(case(format!("onewrite finds another state than stock SQLite, transaction {at:?}")));
        }
        let home = crashed.snapshot_file(Path::new(HOME)).unwrap_or_default();
        if mark(&home).is_some() || crashed.snapshot_file(Path::new(WAL)).is_some() {
            return Err(case("a plain file without a WAL is expected behind a close".to_owned()));
        }
        let was_in_use = mark(&header).is_some() || header[home::READ_VERSION] == 2;
        if was_in_use && asks_for_wal(&header) && home[home::WRITE_VERSION..=home::READ_VERSION] != [2, 2] {
            return Err(case("a database that was asked for WAL mode is not in it behind a close".to_owned()));
        }
        let found = asked_pages(at.unwrap_or(0));
        let found = pages_of(&found.concat(), ASKED_BYTES);
        commit_and_crash(&crashed, &found, ASKED_BYTES, &mut rng).map_err(case)?;
    }
    Ok(())
}

const ASKED_BYTES: usize = 512;

/// The pages behind `n` transactions, of which each writes one page.
fn asked_pages(n: usize) -> Pages {
    let newest = |at: usize| (1..=n).rev().find(|n| asked_page(*n) == at).unwrap_or(0);
    let mut pages = vec![first_page(ASKED_BYTES, 4, 7, false)];
    pages.extend((1..4).map(|at| vec![newest(at) as u8; ASKED_BYTES]));
    pages
}

fn asked_page(n: usize) -> usize {
    1 + n % 3
}

/// Behind `n` transactions. `told`: how many were acknowledged.
fn play_step(
    disk: &SimDisk,
    step: &Step,
    mut n: usize,
    told: &mut usize,
    seed: u64,
) -> std::result::Result<usize, String> {
    let engine = |e: onewrite_core::Error| e.to_string();
    let io = |e: std::io::Error| e.to_string();
    match *step {
        Step::Session(commits, asks, end) => {
            let mut c = connect(disk).map_err(engine)?;
            if asks {
                c.ask_for_wal(true);
            }
            for _ in 0..commits {
                n += 1;
                commit(&mut c, asked_page(n), &[n as u8; ASKED_BYTES]).map_err(engine)?;
                *told = n;
            }
            match end {
                End::Close => c.close().map_err(engine)?,
                End::Silent => {
                    let later =
                        |minutes: u64| onewrite_core::Instant::now() + std::time::Duration::from_secs(60 * minutes);
                    for minutes in 1..4 {
                        c.engine().look_after(later(10 * minutes), |_, _| {});
                    }
                    c.close().map_err(engine)?;
                }
                End::Rest => {
                    let failed = std::cell::RefCell::new(false);
                    c.engine().rest(|_, _| *failed.borrow_mut() = true);
                    c.abandon("its process has ended");
                    if failed.into_inner() {
                        return Err("the rest failed".to_owned());
                    }
                }
                End::Die => c.abandon("its process died"),
            }
        }
        Step::Stock(transactions, ends) => {
            let home = disk.open(Path::new(HOME), OpenMode::ReadWrite).map_err(io)?;
            let mut mode = [0; 2];
            home.read_at(&mut mode, home::WRITE_VERSION as u64).map_err(io)?;
            if mode != [2, 2] || disk.exists(Path::new(WAL)).map_err(io)? {
                return Ok(n);
            }
            let file = disk.open(Path::new(WAL), OpenMode::Create).map_err(io)?;
            let mut log = Sealed::new(ASKED_BYTES, &mut SplitMix64::new(seed ^ n as u64));
            for _ in 0..transactions {
                n += 1;
                log.add(asked_page(n), 4, &[n as u8; ASKED_BYTES]);
                file.write_at(&log.bytes, 0).map_err(io)?;
                file.sync().map_err(io)?;
                disk.sync_dir_of(Path::new(WAL)).map_err(io)?;
                *told = n;
            }
            if ends {
                for (at, page) in asked_pages(n).iter().enumerate().skip(1) {
                    home.write_at(page, (at * ASKED_BYTES) as u64).map_err(io)?;
                }
                home.sync().map_err(io)?;
                disk.remove(Path::new(WAL)).map_err(io)?;
            }
        }
    }
    Ok(n)
}

fn commit(c: &mut Connection, page: usize, image: &[u8]) -> Result<()> {
    c.lock(LockLevel::Shared)?;
    c.lock(LockLevel::Reserved)?;
    c.write_at(image, (page * image.len()) as u64)?;
    c.prepare(None)?;
    c.sync()?;
    c.commit()?;
    c.unlock(LockLevel::None)
}

/// A later commit survives another crash, and no WAL comes back.
fn commit_and_crash(
    disk: &SimDisk,
    state: &Pages,
    page_bytes: usize,
    rng: &mut SplitMix64,
) -> std::result::Result<(), String> {
    let closes = rng.below(2) == 0;
    let mut expected = state.clone();
    let last = expected.len() - 1;
    expected[last] = vec![0xc5; page_bytes];
    let committed = || -> Result<SimDisk> {
        let mut c = connect(disk)?;
        commit(&mut c, last, &expected[last])?;
        let crashed = disk.survive();
        if closes {
            c.close()?;
            return Ok(disk.clone());
        }
        Ok(crashed)
    };
    let left = committed().map_err(|e| format!("a commit on top: {e}"))?;
    let crashed = left.crash(rng.next_u64());
    match through_onewrite(&crashed, page_bytes) {
        Ok(found) if found == expected => Ok(()),
        Ok(_) => Err("a commit on top is lost".to_owned()),
        Err(e) => Err(format!("behind a commit on top: {e}")),
    }
}

fn connect(disk: &SimDisk) -> Result<Connection> {
    let options = [("busy_ms", "0"), ("log_size", "256k")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    engine_on(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options)
}

fn open_and_close(disk: &SimDisk) -> Result<()> {
    let mut c = connect(disk)?;
    c.lock(LockLevel::Shared)?;
    c.unlock(LockLevel::None)?;
    c.close()
}

fn through_onewrite(disk: &SimDisk, page_bytes: usize) -> Result<Pages> {
    let mut c = connect(disk)?;
    c.lock(LockLevel::Shared)?;
    let mut bytes = vec![0; c.size()? as usize];
    for (n, page) in bytes.chunks_mut(page_bytes).enumerate() {
        c.read_at(page, (n * page_bytes) as u64)?;
    }
    c.unlock(LockLevel::None)?;
    c.close()?;
    Ok(pages_of(&bytes, page_bytes))
}

/// The bytes of the mode and the counters are zero.
fn pages_of(bytes: &[u8], page_bytes: usize) -> Pages {
    let mut pages: Pages = bytes.chunks(page_bytes).map(<[u8]>::to_vec).collect();
    if let Some(first) = pages.first_mut().filter(|page| page.len() == page_bytes) {
        put(first, home::WRITE_VERSION, &[0; 2]);
        put_counter(first, 0);
        put_page_count(first, 0);
    }
    pages
}

/// The newest committed frames overlay home.
fn as_stock_reads(disk: &SimDisk, page_bytes: usize) -> std::result::Result<Pages, String> {
    let mut home = disk.snapshot_file(Path::new(HOME)).ok_or("the database is gone")?;
    let log = disk.snapshot_file(Path::new(WAL)).unwrap_or_default();
    let WalHead::Chain(mut chain) = WalHead::decode(&log[..log.len().min(wal::HEADER_BYTES)]) else {
        return Ok(pages_of(&home, page_bytes));
    };
    let mut open = Vec::new();
    for frame in log[wal::HEADER_BYTES..].chunks(wal::FRAME_HEAD_BYTES + page_bytes) {
        let Some((page, commit)) = chain.next(frame) else { break };
        open.push((page as usize, frame[wal::FRAME_HEAD_BYTES..].to_vec()));
        if commit == 0 {
            continue;
        }
        for (page, image) in open.drain(..) {
            home.resize(home.len().max(page * page_bytes), 0);
            home[(page - 1) * page_bytes..page * page_bytes].copy_from_slice(&image);
        }
        home.resize(commit as usize * page_bytes, 0);
    }
    Ok(pages_of(&home, page_bytes))
}

fn first_page(page_bytes: usize, pages: usize, counter: u32, wal_mode: bool) -> Vec<u8> {
    let mut page = vec![0; page_bytes];
    put(&mut page, 0, home::MAGIC);
    put(&mut page, home::PAGE_SIZE, &u16::try_from(page_bytes).unwrap_or(1).to_be_bytes());
    put(&mut page, home::WRITE_VERSION, if wal_mode { &[2, 2] } else { &[1, 1] });
    put(&mut page, home::RESERVED + 1, &[64, 32, 32]);
    put_counter(&mut page, counter);
    put_page_count(&mut page, u32::try_from(pages).unwrap_or(0));
    page[47] = 4;
    page[59] = 1;
    page[100] = 13;
    page
}

fn draw(rng: &mut SplitMix64) -> std::io::Result<Left> {
    let config = SimConfig {
        atomic_unit: [512, 4096][rng.below(2)],
        sync_covers_creation: rng.below(2) == 0,
        ..SimConfig::default()
    };
    let page_bytes = [512, 1024, 4096][rng.below(3)];
    let disk = SimDisk::new(config);
    // An earlier crash may have come between the change of the header and the removal of the WAL.
    let wal_mode = rng.below(4) > 0;
    let mut pages: Pages = vec![first_page(page_bytes, 0, 7, wal_mode)];
    let fill = |rng: &mut SplitMix64| vec![rng.next_u64() as u8; page_bytes];
    for _ in 0..1 + rng.below(4) {
        pages.push(fill(rng));
    }
    pages[0] = first_page(page_bytes, pages.len(), 7, wal_mode);
    disk.put_file(Path::new(HOME), &pages.concat());
    if rng.below(2) == 0 {
        disk.put_file(Path::new(INDEX), &[9; 512]);
    }
    let mut left =
        Left { disk: disk.clone(), page_bytes, states: vec![pages_of(&pages.concat(), page_bytes)], flushed: 0 };
    if rng.below(8) == 0 {
        return Ok(left);
    }
    let file = disk.open(Path::new(WAL), OpenMode::Create)?;
    let mut log = Sealed::new(page_bytes, rng);
    let transactions = rng.below(4);
    let flushed = rng.below(transactions + 1);
    for n in 0..=transactions {
        if n == flushed && rng.below(2) == 0 {
            file.write_at(&log.bytes, 0)?;
            file.sync()?;
            disk.sync_dir_of(Path::new(WAL))?;
            left.flushed = n;
        }
        if n == transactions {
            break;
        }
        let size = (pages.len() + rng.below(3)).saturating_sub(rng.below(2)).max(2);
        let grown = pages.len().min(size)..size;
        pages.resize(size, vec![0; page_bytes]);
        let mut changed: Vec<usize> = grown.collect();
        changed.extend((0..=rng.below(2)).map(|_| 1 + rng.below(size - 1)));
        if rng.below(2) == 0 {
            pages[0] = first_page(page_bytes, size, 8 + n as u32, true);
            pages[0][page_bytes - 1] = rng.next_u64() as u8;
            changed.push(0);
        }
        for (at, page) in changed.iter().enumerate() {
            if *page > 0 {
                pages[*page] = fill(rng);
            }
            let commit = if at + 1 == changed.len() { size } else { 0 };
            log.add(*page, commit, &pages[*page]);
        }
        left.states.push(pages_of(&pages.concat(), page_bytes));
    }
    // A transaction without an end, or frames of an earlier lap of the WAL.
    match rng.below(3) {
        0 => log.add(1, 0, &fill(rng)),
        1 => log.bytes.extend(vec![rng.next_u64() as u8; page_bytes * 2]),
        _ => {}
    }
    file.write_at(&log.bytes, 0)?;
    Ok(left)
}

struct Sealed {
    bytes: Vec<u8>,
    salt: [u8; wal::SALT_BYTES],
    sums: (u32, u32),
    big_endian: bool,
}

impl Sealed {
    fn new(page_bytes: usize, rng: &mut SplitMix64) -> Self {
        let mut bytes = vec![0; wal::HEADER_BYTES];
        let (salt, big_endian) = (rng.next_u64().to_be_bytes(), rng.below(2) == 0);
        put(&mut bytes, wal::AT_MAGIC, &(wal::MAGIC | u32::from(big_endian)).to_be_bytes());
        put(&mut bytes, wal::AT_VERSION, &wal::VERSION.to_be_bytes());
        put(&mut bytes, wal::AT_PAGE_BYTES, &u32::try_from(page_bytes).unwrap_or(0).to_be_bytes());
        put(&mut bytes, wal::AT_SALT, &salt);
        let mut sealed = Self { bytes, salt, sums: (0, 0), big_endian };
        let head = sealed.bytes[..wal::AT_CHECKSUM].to_vec();
        sealed.sum(&head);
        let sums = sealed.sums_bytes();
        put(&mut sealed.bytes, wal::AT_CHECKSUM, &sums);
        sealed
    }

    /// Adds a page; `commit`: the database's pages after the transaction that ends here, or 0.
    fn add(&mut self, page: usize, commit: usize, image: &[u8]) {
        let mut head = vec![0; wal::FRAME_HEAD_BYTES];
        let number = |n: usize| u32::try_from(n).unwrap_or(0).to_be_bytes();
        put(&mut head, wal::AT_FRAME_PAGE, &number(page + 1));
        put(&mut head, wal::AT_FRAME_COMMIT, &number(commit));
        put(&mut head, wal::AT_FRAME_SALT, &self.salt);
        self.sum(&head[..wal::AT_FRAME_SALT]);
        self.sum(image);
        put(&mut head, wal::AT_FRAME_CHECKSUM, &self.sums_bytes());
        self.bytes.extend(head);
        self.bytes.extend(image);
    }

    fn sums_bytes(&self) -> [u8; 8] {
        ((u64::from(self.sums.0) << 32) | u64::from(self.sums.1)).to_be_bytes()
    }

    fn sum(&mut self, bytes: &[u8]) {
        let word = |b: &[u8]| {
            let word = b.try_into().unwrap_or_default();
            if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
        };
        for pair in bytes.chunks_exact(8) {
            self.sums.0 = self.sums.0.wrapping_add(word(&pair[..4])).wrapping_add(self.sums.1);
            self.sums.1 = self.sums.1.wrapping_add(word(&pair[4..])).wrapping_add(self.sums.0);
        }
    }
}
