//! Every option with every measurement of `onewrite bench`: it changes the card, or is refused by
//! name.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A measurement: its arguments, and options that keep it small.
struct Measurement<'a> {
    name: &'a [&'a str],
    small: &'a [(&'a str, &'a str)],
}

#[test]
fn every_option_of_the_suite_commit_changes_the_card_or_is_refused_by_name() {
    let small = [
        ("--only", "stock/wal-full"),
        ("--workload", "insert"),
        ("--rows", "20"),
        ("--transactions", "5"),
        ("--runs", "1"),
    ];
    walk(&Measurement { name: &[], small: &small });
}

#[test]
fn every_option_of_the_suite_threads_changes_the_card_or_is_refused_by_name() {
    let small = [("--part", "long-reader"), ("--section-ms", "20"), ("--runs", "1")];
    walk(&Measurement { name: &["--suite", "threads"], small: &small });
}

#[test]
fn every_option_of_the_suite_schemes_changes_the_card_or_is_refused_by_name() {
    let small = [("--only", "dhl-10"), ("--transactions", "3"), ("--runs", "1")];
    walk(&Measurement { name: &["--suite", "schemes"], small: &small });
}

#[test]
fn every_option_of_a_sweep_changes_the_card_or_is_refused_by_name() {
    let small =
        [("--values", "65536"), ("--workload", "insert"), ("--rows", "20"), ("--transactions", "5"), ("--runs", "1")];
    walk(&Measurement { name: &["sweep", "wal_size"], small: &small });
}

#[test]
fn every_option_of_advice_changes_the_card_or_is_refused_by_name() {
    let small = [("--rows", "20"), ("--transactions", "5"), ("--runs", "1")];
    walk(&Measurement { name: &["advise", "."], small: &small });
}

/// A value for each option that has one, unlike those above and the defaults.
const VALUES: [(&str, &str); 37] = [
    ("--only", "onewrite/log"),
    ("--workload", "mobibench-insert"),
    ("--rows", "30"),
    ("--row-bytes", "77"),
    ("--transactions", "6"),
    ("--ops-per-tx", "2"),
    ("--threads", "3"),
    ("--tables", "2"),
    ("--indexes", "1"),
    ("--runs", "2"),
    ("--minutes", "0.05"),
    ("--seed", "5"),
    ("--wal-start", "grown"),
    ("--part", "readers"),
    ("--section-ms", "30"),
    ("--connections", "1"),
    ("--think-rows", "100"),
    ("--think-ms", "3"),
    ("--card-gb", "64"),
    ("--card-cycles", "100"),
    ("--card-amplification", "2"),
    ("--commits-per-s", "3"),
    ("--engine", "stock/wal-normal"),
    ("--values", "131072"),
    ("--image-mib", "400"),
    ("--json", "other.json"),
    ("--html", "out.html"),
    ("--svg", "out.svg"),
    // Heeded ones fail here, with these words.
    ("--dir", "not-there"),
    ("--library", "not-there"),
    ("--replay", "not-there"),
    ("--device", "floppy"),
    ("--fs", "fat"),
    ("--device-mib", "1"),
    ("--write-us", "0"),
    ("--flush-us", "0"),
    ("--trace", "out.csv"),
];

fn run(dir: &Path, m: &Measurement<'_>, option: Option<(&str, Option<&str>)>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    command.arg("bench").args(m.name);
    for (name, value) in m.small.iter().filter(|(name, _)| option.is_none_or(|(given, _)| given != *name)) {
        command.args([name, value]);
    }
    if option.is_none_or(|(name, _)| name != "--json") {
        command.args(["--json", "out.json"]);
    }
    if let Some((name, value)) = option {
        command.arg(name).args(value);
    }
    command.current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// The JSON's parameters, and the names of its results.
fn card(dir: &Path) -> String {
    let mut json: Value = serde_json::from_slice(&std::fs::read(dir.join("out.json")).unwrap()).unwrap();
    for part in ["machine", "syscalls", "notes", "unknown", "made_at", "command"] {
        json["parameters"].as_object_mut().unwrap().remove(part);
    }
    let name =
        |row: &Value| ["figure", "engine", "preset", "workload", "at", "threads"].map(|key| row[key].to_string());
    let results: Vec<_> = json["results"].as_array().unwrap().iter().map(name).collect();
    format!("{} {results:?}", json["parameters"])
}

/// The options that the help of a measurement lists, but for the one that names the measurement.
fn options(m: &Measurement<'_>) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    command.arg("bench").args(m.name.iter().take(1).filter(|name| !name.starts_with('-'))).arg("--help");
    let help = said(&command.output().unwrap());
    let option = |line: &str| Some(line.trim_start().strip_prefix("--")?.split_whitespace().next()?.to_owned());
    help.lines().filter_map(option).map(|name| format!("--{name}")).filter(|name| name != "--suite").collect()
}

/// Every option of this measurement. Measurements wait for the disk most of their time: some run at
/// once.
fn walk(m: &Measurement<'_>) {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), m, None);
    assert!(output.status.success(), "{:?}: {}", m.name, said(&output));
    let plain = card(dir.path());
    let options = options(m);
    assert!(options.len() > 10, "{options:?}");
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(option) = options.get(next.fetch_add(1, Relaxed)) {
                    changes_the_card_or_is_refused(m, option, &plain);
                }
            });
        }
    });
}

fn changes_the_card_or_is_refused(m: &Measurement<'_>, option: &str, plain: &str) {
    let dir = tempfile::tempdir().unwrap();
    let value = VALUES.iter().find(|(name, _)| *name == option).map(|(_, value)| *value);
    let output = run(dir.path(), m, Some((option, value)));
    let what = format!("bench {} {option} {value:?}", m.name.join(" "));
    if !output.status.success() {
        let said = said(&output);
        let words: Vec<&str> = said.split_whitespace().map(|w| w.trim_matches(['\'', '`', ':', ';', ','])).collect();
        let named = words.contains(&option) || value.is_some_and(|v| said.contains(v));
        assert!(named, "{what}: {said}");
        return;
    }
    let changes = match option {
        "--json" | "--html" | "--svg" => dir.path().join(value.unwrap()).exists(),
        "--wear" => said(&output).contains("Wear, estimated"),
        "--peers" => said(&output).contains("batch-atomic"),
        _ => card(dir.path()) != plain,
    };
    assert!(changes, "{what} was passed over: {}", card(dir.path()));
}

#[test]
fn sizes_that_only_some_workloads_heed_are_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--only", "stock/wal-full", "--rows", "20", "--transactions", "5", "--runs", "1"];
    let output = Command::new(env!("CARGO_BIN_EXE_onewrite"))
        .args(["bench", "--workload", "insert", "--workload", "gmail", "--indexes", "1"])
        .args(small)
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("--indexes does not concern gmail"), "{}", said(&output));
}
