//! Which files make a state: the newest snapshot up to it, then the files behind that, as
//! Litestream chooses.

use crate::report::now_ms;
use crate::store::{Entry, SNAPSHOTS, Store, list_all};
use crate::times::{Tie, newest_before, shown};
use anyhow::{Result, bail};
use std::time::Duration;

/// The state to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The newest one.
    Newest,
    /// The state of this transaction.
    Txid(u64),
    /// The newest one from before this time, in milliseconds since 1970.
    Before(i64),
}

impl Target {
    /// The newest transaction that it may include.
    fn newest(self, entries: &[Entry]) -> u64 {
        match self {
            Target::Newest => u64::MAX,
            Target::Txid(txid) => txid,
            Target::Before(time_ms) => newest_before(entries, time_ms, now_ms(), Tie::Newer),
        }
    }
}

/// Listings after one that seems to have a gap.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// Files of a listing do not make the state.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Gap(String);

/// The store has no files.
#[derive(Debug, thiserror::Error)]
#[error("the store is empty")]
pub struct Empty;

/// Lists the store for `choose`, again after a [`Gap`]: a listing may have a name and lack an
/// earlier one that is made meanwhile. Files newer than the first listing do not count.
pub fn look<T>(store: &dyn Store, choose: impl FnMut(&mut Vec<Entry>) -> Result<T>) -> Result<T> {
    look_at(store, choose)?.1
}

/// As [`look`], with the listing.
pub fn look_at<T>(
    store: &dyn Store,
    mut choose: impl FnMut(&mut Vec<Entry>) -> Result<T>,
) -> Result<(Vec<Entry>, Result<T>)> {
    let mut entries = list_all(store)?;
    let last = newest(&entries);
    for look in 0..LOOKS {
        let chosen = choose(&mut entries);
        if !chosen.as_ref().is_err_and(|e| e.is::<Gap>()) {
            return Ok((entries, chosen));
        }
        if look > 0 {
            rest();
        }
        entries = list_all(store)?;
        entries.retain(|entry| entry.name.min <= last);
    }
    let chosen = choose(&mut entries);
    Ok((entries, chosen))
}

fn rest() {
    #[cfg(not(test))]
    std::thread::sleep(PAUSE);
    #[cfg(test)]
    if !crate::rules::model::is_on() {
        std::thread::sleep(PAUSE);
    }
}

/// The newest transaction of the store; 0 if it is empty.
pub fn newest(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.name.max).max().unwrap_or(0)
}

/// The files that make the state, in the order to apply them.
pub fn plan(entries: &[Entry], target: Target) -> Result<Vec<Entry>> {
    let last = target.newest(entries);
    let allowed = || entries.iter().filter(|entry| entry.name.max <= last);
    let snapshot = allowed().filter(|entry| entry.name.level == SNAPSHOTS && entry.name.min == 1);
    let mut plan: Vec<Entry> = snapshot.max_by_key(|entry| entry.name.max).copied().into_iter().collect();
    let mut at = plan.last().map_or(0, |entry| entry.name.max);
    let mut rest: Vec<&Entry> = allowed().filter(|e| e.name.level != SNAPSHOTS && e.name.max > at).collect();
    rest.sort_unstable_by_key(|entry| entry.name.min);
    let mut rest = rest.into_iter().peekable();
    let mut best: Option<&Entry> = None;
    loop {
        // Of the files that go on from here, take the one that leads furthest.
        while let Some(entry) = rest.next_if(|entry| entry.name.min <= at.saturating_add(1)) {
            let leads = |e: &Entry| (e.name.max, std::cmp::Reverse(e.name.min), e.name.level);
            if best.is_none_or(|best| leads(entry) > leads(best)) {
                best = Some(entry);
            }
        }
        match best.take().filter(|entry| entry.name.max > at) {
            Some(entry) => {
                at = entry.name.max;
                plan.push(*entry);
            }
            None => break,
        }
    }
    if entries.is_empty() {
        return Err(Empty.into());
    }
    if let Target::Before(time_ms) = target
        && plan.is_empty()
    {
        let oldest = entries.iter().map(|entry| entry.time_ms).min().map_or_else(String::new, shown);
        bail!("the store has no state of before {}: its oldest file is of {oldest}", shown(time_ms));
    }
    if let Some(next) = rest.peek() {
        let missing = at.saturating_add(1);
        let next = next.name.min;
        return Err(Gap(format!(
            "the store has a gap: transaction {missing:x} is missing, and the next one is {next:x}"
        ))
        .into());
    }
    match target {
        Target::Txid(txid) if at < txid && txid <= newest(entries) => {
            let what = "is not in the store by itself any more: the nearest state before it is";
            Err(Gap(format!("transaction {txid:x} {what} {at:x}")).into())
        }
        Target::Txid(txid) if at < txid => {
            bail!("transaction {txid:x} is not in the store: the newest is {:x}", newest(entries))
        }
        _ => Ok(plan),
    }
}

/// The file that goes on from transaction `at` and leads furthest, merged files before batches; at
/// a gap, the newest snapshot.
pub fn onward(entries: &[Entry], at: u64) -> Result<Entry> {
    let goes_on =
        |entry: &&Entry| entry.name.level != SNAPSHOTS && entry.name.min <= at.saturating_add(1) && entry.name.max > at;
    let furthest = entries.iter().filter(goes_on).max_by_key(|entry| (entry.name.max, entry.name.level));
    let snapshots = || entries.iter().filter(|entry| entry.name.level == SNAPSHOTS && entry.name.max > at);
    match furthest.or_else(|| snapshots().max_by_key(|entry| entry.name.max)) {
        Some(entry) => Ok(*entry),
        None => Err(Gap(format!("the store has a gap behind transaction {at:x}, and no newer snapshot")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Name;

    fn entry(level: u8, min: u64, max: u64) -> Entry {
        Entry { name: Name { level, min, max }, time_ms: i64::try_from(max * 10).unwrap(), bytes: 1 }
    }

    fn made(entries: &[(u8, u64, u64)], target: Target) -> Option<Vec<(u8, u64, u64)>> {
        let entries: Vec<_> = entries.iter().map(|&(level, min, max)| entry(level, min, max)).collect();
        let plan = plan(&entries, target).ok()?;
        Some(plan.into_iter().map(|e| (e.name.level, e.name.min, e.name.max)).collect())
    }

    #[test]
    fn from_the_newest_snapshot_on() {
        let all = [(0, 1, 1), (0, 2, 2), (0, 3, 3), (0, 4, 4), (9, 1, 3)];
        assert_eq!(made(&all, Target::Newest), Some(vec![(9, 1, 3), (0, 4, 4)]));
        assert_eq!(made(&all, Target::Txid(3)), Some(vec![(9, 1, 3)]));
        assert_eq!(made(&all, Target::Txid(2)), Some(vec![(0, 1, 1), (0, 2, 2)]));
        assert_eq!(made(&all, Target::Before(40)), Some(vec![(9, 1, 3)]));
        assert_eq!(made(&all, Target::Before(41)), Some(vec![(9, 1, 3), (0, 4, 4)]));
        assert_eq!(made(&all, Target::Before(10)), None);
        assert_eq!(made(&all, Target::Txid(5)), None);
        assert_eq!(made(&[], Target::Newest), None);
    }

    #[test]
    fn merged_files_are_preferred_and_may_overlap() {
        let all = [(0, 1, 1), (0, 2, 2), (0, 3, 3), (0, 4, 4), (1, 2, 3), (2, 1, 3)];
        assert_eq!(made(&all, Target::Newest), Some(vec![(2, 1, 3), (0, 4, 4)]));
        assert_eq!(made(&all, Target::Txid(2)), Some(vec![(0, 1, 1), (0, 2, 2)]));
        assert_eq!(made(&[(9, 1, 4), (1, 3, 7)], Target::Newest), Some(vec![(9, 1, 4), (1, 3, 7)]));
    }

    #[test]
    fn a_replica_goes_on_with_the_file_that_leads_furthest() {
        let all = [(0, 3, 3), (0, 4, 4), (1, 2, 3), (1, 4, 6), (9, 1, 9), (0, 9, 9)].map(|(l, a, b)| entry(l, a, b));
        let onward = |at| onward(&all, at).ok().map(|e| (e.name.level, e.name.min, e.name.max));
        assert_eq!(onward(1), Some((1, 2, 3)));
        assert_eq!(onward(3), Some((1, 4, 6)));
        assert_eq!(onward(4), Some((1, 4, 6)));
        assert_eq!(onward(6), Some((9, 1, 9)));
        assert_eq!(onward(8), Some((0, 9, 9)));
        assert_eq!(onward(9), None);
        let again = [(0, 3, 3), (1, 3, 3), (0, 4, 4)].map(|(l, a, b)| entry(l, a, b));
        assert_eq!(
            super::onward(&again, 2).ok().map(|e| e.name.level),
            Some(1),
            "one that was merged, and is there again"
        );
    }

    #[test]
    fn a_gap_is_an_error() {
        assert_eq!(made(&[(0, 1, 1), (0, 3, 3)], Target::Newest), None);
        assert_eq!(made(&[(0, 2, 2)], Target::Newest), None);
        assert_eq!(made(&[(0, 1, 1), (0, 3, 3), (9, 1, 3)], Target::Newest), Some(vec![(9, 1, 3)]));
        assert_eq!(made(&[(1, 1, 4)], Target::Txid(3)), None);
    }
}
