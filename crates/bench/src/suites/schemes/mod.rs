//! The suite `schemes`: the measurements of the papers on LS-MVBT (Kim et al., FAST '14) and
//! Doubleheader Logging (Oh et al.) that need no phone, in one run.
//!
//! | file | does |
//! |---|---|
//! | `figures` | which engines do what in which figure |
//! | `engine`, `load` | opening, and the transactions |
//! | `volume`, `recovery`, `child` | counting blocks; crashing; the traced process of both |
//! | `table`, `page` | what is printed, and the page of `--html` |
//!
//! The cells of a figure follow each other in every run, in an order that turns from run to run, so
//! that drift hits all of them.

mod child;
pub mod engine;
mod figures;
pub mod load;
mod page;
mod recovery;
mod table;
mod volume;

use crate::counting::device::Device;
use crate::engines::sql::{Db, Library};
use crate::files::OutputFiles;
use crate::host::Mount;
use crate::numbers::measure::INTERRUPTED;
use crate::parameters::card::{self, Machine};
use crate::parameters::suite::SuiteOptions;
use crate::progress::{self, Progress};
use crate::text;
use anyhow::{Context, Result, bail};
use figures::{CellWork, Figure, FigureMetric, FigureSize};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// On the command line.
pub const NAME: &str = "schemes";
/// Without `--runs` and `--transactions` the suite ends within two minutes; this leaves some for
/// the end.
const BUDGET: Duration = Duration::from_secs(110);
const RUNS: usize = 5;
/// Transactions of a section, unless `--transactions` says.
const TRANSACTIONS: usize = 100;

pub use child::run as traced;

/// The numbers of one cell in one run.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    us_per_tx: Option<f64>,
    pages_per_tx: Option<f64>,
    through_log_percent: Option<f64>,
    volume: Option<volume::TransactionVolume>,
    recovered: Option<recovery::Recovered>,
}

impl Sample {
    fn get(&self, metric: FigureMetric) -> Option<f64> {
        let volume = |of: fn(&volume::TransactionVolume) -> f64| self.volume.as_ref().map(of);
        match metric {
            FigureMetric::UsPerTx => self.us_per_tx,
            FigureMetric::TxPerS => self.us_per_tx.map(|us| 1e6 / us),
            FigureMetric::Ratio => None,
            FigureMetric::PagesPerTx => self.pages_per_tx,
            FigureMetric::ThroughLog => self.through_log_percent,
            FigureMetric::KibDatabase => volume(|v| v.database),
            FigureMetric::KibLog => volume(|v| v.log),
            FigureMetric::KibJournal => volume(|v| v.journal),
            FigureMetric::KibOther => volume(|v| v.other),
            FigureMetric::KibTotal => volume(|v| v.database + v.log + v.journal + v.other),
            FigureMetric::WritesPerTx => volume(|v| v.writes),
            FigureMetric::FlushesPerTx => volume(|v| v.flushes),
            FigureMetric::RecoveryMs => self.recovered.map(|r| r.first_row.as_secs_f64() * 1e3),
            FigureMetric::ClosedMs => self.recovered.map(|r| r.closed.as_secs_f64() * 1e3),
        }
    }
}

/// The SQLite that everything runs in.
struct ChosenLibrary {
    library: Arc<Library>,
    path: Option<PathBuf>,
    /// The part that is left out, and the cure.
    missing: Option<String>,
}

/// Where a build puts the drop-in library.
pub fn built() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    Ok(exe.parent().map(|dir| dir.join("drop-in/libsqlite3.so.0")).unwrap_or_default())
}

/// The drop-in library named by `--library`, or the one built beside this program.
pub fn drop_in(args: &SuiteOptions) -> Result<Option<PathBuf>> {
    let path = match &args.library[..] {
        [] => Some(built()?).filter(|path| path.exists()),
        [one] => Some(one.clone()),
        _ => bail!("the suite {NAME} takes one --library: the drop-in libsqlite3"),
    };
    path.map(|path| std::fs::canonicalize(&path).with_context(|| path.display().to_string())).transpose()
}

/// That one; else the SQLite in this program.
fn choose(args: &SuiteOptions) -> Result<ChosenLibrary> {
    let path = drop_in(args)?;
    if let Some(path) = path {
        let library = Library::load(&path)?;
        if !library.has_vfs("onewrite") {
            bail!(
                "{} has no onewrite in it: the suite {NAME} needs the drop-in library (`cargo build --release -p onewrite-sqlite \
                 --features research`)",
                path.display()
            );
        }
        return Ok(ChosenLibrary { library, path: Some(path), missing: None });
    }
    crate::engines::register_onewrite().map_err(anyhow::Error::msg)?;
    let missing = format!(
        "Left out: mvbt, mvbt-opt, lsmvbt and Fig. 11, which split pages as only the drop-in library does. It is not \
         built: `cargo build --release -p onewrite-sqlite --features research` puts it at {}, where it is found; or name it with --library.",
        built()?.display()
    );
    Ok(ChosenLibrary { library: Library::linked(), path: None, missing: Some(missing) })
}

/// Measures, prints the tables, and writes the JSON asked for.
pub fn run(args: &SuiteOptions) -> Result<()> {
    let chosen = choose(args)?;
    let files = OutputFiles::create(&args.common)?;
    let asked = args.common.transactions.map(|n| n as usize);
    let transactions = asked.unwrap_or(TRANSACTIONS);
    let free = asked.is_none() && args.common.runs.is_none();
    let runs_asked = args.common.runs.map_or(RUNS, |n| n as usize);
    let mut figures = figures::all(FigureSize { transactions, full: transactions >= 1000 });
    if !args.only.is_empty() {
        let names = || figures.iter().map(|f| f.name).collect::<Vec<_>>().join(", ");
        if let Some(unknown) = args.only.iter().find(|name| !figures.iter().any(|f| f.name == **name)) {
            bail!("--only {unknown}: the suite {NAME} has no such figure; choose from {}", names());
        }
        figures.retain(|f| args.only.iter().any(|name| name == f.name));
    }
    if chosen.missing.is_some() {
        figures.iter_mut().for_each(|f| f.cells.retain(|cell| !cell.engine.needs_drop_in));
    }

    let parent = args.common.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let parent = std::fs::canonicalize(&parent).with_context(|| parent.display().to_string())?;
    let dir = tempfile::Builder::new().prefix("onewrite-bench-").tempdir_in(&parent)?;
    let mut suite = SchemesSuite {
        chosen,
        dir: dir.path().to_owned(),
        seed: args.common.seed,
        start: Instant::now(),
        budget: free.then_some(BUDGET),
        counter: None,
        notes: Vec::new(),
        failed: BTreeMap::new(),
    };
    let (samples, runs) = suite.measure(&figures, runs_asked)?;
    suite.report(files, &figures, &samples, runs, transactions)?;
    let failed: Vec<String> = suite.failed.into_values().collect();
    dir.close().context("removing the temporary directory")?;
    if failed.is_empty() { Ok(()) } else { bail!("a part failed: {}", failed.join("; ")) }
}

struct SchemesSuite {
    chosen: ChosenLibrary,
    dir: PathBuf,
    seed: u64,
    start: Instant,
    budget: Option<Duration>,
    /// Where blocks are counted, once it was tried.
    counter: Option<Result<volume::Counter, ()>>,
    notes: Vec<String>,
    /// By figure and cell, those that failed, with the reasons.
    failed: BTreeMap<(usize, usize), String>,
}

/// By figure and cell, run by run.
type Samples = Vec<Vec<Vec<Sample>>>;

impl SchemesSuite {
    fn measure(&mut self, figures: &[Figure], runs_asked: usize) -> Result<(Samples, usize)> {
        let mut samples: Samples = figures.iter().map(|f| vec![Vec::new(); f.cells.len()]).collect();
        let sections: usize = figures.iter().map(|f| f.cells.len()).sum();
        let how_long = if self.budget.is_some() { "in at most two minutes" } else { "as long as it takes" };
        let progress = Progress::new(runs_asked * sections, how_long);
        let mut longest = Duration::ZERO;
        let mut runs = 0;
        while runs < runs_asked {
            if runs > 0 && self.budget.is_some_and(|b| self.start.elapsed() + longest.mul_f64(1.1) > b) {
                self.notes.push(format!(
                    "{runs} runs instead of {runs_asked}, to end within two minutes; --runs and --transactions override"
                ));
                break;
            }
            let run_start = Instant::now();
            for (f, figure) in figures.iter().enumerate() {
                for turn in 0..figure.cells.len() {
                    let c = (turn + runs) % figure.cells.len();
                    let cell = &figure.cells[c];
                    let what =
                        format!("run {} of {runs_asked}, {}: {} {}", runs + 1, figure.name, cell.engine.name, cell.at);
                    progress.section(&what);
                    // However slow the disk: the first run shares the time.
                    let left = (sections + 1).saturating_sub(progress.begun()).max(4) as u32;
                    let limit = self.budget.map(|b| 2 * b.saturating_sub(self.start.elapsed()) / left);
                    let seed = self.seed.wrapping_mul(1000).wrapping_add(runs as u64);
                    if self.failed.contains_key(&(f, c)) {
                        continue;
                    }
                    let sample = self.cell(cell, seed, limit, runs);
                    if INTERRUPTED.load(Ordering::Relaxed) {
                        bail!("interrupted");
                    }
                    match sample {
                        Ok(sample) => samples[f][c].extend(sample),
                        Err(e) => drop(self.failed.insert((f, c), format!("{what}: {e:#}"))),
                    }
                }
            }
            longest = longest.max(run_start.elapsed());
            runs += 1;
        }
        progress.done();
        let failed: Vec<String> = self.failed.values().cloned().collect();
        if samples.iter().flatten().all(Vec::is_empty) && !failed.is_empty() {
            bail!("nothing was measured: {}", failed.join("; "));
        }
        self.notes.extend(failed.iter().map(progress::unfinished));
        Ok((samples, runs))
    }

    /// One section; `None` where it cannot be had here, or is as it was in the first run.
    fn cell(
        &mut self,
        cell: &figures::FigureCell,
        seed: u64,
        limit: Option<Duration>,
        run: usize,
    ) -> Result<Option<Sample>> {
        match &cell.work {
            CellWork::Timed(load) => {
                let dir = tempfile::tempdir_in(&self.dir)?;
                let timed = load::section(&self.chosen.library, &cell.engine, load, dir.path(), seed, limit, &mut ())?;
                let each = |n: f64| Some(n / timed.transactions as f64);
                Ok(Some(Sample {
                    us_per_tx: each(timed.seconds * 1e6),
                    pages_per_tx: each(timed.pages as f64),
                    through_log_percent: timed.through_log_percent(),
                    ..Sample::default()
                }))
            }
            CellWork::Volume(load) => {
                // Counts do not vary as times do.
                if run > 0 || !self.has_counter() {
                    return Ok(None);
                }
                let Some(Ok(counter)) = &self.counter else { return Ok(None) };
                let path = self.chosen.path.clone();
                let (volume, timed) =
                    counter.section(&self.chosen.library, path, &cell.engine, load, &self.dir, seed)?;
                let through_log_percent = timed.through_log_percent();
                Ok(Some(Sample { volume: Some(volume), through_log_percent, ..Sample::default() }))
            }
            CellWork::Recovery(crash) => {
                let ChosenLibrary { library, path, .. } = &self.chosen;
                let recovered = recovery::run(library, path.as_deref(), &cell.engine, crash, &self.dir, seed);
                match recovered {
                    Ok(recovered) => Ok(Some(Sample { recovered: Some(recovered), ..Sample::default() })),
                    Err(recovery::RecoveryFailure::Untraceable(why)) => {
                        let note = format!("recovery is n/a: {why}");
                        if !self.notes.contains(&note) {
                            self.notes.push(note);
                        }
                        Ok(None)
                    }
                    Err(recovery::RecoveryFailure::Other(e)) => Err(e),
                }
            }
        }
    }

    fn has_counter(&mut self) -> bool {
        if self.counter.is_none() {
            self.counter = Some(match volume::Counter::start(&self.dir) {
                Ok((counter, what)) => {
                    self.notes.push(format!("KiB, writes and flushes: {what}"));
                    Ok(counter)
                }
                Err(why) => {
                    self.notes.push(format!("KiB, writes and flushes are n/a: {why}"));
                    Err(())
                }
            });
        }
        matches!(self.counter, Some(Ok(_)))
    }

    fn report(
        &self,
        files: OutputFiles,
        figures: &[Figure],
        samples: &Samples,
        runs: usize,
        transactions: usize,
    ) -> Result<()> {
        let values: Vec<_> = figures.iter().zip(samples).map(|(f, samples)| table::values(f, samples)).collect();
        let version = self.chosen.library.version();
        let sqlite = match &self.chosen.path {
            Some(path) => format!("{version} of {}", path.display()),
            None => format!("{version} of this program"),
        };
        let mount = Mount::of(&self.dir);
        let machine = Machine::look(&self.dir, mount.as_ref(), &Device::under(&self.dir, mount.as_ref()), None);
        let cells = || figures.iter().flat_map(|f| &f.cells);
        let parameters = SchemesParameters {
            onewrite_version: env!("CARGO_PKG_VERSION"),
            made_at: card::made_at(),
            command: card::command(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            unknown: card::all_unknown(&machine, &BTreeMap::new()),
            machine,
            sqlite,
            compile_options: self.compile_options()?,
            engines: cells().map(|c| (format!("{} {}", c.engine.name, c.at), c.engine.describe())).collect(),
            runs,
            run_order: "interleaved, order of cells turned per run",
            transactions,
            value_bytes: 128,
            key_order: "random 63-bit keys",
            seed: self.seed,
            notes: self.notes.iter().chain(&self.chosen.missing).cloned().collect(),
        };
        print!("{}", told(figures, &values, &parameters, text::columns()));
        let page = || page::page(&parameters, figures, &values);
        let rows = |(f, values): (&Figure, &Vec<table::CellValue>)| values.iter().map(|v| v.row(f)).collect::<Vec<_>>();
        files.write(
            &SchemesJson { parameters: &parameters, results: figures.iter().zip(&values).flat_map(rows).collect() },
            page,
        )
    }

    fn compile_options(&self) -> Result<Vec<String>> {
        let db = Db::open(&self.chosen.library, ":memory:", false)?;
        let mut statement = db.prepare("PRAGMA compile_options")?;
        let mut options = Vec::new();
        while statement.step()? {
            options.push(String::from_utf8_lossy(statement.column_blob(0)).into_owned());
        }
        Ok(options)
    }
}

/// The text of the terminal.
fn told(figures: &[Figure], values: &[Vec<table::CellValue>], parameters: &SchemesParameters, columns: u16) -> String {
    let mut out = String::new();
    for (figure, values) in figures.iter().zip(values) {
        out += &text::wrapped([format!("{} ({})", figure.title, figure.name)], columns);
        out += &(table::render(figure, values, columns) + "\n\n");
    }
    let mut lines = vec![
        format!(
            "Medians of {} runs, {} transactions a section or a multiple; rows of 128 B, random keys, synchronous=FULL.",
            parameters.runs, parameters.transactions
        ),
        "A ratio is the median of those taken run by run. The papers' numbers beside these: docs/research.md."
            .to_owned(),
    ];
    lines.extend(parameters.notes.iter().cloned());
    if parameters.build == "debug" {
        lines.push("This is a debug build; measure with `cargo run --release`.".to_owned());
    }
    out += &text::wrapped(lines, columns);
    format!("{out}\n{}\n", card::lines(&parameters.short(), text::line(columns)).join("\n"))
}

#[derive(Serialize)]
struct SchemesParameters {
    onewrite_version: &'static str,
    made_at: String,
    command: String,
    build: &'static str,
    machine: Machine,
    sqlite: String,
    compile_options: Vec<String>,
    /// Each at each point of a figure.
    engines: BTreeMap<String, String>,
    runs: usize,
    run_order: &'static str,
    transactions: usize,
    value_bytes: usize,
    key_order: &'static str,
    seed: u64,
    unknown: Vec<String>,
    notes: Vec<String>,
}

impl SchemesParameters {
    /// The card in a few lines.
    fn short(&self) -> Vec<(String, String)> {
        let sqlite = format!("{}, {} build", self.sqlite, self.build);
        let runs = format!("{}, {}; seed {}", self.runs, self.run_order, self.seed);
        card::in_short(sqlite, runs, &self.machine, &self.unknown)
    }
}

#[derive(Serialize)]
struct SchemesJson<'a> {
    parameters: &'a SchemesParameters,
    results: Vec<table::SchemeRow>,
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::parameters::card::tests::parameters as card;

    fn parameters() -> SchemesParameters {
        let of = card();
        SchemesParameters {
            onewrite_version: of.onewrite_version,
            made_at: of.made_at,
            command: of.command,
            build: of.build,
            unknown: of.unknown,
            machine: of.machine,
            sqlite: format!("{} of /usr/lib/x86_64-linux-gnu/libsqlite3.so.0", of.sqlite_version),
            compile_options: of.compile_options,
            engines: BTreeMap::new(),
            runs: 5,
            run_order: "interleaved, order of cells turned per run",
            transactions: 1000,
            value_bytes: 128,
            key_order: "random 63-bit keys",
            seed: 1,
            notes: of.notes,
        }
    }

    /// Every figure, with numbers of many digits.
    fn sample() -> (Vec<Figure>, Vec<Vec<table::CellValue>>) {
        let figures = figures::all(FigureSize { transactions: 1000, full: true });
        let cell = |n: usize| Sample {
            us_per_tx: Some(90.4 * (n + 1) as f64),
            pages_per_tx: Some(12.34 + n as f64),
            through_log_percent: Some(100.0),
            volume: Some(volume::TransactionVolume {
                database: 1004.2,
                log: 1234.5,
                journal: 123.4,
                other: 12.5 + n as f64,
                writes: 123.45,
                flushes: 12.02,
            }),
            recovered: Some(recovery::Recovered {
                first_row: Duration::from_micros(12_345),
                closed: Duration::from_millis(1234 + n as u64),
            }),
        };
        let values = figures.iter().map(|figure| {
            let samples: Vec<Vec<Sample>> = (0..figure.cells.len()).map(|n| vec![cell(n); 5]).collect();
            table::values(figure, &samples)
        });
        let values = values.collect();
        (figures, values)
    }

    #[cfg(target_os = "linux")]
    pub fn sample_page() -> String {
        let (figures, values) = sample();
        page::page(&parameters(), &figures, &values).unwrap()
    }

    #[test]
    fn the_text_of_the_terminal_has_eighty_columns() {
        let (figures, values) = sample();
        let told = told(&figures, &values, &parameters(), 80);
        assert!(text::width(&told) <= 80, "{told}");
        // The fifteen points of DHL Fig. 10 are in two tables.
        let (_, dhl_10) = told.split_once("DHL Fig. 10").unwrap();
        let heads: Vec<&str> = dhl_10.lines().filter(|line| line.starts_with("tx/s")).take(2).collect();
        let of = |word: &str| heads.iter().map(|head| head.matches(word).count()).sum::<usize>();
        assert_eq!(["insert", "update", "delete"].map(of), [5, 5, 5], "{told}");
    }
}
