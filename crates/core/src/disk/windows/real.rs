//! Files of Windows: [`RealDisk`].
//!
//! Handles share reading, writing and deletion, so that files in use are renamed and removed as
//! elsewhere. Never run on Windows itself: docs/platforms.md.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use windows_sys::Win32::Foundation::ERROR_USER_MAPPED_FILE;
use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_OPEN_REPARSE_POINT;

use super::common::{self, ATOMIC_UNIT_BYTES_MIN, directory_of};
use super::host::{self, HeldLocks};
use super::look;
use super::processes::ProcessTag;
use super::sync::Mutex;
use super::{Access, Disk, DiskFile, FileId, LockKind, OpenMode, SharedWords, lock_range};

/// This machine's.
#[derive(Clone, Debug, Default)]
pub struct RealDisk;

impl RealDisk {
    /// This machine's files.
    pub fn new() -> Self {
        Self
    }
}

fn wrap(file: File, is_writable: bool) -> io::Result<Arc<dyn DiskFile>> {
    Ok(Arc::new(RealFile { is_writable, file, id: OnceLock::new(), words: OnceLock::new(), locks: Mutex::default() }))
}

fn options(mode: OpenMode) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(mode != OpenMode::ReadOnly);
    if mode == OpenMode::Create {
        options.create(true).truncate(false);
    }
    options
}

/// Windows denies the opening of a directory.
fn unless_directory(path: &Path, opened: io::Result<File>) -> io::Result<File> {
    match opened {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && host::is_directory(path) => {
            Err(ErrorKind::IsADirectory.into())
        }
        opened => opened,
    }
}

impl Disk for RealDisk {
    fn shared_between_machines(&self, path: &Path) -> Option<String> {
        host::shared_at(path)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = unless_directory(path, options(mode).open(path))?;
        look::at(&file)?.regular()?;
        wrap(file, mode != OpenMode::ReadOnly)
    }

    /// Owners and permissions come from the directory.
    fn open_beside(&self, path: &Path, mode: OpenMode, _access: Option<Access>) -> io::Result<Arc<dyn DiskFile>> {
        let refused = |what| Err(common::refused(what));
        let opened = options(mode).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path);
        let file = match unless_directory(path, opened) {
            Err(e) if e.kind() == ErrorKind::IsADirectory => return refused("is not a regular file"),
            opened => opened?,
        };
        let found = look::at(&file)?;
        match (found.is_file(), found.names) {
            (false, _) => refused("is a link"),
            (true, 0 | 1) => wrap(file, mode != OpenMode::ReadOnly),
            (true, _) => refused("has other names, too (hard links)"),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        host::remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        host::rename_new(from, to)
    }

    fn names_beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        common::names_beside(path)
    }

    fn identify(&self, path: &Path) -> io::Result<Option<FileId>> {
        common::identify(path)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        common::resolve(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        common::exists(path)
    }

    fn exchange(&self, _one: &Path, _other: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn create_like(&self, path: &Path, _like: &Path) -> io::Result<Arc<dyn DiskFile>> {
        wrap(OpenOptions::new().read(true).write(true).create_new(true).open(path)?, true)
    }

    fn this_process(&self) -> ProcessTag {
        ProcessTag::this()
    }

    /// NTFS has a journal for its names, which a flush of any file there brings to the medium.
    fn sync_dir_of(&self, path: &Path) -> io::Result<()> {
        fs::metadata(directory_of(path)).map(drop)
    }

    fn sync_all_beside(&self, _path: &Path) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn syncs_all(&self) -> bool {
        false
    }

    fn is_due(&self, last: &mut Option<Duration>, every: Duration) -> bool {
        common::is_due(last, every)
    }

    fn temp_file(&self, near: &Path) -> io::Result<Arc<dyn DiskFile>> {
        wrap(common::nameless(near, |dir| tempfile::tempfile_in(dir))?, true)
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    is_writable: bool,
    id: OnceLock<FileId>,
    words: OnceLock<Arc<SharedWords>>,
    locks: Mutex<HeldLocks>,
}

impl Drop for RealFile {
    /// The handle may live on with mapped words.
    fn drop(&mut self) {
        let _gone_with_the_process = self.locks.get_mut().unlock(&self.file, 0, i64::MAX as u64);
    }
}

impl DiskFile for RealFile {
    fn id(&self) -> io::Result<FileId> {
        if let Some(id) = self.id.get() {
            return Ok(*id);
        }
        let found = look::at(&self.file)?;
        Ok(*self.id.get_or_init(|| found.id()))
    }

    fn made(&self) -> io::Result<Option<u64>> {
        look::made(&self.file)
    }

    fn is_unlinked(&self) -> io::Result<bool> {
        host::is_unlinked(&self.file)
    }

    fn len(&self) -> io::Result<u64> {
        host::len(&self.file)
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.seek_read(buf, offset)
    }

    fn write_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let done = self.file.seek_write(buf, offset)?;
            buf = buf.get(done..).filter(|_| done > 0).ok_or(ErrorKind::WriteZero)?;
            offset += done as u64;
        }
        Ok(())
    }

    fn write_durable_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(buf, offset)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        host::flush(&self.file)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match self.file.set_len(len) {
            Err(e) if e.raw_os_error() == Some(ERROR_USER_MAPPED_FILE as i32) => Err(ErrorKind::ResourceBusy.into()),
            done => done,
        }
    }

    fn reserve(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn try_lock(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        lock_range(offset, len)?;
        // As elsewhere.
        if kind == LockKind::Exclusive && !self.is_writable {
            return Err(ErrorKind::PermissionDenied.into());
        }
        self.locks.lock().try_lock(&self.file, offset, len, kind)
    }

    fn unlock(&self, offset: u64, len: u64) -> io::Result<()> {
        lock_range(offset, len)?;
        self.locks.lock().unlock(&self.file, offset, len)
    }

    fn conflicts(&self, offset: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        lock_range(offset, len)?;
        self.locks.lock().conflicts(&self.file, offset, len, kind)
    }

    fn atomic_unit_bytes(&self) -> u32 {
        ATOMIC_UNIT_BYTES_MIN
    }

    fn shared_words(&self, blocks: usize) -> io::Result<Arc<SharedWords>> {
        if let Some(words) = self.words.get() {
            return Ok(words.clone());
        }
        let words = Arc::new(SharedWords::map(&self.file, blocks)?);
        Ok(self.words.get_or_init(|| words).clone())
    }
}
