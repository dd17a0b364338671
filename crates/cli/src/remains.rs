//! The content of a database file without its log, for a user who is about to give the log up: its
//! pages, its tables and their rows.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use onewrite_core::Repair;
use onewrite_core::inspect::home::{FileKind, State};
use rusqlite::{Connection, OpenFlags};

use crate::look::{counted, grouped};

/// The tables of a larger file are not listed, in bytes: it is copied for that.
const BYTES_MAX: u64 = 256 << 20;
/// So many tables are named.
const TABLES_MAX: usize = 8;

/// "3 pages of 4,096 bytes, with 2 tables: a (10 rows), b (no row)".
pub fn of(repair: &Repair, state: &State) -> Result<String> {
    if state.kind != FileKind::Database || state.page_count == 0 {
        return Ok("an empty database, without a page or a table".into());
    }
    let pages = format!("{} of {} bytes", counted(state.page_count.into(), "page"), grouped(state.page_bytes.into()));
    let bytes = u64::from(state.page_count) * u64::from(state.page_bytes);
    if bytes > BYTES_MAX {
        return Ok(format!("{pages} (its tables are not listed, for it has more than {} MiB)", BYTES_MAX >> 20));
    }
    let copy = copy(repair, state, bytes)
        .context("copying the database file, to list the tables that it holds without its log")?;
    Ok(match tables(copy.path()) {
        Ok(tables) => format!("{pages}, with {tables}"),
        Err(e) => format!("{pages}, and SQLite cannot read its tables ({e})"),
    })
}

/// The file as it is when the mark is off, for SQLite to read.
fn copy(repair: &Repair, state: &State, bytes: u64) -> Result<tempfile::NamedTempFile> {
    let mut copy = tempfile::NamedTempFile::new()?;
    let mut run = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let want = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(run.len());
        let part = run.get_mut(..want).unwrap_or_default();
        let read = repair.home().read_at(part, at)?;
        if read == 0 {
            break;
        }
        let part = part.get_mut(..read).unwrap_or_default();
        if at == 0 {
            let header = state.final_header();
            part.iter_mut().zip(header).for_each(|(to, from)| *to = from);
        }
        copy.write_all(part)?;
        at += read as u64;
    }
    copy.flush()?;
    Ok(copy)
}

fn tables(path: &Path) -> rusqlite::Result<String> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    db.pragma_update(None, "trusted_schema", false)?;
    let sql =
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid";
    let names = db.prepare(sql)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    let mut listed = Vec::new();
    for name in names.iter().take(TABLES_MAX) {
        let quoted = name.replace('"', "\"\"");
        let rows = db.query_row(&format!("SELECT count(*) FROM \"{quoted}\""), [], |row| row.get::<_, i64>(0));
        let rows = rows.map_or_else(|e| format!("cannot be read: {e}"), |rows| counted(rows.unsigned_abs(), "row"));
        listed.push(format!("{} ({rows})", name.escape_debug()));
    }
    if names.len() > TABLES_MAX {
        listed.push(format!("{} more", names.len() - TABLES_MAX));
    }
    Ok(match names.len() {
        0 => "no table".into(),
        n => format!("{}: {}", counted(n as u64, "table"), listed.join(", ")),
    })
}
