//! From the numbers to a row of the table for each engine and workload, and notes on sections that
//! others disturbed or that had to stop early.

use super::job::{Job, MeasuredSection, SectionKey};
use crate::counting::blocks::{Blocks, PerTx};
use crate::counting::device::DeviceCounters;
use crate::counting::syscalls::Calls;
use crate::engines;
use crate::numbers::measure::{histogram, median, paired_ratio, round};
use crate::numbers::stats::{Known, Ratio};
use crate::report::Row;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Writes of others below this share of a section's are not worth a note.
const NOISE_SHARE: f64 = 0.1;
/// Points of a latency distribution that a page draws.
const CDF_POINTS: usize = 60;

pub fn rows(
    job: &Job,
    measured: &BTreeMap<SectionKey, Vec<MeasuredSection>>,
    calls: &BTreeMap<SectionKey, Calls>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (w, workload) in job.workloads.iter().enumerate() {
        let rates = |c: usize| -> Option<Vec<f64>> {
            Some(measured.get(&(c, w))?.iter().map(|m| m.section.tx_per_s()).collect())
        };
        let wal_full = job.position(engines::is_reference).and_then(rates);
        let stock_default = job.position(engines::is_stock_default).and_then(rates).filter(|_| workload.reads());
        let reference = job.reference.as_ref().and_then(|(c, _)| rates(*c));
        let floor = job.floor().and_then(rates);
        for (c, case) in job.cases.iter().enumerate() {
            let (Some(runs), Some(rate)) = (measured.get(&(c, w)), rates(c)) else { continue };
            let to = |of: &Option<Vec<f64>>| of.as_ref().and_then(|of| paired_ratio(&rate, of)).map(|v| round(v, 3));
            let shown = if workload.reads() && stock_default.is_some() { &stock_default } else { &reference };
            let pool = latencies(runs);
            let us = |percentile| round(pool.value_at_percentile(percentile) as f64 / 1000.0, 1);
            let per_tx = |count: fn(&DeviceCounters) -> Option<u64>| {
                // A reader writes nothing: the writes meanwhile came from others.
                if workload.reads() {
                    return None;
                }
                let of = |m: &MeasuredSection| Some(count(&m.device?)? as f64 / m.section.transactions as f64);
                median(runs.iter().filter_map(of)).map(|v| round(v, 3))
            };
            let traced = runs.iter().filter_map(|m| Some((m.section.transactions, m.blocks.as_ref()?)));
            let blocks = PerTx::of(traced);
            let kib_per_tx = per_tx(|c| Some(c.bytes)).map(|b| round(b / 1024.0, 3));
            // The rest of a commit in the kernel's cache is written too, later.
            let worn = kib_per_tx.map(|kib| kib + blocks.map_or(0.0, |b| b.kib_left_per_tx));
            let calls = calls.get(&(c, w));
            let calls_per_tx = |n: fn(&Calls) -> u64| calls.map(|c| round(n(c) as f64 / c.transactions as f64, 3));
            let (engine, preset) =
                case.label.clone().unwrap_or_else(|| (case.engine.engine.clone(), case.engine.preset.clone()));
            let phase = |i: usize| median(runs.iter().filter_map(|m| Some(m.section.phases.get(i)?.1)));
            let phases = runs[0].section.phases.iter().enumerate();
            rows.push(Row {
                engine,
                preset,
                workload: workload.name(),
                threads: job.threads(c, w),
                tx_per_s: round(median(rate.iter().copied()).unwrap_or(0.0), 1),
                tx_per_s_runs: rate.iter().map(|v| round(*v, 1)).collect(),
                tx_per_s_known: Known::of(&rate).map(|k| Known { low: round(k.low, 1), high: round(k.high, 1), ..k }),
                ratio: shown.as_ref().and_then(|of| Ratio::paired(&rate, of)),
                ratio_to_wal_full: to(&wal_full),
                ratio_to_stock_default: to(&stock_default),
                p50_us: us(50.0),
                p99_us: us(99.0),
                p999_us: us(99.9),
                max_us: round(pool.max() as f64 / 1000.0, 1),
                latency_us_cdf: (0..=CDF_POINTS).map(cdf_quantile).map(|q| (us(100.0 * q), round(q, 5))).collect(),
                block_writes_per_tx: per_tx(DeviceCounters::block_writes),
                kib_per_tx,
                kib_once_per_tx: kib_once(runs).filter(|_| case.engine.is_onewrite() && workload.is_one_row()),
                flushes_per_tx: per_tx(|c| c.flushes),
                write_syscalls_per_tx: calls_per_tx(|c| c.writes),
                sync_syscalls_per_tx: calls_per_tx(|c| c.syncs),
                kib_database_per_tx: calls_per_tx(|c| c.database_bytes).map(|b| round(b / 1024.0, 3)),
                kib_log_per_tx: calls_per_tx(|c| c.log_bytes).map(|b| round(b / 1024.0, 3)),
                phases_s: phases.filter_map(|(i, (name, _))| Some((name.clone(), round(phase(i)?, 6)))).collect(),
                blocks,
                wear: worn.and_then(|kib| job.common.wear.of(kib)),
                floors: floor.as_ref().and_then(|f| paired_ratio(f, &rate)),
                of: case.engine.clone(),
            });
        }
    }
    rows
}

/// Of the transactions of all runs.
fn latencies(runs: &[MeasuredSection]) -> Histogram<u64> {
    let mut pool = histogram();
    for run in runs {
        pool.add(&run.section.latency_ns).expect("histograms that grow take any value");
    }
    pool
}

/// KiB per transaction by which onewrite's log grew.
fn kib_once(runs: &[MeasuredSection]) -> Option<f64> {
    let grown = runs.iter().map(|run| run.log_grown_bytes as f64 / 1024.0 / run.section.transactions as f64);
    median(grown).map(|kib| round(kib, 3))
}

/// How many of the medians, and of the ratios shown, are not known to ±10 %, of how many.
pub fn unsteady(job: &Job, measured: &BTreeMap<SectionKey, Vec<MeasuredSection>>) -> (usize, usize) {
    let rows = rows(job, measured, &BTreeMap::new());
    let narrow = |row: &Row| row.is_steady() && row.ratio.is_none_or(|r| r.narrow());
    (rows.iter().filter(|row| !narrow(row)).count(), rows.len())
}

/// The block trace of the first run of each of those rows.
pub fn traces(job: &Job, measured: &mut BTreeMap<SectionKey, Vec<MeasuredSection>>) -> Vec<Option<Blocks>> {
    let keys = (0..job.workloads.len()).flat_map(|w| (0..job.cases.len()).map(move |c| (c, w)));
    keys.filter_map(|key| measured.get_mut(&key)?.first_mut().map(|m| m.blocks.take())).collect()
}

/// The tail in finer steps: of the points, half are spread to 0.9, half approach 1 by equal
/// factors.
fn cdf_quantile(i: usize) -> f64 {
    let half = CDF_POINTS / 2;
    if i <= half {
        0.9 * i as f64 / half as f64
    } else {
        1.0 - 0.1 * 10f64.powf(-3.0 * (i - half) as f64 / half as f64)
    }
}

impl Job {
    fn threads(&self, c: usize, w: usize) -> usize {
        if self.workloads[w].has_threads() { self.size(c, w).threads } else { 1 }
    }
}

/// Notes on sections that others disturbed, or that had to stop early.
pub fn warn(job: &Job, measured: &BTreeMap<SectionKey, Vec<MeasuredSection>>) -> Vec<String> {
    let name = |(c, w): &SectionKey| format!("{} {}", job.cases[*c].name(), job.workloads[*w].name());
    let mut notes = Vec::new();
    let early: Vec<String> = measured
        .iter()
        .filter(|(_, runs)| runs.iter().any(|m| m.section.stopped))
        .filter_map(|(key, runs)| Some((key, runs.iter().map(|m| m.section.transactions).min()?)))
        .map(|(key, least)| format!("{} ({least})", name(key)))
        .collect();
    if !early.is_empty() {
        notes.push(format!("stopped before all transactions, to end in time (--minutes): {}", early.join(", ")));
    }
    // Others may start after the device was watched: then the runs disagree.
    let disturbed: Vec<String> = measured
        .iter()
        .filter(|((_, w), _)| !job.workloads[*w].reads())
        .filter_map(|(key, runs)| {
            let per_tx = runs.iter().filter_map(|m| Some(m.device?.bytes as f64 / m.section.transactions as f64));
            let typical = median(per_tx.clone())?;
            let apart = per_tx.filter(|v| (v - typical).abs() > NOISE_SHARE * typical.max(1.0)).count();
            let n = runs.iter().filter(|m| m.noise > NOISE_SHARE).count().max(apart);
            (n > 0).then(|| format!("{} ({n} of {})", name(key), runs.len()))
        })
        .collect();
    if !disturbed.is_empty() {
        notes.push(format!(
            "something else was writing to the device, or runs differ by more than 10 % in bytes written; \
             their medians are shown: {}",
            disturbed.join(", ")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_rise_to_the_tail() {
        let all: Vec<f64> = (0..=CDF_POINTS).map(cdf_quantile).collect();
        assert!(all.windows(2).all(|w| w[0] < w[1]));
        assert!(all[0] == 0.0 && all[CDF_POINTS] > 0.9998 && all[CDF_POINTS] < 1.0);
    }
}
