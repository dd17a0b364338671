//! Files of this machine: names beside a database, checks, durable names, temporary files.

use crate::host;
use anyhow::{Context, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The mutex's value, also behind a panic: each use leaves it whole.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static PASSING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn passing() -> MutexGuard<'static, Vec<PathBuf>> {
    locked(&PASSING)
}

/// Makes a signal remove a file or directory that is temporary.
pub struct Passing(PathBuf);

impl Passing {
    /// Makes the file. Without a signal, the returned value removes it.
    pub fn make<T: AsRef<Path>>(make: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<(Passing, T)> {
        // The lock keeps a signal from coming in between.
        let mut all = passing();
        let made = make()?;
        all.push(made.as_ref().to_owned());
        Ok((Passing(made.as_ref().to_owned()), made))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        passing().retain(|path| *path != self.0);
    }
}

/// Removes all temporary files.
pub(crate) fn remove_passing() {
    for path in &*passing() {
        // The process ends: there is no way to report an error.
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

/// The directory of a file.
pub fn directory(of: &Path) -> &Path {
    of.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a regular file. Follows no link and does not wait for a pipe: other users may have made
/// the name.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let refused = |what: &str| Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what}")));
    let irregular = "not a regular file";
    match host::open_unwaiting(path, options) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => refused(irregular),
        Err(e) if e.kind() == ErrorKind::IsADirectory => refused(irregular),
        Err(e) => host::refusal(&e).map_or(Err(e), refused),
    }
}

/// The contents of a regular file of at most `max` bytes; `None` if it is not there.
pub fn read_small(path: &Path, max: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match open_regular(path, File::options().read(true)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {max} bytes")));
    }
    Ok(Some(bytes))
}

/// Makes the names in a directory durable.
pub fn sync(dir: &Path) -> Result<()> {
    host::sync_directory(dir).with_context(|| format!("cannot flush {}", dir.display()))
}

/// The path with `suffix` appended.
pub fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Whether the name exists, even as a dangling link.
pub fn is_there(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(|| format!("cannot look at {}", path.display())),
    }
}
