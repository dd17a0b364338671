//! The words that the processes of a database share, in block 0 of the log (`docs/format.md`).
//!
//! Trusted only while a process is attached: one that is alone begins them anew. A process may die
//! between any two stores.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::time::Duration;

use super::bits::ProcessBits;
use super::pinning;
use super::slots::MoreSlots;
use crate::base::error::Result;
use crate::base::layout::shared::AT_HOME_FILE;
use crate::base::layout::words::*;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::disk::processes::ProcessTag;
use crate::disk::shared::{LONGS, SHORTS, SharedWords, Words};
use crate::disk::system;
use crate::log::frontier::{Frontier, FrontierStore, Milestone};
use crate::log::group::Durability;

const _: () = assert!(IN_SLOT_FLOOR + 1 == SLOT_WORDS);
const _: () = assert!(AT_SLOTS + SLOTS_HERE * SLOT_WORDS == LONGS && SLOTS_A_BLOCK * SLOT_WORDS == LONGS);
const _: () = assert!(SHIP_BELL + 1 < SHORTS && SLOTS_A_BLOCK <= SHORTS, "a bell for each");
const _: () = assert!(PROCESSES >= 1000 && PROCESSES.is_multiple_of(64) && AT_SLOTS.is_multiple_of(8));
const _: () =
    assert!(LONGS * 8 + (SNAPSHOT_SINCE + SLOTS_HERE) * 4 <= AT_HOME_FILE, "a time for each, before other bytes");
const _: () = assert!(2 * SLOTS_A_BLOCK <= SHORTS, "a bell and a time for each");

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
pub enum SnapshotCell {
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
pub struct RecoveryDebt {
    /// Home's mark lags behind it (rule OneNumberOneState).
    pub untold: Option<Tid>,
    /// Nothing was written behind it: the next number must be far from it (rule FlushedStays).
    pub stayed: Option<Tid>,
}

#[derive(Clone, Debug)]
pub struct ProcessWords(Arc<SharedWords>, Arc<MoreSlots>);

/// The block of the file of further slots and the place within it; `None`: in block 0.
fn further(process: usize) -> Option<(usize, usize)> {
    process.checked_sub(SLOTS_HERE).map(|n| (n / SLOTS_A_BLOCK, n % SLOTS_A_BLOCK))
}

impl FrontierStore for &ProcessWords {
    fn get(&self, mark: Milestone) -> Tid {
        Tid(self.long(word_of(mark)).load(SeqCst))
    }

    fn raise(&mut self, mark: Milestone, tid: Tid) {
        self.cell(word_of(mark)).fetch_max(tid.0, SeqCst);
    }

    fn shipped(&self) -> Tid {
        if self.ship().waits() { self.shipped_to() } else { Tid(u64::MAX) }
    }
}

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

    pub fn waits(self) -> bool {
        !matches!(self, Ship::Off | Ship::Replica)
    }

    /// Hidden states may stay hidden for long: do not build on them.
    pub fn is_away(self) -> bool {
        matches!(self, Ship::Late | Ship::Fenced)
    }
}

fn word_of(mark: Milestone) -> usize {
    match mark {
        Milestone::Published => AT_WRITTEN,
        Milestone::Requested => AT_WANTED,
        Milestone::Flushed => AT_FLUSHED,
        Milestone::Visible => AT_VISIBLE,
    }
}

impl ProcessWords {
    pub fn new(words: Arc<SharedWords>) -> ProcessWords {
        ProcessWords(words, Arc::default())
    }

    pub fn with(words: Arc<SharedWords>, more: MoreSlots) -> ProcessWords {
        ProcessWords(words, Arc::new(more))
    }

    pub(super) fn long(&self, at: usize) -> &AtomicU64 {
        // Every index is one of the constants above, or within the slots.
        &self.0.longs[at]
    }

    pub(super) fn longs(&self, at: usize, count: usize) -> &[AtomicU64] {
        self.0.longs.get(at..at + count).unwrap_or_default()
    }

    /// Private where the shared one is read-only.
    pub(super) fn cell(&self, at: usize) -> &AtomicU64 {
        &self.0.to_write().longs[at]
    }

    /// The process's block, and its slot's place and bell there. `None`: unknown memory.
    fn slot(&self, process: usize) -> Option<(&Words, usize, usize)> {
        self.slot_in(self.0.to_write(), process)
    }

    /// With `here` as block 0.
    fn slot_in<'a>(&'a self, here: &'a Words, process: usize) -> Option<(&'a Words, usize, usize)> {
        let Some((block, n)) = further(process) else {
            return Some((here, AT_SLOTS + process * SLOT_WORDS, process));
        };
        Some((self.1.block(block)?, n * SLOT_WORDS, n))
    }

    /// As others wrote it, also for one that may only read.
    fn word_seen(&self, process: usize, word: usize) -> Option<u64> {
        let (block, at, _) = self.slot_in(&self.0, process)?;
        block.longs.get(at + word).map(|word| word.load(SeqCst))
    }

    fn slot_word(&self, process: usize, word: usize) -> Option<&AtomicU64> {
        let (block, at, _) = self.slot(process)?;
        block.longs.get(at + word)
    }

    /// Makes the slot of another process known here.
    pub fn reach(&self, process: usize) -> Result<()> {
        match further(process) {
            Some(_) => self.1.map(self.long(AT_MORE_MADE).load(SeqCst)),
            None => Ok(()),
        }
    }

    /// Makes room for the slot, which no process uses. The caller has ADMIN.
    pub fn make_slot(&self, process: usize) -> Result<()> {
        let Some((block, _)) = further(process) else { return Ok(()) };
        for block in self.long(AT_MORE).load(SeqCst)..=block as u64 {
            if block == 0 {
                // Removed also after an error.
                self.cell(AT_MORE_MADE).store(u64::MAX, SeqCst);
                self.cell(AT_MORE_MADE).store(self.1.make()?, SeqCst);
            }
            self.1.make_block(block)?;
            self.cell(AT_MORE).store(block + 1, SeqCst);
        }
        self.reach(process)
    }

    /// The caller is alone.
    pub fn found(&self, session: u64, psow: bool, generation: u64, newest: Tid) {
        // A death on the way leaves no session's words.
        self.cell(AT_MAGIC).store(0, SeqCst);
        fence(SeqCst);
        // A slot begins with its process.
        self.0.to_write().longs.iter().for_each(|word| word.store(0, Relaxed));
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

    pub fn due(&self) -> RecoveryDebt {
        let tid = |at| Some(Tid(self.long(at).load(SeqCst))).filter(|tid| *tid != Tid(0));
        RecoveryDebt { untold: tid(AT_UNTOLD), stayed: tid(AT_STAYED) }
    }

    pub fn set_due(&self, due: RecoveryDebt) {
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

    /// A torn write spares its neighbours.
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

    /// Wakes all that wait for a flush or the store.
    pub fn ring(&self) {
        for bell in &self.0.to_write().shorts[FLUSH_BELLS..=SHOWN_BELL] {
            bell.fetch_add(1, SeqCst);
            system::wake(bell, true);
        }
    }

    /// Wakes all that wait for the flush which ends, and one, to begin it, of those that wait for
    /// the next.
    pub fn ring_flushed(&self, bell: usize, end: impl FnOnce()) {
        let bells = &self.0.to_write().shorts[FLUSH_BELLS..SHOWN_BELL];
        // A process that finds no flusher has looked at the bells before.
        for bell in bells {
            bell.fetch_add(1, SeqCst);
        }
        end();
        bells.iter().enumerate().for_each(|(n, each)| system::wake(each, n == bell));
    }

    pub fn generation(&self) -> u64 {
        self.long(AT_GENERATION).load(SeqCst)
    }

    /// For all reads before this call.
    pub fn same_generation(&self, sequence: u64) -> bool {
        fence(Acquire);
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
        self.frontier().raise(Milestone::Requested, tid);
    }

    pub fn raise_written(&self, tid: Tid) {
        self.frontier().raise(Milestone::Published, tid);
        self.wake_shipper();
    }

    pub fn raise_flushed(&self, tid: Tid) {
        self.frontier().raise(Milestone::Flushed, tid);
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

    /// Commits wait for the store, and readers until it is known to have all.
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
        let shipped = FrontierStore::shipped(&self);
        self.frontier().raise(Milestone::Visible, visible.min(shipped));
    }

    /// See [`crate::processes::flush`].
    pub fn flusher(&self) -> &AtomicU64 {
        self.cell(AT_FLUSHER)
    }

    pub fn flusher_of(word: u64) -> Option<usize> {
        usize::try_from(word).ok()?.checked_sub(1)
    }

    fn bits(&self, at: usize) -> ProcessBits<'_> {
        ProcessBits::at(self, at)
    }

    pub fn awaiting(&self) -> ProcessBits<'_> {
        self.bits(AT_AWAITING)
    }

    pub fn covered(&self) -> ProcessBits<'_> {
        self.bits(AT_COVERED)
    }

    /// In microseconds of the system's clock.
    pub fn flush_ended(&self) -> &AtomicU64 {
        self.cell(AT_FLUSH_ENDED)
    }

    /// In microseconds.
    pub fn flush_us(&self) -> &AtomicU64 {
        self.cell(AT_FLUSH_US)
    }

    /// Rung by [`ProcessWords::ring`] alone.
    pub fn shown_bell(&self) -> &AtomicU32 {
        &self.0.shorts[SHOWN_BELL]
    }

    /// One for each of two flushes that follow each other.
    pub fn flush_bells(&self) -> [&AtomicU32; 2] {
        [&self.0.shorts[FLUSH_BELLS], &self.0.shorts[FLUSH_BELLS + 1]]
    }

    /// Of the flush under way or the last one: the newest transaction that it covers, and its bell.
    pub fn flushing(&self) -> (Tid, usize) {
        let word = self.long(AT_FLUSHING).load(SeqCst);
        (Tid(word >> 1), (word & 1) as usize)
    }

    /// A flush of all up to `target` begins. Returns its bell.
    pub fn set_flushing(&self, target: Tid) -> usize {
        let bell = 1 - self.flushing().1;
        self.cell(AT_FLUSHING).store(target.0 << 1 | bell as u64, SeqCst);
        bell
    }

    /// Number plus one of the process that waits for those which the last flush covered; 0: none.
    pub fn gatherer(&self) -> &AtomicU64 {
        self.cell(AT_GATHERER)
    }

    /// Home may have left older snapshots.
    pub fn home_floor(&self) -> Tid {
        // Reads before it stay there, of home too.
        fence(Acquire);
        Tid(self.long(AT_HOME_FLOOR).load(SeqCst))
    }

    /// Snapshots pinned earlier are seen by [`ProcessWords::pins`] afterwards.
    pub fn set_home_floor(&self, tid: Tid) {
        self.cell(AT_HOME_FLOOR).store(tid.0, SeqCst);
        fence(SeqCst);
    }

    /// Checked after announcing a snapshot; it may be dead.
    pub fn alone(&self) -> Option<usize> {
        usize::try_from(self.long(AT_ALONE).load(SeqCst)).ok()?.checked_sub(1)
    }

    /// Checked after announcing a snapshot, and with the turn.
    pub fn is_replaced(&self) -> bool {
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
        fence(Acquire);
        self.epoch() == epoch
    }

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
        fence(Acquire);
        self.kept().0 == generation
    }

    pub fn set_kept(&self, generation: u64, len: u64) {
        self.cell(AT_KEPT).store((generation << KEPT_LEN_BITS) | (len & KEPT_LEN_MAX), SeqCst);
    }

    pub fn may_have_files(&self) -> bool {
        [AT_KEPT, AT_MORE_MADE].iter().any(|at| self.long(*at).load(SeqCst) != 0)
    }

    /// Snapshots from this one on need no kept image.
    pub fn kept_until(&self) -> Tid {
        Tid(self.long(AT_KEPT_UNTIL).load(SeqCst))
    }

    pub fn raise_kept_until(&self, until: Tid) {
        self.cell(AT_KEPT_UNTIL).fetch_max(until.0, SeqCst);
    }

    pub fn turn(&self) -> &AtomicU64 {
        self.cell(AT_TURN)
    }

    pub fn turn_seen(&self) -> u64 {
        self.long(AT_TURN).load(SeqCst)
    }

    pub fn turns(&self) -> &AtomicU64 {
        self.cell(AT_TURNS)
    }

    pub fn tends(&self) -> &AtomicU64 {
        self.cell(AT_TENDS)
    }

    pub fn wanting(&self) -> ProcessBits<'_> {
        self.bits(AT_WANTING)
    }

    /// `None` if the slot is not known here.
    pub fn bell(&self, process: usize) -> Option<&AtomicU32> {
        let (block, _, bell) = self.slot(process)?;
        block.shorts.get(bell)
    }

    pub fn enter(&self, process: usize, tag: ProcessTag) {
        self.clear(process);
        self.slot_word(process, IN_SLOT_TAG).into_iter().for_each(|word| word.store(tag.0, SeqCst));
        self.used().set(process);
    }

    /// Dead or alive.
    pub fn tag(&self, process: usize) -> ProcessTag {
        let known = self.reach(process).ok().and_then(|()| self.word_seen(process, IN_SLOT_TAG));
        known.map_or(ProcessTag::UNKNOWN, ProcessTag)
    }

    /// In seconds of the system's clock. It counts while the process has a snapshot.
    pub fn snapshot_since(&self, process: usize) -> u32 {
        self.since(&self.0, process).map_or(0, |since| since.load(Relaxed))
    }

    pub fn set_snapshot_since(&self, process: usize, seconds: u32) {
        // Others' words are in the same cache line.
        if let Some(since) = self.since(self.0.to_write(), process).filter(|since| since.load(Relaxed) != seconds) {
            since.store(seconds, Relaxed);
        }
    }

    fn since<'a>(&'a self, here: &'a Words, process: usize) -> Option<&'a AtomicU32> {
        let (block, _, n) = self.slot_in(here, process)?;
        let times = if further(process).is_some() { SLOTS_A_BLOCK } else { SNAPSHOT_SINCE };
        block.shorts.get(times + n)
    }

    pub fn set_shipper(&self, process: usize) {
        self.cell(AT_SHIPPER).store(process as u64 + 1, SeqCst);
    }

    pub fn shipper(&self) -> Option<usize> {
        usize::try_from(self.long(AT_SHIPPER).load(SeqCst)).ok()?.checked_sub(1)
    }

    /// Those that have a slot, dead or alive.
    pub fn used(&self) -> ProcessBits<'_> {
        self.bits(AT_USED)
    }

    pub fn looked(&self) -> &AtomicU64 {
        self.cell(AT_LOOKED)
    }

    /// Frees the slot of a process that leaves or is dead.
    pub fn clear(&self, process: usize) {
        self.let_in(process);
        self.wanting().clear(process);
        self.awaiting().clear(process);
        let _ = self.cell(AT_SHIPPER).compare_exchange(process as u64 + 1, 0, SeqCst, SeqCst);
        // Else its pins stay until a process comes that knows the slot.
        if self.reach(process).is_ok() {
            let pins = (IN_SLOT_PINS..SLOT_WORDS).filter_map(|word| self.slot_word(process, word));
            pins.for_each(|pin| pin.store(NONE, SeqCst));
            self.pinning().clear(process);
            self.used().clear(process);
        }
    }

    pub(super) fn pinning(&self) -> ProcessBits<'_> {
        self.bits(AT_PINNING)
    }

    /// At least all before. The caller has the turn.
    pub fn pinned(&self) -> Vec<(usize, Pins)> {
        pinning::pinning(self).into_iter().map(|process| (process, self.pins(process))).collect()
    }

    pub fn set_pin(&self, process: usize, cell: SnapshotCell, tid: Option<Tid>) {
        let word = match cell {
            SnapshotCell::Own(n) => IN_SLOT_PINS + n.min(PINS - 1),
            SnapshotCell::Floor => IN_SLOT_FLOOR,
        };
        let pin = self.slot_word(process, word);
        debug_assert!(pin.is_some(), "rule AnnounceThenLook: a process knows its slot");
        let Some(pin) = pin else { return };
        match tid {
            // One that sees the pin for longer keeps images for longer.
            None => pin.store(NONE, Release),
            Some(tid) => {
                pin.store(tid.0, SeqCst);
                pinning::pinned(self, process);
            }
        }
    }

    pub fn pins(&self, process: usize) -> Pins {
        if self.reach(process).is_err() {
            return Pins { exact: Vec::new(), floor: Some(Tid(0)) };
        }
        let read = |at| self.word_seen(process, at).filter(|tid| *tid != NONE).map(Tid);
        Pins { exact: (0..PINS).filter_map(|n| read(IN_SLOT_PINS + n)).collect(), floor: read(IN_SLOT_FLOOR) }
    }
}

const KEPT_LEN_BITS: u32 = 44;
const KEPT_LEN_MAX: u64 = (1 << KEPT_LEN_BITS) - 1;
