//! `onewrite inspect`: the content of a database and its log, in words and as JSON.

use crate::common;

use common::{Db, crashed, crashed_with, expect, onewrite, plain};
use serde_json::Value;

fn json(db: &Db, args: &[&str]) -> Value {
    let output = onewrite(&[&["inspect", "--json"], args].concat(), &db.home);
    assert!(output.status.success(), "{}", common::said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn in_words() {
    let db = crashed(25);
    let before = db.files();
    let words =
        ["mark", "on, session", "slot 1", "slot 2", "live", "that of the database", "records", "25, TID 2 to 26"];
    let said = expect(0, &["inspect"], &db.home, &words);
    assert!(said.contains("the newest 20 below"), "{said}");
    assert_eq!(said.lines().filter(|l| l.contains(" 4,096 bytes") || l.contains('─')).count(), 4, "{said}");
    let few = expect(0, &["inspect", "--limit", "3"], &db.home, &["the newest 3 below"]);
    assert!(few.lines().count() < said.lines().count());
    let all = expect(0, &["inspect", "--limit", "0"], &db.home, &[]);
    assert!(!all.contains("below") && all.lines().count() > said.lines().count(), "{all}");
    assert_eq!(db.files(), before, "inspect changed a file");
    expect(0, &["inspect"], &plain().home, &["off: any SQLite can open the file", "none"]);
}

#[test]
fn bytes_behind_the_end_are_told() {
    let db = crashed(25);
    let mut home = std::fs::OpenOptions::new().append(true).open(&db.home).unwrap();
    std::io::Write::write_all(&mut home, &[7; 8192]).unwrap();
    expect(0, &["inspect"], &db.home, &["and 8,192 bytes behind them"]);
    expect(0, &["recover"], &db.home, &["recovered"]);
    let said = expect(0, &["inspect"], &db.home, &["pages of 4,096 bytes"]);
    assert!(!said.contains("behind them,"), "{said}");
}

#[test]
fn for_machines() {
    let db = crashed(25);
    let all = json(&db, &["--limit", "0"]);
    assert_eq!(all["kind"], "database");
    assert_eq!(all["page_bytes"], 4096);
    assert_eq!(all["log"]["records_total"], 25);
    // A session begins with a TID of its own.
    assert_eq!(all["log"]["last_tid"], 26);
    assert_eq!(all["log"]["lost_tid"], Value::Null);
    let records = all["log"]["records"].as_array().unwrap();
    assert_eq!(records.len(), 25);
    for (n, record) in (1..).zip(records) {
        assert_eq!((record["tid"].as_u64(), record["durable_tid"].as_u64()), (Some(n + 1), Some(n)));
        assert!(record["bytes"].as_u64().unwrap() > 128 && record["deltas"].as_u64().unwrap() > 0);
    }
    let live: Vec<_> = all["log"]["slots"].as_array().unwrap().iter().filter(|s| s["state"] == "live").collect();
    assert_eq!(live.len(), 1);
    assert_eq!(live[0]["session"], all["session"]);
    assert_eq!(json(&db, &["--limit", "2"])["log"]["records"].as_array().unwrap().len(), 2);
    assert_eq!(json(&plain(), &[])["log"], Value::Null);
}

#[test]
fn whole_images_and_damage() {
    let db = crashed_with(6, &[("scheme", "wal-opt")]);
    let record = &json(&db, &[])["log"]["records"][0];
    assert!(record["images"].as_u64().unwrap() > 0 && record["deltas"] == 0, "{record}");

    let db = crashed(6);
    db.flip_log(db.records()[2] + 8);
    let log = &json(&db, &[])["log"];
    assert_eq!((log["lost_tid"].as_u64(), log["records_total"].as_u64()), (Some(4), Some(2)));
    expect(0, &["inspect"], &db.home, &["DAMAGE: transaction 4"]);

    let db = crashed(3);
    db.flip_log(db.records()[2] + 60);
    assert_eq!(json(&db, &[])["log"]["incomplete_tid"], 4);
    expect(0, &["inspect"], &db.home, &["transaction 4 in part"]);
    std::fs::write(db.log(), vec![7; 100_000]).unwrap();
    expect(0, &["inspect"], &db.home, &["slot 1", "damaged"]);
}

#[test]
fn files_that_cannot_be_inspected() {
    let db = Db::new();
    expect(1, &["inspect"], &db.home, &["app.db", "No such file"]);
    std::fs::write(&db.home, "hello").unwrap();
    expect(1, &["inspect"], &db.home, &["app.db is not a SQLite database"]);
    expect(1, &["inspect", "--json"], &db.home, &["app.db is not a SQLite database"]);
    expect(2, &["inspect", "--limit", "many"], &db.home, &["many"]);
}
