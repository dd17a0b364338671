//! Merges and removes on another thread, so that no batch waits.

use super::{At, Merges, Settings, Shipped, Shipper};
use crate::compact::{Copy, has_many};
use crate::local::locked;
use crate::store::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pauses of a caller between two rounds: behind one that had work, and at most.
const AGAIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Merging and removing beside the batches; dropping this ends it.
pub(super) struct Background {
    files: Option<Sender<(Entry, Copy)>>,
    told: Receiver<Told>,
    /// There may be something in `told`.
    has_told: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    by: By,
}

enum By {
    Thread(Option<JoinHandle<()>>),
    Caller(MergeWork),
}

/// Files of one database that are to be merged and removed, by any thread.
#[derive(Clone)]
pub struct MergeWork(Arc<Mutex<Option<Merging>>>);

struct Merging {
    shipper: Shipper,
    at: At,
    files: Receiver<(Entry, Copy)>,
    tell: Sender<Told>,
    has_told: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    pause: Duration,
}

enum Told {
    Made(Shipped),
    /// The position is no longer certain.
    LookAnew,
}

impl Background {
    pub(super) fn start(shipper: &Shipper, at: &At) -> Background {
        let merges = shipper.settings.merges;
        let settings = Settings { sync: None, merges: Merges::InStep, ..shipper.settings.clone() };
        let (file, store, claim) = (shipper.file.clone(), shipper.store.clone(), shipper.claim.clone());
        let other = Shipper::idle(file, store, settings, claim);
        let at = At { state: None, place: None, files: at.files.clone(), ..*at };
        let (files, to_merge) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let (stop, has_told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let tells = has_told.clone();
        let merging =
            Merging { shipper: other, at, files: to_merge, tell, has_told: tells, stop: stop.clone(), pause: AGAIN };
        let by = match merges {
            Merges::ByCaller => By::Caller(MergeWork(Arc::new(Mutex::new(Some(merging))))),
            _ => By::Thread(Some(thread::spawn(move || merging.run()))),
        };
        Background { files: Some(files), told, has_told, stop, by }
    }

    pub(super) fn work(&self) -> Option<MergeWork> {
        match &self.by {
            By::Caller(work) => Some(work.clone()),
            By::Thread(_) => None,
        }
    }

    pub(super) fn add(&self, entry: Entry, copy: Copy) {
        if let Some(files) = &self.files {
            // If the thread has ended, it has sent the reason, or the next batch finds it.
            let _ = files.send((entry, copy));
        }
    }

    /// Whether there may be something to [`tell`](Background::tell).
    pub(super) fn has_told(&self) -> bool {
        self.has_told.load(Ordering::SeqCst)
    }

    /// Reports the files that it made; `false`: the position must be read anew.
    pub(super) fn tell(&self, said: &mut dyn FnMut(&Shipped)) -> bool {
        self.has_told.store(false, Ordering::SeqCst);
        self.told.try_iter().all(|told| match told {
            Told::Made(shipped) => {
                said(&shipped);
                true
            }
            Told::LookAnew => false,
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.files = None;
        match &mut self.by {
            By::Thread(thread) => {
                if let Some(thread) = thread.take() {
                    // A panic was printed.
                    let _ = thread.join();
                }
            }
            // A round that runs is waited for.
            By::Caller(work) => drop(work.take()),
        }
    }
}

impl MergeWork {
    fn take(&self) -> Option<Merging> {
        locked(&self.0).take()
    }

    /// Merges and removes files that are due. Returns the pause before the next round; `None`: this
    /// work has ended.
    pub fn round(&self) -> Option<Duration> {
        let mut work = locked(&self.0);
        let merging = work.as_mut()?;
        let came = merging.take_files(None);
        let before = merging.at.files.len();
        if !merging.round() {
            *work = None;
            return None;
        }
        let is_busy = came || merging.at.files.len() != before || merging.shipper.trouble.is_some();
        merging.pause = if is_busy { AGAIN } else { merging.pause.saturating_mul(2).min(PAUSE_MAX) };
        Some(merging.pause)
    }
}

impl Merging {
    /// Takes note of files that were shipped, `first` and others. Whether there were some.
    fn take_files(&mut self, first: Option<(Entry, Copy)>) -> bool {
        let mut came = false;
        for (entry, copy) in first.into_iter().chain(self.files.try_iter()) {
            (self.at.txid, self.at.last) = (self.at.txid.max(entry.name.max), Some(entry.name));
            self.shipper.recent.keep(entry.name, copy);
            self.at.add(entry);
            came = true;
        }
        came
    }

    /// Whether there may be another round.
    fn round(&mut self) -> bool {
        if self.stop.load(Ordering::SeqCst) {
            return false;
        }
        // A round that failed has its pause.
        if self.shipper.trouble.is_none() && has_many(&self.at.files) {
            self.shipper.tidy_at = Instant::now();
        }
        let (tell, has_told) = (&self.tell, &self.has_told);
        let tell = |told| {
            // The shipper may have ended.
            let _ = tell.send(told);
            has_told.store(true, Ordering::SeqCst);
        };
        match self.shipper.tidy(&mut self.at, &mut |made| tell(Told::Made(*made))) {
            Ok(true) => true,
            Ok(false) => {
                tell(Told::LookAnew);
                false
            }
            // The store is another's, as the next batch finds out.
            Err(_) => false,
        }
    }

    fn run(mut self) {
        loop {
            let nap = self.shipper.tidy_at.saturating_duration_since(Instant::now()).min(AGAIN);
            let first = match self.files.recv_timeout(nap) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            self.take_files(first);
            if !self.round() {
                return;
            }
        }
    }
}
