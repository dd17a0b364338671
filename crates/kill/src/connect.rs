//! Connections of the campaign's processes, and their report lines.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use onewrite_rusqlite::STOCK_VFS;
use rusqlite::{Connection, OpenFlags, ffi};

use crate::Job;

/// The VFS of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    Onewrite,
    Stock,
}

pub fn main_path(at: &Path) -> PathBuf {
    at.join("main.db")
}

pub fn second_path(at: &Path) -> PathBuf {
    at.join("second.db")
}

/// Attaches the second database as `second`.
pub fn open(job: &Job, through: Through) -> Result<Connection> {
    let uri = |path: PathBuf| match through {
        Through::Onewrite => format!("file:{}?vfs=onewrite&{}", path.display(), job.parameters),
        Through::Stock => format!("file:{}?vfs={}", path.display(), STOCK_VFS.to_string_lossy()),
    };
    if through == Through::Onewrite {
        onewrite_rusqlite::register().map_err(|e| anyhow::anyhow!("register: {}", e.message))?;
    }
    let main = uri(main_path(&job.at));
    let db = Connection::open_with_flags(&main, OpenFlags::default()).with_context(|| format!("open {main}"))?;
    db.busy_timeout(Duration::from_millis(30))?;
    // A small cache makes SQLite write pages before the end of a transaction.
    db.execute_batch("PRAGMA cache_size=10")?;
    let attached = db.execute("ATTACH ?1 AS second", [uri(second_path(&job.at))]);
    attached.context("attach the second database")?;
    db.execute_batch("PRAGMA second.cache_size=10")?;
    Ok(db)
}

pub fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code & 0xff == ffi::SQLITE_BUSY)
}

/// A pipe takes a short write whole or not at all.
pub fn tell(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    out.flush()
}
