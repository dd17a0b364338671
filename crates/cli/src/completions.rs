//! `onewrite completions`: the words that a shell offers, from the description that
//! `--help` prints.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

/// Print the completions of this command for a shell
///
///     onewrite completions bash > ~/.local/share/bash-completion/completions/onewrite
///     onewrite completions fish > ~/.config/fish/completions/onewrite.fish
///     onewrite completions zsh > _onewrite      # in a directory of fpath
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script for the commands of `described`.
pub fn run(args: &Args, mut described: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut described, "onewrite", &mut script);
    std::io::stdout().lock().write_all(&script).context("printing")?;
    Ok(ExitCode::SUCCESS)
}
