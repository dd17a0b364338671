//! The files that one SQLite connection has open: how many of them it writes, and whether they have
//! a journal. A transaction over several files commits with a super-journal, and no file hears of
//! it before it is too late for BUSY. `PRAGMA journal_mode=off` without a schema is for all files,
//! and only the main database hears of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// The files of a connection, by its address (`SQLITE_FCNTL_PDB`).
type FilesByConnection = HashMap<usize, Weak<SiblingFiles>>;

/// Of the whole program, so no simulator chooses who gets it.
static KNOWN: LazyLock<Mutex<FilesByConnection>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, FilesByConnection> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SiblingFiles {
    connection: usize,
    written: AtomicUsize,
    /// `PRAGMA journal_mode=off` was the last to choose a rollback journal, for one of them or all.
    off: AtomicBool,
}

impl Drop for SiblingFiles {
    fn drop(&mut self) {
        let mut known = known();
        if known.get(&self.connection).is_some_and(|files| files.strong_count() == 0) {
            known.remove(&self.connection);
        }
    }
}

/// One file among those of its connection.
#[derive(Default)]
pub(crate) struct Siblings {
    files: Option<Arc<SiblingFiles>>,
    writes: bool,
}

impl Siblings {
    /// The connection at this address has opened the file.
    pub(crate) fn of(connection: usize) -> Siblings {
        let mut known = known();
        let files = known.get(&connection).and_then(Weak::upgrade).unwrap_or_else(|| {
            let files =
                Arc::new(SiblingFiles { connection, written: AtomicUsize::new(0), off: AtomicBool::new(false) });
            known.insert(connection, Arc::downgrade(&files));
            files
        });
        Siblings { files: Some(files), writes: false }
    }

    /// The connection writes this file, or does not any more.
    pub(crate) fn set_writes(&mut self, writes: bool) {
        if let Some(files) = self.files.as_ref().filter(|_| self.writes != writes) {
            self.writes = writes;
            if writes {
                files.written.fetch_add(1, Relaxed)
            } else {
                files.written.fetch_sub(1, Relaxed)
            };
        }
    }

    /// A rollback journal was chosen, or none.
    pub(crate) fn set_off(&self, off: bool) {
        if let Some(files) = &self.files {
            files.off.store(off, Relaxed);
        }
    }

    /// Whether none was, for this file or another.
    pub(crate) fn is_off(&self) -> bool {
        self.files.as_ref().is_some_and(|files| files.off.load(Relaxed))
    }

    /// Whether the connection writes other files as well.
    pub(crate) fn spans(&self) -> bool {
        self.writes && self.files.as_ref().is_some_and(|files| files.written.load(Relaxed) > 1)
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        self.set_writes(false);
    }
}
