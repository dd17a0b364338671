//! The lock of a connection's state. SQLite uses a connection from one thread at a time, so the
//! lock is nearly always free. A transaction takes it some thirty times, so an ordinary store gives
//! it back: there is no sleeping thread to wake.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lock_api::{GuardSend, RawMutex};

/// Whether a thread has it.
pub(crate) struct SpinFlag(AtomicBool);

// SAFETY: the swap shows the lock free to one thread alone, which has it until the store.
unsafe impl RawMutex for SpinFlag {
    // Taken afresh by each lock.
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: SpinFlag = SpinFlag(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        while !self.try_lock() {
            thread::yield_now();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
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
    fn one_thread_has_it_at_a_time() {
        let sum = Mutex::<SpinFlag, [u64; 2]>::new([0; 2]);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut sum = sum.lock();
                        sum[0] += 1;
                        sum[1] = sum[0];
                    }
                });
            }
        });
        assert_eq!(*sum.lock(), [80_000; 2]);
        let guard = sum.lock();
        assert!(sum.try_lock().is_none());
        drop(guard);
        assert!(sum.try_lock().is_some());
    }
}
