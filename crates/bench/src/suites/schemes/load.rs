//! The work of a section: a table of rows with random keys, and transactions on it.

use super::engine::SchemeEngine;
use crate::engines::sql::{Db, Library};
use crate::host;
use crate::numbers::measure::INTERRUPTED;
use crate::numbers::random::Random;
use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a row's value, as in both papers.
const VALUE_BYTES: usize = 128;
/// Transactions before those that are measured.
const WARM_UP: usize = 10;

/// The work of a writing transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Insert,
    Update,
    Delete,
    /// Inserts and deletes in turn: the table keeps its size.
    InsertDelete,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub rows: usize,
    pub operation: Operation,
    pub operations_per_tx: usize,
    /// How many of a hundred transactions look up a row instead.
    pub search_percent: usize,
    pub transactions: usize,
}

impl Load {
    pub fn new(operation: Operation, rows: usize, transactions: usize) -> Load {
        Load { rows, operation, operations_per_tx: 1, search_percent: 0, transactions }
    }
}

/// The numbers of a section.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    pub transactions: usize,
    pub seconds: f64,
    pub pages: u64,
    pub through_log: Option<u64>,
}

impl Timed {
    /// Of a hundred transactions, how many an in-page scheme sent through the log.
    pub fn through_log_percent(&self) -> Option<f64> {
        self.through_log.map(|n| 100.0 * n as f64 / self.transactions.max(1) as f64)
    }
}

/// Something done right before the first and right after the last measured transaction.
pub trait MeasureHooks {
    fn begin(&mut self) -> Result<()>;
    fn end(&mut self) -> Result<()>;
}

impl MeasureHooks for () {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An open database with its rows.
pub struct LoadTable {
    db: Db,
    keys: Vec<i64>,
    random: Random,
    /// Writing transactions so far.
    writes: usize,
}

impl LoadTable {
    /// Makes the database at `path` with `rows` rows.
    pub fn create(
        library: &Arc<Library>,
        engine: &SchemeEngine,
        path: &Path,
        rows: usize,
        seed: u64,
    ) -> Result<LoadTable> {
        let db = engine.open(library, path)?;
        db.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB NOT NULL)")?;
        let mut table = LoadTable { db, keys: Vec::new(), random: Random::new(seed), writes: 0 };
        if rows > 0 {
            table.transact(Operation::Insert, rows)?;
        }
        engine.settle(&table.db)?;
        Ok(table)
    }

    fn value(&mut self) -> [u8; VALUE_BYTES] {
        let mut value = [0; VALUE_BYTES];
        self.random.fill(&mut value);
        value
    }

    /// One writing transaction of `count` operations; one alone without BEGIN and COMMIT.
    pub fn transact(&mut self, operation: Operation, count: usize) -> Result<()> {
        let operation = match operation {
            Operation::InsertDelete if self.writes % 2 == 1 => Operation::Delete,
            Operation::InsertDelete => Operation::Insert,
            other => other,
        };
        self.writes += 1;
        let mut work = Vec::with_capacity(count);
        for _ in 0..count {
            let value = self.value();
            let key = match operation {
                Operation::Insert | Operation::InsertDelete => {
                    let key = (self.random.next() >> 1) as i64;
                    self.keys.push(key);
                    key
                }
                Operation::Update => self.keys[self.random.below(self.keys.len())],
                Operation::Delete => {
                    let at = self.random.below(self.keys.len());
                    self.keys.swap_remove(at)
                }
            };
            work.push((key, value));
        }
        let sql = match operation {
            Operation::Insert | Operation::InsertDelete => "INSERT INTO t VALUES(?1, ?2)",
            Operation::Update => "UPDATE t SET v = ?2 WHERE k = ?1",
            Operation::Delete => "DELETE FROM t WHERE k = ?1",
        };
        if count > 1 {
            self.db.execute_batch("BEGIN")?;
        }
        let mut statement = self.db.prepare(sql)?;
        for (key, value) in &work {
            statement.bind_int(1, *key)?;
            if operation != Operation::Delete {
                statement.bind_blob(2, value)?;
            }
            statement.run()?;
        }
        drop(statement);
        if count > 1 {
            self.db.execute_batch("COMMIT")?;
        }
        Ok(())
    }

    fn search(&mut self) -> Result<()> {
        let key = self.keys[self.random.below(self.keys.len())];
        let mut statement = self.db.prepare("SELECT v FROM t WHERE k = ?1")?;
        statement.bind_int(1, key)?;
        ensure!(statement.run()? == 1, "the row with key {key} is gone");
        Ok(())
    }

    /// Closes, and fails unless stock SQLite finds the file sound and all rows in it.
    pub fn close_and_check(self, library: &Arc<Library>, path: &Path) -> Result<()> {
        let rows = self.keys.len();
        self.db.close()?;
        check(library, path, &[rows])
    }
}

/// Fails unless stock SQLite finds the file sound and one of these numbers of rows in it.
pub fn check(library: &Arc<Library>, path: &Path, rows: &[usize]) -> Result<()> {
    let stock = Db::open(library, path.to_str().unwrap_or_default(), false)?;
    let found = stock.query_int("SELECT count(*) FROM t")?.unwrap_or(-1);
    let expected = rows.iter().any(|n| i64::try_from(*n) == Ok(found));
    ensure!(expected, "{found} rows in {} where {rows:?} should be", path.display());
    let verdict = stock.query_text("PRAGMA integrity_check")?.unwrap_or_default();
    ensure!(verdict == "ok", "{}: {verdict}", path.display());
    Ok(())
}

/// Does a section in `dir` from an empty file on. `ready` is called when everything but the
/// measured transactions is done; with a `limit`, it may end before the last of them.
pub fn section(
    library: &Arc<Library>,
    engine: &SchemeEngine,
    load: &Load,
    dir: &Path,
    seed: u64,
    limit: Option<Duration>,
    watch: &mut dyn MeasureHooks,
) -> Result<Timed> {
    let path = dir.join("db");
    let mut random = Random::new(seed ^ 0x5eed);
    // Enough for every one to be deleted.
    let taken = if load.operation == Operation::Delete { load.transactions + WARM_UP } else { 0 };
    let mut table = LoadTable::create(library, engine, &path, load.rows + taken * load.operations_per_tx, seed)?;
    if load.rows > 0 {
        for _ in 0..WARM_UP {
            table.transact(load.operation, load.operations_per_tx)?;
        }
    }
    host::flush(dir)?;
    let before = engine.written(&table.db)?;
    watch.begin()?;
    let start = Instant::now();
    let mut transactions = 0;
    while transactions < load.transactions {
        if random.below(100) < load.search_percent {
            table.search()?;
        } else {
            table.transact(load.operation, load.operations_per_tx)?;
        }
        transactions += 1;
        if limit.is_some_and(|limit| start.elapsed() > limit) {
            break;
        }
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    watch.end()?;
    let after = engine.written(&table.db)?;
    table.close_and_check(library, &path)?;
    Ok(Timed {
        transactions,
        seconds,
        pages: after.pages - before.pages,
        through_log: after.through_log.zip(before.through_log).map(|(after, before)| after - before),
    })
}
