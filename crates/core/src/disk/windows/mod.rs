//! What Windows has.

#![allow(unsafe_code)]

mod locks;
mod look;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::{Component, Path, Prefix};
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    ERROR_INVALID_PARAMETER, ERROR_LOCK_VIOLATION, HANDLE, WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::Storage::FileSystem::{
    DELETE, FILE_DISPOSITION_FLAG_DELETE, FILE_DISPOSITION_FLAG_POSIX_SEMANTICS, FILE_DISPOSITION_INFO_EX,
    FILE_FLAG_OPEN_REPARSE_POINT, FileDispositionInfoEx, FlushFileBuffers, GetDriveTypeW, LOCKFILE_EXCLUSIVE_LOCK,
    LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, MoveFileExW, SetFileInformationByHandle, UnlockFileEx,
};
use windows_sys::Win32::System::IO::OVERLAPPED;
use windows_sys::Win32::System::Performance::{QueryPerformanceCounter, QueryPerformanceFrequency};
use windows_sys::Win32::System::Threading::{
    GetCurrentThreadId, OpenProcess, PROCESS_NAME_WIN32, PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE,
    QueryFullProcessImageNameW, WaitForSingleObject,
};

pub use super::nap::{wait, wake};
use super::processes::{FileUser, ProcessLife};
use super::{FileId, LockKind};
pub use locks::{HeldLocks, SystemLocks};
pub use look::{at, at_name, at_path, is_directory, is_unlinked, len, made};

const DRIVE_REMOTE: u32 = 4;

/// As stock SQLite flushes. `NtFlushBuffersFileEx` could leave a file's times out; Wine lacks it.
pub fn flush(file: &File) -> io::Result<()> {
    // SAFETY: the handle is open.
    done(unsafe { FlushFileBuffers(file.as_raw_handle()) })
}

fn done(answer: i32) -> io::Result<()> {
    if answer == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn at_offset(offset: u64) -> OVERLAPPED {
    // SAFETY: numbers and a null handle.
    let mut at: OVERLAPPED = unsafe { std::mem::zeroed() };
    at.Anonymous.Anonymous.Offset = offset as u32;
    at.Anonymous.Anonymous.OffsetHigh = (offset >> 32) as u32;
    at
}

impl SystemLocks for File {
    fn lock(&self, start: u64, len: u64, kind: LockKind) -> io::Result<bool> {
        let mut flags = LOCKFILE_FAIL_IMMEDIATELY;
        if kind == LockKind::Exclusive {
            flags |= LOCKFILE_EXCLUSIVE_LOCK;
        }
        let mut at = at_offset(start);
        // SAFETY: the handle is open and not asynchronous: the call ends before it returns.
        let locked =
            done(unsafe { LockFileEx(self.as_raw_handle(), flags, 0, len as u32, (len >> 32) as u32, &raw mut at) });
        match locked {
            Err(e) if e.raw_os_error() == Some(ERROR_LOCK_VIOLATION as i32) => Ok(false),
            locked => locked.map(|()| true),
        }
    }

    fn unlock(&self, start: u64, len: u64) -> io::Result<()> {
        let mut at = at_offset(start);
        // SAFETY: as above.
        done(unsafe { UnlockFileEx(self.as_raw_handle(), 0, len as u32, (len >> 32) as u32, &raw mut at) })
    }
}

fn wide(path: &Path) -> Vec<u16> {
    path.as_os_str().encode_wide().chain([0]).collect()
}

/// Removes a name at once, also of a file that is open elsewhere (Windows 10, 1607, NTFS). Other
/// systems keep the name until the last handle is closed, so there the file gets another one.
pub fn remove(path: &Path) -> io::Result<()> {
    let flags = FILE_FLAG_OPEN_REPARSE_POINT;
    let file = OpenOptions::new().access_mode(DELETE).custom_flags(flags).open(path)?;
    let how = FILE_DISPOSITION_INFO_EX { Flags: FILE_DISPOSITION_FLAG_DELETE | FILE_DISPOSITION_FLAG_POSIX_SEMANTICS };
    let size = size_of::<FILE_DISPOSITION_INFO_EX>() as u32;
    // SAFETY: the handle is open, and `how` lives across the call.
    let removed = done(unsafe {
        SetFileInformationByHandle(file.as_raw_handle(), FileDispositionInfoEx, (&raw const how).cast(), size)
    });
    if removed.is_ok() {
        return Ok(());
    }
    drop(file);
    let mut other = path.as_os_str().to_owned();
    other.push(format!("-{:016x}", super::system::random()?));
    rename_new(path, Path::new(&other))?;
    fs::remove_file(other)
}

/// `AlreadyExists` if `to` does.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (wide(from), wide(to));
    // SAFETY: both names end with a zero.
    done(unsafe { MoveFileExW(from.as_ptr(), to.as_ptr(), 0) })
}

/// Of an absolute path: a share, or a drive that is one.
pub fn shared_at(path: &Path) -> Option<String> {
    let Component::Prefix(prefix) = path.components().next()? else { return None };
    let drive = match prefix.kind() {
        Prefix::UNC(..) | Prefix::VerbatimUNC(..) => return Some("a network share".to_owned()),
        Prefix::Disk(drive) | Prefix::VerbatimDisk(drive) => drive,
        _ => return None,
    };
    let root = [u16::from(drive), u16::from(b':'), u16::from(b'\\'), 0];
    // SAFETY: the name ends with a zero.
    let kind = unsafe { GetDriveTypeW(root.as_ptr()) };
    (kind == DRIVE_REMOTE).then(|| "a network drive".to_owned())
}

/// One counter for all processes.
pub fn clock() -> Duration {
    let (mut count, mut a_second) = (0, 0);
    // SAFETY: both numbers are this frame's.
    unsafe {
        QueryPerformanceCounter(&raw mut count);
        QueryPerformanceFrequency(&raw mut a_second);
    }
    let (count, a_second) = (count.unsigned_abs(), a_second.unsigned_abs().max(1));
    let rest = u128::from(count % a_second) * 1_000_000_000 / u128::from(a_second);
    Duration::new(count / a_second, u32::try_from(rest).unwrap_or(0))
}

/// In ticks of 10 ms, so that the looks that hold until the next tick cost a commit nothing.
pub fn clock_rough() -> Duration {
    Duration::from_millis(clock().as_millis() as u64 / TICK_MS * TICK_MS)
}

const TICK_MS: u64 = 10;

/// Tells threads that live apart. As a process ends, its last thread has lost what Rust's standard
/// library knows of it.
pub type ThreadMark = u32;

pub fn this_thread() -> ThreadMark {
    // SAFETY: it asks for a number.
    unsafe { GetCurrentThreadId() }
}

pub fn processor() -> Option<usize> {
    None
}

pub fn namespace() -> Option<u64> {
    None
}

pub fn thread_number() -> Option<u32> {
    None
}

pub fn thread_state(_thread: u32) -> Option<(bool, u64)> {
    None
}

pub fn users_of(_files: &[FileId]) -> Vec<FileUser> {
    Vec::new()
}

fn opened(pid: u32) -> io::Result<OwnedHandle> {
    let rights = PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE;
    // SAFETY: takes numbers.
    let process: HANDLE = unsafe { OpenProcess(rights, 0, pid) };
    if process.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle was made for this function.
    Ok(unsafe { OwnedHandle::from_raw_handle(process) })
}

pub fn known_life(pid: u32) -> ProcessLife {
    let process = match opened(pid) {
        Ok(process) => process,
        Err(e) if e.raw_os_error() == Some(ERROR_INVALID_PARAMETER as i32) => return ProcessLife::Ended,
        Err(_) => return ProcessLife::Unknown,
    };
    // SAFETY: the handle is open; without time, the call does not wait.
    match unsafe { WaitForSingleObject(process.as_raw_handle(), 0) } {
        WAIT_OBJECT_0 => ProcessLife::Ended,
        WAIT_TIMEOUT => ProcessLife::Running,
        _ => ProcessLife::Unknown,
    }
}

/// `comm`: the program's name.
pub fn process_text(pid: u32, name: &str, _bytes_max: u64) -> io::Result<Vec<u8>> {
    if name != "comm" {
        return Err(ErrorKind::Unsupported.into());
    }
    let process = opened(pid)?;
    let mut path = [0_u16; 1024];
    let mut len = path.len() as u32;
    // SAFETY: the handle is open, and `path` has room for `len` units.
    done(unsafe {
        QueryFullProcessImageNameW(process.as_raw_handle(), PROCESS_NAME_WIN32, path.as_mut_ptr(), &raw mut len)
    })?;
    let path = String::from_utf16_lossy(path.get(..len as usize).unwrap_or_default());
    Ok(path.rsplit('\\').next().unwrap_or_default().as_bytes().to_vec())
}
