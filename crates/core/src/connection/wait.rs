//! Waiting for the writer's place while SQLite's busy handler sleeps.
//!
//! Only the busy handler knows how long a connection may wait, so a kept lock is answered with BUSY
//! at once, and SQLite tries again after asking it (rule BusyToHandler). The handler of
//! `sqlite3_busy_timeout` sleeps by `xSleep` of the VFS on the same thread, and counts the time it
//! asked for. There the thread waits in the queue with the ticket of its last try, and wakes up as
//! soon as it has the place, tentatively until its next try. Another handler, which sleeps by
//! itself, keeps its turn by the ticket alone.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::database::Database;
use crate::database::queue::{ConnectionId, Patience, Ticket, TurnClaim};

/// A later try begins a new row. `sqlite3_busy_timeout` sleeps 100 ms at most.
const RETRY: Duration = Duration::from_millis(250);
/// A sleep so soon after BUSY is taken to be for it.
const SLEEPS: Duration = Duration::from_millis(20);
/// How long such sleeps may keep new readers of a file at rest out: twice a read of a second.
const KEEPS_OUT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Waits {
    pub(super) ticket: Option<Ticket>,
    busy_at: Option<Instant>,
    first_busy_at: Option<Instant>,
    /// The caller can ask the busy handler itself.
    pub(super) may_ask: bool,
    /// SQLite does not ask it for the coming lock: it has read under this one.
    pub(super) upgrades: bool,
    /// The last BUSY was for the caller to ask.
    pub(super) asks: Option<Asks>,
    pub(super) is_last: bool,
}

/// The busy handler is to be asked before SQLite hears of BUSY. Where it refuses, the caller calls
/// [`Connection::wait_no_longer`](super::Connection::wait_no_longer) and tries once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// If it waits, the caller tries again.
    Again,
    /// If it waits, SQLite hears of BUSY, and asks on.
    Once,
}

impl Waits {
    pub(super) fn note_busy(&mut self) {
        let now = Instant::now();
        self.busy_at = Some(now);
        self.first_busy_at.get_or_insert(now);
    }

    /// A late try gets a new turn.
    pub(super) fn begin(&mut self) {
        if !self.is_retry() {
            (self.ticket, self.first_busy_at) = (None, None);
        }
    }

    /// After success.
    pub(super) fn forget(&mut self) {
        (self.ticket, self.busy_at, self.first_busy_at) = (None, None, None);
    }

    pub(super) fn keeps_readers_out(&self) -> bool {
        self.first_busy_at.is_none_or(|at| at.elapsed() < KEEPS_OUT)
    }

    pub(super) fn has_waited(&self) -> bool {
        self.busy_at.is_some()
    }

    pub(super) fn is_retry(&self) -> bool {
        self.busy_at.is_some_and(|at| at.elapsed() < RETRY)
    }
}

/// The place last refused to this thread (rule BusyToHandler).
struct Expected {
    db: Weak<Database>,
    connection: ConnectionId,
    claim: TurnClaim,
    ticket: Option<Ticket>,
    keeps_readers_out: bool,
    since: Instant,
    process: u32,
}

thread_local! {
    static EXPECTED: RefCell<Option<Expected>> = const { RefCell::new(None) };
}

/// SQLite's next sleep on this thread is for the place.
pub(super) fn expect(db: &Arc<Database>, connection: ConnectionId, grace: Duration, waits: &Waits) {
    let expected = Expected {
        db: Arc::downgrade(db),
        connection,
        claim: TurnClaim::Tentative(grace),
        ticket: waits.ticket,
        keeps_readers_out: waits.keeps_readers_out(),
        since: Instant::now(),
        process: std::process::id(),
    };
    EXPECTED.set(Some(expected));
}

/// xSleep. False without a place to wait for: the caller sleeps.
pub fn nap(time: Duration) -> bool {
    let is_mine = |e: &Expected| e.since.elapsed() < SLEEPS && e.process == std::process::id();
    let Some(expected) = EXPECTED.take().filter(is_mine) else { return false };
    let Some(db) = expected.db.upgrade() else { return false };
    let deadline = Instant::now() + time;
    let Expected { connection, claim, mut ticket, keeps_readers_out, .. } = expected;
    if db.queue.acquire_with(connection, claim, Patience { is_last: false, ..Patience::from(time) }, &mut ticket) {
        db.queue.set_inside(connection, true);
        // For as long as it sleeps, one that thinks keeps the place.
        let entered = db.enter_soon(false, deadline, Some(Duration::MAX));
        let may_write = entered.is_ok() && db.outlast_readers(deadline, keeps_readers_out).unwrap_or(false);
        db.queue.set_inside(connection, false);
        if may_write {
            return true;
        }
        db.queue.give_up(connection);
    }
    clock::sleep(deadline.saturating_duration_since(Instant::now()));
    true
}
