//! The killed process: threads write by the plan and report each acknowledged transaction.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use rusqlite::{Connection, params};

use crate::Job;
use crate::check::Reached;
use crate::connect::{self, Through, is_busy, tell};
use crate::plan::{self, Op, WRITERS};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS second.pair(writer INTEGER PRIMARY KEY, n INTEGER);
    BEGIN;
    CREATE TABLE IF NOT EXISTS last(writer INTEGER PRIMARY KEY, n INTEGER, items INTEGER, pair INTEGER);
    CREATE TABLE IF NOT EXISTS item(id INTEGER PRIMARY KEY, writer INTEGER, slot INTEGER, n INTEGER, body BLOB,
                                    UNIQUE(writer, slot));
    CREATE INDEX IF NOT EXISTS item_n ON item(n, writer);
    CREATE INDEX IF NOT EXISTS item_body ON item(substr(body, 1, 12)) WHERE length(body) > 20;
    CREATE TRIGGER IF NOT EXISTS more AFTER INSERT ON item
        BEGIN UPDATE last SET items = items + 1 WHERE writer = NEW.writer; END;
    CREATE TRIGGER IF NOT EXISTS less AFTER DELETE ON item
        BEGIN UPDATE last SET items = items - 1 WHERE writer = OLD.writer; END;
    COMMIT";

/// Journal modes under which SQLite commits two files together.
const MODES: [&str; 4] = ["delete", "truncate", "persist", "memory"];

/// Ends after `steps` steps of each thread; 0: never.
pub fn run(job: &Job, threads: u32, nonce: u64, steps: u64) -> Result<()> {
    let mut rng = Rng::with_seed(plan::mix(&[job.plan, nonce]));
    let db = connect::open(job, Through::Onewrite)?;
    if rng.u32(0..4) == 0 {
        let bytes = 512u32 << rng.u32(0..8);
        let vacuum = rng.u32(0..3);
        db.execute_batch(&format!("PRAGMA page_size={bytes}; PRAGMA auto_vacuum={vacuum}")).context("page size")?;
    }
    // A process may have been killed in WAL mode.
    for schema in ["main", "second"] {
        journal_mode(&db, schema, "delete").context("leaving WAL mode")?;
    }
    db.execute_batch(TABLES).context("create the tables")?;
    let mut reached = Vec::new();
    for writer in 0..WRITERS {
        db.execute("INSERT OR IGNORE INTO last VALUES (?1, 0, 0, 0)", [writer])?;
        let row = "SELECT n, pair, (SELECT n FROM second.pair WHERE writer = ?1) FROM last WHERE writer = ?1";
        let (n, pair, second): (_, i64, Option<i64>) =
            db.query_row(row, [writer], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        ensure!(pair == second.unwrap_or(0), "{pair} is the last over both files in one, {second:?} in the other");
        tell(&format!("S {writer} {n} {pair}"))?;
        reached.push(Reached { n, pair });
    }
    db.close().map_err(|(_, e)| e).context("close")?;
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (writer, &reached) in (0..threads).zip(&reached) {
            let mut thread = Writer {
                job,
                writer,
                n: reached.n,
                alone: threads == 1,
                rng: Rng::with_seed(plan::mix(&[job.plan, nonce, u64::from(writer)])),
                db: connect::open(job, Through::Onewrite)?,
            };
            let failed = &failed;
            running.push(scope.spawn(move || {
                let mut step = 0;
                while (steps == 0 || step < steps) && !failed.load(Ordering::Relaxed) {
                    step += 1;
                    if let Err(e) = thread.step() {
                        failed.store(true, Ordering::Relaxed);
                        return Err(e).with_context(|| format!("writer {writer}, after transaction {}", thread.n));
                    }
                }
                thread.db.close().map_err(|(_, e)| e).context("close")
            }));
        }
        for thread in running {
            thread.join().unwrap_or_else(|_| bail!("a thread panicked"))?;
        }
        Ok(())
    })
}

fn journal_mode(db: &Connection, schema: &str, mode: &str) -> rusqlite::Result<String> {
    db.query_row(&format!("PRAGMA {schema}.journal_mode={mode}"), [], |row| row.get(0))
}

struct Writer<'a> {
    job: &'a Job,
    writer: u32,
    /// The last acknowledged transaction.
    n: i64,
    /// No other thread has the database.
    alone: bool,
    rng: Rng,
    db: Connection,
}

impl Writer<'_> {
    fn step(&mut self) -> Result<()> {
        match self.rng.u32(0..100) {
            0..=69 => self.write(false),
            70..=75 => self.write(true),
            76..=82 => self.roll_back(),
            83..=87 => quiet(self.db.query_row("PRAGMA onewrite_checkpoint", [], |_| Ok(()))).context("checkpoint"),
            88..=90 => match connect::open(self.job, Through::Onewrite) {
                Err(e) if e.downcast_ref().is_some_and(is_busy) => Ok(()),
                Err(e) => Err(e),
                Ok(next) => std::mem::replace(&mut self.db, next).close().map_err(|(_, e)| e).context("close"),
            },
            91..=93 => self.read(),
            94..=96 => self.vacuum(),
            _ if self.alone => self.wal_and_back(),
            _ => self.read(),
        }
    }

    /// If the second file is in use, the transaction changes one file after all.
    fn write(&mut self, mut pair: bool) -> Result<()> {
        let modes = if pair { 3 } else { MODES.len() };
        let mode = MODES[self.rng.usize(0..modes)];
        // With OFF, SQLite does not commit two files together.
        let synchronous = ["full", "normal", "off"][self.rng.usize(0..if pair { 2 } else { 3 })];
        for schema in ["main", "second"] {
            // SQLite may read the schema again, and a connection that has stepped aside blocks it.
            let pragma = format!("PRAGMA {schema}.synchronous={synchronous}");
            while let Err(e) = self.db.execute_batch(&pragma) {
                ensure!(is_busy(&e), "synchronous: {e}");
            }
            let in_force = match journal_mode(&self.db, schema, mode) {
                Err(e) if is_busy(&e) => String::new(),
                in_force => in_force.context("journal mode")?,
            };
            pair &= in_force == mode;
        }
        loop {
            match self.try_write(pair) {
                Ok(()) => break,
                Err(e) if e.downcast_ref().is_some_and(is_busy) => {
                    if !self.db.is_autocommit() {
                        self.db.execute_batch("ROLLBACK").context("roll back after BUSY")?;
                    }
                    pair = false;
                }
                Err(e) => return Err(e),
            }
        }
        self.n += 1;
        tell(&format!("A {} {} {}", self.writer, self.n, u32::from(pair))).context("the campaign is gone")
    }

    fn try_write(&mut self, pair: bool) -> Result<()> {
        let n = self.n + 1;
        let begin = ["BEGIN", "BEGIN IMMEDIATE"][self.rng.usize(0..2)];
        self.db.execute_batch(begin)?;
        let one = "UPDATE last SET n = n + 1, pair = iif(?3, ?2, pair) WHERE writer = ?1 AND n = ?2 - 1";
        let changed = self.db.execute(one, params![self.writer, n, pair])?;
        ensure!(changed == 1, "transaction {} is not the newest any more", self.n);
        for op in plan::transaction(self.job.plan, self.writer, n) {
            if self.rng.u32(0..6) == 0 {
                self.db.execute_batch("SAVEPOINT s")?;
                self.put(0, -1, 3000)?;
                self.db.execute_batch("ROLLBACK TO s; RELEASE s")?;
            }
            match op {
                Op::Put(slot, bytes) => self.put(slot, n, bytes)?,
                Op::Delete(slot) => {
                    self.db.execute("DELETE FROM item WHERE writer = ?1 AND slot = ?2", [self.writer, slot])?;
                }
            }
        }
        if pair {
            self.db.execute("INSERT OR REPLACE INTO second.pair VALUES (?1, ?2)", params![self.writer, n])?;
        }
        Ok(self.db.execute_batch("COMMIT")?)
    }

    fn put(&self, slot: u32, n: i64, bytes: u32) -> rusqlite::Result<()> {
        let put = "INSERT INTO item(writer, slot, n, body) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT(writer, slot) DO UPDATE SET n = excluded.n, body = excluded.body";
        let body = plan::body(self.job.plan, self.writer, n, slot, bytes);
        self.db.prepare_cached(put)?.execute(params![self.writer, slot, n, body]).map(drop)
    }

    /// No reader may ever see it.
    fn roll_back(&mut self) -> Result<()> {
        let wrote = self.db.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
            for slot in 0..self.rng.u32(1..30) {
                self.put(slot, -1, 6000)?;
            }
            Ok(())
        });
        quiet(wrote).context("write what is rolled back")?;
        if !self.db.is_autocommit() {
            self.db.execute_batch("ROLLBACK").context("roll back")?;
        }
        Ok(())
    }

    /// A snapshot holds whole transactions and stays the same.
    fn read(&mut self) -> Result<()> {
        let look = "SELECT total(n), total(items), (SELECT count(*) FROM item), (SELECT total(n) FROM item) FROM last";
        let look = |db: &Connection| {
            db.query_row(look, [], |row| {
                Ok([row.get::<_, f64>(0)?, row.get(1)?, row.get::<_, i64>(2)? as f64, row.get(3)?])
            })
        };
        let seen = self.db.execute_batch("BEGIN").and_then(|()| look(&self.db));
        if let Ok(seen) = seen {
            ensure!(seen[1] == seen[2], "a snapshot of part of a transaction: {seen:?}");
            std::thread::yield_now();
            let later = look(&self.db).context("read once more")?;
            ensure!(seen == later, "a snapshot changed: {seen:?}, then {later:?}");
        }
        quiet(seen.map(drop)).context("read")?;
        if !self.db.is_autocommit() {
            self.db.execute_batch("COMMIT").context("end of reading")?;
        }
        Ok(())
    }

    /// Stepping aside with `journal_mode=MEMORY` is as unsafe as in stock SQLite (docs/faults.md).
    fn has_a_journal(&self) -> Result<bool> {
        match journal_mode(&self.db, "main", "delete") {
            Err(e) if is_busy(&e) => Ok(false),
            mode => Ok(mode.context("journal mode")? == "delete"),
        }
    }

    /// Another page size makes it step aside.
    fn vacuum(&mut self) -> Result<()> {
        // A VACUUM that was BUSY left its page size to the next one, which may have no journal.
        let now: u32 = match self.db.query_row("PRAGMA page_size", [], |row| row.get(0)) {
            Err(e) if is_busy(&e) => return Ok(()),
            now => now.context("page size")?,
        };
        let bytes = if self.rng.bool() && self.has_a_journal()? { 512 << self.rng.u32(0..8) } else { now };
        quiet(self.db.execute_batch(&format!("PRAGMA page_size={bytes}"))).context("page size")?;
        quiet(self.db.execute_batch("VACUUM")).context("VACUUM")
    }

    fn wal_and_back(&mut self) -> Result<()> {
        if !self.has_a_journal()? {
            return Ok(());
        }
        quiet(journal_mode(&self.db, "main", "wal").map(drop)).context("to WAL mode")?;
        for _ in 0..self.rng.u32(0..6) {
            self.try_write(false).context("write in WAL mode")?;
            self.n += 1;
            tell(&format!("A {} {} 0", self.writer, self.n)).context("the campaign is gone")?;
        }
        let mode = journal_mode(&self.db, "main", "delete").context("back from WAL mode")?;
        ensure!(mode == "delete", "WAL mode stays on: {mode}");
        Ok(())
    }
}

/// After BUSY, the step is left out.
fn quiet(done: rusqlite::Result<()>) -> rusqlite::Result<()> {
    match done {
        Err(e) if is_busy(&e) => Ok(()),
        done => done,
    }
}
