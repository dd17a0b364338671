//! The engine under test: onewrite with settings drawn from a seed, or stock SQLite as a control.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use onewrite_core::disk::sim::SplitMix64;
use rusqlite::{Connection, OpenFlags};

use super::load::is_brief;

/// The engine that stores the transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// onewrite, its preset and sizes drawn.
    Onewrite,
    /// onewrite under `synchronous=NORMAL`, which promises less than is checked: a campaign that
    /// finds no violation here checks nothing.
    Canary,
    /// Stock SQLite, write-ahead log.
    Wal,
    /// Stock SQLite, rollback journal. FULL does not flush the journal's removal: SQLite may lose
    /// the newest transaction, as it documents.
    Delete,
    /// Stock SQLite, rollback journal, `synchronous=EXTRA`: the removal is flushed too.
    DeleteExtra,
}

/// Schemes for any atomic unit.
const ANYWHERE: [&str; 4] = ["log", "wal-opt", "log", "dash"];
/// All schemes that protect.
const SCHEMES: [&str; 9] = ["log", "wal-opt", "log", "dash", "dhl-cc", "dhl-tc", "lsmvbt", "mvbt", "mvbt-opt"];

#[derive(Clone, Debug)]
pub struct Setting {
    pub engine: Engine,
    /// The seed of the other settings.
    pub seed: u64,
    /// Bytes that the device writes atomically.
    pub atomic_unit: u32,
    uri_options: String,
    page_bytes: u32,
    /// Writing connections, each with a thread.
    pub threads: usize,
}

impl Setting {
    /// Only a device with atomic pages gets schemes that write pages in place.
    pub fn draw(engine: Engine, seed: u64, atomic_unit: u32) -> Setting {
        let mut random = SplitMix64::new(seed ^ 0x5e77_1265);
        let mut one = |choices: &[&'static str]| choices.get(random.below(choices.len())).copied().unwrap_or("");
        let schemes: &[&'static str] = if atomic_unit >= 4096 { &SCHEMES } else { &ANYWHERE };
        let scheme = one(schemes);
        let sizes = one(&["log_size=256k", "log_size=512k&table_size=256k", "log_size=1m"]);
        let stream = one(&["", "&stream_size=64k", "&stream_size=256k"]);
        let rest = one(&["", "", "", "&psow=0", "&header_page=write"]);
        // Named, because a process asks the kernel once per device number, and loop devices are
        // reused.
        let unit = format!("&atomic_unit={atomic_unit}");
        let uri_options = format!("vfs=onewrite&scheme={scheme}&{sizes}{stream}{rest}{unit}");
        let page_bytes = one(&["4096", "4096", "1024", "8192", "512"]).parse().unwrap_or(4096);
        let page_bytes = if ANYWHERE.contains(&scheme) { page_bytes } else { 4096 };
        let threads = if is_brief(seed) { 1 } else { 1 + random.below(3) };
        Setting { engine, seed, atomic_unit, uri_options, page_bytes, threads }
    }

    /// The scheme `dash` does.
    pub fn exchanges_names(&self) -> bool {
        self.uri_options.contains("scheme=dash&")
    }

    pub fn describe(&self) -> String {
        let engine = match self.engine {
            Engine::Onewrite | Engine::Canary => &self.uri_options,
            Engine::Wal => "stock, journal_mode=WAL, synchronous=FULL",
            Engine::Delete => "stock, journal_mode=DELETE, synchronous=FULL",
            Engine::DeleteExtra => "stock, journal_mode=DELETE, synchronous=EXTRA",
        };
        format!("{engine}, page_size={}, {} threads", self.page_bytes, self.threads)
    }

    pub fn open(&self, path: &Path) -> Result<Connection> {
        let db = match self.engine {
            Engine::Onewrite | Engine::Canary => {
                onewrite_rusqlite::open(format!("file:{}?{}", path.display(), self.uri_options))?
            }
            _ => Connection::open(path)?,
        };
        db.busy_timeout(Duration::from_secs(60))?;
        db.pragma_update(None, "page_size", self.page_bytes)?;
        match self.engine {
            Engine::Onewrite | Engine::Canary => {}
            Engine::Wal => set_journal(&db, "WAL")?,
            Engine::Delete | Engine::DeleteExtra => set_journal(&db, "DELETE")?,
        }
        let level = match self.engine {
            Engine::Canary => "NORMAL",
            Engine::DeleteExtra => "EXTRA",
            Engine::Onewrite | Engine::Wal | Engine::Delete => "FULL",
        };
        db.pragma_update(None, "synchronous", level)?;
        Ok(db)
    }

    /// Empties the log or the WAL.
    pub fn checkpoint(&self) -> &'static str {
        match self.engine {
            Engine::Onewrite | Engine::Canary => "PRAGMA onewrite_checkpoint",
            _ => "PRAGMA wal_checkpoint(TRUNCATE)",
        }
    }
}

fn set_journal(db: &Connection, mode: &str) -> Result<()> {
    let now: String = db.query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))?;
    anyhow::ensure!(now.eq_ignore_ascii_case(mode), "journal_mode is {now}, not {mode}");
    Ok(())
}

/// A connection without onewrite.
pub fn open_stock(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).context("stock SQLite does not open the file")?;
    db.busy_timeout(Duration::from_secs(5))?;
    Ok(db)
}
