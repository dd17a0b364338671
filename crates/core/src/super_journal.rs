//! Super-journals: the files of SQLite by which a transaction over several databases commits everywhere or nowhere.
//!
//! ```text
//!  SQLite: super-journal, flushed with its name     lists the rollback journals of all files
//!  FCNTL_SYNC, file by file                         a prepared record in each log, flushed: UNDECIDED
//!  SQLite removes the super-journal                 decides for all of them, for whoever asks afterwards
//!  FCNTL_COMMIT_PHASETWO, file by file              the record counts, and readers see it
//! ```
//!
//! A prepared record is the last one in its log until it is decided. Whoever finds one after its owner has died asks whether
//! the super-journal is there: then it is erased, durable, before the super-journal may go; else it counts.

use std::path::{Path, PathBuf};

use crate::database::Database;
use crate::disk::{Disk, OpenMode, system};
use crate::error::{Error, IoContext, Result};
use crate::journal::super_journal;
use crate::layout::JOURNAL_SUFFIX;
use crate::log::file::{LogFile, log_path};
use crate::log::slot::Slot;
use crate::memory;
use crate::rules::{Rule, keeps};
use crate::types::LogOffset;

/// Longest super-journal that is read: names of as many files as nobody attaches.
const BYTES_MAX: u64 = 1 << 20;

/// A prepared record of this process that is not decided.
pub struct Undecided {
    /// What decides it.
    pub super_journal: PathBuf,
    /// Where the record is: its log, under its slot, from and to.
    pub log: LogFile,
    /// See `log`.
    pub slot: Slot,
    /// See `log`.
    pub from: LogOffset,
    /// See `log`.
    pub to: LogOffset,
}

impl Database {
    /// Whether the transaction that `path` decides is committed, for whoever finds its record and nobody to finish it: the
    /// super-journal is gone, for good (rules UndecidedAsks, SuperJournalNameFlushed).
    pub fn is_gone(&self, path: &Path) -> Result<bool> {
        if !keeps(Rule::UndecidedAsks) {
            return Ok(true);
        }
        if self.disk.exists(path).context(|| self.what_of("look for", path))? {
            return Ok(false);
        }
        match self.disk.sync_dir_of(path) {
            // With its directory.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(true),
            synced => synced.context(|| self.what_of("flush the directory of", path)).map(|()| true),
        }
    }

    fn what_of(&self, verb: &str, path: &Path) -> String {
        format!("cannot {verb} the super-journal {} of the database {}", path.display(), self.path.display())
    }

    /// The prepared record of this process does not count, and never will: it is erased, durable. An error poisons (rule
    /// CancelledBeforeSuperJournalGoes).
    pub fn cancel(&self) -> Result<()> {
        let mut undecided = self.undecided.lock();
        let Some(prepared) = &*undecided else { return Ok(()) };
        // A write that failed may have left it.
        self.inner.lock().check()?;
        if keeps(Rule::CancelledBeforeSuperJournalGoes) {
            prepared.log.erase(&prepared.slot, prepared.from, prepared.to).map_err(|e| self.poison(e))?;
        }
        *undecided = None;
        Ok(())
    }

    /// Removes a super-journal after a crash, once the record of this database that named it is erased, if no other file
    /// needs it any more. It stays where that is not certain: it is in nobody's way.
    pub fn forget_super_journal(&self, path: &Path) {
        let ours = self.journal_path();
        let Ok(journals) = journals(&*self.disk, path) else { return };
        // What does not name this database is no super-journal of it.
        let is_ours = journals.iter().any(|journal| journal == ours);
        let is_needed = |journal: &PathBuf| journal != ours && is_needed_by(&*self.disk, path, journal).unwrap_or(true);
        if is_ours && !journals.iter().any(is_needed) {
            // Whoever comes next sees to it.
            let _ = self.disk.remove(path);
        }
    }
}

/// The rollback journals that a super-journal names.
pub fn journals(disk: &dyn Disk, path: &Path) -> Result<Vec<PathBuf>> {
    let what = || format!("cannot read the super-journal {}", path.display());
    let file = disk.open(path, OpenMode::ReadOnly).context(what)?;
    let bytes = file.len().context(what)?;
    if bytes > BYTES_MAX {
        return Err(Error::Corrupt(format!("{} is no super-journal: it has {bytes} bytes", path.display())));
    }
    let mut names = memory::zeros_of(bytes)?;
    let read = file.read_at(&mut names, 0).context(what)?;
    names.truncate(read);
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| system::path_of(name.to_vec())).collect())
}

/// The database that a rollback journal belongs to.
pub fn database_of(journal: &Path) -> Option<&Path> {
    let name = system::bytes_of(journal.as_os_str()).strip_suffix(JOURNAL_SUFFIX.as_bytes())?;
    (!name.is_empty()).then(|| Path::new(system::name_of(name)))
}

/// Whether a file waits for the super-journal at `path`: its rollback journal names it, or the last record of its log.
fn is_needed_by(disk: &dyn Disk, path: &Path, journal: &Path) -> Result<bool> {
    let what = || format!("cannot read {}", journal.display());
    match disk.open(journal, OpenMode::ReadOnly) {
        Ok(file) => {
            let named = super_journal(file.len().context(what)?, |buf, at| file.read_at(buf, at).context(what))?;
            if named.as_deref() == Some(path) {
                return Ok(true);
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io(what(), e)),
    }
    let Some(database) = database_of(journal) else { return Ok(true) };
    let Some(log) = LogFile::open(disk, &log_path(database), OpenMode::ReadOnly)? else { return Ok(false) };
    let mut needed = false;
    for slot in log.slots()?.iter().filter(|slot| slot.live) {
        log.scan_decided(
            slot,
            |named| {
                needed |= named == path;
                Ok(true)
            },
            |_| Ok(()),
        )?;
    }
    if !needed {
        // Who erased its record may have died before the flush: the record must not come back when the super-journal is gone.
        log.flush()?;
    }
    Ok(needed)
}
