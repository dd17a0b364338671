//! The name of a database, and the files beside it whose names derive from it: rollback journal and
//! log.

use std::path::PathBuf;
use std::sync::Arc;

use super::Database;
use crate::base::error::{Error, IoContext, Result};
use crate::disk::beside;
use crate::disk::{DiskFile, OpenMode};
use crate::log::file::{LogFile, path_of_session};
use crate::sqlite_format::journal::super_journal;

/// The rollback journal of stock SQLite beside a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackJournal {
    Absent,
    /// Cut or zeroed: its transaction has ended.
    Cold,
    /// A crashed process left it to be rolled back.
    Hot,
}

impl Database {
    pub fn rollback_journal(&self) -> Result<RollbackJournal> {
        let what = || self.what("cannot look for the rollback journal of");
        let path = self.journal_path();
        // A journal beside another file that has the name is that file's.
        if !self.disk.exists(path).context(what)? || !self.has_name()? {
            return Ok(RollbackJournal::Absent);
        }
        let journal = match self.open_journal(OpenMode::ReadOnly, what) {
            Ok(journal) => journal,
            Err(Error::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(RollbackJournal::Absent);
            }
            Err(e) => return Err(e),
        };
        let mut first = [0];
        let is_hot = journal.read_at(&mut first, 0).context(what)? == 1 && first != [0];
        Ok(if is_hot { RollbackJournal::Hot } else { RollbackJournal::Cold })
    }

    pub fn has_hot_journal(&self) -> Result<bool> {
        Ok(self.rollback_journal()? == RollbackJournal::Hot)
    }

    /// Opens the real rollback journal. `what` says what cannot be done, for the error.
    pub fn open_journal(&self, mode: OpenMode, what: impl FnOnce() -> String) -> Result<Arc<dyn DiskFile>> {
        beside::open(&*self.disk, self.journal_path(), mode, &*self.home, what)
    }

    /// Flushes the directory of the super-journal that the journal names. SQLite judges the journal
    /// by whether that name exists, and a power cut between two files must not change the answer
    /// (rule JournalInOrder).
    pub fn settle_super_journal(&self) -> Result<()> {
        let what = || self.what("cannot read the rollback journal of");
        let journal = self.open_journal(OpenMode::ReadOnly, what)?;
        let len = journal.len().context(what)?;
        let named = super_journal(len, |buf, offset| journal.read_at(buf, offset).context(what))?;
        match named.map(|path| self.disk.sync_dir_of(&path)) {
            Some(Err(e)) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(self.what("cannot flush the directory of the super-journal of"), e))
            }
            _ => Ok(()),
        }
    }

    /// Flushes the names of home and of its log, and the removal of journals; not if they are as
    /// `log` notes them flushed (rule NamesFlushedOnce).
    pub fn flush_names(&self, log: &LogFile) -> Result<()> {
        let what = || self.what("cannot flush the directory of");
        let stamp = self.disk.names_stamp(&self.path).context(what)?;
        if stamp.is_some() && log.noted_names()? == stamp {
            return Ok(());
        }
        self.disk.sync_dir_of(&self.path).context(what)?;
        match stamp.filter(|stamp| matches!(self.disk.names_stamp(&self.path), Ok(Some(now)) if now == *stamp)) {
            Some(stamp) => log.note_names(stamp),
            None => Ok(()),
        }
    }

    pub fn path_of_log(&self, session: u64) -> Result<PathBuf> {
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        Ok(path_of_session(&*self.disk, &self.path, home, session))
    }

    /// Whether the name of the database leads to the file that was opened.
    pub fn has_name(&self) -> Result<bool> {
        let what = || self.what("cannot look at");
        let named = self.disk.identify(&self.path).context(what)?;
        let Some(named) = named else { return Ok(false) };
        // Two files may take turns in having the name.
        Ok(named == self.home.id().context(what)? || self.takes_name(named))
    }

    /// `Moved` if another file may have the name: files beside it are then not this one's (rule
    /// LogFoundBySession).
    pub fn check_name(&self) -> Result<()> {
        if self.has_name()? {
            return Ok(());
        }
        Err(Error::Moved(format!(
            "{} is another file now than the one that was opened, which was renamed or replaced: close it and open it again",
            self.path.display()
        )))
    }
}
