//! The writer's place: one connection of a database writes at a time, first come, first served.
//!
//! The place is handed to the next in the queue, never thrown open, so no thread starves. A connection
//! that usually writes takes it *tentatively* before its snapshot, so that its upgrade is never stale;
//! a tentative holder that only reads loses it to whoever has waited for [`GRACE`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a tentative holder is left alone.
const GRACE: Duration = Duration::from_millis(2);

/// A connection, for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Copy)]
struct Holder {
    connection: ConnectionId,
    thread: ThreadId,
    tentative: bool,
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
        self.holder = next.as_ref().map(|w| w.holder);
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
    pub fn acquire(&self, connection: ConnectionId, tentative: bool, wait: Duration) -> bool {
        let me = Holder { connection, thread: std::thread::current().id(), tentative };
        let deadline = Instant::now() + wait;
        let waiter = {
            let mut inner = self.inner.lock();
            match inner.holder {
                None => {
                    inner.holder = Some(me);
                    return true;
                }
                Some(h) if h.connection == connection => {
                    inner.holder = Some(Holder { tentative: h.tentative && tentative, ..me });
                    return true;
                }
                // The holder cannot go on while this thread waits for it: two connections of one
                // thread must not deadlock.
                Some(h) if h.thread == me.thread => {
                    if !h.tentative {
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
        loop {
            let now = Instant::now();
            let until = deadline.min(now + GRACE);
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
            if first && inner.holder.is_none_or(|h| h.tentative) {
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
        self.inner.lock().holder.is_some_and(|h| !h.tentative)
    }

    /// Gives the place back, if `connection` has it, to the first in the queue.
    pub fn release(&self, connection: ConnectionId) {
        let mut inner = self.inner.lock();
        if inner.holder.is_some_and(|h| h.connection == connection) {
            inner.hand_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn one_thread_cannot_wait_for_itself() {
        let q = WriterQueue::default();
        assert!(q.acquire(ConnectionId(1), false, LONG));
        assert!(!q.acquire(ConnectionId(2), false, LONG));
        q.release(ConnectionId(2));
        assert!(q.holds(ConnectionId(1)));
        q.release(ConnectionId(1));
        assert!(q.acquire(ConnectionId(2), false, LONG));
    }

    #[test]
    fn a_tentative_place_is_lost_to_a_waiter_and_not_a_firm_one() {
        let q = WriterQueue::default();
        assert!(q.acquire(ConnectionId(1), true, LONG));
        std::thread::scope(|s| {
            s.spawn(|| assert!(q.acquire(ConnectionId(2), false, LONG)));
        });
        assert!(q.holds(ConnectionId(2)));
        std::thread::scope(|s| {
            s.spawn(|| assert!(!q.acquire(ConnectionId(3), false, 5 * GRACE)));
        });
        assert!(q.holds(ConnectionId(2)));
    }

    #[test]
    fn everybody_gets_a_turn_and_nobody_two_at_once() {
        let q = WriterQueue::default();
        let inside = AtomicU64::new(0);
        std::thread::scope(|s| {
            for t in 0..8 {
                let (q, inside) = (&q, &inside);
                s.spawn(move || {
                    for _ in 0..200 {
                        assert!(q.acquire(ConnectionId(t), t % 2 == 0, LONG));
                        if q.acquire(ConnectionId(t), false, LONG) {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                        }
                        q.release(ConnectionId(t));
                    }
                });
            }
        });
        assert!(!q.is_taken());
    }
}
