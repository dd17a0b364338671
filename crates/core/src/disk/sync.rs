//! What the concurrent parts wait with, in one place: the model checker (`tests/model.rs`) compiles those parts
//! against its own.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

pub use parking_lot::MutexGuard;
pub use std::thread;

/// A lock that each thread has for a moment. Whoever finds it taken looks again for some microseconds: the one that has it runs,
/// mostly, on another processor. A thread that lets others run meanwhile, as `parking_lot` does after one microsecond, comes back
/// when these have had their turns, and it may be the one that has the writer's place.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Nobody has it.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(parking_lot::Mutex::new(value))
    }

    /// Has it, once nobody else has.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.try_lock().or_else(|| self.look_again()).unwrap_or_else(|| self.0.lock())
    }

    /// Has it, if it becomes free within so many looks.
    pub fn try_lock(&self, looks: u32) -> Option<MutexGuard<'_, T>> {
        (0..looks).find_map(|_| {
            self.0.try_lock().or_else(|| {
                thread::yield_now();
                None
            })
        })
    }

    #[cold]
    fn look_again(&self) -> Option<MutexGuard<'_, T>> {
        let mut looks = if has_processors() { 0..LOOKS } else { 0..0 };
        looks.find_map(|_| {
            std::hint::spin_loop();
            if self.0.is_locked() { None } else { self.0.try_lock() }
        })
    }

    /// The caller alone knows of it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// How often whoever finds a lock taken looks again before others may run.
const LOOKS: u32 = 100;

const EMPTY: u8 = 0;
const ASLEEP: u8 = 1;
const SET: u8 = 2;

/// Something one thread waits for, once.
pub struct Event {
    state: AtomicU8,
    waiter: thread::Thread,
}

impl Event {
    /// For the calling thread.
    pub fn new() -> Event {
        Event { state: AtomicU8::new(EMPTY), waiter: thread::current() }
    }

    /// It has happened; `value` of those who ask is true from now on.
    pub fn set(&self) {
        if self.state.swap(SET, Ordering::AcqRel) == ASLEEP {
            self.waiter.unpark();
        }
    }

    /// Whether it has happened.
    pub fn is_set(&self) -> bool {
        self.state.load(Ordering::Acquire) == SET
    }

    /// It may happen again. Only the thread that waits calls this, and looks afterwards at what it was told of.
    pub fn reset(&self) {
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Waits for it without sleeping, for so long: where what is waited for happens on another processor, that is
    /// sooner than a thread wakes up.
    pub fn spin(&self, spin: Duration) -> bool {
        if spin.is_zero() || !has_processors() {
            return self.is_set();
        }
        let begun = Instant::now();
        loop {
            for _ in 0..SPINS {
                if self.is_set() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() >= spin {
                return false;
            }
        }
    }

    /// Waits for it. The thread for which it was made calls this, as the other two.
    pub fn wait(&self) {
        if self.state.compare_exchange(EMPTY, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while !self.is_set() {
                thread::park();
            }
        }
    }

    /// Waits for it so long at most; whether it happens is not certain.
    pub fn nap(&self, nap: Duration) -> bool {
        self.wait_until(Instant::now() + nap)
    }

    /// Waits for it until `deadline` at most.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        if self.state.compare_exchange(EMPTY, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return true;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.state.compare_exchange(ASLEEP, EMPTY, Ordering::AcqRel, Ordering::Acquire).is_err();
            }
            thread::park_timeout(left);
            if self.is_set() {
                return true;
            }
        }
    }
}

/// Looks at an event between two looks at the clock.
const SPINS: u32 = 40;

fn has_processors() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}

/// What is known of how a thread spends its time.
pub mod idle {
    use std::time::{Duration, Instant};

    pub use crate::disk::system::{Task, processor};

    /// Processor time that a transaction may take before it writes, in clock ticks of 10 ms.
    const TICKS_MAX: u64 = 1;

    /// Watches a thread that may do something soon, or not: how long it has had the time to.
    pub struct Watch {
        task: Task,
        ticks: Option<u64>,
        last: Instant,
        idle: Duration,
    }

    impl Watch {
        /// Begins now.
        pub fn new(task: Task) -> Watch {
            let ticks = task.look().map(|(_, ticks)| ticks);
            Watch { task, ticks, last: Instant::now(), idle: Duration::ZERO }
        }

        /// How long the thread has slept, or gone about something else. Time in which it was kept from its processor is
        /// no such time, and more than `nap` since the last look says that the caller was.
        pub fn idle(&mut self, nap: Duration) -> Duration {
            let now = Instant::now();
            let passed = (now - self.last).min(2 * nap);
            self.last = now;
            let kept = match (self.task.look(), self.ticks) {
                (Some((wants, ticks)), Some(before)) => wants && ticks.saturating_sub(before) <= TICKS_MAX,
                _ => false,
            };
            if !kept {
                self.idle += passed;
            }
            self.idle
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mutex;
    use super::idle::{Task, Watch};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    const NAP: Duration = Duration::from_millis(10);

    /// What is seen of a thread that does `what` until it is told to stop, once it has been idle for so long.
    fn watch(what: impl Fn() + Send) -> Duration {
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (send, task) = std::sync::mpsc::channel();
            let done = &done;
            s.spawn(move || {
                send.send(Task::current()).unwrap();
                while !done.load(Ordering::SeqCst) {
                    what();
                }
            });
            let mut watch = Watch::new(task.recv().unwrap());
            let mut idle = Duration::ZERO;
            let begun = Instant::now();
            while idle < 5 * NAP && begun.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(NAP);
                idle = watch.idle(NAP);
            }
            done.store(true, Ordering::SeqCst);
            idle
        })
    }

    #[test]
    fn a_thread_that_sleeps_is_idle_and_so_is_one_that_computes_for_long() {
        assert!(watch(|| std::thread::sleep(NAP)) >= 5 * NAP);
        assert!(watch(std::hint::spin_loop) >= 5 * NAP);
    }

    #[test]
    fn one_has_a_lock_at_a_time_and_whoever_has_it_for_long_is_waited_for() {
        let count = Mutex::new(0u32);
        let add = |long: bool| {
            for n in 0..1000 {
                let mut count = count.lock();
                let before = *count;
                if long && n % 250 == 0 {
                    std::thread::sleep(NAP);
                }
                *count = before + 1;
            }
        };
        std::thread::scope(|s| {
            [true, false, false, true].map(|long| s.spawn(move || add(long))).map(|t| t.join().unwrap())
        });
        assert_eq!(*count.lock(), 4000);
    }

    #[test]
    fn a_stop_of_the_watcher_counts_no_more_than_a_nap_or_two() {
        let mut watch = Watch::new(Task::current());
        std::thread::sleep(10 * NAP);
        assert!(watch.idle(NAP) <= 2 * NAP);
    }
}
