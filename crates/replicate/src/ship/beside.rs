//! A snapshot on a thread of its own, so that no batch waits for it.

use super::{NextFile, Shipped, fill};
use crate::compact::Copy;
use crate::fence::StoreClaim;
use crate::ltx::Header;
use crate::report::COUNTERS;
use crate::source::Source;
use crate::state::{PageHash, page_bar};
use crate::store::{Entry, Name, Store};
use anyhow::{Result, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

/// A snapshot that is being made.
pub(super) struct Beside {
    done: Receiver<Result<(Entry, Shipped)>>,
    stop: Arc<AtomicBool>,
    /// The thread reads the database.
    reads: Arc<AtomicBool>,
}

/// Ends with the thread's part that reads the database.
struct Reads(Arc<AtomicBool>);

impl Drop for Reads {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Beside {
    /// Makes the file `name` of `source`, whose pages have these hashes.
    pub(super) fn start(
        store: &Arc<dyn Store>,
        claim: &StoreClaim,
        source: Source,
        name: Name,
        hashes: Vec<PageHash>,
        time_ms: i64,
    ) -> Beside {
        let (tell, done) = mpsc::channel();
        let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        let (store, node, stopped, reading) = (store.clone(), claim.node(), stop.clone(), Reads(reads.clone()));
        thread::spawn(move || {
            let made = make(&*store, node, (source, reading), name, &hashes, time_ms, &stopped);
            // The shipper may have ended.
            let _ = tell.send(made);
        });
        Beside { done, stop, reads }
    }

    /// The result, once there is one.
    pub(super) fn done(&self) -> Option<Result<(Entry, Shipped)>> {
        match self.done.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(anyhow::anyhow!("the thread that makes it has ended"))),
        }
    }

    /// Gives it up. Afterwards the thread has left the database; its request may still arrive.
    pub(super) fn give_up(self) {
        self.stop.store(true, SeqCst);
        while self.reads.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn make(
    store: &dyn Store,
    node: u64,
    source: (Source, Reads),
    name: Name,
    hashes: &[PageHash],
    time_ms: i64,
    stop: &AtomicBool,
) -> Result<(Entry, Shipped)> {
    let (page_bytes, pages_after) = (source.0.page_bytes, source.0.pages);
    let pages: Vec<u32> = source.0.numbers().collect();
    let header = Header { page_bytes, pages: pages_after, min: name.min, max: name.max, time_ms, node };
    let size = (page_bytes, pages_after);
    let file = NextFile { name, size, pages: &pages, images: None, hashes, time_ms };
    let bar = page_bar("snapshot");
    let (mut source, mut bytes) = (Some(source), 0);
    let created = store.create(name, time_ms, &mut |to| {
        let mut looked = || match stop.load(SeqCst) {
            true => bail!("it is given up"),
            false => Ok(()),
        };
        let from = source.as_ref().map(|(source, _)| source);
        bytes = fill(&file, header, from, to, &mut Copy::none(), &bar, &mut looked)?;
        source = None;
        Ok(())
    });
    bar.finish_and_clear();
    // An existing snapshot has the same state: its last batch has the same number.
    created?;
    let pages = u32::try_from(pages.len())?;
    COUNTERS.file(name.level, bytes, pages);
    Ok((Entry { name, time_ms, bytes }, Shipped { name, pages, bytes, pages_before: pages_after }))
}
