//! SQLite's own locks on home (SQLite file locking, section 3), on one open file per process,
//! against stock SQLite.
//!
//! Connections of this process lock each other in memory.

use std::time::Duration;

use crate::base::clock::{self, Instant};
use crate::base::error::{IoContext, Result};
use crate::disk::processes::{self, HeldLock};
use crate::disk::{DiskFile, LockKind};

const PENDING: u64 = 0x4000_0000;
const RESERVED: u64 = PENDING + 1;
const SHARED: u64 = PENDING + 2;
const SHARED_BYTES: u64 = 510;
/// A process that writes a marked home has one of the first bytes of SHARED to itself. Stock SQLite
/// locks all of them at once, to read as to write.
const OWN_BYTES: u64 = SHARED_BYTES - 2;
/// Locked only with all others.
const OF_ALL: u64 = SHARED + OWN_BYTES;
/// Of the processes without an own byte: it keeps writers out.
const COMMON: u64 = OF_ALL + 1;

/// Locks in SQLite's words, from the weakest.
pub fn names(held: &[HeldLock]) -> Vec<&'static str> {
    let has = |first: u64, exclusive| {
        held.iter().any(|lock| lock.exclusive >= exclusive && lock.first <= first && lock.last >= first)
    };
    let has_own = held.iter().any(|lock| lock.exclusive && (SHARED..OF_ALL).contains(&lock.first));
    let all = [
        ("SHARED", has(COMMON, false) && !has(COMMON, true)),
        ("IN_USE", has_own && !has(COMMON, true)),
        ("RESERVED", has(RESERVED, true)),
        ("PENDING", has(PENDING, true)),
        ("EXCLUSIVE", has(COMMON, true)),
    ];
    all.into_iter().filter_map(|(name, is_held)| is_held.then_some(name)).collect()
}

/// The process of stock SQLite in the way of a lock, where known, and its strongest lock.
pub fn posix_owner(home: &dyn DiskFile) -> Option<(u32, &'static str)> {
    let ranges = [(PENDING, 1, "PENDING"), (RESERVED, 1, "RESERVED"), (SHARED, SHARED_BYTES, "SHARED")];
    ranges.into_iter().find_map(|(offset, len, name)| Some((home.posix_owner(offset, len)?, name)))
}

/// For a message, with a space before it.
pub fn by_owner(home: &dyn DiskFile) -> String {
    posix_owner(home).map_or(String::new(), |(pid, lock)| format!(": {} holds {lock}", processes::name(pid)))
}

fn what() -> String {
    "cannot lock the database file".into()
}

/// Takes SHARED. False while another process is about to write, or uses a marked home.
///
/// SQLite locks PENDING meanwhile. A look behind SHARED saves that call: an earlier PENDING is
/// seen, a later one waits for this reader.
pub fn shared(home: &dyn DiskFile) -> Result<bool> {
    if !home.try_lock(SHARED, SHARED_BYTES, LockKind::Shared).context(what)? {
        return Ok(false);
    }
    let is_pending = home.conflicts(PENDING, 1, LockKind::Shared).context(what);
    if !matches!(is_pending, Ok(false)) {
        home.unlock(SHARED, SHARED_BYTES).context(what)?;
    }
    is_pending.map(|is_pending| !is_pending)
}

/// In place of SHARED, of a home that others use: a byte that they do not take. No process gets
/// EXCLUSIVE meanwhile. False while one has it.
pub fn common(home: &dyn DiskFile) -> Result<bool> {
    let got = home.try_lock(COMMON, 1, LockKind::Shared).context(what)?;
    if got {
        home.unlock(SHARED, SHARED_BYTES - 1).context(what)?;
    }
    Ok(got)
}

/// From SHARED or more, of a marked home: a byte that no other process has, so that stock SQLite
/// gets BUSY before it reads the header (rule StockKeptOut). False, with the lock of [`common`],
/// while another process has all of SHARED, or each byte has its process.
pub fn in_use(home: &dyn DiskFile) -> Result<bool> {
    for own in SHARED..OF_ALL {
        if home.try_lock(own, 1, LockKind::Exclusive).context(what)? {
            home.unlock(own + 1, COMMON - own).context(what)?;
            home.unlock(PENDING, own - PENDING).context(what)?;
            return Ok(true);
        }
        if own == SHARED && home.conflicts(OF_ALL, 1, LockKind::Exclusive).context(what)? {
            break;
        }
    }
    common(home).map(|_| false)
}

/// Whether another process has a byte by [`in_use`], or is about to write.
pub fn is_in_use(home: &dyn DiskFile) -> Result<bool> {
    home.conflicts(PENDING, 2 + SHARED_BYTES, LockKind::Shared).context(what)
}

/// Whether another process has SHARED; on a system's disk, this file's own lock does not count.
pub fn has_others(home: &dyn DiskFile) -> Result<bool> {
    home.conflicts(SHARED, SHARED_BYTES, LockKind::Exclusive).context(what)
}

/// Above RESERVED: no reader begins. False if another process has it.
pub fn pending(home: &dyn DiskFile) -> Result<bool> {
    home.try_lock(PENDING, 1, LockKind::Exclusive).context(what)
}

/// Takes RESERVED above SHARED. False if another process has it.
pub fn reserve(home: &dyn DiskFile) -> Result<bool> {
    home.try_lock(RESERVED, 1, LockKind::Exclusive).context(what)
}

pub fn unreserve(home: &dyn DiskFile) -> Result<()> {
    home.unlock(RESERVED, 1).context(what)
}

/// Back to SHARED, or to no lock.
pub fn release_pending(home: &dyn DiskFile) -> Result<()> {
    home.unlock(PENDING, 2).context(what)
}

/// False, with SHARED kept, if another reads or writes. As in SQLite, RESERVED comes last: beside
/// it, others take a dead writer's journal for that of a living one, and read what it left.
pub fn exclusive(home: &dyn DiskFile) -> Result<bool> {
    Ok(exclusive_from_reserved(home, Duration::ZERO)? && reserve(home)?)
}

/// The same from [`in_use`], without PENDING: stock SQLite takes it for a moment as it is kept out.
pub fn exclusive_in_use(home: &dyn DiskFile) -> Result<bool> {
    let got = reserve(home)? && alone_from_reserved(home, Duration::ZERO)?;
    if got { Ok(true) } else { unreserve(home).map(|()| false) }
}

/// Raises RESERVED to EXCLUSIVE, keeping new readers out meanwhile. False, with RESERVED kept, if
/// one reads for longer than `patience`.
pub fn exclusive_from_reserved(home: &dyn DiskFile, patience: Duration) -> Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let got = pending(home)? && home.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive).context(what)?;
        if !got && Instant::now() < deadline {
            clock::sleep(Duration::from_micros(100));
            continue;
        }
        if !got {
            home.unlock(PENDING, 1).context(what)?;
        }
        return Ok(got);
    }
}

/// Takes all locks above RESERVED, letting readers begin meanwhile. False, with RESERVED kept, if
/// one reads for longer than `patience`.
pub fn alone_from_reserved(home: &dyn DiskFile, patience: Duration) -> Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        if home.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive).context(what)? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        clock::sleep(Duration::from_micros(200));
    }
}

pub fn downgrade(home: &dyn DiskFile) -> Result<()> {
    home.try_lock(SHARED, SHARED_BYTES, LockKind::Shared).context(what)?;
    release_pending(home)
}

pub fn none(home: &dyn DiskFile) -> Result<()> {
    home.unlock(PENDING, 2 + SHARED_BYTES).context(what)
}

/// Takes every lock byte. True if no other open file, in any process, had one.
pub fn everything(home: &dyn DiskFile) -> Result<bool> {
    home.try_lock(PENDING, 2 + SHARED_BYTES, LockKind::Exclusive).context(what)
}

/// Whether no process, this one included, has a lock: for a file that cannot be locked exclusively.
pub fn nobody(home: &dyn DiskFile) -> Result<bool> {
    Ok(!home.conflicts(PENDING, 2 + SHARED_BYTES, LockKind::Exclusive).context(what)?)
}

pub fn is_reserved(home: &dyn DiskFile) -> Result<bool> {
    home.conflicts(RESERVED, 1, LockKind::Exclusive).context(what)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::disk::real::RealDisk;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::disk::{Disk, OpenMode};

    /// Simulated and real; `open` opens one file again.
    fn on_each_disk(test: impl Fn(&dyn Fn() -> Arc<dyn DiskFile>)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        for disk in [&SimDisk::new(SimConfig::default()) as &dyn Disk, &RealDisk::new()] {
            test(&|| disk.open(&path, OpenMode::Create).unwrap());
        }
    }

    #[test]
    fn levels_exclude_each_other_as_in_sqlite() {
        let disk = SimDisk::new(SimConfig::default());
        let open = || disk.open(std::path::Path::new("/db"), OpenMode::Create).unwrap();
        let (a, b) = (open(), open());
        assert!(shared(&*a).unwrap() && shared(&*b).unwrap());
        assert!(!exclusive(&*a).unwrap(), "b reads");
        assert!(!is_reserved(&*b).unwrap(), "a failed attempt leaves nothing behind");
        none(&*b).unwrap();
        assert!(exclusive(&*a).unwrap());
        assert!(!shared(&*b).unwrap() && is_reserved(&*b).unwrap());
        downgrade(&*a).unwrap();
        assert!(shared(&*b).unwrap() && !is_reserved(&*b).unwrap());
    }

    #[test]
    fn pending_keeps_new_readers_out_and_leaves_the_old_ones() {
        on_each_disk(|open| {
            let (reader, writer, comer) = (open(), open(), open());
            assert!(shared(&*reader).unwrap() && shared(&*writer).unwrap());
            assert!(reserve(&*writer).unwrap() && is_reserved(&*comer).unwrap());
            assert!(shared(&*comer).unwrap(), "RESERVED lets readers come");
            none(&*comer).unwrap();
            assert!(writer.try_lock(PENDING, 1, LockKind::Exclusive).unwrap());
            assert!(!shared(&*comer).unwrap());
            assert!(!writer.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive).unwrap());
            none(&*reader).unwrap();
            assert!(writer.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive).unwrap(), "the refused left nothing");
            none(&*writer).unwrap();
            assert!(shared(&*comer).unwrap() && !is_reserved(&*reader).unwrap());
        });
    }

    /// As stock SQLite reads.
    fn stock_reads(home: &dyn DiskFile) -> bool {
        assert!(home.try_lock(PENDING, 1, LockKind::Shared).unwrap());
        let reads = home.try_lock(SHARED, SHARED_BYTES, LockKind::Shared).unwrap();
        home.unlock(PENDING, if reads { 2 + SHARED_BYTES } else { 1 }).unwrap();
        reads
    }

    #[test]
    fn each_process_of_a_marked_home_keeps_stock_sqlite_out_by_itself() {
        on_each_disk(|open| {
            let (marks, joins, looks, stock) = (open(), open(), open(), open());
            assert!(shared(&*marks).unwrap() && exclusive(&*marks).unwrap());
            assert!(!common(&*looks).unwrap(), "home is being marked");
            assert!(in_use(&*marks).unwrap());
            assert!(is_in_use(&*joins).unwrap() && !is_reserved(&*joins).unwrap());
            assert!(!shared(&*joins).unwrap() && common(&*joins).unwrap() && in_use(&*joins).unwrap());
            assert!(!alone_from_reserved(&*joins, Duration::ZERO).unwrap());
            assert!(common(&*looks).unwrap() && !stock_reads(&*stock));
            none(&*marks).unwrap();
            assert!(!stock_reads(&*stock) && !shared(&*looks).unwrap());
            none(&*joins).unwrap();
            assert!(stock_reads(&*stock) && !exclusive(&*joins).unwrap(), "that of those that look keeps writers out");
            assert!(shared(&*looks).unwrap() && !in_use(&*joins).unwrap(), "one has all of SHARED");
            none(&*joins).unwrap();
            none(&*looks).unwrap();
            assert!(everything(&*stock).unwrap());
        });
    }

    #[test]
    fn processes_beyond_the_own_bytes_have_the_common_one() {
        let disk = SimDisk::new(SimConfig::default());
        let open = || disk.open(std::path::Path::new("/db"), OpenMode::Create).unwrap();
        let users: Vec<_> = (0..OWN_BYTES).map(|_| open()).collect();
        assert!(users.iter().all(|home| in_use(&**home).unwrap()));
        let more = open();
        assert!(!in_use(&*more).unwrap() && in_use(&*users[3]).unwrap());
        users.iter().for_each(|home| none(&**home).unwrap());
        assert!(stock_reads(&*open()) && !exclusive(&*open()).unwrap());
    }

    #[test]
    fn a_wait_for_readers_to_leave_keeps_new_ones_out() {
        let disk = SimDisk::new(SimConfig::default());
        let open = || disk.open(std::path::Path::new("/db"), OpenMode::Create).unwrap();
        let (a, b, c) = (open(), open(), open());
        assert!(shared(&*a).unwrap() && shared(&*b).unwrap() && reserve(&*a).unwrap());
        assert!(!exclusive_from_reserved(&*a, Duration::ZERO).unwrap(), "b reads");
        assert!(shared(&*c).unwrap(), "a does not wait any more");
        none(&*c).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| exclusive_from_reserved(&*a, Duration::from_secs(60)).unwrap());
            while shared(&*c).unwrap() {
                none(&*c).unwrap();
            }
            none(&*b).unwrap();
            assert!(waits.join().unwrap());
        });
    }
}
