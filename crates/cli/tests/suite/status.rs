//! `onewrite status`: whether onewrite is in effect, in each state of a database. No file changes.

use crate::common;

use common::{Db, crashed, engine, expect, onewrite, plain, said};
use onewrite_core::disk::OpenMode;
use serde_json::Value;

/// The object of `status --json`; asserts that no file changed.
fn json(db: &Db, status: i32) -> Value {
    let before = db.files();
    let output = onewrite(&["status", "--json"], &db.home);
    assert_eq!(output.status.code(), Some(status), "{}", said(&output));
    assert_eq!(db.files(), before, "status changed a file");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_plain_a_crashed_and_a_new_database() {
    let db = plain();
    let found = json(&db, 0);
    assert_eq!((&found["in_effect"], &found["why"]), (&true.into(), &Value::Null), "{found}");
    assert_eq!((&found["in_use"], &found["recovery_waits"]), (&false.into(), &false.into()), "{found}");
    assert_eq!((&found["log_bytes"], &found["page_bytes"]), (&Value::Null, &4096.into()), "{found}");
    assert_eq!(found["bytes"].as_u64(), Some(std::fs::metadata(&db.home).unwrap().len()), "{found}");
    let words = ["app.db: onewrite is in effect", "by no other process", "plain file, no log in use"];
    expect(0, &["status"], &db.home, &words);

    let db = crashed(3);
    let found = json(&db, 0);
    assert_eq!((&found["in_effect"], &found["recovery_waits"]), (&true.into(), &true.into()), "{found}");
    assert!(found["log_bytes"].as_u64() > Some(0), "{found}");
    expect(0, &["status"], &db.home, &["after a crash", "recovers"]);

    let db = Db::new();
    std::fs::write(&db.home, []).unwrap();
    assert_eq!(json(&db, 0)["in_effect"], true);
}

#[test]
fn a_database_in_use() {
    let db = crashed(3);
    let mut c = engine().open(&db.home, OpenMode::ReadWrite, &[]).unwrap();
    c.lock(onewrite_core::LockLevel::Shared).unwrap();
    let output = onewrite(&["status", "--json"], &db.home);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["in_effect"], &found["in_use"]), (&true.into(), &true.into()), "{}", said(&output));
    assert!(found["phase"].as_str().unwrap().contains("commits go through the log"), "{found}");
}

#[test]
fn where_it_is_not_in_effect_the_reason_is_told() {
    let db = plain();
    let stock = rusqlite::Connection::open(&db.home).unwrap();
    stock.pragma_update(None, "journal_mode", "wal").unwrap();
    stock.execute("INSERT INTO t VALUES(1, 'stock')", []).unwrap();
    // This process must not open the file beside SQLite, which would lose its locks.
    expect(1, &["status"], &db.home, &["app.db: onewrite is not in effect: ", "WAL mode"]);
    let output = onewrite(&["status", "--json"], &db.home);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["in_effect"] == false && found["why"].as_str().unwrap().contains("WAL mode"), "{found}");
    stock.pragma_update(None, "journal_mode", "delete").unwrap();
    stock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    expect(1, &["status"], &db.home, &["app.db: onewrite is not in effect: ", "another process"]);
    drop(stock);

    let db = crashed(2);
    std::fs::remove_file(db.log()).unwrap();
    assert!(json(&db, 1)["why"].as_str().unwrap().contains("is missing"));
    let db = Db::new();
    expect(1, &["status"], &db.home, &["app.db", "No such file"]);
    std::fs::write(&db.home, "hello, this is a text and no database at all\n".repeat(40)).unwrap();
    expect(1, &["status"], &db.home, &["not a database"]);
}
