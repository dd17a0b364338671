//! A short campaign: its output, that no transaction is lost, and that a loss would be noticed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// In memory, where flushes cost nothing: the kernel lives on, so they do not matter.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn campaign(dir: &Path, arguments: &[&str]) -> (Output, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_onewrite-kill")).args(arguments).arg("--dir").arg(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, said)
}

/// The last line also reports no violation.
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
    // An option that onewrite refuses stands for any wrong answer.
    let wrong = ["sessions", "--sessions", "50", "--stock", "0", "--seed", "9", "--parameters", "scheme=none"];
    let (output, said) = campaign(dir.path(), &wrong);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("violations: 1\nviolation: seed 9, database 1 (\"scheme=none\")"), "{said}");
    assert!(said.lines().any(|line| line.contains(" starts: ")), "the last events are told: {said}");
    let kept = dir.path().read_dir().unwrap().next().unwrap().unwrap().path();
    assert!(kept.join("sessions.db").exists() && kept.join("history").exists(), "the files are kept");
}

/// Tests of the whole workspace build it first.
fn onewrite() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_onewrite-kill")).with_file_name("onewrite");
    if !path.exists() {
        let profile: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
        let built = Command::new(env!("CARGO")).args(["build", "-p", "onewrite-cli"]).args(profile).status().unwrap();
        assert!(built.success() && path.exists(), "{}", path.display());
    }
    path
}

#[test]
fn sessions_with_commands_lose_nothing() {
    let dir = directory();
    let program = onewrite();
    let arguments =
        ["sessions", "--sessions", "250", "--seconds", "60", "--seed", "4", "--commands", "40", "--onewrite"];
    let (output, said) = campaign(dir.path(), &[&arguments[..], &[program.to_str().unwrap()]].concat());
    let kills = kills(&output, &said);
    assert!(output.status.success(), "{said}");
    assert!(kills >= 20 && said.contains(" 250 sessions, "), "{said}");
    let line = said.lines().find(|line| line.contains(" commands: ")).unwrap_or_else(|| panic!("{said}"));
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [commands, killed, refused, copies, _moved] = numbers[..] else { panic!("{line}") };
    assert!(
        (60..=140).contains(&commands) && killed >= 5 && killed + refused + copies <= commands && copies >= 5,
        "{line}"
    );
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the database is gone");
}

/// Answers as this script does, to cause a violation.
fn script(dir: &Path, lines: &str) -> String {
    let path = dir.join("onewrite");
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_violation_of_a_command_is_told_with_its_files() {
    // An empty copy instead of a backup; a report of damage while others are BUSY; an unexpected
    // end.
    let copy = "case $1 in backup) for to; do :; done; : > $to;; check) echo $2: sound;; *) exit 0;; esac";
    let damage = "case $1 in check) echo 'DAMAGE  nothing';; *) echo 'in use by another process' >&2;; esac; exit 1";
    let crash = "kill -11 $$";
    for (lines, told) in
        [(copy, "no such table: t"), (damage, "onewrite check ended with status 1"), (crash, "signal: 11")]
    {
        let (dir, programs) = (directory(), directory());
        let program = script(programs.path(), lines);
        let arguments = [
            "sessions",
            "--sessions",
            "100",
            "--stock",
            "0",
            "--seed",
            "5",
            "--commands",
            "90",
            "--onewrite",
            &program,
        ];
        let (output, said) = campaign(dir.path(), &arguments);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let violation = said.lines().find(|line| line.starts_with("violation: seed 5, database 1"));
        assert!(violation.is_some_and(|line| line.contains(told)), "{told}: {said}");
        let kept = dir.path().read_dir().unwrap().next().unwrap().unwrap().path();
        let names: Vec<_> = kept.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.iter().any(|name| name.starts_with("command-")), "what it left is kept: {names:?}");
    }
}

#[test]
fn commands_that_cannot_run_are_refused() {
    let dir = directory();
    let refused = |arguments: &[&str], word: &str| {
        let (output, said) = campaign(dir.path(), &[&["sessions", "--sessions", "1"], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && errors.contains(word), "{said}{errors}");
    };
    refused(&["--commands", "10", "--onewrite", "/nothing/onewrite"], "none at /nothing/onewrite");
    refused(&["--commands", "10", "--onewrite", "/"], "--onewrite / is not a program");
    refused(&["--commands", "80", "--stock", "30"], "--stock 30 and --commands 80");
    refused(&["--commands", "91"], "91 is not in 0..=90");
    refused(&["--commands", "0", "--onewrite", "/bin/true"], "--onewrite is of no use with --commands 0");
    refused(&["--onewrite", "/bin/true"], "--commands");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
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
fn stock_sqlite_reads_in_each_silence() {
    let dir = directory();
    // Long enough for a silence, whenever it begins.
    let soak = ["soak", "--silences", "--minutes", "0.35", "--threads", "9", "--processes", "4", "--seed", "6"];
    let (output, said) = campaign(dir.path(), &soak);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" silences in which stock SQLite read") && !said.contains("\n0 silences"), "{said}");
}

#[test]
fn a_scheme_that_protects_nothing_is_found_out() {
    let dir = directory();
    let (output, said) = campaign(dir.path(), &["--rounds", "2000", "--seed", "2", "--scheme", "off"]);
    assert!(said.contains("violations: 1\nviolation: seed 2, database "), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(dir.path().read_dir().unwrap().count(), 1, "the files of the violation are kept");
}

fn acknowledged(said: &str) -> u64 {
    let line =
        said.lines().find(|line| line.contains(" transactions acknowledged")).unwrap_or_else(|| panic!("{said}"));
    let numbers = line.split(" transactions acknowledged").next().and_then(|before| before.rsplit(' ').next());
    numbers.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn short_histories_are_strictly_serializable() {
    let dir = directory();
    // Without streamed images: one round on one file, one on several.
    for files in ["1", "3"] {
        let size = ["histories", "--transactions", "2000", "--round", "2000", "--seed", "5"];
        let (output, said) = campaign(dir.path(), &[&size[..], &["--parameters", "", "--files", files]].concat());
        kills(&output, &said);
        assert!(output.status.success() && acknowledged(&said) >= 2000, "{said}");
    }
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "the databases are gone");
}

#[test]
fn histories_of_stock_sqlite_pass() {
    let dir = directory();
    let size = ["histories", "--stock", "--transactions", "2000", "--round", "2000", "--seed", "6"];
    let (output, said) = campaign(dir.path(), &size);
    kills(&output, &said);
    assert!(output.status.success() && acknowledged(&said) >= 2000, "{said}");
}

#[test]
fn clients_that_lie_are_found_out() {
    let dir = directory();
    let (output, said) = campaign(dir.path(), &["histories", "--canary", "--round", "8000", "--seed", "3"]);
    assert!(output.status.success(), "{said}");
    assert!(said.ends_with("canaries: 3, not found: 0\n"), "{said}");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "they are no violations");
}

#[test]
fn a_violation_of_the_histories_is_told_with_its_files() {
    let dir = directory();
    let wrong = ["histories", "--transactions", "1000", "--seed", "9", "--parameters", "scheme=none", "--files", "2"];
    let (output, said) = campaign(dir.path(), &wrong);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("violations: 1\nviolation: seed 9, round 1 (") && said.contains("scheme"), "{said}");
    let kept = dir.path().read_dir().unwrap().next().unwrap().unwrap().path();
    for name in ["0.db", "1.db", "h-1-0", "violation"] {
        assert!(kept.join(name).exists(), "{name} is kept");
    }
}
