//! A process among those that use one log: attaching, its slot, what it announces, its turn to write.
//!
//! Locks on bytes of the log's block 0 (they die with their process, and say nothing about the bytes):
//!
//! | byte | held |
//! |---|---|
//! | 0 ATTACH | shared by every attached process; exclusive by one that found itself alone |
//! | 1 ADMIN | exclusive while a process attaches or leaves |
//! | 2 + n | exclusive by the process in slot n: whoever gets it knows that process dead |
//! | 2^32 + TID | shared by an observer that reads the snapshot TID |
//!
//! An observer is a process that may read the log and not write it: it has no slot, stores no shared word, and says what it
//! reads with locks (rule AnnounceThenLook).

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::kept::{KeptImages, kept_path};
use super::tail::Tail;
use super::turn::{Turn, Turns, now_us};
use super::words::{PINS, PROCESSES, Pins, ProcessWords, RecoveryDebt, SnapshotCell};
use crate::base::deadline::Deadline;
use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::lock_bytes::{ADMIN, ATTACH, BYTES, OBSERVED, OBSERVED_BYTES, SLOTS};
use crate::base::types::Tid;
use crate::disk::{Disk, DiskFile, LockKind};
use crate::log::file::{LogCursor, LogFile};
use crate::log::slot::Slot;

/// Another process that wrote so long ago still counts as one that writes.
const BESIDE: Duration = Duration::from_millis(20);

/// So often at most is it seen whether the process that held PENDING still does.
const PENDING_EVERY: Duration = Duration::from_millis(100);

/// Takes every lock byte of a log, to use it alone; shared, to read it while nobody uses it. False if somebody does.
pub fn try_alone(log: &LogFile, kind: LockKind) -> Result<bool> {
    log.file.try_lock(ATTACH, BYTES, kind).context(|| format!("cannot lock the log {}", log.path.display()))
}

/// Gives every lock byte back.
pub fn give_back(log: &LogFile) -> Result<()> {
    log.file.unlock(ATTACH, BYTES).context(|| format!("cannot unlock the log {}", log.path.display()))
}

/// Keeps others from attaching and leaving; `Busy` if somebody else does that for longer than `wait`.
pub fn admin(log: &LogFile, wait: Duration) -> Result<()> {
    lock_within(log, ADMIN, LockKind::Exclusive, wait)
}

fn lock_within(log: &LogFile, byte: u64, kind: LockKind, wait: Duration) -> Result<()> {
    let deadline = Instant::now() + wait;
    let what = || format!("cannot lock the log {}", log.path.display());
    while !log.file.try_lock(byte, 1, kind).context(what)? {
        if Instant::now() >= deadline {
            return Err(Error::Busy(format!(
                "another process has this database to itself, or is opening or closing it (it holds the log {})",
                log.path.display()
            )));
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

fn in_use(log: &LogFile, why: &str) -> Error {
    Error::Busy(format!("another process has this database open {why} (log {})", log.path.display()))
}

/// Ends what [`admin`] began.
pub fn end_admin(log: &LogFile) -> Result<()> {
    log.file.unlock(ADMIN, 1).context(|| format!("cannot unlock the log {}", log.path.display()))
}

/// The byte of a snapshot that an observer reads.
fn observed(tid: Tid) -> u64 {
    OBSERVED.saturating_add(tid.0)
}

/// Which word announces which snapshot of this process.
#[derive(Default)]
struct Announced {
    own: [Option<Tid>; PINS],
    /// Snapshots that found no word of their own.
    others: Vec<Tid>,
}

/// This process's turn.
struct Local {
    /// Write transactions that are under way, and a take-over.
    in_flight: usize,
    /// The place was had after another process, and the writer's state is not in order yet: nobody else goes on (rule
    /// OneWriter).
    settling: bool,
    /// How often the turn had passed when the writer's state was in order last.
    seen_turns: u64,
    /// When this process last began after another.
    since: Instant,
    /// When another process was found to have had the turn last.
    others_at: Option<Instant>,
    /// When PENDING was asked for last, on the clock of all processes.
    pending_at_us: u64,
    /// A dead process whose lock byte is held until it is taken over.
    dead: Option<usize>,
    /// This process has another log: no turn begins here.
    is_over: bool,
}

/// How [`Member::take`] went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// It is ours, and nobody had it between.
    Again,
    /// It is ours; somebody else may have written.
    Anew,
    /// It is ours; this process died while it wrote.
    FromDead(usize),
    /// Not in time.
    Not,
}

/// What a process uses besides the log.
pub struct MemberFiles {
    /// Where the kept images lie.
    pub disk: Arc<dyn Disk>,
    /// The database file.
    pub home: Arc<dyn DiskFile>,
    /// It cannot be written by this process.
    pub read_only: bool,
}

/// This process, attached.
pub struct Member {
    /// What all share.
    pub words: ProcessWords,
    /// The slot of this process; an observer has that of none.
    pub me: usize,
    /// Whether this process may only read the log.
    pub observes: bool,
    /// The log; its locks are this process's.
    pub log: LogFile,
    /// Where this process is in the log.
    pub tail: Mutex<Tail>,
    /// Images that others overwrote in home.
    pub kept: KeptImages,
    /// The sequence of [`Tail`]'s slot, to look at without a lock: each snapshot does.
    pub generation: AtomicU64,
    announced: Mutex<Announced>,
    /// Threads that wait for a flush.
    awaiting: AtomicUsize,
    local: Mutex<Local>,
    idle: Condvar,
    pending_due: AtomicBool,
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
                pending_at_us: now_us(),
                dead: None,
                is_over: false,
            }),
            idle: Condvar::new(),
            pending_due: AtomicBool::new(false),
        }
    }

    /// The first process: it has every lock byte, and the records up to `tail` are durable. Afterwards others may join. `due`: what a
    /// recovery has left to do. If `in_flight` transactions are under way, it has the writer's place from the start (rule
    /// OneWriter), and as many calls of [`Member::leave`] end that.
    /// `None`, and this process stays alone, where memory cannot be shared.
    pub fn found(
        files: MemberFiles,
        log: LogFile,
        tail: Tail,
        due: RecoveryDebt,
        psow: bool,
        in_flight: usize,
    ) -> Result<Option<Arc<Member>>> {
        let Ok(words) = log.file.shared_words() else { return Ok(None) };
        let words = ProcessWords::new(words);
        words.found(tail.slot.session, psow, tail.slot.sequence, tail.cursor.last_tid);
        words.set_due(due);
        let made = log.file.made().context(|| format!("cannot look at the log {}", log.path.display()))?;
        words.set_start(files.disk.system_start(), made);
        let me = 0;
        words.enter(me);
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

    /// Joins the processes that use the log, to write if `psow` says what this process asks for. The caller has ADMIN, and is not alone.
    pub fn join(files: MemberFiles, log: LogFile, session: u64, psow: Option<bool>) -> Result<Arc<Member>> {
        let path = log.path.display().to_string();
        let what = || format!("cannot lock the log {path}");
        let busy = |why: &str| in_use(&log, why);
        if !log.file.try_lock(ATTACH, 1, LockKind::Shared).context(what)? {
            return Err(busy("and shares it with none"));
        }
        let (words, slot) = Self::look(&log, session, psow)?;
        // The slot of a process that died in its turn, or while it flushed, is left for whoever takes over.
        let mut free = 0..PROCESSES;
        let me = loop {
            let Some(n) = free.next() else { return Err(busy("in as many places as there may be")) };
            let at = SLOTS + n as u64;
            if log.file.try_lock(at, 1, LockKind::Exclusive).context(what)? {
                if words.busy_owner() != Some(n) && words.flusher().load(SeqCst) != n as u64 + 1 {
                    break n;
                }
                log.file.unlock(at, 1).context(what)?;
            }
        };
        words.enter(me);
        Ok(Arc::new(Member::new(files, log, words, me, Tail::nowhere(slot))))
    }

    /// Observes the processes that use the log, which this one may not write. `None` if the file is not in use any more.
    /// `is_marked` says whether home still has the mark of `session`.
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
        // From here on nobody takes the mark off.
        let is_used = log.file.conflicts(SLOTS, PROCESSES as u64, LockKind::Shared).context(what)?;
        if !is_used || !is_marked()? {
            log.file.unlock(ATTACH, 1).context(what)?;
            return Ok(None);
        }
        let (words, slot) = Self::look(&log, session, None)?;
        Ok(Some(Arc::new(Member::new(files, log, words, PROCESSES, Tail::nowhere(slot)))))
    }

    /// The words, which must be those of `session`, and the slot that is in use.
    fn look(log: &LogFile, session: u64, psow: Option<bool>) -> Result<(ProcessWords, Slot)> {
        let path = log.path.display();
        let busy = |why: &str| in_use(log, why);
        let words = log.file.shared_words().map_err(|_| busy("and memory cannot be shared with it"))?;
        let words = ProcessWords::new(words);
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

    /// This process is at `cursor` in the log, behind `slot`, which is durable.
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

    /// Whether this process is the only one. If so, no other can attach until [`Member::not_alone`]. The caller
    /// has ADMIN.
    pub fn is_alone(&self) -> Result<bool> {
        try_alone(&self.log, LockKind::Exclusive)
    }

    /// After [`Member::is_alone`] said so: others may come again. ADMIN ends, too.
    pub fn not_alone(&self) -> Result<()> {
        let what = || format!("cannot unlock the log {}", self.log.path.display());
        let file = &self.log.file;
        let mine = SLOTS + self.me as u64;
        if mine > SLOTS {
            file.unlock(SLOTS, mine - SLOTS).context(what)?;
        }
        if mine + 1 < BYTES {
            file.unlock(mine + 1, BYTES - mine - 1).context(what)?;
        }
        file.try_lock(ATTACH, 1, LockKind::Shared).context(what)?;
        file.unlock(ADMIN, 1).context(what)
    }

    /// Leaves: others go on, or a recovery follows. Every lock goes.
    pub fn leave_for_good(&self) -> Result<()> {
        if self.observes {
            let what = || format!("cannot unlock the log {}", self.log.path.display());
            self.log.file.unlock(OBSERVED, OBSERVED_BYTES).context(what)?;
        } else {
            self.words.clear(self.me);
        }
        give_back(&self.log)
    }

    /// Announces a snapshot; false if home may have left it: then nothing is announced.
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

    /// Announces a snapshot that nobody can take away now. Not for an observer.
    pub fn announce_unseen(&self, tid: Tid) {
        let mut announced = self.announced.lock();
        if let Some(n) = announced.own.iter().position(Option::is_none) {
            if let Some(own) = announced.own.get_mut(n) {
                *own = Some(tid);
            }
            self.words.set_pin(self.me, SnapshotCell::Own(n), Some(tid));
        } else {
            announced.others.push(tid);
            self.words.set_pin(self.me, SnapshotCell::Floor, announced.others.iter().min().copied());
        }
    }

    /// The snapshot is not needed any more.
    pub fn withdraw(&self, tid: Tid) -> Result<()> {
        if self.observes {
            let what = || format!("cannot unlock the log {}", self.log.path.display());
            return self.log.file.unlock(observed(tid), 1).context(what);
        }
        let mut announced = self.announced.lock();
        if let Some(n) = announced.own.iter().position(|own| *own == Some(tid)) {
            if let Some(own) = announced.own.get_mut(n) {
                *own = None;
            }
            self.words.set_pin(self.me, SnapshotCell::Own(n), None);
        } else if let Some(at) = announced.others.iter().position(|other| *other == tid) {
            announced.others.swap_remove(at);
            self.words.set_pin(self.me, SnapshotCell::Floor, announced.others.iter().min().copied());
        }
        Ok(())
    }

    /// What the living among the other processes read, one for each that is attached. The slots of dead ones
    /// that still announce something are cleared.
    pub fn pins_of_others(&self) -> Result<Vec<Pins>> {
        let mut all = Vec::new();
        let busy_owner = self.words.busy_owner();
        for process in (0..PROCESSES).filter(|n| *n != self.me && self.words.is_used(*n)) {
            let pins = self.words.pins(process);
            if pins != Pins::default() && Some(process) != busy_owner && self.lock_dead(process)? {
                self.words.clear(process);
                self.unlock_dead(process)?;
                continue;
            }
            all.push(pins);
        }
        let floor = self.oldest_observed()?;
        all.extend(floor.map(|tid| Pins { exact: Vec::new(), floor: Some(tid) }));
        Ok(all)
    }

    /// Whether another process that may write uses the log. One that is dead may be taken for one.
    pub fn has_others(&self) -> bool {
        (0..PROCESSES).any(|process| process != self.me && self.words.is_used(process))
    }

    /// The oldest snapshot that observers read. Those that begin from here on look at the floor afterwards (rule
    /// AnnounceThenLook).
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

    /// Whether another process, which lives, lets nobody begin to read. What was announced before is seen by it.
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

    /// Whether another process is dead.
    pub fn is_dead(&self, process: usize) -> Result<bool> {
        let dead = self.lock_dead(process)?;
        if dead {
            self.unlock_dead(process)?;
        }
        Ok(dead)
    }

    fn lock_dead(&self, process: usize) -> Result<bool> {
        let what = || format!("cannot lock the log {}", self.log.path.display());
        let byte = SLOTS + process as u64;
        match self.observes {
            true => Ok(!self.log.file.conflicts(byte, 1, LockKind::Shared).context(what)?),
            false => self.log.file.try_lock(byte, 1, LockKind::Exclusive).context(what),
        }
    }

    fn unlock_dead(&self, process: usize) -> Result<()> {
        if self.observes {
            return Ok(());
        }
        let what = || format!("cannot unlock the log {}", self.log.path.display());
        self.log.file.unlock(SLOTS + process as u64, 1).context(what)
    }

    /// Whether another process is writing.
    pub fn others_write(&self) -> bool {
        self.turns().is_taken_by_another()
    }

    /// Whether another process that is alive has been writing for so long.
    pub fn others_keep(&self, kept: Duration) -> Result<bool> {
        self.turns().kept_by_another(kept).map_or(Ok(false), |process| Ok(!self.is_dead(process)?))
    }

    /// Takes the writer's place among the processes: firmly, for a transaction that [`Member::leave`] ends, or as a
    /// lease; not from a process that has had it for `kept`. After `FromDead`, also of a lease, the caller takes over and then calls [`Member::settle`] and
    /// [`Member::leave`], after a firm `Anew` just these.
    pub fn take(&self, firm: bool, deadline: &Deadline, kept: Option<Duration>) -> Result<TakeResult> {
        // A thread that waits for the turn of another process has it.
        let local = self.local.try_lock().or_else(|| self.local.try_lock_until(deadline.at()));
        let Some(mut local) = local else { return Ok(TakeResult::Not) };
        // More of ours, unless it is not in order yet, or others have waited long enough.
        while local.settling || (firm && local.in_flight > 0 && self.turns().should_pass_on(local.since)) {
            if local.is_over {
                break;
            }
            if self.idle.wait_until(&mut local, deadline.at()).timed_out() {
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
        let mut locked = None;
        let turn = self.turns().take(firm, deadline, kept, &mut |process| {
            self.forget_dead(&mut locked)?;
            let dead = self.lock_dead(process)?;
            locked = dead.then_some(process);
            Ok(dead)
        });
        if !matches!(turn, Ok(Turn::OfTheDead(_))) {
            self.forget_dead(&mut locked)?;
        }
        local.dead = locked;
        let taken = match turn? {
            Turn::Theirs => TakeResult::Not,
            Turn::OfTheDead(process) => TakeResult::FromDead(process),
            Turn::Ours if self.words.turns().load(SeqCst) == local.seen_turns => TakeResult::Again,
            Turn::Ours => TakeResult::Anew,
        };
        let takes_over = matches!(taken, TakeResult::FromDead(_));
        let is_ours = taken != TakeResult::Not;
        if takes_over || (firm && is_ours && self.turns().taken_since(local.pending_at_us) >= PENDING_EVERY) {
            local.pending_at_us = now_us();
            self.pending_due.store(true, Relaxed);
        }
        local.in_flight = usize::from(takes_over || (firm && taken != TakeResult::Not));
        local.settling = takes_over || (firm && taken == TakeResult::Anew);
        Ok(taken)
    }

    /// Joins the turn that this process has, if it is in order: what is done in it does not wait for others that wait for the turn, as a
    /// transaction does. [`Member::leave`] ends it.
    pub fn join_turn(&self) -> bool {
        let joined = self.local.try_lock().filter(|local| local.in_flight > 0 && !local.settling && !local.is_over);
        joined.map(|mut local| local.in_flight += 1).is_some()
    }

    /// This process gives the turn away and goes on with another log. The number of transactions that are under way, which go on there.
    pub fn move_turn(&self) -> usize {
        let mut local = self.local.lock();
        local.is_over = true;
        self.turns().leave(true);
        self.idle.notify_all();
        local.in_flight
    }

    fn forget_dead(&self, dead: &mut Option<usize>) -> Result<()> {
        dead.take().map_or(Ok(()), |process| self.unlock_dead(process))
    }

    /// The writer's state is in order: everything visible is known here.
    pub fn settle(&self) -> Result<()> {
        let mut local = self.local.lock();
        local.seen_turns = self.words.turns().load(SeqCst);
        local.since = Instant::now();
        local.others_at = Some(local.since);
        if let Some(dead) = local.dead {
            self.words.clear(dead);
            self.turns().taken_over();
        }
        self.end_settling(&mut local);
        let local = &mut *local;
        self.forget_dead(&mut local.dead)
    }

    /// Whether it is time to see that a process holds PENDING (rule StockKeptOut).
    pub fn should_hold_pending(&self) -> bool {
        self.pending_due.load(Relaxed) && self.pending_due.swap(false, Relaxed)
    }

    fn end_settling(&self, local: &mut Local) {
        local.settling = false;
        self.idle.notify_all();
    }

    /// Taking over from a dead process failed: the place is that process's again.
    pub fn unsettle(&self, process: usize) -> Result<()> {
        let mut local = self.local.lock();
        local.in_flight = 0;
        self.turns().give_to_dead(process);
        self.end_settling(&mut local);
        let local = &mut *local;
        self.forget_dead(&mut local.dead)
    }

    /// A transaction is over. With `release`, everything published is written, so the place may go to others; it goes
    /// to the next that waits if `pass_on`, or if this process has had its slice.
    pub fn leave(&self, release: bool, pass_on: bool) {
        let mut local = self.local.lock();
        self.end_settling(&mut local);
        local.in_flight = local.in_flight.saturating_sub(1);
        if local.in_flight == 0 {
            if release {
                self.turns().leave(pass_on || self.turns().should_pass_on(local.since));
            }
            self.idle.notify_all();
        }
    }

    /// Whether others write beside this process: then the turn goes on before the flush, which one does for all.
    pub fn shares_flushes(&self) -> bool {
        let recently = |at: Instant| at.elapsed() < BESIDE;
        self.turns().others_wait()
            || self.words.flusher().load(SeqCst) != 0
            || self.local.lock().others_at.is_some_and(recently)
    }

    /// A snapshot that was pinned under a lease ends without a write.
    pub fn end_lease(&self) {
        // Who has it waits for a turn: the lease was lost.
        if self.local.try_lock().is_some_and(|local| local.in_flight == 0) {
            self.turns().end_lease();
        }
    }

    /// A thread of this process waits for a flush, or does not any more.
    pub fn awaits(&self, waits: bool) {
        if self.observes {
            return;
        }
        let bit = 1u64 << self.me;
        if waits && self.awaiting.fetch_add(1, SeqCst) == 0 {
            self.words.awaiting().fetch_or(bit, SeqCst);
        } else if !waits && self.awaiting.fetch_sub(1, SeqCst) == 1 {
            self.words.awaiting().fetch_and(!bit, SeqCst);
        }
    }

    /// Whether it is yet to be decided what a dead process left, or to be seen what was written.
    pub fn is_undecided(&self) -> bool {
        let is_hidden = || self.words.written() > self.words.visible() && !self.words.ship().is_away();
        self.words.busy_owner().is_some() || is_hidden()
    }

    /// Whether a write transaction of this process is under way.
    #[cfg(test)]
    pub fn is_busy(&self) -> bool {
        self.local.lock().in_flight > 0
    }
}
