//! `onewrite-replicate completions`: the words that a shell offers behind the name of the program.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use std::io::Write;
use std::process::ExitCode;

const NAME: &str = "onewrite-replicate";

/// Prints the script for `shell`.
pub fn completions(shell: Shell, mut program: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    match shell {
        Shell::Bash => script = bash(program),
        _ => clap_complete::generate(shell, &mut program, NAME, &mut script),
    }
    std::io::stdout().lock().write_all(&script).context("printing")?;
    Ok(ExitCode::SUCCESS)
}

/// The bash script of clap_complete 4.6 fails for a program with a hyphen. So it is made with an
/// underscore, and the registering lines get the real name.
fn bash(mut program: Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(Shell::Bash, &mut program, "onewrite_replicate", &mut script);
    let script = String::from_utf8_lossy(&script);
    let line = |line: &str| match line.strip_suffix(" onewrite_replicate") {
        Some(before) => format!("{before} {NAME}\n"),
        None => format!("{line}\n"),
    };
    script.lines().map(line).collect::<String>().into_bytes()
}
