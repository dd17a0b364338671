//! The loadable extension in the system's `sqlite3` shell, as users load it.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::{built, has_program, one, open_stock, setup};

struct Answer {
    out: String,
    err: String,
}

/// Runs the shell with the extension loaded; `None` (and a word about it) where there is no shell.
fn shell(dir: &Path, default: Option<&str>, commands: &[&str]) -> Option<Answer> {
    if !has_program("sqlite3") {
        println!("skipped: no sqlite3 shell");
        return None;
    }
    let library = built("libonewrite.so").with_extension("");
    let mut shell = Command::new("sqlite3");
    shell.current_dir(dir).arg("-batch").arg(":memory:").arg(format!(".load {}", library.display()));
    shell.args(commands).env_remove("ONEWRITE_DEFAULT");
    if let Some(value) = default {
        shell.env("ONEWRITE_DEFAULT", value);
    }
    let done = shell.output().unwrap();
    Some(Answer {
        out: String::from_utf8_lossy(&done.stdout).into_owned(),
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    })
}

#[test]
fn a_uri_names_the_vfs() {
    let dir = setup();
    let commands = [
        ".open 'file:x.db?vfs=onewrite&log_size=512k'",
        "CREATE TABLE t(x); INSERT INTO t VALUES (41); UPDATE t SET x = x + 1",
        "SELECT x FROM t",
        "PRAGMA onewrite_scheme",
        "PRAGMA onewrite_log_size",
        ".vfsname",
    ];
    let Some(answer) = shell(dir.path(), None, &commands) else { return };
    assert_eq!(answer.out, "42\nlog\n524288\nonewrite\n", "{}", answer.err);
    assert_eq!(answer.err, "");
    assert_eq!(one::<i64>(&open_stock(&dir.path().join("x.db")), "SELECT x FROM t"), 42);
}

#[test]
fn the_environment_makes_it_the_default() {
    let dir = setup();
    let commands = [".open y.db", "CREATE TABLE t(x)", "PRAGMA onewrite_scheme"];
    for (value, expected) in [(Some("1"), "log\n"), (Some("0"), ""), (None, "")] {
        let Some(answer) = shell(dir.path(), value, &commands) else { return };
        assert_eq!(answer.out, expected, "{value:?}: {}", answer.err);
        std::fs::remove_file(dir.path().join("y.db")).unwrap();
    }
    let Some(answer) = shell(dir.path(), Some("yes"), &commands) else { return };
    assert!(answer.err.contains("ONEWRITE_DEFAULT=yes") && answer.err.contains("choices are 1"), "{}", answer.err);
}

#[test]
fn loading_twice_is_harmless_and_reasons_go_to_the_log() {
    let dir = setup();
    let library = built("libonewrite.so");
    let again = format!(".load {}", library.display());
    let commands = [again.as_str(), ".log stderr", ".open 'file:z.db?vfs=onewrite&scheme=fast'", "SELECT 1"];
    let Some(answer) = shell(dir.path(), None, &commands) else { return };
    assert!(answer.err.contains("scheme=fast") && answer.err.contains("wal-opt"), "{}", answer.err);
}

#[test]
fn the_second_entry_point_makes_it_the_default() {
    let dir = setup();
    let load = format!(".load {} sqlite3_onewrite_default_init", built("libonewrite.so").display());
    let ask = "SELECT substr(onewrite_status(), 1, 13)";
    // The first entry point has run before; the environment does not matter.
    for value in [None, Some("0"), Some("1")] {
        let Some(answer) = shell(dir.path(), value, &[&load, ".open w.db", "CREATE TABLE IF NOT EXISTS t(x)", ask])
        else {
            return;
        };
        assert_eq!((answer.out.as_str(), answer.err.as_str()), ("in_effect=yes\n", ""), "{value:?}");
    }
}

#[test]
fn a_connection_has_the_functions_once_the_extension_is_loaded_into_it() {
    let dir = setup();
    let commands = ["SELECT onewrite_version(); SELECT onewrite_status()"];
    let Some(answer) = shell(dir.path(), None, &commands) else { return };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(answer.out.lines().next(), Some(version), "{}", answer.err);
    assert!(answer.out.contains("in_effect=no"), "{}", answer.out);
}

#[test]
fn loading_again_by_a_statement_is_harmless() {
    let dir = setup();
    let load =
        format!("SELECT load_extension('{}', 'sqlite3_onewrite_default_init')", built("libonewrite.so").display());
    let commands = [load.as_str(), &load, ".open s.db", &load, "SELECT substr(onewrite_status(), 1, 13)"];
    let Some(answer) = shell(dir.path(), None, &commands) else { return };
    assert_eq!((answer.out.trim(), answer.err.as_str()), ("in_effect=yes", ""));
}

#[test]
fn errors_go_where_the_environment_says() {
    let dir = setup();
    if !has_program("sqlite3") {
        println!("skipped: no sqlite3 shell");
        return;
    }
    let run = |place: &str| {
        let library = built("libonewrite.so");
        Command::new("sqlite3")
            .current_dir(dir.path())
            .args([
                "-batch",
                ":memory:",
                &format!(".load {}", library.display()),
                ".open 'file:l.db?vfs=onewrite&logsize=8m'",
            ])
            .args(["SELECT 1"])
            .env_remove("ONEWRITE_DEFAULT")
            .env("ONEWRITE_LOG", place)
            .output()
            .unwrap()
    };
    let told = String::from_utf8(run("stderr").stderr).unwrap();
    assert!(told.contains("(14) onewrite: unknown URI parameter \"logsize\""), "{told}");
    assert!(told.contains("l.db]"), "{told}");
    for count in 1..3 {
        let told = String::from_utf8(run("errors.log").stderr).unwrap();
        assert!(!told.contains("unknown URI parameter"), "{told}");
        let lines = std::fs::read_to_string(dir.path().join("errors.log")).unwrap();
        assert_eq!(lines.matches("unknown URI parameter").count(), count, "{lines}");
    }
    let told = String::from_utf8(run("no/such/place").stderr).unwrap();
    assert!(told.contains("ONEWRITE_LOG=no/such/place") && told.contains("choices are stderr and a file"), "{told}");
}
