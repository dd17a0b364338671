//! A process among those that use one log: attaching, its slot, its snapshots, its turn to write.
//!
//! Locks on bytes behind the log's end, which end with their process:
//!
//! | byte | held |
//! |---|---|
//! | 2^60 ATTACH | shared by each attached process; exclusive by one that is alone |
//! | 2^60 + 1 ADMIN | exclusive while a process attaches or leaves |
//! | 2^60 + 2 + n | exclusive by the process in slot n: one that gets it knows that one dead |
//! | 2^61 + TID | shared by an observer that reads the snapshot TID |
//!
//! An observer cannot write the log: without slot or words, it announces snapshots with locks (rule
//! AnnounceThenLook).

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use super::kept::{KeptImages, kept_path};
use super::slots::MoreSlots;
use super::tail::Tail;
use super::turn::{Hold, Turn, Turns};
use super::users;
use super::words::{PINS, PROCESSES, Pins, ProcessWords, RecoveryDebt, SnapshotCell};
use crate::base::clock::{self, Instant};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::lock_bytes::{ADMIN, ATTACH, BYTES, LET_IN, OBSERVED, OBSERVED_BYTES, SLOTS};
use crate::base::types::Tid;
use crate::disk::sync::{Condvar, Mutex, MutexGuard};
use crate::disk::{Disk, DiskFile, LockKind, system};
use crate::log::file::{LogCursor, LogFile};
use crate::log::slot::Slot;

/// Another process counts as a writer for this long.
const BESIDE: Duration = Duration::from_millis(20);

const ASKS_AGAIN: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));

/// A process that attaches looks at so many slots in use for dead ones.
const LOOKS_AT_DEAD: usize = 4;

const LOCAL_NAP: Duration = Duration::from_micros(50);

/// Exclusive to use the log alone, shared to read it unused. False if another process has a lock
/// byte.
pub fn try_alone(log: &LogFile, kind: LockKind) -> Result<bool> {
    log.file.try_lock(ATTACH, BYTES, kind).context(|| format!("cannot lock the log {}", log.path.display()))
}

pub fn give_back(log: &LogFile) -> Result<()> {
    log.file.unlock(ATTACH, BYTES).context(|| format!("cannot unlock the log {}", log.path.display()))
}

/// `Busy` if another process has ADMIN for longer than `wait`.
pub fn admin(log: &LogFile, wait: Duration) -> Result<()> {
    lock_within(log, ADMIN, LockKind::Exclusive, wait)
}

/// The same for an observer, which can only share a byte.
pub fn admin_to_look(log: &LogFile, wait: Duration) -> Result<()> {
    lock_within(log, ADMIN, LockKind::Shared, wait)
}

fn lock_within(log: &LogFile, byte: u64, kind: LockKind, wait: Duration) -> Result<()> {
    let begun = Instant::now();
    let what = || format!("cannot lock the log {}", log.path.display());
    while !log.file.try_lock(byte, 1, kind).context(what)? {
        let waited = begun.elapsed();
        if waited >= wait {
            return Err(Error::Busy(format!(
                "another process has this database to itself, or is opening or closing it (it holds the log {}){}",
                log.path.display(),
                users::holders(log, byte, wait)
            )));
        }
        // Hundreds that wait would keep the kernel's list of locks busy.
        let pause = (waited / 4).clamp(ASKS_AGAIN.0, ASKS_AGAIN.1);
        clock::sleep(pause.min(wait - waited));
    }
    Ok(())
}

fn in_use(log: &LogFile, why: &str) -> Error {
    Error::Busy(format!("another process has this database open {why} (log {})", log.path.display()))
}

pub fn end_admin(log: &LogFile) -> Result<()> {
    log.file.unlock(ADMIN, 1).context(|| format!("cannot unlock the log {}", log.path.display()))
}

fn observed(tid: Tid) -> u64 {
    OBSERVED.saturating_add(tid.0)
}

struct Announced {
    own: [AnnouncedSnapshot; PINS],
    others: Vec<AnnouncedSnapshot>,
}

#[derive(Clone, Copy)]
struct AnnouncedSnapshot {
    tid: Tid,
    /// On the system's clock, in seconds.
    since: u32,
}

impl AnnouncedSnapshot {
    /// For a free cell. In an `Option` its bytes would be unset, and optimised code looks at them.
    const NONE: AnnouncedSnapshot = AnnouncedSnapshot { tid: Tid(u64::MAX), since: u32::MAX };

    fn now(tid: Tid) -> AnnouncedSnapshot {
        AnnouncedSnapshot { tid, since: u32::try_from(system::clock_s()).unwrap_or(u32::MAX) }
    }
}

impl Default for Announced {
    fn default() -> Self {
        Announced { own: [AnnouncedSnapshot::NONE; PINS], others: Vec::new() }
    }
}

impl Announced {
    fn own(&mut self, tid: Tid) -> Option<(usize, &mut AnnouncedSnapshot)> {
        self.own.iter_mut().enumerate().find(|(_, own)| own.tid == tid)
    }

    fn floor(&self) -> Option<Tid> {
        self.others.iter().map(|pinned| pinned.tid).min()
    }

    fn since(&self) -> Option<u32> {
        let all = self.own.iter().chain(&self.others).filter(|pinned| pinned.tid != AnnouncedSnapshot::NONE.tid);
        all.map(|pinned| pinned.since).min()
    }
}

struct Local {
    in_flight: usize,
    /// The place came from another process: no thread goes on until the writer's state is in order
    /// (rule OneWriter).
    settling: bool,
    seen_turns: u64,
    since: Instant,
    /// When another process last had the turn.
    others_at: Option<Instant>,
    /// No turn begins here.
    is_over: bool,
    /// Threads that wait for `idle`. To wake none would be a system call, too.
    waiting: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeResult {
    Again,
    /// Ours; another may have written.
    Anew,
    /// Ours; it died while writing.
    FromDead(usize),
    Not,
}

pub struct MemberFiles {
    pub disk: Arc<dyn Disk>,
    pub home: Arc<dyn DiskFile>,
    pub read_only: bool,
}

pub struct Member {
    pub words: ProcessWords,
    /// An observer has none.
    pub me: usize,
    pub observes: bool,
    pub log: LogFile,
    pub tail: Mutex<Tail>,
    pub kept: KeptImages,
    /// The sequence of [`Tail`]'s slot, read without a lock by each snapshot.
    pub generation: AtomicU64,
    announced: Mutex<Announced>,
    awaiting: AtomicUsize,
    local: Mutex<Local>,
    /// Its turn is taken over: it stays dead, and its slot is given to no other process.
    dead: Mutex<Option<usize>>,
    idle: Condvar,
}

impl Member {
    fn new(files: MemberFiles, log: LogFile, words: ProcessWords, me: usize, tail: Tail) -> Member {
        let kept = kept_path(&log.path, tail.slot.session);
        Member {
            kept: KeptImages::new(files.disk, files.home, kept, words.clone(), files.read_only),
            generation: AtomicU64::new(tail.slot.sequence),
            words,
            me,
            observes: me >= PROCESSES,
            log,
            tail: Mutex::new(tail),
            announced: Mutex::default(),
            awaiting: AtomicUsize::new(0),
            local: Mutex::new(Local {
                in_flight: 0,
                settling: false,
                seen_turns: u64::MAX,
                since: Instant::now(),
                others_at: None,
                is_over: false,
                waiting: 0,
            }),
            dead: Mutex::default(),
            idle: Condvar::default(),
        }
    }

    /// The first process: it has all lock bytes, with records durable up to `tail`. With
    /// `in_flight` transactions it has the writer's place (rule OneWriter); each ends with
    /// [`Member::leave`]. `None`, still alone: memory cannot be shared.
    pub fn found(
        files: MemberFiles,
        log: LogFile,
        tail: Tail,
        due: RecoveryDebt,
        psow: bool,
        in_flight: usize,
    ) -> Result<Option<Arc<Member>>> {
        let Ok(words) = log.file.shared_words(1) else { return Ok(None) };
        let words = ProcessWords::with(words, MoreSlots::new(&files, &log.path, tail.slot.session));
        words.found(tail.slot.session, psow, tail.slot.sequence, tail.cursor.last_tid);
        words.set_due(due);
        let made = log.file.made().context(|| format!("cannot look at the log {}", log.path.display()))?;
        words.set_start(files.disk.system_start(), made);
        let me = 0;
        words.enter(me, files.disk.this_process());
        let member = Member::new(files, log, words, me, tail);
        member.turns().found(in_flight > 0);
        {
            let mut local = member.local.lock();
            local.seen_turns = member.words.turns().load(SeqCst);
            local.in_flight = in_flight;
        }
        let what = || format!("cannot lock the log {}", member.log.path.display());
        let file = &member.log.file;
        file.unlock(SLOTS + 1, PROCESSES as u64 - 1).context(what)?;
        file.try_lock(ATTACH, 1, LockKind::Shared).context(what)?;
        file.unlock(ADMIN, 1).context(what)?;
        Ok(Some(Arc::new(member)))
    }

    /// To write if `psow` is given. The caller has ADMIN, and is not alone.
    pub fn join(files: MemberFiles, log: LogFile, session: u64, psow: Option<bool>) -> Result<Arc<Member>> {
        let path = log.path.display().to_string();
        let what = || format!("cannot lock the log {path}");
        let busy = |why: &str| in_use(&log, why);
        if !log.file.try_lock(ATTACH, 1, LockKind::Shared).context(what)? {
            return Err(busy("and shares it with none"));
        }
        let (words, slot) = Self::look(&files, &log, session, psow)?;
        let Some(me) = Self::lock_slot(&log, &words)? else {
            return Err(busy(&format!("in {PROCESSES} processes, as many as there may be")));
        };
        words.make_slot(me)?;
        words.enter(me, files.disk.this_process());
        Ok(Arc::new(Member::new(files, log, words, me, Tail::nowhere(slot))))
    }

    /// `None`: no longer in use. `is_marked`: home has the mark of `session`.
    pub fn observe(
        files: MemberFiles,
        log: LogFile,
        session: u64,
        busy_ms: u64,
        is_marked: impl FnOnce() -> Result<bool>,
    ) -> Result<Option<Arc<Member>>> {
        let path = log.path.display().to_string();
        let what = || format!("cannot lock the log {path}");
        lock_within(&log, ATTACH, LockKind::Shared, Duration::from_millis(busy_ms))?;
        // Now no process takes the mark off.
        let is_used = log.file.conflicts(SLOTS, PROCESSES as u64, LockKind::Shared).context(what)?
            || log.file.conflicts(LET_IN, 1, LockKind::Exclusive).context(what)?;
        if !is_used || !is_marked()? {
            log.file.unlock(ATTACH, 1).context(what)?;
            return Ok(None);
        }
        let (words, slot) = Self::look(&files, &log, session, None)?;
        // Two that only try to attach see none.
        log.file.try_lock(LET_IN, 1, LockKind::Shared).context(what)?;
        Ok(Some(Arc::new(Member::new(files, log, words, PROCESSES, Tail::nowhere(slot)))))
    }

    /// Of the dead among the next few in use, of which it frees the others; else a free one; at
    /// last any. So the dead do not fill the slots, and few of the living are looked at.
    fn lock_slot(log: &LogFile, words: &ProcessWords) -> Result<Option<usize>> {
        let what = || format!("cannot lock the log {}", log.path.display());
        let lock = |process: usize| -> Result<bool> {
            let at = SLOTS + process as u64;
            // To others it is dead as long as it may be left.
            if !log.file.try_lock(at, 1, LockKind::Shared).context(what)? {
                return Ok(false);
            }
            // That of a process that died in its turn or flush is left to the take-over.
            let is_left = words.busy_owner() == Some(process) || words.flusher().load(SeqCst) == process as u64 + 1;
            if is_left || !log.file.try_lock(at, 1, LockKind::Exclusive).context(what)? {
                log.file.unlock(at, 1).context(what)?;
                return Ok(false);
            }
            Ok(true)
        };
        let first = usize::try_from(words.looked().load(SeqCst)).unwrap_or(0) % PROCESSES;
        let mut mine = None;
        for process in words.used().from(first).take(LOOKS_AT_DEAD) {
            words.looked().store(process as u64 + 1, SeqCst);
            if !lock(process)? {
                continue;
            }
            if mine.is_none() {
                mine = Some(process);
            } else {
                words.clear(process);
                log.file.unlock(SLOTS + process as u64, 1).context(what)?;
            }
        }
        if mine.is_some() {
            return Ok(mine);
        }
        for process in words.used().free().chain(words.used().from(0)) {
            if lock(process)? {
                return Ok(Some(process));
            }
        }
        Ok(None)
    }

    fn look(files: &MemberFiles, log: &LogFile, session: u64, psow: Option<bool>) -> Result<(ProcessWords, Slot)> {
        let path = log.path.display();
        let busy = |why: &str| in_use(log, why);
        let words = log.file.shared_words(1).map_err(|_| busy("and memory cannot be shared with it"))?;
        let words = ProcessWords::with(words, MoreSlots::new(files, &log.path, session));
        if !words.fit(session) {
            return Err(busy("through another version of onewrite"));
        }
        if words.is_poisoned() {
            return Err(Error::Poisoned(words.poisoned_by().into()));
        }
        if let Some(asked) = psow.filter(|asked| *asked != words.psow()) {
            return Err(Error::Option(format!(
                "psow={} was asked for, but the database is open in another process with psow={}",
                u8::from(asked),
                u8::from(!asked)
            )));
        }
        let slot = loop {
            let generation = words.generation();
            match log.slots()?.into_iter().find(|s| s.sequence == generation && s.session == session) {
                Some(slot) => break slot,
                None if words.generation() != generation => {} // Overwritten by now.
                None => {
                    return Err(Error::Corrupt(format!("the log {path} has lost the header slot that is in use")));
                }
            }
        };
        Ok((words, slot))
    }

    pub fn note(&self, slot: &Slot, cursor: &LogCursor) {
        let mut tail = self.tail.lock();
        debug_assert!(slot.sequence >= tail.slot.sequence, "rule SlotBeforeReuse: slots are told in order");
        debug_assert!(cursor.last_tid >= tail.cursor.last_tid, "rule RecordChain: {cursor:?} behind {:?}", tail.cursor);
        tail.cursor = *cursor;
        if tail.slot.sequence != slot.sequence {
            tail.slot = slot.clone();
            self.generation.store(slot.sequence, SeqCst);
            self.words.set_generation(slot.sequence);
        }
    }

    fn turns(&self) -> Turns<'_> {
        Turns { words: &self.words, me: self.me }
    }

    /// If this is the only process, none can attach until [`Member::not_alone`]. The caller has
    /// ADMIN.
    pub fn is_alone(&self) -> Result<bool> {
        try_alone(&self.log, LockKind::Exclusive)
    }

    pub fn not_alone(&self) -> Result<()> {
        let what = || format!("cannot unlock the log {}", self.log.path.display());
        let file = &self.log.file;
        let mine = SLOTS + self.me as u64;
        if mine > SLOTS {
            file.unlock(SLOTS, mine - SLOTS).context(what)?;
        }
        if mine + 1 < ATTACH + BYTES {
            file.unlock(mine + 1, ATTACH + BYTES - mine - 1).context(what)?;
        }
        file.try_lock(ATTACH, 1, LockKind::Shared).context(what)?;
        file.unlock(ADMIN, 1).context(what)
    }

    pub fn leave_for_good(&self) -> Result<()> {
        if self.observes {
            let what = || format!("cannot unlock the log {}", self.log.path.display());
            self.log.file.unlock(LET_IN, 1).context(what)?;
            self.log.file.unlock(OBSERVED, OBSERVED_BYTES).context(what)?;
        } else {
            self.words.clear(self.me);
        }
        give_back(&self.log)
    }

    /// False, and not announced, if home may have left it.
    pub fn announce(&self, tid: Tid) -> Result<bool> {
        if self.observes {
            let what = || format!("cannot lock the log {}", self.log.path.display());
            if !self.log.file.try_lock(observed(tid), 1, LockKind::Shared).context(what)? {
                return Err(in_use(&self.log, "in a way that keeps observers out"));
            }
        } else {
            self.announce_unseen(tid);
        }
        if self.words.home_floor() <= tid {
            return Ok(true);
        }
        self.withdraw(tid)?;
        Ok(false)
    }

    /// For a snapshot that no checkpoint can overtake now.
    pub fn announce_unseen(&self, tid: Tid) {
        let mut announced = self.announced.lock();
        let pinned = AnnouncedSnapshot::now(tid);
        if let Some((n, own)) = announced.own(AnnouncedSnapshot::NONE.tid) {
            *own = pinned;
            self.words.set_pin(self.me, SnapshotCell::Own(n), Some(tid));
        } else {
            announced.others.push(pinned);
            self.words.set_pin(self.me, SnapshotCell::Floor, announced.floor());
        }
        self.tell_since(&announced);
    }

    fn tell_since(&self, announced: &Announced) {
        if let Some(since) = announced.since() {
            self.words.set_snapshot_since(self.me, since);
        }
    }

    pub fn withdraw(&self, tid: Tid) -> Result<()> {
        if self.observes {
            let what = || format!("cannot unlock the log {}", self.log.path.display());
            return self.log.file.unlock(observed(tid), 1).context(what);
        }
        let mut announced = self.announced.lock();
        if let Some((n, own)) = announced.own(tid) {
            *own = AnnouncedSnapshot::NONE;
            self.words.set_pin(self.me, SnapshotCell::Own(n), None);
        } else if let Some(at) = announced.others.iter().position(|other| other.tid == tid) {
            announced.others.swap_remove(at);
            self.words.set_pin(self.me, SnapshotCell::Floor, announced.floor());
        }
        self.tell_since(&announced);
        Ok(())
    }

    pub fn pins_of_others(&self) -> Result<Vec<Pins>> {
        let mut all = Vec::new();
        let busy_owner = self.words.busy_owner();
        // Others than the one with the turn read all slots.
        let pinned = match busy_owner == Some(self.me) {
            true => self.words.pinned(),
            false => self.words.used().from(0).map(|process| (process, self.words.pins(process))).collect(),
        };
        for (process, pins) in pinned.into_iter().filter(|(process, _)| *process != self.me) {
            let is_dead = pins != Pins::default() && Some(process) != busy_owner && self.clear_dead(process)?;
            if !is_dead {
                all.push(pins);
            }
        }
        let floor = self.oldest_observed()?;
        all.extend(floor.map(|tid| Pins { exact: Vec::new(), floor: Some(tid) }));
        Ok(all)
    }

    /// A dead one counts.
    pub fn has_others(&self) -> bool {
        self.words.used().has_others(self.me)
    }

    pub fn has_living_others(&self) -> Result<bool> {
        let what = || format!("cannot lock the log {}", self.log.path.display());
        let any = |from: usize, until: usize| {
            let (at, slots) = (SLOTS + from as u64, until.saturating_sub(from) as u64);
            Ok(slots > 0 && self.log.file.conflicts(at, slots, LockKind::Shared).context(what)?)
        };
        Ok(any(0, self.me)? || any(self.me + 1, PROCESSES)?)
    }

    /// Later observers look at the floor afterwards (rule AnnounceThenLook).
    fn oldest_observed(&self) -> Result<Option<Tid>> {
        let what = || format!("cannot lock the log {}", self.log.path.display());
        let any = |from: u64, until: u64| {
            self.log.file.conflicts(observed(Tid(from)), until - from, LockKind::Exclusive).context(what)
        };
        let (mut from, mut until) = (0, self.words.written().0.saturating_add(1));
        if !any(from, until)? {
            return Ok(None);
        }
        while until - from > 1 {
            let middle = from + (until - from) / 2;
            match any(from, middle)? {
                true => until = middle,
                false => from = middle,
            }
        }
        Ok(Some(Tid(from)))
    }

    /// It sees snapshots announced before.
    pub fn is_shut_out(&self) -> Result<bool> {
        if self.words.is_replaced() {
            return Ok(true);
        }
        match self.words.alone().filter(|process| *process != self.me && *process < PROCESSES) {
            None => Ok(false),
            Some(process) if !self.is_dead(process)? => Ok(true),
            Some(process) => {
                self.words.let_in(process);
                Ok(false)
            }
        }
    }

    /// A living process has its slot locked exclusively, so looks by several do not disturb each
    /// other.
    pub fn is_dead(&self, process: usize) -> Result<bool> {
        let what = || format!("cannot lock the log {}", self.log.path.display());
        let dead = self.dead.lock();
        Ok(*dead == Some(process)
            || !self.log.file.conflicts(SLOTS + process as u64, 1, LockKind::Shared).context(what)?)
    }

    /// If it is dead, none gets its slot until [`Member::forget_dead`].
    fn hold_dead(&self, process: usize) -> Result<bool> {
        let what = || format!("cannot lock the log {}", self.log.path.display());
        let mut dead = self.dead.lock();
        let held = self.log.file.try_lock(SLOTS + process as u64, 1, LockKind::Shared).context(what)?;
        *dead = held.then_some(process);
        Ok(held)
    }

    fn forget_dead(&self) -> Result<()> {
        let what = || format!("cannot unlock the log {}", self.log.path.display());
        let slot = self.dead.lock().take().map(|process| SLOTS + process as u64);
        slot.map_or(Ok(()), |slot| self.log.file.unlock(slot, 1).context(what))
    }

    /// Clears the slot of a process if that is dead; a take-over does it at its end.
    fn clear_dead(&self, process: usize) -> Result<bool> {
        let what = || format!("cannot lock the log {}", self.log.path.display());
        let (dead, slot) = (self.dead.lock(), SLOTS + process as u64);
        if *dead == Some(process) {
            return Ok(true);
        }
        if !self.log.file.try_lock(slot, 1, LockKind::Shared).context(what)? {
            return Ok(false);
        }
        self.words.clear(process);
        self.log.file.unlock(slot, 1).context(what)?;
        Ok(true)
    }

    pub fn others_write(&self) -> bool {
        self.turns().is_taken_by_another()
    }

    pub fn holder(&self) -> String {
        let held = self.words.busy_for().filter(|(owner, _)| *owner != self.me && *owner < PROCESSES);
        let named = held.map(|(owner, time)| (self.words.tag(owner), time)).filter(|(tag, _)| tag.pid().is_some());
        named.map_or(String::new(), |(tag, time)| format!(": held for {:.1} s by {}", time.as_secs_f64(), tag.name()))
    }

    pub fn others_think(&self) -> bool {
        self.turns().is_thought_by_another()
    }

    pub fn others_keep(&self, kept: Duration) -> Result<bool> {
        self.turns().kept_by_another(kept).map_or(Ok(false), |process| Ok(!self.is_dead(process)?))
    }

    /// A thread that waits for another process's turn has it for long.
    fn lock_local(&self, deadline: &Deadline) -> Option<MutexGuard<'_, Local>> {
        loop {
            let local = self.local.lock_soon();
            if local.is_some() || Instant::now() >= deadline.at() {
                return local;
            }
            clock::sleep(LOCAL_NAP);
        }
    }

    /// Busy is for a transaction, which [`Member::leave`] ends. Does not wait for a process that
    /// has the place for `kept`. After `FromDead`, also of a lease, the caller takes over and calls
    /// [`Member::settle`] and [`Member::leave`]; after a firm `Anew` just these.
    pub fn take(&self, hold: impl Into<Hold>, deadline: &Deadline, kept: Option<Duration>) -> Result<TakeResult> {
        let hold = hold.into();
        let firm = hold == Hold::Busy;
        let Some(mut local) = self.lock_local(deadline) else { return Ok(TakeResult::Not) };
        // Joins our turn if it is in order and others have not waited too long.
        while local.settling || (firm && local.in_flight > 0 && self.turns().should_pass_on(local.since)) {
            if local.is_over {
                break;
            }
            let left = deadline.at().saturating_duration_since(Instant::now());
            local.waiting += 1;
            let (woken, is_late) = self.idle.wait_timeout(&self.local, local, left);
            local = woken;
            local.waiting -= 1;
            if is_late {
                return Ok(TakeResult::Not);
            }
        }
        if local.is_over {
            return Ok(TakeResult::Not);
        }
        if local.in_flight > 0 {
            local.in_flight += usize::from(firm);
            return Ok(TakeResult::Again);
        }
        let mut looked = false;
        let turn = self.turns().take(hold, deadline, kept, &mut |process| {
            looked = true;
            self.forget_dead()?;
            self.hold_dead(process)
        });
        if looked && !matches!(turn, Ok(Turn::OfTheDead(_))) {
            self.forget_dead()?;
        }
        let taken = match turn? {
            Turn::Theirs => TakeResult::Not,
            Turn::OfTheDead(process) => TakeResult::FromDead(process),
            Turn::Ours if self.words.turns().load(SeqCst) == local.seen_turns => TakeResult::Again,
            Turn::Ours => TakeResult::Anew,
        };
        let takes_over = matches!(taken, TakeResult::FromDead(_));
        local.in_flight = usize::from(takes_over || (firm && taken != TakeResult::Not));
        local.settling = takes_over || (firm && taken == TakeResult::Anew);
        Ok(taken)
    }

    /// Unlike a transaction, it joins while others wait for the turn. [`Member::leave`] ends it.
    pub fn join_turn(&self) -> bool {
        let joined = self.local.try_lock().filter(|local| local.in_flight > 0 && !local.settling && !local.is_over);
        joined.map(|mut local| local.in_flight += 1).is_some()
    }

    /// As the process detaches; false where more than `own` are under way, or a thread waits for
    /// one.
    pub fn end_turns(&self, own: usize) -> bool {
        let ends = self.local.try_lock().filter(|local| local.in_flight <= own && !local.settling);
        ends.map(|mut local| local.is_over = true).is_some()
    }

    /// Returns the number of transactions under way, which go on with another log.
    pub fn move_turn(&self) -> usize {
        let mut local = self.local.lock();
        local.is_over = true;
        self.turns().leave(true);
        self.wake(&local);
        local.in_flight
    }

    /// The writer's state is in order: all that is visible is known here.
    pub fn settle(&self) -> Result<()> {
        let mut local = self.local.lock();
        local.seen_turns = self.words.turns().load(SeqCst);
        local.since = Instant::now();
        local.others_at = Some(local.since);
        let dead = *self.dead.lock();
        if let Some(dead) = dead {
            self.words.clear(dead);
            self.turns().taken_over();
        }
        self.end_settling(&mut local);
        self.forget_dead()
    }

    fn end_settling(&self, local: &mut Local) {
        local.settling = false;
        self.wake(local);
    }

    fn wake(&self, local: &Local) {
        if local.waiting > 0 {
            self.idle.notify_all();
        }
    }

    /// The take-over failed: the place is the dead process's again.
    pub fn unsettle(&self, process: usize) -> Result<()> {
        let mut local = self.local.lock();
        local.in_flight = 0;
        self.turns().give_to_dead(process);
        self.end_settling(&mut local);
        self.forget_dead()
    }

    /// With everything written, the turn is given back: to a process that waits if `pass_on`, or
    /// after our slice.
    pub fn leave(&self, pass_on: bool) {
        let mut local = self.local.lock();
        local.settling = false;
        local.in_flight = local.in_flight.saturating_sub(1);
        if local.in_flight == 0 {
            // Under `local`: the last thread that leaves sees the records of those before.
            let newest = self.tail.lock().cursor.last_tid;
            if newest <= self.words.written() {
                self.turns().leave(pass_on || self.turns().should_pass_on(local.since));
            }
        }
        self.wake(&local);
    }

    /// The turn is passed before the flush, which one does for all.
    pub fn shares_flushes(&self) -> bool {
        let recently = |at: Instant| at.elapsed() < BESIDE;
        self.turns().others_wait()
            || self.words.flusher().load(SeqCst) != 0
            || self.local.lock().others_at.is_some_and(recently)
    }

    pub fn end_lease(&self) {
        // Its holder waits for a turn: the lease was lost.
        if self.local.try_lock().is_some_and(|local| local.in_flight == 0) {
            self.turns().end_lease();
        }
    }

    pub fn awaits(&self, waits: bool) {
        if self.observes {
            return;
        }
        if waits && self.awaiting.fetch_add(1, SeqCst) == 0 {
            self.words.awaiting().set(self.me);
        } else if !waits && self.awaiting.fetch_sub(1, SeqCst) == 1 {
            self.words.awaiting().clear(self.me);
        }
    }

    pub fn is_undecided(&self) -> bool {
        let is_hidden = || self.words.written() > self.words.visible() && !self.words.ship().is_away();
        self.words.busy_owner().is_some() || is_hidden()
    }

    #[cfg(test)]
    pub fn is_busy(&self) -> bool {
        self.local.lock().in_flight > 0
    }
}
