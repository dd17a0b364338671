//! Stock SQLite on the simulated disk: a few seeds, and one test for each fault that the campaign
//! found.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onewrite_core::disk::sim::{Op, SimConfig, SimDisk, SplitMix64};
use onewrite_core::disk::{Disk, LockKind, OpenMode};
use onewrite_core::inspect::layout::slot;
use onewrite_sim::baton::{self, GoesOn, Program};
use onewrite_sim::check::{Counts, Violation};
use onewrite_sim::history::Campaign;
use onewrite_sim::hook::HookDisk;
use onewrite_sim::sql::attached;
use onewrite_sim::sql::check::{Allowed, Setting, check, empty, log_path, path, said, write_again};
use onewrite_sim::sql::history;
use onewrite_sim::sql::print::print;
use onewrite_sim::sql::process::{BESIDE, Level, level};
use onewrite_sim::sql::statements::Shape;
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode};

/// SQLite's locks (`os.h`).
const RESERVED: u64 = 0x4000_0001;
const SHARED: u64 = RESERVED + 1;
const SHARED_BYTES: u64 = 510;

const SHAPE: Shape =
    Shape { page_bytes: 1024, page_bytes_max: 4096, auto_vacuum: 0, bytes_max: 100_000, big_bytes: 50_000 };

fn setting() -> Setting {
    let options = [("log_size", "256k"), ("busy_ms", "0"), ("idle", "0"), ("wal", "stock")];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Setting {
        options,
        shape: SHAPE,
        counts: Arc::default(),
        sticky: false,
        durable: true,
        in_page: false,
        absorbs: false,
        mapped_bytes: 0,
    }
}

fn sim() -> SimDisk {
    SimDisk::new(SimConfig { atomic_unit: 512, ..SimConfig::default() })
}

/// Each seed once found a fault: pages read ahead of an older snapshot, and a slot that recovery
/// left unflushed.
#[test]
fn histories_of_sql_that_once_failed() {
    let campaign = Campaign { scheme: None, atomic_unit: None, trace: false, steps: 60, faults: false };
    for seed in [7_901_111, 8_901_077] {
        if let Err(v) = history::run(seed, &campaign, &Arc::default()) {
            panic!("seed {seed}: {}", v.what);
        }
    }
}

/// Until the close is on the medium, a power cut brings the record back that asks for the decision
/// (rule PreparedThenDecided). The process that closes did not write that record.
#[test]
fn a_decision_stays_until_the_close_of_each_file_is_durable() {
    let (sim, processes) = (SimDisk::new(SimConfig::default()), [level(0), level(1)]);
    processes.iter().for_each(|process| process.boot(HookDisk::new(sim.clone(), None)));
    let options = setting().options;
    let open = |process: usize| {
        let db = processes[process].open(0, &options).unwrap();
        db.execute("ATTACH ?1 AS side", [processes[process].uri(1, &options)]).unwrap();
        db
    };
    open(0).execute_batch("CREATE TABLE main.t(a); CREATE TABLE side.t(a)").unwrap();
    let first = open(0);
    first.execute_batch("INSERT INTO main.t VALUES (1); INSERT INTO side.t VALUES (1)").unwrap();
    let both = "BEGIN; INSERT INTO main.t VALUES (2); INSERT INTO side.t VALUES (2); COMMIT";
    open(1).execute_batch(both).unwrap();
    drop(first);
    let again = open(0);
    // Nothing changes in the other file, which has no record then.
    again.execute_batch("BEGIN; INSERT INTO main.t VALUES (3); UPDATE side.t SET a = a; COMMIT").unwrap();
    processes[1].halt();
    processes[1].boot(HookDisk::new(sim.crash_by(&mut |_| 0), None));
    for (file, rows) in [(1, 2), (0, 3)] {
        let db = processes[1].open(file, &options).unwrap();
        let found: u32 = db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(found, rows);
    }
    drop(again);
    processes.iter().for_each(Level::halt);
}

#[test]
fn random_sql_survives_its_crashes() {
    for (scheme, atomic_unit) in [("log", 512), ("log", 4096), ("wal-opt", 512)] {
        let campaign = Campaign {
            scheme: Some(scheme.to_owned()),
            atomic_unit: Some(atomic_unit),
            trace: false,
            steps: 20,
            faults: false,
        };
        let counts: Arc<Counts> = Arc::default();
        for seed in 1..4 {
            if let Err(v) = history::run(seed, &campaign, &counts) {
                panic!("seed {seed}, {scheme}, atomic unit {atomic_unit}: {}", v.what);
            }
        }
        assert!(counts.crashes.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn transactions_over_several_files_survive_their_crashes() {
    let counts: Arc<Counts> = Arc::default();
    // The long ones once failed, some with an earlier protocol: a mark behind home, an unflushed
    // slot of the session before, streamed images released by an error in doubt.
    for (seed, steps) in (1..6).map(|seed| (seed, 12)).chain([
        (78, 60),
        (100_031, 60),
        (300_028, 60),
        (400_049, 60),
        (300_041, 60),
        (5_400_074, 60),
    ]) {
        if let Err(v) = attached::run(seed, steps, false, &counts) {
            panic!("seed {seed}: {}", v.what);
        }
    }
    assert!(counts.crashes.load(Ordering::Relaxed) > 100 && counts.commits.load(Ordering::Relaxed) > 10);
}

/// A crash within leaves a hot journal that leads back to WAL mode (I1, I5).
#[test]
fn wal_mode_is_left_through_any_crash() {
    let (setting, sim, process) = (setting(), sim(), level(0));
    process.boot(HookDisk::new(sim.clone(), None));
    let db = process.open(0, &setting.options).unwrap();
    db.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1); PRAGMA journal_mode=WAL; INSERT INTO t VALUES (2)")
        .unwrap();
    let allowed = Allowed::only([print(&db, "main").unwrap(), empty()]);
    db.close().unwrap();
    let broken: Arc<Mutex<Option<Violation>>> = Arc::default();
    let (inner, at_point) = (broken.clone(), setting.clone());
    let mut rng = SplitMix64::new(1);
    let point = Box::new(move |_: onewrite_sim::hook::Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        for _ in 0..3 {
            let crashed = inside().crash(rng.next_u64());
            if inner.lock().is_none() {
                let checked = check(&at_point, &crashed, &allowed, &allowed, &mut rng, 1, 0).err();
                *inner.lock() = checked;
            }
        }
    });
    process.boot(HookDisk::new(sim.survive(), Some(point)));
    let db = process.open(0, &setting.options).unwrap();
    db.execute_batch("PRAGMA journal_mode=DELETE").unwrap();
    db.close().unwrap();
    assert_eq!(broken.lock().take().map(|v| v.what), None);
    assert!(setting.counts.crashes.load(Ordering::Relaxed) > 20);
}

/// A connection that keeps its locks leaves WAL mode with its own journal: before home changes, the
/// journal's name and earlier removals are durable (I1, rule JournalInOrder).
#[test]
fn wal_mode_is_left_under_a_lock_through_any_crash() {
    let sim = SimDisk::new(SimConfig { atomic_unit: 512, sync_covers_creation: false, ..SimConfig::default() });
    let (setting, process) = (setting(), level(0));
    let allowed: Arc<Mutex<Option<Allowed>>> = Arc::default();
    let broken: Arc<Mutex<Option<Violation>>> = Arc::default();
    let (inner, at_point, at_allowed) = (broken.clone(), setting.clone(), allowed.clone());
    let mut rng = SplitMix64::new(1);
    let point = Box::new(move |_: onewrite_sim::hook::Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        let Some(allowed) = at_allowed.lock().clone() else { return };
        for _ in 0..8 {
            let crashed = inside().crash(rng.next_u64());
            if inner.lock().is_none() {
                *inner.lock() = check(&at_point, &crashed, &allowed, &allowed, &mut rng, 1, 0).err();
            }
        }
    });
    process.boot(HookDisk::new(sim.clone(), Some(point)));
    let db = process.open(0, &setting.options).unwrap();
    db.execute_batch(
        "PRAGMA locking_mode=EXCLUSIVE; CREATE TABLE t(a); INSERT INTO t VALUES (1); PRAGMA journal_mode=WAL;
         INSERT INTO t VALUES (2)",
    )
    .unwrap();
    *allowed.lock() = Some(Allowed::only([print(&db, "main").unwrap(), empty()]));
    db.execute_batch("PRAGMA journal_mode=DELETE").unwrap();
    assert_eq!(broken.lock().take().map(|v| v.what), None);
    assert!(setting.counts.crashes.load(Ordering::Relaxed) > 20);
}

/// SQLite cuts the file after it ended its journal, which NORMAL does not flush. A VACUUM to larger
/// pages has no copy of the pages that it cuts off, so the end is durable before (rule
/// JournalInOrder).
#[test]
fn a_vacuum_to_larger_pages_survives_a_crash_while_the_file_is_cut() {
    for journal in ["DELETE", "TRUNCATE", "PERSIST"] {
        for synchronous in ["FULL", "NORMAL"] {
            vacuum_to_larger_pages(&format!("PRAGMA journal_mode={journal}; PRAGMA synchronous={synchronous}"));
        }
    }
}

fn vacuum_to_larger_pages(settings: &str) {
    let (setting, sim, process) = (setting(), sim(), level(0));
    let allowed: Arc<Mutex<Option<Allowed>>> = Arc::default();
    let broken: Arc<Mutex<Option<Violation>>> = Arc::default();
    let (inner, at_point, at_allowed) = (broken.clone(), setting.clone(), allowed.clone());
    let mut rng = SplitMix64::new(1);
    let point = Box::new(move |operation: onewrite_sim::hook::Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        let Some(allowed) = at_allowed.lock().clone().filter(|_| operation.op != Op::Write) else { return };
        for _ in 0..20 {
            let crashed = inside().crash(rng.next_u64());
            if inner.lock().is_none() {
                *inner.lock() = check(&at_point, &crashed, &allowed, &allowed, &mut rng, 1, 0).err();
            }
        }
    });
    process.boot(HookDisk::new(sim, Some(point)));
    let db = process.open(0, &setting.options).unwrap();
    db.execute_batch(
        "PRAGMA page_size=512; CREATE TABLE t(a); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
         INSERT INTO t SELECT printf('%0150d', i) FROM n; DELETE FROM t WHERE rowid % 2 > 0",
    )
    .unwrap();
    *allowed.lock() = Some(Allowed::only([print(&db, "main").unwrap(), empty()]));
    db.execute_batch(&format!("{settings}; PRAGMA page_size=2048; VACUUM")).unwrap();
    let page_bytes: u32 = db.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    assert_eq!((page_bytes, broken.lock().take().map(|v| v.what)), (2048, None), "{settings}");
    assert!(setting.counts.crashes.load(Ordering::Relaxed) > 20, "{settings}");
}

/// A process is killed between a super-journal's removal and its flush. Recovery of one file
/// believes the removal, and power goes before the other is read (I1, rule
/// JournalInOrder).
#[test]
fn two_files_stay_together_through_a_kill_and_a_power_cut() {
    let (setting, sim, process) = (setting(), sim(), level(0));
    process.boot(HookDisk::new(sim.clone(), None));
    let db = process.open(0, &setting.options).unwrap();
    db.execute("ATTACH ?1 AS side", [process.uri(1, &setting.options)]).unwrap();
    db.execute_batch("CREATE TABLE t(a); CREATE TABLE side.s(a); INSERT INTO t VALUES (1); INSERT INTO s VALUES (1)")
        .unwrap();
    let prints = || ["main", "side"].map(|schema| print(&db, schema).unwrap());
    let before = prints();
    db.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (2); INSERT INTO s VALUES (2)").unwrap();
    let after = prints();
    db.execute_batch("ROLLBACK").unwrap();
    let kills: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
    let kept = kills.clone();
    drop(db);
    // Once more: every moment after a removal is kept.
    let point = Box::new(move |operation: onewrite_sim::hook::Operation<'_>, inside: &dyn Fn() -> SimDisk| {
        if operation.op == Op::SyncDir {
            kept.lock().push(inside().survive());
        }
    });
    process.boot(HookDisk::new(sim.survive(), Some(point)));
    let db = process.open(0, &setting.options).unwrap();
    db.execute("ATTACH ?1 AS side", [process.uri(1, &setting.options)]).unwrap();
    db.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (2); INSERT INTO s VALUES (2); COMMIT").unwrap();
    process.halt();
    drop(db);
    let allowed = Allowed { files: [0, 1].map(|file: usize| vec![before[file], after[file]]), pairs: vec![[1, 1]] };
    let broken: Arc<Mutex<Option<Violation>>> = Arc::default();
    for killed in kills.lock().drain(..) {
        let (inner, at_point, allowed) = (broken.clone(), setting.clone(), allowed.clone());
        let point = Box::new(move |_: onewrite_sim::hook::Operation<'_>, inside: &dyn Fn() -> SimDisk| {
            for seed in 0..20 {
                let crashed = inside().crash(seed);
                if inner.lock().is_none() {
                    let checked = check(&at_point, &crashed, &allowed, &allowed, &mut SplitMix64::new(seed), 1, 0);
                    *inner.lock() = checked.err();
                }
            }
        });
        process.boot(HookDisk::new(killed, Some(point)));
        // The kill may have come while the log was made.
        let _ = process.open(0, &setting.options).and_then(|db| print(&db, "main"));
        process.halt();
    }
    assert_eq!(broken.lock().take().map(|v| v.what), None);
}

/// A log that ends early while a big transaction is brought home beside it is an error, not a page
/// of zeros (I7).
#[test]
fn a_streamed_image_that_cannot_be_read_is_not_committed() {
    let mut setting = setting();
    setting.options.push(("stream_size".to_owned(), "64k".to_owned()));
    // This scheme commits several files by stepping aside.
    setting.options.push(("scheme".to_owned(), "dash".to_owned()));
    let mut failures = 0;
    for nth in (1..400).step_by(7) {
        let (sim, process) = (sim(), level(0));
        process.boot(HookDisk::new(sim.clone(), None));
        let db = process.open(0, &setting.options).unwrap();
        db.execute("ATTACH ?1 AS side", [process.uri(1, &setting.options)]).unwrap();
        db.execute_batch("PRAGMA cache_size=6; CREATE TABLE t(a); CREATE TABLE side.s(a)").unwrap();
        let prints = || ["main", "side"].map(|schema| print(&db, schema).unwrap());
        let before = prints();
        let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200)";
        db.execute_batch(&format!(
            "BEGIN IMMEDIATE; INSERT INTO s VALUES (1); {rows} INSERT INTO t SELECT hex(zeroblob(600)) || i FROM n"
        ))
        .unwrap();
        let after = prints();
        sim.shorten_nth_read(nth, 503);
        sim.shorten_nth_read(nth + 1, 0);
        failures += u32::from(db.execute_batch("COMMIT").is_err());
        let allowed = Allowed { files: [0, 1].map(|file: usize| vec![before[file], after[file]]), pairs: vec![[1, 1]] };
        let checked = check(&setting, &sim.survive(), &allowed, &allowed, &mut SplitMix64::new(nth), 1, 0);
        assert_eq!(checked.err().map(|v| v.what), None, "read {nth}");
        process.halt();
    }
    assert!(failures > 5, "{failures}");
}

/// A full disk keeps a connection from stepping aside after the mark is off. With its lock it
/// continues, and its next commit goes through a log again (I7).
#[test]
fn a_connection_that_keeps_its_lock_goes_on_behind_a_full_disk() {
    // The VACUUM of the larger file has streamed its images to the log, which is gone.
    for (blob, stream) in [(20_000, "1M"), (150_000, "64k")] {
        let mut failures = 0;
        for room in (0..60).map(|n| n * 30_000) {
            let (mut setting, sim, process) = (setting(), sim(), level(0));
            setting.options.push(("stream_size".to_owned(), stream.to_owned()));
            process.boot(HookDisk::new(sim.clone(), None));
            let db = process.open(0, &setting.options).unwrap();
            db.execute_batch(&format!(
                "PRAGMA locking_mode=EXCLUSIVE; CREATE TABLE t(a, b); INSERT INTO t VALUES (1, zeroblob({blob}));"
            ))
            .unwrap();
            sim.set_capacity(sim.used_bytes() + room);
            let vacuumed = db.execute_batch("PRAGMA page_size=1024; VACUUM");
            sim.set_capacity(SimConfig::default().capacity);
            let failed = vacuumed.is_err();
            if let Err(e) = vacuumed {
                assert_eq!(e.sqlite_error_code(), Some(ErrorCode::DiskFull), "room for {room} bytes");
                assert!(!e.to_string().contains("without a log"), "{e}");
                failures += 1;
            }
            db.execute_batch("UPDATE t SET a = 2; INSERT INTO t VALUES (3, 3)").unwrap();
            let expected = print(&db, "main").unwrap();
            let allowed = Allowed::only([expected, empty()]);
            let crashed = sim.crash_by(&mut |_| 0);
            let checked = check(&setting, &crashed, &allowed, &allowed, &mut SplitMix64::new(1), 1, 0);
            assert_eq!(checked.err().map(|v| v.what), None, "room for {room} bytes, failed: {failed}");
            db.close().unwrap();
            process.halt();
        }
        assert!((1..60).contains(&failures), "{failures}");
    }
}

/// The room that it checks is still there when home is written: to take off the mark gives reserved
/// room back.
#[test]
fn a_step_aside_that_finds_no_room_ends_one_transaction_alone() {
    let outside = tempfile::tempdir().unwrap();
    for rows in [0, 50] {
        let mut failures = 0;
        for room in (0..40).map(|n| n * 8192) {
            let (setting, sim, process) = (setting(), sim(), level(0));
            process.boot(HookDisk::new(sim.clone(), None));
            let db = process.open(0, &setting.options).unwrap();
            if rows > 0 {
                db.execute_batch("CREATE TABLE t(a)").unwrap();
            }
            for _ in 0..rows {
                db.execute_batch("INSERT INTO t VALUES (zeroblob(900))").unwrap();
            }
            // Not a database of onewrite.
            let other = outside.path().join(format!("{rows}-{room}"));
            db.execute("ATTACH ?1 AS side", [format!("file:{}?vfs=unix", other.display())]).unwrap();
            db.execute_batch("CREATE TABLE side.s(a)").unwrap();
            let both = "BEGIN; CREATE TABLE IF NOT EXISTS t(a); INSERT INTO t VALUES (zeroblob(70000)); \
                        INSERT INTO s VALUES (1)";
            db.execute_batch(both).unwrap();
            sim.set_capacity(sim.used_bytes() + room);
            let committed = db.execute_batch("COMMIT");
            sim.set_capacity(SimConfig::default().capacity);
            if let Err(e) = committed {
                assert_eq!(e.sqlite_error_code(), Some(ErrorCode::DiskFull), "{rows} rows, room for {room} bytes");
                failures += 1;
                if !db.is_autocommit() {
                    db.execute_batch("ROLLBACK").unwrap();
                }
                db.execute_batch(both).unwrap();
                db.execute_batch("COMMIT").unwrap();
            }
            let counts = ["t", "s"].map(|table| {
                db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).unwrap()
            });
            assert_eq!(counts, [rows + 1, 1]);
            db.close().unwrap();
            process.halt();
        }
        assert!((1..40).contains(&failures), "{failures}");
    }
}

/// It writes nothing for the rollback of a transaction whose first write was refused (rule
/// RollbackIsReal).
#[test]
fn a_connection_that_keeps_its_lock_rolls_back_beside_another_process_that_is_about_to_write() {
    let (mut failures, mut refused) = (0, 0);
    for (mode, room) in ["DELETE", "MEMORY"].into_iter().flat_map(|mode| (0..60).map(move |n| (mode, n * 30_000))) {
        let (setting, sim, process) = (setting(), sim(), level(0));
        process.boot(HookDisk::new(sim.clone(), None));
        let db = process.open(0, &setting.options).unwrap();
        db.execute_batch(
            "PRAGMA locking_mode=EXCLUSIVE; CREATE TABLE t(a, b); INSERT INTO t VALUES (1, zeroblob(20000))",
        )
        .unwrap();
        let before = print(&db, "main").unwrap();
        sim.set_capacity(sim.used_bytes() + room);
        failures += u32::from(db.execute_batch("PRAGMA page_size=1024; VACUUM").is_err());
        sim.set_capacity(SimConfig::default().capacity);
        db.execute_batch(&format!("PRAGMA journal_mode={mode}")).unwrap();
        let other = sim.open(&path(0), OpenMode::ReadWrite).unwrap();
        assert!(!other.try_lock(SHARED, SHARED_BYTES, LockKind::Exclusive).unwrap(), "room for {room} bytes");
        if other.try_lock(RESERVED, 1, LockKind::Exclusive).unwrap() {
            db.execute_batch("BEGIN; UPDATE t SET a = 2").unwrap();
            match db.execute_batch("COMMIT") {
                Ok(()) => assert!(db.is_autocommit()),
                Err(e) => {
                    // SQLite does not tell of the rollback of a journal in memory.
                    let expected = [ErrorCode::SystemIoFailure, ErrorCode::DatabaseBusy][usize::from(mode == "DELETE")];
                    assert_eq!(e.sqlite_error_code(), Some(expected), "room for {room} bytes");
                    refused += 1;
                    match mode {
                        "DELETE" => db.execute_batch("ROLLBACK").unwrap(),
                        _ => other.unlock(RESERVED, 1).unwrap(),
                    }
                    assert_eq!(print(&db, "main").unwrap(), before, "room for {room} bytes");
                }
            }
        }
        drop(other);
        db.execute_batch("UPDATE t SET a = 3; INSERT INTO t VALUES (4, 4)").unwrap();
        let allowed = Allowed::only([print(&db, "main").unwrap(), empty()]);
        let checked = check(&setting, &sim.survive(), &allowed, &allowed, &mut SplitMix64::new(1), 1, 0);
        assert_eq!(checked.err().map(|v| v.what), None, "room for {room} bytes");
        db.close().unwrap();
        process.halt();
    }
    assert!((1..120).contains(&failures) && refused > 1, "{failures} {refused}");
}

/// A rollback needs no room: with a kept lock SQLite otherwise repeats it, and reads nothing until
/// there is some.
#[test]
fn a_connection_that_keeps_its_lock_reads_on_a_full_disk() {
    let (mut setting, sim, process) = (setting(), sim(), level(0));
    setting.options.push(("stream_size".to_owned(), "64k".to_owned()));
    process.boot(HookDisk::new(sim.clone(), None));
    let db = process.open(0, &setting.options).unwrap();
    db.execute_batch(
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=10; CREATE TABLE t(a, b); WITH RECURSIVE n(i) AS \
         (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 400) INSERT INTO t SELECT i, randomblob(900) FROM n",
    )
    .unwrap();
    let before = print(&db, "main").unwrap();
    sim.set_capacity(sim.used_bytes());
    let refused = db.execute_batch("UPDATE t SET b = randomblob(900)").unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::DiskFull));
    assert_eq!(print(&db, "main").unwrap(), before);
    sim.set_capacity(SimConfig::default().capacity);
    db.execute_batch("INSERT INTO t VALUES (3, 3)").unwrap();
    let allowed = Allowed::only([print(&db, "main").unwrap(), empty()]);
    let checked = check(&setting, &sim.survive(), &allowed, &allowed, &mut SplitMix64::new(1), 1, 0);
    assert_eq!(checked.err().map(|v| v.what), None);
    process.halt();
}

/// A connection that keeps its lock, and cannot step aside, reads as a reader does, also ahead: not
/// the pages that it has overwritten since.
#[test]
fn a_connection_that_keeps_its_lock_reads_its_commits() {
    let (setting, sim, process) = (setting(), sim(), level(0));
    process.boot(HookDisk::new(sim.clone(), None));
    let db = process.open(0, &setting.options).unwrap();
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<60)";
    db.execute_batch(&format!(
        "PRAGMA page_size=4096; PRAGMA locking_mode=EXCLUSIVE; CREATE TABLE t(k INTEGER PRIMARY KEY, v, b);
         {rows} INSERT INTO t SELECT i, 0, zeroblob(3000) FROM n"
    ))
    .unwrap();
    let sum = || db.query_row("SELECT sum(v + 0 * length(b)) FROM t", [], |row| row.get::<_, i64>(0)).unwrap();
    for round in 0..4 {
        sim.set_capacity(sim.used_bytes() + 60_000);
        db.execute_batch("PRAGMA page_size=1024; VACUUM").unwrap_err();
        sim.set_capacity(SimConfig::default().capacity);
        // The last pages that were read ahead come first.
        let newest: i64 = db.query_row("SELECT v FROM t ORDER BY k DESC", [], |row| row.get(0)).unwrap();
        assert_eq!((newest, sum()), (round, 60 * round));
        db.execute_batch("UPDATE t SET v = v + 1").unwrap();
        let _: String = db.query_row("PRAGMA onewrite_checkpoint", [], |row| row.get(0)).unwrap();
    }
    db.close().unwrap();
    process.halt();
}

/// A flush that fails while a connection steps aside leaves a real journal. SQLite rolls back, and
/// must not remove the super-journal that makes the journal count (I1, rule RollbackIsReal).
#[test]
fn a_step_aside_that_fails_is_rolled_back_after_a_crash() {
    let mut failures = 0;
    for nth in 1..14 {
        let (mut setting, sim, process) = (setting(), sim(), level(0));
        // This scheme commits several files by stepping aside.
        setting.options.push(("scheme".to_owned(), "dash".to_owned()));
        process.boot(HookDisk::new(sim.clone(), None));
        let db = process.open(0, &setting.options).unwrap();
        db.execute("ATTACH ?1 AS side", [process.uri(1, &setting.options)]).unwrap();
        db.execute_batch(
            "CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 1);
             CREATE TABLE side.s(a UNIQUE, b); INSERT INTO side.s VALUES (1, zeroblob(3000));
             BEGIN IMMEDIATE",
        )
        .unwrap();
        let prints = || ["main", "side"].map(|schema| print(&db, schema).unwrap());
        let before = prints();
        db.execute_batch("INSERT INTO side.s VALUES (2, zeroblob(3000))").unwrap();
        let after = prints();
        sim.fail_nth(Op::Sync, nth, ErrorKind::Other);
        let committed = db.execute_batch("COMMIT");
        failures += u32::from(committed.is_err());
        let mut states = vec![after[1]];
        if committed.is_err() {
            if !db.is_autocommit() {
                // It may fail: the database is poisoned.
                let _ = db.execute_batch("ROLLBACK");
            }
            states.insert(0, before[1]);
        }
        let allowed = Allowed { files: [vec![after[0]], states], pairs: Vec::new() };
        for seed in 0..12 {
            let crashed = sim.crash(seed);
            let checked = check(&setting, &crashed, &allowed, &allowed, &mut SplitMix64::new(seed), 1, 0);
            assert_eq!(checked.err().map(|v| v.what), None, "flush {nth}, crash {seed}");
        }
        process.halt();
        drop(db);
    }
    assert!(failures > 5, "{failures}");
}

/// A transaction over two files is the last of the second one, which stays open beside.
fn one_transaction_over_two_files(process: &Level, setting: &Setting) -> (Connection, Connection) {
    let side = process.open(1, &setting.options).unwrap();
    side.execute_batch("CREATE TABLE s(a)").unwrap();
    let db = process.open(0, &setting.options).unwrap();
    db.execute("ATTACH ?1 AS side", [process.uri(1, &setting.options)]).unwrap();
    db.execute_batch("CREATE TABLE t(a); BEGIN; INSERT INTO t VALUES (1); INSERT INTO s VALUES (1); COMMIT").unwrap();
    (db, side)
}

fn power_cuts_leave(allowed: &Allowed, sim: &SimDisk, setting: &Setting, case: &str) {
    for seed in 0..100 {
        let checked = check(setting, &sim.crash(seed), allowed, allowed, &mut SplitMix64::new(seed), 1, 0);
        assert_eq!(checked.err().map(|v| v.what), None, "{case}, seed: {seed}");
    }
}

/// A file at rest has a log that another program wrote, so it is flushed. That fails, and a second
/// file still needs the decision in it (rule PreparedThenDecided).
#[test]
fn a_decision_outlasts_the_failed_flush_of_a_log_that_was_found() {
    let (setting, sim, process) = (setting(), sim(), level(0));
    process.boot(HookDisk::new(sim.clone(), None));
    let (db, side) = one_transaction_over_two_files(&process, &setting);
    let of_side = print(&side, "main").unwrap();
    db.close().unwrap();
    write_again(&sim, &log_path(0)).unwrap();
    let db = process.open(0, &setting.options).unwrap();
    sim.fail_nth(Op::Sync, 1, ErrorKind::Other);
    db.execute_batch("INSERT INTO t VALUES (2)").unwrap_err();
    let before = print(&db, "main").unwrap();
    power_cuts_leave(&Allowed::only([before, of_side]), &sim, &setting, "behind the failure");
    db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    let after = print(&db, "main").unwrap();
    assert_ne!(after, before);
    power_cuts_leave(&Allowed::only([after, of_side]), &sim, &setting, "behind the next try");
}

/// A file is renamed in use, and its log is set aside for another file of that name. The log stays
/// behind the close, also where a later session than the decision's set it aside (rule
/// PreparedThenDecided).
#[test]
fn a_decision_outlasts_the_close_of_a_log_that_was_set_aside() {
    for later in [false, true] {
        let (setting, sim, process) = (setting(), sim(), level(0));
        process.boot(HookDisk::new(sim.clone(), None));
        let (mut db, side) = one_transaction_over_two_files(&process, &setting);
        if later {
            db.close().unwrap();
            db = process.open(0, &setting.options).unwrap();
            db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
        }
        sim.rename(&path(0), &path(0).with_file_name("moved.db")).unwrap();
        let other = process.open(0, &setting.options).unwrap();
        other.execute_batch("CREATE TABLE t(a)").unwrap();
        db.close().unwrap();
        let prints = [print(&other, "main").unwrap(), print(&side, "main").unwrap()];
        let allowed = Allowed { files: [vec![empty(), prints[0]], vec![prints[1]]], pairs: Vec::new() };
        power_cuts_leave(&allowed, &sim, &setting, &format!("later: {later}"));
    }
}

/// Even without a busy timeout. Its first snapshot tells: for this pragma SQLite reads no schema in
/// another one before.
#[test]
fn a_program_that_starts_again_sees_its_dead_transaction_at_once_or_never() {
    let (setting, process, beside) = (setting(), level(0), level(BESIDE));
    let version = |db: &Connection| db.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap();
    let mut seen = Vec::new();
    for calls in 0.. {
        let sim = sim();
        process.boot(HookDisk::new(sim.clone(), None));
        beside.boot(HookDisk::new(sim.clone(), None));
        let db = process.open(0, &setting.options).unwrap();
        let other = beside.open(0, &setting.options).unwrap();
        db.execute_batch("CREATE TABLE t(k); PRAGMA user_version=1").unwrap();
        // Behind another process's, a record is written before it is flushed.
        other.execute_batch("PRAGMA user_version=2").unwrap();
        process.die_after(calls);
        let done = db.execute_batch("PRAGMA user_version=3").is_ok();
        process.boot(HookDisk::new(sim.clone(), None));
        let again = process.open(0, &setting.options).unwrap();
        let first = version(&again);
        other.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        assert_eq!([version(&again), version(&other)], [first; 2], "dead after {calls} calls");
        seen.push(first);
        if done {
            break;
        }
    }
    assert!(seen.is_sorted() && seen[0] == 2 && seen[seen.len() - 1] == 3, "{seen:?}");
}

/// Opened while the file was at rest, the first read on beside the writer with default settings,
/// which the second's then contradicted.
#[test]
fn connections_that_read_beside_a_writer_may_name_their_settings() {
    let (setting, disk) = (setting(), HookDisk::new(sim(), None));
    let (writing, reading) = (level(0), level(BESIDE));
    writing.boot(disk.clone());
    reading.boot(disk);
    let db = writing.open(0, &setting.options).unwrap();
    db.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    db.close().unwrap();
    let options = [setting.options.clone(), vec![("mode".to_owned(), "ro".to_owned())]].concat();
    let count = |db: &Connection| db.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
    let first = reading.open(0, &options).unwrap();
    assert_eq!(count(&first), Ok(1));
    let db = writing.open(0, &setting.options).unwrap();
    db.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(count(&first), Ok(2));
    let second = reading.open(0, &options).unwrap();
    assert_eq!(count(&second), Ok(2));
}

/// SQLite distrusts its cache behind a failed rollback only where that is an I/O error. Else it
/// took pages of the next transaction for written, and lost them (rule RollbackIsReal).
#[test]
fn a_rollback_needs_no_log_that_was_removed() {
    ["DELETE", "MEMORY"].into_iter().for_each(roll_back_without_log);
}

fn roll_back_without_log(mode: &str) {
    let (process, disk) = (level(0), HookDisk::new(sim(), None));
    process.boot(disk.clone());
    let options = [setting().options, vec![("stream_size".to_owned(), "64k".to_owned())]].concat();
    let db = process.open(0, &options).unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 300) \
                INSERT INTO t SELECT i, randomblob(900) FROM n";
    db.execute_batch(&format!(
        "PRAGMA journal_mode={mode}; PRAGMA synchronous=OFF; PRAGMA cache_size=10; CREATE TABLE t(k INTEGER PRIMARY KEY, b); {fill}"
    ))
    .unwrap();
    db.execute_batch("UPDATE t SET b = 'old' WHERE k = 0; BEGIN; UPDATE t SET b = randomblob(900); UPDATE t SET b = 'lost' WHERE k = 0").unwrap();
    disk.sim().remove(&log_path(0)).unwrap();
    // In a burst of commits one each millisecond asks.
    std::thread::sleep(Duration::from_millis(5));
    db.execute_batch("ROLLBACK").unwrap();
    db.execute_batch("BEGIN IMMEDIATE; UPDATE t SET b = 'new' WHERE k = 0; COMMIT").unwrap();
    let read = |db: &Connection| db.query_row("SELECT b FROM t WHERE k = 0", [], |row| row.get::<_, String>(0));
    assert_eq!(read(&db).unwrap(), "new");
    process.boot(HookDisk::new(disk.sim().survive(), None));
    assert_eq!(read(&process.open(0, &options).unwrap()).unwrap(), "new");
    process.halt();
}

/// The slot before the newest was older than the page size and led to no record. By the first
/// record both say the same (rule SlotBeforeReuse), so either may be damaged without loss (I7).
/// SQLite reads the header once more behind the open, without a lock.
#[test]
fn a_connection_that_reads_opens_while_another_process_begins_to_write() {
    for seed in 0..400 {
        let processes = [level(0), level(1)];
        let disk = HookDisk::new(sim(), None);
        processes.iter().for_each(|process| process.boot_with_threads(disk.clone(), false));
        let options = setting().options;
        let writer = processes[0].open(0, &options).unwrap();
        writer.execute_batch("CREATE TABLE t(a)").unwrap();
        writer.close().unwrap();
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        let run = |process: usize, mode: &str, sql: &'static str| -> (Program, GoesOn) {
            let (process, failed) = (processes[process].clone(), failed.clone());
            let mut options = options.clone();
            options.push(("mode".to_owned(), mode.to_owned()));
            let program = move || {
                let ran = process.open(0, &options).and_then(|db| db.query_row(sql, [], |_| Ok(())));
                match ran.as_ref().map_err(|e| (e.sqlite_error_code(), said(e))) {
                    Ok(()) | Err((Some(ErrorCode::DatabaseBusy), _)) => {}
                    Err((_, why)) => *failed.lock() = Some(why.clone()),
                }
            };
            (Box::new(program), Box::new(|| ()))
        };
        let programs =
            vec![run(0, "rw", "INSERT INTO t VALUES (1) RETURNING a"), run(1, "ro", "SELECT count(*) FROM t")];
        baton::run(seed, &mut Duration::from_secs(1), programs).unwrap();
        processes.iter().for_each(Level::halt);
        assert_eq!(*failed.lock(), None, "seed {seed}");
    }
}

#[test]
fn a_damaged_slot_of_a_young_database_loses_nothing() {
    let (setting, sim, process) = (setting(), sim(), level(0));
    process.boot(HookDisk::new(sim.clone(), None));
    let db = process.open(0, &setting.options).unwrap();
    db.execute_batch("PRAGMA page_size=1024; CREATE TABLE t(a); INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")
        .unwrap();
    let expected = print(&db, "main").unwrap();
    let killed = sim.survive();
    process.halt();
    drop(db);
    for block in 1..=2 {
        for at in (0..slot::BYTES as u64).step_by(9) {
            let rotten = killed.survive();
            assert!(rotten.flip_bit(&log_path(0), block * 4096 + at, 0));
            process.boot(HookDisk::new(rotten, None));
            let found = process.open(0, &setting.options).and_then(|db| print(&db, "main"));
            assert_eq!(found.unwrap(), expected, "slot {block}, byte {at}");
        }
    }
}
