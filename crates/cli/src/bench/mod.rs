//! `onewrite bench`: what a durable commit costs, side by side.
//!
//! A *section* is one engine doing one workload once, on a database of its own. A *run* is one
//! section of every engine and workload; the order of the engines turns from run to run, so that what
//! drifts (other programs, heat, the device's own housekeeping) does not always hit the same one.
//!
//! | file | does |
//! |---|---|
//! | `engines` | what can be measured and how it is opened |
//! | `workload`, `floor` | a section's work, and its verification |
//! | `measure` | timing; medians, paired ratios, pooled percentiles |
//! | `device`, `syscalls` | counting below and at the kernel's door |
//! | `card`, `report` | the parameters; table and JSON |
//! | `suite` | whole measurements by name |

mod card;
mod device;
mod engines;
mod floor;
mod measure;
mod report;
mod runner;
mod suite;
mod syscalls;
mod workload;

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Measure what a durable SQLite commit costs here, side by side
///
/// Every engine does the same durable single-row inserts, updates and deletes, each its own
/// transaction, on a database of its own in a temporary directory that is removed afterwards. The
/// floor is one bare 4 KiB overwrite with one flush: no durable commit can be cheaper.
///
/// Without options it takes less than two minutes. Run it on the disk your database lives on:
///
///     onewrite bench --dir /var/lib/myapp
///
/// Compare two settings, with more transactions:
///
///     onewrite bench --only stock/truncate --only stock/wal-full --transactions 5000
///
/// See what reading costs, by key and of whole tables:
///
///     onewrite bench --workload lookup --workload scan
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The measurement to make: commit (what one durable commit costs)
    #[arg(long, value_name = "NAME", default_value = suite::ALL[0].name)]
    suite: suite::Chosen,
    /// Measure in a temporary directory inside this one [default: the current directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write parameters and results to this file as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure only this one: stock/delete, stock/truncate, stock/persist, stock/wal-full, stock/wal-normal,
    /// onewrite/log, onewrite/log-live (reads of a database this process writes), onewrite/wal-opt, onewrite/off,
    /// onewrite/off-opt, floor; may be repeated
    #[arg(long, value_name = "ENGINE/PRESET")]
    only: Vec<engines::Chosen>,
    /// Do this: insert, update, delete, lookup (a row by its key), scan (the whole table), or lookup-cold or
    /// scan-cold, which begin with nothing of the file in the kernel's cache; may be repeated
    /// [default: insert, update, delete]
    #[arg(long, value_name = "NAME")]
    workload: Vec<workload::Workload>,
    /// Secondary indexes of the table, each on an integer column of random values
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number_up_to(0, workload::INDEXES_MAX as u64))]
    indexes: u64,
    /// Rows in the table before the measured transactions [default: 2000; 100000 where they read]
    #[arg(long, value_name = "N", value_parser = number(1))]
    rows: Option<u64>,
    /// Bytes of the value of a row; its key takes up to 8 more
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = number(0))]
    row_bytes: u64,
    /// Measured transactions per engine, workload and run [default: 1000; lookup 20000, scan 20, scan-cold 5]
    #[arg(long, value_name = "N", value_parser = number(1))]
    transactions: Option<u64>,
    /// Runs, of which results are medians [default: 5, or as many as fit into two minutes]
    #[arg(long, value_name = "N", value_parser = number(1))]
    runs: Option<u64>,
    /// Seed of keys and values: the same seed, the same transactions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The `-wal` file of stock SQLite when the transactions begin
    #[arg(long, value_name = "STATE", value_enum, default_value_t = workload::WalStart::Empty)]
    wal_start: workload::WalStart,
    /// Do one section under a tracer (the bench calls itself with this)
    #[arg(long, hide = true, value_name = "WORKLOAD")]
    traced: Option<workload::Workload>,
    /// Stop the traced section after this many milliseconds
    #[arg(long, hide = true, value_name = "N", requires = "traced")]
    traced_ms: Option<u64>,
}

fn number(from: u64) -> clap::builder::RangedU64ValueParser {
    number_up_to(from, 10_000_000)
}

fn number_up_to(from: u64, to: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(from..=to)
}

/// Makes the measurement asked for.
pub fn run(args: &Args) -> Result<()> {
    if let Some(workload) = args.traced {
        return runner::traced(args, workload);
    }
    ctrlc::set_handler(|| {
        if measure::INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("handling Ctrl-C")?;
    (args.suite.0.run)(args)
}

/// The suite `commit`: measures, prints the table and its card, and writes the JSON.
fn commit(args: &Args) -> Result<()> {
    // Opened first: a name that cannot be written must not cost the user two minutes.
    let json = args
        .json
        .as_ref()
        .map(|path| Ok::<_, anyhow::Error>((path, File::create(path).with_context(|| path.display().to_string())?)));
    let json = json.transpose()?;
    let (parameters, rows) = runner::run(args)?;
    ensure!(!rows.is_empty(), "nothing was measured");
    if let Some((path, file)) = json {
        let mut file = BufWriter::new(file);
        serde_json::to_writer_pretty(&mut file, &report::Json { parameters: &parameters, results: &rows })?;
        file.write_all(b"\n").and_then(|()| file.flush()).with_context(|| path.display().to_string())?;
    }
    print(&parameters, &rows).context("printing the table")
}

fn print(parameters: &card::Parameters, rows: &[report::Row]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let columns = if out.is_terminal() { comfy_table::Table::new().width().unwrap_or(120) } else { 120 };
    let text = usize::from(columns.clamp(60, 120));
    writeln!(out, "{}\n", report::table(rows, columns))?;
    for line in report::below(rows, parameters, columns) {
        writeln!(out, "{}", report::wrap(&line, text, 2))?;
    }
    writeln!(out)?;
    for (name, value) in parameters.short() {
        writeln!(out, "{}", report::wrap(&format!("{name:<12}{value}"), text, 12))?;
    }
    out.flush()
}
