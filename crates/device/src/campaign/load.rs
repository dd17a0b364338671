//! Random transactions of a campaign, and the rows after each of them. Writer and checker derive
//! both from the seed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use onewrite_core::disk::sim::SplitMix64;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

/// Beyond, rows are deleted in bulk.
const THREAD_BYTES_MAX: usize = 1_500_000;

#[derive(Clone, Debug)]
pub enum Change {
    /// A new row, or new content.
    Put { id: i64, row: Row },
    /// Rows with ids from `from` to `to`, both included.
    Delete { from: i64, to: i64 },
}

/// A recipe of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    key: i64,
    fill: u64,
    len: usize,
}

impl Row {
    fn payload(self) -> Vec<u8> {
        let mut random = SplitMix64::new(self.fill);
        let mut bytes: Vec<u8> = (0..self.len.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        bytes.truncate(self.len);
        bytes
    }
}

/// One transaction.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Changes rolled back before it.
    pub rolled_back: Vec<Change>,
    /// Changes in its savepoint that is rolled back.
    pub undone: Vec<Change>,
    pub changes: Vec<Change>,
    /// The step before it, outside any transaction.
    pub before: Before,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    Nothing,
    Reopen,
    Vacuum,
    Checkpoint,
}

/// Whether one thread reopens the database after a transaction or two, so that sessions follow each
/// other.
pub fn is_brief(seed: u64) -> bool {
    seed % 4 == 3
}

/// The rows of one thread.
pub struct Rows {
    seed: u64,
    thread: usize,
    pub count: u64,
    rows: BTreeMap<i64, Row>,
}

impl Rows {
    pub fn new(seed: u64, thread: usize) -> Rows {
        Rows { seed, thread, count: 0, rows: BTreeMap::new() }
    }

    pub fn plan(&self) -> Plan {
        let mut mixer = SplitMix64::new(self.seed ^ (self.thread as u64) << 48 ^ self.count << 8);
        let mut random = SplitMix64::new(mixer.next_u64());
        let mut draw =
            |count: usize, big: bool| -> Vec<Change> { (0..count).map(|_| self.change(&mut random, big)).collect() };
        let mut shape = SplitMix64::new(mixer.next_u64());
        let rolled_back = if shape.below(12) == 0 { draw(1 + shape.below(8), false) } else { Vec::new() };
        let undone = if shape.below(6) == 0 { draw(1 + shape.below(4), false) } else { Vec::new() };
        let mut changes = match shape.below(60) {
            0 => draw(40 + shape.below(40), true),
            1..=9 => draw(10 + shape.below(30), false),
            _ => draw(1 + shape.below(4), false),
        };
        if self.rows.values().map(|row| row.len).sum::<usize>() > THREAD_BYTES_MAX {
            let ids: Vec<i64> = self.rows.keys().copied().collect();
            if let (Some(first), Some(last)) = (ids.first(), ids.get(ids.len() * 3 / 4)) {
                changes.push(Change::Delete { from: *first, to: *last });
            }
        }
        let before = match shape.below(160) {
            0..4 => Before::Reopen,
            4 => Before::Vacuum,
            5..8 => Before::Checkpoint,
            8..100 if is_brief(self.seed) => Before::Reopen,
            _ => Before::Nothing,
        };
        Plan { rolled_back, undone, changes, before }
    }

    fn change(&self, random: &mut SplitMix64, big: bool) -> Change {
        let known = |random: &mut SplitMix64| {
            let at = random.below(self.rows.len().max(1));
            self.rows.keys().nth(at).copied().unwrap_or(1)
        };
        let len = match random.below(20) {
            _ if big => 4_000 + random.below(24_000),
            0 => 3_000 + random.below(17_000),
            1..=6 => random.below(1_000),
            _ => 16 + random.below(150),
        };
        let row = Row { key: random.below(1_000) as i64, fill: random.next_u64(), len };
        match random.below(10) {
            0..=1 => {
                let from = known(random);
                Change::Delete { from, to: from + random.below(3) as i64 }
            }
            2..=4 => Change::Put { id: known(random), row },
            _ => Change::Put { id: 1 + random.below(1 << 20) as i64, row },
        }
    }

    pub fn apply(&mut self, plan: &Plan) {
        for change in &plan.changes {
            match change {
                Change::Put { id, row } => drop(self.rows.insert(*id, *row)),
                Change::Delete { from, to } => self.rows.retain(|id, _| id < from || id > to),
            }
        }
        self.count += 1;
    }

    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (id, row) in &self.rows {
            hash_row(&mut hasher, *id, row.key, &row.payload());
        }
        hasher.finish()
    }
}

fn hash_row(hasher: &mut DefaultHasher, id: i64, key: i64, payload: &[u8]) {
    hasher.write_i64(id);
    hasher.write_i64(key);
    hasher.write_usize(payload.len());
    hasher.write(payload);
}

pub fn create(db: &Connection, threads: usize) -> rusqlite::Result<()> {
    let mut sql = "BEGIN IMMEDIATE; CREATE TABLE progress(thread INTEGER PRIMARY KEY, n INTEGER NOT NULL);".to_owned();
    for thread in 0..threads {
        sql += &format!(
            "CREATE TABLE t{thread}(id INTEGER PRIMARY KEY, key INTEGER NOT NULL, payload BLOB NOT NULL);
             CREATE INDEX i{thread} ON t{thread}(key); INSERT INTO progress VALUES({thread}, 0);"
        );
    }
    db.execute_batch(&(sql + "COMMIT;"))
}

pub fn execute(db: &Connection, rows: &Rows, plan: &Plan) -> rusqlite::Result<()> {
    if !plan.rolled_back.is_empty() {
        db.execute_batch("BEGIN IMMEDIATE")?;
        make(db, rows.thread, &plan.rolled_back)?;
        db.execute_batch("ROLLBACK")?;
    }
    db.execute_batch("BEGIN IMMEDIATE")?;
    let (undone_first, rest) = plan.changes.split_at(plan.changes.len() / 2);
    make(db, rows.thread, undone_first)?;
    if !plan.undone.is_empty() {
        db.execute_batch("SAVEPOINT s")?;
        make(db, rows.thread, &plan.undone)?;
        db.execute_batch("ROLLBACK TO s; RELEASE s")?;
    }
    make(db, rows.thread, rest)?;
    let mut progress = db.prepare_cached("UPDATE progress SET n = ?2 WHERE thread = ?1")?;
    progress.execute(params![rows.thread as i64, rows.count as i64 + 1])?;
    db.execute_batch("COMMIT")
}

fn make(db: &Connection, thread: usize, changes: &[Change]) -> rusqlite::Result<()> {
    let mut put = db.prepare_cached(&format!("INSERT OR REPLACE INTO t{thread} VALUES(?1, ?2, ?3)"))?;
    let mut delete = db.prepare_cached(&format!("DELETE FROM t{thread} WHERE id BETWEEN ?1 AND ?2"))?;
    for change in changes {
        match change {
            Change::Put { id, row } => put.execute(params![id, row.key, row.payload()])?,
            Change::Delete { from, to } => delete.execute(params![from, to])?,
        };
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// By the database's own count.
    pub count: u64,
    pub digest: u64,
}

/// `None` without a schema.
pub fn read(db: &Connection, threads: usize) -> rusqlite::Result<Option<Vec<Found>>> {
    db.execute_batch("BEGIN")?;
    let tables: i64 =
        db.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'progress'", [], |row| row.get(0))?;
    let mut found = Vec::new();
    for thread in if tables == 0 { 0..0 } else { 0..threads } {
        let count: i64 = db.query_row("SELECT n FROM progress WHERE thread = ?1", [thread as i64], |row| row.get(0))?;
        let mut hasher = DefaultHasher::new();
        let mut select = db.prepare(&format!("SELECT id, key, payload FROM t{thread} ORDER BY id"))?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let payload = row.get_ref(2)?;
            hash_row(&mut hasher, row.get(0)?, row.get(1)?, payload.as_blob().unwrap_or_default());
        }
        found.push(Found { count: count as u64, digest: hasher.finish() });
    }
    db.execute_batch("COMMIT")?;
    Ok((tables > 0).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_equals_the_model_after_each_transaction() {
        let db = Connection::open_in_memory().unwrap();
        assert_eq!(read(&db, 2).unwrap(), None);
        create(&db, 2).unwrap();
        let mut threads = [Rows::new(7, 0), Rows::new(7, 1)];
        let mut digests = std::collections::BTreeSet::new();
        for turn in 0..60 {
            let rows = &mut threads[turn % 2];
            let plan = rows.plan();
            execute(&db, rows, &plan).unwrap();
            rows.apply(&plan);
            digests.insert(rows.digest());
            if turn % 10 == 0 {
                let want = threads.iter().map(|rows| Found { count: rows.count, digest: rows.digest() }).collect();
                assert_eq!(read(&db, 2).unwrap(), Some(want));
            }
        }
        assert!(digests.len() > 55, "transactions that change nothing are not worth testing");
    }
}
