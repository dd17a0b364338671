//! The engines to measure: SQLite as it comes in its journal modes, from this program or from a
//! library given by path; onewrite's presets; two key-value stores; and the floor.

pub mod sql;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sql::{Db, Libraries};
use std::path::{Path, PathBuf};

/// How an engine is opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineKind {
    /// SQLite's own VFS in this journal mode, at this level of `PRAGMA synchronous`.
    Stock { journal_mode: String, synchronous: i64 },
    /// The VFS "onewrite" with this `scheme`, at this level. `live`: reading while the process has
    /// the database marked.
    Onewrite { scheme: String, live: bool, synchronous: i64 },
    /// No SQLite: a key-value store whose commits are as durable.
    Store(KeyValueStore),
    /// No database: the bare write that a durable commit cannot do without.
    Floor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyValueStore {
    Lmdb,
    Redb,
}

/// One line of each group of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchEngine {
    pub engine: String,
    pub preset: String,
    pub kind: EngineKind,
    /// Pragmas set before the journal mode, in this order.
    pub pragmas: Vec<(String, String)>,
    /// The shared library whose SQLite it is, if not this program's.
    pub library: Option<PathBuf>,
    /// A promise that the line does not keep; `None` for an engine whose commits survive a power
    /// cut whole.
    pub caveat: Option<String>,
    /// Writes are measured without `--only`.
    pub default: bool,
    /// Reads are measured without `--only`.
    pub default_reads: bool,
}

const NORMAL: i64 = 1;
const FULL: i64 = 2;
/// How long a connection waits for others; far longer than any turn takes.
const BUSY_MS: i32 = 60_000;
const LEVELS: [&str; 4] = ["OFF", "NORMAL", "FULL", "EXTRA"];
/// SQLite flushes the WAL before a checkpoint, and onewrite its log; a FULL commit flushes those
/// before it.
const LOSES_SINCE_CHECKPOINT: &str = "not durable: a power cut may take the commits since the last checkpoint";
const LOSES_SINCE_REST: &str =
    "not durable: a power cut may take the commits since the last checkpoint, FULL commit or second of rest";
const NO_PROTECTION: &str = "no protection: a power cut may corrupt the database";

/// SQLite's own VFS; the caveat follows from the settings.
pub fn stock(preset: &str, journal_mode: &str, synchronous: i64) -> BenchEngine {
    let rollback = !["wal", "off", "memory"].contains(&journal_mode);
    let caveat = match (journal_mode, synchronous) {
        ("off" | "memory", _) | (_, 0) => Some(NO_PROTECTION),
        (_, NORMAL) if rollback => Some("NORMAL in a rollback mode: a power cut may, rarely, corrupt the database"),
        (_, NORMAL) => Some(LOSES_SINCE_CHECKPOINT),
        _ => None,
    };
    BenchEngine {
        engine: "stock".to_owned(),
        preset: preset.to_owned(),
        kind: EngineKind::Stock { journal_mode: journal_mode.to_owned(), synchronous },
        pragmas: Vec::new(),
        library: None,
        caveat: caveat.map(str::to_owned),
        default: true,
        default_reads: ["delete", "wal-full"].contains(&preset),
    }
}

/// onewrite with this scheme. After it `-live`: reading while the process has the database marked;
/// or `-normal`: under `synchronous=NORMAL`.
pub fn onewrite(preset: &str) -> BenchEngine {
    let (scheme, live) = preset.strip_suffix("-live").map_or((preset, false), |scheme| (scheme, true));
    let (scheme, synchronous) = scheme.strip_suffix("-normal").map_or((scheme, FULL), |scheme| (scheme, NORMAL));
    let caveat = match synchronous {
        _ if scheme.starts_with("off") => Some(NO_PROTECTION),
        NORMAL => Some(LOSES_SINCE_REST),
        _ => None,
    };
    BenchEngine {
        engine: "onewrite".to_owned(),
        kind: EngineKind::Onewrite { scheme: scheme.to_owned(), live, synchronous },
        caveat: caveat.map(str::to_owned),
        default: ["log", "log-normal"].contains(&preset),
        default_reads: ["log", "log-live"].contains(&preset),
        ..stock(preset, "delete", FULL)
    }
}

fn alone(name: &str, kind: EngineKind, default: bool) -> BenchEngine {
    let preset = if kind == EngineKind::Floor { "overwrite" } else { "default" };
    BenchEngine { engine: name.to_owned(), kind, default, default_reads: false, ..stock(preset, "delete", FULL) }
}

const MODES: [(&str, &str, i64); 5] = [
    ("delete", "delete", FULL),
    ("truncate", "truncate", FULL),
    ("persist", "persist", FULL),
    ("wal-full", "wal", FULL),
    ("wal-normal", "wal", NORMAL),
];

/// onewrite's presets; `log-live` reads while the process has the database marked.
const PRESETS: [&str; 7] = ["log", "log-normal", "log-live", "wal-opt", "dash", "off", "off-opt"];

/// Whether this system has what the preset needs: `dash` exchanges two names.
pub fn can_be_had(preset: &str) -> bool {
    let exchanges_names = cfg!(target_vendor = "apple") || cfg!(all(target_os = "linux", not(feature = "portable")));
    exchanges_names || preset != "dash"
}

/// Every engine of this program, in the order of the table.
pub fn all() -> Vec<BenchEngine> {
    let mut all: Vec<BenchEngine> = MODES.iter().map(|(preset, mode, level)| stock(preset, mode, *level)).collect();
    all.extend(PRESETS.into_iter().filter(|preset| can_be_had(preset)).map(onewrite));
    all.push(alone("lmdb", EngineKind::Store(KeyValueStore::Lmdb), false));
    all.push(alone("redb", EngineKind::Store(KeyValueStore::Redb), false));
    all.push(alone("floor", EngineKind::Floor, true));
    all
}

/// The stock modes of the SQLite at `path`, and onewrite under FULL and NORMAL where that library
/// brings it along.
pub fn of_library(path: &Path, has_onewrite: bool) -> Vec<BenchEngine> {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let foreign = |e: BenchEngine| BenchEngine { engine: file.clone(), library: Some(path.to_owned()), ..e };
    let modes = MODES.iter().map(|(preset, mode, level)| foreign(stock(preset, mode, *level)));
    let presets = ["log", "log-normal"].into_iter().filter(|_| has_onewrite);
    modes
        .chain(presets.map(|name| BenchEngine { preset: format!("onewrite-{name}"), ..foreign(onewrite(name)) }))
        .collect()
}

/// The engine that ratios refer to.
pub fn is_reference(engine: &BenchEngine) -> bool {
    engine.engine == "stock" && engine.preset == "wal-full"
}

/// The engine that ratios of reads refer to: SQLite without a setting.
pub fn is_stock_default(engine: &BenchEngine) -> bool {
    engine.engine == "stock" && engine.preset == "delete"
}

/// The engine of this name: `stock/wal-full`, `onewrite/log`, `floor`.
pub fn named(name: &str, choices: &[BenchEngine]) -> Result<BenchEngine, String> {
    let found = choices.iter().find(|e| e.name() == name || format!("{}/{}", e.engine, e.preset) == name);
    let names = || choices.iter().map(BenchEngine::name).collect::<Vec<_>>().join(", ");
    found.cloned().ok_or_else(|| format!("there is no `{name}`; choose from {}", names()))
}

/// Makes the VFS "onewrite" known to the SQLite in this program.
pub fn register_onewrite() -> Result<(), String> {
    onewrite_rusqlite::register().map_err(|e| e.to_string())
}

/// Settings that a connection tells, for the parameter card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineSettings {
    /// Version of the SQLite; `None` where there is none.
    pub sqlite_version: String,
    pub journal_mode: String,
    pub synchronous: String,
    pub page_size: i64,
    pub cache_size: i64,
    pub locking_mode: String,
    pub mmap_size: i64,
    pub auto_vacuum: i64,
    /// Bytes that a rollback journal or a WAL keeps when it is reset; -1: all.
    pub journal_size_limit: i64,
    /// Pages after which stock SQLite checkpoints its WAL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wal_autocheckpoint: Option<i64>,
    /// Bytes of onewrite's log; it checkpoints when the log is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_size: Option<String>,
    pub preallocates: &'static str,
    /// Options of a SQLite that is not this program's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compile_options: Vec<String>,
}

impl BenchEngine {
    /// The name on the command line.
    pub fn name(&self) -> String {
        match self.kind {
            EngineKind::Floor | EngineKind::Store(_) => self.engine.clone(),
            _ => format!("{}/{}", self.engine, self.preset),
        }
    }

    /// Whether a crash leaves it sound.
    pub fn protects(&self) -> bool {
        self.caveat.as_deref() != Some(NO_PROTECTION)
    }

    /// Whether the process has the database marked before it reads.
    pub fn is_live(&self) -> bool {
        matches!(self.kind, EngineKind::Onewrite { live: true, .. })
    }

    pub fn has_no_sql(&self) -> bool {
        matches!(self.kind, EngineKind::Store(_) | EngineKind::Floor)
    }

    pub fn is_onewrite(&self) -> bool {
        matches!(self.kind, EngineKind::Onewrite { .. })
    }

    pub fn is_stock_wal(&self) -> bool {
        matches!(&self.kind, EngineKind::Stock { journal_mode, .. } if journal_mode == "wal")
    }

    /// Opens `path` with the settings of the engine's name.
    pub fn open(&self, libraries: &Libraries, path: &Path) -> Result<Db> {
        let library = libraries.get(self.library.as_deref())?;
        let pragmas = |db: &Db| {
            self.pragmas.iter().try_for_each(|(name, value)| db.execute_batch(&format!("PRAGMA {name} = {value}")))
        };
        match &self.kind {
            EngineKind::Stock { journal_mode, synchronous } => {
                let db = Db::open(library, utf8(path)?, false)?;
                db.busy_timeout(BUSY_MS)?;
                pragmas(&db)?;
                db.execute_batch(&format!("PRAGMA journal_mode = {journal_mode}; PRAGMA synchronous = {synchronous}"))?;
                Ok(db)
            }
            EngineKind::Onewrite { scheme, synchronous, .. } => {
                let db = Db::open(library, &uri(path, scheme)?, true)?;
                db.busy_timeout(BUSY_MS)?;
                pragmas(&db)?;
                db.execute_batch(&format!("PRAGMA synchronous = {synchronous}"))?;
                Ok(db)
            }
            EngineKind::Store(_) | EngineKind::Floor => bail!("{} has no SQL", self.engine),
        }
    }

    /// Attaches `path` to a connection to another database, with the same settings.
    pub fn attach(&self, db: &Db, path: &Path, name: &str) -> Result<()> {
        match &self.kind {
            EngineKind::Stock { journal_mode, synchronous } => {
                attach(db, utf8(path)?, name)?;
                db.execute_batch(&format!(
                    "PRAGMA {name}.journal_mode = {journal_mode}; PRAGMA {name}.synchronous = {synchronous}"
                ))
            }
            EngineKind::Onewrite { scheme, synchronous, .. } => {
                attach(db, &uri(path, scheme)?, name)?;
                db.execute_batch(&format!("PRAGMA {name}.synchronous = {synchronous}"))
            }
            EngineKind::Store(_) | EngineKind::Floor => bail!("{} has no SQL", self.engine),
        }
    }

    /// Reads the settings back and fails where they are not those of the engine's name.
    pub fn settings(&self, libraries: &Libraries, db: &Db) -> Result<EngineSettings> {
        let text = |name: &str| db.query_text(&format!("PRAGMA {name}"));
        let known = |name: &str| text(name)?.with_context(|| format!("PRAGMA {name} has no answer"));
        // A VFS without memory mapping answers its pragma with no row.
        let number = |name: &str| -> Result<i64> { Ok(db.query_int(&format!("PRAGMA {name}"))?.unwrap_or(0)) };
        let (journal_mode, synchronous) = (known("journal_mode")?, number("synchronous")?);
        let wanted = match &self.kind {
            EngineKind::Stock { journal_mode: wanted, synchronous: level } => {
                ensure!(journal_mode == *wanted, "{}: the journal mode is {journal_mode}, not {wanted}", self.name());
                *level
            }
            EngineKind::Onewrite { scheme: wanted, synchronous: level, .. } => {
                let scheme = text("onewrite_scheme")?.context("the connection does not go through onewrite")?;
                ensure!(scheme == *wanted, "{}: the scheme in force is {scheme}", self.name());
                *level
            }
            EngineKind::Store(_) | EngineKind::Floor => bail!("{} has no SQL", self.engine),
        };
        ensure!(synchronous == wanted, "{}: synchronous is {synchronous}, not {wanted}", self.name());
        for (name, value) in &self.pragmas {
            let found = known(name)?;
            ensure!(found == *value, "{}: {name} is {found}, not {value}", self.name());
        }
        let mut compile_options = Vec::new();
        if self.library.is_some() {
            let mut options = db.prepare("PRAGMA compile_options")?;
            while options.step()? {
                compile_options.push(String::from_utf8_lossy(options.column_blob(0)).into_owned());
            }
        }
        let sqlite_version = libraries.get(self.library.as_deref())?.version();
        EngineSettings::read(&|name| text(name), sqlite_version, compile_options)
    }
}

impl EngineSettings {
    /// From the answers of a connection to pragmas.
    pub fn read(
        text: &dyn Fn(&str) -> Result<Option<String>>,
        sqlite_version: String,
        compile_options: Vec<String>,
    ) -> Result<EngineSettings> {
        let known = |name: &str| text(name)?.with_context(|| format!("PRAGMA {name} has no answer"));
        // A VFS without memory mapping answers its pragma with no row.
        let number = |name: &str| -> Result<i64> { Ok(text(name)?.and_then(|v| v.parse().ok()).unwrap_or(0)) };
        let journal_mode = known("journal_mode")?;
        let log_size = text("onewrite_log_size")?;
        Ok(EngineSettings {
            sqlite_version,
            wal_autocheckpoint: if journal_mode == "wal" { Some(number("wal_autocheckpoint")?) } else { None },
            preallocates: if log_size.is_some() { "the log, as written zeros" } else { "nothing: files grow" },
            log_size,
            journal_mode,
            synchronous: LEVELS[usize::try_from(number("synchronous")?)?.min(3)].to_owned(),
            page_size: number("page_size")?,
            cache_size: number("cache_size")?,
            locking_mode: known("locking_mode")?,
            mmap_size: number("mmap_size")?,
            auto_vacuum: number("auto_vacuum")?,
            journal_size_limit: number("journal_size_limit")?,
            compile_options,
        })
    }
}

impl KeyValueStore {
    pub fn describe(self) -> String {
        match self {
            KeyValueStore::Lmdb => format!(
                "{} (heed), map of 4 GiB, no flag that weakens a commit: fdatasync at each; keys of 8 bytes",
                heed::lmdb_version().string
            ),
            KeyValueStore::Redb => "redb, cache of 1 GiB, Durability::Immediate (its default); keys u64".to_owned(),
        }
    }
}

/// Opens `path` with SQLite's own VFS, as any other program does.
pub fn open_stock(libraries: &Libraries, path: &Path) -> Result<Db> {
    Db::open(libraries.get(None)?, utf8(path)?, false)
}

pub fn attach_stock(db: &Db, path: &Path, name: &str) -> Result<()> {
    attach(db, utf8(path)?, name)
}

fn attach(db: &Db, path: &str, name: &str) -> Result<()> {
    db.execute_batch(&format!("ATTACH '{}' AS {name}", path.replace('\'', "''")))
}

fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("the directory's name is not UTF-8")
}

fn uri(path: &Path, scheme: &str) -> Result<String> {
    let path = utf8(path)?.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    Ok(format!("file:{path}?vfs=onewrite&scheme={scheme}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_ones_teach() {
        for e in all() {
            assert_eq!(named(&e.name(), &all()).unwrap(), e);
        }
        assert_eq!(named("floor/overwrite", &all()).unwrap().kind, EngineKind::Floor);
        let error = named("stock/wall", &all()).unwrap_err();
        assert!(
            error.contains("`stock/wall`") && error.contains("stock/wal-full") && error.contains("floor"),
            "{error}"
        );
    }

    #[test]
    fn uris_escape_reserved_characters() {
        assert_eq!(uri(Path::new("/a%b/c?d#e.db"), "log").unwrap(), "file:/a%25b/c%3fd%23e.db?vfs=onewrite&scheme=log");
    }

    #[test]
    fn stock_settings_follow_from_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let libraries = Libraries::load([]).unwrap();
        for mut e in all().into_iter().filter(|e| matches!(e.kind, EngineKind::Stock { .. })) {
            e.pragmas.push(("page_size".to_owned(), "8192".to_owned()));
            let c = e.open(&libraries, &dir.path().join(&e.preset)).unwrap();
            assert_eq!(e.settings(&libraries, &c).unwrap().page_size, 8192);
            c.execute_batch("PRAGMA synchronous = 0").unwrap();
            let error = e.settings(&libraries, &c).unwrap_err().to_string();
            assert!(error.contains("synchronous is 0"), "{error}");
        }
    }

    #[test]
    fn each_level_of_onewrite_is_the_one_in_force() {
        register_onewrite().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let libraries = Libraries::load([]).unwrap();
        for (preset, level) in [("log", "FULL"), ("log-normal", "NORMAL")] {
            let engine = onewrite(preset);
            let db = engine.open(&libraries, &dir.path().join(preset)).unwrap();
            assert_eq!(engine.settings(&libraries, &db).unwrap().synchronous, level);
            assert_eq!((engine.default, engine.default_reads), (true, preset == "log"));
        }
    }

    #[test]
    fn caveats_follow_from_the_settings() {
        assert!(stock("x", "delete", FULL).caveat.is_none());
        for engine in [stock("x", "wal", NORMAL), onewrite("log-normal")] {
            assert!(engine.caveat.unwrap().contains("since the last checkpoint"));
        }
        assert!(onewrite("log").caveat.is_none() && onewrite("log-live").caveat.is_none());
        for (mode, level) in [("delete", 0), ("off", FULL), ("memory", FULL), ("wal", 0), ("delete", 1)] {
            assert!(stock("x", mode, level).caveat.unwrap().contains("corrupt"), "{mode} {level}");
        }
    }
}
