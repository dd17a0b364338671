//! What is of before a time, going by clocks that may have been wrong.
//!
//! The order of the transactions is certain, the times of their files are not. A time divides the transactions where the fewest
//! files contradict that: those up to there that are of that time or later, and those behind it that are of before. A file of a
//! time that has not come yet contradicts nothing.

use crate::store::Entry;
use std::time::Duration;

/// Which transaction, where as many files contradict one as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// To restore: the newest one.
    Newer,
    /// To merge and remove: the oldest one, or none.
    Older,
}

/// Length of time in milliseconds.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The newest transaction of before `time_ms`; 0 if there is none.
pub fn newest_before(files: &[Entry], time_ms: i64, now_ms: i64, tie: Tie) -> u64 {
    let is_before = |file: &&Entry| file.time_ms < time_ms;
    let mut known: Vec<&Entry> = files.iter().filter(|file| is_before(file) || file.time_ms <= now_ms).collect();
    known.sort_by_key(|file| file.name.max);
    // At first, that nothing is of before.
    let mut against = known.iter().copied().filter(|file| is_before(file)).count();
    let (mut fewest, mut newest) = (against, 0);
    for same in known.chunk_by(|a, b| a.name.max == b.name.max) {
        let before = same.iter().filter(|file| is_before(file)).count();
        // It counts itself: no less than this is left.
        against = against.saturating_add(same.len()).saturating_sub(before.saturating_mul(2));
        let is_better = against < fewest || against == fewest && tie == Tie::Newer;
        if before > 0 && is_better {
            (fewest, newest) = (against, same.first().map_or(0, |file| file.name.max));
        }
    }
    newest
}

/// The files of a certain age.
#[derive(Clone, Copy, Debug)]
pub struct Old {
    before_ms: i64,
    now_ms: i64,
    newest: u64,
}

impl Old {
    /// Those that are at least that old, of `files`.
    pub fn new(files: &[Entry], age: Duration, now_ms: i64) -> Old {
        let before_ms = now_ms.saturating_sub(millis(age)).saturating_add(1);
        Old { before_ms, now_ms, newest: newest_before(files, before_ms, now_ms, Tie::Older) }
    }

    /// Whether it is one of them.
    pub fn has(&self, file: &Entry) -> bool {
        file.name.max <= self.newest && !(self.before_ms..=self.now_ms).contains(&file.time_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Name;
    use proptest::prelude::*;

    const NOW: i64 = 100_000;

    /// Batches of these times.
    fn batches(times: &[i64]) -> Vec<Entry> {
        let name = |max| Name { level: 0, min: max, max };
        (1..).zip(times).map(|(max, time_ms)| Entry { name: name(max), time_ms: *time_ms, bytes: 1 }).collect()
    }

    fn before(times: &[i64], time_ms: i64) -> [u64; 2] {
        [Tie::Newer, Tie::Older].map(|tie| newest_before(&batches(times), time_ms, NOW, tie))
    }

    #[test]
    fn a_clock_that_was_ahead_or_behind_for_a_while() {
        let ahead = [10, 20, 30, NOW + 1, 50, 60, 70];
        for (time_ms, newest) in [(10, 0), (11, 1), (31, 3), (51, 5), (61, 6), (99, 7)] {
            assert_eq!(before(&ahead, time_ms), [newest; 2], "{time_ms}");
        }
        // The time has come meanwhile: one file against another.
        let ahead = [10, 20, 30, 90, 50, 60, 70, 100];
        for (time_ms, newer, older) in [(31, 3, 3), (51, 5, 3), (61, 6, 6), (71, 7, 7), (91, 7, 7), (101, 8, 8)] {
            assert_eq!(before(&ahead, time_ms), [newer, older], "{time_ms}");
        }
        let behind = [10, 20, 30, 1, 50, 60];
        for (time_ms, newer, older) in [(5, 0, 0), (11, 1, 1), (21, 4, 2), (31, 4, 4), (51, 5, 5)] {
            assert_eq!(before(&behind, time_ms), [newer, older], "{time_ms}");
        }
        // A time that was asked for, and has not come.
        assert_eq!(before(&[10, NOW + 5], NOW + 10), [2; 2]);
        assert_eq!(before(&[10, NOW + 5], NOW), [1; 2]);
        assert_eq!(before(&[], NOW), [0; 2]);
    }

    #[test]
    fn what_is_old() {
        let old = |times: &[i64], age| {
            let files = batches(times);
            let old = Old::new(&files, Duration::from_millis(age), NOW);
            files.iter().filter(|file| old.has(file)).map(|file| file.name.max).collect::<Vec<_>>()
        };
        let ago = |ages: &[i64]| ages.iter().map(|age| NOW - age).collect::<Vec<_>>();
        assert_eq!(old(&ago(&[50, 40, 30, 20]), 30), [1, 2, 3]);
        assert_eq!(old(&ago(&[50, 40, -1000, 30, 20]), 30), [1, 2, 3, 4]);
        assert_eq!(old(&ago(&[50, 40, 10, 30, 30, 20]), 30), [1, 2, 4, 5]);
        // One that says it were, among those that say it cannot be.
        assert_eq!(old(&ago(&[20, 15, 90_000, 5]), 30), [0; 0]);
        assert_eq!(old(&ago(&[5, 90_000]), 30), [0; 0]);
    }

    proptest! {
        #[test]
        fn times_in_order_tell_what_each_says(mut times in proptest::collection::vec(0..60i64, 0..40), at in 0..70i64) {
            times.sort_unstable();
            let newest = times.iter().filter(|time| **time < at).count() as u64;
            prop_assert_eq!(before(&times, at), [newest; 2]);
        }

        /// What one clock says wrongly moves the division by no more than the files beside it.
        #[test]
        fn one_wrong_time_matters_little(n in 1..40i64, wrong in 0..40usize, time in 0..500i64, at in 0..450i64) {
            let right: Vec<i64> = (0..n).map(|n| n * 10).collect();
            let mut times = right.clone();
            if let Some(to) = times.get_mut(wrong) {
                *to = time;
            }
            let newest = right.iter().filter(|time| **time < at).count() as u64;
            for found in before(&times, at) {
                prop_assert!(found.abs_diff(newest) <= 2, "{} of {}", found, newest);
            }
        }
    }
}
