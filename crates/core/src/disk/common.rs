//! What the file layers of all systems do alike.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{FileId, environment, look, system};

/// The oldest sector size.
pub(super) const ATOMIC_UNIT_BYTES_MIN: u32 = 512;

pub(super) fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => path,
    }
}

pub(super) fn names_beside(path: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = directory_of(path);
    fs::read_dir(dir)?.map(|entry| Ok(dir.join(entry?.file_name()))).collect()
}

pub(super) fn identify(path: &Path) -> io::Result<Option<FileId>> {
    match look::at_name(path) {
        Ok(found) => Ok(Some(found.id())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        // The directory exists, the name not yet.
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let name = path.file_name().ok_or(e)?;
            Ok(directory_of(path).canonicalize()?.join(name))
        }
        resolved => resolved,
    }
}

/// access(2) uses the real user's rights, another's in a setuid program.
pub(super) fn exists(path: &Path) -> io::Result<bool> {
    match look::at_path(path) {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(e) => Err(e),
    }
}

pub(super) fn is_due(last: &mut Option<Duration>, every: Duration) -> bool {
    let now = system::clock_rough();
    let is_due = last.is_none_or(|last| now.saturating_sub(last) >= every);
    if is_due {
        *last = Some(now);
    }
    is_due
}

/// A nameless file beside `near`, or in the system's directory where that takes none.
pub(super) fn nameless(near: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<File> {
    match make(directory_of(near)) {
        Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            make(&environment::temp_dir())
        }
        made => made,
    }
}

/// For a file beside a database that `what`, such as "is a link" (rule SideFilesPrivate).
pub(super) fn refused(what: &str) -> io::Error {
    let why = "onewrite uses no such file beside a database, since somebody else may have put it there. Look what it is, \
               and move it away";
    io::Error::new(ErrorKind::InvalidInput, format!("it {what}: {why}"))
}
