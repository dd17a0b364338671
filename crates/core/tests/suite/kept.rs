//! A process that reads a file at rest often keeps SQLite's SHARED between its transactions: no
//! other process changes the file meanwhile, and one that wants to is let in.

use crate::common;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::{PAGE, page, plain};
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::sim::{SimConfig, SimDisk};
use onewrite_core::disk::{Disk, DiskFile, LockKind, OpenMode};
use onewrite_core::{Connection, Engine, Error, Instant, LockLevel};

const PENDING: u64 = 0x4000_0000;
const RESERVED: u64 = PENDING + 1;
const SHARED: u64 = PENDING + 2;
const PATIENCE: Duration = Duration::from_secs(20);

struct Ground {
    engine: Arc<Engine>,
    conn: Connection,
    other: Arc<dyn DiskFile>,
    _dir: tempfile::TempDir,
}

fn ground() -> Ground {
    // Wine's locks take too long to be taken often.
    if cfg!(windows) { ground_on(SimDisk::new(SimConfig::default())) } else { ground_on(RealDisk::new()) }
}

/// A thread looks after the databases of the process that reads.
fn ground_on(disk: impl Disk + Clone + 'static) -> Ground {
    let engine = Engine::new(Arc::new(disk.clone()));
    engine.on_attach(|_| true);
    ground_of(engine, disk)
}

/// A process that reads, and another's open file.
fn ground_of(engine: Arc<Engine>, disk: impl Disk) -> Ground {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let other = disk.open(&path, OpenMode::Create).unwrap();
    other.write_at(&plain(0), 0).unwrap();
    other.write_at(&page(0), 2 * PAGE as u64).unwrap();
    let conn = engine.open(&path, OpenMode::ReadWrite, &[("busy_ms".into(), "0".into())]).unwrap();
    Ground { engine, conn, other, _dir: dir }
}

fn number(c: &mut Connection) -> Result<u64, Error> {
    c.lock(LockLevel::Shared)?;
    let mut pages = vec![0; 2 * PAGE];
    c.read_at(&mut pages, PAGE as u64).unwrap();
    c.unlock(LockLevel::None).unwrap();
    let n = u64::from_le_bytes(pages[200..208].try_into().unwrap());
    assert!(pages == [page(n), page(n)].concat(), "pages of two transactions");
    Ok(n)
}

impl Ground {
    fn is_kept(&self) -> bool {
        self.other.conflicts(SHARED, 510, LockKind::Exclusive).unwrap()
    }

    /// Reads often, until the lock is kept or `PATIENCE` is over.
    fn reads_often(&mut self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while !self.is_kept() {
            if Instant::now() >= until {
                return false;
            }
            (0..100).for_each(|_| assert!(number(&mut self.conn).is_ok()));
        }
        true
    }

    fn look_after(&self, after: Duration) -> Option<Duration> {
        self.engine.look_after(Instant::now() + after, |path, e| panic!("{}: {e}", path.display()))
    }
}

/// As stock SQLite writes: RESERVED, PENDING, EXCLUSIVE, both pages and the change counter.
fn write(home: &dyn DiskFile, n: u64) {
    let until = Instant::now() + PATIENCE;
    for (from, len) in [(RESERVED, 1), (PENDING, 1), (SHARED, 510)] {
        while !home.try_lock(from, len, LockKind::Exclusive).unwrap() {
            assert!(Instant::now() < until, "readers never leave");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    home.write_at(&page(n), PAGE as u64).unwrap();
    home.write_at(&page(n), 2 * PAGE as u64).unwrap();
    home.write_at(&(n as u32 + 1000).to_be_bytes(), 24).unwrap();
    home.write_at(&(n as u32 + 1000).to_be_bytes(), 92).unwrap();
    home.unlock(PENDING, 512).unwrap();
}

#[test]
fn a_lock_that_was_kept_is_given_back_when_no_transaction_comes() {
    for mut ground in [ground_on(SimDisk::new(SimConfig::default())), ground()] {
        assert_eq!(number(&mut ground.conn).unwrap(), 0);
        assert!(!ground.is_kept(), "one transaction is not often");
        assert!(ground.reads_often(PATIENCE), "SHARED is never kept");
        assert!(ground.look_after(Duration::ZERO).is_none_or(|next| next <= Duration::from_millis(1)));
        assert_eq!(ground.look_after(Duration::from_secs(1)), None);
        assert!(!ground.is_kept(), "the file is at rest");
        write(&*ground.other, 7);
        assert_eq!(number(&mut ground.conn).unwrap(), 7);
        assert!(ground.reads_often(PATIENCE), "and again");
        ground.conn.close().unwrap();
        assert!(ground.other.try_lock(PENDING, 512, LockKind::Exclusive).unwrap(), "a closed database has no lock");
    }
}

#[test]
fn a_transaction_has_shared_also_right_behind_the_end_of_a_kept_lock() {
    let mut ground = ground();
    for _ in 0..100 {
        assert!(ground.reads_often(PATIENCE));
        ground.look_after(Duration::from_secs(1));
        ground.conn.lock(LockLevel::Shared).unwrap();
        assert!(ground.is_kept());
        ground.conn.unlock(LockLevel::None).unwrap();
    }
}

#[test]
fn where_no_thread_would_give_it_back_no_lock_is_kept() {
    for has_hook in [false, true] {
        let disk = SimDisk::new(SimConfig::default());
        let engine = Engine::new(Arc::new(disk.clone()));
        if has_hook {
            engine.on_attach(|_| false);
        }
        let mut ground = ground_of(engine, disk);
        assert!(!ground.reads_often(Duration::from_millis(50)));
    }
}

#[test]
fn beside_a_process_that_is_about_to_write_no_lock_is_kept() {
    let mut ground = ground();
    assert!(ground.other.try_lock(RESERVED, 1, LockKind::Exclusive).unwrap());
    assert!(!ground.reads_often(Duration::from_millis(50)), "a writer without patience would fail");
    ground.other.unlock(RESERVED, 1).unwrap();
    assert!(ground.reads_often(PATIENCE));
    assert!(ground.other.try_lock(PENDING, 1, LockKind::Exclusive).unwrap());
    let until = Instant::now() + PATIENCE;
    while number(&mut ground.conn).is_ok() {
        assert!(Instant::now() < until, "the reader never makes way");
    }
    assert!(!ground.is_kept());
    ground.other.unlock(PENDING, 1).unwrap();
    assert_eq!(number(&mut ground.conn).unwrap(), 0);
}

#[test]
fn a_transaction_that_begins_behind_anothers_write_sees_it() {
    let mut ground = ground();
    let (other, written) = (ground.other.clone(), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=200 {
                write(&*other, n);
                written.store(n, SeqCst);
                std::thread::sleep(Duration::from_micros(n % 5 * 100));
            }
        });
        let mut seen = 0;
        while seen < 200 {
            let before = written.load(SeqCst);
            match number(&mut ground.conn) {
                Ok(n) => {
                    assert!(n >= before.max(seen), "{n} behind {before} and {seen}");
                    seen = n;
                }
                Err(Error::Busy(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
    });
}

#[test]
fn a_connection_of_the_same_process_writes_beside_one_that_reads_often() {
    let mut ground = ground();
    let mut writer = ground.engine.open(&ground._dir.path().join("db"), OpenMode::ReadWrite, &[]).unwrap();
    for n in 1..=20 {
        assert!(ground.reads_often(PATIENCE));
        common::write(&mut writer, &[(1, page(n)), (2, page(n))]);
        assert_eq!(number(&mut ground.conn).unwrap(), n);
        ground.engine.rest(|path, e| panic!("{}: {e}", path.display()));
        assert!(!ground.is_kept(), "the file is at rest");
    }
}
