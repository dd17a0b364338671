//! Which options change which measurement: an option without an effect is refused by name.

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Of every measurement.
pub const EVERYWHERE: [&str; 5] = ["--dir", "--json", "--html", "--runs", "--seed"];
/// Of measurements that go on until medians are known.
pub const RUNS: [&str; 1] = ["--minutes"];
/// Of a simulated device.
pub const DEVICE: [&str; 6] = ["--device", "--fs", "--device-mib", "--write-us", "--flush-us", "--trace"];
/// Of the flash card that commits wear out.
pub const CARD: [&str; 5] = ["--wear", "--card-gb", "--card-cycles", "--card-amplification", "--commits-per-s"];
/// Of workloads, each of which heeds some of them.
pub const SIZES: [&str; 9] = [
    "--transactions",
    "--rows",
    "--row-bytes",
    "--ops-per-tx",
    "--threads",
    "--tables",
    "--indexes",
    "--wal-start",
    "--replay",
];

/// The options that were on the command line, by their long names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given(Vec<String>);

impl Given {
    /// Of `command` and of the subcommands that were called.
    pub fn of(command: &Command, matches: &ArgMatches) -> Given {
        let explicit = |id: &clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        let options = command.get_arguments().filter(|a| explicit(a.get_id()));
        let mut all: Vec<String> = options.filter_map(|a| Some(format!("--{}", a.get_long()?))).collect();
        if let Some((name, matches)) = matches.subcommand()
            && let Some(command) = command.find_subcommand(name)
        {
            all.extend(Given::of(command, matches).0);
        }
        Given(all)
    }

    pub(crate) fn any(&self, of: &[&str]) -> bool {
        self.0.iter().any(|name| of.contains(&name.as_str()))
    }

    /// Refuses an option that is in none of these groups.
    pub(crate) fn all_in(&self, heeded: &[&[&str]], who: &str) -> Result<()> {
        match self.0.iter().find(|name| !heeded.concat().contains(&name.as_str())) {
            Some(name) => bail!("{name} would change nothing in {who}, which heeds {}", heeded.concat().join(", ")),
            None => Ok(()),
        }
    }
}
