//! Checks a disk after a crash, through onewrite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onewrite_core::disk::sim::{SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::home;
use onewrite_core::inspect::layout::home::HEADER_BYTES;
use onewrite_core::inspect::layout::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, slot};
use onewrite_core::inspect::{LogFile, log_path};
use onewrite_core::{Engine, Error};
use parking_lot::Mutex;

use crate::hook::{HookDisk, Operation, Point};
use crate::model::{ASSIGNED, Plan, State, Taste, same};
use crate::pager::{Client, Course};

/// The path of the database on every simulated disk.
pub const DB: &str = "db";

/// In bytes: a disk that does not fill up.
pub const ROOMY: u64 = 1 << 30;

/// The disk of a history, with rules of a system that are drawn.
pub fn drawn_disk(rng: &mut SplitMix64, atomic_unit: u32, trace: bool) -> SimConfig {
    let (sync_covers_creation, as_windows) = (rng.below(2) == 0, rng.below(2) == 0);
    SimConfig { atomic_unit, sync_covers_creation, capacity: ROOMY, as_windows, trace, ..SimConfig::default() }
}

/// A broken promise, with the disk's operations if traced.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The promise, and the state found instead.
    pub what: String,
    /// Operations of the disk.
    pub trace: Vec<String>,
    /// The history's steps.
    pub notes: Vec<String>,
}

impl Violation {
    /// A violation on `disk`.
    pub fn on(disk: &SimDisk, what: impl Into<String>) -> Self {
        Self { what: what.into(), trace: disk.trace().iter().map(ToString::to_string).collect(), notes: Vec::new() }
    }
}

/// Counters of a campaign.
#[derive(Debug, Default)]
pub struct Counts {
    /// Checked crashes and kills.
    pub crashes: AtomicU64,
    /// Committed transactions.
    pub commits: AtomicU64,
}

/// One history's settings.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The database's options.
    pub options: Vec<(String, String)>,
    /// The kind of its transactions.
    pub taste: Taste,
    /// Shared counters.
    pub counts: Arc<Counts>,
    /// Whether committed transactions survive crashes (in all schemes but `off`).
    pub durable: bool,
    /// Whether `secure_delete` is on.
    pub wipes: bool,
}

/// The oracle of whole states.
pub type Oracle = crate::oracle::Oracle<Arc<State>>;

/// An oracle shared with crash points.
pub type SharedOracle = Arc<Mutex<Oracle>>;

/// Connects through an engine (a process) of its own.
pub fn connect(disk: &HookDisk, setting: &Setting) -> Result<Client, String> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    open(&engine_on(shared.clone()), shared, setting).map_err(|e| format!("cannot open after a crash: {e}"))
}

/// An engine of a simulated process: none forks, and each call would ask for the process's number.
pub fn engine_on(disk: Arc<dyn Disk>) -> Arc<Engine> {
    Engine::in_process(disk, || 0)
}

/// Opens a connection.
pub fn open(engine: &Arc<Engine>, disk: Arc<dyn Disk>, setting: &Setting) -> onewrite_core::Result<Client> {
    let mut conn = engine.open(Path::new(DB), OpenMode::Create, &setting.options)?;
    conn.note_secure_delete(if setting.wipes { "on" } else { "off" });
    Ok(Client::new(conn, disk, Path::new(DB)))
}

/// Reads every page; returns the state's index in `allowed` (the last of equal ones).
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
    let found = left.last().copied().ok_or_else(|| "no state".to_owned())?;
    client.check_kept(&allowed[found])?;
    Ok(found)
}

/// Reads every page of the state that the client's transaction has read before.
pub fn read_again(client: &mut Client, state: &State) -> Result<(), String> {
    let mut page = vec![0; state.page_bytes];
    for number in 1..=state.count() {
        client.read(number, &mut page).map_err(|e| format!("a read fails: {e} ({e:?})"))?;
        if !same(number, &page, &state.pages[number as usize - 1]) {
            return Err(format!("page {number} of a snapshot changed"));
        }
    }
    Ok(())
}

/// Ends a transaction on `base` as SQLite does; others may have been first. `stale`: `base` was not
/// the newest state.
pub fn end_write(
    client: &mut Client,
    written: onewrite_core::Result<()>,
    stale: bool,
    base: Arc<State>,
    course: Course,
) -> Result<(), String> {
    match written {
        Ok(()) if stale => Err("a stale snapshot was written on".into()),
        Ok(()) => {
            if !course.commit || course.undo_prepared {
                client.reading = Some(base);
            }
            Ok(())
        }
        Err(Error::Busy(_) | Error::BusySnapshot) => {
            let _ = client.roll_back();
            client.end().map_err(|e| format!("end: {e}"))
        }
        Err(e) => {
            // SQLite does so after a failed commit.
            let _ = client.roll_back();
            let _ = client.end();
            Err(format!("write: {e} ({e:?})"))
        }
    }
}

/// Whether the simulated disk has failed, now or before.
pub fn is_fault(what: &str) -> bool {
    ["injected fault", "a flush before it failed", "closed to use after a failure", "Poisoned("]
        .iter()
        .any(|said| what.contains(said))
}

/// Whether the simulated disk had no room.
pub fn is_full(what: &str) -> bool {
    what.contains("no storage space")
}

/// Whether a connection that only reads found a file that a writer has to recover.
pub fn asks_for_writer(what: &str) -> bool {
    ["a read-only connection", "a connection that may write"].iter().any(|said| what.contains(said))
}

/// Whether a process uses home, or has left it so.
pub fn is_marked(disk: &SimDisk) -> bool {
    disk.snapshot_file(Path::new(DB)).is_some_and(|home| home::mark(&home).is_some())
}

/// After a clean close home is a plain file with `state`. A crash while the mark came off may have
/// left it longer until the next write.
pub fn home_is_plain(disk: &SimDisk, state: &State, crashed: bool) -> Result<(), String> {
    let bytes = disk.snapshot_file(Path::new(DB)).unwrap_or_default();
    if home::mark(&bytes).is_some() {
        return Err("the mark is on after a clean close".into());
    }
    // A crash may leave part of the mark's write on an empty file.
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

/// After a clean close under `secure_delete` the log has only zeros behind its slots (rule
/// NothingLeftBehind).
pub fn log_is_empty(disk: &SimDisk) -> Result<(), String> {
    let path = log_path(Path::new(DB));
    let Some(log) = LogFile::open(disk, &path, OpenMode::ReadOnly).map_err(|e| e.to_string())? else { return Ok(()) };
    let slots = log.slots().map_err(|e| e.to_string())?;
    let Some(slot) = slots.first() else { return Ok(()) };
    let bytes = disk.snapshot_file(&path).unwrap_or_default();
    let ring = bytes.get(slot.ring_at() as usize..).unwrap_or_default();
    match ring.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of the ring can be read after a clean close")),
    }
}

/// One of the states that `what` may leave behind a recovery must survive another crash.
fn survives(setting: &Setting, again: &SimDisk, what: &str, allowed: &[Arc<State>]) -> Result<(), Violation> {
    setting.counts.crashes.fetch_add(1, Ordering::Relaxed);
    let bad = |error: String| Violation::on(again, format!("{error}, after recovery, {what} and a crash"));
    let mut client = connect(&HookDisk::new(again.clone(), None), setting).map_err(bad)?;
    let (_, bytes) = client.begin().map_err(|e| bad(e.to_string()))?;
    read_all(&mut client, bytes, allowed).map(drop).map_err(bad)
}

/// Cuts the power within the session that follows a recovery.
#[derive(Default)]
struct NextSession {
    /// The states that a cut may leave now; empty: none is made.
    allowed: Mutex<Vec<Arc<State>>>,
    found: Mutex<Option<Violation>>,
}

impl NextSession {
    fn point(self: Arc<Self>, setting: &Setting, mut rng: SplitMix64) -> Point {
        let setting = setting.clone();
        Box::new(move |_, inside| {
            let allowed = self.allowed.lock().clone();
            if allowed.is_empty() || rng.below(12) > 0 || self.found.lock().is_some() {
                return;
            }
            let cut = inside().crash(rng.next_u64());
            *self.found.lock() = survives(&setting, &cut, "a part of the next session", &allowed).err();
        })
    }

    fn allow(&self, states: Vec<Arc<State>>) {
        *self.allowed.lock() = states;
    }

    fn verdict(&self) -> Result<(), Violation> {
        self.found.lock().take().map_or(Ok(()), Err)
    }
}

/// Checks the disk after a crash (or a kill): it holds a state of `allowed`; another recovery, also
/// after a crash in the first one, gives the same; the database can be used and closed.
/// `unflushed`: the states that a crash may leave before recovery has flushed a killed process's
/// writes.
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
    let next = Arc::new(NextSession::default());
    let hooked = HookDisk::new(after.clone(), Some(next.clone().point(setting, rng.clone())));
    let bad = |what: String| Violation::on(&after, what);
    let marked = is_marked(disk);
    let mut client = connect(&hooked, setting).map_err(bad)?;
    let (_, bytes) = client.begin().map_err(|e| bad(format!("recovery fails: {e}")))?;
    let found = read_all(&mut client, bytes, allowed).map_err(bad)?;
    let found = allowed[found].clone();
    client.end().map_err(|e| bad(format!("cannot end a read after recovery: {e}")))?;
    if depth > 0 {
        crash_recovery(setting, disk, unflushed, &found, rng, depth - 1)?;
    }
    // A plain file, after stepping aside, follows SQLite's rules.
    let mut own = rng.clone();
    if marked && own.below(2) == 0 {
        survives(setting, &after.crash(own.next_u64()), "a read", std::slice::from_ref(&found))?;
    }
    let mut last = found.clone();
    let wrote = rng.below(3) == 0;
    if wrote {
        client.begin().map_err(|e| bad(format!("cannot read after recovery: {e}")))?;
        let plan = Plan::draw(&last, setting.taste, rng);
        let course = Course::COMMIT;
        // Of a killed process, all may not be on the medium yet.
        let unflushed = unflushed.iter().chain([&found, &plan.next]);
        next.allow(unflushed.cloned().collect());
        let written = client.write(&last, &plan, course, &mut |_| {}, &mut || {});
        written.map_err(|e| bad(format!("cannot write after recovery: {e}")))?;
        client.end().map_err(|e| bad(format!("cannot end a write after recovery: {e}")))?;
        last = plan.next;
        survives(setting, &after.crash(rng.next_u64()), "a commit", std::slice::from_ref(&last))?;
        next.allow(vec![last.clone()]);
    }
    client.close().map_err(|e| bad(format!("cannot close after recovery: {e}")))?;
    next.verdict()?;
    if setting.options.iter().any(|(name, value)| name == "sticky" && value == "1") {
        return Ok(());
    }
    home_is_plain(&after, &last, !wrote).map_err(bad)?;
    // The log of a crashed close waits for the next session that writes.
    if setting.wipes && (marked || wrote) { log_is_empty(&after).map_err(bad) } else { Ok(()) }
}

/// Flips a bit in a slot of the log after a crash: an error, or a state of `allowed`.
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

/// Home and log, copied one after the other.
#[derive(Clone)]
pub struct Copies {
    home: Vec<u8>,
    log: Vec<u8>,
    /// States that either may lead to.
    states: Vec<Arc<State>>,
}

impl Copies {
    /// Copies the files of a live system; `None` unless home is marked.
    pub fn of(disk: &SimDisk, states: Vec<Arc<State>>) -> Option<Copies> {
        let read = |path: &Path| disk.snapshot_file(path);
        let (home, log) = (read(Path::new(DB))?, read(&log_path(Path::new(DB)))?);
        home::mark(&home).map(|_| Copies { home, log, states })
    }

    /// Home and log of different moments in one session: an error, or a state between them (rule
    /// HomeFitsLog).
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

fn refused_or_right(setting: &Setting, disk: &SimDisk, allowed: &[Arc<State>]) -> Result<(), String> {
    let hooked = HookDisk::new(disk.clone(), None);
    let seen = connect(&hooked, setting).and_then(|mut client| {
        let (_, bytes) = client.begin().map_err(|e| e.to_string())?;
        Ok((client, bytes))
    });
    let Ok((mut client, bytes)) = seen else { return Ok(()) };
    read_all(&mut client, bytes, allowed).map(|_| ())
}

fn crash_recovery(
    setting: &Setting,
    disk: &SimDisk,
    unflushed: &[Arc<State>],
    found: &Arc<State>,
    rng: &mut SplitMix64,
    depth: u32,
) -> Result<(), Violation> {
    let certain = disk.crash_choices().is_empty();
    // Until recovery has ended, a crash may lose unflushed writes. A cut transaction may be whole
    // under part of a recovery's record: no reader had seen it by then (rule OneNumberOneState).
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
        // All operations of a short recovery, and a sample of others.
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
