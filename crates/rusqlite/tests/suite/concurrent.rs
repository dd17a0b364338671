//! `concurrent=1`: the transactions of many threads might have happened one after the other.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Rows with balances, few to a page, so that some transactions meet on a page and some do not.
const ROWS: i64 = 120;
const EACH: i64 = 1000;

fn open(path: &Path, options: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::default() | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(format!("file:{}?vfs=onewrite&{options}", path.display()), flags)
}

fn concurrent(path: &Path) -> Connection {
    let c = open(path, "concurrent=1&log_size=256k&table_size=256k").unwrap();
    c.busy_timeout(Duration::ZERO).unwrap();
    c
}

fn bank(path: &Path) -> Connection {
    onewrite_rusqlite::register().unwrap();
    let c = concurrent(path);
    c.execute_batch("CREATE TABLE t(k INTEGER PRIMARY KEY, n INTEGER NOT NULL, pad BLOB NOT NULL); BEGIN").unwrap();
    for k in 0..ROWS {
        c.execute("INSERT INTO t VALUES(?1, ?2, ?3)", (k, EACH, [k as u8; 900])).unwrap();
    }
    c.execute_batch("COMMIT").unwrap();
    c
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as i64) % n
    }
}

fn is_conflict(e: &rusqlite::Error) -> bool {
    matches!(e, rusqlite::Error::SqliteFailure(e, _) if e.code == ErrorCode::DatabaseBusy)
}

fn sum(c: &Connection) -> i64 {
    c.query_row("SELECT sum(n) FROM t", [], |r| r.get(0)).unwrap()
}

/// Does `what` in a transaction until it commits; returns how often it had to be done again.
fn retried(c: &Connection, mut what: impl FnMut() -> rusqlite::Result<()>) -> u64 {
    let mut again = 0;
    loop {
        c.execute_batch("BEGIN").unwrap();
        match what().and_then(|()| c.execute_batch("COMMIT")) {
            Ok(()) => return again,
            Err(e) => assert!(is_conflict(&e), "{e}"),
        }
        if !c.is_autocommit() {
            c.execute_batch("ROLLBACK").unwrap();
        }
        again += 1;
    }
}

fn balance(c: &Connection, k: i64) -> rusqlite::Result<i64> {
    c.query_row("SELECT n FROM t WHERE k = ?1", [k], |r| r.get(0))
}

fn set(c: &Connection, k: i64, n: i64) -> rusqlite::Result<()> {
    c.execute("UPDATE t SET n = ?2 WHERE k = ?1", [k, n]).map(drop)
}

fn integrity(path: &Path) {
    let c = Connection::open(path).unwrap();
    let verdict: String = c.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}

/// Transfers read two rows and write both back: a lost update or a mixed snapshot changes the sum.
/// Each thread also looks at all rows at once now and then.
fn transfers(seed: u64, grow: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let first = bank(&path);
    if grow {
        first.execute_batch("CREATE TABLE log(id INTEGER PRIMARY KEY, what BLOB)").unwrap();
    }
    let (done, again) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        for n in 0..4u64 {
            let (path, done, again) = (&path, &done, &again);
            s.spawn(move || {
                let c = concurrent(path);
                let mut random = Random(seed * 100 + n);
                for i in 0..150 {
                    // A thread keeps to its own rows mostly.
                    let own = n as i64 * (ROWS / 4);
                    let (from, range) = if random.below(4) > 0 { (own, ROWS / 4) } else { (0, ROWS) };
                    let (a, b) = (from + random.below(range), from + random.below(range));
                    let amount = random.below(100);
                    let tries = retried(&c, || {
                        let (x, y) = (balance(&c, a)?, balance(&c, b)?);
                        std::thread::yield_now();
                        set(&c, a, x - amount)?;
                        if a != b {
                            set(&c, b, y + amount)?;
                        } else {
                            set(&c, a, x)?;
                        }
                        if grow && i % 5 == 0 {
                            c.execute("INSERT INTO log(what) VALUES(zeroblob(3000))", [])?;
                        } else if grow && i % 7 == 0 {
                            c.execute("DELETE FROM log WHERE id IN (SELECT id FROM log LIMIT 2)", [])?;
                        }
                        Ok(())
                    });
                    again.fetch_add(tries, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                    if i % 10 == 0 {
                        assert_eq!(sum(&c), ROWS * EACH, "a snapshot of two states, or a lost update");
                    }
                }
            });
        }
    });
    assert_eq!(sum(&first), ROWS * EACH);
    assert_eq!(done.load(Ordering::Relaxed), 600);
    assert!(again.load(Ordering::Relaxed) > 0, "nobody ever met another: the test shows nothing");
    drop(first);
    integrity(&path);
}

#[test]
fn transfers_keep_the_sum() {
    transfers(1, false);
}

#[test]
fn transfers_keep_the_sum_while_the_file_grows_and_pages_are_freed() {
    transfers(2, true);
}

/// Two that each read the row that the other writes: one of them must see the other's (no write
/// skew).
#[test]
fn of_two_that_read_pages_the_other_writes_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (a, b) = (bank(&path), concurrent(&path));
    let far = ROWS - 1;
    for c in [&a, &b] {
        // All of it is in the connection's cache from here on, and nothing changes: the reads must
        // be seen all the same.
        assert_eq!(sum(c), ROWS * EACH);
        c.execute_batch("BEGIN").unwrap();
        assert_eq!(balance(c, 0).unwrap() + balance(c, far).unwrap(), 2 * EACH);
    }
    set(&a, 0, -EACH).unwrap();
    set(&b, far, -EACH).unwrap();
    a.execute_batch("COMMIT").unwrap();
    let e = b.execute_batch("COMMIT").unwrap_err();
    assert_eq!(e.sqlite_error().unwrap().extended_code, 517, "{e}");
    assert!(b.is_autocommit(), "it is rolled back");
    assert_eq!((balance(&b, 0).unwrap(), balance(&b, far).unwrap()), (-EACH, EACH));
}

/// Page 1 says which pages are free: of two that free pages one must start over, or its own are
/// lost.
#[test]
fn two_that_free_pages_meet_on_page_1() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (a, b) = (bank(&path), concurrent(&path));
    for table in ["x", "y"] {
        a.execute_batch(&format!("CREATE TABLE {table}(v BLOB); INSERT INTO {table} VALUES(zeroblob(4500))")).unwrap();
    }
    for (c, table) in [(&a, "x"), (&b, "y")] {
        c.execute_batch(&format!("BEGIN; DELETE FROM {table}")).unwrap();
    }
    b.execute_batch("COMMIT").unwrap();
    assert!(is_conflict(&a.execute_batch("COMMIT").unwrap_err()));
    a.execute_batch("DELETE FROM x").unwrap();
    drop((a, b));
    integrity(&path);
}

#[test]
fn long_transactions_on_different_rows_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (a, b) = (bank(&path), concurrent(&path));
    a.execute_batch("BEGIN IMMEDIATE").unwrap();
    set(&a, 0, 1).unwrap();
    b.execute_batch("BEGIN IMMEDIATE").unwrap();
    set(&b, ROWS - 1, 2).unwrap();
    // A third one that commits meanwhile, and a checkpoint, change nothing for them.
    let c = concurrent(&path);
    set(&c, ROWS / 2, 3).unwrap();
    let _: String = c.query_row("PRAGMA onewrite_checkpoint", [], |r| r.get(0)).unwrap();
    b.execute_batch("COMMIT").unwrap();
    a.execute_batch("COMMIT").unwrap();
    for (c, n) in [(&a, 1), (&b, 2), (&c, 3)] {
        let all = [0, ROWS - 1, ROWS / 2].map(|k| balance(c, k).unwrap());
        assert_eq!(all, [1, 2, 3], "as connection {n} sees it");
    }
    // A reader that goes on while its connection commits on top of others keeps to its snapshot and
    // its own writes.
    let mut select = a.prepare("SELECT k, n FROM t ORDER BY k").unwrap();
    let mut rows = select.query([]).unwrap();
    assert!(rows.next().unwrap().is_some());
    set(&b, ROWS - 1, 20).unwrap();
    set(&a, 5, 50).unwrap();
    assert!(set(&a, 6, 60).is_err(), "its cache is behind");
    let mut seen = std::collections::BTreeMap::new();
    while let Some(row) = rows.next().unwrap() {
        seen.insert(row.get::<_, i64>(0).unwrap(), row.get::<_, i64>(1).unwrap());
    }
    assert_eq!((seen[&5], seen[&6], seen[&(ROWS - 1)]), (50, EACH, 2));
    drop(rows);
    drop(select);
    assert_eq!(balance(&a, ROWS - 1).unwrap(), 20);
    drop((a, b, c));
    integrity(&path);
}

#[test]
fn a_transaction_too_big_for_memory_commits_where_no_other_did() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (a, b) = (bank(&path), concurrent(&path));
    let _: String = a.query_row("PRAGMA onewrite_stream_size='64k'", [], |r| r.get(0)).unwrap();
    a.execute_batch("PRAGMA cache_size=10").unwrap();
    retried(&a, || a.execute("UPDATE t SET n = n + 1", []).map(drop));
    assert_eq!(sum(&b), ROWS * (EACH + 1));
    a.execute_batch("BEGIN").unwrap();
    balance(&a, 3).unwrap();
    set(&b, 3, 0).unwrap();
    let turned_away = a.execute("UPDATE t SET n = n + 1", []).map(drop).and_then(|()| a.execute_batch("COMMIT"));
    assert!(is_conflict(&turned_away.unwrap_err()));
    if !a.is_autocommit() {
        a.execute_batch("ROLLBACK").unwrap();
    }
    assert_eq!(sum(&a), (ROWS - 1) * (EACH + 1));
    drop((a, b));
    integrity(&path);
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    onewrite_rusqlite::register().unwrap();
    let refused = |options: &str| {
        let opened = open(&dir.path().join("db"), options).and_then(|c| c.execute_batch("CREATE TABLE t(a)"));
        assert!(opened.is_err(), "{options}");
    };
    refused("concurrent=1&scheme=dash");
    refused("concurrent=maybe");
    let c = open(&dir.path().join("db"), "").unwrap();
    let e = c.query_row("PRAGMA onewrite_concurrent=maybe", [], |r| r.get::<_, String>(0)).unwrap_err();
    assert!(e.to_string().contains("0, 1, on, off"), "{e}");
    let now: String = c.query_row("PRAGMA onewrite_concurrent=1", [], |r| r.get(0)).unwrap();
    assert_eq!(now, "1");
}

/// A table with an index and one without row numbers, of pages so small that most transactions
/// split some.
fn own_tables(c: &Connection, n: usize) {
    c.execute_batch(&format!(
        "CREATE TABLE a{n}(k INTEGER PRIMARY KEY, v INTEGER, pad TEXT); CREATE INDEX i{n} ON a{n}(v);
         CREATE TABLE b{n}(v INTEGER, k INTEGER, PRIMARY KEY(v, k)) WITHOUT ROWID"
    ))
    .unwrap();
}

fn insert_some(c: &Connection, n: usize, random: &mut Random, keys: &mut Vec<i64>) -> rusqlite::Result<()> {
    for _ in 0..1 + random.below(12) {
        let (k, v) = (random.below(1 << 30), random.below(1 << 30));
        c.execute(&format!("INSERT INTO a{n} VALUES(?1, ?2, printf('%040d', ?1))"), (k, v))?;
        c.execute(&format!("INSERT INTO b{n} VALUES(?1, ?2)"), (v, k))?;
        keys.push(k);
    }
    Ok(())
}

fn assert_holds(path: &Path, keys: &[Vec<i64>]) {
    let c = Connection::open(path).unwrap();
    for (n, keys) in keys.iter().enumerate() {
        let mut keys = keys.clone();
        keys.sort_unstable();
        for sql in [format!("SELECT k FROM a{n} ORDER BY k"), format!("SELECT k FROM b{n} ORDER BY k")] {
            let mut select = c.prepare(&sql).unwrap();
            let found: Vec<i64> = select.query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect();
            assert!(found == keys, "{sql}");
        }
    }
    integrity(path);
}

/// Two that split pages of their own tables do not meet: the pages of the second get other numbers
/// (rule MergeIsSerial). A split that leaves a page over for the freelist, or takes one from
/// there, meets others on page 1.
#[test]
fn two_that_add_pages_commit_both() {
    for seed in 1..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        onewrite_rusqlite::register().unwrap();
        let first = concurrent(&path);
        first.execute_batch("PRAGMA page_size=512").unwrap();
        (0..3).for_each(|n| own_tables(&first, n));
        let of = [first, concurrent(&path), concurrent(&path)];
        if seed % 2 == 0 {
            // Pages leave SQLite's cache before the commit, and are read again behind it.
            of.iter().for_each(|c| c.execute_batch("PRAGMA cache_size=8").unwrap());
        }
        let (mut random, mut keys, mut pages) = (Random(seed), vec![Vec::new(); 3], 0);
        let (mut selected, mut refused) = (0, 0);
        for round in 0..60 {
            let done: Vec<usize> = keys.iter().map(Vec::len).collect();
            for (n, c) in of.iter().enumerate() {
                c.execute_batch("BEGIN").unwrap();
                insert_some(c, n, &mut random, &mut keys[n]).unwrap();
            }
            for n in [round % 3, (round + 1) % 3, (round + 2) % 3] {
                // The rows that it reads until it gives its lock back are its own.
                let mut select = of[n].prepare(&format!("SELECT k FROM a{n}")).unwrap();
                let mut rows = select.query([]).unwrap();
                assert!(rows.next().unwrap().is_some());
                if let Err(e) = of[n].execute_batch("COMMIT") {
                    assert!(is_conflict(&e), "{e}");
                    drop(rows);
                    if !of[n].is_autocommit() {
                        of[n].execute_batch("ROLLBACK").unwrap();
                    }
                    keys[n].truncate(done[n]);
                    refused += 1;
                    continue;
                }
                selected = 1;
                while rows.next().unwrap().is_some() {
                    selected += 1;
                }
                assert_eq!(selected, keys[n].len());
            }
        }
        for c in &of {
            let verdict: String = c.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
            pages = c.query_row("PRAGMA page_count", [], |r| r.get(0)).unwrap();
            assert_eq!(verdict, "ok");
        }
        assert!(pages > 150 && selected > 100 && refused < 18, "{pages} pages, {refused} of 180 refused");
        drop(of);
        assert_holds(&path, &keys);
    }
}

/// Where the parent of an added page is not certain, the second starts over.
#[test]
fn two_that_add_to_an_unsplit_page_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (a, b) = (bank(&path), concurrent(&path));
    a.execute_batch("CREATE TABLE x(v BLOB); CREATE TABLE y(v BLOB)").unwrap();
    for sql in ["INSERT INTO y VALUES(zeroblob(9000))", "CREATE TABLE z(v)"] {
        a.execute_batch("BEGIN; INSERT INTO x VALUES(zeroblob(9000))").unwrap();
        b.execute_batch(&format!("BEGIN; {sql}")).unwrap();
        a.execute_batch("COMMIT").unwrap();
        assert!(is_conflict(&b.execute_batch("COMMIT").unwrap_err()), "{sql}");
        b.execute_batch(sql).unwrap();
    }
    drop((a, b));
    integrity(&path);
}

#[test]
fn threads_with_tables_of_their_own_rarely_start_over() {
    const THREADS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    onewrite_rusqlite::register().unwrap();
    let first = concurrent(&path);
    (0..THREADS).for_each(|n| own_tables(&first, n));
    let again = AtomicU64::new(0);
    let keys: Vec<Vec<i64>> = std::thread::scope(|s| {
        let of = (0..THREADS).map(|n| {
            let (path, again) = (&path, &again);
            s.spawn(move || {
                let (c, mut random, mut keys) = (concurrent(path), Random(n as u64), Vec::new());
                for _ in 0..250 {
                    let done = keys.len();
                    let tries = retried(&c, || {
                        keys.truncate(done);
                        insert_some(&c, n, &mut random, &mut keys)
                    });
                    again.fetch_add(tries, Ordering::Relaxed);
                }
                keys
            })
        });
        of.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(again.load(Ordering::Relaxed) <= 20, "{again:?} of 1000");
    drop(first);
    assert_holds(&path, &keys);
}
