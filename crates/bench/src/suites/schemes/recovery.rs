//! How long recovery takes: a process of its own is killed when it is about to make the last write
//! of a commit.
//!
//! That write is the commit mark where there is one: the page that carries it, the frame that ends
//! a transaction of the WAL. Else it is one of several pages. So recovery has a transaction to
//! undo, and all before it to find.

use super::child::{Child, ChildWork};
use super::engine::SchemeEngine;
use super::load;
use crate::counting::syscalls;
use crate::engines::sql::Library;
use crate::host;
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Recovery after a crash in a transaction.
#[derive(Clone, Debug)]
pub struct CrashedTransaction {
    pub rows: usize,
    pub before: usize,
    pub inserts: usize,
}

/// The cost of a recovery.
#[derive(Clone, Copy, Debug)]
pub struct Recovered {
    /// From opening to the first row.
    pub first_row: Duration,
    /// From opening until it is closed again, and a plain file.
    pub closed: Duration,
}

/// Why there is no number.
pub enum RecoveryFailure {
    /// Tracing is not allowed here, or the child could not be run under it.
    Untraceable(String),
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for RecoveryFailure {
    fn from(e: E) -> RecoveryFailure {
        RecoveryFailure::Other(e.into())
    }
}

pub fn run(
    library: &Arc<Library>,
    library_path: Option<&Path>,
    engine: &SchemeEngine,
    crash: &CrashedTransaction,
    dir: &Path,
    seed: u64,
) -> Result<Recovered, RecoveryFailure> {
    let child = |dir: &Path| -> Result<Command> {
        let CrashedTransaction { rows, before, inserts } = *crash;
        let (library, dir) = (library_path.map(Path::to_path_buf), dir.to_owned());
        let work = ChildWork::Crash { rows, before, inserts };
        Child { engine: engine.clone(), library, dir, seed, work }.command()
    };
    let counted = tempfile::tempdir_in(dir)?;
    let writes = syscalls::kill_before_write(child(counted.path())?, None).map_err(RecoveryFailure::Untraceable)?;
    check(writes > 0, engine, "made no write in a commit")?;
    drop(counted);
    let killed = tempfile::tempdir_in(dir)?;
    syscalls::kill_before_write(child(killed.path())?, Some(writes)).map_err(RecoveryFailure::Untraceable)?;
    // The rest of the process's writes in the kernel's cache is not recovery's to write.
    host::flush(killed.path())?;
    let path = killed.path().join("db");
    let start = Instant::now();
    let db = engine.open(library, &path)?;
    let first = db.query_int("SELECT k FROM t LIMIT 1")?;
    let first_row = start.elapsed();
    check(first.is_some(), engine, "has no row left")?;
    db.close()?;
    let closed = start.elapsed();
    let whole = crash.rows + crash.before;
    load::check(library, &path, &[whole, whole + crash.inserts])?;
    Ok(Recovered { first_row, closed })
}

fn check(good: bool, engine: &SchemeEngine, otherwise: &str) -> Result<()> {
    ensure!(good, "{} {otherwise}", engine.name);
    Ok(())
}
