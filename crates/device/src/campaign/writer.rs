//! The writing process: makes random transactions and reports each acknowledgement with the
//! device's position at that moment.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use rusqlite::{Connection, ErrorCode};

use super::engine::{Engine, Setting};
use super::load::{self, Before, Rows};

/// Arguments of the writing process.
#[derive(Args)]
pub struct WriterArgs {
    /// Database
    #[arg(long)]
    pub db: PathBuf,
    /// File with the device's position
    #[arg(long)]
    pub position: PathBuf,
    /// Engine
    #[arg(long)]
    pub engine: Engine,
    /// Seed of the settings and the transactions
    #[arg(long)]
    pub seed: u64,
    /// Bytes that the device writes atomically
    #[arg(long)]
    pub atomic_unit: u32,
    /// Transactions, all threads together
    #[arg(long)]
    pub transactions: u64,
}

pub struct Order<'a> {
    /// The same seed draws the transactions.
    pub setting: &'a Setting,
    pub transactions: u64,
}

/// One line for the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// `None` for the schema.
    pub thread: Option<usize>,
    /// Acknowledged transactions of that thread.
    pub count: u64,
    pub position: usize,
}

impl Acknowledged {
    fn line(self) -> String {
        let thread = self.thread.map_or("schema".to_owned(), |thread| thread.to_string());
        format!("{thread} {} {}\n", self.count, self.position)
    }

    pub fn parse(line: &str) -> Result<Acknowledged> {
        let mut words = line.split(' ');
        let mut word = || words.next().with_context(|| format!("the writer said {line:?}"));
        let thread = match word()? {
            "schema" => None,
            number => Some(number.parse()?),
        };
        Ok(Acknowledged { thread, count: word()?.parse()?, position: word()?.parse()? })
    }
}

pub fn run(args: &WriterArgs) -> Result<()> {
    let setting = Setting::draw(args.engine, args.seed, args.atomic_unit);
    let order = Order { setting: &setting, transactions: args.transactions };
    write_all(&order, &args.db, &|thread, count| acknowledge(&args.position, thread, count))
}

/// Gets a thread (`None` for the schema) and its acknowledged transactions.
pub type Acknowledge<'a> = dyn Fn(Option<usize>, u64) -> Result<()> + Sync + 'a;

pub fn write_all(order: &Order, path: &Path, acknowledge: &Acknowledge) -> Result<()> {
    let setting = order.setting;
    load::create(&setting.open(path)?, setting.threads).context("schema")?;
    acknowledge(None, 0)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..setting.threads).map(|thread| scope.spawn(move || write(order, path, thread, acknowledge))).collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a writing thread panicked"),
            }
        }
        Ok(())
    })
}

fn acknowledge(position: &Path, thread: Option<usize>, count: u64) -> Result<()> {
    let mut text = [0; 32];
    let len = File::open(position)?.read_at(&mut text, 0)?;
    let position = std::str::from_utf8(text.get(..len).unwrap_or_default())?.trim().parse()?;
    // One write, so lines of different threads do not mix.
    std::io::stdout().lock().write_all(Acknowledged { thread, count, position }.line().as_bytes())?;
    Ok(())
}

fn write(order: &Order, path: &Path, thread: usize, acknowledge: &Acknowledge) -> Result<()> {
    let setting = order.setting;
    let transactions = order.transactions / setting.threads as u64;
    let mut db = setting.open(path)?;
    let mut rows = Rows::new(setting.seed, thread);
    while rows.count < transactions {
        let plan = rows.plan();
        match plan.before {
            Before::Nothing => {}
            Before::Reopen => {
                drop(db);
                db = setting.open(path)?;
            }
            Before::Vacuum => if_free(db.execute_batch("VACUUM"))?,
            Before::Checkpoint => if_free(db.query_row(setting.checkpoint(), [], |_| Ok(())))?,
        }
        commit(&db, &rows, &plan).with_context(|| format!("thread {thread}, transaction {}", rows.count + 1))?;
        rows.apply(&plan);
        acknowledge(Some(thread), rows.count)?;
    }
    Ok(())
}

/// Retries while another connection has the lock.
fn commit(db: &Connection, rows: &Rows, plan: &load::Plan) -> rusqlite::Result<()> {
    for _ in 0..1000 {
        match load::execute(db, rows, plan) {
            Err(e) if is_busy(&e) => {
                if !db.is_autocommit() {
                    db.execute_batch("ROLLBACK")?;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
    load::execute(db, rows, plan)
}

fn if_free(result: rusqlite::Result<()>) -> rusqlite::Result<()> {
    match result {
        Err(e) if is_busy(&e) => Ok(()),
        result => result,
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
