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
//!
//! The steps are those of `docs/sharing.md`, "Several processes"; the rules are in
//! `docs/commit.md`.

pub mod flush;
#[cfg(test)]
mod flush_tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::deadline::Deadline;
use crate::base::error::{Error, IoContext, Result};
use crate::checkpoint::checkpoint;
use crate::database::follow;
use crate::database::{Database, Inner, Live};
use crate::log::file::Window;
use crate::log::group::Durability;
use crate::log::ring::Stream;
use crate::shared::member::{self, Member, Taken};
use crate::shared::tail::Reach;
use crate::shared::words::Ship;

impl Database {
    /// Takes the writer's place among the processes, until `deadline`. With `firm`, a transaction
    /// begins, which [`Database::leave`] ends; else the place is leased, so that the next snapshot
    /// is probably still the newest at its first write.
    pub fn enter(&self, firm: bool, deadline: impl Into<Deadline>) -> Result<()> {
        self.enter_soon(firm, deadline, None)
    }

    /// The same; does not wait for a process that has had the place for `kept`.
    pub fn enter_soon(&self, firm: bool, deadline: impl Into<Deadline>, kept: Option<Duration>) -> Result<()> {
        self.try_enter(firm, &deadline.into(), kept).map(drop)
    }

    /// Takes over from a dead process by entering and leaving, without the place among this
    /// process's connections: its holder may begin a session between the two, whose place must
    /// stay.
    pub fn enter_and_leave(&self, deadline: impl Into<Deadline>) -> Result<()> {
        if self.try_enter(true, &deadline.into(), None)? {
            self.leave(false);
        }
        Ok(())
    }

    /// Enters; false where no place exists among processes.
    fn try_enter(&self, firm: bool, deadline: &Deadline, kept: Option<Duration>) -> Result<bool> {
        let Some(member) = self.member() else { return Ok(false) };
        if self.read_only {
            return Err(Error::Busy(format!("{} may only be read by this process", self.path.display())));
        }
        let taken = member.take(firm, deadline, kept)?;
        if member.should_hold_pending() {
            // The process that held PENDING may have left or died (rule StockKeptOut).
            self.hold_pending();
        }
        match taken {
            Taken::Again | Taken::Anew if member.words.is_replaced() => {
                member.leave(true, false);
                self.check_replaced(&member)?;
            }
            Taken::Again => return Ok(true),
            // A lease can be lost at any time: nothing that concerns others may happen under it.
            Taken::Anew if !firm => return Ok(true),
            Taken::Not => {
                return Err(Error::Busy("another process is writing the database through onewrite".into()));
            }
            Taken::Anew | Taken::FromDead(_) => {}
        }
        let mut writer = self.writer.lock();
        let mut inner = self.inner.lock();
        let done = match writer.as_mut() {
            None => Err(Error::Misuse("a turn to write without a log".into())),
            Some(live) => match taken {
                Taken::FromDead(_) => take_over(self, &member, live, &mut inner),
                _ => resume(self, &member, live, &mut inner),
            },
        };
        let layered = self.table.read().has_layer();
        drop(inner);
        match (done, taken) {
            (Ok(()), _) => {
                member.settle()?;
                if layered && let Some(live) = writer.as_mut() {
                    // A big transaction goes home that a process left, dead or without room.
                    // Without room again, the next one tries.
                    match checkpoint(self, live, Stream::Drop) {
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
            (Err(e), Taken::FromDead(process)) => {
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

    /// Ends a firm [`Database::enter`]. Once all that was published is written, the place goes on:
    /// to the next waiter if `pass_on`, or if this process has had its slice.
    pub fn leave(&self, pass_on: bool) {
        let inner = self.inner.lock();
        let Some(member) = &inner.member else { return };
        // Read while no connection publishes: the last of several that leave must see the others'
        // writes.
        member.leave(inner.published.tid <= member.words.written(), pass_on);
    }

    /// Waits until `deadline` while a dead process's transaction is undecided: a program started
    /// afterwards must not see it appear later.
    pub fn decide(&self, deadline: Instant) -> Result<()> {
        let Some(member) = self.member() else { return Ok(()) };
        self.end_turn_of_dead(&member, deadline)?;
        match self.wait_flushed(&member, member.words.written(), Durability::Written, Some(deadline)) {
            Err(Error::Busy(_)) => Ok(()),
            waited => waited,
        }
    }

    /// Takes over from a process that died in its turn, until `deadline`.
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

    /// Makes this process the only one, so that others cannot attach until `member.not_alone()`.
    /// `Busy` if there are others.
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

    /// Whether this process, about to leave, is the last one and may write. Then no other can
    /// attach until it has left, and dead processes' work is taken over. `Busy` if another attaches
    /// or leaves for longer than `wait`.
    pub fn is_last(&self, wait: Duration) -> Result<bool> {
        let Some(member) = self.member() else { return Ok(true) };
        if member.observes {
            return Ok(false);
        }
        member::admin(&member.log, wait)?;
        if self.read_only || !member.is_alone()? {
            return Ok(false);
        }
        // With another log, another process is the last; one still attached to this log keeps home
        // locked.
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
        // Entering adopted a dead process's records.
        if is_ahead_of_store() {
            self.leave(false);
            return Ok(false);
        }
        Ok(true)
    }
}

fn resume(db: &Database, member: &Member, live: &mut Live, inner: &mut Inner) -> Result<()> {
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
        // Room asked for is given back by the process that writes home.
        live.home.reserved_bytes = live.home.bytes;
    }
    live.home_tid = tail.slot.base_tid;
    Ok(())
}

/// The place was given back when everything published was written (rule OneWriter): pending records
/// would be lost now.
fn check_nothing_pending(live: &Live, inner: &mut Inner) -> Result<()> {
    if !live.log.group().has_pending() {
        return Ok(());
    }
    let path = &live.log.file().path;
    Err(inner.poison(Error::Corrupt(format!("another process wrote to {} before this one was done", path.display()))))
}

/// The writer's state after a process died while it wrote: whole records in the log are adopted and
/// made durable, for an application may know of them.
fn take_over(db: &Database, member: &Member, live: &mut Live, inner: &mut Inner) -> Result<()> {
    check_nothing_pending(live, inner)?;
    let words = &member.words;
    let (session, generation) = (live.home.mark.session, words.generation());
    let slots = member.log.slots()?;
    let newest = slots.iter().find(|s| s.session == session && s.live);
    if let Some(slot) = newest.filter(|s| s.sequence > generation) {
        // Home was flushed before the slot was written; the slot perhaps not.
        let at = slot.position();
        let path = &member.log.path;
        member.log.file.write_durable_at(&slot.encode(), at).context(|| format!("cannot write {}", path.display()))?;
        words.set_generation(slot.sequence);
    }
    follow::catch_up(db, member, inner, Reach::Written)?;
    let mut tail = member.tail.lock();
    let mut buf = Vec::new();
    let before = inner.published.tid;
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
            // Nothing follows streamed images before they are home.
            Ok(Some((end, state, record.head.stream.count > 0)))
        })?;
        let Some((end, state, is_last)) = next.flatten() else { break };
        newest = Arc::new(state);
        cursor = end;
        if is_last {
            break;
        }
    }
    // Erases a partial or cancelled record: a shorter one in its place must not be followed by the
    // rest (rule PreparedThenDecided), and the last close overwrites the ring only as far as
    // records reached.
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
