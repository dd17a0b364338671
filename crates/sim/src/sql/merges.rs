//! Transactions of `concurrent=1` on threads.
//!
//! A transaction merges behind others that its thread does not know. So the oracle asks the disk:
//! a process that is killed now leaves all that is committed. Each thread stamps a page of its own,
//! by which a state tells its transactions. Stock SQLite must get to the same state by running
//! their statements one transaction after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{SimDisk, point};
use rusqlite::{Connection, ffi};

use super::check::{Setting, bytes_of, empty, said};
use super::print::{Print, print};
use super::process::{add_noise, explain, level};
use super::statements;
use super::threads::{Shared, Step, Worker};
use crate::baton::alone;
use crate::check::ROOMY;
use crate::hook::HookDisk;
use crate::pager::Synchronous;

/// Threads that live at once have different ones.
pub const SLOTS: usize = 8;

/// The newest transaction of each slot in a state.
type Stamps = [u64; SLOTS];

/// Those of the tables' first rows.
const FIRST: Stamps = [1; SLOTS];

/// A transaction whose COMMIT was called.
#[derive(Debug)]
pub struct Transaction {
    slot: usize,
    stamp: u64,
    /// Statements, and the result codes on its snapshot.
    all: Vec<(String, i32)>,
    durable: bool,
}

#[derive(Clone)]
struct State {
    print: Print,
    stamps: Stamps,
    /// Those that no power cut takes back once it is seen, whichever its order.
    kept: Stamps,
    /// Its transactions, in an order that explains it.
    chain: Vec<Arc<Transaction>>,
}

/// The states that the database may be in.
#[derive(Clone)]
pub struct Merged {
    /// Oldest first. Of transactions that became known together, each order that explains them.
    states: Vec<State>,
    /// Acknowledged or seen.
    seen: Stamps,
    /// The same, and durable.
    floor: Stamps,
}

/// Stock SQLite in memory, and the transactions whose outcome is open.
pub struct Mirror {
    db: Connection,
    chain: Vec<Arc<Transaction>>,
    pending: Vec<Arc<Transaction>>,
}

fn has(stamps: &Stamps, bound: &Stamps) -> bool {
    stamps.iter().zip(bound).all(|(stamp, bound)| stamp >= bound)
}

fn join(stamps: &mut Stamps, other: &Stamps) {
    stamps.iter_mut().zip(other).for_each(|(stamp, other)| *stamp = (*stamp).max(*other));
}

fn stamps_of(chain: &[Arc<Transaction>]) -> Stamps {
    let mut stamps = FIRST;
    chain.iter().for_each(|transaction| stamps[transaction.slot] = stamps[transaction.slot].max(transaction.stamp));
    stamps
}

/// Makes the tables.
pub fn schema() -> String {
    let all = statements::schema("main").into_iter().chain(statements::make_growth("main"));
    let own =
        (0..SLOTS).map(|slot| format!("CREATE TABLE main.m{slot}(x); INSERT INTO m{slot} VALUES ({})", FIRST[slot]));
    all.chain(own).collect::<Vec<_>>().join("; ")
}

impl Merged {
    /// A database without a page.
    pub fn new() -> Merged {
        let state = State { print: empty(), stamps: [0; SLOTS], kept: [0; SLOTS], chain: Vec::new() };
        Merged { states: vec![state], seen: [0; SLOTS], floor: [0; SLOTS] }
    }

    /// The tables of [`schema`] are about to be committed.
    pub fn make_tables(&mut self, print: Print) {
        self.states.push(State { print, stamps: FIRST, kept: FIRST, chain: Vec::new() });
    }

    /// What a crash may leave, oldest first.
    pub fn allowed(&self, killed: bool) -> Vec<Print> {
        let bound = if killed { &self.seen } else { &self.floor };
        self.states.iter().filter(|state| has(&state.stamps, bound)).map(|state| state.print).collect()
    }

    /// The newest state.
    pub fn newest(&self) -> Print {
        self.states[self.states.len() - 1].print
    }

    /// A transaction saw the state, or was told that it is committed.
    pub fn see(&mut self, at: usize) {
        let state = &self.states[at];
        join(&mut self.seen, &state.stamps);
        join(&mut self.floor, &state.kept);
    }

    /// The power went.
    pub fn lose_power(&mut self) {
        self.seen = self.floor;
    }

    /// A process behind a crash decided for this state.
    pub fn settle(&mut self, print: Print) {
        self.states.retain(|state| state.print == print);
        self.states.truncate(1);
        self.states.iter_mut().for_each(|state| state.kept = state.stamps);
        self.see(0);
        self.floor = self.seen;
    }

    fn find(&self, print: Print, bound: &Stamps) -> Option<usize> {
        self.states.iter().rposition(|state| state.print == print && has(&state.stamps, bound))
    }
}

impl Mirror {
    /// With the tables.
    pub fn new() -> rusqlite::Result<Mirror> {
        let db = Connection::open_in_memory()?;
        add_noise(&db)?;
        db.execute_batch(&schema())?;
        Ok(Mirror { db, chain: Vec::new(), pending: Vec::new() })
    }

    /// No thread is in a COMMIT.
    pub fn none_is_pending(&mut self) {
        self.pending.clear();
    }

    fn go_to(&mut self, chain: &[Arc<Transaction>]) -> rusqlite::Result<()> {
        let is_there = chain.len() == self.chain.len() && chain.iter().zip(&self.chain).all(|(a, b)| Arc::ptr_eq(a, b));
        if !is_there {
            let pending = std::mem::take(&mut self.pending);
            *self = Mirror { pending, ..Mirror::new()? };
            chain.iter().try_for_each(|transaction| self.add(transaction))?;
        }
        Ok(())
    }

    fn add(&mut self, transaction: &Arc<Transaction>) -> rusqlite::Result<()> {
        self.db.execute_batch("BEGIN")?;
        self.run(transaction);
        self.db.execute_batch("COMMIT")?;
        self.chain.push(transaction.clone());
        Ok(())
    }

    /// Whether each statement ends as it did on the transaction's snapshot.
    fn run(&self, transaction: &Transaction) -> bool {
        let ends = |sql: &str| self.db.execute_batch(sql).map_or_else(|e| explain(&e).0, |()| 0);
        transaction.all.iter().fold(true, |same, (sql, code)| (ends(sql) == *code) && same)
    }

    /// The states on the way, if the transactions lead to `expected` in this order.
    fn lead(&self, order: &[Arc<Transaction>], expected: Print) -> rusqlite::Result<Option<Vec<Print>>> {
        self.db.execute_batch("BEGIN")?;
        let mut prints = Vec::new();
        let mut same = true;
        for transaction in order {
            same &= self.run(transaction);
            prints.push(print(&self.db, "main")?);
        }
        self.db.execute_batch("ROLLBACK")?;
        Ok(Some(prints).filter(|prints| same && prints.last() == Some(&expected)))
    }
}

fn orders(all: &[Arc<Transaction>]) -> Vec<Vec<Arc<Transaction>>> {
    if all.is_empty() {
        return vec![Vec::new()];
    }
    (0..all.len())
        .flat_map(|first| {
            let mut rest = all.to_vec();
            let first = rest.remove(first);
            orders(&rest).into_iter().map(move |rest| [vec![first.clone()], rest].concat())
        })
        .collect()
}

/// What a process finds that is started now, where all others are killed.
fn look(setting: &Setting, disk: &SimDisk) -> rusqlite::Result<(Print, Stamps)> {
    disk.set_capacity(ROOMY);
    let level = level(0);
    level.boot(HookDisk::new(disk.clone(), None));
    let db = level.open(0, &setting.options)?;
    let print = print(&db, "main")?;
    let mut stamps = [0; SLOTS];
    for (slot, stamp) in stamps.iter_mut().enumerate().filter(|_| print != empty()) {
        *stamp = db.query_row(&format!("SELECT x FROM m{slot}"), [], |row| row.get(0).map(i64::cast_unsigned))?;
    }
    drop(db);
    level.halt();
    Ok((print, stamps))
}

/// Learns the transactions that are committed on `disk`, where transactions merge. The caller is
/// alone.
pub fn observe(shared: &Shared, disk: &SimDisk) -> Step {
    let Some(mirror) = &shared.merges else { return Ok(()) };
    let (print, stamps) =
        look(&shared.setting, &disk.survive()).map_err(|e| format!("a look behind a kill: {}", said(&e)))?;
    let mut known = shared.known.lock();
    let Some(merged) = &mut known.merged else { return Ok(()) };
    if merged.newest() == print {
        return Ok(());
    }
    if !has(&stamps, &merged.seen) {
        return Err(format!("transactions that were seen are gone: {:?}, now {stamps:?}", merged.seen));
    }
    if print == empty() {
        // The tables are being made.
        return Ok(());
    }
    // Of a transaction that was given up behind its write, nothing is left.
    while merged.states.last().is_some_and(|state| !has(&stamps, &state.stamps)) {
        merged.states.pop();
    }
    let Some(base) = merged.states.last().cloned() else { return Err(format!("{stamps:?} follow no state")) };
    if base.print == print {
        return Ok(());
    }
    let mut mirror = mirror.lock();
    let is_new = |t: &&Arc<Transaction>| t.stamp > base.stamps[t.slot] && t.stamp <= stamps[t.slot];
    let new: Vec<_> = mirror.pending.iter().filter(is_new).cloned().collect();
    let explained = stamps_of(&[&base.chain[..], &new].concat());
    if explained != stamps || new.len() > 4 {
        return Err(format!(
            "{stamps:?} behind {:?} are not of the open transactions {:?}",
            base.stamps, mirror.pending
        ));
    }
    let failed = |e: rusqlite::Error| format!("the mirror: {}", said(&e));
    mirror.go_to(&base.chain).map_err(failed)?;
    let mut taken = None;
    for order in orders(&new) {
        let Some(prints) = mirror.lead(&order, print).map_err(failed)? else { continue };
        let mut kept = base.kept;
        for (at, print) in prints.into_iter().enumerate() {
            let chain = [&base.chain[..], &order[..=at]].concat();
            let stamps = stamps_of(&chain);
            if order[at].durable {
                kept = stamps;
            }
            match merged.states.iter_mut().find(|state| state.print == print) {
                Some(state) => state.kept.iter_mut().zip(&kept).for_each(|(a, b)| *a = (*a).min(*b)),
                None => merged.states.push(State { print, stamps, kept, chain }),
            }
        }
        taken.get_or_insert(order);
    }
    let Some(order) = taken else {
        return Err(format!("in no order {new:?} lead to {print:?}"));
    };
    // The state that all lead to is the newest.
    let at = merged.states.iter().position(|state| state.print == print).unwrap_or(0);
    let newest = merged.states.remove(at);
    merged.states.push(newest);
    shared.notes.add(|| {
        let stamps: Vec<u64> = order.iter().map(|transaction| transaction.stamp).collect();
        format!("{stamps:?} lead to {print:?}")
    });
    order.iter().try_for_each(|transaction| mirror.add(transaction)).map_err(failed)
}

impl Worker {
    fn observe(&mut self) -> Step {
        alone(self.rng.next_u64(), || observe(&self.shared, self.disk.sim()))
    }

    /// The index of a state that is not older than `bound`.
    fn find(&mut self, print: Print, bound: &Stamps) -> Result<Option<usize>, String> {
        let find = |shared: &Shared| shared.known.lock().merged.as_ref().and_then(|merged| merged.find(print, bound));
        if let Some(at) = find(&self.shared) {
            return Ok(Some(at));
        }
        self.observe()?;
        Ok(find(&self.shared))
    }

    fn seen(&self) -> Stamps {
        self.shared.known.lock().merged.as_ref().map_or(FIRST, |merged| merged.seen)
    }

    fn see(&self, at: usize) {
        if let Some(merged) = &mut self.shared.known.lock().merged {
            merged.see(at);
        }
    }

    /// Reads the database, in its transaction if it has one.
    pub(super) fn read_merged(&mut self) -> Step {
        if !self.has_client()? {
            return Ok(());
        }
        let bound = self.seen();
        let pinned = self.client.as_ref().and_then(|client| client.snapshot);
        let begun = if pinned.is_none() { self.execute("BEGIN") } else { Ok(()) };
        let prints = match begun.and_then(|()| self.prints()) {
            Ok(prints) => prints,
            Err(e) => return self.tolerate(&e, "read"),
        };
        let found = match pinned {
            Some(pinned) if pinned == prints[0] => None,
            Some(pinned) => return Err(format!("a snapshot changed from {pinned:?} to {:?}", prints[0])),
            None => self.find(prints[0], &bound)?,
        };
        match found {
            // A dead process reads nothing.
            _ if !self.level.is_alive() => return Ok(()),
            Some(at) => self.see(at),
            None if pinned.is_some() => {}
            None => return Err(format!("it reads {:?}, of no state from {bound:?}", prints[0])),
        }
        self.shared.notes.add(|| format!("{} reads {:?}", self.name, prints[0]));
        if let Some(client) = &mut self.client {
            (client.snapshot, client.reading) = (Some(prints[0]), Some(Vec::new()));
        }
        if self.rng.below(8) == 0 { self.check_indexes().map(drop) } else { Ok(()) }
    }

    fn draw_merging(&mut self) -> Vec<String> {
        let setting = &self.shared.setting;
        if bytes_of(self.disk.sim(), 0) > setting.shape.bytes_max {
            let all = [statements::shrink("main"), statements::make_growth("main")];
            return all[self.rng.below(2)].clone();
        }
        match self.rng.below(16) {
            0..3 => statements::transaction(setting.shape, &["main"], &mut self.rng),
            3..6 => statements::growth("main", self.rng.below(4), &mut self.rng),
            // Where pages are free, they meet there.
            _ => statements::growth("main", self.slot % 4, &mut self.rng),
        }
    }

    /// A transaction among those of other threads.
    pub(super) fn write_merged(&mut self) -> Step {
        self.end()?;
        if !self.has_client()? {
            return Ok(());
        }
        if self.reads_only {
            return self.read_merged();
        }
        let begin = ["BEGIN", "BEGIN IMMEDIATE"][self.rng.below(2)];
        if let Err(e) = self.execute(begin) {
            return self.tolerate(&e, "begin");
        }
        let stamp = self.shared.stamps.fetch_add(1, Ordering::SeqCst) + FIRST[0] + 1;
        let mut all = Vec::new();
        let mut drawn = self.draw_merging();
        drawn.push(format!("UPDATE m{} SET x = {stamp}", self.slot));
        self.shared.notes.add(|| format!("{} writes: {}", self.name, drawn.join("; ")));
        for sql in drawn {
            match self.execute(&sql) {
                Ok(()) => all.push((sql, 0)),
                Err(e) if explain(&e).0 & 0xff == ffi::SQLITE_CONSTRAINT => all.push((sql, explain(&e).0)),
                Err(e) => return self.tolerate(&e, &sql),
            }
        }
        // It thinks meanwhile.
        (0..self.rng.below(20)).for_each(|_| point());
        match self.rng.below(16) {
            0 => {
                self.abort();
                return Ok(());
            }
            // It then conflicts with every other.
            1 if !self.check_indexes()? => return Ok(()),
            _ => {}
        }
        self.commit_merged(all, stamp)
    }

    fn commit_merged(&mut self, all: Vec<(String, i32)>, stamp: u64) -> Step {
        // A dead process may believe anything.
        let Some(client) = self.client.as_mut().filter(|_| self.level.is_alive()) else { return Ok(()) };
        let durable = client.synchronous == Synchronous::Full;
        let own = Arc::new(Transaction { slot: self.slot, stamp, all, durable });
        let Some(mirror) = self.shared.merges.clone() else { return Ok(()) };
        mirror.lock().pending.push(own.clone());
        self.shared.notes.add(|| format!("{} may commit {stamp}", self.name));
        let done = client.db.execute_batch("COMMIT");
        self.shared.notes.add(|| format!("{} commits {stamp}: {done:?}", self.name));
        match done {
            _ if !self.level.is_alive() => Ok(()),
            Ok(()) => {
                self.observe()?;
                mirror.lock().pending.retain(|other| !Arc::ptr_eq(other, &own));
                let mut known = self.shared.known.lock();
                let Some(merged) = &mut known.merged else { return Ok(()) };
                let is_in = |state: &State| state.stamps[own.slot] == own.stamp;
                let Some(at) = merged.states.iter().position(is_in) else {
                    return Err(format!("transaction {stamp} is acknowledged, and a kill would lose it"));
                };
                merged.see(at);
                self.shared.setting.counts.commits.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => {
                if [ffi::SQLITE_BUSY, ffi::SQLITE_FULL].contains(&(explain(&e).0 & 0xff)) {
                    mirror.lock().pending.retain(|other| !Arc::ptr_eq(other, &own));
                }
                self.tolerate(&e, "commit")
            }
        }
    }
}
