//! Shared by the tests: the built libraries, and programs that load them.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A file of the library as built for these tests.
pub fn built(file: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    // Cargo leaves it beside the test program, or one up when the library itself was asked for.
    let places = [deps.join(file), deps.parent().unwrap().join(file)];
    places.iter().find(|path| path.exists()).cloned().unwrap_or_else(|| panic!("{file} is not in {places:?}"))
}

/// A directory with the library under the name that programs load it by, and room for databases.
pub fn drop_in() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(built("libsqlite3.so"), dir.path().join("libsqlite3.so.0")).unwrap();
    dir
}

/// A program that loads its `libsqlite3.so.0` from `dir`.
pub fn with_library(program: impl AsRef<std::ffi::OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", dir).env_remove("ONEWRITE_DEFAULT");
    command
}

/// A program that loads the system's.
pub fn with_system_library(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH").env_remove("ONEWRITE_DEFAULT");
    command
}

/// The output of a program that succeeded.
pub fn output_of(command: &mut Command) -> String {
    let done: Output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let out = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{command:?}: {out}{}", String::from_utf8_lossy(&done.stderr));
    out
}

/// A Python whose `sqlite3` module is linked to a `libsqlite3.so.0`, so that it can be given
/// another one; `None`, with a line that says so, where there is none.
pub fn python() -> Option<&'static str> {
    let dir = drop_in();
    let version = "import sqlite3; print(sqlite3.sqlite_version)";
    let found = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let loaded = with_library(python, dir.path()).args(["-c", version]).output();
        let usual = with_system_library(python).args(["-c", version]).output();
        matches!((loaded, usual), (Ok(a), Ok(b)) if a.status.success() && a.stdout != b.stdout)
    });
    if found.is_none() {
        println!("skipped: no python3 that is linked to libsqlite3.so.0");
    }
    found
}

/// Whether a program can be started; tests that need it say so and pass where it is missing.
pub fn has_program(name: &str) -> bool {
    let found = Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    if !found {
        println!("skipped: no {name}");
    }
    found
}
