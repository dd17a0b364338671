//! One test for each fault that the differential run found, reduced to what shows it.

mod support;

use support::{add_noise, one, open, open_stock};

const ROWS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ";

/// A record may be longer than what is left before the end of the ring and than what lies before the
/// place where the ring begins: after a checkpoint it still fits, from the beginning.
#[test]
fn a_record_longer_than_half_the_ring_fits_wherever_the_tail_is() {
    for scheme in ["log", "wal-opt"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("half.db");
        let db = open(&path, &format!("scheme={scheme}")).unwrap();
        add_noise(&db);
        db.execute_batch("CREATE TABLE t(b BLOB)").unwrap();
        for n in 1..=12u32 {
            let rows = 150 + 50 * (n % 2);
            db.execute_batch(&format!("{ROWS}{rows}) INSERT INTO t SELECT noise(i + {n}, 3000) FROM n")).unwrap();
        }
        let rows: i64 = one(&db, "SELECT count(*) FROM t");
        drop(db);
        let stock = open_stock(&path);
        assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
        assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), rows);
    }
}
/// A state read from a plain file compares the size that the header states with that of the file: without
/// the latter every database that existed already looked like one that was cut short.
#[test]
fn a_database_that_was_there_before_is_read_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("before.db");
    open_stock(&path).execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    for rows in 1..4 {
        let db = open(&path, "").unwrap();
        assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), rows);
        db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        if rows == 2 {
            db.execute_batch("PRAGMA page_size=1024; VACUUM").unwrap();
            assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 3);
        }
    }
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 4);
}

/// A transaction over two files whose second file cannot step aside, for somebody reads it, is rolled back
/// whole, in SQLite's cache, too. The rollback of the first file removes the super-journal; SQLite took the journal of
/// the second for stale then and kept what was to be rolled back, under the counter of the next commit.
#[test]
fn a_commit_over_two_files_that_is_refused_leaves_nothing_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.db"), dir.path().join("second.db"));
    let both = open(&first, "").unwrap();
    both.execute("ATTACH ?1 AS second", [format!("file:{}?vfs=onewrite", second.display())]).unwrap();
    both.execute_batch("CREATE TABLE t(x); CREATE TABLE second.u(who, x)").unwrap();
    both.execute_batch("INSERT INTO second.u VALUES ('both', 0), ('other', 0)").unwrap();
    let other = open(&second, "").unwrap();
    other.execute_batch("BEGIN").unwrap();
    assert_eq!(one::<i64>(&other, "SELECT sum(x) FROM u"), 0);
    let refused =
        both.execute_batch("BEGIN; INSERT INTO t VALUES (1); UPDATE second.u SET x = 7 WHERE who = 'both'; COMMIT");
    assert!(refused.is_err(), "the second file is being read");
    if !both.is_autocommit() {
        both.execute_batch("ROLLBACK").unwrap();
    }
    other.execute_batch("COMMIT; UPDATE u SET x = 1 WHERE who = 'other'").unwrap();
    let seen = "SELECT group_concat(x) FROM (SELECT x FROM second.u ORDER BY who)";
    assert_eq!(one::<String>(&both, seen), "0,1", "what was rolled back is seen, what was committed is not");
    both.execute_batch("UPDATE second.u SET x = 2 WHERE who = 'both'").unwrap();
    assert_eq!(one::<String>(&other, "SELECT group_concat(x) FROM (SELECT x FROM u ORDER BY who)"), "2,1");
    assert_eq!(one::<i64>(&both, "SELECT count(*) FROM t"), 0);
}
