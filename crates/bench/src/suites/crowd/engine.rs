//! The engines of the suites `threads` and `processes`, and how each is opened.

use crate::engines::EngineSettings;
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
pub enum CrowdEngine {
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
    /// With `idle=0`: it stays attached while it rests. Of the part `periodic` alone.
    OnewriteAttached,
}

/// How an engine's connections are set, as they say themselves.
#[derive(Serialize)]
pub struct OpenedSettings {
    #[serde(flatten)]
    settings: EngineSettings,
    busy_timeout_ms: u128,
    prepared: bool,
}

impl CrowdEngine {
    /// Those of every part.
    pub const USUAL: [CrowdEngine; 3] = [CrowdEngine::Onewrite, CrowdEngine::WalFull, CrowdEngine::Truncate];
    /// With the checkpoint delayed, not durable, and with transactions at once, too.
    pub const ALL: [CrowdEngine; 9] = [
        CrowdEngine::Onewrite,
        CrowdEngine::OnewriteNormal,
        CrowdEngine::OnewriteConcurrent,
        CrowdEngine::OnewriteLate,
        CrowdEngine::OnewriteAttached,
        CrowdEngine::WalFull,
        CrowdEngine::WalFullLate,
        CrowdEngine::Truncate,
        CrowdEngine::WalNormal,
    ];

    /// As elsewhere in the bench.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            CrowdEngine::Onewrite => ("onewrite", "log"),
            CrowdEngine::OnewriteLate => ("onewrite", "log-late"),
            CrowdEngine::WalFull => ("stock", "wal-full"),
            CrowdEngine::WalFullLate => ("stock", "wal-full-late"),
            CrowdEngine::WalNormal => ("stock", "wal-normal"),
            CrowdEngine::OnewriteNormal => ("onewrite", "log-normal"),
            CrowdEngine::OnewriteConcurrent => ("onewrite", "log-concurrent"),
            CrowdEngine::OnewriteAttached => ("onewrite", "log-attached"),
            CrowdEngine::Truncate => ("stock", "truncate"),
        }
    }

    pub fn name(self) -> String {
        let (engine, preset) = self.names();
        format!("{engine}/{preset}")
    }

    /// Whether its commits survive a power cut.
    pub fn is_durable(self) -> bool {
        ![CrowdEngine::WalNormal, CrowdEngine::OnewriteNormal].contains(&self)
    }

    /// Its line of the card.
    pub fn describe(self) -> String {
        let busy = format!("busy timeout {} s", BUSY.as_secs());
        match self {
            CrowdEngine::Onewrite => format!("scheme log, synchronous FULL, log of 4 MiB, {busy}"),
            CrowdEngine::OnewriteLate => format!("scheme log, synchronous FULL, log of {LATE_LOG}, {busy}"),
            CrowdEngine::OnewriteConcurrent => {
                format!("scheme log, synchronous FULL, log of 4 MiB, concurrent=1, {busy}")
            }
            CrowdEngine::OnewriteAttached => format!("scheme log, synchronous FULL, log of 4 MiB, idle=0, {busy}"),
            CrowdEngine::OnewriteNormal => format!("scheme log, synchronous NORMAL, log of 4 MiB, {busy}"),
            CrowdEngine::WalNormal => format!("WAL, synchronous NORMAL, checkpoint at 1000 pages, {busy}"),
            CrowdEngine::WalFull => format!("WAL, synchronous FULL, checkpoint at 1000 pages, {busy}"),
            CrowdEngine::WalFullLate => format!("WAL, synchronous FULL, checkpoint at {LATE_PAGES} pages, {busy}"),
            CrowdEngine::Truncate => format!("rollback journal TRUNCATE, synchronous FULL, {busy}"),
        }
    }

    /// The card's values, from a connection to a new database in `dir`.
    pub fn opened(self, dir: &Path) -> Result<OpenedSettings> {
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
        let settings = EngineSettings::read(&text, rusqlite::version().to_owned(), Vec::new())?;
        Ok(OpenedSettings { settings, busy_timeout_ms: BUSY.as_millis(), prepared: true })
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
            CrowdEngine::Onewrite | CrowdEngine::OnewriteNormal => onewrite("")?,
            CrowdEngine::OnewriteAttached => onewrite("&idle=0")?,
            CrowdEngine::OnewriteConcurrent => onewrite("&concurrent=1")?,
            CrowdEngine::OnewriteLate => onewrite(&format!("&log_size={LATE_LOG}"))?,
            CrowdEngine::WalFull | CrowdEngine::WalNormal => stock("wal")?,
            CrowdEngine::WalFullLate => {
                let c = stock("wal")?;
                c.pragma_update_and_check(None, "wal_autocheckpoint", LATE_PAGES, |_| Ok(()))?;
                c
            }
            CrowdEngine::Truncate => stock("truncate")?,
        };
        c.pragma_update(None, "synchronous", if self.is_durable() { "FULL" } else { "NORMAL" })?;
        Ok(c)
    }

    /// The size of the log, write-ahead log or journal, in bytes.
    pub fn log_bytes(self, path: &Path) -> u64 {
        let suffix = match self {
            CrowdEngine::Onewrite
            | CrowdEngine::OnewriteNormal
            | CrowdEngine::OnewriteLate
            | CrowdEngine::OnewriteAttached
            | CrowdEngine::OnewriteConcurrent => "-onewrite",
            CrowdEngine::WalFull | CrowdEngine::WalFullLate | CrowdEngine::WalNormal => "-wal",
            CrowdEngine::Truncate => "-journal",
        };
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |m| m.len())
    }
}

pub fn is_busy(e: &rusqlite::Error) -> bool {
    matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
