//! `onewrite assets`: man pages and shell completions, for packages. Both come from the description
//! that `--help` prints.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Command, ValueEnum as _};
use clap_complete::Shell;

/// Write man pages and shell completions of this command into a directory
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// Directory that gets `man1` and `completions`
    dir: PathBuf,
}

pub fn run(args: &Args, mut command: Command) -> Result<ExitCode> {
    let (man, completions) = (args.dir.join("man1"), args.dir.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    clap_mangen::generate_to(command.clone(), &man).context("cannot write the man pages")?;
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut command, "onewrite", &completions)
            .with_context(|| format!("cannot write the completions for {shell}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
