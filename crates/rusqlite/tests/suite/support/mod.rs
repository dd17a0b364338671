//! Shared by the tests: connections, statements run for comparison, contents of databases, child
//! processes.

#![allow(dead_code)]

pub mod generator;
pub mod mounted;
#[cfg(unix)]
pub mod posix;
pub mod remote;

use std::ffi::c_int;
use std::path::Path;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

use generator::Rng;

/// Opens a database through onewrite, with URI parameters.
pub fn open(path: &Path, parameters: &str) -> rusqlite::Result<Connection> {
    onewrite_rusqlite::open(format!("file:{}?{parameters}", path.display()))
}

/// SQLite's own VFS.
pub const STOCK: &std::ffi::CStr = if cfg!(windows) { c"win32" } else { c"unix" };
/// It, as a parameter of a URI.
pub const BY_STOCK: &str = if cfg!(windows) { "vfs=win32" } else { "vfs=unix" };

/// Opens a database with SQLite's own VFS.
pub fn open_stock(path: &Path) -> Connection {
    Connection::open_with_flags_and_vfs(path, OpenFlags::default(), STOCK).unwrap()
}

pub fn one<T: rusqlite::types::FromSql>(db: &Connection, sql: &str) -> T {
    db.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// The extended code and the message of an error of SQLite's.
pub fn explain(error: &rusqlite::Error) -> (c_int, String) {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => (code.extended_code, message.clone().unwrap_or_default()),
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.extended_code, msg.clone()),
        other => panic!("not an error of SQLite's: {other}"),
    }
}

/// Gives a connection the SQL function `noise(seed, bytes)`: a deterministic blob that does not
/// compress.
pub fn add_noise(db: &Connection) {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function("noise", 2, flags, |args| {
        let (seed, bytes): (i64, i64) = (args.get(0)?, args.get(1)?);
        let mut rng = Rng::new(seed as u64);
        let bytes = usize::try_from(bytes).unwrap_or(0);
        let mut blob = Vec::with_capacity(bytes + 8);
        while blob.len() < bytes {
            blob.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        blob.truncate(bytes);
        Ok(blob)
    })
    .unwrap();
}

/// Rows of a statement, and the code it ended with.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The rows before the end.
    pub rows: Vec<Vec<Value>>,
    /// 0 or SQLite's extended result code.
    pub code: c_int,
    /// SQLite's message.
    pub message: String,
    /// Rows changed, last rowid, whether no transaction is open afterwards.
    pub after: (u64, i64, bool),
}

impl Answer {
    fn new(db: &Connection, rows: Vec<Vec<Value>>, ended: rusqlite::Result<()>) -> Answer {
        let (code, message) = ended.map_or_else(|e| explain(&e), |()| (0, String::new()));
        Answer { rows, code, message, after: (db.changes(), db.last_insert_rowid(), db.is_autocommit()) }
    }
}

/// Runs one statement to its end.
pub fn run(db: &Connection, sql: &str) -> Answer {
    run_with(db, sql, usize::MAX, || ())
}

/// Runs one statement, with something else after its first rows.
pub fn run_with(db: &Connection, sql: &str, first: usize, between: impl FnOnce()) -> Answer {
    let mut rows = Vec::new();
    let mut between = Some(between);
    let ended = (|| {
        let mut statement = db.prepare(sql)?;
        let columns = statement.column_count();
        let mut cursor = statement.query([])?;
        loop {
            if rows.len() == first
                && let Some(between) = between.take()
            {
                between();
            }
            let Some(row) = cursor.next()? else { return Ok(()) };
            rows.push((0..columns).map(|i| row.get_unwrap(i)).collect());
        }
    })();
    Answer::new(db, rows, ended)
}

/// Contents of one database of a connection: each table and its rows, and the answers of pragmas.
pub fn contents(db: &Connection, schema: &str) -> Vec<(String, Answer)> {
    let mut all = Vec::new();
    for pragma in ["user_version", "application_id", "page_size", "page_count", "freelist_count", "auto_vacuum"] {
        all.push((pragma.to_owned(), run(db, &format!("PRAGMA {schema}.{pragma}"))));
    }
    let tables = run(db, &format!("SELECT name, sql, type FROM {schema}.sqlite_schema ORDER BY name"));
    for row in &tables.rows {
        if let [Value::Text(name), Value::Text(sql), Value::Text(kind)] = row.as_slice()
            && kind == "table"
            && !sql.starts_with("CREATE VIRTUAL")
        {
            all.push((name.clone(), run(db, &format!("SELECT * FROM {schema}.\"{name}\""))));
        }
    }
    all.push(("schema".into(), tables));
    for (_, answer) in &mut all {
        answer.after = (0, 0, true);
    }
    all
}

/// Panics with the first difference of two contents.
pub fn assert_same(what: &str, stock: &[(String, Answer)], ours: &[(String, Answer)]) {
    for ((name, a), (other, b)) in stock.iter().zip(ours) {
        assert_eq!(name, other, "{what}: different tables");
        assert_same_answer(&format!("{what}: {name}"), a, b);
    }
    assert_eq!(stock.len(), ours.len(), "{what}: different number of tables");
}

/// Panics with the first difference of two answers.
pub fn assert_same_answer(what: &str, stock: &Answer, ours: &Answer) {
    if stock == ours {
        return;
    }
    let row = stock.rows.iter().zip(&ours.rows).position(|(a, b)| a != b);
    let shown = |a: &Answer| {
        let row = row.and_then(|n| a.rows.get(n)).map(|r| format!("{r:?}").chars().take(400).collect::<String>());
        format!("code {} ({}), {} rows, after {:?}, row {row:?}", a.code, a.message, a.rows.len(), a.after)
    };
    panic!("{what}: first different row {row:?}\n  stock:    {}\n  onewrite: {}", shown(stock), shown(ours));
}
