//! Reading a database that others may be using: through onewrite, as one of its readers, on one
//! snapshot.

use anyhow::{Context, Result, anyhow};
use onewrite_rusqlite::{last_error, open_with_flags};
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::path::Path;
use std::time::Duration;

/// Waits that long for one that has the database to itself.
const BUSY: Duration = Duration::from_secs(5);

/// Opens the database at `path` to read, and begins a read transaction. Its snapshot stays as it
/// is, and keeps no process from writing through onewrite.
pub fn open(path: &Path) -> Result<Connection> {
    // A file may be called `:memory:`, too.
    let file = std::path::absolute(path).with_context(|| format!("cannot read {}", path.display()))?;
    let db = open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(|e| explain(path, e))?;
    let begun = db
        .busy_timeout(BUSY)
        .and_then(|()| db.execute_batch("BEGIN"))
        .and_then(|()| db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())));
    begun.map_err(|e| explain(path, e))?;
    Ok(db)
}

/// SQLite's error, with onewrite's reason if it has one.
pub fn explain(path: &Path, error: rusqlite::Error) -> anyhow::Error {
    let path = path.display();
    if error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_READONLY_ROLLBACK) {
        return anyhow!(
            "cannot read {path}: its rollback journal ({path}-journal) waits to be rolled back, and who only reads does not: open \
             it once to write, as `onewrite shell {path} 'SELECT 1'` does"
        );
    }
    let code = error.sqlite_error_code();
    let message = match last_error() {
        Some(why) if !error.to_string().contains(&why) => format!("cannot read {path}: {error}: {why}"),
        _ => format!("cannot read {path}: {error}"),
    };
    Unread { code, message }.into()
}

/// SQLite's error, in words for people.
#[derive(Debug)]
pub struct Unread {
    /// Which one it is.
    pub code: Option<ErrorCode>,
    message: String,
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Unread {}
