//! Scheme `off`: pages in place and one flush, without protection. The baselines OFF and OFF_OPT:
//! the cost of a commit if a crash may corrupt the file. Not for data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::error::Result;
use crate::base::types::PageNo;
use crate::checkpoint::{fit_length, write_home, write_pages};
use crate::database::scheme::{Commit, CommitOutcome, Facts, Scheme};
use crate::database::{Database, DatabaseState, LiveDatabase};
use crate::log::group::Durability;
use crate::pages::image::Image;
use crate::pages::table::ImageLocation;
use crate::pages::txn::{ChangedPage, PreparedCommit, Txn};
use crate::sqlite_format::home::State;

pub struct Off;

impl Off {
    const FACTS: Facts = Facts { records: false, in_place: false, checkpoints: false };
}

impl Scheme for Off {
    fn facts(&self) -> Facts {
        Off::FACTS
    }

    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        PreparedCommit::of(c.txn, state, changed)
    }

    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut PreparedCommit,
        durability: Durability,
    ) -> Result<CommitOutcome> {
        let Commit { db, live, txn, .. } = c.parts();
        overwrite(db, live, txn, state, &prepared.images, durability).map_err(|e| db.poison(e))?;
        Ok(CommitOutcome::Own(None))
    }

    fn show(&self, _db: &Database, inner: &mut DatabaseState, state: &Arc<State>, _images: Vec<(PageNo, Image)>) {
        inner.latest = state.clone();
    }

    fn detach(&self, _db: &Database, live: &mut LiveDatabase, stays: Option<&State>) -> Result<()> {
        // Change counters are not in the log, and perhaps not in home.
        stays.map_or(Ok(()), |state| live.log.checkpointed(state, Off::FACTS, state.page_bytes.max(512)))
    }
}

fn overwrite(
    db: &Database,
    live: &mut LiveDatabase,
    txn: &mut Txn,
    state: &State,
    images: &[(PageNo, Image)],
    durability: Durability,
) -> Result<()> {
    let log = live.log.file().file.clone();
    let mut pages: Vec<(PageNo, ImageLocation)> =
        images.iter().map(|(page, image)| (*page, ImageLocation::Memory(image.clone()))).collect();
    pages.extend(txn.streamed.in_log().map(|(page, at, _)| (page, ImageLocation::Log(log.clone(), at))));
    pages.sort_unstable_by_key(|(page, _)| *page);
    let alone = db.inner.lock().connections == 1;
    if alone {
        // No image is kept for the committer's own snapshot.
        db.epoch.fetch_add(1, Ordering::SeqCst);
        write_pages(db, &*db.home, &mut live.home, state, pages)?;
        fit_length(db, &*db.home, &mut live.home, state)?;
    } else {
        // For readers meanwhile (invariant I4).
        let before = db.pin(&mut db.inner.lock())?;
        write_home(db, live, state, pages)?;
        db.unpin(&mut db.inner.lock(), &before)?;
    }
    if durability == Durability::Flushed {
        db.sync_home()?;
    }
    live.home_tid = state.tid;
    live.log.skip(state.tid);
    txn.streamed = Default::default();
    live.log.stream_drop(0)
}
