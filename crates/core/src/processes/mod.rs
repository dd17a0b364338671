//! Several processes on one database: what a process does beside the others.
//!
//! ```text
//!  attach   shared/member.rs    alone: recover, begin the shared words; else join
//!  read     database/follow.rs  follow the log; announce the snapshot; home's old images from shared/kept.rs
//!  write    shared/turn.rs      take turns; after another process: catch up; after a dead one: take over (here)
//!  commit   flush.rs            written in the turn, flushed after it, by one process for all
//!           database/ship.rs    and perhaps sent to a store, by another
//!  detach   shared/member.rs    alone: checkpoint, mark off; else just leave
//! ```
//!
//! Their steps are those of `docs/sharing.md`, "Several processes"; the rules are in `docs/commit.md`.

pub mod flush;
#[cfg(test)]
mod flush_tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::deadline::Deadline;
use crate::base::error::{Error, IoContext, Result};
use crate::checkpoint::checkpoint;
use crate::database::follow;
use crate::database::{Database, DatabaseState, LiveDatabase};
use crate::log::file::{LogCursor, Window};
use crate::log::group::Durability;
use crate::log::ring::StreamedImages;
use crate::shared::member::{self, Member, TakeResult};
use crate::shared::tail::{Reach, Tail};
use crate::shared::words::Ship;
use crate::sqlite_format::home::State;

impl Database {
    /// Takes the writer's place among the processes, waiting until `deadline` at most, or so long. With `firm`, a
    /// transaction begins, which [`Database::leave`] ends; else the place is leased, so that a snapshot pinned next
    /// is probably still the newest at its first write.
    pub fn enter(&self, firm: bool, deadline: impl Into<Deadline>) -> Result<()> {
        self.enter_soon(firm, deadline, None)
    }

    /// The same; no process is waited for that has had the place for `kept`.
    pub fn enter_soon(&self, firm: bool, deadline: impl Into<Deadline>, kept: Option<Duration>) -> Result<()> {
        self.try_enter(firm, &deadline.into(), kept).map(drop)
    }

    /// Enters and leaves, so that what a dead process left is taken over, without the place among the connections of this process: one
    /// that has it may begin a session between the two, whose place this is not.
    pub fn enter_and_leave(&self, deadline: impl Into<Deadline>) -> Result<()> {
        if self.try_enter(true, &deadline.into(), None)? {
            self.leave(false);
        }
        Ok(())
    }

    /// Whether there is a place among processes, which is this one's then.
    fn try_enter(&self, firm: bool, deadline: &Deadline, kept: Option<Duration>) -> Result<bool> {
        let Some(member) = self.member() else { return Ok(false) };
        if self.read_only {
            return Err(Error::Busy(format!("{} may only be read by this process", self.path.display())));
        }
        let taken = member.take(firm, deadline, kept)?;
        if member.should_hold_pending() {
            // Another process may have left or died that held PENDING (rule StockKeptOut).
            self.hold_pending();
        }
        match taken {
            TakeResult::Again | TakeResult::Anew if member.words.is_replaced() => {
                member.leave(true, false);
                self.check_replaced(&member)?;
            }
            TakeResult::Again => return Ok(true),
            // A lease can be lost at any time: nothing that matters to others may happen under it.
            TakeResult::Anew if !firm => return Ok(true),
            TakeResult::Not => {
                return Err(Error::Busy("another process is writing the database through onewrite".into()));
            }
            TakeResult::Anew | TakeResult::FromDead(_) => {}
        }
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        let done = match writer.as_mut() {
            None => Err(Error::Misuse("a turn to write without a log".into())),
            Some(live) => match taken {
                TakeResult::FromDead(_) => take_over(self, &member, live, &mut inner),
                _ => resume(self, &member, live, &mut inner),
            },
        };
        let layered = self.table.read().has_layer();
        drop(inner);
        match (done, taken) {
            (Ok(()), _) => {
                member.settle()?;
                if layered && let Some(live) = writer.as_mut() {
                    // A big transaction goes home that another process has not brought there: it died, or room was short. If it
                    // is again, the next one tries.
                    match checkpoint(self, live, StreamedImages::Drop) {
                        Err(e) if !e.is_short() => return Err(e),
                        _ => {}
                    }
                }
                drop(writer);
                if !firm {
                    self.leave(false);
                }
                Ok(true)
            }
            (Err(e), TakeResult::FromDead(process)) => {
                let e = self.poison_unless_short(e);
                member.unsettle(process)?;
                Err(e)
            }
            (Err(e), _) => {
                drop(writer);
                self.leave(false);
                Err(e)
            }
        }
    }

    /// Ends what [`Database::enter`] began firmly. The place goes on once all that was published is written: to the next
    /// that waits if `pass_on`, or if this process has had its slice.
    pub fn leave(&self, pass_on: bool) {
        let inner = self.inner.lock();
        let Some(member) = &inner.member else { return };
        // Looked at while nobody publishes: the last of several that leave must see what the others have written.
        member.leave(inner.published.tid <= member.words.written(), pass_on);
    }

    /// Waits, until `deadline` at most, while it is undecided what a dead process left: whoever is started again after
    /// it must not find its last transaction later.
    pub fn decide(&self, deadline: Instant) -> Result<()> {
        let Some(member) = self.member() else { return Ok(()) };
        self.end_turn_of_dead(&member, deadline)?;
        match self.wait_flushed(&member, member.words.written(), Durability::Written, Some(deadline)) {
            Err(Error::Busy(_)) => Ok(()),
            waited => waited,
        }
    }

    /// Takes over what a process has left that died in its turn, until `deadline` at most.
    pub fn end_turn_of_dead(&self, member: &Member, deadline: Instant) -> Result<()> {
        while member.words.busy_owner().is_some() {
            match self.enter_and_leave(Duration::ZERO) {
                Ok(()) | Err(Error::Busy(_)) => {}
                Err(e) => return Err(e),
            }
            if !member.words.takes_over() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    /// Makes this process the only one, for something that takes the whole database; others cannot attach until
    /// `member.not_alone()`. `Busy` if there are others.
    pub fn be_alone(&self, member: &Arc<Member>, wait: Duration) -> Result<()> {
        self.check_replaced(member)?;
        member::admin(&member.log, wait)?;
        match member.is_alone() {
            Ok(true) => Ok(()),
            Ok(false) => {
                member::end_admin(&member.log)?;
                Err(Error::Busy(format!(
                    "{} is open in another process through onewrite, and this needs it alone",
                    self.path.display()
                )))
            }
            Err(e) => Err(e),
        }
    }

    /// Whether this process, which is about to leave, is the last one, and may write. Then nobody can attach until it has
    /// left, and what dead ones left is taken over. `Busy` if another process attaches or leaves for longer than `wait`.
    pub fn is_last(&self, wait: Duration) -> Result<bool> {
        let Some(member) = self.member() else { return Ok(true) };
        if member.observes {
            return Ok(false);
        }
        member::admin(&member.log, wait)?;
        if self.read_only || !member.is_alone()? {
            return Ok(false);
        }
        // With another log, another process is the last; and one that has not seen that keeps home locked.
        if member.words.is_replaced() || self.has_stragglers()? {
            return Ok(false);
        }
        // The next shipper goes on from here (rule StoreHasIt).
        let is_ahead_of_store =
            || member.words.ship() != Ship::Off && member.words.shipped_to() < member.words.written();
        if is_ahead_of_store() {
            return Ok(false);
        }
        self.enter(true, Duration::ZERO)?;
        // With what a process had written that died.
        if is_ahead_of_store() {
            self.leave(false);
            return Ok(false);
        }
        Ok(true)
    }
}

/// The writer's state after another process may have written.
fn resume(db: &Database, member: &Member, live: &mut LiveDatabase, inner: &mut DatabaseState) -> Result<()> {
    check_nothing_pending(live, inner)?;
    let flushed = member.words.flushed();
    follow::catch_up(db, member, inner, Reach::Written)?;
    let tail = member.tail.lock();
    debug_assert!(tail.cursor.last_tid == inner.published.tid, "the log was followed to the newest state");
    debug_assert!(member.words.busy_owner() == Some(member.me), "rule OneWriter");
    let same_home = live.log.slot().sequence == tail.slot.sequence;
    live.log.resume(&tail.slot, &tail.cursor, flushed)?;
    live.log.stream_found(db.table.read().streamed_end());
    live.sweep = None;
    live.home.bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
    if !same_home {
        // Whatever room was asked for is given back by whoever writes home.
        live.home.reserved_bytes = live.home.bytes;
    }
    live.home_tid = tail.slot.base_tid;
    Ok(())
}

/// The place was given back when everything published was written (rule OneWriter): the rest would be lost now.
fn check_nothing_pending(live: &LiveDatabase, inner: &mut DatabaseState) -> Result<()> {
    if !live.log.group().has_pending() {
        return Ok(());
    }
    let path = &live.log.file().path;
    Err(inner.poison(Error::Corrupt(format!("another process wrote to {} before this one was done", path.display()))))
}

/// Applies the whole records that a dead process left behind `tail`: the newest state, and where they end.
fn adopt_written(
    db: &Database,
    member: &Member,
    inner: &DatabaseState,
    tail: &Tail,
) -> Result<(Arc<State>, LogCursor)> {
    let mut buf = Vec::new();
    let mut newest = inner.published.clone();
    let mut cursor = tail.cursor;
    loop {
        let next = member.log.next_record(&tail.slot, &cursor, &Window::default(), &mut buf, |end, record| {
            // Nobody else can finish it (rule PreparedThenDecided).
            if let Some(decider) = member.log.undecided(&tail.slot, record, &end)? {
                if !db.is_committed(&decider, &member.log, &tail.slot)? {
                    return Ok(None);
                }
                db.keep_decision(&decider, &member.log, &tail.slot)?;
            }
            let state = follow::apply(db, member, &tail.slot, record, &newest, inner.readers())?;
            // Nothing follows one before it is home.
            Ok(Some((end, state, record.head.stream.count > 0)))
        })?;
        let Some((end, state, is_last)) = next.flatten() else { break };
        newest = Arc::new(state);
        cursor = end;
        if is_last {
            break;
        }
    }
    Ok((newest, cursor))
}

/// The writer's state after a process died while it wrote: whatever of it is whole in the log is adopted, once
/// it is durable, for it may be that its application was told so.
fn take_over(db: &Database, member: &Member, live: &mut LiveDatabase, inner: &mut DatabaseState) -> Result<()> {
    check_nothing_pending(live, inner)?;
    let words = &member.words;
    let (session, generation) = (live.home.mark.session, words.generation());
    let slots = member.log.slots()?;
    let newest = slots.iter().find(|s| s.session == session && s.live);
    if let Some(slot) = newest.filter(|s| s.sequence > generation) {
        // Home was flushed before it was written; it itself perhaps not.
        let at = slot.position();
        let path = &member.log.path;
        member.log.file.write_durable_at(&slot.encode(), at).context(|| format!("cannot write {}", path.display()))?;
        words.set_generation(slot.sequence);
    }
    follow::catch_up(db, member, inner, Reach::Written)?;
    let mut tail = member.tail.lock();
    let before = inner.published.tid;
    let (newest, cursor) = adopt_written(db, member, inner, &tail)?;
    // A record in part, or one that does not count: nothing may find it where the next one goes by (rule PreparedThenDecided), and the last close
    // overwrites the ring as far as records reached.
    member.log.wipe_free(&tail.slot, cursor.tail)?;
    let streamed_end = db.table.read().streamed_end();
    member.log.rewrite_live(&tail.slot, cursor.tail, streamed_end)?;
    live.log.resume(&tail.slot, &cursor, cursor.last_tid)?;
    live.sweep = None;
    live.home.bytes = db.home.len().context(|| db.what("cannot read the length of"))?;
    live.home.reserved_bytes = live.home.bytes;
    debug_assert!(newest.tid == cursor.last_tid && before <= newest.tid, "what was adopted follows what was published");
    live.home_tid = tail.slot.base_tid;
    tail.cursor = cursor;
    let adopted = newest.tid;
    match words.ship() {
        Ship::Off => inner.set_state(newest),
        // Readers of this process see it when all may (rule StoreHasIt).
        _ => inner.hide(newest),
    }
    if streamed_end > 0 {
        live.log.stream_found(streamed_end);
    } else {
        live.log.stream_reset()?;
    }
    words.publish(adopted, adopted);
    inner.advance();
    words.ring();
    drop(tail);
    if slots.iter().any(|slot| slot.session == session && slot.ring_bytes != live.log.slot().ring_bytes) {
        // It died between the two slots of a longer ring (rule SlotBeforeReuse).
        live.log.repeat_slot()?;
        member.note(live.log.slot(), &live.log.cursor());
    }
    Ok(())
}
