//! A log that was lengthened by hand, with zeros or a hole: opening reads only as much as its slots
//! and records say (invariant I6).

use crate::common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{PAGE, filled, try_fill, write, write_and_sync};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};

const LOG: &str = "/db-onewrite";
const PAGES: u32 = 40;
/// Bytes.
const LONGER: u64 = 64 << 20;
/// For reads and writes: several times the log before.
const ENOUGH: u64 = 4 << 20;

#[derive(Clone)]
struct Counting {
    sim: SimDisk,
    moved: Arc<AtomicU64>,
}

struct CountingFile {
    file: Arc<dyn DiskFile>,
    moved: Arc<AtomicU64>,
}

impl Disk for Counting {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CountingFile { file: self.sim.open(path, mode)?, moved: self.moved.clone() }))
    }

    onewrite_core::forward_disk!(
        this => this.sim;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, temp_file
    );
}

impl DiskFile for CountingFile {
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.file.read_once_at(buf, offset)?;
        self.moved.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.moved.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.file.write_at(buf, offset)
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.moved.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.file.write_durable_at(buf, offset)
    }

    onewrite_core::forward_disk_file!(
        this => this.file;
        id, len, sync, set_len, reserve, try_lock, unlock, conflicts, shared_words, atomic_unit_bytes
    );
}

fn open(disk: impl Disk + 'static, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Engine::new(Arc::new(disk)).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap()
}

fn lengthened(options: &[(&str, &str)], big: bool) -> SimDisk {
    let sim = SimDisk::new(SimConfig { capacity: 2 * LONGER, ..SimConfig::default() });
    sim.put_file(Path::new("/db"), &[]);
    let mut c = open(sim.clone(), options);
    try_fill(&mut c, PAGES, 1).unwrap();
    let last = if big { u64::from(PAGES) } else { 2 };
    write_and_sync(&mut c, &(1..last).map(|n| (n, filled(n, PAGES, 2))).collect::<Vec<_>>());
    // Of a big one, the log's flush is the last operation.
    if big {
        sim.stop_after(2);
    }
    let _ = c.commit();
    std::mem::forget(c);
    let crashed = sim.crash(0);
    let log = crashed.open(Path::new(LOG), OpenMode::ReadWrite).unwrap();
    log.set_len(log.len().unwrap() + LONGER).unwrap();
    crashed
}

#[test]
fn an_open_reads_the_state_of_the_log_and_not_its_length() {
    let streams: &[_] = &[("stream_size", "64K"), ("log_size", "256K")];
    for (options, big) in [(&[][..], false), (&[("scheme", "wal-opt")], false), (streams, false), (streams, true)] {
        let disk = lengthened(options, big);
        let counting = Counting { sim: disk.clone(), moved: Arc::default() };
        let mut c = open(counting.clone(), options);
        let mut image = vec![0; PAGE];
        let mut read = |c: &mut Connection, n: u64| {
            c.lock(LockLevel::Shared).unwrap();
            c.read_at(&mut image, n * PAGE as u64).unwrap();
            c.unlock(LockLevel::None).unwrap();
            image[PAGE - 1]
        };
        let last = u64::from(PAGES) - 1;
        assert_eq!((read(&mut c, 1), read(&mut c, last)), (2, if big { 2 } else { 1 }), "{options:?}");
        write(&mut c, &(1..PAGES.into()).map(|n| (n, filled(n, PAGES, 3))).collect::<Vec<_>>());
        c.close().unwrap();
        let moved = counting.moved.load(Ordering::Relaxed);
        assert!(moved < ENOUGH, "{options:?}, big: {big}: {moved} bytes were read and written");
        let log = disk.snapshot_file(Path::new(LOG)).unwrap().len() as u64;
        assert!(log < ENOUGH, "{options:?}, big: {big}: the log has {log} bytes");
        assert_eq!(read(&mut open(disk.clone(), options), last), 3);
    }
}
