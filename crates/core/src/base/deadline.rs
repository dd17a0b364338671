use std::cell::Cell;
use std::time::Duration;

use crate::base::clock::Instant;

/// A moment, or a time after the wait begins: a caller that need not wait reads no clock.
#[derive(Clone, Debug)]
pub struct Deadline {
    at: Cell<Option<Instant>>,
    wait: Duration,
}

impl Deadline {
    pub fn at(&self) -> Instant {
        let at = self.at.get().unwrap_or_else(|| Instant::now() + self.wait);
        self.at.set(Some(at));
        at
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Deadline {
        Deadline { at: Cell::new(Some(at)), wait: Duration::ZERO }
    }
}

/// Counted from the first call of [`Deadline::at`].
impl From<Duration> for Deadline {
    fn from(wait: Duration) -> Deadline {
        Deadline { at: Cell::new(None), wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_where_it_was_first_seen() {
        let begun = Instant::now();
        let deadline = Deadline::from(Duration::from_secs(60));
        let at = deadline.at();
        assert!(at >= begun + Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(deadline.at(), at);
        assert_eq!(Deadline::from(begun).at(), begun);
    }
}
