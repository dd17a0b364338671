//! `onewrite research`: commands that only the schemes of the research need.

use crate::convert;
use anyhow::Result;
use std::process::ExitCode;

/// Prepare databases for the schemes that only builds for research have
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Research,
}

#[derive(Debug, clap::Subcommand)]
enum Research {
    Convert(convert::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Research::Convert(args) => convert::run(args),
    }
}
