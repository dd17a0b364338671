//! A process of the histories: threads that append to lists and read them, each with a connection
//! and a history of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use fastrand::Rng;
use onewrite_bench::sql::{Db, Library, SqlError, Stmt, Value as Bound};
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::ffi;

use super::history::{self, Did, Mode, Told, VALUE_LEN, text_of};
use super::judge::{List, Value};
use crate::host::{self, Forked};
use crate::plan;

/// Operations of a transaction, at most.
const STEPS_MAX: u64 = 8;
/// Processes of a round, and forks of each, at most: a value has so many bits for them.
pub const PROCESSES_MAX: u64 = 1 << 12;
const FORKS_MAX: u64 = 15;
/// Threads of a process, at most.
pub const THREADS_MAX: u64 = 16;
/// How long a connection is tried to be opened.
const OPENS: Duration = Duration::from_secs(60);
/// How often a COMMIT that gets BUSY is repeated.
const COMMITS: u32 = 3;
/// The child of a fork that lives for so many seconds hangs, and is ended when the campaign has
/// noticed.
const HANGS_S: u32 = 180;
/// Slots: blobs are beside the lists of the first; the second is that of every other step.
const BIG: u64 = 0;
const HOT: u64 = 1;
/// So many times as much does a thread read as others write.
pub const READS_MORE: u64 = 8;
/// One step of so many forks.
const FORKS_EVERY: u32 = 500;

/// The fault of a client that lies, to see that the judge finds it.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Some transactions are rolled back and told as committed.
    Forget,
    /// Some transactions are committed in two halves.
    Split,
    /// Some reads are of a snapshot from before their transaction was begun.
    Stale,
}

/// The options of one process.
#[derive(Args, Clone, Debug)]
pub struct Client {
    /// Directory of the databases and histories
    #[arg(long)]
    pub at: PathBuf,
    /// Number of the process in its round
    #[arg(long)]
    pub number: u64,
    /// The seed of its choices
    #[arg(long)]
    pub seed: u64,
    /// Databases: the first, and those that are attached to it
    #[arg(long)]
    pub files: u8,
    /// URI parameters
    #[arg(long)]
    pub parameters: String,
    /// A libsqlite3 with onewrite inside; otherwise the SQLite linked into this program
    #[arg(long)]
    pub library: Option<PathBuf>,
    /// Threads
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
    /// Transactions of each thread
    #[arg(long, default_value_t = 0)]
    pub transactions: u64,
    /// Lists that are appended to at one time
    #[arg(long)]
    pub slots: u64,
    /// Values of a list, about
    #[arg(long)]
    pub length: usize,
    /// Bytes of the largest blob beside a list
    #[arg(long)]
    pub big: usize,
    /// Busy timeout in milliseconds
    #[arg(long)]
    pub busy_ms: i32,
    /// Transactions of a connection, at most
    #[arg(long)]
    pub session: u64,
    /// Forks now and then
    #[arg(long)]
    pub forks: bool,
    /// SQLite's own VFS instead of onewrite's
    #[arg(long)]
    pub stock: bool,
    /// Reads everything, and looks whether all pages are in order
    #[arg(long)]
    pub last: bool,
    /// Lies
    #[arg(long)]
    pub fault: Option<Fault>,
}

impl Client {
    /// The path of a database.
    pub fn path(at: &Path, file: u8) -> PathBuf {
        at.join(format!("{file}.db"))
    }

    fn library(&self) -> Result<Arc<Library>> {
        if let Some(path) = &self.library {
            return Library::load(path);
        }
        onewrite_rusqlite::register().map_err(|e| anyhow::anyhow!("register: {}", e.message))?;
        Ok(Library::linked())
    }

    fn uri(&self, file: u8) -> String {
        let path = Client::path(&self.at, file);
        match self.stock {
            true => format!("file:{}?vfs={}", path.display(), STOCK_VFS.to_string_lossy()),
            false => format!("file:{}?vfs=onewrite&{}", path.display(), self.parameters),
        }
    }

    /// Whether most transactions of a thread read one list.
    fn is_reader(&self, thread: u64) -> bool {
        (self.number + thread).is_multiple_of(3)
    }

    fn schema(file: u8) -> String {
        if file == 0 { "main".into() } else { format!("f{file}") }
    }

    /// A connection with all files, once others allow it.
    fn open(&self, library: &Arc<Library>, rng: &mut Rng) -> Result<Db> {
        let until = Instant::now() + OPENS;
        let synchronous = ["FULL", "FULL", "NORMAL"][rng.usize(0..3)];
        let cache = [5, 50, 2000][rng.usize(0..3)];
        loop {
            let opened = (|| {
                let db = Db::open(library, &self.uri(0), true)?;
                self.attach(&db, synchronous, cache).with_context(|| why(&db))?;
                Ok(db)
            })();
            match opened {
                Err(e) if is_busy(&e) && Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                opened => return opened,
            }
        }
    }

    fn attach(&self, db: &Db, synchronous: &str, cache: i32) -> Result<()> {
        db.busy_timeout(self.busy_ms)?;
        for file in 1..self.files {
            db.execute_batch(&format!("ATTACH '{}' AS {}", self.uri(file), Client::schema(file)))?;
        }
        for file in 0..self.files {
            let schema = Client::schema(file);
            db.execute_batch(&format!(
                "PRAGMA {schema}.synchronous={synchronous}; PRAGMA {schema}.cache_size={cache}; \
                         SELECT max(k) FROM {schema}.list"
            ))?;
        }
        Ok(())
    }
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<SqlError>().is_some_and(|e| e.code & 0xff == ffi::SQLITE_BUSY)
}

/// State that the threads of a process share.
struct Shared {
    /// Held by each thread while it is in SQLite.
    gate: RwLock<()>,
    forks: AtomicU64,
    children: Mutex<Vec<Forked>>,
    /// Threads that write, and have not ended.
    writers: AtomicU64,
    ends: AtomicBool,
}

/// Runs a process.
pub fn run(client: &Client) -> Result<()> {
    let library = client.library()?;
    if client.last { last(client, &library) } else { live(client, &library, None) }
}

/// The threads of a process. One that is to be killed kills itself after so many steps of a thread.
fn live(client: &Client, library: &Arc<Library>, dies: Option<u64>) -> Result<()> {
    let shared = Shared {
        gate: RwLock::new(()),
        forks: AtomicU64::new(0),
        children: Mutex::new(Vec::new()),
        writers: AtomicU64::new((0..client.threads).filter(|thread| !client.is_reader(*thread)).count() as u64),
        ends: AtomicBool::new(false),
    };
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..client.threads)
            .map(|number| {
                let shared = &shared;
                scope.spawn(move || {
                    let done = Thread::new(client, shared, number, dies).and_then(|mut one| one.run(library));
                    if done.is_err() {
                        shared.ends.store(true, Ordering::Relaxed);
                    }
                    done
                })
            })
            .collect();
        let ended = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a thread panicked")));
        ended.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()
    });
    for child in shared.children.into_inner().unwrap_or_default() {
        // How it ended is in its history.
        host::reap(child)?;
    }
    done
}

/// A thread and its state.
struct Thread<'a> {
    client: &'a Client,
    shared: &'a Shared,
    number: u64,
    rng: Rng,
    told: Told,
    sequence: u64,
    /// Most of its transactions read one list.
    is_reader: bool,
    /// Of each slot: how many lists were filled before the one that is appended to.
    filled: Vec<u64>,
    /// It kills its process after so many steps.
    dies: Option<u64>,
}

/// A transaction that is about to begin.
struct Plan {
    mode: Mode,
    steps: Vec<Planned>,
}

#[derive(Clone, Copy)]
struct Planned {
    slot: u64,
    list: List,
    appends: Option<Value>,
}

/// The statements for one file.
struct Statements<'db> {
    read: Stmt<'db>,
    append: Stmt<'db>,
    read_big: Stmt<'db>,
    write_big: Stmt<'db>,
}

impl<'db> Statements<'db> {
    fn new(db: &'db Db, file: u8) -> Result<Statements<'db>> {
        let schema = Client::schema(file);
        Ok(Statements {
            read: db.prepare(&format!("SELECT v FROM {schema}.list WHERE k = ?1"))?,
            append: db.prepare(&format!(
                "INSERT INTO {schema}.list(k, v) VALUES(?1, ?2) ON CONFLICT(k) DO UPDATE SET v = v || excluded.v"
            ))?,
            read_big: db.prepare(&format!("SELECT b FROM {schema}.big WHERE k = ?1"))?,
            write_big: db.prepare(&format!(
                "INSERT INTO {schema}.big(k, b) VALUES(?1, ?2) ON CONFLICT(k) DO UPDATE SET b = excluded.b"
            ))?,
        })
    }

    fn blob(statement: &mut Stmt<'_>, key: u64) -> Result<Vec<u8>> {
        statement.bind_int(1, i64::try_from(key)?)?;
        let value = if statement.step()? { statement.column_blob(0).to_vec() } else { Vec::new() };
        statement.reset();
        Ok(value)
    }

    /// The list, which must be one.
    fn list(&mut self, list: List) -> Result<Vec<u8>> {
        let text = Statements::blob(&mut self.read, list.key)?;
        history::values_of(&text).with_context(|| format!("list {list}"))?;
        Ok(text)
    }

    /// The blob beside a list repeats its last value: both were written by one transaction.
    fn big(&mut self, list: List, text: &[u8]) -> Result<()> {
        let big = Statements::blob(&mut self.read_big, list.key)?;
        let last = text.rchunks(VALUE_LEN).next().unwrap_or_default();
        let found = big.chunks(VALUE_LEN).find(|value| *value != last);
        let found = found.or(if big.is_empty() != text.is_empty() { Some(&[]) } else { None });
        let Some(found) = found.map(String::from_utf8_lossy) else { return Ok(()) };
        let (last, bytes) = (String::from_utf8_lossy(last), big.len());
        bail!(
            "transaction in part: list {list} ends with {last:?}, and the blob of {bytes} bytes beside it has {found:?}"
        )
    }
}

impl<'a> Thread<'a> {
    fn new(client: &'a Client, shared: &'a Shared, number: u64, dies: Option<u64>) -> Result<Thread<'a>> {
        let rng = Rng::with_seed(plan::mix(&[client.seed, client.number, number]));
        let told = Told::create(&client.at.join(format!("h-{}-{number}", client.number)))?;
        let filled = vec![0; client.slots as usize];
        let is_reader = client.is_reader(number);
        Ok(Thread { client, shared, number, rng, told, sequence: 0, is_reader, filled, dies })
    }

    fn run(&mut self, library: &Arc<Library>) -> Result<()> {
        let mut done = Ok(());
        while done.is_ok() && !self.is_over() {
            done = self.session(library);
            if let Err(e) = &done {
                self.told.wrong(&format!("{e:#}"))?;
            }
        }
        if !self.is_reader {
            self.shared.writers.fetch_sub(1, Ordering::Relaxed);
        }
        done
    }

    /// Whether it has done its part. One that only reads goes on while others write.
    fn is_over(&self) -> bool {
        let (part, writers) = (self.client.transactions, self.shared.writers.load(Ordering::Relaxed));
        let part = if self.is_reader && writers > 0 { part * READS_MORE } else { part };
        self.sequence >= part || self.shared.ends.load(Ordering::Relaxed)
    }

    /// The life of a connection.
    fn session(&mut self, library: &Arc<Library>) -> Result<()> {
        let gate = &self.shared.gate;
        let db = {
            let _in_sqlite = gate.read();
            self.client.open(library, &mut self.rng)?
        };
        {
            let mut statements = {
                let _in_sqlite = gate.read();
                self.statements(&db)?
            };
            let until = self.sequence + self.rng.u64(1..=self.client.session);
            while self.sequence < until && !self.is_over() {
                self.transaction(&db, library, &mut statements)?;
                self.sequence += 1;
            }
            let _in_sqlite = gate.read();
            drop(statements);
        }
        let _in_sqlite = gate.read();
        db.close()
    }

    fn statements<'db>(&mut self, db: &'db Db) -> Result<Vec<Statements<'db>>> {
        let until = Instant::now() + OPENS;
        loop {
            let all = (0..self.client.files).map(|file| Statements::new(db, file)).collect::<Result<Vec<_>>>();
            match all {
                Err(e) if is_busy(&e) && Instant::now() < until => {}
                all => return all,
            }
        }
    }

    fn plan(&mut self) -> Plan {
        let client = self.client;
        let only_short = self.is_reader && self.rng.u32(0..10) != 0;
        let mode = match only_short {
            true => Mode::Autocommit,
            false => [Mode::Autocommit, Mode::Deferred, Mode::Immediate][self.rng.usize(0..3)],
        };
        let count = if mode == Mode::Autocommit { 1 } else { self.rng.u64(1..=STEPS_MAX) };
        let reads_only = only_short || self.rng.u32(0..4) == 0;
        let mut steps: Vec<Planned> = (0..count)
            .map(|at| {
                // Blobs are dear.
                let slot = match self.rng.u32(0..40) {
                    0 if mode != Mode::Autocommit => BIG,
                    0..20 => HOT,
                    _ => self.rng.u64(HOT..client.slots),
                };
                let filled = self.filled.get(slot as usize).copied().unwrap_or(0);
                let list = List { file: (slot % u64::from(client.files)) as u8, key: filled * client.slots + slot };
                let value = client.number << 32 | self.number << 28 | self.sequence << 8 | at;
                Planned { slot, list, appends: (!reads_only && self.rng.bool()).then_some(value) }
            })
            .collect();
        // Two that take files in another order wait for each other until one gives up.
        if self.rng.u32(0..100) != 0 {
            steps.sort_by_key(|step| step.list.file);
        }
        Plan { mode, steps }
    }

    fn transaction(&mut self, db: &Db, library: &Arc<Library>, statements: &mut [Statements<'_>]) -> Result<()> {
        let plan = self.plan();
        let appends: Vec<(List, Value)> =
            plan.steps.iter().filter_map(|step| Some((step.list, step.appends?))).collect();
        let is_early = self.lies(Fault::Stale, 2) && plan.mode == Mode::Deferred && appends.is_empty();
        if is_early {
            db.execute_batch("BEGIN; SELECT max(k) FROM list")?;
            // For so long that another one commits to a list that this one reads.
            std::thread::sleep(Duration::from_millis(40));
        }
        self.told.begins(plan.mode, appends.into_iter())?;
        match self.attempt(db, library, statements, &plan, is_early) {
            Ok(did) => self.told.committed(&did),
            Err(e) => {
                let _in_sqlite = self.shared.gate.read();
                let why = format!("{e:#}; {}", why(db));
                if !is_busy(&e) {
                    bail!("{why}");
                }
                if !db.is_autocommit() {
                    db.execute_batch("ROLLBACK").context("after BUSY")?;
                }
                self.told.rolled_back(&why)
            }
        }
    }

    fn lies(&mut self, fault: Fault, one_of: u32) -> bool {
        self.client.fault == Some(fault) && self.rng.u32(0..one_of) == 0
    }

    fn attempt(
        &mut self,
        db: &Db,
        library: &Arc<Library>,
        statements: &mut [Statements<'_>],
        plan: &Plan,
        has_begun: bool,
    ) -> Result<Vec<Did>> {
        let begin = match plan.mode {
            Mode::Autocommit => None,
            Mode::Deferred => Some("BEGIN"),
            Mode::Immediate => Some("BEGIN IMMEDIATE"),
        };
        if let Some(begin) = begin.filter(|_| !has_begun) {
            let _in_sqlite = self.shared.gate.read();
            db.execute_batch(begin)?;
        }
        let mut did = Vec::with_capacity(plan.steps.len());
        for (at, step) in plan.steps.iter().enumerate() {
            self.dies()?;
            if self.client.forks && self.rng.u32(0..FORKS_EVERY) == 0 {
                self.fork(db, library);
            }
            if at > 0 && self.lies(Fault::Split, 10) {
                db.execute_batch("COMMIT; BEGIN")?;
            }
            did.push(self.step(statements, plan.mode, *step)?);
        }
        if begin.is_some() {
            self.commit(db)?;
        }
        Ok(did)
    }

    fn step(&mut self, statements: &mut [Statements<'_>], mode: Mode, step: Planned) -> Result<Did> {
        let _in_sqlite = self.shared.gate.read();
        let one = statements.get_mut(usize::from(step.list.file)).context("no such file")?;
        let is_big = step.slot == BIG && mode != Mode::Autocommit;
        let key = i64::try_from(step.list.key)?;
        let Some(value) = step.appends else {
            let text = one.list(step.list)?;
            if is_big {
                one.big(step.list, &text)?;
            }
            if text.len() >= self.client.length * VALUE_LEN {
                // The next one is begun.
                let filled = step.list.key / self.client.slots + 1;
                if let Some(known) = self.filled.get_mut(step.slot as usize) {
                    *known = (*known).max(filled);
                }
            }
            return Ok(Did::Read(step.list, text));
        };
        let text = text_of(value);
        if is_big {
            let times = self.rng.usize(1..=self.client.big / VALUE_LEN);
            one.write_big.bind_int(1, key)?;
            one.write_big.bind(2, &Bound::Blob(text.repeat(times).into_bytes()))?;
            one.write_big.run()?;
        }
        one.append.bind_int(1, key)?;
        one.append.bind(2, &Bound::Text(text))?;
        one.append.run()?;
        Ok(Did::Append(step.list, value))
    }

    fn commit(&mut self, db: &Db) -> Result<()> {
        let end = if self.lies(Fault::Forget, 200) { "ROLLBACK" } else { "COMMIT" };
        for _ in 1..COMMITS {
            let _in_sqlite = self.shared.gate.read();
            match db.execute_batch(end) {
                Err(e) if is_busy(&e) && !db.is_autocommit() => {}
                done => return done,
            }
        }
        let _in_sqlite = self.shared.gate.read();
        db.execute_batch(end)
    }

    /// Kills this process if its time has come.
    fn dies(&mut self) -> Result<()> {
        if let Some(left) = &mut self.dies {
            if *left == 0 {
                host::die()?;
            }
            *left = left.saturating_sub(1);
        }
        Ok(())
    }

    /// A child with a life of its own, in or between transactions.
    fn fork(&mut self, db: &Db, library: &Arc<Library>) {
        let forks = self.shared.forks.fetch_add(1, Ordering::Relaxed) + 1;
        if forks > FORKS_MAX {
            return;
        }
        let client = Client {
            number: self.client.number + forks * PROCESSES_MAX,
            threads: self.rng.u64(1..=2),
            transactions: self.rng.u64(1..200),
            forks: false,
            ..self.client.clone()
        };
        let dies = (self.rng.u32(0..3) == 0).then(|| self.rng.u64(0..200));
        let child = host::fork(&self.shared.gate, || i32::from(inherits(&client, db, library, dies).is_err()));
        if let (Some(child), Ok(mut children)) = (child, self.shared.children.lock()) {
            children.push(child);
        }
    }
}

/// The child of a fork: its parent's connection must serve it, as one of its own.
fn inherits(client: &Client, db: &Db, library: &Arc<Library>, dies: Option<u64>) -> Result<()> {
    host::end_after(HANGS_S);
    // In a transaction SQLite answers from its cache, without asking.
    let refused = || match db.execute_batch("SELECT count(*) FROM list") {
        Err(e) => !is_busy(&e),
        Ok(()) => false,
    };
    if db.is_autocommit() && !client.stock && refused() {
        let path = client.at.join(format!("h-{}-inherits", client.number));
        Told::create(&path)?.wrong("the child of a fork could not use its parent's connection")?;
    }
    live(client, library, dies)
}

/// onewrite's reason for the last error.
fn why(db: &Db) -> String {
    db.query_text("SELECT onewrite_last_error()").ok().flatten().unwrap_or_default()
}

/// Everything that the files have, as one transaction of the history; then the same through
/// SQLite's own VFS.
fn last(client: &Client, library: &Arc<Library>) -> Result<()> {
    let mut told = Told::create(&client.at.join(format!("h-{}-last", client.number)))?;
    let plain = Client { stock: true, ..client.clone() };
    let both = [(client, library.clone()), (&plain, Library::linked())];
    for (client, library) in &both {
        let read = last_through(client, library, &mut told);
        if let Err(e) = read {
            let vfs = if client.stock { STOCK_VFS } else { c"onewrite" }.to_string_lossy();
            told.wrong(&format!("at the end, through the VFS {vfs}: {e:#}"))?;
            return Err(e);
        }
    }
    Ok(())
}

fn last_through(client: &Client, library: &Arc<Library>, told: &mut Told) -> Result<()> {
    let db = client.open(library, &mut Rng::with_seed(client.seed))?;
    told.begins(Mode::Immediate, std::iter::empty())?;
    let mut did = Vec::new();
    db.execute_batch("BEGIN IMMEDIATE")?;
    for file in 0..client.files {
        let schema = Client::schema(file);
        let mut keys = Vec::new();
        let mut all = db.prepare(&format!("SELECT k FROM {schema}.list ORDER BY k"))?;
        while all.step()? {
            keys.push(u64::try_from(all.column_int(0))?);
        }
        let mut statements = Statements::new(&db, file)?;
        for key in keys {
            let list = List { file, key };
            let text = statements.list(list)?;
            if key % client.slots == BIG {
                statements.big(list, &text)?;
            }
            did.push(Did::Read(list, text));
        }
    }
    db.execute_batch("COMMIT")?;
    told.committed(&did)?;
    for file in 0..client.files {
        let schema = Client::schema(file);
        let answer = db.query_text(&format!("PRAGMA {schema}.integrity_check"))?;
        ensure!(answer.as_deref() == Some("ok"), "integrity_check of {schema}: {answer:?}");
    }
    db.close()
}
