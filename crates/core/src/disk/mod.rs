//! The one narrow interface through which onewrite touches storage.
//!
//! Two implementations: [`real`] (files of the operating system) and [`sim`] (a disk in memory that
//! counts, fails, tears, reorders and cuts power). All of `core` runs on either.
//!
//! What an implementation promises is what `docs/faults.md` assumes of devices: a write that has not
//! been flushed may reach the disk wholly, in part (whole atomic units) or not at all, in any order;
//! a flush that returned makes everything written before it to that file durable.

pub(crate) mod beside;
pub mod environment;
pub mod forked;
pub mod forward;
pub(crate) mod image_file;
pub(crate) mod locks;
pub mod look;
mod network;
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
    /// An existing file, for reading.
    ReadOnly,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// For reading and writing; an empty file is made where there is none.
    Create,
}

/// Identity of a file: two paths that name one file (links, relative paths) have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// Whose a file is, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Number of the user it belongs to.
    pub uid: u32,
    /// Number of the group it belongs to.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

impl Access {
    /// Whether it may let somebody read who may not read what has the `other`.
    pub fn admits_more_than(self, other: Access) -> bool {
        (self.uid, self.gid) != (other.uid, other.gid) || self.mode & !other.mode & 0o044 != 0
    }
}

/// Where a sealed file lies on the device, and its seal. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSeal(pub [u64; 2]);

/// The names in a directory, of one moment. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesStamp(pub [u64; 4]);

/// Strength of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Any number of open files may hold it.
    Shared,
    /// One open file holds it, and no other holds a shared one.
    Exclusive,
}

/// A directory tree of files.
pub trait Disk: Send + Sync {
    /// Opens a file. Errors: `NotFound`, `PermissionDenied`, `ReadOnlyFilesystem`, `StorageFull`, others of the system.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file that lies beside a database and belongs to it. Where somebody else may have put something under its name (a
    /// link, a file of several names, what is no regular file) the error is `InvalidInput` and says so. The file gets the
    /// `access` of the database, as far as this process can give it, if it is made here or admits more. Where it cannot give the owner or the group, nobody may do
    /// more with a file that is made here than with the database.
    fn open_beside(&self, path: &Path, mode: OpenMode, access: Option<Access>) -> io::Result<Arc<dyn DiskFile>> {
        let _without_owners = access;
        self.open(path, mode)
    }
    /// Removes the name `path`. `NotFound` where there is none.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Which file has the name `path`, without opening it, a link itself where it is one; `None` if there is none.
    fn identify(&self, path: &Path) -> io::Result<Option<FileId>>;
    /// The path of the file itself, absolute and without links. The file need not exist.
    fn resolve(&self, path: &Path) -> io::Result<std::path::PathBuf>;
    /// The absolute path that `path` is, without `.` and `..`, if no part of it is a link: as SQLite's own VFS finds it. `None` where that one
    /// had better be asked.
    fn full_path(&self, path: &Path) -> Option<std::path::PathBuf> {
        let _not_of_this_system = path;
        None
    }
    /// The name of the file system that holds `path`, or would hold it, where other machines may use it at the same time.
    fn shared_between_machines(&self, path: &Path) -> Option<String> {
        let _of_one_machine = path;
        None
    }
    /// Whether `path` names a file.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Exchanges the files that two names in one directory lead to, in one step. `Unsupported` where it cannot be done.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    /// Gives the file `from` the name `to` in the same directory, in one step. `AlreadyExists` if there is such a file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// The files in the directory that holds `path`, in any order.
    fn names_beside(&self, path: &Path) -> io::Result<Vec<std::path::PathBuf>>;
    /// Makes the file `path`, which does not exist, for the owner of the file `like` and whom that admits.
    fn create_like(&self, path: &Path, like: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _without_owners = like;
        self.open(path, OpenMode::Create)
    }
    /// Makes creations, removals and changes of names in the directory that holds `path` durable.
    fn sync_dir_of(&self, path: &Path) -> io::Result<()>;
    /// Makes all that was written to any file of the file system that holds `path` durable (`syncfs`).
    fn sync_all_beside(&self, path: &Path) -> io::Result<()>;
    /// A number for the time since the system was started: it keeps what was written, and what is in shared memory, until the next start.
    /// `None` where that cannot be told.
    fn system_start(&self) -> Option<u64> {
        None
    }
    /// A number for the names in the directory that holds `path` as they are: while it is given, none was made, changed or removed since it
    /// was given first. `None` where that cannot be told, or not yet.
    fn names_stamp(&self, path: &Path) -> io::Result<Option<NamesStamp>> {
        let _has_no_clock = path;
        Ok(None)
    }
    /// Whether `every` has passed since this was so at `last`, for who looks now and then; it is so now then. A disk without a clock always
    /// says so.
    fn is_due(&self, last: &mut Option<Instant>, every: Duration) -> bool {
        let _has_no_clock = (last, every);
        true
    }
    /// A file without a name in the directory that holds `near`; it vanishes when dropped.
    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>>;
}

/// One open file. Locks belong to the open file (not to the process): two opens of one file in one
/// process exclude each other, and dropping the file gives its locks back.
pub trait DiskFile: Send + Sync {
    /// Which file this is.
    fn id(&self) -> io::Result<FileId>;
    /// A number that no other file has had since the system was started: of when and where it was made. `None` where that cannot be told.
    fn made(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Whose it is; `None` where files have no owners.
    fn access(&self) -> io::Result<Option<Access>> {
        Ok(None)
    }
    /// Whether no name leads to the file any more.
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
        // What a read that ended early leaves out is no end of the file: zeros to SQLite, records that were never written to recovery.
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_once_at(rest, offset.saturating_add(done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }
    /// Reads at byte `offset` what one call of the system gives; 0 only at the end of the file.
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf` at byte `offset`. Not durable until a flush. `StorageFull` if there is no room.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf` at byte `offset` and makes exactly these bytes durable, in one call
    /// (`pwritev2(RWF_DSYNC)`). Says nothing of bytes written earlier.
    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written to this file, and its length, durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// Where the first byte at `offset` or behind it is that is not in a hole, in bytes; `None` if there is none. Where holes are not known,
    /// that is `offset`.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }
    /// Asks the system to begin to write these bytes to the medium, without waiting: a flush that follows finds less to do. Says
    /// nothing of durability, fails silently, and changes nothing on a disk that may write what it likes at any time.
    fn begin_write_back(&self, offset: u64, len: u64) {
        let _nothing_to_ask = (offset, len);
    }
    /// Waits until the device has everything written to this file from byte `from` on, which may be in a cache of its own: the next flush of any file there makes it
    /// durable, if this one has its seal ([`DiskFile::has_seal`]). An error is a failed flush.
    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        let _all_of_it = from;
        self.sync()
    }
    /// Seals a file whose length is durable, and each of whose bytes has been flushed since it was added: it loses the seal when it is truncated, and
    /// when its bytes are moved on the device. `None` where that cannot be told, or where what is written over does not stay where it was.
    fn seal(&self) -> io::Result<Option<FileSeal>> {
        Ok(None)
    }
    /// Whether the file has this seal: what is written over goes where the medium knows it to be.
    fn has_seal(&self, seal: FileSeal) -> io::Result<bool> {
        let _has_none = seal;
        Ok(false)
    }
    /// Sets the length in bytes; a longer file reads as zeros there.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Asks for room for the first `len` bytes without changing the length. `StorageFull` if there
    /// is none; a file system that cannot reserve says `Ok`.
    fn reserve(&self, len: u64) -> io::Result<()>;
    /// Takes a lock on `len` bytes at `offset` (which need not exist), replacing what this file holds
    /// there, without waiting. False if another open file holds one that conflicts.
    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool>;
    /// Gives the lock on these bytes back.
    fn unlock(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Whether a lock on these bytes, of which this file holds none, would not be to be had now.
    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let free = self.try_lock(offset, len, kind)?;
        if free {
            self.unlock(offset, len)?;
        }
        Ok(!free)
    }
    /// The same for who may be told a little late: lately there was none. `free_at`: when that was; it is kept for these
    /// bytes from one call to the next. A disk without a clock always looks.
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
    /// Bytes the device writes all or nothing when aligned: a power of two, at least 512.
    fn atomic_unit_bytes(&self) -> u32;
    /// The first block of the file as memory that every process with this file open shares. What it holds after
    /// the last of them is gone is anybody's guess. An error where the file system cannot.
    fn shared_words(&self) -> io::Result<Arc<SharedWords>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Start and length of a lock as `fcntl` takes them; `InvalidInput` for an empty range, which it
/// would take as "to the end of any file", and for one past the largest offset.
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

/// Reads into `buf`; what was read, less than `buf` where the file ends.
pub fn read_part<'a>(file: &dyn DiskFile, buf: &'a mut [u8], offset: u64) -> io::Result<&'a mut [u8]> {
    let read = file.read_at(buf, offset)?;
    buf.get_mut(..read).ok_or_else(|| io::Error::other("a read gave more than was asked for"))
}
