//! A disk in memory that counts, fails, tears, reorders and cuts power: [`SimDisk`].
//!
//! A crash leaves each unit, length and name in any state since its last certain one,
//! independently: a list of choices from 0 (surely on the medium) to the newest, which is drawn
//! from a seed, given, or enumerated. To crash *inside* a run, ask its [`SimDisk::ops`], then
//! repeat it with [`SimDisk::stop_after`]`(k)` for each smaller `k`.
//!
//! Not simulated: directories (every parent exists), links, permissions, a live kernel that forgets
//! unflushed data, torn units.

mod bytes;
mod cache;
mod faults;
mod file;
mod locks;
mod mapped;
mod names;
mod rng;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::faults::{CallCounters, Op, TraceEntry};
pub use self::rng::SplitMix64;
use super::mapped::MappedFile;
use super::sync::Mutex;
use super::{Disk, DiskFile, FileId, LockKind, NamesStamp, OpenMode, SharedWords};
pub use crate::base::clock::{Schedule, is_scheduled, point, random, under};
use bytes::Bytes;
use cache::CachedFile;
use faults::{CallFate, Faults, power_off};
use file::SimFile;
use locks::LockTable;
use mapped::Mapped;
use names::{Names, normal};

/// A disk's behaviour.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Bytes written all or nothing: a power of two, at least 512.
    pub atomic_unit: u32,
    /// A file's `sync` makes its creation durable, as on ext4 but not by POSIX.
    pub sync_covers_creation: bool,
    /// Bytes of all files, with reservations.
    pub capacity: u64,
    /// A file that is mapped is not shortened, and there is no flush of all files.
    pub as_windows: bool,
    /// Each open handle of a file is told of a failed flush once, by its next flush, as on Linux
    /// from 4.13 on; else only the caller is.
    pub tells_each: bool,
    /// Keep a trace.
    pub trace: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            atomic_unit: 4096,
            sync_covers_creation: false,
            capacity: 1 << 30,
            as_windows: false,
            tells_each: false,
            trace: false,
        }
    }
}

/// Clones are handles to the same disk.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<SimState>>,
}

#[derive(Clone, Debug)]
struct Inode {
    data: CachedFile,
    label: Arc<Path>,
    reserved: u64,
    handles: u64,
    locks: LockTable,
    words: Arc<SharedWords>,
    /// Failed flushes.
    failures: u64,
    mapped: Option<Arc<Mapped>>,
}

impl Inode {
    fn write(&mut self, buf: &[u8], offset: u64) {
        let len = self.data.view().len();
        self.data.write(buf, offset as usize);
        self.show(len.min(offset as usize), offset as usize + buf.len());
    }

    fn set_len(&mut self, len: u64) {
        let before = self.data.view().len();
        self.data.set_len(len as usize);
        self.show(before.min(len as usize), before.max(len as usize));
    }

    /// To those that map the file. Panics where the system's temporary files cannot be written.
    fn show(&self, from: usize, to: usize) {
        if let Some(mapped) = &self.mapped {
            mapped.change(self.data.view(), from, to).expect("a temporary file for what is mapped");
        }
    }

    fn map(&mut self, bytes: u64) -> io::Result<Option<MappedFile>> {
        let view = self.data.view();
        match &self.mapped {
            Some(mapped) => mapped.map(bytes),
            None => self.mapped.insert(Arc::new(Mapped::of(view)?)).map(bytes),
        }
    }

    fn flush(&mut self, fate: CallFate, from: u64) {
        match fate {
            CallFate::Run | CallFate::Short(_) => self.data.flush(from as usize),
            CallFate::Fail(_) => self.data.fail_flush(),
            CallFate::Cut => {}
        }
    }
}

#[derive(Clone, Debug)]
struct SimState {
    config: SimConfig,
    inodes: BTreeMap<u64, Inode>,
    names: Names,
    numbers: u64,
    faults: Faults,
    /// Bytes compare faster than path components.
    counters: BTreeMap<OsString, CallCounters>,
    trace: Vec<TraceEntry>,
    /// The device's cache may hold something.
    has_sent: bool,
}

impl SimDisk {
    /// Panics unless the atomic unit is a power of two of at least 512.
    pub fn new(config: SimConfig) -> Self {
        assert!(config.atomic_unit.is_power_of_two() && config.atomic_unit >= 512, "atomic unit");
        Self::from_state(SimState {
            config,
            inodes: BTreeMap::new(),
            names: Names::default(),
            numbers: 0,
            faults: Faults::default(),
            counters: BTreeMap::new(),
            trace: Vec::new(),
            has_sent: false,
        })
    }

    /// Bytes written all or nothing.
    pub fn atomic_unit(&self) -> u32 {
        self.state.lock().config.atomic_unit
    }

    /// Mutating operations ([`Op::mutates`]), but for the one in which power was cut.
    pub fn ops(&self) -> u64 {
        self.state.lock().faults.ops()
    }

    /// Cuts power in the mutating operation behind `ops` more, which stays pending; it and later
    /// calls fail.
    pub fn stop_after(&self, ops: u64) {
        self.state.lock().faults.stop_after(ops);
    }

    /// Whether power is off.
    pub fn is_off(&self) -> bool {
        self.state.lock().faults.is_off()
    }

    /// Fails the `nth` next `op` (from 1). Half of a failing `write_at` reaches the cache (none,
    /// below a sector). Bytes of a failing `sync` or `write_durable_at` look clean, perhaps not on
    /// the medium: only writing and flushing them again helps.
    pub fn fail_nth(&self, op: Op, nth: u64, kind: ErrorKind) {
        self.state.lock().faults.add(op, nth, CallFate::Fail(kind));
    }

    /// Shortens the `nth` next read call; 0: as if the file ended.
    pub fn shorten_nth_read(&self, nth: u64, len: usize) {
        self.state.lock().faults.add(Op::Read, nth, CallFate::Short(len));
    }

    /// Sets the capacity in bytes. A write beyond it fails with `StorageFull`, its first sectors
    /// cached.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().config.capacity = bytes;
    }

    /// Calls so far, over all files.
    pub fn counters(&self) -> CallCounters {
        self.counters_of("")
    }

    /// Calls so far on paths that end in `suffix`.
    pub fn counters_of(&self, suffix: &str) -> CallCounters {
        let state = self.state.lock();
        let mut sum = CallCounters::default();
        let suffixed = |path: &OsStr| path.as_encoded_bytes().ends_with(suffix.as_bytes());
        state.counters.iter().filter(|(path, _)| suffixed(path)).for_each(|(_, counters)| sum += counters);
        sum
    }

    /// Sets all counters to zero.
    pub fn reset_counters(&self) {
        self.state.lock().counters.clear();
    }

    /// History of this disk and its origins, if configured.
    pub fn trace(&self) -> Vec<TraceEntry> {
        self.state.lock().trace.clone()
    }

    /// All names, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.state.lock().names.paths().cloned().collect()
    }

    /// The bytes that readers see.
    pub fn snapshot_file(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let ino = state.names.get(&normal(path))?;
        Some(state.inodes[&ino].data.view().to_vec())
    }

    /// Bytes of all files with a name, as readers see them.
    pub fn used_bytes(&self) -> u64 {
        let state = self.state.lock();
        let inodes = state.names.paths().filter_map(|path| state.names.get(path));
        inodes.map(|ino| state.inodes[&ino].data.view().len() as u64).sum()
    }

    /// Puts name and content on the medium; open files keep their number.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) {
        let path = normal(path);
        let mut state = self.state.lock();
        let ino = state.names.get(&path).unwrap_or_else(|| state.make_inode(&path));
        state.names.set_durable(&path, ino);
        let data = CachedFile::at_rest(state.config.atomic_unit as usize, bytes.into());
        let inode = state.inode(ino);
        let before = std::mem::replace(&mut inode.data, data).view().len();
        inode.show(0, before.max(bytes.len()));
    }

    /// Flips a bit on medium and in cache. False without such a byte.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u8) -> bool {
        let mut state = self.state.lock();
        let Some(ino) = state.names.get(&normal(path)) else { return false };
        let Ok(offset) = usize::try_from(offset) else { return false };
        let inode = state.inode(ino);
        let flips = inode.data.flip_bit(offset, bit);
        if flips {
            inode.show(offset, offset + 1);
        }
        flips
    }

    /// Options of each choice of a crash now.
    pub fn crash_choices(&self) -> Vec<usize> {
        let state = self.state.lock();
        let mut choices = state.names.choices();
        state.durable_inodes().for_each(|(_, inode)| choices.extend(inode.data.choices()));
        choices
    }

    /// A crash with these choices. Panics unless there is one for each of [`Self::crash_choices`].
    pub fn crash_with(&self, choices: &[usize]) -> SimDisk {
        let mut next = choices.iter();
        let crashed = self.crash_by(&mut |count| {
            let choice = *next.next().expect("a choice for each thing that is not certain");
            assert!(choice < count, "choice {choice} of {count}");
            choice
        });
        assert!(next.next().is_none(), "more choices than things that are not certain");
        crashed
    }

    /// A crash drawn from a seed: of all pending, nearly none, nearly all, some, all but one, or
    /// one arrived.
    pub fn crash(&self, seed: u64) -> SimDisk {
        let mut rng = SplitMix64::new(seed);
        let (drawn, newest) = (rng.below(10), rng.below(2) == 1);
        let Some(&usual_in_16) = [16, 16, 15, 15, 8, 8, 0, 0].get(drawn) else {
            let odd = rng.below(self.crash_choices().len().max(1));
            let mut index = 0;
            return self.crash_by(&mut |count| {
                index += 1;
                match (index - 1 == odd, newest) {
                    (true, true) => rng.below(count - 1),
                    (true, false) => 1 + rng.below(count - 1),
                    (false, true) => count - 1,
                    (false, false) => 0,
                }
            });
        };
        self.crash_by(&mut |count| match rng.below(16) < usual_in_16 {
            true if newest => count - 1,
            true => 0,
            false => rng.below(count),
        })
    }

    /// A crash; `choose` picks a number below its argument for each choice.
    pub fn crash_by(&self, choose: &mut dyn FnMut(usize) -> usize) -> SimDisk {
        let state = self.state.lock();
        let mut chosen = Vec::new();
        let mut choose = |count| {
            let choice = choose(count);
            chosen.push(choice);
            choice
        };
        let mut after = SimState { names: state.names.crash(&mut choose), ..state.without_processes() };
        for (ino, inode) in state.durable_inodes() {
            let bytes = inode.data.crash(&mut choose);
            let data = inode.data.at_rest_with(bytes);
            after.inodes.insert(*ino, Inode { data, reserved: 0, ..inode.without_processes() });
        }
        after.end(|| format!("crash {chosen:?}"));
        Self::from_state(after)
    }

    /// Every crash, from nothing arrived to everything: the product of [`Self::crash_choices`].
    pub fn crashes(&self) -> impl Iterator<Item = (Vec<usize>, SimDisk)> + use<> {
        let disk = self.survive();
        let counts = disk.crash_choices();
        let mut next = Some(vec![0; counts.len()]);
        std::iter::from_fn(move || {
            let choices = next.take()?;
            let mut following = choices.clone();
            for (choice, count) in following.iter_mut().zip(&counts) {
                *choice = (*choice + 1) % count;
                if *choice != 0 {
                    next = Some(following);
                    break;
                }
            }
            let crashed = disk.crash_with(&choices);
            Some((choices, crashed))
        })
    }

    /// The processes die and the kernel lives: writes are visible, pending ones stay so; locks and
    /// nameless files are gone.
    pub fn survive(&self) -> SimDisk {
        let state = self.state.lock();
        let mut after = SimState { names: state.names.clone(), ..state.without_processes() };
        for (ino, inode) in state.durable_inodes() {
            after.inodes.insert(*ino, inode.without_processes());
        }
        after.end(|| "kill".to_owned());
        Self::from_state(after)
    }

    fn from_state(mut state: SimState) -> Self {
        state.collect();
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn handle(&self, state: &mut SimState, ino: u64, writable: bool) -> Arc<dyn DiskFile> {
        let inode = state.inode(ino);
        inode.handles += 1;
        let failures = inode.failures;
        let handle = state.next_number();
        Arc::new(SimFile::new(self.state.clone(), ino, handle, writable, failures))
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let path = normal(path);
        let mut state = self.state.lock();
        let ino = match (state.names.get(&path), mode) {
            (Some(ino), _) => {
                state.begin(Op::Open, &path, 0, 0)?.error()?;
                ino
            }
            (None, OpenMode::Create) => {
                let fate = state.begin(Op::Create, &path, 0, 0)?;
                if let CallFate::Fail(_) = fate {
                    fate.error()?;
                }
                let ino = state.make_inode(&path);
                state.names.set(&path, Some(ino));
                fate.error()?;
                ino
            }
            (None, _) => {
                state.begin(Op::Open, &path, 0, 0)?.error()?;
                return Err(ErrorKind::NotFound.into());
            }
        };
        Ok(self.handle(&mut state, ino, mode != OpenMode::ReadOnly))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let path = normal(path);
        let mut state = self.state.lock();
        let fate = state.begin(Op::Remove, &path, 0, 0)?;
        if let CallFate::Fail(_) = fate {
            fate.error()?;
        }
        state.names.get(&path).ok_or(ErrorKind::NotFound)?;
        state.names.set(&path, None);
        state.collect();
        fate.error()
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let (one, other) = (normal(one), normal(other));
        let mut state = self.state.lock();
        let fate = state.begin(Op::Exchange, &one, 0, 0)?;
        if let CallFate::Fail(_) = fate {
            fate.error()?;
        }
        for path in [&one, &other] {
            state.names.get(path).ok_or(ErrorKind::NotFound)?;
        }
        state.names.exchange(&one, &other);
        fate.error()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from), normal(to));
        let mut state = self.state.lock();
        let fate = state.begin(Op::Exchange, &from, 0, 0)?;
        if let CallFate::Fail(_) = fate {
            fate.error()?;
        }
        state.names.get(&from).ok_or(ErrorKind::NotFound)?;
        if state.names.get(&to).is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.names.rename(&from, &to);
        fate.error()
    }

    fn names_beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let path = normal(path);
        let state = self.state.lock();
        state.powered()?;
        Ok(state.names.paths().filter(|name| name.parent() == path.parent()).cloned().collect())
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        let state = self.state.lock();
        state.powered()?;
        Ok(state.names.get(&normal(path)).map(|ino| FileId { dev: 0, ino }))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(normal(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.state.lock();
        state.powered()?;
        Ok(state.names.get(&normal(path)).is_some())
    }

    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        let path = normal(path);
        let mut state = self.state.lock();
        state.begin(Op::SyncDir, &path, 0, 0)?.error()?;
        state.names.sync_dir_of(&path);
        state.collect();
        Ok(())
    }

    fn sync_all_beside(&self, path: &Path) -> io::Result<()> {
        if !self.syncs_all() {
            return Err(ErrorKind::Unsupported.into());
        }
        let path = normal(path);
        let mut state = self.state.lock();
        let fate = state.begin(Op::Sync, &path, 0, 0)?;
        for inode in state.inodes.values_mut() {
            inode.flush(fate, 0);
        }
        state.end_flush(fate);
        fate.error()?;
        state.names.sync_all();
        state.collect();
        Ok(())
    }

    fn syncs_all(&self) -> bool {
        !self.state.lock().config.as_windows
    }

    fn system_start(&self) -> Option<u64> {
        Some(self.state.lock().names.start())
    }

    fn names_stamp(&self, _: &Path) -> io::Result<Option<NamesStamp>> {
        let state = self.state.lock();
        state.powered()?;
        Ok(Some(state.names.stamp()))
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.begin(Op::TempFile, &normal(near), 0, 0)?.error()?;
        let ino = state.make_inode(Path::new(""));
        Ok(self.handle(&mut state, ino, true))
    }
}

impl SimState {
    fn begin(&mut self, op: Op, path: &Path, offset: u64, len: u64) -> io::Result<CallFate> {
        let number = self.faults.ops();
        let fate = self.faults.fate(op)?;
        match self.counters.get_mut(path.as_os_str()) {
            Some(counters) => counters.count(op, len),
            None => self.counters.entry(path.into()).or_default().count(op, len),
        }
        if self.config.trace {
            let failure = fate.error().err().map(|e| e.to_string());
            self.trace.push(TraceEntry::Call { number, op, path: path.to_owned(), offset, len, failure });
        }
        Ok(fate)
    }

    fn begin_on(&mut self, op: Op, ino: u64, offset: u64, len: u64) -> io::Result<CallFate> {
        let path = self.inode(ino).label.clone();
        self.begin(op, &path, offset, len)
    }

    fn end_flush(&mut self, fate: CallFate) {
        if fate == CallFate::Cut || !std::mem::take(&mut self.has_sent) {
            return;
        }
        for inode in self.inodes.values_mut() {
            match fate {
                CallFate::Fail(_) => inode.data.lose_sent(),
                _ => inode.data.flush_sent(),
            }
        }
    }

    fn powered(&self) -> io::Result<()> {
        if self.faults.is_off() { Err(power_off()) } else { Ok(()) }
    }

    fn inode(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("an inode lives as long as a name or a handle")
    }

    fn make_inode(&mut self, label: &Path) -> u64 {
        let ino = self.next_number();
        let data = CachedFile::at_rest(self.config.atomic_unit as usize, Bytes::default());
        let (locks, words) = (LockTable::default(), Arc::default());
        let (label, reserved, handles, failures) = (label.into(), 0, 0, 0);
        self.inodes.insert(ino, Inode { data, label, reserved, handles, locks, words, failures, mapped: None });
        ino
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn collect(&mut self) {
        let names = &self.names;
        self.inodes.retain(|ino, inode| inode.handles > 0 || names.refers_to(*ino));
    }

    fn durable_inodes(&self) -> impl Iterator<Item = (&u64, &Inode)> {
        self.inodes.iter().filter(|(ino, _)| self.names.refers_to(**ino))
    }

    fn reach_max(&self, ino: u64) -> u64 {
        let others = self
            .inodes
            .iter()
            .filter(|(other, inode)| **other != ino && (inode.handles > 0 || self.names.shows(**other)));
        self.config.capacity.saturating_sub(others.map(|(_, inode)| inode.room()).sum())
    }

    fn room_to(&self, ino: u64, len: u64) -> bool {
        len <= self.inodes[&ino].room() || len <= self.reach_max(ino)
    }

    fn without_processes(&self) -> SimState {
        SimState {
            config: self.config,
            inodes: BTreeMap::new(),
            names: Names::default(),
            numbers: self.numbers,
            faults: Faults::default(),
            counters: BTreeMap::new(),
            trace: self.trace.clone(),
            has_sent: self.has_sent,
        }
    }

    fn end(&mut self, what: impl FnOnce() -> String) {
        if self.config.trace {
            self.trace.push(TraceEntry::End(what()));
        }
    }
}

impl Inode {
    /// The kernel may write the shared words back at any time, so a power cut may leave them
    /// plausible.
    fn without_processes(&self) -> Inode {
        let words = Arc::new(self.words.copy());
        Inode { handles: 0, locks: LockTable::default(), words, mapped: None, ..self.clone() }
    }

    fn room(&self) -> u64 {
        self.reserved.max(self.data.view().len() as u64)
    }
}

/// A single option needs no question.
fn pick(count: usize, choose: &mut dyn FnMut(usize) -> usize) -> usize {
    if count > 1 { choose(count).min(count - 1) } else { 0 }
}
