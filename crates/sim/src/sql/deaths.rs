//! The deaths of a history's processes, the trouble before them, and the recovery after them.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{Op, SimDisk, SplitMix64};
use onewrite_core::inspect::layout::home::HEADER_BYTES;
use onewrite_core::inspect::layout::slot;
use rusqlite::backup::Backup;
use rusqlite::{Connection, ffi};

use super::check::{Allowed, OldFile, check, empty, log_path, older_file, path, rot, said};
use super::history::{Client, Step, Trouble, World};
use super::print::{Print, print};
use super::process::{Level, SCHEMAS, add_noise, explain, level};
use super::recover::check_or_recover;
use crate::check::ROOMY;
use crate::hook::{HookDisk, Operation, Point};
use crate::oracle::Oracle;

#[derive(Clone, Debug)]
pub(super) struct Oracles {
    pub(super) files: [Oracle<Print>; 2],
    /// Both attempts are one transaction.
    pub(super) joint: bool,
}

impl Oracles {
    pub(super) fn starting() -> Oracles {
        Oracles { files: [(); 2].map(|()| Oracle::starting(empty())), joint: false }
    }

    pub(super) fn allowed(&self, killed: bool) -> Allowed {
        let files = [0, 1].map(|file| {
            let oracle = &self.files[file];
            if killed { oracle.after_kill() } else { oracle.after_crash() }
        });
        let is_joint = self.joint && self.files.iter().all(Oracle::is_undecided);
        let pairs = if is_joint { vec![files.each_ref().map(|states| states.len() - 1)] } else { Vec::new() };
        Allowed { files, pairs }
    }

    /// A damaged record of the last flush looks like an unfinished one.
    pub(super) fn rotten(&self) -> Allowed {
        Allowed { files: [0, 1].map(|file| self.files[file].after_rot()), pairs: Vec::new() }
    }

    fn recover(&mut self, allowed: &Allowed, found: [usize; 2]) {
        for (file, index) in found.into_iter().enumerate() {
            let oracle = &mut self.files[file];
            let index = oracle.states.len() - allowed.files[file].len() + index;
            oracle.recovers(index);
        }
    }

    pub(super) fn latest(&self) -> [Print; 2] {
        [0, 1].map(|file| *self.files[file].latest())
    }
}

/// Stock SQLite in memory shows the result of each statement.
pub(super) fn mirror() -> rusqlite::Result<Connection> {
    let mirror = Connection::open_in_memory()?;
    mirror.execute_batch("ATTACH ':memory:' AS side")?;
    add_noise(&mirror)?;
    Ok(mirror)
}

/// Whether pages of a home may be newer than the slots say, before or behind `operation`: until a
/// slot is written by the process that wrote the pages.
fn note_ahead(ahead: &mut [bool; 2], writes_home: &mut [bool; 2], operation: Operation<'_>) -> bool {
    let was_ahead = ahead.contains(&true);
    for file in 0..2 {
        if operation.path == path(file) && operation.range.1 > HEADER_BYTES {
            (ahead[file], writes_home[file]) = (true, true);
        } else if operation.path == log_path(file) && operation.range.1 == slot::BYTES && writes_home[file] {
            (ahead[file], writes_home[file]) = (false, false);
        }
    }
    was_ahead || ahead.contains(&true)
}

impl World {
    pub(super) fn boot(&mut self, sim: SimDisk) {
        self.power_off();
        let point = self.setting.durable.then(|| self.crash_points());
        self.disk = HookDisk::new(sim, point);
        (0..self.levels.len()).for_each(|process| self.start(process));
        self.faulty = false;
    }

    fn start(&self, process: usize) {
        self.levels[process].boot_as(self.disk.clone(), self.more.only_reads(process));
    }

    pub(super) fn power_off(&mut self) {
        self.levels.iter().for_each(Level::halt);
        self.clients.clear();
    }

    pub(super) fn crash_points(&mut self) -> Point {
        let (setting, oracles, found) = (self.setting.clone(), self.oracles.clone(), self.found.clone());
        let mut rng = SplitMix64::new(self.rng.next_u64());
        let (every, old_files, wal, lost) = (self.points, self.old_files.clone(), self.wal.clone(), self.lost.clone());
        let ahead = self.ahead.clone();
        let mut writes_home = [false; 2];
        let mut last_written = None;
        Box::new(move |operation, inside| {
            let is_ahead = note_ahead(&mut ahead.lock(), &mut writes_home, operation);
            // Without a flush between them, writes to one file give similar crashes.
            let again = operation.op == Op::Write && last_written.as_deref() == Some(operation.path);
            last_written = (operation.op == Op::Write).then(|| operation.path.to_owned());
            let every = every * if wal.load(Ordering::Relaxed) { 8 } else { 1 } * if again { 4 } else { 1 };
            let drawn = usize::from(rng.below(every) == 0);
            for _ in 0..operation.crashes_min().max(drawn) {
                if found.lock().is_some() || lost.load(Ordering::Relaxed) {
                    return;
                }
                let disk = inside();
                let unflushed = oracles.lock().allowed(false);
                let kill = oracles.lock().allowed(true);
                let (kind, recoveries) = (rng.below(12), [0, 0, 0, 0, 1, 2][rng.below(6)]);
                let (when, verdict) = match kind {
                    0 => {
                        let rotten = oracles.lock().rotten();
                        let ahead = is_ahead || setting.in_page;
                        ("after rot", rot(&setting, &disk.crash(rng.next_u64()), &rotten, ahead, &mut rng, 1))
                    }
                    1 if !old_files.is_empty() => {
                        let crashed = disk.crash(rng.next_u64());
                        let old = &old_files[rng.below(old_files.len())];
                        ("with an older file", older_file(&setting, &crashed, old, &unflushed, 1))
                    }
                    1 | 2 => {
                        let killed = disk.survive();
                        let checked = check_or_recover(&setting, &killed, &kill, &unflushed, &mut rng, 1, recoveries);
                        ("after a kill", checked)
                    }
                    _ => {
                        let crashed = disk.crash(rng.next_u64());
                        let cut = &unflushed;
                        ("after a crash", check_or_recover(&setting, &crashed, cut, cut, &mut rng, 1, recoveries))
                    }
                };
                if let Err(mut v) = verdict {
                    v.what = format!("{when}: {}", v.what);
                    *found.lock() = Some(v);
                }
            }
        })
    }

    pub(super) fn start_over(&mut self) -> Step<()> {
        self.note(|_| "starts over".to_owned());
        for i in (0..self.clients.len()).rev() {
            self.abort(i);
            // The close may report that the database is poisoned.
            let _ = self.clients.remove(i).db.close();
        }
        self.verdict()?;
        // The remaining faults would strike the recovery.
        let sim = self.disk.sim().survive();
        self.recover(sim, true)
    }

    /// A kill or a power cut; a new process recovers.
    pub(super) fn die(&mut self) -> Step<()> {
        self.verdict()?;
        let killed = self.rng.below(2) == 0;
        let sim = if killed { self.disk.sim().survive() } else { self.disk.sim().crash(self.rng.next_u64()) };
        self.recover(sim, killed)
    }

    pub(super) fn recover(&mut self, sim: SimDisk, killed: bool) -> Step<()> {
        sim.set_capacity(ROOMY);
        self.full = false;
        self.note(|w| format!("{}; floor, committed: {:?}", if killed { "kill" } else { "crash" }, w.marks()));
        self.setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
        let allowed = self.oracles.lock().allowed(killed);
        let unflushed = self.oracles.lock().allowed(false);
        let was_aside = self.oracles.lock().files.iter().any(|oracle| oracle.aside);
        let uncertain = killed && (was_aside || self.is_wal());
        // Crashes within the recovery of new connections must know it.
        let found = check(&self.setting, &sim.survive(), &allowed, &unflushed, &mut self.rng.clone(), 1, 0);
        let found = found.map_err(|mut v| {
            v.what = format!("{}: {}", if killed { "after a kill" } else { "after a crash" }, v.what);
            v
        })?;
        self.oracles.lock().recover(&allowed, found);
        let kept = [0, 1].into_iter().flat_map(|file| {
            let copy = |path: PathBuf| sim.snapshot_file(&path).map(|bytes| OldFile { file, path, bytes });
            [copy(log_path(file)), copy(path(file))]
        });
        if !killed {
            // A recovery after a kill may continue the session, so earlier copies still fit.
            self.old_files = kept.flatten().collect::<Vec<_>>().into();
        }
        self.boot(sim);
        let expected = self.oracles.lock().latest();
        for file in 0..2 {
            if self.disk.sim().snapshot_file(&path(file)).is_none() {
                continue;
            }
            let stays = file == 0 && self.rng.below(2) == 0;
            let seen = self.levels[0].open(file, &self.setting.options).and_then(|db| {
                let seen = print(&db, "main")?;
                let mode: String = db.query_row("PRAGMA main.journal_mode", [], |row| row.get(0))?;
                if file == 0 {
                    self.set_wal(mode == "wal");
                }
                if stays {
                    add_noise(&db)?;
                    db.execute_batch("PRAGMA synchronous=FULL")?;
                    self.opened += 1;
                    self.clients.push(Client::plain(db, self.opened));
                } else {
                    db.close().map_err(|(_, e)| e)?;
                }
                Ok(seen)
            });
            self.verdict()?;
            match seen {
                Ok(seen) if seen == expected[file] => {}
                Ok(seen) => {
                    return Err(self.bad(format!("recovered once more: {seen:?} instead of {:?}", expected[file])));
                }
                Err(e) => return Err(self.bad(format!("cannot recover once more: {}", said(&e)))),
            }
            if !uncertain {
                let oracle = &mut self.oracles.lock().files[file];
                if stays { oracle.go_on() } else { oracle.settle() }
            }
        }
        self.note(|w| format!("recovered; floor, committed: {:?}", w.marks()));
        self.follow(expected)
    }

    /// One process dies during a later disk call; the other one continues.
    pub(super) fn doom(&mut self) -> Step<()> {
        let process = self.rng.below(self.levels.len());
        let calls = self.rng.below(60) as u64;
        self.levels[process].die_after(calls);
        self.note(|_| format!("process {process} dies after {calls} calls"));
        Ok(())
    }

    /// The next reader decides about a dead process's unfinished transaction.
    pub(super) fn bury(&mut self) -> Step<bool> {
        let dead: Vec<usize> = (0..self.levels.len()).filter(|process| !self.levels[*process].is_alive()).collect();
        if dead.is_empty() {
            return Ok(false);
        }
        self.clients.retain(|client| !dead.contains(&client.process));
        for process in &dead {
            self.start(*process);
        }
        self.note(|w| format!("dead: {dead:?}; floor, committed: {:?}", w.marks()));
        let process = if self.is_wal() || self.more.observes { 0 } else { self.rng.below(self.levels.len()) };
        self.levels[process].die_after(u64::MAX);
        let allowed = self.oracles.lock().allowed(true);
        let looked = self.look(process);
        self.verdict()?;
        let prints = match looked {
            Ok(prints) => prints,
            Err(e) if explain(&e).0 & 0xff == ffi::SQLITE_BUSY || self.faulty || self.full => {
                self.note(|_| format!("nobody may look: {}", said(&e)));
                self.recover(self.disk.sim().survive(), true)?;
                return Ok(true);
            }
            Err(e) => return Err(self.bad(format!("after the death of a process: {}", said(&e)))),
        };
        let found = allowed.find(prints).map_err(|what| self.bad(format!("after the death of a process: {what}")))?;
        {
            let mut oracles = self.oracles.lock();
            oracles.recover(&allowed, found);
            oracles.joint = false;
        }
        self.note(|w| format!("found; floor, committed: {:?}", w.marks()));
        self.follow(prints)?;
        Ok(true)
    }

    pub(super) fn look(&mut self, process: usize) -> rusqlite::Result<[Print; 2]> {
        Ok([self.look_at(process, 0)?, self.look_at(process, 1)?])
    }

    pub(super) fn look_at(&mut self, process: usize, file: usize) -> rusqlite::Result<Print> {
        if self.disk.sim().snapshot_file(&path(file)).is_none() {
            return Ok(empty());
        }
        let db = self.levels[process].open(file, &self.setting.options)?;
        let seen = print(&db, "main")?;
        if file == 0 {
            let mode: String = db.query_row("PRAGMA main.journal_mode", [], |row| row.get(0))?;
            self.set_wal(mode == "wal");
        }
        db.close().map_err(|(_, e)| e)?;
        Ok(seen)
    }

    pub(super) fn follow(&mut self, expected: [Print; 2]) -> Step<()> {
        let failed = |w: &Self, e: rusqlite::Error| w.bad(format!("the mirror: {}", said(&e)));
        if !self.mirror.is_autocommit() {
            self.mirror.execute_batch("ROLLBACK").map_err(|e| failed(self, e))?;
        }
        let now = [0, 1].map(|file| print(&self.mirror, SCHEMAS[file]).unwrap_or(empty()));
        if now == expected {
            return Ok(());
        }
        self.mirror = mirror().map_err(|e| failed(self, e))?;
        let sim = self.disk.sim().survive();
        let beside = level(1);
        beside.boot(HookDisk::new(sim.clone(), None));
        for file in 0..2 {
            if sim.snapshot_file(&path(file)).is_some() && expected[file] != empty() {
                let from = beside.open(file, &self.setting.options).map_err(|e| failed(self, e))?;
                let copied = Backup::new_with_names(&from, "main", &mut self.mirror, SCHEMAS[file])
                    .and_then(|backup| backup.run_to_completion(10_000, std::time::Duration::ZERO, None));
                copied.map_err(|e| failed(self, e))?;
            }
        }
        beside.halt();
        let now = [0, 1].map(|file| print(&self.mirror, SCHEMAS[file]).unwrap_or(empty()));
        if now != expected {
            return Err(self.bad(format!("the mirror cannot follow: {now:?} instead of {expected:?}")));
        }
        Ok(())
    }

    pub(super) fn make_trouble(&mut self) -> Step<()> {
        match self.trouble {
            Trouble::None => {}
            // SQLite itself continues after a failed flush of its WAL file, and relies on it.
            Trouble::Faults if self.is_wal() => {}
            Trouble::Faults => {
                let ops = [Op::WriteDurable, Op::Sync, Op::Send, Op::SetLen, Op::Reserve, Op::Write, Op::Write];
                let nth = 1 + self.rng.below(6) as u64;
                let what = match self.rng.below(10) {
                    0 => {
                        self.disk.sim().fail_nth(Op::Read, nth * 4, ErrorKind::Other);
                        "a read will fail".to_owned()
                    }
                    1 => {
                        let len = 1 + self.rng.below(4095);
                        self.disk.sim().shorten_nth_read(nth * 4, len);
                        format!("a read will end after {len} bytes")
                    }
                    _ => {
                        // In-page schemes rely on whole pages, and a failed write leaves half a
                        // page.
                        let op = ops[self.rng.below(if self.setting.in_page { 5 } else { ops.len() })];
                        self.disk.sim().fail_nth(op, nth, ErrorKind::Other);
                        format!("{op:?} will fail")
                    }
                };
                self.faulty = true;
                self.note(|_| what);
            }
            Trouble::Full => {
                self.full ^= true;
                let sim = self.disk.sim();
                let used = sim.used_bytes();
                let room = self.rng.below(60_000) as u64;
                sim.set_capacity(if self.full { used + room } else { ROOMY });
                self.note(|w| format!("full: {} ({used} + {room})", w.full));
            }
        }
        Ok(())
    }
}
