//! In a program with more rights than its user (setuid, setgid, file capabilities) no environment
//! variable counts.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// Whether this program has more rights than its user.
pub fn is_privileged() -> bool {
    // SAFETY: reads what the kernel gave this process when it began.
    #[cfg(all(unix, not(target_vendor = "apple")))]
    return unsafe { nix::libc::getauxval(nix::libc::AT_SECURE) != 0 };
    // SAFETY: as above.
    #[cfg(target_vendor = "apple")]
    return unsafe { nix::libc::issetugid() != 0 };
    // A program gets more rights by a user's consent, and an environment of its own.
    #[cfg(windows)]
    false
}

/// A variable's value; `None` where unset, and in a privileged program.
#[allow(clippy::disallowed_methods)] // Elsewhere a variable is read through this function alone.
pub fn variable(name: &str) -> Option<OsString> {
    if is_privileged() { None } else { std::env::var_os(name) }
}

/// `TMPDIR`, or `/tmp`; on Windows the system's choice.
#[cfg_attr(windows, allow(clippy::disallowed_methods))]
pub fn temp_dir() -> PathBuf {
    #[cfg(windows)]
    return std::env::temp_dir();
    #[cfg(unix)]
    variable("TMPDIR").filter(|dir| !dir.is_empty()).map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
}

/// For commands, at their start: a privileged program drops all variables. An error if other
/// threads may be reading them.
pub fn enter_program() -> io::Result<()> {
    if !is_privileged() {
        return Ok(());
    }
    #[cfg(not(all(unix, not(target_vendor = "apple"))))]
    return Err(io::Error::other("the environment cannot be dropped"));
    #[cfg(all(unix, not(target_vendor = "apple")))]
    {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!("the environment cannot be dropped beside {threads} threads")));
        }
        // SAFETY: no other thread runs, and nothing holds a pointer into the environment across
        // this call.
        match unsafe { nix::libc::clearenv() } {
            0 => Ok(()),
            _ => Err(io::Error::other("the environment cannot be dropped")),
        }
    }
}
