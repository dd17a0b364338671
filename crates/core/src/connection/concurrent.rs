//! Concurrent writers (`concurrent=1`): a write transaction runs on its own snapshot, and takes the
//! writer's place only to commit.
//!
//! ```text
//! xLock SHARED    the newest durable state is pinned; SQLite finds its cache stale, so that every
//!                 page it looks at is read here, and noted
//! xLock RESERVED  waits for nothing
//! FCNTL_SYNC      the place; a change since the snapshot to anything read or written gives
//!                 BUSY_SNAPSHOT; from here on the transaction is one of the newest state
//! ```
//!
//! So the transactions could have run in the order of their commits. The sizes on page 1 do not
//! count for a transaction that frees no page: pages that it adds follow behind those of others
//! ([`super::renumber`]).

use rustc_hash::FxHashSet;

use super::Connection;
use super::looked::{OptimisticStage, OwnPages, ReadSet};
use super::renumber::renumbered;
use super::role::{ReadTransaction, WriteTransaction, WriterTurn};
use super::write::needs_plain_file;
use crate::base::error::{Error, Result};
use crate::base::layout::home as at;
use crate::base::memory;
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, Tid};
use crate::database::{Database, DatabaseState, Phase};
use crate::pages::image::Image;
use crate::pages::txn::Txn;
use crate::sqlite_format::home::{self, FileKind, State};
use crate::sqlite_format::node::Shape;

/// Puts impossible sizes where SQLite checks its cache, so that no cache matches (rule
/// MergeIsSerial).
pub(super) fn strange_sizes(buf: &mut [u8]) {
    if let Some(count) = buf.get_mut(at::PAGE_COUNT - at::CHANGE_COUNTER..at::PAGE_COUNT - at::CHANGE_COUNTER + 4) {
        count.fill(0);
    }
}

impl Connection {
    pub(super) fn runs_apart(&self, inner: &DatabaseState) -> bool {
        inner.options.concurrent
            && inner.phase == Phase::Live
            && inner.member.is_none()
            && inner.latest.kind == FileKind::Database
            && !self.said.exclusive
    }

    pub(super) fn looked(&self) -> Option<&ReadSet> {
        self.role.pinned().and_then(|reader| reader.looked.as_ref())
    }

    pub(super) fn is_apart(&self) -> bool {
        matches!(self.looked(), Some(ReadSet { stage: OptimisticStage::Apart, .. }))
            && self.db.inner.lock().phase == Phase::Live
    }

    pub(super) fn has_merged(&self) -> bool {
        matches!(self.looked(), Some(ReadSet { stage: OptimisticStage::Merged(_) | OptimisticStage::Committed(_), .. }))
    }

    /// Takes the writer's place for a transaction that ran apart. With `alone`, only if no other
    /// committed since its snapshot. After BUSY_SNAPSHOT the application starts over.
    pub(super) fn line_up(&mut self, alone: bool) -> Result<()> {
        if !self.is_apart() || self.role.txn().is_none_or(|txn| txn.doomed) {
            return Ok(());
        }
        let wait = std::time::Duration::from_millis(self.busy_ms);
        let joined = match self.db.queue.acquire(self.id, crate::database::queue::TurnClaim::Firm, wait) {
            true => self.join(alone),
            // Plain BUSY would make SQLite try the half-done commit again.
            false => Err(Error::BusySnapshot),
        };
        if joined.is_ok() {
            self.place = WriterTurn::Firm;
        } else {
            self.doom();
            self.db.queue.release(self.id);
        }
        joined
    }

    fn join(&mut self, alone: bool) -> Result<()> {
        let db = self.db.clone();
        let newest = {
            let inner: &DatabaseState = &db.inner.lock();
            inner.check()?;
            if inner.phase != Phase::Live {
                return Err(Error::BusySnapshot);
            }
            self.options = inner.options.clone();
            inner.published.clone()
        };
        // SQLite's cache was empty when the transaction began.
        let Some(read) = self.cache.pages() else { return Err(Error::BusySnapshot) };
        let Some(WriteTransaction { reader: ReadTransaction { looked: Some(looked), .. }, txn, .. }) =
            self.role.writer_mut()
        else {
            return Ok(());
        };
        if db.inner.lock().is_newest(&txn.base) {
            looked.stage = OptimisticStage::Ordinary;
            return Ok(());
        }
        if alone || needs_plain_file(txn) || !txn.streamed.is_empty() {
            return Err(Error::BusySnapshot);
        }
        let on_page_1 = still_holds(&db, txn, read, &newest)?;
        let mut pages = txn.pages.clone();
        // SQLite's page 1 has the sizes of the snapshot (rule MergeIsSerial).
        if on_page_1 != OnPage1::More {
            pages.remove(&PageNo::HEADER);
        }
        let mut page_count = newest.page_count;
        // Rule MergeIsSerial.
        if let OnPage1::Added(added) = on_page_1 {
            let first = txn.base.page_count + 1;
            page_count = newest.page_count.checked_add(added).ok_or(Error::BusySnapshot)?;
            // These schemes have no trailers: all that is not reserved is SQLite's.
            let reserved_bytes = home::reserved(&newest.header).map_or(0, u32::from);
            let shape = Shape { reserved_bytes, ..Shape::new(newest.page_bytes, page_count, &newest.header) };
            let by = if keeps(Case::AddedBehindEnd) { newest.page_count - txn.base.page_count } else { 0 };
            pages = renumbered(&pages, shape, first, added, by)?;
            let mut first_page = memory::copy(&db.image(&newest, PageNo::HEADER)?)?;
            home::put_page_count(&mut first_page, page_count);
            pages.insert(PageNo::HEADER, Image::from(first_page));
        }
        let own = OwnPages { pages: std::mem::replace(&mut txn.pages, pages), file_bytes: txn.file_bytes };
        txn.base_limit = newest.page_count;
        txn.file_bytes = u64::from(page_count) * u64::from(newest.page_bytes);
        txn.rebase(newest);
        looked.stage = OptimisticStage::Merged(own);
        Ok(())
    }

    pub(super) fn write_after_merge(&mut self) -> Result<()> {
        match self.looked() {
            // SQLite's cache is behind: it must unlock first.
            Some(ReadSet { stage: OptimisticStage::Committed(_), .. }) => Err(Error::BusySnapshot),
            // SQLite plays its journal back.
            Some(ReadSet { stage: OptimisticStage::Merged(_), .. }) => {
                self.doom();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn doom(&mut self) {
        if let Some(txn) = self.role.txn_mut() {
            txn.doomed = true;
        }
    }

    /// A rejected transaction cannot commit all the same (invariant I7, rule MergeIsSerial).
    pub(super) fn check_commit(&self) -> Result<()> {
        if self.role.is_doomed() { Err(Error::BusySnapshot) } else { Ok(()) }
    }

    pub(super) fn is_merged(&self) -> bool {
        matches!(self.looked(), Some(ReadSet { stage: OptimisticStage::Merged(_), .. }))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnPage1 {
    Counters,
    Added(u32),
    More,
}

/// Whether everything read or written is unchanged in `newest`. Returns the changes to page 1.
fn still_holds(db: &Database, txn: &Txn, looked: &FxHashSet<PageNo>, newest: &State) -> Result<OnPage1> {
    let base = &txn.base;
    // Removed pages have no newer image in the table.
    let cut = txn.base_limit < base.page_count || newest.page_count < base.page_count;
    if cut || newest.page_bytes != base.page_bytes || newest.kind != base.kind {
        return Err(Error::BusySnapshot);
    }
    let page_count =
        u32::try_from(txn.file_bytes / u64::from(base.page_bytes.max(1))).map_err(|_| Error::BusySnapshot)?;
    let added = page_count.checked_sub(base.page_count).ok_or(Error::BusySnapshot)?;
    let (now, before) = (db.image(newest, PageNo::HEADER)?, db.image(base, PageNo::HEADER)?);
    let own = txn.pages.get(&PageNo::HEADER);
    let is_same = |but: usize| own.is_none_or(|own| home::same_header(own, &before, but));
    let on_page_1 = match added {
        0 if is_same(home::COUNTERS) => OnPage1::Counters,
        0 => OnPage1::More,
        // Else it used the freelist or changed the schema.
        _ if is_same(home::PAGE_COUNT) && own.and_then(|own| home::page_count(own)) == Some(page_count) => {
            OnPage1::Added(added)
        }
        _ => return Err(Error::BusySnapshot),
    };
    if !home::same_header(&now, &before, if on_page_1 == OnPage1::More { home::COUNTERS } else { home::SIZES }) {
        return Err(Error::BusySnapshot);
    }
    // Pages of others may have the numbers of added ones.
    let is_old = |page: &&PageNo| page.0 <= base.page_count;
    let pages = looked.iter().chain(txn.pages.keys()).filter(is_old);
    if !is_unchanged(db, pages, base.tid) && keeps(Case::UnchangedSince) {
        return Err(Error::BusySnapshot);
    }
    Ok(on_page_1)
}

/// Whether none of `pages`, page 1 apart, has changed since `tid`. That is pinned, so the table of
/// a process that is alone has everything written since; one beside others tells what it lacks.
pub(super) fn is_unchanged<'a>(db: &Database, mut pages: impl Iterator<Item = &'a PageNo>, tid: Tid) -> bool {
    let table = db.table.read();
    let is_newer = |page: &PageNo| table.newest_tid(*page).is_some_and(|newest| newest > tid);
    (!table.is_shared || table.knows_since(tid)) && !pages.any(|page| *page != PageNo::HEADER && is_newer(page))
}
