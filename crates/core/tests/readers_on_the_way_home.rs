//! A reader that comes while a transaction is on its way home sees one state whole, not what home happens to hold
//! (invariant I4): SQLite would keep an old page under the new change counter, and the next commit built on it would
//! lose an acknowledged one (I1).

mod common;

use std::io;
use std::path::Path;
use std::sync::Arc;

use common::{PAGE, page, plain, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};
use parking_lot::Mutex;

/// Called before a write to the database file.
type Visit = Box<dyn FnMut(u64) + Send>;

/// A disk that is visited before each write to the database file.
struct Visited(SimDisk, Arc<Mutex<Option<Visit>>>);
struct VisitedFile(Arc<dyn DiskFile>, Option<Arc<Mutex<Option<Visit>>>>);

impl Disk for Visited {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let visit = (path == Path::new("/db")).then(|| self.1.clone());
        Ok(Arc::new(VisitedFile(self.0.open(path, mode)?, visit)))
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, temp_file
    );
}

impl DiskFile for VisitedFile {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let visit = self.1.as_ref().and_then(|visit| visit.lock().take());
        if let (Some(mut visit), Some(back)) = (visit, &self.1) {
            visit(offset);
            *back.lock() = Some(visit);
        }
        self.0.write_at(buf, offset)
    }

    onewrite_core::forward_disk_file!(
        this => this.0;
        id, len, read_once_at, write_durable_at, sync, set_len, reserve, try_lock, unlock, atomic_unit_bytes
    );
}

/// A database of `pages` pages without a transaction, and what is called before a write to it.
fn database(pages: u64) -> (Arc<Engine>, Arc<Mutex<Option<Visit>>>) {
    let sim = SimDisk::new(SimConfig::default());
    let mut bytes = plain(0)[..PAGE].to_vec();
    bytes[31] = pages as u8;
    bytes.extend((1..pages).flat_map(|_| page(0)));
    sim.put_file(Path::new("/db"), &bytes);
    let visit = Arc::new(Mutex::new(None));
    (Engine::new(Arc::new(Visited(sim, visit.clone()))), visit)
}

fn numbered(pages: std::ops::Range<u64>, n: u64) -> Vec<(u64, Vec<u8>)> {
    pages.map(|p| (p, page(n))).collect()
}

fn reads(c: &mut Connection, pages: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    c.lock(LockLevel::Shared).unwrap();
    let mut images = Vec::new();
    for p in pages {
        let mut image = vec![0; PAGE];
        assert_eq!(c.read_at(&mut image, p * PAGE as u64).unwrap(), PAGE);
        images.push(image);
    }
    c.unlock(LockLevel::None).unwrap();
    images
}

#[test]
fn who_comes_while_a_big_transaction_goes_home_reads_it_with_older_snapshots_about() {
    const PAGES: u64 = 24;
    for scheme in ["log", "wal-opt"] {
        let (engine, visit) = database(PAGES);
        let options = [("scheme", scheme), ("stream_size", "64K"), ("log_size", "1M")];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let (mut older, mut comer, mut writer) = (open(), open(), open());
        write(&mut writer, &numbered(1..2, 1));
        writer.pragma("checkpoint", None).unwrap().unwrap();
        // Pinned until the end: what home holds is kept for it, and home listed as the place of what comes.
        older.lock(LockLevel::Shared).unwrap();

        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        *visit.lock() = Some(Box::new(move |_| into.lock().push(reads(&mut comer, 1..PAGES))));
        write(&mut writer, &numbered(1..PAGES, 2));
        *visit.lock() = None;

        let seen = seen.lock();
        assert!(!seen.is_empty(), "{scheme}: it went home with its commit");
        for (write, images) in seen.iter().enumerate() {
            let old: Vec<_> = (1..PAGES).zip(images).filter(|(_, image)| **image != page(2)).map(|(p, _)| p).collect();
            assert!(old.is_empty(), "{scheme}: before write {write} to home, old bytes are read at pages {old:?}");
        }
        older.unlock(LockLevel::None).unwrap();
        assert!(reads(&mut writer, 1..PAGES).iter().all(|image| *image == page(2)));
    }
}

/// Under `off` every transaction goes home with its commit, under `dash` before or after it is one, and is no reader's before
/// that.
#[test]
fn who_comes_while_a_transaction_goes_home_with_its_commit_reads_none_of_it() {
    const PAGES: u64 = 12;
    for scheme in ["off", "dash"] {
        let (engine, visit) = database(PAGES);
        let options = [("scheme".to_owned(), scheme.to_owned())];
        let open = || engine.open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
        let mut writer = open();
        let every_other = |n| numbered(1..PAGES, n).into_iter().step_by(2).collect::<Vec<_>>();
        write(&mut writer, &every_other(1));
        // Twice, for two files that take turns.
        for n in 2..4 {
            let mut comer = open();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let into = seen.clone();
            let before = reads(&mut comer, 1..PAGES);
            *visit.lock() = Some(Box::new(move |_| into.lock().push(reads(&mut comer, 1..PAGES))));
            write(&mut writer, &every_other(n));
            *visit.lock() = None;
            let seen = seen.lock();
            assert!(seen.len() > 1, "{scheme}: {} writes to home", seen.len());
            assert!(seen.iter().all(|images| *images == before), "{scheme}: transaction {n}");
            assert_eq!(reads(&mut writer, 1..2), [page(n)]);
        }
    }
}
