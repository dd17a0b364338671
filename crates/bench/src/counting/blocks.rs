//! The block trace of a section: the writes and flushes that the device was asked for, and for
//! which file.

use super::device::DeviceCounters;
use crate::numbers::measure::{median, round};
use onewrite_core::inspect::layout::{KEPT_SUFFIX, LOG_SUFFIX, SLOTS_SUFFIX};
use onewrite_device::{Event, JOURNAL, METADATA, Operation, Region, split};
use serde::Serialize;
use std::fmt::Write as _;

/// The content of a place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    Database,
    /// SQLite's journal or WAL, onewrite's log.
    Log,
    FsJournal,
    FsMetadata,
    /// Not known: metadata of file systems that do not say where it is, and files that are gone.
    Elsewhere,
}

impl BlockContent {
    pub const ALL: [BlockContent; 5] = [
        BlockContent::Database,
        BlockContent::Log,
        BlockContent::FsJournal,
        BlockContent::FsMetadata,
        BlockContent::Elsewhere,
    ];

    pub fn name(self) -> &'static str {
        match self {
            BlockContent::Database => "database",
            BlockContent::Log => "journal or log",
            BlockContent::FsJournal => "fs journal",
            BlockContent::FsMetadata => "fs metadata",
            BlockContent::Elsewhere => "elsewhere",
        }
    }

    /// Of a region by its name.
    fn of(region: &str) -> BlockContent {
        let log = ["-journal", "-wal", "-shm", LOG_SUFFIX].iter().any(|s| region.ends_with(s))
            || [KEPT_SUFFIX, SLOTS_SUFFIX].iter().any(|s| region.contains(s));
        match region {
            JOURNAL => BlockContent::FsJournal,
            METADATA => BlockContent::FsMetadata,
            _ if log => BlockContent::Log,
            _ => BlockContent::Database,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockVolume {
    pub writes: u64,
    /// Writes that begin in the one before or where it ended: a log writes its last block again
    /// with more in it.
    pub sequential: u64,
    pub flushes: u64,
    /// By [`BlockContent::ALL`].
    pub bytes: [u64; 5],
}

impl BlockVolume {
    pub fn all_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn add(&mut self, more: &BlockVolume) {
        self.writes += more.writes;
        self.sequential += more.sequential;
        self.flushes += more.flushes;
        self.bytes.iter_mut().zip(more.bytes).for_each(|(all, more)| *all += more);
    }
}

/// A write, in one part, or a flush.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockRequest {
    /// When it arrived, since the first.
    pub at_us: u64,
    /// Where, how many bytes, for whom; `None` is a flush.
    pub write: Option<(u64, u64, BlockContent)>,
}

/// The requests of a section.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// During its transactions.
    pub during: BlockVolume,
    /// Writes that these had left in the kernel's cache.
    pub left: BlockVolume,
    /// In order, during its transactions.
    pub requests: Vec<BlockRequest>,
    /// Time that the device alone takes for the requests during them; of one that takes time.
    pub device_ns: Option<u64>,
}

impl Blocks {
    /// From the device's record. `gone_is_journal`: a place in no region is a rollback journal's.
    pub fn of(during: &[Event], left: &[Event], regions: &[Region], gone_is_journal: bool) -> Blocks {
        let part = |index: usize| match regions.get(index) {
            Some(region) => BlockContent::of(&region.name),
            None if gone_is_journal => BlockContent::Log,
            None => BlockContent::Elsewhere,
        };
        let look = |events: &[Event]| {
            let (mut volume, mut requests, mut before) = (BlockVolume::default(), Vec::new(), None);
            let first_ns = events.first().map_or(0, |e| e.arrived_ns);
            for event in events {
                let at_us = event.arrived_ns.saturating_sub(first_ns) / 1000;
                match event.operation {
                    Operation::Write { offset, len, .. } => {
                        volume.writes += 1;
                        let continues = |(start, end): (u64, u64)| (start..=end).contains(&offset);
                        volume.sequential += u64::from(before.is_some_and(continues));
                        before = Some((offset, offset + len));
                        for (range, index) in split(regions, offset, len) {
                            let (end, part) = (range.end.min(offset + len), part(index));
                            volume.bytes[part as usize] += end - range.start;
                            requests.push(BlockRequest { at_us, write: Some((range.start, end - range.start, part)) });
                        }
                    }
                    Operation::Zero { .. } => {}
                    Operation::Flush => {
                        volume.flushes += 1;
                        requests.push(BlockRequest { at_us, write: None });
                    }
                }
            }
            (volume, requests)
        };
        let (during, requests) = look(during);
        Blocks { during, left: look(left).0, requests, device_ns: None }
    }

    /// With those of a later part of the section, whose requests follow at once.
    pub fn add(&mut self, more: Blocks) {
        self.during.add(&more.during);
        self.left.add(&more.left);
        self.device_ns = match (self.device_ns, more.device_ns) {
            (Some(all), Some(more)) => Some(all + more),
            (all, more) => all.or(more),
        };
        let end_us = self.requests.last().map_or(0, |r| r.at_us);
        self.requests.extend(more.requests.into_iter().map(|r| BlockRequest { at_us: end_us + r.at_us, ..r }));
    }

    /// The same as the device's own counters would have it.
    pub fn counters(&self) -> DeviceCounters {
        let v = &self.during;
        // Its writes all have data.
        DeviceCounters {
            requests: v.writes,
            bytes: v.all_bytes(),
            flushes: Some(v.flushes),
            flushes_of_data: v.flushes,
        }
    }

    /// Lines of `--trace`.
    pub fn csv(&self, name: &str) -> String {
        let mut text = String::new();
        for r in &self.requests {
            let _ = match r.write {
                Some((offset, len, part)) => writeln!(text, "{name},{},write,{offset},{len},{}", r.at_us, part.name()),
                None => writeln!(text, "{name},{},flush,,,", r.at_us),
            };
        }
        text
    }
}

/// The first line of `--trace`.
pub const CSV_HEAD: &str = "engine,workload,time_us,request,offset_bytes,len_bytes,part\n";

/// The block trace per transaction: medians of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerTx {
    pub kib_database_per_tx: f64,
    pub kib_log_per_tx: f64,
    pub kib_fs_journal_per_tx: f64,
    pub kib_fs_metadata_per_tx: f64,
    pub kib_elsewhere_per_tx: f64,
    /// Left in the kernel's cache by the last transaction, written later.
    pub kib_left_per_tx: f64,
    pub writes_per_tx: f64,
    pub flushes_per_tx: f64,
    /// Of the writes, those that begin in the one before or at its end, from 0 to 1.
    pub sequential_share: f64,
    /// How long the device takes over it if nothing else is to be waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ms_per_tx: Option<f64>,
}

impl PerTx {
    /// Of the runs, each with the number of its transactions.
    pub fn of<'b>(runs: impl Iterator<Item = (usize, &'b Blocks)> + Clone) -> Option<PerTx> {
        let per_tx = |of: &dyn Fn(&Blocks) -> u64| {
            median(runs.clone().map(|(n, b)| of(b) as f64 / n as f64)).map(|v| round(v, 3))
        };
        let kib = |part: BlockContent| {
            let bytes = move |(n, b): (usize, &Blocks)| b.during.bytes[part as usize] as f64 / 1024.0 / n as f64;
            median(runs.clone().map(bytes)).map(|v| round(v, 3))
        };
        let sequential = |(_, b): (usize, &Blocks)| b.during.sequential as f64 / b.during.writes.max(1) as f64;
        let device_ms = |(n, b): (usize, &Blocks)| Some(b.device_ns? as f64 / 1e6 / n as f64);
        Some(PerTx {
            kib_database_per_tx: kib(BlockContent::Database)?,
            kib_log_per_tx: kib(BlockContent::Log)?,
            kib_fs_journal_per_tx: kib(BlockContent::FsJournal)?,
            kib_fs_metadata_per_tx: kib(BlockContent::FsMetadata)?,
            kib_elsewhere_per_tx: kib(BlockContent::Elsewhere)?,
            kib_left_per_tx: round(per_tx(&|b| b.left.all_bytes())? / 1024.0, 3),
            writes_per_tx: per_tx(&|b| b.during.writes)?,
            flushes_per_tx: per_tx(&|b| b.during.flushes)?,
            sequential_share: round(median(runs.clone().map(sequential))?, 3),
            device_ms_per_tx: median(runs.clone().filter_map(device_ms)).map(|v| round(v, 4)),
        })
    }

    /// KiB by [`BlockContent::ALL`], then those left in the kernel's cache.
    pub fn kib(&self) -> [f64; 6] {
        [
            self.kib_database_per_tx,
            self.kib_log_per_tx,
            self.kib_fs_journal_per_tx,
            self.kib_fs_metadata_per_tx,
            self.kib_elsewhere_per_tx,
            self.kib_left_per_tx,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_told_apart_by_where_they_are() {
        let region = |name: &str, range| Region { name: name.to_owned(), ranges: vec![range] };
        let regions = [
            region(JOURNAL, 1000..2000),
            region(METADATA, 2000..3000),
            region("dir/bench.db", 3000..4000),
            region("dir/bench.db-wal", 4000..5000),
        ];
        let event = |at_us: u64, operation| Event { arrived_ns: at_us * 1000, done_ns: at_us * 1000, operation };
        let write = |at_us, offset, len| event(at_us, Operation::Write { offset, len, data: None });
        let during = [
            write(50, 3900, 300),
            write(60, 4200, 100),
            event(70, Operation::Flush),
            write(80, 1000, 512),
            write(90, 9000, 7),
            event(95, Operation::Zero { offset: 0, len: 1 << 20 }),
        ];
        let blocks = Blocks::of(&during, &[write(100, 2100, 10)], &regions, false);
        assert_eq!(blocks.during, BlockVolume { writes: 4, sequential: 1, flushes: 1, bytes: [100, 300, 512, 0, 7] });
        assert_eq!(blocks.left.bytes, [0, 0, 0, 10, 0]);
        assert_eq!(blocks.requests[1], BlockRequest { at_us: 0, write: Some((4000, 200, BlockContent::Log)) });
        assert_eq!(blocks.requests[3], BlockRequest { at_us: 20, write: None });
        let all = DeviceCounters { requests: 4, bytes: 919, flushes: Some(1), flushes_of_data: 1 };
        assert_eq!((blocks.counters(), all.block_writes()), (all, Some(4)));
        let gone = Blocks::of(&during, &[], &regions, true);
        assert_eq!(gone.during.bytes, [100, 307, 512, 0, 0]);

        let per_tx = PerTx::of([(10, &blocks), (5, &blocks), (1, &blocks)].into_iter()).unwrap();
        assert_eq!((per_tx.writes_per_tx, per_tx.flushes_per_tx, per_tx.sequential_share), (0.8, 0.2, 0.25));
        assert_eq!(per_tx.kib()[2], 0.1);
        assert_eq!(per_tx.device_ms_per_tx, None, "a device that takes no time");
        let mut timed = Blocks { device_ns: Some(6_000_000), ..blocks.clone() };
        timed.add(timed.clone());
        assert_eq!(PerTx::of([(4, &timed)].into_iter()).unwrap().device_ms_per_tx, Some(3.0));
        assert!(PerTx::of(std::iter::empty()).is_none());
    }
}
