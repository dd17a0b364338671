//! What SQLite let the VFS see of its settings, and what a connection was seen to do.

use std::time::Instant;

use crate::database::queue::SOON;

/// `PRAGMA synchronous`, as far as a connection was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Synchronous {
    /// FULL, EXTRA, or nothing was said.
    #[default]
    Full,
    Normal,
    Off,
}

impl Synchronous {
    /// As the pragma says it.
    pub(super) fn of(value: &str) -> Synchronous {
        let is = |name: &str, number| value.eq_ignore_ascii_case(name) || value == number;
        match () {
            () if is("normal", "1") => Synchronous::Normal,
            () if is("off", "0") => Synchronous::Off,
            () => Synchronous::Full,
        }
    }
}

/// Whether the pragma asks for EXTRA: what a close changes is durable, too.
pub(super) fn is_extra(value: &str) -> bool {
    value.eq_ignore_ascii_case("extra") || value == "3"
}

/// What pragmas and file controls said.
#[derive(Debug, Default)]
pub(super) struct PragmaState {
    /// `PRAGMA locking_mode=exclusive`.
    pub(super) exclusive: bool,
    /// `PRAGMA journal_mode=wal`: the next transaction that writes is perhaps the change.
    pub(super) wal: bool,
    pub(super) synchronous: Synchronous,
    /// SQLite writes other files in the same transaction.
    pub(super) spans: bool,
}

/// A transaction may write if one of so many before it did, or could have: the first reads the schema.
const TURNS: u8 = 2;
/// After so many transactions in a row that wrote, the next one is taken to write, too.
const SURE_WRITER: u32 = 3;

/// Who was back for the writer's place so often before others could have had it is taken to be, the next time.
const OFTEN: u32 = 2;

/// What the transactions of a connection were like, by which the next one is judged.
#[derive(Debug)]
pub(super) struct Habit {
    /// As many of the coming transactions are taken to write, perhaps.
    pub(super) may_write: u8,
    /// The transaction under way wrote or tried to.
    pub(super) writes_now: bool,
    /// Transactions in a row that wrote.
    in_a_row: u32,
    /// SQLite was seen to give its lock back after a commit, so the writer's place may go to the next before that
    /// (rule OneWriter).
    /// With `PRAGMA locking_mode=exclusive` it keeps it; an attached database is not told of the pragma.
    pub(super) returns_lock: bool,
    /// It has had a snapshot of a database that this process uses.
    pub(super) has_pinned: bool,
    /// When it gave the writer's place to the next with its commit, since it came for the place last.
    gave_at: Option<Instant>,
    /// As often running it was back so soon that the place had better been kept for it.
    soon: u32,
}

impl Habit {
    /// Of one that has done nothing yet.
    pub(super) fn new(reads_only: bool) -> Habit {
        let may_write = if reads_only { 0 } else { TURNS };
        let gave_at = None;
        Habit { may_write, writes_now: false, in_a_row: 0, returns_lock: false, has_pinned: false, gave_at, soon: 0 }
    }

    /// It gave the writer's place to the next, at that time; `None`: to nobody.
    pub(super) fn gave_place(&mut self, at: Option<Instant>) {
        self.gave_at = at;
    }

    /// It comes for the writer's place.
    pub(super) fn comes_for_place(&mut self) {
        if let Some(gave_at) = self.gave_at.take() {
            self.soon = if gave_at.elapsed() <= SOON { self.soon.saturating_add(1) } else { 0 };
        }
    }

    /// Whether it is probably back soon.
    pub(super) fn comes_again(&self) -> bool {
        self.soon >= OFTEN
    }

    /// Whether the next transaction writes, as sure as it can be.
    pub(super) fn is_sure_writer(&self) -> bool {
        self.in_a_row >= SURE_WRITER
    }

    /// A transaction ends; whether it wrote. One that SQLite tries again does not count twice.
    pub(super) fn end(&mut self, is_retry: bool) -> bool {
        let wrote = std::mem::take(&mut self.writes_now);
        (self.may_write, self.in_a_row) = match wrote {
            true => (TURNS, self.in_a_row.saturating_add(u32::from(!is_retry))),
            false => (self.may_write.saturating_sub(1), 0),
        };
        wrote
    }
}
