//! The engines of the suites `threads` and `processes`, and how each is opened.

use crate::engines::Settings;
use anyhow::{Context, Result};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Busy timeout of all connections: without one they fail at once beside an open transaction.
pub const BUSY: Duration = Duration::from_secs(10);
/// Pages after which a WAL is checkpointed where that is delayed; bytes of onewrite's log there.
const LATE_PAGES: u32 = 100_000;
const LATE_LOG: &str = "256m";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Engine {
    Onewrite,
    WalFull,
    Truncate,
    /// With a log so large that no checkpoint comes.
    OnewriteLate,
    WalFullLate,
    /// Whose newest commits a power cut may take.
    WalNormal,
    OnewriteNormal,
    /// With `concurrent=1`: write transactions run at once, and are checked when they commit.
    OnewriteConcurrent,
}

/// How an engine's connections are set, as they say themselves.
#[derive(Serialize)]
pub struct Opened {
    #[serde(flatten)]
    settings: Settings,
    busy_timeout_ms: u128,
    prepared: bool,
}

impl Engine {
    /// Those of every part.
    pub const USUAL: [Engine; 3] = [Engine::Onewrite, Engine::WalFull, Engine::Truncate];
    /// With the checkpoint delayed, not durable, and with transactions at once, too.
    pub const ALL: [Engine; 8] = [
        Engine::Onewrite,
        Engine::OnewriteNormal,
        Engine::OnewriteConcurrent,
        Engine::OnewriteLate,
        Engine::WalFull,
        Engine::WalFullLate,
        Engine::Truncate,
        Engine::WalNormal,
    ];

    /// As elsewhere in the bench.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Engine::Onewrite => ("onewrite", "log"),
            Engine::OnewriteLate => ("onewrite", "log-late"),
            Engine::WalFull => ("stock", "wal-full"),
            Engine::WalFullLate => ("stock", "wal-full-late"),
            Engine::WalNormal => ("stock", "wal-normal"),
            Engine::OnewriteNormal => ("onewrite", "log-normal"),
            Engine::OnewriteConcurrent => ("onewrite", "log-concurrent"),
            Engine::Truncate => ("stock", "truncate"),
        }
    }

    pub fn name(self) -> String {
        let (engine, preset) = self.names();
        format!("{engine}/{preset}")
    }

    /// Whether its commits survive a power cut.
    pub fn is_durable(self) -> bool {
        ![Engine::WalNormal, Engine::OnewriteNormal].contains(&self)
    }

    /// Its line of the card.
    pub fn describe(self) -> String {
        let busy = format!("busy timeout {} s", BUSY.as_secs());
        match self {
            Engine::Onewrite => format!("scheme log, synchronous FULL, log of 4 MiB, {busy}"),
            Engine::OnewriteLate => format!("scheme log, synchronous FULL, log of {LATE_LOG}, {busy}"),
            Engine::OnewriteConcurrent => {
                format!("scheme log, synchronous FULL, log of 4 MiB, concurrent=1, {busy}")
            }
            Engine::OnewriteNormal => format!("scheme log, synchronous NORMAL, log of 4 MiB, {busy}"),
            Engine::WalNormal => format!("WAL, synchronous NORMAL, checkpoint at 1000 pages, {busy}"),
            Engine::WalFull => format!("WAL, synchronous FULL, checkpoint at 1000 pages, {busy}"),
            Engine::WalFullLate => format!("WAL, synchronous FULL, checkpoint at {LATE_PAGES} pages, {busy}"),
            Engine::Truncate => format!("rollback journal TRUNCATE, synchronous FULL, {busy}"),
        }
    }

    /// The card's values, from a connection to a new database in `dir`.
    pub fn opened(self, dir: &Path) -> Result<Opened> {
        let dir = tempfile::tempdir_in(dir)?;
        let c = self.open(&dir.path().join("db"))?;
        let text = |name: &str| -> Result<Option<String>> {
            let value = c.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, rusqlite::types::Value>(0));
            Ok(match value.optional()? {
                Some(rusqlite::types::Value::Text(text)) => Some(text),
                Some(rusqlite::types::Value::Integer(n)) => Some(n.to_string()),
                _ => None,
            })
        };
        let settings = Settings::read(&text, rusqlite::version().to_owned(), Vec::new())?;
        Ok(Opened { settings, busy_timeout_ms: BUSY.as_millis(), prepared: true })
    }

    pub fn open(self, path: &Path) -> Result<Connection> {
        let stock = |mode: &str| -> Result<Connection> {
            let c = Connection::open(path)?;
            c.busy_timeout(BUSY)?;
            c.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(()))?;
            Ok(c)
        };
        let onewrite = |more: &str| -> Result<Connection> {
            let path = path.to_str().context("the directory's name is not UTF-8")?;
            let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
            let c = Connection::open_with_flags(format!("file:{path}?vfs=onewrite{more}"), flags)?;
            c.busy_timeout(BUSY)?;
            Ok(c)
        };
        let c = match self {
            Engine::Onewrite | Engine::OnewriteNormal => onewrite("")?,
            Engine::OnewriteConcurrent => onewrite("&concurrent=1")?,
            Engine::OnewriteLate => onewrite(&format!("&log_size={LATE_LOG}"))?,
            Engine::WalFull | Engine::WalNormal => stock("wal")?,
            Engine::WalFullLate => {
                let c = stock("wal")?;
                c.pragma_update_and_check(None, "wal_autocheckpoint", LATE_PAGES, |_| Ok(()))?;
                c
            }
            Engine::Truncate => stock("truncate")?,
        };
        c.pragma_update(None, "synchronous", if self.is_durable() { "FULL" } else { "NORMAL" })?;
        Ok(c)
    }

    /// The size of the log, write-ahead log or journal, in bytes.
    pub fn log_bytes(self, path: &Path) -> u64 {
        let suffix = match self {
            Engine::Onewrite | Engine::OnewriteNormal | Engine::OnewriteLate | Engine::OnewriteConcurrent => {
                "-onewrite"
            }
            Engine::WalFull | Engine::WalFullLate | Engine::WalNormal => "-wal",
            Engine::Truncate => "-journal",
        };
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |m| m.len())
    }
}

pub fn is_busy(e: &rusqlite::Error) -> bool {
    matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
