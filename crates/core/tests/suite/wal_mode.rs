//! A file in SQLite's WAL mode, whose users may bring pages home until none has it open in that
//! mode (rule ModeUnderLock).

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::hooked::{Call, Hooked};
use common::{PAGE, page, plain};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::{Engine, LockLevel};

const RESERVED: u64 = 0x4000_0001;

fn in_wal_mode(pages: u64) -> Vec<u8> {
    let mut bytes = plain(0)[..PAGE].to_vec();
    bytes[18..20].copy_from_slice(&[2, 2]);
    (bytes[27], bytes[31], bytes[95]) = (pages as u8, pages as u8, pages as u8);
    bytes.extend((1..pages).flat_map(page));
    bytes
}

#[test]
fn frames_checkpointed_until_the_last_other_user_leaves_count() {
    for (before, after) in [(3, 5), (5, 3), (4, 4)] {
        let sim = SimDisk::new(SimConfig::default());
        sim.put_file(Path::new("/db"), &in_wal_mode(before));
        let process = Hooked::new(&sim);
        let engine = Engine::new(Arc::new(process.clone()));
        let mut c = engine.open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
        let file = sim.open(Path::new("/db"), OpenMode::ReadWrite).unwrap();
        let mut is_first = true;
        process.at("/db", move |call| {
            if matches!(call, Call::Lock { start: RESERVED, len: 1, .. }) && std::mem::take(&mut is_first) {
                file.write_at(&in_wal_mode(after), 0).unwrap();
            }
        });
        c.lock(LockLevel::Shared).unwrap();
        let mut header = vec![0; PAGE];
        assert_eq!(c.read_at(&mut header, 0).unwrap(), PAGE);
        assert_eq!(&header[18..20], [1, 1], "it is out of WAL mode");
        assert_eq!(u64::from(header[31]), after, "{before} pages, then {after}");
        c.unlock(LockLevel::None).unwrap();
        let file = sim.open(Path::new("/db"), OpenMode::ReadOnly).unwrap();
        let mut header = vec![0; PAGE];
        file.read_at(&mut header, 0).unwrap();
        assert_eq!((&header[18..20], u64::from(header[31])), (&[2, 1][..], after), "it goes back with the last close");
    }
}
