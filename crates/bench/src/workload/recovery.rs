//! Recovery: from opening a database to its first row, after the process that wrote it was killed.
//!
//! That process, this program once more, opens the database and commits inserts, each its own
//! transaction. It is killed (ptrace) when it is about to make the last write call of one more. So
//! there are a live log or WAL behind those inserts, or a hot journal, and a transaction to undo.
//! Each recovery is of the files that one process left ([`ProcessEnd::Kill`]), or of a copy of them
//! ([`ProcessEnd::Cut`]). A copy is as after a power cut: no knowledge of the kernel or of shared
//! memory about the files holds.

use super::rows::{Binder, Rows, place, sql, verify};
use super::{Plan, SectionStage, Size, Workload};
use crate::counting::syscalls::{self, Marks};
use crate::engines::sql::{Db, Libraries};
use crate::engines::{self, BenchEngine, EngineSettings};
use crate::host;
use crate::numbers::measure::{Probe, Section, time_each_after};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessEnd {
    /// It was killed, and the system went on.
    Kill,
    /// The system was started anew.
    Cut,
}

/// Names, meanings, the end of the process, and how many inserts are before that.
pub const SIZES: [(&str, &str, ProcessEnd, usize); 6] = [
    (
        "recovery-kill-10",
        "from open to the first row, after a kill behind 10 inserts since the last open",
        ProcessEnd::Kill,
        10,
    ),
    ("recovery-kill-160", "the same behind 160", ProcessEnd::Kill, 160),
    ("recovery-kill-2560", "the same behind 2560", ProcessEnd::Kill, 2560),
    ("recovery-cut-10", "the same after a power cut behind 10: of copies of the files", ProcessEnd::Cut, 10),
    ("recovery-cut-160", "the same behind 160", ProcessEnd::Cut, 160),
    ("recovery-cut-2560", "the same behind 2560", ProcessEnd::Cut, 2560),
];

/// The name of a size, and its meaning.
pub fn of(after: ProcessEnd, inserts: usize) -> (&'static str, &'static str) {
    let size = SIZES.iter().find(|(_, _, a, n)| (*a, *n) == (after, inserts));
    size.map_or(("recovery", ""), |(name, about, ..)| (*name, *about))
}

const FILE: &str = "bench.db";

/// The work of the process that is to be killed; the bench hands it to its own program as JSON.
#[derive(Serialize, Deserialize)]
pub struct CrashedProcess {
    engine: BenchEngine,
    after: ProcessEnd,
    inserts: usize,
    size: Size,
    seed: u64,
    run: u64,
    dir: PathBuf,
}

impl CrashedProcess {
    fn command(&self) -> Result<Command> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["bench", "--traced", &serde_json::to_string(&serde_json::json!({ "Crash": self }))?]);
        Ok(child)
    }
}

pub fn crash(of: &CrashedProcess) -> Result<()> {
    let Plan::Rows(plan) = Plan::draw(Workload::Recovery(of.after, of.inserts), &of.size, of.seed, of.run)? else {
        anyhow::bail!("recovery is of rows");
    };
    let libraries = Libraries::load(&of.engine.library)?;
    syscalls::offer_to_be_traced()?;
    let c = of.engine.open(&libraries, &of.dir.join(FILE))?;
    let mut row = Binder::new(&of.size);
    let mut insert = c.prepare(&sql(plan.workload, of.size.indexes))?;
    for (i, step) in plan.steps.iter().enumerate() {
        if i == of.inserts {
            Marks.begin()?;
        }
        row.execute(&mut insert, *step)?;
    }
    Marks.end()?;
    // The work of closing is not looked at.
    std::process::exit(0)
}

pub fn run(
    engine: &BenchEngine,
    plan: &Rows,
    size: &Size,
    after: ProcessEnd,
    stage: SectionStage<'_>,
) -> Result<(Section, EngineSettings)> {
    let inserts = plan.steps.len() - 1;
    let crashed = stage.dir.join("crashed");
    let base = (stage.libraries, stage.original);
    let kill = |at: Option<u64>| -> Result<u64> {
        if crashed.exists() {
            fs::remove_dir_all(&crashed)?;
        }
        fs::create_dir(&crashed)?;
        place(engine, plan, size, base, &crashed.join(FILE))?;
        let dir = crashed.clone();
        let crash = CrashedProcess {
            engine: engine.clone(),
            after,
            inserts,
            size: size.clone(),
            seed: plan.seed,
            run: plan.run,
            dir,
        };
        syscalls::kill_before_write(crash.command()?, at).map_err(|e| anyhow::anyhow!("recovery needs a crash: {e}"))
    };
    let writes = kill(None)?;
    ensure!(writes > 0, "a commit without a write call");
    let live = match after {
        ProcessEnd::Kill => crashed.clone(),
        ProcessEnd::Cut => {
            kill(Some(writes))?;
            stage.dir.join("live")
        }
    };
    let path = live.join(FILE);
    let connection: RefCell<Option<Db>> = RefCell::new(None);
    let prepare = || -> Result<()> {
        connection.take().map_or(Ok(()), Db::close)?;
        match after {
            ProcessEnd::Kill => drop(kill(Some(writes))?),
            ProcessEnd::Cut => copy_all(&crashed, &live)?,
        }
        // The rest of the copies in the kernel's cache is not recovery's to write.
        Ok(host::flush(&live)?)
    };
    let libraries = stage.libraries;
    (stage.ready)()?;
    let section = time_each_after(size.transactions, size.limit, stage.probe, prepare, || {
        let c = engine.open(libraries, &path)?;
        let row = c.query_int("SELECT k FROM t LIMIT 1")?;
        ensure!(row.is_some(), "no row is left");
        connection.replace(Some(c));
        Ok(())
    })?;
    let c = connection.take().context("no connection")?;
    let settings = engine.settings(libraries, &c)?;
    c.close()?;
    // The transaction that the crash interrupted may be there or not, but whole.
    let found = engines::open_stock(libraries, &path)?.query_int("SELECT count(*) FROM t")?.unwrap_or(0);
    let done = inserts + usize::from(found == (plan.preload.len() + inserts + 1) as i64);
    verify(libraries, &path, &plan.expected(done), size)?;
    Ok((section, settings))
}

/// Makes `to` a directory with the files of `from` and no others.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name())).context("copying what the crash left")?;
    }
    Ok(())
}
