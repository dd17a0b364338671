//! A rollback journal that a dead writer left is rolled back before any process reads the file,
//! also while several find it (rule RollbackIsReal).

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::hooked::{Call, Hooked};
use common::plain;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use onewrite_core::{Engine, Error, LockLevel};

/// SQLite's lock bytes.
const PENDING: u64 = 0x4000_0000;
const RESERVED: u64 = PENDING + 1;

#[test]
fn no_process_that_finds_it_looks_like_its_writer() {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new("/db"), &plain(0));
    disk.put_file(Path::new("/db-journal"), &[1; 512]);
    let open = |process: Arc<dyn Disk>| {
        let busy_ms = [("busy_ms".to_owned(), "0".to_owned())];
        Engine::new(process).open(Path::new("/db"), OpenMode::ReadWrite, &busy_ms).unwrap()
    };
    let (finds, met) = (Hooked::new(&disk), Arc::new(AtomicUsize::new(0)));
    let home = disk.open(Path::new("/db"), OpenMode::ReadWrite).unwrap();
    let (mut other, tries) = (open(Arc::new(disk.clone())), met.clone());
    finds.at("/db", move |call| {
        if matches!(call, Call::Lock { kind: LockKind::Exclusive, .. }) {
            // Stock SQLite asks for this lock to tell a living writer from a dead one.
            let alone = matches!(call, Call::Lock { start: RESERVED, .. });
            assert!(alone || !home.conflicts(RESERVED, 1, LockKind::Shared).unwrap());
            let looked = other.lock(LockLevel::Shared);
            assert!(matches!(looked, Err(Error::Busy(_))), "it reads what a dead writer left: {looked:?}");
            tries.fetch_add(1, SeqCst);
        }
    });
    let mut first = open(Arc::new(finds.clone()));
    first.lock(LockLevel::Shared).unwrap();
    finds.leave("/db");
    assert!(first.is_aside(), "SQLite rolls it back");
    assert!(met.load(SeqCst) > 1);
}
