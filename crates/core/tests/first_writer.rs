//! The process that takes a file into use has the writer's place from the moment in which others may join (rule OneProcessWrites).

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::{PAGE, page, plain, try_write, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};
use parking_lot::Mutex;

/// What another process does as soon as it may join.
type Join = Box<dyn FnOnce() + Send>;

/// A disk on which another process runs just behind each lock of the log that is given up.
struct Open(SimDisk, Arc<Mutex<Option<Join>>>);
struct OpenFile(Arc<dyn DiskFile>, Option<Arc<Mutex<Option<Join>>>>);

impl Disk for Open {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let join = (path == Path::new("/db-onewrite")).then(|| self.1.clone());
        Ok(Arc::new(OpenFile(self.0.open(path, mode)?, join)))
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, temp_file
    );
}

impl DiskFile for OpenFile {
    fn unlock(&self, start: u64, len: u64) -> io::Result<()> {
        self.0.unlock(start, len)?;
        // The last one to go lets others in: of one byte.
        let join = self.1.as_ref().filter(|_| len == 1).and_then(|join| join.lock().take());
        join.into_iter().for_each(|join| join());
        Ok(())
    }

    onewrite_core::forward_disk_file!(
        this => this.0;
        id, len, read_once_at, write_at, write_durable_at, sync, set_len, reserve, try_lock, conflicts, shared_words,
        atomic_unit_bytes
    );
}

fn read(c: &mut Connection, p: u64) -> Vec<u8> {
    c.lock(LockLevel::Shared).unwrap();
    let mut image = vec![0; PAGE];
    c.read_at(&mut image, p * PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    image
}

#[test]
fn nobody_writes_between_the_first_process_and_its_first_transaction() {
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let options = [("busy_ms".to_owned(), "30".to_owned())];
    let open = |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    let join = Arc::new(Mutex::new(None));
    let mut first = open(Arc::new(Open(sim.clone(), join.clone())));
    let second = Arc::new(Mutex::new(open(Arc::new(sim.clone()))));
    let (other, has_written) = (second.clone(), Arc::new(AtomicBool::new(false)));
    let written = has_written.clone();
    // The first process is kept from its processor for so long.
    *join.lock() = Some(Box::new(move || {
        let mut other = other.lock();
        written.store(try_write(&mut other, [(1, page(7))].into_iter()).is_ok(), SeqCst);
        let _ = other.unlock(LockLevel::None);
    }));
    write(&mut first, &[(2, page(1))]);
    assert!(join.lock().is_none(), "another process has come");
    assert!(!has_written.load(SeqCst), "two have written at once");
    // It goes on behind the first, and both have all of it.
    let mut second = second.lock();
    write(&mut second, &[(1, page(8))]);
    write(&mut first, &[(2, page(2))]);
    for process in [&mut first, &mut second] {
        assert_eq!((read(process, 1), read(process, 2)), (page(8), page(2)));
    }
}
