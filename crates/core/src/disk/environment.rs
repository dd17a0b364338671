//! Variables of the environment. In a program that runs with more rights than its user has (setuid, setgid, file
//! capabilities) the user chooses them, so none of them counts there, as with glibc's `secure_getenv`.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use nix::libc;

/// Whether the kernel says that this program runs with more rights than its user has (`AT_SECURE`).
pub fn is_privileged() -> bool {
    // SAFETY: takes a number and reads what the kernel gave this process when it began.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable; `None` where it is not set, and in a privileged program.
#[allow(clippy::disallowed_methods)] // Elsewhere a variable is read through this function alone.
pub fn variable(name: &str) -> Option<OsString> {
    if is_privileged() { None } else { std::env::var_os(name) }
}

/// The directory for temporary files: the one that `TMPDIR` names, or `/tmp`.
pub fn temp_dir() -> PathBuf {
    variable("TMPDIR").filter(|dir| !dir.is_empty()).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
}

/// What a command does first: in a privileged program it drops every variable, those that libraries read and those that
/// the programs it starts would inherit included. An error where another thread may be reading them.
pub fn enter_program() -> io::Result<()> {
    if !is_privileged() {
        return Ok(());
    }
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("the environment cannot be dropped beside {threads} threads")));
    }
    // SAFETY: no other thread runs, and nothing holds a pointer into the environment across this call.
    match unsafe { libc::clearenv() } {
        0 => Ok(()),
        _ => Err(io::Error::other("the environment cannot be dropped")),
    }
}
