//! `onewrite replicate`, `restore`, `follow`, `promote`, `rejoin`, `unsync`, `verify`, `replicas`
//! and `ltx`: the program `onewrite-replicate`. It has the dependencies that only shipping needs.

use crate::program::goes_on_as;
use anyhow::{Result, anyhow};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitCode};

const NAME: &str = "onewrite-replicate";

/// The arguments go to onewrite-replicate, which also answers --help.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Options, the database and the store: `--help` tells
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Becomes the program that lies beside this one, else one on the PATH.
pub fn run(subcommand: &str, args: &Args) -> Result<ExitCode> {
    let this = std::env::current_exe()?;
    let beside = this.parent().unwrap_or(Path::new("/")).join(NAME);
    let command = |program: &Path| goes_on_as(Command::new(program).arg(subcommand).args(&args.args));
    let mut e = command(&beside);
    let mut tried = beside.as_path();
    if e.kind() == ErrorKind::NotFound {
        tried = Path::new(NAME);
        e = command(tried);
    }
    if e.kind() != ErrorKind::NotFound {
        return Err(anyhow!("cannot run {}: {e}", tried.display()));
    }
    let beside = beside.display();
    Err(anyhow!(
        "there is no {beside} and no {NAME} on the PATH: in a copy of the sources, `cargo build --release -p {NAME}` makes it \
         and `cargo install --path crates/replicate` installs it"
    ))
}
