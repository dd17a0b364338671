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
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::database::queue::{Claim, ConnectionId, Patience, Ticket};

/// A later try begins a new row of tries. The handler of `sqlite3_busy_timeout` sleeps 100 ms at
/// most.
const RETRY: Duration = Duration::from_millis(250);
/// A sleep so soon after BUSY is taken to be for it.
const SLEEPS: Duration = Duration::from_millis(20);

/// A connection's memory of failed tries.
#[derive(Default)]
pub(super) struct Waits {
    /// Its turn in the queue.
    pub(super) ticket: Option<Ticket>,
    /// When it last got BUSY.
    busy_at: Option<Instant>,
}

impl Waits {
    pub(super) fn note_busy(&mut self) {
        self.busy_at = Some(Instant::now());
    }

    /// A transaction begins: a late one gets a new turn.
    pub(super) fn begin(&mut self) {
        self.ticket = self.ticket.filter(|_| self.is_retry());
    }

    /// Whether SQLite's busy handler was probably asked since the last try.
    pub(super) fn is_retry(&self) -> bool {
        self.busy_at.is_some_and(|at| at.elapsed() < RETRY)
    }
}

/// The place that the calling thread was last refused (rule BusyToHandler).
struct Expected {
    db: Weak<Database>,
    connection: ConnectionId,
    claim: Claim,
    ticket: Option<Ticket>,
    since: Instant,
    process: u32,
}

thread_local! {
    static EXPECTED: RefCell<Option<Expected>> = const { RefCell::new(None) };
}

/// If SQLite sleeps on this thread next, it sleeps for the writer's place.
pub(super) fn expect(db: &Arc<Database>, connection: ConnectionId, grace: Duration, ticket: Option<Ticket>) {
    let expected = Expected {
        db: Arc::downgrade(db),
        connection,
        claim: Claim::Tentative(grace),
        ticket,
        since: Instant::now(),
        process: std::process::id(),
    };
    EXPECTED.set(Some(expected));
}

/// xSleep. False if there is no place to wait for: then the caller sleeps.
pub fn nap(time: Duration) -> bool {
    let is_mine = |e: &Expected| e.since.elapsed() < SLEEPS && e.process == std::process::id();
    let Some(expected) = EXPECTED.take().filter(is_mine) else { return false };
    let Some(db) = expected.db.upgrade() else { return false };
    let deadline = Instant::now() + time;
    let Expected { connection, claim, mut ticket, .. } = expected;
    if db.queue.acquire_with(connection, claim, Patience::from(time), &mut ticket) {
        db.queue.set_inside(connection, true);
        let entered = db.enter(false, deadline);
        db.queue.set_inside(connection, false);
        if entered.is_ok() {
            return true;
        }
        db.queue.give_up(connection);
    }
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    true
}
