//! The process that takes a file into use has the writer's place from the moment in which others
//! may join (rule OneWriter).

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::hooked::{Call, Hooked};
use common::{PAGE, page, plain, try_write, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};
use parking_lot::Mutex;

fn read(c: &mut Connection, p: u64) -> Vec<u8> {
    c.lock(LockLevel::Shared).unwrap();
    let mut image = vec![0; PAGE];
    c.read_at(&mut image, p * PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    image
}

#[test]
fn no_process_writes_between_the_first_one_and_its_first_transaction() {
    let sim = SimDisk::new(SimConfig::default());
    sim.put_file(Path::new("/db"), &plain(0));
    let options = [("busy_ms".to_owned(), "30".to_owned())];
    let open = |disk: Arc<dyn Disk>| Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap();
    let process = Hooked::new(&sim);
    let mut first = open(Arc::new(process.clone()));
    let second = Arc::new(Mutex::new(open(Arc::new(sim.clone()))));
    let has_come = Arc::new(AtomicBool::new(false));
    let has_written = Arc::new(AtomicBool::new(false));
    let (other, came, written) = (second.clone(), has_come.clone(), has_written.clone());
    process.at("/db-onewrite", move |call| {
        // The last lock, of one byte, lets others in.
        if matches!(call, Call::Unlock { len: 1, .. }) && !came.swap(true, SeqCst) {
            let mut other = other.lock();
            written.store(try_write(&mut other, [(1, page(7))].into_iter()).is_ok(), SeqCst);
            let _ = other.unlock(LockLevel::None);
        }
    });
    write(&mut first, &[(2, page(1))]);
    assert!(has_come.load(SeqCst), "another process has come");
    assert!(!has_written.load(SeqCst), "two have written at once");
    let mut second = second.lock();
    write(&mut second, &[(1, page(8))]);
    write(&mut first, &[(2, page(2))]);
    for process in [&mut first, &mut second] {
        assert_eq!((read(process, 1), read(process, 2)), (page(8), page(2)));
    }
}
