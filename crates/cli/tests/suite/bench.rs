//! The command as users run it, with sizes so small that only its form is tested, never a time.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
#[cfg(unix)]
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

const KEYS: [&str; 23] = [
    "engine",
    "preset",
    "workload",
    "threads",
    "tx_per_s",
    "tx_per_s_runs",
    "tx_per_s_known",
    "ratio",
    "latency_us_cdf",
    "kib_database_per_tx",
    "kib_log_per_tx",
    "kib_once_per_tx",
    "ratio_to_wal_full",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "block_writes_per_tx",
    "kib_per_tx",
    "flushes_per_tx",
    "write_syscalls_per_tx",
    "sync_syscalls_per_tx",
    "wear",
];

fn bench(dir: &Path, options: &[&str]) -> Output {
    let small = ["--rows", "20", "--transactions", "10", "--runs", "2"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    command.arg("bench").args(small).args(options).current_dir(dir).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn table_json_and_nothing_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--json", "out.json"]);
    assert!(output.status.success(), "{}", said(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for word in
        ["INSERT", "UPDATE", "DELETE", "stock delete", "stock wal-full", "stock wal-normal *", "floor", "SQLite"]
    {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }

    let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let top: Vec<_> = json.as_object().unwrap().keys().collect();
    assert_eq!(top, ["parameters", "results"]);
    let results = json["results"].as_array().unwrap();
    for row in results {
        let mut keys: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
        let mut wanted = KEYS;
        keys.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
        assert!(row["tx_per_s"].as_f64().unwrap() > 0.0);
        assert!(row["ratio_to_wal_full"].as_f64().unwrap() > 0.0);
    }
    let find = |engine: &str, preset: &str, workload: &str| {
        let same = |r: &&Value| r["engine"] == engine && r["preset"] == preset && r["workload"] == workload;
        results.iter().find(same).unwrap_or_else(|| panic!("no {engine}/{preset} {workload}"))
    };
    for workload in ["insert", "update", "delete"] {
        for preset in ["delete", "truncate", "persist", "wal-full", "wal-normal"] {
            find("stock", preset, workload);
        }
        assert_eq!(find("onewrite", "log-normal", workload)["kib_once_per_tx"], 0.0, "ten commits need no long log");
        assert_eq!(find("stock", "wal-full", workload)["ratio_to_wal_full"], 1.0);
        let floor = find("floor", "overwrite", workload);
        assert_eq!(floor["tx_per_s_runs"].as_array().unwrap().len(), 2);
        assert_eq!(find("onewrite", "log", workload)["ratio"]["safe"], false, "two runs cannot be enough");
        // Tracing may be forbidden where the tests run; where it is not, the counts are exact.
        if let Some(writes) = floor["write_syscalls_per_tx"].as_f64() {
            assert_eq!(floor["kib_database_per_tx"], 4.0);
            assert!(find("stock", "wal-full", workload)["kib_log_per_tx"].as_f64().unwrap() > 4.0);
            assert_eq!((writes, floor["sync_syscalls_per_tx"].as_f64()), (1.0, Some(1.0)));
            assert_eq!(find("stock", "wal-full", workload)["sync_syscalls_per_tx"], 1.0);
            assert_eq!(find("stock", "wal-normal", workload)["sync_syscalls_per_tx"], 0.0);
            assert_eq!(find("onewrite", "log-normal", workload)["sync_syscalls_per_tx"], 0.0);
            // No thread waits for this one. The engine's own thread is woken when it attaches.
            let calls = &json["parameters"]["syscalls"][format!("onewrite/log {workload}")];
            assert!(calls["futex (waking)"].as_f64().unwrap_or(0.0) < 1.0, "{calls}");
        }
    }
    let parameters = &json["parameters"];
    for key in [
        "sqlite_version",
        "compile_options",
        "engines",
        "preloaded_rows",
        "row_bytes",
        "key_order",
        "transactions",
        "runs",
        "seed",
        "machine",
        "notes",
    ] {
        assert!(!parameters[key].is_null(), "{key}");
    }
    assert_eq!(parameters["runs"], 2);
    for engine in ["stock/wal-normal", "onewrite/log-normal"] {
        assert_eq!(parameters["engines"][engine]["synchronous"], "NORMAL");
    }
    assert_eq!(parameters["command"], "onewrite bench --rows 20 --transactions 10 --runs 2 --json out.json");
    assert!(parameters["made_at"].as_str().unwrap().ends_with(" UTC"));

    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"]);
}

#[test]
fn only_the_engines_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--only", "stock/truncate", "--json", "out.json"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    assert!(results.iter().all(|r| r["preset"] == "truncate" && r["ratio_to_wal_full"].is_null()));
}

#[test]
fn reads_compare_with_stock_as_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let workloads = ["lookup", "lookup-cold", "scan", "scan-cold"];
    let mut options = vec!["--indexes", "1", "--json", "out.json"];
    options.extend(workloads.iter().flat_map(|w| ["--workload", w]));
    let output = bench(dir.path(), &options);
    assert!(output.status.success(), "{}", said(&output));
    let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let results = json["results"].as_array().unwrap();
    let presets = ["delete", "wal-full", "log", "log-live"];
    assert_eq!(results.len(), workloads.len() * presets.len());
    for row in results {
        assert!(workloads.contains(&row["workload"].as_str().unwrap()), "{row}");
        assert!(presets.contains(&row["preset"].as_str().unwrap()), "{row}");
        assert!(row["ratio_to_stock_default"].as_f64().unwrap() > 0.0, "{row}");
        // Not counted where tracing is forbidden.
        assert_eq!(row["write_syscalls_per_tx"].as_f64().unwrap_or(0.0), 0.0, "{row}");
    }
    let schema = &json["parameters"]["workloads"]["lookup"]["schema"];
    assert!(schema.as_str().unwrap().contains("CREATE INDEX t_i1"));
}

#[test]
fn workloads_of_apps_and_tools_and_wear() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("trace.sql"), "CREATE TABLE t(a);\n-- measure\nINSERT INTO t VALUES(1);\n").unwrap();
    let workloads = ["mobibench-insert", "rl", "open-insert-close", "tabs", "gmail", "replay"];
    let mut options = vec!["--only", "stock/wal-full", "--only", "onewrite/log", "--json", "out.json", "--wear"];
    options.extend(["--replay", "trace.sql"]);
    options.extend(workloads.iter().flat_map(|w| ["--workload", w]));
    let output = bench(dir.path(), &options);
    assert!(output.status.success(), "{}", said(&output));
    let said = said(&output);
    for word in ["GMAIL", "Wear, estimated", "25000 inserts in a transaction", "write amplification"] {
        assert!(said.contains(word), "{word} is missing in\n{said}");
    }
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    for workload in workloads {
        assert!(json["parameters"]["workloads"][workload]["transactions"].as_u64().unwrap() > 0, "{workload}");
        assert!(json["results"].as_array().unwrap().iter().any(|r| r["workload"] == workload));
    }
    assert_eq!(json["parameters"]["workloads"]["tabs"]["threads"], 4);
    assert_eq!(json["parameters"]["workloads"]["replay"]["prepared"], false);
}

#[test]
fn a_library_given_by_path_is_the_one_that_is_measured() {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = places.iter().map(|place| format!("{place}/libsqlite3.so.0")).find(|path| Path::new(path).exists());
    let Some(path) = found else {
        eprintln!("skipped: no libsqlite3.so.0 in {}", places.join(", "));
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = ["--library", &path, "--workload", "insert", "--workload", "gmail", "--json", "out.json"];
    let output = bench(dir.path(), &options);
    assert!(output.status.success(), "{}", said(&output));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    let engines = json["parameters"]["engines"].as_object().unwrap();
    let (name, settings) =
        engines.iter().find(|(name, _)| name.ends_with("/persist") && name.starts_with("lib")).unwrap();
    assert!(settings["sqlite_version"].as_str().unwrap().starts_with("3."), "{settings}");
    assert!(!settings["compile_options"].as_array().unwrap().is_empty(), "{settings}");
    let group = name.strip_suffix("/persist").unwrap();
    let rows = json["results"].as_array().unwrap();
    assert_eq!(rows.iter().filter(|r| r["engine"] == group).count(), 2 * 5);
}

#[test]
fn stores_commit_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--peers", "--workload", "insert", "--json", "out.json"]);
    assert!(output.status.success(), "{}", said(&output));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    let rows = json["results"].as_array().unwrap();
    for engine in ["lmdb", "redb", "stock", "onewrite", "floor"] {
        assert!(rows.iter().any(|r| r["engine"] == engine && r["tx_per_s"].as_f64().unwrap() > 0.0), "{engine}");
    }
    assert!(json["parameters"]["notes"].to_string().contains("batch-atomic"));
}

fn onewrite(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onewrite")).args(arguments).current_dir(dir).output().unwrap()
}

#[test]
fn results_compare_only_where_their_cards_agree() {
    let dir = tempfile::tempdir().unwrap();
    let only = ["--only", "stock/wal-full", "--workload", "insert"];
    for (file, rows) in [("a.json", "20"), ("b.json", "20"), ("c.json", "30")] {
        let output = bench(dir.path(), &[&only[..], &["--json", file]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let path = dir.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"preloaded_rows\": 20", &format!("\"preloaded_rows\": {rows}"))).unwrap();
    }
    let same = onewrite(dir.path(), &["bench", "compare", "a.json", "b.json"]);
    assert!(same.status.success(), "{}", said(&same));
    assert!(said(&same).contains("stock wal-full") && said(&same).contains(" to "), "{}", said(&same));
    let differing = onewrite(dir.path(), &["bench", "compare", "a.json", "c.json"]);
    assert!(!differing.status.success());
    let said_so = said(&differing);
    assert!(said_so.contains("workloads.insert.preloaded_rows: 20 and 30"), "{said_so}");
    let subject = ["bench", "compare", "a.json", "c.json", "--subject", "workloads.insert.preloaded_rows"];
    assert!(onewrite(dir.path(), &subject).status.success());
    let wrong = onewrite(dir.path(), &["bench", "compare", "a.json", "c.json", "--subject", "kernel"]);
    assert!(said(&wrong).contains("machine.kernel"), "{}", said(&wrong));
}

#[test]
fn sweeps_vary_one_value() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--rows", "20", "--transactions", "5", "--runs", "1", "--json", "out.json"];
    for (sweep, values, setting) in [
        (&["journal_mode"][..], vec!["delete", "truncate", "persist", "memory", "off", "wal"], "journal_mode"),
        (&["wal_size", "--values", "65536,1048576"], vec!["65536", "1048576"], "journal_size_limit"),
        (&["ops_per_tx", "--values", "1,3", "--engine", "onewrite/log"], vec!["1", "3"], "page_size"),
        (&["threads", "--values", "1,2"], vec!["1", "2"], "page_size"),
    ] {
        let output = onewrite(dir.path(), &[&["bench", "sweep"], sweep, &small].concat());
        assert!(output.status.success(), "{}", said(&output));
        let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let rows = json["results"].as_array().unwrap();
        for value in values {
            let row = rows.iter().find(|r| r["preset"] == value).unwrap_or_else(|| panic!("{sweep:?} has no {value}"));
            let settings = &json["parameters"]["engines"][format!("{}/{value}", row["engine"].as_str().unwrap())];
            let found = settings[setting].to_string();
            assert!(setting == "page_size" || found.trim_matches('"') == value, "{sweep:?} {value}: {found}");
        }
    }
    let output = onewrite(dir.path(), &["bench", "sweep", "wal_size", "--engine", "stock/delete"]);
    assert!(said(&output).contains("only stock SQLite in WAL mode"), "{}", said(&output));
}

#[test]
fn file_systems_on_images_are_measured_or_left_out_with_a_reason_and_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sweep = ["bench", "sweep", "fs", "--values", "ext4-journal,nofs", "--image-mib", "320", "--workload", "insert"];
    let small = ["--rows", "20", "--transactions", "3", "--runs", "1", "--json", "out.json"];
    let output = onewrite(dir.path(), &[&sweep[..], &small].concat());
    let said = said(&output);
    assert!(said.contains("nofs was left out: choose from ext4-ordered"), "{said}");
    if output.status.success() {
        let text = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["results"][0]["preset"], "ext4-journal");
        assert_eq!(json["parameters"]["machines"]["fs/ext4-journal"]["file_system_journal"], "data=journal");
    } else {
        assert!(said.contains("ext4-journal was left out: "), "{said}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"], "{said}");
}

#[test]
fn advice_names_settings_and_their_losses() {
    let dir = tempfile::tempdir().unwrap();
    let output = onewrite(dir.path(), &["bench", "advise", ".", "--transactions", "5", "--runs", "1", "--rows", "20"]);
    assert!(output.status.success(), "{}", said(&output));
    let said = said(&output);
    for word in [
        "ADVICE",
        "Every commit survives a power cut",
        "journal_mode=wal",
        "Choose ",
        "A power cut may take the commits",
    ] {
        assert!(said.contains(word), "{word} is missing in\n{said}");
    }
}

#[test]
fn the_page_stands_alone() {
    let dir = tempfile::tempdir().unwrap();
    let options = ["--workload", "insert", "--workload", "rl", "--html", "out.html"];
    let output = bench(dir.path(), &options);
    assert!(output.status.success(), "{}", said(&output));
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    // But for the name of SVG's namespace.
    let links = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!links.contains("http:") && !links.contains("https:") && !links.contains("src="));
    for word in
        ["<svg", "prefers-color-scheme: dark", "viewport", "Parameter card", "99.9 %", "drop table", "onewrite log"]
    {
        assert!(page.contains(word), "{word} is missing");
    }
    for element in ["table", "svg", "figure", "div", "details", "dl", "ul"] {
        let (open, close) =
            (page.matches(&format!("<{element}")).count(), page.matches(&format!("</{element}>")).count());
        assert_eq!(open, close, "{element}");
    }
}

#[test]
fn a_simulated_device_counts_writes_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let engines = ["stock/delete", "stock/persist", "stock/wal-full", "onewrite/log", "floor"];
    let mut options = vec!["--device", "none", "--fs", "ext4", "--workload", "insert"];
    options.extend(["--transactions", "50", "--json", "out.json", "--html", "out.html", "--trace", "out.csv"]);
    options.extend(engines.iter().flat_map(|e| ["--only", e]));
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    let output = command.args(["bench", "--rows", "20", "--runs", "2"]).args(&options);
    let output = output.current_dir(dir.path()).output().unwrap();
    if !output.status.success() {
        let said = said(&output);
        let missing = ["needs root", "the right to mount", "no FUSE", "no loop devices", "install"];
        assert!(said.contains("--device none") && missing.iter().any(|m| said.contains(m)), "{said}");
        eprintln!("skipped: {said}");
        return;
    }
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    let machine = &json["parameters"]["machine"];
    assert_eq!((&machine["file_system"], &machine["simulated"]["profile"]), (&"ext4".into(), &"none".into()));
    let csv = std::fs::read_to_string(dir.path().join("out.csv")).unwrap();
    assert!(csv.starts_with("engine,workload,time_us,request,"), "{csv}");
    for engine in engines {
        let (name, preset) = engine.split_once('/').unwrap_or((engine, "overwrite"));
        let rows = json["results"].as_array().unwrap();
        let row = rows.iter().find(|r| r["engine"] == name && r["preset"] == preset).unwrap();
        let number = |key: &str| row["blocks"][key].as_f64().unwrap();
        // A flush per durable commit; the writes of a commit reach the device as whole blocks of 4
        // KiB.
        assert!(number("flushes_per_tx") >= 1.0, "{engine}: {row}");
        let log = number("kib_log_per_tx");
        match preset {
            "overwrite" => assert_eq!((number("kib_database_per_tx"), log, number("writes_per_tx")), (4.0, 0.0, 1.0)),
            // Of a database of four pages, a commit changes at least one and journals it.
            "delete" | "persist" => assert!(log >= 4.0 && number("kib_database_per_tx") >= 4.0, "{engine}: {row}"),
            _ => assert!(log >= 4.0, "{engine}: {row}"),
        }
        // A new journal each time: the file system has to say so, and then again that it is gone.
        assert!(preset != "delete" || number("kib_fs_journal_per_tx") >= 8.0, "{row}");
        let kib: f64 = ["database", "log", "fs_journal", "fs_metadata", "elsewhere"]
            .iter()
            .map(|part| number(&format!("kib_{part}_per_tx")))
            .sum();
        // Medians of two runs, part by part and of the whole.
        assert!((kib - row["kib_per_tx"].as_f64().unwrap()).abs() < 0.01, "{engine}: {row}");
        let bytes = row["wear"]["bytes_per_commit"].as_f64().unwrap();
        assert!(bytes >= kib * 1024.0 - 1.0 && row["wear"]["years"].as_f64().unwrap() > 0.0, "{engine}: {row}");
        let flushes =
            csv.lines().filter(|l| l.starts_with(&format!("{name}/{preset},insert,")) && l.contains(",flush,"));
        assert!(flushes.count() >= 50, "{engine}");
    }
    let page = std::fs::read_to_string(dir.path().join("out.html")).unwrap();
    for word in ["Block addresses over time", "fs journal", "simulated none", "bytes per commit", "flushes</text>"] {
        assert!(page.contains(word) || page.contains(&word.replace("</text>", "\n</text>")), "{word} is missing");
    }
    let text = said(&output);
    assert!(text.contains("journal\n") || text.contains("bytes/"), "{text}");
    let mut left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["out.csv", "out.html", "out.json"]);
}

#[test]
fn a_sweep_over_simulated_devices_ends() {
    let dir = tempfile::tempdir().unwrap();
    let sweep = ["bench", "sweep", "fs", "--values", "ext4-ordered,ext4-journal,f2fs", "--device", "none"];
    let small = ["--workload", "insert", "--rows", "20", "--transactions", "3", "--runs", "1", "--json", "out.json"];
    let output = onewrite(dir.path(), &[&sweep[..], &small].concat());
    let said = said(&output);
    assert!(said.contains("f2fs was left out"), "{said}");
    if !output.status.success() {
        assert!(said.contains("ext4-journal was left out: --device none"), "{said}");
        return;
    }
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    let journal = |row: usize| json["results"][row]["blocks"]["kib_fs_journal_per_tx"].as_f64().unwrap();
    assert!(journal(1) > journal(0), "data=journal has the data too: {json}");
}

#[test]
fn connections_in_threads_fill_all_columns() {
    columns_of("threads", &[]);
}

#[test]
fn connections_in_processes_fill_the_same_columns() {
    // The other parts wait for a minute, and `processes_start_think_and_rest` has them.
    let parts = ["writers", "readers", "long-reader", "db-bench", "read-think-write"];
    columns_of("processes", &parts.map(|part| ["--part", part]).concat());
}

fn columns_of(suite: &str, parts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let small = ["bench", "--suite", suite, "--section-ms", "20", "--transactions", "5", "--runs", "1"];
    let output = onewrite(dir.path(), &[&small[..], parts, &["--json", "a.json", "--html", "a.html"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let page = std::fs::read_to_string(dir.path().join("a.html")).unwrap();
    for word in ["<svg", "Fairness", "Longest wait", "inserts, long reader", "Parameter card", "compile options"] {
        assert!(page.contains(word), "{suite}: {word} is missing");
    }
    for element in ["table", "svg", "figure", "div", "dl", "ul"] {
        let open = page.matches(&format!("<{element}")).count();
        assert_eq!(open, page.matches(&format!("</{element}>")).count(), "{suite}: {element}");
    }
    let text = said(&output);
    for word in [
        "slowest/",
        "Longest wait",
        "p99 µs",
        "DB Bench: deletes",
        "lookups, writers elsewhere",
        "wal-full-late",
        "governor",
    ] {
        assert!(text.contains(word), "{suite}: {word} is missing in\n{text}");
    }
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("a.json")).unwrap()).unwrap();
    let rows = json["results"].as_array().unwrap();
    let find = |preset: &str, workload: &str, threads: u64| {
        let same = |r: &&Value| r["preset"] == preset && r["workload"] == workload && r["threads"] == threads;
        rows.iter().find(same).unwrap_or_else(|| panic!("{suite}: no {preset} {workload} by {threads}"))
    };
    for preset in ["log", "wal-full", "truncate"] {
        for connections in [1, 2, 4, 8] {
            assert!(find(preset, "inserts", connections)["fairness"].as_f64().unwrap() <= 1.0);
        }
        assert!(find(preset, "lookups beside writers", 1)["lookup_us_p99"].as_f64().unwrap() > 0.0);
        assert!(find(preset, "DB Bench: updates, overlapping", 2)["tx_per_s"].as_f64().unwrap() > 0.0);
    }
    assert!(find("log", "inserts, long reader", 4)["log_bytes_max"].as_u64().unwrap() > 0);
    assert_eq!(rows.iter().filter(|r| r["workload"] == "DB Bench: searches").count(), 5);
    assert_eq!(json["parameters"]["section_ms"], 20);
    let engine = &json["parameters"]["engines"]["stock/wal-full"];
    assert_eq!((&engine["journal_mode"], &engine["wal_autocheckpoint"]), (&"wal".into(), &1000.into()));
    let compared = onewrite(dir.path(), &["bench", "compare", "a.json", "a.json"]);
    assert!(compared.status.success(), "{}", said(&compared));
    let output = onewrite(dir.path(), &["bench", "--suite", suite, "--only", "floor"]);
    assert!(!output.status.success() && said(&output).contains("stock/wal-full-late"), "{}", said(&output));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn errors_name_the_value_and_the_choices() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &[&str]); 17] = [
        (&["--device", "floppy"], &["floppy", "emmc", "sdcard"]),
        (&["--fs", "xfs"], &["--fs", "--device"]),
        (&["--device", "emmc", "--fs", "fat"], &["fat", "ext4-ordered", "btrfs"]),
        (&["--only", "stock/wall"], &["stock/wall", "stock/wal-full", "onewrite/log", "floor"]),
        (&["--workload", "look"], &["look", "insert", "lookup-cold", "scan"]),
        (&["--library", "Cargo.toml"], &["Cargo.toml"]),
        (&["--workload", "replay"], &["--rows would change nothing in replay"]),
        (&["--wal-start", "grown", "--only", "stock/truncate"], &["--wal-start concerns stock SQLite in WAL mode"]),
        (&["--indexes", "1", "--only", "redb"], &["--indexes concerns tables of SQLite"]),
        (&["--card-gb", "0"], &["--card-gb", "greater than 0"]),
        (&["--suite", "comit"], &["comit", "what one durable commit costs"]),
        (&["--indexes", "4"], &["--indexes", "4", "0..=3"]),
        (&["--only", "onewrite/log-live"], &["onewrite/log-live", "--workload", "lookup"]),
        (&["--row-bytes", "many"], &["--row-bytes", "many"]),
        (&["--wal-start", "half"], &["half", "empty", "grown"]),
        (&["--dir", "not-there"], &["not-there"]),
        (&["--json", "not-there/out.json"], &["not-there/out.json"]),
    ];
    for (options, words) in cases {
        let output = bench(dir.path(), options);
        assert!(!output.status.success(), "{options:?} was accepted");
        let said = said(&output);
        for word in words {
            assert!(said.contains(word), "{options:?}: {word} is missing in: {said}");
        }
    }
    let output = onewrite(dir.path(), &["bench", "--workload", "replay"]);
    assert!(said(&output).contains("needs --replay FILE"), "{}", said(&output));
}

#[test]
fn help_teaches() {
    let output = Command::new(env!("CARGO_BIN_EXE_onewrite")).args(["bench", "--help"]).output().unwrap();
    let help = said(&output);
    for word in ["--only", "stock/wal-full", "--json", "two minutes", "floor"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
}

#[test]
fn a_picture_to_share_says_how_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--workload", "insert", "--svg", "cost.svg"]);
    let svg = std::fs::read_to_string(dir.path().join("cost.svg")).unwrap();
    if !output.status.success() {
        // Where the device's writes are not counted there is nothing to draw.
        assert!(said(&output).contains("the device's writes were not counted"), "{}", said(&output));
        return;
    }
    // A long line of the picture is several elements.
    let text = svg.lines().filter(|line| !line.starts_with('<')).flat_map(str::split_whitespace);
    let text = text.collect::<Vec<_>>().join(" ");
    for word in [
        "What a commit writes",
        "KiB per commit",
        "flushes per commit",
        "stock DELETE (default)",
        "onewrite, FULL",
        "onewrite, NORMAL *",
        "prefers-color-scheme: dark",
        "UTC",
        "Linux ",
        "onewrite bench --rows 20 --transactions 10 --runs 2 --workload insert",
    ] {
        assert!(svg.contains(word) || text.contains(word), "{word} is missing in {svg}");
    }
    let output = onewrite(dir.path(), &["bench", "--suite", "threads", "--svg", "cost.svg"]);
    assert!(said(&output).contains("--svg would change nothing"), "{}", said(&output));
}

#[test]
fn a_section_that_fails_ends_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    let sql = "CREATE TABLE t(a UNIQUE);\n-- measure\nINSERT INTO t VALUES(1);\nINSERT INTO t VALUES(1);\n";
    std::fs::write(dir.path().join("twice.sql"), sql).unwrap();
    let only = ["--only", "stock/truncate", "--workload", "insert", "--workload", "replay"];
    let output = bench(dir.path(), &[&only[..], &["--replay", "twice.sql", "--json", "out.json"]].concat());
    let text = said(&output);
    assert!(!output.status.success() && text.contains("a part failed: stock/truncate replay, run 1"), "{text}");
    assert!(text.contains("INSERT") && text.contains("Note: not measured to the end: stock/truncate replay"), "{text}");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    let runs: Vec<_> =
        json["results"].as_array().unwrap().iter().map(|r| r["tx_per_s_runs"].as_array().unwrap().len()).collect();
    assert_eq!(runs, [2], "{json}");
    let output = bench(dir.path(), &[&only[..], &["--replay", "absent.sql"]].concat());
    assert!(said(&output).contains("--replay absent.sql") && !said(&output).contains("run 1"), "{}", said(&output));
}

/// The interrupt comes when standard error has a line with `told`.
#[cfg(unix)]
fn interrupted(dir: &Path, options: &[&str], told: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onewrite"));
    let command = command.arg("bench").args(options).current_dir(dir);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.find(|line| line.contains(told));
    assert!(first.is_some(), "it ended without a line with {told}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    let mut output = child.wait_with_output().unwrap();
    output.stderr = rest.join("\n").into_bytes();
    output
}

#[cfg(unix)]
#[test]
fn an_interrupted_bench_tells_of_its_whole_runs() {
    let dir = tempfile::tempdir().unwrap();
    let rows =
        ["--rows", "20", "--transactions", "10", "--runs", "100000", "--workload", "insert", "--json", "out.json"];
    let only = ["--only", "stock/truncate", "--only", "stock/wal-full"];
    let output = interrupted(dir.path(), &[&rows[..], &only].concat(), "the first run took");
    let text = said(&output);
    assert!(!output.status.success() && text.contains("was interrupted; those before it count"), "{text}");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("out.json")).unwrap()).unwrap();
    let runs = json["parameters"]["runs"].as_u64().unwrap();
    let of = |row: &Value| row["tx_per_s_runs"].as_array().unwrap().len() as u64;
    assert!(runs > 0 && json["results"].as_array().unwrap().iter().all(|row| of(row) == runs), "{json}");
    let writers =
        ["--suite", "threads", "--part", "writers", "--connections", "1", "--section-ms", "1000", "--runs", "6"];
    let output = interrupted(dir.path(), &[&writers[..], &["--only", "stock/wal-full"]].concat(), "run 2 of 6");
    let text = said(&output);
    assert!(!output.status.success() && text.contains("run 2 was interrupted; those before it count"), "{text}");
    assert!(text.contains("inserts, by 1\n stock/wal-full"), "{text}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out.json"], "temporary directories are removed");
}
