//! Recovery crashes after each of its operations on the disk, and is run again (invariants I1, I8).

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{PAGE, page, plain};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::{Engine, LockLevel, Result};

const HOME: &str = "/db";

/// Opens and closes the database.
fn recover(disk: &SimDisk) -> Result<()> {
    let mut c = Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &[])?;
    c.lock(LockLevel::Shared)?;
    c.unlock(LockLevel::None)?;
    c.close()
}

/// A crashed database of `pages` pages: three small transactions, then one that streams into the log.
fn crashed(pages: u64) -> SimDisk {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new(HOME), &plain(0));
    let options = [("stream_size", "65536"), ("log_size", "262144")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let engine = Engine::new(Arc::new(disk.clone()));
    let mut c = engine.open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap();
    for n in 1..=3 {
        common::commit(&mut c, n);
    }
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    let mut first = plain(0);
    first.truncate(PAGE);
    first[28..32].copy_from_slice(&u32::try_from(pages).unwrap().to_be_bytes());
    c.write_at(&first, 0).unwrap();
    for n in 1..pages {
        c.write_at(&page(100 + n), n * PAGE as u64).unwrap();
    }
    c.prepare(None).unwrap();
    c.sync().unwrap();
    // The power goes after the commit's flush and before the checkpoint that follows a big transaction.
    disk.stop_after(if pages > 16 { 2 } else { 1 });
    let _ = c.commit();
    std::mem::forget(c);
    disk.crash(0)
}

fn assert_whole(disk: &SimDisk, pages: u64, case: &str) {
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert_eq!(home.len(), pages as usize * PAGE, "{case}");
    assert_eq!(home[19], 1, "{case}: the mark is off");
    for n in 1..pages {
        let at = n as usize * PAGE;
        assert!(home[at..at + PAGE] == page(100 + n), "{case}: page {}", n + 1);
    }
}

#[test]
fn recovery_crashes_anywhere_and_finishes_the_next_time() {
    for pages in [8, 60] {
        let crashed = crashed(pages);
        let whole = crashed.crash(0);
        recover(&whole).unwrap();
        assert_whole(&whole, pages, "without a crash");
        let ops = whole.ops();
        assert!(ops > 8, "{ops}");
        for stop in 0..ops {
            for seed in 0..12 {
                let first = crashed.crash(0);
                first.stop_after(stop);
                let _ = recover(&first);
                let again = first.crash(seed);
                let case = format!("{pages} pages, operation {stop} of {ops}, seed {seed}");
                recover(&again).unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_whole(&again, pages, &case);
            }
        }
    }
}
