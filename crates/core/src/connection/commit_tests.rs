//! How often a commit takes the lock of the database's state.

use std::path::Path;
use std::sync::Arc;

use super::{Connection, Engine, LockLevel};
use crate::database::state_lock::times_taken;
use crate::disk::OpenMode;
use crate::disk::sim::{SimConfig, SimDisk};

const PAGE: usize = 4096;

fn first_page() -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..16].copy_from_slice(b"SQLite format 3\0");
    page[16..24].copy_from_slice(&[16, 0, 1, 1, 0, 64, 32, 32]);
    page[31] = 2;
    page
}

/// As SQLite calls it for an `INSERT`. Returns how often each call took the lock.
fn transaction(c: &mut Connection, pages: &[(u64, Vec<u8>)]) -> Vec<(&'static str, u64)> {
    let mut taken = Vec::new();
    let mut step = |name, call: &mut dyn FnMut()| {
        let before = times_taken();
        call();
        taken.push((name, times_taken() - before));
    };
    c.note_transaction(false, false, true);
    step("xLock SHARED", &mut || c.lock(LockLevel::Shared).unwrap());
    step("xRead", &mut || {
        c.read_at(&mut [0; 16], 24).unwrap();
        c.read_at(&mut [0; PAGE], PAGE as u64).unwrap();
    });
    step("xLock RESERVED", &mut || c.lock(LockLevel::Reserved).unwrap());
    step("xLock EXCLUSIVE", &mut || c.lock(LockLevel::Exclusive).unwrap());
    step("xWrite", &mut || pages.iter().for_each(|(n, page)| c.write_at(page, n * PAGE as u64).unwrap()));
    step("FCNTL_SYNC", &mut || c.prepare(None).unwrap());
    step("xSync", &mut || c.sync().unwrap());
    step("FCNTL_COMMIT_PHASETWO", &mut || c.commit().unwrap());
    step("xUnlock SHARED", &mut || c.unlock(LockLevel::Shared).unwrap());
    step("xUnlock NONE", &mut || c.unlock(LockLevel::None).unwrap());
    taken
}

fn takes_at_most(most: u64, taken: &[(&'static str, u64)]) {
    let all: u64 = taken.iter().map(|(_, n)| n).sum();
    assert!(all <= most, "{all} times: {taken:?}");
}

/// Few bytes change, so no checkpoint comes between.
fn one(byte: u8) -> [(u64, Vec<u8>); 1] {
    let mut page = vec![1; PAGE];
    page[100] = byte;
    [(1, page)]
}

#[test]
fn a_commit_takes_the_lock_of_the_state_at_most_six_times() {
    let sim = SimDisk::new(SimConfig::default());
    let open = || Engine::new(Arc::new(sim.clone())).open(Path::new("/db"), OpenMode::Create, &[]).unwrap();
    let mut first = open();
    transaction(&mut first, &[(0, first_page()), (1, vec![1; PAGE])]);
    for byte in 2..8 {
        takes_at_most(6, &transaction(&mut first, &one(byte)));
    }
    let mut second = open();
    transaction(&mut second, &one(8));
    transaction(&mut first, &one(9));
    for byte in 10..16 {
        takes_at_most(6, &transaction(&mut first, &one(byte)));
    }
    for byte in 16..24 {
        for process in [&mut second, &mut first] {
            takes_at_most(6, &transaction(process, &one(byte)));
        }
    }
}
