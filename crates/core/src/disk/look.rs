//! Facts of a file.

use std::fs::File;
use std::io;
use std::path::Path;
#[cfg(unix)]
use std::path::PathBuf;

use super::{FileId, host};

const TYPE: u32 = 0o170_000;
pub(super) const REGULAR: u32 = 0o100_000;
pub(super) const DIRECTORY: u32 = 0o040_000;

/// A file's facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Hard links.
    pub names: u64,
    /// Type and permissions, in POSIX's bits.
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
        self.mode & TYPE == REGULAR
    }

    /// An error unless it is a regular file.
    pub fn regular(&self) -> io::Result<()> {
        match self.mode & TYPE {
            REGULAR => Ok(()),
            #[cfg(unix)]
            DIRECTORY => Err(rustix::io::Errno::ISDIR.into()),
            #[cfg(windows)]
            DIRECTORY => Err(io::ErrorKind::IsADirectory.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
        }
    }
}

/// Of an open file.
pub fn at(file: &File) -> io::Result<FileFacts> {
    host::at(file)
}

/// A number from place and time of creation; `None`: unknown.
pub fn made(file: &File) -> io::Result<Option<u64>> {
    host::made(file)
}

/// Of a path, through links.
pub fn at_path(path: &Path) -> io::Result<FileFacts> {
    host::at_path(path)
}

/// Of a name, perhaps a link.
pub fn at_name(path: &Path) -> io::Result<FileFacts> {
    host::at_name(path)
}

/// `path` made absolute, without `.` and `..`, if no part is a link.
#[cfg(unix)]
pub fn without_links(path: &Path) -> Option<PathBuf> {
    use rustix::fs::{CWD, readlinkat_raw};
    use rustix::io::Errno;
    use std::mem::MaybeUninit;
    use std::path::Component;

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

#[cfg(unix)]
impl From<std::fs::Metadata> for FileFacts {
    fn from(found: std::fs::Metadata) -> FileFacts {
        use std::os::unix::fs::MetadataExt;
        FileFacts {
            dev: found.dev(),
            ino: found.ino(),
            names: found.nlink(),
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            bytes: found.size(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[cfg(unix)]
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
        #[cfg(unix)]
        assert_eq!(FileFacts::from(file.metadata().unwrap()), found);
        assert!(!at_path(dir.path()).unwrap().is_file());
        assert_eq!(at_path(&dir.path().join("c")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
