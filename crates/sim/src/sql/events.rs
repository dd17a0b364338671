//! Events beside the SQL: databases come to rest, and other programs change or remove logs.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onewrite_core::Error;
use onewrite_core::disk::Disk;
use onewrite_core::disk::sim::Op;
use onewrite_core::inspect::home;

use super::check::{log_path, path, stock_reads_file, write_again};
use super::history::{Client, Step, Trouble, World};
use super::process::level;
use crate::hook::HookDisk;

impl World {
    /// Another program writes the log of a file at rest again: the next session flushes it.
    pub(super) fn write_log_again(&mut self) -> Step<()> {
        let file = self.rng.below(2);
        let (sim, log) = (self.disk.sim(), log_path(file));
        // The other program meets no fault.
        if self.full || self.faulty || self.marked()[file] || sim.snapshot_file(&log).is_none() {
            return Ok(());
        }
        write_again(sim, &log).map_err(|e| self.bad(format!("another program cannot write a log: {e}")))?;
        let fails = self.trouble == Trouble::Faults && !self.is_wal();
        if fails {
            self.disk.sim().fail_nth(Op::Sync, 1, ErrorKind::Other);
            self.faulty = true;
        }
        self.note(|_| format!("another program writes the log of {file} again, the next Sync will fail: {fails}"));
        Ok(())
    }

    /// Databases that are not used become plain files, while connections stay open.
    pub(super) fn look_after(&mut self) -> Step<()> {
        let errors: RefCell<Vec<String>> = RefCell::default();
        let failed = |path: &Path, e: &Error| {
            let message = format!("{}: {e}", path.display());
            errors.borrow_mut().push(message);
        };
        let marked = self.marked();
        let process = self.rng.below(self.levels.len());
        if self.rng.below(8) == 0 {
            self.levels[process].rest(failed);
        } else {
            for _ in 0..1 + self.rng.below(2) {
                // Longer than the longest rhythm.
                self.more.now += Duration::from_secs(200);
                self.levels[process].look_after(self.more.now, failed);
            }
        }
        self.note(|_| format!("process {process} looks after idle databases: {:?}", errors.borrow()));
        self.verdict()?;
        if self.bury()? || self.faulty || self.full {
            return Ok(());
        }
        if let Some(error) = errors.into_inner().first() {
            return Err(self.bad(format!("a look at an idle database: {error}")));
        }
        if self.is_wal() {
            return Ok(());
        }
        let still = self.marked();
        let rested: Vec<usize> = (0..2).filter(|file| marked[*file] && !still[*file]).collect();
        rested.iter().for_each(|file| self.oracles.lock().files[*file].settle());
        self.check_at_rest(&rested)
    }

    /// Stock SQLite reads the newest state of these files.
    pub(super) fn check_at_rest(&self, files: &[usize]) -> Step<()> {
        let (sim, latest) = (self.disk.sim().survive(), self.oracles.lock().latest());
        let beside = level(1);
        beside.boot(HookDisk::new(sim.clone(), None));
        for file in files {
            stock_reads_file(&beside, &sim, *file, latest[*file]).map_err(|what| self.bad(what))?;
        }
        beside.halt();
        Ok(())
    }

    /// Another program removes the log of a database that is in use: the next write makes another,
    /// or is refused until all connections have closed. Nothing is lost (rule LostLogReplaced).
    pub(super) fn lose_log(&mut self) -> Step<()> {
        let Some(i) = self.writer()? else { return Ok(()) };
        let file = self.rng.below(self.clients[i].schemas());
        if self.is_wal() || self.faulty || self.full || self.clients[i].reading.is_some() {
            return Ok(());
        }
        let Client { number, process, .. } = self.clients[i];
        self.draw_and_write(i, file)?;
        let log = log_path(file);
        let Some(i) = self.position(number) else { return Ok(()) };
        let is_dead = self.levels.iter().any(|level| !level.is_alive());
        if is_dead || self.faulty || !self.marked()[file] || self.disk.sim().snapshot_file(&log).is_none() {
            return Ok(());
        }
        self.levels.iter().for_each(|level| level.die_after(u64::MAX));
        self.lost.store(true, Ordering::Relaxed);
        self.note(|_| format!("another program removes the log of {file}"));
        self.disk.sim().remove(&log).map_err(|e| self.bad(format!("the log cannot be removed: {e}")))?;
        self.draw_and_write(i, file)?;
        // A process that has not noticed keeps the mark on: a second removal would leave a mark
        // without a log.
        let is_shared = self.clients.iter().any(|client| client.process != process);
        if is_shared || self.disk.sim().snapshot_file(&log).is_none() {
            // A process that may only read would keep the new log from being made.
            (0..self.clients.len()).for_each(|i| self.abort(i));
            self.close_all()?;
        }
        self.lost.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn draw_and_write(&mut self, i: usize, file: usize) -> Step<()> {
        let all = self.draw_statements(&[file]);
        self.transact(i, &[file], &all)
    }

    /// Whether each file has onewrite's mark.
    fn marked(&self) -> [bool; 2] {
        let sim = self.disk.sim();
        [0, 1].map(|file| sim.snapshot_file(&path(file)).is_some_and(|home| home::mark(&home).is_some()))
    }
}
