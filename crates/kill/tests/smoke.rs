//! A short campaign: what the command prints, that nothing is lost, and that a loss would be noticed.

use std::path::Path;
use std::process::{Command, Output};

/// Where flushes cost nothing: the kernel lives on, so they do not matter here.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn campaign(dir: &Path, arguments: &[&str]) -> (Output, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_onewrite-kill")).args(arguments).arg("--dir").arg(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

/// How many were killed, as the last line says, which also says that nothing was violated.
fn kills(output: &Output, said: &str) -> u64 {
    let last = said.lines().last().unwrap_or_default();
    last.strip_prefix("kills: ")
        .and_then(|rest| rest.strip_suffix(", violations: 0"))
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_short_campaign_loses_nothing() {
    let dir = directory();
    let (output, said) = campaign(dir.path(), &["--rounds", "30", "--seed", "3"]);
    let kills = kills(&output, &said);
    assert!(kills >= 30, "{said}");
    assert!(output.status.success());
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the databases are gone");
}

#[test]
fn short_sessions_lose_nothing() {
    let dir = directory();
    let (output, said) = campaign(dir.path(), &["sessions", "--sessions", "300", "--seconds", "60", "--seed", "7"]);
    let kills = kills(&output, &said);
    assert!(output.status.success(), "{said}");
    assert!(kills >= 30, "{said}");
    assert!(said.contains(" 300 sessions, "), "{said}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the database is gone");
}

#[test]
fn a_violation_of_the_sessions_is_told_with_its_files() {
    let dir = directory();
    // What onewrite refuses to open stands for what it must not say.
    let wrong = ["sessions", "--sessions", "50", "--stock", "0", "--seed", "9", "--parameters", "scheme=none"];
    let (output, said) = campaign(dir.path(), &wrong);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("violations: 1\nviolation: seed 9, database 1 (\"scheme=none\")"), "{said}");
    assert!(said.lines().any(|line| line.contains(" starts: ")), "the last events are told: {said}");
    let kept = dir.path().read_dir().unwrap().next().unwrap().unwrap().path();
    assert!(kept.join("sessions.db").exists() && kept.join("history").exists(), "the files are kept");
}

#[test]
fn a_short_soak_loses_nothing() {
    let dir = directory();
    let soak = ["soak", "--minutes", "0.12", "--threads", "7", "--processes", "3", "--seed", "5"];
    let (output, said) = campaign(dir.path(), &soak);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("violations: 0\n"), "{said}");
    let number = |before: &str, after: &str| -> u64 {
        let at = said.split(after).next().and_then(|s| s.rsplit(before).next());
        at.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{said}"))
    };
    assert!(number(": ", " transactions acknowledged") > 200, "{said}");
    assert!(number("\n", " processes killed") > 5, "{said}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the database is gone");
}

#[test]
fn a_scheme_that_protects_nothing_is_found_out() {
    let dir = directory();
    let (output, said) = campaign(dir.path(), &["--rounds", "400", "--seed", "2", "--scheme", "off"]);
    assert!(said.contains("violations: 1\nviolation: seed 2, database "), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(dir.path().read_dir().unwrap().count(), 1, "the files of the violation are kept");
}
