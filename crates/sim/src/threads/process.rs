//! A process on the simulated disk: its threads end together, in any call of the disk.

use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use onewrite_core::disk::sim::{point, under};
use onewrite_core::disk::{Disk, DiskFile, LockKind, OpenMode};
use parking_lot::Mutex;

use crate::hook::HookDisk;

/// Unwinds the threads of a dead process.
pub struct Death;

/// The kernel copies so many bytes at once, and others see them.
pub const PART: usize = 4096;

/// Calls `write` for each part of a write.
pub fn write_in_parts(buf: &[u8], offset: u64, mut write: impl FnMut(&[u8], u64) -> io::Result<()>) -> io::Result<()> {
    let mut written = 0;
    while written < buf.len() {
        let at = offset + written as u64;
        let end = (written + PART - at as usize % PART).min(buf.len());
        write(&buf[written..end], at)?;
        written = end;
    }
    Ok(())
}

#[derive(Default)]
struct Life {
    is_over: AtomicBool,
    /// Calls of the disk until death, and one more; 0: none is near.
    fuse: AtomicU64,
    /// They close with its death, which gives its locks back.
    files: Mutex<Vec<Weak<OpenFile>>>,
}

/// `None` once the process is dead.
type OpenFile = Mutex<Option<Arc<dyn DiskFile>>>;

/// At once: no thread acts meanwhile, so none dies in it.
fn close(file: &OpenFile) {
    under(None, || drop(file.lock().take()));
}

/// The disk of a process.
#[derive(Clone)]
pub struct ProcessDisk {
    /// `None` once it is buried: its memory stays, as no destructor runs.
    disk: Arc<Mutex<Option<HookDisk>>>,
    life: Arc<Life>,
}

impl ProcessDisk {
    /// A living process on `disk`.
    pub fn new(disk: HookDisk) -> Self {
        Self { disk: Arc::new(Mutex::new(Some(disk))), life: Arc::default() }
    }

    /// All of its threads have ended.
    pub fn bury(&self) {
        self.kill();
        *self.disk.lock() = None;
    }

    fn below(&self) -> io::Result<HookDisk> {
        self.disk.lock().clone().ok_or_else(|| io::Error::other("the process is dead"))
    }

    /// It dies after so many calls.
    pub fn die_after(&self, calls: u64) {
        self.life.fuse.store(calls + 1, Ordering::SeqCst);
    }

    /// No death is near.
    pub fn live_on(&self) {
        self.life.fuse.store(0, Ordering::SeqCst);
    }

    /// Whether it is dead.
    pub fn is_dead(&self) -> bool {
        self.life.is_over.load(Ordering::SeqCst)
    }

    /// Ends the process.
    pub fn kill(&self) {
        self.life.is_over.store(true, Ordering::SeqCst);
        let files = std::mem::take(&mut *self.life.files.lock());
        files.iter().filter_map(Weak::upgrade).for_each(|file| close(&file));
    }

    /// Before each call. An error only for destructors on the way.
    fn call(&self) -> io::Result<()> {
        point();
        let left = self.life.fuse.load(Ordering::SeqCst);
        if left > 0 && !self.is_dead() {
            self.life.fuse.store(left - 1, Ordering::SeqCst);
            if left == 1 {
                self.kill();
            }
        }
        self.end_thread_of_dead()
    }

    /// Where a thread goes on.
    pub fn end_thread_of_dead(&self) -> io::Result<()> {
        match self.is_dead() {
            true if std::thread::panicking() => Err(io::Error::other("the process is dead")),
            true => resume_unwind(Box::new(Death)),
            false => Ok(()),
        }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let file = Arc::new(Mutex::new(Some(file)));
        let mut files = self.life.files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(&file));
        Arc::new(ProcessFile { disk: self.clone(), file })
    }
}

impl Disk for ProcessDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.call()?;
        Ok(self.wrap(self.below()?.open(path, mode)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.below()?.remove(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.call()?;
        self.below()?.exists(path)
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        self.call()?;
        self.below()?.exchange(one, other)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        self.below()?.rename(from, to)
    }

    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.below()?.sync_dir_of(path)
    }

    fn sync_all_beside(&self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.below()?.sync_all_beside(path)
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.call()?;
        Ok(self.wrap(self.below()?.temp_file(near)?))
    }

    fn syncs_all(&self) -> bool {
        self.below().is_ok_and(|disk| disk.syncs_all())
    }

    fn system_start(&self) -> Option<u64> {
        self.below().ok()?.system_start()
    }

    onewrite_core::forward_disk!(this => this.below()?; identify, resolve, names_beside, names_stamp);
}

struct ProcessFile {
    disk: ProcessDisk,
    file: Arc<OpenFile>,
}

impl Drop for ProcessFile {
    fn drop(&mut self) {
        close(&self.file);
    }
}

impl ProcessFile {
    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.file.lock().clone();
        file.ok_or_else(|| io::Error::other("the process is dead"))
    }

    /// Others run between the parts, and the process may die.
    fn write_parts(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        write_in_parts(buf, offset, |part, at| {
            self.disk.call()?;
            self.file()?.write_at(part, at)
        })
    }
}

impl DiskFile for ProcessFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.call()?;
        self.file()?.len()
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.disk.call()?;
        let part = (PART - offset as usize % PART).min(buf.len());
        self.file()?.read_once_at(&mut buf[..part], offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_parts(buf, offset)?;
        self.disk.call()
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_parts(buf, offset)?;
        self.disk.call()?;
        self.file()?.write_durable_at(buf, offset)?;
        self.disk.call()
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_from(0)
    }

    fn sync_from(&self, from: u64) -> io::Result<()> {
        self.disk.call()?;
        self.file()?.sync_from(from)?;
        self.disk.call()
    }

    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        self.disk.call()?;
        self.file()?.finish_write_back(from)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.call()?;
        self.file()?.set_len(len)
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        self.disk.call()?;
        self.file()?.try_lock(offset, len, kind)
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk.call()?;
        self.file()?.unlock(offset, len)
    }

    fn atomic_unit_bytes(&self) -> u32 {
        self.file().map_or(PART as u32, |file| file.atomic_unit_bytes())
    }

    onewrite_core::forward_disk_file!(
        this => this.file()?; id, made, is_unlinked, seal, has_seal, reserve, conflicts, shared_words
    );
}
