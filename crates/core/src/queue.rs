//! The writer's place: one connection of a database writes at a time, first come, first served.
//!
//! The place is handed to the next in the queue, never thrown open, so no thread starves. A connection
//! that usually writes takes it *tentatively* before its snapshot, so that its upgrade is never stale;
//! a tentative holder that does not begin to write within its grace loses it to the next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::thread::{self, ThreadId};
use crate::sync::{Condvar, Mutex, time};

/// How often those who wait look whether a tentative holder's grace is over: first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// How the place is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// To write.
    Firm,
    /// To write, probably: after so long another may have the place.
    Tentative(Duration),
}

/// A connection, for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Copy)]
struct Holder {
    connection: ConnectionId,
    thread: ThreadId,
    claim: Claim,
    /// When it got the place.
    since: Instant,
}

impl Holder {
    fn is_tentative(&self) -> bool {
        self.claim != Claim::Firm
    }

    /// Whether another may have the place.
    fn is_over(&self) -> bool {
        matches!(self.claim, Claim::Tentative(grace) if time::is_over(self.since, grace))
    }
}

struct Waiter {
    holder: Holder,
    granted: Mutex<bool>,
    wake: Condvar,
}

#[derive(Default)]
struct Inner {
    holder: Option<Holder>,
    waiting: VecDeque<Arc<Waiter>>,
}

impl Inner {
    /// Gives the place to the first in the queue.
    fn hand_over(&mut self) {
        let next = self.waiting.pop_front();
        self.holder = next.as_ref().map(|w| Holder { since: Instant::now(), ..w.holder });
        if let Some(waiter) = next {
            *waiter.granted.lock() = true;
            waiter.wake.notify_one();
        }
    }
}

/// The writer's place of one database in one process.
#[derive(Default)]
pub struct WriterQueue {
    inner: Mutex<Inner>,
}

impl WriterQueue {
    /// Takes the place for `connection`, waiting at most `wait`. False if it was not to be had.
    /// A firm request of the holder of a tentative place makes it firm.
    pub fn acquire(&self, connection: ConnectionId, claim: Claim, wait: Duration) -> bool {
        let since = Instant::now();
        let me = Holder { connection, thread: thread::current().id(), claim, since };
        let deadline = since + wait;
        let waiter = {
            let mut inner = self.inner.lock();
            match inner.holder {
                None => {
                    inner.holder = Some(me);
                    return true;
                }
                Some(h) if h.connection == connection => {
                    inner.holder = Some(if h.is_tentative() { me } else { h });
                    return true;
                }
                // The holder cannot go on while this thread waits for it: two connections of one
                // thread must not deadlock.
                Some(h) if h.thread == me.thread => {
                    if !h.is_tentative() {
                        return false;
                    }
                    inner.holder = Some(me);
                    return true;
                }
                Some(_) => {}
            }
            let waiter = Arc::new(Waiter { holder: me, granted: Mutex::new(false), wake: Condvar::new() });
            inner.waiting.push_back(waiter.clone());
            waiter
        };
        let mut look = LOOK.0;
        loop {
            let until = deadline.min(Instant::now() + look);
            look = LOOK.1.min(2 * look);
            {
                let mut granted = waiter.granted.lock();
                if !*granted {
                    waiter.wake.wait_until(&mut granted, until);
                }
                if *granted {
                    return true;
                }
            }
            let mut inner = self.inner.lock();
            if *waiter.granted.lock() {
                return true;
            }
            let first = inner.waiting.front().is_some_and(|w| Arc::ptr_eq(w, &waiter));
            if first && inner.holder.is_none_or(|h| h.is_over()) {
                inner.hand_over();
                return true;
            }
            if Instant::now() >= deadline {
                inner.waiting.retain(|w| !Arc::ptr_eq(w, &waiter));
                return false;
            }
        }
    }

    /// Whether `connection` has the place.
    pub fn holds(&self, connection: ConnectionId) -> bool {
        self.inner.lock().holder.is_some_and(|h| h.connection == connection)
    }

    /// Whether anybody has the place for good.
    pub fn is_taken(&self) -> bool {
        self.inner.lock().holder.is_some_and(|h| !h.is_tentative())
    }

    /// `connection` has turned out to read: a tentative place is another's to have from now on.
    pub fn doubt(&self, connection: ConnectionId, grace: Duration) {
        let mut inner = self.inner.lock();
        if let Some(h) = inner.holder.as_mut().filter(|h| h.connection == connection && h.is_tentative()) {
            h.claim = Claim::Tentative(grace);
        }
    }

    /// Whether at least `count` wait.
    #[cfg(test)]
    pub(crate) fn has_waiters(&self, count: usize) -> bool {
        self.inner.lock().waiting.len() >= count
    }

    /// Gives the place back, if `connection` has it, to the first in the queue.
    pub fn release(&self, connection: ConnectionId) {
        let mut inner = self.inner.lock();
        if inner.holder.is_some_and(|h| h.connection == connection) {
            inner.hand_over();
        }
    }
}
