//! A disk that stops at every operation that changes a crash's outcome, and shows the disk as a
//! power cut within the operation would leave it. So one run of a history meets all its crash
//! points.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite_core::disk::sim::{Op, SimDisk, random};
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use onewrite_core::inspect::layout::JOURNAL_SUFFIX;
use parking_lot::Mutex;

use crate::baton::alone;

/// An operation before its effect.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Its kind.
    pub op: Op,
    /// The file.
    pub path: &'a Path,
    /// Offset and bytes; zeros for operations that write none.
    pub range: (u64, usize),
}

impl Operation<'_> {
    /// A flush of a rollback journal is rare, and each of its sectors that did not arrive gives
    /// another outcome.
    pub fn crashes_min(&self) -> usize {
        let journal = self.path.as_os_str().as_encoded_bytes().ends_with(JOURNAL_SUFFIX.as_bytes());
        if journal && self.op == Op::Sync { 6 } else { 0 }
    }
}

/// Gets a function that makes the disk of that moment, to look at and copy.
pub type Point = Box<dyn FnMut(Operation<'_>, &dyn Fn() -> SimDisk) + Send>;

/// The disk.
#[derive(Clone)]
pub struct HookDisk {
    sim: SimDisk,
    point: Arc<Mutex<Option<Point>>>,
}

impl HookDisk {
    /// Passes the crash points to `point`.
    pub fn new(sim: SimDisk, point: Option<Point>) -> Self {
        Self { sim, point: Arc::new(Mutex::new(point)) }
    }

    /// The disk below.
    pub fn sim(&self) -> &SimDisk {
        &self.sim
    }

    fn pass(&self, op: Op, path: &Path, range: (u64, usize)) {
        if let Some(point) = self.point.lock().as_mut() {
            // Threads that take turns stand still meanwhile.
            alone(random().unwrap_or(0), || point(Operation { op, path, range }, &|| self.sim.clone()));
        }
    }

    /// All bytes of a durable write are pending within its call, none flushed.
    fn pass_durable(&self, path: &Path, buf: &[u8], offset: u64) {
        if let Some(point) = self.point.lock().as_mut() {
            let inside = || {
                let inside = self.sim.survive();
                if let Ok(file) = inside.open(path, OpenMode::ReadWrite) {
                    // A full disk takes the bytes that fit.
                    let _ = file.write_at(buf, offset);
                }
                inside
            };
            alone(random().unwrap_or(0), || {
                point(Operation { op: Op::WriteDurable, path, range: (offset, buf.len()) }, &inside)
            });
        }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>, path: &Path) -> Arc<dyn DiskFile> {
        Arc::new(HookFile { file, disk: self.clone(), path: path.to_owned() })
    }
}

impl Disk for HookDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.pass(Op::Create, path, (0, 0));
        Ok(self.wrap(self.sim.open(path, mode)?, path))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.pass(Op::Remove, path, (0, 0));
        self.sim.remove(path)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.pass(Op::Exchange, one, (0, 0));
        self.sim.exchange(one, other)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.pass(Op::Exchange, from, (0, 0));
        self.sim.rename(from, to)
    }

    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        self.pass(Op::SyncDir, path, (0, 0));
        self.sim.sync_dir_of(path)
    }

    fn sync_all_beside(&self, path: &Path) -> io::Result<()> {
        self.pass(Op::Sync, path, (0, 0));
        self.sim.sync_all_beside(path)
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        // A temporary file does not outlive a crash.
        self.sim.temp_file(near)
    }

    onewrite_core::forward_disk!(this => this.sim; identify, resolve, exists, names_beside, names_stamp, syncs_all, system_start);
}

struct HookFile {
    file: Arc<dyn DiskFile>,
    disk: HookDisk,
    path: PathBuf,
}

impl DiskFile for HookFile {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.disk.pass(Op::Write, &self.path, (offset, buf.len()));
        self.file.write_at(buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.disk.pass_durable(&self.path, buf, offset);
        self.file.write_durable_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_from(0)
    }

    fn sync_from(&self, from: u64) -> io::Result<()> {
        self.disk.pass(Op::Sync, &self.path, (0, 0));
        self.file.sync_from(from)
    }

    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        self.disk.pass(Op::Send, &self.path, (0, 0));
        self.file.finish_write_back(from)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.pass(Op::SetLen, &self.path, (0, 0));
        self.file.set_len(len)
    }

    onewrite_core::forward_disk_file!(
        this => this.file;
        id, made, is_unlinked, len, read_once_at, seal, has_seal, reserve, try_lock, unlock, conflicts, shared_words, map, atomic_unit_bytes
    );
}
