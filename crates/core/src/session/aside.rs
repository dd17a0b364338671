//! Stepping aside: for the rest of one transaction a connection is the plain VFS below.
//!
//! The log cannot commit such a transaction (`docs/commit.md`). A real journal and a log with live
//! records never exist together (invariants I1, I3).

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, IoContext, Result};
use crate::base::memory;
use crate::base::rules::{Case, keeps};
use crate::base::types::{PageNo, whole_pages};
use crate::checkpoint::checkpoint;
use crate::database::queue::ConnectionId;
use crate::database::{Database, LiveDatabase, Phase};
use crate::disk::beside;
use crate::disk::stats::Stats;
use crate::disk::{DiskFile, OpenMode, locks};
use crate::log::ring::StreamedImages;
use crate::pages::txn::Txn;
use crate::session::mark::MarkRemoval;
use crate::sqlite_format::home;
use crate::sqlite_format::journal::VirtualJournal;

const HEAD_BYTES: usize = 12;

/// LIVE → ASIDE. The caller has the writer's place. BUSY_SNAPSHOT if others read: SQLite rolls back
/// instead of retrying the half-done commit.
pub fn step_aside(
    db: &Database,
    writer: &mut Option<LiveDatabase>,
    txn: &Txn,
    journal: &VirtualJournal,
    me: ConnectionId,
) -> Result<Arc<dyn DiskFile>> {
    // The journal will lie beside that name.
    db.check_name()?;
    reserve(db, me).map_err(stale)?;
    let log = match enter_aside(db, writer, me) {
        Ok(log) => log,
        Err(e) => {
            release(db, me)?;
            return Err(e);
        }
    };
    let unmarked = {
        let asked = db.asks_for_wal()?;
        let mut inner = db.inner.lock();
        db.take_off_mark(writer, &mut inner, StreamedImages::Keep, MarkRemoval::Durable).map(|()| {
            inner.phase = Phase::Aside(me);
            // SQLite writes the page 1 that it was shown.
            if asked {
                db.ask_for_wal(asked);
            }
        })
    };
    // Home needs the log while the mark may be on the disk.
    let done = unmarked.and_then(|()| {
        let done = plain_commit(db, txn, journal, &log.0);
        // If this fails, the next session does it.
        let _ = log.0.set_len(log.1);
        done
    });
    done.map_err(|e| if db.inner.lock().phase == Phase::Unmarked { e } else { db.poison(e) })
}

/// Plain BUSY would make SQLite retry the half-done commit.
pub fn stale(e: Error) -> Error {
    match e {
        Error::Busy(why) => Error::NotAlone(why),
        e => e,
    }
}

/// No other begins to read until [`release`] or [`step_aside`]. `BusySnapshot` if one reads, `Busy`
/// if another process has the file open; nothing has changed then.
pub fn reserve(db: &Database, me: ConnectionId) -> Result<()> {
    let member = {
        let mut inner = db.inner.lock();
        // Rule StoreHasIt.
        if inner.ships() {
            return Err(Error::NotAlone(format!(
                "commits to {} wait for a store: several files, another page size and WAL mode are not for it",
                db.path.display()
            )));
        }
        if inner.reserved == Some(me) {
            return Ok(());
        }
        if inner.snapshot_count() > 1 {
            return Err(Error::BusySnapshot);
        }
        inner.reserved = Some(me);
        inner.member.clone()
    };
    let alone = member.map_or(Ok(()), |member| db.be_alone(&member, Duration::ZERO));
    if alone.is_err() {
        db.inner.lock().reserved = None;
    }
    alone
}

pub fn release(db: &Database, me: ConnectionId) -> Result<()> {
    let member = {
        let mut inner = db.inner.lock();
        if inner.reserved != Some(me) {
            return Ok(());
        }
        inner.reserved = None;
        inner.member.clone()
    };
    member.map_or(Ok(()), |member| member.not_alone())
}

/// Returns the log's file, and its length once closed.
fn enter_aside(db: &Database, writer: &mut Option<LiveDatabase>, me: ConnectionId) -> Result<(Arc<dyn DiskFile>, u64)> {
    let Some(live) = writer.as_mut() else { return Err(Error::Misuse("stepping aside without a log".into())) };
    checkpoint(db, live, StreamedImages::Keep)?;
    let mut inner = db.inner.lock();
    if inner.snapshot_count() > 1 {
        return Err(Error::BusySnapshot);
    }
    if !locks::exclusive_in_use(&*db.home)? {
        return Err(Error::BusySnapshot);
    }
    inner.phase = Phase::Aside(me);
    inner.reserved = None;
    Ok((live.log.file().file.clone(), live.log.closed_bytes()))
}

fn plain_commit(
    db: &Database,
    txn: &Txn,
    journal: &VirtualJournal,
    log: &Arc<dyn DiskFile>,
) -> Result<Arc<dyn DiskFile>> {
    let what = || db.what("cannot write");
    let mut buf = memory::zeros(txn.page_bytes as usize)?;
    // A full disk fails here: taking the mark off gave back the room that home had.
    let room = db.home.reserve(txn.file_bytes).context(|| db.what("no room for the pages added to"));
    let real = match room.and_then(|()| write_journal(db, journal)) {
        Ok(real) => real,
        Err(e) => {
            // Home is whole: only this transaction is lost.
            let _ = db.disk.remove(db.journal_path());
            come_back(db)?;
            return Err(e);
        }
    };
    // From here on the next program rolls a crash back.
    for (page, image) in &txn.pages {
        if *page == PageNo::HEADER {
            // SQLite counts on from its cache, home from what it has shown (rule
            // OneNumberOneState).
            buf.copy_from_slice(image);
            home::put_counter(&mut buf, txn.base.change_counter.wrapping_add(3));
            db.home.write_at(&buf, 0).context(what)?;
        } else {
            db.home.write_at(image, page.offset(txn.page_bytes)).context(what)?;
        }
    }
    for (page, at, _) in txn.streamed.in_log() {
        if log.read_at(&mut buf, at).context(what)? < buf.len() {
            return Err(Error::log_ends_within(page));
        }
        db.home.write_at(&buf, page.offset(txn.page_bytes)).context(what)?;
    }
    // Pages removed and added again without a write are zeros.
    let end = whole_pages(txn.file_bytes, txn.page_bytes);
    for page in (txn.base_limit.min(txn.base.page_count) + 1..=end).map(PageNo) {
        if !txn.pages.contains_key(&page) && txn.streamed.get(page).is_none() {
            buf.fill(0);
            db.home.write_at(&buf, page.offset(txn.page_bytes)).context(what)?;
        }
    }
    db.home.set_len(txn.file_bytes).context(what)?;
    db.sync_home()?;
    Stats::add(&db.stats.asides, 1);
    Ok(real)
}

/// Magic and count come after a flush: SQLite's checksum takes every 200th byte, and could miss a
/// lost sector.
fn write_journal(db: &Database, journal: &VirtualJournal) -> Result<Arc<dyn DiskFile>> {
    let what = || db.what("cannot write the rollback journal of");
    let path = db.journal_path();
    let real = db.open_journal(OpenMode::Create, what)?;
    real.set_len(0).context(what)?;
    let mut buf = memory::zeros(256 << 10)?;
    let mut at = 0;
    let mut head = Vec::new();
    while at < journal.len() {
        let n = journal.read_at(&mut buf, at)?;
        if at == 0 {
            head = buf.get(..n.min(HEAD_BYTES)).unwrap_or_default().to_vec();
            if keeps(Case::JournalHeadLast) {
                buf.get_mut(..head.len()).unwrap_or_default().fill(0);
            }
        }
        real.write_at(buf.get(..n).unwrap_or_default(), at).context(what)?;
        at += n as u64;
    }
    real.sync().context(what)?;
    db.disk.sync_dir_of(path).context(what)?;
    real.write_at(&head, 0).context(what)?;
    real.sync().context(what)?;
    Ok(real)
}

/// ASIDE → UNMARKED. A journal that SQLite left (TRUNCATE, PERSIST) goes, durable, lest it come
/// back beside a log. SHARED stays.
pub fn come_back(db: &Database) -> Result<()> {
    let what = || db.what("cannot remove the rollback journal of");
    let path = db.journal_path();
    if db.has_name()? && !db.has_hot_journal()? {
        beside::remove(&*db.disk, path).context(what)?;
        if keeps(Case::JournalRemovalFlushed) {
            db.disk.sync_dir_of(path).context(what)?;
        }
    }
    let mut inner = db.inner.lock();
    locks::downgrade(&*db.home)?;
    inner.set_state(Arc::new(db.read_state()?.0));
    inner.phase = Phase::Unmarked;
    Ok(())
}
