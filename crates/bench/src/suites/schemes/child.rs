//! Sections in a process of their own, which the bench traces: to count its calls, or to kill it at
//! one of them.

use super::engine::SchemeEngine;
use super::load::{self, Load, LoadTable, MeasureHooks, Operation};
use crate::counting::syscalls::{self, Marks};
use crate::engines::register_onewrite;
use crate::engines::sql::Library;
use crate::numbers::measure::Probe;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;

/// The work of the process.
#[derive(Serialize, Deserialize)]
pub enum ChildWork {
    /// A whole section; its transactions are between the marks.
    Section { load: Load },
    /// `before` transactions of one insert, then one of `inserts` between the marks.
    Crash { rows: usize, before: usize, inserts: usize },
}

/// A section for the tracer, which the bench hands to its own program as JSON.
#[derive(Serialize, Deserialize)]
pub struct Child {
    pub engine: SchemeEngine,
    pub library: Option<PathBuf>,
    pub dir: PathBuf,
    pub seed: u64,
    pub work: ChildWork,
}

impl Child {
    pub fn command(&self) -> Result<Command> {
        let mut child = Command::new(std::env::current_exe()?);
        child.args(["bench", "--suite", super::NAME, "--traced", &serde_json::to_string(self)?]);
        Ok(child)
    }
}

impl MeasureHooks for Marks {
    fn begin(&mut self) -> Result<()> {
        Probe::begin(self)
    }
    fn end(&mut self) -> Result<()> {
        Probe::end(self)
    }
}

/// In the child.
pub fn run(json: &str) -> Result<()> {
    let Child { engine, library, dir, seed, work } =
        serde_json::from_str(json).context("--traced is for the bench itself")?;
    syscalls::offer_to_be_traced()?;
    let library = match library {
        Some(path) => Library::load(&path)?,
        None => {
            register_onewrite().map_err(anyhow::Error::msg)?;
            Library::linked()
        }
    };
    match work {
        ChildWork::Section { load } => {
            let timed = load::section(&library, &engine, &load, &dir, seed, None, &mut Marks)?;
            println!("{}", timed.transactions);
            Ok(())
        }
        ChildWork::Crash { rows, before, inserts } => {
            let mut table = LoadTable::create(&library, &engine, &dir.join("db"), rows, seed)?;
            for _ in 0..before {
                table.transact(Operation::Insert, 1)?;
            }
            Probe::begin(&mut Marks)?;
            table.transact(Operation::Insert, inserts)?;
            Probe::end(&mut Marks)
        }
    }
}
