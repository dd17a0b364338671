//! The command `onewrite`. This file only dispatches: one module per subcommand.

mod bench;

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
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("onewrite: {e:#}");
            ExitCode::FAILURE
        }
    }
}
