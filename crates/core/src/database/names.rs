//! The name of a database, and what lies beside it under names made of that: a rollback journal, the log.

use std::path::PathBuf;
use std::sync::Arc;

use super::Database;
use crate::beside;
use crate::disk::{DiskFile, OpenMode};
use crate::error::{Error, IoContext, Result};
use crate::journal::super_journal;
use crate::log::file::{LogFile, path_of_session};

/// The rollback journal of stock SQLite beside a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackJournal {
    /// There is none.
    Absent,
    /// It was cut, or zeroed: it is of a transaction that has ended.
    Cold,
    /// It waits to be rolled back, of a process that crashed.
    Hot,
}

impl Database {
    /// The rollback journal of the database.
    pub fn rollback_journal(&self) -> Result<RollbackJournal> {
        let what = || self.what("cannot look for the rollback journal of");
        let path = self.journal_path();
        // One beside another file that has the name is that file's.
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

    /// Whether a rollback journal waits to be rolled back.
    pub fn has_hot_journal(&self) -> Result<bool> {
        Ok(self.rollback_journal()? == RollbackJournal::Hot)
    }

    /// Opens the real rollback journal. `what` says what cannot be done.
    pub fn open_journal(&self, mode: OpenMode, what: impl FnOnce() -> String) -> Result<Arc<dyn DiskFile>> {
        beside::open(&*self.disk, self.journal_path(), mode, &*self.home, what)
    }

    /// Before SQLite judges a journal by whether the super-journal that it names is there: what was done to that name
    /// stays so through a power cut (rule JournalInOrder). Else the first file would be kept as committed, and
    /// the next one rolled back after it.
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

    /// The names beside home are on the disk, those of home and of its log, and no journal that was removed. They need no flush if they
    /// are as they were when `log` was told so (rule NamesFlushedOnce).
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

    /// Where the log of `session` is.
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

    /// `Moved` if another file may have the name: what lies beside that is not this one's (rule LogFoundBySession).
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
