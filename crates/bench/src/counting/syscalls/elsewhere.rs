//! Systems on which no calls are counted.

use super::Calls;
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Duration;

/// The card's words for the two columns.
pub const METHOD: &str = "not counted: it takes Linux's ptrace";

const WHY: &str = "write calls are counted, and a process is killed in one, with Linux's ptrace alone";

pub fn mark() -> Result<()> {
    bail!(WHY)
}

pub fn offer_to_be_traced() -> Result<()> {
    bail!(WHY)
}

pub fn count(child: Command) -> Result<Calls, String> {
    count_within(child, Duration::MAX).map(Option::unwrap_or_default)
}

pub fn count_within(_child: Command, _limit: Duration) -> Result<Option<Calls>, String> {
    Err(WHY.to_owned())
}

pub fn kill_before_write(_child: Command, _number: Option<u64>) -> Result<u64, String> {
    Err(WHY.to_owned())
}
