//! What can be measured: SQLite as it comes in its journal modes, onewrite's presets, and the floor.

use super::workload::Workload;
use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use std::path::Path;
use std::str::FromStr;

/// How an engine is opened.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// SQLite's own VFS in this journal mode, at this level of `PRAGMA synchronous`.
    Stock { journal_mode: &'static str, synchronous: i64 },
    /// The VFS "onewrite" with this `scheme`. `live`: reading while the process has the database marked.
    Onewrite { scheme: &'static str, live: bool },
    /// No database: the bare write that a durable commit cannot do without.
    Floor,
}

/// One line of each group of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Engine {
    pub engine: &'static str,
    pub preset: &'static str,
    pub kind: Kind,
    /// What the line does not promise; `None` for an engine whose commits survive a power cut whole.
    pub caveat: Option<&'static str>,
    /// Writes measured when nobody says `--only`.
    pub default: bool,
    /// Reads measured when nobody says `--only`.
    pub default_reads: bool,
}

const FULL: i64 = 2;
const NORMAL: i64 = 1;

const fn stock(preset: &'static str, journal_mode: &'static str, synchronous: i64) -> Engine {
    let caveat = if synchronous < FULL { Some("not durable: a power cut may lose the newest commits") } else { None };
    let kind = Kind::Stock { journal_mode, synchronous };
    Engine { engine: "stock", preset, kind, caveat, default: true, default_reads: false }
}

const fn onewrite(preset: &'static str, caveat: Option<&'static str>, default: bool) -> Engine {
    let kind = Kind::Onewrite { scheme: preset, live: false };
    Engine { engine: "onewrite", preset, kind, caveat, default, default_reads: false }
}

const fn reading(engine: Engine) -> Engine {
    Engine { default_reads: true, ..engine }
}

const NO_PROTECTION: Option<&str> = Some("no protection: a power cut may corrupt the database");

/// Every engine, in the order of the table.
pub static ALL: [Engine; 11] = [
    reading(stock("delete", "delete", FULL)),
    stock("truncate", "truncate", FULL),
    stock("persist", "persist", FULL),
    reading(stock("wal-full", "wal", FULL)),
    stock("wal-normal", "wal", NORMAL),
    reading(onewrite("log", None, true)),
    Engine {
        engine: "onewrite",
        preset: "log-live",
        kind: Kind::Onewrite { scheme: "log", live: true },
        caveat: None,
        default: false,
        default_reads: true,
    },
    onewrite("wal-opt", None, false),
    onewrite("off", NO_PROTECTION, false),
    onewrite("off-opt", NO_PROTECTION, false),
    Engine {
        engine: "floor",
        preset: "overwrite",
        kind: Kind::Floor,
        caveat: None,
        default: true,
        default_reads: false,
    },
];

/// The engine that ratios refer to.
pub fn is_reference(engine: &Engine) -> bool {
    engine.engine == "stock" && engine.preset == "wal-full"
}

/// The engine that ratios of reads refer to: what SQLite is without a setting.
pub fn is_stock_default(engine: &Engine) -> bool {
    engine.engine == "stock" && engine.preset == "delete"
}

/// An engine named on the command line: `stock/wal-full`, `onewrite/log`, `floor`.
#[derive(Clone, Copy, Debug)]
pub struct Chosen(pub &'static Engine);

impl FromStr for Chosen {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        ALL.iter().find(|e| e.name() == s || (e.kind == Kind::Floor && s == "floor/overwrite")).map(Chosen).ok_or_else(
            || {
                format!(
                    "there is no `{s}`; choose from {}",
                    ALL.iter().map(Engine::name).collect::<Vec<_>>().join(", ")
                )
            },
        )
    }
}

/// Makes the VFS "onewrite" known to the SQLite in this program.
pub fn register_onewrite() -> Result<(), String> {
    onewrite_rusqlite::register().map_err(|e| e.to_string())
}

/// What a connection says about itself, for the parameter card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    pub journal_mode: String,
    pub synchronous: String,
    pub page_size: i64,
    pub cache_size: i64,
    pub locking_mode: String,
    pub mmap_size: i64,
    /// Pages after which stock SQLite checkpoints its WAL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wal_autocheckpoint: Option<i64>,
    /// Bytes of onewrite's log; it checkpoints when the log is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_size: Option<String>,
}

impl Engine {
    /// The name on the command line.
    pub fn name(&self) -> String {
        if self.kind == Kind::Floor { "floor".to_owned() } else { format!("{}/{}", self.engine, self.preset) }
    }

    /// Whether the workload makes sense for it. A commit makes the database live: then only reads differ.
    pub fn does(&self, workload: Workload) -> bool {
        if workload.reads() { self.kind != Kind::Floor } else { !self.is_live() }
    }

    /// Whether it is measured when nobody says `--only`.
    pub fn is_default_for(&self, workload: Workload) -> bool {
        if workload.reads() { self.default_reads } else { self.default }
    }

    /// Whether the process has the database marked before it reads.
    pub fn is_live(&self) -> bool {
        matches!(self.kind, Kind::Onewrite { live: true, .. })
    }

    pub fn is_onewrite(&self) -> bool {
        matches!(self.kind, Kind::Onewrite { .. })
    }

    /// Opens `path` and makes the settings what the engine's name says.
    pub fn open(&self, path: &Path) -> Result<Connection> {
        let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
        let c = match self.kind {
            Kind::Stock { journal_mode, synchronous } => {
                let c = open_stock(path)?;
                c.pragma_update_and_check(None, "journal_mode", journal_mode, |_| Ok(()))?;
                c.pragma_update(None, "synchronous", synchronous)?;
                c
            }
            Kind::Onewrite { scheme, .. } => {
                let c = Connection::open_with_flags(uri(path, scheme)?, flags)?;
                c.pragma_update(None, "synchronous", FULL)?;
                c
            }
            Kind::Floor => bail!("the floor has no database"),
        };
        c.set_prepared_statement_cache_capacity(8);
        Ok(c)
    }

    /// Reads the settings back and fails where they are not what the engine's name says.
    pub fn settings(&self, c: &Connection) -> Result<Settings> {
        let text = |name: &str| -> Result<String> {
            c.pragma_query_value(None, name, |r| r.get::<_, String>(0)).with_context(|| format!("PRAGMA {name}"))
        };
        let number = |name: &str| -> Result<i64> {
            c.pragma_query_value(None, name, |r| r.get::<_, i64>(0)).with_context(|| format!("PRAGMA {name}"))
        };
        let (journal_mode, synchronous) = (text("journal_mode")?, number("synchronous")?);
        let wanted = match self.kind {
            Kind::Stock { journal_mode: wanted, synchronous: level } => {
                ensure!(journal_mode == wanted, "{}: the journal mode is {journal_mode}, not {wanted}", self.name());
                level
            }
            Kind::Floor => bail!("the floor has no database"),
            Kind::Onewrite { scheme: wanted, .. } => {
                let scheme = text("onewrite_scheme").context("the connection does not go through onewrite")?;
                ensure!(scheme == wanted, "{}: the scheme in force is {scheme}", self.name());
                FULL
            }
        };
        ensure!(synchronous == wanted, "{}: synchronous is {synchronous}, not {wanted}", self.name());
        Ok(Settings {
            wal_autocheckpoint: if journal_mode == "wal" { Some(number("wal_autocheckpoint")?) } else { None },
            log_size: if self.is_onewrite() { text("onewrite_log_size").ok() } else { None },
            journal_mode,
            synchronous: ["OFF", "NORMAL", "FULL", "EXTRA"][usize::try_from(synchronous)?.min(3)].to_owned(),
            page_size: number("page_size")?,
            cache_size: number("cache_size")?,
            locking_mode: text("locking_mode")?,
            // A VFS without memory mapping answers with no row.
            mmap_size: number("mmap_size").unwrap_or(0),
        })
    }
}

/// Opens `path` with SQLite's own VFS: what any other program would see.
pub fn open_stock(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::default() & !OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(path, flags).with_context(|| format!("opening {}", path.display()))
}

fn uri(path: &Path, scheme: &str) -> Result<String> {
    let path = path.to_str().context("the directory's name is not UTF-8")?;
    let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Ok(format!("file:{path}?vfs=onewrite&scheme={scheme}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_ones_teach() {
        for e in &ALL {
            assert_eq!(e.name().parse::<Chosen>().unwrap().0, e);
        }
        assert_eq!("floor/overwrite".parse::<Chosen>().unwrap().0.kind, Kind::Floor);
        let error = "stock/wall".parse::<Chosen>().unwrap_err();
        assert!(
            error.contains("`stock/wall`") && error.contains("stock/wal-full") && error.contains("floor"),
            "{error}"
        );
    }

    #[test]
    fn uris_escape_what_uris_reserve() {
        assert_eq!(uri(Path::new("/a%b/c?d#e.db"), "log").unwrap(), "file:/a%25b/c%3fd%23e.db?vfs=onewrite&scheme=log");
    }

    #[test]
    fn stock_settings_are_what_the_name_says() {
        let dir = tempfile::tempdir().unwrap();
        for e in ALL.iter().filter(|e| matches!(e.kind, Kind::Stock { .. })) {
            let c = e.open(&dir.path().join(e.preset)).unwrap();
            e.settings(&c).unwrap();
            c.pragma_update(None, "synchronous", 0).unwrap();
            assert!(e.settings(&c).unwrap_err().to_string().contains("synchronous is 0"));
        }
    }
}
