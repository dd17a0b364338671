//! A socket for simulated machines: SQLite never lets go of a VFS, so the VFS stays and the machine it works
//! on is exchanged at each crash. What is still open on the machine before finds its power off.

use std::io;
use std::path::Path;
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

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        let machine = self.machine()?;
        Ok(machine.disk.identify(path)?.map(|id| machine.id(id)))
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine()?;
        Ok(machine.wrap(machine.disk.temp_file(near)?))
    }

    onewrite_core::forward_disk!(this => this.machine()?.disk; remove, resolve, exists, sync_dir_of);
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

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        if self.dead() { Ok(true) } else { self.file.try_lock(offset, len, kind) }
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.dead() { Ok(()) } else { self.file.unlock(offset, len) }
    }

    fn atomic_unit_bytes(&self) -> u32 {
        self.file.atomic_unit_bytes()
    }

    onewrite_core::forward_disk_file!(
        this => this.file()?;
        len, read_at, write_at, write_durable_at, sync, set_len, reserve
    );
}
