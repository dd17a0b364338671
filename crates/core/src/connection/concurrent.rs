//! Concurrent writers (`concurrent=1`): a write transaction runs without the writer's place, on its own snapshot, and
//! takes the place for its commit alone.
//!
//! ```text
//!  xLock SHARED    the newest durable state is pinned; SQLite finds its cache stale, so that every page it looks at is
//!                  read here, and noted
//!  xLock RESERVED  nothing is waited for
//!  FCNTL_SYNC      the place; nothing that was read or written may have changed since the snapshot, else BUSY_SNAPSHOT;
//!                  from here on the transaction is one of the newest state, as any other
//! ```
//!
//! So each transaction that commits might have run at once, in the order of the commits: what it read was still so
//! when it committed. The sizes on page 1 are not part of that for who neither adds nor frees pages: they are left as
//! the others made them.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Connection;
use super::looked::{Looked, Stage};
use super::role::{Place, Reader, Writer};
use super::write::needs_plain_file;
use crate::database::{Database, Inner, Phase};
use crate::error::{Error, Result};
use crate::home::{Kind, State};
use crate::layout::home as at;
use crate::table::Image;
use crate::txn::Txn;
use crate::types::PageNo;

/// What SQLite reads where it looks whether its cache still holds: a header of no pages, as no cache has one (rule
/// ApartReadsNoted).
pub(super) fn strange_sizes(buf: &mut [u8]) {
    if let Some(count) = buf.get_mut(at::PAGE_COUNT - at::CHANGE_COUNTER..at::PAGE_COUNT - at::CHANGE_COUNTER + 4) {
        count.fill(0);
    }
}

impl Connection {
    /// Whether a transaction that begins now runs apart: the database is in the log, and this process has it alone.
    pub(super) fn runs_apart(&self, inner: &Inner) -> bool {
        inner.options.concurrent
            && inner.phase == Phase::Live
            && inner.member.is_none()
            && inner.latest.kind == Kind::Database
            && !self.said.exclusive
    }

    /// What the transaction has looked at, if it began without the writer's place.
    pub(super) fn looked(&self) -> Option<&Looked> {
        self.role.pinned().and_then(|reader| reader.looked.as_ref())
    }

    /// Whether the transaction has no need of the writer's place yet.
    pub(super) fn is_apart(&self) -> bool {
        matches!(self.looked(), Some(Looked { stage: Stage::Apart, .. })) && self.db.inner.lock().phase == Phase::Live
    }

    /// Whether it has committed on top of what others did: SQLite must give its lock back before it writes again.
    pub(super) fn has_merged(&self) -> bool {
        matches!(self.looked(), Some(Looked { stage: Stage::Merged | Stage::Committed(_), .. }))
    }

    /// Takes the writer's place for a transaction that ran apart. With `alone`, only if nobody has committed since its
    /// snapshot. BUSY_SNAPSHOT: SQLite rolls back, and the application starts over.
    pub(super) fn line_up(&mut self, alone: bool) -> Result<()> {
        if !self.is_apart() || self.role.txn().is_none_or(|txn| txn.doomed) {
            return Ok(());
        }
        let wait = std::time::Duration::from_millis(self.busy_ms);
        let joined = match self.db.queue.acquire(self.id, crate::queue::Claim::Firm, wait) {
            true => self.join(alone),
            // Plain BUSY would make SQLite try the half-done commit again.
            false => Err(Error::BusySnapshot),
        };
        if joined.is_ok() {
            self.place = Place::Firm;
        } else {
            self.doom();
            self.db.queue.release(self.id);
        }
        joined
    }

    fn join(&mut self, alone: bool) -> Result<()> {
        let db = self.db.clone();
        // The place is ours: the newest state stays what it is.
        let newest = {
            let inner: &Inner = &db.inner.lock();
            inner.check()?;
            if inner.phase != Phase::Live {
                return Err(Error::BusySnapshot);
            }
            inner.published.clone()
        };
        let Some(Writer { reader: Reader { looked: Some(looked), .. }, txn, .. }) = self.role.writer_mut() else {
            return Ok(());
        };
        if db.inner.lock().is_newest(&txn.base) {
            looked.stage = Stage::Ordinary;
            return Ok(());
        }
        if alone || needs_plain_file(txn) || !txn.streamed.is_empty() {
            return Err(Error::BusySnapshot);
        }
        let writes_header = still_holds(&db, txn, &looked.pages, &newest)?;
        // What SQLite wrote there is of the snapshot (rule MergeSparesPage1).
        if !writes_header {
            txn.pages.remove(&PageNo::HEADER);
        }
        txn.base_limit = newest.page_count;
        txn.file_bytes = newest.bytes();
        txn.base = newest;
        looked.stage = Stage::Merged;
        Ok(())
    }

    /// A write that comes after the transaction has lined up on top of what others did.
    pub(super) fn write_after_merge(&mut self) -> Result<()> {
        match self.looked() {
            // SQLite's cache is behind: it must give its lock back first.
            Some(Looked { stage: Stage::Committed(_), .. }) => Err(Error::BusySnapshot),
            // SQLite plays its journal back.
            Some(Looked { stage: Stage::Merged, .. }) => {
                self.doom();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The transaction cannot commit any more.
    pub(super) fn doom(&mut self) {
        if let Some(txn) = self.role.txn_mut() {
            txn.doomed = true;
        }
    }

    /// A transaction that was turned away cannot be committed all the same (invariant I7, rule RefusedUntilRolledBack).
    pub(super) fn check_commit(&self) -> Result<()> {
        if self.role.is_doomed() { Err(Error::BusySnapshot) } else { Ok(()) }
    }

    /// The pages of a merged transaction that is about to be published.
    pub(super) fn own_pages(&self) -> Option<FxHashMap<PageNo, Image>> {
        let merged = matches!(self.looked(), Some(Looked { stage: Stage::Merged, .. }));
        self.role.txn().filter(|_| merged).map(|txn| txn.pages.clone())
    }
}

/// Whether everything the transaction has read or written is in `newest` as it was in its snapshot. Returns whether its
/// page 1 is more than counters.
fn still_holds(db: &Database, txn: &Txn, looked: &FxHashSet<PageNo>, newest: &State) -> Result<bool> {
    let base = &txn.base;
    let resized = txn.file_bytes != base.bytes() || newest.page_bytes != base.page_bytes;
    // Pages that were cut off have no newer image to tell.
    if resized || newest.kind != base.kind || newest.page_count < base.page_count {
        return Err(Error::BusySnapshot);
    }
    let (now, before) = (db.image(newest, PageNo::HEADER)?, db.image(base, PageNo::HEADER)?);
    let writes_header = txn.pages.get(&PageNo::HEADER).is_some_and(|own| !same_header(own, &before, false));
    if !same_header(&now, &before, !writes_header) {
        return Err(Error::BusySnapshot);
    }
    let table = db.table.read();
    let mut pages = looked.iter().chain(txn.pages.keys()).filter(|page| **page != PageNo::HEADER);
    // The snapshot is pinned, so whatever was written since is in the table, even if it is home as well.
    if pages.any(|page| table.newest_tid(*page).is_some_and(|tid| tid > base.tid)) {
        return Err(Error::BusySnapshot);
    }
    Ok(writes_header)
}

/// Whether two images of page 1 say the same but for counters, and perhaps sizes.
fn same_header(a: &[u8], b: &[u8], but_for_sizes: bool) -> bool {
    let from = if but_for_sizes { at::CHANGE_COUNTER + 16 } else { at::CHANGE_COUNTER + 4 };
    let part = |range: std::ops::Range<usize>| a.get(range.clone()) == b.get(range);
    a.len() == b.len()
        && part(0..at::CHANGE_COUNTER)
        && part(from..at::VERSION_VALID_FOR)
        && part(at::VERSION_VALID_FOR + 4..a.len())
}
