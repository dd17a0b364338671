//! POSIX.

use super::FileMark;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// The variable that names the user's directory.
pub(crate) const HOME: &str = "HOME";

/// Reads at byte `at` until `to` is full.
pub fn read_exact_at(file: &File, to: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(to, at)
}

/// Writes all bytes at byte `at`.
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

/// Opens without following a link, and without waiting for the other end of a pipe.
pub(crate) fn open_unwaiting(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    options.custom_flags(flags.bits().cast_signed()).open(path)
}

/// What the name is that [`open_unwaiting`] did not open, if it is no regular file.
pub(crate) fn refusal(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error) {
        Some(Errno::LOOP) => Some("a symbolic link"),
        Some(Errno::NXIO | Errno::NODEV) => Some("not a regular file"),
        _ => None,
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(dir: &Path) -> io::Result<()> {
    let flags = (OFlags::DIRECTORY | OFlags::NONBLOCK).bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(dir)?.sync_all()
}

/// Permission bits.
pub(crate) fn mode_of(data: &Metadata) -> u32 {
    data.mode()
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The same of an open file, which may have lost its name to another.
pub(crate) fn set_file_mode(file: &File, mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))
}

/// Permission bits of a file or directory in the making.
pub(crate) fn with_mode<'b, 'n, 's>(
    builder: &'b mut tempfile::Builder<'n, 's>,
    mode: u32,
) -> &'b mut tempfile::Builder<'n, 's> {
    builder.permissions(Permissions::from_mode(mode))
}

/// Gives the file at `path` the owner and the group of another.
pub(crate) fn give(path: &Path, of: &Metadata) -> io::Result<()> {
    chown(path, Some(of.uid()), Some(of.gid()))
}

/// The same of an open file.
pub(crate) fn give_file(file: &File, of: &Metadata) -> io::Result<()> {
    fchown(file, Some(of.uid()), Some(of.gid()))
}

/// The facts of the file at `path`, whose metadata are `data`.
pub(crate) fn mark(_path: &Path, data: &Metadata) -> io::Result<FileMark> {
    let seconds = u64::try_from(data.ctime()).unwrap_or(0);
    let nanoseconds = u32::try_from(data.ctime_nsec()).unwrap_or(0);
    Ok(FileMark {
        identity: (data.dev(), data.ino()),
        changed: UNIX_EPOCH + Duration::new(seconds, nanoseconds),
        bytes: data.len(),
        names: data.nlink(),
    })
}

/// The absolute path without links.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    path.canonicalize()
}

/// The bytes of a path for a URL, not encoded.
pub(crate) fn url_path(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// The path of a URL, decoded.
pub(crate) fn path_of_url(path: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(path))
}

/// The machine's name; empty if it has none.
pub(crate) fn computer_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default()
}

/// Ends this process at once. Not `exit`: its handlers may hang.
pub fn kill_self() {
    let _killed = kill_process(getpid(), Signal::KILL);
}
