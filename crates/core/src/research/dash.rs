//! Scheme `dash`: two files that take turns (DASH, database shadowing). A commit writes the file
//! that is not the database, flushes it and exchanges the names; then the other gets the same
//! pages, which the next commit flushes.
//!
//! ```text
//! one file    write T          flush         │ exchange names, flush directory │ write T+1 …
//! the other   (whole, the database)          │                                 │ write T, flushed
//!                                                                               with T+1
//! ```
//!
//! The database's name always leads to a whole state, so recovery just goes on with it. A commit
//! flushes the pages of two transactions. A baseline of the research, for one process.

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::error::{Error, IoContext, Result};
use crate::base::memory;
use crate::base::rules::{Case, keeps};
use crate::base::types::PageNo;
use crate::checkpoint::{fit_length, write_home, write_pages};
use crate::commit::reserve_bytes;
use crate::database::scheme::{Commit, CommitOutcome, Facts, Scheme};
use crate::database::{Database, DatabaseState, HomeFile, LiveDatabase};
use crate::disk::beside;
use crate::disk::stats::{CountedFile, Stats};
use crate::disk::sync::Mutex;
use crate::disk::{DiskFile, FileId};
use crate::log::group::Durability;
use crate::pages::image::Image;
use crate::pages::table::ImageLocation;
use crate::pages::txn::{ChangedPage, PreparedCommit, Txn};
use crate::sqlite_format::home::State;

const RUN_BYTES: usize = 1 << 20;

#[derive(Default)]
pub struct Dash {
    second: Mutex<Option<Second>>,
    id: Mutex<Option<FileId>>,
}

struct Second {
    file: Arc<dyn DiskFile>,
    home: HomeFile,
    /// With the database's name.
    is_named: bool,
}

impl Scheme for Dash {
    fn facts(&self) -> Facts {
        Facts { records: false, in_place: true, checkpoints: false }
    }

    fn prepare(&self, c: &mut Commit<'_>, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        self.make_room(c.db, c.live, state.bytes())?;
        PreparedCommit::of(c.txn, state, changed)
    }

    /// The commit is durable under every `synchronous`.
    fn commit(
        &self,
        c: &mut Commit<'_>,
        state: &Arc<State>,
        prepared: &mut PreparedCommit,
        _durability: Durability,
    ) -> Result<CommitOutcome> {
        let Commit { db, live, txn, .. } = c.parts();
        // For readers meanwhile (invariant I4).
        let before = db.pin(&mut db.inner.lock())?;
        self.turn(db, live, txn, state, &prepared.images).map_err(|e| db.poison(e))?;
        Ok(CommitOutcome::Own(Some(before)))
    }

    fn show(&self, _db: &Database, inner: &mut DatabaseState, state: &Arc<State>, _images: Vec<(PageNo, Image)>) {
        inner.latest = state.clone();
    }

    /// The opened file gets its name back, alone. After an error the names are unknown.
    fn detach(&self, db: &Database, _live: &mut LiveDatabase, _stays: Option<&State>) -> Result<()> {
        let mut second = self.second.lock();
        let Some(shadow) = second.as_mut() else { return Ok(()) };
        if shadow.is_named {
            db.sync_home()?;
            exchange(db, shadow)?;
        }
        *second = None;
        *self.id.lock() = None;
        beside::remove_second(&*db.disk, &db.path)
    }

    fn takes_name(&self, id: FileId) -> bool {
        *self.id.lock() == Some(id)
    }
}

fn path(db: &Database) -> PathBuf {
    beside::second_path(&db.path)
}

impl Dash {
    /// Without room or support everything stays as it was.
    fn make_room(&self, db: &Database, live: &LiveDatabase, bytes: u64) -> Result<()> {
        let mut second = self.second.lock();
        let shadow = match second.as_mut() {
            Some(shadow) => shadow,
            None => {
                let made = self.make(db, &live.home).inspect_err(|_| *self.id.lock() = None);
                let mut made = made.map_err(|e| match e {
                    Error::CantOpen(_) | Error::Full(_) | Error::NoMemory => e,
                    e => db.poison(e),
                })?;
                // Before any commit depends on it.
                if let Err(e) = exchange(db, &mut made) {
                    if !matches!(e, Error::CantOpen(_)) {
                        return Err(db.poison(e));
                    }
                    *self.id.lock() = None;
                    beside::remove_second(&*db.disk, &db.path)?;
                    return Err(e);
                }
                second.insert(made)
            }
        };
        if bytes > shadow.home.room_bytes() {
            let want = reserve_bytes(bytes);
            shadow.file.reserve(want).context(|| db.what("no room for the pages added to the second file of"))?;
            shadow.home.reserved_bytes = want;
        }
        Ok(())
    }

    fn make(&self, db: &Database, home: &HomeFile) -> Result<Second> {
        let what = || db.what("cannot make the second file of");
        let path = path(db);
        beside::remove_second(&*db.disk, &db.path)?;
        let file = db.disk.create_like(&path, &db.path);
        let file = file.map_err(|e| match e.kind() {
            std::io::ErrorKind::PermissionDenied => Error::CantOpen(format!(
                "scheme=dash needs a second file beside {} that belongs to the same user: {e}",
                db.path.display()
            )),
            _ => Error::io(what(), e),
        })?;
        let file = CountedFile::wrap(file, db.stats.clone());
        let filled = fill(db, &*file);
        if filled.is_err() {
            // It would hold the last free blocks.
            beside::remove_second(&*db.disk, &db.path)?;
        }
        filled?;
        db.disk.sync_dir_of(&path).context(what)?;
        // Stock SQLite may find this file under the database's name.
        if !crate::disk::locks::shared(&*file)? {
            return Err(Error::CantOpen(format!("{} is in use", path.display())));
        }
        // Rule StockKeptOut. Where that fails, stock SQLite gets NOTADB.
        let _ = crate::disk::locks::in_use(&*file);
        *self.id.lock() = Some(file.id().context(what)?);
        let bytes = file.len().context(what)?;
        Ok(Second { file, home: HomeFile { bytes, reserved_bytes: 0, ..*home }, is_named: false })
    }

    /// The caller has pinned the state before (invariant I4).
    fn turn(
        &self,
        db: &Database,
        live: &mut LiveDatabase,
        txn: &mut Txn,
        state: &State,
        images: &[(PageNo, Image)],
    ) -> Result<()> {
        let Some(mut shadow) = self.second.lock().take() else {
            return Err(Error::Misuse("a commit that was prepared without a second file".into()));
        };
        if keeps(Case::SlotsAgree) {
            // An older home fits the older slot, and no record tells of this commit.
            live.log.settle_slots()?;
        }
        let log = live.log.file().file.clone();
        let mut pages: Vec<(PageNo, ImageLocation)> =
            images.iter().map(|(page, image)| (*page, ImageLocation::Memory(image.clone()))).collect();
        pages.extend(txn.streamed.in_log().map(|(page, at, _)| (page, ImageLocation::Log(log.clone(), at))));
        pages.sort_unstable_by_key(|(page, _)| *page);
        let done = take_turns(db, live, &mut shadow, state, &pages);
        *self.second.lock() = Some(shadow);
        done?;
        live.home_tid = state.tid;
        live.log.skip(state.tid);
        txn.streamed = Default::default();
        live.log.stream_drop(0)
    }
}

fn fill(db: &Database, file: &dyn DiskFile) -> Result<()> {
    let what = || db.what("cannot copy");
    let mut run = memory::zeros(RUN_BYTES)?;
    let mut at = 0u64;
    loop {
        let read = db.home.read_at(&mut run, at).context(what)?;
        file.write_at(run.get(..read).unwrap_or_default(), at).context(what)?;
        at += read as u64;
        if read < run.len() {
            break;
        }
    }
    // A full disk is a failed flush, too; but nothing depends on this file yet.
    file.sync().context(what)
}

/// `CantOpen` where the names cannot be exchanged.
fn exchange(db: &Database, shadow: &mut Second) -> Result<()> {
    let what = || format!("cannot exchange the names of {} and its second file", db.path.display());
    let second = path(db);
    let (home, other) = (db.home.id().context(what)?, shadow.file.id().context(what)?);
    let expected = if shadow.is_named { [other, home] } else { [home, other] };
    let [named, beside] = [&db.path, &second].map(|path| db.disk.identify(path));
    if [named.context(what)?, beside.context(what)?] != expected.map(Some) {
        // It would become the database, or be removed (rule NameAskedUnderLock).
        let why = "one of them was renamed, removed or replaced while the database was in use";
        return Err(Error::io(what(), std::io::Error::other(why)));
    }
    match db.disk.exchange(&db.path, &second) {
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => {
            return Err(Error::CantOpen(format!(
                "scheme=dash: the file system of {} cannot exchange the names of two files",
                db.path.display()
            )));
        }
        exchanged => exchanged.context(what)?,
    }
    shadow.is_named = !shadow.is_named;
    Stats::add(&db.stats.exchanges, 1);
    if keeps(Case::ExchangeFlushed) {
        Stats::add(&db.stats.flushes, 1);
        db.disk.sync_dir_of(&db.path).context(what)?;
    }
    Ok(())
}

fn take_turns(
    db: &Database,
    live: &mut LiveDatabase,
    shadow: &mut Second,
    state: &State,
    pages: &[(PageNo, ImageLocation)],
) -> Result<()> {
    let home_first = shadow.is_named;
    write(db, live, shadow, home_first, state, pages)?;
    if keeps(Case::FlushedBeforeExchange) {
        let flushed = if home_first { db.home.sync() } else { shadow.file.sync() };
        flushed.map_err(|error| Error::Io { what: db.what("cannot flush"), error })?;
    }
    exchange(db, shadow)?;
    write(db, live, shadow, !home_first, state, pages)
}

fn write(
    db: &Database,
    live: &mut LiveDatabase,
    shadow: &mut Second,
    to_home: bool,
    state: &State,
    pages: &[(PageNo, ImageLocation)],
) -> Result<()> {
    if to_home {
        write_home(db, live, state, pages.to_vec())
    } else {
        write_pages(db, &*shadow.file, &mut shadow.home, state, pages.to_vec())?;
        fit_length(db, &*shadow.file, &mut shadow.home, state)
    }
}
