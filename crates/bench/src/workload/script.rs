//! A script: transactions of any SQL, drawn before they are timed, done by one thread or by several
//! with a connection each. Its outcome is compared, table for table, with that of the same
//! transactions in a database in memory.

use super::rows::{grow_wal, warm_up_without_rows};
use super::{SectionStage, Size, WalStart, WorkloadCard};
use crate::engines::sql::{Db, Libraries, Stmt, Value};
use crate::engines::{self, BenchEngine, EngineSettings};
use crate::numbers::measure::{INTERRUPTED, Section, histogram, time_each};
use anyhow::{Context, Result, bail, ensure};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A statement, by its number in the script, and its values.
pub type ScriptStep = (usize, Vec<Value>);

#[derive(Debug, PartialEq, Eq)]
pub enum Transaction {
    /// Prepared statements, in BEGIN IMMEDIATE to COMMIT if there are several.
    Steps(Vec<ScriptStep>),
    /// Text, parsed each time, with its own BEGIN and COMMIT.
    Text(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conduct {
    /// The database is opened and closed around each transaction.
    pub reopen: bool,
    /// Transaction `i` belongs to thread `i` modulo this.
    pub threads: usize,
    /// A second database is attached, as `side`.
    pub attach: bool,
    /// A WAL is checkpointed as part of the last transaction.
    pub checkpoint: bool,
    /// The outcome does not depend on anything but the transactions.
    pub verify: bool,
}

impl Conduct {
    pub const PLAIN: Conduct = Conduct { reopen: false, threads: 1, attach: false, checkpoint: false, verify: true };
}

#[derive(Debug, PartialEq)]
pub struct Script {
    pub schema: String,
    pub statements: Vec<String>,
    /// Done in one transaction before.
    pub preload: Vec<ScriptStep>,
    pub transactions: Vec<Transaction>,
    /// Names and numbers of transactions of the parts it has, if it has parts.
    pub phases: Vec<(&'static str, usize)>,
    pub conduct: Conduct,
    pub key_order: &'static str,
    pub row_bytes: usize,
}

impl Script {
    pub fn describe(&self) -> WorkloadCard {
        let ops: usize =
            self.transactions.iter().map(|t| if let Transaction::Steps(s) = t { s.len() } else { 1 }).sum();
        let text =
            self.transactions.iter().find_map(|t| if let Transaction::Text(t) = t { Some(t.clone()) } else { None });
        WorkloadCard {
            schema: self.schema.clone(),
            prepared: text.is_none(),
            transaction: if text.is_some() {
                "text with its own BEGIN and COMMIT"
            } else {
                "one statement in autocommit, several in BEGIN IMMEDIATE to COMMIT"
            },
            statements: if let Some(text) = text { vec![text] } else { self.statements.clone() },
            key_order: self.key_order,
            preloaded_rows: self.preload.len(),
            row_bytes: self.row_bytes,
            transactions: self.transactions.len(),
            operations_per_transaction: ops as f64 / self.transactions.len().max(1) as f64,
            threads: self.conduct.threads,
            connections: self.conduct.threads,
            reopens: self.conduct.reopen,
        }
    }
}

struct PreparedScript<'db, 's> {
    db: &'db Db,
    script: &'s Script,
    made: Vec<Option<Stmt<'db>>>,
    frame: Option<(Stmt<'db>, Stmt<'db>)>,
}

impl<'db, 's> PreparedScript<'db, 's> {
    fn new(db: &'db Db, script: &'s Script) -> Self {
        PreparedScript { db, script, made: script.statements.iter().map(|_| None).collect(), frame: None }
    }

    fn step(&mut self, (number, values): &ScriptStep) -> Result<()> {
        let slot = self.made.get_mut(*number).context("a step without a statement")?;
        if slot.is_none() {
            *slot = Some(self.db.prepare(&self.script.statements[*number])?);
        }
        let statement = slot.as_mut().context("no statement")?;
        for (i, value) in values.iter().enumerate() {
            statement.bind(i + 1, value)?;
        }
        statement.run()?;
        Ok(())
    }

    fn transaction(&mut self, transaction: &Transaction) -> Result<()> {
        match transaction {
            Transaction::Text(sql) => self.db.execute_batch(sql),
            Transaction::Steps(steps) if steps.len() == 1 => self.step(&steps[0]),
            Transaction::Steps(steps) => {
                if self.frame.is_none() {
                    self.frame = Some((self.db.prepare("BEGIN IMMEDIATE")?, self.db.prepare("COMMIT")?));
                }
                if let Some((begin, _)) = &mut self.frame {
                    begin.run()?;
                }
                steps.iter().try_for_each(|step| self.step(step))?;
                if let Some((_, commit)) = &mut self.frame {
                    commit.run()?;
                }
                Ok(())
            }
        }
    }
}

fn load(db: &Db, script: &Script) -> Result<()> {
    db.execute_batch(&script.schema)?;
    db.execute_batch("BEGIN")?;
    let mut prepared = PreparedScript::new(db, script);
    script.preload.iter().try_for_each(|step| prepared.step(step))?;
    db.execute_batch("COMMIT")
}

pub fn run(
    engine: &BenchEngine,
    script: &Script,
    size: &Size,
    stage: SectionStage<'_>,
) -> Result<(Section, EngineSettings)> {
    let path = stage.dir.join("bench.db");
    let libraries = stage.libraries;
    let side = stage.dir.join("bench-side.db");
    let open = || -> Result<Db> {
        let db = engine.open(libraries, &path)?;
        if script.conduct.attach {
            engine.attach(&db, &side, SIDE)?;
        }
        Ok(db)
    };
    let db = open()?;
    load(&db, script)?;
    db.close()?;
    let done: Vec<usize>;
    let (section, settings) = if script.conduct.threads > 1 {
        let (section, counts) = side_by_side(script, size, &open, (stage.ready, stage.probe))?;
        done = counts;
        let db = open()?;
        (section, settings_of(engine, libraries, db)?)
    } else if script.conduct.reopen {
        warm_up_without_rows(&open()?)?;
        (stage.ready)()?;
        let section = time_each(script.transactions.len(), size.limit, stage.probe, |i| {
            let db = open()?;
            PreparedScript::new(&db, script).transaction(&script.transactions[i])?;
            db.close()
        })?;
        done = vec![section.transactions];
        let db = open()?;
        (section, settings_of(engine, libraries, db)?)
    } else {
        let db = open()?;
        if engine.is_stock_wal() && size.wal_start == WalStart::Grown {
            grow_wal(&db)?;
        }
        warm_up_without_rows(&db)?;
        (stage.ready)()?;
        let section = {
            let mut prepared = PreparedScript::new(&db, script);
            let mut ends = Vec::with_capacity(script.transactions.len());
            let start = Instant::now();
            let checkpoint = script.conduct.checkpoint && engine.is_stock_wal();
            let mut section = time_each(script.transactions.len(), size.limit, stage.probe, |i| {
                prepared.transaction(&script.transactions[i])?;
                if checkpoint && i + 1 == script.transactions.len() {
                    db.execute_batch("PRAGMA wal_checkpoint(PASSIVE)")?;
                }
                ends.push(start.elapsed().as_secs_f64());
                Ok(())
            })?;
            section.phases = phases(script, &ends);
            section
        };
        done = vec![section.transactions];
        (section, settings_of(engine, libraries, db)?)
    };
    verify(libraries, &path, script, &done)?;
    Ok((section, settings))
}

/// The name of the attached database.
const SIDE: &str = "side";

fn settings_of(engine: &BenchEngine, libraries: &Libraries, db: Db) -> Result<EngineSettings> {
    let settings = engine.settings(libraries, &db)?;
    db.close()?;
    Ok(settings)
}

/// Seconds of each phase that was finished.
fn phases(script: &Script, ends: &[f64]) -> Vec<(String, f64)> {
    let (mut at, mut from) = (0, 0.0);
    let mut found = Vec::new();
    for (name, n) in &script.phases {
        at += n;
        let Some(end) = at.checked_sub(1).and_then(|last| ends.get(last)) else { break };
        found.push(((*name).to_owned(), end - from));
        from = *end;
    }
    found
}

/// All threads at once. How many transactions each did.
fn side_by_side(
    script: &Script,
    size: &Size,
    open: &(impl Fn() -> Result<Db> + Sync),
    (ready, probe): (Box<dyn FnOnce() -> Result<()> + '_>, &mut dyn crate::numbers::measure::Probe),
) -> Result<(Section, Vec<usize>)> {
    let threads = script.conduct.threads;
    // The main thread opens the gate, between its probes.
    let (opened, gate, finished) = (Barrier::new(threads + 1), Barrier::new(threads + 1), Barrier::new(threads + 1));
    let work = |thread: usize| -> Result<(hdrhistogram::Histogram<u64>, usize)> {
        let set_up = open().and_then(|db| warm_up_without_rows(&db).map(|()| db));
        opened.wait();
        gate.wait();
        let outcome = set_up.and_then(|db| {
            let mut latency_ns = histogram();
            let mut done = 0;
            {
                let mut prepared = PreparedScript::new(&db, script);
                let start = Instant::now();
                for transaction in script.transactions.iter().skip(thread).step_by(threads) {
                    let before = Instant::now();
                    prepared.transaction(transaction)?;
                    latency_ns.record(before.elapsed().as_nanos() as u64)?;
                    done += 1;
                    if size.limit.is_some_and(|l| start.elapsed() > l) || INTERRUPTED.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            Ok((latency_ns, done, db))
        });
        finished.wait();
        let (latency_ns, done, db) = outcome?;
        db.close()?;
        Ok((latency_ns, done))
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        opened.wait();
        let begun = ready().and_then(|()| probe.begin());
        let start = Instant::now();
        gate.wait();
        finished.wait();
        let seconds = start.elapsed().as_secs_f64();
        let ended = probe.end();
        let mut latency_ns = histogram();
        let mut counts = Vec::new();
        for handle in handles {
            let (latency, done) = handle.join().map_err(|_| anyhow::anyhow!("a thread of the workload panicked"))??;
            latency_ns.add(&latency)?;
            counts.push(done);
        }
        begun.and(ended)?;
        if INTERRUPTED.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let transactions: usize = counts.iter().sum();
        let stopped = transactions < script.transactions.len();
        Ok((Section { transactions, seconds, latency_ns, phases: Vec::new(), stopped }, counts))
    })
}

/// Reads the closed database with SQLite's own VFS: sound, and with the rows of the same
/// transactions done in memory. `done`: how many each thread did.
fn verify(libraries: &Libraries, path: &Path, script: &Script, done: &[usize]) -> Result<()> {
    let found = engines::open_stock(libraries, path)?;
    if script.conduct.attach {
        engines::attach_stock(&found, &path.with_file_name("bench-side.db"), SIDE)?;
    }
    // Of every database that is attached.
    let verdict = found.query_text("PRAGMA integrity_check")?.unwrap_or_default();
    ensure!(verdict == "ok", "integrity_check says: {verdict}");
    if !script.conduct.verify {
        return Ok(());
    }
    let model = Db::open(libraries.get(None)?, ":memory:", false)?;
    if script.conduct.attach {
        model.execute_batch(&format!("ATTACH ':memory:' AS {SIDE}"))?;
    }
    load(&model, script)?;
    {
        let mut prepared = PreparedScript::new(&model, script);
        for (thread, n) in done.iter().enumerate() {
            for transaction in script.transactions.iter().skip(thread).step_by(done.len()).take(*n) {
                prepared.transaction(transaction)?;
            }
        }
    }
    let schemas: &[&str] = if script.conduct.attach { &["main", SIDE] } else { &["main"] };
    let (found, wanted) = (digest(&found, schemas)?, digest(&model, schemas)?);
    ensure!(found == wanted, "the tables are {found:?} (name, rows, digest) instead of {wanted:?}");
    Ok(())
}

/// Name, rows and a digest of each table's content.
fn digest(db: &Db, schemas: &[&str]) -> Result<Vec<(String, u64, u64)>> {
    let mut names = Vec::new();
    for schema in schemas {
        let of = format!(
            "SELECT name FROM {schema}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        );
        let mut tables = db.prepare(&of)?;
        while tables.step()? {
            names.push(String::from_utf8_lossy(tables.column_blob(0)).into_owned());
        }
    }
    let table = |name: &String| -> Result<(String, u64, u64)> {
        let quoted = name.replace('"', "\"\"");
        let mut rows = db.prepare(&format!("SELECT * FROM \"{quoted}\" ORDER BY 1, rowid"))?;
        let (mut n, mut hasher) = (0, DefaultHasher::new());
        while rows.step()? {
            n += 1;
            for i in 0..rows.column_count() {
                rows.column_type(i).hash(&mut hasher);
                rows.column_blob(i).hash(&mut hasher);
            }
        }
        Ok((name.clone(), n, hasher.finish()))
    };
    names.iter().map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::SIZE;
    use super::*;
    use crate::numbers::measure::NoProbe;

    #[test]
    fn a_lost_row_and_a_changed_row_are_noticed() {
        let libraries = Libraries::load([]).unwrap();
        let script = Script {
            schema: "CREATE TABLE t(a INTEGER PRIMARY KEY, b)".to_owned(),
            statements: vec!["INSERT INTO t(b) VALUES(?1)".to_owned()],
            preload: vec![(0, vec![Value::Int(1)])],
            transactions: (0..4).map(|i| Transaction::Steps(vec![(0, vec![Value::Int(i)]); 2])).collect(),
            phases: vec![("first", 1), ("rest", 3)],
            conduct: Conduct::PLAIN,
            key_order: "ascending",
            row_bytes: 8,
        };
        let dir = tempfile::tempdir().unwrap();
        let (ready, probe) = (Box::new(|| Ok(())), &mut NoProbe);
        let stage = SectionStage { libraries: &libraries, dir: dir.path(), original: None, ready, probe };
        let (section, _) = run(&engines::all()[0], &script, &SIZE, stage).unwrap();
        assert_eq!(section.phases.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["first", "rest"]);
        let path = dir.path().join("bench.db");
        verify(&libraries, &path, &script, &[4]).unwrap();
        assert!(verify(&libraries, &path, &script, &[3]).is_err());
        let db = engines::open_stock(&libraries, &path).unwrap();
        db.execute_batch("UPDATE t SET b = 77 WHERE a = 2").unwrap();
        drop(db);
        assert!(verify(&libraries, &path, &script, &[4]).is_err());
    }
}
