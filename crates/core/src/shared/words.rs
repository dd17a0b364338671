//! The words that the processes of a database share, in block 0 of the log (`docs/format.md`).
//!
//! Trusted only while a process is attached: one that is alone begins them anew. A process may die
//! between any two stores.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::time::Duration;

use crate::base::layout::words::*;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::disk::shared::SharedWords;
use crate::disk::system;
use crate::log::frontier::{Backing, Frontier, Mark};
use crate::log::group::Durability;

const _: () = assert!(IN_SLOT_FLOOR + 1 == SLOT_WORDS);
const _: () = assert!(AT_SLOTS + PROCESSES * SLOT_WORDS == crate::disk::shared::LONGS);
const _: () = assert!(SHIP_BELL + 1 < crate::disk::shared::SHORTS && PROCESSES <= 64, "a bit and a bell for each");

pub use crate::base::layout::words::{PINS, PROCESSES};

pub fn reached(words: &ProcessWords, tid: Tid, durability: Durability) -> bool {
    words.frontier().reached(tid, durability == Durability::Flushed)
}

const NONE: u64 = u64::MAX;

#[cfg(test)]
const COMMITTING: [usize; 8] =
    [AT_VISIBLE, AT_FLUSHED, AT_WRITTEN, AT_WANTED, AT_FLUSHER, AT_POISON, AT_SHIP, AT_SHIPPED];
#[cfg(test)]
pub(crate) type Committing = [u64; 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    Own(usize),
    /// The oldest of several.
    Floor,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    pub exact: Vec<Tid>,
    /// Any snapshot from this one on.
    pub floor: Option<Tid>,
}

impl Pins {
    /// Whether one in `from..until` may be pinned.
    pub fn within(&self, from: Tid, until: Tid) -> bool {
        self.exact.iter().any(|tid| (from..until).contains(tid)) || self.floor.is_some_and(|floor| floor < until)
    }
}

/// Work that recovery left to the next commit of any process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Home's mark lags behind it (rule OneNumberOneState).
    pub untold: Option<Tid>,
    /// Nothing was written behind it: the next number must be far from it (rule FlushedStays).
    pub stayed: Option<Tid>,
}

#[derive(Clone, Debug)]
pub struct ProcessWords(Arc<SharedWords>);

impl Backing for &ProcessWords {
    fn get(&self, mark: Mark) -> Tid {
        Tid(self.long(word_of(mark)).load(SeqCst))
    }

    fn raise(&mut self, mark: Mark, tid: Tid) {
        self.cell(word_of(mark)).fetch_max(tid.0, SeqCst);
    }

    fn shipped(&self) -> Tid {
        if self.ship().waits() { self.shipped_to() } else { Tid(u64::MAX) }
    }
}

/// A store for which commits wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ship {
    Off,
    /// It may lack the session's begin: only the shipper reads.
    Begun,
    On,
    /// It takes nothing now.
    Late,
    /// It belongs to another database: no commit succeeds.
    Fenced,
    /// The database is a replica: its follower alone commits, and what it applies the store has.
    Replica,
}

impl Ship {
    const ALL: [Ship; 6] = [Ship::Off, Ship::Begun, Ship::On, Ship::Late, Ship::Fenced, Ship::Replica];

    /// Whether commits wait for the store.
    pub fn waits(self) -> bool {
        !matches!(self, Ship::Off | Ship::Replica)
    }

    /// Hidden states may stay hidden for long: do not build on them.
    pub fn is_away(self) -> bool {
        matches!(self, Ship::Late | Ship::Fenced)
    }
}

fn word_of(mark: Mark) -> usize {
    match mark {
        Mark::Published => AT_WRITTEN,
        Mark::Requested => AT_WANTED,
        Mark::Flushed => AT_FLUSHED,
        Mark::Visible => AT_VISIBLE,
    }
}

impl ProcessWords {
    pub fn new(words: Arc<SharedWords>) -> ProcessWords {
        ProcessWords(words)
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        // Every index is one of the constants above, or within the slots.
        &self.0.longs[at]
    }

    /// Private where the shared one is read-only.
    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.0.to_write().longs[at]
    }

    fn slot_at(process: usize, word: usize) -> usize {
        AT_SLOTS + process * SLOT_WORDS + word
    }

    /// The caller is alone.
    pub fn found(&self, session: u64, psow: bool, generation: u64, newest: Tid) {
        // A death on the way leaves no session's words.
        self.cell(AT_MAGIC).store(0, SeqCst);
        fence(SeqCst);
        for (at, word) in self.0.to_write().longs.iter().enumerate() {
            let in_slot = at.checked_sub(AT_SLOTS).map_or(IN_SLOT_USED, |n| n % SLOT_WORDS);
            word.store(if in_slot == IN_SLOT_USED { 0 } else { NONE }, Relaxed);
        }
        fence(SeqCst);
        self.cell(AT_SESSION).store(session, SeqCst);
        self.cell(AT_SETTINGS).store(if psow { PSOW } else { 0 }, SeqCst);
        self.cell(AT_GENERATION).store(generation, SeqCst);
        for at in [AT_VISIBLE, AT_FLUSHED, AT_WRITTEN, AT_WANTED] {
            self.cell(at).store(newest.0, SeqCst);
        }
        self.cell(AT_MAGIC).store(MAGIC, SeqCst);
    }

    /// The start of the system and the file's creation, as far as known.
    pub fn set_start(&self, start: Option<u64>, made: Option<u64>) {
        self.cell(AT_MADE).store(made.unwrap_or(0), SeqCst);
        self.cell(AT_START).store(start.unwrap_or(0), SeqCst);
    }

    /// Newest written transaction of the last processes, for `session` and this `start` of the
    /// system (rule EndTold).
    pub fn end(&self, session: u64, start: u64) -> Option<Tid> {
        (self.fit(session) && start != 0 && self.long(AT_START).load(SeqCst) == start).then(|| self.written())
    }

    /// Whether all up to `last` and the slot `generation` are on the medium, in the file `made` so,
    /// without failure or flush under way (rule FlushedStays).
    pub fn all_flushed(&self, made: u64, generation: u64, last: Tid) -> bool {
        let flushed = if keeps(Case::FlushedStays) { self.flushed() } else { self.written() };
        (self.long(AT_MADE).load(SeqCst), self.generation()) == (made, generation)
            && (flushed, self.written()) == (last, last)
            && !self.is_poisoned()
            && self.long(AT_FLUSHER).load(SeqCst) == 0
            && !self.ship().waits()
    }

    /// Left by the recovery before these words began.
    pub fn due(&self) -> Due {
        let tid = |at| Some(Tid(self.long(at).load(SeqCst))).filter(|tid| *tid != Tid(0));
        Due { untold: tid(AT_UNTOLD), stayed: tid(AT_STAYED) }
    }

    pub fn set_due(&self, due: Due) {
        let word = |tid: Option<Tid>| tid.map_or(0, |tid| tid.0);
        self.cell(AT_STAYED).store(word(due.stayed), SeqCst);
        self.cell(AT_UNTOLD).store(word(due.untold), SeqCst);
    }

    #[cfg(test)]
    pub(crate) fn committing(&self) -> Committing {
        COMMITTING.map(|at| self.long(at).load(SeqCst))
    }

    #[cfg(test)]
    pub(crate) fn set_committing(&self, values: &Committing) {
        COMMITTING.iter().zip(values).for_each(|(at, value)| self.long(*at).store(*value, SeqCst));
    }

    pub fn fit(&self, session: u64) -> bool {
        self.long(AT_MAGIC).load(SeqCst) == MAGIC && self.long(AT_SESSION).load(SeqCst) == session
    }

    /// Writers assume that a torn write spares its neighbours.
    pub fn psow(&self) -> bool {
        self.long(AT_SETTINGS).load(SeqCst) & PSOW != 0
    }

    pub fn is_poisoned(&self) -> bool {
        self.long(AT_POISON).load(SeqCst) != 0
    }

    /// For processes that did not cause it.
    pub fn poisoned_by(&self) -> &'static str {
        match self.long(AT_POISON).load(SeqCst) {
            OVERWRITTEN => "the database file was overwritten, as another process found",
            _ => "a write or flush failed in another process",
        }
    }

    /// Everything fails from now on, in every process.
    pub fn poison(&self) {
        if keeps(Case::PoisonTold) {
            // An earlier reason stays.
            let _ = self.cell(AT_POISON).compare_exchange(0, FAILED, SeqCst, SeqCst);
        }
        self.ring();
    }

    pub fn poison_overwritten(&self) {
        self.cell(AT_POISON).store(OVERWRITTEN, SeqCst);
        self.ring();
    }

    pub fn ring(&self) {
        let bell = &self.0.to_write().shorts[FLUSH_BELL];
        bell.fetch_add(1, SeqCst);
        system::wake(bell, true);
    }

    pub fn generation(&self) -> u64 {
        self.long(AT_GENERATION).load(SeqCst)
    }

    /// For all reads before this call.
    pub fn same_generation(&self, sequence: u64) -> bool {
        fence(SeqCst);
        self.generation() == sequence
    }

    /// The slot is durable: only now may the bytes it gives up be overwritten.
    pub fn set_generation(&self, sequence: u64) {
        debug_assert!(sequence >= self.generation(), "rule SlotBeforeReuse: {sequence} after {}", self.generation());
        self.cell(AT_GENERATION).store(sequence, SeqCst);
    }

    pub fn frontier(&self) -> Frontier<&ProcessWords> {
        Frontier(self)
    }

    pub fn visible(&self) -> Tid {
        self.frontier().visible()
    }

    pub fn flushed(&self) -> Tid {
        self.frontier().flushed()
    }

    /// Whole in the kernel's cache, with all before: the next turn's base.
    pub fn written(&self) -> Tid {
        self.frontier().published()
    }

    /// Must be flushed before it shows; set before it can be set written (rule SeenWhenDurable).
    pub fn raise_wanted(&self, tid: Tid) {
        self.frontier().raise(Mark::Requested, tid);
    }

    /// A flush that begins now covers them.
    pub fn raise_written(&self, tid: Tid) {
        self.frontier().raise(Mark::Published, tid);
        self.wake_shipper();
    }

    pub fn raise_flushed(&self, tid: Tid) {
        self.frontier().raise(Mark::Flushed, tid);
        self.wake_shipper();
    }

    pub fn ship(&self) -> Ship {
        let word = self.long(AT_SHIP).load(SeqCst);
        // A damaged word: nothing is acknowledged.
        usize::try_from(word).ok().and_then(|n| Ship::ALL.get(n).copied()).unwrap_or(Ship::Late)
    }

    fn change_ship(&self, from: Ship, to: Ship) {
        // A later word of another process stays.
        let _ = self.cell(AT_SHIP).compare_exchange(from as u64, to as u64, SeqCst, SeqCst);
    }

    /// The shipper begins: commits wait for the store, and readers until it is known to have all.
    pub fn begin_unshipped(&self, patience_ms: u64) {
        self.cell(AT_SHIP_MS).store(patience_ms, SeqCst);
        self.cell(AT_SHIP).store(Ship::Begun as u64, SeqCst);
    }

    /// The caller has the writer's place; all written is visible, or commits waited before.
    pub fn begin_shipping(&self, patience_ms: u64) {
        self.cell(AT_SHIP_MS).store(patience_ms, SeqCst);
        if !self.ship().waits() {
            self.cell(AT_SHIPPED).store(self.written().0, SeqCst);
        }
        self.change_ship(Ship::Off, Ship::On);
        self.change_ship(Ship::Replica, Ship::On);
        self.change_ship(Ship::Fenced, Ship::On);
    }

    /// For a replica, unless its commits wait for the store.
    pub fn begin_replica(&self) {
        self.change_ship(Ship::Off, Ship::Replica);
    }

    pub fn shipped_to(&self) -> Tid {
        Tid(self.long(AT_SHIPPED).load(SeqCst))
    }

    /// The store has all up to `tid`, and belongs to this database.
    pub fn raise_shipped(&self, tid: Tid) {
        self.cell(AT_SHIPPED).fetch_max(tid.0, SeqCst);
        self.change_ship(Ship::Begun, Ship::On);
        self.change_ship(Ship::Late, Ship::On);
        self.show();
        self.ring();
    }

    /// Whole and on the medium here. `None`: the store has all.
    pub fn to_ship(&self) -> Option<Tid> {
        let tid = self.flushed().min(self.written());
        (tid > self.shipped_to() || self.ship() == Ship::Begun).then_some(tid)
    }

    pub fn note_late(&self) {
        let (on, late) = (Ship::On as u64, Ship::Late as u64);
        if self.cell(AT_SHIP).compare_exchange(on, late, SeqCst, SeqCst).is_ok() {
            self.cell(AT_SHIP_LATE).store(system::clock_us(), SeqCst);
        }
    }

    /// How long the store has taken nothing, as far as was noticed.
    pub fn late_for(&self) -> Duration {
        Duration::from_micros(system::clock_us().saturating_sub(self.long(AT_SHIP_LATE).load(SeqCst)))
    }

    pub fn fence(&self) {
        self.cell(AT_SHIP).store(Ship::Fenced as u64, SeqCst);
        self.ring();
    }

    /// In milliseconds.
    pub fn ship_ms(&self) -> u64 {
        self.long(AT_SHIP_MS).load(SeqCst)
    }

    pub fn ship_bell(&self) -> &AtomicU32 {
        &self.0.shorts[SHIP_BELL]
    }

    fn wake_shipper(&self) {
        if self.ship().waits() {
            let bell = &self.0.to_write().shorts[SHIP_BELL];
            bell.fetch_add(1, SeqCst);
            system::wake(bell, true);
        }
    }

    /// Each is as durable as all before asked.
    pub fn show(&self) {
        self.frontier().show();
    }

    /// Written up to `visible`, durable up to `flushed`.
    pub fn publish(&self, visible: Tid, flushed: Tid) {
        self.raise_written(visible);
        self.raise_flushed(flushed);
        let shipped = Backing::shipped(&self);
        self.frontier().raise(Mark::Visible, visible.min(shipped));
    }

    /// See [`crate::processes::flush`].
    pub fn flusher(&self) -> &AtomicU64 {
        self.cell(AT_FLUSHER)
    }

    /// The process in a word FLUSHER.
    pub fn flusher_of(word: u64) -> Option<usize> {
        usize::try_from(word).ok()?.checked_sub(1)
    }

    /// A bit for each process that waits for a flush.
    pub fn awaiting(&self) -> &AtomicU64 {
        self.cell(AT_AWAITING)
    }

    /// [`ProcessWords::awaiting`] when the last flush began.
    pub fn covered(&self) -> &AtomicU64 {
        self.cell(AT_COVERED)
    }

    /// When the last flush ended, on the system's clock, in microseconds.
    pub fn flush_ended(&self) -> &AtomicU64 {
        self.cell(AT_FLUSH_ENDED)
    }

    /// In microseconds.
    pub fn flush_us(&self) -> &AtomicU64 {
        self.cell(AT_FLUSH_US)
    }

    pub fn flush_bell(&self) -> &AtomicU32 {
        &self.0.shorts[FLUSH_BELL]
    }

    /// Home may have left older snapshots.
    pub fn home_floor(&self) -> Tid {
        // Orders reads before it, of home too.
        fence(SeqCst);
        Tid(self.long(AT_HOME_FLOOR).load(SeqCst))
    }

    /// Snapshots pinned earlier are seen by [`ProcessWords::pins`] afterwards.
    pub fn set_home_floor(&self, tid: Tid) {
        self.cell(AT_HOME_FLOOR).store(tid.0, SeqCst);
        fence(SeqCst);
    }

    /// It may be dead. Checked after announcing a snapshot.
    pub fn alone(&self) -> Option<usize> {
        fence(SeqCst);
        usize::try_from(self.long(AT_ALONE).load(SeqCst)).ok()?.checked_sub(1)
    }

    /// Checked after announcing a snapshot, and with the turn.
    pub fn is_replaced(&self) -> bool {
        fence(SeqCst);
        self.long(AT_ALONE).load(SeqCst) == REPLACED
    }

    /// By rule LostLogReplaced. The caller has the turn, and no other process a snapshot.
    pub fn replace(&self) {
        self.cell(AT_ALONE).store(REPLACED, SeqCst);
        self.ring();
    }

    /// Present readers are seen by [`ProcessWords::pins`] afterwards. The caller has the writer's
    /// place.
    pub fn shut_out(&self, process: usize) {
        let alone = |old| (old != REPLACED).then_some(process as u64 + 1);
        let _ = self.cell(AT_ALONE).fetch_update(SeqCst, SeqCst, alone);
        fence(SeqCst);
    }

    /// If this process shut them out.
    pub fn let_in(&self, process: usize) {
        // A later word of another process stays.
        let _ = self.cell(AT_ALONE).compare_exchange(process as u64 + 1, 0, SeqCst, SeqCst);
    }

    /// Grows before bytes of home are overwritten.
    pub fn epoch(&self) -> u64 {
        self.long(AT_EPOCH).load(SeqCst)
    }

    /// For all reads before this call.
    pub fn same_epoch(&self, epoch: u64) -> bool {
        fence(SeqCst);
        self.epoch() == epoch
    }

    /// Kept images are published; home may be overwritten now.
    pub fn next_epoch(&self) {
        self.cell(AT_EPOCH).fetch_add(1, SeqCst);
        fence(SeqCst);
    }

    pub fn kept(&self) -> (u64, u64) {
        let word = self.long(AT_KEPT).load(SeqCst);
        (word >> KEPT_LEN_BITS, word & KEPT_LEN_MAX)
    }

    /// For all reads before this call: not restarted since.
    pub fn same_kept(&self, generation: u64) -> bool {
        fence(SeqCst);
        self.kept().0 == generation
    }

    pub fn set_kept(&self, generation: u64, len: u64) {
        self.cell(AT_KEPT).store((generation << KEPT_LEN_BITS) | (len & KEPT_LEN_MAX), SeqCst);
    }

    /// Snapshots from this one on need no kept image.
    pub fn kept_until(&self) -> Tid {
        Tid(self.long(AT_KEPT_UNTIL).load(SeqCst))
    }

    /// Images are about to be kept for older snapshots.
    pub fn raise_kept_until(&self, until: Tid) {
        self.cell(AT_KEPT_UNTIL).fetch_max(until.0, SeqCst);
    }

    pub fn turn(&self) -> &AtomicU64 {
        self.cell(AT_TURN)
    }

    /// Counts passings of the turn between processes.
    pub fn turns(&self) -> &AtomicU64 {
        self.cell(AT_TURNS)
    }

    /// The [`super::tendency::Tendency`] of the database's explicit transactions.
    pub fn tends(&self) -> &AtomicU64 {
        self.cell(AT_TENDS)
    }

    pub fn wanting(&self) -> &AtomicU64 {
        self.cell(AT_WANTING)
    }

    pub fn bell(&self, process: usize) -> &AtomicU32 {
        &self.0.to_write().shorts[process]
    }

    /// The caller has its lock byte.
    pub fn enter(&self, process: usize) {
        self.clear(process);
        self.cell(Self::slot_at(process, IN_SLOT_USED)).store(1, SeqCst);
    }

    pub fn is_used(&self, process: usize) -> bool {
        self.long(Self::slot_at(process, IN_SLOT_USED)).load(SeqCst) != 0
    }

    /// Frees the slot of a process that leaves or is dead.
    pub fn clear(&self, process: usize) {
        for word in IN_SLOT_PINS..SLOT_WORDS {
            self.cell(Self::slot_at(process, word)).store(NONE, SeqCst);
        }
        self.let_in(process);
        self.wanting().fetch_and(!(1 << process), SeqCst);
        self.awaiting().fetch_and(!(1 << process), SeqCst);
        self.cell(Self::slot_at(process, IN_SLOT_USED)).store(0, SeqCst);
    }

    /// The caller looks at [`ProcessWords::home_floor`] next.
    pub fn set_pin(&self, process: usize, cell: Cell, tid: Option<Tid>) {
        let word = match cell {
            Cell::Own(n) => IN_SLOT_PINS + n.min(PINS - 1),
            Cell::Floor => IN_SLOT_FLOOR,
        };
        self.cell(Self::slot_at(process, word)).store(tid.map_or(NONE, |tid| tid.0), SeqCst);
    }

    pub fn pins(&self, process: usize) -> Pins {
        let read =
            |word| Some(self.long(Self::slot_at(process, word)).load(SeqCst)).filter(|tid| *tid != NONE).map(Tid);
        Pins { exact: (0..PINS).filter_map(|n| read(IN_SLOT_PINS + n)).collect(), floor: read(IN_SLOT_FLOOR) }
    }
}

const KEPT_LEN_BITS: u32 = 44;
const KEPT_LEN_MAX: u64 = (1 << KEPT_LEN_BITS) - 1;
