//! A file in SQLite's WAL mode, whose users may bring pages home until the moment in which nobody has it open in that mode (rule
//! WalLeftWhenAlone).

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::{PAGE, page, plain};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, LockKind, OpenMode};
use onewrite_core::{Engine, LockLevel};

/// A disk on which somebody writes the database just before its users are asked to leave.
struct Busy(SimDisk, Arc<AtomicU64>);
struct BusyFile(Arc<dyn DiskFile>, Option<Arc<AtomicU64>>);

impl Disk for Busy {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let pages = (path == Path::new("/db")).then(|| self.1.clone());
        Ok(Arc::new(BusyFile(self.0.open(path, mode)?, pages)))
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, temp_file
    );
}

impl DiskFile for BusyFile {
    fn try_lock(&self, start: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        // RESERVED: the first lock of one that takes the file out of WAL mode.
        if let Some(pages) = self.1.as_ref().filter(|_| (start, len) == (0x4000_0001, 1)) {
            let pages = pages.swap(0, SeqCst);
            if pages > 0 {
                self.0.write_at(&in_wal_mode(pages), 0)?;
            }
        }
        self.0.try_lock(start, len, kind)
    }

    onewrite_core::forward_disk_file!(
        this => this.0;
        id, len, read_once_at, write_at, write_durable_at, sync, set_len, reserve, unlock, conflicts, shared_words,
        atomic_unit_bytes
    );
}

/// A database in WAL mode with all of its pages in the file, and `pages` of them.
fn in_wal_mode(pages: u64) -> Vec<u8> {
    let mut bytes = plain(0)[..PAGE].to_vec();
    bytes[18..20].copy_from_slice(&[2, 2]);
    // Each size is of another transaction.
    (bytes[27], bytes[31], bytes[95]) = (pages as u8, pages as u8, pages as u8);
    bytes.extend((1..pages).flat_map(page));
    bytes
}

#[test]
fn what_is_checkpointed_until_nobody_else_has_the_file_counts() {
    for (before, after) in [(3, 5), (5, 3), (4, 4)] {
        let sim = SimDisk::new(SimConfig::default());
        sim.put_file(Path::new("/db"), &in_wal_mode(before));
        let engine = Engine::new(Arc::new(Busy(sim.clone(), Arc::new(AtomicU64::new(after)))));
        let mut c = engine.open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
        c.lock(LockLevel::Shared).unwrap();
        let mut header = vec![0; PAGE];
        assert_eq!(c.read_at(&mut header, 0).unwrap(), PAGE);
        assert_eq!(&header[18..20], [1, 1], "it is out of WAL mode");
        assert_eq!(u64::from(header[31]), after, "{before} pages, then {after}");
        c.unlock(LockLevel::None).unwrap();
        let file = sim.open(Path::new("/db"), OpenMode::ReadOnly).unwrap();
        let mut header = vec![0; PAGE];
        file.read_at(&mut header, 0).unwrap();
        assert_eq!((&header[18..20], u64::from(header[31])), (&[1, 1][..], after));
    }
}
