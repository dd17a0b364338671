//! The duties of a process beside others on one database.
//!
//! ```text
//! attach   shared/member.rs    alone: recover, begin the shared words; else join
//! read     database/follow.rs  follow the log; announce the snapshot; old images: shared/kept.rs
//! write    shared/turn.rs      take turns; after another process: catch up; after a dead one: take
//!                              over (here)
//! commit   flush.rs            written in the turn, flushed after it, by one process for all
//!          database/ship.rs    and perhaps sent to a store, by another
//! detach   shared/member.rs    alone: checkpoint, mark off; else just leave
//! ```

pub mod flush;
#[cfg(test)]
mod flush_tests;

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::{self, Instant};
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
use crate::shared::turn::Hold;
use crate::shared::users;
use crate::sqlite_format::home::State;

pub fn another_writes(member: Option<&Member>) -> Error {
    let holder = member.map_or(String::new(), Member::holder);
    Error::Busy(format!("another process is writing the database through onewrite{holder}"))
}

impl Database {
    /// Waits until `deadline`. With `firm`, a transaction begins, which [`Database::leave`] ends;
    /// else the place is leased, so that the next snapshot is probably still newest at its first
    /// write.
    pub fn enter(&self, firm: bool, deadline: impl Into<Deadline>) -> Result<()> {
        self.try_enter(firm.into(), &deadline.into(), None).map(drop)
    }

    /// Does not wait for a process that has held the place for `kept`, and takes no place from one
    /// that thinks.
    pub fn enter_soon(
        &self,
        hold: impl Into<Hold>,
        deadline: impl Into<Deadline>,
        kept: Option<Duration>,
    ) -> Result<()> {
        self.try_enter(hold.into(), &deadline.into(), kept).map(drop)
    }

    /// Without the place in this process: its holder may begin a session meanwhile.
    pub fn enter_and_leave(&self, deadline: impl Into<Deadline>) -> Result<()> {
        if self.try_enter(Hold::Busy, &deadline.into(), None)? {
            self.leave(false);
        }
        Ok(())
    }

    /// False where no place exists among processes.
    fn try_enter(&self, hold: Hold, deadline: &Deadline, kept: Option<Duration>) -> Result<bool> {
        let firm = hold == Hold::Busy;
        let member = self.member();
        let Some(member) = member.as_ref() else { return Ok(false) };
        if self.read_only {
            return Err(Error::Busy(format!("{} may only be read by this process", self.path.display())));
        }
        let taken = member.take(hold, deadline, kept)?;
        match taken {
            TakeResult::Again | TakeResult::Anew if member.words.is_replaced() => {
                member.leave(false);
                self.check_replaced(member)?;
            }
            TakeResult::Again => return Ok(true),
            // A lease can end at any time: nothing that concerns others happens under it.
            TakeResult::Anew if !firm => return Ok(true),
            TakeResult::Not => {
                return Err(another_writes(Some(member)));
            }
            TakeResult::Anew | TakeResult::FromDead(_) => {}
        }
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        let done = match writer.as_mut() {
            None => Err(Error::Misuse("a turn to write without a log".into())),
            Some(live) => match taken {
                TakeResult::FromDead(_) => take_over(self, member, live, &mut inner),
                _ => resume(self, member, live, &mut inner),
            },
        };
        let done = done.and_then(|()| self.keep_stock_out(&mut inner));
        let layered = self.table.read().has_layer();
        drop(inner);
        match (done, taken) {
            (Ok(()), _) => {
                member.settle()?;
                if layered && let Some(live) = writer.as_mut() {
                    // It was left by a dead process, or one without room. Without room again, the
                    // next one tries.
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

    /// Ends a firm [`Database::enter`]. With everything written, the place goes on: to a waiter if
    /// `pass_on`, or after this process's slice.
    pub fn leave(&self, pass_on: bool) {
        if let Some(member) = self.member().as_ref() {
            member.leave(pass_on);
        }
    }

    /// Waits until `deadline` for a dead process's transaction: a program started afterwards must
    /// not see it appear later.
    pub fn decide(&self, deadline: Instant) -> Result<()> {
        let member = self.member();
        let Some(member) = member.as_ref() else { return Ok(()) };
        self.end_turn_of_dead(member, deadline)?;
        match self.wait_flushed(member, member.words.written(), Durability::Written, Some(deadline)) {
            Err(Error::Busy(_)) => Ok(()),
            waited => waited,
        }
    }

    pub fn end_turn_of_dead(&self, member: &Member, deadline: Instant) -> Result<()> {
        while member.words.busy_owner().is_some() {
            match self.enter_and_leave(Duration::ZERO) {
                Ok(()) | Err(Error::Busy(_)) => {}
                Err(e) => return Err(e),
            }
            if !member.words.takes_over() || Instant::now() >= deadline {
                break;
            }
            clock::sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    /// Others cannot attach until `member.not_alone()`. `Busy` if there are any.
    pub fn be_alone(&self, member: &Arc<Member>, wait: Duration) -> Result<()> {
        self.check_replaced(member)?;
        member::admin(&member.log, wait)?;
        match member.is_alone() {
            Ok(true) => Ok(()),
            Ok(false) => {
                member::end_admin(&member.log)?;
                Err(Error::Busy(format!(
                    "{} is open in another process through onewrite, and this needs it alone{}",
                    self.path.display(),
                    users::named(&member.words, Some(member.me))
                )))
            }
            Err(e) => Err(e),
        }
    }

    /// True for the last one that may write: others cannot attach until it has left, and dead
    /// processes' work is done. `Busy` if another attaches or leaves for longer than `wait`.
    pub fn is_last(&self, wait: Duration) -> Result<bool> {
        let member = self.member();
        let Some(member) = member.as_ref() else { return Ok(true) };
        if member.observes {
            return Ok(false);
        }
        member::admin(&member.log, wait)?;
        if self.read_only || !member.is_alone()? {
            return Ok(false);
        }
        // Another process ends the new log's session; stragglers keep home locked.
        if member.words.is_replaced() || self.has_stragglers()? {
            return Ok(false);
        }
        // The next shipper goes on from here (rule StoreHasIt).
        let is_ahead_of_store = || member.words.ship().waits() && member.words.shipped_to() < member.words.written();
        if is_ahead_of_store() {
            return Ok(false);
        }
        self.enter(true, Duration::ZERO)?;
        // A dead process's records are adopted now.
        if is_ahead_of_store() {
            self.leave(false);
            return Ok(false);
        }
        Ok(true)
    }
}

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
        // The process that writes home gives it back.
        live.home.reserved_bytes = live.home.bytes;
    }
    live.home_tid = tail.slot.base_tid;
    Ok(())
}

/// Everything was written when the place was given back (rule OneWriter).
fn check_nothing_pending(live: &LiveDatabase, inner: &mut DatabaseState) -> Result<()> {
    if !live.log.group().has_pending() {
        return Ok(());
    }
    let path = &live.log.file().path;
    Err(inner.poison(Error::Corrupt(format!("another process wrote to {} before this one was done", path.display()))))
}

/// Applies the whole records that a dead process left behind `tail`: the newest state, and where
/// they end.
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
            // Its owner is dead (rule PreparedThenDecided).
            if let Some(decider) = member.log.undecided(&tail.slot, record, &end)? {
                if !db.is_committed(&decider, &member.log, &tail.slot)? {
                    return Ok(None);
                }
                db.keep_decision(&decider, &member.log, &tail.slot)?;
            }
            let state = follow::apply(db, member, &tail.slot, record, &newest, inner.readers())?;
            Ok(Some((end, state, record.stream.count > 0)))
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

/// Whole records of a dead writer are adopted, durable, for an application may know of them.
fn take_over(db: &Database, member: &Member, live: &mut LiveDatabase, inner: &mut DatabaseState) -> Result<()> {
    // An earlier try may have failed halfway.
    inner.check()?;
    check_nothing_pending(live, inner)?;
    let words = &member.words;
    let (session, generation) = (live.home.mark.session, words.generation());
    let slots = member.log.slots()?;
    let newest = slots.iter().find(|s| s.session == session && s.live);
    if let Some(slot) = newest.filter(|s| s.sequence > generation) {
        // The slot followed a flush of home, and may be in the cache alone.
        let at = slot.position();
        let path = &member.log.path;
        member.log.file.write_durable_at(&slot.encode(), at).context(|| format!("cannot write {}", path.display()))?;
        words.set_generation(slot.sequence);
    }
    follow::catch_up(db, member, inner, Reach::Written)?;
    let mut tail = member.tail.lock();
    let before = inner.published.tid;
    let (newest, cursor) = adopt_written(db, member, inner, &tail)?;
    // A shorter record there must not be followed by the rest of this one (rule
    // PreparedThenDecided), and the close wipes only as far as records reached.
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
    match words.ship().waits() {
        false => inner.set_state(newest),
        // When all may see it (rule StoreHasIt).
        true => inner.hide(newest),
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
        // Its owner died between the two slots of a longer ring (rule SlotBeforeReuse).
        live.log.repeat_slot()?;
        member.note(live.log.slot(), &live.log.cursor());
    }
    Ok(())
}
