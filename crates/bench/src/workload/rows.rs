//! One table, one row per statement: inserts, updates and deletes, each its own transaction or
//! several in one; and reads, by key or of the whole table, with the file in the kernel's cache or
//! not.

use super::{SectionStage, Size, WARM_UP, WalStart, Workload, WorkloadCard, originals, recovery};
use crate::engines::sql::{Db, Libraries, Stmt};
use crate::engines::{self, BenchEngine, EngineSettings};
use crate::host;
use crate::numbers::measure::{Section, time_each, time_each_after};
use crate::numbers::random::Random;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

pub const INDEXES_MAX: usize = 3;

/// The table: Mobibench's, with the value as a blob and without its unused third column.
pub fn schema(indexes: usize) -> String {
    let columns: String = (1..=indexes).map(|i| format!(", i{i} INTEGER")).collect();
    let made: String = (1..=indexes).map(|i| format!("; CREATE INDEX t_i{i} ON t(i{i})")).collect();
    format!("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB{columns}){made}")
}

pub fn sql(workload: Workload, indexes: usize) -> String {
    let each = |text: fn(usize) -> String| (1..=indexes).map(text).collect::<String>();
    match workload {
        Workload::Insert | Workload::Recovery(..) => {
            let (columns, values) = (each(|i| format!(", i{i}")), each(|i| format!(", ?{}", i + 2)));
            format!("INSERT INTO t(k, v{columns}) VALUES(?1, ?2{values})")
        }
        Workload::Update => {
            format!("UPDATE t SET v = ?2{} WHERE k = ?1", each(|i| format!(", i{i} = ?{}", i + 2)))
        }
        Workload::Delete => "DELETE FROM t WHERE k = ?1".to_owned(),
        Workload::Lookup | Workload::LookupCold => "SELECT v FROM t WHERE k = ?1".to_owned(),
        // The plain sum of the keys would overflow, and an index would be read instead of the
        // table.
        Workload::Scan | Workload::ScanCold => "SELECT sum(k & 65535) FROM t NOT INDEXED".to_owned(),
        Workload::Script(_) => String::new(),
    }
}

/// A row: its key, and the number its value is made from.
pub type StoredRow = (i64, u64);

/// The rows a section begins with, and those it touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    pub workload: Workload,
    /// The seed of the rows before: they are the same in every run.
    pub seed: u64,
    pub run: u64,
    pub preload: Vec<StoredRow>,
    pub warm_up: Vec<StoredRow>,
    /// `ops_per_tx` of them make a transaction.
    pub steps: Vec<StoredRow>,
    size: RowsSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowsSize {
    row_bytes: usize,
    indexes: usize,
    operations: usize,
    transactions: usize,
}

impl Rows {
    /// The rows before are drawn from `seed`, the work of a run from that and its number.
    pub fn draw(workload: Workload, size: &Size, seed: u64, run: u64) -> Rows {
        let steps = match workload {
            // Those before the crash, and the one that it interrupts.
            Workload::Recovery(_, inserts) => inserts + 1,
            _ if workload.reads() => size.transactions,
            _ => size.transactions * size.ops_per_tx,
        };
        // Each deleted row must exist, and an update of an "empty" database needs rows too.
        let rows = match workload {
            Workload::Delete => size.rows.max(steps),
            Workload::Update if size.rows == 0 => steps,
            Workload::Insert => size.rows,
            _ => size.rows.max(1),
        };
        let mut random = Random::new(seed);
        let mut taken = HashSet::with_capacity(rows + steps);
        let mut fresh = |random: &mut Random| loop {
            let key = (random.next() >> 1) as i64;
            if taken.insert(key) {
                return (key, random.next());
            }
        };
        let preload: Vec<StoredRow> = (0..rows).map(|_| fresh(&mut random)).collect();
        let mut random = Random::new(!seed ^ (run + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let warm_up = if rows == 0 || workload.recovers() { 0 } else { WARM_UP };
        let warm_up = (0..warm_up).map(|_| (preload[random.below(rows)].0, random.next())).collect();
        let steps = match workload {
            Workload::Insert | Workload::Recovery(..) => (0..steps).map(|_| fresh(&mut random)).collect(),
            Workload::Update => (0..steps).map(|_| (preload[random.below(rows)].0, random.next())).collect(),
            Workload::Lookup | Workload::LookupCold => {
                let newest: HashMap<i64, u64> = preload.iter().chain(&warm_up).copied().collect();
                let any = |_| preload[random.below(rows)].0;
                (0..steps).map(any).map(|key| (key, newest[&key])).collect()
            }
            Workload::Delete => {
                let mut order = preload.clone();
                random.shuffle(&mut order);
                order.truncate(steps);
                order
            }
            _ => vec![(0, 0); steps],
        };
        let size = RowsSize {
            row_bytes: size.row_bytes,
            indexes: size.indexes,
            operations: if workload.is_one_row() { size.ops_per_tx } else { 1 },
            transactions: size.transactions,
        };
        Rows { workload, seed, run, preload, warm_up, steps, size }
    }

    /// The rows there must be after the first `done` steps, by their keys.
    pub fn expected(&self, done: usize) -> Vec<StoredRow> {
        let mut changed: BTreeMap<i64, Option<u64>> = self.warm_up.iter().map(|(key, v)| (*key, Some(*v))).collect();
        for (key, value) in &self.steps[..done] {
            match self.workload {
                Workload::Delete => changed.insert(*key, None),
                Workload::Insert | Workload::Update | Workload::Recovery(..) => changed.insert(*key, Some(*value)),
                _ => break,
            };
        }
        let kept = self.preload.iter().filter(|(key, _)| !changed.contains_key(key)).copied();
        let mut rows: Vec<StoredRow> = kept.collect();
        rows.extend(changed.iter().filter_map(|(key, value)| Some((*key, (*value)?))));
        rows.sort_unstable();
        rows
    }

    pub fn describe(&self) -> WorkloadCard {
        let RowsSize { row_bytes, indexes, operations: ops, transactions } = self.size;
        WorkloadCard {
            schema: schema(indexes),
            statements: vec![sql(self.workload, indexes)],
            prepared: true,
            key_order: "random 63-bit keys",
            preloaded_rows: self.preload.len(),
            row_bytes,
            transactions,
            operations_per_transaction: ops as f64,
            transaction: if self.workload.recovers() {
                "from opening the database to its first row, after a process was killed in the last write of a commit"
            } else if ops == 1 {
                "one statement, autocommit"
            } else {
                "BEGIN IMMEDIATE to COMMIT"
            },
            threads: 1,
            connections: 1,
            reopens: self.workload.recovers(),
        }
    }
}

pub fn run(
    engine: &BenchEngine,
    plan: &Rows,
    size: &Size,
    stage: SectionStage<'_>,
) -> Result<(Section, EngineSettings)> {
    match plan.workload {
        Workload::Recovery(after, _) => recovery::run(engine, plan, size, after, stage),
        workload if workload.reads() => read(engine, plan, size, stage),
        _ => write(engine, plan, size, stage),
    }
}

/// Puts the database that a section begins with at `path`.
pub fn place(
    engine: &BenchEngine,
    plan: &Rows,
    size: &Size,
    (libraries, original): (&Libraries, Option<&Path>),
    path: &Path,
) -> Result<()> {
    match original {
        Some(original) => {
            std::fs::copy(original, path).context("copying the database that a section begins with")?;
        }
        None => originals::make(libraries, engine, plan, size, path)?,
    }
    // Sets the journal mode, which the file remembers.
    engine.open(libraries, path)?.close()
}

fn write(engine: &BenchEngine, plan: &Rows, size: &Size, stage: SectionStage<'_>) -> Result<(Section, EngineSettings)> {
    let path = stage.dir.join("bench.db");
    let mut row = Binder::new(size);
    place(engine, plan, size, (stage.libraries, stage.original), &path)?;
    let c = engine.open(stage.libraries, &path)?;
    count(&c, plan)?;
    if engine.is_stock_wal() && size.wal_start == WalStart::Grown {
        grow_wal(&c)?;
    }
    if plan.warm_up.is_empty() {
        warm_up_without_rows(&c)?;
    } else {
        let mut update = c.prepare(&sql(Workload::Update, size.indexes))?;
        for warm_up in &plan.warm_up {
            row.execute(&mut update, *warm_up)?;
        }
    }
    let ops = size.ops_per_tx;
    let section = {
        let mut statement = c.prepare(&sql(plan.workload, size.indexes))?;
        let (mut begin, mut commit) = (c.prepare("BEGIN IMMEDIATE")?, c.prepare("COMMIT")?);
        (stage.ready)()?;
        time_each(plan.steps.len() / ops, size.limit, stage.probe, |i| {
            if ops > 1 {
                begin.run()?;
            }
            for step in &plan.steps[i * ops..(i + 1) * ops] {
                if plan.workload == Workload::Delete {
                    statement.bind_int(1, step.0)?;
                    statement.run()?;
                } else {
                    row.execute(&mut statement, *step)?;
                }
                let changed = c.changes();
                ensure!(changed == 1, "transaction {i} changed {changed} rows instead of one");
            }
            if ops > 1 {
                commit.run()?;
            }
            Ok(())
        })?
    };
    let settings = engine.settings(stage.libraries, &c)?;
    c.close()?;
    verify(stage.libraries, &path, &plan.expected(section.transactions * ops), size)?;
    Ok((section, settings))
}

/// Does the updates before a section that reads.
fn warm_up(libraries: &Libraries, path: &Path, plan: &Rows, size: &Size, row: &mut Binder) -> Result<()> {
    let c = engines::open_stock(libraries, path)?;
    c.execute_batch("PRAGMA synchronous = OFF; BEGIN")?;
    {
        let mut update = c.prepare(&sql(Workload::Update, size.indexes))?;
        for warm_up in &plan.warm_up {
            row.execute(&mut update, *warm_up)?;
        }
    }
    c.execute_batch("COMMIT")?;
    c.close()
}

fn read(engine: &BenchEngine, plan: &Rows, size: &Size, stage: SectionStage<'_>) -> Result<(Section, EngineSettings)> {
    let path = stage.dir.join("bench.db");
    let mut row = Binder::new(size);
    place(engine, plan, size, (stage.libraries, stage.original), &path)?;
    warm_up(stage.libraries, &path, plan, size, &mut row)?;
    let expected = plan.expected(0);
    let sum: i64 = expected.iter().map(|(key, _)| key & 65535).sum();

    // Keeps the database live while the measuring connection comes and goes.
    let writer = if engine.is_live() { Some(engine.open(stage.libraries, &path)?) } else { None };
    if let Some((c, warm_up)) = writer.as_ref().zip(plan.warm_up.last()) {
        row.execute(&mut c.prepare(&sql(Workload::Update, size.indexes))?, *warm_up)?;
    }
    let text = sql(plan.workload, size.indexes);
    let open = || -> Result<Db> {
        if plan.workload.is_cold() {
            host::forget_pages(&path)?;
        }
        let c = engine.open(stage.libraries, &path)?;
        if !plan.workload.is_cold() {
            count(&c, plan)?;
        }
        // Reads the schema, and makes the engine look at the file.
        c.prepare(&text)?;
        Ok(c)
    };
    let scan = |c: &Db| -> Result<()> {
        let found = c.query_int(&text)?.unwrap_or(0);
        ensure!(found == sum, "the scan sums up to {found} instead of {sum}");
        Ok(())
    };
    let (section, c) = if plan.workload == Workload::ScanCold {
        let c = std::cell::RefCell::new(None);
        let reopen = || {
            c.take().map_or(Ok(()), Db::close)?;
            c.replace(Some(open()?));
            Ok(())
        };
        (stage.ready)()?;
        let section = time_each_after(plan.steps.len(), size.limit, stage.probe, reopen, || {
            scan(c.borrow().as_ref().context("no connection")?)
        })?;
        (section, c.take().context("no connection")?)
    } else {
        let c = open()?;
        (stage.ready)()?;
        let section = if plan.workload.scans() {
            time_each(plan.steps.len(), size.limit, stage.probe, |_| scan(&c))?
        } else {
            let mut statement = c.prepare(&text)?;
            time_each(plan.steps.len(), size.limit, stage.probe, |i| {
                let (key, seed) = plan.steps[i];
                let wanted = row.value_of(seed);
                statement.bind_int(1, key)?;
                let same = statement.step()? && statement.column_blob(0) == wanted;
                statement.reset();
                ensure!(same, "the row with key {key} has a value nobody wrote last");
                Ok(())
            })?
        };
        (section, c)
    };
    let settings = engine.settings(stage.libraries, &c)?;
    c.close()?;
    writer.map_or(Ok(()), Db::close)?;
    verify(stage.libraries, &path, &expected, size)?;
    Ok((section, settings))
}

/// Reads every page of the table: they are in the kernel's cache afterwards.
fn count(c: &Db, plan: &Rows) -> Result<()> {
    let rows = c.query_int("SELECT count(*) FROM t NOT INDEXED WHERE length(v) >= 0")?.unwrap_or(0);
    ensure!(usize::try_from(rows)? == plan.preload.len(), "{rows} rows after loading {}", plan.preload.len());
    Ok(())
}

/// Binds rows: a key, and from the row's number its value and those of its indexed columns.
pub struct Binder {
    value: Vec<u8>,
    indexes: usize,
}

impl Binder {
    pub fn new(size: &Size) -> Binder {
        Binder { value: vec![0; size.row_bytes], indexes: size.indexes }
    }

    fn value_of(&mut self, seed: u64) -> &[u8] {
        Random::new(seed).fill(&mut self.value);
        &self.value
    }

    pub fn execute(&mut self, statement: &mut Stmt<'_>, (key, seed): StoredRow) -> Result<()> {
        statement.bind_int(1, key)?;
        statement.bind_blob(2, self.value_of(seed))?;
        for i in 0..self.indexes {
            statement.bind_int(i + 3, indexed(seed, i))?;
        }
        statement.run().map(drop)
    }
}

/// The value of indexed column `i` of the row with this number.
fn indexed(seed: u64, i: usize) -> i64 {
    (Random::new(!seed ^ i as u64).next() >> 1) as i64
}

/// Transactions that change no table.
pub fn warm_up_without_rows(c: &Db) -> Result<()> {
    (1..=WARM_UP).try_for_each(|i| c.execute_batch(&format!("PRAGMA user_version = {i}")))
}

/// Writes page 1 again and again until the WAL is as large as it gets before a checkpoint, and
/// makes that checkpoint: the next transaction starts over at the front of the file.
pub fn grow_wal(c: &Db) -> Result<()> {
    let pages = c.query_int("PRAGMA wal_autocheckpoint")?.unwrap_or(0);
    let synchronous = c.query_int("PRAGMA synchronous")?.unwrap_or(2);
    c.execute_batch("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0")?;
    for i in 0..=pages {
        c.execute_batch(&format!("PRAGMA user_version = {i}"))?;
    }
    c.execute_batch(&format!("PRAGMA synchronous = {synchronous}; PRAGMA wal_checkpoint(RESTART)"))?;
    c.execute_batch(&format!("PRAGMA wal_autocheckpoint = {pages}"))
}

/// For an index of millions of rows to be compared with its table in memory.
const VERIFY_CACHE_KIB: usize = 256 << 10;

/// Reads the closed database with SQLite's own VFS: sound, and row for row as written.
pub fn verify(libraries: &Libraries, path: &Path, expected: &[StoredRow], size: &Size) -> Result<()> {
    let c = engines::open_stock(libraries, path)?;
    c.execute_batch(&format!("PRAGMA cache_size = -{VERIFY_CACHE_KIB}"))?;
    let verdict = c.query_text("PRAGMA integrity_check")?.unwrap_or_default();
    ensure!(verdict == "ok", "integrity_check says: {verdict}");
    let mut value = vec![0; size.row_bytes];
    let mut rows = c.prepare("SELECT * FROM t ORDER BY k")?;
    let mut found = 0;
    let mut wanted = expected.iter();
    while rows.step()? {
        found += 1;
        let (key, seed) = wanted.next().with_context(|| format!("more than {} rows", expected.len()))?;
        Random::new(*seed).fill(&mut value);
        ensure!(rows.column_int(0) == *key, "the row with key {key} is missing");
        let mut same = rows.column_blob(1) == value;
        for i in 0..size.indexes {
            same &= rows.column_int(i + 2) == indexed(*seed, i);
        }
        ensure!(same, "the row with key {key} has a value nobody wrote last");
    }
    ensure!(found == expected.len(), "{found} rows instead of {}", expected.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::SIZE;
    use super::*;
    use crate::engines::all;
    use crate::numbers::measure::NoProbe;

    fn libraries() -> Libraries {
        Libraries::load([]).unwrap()
    }

    #[test]
    fn deletes_find_their_rows_even_when_there_are_more_of_them_than_rows() {
        let plan = Rows::draw(Workload::Delete, &Size { rows: 5, ..SIZE }, 1, 0);
        assert_eq!(plan.preload.len(), 30);
        assert!(plan.expected(30).is_empty());
        assert_eq!(plan.expected(10).len(), 20);
    }

    #[test]
    fn an_empty_database_has_the_rows_that_updates_need_and_no_others() {
        let size = Size { rows: 0, ..SIZE };
        assert_eq!(Rows::draw(Workload::Update, &size, 1, 0).preload.len(), 30);
        assert_eq!(Rows::draw(Workload::Insert, &size, 1, 0).preload.len(), 0);
    }

    #[test]
    fn schema_and_statements() {
        assert_eq!(schema(0), "CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)");
        assert_eq!(sql(Workload::Insert, 0), "INSERT INTO t(k, v) VALUES(?1, ?2)");
        assert_eq!(sql(Workload::Update, 2), "UPDATE t SET v = ?2, i1 = ?3, i2 = ?4 WHERE k = ?1");
    }

    #[test]
    fn a_grown_wal_is_overwritten_and_checkpoints_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.db");
        let engine = engines::stock("wal-full", "wal", 2);
        let c = engine.open(&libraries(), &path).unwrap();
        c.execute_batch(&schema(0)).unwrap();
        c.execute_batch("INSERT INTO t VALUES(1, zeroblob(9000))").unwrap();
        grow_wal(&c).unwrap();
        let wal_bytes = || std::fs::metadata(dir.path().join("bench.db-wal")).unwrap().len();
        let grown = wal_bytes();
        assert!(grown > 1000 * 4096);
        c.execute_batch("UPDATE t SET v = zeroblob(9001)").unwrap();
        assert_eq!(wal_bytes(), grown);
        assert_eq!(engine.settings(&libraries(), &c).unwrap().wal_autocheckpoint, Some(1000));
    }

    #[test]
    fn verification_notices_a_lost_update() {
        let dir = tempfile::tempdir().unwrap();
        let libraries = libraries();
        let plan = Rows::draw(Workload::Update, &SIZE, 3, 0);
        let (ready, probe) = (Box::new(|| Ok(())), &mut NoProbe);
        let stage = SectionStage { libraries: &libraries, dir: dir.path(), original: None, ready, probe };
        run(&all()[0], &plan, &SIZE, stage).unwrap();
        let path = dir.path().join("bench.db");
        verify(&libraries, &path, &plan.expected(30), &SIZE).unwrap();
        assert!(verify(&libraries, &path, &plan.expected(29), &SIZE).is_err());
    }
}
