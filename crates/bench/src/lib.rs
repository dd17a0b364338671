//! `onewrite bench`: the cost of a durable commit, side by side.
//!
//! A *section* is one engine doing one workload once, on a database of its own. A *run* is one
//! section of every engine and workload. The order of the engines turns from run to run, so that
//! drift (other programs, heat, the device's own housekeeping) does not always hit the same one.
//!
//! Folders and files, in the order of their imports: each imports only from those above it.
//!
//! | folder | duty |
//! |---|---|
//! | `text`, `progress` | lines of text and the progress bar of a terminal |
//! | `numbers/` | timing, medians and how well they are known, random draws |
//! | `host/` | the questions to the operating system, and its calls |
//! | `counting/` | what reaches a device, real or simulated; system calls; wear of flash |
//! | `engines/` | what can be measured, and any SQLite behind one table of functions |
//! | `workload/` | the work of a section, and its verification |
//! | `parameters/` | the options given, and the card of all that changes a result |
//! | `report/` | rows, table and JSON |
//! | `runner/` | which section when, and the rows that come of them |
//! | `html/` | the page with its pictures, and the picture that stands alone |
//! | `files` | the files written and the table printed |
//! | `suites/` | whole measurements by name: commit, crowd, schemes, phone, vm |
//! | `commands/` | the subcommands: compare, sweep, advise |

mod commands;
mod counting;
mod engines;
mod files;
mod host;
mod html;
mod numbers;
mod parameters;
mod progress;
mod report;
mod runner;
mod suites;
mod text;
mod workload;

use anyhow::{Context, Result};
use commands::{advise, compare, sweep};
pub use engines::sql;
use numbers::measure;
pub use parameters::given::Given;
use parameters::suite::SuiteOptions;
use std::sync::atomic::Ordering;
use suites::{crowd, schemes};

/// Measure the cost of a durable SQLite commit here, side by side
///
/// Every engine does the same durable single-row inserts, updates and deletes, each its own
/// transaction, on a database of its own in a temporary directory that is removed afterwards. The
/// floor is one bare 4 KiB overwrite with one flush: no durable commit can be cheaper.
///
/// It goes on until medians and ratios are known to ±10 %, and marks those that are not after
/// two minutes. Run it on the disk your database lives on:
///
///     onewrite bench --dir /var/lib/myapp
///
/// Compare two settings, with more transactions and more time for them:
///
///     onewrite bench --only stock/truncate --only stock/wal-full --transactions 5000 --minutes 5
///
/// See the cost of reading, by key and of whole tables:
///
///     onewrite bench --workload lookup --workload scan
///
/// Compare with another SQLite, and with key-value stores:
///
///     onewrite bench --library /usr/lib/x86_64-linux-gnu/libsqlite3.so.0 --peers
///
/// Vary one setting, compare two results, or ask which settings suit a directory:
///
///     onewrite bench sweep --help
///     onewrite bench compare before.json after.json
///     onewrite bench advise /var/lib/myapp
///
/// See the cost of commits on slow flash, the bytes that they write there and how long it lasts
/// (as root):
///
///     onewrite bench --device emmc --html report.html
///
/// See how long an app waits, with a page of pictures:
///
///     onewrite bench --workload gmail --workload facebook --html report.html
///
/// Share one picture of what a commit writes here:
///
///     onewrite bench --dir /var/lib/myapp --svg commit-cost.svg
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Subcommand>,
    /// The measurement to make: commit (the cost of one durable commit), threads and processes (the
    /// work that several connections get done together, in threads of one process or each in its
    /// own), schemes (the tables and figures of the papers on LS-MVBT and Doubleheader Logging; as
    /// many transactions as those with --transactions 1000 --runs 5), phone (apps and the
    /// benchmarks of phones on simulated eMMC, UFS and SD card, with the years that a card lasts;
    /// as root), vm (the writes of an insert on F2FS and other file systems of Debian's kernel, in
    /// a virtual machine; as root, with QEMU, which is installed with apt-get where it is missing)
    #[arg(long, value_name = "NAME", default_value = suites::ALL[0].name)]
    pub(crate) suite: suites::SuiteName,
    #[command(flatten)]
    pub(crate) options: SuiteOptions,
    /// Do one section under a tracer (the bench calls itself with this)
    #[arg(long, hide = true, value_name = "JSON")]
    traced: Option<String>,
}

/// Commands beside a measurement of engines and workloads.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    Compare(compare::Compare),
    Sweep(Box<sweep::SweepOptions>),
    Advise(Box<advise::Advise>),
}

/// Makes the measurement asked for; `given` are the options that were on the command line.
pub fn run(mut args: Args, given: Given) -> Result<()> {
    if let Some(json) = &args.traced {
        let suite = args.suite.0.name;
        return match suite {
            schemes::NAME => schemes::traced(json),
            #[cfg(target_os = "linux")]
            suites::vm::NAME => suites::vm::guest(),
            _ => runner::traced(json),
        };
    }
    if let Some(json) = &args.options.crowd.worker {
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
            args.options.common.tell(given);
            (suite.run)(&args.options)
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
