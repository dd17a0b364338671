//! The same random SQL on stock SQLite and through onewrite: every statement answers the same, and
//! after each close stock SQLite finds the file in order and the rows equal (invariants I4, I5).
//!
//! `ONEWRITE_SEEDS=n` runs n seeds for each preset instead of a few. `ONEWRITE_STEPS=n` makes each
//! n steps long. `ONEWRITE_SEED=n` runs one seed alone. `ONEWRITE_TRACE=1` prints each statement.

use crate::support;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};
use support::generator::{Facts, Generator, Rng, Shape, Step};
use support::{
    Answer, BY_STOCK, add_noise, assert_same, assert_same_answer, contents, explain, one, open_stock, run, run_with,
};
use tempfile::TempDir;

const SEEDS: u64 = 5;
const STEPS: u64 = 250;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{variable}={v}: not a number")))
}

fn run_seeds(preset: &str) {
    let steps = number("ONEWRITE_STEPS").unwrap_or(STEPS);
    let seeds = match number("ONEWRITE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ONEWRITE_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        differential(preset, seed, steps);
    }
}

#[test]
fn log_answers_as_stock_does() {
    run_seeds("log");
}

#[test]
fn wal_opt_answers_as_stock_does() {
    run_seeds("wal-opt");
}

#[test]
fn off_answers_as_stock_does() {
    run_seeds("off");
}

#[test]
fn off_opt_answers_as_stock_does() {
    run_seeds("off-opt");
}

#[test]
fn doubleheader_logging_answers_as_stock_does() {
    run_seeds("dhl-cc");
    run_seeds("dhl-tc");
}

#[test]
fn multi_version_b_trees_answer_as_stock_does() {
    run_seeds("lsmvbt");
    run_seeds("mvbt");
}

#[cfg_attr(any(feature = "portable", target_os = "android"), ignore = "POSIX exchanges no names")]
#[test]
fn database_shadowing_answers_as_stock_does() {
    run_seeds("dash");
}

/// Whether pages need room for trailers: then they have 4096 bytes, on both sides.
fn in_page(preset: &str) -> bool {
    ["dhl-cc", "dhl-tc", "lsmvbt", "mvbt"].contains(&preset)
}

/// A step that would leave pages without that room.
fn takes_the_room(step: &Step) -> bool {
    match step {
        Step::BackupIn { .. } => true,
        Step::Sql(_, text) => text.contains("page_size=") || text.contains("auto_vacuum="),
        _ => false,
    }
}

/// A step that would take the stock side to WAL mode.
fn asks_for_wal(step: &Step) -> bool {
    matches!(step, Step::Sql(_, text) if text.to_ascii_lowercase().contains("journal_mode=wal"))
}

/// One of the two that are compared.
struct Side {
    dir: PathBuf,
    /// Parameters of the main database's URI.
    main: String,
    /// Parameters of the attached databases' URIs.
    attached: [String; 2],
    connections: Vec<Connection>,
    /// New databases get the room that those of the other side have.
    reserves: Option<u8>,
}

fn connect(path: &Path, parameters: &str) -> Connection {
    let uri = format!("file:{}?{parameters}", path.display());
    let db = Connection::open_with_flags(&uri, OpenFlags::default()).unwrap_or_else(|e| panic!("{uri}: {e}"));
    db.busy_timeout(std::time::Duration::ZERO).unwrap();
    add_noise(&db);
    db
}

/// Reserved bytes of the pages of a new database with these parameters.
fn reserved(dir: &Path, parameters: &str) -> u8 {
    let path = dir.join("reserved.db");
    connect(&path, parameters).execute_batch("CREATE TABLE t(a)").unwrap();
    fs::read(&path).unwrap()[20]
}

impl Side {
    fn open(&mut self) {
        let path = self.dir.join("main.db");
        self.connections = (0..2).map(|_| connect(&path, &self.main)).collect();
        if self.main.contains("wal=absorb") {
            for db in &self.connections {
                assert_eq!(one::<String>(db, "PRAGMA journal_mode=wal"), "wal");
            }
        }
        if let Some(bytes) = self.reserves {
            self.connections.iter().for_each(|db| onewrite_rusqlite::reserve_bytes(db, bytes).unwrap());
        }
    }

    fn text(&self, sql: &str) -> String {
        let dir = self.dir.display().to_string();
        sql.replace("{dir}", &dir).replace("{vfs1}", &self.attached[0]).replace("{vfs2}", &self.attached[1])
    }

    fn sql(&self, connection: usize, sql: &str) -> Answer {
        run(&self.connections[connection], &self.text(sql))
    }

    fn everything(&self) -> Vec<(String, Answer)> {
        let db = &self.connections[0];
        let mut all = contents(db, "main");
        for name in attached(db) {
            all.extend(contents(db, &name));
        }
        all
    }

    fn backup_out(&mut self, pages: i32, during: &str, into: &str) -> (Vec<String>, Answer) {
        let path = self.dir.join("backup.db");
        remove(&path);
        let mut to = connect(&path, into);
        let from = &self.connections[0];
        let backup = Backup::new(from, &mut to).unwrap();
        let mut steps = vec![step_text(backup.step(pages))];
        let answer = self.sql(0, during);
        for _ in 0..3 {
            steps.push(step_text(backup.step(-1)));
        }
        (steps, answer)
    }

    fn backup_in(&mut self, page_bytes: Option<u32>) -> Option<String> {
        let path = match page_bytes {
            None => self.dir.join("backup.db"),
            Some(bytes) => {
                let path = self.dir.join("other.db");
                remove(&path);
                let other = open_stock(&path);
                let sql = format!(
                    "PRAGMA page_size={bytes}; CREATE TABLE other(x); CREATE INDEX o ON other(x);
                     WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<400)
                     INSERT INTO other SELECT 'row ' || i FROM n"
                );
                other.execute_batch(&sql).unwrap();
                path
            }
        };
        if !path.exists() {
            return None;
        }
        let from = open_stock(&path);
        let backup = match Backup::new(&from, &mut self.connections[0]) {
            Ok(backup) => backup,
            Err(e) => return Some(format!("{:?}", explain(&e))),
        };
        Some(step_text(backup.step(-1)))
    }
}

fn step_text(step: rusqlite::Result<StepResult>) -> String {
    match step {
        Ok(done) => format!("{done:?}"),
        Err(e) => format!("{:?}", explain(&e)),
    }
}

fn remove(path: &Path) {
    for suffix in ["", "-journal", "-wal", "-shm", "-onewrite"] {
        let _ = fs::remove_file(format!("{}{suffix}", path.display()));
    }
}

/// Names of the attached databases.
fn attached(db: &Connection) -> Vec<String> {
    let list = run(db, "SELECT name FROM pragma_database_list WHERE name GLOB 'a*' ORDER BY name");
    list.rows.into_iter().flatten().filter_map(|v| if let Value::Text(name) = v { Some(name) } else { None }).collect()
}

/// Writes the steps if the test fails.
struct Trace {
    head: String,
    steps: RefCell<Vec<String>>,
}

impl Trace {
    fn add(&self, step: String) {
        if std::env::var_os("ONEWRITE_TRACE").is_some() {
            eprintln!("{step}");
        }
        self.steps.borrow_mut().push(step);
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let steps = self.steps.borrow();
            eprintln!("{}; the last of {} steps:", self.head, steps.len());
            for step in steps.iter().rev().take(40).rev() {
                eprintln!("  {}", step.chars().take(500).collect::<String>());
            }
        }
    }
}

/// An old snapshot and the rows that it saw.
struct Reader {
    db: Connection,
    saw: Vec<(String, Answer)>,
}

fn differential(preset: &str, seed: u64, steps: u64) {
    onewrite_rusqlite::register().unwrap();
    let dir = TempDir::new().unwrap();
    // Each preset has statements of its own.
    let mut rng = preset.bytes().fold(Rng::new(seed), |mut rng, byte| Rng::new(rng.next_u64() ^ u64::from(byte)));
    let page_bytes = if in_page(preset) { 4096 } else { [4096, 512, 65536, 1024, 8192][(seed % 5) as usize] };
    let auto_vacuum = if in_page(preset) { 0 } else { ((seed / 2) % 3) as u32 };
    let bytes_max = if page_bytes > 8192 { 6 << 20 } else { 1 << 20 };
    let mut parameters = format!("vfs=onewrite&scheme={preset}&busy_ms=0&atomic_unit=4096");
    // Either SQLite's own WAL mode is asked for and had on both sides, or ours begins as one that
    // was answered for.
    let absorbs = seed % 3 == 2;
    parameters.push_str(if absorbs { "&wal=absorb" } else { "&wal=stock" });
    let small = seed % 2 == 1;
    if small {
        parameters.push_str("&stream_size=64k&log_size=256k&table_size=128k");
    }
    let trace = Trace {
        head: format!(
            "ONEWRITE_SEED={seed} preset {preset}, page size {page_bytes}, auto_vacuum {auto_vacuum}, {parameters}"
        ),
        steps: RefCell::default(),
    };
    let mut sides = [("stock", BY_STOCK.to_owned()), ("ours", parameters.clone())].map(|(name, main)| {
        let dir = dir.path().join(name);
        fs::create_dir(&dir).unwrap();
        let attached = [if name == "ours" { "vfs=onewrite" } else { BY_STOCK }, BY_STOCK].map(str::to_owned);
        let reserves = (name == "stock" && in_page(preset)).then(|| reserved(dir.parent().unwrap(), &parameters));
        Side { dir, main, attached, connections: Vec::new(), reserves }
    });
    let shape = Shape { page_bytes, auto_vacuum, bytes_max, big_rows: 2500 };
    let mut generator = Generator::new(Rng::new(rng.next_u64()), shape);
    sides.iter_mut().for_each(Side::open);
    for text in generator.prologue() {
        let [a, b] = [sides[0].sql(0, &text), sides[1].sql(0, &text)];
        assert_eq!(a.code, 0, "{text}: {}", a.message);
        assert_same_answer(&text, &a, &b);
    }
    let mut reader: Option<Reader> = None;
    let mut n = 0;
    while n < steps || !generator.may_end() {
        n += 1;
        let facts = facts(&sides[0], reader.is_some());
        let step = generator.next(&facts);
        if (in_page(preset) && takes_the_room(&step)) || (absorbs && asks_for_wal(&step)) {
            continue;
        }
        let label = format!("{n}: {step:?}");
        trace.add(label.clone());
        match step {
            Step::Sql(connection, text) => {
                let [a, b] = [sides[0].sql(connection, &text), sides[1].sql(connection, &text)];
                if a.code != 0 {
                    trace.add(format!("{n}: -> {} {}", a.code, a.message));
                }
                assert_same_statement(&label, a, b);
            }
            Step::Cursor { sql, rows, during } => {
                let [a, b] = [&sides[0], &sides[1]].map(|side| {
                    let mut inner = Vec::new();
                    let outer = run_with(&side.connections[0], &sql, rows, || {
                        inner.extend(during.iter().map(|text| side.sql(0, text)));
                    });
                    (outer, inner)
                });
                for (n, (a, b)) in a.1.into_iter().zip(b.1).enumerate() {
                    assert_same_statement(&format!("{label} ({n})"), a, b);
                }
                assert_same_statement(&label, a.0, b.0);
            }
            Step::Blob { table, row, offset, data } => {
                let [a, b] = [&sides[0], &sides[1]].map(|side| write_blob(side, table, row, offset, &data));
                assert_eq!(a, b, "{label}");
            }
            Step::BackupOut { pages, during } => {
                let into = if rng.one_in(2) { "vfs=onewrite" } else { BY_STOCK };
                let a = sides[0].backup_out(pages, &during, BY_STOCK);
                let b = sides[1].backup_out(pages, &during, into);
                assert_eq!(a.0, b.0, "{label}");
                assert_same_statement(&label, a.1, b.1);
                assert_same_files(&label, &sides, "backup.db");
            }
            Step::BackupIn { page_bytes } => {
                let [a, b] = sides.each_mut().map(|side| side.backup_in(page_bytes));
                assert_eq!(a, b, "{label}");
            }
            Step::VacuumInto => {
                sides.iter().for_each(|side| remove(&side.dir.join("into.db")));
                let vfs = if rng.one_in(2) { "vfs=onewrite" } else { BY_STOCK };
                let text = |vfs: &str| format!("VACUUM INTO 'file:{{dir}}/into.db?{vfs}'");
                let [a, b] = [sides[0].sql(0, &text(BY_STOCK)), sides[1].sql(0, &text(vfs))];
                let made = a.code == 0;
                assert_same_statement(&label, a, b);
                if made {
                    assert_same_files(&label, &sides, "into.db");
                }
            }
            Step::Reader(true) if sides[1].main.contains("onewrite") => {
                let db = connect(&sides[1].dir.join("main.db"), &sides[1].main);
                db.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema").unwrap();
                let saw = contents(&db, "main");
                reader = Some(Reader { db, saw });
            }
            Step::Reader(_) => {
                if let Some(Reader { db, saw }) = reader.take() {
                    assert_same(&format!("{label}: the old snapshot"), &saw, &contents(&db, "main"));
                    db.execute_batch("COMMIT").unwrap();
                    if facts.autocommit {
                        assert_same(&label, &contents(&sides[0].connections[0], "main"), &contents(&db, "main"));
                    }
                }
            }
            Step::Compare => {
                assert_same(&label, &sides[0].everything(), &sides[1].everything());
                if let Some(Reader { db, saw }) = &reader {
                    assert_same(&format!("{label}: the old snapshot"), saw, &contents(db, "main"));
                }
            }
            Step::Reopen => {
                close(&label, &mut sides);
                // Every other time stock SQLite uses the file that onewrite wrote.
                sides[1].main = if rng.one_in(3) { BY_STOCK.into() } else { parameters.clone() };
                trace.add(format!("opened with {}", sides[1].main));
                let file = sides[1].dir.join("main.db");
                if absorbs && sides[1].main == BY_STOCK && file.exists() {
                    // The other side was not asked for WAL mode.
                    assert_eq!(one::<String>(&open_stock(&file), "PRAGMA journal_mode=delete"), "delete");
                }
                sides.iter_mut().for_each(Side::open);
            }
        }
    }
    if sides[1].main.contains("onewrite") {
        trace.add(one(&sides[1].connections[0], "PRAGMA onewrite_stats"));
    }
    if let Some(Reader { db, saw }) = reader {
        assert_same("the old snapshot at the end", &saw, &contents(&db, "main"));
    }
    close("at the end", &mut sides);
}

fn facts(stock: &Side, reader: bool) -> Facts {
    let db = &stock.connections[0];
    let number = |pragma| match run(db, &format!("PRAGMA main.{pragma}")).rows.first().map(Vec::as_slice) {
        Some([Value::Integer(n)]) => u64::try_from(*n).unwrap_or(0),
        _ => 0,
    };
    Facts {
        autocommit: db.is_autocommit(),
        wal: one::<String>(db, "PRAGMA main.journal_mode") == "wal",
        exclusive: one::<String>(db, "PRAGMA main.locking_mode") == "exclusive",
        attached: !attached(db).is_empty(),
        page_bytes: number("page_size"),
        reader,
        bytes: (number("page_count") - number("freelist_count")) * number("page_size"),
    }
}

fn assert_same_statement(label: &str, mut a: Answer, mut b: Answer) {
    // Paths differ; everything else in a message does not.
    for answer in [&mut a, &mut b] {
        if answer.message.contains('/') {
            answer.message.clear();
        }
    }
    assert_same_answer(label, &a, &b);
}

fn write_blob(side: &Side, table: &str, row: i64, offset: usize, data: &[u8]) -> Result<Vec<u8>, i32> {
    let code = |e: rusqlite::Error| match e {
        rusqlite::Error::BlobSizeError => -1,
        e => explain(&e).0,
    };
    let mut blob = side.connections[0].blob_open("main", table, "b", row, false).map_err(code)?;
    blob.write_at(data, offset).map_err(code)?;
    let mut back = vec![0; data.len()];
    blob.read_at_exact(&mut back, offset).map_err(code)?;
    blob.close().map_err(code)?;
    Ok(back)
}

/// A file of both sides, read by stock SQLite.
fn assert_same_files(label: &str, sides: &[Side; 2], name: &str) {
    let [a, b] = sides.each_ref().map(|side| {
        let db = open_stock(&side.dir.join(name));
        assert_eq!(one::<String>(&db, "PRAGMA integrity_check"), "ok", "{label}: {name} in {}", side.dir.display());
        contents(&db, "main")
    });
    assert_same(&format!("{label}: {name}"), &a, &b);
}

fn close(label: &str, sides: &mut [Side; 2]) {
    for side in sides.iter_mut() {
        for db in side.connections.drain(..) {
            db.close().unwrap_or_else(|(_, e)| panic!("{label}: close: {e}"));
        }
    }
    for name in ["main.db", "a1.db", "a2.db"] {
        let path = sides[1].dir.join(name);
        if !path.exists() {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        if let Some(header) = bytes.get(..100) {
            assert_eq!(header[18], header[19], "{label}: {name} carries a mark");
            assert_eq!(header[72..92], [0; 20], "{label}: {name} carries a session");
        }
        assert_same_files(label, sides, name);
        let db = open_stock(&path);
        if run(&db, "SELECT 1 FROM sqlite_schema WHERE name = 'f0'").rows.len() == 1 {
            let checked = run(&db, "INSERT INTO f0(f0) VALUES ('integrity-check')");
            assert_eq!(checked.code, 0, "{label}: {}", checked.message);
        }
    }
}
