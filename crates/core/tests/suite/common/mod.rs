//! Databases in temporary directories, as crashes and careless copying leave them.

#![allow(dead_code)]

pub mod hooked;
pub mod leaves;
pub mod slow;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::LogFile;
use onewrite_core::{Connection, Engine, LockLevel, Result};

/// Bytes.
pub const PAGE: usize = 4096;
pub const TX: u64 = 6;

/// Acts as another process.
pub fn engine() -> Arc<Engine> {
    Engine::new(Arc::new(RealDisk::new()))
}

pub struct Pair {
    dir: Option<tempfile::TempDir>,
    pub home: PathBuf,
}

impl Pair {
    pub fn at(dir: &Path) -> Pair {
        Pair { dir: None, home: dir.join("db") }
    }

    fn new() -> Pair {
        let dir = tempfile::tempdir().unwrap();
        Pair { home: dir.path().join("db"), dir: Some(dir) }
    }

    pub fn log(&self) -> PathBuf {
        onewrite_core::inspect::log_path(&self.home)
    }

    pub fn bytes(&self) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        (std::fs::read(&self.home).ok(), std::fs::read(self.log()).ok())
    }

    pub fn copy(&self) -> Pair {
        let pair = Pair::new();
        std::fs::copy(&self.home, &pair.home).unwrap();
        std::fs::copy(self.log(), pair.log()).unwrap();
        pair
    }

    pub fn again(&self, from: u64, count: u64) -> Pair {
        self.again_with(from, count, &[])
    }

    pub fn again_with(&self, from: u64, count: u64, options: &[(&str, &str)]) -> Pair {
        let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let mut c = engine().open(&self.home, OpenMode::ReadWrite, &options).unwrap();
        for n in from + 1..=from + count {
            commit(&mut c, n);
        }
        self.copy()
    }

    pub fn records(&self) -> Vec<usize> {
        let log = LogFile::open(&RealDisk::new(), &self.log(), OpenMode::ReadOnly).unwrap().unwrap();
        let slot = log.slots().unwrap().remove(0);
        let bytes = std::fs::read(self.log()).unwrap();
        let mut starts = Vec::new();
        let mut at = 3 * slot.block_bytes as usize + slot.start.0 as usize;
        log.scan(&slot, |_| {
            starts.push(at);
            at += u32::from_le_bytes(bytes[at + 28..at + 32].try_into().unwrap()) as usize;
            Ok(())
        })
        .unwrap();
        starts
    }
}

pub fn plain(n: u64) -> Vec<u8> {
    let mut b = vec![0; 3 * PAGE];
    b[..16].copy_from_slice(b"SQLite format 3\0");
    b[16..24].copy_from_slice(&[16, 0, 1, 1, 0, 64, 32, 32]);
    b[27] = 1;
    b[31] = 3;
    b[47] = 4;
    b[59] = 1;
    b[95] = 1;
    b[100] = 13;
    b[PAGE..2 * PAGE].copy_from_slice(&page(n));
    b
}

pub fn page(n: u64) -> Vec<u8> {
    let mut b = vec![0x0a; PAGE];
    for (at, byte) in b.iter_mut().enumerate().skip(100).take(40) {
        *byte = (n as u8).wrapping_mul(37).wrapping_add(at as u8);
    }
    b[200..208].copy_from_slice(&n.to_le_bytes());
    b
}

pub fn commit(c: &mut Connection, n: u64) {
    write(c, &[(1, page(n))]);
}

pub fn filled(index: u64, pages: u32, byte: u8) -> Vec<u8> {
    let mut b = vec![byte; PAGE];
    if index == 0 {
        b[..100].fill(0);
        b[..16].copy_from_slice(b"SQLite format 3\0");
        b[16..24].copy_from_slice(&[16, 0, 1, 1, 0, 64, 32, 32]);
        b[28..32].copy_from_slice(&pages.to_be_bytes());
    }
    b
}

pub fn try_fill(c: &mut Connection, pages: u32, byte: u8) -> Result<()> {
    try_write(c, (0..u64::from(pages)).map(|n| (n, filled(n, pages, byte))))
}

pub fn try_write(c: &mut Connection, pages: impl Iterator<Item = (u64, Vec<u8>)>) -> Result<()> {
    c.lock(LockLevel::Shared)?;
    c.lock(LockLevel::Reserved)?;
    for (index, bytes) in pages {
        c.write_at(&bytes, index * PAGE as u64)?;
    }
    c.prepare(None)?;
    c.sync()?;
    c.commit()?;
    c.unlock(LockLevel::None)
}

pub fn write(c: &mut Connection, pages: &[(u64, Vec<u8>)]) {
    write_and_sync(c, pages);
    c.commit().unwrap();
    c.unlock(LockLevel::None).unwrap();
}

pub fn write_and_sync(c: &mut Connection, pages: &[(u64, Vec<u8>)]) {
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    for (index, bytes) in pages {
        c.write_at(bytes, index * PAGE as u64).unwrap();
    }
    c.prepare(None).unwrap();
    c.sync().unwrap();
}

pub fn crashed(count: u64) -> Pair {
    crashed_with(count, &[])
}

pub fn crashed_with(count: u64, options: &[(&str, &str)]) -> Pair {
    let pair = Pair::new();
    std::fs::write(&pair.home, plain(0)).unwrap();
    pair.again_with(0, count, options)
}

pub fn lock(home: &Path) -> Result<()> {
    let mut c = engine().open(home, OpenMode::ReadWrite, &[])?;
    c.lock(LockLevel::Shared)?;
    c.unlock(LockLevel::None)?;
    c.close()
}

pub fn ends_with_all(home: &Path, n: u64) {
    lock(home).unwrap();
    let bytes = std::fs::read(home).unwrap();
    assert_eq!(bytes.len(), 3 * PAGE);
    assert_eq!(bytes[19], 1, "the mark is off");
    assert_eq!(bytes[72..92], [0; 20], "the session is gone");
    assert!(bytes[PAGE..2 * PAGE] == page(n), "page 2 is not that of transaction {n}");
    assert!(!RealDisk::new().exists(&home.with_file_name("db-journal")).unwrap());
}
