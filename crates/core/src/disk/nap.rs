//! Waiting for another process where the system has no words to sleep on.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use crate::base::clock::{self, Instant};

const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

pub fn wait(word: &AtomicU32, seen: u32, nap: Duration) {
    let begun = Instant::now();
    let mut pause = PAUSE_MIN;
    while word.load(SeqCst) == seen {
        let left = nap.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return;
        }
        clock::sleep(pause.min(left));
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

pub fn wake(_word: &AtomicU32, _all: bool) {}
