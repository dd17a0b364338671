//! What must hold of a device after a power cut: it mounts, and the database on it has every acknowledged
//! transaction (I1), each other whole or not at all, is sound (I5), and stays as it was read (I4, I8).

use std::path::Path;

use anyhow::Context;
use rusqlite::Connection;

use super::engine::{Setting, open_stock};
use super::load::{self, Found};

/// What may be found of a thread.
#[derive(Clone, Debug)]
pub struct Allowed<'a> {
    /// Fewest transactions.
    pub least: u64,
    /// Most transactions.
    pub most: u64,
    /// The digest of the rows after each number of transactions.
    pub digests: &'a [u64],
}

/// What may be found after a cut.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    /// Whether the schema was acknowledged.
    pub schema: bool,
    /// By thread.
    pub threads: Vec<Allowed<'a>>,
}

/// What was wrong, and whose it is as far as that can be told.
#[derive(Debug)]
pub enum Wrong {
    /// The file system did not mount or did not unmount.
    FileSystem(String),
    /// The database broke a promise.
    Database(String),
}

/// A check that found nothing wrong.
pub struct Passed {
    /// What was read; `None` if there was no schema yet.
    pub found: Option<Vec<Found>>,
    /// The device's position when it had been read, so that what was read may not be lost any more.
    pub read_at: usize,
}

/// Looks at the database at `path`, which has rows of so many threads, and writes to it. What it read first is given to
/// `read`, which may refuse it.
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

/// Whether what was found may be there.
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
