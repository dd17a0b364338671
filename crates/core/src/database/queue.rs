//! The writer's place: one connection of a database writes at a time.
//!
//! Who gives the place back leaves it free and calls one that waits: one that spins, else the first in the queue. Until that
//! one has woken up, whoever runs may take it: a place that went to a thread asleep would be nobody's for as long as
//! waking up takes, which is as long as a transaction. So that no thread starves, the place is *handed over* to the first in
//! the queue, and is nobody else's, once it has been left free for a slice of time ([`SLICE`]), or if the first comes again
//! with a ticket.
//!
//! One that gives the place back and is seen to want it again at once ([`SOON`]: its commits wait for no flush) has it for the whole
//! slice: the place is *kept* for it meanwhile. Two that took turns on two processors would find their caches emptied by each
//! other. The first in the queue looks now and then whether it has come, and is called to wait without sleeping when the
//! slice is over.
//!
//! A connection that usually writes takes the place *tentatively* before its snapshot, so that its upgrade is never stale. A
//! tentative holder that does not begin to write although it could loses the place to the next: who was seen asleep,
//! or busy with something else, for its grace. A thread that is kept from its processor keeps the place.
//!
//! Whoever does not get it in one try may come again with its [`Ticket`] and is then where it was in the queue. The place
//! is given to those alone that wait at that moment: nobody waits for one that is away (rule BusyToHandler).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::disk::sync::idle::{Task, Watch, processor};
use crate::disk::sync::thread::{self, ThreadId};
use crate::disk::sync::{Event, Mutex};

/// How often the first in the queue looks what a tentative holder does: first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
/// Whoever is about to give up takes the place from a tentative holder that has had it for so long, whatever it does.
const STARVED: Duration = Duration::from_millis(500);
/// One that waits does so without sleeping for so long, if a turn usually takes no more than twice as long and the holder has another
/// processor: waking up takes longer.
const SPIN: Duration = Duration::from_micros(50);

/// The place is left free to whoever comes for so long, before the first in the queue has it for certain; and for so long
/// until each of those that wait has had it.
const SLICE: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(8));

/// Whoever gives the place back and usually has it again so soon finds it as it was, within its slice: two that take turns
/// on two processors find their caches emptied by each other.
pub const SOON: Duration = Duration::from_micros(50);
/// So often the first in the queue looks whether such a one has not come again.
const AWAY: Duration = Duration::from_micros(250);

/// How the place is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnClaim {
    /// To write.
    Firm,
    /// To write, probably: after so long another may have the place.
    Tentative(Duration),
}

/// A holder for good whose thread was idle for so long merely keeps the place.
const KEEPS: Duration = Duration::from_millis(5);

/// How long the place is waited for in one try.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// In all.
    pub all: Duration,
    /// For one holder. `None`: whatever it does.
    pub kept: Option<HoldLimits>,
}

/// How long one holder is waited for: not when it was idle for [`KEEPS`].
#[derive(Clone, Copy, Debug)]
pub struct HoldLimits {
    /// Since it has had the place.
    pub held: Duration,
    /// The same while it is inside of onewrite: it does not keep the place for long then.
    pub inside: Duration,
}

impl From<Duration> for Patience {
    fn from(all: Duration) -> Self {
        Patience { all, kept: None }
    }
}

/// A turn in the queue, in the order in which they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A connection, for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

#[derive(Clone, Copy)]
struct Holder {
    connection: ConnectionId,
    thread: ThreadId,
    task: Task,
    claim: TurnClaim,
    ticket: Ticket,
    /// Which turn it is.
    turn: u64,
    /// When it had the place and went on.
    since: Instant,
    /// The processor that ran it last, as far as this is known.
    processor: Option<usize>,
}

impl Holder {
    fn is_tentative(&self) -> bool {
        self.claim != TurnClaim::Firm
    }

    /// Whether it is a holder for good that is not waited for.
    fn keeps(&self, kept: HoldLimits, idle: Duration, inside: bool) -> bool {
        let held = self.since.elapsed();
        !self.is_tentative() && if inside { held >= kept.inside } else { idle >= KEEPS || held >= kept.held }
    }
}

struct TurnWaiter {
    holder: Holder,
    /// It has the place, or finds it free if nobody was faster.
    called: Event,
    /// It was called and has not looked yet. Changed under the lock, as the next.
    is_called: AtomicBool,
    /// It does not sleep.
    spins: AtomicBool,
    /// It looks again before long, without being called. Changed under the lock.
    is_alert: AtomicBool,
    /// It has tried before.
    again: bool,
}

/// The place was given back.
#[derive(Clone, Copy, Debug)]
pub struct Released {
    /// How long a turn usually takes.
    pub usual: Duration,
    /// When it was, if others waited for it.
    pub waited_for: Option<Instant>,
}

/// What one that waits is to do.
enum Look {
    /// It has the place.
    Has,
    /// To wait until it is called.
    Sleep,
    /// To look again soon: the place is another's for the rest of a slice.
    Nap,
    /// To wait without sleeping: the slice is over.
    Spin,
}

/// One connection has the place again and again.
#[derive(Clone, Copy)]
struct RepeatedTurns {
    connection: ConnectionId,
    thread: ThreadId,
    /// While the place is free, it is kept for the connection until then.
    kept_until: Instant,
}

#[derive(Default)]
struct QueueState {
    holder: Option<Holder>,
    waiting: VecDeque<Arc<TurnWaiter>>,
    /// When the place was handed over last, or the first one began to wait.
    handed_over: Option<Instant>,
    /// Whose slice it is, if that one comes again soon.
    run: Option<RepeatedTurns>,
    turns: u64,
    tickets: u64,
    /// What the first in the queue sees of the holder.
    watch: Option<(u64, Watch)>,
    /// Which turn was seen idle, and for how long.
    idle: (u64, Duration),
    /// How long a turn usually takes.
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

    /// How long the holder has been idle, as far as it was watched.
    fn idle_of(&self, holder: &Holder) -> Duration {
        if self.idle.0 == holder.turn { self.idle.1 } else { Duration::ZERO }
    }

    /// How much of a slice is over: 0 to 3 quarters, 4 for all of it, and so on.
    fn quarters(&self, now: Instant) -> u128 {
        let slice = SLICE.0.min(SLICE.1 / u32::try_from(self.waiting.len()).unwrap_or(u32::MAX).max(1));
        let passed = self.handed_over.map(|at| now.saturating_duration_since(at).as_nanos());
        passed.map_or(u128::MAX, |passed| 4 * passed / slice.as_nanos().max(1))
    }

    /// Whether the place, which is free, is kept for another than `me`.
    fn is_kept_from(&self, me: &Holder, now: Instant) -> bool {
        let is_others = |run: RepeatedTurns| run.connection != me.connection && run.thread != me.thread;
        self.run.is_some_and(|run| is_others(run) && now < run.kept_until)
    }

    /// A waiter looks whether it has the place: it was handed over, or is free. If not, it may be called again.
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
                    // It does something else than before.
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
                    // Handed over. The time it took to wake up is not its own.
                    (h.since, h.processor) = (now, processor());
                }
                Look::Has
            }
        }
    }

    /// A waiter leaves without the place; who is to be told.
    fn leave(&mut self, at: usize) -> Option<Arc<TurnWaiter>> {
        self.waiting.remove(at);
        let next = self.waiting.front().filter(|_| self.holder.is_none())?;
        (!next.is_called.swap(true, Relaxed)).then(|| next.clone())
    }

    /// Gives the place to the first in the queue, who is to be told.
    fn hand_over(&mut self, now: Instant) -> Option<Arc<TurnWaiter>> {
        (self.holder, self.run) = (None, None);
        self.handed_over = Some(now);
        let next = self.waiting.pop_front()?;
        self.take(next.holder, now);
        Some(next)
    }

    /// `by` leaves the place free, or to the first in the queue if it is that one's by now; who is to be told. `comes_again`:
    /// soon, and finds it as it was.
    fn let_go(&mut self, by: &Holder, now: Instant, comes_again: bool) -> Option<Arc<TurnWaiter>> {
        (self.holder, self.run) = (None, None);
        let first = self.waiting.front()?;
        let quarters = self.quarters(now);
        // Where one comes again, the next is to wake up before it has the place.
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

/// The writer's place of one database in one process.
#[derive(Default)]
pub struct WriterQueue {
    inner: Mutex<QueueState>,
    /// A connection that is inside of onewrite: if it has the place, it is not idle. 0: none.
    inside: AtomicU64,
}

impl WriterQueue {
    /// Takes the place for `connection`, waiting as long as `patience` says. False if it was not to be had.
    /// A firm request of the holder of a tentative place makes it firm.
    pub fn acquire(&self, connection: ConnectionId, claim: TurnClaim, patience: impl Into<Patience>) -> bool {
        self.acquire_with(connection, claim, patience, &mut None)
    }

    /// The same with the `ticket` of a try before; who is turned away finds its own there.
    pub fn acquire_with(
        &self,
        connection: ConnectionId,
        claim: TurnClaim,
        patience: impl Into<Patience>,
        ticket: &mut Option<Ticket>,
    ) -> bool {
        let patience = patience.into();
        let (thread, task) = (thread::current().id(), Task::current());
        let (waiter, spin) = {
            let mut inner = self.inner.lock();
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
                // The holder cannot go on while this thread waits for it: two connections of one
                // thread must not deadlock.
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
                patience.kept.is_some_and(|kept| h.keeps(kept, inner.idle_of(&h), self.is_inside(&h)))
            });
            if known || patience.all.is_zero() {
                *ticket = Some(mine);
                return false;
            }
            let others_spin = inner.waiting.iter().any(|w| w.spins.load(Relaxed));
            // The holder would wait for the processor that whoever spins keeps.
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

    /// Waits without sleeping, for so long at most.
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

    /// Whether a waiter that was called, or has woken up, has the place now.
    fn look(&self, waiter: &Arc<TurnWaiter>) -> Look {
        self.inner.lock().look(waiter)
    }

    /// Time is counted nap by nap, so a process that was stopped for a while has not waited meanwhile.
    fn wait(&self, waiter: &Arc<TurnWaiter>, patience: Patience) -> bool {
        let mut nap = Duration::ZERO;
        let mut waited = Duration::ZERO;
        // The turn that was seen last, and since when.
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
            let mut inner = self.inner.lock();
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
        self.inner.lock().waiting.front().is_some_and(|w| Arc::ptr_eq(w, waiter))
    }

    /// The first in the queue looks what the holder does.
    fn watch(&self, waiter: &Arc<TurnWaiter>, nap: Duration) {
        let (holder, watch) = {
            let mut inner = self.inner.lock();
            let Some(holder) = inner.holder else { return };
            if inner.waiting.front().is_none_or(|w| !Arc::ptr_eq(w, waiter)) {
                return;
            }
            (holder, inner.watch.take().filter(|(turn, _)| *turn == holder.turn))
        };
        let (turn, mut watch) = watch.unwrap_or_else(|| (holder.turn, Watch::new(holder.task)));
        let idle = watch.idle(nap);
        let mut inner = self.inner.lock();
        inner.watch = Some((turn, watch));
        inner.idle = (turn, idle);
    }

    /// Whether `connection` has the place.
    pub fn holds(&self, connection: ConnectionId) -> bool {
        self.inner.lock().holder.is_some_and(|h| h.connection == connection)
    }

    /// Whether nobody has the place or waits for it.
    pub fn is_idle(&self) -> bool {
        let inner = self.inner.lock();
        inner.holder.is_none() && inner.waiting.is_empty()
    }

    /// Whether anybody has the place for good.
    pub fn is_taken(&self) -> bool {
        self.inner.lock().holder.is_some_and(|h| !h.is_tentative())
    }

    /// How many have the place or wait for it.
    pub fn crowd(&self) -> usize {
        let inner = self.inner.lock();
        inner.waiting.len() + usize::from(inner.holder.is_some())
    }

    /// `connection` has turned out to read: a tentative place is another's to have from now on.
    pub fn doubt(&self, connection: ConnectionId, grace: Duration) {
        let mut inner = self.inner.lock();
        if let Some(h) = inner.holder.as_mut().filter(|h| h.connection == connection && h.is_tentative()) {
            h.claim = TurnClaim::Tentative(grace);
        }
    }

    /// `connection`, which has the place, begins or ends something inside of onewrite: it is not idle meanwhile.
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

    /// Whether at least `count` wait.
    #[cfg(test)]
    pub(crate) fn has_waiters(&self, count: usize) -> bool {
        self.inner.lock().waiting.len() >= count
    }

    /// Gives the place back as [`WriterQueue::release`] does; with the ticket, `connection` comes again where it was.
    pub fn give_up(&self, connection: ConnectionId) -> Option<Ticket> {
        let ticket = self.inner.lock().holder.filter(|h| h.connection == connection).map(|h| h.ticket);
        self.release(connection);
        ticket
    }

    /// Gives the place back, if `connection` has it.
    pub fn release(&self, connection: ConnectionId) -> Released {
        self.release_for(connection, false)
    }

    /// The same. `comes_again`: before long ([`SOON`]), to have the place again.
    pub fn release_for(&self, connection: ConnectionId, comes_again: bool) -> Released {
        let (next, released) = {
            let mut inner = self.inner.lock();
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

/// How long a waiter sleeps after `nap`, before it looks again.
fn next_nap(nap: Duration, is_first: bool) -> Duration {
    match nap.is_zero() {
        true if is_first => LOOK.0,
        true => LOOK.1,
        false => LOOK.1.min(2 * nap),
    }
}
