//! The command `onewrite`. This file only dispatches: one module per subcommand.

mod bench;
mod check;
mod convert;
mod convert_back;
mod inspect;
mod look;
mod recover;

use clap::{Parser, Subcommand};
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
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args).map(|()| ExitCode::SUCCESS),
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
