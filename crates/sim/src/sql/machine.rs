//! A socket for simulated machines: SQLite never releases a VFS, so the VFS stays and each crash
//! replaces its machine. Files still open on the old machine find its power off.
//!
//! Two sockets with the same disk are two processes of one machine. Either may die alone: its later
//! calls have no effect, and its locks go.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use onewrite_core::disk::shared::SharedWords;
use onewrite_core::disk::sim::{point, under};
use onewrite_core::disk::{Disk, DiskFile, FileId, LockKind, OpenMode};
use parking_lot::{Mutex, RwLock};

use crate::hook::HookDisk;
use crate::threads::process::{PART, write_in_parts};

#[derive(Clone)]
struct Machine {
    disk: HookDisk,
    number: u64,
    life: Arc<Life>,
}

/// `None` once its process is dead.
type OpenFile = Mutex<Option<Arc<dyn DiskFile>>>;

struct Life {
    dead: Arc<AtomicBool>,
    /// Calls until death.
    calls: AtomicU64,
    /// Its user may not write the files.
    only_reads: bool,
    /// It has threads: others see a part of a read or write before the next.
    in_parts: bool,
    /// Only those that hold them keep files, and locks with them.
    files: Mutex<Vec<Weak<OpenFile>>>,
}

impl Life {
    fn is_over(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let files = std::mem::take(&mut *self.files.lock());
        // At once: no thread acts meanwhile.
        under(None, || files.iter().filter_map(Weak::upgrade).for_each(|file| drop(file.lock().take())));
    }

    fn call(&self) -> io::Result<()> {
        point();
        if self.is_over() {
            return Err(power_off());
        }
        match self.calls.load(Ordering::SeqCst) {
            u64::MAX => return Ok(()),
            0 => {
                self.end();
                return Err(power_off());
            }
            left => self.calls.store(left - 1, Ordering::SeqCst),
        }
        Ok(())
    }
}

/// The disk of the machine that is plugged in.
#[derive(Clone, Default)]
pub struct Socket(Arc<RwLock<Option<Machine>>>);

impl Socket {
    /// Plugs in a machine, whose user may write its files or not, with threads or not; the old one
    /// is dead.
    pub fn boot(&self, disk: HookDisk, only_reads: bool, in_parts: bool) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        self.halt();
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (calls, files) = (AtomicU64::new(u64::MAX), Mutex::default());
        let life = Life { dead: Arc::default(), calls, only_reads, in_parts, files };
        *self.0.write() = Some(Machine { disk, number, life: Arc::new(life) });
    }

    /// The process dies after `calls` more disk calls.
    pub fn die_after(&self, calls: u64) {
        if let Some(machine) = &*self.0.read() {
            machine.life.calls.store(calls, Ordering::SeqCst);
        }
    }

    /// Whether the process lives.
    pub fn is_alive(&self) -> bool {
        self.0.read().as_ref().is_some_and(|machine| !machine.life.is_over())
    }

    /// Kills the machine: every call fails, except that each lock is granted.
    pub fn halt(&self) {
        if let Some(machine) = self.0.write().take() {
            machine.life.end();
        }
    }

    fn machine(&self) -> io::Result<Machine> {
        let machine = self.0.read().clone().ok_or_else(power_off)?;
        machine.life.call()?;
        Ok(machine)
    }
}

fn power_off() -> io::Error {
    io::Error::other("power is off")
}

impl Machine {
    fn id(&self, id: FileId) -> FileId {
        FileId { dev: self.number, ..id }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>, is_journal: bool) -> io::Result<Arc<dyn DiskFile>> {
        // The id of a dead machine's file stays known: an engine files its open files under it.
        let id = self.id(file.id()?);
        let file = Arc::new(Mutex::new(Some(file)));
        let mut files = self.life.files.lock();
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(&file));
        Ok(Arc::new(MachineFile { id, file, is_journal, machine: self.clone() }))
    }
}

impl Disk for Socket {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine()?;
        if machine.life.only_reads && mode != OpenMode::ReadOnly {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let is_journal = path.as_os_str().as_encoded_bytes().ends_with(b"-journal");
        machine.wrap(machine.disk.open(path, mode)?, is_journal)
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        let machine = self.machine()?;
        Ok(machine.disk.identify(path)?.map(|id| machine.id(id)))
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let machine = self.machine()?;
        machine.wrap(machine.disk.temp_file(near)?, false)
    }

    fn syncs_all(&self) -> bool {
        self.machine().is_ok_and(|machine| machine.disk.syncs_all())
    }

    fn system_start(&self) -> Option<u64> {
        self.machine().ok()?.disk.system_start()
    }

    onewrite_core::forward_disk!(
        this => this.machine()?.disk;
        remove, rename, names_beside, exchange, resolve, exists, sync_dir_of, sync_all_beside, names_stamp
    );
}

struct MachineFile {
    id: FileId,
    file: Arc<OpenFile>,
    is_journal: bool,
    machine: Machine,
}

impl MachineFile {
    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        self.machine.life.call()?;
        self.file.lock().clone().ok_or_else(power_off)
    }
}

impl DiskFile for MachineFile {
    fn id(&self) -> io::Result<FileId> {
        Ok(self.id)
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        match self.file() {
            Ok(file) => file.try_lock(offset, len, kind),
            Err(_) => Ok(true),
        }
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.file() {
            Ok(file) => file.unlock(offset, len),
            Err(_) => Ok(()),
        }
    }

    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        match self.file() {
            Ok(file) => file.conflicts(offset, len, kind),
            Err(_) => Ok(false),
        }
    }

    fn shared_words(&self, blocks: usize) -> io::Result<Arc<SharedWords>> {
        let words = self.file()?.shared_words(blocks)?;
        Ok(Arc::new(words.until(self.machine.life.dead.clone())))
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let part = if self.machine.life.in_parts { PART - offset as usize % PART } else { usize::MAX };
        let bytes = part.min(buf.len());
        self.file()?.read_once_at(&mut buf[..bytes], offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        match self.machine.life.in_parts {
            true => write_in_parts(buf, offset, |part, at| self.file()?.write_at(part, at)),
            false => self.file()?.write_at(buf, offset),
        }
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.machine.life.in_parts {
            self.write_at(buf, offset)?;
        }
        self.file()?.write_durable_at(buf, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let file = self.file()?;
        match file.set_len(len) {
            // Where this fails, SQLite itself takes the journal for stale and writes over it: after
            // a power cut the old head may roll back with the new rest.
            Err(_) if self.is_journal => file.set_len(len),
            cut => cut,
        }
    }

    fn atomic_unit_bytes(&self) -> u32 {
        // Other threads may run within the call.
        let file = self.file.lock().clone();
        file.map_or(512, |file| file.atomic_unit_bytes())
    }

    onewrite_core::forward_disk_file!(
        this => this.file()?;
        made, is_unlinked, len, sync, sync_from, finish_write_back, seal, has_seal, reserve, map
    );
}
