//! The requests to a device, in order and with their bytes: power cuts and summaries are made from
//! them.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Name of the region of the file system's journal.
pub const JOURNAL: &str = "file system's journal";
/// Name of the region of its other metadata: superblocks, bitmaps, inodes, directories.
pub const METADATA: &str = "file system's metadata";

/// One request that changes the device or makes changes durable.
#[derive(Clone, Debug)]
pub enum Operation {
    /// `data` is `None` if the device does not keep the bytes.
    Write {
        /// In bytes from the device's start.
        offset: u64,
        /// In bytes.
        len: u64,
        /// The written bytes.
        data: Option<Arc<[u8]>>,
    },
    /// A range of zeros from now on: a discard, or zeros without data.
    Zero {
        /// In bytes from the device's start.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Recorded at its answer: requests answered before it arrived are durable from here on.
    Flush,
}

/// An operation with its times.
#[derive(Clone, Debug)]
pub struct Event {
    /// Arrival, in nanoseconds since the device started.
    pub arrived_ns: u64,
    /// Answer, or the time when it is due.
    pub done_ns: u64,
    /// The operation.
    pub operation: Operation,
}

/// Since the recording began, at the start or at [`crate::Device::replace`].
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the device's order.
    pub events: Vec<Event>,
    /// Answered read requests, without content.
    pub reads: u64,
    /// Bytes that they returned.
    pub read_bytes: u64,
}

/// A named part of the device: a file or a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// The name of the file or journal.
    pub name: String,
    /// In bytes, not necessarily in order.
    pub ranges: Vec<Range<u64>>,
}

/// The writes to one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// `other` for writes outside all regions.
    pub region: String,
    /// Requests that begin there.
    pub writes: u64,
    /// Bytes there.
    pub bytes: u64,
    /// Requests that continue the one before.
    pub sequential_writes: u64,
}

/// A trace in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Write requests that continue the one before.
    pub sequential_writes: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Discards and zeroed ranges.
    pub zeroed: u64,
    /// Bytes of discards and zeroed ranges.
    pub zeroed_bytes: u64,
    /// Read requests since the recording began.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// From the first event to the last answer.
    pub span_us: u64,
    /// Time with at least one unanswered write or flush.
    pub busy_us: u64,
    /// In the order of the regions, `other` last.
    pub regions: Vec<Volume>,
}

impl Trace {
    /// Sums up the events between two positions.
    pub fn summary(&self, positions: Range<usize>, regions: &[Region]) -> Summary {
        let end = positions.end.min(self.events.len());
        let events = &self.events[positions.start.min(end)..end];
        let mut volumes: Vec<Volume> =
            regions.iter().map(|r| Volume { region: r.name.clone(), ..Volume::default() }).collect();
        volumes.push(Volume { region: "other".to_owned(), ..Volume::default() });
        let mut summary = Summary { reads: self.reads, read_bytes: self.read_bytes, ..Summary::default() };
        let (mut next, mut busy_until) = (None, 0);
        let mut busy_ns = 0;
        for event in events {
            busy_ns += event.done_ns.saturating_sub(event.arrived_ns.max(busy_until));
            busy_until = busy_until.max(event.done_ns);
            match event.operation {
                Operation::Write { offset, len, .. } => {
                    let sequential = u64::from(next == Some(offset));
                    next = Some(offset + len);
                    summary.writes += 1;
                    summary.write_bytes += len;
                    summary.sequential_writes += sequential;
                    for (i, (start, part)) in split(regions, offset, len).into_iter().enumerate() {
                        let volume = &mut volumes[part];
                        let end = offset + len;
                        volume.bytes += start.end.min(end) - start.start;
                        if i == 0 {
                            volume.writes += 1;
                            volume.sequential_writes += sequential;
                        }
                    }
                }
                Operation::Zero { len, .. } => {
                    summary.zeroed += 1;
                    summary.zeroed_bytes += len;
                }
                Operation::Flush => summary.flushes += 1,
            }
        }
        if let (Some(first), Some(last)) = (events.first(), events.iter().map(|e| e.done_ns).max()) {
            summary.span_us = last.saturating_sub(first.arrived_ns) / 1000;
        }
        summary.busy_us = busy_ns / 1000;
        summary.regions = volumes;
        summary
    }
}

/// Parts of a write with the indexes of their regions (the number of regions: none).
pub fn split(regions: &[Region], offset: u64, len: u64) -> Vec<(Range<u64>, usize)> {
    let end = offset + len;
    let mut parts = Vec::new();
    let mut at = offset;
    while at < end {
        let inside = |range: &&Range<u64>| range.contains(&at);
        let found =
            regions.iter().enumerate().find_map(|(i, r)| r.ranges.iter().find(inside).map(|range| (i, range.end)));
        let (index, until) = found.unwrap_or_else(|| {
            let starts = regions.iter().flat_map(|r| &r.ranges).map(|range| range.start).filter(|start| *start > at);
            (regions.len(), starts.min().unwrap_or(end))
        });
        parts.push((at..until.min(end), index));
        at = until;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: u64, offset: u64, len: u64) -> Event {
        let operation = Operation::Write { offset, len, data: None };
        Event { arrived_ns: at * 1000, done_ns: (at + 10) * 1000, operation }
    }

    #[test]
    fn a_summary_counts_by_region() {
        let regions = [
            Region { name: "log".to_owned(), ranges: vec![4096..8192, 100_000..200_000] },
            Region { name: "db".to_owned(), ranges: vec![8192..12288, 12288..16384] },
        ];
        let flush = Event { arrived_ns: 30_000, done_ns: 50_000, operation: Operation::Flush };
        let events = vec![write(0, 0, 8192), write(5, 8192, 4096), write(20, 500_000, 512), flush];
        let trace = Trace { events, reads: 0, read_bytes: 0 };
        let s = trace.summary(0..usize::MAX, &regions);
        assert_eq!((s.writes, s.write_bytes, s.flushes, s.sequential_writes), (3, 12_800, 1, 1));
        assert_eq!((s.span_us, s.busy_us), (50, 45));
        let volumes: Vec<_> = s.regions.iter().map(|v| (v.region.as_str(), v.writes, v.bytes)).collect();
        assert_eq!(volumes, [("log", 0, 4096), ("db", 1, 4096), ("other", 2, 4096 + 512)]);
        assert_eq!(trace.summary(1..2, &[]).writes, 1);
    }
}
