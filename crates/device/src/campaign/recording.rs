//! One run of writing threads: the device's trace, the acknowledgements, and so the states that a
//! power cut at any position may leave.

use anyhow::{Result, ensure};
use onewrite_core::disk::sim::SplitMix64;
use onewrite_device::{Event, Image, Operation, Trace};

use super::check::{Allowed, Expected};
use super::load::Rows;
use super::place::Place;
use super::writer::{Acknowledged, Order};

pub struct Recording {
    pub base: Image,
    pub trace: Trace,
    acknowledged: Vec<Acknowledged>,
    /// By thread and count.
    digests: Vec<Vec<u64>>,
}

impl Recording {
    pub fn make(order: &Order, place: &mut dyn Place) -> Result<Recording> {
        let base = place.device().image();
        place.device().replace(base.clone())?;
        let acknowledged = place.write(order)?;
        let trace = place.device().trace();
        ensure!(!trace.events.is_empty(), "the device recorded nothing");
        ensure!(acknowledged.first().is_some_and(|a| a.thread.is_none()), "the writer did not make its schema");
        let digests = (0..order.setting.threads).map(|thread| {
            let count = acknowledged.iter().filter(|a| a.thread == Some(thread)).map(|a| a.count).max().unwrap_or(0);
            let mut rows = Rows::new(order.setting.seed, thread);
            let mut by_count = vec![rows.digest()];
            while rows.count < count {
                let plan = rows.plan();
                rows.apply(&plan);
                by_count.push(rows.digest());
            }
            by_count
        });
        let digests = digests.collect();
        Ok(Recording { base, trace, acknowledged, digests })
    }

    pub fn transactions(&self) -> u64 {
        self.digests.iter().map(|by_count| by_count.len() as u64 - 1).sum()
    }

    /// Positions, ascending: anywhere, before flushes, where most is at stake, and right after
    /// acknowledgements.
    pub fn positions(&self, count: u64, random: &mut SplitMix64) -> Vec<usize> {
        let events = &self.trace.events;
        let is_flush = |e: &Event| matches!(e.operation, Operation::Flush);
        let flushes: Vec<usize> = events.iter().enumerate().filter(|(_, e)| is_flush(e)).map(|(i, _)| i).collect();
        let one = |_| {
            let anywhere = random.below(events.len() + 1);
            match random.below(4) {
                0 => flushes.get(random.below(flushes.len().max(1))).copied().unwrap_or(anywhere),
                1 => {
                    let at = random.below(self.acknowledged.len().max(1));
                    self.acknowledged.get(at).map_or(anywhere, |a| a.position)
                }
                _ => anywhere,
            }
        };
        let mut positions: Vec<usize> = (0..count).map(one).collect();
        positions.sort_unstable();
        positions
    }

    /// A transaction begins after the acknowledgement of the one before, so at most one more is
    /// there.
    pub fn expected(&self, position: usize) -> Expected<'_> {
        let before = self.acknowledged.iter().filter(|a| a.position <= position);
        let schema = before.clone().any(|a| a.thread.is_none());
        let allowed = |(thread, digests)| {
            let least = before.clone().filter(|a| a.thread == Some(thread)).map(|a| a.count).max().unwrap_or(0);
            Allowed { least, most: least + 1, digests }
        };
        let threads = self.digests.iter().map(Vec::as_slice).enumerate().map(allowed).collect();
        Expected { schema, threads }
    }
}
