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

use crate::database::Database;
use crate::database::mark::random;
use crate::disk::{OpenMode, system};
use crate::error::{IoContext, Result};
use crate::layout::JOURNAL_SUFFIX;
use crate::layout::decision::SECTOR_BYTES;
use crate::log::decision::{Decision, Part, room};
use crate::log::file::{LogFile, aside_path, log_path};
use crate::log::record::Decider;
use crate::log::slot::Slot;
use crate::rules::{Rule, keeps};
use crate::types::{LogOffset, Tid};

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
            decision.files.push(Part { path: seen_from(at, &path), session, tid });
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

impl Database {
    /// Whether the transaction of a prepared record is committed, for whoever finds that one and nobody to finish it (rule
    /// UndecidedAsks). `own`: the log that the record is in, and its slot. Nothing is written.
    pub fn is_committed(&self, decider: &Decider, own: &LogFile, slot: &Slot) -> Result<bool> {
        if !keeps(Rule::UndecidedAsks) {
            return Ok(true);
        }
        Ok(match self.look_for_decision(decider, own, slot, OpenMode::ReadOnly)? {
            Found::Decision(..) => true,
            Found::Log => false,
            // Where the other file was removed with its log, nobody can tell, and nothing else depends on it: the record is kept.
            Found::Nothing => true,
        })
    }

    /// Before something depends on it: a decision that was found stays, also through a power cut. Its owner may have died before
    /// the flush (rule DecisionFlushed).
    pub fn keep_decision(&self, decider: &Decider, own: &LogFile, slot: &Slot) -> Result<()> {
        match self.look_for_decision(decider, own, slot, OpenMode::ReadWrite)? {
            Found::Decision(log, position, decision) => log.decide(position, &Decision { flushed: true, ..decision }),
            Found::Log | Found::Nothing => Ok(()),
        }
    }

    fn look_for_decision(&self, decider: &Decider, own: &LogFile, slot: &Slot, mode: OpenMode) -> Result<Found> {
        if decider.session == slot.session {
            return Ok(decision_in(own.clone(), slot, decider.token)?.unwrap_or(Found::Log));
        }
        let named = log_path(&seen_again(&self.path, &decider.path));
        let mut logs = vec![aside_path(&named, decider.session), named.clone()];
        if !self.disk.exists(&named).context(|| format!("cannot look for the log {}", named.display()))? {
            // It may have another name since.
            let beside = self.disk.names_beside(&named);
            logs.extend(beside.context(|| format!("cannot look for logs beside {}", named.display()))?);
        }
        let mut found = Found::Nothing;
        for path in logs {
            let Some(log) = LogFile::open(&*self.disk, &path, mode)? else { continue };
            let slots = log.slots()?;
            if path == named || slots.iter().any(|slot| slot.session == decider.session) {
                found = Found::Log;
            }
            if let Some(slot) = slots.first()
                && let Some(decision) = decision_in(log, slot, decider.token)?
            {
                return Ok(decision);
            }
        }
        Ok(found)
    }

    /// The prepared record of this process does not count, and never will: it is erased, durable. An error poisons.
    pub fn cancel(&self) -> Result<()> {
        let mut undecided = self.undecided.lock();
        let Some(prepared) = &*undecided else { return Ok(()) };
        // A write that failed may have left it.
        self.inner.lock().check()?;
        prepared.log.erase(&prepared.slot, prepared.from, prepared.to).map_err(|e| self.poison(e))?;
        *undecided = None;
        Ok(())
    }

    /// Where `decision` may go in the log of this database, if it fits and there is room: over those that nobody asks for any more
    /// (rule DecisionKept). `is_settled` says so of one of their files.
    pub fn room_to_decide(
        &self,
        decision: &Decision,
        mut is_settled: impl FnMut(&Path, &Part, bool) -> Result<bool>,
    ) -> Result<Option<u64>> {
        let (Some(member), Some(bytes)) = (self.member(), decision.encode()) else { return Ok(None) };
        let slot = member.tail.lock().slot.clone();
        room(&member.log.decisions(&slot)?, bytes.len() / SECTOR_BYTES, |old| {
            let mut files = old.files.iter();
            let settled = files.try_fold(true, |all, file| {
                Ok(all && is_settled(&seen_again(&self.path, &file.path), file, old.flushed)?)
            });
            Ok(settled? || !keeps(Rule::DecisionKept))
        })
    }

    /// Whether the record `part` of a transaction that is committed is followed by another one in the log of this database, durable
    /// if it is to be `flushed`: nobody asks for its decision any more. `None`: this process cannot say.
    pub fn is_followed(&self, part: &Part, flushed: bool) -> Option<bool> {
        let inner = self.inner.lock();
        let member = inner.member.as_ref()?;
        if inner.check().is_err() {
            return Some(false);
        }
        let slot = member.tail.lock().slot.clone();
        let reached = if flushed { member.words.flushed() } else { member.words.written() };
        Some(slot.session != part.session || slot.base_tid >= part.tid || reached > part.tid)
    }
}

/// What is known of a decision.
enum Found {
    /// It is there: in this log, at this position.
    Decision(LogFile, u64, Decision),
    /// It is not in the log where it would be.
    Log,
    /// That log is not there.
    Nothing,
}

fn decision_in(log: LogFile, slot: &Slot, token: u64) -> Result<Option<Found>> {
    for sector in log.decisions(slot)? {
        if let Some((decision, _)) = sector.decision.filter(|(decision, _)| decision.token == token) {
            return Ok(Some(Found::Decision(log, sector.position, decision)));
        }
    }
    Ok(None)
}

/// The same as [`Database::is_followed`] for the log at `path`, of a database that this process does not use.
pub fn is_over(log: &LogFile, part: &Part) -> Result<bool> {
    let Some(slot) = log.slots()?.into_iter().next() else { return Ok(false) };
    let over = !slot.live || slot.session != part.session || slot.base_tid >= part.tid;
    if over {
        // It may be known in the page cache alone.
        log.flush()?;
    }
    Ok(over)
}
