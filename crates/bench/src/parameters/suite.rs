//! The options of a suite.

use super::options::Common;
use crate::workload::WorkloadSelection;
use clap::ValueEnum;
use std::path::PathBuf;

/// The options that a suite is run with.
#[derive(Clone, Debug, clap::Args)]
pub struct SuiteOptions {
    /// Measure only this one: stock/delete, stock/truncate, stock/persist, stock/wal-full,
    /// stock/wal-normal, onewrite/log, onewrite/log-normal, onewrite/log-live (reads of a database
    /// this process writes), onewrite/wal-opt, onewrite/dash, onewrite/off, onewrite/off-opt, lmdb,
    /// redb, floor, or one of a --library; may be repeated. Of the suite schemes: only this figure
    /// (ls-mvbt-6, -9, -10, -11, -12, dhl-7, -8, -10, -11)
    #[arg(long, value_name = "ENGINE/PRESET")]
    pub only: Vec<String>,
    /// Do this: insert, update, delete, lookup (a row by its key), scan (the whole table),
    /// lookup-cold, scan-cold (which begin with nothing of the file in the kernel's cache),
    /// recovery-kill-10, -160, -2560 (opening after a process was killed behind so many inserts),
    /// recovery-cut-10, -160, -2560 (after a power cut), mobibench-insert, -update, -delete,
    /// androbench-insert, -update, -delete, rl (RL Benchmark), dbbench (DB Bench), bulk (1.5
    /// million rows in a transaction), open-insert-close, attach (two files), tabs (a browser's
    /// threads), gmail, facebook, hangouts, kakaotalk (app profiles), replay (a file of SQL); may
    /// be repeated. recovery, mobibench and androbench are all of those that begin so. A name that
    /// is wrong lists them with a line on each [default: insert, update, delete]
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<WorkloadSelection>,
    /// Measure the stock modes of this libsqlite3.so too; may be repeated. Of the suites phone and
    /// vm: one built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE, for the counts on F2FS
    #[arg(long, value_name = "FILE")]
    pub library: Vec<PathBuf>,
    /// Measure LMDB and redb too: the bare commit of a key-value store, as durable
    #[arg(long)]
    pub peers: bool,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub crowd: CrowdOptions,
}

/// Options of the suites `threads` and `processes` alone.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "connections-options")]
pub struct CrowdOptions {
    /// Of the suites threads and processes, only this part; may be repeated
    #[arg(long, value_name = "NAME", value_enum)]
    pub part: Vec<CrowdPart>,
    /// How long a section of the suites threads and processes is measured
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub section_ms: u64,
    /// How many connections the parts writers, concurrent, read-think-write and cold-start have, in
    /// turn: up to 128 [default: 1,2,4,8 and 16 threads; concurrent 1,2,4; read-think-write 1,4,8;
    /// cold-start 1,2,4,8,16,32]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=128))]
    pub connections: Vec<u16>,
    /// Rows that each transaction of the part concurrent reads: the time it takes inside (20000 are
    /// some 2 ms)
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub think_rows: u64,
    /// How long a transaction of the parts read-think-write and cold-start pauses between its read
    /// and its insert
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub think_ms: u64,
    /// Do the work of a connection of the suite processes (the bench calls itself with this)
    #[arg(long, hide = true, value_name = "JSON")]
    pub worker: Option<String>,
}

/// A part of these suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CrowdPart {
    /// Durable inserts of 1 to 16 connections (--connections)
    Writers,
    /// Lookups alone, beside writers, and beside writers of another database
    Readers,
    /// Writers beside a read transaction that stays open
    LongReader,
    /// DB Bench by two connections
    DbBench,
    /// Connections of one process (--connections), each in a table of its own: an insert and a read
    /// of many rows (--think-rows) in a transaction
    Concurrent,
    /// Transactions that read, pause (--think-ms) and insert (--connections), alone and beside
    /// lookups
    ReadThinkWrite,
    /// Processes (--connections) that start at once on a database that does not exist
    ColdStart,
    /// A process that commits every 0.1, 1 and 5 s: writes, flushes and KiB of a commit, and the
    /// time of the first one after a pause
    Periodic,
}
