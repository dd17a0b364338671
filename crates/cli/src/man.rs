//! `onewrite man`: the manual pages of this command and of those below it.

use anyhow::{Context, Result, ensure};
use clap::Command;
use onewrite_arguments::manual;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print a manual page, or write all of them into a directory
///
///     onewrite man check | man -l -
///     onewrite man --dir /usr/local/share/man/man1
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The command; without one, the page of onewrite itself
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory, which is made if it is not there
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

/// Prints a page, or writes all, of the commands of `described`.
pub fn run(args: &Args, described: &Command) -> Result<ExitCode> {
    let said = match &args.dir {
        Some(dir) => {
            let what = || format!("cannot write manual pages into {}", dir.display());
            fs::create_dir_all(dir).with_context(what)?;
            let pages = manual::write(described, dir).with_context(what)?;
            format!("{}: {pages} manual pages\n", dir.display())
        }
        None => {
            let page = manual::page(described, &args.command).context("making the manual page")?;
            ensure!(page.is_some(), "there is no command `onewrite {}`: see --help", args.command.join(" "));
            page.unwrap_or_default()
        }
    };
    std::io::stdout().lock().write_all(said.as_bytes()).context("printing")?;
    Ok(ExitCode::SUCCESS)
}
