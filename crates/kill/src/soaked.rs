//! A process of the soak: threads that write their own rows, and one that reads all rows, until its
//! time is over or it is killed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::Args;
use fastrand::Rng;
use rusqlite::{Connection, OpenFlags};

use crate::connect::{is_busy, tell};
use crate::host;
use crate::plan;

/// Rows kept of one writer.
pub const ROWS: i64 = 64;
/// One transaction in this many is large; bytes of its body.
const LARGE: (i64, u32) = (300, 200_000);

/// The parameters of a process of the soak.
#[derive(Args, Clone, Debug)]
pub struct Part {
    /// The database
    #[arg(long)]
    pub at: PathBuf,
    /// The first writer; the process's other writers follow it
    #[arg(long)]
    pub first: u64,
    /// Threads: one reads, the others write
    #[arg(long)]
    pub threads: u64,
    /// Seed of the bodies
    #[arg(long)]
    pub plan: u64,
    /// End after this many milliseconds; 0: never
    #[arg(long)]
    pub life_ms: u64,
    /// Fall silent with all others, think within transactions, and fork
    #[arg(long)]
    pub silences: bool,
}

/// Milliseconds of work and of silence, in turn: two silences in a row are so unlike each other
/// that no process takes them for a rhythm, in which it would stay attached.
const WORK_MS: u64 = 5_000;
const SILENCES_MS: [u64; 2] = [3_000, 12_000];

/// How long all processes have been silent by the clock, if they are.
pub fn silent_for() -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    silent_at(now)
}

fn silent_at(now_ms: u64) -> Option<Duration> {
    let [short, long] = SILENCES_MS;
    let at = now_ms % (2 * WORK_MS + short + long);
    let since = if at < WORK_MS + short { at } else { at - WORK_MS - short };
    since.checked_sub(WORK_MS).map(Duration::from_millis)
}

/// The cache is small.
pub fn open(at: &Path) -> Result<Connection> {
    onewrite_rusqlite::register().map_err(|e| anyhow::anyhow!("register: {}", e.message))?;
    let uri = format!("file:{}?vfs=onewrite&scheme=log&log_size=1m&table_size=1m", at.display());
    let db = Connection::open_with_flags(&uri, OpenFlags::default()).with_context(|| format!("open {uri}"))?;
    db.execute_batch("PRAGMA cache_size=-256; PRAGMA synchronous=FULL")?;
    Ok(db)
}

pub fn create(db: &Connection, writers: u64) -> Result<()> {
    db.execute_batch(
        "CREATE TABLE item(writer INTEGER, n INTEGER, body BLOB, PRIMARY KEY(writer, n)) WITHOUT ROWID;
         CREATE TABLE last(writer INTEGER PRIMARY KEY, n INTEGER)",
    )?;
    for writer in 0..writers {
        db.execute("INSERT INTO last VALUES (?1, 0)", [writer as i64])?;
    }
    Ok(())
}

fn body(plan: u64, writer: u64, n: i64) -> Vec<u8> {
    let mut rng = Rng::with_seed(plan::mix(&[plan, writer, n as u64]));
    let len = if n % LARGE.0 == 0 { LARGE.1 as usize } else { rng.usize(20..400) };
    let mut body = vec![0; len];
    rng.fill(&mut body);
    body
}

/// Checks all rows through one snapshot; returns the newest transaction of each writer.
pub fn look(db: &Connection, plan: u64, writers: u64) -> Result<Vec<i64>> {
    let mut reached = Vec::new();
    for writer in 0..writers {
        let last: i64 = db.query_row("SELECT n FROM last WHERE writer = ?1", [writer as i64], |row| row.get(0))?;
        let mut rows = db.prepare_cached("SELECT n, body FROM item WHERE writer = ?1 ORDER BY n")?;
        let mut rows = rows.query([writer as i64])?;
        let mut expected = (last - ROWS + 1).max(1);
        while let Some(row) = rows.next()? {
            let n: i64 = row.get(0)?;
            ensure!(n == expected, "writer {writer} is at {last}: row {n} where {expected} belongs");
            let found = row.get_ref(1)?.as_blob()?;
            ensure!(found == body(plan, writer, n), "writer {writer}: row {n} is not what was written");
            expected += 1;
        }
        ensure!(expected == last + 1, "writer {writer} is at {last}: rows end at {}", expected - 1);
        reached.push(last);
    }
    Ok(reached)
}

pub fn run(part: &Part, writers: u64) -> Result<()> {
    let ends = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    let end_at = (part.life_ms > 0).then(|| Instant::now() + Duration::from_millis(part.life_ms));
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for writer in part.first..part.first + part.threads - 1 {
            let ends = &ends;
            running.push(scope.spawn(move || stop_all(write(part, writer, ends), ends)));
        }
        let (ends, seen) = (&ends, &seen);
        running.push(scope.spawn(move || stop_all(read(part, writers, ends, seen), ends)));
        while !ends.load(Ordering::Relaxed) && end_at.is_none_or(|at| Instant::now() < at) {
            std::thread::sleep(Duration::from_millis(5));
        }
        ends.store(true, Ordering::Relaxed);
        for thread in running {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        tell(&format!("R {}", seen.load(Ordering::Relaxed))).context("the soak is gone")
    })
}

fn stop_all(done: Result<()>, ends: &AtomicBool) -> Result<()> {
    if done.is_err() {
        ends.store(true, Ordering::Relaxed);
    }
    done
}

/// Commits one writer's transactions.
fn write(part: &Part, writer: u64, ends: &AtomicBool) -> Result<()> {
    let db = open(&part.at)?;
    let mut n: i64 = retry(|| db.query_row("SELECT n FROM last WHERE writer = ?1", [writer as i64], |row| row.get(0)))?;
    tell(&format!("S {writer} {n}")).context("the soak is gone")?;
    let mut rng = Rng::new();
    while !ends.load(Ordering::Relaxed) {
        if part.silences && silent_for().is_some() {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        if part.silences && rng.u32(0..500) == 0 {
            host::bystander(Duration::from_millis(rng.u64(0..2_000)))?;
        }
        let next = n + 1;
        let body = body(part.plan, writer, next);
        // A thinker reads first, as an application does that does not know yet that it will write.
        let thinks = (part.silences && rng.u32(0..20) == 0).then(|| Duration::from_millis(rng.u64(0..20)));
        let begun = Instant::now();
        retry(|| {
            let done = (|| {
                db.execute_batch(if thinks.is_some() { "BEGIN; SELECT n FROM last" } else { "BEGIN IMMEDIATE" })?;
                std::thread::sleep(thinks.unwrap_or_default());
                db.prepare_cached("INSERT INTO item VALUES (?1, ?2, ?3)")?.execute((writer as i64, next, &body))?;
                let old = next - ROWS;
                db.prepare_cached("DELETE FROM item WHERE writer = ?1 AND n <= ?2")?.execute((writer as i64, old))?;
                db.prepare_cached("UPDATE last SET n = ?2 WHERE writer = ?1")?.execute((writer as i64, next))?;
                db.execute_batch("COMMIT")
            })();
            if done.is_err() && !db.is_autocommit() {
                db.execute_batch("ROLLBACK")?;
            }
            done
        })
        .with_context(|| format!("writer {writer}, transaction {next}"))?;
        n = next;
        tell(&format!("A {writer} {n} {}", begun.elapsed().as_micros())).context("the soak is gone")?;
    }
    db.close().map_err(|(_, e)| e).context("close")
}

/// Short and long snapshots stay the same.
fn read(part: &Part, writers: u64, ends: &AtomicBool, seen: &AtomicU64) -> Result<()> {
    let db = open(&part.at)?;
    let mut rng = Rng::new();
    let mut before = vec![0; writers as usize];
    let silent = || part.silences && silent_for().is_some();
    while !ends.load(Ordering::Relaxed) {
        if silent() {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        retry(|| db.execute_batch("BEGIN; SELECT 1 FROM last"))?;
        let first = look(&db, part.plan, writers)?;
        for (writer, (old, new)) in before.iter().zip(&first).enumerate() {
            ensure!(old <= new, "writer {writer} was seen at {old}, and later at {new}");
        }
        let hold = Duration::from_millis([0, 5, 50, 1000][rng.usize(0..4)]);
        let until = Instant::now() + hold;
        while Instant::now() < until && !silent() && !ends.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let later = look(&db, part.plan, writers)?;
        ensure!(first == later, "a snapshot changed: {first:?}, then {later:?}");
        db.execute_batch("COMMIT")?;
        before = first;
        seen.fetch_add(1, Ordering::Relaxed);
    }
    db.close().map_err(|(_, e)| e).context("close")
}

/// Retries for up to 30 s while others have the database.
fn retry<T>(mut what: impl FnMut() -> rusqlite::Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match what() {
            Err(e) if is_busy(&e) && Instant::now() < end => tell("B").context("the soak is gone")?,
            Err(e) => {
                let why = onewrite_rusqlite::last_error().unwrap_or_default();
                return Err(anyhow::Error::from(e).context(why));
            }
            Ok(done) => return Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silences_alternate_by_the_clock() {
        let at = |ms| silent_at(ms).map(|d| d.as_millis());
        assert_eq!([at(0), at(4_999), at(5_000), at(7_999)], [None, None, Some(0), Some(2_999)]);
        assert_eq!([at(8_000), at(12_999), at(13_000), at(24_999)], [None, None, Some(0), Some(11_999)]);
        assert_eq!([at(25_000), at(30_001)], [None, Some(1)]);
    }
}
