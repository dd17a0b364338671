//! What must hold of a disk after a crash: the oracle, and the ways it looks at a disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onewrite_core::Engine;
use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::home;
use onewrite_core::inspect::layout::home::HEADER_BYTES;
use onewrite_core::inspect::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, SECTOR_BYTES, slot};
use onewrite_core::inspect::{LogFile, is_wiped, log_path};
use parking_lot::Mutex;

use crate::hook::{HookDisk, Operation};
use crate::model::{ASSIGNED, Plan, State, Taste, same};
use crate::pager::{Client, Course};

/// The path of the database on every simulated disk.
pub const DB: &str = "db";

/// Capacity of a disk that is not full.
pub const ROOMY: u64 = 1 << 30;

/// A rule that did not hold, with what was done to the disk until then (if it was traced).
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which rule, and how.
    pub what: String,
    /// Operations of the disk.
    pub trace: Vec<String>,
    /// What the history did.
    pub notes: Vec<String>,
}

impl Violation {
    /// On `disk`.
    pub fn on(disk: &SimDisk, what: impl Into<String>) -> Self {
        Self { what: what.into(), trace: disk.trace().iter().map(ToString::to_string).collect(), notes: Vec::new() }
    }
}

/// What all histories of a campaign share.
#[derive(Debug, Default)]
pub struct Counts {
    /// Crashes and kills checked.
    pub crashes: AtomicU64,
    /// Transactions committed by histories.
    pub commits: AtomicU64,
}

/// The settings of one history.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Options of the database.
    pub options: Vec<(String, String)>,
    /// Its transactions.
    pub taste: Taste,
    /// The campaign's counters.
    pub counts: Arc<Counts>,
    /// Whether crashes keep what was committed (all schemes but `off`).
    pub durable: bool,
}

/// The oracle of whole states.
pub type Oracle = crate::oracle::Oracle<Arc<State>>;

/// An oracle shared with the crash points of its history.
pub type SharedOracle = Arc<Mutex<Oracle>>;

/// A connection to the database on `disk`, in an engine (a process) of its own.
pub fn connect(disk: &HookDisk, setting: &Setting) -> Result<Client, String> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    open(&Engine::new(shared.clone()), shared, setting).map_err(|e| format!("cannot open after a crash: {e}"))
}

/// A connection of `engine`.
pub fn open(engine: &Arc<Engine>, disk: Arc<dyn Disk>, setting: &Setting) -> onewrite_core::Result<Client> {
    let conn = engine.open(Path::new(DB), OpenMode::Create, &setting.options)?;
    Ok(Client::new(conn, disk, Path::new(DB)))
}

/// Reads everything; the client reads. Returns which of `allowed` it is (the last of equal ones).
pub fn read_all(client: &mut Client, bytes: u64, allowed: &[Arc<State>]) -> Result<usize, String> {
    let mut left: Vec<usize> = (0..allowed.len()).filter(|i| allowed[*i].bytes() as u64 == bytes).collect();
    if left.is_empty() {
        let sizes: Vec<_> = allowed.iter().map(|s| s.bytes()).collect();
        return Err(format!("the database has {bytes} bytes, the states that may be there have {sizes:?}"));
    }
    let mut stated = [0; 2];
    if bytes > 0 {
        client.connection().read_at(&mut stated, 16).map_err(|e| format!("cannot read the page size: {e}"))?;
    }
    let stated = match u16::from_be_bytes(stated) {
        1 => 65536,
        n => usize::from(n),
    };
    let Some(size) = left.iter().map(|i| allowed[*i].page_bytes).find(|size| *size == stated) else {
        return Err(format!("the database has pages of {stated} bytes"));
    };
    left.retain(|i| allowed[*i].page_bytes == size);
    let mut page = vec![0; size];
    for number in 1..=allowed[left[0]].count() {
        let read = client.read(number, &mut page).map_err(|e| format!("cannot read page {number}: {e}"))?;
        let before = left.clone();
        left.retain(|i| read == size && same(number, &page, &allowed[*i].pages[number as usize - 1]));
        if left.is_empty() {
            let first = before.last().map(|i| &allowed[*i].pages[number as usize - 1]);
            let assigned = |n: &usize| number == 1 && ASSIGNED.iter().any(|range| range.contains(n));
            let differs = first.and_then(|p| (0..size).find(|n| p.get(*n) != page.get(*n) && !assigned(n)));
            return Err(format!(
                "page {number} is of none of the states that pages 1 to {} are of ({before:?} of {}; byte {differs:?} differs)",
                number - 1,
                allowed.len()
            ));
        }
    }
    left.last().copied().ok_or_else(|| "no state".to_owned())
}

/// After a clean close home is a plain file with `state`. It is as long as that, but a crash while the
/// mark came off may have left it longer until the next write.
pub fn home_is_plain(disk: &SimDisk, state: &State, crashed: bool) -> Result<(), String> {
    let bytes = disk.snapshot_file(Path::new(DB)).unwrap_or_default();
    if home::mark(&bytes).is_some() {
        return Err("the mark is on after a clean close".into());
    }
    // What a crash left of an attempt to place the mark on an empty file does no harm.
    if state.pages.is_empty() && bytes.len() <= HEADER_BYTES {
        return Ok(());
    }
    if bytes.len() != state.bytes() && !(crashed && bytes.len() > state.bytes()) {
        return Err(format!("home has {} bytes after a clean close instead of {}", bytes.len(), state.bytes()));
    }
    for (n, page) in bytes.chunks(state.page_bytes.max(1)).take(state.pages.len()).enumerate() {
        let number = n as u32 + 1;
        if !same(number, page, &state.pages[n]) {
            return Err(format!("page {number} of home is wrong after a clean close"));
        }
    }
    if !bytes.is_empty() && bytes[24..28] != bytes[92..96] {
        return Err("home's change counter is not the one its size is valid for".into());
    }
    Ok(())
}

/// After a clean close the log has nothing but zeros and tombstones behind its slots (rule LogWiped).
pub fn log_is_empty(disk: &SimDisk) -> Result<(), String> {
    let path = log_path(Path::new(DB));
    let Some(log) = LogFile::open(disk, &path, OpenMode::ReadOnly).map_err(|e| e.to_string())? else { return Ok(()) };
    let slots = log.slots().map_err(|e| e.to_string())?;
    let Some(slot) = slots.first() else { return Ok(()) };
    let bytes = disk.snapshot_file(&path).unwrap_or_default();
    let ring = bytes.get(slot.ring_at() as usize..).unwrap_or_default();
    match ring.chunks(SECTOR_BYTES).position(|sector| !is_wiped(sector)) {
        None => Ok(()),
        Some(at) => Err(format!("sector {at} of the ring can be read after a clean close")),
    }
}

/// What somebody was told of behind a recovery, by `what` of a connection that stays open, is there behind another crash.
fn survives(setting: &Setting, again: &SimDisk, what: &str, expected: &Arc<State>) -> Result<(), Violation> {
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    let bad = |error: String| Violation::on(again, format!("{error}, after recovery, {what} and a crash"));
    let mut client = connect(&HookDisk::new(again.clone(), None), setting).map_err(bad)?;
    let (_, bytes) = client.begin().map_err(|e| bad(e.to_string()))?;
    read_all(&mut client, bytes, std::slice::from_ref(expected)).map(drop).map_err(bad)
}

/// Checks the disk that a crash (or a kill) left: one of `allowed` is there, whole; recovering again,
/// also from every crash in the first recovery, gives the same; the database can be used and closed.
/// `unflushed`: what a crash may leave while what a kill left is not flushed yet.
pub fn check(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &[Arc<State>],
    unflushed: &[Arc<State>],
    rng: &mut SplitMix64,
    depth: u32,
) -> Result<(), Violation> {
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    disk.set_capacity(ROOMY);
    let after = disk.survive();
    let hooked = HookDisk::new(after.clone(), None);
    let bad = |what: String| Violation::on(&after, what);
    let marked = disk.snapshot_file(Path::new(DB)).is_some_and(|home| home::mark(&home).is_some());
    let mut client = connect(&hooked, setting).map_err(bad)?;
    let (_, bytes) = client.begin().map_err(|e| bad(format!("recovery fails: {e}")))?;
    let found = read_all(&mut client, bytes, allowed).map_err(bad)?;
    let found = allowed[found].clone();
    client.end().map_err(|e| bad(format!("cannot end a read after recovery: {e}")))?;
    if depth > 0 {
        crash_recovery(setting, disk, unflushed, &found, rng, depth - 1)?;
    }
    // What a reader was shown survives another crash. (A plain file, behind stepping aside, is SQLite's.)
    let mut own = rng.clone();
    if marked && own.below(2) == 0 {
        survives(setting, &after.crash(own.next_u64()), "a read", &found)?;
    }
    let mut last = found.clone();
    let wrote = rng.below(3) == 0;
    if wrote {
        client.begin().map_err(|e| bad(format!("cannot read after recovery: {e}")))?;
        let plan = Plan::draw(&last, setting.taste, rng);
        let course = Course::COMMIT;
        let written = client.write(&last, &plan, course, &mut |_| {}, &mut || {});
        written.map_err(|e| bad(format!("cannot write after recovery: {e}")))?;
        client.end().map_err(|e| bad(format!("cannot end a write after recovery: {e}")))?;
        last = plan.next;
        // What was acknowledged on top of a recovery survives another crash.
        survives(setting, &after.crash(rng.next_u64()), "a commit", &last)?;
    }
    client.close().map_err(|e| bad(format!("cannot close after recovery: {e}")))?;
    if setting.options.iter().any(|(name, value)| name == "sticky" && value == "1") {
        return Ok(());
    }
    home_is_plain(&after, &last, !wrote).map_err(bad)?;
    // What a crash in the midst of a close left of the log waits for the next session that writes.
    if marked || wrote { log_is_empty(&after).map_err(bad) } else { Ok(()) }
}

/// Flips a bit of one of the log's slots on a disk that a crash left: an error, or one of `allowed`.
pub fn rotten_slot(
    setting: &Setting,
    disk: &SimDisk,
    allowed: &[Arc<State>],
    rng: &mut SplitMix64,
) -> Result<(), Violation> {
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    disk.set_capacity(ROOMY);
    let block = disk.atomic_unit().clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX) as usize;
    let (at, bit) = (block * (1 + rng.below(2)) + rng.below(slot::BYTES), rng.below(8) as u8);
    disk.flip_bit(&log_path(Path::new(DB)), at as u64, bit);
    refused_or_right(setting, disk, allowed)
        .map_err(|what| Violation::on(disk, format!("bit {bit} of byte {at} of the log flipped: {what}")))
}

/// Home and log as a program copies them that reads one after the other.
#[derive(Clone)]
pub struct Copies {
    home: Vec<u8>,
    log: Vec<u8>,
    /// States that either may lead to.
    states: Vec<Arc<State>>,
}

impl Copies {
    /// Of `disk`, whose kernel lives; `None` unless home is marked.
    pub fn of(disk: &SimDisk, states: Vec<Arc<State>>) -> Option<Copies> {
        let read = |path: &Path| disk.snapshot_file(path);
        let (home, log) = (read(Path::new(DB))?, read(&log_path(Path::new(DB)))?);
        home::mark(&home).map(|_| Copies { home, log, states })
    }

    /// The home of one moment and the log of another, of one session: an error, or a state that was there between them
    /// (rule HomeFitsLog).
    pub fn check_apart(&self, later: &Copies, setting: &Setting, rng: &mut SplitMix64) -> Result<(), Violation> {
        let session = |copies: &Copies| home::mark(&copies.home).map(|mark| mark.session);
        if session(self) != session(later) {
            return Ok(());
        }
        setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
        let home_first = rng.below(2) == 0;
        let (home, log) = if home_first { (&self.home, &later.log) } else { (&later.home, &self.log) };
        let disk = SimDisk::new(SimConfig { capacity: ROOMY, ..SimConfig::default() });
        disk.put_file(Path::new(DB), home);
        disk.put_file(&log_path(Path::new(DB)), log);
        let states: Vec<_> = self.states.iter().chain(&later.states).cloned().collect();
        let first = if home_first { "home" } else { "the log" };
        refused_or_right(setting, &disk, &states)
            .map_err(|what| Violation::on(&disk, format!("{first} copied first, then the other: {what}")))
    }
}

/// Opening and reading `disk` is an error, or gives one of `allowed`.
fn refused_or_right(setting: &Setting, disk: &SimDisk, allowed: &[Arc<State>]) -> Result<(), String> {
    let hooked = HookDisk::new(disk.clone(), None);
    let seen = connect(&hooked, setting).and_then(|mut client| {
        let (_, bytes) = client.begin().map_err(|e| e.to_string())?;
        Ok((client, bytes))
    });
    let Ok((mut client, bytes)) = seen else { return Ok(()) };
    read_all(&mut client, bytes, allowed).map(|_| ())
}

/// Recovers a copy of `disk` once more and crashes inside.
fn crash_recovery(
    setting: &Setting,
    disk: &SimDisk,
    unflushed: &[Arc<State>],
    found: &Arc<State>,
    rng: &mut SplitMix64,
    depth: u32,
) -> Result<(), Violation> {
    let certain = disk.crash_choices().is_empty();
    // What a kill left in the cache alone may still be lost until recovery has finished. And a transaction that a crash cut may
    // be whole where the record of a recovery was written in part over it: nobody was shown a state by then (rule RecoveryRecord).
    let first = unflushed.iter().position(|state| Arc::ptr_eq(state, found)).filter(|_| certain);
    let allowed = match first {
        None if certain => vec![found.clone()],
        first => unflushed.get(first.unwrap_or(0)..).unwrap_or_default().to_vec(),
    };
    let seen: Arc<Mutex<Option<Violation>>> = Arc::default();
    let (inner, at_point) = (seen.clone(), setting.clone());
    let mut point_rng = SplitMix64::new(rng.next_u64());
    let mut met = 0;
    let point = Box::new(move |_: Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        // All operations of a short recovery; some of a long one, and where recoveries of recoveries follow.
        met += 1;
        let chosen = (depth == 0 && met <= 16) || point_rng.below(8 + met) < 2;
        if chosen && inner.lock().is_none() {
            let crashed = inside().crash(point_rng.next_u64());
            *inner.lock() = check(&at_point, &crashed, &allowed, &allowed, &mut point_rng, depth).err();
        }
    });
    let hooked = HookDisk::new(disk.survive(), Some(point));
    let bad = |what: String| Violation::on(hooked.sim(), format!("recovery of the same disk once more: {what}"));
    let mut client = connect(&hooked, setting).map_err(bad)?;
    let (_, bytes) = client.begin().map_err(|e| bad(e.to_string()))?;
    read_all(&mut client, bytes, std::slice::from_ref(found)).map_err(bad)?;
    drop(client);
    let found = seen.lock().take();
    found.map_or(Ok(()), Err)
}
