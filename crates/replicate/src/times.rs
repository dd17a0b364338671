//! Which files are from before a time, although clocks may have been wrong.
//!
//! The order of transactions is certain, the times of their files are not. So a time divides the
//! transactions at the point that the fewest files contradict: earlier files of that time or later,
//! and later files from before it. A file whose time has not come contradicts nothing.
//!
//! A file's header has the exact time; a listing has whole seconds, or the time of a copy.
//! [`read_times`] reads only the headers that matter.

use crate::ltx::{HEADER_BYTES, Reader};
use crate::store::{Entry, Store};
use anyhow::Result;
use std::time::{Duration, UNIX_EPOCH};

/// A listed time may be too early by this much: listings have whole seconds.
const LISTED_MS: i64 = 1_000;
/// A header's time that exceeds the listed one by more comes from a clock that was ahead.
const AHEAD_MS: i64 = 60_000;

/// The choice between two points that equally many files contradict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// To restore: the newer one.
    Newer,
    /// To merge and remove: the older one, or none.
    Older,
}

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A time for messages.
pub fn shown(time_ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(time_ms).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// Replaces listed times by those of headers, as far as `before_ms` needs. `entries` are in the
/// order of their names.
///
/// In each level the listed times tell where to begin. Headers are read from there in both
/// directions until one confirms its side. A listing by a wrong clock only costs requests.
pub fn read_times(store: &dyn Store, entries: &mut [Entry], before_ms: i64) -> Result<()> {
    for level in entries.chunk_by_mut(|a, b| a.name.level == b.name.level) {
        let is_earlier = |entry: &Entry| entry.time_ms.saturating_add(LISTED_MS) <= before_ms;
        let begin = level.iter().position(|entry| !is_earlier(entry)).unwrap_or(level.len());
        let (earlier, later) = level.split_at_mut(begin);
        for entry in later {
            let listed_ms = entry.time_ms;
            read_time(store, entry)?;
            // A clock far ahead made this file: it tells nothing about the later ones.
            let is_ahead = entry.time_ms > listed_ms.saturating_add(AHEAD_MS);
            if entry.time_ms >= before_ms && listed_ms >= before_ms && !is_ahead {
                break;
            }
        }
        for entry in earlier.iter_mut().rev() {
            read_time(store, entry)?;
            if entry.time_ms < before_ms {
                break;
            }
        }
    }
    Ok(())
}

/// Keeps the listed time where the file has no header, or is merged and removed.
fn read_time(store: &dyn Store, entry: &mut Entry) -> Result<()> {
    match store.read_part(entry.name, 0, HEADER_BYTES as u64) {
        Ok(bytes) => {
            if let Ok(reader) = Reader::open(bytes.as_slice()) {
                entry.time_ms = reader.header().time_ms;
            }
            Ok(())
        }
        Err(_) if !store.has(entry.name)? => Ok(()),
        Err(e) => Err(e),
    }
}

/// The newest transaction from before `time_ms`; 0 if there is none.
pub fn newest_before(files: &[Entry], time_ms: i64, now_ms: i64, tie: Tie) -> u64 {
    let is_before = |file: &&Entry| file.time_ms < time_ms;
    let mut known: Vec<&Entry> = files.iter().filter(|file| is_before(file) || file.time_ms <= now_ms).collect();
    known.sort_by_key(|file| file.name.max);
    let mut against = known.iter().copied().filter(|file| is_before(file)).count();
    let (mut fewest, mut newest) = (against, 0);
    for same in known.chunk_by(|a, b| a.name.max == b.name.max) {
        let before = same.iter().filter(|file| is_before(file)).count();
        // The sum includes the subtracted files, so it does not underflow.
        against = against.saturating_add(same.len()).saturating_sub(before.saturating_mul(2));
        let is_better = against < fewest || against == fewest && tie == Tie::Newer;
        if before > 0 && is_better {
            (fewest, newest) = (against, same.first().map_or(0, |file| file.name.max));
        }
    }
    newest
}

/// The files of at least some age.
#[derive(Clone, Copy, Debug)]
pub struct Old {
    before_ms: i64,
    now_ms: i64,
    newest: u64,
}

impl Old {
    /// Those of `files` that are at least `age` old.
    pub fn new(files: &[Entry], age: Duration, now_ms: i64) -> Old {
        let before_ms = now_ms.saturating_sub(millis(age)).saturating_add(1);
        Old { before_ms, now_ms, newest: newest_before(files, before_ms, now_ms, Tie::Older) }
    }

    /// Whether `file` belongs to them.
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
        // Its time has come: one file against another.
        let ahead = [10, 20, 30, 90, 50, 60, 70, 100];
        for (time_ms, newer, older) in [(31, 3, 3), (51, 5, 3), (61, 6, 6), (71, 7, 7), (91, 7, 7), (101, 8, 8)] {
            assert_eq!(before(&ahead, time_ms), [newer, older], "{time_ms}");
        }
        let behind = [10, 20, 30, 1, 50, 60];
        for (time_ms, newer, older) in [(5, 0, 0), (11, 1, 1), (21, 4, 2), (31, 4, 4), (51, 5, 5)] {
            assert_eq!(before(&behind, time_ms), [newer, older], "{time_ms}");
        }
        // A time to come.
        assert_eq!(before(&[10, NOW + 5], NOW + 10), [2; 2]);
        assert_eq!(before(&[10, NOW + 5], NOW), [1; 2]);
        assert_eq!(before(&[], NOW), [0; 2]);
    }

    #[test]
    fn batches_older_than_an_age() {
        let old = |times: &[i64], age| {
            let files = batches(times);
            let old = Old::new(&files, Duration::from_millis(age), NOW);
            files.iter().filter(|file| old.has(file)).map(|file| file.name.max).collect::<Vec<_>>()
        };
        let ago = |ages: &[i64]| ages.iter().map(|age| NOW - age).collect::<Vec<_>>();
        assert_eq!(old(&ago(&[50, 40, 30, 20]), 30), [1, 2, 3]);
        assert_eq!(old(&ago(&[50, 40, -1000, 30, 20]), 30), [1, 2, 3, 4]);
        assert_eq!(old(&ago(&[50, 40, 10, 30, 30, 20]), 30), [1, 2, 4, 5]);
        // One file contradicts the others.
        assert_eq!(old(&ago(&[20, 15, 90_000, 5]), 30), [0; 0]);
        assert_eq!(old(&ago(&[5, 90_000]), 30), [0; 0]);
    }

    proptest! {
        #[test]
        fn times_in_order_divide_where_they_say(mut times in proptest::collection::vec(0..60i64, 0..40), at in 0..70i64) {
            times.sort_unstable();
            let newest = times.iter().filter(|time| **time < at).count() as u64;
            prop_assert_eq!(before(&times, at), [newest; 2]);
        }

        /// One wrong time moves the division by no more than the neighbours do.
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
