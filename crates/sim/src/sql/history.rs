//! A history: connections of successive processes run SQL, with crashes at every operation of the
//! disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onewrite_core::Instant;
use onewrite_core::disk::sim::{SimDisk, SplitMix64};
use parking_lot::Mutex;
use rusqlite::{Connection, ffi};

use super::check::{OldFile, Setting, asks_for_writer, damage, draw_mapped, empty, said};
use super::deaths::{Oracles, mirror};
use super::print::{Print, print};
use super::process::{BESIDE, Level, SCHEMAS, add_noise, attach_side, explain, level, set_up};
use super::statements::Shape;
use crate::baton::alone;
use crate::check::{Counts, ROOMY, Violation, drawn_disk};
use crate::history::{Campaign, in_page, is_brief};
use crate::hook::HookDisk;
use crate::oracle::Oracle;
use crate::pager::Synchronous;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    Faults,
    /// Not of `off`: an image that finds no room fails its commits in the middle.
    Full,
}

pub(super) struct Client {
    pub(super) db: Connection,
    pub(super) number: usize,
    pub(super) process: usize,
    pub(super) synchronous: Synchronous,
    /// `journal_mode=MEMORY`: it cannot step aside.
    pub(super) journal_in_memory: bool,
    pub(super) has_side: bool,
    /// Opened with `mode=ro`.
    pub(super) reads_only: bool,
    pub(super) reading: Option<Vec<Print>>,
}

impl Client {
    pub(super) fn plain(db: Connection, number: usize) -> Client {
        let synchronous = Synchronous::Full;
        let (process, journal_in_memory, has_side, reads_only) = (0, false, false, false);
        Client { db, number, process, synchronous, journal_in_memory, has_side, reads_only, reading: None }
    }

    pub(super) fn schemas(&self) -> usize {
        1 + usize::from(self.has_side)
    }

    /// In the midst of a transaction that overlaps others.
    pub(super) fn overlaps(&self) -> bool {
        self.reading.is_none() && !self.db.is_autocommit()
    }

    pub(super) fn may_step_aside(&self) -> bool {
        // Beside the log SQLite's own rules hold: no promise under OFF, or with a journal in
        // memory.
        self.synchronous != Synchronous::Off && !self.journal_in_memory
    }
}

pub(super) struct World {
    pub(super) setting: Setting,
    pub(super) rng: SplitMix64,
    pub(super) disk: HookDisk,
    pub(super) levels: Vec<Level>,
    pub(super) clients: Vec<Client>,
    pub(super) opened: usize,
    pub(super) oracles: Arc<Mutex<Oracles>>,
    pub(super) mirror: Connection,
    pub(super) found: Arc<Mutex<Option<Violation>>>,
    pub(super) trouble: Trouble,
    /// The present processes met a fault.
    pub(super) faulty: bool,
    pub(super) full: bool,
    /// In stock SQLite's WAL mode few crash points are checked.
    pub(super) wal: Arc<AtomicBool>,
    /// A log in use was removed, and no other is there yet: a crash may take what it had.
    pub(super) lost: Arc<AtomicBool>,
    pub(super) points: usize,
    /// Whether pages of a home may be newer than its slots say.
    pub(super) ahead: Arc<Mutex<[bool; 2]>>,
    /// One session follows another in the log.
    brief: bool,
    pub(super) more: More,
    /// From before the last recovery.
    pub(super) old_files: Arc<[OldFile]>,
    pub(super) notes: Option<Vec<String>>,
}

/// Only half of the histories have these, so that the seeds of the others keep theirs.
#[derive(Clone, Copy)]
pub(super) struct More {
    /// `concurrent=1`: write transactions overlap.
    pub(super) concurrent: bool,
    /// `idle` is above 0, and idle databases are looked after.
    pub(super) rests: bool,
    /// Some connections only read.
    pub(super) readers: bool,
    /// Those of the second process do: its user may not write the files.
    pub(super) observes: bool,
    /// Another program removes logs that are in use.
    pub(super) loses: bool,
    /// The time of the last look at idle databases.
    pub(super) now: Instant,
}

impl More {
    /// Whether the user of a process may not write the files.
    pub(super) fn only_reads(&self, process: usize) -> bool {
        self.observes && process > 0
    }

    fn draw(seed: u64, scheme: &str, several: bool, options: &mut Vec<(String, String)>) -> More {
        let mut rng = SplitMix64::new(seed ^ 0x6d6f);
        let is_drawn = rng.below(2) == 0;
        let mut draw = |times| is_drawn && rng.below(3) < times;
        let (concurrent, rests, readers, observes, loses) = (draw(2), draw(1), draw(2), draw(1), draw(1));
        let concurrent = concurrent && scheme_is_shared(scheme) && !several;
        if rests {
            options.iter_mut().filter(|(name, _)| name == "idle").for_each(|(_, value)| *value = "10s".to_owned());
        }
        if concurrent {
            options.push(("concurrent".to_owned(), "1".to_owned()));
        }
        if draw(1) {
            options.push(("psow".to_owned(), "0".to_owned()));
        }
        More {
            concurrent,
            rests,
            readers: readers || (observes && several),
            observes: observes && several,
            loses: loses && scheme_is_shared(scheme),
            now: Instant::now(),
        }
    }
}

pub(super) type Step<T> = Result<T, Violation>;

/// The options, and whether `sticky` and `wal=absorb` are among them.
fn draw_options(rng: &mut SplitMix64, scheme: &str) -> (Vec<(String, String)>, bool, bool) {
    let mut options = vec![("scheme", scheme), ("log_size", "256k"), ("busy_ms", "0"), ("idle", "0")];
    if rng.below(4) > 0 {
        options.push(("stream_size", "64k"));
    }
    if rng.below(3) == 0 {
        options.push(("table_size", "64k"));
    }
    if in_page(scheme) && rng.below(3) == 0 {
        options.push(("gc", "eager"));
    }
    let sticky = rng.below(6) == 0;
    if sticky {
        options.push(("sticky", "1"));
    }
    let absorbs = rng.below(3) == 0;
    options.push(("wal", if absorbs { "absorb" } else { "stock" }));
    let options = options.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    (options, sticky, absorbs)
}

/// Runs one history.
pub fn run(seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Step<()> {
    alone(seed, || run_alone(seed, campaign, counts))
}

fn run_alone(seed: u64, campaign: &Campaign, counts: &Arc<Counts>) -> Step<()> {
    let mut rng = SplitMix64::new(seed ^ 0x5031);
    let drawn = ["log", "log", "log", "wal-opt", "wal-opt", "log", "log", "dhl-cc", "lsmvbt", "off"][rng.below(10)];
    let scheme = campaign.scheme.clone().unwrap_or_else(|| drawn.to_owned());
    let durable = !scheme.starts_with("off");
    let drawn_unit = [512, 4096][rng.below(2)];
    let atomic_unit = campaign.atomic_unit.unwrap_or(drawn_unit);
    let config = drawn_disk(&mut rng, atomic_unit, campaign.trace);
    let page_bytes = [512, 1024, 1024, 2048, 4096, 4096][rng.below(6)];
    let page_bytes_max = if in_page(&scheme) { atomic_unit.min(4096) as usize } else { 4096 };
    let shape = Shape {
        page_bytes: page_bytes.min(page_bytes_max),
        page_bytes_max,
        auto_vacuum: rng.below(3),
        bytes_max: 120_000,
        big_bytes: 40_000 + rng.below(60_000),
    };
    let (mut options, sticky, absorbs) = draw_options(&mut rng, &scheme);
    let trouble = match rng.below(4) {
        0 if durable => Trouble::Faults,
        1 if durable => Trouble::Full,
        _ => Trouble::None,
    };
    let several = scheme_is_shared(&scheme) && rng.below(2) == 0;
    let more = More::draw(seed, &scheme, several, &mut options);
    let mut world = World {
        setting: Setting {
            options,
            shape,
            counts: counts.clone(),
            sticky,
            durable,
            in_page: in_page(&scheme),
            absorbs,
            mapped_bytes: draw_mapped(seed),
        },
        // Effects of processes and of transactions on each other matter more than each crash point.
        points: (2 + rng.below(6)) * if several || more.concurrent { 8 } else { 1 },
        brief: is_brief(seed),
        more,
        rng,
        disk: HookDisk::new(SimDisk::new(config), None),
        levels: if several { vec![level(0), level(BESIDE)] } else { vec![level(0)] },
        clients: Vec::new(),
        opened: 0,
        oracles: Arc::new(Mutex::new(Oracles::starting())),
        mirror: mirror().map_err(|e| Violation::on(&SimDisk::new(config), said(&e)))?,
        found: Arc::default(),
        trouble,
        faulty: false,
        full: false,
        wal: Arc::default(),
        lost: Arc::default(),
        ahead: Arc::default(),
        old_files: Arc::default(),
        notes: campaign.trace.then(Vec::new),
    };
    world.boot(SimDisk::new(config));
    let steps = 10 + world.rng.below(campaign.steps.max(1));
    let mut done = Ok(());
    for _ in 0..steps {
        done = done.and_then(|()| world.step()).and_then(|()| world.verdict());
        done = done.and_then(|()| world.bury()).map(|_| ());
    }
    let done = done.and_then(|()| world.finish());
    world.power_off();
    done.map_err(|mut v| {
        v.what = format!("{} [{:?}, {:?}]", v.what, world.setting.options, world.setting.shape);
        v.notes = world.notes.take().unwrap_or_default();
        v
    })
}

/// Whether several processes may use it.
fn scheme_is_shared(scheme: &str) -> bool {
    matches!(scheme, "log" | "wal-opt")
}

impl World {
    pub(super) fn bad(&self, what: impl Into<String>) -> Violation {
        Violation::on(self.disk.sim(), what)
    }

    pub(super) fn note(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.notes.is_some() {
            let line = format!("{:>6} {}", self.disk.sim().ops(), what(self));
            self.notes.iter_mut().for_each(|notes| notes.push(line.clone()));
        }
    }

    pub(super) fn is_wal(&self) -> bool {
        self.wal.load(Ordering::Relaxed)
    }

    pub(super) fn set_wal(&self, wal: bool) {
        self.wal.store(wal, Ordering::Relaxed);
    }

    pub(super) fn verdict(&self) -> Step<()> {
        let found = self.found.lock().take();
        found.map_or(Ok(()), Err)
    }

    pub(super) fn step(&mut self) -> Step<()> {
        if self.is_wal() && self.rng.below(4) == 0 {
            return self.change_mode();
        }
        if self.brief && self.rng.below(3) == 0 {
            return self.close_all();
        }
        if self.more.concurrent && self.rng.below(2) == 0 {
            return self.overlap();
        }
        if self.more.rests && self.rng.below(8) == 0 {
            return self.look_after();
        }
        if self.more.loses && self.rng.below(12) == 0 {
            return self.lose_log();
        }
        match self.rng.below(40) {
            0..23 => self.write(),
            23..26 => self.pin_or_read(),
            26..28 => self.release(),
            28..30 => self.checkpoint(),
            30 => self.close_all(),
            31 => self.vacuum(),
            32 => self.change_mode(),
            33 if self.setting.durable => self.die(),
            34 | 35 if self.levels.len() > 1 => self.doom(),
            34..37 => self.make_trouble(),
            37 => self.shrink(),
            38 => self.change_locking(),
            _ if self.rng.below(2) == 0 => self.write_log_again(),
            _ => self.close_one(),
        }
    }

    pub(super) fn client(&mut self) -> Step<Option<usize>> {
        let opens = self.clients.is_empty() || (self.clients.len() < 4 && self.rng.below(6) == 0);
        if opens && !self.open_one()? {
            return Ok(None);
        }
        Ok(Some(self.rng.below(self.clients.len())))
    }

    /// False if that fails.
    pub(super) fn open_one(&mut self) -> Step<bool> {
        match self.open() {
            Ok(client) => self.clients.push(client),
            Err(e) => return self.tolerate(&e, "open").map(|()| false),
        }
        Ok(true)
    }

    /// One that may write.
    pub(super) fn writer(&mut self) -> Step<Option<usize>> {
        let client = self.client()?;
        Ok(client.filter(|i| !self.clients[*i].reads_only))
    }

    pub(super) fn open(&mut self) -> rusqlite::Result<Client> {
        // The second process has no WAL mode, see `change_mode`.
        let mut process = if self.is_wal() { 0 } else { self.rng.below(self.levels.len()) };
        let can_read = !self.oracles.lock().latest().contains(&empty());
        if self.more.observes && !can_read {
            process = 0;
        }
        let reads_only = self.more.readers && can_read && (self.more.only_reads(process) || self.rng.below(3) == 0);
        let mut options = self.setting.options.clone();
        if reads_only {
            options.push(("mode".to_owned(), "ro".to_owned()));
        }
        let db = self.levels[process].open(0, &options)?;
        add_noise(&db)?;
        let mut synchronous = [Synchronous::Full, Synchronous::Full, Synchronous::Normal][self.rng.below(3)];
        if self.rng.below(10) == 0 && !self.is_wal() {
            synchronous = Synchronous::Off;
        }
        let mode = ["DELETE", "TRUNCATE", "PERSIST", "MEMORY"][self.rng.below(4)];
        let cache = [6, 20, 200][self.rng.below(3)];
        let has_side = self.rng.below(3) == 0;
        if has_side {
            attach_side(&db, self.levels[process].uri(1, &options), |e| self.is_for_writers(e))?;
        }
        let journal = (!reads_only && !self.is_wal()).then_some(mode);
        let shape = (!reads_only).then_some(self.setting.shape);
        set_up(&db, 1 + usize::from(has_side), synchronous, cache, journal, self.setting.mapped_bytes, shape)?;
        self.opened += 1;
        let number = self.opened;
        self.note(|_| {
            format!(
                "{number} opens in process {process}: {synchronous:?}, journal {mode}, side {has_side}, cache {cache}, only \
                 reads {reads_only}"
            )
        });
        let journal_in_memory = mode == "MEMORY";
        Ok(Client { db, number, process, synchronous, journal_in_memory, has_side, reads_only, reading: None })
    }

    /// An expected error, or a violation.
    pub(super) fn tolerate(&mut self, error: &rusqlite::Error, doing: &str) -> Step<()> {
        let (code, _) = explain(error);
        self.note(|_| format!("{doing}: {}", said(error)));
        if self.bury()? {
            return Ok(());
        }
        match code & 0xff {
            ffi::SQLITE_BUSY => Ok(()),
            ffi::SQLITE_FULL if self.full => Ok(()),
            // As in `check`: a journal led back to no page.
            ffi::SQLITE_CANTOPEN if self.setting.in_page && self.oracles.lock().latest().contains(&empty()) => Ok(()),
            ffi::SQLITE_CANTOPEN | ffi::SQLITE_READONLY if self.is_for_writers(error) => Ok(()),
            // With images in the log.
            ffi::SQLITE_IOERR if self.lost.load(Ordering::Relaxed) => Ok(()),
            // SQLite passes over BUSY where it asks whether its schema is stale (`schemaIsValid`).
            ffi::SQLITE_ERROR if said(error).contains("has taken the database for itself") => Ok(()),
            // Until all connections have closed.
            ffi::SQLITE_CANTOPEN if self.lost.load(Ordering::Relaxed) => Ok(()),
            _ if self.faulty => match self.rng.below(3) {
                0 => Ok(()),
                1 => self.die(),
                _ => self.start_over(),
            },
            _ => Err(self.bad(format!("{doing}: {}", said(error)))),
        }
    }

    /// A connection that only reads recovers nothing, and in stock SQLite no reader without write
    /// permission begins a WAL.
    pub(super) fn is_for_writers(&self, error: &rusqlite::Error) -> bool {
        self.more.readers && (asks_for_writer(error) || (self.more.observes && (self.setting.absorbs || self.is_wal())))
    }

    pub(super) fn prints(&self, i: usize) -> rusqlite::Result<Vec<Print>> {
        let client = &self.clients[i];
        SCHEMAS[..client.schemas()].iter().map(|schema| print(&client.db, schema)).collect()
    }

    pub(super) fn pin_or_read(&mut self) -> Step<()> {
        let Some(i) = self.client()? else { return Ok(()) };
        let pinned = self.clients[i].reading.clone();
        let begun = if pinned.is_none() { self.clients[i].db.execute_batch("BEGIN") } else { Ok(()) };
        let seen = match begun.and_then(|()| self.prints(i)) {
            Ok(seen) => seen,
            Err(e) => {
                self.abort(i);
                return self.tolerate(&e, "read");
            }
        };
        let latest = self.oracles.lock().latest();
        let expected = pinned.clone().unwrap_or_else(|| latest[..self.clients[i].schemas()].to_vec());
        if seen != expected {
            let what = if pinned.is_some() { "a snapshot changed" } else { "a reader does not see the newest state" };
            return Err(self.bad(format!("{what}: {seen:?} instead of {expected:?}")));
        }
        self.clients[i].reading = Some(seen);
        self.note(|w| format!("{} reads", w.clients[i].number));
        if !self.faulty && self.disk.sim().ops().is_multiple_of(4) {
            return self.check_indexes(i);
        }
        Ok(())
    }

    fn check_indexes(&mut self, i: usize) -> Step<()> {
        for schema in &SCHEMAS[..self.clients[i].schemas()] {
            match damage(&self.clients[i].db, schema) {
                Ok(None) => {}
                // integrity_check reports an unreadable page as damage.
                Ok(Some(_)) if !self.levels[self.clients[i].process].is_alive() => {
                    self.abort(i);
                    return self.bury().map(|_| ());
                }
                Ok(Some(damage)) => return Err(self.bad(format!("integrity_check of {schema}: {damage}"))),
                Err(e) => {
                    self.abort(i);
                    return self.tolerate(&e, "integrity_check");
                }
            }
        }
        Ok(())
    }

    pub(super) fn abort(&mut self, i: usize) {
        self.clients[i].reading = None;
        if !self.clients[i].db.is_autocommit() {
            // Errors of this rollback change nothing.
            let _ = self.clients[i].db.execute_batch("ROLLBACK");
        }
    }

    pub(super) fn release(&mut self) -> Step<()> {
        let pinned: Vec<usize> = (0..self.clients.len()).filter(|i| self.clients[*i].reading.is_some()).collect();
        if !pinned.is_empty() {
            let i = pinned[self.rng.below(pinned.len())];
            return self.end_read(i);
        }
        Ok(())
    }

    pub(super) fn end_read(&mut self, i: usize) -> Step<()> {
        self.clients[i].reading = None;
        if let Err(e) = self.clients[i].db.execute_batch("COMMIT") {
            self.abort(i);
            return self.tolerate(&e, "end of a read");
        }
        Ok(())
    }

    /// The index of a client that is still there.
    pub(super) fn position(&self, number: usize) -> Option<usize> {
        self.clients.iter().position(|client| client.number == number)
    }

    pub(super) fn marks(&self) -> Vec<(usize, usize, usize)> {
        self.oracles.lock().files.iter().map(Oracle::marks).collect()
    }

    pub(super) fn vacuum(&mut self) -> Step<()> {
        let Some(i) = self.writer()? else { return Ok(()) };
        if !self.may_vacuum(i) {
            return Ok(());
        }
        let page_bytes = [512, 1024, 2048, 4096][self.rng.below(4)].min(self.setting.shape.page_bytes_max);
        let sql = match self.rng.below(3) {
            0 => "VACUUM".to_owned(),
            _ => format!("PRAGMA page_size={page_bytes}; VACUUM"),
        };
        self.vacuum_by(i, &sql)
    }

    pub(super) fn may_vacuum(&self, i: usize) -> bool {
        let client = &self.clients[i];
        client.reading.is_none() && client.may_step_aside() && *self.oracles.lock().files[0].latest() != empty()
    }

    pub(super) fn vacuum_by(&mut self, i: usize, sql: &str) -> Step<()> {
        self.note(|w| format!("{} runs {sql}", w.clients[i].number));
        let done = self.clients[i].db.execute_batch(sql);
        self.verdict()?;
        match done {
            Ok(()) => Ok(()),
            Err(e) => {
                self.abort(i);
                self.tolerate(&e, "vacuum")
            }
        }
    }

    pub(super) fn change_mode(&mut self) -> Step<()> {
        // The simulated system has no shared memory for WAL mode between processes.
        while let Some(other) = self.clients.iter().position(|client| client.process > 0) {
            self.close(other)?;
        }
        let Some(i) = self.writer()? else { return Ok(()) };
        let client = &self.clients[i];
        // The way back needs SQLite's own journal: see `change_locking`.
        let unsafe_journal = self.is_wal() && client.synchronous == Synchronous::Normal;
        if unsafe_journal
            || self.faulty
            || client.process > 0
            || client.reading.is_some()
            || !client.may_step_aside()
            || *self.oracles.lock().files[0].latest() == empty()
        {
            return Ok(());
        }
        if !self.is_wal() {
            // WAL mode promises nothing under OFF.
            for client in self.clients.iter_mut().filter(|client| client.synchronous == Synchronous::Off) {
                for schema in &SCHEMAS[..client.schemas()] {
                    if client.db.execute_batch(&format!("PRAGMA {schema}.synchronous=FULL")).is_err() {
                        // SQLite refuses this inside a transaction.
                        return Ok(());
                    }
                }
                client.synchronous = Synchronous::Full;
            }
        }
        let leaves = self.is_wal() || (self.setting.absorbs && self.rng.below(3) == 0);
        let wanted = if leaves { "DELETE" } else { "WAL" };
        let sql = format!("PRAGMA main.journal_mode={wanted}");
        // A connection that has not read the file since another changed its mode does nothing for
        // the pragma.
        let ask = |db: &Connection, sql: &str| {
            last_row(db, "SELECT name FROM main.sqlite_schema").and_then(|_| last_row(db, sql))
        };
        let answer = ask(&self.clients[i].db, &sql);
        self.verdict()?;
        self.note(|w| format!("{} runs {sql}: {answer:?}", w.clients[i].number));
        match answer {
            Ok(mode) => {
                self.set_wal(mode == "wal" && !self.setting.absorbs);
                Ok(())
            }
            Err(e) => {
                self.abort(i);
                // One that another connection shuts out does not know, and has changed nothing.
                if let Ok(mode) = ask(&self.clients[i].db, "PRAGMA main.journal_mode") {
                    self.set_wal(mode == "wal" && !self.setting.absorbs);
                }
                self.tolerate(&e, "journal_mode")
            }
        }
    }

    fn change_locking(&mut self) -> Step<()> {
        let Some(i) = self.writer()? else { return Ok(()) };
        let client = &self.clients[i];
        if client.synchronous == Synchronous::Normal || client.journal_in_memory {
            // It may stay beside the log for good, and SQLite's own journal is not safe under
            // NORMAL where sectors tear: its checksum samples, and no flush comes before the
            // header. Without a journal nothing is.
            return Ok(());
        }
        let schema = SCHEMAS[self.rng.below(self.clients[i].schemas())];
        let mode = ["exclusive", "exclusive", "normal"][self.rng.below(3)];
        let sql = format!("PRAGMA {schema}.locking_mode={mode}");
        let answer = last_row(&self.clients[i].db, &sql);
        self.note(|w| format!("{} runs {sql}: {answer:?}", w.clients[i].number));
        match answer {
            Ok(_) => Ok(()),
            Err(e) => self.tolerate(&e, "locking_mode"),
        }
    }

    pub(super) fn checkpoint(&mut self) -> Step<()> {
        let Some(i) = self.writer()? else { return Ok(()) };
        self.checkpoint_by(i)
    }

    pub(super) fn checkpoint_by(&mut self, i: usize) -> Step<()> {
        let file = self.rng.below(self.clients[i].schemas());
        let sql = format!("PRAGMA {}.onewrite_checkpoint", SCHEMAS[file]);
        match self.clients[i].db.query_row(&sql, [], |row| row.get::<_, String>(0)) {
            Ok(_) => {
                if !self.is_wal() {
                    self.oracles.lock().files[file].settle();
                }
                self.note(|w| format!("{} checkpoints {file}", w.clients[i].number));
                Ok(())
            }
            Err(e) => self.tolerate(&e, "checkpoint"),
        }
    }

    pub(super) fn close_one(&mut self) -> Step<()> {
        if self.clients.len() < 2 {
            return Ok(());
        }
        let i = self.rng.below(self.clients.len());
        self.close(i)
    }

    pub(super) fn close(&mut self, i: usize) -> Step<()> {
        self.abort(i);
        self.note(|w| format!("{} closes", w.clients[i].number));
        let closed = self.clients.remove(i).db.close();
        self.verdict()?;
        match closed {
            Ok(()) => Ok(()),
            Err((_, e)) => self.tolerate(&e, "close"),
        }
    }

    pub(super) fn close_all(&mut self) -> Step<()> {
        let any = !self.clients.is_empty();
        // A connection that reads alone may have the lost log last.
        let is_lost = self.lost.load(Ordering::Relaxed) && self.clients.iter().any(|client| client.reads_only);
        // Another process closes the file of one that dies meanwhile.
        while !self.clients.is_empty() || self.bury()? {
            if !self.clients.is_empty() {
                self.close(self.clients.len() - 1)?;
            }
        }
        if any && (self.more.observes || is_lost) && !self.faulty && !self.full {
            // One that may not write leaves the mark to the next that may.
            let looked = self.look(0);
            self.verdict()?;
            if let Err(e) = looked {
                return self.tolerate(&e, "look behind those that only read");
            }
        }
        // A poisoned database stays marked, for recovery; a full disk may also keep the mark on.
        if any && !self.faulty && !self.full {
            if !self.is_wal() {
                self.oracles.lock().files.iter_mut().for_each(Oracle::settle);
            }
            if !self.setting.sticky {
                self.check_at_rest(&[0, 1])?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self) -> Step<()> {
        self.disk.sim().set_capacity(ROOMY);
        self.full = false;
        if self.faulty {
            self.start_over()?;
        }
        self.close_all()?;
        self.verdict()
    }
}

/// An error may come with the commit after the last row, so the statement runs to its end.
pub(super) fn last_row(db: &Connection, sql: &str) -> rusqlite::Result<String> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut last = String::new();
    while let Some(row) = rows.next()? {
        last = row.get(0)?;
    }
    Ok(last)
}
