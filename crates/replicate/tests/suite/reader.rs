//! The VFS `onewrite-replica`: each transaction reads one whole state of the store, whatever
//! happens to the files meanwhile.

use crate::{dialect, place, s3};
use onewrite_rusqlite::STOCK_VFS;

use place::{Killed, Place, said, until};
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ALL: &str = "SELECT count(*) || ' ' || total(n) || ' ' || total(length(x)) || ' ' || group_concat(hex(x)) FROM t";

fn try_open(parameters: &str) -> rusqlite::Result<Connection> {
    // SAFETY is `register`'s: the SQLite of this program stays.
    register();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_URI;
    let uri = format!("file:app.db?vfs=onewrite-replica&{parameters}");
    let db = Connection::open_with_flags(uri, flags)?;
    // Half of the tests' pages do not fit.
    db.execute_batch("PRAGMA cache_size=20")?;
    Ok(db)
}

#[allow(unsafe_code)]
fn register() {
    // SAFETY: the functions are those of the SQLite that this program is linked to.
    unsafe { onewrite_replica::register(&onewrite_rusqlite::api()) }.unwrap();
}

/// A reader that looks for newer states at each transaction.
fn open(place: &Place) -> Connection {
    try_open(&format!("poll=0&replica={}", place.url())).unwrap()
}

fn all(db: &Connection) -> String {
    db.query_row(ALL, [], |row| row.get(0)).unwrap()
}

fn here(place: &Place) -> String {
    all(&place.open())
}

fn text(db: &Connection, sql: &str) -> String {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn each_transaction_reads_one_state() {
    let place = Place::new(300);
    place.once(&[]);
    let (reader, other) = (open(&place), open(&place));
    let changes = [
        "UPDATE t SET x = 'new' WHERE n % 50 = 7",
        "DELETE FROM t WHERE n > 40; VACUUM",
        "INSERT INTO t SELECT n + 5000, randomblob(3000) FROM t",
        "CREATE TABLE u(x); INSERT INTO u VALUES (randomblob(200000)); DROP TABLE u; PRAGMA auto_vacuum=1; VACUUM",
        "INSERT INTO t SELECT n + 9000, randomblob(9000) FROM t",
        "DELETE FROM t WHERE n % 2",
    ];
    for change in changes {
        let before = here(&place);
        other.execute_batch("BEGIN").unwrap();
        assert_eq!(all(&other), before);
        place.sql(change);
        place.once(&[]);
        assert_eq!(all(&reader), here(&place), "after {change}");
        assert_eq!(text(&reader, "PRAGMA integrity_check"), "ok");
        assert_eq!(all(&other), before, "a transaction keeps its state");
        other.execute_batch("COMMIT").unwrap();
        assert_eq!(all(&other), here(&place));
    }
    let copy = place.dir.path().join("copy.db");
    reader.execute("VACUUM INTO ?1", [format!("file:{}?vfs={}", copy.display(), STOCK_VFS.to_str().unwrap())]).unwrap();
    assert_eq!(all(&Connection::open(copy).unwrap()), here(&place));
}

#[test]
fn writers_are_refused() {
    let place = Place::new(3);
    place.once(&[]);
    let reader = open(&place);
    for sql in ["DELETE FROM t", "CREATE TABLE u(x)", "PRAGMA user_version=3", "VACUUM"] {
        let error = reader.execute_batch(sql).unwrap_err();
        assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly), "{sql}");
    }
    // Temporary tables are the reader's own.
    reader.execute_batch("CREATE TEMP TABLE u AS SELECT * FROM t; DELETE FROM u").unwrap();
    assert_eq!(text(&reader, "PRAGMA journal_mode=WAL"), "delete");
    assert!(!place.dir.path().join("app.db-journal").exists());
}

#[test]
fn a_reader_goes_back_in_time() {
    let place = Place::new(20);
    place.once(&[]);
    let mut states = vec![here(&place)];
    for n in 0..3 {
        std::thread::sleep(Duration::from_millis(30));
        place.sql(&format!("DELETE FROM t WHERE n % 5 = {n}; INSERT INTO t VALUES (100 + {n}, randomblob(9000))"));
        place.once(&[]);
        states.push(here(&place));
    }
    let reader = open(&place);
    let mut times = Vec::new();
    for (state, txid) in states.iter().zip(1..) {
        assert_eq!(text(&reader, &format!("PRAGMA onewrite_txid='{txid}'")), txid.to_string());
        assert_eq!(all(&reader), *state);
        times.push(text(&reader, "PRAGMA onewrite_time"));
    }
    // A state is of before a time, and its own time is in whole milliseconds.
    for (time, state) in times[1..].iter().zip(&states) {
        text(&reader, &format!("PRAGMA onewrite_time='{time}'"));
        assert_eq!(all(&reader), *state, "before {time}");
    }
    text(&reader, "PRAGMA onewrite_time='0 seconds ago'");
    assert_eq!(all(&reader), states[3]);
    text(&reader, "PRAGMA onewrite_txid='2'");
    place.sql("DELETE FROM t WHERE n < 7");
    place.once(&[]);
    assert_eq!(all(&reader), states[1], "it stays there");
    assert_eq!(text(&reader, "PRAGMA onewrite_time=latest"), text(&open(&place), "PRAGMA onewrite_time"));
    assert_eq!(all(&reader), here(&place));

    reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    for (sql, word) in [
        ("PRAGMA onewrite_txid='1'", "end it first"),
        ("PRAGMA onewrite_time='soon'", "5 minutes ago"),
        ("PRAGMA onewrite_txid='x'", "hexadecimal"),
        ("PRAGMA onewrite_lag='1'", "only read"),
    ] {
        let error = reader.execute_batch(sql).unwrap_err().to_string();
        assert!(error.contains(word), "{sql}: {error}");
    }
    reader.execute_batch("COMMIT").unwrap();
    let error = reader.execute_batch("PRAGMA onewrite_txid='ff'").unwrap_err().to_string();
    assert!(error.contains("is not in the store: the newest is 5"), "{error}");
    let error = reader.execute_batch("PRAGMA onewrite_time='3 years ago'").unwrap_err().to_string();
    assert!(error.contains("the store has no state of before"), "{error}");
    assert!(text(&reader, "PRAGMA onewrite_lag").parse::<f64>().unwrap() < 60.0);
}

/// Its transaction reads on, or says that it must begin again.
#[test]
fn files_are_merged_and_removed_under_a_reader() {
    // Their files are too large to be read whole.
    let place = Place::new(4000);
    let hasty = ["--levels", "300ms", "--keep-batches", "0s"];
    place.once(&hasty);
    let (mut read_on, mut again) = (0, 0);
    for n in 0..6 {
        let change = || {
            place.sql(&format!("UPDATE t SET x = randomblob(220) WHERE n % 9 = {n} % 9 AND n > 9"));
            place.once(&[]);
        };
        change();
        // No image is in its memory.
        let reader = try_open(&format!("poll=0&cache_size=1m&hydrate=0&replica={}", place.url())).unwrap();
        reader.execute_batch("BEGIN").unwrap();
        let first: i64 = reader.query_row("SELECT count(*) FROM t WHERE n < 2", [], |row| row.get(0)).unwrap();
        assert_eq!(first, 1);
        let before = here(&place);
        change();
        if n % 3 > 0 {
            std::thread::sleep(Duration::from_millis(310));
            place.sql("UPDATE t SET x = 'newest' WHERE n = 9");
            place.once(&hasty);
        }
        match reader.query_row(ALL, [], |row| row.get::<_, String>(0)) {
            Ok(found) => {
                read_on += 1;
                assert_eq!(found, before);
            }
            Err(e) => {
                again += 1;
                assert_eq!(e.sqlite_error().unwrap().extended_code, ffi::SQLITE_BUSY_SNAPSHOT, "{e}");
            }
        }
        let _ = reader.execute_batch("ROLLBACK");
        // A store that keeps batches for no time may refuse once: the next look lists it.
        let newest = reader.query_row(ALL, [], |row| row.get::<_, String>(0)).unwrap_or_else(|_| all(&reader));
        assert_eq!(newest, here(&place));
    }
    assert!(read_on > 0 && again > 0, "{read_on}, {again}");
}

#[test]
fn readers_beside_a_shipper_see_whole_states() {
    let place = Place::new(60);
    place.sql("CREATE TABLE sums(one, two); INSERT INTO sums VALUES (0, 0)");
    place.once(&[]);
    let shipper = ["--interval", "5ms", "--levels", "100ms,1s", "--keep-batches", "200ms"];
    let shipper = Killed(place.replicate(&shipper).spawn().unwrap());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = |hydrate: u8| {
            let url = place.url();
            let reader = try_open(&format!("poll=0&hydrate={hydrate}&replica={url}")).unwrap();
            let (mut seen, mut last) = (0u32, 0);
            while !ended.load(Ordering::SeqCst) {
                let sums = reader.query_row(
                    "SELECT one, two, (SELECT total(n) FROM t), (SELECT count(x) FROM t) FROM sums",
                    [],
                    |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, f64>(2)?)),
                );
                match sums {
                    Ok((one, two, _)) => {
                        assert_eq!(one, two);
                        assert!(one >= last, "{one} behind {last}");
                        seen += u32::from(one != last);
                        last = one;
                    }
                    Err(e) => assert_eq!(e.sqlite_error_code(), Some(ErrorCode::DatabaseBusy), "{e}"),
                }
            }
            seen
        };
        let readers = [scope.spawn(move || reads(0)), scope.spawn(move || reads(1))];
        let db = place.open();
        for n in 1..=300 {
            db.execute_batch(&format!(
                "BEGIN; UPDATE sums SET one = {n}; UPDATE t SET x = randomblob(300) WHERE n % 7 = {n} % 7; UPDATE sums \
                 SET two = {n}; COMMIT"
            ))
            .unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        ended.store(true, Ordering::SeqCst);
        for reader in readers {
            assert!(reader.join().unwrap() > 10);
        }
    });
    drop(shipper);
    place.once(&[]);
    assert_eq!(all(&open(&place)), here(&place));
}

#[test]
fn a_local_copy_is_read_without_the_store() {
    let place = Place::new(3000);
    place.once(&[]);
    place.sql("DELETE FROM t WHERE n % 3 = 0");
    place.once(&[]);
    let reader = try_open(&format!("poll=0&cache_size=1m&hydrate=1&replica={}", place.url())).unwrap();
    let away = place.dir.path().join("away");
    // Until the copy is whole, pages come from the store.
    until("the copy is whole", || {
        std::fs::rename(place.store(), &away).unwrap();
        let read = reader.query_row(ALL, [], |row| row.get::<_, String>(0));
        std::fs::rename(&away, place.store()).unwrap();
        read.is_ok_and(|read| read == here(&place))
    });
    place.sql("UPDATE t SET x = 'new' WHERE n % 100 = 1; DELETE FROM t WHERE n > 2800");
    place.once(&[]);
    assert_eq!(all(&reader), here(&place));
    assert_eq!(text(&reader, "PRAGMA integrity_check"), "ok");
    text(&reader, "PRAGMA onewrite_txid='1'");
    assert_eq!(text(&reader, "SELECT count(*) || '' FROM t"), "3000");
}

#[test]
fn a_store_that_is_damaged_or_away_gives_no_wrong_row() {
    let place = Place::new(400);
    place.once(&[]);
    let whole = here(&place);
    let name = place.store().join("ltx/0").join(&place.names(0)[0]);
    let bytes = std::fs::read(&name).unwrap();
    let mut random = fastrand::Rng::with_seed(11);
    let mut refused = 0;
    for _ in 0..60 {
        let mut broken = bytes.clone();
        match random.u8(..3) {
            0 => broken.truncate(random.usize(..bytes.len())),
            1 => *broken.iter_mut().rev().nth(random.usize(..400)).unwrap() ^= 1 << random.u8(..8),
            _ => broken[random.usize(..bytes.len())] ^= 1 << random.u8(..8),
        }
        std::fs::write(&name, &broken).unwrap();
        let read = try_open(&format!("poll=0&replica={}", place.url()))
            .and_then(|db| db.query_row(ALL, [], |row| row.get::<_, String>(0)));
        refused += u32::from(read.is_err());
        assert!(read.is_err() || read == Ok(whole.clone()));
    }
    assert_eq!(refused, 60, "a file of this size is verified whole");
    std::fs::write(&name, &bytes).unwrap();
    let reader = open(&place);
    assert_eq!(all(&reader), whole);
    std::fs::remove_dir_all(place.store()).unwrap();
    // It reads the state that it knows, from memory.
    assert_eq!(text(&reader, "SELECT n || '' FROM t WHERE n = 1"), "1");
    assert!(try_open("poll=0&replica=file:///no/such/store").is_err());
}

/// The library, in a stock shell.
fn shell(bucket: &s3::Place, more: &str, sql: &str) -> Option<String> {
    place::installed("sqlite3")?;
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let library: PathBuf = [deps.join("libonewrite_replica.so"), deps.parent().unwrap().join("libonewrite_replica.so")]
        .into_iter()
        .find(|path| path.exists())
        .expect("it is built with its crate");
    let mut command = Command::new("sqlite3");
    command.arg("-bail").arg(":memory:").arg(format!(".load {}", library.display()));
    command.arg(format!(".open 'file:app.db?vfs=onewrite-replica&{more}'")).arg(sql);
    command.env("ONEWRITE_REPLICA", bucket.url("a/b")).env("NO_PROXY", "127.0.0.1");
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret").env("HOME", bucket.dir.path());
    command.env("LITESTREAM_AZURE_ACCOUNT_KEY", dialect::AZURE_KEY).env("AWS_EC2_METADATA_DISABLED", "true");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

#[test]
fn a_stock_shell_reads_a_bucket_with_few_requests() {
    let bucket = s3::Place::new();
    bucket.sql(
        "CREATE TABLE big(n INTEGER PRIMARY KEY, x); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
         WHERE i < 10000) INSERT INTO big SELECT i, randomblob(800) FROM n",
    );
    let ship = || {
        assert!(
            bucket.run(&["replicate", "--once", bucket.file.to_str().unwrap(), &bucket.url("a/b")]).status.success()
        )
    };
    ship();
    let requests = || bucket.bucket.lock().unwrap().requests.len();
    let before = requests();
    let Some(one) = shell(&bucket, "", "SELECT length(x) FROM big WHERE n = 5000") else { return };
    assert_eq!(one, "800");
    let opened = requests() - before;
    let before = requests();
    let sum = shell(&bucket, "", "SELECT count(*) || ' ' || total(length(x)) FROM big; PRAGMA onewrite_txid").unwrap();
    assert_eq!(sum, "10000 8000000.0\n1");
    let scanned = requests() - before;
    // Ten listings and an index, a few for a row; 2,500 pages come in parts of at most 1 MiB.
    assert!(opened <= 22 && scanned <= 50, "{opened}, {scanned}");
}
