//! Recovery on request: `onewrite recover` for a database that no process has open.
//!
//! SQLite's EXCLUSIVE lock on home and the log's attach lock keep all others out from the first
//! look to the end. Everything that can be refused is refused before the first write.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::options::Options;
use crate::base::types::Tid;
use crate::database::{Database, Schemes};
use crate::disk::locks;
use crate::disk::{Disk, DiskFile, LockKind, OpenMode};
use crate::log::file::{LogFile, aside_path, base, is_aside, log_path};
use crate::pairing::evidence::HomeAndLog;
use crate::pairing::replay::Report;
use crate::pairing::{Left, Pairing};
use crate::recovery::recover::{self, open_log};
use crate::session::mark::lock_log;
use crate::shared::kept;
use crate::shared::users::DatabaseUser;
use crate::sqlite_format::home::{self, FileKind, State};

/// A process that has just closed the file is waited for, or a program that it starts and that has
/// a copy of the file until then.
const PATIENCE: Duration = Duration::from_millis(500);

fn keep_others_out(home: &dyn DiskFile, writable: bool) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if locks::shared(home)? && (!writable || locks::exclusive(home)?) {
            return Ok(true);
        }
        locks::none(home)?;
        if Instant::now() >= deadline {
            return Ok(false);
        }
        clock::sleep(Duration::from_millis(5));
    }
}

/// A database kept from all others.
pub struct Repair {
    db: Database,
    disk: Arc<dyn Disk>,
    writable: bool,
}

/// The relation of a database and a log.
#[derive(Debug)]
pub struct Judgement {
    /// Whether they belong together.
    pub pairing: Pairing,
    /// The recovery and its state, if they do and the mark is on.
    pub recovered: Option<(Report, State)>,
    /// Why a marked database cannot be used.
    pub refusal: Option<Error>,
    /// The log's live records, if the mark is off.
    pub left: Option<Left>,
}

impl Repair {
    /// [`Repair::open`] with a table of schemes.
    pub fn open_with(disk: Arc<dyn Disk>, path: &Path, mode: OpenMode, schemes: Schemes) -> Result<Repair> {
        let what = || format!("cannot open the database {}", path.display());
        let path = disk.resolve(path).context(what)?;
        let file = disk.open(&path, mode).context(what)?;
        let writable = mode != OpenMode::ReadOnly;
        let db = Database::new(disk.clone(), &path, file, Options::default(), schemes);
        if !keep_others_out(&*db.home, writable)? {
            return Err(Error::Busy(format!(
                "{} is in use by another process: close every program that has it open, then try again",
                path.display()
            )));
        }
        Ok(Repair { db, disk, writable })
    }

    /// [`Repair::beside`] with a table of schemes.
    pub fn beside_with(disk: Arc<dyn Disk>, path: &Path, schemes: Schemes) -> Result<Repair> {
        let what = || format!("cannot open the database {}", path.display());
        let path = disk.resolve(path).context(what)?;
        let file = disk.open(&path, OpenMode::ReadOnly).context(what)?;
        let db = Database::new(disk.clone(), &path, file, Options::default(), schemes);
        Ok(Repair { db, disk, writable: false })
    }

    /// Path of the file, without links.
    pub fn path(&self) -> &Path {
        &self.db.path
    }

    /// Path of its log, which need not exist; of a marked home, wherever the session's log is.
    pub fn log_path(&self) -> PathBuf {
        let of_mark = self.mark().ok().flatten().and_then(|session| self.db.path_of_log(session).ok());
        of_mark.unwrap_or_else(|| log_path(&self.db.path))
    }

    /// Path of the hot rollback journal, if any.
    pub fn hot_journal(&self) -> Result<Option<PathBuf>> {
        Ok(self.db.has_hot_journal()?.then(|| self.db.journal_path().to_owned()))
    }

    /// Session id of the mark, if it is on.
    pub fn mark(&self) -> Result<Option<u64>> {
        Ok(self.db.read_state()?.1)
    }

    /// State of home, as if unmarked.
    pub fn state(&self) -> Result<State> {
        let what = || self.db.what("cannot read");
        let mut first = [0; at::HEADER_BYTES];
        let n = self.db.home.read_at(&mut first, 0).context(what)?;
        if home::mark(&first).is_some() && home::page_count(&first) == Some(0) {
            return Ok(State::empty(Tid::HOME)); // Only the mark: the first checkpoint has not been.
        }
        if let Some(mark) = home::mark(&first) {
            let in_page = self.db.scheme_with_trailers();
            let found = in_page.map(|in_page| in_page.page_count_without_log(&self.db, &first, mark.session));
            if let Some(page_count) = found.transpose()?.flatten() {
                home::put_page_count(&mut first, page_count);
            }
        }
        home::unmark(&mut first);
        let bytes = self.db.home.len().context(what)?;
        Ok(State::of_home(first.get(..n).unwrap_or_default(), bytes))
    }

    /// The processes that use the database, as far as this user may look at them.
    pub fn users(&self) -> Result<Vec<DatabaseUser>> {
        self.db.users()
    }

    /// Logs of earlier files of this name.
    pub fn logs_aside(&self) -> Vec<PathBuf> {
        let beside = self.disk.names_beside(&self.db.path).unwrap_or_default();
        beside.into_iter().filter(|path| is_aside(path) && base(path) == self.db.path).collect()
    }

    /// The log, locked until dropped, whatever it contains.
    pub fn lock_log(&self) -> Result<Option<LogFile>> {
        let (mode, kind) = if self.writable {
            (OpenMode::ReadWrite, LockKind::Exclusive)
        } else {
            (OpenMode::ReadOnly, LockKind::Shared)
        };
        let log = LogFile::open(&*self.disk, &self.log_path(), mode)?;
        match log.iter().try_for_each(|log| lock_log(log, kind, Duration::ZERO)) {
            // A user would have marked this file first: the log is an earlier file's.
            Err(Error::Busy(_)) if self.mark()?.is_none() => Ok(None),
            locked => locked.map(|()| log),
        }
    }

    /// The effect of [`Repair::recover`], without a write.
    pub fn preview(&self, session: u64, accept_loss: bool) -> Result<(Report, State)> {
        let log = self.open_log(session, OpenMode::ReadOnly)?;
        let (_, found) = self.look(&log, accept_loss)?;
        found
    }

    fn look(&self, log: &LogFile, accept_loss: bool) -> Result<(Pairing, Result<(Report, State)>)> {
        let mut evidence = HomeAndLog::new(&self.db, log)?;
        let pairing = evidence.judge(accept_loss)?;
        if pairing == Pairing::ClosedMarkBack
            && let Some(closed) = evidence.closed()?
        {
            return Ok((pairing, Ok((Report::default(), closed.state))));
        }
        let replayed = self.check_journal().and_then(|()| evidence.into_replayed(&pairing));
        Ok((pairing, replayed.map(|(replayed, ..)| (replayed.report, replayed.state))))
    }

    /// Whether the database and `log` belong together. Writes nothing; the caller has locked both.
    ///
    /// # Errors
    ///
    /// A file that cannot be read.
    pub fn judge(&self, log: &LogFile) -> Result<Judgement> {
        if self.mark()?.is_some() {
            let (pairing, found) = self.look(log, false)?;
            let (recovered, refusal) = match found {
                Ok(found) => (Some(found), None),
                Err(e) => (None, Some(e)),
            };
            return Ok(Judgement { pairing, recovered, refusal, left: None });
        }
        let mut evidence = HomeAndLog::new(&self.db, log)?;
        let pairing = evidence.judge(false)?;
        Ok(Judgement { pairing, recovered: None, refusal: None, left: evidence.found_left() })
    }

    /// A marked home with a journal and no log is of two copies: the error says so.
    fn open_log(&self, session: u64, mode: OpenMode) -> Result<LogFile> {
        open_log(&self.db, session, mode).or_else(|e| self.check_journal().and(Err(e)))
    }

    /// The name of `session`'s log, once set aside.
    pub fn path_aside(&self, session: u64) -> PathBuf {
        aside_path(&log_path(&self.db.path), session)
    }

    /// Replays the log, writes home and takes the mark off. With `accept_loss`, a damaged record
    /// ends the log.
    pub fn recover(self, session: u64, accept_loss: bool) -> Result<Report> {
        let db = &self.db;
        let log = self.open_log(session, OpenMode::ReadWrite)?;
        let mut evidence = HomeAndLog::new(db, &log)?;
        let pairing = evidence.judge(accept_loss)?;
        if pairing == Pairing::ClosedMarkBack {
            recover::end_again(db, &log, &mut evidence)?;
            return Ok(Report::default());
        }
        self.check_journal()?;
        let (replayed, slot, _) = evidence.into_replayed(&pairing)?;
        kept::remove(&*self.disk, &log.path, session)?;
        let report = replayed.report.clone();
        {
            let mut writer = db.writer.lock();
            let mut inner = db.inner.lock();
            let options = inner.options.clone();
            recover::take_over(db, &mut writer, &mut inner, log, &slot, replayed, &options)?;
        }
        db.detach()?;
        Ok(report)
    }

    /// Takes the mark off alone: home stays as at the last checkpoint, and the log is given up.
    pub fn unmark(self) -> Result<()> {
        let db = &self.db;
        let what = || db.what("cannot write");
        let state = self.state()?;
        if let Some(session) = self.mark()? {
            kept::remove(&*self.disk, &log_path(&db.path), session)?;
        }
        if state.kind == FileKind::Empty {
            db.home.set_len(0).context(what)?;
            return db.sync_home();
        }
        if state.kind != FileKind::Database {
            return Err(Error::Corrupt(format!(
                "{} has {} bytes, fewer than its header states: the mark stays on. Put a whole copy in its place",
                db.path.display(),
                db.home.len().context(what)?
            )));
        }
        db.write_header(&db.with_asked(state.final_header())?)
    }

    fn check_journal(&self) -> Result<()> {
        match self.hot_journal()? {
            None => Ok(()),
            Some(journal) => Err(Error::CantOpen(format!(
                "{} carries onewrite's mark and has a rollback journal beside it ({}): one of the two belongs to \
                 another copy. Move the journal away if the database was last used through onewrite",
                self.db.path.display(),
                journal.display()
            ))),
        }
    }

    /// Whether another process has SQLite's SHARED, as all have in WAL mode.
    pub fn has_others(&self) -> Result<bool> {
        locks::has_others(&*self.db.home)
    }

    /// The open database file.
    pub fn home(&self) -> &Arc<dyn DiskFile> {
        &self.db.home
    }
}
