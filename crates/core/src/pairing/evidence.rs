//! The facts about a database file and its log that `judge.rs` asks for, and the outcome of its
//! answer.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use crate::base::error::{Error, Result};
use crate::base::layout::home as at;
use crate::base::types::{LogOffset, Tid};
use crate::database::Database;
use crate::disk::random;
use crate::log::file::{LiveRecords, LogFile};
use crate::log::ring::{COUNTER_STEP, TID_STEP};
use crate::log::slot::Slot;
use crate::pairing::replay::{Led, Replayed, replay};
use crate::pairing::{self, Evidence, Lead, Left, Pairing};
use crate::sqlite_format::home::{self, DatabaseHeader, FileKind, HomeMark, State};

/// The caller has both to itself.
pub struct HomeAndLog<'a> {
    db: &'a Database,
    log: &'a LogFile,
    first: DatabaseHeader,
    home_bytes: u64,
    home_counter: u32,
    /// Valid ones, the newest first.
    pub slots: Vec<Slot>,
    /// The records' end by a dead process's words (rule EndTold).
    told: Option<Tid>,
    /// A hot one, if known.
    journal: Option<bool>,
    /// The replayed slot comes with it.
    led: Option<(Slot, Option<Replayed>)>,
    error: Option<Error>,
    left: Option<Left>,
}

/// A session that ended in order, whose mark a power cut brought back (rule CloseProven).
pub struct Closed {
    pub mark: HomeMark,
    /// State of home.
    pub state: State,
    pub newest: Slot,
    /// A hot journal of SQLite without onewrite, from after the close.
    pub waits: bool,
}

impl<'a> HomeAndLog<'a> {
    pub fn new(db: &'a Database, log: &'a LogFile) -> Result<HomeAndLog<'a>> {
        let mut first = [0; at::HEADER_BYTES];
        let (read, home_bytes) = db.read_first(&mut first)?;
        let (state, _) = crate::database::state_of(read, home_bytes);
        let slots = log.slots()?;
        Ok(HomeAndLog {
            db,
            log,
            first,
            home_bytes,
            home_counter: state.change_counter,
            slots,
            told: None,
            journal: None,
            led: None,
            error: None,
            left: None,
        })
    }

    pub fn ending(self, told: Option<Tid>) -> Self {
        HomeAndLog { told, ..self }
    }

    /// The caller found none.
    pub fn without_journal(self) -> Self {
        HomeAndLog { journal: Some(false), ..self }
    }

    /// With `accept_loss`, damage ends the records of a continuing session.
    pub fn judge(&mut self, accept_loss: bool) -> Result<Pairing> {
        let pairing = pairing::judge(self)?;
        let Some((slot, None)) = &self.led else { return Ok(pairing) };
        if pairing != Pairing::Damaged || !accept_loss {
            return Ok(pairing);
        }
        let slot = slot.clone();
        Ok(match self.lead(slot.clone(), true) {
            Lead::There => Pairing::Fits(slot),
            Lead::HomeOlder => Pairing::HomeOlder,
            Lead::HomeNewer => Pairing::HomeNewer,
            Lead::Damaged => Pairing::Damaged,
        })
    }

    /// The work that [`Pairing::ClosedMarkBack`] leaves.
    pub fn closed(&mut self) -> Result<Option<Closed>> {
        let Some((mark, newest)) = self.mark().zip(self.slots.first().cloned()) else { return Ok(None) };
        let mut state = State::without_mark(self.first, self.home_bytes);
        if pairing::is_next(&newest, &mark) {
            // A close changes no page, so home's page 1 may have an older counter.
            state.change_counter = newest.change_counter.wrapping_sub(2);
        }
        Ok(Some(Closed { mark, state, newest, waits: self.has_journal()? }))
    }

    /// Known for an unmarked home, if asked for.
    pub fn found_left(&self) -> Option<Left> {
        self.left
    }

    /// The slot that counts and all slots come with it; else the error names the mismatch.
    pub fn into_replayed(self, pairing: &Pairing) -> Result<(Replayed, Slot, Vec<Slot>)> {
        match (pairing, self.led) {
            (Pairing::Fits(_) | Pairing::NeverBegun, Some((slot, Some(replayed)))) => Ok((replayed, slot, self.slots)),
            (_, led) => Err(HomeAndLog { led, ..self }.refusal(pairing)),
        }
    }

    fn refusal(mut self, pairing: &Pairing) -> Error {
        if let (Pairing::Damaged, Some(e)) = (pairing, self.error.take()) {
            return e;
        }
        let (home, path) = (self.db.path.display(), self.log.path.display());
        let newest = self.slots.first();
        let session = self.mark().map_or(0, |mark| mark.session);
        match (pairing, newest) {
            (_, None) => self.log.other_version().unwrap_or_else(Some).unwrap_or_else(|| {
                Error::Corrupt(format!(
                    "the log {path} has no valid header slot: it is damaged, cut short or not a log. {home} needs it; `onewrite \
                     recover --without-log` gives the transactions in it up"
                ))
            }),
            (Pairing::HomeOlder, Some(newest)) if !newest.live && newest.session == session => {
                Error::CantOpen(format!(
                    "{home} carries onewrite's mark, but its log {path} was closed in order: the database file is an older copy. \
                 Use the newer copy, or `onewrite recover --without-log` to take the mark off this one"
                ))
            }
            (Pairing::HomeOlder, _) => self.copied_apart("older", ""),
            (Pairing::HomeNewer, _) => {
                self.copied_apart("newer", ", or the newest transactions in the log are damaged")
            }
            (_, Some(newest)) => Error::CantOpen(format!(
                "the log {path} belongs to another database or to an older state of this one (session {:016x}, {home} has \
                 {session:016x}): put the right log back beside the database",
                newest.session
            )),
        }
    }

    /// No state ever was where the log leads from home (rule HomeFitsLog).
    fn copied_apart(&self, age: &str, or_else: &str) -> Error {
        Error::CantOpen(format!(
            "{} is {age} than its log {}: the two were copied at different moments, with a checkpoint between{or_else}. Nothing was \
             changed. Copy both again while no process uses the database, or copy it with SQLite's backup or VACUUM INTO. To make \
             do with the file alone, as its last checkpoint left it: `onewrite recover --without-log`",
            self.db.path.display(),
            self.log.path.display()
        ))
    }

    fn lead(&mut self, slot: Slot, accept_loss: bool) -> Lead {
        let led = replay(self.db, self.log, &slot, self.told, accept_loss);
        let (lead, replayed) = match led {
            Ok(Led::There(replayed)) => (Lead::There, Some(*replayed)),
            Ok(Led::HomeOlder) => (Lead::HomeOlder, None),
            Ok(Led::HomeNewer) => (Lead::HomeNewer, None),
            Err(e) => {
                self.error = Some(e);
                (Lead::Damaged, None)
            }
        };
        self.led = Some((slot, replayed));
        lead
    }
}

impl Evidence for HomeAndLog<'_> {
    fn mark(&self) -> Option<HomeMark> {
        home::mark(&self.first)
    }

    fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn has_journal(&mut self) -> Result<bool> {
        match self.journal {
            Some(known) => Ok(known),
            None => self.db.has_hot_journal(),
        }
    }

    fn is_home_whole(&mut self) -> Result<bool> {
        // The journal brings back pages and length of a later transaction.
        Ok(State::without_mark(self.first, self.home_bytes).kind == FileKind::Database || self.db.has_hot_journal()?)
    }

    fn records(&mut self, slot: &Slot) -> Result<LiveRecords> {
        self.log.live_records(slot)
    }

    fn has_sound_slots(&mut self) -> Result<bool> {
        self.slots.first().map_or(Ok(false), |newest| self.log.has_sound_slots(newest.block_bytes))
    }

    fn replay(&mut self, slot: &Slot) -> Result<Lead> {
        Ok(self.lead(slot.clone(), false))
    }

    /// Home tells of the slot that the session would have had.
    fn replay_nothing(&mut self) -> Result<Lead> {
        let (Some(mark), Some(newest)) = (self.mark(), self.slots.first()) else { return Ok(Lead::Damaged) };
        let (state, _) = self.db.read_state()?;
        let slot = Slot {
            sequence: newest.sequence.saturating_add(1),
            session: mark.session,
            salt: random()?,
            start: LogOffset(0),
            base_tid: mark.tid,
            tid_ceiling: Tid(mark.tid.0.saturating_add(TID_STEP)),
            prev_crc: 0,
            page_count: state.page_count,
            page_bytes: state.page_bytes.max(512),
            change_counter: state.change_counter,
            counter_ceiling: state.change_counter.wrapping_add(COUNTER_STEP),
            live: true,
            in_place: false,
            ..newest.clone()
        };
        Ok(self.lead(slot, false))
    }

    fn left(&mut self, slot: &Slot) -> Result<Left> {
        let (records, is_noted) = (self.log.live_records(slot)?, self.db.is_noted_in(self.log)?);
        let left = Left { records, home_counter: self.home_counter, is_noted };
        Ok(*self.left.insert(left))
    }
}
