//! Suites by name: a suite is a whole measurement with a table of its own. To add one, write a
//! function that takes the options, and a line in [`ALL`].

mod commit;
pub mod crowd;
#[cfg(all(test, target_os = "linux"))]
mod pages;
#[cfg(target_os = "linux")]
mod phone;
pub mod schemes;
#[cfg(target_os = "linux")]
pub mod vm;

use crate::parameters::given::{CARD, DEVICE, EVERYWHERE, RUNS, SIZES};
use crate::parameters::suite::SuiteOptions;
use anyhow::Result;
use std::str::FromStr;

#[derive(Debug)]
pub struct Suite {
    pub name: &'static str,
    /// One line for `--help`'s list and for errors.
    pub about: &'static str,
    /// The options that change something in it; any other is refused.
    pub heeds: &'static [&'static [&'static str]],
    pub run: fn(&SuiteOptions) -> Result<()>,
}

const CROWD: &[&[&str]] = &[
    &EVERYWHERE,
    &["--suite", "--only", "--part", "--section-ms", "--connections", "--think-rows", "--think-ms"],
    &["--transactions", "--device", "--fs", "--device-mib", "--write-us", "--flush-us"],
];

/// Every suite; the first is the default of `--suite`.
pub static ALL: &[Suite] = &[
    Suite {
        name: "commit",
        about: "what one durable commit costs, side by side",
        heeds: &[
            &EVERYWHERE,
            &["--suite", "--only", "--workload", "--library", "--peers", "--svg"],
            &RUNS,
            &SIZES,
            &DEVICE,
            &CARD,
        ],
        run: commit::run,
    },
    Suite {
        name: "threads",
        about: "what several connections of one process get done together",
        heeds: CROWD,
        run: |args| crowd::run(args, crowd::WorkerKind::Threads),
    },
    Suite {
        name: "processes",
        about: "what several processes that write one database get done together",
        heeds: CROWD,
        run: |args| crowd::run(args, crowd::WorkerKind::Processes),
    },
    Suite {
        name: schemes::NAME,
        about: "the tables and figures of the papers on LS-MVBT and Doubleheader Logging",
        heeds: &[&EVERYWHERE, &["--suite", "--only", "--library", "--transactions"]],
        run: schemes::run,
    },
    #[cfg(target_os = "linux")]
    Suite {
        name: "phone",
        about: "apps and the benchmarks of phones on simulated eMMC, UFS and SD card",
        heeds: &[
            &EVERYWHERE,
            &["--suite", "--only", "--workload", "--library", "--transactions"],
            &["--device", "--fs", "--device-mib"],
            &CARD,
        ],
        run: phone::run,
    },
    #[cfg(target_os = "linux")]
    Suite {
        name: vm::NAME,
        about: "what an insert writes on F2FS and others, in a virtual machine",
        heeds: &[&["--suite", "--library", "--transactions", "--seed", "--json"]],
        run: vm::run,
    },
];

/// A suite named on the command line.
#[derive(Clone, Copy, Debug)]
pub struct SuiteName(pub &'static Suite);

impl FromStr for SuiteName {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let list = || ALL.iter().map(|s| format!("\n  {:<10} {}", s.name, s.about)).collect::<String>();
        ALL.iter()
            .find(|suite| suite.name == s)
            .map(SuiteName)
            .ok_or_else(|| format!("there is no `{s}`; choose from{}", list()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_suite_heeds_exist() {
        let command = <crate::Args as clap::Args>::augment_args(clap::Command::new("bench"));
        let known: Vec<String> = command.get_arguments().filter_map(|a| Some(format!("--{}", a.get_long()?))).collect();
        for suite in ALL {
            for option in suite.heeds.concat() {
                assert!(known.iter().any(|k| k == option), "{}: {option}", suite.name);
            }
        }
    }

    #[test]
    fn names_are_found_and_unknown_ones_teach() {
        for suite in ALL {
            assert_eq!(suite.name.parse::<SuiteName>().unwrap().0.name, suite.name);
        }
        let error = "comit".parse::<SuiteName>().unwrap_err();
        assert!(error.contains("`comit`") && error.contains("commit"), "{error}");
    }
}
