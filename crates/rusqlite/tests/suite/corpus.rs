//! The SQL corpus: scripts that touch each storage feature, run by sqllogictest on stock SQLite in
//! several journal modes and through onewrite in each preset. Every answer is the one in the
//! script. After close stock SQLite finds the same in files that are byte-equal but for the
//! header's counters, versions and WAL mark (invariant I5).

use crate::support;

use std::fs;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use sqllogictest::{DB, DBOutput, DefaultColumnType, Runner};
use support::{Answer, BY_STOCK, STOCK, add_noise, assert_same, contents, explain, one, open_stock, run};

/// How the main database of a run is opened: a name, URI parameters, and a pragma.
const SIDES: [(&str, &str, &str); 10] = [
    ("delete", BY_STOCK, "PRAGMA journal_mode=delete"),
    ("truncate", BY_STOCK, "PRAGMA journal_mode=truncate"),
    ("persist", BY_STOCK, "PRAGMA journal_mode=persist"),
    ("memory", BY_STOCK, "PRAGMA journal_mode=memory"),
    ("wal", BY_STOCK, "PRAGMA journal_mode=wal"),
    ("log", "vfs=onewrite&scheme=log", ""),
    ("log, small", "vfs=onewrite&scheme=log&stream_size=64k&log_size=256k&table_size=64k", ""),
    ("wal-opt", "vfs=onewrite&scheme=wal-opt", ""),
    ("off", "vfs=onewrite&scheme=off", ""),
    ("off-opt", "vfs=onewrite&scheme=off-opt", ""),
];

/// Scripts with settings that SQLite does not take in WAL mode.
const NOT_IN_WAL: [&str; 3] = ["files", "page_sizes", "space"];

/// A connection as sqllogictest sees one. `{dir}` and `{vfs}` in a statement stand for the run's.
struct Side {
    db: Connection,
    dir: String,
    vfs: &'static str,
}

#[derive(Debug)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl DB for Side {
    type Error = Failed;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failed> {
        let sql = sql.replace("{dir}", &self.dir).replace("{vfs}", self.vfs);
        let columns = self.db.prepare(&sql).map_err(|e| Failed(explain(&e).1))?.column_count();
        let answer = run(&self.db, &sql);
        if answer.code != 0 {
            return Err(Failed(answer.message));
        }
        if columns == 0 {
            return Ok(DBOutput::StatementComplete(answer.after.0));
        }
        let rows = answer.rows.iter().map(|row| row.iter().map(text).collect()).collect();
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows })
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(n) => n.to_string(),
        Value::Real(r) => format!("{r:?}"),
        Value::Text(t) if t.is_empty() => "(empty)".to_owned(),
        Value::Text(t) => t.clone(),
        Value::Blob(b) => b.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn connect(dir: &Path, (_, parameters, pragma): (&str, &str, &str)) -> Side {
    let uri = format!("file:{}?{parameters}", dir.join("main.db").display());
    let db = Connection::open_with_flags(&uri, OpenFlags::default()).unwrap();
    db.busy_timeout(std::time::Duration::ZERO).unwrap();
    add_noise(&db);
    if !pragma.is_empty() {
        one::<String>(&db, pragma);
    }
    if parameters.starts_with(BY_STOCK) {
        // The files do not depend on flushes, and without these the test is quick.
        db.pragma_update(None, "synchronous", "off").unwrap();
    }
    let vfs = if parameters.starts_with(BY_STOCK) { STOCK.to_str().unwrap() } else { "onewrite" };
    Side { db, dir: dir.display().to_string(), vfs }
}

/// A database that a run left.
struct Left {
    name: String,
    /// Without the parts that may differ: WAL mark, change counter, library version.
    bytes: Vec<u8>,
    contents: Vec<(String, Answer)>,
}

fn left(dir: &Path) -> Vec<Left> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".db") {
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        for changing in [18..20, 24..28, 92..100] {
            bytes.get_mut(changing).unwrap_or_default().fill(0);
        }
        let db = open_stock(&path);
        assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok", "{name}");
        all.push(Left { name, bytes, contents: contents(&db, "main") });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn run_script(script: &Path, side: (&'static str, &'static str, &'static str)) -> Vec<Left> {
    let dir = tempfile::tempdir().unwrap();
    let mut runner = Runner::new(|| async { Ok(connect(dir.path(), side)) });
    if let Err(e) = runner.run_file(script) {
        panic!("{} on {}: {e}", script.display(), side.0);
    }
    drop(runner);
    left(dir.path())
}

fn check(name: &str) {
    onewrite_rusqlite::register().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/corpus/{name}.slt"));
    let stock = run_script(&script, SIDES[0]);
    assert!(!stock.is_empty(), "{name} leaves a database");
    for side in &SIDES[1..] {
        let wal = side.0 == "wal";
        if wal && NOT_IN_WAL.contains(&name) {
            continue;
        }
        let ours = run_script(&script, *side);
        assert_eq!(ours.len(), stock.len(), "{name} on {}: databases", side.0);
        for (ours, stock) in ours.iter().zip(&stock) {
            let what = format!("{name} on {}: {}", side.0, stock.name);
            assert_eq!(ours.name, stock.name, "{what}");
            assert_same(&what, &stock.contents, &ours.contents);
            assert_eq!(ours.bytes.len(), stock.bytes.len(), "{what}: bytes of the file");
            // A page that a transaction frees need not be written to the WAL: the content of free
            // pages differs.
            let at = ours.bytes.iter().zip(&stock.bytes).position(|(a, b)| a != b);
            assert!(at.is_none() || wal, "{what}: byte {at:?}");
        }
    }
}

/// A test for each script, and one that no script is left out.
macro_rules! scripts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        #[test]
        fn every_script_is_run() {
            let mut there: Vec<_> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            there.sort();
            assert_eq!(there, [$(concat!(stringify!($name), ".slt")),*]);
        }
    };
}

scripts!(changes conflicts connections files large page_sizes schema space tables);
