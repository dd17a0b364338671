//! The SQL workloads, one statement in autocommit per transaction: Mobibench's insert, update and delete of
//! one row; and reads, by key or of the whole table, with the file in the kernel's cache or not.

use super::engines::{self, Engine, Kind, Settings};
use super::floor;
use super::measure::{Probe, Section, time_each, time_each_after};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use rusqlite::{Connection, Statement};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// One statement per transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Insert,
    Update,
    Delete,
    Lookup,
    LookupCold,
    Scan,
    ScanCold,
}

impl Workload {
    pub const ALL: [Workload; 7] = [
        Workload::Insert,
        Workload::Update,
        Workload::Delete,
        Workload::Lookup,
        Workload::LookupCold,
        Workload::Scan,
        Workload::ScanCold,
    ];
    /// Measured when nobody says `--workload`.
    pub const DEFAULT: [Workload; 3] = [Workload::Insert, Workload::Update, Workload::Delete];

    pub fn name(self) -> &'static str {
        match self {
            Workload::Insert => "insert",
            Workload::Update => "update",
            Workload::Delete => "delete",
            Workload::Lookup => "lookup",
            Workload::LookupCold => "lookup-cold",
            Workload::Scan => "scan",
            Workload::ScanCold => "scan-cold",
        }
    }

    /// Whether transactions only read.
    pub fn reads(self) -> bool {
        !matches!(self, Workload::Insert | Workload::Update | Workload::Delete)
    }

    /// Whether the kernel holds nothing of the file when the section, or each scan, begins.
    pub fn is_cold(self) -> bool {
        matches!(self, Workload::LookupCold | Workload::ScanCold)
    }

    fn scans(self) -> bool {
        matches!(self, Workload::Scan | Workload::ScanCold)
    }

    /// Rows before the measured transactions, where nobody says. For reads more than fit into SQLite's
    /// cache, so that they reach the VFS.
    pub fn rows(self) -> usize {
        if self.reads() { 100_000 } else { 2000 }
    }

    /// Measured transactions, where nobody says.
    pub fn transactions(self) -> usize {
        match self {
            Workload::Lookup => 20_000,
            Workload::Scan => 20,
            Workload::ScanCold => 5,
            _ => 1000,
        }
    }

    /// The statement on a table with this many indexes.
    pub fn sql(self, indexes: usize) -> String {
        let each = |text: fn(usize) -> String| (1..=indexes).map(text).collect::<String>();
        match self {
            Workload::Insert => {
                let (columns, values) = (each(|i| format!(", i{i}")), each(|i| format!(", ?{}", i + 2)));
                format!("INSERT INTO t(k, v{columns}) VALUES(?1, ?2{values})")
            }
            Workload::Update => {
                format!("UPDATE t SET v = ?2{} WHERE k = ?1", each(|i| format!(", i{i} = ?{}", i + 2)))
            }
            Workload::Delete => "DELETE FROM t WHERE k = ?1".to_owned(),
            Workload::Lookup | Workload::LookupCold => "SELECT v FROM t WHERE k = ?1".to_owned(),
            // The plain sum of the keys would overflow, and an index would be read instead of the table.
            Workload::Scan | Workload::ScanCold => "SELECT sum(k & 65535) FROM t NOT INDEXED".to_owned(),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let names = || Workload::ALL.map(Workload::name).join(", ");
        let found = Workload::ALL.into_iter().find(|w| w.name() == s);
        found.ok_or_else(|| format!("there is no `{s}`; choose from {}", names()))
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
    /// Secondary indexes, each on an integer column of random values.
    pub indexes: usize,
    pub wal_start: WalStart,
    /// A section that takes longer stops early, and the table says so.
    pub limit: Option<Duration>,
}

/// Transactions before the measured ones: the first of a connection creates journals and logs.
pub const WARM_UP: usize = 10;

/// What the card says about the workloads that begin cold.
pub const COLD: &str = "before lookup-cold, and before each scan of scan-cold: fdatasync and posix_fadvise(DONTNEED) of \
                        the file, then a new connection";

/// The most `Size::indexes`.
pub const INDEXES_MAX: usize = 3;

/// The table: Mobibench's, with the value as a blob and without its unused third column.
pub fn schema(indexes: usize) -> String {
    let columns: String = (1..=indexes).map(|i| format!(", i{i} INTEGER")).collect();
    let made: String = (1..=indexes).map(|i| format!("; CREATE INDEX t_i{i} ON t(i{i})")).collect();
    format!("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB{columns}){made}")
}

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
            Workload::Lookup | Workload::LookupCold => {
                let newest: BTreeMap<i64, u64> = preload.iter().chain(&warm_up).copied().collect();
                let any = |_| preload[random.below(rows)].0;
                (0..size.transactions).map(any).map(|key| (key, newest[&key])).collect()
            }
            Workload::Scan | Workload::ScanCold => vec![(0, 0); size.transactions],
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
                Workload::Insert | Workload::Update => rows.insert(*key, *value),
                _ => break,
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
    let section = if plan.workload.reads() { read } else { write };
    section(engine, dir, plan, size, Box::new(ready), probe)
        .with_context(context)
        .map(|(section, s)| (section, Some(s)))
}

type Ready<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

fn write(
    engine: &Engine,
    dir: &Path,
    plan: &Plan,
    size: &Size,
    ready: Ready<'_>,
    probe: &mut dyn Probe,
) -> Result<(Section, Settings)> {
    let path = dir.join("bench.db");
    let mut row = Binder::new(size);
    {
        let mut c = engine.open(&path)?;
        load(&mut c, plan, size, &mut row)?;
        close(c)?;
    }
    let c = engine.open(&path)?;
    count(&c, plan)?;
    if matches!(engine.kind, Kind::Stock { journal_mode: "wal", .. }) && size.wal_start == WalStart::Grown {
        grow_wal(&c)?;
    }
    {
        let mut update = c.prepare(&Workload::Update.sql(size.indexes))?;
        for warm_up in &plan.warm_up {
            row.execute(&mut update, *warm_up)?;
        }
    }
    let section = {
        let mut statement = c.prepare(&plan.workload.sql(size.indexes))?;
        ready()?;
        time_each(plan.steps.len(), size.limit, probe, |i| {
            let changed = if plan.workload == Workload::Delete {
                statement.execute([plan.steps[i].0])?
            } else {
                row.execute(&mut statement, plan.steps[i])?
            };
            ensure!(changed == 1, "transaction {i} changed {changed} rows instead of one");
            Ok(())
        })?
    };
    let settings = engine.settings(&c)?;
    close(c)?;
    verify(&path, &plan.expected(section.transactions), size)?;
    Ok((section, settings))
}

/// Every engine reads a file that stock SQLite made, the same to the byte.
fn read(
    engine: &Engine,
    dir: &Path,
    plan: &Plan,
    size: &Size,
    ready: Ready<'_>,
    probe: &mut dyn Probe,
) -> Result<(Section, Settings)> {
    let path = dir.join("bench.db");
    let mut row = Binder::new(size);
    {
        let mut c = engines::open_stock(&path)?;
        c.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -262144")?;
        load(&mut c, plan, size, &mut row)?;
        let transaction = c.transaction()?;
        {
            let mut update = transaction.prepare(&Workload::Update.sql(size.indexes))?;
            for warm_up in &plan.warm_up {
                row.execute(&mut update, *warm_up)?;
            }
        }
        transaction.commit()?;
        close(c)?;
    }
    // Sets the journal mode, which the file remembers.
    close(engine.open(&path)?)?;
    let expected = plan.expected(0);
    let sum: i64 = expected.keys().map(|key| key & 65535).sum();

    // Keeps the database live while the measuring connection comes and goes.
    let writer = if engine.is_live() { Some(engine.open(&path)?) } else { None };
    if let Some((c, warm_up)) = writer.as_ref().zip(plan.warm_up.last()) {
        row.execute(&mut c.prepare(&Workload::Update.sql(size.indexes))?, *warm_up)?;
    }
    let sql = plan.workload.sql(size.indexes);
    let open = || -> Result<Connection> {
        if plan.workload.is_cold() {
            forget_pages(&path)?;
        }
        let c = engine.open(&path)?;
        if !plan.workload.is_cold() {
            count(&c, plan)?;
        }
        // Reads the schema, and makes the engine look at the file.
        c.prepare_cached(&sql)?;
        Ok(c)
    };
    let scan = |c: &Connection| -> Result<()> {
        let found: i64 = c.prepare_cached(&sql)?.query_row([], |r| r.get(0))?;
        ensure!(found == sum, "the scan sums up to {found} instead of {sum}");
        Ok(())
    };
    let (section, c) = if plan.workload == Workload::ScanCold {
        let c = std::cell::RefCell::new(None);
        let reopen = || {
            c.take().map_or(Ok(()), close)?;
            c.replace(Some(open()?));
            Ok(())
        };
        ready()?;
        let section = time_each_after(plan.steps.len(), size.limit, probe, reopen, || {
            scan(c.borrow().as_ref().context("no connection")?)
        })?;
        (section, c.take().context("no connection")?)
    } else {
        let c = open()?;
        ready()?;
        let section = if plan.workload.scans() {
            time_each(plan.steps.len(), size.limit, probe, |_| scan(&c))?
        } else {
            let mut statement = c.prepare(&sql)?;
            time_each(plan.steps.len(), size.limit, probe, |i| {
                let (key, seed) = plan.steps[i];
                let wanted = row.value_of(seed);
                let same = statement.query_row([key], |r| Ok(r.get_ref(0)?.as_blob()? == wanted))?;
                ensure!(same, "the row with key {key} has a value nobody wrote last");
                Ok(())
            })?
        };
        (section, c)
    };
    let settings = engine.settings(&c)?;
    close(c)?;
    writer.map_or(Ok(()), close)?;
    verify(&path, &expected, size)?;
    Ok((section, settings))
}

/// Makes the table and its rows.
fn load(c: &mut Connection, plan: &Plan, size: &Size, row: &mut Binder) -> Result<()> {
    c.execute_batch(&schema(size.indexes))?;
    let transaction = c.transaction()?;
    {
        let mut insert = transaction.prepare(&Workload::Insert.sql(size.indexes))?;
        for preload in &plan.preload {
            row.execute(&mut insert, *preload)?;
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Reads every page of the table: they are in the kernel's cache afterwards.
fn count(c: &Connection, plan: &Plan) -> Result<()> {
    let rows: i64 = c.query_row("SELECT count(*) FROM t NOT INDEXED WHERE length(v) >= 0", [], |r| r.get(0))?;
    ensure!(usize::try_from(rows)? == plan.preload.len(), "{rows} rows after loading {}", plan.preload.len());
    Ok(())
}

/// Makes the kernel forget what it holds of the file. No connection of SQLite's own VFS may be open here:
/// closing the file would take its locks away.
fn forget_pages(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    // Only what has been written can be forgotten.
    rustix::fs::fdatasync(&file)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("posix_fadvise")
}

/// Binds rows: a key, and from the row's number its value and what its indexed columns hold.
struct Binder {
    value: Vec<u8>,
    indexes: usize,
}

impl Binder {
    fn new(size: &Size) -> Binder {
        Binder { value: vec![0; size.row_bytes], indexes: size.indexes }
    }

    fn value_of(&mut self, seed: u64) -> &[u8] {
        fill(&mut self.value, seed);
        &self.value
    }

    fn execute(&mut self, statement: &mut Statement<'_>, (key, seed): Row) -> Result<usize> {
        statement.raw_bind_parameter(1, key)?;
        statement.raw_bind_parameter(2, self.value_of(seed))?;
        for i in 0..self.indexes {
            statement.raw_bind_parameter(i + 3, indexed(seed, i))?;
        }
        Ok(statement.raw_execute()?)
    }
}

/// What indexed column `i` of the row with this number holds.
fn indexed(seed: u64, i: usize) -> i64 {
    (Random(!seed ^ i as u64).next() >> 1) as i64
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
fn verify(path: &Path, expected: &BTreeMap<i64, u64>, size: &Size) -> Result<()> {
    let c = engines::open_stock(path)?;
    let verdict: String = c.pragma_query_value(None, "integrity_check", |r| r.get(0))?;
    ensure!(verdict == "ok", "integrity_check says: {verdict}");
    let mut value = vec![0; size.row_bytes];
    let mut statement = c.prepare("SELECT * FROM t ORDER BY k")?;
    let mut rows = statement.query([])?;
    let mut found = 0;
    let mut wanted = expected.iter();
    while let Some(row) = rows.next()? {
        found += 1;
        let (key, seed) = wanted.next().with_context(|| format!("more than {} rows", expected.len()))?;
        fill(&mut value, *seed);
        ensure!(row.get::<_, i64>(0)? == *key, "the row with key {key} is missing");
        let mut same = row.get_ref(1)?.as_blob()? == value;
        for i in 0..size.indexes {
            same &= row.get::<_, i64>(i + 2)? == indexed(*seed, i);
        }
        ensure!(same, "the row with key {key} has a value nobody wrote last");
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

    const SIZE: Size =
        Size { rows: 50, row_bytes: 21, transactions: 30, indexes: 0, wal_start: WalStart::Empty, limit: None };

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
    fn every_engine_does_every_workload_it_is_for_and_is_verified() {
        engines::register_onewrite().unwrap();
        for e in &ALL {
            for w in Workload::ALL.into_iter().filter(|w| e.does(*w)) {
                for indexes in [0, INDEXES_MAX] {
                    let dir = tempfile::tempdir().unwrap();
                    let size = Size { indexes, ..SIZE };
                    let plan = Plan::draw(w, &size, 3);
                    let (section, _) = run(e, dir.path(), &plan, &size, || Ok(()), &mut NoProbe).unwrap();
                    assert_eq!(section.transactions, 30);
                }
            }
        }
    }

    #[test]
    fn names_are_found_and_unknown_ones_teach() {
        for w in Workload::ALL {
            assert_eq!(w.name().parse(), Ok(w));
        }
        let error = "look".parse::<Workload>().unwrap_err();
        assert!(error.contains("`look`") && error.contains("lookup-cold") && error.contains("insert"), "{error}");
    }

    #[test]
    fn schema_and_statements() {
        assert_eq!(schema(0), "CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)");
        assert_eq!(Workload::Insert.sql(0), "INSERT INTO t(k, v) VALUES(?1, ?2)");
        assert_eq!(Workload::Update.sql(2), "UPDATE t SET v = ?2, i1 = ?3, i2 = ?4 WHERE k = ?1");
    }

    #[test]
    fn a_grown_wal_is_overwritten_and_checkpoints_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.db");
        let engine = ALL.iter().find(|e| e.preset == "wal-full").unwrap();
        let c = engine.open(&path).unwrap();
        c.execute_batch(&schema(0)).unwrap();
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
        verify(&path, &plan.expected(30), &SIZE).unwrap();
        assert!(verify(&path, &plan.expected(29), &SIZE).is_err());
    }
}
