//! Lock levels: snapshots, the first look at a file, the writer's place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::looked::ReadSet;
use super::role::{Passthrough, ReadTransaction, Role, WriterTurn};
use super::said::Synchronous;
use super::several::prepares;
use super::wait::{self, Asks};
use super::write::stays_here;
use super::{Connection, LockLevel};
use crate::base::clock::{self, Instant};
use crate::base::error::{Error, Result};
use crate::base::layout::home as at;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::commit::stream;
use crate::database::queue::{HoldLimits, Patience, TurnClaim};
use crate::database::{Database, DatabaseState, LiveDatabase, Phase, state_of};
use crate::disk::locks;
use crate::disk::sync::MutexGuard;
use crate::log::group::{Durability, Group};
use crate::pages::txn::Txn;
use crate::processes::another_writes;
use crate::recovery::recover;
use crate::session::aside;
use crate::session::lifecycle::LookLock;
use crate::shared::member::Member;
use crate::shared::tendency::Tendency;
use crate::shared::turn::{Hold, THINK};
use crate::shared::words::Ship;
use crate::sqlite_format::home::{FileKind, State};

/// Longest wait for a tentative place of one transaction, in this process and among processes each:
/// this one may only read.
const TENTATIVE_WAIT: Duration = Duration::from_millis(10);
/// The same for a firm place; longer waits are the busy handler's.
const FIRM_WAIT: Duration = Duration::from_millis(30);
/// The same for a holder inside of onewrite: a checkpoint is over soon.
const INSIDE_WAIT: Duration = Duration::from_millis(100);
const TURN_WAIT: Duration = Duration::from_millis(200);
/// How long a process that begins to use the log may keep others out.
const MARK_WAIT: Duration = Duration::from_millis(50);
/// How long a reading connection keeps a tentative place. Time off the processor does not count,
/// here and below.
const GRACE: Duration = Duration::from_millis(2);
/// The same before it reads more than a write begins with.
const FIRST_GRACE: Duration = Duration::from_millis(20);
/// The same after several writing transactions.
const SURE_GRACE: Duration = Duration::from_millis(200);

impl Connection {
    /// xLock. `Busy`: try again later. `BusySnapshot`: stale, start over.
    pub fn lock(&mut self, level: LockLevel) -> Result<()> {
        if level <= self.level {
            return Ok(());
        }
        self.waits.asks = None;
        let locked = match level {
            LockLevel::None => Ok(()),
            LockLevel::Shared => self.lock_shared().and_then(|()| self.check_in_effect()),
            LockLevel::Reserved => self.lock_reserved(),
            LockLevel::Pending | LockLevel::Exclusive => self.lock_exclusive(),
        };
        self.waits.is_last = false;
        match &locked {
            Ok(()) => {
                self.level = level;
                if level >= LockLevel::Reserved {
                    self.waits.forget();
                }
                if let Some(writer) = self.role.writer_mut() {
                    writer.has_just_begun = level == LockLevel::Reserved;
                }
            }
            Err(Error::Busy(_) | Error::BusySnapshot) => self.waits.note_busy(),
            Err(_) => {}
        }
        self.noted(locked)
    }

    fn check_in_effect(&mut self) -> Result<()> {
        if !self.role.is_below() || !self.requires {
            return Ok(());
        }
        self.level = LockLevel::Shared;
        self.unlock(LockLevel::None)?;
        Err(Error::Required(self.why_stock()))
    }

    fn lock_shared(&mut self) -> Result<()> {
        self.check_process()?;
        self.waits.begin();
        let for_good = self.said.exclusive && !self.db.read_only;
        let will_write = self.will_write();
        let mut has_place = false;
        if for_good || will_write || self.habit.may_write > 0 {
            let member = self.db.member();
            if !member.as_ref().is_some_and(|member| member.words.is_replaced()) {
                self.check_let_in(member.as_ref())?;
            }
            if for_good {
                return self.lock_for_good();
            }
            let apart = self.db.concurrent.load(Ordering::Relaxed) && self.runs_apart(&self.db.inner.lock());
            // While the store is away, newer states may stay invisible for long: take no place.
            // Before the snapshot, so that the upgrade is not stale; given up if it only reads.
            let takes_none = apart || member.as_ref().is_some_and(|member| member.words.ship().is_away());
            has_place = if takes_none {
                false
            } else if will_write {
                self.take_place_to_think()?
            } else {
                self.take_tentative_place(member.as_deref())?
            };
        }
        let pinned = self.pin_snapshot(has_place);
        if pinned.is_err() || self.role.is_below() {
            self.give_place_back();
        }
        if pinned.is_err() {
            self.has_no_wal = false;
            // No unlock follows.
            self.db.look_if_due(&mut self.db.inner.lock());
        }
        pinned
    }

    fn will_write(&self) -> bool {
        if !self.said.explicit || self.db.read_only || self.habit.reads_only {
            return false;
        }
        let of_database = || self.db.member().as_ref().and_then(|member| Tendency::of(member.words.tends()).writes());
        let own = self.habit.tends.writes().or_else(|| Tendency::of(&self.db.tends).writes());
        own.or_else(of_database).unwrap_or_else(|| self.habit.has_written())
    }

    fn learn(&mut self) {
        if !std::mem::take(&mut self.said.explicit) {
            return;
        }
        if let Some(ended) = self.habit.ended() {
            self.habit.tends = self.habit.tends.after(ended);
            Tendency::learn(&self.db.tends, ended);
            if let Some(member) = self.db.member().as_ref().filter(|member| !member.observes) {
                Tendency::learn(member.words.tends(), ended);
            }
        }
    }

    /// As for BEGIN IMMEDIATE, the busy handler says how long to wait. When it refuses, the
    /// transaction reads without the place.
    fn take_place_to_think(&mut self) -> Result<bool> {
        self.habit.comes_for_place();
        if self.waits.is_last {
            return Ok(false);
        }
        let got = self.take_before_reading(TurnClaim::Thinks(THINK), Hold::Thought)?;
        if !got && self.waits.may_ask {
            self.expect_place();
            self.waits.asks = Some(Asks::Again);
            return Err(Error::Busy("another connection writes, and this one usually does after it has read".into()));
        }
        Ok(got)
    }

    /// Without the place, the transaction may still read.
    fn take_tentative_place(&mut self, member: Option<&Member>) -> Result<bool> {
        self.habit.comes_for_place();
        if member.is_some_and(Member::others_think) {
            return Ok(false);
        }
        self.take_before_reading(TurnClaim::Tentative(self.grace()), Hold::Lease)
    }

    fn take_before_reading(&mut self, claim: TurnClaim, hold: Hold) -> Result<bool> {
        if self.others_keep(TENTATIVE_WAIT)? {
            // Do not queue behind a thread of this process that waits for another process.
            return Ok(false);
        }
        let sure = self.habit.is_sure_writer();
        let kept = HoldLimits { held: TENTATIVE_WAIT, inside: if sure { INSIDE_WAIT } else { TENTATIVE_WAIT } };
        let patience = Patience { all: Duration::from_millis(self.busy_ms), kept: Some(kept), is_last: false };
        if !self.db.queue.acquire_with(self.id, claim, patience, &mut self.waits.ticket) {
            return Ok(false);
        }
        let entered = self.db.enter_soon(hold, TENTATIVE_WAIT.min(patience.all), Some(TENTATIVE_WAIT));
        if entered.is_err() {
            self.waits.ticket = self.db.queue.give_up(self.id);
        }
        let doubtless = hold == Hold::Lease;
        self.place = if entered.is_ok() { WriterTurn::Tentative { doubtless } } else { WriterTurn::None };
        match entered {
            Ok(()) => Ok(true),
            Err(Error::Busy(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn grace(&self) -> Duration {
        if self.habit.is_sure_writer() { SURE_GRACE } else { FIRST_GRACE }
    }

    /// How long one call waits without the busy handler: not at all right after SQLite asked it.
    fn patience(&self) -> Duration {
        if self.waits.is_retry() { Duration::ZERO } else { Duration::from_millis(self.busy_ms) }
    }

    fn is_over(&self, deadline: &mut Option<Instant>) -> bool {
        let now = Instant::now();
        now >= *deadline.get_or_insert_with(|| now + MARK_WAIT.min(self.patience()))
    }

    /// `has_place`: the newest state may be seen, as far as [`Connection::settle`] lets it.
    pub(super) fn pin_snapshot(&mut self, has_place: bool) -> Result<()> {
        let db = self.db.clone();
        {
            let mut inner = db.inner.lock();
            inner.check()?;
            if inner.reserved.is_some_and(|other| other != self.id) {
                return Err(busy_aside());
            }
            let is_replaced = db.is_log_replaced(&inner);
            if inner.phase == Phase::Live
                && !is_replaced
                && !std::mem::replace(&mut self.habit.has_pinned, true)
                && is_undecided(&inner)
                && self.waits_for_decision(&inner)
            {
                drop(inner);
                return self.pin_decided(has_place);
            }
            let joins_reader = inner.phase == Phase::Unmarked && (inner.kept.takes() || !inner.snapshots.is_empty());
            if joins_reader {
                self.has_no_wal = inner.is_still_plain();
            }
            if (inner.phase == Phase::Live && !is_replaced) || joins_reader {
                match self.pin(&mut inner, has_place) {
                    Err(Error::Busy(_)) => {}
                    pinned => return pinned,
                }
                if !db.is_log_replaced(&inner) {
                    drop(inner);
                    return self.pin_patiently();
                }
            }
        }
        // The file may have changed, or need recovery.
        let mut writer = db.writer.lock();
        let mut inner = db.inner.lock();
        inner.check()?;
        db.leave_lost_log(&mut writer, &mut inner)?;
        match inner.phase {
            Phase::Live => {}
            Phase::Aside(_) => return Err(busy_aside()),
            _ if !inner.snapshots.is_empty() => {}
            _ => {
                self.look_at_home(&db, &mut writer, &mut inner)?;
                if self.is_aside() {
                    return Ok(());
                }
                if inner.phase == Phase::Unmarked {
                    db.mappings.begin();
                }
                self.habit.has_pinned = true;
                if is_undecided(&inner) && self.waits_for_decision(&inner) {
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

    /// Attaches to a home in use; SHARED stays on one at rest.
    fn look_at_home(
        &mut self,
        db: &Database,
        writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
        inner: &mut DatabaseState,
    ) -> Result<()> {
        loop {
            let looked = self.lock_home(inner).and_then(|lock| self.look(db, writer, inner).map(|()| lock));
            if looked.is_err() {
                db.unlock_unused(inner)?;
            }
            // Else its last user has just left.
            if looked? == LookLock::Shared || inner.phase != Phase::Unmarked {
                return Ok(());
            }
        }
    }

    fn lock_home(&self, inner: &mut DatabaseState) -> Result<LookLock> {
        let db = &self.db;
        db.give_kept_back(inner)?;
        db.mappings.end();
        let mut deadline = None;
        loop {
            if let Some(locked) = db.lock_to_look(inner)? {
                return Ok(locked);
            }
            if self.is_over(&mut deadline) {
                return Err(Error::Busy(format!(
                    "another process is writing the database without onewrite{}",
                    locks::by_owner(&*db.home)
                )));
            }
            clock::sleep(Duration::from_micros(200));
        }
    }

    /// The shipper does not, but where the database is a replica and it follows.
    fn waits_for_decision(&self, inner: &DatabaseState) -> bool {
        !self.ships || inner.ship() == Ship::Replica
    }

    pub(super) fn pin(&mut self, inner: &mut DatabaseState, has_place: bool) -> Result<()> {
        if inner.ship() == Ship::Begun && !self.ships {
            return Err(Error::Busy(format!(
                "it is not known yet what the store has of {}: `onewrite replicate --sync` is looking",
                self.db.path.display()
            )));
        }
        // The shipper cannot wait for its own shipments.
        let is_newest = has_place && !(self.ships && inner.ships());
        let state = if is_newest { self.db.pin_published(inner)? } else { self.db.pin(inner)? };
        if let Err(e) = self.check_let_in(inner.member.as_ref()) {
            self.db.unpin(inner, &state)?;
            return Err(e);
        }
        let unsettled = state.tid > inner.latest.tid;
        let looked = (!has_place && self.runs_apart(inner)).then(ReadSet::default);
        self.role = Role::pinned_now(ReadTransaction { state, unsettled, looked, has_moved: false });
        Ok(())
    }

    /// The first snapshot waits for the decision on a dead process's transaction: the program may
    /// know of it, or restart from there.
    fn pin_decided(&mut self, has_place: bool) -> Result<()> {
        let db = self.db.clone();
        db.decide(Instant::now() + self.patience())?;
        let pinned = self.pin_attached(has_place);
        match pinned {
            Err(Error::Busy(_)) => self.pin_patiently(),
            pinned => pinned,
        }
    }

    /// Pins, unless this process has just detached: the file may be others' then.
    fn pin_attached(&mut self, has_place: bool) -> Result<()> {
        let db = self.db.clone();
        let mut inner = db.inner.lock();
        let is_held = db.alone.load(Ordering::SeqCst) != 0 || !inner.snapshots.is_empty();
        if inner.phase == Phase::Unmarked && !is_held {
            drop(inner);
            return self.pin_snapshot(false);
        }
        self.pin(&mut inner, has_place)
    }

    fn pin_patiently(&mut self) -> Result<()> {
        let db = self.db.clone();
        let deadline = Instant::now() + self.patience();
        loop {
            let pinned = self.pin_attached(false);
            match pinned {
                Err(Error::Busy(_)) if Instant::now() < deadline => self.check_let_in(db.member().as_ref())?,
                pinned => return pinned,
            }
            if db.inner.lock().ship() == Ship::Begun {
                clock::sleep(Duration::from_millis(1));
                continue;
            }
            match db.enter_and_leave(deadline.min(Instant::now() + TURN_WAIT)) {
                Ok(()) => {}
                Err(Error::Busy(_)) => clock::sleep(Duration::from_micros(500)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Others need not be patient with a transaction that reads more than a write begins with.
    pub(super) fn doubt(&mut self) {
        if let WriterTurn::Tentative { doubtless } = &mut self.place
            && std::mem::take(doubtless)
        {
            self.db.queue.doubt(self.id, GRACE);
        }
    }

    /// Waits until the snapshot is as durable as asked, so that the application may see it
    /// (invariant I4, rule SeenWhenDurable).
    pub(super) fn settle(&mut self) -> Result<()> {
        let unsettled = self.role.pinned().filter(|reader| reader.unsettled).map(|reader| reader.state.tid);
        let Some(tid) = unsettled else { return Ok(()) };
        let live = self.db.writer.lock().as_ref().map(|live| (live.log.group().clone(), live.scheme.clone()));
        if let Some((group, scheme)) = live {
            self.db.queue.set_inside(self.id, true);
            let settled = scheme.wait(&self.db, tid, false).and_then(|()| self.wait_visible(&group, tid));
            self.db.queue.set_inside(self.id, false);
            // The next read fails as well.
            settled?;
        }
        if let Some(reader) = self.role.pinned_mut() {
            reader.unsettled = false;
        }
        Ok(())
    }

    fn wait_visible(&self, group: &Group, tid: Tid) -> Result<()> {
        let member = self.db.member();
        let Some(member) = member.as_ref() else { return group.wait(tid, Durability::Written, &*self.db) };
        group.hand_over(&*self.db)?;
        if self.db.inner.lock().latest.tid >= tid {
            return Ok(());
        }
        self.db.wait_flushed(member, tid, Durability::Written, None)
    }

    /// First look at an unused file, under SHARED.
    fn look(
        &mut self,
        db: &Database,
        writer: &mut MutexGuard<'_, Option<LiveDatabase>>,
        inner: &mut DatabaseState,
    ) -> Result<()> {
        let mut first = [0; at::HEADER_BYTES];
        let (first, bytes) = db.read_first(&mut first)?;
        let is_hot = db.has_hot_journal()?;
        // Rule ModeUnderLock.
        if !is_hot && inner.is_plain(first, bytes) {
            self.has_no_wal = true;
            return Ok(());
        }
        let (mut state, mut mark) = state_of(first, bytes);
        let is_unmarked = mark.is_none();
        if is_hot && keeps(Case::HotJournalFirst) {
            if db.read_only {
                return Err(Error::CantOpen(format!(
                    "a rollback journal waits to be rolled back ({}), which needs a connection that may write",
                    db.journal_path().display()
                )));
            }
            if locks::exclusive(&*db.home)? {
                // SQLite without onewrite used the file after a close; a power cut restored the
                // mark.
                if let Some(session) = mark
                    && !recover::end_behind_journal(db, session)?
                {
                    return Err(Error::CantOpen(format!(
                        "{} carries onewrite's mark and has a rollback journal beside it ({}): one of the two belongs to \
                         another copy. Move the journal away if the database was last used through onewrite",
                        db.path.display(),
                        db.journal_path().display()
                    )));
                }
                db.settle_super_journal()?;
                // SQLite rolls it back, through the plain file.
                inner.phase = Phase::Aside(self.id);
                self.role = Role::Aside(Passthrough { reader: None, journal: None });
                return Ok(());
            }
            if !locks::is_reserved(&*db.home)? {
                return Err(Error::Busy("a rollback journal waits to be rolled back, and others read".into()));
            }
        }
        while let Some(session) = mark {
            let mut options = (*inner.options).clone();
            options.busy_ms = u64::try_from(self.patience().as_millis()).unwrap_or(u64::MAX);
            options.shipper = self.ships;
            if recover::attach(db, writer, inner, session, &options)? {
                return Ok(());
            }
            (state, mark) = db.read_state()?;
        }
        if !is_unmarked && !self.ships {
            // It was in use, and goes where it was asked to be.
            inner.left_wal = Some(Box::new([0; at::HEADER_BYTES]));
        }
        if self.leaves_wal_mode(&state, inner)? {
            if !self.leave_wal_mode(inner)? {
                return self.look(db, writer, inner);
            }
            state = db.read_state()?.0;
        }
        inner.find_state(state);
        if self.has_no_wal && is_unmarked {
            inner.note_plain(first, bytes);
        }
        Ok(())
    }

    fn check_commits(&self, ship: Ship) -> Result<()> {
        match ship {
            Ship::Fenced if !self.ships => Err(Error::ReadOnly(format!(
                "{} is fenced: its store belongs to another database. `onewrite rejoin` follows that one, `onewrite promote` takes \
                 the store back",
                self.db.path.display()
            ))),
            Ship::Replica if !self.ships => Err(self.db.is_replica()),
            _ => Ok(()),
        }
    }

    fn lock_reserved(&mut self) -> Result<()> {
        if self.role.is_aside() || self.role.is_below() {
            return Ok(());
        }
        self.check_process()?;
        let Some(snapshot) = self.role.snapshot().cloned() else {
            return Err(Error::Misuse("a write lock was asked for without a read lock".into()));
        };
        if snapshot.kind == FileKind::Foreign {
            return Err(Error::NotADatabase(format!("{} is not a database", self.db.path.display())));
        }
        if self.has_merged() {
            return Err(Error::BusySnapshot);
        }
        let ship = self.db.ship();
        if self.is_apart() {
            self.db.check(None)?;
            self.check_commits(ship)?;
            self.habit.writes_now = true;
            self.role.write(Txn::new(snapshot));
            return Ok(());
        }
        self.habit.writes_now = true;
        self.check_commits(ship)?;
        // A stale one does not wait for the place. With it, `begin_write` looks.
        let is_stale = !self.db.queue.holds(self.id) && !self.db.inner.lock().is_newest(&snapshot);
        if is_stale && !self.may_move(&snapshot, ship)? {
            return Err(self.refuse_stale(ship));
        }
        let kept = self.place == WriterTurn::Firm;
        if !kept {
            self.take_place()?;
        }
        let begun = match self.waits.upgrades {
            true => self.move_forward(snapshot).and_then(|newest| self.begin_patiently(&newest)),
            false => self.begin_patiently(&snapshot),
        };
        let is_busy = matches!(begun, Err(Error::Busy(_)));
        if begun.is_err() {
            if self.db.inner.lock().phase == Phase::Unmarked {
                // Else the one that has RESERVED waits for this one's SHARED.
                let may_ask = self.waits.upgrades && self.waits.may_ask && !self.waits.is_last;
                if may_ask && is_busy && locks::reserve(&*self.db.home)? {
                    self.waits.asks = Some(Asks::Again);
                }
                locks::unreserve(&*self.db.home)?;
            }
            if !kept {
                self.leave(false);
                self.waits.ticket = self.db.queue.give_up(self.id);
            }
        }
        if is_busy {
            self.expect_place();
        }
        match begun {
            Err(Error::BusySnapshot) => Err(self.refuse_stale(ship)),
            begun => begun,
        }
    }

    fn refuse_stale(&mut self, ship: Ship) -> Error {
        self.habit.was_stale = self.waits.upgrades;
        self.expect_place();
        if ship == Ship::Late { self.db.store_is_away() } else { Error::BusySnapshot }
    }

    fn begin_patiently(&mut self, snapshot: &Arc<State>) -> Result<()> {
        let mut deadline = None;
        loop {
            match self.begin_write(snapshot) {
                // Two that wait for each other's SHARED would never end: the one with RESERVED
                // waits.
                Err(Error::Busy(_)) if !self.is_over(&mut deadline) && locks::reserve(&*self.db.home)? => {
                    clock::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    /// Takes place and turn. `Busy`: SQLite asks the busy handler where it may wait, and comes
    /// again.
    fn take_place(&mut self) -> Result<()> {
        let taken = self.try_place();
        if matches!(taken, Err(Error::Busy(_))) && self.waits.may_ask && !self.waits.is_last {
            self.waits.asks = self.asks_for_place();
        }
        taken
    }

    /// Where SQLite asks the busy handler, it is asked once before, by which one that does not wait
    /// is known: it takes the place of a transaction that thinks.
    fn asks_for_place(&self) -> Option<Asks> {
        // One that steps aside waits for this one.
        let steps_aside = || self.db.inner.lock().reserved.is_some();
        let others_think =
            || self.db.queue.is_thinking() || self.db.member().as_ref().is_some_and(|member| member.others_think());
        match self.waits.upgrades {
            true => (!steps_aside()).then_some(Asks::Again),
            false => (!self.waits.is_retry() && others_think()).then_some(Asks::Once),
        }
    }

    fn try_place(&mut self) -> Result<()> {
        if !self.waits.is_last && self.others_keep(FIRM_WAIT)? {
            self.expect_place();
            return Err(another_writes(self.db.member().as_deref()));
        }
        self.take_place_here()?;
        self.enter_for_good()
    }

    pub(super) fn take_place_here(&mut self) -> Result<()> {
        let all = Duration::from_millis(self.busy_ms);
        let kept = Some(HoldLimits { held: FIRM_WAIT, inside: all });
        let patience = match self.waits.is_last {
            true => Patience { all: FIRM_WAIT.min(all), kept: None, is_last: true },
            false => Patience { all, kept, is_last: false },
        };
        if self.db.queue.acquire_with(self.id, TurnClaim::Firm, patience, &mut self.waits.ticket) {
            return Ok(());
        }
        self.expect_place();
        Err(busy_here())
    }

    /// While another process writes, gives the writer's place up.
    pub(super) fn enter_for_good(&mut self) -> Result<()> {
        let all = Duration::from_millis(self.busy_ms);
        let entered = match self.waits.is_last {
            true => self.db.enter(true, FIRM_WAIT.min(all)),
            false => self.db.enter_soon(true, all, Some(FIRM_WAIT)),
        };
        self.place = if entered.is_ok() { WriterTurn::Firm } else { WriterTurn::None };
        if entered.is_err() {
            self.waits.ticket = self.db.queue.give_up(self.id);
            self.expect_place();
        }
        entered
    }

    fn others_keep(&self, kept: Duration) -> Result<bool> {
        if !self.waits.is_retry() {
            return Ok(false);
        }
        self.db.member().as_ref().map_or(Ok(false), |member| member.others_keep(kept))
    }

    /// SQLite may sleep now, until it has the place.
    fn expect_place(&mut self) {
        wait::expect(&self.db, self.id, self.grace(), &self.waits);
    }

    pub(super) fn acquire_place(&self, wait: Duration) -> Result<()> {
        match self.db.queue.acquire(self.id, TurnClaim::Firm, wait) {
            true => Ok(()),
            false => Err(busy_here()),
        }
    }

    /// Lets the next process have the turn at once, if `pass_on`.
    pub(super) fn leave(&mut self, pass_on: bool) {
        match std::mem::take(&mut self.place) {
            WriterTurn::Firm | WriterTurn::Given { in_turn: true } => self.db.leave(pass_on),
            // Else another connection of this process has it.
            WriterTurn::Tentative { .. } if self.db.queue.holds(self.id) => self.end_lease(),
            // It got the place while SQLite slept.
            WriterTurn::None if self.waits.has_waited() && self.db.queue.holds(self.id) => self.end_lease(),
            WriterTurn::None | WriterTurn::Tentative { .. } | WriterTurn::Given { in_turn: false } => {}
        }
    }

    fn end_lease(&self) {
        if let Some(member) = self.db.member().as_ref() {
            member.end_lease();
        }
    }

    pub(super) fn give_place_back(&mut self) {
        self.leave(false);
        self.db.queue.release(self.id);
    }

    pub(super) fn begin_write(&mut self, snapshot: &Arc<State>) -> Result<()> {
        let db = &*self.db;
        let mut writer = db.writer.lock();
        db.see_to_files(&mut writer)?;
        writer.as_ref().map_or(Ok(()), |live| db.tell_asked(live))?;
        let mut inner = db.inner.lock();
        inner.check()?;
        if !inner.is_newest(snapshot) {
            return Err(Error::BusySnapshot);
        }
        db.scheme().check(db, &inner.options, &inner.published)?;
        debug_assert!(
            matches!(inner.published.kind, FileKind::Empty | FileKind::Database),
            "rule ModeUnderLock: nothing else is marked"
        );
        if inner.phase == Phase::Unmarked {
            // Rule StoreHasIt.
            db.check_begins(&inner, self.ships, true)?;
            db.go_live(&mut writer, &mut inner)?;
            if let Some(member) = inner.member.as_ref().filter(|_| self.shuts_out) {
                member.words.shut_out(member.me);
            }
        }
        self.options = inner.options.clone();
        self.role.write(Txn::new(inner.published.clone()));
        Ok(())
    }

    fn lock_exclusive(&mut self) -> Result<()> {
        if self.level < LockLevel::Reserved {
            self.lock_reserved()?;
            self.level = LockLevel::Reserved;
        }
        if self.role.is_aside() || self.role.is_below() {
            return Ok(());
        }
        if self.said.exclusive {
            self.shut_others_out()?;
        }
        if self.said.spans && self.journal.is_empty() && self.role.txn().is_some_and(Txn::is_untouched) {
            // It changes another file, perhaps by what it read here (rule SeenWhenDurable).
            self.settle()?;
        }
        // One of several files has a super-journal in its journal, which not every log can replace.
        let flushes = self.said.synchronous != Synchronous::Off;
        let spans = (self.said.spans && flushes && !self.journal.is_empty()) || self.journal.names_super_journal()?;
        let spans = spans && !self.may_prepare();
        // SQLite begins the change to WAL mode with this lock. With a journal written, the
        // transaction is another one: the change was refused.
        let changes_mode = self.said.wal && self.role.writer_mut().is_some_and(|writer| writer.has_just_begun);
        if changes_mode || spans {
            if self.requires {
                return Err(stays_here("this statement"));
            }
            // It must be alone to step aside. BUSY here comes before SQLite's point of no return:
            // it asks the busy handler, and the application may retry (rule BusyToHandler).
            self.line_up(true)?;
            aside::reserve(&self.db, self.id).map_err(|e| match e {
                Error::BusySnapshot => Error::Busy("others read a database that steps aside".into()),
                e => e,
            })?;
            self.reserves = true;
        }
        Ok(())
    }

    fn may_prepare(&self) -> bool {
        prepares(&self.db, &self.db.inner.lock()) && !self.db.spans_aside.load(Ordering::Relaxed)
    }

    /// Notes whether SQLite writes other files, too.
    pub fn note_span(&mut self, spans: bool) {
        self.said.spans = spans;
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
        self.ahead.forget();
        self.journal.end_rollback();
        let decided = self.finish_several();
        let dropped = decided.and(self.drop_txn());
        let dropped =
            if std::mem::take(&mut self.reserves) { dropped.and(aside::release(&self.db, self.id)) } else { dropped };
        let back = if self.is_aside() { self.come_back() } else { Ok(()) };
        self.let_others_in();
        self.habit.returns_lock |= self.habit.writes_now;
        let keeps = level > LockLevel::None && self.said.exclusive && self.place == WriterTurn::Firm;
        if !keeps || self.role.is_below() {
            self.give_place_back();
        }
        if level == LockLevel::None {
            // It read another connection's state, and returns only when that is durable.
            let settled = self.settle();
            self.cache.leave(self.role.snapshot().filter(|_| !self.role.is_below()).map(|state| &**state));
            self.has_no_wal = false;
            self.learn();
            if self.habit.end(self.waits.is_retry()) {
                self.said.wal = false;
            }
            self.give_snapshot_back()?;
            return dropped.and(back).and(settled);
        }
        dropped.and(back)
    }

    /// The VFS below has its own lock: the one under which WAL mode was seen ends (rule
    /// ModeUnderLock).
    pub fn hand_over(&mut self) -> Result<()> {
        let Role::Below(reader @ Some(_)) = &mut self.role else { return Ok(()) };
        let given = reader.take().map_or(Ok(()), |reader| self.db.unpin(&mut self.db.inner.lock(), &reader.state));
        self.noted(given)
    }

    pub(super) fn give_snapshot_back(&mut self) -> Result<()> {
        let mut inner = self.db.inner.lock();
        let reader = self.role.take_reader();
        self.role = Role::Idle;
        self.db.look_if_due(&mut inner);
        match reader {
            Some(reader) => self.db.unpin_reader(&mut inner, &reader.state),
            None => self.db.unlock_unused(&mut inner),
        }
    }

    /// A commit passed the place on, and the connection writes on under its lock (rule OneWriter).
    pub(super) fn take_place_again(&mut self) -> Result<()> {
        let WriterTurn::Given { in_turn } = self.place else { return Ok(()) };
        self.habit.returns_lock = false;
        let wait = Duration::from_millis(self.busy_ms);
        self.acquire_place(wait)?;
        if !in_turn && let Err(e) = self.db.enter(true, wait) {
            self.db.queue.release(self.id);
            return Err(e);
        }
        if self.role.txn().is_none_or(|txn| !self.db.inner.lock().is_newest(&txn.base)) {
            self.place = WriterTurn::Given { in_turn: true };
            self.db.queue.release(self.id);
            return Err(Error::BusySnapshot);
        }
        self.place = WriterTurn::Firm;
        Ok(())
    }

    pub(super) fn drop_txn(&mut self) -> Result<()> {
        self.journal.forget_syncs();
        let Some(txn) = self.role.end_txn() else { return Ok(()) };
        // A record pending or in doubt may count: it needs its streamed images.
        let in_doubt = || self.db.undecided.lock().is_some() || self.db.inner.lock().check().is_err();
        if txn.has_begun_to_stream()
            && !in_doubt()
            && let Some(live) = self.db.writer.lock().as_mut()
        {
            stream::give_up(&self.db, live, &txn)?;
        }
        Ok(())
    }

    /// Aside → Reader, or Below. Lost where that fails.
    pub(super) fn come_back(&mut self) -> Result<()> {
        let Role::Aside(Passthrough { reader: before, journal }) = std::mem::replace(&mut self.role, Role::Lost) else {
            return Err(Error::Misuse("a step back by who was not aside".into()));
        };
        if journal.is_some() {
            self.journal.truncate(0);
        }
        let back = aside::come_back(&self.db);
        let mut inner = self.db.inner.lock();
        // No other connection had a newer state.
        let pinned = back.and_then(|()| self.db.pin(&mut inner));
        let (before, looked) = before.map_or((None, None), |reader| (Some(reader.state), reader.looked));
        let unpinned = before.map_or(Ok(()), |before| self.db.unpin(&mut inner, &before));
        // SQLite may go on in WAL mode under this lock: the caller uses the VFS below (rule
        // ModeUnderLock).
        self.role = Role::pinned_now(ReadTransaction { state: pinned?, unsettled: false, looked, has_moved: false });
        unpinned
    }

    /// xCheckReservedLock: whether any connection writes.
    pub fn is_reserved(&mut self) -> Result<bool> {
        if self.is_aside() {
            return Ok(false);
        }
        let phase = self.db.inner.lock().phase.clone();
        let reserved = match phase {
            Phase::Unmarked => locks::is_reserved(&*self.db.home),
            _ => Ok(self.db.queue.is_taken() || self.db.member().as_ref().is_some_and(|member| member.others_write())),
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

fn is_undecided(inner: &DatabaseState) -> bool {
    inner.member.as_ref().is_some_and(|member| member.is_undecided())
}
