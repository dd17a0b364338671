//! Names and opening of the files beside a database.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{NAME_BYTES_MAX, SECOND_SUFFIX, SHORT_NAME_BYTES};
use crate::disk::{Disk, DiskFile, OpenMode, system};

/// A too long name is cut, with a number made of all of it.
pub fn path(home: &Path, suffix: &str) -> PathBuf {
    let name = system::bytes_of(home.file_name().unwrap_or_default());
    let fits = name.len() + suffix.len() <= NAME_BYTES_MAX;
    let mut beside = if fits { name.to_vec() } else { short(name) };
    beside.extend_from_slice(suffix.as_bytes());
    home.with_file_name(system::path_of(&beside))
}

/// For a scheme's second file.
pub fn second_path(home: &Path) -> PathBuf {
    path(home, SECOND_SUFFIX)
}

/// Not flushed.
pub fn remove_second(disk: &dyn Disk, home: &Path) -> Result<()> {
    let what = || format!("cannot remove the second file of the database {}", home.display());
    remove(disk, &second_path(home)).context(what)
}

pub fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Up to a character's end, with `~` and the FNV-1a of all of `name`.
fn short(name: &[u8]) -> Vec<u8> {
    let begins = |at: &usize| name.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    let end = (0..=SHORT_NAME_BYTES).rev().find(begins).unwrap_or(0);
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut short = name.get(..end).unwrap_or_default().to_vec();
    short.extend_from_slice(format!("~{hash:016x}").as_bytes());
    short
}

/// The file has the access of `home` (rule SideFilesPrivate). `CantOpen` if another user may have
/// made it.
pub fn open(
    disk: &dyn Disk,
    path: &Path,
    mode: OpenMode,
    home: &dyn DiskFile,
    what: impl FnOnce() -> String,
) -> Result<Arc<dyn DiskFile>> {
    let access = if mode == OpenMode::ReadOnly { Ok(None) } else { home.access() };
    access.and_then(|access| disk.open_beside(path, mode, access)).map_err(|e| {
        let is_new = mode == OpenMode::Create && matches!(disk.exists(path), Ok(false));
        match e.kind() {
            ErrorKind::PermissionDenied if is_new => Error::ReadOnlyDirectory(format!("{}: {e}", what())),
            _ => refused(what(), e),
        }
    })
}

pub fn refused(what: String, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::InvalidInput => Error::CantOpen(format!("{what}: {error}")),
        _ => Error::io(what, error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_suffix_is_never_too_long_and_never_anothers() {
        let beside = |name: &str, suffix| {
            let path = path(&Path::new("/dir").join(name), suffix);
            assert_eq!(path.parent(), Some(Path::new("/dir")));
            path.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(beside("app.db", "-onewrite"), "app.db-onewrite");
        let long = "n".repeat(246);
        assert_eq!(beside(&long, "-onewrite"), format!("{long}-onewrite"));
        for suffix in ["-onewrite", "-onewrite-0123456789abcdef", "-onewrite-kept-0123456789abcdef"] {
            let (one, other) = ("n".repeat(255), "n".repeat(254) + "m");
            assert!(beside(&one, suffix).len() <= 255);
            assert_ne!(beside(&one, suffix), beside(&other, suffix));
            // Characters stay whole.
            assert!((0..4).all(|n| beside(&("n".repeat(n) + &"€".repeat(83)), suffix).ends_with(suffix)));
        }
    }
}
