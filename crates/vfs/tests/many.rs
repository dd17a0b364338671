//! As many processes as there are on one database: none is refused, those that are silent cost the
//! others nothing, and the dead are forgotten.
//!
//! `ONEWRITE_TEST_PROCESSES` is their number. `--nocapture` shows a commit's time and memory.

#![cfg(unix)]
#![allow(unsafe_code)]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{one, open, open_stock, setup};
use rusqlite::Connection;

/// In which 38 slots lie in the log, the others in a file.
const PROCESSES: usize = 200;
const SLOTS_HERE: usize = 38;
/// Processes that commit in turn beside silent ones, each so often.
const ACTIVE: usize = 10;
const ROUNDS: usize = 30;
/// So many commits come before the measured ones, for equal sizes.
const ROWS: usize = 2000;
/// Each lets its connection wait so long: on a slow machine all begin at once.
const WAITS: Duration = Duration::from_secs(60);

fn pipe() -> (File, File) {
    let mut ends = [-1; 2];
    // SAFETY: the ends are this call's, and each is owned by one file from here on.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

/// Bytes, each for one process.
fn tell(mut to: &File, processes: usize) {
    to.write_all(&vec![b'.'; processes]).unwrap();
}

/// Ends the test where a process has died without its byte.
fn wait(mut on: &File, processes: usize) {
    for _ in 0..processes {
        let mut ready = libc::pollfd { fd: on.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let patience = 2 * WAITS.as_millis() as libc::c_int;
        // SAFETY: one entry, of this call.
        let count = unsafe { libc::poll(&raw mut ready, 1, patience) };
        assert_eq!(count, 1, "a process failed");
        on.read_exact(&mut [0]).unwrap();
    }
}

/// Starts a process that does `life`, without an end of its own.
fn forked(life: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child leaves through `_exit`; this program has no other thread that holds a lock.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life));
        // SAFETY: ends the child without running the parent's handlers.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    child
}

fn ended(child: libc::pid_t) -> libc::c_int {
    let mut status = -1;
    // SAFETY: waits for a child of this program.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn attached(path: &Path) -> Connection {
    let db = open(path, "idle=0").unwrap();
    db.busy_timeout(WAITS).unwrap();
    db
}

fn insert(db: &Connection) {
    db.execute("INSERT INTO t(x) VALUES (zeroblob(50))", []).unwrap();
}

/// Behind a commit of another process; in nanoseconds.
fn relayed(db: &Connection, gates: &Gates) {
    for _ in 0..ROUNDS {
        wait(&gates.relay.0, 1);
        let begun = Instant::now();
        insert(db);
        let time = u64::try_from(begun.elapsed().as_nanos()).unwrap();
        (&gates.times.1).write_all(&time.to_le_bytes()).unwrap();
    }
}

fn median_of_relayed(gates: &Gates) -> Duration {
    let mut times: Vec<_> = (0..ACTIVE * ROUNDS)
        .map(|_| {
            tell(&gates.relay.1, 1);
            let mut time = [0; 8];
            (&gates.times.0).read_exact(&mut time).unwrap();
            Duration::from_nanos(u64::from_le_bytes(time))
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The time of a commit in the middle, and this process's own memory in KiB.
fn measured(db: &Connection, commits: u32) -> (Duration, u64) {
    let mut times: Vec<_> = (0..commits)
        .map(|_| {
            let begun = Instant::now();
            insert(db);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let memory = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let private = memory.lines().filter(|line| line.starts_with("Private_"));
    let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
    (times[times.len() / 2], kib)
}

fn slots_files(path: &Path) -> usize {
    let names = std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains("-onewrite-slots-")).count()
}

/// Pipes of one byte for each process: it is ready, goes on, ends.
struct Gates {
    ready: (File, File),
    relay: (File, File),
    times: (File, File),
    goes_on: (File, File),
    ends: (File, File),
}

/// Attaches with a commit, stays silent unless it `is_active`, commits once more, stays until the
/// end.
fn life(path: &Path, gates: &Gates, is_active: bool) {
    let db = attached(path);
    insert(&db);
    tell(&gates.ready.1, 1);
    if is_active {
        relayed(&db, gates);
    }
    wait(&gates.goes_on.0, 1);
    insert(&db);
    // A reader's snapshot is of the newest state.
    assert!(one::<i64>(&db, "SELECT count(*) FROM t") > 1);
    tell(&gates.ready.1, 1);
    wait(&gates.ends.0, 1);
    db.close().unwrap();
}

#[test]
fn as_many_processes_as_there_are_write_now_and_then() {
    let processes = std::env::var("ONEWRITE_TEST_PROCESSES").ok().and_then(|n| n.parse().ok()).unwrap_or(PROCESSES);
    let dir = setup();
    let path = dir.path().join("many.db");
    let db = attached(&path);
    db.execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY, x)").unwrap();
    db.close().unwrap();
    let gates = Gates { ready: pipe(), relay: pipe(), times: pipe(), goes_on: pipe(), ends: pipe() };
    let start = |is_active| forked(|| life(&path, &gates, is_active));
    let begun = Instant::now();
    let mut children: Vec<_> = (0..processes).map(|n| start(n + ACTIVE >= processes)).collect();
    wait(&gates.ready.0, processes);
    println!("{processes} processes attached in {:?}", begun.elapsed());
    assert_eq!(slots_files(&path), usize::from(processes > SLOTS_HERE));

    let rows_before = ROWS.saturating_sub(processes);
    let fills = forked(|| {
        let db = attached(&path);
        (0..rows_before).for_each(|_| insert(&db));
        db.close().unwrap();
    });
    assert_eq!(ended(fills), 0);
    println!("{ACTIVE} that take turns: {:?} a commit", median_of_relayed(&gates));
    let db = attached(&path);
    let commits = std::env::var("ONEWRITE_TEST_COMMITS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let (time, kib) = measured(&db, commits);
    println!("beside {processes} silent processes: {time:?} a commit, {kib} KiB");

    let killed: Vec<_> = children.drain(..processes / 10).collect();
    for child in &killed {
        // SAFETY: a child of this program that was not waited for.
        assert_eq!(unsafe { libc::kill(*child, libc::SIGKILL) }, 0);
    }
    for child in &killed {
        assert_ne!(ended(*child), 0);
    }
    children.extend(killed.iter().map(|_| start(false)));
    wait(&gates.ready.0, killed.len());

    let begun = Instant::now();
    tell(&gates.goes_on.1, processes);
    wait(&gates.ready.0, processes);
    println!("all have committed at once in {:?}", begun.elapsed());
    tell(&gates.ends.1, processes);
    for child in children {
        assert_eq!(ended(child), 0, "a process failed");
    }
    db.close().unwrap();
    assert_eq!(slots_files(&path), 0);
    let rows = rows_before + 2 * processes + ACTIVE * ROUNDS + killed.len() + commits as usize;
    let stock = open_stock(&path);
    assert_eq!(one::<i64>(&stock, "SELECT count(*) FROM t"), rows as i64);
    assert_eq!(one::<String>(&stock, "PRAGMA integrity_check"), "ok");
}
