//! The writer's place: one connection of a database writes at a time.
//!
//! The holder leaves the place free and calls a waiter: one that spins, else the first in the
//! queue. Until that one is awake, any running thread may take it, for waking up takes as long as a
//! transaction. Against starvation the place is *handed over* to the first in the queue once it was
//! left free for a [`SLICE`], or if the first comes with a ticket.
//!
//! A holder that usually comes again at once ([`SOON`]: its commits wait for no flush) has the
//! place *kept* for the whole slice: turns on two processors would empty each other's caches. The
//! first in the queue looks now and then whether it came, and is called to spin when the slice is
//! over.
//!
//! A connection that usually writes takes the place *tentatively* before its snapshot, so that its
//! upgrade is never stale. A tentative holder that was seen asleep, or busy elsewhere, for its
//! grace loses the place to the next. A thread that is kept from its processor keeps the place.
//!
//! A thread that fails in one try may come again with its [`Ticket`], at its old position. The
//! place is given only to threads that wait at that moment (rule BusyToHandler).

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use crate::base::clock::Instant;
use crate::disk::sync::idle::{Task, Watch, processor};
use crate::disk::sync::{Event, Mutex, MutexGuard, ThreadMark, this_thread};

/// The first interval, and the longest.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// A waiter about to give up takes over from a tentative holder of so long.
const STARVED: Duration = Duration::from_millis(500);
/// For turns of at most twice that, with the holder on another processor: waking up takes longer.
const SPIN: Duration = Duration::from_micros(50);

/// Time before the first in the queue has the place for certain; and until each waiter has had it.
const SLICE: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(8));

/// A holder that comes back so soon keeps the place in its slice: else two processors empty each
/// other's caches.
pub const SOON: Duration = Duration::from_micros(50);
const AWAY: Duration = Duration::from_micros(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnClaim {
    Firm,
    /// Another may have it after so long without work.
    Tentative(Duration),
    /// It usually writes: another may have it after so long, or at the end of its wait.
    Thinks(Duration),
}

const KEEPS: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub all: Duration,
    pub kept: Option<HoldLimits>,
    pub is_last: bool,
}

/// The limit for one holder, unless it was idle for [`KEEPS`].
#[derive(Clone, Copy, Debug)]
pub struct HoldLimits {
    pub held: Duration,
    /// It is inside of onewrite, and so not for long.
    pub inside: Duration,
}

impl From<Duration> for Patience {
    fn from(all: Duration) -> Self {
        Patience { all, kept: None, is_last: true }
    }
}

/// In the order of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Copy)]
struct Holder {
    connection: ConnectionId,
    thread: ThreadMark,
    task: Task,
    claim: TurnClaim,
    ticket: Ticket,
    turn: u64,
    since: Instant,
    processor: Option<usize>,
}

impl Holder {
    fn is_tentative(&self) -> bool {
        self.claim != TurnClaim::Firm
    }

    /// What thinks is not waited for by a probable write, which has read nothing yet.
    fn thinks_beside(&self, claim: TurnClaim) -> bool {
        matches!((self.claim, claim), (TurnClaim::Thinks(_), TurnClaim::Tentative(_)))
    }

    /// A firm holder that is not waited for.
    fn keeps(&self, kept: HoldLimits, idle: Duration, inside: bool) -> bool {
        let held = self.since.elapsed();
        !self.is_tentative() && if inside { held >= kept.inside } else { idle >= KEEPS || held >= kept.held }
    }
}

struct TurnWaiter {
    holder: Holder,
    called: Event,
    /// Changed under the lock.
    is_called: AtomicBool,
    spins: AtomicBool,
    /// It looks again soon without a call. Changed under the lock.
    is_alert: AtomicBool,
    again: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Released {
    /// Usual time of a turn.
    pub usual: Duration,
    pub waited_for: Option<Instant>,
}

enum Look {
    Has,
    Sleep,
    Nap,
    Spin,
}

#[derive(Clone, Copy)]
struct RepeatedTurns {
    connection: ConnectionId,
    thread: ThreadMark,
    kept_until: Instant,
}

#[derive(Default)]
struct QueueState {
    holder: Option<Holder>,
    waiting: VecDeque<Arc<TurnWaiter>>,
    /// The last hand-over, or when the first one began to wait.
    handed_over: Option<Instant>,
    /// Owner of the slice, if it comes again soon.
    run: Option<RepeatedTurns>,
    turns: u64,
    tickets: u64,
    watch: Option<(u64, Watch)>,
    /// The turn, and for how long.
    idle: (u64, Duration),
    usual: Duration,
}

impl QueueState {
    fn take(&mut self, me: Holder, now: Instant) {
        self.run = self.run.filter(|run| run.connection == me.connection);
        self.turns += 1;
        self.holder = Some(Holder { since: now, turn: self.turns, ..me });
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Known as far as it was watched.
    fn idle_of(&self, holder: &Holder) -> Duration {
        if self.idle.0 == holder.turn { self.idle.1 } else { Duration::ZERO }
    }

    /// 4 is a whole slice.
    fn quarters(&self, now: Instant) -> u128 {
        let slice = SLICE.0.min(SLICE.1 / u32::try_from(self.waiting.len()).unwrap_or(u32::MAX).max(1));
        let passed = self.handed_over.map(|at| now.saturating_duration_since(at).as_nanos());
        passed.map_or(u128::MAX, |passed| 4 * passed / slice.as_nanos().max(1))
    }

    fn is_kept_from(&self, me: &Holder, now: Instant) -> bool {
        let is_others = |run: RepeatedTurns| run.connection != me.connection && run.thread != me.thread;
        self.run.is_some_and(|run| is_others(run) && now < run.kept_until)
    }

    /// Without the place, the waiter may be called again.
    fn look(&mut self, waiter: &Arc<TurnWaiter>) -> Look {
        let now = Instant::now();
        let at = self.waiting.iter().position(|w| Arc::ptr_eq(w, waiter));
        match (&self.holder, at) {
            (None, Some(at)) if !self.is_kept_from(&waiter.holder, now) => {
                self.waiting.remove(at);
                self.take(Holder { processor: processor(), ..waiter.holder }, now);
                Look::Has
            }
            (holder, Some(at)) => {
                waiter.is_called.store(false, Relaxed);
                waiter.called.reset();
                if holder.is_some_and(|h| now.saturating_duration_since(h.since) > 2 * SPIN) {
                    self.run = None;
                }
                let alert = at == 0 && self.run.is_some();
                waiter.is_alert.store(alert, Relaxed);
                let over = alert && self.quarters(now) >= 4;
                match (alert, over) {
                    (false, _) => Look::Sleep,
                    (true, false) => Look::Nap,
                    (true, true) => {
                        waiter.spins.store(true, Relaxed);
                        Look::Spin
                    }
                }
            }
            (_, None) => {
                if let Some(h) = self.holder.as_mut().filter(|h| h.connection == waiter.holder.connection) {
                    // Waking up took time that is not its own.
                    (h.since, h.processor) = (now, processor());
                }
                Look::Has
            }
        }
    }

    fn leave(&mut self, at: usize) -> Option<Arc<TurnWaiter>> {
        self.waiting.remove(at);
        let next = self.waiting.front().filter(|_| self.holder.is_none())?;
        (!next.is_called.swap(true, Relaxed)).then(|| next.clone())
    }

    fn hand_over(&mut self, now: Instant) -> Option<Arc<TurnWaiter>> {
        (self.holder, self.run) = (None, None);
        self.handed_over = Some(now);
        let next = self.waiting.pop_front()?;
        self.take(next.holder, now);
        Some(next)
    }

    /// Returns the waiter to call. `comes_again`: soon, and finds the place as it was.
    fn let_go(&mut self, by: &Holder, now: Instant, comes_again: bool) -> Option<Arc<TurnWaiter>> {
        (self.holder, self.run) = (None, None);
        let first = self.waiting.front()?;
        let quarters = self.quarters(now);
        // If the holder comes again, the next wakes up first.
        let is_awake = !comes_again || first.spins.load(Relaxed);
        if first.again || quarters >= if is_awake { 4 } else { 5 } {
            return self.hand_over(now);
        }
        if comes_again {
            self.run = Some(RepeatedTurns { connection: by.connection, thread: by.thread, kept_until: now + SOON });
            if first.is_alert.load(Relaxed) && quarters < 4 {
                return None;
            }
            return (!first.is_called.swap(true, Relaxed)).then(|| first.clone());
        }
        let spins = self.waiting.iter().find(|w| w.spins.load(Relaxed));
        let next = spins.unwrap_or(first);
        (!next.is_called.swap(true, Relaxed)).then(|| next.clone())
    }
}

#[derive(Default)]
pub struct WriterQueue {
    inner: Mutex<QueueState>,
    /// One more than the holder's connection, for its threads to read without the lock; 0: none.
    holder: AtomicU64,
    /// The connection is not idle while inside of onewrite; 0: none.
    inside: AtomicU64,
}

/// Tells the holder when the lock is given back.
struct LockedQueue<'a> {
    state: MutexGuard<'a, QueueState>,
    told: &'a AtomicU64,
}

impl Deref for LockedQueue<'_> {
    type Target = QueueState;

    fn deref(&self) -> &QueueState {
        &self.state
    }
}

impl DerefMut for LockedQueue<'_> {
    fn deref_mut(&mut self) -> &mut QueueState {
        &mut self.state
    }
}

impl Drop for LockedQueue<'_> {
    fn drop(&mut self) {
        self.told.store(self.state.holder.map_or(0, |h| h.connection.0 + 1), Release);
    }
}

impl WriterQueue {
    fn lock(&self) -> LockedQueue<'_> {
        LockedQueue { state: self.inner.lock(), told: &self.holder }
    }

    /// False if not within `patience`. A firm request makes a tentative place firm.
    pub fn acquire(&self, connection: ConnectionId, claim: TurnClaim, patience: impl Into<Patience>) -> bool {
        self.acquire_with(connection, claim, patience, &mut None)
    }

    /// Takes the `ticket` of an earlier try; a failure leaves a new one.
    pub fn acquire_with(
        &self,
        connection: ConnectionId,
        claim: TurnClaim,
        patience: impl Into<Patience>,
        ticket: &mut Option<Ticket>,
    ) -> bool {
        let patience = patience.into();
        let (thread, task) = (this_thread(), Task::current());
        let (waiter, spin) = {
            let mut inner = self.lock();
            if let Some(h) = inner.holder.as_mut().filter(|h| h.connection == connection) {
                *ticket = None;
                if h.is_tentative() {
                    *h = Holder { claim, thread, task, ..*h };
                }
                return true;
            }
            let again = ticket.is_some();
            let mine = ticket.unwrap_or_else(|| inner.ticket());
            let since = Instant::now();
            let processor = processor();
            let me = Holder { connection, thread, task, claim, ticket: mine, turn: 0, since, processor };
            *ticket = None;
            let is_kept = !patience.all.is_zero() && inner.is_kept_from(&me, since);
            match &inner.holder {
                None if !is_kept => {
                    inner.take(me, since);
                    return true;
                }
                None => {}
                // The holder cannot go on while this thread waits.
                Some(h) if h.thread == me.thread => {
                    if !h.is_tentative() {
                        *ticket = Some(mine);
                        return false;
                    }
                    inner.take(me, since);
                    return true;
                }
                Some(_) => {}
            }
            let known = inner.holder.is_some_and(|h| {
                let keeps = |kept| h.keeps(kept, inner.idle_of(&h), self.is_inside(&h));
                patience.kept.is_some_and(|kept| keeps(kept) || h.thinks_beside(claim))
            });
            if known || patience.all.is_zero() {
                *ticket = Some(mine);
                return false;
            }
            let others_spin = inner.waiting.iter().any(|w| w.spins.load(Relaxed));
            // A spinning thread would keep the holder off its processor.
            let is_in_the_way = processor.is_some() && inner.holder.is_some_and(|h| h.processor == processor);
            let spins = inner.usual < 2 * SPIN && inner.run.is_none() && !others_spin && !is_in_the_way;
            let waiter = Arc::new(TurnWaiter {
                holder: me,
                called: Event::new(),
                is_called: AtomicBool::new(false),
                spins: AtomicBool::new(spins),
                is_alert: AtomicBool::new(false),
                again,
            });
            if inner.waiting.is_empty() {
                inner.handed_over = Some(since);
            }
            let at = inner.waiting.iter().rposition(|w| w.holder.ticket < mine).map_or(0, |before| before + 1);
            inner.waiting.insert(at, waiter.clone());
            (waiter, if spins { SPIN } else { Duration::ZERO })
        };
        let got = self.spin(&waiter, spin) || self.wait(&waiter, patience);
        if !got {
            *ticket = Some(waiter.holder.ticket);
        }
        got
    }

    fn spin(&self, waiter: &Arc<TurnWaiter>, spin: Duration) -> bool {
        let begun = Instant::now();
        let mut left = spin;
        while !left.is_zero() && waiter.called.spin(left) {
            if matches!(self.look(waiter), Look::Has) {
                return true;
            }
            left = spin.saturating_sub(begun.elapsed());
        }
        waiter.spins.store(false, Relaxed);
        false
    }

    fn look(&self, waiter: &Arc<TurnWaiter>) -> Look {
        self.lock().look(waiter)
    }

    /// Time counts nap by nap: a stopped process has not waited meanwhile.
    fn wait(&self, waiter: &Arc<TurnWaiter>, patience: Patience) -> bool {
        let mut nap = Duration::ZERO;
        let mut waited = Duration::ZERO;
        let mut seen = (0, Duration::ZERO);
        loop {
            let look = self.look(waiter);
            let left = patience.all.saturating_sub(waited);
            match look {
                Look::Has => return true,
                Look::Nap | Look::Spin if !left.is_zero() => {
                    let begun = Instant::now();
                    if matches!(look, Look::Spin) && self.spin(waiter, SPIN.min(left)) {
                        return true;
                    }
                    waiter.called.nap(AWAY.min(left));
                    waited += begun.elapsed().min(SPIN + AWAY);
                    continue;
                }
                Look::Nap | Look::Spin | Look::Sleep => {}
            }
            nap = next_nap(nap, self.is_first(waiter));
            let this_nap =
                nap.min(patience.all.saturating_sub(waited)).min(patience.kept.map_or(nap, |kept| kept.held));
            let begun = Instant::now();
            if waiter.called.wait_until(begun + this_nap) {
                waited += begun.elapsed().min(this_nap);
                continue;
            }
            waited += this_nap;
            let over = waited >= patience.all;
            self.watch(waiter, this_nap);
            let mut inner = self.lock();
            match inner.look(waiter) {
                Look::Has => return true,
                Look::Nap | Look::Spin if !over => continue,
                Look::Nap | Look::Spin | Look::Sleep => {}
            }
            let Some(at) = inner.waiting.iter().position(|w| Arc::ptr_eq(w, waiter)) else { return true };
            let mut gives_up = over;
            let mut may_have = true;
            if let Some(h) = &inner.holder {
                let (idle, inside) = (inner.idle_of(h), self.is_inside(h));
                if seen.0 != h.turn {
                    seen = (h.turn, waited);
                    nap = Duration::ZERO;
                }
                let unchanged = waited - seen.1;
                may_have = match h.claim {
                    TurnClaim::Tentative(grace) => (!inside && idle >= grace) || (over && h.since.elapsed() >= STARVED),
                    TurnClaim::Thinks(limit) => (!inside && h.since.elapsed() >= limit) || (over && patience.is_last),
                    TurnClaim::Firm => false,
                };
                let waited_for_tentative = |kept: HoldLimits| h.is_tentative() && unchanged >= kept.held;
                gives_up |= patience.kept.is_some_and(|kept| waited_for_tentative(kept) || h.keeps(kept, idle, inside));
            }
            if at == 0 && may_have {
                inner.hand_over(Instant::now());
                return true;
            }
            if gives_up {
                let next = inner.leave(at);
                drop(inner);
                if let Some(next) = next {
                    next.called.set();
                }
                return false;
            }
        }
    }

    fn is_first(&self, waiter: &Arc<TurnWaiter>) -> bool {
        self.lock().waiting.front().is_some_and(|w| Arc::ptr_eq(w, waiter))
    }

    fn watch(&self, waiter: &Arc<TurnWaiter>, nap: Duration) {
        let (holder, watch) = {
            let mut inner = self.lock();
            let Some(holder) = inner.holder else { return };
            if inner.waiting.front().is_none_or(|w| !Arc::ptr_eq(w, waiter)) {
                return;
            }
            (holder, inner.watch.take().filter(|(turn, _)| *turn == holder.turn))
        };
        let (turn, mut watch) = watch.unwrap_or_else(|| (holder.turn, Watch::new(holder.task)));
        let idle = watch.idle(nap);
        let mut inner = self.lock();
        inner.watch = Some((turn, watch));
        inner.idle = (turn, idle);
    }

    pub fn holds(&self, connection: ConnectionId) -> bool {
        self.holder.load(Acquire) == connection.0 + 1
    }

    pub fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.holder.is_none() && inner.waiting.is_empty()
    }

    pub fn is_taken(&self) -> bool {
        self.lock().holder.is_some_and(|h| !h.is_tentative())
    }

    pub fn is_thinking(&self) -> bool {
        self.lock().holder.is_some_and(|h| matches!(h.claim, TurnClaim::Thinks(_)))
    }

    #[cfg(feature = "research")]
    pub fn crowd(&self) -> usize {
        let inner = self.lock();
        inner.waiting.len() + usize::from(inner.holder.is_some())
    }

    /// It turned out to read: others may have its tentative place.
    pub fn doubt(&self, connection: ConnectionId, grace: Duration) {
        let mut inner = self.lock();
        if let Some(h) = inner.holder.as_mut().filter(|h| h.connection == connection && h.is_tentative()) {
            h.claim = TurnClaim::Tentative(grace);
        }
    }

    /// The holder is not idle meanwhile.
    pub fn set_inside(&self, connection: ConnectionId, inside: bool) {
        if inside {
            self.inside.store(connection.0, Relaxed);
        } else {
            let _ = self.inside.compare_exchange(connection.0, 0, Relaxed, Relaxed);
        }
    }

    fn is_inside(&self, holder: &Holder) -> bool {
        self.inside.load(Relaxed) == holder.connection.0
    }

    #[cfg(test)]
    pub(crate) fn has_waiters(&self, count: usize) -> bool {
        self.lock().waiting.len() >= count
    }

    pub fn give_up(&self, connection: ConnectionId) -> Option<Ticket> {
        let ticket = self.lock().holder.filter(|h| h.connection == connection).map(|h| h.ticket);
        self.release(connection);
        ticket
    }

    pub fn release(&self, connection: ConnectionId) -> Released {
        self.release_for(connection, false)
    }

    /// `comes_again`: before long ([`SOON`]).
    pub fn release_for(&self, connection: ConnectionId, comes_again: bool) -> Released {
        if !self.holds(connection) {
            return Released { usual: Duration::ZERO, waited_for: None };
        }
        let (next, released) = {
            let mut inner = self.lock();
            let Some(h) = inner.holder.filter(|h| h.connection == connection) else {
                return Released { usual: inner.usual, waited_for: None };
            };
            let now = Instant::now();
            inner.usual = (inner.usual * 7 + now.saturating_duration_since(h.since)) / 8;
            let waited_for = (!inner.waiting.is_empty()).then_some(now);
            (inner.let_go(&h, now, comes_again), Released { usual: inner.usual, waited_for })
        };
        if let Some(next) = next {
            next.called.set();
        }
        released
    }
}

fn next_nap(nap: Duration, is_first: bool) -> Duration {
    match nap.is_zero() {
        true if is_first => LOOK.0,
        true => LOOK.1,
        false => LOOK.1.min(2 * nap),
    }
}
