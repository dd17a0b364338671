//! The cost of a random insert with each way of splitting pages: pages changed, log bytes, pages of
//! the file. `cargo run --release -p onewrite-sqlite --example split_cost [-- ROWS [VALUE_BYTES]]`
//! measures in the current directory.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Instant;

// Links the library; its functions are declared below.
use sqlite3 as _;

/// An open connection.
struct Db(*mut c_void);

// As `sqlite3.h` declares them, with opaque pointers.
unsafe extern "C" {
    fn sqlite3_open_v2(name: *const c_char, db: *mut *mut c_void, flags: c_int, vfs: *const c_char) -> c_int;
    fn sqlite3_close(db: *mut c_void) -> c_int;
    fn sqlite3_errmsg(db: *mut c_void) -> *const c_char;
    fn sqlite3_prepare_v2(
        db: *mut c_void,
        sql: *const c_char,
        bytes: c_int,
        statement: *mut *mut c_void,
        tail: *mut *const c_char,
    ) -> c_int;
    fn sqlite3_bind_int64(statement: *mut c_void, index: c_int, value: i64) -> c_int;
    fn sqlite3_step(statement: *mut c_void) -> c_int;
    fn sqlite3_reset(statement: *mut c_void) -> c_int;
    fn sqlite3_column_text(statement: *mut c_void, column: c_int) -> *const c_char;
    fn sqlite3_finalize(statement: *mut c_void) -> c_int;
    fn sqlite3_file_control(db: *mut c_void, schema: *const c_char, op: c_int, arg: *mut c_void) -> c_int;
}

const ROW: c_int = 100;
const DONE: c_int = 101;
/// Read-write, create, URI.
const OPEN_FLAGS: c_int = 0x2 | 0x4 | 0x40;
const ROWS_BEFORE: u64 = 2000;

impl Db {
    fn open(uri: &str) -> Db {
        let uri = CString::new(uri).unwrap();
        let mut db = null_mut();
        // SAFETY: the name lives across the call, and the answer is an open connection.
        let rc = unsafe { sqlite3_open_v2(uri.as_ptr(), &mut db, OPEN_FLAGS, null()) };
        assert_eq!(rc, 0, "{uri:?} does not open");
        Db(db)
    }

    /// Runs a statement and answers with its last row's first column.
    fn run(&self, sql: &str) -> String {
        let statement = self.prepare(sql);
        let mut answer = String::new();
        // SAFETY: the statement is of this connection and finalised below; the text is read before
        // the next step.
        unsafe {
            loop {
                match sqlite3_step(statement) {
                    ROW => {
                        let text = sqlite3_column_text(statement, 0);
                        if !text.is_null() {
                            answer = CStr::from_ptr(text).to_string_lossy().into_owned();
                        }
                    }
                    DONE => break,
                    _ => panic!("{sql}: {}", self.message()),
                }
            }
            sqlite3_finalize(statement);
        }
        answer
    }

    fn prepare(&self, sql: &str) -> *mut c_void {
        let text = CString::new(sql).unwrap();
        let mut statement = null_mut();
        // SAFETY: the connection is open and the text lives across the call.
        let rc = unsafe { sqlite3_prepare_v2(self.0, text.as_ptr(), -1, &mut statement, null_mut()) };
        assert_eq!(rc, 0, "{sql}: {}", self.message());
        statement
    }

    fn message(&self) -> String {
        // SAFETY: the connection is open; the text is copied at once.
        unsafe { CStr::from_ptr(sqlite3_errmsg(self.0)) }.to_string_lossy().into_owned()
    }

    /// Inserts rows with random keys, and answers with the nanoseconds each took.
    fn insert(&self, keys: &mut Keys, load: Load, rows: u64) -> f64 {
        let statement = self.prepare(&format!("INSERT INTO t VALUES (?1, randomblob({}))", load.value_bytes));
        let start = Instant::now();
        for _ in 0..rows {
            // SAFETY: the statement is of this connection and finalised below.
            let rc = unsafe {
                sqlite3_bind_int64(statement, 1, keys.next());
                let rc = sqlite3_step(statement);
                sqlite3_reset(statement);
                rc
            };
            assert_eq!(rc, DONE, "{}", self.message());
        }
        let each = start.elapsed().as_nanos() as f64 / rows as f64;
        // SAFETY: as above.
        unsafe { sqlite3_finalize(statement) };
        each
    }

    /// One counter of `PRAGMA onewrite_stats`.
    fn counter(&self, name: &str) -> u64 {
        let stats = self.run("PRAGMA onewrite_stats");
        let value = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
        value.parse().unwrap()
    }

    /// Nanoseconds that asking for the policy takes.
    fn ask(&self) -> f64 {
        let asks = 1_000_000;
        let mut answer = [0_u32; 2];
        let start = Instant::now();
        for _ in 0..asks {
            // SAFETY: the connection is open, and the argument has the size of the structure it
            // takes.
            let rc = unsafe { sqlite3_file_control(self.0, null(), 0x6f77_0001, answer.as_mut_ptr().cast()) };
            assert_eq!(rc, 0);
        }
        start.elapsed().as_nanos() as f64 / f64::from(asks)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: open, and not used again.
        unsafe { sqlite3_close(self.0) };
    }
}

/// The rows to insert.
#[derive(Clone, Copy)]
struct Load {
    rows: u64,
    value_bytes: u64,
}

/// Keys in random order, the same in each run.
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 1) as i64
    }
}

fn main() {
    let number = |at, default| env::args().nth(at).map_or(default, |n| n.parse().expect("arguments are numbers"));
    let load = Load { rows: number(1, 10_000), value_bytes: number(2, 128) };
    let dir = tempfile::tempdir_in(".").expect("the current directory is writable");
    println!(
        "{} random inserts of a key and {} B, one transaction each, {ROWS_BEFORE} rows before, pages of 4096 B",
        load.rows, load.value_bytes
    );
    println!("                                    pages/insert             log");
    println!(
        "scheme secure_delete split           all  but page 1    B/insert file pages   µs/insert in one transaction"
    );
    for secure_delete in ["off", "on"] {
        for split in [("stock", 0), ("lazy", 0), ("lazy", 1), ("legacy", 0)] {
            measure(dir.path(), "log", secure_delete, split, load);
        }
    }
    for scheme in ["dhl-cc", "lsmvbt"] {
        for split in [("stock", 0), ("lazy", 0), ("lazy", 1)] {
            measure(dir.path(), scheme, "off", split, load);
        }
    }
    let db = Db::open(&uri(dir.path(), "ask.db", "log", ("lazy", 0)));
    db.run("CREATE TABLE t(k)");
    println!("asking the VFS for the policy: {:.0} ns", db.ask());
}

/// `how`: the policy of splits, and the cells that both halves keep room for.
fn uri(dir: &Path, name: &str, scheme: &str, how: (&str, u32)) -> String {
    let (split, cells) = how;
    // The in-page schemes need pages that the device writes whole, and a file system in memory says
    // nothing of it.
    let unit = if scheme == "log" { 0 } else { 4096 };
    format!(
        "file:{}/{name}?vfs=onewrite&scheme={scheme}&atomic_unit={unit}&split={split}&reserve_cells={cells}",
        dir.display()
    )
}

fn measure(dir: &Path, scheme: &str, secure_delete: &str, how: (&str, u32), load: Load) {
    let (split, reserve_cells) = how;
    let name = format!("{scheme}-{split}-{reserve_cells}-{secure_delete}.db");
    let db = Db::open(&uri(dir, &name, scheme, how));
    db.run(&format!("PRAGMA secure_delete={secure_delete}"));
    db.run("CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)");
    let mut keys = Keys(0x9e37_79b9_7f4a_7c15);
    db.run("BEGIN");
    db.insert(&mut keys, load, ROWS_BEFORE);
    db.run("COMMIT");
    let pages_before: u64 = db.run("PRAGMA page_count").parse().unwrap();
    let counters = || ["commits", "record_pages", "record_bytes", "in_place_pages"].map(|name| db.counter(name));
    let before = counters();
    db.insert(&mut keys, load, load.rows);
    let after = counters();
    let [commits, recorded, bytes, in_place] = [0, 1, 2, 3].map(|n| (after[n] - before[n]) as f64);
    let pages = recorded + in_place;
    let file_pages: u64 = db.run("PRAGMA page_count").parse().unwrap();
    // Page 1 changes when the database grows: inserts alone leave nothing else of it to change. In
    // place, it stays.
    let page_1 = if scheme == "log" { (file_pages - pages_before) as f64 } else { 0.0 };
    db.run("BEGIN");
    let bulk_ns = db.insert(&mut keys, load, 100_000);
    db.run("COMMIT");
    assert_eq!(db.run("PRAGMA integrity_check"), "ok");
    println!(
        "{scheme:<6} {secure_delete:<13} {:<12} {:>6.3} {:>11.3} {:>11.0} {file_pages:>10} {:>11.2}",
        format!("{split} {reserve_cells}"),
        pages / commits,
        (pages - page_1) / commits,
        bytes / commits,
        bulk_ns / 1000.0
    );
}
