//! Timing one section, and the numbers of several: medians, paired ratios, pooled percentiles.

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Set by Ctrl-C; a section ends at the next transaction.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Something read right before the first and right after the last measured transaction.
pub trait Probe {
    fn begin(&mut self) -> Result<()>;
    fn end(&mut self) -> Result<()>;
}

/// Watches nothing.
pub struct NoProbe;

impl Probe for NoProbe {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The measured transactions of one engine in one run.
#[derive(Clone)]
pub struct Section {
    pub transactions: usize,
    pub seconds: f64,
    pub latency_ns: Histogram<u64>,
    /// Names and seconds of the parts, of a workload that has parts.
    pub phases: Vec<(String, f64)>,
    /// Whether the limit came before the last transaction.
    pub stopped: bool,
}

impl Section {
    pub fn tx_per_s(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }
}

/// Three significant digits, any duration.
pub fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are allowed")
}

/// Calls `step` `n` times, each timed by itself.
pub fn time_each(
    n: usize,
    limit: Option<Duration>,
    probe: &mut dyn Probe,
    mut step: impl FnMut(usize) -> Result<()>,
) -> Result<Section> {
    let mut latency_ns = histogram();
    let mut transactions = 0;
    probe.begin()?;
    let start = Instant::now();
    let mut before = start;
    while transactions < n {
        step(transactions)?;
        let now = Instant::now();
        latency_ns.record((now - before).as_nanos() as u64)?;
        before = now;
        transactions += 1;
        if limit.is_some_and(|l| now - start > l) {
            break;
        }
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    probe.end()?;
    Ok(Section { transactions, seconds, latency_ns, phases: Vec::new(), stopped: transactions < n })
}

/// Like [`time_each`], with `prepare` before each step, which is neither timed nor watched.
pub fn time_each_after(
    n: usize,
    limit: Option<Duration>,
    probe: &mut dyn Probe,
    mut prepare: impl FnMut() -> Result<()>,
    mut step: impl FnMut() -> Result<()>,
) -> Result<Section> {
    let mut latency_ns = histogram();
    let (mut transactions, mut seconds) = (0, 0.0);
    let start = Instant::now();
    while transactions < n && !(transactions > 0 && limit.is_some_and(|l| start.elapsed() > l)) {
        prepare()?;
        probe.begin()?;
        let before = Instant::now();
        step()?;
        let took = before.elapsed();
        probe.end()?;
        latency_ns.record(took.as_nanos() as u64)?;
        seconds += took.as_secs_f64();
        transactions += 1;
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    Ok(Section { transactions, seconds, latency_ns, phases: Vec::new(), stopped: transactions < n })
}

/// The middle value; the mean of the two middle ones of an even number. `None` of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let middle = v.len() / 2;
    match v.len() {
        0 => None,
        n if n % 2 == 1 => Some(v[middle]),
        _ => Some((v[middle - 1] + v[middle]) / 2.0),
    }
}

/// The median of `a / b` taken run by run: drift during the bench hits both halves of a pair.
pub fn paired_ratio(a: &[f64], b: &[f64]) -> Option<f64> {
    median(a.iter().zip(b).map(|(a, b)| a / b))
}

pub fn round(v: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (v * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_paired_before_the_median_is_taken() {
        // A machine that slows down during the bench: every pair says 2, the medians alone would
        // say 2 too only by luck.
        assert_eq!(paired_ratio(&[200.0, 100.0, 20.0], &[100.0, 50.0, 10.0]), Some(2.0));
        assert_eq!(paired_ratio(&[30.0, 10.0, 50.0], &[10.0, 10.0, 10.0]), Some(3.0));
        assert_eq!(paired_ratio(&[], &[1.0]), None);
    }

    #[test]
    fn percentiles_pool_over_sections() {
        let mut pool = histogram();
        for half in [1..=500u64, 501..=1000] {
            let mut h = histogram();
            half.for_each(|us| h.record(us * 1000).unwrap());
            pool.add(&h).unwrap();
        }
        // A histogram of three digits answers with the upper end of a bucket.
        for (percentile, us) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0)] {
            let found = pool.value_at_percentile(percentile) as f64 / 1000.0;
            assert!((found / us - 1.0).abs() < 0.002, "p{percentile}: {found} instead of {us}");
        }
    }

    #[test]
    fn a_section_stops_at_its_limit_but_never_empty() {
        let limit = Some(Duration::ZERO);
        assert_eq!(time_each(5, limit, &mut NoProbe, |_| Ok(())).unwrap().transactions, 1);
        assert_eq!(time_each(5, None, &mut NoProbe, |_| Ok(())).unwrap().transactions, 5);
    }
}
