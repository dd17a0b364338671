//! Recovery builds no page image before it is needed. Any later reader, even after a loss of home,
//! log and page, finds the records' content (rule OldImageKept), or an error.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::{PAGE, plain, try_write, write};
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::LogFile;
use onewrite_core::{Connection, Engine, LockLevel, Result};

const HOME: &str = "/db";
const LOG: &str = "/db-onewrite";
const PAGES: u64 = 60;

/// Of the last transaction of each page; 0: none.
type Model = Vec<u64>;

fn header(pages: u64) -> Vec<u8> {
    let mut first = plain(0)[..PAGE].to_vec();
    first[28..32].copy_from_slice(&(pages as u32).to_be_bytes());
    first
}

fn open_with(disk: &SimDisk, options: &[(&str, &str)]) -> Connection {
    let options: Vec<_> = options.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap()
}

fn open(disk: &SimDisk) -> Connection {
    open_with(disk, &[])
}

fn image(index: u64, n: u64) -> Vec<u8> {
    let mut b = vec![index as u8; PAGE];
    if n % 5 == 4 {
        b.iter_mut().enumerate().for_each(|(at, b)| *b = (at as u64 * (n + 1) / 3) as u8);
    }
    b[8..16].copy_from_slice(&n.to_le_bytes());
    let at = 100 + (n as usize * 331) % 3000;
    b[at..at + 8].copy_from_slice(&n.to_le_bytes());
    b
}

fn commit(c: &mut Connection, model: &mut Model, n: u64) {
    let mut pages: Vec<u64> =
        [31, 67, 101].map(|step| 1 + n.wrapping_mul(step).wrapping_mul(0x9e37_79b9) / 7 % (PAGES / 2)).to_vec();
    pages.sort_unstable();
    pages.dedup();
    write(c, &pages.iter().map(|page| (*page, image(*page, n))).collect::<Vec<_>>());
    pages.iter().for_each(|page| model[*page as usize] = n);
}

fn read(c: &mut Connection, index: u64) -> Result<u64> {
    let mut page = vec![0; PAGE];
    c.read_at(&mut page, index * PAGE as u64)?;
    let n = u64::from_le_bytes(page[8..16].try_into().unwrap());
    assert!(page == image(index, n), "page {index} is of no transaction");
    Ok(n)
}

fn reads(c: &mut Connection) -> Model {
    std::iter::once(0).chain((1..PAGES).map(|index| read(c, index).unwrap())).collect()
}

fn look(c: &mut Connection) -> Model {
    c.lock(LockLevel::Shared).unwrap();
    let model = reads(c);
    c.unlock(LockLevel::None).unwrap();
    model
}

fn killed(count: u64) -> (SimDisk, Model) {
    let disk = SimDisk::new(SimConfig::default());
    let mut bytes = header(PAGES);
    bytes.extend((1..PAGES).flat_map(|index| image(index, 0)));
    disk.put_file(Path::new(HOME), &bytes);
    let (mut c, mut model) = (open(&disk), vec![0; PAGES as usize]);
    (1..=count).for_each(|n| commit(&mut c, &mut model, n));
    std::mem::forget(c);
    (disk.survive(), model)
}

fn is_home(disk: &SimDisk, model: &Model) -> bool {
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    (1..PAGES).all(|index| home[index as usize * PAGE..][..PAGE] == image(index, model[index as usize]))
}

#[test]
fn the_first_row_does_not_wait_for_other_pages() {
    let reads = |count| {
        let (disk, _) = killed(count);
        disk.reset_counters();
        let mut c = open(&disk);
        c.lock(LockLevel::Shared).unwrap();
        read(&mut c, 7).unwrap();
        disk.counters_of(HOME).reads
    };
    assert_eq!(reads(1), reads(3));
}

#[test]
fn readers_and_writers_make_the_images_that_they_need() {
    for count in [1, 9, 40] {
        let (disk, mut model) = killed(count);
        let mut c = open(&disk);
        let mut other = open(&disk);
        assert!(look(&mut c) == model && look(&mut c) == model, "{count}");
        assert!(look(&mut other) == model, "another process, {count}");
        drop(other);
        let again = disk.survive();
        let mut c = open(&again);
        (count + 1..count + 4).for_each(|n| commit(&mut c, &mut model, n));
        std::mem::forget(c);
        let third = again.survive();
        let mut c = open(&third);
        assert!(look(&mut c) == model, "{count}");
        c.close().unwrap();
        assert!(is_home(&third, &model), "{count}");
    }
}

#[test]
fn a_checkpoint_makes_the_rest() {
    let (disk, model) = killed(30);
    let close = |disk: &SimDisk, read_first: bool| -> Result<()> {
        let mut c = Engine::new(Arc::new(disk.clone())).open(Path::new(HOME), OpenMode::ReadWrite, &[])?;
        c.lock(LockLevel::Shared)?;
        if read_first {
            assert_eq!(read(&mut c, 5)?, model[5]);
        }
        c.unlock(LockLevel::None)?;
        c.close()
    };
    for read_first in [false, true] {
        let whole = disk.survive();
        let before = whole.ops();
        close(&whole, read_first).unwrap();
        assert!(is_home(&whole, &model));
        for stop in 0..whole.ops() - before {
            let cut = disk.survive();
            cut.stop_after(stop);
            let _ = close(&cut, read_first);
            for seed in 0..4 {
                let after = cut.crash(seed);
                let mut c = open(&after);
                assert!(look(&mut c) == model, "operation {stop}, seed {seed}");
                c.close().unwrap();
                assert!(is_home(&after, &model), "operation {stop}, seed {seed}");
            }
        }
    }
}

#[test]
fn an_older_snapshot_keeps_its_images() {
    for by_another in [false, true] {
        let (disk, mut model) = killed(6);
        let engine = Engine::new(Arc::new(disk.clone()));
        let options = [("table_size", "64k"), ("log_size", "256k")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let open = |engine: &Arc<Engine>| engine.open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap();
        let mut reader = open(&engine);
        reader.lock(LockLevel::Shared).unwrap();
        assert_eq!(read(&mut reader, 2).unwrap(), model[2]);
        let pinned = model.clone();
        let other = Engine::new(Arc::new(disk.clone()));
        let mut writer = open(if by_another { &other } else { &engine });
        let slots = || LogFile::open(&disk, Path::new(LOG), OpenMode::ReadOnly).unwrap().unwrap().slots().unwrap();
        let begun = slots()[0].sequence;
        (7..200).for_each(|n| commit(&mut writer, &mut model, n));
        assert!(slots()[0].sequence > begun + 2, "checkpoints came by");
        assert!(reads(&mut reader) == pinned, "by another process: {by_another}");
        reader.unlock(LockLevel::None).unwrap();
        assert!(look(&mut reader) == model && look(&mut writer) == model);
    }
}

#[test]
fn a_page_that_is_added_again_leaves_a_snapshot_its_image() {
    let (disk, model) = killed(12);
    let last = (1..PAGES).rev().find(|index| model[*index as usize] > 0).unwrap();
    let options = [("table_size".to_owned(), "64k".to_owned())];
    let engine = Engine::new(Arc::new(disk.clone()));
    let open = || engine.open(Path::new(HOME), OpenMode::ReadWrite, &options).unwrap();
    let (mut reader, mut writer) = (open(), open());
    reader.lock(LockLevel::Shared).unwrap();
    let shorten = |c: &mut Connection, pages: u64| {
        c.lock(LockLevel::Shared).unwrap();
        c.lock(LockLevel::Reserved).unwrap();
        c.write_at(&header(pages), 0).unwrap();
        c.prepare(None).unwrap();
        c.sync().unwrap();
        c.commit().unwrap();
        c.truncate(pages * PAGE as u64).unwrap();
        c.unlock(LockLevel::None).unwrap();
    };
    shorten(&mut writer, last);
    let added = (last..PAGES).map(|index| (index, image(index, 77)));
    try_write(&mut writer, std::iter::once((0, header(PAGES))).chain(added)).unwrap();
    for n in 78..120 {
        let some: Vec<_> = (last + 1..PAGES).filter(|index| index % 3 == n % 3).map(|i| (i, image(i, n))).collect();
        write(&mut writer, &some);
    }
    let home = disk.snapshot_file(Path::new(HOME)).unwrap();
    assert!(home[last as usize * PAGE..][..PAGE] == image(last, 77), "it went home");
    assert!(reads(&mut reader) == model);
}

#[test]
fn a_log_that_changes_underneath() {
    let (disk, model) = killed(9);
    let mut c = open(&disk);
    c.lock(LockLevel::Shared).unwrap();
    let log = disk.open(Path::new(LOG), OpenMode::ReadWrite).unwrap();
    log.write_at(&[0x5a; 40 << 10], 12 << 10).unwrap();
    assert!(reads(&mut c) == model);
}

/// Never zeros under the records' changes.
#[test]
fn a_home_that_is_cut_short_underneath() {
    let (disk, model) = killed(9);
    let last = (1..PAGES).rev().find(|index| model[*index as usize] > 0).unwrap();
    let mut c = open(&disk);
    c.lock(LockLevel::Shared).unwrap();
    let home = disk.open(Path::new(HOME), OpenMode::ReadWrite).unwrap();
    home.set_len(last * PAGE as u64 + 100).unwrap();
    assert_eq!(read(&mut c, last - 1).unwrap(), model[last as usize - 1]);
    let refused = read(&mut c, last).unwrap_err().to_string();
    assert!(refused.contains("ends within page"), "{refused}");
    c.unlock(LockLevel::None).unwrap();
    let refused = c.close().map(drop).unwrap_err().to_string();
    assert!(refused.contains("ends within page"), "{refused}");
}
