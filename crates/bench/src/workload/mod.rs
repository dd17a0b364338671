//! The workloads by name, their sizes, and which module does which.
//!
//! | file | does |
//! |---|---|
//! | `rows` | inserts, updates, deletes and reads of one table, row by row |
//! | `originals` | the databases that these begin with: made once, copied for each section |
//! | `recovery` | opening such a database after a process was killed |
//! | `stores` | the same inserts, updates and deletes in key-value stores |
//! | `script` | transactions drawn beforehand, of any SQL, by one thread or several |
//! | `apps` | scripts: what apps and browsers do |
//! | `tools` | scripts: what other benchmarks do |
//! | `replay` | a script from a file of SQL |

mod apps;
pub mod floor;
mod originals;
mod recovery;
mod replay;
mod rows;
mod script;
mod stores;
mod tools;

pub use originals::Originals;
pub use recovery::{CrashedProcess, crash};
pub use rows::INDEXES_MAX;
pub use script::Script;

use crate::engines::sql::Libraries;
use crate::engines::{BenchEngine, EngineKind, EngineSettings};
use crate::numbers::measure::{Probe, Section};
use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The work of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Insert,
    Update,
    Delete,
    Lookup,
    LookupCold,
    Scan,
    ScanCold,
    /// Opening the database after a process was killed that had committed so many inserts since it
    /// opened it.
    Recovery(recovery::ProcessEnd, usize),
    Script(&'static Scripted),
}

/// A workload whose transactions are drawn beforehand.
#[derive(Debug)]
pub struct Scripted {
    pub name: &'static str,
    /// One line for the list of workloads.
    pub about: &'static str,
    /// Rows before the measured transactions, by default.
    pub rows: usize,
    /// Measured transactions, by default.
    pub transactions: usize,
    /// The sizes that change it, besides the number of transactions; as on the command line.
    pub heeds: &'static [&'static str],
    pub draw: fn(&Size, u64) -> Result<Script>,
}

impl PartialEq for Scripted {
    fn eq(&self, other: &Scripted) -> bool {
        self.name == other.name
    }
}

impl Eq for Scripted {}

const SCRIPTED: [&Scripted; 16] = [
    &tools::MOBIBENCH_INSERT,
    &tools::MOBIBENCH_UPDATE,
    &tools::MOBIBENCH_DELETE,
    &tools::ANDROBENCH_INSERT,
    &tools::ANDROBENCH_UPDATE,
    &tools::ANDROBENCH_DELETE,
    &tools::RL,
    &tools::DBBENCH,
    &tools::BULK,
    &apps::OPEN_INSERT_CLOSE,
    &apps::TABS,
    &apps::ATTACH,
    &apps::GMAIL,
    &apps::FACEBOOK,
    &apps::HANGOUTS,
    &apps::KAKAOTALK,
];

impl Workload {
    /// The default of `--workload`.
    pub const DEFAULT: [Workload; 3] = [Workload::Insert, Workload::Update, Workload::Delete];

    pub fn all() -> Vec<Workload> {
        use Workload::{Delete, Insert, Lookup, LookupCold, Scan, ScanCold, Update};
        let rows = [Insert, Update, Delete, Lookup, LookupCold, Scan, ScanCold];
        let recoveries = recovery::SIZES.map(|(_, _, after, inserts)| Workload::Recovery(after, inserts));
        let scripts = SCRIPTED.into_iter().chain([&replay::REPLAY]).map(Workload::Script);
        rows.into_iter().chain(recoveries).chain(scripts).collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Workload::Insert => "insert",
            Workload::Update => "update",
            Workload::Delete => "delete",
            Workload::Lookup => "lookup",
            Workload::LookupCold => "lookup-cold",
            Workload::Scan => "scan",
            Workload::ScanCold => "scan-cold",
            Workload::Recovery(after, inserts) => recovery::of(after, inserts).0,
            Workload::Script(s) => s.name,
        }
    }

    /// One line for the list of workloads.
    pub fn about(self) -> &'static str {
        match self {
            Workload::Insert => "a row with a random key; each its own transaction, as the next two",
            Workload::Update => "the value of a random row",
            Workload::Delete => "a random row",
            Workload::Lookup => "a row by its key",
            Workload::LookupCold => "the same, with nothing of the file in the kernel's cache at first",
            Workload::Scan => "the whole table",
            Workload::ScanCold => "the same, each with nothing of the file in the kernel's cache",
            Workload::Recovery(after, inserts) => recovery::of(after, inserts).1,
            Workload::Script(s) => s.about,
        }
    }

    /// Whether it inserts, updates or deletes single rows by key.
    pub fn is_one_row(self) -> bool {
        Workload::DEFAULT.contains(&self)
    }

    pub fn reads(self) -> bool {
        !self.is_one_row() && !self.recovers() && !matches!(self, Workload::Script(_))
    }

    pub fn recovers(self) -> bool {
        matches!(self, Workload::Recovery(..))
    }

    /// Whether the kernel holds nothing of the file when the section, or each scan, begins.
    pub fn is_cold(self) -> bool {
        matches!(self, Workload::LookupCold | Workload::ScanCold)
    }

    pub fn has_threads(self) -> bool {
        self == Workload::Script(&apps::TABS)
    }

    /// Whether a size, as on the command line, changes anything.
    pub fn heeds(self, option: &str) -> bool {
        match self {
            Workload::Script(s) => option == "--transactions" || s.heeds.contains(&option),
            _ => match option {
                "--transactions" | "--rows" | "--row-bytes" | "--indexes" => true,
                "--ops-per-tx" | "--wal-start" => self.is_one_row(),
                _ => false,
            },
        }
    }

    fn scans(self) -> bool {
        matches!(self, Workload::Scan | Workload::ScanCold)
    }

    /// Rows before the measured transactions, by default. For reads more than fit into SQLite's
    /// cache, so that they reach the VFS.
    pub fn rows(self) -> usize {
        match self {
            Workload::Script(s) => s.rows,
            _ if self.reads() => 100_000,
            _ => 2000,
        }
    }

    pub fn transactions(self) -> usize {
        match self {
            Workload::Lookup => 20_000,
            Workload::Scan => 20,
            Workload::ScanCold => 5,
            // Each takes a process that makes so many inserts.
            Workload::Recovery(recovery::ProcessEnd::Kill, inserts) if inserts > 1000 => 5,
            Workload::Recovery(..) => 20,
            Workload::Script(s) => s.transactions,
            _ => 1000,
        }
    }
}

impl Workload {
    /// Whether the workload makes sense for the engine. A commit makes the database live: then only
    /// reads differ. An engine that protects from nothing need not be sound after a crash.
    pub fn suits(self, engine: &BenchEngine) -> bool {
        match engine.kind {
            EngineKind::Floor | EngineKind::Store(_) => self.is_one_row(),
            _ if self.recovers() => !engine.is_live() && engine.protects(),
            _ => self.reads() || !engine.is_live(),
        }
    }

    /// Whether the engine is measured without `--only`.
    pub fn is_default_of(self, engine: &BenchEngine) -> bool {
        if self.reads() { engine.default_reads } else { engine.default }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let list = || Workload::all().iter().map(|w| format!("\n  {:<19} {}", w.name(), w.about())).collect::<String>();
        let found = Workload::all().into_iter().find(|w| w.name() == s);
        found.ok_or_else(|| format!("there is no `{s}`; choose from{}", list()))
    }
}

/// A name for `--workload`: of one of them, or of all those whose names begin so before a dash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadSelection(Vec<Workload>);

impl WorkloadSelection {
    /// Those asked for, each once, in the order of the table.
    pub fn all(asked: &[WorkloadSelection]) -> Vec<Workload> {
        Workload::all().into_iter().filter(|w| asked.iter().any(|WorkloadSelection(of)| of.contains(w))).collect()
    }
}

impl FromStr for WorkloadSelection {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        s.parse().map(|one| WorkloadSelection(vec![one])).or_else(|unknown| {
            let of = |w: &Workload| w.name().strip_prefix(s).is_some_and(|rest| rest.starts_with("-"));
            let family: Vec<Workload> = Workload::all().into_iter().filter(of).collect();
            if family.len() > 1 { Ok(WorkloadSelection(family)) } else { Err(unknown) }
        })
    }
}

/// How large the `-wal` file of stock SQLite is when the measured transactions begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum WalStart {
    /// As after opening the database, and as in Mobibench: the file grows, which the file system
    /// journals
    Empty,
    /// As in a program that has run for a while: the file is as large as it gets, and overwritten
    Grown,
}

impl WalStart {
    pub fn describe(self) -> &'static str {
        match self {
            WalStart::Empty => "empty, grows during the transactions (as in Mobibench)",
            WalStart::Grown => "grown to its checkpoint size, overwritten by the transactions",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Size {
    pub rows: usize,
    pub row_bytes: usize,
    pub transactions: usize,
    /// Operations of a transaction that inserts, updates or deletes rows.
    pub ops_per_tx: usize,
    /// Threads, each with a connection of its own, of a workload that has several.
    pub threads: usize,
    /// Tables that a transaction of Mobibench's writes.
    pub tables: usize,
    /// Secondary indexes, each on an integer column of random values.
    pub indexes: usize,
    pub wal_start: WalStart,
    /// The file of SQL to replay.
    pub replay: Option<PathBuf>,
    /// A section that takes longer stops early, and the table says so.
    pub limit: Option<Duration>,
}

impl Size {
    /// Whether the same plan is drawn for both.
    pub fn same_plan(&self, other: &Size) -> bool {
        let of = |s: &Size| (s.rows, s.row_bytes, s.transactions, s.ops_per_tx, s.threads, s.tables, s.indexes);
        of(self) == of(other) && self.replay == other.replay
    }
}

/// Transactions before the measured ones: the first of a connection creates journals and logs.
pub const WARM_UP: usize = 10;

pub const COLD: &str = "before lookup-cold, and before each scan of scan-cold: fdatasync and posix_fadvise(DONTNEED) of \
                        the file, then a new connection";

/// Everything a section will do, drawn before it is timed.
#[derive(Debug, PartialEq)]
pub enum Plan {
    Rows(rows::Rows),
    Script(Box<Script>),
}

impl Plan {
    /// The same seed and run draw the same plan, for any engine.
    pub fn draw(workload: Workload, size: &Size, seed: u64, run: u64) -> Result<Plan> {
        match workload {
            Workload::Script(s) => {
                let script = (s.draw)(size, seed.wrapping_add(run)).with_context(|| s.name)?;
                Ok(Plan::Script(Box::new(script)))
            }
            _ => Ok(Plan::Rows(rows::Rows::draw(workload, size, seed, run))),
        }
    }

    pub fn describe(&self) -> WorkloadCard {
        match self {
            Plan::Rows(rows) => rows.describe(),
            Plan::Script(script) => script.describe(),
        }
    }
}

/// A workload's lines of the card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadCard {
    pub schema: String,
    pub statements: Vec<String>,
    pub prepared: bool,
    pub key_order: &'static str,
    pub preloaded_rows: usize,
    pub row_bytes: usize,
    pub transactions: usize,
    /// Operations per transaction, on average.
    pub operations_per_transaction: f64,
    pub transaction: &'static str,
    pub threads: usize,
    pub connections: usize,
    /// Whether each transaction opens and closes the database.
    pub reopens: bool,
}

/// The surroundings that every section needs.
pub struct SectionStage<'a> {
    pub libraries: &'a Libraries,
    /// An empty directory.
    pub dir: &'a Path,
    /// The database to begin with, where it was made before.
    pub original: Option<&'a Path>,
    /// Called when everything is in place.
    pub ready: Box<dyn FnOnce() -> Result<()> + 'a>,
    /// Called around the measured transactions alone.
    pub probe: &'a mut dyn Probe,
}

/// Runs one section and verifies its database.
pub fn run(
    engine: &BenchEngine,
    workload: Workload,
    plan: &Plan,
    size: &Size,
    stage: SectionStage<'_>,
) -> Result<(Section, Option<EngineSettings>)> {
    let context = || format!("{}, {}", engine.name(), workload.name());
    match (&engine.kind, plan) {
        (EngineKind::Floor, _) => floor::run(stage, size).map(|section| (section, None)),
        (EngineKind::Store(store), Plan::Rows(rows)) => {
            stores::run(*store, rows, size, stage).map(|section| (section, None))
        }
        (_, Plan::Rows(rows)) => rows::run(engine, rows, size, stage).map(|(section, s)| (section, Some(s))),
        (_, Plan::Script(script)) => script::run(engine, script, size, stage).map(|(section, s)| (section, Some(s))),
    }
    .with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{all, register_onewrite};
    use crate::numbers::measure::NoProbe;

    pub const SIZE: Size = Size {
        rows: 50,
        row_bytes: 21,
        transactions: 30,
        ops_per_tx: 1,
        threads: 2,
        tables: 3,
        indexes: 0,
        wal_start: WalStart::Empty,
        replay: None,
        limit: None,
    };

    fn with_file(workload: Workload, size: &Size, dir: &Path) -> Size {
        let mut size = size.clone();
        if workload.name() == "replay" {
            let path = dir.join("trace.sql");
            std::fs::write(&path, "CREATE TABLE t(a); BEGIN; INSERT INTO t VALUES(';'); COMMIT; DELETE FROM t;")
                .unwrap();
            size.replay = Some(path);
        }
        size
    }

    #[test]
    fn a_plan_depends_on_its_seed_alone() {
        let dir = tempfile::tempdir().unwrap();
        for w in Workload::all() {
            let size = with_file(w, &SIZE, dir.path());
            let draw = |seed| Plan::draw(w, &size, seed, 0).unwrap();
            assert_eq!(draw(7), draw(7), "{}", w.name());
            let seeded = !matches!(w.name(), "replay" | "mobibench-insert" | "mobibench-update");
            assert_eq!(draw(7) != draw(8), seeded, "{}", w.name());
            let other_run = Plan::draw(w, &size, 7, 1).unwrap();
            assert_eq!(draw(7) != other_run, seeded, "{}", w.name());
            if let (Plan::Rows(one), Plan::Rows(other)) = (draw(7), other_run) {
                assert_eq!(one.preload, other.preload, "{}", w.name());
            }
        }
    }

    #[test]
    fn a_plan_depends_on_the_sizes_it_heeds_and_on_no_others() {
        let dir = tempfile::tempdir().unwrap();
        for w in Workload::all() {
            let size = with_file(w, &SIZE, dir.path());
            let changed = [
                ("--transactions", Size { transactions: 1, ..size.clone() }),
                ("--rows", Size { rows: 1234, ..size.clone() }),
                ("--row-bytes", Size { row_bytes: 99, ..size.clone() }),
                ("--ops-per-tx", Size { ops_per_tx: 3, ..size.clone() }),
                ("--threads", Size { threads: 5, ..size.clone() }),
                ("--tables", Size { tables: 7, ..size.clone() }),
                ("--indexes", Size { indexes: 2, ..size.clone() }),
            ];
            let draw = |size: &Size| Plan::draw(w, size, 7, 0).unwrap();
            for (option, other) in changed {
                assert_eq!(draw(&size) != draw(&other), w.heeds(option), "{} {option}", w.name());
            }
            // A file that is not there.
            let other = Size { replay: Some(dir.path().join("none")), ..size.clone() };
            assert_eq!(Plan::draw(w, &other, 7, 0).is_err(), w.heeds("--replay"), "{}", w.name());
        }
    }

    #[test]
    fn every_engine_does_every_workload_it_is_for_and_is_verified() {
        register_onewrite().unwrap();
        let libraries = Libraries::load([]).unwrap();
        for e in &all() {
            // Recovery needs this program's command line, to be killed.
            for w in Workload::all().into_iter().filter(|w| w.suits(e) && !w.recovers()) {
                let scripted = matches!(w, Workload::Script(_));
                // A script does the same in all journal modes.
                if scripted && !["delete", "wal-full", "log"].contains(&e.preset.as_str()) {
                    continue;
                }
                let sizes = if scripted { vec![(0, 1)] } else { vec![(0, 1), (INDEXES_MAX, 3)] };
                for (indexes, ops_per_tx) in sizes {
                    let dir = tempfile::tempdir().unwrap();
                    let size = Size { indexes, ops_per_tx, transactions: 10, ..SIZE };
                    let size = with_file(w, &size, dir.path());
                    let plan = Plan::draw(w, &size, 3, 0).unwrap();
                    let stage = SectionStage {
                        libraries: &libraries,
                        dir: dir.path(),
                        original: None,
                        ready: Box::new(|| Ok(())),
                        probe: &mut NoProbe,
                    };
                    let (section, _) = run(e, w, &plan, &size, stage).unwrap();
                    assert!(scripted || section.transactions == 10, "{} {}", e.name(), w.name());
                    assert!(!section.stopped);
                }
            }
        }
    }

    #[test]
    fn names_are_found_and_unknown_ones_teach() {
        for w in Workload::all() {
            assert_eq!(w.name().parse(), Ok(w));
        }
        let asked = |names: [&str; 2]| WorkloadSelection::all(&names.map(|name| name.parse().unwrap()));
        assert_eq!(asked(["scan", "insert"]), [Workload::Insert, Workload::Scan]);
        let names: Vec<_> = asked(["recovery-cut", "mobibench-update"]).into_iter().map(Workload::name).collect();
        assert_eq!(names, ["recovery-cut-10", "recovery-cut-160", "recovery-cut-2560", "mobibench-update"]);
        assert!("tabs-".parse::<WorkloadSelection>().is_err() && "open-insert".parse::<WorkloadSelection>().is_err());
        let error = "look".parse::<WorkloadSelection>().unwrap_err();
        assert!(error.contains("`look`") && error.contains("lookup-cold") && error.contains("insert"), "{error}");
    }
}
