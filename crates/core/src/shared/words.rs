//! The words that the processes of one database share, in block 0 of the log (`docs/format.md`).
//!
//! They are trusted only while somebody is attached: whoever finds itself alone begins them anew. Every store is one
//! word, so a process may die between any two of them; what must hold then is said at each.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use crate::base::layout::words::*;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::disk::shared::SharedWords;
use crate::disk::system;
use crate::log::frontier::{Frontier, FrontierStore, Milestone};
use crate::log::group::Durability;

const _: () = assert!(IN_SLOT_FLOOR + 1 == SLOT_WORDS);
const _: () = assert!(AT_SLOTS + PROCESSES * SLOT_WORDS == crate::disk::shared::LONGS);
// The last short is not one of them: `AT_IN_PLACE_PAGE`.
const _: () = assert!(SHIP_BELL + 1 < crate::disk::shared::SHORTS && PROCESSES <= 64, "a bit and a bell for each");

pub use crate::base::layout::words::{PINS, PROCESSES};

/// Whether a transaction is as far as its commit waits for.
pub fn reached(words: &ProcessWords, tid: Tid, durability: Durability) -> bool {
    words.frontier().reached(tid, durability == Durability::Flushed)
}

/// No snapshot.
const NONE: u64 = u64::MAX;

#[cfg(test)]
const COMMITTING: [usize; 8] =
    [AT_VISIBLE, AT_FLUSHED, AT_WRITTEN, AT_WANTED, AT_FLUSHER, AT_POISON, AT_SHIP, AT_SHIPPED];
/// The values of those words.
#[cfg(test)]
pub(crate) type Committing = [u64; 8];

/// Where a snapshot is announced: a word of its own, or the one for all the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotCell {
    /// A word of its own.
    Own(usize),
    /// The oldest of several.
    Floor,
}

/// What one process still reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// These snapshots.
    pub exact: Vec<Tid>,
    /// Any from this one on.
    pub floor: Option<Tid>,
}

impl Pins {
    /// Whether a snapshot in `from..until` may be pinned.
    pub fn within(&self, from: Tid, until: Tid) -> bool {
        self.exact.iter().any(|tid| (from..until).contains(tid)) || self.floor.is_some_and(|floor| floor < until)
    }
}

/// What a recovery that left the live records where they were has left to the next commit, of whichever process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryDebt {
    /// Home's mark does not tell of this record (rule OneNumberOneState).
    pub untold: Option<Tid>,
    /// The last transaction found, behind which the recovery wrote nothing: the next one has a number far from it (rule FlushedStays).
    pub stayed: Option<Tid>,
}

/// The words.
#[derive(Clone, Debug)]
pub struct ProcessWords(Arc<SharedWords>);

impl FrontierStore for &ProcessWords {
    fn get(&self, mark: Milestone) -> Tid {
        Tid(self.long(word_of(mark)).load(SeqCst))
    }

    fn raise(&mut self, mark: Milestone, tid: Tid) {
        self.cell(word_of(mark)).fetch_max(tid.0, SeqCst);
    }

    fn shipped(&self) -> Tid {
        if self.ship() == Ship::Off { Tid(u64::MAX) } else { self.shipped_to() }
    }
}

/// Whether commits wait for a store, and how it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ship {
    /// They do not.
    Off,
    /// What the session began with is not known to be in the store: only the shipper reads.
    Begun,
    /// They do.
    On,
    /// They do, and the store takes nothing now.
    Late,
    /// It belongs to another database: nothing is committed here any more.
    Fenced,
}

impl Ship {
    const ALL: [Ship; 5] = [Ship::Off, Ship::Begun, Ship::On, Ship::Late, Ship::Fenced];

    /// Whether a transaction that begins had better not build on what readers may not see: it may be long before they may.
    pub fn is_away(self) -> bool {
        matches!(self, Ship::Late | Ship::Fenced)
    }
}

/// The word of a mark.
fn word_of(mark: Milestone) -> usize {
    match mark {
        Milestone::Published => AT_WRITTEN,
        Milestone::Requested => AT_WANTED,
        Milestone::Flushed => AT_FLUSHED,
        Milestone::Visible => AT_VISIBLE,
    }
}

impl ProcessWords {
    /// The words of a log, whatever they hold.
    pub fn new(words: Arc<SharedWords>) -> ProcessWords {
        ProcessWords(words)
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        // Every index is one of the constants above, or within the slots.
        &self.0.longs[at]
    }

    /// A word to store to, which is not the shared one where that may only be read.
    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.0.to_write().longs[at]
    }

    fn slot_at(process: usize, word: usize) -> usize {
        AT_SLOTS + process * SLOT_WORDS + word
    }

    /// Begins them: the caller is alone.
    pub fn found(&self, session: u64, psow: bool, generation: u64, newest: Tid) {
        // Who dies on the way leaves the words of no session.
        self.cell(AT_MAGIC).store(0, SeqCst);
        fence(SeqCst);
        for (at, word) in self.0.to_write().longs.iter().enumerate() {
            let in_slot = at.checked_sub(AT_SLOTS).map_or(IN_SLOT_USED, |n| n % SLOT_WORDS);
            // Nobody else looks: one by one is no matter.
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

    /// They were begun in this start of the system, in the file that was `made` so, as far as both are known.
    pub fn set_start(&self, start: Option<u64>, made: Option<u64>) {
        self.cell(AT_MADE).store(made.unwrap_or(0), SeqCst);
        self.cell(AT_START).store(start.unwrap_or(0), SeqCst);
    }

    /// The newest transaction that was written, as processes left it of which none is there any more: if these are words of `session`
    /// that were begun in this `start` of the system (rule EndTold).
    pub fn end(&self, session: u64, start: u64) -> Option<Tid> {
        (self.fit(session) && start != 0 && self.long(AT_START).load(SeqCst) == start).then(|| self.written())
    }

    /// Of what [`ProcessWords::end`] tells of: whether all up to `last` is on the medium, and so is the slot `generation`, in the
    /// file that was `made` so, and nothing failed or was about to be flushed (rule FlushedStays).
    pub fn all_flushed(&self, made: u64, generation: u64, last: Tid) -> bool {
        let flushed = if keeps(Case::FlushedStays) { self.flushed() } else { self.written() };
        (self.long(AT_MADE).load(SeqCst), self.generation()) == (made, generation)
            && (flushed, self.written()) == (last, last)
            && !self.is_poisoned()
            && self.long(AT_FLUSHER).load(SeqCst) == 0
            && self.ship() == Ship::Off
    }

    /// What the recovery that the words were begun behind has left to do.
    pub fn due(&self) -> RecoveryDebt {
        let tid = |at| Some(Tid(self.long(at).load(SeqCst))).filter(|tid| *tid != Tid(0));
        RecoveryDebt { untold: tid(AT_UNTOLD), stayed: tid(AT_STAYED) }
    }

    /// The same is to do from here on.
    pub fn set_due(&self, due: RecoveryDebt) {
        let word = |tid: Option<Tid>| tid.map_or(0, |tid| tid.0);
        self.cell(AT_STAYED).store(word(due.stayed), SeqCst);
        self.cell(AT_UNTOLD).store(word(due.untold), SeqCst);
    }

    /// What commits change.
    #[cfg(test)]
    pub(crate) fn committing(&self) -> Committing {
        COMMITTING.map(|at| self.long(at).load(SeqCst))
    }

    /// Brings back what [`ProcessWords::committing`] was.
    #[cfg(test)]
    pub(crate) fn set_committing(&self, values: &Committing) {
        COMMITTING.iter().zip(values).for_each(|(at, value)| self.long(*at).store(*value, SeqCst));
    }

    /// Whether these are words of this version for `session`.
    pub fn fit(&self, session: u64) -> bool {
        self.long(AT_MAGIC).load(SeqCst) == MAGIC && self.long(AT_SESSION).load(SeqCst) == session
    }

    /// Whether all processes that write assume that a torn write leaves its neighbours alone.
    pub fn psow(&self) -> bool {
        self.long(AT_SETTINGS).load(SeqCst) & PSOW != 0
    }

    /// Whether a write or flush failed in some process, or home was overwritten.
    pub fn is_poisoned(&self) -> bool {
        self.long(AT_POISON).load(SeqCst) != 0
    }

    /// Why everything fails, for the processes that did not find out themselves.
    pub fn poisoned_by(&self) -> &'static str {
        match self.long(AT_POISON).load(SeqCst) {
            OVERWRITTEN => "the database file was overwritten, as another process found",
            _ => "a write or flush failed in another process",
        }
    }

    /// From now on everything fails, in every process.
    pub fn poison(&self) {
        if keeps(Case::PoisonTold) {
            // What was said before stays.
            let _ = self.cell(AT_POISON).compare_exchange(0, FAILED, SeqCst, SeqCst);
        }
        self.ring();
    }

    /// The same where home was overwritten.
    pub fn poison_overwritten(&self) {
        self.cell(AT_POISON).store(OVERWRITTEN, SeqCst);
        self.ring();
    }

    /// Wakes everybody who waits for a flush.
    pub fn ring(&self) {
        let bell = &self.0.to_write().shorts[FLUSH_BELL];
        bell.fetch_add(1, SeqCst);
        system::wake(bell, true);
    }

    /// Sequence of the newest header slot of the log.
    pub fn generation(&self) -> u64 {
        self.long(AT_GENERATION).load(SeqCst)
    }

    /// Whether no newer one was told since `sequence` was, as far as what was read is concerned.
    pub fn same_generation(&self, sequence: u64) -> bool {
        fence(SeqCst);
        self.generation() == sequence
    }

    /// A slot is durable. Nothing that it gives up may be overwritten before.
    pub fn set_generation(&self, sequence: u64) {
        debug_assert!(sequence >= self.generation(), "rule SlotBeforeReuse: {sequence} after {}", self.generation());
        self.cell(AT_GENERATION).store(sequence, SeqCst);
    }

    /// How far the log is, for all processes.
    pub fn frontier(&self) -> Frontier<&ProcessWords> {
        Frontier(self)
    }

    /// The newest transaction that readers of every process may see.
    pub fn visible(&self) -> Tid {
        self.frontier().visible()
    }

    /// The newest transaction that is durable.
    pub fn flushed(&self) -> Tid {
        self.frontier().flushed()
    }

    /// The newest transaction whose record is in the kernel's cache, whole, with those of all before it: whoever has
    /// the next turn builds on it.
    pub fn written(&self) -> Tid {
        self.frontier().published()
    }

    /// The transaction `tid` must be durable before it may be seen. Said before anybody can say that it is written
    /// (rule SeenWhenDurable).
    pub fn raise_wanted(&self, tid: Tid) {
        self.frontier().raise(Milestone::Requested, tid);
    }

    /// Transactions up to `tid` are written. A flush that begins from here on covers them.
    pub fn raise_written(&self, tid: Tid) {
        self.frontier().raise(Milestone::Published, tid);
        self.wake_shipper();
    }

    /// Transactions up to `tid` are durable.
    pub fn raise_flushed(&self, tid: Tid) {
        self.frontier().raise(Milestone::Flushed, tid);
        self.wake_shipper();
    }

    /// Whether commits wait for a store.
    pub fn ship(&self) -> Ship {
        let word = self.long(AT_SHIP).load(SeqCst);
        // Damaged words are those of a store that is away: nothing is acknowledged.
        usize::try_from(word).ok().and_then(|n| Ship::ALL.get(n).copied()).unwrap_or(Ship::Late)
    }

    fn change_ship(&self, from: Ship, to: Ship) {
        // What another process has said since stays.
        let _ = self.cell(AT_SHIP).compare_exchange(from as u64, to as u64, SeqCst, SeqCst);
    }

    /// The words were begun just now, by the shipper: commits wait for the store, and readers until it is known to have all.
    pub fn begin_unshipped(&self, patience_ms: u64) {
        self.cell(AT_SHIP_MS).store(patience_ms, SeqCst);
        self.cell(AT_SHIP).store(Ship::Begun as u64, SeqCst);
    }

    /// Commits wait for the store from here on. The caller has the writer's place, and everything written is visible, or
    /// commits waited before. The readers have seen what there is.
    pub fn begin_shipping(&self, patience_ms: u64) {
        self.cell(AT_SHIP_MS).store(patience_ms, SeqCst);
        if self.ship() == Ship::Off {
            self.cell(AT_SHIPPED).store(self.written().0, SeqCst);
        }
        self.change_ship(Ship::Off, Ship::On);
        self.change_ship(Ship::Fenced, Ship::On);
    }

    /// The newest transaction that the store has.
    pub fn shipped_to(&self) -> Tid {
        Tid(self.long(AT_SHIPPED).load(SeqCst))
    }

    /// The store has everything up to `tid`, and belongs to this database.
    pub fn raise_shipped(&self, tid: Tid) {
        self.cell(AT_SHIPPED).fetch_max(tid.0, SeqCst);
        self.change_ship(Ship::Begun, Ship::On);
        self.change_ship(Ship::Late, Ship::On);
        self.show();
        self.ring();
    }

    /// The newest transaction that the store lacks and may get: whole, and on the medium here. `None`: it lacks nothing.
    pub fn to_ship(&self) -> Option<Tid> {
        let tid = self.flushed().min(self.written());
        (tid > self.shipped_to() || self.ship() == Ship::Begun).then_some(tid)
    }

    /// The store takes nothing now.
    pub fn note_late(&self) {
        self.change_ship(Ship::On, Ship::Late);
    }

    /// The store belongs to another database.
    pub fn fence(&self) {
        self.cell(AT_SHIP).store(Ship::Fenced as u64, SeqCst);
        self.ring();
    }

    /// How long a commit waits for the store.
    pub fn ship_ms(&self) -> u64 {
        self.long(AT_SHIP_MS).load(SeqCst)
    }

    /// What the shipper sleeps on.
    pub fn ship_bell(&self) -> &AtomicU32 {
        &self.0.shorts[SHIP_BELL]
    }

    fn wake_shipper(&self) {
        if self.ship() != Ship::Off {
            let bell = &self.0.to_write().shorts[SHIP_BELL];
            bell.fetch_add(1, SeqCst);
            system::wake(bell, true);
        }
    }

    /// Lets readers see what they may: as durable as its commits and all before asked for.
    pub fn show(&self) {
        self.frontier().show();
    }

    /// Transactions up to `visible` are written and may be seen, and those up to `flushed` are durable.
    pub fn publish(&self, visible: Tid, flushed: Tid) {
        self.raise_written(visible);
        self.raise_flushed(flushed);
        let shipped = FrontierStore::shipped(&self);
        self.frontier().raise(Milestone::Visible, visible.min(shipped));
    }

    /// Who flushes for all, see [`crate::processes::flush`].
    pub fn flusher(&self) -> &AtomicU64 {
        self.cell(AT_FLUSHER)
    }

    /// The process that a word FLUSHER names.
    pub fn flusher_of(word: u64) -> Option<usize> {
        usize::try_from(word).ok()?.checked_sub(1)
    }

    /// A bit for each process with a transaction that waits for a flush.
    pub fn awaiting(&self) -> &AtomicU64 {
        self.cell(AT_AWAITING)
    }

    /// [`ProcessWords::awaiting`] when the last flush began.
    pub fn covered(&self) -> &AtomicU64 {
        self.cell(AT_COVERED)
    }

    /// When the last flush ended, on the system's clock in microseconds.
    pub fn flush_ended(&self) -> &AtomicU64 {
        self.cell(AT_FLUSH_ENDED)
    }

    /// How long the last flush took, in microseconds.
    pub fn flush_us(&self) -> &AtomicU64 {
        self.cell(AT_FLUSH_US)
    }

    /// What those sleep on who wait for a flush.
    pub fn flush_bell(&self) -> &AtomicU32 {
        &self.0.shorts[FLUSH_BELL]
    }

    /// Snapshots older than this must not be pinned any more: home may have left them.
    pub fn home_floor(&self) -> Tid {
        // What was read before, of home too, was read before this.
        fence(SeqCst);
        Tid(self.long(AT_HOME_FLOOR).load(SeqCst))
    }

    /// Home is about to become what it is at this transaction. Snapshots that are pinned already are seen
    /// by [`ProcessWords::pins`] afterwards.
    pub fn set_home_floor(&self, tid: Tid) {
        self.cell(AT_HOME_FLOOR).store(tid.0, SeqCst);
        fence(SeqCst);
    }

    /// The process that lets no other begin to read; it may be dead. Looked at by who has announced its snapshot.
    pub fn alone(&self) -> Option<usize> {
        fence(SeqCst);
        usize::try_from(self.long(AT_ALONE).load(SeqCst)).ok()?.checked_sub(1)
    }

    /// Whether the database has another log. A process asks behind the announcement of a snapshot, and with the turn.
    pub fn is_replaced(&self) -> bool {
        fence(SeqCst);
        self.long(AT_ALONE).load(SeqCst) == REPLACED
    }

    /// The database has another log from here on (rule LostLogReplaced). The caller has the turn, and no other process has a snapshot.
    pub fn replace(&self) {
        self.cell(AT_ALONE).store(REPLACED, SeqCst);
        self.ring();
    }

    /// No other process begins to read from here on. Who reads already is seen by [`ProcessWords::pins`] afterwards. The
    /// caller has the writer's place.
    pub fn shut_out(&self, process: usize) {
        let alone = |old| (old != REPLACED).then_some(process as u64 + 1);
        let _ = self.cell(AT_ALONE).fetch_update(SeqCst, SeqCst, alone);
        fence(SeqCst);
    }

    /// Others may read, if it was this process that did not let them.
    pub fn let_in(&self, process: usize) {
        // What another process has said since stays.
        let _ = self.cell(AT_ALONE).compare_exchange(process as u64 + 1, 0, SeqCst, SeqCst);
    }

    /// Grows before bytes of home are overwritten.
    pub fn epoch(&self) -> u64 {
        self.long(AT_EPOCH).load(SeqCst)
    }

    /// Whether nothing of home was overwritten since the epoch was `epoch`, as far as what was read is concerned.
    pub fn same_epoch(&self, epoch: u64) -> bool {
        fence(SeqCst);
        self.epoch() == epoch
    }

    /// What was kept is told; home is overwritten from here on.
    pub fn next_epoch(&self) {
        self.cell(AT_EPOCH).fetch_add(1, SeqCst);
        fence(SeqCst);
    }

    /// Generation and length of the file with kept images.
    pub fn kept(&self) -> (u64, u64) {
        let word = self.long(AT_KEPT).load(SeqCst);
        (word >> KEPT_LEN_BITS, word & KEPT_LEN_MAX)
    }

    /// Whether the file with kept images was not begun afresh since its generation was this one, as far as what was read is concerned.
    pub fn same_kept(&self, generation: u64) -> bool {
        fence(SeqCst);
        self.kept().0 == generation
    }

    /// The file with kept images has this length.
    pub fn set_kept(&self, generation: u64, len: u64) {
        self.cell(AT_KEPT).store((generation << KEPT_LEN_BITS) | (len & KEPT_LEN_MAX), SeqCst);
    }

    /// Snapshots from this one on need no kept image.
    pub fn kept_until(&self) -> Tid {
        Tid(self.long(AT_KEPT_UNTIL).load(SeqCst))
    }

    /// Images are about to be kept for snapshots before this one.
    pub fn raise_kept_until(&self, until: Tid) {
        self.cell(AT_KEPT_UNTIL).fetch_max(until.0, SeqCst);
    }

    /// Who writes, see [`super::turn`].
    pub fn turn(&self) -> &AtomicU64 {
        self.cell(AT_TURN)
    }

    /// Grows whenever the turn passes from one process to another.
    pub fn turns(&self) -> &AtomicU64 {
        self.cell(AT_TURNS)
    }

    /// A bit for each process that waits for its turn.
    pub fn wanting(&self) -> &AtomicU64 {
        self.cell(AT_WANTING)
    }

    /// What a process sleeps on.
    pub fn bell(&self, process: usize) -> &AtomicU32 {
        &self.0.to_write().shorts[process]
    }

    /// Takes a slot for a process. The caller has its lock byte.
    pub fn enter(&self, process: usize) {
        self.clear(process);
        self.cell(Self::slot_at(process, IN_SLOT_USED)).store(1, SeqCst);
    }

    /// Whether a process has the slot; it may be dead.
    pub fn is_used(&self, process: usize) -> bool {
        self.long(Self::slot_at(process, IN_SLOT_USED)).load(SeqCst) != 0
    }

    /// Gives a slot back, for a process that leaves or is dead.
    pub fn clear(&self, process: usize) {
        for word in IN_SLOT_PINS..SLOT_WORDS {
            self.cell(Self::slot_at(process, word)).store(NONE, SeqCst);
        }
        self.let_in(process);
        self.wanting().fetch_and(!(1 << process), SeqCst);
        self.awaiting().fetch_and(!(1 << process), SeqCst);
        self.cell(Self::slot_at(process, IN_SLOT_USED)).store(0, SeqCst);
    }

    /// Announces a snapshot of a process. The caller looks at [`ProcessWords::home_floor`] next.
    pub fn set_pin(&self, process: usize, cell: SnapshotCell, tid: Option<Tid>) {
        let word = match cell {
            SnapshotCell::Own(n) => IN_SLOT_PINS + n.min(PINS - 1),
            SnapshotCell::Floor => IN_SLOT_FLOOR,
        };
        self.cell(Self::slot_at(process, word)).store(tid.map_or(NONE, |tid| tid.0), SeqCst);
    }

    /// What a process still reads.
    pub fn pins(&self, process: usize) -> Pins {
        let read =
            |word| Some(self.long(Self::slot_at(process, word)).load(SeqCst)).filter(|tid| *tid != NONE).map(Tid);
        Pins { exact: (0..PINS).filter_map(|n| read(IN_SLOT_PINS + n)).collect(), floor: read(IN_SLOT_FLOOR) }
    }
}

const KEPT_LEN_BITS: u32 = 44;
const KEPT_LEN_MAX: u64 = (1 << KEPT_LEN_BITS) - 1;
