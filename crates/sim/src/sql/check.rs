//! Checks a disk after a crash as stock SQLite sees it: through onewrite, and without it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use onewrite_core::disk::sim::{SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::home::mark;
use onewrite_core::inspect::layout::home::{READ_VERSION, SESSION, WRITE_VERSION};
use onewrite_core::inspect::layout::{LOG_SUFFIX, home};
use onewrite_core::inspect::{LogFile, follows_session, path_beside};
use parking_lot::Mutex;
use rusqlite::Connection;

use super::print::{Print, print};
use super::process::{DIRECTORY, FILES, Level, explain, level, map_pages};
use super::statements::Shape;
use crate::check::{Counts, ROOMY, Violation};
use crate::hook::{HookDisk, Operation};

/// One history's settings.
#[derive(Clone, Debug)]
pub struct Setting {
    /// URI parameters.
    pub options: Vec<(String, String)>,
    /// The shape of its databases.
    pub shape: Shape,
    /// Shared counters.
    pub counts: Arc<Counts>,
    /// The mark stays on after a close.
    pub sticky: bool,
    /// Whether committed transactions survive crashes (in all schemes but `off`).
    pub durable: bool,
    /// The scheme writes undo records into pages.
    pub in_page: bool,
    /// onewrite itself answers requests for WAL mode (`wal=absorb`).
    pub absorbs: bool,
    /// `mmap_size`: so many bytes of a file at rest are read in mapped memory.
    pub mapped_bytes: usize,
}

/// [`Setting::mapped_bytes`], drawn apart from the rest of a history.
pub(super) fn draw_mapped(seed: u64) -> usize {
    [0, 0, 20_000, 1 << 20][SplitMix64::new(seed ^ 0x6d61).below(4)]
}

impl Setting {
    fn absorbing(&self) -> Setting {
        let mut setting = Setting { absorbs: true, ..self.clone() };
        setting
            .options
            .iter_mut()
            .filter(|(name, _)| name == "wal")
            .for_each(|(_, value)| *value = "absorb".to_owned());
        setting
    }
}

/// The states that a crash may leave.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// States of each database, oldest first.
    pub files: [Vec<Print>; 2],
    /// Indexes of states that transactions over both led to, oldest first: both are there or none.
    pub pairs: Vec<[usize; 2]>,
}

impl Allowed {
    /// Only these states.
    pub fn only(prints: [Print; 2]) -> Self {
        Self { files: prints.map(|print| vec![print]), pairs: Vec::new() }
    }

    /// The states from these indexes of `allowed` on, which has the same newest. As in
    /// `crate::check`: before recovery has ended, a cut transaction may become whole under part of
    /// a recovery's record.
    fn since(&self, allowed: &Allowed, found: [usize; 2]) -> Self {
        self.from([0, 1].map(|file| {
            let newer = allowed.files[file].len() - found[file];
            self.files[file].len().saturating_sub(newer)
        }))
    }

    /// Without the states before these indexes.
    pub(super) fn from(&self, first: [usize; 2]) -> Self {
        let rest = |file: usize, index: usize| index.saturating_sub(first[file]);
        Self {
            files: [0, 1].map(|file| self.files[file][first[file]..].to_vec()),
            pairs: self.pairs.iter().map(|pair| [rest(0, pair[0]), rest(1, pair[1])]).collect(),
        }
    }

    /// The states' indexes: of equal ones the last, or the last before a transaction over both
    /// that one of them lacks.
    pub(super) fn find(&self, prints: [Print; 2]) -> Result<[usize; 2], String> {
        let last = |file: usize, end: usize| self.files[file][..end].iter().rposition(|state| *state == prints[file]);
        let mut found = [0; 2];
        for file in 0..2 {
            let Some(at) = last(file, self.files[file].len()) else {
                return Err(format!("{} is {:?}, of none of {:?}", FILES[file], prints[file], self.files[file]));
            };
            found[file] = at;
        }
        for pair in self.pairs.iter().rev() {
            let has = |file: usize| found[file] >= pair[file];
            if has(0) != has(1) {
                let file = usize::from(has(1));
                found[file] = last(file, pair[file]).ok_or_else(|| {
                    let states = &self.files;
                    format!("a transaction over both databases is in one of them ({found:?} of {pair:?}, {states:?})")
                })?;
            }
        }
        Ok(found)
    }
}

/// The print of a database without a page.
pub fn empty() -> Print {
    static EMPTY: OnceLock<Print> = OnceLock::new();
    *EMPTY.get_or_init(|| {
        let db = Connection::open_in_memory().expect("a database in memory");
        print(&db, "main").expect("an empty database can be read")
    })
}

/// A database's path.
pub fn path(file: usize) -> PathBuf {
    Path::new(DIRECTORY).join(FILES[file])
}

/// A database's length in bytes.
pub(super) fn bytes_of(disk: &SimDisk, file: usize) -> usize {
    disk.snapshot_file(&path(file)).map_or(0, |bytes| bytes.len())
}

/// An error in SQLite's words and onewrite's.
pub fn said(error: &rusqlite::Error) -> String {
    let (code, message) = explain(error);
    let why = onewrite_rusqlite::last_error().unwrap_or_default();
    format!("error {code}, {message}; {why}")
}

/// Whether a connection that only reads found a file that a writer has to recover.
pub fn asks_for_writer(error: &rusqlite::Error) -> bool {
    crate::check::asks_for_writer(&said(error))
}

struct Seen {
    connections: [Option<Connection>; 2],
    prints: [Print; 2],
}

fn see(level: &Level, setting: &Setting, disk: &SimDisk, first: usize) -> Result<Seen, String> {
    let mut seen = Seen { connections: [None, None], prints: [empty(); 2] };
    for file in [first, 1 - first] {
        if disk.snapshot_file(&path(file)).is_none() {
            continue;
        }
        let db =
            level.open(file, &setting.options).map_err(|e| format!("cannot open {}: {}", FILES[file], said(&e)))?;
        seen.prints[file] = map_pages(&db, "main", setting.mapped_bytes)
            .and_then(|()| print(&db, "main"))
            .map_err(|e| format!("cannot recover or read {}: {}", FILES[file], said(&e)))?;
        seen.connections[file] = Some(db);
    }
    Ok(seen)
}

/// The first error of `integrity_check`: rows alone do not show indexes.
pub(super) fn damage(db: &Connection, schema: &str) -> rusqlite::Result<Option<String>> {
    let sql = format!("PRAGMA {schema}.integrity_check(1)");
    let answer: String = db.query_row(&sql, [], |row| row.get(0))?;
    Ok(Some(answer).filter(|answer| answer != "ok"))
}

fn intact(db: &Connection, what: &str) -> Result<(), String> {
    match damage(db, "main") {
        Ok(None) => Ok(()),
        Ok(Some(damage)) => Err(format!("integrity_check of {what}: {damage}")),
        Err(e) => Err(format!("integrity_check of {what}: {}", said(&e))),
    }
}

/// Stock SQLite finds `expected` after a clean close.
pub fn stock_reads(level: &Level, disk: &SimDisk, expected: [Print; 2]) -> Result<(), String> {
    (0..2).try_for_each(|file| stock_reads_file(level, disk, file, expected[file]))
}

/// Stock SQLite finds `expected` in a file at rest.
pub fn stock_reads_file(level: &Level, disk: &SimDisk, file: usize, expected: Print) -> Result<(), String> {
    let Some(bytes) = disk.snapshot_file(&path(file)) else { return Ok(()) };
    if expected == empty() && bytes.len() <= home::HEADER_BYTES {
        // A crash left part of the mark's write, which is no database until the first commit.
        return Ok(());
    }
    let what = || format!("{} through stock SQLite at rest", FILES[file]);
    let db = level.open_plain(file).map_err(|e| format!("{}: {}", what(), said(&e)))?;
    let found = print(&db, "main").map_err(|e| format!("{}: {}", what(), said(&e)))?;
    if found != expected {
        return Err(format!("{} is {found:?} instead of {expected:?}", what()));
    }
    intact(&db, &what())
}

/// Checks as [`crate::check::check`] does; then stock SQLite reads the closed database. Uses the
/// levels of nesting from `depth` on. Returns the state's indexes.
pub fn check(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &Allowed,
    unflushed: &Allowed,
    rng: &mut SplitMix64,
    depth: usize,
    recoveries: usize,
) -> Result<[usize; 2], Violation> {
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    disk.set_capacity(ROOMY);
    let absorbing = setting.absorbing();
    let setting = if rng.below(2) == 0 { &absorbing } else { setting };
    let level = level(depth);
    let after = disk.survive();
    level.boot(HookDisk::new(after.clone(), None));
    let bad = |what: String| Violation::on(&after, what);
    let first = rng.below(2);
    let seen = see(&level, setting, &after, first).map_err(bad)?;
    let found = allowed.find(seen.prints).map_err(bad)?;
    // Where stock SQLite reads after the close, it checks the same pages.
    let through_stock = !setting.sticky && rng.below(2) == 0;
    for (file, db) in seen.connections.iter().enumerate() {
        if let Some(db) = db.as_ref().filter(|_| !through_stock) {
            intact(db, FILES[file]).map_err(bad)?;
        }
    }
    let mut prints = seen.prints;
    let mut again = None;
    // If a journal led back to no page, a connection of an in-page scheme makes a database without
    // room for trailers, which is refused.
    let writable = !(setting.in_page && prints[0] == empty());
    if let Some(db) = seen.connections[0].as_ref().filter(|_| rng.below(4) == 0 && writable) {
        let written = db.execute_batch(
            "BEGIN; CREATE TABLE IF NOT EXISTS after(k INTEGER PRIMARY KEY, b); INSERT INTO after(b) VALUES ('new'); COMMIT",
        );
        written.map_err(|e| bad(format!("cannot write after recovery: {}", said(&e))))?;
        prints[0] = print(db, "main").map_err(|e| bad(format!("cannot read what was written: {}", said(&e))))?;
        again = Some(after.crash(rng.next_u64()));
    }
    for db in seen.connections.into_iter().flatten() {
        db.close().map_err(|(_, e)| bad(format!("cannot close after recovery: {}", said(&e))))?;
    }
    if through_stock {
        stock_reads(&level, &after, prints).map_err(bad)?;
    }
    if let Some(again) = again {
        // A commit after a recovery survives another crash. The other file was only read: a kill
        // may leave the end of its rollback journal unflushed, as in stock SQLite.
        let mut survives = Allowed::only(prints);
        if disk.snapshot_file(&path_beside(&path(1), "-journal")).is_some() {
            survives.files[1].splice(..0, unflushed.files[1].iter().copied());
        }
        setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
        level.boot(HookDisk::new(again.clone(), None));
        let bad = |what: String| Violation::on(&again, format!("{what}, after recovery, a commit and a crash"));
        let seen = see(&level, setting, &again, first).map_err(bad)?;
        survives.find(seen.prints).map_err(bad)?;
    }
    if recoveries > 0 {
        let certain = disk.crash_choices().is_empty();
        let states = [0, 1].map(|file| allowed.files[file][found[file]]);
        let inside = if certain { unflushed.since(allowed, found) } else { unflushed.clone() };
        crash_recovery(setting, disk, &inside, states, rng, depth, recoveries - 1)?;
    }
    level.halt();
    Ok(found)
}

fn crash_recovery(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &Allowed,
    found: [Print; 2],
    rng: &mut SplitMix64,
    depth: usize,
    recoveries: usize,
) -> Result<(), Violation> {
    let broken: Arc<Mutex<Option<Violation>>> = Arc::default();
    let (inner, at_point, at_allowed) = (broken.clone(), setting.clone(), allowed.clone());
    let mut point_rng = SplitMix64::new(rng.next_u64());
    let mut met = 0;
    let point = Box::new(move |_: Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        // All operations of a short recovery, and a sample of others.
        met += 1;
        let chosen = (recoveries == 0 && met <= 8) || point_rng.below(8 + met) < 2;
        if chosen && inner.lock().is_none() {
            let crashed = inside().crash(point_rng.next_u64());
            let checked =
                check(&at_point, &crashed, &at_allowed, &at_allowed, &mut point_rng, depth + 1, recoveries).err();
            *inner.lock() = checked;
        }
    });
    let level = level(depth);
    let hooked = HookDisk::new(disk.survive(), Some(point));
    level.boot(hooked.clone());
    let bad = |what: String| Violation::on(hooked.sim(), format!("recovery of the same disk once more: {what}"));
    let first = rng.below(2);
    let seen = see(&level, setting, hooked.sim(), first);
    let broken = broken.lock().take();
    if let Some(violation) = broken {
        return Err(violation);
    }
    Allowed::only(found).find(seen.map_err(bad)?.prints).map_err(bad)?;
    Ok(())
}

/// Flips a bit at rest in a log or in home's mark: an error, or an answer of `allowed`. `ahead`:
/// home is newer than the slots say, so a damaged last record is beyond help (`docs/faults.md`).
pub fn rot(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &Allowed,
    ahead: bool,
    rng: &mut SplitMix64,
    depth: usize,
) -> Result<(), Violation> {
    let file = usize::from(disk.snapshot_file(&path(1)).is_some() && rng.below(3) == 0);
    let log = log_path(file);
    let rotten = disk.survive();
    let marked = disk
        .snapshot_file(&path(file))
        .is_some_and(|bytes| home::MARK == bytes.get(READ_VERSION).copied().unwrap_or(0));
    let Some(log_bytes) = disk.snapshot_file(&log).filter(|_| marked) else { return Ok(()) };
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    rotten.set_capacity(ROOMY);
    let bit = rng.below(8) as u8;
    let what = if rng.below(4) == 0 {
        let at = [WRITE_VERSION, READ_VERSION, SESSION + rng.below(8)][rng.below(3)] as u64;
        rotten.flip_bit(&path(file), at, bit);
        format!("bit {bit} of byte {at} of {} flipped", FILES[file])
    } else {
        // Only written bytes: a slot, or part of the ring.
        let written: Vec<usize> = (0..log_bytes.len())
            .step_by(64)
            .filter(|at| log_bytes[*at..(*at + 64).min(log_bytes.len())].iter().any(|byte| *byte != 0))
            .collect();
        if written.is_empty() {
            return Ok(());
        }
        let at = match rng.below(4) {
            _ if ahead => 4096 * (1 + rng.below(2)) + rng.below(100),
            0 => 4096 * (1 + rng.below(2)) + rng.below(100),
            _ => (written[rng.below(written.len())] + rng.below(64)).min(log_bytes.len() - 1),
        } as u64;
        rotten.flip_bit(&log, at, bit);
        format!("bit {bit} of byte {at} of the log of {} flipped", FILES[file])
    };
    error_or_right(setting, &rotten, allowed, file, &what, depth)
}

/// A log or a home, copied before the last recovery.
#[derive(Clone, Debug)]
pub struct OldFile {
    /// Index of its database.
    pub file: usize,
    /// Its place.
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Puts back an older file: an error or a right answer.
pub fn older_file(
    setting: &Setting,
    disk: &SimDisk,
    old: &OldFile,
    allowed: &Allowed,
    depth: usize,
) -> Result<(), Violation> {
    // An unmarked home is read without a log, like any restored file.
    let marked = |bytes: &[u8]| home::MARK == bytes.get(READ_VERSION).copied().unwrap_or(0);
    let now = disk.snapshot_file(&path(old.file)).unwrap_or_default();
    if !marked(&now) || (old.path == path(old.file) && !marked(&old.bytes)) {
        return Ok(());
    }
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    let swapped = disk.survive();
    swapped.set_capacity(ROOMY);
    swapped.put_file(&old.path, &old.bytes);
    let is_home = old.path == path(old.file);
    if !is_home && looks_cut_off(&now, &swapped, &old.path)
        || is_home && looks_unbegun(&old.bytes, &swapped, &log_path(old.file))
    {
        return Ok(());
    }
    error_or_right(setting, &swapped, allowed, old.file, &format!("an older {}", old.path.display()), depth)
}

/// Whether a power cut before a session's first flush would also leave this log at `path` beside
/// `home`: then home alone counts (rule SlotWithFirstRecord; `docs/faults.md`).
fn looks_cut_off(home: &[u8], disk: &SimDisk, path: &Path) -> bool {
    let log = LogFile::open(disk, path, OpenMode::ReadOnly).ok().flatten();
    let slots = log.and_then(|log| log.slots().ok()).unwrap_or_default();
    let Some(newest) = slots.first() else { return false };
    mark(home).is_some_and(|mark| mark.tentative && follows_session(mark.session, newest.session))
}

/// Whether a power cut within a session's first flush would also leave `home` beside this log at
/// `path`: the mark of the session before, and no record that says that a later mark was flushed
/// (rule MarkWithFirstRecord; `docs/faults.md`).
fn looks_unbegun(home: &[u8], disk: &SimDisk, path: &Path) -> bool {
    let follows = |log: &LogFile| -> Option<bool> {
        let (mark, newest) = (mark(home)?, log.slots().ok()?.into_iter().next()?);
        let is_next = newest.live && follows_session(newest.session, mark.session) && mark.tid == mark.whole;
        Some(is_next && !log.live_records(&newest).ok()?.is_flushed)
    };
    LogFile::open(disk, path, OpenMode::ReadOnly).ok().flatten().as_ref().and_then(follows).unwrap_or(false)
}

/// The path of a log.
pub fn log_path(file: usize) -> PathBuf {
    let mut log = path(file).into_os_string();
    log.push(LOG_SUFFIX);
    log.into()
}

/// Another program writes a file anew, and flushes it: of a log, the seal is gone.
pub fn write_again(disk: &SimDisk, path: &Path) -> io::Result<()> {
    let file = disk.open(path, OpenMode::ReadWrite)?;
    let bytes = disk.snapshot_file(path).unwrap_or_default();
    file.set_len(0).and_then(|()| file.write_at(&bytes, 0)).and_then(|()| file.sync())
}

fn error_or_right(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &Allowed,
    file: usize,
    damage: &str,
    depth: usize,
) -> Result<(), Violation> {
    let level = level(depth);
    level.boot(HookDisk::new(disk.clone(), None));
    if let Ok(seen) = see(&level, setting, disk, file) {
        let bad = |why: String| Violation::on(disk, format!("{damage}: {why}"));
        allowed.find(seen.prints).map_err(bad)?;
        if let Some(db) = &seen.connections[file] {
            intact(db, FILES[file]).map_err(bad)?;
        }
    }
    level.halt();
    Ok(())
}
