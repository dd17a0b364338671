//! The name of a database, and the files beside it whose names derive from it: rollback journal and
//! log.

use std::path::PathBuf;
use std::sync::Arc;

use super::Database;
use crate::base::error::{Error, IoContext, Result};
use crate::disk::beside;
use crate::disk::{DiskFile, NamesStamp, OpenMode};
use crate::log::file::{LogFile, path_of_session};
use crate::shared::users::{DatabaseUser, users};
use crate::sqlite_format::journal::super_journal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollbackJournal {
    Absent,
    Cold,
    Hot,
}

impl Database {
    pub fn rollback_journal(&self) -> Result<RollbackJournal> {
        let what = || self.what("cannot look for the rollback journal of");
        let path = self.journal_path();
        // Else it is the file's that has the name.
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

    /// `what`: for the error.
    pub fn open_journal(&self, mode: OpenMode, what: impl FnOnce() -> String) -> Result<Arc<dyn DiskFile>> {
        beside::open(&*self.disk, self.journal_path(), mode, &*self.home, what)
    }

    /// SQLite asks whether the super-journal exists: flushed, the answer survives a power cut
    /// between two files (rule JournalInOrder).
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

    /// Another program may have written the log that was found, and left its bytes in the cache. A
    /// seal tells whether it did, and where the file system makes none, a change of names. The log
    /// stays: another file may need its decisions (rule PreparedThenDecided).
    pub fn flush_found_log(&self, log: &LogFile) -> Result<()> {
        if log.sealed()?.is_some() || (log.has_no_seal()? && self.names_noted(log)?.1) {
            return Ok(());
        }
        let flushed = log.flush();
        if flushed.is_err() {
            log.write_all_again()?;
        }
        flushed
    }

    /// Flushes names of home, its log and removed journals, unless `log` notes them flushed (rule
    /// NamesFlushedOnce).
    pub fn flush_names(&self, log: &LogFile) -> Result<()> {
        let (stamp, are_noted) = self.names_noted(log)?;
        if are_noted {
            return Ok(());
        }
        let what = || self.what("cannot flush the directory of");
        self.disk.sync_dir_of(&self.path).context(what)?;
        match stamp.filter(|stamp| matches!(self.disk.names_stamp(&self.path), Ok(Some(now)) if now == *stamp)) {
            Some(stamp) => log.note_names(stamp),
            None => Ok(()),
        }
    }

    /// As they are now, and whether `log` notes them flushed.
    fn names_noted(&self, log: &LogFile) -> Result<(Option<NamesStamp>, bool)> {
        let stamp = self.disk.names_stamp(&self.path).context(|| self.what("cannot look at the directory of"))?;
        let are_noted = stamp.is_some() && log.noted_names()? == stamp;
        Ok((stamp, are_noted))
    }

    pub fn path_of_log(&self, session: u64) -> Result<PathBuf> {
        let home = self.home.id().context(|| self.what("cannot look at"))?;
        Ok(path_of_session(&*self.disk, &self.path, home, session))
    }

    /// As far as this user may look at them.
    pub fn users(&self) -> Result<Vec<DatabaseUser>> {
        let Some(mark) = self.read_mark()? else { return users(&self.files(), None) };
        let log = LogFile::open(&*self.disk, &self.path_of_log(mark.session)?, OpenMode::ReadOnly)?;
        users(&self.files(), log.as_ref().map(|log| (log, mark.session)))
    }

    /// Whether the name leads to the opened file.
    pub fn has_name(&self) -> Result<bool> {
        let what = || self.what("cannot look at");
        let named = self.disk.identify(&self.path).context(what)?;
        let Some(named) = named else { return Ok(false) };
        Ok(named == self.home.id().context(what)? || self.takes_name(named))
    }

    /// `Moved` if files beside the name may be another's (rule LogFoundBySession).
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
