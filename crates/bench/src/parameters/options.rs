//! The options of `onewrite bench` that its subcommands share.

use super::given::{self, Given};
use crate::counting::simulated;
use crate::counting::wear::Wear;
use crate::workload::{INDEXES_MAX, Size, WalStart, Workload};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Measure in a temporary directory inside this one [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write parameters and results to this file as well
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with tables and pictures to this file as well; it needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write one picture to this file as well, to be shared: KiB and flushes of a commit of each
    /// engine, light and dark
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Rows before the measured transactions [default: depends on the workload: 2000; 100000 where
    /// it reads]. With 0, updates and deletes find just the rows that they touch
    #[arg(long, value_name = "N", value_parser = number(0))]
    pub rows: Option<u64>,
    /// Bytes of the value of a row; its key takes up to 8 more
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = number(0))]
    pub row_bytes: u64,
    /// Measured transactions per engine, workload and run [default: depends on the workload: 1000;
    /// lookup 20000, scan 20, scan-cold 5, open-insert-close and AndroBench's 300, Mobibench's 100]
    #[arg(long, value_name = "N", value_parser = number(1))]
    pub transactions: Option<u64>,
    /// Rows that a transaction of insert, update or delete touches
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number(1))]
    pub ops_per_tx: u64,
    /// Threads, each with a connection, of the workload tabs
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number_up_to(1, 64))]
    pub threads: u64,
    /// Tables that a transaction of Mobibench's workloads writes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number_up_to(1, 20))]
    pub tables: u64,
    /// Secondary indexes of the table of insert, update, delete, lookup and scan, each on an
    /// integer column of random values
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number_up_to(0, INDEXES_MAX as u64))]
    pub indexes: u64,
    /// Runs, of which results are medians [default: at least 5, more until all are known to ±10 %
    /// or --minutes are over]
    #[arg(long, value_name = "N", value_parser = number(1))]
    pub runs: Option<u64>,
    /// How long to go on with runs for the sake of medians and ratios that are not yet known to ±10
    /// % [default: 2; of advice 0.5]
    #[arg(long, value_name = "N", conflicts_with = "runs", value_parser = minutes)]
    pub minutes: Option<f64>,
    /// Seed of keys and values: the same seed, the same transactions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The `-wal` file of stock SQLite when the transactions begin
    #[arg(long, value_name = "STATE", value_enum, default_value_t = WalStart::Empty)]
    pub wal_start: WalStart,
    /// The file of SQL that the workload replay does. The part before a line `-- measure` is not
    /// measured
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    #[command(flatten)]
    pub simulated: simulated::SimulatedOptions,
    #[command(flatten)]
    pub wear: Wear,
    /// Those that were on the command line.
    #[arg(skip)]
    pub given: Given,
}

fn number(from: u64) -> clap::builder::RangedU64ValueParser {
    number_up_to(from, 10_000_000)
}

fn minutes(s: &str) -> Result<f64, String> {
    let v: f64 = s.parse().map_err(|_| format!("`{s}` is not a number"))?;
    if (0.01..=1440.0).contains(&v) { Ok(v) } else { Err(format!("`{s}` is not between 0.01 and 1440")) }
}

fn number_up_to(from: u64, to: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(from..=to)
}

impl Common {
    /// Remembers the options of the command line. A description of a card asks how long it lasts.
    pub fn tell(&mut self, given: Given) {
        self.wear.wear |= given.any(&given::CARD);
        self.given = given;
    }

    pub fn size(&self, workload: Workload, limit: Option<Duration>) -> Size {
        Size {
            rows: self.rows.map_or(workload.rows(), |n| n as usize),
            row_bytes: self.row_bytes as usize,
            transactions: self.transactions.map_or(workload.transactions(), |n| n as usize),
            ops_per_tx: self.ops_per_tx as usize,
            threads: self.threads as usize,
            tables: self.tables as usize,
            indexes: self.indexes as usize,
            wal_start: self.wal_start,
            replay: self.replay.clone(),
            limit,
        }
    }
}
