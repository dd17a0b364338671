//! A command that goes on as another program.

use std::io;
use std::process::Command;

/// Returns only if the program cannot be run. Windows cannot replace a program by another: there
/// this one waits, and ends as it does.
pub fn goes_on_as(command: &mut Command) -> io::Error {
    #[cfg(unix)]
    return std::os::unix::process::CommandExt::exec(command);
    #[cfg(windows)]
    match command.status() {
        Ok(ended) => std::process::exit(ended.code().unwrap_or(1)),
        Err(e) => e,
    }
}
