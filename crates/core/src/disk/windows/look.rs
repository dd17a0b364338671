//! Facts of a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::Path;

use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_READONLY, FILE_ATTRIBUTE_REPARSE_POINT,
    FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT, FILE_STANDARD_INFO, FileStandardInfo,
    GetFileInformationByHandle, GetFileInformationByHandleEx, GetFileSizeEx,
};

use crate::disk::look::{DIRECTORY, FileFacts, REGULAR};

const LINK: u32 = 0o120_000;

fn both(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

pub fn at(file: &File) -> io::Result<FileFacts> {
    let mut found = MaybeUninit::<BY_HANDLE_FILE_INFORMATION>::uninit();
    // SAFETY: the handle is open, and `found` has room for what the call fills where it succeeds.
    let found = unsafe {
        if GetFileInformationByHandle(file.as_raw_handle(), found.as_mut_ptr()) == 0 {
            return Err(io::Error::last_os_error());
        }
        found.assume_init()
    };
    let has = |attribute| found.dwFileAttributes & attribute != 0;
    let kind = if has(FILE_ATTRIBUTE_REPARSE_POINT) {
        LINK
    } else if has(FILE_ATTRIBUTE_DIRECTORY) {
        DIRECTORY
    } else {
        REGULAR
    };
    Ok(FileFacts {
        dev: found.dwVolumeSerialNumber.into(),
        ino: both(found.nFileIndexHigh, found.nFileIndexLow),
        names: found.nNumberOfLinks.into(),
        mode: kind | if has(FILE_ATTRIBUTE_READONLY) { 0o444 } else { 0o644 },
        uid: 0,
        gid: 0,
        bytes: both(found.nFileSizeHigh, found.nFileSizeLow),
    })
}

/// Whether the last name is gone, or going with the last handle.
pub fn is_unlinked(file: &File) -> io::Result<bool> {
    let mut found = MaybeUninit::<FILE_STANDARD_INFO>::zeroed();
    // SAFETY: the handle is open, and `found` has room for what the call fills; zeros are a value.
    let found = unsafe {
        let size = size_of::<FILE_STANDARD_INFO>() as u32;
        if GetFileInformationByHandleEx(file.as_raw_handle(), FileStandardInfo, found.as_mut_ptr().cast(), size) == 0 {
            return Err(io::Error::last_os_error());
        }
        found.assume_init()
    };
    Ok(found.DeletePending || found.NumberOfLinks == 0)
}

pub fn len(file: &File) -> io::Result<u64> {
    let mut len = 0;
    // SAFETY: the handle is open, and `len` is this frame's.
    match unsafe { GetFileSizeEx(file.as_raw_handle(), &raw mut len) } {
        0 => Err(io::Error::last_os_error()),
        _ => u64::try_from(len).map_err(io::Error::other),
    }
}

pub fn made(_file: &File) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Opened for its facts alone, directories too.
fn opened(path: &Path, flags: u32) -> io::Result<File> {
    OpenOptions::new().access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS | flags).open(path)
}

pub fn at_path(path: &Path) -> io::Result<FileFacts> {
    at(&opened(path, 0)?)
}

pub fn at_name(path: &Path) -> io::Result<FileFacts> {
    at(&opened(path, FILE_FLAG_OPEN_REPARSE_POINT)?)
}

pub fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}
