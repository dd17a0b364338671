//! The work of the sections: how many connections of which kind, in which steps, on which tables;
//! and whether the acknowledged rows are there.

use super::MeasuredStep;
use super::engine::CrowdEngine;
use super::worker::{ROWS, VALUE_BYTES, WorkerKind, WorkerResult, WorkerStep, create_table};
use crate::parameters::suite::CrowdPart;
use anyhow::{Result, ensure};
use rusqlite::Connection;

const BESIDE: usize = 4;
/// Rounds of three rows that each process of a cold start inserts.
const COLD_ROUNDS: u64 = 5;
/// Names of the readers' steps.
pub const BESIDE_WRITERS: &str = "lookups beside writers";
pub const WRITERS_ELSEWHERE: &str = "lookups, writers elsewhere";

/// A section's form.
pub struct SectionShape {
    pub part: CrowdPart,
    pub name: String,
    pub writers: usize,
    pub readers: usize,
    /// The writers write another database.
    pub writers_elsewhere: bool,
    /// A read transaction is open all the time.
    pub long_reader: bool,
    /// Of the writers; of the readers where there are no writers.
    pub steps: Vec<WorkerStep>,
    /// Rows of each connection's table, of DB Bench and where transactions take time.
    items: u64,
}

/// The varied sizes.
pub struct Sizes<'a> {
    /// How many connections write; a few numbers where none is named.
    pub connections: &'a [usize],
    pub ms: u64,
    /// DB Bench's numbers are per 1000 of it.
    pub scale: u64,
    /// Rows that a transaction of the part `concurrent` reads.
    pub think_rows: u64,
    /// How long a transaction that reads and then writes pauses between.
    pub think_ms: u64,
}

/// All of these parts, of every part where none is named.
pub fn all(place: WorkerKind, parts: &[CrowdPart], sizes: &Sizes<'_>) -> Vec<SectionShape> {
    let Sizes { connections, ms, scale, think_rows, think_ms } = *sizes;
    let or = |usual: &'static [usize]| if connections.is_empty() { usual.to_vec() } else { connections.to_vec() };
    let plain = |part, name: &str, writers, readers| SectionShape {
        part,
        name: name.to_owned(),
        writers,
        readers,
        writers_elsewhere: false,
        long_reader: false,
        steps: vec![if writers > 0 { WorkerStep::Insert { ms } } else { WorkerStep::Lookup { ms } }],
        items: 0,
    };
    let writers = or(if place == WorkerKind::Threads { &[1, 2, 4, 8, 16] } else { &[1, 2, 4, 8] });
    let mut all: Vec<SectionShape> = writers.iter().map(|n| plain(CrowdPart::Writers, "inserts", *n, 0)).collect();
    all.push(plain(CrowdPart::Readers, "lookups", 0, 1));
    all.push(plain(CrowdPart::Readers, BESIDE_WRITERS, BESIDE, 1));
    let elsewhere = plain(CrowdPart::Readers, WRITERS_ELSEWHERE, BESIDE, 1);
    all.push(SectionShape { writers_elsewhere: true, ..elsewhere });
    let long = plain(CrowdPart::LongReader, "inserts, long reader", BESIDE, 0);
    all.push(SectionShape { long_reader: true, ..long });
    let n = |of_1000: u64| (of_1000 * scale / 1000).max(1);
    let updates = |overlapping| WorkerStep::ItemUpdates { n: n(1000), overlapping };
    all.push(SectionShape {
        steps: vec![
            WorkerStep::ItemInserts(n(1000)),
            WorkerStep::ItemSearches(n(20_000)),
            WorkerStep::ItemRows(n(20_000)),
            updates(true),
            updates(false),
            WorkerStep::ItemDeletes(n(10_000)),
        ],
        items: n(20_000),
        ..plain(CrowdPart::DbBench, "DB Bench", 2, 0)
    });
    // Transactions at once are for one process.
    if place == WorkerKind::Threads {
        all.extend(or(&[1, 2, 4]).into_iter().map(|n| SectionShape {
            steps: vec![WorkerStep::Think { ms, rows: think_rows }],
            items: think_rows,
            ..plain(CrowdPart::Concurrent, "insert and read, own tables", n, 0)
        }));
    }
    let steps = || vec![WorkerStep::ReadThinkWrite { ms, think_ms }];
    let shape = |n| SectionShape { steps: steps(), ..plain(CrowdPart::ReadThinkWrite, "read, think, write", n, 0) };
    all.extend(or(&[1, 4, 8]).into_iter().map(shape));
    let readers = plain(CrowdPart::ReadThinkWrite, "lookups beside read, think, write", BESIDE, 1);
    all.push(SectionShape { steps: steps(), ..readers });
    if place == WorkerKind::Processes {
        all.extend(or(&[1, 2, 4, 8, 16, 32]).into_iter().map(|n| SectionShape {
            steps: vec![WorkerStep::ColdStart { rounds: COLD_ROUNDS, think_ms }],
            ..plain(CrowdPart::ColdStart, "cold start", n, 0)
        }));
    }
    all.retain(|shape| parts.is_empty() || parts.contains(&shape.part));
    all
}

impl SectionShape {
    /// Those of `all` that do the section.
    pub fn engines(&self, all: &[CrowdEngine]) -> Vec<CrowdEngine> {
        all.iter().copied().filter(|engine| self.is_for(*engine)).collect()
    }

    /// There is no database before the step.
    pub fn is_cold(&self) -> bool {
        self.part == CrowdPart::ColdStart
    }

    pub fn connections(&self) -> usize {
        if self.readers > 0 { self.readers } else { self.writers }
    }

    /// Whether it is for this engine: those with a late checkpoint do DB Bench, and with a rollback
    /// journal no connection commits beside an open read transaction.
    pub fn is_for(&self, engine: CrowdEngine) -> bool {
        match self.part {
            CrowdPart::DbBench => {
                CrowdEngine::USUAL.contains(&engine)
                    || [CrowdEngine::OnewriteLate, CrowdEngine::WalFullLate].contains(&engine)
            }
            CrowdPart::LongReader => [CrowdEngine::Onewrite, CrowdEngine::WalFull].contains(&engine),
            CrowdPart::Writers => {
                CrowdEngine::USUAL.contains(&engine)
                    || [CrowdEngine::WalNormal, CrowdEngine::OnewriteNormal].contains(&engine)
            }
            // Its sections are its own.
            CrowdPart::Periodic => false,
            CrowdPart::Readers | CrowdPart::ReadThinkWrite | CrowdPart::ColdStart => {
                CrowdEngine::USUAL.contains(&engine)
            }
            CrowdPart::Concurrent => {
                [CrowdEngine::Onewrite, CrowdEngine::OnewriteConcurrent, CrowdEngine::WalFull, CrowdEngine::WalNormal]
                    .contains(&engine)
            }
        }
    }

    /// The readers' steps beside those of the writers.
    pub fn reader_steps(&self) -> Vec<WorkerStep> {
        let reads = |step: &WorkerStep| match *step {
            WorkerStep::Insert { ms } | WorkerStep::ReadThinkWrite { ms, .. } => WorkerStep::Lookup { ms },
            other => other,
        };
        self.steps.iter().map(reads).collect()
    }

    pub fn step_name(&self, step: usize) -> String {
        match self.steps[step] {
            WorkerStep::Insert { .. }
            | WorkerStep::Lookup { .. }
            | WorkerStep::Think { .. }
            | WorkerStep::ReadThinkWrite { .. }
            | WorkerStep::ColdStart { .. } => self.name.clone(),
            WorkerStep::ItemInserts(_) => "DB Bench: inserts".to_owned(),
            WorkerStep::ItemSearches(_) => "DB Bench: searches".to_owned(),
            WorkerStep::ItemRows(_) => "DB Bench: rows in turn".to_owned(),
            WorkerStep::ItemDeletes(_) => "DB Bench: deletes".to_owned(),
            WorkerStep::ItemUpdates { overlapping: true, .. } => "DB Bench: updates, overlapping".to_owned(),
            WorkerStep::ItemUpdates { .. } => "DB Bench: updates, apart".to_owned(),
        }
    }

    /// Names and descriptions of the steps, for the card.
    pub fn describe(&self) -> Vec<(String, String)> {
        let long = if self.long_reader { ", beside a read transaction that stays open" } else { "" };
        let own = "each connection on a table of its own with";
        let describe = |step: &WorkerStep| match *step {
            WorkerStep::Insert { ms } | WorkerStep::Lookup { ms } => format!(
                "{} writers{}, {} readers, {ms} ms{long}; {ROWS} rows before, values of {VALUE_BYTES} B, random keys",
                self.writers,
                if self.writers_elsewhere { " of another database" } else { "" },
                self.readers
            ),
            WorkerStep::Think { ms, rows } => format!(
                "{} connections, {ms} ms, {own} {rows} rows and an index; a transaction is BEGIN, one insert, a read of \
                 those {rows} rows, COMMIT; what is refused is done again",
                self.writers
            ),
            WorkerStep::ReadThinkWrite { ms, think_ms } => format!(
                "{} writers, {} readers, {ms} ms; a transaction is BEGIN, a read of one row, {think_ms} ms of pause, one \
                 insert, COMMIT; what is refused is done again; {ROWS} rows before",
                self.writers, self.readers
            ),
            WorkerStep::ColdStart { rounds, think_ms } => format!(
                "{} processes open a database that does not exist, create a table in it, and insert {} rows each: in \
                 autocommit, in BEGIN, read, {think_ms} ms of pause, insert, COMMIT, and in BEGIN IMMEDIATE, in turn; \
                 what is refused is done again",
                self.writers,
                3 * rounds
            ),
            WorkerStep::ItemInserts(n) => {
                format!("{n} rows, a transaction each, {own} {} rows and an index", self.items)
            }
            WorkerStep::ItemSearches(n) => format!("{n} searches by an index, {own} {} rows", self.items),
            WorkerStep::ItemRows(n) => format!("{n} rows by their key, in one statement"),
            WorkerStep::ItemDeletes(n) => {
                format!("{n} rows, a transaction each, {own} {} rows and an index", self.items)
            }
            WorkerStep::ItemUpdates { n, overlapping } => format!(
                "{n} rows, a transaction each, {}",
                if overlapping { "all connections in one table" } else { "each connection in its own table" }
            ),
        };
        let name = |i: usize| format!("{}, {}", self.step_name(i), self.connections());
        self.steps.iter().enumerate().map(|(i, step)| (name(i), describe(step))).collect()
    }

    /// Rows of a table before the steps.
    pub fn rows(&self) -> u64 {
        match self.items {
            _ if self.is_cold() => 0,
            0 => ROWS,
            items => items,
        }
    }

    pub fn prepare(&self, c: &Connection, seed: u64) -> Result<()> {
        c.execute_batch("BEGIN IMMEDIATE")?;
        if self.items == 0 {
            create_table(c, seed)?;
        }
        for own in (0..self.writers).filter(|_| self.items > 0) {
            c.execute_batch(&format!(
                "CREATE TABLE item{own}(id INTEGER PRIMARY KEY, number INTEGER, name TEXT, hits INTEGER DEFAULT 0);
                 CREATE INDEX item{own}_number ON item{own}(number)"
            ))?;
            let mut insert =
                c.prepare(&format!("INSERT INTO item{own}(id, number, name) VALUES(?1, ?1 * 7, hex(?1))"))?;
            for id in 0..self.items {
                insert.execute([id as i64])?;
            }
        }
        Ok(c.execute_batch("COMMIT")?)
    }

    /// After a step, everything it acknowledged is seen by another connection.
    pub fn verify_step(&self, step: WorkerStep, done: &[WorkerResult], c: &Connection) -> Result<()> {
        let sum = |what: &str| -> Result<i64> {
            let tables = (0..self.writers).map(|own| format!("(SELECT {what} FROM item{own})"));
            Ok(c.query_row(&format!("SELECT {}", tables.collect::<Vec<_>>().join(" + ")), [], |r| r.get(0))?)
        };
        let operations = done.iter().map(|d| d.operations).sum::<u64>() as i64;
        let rows = self.items as i64 * self.writers as i64;
        let (what, wanted) = match step {
            WorkerStep::ItemInserts(_) | WorkerStep::Think { .. } => ("count(*)", rows + operations),
            // Before them as many as they find now were inserted.
            WorkerStep::ItemUpdates { overlapping: true, .. } => ("total(hits)", operations),
            WorkerStep::ItemUpdates { .. } => ("total(hits)", 2 * operations),
            // A tenth of the deleted rows was inserted before.
            WorkerStep::ItemDeletes(_) => ("count(*)", rows + self.inserted() * self.writers as i64 - operations),
            WorkerStep::Insert { .. }
            | WorkerStep::Lookup { .. }
            | WorkerStep::ReadThinkWrite { .. }
            | WorkerStep::ColdStart { .. }
            | WorkerStep::ItemSearches(_)
            | WorkerStep::ItemRows(_) => return Ok(()),
        };
        let found = sum(&format!("CAST({what} AS INTEGER)"))?;
        ensure!(found == wanted, "{}: {what} is {found} where {wanted} was acknowledged", self.name);
        Ok(())
    }

    /// The rows that each of DB Bench's connections inserts.
    fn inserted(&self) -> i64 {
        let count = |step: &WorkerStep| if let WorkerStep::ItemInserts(n) = step { *n as i64 } else { 0 };
        self.steps.iter().map(count).sum()
    }

    /// Everything that was acknowledged is in the file, as stock SQLite sees it.
    pub fn verify(&self, c: &Connection, measured: &[MeasuredStep]) -> Result<()> {
        if self.items == 0 {
            let writers = measured.iter().flat_map(|m| &m.writers).filter(|_| !self.writers_elsewhere);
            let wanted = self.rows() + writers.map(|d| d.operations).sum::<u64>();
            let found: i64 = c.query_row("SELECT count(*) FROM t", [], |r| r.get(0))?;
            ensure!(found == wanted as i64, "{found} rows where {wanted} were acknowledged");
        }
        let verdict: String = c.query_row("PRAGMA integrity_check", [], |r| r.get(0))?;
        ensure!(verdict == "ok", "integrity_check: {verdict}");
        Ok(())
    }
}
