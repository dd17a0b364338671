mod agree;
mod crash;
mod faults;

use std::collections::BTreeSet;

use super::*;

const UNIT: usize = 512;

fn disk() -> SimDisk {
    SimDisk::new(SimConfig { atomic_unit: UNIT as u32, ..SimConfig::default() })
}

fn db() -> &'static Path {
    Path::new("db")
}

fn create(disk: &dyn Disk, path: &str) -> Arc<dyn DiskFile> {
    disk.open(Path::new(path), OpenMode::Create).unwrap()
}

fn at_rest(bytes: &[u8]) -> (SimDisk, Arc<dyn DiskFile>) {
    let disk = disk();
    disk.put_file(db(), bytes);
    let file = disk.open(db(), OpenMode::ReadWrite).unwrap();
    (disk, file)
}

/// None: no file.
fn outcomes(disk: &SimDisk) -> BTreeSet<Option<Vec<u8>>> {
    let firsts = |bytes: Vec<u8>| bytes.chunks(UNIT).map(|unit| unit[0]).collect();
    disk.crashes().map(|(_, crashed)| crashed.snapshot_file(db()).map(firsts)).collect()
}

fn set<const N: usize>(outcomes: [&[u8]; N]) -> BTreeSet<Option<Vec<u8>>> {
    outcomes.into_iter().map(|outcome| Some(outcome.to_vec())).collect()
}
