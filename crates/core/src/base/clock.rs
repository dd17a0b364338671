//! Time, waiting for it, and chance. The feature `simulation` has `schedule.rs` instead, where a
//! program can choose what runs next.

use std::time::Duration;

pub use std::thread::{sleep, yield_now};
pub use std::time::Instant;

/// Whether a schedule says what runs next.
#[inline(always)]
pub const fn is_scheduled() -> bool {
    false
}

/// Under a schedule: lets others run until `look` finds something, at most `looks` times.
#[inline(always)]
pub fn look_until<T>(_looks: u32, _look: impl FnMut() -> Option<T>) -> Option<T> {
    None
}

/// Under a schedule: lets others run until then, or for a while.
#[inline(always)]
pub const fn wait_until(_time: Instant) {}

/// Under a schedule: lets others run until `look` finds something, or then.
#[inline(always)]
pub fn look_by<T>(_time: Instant, _look: impl FnMut() -> Option<T>) -> Option<T> {
    None
}

/// Under a schedule: its time.
#[inline(always)]
pub const fn scheduled() -> Option<Duration> {
    None
}

/// Under a schedule: its random number.
#[inline(always)]
pub const fn random() -> Option<u64> {
    None
}
