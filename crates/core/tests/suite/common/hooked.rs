//! The disk of one process, with hooks in its calls.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, LockKind, OpenMode};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Read { offset: u64, bytes: usize },
    Write { offset: u64, bytes: usize, durable: bool },
    Written { offset: u64 },
    Lock { start: u64, len: u64, kind: LockKind },
    Unlock { start: u64, len: u64 },
}

type Hook = Box<dyn FnMut(Call) + Send>;

#[derive(Clone)]
pub struct Hooked(Arc<Process>);

struct Process {
    disk: SimDisk,
    hooks: Mutex<HashMap<PathBuf, Hook>>,
    files: Mutex<Vec<Arc<dyn DiskFile>>>,
    may_write: bool,
}

struct HookedFile {
    process: Arc<Process>,
    path: PathBuf,
    number: usize,
}

impl Hooked {
    pub fn new(disk: &SimDisk) -> Hooked {
        Hooked::of(disk, true)
    }

    /// Its process has no permission to write.
    pub fn that_reads(disk: &SimDisk) -> Hooked {
        Hooked::of(disk, false)
    }

    fn of(disk: &SimDisk, may_write: bool) -> Hooked {
        Hooked(Arc::new(Process { disk: disk.clone(), hooks: Mutex::default(), files: Mutex::default(), may_write }))
    }

    /// Except for the hook's own calls.
    pub fn at(&self, path: &str, hook: impl FnMut(Call) + Send + 'static) {
        self.0.hooks.lock().insert(path.into(), Box::new(hook));
    }

    pub fn leave(&self, path: &str) {
        self.0.hooks.lock().remove(Path::new(path));
    }

    /// Its files are closed, so its locks go.
    pub fn die(&self) -> ! {
        let nowhere = SimDisk::new(SimConfig::default()).open(Path::new("/nowhere"), OpenMode::Create).unwrap();
        self.0.files.lock().iter_mut().for_each(|file| *file = nowhere.clone());
        std::panic::resume_unwind(Box::new("dies"));
    }
}

impl HookedFile {
    fn file(&self) -> Arc<dyn DiskFile> {
        self.process.files.lock()[self.number].clone()
    }

    fn enter(&self, call: Call) {
        let hook = self.process.hooks.lock().remove(&self.path);
        if let Some(mut hook) = hook {
            hook(call);
            self.process.hooks.lock().entry(self.path.clone()).or_insert(hook);
        }
    }
}

impl Disk for Hooked {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        if !self.0.may_write && mode != OpenMode::ReadOnly {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut files = self.0.files.lock();
        files.push(self.0.disk.open(path, mode)?);
        Ok(Arc::new(HookedFile { process: self.0.clone(), path: path.into(), number: files.len() - 1 }))
    }

    onewrite_core::forward_disk!(
        this => this.0.disk;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, syncs_all, temp_file
    );
}

impl DiskFile for HookedFile {
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.enter(Call::Read { offset, bytes: buf.len() });
        self.file().read_once_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.enter(Call::Write { offset, bytes: buf.len(), durable: false });
        self.file().write_at(buf, offset)?;
        self.enter(Call::Written { offset });
        Ok(())
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.enter(Call::Write { offset, bytes: buf.len(), durable: true });
        self.file().write_durable_at(buf, offset)
    }

    fn try_lock(&self, start: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        self.enter(Call::Lock { start, len, kind });
        self.file().try_lock(start, len, kind)
    }

    fn unlock(&self, start: u64, len: u64) -> io::Result<()> {
        self.file().unlock(start, len)?;
        self.enter(Call::Unlock { start, len });
        Ok(())
    }

    onewrite_core::forward_disk_file!(
        this => this.file();
        id, len, sync, set_len, reserve, conflicts, shared_words, atomic_unit_bytes
    );
}
