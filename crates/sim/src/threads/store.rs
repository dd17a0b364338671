//! The store for which commits wait (rule StoreHasIt): a process of its own sends it each flushed
//! state.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use onewrite_core::disk::Disk;
use onewrite_core::disk::sim::SimDisk;
use onewrite_core::inspect::sync_path;
use parking_lot::Mutex;

use super::process::ProcessDisk;
use crate::check::DB;
use crate::model::State;
use crate::oracle::Timeline;

/// A commit waits so long for the store.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What the store has.
#[derive(Default)]
pub struct Store {
    /// Commits wait for it.
    has_begun: AtomicBool,
    /// Index of its newest state.
    newest: AtomicUsize,
    /// Threads that may still commit in this round.
    busy: AtomicUsize,
    /// The shipper has failed in this round, or the store was slow.
    has_failed: AtomicBool,
    /// The shipper's.
    process: Mutex<Option<ProcessDisk>>,
}

/// A thread that may commit.
pub struct Busy(Arc<Store>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    /// A round with so many threads that may commit.
    pub fn begin_round(&self, threads: usize, shipper: &ProcessDisk) {
        self.busy.store(threads, Ordering::SeqCst);
        self.has_failed.store(false, Ordering::SeqCst);
        *self.process.lock() = Some(shipper.clone());
    }

    /// The shipper has failed, or the store is slow.
    pub fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Whether it is no fault that a thread is told so.
    pub fn is_expected(&self, what: &str) -> bool {
        let is_dead = || self.process.lock().as_ref().is_some_and(ProcessDisk::is_dead);
        let is_away = self.has_failed.load(Ordering::SeqCst) || is_dead();
        what.contains("may not be while commits wait") || is_away && what.contains("did not take this transaction")
    }

    /// Until it is dropped, the calling thread may commit.
    pub fn busy(self: &Arc<Store>) -> Busy {
        Busy(self.clone())
    }

    /// Whether a thread may still commit.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst) > 0
    }

    /// Commits wait from here on; those before did not.
    pub fn begin(&self, known: &Timeline<Arc<State>>) {
        if !self.has_begun.swap(true, Ordering::SeqCst) {
            self.newest.store(known.states.len() - 1, Ordering::SeqCst);
        }
    }

    /// It has the state with this index, which is flushed: no death takes it back.
    pub fn put(&self, at: usize, known: &mut Timeline<Arc<State>>) {
        self.newest.fetch_max(at, Ordering::SeqCst);
        known.floor = known.floor.max(at);
    }

    /// Whether it has what a transaction saw, or was told to be committed.
    pub fn check(&self, at: usize, known: &Timeline<Arc<State>>) -> Result<(), String> {
        let newest = self.newest.load(Ordering::SeqCst);
        let has_begun = self.has_begun.load(Ordering::SeqCst);
        let is_same = || known.states[newest..=at].iter().all(|(state, _)| **state == *known.states[at].0);
        match !has_begun || newest >= at || is_same() {
            true => Ok(()),
            false => Err(format!("state {at} is seen, and the store has state {newest}")),
        }
    }
}

/// Commits to the database of `disk` wait no longer.
pub fn forget(disk: &SimDisk) {
    let sign = sync_path(Path::new(DB));
    if disk.remove(&sign).is_ok() {
        disk.sync_dir_of(&sign).expect("a disk without faults");
    }
}
