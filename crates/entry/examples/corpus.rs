//! Writes the corpora anew from logs of the engine: `cargo run -p onewrite-entry --example corpus`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::inspect::LogFile;
use onewrite_core::{Connection, Engine, LockLevel, Result};
use onewrite_entry::files::{Files, HOME};

fn main() -> std::io::Result<()> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut written = Vec::new();
    for (name, files) in databases().expect("the engine writes") {
        let input = files.encode();
        written.push((format!("recovery/{name}"), input.clone()));
        written.push((format!("walk/{name}"), input));
        for (kind, bytes) in parts(&files) {
            written.push((format!("decoders/{kind}-{name}"), bytes));
        }
    }
    // These bytes choose every kind of call.
    for (n, scheme) in (0..5u8).zip(["log", "log-again", "wal-opt", "off", "off-opt"]) {
        let calls = (0..600u32).map(|at| (at.wrapping_mul(2_654_435_761) >> (7 + n)) as u8);
        written.push((format!("calls/{scheme}"), [&[n, 3, n][..], &calls.collect::<Vec<_>>()].concat()));
    }
    for (name, bytes) in written {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(path, bytes)?;
    }
    Ok(())
}

/// Databases as a crash leaves them.
fn databases() -> Result<Vec<(&'static str, Files)>> {
    let pages = |first: u64, count: u64| (first..first + count).collect::<Vec<_>>();
    let small: Vec<Vec<u64>> = (1..6).map(|n| pages(n % 3, 1 + n % 2)).collect();
    let streamed = vec![pages(1, 1), pages(1, 160), pages(2, 1)];
    Ok(vec![
        ("small", crashed("log", 512, &small, 0)?),
        ("own-blocks", crashed("wal-opt", 512, &small[..2], 0)?),
        ("growing", crashed("log", 1024, &[pages(1, 2), pages(3, 4), pages(7, 2)], 0)?),
        ("streamed", crashed("log", 512, &streamed, 0)?),
        ("checkpointed", crashed("log", 512, &small, 2)?),
        ("in-place", crashed("off", 512, &small, 0)?),
        ("closed", {
            let files = crashed("log", 512, &small, 0)?;
            let disk = files.disk();
            let mut db = open(&disk, "log")?;
            db.lock(LockLevel::Shared)?;
            db.close()?;
            Files::of(&disk, 512)
        }),
        ("no-log", Files { log: None, ..crashed("log", 512, &small, 0)? }),
    ])
}

fn open(disk: &SimDisk, scheme: &str) -> Result<Connection> {
    let given = [("scheme", scheme), ("log_size", "256k"), ("stream_size", "64k"), ("table_size", "1m")];
    let given = given.map(|(n, v)| (n.to_owned(), v.to_owned()));
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::Create, &given)
}

/// A checkpoint follows transaction `checkpoint`.
fn crashed(scheme: &str, page_bytes: usize, transactions: &[Vec<u64>], checkpoint: usize) -> Result<Files> {
    let disk = SimDisk::new(SimConfig { atomic_unit: 512, ..SimConfig::default() });
    let mut db = open(&disk, scheme)?;
    let mut page_count = 0;
    for (n, pages) in (1u8..).zip(transactions) {
        db.lock(LockLevel::Shared)?;
        db.lock(LockLevel::Reserved)?;
        page_count = pages.iter().map(|p| p + 1).chain([page_count]).max().unwrap_or(1);
        let mut first = vec![0; page_bytes];
        db.read_at(&mut first, 0)?;
        first[..16].copy_from_slice(b"SQLite format 3\0");
        first[16..24].copy_from_slice(&[(page_bytes >> 8) as u8, 0, 1, 1, 0, 64, 32, 32]);
        first[31] = page_count as u8;
        db.write_at(&first, 0)?;
        for page in pages.iter().filter(|p| **p > 0) {
            let mut image = vec![0; page_bytes];
            image[20..30].fill(n);
            image[page_bytes - 4..].fill(*page as u8);
            db.write_at(&image, page * page_bytes as u64)?;
        }
        db.prepare(None)?;
        db.sync()?;
        db.commit()?;
        db.unlock(LockLevel::None)?;
        if usize::from(n) == checkpoint {
            db.pragma("checkpoint", None).transpose()?;
        }
    }
    Ok(Files::of(&disk.survive(), 512))
}

/// Inputs of the decoders.
fn parts(files: &Files) -> Vec<(&'static str, Vec<u8>)> {
    let mut parts = vec![("header", [&[1 | 8], &files.home[..100]].concat())];
    let Some(log) = &files.log else { return parts };
    parts.push(("slot", [&[0], &log[4096..4196]].concat()));
    let disk = files.disk();
    let path = format!("{HOME}-onewrite");
    let opened = LogFile::open(&disk, Path::new(&path), OpenMode::ReadOnly);
    let slot = opened.ok().flatten().and_then(|log| log.slots().ok()?.into_iter().next());
    let at = slot.map_or(0, |slot| 3 * 4096 + (slot.start.0 % slot.ring_bytes) as usize);
    let len = u32::from_le_bytes([log[at + 28], log[at + 29], log[at + 30], log[at + 31]]) as usize;
    if (60..2000).contains(&len) {
        parts.push(("record", [&[2], &log[at..at + len]].concat()));
    }
    parts
}
