//! Linux with the calls of macOS, for tests.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::RenameFlags;
use rustix::io::Errno;

pub fn flush(file: &File) -> rustix::io::Result<()> {
    rustix::fs::fdatasync(file)
}

/// Here `sync` returns behind the writes; POSIX promises less.
pub fn flush_file_system(_file: &File) -> io::Result<()> {
    rustix::fs::sync();
    Ok(())
}

pub fn rename_as(_from: &Path, _to: &Path, _how: RenameFlags) -> rustix::io::Result<()> {
    Err(Errno::NOSYS)
}

pub fn shared_at(_path: &Path) -> Option<String> {
    None
}
