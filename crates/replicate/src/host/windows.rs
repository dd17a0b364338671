//! Windows, where files have no permission bits, and no directory is flushed.

use super::FileMark;
use onewrite_core::disk::look;
use onewrite_core::environment;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Owner and others read, the owner writes.
const MODE: u32 = 0o644;
/// `FILE_FLAG_OPEN_REPARSE_POINT`: the link itself.
const NO_FOLLOW: u32 = 0x0020_0000;

/// The variable that names the user's directory.
pub(crate) const HOME: &str = "USERPROFILE";

/// Reads at byte `at` until `to` is full.
pub fn read_exact_at(file: &File, to: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.seek_read(rest, at.saturating_add(done as u64)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all bytes at byte `at`.
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match file.seek_write(rest, at.saturating_add(done as u64)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Opens without following a link.
pub(crate) fn open_unwaiting(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(NO_FOLLOW).open(path)
}

/// What the name is that [`open_unwaiting`] did not open, if it is no regular file.
pub(crate) fn refusal(_error: &io::Error) -> Option<&'static str> {
    None
}

pub(crate) fn sync_directory(dir: &Path) -> io::Result<()> {
    fs::metadata(dir).map(drop)
}

pub(crate) fn mode_of(_data: &Metadata) -> u32 {
    MODE
}

pub(crate) fn set_mode(path: &Path, _mode: u32) -> io::Result<()> {
    fs::metadata(path).map(drop)
}

pub(crate) fn set_file_mode(_file: &File, _mode: u32) -> io::Result<()> {
    Ok(())
}

/// New files have the rights of their directory.
pub(crate) fn with_mode<'b, 'n, 's>(
    builder: &'b mut tempfile::Builder<'n, 's>,
    _mode: u32,
) -> &'b mut tempfile::Builder<'n, 's> {
    builder
}

pub(crate) fn give(path: &Path, _of: &Metadata) -> io::Result<()> {
    fs::metadata(path).map(drop)
}

pub(crate) fn give_file(_file: &File, _of: &Metadata) -> io::Result<()> {
    Ok(())
}

/// The facts of the file at `path`, whose metadata are `data`.
pub(crate) fn mark(path: &Path, data: &Metadata) -> io::Result<FileMark> {
    let found = look::at_path(path)?;
    let identity = (found.dev, found.ino);
    Ok(FileMark { identity, changed: data.modified()?, bytes: data.len(), names: found.names })
}

/// The absolute path without links, as people write it: a drive has no `\\?\` before it.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let full = path.canonicalize()?;
    let plain =
        full.to_str().and_then(|text| text.strip_prefix(r"\\?\")).filter(|rest| rest.as_bytes().get(1) == Some(&b':'));
    Ok(plain.map(PathBuf::from).unwrap_or(full))
}

/// The bytes of a path for a URL, not encoded: with slashes, one of them before a drive.
pub(crate) fn url_path(path: &Path) -> Vec<u8> {
    let path = path.to_string_lossy().replace('\\', "/");
    let slash = if path.as_bytes().get(1) == Some(&b':') { "/" } else { "" };
    format!("{slash}{path}").into_bytes()
}

/// The path of a URL, decoded: behind `file://` a drive has a slash before it.
pub(crate) fn path_of_url(path: Vec<u8>) -> PathBuf {
    let path = String::from_utf8_lossy(&path).into_owned();
    let is_drive = |rest: &&str| rest.as_bytes().get(1) == Some(&b':');
    let rest = path.strip_prefix('/').filter(is_drive).map(PathBuf::from);
    rest.unwrap_or_else(|| PathBuf::from(path))
}

/// The machine's name; empty if it has none.
pub(crate) fn computer_name() -> String {
    let name = environment::variable("COMPUTERNAME");
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Ends this process at once. Not `exit`: its handlers may hang.
pub fn kill_self() {
    std::process::abort()
}
