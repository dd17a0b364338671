//! SQLite's settings as far as the VFS sees them, and a connection's habits.

use std::time::Instant;

use crate::database::queue::SOON;

/// `PRAGMA synchronous`, as far as a connection was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Synchronous {
    /// FULL, EXTRA, or not said.
    #[default]
    Full,
    Normal,
    Off,
}

impl Synchronous {
    /// By the pragma's value.
    pub(super) fn of(value: &str) -> Synchronous {
        let is = |name: &str, number| value.eq_ignore_ascii_case(name) || value == number;
        match () {
            () if is("normal", "1") => Synchronous::Normal,
            () if is("off", "0") => Synchronous::Off,
            () => Synchronous::Full,
        }
    }
}

/// EXTRA: the changes of a close are durable, too.
pub(super) fn is_extra(value: &str) -> bool {
    value.eq_ignore_ascii_case("extra") || value == "3"
}

/// Settings from pragmas and file controls.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// `PRAGMA locking_mode=exclusive`.
    pub(super) exclusive: bool,
    /// `PRAGMA journal_mode=wal`: the next writing transaction is perhaps the change.
    pub(super) wal: bool,
    pub(super) synchronous: Synchronous,
    /// SQLite writes other files in the same transaction.
    pub(super) spans: bool,
}

/// A transaction may write if one of so many before it did, or could have: the first reads the
/// schema.
const TURNS: u8 = 2;
/// After so many writing transactions in a row, the next one is taken to write, too.
const SURE_WRITER: u32 = 3;

/// A connection that came back for the writer's place so often before others could take it is
/// expected again.
const OFTEN: u32 = 2;

/// The past transactions of a connection, by which the next one is judged.
#[derive(Debug)]
pub(super) struct Habit {
    /// So many of the coming transactions may write.
    pub(super) may_write: u8,
    /// The transaction under way wrote or tried to.
    pub(super) writes_now: bool,
    /// Writing transactions in a row.
    in_a_row: u32,
    /// SQLite was seen to unlock after a commit, so the place may go to the next before that (rule
    /// OneWriter). In `locking_mode=exclusive` it does not, and attached databases are not told of
    /// the pragma.
    pub(super) returns_lock: bool,
    /// It has had a snapshot of a database that this process uses.
    pub(super) has_pinned: bool,
    /// When it last passed the writer's place on with a commit and has not come for it since.
    gave_at: Option<Instant>,
    /// How often in a row it came back so soon that the place had better been kept.
    soon: u32,
}

impl Habit {
    pub(super) fn new(reads_only: bool) -> Habit {
        let may_write = if reads_only { 0 } else { TURNS };
        let gave_at = None;
        Habit { may_write, writes_now: false, in_a_row: 0, returns_lock: false, has_pinned: false, gave_at, soon: 0 }
    }

    /// It passed the writer's place on at that time; `None`: it did not.
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

    /// A transaction ends; returns whether it wrote. A retry by SQLite does not count twice.
    pub(super) fn end(&mut self, is_retry: bool) -> bool {
        let wrote = std::mem::take(&mut self.writes_now);
        (self.may_write, self.in_a_row) = match wrote {
            true => (TURNS, self.in_a_row.saturating_add(u32::from(!is_retry))),
            false => (self.may_write.saturating_sub(1), 0),
        };
        wrote
    }
}
