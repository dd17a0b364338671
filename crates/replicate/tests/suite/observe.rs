//! Output of `replicate` for programs: lines of JSON, and counters over HTTP.

use crate::place;

use place::{Killed, Place, said, until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

pub fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("{name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn counters_tell_transactions_shipped_and_unshipped() {
    let place = Place::new(100);
    let mut shipper = place.replicate(&["--json", "--interval", "20ms", "--metrics", "127.0.0.1:0"]).spawn().unwrap();
    let lines = BufReader::new(shipper.stderr.take().unwrap()).lines();
    let _shipper = Killed(shipper);
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let mut event = |name: &str| events.find(|event| event["event"] == name).unwrap();
    let address = event("metrics")["address"].as_str().unwrap().to_owned();
    let first = event("shipped");
    assert_eq!((&first["txid"], &first["level"]), (&"0000000000000001".into(), &"info".into()));
    assert!(first["pages"].as_u64().unwrap() > 5 && first["bytes"].as_u64().unwrap() > 20_000, "{first}");
    let counters = || get(&address, "/metrics");
    until("the first file is counted", || value(&counters(), "onewrite_txid") == 1.0);
    assert!(counters().contains("Content-Type: text/plain; version=0.0.4"));
    assert!(get(&address, "/").starts_with("HTTP/1.1 404"));

    // Kept open, so that only commits change the database.
    let db = place.open();
    for n in 0..5 {
        db.execute("UPDATE t SET x = ?1 WHERE n = 1", [n]).unwrap();
    }
    until("the commits are counted", || value(&counters(), "onewrite_commits_total") == 5.0);
    let text = counters();
    assert!(value(&text, "onewrite_lag_seconds") < 20.0, "{text}");
    assert!(value(&text, "onewrite_store_requests_total{kind=\"put\"}") >= 2.0, "{text}");
    assert_eq!(value(&text, "onewrite_errors_total"), 0.0);

    // Without the store commits count as behind, and the lag grows.
    let away = place.dir.path().join("away");
    std::fs::rename(place.store(), &away).unwrap();
    db.execute_batch("UPDATE t SET x = 'a' WHERE n = 2; UPDATE t SET x = 'b' WHERE n = 2").unwrap();
    until("the commits are missed", || value(&counters(), "onewrite_commits_behind") == 2.0);
    until("time passes", || value(&counters(), "onewrite_lag_seconds") > 0.3);
    assert!(value(&counters(), "onewrite_errors_total") > 0.0);
    assert_eq!(event("not_shipped")["level"], "warning");
    std::fs::rename(&away, place.store()).unwrap();
    event("goes_on");
    until("all is there", || value(&counters(), "onewrite_commits_behind") == 0.0);
    assert_eq!(value(&counters(), "onewrite_commits_total"), 7.0);
}

#[test]
fn where_the_log_has_the_changed_pages_no_others_are_read() {
    let place = Place::new(5_000);
    let db = place.open();
    // After a checkpoint the log begins anew.
    db.execute_batch("UPDATE t SET x = 'a' WHERE n = 1; PRAGMA onewrite_checkpoint").unwrap();
    let mut shipper = place.replicate(&["--json", "--interval", "20ms", "--metrics", "127.0.0.1:0"]).spawn().unwrap();
    let lines = BufReader::new(shipper.stderr.take().unwrap()).lines();
    let _shipper = Killed(shipper);
    let mut events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let metrics = events.find(|event| event["event"] == "metrics").unwrap();
    let counter = |name: &str| value(&get(metrics["address"].as_str().unwrap(), "/metrics"), name);
    until("the first file is counted", || counter("onewrite_txid") == 1.0);
    let pages = counter("onewrite_pages_total");
    assert!(pages > 200.0 && counter("onewrite_pages_compared_total") == 0.0, "{pages}");
    for n in 2..7 {
        db.execute("UPDATE t SET x = 'b' WHERE n = ?1 * 500", [n]).unwrap();
        until("it is shipped", || counter("onewrite_txid") == f64::from(n));
    }
    let compared = counter("onewrite_pages_compared_total");
    assert!((5.0..=15.0).contains(&compared), "{compared} of {pages}");
    let overtakes =
        "UPDATE t SET x = x || 'c' WHERE n = 1; PRAGMA onewrite_checkpoint; UPDATE t SET x = x || 'c' WHERE n = 9";
    until("a checkpoint between two looks", || {
        db.execute_batch(overtakes).unwrap();
        counter("onewrite_pages_compared_total") >= pages
    });
}

#[test]
fn counters_are_for_this_machine() {
    let place = Place::new(1);
    let output = place.replicate(&["--metrics", "0.0.0.0:0"]).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("127.0.0.1:9090"), "{}", said(&output));
}

fn line(place: &Place, args: &[&str], status: i32) -> Value {
    let output = place.program(&[&["--json"], args].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(status), "{}", said(&output));
    assert!(output.stdout.is_empty(), "{}", said(&output));
    serde_json::from_slice(&output.stderr).unwrap_or_else(|e| panic!("{e}: {}", said(&output)))
}

#[cfg_attr(windows, ignore = "Wine replaces no file that is open")]
#[test]
fn verify_promote_and_rejoin_answer_in_json_too() {
    let place = Place::new(3);
    place.once(&[]);
    let (file, url, other) = (place.file.to_str().unwrap(), &*place.url(), place.dir.path().join("other.db"));
    let verify = ["verify", "--wait", "0s", file, url];
    let same = line(&place, &verify, 0);
    assert_eq!((&same["event"], &same["level"], &same["pages_differ"]), (&"same".into(), &"info".into(), &0.into()));
    assert_eq!(same["txid"], "0000000000000001");
    place.sql("UPDATE t SET x = 'x'");
    assert_eq!(line(&place, &verify, 2)["event"], "behind");
    let promoted = line(&place, &["promote", other.to_str().unwrap(), url], 0);
    assert_eq!((&promoted["event"], &promoted["was"]), (&"promoted".into(), &"missing".into()));
    assert!(promoted["epoch"] == 2 && promoted["before"].as_str().unwrap().contains(file), "{promoted}");
    let rejoined = line(&place, &["rejoin", file, url], 0);
    assert_eq!(rejoined["event"], "rejoined");
    assert!(
        rejoined["pages_differed"].as_u64() > Some(0) && rejoined["kept"] == format!("{file}.diverged"),
        "{rejoined}"
    );
}

#[test]
fn an_error_is_a_line_of_json_too() {
    let place = Place::new(1);
    let output = place.program(&["restore", "--json", &place.url(), "/nowhere/a.db"]).output().unwrap();
    let line: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&line["event"], &line["level"]), (&"failed".into(), &"error".into()));
    assert!(line["message"].as_str().unwrap().contains("there is no directory"), "{line}");
}
