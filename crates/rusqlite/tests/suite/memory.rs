//! Peak memory of onewrite beside that of stock SQLite: at most 16 MiB more, for a database of any
//! size.
//!
//! Small by default; `ONEWRITE_FULL=1` takes a `VACUUM` of 1 GB and a transaction of 1,000,000
//! rows, best with `--release`. `--nocapture` shows the numbers.

use crate::support;

use std::path::Path;

use support::open_stock;
use support::remote::Remote;
use tempfile::TempDir;

/// The most that may be added to stock SQLite's peak, in KiB; less where everything is small.
fn above_max_kib() -> u64 {
    if full() { 16 << 10 } else { 8 << 10 }
}

fn full() -> bool {
    std::env::var_os("ONEWRITE_FULL").is_some_and(|v| v == "1")
}

/// Peak of a process that runs `sql` on a database of its own.
fn peak_kib(path: &Path, ours: bool, sql: &[String]) -> u64 {
    let mut process = if ours { Remote::ours(path) } else { Remote::stock(path) };
    for text in sql {
        process.sql(text).unwrap_or_else(|e| panic!("{text}: {e:?}"));
    }
    let peak = process.peak_kib();
    process.close();
    assert_eq!(support::one::<String>(&open_stock(path), "PRAGMA quick_check"), "ok");
    peak
}

fn compare(what: &str, sql: &[String], prepare: impl Fn(&Path)) {
    let dir = TempDir::new().unwrap();
    let peaks = [false, true].map(|ours| {
        let path = dir.path().join(if ours { "ours.db" } else { "stock.db" });
        prepare(&path);
        let peak = peak_kib(&path, ours, sql);
        std::fs::remove_file(&path).unwrap();
        peak
    });
    let [stock, ours] = peaks;
    println!("{what}: peak memory of stock SQLite {stock} KiB, of onewrite {ours} KiB");
    assert!(ours <= stock + above_max_kib(), "{what}: {ours} KiB where stock SQLite takes {stock} KiB");
}

fn rows(from: u64, count: u64, bytes: u64) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {from} + {count} - 1)
         INSERT INTO t(k, b) SELECT (i * 7919) % 1000003, noise(i, {bytes}) FROM n"
    )
}

#[test]
fn vacuum_of_a_large_database() {
    let megabytes = if full() { 1000 } else { 100 };
    compare(&format!("VACUUM of {megabytes} MB"), &["VACUUM".into()], |path| {
        let db = open_stock(path);
        support::add_noise(&db);
        db.execute_batch("PRAGMA synchronous=off; CREATE TABLE t(k INTEGER, b BLOB)").unwrap();
        for part in 0..megabytes {
            db.execute_batch(&rows(part * 1000, 1000, 1000)).unwrap();
        }
        db.execute_batch("DELETE FROM t WHERE rowid % 10 = 0").unwrap();
    });
}

#[test]
fn a_transaction_of_many_rows() {
    let count = if full() { 1_000_000 } else { 100_000 };
    // In the order of a random key, so that pages change again after they have left the cache.
    let sql = [
        "BEGIN".into(),
        "CREATE TABLE t(k INTEGER, b BLOB)".into(),
        "CREATE INDEX i ON t(k)".into(),
        rows(1, count, 100),
        "UPDATE t SET b = noise(k, 90) WHERE k % 3 = 0".into(),
        "COMMIT".into(),
    ];
    compare(&format!("a transaction of {count} rows"), &sql, |_| {});
}

#[test]
fn many_transactions_beside_an_old_snapshot() {
    let count = if full() { 4_000 } else { 1_000 };
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("old.db");
    {
        let db = open_stock(&path);
        support::add_noise(&db);
        db.execute_batch("PRAGMA synchronous=off; CREATE TABLE t(k INTEGER, b BLOB)").unwrap();
        db.execute_batch(&rows(1, 50_000, 1000)).unwrap();
    }
    let measure = |with_reader: bool| {
        let mut process = Remote::ours(&path);
        process.sql("PRAGMA synchronous=off").unwrap();
        if with_reader {
            process.ask("reader").unwrap();
        }
        for n in 0..count {
            let at = (n * 7919) % 50_000;
            process.sql(&format!("UPDATE t SET b = noise({n}, 1000) WHERE rowid BETWEEN {at} AND {at} + 20")).unwrap();
        }
        let peak = process.peak_kib();
        process.close();
        peak
    };
    let [without, with] = [measure(false), measure(true)];
    println!("{count} transactions: peak memory without an old snapshot {without} KiB, with one {with} KiB");
    assert!(with <= without + above_max_kib(), "an old snapshot takes {with} KiB where none takes {without} KiB");
}
