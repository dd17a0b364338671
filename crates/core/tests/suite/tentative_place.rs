//! A write transaction with its place before its snapshot never finds that stale, and states that
//! are not visible yet stay hidden (invariant I4).

use crate::common;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{PAGE, page, plain};
use onewrite_core::disk::sim::{Op, SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, OpenMode};
use onewrite_core::{Connection, Engine, Error, LockLevel};
use parking_lot::{Condvar, Mutex};

const HANG: Duration = Duration::from_secs(30);

/// Shut, it stops flushes.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    changed: Condvar,
    reached: AtomicBool,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock();
        self.reached.fetch_or(*shut, Ordering::SeqCst);
        while *shut {
            self.changed.wait(&mut shut);
        }
    }

    fn wait_for_a_flush(&self) {
        while !self.reached.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

struct Gated(SimDisk, Arc<Gate>);
struct GatedFile(Arc<dyn DiskFile>, Arc<Gate>);

impl Disk for Gated {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(GatedFile(self.0.open(path, mode)?, self.1.clone())))
    }

    onewrite_core::forward_disk!(
        this => this.0;
        remove, rename, names_beside, exchange, identify, resolve, exists, sync_dir_of, sync_all_beside, temp_file
    );
}

impl DiskFile for GatedFile {
    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.1.pass();
        self.0.write_durable_at(buf, offset)
    }

    onewrite_core::forward_disk_file!(
        this => this.0;
        id, len, read_once_at, write_at, sync, set_len, reserve, try_lock, unlock, atomic_unit_bytes
    );
}

fn two_writers() -> (Connection, Connection, Arc<Gate>) {
    two_writers_on(&SimDisk::new(SimConfig::default()))
}

fn two_writers_on(disk: &SimDisk) -> (Connection, Connection, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    disk.open(Path::new("/db"), OpenMode::Create).unwrap().write_at(&plain(0), 0).unwrap();
    let engine = Engine::new(Arc::new(Gated(disk.clone(), gate.clone())));
    let mut writers = [1, 2].map(|n| {
        let mut c = engine.open(Path::new("/db"), OpenMode::ReadWrite, &[]).unwrap();
        for i in 0..5 {
            common::commit(&mut c, 10 * n + i);
        }
        c
    });
    let [a, b] = &mut writers;
    common::commit(a, 98);
    common::commit(b, 99);
    let [a, b] = writers;
    (a, b, gate)
}

fn commit_page_1(c: &mut Connection, change: impl FnOnce(&mut [u8])) {
    try_page_1(c, change).unwrap();
}

fn try_page_1(c: &mut Connection, change: impl FnOnce(&mut [u8])) -> Result<(), Error> {
    let mut first = vec![0; PAGE];
    c.lock(LockLevel::Shared).unwrap();
    c.lock(LockLevel::Reserved).unwrap();
    c.read_at(&mut first, 0).unwrap();
    change(&mut first);
    c.write_at(&first, 0).unwrap();
    c.write_at(&page(100), PAGE as u64).unwrap();
    c.prepare(None).unwrap();
    c.sync().unwrap();
    c.commit()?;
    c.unlock(LockLevel::None)
}

/// SQLite reads on in a transaction whose statement failed, and has pragmas that read nothing.
#[test]
fn a_state_whose_flush_failed_is_not_shown_by_the_next_read_either() {
    for asks_size in [false, true] {
        let disk = SimDisk::new(SimConfig::default());
        let (mut a, mut b, gate) = two_writers_on(&disk);
        gate.set(true);
        std::thread::scope(|s| {
            let grows = |first: &mut [u8]| first[28..32].copy_from_slice(&4u32.to_be_bytes());
            let growing = s.spawn(move || try_page_1(&mut a, grows));
            gate.wait_for_a_flush();
            disk.fail_nth(Op::WriteDurable, 1, io::ErrorKind::Other);
            let (came, has_come) = std::sync::mpsc::channel();
            let next = s.spawn(move || {
                b.lock(LockLevel::Shared).unwrap();
                let mut first = vec![0; PAGE];
                b.read_at(&mut first[..32], 0).unwrap();
                assert_eq!(first[28..32], 4u32.to_be_bytes(), "it builds on what is published");
                came.send(()).unwrap();
                for _ in 0..2 {
                    if asks_size {
                        b.note_size_asked().unwrap_err();
                    } else {
                        b.read_at(&mut first, PAGE as u64).unwrap_err();
                    }
                }
            });
            let came_in = has_come.recv_timeout(HANG);
            gate.set(false);
            growing.join().unwrap().unwrap_err();
            next.join().unwrap();
            came_in.expect("it waited for the flush of the one before");
        });
    }
}

#[test]
fn a_file_that_only_grew_lets_the_next_writer_in_before_the_flush() {
    let (mut a, mut b, gate) = two_writers();
    gate.set(true);
    std::thread::scope(|s| {
        let growing = s.spawn(|| commit_page_1(&mut a, |first| first[28..32].copy_from_slice(&4u32.to_be_bytes())));
        gate.wait_for_a_flush();
        let (done, is_done) = std::sync::mpsc::channel();
        let next = s.spawn(move || {
            b.lock(LockLevel::Shared).unwrap();
            let mut first = vec![0; PAGE];
            assert_eq!(b.read_at(&mut first, 0).unwrap(), PAGE);
            assert_eq!(first[28..32], 4u32.to_be_bytes(), "it builds on what is published");
            b.lock(LockLevel::Reserved).unwrap();
            done.send(()).unwrap();
            b.unlock(LockLevel::None).unwrap();
        });
        let came_in = is_done.recv_timeout(HANG);
        gate.set(false);
        growing.join().unwrap();
        next.join().unwrap();
        came_in.expect("it waited for the flush of the one before");
    });
}

/// Its change of another file may follow from the state that it read here.
#[test]
fn a_transaction_that_changes_only_another_file_ends_behind_the_flush_of_its_snapshot() {
    for fails in [false, true] {
        let disk = SimDisk::new(SimConfig::default());
        let (mut a, mut b, gate) = two_writers_on(&disk);
        gate.set(true);
        let flushed = AtomicBool::new(false);
        std::thread::scope(|s| {
            let grows = |first: &mut [u8]| first[28..32].copy_from_slice(&4u32.to_be_bytes());
            let growing = s.spawn(move || try_page_1(&mut a, grows));
            gate.wait_for_a_flush();
            if fails {
                disk.fail_nth(Op::WriteDurable, 1, io::ErrorKind::Other);
            }
            let (came, has_come) = std::sync::mpsc::channel();
            let (b, flushed_now) = (&mut b, &flushed);
            let next = s.spawn(move || {
                b.lock(LockLevel::Shared).unwrap();
                b.lock(LockLevel::Reserved).unwrap();
                b.read_at(&mut [0; PAGE], PAGE as u64).unwrap();
                came.send(()).unwrap();
                b.note_span(true);
                let ends = b.lock(LockLevel::Exclusive);
                assert!(flushed_now.load(Ordering::SeqCst), "it ends before the flush");
                ends
            });
            let came_in = has_come.recv_timeout(HANG);
            std::thread::sleep(Duration::from_millis(50));
            flushed.store(true, Ordering::SeqCst);
            gate.set(false);
            came_in.expect("it waited for the flush of the one before");
            assert_eq!(growing.join().unwrap().is_err(), fails);
            assert_eq!(next.join().unwrap().is_err(), fails);
        });
    }
}

#[test]
fn a_changed_schema_is_shown_after_its_flush() {
    let (mut a, mut b, gate) = two_writers();
    gate.set(true);
    let opened = AtomicBool::new(false);
    std::thread::scope(|s| {
        let changing = s.spawn(|| commit_page_1(&mut a, |first| first[PAGE - 1] = 77));
        gate.wait_for_a_flush();
        let next = s.spawn(|| {
            b.lock(LockLevel::Shared).unwrap();
            let mut first = vec![0; PAGE];
            assert_eq!(b.read_at(&mut first, 0).unwrap(), PAGE);
            assert!(first[PAGE - 1] != 77 || opened.load(Ordering::SeqCst), "shown before it was durable");
            b.lock(LockLevel::Reserved).unwrap();
            b.unlock(LockLevel::None).unwrap();
        });
        std::thread::sleep(Duration::from_millis(50));
        opened.store(true, Ordering::SeqCst);
        gate.set(false);
        changing.join().unwrap();
        next.join().unwrap();
    });
}

/// `PRAGMA journal_mode=WAL` and checkpoints of others leave the place to one that thinks.
#[test]
fn a_checkpoint_takes_no_place_from_a_writer_that_thinks() {
    let disk = SimDisk::new(SimConfig::default());
    disk.put_file(Path::new("/db"), &plain(0));
    let process = || Engine::new(Arc::new(disk.clone()));
    let open = |engine: &Arc<Engine>| {
        let busy_ms = [("busy_ms".to_owned(), "10".to_owned())];
        engine.open(Path::new("/db"), OpenMode::ReadWrite, &busy_ms).unwrap()
    };
    let (first, second) = (process(), process());
    let (mut thinker, mut other) = (open(&first), open(&second));
    common::commit(&mut thinker, 1);
    common::commit(&mut other, 2);
    thinker.note_transaction(true, false, true);
    thinker.lock(LockLevel::Shared).unwrap();
    other.ask_for_wal(true);
    assert!(other.checkpoint().is_err(), "a writer is at work");
    assert!(common::try_fill(&mut other, 1, 3).is_err(), "the place is kept");
    other.unlock(LockLevel::None).unwrap();
    thinker.note_transaction(true, true, true);
    thinker.lock(LockLevel::Reserved).unwrap();
    thinker.unlock(LockLevel::None).unwrap();
}
