//! Reading ahead serves a snapshot the same bytes as reading page by page (invariant I4), with
//! fewer calls.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{PAGE, plain, write};
use onewrite_core::disk::OpenMode;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::{Connection, Engine, LockLevel};
use proptest::prelude::*;

const PAGES: u64 = 32;

fn stamped(page: u64, version: u64) -> Vec<u8> {
    let mut b = vec![0x0a; PAGE];
    b[100..108].copy_from_slice(&page.to_le_bytes());
    b[PAGE - 8..].copy_from_slice(&version.to_le_bytes());
    b
}

fn versioned(pages: impl Iterator<Item = u64>, version: u64) -> Vec<(u64, Vec<u8>)> {
    pages.map(|p| (p, stamped(p, version))).collect()
}

fn database() -> (Arc<SimDisk>, Arc<Engine>) {
    let disk = Arc::new(SimDisk::new(SimConfig::default()));
    let mut bytes = plain(0)[..PAGE].to_vec();
    bytes[31] = PAGES as u8;
    bytes.extend((1..PAGES).flat_map(|p| stamped(p, 0)));
    disk.put_file(Path::new("/db"), &bytes);
    (disk.clone(), Engine::new(disk))
}

fn open(engine: &Arc<Engine>) -> Connection {
    engine.open(Path::new("/db"), OpenMode::ReadWrite, &[("log_size".into(), "256K".into())]).unwrap()
}

fn read(c: &mut Connection, page: u64) -> Vec<u8> {
    let mut b = vec![0; PAGE];
    assert_eq!(c.read_at(&mut b, page * PAGE as u64).unwrap(), PAGE);
    b
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn a_page_that_its_writer_read_is_not_read_again() {
    let (disk, engine) = database();
    let mut c = open(&engine);
    let mut commit = |read_first: &[u64], written: &[u64], version| {
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        for p in read_first {
            assert_eq!(read(&mut c, *p), stamped(*p, 0));
        }
        let before = disk.counters_of("/db").reads;
        for p in written {
            c.write_at(&stamped(*p, version), p * PAGE as u64).unwrap();
        }
        c.prepare(None).unwrap();
        c.sync().unwrap();
        c.commit().unwrap();
        c.unlock(LockLevel::None).unwrap();
        disk.counters_of("/db").reads - before
    };
    commit(&[], &[3], 1);
    assert_eq!(commit(&[9, 11], &[11, 9], 2), 0);
    assert_eq!(commit(&[12], &[12, 13], 3), 1);
    let many: Vec<u64> = (15..PAGES).collect();
    assert_eq!(commit(&many, &[15, PAGES - 1], 4), 1);
    assert_eq!(commit(&[], &[16], 5), 1);
    let versions = [(3, 1), (9, 2), (11, 2), (12, 3), (13, 3), (15, 4), (16, 5), (17, 0), (PAGES - 1, 4)];
    let mut c = open(&Engine::new(Arc::new(disk.crash_by(&mut |_| 0))));
    c.lock(LockLevel::Shared).unwrap();
    for (p, version) in versions {
        assert_eq!(read(&mut c, p), stamped(p, version), "page {p}");
    }
}

#[test]
fn a_scan_takes_a_few_reads_of_home() {
    let (disk, engine) = database();
    let mut c = open(&engine);
    c.lock(LockLevel::Shared).unwrap();
    let before = disk.counters_of("/db").reads;
    for p in 1..PAGES {
        assert_eq!(read(&mut c, p), stamped(p, 0));
    }
    let reads = disk.counters_of("/db").reads - before;
    assert!(reads < PAGES / 4, "{reads} reads for {PAGES} pages");
}

#[cfg_attr(windows, ignore = "it compares names of the simulated disk as Linux writes them")]
#[test]
fn pages_here_and_there_are_read_alone() {
    let (disk, engine) = database();
    let mut c = open(&engine);
    c.lock(LockLevel::Shared).unwrap();
    let before = disk.counters_of("/db").bytes_read;
    for p in (1..PAGES).step_by(5) {
        read(&mut c, p);
    }
    let bytes = disk.counters_of("/db").bytes_read - before;
    assert_eq!(bytes, (1..PAGES).step_by(5).count() as u64 * PAGE as u64);
}

#[test]
fn a_run_that_home_is_overwritten_under_is_read_again() {
    let (_, engine) = database();
    write(&mut open(&engine), &versioned(1..PAGES, 0));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut writer = open(&engine);
            for version in 1..60 {
                write(&mut writer, &versioned(1..PAGES, version));
                writer.pragma("checkpoint", None).unwrap().unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut reader = open(&engine);
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            reader.lock(LockLevel::Shared).unwrap();
            let versions: Vec<Vec<u8>> = (1..PAGES).map(|p| read(&mut reader, p)[PAGE - 8..].to_vec()).collect();
            assert!(versions.iter().all(|v| *v == versions[0]), "{versions:?}");
            reader.unlock(LockLevel::None).unwrap();
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    /// Pages from the reader's position.
    Read(u64),
    Renew,
    /// These pages.
    Commit(u64, u64),
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..12u64).prop_map(Step::Read),
        1 => Just(Step::Renew),
        3 => (1..PAGES, 1..6u64).prop_map(|(from, n)| Step::Commit(from, n)),
        2 => Just(Step::Checkpoint),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_snapshot_reads_the_same_beside_any_writer(steps in prop::collection::vec(step(), 1..60)) {
        let (_, engine) = database();
        let (mut reader, mut writer) = (open(&engine), open(&engine));
        let mut newest = vec![0; PAGES as usize];
        let mut version = 0;
        reader.lock(LockLevel::Shared).unwrap();
        // A reader of the plain file would delay the mark.
        reader.unlock(LockLevel::None).unwrap();
        write(&mut writer, &versioned(1..2, 0));
        reader.lock(LockLevel::Shared).unwrap();
        let mut seen = newest.clone();
        let mut at = 1;
        for step in steps {
            match step {
                Step::Read(count) => for _ in 0..count {
                    prop_assert_eq!(read(&mut reader, at), stamped(at, seen[at as usize]), "page {}", at);
                    at = if at + 1 == PAGES { 1 } else { at + 1 };
                },
                Step::Renew => {
                    reader.unlock(LockLevel::None).unwrap();
                    reader.lock(LockLevel::Shared).unwrap();
                    seen.clone_from(&newest);
                }
                Step::Commit(from, count) => {
                    version += 1;
                    let pages = from..(from + count).min(PAGES);
                    write(&mut writer, &versioned(pages.clone(), version));
                    pages.for_each(|p| newest[p as usize] = version);
                }
                Step::Checkpoint => {
                    writer.pragma("checkpoint", None).unwrap().unwrap();
                }
            }
        }
    }
}
