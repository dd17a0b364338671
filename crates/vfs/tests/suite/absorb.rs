//! `wal=absorb`: a program that asks for WAL mode is answered as SQLite answers, and onewrite goes
//! on.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{explain, one, open, open_stock, setup};
use onewrite_core::inspect::layout::home::{MARK, READ_VERSION};
use rusqlite::{Connection, ErrorCode, ffi};

const TABLE: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT); INSERT INTO t(v) VALUES ('one'), ('two')";

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn mode(db: &Connection, pragma: &str) -> String {
    one(db, &format!("PRAGMA {pragma}"))
}

fn is_live(path: &Path) -> bool {
    fs::read(path).unwrap()[READ_VERSION] == MARK && !beside(path, "-wal").exists()
}

#[test]
fn a_request_for_wal_mode_is_answered_and_onewrite_goes_on() {
    let dir = setup();
    for (n, asked) in
        ["journal_mode=WAL", "main.journal_mode='wal'", "journal_mode(Wal)", "JOURNAL_MODE = w"].into_iter().enumerate()
    {
        let path = dir.path().join(format!("{n}.db"));
        let db = open(&path, "").unwrap();
        assert_eq!(mode(&db, "journal_mode"), "delete");
        assert_eq!(mode(&db, asked), "wal", "{asked}");
        assert_eq!(mode(&db, "journal_mode"), "wal");
        assert_eq!(mode(&db, "main.journal_mode=nonsense"), "wal");
        db.execute_batch(TABLE).unwrap();
        assert!(is_live(&path));
        assert_eq!(mode(&db, "journal_mode=wal"), "wal");
        let status = mode(&db, "onewrite_status");
        assert!(status.starts_with("in_effect=yes\njournal_mode=wal: answered for"), "{status}");
        let other = open(&path, "").unwrap();
        assert_eq!(mode(&other, "journal_mode"), "wal");
        assert_eq!(one::<i64>(&other, "SELECT count(*) FROM t"), 2);
        for other_mode in ["truncate", "persist", "memory", "delete"] {
            assert_eq!(mode(&db, &format!("journal_mode={other_mode}")), other_mode);
            assert_eq!(mode(&db, "journal_mode"), other_mode);
            assert_eq!(mode(&other, "journal_mode"), "delete");
            db.execute_batch("UPDATE t SET v = v || 1; BEGIN; DELETE FROM t; ROLLBACK").unwrap();
            assert!(!mode(&db, "onewrite_status").contains("journal_mode=wal"));
            assert_eq!(mode(&db, "journal_mode=wal"), "wal");
            db.execute_batch("BEGIN; UPDATE t SET v = v || 2; ROLLBACK").unwrap();
        }
        assert_eq!(one::<String>(&db, "SELECT v FROM t"), "one1111");
        assert!(is_live(&path));
        drop((db, other));
        let stock = open_stock(&path);
        assert_eq!(mode(&stock, "journal_mode"), "wal");
        assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), 2);
    }
}

#[test]
fn within_a_transaction_the_mode_stays_as_in_sqlite() {
    let dir = setup();
    let path = dir.path().join("within.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    let refused = |db: &Connection, pragma: &str, way: &str| {
        let (code, message) = explain(db.query_row(pragma, [], |row| row.get::<_, String>(0)).unwrap_err());
        assert_eq!(code, ffi::SQLITE_ERROR, "{message}");
        assert!(message.contains(&format!("cannot change {way} wal mode from within a transaction")), "{message}");
    };
    for begin in ["BEGIN", "BEGIN; SELECT * FROM t", "BEGIN IMMEDIATE"] {
        db.execute_batch(begin).unwrap();
        refused(&db, "PRAGMA main.journal_mode=wal", "into");
        db.execute_batch("COMMIT; PRAGMA journal_mode=wal").unwrap();
        db.execute_batch(begin).unwrap();
        assert_eq!(mode(&db, "journal_mode=wal"), "wal");
        refused(&db, "PRAGMA journal_mode=delete", "out of");
        assert_eq!(mode(&db, "journal_mode"), "wal");
        db.execute_batch("COMMIT; PRAGMA journal_mode=delete").unwrap();
    }
    // A statement that is not over yet.
    let mut rows = db.prepare("SELECT * FROM t").unwrap();
    let mut rows = rows.query([]).unwrap();
    rows.next().unwrap();
    refused(&db, "PRAGMA journal_mode=wal", "into");
}

/// As in SQLite, where another connection that shares the cache is in a transaction.
#[test]
fn with_a_shared_cache_another_connection_has_the_mode_locked() {
    let dir = setup();
    let path = dir.path().join("shared.db");
    let [db, other] = [(); 2].map(|()| open(&path, "cache=shared").unwrap());
    db.execute_batch(TABLE).unwrap();
    for begin in ["BEGIN; SELECT * FROM t", "BEGIN IMMEDIATE"] {
        other.execute_batch(begin).unwrap();
        let (code, message) = explain(db.execute_batch("PRAGMA journal_mode=wal").unwrap_err());
        assert_eq!(code & 0xff, ffi::SQLITE_LOCKED, "{message}");
        other.execute_batch("COMMIT").unwrap();
    }
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
}

/// The commit must not wait for readers, as a change of the mode would.
#[test]
fn a_mode_that_was_refused_within_a_transaction_does_not_hold_its_commit_up() {
    let dir = setup();
    let path = dir.path().join("stock.db");
    let [db, reader] = [(); 2].map(|()| open(&path, "wal=stock&busy_ms=0").unwrap());
    db.busy_timeout(std::time::Duration::ZERO).unwrap();
    db.execute_batch(TABLE).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    // SQLite takes its locks to write, and writes nothing.
    let writes_nothing = "DELETE FROM t WHERE id=0";
    for begin in ["BEGIN", "BEGIN; SELECT * FROM t", "BEGIN IMMEDIATE"] {
        for then in [&format!("{writes_nothing}; COMMIT"), "COMMIT"] {
            db.execute_batch(begin).unwrap();
            db.query_row("PRAGMA journal_mode=wal", [], |row| row.get::<_, String>(0)).unwrap_err();
            db.execute_batch(then).unwrap();
            db.execute_batch(writes_nothing).unwrap();
        }
    }
    db.query_row("PRAGMA journal_mode=wal", [], |row| row.get::<_, String>(0)).unwrap_err();
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
}

#[test]
fn pragmas_of_wal_mode_are_accepted() {
    let dir = setup();
    let path = dir.path().join("with.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
    assert_eq!(one::<i64>(&db, "PRAGMA wal_autocheckpoint=500"), 500);
    assert_eq!(one::<i64>(&db, "PRAGMA journal_size_limit=65536"), 65536);
    assert_eq!(one::<i64>(&db, "PRAGMA synchronous"), 2);
}

#[test]
fn a_wal_checkpoint_is_one_of_onewrites() {
    let dir = setup();
    let path = dir.path().join("checkpoint.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
    let checkpoints = || {
        let stats = mode(&db, "onewrite_stats");
        let count =
            stats.lines().find_map(|line| line.strip_prefix("checkpoints=")).unwrap_or_else(|| panic!("{stats}"));
        count.parse::<u64>().unwrap()
    };
    let row = |pragma: &str| {
        db.query_row(&format!("PRAGMA {pragma}"), [], |row| Ok([row.get(0)?, row.get(1)?, row.get::<_, i64>(2)?]))
    };
    for pragma in [
        "wal_checkpoint",
        "main.wal_checkpoint(PASSIVE)",
        "wal_checkpoint(full)",
        "wal_checkpoint(RESTART)",
        "wal_checkpoint=TRUNCATE",
    ] {
        db.execute_batch("INSERT INTO t(v) VALUES ('more')").unwrap();
        let before = checkpoints();
        assert_eq!(row(pragma).unwrap(), [0, -1, -1], "{pragma}");
        assert_eq!(checkpoints(), before + 1, "{pragma}");
    }
    // SQLite refuses it within a transaction.
    db.execute_batch("BEGIN IMMEDIATE; INSERT INTO t(v) VALUES ('more')").unwrap();
    let before = checkpoints();
    assert_eq!(explain(row("wal_checkpoint").unwrap_err()).0, ffi::SQLITE_LOCKED);
    db.execute_batch("COMMIT").unwrap();
    assert_eq!(checkpoints(), before);
    // Another connection keeps writing: a passive checkpoint is content, the other kinds say so.
    let other = open(&path, "").unwrap();
    other.execute_batch("BEGIN IMMEDIATE; INSERT INTO t(v) VALUES ('others')").unwrap();
    db.execute_batch("PRAGMA onewrite_busy_ms=20").unwrap();
    assert_eq!(row("wal_checkpoint").unwrap(), [0, -1, -1]);
    assert_eq!(explain(row("wal_checkpoint(TRUNCATE)").unwrap_err()).0, ffi::SQLITE_BUSY);
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 9);
}

#[test]
fn attached_temporary_and_memory_databases_answer_for_themselves() {
    let dir = setup();
    let (path, ours, theirs) = (dir.path().join("a.db"), dir.path().join("b.db"), dir.path().join("c.db"));
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    db.execute_batch(&format!(
        "ATTACH 'file:{}' AS ours; ATTACH 'file:{}?{}' AS theirs; ATTACH ':memory:' AS m; CREATE TEMP TABLE x(y)",
        ours.display(),
        theirs.display(),
        common::BY_STOCK
    ))
    .unwrap();
    assert_eq!(mode(&db, "ours.journal_mode=wal"), "wal");
    assert_eq!(mode(&db, "journal_mode"), "delete");
    assert_eq!(mode(&db, "temp.journal_mode=wal"), "delete");
    assert_eq!(mode(&db, "m.journal_mode=wal"), "memory");
    assert_eq!(mode(&db, "theirs.journal_mode=wal"), "wal");
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
    db.execute_batch("CREATE TABLE ours.o(x); CREATE TABLE theirs.h(x); INSERT INTO o VALUES (1)").unwrap();
    assert!(is_live(&ours) && beside(&theirs, "-wal").exists());
}

/// The main database is SQLite's own: of `PRAGMA journal_mode` without a schema it alone is told,
/// and SQLite changes all.
#[test]
fn a_change_of_the_mode_without_a_pragma_is_taken_back() {
    let dir = setup();
    let (path, ours) = (dir.path().join("stock.db"), dir.path().join("ours.db"));
    let db = open_stock(&path);
    db.execute_batch(&format!("ATTACH 'file:{}?vfs=onewrite' AS ours", ours.display())).unwrap();
    db.execute_batch("CREATE TABLE ours.o(x); INSERT INTO o VALUES (1)").unwrap();
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
    db.execute_batch("INSERT INTO o VALUES (2)").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT sum(x) FROM o"), 3);
    db.close().unwrap();
    assert_eq!(one::<i64>(&open_stock(&ours), "SELECT sum(x) FROM o"), 3);
}

#[test]
fn with_locking_mode_exclusive_onewrite_goes_on_as_well() {
    let dir = setup();
    let path = dir.path().join("exclusive.db");
    for order in [["locking_mode=exclusive", "journal_mode=wal"], ["journal_mode=wal", "locking_mode=exclusive"]] {
        let db = open(&path, "").unwrap();
        for pragma in order {
            mode(&db, pragma);
        }
        db.execute_batch("CREATE TABLE IF NOT EXISTS t(x); INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(mode(&db, "journal_mode"), "wal");
        assert!(is_live(&path));
        assert_eq!(mode(&db, "journal_mode=delete"), "delete");
        assert_eq!(mode(&db, "journal_mode=wal"), "wal");
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        assert_eq!(mode(&db, "locking_mode=normal"), "normal");
        db.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        assert!(is_live(&path));
    }
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 6);
}

#[test]
fn a_connection_that_only_reads_is_answered_by_sqlite() {
    let dir = setup();
    let path = dir.path().join("reads.db");
    let writer = open(&path, "").unwrap();
    writer.execute_batch(TABLE).unwrap();
    let refused = |reader: &Connection| {
        let asked = reader.query_row("PRAGMA journal_mode=wal", [], |row| row.get::<_, String>(0));
        assert_eq!(explain(asked.unwrap_err()).0 & 0xff, ffi::SQLITE_READONLY);
        assert_eq!(mode(reader, "journal_mode"), "delete");
        assert_eq!(one::<i64>(reader, "SELECT count(*) FROM t"), 2);
    };
    refused(&open(&path, "mode=ro").unwrap());
    drop(writer);
    refused(&open(&path, "mode=ro").unwrap());
}

/// With `journal_mode=off` SQLite could not roll a statement back, as it can in WAL mode.
#[test]
fn wal_mode_is_not_promised_where_nothing_can_be_rolled_back() {
    let dir = setup();
    let path = dir.path().join("off.db");
    let db = open(&path, "").unwrap();
    db.execute_batch(TABLE).unwrap();
    let attached = dir.path().join("attached.db");
    db.execute_batch(&format!("ATTACH 'file:{}' AS a", attached.display())).unwrap();
    assert_eq!(mode(&db, "journal_mode=off"), "off");
    for schema in ["main", "a"] {
        let asked = db.query_row(&format!("PRAGMA {schema}.journal_mode=wal"), [], |row| row.get::<_, String>(0));
        let (code, message) = explain(asked.unwrap_err());
        assert!(code == ffi::SQLITE_ERROR && message.contains("journal_mode=delete first"), "{message}");
    }
    assert_eq!(mode(&db, "journal_mode=delete"), "delete");
    for schema in ["main", "a"] {
        assert_eq!(mode(&db, &format!("{schema}.journal_mode=wal")), "wal");
    }
    let twice = "INSERT INTO t(id) VALUES (7), (8), (1)";
    assert_eq!(explain(db.execute_batch(twice).unwrap_err()).0 & 0xff, ffi::SQLITE_CONSTRAINT);
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
}

#[test]
fn the_setting_is_one_of_the_database() {
    let dir = setup();
    let path = dir.path().join("setting.db");
    let db = open(&path, "wal=stock").unwrap();
    db.execute_batch(TABLE).unwrap();
    assert_eq!(mode(&db, "onewrite_wal"), "stock");
    let (_, message) = explain(open(&path, "wal=absorb").unwrap_err());
    assert!(!message.is_empty());
    assert!(common::logged(&path).unwrap().1.contains("wal=stock"));
    assert_eq!(mode(&db, "onewrite_wal=absorb"), "absorb");
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
    assert!(is_live(&path) || !beside(&path, "-wal").exists());
    let (_, message) = explain(open(&dir.path().join("other.db"), "wal=yes").unwrap_err());
    assert!(!message.is_empty());
}

/// A database in WAL mode as a killed process leaves it: with a WAL that is not brought home.
fn killed_in_wal_mode(path: &Path) {
    let away = path.with_extension("away");
    let stock = open_stock(&away);
    stock
        .execute_batch(&format!("PRAGMA page_size=1024; PRAGMA journal_mode=wal; {TABLE}; PRAGMA wal_checkpoint"))
        .unwrap();
    stock.execute_batch("WITH RECURSIVE n(i) AS (SELECT 3 UNION ALL SELECT i+1 FROM n WHERE i<500) INSERT INTO t SELECT i, 'more' FROM n").unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::copy(beside(&away, suffix), beside(path, suffix)).unwrap();
    }
}

fn leftovers(path: &Path) -> Vec<&'static str> {
    ["-wal", "-shm", "-journal"].into_iter().filter(|suffix| beside(path, suffix).exists()).collect()
}

#[test]
fn a_database_in_wal_mode_is_taken_out_of_it_at_its_first_use() {
    let dir = setup();
    let path = dir.path().join("left.db");
    killed_in_wal_mode(&path);
    let db = open(&path, "require=1").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 500);
    assert_eq!(leftovers(&path), [""; 0]);
    assert_eq!(mode(&db, "journal_mode"), "wal");
    assert!(mode(&db, "onewrite_status").starts_with("in_effect=yes\njournal_mode=wal"));
    db.execute_batch("UPDATE t SET v = 'changed'").unwrap();
    assert!(is_live(&path));
    drop(db);
    let stock = open_stock(&path);
    assert_eq!(mode(&stock, "journal_mode"), "wal");
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t WHERE v = 'changed'"), 500);
    // One that was closed has no WAL, and one that was asked for first no look.
    assert_eq!(mode(&stock, "journal_mode=wal"), "wal");
    stock.close().unwrap();
    let db = open(&path, "").unwrap();
    assert_eq!(mode(&db, "journal_mode=wal"), "wal");
    db.execute_batch("INSERT INTO t(v) VALUES ('one more')").unwrap();
    assert!(is_live(&path));
    assert_eq!(mode(&db, "journal_mode"), "wal");
}

/// With a cache that it filled before, stock SQLite looks again.
#[test]
fn stock_sqlite_notices_that_the_mode_has_changed() {
    let dir = setup();
    let path = dir.path().join("notices.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    let idle = open_stock(&path);
    assert_eq!(one::<i64>(&idle, "SELECT count(*) FROM t"), 2);
    let stock = open_stock(&path);
    stock.execute_batch("PRAGMA journal_mode=wal; INSERT INTO t(v) VALUES ('three')").unwrap();
    stock.close().unwrap();
    let db = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 3);
    drop(db);
    assert_eq!(one::<i64>(&idle, "SELECT count(*) FROM t"), 3);
    idle.execute_batch("INSERT INTO t(v) VALUES ('four')").unwrap();
    assert_eq!(one::<i64>(&open(&path, "").unwrap(), "SELECT count(*) FROM t"), 4);
}

#[test]
fn a_database_that_others_have_open_in_wal_mode_stays_so_until_they_are_gone() {
    let dir = setup();
    let path = dir.path().join("others.db");
    let stock = open_stock(&path);
    stock.execute_batch(&format!("PRAGMA journal_mode=wal; {TABLE}")).unwrap();
    let (db, second) = (open(&path, "").unwrap(), open(&path, "").unwrap());
    for db in [&db, &second] {
        assert_eq!(one::<i64>(db, "SELECT count(*) FROM t"), 2);
        let status = mode(db, "onewrite_status");
        assert!(
            status.starts_with("in_effect=no: the database is in WAL mode") && status.contains("others have it open"),
            "{status}"
        );
        assert_eq!(mode(db, "journal_mode=wal"), "wal");
    }
    db.execute_batch("INSERT INTO t(v) VALUES ('ours')").unwrap();
    stock.execute_batch("INSERT INTO t(v) VALUES ('theirs')").unwrap();
    let (_, message) = explain(open(&path, "require=1").unwrap_err());
    assert!(!message.is_empty());
    assert!(common::logged(&path).unwrap().1.contains("others have it open"));
    stock.close().unwrap();
    second.close().unwrap();
    // It knows the file as it was.
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 4);
    assert!(beside(&path, "-wal").exists());
    db.close().unwrap();
    let db = open(&path, "require=1").unwrap();
    db.execute_batch("INSERT INTO t(v) VALUES ('alone')").unwrap();
    assert!(is_live(&path));
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 5);
}

#[test]
fn many_that_open_a_database_in_wal_mode_at_once_all_get_onewrite() {
    let dir = setup();
    for round in 0..20 {
        let path = dir.path().join(format!("many{round}.db"));
        killed_in_wal_mode(&path);
        let connections: Vec<Connection> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        let db = open(&path, "").unwrap();
                        db.execute_batch("INSERT INTO t(v) VALUES ('mine')").unwrap();
                        db
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(is_live(&path));
        for db in connections {
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 506);
        }
    }
}

/// A crash came between the change of the header and the removal of the WAL.
#[test]
fn a_wal_beside_a_file_with_a_rollback_journal_goes_home_as_well() {
    let dir = setup();
    let path = dir.path().join("between.db");
    killed_in_wal_mode(&path);
    let mut home = fs::read(&path).unwrap();
    home[18..20].copy_from_slice(&[1, 1]);
    fs::write(&path, home).unwrap();
    let db = open(&path, "require=1").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 500);
    assert_eq!(leftovers(&path), [""; 0]);
}

/// A connection that reads again and again looks for a WAL where the header is another one.
#[test]
fn a_wal_that_comes_between_two_transactions_is_found() {
    let dir = setup();
    let path = dir.path().join("comes.db");
    open_stock(&path).execute_batch(TABLE).unwrap();
    let db = open(&path, "require=1").unwrap();
    for _ in 0..5 {
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    }
    killed_in_wal_mode(&path);
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 500);
    assert_eq!(leftovers(&path), [""; 0]);
    for _ in 0..5 {
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 500);
    }
    // The same bytes in front, and less behind them.
    let bytes = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(bytes - 1024).unwrap();
    let refused = db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt));
}

#[test]
fn a_wal_that_does_not_fit_is_left_to_sqlite() {
    let dir = setup();
    type Damage = fn(&mut Vec<u8>, &mut Vec<u8>);
    let cases: [(&str, Damage, i64); 4] = [
        // SQLite believes the first page in the WAL.
        ("pages of", |home, _| home[16..18].copy_from_slice(&2048u16.to_be_bytes()), 500),
        ("unknown version", |_, wal| reseal(wal, |wal| wal[7] ^= 1), -1),
        ("", |_, wal| wal[24] ^= 1, 2),
        ("", |_, wal| wal.truncate(20), 2),
    ];
    for (n, (why, damage, rows)) in cases.into_iter().enumerate() {
        let path = dir.path().join(format!("{n}.db"));
        killed_in_wal_mode(&path);
        let (mut home, mut wal) = (fs::read(&path).unwrap(), fs::read(beside(&path, "-wal")).unwrap());
        damage(&mut home, &mut wal);
        fs::write(&path, &home).unwrap();
        fs::write(beside(&path, "-wal"), &wal).unwrap();
        let db = open(&path, "").unwrap();
        let count = db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap_or(-1);
        assert_eq!(count, rows, "{why}");
        if !why.is_empty() {
            assert_eq!((fs::read(&path).unwrap(), fs::read(beside(&path, "-wal")).unwrap()), (home, wal), "{why}");
            let status = mode(&db, "onewrite_status");
            assert!(status.starts_with("in_effect=no") && status.contains(why), "{status}");
        } else {
            assert_eq!(leftovers(&path), [""; 0]);
        }
    }
}

/// Changes the header of a WAL and makes its checksum right.
fn reseal(log: &mut [u8], change: impl FnOnce(&mut [u8])) {
    change(log);
    let big_endian = log[3] & 1 == 1;
    let word = |b: &[u8]| {
        let b = b.try_into().unwrap();
        if big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }
    };
    let (mut one, mut two) = (0u32, 0u32);
    for pair in log[..24].chunks(8) {
        one = one.wrapping_add(word(&pair[..4])).wrapping_add(two);
        two = two.wrapping_add(word(&pair[4..])).wrapping_add(one);
    }
    log[24..28].copy_from_slice(&one.to_be_bytes());
    log[28..32].copy_from_slice(&two.to_be_bytes());
}

#[test]
fn with_wal_stock_nothing_is_converted() {
    let dir = setup();
    let path = dir.path().join("stays.db");
    killed_in_wal_mode(&path);
    let db = open(&path, "wal=stock").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 500);
    assert_eq!(mode(&db, "journal_mode"), "wal");
    assert!(mode(&db, "onewrite_status").contains("wal=stock leaves it there"));
    assert!(beside(&path, "-wal").exists());
}
