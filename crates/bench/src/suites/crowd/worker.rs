//! One connection of a section: its orders, its work step by step, and its report. It lives in a
//! thread or in a process of its own.

use super::engine::{CrowdEngine, is_busy};
use super::periodic::{self, PeriodicOrder};
use crate::numbers::measure::{INTERRUPTED, histogram};
use crate::numbers::random::Random;
use anyhow::{Context, Result, anyhow, bail, ensure};
use rusqlite::{Connection, Statement};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Rows of the table of keys and values before the steps.
pub const ROWS: u64 = 2_000;
pub const VALUE_BYTES: usize = 128;
/// That table, of a connection that may be the first.
const CREATE_IF_NONE: &str = "CREATE TABLE IF NOT EXISTS t(k INTEGER PRIMARY KEY, v BLOB NOT NULL)";

/// That table, with [`ROWS`] rows.
pub fn create_table(c: &Connection, seed: u64) -> Result<()> {
    c.execute_batch(CREATE_IF_NONE)?;
    let mut insert = c.prepare("INSERT INTO t VALUES(?1, ?2)")?;
    for key in keys((seed, ROWS)) {
        insert.execute((key, vec![key as u8; VALUE_BYTES]))?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerStep {
    /// Durable autocommit inserts at random keys, for so long.
    Insert { ms: u64 },
    /// Lookups of rows that were there before, for so long.
    Lookup { ms: u64 },
    /// For so long, each in a table of its own: a transaction of one insert and a read of so many
    /// rows.
    Think { ms: u64, rows: u64 },
    /// For so long: transactions that read a row, pause, and insert one.
    ReadThinkWrite { ms: u64, think_ms: u64 },
    /// The step opens the connection, and creates the table if there is none. Each round inserts a
    /// row in autocommit, one after a read and a pause, and one in BEGIN IMMEDIATE.
    ColdStart { rounds: u64, think_ms: u64 },
    /// DB Bench, each in a table of its own: so many rows inserted, one at a time.
    ItemInserts(u64),
    /// So many searches by the index.
    ItemSearches(u64),
    /// So many rows in turn.
    ItemRows(u64),
    /// So many rows deleted, one at a time.
    ItemDeletes(u64),
    /// So many rows updated, one at a time, all connections in one table or each in its own.
    ItemUpdates { n: u64, overlapping: bool },
}

impl WorkerStep {
    /// Whether it takes as long as it is told.
    pub fn is_timed(&self) -> bool {
        matches!(
            self,
            WorkerStep::Insert { .. }
                | WorkerStep::Lookup { .. }
                | WorkerStep::Think { .. }
                | WorkerStep::ReadThinkWrite { .. }
        )
    }
}

/// The orders of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerOrder {
    pub engine: CrowdEngine,
    pub path: PathBuf,
    pub seed: u64,
    /// Which of the connections it is.
    pub number: usize,
    /// Seed and number of the rows that were there before.
    pub preloaded: (u64, u64),
    pub steps: Vec<WorkerStep>,
}

/// The orders of a process of the suite.
#[derive(Debug, Serialize, Deserialize)]
pub enum ProcessOrder {
    Connection(WorkerOrder),
    Periodic(PeriodicOrder),
}

/// The report of a step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorkerResult {
    pub operations: u64,
    pub elapsed_us: u64,
    /// The longest that one operation took, or the end of the section if that came first.
    pub wait_us_max: u64,
    /// BUSY seen.
    pub busy: u64,
    /// Of lookups: latencies with their counts.
    pub latency_ns: Vec<(u64, u64)>,
}

/// The keys of the rows that were there before.
fn keys((seed, rows): (u64, u64)) -> Vec<i64> {
    let mut random = Random::new(seed);
    (0..rows).map(|_| (random.next() >> 1) as i64).collect()
}

/// Does everything, with `wait` before each step and `tell` after it.
fn work(
    order: &WorkerOrder,
    mut wait: impl FnMut() -> Result<()>,
    mut tell: impl FnMut(WorkerResult) -> Result<()>,
) -> Result<()> {
    if let [WorkerStep::ColdStart { rounds, think_ms }] = order.steps[..] {
        wait()?;
        return tell(cold_start(order, rounds, Duration::from_millis(think_ms))?);
    }
    let c = order.engine.open(&order.path)?;
    for step in &order.steps {
        let mut doer = Doer { order, c: &c, random: Random::new(order.seed), busy: 0 };
        tell(doer.step(*step, &mut wait)?)?;
    }
    Ok(())
}

/// Opens, creates the table and inserts, all at once with the others.
fn cold_start(order: &WorkerOrder, rounds: u64, think: Duration) -> Result<WorkerResult> {
    let begun = Instant::now();
    let mut busy = 0;
    let mut again = |e: anyhow::Error| {
        busy += 1;
        if e.downcast_ref::<rusqlite::Error>().is_some_and(is_busy) { Ok(()) } else { Err(e) }
    };
    let c = loop {
        match order.engine.open(&order.path) {
            Ok(c) => break c,
            Err(e) => again(e)?,
        }
    };
    while let Err(e) = c.execute_batch(&format!("BEGIN; {CREATE_IF_NONE}; COMMIT")) {
        again(e.into())?;
        if !c.is_autocommit() {
            c.execute_batch("ROLLBACK")?;
        }
    }
    let opened = begun.elapsed();
    let mut doer = Doer { order, c: &c, random: Random::new(order.seed), busy };
    let mut transactions = ReadAndInsert::prepare(&c, order.number)?;
    let mut result = doer.repeat(Bound::Count(3 * rounds), false, |key, i| match i % 3 {
        0 => transactions.insert(key),
        1 => transactions.read_think_insert(key, think),
        _ => transactions.insert_immediate(key),
    })?;
    result.elapsed_us = begun.elapsed().as_micros() as u64;
    result.wait_us_max = result.wait_us_max.max(opened.as_micros() as u64);
    Ok(result)
}

/// Transactions on the table of keys and values. One that is refused is rolled back.
struct ReadAndInsert<'c> {
    c: &'c Connection,
    value: [u8; VALUE_BYTES],
    read: Statement<'c>,
    insert: Statement<'c>,
}

impl<'c> ReadAndInsert<'c> {
    fn prepare(c: &'c Connection, own: usize) -> Result<ReadAndInsert<'c>> {
        let read = c.prepare("SELECT v FROM t WHERE k >= ?1 ORDER BY k LIMIT 1")?;
        Ok(ReadAndInsert {
            c,
            value: [own as u8; VALUE_BYTES],
            read,
            insert: c.prepare("INSERT INTO t VALUES(?1, ?2)")?,
        })
    }

    fn insert(&mut self, key: i64) -> rusqlite::Result<()> {
        self.insert.execute((key, &self.value[..])).map(drop)
    }

    fn insert_immediate(&mut self, key: i64) -> rusqlite::Result<()> {
        self.within("BEGIN IMMEDIATE", |of| of.insert(key))
    }

    fn read_think_insert(&mut self, key: i64, think: Duration) -> rusqlite::Result<()> {
        self.within("BEGIN", |of| {
            of.read.query([key])?.next()?;
            std::thread::sleep(think);
            of.insert(key)
        })
    }

    fn within(&mut self, begin: &str, once: impl FnOnce(&mut Self) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
        let c = self.c;
        c.execute_batch(begin)?;
        let done = once(self).and_then(|()| c.execute_batch("COMMIT"));
        if done.is_err() && !c.is_autocommit() {
            c.execute_batch("ROLLBACK")?;
        }
        done
    }
}

struct Doer<'a> {
    order: &'a WorkerOrder,
    c: &'a Connection,
    random: Random,
    busy: u64,
}

impl Doer<'_> {
    /// Transactions of one insert and a read of `read` rows.
    fn think(&mut self, bound: Bound, read: u64, wait: &mut impl FnMut() -> Result<()>) -> Result<WorkerResult> {
        let (rows, own) = (self.order.preloaded.1, self.order.number);
        let sql = |text: &str| self.c.prepare(text);
        let [mut begin, mut commit, mut roll_back] = [sql("BEGIN")?, sql("COMMIT")?, sql("ROLLBACK")?];
        let mut insert = sql(&format!("INSERT INTO item{own}(id, number, name) VALUES(?1, ?1 * 7, hex(?2))"))?;
        let mut think =
            sql(&format!("SELECT total(length(name) + number % 7) FROM item{own} NOT INDEXED WHERE id < ?1"))?;
        wait()?;
        self.repeat(bound, false, |key, i| {
            begin.execute([])?;
            let mut once = || -> rusqlite::Result<()> {
                insert.execute(((rows + i) as i64, key))?;
                think.query_row([read as i64], |r| r.get::<_, f64>(0))?;
                commit.execute([]).map(drop)
            };
            let done = once();
            // A refused transaction is rolled back, and then done again.
            if done.is_err() && !self.c.is_autocommit() {
                roll_back.execute([])?;
            }
            done
        })
    }

    /// `n` rows by their key, in one statement.
    fn rows_in_turn(&mut self, n: u64, wait: &mut impl FnMut() -> Result<()>) -> Result<WorkerResult> {
        let own = self.order.number;
        let mut iterate = self.c.prepare(&format!("SELECT id, number, name FROM item{own} ORDER BY id LIMIT ?1"))?;
        wait()?;
        let mut found = 0;
        let mut done = self.repeat(Bound::Count(1), false, |_, _| {
            let mut all = iterate.query([n as i64])?;
            found = 0;
            while let Some(row) = all.next()? {
                row.get_ref(2)?;
                found += 1;
            }
            Ok(())
        })?;
        ensure!(found == n, "{found} rows in turn instead of {n}");
        done.operations = n;
        Ok(done)
    }

    /// Prepares, waits for the others, and does it.
    fn step(&mut self, step: WorkerStep, wait: &mut impl FnMut() -> Result<()>) -> Result<WorkerResult> {
        let (rows, own) = (self.order.preloaded.1, self.order.number);
        let sql = |text: &str| self.c.prepare(text);
        match step {
            WorkerStep::Insert { ms } => {
                let mut insert = sql("INSERT INTO t VALUES(?1, ?2)")?;
                let value = [own as u8; VALUE_BYTES];
                wait()?;
                self.repeat(Bound::Ms(ms), false, |key, _| insert.execute((key, &value[..])).map(drop))
            }
            WorkerStep::Lookup { ms } => {
                let keys = keys(self.order.preloaded);
                let mut lookup = sql("SELECT v FROM t WHERE k = ?1")?;
                wait()?;
                self.repeat(Bound::Ms(ms), true, |key, _| {
                    lookup.query_row([keys[key as usize % keys.len()]], |r| r.get_ref(0).map(drop))
                })
            }
            WorkerStep::Think { ms, rows: read } => self.think(Bound::Ms(ms), read, wait),
            WorkerStep::ReadThinkWrite { ms, think_ms } => {
                let mut transactions = ReadAndInsert::prepare(self.c, own)?;
                let think = Duration::from_millis(think_ms);
                wait()?;
                self.repeat(Bound::Ms(ms), false, |key, _| transactions.read_think_insert(key, think))
            }
            WorkerStep::ColdStart { .. } => bail!("a cold start is the only step of its section"),
            WorkerStep::ItemInserts(n) => {
                let mut insert = sql(&format!("INSERT INTO item{own}(id, number, name) VALUES(?1, ?1 * 7, hex(?2))"))?;
                wait()?;
                self.repeat(Bound::Count(n), false, |key, i| insert.execute(((rows + i) as i64, key)).map(drop))
            }
            WorkerStep::ItemSearches(n) => {
                let mut search = sql(&format!("SELECT name FROM item{own} WHERE number = ?1"))?;
                wait()?;
                self.repeat(Bound::Count(n), false, |key, _| {
                    search.query_row([key % rows as i64 * 7], |r| r.get_ref(0).map(drop))
                })
            }
            WorkerStep::ItemRows(n) => self.rows_in_turn(n, wait),
            WorkerStep::ItemDeletes(n) => {
                let mut order: Vec<i64> = (0..rows as i64).collect();
                self.random.shuffle(&mut order);
                let mut delete = sql(&format!("DELETE FROM item{own} WHERE id = ?1"))?;
                wait()?;
                self.repeat(Bound::Count(n), false, |_, i| delete.execute([order[i as usize]]).map(drop))
            }
            WorkerStep::ItemUpdates { n, overlapping } => {
                let table = if overlapping { 0 } else { own };
                let mut update = sql(&format!("UPDATE item{table} SET hits = hits + 1 WHERE id = ?1"))?;
                wait()?;
                self.repeat(Bound::Count(n), false, |key, _| {
                    if update.execute([key % rows as i64])? == 1 {
                        Ok(())
                    } else {
                        Err(rusqlite::Error::QueryReturnedNoRows)
                    }
                })
            }
        }
    }

    /// Does `once`, with a random number that is not negative and the number of the operation,
    /// again after each BUSY.
    fn repeat(
        &mut self,
        bound: Bound,
        keep: bool,
        mut once: impl FnMut(i64, u64) -> rusqlite::Result<()>,
    ) -> Result<WorkerResult> {
        let mut latency_ns = keep.then(histogram);
        let (mut operations, mut longest) = (0, Duration::ZERO);
        let begun = Instant::now();
        let mut last = begun;
        'operations: while bound.goes_on(operations, last - begun) {
            let random = (self.random.next() >> 1) as i64;
            loop {
                match once(random, operations) {
                    Ok(()) => break,
                    Err(e) if is_busy(&e) => self.busy += 1,
                    Err(e) => return Err(e.into()),
                }
                ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
                // A connection that is starved until the end of the section waits, too.
                if !bound.goes_on(operations, begun.elapsed()) {
                    longest = longest.max(last.elapsed());
                    break 'operations;
                }
            }
            let now = Instant::now();
            operations += 1;
            longest = longest.max(now - last);
            if let Some(h) = &mut latency_ns {
                h.record((now - last).as_nanos() as u64)?;
            }
            last = now;
        }
        Ok(WorkerResult {
            operations,
            elapsed_us: begun.elapsed().as_micros().max(1) as u64,
            wait_us_max: longest.as_micros() as u64,
            busy: self.busy,
            latency_ns: latency_ns
                .map(|h| h.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect())
                .unwrap_or_default(),
        })
    }
}

/// How long a step goes on.
#[derive(Clone, Copy)]
enum Bound {
    Ms(u64),
    Count(u64),
}

impl Bound {
    fn goes_on(self, operations: u64, elapsed: Duration) -> bool {
        match self {
            Bound::Ms(ms) => elapsed < Duration::from_millis(ms),
            Bound::Count(n) => operations < n,
        }
    }
}

/// Threads of this process, or a process for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    Threads,
    Processes,
}

/// A connection at work, from outside.
pub enum Worker {
    Thread { go: Sender<()>, said: Receiver<WorkerMessage>, thread: JoinHandle<Result<()>> },
    Process { child: Child, go: ChildStdin, said: BufReader<ChildStdout> },
}

/// A message of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerMessage {
    Ready,
    Did(WorkerResult),
}

impl Worker {
    /// Starts it. It waits before its first step.
    pub fn start(place: WorkerKind, order: WorkerOrder) -> Result<Worker> {
        match place {
            WorkerKind::Threads => {
                let (go, wait) = channel();
                let (tell, said) = channel();
                let thread = std::thread::spawn(move || {
                    let gone = || anyhow!("the section ended early");
                    work(
                        &order,
                        || {
                            tell.send(WorkerMessage::Ready)
                                .map_err(|_| gone())
                                .and_then(|()| wait.recv().map_err(|_| gone()))
                        },
                        |done| tell.send(WorkerMessage::Did(done)).map_err(|_| gone()),
                    )
                });
                Ok(Worker::Thread { go, said, thread })
            }
            WorkerKind::Processes => {
                let mut child = Command::new(std::env::current_exe()?)
                    .args(["bench", "--worker", &serde_json::to_string(&ProcessOrder::Connection(order))?])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .context("starting a process")?;
                let (go, out) = child.stdin.take().zip(child.stdout.take()).context("no pipes to a process")?;
                Ok(Worker::Process { child, go, said: BufReader::new(out) })
            }
        }
    }

    fn hear(&mut self) -> Result<WorkerMessage> {
        match self {
            Worker::Thread { said, .. } => said.recv().context("a thread of the suite ended early"),
            Worker::Process { said, .. } => {
                let mut line = String::new();
                ensure!(said.read_line(&mut line)? > 0, "a process of the suite failed");
                Ok(serde_json::from_str(&line)?)
            }
        }
    }

    pub fn wait_ready(&mut self) -> Result<()> {
        let said = self.hear()?;
        ensure!(matches!(said, WorkerMessage::Ready), "a connection of the suite said {said:?} instead of Ready");
        Ok(())
    }

    pub fn go(&mut self) -> Result<()> {
        match self {
            Worker::Thread { go, .. } => go.send(()).context("a thread of the suite ended early"),
            Worker::Process { go, .. } => Ok(go.write_all(b"go\n").and_then(|()| go.flush())?),
        }
    }

    pub fn done(&mut self) -> Result<WorkerResult> {
        match self.hear()? {
            WorkerMessage::Did(done) => Ok(done),
            WorkerMessage::Ready => Err(anyhow!("a connection of the suite said Ready too early")),
        }
    }

    /// Waits for its end, or says why it failed.
    pub fn end(self) -> Result<()> {
        match self {
            Worker::Thread { go, thread, .. } => {
                drop(go);
                thread.join().map_err(|_| anyhow!("a thread of the suite panicked"))?
            }
            Worker::Process { mut child, go, .. } => {
                drop(go);
                ensure!(child.wait()?.success(), "a process of the suite failed");
                Ok(())
            }
        }
    }
}

/// The process of a connection: it is told `order` and speaks by lines.
pub fn process(order: &str) -> Result<()> {
    let order = match serde_json::from_str(order).context("--worker is for the bench itself")? {
        ProcessOrder::Connection(order) => order,
        ProcessOrder::Periodic(order) => return periodic::process(&order),
    };
    crate::engines::register_onewrite().map_err(anyhow::Error::msg)?;
    let say = |said: WorkerMessage| -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&said)?)?;
        Ok(out.flush()?)
    };
    let wait = || {
        say(WorkerMessage::Ready)?;
        let mut line = String::new();
        ensure!(std::io::stdin().read_line(&mut line)? > 0, "the section ended early");
        Ok(())
    };
    work(&order, wait, |done| say(WorkerMessage::Did(done)))
}
