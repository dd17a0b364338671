//! The rollback journal's file: in memory, or the real one while aside.

use super::Connection;
use super::role::{RealJournal, Role};
use crate::base::error::{IoContext, Result};
use crate::database::Database;
use crate::disk::OpenMode;

impl Connection {
    /// xOpen of the journal.
    pub fn journal_open(&mut self) -> Result<()> {
        self.note_begun();
        if let Role::Aside(aside) = &mut self.role
            && aside.journal.is_none()
        {
            let opened = open_real(&self.db).map(|journal| aside.journal = Some(journal));
            return self.noted(opened);
        }
        Ok(())
    }

    fn note_begun(&mut self) {
        if let Some(writer) = self.role.writer_mut() {
            writer.has_just_begun = false;
        }
    }

    /// xRead of the journal.
    pub fn journal_read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = match self.role.real_journal() {
            Some(RealJournal { file, .. }) => {
                file.read_at(buf, offset).context(|| self.db.what("cannot read the rollback journal of"))
            }
            None => {
                if self.waits_with_others() {
                    // SQLite rolls back, and removes the super-journal unasked.
                    let reopened = self.reopen();
                    self.noted(reopened)?;
                }
                if self.role.is_doomed() {
                    // Stepping aside failed behind the real journal: SQLite must not believe that
                    // it rolled back (rule RollbackIsReal).
                    let checked = self.db.inner.lock().check();
                    self.noted(checked)?;
                }
                self.journal.read_to_roll_back(buf, offset, |path| {
                    let what = || self.db.what("cannot look for the super-journal of");
                    Ok(self.engine.several(path).is_none() && !self.db.disk.exists(path).context(what)?)
                })
            }
        };
        self.noted(read)
    }

    /// xWrite of the journal.
    pub fn journal_write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        self.note_begun();
        let db = &self.db;
        let written = match self.role.real_journal() {
            Some(RealJournal { file, .. }) => {
                file.write_at(data, offset).context(|| db.what("cannot write the rollback journal of"))
            }
            None => self.journal.write_at(data, offset, || {
                db.disk.temp_file(&db.path).context(|| db.what("cannot make a temporary file for the rollback of"))
            }),
        };
        self.noted(written)
    }

    /// xTruncate of the journal.
    pub fn journal_truncate(&mut self, len: u64) -> Result<()> {
        let cut = match self.role.real_journal() {
            Some(RealJournal { file, .. }) => {
                file.set_len(len).context(|| self.db.what("cannot shorten the rollback journal of"))
            }
            None => {
                self.journal.truncate(len);
                Ok(())
            }
        };
        self.noted(cut)
    }

    /// xFileSize of the journal.
    pub fn journal_size(&mut self) -> Result<u64> {
        let size = match self.role.real_journal() {
            Some(RealJournal { file, .. }) => {
                file.len().context(|| self.db.what("cannot read the length of the rollback journal of"))
            }
            None => Ok(self.journal.len()),
        };
        self.noted(size)
    }

    /// xSync of the journal.
    pub fn journal_sync(&mut self) -> Result<()> {
        let Some(RealJournal { file, is_new }) = self.role.real_journal() else {
            self.journal.sync();
            return Ok(());
        };
        // Rule JournalInOrder.
        let named = |()| if *is_new { self.db.disk.sync_dir_of(self.db.journal_path()) } else { Ok(()) };
        let synced = file.sync().and_then(named).context(|| self.db.what("cannot flush the rollback journal of"));
        *is_new &= synced.is_err();
        self.noted(synced)
    }

    /// xClose of the journal.
    pub fn journal_close(&mut self) -> Result<()> {
        self.journal.truncate(0);
        Ok(())
    }

    /// xDelete of the journal.
    pub fn journal_delete(&mut self, sync_dir: bool) -> Result<()> {
        self.journal.truncate(0);
        let Role::Aside(aside) = &mut self.role else { return Ok(()) };
        aside.journal = None;
        let db = self.db.clone();
        let path = db.journal_path();
        let removed = db.disk.remove(path).context(|| db.what("cannot remove the rollback journal of"));
        self.noted(removed)?;
        if sync_dir {
            let synced = db.disk.sync_dir_of(path).context(|| db.what("cannot flush the directory of"));
            self.noted(synced)?;
        }
        Ok(())
    }

    /// xAccess of the journal: only a real one counts.
    pub fn journal_exists(&mut self) -> Result<bool> {
        if !self.is_aside() {
            return Ok(false);
        }
        let exists = self.db.disk.exists(self.db.journal_path());
        let exists = exists.context(|| self.db.what("cannot look for the rollback journal of"));
        self.noted(exists)
    }
}

fn open_real(db: &Database) -> Result<RealJournal> {
    let what = || format!("cannot open the rollback journal {}", db.journal_path().display());
    let is_new = !db.disk.exists(db.journal_path()).context(what)?;
    Ok(RealJournal { file: db.open_journal(OpenMode::Create, what)?, is_new })
}
