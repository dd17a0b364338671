//! The workloads and suites of large databases, crashes, many connections and phones, as users run
//! them. They are so small that only their form is tested, never a time.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(dir: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    command.arg("bench").args(options).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

fn json(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("out.json")).unwrap()).unwrap()
}

/// Recovery needs a process that may be traced; where it may not, the bench says so.
#[test]
fn recovery_is_timed_behind_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let engines = ["--only", "stock/delete", "--only", "stock/wal-full", "--only", "onewrite/log"];
    let sizes = ["--workload", "recovery-kill-10", "--workload", "recovery-cut-10", "--rows", "50", "--indexes", "1"];
    let small = [&sizes[..], &["--transactions", "2", "--runs", "1"]].concat();
    let output = bench(dir.path(), &[&small[..], &engines, &["--json", "out.json"]].concat());
    let text = said(&output);
    if text.contains("recovery needs a crash") {
        eprintln!("skipped: {text}");
        return;
    }
    assert!(output.status.success(), "{text}");
    let json = json(dir.path());
    let rows = json["results"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(row["p50_us"].as_f64().unwrap() > 0.0 && row["write_syscalls_per_tx"].is_null(), "{row}");
    }
    for workload in ["recovery-kill-10", "recovery-cut-10"] {
        assert_eq!(json["parameters"]["workloads"][workload]["transactions"], 2);
        assert_eq!(json["parameters"]["workloads"][workload]["reopens"], true);
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"]);
    // An engine without protection has no recovery.
    let output = bench(dir.path(), &[&small[..], &["--only", "onewrite/off"]].concat());
    assert!(!output.status.success() && said(&output).contains("none of these workloads"), "{}", said(&output));
}

#[test]
fn a_bulk_load_has_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let engines = ["--only", "stock/delete", "--only", "onewrite/log"];
    let small = ["--workload", "bulk", "--rows", "20000", "--transactions", "2", "--runs", "1", "--json", "out.json"];
    let output = bench(dir.path(), &[&small[..], &engines].concat());
    assert!(output.status.success(), "{}", said(&output));
    for row in json(dir.path())["results"].as_array().unwrap() {
        let parts: Vec<&str> = row["phases_s"].as_array().unwrap().iter().map(|p| p[0].as_str().unwrap()).collect();
        assert_eq!(parts, ["rows in one transaction", "updates of 10000 rows each"], "{row}");
    }
}

#[test]
fn transactions_at_once_count_refusals() {
    let dir = tempfile::tempdir().unwrap();
    let small =
        ["--suite", "threads", "--part", "concurrent", "--section-ms", "50", "--think-rows", "500", "--runs", "1"];
    let files = ["--connections", "3,1", "--json", "out.json", "--html", "out.html"];
    let output = bench(dir.path(), &[&small[..], &files].concat());
    assert!(output.status.success(), "{}", said(&output));
    let json = json(dir.path());
    let rows = json["results"].as_array().unwrap();
    let threads: Vec<u64> = rows.iter().map(|r| r["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 1, 1, 1, 3, 3, 3, 3]);
    for row in rows {
        let refused = row["refused_percent"].as_f64().unwrap();
        assert!((0.0..100.0).contains(&refused), "{row}");
        // Turns are waited for, but where transactions run at once.
        assert!(refused == 0.0 || row["preset"] == "log-concurrent", "{row}");
        assert_eq!(row["ratio_to_one"].is_null(), row["threads"] == 1, "{row}");
    }
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    for word in ["refused %", "× one", "3 connections: ", "FULL: a commit"] {
        assert!(page.contains(word), "{word} is missing");
    }
    let refused: [&[&str]; 2] = [
        &["--suite", "processes", "--think-rows", "5"],
        &["--suite", "threads", "--part", "readers", "--connections", "2"],
    ];
    for options in refused {
        let output = bench(dir.path(), options);
        assert!(!output.status.success() && said(&output).contains("would change nothing"), "{}", said(&output));
    }
}

#[test]
fn processes_start_think_and_rest() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--suite", "processes", "--part", "cold-start", "--part", "read-think-write", "--part", "periodic"];
    let sizes = ["--section-ms", "50", "--think-ms", "2", "--connections", "1,5", "--runs", "1"];
    let files = ["--json", "out.json", "--html", "out.html", "--only", "onewrite/log", "--only", "stock/wal-full"];
    let output = bench(dir.path(), &[&small[..], &sizes, &files].concat());
    assert!(output.status.success(), "{}", said(&output));
    let json = json(dir.path());
    let rows = json["results"].as_array().unwrap();
    for (workload, by) in [("cold start", 1), ("cold start", 5), ("read, think, write", 5)] {
        for preset in ["log", "wal-full"] {
            let same = |r: &&Value| r["workload"] == workload && r["threads"] == by && r["preset"] == preset;
            let row = rows.iter().find(same).unwrap_or_else(|| panic!("no {workload} by {by} of {preset}"));
            assert!(row["tx_per_s"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    let rhythms = json["periodic"].as_array().unwrap();
    assert_eq!(rhythms.len(), 8);
    for row in rhythms {
        let of = |name: &str| row[name].as_f64().unwrap();
        assert!(of("writes") >= 1.0 && of("flushes") >= 1.0 && of("kib") >= 4.0 && of("first_ms_p50") > 0.0, "{row}");
        // Staying attached or not, a commit now and then costs little more than one flush.
        assert!(row["preset"] == "wal-full" || of("flushes") < 2.0, "{row}");
    }
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    for word in ["cold start, 5", "a commit every 5 s", "3 commits every 3 s", "log-attached"] {
        assert!(page.contains(word), "{word} is missing");
    }
    for refused in ["cold-start", "periodic"] {
        let output = bench(dir.path(), &["--suite", "threads", "--part", refused]);
        assert!(said(&output).contains("of the suite processes alone"), "{}", said(&output));
    }
}

#[test]
fn phones_have_one_table_and_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--suite", "phone", "--transactions", "2", "--workload", "open-insert-close", "--workload", "gmail"];
    let output = bench(dir.path(), &[&small[..], &["--json", "out.json", "--html", "out.html"]].concat());
    let text = said(&output);
    if !output.status.success() {
        let missing = ["needs root", "the right to mount", "no FUSE", "no loop devices", "install"];
        assert!(text.contains("--device emmc") && missing.iter().any(|m| text.contains(m)), "{text}");
        eprintln!("skipped: {text}");
        return;
    }
    let json = json(dir.path());
    let rows = json["results"].as_array().unwrap();
    for device in ["emmc", "ufs", "sdcard"] {
        for workload in ["open-insert-close", "gmail"] {
            for engine in ["stock/delete", "stock/truncate", "stock/wal-full", "onewrite/log"] {
                let same = |r: &&Value| r["engine"] == device && r["preset"] == engine && r["workload"] == workload;
                let row = rows.iter().find(same).unwrap_or_else(|| panic!("no {engine} {workload} on {device}"));
                assert!(row["kib_per_tx"].as_f64().unwrap() >= 0.0 && row["tx_per_s"].as_f64().unwrap() > 0.0, "{row}");
                assert!(engine != "stock/delete" || row["ratio"]["median"] == 1.0, "{row}");
            }
        }
    }
    for word in ["transactions/s", "ufs", "years of a card's life", "batch-atomic", "\ngmail: "] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    for word in ["transactions/s on sdcard", "geometric mean", "<li>gmail: ", "batch-atomic", "Parameter card"] {
        assert!(page.contains(word), "{word} is missing");
    }
    for element in ["table", "svg", "figure", "div", "dl", "ul"] {
        let open = page.matches(&format!("<{element}")).count();
        assert_eq!(open, page.matches(&format!("</{element}>")).count(), "{element}");
    }
}
