//! Real processes on one database: they write and read in turn, are killed at any moment, and leave
//! a plain file.

use crate::support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
#[cfg(unix)]
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use support::remote::Remote;

const WORKER: &str = "ONEWRITE_TEST_WORKER";

/// Started by [`killed_processes_lose_nothing`]: a process that writes rows of its own and reads
/// all rows.
#[test]
fn worker() {
    let Ok(order) = std::env::var(WORKER) else { return };
    let (name, path) = order.split_once(' ').unwrap();
    let name: i64 = name.parse().unwrap();
    let db = onewrite_rusqlite::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(20)).unwrap();
    let newest = |db: &Connection| -> i64 {
        db.query_row("SELECT ifnull(max(n), 0) FROM t WHERE worker = ?1", [name], |row| row.get(0)).unwrap()
    };
    let mut out = std::io::stdout();
    let mut n = newest(&db);
    writeln!(out, "@ {n}").unwrap();
    let size = |n: i64| if n % 97 == 0 { 60_000 } else { 40 + n % 300 };
    loop {
        n += 1;
        if n % 7 == 0 {
            // A transaction of several statements: all of it or nothing.
            db.execute_batch("BEGIN IMMEDIATE").unwrap();
            db.execute("INSERT INTO t VALUES (?1, ?2, zeroblob(?3))", (name, n, size(n))).unwrap();
            n += 1;
            db.execute("INSERT INTO t VALUES (?1, ?2, zeroblob(?3))", (name, n, size(n))).unwrap();
            db.execute("UPDATE pairs SET n = n + 1 WHERE worker = ?1", [name]).unwrap();
            db.execute_batch("COMMIT").unwrap();
        } else {
            db.execute("INSERT INTO t VALUES (?1, ?2, zeroblob(?3))", (name, n, size(n))).unwrap();
        }
        writeln!(out, "@ {n}").unwrap();
        if n % 50 == 0 {
            // No process's rows have a gap, in one snapshot.
            let gaps: i64 = db
                .query_row(
                    "SELECT count(*) FROM (SELECT max(n) - count(*) AS g FROM t GROUP BY worker) WHERE g <> 0",
                    [],
                    |r| r.get(0),
                )
                .unwrap();
            assert_eq!(gaps, 0);
        }
        if n % 400 == 0 {
            db.execute("DELETE FROM t WHERE worker = ?1 AND n % 97 = 0 AND length(x) = 0", [name]).unwrap();
        }
    }
}

struct Worker {
    child: Child,
    reader: std::thread::JoinHandle<()>,
}

fn start(name: usize, path: &Path, acknowledged: &Arc<Vec<AtomicU64>>) -> Worker {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::worker", "--nocapture"]).stdout(Stdio::piped());
    command.env(WORKER, format!("{name} {}", path.display()));
    let mut child = loop {
        match command.spawn() {
            // Under load Wine starts a process at the second try (`ERROR_INTERNAL_ERROR`).
            Err(e) if cfg!(windows) && e.raw_os_error() == Some(1359) => std::thread::sleep(Duration::from_millis(50)),
            spawned => break spawned.unwrap(),
        }
    };
    let out = BufReader::new(child.stdout.take().unwrap());
    let acknowledged = acknowledged.clone();
    let reader = std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if let Some(n) = line.strip_prefix("@ ").and_then(|n| n.parse().ok()) {
                acknowledged[name].fetch_max(n, Ordering::SeqCst);
            }
        }
    });
    Worker { child, reader }
}

fn kill(mut worker: Worker) {
    assert!(worker.child.try_wait().unwrap().is_none(), "a worker ended by itself");
    worker.child.kill().unwrap();
    worker.child.wait().unwrap();
    worker.reader.join().unwrap();
}

/// Whether stock SQLite finds a plain, whole file with every row that was acknowledged.
fn judge(path: &Path, acknowledged: &[AtomicU64]) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[19], 1, "the mark is off");
    let db = Connection::open(path).unwrap();
    let whole: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(whole, "ok");
    for (name, n) in acknowledged.iter().enumerate() {
        let (max, count): (i64, i64) = db
            .query_row("SELECT ifnull(max(n), 0), count(*) FROM t WHERE worker = ?1", [name as i64], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!(max, count, "worker {name}: rows without a gap");
        assert!(max as u64 >= n.load(Ordering::SeqCst), "worker {name}: {max} rows of {n:?} acknowledged");
    }
    let names = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("-onewrite-kept")));
}

#[test]
fn killed_processes_lose_nothing() {
    let seconds = std::env::var("ONEWRITE_TEST_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(6);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let workers = 4;
    let keeper = onewrite_rusqlite::open(&path).unwrap();
    keeper
        .execute_batch(
            "CREATE TABLE t(worker INT, n INT, x BLOB, PRIMARY KEY(worker, n)); CREATE TABLE pairs(worker INT, n INT);
             INSERT INTO pairs VALUES (0, 0), (1, 0), (2, 0), (3, 0)",
        )
        .unwrap();
    let acknowledged: Arc<Vec<AtomicU64>> = Arc::new((0..workers).map(|_| AtomicU64::new(0)).collect());
    let mut running: BTreeMap<usize, Worker> =
        (0..workers).map(|name| (name, start(name, &path, &acknowledged))).collect();
    let mut keeper = Some(keeper);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rng = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let mut random = move |below: u64| {
        rng ^= rng << 13;
        rng ^= rng >> 7;
        rng ^= rng << 17;
        rng % below
    };
    let mut kills = 0;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20 + random(150)));
        let all = random(10) == 0;
        if all {
            // No process is left: the next one recovers.
            keeper = None;
        }
        for name in 0..workers {
            if (all || random(3) == 0)
                && let Some(worker) = running.remove(&name)
            {
                kill(worker);
                kills += 1;
            }
        }
        for name in 0..workers {
            running.entry(name).or_insert_with(|| start(name, &path, &acknowledged));
        }
        if keeper.is_none() && random(3) == 0 {
            keeper = Some(onewrite_rusqlite::open(&path).unwrap());
        }
        if let Some(keeper) = &keeper {
            keeper.busy_timeout(Duration::from_secs(20)).unwrap();
            let _: i64 = keeper.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        }
    }
    for worker in std::mem::take(&mut running).into_values() {
        kill(worker);
    }
    drop(keeper);
    // The last one was killed: one more opens, and closes in order.
    let last = onewrite_rusqlite::open(&path).unwrap();
    let _: i64 = last.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
    drop(last);
    judge(&path, &acknowledged);
    let rows: u64 = acknowledged.iter().map(|n| n.load(Ordering::SeqCst)).sum();
    println!("{kills} kills, {rows} rows acknowledged");
    assert!(kills > 5 && rows > 100);
}

#[test]
fn two_processes_take_turns_and_the_last_leaves_a_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (mut a, mut b) = (Remote::ours(&path), Remote::ours(&path));
    a.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x)").unwrap();
    for n in 0..200 {
        let process = if n % 2 == 0 { &mut a } else { &mut b };
        process.sql(&format!("INSERT INTO t VALUES ({n}, hex(randomblob(200)))")).unwrap();
        assert_eq!(a.sql("SELECT count(*) FROM t").unwrap(), (n + 1).to_string());
        assert_eq!(b.sql("SELECT max(n) FROM t").unwrap(), n.to_string());
    }
    // A stock SQLite is refused and damages nothing.
    let mut stock = Remote::stock(&path);
    assert_eq!(stock.sql("SELECT count(*) FROM t").unwrap_err().0, rusqlite::ffi::SQLITE_BUSY);
    // A reader keeps its snapshot while the other process writes and checkpoints over it.
    b.sql("BEGIN").unwrap();
    assert_eq!(b.sql("SELECT count(*) FROM t").unwrap(), "200");
    let before = b.sql("SELECT group_concat(x) FROM t").unwrap();
    for round in 0..5 {
        a.sql(&format!("UPDATE t SET x = hex(randomblob(150 + {round}))")).unwrap();
        assert_eq!(a.sql("PRAGMA onewrite_checkpoint").unwrap(), "ok");
        assert_eq!(b.sql("SELECT group_concat(x) FROM t").unwrap(), before);
    }
    // Work that takes the whole database is refused while another process has it; WAL mode is
    // answered for.
    a.sql("PRAGMA page_size=1024").unwrap();
    a.sql("VACUUM").unwrap_err();
    assert_eq!(a.sql("PRAGMA journal_mode=WAL").unwrap(), "wal");
    b.sql("COMMIT").unwrap();
    assert_ne!(b.sql("SELECT group_concat(x) FROM t").unwrap(), before);
    // A transaction bigger than memory allows, seen by the other at once and whole.
    a.sql("INSERT INTO t SELECT n + 1000, zeroblob(100000) FROM t").unwrap();
    assert_eq!(b.sql("SELECT count(*) FROM t").unwrap(), "400");
    a.close();
    assert_eq!(b.sql("PRAGMA integrity_check").unwrap(), "ok");
    b.sql("DELETE FROM t WHERE n >= 1000").unwrap();
    b.close();
    assert_eq!(stock.sql("SELECT count(*) FROM t").unwrap(), "200");
    assert_eq!(stock.sql("PRAGMA integrity_check").unwrap(), "ok");
}

/// Stock SQLite waits for a database in use as for any that is locked, whichever of its processes
/// goes (rule StockKeptOut).
#[test]
fn stock_sqlite_finds_the_database_locked_until_a_crash_leaves_it_alone() {
    const BUSY: i32 = rusqlite::ffi::SQLITE_BUSY;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let refused = |sql: &str| Remote::stock(&path).sql(sql).unwrap_err().0;
    let mut a = Remote::attached(&path);
    a.sql("CREATE TABLE t(n)").unwrap();
    assert_eq!(refused("SELECT count(*) FROM t"), BUSY);
    let (mut b, mut c) = (Remote::attached(&path), Remote::attached(&path));
    assert_eq!(b.sql("SELECT count(*) FROM t").unwrap(), "0");
    assert_eq!(c.sql("SELECT count(*) FROM t").unwrap(), "0");
    // Those that stay do nothing about it.
    a.kill();
    for sql in ["SELECT count(*) FROM t", "INSERT INTO t VALUES (1)", "VACUUM"] {
        assert_eq!(refused(sql), BUSY, "{sql}");
    }
    b.close();
    assert_eq!(refused("SELECT count(*) FROM t"), BUSY);
    c.sql("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(refused("SELECT count(*) FROM t"), BUSY);
    // No process is left: the mark says that the newest rows are in the log.
    c.kill();
    assert_eq!(refused("SELECT count(*) FROM t"), rusqlite::ffi::SQLITE_NOTADB);
    let mut d = Remote::attached(&path);
    assert_eq!(d.sql("SELECT count(*) FROM t").unwrap(), "1");
    assert_eq!(refused("SELECT count(*) FROM t"), BUSY);
    d.close();
    assert_eq!(Remote::stock(&path).sql("SELECT count(*) FROM t").unwrap(), "1");
}

/// A database that other users may only read, and its writer.
#[cfg(unix)]
fn read_only_for_others() -> (tempfile::TempDir, PathBuf, Remote) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut writer = Remote::ours(&path);
    writer.sql("CREATE TABLE t(n)").unwrap();
    set_mode(dir.path(), 0o755);
    for file in [path.clone(), dir.path().join("db-onewrite")] {
        set_mode(&file, 0o444);
    }
    (dir, path, writer)
}

/// A process of another user that reads it.
#[cfg(unix)]
fn observer(path: &Path, idle: &str) -> Result<Remote, (i32, String)> {
    let mut remote = Remote::start();
    remote.ask("become 65534").unwrap();
    remote.ask(&format!("ours {}?mode=ro&busy_ms=0&idle={idle}", path.display())).map(|_| remote)
}

/// An idle observer stays attached behind the last writer, for it could not come again; a writer
/// that finds it gone leaves a plain file.
#[cfg(unix)]
#[test]
fn an_idle_observer_reads_on_behind_the_last_writer() {
    let (_dir, path, mut writer) = read_only_for_others();
    let mut observer = observer(&path, "300ms").unwrap();
    writer.sql("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(observer.sql("SELECT count(*) FROM t").unwrap(), "1");
    writer.close();
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(observer.sql("SELECT count(*) FROM t").unwrap(), "1");
}

/// An observer that detached comes again beside another one, after the last writer has closed.
#[cfg(unix)]
#[test]
fn an_idle_observer_comes_again_beside_another_behind_the_last_writer() {
    let (dir, path, mut writer) = read_only_for_others();
    let observer = |idle: &str| observer(&path, idle);
    const COUNT: &str = "SELECT count(*) FROM t";
    let (mut idle, mut stays) = (observer("300ms").unwrap(), observer("0").unwrap());
    writer.sql("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!((idle.sql(COUNT).unwrap(), stays.sql(COUNT).unwrap()), ("1".to_owned(), "1".to_owned()));
    std::thread::sleep(Duration::from_millis(700));
    writer.sql("INSERT INTO t VALUES (2)").unwrap();
    writer.close();
    assert_eq!((stays.sql(COUNT).unwrap(), idle.sql(COUNT).unwrap()), ("2".to_owned(), "2".to_owned()));
    // A new one comes, too, and lets the others in.
    stays.close();
    let mut third = observer("0").unwrap();
    assert_eq!(third.sql(COUNT).unwrap(), "2");
    idle.kill();
    assert_eq!(observer("0").unwrap().sql(COUNT).unwrap(), "2");
    third.kill();
    // Behind the last one only a writer may.
    let refused = observer("0").and_then(|mut remote| remote.sql(COUNT)).unwrap_err();
    assert_eq!(refused.0 & 0xff, rusqlite::ffi::SQLITE_CANTOPEN);
    for file in [path.clone(), dir.path().join("db-onewrite")] {
        set_mode(&file, 0o644);
    }
    let mut writer = Remote::ours(&path);
    assert_eq!(writer.sql(COUNT).unwrap(), "2");
    writer.close();
    assert_eq!(Remote::stock(&path).sql(COUNT).unwrap(), "2");
}

/// A user who may only read the database reads beside the writers, keeps its snapshot while they
/// checkpoint, and sees their commits (rule AnnounceThenLook).
#[cfg(unix)]
#[test]
fn a_read_only_user_reads_beside_writers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let observer = |settings: &str| {
        let mut remote = Remote::start();
        remote.ask("become 65534").unwrap();
        remote.ask(&format!("ours {}?busy_ms=0&idle=0{settings}", path.display())).map(|_| remote)
    };
    let mut writer = Remote::ours(&path);
    writer.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x)").unwrap();
    for n in 0..100 {
        writer.sql(&format!("INSERT INTO t VALUES ({n}, hex(randomblob(200)))")).unwrap();
    }
    set_mode(dir.path(), 0o755);
    for file in [path.clone(), dir.path().join("db-onewrite")] {
        set_mode(&file, 0o444);
    }
    const ALL: &str = "SELECT count(*) || group_concat(x) FROM t";
    let mut reader = observer("&mode=ro").unwrap();
    let mut second = observer("").unwrap();
    assert_eq!(reader.sql(ALL).unwrap(), writer.sql(ALL).unwrap());
    assert_eq!(second.sql("INSERT INTO t VALUES (-1, 1)").unwrap_err().0 & 0xff, rusqlite::ffi::SQLITE_READONLY);
    reader.sql("BEGIN").unwrap();
    let before = reader.sql(ALL).unwrap();
    for round in 0..5 {
        writer.sql(&format!("UPDATE t SET x = hex(randomblob(150 + {round}))")).unwrap();
        writer.sql("PRAGMA onewrite_checkpoint").unwrap();
        assert_eq!(reader.sql(ALL).unwrap(), before);
        assert_eq!(second.sql(ALL).unwrap(), writer.sql(ALL).unwrap());
    }
    reader.sql("COMMIT").unwrap();
    assert_eq!(reader.sql(ALL).unwrap(), writer.sql(ALL).unwrap());
    // The log goes round several times.
    for n in 100..400 {
        writer.sql(&format!("INSERT INTO t VALUES ({n}, hex(randomblob(10000)))")).unwrap();
        if n % 50 == 0 {
            assert_eq!(reader.sql(ALL).unwrap(), writer.sql(ALL).unwrap());
        }
    }
    // All writers leave: the rows can still be read, and the next one goes on from there.
    let all = writer.sql(ALL).unwrap();
    writer.close();
    assert_eq!((reader.sql(ALL).unwrap(), second.sql(ALL).unwrap()), (all.clone(), all));
    for file in [path.clone(), dir.path().join("db-onewrite")] {
        set_mode(&file, 0o644);
    }
    let mut writer = Remote::ours(&path);
    writer.sql("DELETE FROM t WHERE n >= 100").unwrap();
    assert_eq!(reader.sql(ALL).unwrap(), writer.sql(ALL).unwrap());
    reader.close();
    second.kill();
    // A crash: no process is there to say how far the log goes, nor to bring it home.
    writer.kill();
    set_mode(&path, 0o444);
    set_mode(&dir.path().join("db-onewrite"), 0o444);
    let refused = observer("&mode=ro").and_then(|mut remote| remote.sql(ALL)).unwrap_err();
    assert_eq!(refused.0 & 0xff, rusqlite::ffi::SQLITE_CANTOPEN);
    assert!(refused.1.contains("onewrite recover"), "{}", refused.1);
    set_mode(&path, 0o644);
    set_mode(&dir.path().join("db-onewrite"), 0o644);
    let mut writer = Remote::ours(&path);
    assert_eq!(writer.sql("SELECT count(*) FROM t").unwrap(), "100");
    assert_eq!(writer.sql("PRAGMA integrity_check").unwrap(), "ok");
    writer.close();
    assert_eq!(Remote::stock(&path).sql("SELECT count(*) FROM t").unwrap(), "100");
}

#[cfg(unix)]
fn set_mode(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A commit that changes nothing makes SQLite count its cache as that of the next change counter,
/// which another process gives to another state (rule CacheKnowsItsState).
#[test]
fn a_commit_that_changes_nothing_leaves_no_cache_that_looks_newer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (mut a, mut b) = (Remote::ours(&path), Remote::ours(&path));
    a.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x)").unwrap();
    a.sql("INSERT INTO t VALUES (1, 0)").unwrap();
    let mut expected = 0;
    for round in 0..20 {
        for _ in 0..round % 4 {
            for sql in ["BEGIN", "UPDATE t SET x = x + 1", "UPDATE t SET x = x - 1", "COMMIT"] {
                a.sql(sql).unwrap();
            }
        }
        for _ in 0..round % 3 {
            expected += 1;
            b.sql(&format!("UPDATE t SET x = {expected}")).unwrap();
        }
        assert_eq!(a.sql("SELECT x FROM t").unwrap(), expected.to_string(), "round {round}");
        if round % 5 == 0 {
            expected += 1;
            a.sql(&format!("UPDATE t SET x = {expected}")).unwrap();
        }
    }
}

#[test]
fn threads_of_one_process_and_another_process_share_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = onewrite_rusqlite::open(&path).unwrap();
    db.execute_batch("CREATE TABLE t(n)").unwrap();
    let errors = Mutex::new(Vec::new());
    let mut other = Remote::ours(&path);
    other.ask("sql PRAGMA busy_timeout=20000").unwrap();
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let db = onewrite_rusqlite::open(&path).unwrap();
                db.busy_timeout(Duration::from_secs(20)).unwrap();
                for n in 0..100 {
                    if let Err(e) = db.execute("INSERT INTO t VALUES (?1)", [n]) {
                        errors.lock().unwrap().push(e.to_string());
                    }
                }
            });
        }
        for n in 0..100 {
            if let Err(e) = other.sql(&format!("INSERT INTO t VALUES ({n})")) {
                errors.lock().unwrap().push(format!("{e:?}"));
            }
        }
    });
    assert_eq!(*errors.lock().unwrap(), Vec::<String>::new());
    let count: i64 = db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 400);
}

#[test]
fn a_commit_that_changes_nothing_leaves_no_cache_that_passes_for_newer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (mut a, mut b) = (Remote::ours(&path), Remote::ours(&path));
    a.sql("CREATE TABLE t(n INTEGER PRIMARY KEY, x)").unwrap();
    a.sql("INSERT INTO t VALUES (1, 'aaa')").unwrap();
    for round in 0..4 {
        assert_eq!(b.sql("SELECT count(*) FROM t").unwrap(), "1");
        // Its pages are written, and as they were: SQLite's cache has the next change counter all
        // the same.
        let before = a.sql("SELECT x FROM t").unwrap();
        a.sql("BEGIN").unwrap();
        a.sql("UPDATE t SET x = 'xyz'").unwrap();
        a.sql(&format!("UPDATE t SET x = '{before}'")).unwrap();
        a.sql("COMMIT").unwrap();
        let x = format!("b{round:02}");
        b.sql(&format!("UPDATE t SET x = '{x}'")).unwrap();
        assert_eq!(a.sql("SELECT x FROM t").unwrap(), x, "round {round}");
    }
}

#[test]
fn a_command_that_needs_the_database_alone_names_the_process_in_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let (mut a, mut b) = (Remote::ours(&path), Remote::ours(&path));
    a.sql("CREATE TABLE t(n)").unwrap();
    b.sql("INSERT INTO t VALUES (1)").unwrap();
    let in_the_way = |refused: Result<String, (i32, String)>, code: i32| {
        let (found, message) = refused.unwrap_err();
        assert_eq!(found & 0xff, code, "{message}");
        assert!(message.contains("is open in another process through onewrite"), "{message}");
    };
    in_the_way(a.sql("PRAGMA onewrite_log_size='8m'"), rusqlite::ffi::SQLITE_BUSY);
    a.sql("PRAGMA page_size=8192").unwrap();
    in_the_way(a.sql("VACUUM"), rusqlite::ffi::SQLITE_BUSY);
    // Another scheme than the one in use is refused before anything is read.
    let mut c = Remote::start();
    c.ask(&format!("ours {}?busy_ms=0&scheme=lsmvbt", path.display())).unwrap();
    let (code, message) = c.sql("SELECT * FROM t").unwrap_err();
    assert_eq!(code & 0xff, rusqlite::ffi::SQLITE_BUSY, "{message}");
    assert!(message.contains("is open in another process, and scheme=lsmvbt needs it alone"), "{message}");
    b.close();
    c.close();
    a.sql("VACUUM").unwrap();
    assert_eq!(a.sql("PRAGMA page_size").unwrap(), "8192");
    a.close();
}

/// A process that opened the file to read joins the writers, before or after them. It keeps its
/// snapshot while they go on, and takes no part in the turn to write.
#[test]
fn a_process_that_only_reads_sees_the_commits_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE t(n INTEGER PRIMARY KEY, x)").unwrap();
    let read_only = || {
        let mut remote = Remote::start();
        remote.ask(&format!("ours {}?busy_ms=0&mode=ro", path.display())).unwrap();
        remote
    };
    let mut early = read_only();
    assert_eq!(early.sql("SELECT count(*) FROM t").unwrap(), "0");
    let mut writer = Remote::ours(&path);
    writer.sql("INSERT INTO t VALUES (0, hex(randomblob(200)))").unwrap();
    let mut late = read_only();
    for n in 1..200 {
        writer.sql(&format!("INSERT INTO t VALUES ({n}, hex(randomblob(200)))")).unwrap();
        for reader in [&mut early, &mut late] {
            assert_eq!(reader.sql("SELECT max(n) FROM t").unwrap(), n.to_string());
        }
    }
    let (code, _) = late.sql("DELETE FROM t").unwrap_err();
    assert_eq!(code & 0xff, rusqlite::ffi::SQLITE_READONLY);
    // Its snapshot blocks no process, and none takes it away.
    late.sql("BEGIN").unwrap();
    let before = late.sql("SELECT group_concat(x) FROM t").unwrap();
    for round in 0..5 {
        writer.sql(&format!("UPDATE t SET x = hex(randomblob(150 + {round}))")).unwrap();
        assert_eq!(writer.sql("PRAGMA onewrite_checkpoint").unwrap(), "ok");
        assert_eq!(late.sql("SELECT group_concat(x) FROM t").unwrap(), before);
    }
    late.sql("COMMIT").unwrap();
    assert_eq!(late.sql("SELECT count(*) FROM t").unwrap(), "200");
    // The writer ends in order: the last to leave makes a plain file of it, even if it came to
    // read.
    early.close();
    writer.close();
    assert_eq!(late.sql("SELECT count(*) FROM t").unwrap(), "200");
    late.close();
    let mut stock = Remote::stock(&path);
    assert_eq!(stock.sql("PRAGMA integrity_check").unwrap(), "ok");
    assert_eq!(stock.sql("SELECT count(*) FROM t").unwrap(), "200");
}

/// A process that may write the log but not the file reads it beside the writers. If it is the last
/// one, its leftovers wait for the next that may write.
#[cfg(unix)]
#[test]
fn a_process_that_may_only_read_the_file_joins_through_the_log() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("db");
    let log = dir.path().join("db-onewrite");
    let Some(mut reader) = Remote::start_as(Some(65534)) else {
        eprintln!("skipped: no other user");
        return;
    };
    let mut writer = Remote::ours(&path);
    writer.sql("CREATE TABLE t(n INTEGER PRIMARY KEY)").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = format!("ours {}?busy_ms=0", path.display());
    std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o666)).unwrap();
    reader.ask(&open).unwrap();
    for n in 0..50 {
        writer.sql(&format!("INSERT INTO t VALUES ({n})")).unwrap();
        assert_eq!(reader.sql("SELECT max(n) FROM t").unwrap(), n.to_string());
    }
    let (code, _) = reader.sql("DELETE FROM t").unwrap_err();
    assert_eq!(code & 0xff, rusqlite::ffi::SQLITE_READONLY);
    // It takes no turn: a process that may write brings a dead one's rows home.
    writer.kill();
    assert_eq!(reader.sql("SELECT count(*) FROM t").unwrap(), "50");
    reader.close();
    let mut next = Remote::ours(&path);
    assert_eq!(next.sql("SELECT count(*) FROM t").unwrap(), "50");
    next.close();
    assert_eq!(Remote::stock(&path).sql("PRAGMA integrity_check").unwrap(), "ok");
}

/// Rule AnnounceThenLook: `locking_mode=exclusive` keeps the readers of other processes out once
/// it has written, and while the process lives.
#[test]
fn an_exclusive_connection_keeps_other_processes_out() {
    const BUSY: i32 = rusqlite::ffi::SQLITE_BUSY;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let mut other = Remote::ours(&path);
    other.sql("CREATE TABLE t(x)").unwrap();
    other.sql("INSERT INTO t VALUES (1)").unwrap();
    let mut db = Remote::ours(&path);
    db.sql("PRAGMA locking_mode=exclusive").unwrap();
    assert_eq!(db.sql("SELECT count(*) FROM t").unwrap(), "1");
    other.sql("BEGIN").unwrap();
    assert_eq!(other.sql("SELECT count(*) FROM t").unwrap(), "1", "it has not written");
    assert_eq!(db.sql("INSERT INTO t VALUES (2)").unwrap_err().0, BUSY, "somebody reads");
    assert_eq!(other.sql("SELECT count(*) FROM t").unwrap(), "1");
    other.sql("COMMIT").unwrap();
    db.sql("INSERT INTO t VALUES (2)").unwrap();
    let mut late = Remote::ours(&path);
    for reader in [&mut other, &mut late] {
        assert_eq!(reader.sql("SELECT count(*) FROM t").unwrap_err().0, BUSY);
        assert_eq!(reader.sql("INSERT INTO t VALUES (0)").unwrap_err().0, BUSY);
    }
    db.sql("PRAGMA locking_mode=normal").unwrap();
    assert_eq!(db.sql("SELECT count(*) FROM t").unwrap(), "2");
    assert_eq!(late.sql("SELECT count(*) FROM t").unwrap(), "2");
    late.sql("INSERT INTO t VALUES (3)").unwrap();
    db.sql("PRAGMA locking_mode=exclusive").unwrap();
    db.sql("INSERT INTO t VALUES (4)").unwrap();
    assert_eq!(late.sql("SELECT count(*) FROM t").unwrap_err().0, BUSY);
    db.kill();
    for reader in [&mut other, &mut late] {
        assert_eq!(reader.sql("SELECT count(*) FROM t").unwrap(), "4");
    }
    other.sql("INSERT INTO t VALUES (5)").unwrap();
    late.close();
    other.close();
    let stock = rusqlite::Connection::open(&path).unwrap();
    let rows: i64 = stock.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 5);
}

/// The shortest of three: a busy machine may take longer now and then.
fn least(mut f: impl FnMut()) -> Duration {
    let mut timed = || {
        let begun = Instant::now();
        f();
        begun.elapsed()
    };
    timed().min(timed()).min(timed())
}

#[test]
fn a_transaction_that_another_process_keeps_open_costs_the_busy_timeout_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept.db");
    let db = onewrite_rusqlite::open(&path).unwrap();
    db.execute_batch("CREATE TABLE t(v)").unwrap();
    let mut other = Remote::ours(&path);
    other.sql("BEGIN IMMEDIATE").unwrap();
    other.sql("INSERT INTO t VALUES (1)").unwrap();
    for ms in [0, 300] {
        db.busy_timeout(Duration::from_millis(ms)).unwrap();
        // It was 2 s and 40 s.
        let took = least(|| {
            let refused = db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err();
            assert_eq!(refused.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
        });
        assert!(took >= Duration::from_millis(ms) && took < Duration::from_secs(1), "{ms} ms became {took:?}");
        let took =
            least(|| assert_eq!(db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap(), 0));
        assert!(took < Duration::from_millis(180), "a reader waited for {took:?}");
    }
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            other.sql("COMMIT").unwrap();
        });
        db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    });
    assert_eq!(db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0)).unwrap(), 2);
}

#[test]
fn a_transaction_that_reads_and_writes_waits_for_a_process_that_thinks_and_not_for_a_dead_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("thinks.db");
    let db = onewrite_rusqlite::open(&path).unwrap();
    db.execute_batch("CREATE TABLE t(v); INSERT INTO t VALUES (0)").unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    let mut other = Remote::ours(&path);
    let read_and_write = |db: &Connection| {
        db.execute_batch("BEGIN").unwrap();
        let v: i64 = db.query_row("SELECT v FROM t", [], |row| row.get(0)).unwrap();
        db.execute("UPDATE t SET v = ?1", [v + 1]).unwrap();
        db.execute_batch("COMMIT").unwrap();
        v + 1
    };
    assert_eq!(read_and_write(&db), 1);
    // It knows from the others that it will write.
    other.sql("BEGIN").unwrap();
    assert_eq!(other.sql("SELECT v FROM t").unwrap(), "1");
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            other.sql("UPDATE t SET v = v + 1").unwrap();
            other.sql("COMMIT").unwrap();
        });
        assert_eq!(read_and_write(&db), 3);
    });
    other.sql("BEGIN").unwrap();
    assert_eq!(other.sql("SELECT v FROM t").unwrap(), "3");
    std::thread::scope(|s| {
        s.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            other.kill();
        });
        assert_eq!(read_and_write(&db), 4, "one that dies while it thinks keeps nothing");
    });
}

#[test]
fn a_stale_snapshot_moves_forward_over_commits_of_another_process_to_other_pages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forward.db");
    let db = onewrite_rusqlite::open(&path).unwrap();
    db.execute_batch("CREATE TABLE t(v); CREATE TABLE u(v); INSERT INTO t VALUES (0); INSERT INTO u VALUES (0)")
        .unwrap();
    let mut other = Remote::ours(&path);
    other.sql("UPDATE u SET v = 1").unwrap();
    let value = |db: &Connection, table: &str| -> i64 {
        db.query_row(&format!("SELECT v FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    let mut moved = 0;
    for n in 1..=30 {
        // Reads alone are forgotten soon: no place is taken.
        db.execute_batch("BEGIN; SELECT v FROM t; COMMIT; BEGIN; SELECT v FROM t; COMMIT; BEGIN").unwrap();
        assert_eq!(value(&db, "t"), n - 1);
        other.sql("UPDATE u SET v = v + 1").unwrap();
        match db.execute_batch("UPDATE t SET v = v + 1") {
            Ok(()) => {
                moved += 1;
                assert_eq!(value(&db, "u"), n + 1);
                db.execute_batch("COMMIT").unwrap();
            }
            // A checkpoint was between, or the cache had the other page.
            Err(_) => db.execute_batch("ROLLBACK; UPDATE t SET v = v + 1").unwrap(),
        }
        assert_eq!(other.sql("SELECT v FROM t").unwrap(), n.to_string());
    }
    assert!(moved > 0);
    other.close();
    drop(db);
    let stock = Connection::open(&path).unwrap();
    assert_eq!((value(&stock, "t"), value(&stock, "u")), (30, 31));
}

/// A connection with two files, and another process on the first.
fn over_two_files(dir: &Path) -> (Connection, Remote) {
    let (first, second) = (dir.join("first.db"), dir.join("second.db"));
    let db = onewrite_rusqlite::open(&first).unwrap();
    db.execute("ATTACH ?1 AS second", [format!("file:{}?vfs=onewrite", second.display())]).unwrap();
    db.execute_batch("CREATE TABLE t(v); CREATE TABLE second.u(v)").unwrap();
    let mut other = Remote::ours(&first);
    assert_eq!(other.sql("SELECT count(*) FROM t").unwrap(), "0");
    (db, other)
}

const BOTH: &str = "SELECT (SELECT count(*) FROM t) || (SELECT count(*) FROM u)";

#[test]
fn a_commit_over_two_files_goes_on_beside_a_process_that_reads_one() {
    let dir = tempfile::tempdir().unwrap();
    let (db, mut other) = over_two_files(dir.path());
    other.sql("BEGIN").unwrap();
    assert_eq!(other.sql("SELECT count(*) FROM t").unwrap(), "0");
    db.busy_timeout(Duration::ZERO).unwrap();
    for n in 1..=3 {
        db.execute_batch("BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); COMMIT").unwrap();
        assert_eq!(db.query_row(BOTH, [], |r| r.get::<_, String>(0)).unwrap(), format!("{n}{n}"));
        assert_eq!(other.sql("SELECT count(*) FROM t").unwrap(), "0", "its snapshot stays");
    }
    other.sql("COMMIT").unwrap();
    assert_eq!(other.sql("SELECT count(*) FROM t").unwrap(), "3");
    other.sql("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(db.query_row(BOTH, [], |r| r.get::<_, String>(0)).unwrap(), "43");
}

#[test]
fn a_write_on_a_second_file_waits_for_a_process_that_writes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (db, mut other) = over_two_files(dir.path());
    other.sql("BEGIN IMMEDIATE").unwrap();
    other.sql("INSERT INTO t VALUES (0)").unwrap();
    db.busy_timeout(Duration::from_millis(200)).unwrap();
    db.execute_batch("BEGIN; INSERT INTO u VALUES (1)").unwrap();
    let refused = db.execute_batch("INSERT INTO t VALUES (1)").unwrap_err();
    assert_eq!(refused.sqlite_error().map(|e| e.extended_code), Some(rusqlite::ffi::SQLITE_BUSY));
    assert!(!db.is_autocommit(), "the transaction goes on");
    other.sql("COMMIT").unwrap();
    db.execute_batch("INSERT INTO t VALUES (1); COMMIT").unwrap();
    assert_eq!(db.query_row(BOTH, [], |r| r.get::<_, String>(0)).unwrap(), "21");
}
