//! Lock levels: snapshots, the first look at a file, the writer's place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::looked::Looked;
use super::several::prepares;
use super::wait::{self, Waits};
use super::write::stays_here;
use super::{Connection, LockLevel, TURNS};
use crate::aside;
use crate::database::{Database, Inner, Live, Phase};
use crate::error::{Error, Result};
use crate::home::{Kind, State};
use crate::locks;
use crate::log::group::{Durability, Group};
use crate::queue::{Claim, Kept, Patience};
use crate::recover;
use crate::rules::{Rule, keeps};
use crate::txn::Txn;
use crate::types::Tid;

/// A tentative place is waited for so long while one transaction has it: this one may turn out to read only, and readers
/// do not wait. Those of this process and those of others may cost as much each.
const TENTATIVE_WAIT: Duration = Duration::from_millis(10);
/// The same for a place to write: whoever keeps a transaction open for longer is waited for as long as the busy handler
/// of the application says.
const FIRM_WAIT: Duration = Duration::from_millis(30);
/// The same of one that is inside of onewrite, for a transaction that is likely to write: a checkpoint is over soon.
const INSIDE_WAIT: Duration = Duration::from_millis(100);
/// How long another process may take to bring a big transaction home, before its turn is looked at.
const HOME_WAIT: Duration = Duration::from_millis(200);
/// After so many transactions in a row that wrote, the next one is taken to write, too.
const SURE_WRITER: u32 = 3;
/// How long a process that begins to use the log may keep others from the file.
const MARK_WAIT: Duration = Duration::from_millis(50);
/// How long a tentative place stays with a connection that has not begun to write and reads. Time in which its thread
/// is kept from its processor does not count, here and below.
const GRACE: Duration = Duration::from_millis(2);
/// The same for one that has read no page yet but what a write begins with.
const FIRST_GRACE: Duration = Duration::from_millis(20);
/// The same for one that has written again and again.
const SURE_GRACE: Duration = Duration::from_millis(200);

impl Connection {
    /// xLock. `Busy`: try again later. `BusySnapshot`: somebody committed since the snapshot; start over.
    pub fn lock(&mut self, level: LockLevel) -> Result<()> {
        if level <= self.level {
            return Ok(());
        }
        let locked = match level {
            LockLevel::None => Ok(()),
            LockLevel::Shared => self.lock_shared().and_then(|()| self.check_in_effect()),
            LockLevel::Reserved => self.lock_reserved(),
            LockLevel::Pending | LockLevel::Exclusive => self.lock_exclusive(),
        };
        match &locked {
            Ok(()) => {
                self.level = level;
                if level >= LockLevel::Reserved {
                    self.waits = Waits::default();
                }
                self.has_just_begun = level == LockLevel::Reserved;
            }
            Err(Error::Busy(_) | Error::BusySnapshot) => self.waits.note_busy(),
            Err(_) => {}
        }
        self.noted(locked)
    }

    /// Fails where the engine must serve and does not.
    fn check_in_effect(&mut self) -> Result<()> {
        if !self.wal || !self.requires {
            return Ok(());
        }
        self.level = LockLevel::Shared;
        self.unlock(LockLevel::None)?;
        Err(Error::Required(self.why_stock()))
    }

    fn lock_shared(&mut self) -> Result<()> {
        self.check_process()?;
        let mut has_place = false;
        self.looked = None;
        self.waits.begin();
        let apart = {
            let inner = self.db.inner.lock();
            self.check_let_in(&inner)?;
            self.runs_apart(&inner)
        };
        if self.exclusive_said && !self.db.read_only {
            return self.lock_for_good();
        }
        if self.may_write > 0 && !apart {
            // Taken before the snapshot, so that the upgrade is not stale; given up if it only reads.
            has_place = self.take_tentative_place()?;
        }
        let pinned = self.pin_snapshot(has_place);
        if pinned.is_err() || self.wal {
            self.db.queue.release(self.id);
        }
        pinned
    }

    /// Whether the transaction that begins has the writer's place, which it probably needs. Without it, it may read.
    fn take_tentative_place(&mut self) -> Result<bool> {
        if self.others_keep(TENTATIVE_WAIT)? {
            // It would be waited for behind a thread of this process that waits for it.
            return Ok(false);
        }
        let sure = self.writes_in_a_row >= SURE_WRITER;
        let kept = Kept { held: TENTATIVE_WAIT, inside: if sure { INSIDE_WAIT } else { TENTATIVE_WAIT } };
        let patience = Patience { all: Duration::from_millis(self.busy_ms), kept: Some(kept) };
        let claim = Claim::Tentative(self.grace());
        if !self.db.queue.acquire_with(self.id, claim, patience, &mut self.waits.ticket) {
            return Ok(false);
        }
        let entered =
            self.db.enter_soon(false, Instant::now() + TENTATIVE_WAIT.min(patience.all), Some(TENTATIVE_WAIT));
        if entered.is_err() {
            self.waits.ticket = self.db.queue.give_up(self.id);
        }
        (self.doubtless, self.leased) = (entered.is_ok(), entered.is_ok());
        match entered {
            Ok(()) => Ok(true),
            Err(Error::Busy(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// How long a tentative place is this connection's while it is idle.
    fn grace(&self) -> Duration {
        if self.writes_in_a_row < SURE_WRITER { FIRST_GRACE } else { SURE_GRACE }
    }

    /// How long one call waits for what no busy handler is asked for: for nothing if SQLite has just asked it.
    fn patience(&self) -> Duration {
        if self.waits.is_retry() { Duration::ZERO } else { Duration::from_millis(self.busy_ms) }
    }

    /// `has_place`: the newest state of all may be seen, as far as [`Connection::settle`] lets it.
    pub(super) fn pin_snapshot(&mut self, has_place: bool) -> Result<()> {
        let db = self.db.clone();
        {
            let mut inner = db.inner.lock();
            inner.check()?;
            if inner.reserved.is_some_and(|other| other != self.id) {
                return Err(busy_aside());
            }
            if inner.phase == Phase::Live && !std::mem::replace(&mut self.has_pinned, true) {
                db.hold_pending();
                if is_undecided(&inner) {
                    drop(inner);
                    return self.pin_decided(has_place);
                }
            }
            let joins_reader = inner.phase == Phase::Unmarked && !inner.snapshots.is_empty();
            if inner.phase == Phase::Live || joins_reader {
                match self.pin(&mut inner, has_place) {
                    Err(Error::Busy(_)) => {}
                    pinned => return pinned,
                }
                drop(inner);
                return self.pin_patiently();
            }
        }
        // The file may have changed since this process last looked, or need recovery.
        let mut writer = db.writer.lock();
        let mut inner = db.inner.lock();
        inner.check()?;
        match inner.phase {
            Phase::Live => {}
            Phase::Aside(_) => return Err(busy_aside()),
            _ if !inner.snapshots.is_empty() => {}
            _ => {
                let deadline = Instant::now() + MARK_WAIT.min(self.patience());
                while !db.lock_shared()? {
                    if Instant::now() >= deadline {
                        return Err(Error::Busy("another process is writing the database without onewrite".into()));
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
                let looked = self.look(&db, &mut writer, &mut inner);
                if inner.phase == Phase::Unmarked && looked.is_err() {
                    locks::none(&*db.home)?;
                }
                looked?;
                if self.aside {
                    return Ok(());
                }
                self.has_pinned = true;
                if is_undecided(&inner) {
                    drop(inner);
                    drop(writer);
                    return self.pin_decided(false);
                }
            }
        }
        match self.pin(&mut inner, has_place) {
            Err(Error::Busy(_)) => {}
            pinned => return pinned,
        }
        drop(inner);
        drop(writer);
        self.pin_patiently()
    }

    pub(super) fn pin(&mut self, inner: &mut Inner, has_place: bool) -> Result<()> {
        let state = if has_place { self.db.pin_published(inner)? } else { self.db.pin(inner)? };
        if let Err(e) = self.check_let_in(inner) {
            self.db.unpin(inner, &state)?;
            return Err(e);
        }
        self.wal = state.kind == Kind::Wal;
        self.unsettled = state.tid > inner.latest.tid;
        self.snapshot = Some(state);
        self.looked = (!has_place && self.runs_apart(inner)).then(Looked::default);
        Ok(())
    }

    /// The first snapshot of a connection waits until it is decided what a process that has died left: the program may have
    /// been told that its transaction is committed, or begin again where it left off.
    fn pin_decided(&mut self, has_place: bool) -> Result<()> {
        let db = self.db.clone();
        db.decide(Instant::now() + self.patience())?;
        let pinned = self.pin(&mut db.inner.lock(), has_place);
        match pinned {
            Err(Error::Busy(_)) => self.pin_patiently(),
            pinned => pinned,
        }
    }

    /// Pins a snapshot, also while another process brings a big transaction home, or has died while it did.
    fn pin_patiently(&mut self) -> Result<()> {
        let db = self.db.clone();
        let deadline = Instant::now() + self.patience();
        loop {
            let pinned = self.pin(&mut db.inner.lock(), false);
            match pinned {
                Err(Error::Busy(_)) if Instant::now() < deadline => self.check_let_in(&db.inner.lock())?,
                pinned => return pinned,
            }
            // The turn of a dead process is had, and with it taken over.
            match db.enter(true, deadline.min(Instant::now() + HOME_WAIT)) {
                Ok(()) => db.leave(false),
                Err(Error::Busy(_)) => std::thread::sleep(Duration::from_micros(500)),
                Err(e) => return Err(e),
            }
        }
    }

    /// The transaction reads what none that only writes begins with: others need not be patient with it.
    pub(super) fn doubt(&mut self) {
        if std::mem::take(&mut self.doubtless) {
            self.db.queue.doubt(self.id, GRACE);
        }
    }

    /// Waits until what the snapshot holds is as durable as it was asked to be, so that the application may see it
    /// (invariant I4, rule TentativeReadsWait).
    pub(super) fn settle(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.unsettled) {
            return Ok(());
        }
        let Some(tid) = self.snapshot.as_ref().map(|s| s.tid) else { return Ok(()) };
        let live = self.db.writer.lock().as_ref().map(|live| (live.log.group().clone(), live.scheme.clone()));
        let Some((group, scheme)) = live else { return Ok(()) };
        self.db.queue.set_inside(self.id, true);
        let settled = scheme.wait(&self.db, tid, false).and_then(|()| self.wait_visible(&group, tid));
        self.db.queue.set_inside(self.id, false);
        settled
    }

    fn wait_visible(&self, group: &Group, tid: Tid) -> Result<()> {
        let Some(member) = self.db.member() else { return group.wait(tid, Durability::Written, &*self.db) };
        group.hand_over(&*self.db)?;
        if self.db.inner.lock().latest.tid >= tid {
            return Ok(());
        }
        self.db.wait_flushed(&member, tid, Durability::Written, None)
    }

    /// First look at a file nobody in this process is using. SHARED is held.
    fn look(
        &mut self,
        db: &Database,
        writer: &mut parking_lot::MutexGuard<'_, Option<Live>>,
        inner: &mut Inner,
    ) -> Result<()> {
        let (mut state, mut mark) = db.read_state()?;
        if db.has_hot_journal()? && keeps(Rule::HotJournalFirst) {
            if mark.is_some() {
                return Err(Error::CantOpen(format!(
                    "{} carries onewrite's mark and has a rollback journal beside it ({}): one of the two belongs to \
                     another copy. Move the journal away if the database was last used through onewrite",
                    db.path.display(),
                    db.journal_path().display()
                )));
            }
            if db.read_only {
                return Err(Error::CantOpen(format!(
                    "a rollback journal waits to be rolled back ({}), which needs a connection that may write",
                    db.journal_path().display()
                )));
            }
            if locks::exclusive(&*db.home)? {
                db.settle_super_journal()?;
                // SQLite rolls it back itself, through the plain file.
                inner.phase = Phase::Aside(self.id);
                self.aside = true;
                return Ok(());
            }
            if !locks::is_reserved(&*db.home)? {
                return Err(Error::Busy("a rollback journal waits to be rolled back, and others read".into()));
            }
        }
        while let Some(session) = mark {
            let mut options = inner.options.clone();
            options.busy_ms = u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX);
            if recover::attach(db, writer, inner, session, &options)? {
                return Ok(());
            }
            (state, mark) = db.read_state()?;
        }
        if self.leaves_wal_mode(&state, inner)? {
            if !self.leave_wal_mode(&state, inner)? {
                return self.look(db, writer, inner);
            }
            state = db.read_state()?.0;
        }
        inner.find_state(state);
        Ok(())
    }

    fn lock_reserved(&mut self) -> Result<()> {
        if self.aside || self.wal {
            return Ok(());
        }
        self.check_process()?;
        let Some(snapshot) = self.snapshot.clone() else {
            return Err(Error::Misuse("a write lock was asked for without a read lock".into()));
        };
        if snapshot.kind == Kind::Foreign {
            return Err(Error::NotADatabase(format!("{} is not a database", self.db.path.display())));
        }
        if self.has_merged() {
            return Err(Error::BusySnapshot);
        }
        if self.is_apart() {
            self.db.inner.lock().check()?;
            self.doomed = false;
            self.writes_now = true;
            self.txn = Some(Txn::new(snapshot));
            return Ok(());
        }
        self.writes_now = true;
        if !self.db.inner.lock().is_newest(&snapshot) {
            self.expect_place();
            return Err(Error::BusySnapshot);
        }
        let kept = self.entered;
        if !kept {
            self.take_place()?;
        }
        let deadline = Instant::now() + MARK_WAIT.min(self.patience());
        let begun = loop {
            match self.begin_write(&snapshot) {
                // Two processes that waited for each other's SHARED would wait for ever: who has RESERVED waits.
                Err(Error::Busy(_)) if Instant::now() < deadline && locks::reserve(&*self.db.home)? => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => break result,
            }
        };
        if begun.is_err() {
            if self.db.inner.lock().phase == Phase::Unmarked {
                locks::unreserve(&*self.db.home)?;
            }
            if !kept {
                self.leave(false);
                self.waits.ticket = self.db.queue.give_up(self.id);
            }
            if matches!(begun, Err(Error::BusySnapshot)) {
                self.expect_place();
            }
        }
        begun
    }

    /// Takes the writer's place, and the turn among the processes, unless somebody keeps it. `Busy`: SQLite asks the busy
    /// handler where it may wait, and comes again.
    fn take_place(&mut self) -> Result<()> {
        if self.others_keep(FIRM_WAIT)? {
            self.expect_place();
            return Err(Error::Busy("another process is writing the database through onewrite".into()));
        }
        self.take_place_here()?;
        self.leased = false;
        self.enter_for_good()
    }

    /// Takes the writer's place of this process, unless somebody keeps it.
    pub(super) fn take_place_here(&mut self) -> Result<()> {
        let all = Duration::from_millis(self.busy_ms);
        let patience = Patience { all, kept: Some(Kept { held: FIRM_WAIT, inside: all }) };
        if self.db.queue.acquire_with(self.id, Claim::Firm, patience, &mut self.waits.ticket) {
            return Ok(());
        }
        self.expect_place();
        Err(busy_here())
    }

    /// Keeps other processes from writing, unless one is; the writer's place is lost otherwise.
    pub(super) fn enter_for_good(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_millis(self.busy_ms);
        let entered = self.db.enter_soon(true, deadline, Some(FIRM_WAIT));
        self.entered = entered.is_ok();
        if entered.is_err() {
            self.waits.ticket = self.db.queue.give_up(self.id);
            self.expect_place();
        }
        entered
    }

    /// Whether another process keeps the place, as it did when this connection tried last.
    fn others_keep(&self, kept: Duration) -> Result<bool> {
        if !self.waits.is_retry() {
            return Ok(false);
        }
        self.db.member().map_or(Ok(false), |member| member.others_keep(kept))
    }

    /// SQLite may sleep now, and ask for the place again: it sleeps no longer than until it has it.
    fn expect_place(&mut self) {
        wait::expect(&self.db, self.id, self.grace(), self.waits.ticket);
    }

    /// Takes the writer's place of this process for good, or says that it is not to be had.
    pub(super) fn acquire_place(&self) -> Result<()> {
        match self.db.queue.acquire(self.id, Claim::Firm, Duration::from_millis(self.busy_ms)) {
            true => Ok(()),
            false => Err(busy_here()),
        }
    }

    /// Lets other processes write; with `pass_on`, the next one at once.
    pub(super) fn leave(&mut self, pass_on: bool) {
        if std::mem::take(&mut self.entered) {
            self.db.leave(pass_on);
        } else if std::mem::take(&mut self.leased)
            && let Some(member) = self.db.member()
        {
            member.end_lease();
        }
    }

    pub(super) fn begin_write(&mut self, snapshot: &Arc<State>) -> Result<()> {
        let db = self.db.clone();
        let mut writer = db.writer.lock();
        let mut inner = db.inner.lock();
        inner.check()?;
        if !inner.is_newest(snapshot) {
            return Err(Error::BusySnapshot);
        }
        db.scheme().check(&db, &inner.options, &inner.published)?;
        debug_assert!(
            matches!(inner.published.kind, Kind::Empty | Kind::Database),
            "rule WalFileStaysLocked: nothing else is marked"
        );
        if inner.phase == Phase::Unmarked {
            db.go_live(&mut writer, &mut inner)?;
            if let Some(member) = &inner.member {
                member.take(true, Instant::now(), None)?;
                if self.shuts_out {
                    member.words.shut_out(member.me);
                }
            }
        }
        self.doomed = false;
        self.txn = Some(Txn::new(inner.published.clone()));
        Ok(())
    }

    fn lock_exclusive(&mut self) -> Result<()> {
        if self.level < LockLevel::Reserved {
            self.lock_reserved()?;
            self.level = LockLevel::Reserved;
        }
        if self.aside || self.wal {
            return Ok(());
        }
        if self.exclusive_said {
            self.shut_others_out()?;
        }
        // One of several files that commit together has a journal with a super-journal, which not every log can do for.
        let spans = (self.spans && !self.off_said && !self.journal.is_empty()) || self.journal.names_super_journal()?;
        let spans = spans && !self.may_prepare();
        // SQLite begins the change to WAL mode with this lock. A transaction that has written a journal is another one: the change
        // was refused, within a transaction for one.
        let changes_mode = self.wal_said && self.has_just_begun;
        if changes_mode || spans {
            if self.requires {
                return Err(stays_here("this statement"));
            }
            // It will step aside and needs to be alone. BUSY here is before SQLite's point of no return: the busy handler
            // is asked, and the application may try again (rule SeveralFilesAlone).
            self.line_up(true)?;
            aside::reserve(&self.db, self.id).map_err(|e| match e {
                Error::BusySnapshot => Error::Busy("others read a database that steps aside".into()),
                e => e,
            })?;
            self.reserves = true;
        }
        Ok(())
    }

    /// Whether a transaction over several files commits by the log, as far as is known before SQLite names them.
    fn may_prepare(&self) -> bool {
        prepares(&self.db, &self.db.inner.lock()) && !self.db.spans_aside.load(Ordering::Relaxed)
    }

    /// Whether SQLite writes other files in the same transaction.
    pub fn note_span(&mut self, spans: bool) {
        self.spans = spans;
    }

    /// xUnlock, to `Shared` or `None`.
    pub fn unlock(&mut self, level: LockLevel) -> Result<()> {
        if level >= self.level {
            return Ok(());
        }
        let unlocked = self.unlock_to(level);
        self.level = level;
        self.noted(unlocked)
    }

    fn unlock_to(&mut self, level: LockLevel) -> Result<()> {
        // The snapshot ends, or the plain file was written.
        self.ahead.forget();
        let decided = self.finish_several();
        let dropped = decided.and(self.drop_txn());
        let dropped =
            if std::mem::take(&mut self.reserves) { dropped.and(aside::release(&self.db, self.id)) } else { dropped };
        let back = if self.aside { self.come_back() } else { Ok(()) };
        self.let_others_in();
        self.gave_place = false;
        self.doubtless = false;
        self.returns_lock |= self.writes_now;
        if level == LockLevel::None || !self.exclusive_said || self.wal {
            self.leave(false);
            self.db.queue.release(self.id);
        }
        if level == LockLevel::None {
            self.looked = None;
            // It read what another connection wrote before it and gives nothing away before that is durable.
            let settled = self.settle();
            self.cache.leave(self.snapshot.as_deref().filter(|_| !self.wal));
            (self.wal, self.has_no_wal) = (false, false);
            if std::mem::take(&mut self.writes_now) {
                let wrote = u32::from(!self.waits.is_retry());
                (self.may_write, self.writes_in_a_row) = (TURNS, self.writes_in_a_row.saturating_add(wrote));
                self.wal_said = false;
            } else {
                (self.may_write, self.writes_in_a_row) = (self.may_write.saturating_sub(1), 0);
            }
            self.give_snapshot_back()?;
            return dropped.and(back).and(settled);
        }
        dropped.and(back)
    }

    /// The VFS below has a lock of its own on the file: the one under which it was seen to be in WAL mode ends
    /// (rule WalFileStaysLocked).
    pub fn hand_over(&mut self) -> Result<()> {
        if !self.wal || self.snapshot.is_none() {
            return Ok(());
        }
        let given = self.give_snapshot_back();
        self.noted(given)
    }

    pub(super) fn give_snapshot_back(&mut self) -> Result<()> {
        let mut inner = self.db.inner.lock();
        match self.snapshot.take() {
            Some(snapshot) => self.db.unpin(&mut inner, &snapshot),
            None if inner.phase == Phase::Unmarked && inner.snapshots.is_empty() => locks::none(&*self.db.home),
            None => Ok(()),
        }
    }

    /// Takes the writer's place again that went to the next in the queue with the commit, for a connection that
    /// goes on writing without giving its lock back (rule EarlyHandOver).
    pub(super) fn take_place_again(&mut self) -> Result<()> {
        if !self.gave_place {
            return Ok(());
        }
        self.returns_lock = false;
        self.acquire_place()?;
        if !self.entered {
            let deadline = Instant::now() + Duration::from_millis(self.busy_ms);
            if let Err(e) = self.db.enter(true, deadline) {
                self.db.queue.release(self.id);
                return Err(e);
            }
            self.entered = true;
        }
        if self.txn.as_ref().is_none_or(|txn| !self.db.inner.lock().is_newest(&txn.base)) {
            self.db.queue.release(self.id);
            return Err(Error::BusySnapshot);
        }
        self.gave_place = false;
        Ok(())
    }

    /// Drops an overlay that did not commit.
    pub(super) fn drop_txn(&mut self) -> Result<()> {
        self.journal.forget_syncs();
        let Some(txn) = self.txn.take() else { return Ok(()) };
        // A record that waits for its decision and could not be cancelled, or that an error left in doubt, may count: it
        // needs them.
        let in_doubt = self.db.undecided.lock().is_some() || self.db.inner.lock().check().is_err();
        if !txn.streamed.is_empty()
            && !in_doubt
            && let Some(live) = self.db.writer.lock().as_mut()
        {
            live.log.stream_drop(txn.stream_from)?;
        }
        Ok(())
    }

    pub(super) fn come_back(&mut self) -> Result<()> {
        self.aside = false;
        if self.real_journal.take().is_some() {
            self.journal.truncate(0);
        }
        aside::come_back(&self.db)?;
        let mut inner = self.db.inner.lock();
        // The state this transaction made, or that rolling back made: nobody else had one.
        let state = self.db.pin(&mut inner)?;
        // SQLite may go on in WAL mode at once, without a new lock: from here on the caller uses the VFS below (rule
        // WalModeAtOnce).
        self.wal = state.kind == Kind::Wal;
        match self.snapshot.replace(state) {
            Some(old) => self.db.unpin(&mut inner, &old),
            None => Ok(()),
        }
    }

    /// xCheckReservedLock: whether anybody is writing.
    pub fn is_reserved(&mut self) -> Result<bool> {
        if self.aside {
            return Ok(false);
        }
        let phase = self.db.inner.lock().phase.clone();
        let reserved = match phase {
            Phase::Unmarked => locks::is_reserved(&*self.db.home),
            _ => Ok(self.db.queue.is_taken() || self.db.member().is_some_and(|member| member.others_write())),
        };
        self.noted(reserved)
    }
}

fn busy_here() -> Error {
    Error::Busy("another connection of this process is writing".into())
}

fn busy_aside() -> Error {
    Error::Busy("another connection of this process has stepped aside from the log for its transaction".into())
}

/// Whether another process has written what nobody can see yet, or has the turn.
fn is_undecided(inner: &Inner) -> bool {
    inner.member.as_ref().is_some_and(|member| member.is_undecided())
}
