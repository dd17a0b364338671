//! Whether a database file and a log belong together: [`judge`] alone decides. It reads no file,
//! and asks [`Evidence`] only where the answer counts, for slots, records or the ring cost a read.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::error::Result;
use crate::base::layout::slot::PAGE_COUNT_IN_HOME;
use crate::log::file::LiveRecords;
use crate::log::slot::{Slot, follows_session};
use crate::sqlite_format::home::HomeMark;

/// The relation of a home and a log.
///
/// ```text
/// home       the log has                                                       pairing
/// a mark     the slot of its session, and records that lead from home to the   Fits
///            newest state
/// tentative  the session before, and two sound slots                           NeverBegun
/// a mark     the proof that its session ended in order                         ClosedMarkBack
/// a mark     its session, and records that begin behind home; or that          HomeOlder
///            session, closed in order
/// a mark     its session, and no record that led to home's state               HomeNewer
/// a mark     another session                                                   OtherFile
/// a mark     no valid slot, or damaged records of its session                  Damaged
/// no mark    a closed slot, no record, or records of a session that ended in   Closed
///            this home
/// no mark    records of this very file, older than it is                       HomeNewer
/// no mark    records that are newer than it is                                 HomeOlder
/// no mark    records of another file, older than this one                      OtherFile
/// no mark    no valid slot                                                     Damaged
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The session continues from this slot.
    Fits(Slot),
    /// Power failed before the session's first flush of the log (rule SlotWithFirstRecord).
    NeverBegun,
    /// Home has everything, and the log is reused (rule CloseWithoutSlot).
    Closed,
    /// Home has everything; a power cut restored the mark (rule CloseProven).
    ClosedMarkBack,
    /// Home is an older copy.
    HomeOlder,
    /// Home has more than the log; with a mark, it is a later copy.
    HomeNewer,
    /// The log is of another file or history.
    OtherFile,
    /// The log is damaged or empty.
    Damaged,
}

impl Pairing {
    /// Whether an unmarked home needs nothing from the log.
    pub fn has_all(&self) -> bool {
        matches!(self, Pairing::Closed | Pairing::HomeNewer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    There,
    HomeOlder,
    HomeNewer,
    Damaged,
}

/// The log behind its live slot, for an unmarked home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its records.
    pub records: LiveRecords,
    /// Change counter of home.
    pub home_counter: u32,
    /// Whether the log was last used for home.
    pub is_noted: bool,
}

pub trait Evidence {
    fn mark(&self) -> Option<HomeMark>;
    /// Valid ones, the newest first.
    fn slots(&self) -> &[Slot];
    /// A hot one.
    fn has_journal(&mut self) -> Result<bool>;
    /// Whether home has its length, or a hot journal restores it.
    fn is_home_whole(&mut self) -> Result<bool>;
    /// Those behind `slot`.
    fn records(&mut self, slot: &Slot) -> Result<LiveRecords>;
    /// Both places hold one, or nothing yet.
    fn has_sound_slots(&mut self) -> Result<bool>;
    fn replay(&mut self, slot: &Slot) -> Result<Lead>;
    /// Replays home alone.
    fn replay_nothing(&mut self) -> Result<Lead>;
    /// Asked for an unmarked home.
    fn left(&mut self, slot: &Slot) -> Result<Left>;
}

/// The relation of a home and a log.
///
/// # Errors
///
/// Those of the evidence.
pub fn judge(evidence: &mut impl Evidence) -> Result<Pairing> {
    let Some(mark) = evidence.mark() else { return unmarked(evidence) };
    // The journal is of a transaction after a close.
    let pairing = match evidence.has_journal()? {
        true => Pairing::OtherFile,
        false => by_records(evidence, &mark)?,
    };
    let is_found = matches!(pairing, Pairing::Fits(_) | Pairing::NeverBegun);
    Ok(if !is_found && is_close_proven(evidence, &mark)? { Pairing::ClosedMarkBack } else { pairing })
}

fn by_records(evidence: &mut impl Evidence, mark: &HomeMark) -> Result<Pairing> {
    let pairing = by_slots(evidence, mark)?;
    let lead = match &pairing {
        Pairing::Fits(slot) => evidence.replay(slot)?,
        Pairing::NeverBegun => evidence.replay_nothing()?,
        _ => return Ok(pairing),
    };
    Ok(match lead {
        Lead::There => pairing,
        Lead::HomeOlder => Pairing::HomeOlder,
        Lead::HomeNewer => Pairing::HomeNewer,
        Lead::Damaged => Pairing::Damaged,
    })
}

fn by_slots(evidence: &mut impl Evidence, mark: &HomeMark) -> Result<Pairing> {
    let Some(newest) = evidence.slots().first().cloned() else { return Ok(Pairing::Damaged) };
    if newest.session == mark.session {
        return Ok(if newest.live { Pairing::Fits(newest) } else { Pairing::HomeOlder });
    }
    if mark.tentative && follows_session(mark.session, newest.session) && evidence.has_sound_slots()? {
        return Ok(Pairing::NeverBegun);
    }
    let older = before_recovery(evidence.slots(), mark.session).cloned();
    match older {
        Some(older) if evidence.records(&newest)?.is_empty() => Ok(Pairing::Fits(older)),
        _ => Ok(Pairing::OtherFile),
    }
}

/// The newest slot may be of a recovery that crashed before it marked home, without a record: it
/// can be repeated (invariant I8). A slot lost between the two would be of a session that is over.
pub fn before_recovery(slots: &[Slot], session: u64) -> Option<&Slot> {
    let newest = slots.first()?;
    let is_before =
        |slot: &&Slot| slot.session == session && slot.live && slot.sequence.checked_add(1) == Some(newest.sequence);
    slots.iter().find(is_before).filter(|_| newest.session != session)
}

/// Whether all of the session is in home (rule CloseProven).
fn is_close_proven(evidence: &mut impl Evidence, mark: &HomeMark) -> Result<bool> {
    // Schemes in place say nothing of home in the mark, and flush its removal.
    let newest = evidence.slots().first().filter(|slot| slot.page_count != PAGE_COUNT_IN_HOME).cloned();
    let Some(newest) = newest.filter(|_| mark.tid == mark.whole) else { return Ok(false) };
    if !evidence.is_home_whole()? {
        return Ok(false);
    }
    let is_end = |slot: &Slot| {
        !slot.live && slot.session == mark.session && slot.base_tid == mark.tid && slot.page_count != PAGE_COUNT_IN_HOME
    };
    match (newest.live, newest.session == mark.session) {
        (false, _) => Ok(is_end(&newest)),
        // Without a journal, the records are replayed.
        (true, true) if evidence.has_journal()? => {
            let records = evidence.records(&newest)?;
            Ok(records.last_tid == mark.tid && !records.has_rot)
        }
        (true, true) => Ok(false),
        // Its slot is there and its mark is not: so it flushed no record (rule
        // MarkWithFirstRecord).
        (true, false) => {
            let is_over = is_next(&newest, mark) || evidence.slots().iter().any(is_end);
            Ok(is_over && !evidence.records(&newest)?.is_flushed)
        }
    }
}

pub fn is_next(newest: &Slot, mark: &HomeMark) -> bool {
    newest.live && follows_session(newest.session, mark.session) && newest.base_tid == mark.tid.next()
}

/// Taking the mark off adds two to home's change counter, putting it on nothing, and the next open
/// of a database that asks for WAL mode one.
const COUNTS_OF_A_CLOSE: u32 = 3;

fn unmarked(evidence: &mut impl Evidence) -> Result<Pairing> {
    let Some(newest) = evidence.slots().first().cloned() else { return Ok(Pairing::Damaged) };
    if !newest.live {
        return Ok(Pairing::Closed);
    }
    let left = evidence.left(&newest)?;
    let (is_empty, has_rot) = (left.records.is_empty(), left.records.has_rot);
    // Counters wrap.
    let ahead = |counter: u32| left.home_counter.wrapping_sub(counter);
    // A recovery leaves the counter at the slot's ceiling.
    let is_rested = newest.is_in_page() && is_empty && ahead(newest.counter_ceiling) <= COUNTS_OF_A_CLOSE;
    Ok(match ahead(left.records.counter) {
        _ if is_rested && left.is_noted => Pairing::Closed,
        0..=COUNTS_OF_A_CLOSE if is_empty || (left.is_noted && !has_rot) => Pairing::Closed,
        0x8000_0000.. => Pairing::HomeOlder,
        _ if left.is_noted && !has_rot => Pairing::HomeNewer,
        _ => Pairing::OtherFile,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::types::{LogOffset, Tid};
    use crate::log::slot::session_after;

    const SESSION: u64 = 7;
    const LAST: Tid = Tid(90);

    #[derive(Clone, Debug)]
    struct Told {
        mark: Option<HomeMark>,
        slots: Vec<Slot>,
        journal: bool,
        home_whole: bool,
        records: LiveRecords,
        slots_sound: bool,
        lead: Lead,
        left: Left,
    }

    impl Evidence for Told {
        fn mark(&self) -> Option<HomeMark> {
            self.mark
        }
        fn slots(&self) -> &[Slot] {
            &self.slots
        }
        fn has_journal(&mut self) -> Result<bool> {
            Ok(self.journal)
        }
        fn is_home_whole(&mut self) -> Result<bool> {
            Ok(self.home_whole)
        }
        fn records(&mut self, _: &Slot) -> Result<LiveRecords> {
            Ok(self.records)
        }
        fn has_sound_slots(&mut self) -> Result<bool> {
            Ok(self.slots_sound)
        }
        fn replay(&mut self, _: &Slot) -> Result<Lead> {
            Ok(self.lead)
        }
        fn replay_nothing(&mut self) -> Result<Lead> {
            Ok(self.lead)
        }
        fn left(&mut self, _: &Slot) -> Result<Left> {
            Ok(self.left)
        }
    }

    fn slot(sequence: u64, session: u64, live: bool, base_tid: Tid) -> Slot {
        Slot {
            block_bytes: 4096,
            sequence,
            session,
            salt: 1,
            start: LogOffset(0),
            ring_bytes: 52 << 10,
            base_tid,
            tid_ceiling: Tid(1000),
            prev_crc: 0,
            page_bytes: 4096,
            page_count: 3,
            change_counter: 100,
            counter_ceiling: 500,
            live,
            in_place: false,
        }
    }

    fn logs() -> Vec<(&'static str, Vec<Slot>)> {
        let own = |sequence| slot(sequence, SESSION, true, Tid(80));
        let next = session_after(SESSION, 5);
        let before = (1..).find(|before| follows_session(session_after(*before, SESSION), *before)).unwrap();
        vec![
            ("none", vec![]),
            ("own", vec![own(4)]),
            ("own, closed", vec![slot(4, SESSION, false, LAST)]),
            ("own, closed elsewhere", vec![slot(4, SESSION, false, Tid(95))]),
            ("own in place", vec![Slot { in_place: true, page_count: PAGE_COUNT_IN_HOME, ..own(4) }]),
            ("a recovery's", vec![slot(5, 99, true, Tid(1000)), own(4)]),
            ("a later one's", vec![slot(6, 99, true, Tid(1000)), own(4)]),
            ("the next one's", vec![slot(5, next, true, LAST.next())]),
            ("the next one's, behind the end", vec![slot(5, 99, true, Tid(1000)), slot(4, SESSION, false, LAST)]),
            ("the one's before", vec![slot(5, before, false, Tid(80))]),
            ("another's", vec![slot(5, 99, true, Tid(80))]),
            ("another's, closed", vec![slot(5, 99, false, Tid(80))]),
        ]
    }

    fn records(count: u64, has_rot: bool, is_flushed: bool, last_tid: Tid) -> LiveRecords {
        LiveRecords { count, has_rot, last_tid, counter: u32::MAX, is_flushed }
    }

    fn left(records: LiveRecords, ahead: u32, is_noted: bool) -> Left {
        Left { records, home_counter: records.counter.wrapping_add(ahead), is_noted }
    }

    fn marked(mut each: impl FnMut(&str, &Told)) {
        let follows = |log: &str| log == "the one's before";
        for (name, slots) in logs() {
            for bits in 0..1u32 << 8 {
                let bit = |n: u32| bits & (1 << n) != 0;
                let session =
                    if follows(name) { session_after(slots.first().unwrap().session, SESSION) } else { SESSION };
                let whole = if bit(0) { LAST } else { Tid(85) };
                for lead in [Lead::There, Lead::HomeOlder, Lead::HomeNewer, Lead::Damaged] {
                    let last = if bit(7) { LAST } else { Tid(88) };
                    let records = records(u64::from(bit(4)), false, bit(5), last);
                    each(
                        name,
                        &Told {
                            mark: Some(HomeMark { whole, tentative: bit(1), ..HomeMark::new(session, LAST) }),
                            slots: slots.clone(),
                            journal: bit(2),
                            home_whole: bit(3),
                            records,
                            slots_sound: bit(6),
                            lead,
                            left: left(records, 0, false),
                        },
                    );
                }
            }
        }
    }

    fn row(log: &str, told: &Told) -> &'static str {
        let mark = told.mark.unwrap();
        let goes_on = match log {
            "own" | "own in place" => "fits",
            "a recovery's" if told.records.is_empty() => "fits",
            "the one's before" if mark.tentative && told.slots_sound => "never begun",
            _ => "no",
        };
        let proof = match log {
            "own" => told.journal && told.records.last_tid == LAST,
            "own, closed" => true,
            "the next one's" | "the next one's, behind the end" => !told.records.is_flushed,
            _ => false,
        };
        match log {
            _ if goes_on != "no" && !told.journal && told.lead == Lead::There => goes_on,
            _ if proof && mark.tid == mark.whole && told.home_whole => "closed, mark back",
            _ if told.journal => "other file",
            "none" => "damaged",
            "own, closed" | "own, closed elsewhere" => "home older",
            _ if goes_on == "no" => "other file",
            _ => match told.lead {
                Lead::HomeOlder => "home older",
                Lead::HomeNewer => "home newer",
                _ => "damaged",
            },
        }
    }

    fn name(pairing: &Pairing) -> &'static str {
        match pairing {
            Pairing::Fits(_) => "fits",
            Pairing::NeverBegun => "never begun",
            Pairing::Closed => "closed",
            Pairing::ClosedMarkBack => "closed, mark back",
            Pairing::HomeOlder => "home older",
            Pairing::HomeNewer => "home newer",
            Pairing::OtherFile => "other file",
            Pairing::Damaged => "damaged",
        }
    }

    #[test]
    fn every_row_of_a_marked_home() {
        let mut seen = std::collections::BTreeMap::new();
        marked(|log, told| {
            let pairing = judge(&mut told.clone()).unwrap();
            assert_eq!(name(&pairing), row(log, told), "{log}: {told:?}");
            if let Pairing::Fits(slot) = &pairing {
                assert!(slot.live && slot.session == SESSION, "{log}: {told:?}");
            }
            *seen.entry(name(&pairing)).or_insert(0) += 1;
        });
        assert_eq!(seen.len(), 7, "all but a closed one: {seen:?}");
    }

    #[test]
    fn every_row_of_a_home_without_a_mark() {
        let cases = [
            (0u32, "near"),
            (3, "near"),
            (4, "ahead"),
            (0x7fff_ffff, "ahead"),
            (0x8000_0000, "behind"),
            (u32::MAX, "behind"),
        ];
        for (log, slots) in logs() {
            for ((ahead, distance), bits) in cases.into_iter().flat_map(|case| (0..8u32).map(move |bits| (case, bits)))
            {
                let bit = |n: u32| bits & (1 << n) != 0;
                let records = records(u64::from(bit(0)), bit(1), true, LAST);
                let left = left(records, ahead, bit(2));
                let told = Told {
                    mark: None,
                    slots: slots.clone(),
                    journal: false,
                    home_whole: true,
                    records,
                    slots_sound: true,
                    lead: Lead::There,
                    left,
                };
                let expected = match (slots.first(), distance) {
                    (None, _) => "damaged",
                    (Some(slot), _) if !slot.live => "closed",
                    (_, "near") if records.is_empty() || (left.is_noted && !records.has_rot) => "closed",
                    (_, "behind") => "home older",
                    _ if left.is_noted && !records.has_rot => "home newer",
                    _ => "other file",
                };
                assert_eq!(name(&judge(&mut told.clone()).unwrap()), expected, "{log}: {told:?}");
            }
        }
    }

    #[test]
    fn a_home_at_the_ceiling_of_its_slot() {
        let rested = Slot { in_place: true, page_count: PAGE_COUNT_IN_HOME, ..slot(4, SESSION, true, LAST) };
        for (home_counter, is_noted, count, expected) in [
            (503, true, 0, "closed"),
            (504, true, 0, "home newer"),
            (503, false, 0, "other file"),
            (503, true, 1, "home newer"),
        ] {
            let records = LiveRecords { counter: 100, ..records(count, false, false, LAST) };
            let left = Left { records, home_counter, is_noted };
            let mut told = Told {
                mark: None,
                slots: vec![rested.clone()],
                journal: false,
                home_whole: true,
                records,
                slots_sound: true,
                lead: Lead::There,
                left,
            };
            assert_eq!(name(&judge(&mut told).unwrap()), expected, "{told:?}");
        }
    }
}
