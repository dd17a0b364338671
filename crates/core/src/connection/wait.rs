//! Waiting for the writer's place while SQLite's busy handler sleeps.
//!
//! How long a connection is willing to wait only its busy handler knows. So a lock that somebody keeps is answered with
//! BUSY at once; SQLite asks the handler, and tries again (rule BusyToHandler). The handler of `sqlite3_busy_timeout`
//! sleeps by `xSleep` of the connection's VFS, on the same thread, and counts what it asked for: there the thread waits
//! in the queue with the ticket of its last try, and wakes up as soon as it has the place, which is its own tentatively
//! until it tries again.
//! Another handler, which sleeps for itself, keeps its turn in the queue by the ticket alone.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::database::Database;
use crate::database::queue::{ConnectionId, Patience, Ticket, TurnClaim};

/// A try that comes so long after the last one is the first of a new row of them. The handler of
/// `sqlite3_busy_timeout` sleeps 100 ms at most.
const RETRY: Duration = Duration::from_millis(250);
/// SQLite sleeps so soon after it was told BUSY, or not for that.
const SLEEPS: Duration = Duration::from_millis(20);

/// What a connection keeps of tries that were in vain.
#[derive(Default)]
pub(super) struct Waits {
    /// Its turn in the queue.
    pub(super) ticket: Option<Ticket>,
    /// When it was told BUSY last.
    busy_at: Option<Instant>,
}

impl Waits {
    /// It was told BUSY.
    pub(super) fn note_busy(&mut self) {
        self.busy_at = Some(Instant::now());
    }

    /// A transaction begins: whoever comes again after so long comes anew.
    pub(super) fn begin(&mut self) {
        self.ticket = self.ticket.filter(|_| self.is_retry());
    }

    /// Whether SQLite's busy handler was probably asked since the last try.
    pub(super) fn is_retry(&self) -> bool {
        self.busy_at.is_some_and(|at| at.elapsed() < RETRY)
    }
}

/// The place that the calling thread was last turned away from (rule BusyToHandler).
struct Expected {
    db: Weak<Database>,
    connection: ConnectionId,
    claim: TurnClaim,
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
        claim: TurnClaim::Tentative(grace),
        ticket,
        since: Instant::now(),
        process: std::process::id(),
    };
    EXPECTED.set(Some(expected));
}

/// xSleep. False if nothing is known that is worth to be awake for: then the caller sleeps.
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
