//! A dead process left a database in SQLite's WAL mode; onewrite opens it and takes it out of that
//! mode, with power cuts at each operation. Content, size, flushed parts and the bytes behind the
//! end of the WAL are drawn.
//!
//! The result is read twice: as stock SQLite reads home and the valid part of the WAL, and through
//! onewrite. Both find the same of the transactions that a power cut may leave.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::home::{FileKind, State, put_counter, put_page_count};
use onewrite_core::inspect::layout::{home, put, wal};
use onewrite_core::inspect::wal::WalHead;
use onewrite_core::{Connection, Engine, LockLevel, Result};

use crate::check::{Counts, Violation};

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
            if state.kind != FileKind::Database || pages_of(&home, left.page_bytes) != left.states[at] {
                return Err(case(format!("a plain file of transaction {at} is expected, not {:?}", state.kind)));
            }
            commit_and_crash(&crashed, &left.states[at], left.page_bytes, &mut rng).map_err(case)?;
        }
    }
    Ok(())
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
        c.lock(LockLevel::Shared)?;
        c.lock(LockLevel::Reserved)?;
        c.write_at(&expected[last], (last * page_bytes) as u64)?;
        c.prepare(None)?;
        c.sync()?;
        c.commit()?;
        c.unlock(LockLevel::None)?;
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
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options)
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
