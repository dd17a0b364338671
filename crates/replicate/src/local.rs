//! Files of this machine: what lies beside a database, whether something is there, names that last.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The status that a shell tells of SIGINT.
const ENDED_BY_SIGNAL: i32 = 130;
/// Files and directories that are to go with this process.
static PASSING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn passing() -> MutexGuard<'static, Vec<PathBuf>> {
    PASSING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a file or directory goes with this process, also where a signal ends that.
pub struct Passing(PathBuf);

impl Passing {
    /// Makes it. What comes back with it removes it otherwise.
    pub fn make<T: AsRef<Path>>(make: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<(Passing, T)> {
        // A signal comes before or after.
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

/// Ends the process at SIGINT and SIGTERM, and with it what it has made for itself alone.
pub fn end_at_signals() -> Result<()> {
    ctrlc::set_handler(|| {
        let all = passing();
        for path in &*all {
            // Nothing can be said of it any more.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        std::process::exit(ENDED_BY_SIGNAL);
    })
    .context("cannot wait for signals")
}

/// The directory in which a file lies.
pub fn directory(of: &Path) -> &Path {
    of.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names in a directory durable.
pub fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| format!("cannot flush {}", dir.display()))
}

/// The path with `suffix` behind its name.
pub fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Whether something has the name, be it a link that leads nowhere.
pub fn is_there(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(|| format!("cannot look at {}", path.display())),
    }
}
