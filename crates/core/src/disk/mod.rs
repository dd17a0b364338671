//! The one narrow interface through which onewrite touches storage.
//!
//! Two implementations: [`real`] (the operating system's files) and [`sim`] (a disk in memory that
//! counts, fails, tears, reorders and cuts power).
//!
//! They promise the devices of `docs/faults.md`: an unflushed write may reach the disk wholly, in
//! part (whole atomic units) or not, in any order; a flush makes all earlier writes to that file
//! durable.

pub(crate) mod beside;
pub mod environment;
pub mod forked;
pub mod forward;
pub(crate) mod image_file;
pub(crate) mod locks;
pub mod look;
pub mod real;
pub mod shared;
pub mod sim;
pub(crate) mod stats;
pub(crate) mod sync;
pub mod system;
mod write_back;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::error::IoContext;
use shared::SharedWords;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing, for reading.
    ReadOnly,
    /// Existing, for reading and writing.
    ReadWrite,
    /// For reading and writing, created if missing.
    Create,
}

/// Identity of a file, equal for all paths to it (links, relative paths).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// Owner and permissions of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of its user.
    pub uid: u32,
    /// Number of its group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

impl Access {
    /// Whether it may let a user read that `other` does not.
    pub fn admits_more_than(self, other: Access) -> bool {
        (self.uid, self.gid) != (other.uid, other.gid) || self.mode & !other.mode & 0o044 != 0
    }
}

/// Place of a sealed file on the device, and its seal. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSeal(pub [u64; 2]);

/// Identifies the names in a directory at one moment. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesStamp(pub [u64; 4]);

/// Strength of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Any number of open files may hold it.
    Shared,
    /// One open file holds it, and no other a shared one.
    Exclusive,
}

/// A directory tree of files.
pub trait Disk: Send + Sync {
    /// Opens a file. Errors: `NotFound`, `PermissionDenied`, `ReadOnlyFilesystem`, `StorageFull`,
    /// others of the system.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file that belongs to a database beside it. `InvalidInput`, with a reason, if another
    /// user may have made it (a link, several names, no regular file). A file created here, or more
    /// open than `access`, gets `access` as far as this process can give it. Without owner or
    /// group, a created file is no more open than the database.
    fn open_beside(&self, path: &Path, mode: OpenMode, access: Option<Access>) -> io::Result<Arc<dyn DiskFile>> {
        let _without_owners = access;
        self.open(path, mode)
    }
    /// Removes a name; `NotFound` if missing.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The file, or link, of a name, without opening it; `None` if missing.
    fn identify(&self, path: &Path) -> io::Result<Option<FileId>>;
    /// The path, absolute and without links, of a file that need not exist.
    fn resolve(&self, path: &Path) -> io::Result<std::path::PathBuf>;
    /// `path` made absolute, without `.` and `..`, if no part is a link, as SQLite's own VFS finds
    /// it. `None`: ask that VFS.
    fn full_path(&self, path: &Path) -> Option<std::path::PathBuf> {
        let _not_of_this_system = path;
        None
    }
    /// Whether `path` names a file.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Exchanges two names of one directory in one step. `Unsupported` where impossible.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    /// Renames within the directory, in one step. `AlreadyExists` if `to` does.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The files in the directory of `path`, in any order.
    fn names_beside(&self, path: &Path) -> io::Result<Vec<std::path::PathBuf>>;
    /// Creates the file `path` with the owner and permissions of `like`.
    fn create_like(&self, path: &Path, like: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _without_owners = like;
        self.open(path, OpenMode::Create)
    }
    /// Makes all changes of names in the directory of `path` durable.
    fn sync_dir_of(&self, path: &Path) -> io::Result<()>;
    /// Makes all writes to the file system of `path` durable (`syncfs`).
    fn sync_all_beside(&self, path: &Path) -> io::Result<()>;
    /// Identifies the time since the system's start, for which unflushed writes and shared memory
    /// last. `None`: unknown.
    fn system_start(&self) -> Option<u64> {
        None
    }
    /// Identifies the names in the directory of `path`: while equal, none was made, changed or
    /// removed. `None`: unknown, or not yet.
    fn names_stamp(&self, path: &Path) -> io::Result<Option<NamesStamp>> {
        let _has_no_clock = path;
        Ok(None)
    }
    /// Whether `every` has passed since `last`, which then becomes now. Always, on a disk without a
    /// clock.
    fn is_due(&self, last: &mut Option<Instant>, every: Duration) -> bool {
        let _has_no_clock = (last, every);
        true
    }
    /// A nameless file in the directory of `near`; it ends with its handle.
    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>>;
}

/// An open file. Locks belong to it, not to the process: two opens of one file exclude each other,
/// and a drop gives the locks back.
pub trait DiskFile: Send + Sync {
    /// Its identity.
    fn id(&self) -> io::Result<FileId>;
    /// Unlike any other file's since the system's start: from its creation. `None`: unknown.
    fn made(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Its owner and permissions; `None` where files have no owners.
    fn access(&self) -> io::Result<Option<Access>> {
        Ok(None)
    }
    /// Whether it has lost all names.
    fn is_unlinked(&self) -> io::Result<bool> {
        Ok(false)
    }
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads at byte `offset` until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        // A short read is not the file's end: SQLite would see zeros, recovery a missing record.
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_once_at(rest, offset.saturating_add(done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }
    /// One read call of the system; 0 only at the file's end.
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf` at byte `offset`, not durable until a flush. `StorageFull` without room.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf` and makes just these bytes durable, in one call (`pwritev2(RWF_DSYNC)`).
    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes all of the file, and its length, durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// The first byte from `offset` on outside holes; `None` if there is none. `offset` where holes
    /// are unknown.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }
    /// Asks the system to begin writing these bytes, so that a later flush has less to do. Not
    /// durable; fails silently.
    fn begin_write_back(&self, offset: u64, len: u64) {
        let _nothing_to_ask = (offset, len);
    }
    /// Waits until the device, perhaps its cache, has all bytes from `from` on: with a seal
    /// ([`DiskFile::has_seal`]), any file's next flush there makes them durable. An error is a
    /// failed flush.
    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        let _all_of_it = from;
        self.sync()
    }
    /// Seals a file with a durable length whose bytes have all been flushed once. Truncation, or
    /// moving its bytes on the device, ends the seal. `None`: unknown, or overwrites go elsewhere.
    fn seal(&self) -> io::Result<Option<FileSeal>> {
        Ok(None)
    }
    /// Whether it has this seal: overwrites go to the place known on the medium.
    fn has_seal(&self, seal: FileSeal) -> io::Result<bool> {
        let _has_none = seal;
        Ok(false)
    }
    /// Sets the length in bytes; a longer file reads as zeros there.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves room for the first `len` bytes, keeping the length. `StorageFull` without room;
    /// `Ok` where unsupported.
    fn reserve(&self, len: u64) -> io::Result<()>;
    /// Locks `len` bytes at `offset` (which need not exist), in place of this file's lock there,
    /// without waiting. False on a conflict.
    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool>;
    /// Gives the lock on these bytes back.
    fn unlock(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Whether such a lock, on bytes that this file has not locked, would fail now.
    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let free = self.try_lock(offset, len, kind)?;
        if free {
            self.unlock(offset, len)?;
        }
        Ok(!free)
    }
    /// The same, perhaps a moment late. `free_at`: when there was no conflict, kept per range
    /// between calls. A disk without a clock always looks.
    fn conflicts_lately(
        &self,
        offset: u64,
        len: u64,
        kind: LockKind,
        free_at: &mut Option<Instant>,
    ) -> io::Result<bool> {
        let _has_no_clock = free_at;
        self.conflicts(offset, len, kind)
    }
    /// Aligned bytes that the device writes all or nothing: a power of two, at least 512.
    fn atomic_unit_bytes(&self) -> u32;
    /// The file's first block as memory shared by all processes with it open; unspecified after the
    /// last has gone. An error where the file system cannot.
    fn shared_words(&self) -> io::Result<Arc<SharedWords>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A lock's start and length for `fcntl`. `InvalidInput` for an empty range, which `fcntl` takes as
/// "to the end of any file", and past the largest offset.
fn lock_range(offset: u64, len: u64) -> io::Result<(i64, i64)> {
    match (i64::try_from(offset), i64::try_from(len)) {
        (Ok(start), Ok(len)) if len > 0 && start.checked_add(len).is_some() => Ok((start, len)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// A random number from the operating system.
pub fn random() -> crate::base::error::Result<u64> {
    system::random().context(|| "cannot get a random number from the system".into())
}

/// Reads into `buf`; returns the part read, shorter at the file's end.
pub fn read_part<'a>(file: &dyn DiskFile, buf: &'a mut [u8], offset: u64) -> io::Result<&'a mut [u8]> {
    let read = file.read_at(buf, offset)?;
    buf.get_mut(..read).ok_or_else(|| io::Error::other("a read gave more than was asked for"))
}
