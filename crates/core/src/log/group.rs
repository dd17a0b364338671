//! Group commit: published transactions wait together, and one of them flushes for all.
//!
//! ```text
//!  push   under the publishing lock: the record joins the buffer, its state is hidden from readers
//!  wait   if no thread leads, this one does: it takes the buffer, writes it with one call, shows
//!         readers the newest certain state, and wakes the threads that waited for it
//! ```
//!
//! A leader that wrote at once would write alone, so a committer leaves the write to a later one,
//! at most half a write long (`docs/sharing.md`). Waiters wake one after the other in case none
//! comes: all at once would compete for processors.
//!
//! The buffer begins with the tail block, so a write is whole blocks. One leader writes at a time,
//! in the order of the log: acknowledged transactions are a prefix without a gap (invariant I1),
//! and readers see none before (I4, rule SeenWhenDurable).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Instant;
use crate::base::error::{Error, IoContext, Result};
use crate::base::memory::Room;
use crate::base::rules::{Case, keeps};
use crate::base::types::Tid;
use crate::disk::sync::{Event, Mutex, MutexGuard};
use crate::disk::{DiskFile, FileSeal};
use crate::log::frontier::{Frontier, Memory};
use crate::sqlite_format::home::State;

/// Longer writes are unusual: no thread waits so long for others.
const USUAL_MAX: Duration = Duration::from_millis(4);
const APART: Duration = Duration::from_micros(500);
/// Largest buffer kept for the next group.
const BUFFER_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    Flushed,
    Written,
}

pub trait Audience {
    /// Called before [`Audience::show`].
    fn flushed(&self, tid: Tid) {
        let _ = tid;
    }
    /// `state` is as durable as all commits up to it asked.
    fn show(&self, state: Arc<State>);
    /// Whether a thread has the writer's place or waits for it, and will probably publish soon.
    fn is_to_publish(&self) -> bool {
        false
    }
    /// No hidden state may be shown any more.
    fn poison(&self, error: Error) -> Error;
}

struct FlushWaiter {
    tid: Tid,
    durability: Durability,
    event: Arc<Event>,
    /// Must not wait for others to join.
    urgent: bool,
}

type Marked = (Arc<dyn DiskFile>, FileSeal);

struct Pending {
    bytes: Vec<u8>,
    /// The tail block's bytes that an earlier leader took.
    taken: usize,
    position: u64,
    /// Used while a leader writes the other; at least a block once memory was reserved.
    spare: Vec<u8>,
    /// Room for the next record if a leader takes `bytes` first.
    ready: Vec<u8>,
    frontier: Frontier<Memory>,
    /// Bytes written beside the records are not flushed.
    beside: bool,
    /// The mark, until it is flushed: the first record's flush is one of home, and covers both.
    marked: Option<Marked>,
    busy: bool,
    failed: Option<String>,
    newest: Option<Arc<State>>,
    waiting: Vec<FlushWaiter>,
    /// The TID that the last begun write covers, and whether it flushes.
    begun: (Tid, bool),
    /// Of the joined, those that wake soon by themselves.
    naps: u32,
    joined: usize,
    /// Likely to join soon.
    expected: usize,
    usual: Duration,
    /// From one publication to the next.
    turn: Duration,
}

impl Pending {
    /// The copy is of the block that the next record may share.
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

    /// A buffer without new bytes, whose content would not fit the other, replaces that one: a
    /// database with one writer has one large buffer and one of a block.
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

    fn add(&mut self, bytes: &[u8], room: usize) {
        let needs = self.bytes.len() + room;
        if self.bytes.capacity() < needs && self.ready.capacity() >= needs {
            // A leader has taken the buffer with that room.
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

    fn expects_more(&self) -> bool {
        self.joined < self.expected
            && self.turn.saturating_mul(u32::try_from(self.joined + 1).unwrap_or(1)) < self.usual
    }

    fn nap(&mut self, tid: Tid, durability: Durability) -> Duration {
        // A thread that was to lead may have left the write to one that never comes.
        let nap = if self.busy { self.usual + self.usual / 2 } else { self.usual / 2 };
        let (covered, flushes) = self.begun;
        let is_under_way = self.busy && tid <= covered && (flushes || durability == Durability::Written);
        if is_under_way {
            return nap + USUAL_MAX;
        }
        self.naps += 1;
        nap + APART.saturating_mul(self.naps - 1).min(USUAL_MAX)
    }

    /// Returns waiters to wake: those covered, and one to lead if it is urgent or no committer is
    /// likely to come.
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

/// The end of the log that is not durable yet.
pub struct Group {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    block: usize,
    pending: Mutex<Pending>,
}

impl Group {
    /// All up to `tid` is durable. The next record goes to `position`, a block's start.
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

    pub fn durable(&self) -> Tid {
        self.pending.lock().frontier.flushed()
    }

    /// One without a record proves nothing of the log.
    pub fn recorded(&self) -> Tid {
        self.pending.lock().frontier.recorded()
    }

    pub fn is_quiet(&self) -> bool {
        let p = self.pending.lock();
        p.frontier.reached(p.frontier.published(), true)
    }

    pub fn has_pending(&self) -> bool {
        let p = self.pending.lock();
        p.frontier.has_hidden() || p.bytes.len() != p.taken
    }

    pub fn is_filling(&self) -> bool {
        let p = self.pending.lock();
        p.bytes.len() != p.taken
    }

    /// Takes the memory for a record and its write, whatever leaders take first: a published record
    /// must be written (rule TableAndStateAtOnce).
    pub fn reserve(&self, len: usize, own_block: bool) -> Result<()> {
        let mut p = self.pending.lock();
        let room = self.room_for(len, own_block);
        p.bytes.room(room)?;
        if p.bytes.len() != p.taken {
            p.ready.room(self.block + room)?;
        }
        if p.busy { Ok(()) } else { p.spare.room(self.block) }
    }

    /// The rest of the last block counts, and that of an unshared one before.
    fn room_for(&self, len: usize, own_block: bool) -> usize {
        len + self.block + if own_block { self.block } else { 0 }
    }

    /// The caller publishes `state` under the same lock, so no thread waits for it yet.
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

    /// The record is at the place from `move_to`, not flushed. `tail`: its part of an unfilled
    /// block.
    pub fn push_written(&self, tail: &[u8], position: u64, state: &Arc<State>, durability: Durability) {
        let mut p = self.pending.lock();
        p.set_tail(tail, self.block, position);
        p.beside = true;
        p.publish(state, durability);
    }

    pub fn push_prepared(&self, tail: &[u8], position: u64, state: &Arc<State>, durable: bool) {
        let mut p = self.pending.lock();
        p.set_tail(tail, self.block, position);
        p.beside |= !durable;
        p.publish(state, if durable { Durability::Flushed } else { Durability::Written });
        if durable {
            p.frontier.record_flushed();
        }
    }

    /// The record does not count yet; `flush` covers it and all before. Only a failure is told, and
    /// poisons.
    pub fn write_prepared(&self, bytes: Vec<u8>, position: u64, flush: bool, audience: &dyn Audience) -> Result<()> {
        let (sync, marked) = {
            let p = self.pending.lock();
            p.check()?;
            let marked = p.marked.clone().filter(|_| flush);
            (flush && (p.beside || p.frontier.is_ahead_of_medium() || marked.is_some()), marked)
        };
        if let Err(e) = self.write(Some(&(bytes, position)), flush, sync, marked) {
            let e = audience.poison(e);
            self.fail(&e, |p| std::mem::take(&mut p.waiting));
            return Err(e);
        }
        let mut p = self.pending.lock();
        // Only the holder of the writer's place, which the caller is, writes beside the records.
        p.beside &= !sync;
        p.marked.take_if(|_| flush);
        Ok(())
    }

    fn fail(&self, why: &dyn std::fmt::Display, told: impl FnOnce(&mut Pending) -> Vec<FlushWaiter>) {
        let mut p = self.pending.lock();
        p.failed = keeps(Case::Poisons).then(|| why.to_string());
        let told = told(&mut p);
        drop(p);
        told.iter().for_each(|w| w.event.set());
    }

    /// Everything is written.
    pub fn tail_block(&self, part: &mut Vec<u8>) -> u64 {
        let p = self.pending.lock();
        debug_assert!(p.bytes.len() == p.taken, "a record is being waited for");
        part.clear();
        part.extend_from_slice(&p.bytes);
        p.position
    }

    /// Where the next record goes, in bytes of the file, if it goes behind the last one.
    pub fn end(&self) -> u64 {
        let p = self.pending.lock();
        p.position + p.bytes.len() as u64
    }

    /// Everything is written. `position` is a block's start.
    pub fn move_to(&self, position: u64) {
        let mut p = self.pending.lock();
        debug_assert!(p.bytes.len() == p.taken, "a record is being waited for");
        p.bytes.clear();
        p.taken = 0;
        p.position = position;
    }

    /// Continues behind other processes' records. The block of `tail` is at `position`.
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

    pub fn flushed_elsewhere(&self, tid: Tid) {
        self.pending.lock().frontier.flushed_elsewhere(tid);
    }

    /// The next flush must cover the whole file.
    pub fn written_beside(&self) {
        self.pending.lock().beside = true;
    }

    /// The log has its `seal` now (rule MarkWithFirstRecord).
    pub fn mark_written(&self, home: Arc<dyn DiskFile>, seal: FileSeal) {
        self.pending.lock().marked = Some((home, seal));
    }

    pub fn mark_flushed(&self) {
        self.pending.lock().marked = None;
    }

    pub fn is_mark_written(&self) -> bool {
        self.pending.lock().marked.is_some()
    }

    pub fn hand_over(&self, audience: &dyn Audience) -> Result<()> {
        let last = self.pending.lock().frontier.published();
        self.wait(last, Durability::Written, audience)
    }

    pub fn flush(&self, audience: &dyn Audience) -> Result<()> {
        let last = self.pending.lock().frontier.published();
        self.wait(last, Durability::Flushed, audience)
    }

    /// Leads if no thread does.
    pub fn wait(&self, tid: Tid, durability: Durability, audience: &dyn Audience) -> Result<()> {
        self.wait_for(self.pending.lock(), tid, durability, true, audience)
    }

    /// Others may join first: the writer's place is free. `turn`: its usual holding time.
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
        // Measured only if other threads wait.
        let begun = (led > 1 || !p.waiting.is_empty() || p.usual.is_zero()).then(Instant::now);
        let flush = durability == Durability::Flushed || p.frontier.wants_flush();
        (p.begun, p.naps) = ((target, flush), 0);
        let bytes = p.take(self.block);
        let sync = flush && (p.beside || p.frontier.is_ahead_of_medium() || bytes.is_none() || p.marked.is_some());
        // Before the flush: it may miss bytes written meanwhile (rule SeenWhenDurable).
        p.beside &= !flush;
        let marked = p.marked.clone().filter(|_| flush);
        drop(p);
        let mut watch = LeaderGuard { group: self, finished: false };
        if let Err(e) = self.write(bytes.as_ref(), flush, sync, marked) {
            let e = audience.poison(e);
            watch.fail(&e);
            return Err(e);
        }
        let took = begun.map(|begun| begun.elapsed().min(USUAL_MAX));
        let is_to_publish = audience.is_to_publish();
        if flush {
            audience.flushed(target);
        }
        if let Some(state) = newest {
            audience.show(state);
        }
        let mut p = self.pending.lock();
        if let Some((buffer, _)) = bytes {
            p.give_back(buffer, self.block);
        }
        p.frontier.end_write(target, flush);
        p.marked.take_if(|_| flush);
        // Committers that were covered may return; others have joined.
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
                // Its first block is durable, and worthless after a start of the system.
                let from = self.block as u64;
                self.file.finish_write_back(from).map_err(|error| Error::Io { what: what("flush"), error })?;
                return home.sync().map_err(home_failed);
            }
            home.sync().map_err(home_failed)?;
        }
        if sync {
            // Also one that says the disk is full.
            let flushed = self.file.sync_from(self.block as u64);
            flushed.map_err(|error| Error::Io { what: what("flush"), error })?;
        }
        Ok(())
    }
}

#[cfg(feature = "research")]
impl Group {
    pub fn skip(&self, tid: Tid) {
        self.pending.lock().frontier = Frontier::at(tid);
    }

    /// With everything shown: so is `tid`, in place without a record.
    pub fn pass(&self, tid: Tid) {
        let mut p = self.pending.lock();
        debug_assert!(!p.busy, "something is in flight");
        p.frontier.pass(tid);
    }
}

impl Pending {
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

/// Fails the waiters if the leader fails or panics.
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
