//! `onewrite replicate`, `restore` and `verify` run the program that lies beside, else the one on
//! the PATH.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn fake(dir: &Path, says: &str) {
    let program = dir.join("onewrite-replicate");
    fs::write(&program, format!("#!/bin/sh\necho {says} \"$@\"\nexit 7\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

fn run(dir: &Path, path: &Path, args: &[&str]) -> (Output, String) {
    let output = Command::new(dir.join("onewrite")).args(args).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

#[test]
fn another_program_does_it() {
    let (dir, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::copy(env!("CARGO_BIN_EXE_onewrite"), dir.path().join("onewrite")).unwrap();
    let (output, said) = run(dir.path(), path.path(), &["restore", "file:///a", "b"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("cargo build --release -p onewrite-replicate"), "{said}");
    fake(path.path(), "path");
    let (output, said) = run(dir.path(), path.path(), &["verify", "--wait", "1s", "a.db", "file:///a"]);
    assert_eq!((output.status.code(), said.as_str()), (Some(7), "path verify --wait 1s a.db file:///a\n"));
    fake(dir.path(), "beside");
    for args in [["replicate", "--help"], ["restore", "-h"]] {
        let (_, said) = run(dir.path(), path.path(), &args);
        assert_eq!(said, format!("beside {} {}\n", args[0], args[1]));
    }
}
