//! Reads files of a store in order, with several requests at a time: parts of large files, or
//! several small files.

use crate::store::{Entry, Name, Store};
use anyhow::{Context, Error, Result, anyhow};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

const PART_BYTES: u64 = 2 << 20;
const THREADS: u64 = 8;
/// Parts that may be read ahead of the reader.
const AHEAD: u64 = 16;

/// A file was read and is wrong, or is gone. Any other error tells nothing about the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {0}")]
pub struct Damaged(pub Name);

struct Part {
    name: Name,
    offset: u64,
    bytes: u64,
}

/// The parts of files, one after the other. They take no memory: a listing may claim any length.
struct Parts<'a> {
    /// Each file, with the number of its first part.
    files: Vec<(&'a Entry, u64)>,
    count: u64,
}

impl Parts<'_> {
    fn of(plan: &[Entry]) -> Parts<'_> {
        let mut count = 0u64;
        let mut files = Vec::with_capacity(plan.len());
        for entry in plan {
            files.push((entry, count));
            count = count.saturating_add(entry.bytes.div_ceil(PART_BYTES));
        }
        Parts { files, count }
    }

    fn get(&self, at: u64) -> Option<Part> {
        let file = self.files.partition_point(|(_, first)| *first <= at).checked_sub(1)?;
        let (entry, first) = self.files.get(file).filter(|_| at < self.count)?;
        let offset = at.saturating_sub(*first).saturating_mul(PART_BYTES);
        let bytes = PART_BYTES.min(entry.bytes.saturating_sub(offset));
        Some(Part { name: entry.name, offset, bytes })
    }
}

#[derive(Default)]
struct FetchProgress {
    next: u64,
    used: u64,
    here: BTreeMap<u64, Result<Vec<u8>>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<FetchProgress>,
    moved: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, FetchProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, FetchProgress>) -> MutexGuard<'a, FetchProgress> {
        self.moved.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, store: &dyn Store, parts: &Parts<'_>) {
        loop {
            let mut progress = self.lock();
            while !progress.ended && progress.next < parts.count && progress.next >= progress.used.saturating_add(AHEAD)
            {
                progress = self.wait(progress);
            }
            let at = progress.next;
            let Some(part) = parts.get(at).filter(|_| !progress.ended) else { return };
            progress.next = progress.next.saturating_add(1);
            drop(progress);
            let read = store.read_part(part.name, part.offset, part.bytes);
            self.lock().here.insert(at, read);
            self.moved.notify_all();
        }
    }

    fn take(&self, at: u64) -> Result<Vec<u8>> {
        let mut progress = self.lock();
        loop {
            if let Some(read) = progress.here.remove(&at) {
                progress.used = at.saturating_add(1);
                self.moved.notify_all();
                return read;
            }
            progress = self.wait(progress);
        }
    }
}

struct FetchEnd<'a>(&'a Shared);

impl Drop for FetchEnd<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.moved.notify_all();
    }
}

struct Joined<'a> {
    shared: &'a Shared,
    rest: std::ops::Range<u64>,
    bytes: Vec<u8>,
    at: usize,
    /// An error in reading a part; `io::Error` would lose its causes.
    error: &'a mut Option<Error>,
    /// The file is shorter than its entry.
    is_short: &'a mut bool,
}

impl Read for Joined<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut here = self.bytes.get(self.at..).unwrap_or_default();
            if !here.is_empty() {
                let n = here.read(to)?;
                self.at = self.at.saturating_add(n);
                return Ok(n);
            }
            let Some(part) = self.rest.next() else { return Ok(0) };
            match self.shared.take(part) {
                Ok(bytes) if bytes.is_empty() => {
                    // A listing may claim any length: stop at the real end.
                    let message = "it is shorter than the listing says";
                    (*self.error, *self.is_short) = (Some(anyhow!(message)), true);
                    return Err(io::Error::other(message));
                }
                Ok(bytes) => (self.bytes, self.at) = (bytes, 0),
                Err(e) => {
                    let message = format!("{e:#}");
                    *self.error = Some(e);
                    return Err(io::Error::other(message));
                }
            }
        }
    }
}

/// Reads each file of `plan`, in order, by `each`, which must read to its end.
pub fn fetch(
    store: &dyn Store,
    plan: &[Entry],
    mut each: impl FnMut(&Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let parts = Parts::of(plan);
    let shared = Shared::default();
    thread::scope(|scope| {
        let _ended = FetchEnd(&shared);
        for _ in 0..parts.count.min(THREADS) {
            let started = thread::Builder::new().spawn_scoped(scope, || shared.work(store, &parts));
            started.context("cannot start a thread")?;
        }
        let ends = parts.files.iter().skip(1).map(|(_, first)| *first).chain([parts.count]);
        for ((entry, first), end) in parts.files.iter().zip(ends) {
            let damaged = || Damaged(entry.name);
            let (mut error, mut is_short) = (None, false);
            let (bytes, rest) = (Vec::new(), *first..end);
            let mut from = Joined { shared: &shared, rest, bytes, at: 0, error: &mut error, is_short: &mut is_short };
            let done = each(entry, &mut from);
            let is_used = from.rest.is_empty();
            match error {
                Some(e) if is_short || is_wrong(store, entry.name, &e) => return Err(e).with_context(damaged),
                Some(e) => return Err(e).with_context(|| damaged().to_string()),
                None => done.with_context(damaged)?,
            }
            if !is_used {
                return Err(anyhow!("there is more than belongs to it")).with_context(damaged);
            }
        }
        Ok(())
    })
}

/// Whether an error in reading a file is one of the file: it is gone, or not regular.
fn is_wrong(store: &dyn Store, name: Name, error: &Error) -> bool {
    let is_irregular = || error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::InvalidInput);
    is_irregular() || matches!(store.has(name), Ok(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{self, Name};

    #[test]
    fn files_come_in_order_and_whole_and_an_error_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = store::open(&format!("file://{}/store", dir.path().display())).unwrap();
        store.begin(1).unwrap();
        let mut random = fastrand::Rng::with_seed(5);
        let mut wanted = Vec::new();
        for n in 1..40u64 {
            let len = if n % 13 == 0 { PART_BYTES as usize * 3 + 17 } else { random.usize(1..5000) };
            let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            assert!(store.create(Name { level: 0, min: n, max: n }, 1, &mut |to| Ok(to.write_all(&bytes)?)).unwrap());
            wanted.push(bytes);
        }
        let plan = store.list(0).unwrap();
        let mut found = Vec::new();
        let each = |_: &Entry, from: &mut dyn Read| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes)?;
            found.push(bytes);
            Ok(())
        };
        fetch(&*store, &plan, each).unwrap();
        assert!(found == wanted);

        store.remove(Name { level: 0, min: 20, max: 20 }).unwrap();
        found.clear();
        let each = |_: &Entry, from: &mut dyn Read| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes)?;
            found.push(bytes);
            Ok(())
        };
        let error = fetch(&*store, &plan, each).unwrap_err();
        assert!(format!("{error:#}").contains("0000000000000014-0000000000000014.ltx"), "{error:#}");
        assert!(found == wanted[..19]);
        assert!(fetch(&*store, &plan, |_, _| anyhow::bail!("enough")).is_err());
        assert!(fetch(&*store, &plan, |_, _| Ok(())).is_err());
    }
}
