//! Debug builds count how often a thread takes the lock of the shared state.

use super::DatabaseState;
use crate::disk::sync::{Mutex, MutexGuard};

#[cfg(debug_assertions)]
thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

pub struct StateLock(Mutex<DatabaseState>);

impl StateLock {
    pub const fn new(state: DatabaseState) -> StateLock {
        StateLock(Mutex::new(state))
    }

    pub fn lock(&self) -> MutexGuard<'_, DatabaseState> {
        #[cfg(debug_assertions)]
        TAKEN.set(TAKEN.get() + 1);
        self.0.lock()
    }

    /// For debug checks: not counted.
    pub fn lock_to_check(&self) -> MutexGuard<'_, DatabaseState> {
        self.0.lock()
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, DatabaseState>> {
        self.0.try_lock()
    }

    pub fn get_mut(&mut self) -> &mut DatabaseState {
        self.0.get_mut()
    }
}

#[cfg(all(test, debug_assertions))]
pub fn times_taken() -> u64 {
    TAKEN.get()
}
