//! `onewrite-kill`: kills writing processes (SIGKILL, TerminateProcess) at random moments and
//! checks the files that they leave.
//!
//! [`campaign`] kills [`writer`]s, and [`check`] compares the database with their [`plan`]. In
//! [`soak`], threads of several processes ([`soaked`]) share one database for minutes, and some
//! processes die. [`sessions`] starts short processes ([`session`]), stock SQLite's among them, and
//! [`commands`] of `onewrite`; [`known`] judges their reads. [`histories`] proves the reported
//! transactions strictly serializable. Windows has no soak.

mod campaign;
mod check;
mod commands;
mod connect;
mod histories;
mod host;
mod known;
mod plan;
mod session;
mod sessions;
#[cfg(unix)]
mod soak;
#[cfg(unix)]
mod soaked;
mod whereabouts;
mod writer;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Kills writing processes (SIGKILL) thousands of times: several connections and threads,
/// checkpoints, big transactions, transactions over two files, VACUUM, WAL mode and back. Each
/// process reports acknowledged transactions through a pipe. At every level of synchronous, a new
/// process and stock SQLite must find all of them, and no transaction that was rolled back or is
/// half done.
#[derive(Parser)]
#[command(name = "onewrite-kill", version)]
struct Arguments {
    /// Processes to kill
    #[arg(long, default_value_t = 300)]
    rounds: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Preset; otherwise each database draws log or wal-opt. off and off-opt protect nothing and
    /// are found out
    #[arg(long, value_parser = ["log", "wal-opt", "dash", "off", "off-opt"])]
    scheme: Option<String>,
    /// Directory for the databases; otherwise a temporary one
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    child: Option<Child>,
}

/// The killed processes.
#[derive(Subcommand)]
enum Child {
    /// Write until killed
    #[command(hide = true)]
    Write {
        #[command(flatten)]
        job: Job,
        /// Threads that write
        #[arg(long)]
        threads: u32,
        /// Makes this process differ from the one before
        #[arg(long)]
        nonce: u64,
        /// End after this many steps of each thread; 0: never
        #[arg(long)]
        steps: u64,
    },
    #[cfg(unix)]
    /// Let threads of several processes share one database for minutes, while processes die and
    /// start again: no acknowledged transaction is lost, snapshots stay the same, memory and the
    /// log do not grow
    Soak(soak::Soak),
    #[cfg(unix)]
    /// A process of the soak
    #[command(hide = true)]
    Soaked {
        #[command(flatten)]
        part: soaked::Part,
        /// Writers of all processes
        #[arg(long)]
        writers: u64,
    },
    /// Start thousands of processes that open one database, write, read, delete or checkpoint, and
    /// end: half of them by SIGKILL within milliseconds. Up to four run at once, and some are stock
    /// SQLite on the same file, which changes journal modes. Readers must find all rows
    /// acknowledged before they began, each transaction whole, no other rows, and the same twice;
    /// at the end stock SQLite must find every page in order. With --commands, some are commands of
    /// `onewrite`: backup, check, convert, dump, inspect, recover. Copies are judged as readers are
    Sessions(sessions::Sessions),
    /// One process of the sessions
    #[command(hide = true)]
    Session(session::Session),
    /// Let threads of several processes append to lists and read them, through the extension and
    /// the drop-in library, on one to five files. Processes fork, stop and are killed. Each round
    /// has fresh files, and its history is proved strictly serializable, or the shortest cycle of
    /// transactions is shown
    Histories(histories::Histories),
    /// One process of the histories
    #[command(hide = true)]
    History(histories::Client),
    /// Recover and check
    #[command(hide = true)]
    Check {
        #[command(flatten)]
        job: Job,
    },
}

/// The parameters of all processes on one database.
#[derive(Args, Clone, Debug)]
struct Job {
    /// Directory of the two databases
    #[arg(long)]
    at: PathBuf,
    /// Seed of the transactions
    #[arg(long)]
    plan: u64,
    /// URI parameters
    #[arg(long)]
    parameters: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.child {
        Some(Child::Write { job, threads, nonce, steps }) => writer::run(job, *threads, *nonce, *steps),
        Some(Child::Check { job }) => check::run(job),
        #[cfg(unix)]
        Some(Child::Soaked { part, writers }) => soaked::run(part, *writers),
        Some(Child::History(client)) => histories::run_client(client),
        Some(Child::Histories(histories)) => return histories::run(histories),
        Some(Child::Session(session)) => session::run(session),
        Some(Child::Sessions(sessions)) => return sessions::run(sessions),
        #[cfg(unix)]
        Some(Child::Soak(soak)) => return soak::run(soak),
        None => return campaign::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // If the campaign has ended, this line has no reader.
            let _ = connect::tell(&format!("E {}", format!("{e:#}").replace('\n', " ")));
            ExitCode::FAILURE
        }
    }
}
