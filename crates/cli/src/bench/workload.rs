//! The SQL workloads: Mobibench's insert, update and delete of one row per transaction, in autocommit.

use super::engines::{self, Engine, Kind, Settings};
use super::floor;
use super::measure::{Probe, Section, time_each};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// One statement per transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    Insert,
    Update,
    Delete,
}

impl Workload {
    pub const ALL: [Workload; 3] = [Workload::Insert, Workload::Update, Workload::Delete];

    pub fn name(self) -> &'static str {
        match self {
            Workload::Insert => "insert",
            Workload::Update => "update",
            Workload::Delete => "delete",
        }
    }

    pub fn sql(self) -> &'static str {
        match self {
            Workload::Insert => "INSERT INTO t(k, v) VALUES(?1, ?2)",
            Workload::Update => "UPDATE t SET v = ?2 WHERE k = ?1",
            Workload::Delete => "DELETE FROM t WHERE k = ?1",
        }
    }
}

/// How large the `-wal` file of stock SQLite is when the measured transactions begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WalStart {
    /// As after opening the database, and as in Mobibench: the file grows, which the file system journals
    Empty,
    /// As in a program that has run for a while: the file is as large as it gets, and overwritten
    Grown,
}

impl WalStart {
    pub fn describe(self) -> &'static str {
        match self {
            WalStart::Empty => "empty, grows during the transactions (as in Mobibench)",
            WalStart::Grown => "grown to its checkpoint size, overwritten by the transactions",
        }
    }
}

/// The sizes of a section.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub rows: usize,
    pub row_bytes: usize,
    pub transactions: usize,
    pub wal_start: WalStart,
    /// A section that takes longer stops early, and the table says so.
    pub limit: Option<Duration>,
}

/// Transactions before the measured ones: the first of a connection creates journals and logs.
pub const WARM_UP: usize = 10;

/// The table: Mobibench's, with the value as a blob and without its unused third column.
pub const SCHEMA: &str = "CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)";

/// A row: its key, and the number its value is made from.
type Row = (i64, u64);

/// Everything a section will do, drawn before it is timed.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    workload: Workload,
    preload: Vec<Row>,
    warm_up: Vec<Row>,
    steps: Vec<Row>,
}

impl Plan {
    /// The same seed draws the same plan, whatever the engine.
    pub fn draw(workload: Workload, size: &Size, seed: u64) -> Plan {
        let mut random = Random(seed ^ (workload as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Each deleted row must exist.
        let rows = if workload == Workload::Delete { size.rows.max(size.transactions) } else { size.rows };
        let mut taken = std::collections::BTreeSet::new();
        let mut fresh = |random: &mut Random| loop {
            let key = (random.next() >> 1) as i64;
            if taken.insert(key) {
                return (key, random.next());
            }
        };
        let preload: Vec<Row> = (0..rows).map(|_| fresh(&mut random)).collect();
        let warm_up = (0..WARM_UP).map(|_| (preload[random.below(rows)].0, random.next())).collect();
        let steps = match workload {
            Workload::Insert => (0..size.transactions).map(|_| fresh(&mut random)).collect(),
            Workload::Update => {
                (0..size.transactions).map(|_| (preload[random.below(rows)].0, random.next())).collect()
            }
            Workload::Delete => {
                let mut order = preload.clone();
                for i in (1..order.len()).rev() {
                    order.swap(i, random.below(i + 1));
                }
                order.truncate(size.transactions);
                order
            }
        };
        Plan { workload, preload, warm_up, steps }
    }

    /// The rows there must be after the first `done` steps.
    fn expected(&self, done: usize) -> BTreeMap<i64, u64> {
        let mut rows: BTreeMap<i64, u64> = self.preload.iter().chain(&self.warm_up).copied().collect();
        for (key, value) in &self.steps[..done] {
            match self.workload {
                Workload::Delete => rows.remove(key),
                _ => rows.insert(*key, *value),
            };
        }
        rows
    }
}

/// Runs one section in the empty directory `dir` and verifies what it left behind. `ready` is called
/// when everything is in place, `probe` around the measured transactions alone.
pub fn run(
    engine: &Engine,
    dir: &Path,
    plan: &Plan,
    size: &Size,
    ready: impl FnOnce() -> Result<()>,
    probe: &mut dyn Probe,
) -> Result<(Section, Option<Settings>)> {
    if engine.kind == Kind::Floor {
        return Ok((floor::run(dir, size, ready, probe)?, None));
    }
    let context = || format!("{}, {}", engine.name(), plan.workload.name());
    sql(engine, dir, plan, size, ready, probe).with_context(context).map(|(section, s)| (section, Some(s)))
}

fn sql(
    engine: &Engine,
    dir: &Path,
    plan: &Plan,
    size: &Size,
    ready: impl FnOnce() -> Result<()>,
    probe: &mut dyn Probe,
) -> Result<(Section, Settings)> {
    let path = dir.join("bench.db");
    let mut value = vec![0; size.row_bytes];
    {
        let mut c = engine.open(&path)?;
        c.execute_batch(SCHEMA)?;
        let transaction = c.transaction()?;
        {
            let mut insert = transaction.prepare(Workload::Insert.sql())?;
            for (key, seed) in &plan.preload {
                fill(&mut value, *seed);
                insert.execute((key, &value))?;
            }
        }
        transaction.commit()?;
        close(c)?;
    }
    let c = engine.open(&path)?;
    let rows: i64 = c.query_row("SELECT count(*) FROM t WHERE length(v) >= 0", [], |r| r.get(0))?;
    ensure!(usize::try_from(rows)? == plan.preload.len(), "{rows} rows after loading {}", plan.preload.len());
    if matches!(engine.kind, Kind::Stock { journal_mode: "wal", .. }) && size.wal_start == WalStart::Grown {
        grow_wal(&c)?;
    }
    {
        let mut update = c.prepare(Workload::Update.sql())?;
        for (key, seed) in &plan.warm_up {
            fill(&mut value, *seed);
            update.execute((key, &value))?;
        }
    }
    let section = {
        let mut statement = c.prepare(plan.workload.sql())?;
        ready()?;
        time_each(plan.steps.len(), size.limit, probe, |i| {
            let (key, seed) = plan.steps[i];
            let changed = if plan.workload == Workload::Delete {
                statement.execute([key])?
            } else {
                fill(&mut value, seed);
                statement.execute((key, &value))?
            };
            ensure!(changed == 1, "transaction {i} changed {changed} rows instead of one");
            Ok(())
        })?
    };
    let settings = engine.settings(&c)?;
    close(c)?;
    verify(&path, &plan.expected(section.transactions), &mut value)?;
    Ok((section, settings))
}

/// Writes page 1 again and again until the WAL is as large as it gets before a checkpoint, and makes
/// that checkpoint: the next transaction starts over at the front of the file.
fn grow_wal(c: &Connection) -> Result<()> {
    let pages: i64 = c.pragma_query_value(None, "wal_autocheckpoint", |r| r.get(0))?;
    let synchronous: i64 = c.pragma_query_value(None, "synchronous", |r| r.get(0))?;
    c.execute_batch("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0")?;
    for i in 0..=pages {
        c.pragma_update(None, "user_version", i)?;
    }
    c.pragma_update(None, "synchronous", synchronous)?;
    c.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?;
    c.execute_batch(&format!("PRAGMA wal_autocheckpoint = {pages}"))?;
    Ok(())
}

fn close(c: Connection) -> Result<()> {
    c.close().map_err(|(_, e)| e).context("closing the database")
}

/// Reads the closed database with SQLite's own VFS: sound, and row for row what was written.
fn verify(path: &Path, expected: &BTreeMap<i64, u64>, value: &mut [u8]) -> Result<()> {
    let c = engines::open_stock(path)?;
    let verdict: String = c.pragma_query_value(None, "integrity_check", |r| r.get(0))?;
    ensure!(verdict == "ok", "integrity_check says: {verdict}");
    let mut statement = c.prepare("SELECT k, v FROM t ORDER BY k")?;
    let mut rows = statement.query([])?;
    let mut found = 0;
    let mut wanted = expected.iter();
    while let Some(row) = rows.next()? {
        found += 1;
        let (key, seed) = wanted.next().with_context(|| format!("more than {} rows", expected.len()))?;
        fill(value, *seed);
        ensure!(row.get::<_, i64>(0)? == *key, "the row with key {key} is missing");
        ensure!(row.get_ref(1)?.as_blob()? == value, "the row with key {key} has a value nobody wrote last");
    }
    ensure!(found == expected.len(), "{found} rows instead of {}", expected.len());
    Ok(())
}

fn fill(value: &mut [u8], seed: u64) {
    let mut random = Random(seed);
    for chunk in value.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
}

/// SplitMix64: the same numbers from the same seed, on every machine and in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::NoProbe;
    use super::*;
    use crate::bench::engines::ALL;

    const SIZE: Size = Size { rows: 50, row_bytes: 21, transactions: 30, wal_start: WalStart::Empty, limit: None };

    #[test]
    fn a_plan_depends_on_its_seed_alone() {
        for w in Workload::ALL {
            assert_eq!(Plan::draw(w, &SIZE, 7), Plan::draw(w, &SIZE, 7));
            assert_ne!(Plan::draw(w, &SIZE, 7), Plan::draw(w, &SIZE, 8));
        }
    }

    #[test]
    fn deletes_find_their_rows_even_when_there_are_more_of_them_than_rows() {
        let plan = Plan::draw(Workload::Delete, &Size { rows: 5, ..SIZE }, 1);
        assert_eq!(plan.preload.len(), 30);
        assert!(plan.expected(30).is_empty());
        assert_eq!(plan.expected(10).len(), 20);
    }

    #[test]
    fn every_stock_engine_does_every_workload_and_is_verified() {
        for e in ALL.iter().filter(|e| matches!(e.kind, Kind::Stock { .. })) {
            for w in Workload::ALL {
                let dir = tempfile::tempdir().unwrap();
                let plan = Plan::draw(w, &SIZE, 3);
                let (section, _) = run(e, dir.path(), &plan, &SIZE, || Ok(()), &mut NoProbe).unwrap();
                assert_eq!(section.transactions, 30);
            }
        }
    }

    #[test]
    fn a_grown_wal_is_overwritten_and_checkpoints_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.db");
        let engine = ALL.iter().find(|e| e.preset == "wal-full").unwrap();
        let c = engine.open(&path).unwrap();
        c.execute_batch(SCHEMA).unwrap();
        c.execute("INSERT INTO t VALUES(1, zeroblob(9000))", []).unwrap();
        grow_wal(&c).unwrap();
        let wal_bytes = || std::fs::metadata(dir.path().join("bench.db-wal")).unwrap().len();
        let grown = wal_bytes();
        assert!(grown > 1000 * 4096);
        c.execute("UPDATE t SET v = zeroblob(9001)", []).unwrap();
        assert_eq!(wal_bytes(), grown);
        assert_eq!(engine.settings(&c).unwrap().wal_autocheckpoint, Some(1000));
    }

    #[test]
    fn verification_notices_a_lost_update() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan::draw(Workload::Update, &SIZE, 3);
        run(&ALL[0], dir.path(), &plan, &SIZE, || Ok(()), &mut NoProbe).unwrap();
        let path = dir.path().join("bench.db");
        let mut value = vec![0; SIZE.row_bytes];
        verify(&path, &plan.expected(30), &mut value).unwrap();
        assert!(verify(&path, &plan.expected(29), &mut value).is_err());
    }
}
