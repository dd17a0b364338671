//! The decision of a transaction over several files (`log/several.rs`), seen from one database: looked for by those that find its prepared
//! record, kept, cancelled, and placed.

use std::path::Path;

use crate::base::error::{IoContext, Result};
use crate::base::layout::decision::SECTOR_BYTES;
use crate::base::rules::{Case, keeps};
use crate::database::Database;
use crate::disk::OpenMode;
use crate::log::decision::{Decision, DecisionPart, room};
use crate::log::file::{LogFile, aside_path, log_path};
use crate::log::record::Decider;
use crate::log::several::seen_again;
use crate::log::slot::Slot;

impl Database {
    /// Whether the transaction of a prepared record is committed, for whoever finds that one and nobody to finish it (rule
    /// PreparedThenDecided). `own`: the log that the record is in, and its slot. Nothing is written.
    pub fn is_committed(&self, decider: &Decider, own: &LogFile, slot: &Slot) -> Result<bool> {
        if !keeps(Case::UndecidedAsks) {
            return Ok(true);
        }
        Ok(match self.look_for_decision(decider, own, slot, OpenMode::ReadOnly)? {
            DecisionLookup::Decision(..) => true,
            DecisionLookup::Log => false,
            // Where the other file was removed with its log, nobody can tell, and nothing else depends on it: the record is kept.
            DecisionLookup::Nothing => true,
        })
    }

    /// Before something depends on it: a decision that was found stays, also through a power cut. Its owner may have died before
    /// the flush (rule PreparedThenDecided).
    pub fn keep_decision(&self, decider: &Decider, own: &LogFile, slot: &Slot) -> Result<()> {
        match self.look_for_decision(decider, own, slot, OpenMode::ReadWrite)? {
            DecisionLookup::Decision(log, position, decision) => {
                log.decide(position, &Decision { flushed: true, ..decision })
            }
            DecisionLookup::Log | DecisionLookup::Nothing => Ok(()),
        }
    }

    fn look_for_decision(
        &self,
        decider: &Decider,
        own: &LogFile,
        slot: &Slot,
        mode: OpenMode,
    ) -> Result<DecisionLookup> {
        if decider.session == slot.session {
            return Ok(decision_in(own.clone(), slot, decider.token)?.unwrap_or(DecisionLookup::Log));
        }
        let named = log_path(&seen_again(&self.path, &decider.path));
        let mut logs = vec![aside_path(&named, decider.session), named.clone()];
        if !self.disk.exists(&named).context(|| format!("cannot look for the log {}", named.display()))? {
            // It may have another name since.
            let beside = self.disk.names_beside(&named);
            logs.extend(beside.context(|| format!("cannot look for logs beside {}", named.display()))?);
        }
        let mut found = DecisionLookup::Nothing;
        for path in logs {
            let Some(log) = LogFile::open(&*self.disk, &path, mode)? else { continue };
            let slots = log.slots()?;
            if path == named || slots.iter().any(|slot| slot.session == decider.session) {
                found = DecisionLookup::Log;
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
    /// (rule PreparedThenDecided). `is_settled` says so of one of their files.
    pub fn room_to_decide(
        &self,
        decision: &Decision,
        mut is_settled: impl FnMut(&Path, &DecisionPart, bool) -> Result<bool>,
    ) -> Result<Option<u64>> {
        let (Some(member), Some(bytes)) = (self.member(), decision.encode()) else { return Ok(None) };
        let slot = member.tail.lock().slot.clone();
        room(&member.log.decisions(&slot)?, bytes.len() / SECTOR_BYTES, |old| {
            let mut files = old.files.iter();
            let settled = files.try_fold(true, |all, file| {
                Ok(all && is_settled(&seen_again(&self.path, &file.path), file, old.flushed)?)
            });
            Ok(settled? || !keeps(Case::DecisionKept))
        })
    }

    /// Whether the record `part` of a transaction that is committed is followed by another one in the log of this database, durable
    /// if it is to be `flushed`: nobody asks for its decision any more. `None`: this process cannot say.
    pub fn is_followed(&self, part: &DecisionPart, flushed: bool) -> Option<bool> {
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
enum DecisionLookup {
    /// It is there: in this log, at this position.
    Decision(LogFile, u64, Decision),
    /// It is not in the log where it would be.
    Log,
    /// That log is not there.
    Nothing,
}

fn decision_in(log: LogFile, slot: &Slot, token: u64) -> Result<Option<DecisionLookup>> {
    for sector in log.decisions(slot)? {
        if let Some((decision, _)) = sector.decision.filter(|(decision, _)| decision.token == token) {
            return Ok(Some(DecisionLookup::Decision(log, sector.position, decision)));
        }
    }
    Ok(None)
}

/// The same as [`Database::is_followed`] for the log at `path`, of a database that this process does not use.
pub fn is_over(log: &LogFile, part: &DecisionPart) -> Result<bool> {
    let Some(slot) = log.slots()?.into_iter().next() else { return Ok(false) };
    let over = !slot.live || slot.session != part.session || slot.base_tid >= part.tid;
    if over {
        // It may be known in the page cache alone.
        log.flush()?;
    }
    Ok(over)
}
