//! The command `onewrite`. This file only dispatches: one module per subcommand.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod answer;
mod backup;
mod check;
mod completions;
mod convert;
mod convert_back;
mod dump;
mod earlier;
mod inspect;
mod live;
mod look;
mod man;
mod program;
mod recover;
mod remains;
mod replicate;
mod research;
mod scratch;
mod shell;
mod status;
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
    Backup(backup::Args),
    #[cfg(feature = "bench")]
    Bench(Box<onewrite_bench::Args>),
    Check(check::Args),
    Completions(completions::Args),
    Dump(dump::Args),
    /// Keep a replica of a database up to date from a store
    Follow(replicate::Args),
    Inspect(inspect::Args),
    /// List the files of a store
    Ltx(replicate::Args),
    Man(man::Args),
    /// Make a database the one that is shipped to a store
    Promote(replicate::Args),
    Recover(recover::Args),
    /// Give way to the database that was promoted
    Rejoin(replicate::Args),
    /// Show the databases of a configuration and their stores
    Replicas(replicate::Args),
    /// Ship a database to a store, and go on shipping what changes
    Replicate(replicate::Args),
    Research(research::Args),
    /// Restore a database from a store
    Restore(replicate::Args),
    Shell(shell::Args),
    /// Ship a database now, and wait until the store has it
    Ship(replicate::Args),
    Status(status::Args),
    /// End `replicate --sync`: commits wait for the store no more
    Unsync(replicate::Args),
    /// Compare a database with what a store has
    Verify(replicate::Args),
    Who(who::Args),
}

/// All commands with all of their options, also those that another program reads.
fn described() -> clap::Command {
    let others = onewrite_arguments::replicate::described();
    others.into_iter().fold(Cli::command(), |cli, other| {
        let name = other.get_name().to_owned();
        cli.mut_subcommand(name, |_| other)
    })
}

fn refuse(error: clap::Error) -> ! {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    earlier::answer(&words).filter(|_| earlier::is_unknown(&error)).unwrap_or(error).exit()
}

fn main() -> ExitCode {
    if let Err(e) = environment::enter_program() {
        let _nobody_reads = writeln!(std::io::stderr(), "onewrite: {e}");
        return ExitCode::FAILURE;
    }
    // The commands of another program read their arguments themselves; `help` describes them, too.
    let is_help = std::env::args_os().nth(1).is_some_and(|word| word == "help");
    let known = if is_help { described() } else { Cli::command() };
    let matches = known.try_get_matches().unwrap_or_else(|e| refuse(e));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let result = match cli.command {
        Command::Backup(args) => backup::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => {
            let given = onewrite_bench::Given::of(&Cli::command(), &matches);
            onewrite_bench::run(*args, given).map(|()| ExitCode::SUCCESS)
        }
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => completions::run(&args, described()),
        Command::Dump(args) => dump::run(&args),
        Command::Follow(args) => replicate::run("follow", &args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Man(args) => man::run(&args, &described()),
        Command::Promote(args) => replicate::run("promote", &args),
        Command::Recover(args) => recover::run(&args),
        Command::Rejoin(args) => replicate::run("rejoin", &args),
        Command::Ltx(args) => replicate::run("ltx", &args),
        Command::Replicas(args) => replicate::run("replicas", &args),
        Command::Ship(args) => replicate::run("ship", &args),
        Command::Replicate(args) => replicate::run("replicate", &args),
        Command::Research(args) => research::run(&args),
        Command::Restore(args) => replicate::run("restore", &args),
        Command::Shell(args) => shell::run(&args),
        Command::Status(args) => status::run(&args),
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
