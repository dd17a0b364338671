//! SQLite's own locks on home (SQLite file locking, section 3), taken on one open file for the whole
//! process, so that stock SQLite in other processes, or beside us in this one, is kept out or waited for.
//!
//! Connections of this process do not lock each other with these: that is done in memory.

use crate::disk::{DiskFile, LockKind};
use crate::error::{IoContext, Result};

const PENDING: u64 = 0x4000_0000;
const RESERVED: u64 = PENDING + 1;
const SHARED: u64 = PENDING + 2;
const SHARED_BYTES: u64 = 510;

fn what() -> String {
    "cannot lock the database file".into()
}

/// Takes SHARED: no writer of stock SQLite may go on. False while one is about to write.
pub fn shared(home: &dyn DiskFile) -> Result<bool> {
    if !home.try_lock(PENDING, 1, LockKind::Shared).context(what)? {
        return Ok(false);
    }
    let got = home.try_lock(SHARED, SHARED_BYTES, LockKind::Shared).context(what);
    home.unlock(PENDING, 1).context(what)?;
    got
}

/// Takes RESERVED on top of SHARED: nobody else is about to write. False if somebody is.
pub fn reserve(home: &dyn DiskFile) -> Result<bool> {
    home.try_lock(RESERVED, 1, LockKind::Exclusive).context(what)
}

/// Gives RESERVED back.
pub fn unreserve(home: &dyn DiskFile) -> Result<()> {
    home.unlock(RESERVED, 1).context(what)
}

/// Raises SHARED to EXCLUSIVE: nobody else reads or writes. False, with SHARED as before, if somebody does.
pub fn exclusive(home: &dyn DiskFile) -> Result<bool> {
    let got = reserve(home)? && exclusive_from_reserved(home)?;
    if !got {
        unreserve(home)?;
    }
    Ok(got)
}

/// Raises RESERVED to EXCLUSIVE. False, with RESERVED as before, if somebody reads.
pub fn exclusive_from_reserved(home: &dyn DiskFile) -> Result<bool> {
    let got = home.try_lock(PENDING, 1, LockKind::Exclusive).context(what)?
        && home.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive).context(what)?;
    if !got {
        home.unlock(PENDING, 1).context(what)?;
    }
    Ok(got)
}

/// Lowers EXCLUSIVE to SHARED.
pub fn downgrade(home: &dyn DiskFile) -> Result<()> {
    home.try_lock(SHARED, SHARED_BYTES, LockKind::Shared).context(what)?;
    home.unlock(PENDING, 2).context(what)
}

/// Gives everything back.
pub fn none(home: &dyn DiskFile) -> Result<()> {
    home.unlock(PENDING, 2 + SHARED_BYTES).context(what)
}

/// Takes every lock byte of SQLite. True if nobody else, this process's other open files included, had any.
pub fn everything(home: &dyn DiskFile) -> Result<bool> {
    home.try_lock(PENDING, 2 + SHARED_BYTES, LockKind::Exclusive).context(what)
}

/// Whether another process is writing (holds RESERVED).
pub fn is_reserved(home: &dyn DiskFile) -> Result<bool> {
    let free = home.try_lock(RESERVED, 1, LockKind::Exclusive).context(what)?;
    if free {
        home.unlock(RESERVED, 1).context(what)?;
    }
    Ok(!free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::disk::{Disk, OpenMode};

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
}
