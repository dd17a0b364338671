//! Threads that run one at a time, in an order that a program chooses: the same order again finds
//! the same fault again. Instead of `clock.rs`; a thread without a [`Schedule`] has the system's
//! time.

use std::cell::RefCell;
use std::ops::{Add, AddAssign, Sub};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Chooses the thread that runs.
pub trait Schedule: Send + Sync {
    /// Others may run now.
    fn pass(&self);
    /// The calling thread cannot go on before another has acted, or until then; may return early.
    fn wait(&self, until: Option<Duration>);
    /// Since any moment; it passes while threads wait.
    fn now(&self) -> Duration;
    /// Instead of the system's random numbers.
    fn random(&self) -> u64;
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Schedule>>> = const { RefCell::new(None) };
}

/// Calls `f` under `schedule`; without one the calling thread runs as it likes meanwhile.
pub fn under<T>(schedule: Option<Arc<dyn Schedule>>, f: impl FnOnce() -> T) -> T {
    struct Back(Option<Arc<dyn Schedule>>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _back = Back(CURRENT.replace(schedule));
    f()
}

/// `None` for a thread that ends: it may still close databases.
fn current() -> Option<Arc<dyn Schedule>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Whether the calling thread has one.
pub fn is_scheduled() -> bool {
    CURRENT.try_with(|current| current.borrow().is_some()).unwrap_or(false)
}

/// Others may run now.
pub fn point() {
    if let Some(schedule) = current() {
        schedule.pass();
    }
}

pub fn yield_now() {
    if is_scheduled() { wait_until(Instant::now() + YIELD) } else { std::thread::yield_now() }
}

const YIELD: Duration = Duration::from_micros(10);

pub fn sleep(time: Duration) {
    if !is_scheduled() {
        return std::thread::sleep(time);
    }
    let end = Instant::now() + time;
    look_by(end, || None::<()>);
}

/// Lets others run until then, or for a while. Nothing without a schedule.
pub fn wait_until(time: Instant) {
    if let Some(schedule) = current() {
        schedule.pass();
        schedule.wait(Some(time.0));
    }
}

/// Lets others run until `look` finds something, or then. Nothing without a schedule.
pub fn look_by<T>(time: Instant, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let schedule = current()?;
    schedule.pass();
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= time {
            return found;
        }
        schedule.wait(Some(time.0));
    }
}

/// Lets others run until `look` finds something, at most `looks` times. `None` without a schedule.
pub fn look_until<T>(looks: u32, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let schedule = current()?;
    schedule.pass();
    for _ in 0..looks {
        let found = look();
        if found.is_some() {
            return found;
        }
        schedule.wait(None);
    }
    look()
}

pub fn scheduled() -> Option<Duration> {
    current().map(|schedule| schedule.now())
}

/// Of the schedule, if there is one.
pub fn random() -> Option<u64> {
    current().map(|schedule| schedule.random())
}

/// As that of the standard library, whose moments cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

impl Instant {
    /// Of the schedule, if there is one.
    pub fn now() -> Instant {
        Instant(scheduled().unwrap_or_else(|| START.elapsed()))
    }

    /// Up to now.
    pub fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }

    /// Zero if `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
