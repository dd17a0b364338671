//! The one narrow interface through which onewrite touches storage.
//!
//! [`real`] has the operating system's files; `sim`, of the feature `simulation`, counts, fails,
//! tears, reorders and cuts power in memory. Both promise the devices of `docs/faults.md`. An
//! unflushed write reaches the disk wholly, in part or not, and in any order; a part has whole
//! atomic units. A flush makes all earlier writes to its file durable.

pub(crate) mod beside;
mod common;
pub mod environment;
#[cfg(unix)]
pub mod forked;
#[cfg(windows)]
#[path = "windows/forked.rs"]
pub mod forked;
pub mod forward;
#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[path = "linux/mod.rs"]
mod host;
#[cfg(all(unix, not(all(target_os = "linux", not(feature = "portable")))))]
#[path = "posix.rs"]
mod host;
#[cfg(windows)]
#[path = "windows/mod.rs"]
mod host;
pub(crate) mod image_file;
pub(crate) mod locks;
pub mod look;
pub mod mapped;
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
mod nap;
pub mod processes;
#[cfg(unix)]
mod range_lock;
#[cfg(unix)]
pub mod real;
#[cfg(windows)]
#[path = "windows/real.rs"]
pub mod real;
pub mod shared;
#[cfg(feature = "simulation")]
pub mod sim;
pub(crate) mod stats;
pub(crate) mod sync;
pub mod system;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::IoContext;
use mapped::MappedFile;
use processes::ProcessTag;
use shared::SharedWords;

/// For other crates in a process that may fork.
pub use sync::{Mutex, RwLock};

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading.
    ReadOnly,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// For reading and writing, created if missing.
    Create,
}

/// Identity of a file, the same for all paths to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// Owner and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// User number.
    pub uid: u32,
    /// Group number.
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

/// Identifies a directory's names at one moment. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesStamp(pub [u64; 4]);

/// Kind of byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// For any number of open files.
    Shared,
    /// For one open file.
    Exclusive,
}

/// A directory tree.
pub trait Disk: Send + Sync {
    /// Opens a file. Errors: `NotFound`, `PermissionDenied`, `ReadOnlyFilesystem`, `StorageFull`,
    /// others of the system.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>>;
    /// Opens a file beside a database. `InvalidInput`, with a reason, if another user may have made
    /// it (a link, several names, no regular file). One created here, or more open than `access`,
    /// gets `access` as far as this process can give it. Without owner or group, a created file is
    /// no more open than the database.
    fn open_beside(&self, path: &Path, mode: OpenMode, access: Option<Access>) -> io::Result<Arc<dyn DiskFile>> {
        let _without_owners = access;
        self.open(path, mode)
    }
    /// Removes a name; `NotFound` if missing.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The file or link of a name, unopened; `None` if missing.
    fn identify(&self, path: &Path) -> io::Result<Option<FileId>>;
    /// The absolute path without links of a file, which need not exist.
    fn resolve(&self, path: &Path) -> io::Result<std::path::PathBuf>;
    /// The absolute path without `.` and `..`, if no part is a link, as SQLite's own VFS finds it.
    /// `None`: ask that VFS.
    fn full_path(&self, path: &Path) -> Option<std::path::PathBuf> {
        let _not_of_this_system = path;
        None
    }
    /// An error unless `path` leads to a regular file: opening a pipe waits for its other end.
    fn check_regular(&self, path: &Path) -> io::Result<()> {
        if self.exists(path)? { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }
    /// Name of the file system of `path`, where other machines may use it at the same time.
    fn shared_between_machines(&self, path: &Path) -> Option<String> {
        let _of_one_machine = path;
        None
    }
    /// Whether `path` exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Exchanges two names of a directory in one step. `Unsupported` where impossible.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()>;
    /// Renames a file within its directory, in one step. `AlreadyExists` if `to` does.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Files in the directory of `path`.
    fn names_beside(&self, path: &Path) -> io::Result<Vec<std::path::PathBuf>>;
    /// Creates a file with the owner and permissions of `like`.
    fn create_like(&self, path: &Path, like: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let _without_owners = like;
        self.open(path, OpenMode::Create)
    }
    /// Makes all changes of names in the directory of `path` durable.
    fn sync_dir_of(&self, path: &Path) -> io::Result<()>;
    /// Makes all writes to the file system of `path` durable (`syncfs`).
    fn sync_all_beside(&self, path: &Path) -> io::Result<()>;
    /// Whether that is possible. Windows lets administrators do it.
    fn syncs_all(&self) -> bool {
        true
    }
    /// Identifies the system's start: unflushed writes and shared memory last until the next.
    /// `None`: unknown.
    fn system_start(&self) -> Option<u64> {
        None
    }
    /// The calling process, as others name it.
    fn this_process(&self) -> ProcessTag {
        ProcessTag::UNKNOWN
    }
    /// Identifies the names in the directory of `path`: equal means unchanged since. `None`:
    /// unknown, or not yet.
    fn names_stamp(&self, path: &Path) -> io::Result<Option<NamesStamp>> {
        let _has_no_clock = path;
        Ok(None)
    }
    /// Whether `every` has passed since `last`, which becomes now, by [`system::clock_rough`].
    /// Always, without a clock.
    fn is_due(&self, last: &mut Option<Duration>, every: Duration) -> bool {
        let _has_no_clock = (last, every);
        true
    }
    /// A nameless file in the directory of `near`; it ends with its handle.
    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>>;
}

/// An open file. Locks belong to it, not to the process: two opens exclude each other, and a drop
/// gives locks back.
pub trait DiskFile: Send + Sync {
    /// Its identity.
    fn id(&self) -> io::Result<FileId>;
    /// A number that no other file had since the system's start. `None`: unknown.
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
    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Reads at byte `offset` until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        // Taken for the file's end, a short read gives SQLite zeros and recovery a missing record.
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.read_once_at(rest, offset.saturating_add(done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }
    /// Reads with one call of the system; 0 only at the file's end.
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf`, not durable until a flush. `StorageFull` without room.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `buf` and makes just these bytes durable, if possible in one call.
    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes all of the file, and its length, durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
    /// Makes the bytes from `from` on, and the length, durable; perhaps those before, too.
    fn sync_from(&self, from: u64) -> io::Result<()> {
        let _all_of_it = from;
        self.sync()
    }
    /// The first byte outside holes from `offset` on, or `offset` where holes are unknown; `None`
    /// if there is none.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(Some(offset))
    }
    /// Asks the system to begin writing these bytes, so that a later flush takes less. Not durable;
    /// fails silently.
    fn begin_write_back(&self, offset: u64, len: u64) {
        let _nothing_to_ask = (offset, len);
    }
    /// Waits until the device, perhaps its cache, has the bytes from `from` on: with a seal
    /// ([`DiskFile::has_seal`]), any file's next flush there makes them durable. An error is a
    /// failed flush.
    fn finish_write_back(&self, from: u64) -> io::Result<()> {
        let _all_of_it = from;
        self.sync()
    }
    /// Seals a file whose length is durable and whose bytes have all been flushed once, until it is
    /// truncated or moved on the device. `None`: unknown, or overwrites go elsewhere.
    fn seal(&self) -> io::Result<Option<FileSeal>> {
        Ok(None)
    }
    /// Whether it has this seal: overwrites go to the known place.
    fn has_seal(&self, seal: FileSeal) -> io::Result<bool> {
        let _has_none = seal;
        Ok(false)
    }
    /// Sets the length in bytes; new bytes are zeros. `ResourceBusy`: Windows shortens no file that
    /// is mapped ([`DiskFile::shared_words`]).
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves room for `len` bytes at the same length. `StorageFull` without it; `Ok` where
    /// unsupported.
    fn reserve(&self, len: u64) -> io::Result<()>;
    /// Locks bytes, which need not exist, in place of this file's lock there, without waiting.
    /// False on a conflict.
    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool>;
    /// Gives the lock on these bytes back.
    fn unlock(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Whether such a lock, on bytes this file has not locked, would fail.
    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let free = self.try_lock(offset, len, kind)?;
        if free {
            self.unlock(offset, len)?;
        }
        Ok(!free)
    }
    /// The process with a POSIX lock on these bytes, as stock SQLite takes them. `None`: none, or
    /// unknown.
    fn posix_owner(&self, offset: u64, len: u64) -> Option<u32> {
        let _has_no_processes = (offset, len);
        None
    }
    /// Aligned bytes written all or nothing: a power of two, at least 512.
    fn atomic_unit_bytes(&self) -> u32;
    /// The first blocks as memory shared by all processes with the file open, always as many of one
    /// file; unspecified after the last has gone. An error where unsupported.
    fn shared_words(&self, blocks: usize) -> io::Result<Arc<SharedWords>> {
        let _is_unsupported = blocks;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The first `bytes` in this process's memory, not more than the file has; `None` where
    /// unsupported.
    fn map(&self, bytes: u64) -> io::Result<Option<MappedFile>> {
        let _is_unsupported = bytes;
        Ok(None)
    }
}

/// A lock's range for `fcntl`. `InvalidInput` for an empty one, which it takes as "to the end of
/// any file", and past the largest offset.
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

/// Returns the part of `buf` that was read, shorter at the file's end.
pub fn read_part<'a>(file: &dyn DiskFile, buf: &'a mut [u8], offset: u64) -> io::Result<&'a mut [u8]> {
    let read = file.read_at(buf, offset)?;
    buf.get_mut(..read).ok_or_else(|| io::Error::other("a read gave more than was asked for"))
}
