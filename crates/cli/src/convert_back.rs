//! The way back of `onewrite research convert`: a new file without reserved bytes.
//!
//! SQLite's VACUUM never lowers the reserved bytes of a database. So the content is copied by SQL
//! into a new one, as VACUUM copies it: tables with their rowids, then indexes, then views,
//! triggers and virtual tables as the schema has them.

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

/// Copies the database attached as `old` into `new`, the main one, which has no page yet.
pub fn copy(new: &Connection) -> Result<()> {
    let text = |sql: &str| new.query_row(sql, [], |row| row.get::<_, String>(0));
    let number = |name: &str| new.query_row(&format!("PRAGMA old.{name}"), [], |row| row.get::<_, i64>(0));
    let settings = ["page_size", "auto_vacuum", "user_version", "application_id", "default_cache_size"];
    for name in settings {
        new.pragma_update(Some("main"), name, number(name)?)?;
    }
    new.pragma_update(Some("main"), "encoding", text("PRAGMA old.encoding")?)?;
    // Rows stay in the file, though they may not satisfy its constraints any more.
    new.execute_batch("PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON; PRAGMA writable_schema=ON")?;
    new.execute_batch("PRAGMA main.synchronous=OFF; PRAGMA main.journal_mode=OFF; BEGIN")?;
    let tables = "SELECT name, sql FROM old.sqlite_schema WHERE type='table' AND coalesce(rootpage, 1) > 0";
    for (name, sql) in pairs(new, &format!("{tables} AND name <> 'sqlite_sequence' ORDER BY rowid"))? {
        new.execute_batch(&sql).with_context(|| format!("creating the table {name}"))?;
    }
    for (name, _) in pairs(new, &format!("{tables} ORDER BY rowid"))? {
        copy_table(new, &name).with_context(|| format!("copying the table {name}"))?;
    }
    let indexes = "SELECT name, sql FROM old.sqlite_schema WHERE type='index' AND sql IS NOT NULL ORDER BY rowid";
    for (name, sql) in pairs(new, indexes)? {
        new.execute_batch(&sql).with_context(|| format!("creating the index {name}"))?;
    }
    new.execute_batch(
        "INSERT INTO main.sqlite_schema SELECT * FROM old.sqlite_schema
         WHERE type IN ('view', 'trigger') OR (type = 'table' AND rootpage = 0);
         COMMIT; PRAGMA writable_schema=OFF",
    )?;
    let next = number("schema_version")? + 1;
    new.pragma_update(Some("main"), "schema_version", next)?;
    same_schema(new)
}

fn pairs(db: &Connection, sql: &str) -> Result<Vec<(String, String)>> {
    let mut statement = db.prepare(sql)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect::<Result<_, _>>().context("reading the schema")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn copy_table(db: &Connection, name: &str) -> Result<()> {
    let mut columns: Vec<String> = Vec::new();
    let mut hidden = db.prepare("SELECT name FROM pragma_table_xinfo(?1, 'old') WHERE hidden = 0")?;
    for column in hidden.query_map([name], |row| row.get(0))? {
        columns.push(column?);
    }
    let without = "SELECT wr FROM pragma_table_list WHERE schema = 'old' AND name = ?1";
    let has_rowid = !db.query_row(without, [name], |row| row.get::<_, bool>(0))?;
    let is_free = |alias: &&str| !columns.iter().any(|c| c.eq_ignore_ascii_case(alias));
    let alias = ["rowid", "_rowid_", "oid"].into_iter().find(is_free).filter(|_| has_rowid);
    ensure!(alias.is_some() || !has_rowid, "its rowids have no name: rowid, _rowid_ and oid are columns");
    let list: Vec<String> = alias.map(str::to_owned).into_iter().chain(columns.iter().map(|c| quoted(c))).collect();
    let (table, list) = (quoted(name), list.join(", "));
    // SQLite may have made rows by itself: those of AUTOINCREMENT.
    db.execute_batch(&format!(
        "DELETE FROM main.{table}; INSERT INTO main.{table}({list}) SELECT {list} FROM old.{table}"
    ))?;
    let count =
        |schema: &str| db.query_row(&format!("SELECT count(*) FROM {schema}.{table}"), [], |row| row.get::<_, i64>(0));
    ensure!(count("main")? == count("old")?, "not all rows arrived");
    Ok(())
}

/// Everything in the schema is there, as it was written.
fn same_schema(db: &Connection) -> Result<()> {
    let of = |schema: &str| {
        let sql = format!(
            "SELECT type || ' ' || name || ' ' || tbl_name, coalesce(sql, '') FROM {schema}.sqlite_schema ORDER BY 1"
        );
        pairs(db, &sql)
    };
    ensure!(of("main")? == of("old")?, "the schema of the new file differs");
    Ok(())
}
