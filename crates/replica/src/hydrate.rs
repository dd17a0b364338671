//! A copy of the database on this machine, made in the background, from which pages are read that
//! have not changed since.

use crate::replica::Replica;
use crate::state::{FileIndex, ReplicaState};
use crate::vfs::note;
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use onewrite::ffi::code;
use onewrite_core::environment;
use onewrite_replicate::host::read_exact_at;
use onewrite_replicate::ltx::Header;
use onewrite_replicate::plan::Target;
use onewrite_replicate::restore::{self, Pages};
use onewrite_replicate::state::{Sink, apply};
use onewrite_replicate::store::open;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses before another attempt: the first, the longest, and how often the database may be found
/// closed meanwhile.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(600);
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// A whole copy.
pub struct Local {
    /// It has no name, so the system frees it with the process.
    file: File,
    txid: u64,
    page_bytes: u32,
}

impl Local {
    /// Whether a newer snapshot has all pages, so that none is the copy's any more.
    pub fn is_left_behind(&self, state: &ReplicaState) -> bool {
        state.files().first().is_some_and(|first| first.header.max > self.txid)
    }

    /// Whether a page of `state` in `file` is the copy's: none of its later files has it.
    pub fn has(&self, state: &ReplicaState, file: &FileIndex) -> bool {
        file.header.max <= self.txid && self.txid <= state.txid() && self.page_bytes == state.page_bytes()
    }

    /// The image of a page.
    pub fn read(&self, page: u32) -> Result<Arc<[u8]>> {
        let mut image = vec![0; usize::try_from(self.page_bytes)?];
        let at = u64::from(page.saturating_sub(1)).saturating_mul(self.page_bytes.into());
        read_exact_at(&self.file, &mut image, at).context("cannot read the local copy of the database")?;
        Ok(Arc::from(image))
    }
}

/// Takes pages as long as the database is open.
struct WhileOpen<'a> {
    pages: Pages<'a>,
    page_bytes: u32,
    replica: &'a Weak<Replica>,
}

impl Sink for WhileOpen<'_> {
    fn begin(&mut self, header: &Header) -> Result<()> {
        self.page_bytes = header.page_bytes;
        self.pages.begin(header)
    }

    fn page(&mut self, header: &Header, page: u32, image: &[u8]) -> Result<()> {
        ensure!(self.replica.strong_count() > 0, "the database was closed");
        self.pages.page(header, page, image)
    }

    fn end(&mut self) -> Result<()> {
        self.pages.end()
    }
}

/// Copies the newest known state, unless a copy is being made.
pub fn start(replica: &Arc<Replica>) -> Result<()> {
    if replica.copies.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let weak = Arc::downgrade(replica);
    let url = replica.url.clone();
    let run = move || {
        let mut pause = PAUSE_MIN;
        while weak.strong_count() > 0 {
            match copy(&url, &weak) {
                Ok(local) => return put(&weak, local),
                // Files may have been merged and removed while they were read.
                Err(e) => note(
                    code::WARNING,
                    &format!("there is no local copy of {url} yet, the next attempt is in {pause:?}: {e:#}"),
                ),
            }
            let until = Instant::now().checked_add(pause);
            while weak.strong_count() > 0 && until.is_some_and(|until| Instant::now() < until) {
                thread::sleep(LOOKS_EVERY);
            }
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    };
    thread::Builder::new().name("onewrite-hydrate".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}

fn put(replica: &Weak<Replica>, local: Local) {
    if let Some(replica) = replica.upgrade() {
        *replica.local.lock() = Some(Arc::new(local));
        replica.copies.store(false, Ordering::SeqCst);
    }
}

fn copy(url: &str, replica: &Weak<Replica>) -> Result<Local> {
    let dir = environment::temp_dir();
    let file = tempfile::tempfile_in(&dir).with_context(|| format!("cannot write in {}", dir.display()))?;
    let store = open(url)?;
    let (plan, _) = restore::planned(&*store, Target::Newest)?;
    let mut sink = WhileOpen { pages: Pages::new(&file, Path::new("the local copy")), page_bytes: 0, replica };
    apply(&*store, &plan, &mut sink, &ProgressBar::hidden())?;
    let (txid, page_bytes) = (plan.last().map_or(0, |last| last.name.max), sink.page_bytes);
    Ok(Local { file, txid, page_bytes })
}
