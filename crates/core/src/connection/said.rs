//! SQLite's settings as far as the VFS sees them, and a connection's habits.

use crate::base::clock::Instant;
use crate::database::queue::SOON;
use crate::shared::tendency::{Ended, Tendency};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Synchronous {
    /// FULL, EXTRA, or not said.
    #[default]
    Full,
    Normal,
    Off,
}

impl Synchronous {
    pub(super) fn of(value: &str) -> Synchronous {
        let is = |name: &str, number| value.eq_ignore_ascii_case(name) || value == number;
        match () {
            () if is("normal", "1") => Synchronous::Normal,
            () if is("off", "0") => Synchronous::Off,
            () => Synchronous::Full,
        }
    }
}

pub(super) fn is_extra(value: &str) -> bool {
    value.eq_ignore_ascii_case("extra") || value == "3"
}

#[derive(Debug, Default)]
pub(super) struct PragmaState {
    pub(super) exclusive: bool,
    /// The next writing transaction may be the change.
    pub(super) wal: bool,
    pub(super) synchronous: Synchronous,
    pub(super) spans: bool,
    /// The transaction is the application's own, from BEGIN to COMMIT.
    pub(super) explicit: bool,
}

/// A transaction may write if one of so many before did or could: the first reads the schema.
const TURNS: u8 = 2;
const SURE_WRITER: u32 = 3;

/// Coming back so often before others took the place, it is expected again.
const OFTEN: u32 = 2;

/// Past transactions, by which the next one is judged.
#[derive(Debug)]
pub(super) struct Habit {
    pub(super) reads_only: bool,
    /// So many coming transactions.
    pub(super) may_write: u8,
    pub(super) writes_now: bool,
    in_a_row: u32,
    /// SQLite unlocks after a commit, so the place may be passed on before (rule OneWriter). In
    /// `locking_mode=exclusive` it does not, and attached databases are not told.
    pub(super) returns_lock: bool,
    pub(super) has_pinned: bool,
    pub(super) tends: Tendency,
    /// More than the first page was read under this lock.
    pub(super) has_read: bool,
    /// A write was refused for a stale snapshot.
    pub(super) was_stale: bool,
    /// When it last passed the place on, until it comes again.
    gave_at: Option<Instant>,
    /// How often in a row it came back so soon that the place had better been kept.
    soon: u32,
}

impl Habit {
    pub(super) fn new(reads_only: bool) -> Habit {
        let may_write = if reads_only { 0 } else { TURNS };
        let gave_at = None;
        Habit {
            reads_only,
            may_write,
            writes_now: false,
            in_a_row: 0,
            returns_lock: false,
            has_pinned: false,
            tends: Tendency::default(),
            has_read: false,
            was_stale: false,
            gave_at,
            soon: 0,
        }
    }

    /// In a child of a fork, whose database is new to it.
    pub(super) fn carried(&self) -> Habit {
        Habit {
            reads_only: self.reads_only,
            writes_now: false,
            has_pinned: false,
            has_read: false,
            was_stale: false,
            gave_at: None,
            tends: self.tends,
            may_write: self.may_write,
            in_a_row: self.in_a_row,
            returns_lock: self.returns_lock,
            soon: self.soon,
        }
    }

    pub(super) fn gave_place(&mut self, at: Option<Instant>) {
        self.gave_at = at;
    }

    pub(super) fn comes_for_place(&mut self) {
        if let Some(gave_at) = self.gave_at.take() {
            self.soon = if gave_at.elapsed() <= SOON { self.soon.saturating_add(1) } else { 0 };
        }
    }

    pub(super) fn comes_again(&self) -> bool {
        self.soon >= OFTEN
    }

    pub(super) fn is_sure_writer(&self) -> bool {
        self.in_a_row >= SURE_WRITER
    }

    pub(super) fn has_written(&self) -> bool {
        self.in_a_row > 0
    }

    /// How an explicit transaction ended; `None`: it shows nothing of the next one, as the first
    /// look at the schema.
    pub(super) fn ended(&self) -> Option<Ended> {
        match (self.was_stale, self.writes_now) {
            (true, _) => Some(Ended::Stale),
            (false, true) => Some(Ended::Wrote),
            (false, false) if self.tends.is_unknown() && !self.has_read => None,
            (false, false) => Some(Ended::Read),
        }
    }

    /// Returns whether it wrote. A retry does not count twice.
    pub(super) fn end(&mut self, is_retry: bool) -> bool {
        let wrote = std::mem::take(&mut self.writes_now);
        (self.has_read, self.was_stale) = (false, false);
        (self.may_write, self.in_a_row) = match wrote {
            true => (TURNS, self.in_a_row.saturating_add(u32::from(!is_retry))),
            false => (self.may_write.saturating_sub(1), 0),
        };
        wrote
    }
}
