//! Suites by name: a suite is a whole measurement with a table of its own. To add one, write a function
//! that takes the options, and a line in [`ALL`].

use super::{Args, crowd};
use anyhow::Result;
use std::str::FromStr;

/// What `--suite` can name.
#[derive(Debug)]
pub struct Suite {
    pub name: &'static str,
    /// One line for `--help`'s list and for errors.
    pub about: &'static str,
    pub run: fn(&Args) -> Result<()>,
}

/// Every suite; the first is the one measured when nobody says `--suite`.
pub static ALL: [Suite; 4] = [
    Suite { name: "commit", about: "what one durable commit costs, side by side", run: super::commit },
    Suite {
        name: "threads",
        about: "what several connections of one process get done together",
        run: |args| crowd::run(args, crowd::Place::Threads),
    },
    Suite {
        name: "processes",
        about: "what several processes that write one database get done together",
        run: |args| crowd::run(args, crowd::Place::Processes),
    },
    Suite {
        name: super::schemes::NAME,
        about: "the tables and figures of the papers on LS-MVBT and Doubleheader Logging",
        run: super::schemes::run,
    },
];

/// A suite named on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Chosen(pub &'static Suite);

impl FromStr for Chosen {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let list = || ALL.iter().map(|s| format!("\n  {:<10} {}", s.name, s.about)).collect::<String>();
        ALL.iter()
            .find(|suite| suite.name == s)
            .map(Chosen)
            .ok_or_else(|| format!("there is no `{s}`; choose from{}", list()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_ones_teach() {
        for suite in &ALL {
            assert_eq!(suite.name.parse::<Chosen>().unwrap().0.name, suite.name);
        }
        let error = "comit".parse::<Chosen>().unwrap_err();
        assert!(error.contains("`comit`") && error.contains("commit"), "{error}");
    }
}
