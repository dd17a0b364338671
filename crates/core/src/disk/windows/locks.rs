//! Byte-range locks with POSIX's meaning: a new lock replaces its file's there, also in part.
//!
//! `LockFileEx` gives a range back only as it was taken, and cannot change its kind. So a change
//! unlocks and locks; [`GUARD`], a byte of the same file, keeps other processes of onewrite from
//! looking meanwhile. Stock SQLite knows no guard: its own ranges are changed one by one, and as
//! SQLite changes them, below locks that exclude the others (SQLite file locking, section 3).

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::disk::LockKind;

/// Exclusive while locks of its file are taken or looked for.
const GUARD: u64 = (1 << 63) - 16;

/// A process holds the guard for microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// SQLite's PENDING, RESERVED and SHARED end here.
const CUTS: [u64; 4] = [0x4000_0000, 0x4000_0001, 0x4000_0002, 0x4000_0200];

/// Locks of the system. A range that is locked, by this handle or another, conflicts.
pub trait SystemLocks {
    /// Without waiting; false on a conflict.
    fn lock(&self, start: u64, len: u64, kind: LockKind) -> io::Result<bool>;
    /// Of exactly one such lock.
    fn unlock(&self, start: u64, len: u64) -> io::Result<()>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
    kind: LockKind,
}

/// Of one open file.
#[derive(Debug, Default)]
pub struct HeldLocks(Vec<Range>);

impl HeldLocks {
    /// False, and nothing changed, on a conflict.
    pub fn try_lock(&mut self, file: &impl SystemLocks, start: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        guarded(file, || {
            let mut before = Vec::new();
            for (from, until) in pieces(start, start + len) {
                let had: Vec<Range> = self.within(from, until).collect();
                if !self.replace(file, from, until, Some(kind))? {
                    self.put_back(file, start, from, &before)?;
                    return Ok(false);
                }
                before.extend(had);
            }
            Ok(true)
        })
    }

    pub fn unlock(&mut self, file: &impl SystemLocks, start: u64, len: u64) -> io::Result<()> {
        let end = start + len;
        if self.0.iter().all(|held| held.end <= start || end <= held.start || start <= held.start && held.end <= end) {
            return self.replace(file, start, end, None).map(drop);
        }
        guarded(file, || self.replace(file, start, end, None).map(drop))
    }

    /// Whether a lock on bytes that this file has not locked would fail.
    pub fn conflicts(&self, file: &impl SystemLocks, start: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        guarded(file, || {
            let is_free = file.lock(start, len, kind)?;
            if is_free {
                file.unlock(start, len)?;
            }
            Ok(!is_free)
        })
    }

    /// The parts of locks in a range.
    fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Range> + '_ {
        parts(&self.0, start, end)
    }

    fn put_back(&mut self, file: &impl SystemLocks, start: u64, end: u64, before: &[Range]) -> io::Result<()> {
        if start < end {
            self.replace(file, start, end, None)?;
        }
        before.iter().try_for_each(|range| self.again(file, *range))
    }

    fn replace(&mut self, file: &impl SystemLocks, start: u64, end: u64, kind: Option<LockKind>) -> io::Result<bool> {
        if kind.is_some_and(|kind| self.0.contains(&Range { start, end, kind })) {
            return Ok(true);
        }
        let (old, kept): (Vec<Range>, _) = self.0.iter().partition(|held| held.start < end && start < held.end);
        self.0 = kept;
        for range in &old {
            file.unlock(range.start, range.end - range.start)?;
        }
        for range in parts(&old, 0, start).chain(parts(&old, end, u64::MAX)) {
            self.again(file, range)?;
        }
        let Some(kind) = kind else { return Ok(true) };
        if file.lock(start, end - start, kind)? {
            self.0.push(Range { start, end, kind });
            return Ok(true);
        }
        parts(&old, start, end).try_for_each(|range| self.again(file, range))?;
        Ok(false)
    }

    /// Takes one that was given back a moment ago. Only stock SQLite's look at PENDING is in its
    /// way, for a moment.
    fn again(&mut self, file: &impl SystemLocks, range: Range) -> io::Result<()> {
        patiently(|| file.lock(range.start, range.end - range.start, range.kind))?;
        self.0.push(range);
        Ok(())
    }
}

fn parts(held: &[Range], start: u64, end: u64) -> impl Iterator<Item = Range> + '_ {
    let parts =
        held.iter().map(move |held| Range { start: held.start.max(start), end: held.end.min(end), kind: held.kind });
    parts.filter(|part| part.start < part.end)
}

fn guarded<T>(file: &impl SystemLocks, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    patiently(|| file.lock(GUARD, 1, LockKind::Exclusive))?;
    let changed = change();
    file.unlock(GUARD, 1)?;
    changed
}

fn patiently(mut lock: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let mut since = None;
    while !lock()? {
        if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            let message = "another process has held a lock for 10 seconds that is held for microseconds";
            return Err(io::Error::new(ErrorKind::TimedOut, message));
        }
        clock::yield_now();
    }
    Ok(())
}

/// A range, cut where SQLite's ranges end.
fn pieces(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let cuts = CUTS.into_iter().filter(move |cut| start < *cut && *cut < end);
    let starts = std::iter::once(start).chain(cuts.clone());
    starts.zip(cuts.chain(std::iter::once(end)))
}
