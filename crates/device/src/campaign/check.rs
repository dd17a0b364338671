//! Checks a device after a power cut: it mounts, and its database has every acknowledged
//! transaction (I1), each other whole or not at all, is sound (I5), and stays as it was read (I4,
//! I8).

use std::path::Path;

use anyhow::Context;
use rusqlite::Connection;

use super::engine::{Setting, open_stock};
use super::load::{self, Found};

/// The states of one thread that a cut may leave.
#[derive(Clone, Debug)]
pub struct Allowed<'a> {
    pub least: u64,
    pub most: u64,
    /// By number of transactions.
    pub digests: &'a [u64],
}

#[derive(Clone, Debug)]
pub struct Expected<'a> {
    pub schema: bool,
    pub threads: Vec<Allowed<'a>>,
}

/// A violation, with its owner as far as it is known.
#[derive(Debug)]
pub enum Wrong {
    FileSystem(String),
    Database(String),
}

pub struct Passed {
    /// `None` if there was no schema yet.
    pub found: Option<Vec<Found>>,
    /// From this position on, the state read must last.
    pub read_at: usize,
}

/// Checks the database at `path`, then writes to it. `read` gets the first state and may refuse it.
pub fn look(
    path: &Path,
    setting: &Setting,
    read: &mut dyn FnMut(&Option<Vec<Found>>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let db = setting.open(path).context("open")?;
    let found = load::read(&db, setting.threads).context("read")?;
    read(&found)?;
    sound(&db)?;
    drop(db);
    let again = |db: &Connection| -> anyhow::Result<()> {
        let now = load::read(db, setting.threads)?;
        anyhow::ensure!(now == found, "it had {found:?}, now {now:?}");
        Ok(())
    };
    let db = setting.open(path).context("second open")?;
    again(&db).context("second open")?;
    db.execute_batch("CREATE TABLE IF NOT EXISTS after(x); INSERT INTO after VALUES(randomblob(5000));")
        .context("write after the cut")?;
    drop(db);
    let db = open_stock(path)?;
    again(&db).context("stock SQLite")?;
    let rows: i64 = db.query_row("SELECT count(*) FROM after WHERE length(x) = 5000", [], |row| row.get(0))?;
    anyhow::ensure!(rows >= 1, "stock SQLite does not see what was written after the cut");
    sound(&db).context("stock SQLite")
}

/// Whether the cut may have left `found`.
pub fn agree(found: Option<&[Found]>, expected: &Expected) -> anyhow::Result<()> {
    let Some(found) = found else {
        anyhow::ensure!(!expected.schema, "the schema is lost");
        return Ok(());
    };
    for (thread, (found, allowed)) in found.iter().zip(&expected.threads).enumerate() {
        let Found { count, digest } = *found;
        let Allowed { least, most, digests } = allowed;
        anyhow::ensure!(count >= *least, "thread {thread}: {least} transactions were acknowledged, {count} are there");
        anyhow::ensure!(count <= *most, "thread {thread}: {count} transactions are there, {most} had begun");
        let want = usize::try_from(count).ok().and_then(|count| digests.get(count));
        anyhow::ensure!(want == Some(&digest), "thread {thread}: after {count} transactions the rows are others");
    }
    Ok(())
}

fn sound(db: &Connection) -> anyhow::Result<()> {
    let answer: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).context("integrity_check")?;
    anyhow::ensure!(answer == "ok", "integrity_check: {answer}");
    Ok(())
}
