//! Facts of a file without its times.
//!
//! On Linux 6.13 and newer (ext4, XFS, btrfs, tmpfs) a query for times gives the next write a new
//! time. That changes the inode, and a flush on ext4 without a journal then writes it: 155 to 220
//! µs instead of 110 to 130.

use std::fs::File;
use std::hash::BuildHasher;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::{Component, Path, PathBuf};

use rustc_hash::FxBuildHasher;
use rustix::fs::{AtFlags, CWD, FileType, Stat, Statx, StatxFlags, makedev, readlinkat_raw, statx};
use rustix::io::Errno;

use super::FileId;

/// A file's facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Hard links.
    pub names: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Length in bytes.
    pub bytes: u64,
}

impl FileFacts {
    /// Its identity.
    pub fn id(&self) -> FileId {
        FileId { dev: self.dev, ino: self.ino }
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        FileType::from_raw_mode(self.mode) == FileType::RegularFile
    }

    /// An error unless it is a regular file.
    pub fn regular(&self) -> io::Result<()> {
        match FileType::from_raw_mode(self.mode) {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }
}

/// The facts of an open file.
pub fn at(file: &File) -> io::Result<FileFacts> {
    use std::os::fd::AsFd;
    ask(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH, || rustix::fs::fstat(file))
}

/// A number from a file's place and creation time in nanoseconds; `None` where the file system has
/// no such time.
pub fn made(file: &File) -> io::Result<Option<u64>> {
    use std::os::fd::AsFd;
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    let found = match statx(file.as_fd(), Path::new(""), AtFlags::EMPTY_PATH, asked) {
        Err(Errno::NOSYS | Errno::PERM) => return Ok(None),
        found => found?,
    };
    let at = found.stx_btime;
    if found.stx_mask & asked.bits() != asked.bits() || at.tv_nsec == 0 {
        return Ok(None);
    }
    let dev = makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(Some(FxBuildHasher.hash_one((dev, found.stx_ino, at.tv_sec, at.tv_nsec))))
}

/// The facts of a path, through links.
pub fn at_path(path: &Path) -> io::Result<FileFacts> {
    ask(CWD, path, AtFlags::empty(), || rustix::fs::stat(path))
}

/// The facts of a name, which may itself be a link.
pub fn at_name(path: &Path) -> io::Result<FileFacts> {
    ask(CWD, path, AtFlags::SYMLINK_NOFOLLOW, || rustix::fs::lstat(path))
}

/// `path` made absolute, without `.` and `..`, if no part is a link. SQLite's own VFS asks for all
/// of each part.
pub fn without_links(path: &Path) -> Option<PathBuf> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let path = std::path::absolute(path).ok()?;
    let mut full = PathBuf::from("/");
    let mut target = [MaybeUninit::uninit(); 1];
    for part in path.components() {
        match part {
            Component::ParentDir => {
                full.pop();
            }
            Component::Normal(name) => {
                full.push(name);
                match readlinkat_raw(CWD, &full, &mut target) {
                    // No link, or not there yet.
                    Err(Errno::INVAL | Errno::NOENT) => {}
                    _ => return None,
                }
            }
            _ => {}
        }
    }
    Some(full)
}

/// `otherwise`: for kernels, and sandboxes, without `statx`.
fn ask(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: AtFlags,
    otherwise: impl FnOnce() -> rustix::io::Result<Stat>,
) -> io::Result<FileFacts> {
    let asked = StatxFlags::TYPE
        | StatxFlags::MODE
        | StatxFlags::NLINK
        | StatxFlags::UID
        | StatxFlags::GID
        | StatxFlags::INO
        | StatxFlags::SIZE;
    match statx(dir, path, flags, asked) {
        Ok(found) => Ok(of_statx(&found)),
        Err(Errno::NOSYS | Errno::PERM) => Ok(of_stat(&otherwise()?)),
        Err(e) => Err(e.into()),
    }
}

fn of_statx(found: &Statx) -> FileFacts {
    FileFacts {
        dev: makedev(found.stx_dev_major, found.stx_dev_minor),
        ino: found.stx_ino,
        names: found.stx_nlink.into(),
        mode: found.stx_mode.into(),
        uid: found.stx_uid,
        gid: found.stx_gid,
        bytes: found.stx_size,
    }
}

#[allow(clippy::useless_conversion)]
fn of_stat(found: &Stat) -> FileFacts {
    FileFacts {
        dev: found.st_dev,
        ino: found.st_ino,
        names: found.st_nlink.into(),
        mode: found.st_mode,
        uid: found.st_uid,
        gid: found.st_gid,
        bytes: u64::try_from(found.st_size).unwrap_or(0),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("d")).unwrap();
        std::os::unix::fs::symlink("d", dir.join("l")).unwrap();
        let full = |part: &str| without_links(&dir.join(part));
        for part in ["d/a", "./d//a", "d/../d/./a", "x/../d/a"] {
            assert_eq!(full(part), Some(dir.join("d/a")), "{part}");
        }
        assert_eq!((full("l/a"), full("l"), full("d/../l/../a")), (None, None, None));
        assert_eq!(without_links(Path::new("")), None);
        assert_eq!(
            without_links(Path::new("a")),
            std::env::current_dir().ok().and_then(|d| without_links(&d.join("a")))
        );
        File::create(dir.join("f")).unwrap();
        assert_eq!(full("f/a"), None, "a file is no directory");
    }

    #[test]
    fn a_copy_was_made_at_another_time() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["a", "b"].map(|name| dir.path().join(name));
        std::fs::write(&path, "1").unwrap();
        let Some(first) = made(&File::open(&path).unwrap()).unwrap() else { return };
        std::fs::copy(&path, &other).unwrap();
        std::fs::write(&path, "2").unwrap();
        assert_eq!(made(&File::open(&path).unwrap()).unwrap(), Some(first));
        assert_ne!(made(&File::open(&other).unwrap()).unwrap(), Some(first));
        // Its inode may be reused.
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::remove_file(&path).unwrap();
        std::fs::copy(&other, &path).unwrap();
        assert_ne!(made(&File::open(&path).unwrap()).unwrap(), Some(first));
    }

    #[test]
    fn both_ways_find_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = File::create(&path).unwrap();
        std::fs::hard_link(&path, dir.path().join("b")).unwrap();
        let found = at(&file).unwrap();
        assert_eq!((found.names, found.is_file()), (2, true));
        assert_eq!(at_path(&path).unwrap(), found);
        assert_eq!(of_stat(&rustix::fs::fstat(&file).unwrap()), found);
        assert!(!at_path(dir.path()).unwrap().is_file());
        assert_eq!(at_path(&dir.path().join("c")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
