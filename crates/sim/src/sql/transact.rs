//! Transactions of a history: first on the mirror, where stock SQLite shows the result of each
//! statement, then on the databases.

use std::sync::atomic::Ordering;

use rusqlite::ffi;

use super::check::{bytes_of, empty, said};
use super::history::{Step, World};
use super::print::{Print, print};
use super::process::{SCHEMAS, explain};
use super::statements;
use crate::check::Violation;
use crate::oracle::Oracle;
use crate::pager::Synchronous;

/// Stock SQLite's result.
pub(super) struct Rehearsal {
    pub(super) codes: Vec<i32>,
    pub(super) states: [Print; 2],
}

impl World {
    pub(super) fn write(&mut self) -> Step<()> {
        let Some(i) = self.writer()? else { return Ok(()) };
        self.write_by(i)
    }

    pub(super) fn write_by(&mut self, i: usize) -> Step<()> {
        let (files, all) = self.draw_transaction(i);
        self.transact(i, &files, &all)
    }

    /// Files and statements.
    pub(super) fn draw_transaction(&mut self, i: usize) -> (Vec<usize>, Vec<String>) {
        let client = &self.clients[i];
        let mut files: Vec<usize> = match self.rng.below(6) {
            0..3 => vec![0],
            3 | 4 => vec![0, 1],
            _ => vec![1],
        };
        if !client.has_side {
            files = vec![0];
        } else if files.len() == 2 && (self.is_wal() || !client.may_step_aside()) {
            files = vec![self.rng.below(2)];
        }
        let latest = self.oracles.lock().latest();
        if client.has_side && self.is_wal() && latest[1] == empty() {
            // SQLite makes an empty file's first page in any transaction that begins IMMEDIATE, and
            // may fail there when it has committed in the WAL.
            files = vec![1];
        }
        let all = self.draw_statements(&files);
        (files, all)
    }

    pub(super) fn draw_statements(&mut self, files: &[usize]) -> Vec<String> {
        let latest = self.oracles.lock().latest();
        let schemas: Vec<&str> = files.iter().map(|file| SCHEMAS[*file]).collect();
        let mut all: Vec<String> = Vec::new();
        for file in files.iter().filter(|file| latest[**file] == empty()) {
            all.extend(statements::schema(SCHEMAS[*file]));
        }
        all.extend(statements::transaction(self.setting.shape, &schemas, &mut self.rng));
        all
    }

    pub(super) fn shrink(&mut self) -> Step<()> {
        let Some(i) = self.writer()? else { return Ok(()) };
        for file in 0..self.clients[i].schemas() {
            if bytes_of(self.disk.sim(), file) > self.setting.shape.bytes_max
                && *self.oracles.lock().files[file].latest() != empty()
            {
                return self.transact(i, &[file], &statements::shrink(SCHEMAS[file]));
            }
        }
        Ok(())
    }

    pub(super) fn transact(&mut self, i: usize, files: &[usize], all: &[String]) -> Step<()> {
        let number = self.clients[i].number;
        if self.more.concurrent && self.clients[i].reading.is_some() {
            // A transaction on an older snapshot may commit: `overlap` has those.
            return self.end_read(i);
        }
        let stale = self.clients[i].reading.as_ref().is_some_and(|seen| {
            let latest = self.oracles.lock().latest();
            files.iter().any(|file| seen.get(*file) != Some(&latest[*file]))
        });
        let commits = self.rng.below(6) > 0;
        self.note(|_| format!("{number} writes {files:?}, stale {stale}, commits {commits}: {}", all.join("; ")));
        let mirrored = self.rehearse(files, all)?;
        let done = self.perform(i, files, all, &mirrored, commits, stale);
        self.end_mirror(matches!(done, Ok(true)))?;
        done.map(|_| ())
    }

    pub(super) fn of_mirror(&self, error: &rusqlite::Error) -> Violation {
        self.bad(format!("the mirror: {}", said(error)))
    }

    pub(super) fn end_mirror(&self, commits: bool) -> Step<()> {
        if self.mirror.is_autocommit() {
            return Ok(());
        }
        self.mirror.execute_batch(if commits { "COMMIT" } else { "ROLLBACK" }).map_err(|e| self.of_mirror(&e))
    }

    /// Runs a transaction on the mirror up to its end.
    pub(super) fn rehearse(&self, files: &[usize], all: &[String]) -> Step<Rehearsal> {
        self.mirror.execute_batch("BEGIN").map_err(|e| self.of_mirror(&e))?;
        let codes =
            all.iter().map(|sql| self.mirror.execute_batch(sql).map_or_else(|e| explain(&e).0, |()| 0)).collect();
        let mut states = self.oracles.lock().latest();
        for file in files {
            states[*file] = print(&self.mirror, SCHEMAS[*file]).map_err(|e| self.of_mirror(&e))?;
        }
        Ok(Rehearsal { codes, states })
    }

    /// A commit on a stale snapshot said that it had changed something.
    fn look_behind_stale(&mut self, i: usize, latest: [Print; 2], mirrored: &Rehearsal) -> Step<bool> {
        // In its snapshot there may have been no object to change (`IF EXISTS`).
        let is_busy = |e: &rusqlite::Error| explain(e).0 & 0xff == ffi::SQLITE_BUSY;
        let mut prints = latest;
        for file in 0..2 {
            let seen = self.look_at(self.clients[i].process, file);
            prints[file] = match seen.map_err(|e| (is_busy(&e), e)) {
                Ok(seen) => seen,
                // It may have taken the file for itself; or another has, and wrote nothing.
                Err((true, _)) if file < self.clients[i].schemas() => {
                    print(&self.clients[i].db, SCHEMAS[file]).unwrap_or(latest[file])
                }
                Err((true, _)) => latest[file],
                Err((false, e)) => return self.failed(i, &e, "look behind a stale commit"),
            };
        }
        let right = |file: usize| [latest[file], mirrored.states[file]].contains(&prints[file]);
        if !(0..2).all(right) {
            return Err(self.bad("a stale snapshot was written on"));
        }
        // The other file may have been written on its newest state.
        self.withdraw();
        for file in (0..2).filter(|file| prints[*file] != latest[*file]) {
            let mut oracles = self.oracles.lock();
            oracles.files[file].attempt(prints[file], false);
            oracles.files[file].acknowledge(false);
        }
        self.follow(prints).map(|()| false)
    }

    /// True if it committed.
    pub(super) fn perform(
        &mut self,
        i: usize,
        files: &[usize],
        all: &[String],
        mirrored: &Rehearsal,
        commits: bool,
        stale: bool,
    ) -> Step<bool> {
        let in_transaction = self.clients[i].reading.take().is_some();
        let alone = !in_transaction && commits && all.len() == 1 && self.rng.below(3) > 0;
        if alone {
            self.attempt(files, mirrored);
        } else if !in_transaction {
            let begin = ["BEGIN", "BEGIN IMMEDIATE"][self.rng.below(2)];
            if let Err(e) = self.clients[i].db.execute_batch(begin) {
                self.abort(i);
                return self.failed(i, &e, "begin");
            }
        }
        for (sql, expected) in all.iter().zip(&mirrored.codes) {
            let ran = self.clients[i].db.execute_batch(sql);
            self.verdict()?;
            let code = ran.as_ref().map_or_else(|e| explain(e).0, |()| 0);
            if code == *expected {
                if code != 0 && self.clients[i].db.is_autocommit() && !alone {
                    return Err(self.bad(format!("{sql}: an error that should leave the transaction ended it")));
                }
            } else if let Err(e) = ran {
                if stale && code == ffi::SQLITE_ERROR {
                    // Its snapshot may be older than the table.
                    self.abort(i);
                    return Ok(false);
                }
                if code == ffi::SQLITE_ERROR && self.is_shut_out(i) {
                    return Ok(false);
                }
                return self.failed(i, &e, sql);
            } else {
                return Err(self.bad(format!("{sql}: succeeds, where stock SQLite says {expected}")));
            }
            if !alone && self.rng.below(8) == 0 {
                self.interlude(i)?;
            }
        }
        if !alone {
            if !commits {
                self.note(|_| "  rolls back".to_owned());
                return match self.clients[i].db.execute_batch("ROLLBACK") {
                    Ok(()) => Ok(false),
                    Err(e) => self.failed(i, &e, "rollback"),
                };
            }
            self.attempt(files, mirrored);
            if let Err(e) = self.clients[i].db.execute_batch("COMMIT") {
                return self.failed(i, &e, "commit");
            }
        }
        self.verdict()?;
        let latest = self.oracles.lock().latest();
        let changed = files.iter().any(|file| latest[*file] != mirrored.states[*file]);
        if stale && changed {
            return self.look_behind_stale(i, latest, mirrored);
        }
        self.acknowledge(i, files, mirrored);
        Ok(true)
    }

    /// The attempt with these results is committed.
    pub(super) fn acknowledge(&mut self, i: usize, files: &[usize], mirrored: &Rehearsal) {
        let full = self.clients[i].synchronous == Synchronous::Full;
        let mut oracles = self.oracles.lock();
        let latest = oracles.latest();
        for file in files {
            // Without a change, SQLite may not have asked for a commit.
            let durable = full && latest[*file] != mirrored.states[*file];
            oracles.files[*file].acknowledge(durable);
        }
        oracles.joint = false;
        drop(oracles);
        self.setting.counts.commits.fetch_add(1, Ordering::Relaxed);
        self.note(|w| format!("  commits; floor, committed: {:?}", w.marks()));
    }

    /// A client that cannot read compiles with its old schema and misses tables.
    fn is_shut_out(&mut self, i: usize) -> bool {
        self.abort(i);
        let read = self.prints(i);
        read.is_err_and(|e| explain(&e).0 & 0xff == ffi::SQLITE_BUSY)
    }

    /// From here on the transaction may be permanent.
    pub(super) fn attempt(&mut self, files: &[usize], mirrored: &Rehearsal) {
        let mut oracles = self.oracles.lock();
        let latest = oracles.latest();
        for file in files {
            oracles.files[*file].attempt(mirrored.states[*file], files.len() > 1 || self.is_wal());
        }
        oracles.joint = files.len() > 1 && files.iter().all(|file| latest[*file] != mirrored.states[*file]);
    }

    /// False if the failure is allowed.
    pub(super) fn failed(&mut self, i: usize, error: &rusqlite::Error, doing: &str) -> Step<bool> {
        self.verdict()?;
        let number = self.clients[i].number;
        if self.bury()? {
            // The death was another process's.
            if let Some(i) = self.position(number) {
                self.abort(i);
            }
            return Ok(false);
        }
        let undecided = self.oracles.lock().files.iter().any(Oracle::is_undecided);
        self.abort(i);
        self.verdict()?;
        let latest = self.oracles.lock().latest();
        // A database that still answers has lost the transaction for good; otherwise it is
        // poisoned.
        let answers = |w: &Self| w.prints(i).is_ok_and(|seen| seen == latest[..seen.len()]);
        if undecided && self.faulty && !answers(self) {
            self.note(|_| format!("{doing}: {}", said(error)));
            // Only recovery can tell whether the transaction is there.
            if self.rng.below(2) == 0 {
                self.die()?
            } else {
                self.start_over()?
            }
            return Ok(false);
        }
        self.withdraw();
        self.tolerate(error, doing)?;
        Ok(false)
    }

    pub(super) fn withdraw(&self) {
        let mut oracles = self.oracles.lock();
        oracles.files.iter_mut().for_each(Oracle::withdraw);
        oracles.joint = false;
    }

    pub(super) fn interlude(&mut self, i: usize) -> Step<()> {
        let others: Vec<usize> = (0..self.clients.len()).filter(|n| *n != i && !self.clients[*n].overlaps()).collect();
        if others.is_empty() || self.faulty {
            return Ok(());
        }
        let other = others[self.rng.below(others.len())];
        if self.clients[other].reading.is_some() || self.rng.below(3) > 0 {
            let pinned = self.clients[other].reading.clone();
            let begun = if pinned.is_none() { self.clients[other].db.execute_batch("BEGIN") } else { Ok(()) };
            match begun.and_then(|()| self.prints(other)) {
                Ok(seen) => {
                    let latest = self.oracles.lock().latest();
                    let expected = pinned.unwrap_or_else(|| latest[..self.clients[other].schemas()].to_vec());
                    if seen != expected {
                        return Err(self.bad(format!("a reader beside a writer sees {seen:?} instead of {expected:?}")));
                    }
                    self.clients[other].reading = Some(seen);
                    Ok(())
                }
                Err(e) => {
                    self.abort(other);
                    let (code, _) = explain(&e);
                    let dead = !self.levels[self.clients[other].process].is_alive();
                    let may_be = dead
                        || code & 0xff == ffi::SQLITE_BUSY
                        || (self.full && code & 0xff == ffi::SQLITE_FULL)
                        || (code & 0xff == ffi::SQLITE_CANTOPEN && self.is_for_writers(&e));
                    if may_be { Ok(()) } else { Err(self.bad(format!("a read beside a writer: {}", said(&e)))) }
                }
            }
        } else {
            if self.clients[other].reads_only {
                return Ok(());
            }
            let begun = self.clients[other].db.execute_batch("BEGIN IMMEDIATE");
            self.abort(other);
            let wrote = self.clients[i].db.transaction_state(Some("main"));
            // A dead process gets every lock.
            let alive = [i, other].iter().all(|client| self.levels[self.clients[*client].process].is_alive());
            match (begun, wrote) {
                (Ok(()), Ok(rusqlite::TransactionState::Write)) if alive && !self.more.concurrent => {
                    Err(self.bad("two connections write at once"))
                }
                _ => Ok(()),
            }
        }
    }
}
