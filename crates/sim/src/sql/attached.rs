//! Transactions over two and three databases with one oracle: stock SQLite on the VFS, several
//! connections of two processes, power cuts and kills at every operation, failing writes and
//! flushes.
//!
//! Each database has a row with the number of its last transaction, and random rows. So a state is
//! a list of numbers, and a crash leaves one of at most two states.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{Op, SimDisk, SplitMix64};
use parking_lot::Mutex;
use rusqlite::{Connection, ffi};

use super::check::{damage, said};
use super::process::{BESIDE, FILES, Level, add_noise, explain, level};
use crate::baton::alone;
use crate::check::{Counts, ROOMY, Violation, drawn_disk};
use crate::hook::{HookDisk, Operation};

/// The last transaction on each database.
type State = [i64; FILES.len()];

type Step<T> = Result<T, Violation>;

/// The states that a crash may leave.
#[derive(Clone, Debug)]
struct Known {
    now: State,
    attempt: Option<State>,
}

impl Known {
    fn allowed(&self) -> Vec<State> {
        std::iter::once(self.now).chain(self.attempt).collect()
    }
}

struct Client {
    db: Connection,
    main: usize,
    process: usize,
    /// Commits of one file alone are flushed.
    full: bool,
    reading: Option<State>,
}

#[derive(Clone)]
struct Setting {
    options: Vec<(String, String)>,
    files: usize,
    counts: Arc<Counts>,
}

struct World {
    setting: Setting,
    rng: SplitMix64,
    disk: HookDisk,
    levels: [Level; 2],
    clients: Vec<Client>,
    known: Arc<Mutex<Known>>,
    found: Arc<Mutex<Option<Violation>>>,
    every: usize,
    last: i64,
    notes: Option<Vec<String>>,
}

/// Runs one history.
pub fn run(seed: u64, steps: usize, trace: bool, counts: &Arc<Counts>) -> Step<()> {
    alone(seed, || run_alone(seed, steps, trace, counts))
}

fn run_alone(seed: u64, steps: usize, trace: bool, counts: &Arc<Counts>) -> Step<()> {
    let mut rng = SplitMix64::new(seed ^ 0xa77a);
    let atomic_unit = [512, 4096][rng.below(2)];
    let config = drawn_disk(&mut rng, atomic_unit, trace);
    let scheme = ["log", "log", "log", "wal-opt"][rng.below(4)];
    let mut options = vec![("scheme", scheme), ("log_size", "256k"), ("busy_ms", "0"), ("idle", "0")];
    if rng.below(2) == 0 {
        options.push(("stream_size", "64k"));
    }
    let options = options.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let files = 2 + rng.below(2);
    let mut world = World {
        every: 2 + rng.below(5),
        rng,
        setting: Setting { options, files, counts: counts.clone() },
        disk: HookDisk::new(SimDisk::new(config), None),
        levels: [level(0), level(BESIDE)],
        clients: Vec::new(),
        known: Arc::new(Mutex::new(Known { now: State::default(), attempt: None })),
        found: Arc::default(),
        last: 0,
        notes: trace.then(Vec::new),
    };
    let mut done = world.begin(SimDisk::new(config));
    for _ in 0..10 + world.rng.below(steps.max(1)) {
        done = done.and_then(|()| world.step()).and_then(|()| world.verdict());
    }
    done = done.and_then(|()| world.close_all()).and_then(|()| world.verdict());
    world.clients.clear();
    world.levels.iter().for_each(Level::halt);
    done.map_err(|mut v| {
        v.what = format!("{} [{} files, {:?}]", v.what, files, world.setting.options);
        v.notes = world.notes.take().unwrap_or_default();
        v
    })
}

impl World {
    fn bad(&self, what: impl Into<String>) -> Violation {
        Violation::on(self.disk.sim(), what)
    }

    fn note(&mut self, what: impl Into<String>) {
        let ops = self.disk.sim().ops();
        if let Some(notes) = &mut self.notes {
            notes.push(format!("{ops:>6} {}", what.into()));
        }
    }

    fn verdict(&self) -> Step<()> {
        self.found.lock().take().map_or(Ok(()), Err)
    }

    fn begin(&mut self, sim: SimDisk) -> Step<()> {
        self.levels[0].boot(HookDisk::new(sim.clone(), None));
        let made = (0..self.setting.files).try_for_each(|file| {
            let db = self.levels[0].open(file, &self.setting.options)?;
            db.execute_batch(
                "CREATE TABLE t(k INTEGER PRIMARY KEY, n INTEGER, b BLOB); INSERT INTO t VALUES (1, 0, NULL)",
            )?;
            db.close().map_err(|(_, e)| e)
        });
        made.map_err(|e| self.bad(format!("cannot begin: {}", said(&e))))?;
        self.boot(sim);
        Ok(())
    }

    fn boot(&mut self, sim: SimDisk) {
        self.levels.iter().for_each(Level::halt);
        self.clients.clear();
        let (setting, known, found) = (self.setting.clone(), self.known.clone(), self.found.clone());
        let (mut rng, every) = (SplitMix64::new(self.rng.next_u64()), self.every);
        let point = Box::new(move |_: Operation<'_>, inside: &dyn Fn() -> SimDisk| {
            if rng.below(every) > 0 || found.lock().is_some() {
                return;
            }
            let allowed = known.lock().allowed();
            let killed = rng.below(4) == 0;
            let disk = if killed { inside().survive() } else { inside().crash(rng.next_u64()) };
            let depth = [0, 0, 1, 2][rng.below(4)];
            *found.lock() = check(&setting, &disk, &allowed, &mut rng, 1, depth).err().map(|mut v| {
                v.what = format!("{}: {}", if killed { "after a kill" } else { "after a crash" }, v.what);
                v
            });
        });
        self.disk = HookDisk::new(sim, Some(point));
        self.levels.iter().for_each(|level| level.boot(self.disk.clone()));
    }

    fn step(&mut self) -> Step<()> {
        match self.rng.below(20) {
            0..9 => self.write(None),
            9 | 10 => {
                let ops = [Op::WriteDurable, Op::Write, Op::Sync, Op::Remove, Op::SyncDir, Op::Create];
                let (op, nth) = (ops[self.rng.below(ops.len())], 1 + self.rng.below(6) as u64);
                self.write(Some((op, nth)))
            }
            11 | 12 => self.read(),
            13 => self.release(),
            14 => self.checkpoint(),
            15 => self.close_all(),
            16 => self.die(),
            17 => self.close_one(),
            _ => {
                let process = self.rng.below(2);
                let calls = self.rng.below(50) as u64;
                self.note(format!("process {process} dies after {calls} calls"));
                self.levels[process].die_after(calls);
                self.write(None)
            }
        }
    }

    fn client(&mut self) -> Step<Option<usize>> {
        if self.clients.is_empty() || (self.clients.len() < 4 && self.rng.below(4) == 0) {
            let process = self.rng.below(2);
            match connect(&self.levels[process], &self.setting, process, &mut self.rng) {
                Ok(client) => self.clients.push(client),
                Err(e) => return self.tolerate(&e, "open").map(|()| None),
            }
        }
        Ok(Some(self.rng.below(self.clients.len())))
    }

    /// Begins a transaction of client `i` that writes `number` to the `chosen` files.
    fn draw_statements(&mut self, i: usize, chosen: &[usize], number: i64) -> String {
        let mut sql = String::from(if self.clients[i].db.is_autocommit() { "BEGIN;" } else { "COMMIT; BEGIN;" });
        for file in chosen {
            let (key, seed) = (2 + self.rng.below(30), self.rng.next_u64() >> 24);
            let bytes = [20, 200, 3000, 90_000][[0, 0, 0, 1, 1, 2, 2, 3][self.rng.below(8)]];
            let rows = if bytes == 90_000 && self.rng.below(3) > 0 { 200 } else { bytes };
            let table = format!("{}.t", schema(self.clients[i].main, *file));
            sql.push_str(&format!(
                "UPDATE {table} SET n = {number} WHERE k = 1;
                 INSERT OR REPLACE INTO {table} VALUES ({key}, {number}, noise({seed}, {rows}));"
            ));
        }
        sql
    }

    /// With a `fault`, an operation of the commit fails.
    fn write(&mut self, fault: Option<(Op, u64)>) -> Step<()> {
        let Some(i) = self.client()? else { return self.bury().map(|_| ()) };
        let files = self.setting.files;
        let mut chosen: Vec<usize> = (0..files).filter(|_| self.rng.below(3) > 0).collect();
        if chosen.len() < 2 && (!self.clients[i].full || chosen.is_empty() || self.rng.below(3) > 0) {
            chosen = (0..files).collect();
        }
        self.last += 1;
        let number = self.last;
        let commits = self.rng.below(6) > 0;
        self.note(format!("client {i} of process {} writes {number} to {chosen:?}", self.clients[i].process));
        let mut next = self.known.lock().now;
        self.clients[i].reading = None;
        chosen.iter().for_each(|file| next[*file] = number);
        let sql = self.draw_statements(i, &chosen, number);
        if let Err(e) = self.clients[i].db.execute_batch(&sql) {
            return self.failed(i, &e, "write");
        }
        if self.rng.below(4) == 0 {
            let before = self.clients.len();
            self.beside(i)?;
            if self.clients.len() != before {
                // Index `i` may be another client now, because a process died.
                return self.roll_all_back();
            }
        }
        if !commits {
            return match self.clients[i].db.execute_batch("ROLLBACK") {
                Ok(()) => Ok(()),
                Err(e) => self.failed(i, &e, "rollback"),
            };
        }
        if let Some((op, nth)) = fault {
            self.note(format!("the {nth}. {op:?} will fail"));
            self.disk.sim().fail_nth(op, nth, ErrorKind::Other);
        }
        self.known.lock().attempt = Some(next);
        let done = self.clients[i].db.execute_batch("COMMIT");
        self.verdict()?;
        match done {
            Ok(()) => {
                *self.known.lock() = Known { now: next, attempt: None };
                self.setting.counts.commits.fetch_add(1, Ordering::Relaxed);
                self.note("  commits");
            }
            Err(e) if fault.is_none() => return self.failed(i, &e, "commit"),
            Err(e) => {
                self.note(format!("  commit: {}", said(&e)));
                let _ = self.clients[i].db.execute_batch("ROLLBACK");
                self.verdict()?;
                // A database that answers without the transaction never has it again, nor do the
                // others.
                let now = self.known.lock().now;
                let lost = chosen.iter().any(|file| {
                    number_in(&self.clients[i].db, &schema(self.clients[i].main, *file)).is_ok_and(|n| n == now[*file])
                });
                if lost {
                    self.known.lock().attempt = None;
                    self.note("  is rolled back");
                }
            }
        }
        if fault.is_some() {
            // Pending faults would strike any step.
            return self.recover(self.disk.sim().survive());
        }
        self.bury().map(|_| ())
    }

    /// Readers see the state before client `i` writes, and no other connection writes.
    fn beside(&mut self, i: usize) -> Step<()> {
        let others: Vec<usize> = (0..self.clients.len()).filter(|other| *other != i).collect();
        if others.is_empty() {
            return Ok(());
        }
        let other = others[self.rng.below(others.len())];
        if self.rng.below(2) == 0 {
            return self.read_as(other);
        }
        if self.clients[other].reading.take().is_some() {
            let _ = self.clients[other].db.execute_batch("ROLLBACK");
        }
        let begun = self.clients[other].db.execute_batch("BEGIN IMMEDIATE");
        // A dead process gets every lock.
        let alive = [i, other].iter().all(|client| self.levels[self.clients[*client].process].is_alive());
        let both = begun.is_ok()
            && alive
            && self.clients[i].db.transaction_state(Some("main")).is_ok_and(|s| s == rusqlite::TransactionState::Write)
            && self.clients[i].main == self.clients[other].main;
        if !self.clients[other].db.is_autocommit() {
            let _ = self.clients[other].db.execute_batch("ROLLBACK");
        }
        if both { Err(self.bad("two connections write at once")) } else { Ok(()) }
    }

    fn read(&mut self) -> Step<()> {
        match self.client()? {
            Some(i) => self.read_as(i),
            None => self.bury().map(|_| ()),
        }
    }

    fn read_as(&mut self, i: usize) -> Step<()> {
        let pinned = self.clients[i].reading;
        if pinned.is_none()
            && self.clients[i].db.is_autocommit()
            && let Err(e) = self.clients[i].db.execute_batch("BEGIN")
        {
            return self.failed(i, &e, "begin to read");
        }
        match numbers(&self.clients[i].db, self.clients[i].main, self.setting.files) {
            Ok(seen) => {
                let expected = pinned.unwrap_or(self.known.lock().now);
                self.verdict()?;
                if seen != expected && self.levels.iter().all(Level::is_alive) {
                    return Err(self.bad(format!("a reader sees {seen:?} instead of {expected:?}")));
                }
                self.clients[i].reading = Some(expected);
                Ok(())
            }
            Err(e) => self.failed(i, &e, "read"),
        }
    }

    fn release(&mut self) -> Step<()> {
        for client in &mut self.clients {
            if client.reading.take().is_some() {
                let _ = client.db.execute_batch("ROLLBACK");
            }
        }
        Ok(())
    }

    fn roll_all_back(&mut self) -> Step<()> {
        for client in &mut self.clients {
            client.reading = None;
            if !client.db.is_autocommit() {
                let _ = client.db.execute_batch("ROLLBACK");
            }
        }
        self.verdict()
    }

    fn checkpoint(&mut self) -> Step<()> {
        let Some(i) = self.client()? else { return self.bury().map(|_| ()) };
        let file = self.rng.below(self.setting.files);
        let sql = format!("PRAGMA {}.onewrite_checkpoint", schema(self.clients[i].main, file));
        match self.clients[i].db.query_row(&sql, [], |_| Ok(())) {
            Ok(()) => Ok(()),
            Err(e) => self.tolerate(&e, "checkpoint"),
        }
    }

    fn close_one(&mut self) -> Step<()> {
        if self.clients.len() > 1 {
            let i = self.rng.below(self.clients.len());
            self.clients.remove(i);
        }
        self.bury().map(|_| ())
    }

    fn close_all(&mut self) -> Step<()> {
        self.note("all close");
        self.clients.clear();
        self.verdict()?;
        self.bury().map(|_| ())
    }

    fn failed(&mut self, i: usize, e: &rusqlite::Error, doing: &str) -> Step<()> {
        self.verdict()?;
        self.note(format!("  {doing}: {}", said(e)));
        if self.bury()? {
            return Ok(());
        }
        if !self.clients[i].db.is_autocommit() {
            let _ = self.clients[i].db.execute_batch("ROLLBACK");
        }
        self.clients[i].reading = None;
        self.verdict()?;
        self.known.lock().attempt = None;
        self.tolerate(e, doing)
    }

    fn tolerate(&mut self, e: &rusqlite::Error, doing: &str) -> Step<()> {
        if self.bury()? || explain(e).0 & 0xff == ffi::SQLITE_BUSY {
            return Ok(());
        }
        Err(self.bad(format!("{doing}: {}", said(e))))
    }

    /// A live process decides about the transaction of a dead one.
    fn bury(&mut self) -> Step<bool> {
        let dead: Vec<usize> = (0..2).filter(|process| !self.levels[*process].is_alive()).collect();
        if dead.is_empty() {
            return Ok(false);
        }
        self.note(format!("dead: {dead:?}"));
        self.clients.retain(|client| !dead.contains(&client.process));
        for process in &dead {
            self.levels[*process].boot(self.disk.clone());
        }
        let process = self.rng.below(2);
        self.levels[process].die_after(u64::MAX);
        let seen = look(&self.levels[process], &self.setting, &mut self.rng);
        self.verdict()?;
        let seen = match seen {
            Ok(seen) => seen,
            // It died in an open or a close, and a dead machine releases no lock. Where ATTACH met
            // the lock, the reason is gone with the closed file.
            Err(e) if explain(&e).0 == ffi::SQLITE_BUSY && is_lock_of_dead(&said(&e)) => {
                self.recover(self.disk.sim().survive())?;
                return Ok(true);
            }
            Err(e) => return Err(self.bad(format!("after the death of a process: {}", said(&e)))),
        };
        let allowed = self.known.lock().allowed();
        if !allowed.contains(&seen) {
            return Err(self.bad(format!("after the death of a process: {seen:?}, not one of {allowed:?}")));
        }
        *self.known.lock() = Known { now: seen, attempt: None };
        Ok(true)
    }

    fn die(&mut self) -> Step<()> {
        let killed = self.rng.below(2) == 0;
        let sim = if killed { self.disk.sim().survive() } else { self.disk.sim().crash(self.rng.next_u64()) };
        self.note(if killed { "kill" } else { "crash" });
        self.recover(sim)
    }

    fn recover(&mut self, sim: SimDisk) -> Step<()> {
        self.boot(sim);
        let seen = look(&self.levels[0], &self.setting, &mut self.rng);
        self.verdict()?;
        let seen = seen.map_err(|e| self.bad(format!("cannot recover: {}", said(&e))))?;
        let allowed = self.known.lock().allowed();
        if !allowed.contains(&seen) {
            return Err(self.bad(format!("recovered: {seen:?}, not one of {allowed:?}")));
        }
        *self.known.lock() = Known { now: seen, attempt: None };
        Ok(())
    }
}

fn schema(main: usize, file: usize) -> String {
    if file == main { "main".to_owned() } else { format!("f{file}") }
}

fn connect(level: &Level, setting: &Setting, process: usize, rng: &mut SplitMix64) -> rusqlite::Result<Client> {
    // SQLite names the super-journal after it.
    let main = rng.below(setting.files);
    let db = level.open(main, &setting.options)?;
    add_noise(&db)?;
    let full = rng.below(3) > 0;
    let mode = ["DELETE", "TRUNCATE", "PERSIST"][rng.below(3)];
    for n in 0..setting.files {
        let file = (main + n) % setting.files;
        let schema = schema(main, file);
        if n > 0 {
            db.execute(&format!("ATTACH ?1 AS {schema}"), [level.uri(file, &setting.options)])?;
        }
        let synchronous = 1 + u32::from(full);
        db.execute_batch(&format!("PRAGMA {schema}.synchronous={synchronous}; PRAGMA {schema}.journal_mode={mode}"))?;
    }
    Ok(Client { db, main, process, full, reading: None })
}

fn is_lock_of_dead(said: &str) -> bool {
    said.contains("without onewrite") || said.ends_with("; ")
}

fn number_in(db: &Connection, schema: &str) -> rusqlite::Result<i64> {
    let sql = format!("SELECT n, (SELECT max(n) FROM {schema}.t) FROM {schema}.t WHERE k = 1");
    let (number, newest): (i64, i64) = db.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // A number that never was stands for half of a transaction.
    Ok(if number == newest { number } else { -1 })
}

fn numbers(db: &Connection, main: usize, files: usize) -> rusqlite::Result<State> {
    let mut state = State::default();
    for (file, number) in state.iter_mut().enumerate().take(files) {
        *number = number_in(db, &schema(main, file))?;
    }
    Ok(state)
}

/// Reads through one connection, or one for each file.
fn look(level: &Level, setting: &Setting, rng: &mut SplitMix64) -> rusqlite::Result<State> {
    if rng.below(2) == 0 {
        let client = connect(level, setting, 0, rng)?;
        if rng.below(4) == 0 {
            intact(&client.db, &schema(client.main, rng.below(setting.files)))?;
        }
        return numbers(&client.db, client.main, setting.files);
    }
    let mut state = State::default();
    let first = rng.below(setting.files);
    for n in 0..setting.files {
        let file = (first + n) % setting.files;
        let db = level.open(file, &setting.options)?;
        state[file] = number_in(&db, "main")?;
        if rng.below(8) == 0 {
            intact(&db, "main")?;
        }
        if rng.below(2) == 0 {
            db.close().map_err(|(_, e)| e)?;
        }
    }
    Ok(state)
}

fn intact(db: &Connection, schema: &str) -> rusqlite::Result<()> {
    match damage(db, schema)? {
        None => Ok(()),
        Some(damage) => Err(rusqlite::Error::InvalidParameterName(format!("{schema}: {damage}"))),
    }
}

/// One of the `allowed` states is in all databases, also after another crash within the recovery,
/// and a later commit stays.
fn check(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &[State],
    rng: &mut SplitMix64,
    depth: usize,
    recoveries: usize,
) -> Step<()> {
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    disk.set_capacity(ROOMY);
    let level = level(depth);
    let broken: Arc<Mutex<Option<Violation>>> = Arc::default();
    let after = disk.survive();
    let point = (recoveries > 0).then(|| {
        let (inner, setting, allowed) = (broken.clone(), setting.clone(), allowed.to_vec());
        let mut rng = SplitMix64::new(rng.next_u64());
        let point = move |_: Operation<'_>, inside: &dyn Fn() -> SimDisk| {
            if rng.below(8) == 0 && inner.lock().is_none() {
                let disk = if rng.below(3) == 0 { inside().survive() } else { inside().crash(rng.next_u64()) };
                let checked = check(&setting, &disk, &allowed, &mut rng, depth + 1, recoveries - 1);
                *inner.lock() = checked.err();
            }
        };
        Box::new(point) as crate::hook::Point
    });
    level.boot(HookDisk::new(after.clone(), point));
    let seen = look(&level, setting, rng);
    if let Some(violation) = broken.lock().take() {
        return Err(violation);
    }
    let bad = |what: String| Violation::on(&after, what);
    let seen = seen.map_err(|e| bad(format!("cannot read: {}", said(&e))))?;
    if !allowed.contains(&seen) {
        return Err(bad(format!("{seen:?}, not one of {allowed:?}")));
    }
    level.halt();
    if rng.below(4) > 0 {
        return Ok(());
    }
    // The next recovery finds the same state, even after a power cut.
    let again = after.crash(rng.next_u64());
    level.boot(HookDisk::new(again.clone(), None));
    let once_more = look(&level, setting, rng);
    level.halt();
    let bad = |what: String| Violation::on(&again, format!("after recovery and a crash: {what}"));
    let once_more = once_more.map_err(|e| bad(format!("cannot read: {}", said(&e))))?;
    if once_more == seen { Ok(()) } else { Err(bad(format!("{once_more:?} instead of {seen:?}"))) }
}
