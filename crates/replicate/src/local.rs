//! Files of this machine: what lies beside a database, whether something is there, names that last.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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
