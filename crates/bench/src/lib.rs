//! `onewrite bench`: what a durable commit costs, side by side.
//!
//! A *section* is one engine doing one workload once, on a database of its own. A *run* is one
//! section of every engine and workload; the order of the engines turns from run to run, so that what
//! drifts (other programs, heat, the device's own housekeeping) does not always hit the same one.
//!
//! | file | does |
//! |---|---|
//! | `options`, `given`, `suite` | options that subcommands share; which of them change what; whole measurements by name |
//! | `engines`, `sql` | what can be measured and how it is opened; any SQLite behind one table of functions |
//! | `workload/`, `floor` | a section's work, and its verification |
//! | `runner`, `progress` | which section when |
//! | `measure`, `stats`, `results` | timing; medians and confidence intervals; the rows of the table |
//! | `device`, `syscalls` | counting below and at the kernel's door |
//! | `crowd/`, `schemes/`, `phone`, `vm` | the other suites: several connections at once; the papers' schemes; slow flash; F2FS |
//! | `simulated`, `blocks` | a simulated device under the measurement, and what reaches it |
//! | `compare`, `sweep`, `images`, `advise` | the subcommands |
//! | `card`, `report`, `html/`, `leads`, `wear` | the parameters; table and JSON; the page and its first sentences; how long a card lasts |

mod advise;
mod blocks;
mod card;
mod compare;
mod crowd;
mod device;
mod engines;
mod floor;
mod given;
mod html;
mod images;
mod leads;
mod measure;
mod options;
mod phone;
mod progress;
mod random;
mod report;
mod results;
mod runner;
mod schemes;
mod simulated;
pub mod sql;
mod stats;
mod suite;
mod sweep;
mod syscalls;
mod vm;
mod wear;
mod workload;

use anyhow::{Context, Result, bail, ensure};
pub use given::Given;
use options::Common;
use runner::{Case, Job, Outcome};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use workload::{Asked, Workload};

/// Measure what a durable SQLite commit costs here, side by side
///
/// Every engine does the same durable single-row inserts, updates and deletes, each its own
/// transaction, on a database of its own in a temporary directory that is removed afterwards. The
/// floor is one bare 4 KiB overwrite with one flush: no durable commit can be cheaper.
///
/// It goes on until medians and ratios are known to ±10 %, and marks those that are not after two minutes. Run it
/// on the disk your database lives on:
///
///     onewrite bench --dir /var/lib/myapp
///
/// Compare two settings, with more transactions and more time for them:
///
///     onewrite bench --only stock/truncate --only stock/wal-full --transactions 5000 --minutes 5
///
/// See what reading costs, by key and of whole tables:
///
///     onewrite bench --workload lookup --workload scan
///
/// Compare with another SQLite, and with key-value stores:
///
///     onewrite bench --library /usr/lib/x86_64-linux-gnu/libsqlite3.so.0 --peers
///
/// Vary one setting, compare two results, or ask what suits a directory:
///
///     onewrite bench sweep --help
///     onewrite bench compare before.json after.json
///     onewrite bench advise /var/lib/myapp
///
/// See what commits cost on slow flash, what they write there and how long it lasts (as root):
///
///     onewrite bench --device emmc --html report.html
///
/// What an app would notice, with a page of pictures:
///
///     onewrite bench --workload gmail --workload facebook --html report.html
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Subcommand>,
    /// The measurement to make: commit (what one durable commit costs), threads and processes (what several
    /// connections get done together, in threads of one process or each in its own), schemes (the tables
    /// and figures of the papers on LS-MVBT and Doubleheader Logging; as many transactions as those with
    /// --transactions 1000 --runs 5), phone (apps and the benchmarks of phones on simulated eMMC, UFS and SD card,
    /// with the years that a card lasts; as root), vm (what an insert writes on F2FS and other file systems of Debian's kernel, in a
    /// virtual machine; as root, with QEMU, which is installed with apt-get where it is missing)
    #[arg(long, value_name = "NAME", default_value = suite::ALL[0].name)]
    pub(crate) suite: suite::Chosen,
    /// Measure only this one: stock/delete, stock/truncate, stock/persist, stock/wal-full, stock/wal-normal,
    /// onewrite/log, onewrite/log-live (reads of a database this process writes), onewrite/auto, onewrite/wal-opt,
    /// onewrite/dash, onewrite/off, onewrite/off-opt, lmdb, redb, floor, or one of a --library; may be repeated. Of
    /// the suite schemes: only this figure (ls-mvbt-6, -9, -10, -11, -12, dhl-7, -8, -10, -11)
    #[arg(long, value_name = "ENGINE/PRESET")]
    pub(crate) only: Vec<String>,
    /// Do this: insert, update, delete, lookup (a row by its key), scan (the whole table), lookup-cold, scan-cold
    /// (which begin with nothing of the file in the kernel's cache), recovery-kill-10, -160, -2560 (opening after a
    /// process was killed behind so many inserts), recovery-cut-10, -160, -2560 (after a power cut), mobibench-insert, -update, -delete, androbench-insert, -update, -delete, rl (RL
    /// Benchmark), dbbench (DB Bench), bulk (1.5 million rows in a transaction), open-insert-close, attach (two files), tabs
    /// (a browser's threads), gmail, facebook, hangouts, kakaotalk (app profiles), replay (a file of SQL); may be repeated.
    /// recovery, mobibench and androbench are all of those that begin so. A name that is wrong lists them with a line
    /// on each [default: insert, update, delete]
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Vec<workload::Asked>,
    /// Measure the stock modes of this libsqlite3.so too; may be repeated. Of the suites phone and vm: one built with
    /// SQLITE_ENABLE_BATCH_ATOMIC_WRITE, for what is counted on F2FS
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Vec<PathBuf>,
    /// Measure LMDB and redb too: the bare commit of a key-value store, as durable
    #[arg(long)]
    pub(crate) peers: bool,
    #[command(flatten)]
    pub(crate) common: options::Common,
    #[command(flatten)]
    pub(crate) crowd: crowd::Options,
    /// Do one section under a tracer (the bench calls itself with this)
    #[arg(long, hide = true, value_name = "JSON")]
    traced: Option<String>,
}

/// What can be asked besides a measurement of engines and workloads.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    Compare(compare::Compare),
    Sweep(Box<sweep::Sweep>),
    Advise(Box<advise::Advise>),
}

/// Makes the measurement asked for; `given` are the options that were on the command line.
pub fn run(mut args: Args, given: Given) -> Result<()> {
    if let Some(json) = &args.traced {
        let suite = args.suite.0.name;
        return match suite {
            schemes::NAME => schemes::traced(json),
            vm::NAME => vm::guest(),
            _ => runner::traced(json),
        };
    }
    if let Some(json) = &args.crowd.worker {
        return crowd::process(json);
    }
    ctrlc::set_handler(|| {
        if measure::INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("handling Ctrl-C")?;
    match args.command.take() {
        None => {
            let suite = args.suite.0;
            given.all_in(suite.heeds, &format!("the suite {}", suite.name))?;
            args.common.tell(given);
            (suite.run)(&args)
        }
        Some(Subcommand::Compare(options)) => compare::run(&options),
        Some(Subcommand::Sweep(mut options)) => {
            options.common.tell(given);
            sweep::run(&options)
        }
        Some(Subcommand::Advise(mut options)) => {
            options.common.tell(given);
            advise::run(&options)
        }
    }
}

/// The suite `commit`: measures, prints the table and its card, and writes the files asked for.
fn commit(args: &Args) -> Result<()> {
    let files = Files::create(&args.common)?;
    let outcome = runner::run(job(args)?)?;
    files.finish(&args.common, &outcome)
}

/// What the options of the suite `commit` ask for.
fn job(args: &Args) -> Result<Job> {
    let mut notes = Vec::new();
    let workloads: Vec<Workload> = match &args.workload[..] {
        [] => Workload::DEFAULT.to_vec(),
        asked => Asked::all(asked),
    };
    let mut choices = engines::all();
    for path in &args.library {
        let path = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
        let library = sql::Library::load(&path)?;
        choices.extend(engines::of_library(&path, library.has_vfs("onewrite")));
    }
    for engine in choices.iter_mut().filter(|e| matches!(e.kind, engines::Kind::Store(_))) {
        engine.default = args.peers;
    }
    if args.peers {
        notes.push(batch_atomic(args)?);
    }
    let named = args.only.iter().map(|name| engines::named(name, &choices).map_err(anyhow::Error::msg));
    let named = named.collect::<Result<Vec<_>>>().context("--only")?;
    let mut engines: Vec<engines::Engine> = match &named[..] {
        [] => choices.into_iter().filter(|e| workloads.iter().any(|w| e.does(*w) && e.is_default_for(*w))).collect(),
        named => choices.into_iter().filter(|e| named.contains(e)).collect(),
    };
    if let Some(idle) = engines.iter().find(|e| !workloads.iter().any(|w| e.does(*w))) {
        let its: Vec<_> = Workload::all().into_iter().filter(|w| idle.does(*w)).map(Workload::name).collect();
        bail!("{} has none of these workloads; give --workload one of {}", idle.name(), its.join(", "));
    }
    let wanted = engines.iter().any(|e| e.is_onewrite() && e.library.is_none());
    if let Some(reason) = wanted.then(engines::register_onewrite).and_then(Result::err) {
        if !args.only.is_empty() {
            bail!("onewrite cannot be measured: {reason}");
        }
        engines.retain(|e| !e.is_onewrite());
        notes.push(format!("onewrite was left out: {reason}"));
    }
    let reference = engines.iter().position(engines::is_reference).map(|c| (c, "WAL/FULL".to_owned()));
    Ok(Job {
        common: args.common.clone(),
        cases: engines.into_iter().map(Case::from).collect(),
        workloads,
        defaults_only: args.only.is_empty(),
        reference,
        count_calls: true,
        notes,
    })
}

/// Whether SQLite can commit with batch-atomic writes here, in words.
fn batch_atomic(args: &Args) -> Result<String> {
    let dir = args.common.dir.clone().unwrap_or_else(|| PathBuf::from("."));
    let dir = std::fs::canonicalize(&dir).with_context(|| dir.display().to_string())?;
    let file_system = device::Mount::of(&dir).map_or("this file system".to_owned(), |m| m.fs_type);
    let (_, options) = card::sqlite()?;
    let built = options.iter().any(|o| o == "ENABLE_BATCH_ATOMIC_WRITE");
    Ok(match (file_system == "f2fs", built) {
        (true, true) => "batch-atomic writes: F2FS has them, and stock's rollback modes use them".to_owned(),
        (true, false) => "batch-atomic writes: F2FS has them, the SQLite in this program is built without; give a \
                          --library built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE"
            .to_owned(),
        (false, _) => format!("batch-atomic writes are not measured: {file_system} has none, only F2FS does"),
    })
}

/// The files asked for, opened first: a name that cannot be written must not cost the user the time of a measurement.
struct Files {
    json: Option<(PathBuf, File)>,
    html: Option<(PathBuf, File)>,
    trace: Option<(PathBuf, File)>,
}

impl Files {
    fn create(common: &Common) -> Result<Files> {
        let create = |path: &PathBuf| -> Result<(PathBuf, File)> {
            Ok((path.clone(), File::create(path).with_context(|| path.display().to_string())?))
        };
        Ok(Files {
            json: common.json.as_ref().map(create).transpose()?,
            html: common.html.as_ref().map(create).transpose()?,
            trace: common.simulated.trace.as_ref().map(create).transpose()?,
        })
    }

    /// Writes JSON and page.
    fn write(self, json: &impl serde::Serialize, page: impl FnOnce() -> Result<String>) -> Result<()> {
        if let Some((path, file)) = self.json {
            let mut file = BufWriter::new(file);
            serde_json::to_writer_pretty(&mut file, json)?;
            file.write_all(b"\n").and_then(|()| file.flush()).with_context(|| path.display().to_string())?;
        }
        if let Some((path, mut file)) = self.html {
            let page = page().context("making the page")?;
            file.write_all(page.as_bytes()).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Writes all that were asked for of a job, and prints the table.
    fn finish(mut self, common: &Common, outcome: &Outcome) -> Result<()> {
        ensure!(!outcome.rows.is_empty(), "nothing was measured");
        let trace = self.trace.take();
        let json = report::Json { parameters: &outcome.parameters, results: &outcome.rows };
        self.write(&json, || html::page(outcome, &common.wear))?;
        if let Some((path, file)) = trace {
            let mut file = BufWriter::new(file);
            let rows = outcome.rows.iter().zip(&outcome.traces);
            let lines = rows.filter_map(|(row, trace)| Some(trace.as_ref()?.csv(row)));
            let mut texts = std::iter::once(blocks::CSV_HEAD.to_owned()).chain(lines);
            texts.try_for_each(|text| file.write_all(text.as_bytes())).with_context(|| path.display().to_string())?;
            file.flush().with_context(|| path.display().to_string())?;
        }
        print(common, outcome).context("printing the table")
    }
}

fn print(common: &Common, outcome: &Outcome) -> std::io::Result<()> {
    let (parameters, rows) = (&outcome.parameters, &outcome.rows);
    let mut out = std::io::stdout().lock();
    // A file has room.
    let columns = if out.is_terminal() { comfy_table::Table::new().width().unwrap_or(120) } else { u16::MAX };
    let text = usize::from(columns.clamp(60, 120));
    writeln!(out, "{}\n", report::table(rows, &outcome.reference, columns))?;
    if let Some(table) = report::blocks(rows, columns) {
        writeln!(out, "{table}\n")?;
    }
    for line in report::below(rows, parameters, columns) {
        writeln!(out, "{}", report::wrap(&line, text, 2))?;
    }
    if common.wear.wear {
        writeln!(out)?;
        for line in common.wear.lines(rows) {
            writeln!(out, "{line}")?;
        }
    }
    writeln!(out)?;
    for line in card::lines(&parameters.short(), text) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}
