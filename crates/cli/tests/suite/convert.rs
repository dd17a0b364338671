//! `onewrite research convert`: the same rows in pages with room for trailers. A failure leaves the
//! file as it was.

use crate::common;

use common::{Db, crashed, expect, plain};
use onewrite_core::Repair;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use rusqlite::Connection;

fn rows(db: &Connection) -> Vec<(i64, String)> {
    let mut rows = db.prepare("SELECT rowid, text FROM note ORDER BY rowid").unwrap();
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

fn stock(db: &Db) -> Connection {
    Connection::open_with_flags_and_vfs(&db.home, rusqlite::OpenFlags::default(), c"unix").unwrap()
}

fn notes() -> Db {
    let db = Db::new();
    stock(&db)
        .execute_batch(
            "PRAGMA user_version=7; CREATE TABLE note(text); CREATE INDEX n ON note(text);
             CREATE TRIGGER t AFTER DELETE ON note BEGIN SELECT 1; END;
             WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM i WHERE n<3000)
             INSERT INTO note(rowid, text) SELECT 3*n, 'note ' || n || printf('%.*c', n % 900, 'x') FROM i",
        )
        .unwrap();
    db
}

/// A writer that waits for its first lock meanwhile has the old file open, which has no name any
/// more.
#[test]
fn a_writer_that_waits_for_a_conversion_is_told_that_the_file_was_replaced() {
    for wait_ms in [1, 2, 4, 8, 16, 100] {
        let db = plain();
        let writer = onewrite_rusqlite::open(&db.home).unwrap();
        writer.busy_timeout(std::time::Duration::from_secs(20)).unwrap();
        let repair = Repair::open(std::sync::Arc::new(RealDisk::new()), &db.home, OpenMode::ReadWrite).unwrap();
        let written = std::thread::spawn(move || writer.execute_batch("BEGIN IMMEDIATE; CREATE TABLE late(a); COMMIT"));
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        let new = db.beside("-new");
        std::fs::copy(&db.home, &new).unwrap();
        std::fs::rename(&new, &db.home).unwrap();
        drop(repair);
        let error = written.join().unwrap().expect_err("written to a file that has no name");
        let code = error.sqlite_error().map(|e| e.extended_code);
        assert_eq!(code, Some(rusqlite::ffi::SQLITE_READONLY_DBMOVED), "behind {wait_ms} ms: {error}");
    }
}

#[test]
fn a_converted_database_has_the_same_rows_and_takes_undo_records() {
    let db = notes();
    let before = rows(&stock(&db));
    let open =
        || onewrite_rusqlite::open(format!("file:{}?scheme=dhl-cc&atomic_unit=4096", db.home.display())).unwrap();
    let refused = open();
    refused.execute("INSERT INTO note VALUES('new')", []).unwrap_err();
    let why: String = refused.query_row("PRAGMA onewrite_error", [], |row| row.get(0)).unwrap();
    assert!(why.contains("onewrite research convert"), "{why}");
    refused.close().unwrap();
    expect(0, &["research", "convert"], &db.home, &["converted", "248 of them reserved"]);
    assert_eq!(std::fs::read(&db.home).unwrap()[20], 248);
    assert_eq!(rows(&stock(&db)), before);
    let ours = open();
    ours.execute("INSERT INTO note VALUES('new')", []).unwrap();
    ours.execute("UPDATE note SET text = 'other' WHERE rowid = 30", []).unwrap();
    let stats: String = ours.query_row("PRAGMA onewrite_stats", [], |row| row.get(0)).unwrap();
    assert!(!stats.contains("\nin_place=0\n"), "{stats}");
    ours.close().unwrap();
    let stock = stock(&db);
    let one = |sql: &str| stock.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(one("PRAGMA integrity_check"), "ok");
    assert_eq!(one("SELECT text FROM note WHERE rowid = 30"), "other");
    assert_eq!(one("SELECT user_version || '' FROM pragma_user_version"), "7");
    assert_eq!(rows(&stock).len(), before.len() + 1);
    drop(stock);
    let bytes = std::fs::read(&db.home).unwrap();
    expect(0, &["research", "convert"], &db.home, &["has the room already"]);
    assert!(std::fs::read(&db.home).unwrap() == bytes);
    assert!(!db.beside("-onewrite-convert").exists());
}

#[test]
fn a_file_that_cannot_be_converted_stays_as_it_is() {
    let refused = |db: &Db, words: &[&str]| {
        let before = db.files();
        expect(1, &["research", "convert"], &db.home, words);
        assert_eq!(db.files(), before);
    };
    refused(&crashed(3), &["carries onewrite's mark", "onewrite recover"]);
    let foreign = Db::new();
    std::fs::write(
        &foreign.home,
        "not a database, but a text of more than a hundred bytes, which is what a header has, so this goes on",
    )
    .unwrap();
    refused(&foreign, &["not a database"]);
    let used = notes();
    // A lock as a reader has it, which looking at the file in this process does not take away.
    let reader = RealDisk::new().open(&used.home, OpenMode::ReadWrite).unwrap();
    assert!(reader.try_lock(0x4000_0002, 510, LockKind::Shared).unwrap());
    refused(&used, &["in use"]);
    drop(reader);
    // A page that is damaged makes SQLite fail in the middle.
    let damaged = notes();
    let mut bytes = std::fs::read(&damaged.home).unwrap();
    bytes[8 * 4096..20 * 4096].fill(0xff);
    std::fs::write(&damaged.home, bytes).unwrap();
    refused(&damaged, &["malformed"]);
}

#[test]
fn a_database_in_wal_mode_leaves_it_first_unless_others_have_it_open() {
    let wal = notes();
    let keeps = stock(&wal);
    keeps.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE w(x); INSERT INTO w VALUES(7)").unwrap();
    // Looking at the file in this process would take SQLite's locks away.
    expect(1, &["research", "convert"], &wal.home, &["in use"]);
    assert!(wal.beside("-wal").exists());
    // Another process was killed with a WAL that is not home yet.
    let left = Db::new();
    for suffix in ["", "-wal", "-shm"] {
        std::fs::copy(wal.beside(suffix), left.beside(suffix)).unwrap();
    }
    expect(0, &["research", "convert"], &left.home, &["248 of them reserved"]);
    assert!(!left.beside("-wal").exists() && !left.beside("-shm").exists());
    let stock = stock(&left);
    assert_eq!(stock.query_row("SELECT x FROM w", [], |row| row.get::<_, i64>(0)).unwrap(), 7);
    assert_eq!(rows(&stock).len(), rows(&keeps).len());
}

/// A process dies as it takes a database out of WAL mode: the header says that it is out, and the
/// WAL is still there. SQLite would write the content of the WAL over the new file.
#[test]
fn a_wal_beside_a_header_that_does_not_say_so_goes_first() {
    let wal = notes();
    let keeps = stock(&wal);
    keeps.execute_batch("PRAGMA journal_mode=WAL; UPDATE note SET text = text || 'y'").unwrap();
    for to in ["trailers", "plain"] {
        let left = Db::new();
        for suffix in ["", "-wal"] {
            std::fs::copy(wal.beside(suffix), left.beside(suffix)).unwrap();
        }
        let mut home = std::fs::read(&left.home).unwrap();
        home[18..20].fill(1);
        std::fs::write(&left.home, home).unwrap();
        expect(0, &["research", "convert", "--to", to], &left.home, &[]);
        assert!(!left.beside("-wal").exists(), "{to}");
        let stock = stock(&left);
        assert_eq!(stock.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap(), "ok", "{to}");
        assert_eq!(rows(&stock).len(), rows(&keeps).len(), "{to}");
    }
}

/// Everything a database can hold: rowids without a column, columns called like them, generated
/// columns, tables without rowids, AUTOINCREMENT, statistics, an index by text, views, virtual
/// tables.
fn everything() -> Db {
    let db = notes();
    stock(&db)
        .execute_batch(
            "PRAGMA application_id=99;
             CREATE TABLE auto(id INTEGER PRIMARY KEY AUTOINCREMENT, x); INSERT INTO auto(x) VALUES(1), (2), (3);
             DELETE FROM auto WHERE x = 3;
             CREATE TABLE own(rowid TEXT, \"a \"\"b\"\"\"); INSERT INTO own(_rowid_, rowid, \"a \"\"b\"\"\") VALUES(50, 'r', 1.0);
             CREATE TABLE bare(k TEXT PRIMARY KEY, v) WITHOUT ROWID; INSERT INTO bare VALUES('z', x'00ff'), ('a', NULL);
             CREATE TABLE made(a INT, b AS (a + 1), c AS (a * 2) STORED, CHECK (a < 9)); INSERT INTO made(a) VALUES(4);
             PRAGMA ignore_check_constraints=ON; INSERT INTO made(a) VALUES(40); PRAGMA ignore_check_constraints=OFF;
             CREATE VIEW v AS SELECT count(*) AS n FROM note;
             CREATE VIRTUAL TABLE words USING fts5(t); INSERT INTO words(rowid, t) VALUES(7, 'one write'), (9, 'one flush');
             CREATE TABLE big(x); INSERT INTO big VALUES(zeroblob(300000)); ANALYZE",
        )
        .unwrap();
    db
}

fn digest(db: &Connection) -> Vec<String> {
    let mut found = Vec::new();
    for sql in [
        "SELECT type || name || tbl_name || coalesce(sql, '') FROM sqlite_schema ORDER BY 1",
        "SELECT rowid || text FROM note ORDER BY rowid",
        "SELECT id || ' ' || x FROM auto",
        "SELECT name || seq FROM sqlite_sequence",
        "SELECT _rowid_ || rowid || typeof(\"a \"\"b\"\"\") FROM own",
        "SELECT k || quote(v) FROM bare",
        "SELECT a || ' ' || b || ' ' || c FROM made",
        "SELECT n || '' FROM v",
        "SELECT rowid || t FROM words('write')",
        "SELECT tbl || coalesce(idx, '') || stat FROM sqlite_stat1 ORDER BY 1",
        "SELECT length(x) || '' FROM big",
        "SELECT user_version || '' FROM pragma_user_version",
        "SELECT application_id || '' FROM pragma_application_id",
        "SELECT page_size || '' FROM pragma_page_size",
        "PRAGMA integrity_check",
    ] {
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        found.extend(rows.map(|row| format!("{sql}: {}", row.unwrap())));
    }
    found
}

#[test]
fn the_way_back_leaves_the_same_content_and_no_reserved_bytes() {
    let db = everything();
    let before = digest(&stock(&db));
    expect(0, &["research", "convert"], &db.home, &["248 of them reserved"]);
    assert_eq!(digest(&stock(&db)), before);
    expect(0, &["research", "convert", "--to", "plain"], &db.home, &["converted", "0 of them reserved"]);
    assert_eq!(std::fs::read(&db.home).unwrap()[20], 0);
    assert_eq!(digest(&stock(&db)), before);
    let bytes = std::fs::read(&db.home).unwrap();
    expect(0, &["research", "convert", "--to", "plain"], &db.home, &["no reserved bytes"]);
    assert!(std::fs::read(&db.home).unwrap() == bytes);
    assert!(!db.beside("-onewrite-convert").exists());
}

#[test]
fn a_file_that_cannot_be_converted_back_stays_as_it_is() {
    let refused = |db: &Db, words: &[&str]| {
        let before = db.files();
        expect(1, &["research", "convert", "--to", "plain"], &db.home, words);
        assert_eq!(db.files(), before);
    };
    let others = notes();
    let connection = stock(&others);
    onewrite_rusqlite::reserve_bytes(&connection, 8).unwrap();
    connection.execute_batch("VACUUM").unwrap();
    drop(connection);
    refused(&others, &["8 reserved bytes", "not onewrite's"]);
    let nameless = notes();
    stock(&nameless).execute_batch("CREATE TABLE r(rowid, _rowid_, oid); INSERT INTO r VALUES(1, 2, 3)").unwrap();
    expect(0, &["research", "convert"], &nameless.home, &["248 of them reserved"]);
    refused(&nameless, &["table r", "have no name"]);
    let damaged = notes();
    expect(0, &["research", "convert"], &damaged.home, &["248 of them reserved"]);
    let mut bytes = std::fs::read(&damaged.home).unwrap();
    bytes[8 * 4096..20 * 4096].fill(0xff);
    std::fs::write(&damaged.home, bytes).unwrap();
    refused(&damaged, &["malformed"]);
}
