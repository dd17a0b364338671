//! `PRAGMA mmap_size`: SQLite reads pages of a plain file in mapped memory, and what it holds stays
//! as it was.

use crate::support;

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use support::mounted::Mounted;
use support::remote::Remote;
use support::{one, open, open_stock};
use tempfile::TempDir;

const ROWS: i64 = 3000;

/// A plain file of some 300 pages.
fn filled() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain.db");
    let db = open_stock(&path);
    db.execute_batch(&format!(
        "CREATE TABLE t(k INTEGER PRIMARY KEY, v); CREATE TABLE u(k INTEGER PRIMARY KEY, v);
         WITH RECURSIVE c(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM c WHERE k < {ROWS})
         INSERT INTO t SELECT k, printf('old %0400d', k) FROM c;
         INSERT INTO u SELECT k, v FROM t"
    ))
    .unwrap();
    (dir, path)
}

fn mapping(path: &Path, parameters: &str) -> Connection {
    let db = open(path, parameters).unwrap();
    assert_eq!(one::<i64>(&db, "PRAGMA mmap_size=1000000000"), 1_000_000_000);
    db
}

fn is_mapped(path: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.ends_with(path.to_str().unwrap()))
}

/// How many values of the file begin with `word`.
fn count_in_file(path: &Path, word: &str) -> usize {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(word.len() + 6).filter(|at| at.starts_with(word.as_bytes()) && at.ends_with(b" 00000")).count()
}

/// Each row as it was filled, with something done after ten of them.
fn read_old_rows(db: &Connection, between: impl FnMut()) {
    read_rows(db, "old", between);
}

fn read_rows(db: &Connection, word: &str, mut between: impl FnMut()) {
    let mut select = db.prepare("SELECT k, v FROM t ORDER BY k").unwrap();
    let mut rows = select.query([]).unwrap();
    for k in 1..=ROWS {
        let row = rows.next().unwrap().unwrap();
        assert_eq!((row.get(0), row.get(1)), (Ok(k), Ok(format!("{word} {k:0400}"))), "row {k}");
        if k == 10 {
            between();
        }
    }
    assert!(rows.next().unwrap().is_none());
}

/// Commits until most of home is overwritten.
fn overwrite(path: &Path, mut commit: impl FnMut(&str)) {
    for round in 0..20 {
        commit(&format!("UPDATE t SET v = printf('new %0400d', k * {round})"));
        if count_in_file(path, "new") > 1000 {
            return;
        }
    }
    panic!("nothing came home");
}

#[test]
fn a_plain_file_is_mapped_and_a_live_one_is_read() {
    let (_dir, path) = filled();
    let db = mapping(&path, "idle=0");
    assert!(!is_mapped(&path));
    read_old_rows(&db, || {
        assert!(is_mapped(&path));
        assert_eq!(one::<i64>(&db, "PRAGMA mmap_size=0"), 1_000_000_000, "SQLite holds a page");
    });
    assert_eq!(one::<i64>(&db, "PRAGMA mmap_size=0"), 0);
    assert!(!is_mapped(&path), "the limit is 0");
    read_old_rows(&db, || ());
    assert!(!is_mapped(&path));
    // A log has newer pages than home.
    assert_eq!(one::<i64>(&db, "PRAGMA mmap_size=100000000"), 100_000_000);
    db.execute_batch("UPDATE t SET v = 'x' WHERE k > 100").unwrap();
    assert_eq!(one::<i64>(&db, &format!("SELECT count(*) FROM t WHERE v = 'x' AND k <= {ROWS}")), ROWS - 100);
    assert!(!is_mapped(&path));
}

#[test]
fn a_page_that_a_cursor_holds_stays_while_another_connection_overwrites_home() {
    let (_dir, path) = filled();
    let parameters = "log_size=256k&idle=0";
    let (db, other) = (mapping(&path, parameters), mapping(&path, parameters));
    read_old_rows(&db, || overwrite(&path, |sql| other.execute_batch(sql).unwrap()));
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE v LIKE 'new %'"), ROWS);
}

#[test]
fn a_page_that_a_cursor_holds_stays_while_another_process_overwrites_home() {
    let (_dir, path) = filled();
    let db = mapping(&path, "log_size=256k&idle=0");
    // The process of the cursor puts the file to use: only then another may write it.
    read_old_rows(&db, || {
        let mut remote = Remote::attached(&path);
        assert!(remote.sql("UPDATE t SET v = 'new' WHERE k = 1").is_err(), "it is plain, and read");
        db.execute_batch("UPDATE u SET v = 'of the same connection' WHERE k < 10").unwrap();
        overwrite(&path, |sql| drop(remote.sql(sql).unwrap()));
        remote.close();
    });
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE v LIKE 'new %'"), ROWS);
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM u WHERE v LIKE 'of %'"), 9);
}

/// A container that reads a file of its image, beside one that writes it: the writer's is a copy.
#[test]
fn a_reader_sees_what_is_written_to_the_copy_of_an_images_file() {
    let (dir, _) = filled();
    let Some(container) = Mounted::over(dir.path()) else { return };
    let path = container.path("plain.db");
    let db = mapping(&path, "mode=ro");
    read_old_rows(&db, || ());
    let mut writer = Remote::ours(&path);
    for value in ["first", "second"] {
        writer.sql(&format!("UPDATE t SET v = '{value}'")).unwrap();
        assert_eq!(one::<i64>(&db, &format!("SELECT count(*) FROM t WHERE v = '{value}'")), ROWS);
    }
    writer.close();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t WHERE v = 'second'"), ROWS);
}

/// Two uses, so that private copies of the first could show in the second.
#[test]
fn kept_pages_are_forgotten_when_the_file_is_plain_again() {
    let (_dir, path) = filled();
    let db = mapping(&path, "log_size=256k&idle=20ms");
    let rests = || {
        while std::fs::read(&path).unwrap()[19] != 1 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    // Of what this connection writes itself SQLite unmaps nothing.
    db.execute_batch("PRAGMA cache_size=1").unwrap();
    read_old_rows(&db, || {
        db.execute_batch("UPDATE u SET v = 1 WHERE k = 1").unwrap();
        assert!(is_mapped(&path));
    });
    db.execute_batch("UPDATE t SET v = replace(v, 'old', 'mid')").unwrap();
    rests();
    read_rows(&db, "mid", || {
        db.execute_batch("UPDATE u SET v = 2 WHERE k = 1").unwrap();
        assert!(is_mapped(&path));
    });
    rests();
    open_stock(&path).execute_batch("UPDATE t SET v = replace(v, 'mid', 'end')").unwrap();
    read_rows(&db, "end", || assert!(is_mapped(&path)));
}

#[test]
fn stock_sqlite_writes_grows_and_shortens_the_file_in_between() {
    let (_dir, path) = filled();
    let (db, stock) = (mapping(&path, ""), open_stock(&path));
    stock.busy_timeout(std::time::Duration::ZERO).unwrap();
    read_old_rows(&db, || {
        assert!(stock.execute_batch("UPDATE t SET v = 'new'").is_err(), "the file is read");
    });
    let sum = |db: &Connection| one::<i64>(db, "SELECT sum(length(v)) FROM t");
    for sql in [
        "UPDATE t SET v = 'short' WHERE k % 2",
        "DELETE FROM t WHERE k > 50; DELETE FROM u; VACUUM",
        "INSERT INTO t SELECT k + 1000, zeroblob(3000) FROM t",
        "INSERT INTO u SELECT k, zeroblob(100000) FROM t",
        "DELETE FROM u; PRAGMA page_size=1024; VACUUM",
        "PRAGMA page_size=65536; VACUUM",
    ] {
        stock.execute_batch(sql).unwrap();
        assert_eq!(sum(&db), sum(&stock), "{sql}");
        assert!(is_mapped(&path), "{sql}");
        assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
    }
}
