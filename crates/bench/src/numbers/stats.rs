//! How well a median is known, or a ratio taken over paired runs: confidence intervals that assume
//! no distribution of the noise.

use super::measure::median;
use serde::Serialize;

/// A ratio with the interval that holds the true median with at least the stated confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// From 0 to 1.
    pub confidence: f64,
    /// Whether it may be quoted: enough runs, an interval that is narrow and does not include 1.
    pub safe: bool,
}

/// How well a median is known, by the interval that holds the true one with at least the stated
/// confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Known {
    pub low: f64,
    pub high: f64,
    /// From 0 to 1.
    pub confidence: f64,
    /// Whether it may be quoted: enough runs, and an interval that is narrow.
    pub steady: bool,
}

impl Known {
    /// Of the median of these. `None` of nothing.
    pub fn of(values: &[f64]) -> Option<Known> {
        let (low, high, confidence) = interval(values)?;
        Some(Known { low, high, confidence, steady: confidence >= CONFIDENCE_MIN && high / low <= SPREAD_MAX })
    }
}

/// Asked of an interval.
const CONFIDENCE_MIN: f64 = 0.9;
/// The widest interval that is still narrow, as high over low: about ten percent to each side.
const SPREAD_MAX: f64 = 1.2;

/// The table's words for the mark.
pub const EXPLAINED: &str = "±: half the confidence interval of the ratio, from the order statistics of the paired runs (94 % \
     with 5 runs). ~: not safe to quote: fewer than 5 runs, an interval wider than ±10 %, or, of a ratio, one that includes 1.";

impl Ratio {
    /// Of `a / b`, pair by pair. `None` of nothing.
    pub fn paired(a: &[f64], b: &[f64]) -> Option<Ratio> {
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        let (low, high, confidence) = interval(&ratios)?;
        Ratio::judged(median(ratios)?, (low, high, confidence), confidence >= CONFIDENCE_MIN)
    }

    /// Of the medians of `a` and `b`, which were not measured in turn: the bounds of one over the
    /// opposite bounds of the other, to be cautious.
    pub fn unpaired(a: &[f64], b: &[f64]) -> Option<Ratio> {
        let ((a_low, a_high, a_confidence), (b_low, b_high, b_confidence)) = (interval(a)?, interval(b)?);
        let ratio = median(a.iter().copied())? / median(b.iter().copied())?;
        let certain = a_confidence.min(b_confidence) >= CONFIDENCE_MIN;
        let confidence = (a_confidence + b_confidence - 1.0).max(0.0);
        Ratio::judged(ratio, (a_low / b_high, a_high / b_low, confidence), certain)
    }

    fn judged(median: f64, (low, high, confidence): (f64, f64, f64), certain: bool) -> Option<Ratio> {
        let itself = low == 1.0 && high == 1.0;
        let safe = itself || certain && high / low <= SPREAD_MAX && (low > 1.0 || high < 1.0);
        Some(Ratio { median, low, high, confidence, safe })
    }

    /// Whether more runs would not say more: the interval is narrow, wherever it lies.
    pub fn narrow(&self) -> bool {
        self.confidence >= CONFIDENCE_MIN && self.high / self.low <= SPREAD_MAX
    }

    /// Half the interval, in percent of the median.
    pub fn half_width_percent(&self) -> f64 {
        50.0 * (self.high - self.low) / self.median
    }
}

/// The narrowest pair of order statistics around the median with the confidence asked for. Of few
/// values, the least and the greatest, with the confidence that they give.
pub fn interval(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let confidence = |cut: usize| 1.0 - 2.0 * (0..cut).map(|k| choose(n, k)).sum::<f64>() / 2f64.powi(n as i32);
    // Cutting `cut - 1` values off each end.
    let cut = (1..=n.div_ceil(2)).take_while(|cut| *cut == 1 || confidence(*cut) >= CONFIDENCE_MIN).last()?;
    Some((sorted[cut - 1], sorted[n - cut], confidence(cut).max(0.0)))
}

fn choose(n: usize, k: usize) -> f64 {
    (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_their_confidence() {
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[3.0]), Some((3.0, 3.0, 0.0)));
        let five = interval(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(five, (1.0, 5.0, 0.9375));
        // Of 20 values the 6th and the 15th: 95.9 %.
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let (low, high, confidence) = interval(&twenty).unwrap();
        assert_eq!((low, high), (6.0, 15.0));
        assert!((confidence - 0.959).abs() < 0.001, "{confidence}");
    }

    #[test]
    fn a_median_is_known_by_enough_runs_that_agree() {
        assert!(Known::of(&[100.0, 105.0, 98.0, 101.0, 99.0]).unwrap().steady);
        assert!(!Known::of(&[100.0, 105.0, 98.0, 101.0]).unwrap().steady, "four runs");
        assert!(!Known::of(&[100.0, 130.0, 98.0, 101.0, 99.0]).unwrap().steady, "wide");
        // With 20 runs, five outliers on each side leave it known.
        let mut runs = vec![50.0; 5];
        runs.extend([100.0; 10]);
        runs.extend([200.0; 5]);
        assert!(Known::of(&runs).unwrap().steady);
    }

    #[test]
    fn a_drift_that_hits_both_halves_of_a_pair_leaves_the_ratio_safe() {
        let a = [200.0, 100.0, 50.0, 20.0, 10.0];
        let b = [100.0, 50.0, 25.0, 10.0, 5.0];
        let ratio = Ratio::paired(&a, &b).unwrap();
        assert_eq!((ratio.median, ratio.low, ratio.high, ratio.safe), (2.0, 2.0, 2.0, true));
        assert!(!Ratio::unpaired(&a, &b).unwrap().safe);
    }

    #[test]
    fn noise_few_runs_and_a_ratio_of_one_are_not_safe() {
        assert!(!Ratio::paired(&[2.0; 4], &[1.0; 4]).unwrap().safe, "four runs");
        assert!(!Ratio::paired(&[1.0, 1.1, 0.9, 1.0, 1.05], &[1.0; 5]).unwrap().safe, "includes 1");
        assert!(!Ratio::paired(&[2.0, 2.6, 2.0, 2.1, 2.0], &[1.0; 5]).unwrap().safe, "wide");
        assert!(Ratio::paired(&[2.0, 2.1, 2.0, 2.1, 2.0], &[1.0; 5]).unwrap().safe);
        assert!(Ratio::paired(&[7.0; 2], &[7.0; 2]).unwrap().safe, "an engine against itself");
    }
}
