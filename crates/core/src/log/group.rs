//! Group commit: transactions that are published wait together, and one of them flushes for all.
//!
//! ```text
//!  push      under the lock that publishes: the record joins the buffer, its state is hidden from readers
//!  wait      whoever finds nobody leading leads: takes the buffer, writes it with one call, shows the newest
//!            state it made certain to the readers, wakes those it was for
//! ```
//!
//! A leader that writes at once writes alone, and the others wait for it before they write together. So those
//! who commit again and again are waited for: whoever publishes leaves the write to one who comes after it, until
//! there are as many as the last time, or as many as publish while one write takes. Nobody waits so for longer than half
//! a write. And where somebody has the writer's place when a write ends, the next one is left to who publishes then: that
//! one runs, and those that wait would have to wake up first (`docs/sharing.md`). Should nobody come, the first of those that wait
//! wakes up by itself, and later the next: if all did at once, each would once more for each of its commits, while others need the
//! processors. If no other did, all would wait for that one, which may have to wait for a processor.
//!
//! The buffer begins with the tail block, so that a write is whole blocks. One leader writes at a time, in the
//! order of the log: what is acknowledged is always a prefix of it without a gap (invariant I1), and nothing is
//! shown to readers before (I4, rule SeenWhenDurable). How far each is, and what must hold: [`Frontier`].

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::error::{Error, IoContext, Result};
use crate::base::memory::Room;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::disk::sync::{Event, Mutex, MutexGuard};
use crate::disk::{DiskFile, FileSeal};
use crate::log::frontier::{Frontier, Memory};
use crate::sqlite_format::home::State;

/// A write that takes longer than this is out of the ordinary: nobody waits for others so long.
const USUAL_MAX: Duration = Duration::from_millis(4);
/// Those that wait for one to lead wake up by themselves so long one after the other.
const APART: Duration = Duration::from_micros(500);
/// Memory of the buffer kept for the next group.
const BUFFER_BYTES: usize = 256 << 10;

/// How durable a transaction must be when its commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On the medium.
    Flushed,
    /// With the operating system; a later flush makes it durable, in order.
    Written,
}

/// Who is told what became of published transactions.
pub trait Audience {
    /// A flush covers everything up to `tid`; called before [`Audience::show`].
    fn flushed(&self, tid: Tid) {
        let _ = tid;
    }
    /// Readers may see `state`: as durable as its transaction and all before it asked for.
    fn show(&self, state: Arc<State>);
    /// Whether somebody has the writer's place, or waits for it, and will probably publish before long.
    fn is_to_publish(&self) -> bool {
        false
    }
    /// A write or flush failed: nothing that is hidden may be shown any more.
    fn poison(&self, error: Error) -> Error;
}

/// One that waits while another leads, or for others to join.
struct FlushWaiter {
    tid: Tid,
    durability: Durability,
    event: Arc<Event>,
    /// Must not wait for others to join.
    urgent: bool,
}

/// A home whose mark was written, and the seal of the log.
type Marked = (Arc<dyn DiskFile>, FileSeal);

struct Pending {
    /// Bytes of the log from the beginning of the tail block on.
    bytes: Vec<u8>,
    /// How many of them were taken by a leader before: the tail block's.
    taken: usize,
    /// Where they go in the file.
    position: u64,
    /// A buffer to go on with while a leader writes the other; at least a block long once something was reserved.
    spare: Vec<u8>,
    /// Room for the record that is about to be pushed, should a leader take `bytes` before it is: there is something to take.
    ready: Vec<u8>,
    /// How far it is.
    frontier: Frontier<Memory>,
    /// Something beside the records of those that wait was written, and no flush has covered it.
    beside: bool,
    /// The mark was written and not flushed: the first flush of a record is one of home, and takes along what is in the log.
    marked: Option<Marked>,
    /// A leader is writing.
    busy: bool,
    /// A write or flush failed.
    failed: Option<String>,
    /// The state published last, while no leader has it to show.
    newest: Option<Arc<State>>,
    waiting: Vec<FlushWaiter>,
    /// What the last write that began covers, and whether it flushes.
    begun: (Tid, bool),
    /// How many of those that joined since wake up before long, should nobody lead.
    naps: u32,
    /// Transactions that no write was begun for.
    joined: usize,
    /// As many will probably join before long.
    expected: usize,
    /// How long a write usually takes.
    usual: Duration,
    /// How long it usually takes from one that is published to the next.
    turn: Duration,
}

impl Pending {
    /// Takes what no leader took before, as whole blocks, and leaves a copy of the block that the next record
    /// may share. `None` if there is nothing.
    fn take(&mut self, block: usize) -> Option<(Vec<u8>, u64)> {
        let used = self.bytes.len();
        if used == self.taken {
            return None;
        }
        let mut taken = std::mem::replace(&mut self.bytes, std::mem::take(&mut self.spare));
        let whole = used - used % block;
        self.bytes.clear();
        self.bytes.extend_from_slice(taken.get(whole..).unwrap_or_default());
        self.taken = self.bytes.len();
        let position = self.position;
        self.position += whole as u64;
        taken.resize(used.next_multiple_of(block), 0);
        Some((taken, position))
    }

    /// Takes the buffer of a leader back. Where nothing was added meanwhile, and what was written would not fit the other, it is this one
    /// that goes on, so that the other need not grow: a database that one connection writes has one of the size of its transactions,
    /// and one block.
    fn give_back(&mut self, mut buffer: Vec<u8>, block: usize) {
        let written = buffer.len();
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES);
        if self.bytes.len() == self.taken && self.bytes.capacity() < (written + 2 * block).min(buffer.capacity()) {
            buffer.extend_from_slice(&self.bytes);
            std::mem::swap(&mut self.bytes, &mut buffer);
            self.bytes.shrink_to(written + 2 * block);
            buffer.clear();
        }
        self.spare = buffer;
    }

    /// Adds bytes, of which `room` was reserved.
    fn add(&mut self, bytes: &[u8], room: usize) {
        let needs = self.bytes.len() + room;
        if self.bytes.capacity() < needs && self.ready.capacity() >= needs {
            // A leader has taken the buffer that had it.
            self.ready.extend_from_slice(&self.bytes);
            std::mem::swap(&mut self.bytes, &mut self.ready);
            self.ready.clear();
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn check(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |why| Err(Error::Poisoned(why.clone())))
    }

    fn reached(&self, tid: Tid, durability: Durability) -> bool {
        self.frontier.reached(tid, durability == Durability::Flushed)
    }

    /// Whether it pays to wait for more to join.
    fn expects_more(&self) -> bool {
        self.joined < self.expected
            && self.turn.saturating_mul(u32::try_from(self.joined + 1).unwrap_or(1)) < self.usual
    }

    /// How long one that begins to wait sleeps at most, before it leads if nobody does.
    fn nap(&mut self, tid: Tid, durability: Durability) -> Duration {
        // Whoever writes may leave the next write to one who comes, and nobody comes.
        let nap = if self.busy { self.usual + self.usual / 2 } else { self.usual / 2 };
        let (covered, flushes) = self.begun;
        let is_under_way = self.busy && tid <= covered && (flushes || durability == Durability::Written);
        if is_under_way {
            return nap + USUAL_MAX;
        }
        self.naps += 1;
        nap + APART.saturating_mul(self.naps - 1).min(USUAL_MAX)
    }

    /// Ends a write: those it was for, and one who goes on if others wait, are to be told. `is_to_publish`: so
    /// does somebody who comes.
    fn end_write(&mut self, is_to_publish: bool) -> Vec<FlushWaiter> {
        let comes = (is_to_publish && self.turn < self.usual / 2) || self.expects_more();
        self.busy = false;
        let waiting = std::mem::take(&mut self.waiting);
        let (mut told, mut left): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|w| self.failed.is_some() || self.reached(w.tid, w.durability));
        if !left.is_empty() && (!comes || left.iter().any(|w| w.urgent)) {
            told.insert(0, left.remove(0));
        }
        self.waiting = left;
        told
    }
}

/// The end of the log that is not on the medium yet, shared by those who wait for it.
pub struct Group {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    block: usize,
    pending: Mutex<Pending>,
}

impl Group {
    /// Nothing pending: the next record goes to `position` of `file`, a block's beginning, and `tid` is the
    /// newest transaction, durable.
    pub fn new(file: Arc<dyn DiskFile>, path: PathBuf, block: usize, position: u64, tid: Tid) -> Group {
        let pending = Pending {
            bytes: Vec::new(),
            taken: 0,
            position,
            spare: Vec::new(),
            ready: Vec::new(),
            frontier: Frontier::at(tid),
            beside: false,
            marked: None,
            busy: false,
            failed: None,
            newest: None,
            waiting: Vec::new(),
            begun: (tid, false),
            naps: 0,
            joined: 0,
            expected: 0,
            usual: Duration::ZERO,
            turn: Duration::ZERO,
        };
        Group { file, path, block, pending: Mutex::new(pending) }
    }

    /// Newest transaction known to be on the medium.
    pub fn durable(&self) -> Tid {
        self.pending.lock().frontier.flushed()
    }

    /// Newest transaction whose record is known to be on the medium. One that has none proves nothing of the log.
    pub fn recorded(&self) -> Tid {
        self.pending.lock().frontier.recorded()
    }

    /// Whether every transaction is on the medium and readers may see it.
    pub fn is_quiet(&self) -> bool {
        let p = self.pending.lock();
        p.frontier.reached(p.frontier.published(), true)
    }

    /// Whether a record waits to be written.
    pub fn has_pending(&self) -> bool {
        let p = self.pending.lock();
        p.frontier.has_hidden() || p.bytes.len() != p.taken
    }

    /// Whether the tail block is to be written with a record that no leader has taken yet.
    pub fn is_filling(&self) -> bool {
        let p = self.pending.lock();
        p.bytes.len() != p.taken
    }

    /// Takes the memory for a record of `len` bytes and its write, whatever leaders take until it is pushed: what is
    /// published must be written (rule TableAndStateAtOnce).
    pub fn reserve(&self, len: usize, own_block: bool) -> Result<()> {
        let mut p = self.pending.lock();
        let room = self.room_for(len, own_block);
        p.bytes.room(room)?;
        if p.bytes.len() != p.taken {
            p.ready.room(self.block + room)?;
        }
        // A leader has it, and brings it back.
        if p.busy { Ok(()) } else { p.spare.room(self.block) }
    }

    /// With the rest of the block before, if it is not to be shared, and of its last one.
    fn room_for(&self, len: usize, own_block: bool) -> usize {
        len + self.block + if own_block { self.block } else { 0 }
    }

    /// Adds a record, behind the one before, or in the next block if `own_block`. The caller publishes `state`
    /// under the same lock, so nobody waits for it yet.
    pub fn push(&self, record: &[u8], own_block: bool, state: &Arc<State>, durability: Durability) {
        let mut p = self.pending.lock();
        if own_block && p.bytes.len() == p.taken {
            // The block before is not written again.
            p.position += p.bytes.len().next_multiple_of(self.block) as u64;
            p.bytes.clear();
            p.taken = 0;
        } else if own_block {
            let end = p.bytes.len().next_multiple_of(self.block);
            p.bytes.resize(end, 0);
        }
        p.add(record, self.room_for(record.len(), own_block));
        p.publish(state, durability);
    }

    /// Adds a record that the caller has written at the place, which `move_to` gave, without a flush. `tail`:
    /// its bytes in its last block, which is at `position`, if it did not fill that one.
    pub fn push_written(&self, tail: &[u8], position: u64, state: &Arc<State>, durability: Durability) {
        let mut p = self.pending.lock();
        p.set_tail(tail, self.block, position);
        p.beside = true;
        p.publish(state, durability);
    }

    /// The same for a record that was written with [`Group::write_prepared`]; `durable`: with a flush.
    pub fn push_prepared(&self, tail: &[u8], position: u64, state: &Arc<State>, durable: bool) {
        let mut p = self.pending.lock();
        p.set_tail(tail, self.block, position);
        p.beside |= !durable;
        p.publish(state, if durable { Durability::Flushed } else { Durability::Written });
        if durable {
            p.frontier.record_flushed();
        }
    }

    /// With everything written: writes whole blocks that hold a record which does not count yet, and flushes them and what
    /// is before them if `flush` says so. Nobody else is told, except of a failure, which poisons.
    pub fn write_prepared(&self, bytes: Vec<u8>, position: u64, flush: bool, audience: &dyn Audience) -> Result<()> {
        let (sync, marked) = {
            let mut p = self.pending.lock();
            p.check()?;
            (flush && (p.beside || p.frontier.is_ahead_of_medium() || p.marked.is_some()), p.marked.take_if(|_| flush))
        };
        if let Err(e) = self.write(Some(&(bytes, position)), flush, sync, marked) {
            let e = audience.poison(e);
            self.fail(&e, |p| std::mem::take(&mut p.waiting));
            return Err(e);
        }
        // Only who has the writer's place writes beside the records, and that is the caller.
        self.pending.lock().beside &= !sync;
        Ok(())
    }

    /// A write or flush has failed, or never ended: those whom `told` gives go on with an error.
    fn fail(&self, why: &dyn std::fmt::Display, told: impl FnOnce(&mut Pending) -> Vec<FlushWaiter>) {
        let mut p = self.pending.lock();
        p.failed = keeps(Case::Poisons).then(|| why.to_string());
        let told = told(&mut p);
        drop(p);
        told.iter().for_each(|w| w.event.set());
    }

    /// With everything written: puts the bytes of the tail block into `part`; where it is.
    pub fn tail_block(&self, part: &mut Vec<u8>) -> u64 {
        let p = self.pending.lock();
        debug_assert!(p.bytes.len() == p.taken, "a record is being waited for");
        part.clear();
        part.extend_from_slice(&p.bytes);
        p.position
    }

    /// With everything written: the next record goes to `position`, a block's beginning.
    pub fn move_to(&self, position: u64) {
        let mut p = self.pending.lock();
        debug_assert!(p.bytes.len() == p.taken, "a record is being waited for");
        p.bytes.clear();
        p.taken = 0;
        p.position = position;
    }

    /// Goes on behind what other processes wrote: `tail` is the beginning of the tail block, at `position`; all up to
    /// `tid` is written, and up to `durable` on the medium.
    pub fn resume(&self, tail: &[u8], position: u64, tid: Tid, durable: Tid) {
        let mut p = self.pending.lock();
        debug_assert!(!p.frontier.has_hidden() && !p.busy, "nothing of this process is pending");
        p.bytes.clear();
        p.bytes.extend_from_slice(tail);
        p.taken = tail.len();
        p.position = position;
        p.frontier = Frontier::behind(tid, durable);
        p.beside = false;
    }

    /// Somebody else's flush covers everything up to `tid`.
    pub fn flushed_elsewhere(&self, tid: Tid) {
        self.pending.lock().frontier.flushed_elsewhere(tid);
    }

    /// A transaction became durable and visible without a record.
    pub fn skip(&self, tid: Tid) {
        self.pending.lock().frontier = Frontier::at(tid);
    }

    /// With everything durable and shown: so is `tid`, which went in place and has no record.
    pub fn pass(&self, tid: Tid) {
        let mut p = self.pending.lock();
        debug_assert!(!p.busy, "something is in flight");
        p.frontier.pass(tid);
    }

    /// The caller has written to the log beside the records: the next flush covers all of the file.
    pub fn written_beside(&self) {
        self.pending.lock().beside = true;
    }

    /// The mark of `home` was written and not flushed: the first flush of a record is one of home, which takes along what is in the log, if that
    /// has its `seal` still (rule MarkWithFirstRecord).
    pub fn mark_written(&self, home: Arc<dyn DiskFile>, seal: FileSeal) {
        self.pending.lock().marked = Some((home, seal));
    }

    /// The mark was flushed by itself.
    pub fn mark_flushed(&self) {
        self.pending.lock().marked = None;
    }

    /// Whether the first flush of a record is yet to take the mark along.
    pub fn is_mark_written(&self) -> bool {
        self.pending.lock().marked.is_some()
    }

    /// Everything pushed so far is written and shown, and flushed where its commit waits for that.
    pub fn hand_over(&self, audience: &dyn Audience) -> Result<()> {
        let last = self.pending.lock().frontier.published();
        self.wait(last, Durability::Written, audience)
    }

    /// Everything pushed so far is on the medium and shown.
    pub fn flush(&self, audience: &dyn Audience) -> Result<()> {
        let last = self.pending.lock().frontier.published();
        self.wait(last, Durability::Flushed, audience)
    }

    /// Waits until readers see `tid`, and it is on the medium if `durability` says so. Leads if nobody does.
    pub fn wait(&self, tid: Tid, durability: Durability, audience: &dyn Audience) -> Result<()> {
        self.wait_for(self.pending.lock(), tid, durability, true, audience)
    }

    /// The same for a transaction that others may join before it is written: the writer's place is free, and `turn` is
    /// how long one usually has it.
    pub fn wait_for_others(
        &self,
        tid: Tid,
        durability: Durability,
        turn: Duration,
        audience: &dyn Audience,
    ) -> Result<()> {
        let mut p = self.pending.lock();
        p.turn = turn;
        self.wait_for(p, tid, durability, false, audience)
    }

    fn wait_for<'a>(
        &'a self,
        mut p: MutexGuard<'a, Pending>,
        tid: Tid,
        durability: Durability,
        mut urgent: bool,
        audience: &dyn Audience,
    ) -> Result<()> {
        loop {
            if p.reached(tid, durability) {
                return Ok(());
            }
            p.check()?;
            if !p.busy && (urgent || !p.expects_more()) {
                p = self.lead(p, durability, audience)?;
                continue;
            }
            let event = Arc::new(Event::new());
            let nap = (!urgent).then(|| p.nap(tid, durability));
            p.waiting.push(FlushWaiter { tid, durability, event: event.clone(), urgent });
            drop(p);
            let is_told = match nap {
                Some(nap) => event.nap(nap),
                None => {
                    event.wait();
                    true
                }
            };
            p = self.pending.lock();
            if !is_told {
                p.waiting.retain(|w| !Arc::ptr_eq(&w.event, &event));
            }
            urgent = true;
        }
    }

    /// Writes what is pending with one call, and flushes if `durability` or somebody else wants it.
    fn lead<'a>(
        &'a self,
        mut p: MutexGuard<'a, Pending>,
        durability: Durability,
        audience: &dyn Audience,
    ) -> Result<MutexGuard<'a, Pending>> {
        p.busy = true;
        let target = p.frontier.published();
        let newest = p.newest.take();
        debug_assert!(newest.as_ref().is_none_or(|state| state.tid == target), "the last one published is the newest");
        let led = std::mem::take(&mut p.joined);
        // How long it takes matters to those who wait for it, or with it.
        let begun = (led > 1 || !p.waiting.is_empty() || p.usual.is_zero()).then(Instant::now);
        let flush = durability == Durability::Flushed || p.frontier.wants_flush();
        (p.begun, p.naps) = ((target, flush), 0);
        let bytes = p.take(self.block);
        let sync = flush && (p.beside || p.frontier.is_ahead_of_medium() || bytes.is_none() || p.marked.is_some());
        // Before the flush and not after: what is written beside the log meanwhile may not be part of it (rule
        // SeenWhenDurable).
        p.beside &= !flush;
        let marked = p.marked.take_if(|_| flush);
        drop(p);
        let mut watch = LeaderGuard { group: self, finished: false };
        if let Err(e) = self.write(bytes.as_ref(), flush, sync, marked) {
            let e = audience.poison(e);
            watch.fail(&e);
            return Err(e);
        }
        let took = begun.map(|begun| begun.elapsed().min(USUAL_MAX));
        let is_to_publish = audience.is_to_publish();
        let mut p = self.pending.lock();
        if let Some((buffer, _)) = bytes {
            p.give_back(buffer, self.block);
        }
        if flush || newest.is_some() {
            drop(p);
            if flush {
                audience.flushed(target);
            }
            if let Some(state) = newest {
                audience.show(state);
            }
            p = self.pending.lock();
        }
        p.frontier.end_write(target, flush);
        // Those it was for will be back, perhaps, and those that have joined meanwhile are here.
        p.expected = led + p.joined;
        if let Some(took) = took {
            p.usual = (p.usual * 7 + took) / 8;
        }
        watch.finished = true;
        let told = p.end_write(is_to_publish);
        if told.is_empty() {
            return Ok(p);
        }
        drop(p);
        told.iter().for_each(|w| w.event.set());
        Ok(self.pending.lock())
    }

    fn write(&self, bytes: Option<&(Vec<u8>, u64)>, flush: bool, sync: bool, marked: Option<Marked>) -> Result<()> {
        let what = |verb| format!("cannot {verb} the log {}", self.path.display());
        match bytes {
            Some((bytes, position)) if flush && !sync => {
                self.file.write_durable_at(bytes, *position).context(|| what("write to"))?;
            }
            Some((bytes, position)) => self.file.write_at(bytes, *position).context(|| what("write to"))?,
            None => {}
        }
        if let Some((home, seal)) = marked.filter(|_| keeps(Case::MarkWithFirstRecord)) {
            let home_failed =
                |error| Error::Io { what: format!("cannot flush the database of {}", self.path.display()), error };
            if !keeps(Case::LogSealed) || self.file.has_seal(seal).context(|| what("look at"))? {
                // The first block has what is durable already, and what a start of the system makes worthless.
                let from = self.block as u64;
                self.file.finish_write_back(from).map_err(|error| Error::Io { what: what("flush"), error })?;
                return home.sync().map_err(home_failed);
            }
            home.sync().map_err(home_failed)?;
        }
        if sync {
            // Any error is a failed flush, also one that says the disk is full.
            self.file.sync().map_err(|error| Error::Io { what: what("flush"), error })?;
        }
        Ok(())
    }
}

impl Pending {
    /// With everything written: the tail block, at `position`, begins with `tail`.
    fn set_tail(&mut self, tail: &[u8], block: usize, position: u64) {
        self.bytes.clear();
        self.add(tail, block);
        self.taken = tail.len();
        self.position = position;
    }

    fn publish(&mut self, state: &Arc<State>, durability: Durability) {
        self.frontier.publish(state.tid, durability == Durability::Flushed);
        self.newest = Some(state.clone());
        self.joined += 1;
    }
}

/// Lets those who wait go on with an error if the leader fails, or panics.
struct LeaderGuard<'a> {
    group: &'a Group,
    finished: bool,
}

impl LeaderGuard<'_> {
    fn fail(&mut self, why: &dyn std::fmt::Display) {
        self.finished = true;
        self.group.fail(why, |p| p.end_write(false));
    }
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.fail(&"an earlier call failed inside onewrite");
        }
    }
}
