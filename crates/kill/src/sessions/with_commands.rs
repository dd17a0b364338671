//! Commands of `onewrite` among the sessions: they are started, killed and judged as sessions are,
//! and their copies are read as states of the database at their begin.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rusqlite::ffi;

use super::{Begun, Campaign, Does, Running};
use crate::commands::{self, Ended, Run, Task};
use crate::session::{Session, What};

impl Campaign<'_> {
    pub(super) fn draw_command(&mut self) -> Result<()> {
        let mut task = Task::draw(&mut self.rng);
        let has_stock = |one: &Running| {
            self.sessions.get(one.number as usize).is_some_and(|begun| begun.stock && !begun.is_command)
        };
        if task.renames() && self.running.iter().any(has_stock) {
            task = Task::Check;
        }
        let lives = match self.rng.u32(0..8) {
            0 | 1 => Some(self.rng.u64(0..8_000)),
            2 | 3 => Some(self.rng.u64(0..60_000)),
            _ => None,
        };
        let number = self.sessions.len() as u64;
        self.sessions.push(Begun { stock: true, what: What::Last, is_command: true });
        self.totals.sessions += 1;
        let run = Run::new(task, number, self.at.parent().context("a directory")?)?;
        // Transactions reported until now were over before it began.
        self.hear_all()?;
        self.known.opens(number);
        if task.copies().is_some() {
            self.known.reads(number);
        }
        if task.renames() {
            self.known.renames();
        }
        let child = run.start(self.commands.1.as_deref().context("no program")?, &self.at)?;
        self.events.add(&format!("{number} starts: {task:?}, process {}", child.id()));
        let since = Instant::now();
        let dies = lives.map(|lives| since + Duration::from_micros(lives));
        self.running.push(Running { number, child, does: Does::Command(run), since, lives: None, dies });
        Ok(())
    }

    /// The process that reads the copy, if there is one.
    pub(super) fn command_ended(
        &mut self,
        number: u64,
        run: Run,
        status: ExitStatus,
        killed: bool,
    ) -> Result<Option<Running>> {
        let judged = run.judge(status, killed);
        if run.task.renames() {
            self.known.renamed(!matches!(judged, Ok((Ended::Refused, _))));
        }
        let (ended, said) = judged.with_context(|| format!("command {number}"))?;
        let said: String = said.replace('\n', " ").chars().take(300).collect();
        self.events.add(&format!("{number} {ended:?}: {said}"));
        self.totals.commands.add(ended);
        let Some(what) = run.task.copies().filter(|_| ended == Ended::Done) else {
            run.remove()?;
            return Ok(None);
        };
        let session = Session {
            at: run.copy(),
            number,
            plan: self.plan,
            parameters: String::new(),
            what,
            stock: true,
            transactions: 0,
            rows: 0,
            first: 0,
            below: 0,
        };
        let child = self.spawn(&session)?;
        let does = Does::Judge(run);
        Ok(Some(Running { number, child, does, since: Instant::now(), lives: None, dies: None }))
    }

    /// All reports on a copy are read before it is removed.
    pub(super) fn judged(&mut self, number: u64, status: ExitStatus) -> Result<()> {
        self.hear_all().with_context(|| format!("the copy of command {number}"))?;
        self.ended_in_order(number, status)?;
        self.totals.commands.copies += 1;
        Ok(())
    }

    /// `onewrite research convert` may have replaced the session's file.
    pub(super) fn is_moved(&self, number: u64, extended: i32, line: &str) -> bool {
        let says = extended == ffi::SQLITE_READONLY_DBMOVED
            || (extended == ffi::SQLITE_CANTOPEN && commands::says_moved(line));
        says && self.known.older_file(number).is_some()
    }
}
