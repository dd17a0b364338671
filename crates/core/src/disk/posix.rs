//! POSIX with locks of open files: macOS, and Linux by the feature `portable`.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use nix::time::ClockId;
use rustix::io::Errno;

use super::look::FileFacts;
use super::processes::FileUser;
use super::real::KeptMap;
use super::{FileId, FileSeal};

#[cfg(target_vendor = "apple")]
#[path = "apple.rs"]
mod own;
#[cfg(any(target_os = "linux", target_os = "android"))]
#[path = "linux_as_posix.rs"]
mod own;
#[cfg(not(any(target_vendor = "apple", target_os = "linux", target_os = "android")))]
compile_error!("this system has no locks that belong to the open file: docs/platforms.md");

pub use super::nap::{wait, wake};
pub use own::{flush, flush_file_system, rename_as, shared_at};

pub fn write_flushed(_file: &File, _buf: &[u8], _offset: u64) -> rustix::io::Result<usize> {
    Err(Errno::NOSYS)
}

pub fn flush_names(dir: &File) -> rustix::io::Result<()> {
    flush(dir)
}

pub fn reserve(_file: &File, _from: u64, _len: u64) -> rustix::io::Result<()> {
    Err(Errno::NOSYS)
}

pub fn nameless_in(dir: &Path) -> io::Result<File> {
    Ok(tempfile::NamedTempFile::new_in(dir)?.into_file())
}

/// Flushes the whole file.
pub fn flush_from(file: &File, _kept: &KeptMap, _from: u64) -> io::Result<()> {
    Ok(own::flush(file)?)
}

pub fn begin_write_back(_file: &File, _offset: u64, _len: u64) {}

pub fn finish_write_back(_file: &File, _from: u64) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

pub fn seal(_file: &File, _len: u64) -> io::Result<Option<FileSeal>> {
    Ok(None)
}

pub fn sealed(_file: &File) -> Option<FileSeal> {
    None
}

pub fn at(file: &File) -> io::Result<FileFacts> {
    Ok(file.metadata()?.into())
}

pub fn at_path(path: &Path) -> io::Result<FileFacts> {
    Ok(fs::metadata(path)?.into())
}

pub fn at_name(path: &Path) -> io::Result<FileFacts> {
    Ok(fs::symlink_metadata(path)?.into())
}

pub fn made(_file: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

pub fn clock() -> Duration {
    ClockId::CLOCK_MONOTONIC.now().map_or(Duration::ZERO, Duration::from)
}

pub fn clock_rough() -> Duration {
    clock()
}

pub fn processor() -> Option<usize> {
    None
}

pub fn this_boot() -> Option<u64> {
    None
}

pub fn physical_block_bytes(_dev: u64) -> Option<u64> {
    None
}

pub fn namespace() -> Option<u64> {
    None
}

pub fn process_text(_pid: u32, _name: &str, _bytes_max: u64) -> io::Result<Vec<u8>> {
    Err(ErrorKind::Unsupported.into())
}

pub fn users_of(_files: &[FileId]) -> Vec<FileUser> {
    Vec::new()
}

pub fn thread_number() -> Option<u32> {
    None
}

pub fn thread_state(_thread: u32) -> Option<(bool, u64)> {
    None
}
