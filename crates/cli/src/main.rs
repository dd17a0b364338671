//! The command `onewrite`. This file only dispatches: one module per subcommand.

mod bench;
mod check;
mod convert;
mod convert_back;
mod inspect;
mod look;
mod recover;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Durable SQLite commits with one block write and one flush: measure them, and look after the files.
#[derive(Parser)]
#[command(name = "onewrite", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(Box<bench::Args>),
    Check(check::Args),
    Convert(convert::Args),
    Inspect(inspect::Args),
    Recover(recover::Args),
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let result = match cli.command {
        Command::Bench(args) => {
            bench::run(*args, bench::Given::of(&Cli::command(), &matches)).map(|()| ExitCode::SUCCESS)
        }
        Command::Check(args) => check::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Recover(args) => recover::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("onewrite: {e:#}");
            ExitCode::FAILURE
        }
    }
}
