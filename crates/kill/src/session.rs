//! One short session: a process opens the database, does one task and ends, in order or not. It
//! reports each step before and after it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use fastrand::Rng;
use rusqlite::{Connection, OpenFlags};

use crate::commands;
use crate::connect::tell;
use crate::known::Ids;
use crate::plan;

/// Bytes of the longest line: a pipe takes it whole.
const LINE_MAX: usize = 3500;
/// Busy timeout of onewrite.
const WAITS: Duration = Duration::from_secs(15);
/// Busy timeout of stock SQLite.
const STOCK_WAITS: Duration = Duration::from_millis(300);

/// The task of a session.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A few transactions of one row.
    Short,
    /// Forty transactions of one row.
    Many,
    /// One transaction larger than the cache.
    Large,
    /// Deletes old rows and gives their pages back.
    Clean,
    /// A few transactions, then a checkpoint of SQLite's WAL.
    Checkpoint,
    /// Reads all rows twice in one transaction.
    Read,
    /// Reads all rows twice with `mode=ro`.
    ReadOnly,
    /// Alone on the database: reads, writes and closes in order; stock SQLite checks all pages.
    Last,
    /// Alone on a new database, loaded from the output of `onewrite dump`.
    Load,
}

impl What {
    fn writes(self) -> bool {
        !matches!(self, What::Read | What::ReadOnly) && !self.is_alone()
    }

    /// Alone, it expects no error.
    pub fn is_alone(self) -> bool {
        matches!(self, What::Last | What::Load)
    }
}

/// One session.
#[derive(Args, Clone, Debug)]
pub struct Session {
    /// The database
    #[arg(long)]
    pub at: PathBuf,
    /// Number of the session in its reports
    #[arg(long)]
    pub number: u64,
    /// Seed of rows and choices
    #[arg(long)]
    pub plan: u64,
    /// URI parameters
    #[arg(long, default_value = "")]
    pub parameters: String,
    /// Task
    #[arg(long)]
    pub what: What,
    /// Through stock SQLite
    #[arg(long)]
    pub stock: bool,
    /// Transactions
    #[arg(long, default_value_t = 0)]
    pub transactions: u64,
    /// Rows of each transaction
    #[arg(long, default_value_t = 0)]
    pub rows: u64,
    /// Id of the first row
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// Rows below are old and may be deleted
    #[arg(long, default_value_t = 0)]
    pub below: u64,
}

/// The campaign judges the SQLite errors that it reports.
pub fn run(session: &Session) -> Result<()> {
    let rng = Rng::with_seed(plan::mix(&[session.plan, session.number]));
    let mut one = One { session, rng, begun: Instant::now() };
    one.say("H")?;
    let db = match one.open() {
        Ok(db) => db,
        Err(e) => return one.failed(&e),
    };
    if let Err(e) = one.steps(&db) {
        one.failed(&e)?;
    }
    if !session.what.is_alone() && one.rng.u32(0..5) == 0 {
        one.say("N exits")?;
        std::process::exit(0);
    }
    one.say("N closes")?;
    match db.close().map_err(|(_, e)| e).context("close") {
        Ok(()) => one.say("N closed"),
        Err(e) => one.failed(&e),
    }
}

struct One<'a> {
    session: &'a Session,
    rng: Rng,
    begun: Instant,
}

impl One<'_> {
    fn say(&self, what: &str) -> Result<()> {
        tell(&format!("{} {what}", self.session.number)).context("the campaign is gone")
    }

    /// Reports code, extended code and message.
    fn failed(&self, e: &anyhow::Error) -> Result<()> {
        let Some(code) = e.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error) else {
            return self.say(&format!("V {}", format!("{e:#}").replace('\n', " ")));
        };
        let code = code.extended_code;
        let why = if self.session.stock { None } else { onewrite_rusqlite::last_error() };
        let ms = self.begun.elapsed().as_millis();
        let text = format!("F {} {code} after {ms} ms, {e:#}; {}", code & 0xff, why.unwrap_or_default());
        self.say(&text.replace('\n', " "))
    }

    fn open(&self) -> Result<Connection> {
        let path = self.session.at.display();
        let uri = if self.session.stock {
            format!("file:{path}?vfs={}", onewrite_rusqlite::STOCK_VFS.to_string_lossy())
        } else {
            onewrite_rusqlite::register().map_err(|e| anyhow::anyhow!("register: {}", e.message))?;
            let mode = if self.session.what == What::ReadOnly { "&mode=ro" } else { "" };
            format!("file:{path}?vfs=onewrite&{}{mode}", self.session.parameters)
        };
        // SQLite's default threading mode; only a load creates the file.
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
        flags.set(OpenFlags::SQLITE_OPEN_CREATE, self.session.what == What::Load);
        let db = Connection::open_with_flags(&uri, flags).context("open")?;
        db.busy_timeout(if self.session.stock { STOCK_WAITS } else { WAITS }).context("open")?;
        Ok(db)
    }

    fn steps(&mut self, db: &Connection) -> Result<()> {
        if self.session.what == What::Load {
            self.load(db)?;
        }
        if self.session.what.is_alone() {
            return self.last(db);
        }
        if self.session.what != What::ReadOnly {
            self.settings(db)?;
        }
        if !self.session.what.writes() {
            for _ in 0..self.rng.u32(1..3) {
                self.read(db)?;
            }
            return Ok(());
        }
        for number in 0..self.session.transactions {
            self.write(db, self.session.first + number * self.session.rows)?;
        }
        self.afterwards(db)
    }

    fn settings(&mut self, db: &Connection) -> Result<()> {
        let modes = ["delete", "truncate", "persist", "wal"];
        if let Some(mode) = modes.get(self.rng.usize(0..8)) {
            let pragma = format!("PRAGMA journal_mode={mode}");
            self.say(&format!("N {pragma}"))?;
            match db.query_row(&pragma, [], |row| row.get::<_, String>(0)) {
                Ok(is) => self.say(&format!("N {is}"))?,
                // The journal mode stays as it is.
                Err(e) => self.failed(&anyhow::Error::from(e).context(pragma))?,
            }
        }
        let pragma = match self.rng.u32(0..8) {
            0 => "PRAGMA synchronous=normal",
            1 => "PRAGMA synchronous=extra",
            2 => "PRAGMA cache_size=5",
            3 if !self.session.stock => "PRAGMA synchronous=off",
            _ => return Ok(()),
        };
        self.say(&format!("N {pragma}"))?;
        if let Err(e) = db.execute_batch(pragma) {
            self.failed(&anyhow::Error::from(e).context(pragma))?;
        }
        Ok(())
    }

    fn write(&mut self, db: &Connection, first: u64) -> Result<()> {
        let (rows, below) = (self.session.rows, self.session.below);
        let drawn = self.rng.u32(0..30);
        let deletes = below > 0 && (drawn == 0 || self.session.what == What::Clean);
        let rolls_back = !deletes && drawn == 1;
        self.say(&if rolls_back { format!("N rolls back {first}") } else { format!("T {first} {rows}") })?;
        if deletes {
            self.say(&format!("D {below}"))?;
        }
        db.execute_batch("BEGIN IMMEDIATE").context("begin")?;
        self.say("N begun")?;
        self.insert(db, first).context("insert")?;
        if deletes {
            db.execute("DELETE FROM t WHERE id < ?1", [below as i64]).context("delete")?;
        }
        if rolls_back {
            return db.execute_batch("ROLLBACK").context("rollback");
        }
        self.say("N commits")?;
        db.execute_batch("COMMIT").context("commit")?;
        self.say(&format!("A {first} {rows}"))?;
        if deletes { self.say("K") } else { Ok(()) }
    }

    fn insert(&mut self, db: &Connection, first: u64) -> rusqlite::Result<()> {
        let len_max = if self.session.what == What::Large { 6000 } else { 300 };
        let mut insert = db.prepare("INSERT INTO t VALUES (?1, ?2, ?3)")?;
        for id in first..first + self.session.rows {
            let len = self.rng.usize(1..=len_max);
            insert.execute((id as i64, body(self.session.plan, id, len), len as i64))?;
        }
        Ok(())
    }

    /// Others may block these statements.
    fn afterwards(&mut self, db: &Connection) -> Result<()> {
        let statements: &[&str] = match self.session.what {
            What::Clean if self.rng.u32(0..3) == 0 => &["PRAGMA incremental_vacuum", "VACUUM"],
            What::Clean => &["PRAGMA incremental_vacuum"],
            What::Checkpoint => &["PRAGMA wal_checkpoint(TRUNCATE)"],
            _ => return Ok(()),
        };
        for statement in statements {
            self.say(&format!("N {statement}"))?;
            run_all(db, statement).with_context(|| statement.to_string())?;
        }
        Ok(())
    }

    fn read(&mut self, db: &Connection) -> Result<()> {
        let bodies = self.rng.u32(0..4) == 0;
        self.say("R")?;
        db.execute_batch("BEGIN").context("begin")?;
        let found = self.rows(db, bodies).context("read")?;
        self.found(&found)?;
        if self.rng.u32(0..4) == 0 {
            std::thread::sleep(Duration::from_micros(self.rng.u64(0..30_000)));
        }
        if self.rows(db, !bodies).context("read again")? != found {
            self.say("V two reads in one transaction differ")?;
        }
        db.execute_batch("COMMIT").context("end of a read")
    }

    /// Checks each length, and with `bodies` each content.
    fn rows(&self, db: &Connection, bodies: bool) -> Result<Vec<Ids>> {
        let text = ["SELECT id, length(v), sum FROM t ORDER BY id", "SELECT id, length(v), sum, v FROM t ORDER BY id"];
        let mut all = db.prepare(text[usize::from(bodies)])?;
        let mut all = all.query([])?;
        let mut found: Vec<Ids> = Vec::new();
        while let Some(row) = all.next()? {
            let (id, len, sum): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if len != sum {
                bail!("row {id} has {len} bytes instead of {sum}");
            }
            let id = id as u64;
            if bodies && row.get_ref(3)?.as_blob()? != body(self.session.plan, id, len as usize) {
                bail!("row {id} is not what was written");
            }
            match found.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                Some((_, last)) if *last >= id => bail!("row {id} comes after {last}"),
                _ => found.push((id, id)),
            }
        }
        Ok(found)
    }

    fn found(&self, found: &[Ids]) -> Result<()> {
        let mut line = String::from("S");
        for (from, to) in found {
            if line.len() > LINE_MAX {
                self.say(&line)?;
                line.truncate(1);
            }
            line.push_str(&format!(" {from}-{to}"));
        }
        self.say(&line)?;
        self.say("E")
    }

    fn load(&self, db: &Connection) -> Result<()> {
        let path = commands::printed_beside(&self.session.at);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("what onewrite dump printed, {}", path.display()))?;
        db.execute_batch("PRAGMA synchronous=OFF").context("load")?;
        db.execute_batch(&text).context("load")
    }

    fn last(&mut self, db: &Connection) -> Result<()> {
        self.read(db)?;
        if !self.session.stock {
            return db.execute_batch("CREATE TABLE IF NOT EXISTS last(a)").context("write");
        }
        let whole: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).context("integrity_check")?;
        if whole != "ok" { self.say(&format!("V integrity_check: {}", whole.replace('\n', " "))) } else { Ok(()) }
    }
}

fn run_all(db: &Connection, statement: &str) -> rusqlite::Result<()> {
    let mut statement = db.prepare(statement)?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}

fn body(plan: u64, id: u64, len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    Rng::with_seed(plan::mix(&[plan, id])).fill(&mut body);
    body
}
