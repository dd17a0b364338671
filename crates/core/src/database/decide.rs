//! The decision of a transaction over several files (`log/several.rs`): looked for by the finder of
//! its prepared record, kept, cancelled, placed.

use std::path::{Path, PathBuf};

use crate::base::error::{IoContext, Result};
use crate::base::layout::decision::SECTOR_BYTES;
use crate::base::rules::{Case, keeps};
use crate::database::Database;
use crate::disk::OpenMode;
use crate::log::decision::{Decision, DecisionPart, room};
use crate::log::file::{LogFile, aside_path, base, is_aside, log_path};
use crate::log::record::Decider;
use crate::log::several::seen_again;
use crate::log::slot::Slot;

impl Database {
    /// The owner of the prepared record is dead (rule PreparedThenDecided). `own`: the log with the
    /// record.
    pub fn is_committed(&self, decider: &Decider, own: &LogFile, slot: &Slot) -> Result<bool> {
        if !keeps(Case::UndecidedAsks) {
            return Ok(true);
        }
        Ok(match self.look_for_decision(decider, own, slot, OpenMode::ReadOnly)? {
            DecisionLookup::Decision(..) => true,
            DecisionLookup::Log => false,
            // The other file and its log are gone. Nothing depends on the answer, so the record
            // counts.
            DecisionLookup::Nothing => true,
        })
    }

    /// A dead owner may not have flushed its decision, on which others now depend (rule
    /// PreparedThenDecided).
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
        let mut found = DecisionLookup::Nothing;
        let mut look = |path: &Path| -> Result<Option<DecisionLookup>> {
            let Some(log) = LogFile::open(&*self.disk, path, mode)? else { return Ok(None) };
            let slots = log.slots()?;
            if path == named || slots.iter().any(|slot| slot.session == decider.session) {
                found = DecisionLookup::Log;
            }
            slots.first().map_or(Ok(None), |slot| decision_in(log, slot, decider.token))
        };
        for path in [&aside_path(&named, decider.session), &named] {
            if let Some(decision) = look(path)? {
                return Ok(decision);
            }
        }
        for path in self.logs_beside(&named)? {
            if let Some(decision) = look(&path)? {
                return Ok(decision);
            }
        }
        Ok(found)
    }

    /// All that were set aside from this name, also by sessions behind the decider's. All files,
    /// where the name is gone.
    fn logs_beside(&self, named: &Path) -> Result<Vec<PathBuf>> {
        let what = || format!("cannot look for logs beside {}", named.display());
        let is_gone = !self.disk.exists(named).context(what)?;
        let mut logs = self.disk.names_beside(named).context(what)?;
        logs.retain(|path| is_gone || (is_aside(path) && base(path) == base(named)));
        Ok(logs)
    }

    /// Durable. An error poisons.
    pub fn cancel(&self) -> Result<()> {
        let mut undecided = self.undecided.lock();
        let Some(prepared) = &*undecided else { return Ok(()) };
        // A failed write may have left the record.
        self.inner.lock().check()?;
        prepared.log.erase(&prepared.slot, prepared.from, prepared.to).map_err(|e| self.poison(e))?;
        *undecided = None;
        Ok(())
    }

    /// The place is over decisions that no file needs (rule PreparedThenDecided), as `is_settled`
    /// says of one file.
    pub fn room_to_decide(
        &self,
        decision: &Decision,
        mut is_settled: impl FnMut(&Path, &DecisionPart, bool) -> Result<bool>,
    ) -> Result<Option<u64>> {
        let member = self.member();
        let (Some(member), Some(bytes)) = (member.as_ref(), decision.encode()) else { return Ok(None) };
        let slot = member.tail.lock().slot.clone();
        room(&member.log.decisions(&slot)?, bytes.len() / SECTOR_BYTES, |old| {
            let mut files = old.files.iter();
            let settled = files.try_fold(true, |all, file| {
                Ok(all && is_settled(&seen_again(&self.path, &file.path), file, old.flushed)?)
            });
            Ok(settled? || !keeps(Case::DecisionKept))
        })
    }

    /// Whether a record follows `part`, durable if `flushed`: then no process asks for its
    /// decision. `None`: unknown here.
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

enum DecisionLookup {
    /// The log and the position.
    Decision(LogFile, u64, Decision),
    Log,
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

pub fn is_over(log: &LogFile, part: &DecisionPart) -> Result<bool> {
    let Some(slot) = log.slots()?.into_iter().next() else { return Ok(false) };
    let over = !slot.live || slot.session != part.session || slot.base_tid >= part.tid;
    if over {
        log.flush()?;
    }
    Ok(over)
}
