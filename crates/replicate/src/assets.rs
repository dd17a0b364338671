//! `onewrite-replicate assets`: man pages and shell completions, for packages, from the description
//! of `--help`.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Command, ValueEnum as _};
use clap_complete::Shell;
use clap_mangen::Man;

/// Write man pages and shell completions of this command into a directory
///
/// The pages are named after the commands as typed, `onewrite restore` and so on. They replace
/// the pages of the same names by `onewrite assets`, which have no options.
#[derive(clap::Args)]
pub struct AssetsArgs {
    /// Directory that gets `man1` and `completions`
    dir: PathBuf,
}

pub fn run(args: &AssetsArgs, mut command: Command) -> Result<ExitCode> {
    let (man, completions) = (args.dir.join("man1"), args.dir.join("completions"));
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    for shell in Shell::value_variants() {
        let written = match shell {
            Shell::Bash => fs::write(completions.join("onewrite-replicate.bash"), bash(command.clone())),
            _ => clap_complete::generate_to(*shell, &mut command.clone(), "onewrite-replicate", &completions).map(drop),
        };
        written.with_context(|| format!("cannot write the completions for {shell}"))?;
    }
    command.build();
    for subcommand in command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        let page = format!("onewrite-{}", subcommand.get_name());
        let path = man.join(format!("{page}.1"));
        let described = subcommand.clone().display_name(page);
        let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Man::new(described).render(&mut file).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The bash script of clap_complete 4.6 fails for a program with a hyphen. So it is made with an
/// underscore, and the registering lines get the real name.
fn bash(mut command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(Shell::Bash, &mut command, "onewrite_replicate", &mut script);
    let script = String::from_utf8_lossy(&script);
    let line = |line: &str| match line.strip_suffix(" onewrite_replicate") {
        Some(before) => format!("{before} onewrite-replicate\n"),
        None => format!("{line}\n"),
    };
    script.lines().map(line).collect()
}
