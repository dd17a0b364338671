//! Encodes a database and its log as a sparse input: real logs are mostly zeros.
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 1 | flags |
//! | 1 | 4 | length of the database |
//! | 5 | 4 | length of the log |
//! | 9 | | extents until the end: file (0 database, 1 log), offset u32, length u16, bytes |
//!
//! Flags: 1 slots get right checksums, 2 records, 4 stream indexes; 8: no log; 16: atomic unit 4096
//! instead of 512. Lengths and offsets are taken modulo their limits, so every input is a pair of
//! files.

use std::path::Path;

use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::inspect::Slot;
use onewrite_core::inspect::layout::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, LOG_SUFFIX, decision, le_u16, le_u32, le_u64, put, record, slot,
};

/// Largest database.
pub const HOME_BYTES_MAX: u32 = 256 << 10;
/// Largest log.
pub const LOG_BYTES_MAX: u32 = 768 << 10;
const CAPACITY: u64 = 16 << 20;
/// The path of the database.
pub const HOME: &str = "/db";

const SEAL_SLOTS: u8 = 1;
const SEAL_RECORDS: u8 = 2;
const SEAL_STREAMS: u8 = 4;
const NO_LOG: u8 = 8;
const LARGE_UNIT: u8 = 16;

/// A database and perhaps a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Bytes that the disk writes atomically.
    pub atomic_unit: u32,
    /// The database.
    pub home: Vec<u8>,
    /// The log.
    pub log: Option<Vec<u8>>,
}

impl Files {
    /// Decodes an input.
    pub fn parse(input: &[u8]) -> Files {
        let flags = input.first().copied().unwrap_or(0);
        let len = |at, max| le_u32(input, at).unwrap_or(0) % (max + 1);
        let mut home = vec![0; len(1, HOME_BYTES_MAX) as usize];
        let mut log = vec![0; len(5, LOG_BYTES_MAX) as usize];
        let mut rest = input.get(9..).unwrap_or_default();
        while let (Some(file), Some(offset), Some(len)) = (rest.first(), le_u32(rest, 1), le_u16(rest, 5)) {
            let bytes = rest.get(7..).unwrap_or_default();
            let bytes = bytes.get(..usize::from(len)).unwrap_or(bytes);
            rest = rest.get(7 + bytes.len()..).unwrap_or_default();
            let to = if file & 1 == 0 { &mut home } else { &mut log };
            if !to.is_empty() {
                let at = offset as usize % to.len();
                let fits = bytes.len().min(to.len() - at);
                put(to, at, bytes.get(..fits).unwrap_or_default());
            }
        }
        seal(&mut log, flags);
        let atomic_unit = if flags & LARGE_UNIT == 0 { 512 } else { 4096 };
        Files { atomic_unit, home, log: (flags & NO_LOG == 0).then_some(log) }
    }

    /// The input for these files, with every checksum to be made right.
    pub fn encode(&self) -> Vec<u8> {
        let mut input = vec![SEAL_SLOTS | SEAL_RECORDS | SEAL_STREAMS];
        let log = self.log.as_deref().unwrap_or_default();
        if self.log.is_none() {
            input[0] |= NO_LOG;
        }
        if self.atomic_unit > 512 {
            input[0] |= LARGE_UNIT;
        }
        for file in [&*self.home, log] {
            input.extend(u32::try_from(file.len()).unwrap_or(0).to_le_bytes());
        }
        for (number, file) in [(0u8, &*self.home), (1, log)] {
            let mut at = 0;
            while let Some(skip) = file.get(at..).and_then(|rest| rest.iter().position(|&b| b != 0)) {
                let start = at + skip;
                let rest = file.get(start..).unwrap_or_default();
                // Sixteen zeros end an extent: a new one costs seven bytes.
                let len = rest.windows(16).position(|w| w.iter().all(|&b| b == 0)).unwrap_or(rest.len()).min(60_000);
                input.push(number);
                input.extend(u32::try_from(start).unwrap_or(0).to_le_bytes());
                input.extend(u16::try_from(len).unwrap_or(0).to_le_bytes());
                input.extend(rest.get(..len).unwrap_or_default());
                at = start + len;
            }
        }
        input
    }

    /// A disk with these files.
    pub fn disk(&self) -> SimDisk {
        let disk =
            SimDisk::new(SimConfig { atomic_unit: self.atomic_unit, capacity: CAPACITY, ..SimConfig::default() });
        disk.put_file(Path::new(HOME), &self.home);
        if let Some(log) = &self.log {
            disk.put_file(Path::new(&format!("{HOME}{LOG_SUFFIX}")), log);
        }
        disk
    }

    /// The files on a disk.
    pub fn of(disk: &SimDisk, atomic_unit: u32) -> Files {
        let log = disk.snapshot_file(Path::new(&format!("{HOME}{LOG_SUFFIX}")));
        Files { atomic_unit, home: disk.snapshot_file(Path::new(HOME)).unwrap_or_default(), log }
    }
}

/// Writes the checksum of the slot at the start of `bytes`.
pub fn seal_slot(bytes: &mut [u8]) {
    let crc = crc32c::crc32c(bytes.get(..slot::AT_CRC).unwrap_or_default());
    put(bytes, slot::AT_CRC, &crc.to_le_bytes());
}

/// Writes the checksum of a decision, of which `bytes` may hold a part.
pub fn seal_decision(bytes: &mut [u8]) {
    let Some(most) = bytes.len().checked_sub(decision::CRC_BYTES) else { return };
    let Some(len) = le_u32(bytes, decision::AT_LEN).map(|len| most.min(len as usize)) else { return };
    put(bytes, decision::AT_LEN, &u32::try_from(len).unwrap_or(0).to_le_bytes());
    let crc = crc32c::crc32c(bytes.get(..len).unwrap_or_default());
    put(bytes, len, &crc.to_le_bytes());
}

/// Writes the checksum of the record that fills `bytes`, and returns it.
pub fn seal_record(bytes: &mut [u8]) -> u32 {
    let Some(at) = bytes.len().checked_sub(record::CRC_BYTES) else { return 0 };
    let crc = crc32c::crc32c(bytes.get(..at).unwrap_or_default());
    put(bytes, at, &crc.to_le_bytes());
    crc
}

fn seal(log: &mut [u8], flags: u8) {
    let mut slots = Vec::new();
    let file_bytes = log.len() as u64;
    let mut block = BLOCK_BYTES_MIN as usize;
    while block <= BLOCK_BYTES_MAX as usize {
        for at in [block, 2 * block] {
            let Some(bytes) = log.get_mut(at..at + slot::BYTES) else { continue };
            if flags & SEAL_SLOTS != 0 && le_u64(bytes, slot::AT_MAGIC) == Some(slot::MAGIC) {
                seal_slot(bytes);
            }
            slots.extend(Slot::decode(bytes, file_bytes));
        }
        block *= 2;
    }
    if flags & SEAL_RECORDS != 0
        && let Some(newest) = slots.iter().max_by_key(|slot| slot.sequence)
    {
        seal_records(log, newest, flags);
    }
}

/// Chains the records from the slot's start on, each at the end of the one before.
fn seal_records(log: &mut [u8], slot: &Slot, flags: u8) {
    let mut prev_crc = slot.prev_crc;
    let ring_at = slot.ring_at() as usize;
    let mut at = ring_at + usize::try_from(slot.start.0 % slot.ring_bytes).unwrap_or(0);
    loop {
        let Some(len) = log.get(at..).and_then(|b| le_u32(b, record::AT_LEN)).map(|len| len as usize) else { return };
        if len < record::HEADER_BYTES + record::CRC_BYTES || !len.is_multiple_of(record::ALIGN) {
            return;
        }
        let stream = log.get(at..at + len).and_then(stream_at);
        let index = stream.and_then(|stream| {
            let field = |i| le_u32(log, at + stream + i).map(|n| n as usize);
            let from = field(4)?.checked_mul(512)?;
            log.get(from..from.checked_add(field(0)?.checked_mul(record::STREAM_ITEM_BYTES)?)?)
        });
        let index_crc = index.map(crc32c::crc32c);
        let Some(bytes) = log.get_mut(at..at + len) else { return };
        put(bytes, record::AT_PREV_CRC, &prev_crc.to_le_bytes());
        if flags & SEAL_STREAMS != 0
            && let Some((stream, crc)) = stream.zip(index_crc)
        {
            put(bytes, stream + 8, &crc.to_le_bytes());
        }
        prev_crc = seal_record(bytes);
        at += len;
    }
}

/// Where the index of streamed images is told, in the last entry, before zeros and the checksum.
fn stream_at(bytes: &[u8]) -> Option<usize> {
    let end = bytes.len().checked_sub(record::CRC_BYTES)?;
    let zeros = bytes.get(..end)?.iter().rev().take_while(|byte| **byte == 0).count().min(record::ALIGN - 1);
    let starts = (end.saturating_sub(zeros)..=end).filter_map(|end| end.checked_sub(record::STREAM_BYTES));
    starts.filter(|at| *at > record::HEADER_BYTES).find(|at| bytes.get(at - 1) == Some(&record::KIND_STREAM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_from_their_input() {
        let mut home = vec![0; 3000];
        home[100..140].fill(7);
        home[2999] = 1;
        let files = Files { atomic_unit: 4096, home, log: Some(vec![0; 20_000]) };
        assert_eq!(Files::parse(&files.encode()), files);
        let alone = Files { log: None, ..files };
        assert_eq!(Files::parse(&alone.encode()), alone);
    }
}
