//! Transactions over several files: committed everywhere or nowhere, by a decision in the log of one of them.
//!
//! ```text
//!  SQLite: super-journal, xSync                     all files commit by their logs, so it stays in memory
//!  FCNTL_SYNC, file by file                         a prepared record in each log, flushed: UNDECIDED
//!  SQLite removes the super-journal                 the decision, durable, in the log of the first file: COMMITTED
//!  FCNTL_COMMIT_PHASETWO, file by file              the record counts, and readers see it
//! ```
//!
//! A prepared record is the last one in its log until it is decided, and names the log where the decision would be. Whoever
//! finds one after its owner has died looks there: without a decision it does not count. Where one of the files cannot commit by its
//! log, SQLite's super-journal is a file as usual, and all of them step aside from their logs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::base::error::Result;
use crate::base::layout::JOURNAL_SUFFIX;
use crate::base::types::{LogOffset, Tid};
use crate::disk::{random, system};
use crate::log::decision::{Decision, DecisionPart};
use crate::log::file::LogFile;
use crate::log::record::Decider;
use crate::log::slot::Slot;

/// Longest super-journal: names of as many files as nobody attaches.
const BYTES_MAX: usize = 1 << 20;

/// A transaction over several files of this process, from the sync of its super-journal to its removal.
pub struct Several {
    /// What the super-journal holds.
    pub journals: Vec<u8>,
    token: u64,
    /// In whose log the decision goes, and that one's session: the first that has a record.
    home: Mutex<Option<(PathBuf, u64)>>,
    decided: AtomicBool,
}

/// A prepared record of this process that is not decided.
pub struct Undecided {
    /// The transaction.
    pub several: Arc<Several>,
    /// Where the record is: its log, under its slot, from and to.
    pub log: LogFile,
    /// See `log`.
    pub slot: Slot,
    /// See `log`.
    pub from: LogOffset,
    /// See `log`.
    pub to: LogOffset,
    /// The transaction that it makes.
    pub tid: Tid,
    /// Whether it was flushed.
    pub flushed: bool,
}

impl Several {
    /// A transaction over the files whose rollback journals are named in `journals`.
    pub fn new(journals: &[u8]) -> Result<Several> {
        let (token, home, decided) = (random()?, Mutex::default(), AtomicBool::new(false));
        Ok(Several { journals: journals.to_vec(), token, home, decided })
    }

    /// What the record of the database at `path` says of its decision, in the log of `session`.
    pub fn decider(&self, path: &Path, session: u64) -> Decider {
        let home = self.home.lock();
        let (home, session) = home.as_ref().map_or((path, session), |(path, session)| (path.as_path(), *session));
        Decider { token: self.token, session, path: seen_from(path, home) }
    }

    /// The database at `path` has its record: the decision goes into its log, unless another one was first.
    pub fn note_prepared(&self, path: &Path, session: u64) {
        self.home.lock().get_or_insert_with(|| (path.to_owned(), session));
    }

    /// Whether the decision is in the log of the database at `path`.
    pub fn is_decided_at(&self, path: &Path) -> bool {
        self.home.lock().as_ref().is_some_and(|(home, _)| home == path)
    }

    /// What is written when it is committed: every file with its record.
    pub fn decision(&self, at: &Path, records: impl Iterator<Item = (PathBuf, u64, Tid, bool)>) -> Decision {
        let mut decision = Decision { token: self.token, flushed: true, files: Vec::new() };
        for (path, session, tid, flushed) in records {
            decision.flushed &= flushed;
            decision.files.push(DecisionPart { path: seen_from(at, &path), session, tid });
        }
        decision
    }

    /// It is committed.
    pub fn set_decided(&self) {
        self.decided.store(true, Ordering::Release);
    }

    /// Whether it is committed.
    pub fn is_decided(&self) -> bool {
        self.decided.load(Ordering::Acquire)
    }
}

/// The databases whose rollback journals a super-journal names; `None` if it names something else.
pub fn databases_of(journals: &[u8]) -> Option<Vec<PathBuf>> {
    if journals.len() > BYTES_MAX {
        return None;
    }
    let names = journals.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| name.strip_suffix(JOURNAL_SUFFIX.as_bytes()).filter(|name| !name.is_empty()))
        .map(|name| name.map(|name| system::path_of(name.to_vec())))
        .collect()
}

/// The path of `other` for the records of the database at `path`: its name alone in the same directory, so that both may be moved.
fn seen_from(path: &Path, other: &Path) -> PathBuf {
    match other.file_name() {
        Some(name) if other.parent() == path.parent() => name.into(),
        _ => other.to_owned(),
    }
}

/// The path that [`seen_from`] has made shorter.
pub fn seen_again(path: &Path, other: &Path) -> PathBuf {
    path.parent().map_or_else(|| other.to_owned(), |directory| directory.join(other))
}
