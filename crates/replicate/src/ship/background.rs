//! Merges and removes on a thread, so that no batch waits.

use super::{At, Settings, Shipped, Shipper};
use crate::compact::{Copy, has_many};
use crate::store::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread that merges and removes; dropping this ends it.
pub(super) struct Background {
    files: Option<Sender<(Entry, Copy)>>,
    told: Receiver<Told>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Told {
    Made(Shipped),
    /// The position is no longer certain.
    LookAnew,
}

impl Background {
    pub(super) fn start(shipper: &Shipper, at: &At) -> Background {
        let settings = Settings { sync: None, background: false, ..shipper.settings.clone() };
        let (file, store, claim) = (shipper.file.clone(), shipper.store.clone(), shipper.claim.clone());
        let other = Shipper::idle(file, store, settings, claim);
        let at = At { state: None, place: None, files: at.files.clone(), ..*at };
        let (files, to_merge) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || run(other, at, &to_merge, &tell, &stopped));
        Background { files: Some(files), told, stop, thread: Some(thread) }
    }

    pub(super) fn add(&self, entry: Entry, copy: Copy) {
        if let Some(files) = &self.files {
            // If the thread has ended, it has sent the reason, or the next batch finds it.
            let _ = files.send((entry, copy));
        }
    }

    /// Reports the files that it made; `false`: the position must be read anew.
    pub(super) fn tell(&self, said: &mut dyn FnMut(&Shipped)) -> bool {
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
        if let Some(thread) = self.thread.take() {
            // A panic was printed.
            let _ = thread.join();
        }
    }
}

fn run(mut shipper: Shipper, mut at: At, files: &Receiver<(Entry, Copy)>, tell: &Sender<Told>, stop: &AtomicBool) {
    loop {
        let nap = shipper.tidy_at.saturating_duration_since(Instant::now()).min(Duration::from_secs(1));
        let first = match files.recv_timeout(nap) {
            Ok(first) => Some(first),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for (entry, copy) in first.into_iter().chain(files.try_iter()) {
            (at.txid, at.last) = (at.txid.max(entry.name.max), Some(entry.name));
            shipper.recent.keep(entry.name, copy);
            at.add(entry);
        }
        if stop.load(Ordering::SeqCst) {
            return;
        }
        // A round that failed has its pause.
        if shipper.trouble.is_none() && has_many(&at.files) {
            shipper.tidy_at = Instant::now();
        }
        match shipper.tidy(&mut at, &mut |made| _ = tell.send(Told::Made(*made))) {
            Ok(true) => {}
            Ok(false) => {
                let _ = tell.send(Told::LookAnew);
                return;
            }
            // The store is another's, as the next batch finds out.
            Err(_) => return,
        }
    }
}
