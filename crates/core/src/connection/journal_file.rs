//! The rollback journal's file: in memory, or the real one while aside.

use super::Connection;
use crate::disk::{OpenMode, read_all};
use crate::error::{IoContext, Result};

impl Connection {
    /// xOpen of the rollback journal.
    pub fn journal_open(&mut self) -> Result<()> {
        self.has_just_begun = false;
        if self.aside && self.real_journal.is_none() {
            let db = self.db.clone();
            let what = || format!("cannot open the rollback journal {}", db.journal_path().display());
            let existed = db.disk.exists(db.journal_path()).context(what);
            self.journal_is_new = !self.noted(existed)?;
            self.real_journal = Some(self.noted(db.open_journal(OpenMode::Create, what))?);
        }
        Ok(())
    }

    /// xRead of the rollback journal.
    pub fn journal_read_at(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = match &self.real_journal {
            Some(file) => {
                read_all(&**file, buf, offset).context(|| self.db.what("cannot read the rollback journal of"))
            }
            None => {
                if self.waits_with_others() {
                    // SQLite rolls back, and removes the super-journal behind this file.
                    let reopened = self.reopen();
                    self.noted(reopened)?;
                }
                if self.doomed {
                    // Stepping aside failed behind its real journal: SQLite must not believe that it rolled back (rule
                    // NoFalseRollback).
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

    /// xWrite of the rollback journal.
    pub fn journal_write_at(&mut self, data: &[u8], offset: u64) -> Result<()> {
        self.has_just_begun = false;
        let db = self.db.clone();
        let written = match &self.real_journal {
            Some(file) => file.write_at(data, offset).context(|| db.what("cannot write the rollback journal of")),
            None => self.journal.write_at(data, offset, || {
                db.disk.temp_file(&db.path).context(|| db.what("cannot make a temporary file for the rollback of"))
            }),
        };
        self.noted(written)
    }

    /// xTruncate of the rollback journal.
    pub fn journal_truncate(&mut self, len: u64) -> Result<()> {
        let cut = match &self.real_journal {
            Some(file) => file.set_len(len).context(|| self.db.what("cannot shorten the rollback journal of")),
            None => {
                self.journal.truncate(len);
                Ok(())
            }
        };
        self.noted(cut)
    }

    /// xFileSize of the rollback journal.
    pub fn journal_size(&mut self) -> Result<u64> {
        let size = match &self.real_journal {
            Some(file) => file.len().context(|| self.db.what("cannot read the length of the rollback journal of")),
            None => Ok(self.journal.len()),
        };
        self.noted(size)
    }

    /// xSync of the rollback journal.
    pub fn journal_sync(&mut self) -> Result<()> {
        let synced = match &self.real_journal {
            Some(file) => {
                let named =
                    |()| if self.journal_is_new { self.db.disk.sync_dir_of(self.db.journal_path()) } else { Ok(()) };
                file.sync().and_then(named).context(|| self.db.what("cannot flush the rollback journal of"))
            }
            None => {
                self.journal.sync();
                return Ok(());
            }
        };
        self.journal_is_new &= synced.is_err();
        self.noted(synced)
    }

    /// xClose of the rollback journal.
    pub fn journal_close(&mut self) -> Result<()> {
        Ok(())
    }

    /// xDelete of the rollback journal's name.
    pub fn journal_delete(&mut self, sync_dir: bool) -> Result<()> {
        self.journal.truncate(0);
        if !self.aside {
            return Ok(());
        }
        let db = self.db.clone();
        let path = db.journal_path();
        self.real_journal = None;
        let removed = db.disk.remove(path).context(|| db.what("cannot remove the rollback journal of"));
        self.noted(removed)?;
        if sync_dir {
            let synced = db.disk.sync_dir_of(path).context(|| db.what("cannot flush the directory of"));
            self.noted(synced)?;
        }
        Ok(())
    }

    /// xAccess of the rollback journal's name: only a real one counts.
    pub fn journal_exists(&mut self) -> Result<bool> {
        if !self.aside {
            return Ok(false);
        }
        let exists = self.db.disk.exists(self.db.journal_path());
        let exists = exists.context(|| self.db.what("cannot look for the rollback journal of"));
        self.noted(exists)
    }
}
