//! `onewrite-kill`: kills writing processes with SIGKILL at random moments and checks what they leave.
//!
//! [`plan`] says what each transaction does, so that its number alone tells what a database must hold;
//! [`writer`] is the process that is killed, [`check`] compares a database with the plan, and
//! [`campaign`] starts, kills and judges. [`soak`] lets several processes, whose threads are [`soaked`], run on one
//! database for minutes while some of them die. [`sessions`] starts processes that do one thing ([`session`]) and end or
//! die, stock SQLite's among them, and [`commands`] of `onewrite`; [`known`] judges what they read.

mod campaign;
mod check;
mod commands;
mod connect;
mod known;
mod plan;
mod session;
mod sessions;
mod soak;
mod soaked;
mod writer;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Kills writing processes (SIGKILL) thousands of times: several connections and threads, checkpoints, big
/// transactions, transactions over two files, VACUUM, WAL mode and back. Each process reports what SQLite
/// acknowledged through a pipe; afterwards a new process must find all of it, at every level of
/// synchronous, and nothing of what was rolled back or half done, and so must stock SQLite.
#[derive(Parser)]
#[command(name = "onewrite-kill", version)]
struct Arguments {
    /// Processes to kill
    #[arg(long, default_value_t = 300)]
    rounds: u64,
    /// Where the random numbers begin
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Preset; otherwise each database draws log or wal-opt. off and off-opt protect nothing and are found out
    #[arg(long, value_parser = ["log", "wal-opt", "dash", "off", "off-opt"])]
    scheme: Option<String>,
    /// Directory for the databases; otherwise a temporary one
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    child: Option<Child>,
}

/// What the processes do that get killed.
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
    /// Let threads of several processes write and read one database for minutes, while processes die and start again:
    /// nothing acknowledged may be lost, snapshots stay as they are, memory and the log do not grow
    Soak(soak::Soak),
    /// A process of the soak
    #[command(hide = true)]
    Soaked {
        #[command(flatten)]
        part: soaked::Part,
        /// Writers of all processes
        #[arg(long)]
        writers: u64,
    },
    /// Start thousands of processes that open one database, write, read, delete or checkpoint, and end: half
    /// of them by SIGKILL within milliseconds. Up to four run at once, and some are stock SQLite on the same file, which
    /// changes journal modes. Readers must find what was acknowledged before they began, each transaction whole,
    /// nothing else, and the same twice; at the end stock SQLite must find every page in order. With --commands, some are
    /// commands of `onewrite`: backup, check, convert, dump, inspect, recover. Copies are judged as readers are
    Sessions(sessions::Sessions),
    /// One process of the sessions
    #[command(hide = true)]
    Session(session::Session),
    /// Recover and check
    #[command(hide = true)]
    Check {
        #[command(flatten)]
        job: Job,
    },
}

/// What all processes on one database agree on.
#[derive(Args, Clone, Debug)]
struct Job {
    /// Directory of the two databases
    #[arg(long)]
    at: PathBuf,
    /// What the transactions are drawn from
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
        Some(Child::Soaked { part, writers }) => soaked::run(part, *writers),
        Some(Child::Session(session)) => session::run(session),
        Some(Child::Sessions(sessions)) => return sessions::run(sessions),
        Some(Child::Soak(soak)) => return soak::run(soak),
        None => return campaign::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The campaign reads this line; if it is gone there is nobody to tell.
            let _ = connect::tell(&format!("E {}", format!("{e:#}").replace('\n', " ")));
            ExitCode::FAILURE
        }
    }
}
