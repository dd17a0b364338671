//! Locks and waiting: the model checker (`tests/model.rs`) has its own.
//!
//! The locks are those of std, each of which waits on a word of its own. This process may be the
//! child of a fork, where a queue of the whole process would lead to threads of the parent.

pub use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{OnceLock, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};
use std::time::Duration;

use crate::base::clock::{self, Instant};

pub use std::thread;
#[cfg(unix)]
pub use std::thread::ThreadId as ThreadMark;

#[cfg(windows)]
pub use super::host::{ThreadMark, this_thread};

/// Held for moments. A thread that panics gives it back as it is.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits for it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        locked(|| self.try_lock(), || self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `None` if another has it for longer than moments.
    #[inline]
    pub fn lock_soon(&self) -> Option<MutexGuard<'_, T>> {
        soon(|| self.try_lock())
    }

    /// `None` while another has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        free(self.0.try_lock())
    }

    /// The caller is the only owner.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn free<T>(tried: TryLockResult<T>) -> Option<T> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[inline]
fn locked<T>(mut look: impl FnMut() -> Option<T>, wait: impl FnOnce() -> T) -> T {
    clock::look_until(u32::MAX, &mut look).or_else(|| soon(look)).unwrap_or_else(wait)
}

#[inline]
fn soon<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    if clock::is_scheduled() {
        return clock::look_until(LOOKS.1, look);
    }
    look().or_else(|| look_again(look))
}

/// Spins, then lets others run: its holder has it for moments, and a call of the kernel to sleep
/// takes longer.
#[cold]
fn look_again<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let spins = if has_processors() { LOOKS.0 } else { 0 };
    (0..spins + LOOKS.1).find_map(|n| {
        if n < spins {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        } else {
            clock::yield_now();
        }
        look()
    })
}

/// Spinning, and letting others run.
const LOOKS: (u32, u32) = (25, 7);
const PAUSES: u32 = 4;

/// As [`Mutex`].
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Unlocked.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(std::sync::RwLock::new(value))
    }

    /// Waits for a writer, also for one that waits.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        locked(|| free(self.0.try_read()), || self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for all others.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        locked(|| free(self.0.try_write()), || self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Its waiters look at their condition afterwards.
#[derive(Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Whether the time is over.
    pub fn wait_timeout<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        if clock::is_scheduled() {
            let until = Instant::now() + time;
            drop(guard);
            clock::wait_until(until);
            return (mutex.lock(), Instant::now() >= until);
        }
        let (guard, waited) = self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
        (guard, waited.timed_out())
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(unix)]
pub fn this_thread() -> ThreadMark {
    thread_local! {
        static MARK: ThreadMark = thread::current().id();
    }
    MARK.try_with(|mark| *mark).unwrap_or_else(|_| thread::current().id())
}

const EMPTY: u8 = 0;
const ASLEEP: u8 = 1;
const SET: u8 = 2;

/// For one thread, once.
pub struct Event {
    state: AtomicU8,
    waiter: thread::Thread,
}

impl Event {
    pub fn new() -> Event {
        Event { state: AtomicU8::new(EMPTY), waiter: thread::current() }
    }

    /// The callers' `value` is true from now on.
    pub fn set(&self) {
        if self.state.swap(SET, Ordering::AcqRel) == ASLEEP {
            self.waiter.unpark();
        }
    }

    pub fn is_set(&self) -> bool {
        self.state.load(Ordering::Acquire) == SET
    }

    /// The waiting thread looks at its condition afterwards.
    pub fn reset(&self) {
        self.state.store(EMPTY, Ordering::Release);
    }

    /// Sooner than a wake-up if the event is on another processor.
    pub fn spin(&self, spin: Duration) -> bool {
        if clock::is_scheduled() && !spin.is_zero() {
            return self.wait_until(Instant::now() + spin);
        }
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

    /// Called by the thread it was made for.
    pub fn wait(&self) {
        if clock::look_until(u32::MAX, || self.is_set().then_some(())).is_some() {
            return;
        }
        if self.state.compare_exchange(EMPTY, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            while !self.is_set() {
                thread::park();
            }
        }
    }

    pub fn nap(&self, nap: Duration) -> bool {
        self.wait_until(Instant::now() + nap)
    }

    pub fn wait_until(&self, deadline: Instant) -> bool {
        if clock::is_scheduled() {
            return clock::look_by(deadline, || self.is_set().then_some(())).is_some();
        }
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

const SPINS: u32 = 40;

fn has_processors() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| thread::available_parallelism().is_ok_and(|n| n.get() > 1))
}

pub mod idle {
    use std::time::Duration;

    use crate::base::clock::Instant;
    pub use crate::disk::system::{Task, processor};

    /// A transaction's processor time before it writes, in ticks of 10 ms.
    const TICKS_MAX: u64 = 1;

    /// How long a thread could act and did not.
    pub struct Watch {
        task: Task,
        ticks: Option<u64>,
        last: Instant,
        idle: Duration,
    }

    impl Watch {
        pub fn new(task: Task) -> Watch {
            let ticks = task.look().map(|(_, ticks)| ticks);
            Watch { task, ticks, last: Instant::now(), idle: Duration::ZERO }
        }

        /// Time asleep or in other work; not without a processor, nor the caller's own such time,
        /// in which it comes over `nap` late.
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
    fn one_thread_has_a_lock_at_a_time_and_a_long_holder_is_waited_for() {
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
