//! A replica that follows: killed at any moment, read meanwhile, refused after wrong changes.

use crate::place;

use place::{Killed, Place, rows, said, until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn follow(place: &Place, replica: &Path, more: &[&str]) -> Command {
    let mut command = place.program(&["follow"]);
    command.args(more).arg(place.url()).arg(replica);
    command
}

fn once(place: &Place, replica: &Path) -> String {
    let output = follow(place, replica, &["--once", "-v"]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn refused(place: &Place, replica: &Path) -> String {
    let output = follow(place, replica, &["--once"]).output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    said(&output)
}

/// Follows the advice of the messages.
fn move_away(replica: &Path) {
    let name = replica.file_name().unwrap().to_str().unwrap();
    for file in std::fs::read_dir(replica.parent().unwrap()).unwrap() {
        let file = file.unwrap();
        if file.file_name().to_str().unwrap().starts_with(name) {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

/// All bytes, except those of page 1 that opening and closing may change.
fn bytes(file: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(file).unwrap();
    for range in [24..28, 92..100] {
        bytes[range].fill(0);
    }
    bytes
}

fn new() -> (Place, PathBuf) {
    let place = Place::new(300);
    let replica = place.dir.path().join("replica.db");
    (place, replica)
}

#[test]
fn shipped_batches_are_applied() {
    let (place, replica) = new();
    place.once(&[]);
    assert!(once(&place, &replica).contains("transaction 0000000000000001"));
    let changes = [
        "UPDATE t SET x = 'new' WHERE n % 50 = 7",
        "DELETE FROM t WHERE n > 40; VACUUM",
        "INSERT INTO t SELECT n + 5000, randomblob(3000) FROM t",
        "CREATE TABLE u(x); INSERT INTO u VALUES (randomblob(200000)); DROP TABLE u; PRAGMA auto_vacuum=1; VACUUM",
        "DELETE FROM t WHERE n % 2",
    ];
    for change in changes {
        place.sql(change);
        place.once(&[]);
        let told = once(&place, &replica);
        assert!(told.contains(" applied, "), "{told}");
        assert!(bytes(&replica) == bytes(&place.file), "after {change}");
    }
    assert!(!once(&place, &replica).contains("applied"), "nothing is left");
}

#[test]
fn one_that_is_killed_at_its_beginning_begins_again() {
    let (place, replica) = new();
    place.sql("INSERT INTO t SELECT n + 1000, randomblob(5000) FROM t");
    place.once(&[]);
    let mut random = fastrand::Rng::new();
    let mut unmade = 0;
    for _ in 0..40 {
        let follower = Killed(follow(&place, &replica, &["--interval", "10ms"]).spawn().unwrap());
        std::thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        drop(follower);
        unmade += u32::from(!replica.exists());
        if replica.exists() {
            move_away(&replica);
        }
    }
    assert!(unmade > 0, "none was killed early enough");
    once(&place, &replica);
    assert!(bytes(&replica) == bytes(&place.file));
}

/// Single batches were merged and removed.
#[test]
fn one_that_was_away_goes_on_with_merged_files() {
    let (place, replica) = new();
    let hasty = ["--levels", "1ms,30ms", "--keep-batches", "0s"];
    place.once(&hasty);
    for n in 0..9 {
        std::thread::sleep(Duration::from_millis(5));
        place.sql(&format!("UPDATE t SET x = randomblob(100) WHERE n % 9 = {n}; INSERT INTO t VALUES (1000 + {n}, 1)"));
        place.once(&hasty);
        if n == 2 {
            once(&place, &replica);
        }
    }
    let told = once(&place, &replica);
    assert!(told.contains("ltx/1/") || told.contains("ltx/2/"), "{told}");
    assert!(bytes(&replica) == bytes(&place.file));
}

#[cfg_attr(windows, ignore = "names paths and places as Linux has them")]
#[test]
fn a_file_that_is_no_replica_is_refused() {
    let (place, replica) = new();
    place.once(&[]);
    std::fs::copy(&place.file, &replica).unwrap();
    assert!(refused(&place, &replica).contains("is there, and is no replica"));
    move_away(&replica);
    once(&place, &replica);
    // Another program writes to it between two runs.
    let db = onewrite_rusqlite::open(&replica).unwrap();
    db.execute_batch("INSERT INTO t VALUES (-1, 'mine')").unwrap();
    drop(db);
    assert!(refused(&place, &replica).contains("has been written to by others"));
    move_away(&replica);
    place.sql("DELETE FROM t WHERE n = 3");
    place.once(&[]);
    once(&place, &replica);
    assert!(bytes(&replica) == bytes(&place.file));
    std::fs::rename(place.store(), place.dir.path().join("emptied")).unwrap();
    place.once(&[]);
    assert!(refused(&place, &replica).contains("was it emptied?"));
    move_away(&replica);
    let output = place.program(&["follow", "--once", "file:///nowhere/store"]).arg(&replica).output().unwrap();
    assert!(!output.status.success() && said(&output).contains("there is no directory"), "{}", said(&output));
    assert!(!replica.exists());
}

#[test]
fn pages_of_another_size_are_made_anew() {
    let (place, replica) = new();
    place.once(&[]);
    once(&place, &replica);
    place.sql("PRAGMA page_size=1024; VACUUM");
    place.once(&[]);
    assert!(refused(&place, &replica).contains("pages of 1024 bytes"));
    move_away(&replica);
    once(&place, &replica);
    assert!(bytes(&replica) == bytes(&place.file));
}

#[test]
fn one_that_is_written_to_while_it_follows_ends() {
    let (place, replica) = new();
    place.once(&[]);
    let mut follower = Killed(follow(&place, &replica, &["--interval", "10ms"]).spawn().unwrap());
    until("it is made", || replica.exists());
    let db = onewrite_rusqlite::open(&replica).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch("INSERT INTO t VALUES (-1, 'mine')").unwrap();
    place.sql("DELETE FROM t WHERE n = 3");
    place.once(&[]);
    until("it ends", || follower.0.try_wait().unwrap().is_some_and(|status| !status.success()));
    assert_eq!(db.query_row("SELECT count(*) FROM t WHERE n = 3", [], |row| row.get::<_, i64>(0)), Ok(1));
}

/// A database that is written, shipped and followed each 5 ms. The follower is killed again and
/// again, and the replica is read.
#[test]
fn readers_keep_snapshots_and_one_that_is_killed_goes_on() {
    let (place, replica) = new();
    place.sql("CREATE TABLE a(n); CREATE TABLE b(n); INSERT INTO a VALUES (1000); INSERT INTO b VALUES (0)");
    let replicate = ["--interval", "5ms", "--levels", "50ms,200ms", "--keep-batches", "300ms"];
    let _shipper = Killed(place.replicate(&replicate).stderr(Stdio::null()).spawn().unwrap());
    until("the first snapshot", || !place.names(0).is_empty());
    let run = || {
        let mut command = follow(&place, &replica, &["--interval", "5ms"]);
        Killed(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
    };
    let mut follower = Some(run());
    until("the replica is made", || replica.exists());
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let db = place.open();
            let mut n = 0;
            while !ends.load(Ordering::Relaxed) {
                n += 1;
                db.execute_batch(&format!(
                    "BEGIN IMMEDIATE; UPDATE a SET n = n - 1; UPDATE t SET x = randomblob(50) WHERE n = {n} % 300;
                     UPDATE b SET n = n + 1; COMMIT"
                ))
                .unwrap();
            }
        });
        let reader = scope.spawn(|| {
            let db = onewrite_rusqlite::open(&replica).unwrap();
            db.busy_timeout(Duration::from_secs(10)).unwrap();
            let look = || -> (i64, i64) {
                db.query_row("SELECT a.n + b.n, b.n FROM a, b", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
            };
            let (mut last, mut seen) = (-1, 0);
            while !ends.load(Ordering::Relaxed) {
                db.execute_batch("BEGIN").unwrap();
                let (sum, n) = look();
                std::thread::sleep(Duration::from_millis(30));
                assert_eq!(look(), (sum, n), "the snapshot stays");
                db.execute_batch("COMMIT").unwrap();
                assert_eq!(sum, 1000, "of one moment");
                assert!(n >= last, "never backwards");
                seen += i32::from(n > last);
                last = n;
            }
            seen
        });
        let mut random = fastrand::Rng::new();
        let end = Instant::now() + Duration::from_secs(6);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(random.u64(20..500)));
            follower.take();
            follower = Some(run());
        }
        ends.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 10, "it moves");
    });
    let count = |file: &Path| {
        let db = onewrite_rusqlite::open(file).unwrap();
        db.query_row("SELECT a.n || ' ' || b.n || ' ' || (SELECT group_concat(hex(x)) FROM t) FROM a, b", [], |row| {
            row.get::<_, String>(0)
        })
        .unwrap()
    };
    until("all is there", || count(&replica) == count(&place.file));
    drop(follower);
    once(&place, &replica);
    let sound: String =
        onewrite_rusqlite::open(&replica).unwrap().query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(sound, "ok");
    let _ = rows(&replica);
}
