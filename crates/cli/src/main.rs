//! The command `onewrite`. This file only dispatches: one module per subcommand.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod assets;
mod backup;
mod check;
mod convert;
mod convert_back;
mod dump;
mod inspect;
mod live;
mod look;
mod recover;
mod remains;
mod replicate;
mod scratch;
mod shell;
mod tables;
mod verdict;
mod who;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use onewrite_core::environment;
use onewrite_core::text::printable;
use std::io::Write;
use std::process::ExitCode;

/// Durable SQLite commits with one block write and one flush: measure them, and look after the
/// files.
#[derive(Parser)]
#[command(name = "onewrite", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Assets(assets::Args),
    Backup(backup::Args),
    #[cfg(feature = "bench")]
    Bench(Box<onewrite_bench::Args>),
    Check(check::Args),
    Convert(convert::Args),
    Dump(dump::Args),
    /// Keep a replica of a database up to date from a store
    Follow(replicate::Args),
    Inspect(inspect::Args),
    /// Make a database the one that is shipped to a store
    Promote(replicate::Args),
    Recover(recover::Args),
    /// Give way to the database that was promoted
    Rejoin(replicate::Args),
    /// Ship a database to a store, and go on shipping what changes
    Replicate(replicate::Args),
    /// Restore a database from a store
    Restore(replicate::Args),
    Shell(shell::Args),
    /// End `replicate --sync`: commits wait for the store no more
    Unsync(replicate::Args),
    /// Compare a database with what a store has
    Verify(replicate::Args),
    Who(who::Args),
}

fn main() -> ExitCode {
    if let Err(e) = environment::enter_program() {
        let _nobody_reads = writeln!(std::io::stderr(), "onewrite: {e}");
        return ExitCode::FAILURE;
    }
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let result = match cli.command {
        Command::Assets(args) => assets::run(&args, Cli::command()),
        Command::Backup(args) => backup::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => {
            let given = onewrite_bench::Given::of(&Cli::command(), &matches);
            onewrite_bench::run(*args, given).map(|()| ExitCode::SUCCESS)
        }
        Command::Check(args) => check::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Follow(args) => replicate::run("follow", &args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Promote(args) => replicate::run("promote", &args),
        Command::Recover(args) => recover::run(&args),
        Command::Rejoin(args) => replicate::run("rejoin", &args),
        Command::Replicate(args) => replicate::run("replicate", &args),
        Command::Restore(args) => replicate::run("restore", &args),
        Command::Shell(args) => shell::run(&args),
        Command::Unsync(args) => replicate::run("unsync", &args),
        Command::Verify(args) => replicate::run("verify", &args),
        Command::Who(args) => who::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            let _nobody_reads = writeln!(std::io::stderr(), "onewrite: {}", printable(&format!("{e:#}")));
            ExitCode::FAILURE
        }
    }
}
