//! Transactions over several files: committed in all or in none, by a decision in one file's log
//! (`docs/commit.md` has the steps).
//!
//! A prepared record is its log's last until decided, and names the log of the decision, where a
//! process looks if the owner died.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::error::Result;
use crate::base::layout::JOURNAL_SUFFIX;
use crate::base::types::{LogOffset, Tid};
use crate::disk::sync::Mutex;
use crate::disk::{random, system};
use crate::log::decision::{Decision, DecisionPart};
use crate::log::file::LogFile;
use crate::log::record::Decider;
use crate::log::slot::Slot;

const BYTES_MAX: usize = 1 << 20;

/// From the sync of its super-journal to its removal.
pub struct Several {
    pub journals: Vec<u8>,
    token: u64,
    /// Gets the decision: the first database with a record, and its log's session.
    home: Mutex<Option<(PathBuf, u64)>>,
    decided: AtomicBool,
}

/// This process's undecided record.
pub struct Undecided {
    pub several: Arc<Several>,
    pub log: LogFile,
    pub slot: Slot,
    pub from: LogOffset,
    pub to: LogOffset,
    pub tid: Tid,
    pub flushed: bool,
}

impl Several {
    pub fn new(journals: &[u8]) -> Result<Several> {
        let (token, home, decided) = (random()?, Mutex::default(), AtomicBool::new(false));
        Ok(Several { journals: journals.to_vec(), token, home, decided })
    }

    pub fn decider(&self, path: &Path, session: u64) -> Decider {
        let home = self.home.lock();
        let (home, session) = home.as_ref().map_or((path, session), |(path, session)| (path.as_path(), *session));
        Decider { token: self.token, session, path: seen_from(path, home) }
    }

    /// The first database so noted gets the decision.
    pub fn note_prepared(&self, path: &Path, session: u64) {
        self.home.lock().get_or_insert_with(|| (path.to_owned(), session));
    }

    pub fn is_decided_at(&self, path: &Path) -> bool {
        self.home.lock().as_ref().is_some_and(|(home, _)| home == path)
    }

    pub fn decision(&self, at: &Path, records: impl Iterator<Item = (PathBuf, u64, Tid, bool)>) -> Decision {
        let mut decision = Decision { token: self.token, flushed: true, files: Vec::new() };
        for (path, session, tid, flushed) in records {
            decision.flushed &= flushed;
            decision.files.push(DecisionPart { path: seen_from(at, &path), session, tid });
        }
        decision
    }

    pub fn set_decided(&self) {
        self.decided.store(true, Ordering::Release);
    }

    pub fn is_decided(&self) -> bool {
        self.decided.load(Ordering::Acquire)
    }
}

/// `None` if another file is named.
pub fn databases_of(journals: &[u8]) -> Option<Vec<PathBuf>> {
    if journals.len() > BYTES_MAX {
        return None;
    }
    let names = journals.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| name.strip_suffix(JOURNAL_SUFFIX.as_bytes()).filter(|name| !name.is_empty()))
        .map(|name| name.map(system::path_of))
        .collect()
}

/// The name alone in the same directory, so that both files can move.
fn seen_from(path: &Path, other: &Path) -> PathBuf {
    match other.file_name() {
        Some(name) if other.parent() == path.parent() => name.into(),
        _ => other.to_owned(),
    }
}

/// Undoes [`seen_from`].
pub fn seen_again(path: &Path, other: &Path) -> PathBuf {
    path.parent().map_or_else(|| other.to_owned(), |directory| directory.join(other))
}
