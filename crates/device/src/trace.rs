//! What a device was asked to do, in order, with the bytes: what power cuts and summaries are made from.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One request that changes the device or makes changes durable.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Bytes written. `data` is `None` where the device was told not to keep them.
    Write {
        /// Where, in bytes from the start of the device.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Which.
        data: Option<Arc<[u8]>>,
    },
    /// A range that reads as zeros from now on: a discard, or zeros asked for without sending them.
    Zero {
        /// Where, in bytes from the start of the device.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// A flush. It is recorded when it is answered: what was answered before it arrived is durable from here on.
    Flush,
}

/// An operation and when it was.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it arrived, in nanoseconds since the device started.
    pub arrived_ns: u64,
    /// When it was answered, or was due to be.
    pub done_ns: u64,
    /// What it was.
    pub operation: Operation,
}

/// Everything from the start of the recording, or from [`crate::Device::replace`], until the trace was taken.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// In the order in which the device took them.
    pub events: Vec<Event>,
    /// Read requests answered; they are counted, not recorded.
    pub reads: u64,
    /// Bytes they returned.
    pub read_bytes: u64,
}

/// A named part of the device's addresses: a file, a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// What lies there.
    pub name: String,
    /// Where, in bytes; not necessarily in order.
    pub ranges: Vec<Range<u64>>,
}

/// What was written to one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// The region's name; `other` for what lies in none.
    pub region: String,
    /// Write requests that begin there.
    pub writes: u64,
    /// Bytes written there.
    pub bytes: u64,
    /// Write requests that begin where the request before ended.
    pub sequential_writes: u64,
}

/// A trace in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Write requests that begin where the one before ended.
    pub sequential_writes: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Discards and zeroed ranges.
    pub zeroed: u64,
    /// Bytes of them.
    pub zeroed_bytes: u64,
    /// Read requests, since the recording began.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// From the first event to the last answer.
    pub span_us: u64,
    /// Time during which at least one write or flush was waiting for its answer.
    pub busy_us: u64,
    /// Writes by region, in the order of the regions, `other` last.
    pub regions: Vec<Volume>,
}

impl Trace {
    /// The events from one position to another in numbers, writes told apart by the regions they lie in.
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

/// The parts of a write and the index of the region each lies in (the number of regions: none).
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
