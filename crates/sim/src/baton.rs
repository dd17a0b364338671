//! The thread that has the baton runs. Locks, waits and operations of the disk are where it may be
//! passed on, and time passes only there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onewrite_core::disk::sim::{Schedule, SplitMix64, under};
#[cfg(feature = "canary")]
use onewrite_core::rules;
use parking_lot::{Condvar, Mutex};

/// A program of a thread.
pub type Program = Box<dyn FnOnce() + Send>;

/// Called where a thread goes on: it may end it.
pub type GoesOn = Box<dyn Fn() + Send + Sync>;

/// More changes of the running thread than any history needs.
const CHANGES_MAX: u64 = 2_000_000;

/// More than one without long waits needs.
const CHANGES_USUAL: u64 = 200_000;

#[derive(Clone, Copy, Debug)]
enum Stage {
    Ready,
    /// `looked`: it has looked since another acted.
    Waits {
        until: Option<Duration>,
        looked: bool,
    },
    Over,
}

struct State {
    running: usize,
    stages: Vec<Stage>,
    rng: SplitMix64,
    /// One in so many points passes the baton on.
    passes: usize,
    now: Duration,
    changes: u64,
    /// Why no thread goes on.
    stuck: Option<String>,
}

/// Shared by the threads of one [`run`].
struct Baton {
    state: Mutex<State>,
    turns: Vec<Condvar>,
    end: Condvar,
}

/// One thread's.
struct Seat {
    baton: Arc<Baton>,
    me: usize,
    goes_on: GoesOn,
}

impl State {
    fn acted(&mut self) {
        for stage in &mut self.stages {
            if let Stage::Waits { looked, .. } = stage {
                *looked = false;
            }
        }
    }

    /// The next thread; `None` if all are over, or none can go on.
    fn choose(&mut self) -> Option<usize> {
        let may = |stage: &Stage, now: Duration| match stage {
            Stage::Ready => true,
            Stage::Waits { until, looked } => !looked || until.is_some_and(|until| until <= now),
            Stage::Over => false,
        };
        let mut able: Vec<usize> = (0..self.stages.len()).filter(|n| may(&self.stages[*n], self.now)).collect();
        if able.is_empty() {
            let ends = self.stages.iter().filter_map(|stage| match stage {
                Stage::Waits { until, .. } => *until,
                _ => None,
            });
            self.now = ends.min()?;
            able = (0..self.stages.len()).filter(|n| may(&self.stages[*n], self.now)).collect();
        }
        Some(able[self.rng.below(able.len())])
    }
}

impl Baton {
    /// Passes the baton from `me`, and returns when it has come back.
    fn pass_on(&self, me: usize, stage: Stage) {
        let mut state = self.state.lock();
        state.changes += 1;
        // Those that look again and again wake each other: time hurries, so that their waits end.
        let us = if state.changes < CHANGES_USUAL { 1 } else { 1000 };
        state.now += Duration::from_micros(us);
        if matches!(stage, Stage::Ready) {
            state.acted();
        }
        state.stages[me] = stage;
        let next = if state.changes < CHANGES_MAX { state.choose() } else { None };
        let is_over = |stage: &Stage| matches!(stage, Stage::Over);
        match next {
            Some(next) => {
                state.running = next;
                if next != me {
                    self.turns[next].notify_one();
                }
            }
            None if state.stages.iter().all(is_over) => {
                self.end.notify_one();
            }
            None => {
                let stages = format!("{:?} after {} changes", state.stages, state.changes);
                state.stuck = Some(format!("no thread goes on: {stages}"));
                self.end.notify_one();
            }
        }
        if !is_over(&stage) {
            self.take(me, state);
        }
    }

    fn take(&self, me: usize, mut state: parking_lot::MutexGuard<'_, State>) {
        // Threads that are stuck stay so: to unwind them would run destructors that wait.
        while state.running != me || state.stuck.is_some() {
            self.turns[me].wait(&mut state);
        }
        if matches!(state.stages[me], Stage::Ready) {
            // It may give a lock back before its next point.
            state.acted();
        }
        state.stages[me] = Stage::Ready;
    }
}

impl Schedule for Seat {
    fn pass(&self) {
        let mut state = self.baton.state.lock();
        let passes = state.passes;
        if state.stages.len() > 1 && state.rng.below(passes) == 0 {
            drop(state);
            self.baton.pass_on(self.me, Stage::Ready);
            (self.goes_on)();
        } else {
            state.now += Duration::from_micros(1);
            state.acted();
        }
    }

    fn wait(&self, until: Option<Duration>) {
        self.baton.pass_on(self.me, Stage::Waits { until, looked: true });
        (self.goes_on)();
    }

    fn now(&self) -> Duration {
        self.baton.state.lock().now
    }

    fn random(&self) -> u64 {
        self.baton.state.lock().rng.next_u64()
    }
}

/// A thread by itself: its waits take no time.
struct Alone {
    now: Mutex<Duration>,
    rng: Mutex<SplitMix64>,
    waits: AtomicU64,
}

impl Schedule for Alone {
    fn pass(&self) {
        *self.now.lock() += Duration::from_micros(1);
    }

    fn wait(&self, until: Option<Duration>) {
        assert!(self.waits.fetch_add(1, Ordering::Relaxed) < CHANGES_MAX, "a thread waits for itself");
        let mut now = self.now.lock();
        *now = until.map_or(*now + Duration::from_millis(1), |until| until.max(*now));
    }

    fn now(&self) -> Duration {
        *self.now.lock()
    }

    fn random(&self) -> u64 {
        self.rng.lock().next_u64()
    }
}

/// Calls `f` in simulated time, with random numbers of `seed`, and without other threads of the
/// simulator.
pub fn alone<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    let (now, rng) = (Mutex::new(Duration::from_secs(1000)), Mutex::new(SplitMix64::new(seed)));
    under(Some(Arc::new(Alone { now, rng, waits: AtomicU64::new(0) })), f)
}

/// Runs the programs to their ends in an order of `seed`. `now` goes on. A panic, or threads that
/// wait for each other for ever, are an error.
pub fn run(seed: u64, now: &mut Duration, programs: Vec<(Program, GoesOn)>) -> Result<(), String> {
    let mut rng = SplitMix64::new(seed);
    let passes = [1, 2, 4, 16][rng.below(4)];
    let stages = vec![Stage::Ready; programs.len()];
    let running = rng.below(programs.len());
    let state = State { running, stages, rng, passes, now: *now, changes: 0, stuck: None };
    let turns = programs.iter().map(|_| Condvar::new()).collect();
    let baton = Arc::new(Baton { state: Mutex::new(state), turns, end: Condvar::new() });
    #[cfg(feature = "canary")]
    let broken = rules::broken_on_this_thread();
    let threads: Vec<_> = (0..)
        .zip(programs)
        .map(|(me, (program, goes_on))| {
            let baton = baton.clone();
            std::thread::spawn(move || {
                #[cfg(feature = "canary")]
                rules::break_on_this_thread(broken);
                baton.take(me, baton.state.lock());
                let seat: Arc<dyn Schedule> = Arc::new(Seat { baton: baton.clone(), me, goes_on });
                let ended = catch_unwind(AssertUnwindSafe(|| under(Some(seat), program)));
                baton.state.lock().acted();
                baton.pass_on(me, Stage::Over);
                ended
            })
        })
        .collect();
    let stuck = {
        let mut state = baton.state.lock();
        while state.stuck.is_none() && !state.stages.iter().all(|stage| matches!(stage, Stage::Over)) {
            baton.end.wait(&mut state);
        }
        *now = state.now;
        state.stuck.clone()
    };
    if let Some(stuck) = stuck {
        return Err(stuck);
    }
    for thread in threads {
        if let Ok(Err(panic)) | Err(panic) = thread.join() {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            return Err(format!("a panic: {}", said.unwrap_or("of an unknown kind")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use onewrite_core::disk::Mutex as CoreMutex;
    use onewrite_core::disk::sim::point;
    use parking_lot::Mutex;

    use super::{GoesOn, Program, run};

    fn goes_on() -> GoesOn {
        Box::new(|| ())
    }

    fn order(seed: u64) -> Vec<usize> {
        let (seen, lock) = (Arc::new(Mutex::new(Vec::new())), Arc::new(CoreMutex::new(())));
        let programs = (0..3).map(|n| {
            let (seen, lock) = (seen.clone(), lock.clone());
            let program: Program = Box::new(move || {
                for _ in 0..5 {
                    let _guard = lock.lock();
                    seen.lock().push(n);
                    point();
                    seen.lock().push(n);
                }
            });
            (program, goes_on())
        });
        run(seed, &mut Duration::default(), programs.collect()).unwrap();
        let seen = seen.lock().clone();
        assert!(seen.chunks(2).all(|pair| pair[0] == pair[1]), "one has the lock at a time: {seen:?}");
        seen
    }

    #[test]
    fn a_seed_has_its_order() {
        assert!((0..20).all(|seed| order(seed) == order(seed)));
        assert!((0..20).any(|seed| order(seed) != order(0)));
    }

    #[test]
    fn threads_that_wait_for_each_other_are_told() {
        let locks = [Arc::new(CoreMutex::new(())), Arc::new(CoreMutex::new(()))];
        let both = |one: usize, other: usize| -> Program {
            let (one, other) = (locks[one].clone(), locks[other].clone());
            Box::new(move || {
                for _ in 0..50 {
                    let _one = one.lock();
                    point();
                    let _other = other.lock();
                }
            })
        };
        let stuck = (0..50).find_map(|seed| {
            run(seed, &mut Duration::default(), vec![(both(0, 1), goes_on()), (both(1, 0), goes_on())]).err()
        });
        assert!(stuck.unwrap().contains("no thread goes on"));
        let panics: Program = Box::new(|| std::panic::resume_unwind(Box::new("so it is")));
        let programs = vec![(Box::new(point) as Program, goes_on()), (panics, goes_on())];
        assert_eq!(run(1, &mut Duration::default(), programs).unwrap_err(), "a panic: so it is");
    }
}
