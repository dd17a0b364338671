//! `onewrite bench --suite schemes` as users run it, with sizes so small that only its form is
//! tested, never a time.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn suite(dir: &Path, options: &[&str]) -> Output {
    let small = ["--suite", "schemes", "--transactions", "4", "--runs", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    command.arg("bench").args(small).args(options).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn a_figure_has_its_table_and_its_json_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let only = ["--only", "ls-mvbt-9", "--only", "dhl-8", "--json", "out.json", "--html", "out.html"];
    let output = suite(dir.path(), &only);
    assert!(output.status.success(), "{}", said(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["Fig. 9", "search:write", "TRUNCATE", "WAL", "log", "100:0", "× WAL"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    assert!(table.contains("lsmvbt") || table.contains("cargo build --release -p onewrite-sqlite"), "{table}");
    let json: Value = serde_json::from_slice(&std::fs::read(dir.path().join("out.json")).unwrap()).unwrap();
    let results = json["results"].as_array().unwrap();
    let rates = results.iter().filter(|r| r["metric"] == "tx_per_s");
    assert!(rates.clone().count() >= 21);
    assert!(rates.clone().all(|r| r["median"].as_f64().unwrap() > 0.0 && r["runs"].as_array().unwrap().len() == 1));
    assert!(json["parameters"]["engines"]["WAL 0:100"].as_str().unwrap().contains("journal_mode=wal"));
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    for word in ["<svg", "Fig. 9", "search:write", "Parameter card", "compile options", "var(--c0)"] {
        assert!(page.contains(word), "{word} is missing in the page");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "the JSON and the page alone are left");
    let compare = ["bench", "compare", "out.json", "out.json"];
    let same = Command::new(env!("CARGO_BIN_EXE_onewrite")).args(compare).current_dir(dir.path()).output().unwrap();
    assert!(same.status.success() && said(&same).contains("ls-mvbt-9 100:0, tx_per_s"), "{}", said(&same));
}

/// Recovery needs a process that may be traced; where it may not, the table says so.
#[test]
fn a_process_killed_in_a_commit_is_recovered_from() {
    let dir = tempfile::tempdir().unwrap();
    let output = suite(dir.path(), &["--only", "dhl-11"]);
    assert!(output.status.success(), "{}", said(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    let line = table.lines().find(|l| l.trim_start().starts_with("WAL")).unwrap();
    let numbers = line.split_whitespace().filter_map(|w| w.parse::<f64>().ok());
    assert!(numbers.filter(|ms| *ms > 0.0).count() == 5 || table.contains("recovery is n/a"), "{table}");
}

#[test]
fn an_unknown_figure_and_a_library_without_onewrite_are_refused_with_the_choices() {
    let dir = tempfile::tempdir().unwrap();
    let output = suite(dir.path(), &["--only", "ls-mvbt-99"]);
    assert!(!output.status.success() && said(&output).contains("dhl-10"), "{}", said(&output));
    std::fs::write(dir.path().join("no.so"), "not a library").unwrap();
    let output = suite(dir.path(), &["--library", "no.so"]);
    assert!(!output.status.success() && said(&output).contains("no.so"), "{}", said(&output));
}
