//! The writer's place: one connection of a database writes at a time, first come, first served.
//!
//! The place is handed to the next in the queue, never thrown open, so no thread starves. A connection
//! that usually writes takes it *tentatively* before its snapshot, so that its upgrade is never stale. A
//! tentative holder that does not begin to write although it could loses the place to the next: who was seen asleep,
//! or busy with something else, for its grace. A thread that is kept from its processor keeps the place.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::idle::{Task, Watch};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Event, Mutex};

/// How often the first in the queue looks what a tentative holder does: first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// Whoever is about to give up takes the place from a tentative holder that has had it for so long, whatever it does.
const STARVED: Duration = Duration::from_millis(500);
/// The first in the queue waits so long without sleeping, if a turn usually takes less: waking up takes longer.
const SPIN: Duration = Duration::from_micros(50);

/// How the place is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// To write.
    Firm,
    /// To write, probably: after so long another may have the place.
    Tentative(Duration),
}

/// How long the place is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// In all.
    pub all: Duration,
    /// While nobody gets a turn.
    pub turn: Duration,
}

impl From<Duration> for Patience {
    fn from(all: Duration) -> Self {
        Patience { all, turn: all }
    }
}

/// A connection, for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Copy)]
struct Holder {
    connection: ConnectionId,
    thread: ThreadId,
    task: Task,
    claim: Claim,
    /// Which turn it is.
    turn: u64,
    /// When it had the place and went on.
    since: Instant,
    /// It waits inside of onewrite, so it is not idle.
    inside: bool,
}

impl Holder {
    fn is_tentative(&self) -> bool {
        self.claim != Claim::Firm
    }
}

struct Waiter {
    holder: Holder,
    granted: Event,
}

#[derive(Default)]
struct Inner {
    holder: Option<Holder>,
    waiting: VecDeque<Arc<Waiter>>,
    turns: u64,
    /// How long a turn usually takes.
    usual: Duration,
}

impl Inner {
    fn take(&mut self, me: Holder) {
        self.turns += 1;
        self.holder = Some(Holder { since: Instant::now(), turn: self.turns, ..me });
    }

    /// Gives the place to the first in the queue, who is to be told.
    fn hand_over(&mut self) -> Option<Arc<Waiter>> {
        self.holder = None;
        let next = self.waiting.pop_front()?;
        self.take(next.holder);
        Some(next)
    }
}

/// The writer's place of one database in one process.
#[derive(Default)]
pub struct WriterQueue {
    inner: Mutex<Inner>,
}

impl WriterQueue {
    /// Takes the place for `connection`, waiting as long as `patience` says. False if it was not to be had.
    /// A firm request of the holder of a tentative place makes it firm.
    pub fn acquire(&self, connection: ConnectionId, claim: Claim, patience: impl Into<Patience>) -> bool {
        let patience = patience.into();
        let (thread, task) = (thread::current().id(), Task::current());
        let me = Holder { connection, thread, task, claim, turn: 0, since: Instant::now(), inside: false };
        let (waiter, spin, first) = {
            let mut inner = self.inner.lock();
            match &mut inner.holder {
                None => {
                    inner.take(me);
                    return true;
                }
                Some(h) if h.connection == connection => {
                    if h.is_tentative() {
                        *h = Holder { claim, thread, task, ..*h };
                    }
                    return true;
                }
                // The holder cannot go on while this thread waits for it: two connections of one
                // thread must not deadlock.
                Some(h) if h.thread == me.thread => {
                    if !h.is_tentative() {
                        return false;
                    }
                    inner.take(me);
                    return true;
                }
                Some(_) => {}
            }
            let waiter = Arc::new(Waiter { holder: me, granted: Event::new() });
            inner.waiting.push_back(waiter.clone());
            let first = inner.waiting.len() == 1;
            (waiter, if first && inner.usual < SPIN { SPIN } else { Duration::ZERO }, first)
        };
        let got = waiter.granted.spin(spin) || self.wait(&waiter, patience, first);
        if let Some(h) = self.inner.lock().holder.as_mut().filter(|h| got && h.connection == connection) {
            // The time it took to wake up is not its own.
            h.since = Instant::now();
        }
        got
    }

    /// Time is counted nap by nap, so a process that was stopped for a while has not waited meanwhile.
    fn wait(&self, waiter: &Arc<Waiter>, patience: Patience, first: bool) -> bool {
        let mut nap = if first { LOOK.0 } else { LOOK.1 };
        let mut waited = Duration::ZERO;
        // The turn that was seen last, since when, and what its holder does.
        let mut seen: Option<(u64, Duration, Watch)> = None;
        loop {
            let this_nap = nap.min(patience.all.saturating_sub(waited));
            if waiter.granted.wait_until(Instant::now() + this_nap) {
                return true;
            }
            waited += this_nap;
            let (holder, first) = {
                let inner = self.inner.lock();
                (inner.holder, inner.waiting.front().is_some_and(|w| Arc::ptr_eq(w, waiter)))
            };
            let mut idle = Duration::ZERO;
            nap = LOOK.1.min(2 * nap);
            match (&mut seen, &holder) {
                (Some((turn, _, watch)), Some(holder)) if *turn == holder.turn => {
                    if first && holder.is_tentative() {
                        idle = watch.idle(this_nap);
                    }
                }
                (_, Some(holder)) => {
                    seen = Some((holder.turn, waited, Watch::new(holder.task)));
                    nap = if first { LOOK.0 } else { LOOK.1 };
                }
                (_, None) => {}
            }
            let (turn, unchanged) = seen.as_ref().map_or((0, waited), |(turn, since, _)| (*turn, waited - *since));
            let over = waited >= patience.all;
            let mut inner = self.inner.lock();
            if !inner.waiting.iter().any(|w| Arc::ptr_eq(w, waiter)) {
                // Handed over, and about to be told.
                return true;
            }
            let may_have = |h: &Holder| match h.claim {
                Claim::Tentative(grace) if h.turn == turn => {
                    (!h.inside && idle >= grace) || (over && unchanged >= STARVED)
                }
                Claim::Tentative(_) | Claim::Firm => false,
            };
            if first && inner.holder.as_ref().is_none_or(may_have) {
                inner.hand_over();
                return true;
            }
            if over || unchanged >= patience.turn {
                inner.waiting.retain(|w| !Arc::ptr_eq(w, waiter));
                return false;
            }
        }
    }

    /// Whether `connection` has the place.
    pub fn holds(&self, connection: ConnectionId) -> bool {
        self.inner.lock().holder.is_some_and(|h| h.connection == connection)
    }

    /// Whether nobody has the place.
    pub fn is_idle(&self) -> bool {
        self.inner.lock().holder.is_none()
    }

    /// Whether anybody has the place for good.
    pub fn is_taken(&self) -> bool {
        self.inner.lock().holder.is_some_and(|h| !h.is_tentative())
    }

    /// How many have the place or wait for it.
    pub fn crowd(&self) -> usize {
        let inner = self.inner.lock();
        inner.waiting.len() + usize::from(inner.holder.is_some())
    }

    /// `connection` has turned out to read: a tentative place is another's to have from now on.
    pub fn doubt(&self, connection: ConnectionId, grace: Duration) {
        let mut inner = self.inner.lock();
        if let Some(h) = inner.holder.as_mut().filter(|h| h.connection == connection && h.is_tentative()) {
            h.claim = Claim::Tentative(grace);
        }
    }

    /// `connection` begins or ends to wait inside of onewrite: it is not idle meanwhile.
    pub fn set_inside(&self, connection: ConnectionId, inside: bool) {
        let mut inner = self.inner.lock();
        if let Some(h) = inner.holder.as_mut().filter(|h| h.connection == connection) {
            h.inside = inside;
        }
    }

    /// Whether at least `count` wait.
    #[cfg(test)]
    pub(crate) fn has_waiters(&self, count: usize) -> bool {
        self.inner.lock().waiting.len() >= count
    }

    /// Gives the place back, if `connection` has it, to the first in the queue. Returns how long a turn usually takes.
    pub fn release(&self, connection: ConnectionId) -> Duration {
        let (next, usual) = {
            let mut inner = self.inner.lock();
            let Some(h) = inner.holder.filter(|h| h.connection == connection) else { return inner.usual };
            inner.usual = (inner.usual * 7 + h.since.elapsed()) / 8;
            (inner.hand_over(), inner.usual)
        };
        if let Some(next) = next {
            next.granted.set();
        }
        usual
    }
}
