//! What the concurrent parts wait with, in one place: the model checker (`tests/model.rs`) compiles those parts
//! against its own.

pub use parking_lot::{Condvar, Mutex, MutexGuard};
pub use std::thread;

/// The clock.
pub mod time {
    use std::time::{Duration, Instant};

    /// Whether `grace` has passed since `since`.
    pub fn is_over(since: Instant, grace: Duration) -> bool {
        since.elapsed() >= grace
    }
}
