//! One test for each fault that the differential run found, reduced to the least that shows it.

use crate::support;

use support::{add_noise, one, open, open_stock};

const ROWS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ";

/// A record may be longer than the room before the end of the ring, and than the room before the
/// place where the ring begins. After a checkpoint it still fits, from the beginning.
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
/// A state read from a plain file compares the size in the header with that of the file. Without
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

/// The scheme needs the second of two files to step aside, which a reader prevents: the transaction
/// is rolled back whole, in SQLite's cache, too. The rollback of the first file removed the
/// super-journal. SQLite took the journal of the second for stale then, and kept pages to be rolled
/// back under the counter of the next commit.
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
fn a_commit_over_two_files_that_is_refused_leaves_nothing_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.db"), dir.path().join("second.db"));
    let both = open(&first, "scheme=dash").unwrap();
    both.execute("ATTACH ?1 AS second", [format!("file:{}?vfs=onewrite&scheme=dash", second.display())]).unwrap();
    both.execute_batch("CREATE TABLE t(x); CREATE TABLE second.u(who, x)").unwrap();
    both.execute_batch("INSERT INTO second.u VALUES ('both', 0), ('other', 0)").unwrap();
    let other = open(&second, "scheme=dash").unwrap();
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
    let left = dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains("-mj")).count(), 0, "the super-journal is gone");
}

/// A transaction that steps aside changes the database without a number of its own. The next
/// session must not call its state by the number of the transaction before, or a cache that is
/// older than both is kept.
#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
#[cfg_attr(windows, ignore = "Windows exchanges no names")]
#[test]
fn a_cache_from_before_a_transaction_over_two_files_is_not_kept_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first.db"), dir.path().join("second.db"));
    let reader = open(&first, "scheme=dash").unwrap();
    reader.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT x FROM t"), 1);
    let both = open(&first, "scheme=dash").unwrap();
    both.execute("ATTACH ?1 AS second", [format!("file:{}?vfs=onewrite&scheme=dash", second.display())]).unwrap();
    both.execute_batch("CREATE TABLE second.u(x)").unwrap();
    both.execute_batch("BEGIN; UPDATE t SET x = 2; INSERT INTO second.u VALUES (2); COMMIT").unwrap();
    // In use again, and nothing committed yet.
    both.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(one::<i64>(&reader, "SELECT x FROM t"), 2);
    both.execute_batch("ROLLBACK").unwrap();
}

/// A hot journal may bring back a header in WAL mode: `PRAGMA journal_mode=DELETE` was cut short.
/// SQLite goes on in WAL mode at once, under a lock that was taken for a plain file; it has to lock
/// anew.
#[test]
fn a_hot_journal_that_leads_back_to_wal_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wal.db");
    let stock = open_stock(&path);
    one::<String>(&stock, "PRAGMA journal_mode=wal");
    stock.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1), (2)").unwrap();
    drop(stock);
    let mut home = std::fs::read(&path).unwrap();
    let page: Vec<u8> = home[..4096].to_vec();
    home[18..20].copy_from_slice(&[1, 1]);
    std::fs::write(&path, &home).unwrap();
    // One record: page 1 as it was (SQLite file format, section 3).
    let nonce = 7u32;
    let sum = (1..=20).map(|n| u32::from(page[4096 - 200 * n])).fold(nonce, u32::wrapping_add);
    let mut journal = vec![0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    for word in [1, nonce, home.len() as u32 / 4096, 512, 4096] {
        journal.extend(word.to_be_bytes());
    }
    journal.resize(512, 0);
    journal.extend(1u32.to_be_bytes());
    journal.extend(&page);
    journal.extend(sum.to_be_bytes());
    std::fs::write(dir.path().join("wal.db-journal"), journal).unwrap();
    let db = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode"), "wal");
    db.execute_batch("INSERT INTO t VALUES (3)").unwrap();
    assert_eq!(one::<String>(&db, "PRAGMA journal_mode=delete"), "delete");
    drop(db);
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 3);
}

/// A power cut may undo the removal of the mark by the last close, and leave the journal of a later
/// transaction of stock SQLite. That is rolled back, with any records that the log still has of the
/// session (rule CloseProven).
#[test]
fn a_hot_journal_behind_a_close_whose_mark_came_back() {
    hot_journal_behind_a_close(false);
}

/// The same power cut has lost the slot of the close. The records lead to home's last transaction.
#[test]
fn a_hot_journal_behind_a_close_whose_slot_is_lost() {
    hot_journal_behind_a_close(true);
}

fn hot_journal_behind_a_close(is_slot_lost: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let db = open(&path, "").unwrap();
    db.execute_batch("CREATE TABLE t(x); CREATE TABLE u(x); INSERT INTO t VALUES (1), (2)").unwrap();
    drop(db);
    let closed = std::fs::read(&path).unwrap();
    let stock = open_stock(&path);
    stock.execute_batch("PRAGMA cache_size=1; PRAGMA cache_spill=1; BEGIN; DELETE FROM t").unwrap();
    stock
        .execute_batch(
            "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 9000) INSERT INTO u SELECT i FROM n",
        )
        .unwrap();
    let journal = std::fs::read(dir.path().join("a.db-journal")).unwrap();
    let torn = std::fs::read(&path).unwrap();
    assert!(torn.len() > closed.len() && journal[..4] == [0xd9, 0xd5, 0x05, 0xf9], "the transaction has spilled");
    drop(stock);
    // The slot of the close: its session and last TID (docs/format.md).
    let mut log = std::fs::read(dir.path().join("a.db-onewrite")).unwrap();
    let word = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
    let slot = if word(4096 + 16) > word(8192 + 16) { 4096 } else { 8192 };
    // Page 1 as the medium has it: before stock SQLite, and with the mark of the session.
    let mut home = torn;
    home[..4096].copy_from_slice(&closed[..4096]);
    home[19] = 87;
    home[72..80].copy_from_slice(&log[slot + 24..slot + 32]);
    home[80..88].copy_from_slice(&log[slot + 56..slot + 64]);
    let counter = u32::from_be_bytes(closed[24..28].try_into().unwrap()) - 1;
    for at in [24, 92] {
        home[at..at + 4].copy_from_slice(&counter.to_be_bytes());
    }
    if is_slot_lost {
        log[slot..slot + 100].fill(0);
        std::fs::write(dir.path().join("a.db-onewrite"), &log).unwrap();
    }
    std::fs::write(&path, &home).unwrap();
    std::fs::write(dir.path().join("a.db-journal"), journal).unwrap();
    let db = open(&path, "").unwrap();
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM t"), 2);
    assert_eq!(one::<i64>(&db, "SELECT count(*) FROM u"), 0);
    assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok");
    db.execute_batch("INSERT INTO t VALUES (3)").unwrap();
    drop(db);
    assert_eq!(one::<i64>(&open_stock(&path), "SELECT count(*) FROM t"), 3);
}

/// A transaction over two files is decided where another record follows, and the decision is
/// overwritten then. Damage to that record took both transactions from one file.
#[test]
fn a_record_that_was_damaged_decides_the_transaction_over_two_files_before_it() {
    const LAST: &str = "behind the transaction over two files";
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let db = open(&path("first.db"), "idle=0").unwrap();
    for name in ["second", "third"] {
        let uri = format!("file:{}?vfs=onewrite&idle=0", path(&format!("{name}.db")).display());
        db.execute(&format!("ATTACH ?1 AS {name}"), [uri]).unwrap();
        db.execute_batch(&format!("CREATE TABLE {name}.t(x)")).unwrap();
    }
    db.execute_batch("CREATE TABLE main.t(x)").unwrap();
    let both = |other: &str| {
        db.execute_batch(&format!("BEGIN; INSERT INTO main.t VALUES (7); INSERT INTO {other}.t VALUES (7); COMMIT"))
    };
    both("second").unwrap();
    db.execute("INSERT INTO second.t VALUES (?1)", [LAST]).unwrap();
    // There is room for so few decisions in a log.
    (0..40).for_each(|_| both("third").unwrap());
    let crashed = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), crashed.path().join(file.file_name())).unwrap();
    }
    let log = crashed.path().join("second.db-onewrite");
    let mut bytes = std::fs::read(&log).unwrap();
    let at = bytes.windows(LAST.len()).position(|window| window == LAST.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let second = open(&crashed.path().join("second.db"), "").unwrap();
    assert_eq!(one::<String>(&second, "SELECT group_concat(x) FROM t"), "7");
    let first = open(&crashed.path().join("first.db"), "").unwrap();
    assert_eq!(one::<i64>(&first, "SELECT count(*) FROM t"), 41);
}
