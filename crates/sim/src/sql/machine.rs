//! A socket for simulated machines: SQLite never lets go of a VFS, so the VFS stays and the machine it works
//! on is exchanged at each crash. What is still open on the machine before finds its power off.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onewrite_core::disk::{Disk, DiskFile, FileId, LockKind, OpenMode};
use parking_lot::RwLock;

use crate::hook::HookDisk;

#[derive(Clone)]
struct Machine {
    disk: HookDisk,
    number: u64,
    dead: Arc<AtomicBool>,
}

/// The disk of whichever machine is plugged in.
#[derive(Clone, Default)]
pub struct Socket(Arc<RwLock<Option<Machine>>>);

impl Socket {
    /// Plugs in a machine with `disk`; the one before is dead.
    pub fn boot(&self, disk: HookDisk) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        self.halt();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        *self.0.write() = Some(Machine { disk, number, dead: Arc::default() });
    }

    /// The machine is dead: every call fails, except that locks are given to whoever asks.
    pub fn halt(&self) {
        if let Some(machine) = self.0.write().take() {
            machine.dead.store(true, Ordering::SeqCst);
        }
    }

    fn machine(&self) -> io::Result<Machine> {
        self.0.read().clone().ok_or_else(power_off)
    }
}

fn power_off() -> io::Error {
    io::Error::other("power is off")
}

impl Machine {
    fn id(&self, id: FileId) -> FileId {
        FileId { dev: self.number, ..id }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(MachineFile { file, machine: self.clone() })
    }
}

impl Disk for Socket {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine()?;
        Ok(machine.wrap(machine.disk.open(path, mode)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.machine()?.disk.remove(path)
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        let machine = self.machine()?;
        Ok(machine.disk.identify(path)?.map(|id| machine.id(id)))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.machine()?.disk.resolve(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.machine()?.disk.exists(path)
    }

    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        self.machine()?.disk.sync_dir_of(path)
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine()?;
        Ok(machine.wrap(machine.disk.temp_file(near)?))
    }
}

struct MachineFile {
    file: Arc<dyn DiskFile>,
    machine: Machine,
}

impl MachineFile {
    fn dead(&self) -> bool {
        self.machine.dead.load(Ordering::SeqCst)
    }

    fn file(&self) -> io::Result<&dyn DiskFile> {
        if self.dead() { Err(power_off()) } else { Ok(&*self.file) }
    }
}

impl DiskFile for MachineFile {
    fn id(&self) -> io::Result<FileId> {
        // Known also of a dead machine: an engine files what it has open under it.
        Ok(self.machine.id(self.file.id()?))
    }

    fn len(&self) -> io::Result<u64> {
        self.file()?.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file()?.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file()?.write_at(buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file()?.write_durable_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file()?.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file()?.reserve(len)
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        if self.dead() { Ok(true) } else { self.file.try_lock(offset, len, kind) }
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.dead() { Ok(()) } else { self.file.unlock(offset, len) }
    }

    fn atomic_unit_bytes(&self) -> u32 {
        self.file.atomic_unit_bytes()
    }
}
