//! How the transactions of a process follow each other: when it detaches from an idle database.

use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::types::Tid;

/// Three pauses make a rhythm if none exceeds this, nor twice another. The process then stays
/// attached for twice the longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);
const ALIKE: u32 = 2;
/// Behind so many transactions, all in one burst, a new session costs less than 5 % of them.
const BURST: u64 = 100;

#[derive(Debug, Default)]
pub struct Pace {
    quiet_since: Option<Instant>,
    newest: Tid,
    /// The newest before the last pause.
    before_pause: Option<Tid>,
    written_at: Option<Instant>,
    /// The last three, newest first, in which the process might have detached; 0 behind a burst.
    pauses: [Duration; 3],
}

impl Pace {
    pub fn is_over(&mut self, now: Instant, was_used: bool, newest: Tid, idle: Duration) -> bool {
        if newest != self.newest {
            let pause = self.written_at.replace(now).map_or(Duration::ZERO, |before| now - before);
            if pause > idle {
                let burst =
                    self.before_pause.replace(self.newest).map_or(0, |before| self.newest.0.saturating_sub(before.0));
                let counted = if burst < BURST { pause } else { Duration::ZERO };
                self.pauses = [counted, self.pauses[0], self.pauses[1]];
            }
            self.newest = newest;
        }
        if was_used {
            self.quiet_since = Some(now);
        }
        let since = *self.quiet_since.get_or_insert(now);
        now - since >= self.patience(idle)
    }

    fn patience(&self, idle: Duration) -> Duration {
        let mut pauses = self.pauses;
        pauses.sort_unstable();
        let [shortest, _, longest] = pauses;
        let is_rhythm = longest <= PAUSE_MAX && longest <= shortest * ALIKE;
        if is_rhythm { (longest * ALIKE).max(idle) } else { idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(1);

    fn detaches(commits: &[u64], until: u64) -> Vec<f64> {
        let begin = Instant::now();
        let mut pace = Pace::default();
        let mut due = commits.iter().copied().peekable();
        let (mut newest, mut is_attached) = (Tid(1), false);
        let mut detached = Vec::new();
        for half in 0..2 * until {
            let at = Duration::from_millis(500 * half);
            let mut was_used = false;
            while due.next_if(|second| Duration::from_secs(*second) <= at).is_some() {
                newest = newest.next();
                (was_used, is_attached) = (true, true);
            }
            if is_attached && pace.is_over(begin + at, was_used, newest, IDLE) {
                is_attached = false;
                detached.push(at.as_secs_f64());
            }
        }
        detached
    }

    #[test]
    fn a_process_that_fell_silent_detaches_soon() {
        assert_eq!(detaches(&[0], 60), [1.0]);
        assert_eq!(detaches(&[0, 0, 1, 1, 2], 60), [3.0]);
        // Without a rhythm it does so after each transaction.
        assert_eq!(detaches(&[0, 4, 20, 23, 40], 60), [1.0, 5.0, 21.0, 24.0, 41.0]);
        // Nor behind two pauses that are alike by chance.
        assert_eq!(detaches(&[0, 3, 6, 20], 60), [1.0, 4.0, 7.0, 21.0]);
    }

    #[test]
    fn bursts_make_no_rhythm() {
        let every = |n: u64| (0..6).flat_map(|at| vec![3 * at; n as usize]).collect::<Vec<_>>();
        assert_eq!(detaches(&every(20), 60), [1.0, 4.0, 7.0, 21.0]);
        assert_eq!(detaches(&every(200), 60), [1.0, 4.0, 7.0, 10.0, 13.0, 16.0]);
    }

    #[test]
    fn a_process_that_commits_regularly_stays_attached() {
        for pause in [2, 5, 10, 30, 60] {
            let commits: Vec<_> = (0..40).map(|n| n * pause).collect();
            let end = 39.0 * pause as f64 + (2.0 * pause as f64);
            let expected = [1.0, pause as f64 + 1.0, 2.0 * pause as f64 + 1.0, end];
            assert_eq!(detaches(&commits, 45 * pause), expected, "every {pause} s");
        }
        let hourly: Vec<_> = (0..5).map(|n| 3600 * n).collect();
        assert_eq!(detaches(&hourly, 5 * 3600).len(), 5);
    }
}
