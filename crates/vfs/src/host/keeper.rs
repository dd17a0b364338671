//! One thread of each process detaches databases that their connections leave alone, and gives back
//! locks that they kept; the end of the process detaches the rest.
//!
//! The thread begins behind the first transaction on a database that is to be looked at, or with a
//! kept lock, and ends once there is none. It takes no signals of the host. A child of a fork has
//! none until it attaches to a database itself.

#![allow(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Once, PoisonError, Weak};
use std::time::Duration;

use onewrite_core::disk::Mutex;
use onewrite_core::{Engine, Error, Instant};

use crate::process::{end, log};
use crate::sqlite::ffi::code;

/// Looks at databases are as far apart as this, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(250));
/// The end of a process waits for its databases for so long.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// The keeper of one engine. A process has an engine for each VFS that it registers. A child of a
/// fork gets new ones: no thread of its parent can have held their locks.
struct Keeper {
    engine: Weak<Engine>,
    state: Mutex<KeeperState>,
    /// A database is due while the thread sleeps.
    due: Condvar,
    /// The keeper that was made before. All stay for the life of the process.
    next: *const Keeper,
}

// SAFETY: `next` is written before the keeper is shared, and leads to one that is never freed.
unsafe impl Sync for Keeper {}
// SAFETY: as above.
unsafe impl Send for Keeper {}

#[derive(Default)]
struct KeeperState {
    /// Its thread runs.
    runs: bool,
    /// A database was attached since the thread looked.
    is_due: bool,
    /// The thread sleeps until then.
    sleeps_until: Option<Instant>,
}

/// The keeper that was made last.
static KEEPERS: AtomicPtr<Keeper> = AtomicPtr::new(std::ptr::null_mut());

/// Looks after the databases of `engine` from now on.
pub(crate) fn keep(engine: &Arc<Engine>) {
    let keeper =
        Keeper { engine: Arc::downgrade(engine), state: Mutex::default(), due: Condvar::new(), next: std::ptr::null() };
    let keeper = Box::leak(Box::new(keeper));
    let mut newest = KEEPERS.load(Ordering::Acquire);
    loop {
        keeper.next = newest;
        let pushed = KEEPERS.compare_exchange(newest, keeper, Ordering::AcqRel, Ordering::Acquire);
        match pushed {
            Ok(_) => break,
            Err(now) => newest = now,
        }
    }
    let keeper: &'static Keeper = keeper;
    engine.on_attach(|within| keeper.attached(within));
}

impl Keeper {
    /// A database was attached, or its lock is kept; a look at it is due within that time, if it is
    /// known by now. Returns whether the thread runs. Locks of the database are held here.
    fn attached(&'static self, within: Option<Duration>) -> bool {
        static AT_EXIT: Once = Once::new();
        AT_EXIT.call_once(|| {
            end::stay_loaded();
            end::at_exit(rest_at_exit);
        });
        let Some(within) = within else { return false };
        let mut state = self.state.lock();
        state.is_due = true;
        if state.runs {
            // To wake a thread costs as much as a commit: one that looks soon sleeps on.
            if state.sleeps_until.is_some_and(|until| until > Instant::now() + within) {
                self.due.notify_one();
            }
            return true;
        }
        let spawned = end::without_signals(|| std::thread::Builder::new().name("onewrite".into()).spawn(|| self.run()));
        state.runs = spawned.is_ok();
        if let Err(e) = spawned {
            // The databases stay attached until their last connection closes.
            log::line(code::WARNING, &format!("no thread to detach idle databases with: {e}"));
        }
        state.runs
    }

    fn run(&self) {
        loop {
            let next = {
                let _inside = end::InsideCall::enter();
                self.engine.upgrade().and_then(|engine| engine.look_after(Instant::now(), failed))
            };
            let nap = next.map_or(LOOK.1, |next| next.clamp(LOOK.0, LOOK.1));
            let mut state = self.state.lock();
            state.sleeps_until = Some(Instant::now() + nap);
            let woken = self.due.wait_timeout_while(state, nap, |state| !state.is_due);
            let (mut state, _) = woken.unwrap_or_else(PoisonError::into_inner);
            state.sleeps_until = None;
            if !std::mem::take(&mut state.is_due) && next.is_none() {
                state.runs = false;
                return;
            }
        }
    }
}

fn failed(path: &Path, error: &Error) {
    log::line(code::WARNING, &format!("{} stays in use while nothing uses it: {error}", path.display()));
}

fn engines() -> impl Iterator<Item = Arc<Engine>> {
    // SAFETY: keepers are never freed.
    let next = |keeper: *const Keeper| unsafe { keeper.as_ref() };
    let newest = next(KEEPERS.load(Ordering::Acquire));
    std::iter::successors(newest, move |keeper| next(keeper.next)).filter_map(|keeper| keeper.engine.upgrade())
}

/// The process ends by `exit()`, or by a return from `main`.
extern "C" fn rest_at_exit() {
    if engines().any(|engine| !engine.is_unused()) {
        end::rest_within(EXIT_WAIT, || engines().for_each(|engine| engine.rest(failed)));
    }
}
