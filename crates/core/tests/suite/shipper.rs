//! The process that ships commits to a store, beside others that die (rule StoreHasIt).

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::hooked::{Call, Hooked};
use common::{PAGE, page, plain, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Connection, Engine, LockLevel};

const RING: u64 = 3 * PAGE as u64;

fn shipper_beside_a_record_of_the_dead(sim: &SimDisk) -> Connection {
    sim.put_file(Path::new("/db"), &plain(0));
    let open = |disk: Arc<dyn Disk>, ships: &str| {
        let options = [("shipper".to_owned(), ships.to_owned())];
        Engine::new(disk).open(Path::new("/db"), OpenMode::ReadWrite, &options).unwrap()
    };
    let mut shipper = open(Arc::new(sim.clone()), "1");
    shipper.begin_shipping(Duration::from_secs(30)).unwrap();
    assert_eq!(ships(&mut shipper), page(0));
    let process = Hooked::new(sim);
    let dies = process.clone();
    let mut writer = open(Arc::new(process.clone()), "0");
    process.at("/db-onewrite", move |call| {
        if matches!(call, Call::Written { offset } if offset >= RING) {
            dies.die();
        }
    });
    assert!(catch_unwind(AssertUnwindSafe(|| write(&mut writer, &[(1, page(7))]))).is_err());
    std::mem::forget(writer);
    shipper
}

fn ships(shipper: &mut Connection) -> Vec<u8> {
    assert_eq!(shipper.wait_to_ship(1, Duration::ZERO).unwrap(), 1);
    let tid = shipper.lock_to_ship().unwrap();
    let mut image = vec![0; PAGE];
    shipper.read_at(&mut image, PAGE as u64).unwrap();
    shipper.unlock(LockLevel::None).unwrap();
    shipper.shipped(tid).unwrap();
    assert!(shipper.is_all_shipped().unwrap());
    image
}

#[test]
fn commits_of_the_dead_are_shipped_before_the_close() {
    let sim = SimDisk::new(SimConfig::default());
    let mut shipper = shipper_beside_a_record_of_the_dead(&sim);
    shipper.flush_to_ship(Duration::from_secs(30)).unwrap();
    assert_eq!(ships(&mut shipper), page(7));
    shipper.close().unwrap();
    let home = sim.snapshot_file(Path::new("/db")).unwrap();
    assert_eq!((home[19], &home[PAGE..2 * PAGE]), (1, &*page(7)), "the mark is off, and all is home");
}

#[test]
fn a_close_leaves_commits_that_the_store_lacks_to_the_next_shipper() {
    let sim = SimDisk::new(SimConfig::default());
    let shipper = shipper_beside_a_record_of_the_dead(&sim);
    shipper.close().unwrap();
    let home = sim.snapshot_file(Path::new("/db")).unwrap();
    assert_eq!(
        (home[19], &home[PAGE..2 * PAGE]),
        (87, &*page(0)),
        "the mark is on, and home is not ahead of the store"
    );
}
