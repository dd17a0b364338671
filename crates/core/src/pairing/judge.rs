//! Whether a database file and a log belong together. This is decided here alone: an open, a recovery on request, `onewrite check` and the
//! placing of a mark ask [`judge`], and each acts on its answer.
//!
//! Nothing is read here: [`Evidence`] answers questions, each of which costs a read of the slots, the records or the ring, and is asked
//! only where the answer counts.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::arithmetic_side_effects)]

use crate::base::error::Result;
use crate::base::layout::slot::PAGE_COUNT_IN_HOME;
use crate::base::types::Tid;
use crate::log::slot::{Slot, follows_session};
use crate::sqlite_format::home::HomeMark;

/// What home and a log are to each other.
///
/// | home carries | the log has | pairing |
/// |---|---|---|
/// | a mark | the slot of its session, and records that lead from home to the newest state | `Fits` |
/// | a tentative mark | the session before, and two sound slots | `NeverBegun` |
/// | a mark | the proof that its session ended in order | `ClosedMarkBack` |
/// | a mark | its session, and records that begin behind what home has; or that session, closed in order | `HomeOlder` |
/// | a mark | its session, and no record that led to what home has | `HomeNewer` |
/// | a mark | another session | `OtherFile` |
/// | a mark | no valid slot, or records of its session that are damaged | `Damaged` |
/// | no mark | a closed slot, no record, or records of a session that ended in this home | `Closed` |
/// | no mark | records of this very file, older than it is | `HomeNewer` |
/// | no mark | records that are newer than it is | `HomeOlder` |
/// | no mark | records of another file, older than this one | `OtherFile` |
/// | no mark | no valid slot | `Damaged` |
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The session goes on from this slot.
    Fits(Slot),
    /// The session was cut off from power before its first flush of the log, and home is as it was (rule SlotWithFirstRecord).
    NeverBegun,
    /// Home has all that the log holds, and the next session uses the log anew (rule CloseWithoutSlot).
    Closed,
    /// Home has all of the session, and a power cut brought the mark back (rule CloseProven).
    ClosedMarkBack,
    /// Home is a copy from before the newest transactions.
    HomeOlder,
    /// Home has all that the log holds and more; with a mark, it is a copy of a later moment than the log.
    HomeNewer,
    /// The log is another file's, or one of another history of this one.
    OtherFile,
    /// The log cannot tell.
    Damaged,
}

impl Pairing {
    /// Whether nothing in the log is needed by a home without a mark.
    pub fn has_all(&self) -> bool {
        matches!(self, Pairing::Closed | Pairing::HomeNewer)
    }
}

/// Where the records behind a slot lead from a marked home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// To the newest state.
    There,
    /// They begin behind what home has.
    HomeOlder,
    /// None of them led to what home has.
    HomeNewer,
    /// They, or home, are damaged.
    Damaged,
}

/// What the log holds behind its live slot, as a home without a mark looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Records that can be read.
    pub records: u64,
    /// Whether a record was durable and cannot be read.
    pub has_rot: bool,
    /// Change counter of the last record; without one, that which the slot tells.
    pub counter: u32,
    /// Change counter of home.
    pub home_counter: u32,
    /// Whether home is the file that the log was last used for.
    pub is_noted: bool,
}

impl Left {
    fn is_empty(&self) -> bool {
        self.records == 0 && !self.has_rot
    }
}

/// What home and log say.
pub trait Evidence {
    /// The mark of home.
    fn mark(&self) -> Option<HomeMark>;
    /// The valid slots of the log, the newest first.
    fn slots(&self) -> &[Slot];
    /// Whether a rollback journal waits beside home.
    fn has_journal(&mut self) -> Result<bool>;
    /// Whether home has the length that its header states, or a journal that waits brings it back.
    fn is_home_whole(&mut self) -> Result<bool>;
    /// Whether no record follows `slot`.
    fn is_empty(&mut self, slot: &Slot) -> Result<bool>;
    /// Whether no record behind `slot` says that one was flushed.
    fn has_nothing_flushed(&mut self, slot: &Slot) -> Result<bool>;
    /// Whether each of the two places for slots holds one, or nothing yet.
    fn has_sound_slots(&mut self) -> Result<bool>;
    /// Whether the ring of `slot` holds a tombstone of this session, and of this last transaction if one is given.
    fn has_tombstone(&mut self, slot: &Slot, session: u64, last: Option<Tid>) -> Result<bool>;
    /// Where the records behind `slot` lead.
    fn replay(&mut self, slot: &Slot) -> Result<Lead>;
    /// Where the session never began: the same, of home alone.
    fn replay_nothing(&mut self) -> Result<Lead>;
    /// What is behind `slot`, for a home without a mark.
    fn left(&mut self, slot: &Slot) -> Result<Left>;
}

/// What home and log are to each other.
///
/// # Errors
///
/// Those of the evidence.
pub fn judge(evidence: &mut impl Evidence) -> Result<Pairing> {
    let Some(mark) = evidence.mark() else { return unmarked(evidence) };
    // A journal beside a marked home is of a transaction that came behind a close.
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

/// The same as [`judge`] for a marked home, as far as mark and slots tell.
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
        Some(older) if evidence.is_empty(&newest)? => Ok(Pairing::Fits(older)),
        _ => Ok(Pairing::OtherFile),
    }
}

/// The slot that counts, if the newest is of a recovery that crashed before it marked home with its session, and has no record: then
/// nothing is in the way of doing it again (invariant I8). One between the two, which a crash may have lost, would be the slot of a
/// session that is over.
pub fn before_recovery(slots: &[Slot], session: u64) -> Option<&Slot> {
    let newest = slots.first()?;
    let is_before =
        |slot: &&Slot| slot.session == session && slot.live && slot.sequence.checked_add(1) == Some(newest.sequence);
    slots.iter().find(is_before).filter(|_| newest.session != session)
}

/// Whether the session of `mark` ended with all of it in home (rule CloseProven).
pub fn is_close_proven(evidence: &mut impl Evidence, mark: &HomeMark) -> Result<bool> {
    // Schemes that write in place say nothing of home in the mark, and flush its removal.
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
        (true, true) => evidence.has_tombstone(&newest, mark.session, Some(mark.tid)),
        // The next session has written its slot, and home has not its mark: so no record that was flushed, either (rule MarkWithFirstRecord).
        (true, false) => {
            let is_over = is_next(&newest, mark) || evidence.slots().iter().any(is_end);
            Ok(is_over && evidence.has_nothing_flushed(&newest)?)
        }
    }
}

/// Whether `newest` is the slot of the session that follows the one of `mark`.
pub fn is_next(newest: &Slot, mark: &HomeMark) -> bool {
    newest.live && follows_session(newest.session, mark.session) && newest.base_tid == mark.tid.next()
}

/// How far the change counter of home may be ahead of the last record's: it goes on by two as the mark comes off, and not at all until it
/// is on.
const COUNTS_OF_A_CLOSE: u32 = 2;

fn unmarked(evidence: &mut impl Evidence) -> Result<Pairing> {
    let Some(newest) = evidence.slots().first().cloned() else { return Ok(Pairing::Damaged) };
    if !newest.live {
        return Ok(Pairing::Closed);
    }
    let left = evidence.left(&newest)?;
    // As counters that wrap are compared.
    let ahead = |counter: u32| left.home_counter.wrapping_sub(counter);
    // A recovery takes the mark off with the counter at which the slot's ceiling is.
    let is_rested = newest.is_in_page() && left.is_empty() && ahead(newest.counter_ceiling) <= COUNTS_OF_A_CLOSE;
    Ok(match ahead(left.counter) {
        _ if is_rested && left.is_noted => Pairing::Closed,
        0..=COUNTS_OF_A_CLOSE if left.is_empty() || (left.is_noted && !left.has_rot) => Pairing::Closed,
        0x8000_0000.. => Pairing::HomeOlder,
        // A close that has begun to overwrite the ring: home had all of the session then.
        _ if left.is_noted && (!left.has_rot || evidence.has_tombstone(&newest, newest.session, None)?) => {
            Pairing::HomeNewer
        }
        _ => Pairing::OtherFile,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::types::LogOffset;
    use crate::log::slot::session_after;

    const SESSION: u64 = 7;
    const LAST: Tid = Tid(90);

    /// Answers, as a table has them.
    #[derive(Clone, Debug)]
    struct Told {
        mark: Option<HomeMark>,
        slots: Vec<Slot>,
        journal: bool,
        home_whole: bool,
        newest_empty: bool,
        nothing_flushed: bool,
        slots_sound: bool,
        tombstone: bool,
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
        fn is_empty(&mut self, _: &Slot) -> Result<bool> {
            Ok(self.newest_empty)
        }
        fn has_nothing_flushed(&mut self, _: &Slot) -> Result<bool> {
            Ok(self.nothing_flushed)
        }
        fn has_sound_slots(&mut self) -> Result<bool> {
            Ok(self.slots_sound)
        }
        fn has_tombstone(&mut self, _: &Slot, _: u64, _: Option<Tid>) -> Result<bool> {
            Ok(self.tombstone)
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
            zeroed: true,
            in_place: false,
        }
    }

    /// Each way in which the slots of a log may stand to a mark of [`SESSION`] at [`LAST`], by name.
    fn logs() -> Vec<(&'static str, Vec<Slot>)> {
        let own = |sequence| slot(sequence, SESSION, true, Tid(80));
        let next = session_after(SESSION, 5);
        // The mark follows this one.
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

    fn left(records: u64, has_rot: bool, ahead: u32, is_noted: bool) -> Left {
        // The counter wraps between the two.
        let counter = u32::MAX;
        Left { records, has_rot, counter, home_counter: counter.wrapping_add(ahead), is_noted }
    }

    /// Each combination of answers for a marked home.
    fn marked(mut each: impl FnMut(&str, &Told)) {
        let follows = |log: &str| log == "the one's before";
        for (name, slots) in logs() {
            for bits in 0..1u32 << 8 {
                let bit = |n: u32| bits & (1 << n) != 0;
                let session =
                    if follows(name) { session_after(slots.first().unwrap().session, SESSION) } else { SESSION };
                let whole = if bit(0) { LAST } else { Tid(85) };
                for lead in [Lead::There, Lead::HomeOlder, Lead::HomeNewer, Lead::Damaged] {
                    each(
                        name,
                        &Told {
                            mark: Some(HomeMark { session, tid: LAST, whole, tentative: bit(1) }),
                            slots: slots.clone(),
                            journal: bit(2),
                            home_whole: bit(3),
                            newest_empty: bit(4),
                            nothing_flushed: bit(5),
                            slots_sound: bit(6),
                            tombstone: bit(7),
                            lead,
                            left: left(0, false, 0, false),
                        },
                    );
                }
            }
        }
    }

    /// The table of a marked home, row by row; the first that applies counts.
    fn row(log: &str, told: &Told) -> &'static str {
        let mark = told.mark.unwrap();
        let goes_on = match log {
            "own" | "own in place" => "fits",
            "a recovery's" if told.newest_empty => "fits",
            "the one's before" if mark.tentative && told.slots_sound => "never begun",
            _ => "no",
        };
        let proof = match log {
            "own" => told.tombstone,
            "own, closed" => true,
            "the next one's" | "the next one's, behind the end" => told.nothing_flushed,
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
            (2, "near"),
            (3, "ahead"),
            (0x7fff_ffff, "ahead"),
            (0x8000_0000, "behind"),
            (u32::MAX, "behind"),
        ];
        for (log, slots) in logs() {
            for ((ahead, distance), bits) in cases.into_iter().flat_map(|case| (0..16u32).map(move |bits| (case, bits)))
            {
                let bit = |n: u32| bits & (1 << n) != 0;
                let left = left(u64::from(bit(0)), bit(1), ahead, bit(2));
                let told = Told {
                    mark: None,
                    slots: slots.clone(),
                    journal: false,
                    home_whole: true,
                    newest_empty: left.is_empty(),
                    nothing_flushed: false,
                    slots_sound: true,
                    tombstone: bit(3),
                    lead: Lead::There,
                    left,
                };
                let expected = match (slots.first(), distance) {
                    (None, _) => "damaged",
                    (Some(slot), _) if !slot.live => "closed",
                    (_, "near") if left.is_empty() || (left.is_noted && !left.has_rot) => "closed",
                    (_, "behind") => "home older",
                    _ if left.is_noted && (!left.has_rot || told.tombstone) => "home newer",
                    _ => "other file",
                };
                assert_eq!(name(&judge(&mut told.clone()).unwrap()), expected, "{log}: {told:?}");
            }
        }
    }

    /// Behind a recovery of an in-page scheme home has the counter at which the ceiling of the slot is.
    #[test]
    fn a_home_at_the_ceiling_of_its_slot() {
        let rested = Slot { in_place: true, page_count: PAGE_COUNT_IN_HOME, ..slot(4, SESSION, true, LAST) };
        for (counter, is_noted, records, expected) in [
            (502, true, 0, "closed"),
            (503, true, 0, "home newer"),
            (502, false, 0, "other file"),
            (502, true, 1, "home newer"),
        ] {
            let left = Left { records, has_rot: false, counter: 100, home_counter: counter, is_noted };
            let mut told = Told {
                mark: None,
                slots: vec![rested.clone()],
                journal: false,
                home_whole: true,
                newest_empty: records == 0,
                nothing_flushed: true,
                slots_sound: true,
                tombstone: false,
                lead: Lead::There,
                left,
            };
            assert_eq!(name(&judge(&mut told).unwrap()), expected, "{told:?}");
        }
    }
}
