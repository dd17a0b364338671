//! Reading many files of a store, in order, by several requests at a time: of large files several parts, of small ones several
//! files.

use crate::store::{Entry, Store};
use anyhow::{Context, Error, Result, anyhow};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Bytes asked for at once.
const PART_BYTES: u64 = 2 << 20;
/// Requests under way.
const THREADS: usize = 8;
/// Parts that are read ahead of what is used, so many at most.
const AHEAD: usize = 16;

struct Part {
    entry: Entry,
    offset: u64,
    bytes: u64,
}

#[derive(Default)]
struct Progress {
    /// The first part that nobody has asked for.
    next: usize,
    /// The first part that was not used.
    used: usize,
    here: BTreeMap<usize, Result<Vec<u8>>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    moved: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Progress>) -> MutexGuard<'a, Progress> {
        self.moved.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads parts until there are none left.
    fn work(&self, store: &dyn Store, parts: &[Part]) {
        loop {
            let mut progress = self.lock();
            while !progress.ended && progress.next < parts.len() && progress.next >= progress.used.saturating_add(AHEAD)
            {
                progress = self.wait(progress);
            }
            let at = progress.next;
            let Some(part) = parts.get(at).filter(|_| !progress.ended) else { return };
            progress.next = progress.next.saturating_add(1);
            drop(progress);
            let read = store.read_part(part.entry.name, part.offset, part.bytes);
            self.lock().here.insert(at, read);
            self.moved.notify_all();
        }
    }

    fn take(&self, at: usize) -> Result<Vec<u8>> {
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

/// Ends the threads, however the work ends.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.moved.notify_all();
    }
}

/// One file, made of its parts.
struct Parts<'a> {
    shared: &'a Shared,
    /// Parts of this file that were not taken.
    rest: std::ops::Range<usize>,
    bytes: Vec<u8>,
    at: usize,
    /// Why a part could not be read; `io::Error` would lose its causes.
    error: &'a mut Option<Error>,
}

impl Read for Parts<'_> {
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

/// Reads each file of `plan`, in order, by `each`, which reads it to its end.
pub fn fetch(
    store: &dyn Store,
    plan: &[Entry],
    mut each: impl FnMut(&Entry, &mut dyn Read) -> Result<()>,
) -> Result<()> {
    let mut parts = Vec::new();
    let mut files = Vec::new();
    for entry in plan {
        let begin = parts.len();
        let mut offset = 0;
        while offset < entry.bytes {
            let bytes = PART_BYTES.min(entry.bytes.saturating_sub(offset));
            parts.push(Part { entry: *entry, offset, bytes });
            offset = offset.saturating_add(bytes);
        }
        files.push((entry, begin..parts.len()));
    }
    let shared = Shared::default();
    thread::scope(|scope| {
        let _ended = Ended(&shared);
        for _ in 0..THREADS.min(parts.len()) {
            let started = thread::Builder::new().spawn_scoped(scope, || shared.work(store, &parts));
            started.context("cannot start a thread")?;
        }
        for (entry, rest) in files {
            let what = || format!("cannot use {}", entry.name);
            let mut error = None;
            let mut from = Parts { shared: &shared, rest, bytes: Vec::new(), at: 0, error: &mut error };
            let done = each(entry, &mut from);
            let unused = from.rest.len();
            match error {
                Some(e) => return Err(e).with_context(what),
                None => done.with_context(what)?,
            }
            if unused > 0 {
                return Err(anyhow!("there is more than belongs to it")).with_context(what);
            }
        }
        Ok(())
    })
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
        // Who does not want more ends it, too.
        assert!(fetch(&*store, &plan, |_, _| anyhow::bail!("enough")).is_err());
        assert!(fetch(&*store, &plan, |_, _| Ok(())).is_err());
    }
}
