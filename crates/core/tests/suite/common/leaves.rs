//! A database of leaves with a number in them and room in their gaps, for the schemes in place.

use std::path::Path;
use std::sync::Arc;

use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::{Connection, Engine, LockLevel};

use super::{PAGE, plain};

pub const HOME: &str = "/db";

pub fn leaf(n: u64) -> Vec<u8> {
    let mut b = vec![0; PAGE];
    let at = PAGE - 32 - 100;
    b[0] = 13;
    b[4] = 1;
    b[5..7].copy_from_slice(&(at as u16).to_be_bytes());
    b[8..10].copy_from_slice(&(at as u16).to_be_bytes());
    b[at..at + 8].copy_from_slice(&n.to_le_bytes());
    b
}

pub fn cell(page: &[u8]) -> u64 {
    u64::from_le_bytes(page[PAGE - 132..PAGE - 124].try_into().unwrap())
}

pub fn disk(atomic_unit: u32, reserved: u8) -> SimDisk {
    let disk = SimDisk::new(SimConfig { atomic_unit, ..SimConfig::default() });
    let mut home = plain(0);
    home.truncate(PAGE);
    home[20] = reserved;
    home[31] = 12;
    home[105..107].copy_from_slice(&(PAGE as u16 - 32).to_be_bytes());
    (2..=12).for_each(|_| home.extend(leaf(0)));
    disk.put_file(Path::new(HOME), &home);
    disk
}

pub fn open(disk: &SimDisk, scheme: &str) -> Connection {
    let options = [("scheme", scheme), ("log_size", "256k")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
}

pub fn stat(c: &mut Connection, name: &str) -> u64 {
    let text = c.pragma("stats", None).unwrap().unwrap();
    text.lines().find_map(|l| l.strip_prefix(&format!("{name}="))).unwrap().parse().unwrap()
}

pub fn cells(c: &mut Connection) -> Vec<u64> {
    c.lock(LockLevel::Shared).unwrap();
    let mut b = vec![0; PAGE];
    let all = (1..12).map(|index| {
        c.read_at(&mut b, index * PAGE as u64).unwrap();
        cell(&b)
    });
    let all = all.collect();
    c.unlock(LockLevel::None).unwrap();
    all
}

pub fn leaves(n: u64, indexes: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>)> {
    indexes.map(|index| (index, leaf(n))).collect()
}

/// Without a gap for an undo record.
pub fn opaque(n: u8) -> Vec<u8> {
    let mut b = vec![n; PAGE];
    b[0] = 0;
    b
}
