//! Which files are merged into one of the next level, and which are removed, as Litestream does it.
//! Only names and times of the files decide, so any shipper can go on.
//!
//! - Merged: consecutive files of a level, behind the next level's last, once the oldest is old
//!   enough, or there are many. So a start reads few files, whatever the rate of batches was.
//! - Not merged: snapshots (files from transaction 1 on). Batches wait until level 9 has one.
//! - Removed: a batch, once a file of level 1 has had it for a while, or there are very many. The
//!   newest batch stays.
//! - Removed: all up to the newest snapshot from before the retention, except that snapshot.
//! - Not removed: the first batch of a claim (see `fence.rs`).
//!
//! A file is removed only while the file that stands in for it is there, and batches of one merged
//! file newest first. So a removal that stops halfway leaves every state that can be restored.

use crate::rules::{Rule, keeps};
use crate::store::{BATCHES, Entry, Name, SNAPSHOTS};
use crate::times::Old;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

/// Longest merged file, about: an object's length has a limit.
const MERGED_BYTES: u64 = 4 << 30;

/// As many files behind the newest snapshot are merged however young they are: batches, merged
/// files, and those of the last level with an interval. By default a batch a second makes fewer.
const BATCHES_MAX: usize = 32;
const MERGED_MAX: usize = 12;
const LAST_MAX: usize = 30;
/// Batches that are kept at most.
const KEPT_MAX: usize = 4096;

/// When files are merged and removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Ages at which files are merged into level 1, 2, and so on: at most eight.
    pub intervals: Vec<Duration>,
    /// How long batches are kept after they are in level 1.
    pub keep_batches: Duration,
    /// Every state of this time can be restored.
    pub retention: Duration,
}

impl Levels {
    /// The next files to merge, in order, and the merged file's name; skips `bad` ones. A batch of
    /// `firsts`, which stays, is the last one of a merged file: else it would make no state. Of
    /// `files` the names are in order.
    pub fn to_merge(
        &self,
        files: &[Entry],
        bad: &BTreeSet<Name>,
        firsts: &[u64],
        now_ms: i64,
    ) -> Option<(Name, Vec<Entry>)> {
        if !waits_for_snapshot(files) {
            let snapshot = newest_of(files, SNAPSHOTS);
            let mut base = None;
            for level in BATCHES..SNAPSHOTS.saturating_sub(1) {
                let next = level.saturating_add(1);
                let behind = behind(files, level).iter().filter(|e| !bad.contains(&e.name));
                let is_read = |e: &&Entry| e.name.min > snapshot;
                let many = || behind.clone().filter(is_read).count() >= self.most(level);
                let is_old = |first: &Entry| {
                    let interval = self.intervals.get(usize::from(level));
                    interval.is_some_and(|interval| Old::new(files, *interval, now_ms).has(first))
                };
                let is_due = |first: &Entry| many() || is_old(first);
                if !behind.clone().next().is_some_and(is_due) {
                    continue;
                }
                // Files that are not needed are removed, not merged.
                let base = *base.get_or_insert_with(|| self.base(files, now_ms).map_or(0, |base| base.max));
                let mut rest = behind.clone().filter(|e| e.name.max > base).copied();
                let Some(first) = rest.next().filter(is_due) else { continue };
                let (mut run, mut bytes, mut max) = (vec![first], first.bytes, first.name.max);
                for entry in rest {
                    bytes = bytes.saturating_add(entry.bytes);
                    let is_first = level == BATCHES && firsts.contains(&max);
                    if max.checked_add(1) != Some(entry.name.min) || bytes > MERGED_BYTES || is_first {
                        break;
                    }
                    max = entry.name.max;
                    run.push(entry);
                }
                return Some((Name { level: next, min: first.name.min, max }, run));
            }
        }
        None
    }

    /// As many files of a level are merged however young they are.
    fn most(&self, level: u8) -> usize {
        match usize::from(level) {
            0 => BATCHES_MAX,
            level if level == self.intervals.len() => LAST_MAX,
            _ => MERGED_MAX,
        }
    }

    /// Files that are needed no more, in the order of removal, each with the file that stands in
    /// for it. Keeps the batch of transaction `newest`, which has the position, and those of
    /// `firsts`. `files` are in the order of their names.
    pub fn to_remove(&self, files: &[Entry], newest: u64, firsts: &[u64], now_ms: i64) -> Vec<(Name, Name)> {
        let merged = level(files, 1);
        let kept_enough = Old::new(files, self.keep_batches, now_ms);
        let batches = level(files, BATCHES);
        let many = batches.iter().rev().nth(KEPT_MAX).map(|batch| batch.name);
        let in_it = |batch: &Entry| {
            let at = merged.partition_point(|e| e.name.min <= batch.name.min).checked_sub(1)?;
            let into = merged.get(at).filter(|e| e.name.max >= batch.name.max && batch.name.min > 1)?;
            let is_one_of_many = many.is_some_and(|many| batch.name <= many);
            (is_one_of_many || kept_enough.has(into)).then_some((batch.name, into.name))
        };
        let mut names: Vec<(Name, Name)> = batches.iter().filter_map(in_it).collect();
        names.sort_by_key(|(batch, into)| (into.min, Reverse(batch.min)));
        if !keeps(Rule::NewestFirst) {
            names.reverse();
        }
        if let Some(base) = self.base(files, now_ms) {
            let of_before = |name: &Name| match name.level {
                SNAPSHOTS => name.max < base.max,
                _ => name.max <= base.max,
            };
            let of_before = files.iter().map(|e| e.name).filter(of_before);
            let known: BTreeSet<Name> = names.iter().map(|(name, _)| *name).collect();
            names.extend(of_before.filter(|name| !known.contains(name)).map(|name| (name, base)));
        }
        names.retain(|(name, _)| name.level != BATCHES || name.max < newest && !firsts.contains(&name.max));
        names
    }

    /// The newest snapshot from before the retention: nothing up to it is needed.
    fn base(&self, files: &[Entry], now_ms: i64) -> Option<Name> {
        let too_old = Old::new(files, self.retention, now_ms);
        let old = level(files, SNAPSHOTS).iter().filter(|e| e.name.min == 1 && too_old.has(e));
        old.map(|e| e.name).max_by_key(|name| name.max)
    }
}

/// The newest transaction of a level; 0 if it has no files.
fn newest_of(files: &[Entry], level: u8) -> u64 {
    self::level(files, level).iter().map(|e| e.name.max).max().unwrap_or(0)
}

/// The files of a level behind the next level's last.
fn behind(files: &[Entry], level: u8) -> &[Entry] {
    let done = newest_of(files, level.saturating_add(1)).max(1);
    let of_level = self::level(files, level);
    of_level.get(of_level.partition_point(|e| e.name.min <= done)..).unwrap_or_default()
}

/// The files of a level; `files` are in the order of their names.
fn level(files: &[Entry], level: u8) -> &[Entry] {
    let begin = files.partition_point(|e| e.name.level < level);
    let end = files.partition_point(|e| e.name.level <= level);
    files.get(begin..end).unwrap_or_default()
}

/// Whether batches are due to be merged because there are many.
pub fn has_many(files: &[Entry]) -> bool {
    let snapshot = newest_of(files, SNAPSHOTS);
    let are_read = behind(files, BATCHES).iter().filter(|e| e.name.min > snapshot);
    are_read.count() >= BATCHES_MAX && !waits_for_snapshot(files)
}

/// Whether so many batches wait for a snapshot to be merged.
pub fn many_wait(files: &[Entry], newest: u64) -> bool {
    let whole = level(files, BATCHES).iter().filter(|e| e.name.min == 1).map(|e| e.name.max).max();
    whole.is_some_and(|whole| newest.saturating_sub(whole) >= BATCHES_MAX as u64)
}

/// Whether the batches include a whole database, and no snapshot can take its place: other programs
/// would remove it with the merged batches.
pub fn waits_for_snapshot(files: &[Entry]) -> bool {
    let whole = level(files, BATCHES).iter().filter(|e| e.name.min == 1).map(|e| e.name.max).max();
    whole > Some(newest_of(files, SNAPSHOTS)).filter(|newest| *newest > 0)
}

/// Copies of files that were shipped of late, so that merging need not read them from the store.
#[derive(Debug, Default)]
pub struct Recent {
    files: BTreeMap<Name, Vec<u8>>,
    bytes: usize,
}

impl Recent {
    const BYTES_MAX: usize = 32 << 20;
    const FILE_BYTES_MAX: usize = 4 << 20;

    /// Keeps a file, if there is room.
    pub fn keep(&mut self, name: Name, copy: Copy) {
        let Some(bytes) = copy.bytes else { return };
        if self.bytes.saturating_add(bytes.len()) <= Recent::BYTES_MAX {
            self.bytes = self.bytes.saturating_add(bytes.len());
            self.files.insert(name, bytes);
        }
    }

    /// The file, if it is here.
    pub fn get(&self, name: Name) -> Option<&[u8]> {
        self.files.get(&name).map(Vec::as_slice)
    }

    /// Drops a file.
    pub fn forget(&mut self, name: Name) {
        if let Some(bytes) = self.files.remove(&name) {
            self.bytes = self.bytes.saturating_sub(bytes.len());
        }
    }
}

/// The bytes written to a file, unless there are many.
#[derive(Debug)]
pub struct Copy {
    bytes: Option<Vec<u8>>,
}

impl Default for Copy {
    fn default() -> Copy {
        Copy { bytes: Some(Vec::new()) }
    }
}

impl Copy {
    /// Keeps nothing.
    pub fn none() -> Copy {
        Copy { bytes: None }
    }
}

/// Writes to two places.
pub struct Tee<'a>(pub &'a mut dyn Write, pub &'a mut Copy);

impl Write for Tee<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let n = self.0.write(from)?;
        if let Some(bytes) = &mut self.1.bytes {
            bytes.extend_from_slice(from.get(..n).unwrap_or_default());
            if bytes.len() > Recent::FILE_BYTES_MAX {
                self.1.bytes = None;
            }
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn levels() -> Levels {
        Levels { intervals: vec![SECOND * 30, SECOND * 300], keep_batches: SECOND * 60, retention: SECOND * 1000 }
    }

    /// From tuples of level, first and last transaction, and age in seconds at second 10,000.
    fn files(of: &[(u8, u64, u64, i64)]) -> Vec<Entry> {
        let entry = |&(level, min, max, age)| Entry {
            name: Name { level, min, max },
            time_ms: (10_000 - age) * 1000,
            bytes: 100,
        };
        let mut files: Vec<_> = of.iter().map(entry).collect();
        files.sort_unstable();
        files
    }

    fn merged(of: &[(u8, u64, u64, i64)], bad: &[(u8, u64, u64)]) -> Option<((u8, u64, u64), usize)> {
        let bad = bad.iter().map(|&(level, min, max)| Name { level, min, max }).collect();
        let (name, run) = levels().to_merge(&files(of), &bad, &[], 10_000_000)?;
        Some(((name.level, name.min, name.max), run.len()))
    }

    fn removed(of: &[(u8, u64, u64, i64)], newest: u64) -> Vec<(u8, u64, u64)> {
        let names = levels().to_remove(&files(of), newest, &[], 10_000_000);
        names.into_iter().map(|(name, _)| (name.level, name.min, name.max)).collect()
    }

    #[test]
    fn the_oldest_says_when() {
        let young = [(9, 1, 1, 40), (0, 2, 2, 29), (0, 3, 3, 1)];
        assert_eq!(merged(&young, &[]), None);
        let old = [(9, 1, 1, 40), (0, 2, 2, 30), (0, 3, 3, 1)];
        assert_eq!(merged(&old, &[]), Some(((1, 2, 3), 2)));
        let next = [(9, 1, 1, 40), (0, 2, 2, 70), (0, 3, 3, 40), (1, 2, 2, 70)];
        assert_eq!(merged(&next, &[]), Some(((1, 3, 3), 1)));
        let second = [(9, 1, 1, 400), (1, 2, 4, 300), (1, 5, 7, 200), (1, 8, 9, 1)];
        assert_eq!(merged(&second, &[]), Some(((2, 2, 9), 3)));
    }

    #[test]
    fn a_gap_ends_a_merge_and_the_next_begins_behind_it() {
        let gap = [(9, 1, 1, 99), (0, 2, 2, 90), (0, 4, 4, 80), (9, 1, 3, 85)];
        assert_eq!(merged(&gap, &[]), Some(((1, 2, 2), 1)));
        assert_eq!(merged(&[&gap[..], &[(1, 2, 2, 90)]].concat(), &[]), Some(((1, 4, 4), 1)));
        let bad = [(9, 1, 1, 99), (0, 2, 2, 90), (0, 3, 3, 90), (0, 4, 4, 80)];
        assert_eq!(merged(&bad, &[(0, 3, 3)]), Some(((1, 2, 2), 1)));
        assert_eq!(merged(&bad, &[(0, 2, 2), (0, 3, 3)]), Some(((1, 4, 4), 1)));
    }

    #[test]
    fn a_whole_database_is_not_merged() {
        assert_eq!(merged(&[(0, 1, 1, 99), (0, 2, 2, 90)], &[]), None);
        assert_eq!(merged(&[(0, 1, 1, 99), (0, 2, 2, 90), (9, 1, 2, 60)], &[]), Some(((1, 2, 2), 1)));
        assert_eq!(merged(&[(1, 1, 5, 900), (1, 6, 7, 800)], &[]), Some(((2, 6, 7), 1)));
    }

    #[test]
    fn batches_go_once_they_are_merged_and_the_newest_stays() {
        let all =
            [(9, 1, 1, 99), (0, 1, 1, 99), (0, 2, 2, 90), (0, 3, 3, 70), (1, 2, 3, 70), (0, 4, 4, 65), (0, 5, 5, 64)];
        assert_eq!(removed(&all, 5), [(0, 3, 3), (0, 2, 2)]);
        assert_eq!(removed(&[&all[..], &[(1, 4, 5, 64)]].concat(), 5), [(0, 3, 3), (0, 2, 2), (0, 4, 4)]);
        assert_eq!(removed(&[(0, 2, 2, 70), (1, 2, 2, 59)], 5), []);
        assert_eq!(removed(&[(0, 2, 2, 70), (1, 3, 3, 61)], 5), []);
    }

    #[test]
    fn files_of_a_kept_state_stay() {
        let all = [
            (9, 1, 2, 3000),
            (9, 1, 5, 1001),
            (9, 1, 9, 999),
            (0, 1, 1, 4000),
            (1, 2, 2, 3000),
            (1, 3, 5, 1001),
            (1, 6, 9, 999),
            (2, 2, 5, 1001),
        ];
        assert_eq!(removed(&all, 9), [(0, 1, 1), (1, 2, 2), (1, 3, 5), (2, 2, 5), (9, 1, 2)]);
        // Without a snapshot of that age, none is removed.
        assert_eq!(removed(&all[2..], 9), []);
    }

    #[test]
    fn a_batch_that_stays_is_the_last_of_a_merged_file_and_is_merged_once() {
        let all = files(&[(9, 1, 1, 99), (0, 1, 1, 99), (0, 2, 2, 90), (0, 3, 3, 89), (0, 4, 4, 88)]);
        let merge = |all: &[Entry]| levels().to_merge(all, &BTreeSet::new(), &[3], 10_000_000).map(|(name, _)| name);
        let name = |level, min, max| Name { level, min, max };
        assert_eq!(merge(&all), Some(name(1, 2, 3)));
        let mut all = [&all[..], &files(&[(1, 2, 3, 89)])].concat();
        all.sort_unstable();
        assert_eq!(merge(&all), Some(name(1, 4, 4)));
        all.extend(files(&[(1, 4, 4, 88), (9, 1, 4, 80)]));
        all.sort_unstable();
        assert_eq!(merge(&all), None);
        let kept = |firsts: &[u64]| levels().to_remove(&all, 4, firsts, 10_000_000);
        assert!(kept(&[]).iter().any(|(removed, _)| *removed == name(0, 3, 3)));
        assert!(kept(&[3]).iter().all(|(removed, _)| *removed != name(0, 3, 3)));
        // Long after that.
        let old = files(&[(0, 3, 3, 4000), (0, 4, 4, 4000), (9, 1, 4, 3000)]);
        assert_eq!(merge(&old), None);
        assert_eq!(levels().to_remove(&old, 4, &[3], 10_000_000), []);
        assert_eq!(merge(&files(&[(0, 3, 3, 4000), (0, 4, 4, 4000), (0, 5, 5, 1), (9, 1, 4, 3000)])), None);
        let many: Vec<_> = (2..60).map(|n| (0, n, n, 4000)).chain([(9, 1, 60, 3000), (0, 60, 60, 3000)]).collect();
        assert!(!has_many(&files(&many)));
    }

    /// Number of files that a start reads after `count` batches, with merging behind each `every`.
    fn read_after(count: u64, every: u64) -> usize {
        let put = |all: &mut Vec<Entry>, name| {
            let entry = Entry { name, time_ms: 10_000_000 - 500, bytes: 100 };
            all.insert(all.partition_point(|other| *other < entry), entry);
        };
        let mut all = files(&[(9, 1, 1, 1), (0, 1, 1, 1)]);
        all.sort_unstable();
        for n in 2..=count {
            put(&mut all, Name { level: 0, min: n, max: n });
            while n % every == 0
                && let Some((name, run)) = levels().to_merge(&all, &BTreeSet::new(), &[], 10_000_000)
            {
                assert_eq!((run.first().unwrap().name.min, run.last().unwrap().name.max), (name.min, name.max));
                put(&mut all, name);
                for (name, _) in levels().to_remove(&all, n, &[], 10_000_000) {
                    all.retain(|entry| entry.name != name);
                }
            }
            assert!(level(&all, BATCHES).len() <= KEPT_MAX + BATCHES_MAX + usize::try_from(every).unwrap());
        }
        crate::plan::plan(&all, crate::plan::Target::Newest).unwrap().len()
    }

    #[test]
    fn however_many_batches_there_were_a_start_reads_few() {
        assert!(!has_many(&files(&[(9, 1, 1, 1), (0, 1, 1, 1), (0, 2, 2, 1)])));
        let many: Vec<_> = [(9, 1, 1, 1), (0, 1, 1, 1)].into_iter().chain((2..34).map(|n| (0, n, n, 1))).collect();
        assert!(has_many(&files(&many)) && !has_many(&files(&[&many[..], &[(1, 2, 5, 1)]].concat())));
        assert!(!has_many(&files(&many[1..])), "they wait for a snapshot");
        for (count, every) in [(1, 1), (31, 1), (33, 1), (2000, 1), (5000, 7), (6100, 100)] {
            let read = read_after(count, every);
            assert!(read <= 100, "{count}: {read}");
        }
    }
}
