//! The lock of a connection's state, which is free at each call of SQLite's: SQLite calls a file
//! from one thread at a time, with the connection's mutex or as `SQLITE_OPEN_NOMUTEX` asks of the
//! application. A transaction takes it some forty times, so taking it is an ordinary store.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lock_api::{GuardSend, RawMutex};

/// Whether a call has it.
pub(crate) struct OneCall(AtomicBool);

// SAFETY: SQLite calls a file from one thread at a time, and each call has the lock until it
// returns, so no two threads are between the load and the store. A build with debug assertions
// does both in one step, and ends where two threads meet.
unsafe impl RawMutex for OneCall {
    // Taken afresh by each lock.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: OneCall = OneCall(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        while !self.try_lock() {
            thread::yield_now();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        if self.0.load(Ordering::Acquire) {
            return false;
        }
        let was_taken = cfg!(debug_assertions) && self.0.swap(true, Ordering::Acquire);
        debug_assert!(!was_taken, "SQLite calls a connection from one thread at a time");
        self.0.store(true, Ordering::Relaxed);
        true
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_api::Mutex;

    #[test]
    fn one_call_has_it_at_a_time() {
        let sum = Mutex::<OneCall, u64>::new(0);
        let guard = sum.lock();
        assert!(sum.try_lock().is_none());
        drop(guard);
        *sum.try_lock().unwrap() += 1;
        assert_eq!(*sum.lock(), 1);
    }
}
