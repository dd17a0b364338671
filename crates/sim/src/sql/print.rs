//! Prints of states: a hash of all that SQL can see of a database.

use std::hash::Hasher;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use rustc_hash::FxHasher;

/// Tells states of a database apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Print {
    /// Hash of the schema, `user_version` and every row.
    pub hash: u64,
    /// Number of rows, for messages.
    pub rows: u32,
}

/// Reads in the connection's current transaction.
pub fn print(db: &Connection, schema: &str) -> rusqlite::Result<Print> {
    print_slowly(db, schema, |_| ())
}

/// The same; before each row `pause` is called with the number of those before.
pub fn print_slowly(db: &Connection, schema: &str, pause: impl Fn(u32)) -> rusqlite::Result<Print> {
    let mut hasher = FxHasher::default();
    let mut rows = 0;
    let version: i64 = db.query_row(&format!("PRAGMA {schema}.user_version"), [], |row| row.get(0))?;
    hasher.write_i64(version);
    let mut tables: Vec<String> = Vec::new();
    {
        let sql = format!("SELECT name, type, tbl_name, sql FROM {schema}.sqlite_schema ORDER BY name");
        let mut statement = db.prepare(&sql)?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let name: String = row.get(0)?;
            for column in 0..4 {
                hash(&mut hasher, row.get_ref(column)?);
            }
            if row.get_ref(1)?.as_bytes().is_ok_and(|kind| kind == b"table") {
                tables.push(name);
            }
        }
    }
    for table in tables {
        let mut statement = db.prepare(&format!("SELECT * FROM {schema}.\"{table}\""))?;
        let columns = statement.column_count();
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            pause(rows);
            rows += 1;
            for column in 0..columns {
                hash(&mut hasher, row.get_ref(column)?);
            }
        }
    }
    Ok(Print { hash: hasher.finish(), rows })
}

fn hash(hasher: &mut FxHasher, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => hasher.write_u8(0),
        ValueRef::Integer(n) => hasher.write_i64(n),
        ValueRef::Real(x) => hasher.write_u64(x.to_bits()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        }
    }
}
