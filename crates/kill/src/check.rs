//! Compares a database with the plan: whole transactions, no other rows, and sound by SQLite's own
//! checks.

use anyhow::{Context, Result, bail, ensure};
use rusqlite::{Connection, OptionalExtension};

use crate::Job;
use crate::connect::{self, Through};
use crate::plan::{self, WRITERS};

/// How far a writer got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Number of the last transaction.
    pub n: i64,
    /// Number of the last transaction over both files.
    pub pair: i64,
}

/// Recovers, checks, reports a line `S writer n pair` for each writer, and closes.
pub fn run(job: &Job) -> Result<()> {
    let db = connect::open(job, Through::Onewrite)?;
    for (writer, reached) in all(&db, job)?.into_iter().enumerate() {
        connect::tell(&format!("S {writer} {} {}", reached.n, reached.pair))?;
    }
    db.close().map_err(|(_, e)| e).context("close")
}

/// Checks both databases.
pub fn all(db: &Connection, job: &Job) -> Result<Vec<Reached>> {
    for schema in ["main", "second"] {
        let found: String = db.query_row(&format!("PRAGMA {schema}.integrity_check"), [], |row| row.get(0))?;
        ensure!(found == "ok", "integrity_check of {schema}: {found}");
    }
    let tables: i64 = db.query_row(
        "SELECT (SELECT count(*) FROM sqlite_schema WHERE type = 'table')
              + (SELECT count(*) FROM second.sqlite_schema WHERE type = 'table')",
        [],
        |row| row.get(0),
    )?;
    if tables < 3 {
        // Killed before there were tables: no transaction was acknowledged.
        return Ok(vec![Reached::default(); WRITERS as usize]);
    }
    (0..WRITERS).map(|writer| of_writer(db, job, writer).with_context(|| format!("writer {writer}"))).collect()
}

fn of_writer(db: &Connection, job: &Job, writer: u32) -> Result<Reached> {
    let last = "SELECT n, items, pair FROM last WHERE writer = ?1";
    let last = db.query_row(last, [writer], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    let (n, items, pair): (i64, i64, i64) = last.unwrap_or_default();
    let second = "SELECT n FROM second.pair WHERE writer = ?1";
    let second: i64 = db.query_row(second, [writer], |row| row.get(0)).optional()?.unwrap_or(0);
    ensure!(pair == second, "transaction {pair} is the last over both files in one, {second} in the other");
    let wanted = plan::rows(job.plan, writer, n);
    let mut found = vec![None; wanted.len()];
    let mut select = db.prepare("SELECT slot, n, body FROM item WHERE writer = ?1")?;
    let mut rows = select.query([writer])?;
    while let Some(row) = rows.next()? {
        let (slot, by): (u32, i64) = (row.get(0)?, row.get(1)?);
        ensure!(by > 0, "a row of a transaction that was rolled back: {by}");
        let body: Vec<u8> = row.get(2)?;
        let bytes = u32::try_from(body.len())?;
        ensure!(body == plan::body(job.plan, writer, by, slot, bytes), "slot {slot}: not the body of transaction {by}");
        let Some(place) = found.get_mut(slot as usize) else { bail!("no such slot: {slot}") };
        *place = Some((by, bytes));
    }
    if let Some(slot) = (0..wanted.len()).find(|&slot| wanted.get(slot) != found.get(slot)) {
        bail!(
            "the last transaction is {n}, so slot {slot} should be {:?} (transaction, bytes), and is {:?}",
            wanted.get(slot),
            found.get(slot)
        );
    }
    let count = i64::try_from(found.iter().flatten().count())?;
    ensure!(items == count, "the triggers counted {items} rows of {count}");
    Ok(Reached { n, pair })
}
