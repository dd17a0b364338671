//! Processes of a simulated machine: connections through onewrite, and through SQLite's own
//! storage.
//!
//! A check runs inside a call of its history, so each level of nesting has its own VFSs, engine and
//! machine.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use onewrite_core::disk::sim::{SplitMix64, under};
use onewrite_core::{Engine, Error, Instant};
use parking_lot::Mutex;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OpenFlags, ffi};

use super::machine::Socket;
use super::plain;
use super::statements::{self, Shape};
use crate::hook::HookDisk;
use crate::pager::Synchronous;

/// The directory of the databases, which the real machine does not have.
pub const DIRECTORY: &str = "/onewrite-sim";

/// The databases: the main one, the one attached to it, and one more.
pub const FILES: [&str; 3] = ["main.db", "side.db", "third.db"];

/// The SQL names of the first two.
pub const SCHEMAS: [&str; 2] = ["main", "side"];

/// A history's second process, beside level 0.
pub const BESIDE: usize = usize::MAX;

/// A thread's level of nesting, or [`BESIDE`] one.
#[derive(Clone)]
pub struct Level {
    socket: Socket,
    plain: &'static CStr,
    onewrite: &'static CStr,
    engine: Arc<Engine>,
}

/// A thread's levels; they go to the next one, since SQLite never releases a VFS.
struct Levels(HashMap<usize, Level>);

static FREE: Mutex<Vec<HashMap<usize, Level>>> = Mutex::new(Vec::new());

impl Drop for Levels {
    fn drop(&mut self) {
        FREE.lock().push(std::mem::take(&mut self.0));
    }
}

thread_local! {
    static LEVELS: RefCell<Levels> = RefCell::new(Levels(FREE.lock().pop().unwrap_or_default()));
}

/// This thread's level `depth`.
pub fn level(depth: usize) -> Level {
    LEVELS.with_borrow_mut(|levels| levels.0.entry(depth).or_insert_with(|| under(None, Level::new)).clone())
}

/// Behind a violation threads may hold on to this thread's levels: it gets others.
pub fn abandon_levels() {
    LEVELS.with_borrow_mut(|levels| std::mem::forget(std::mem::take(&mut levels.0)));
}

impl Level {
    fn new() -> Self {
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| -> &'static CStr {
            let name = CString::new(format!("{what}-{number}")).unwrap_or_default();
            Box::leak(name.into_boxed_c_str())
        };
        let (plain, onewrite) = (name("plain-sim"), name("onewrite-sim"));
        let socket = Socket::default();
        plain::register(plain, socket.clone());
        // SAFETY: the functions are those of the SQLite this program is linked to.
        let registered =
            unsafe { onewrite::register_over(&onewrite_rusqlite::api(), onewrite, Arc::new(socket.clone()), plain) };
        let engine = registered.expect("onewrite registers on a simulated machine");
        // Whether a lock is kept for the next reader depends on the time between two.
        engine.on_attach(|within| within.is_some_and(|within| within >= Duration::from_secs(1)));
        Self { socket, plain, onewrite, engine }
    }

    /// Starts a machine; the old one is dead.
    pub fn boot(&self, disk: HookDisk) {
        self.socket.boot(disk, false, false);
    }

    /// The same; its user may only read the files, or write them too.
    pub fn boot_as(&self, disk: HookDisk, only_reads: bool) {
        self.socket.boot(disk, only_reads, false);
    }

    /// The same; its threads see each other's reads and writes in parts.
    pub fn boot_with_threads(&self, disk: HookDisk, only_reads: bool) {
        self.socket.boot(disk, only_reads, true);
    }

    /// Kills the machine.
    pub fn halt(&self) {
        self.socket.halt();
    }

    /// The process dies after `calls` more disk calls.
    pub fn die_after(&self, calls: u64) {
        self.socket.die_after(calls);
    }

    /// Whether the process lives.
    pub fn is_alive(&self) -> bool {
        self.socket.is_alive()
    }

    /// What the thread for idle databases does at `now`.
    pub fn look_after(&self, now: Instant, failed: impl Fn(&Path, &Error)) {
        self.engine.look_after(now, failed);
    }

    /// What a process does that ends by `exit()`.
    pub fn rest(&self, failed: impl Fn(&Path, &Error)) {
        self.engine.rest(failed);
    }

    /// Opens `file` through onewrite.
    pub fn open(&self, file: usize, options: &[(String, String)]) -> rusqlite::Result<Connection> {
        let parameters: Vec<String> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let uri = format!("file:{DIRECTORY}/{}?{}", FILES[file], parameters.join("&"));
        connect(&uri, self.onewrite)
    }

    /// Opens `file` without onewrite.
    pub fn open_plain(&self, file: usize) -> rusqlite::Result<Connection> {
        connect(&format!("file:{DIRECTORY}/{}", FILES[file]), self.plain)
    }

    /// The URI of `file` for `ATTACH`.
    pub fn uri(&self, file: usize, options: &[(String, String)]) -> String {
        let parameters: Vec<String> = options.iter().map(|(name, value)| format!("&{name}={value}")).collect();
        let vfs = self.onewrite.to_string_lossy();
        format!("file:{DIRECTORY}/{}?vfs={vfs}{}", FILES[file], parameters.concat())
    }
}

fn connect(uri: &str, vfs: &CStr) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags_and_vfs(uri, flags, vfs)?;
    db.busy_timeout(Duration::ZERO)?;
    Ok(db)
}

/// Attaches the second database. An expected failure is BUSY: the close of the connection forgets
/// the reason.
pub fn attach_side(
    db: &Connection,
    uri: String,
    is_expected: impl FnOnce(&rusqlite::Error) -> bool,
) -> rusqlite::Result<()> {
    db.execute("ATTACH ?1 AS side", [uri]).map(|_| ()).map_err(|e| match is_expected(&e) {
        true => rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None),
        false => e,
    })
}

/// The first `bytes` of the file may be read in mapped memory.
pub fn map_pages(db: &Connection, schema: &str, bytes: usize) -> rusqlite::Result<()> {
    db.execute_batch(&format!("PRAGMA {schema}.mmap_size={bytes}"))
}

/// Settings of a connection for the first `files`; `shape`: it may make them.
pub fn set_up(
    db: &Connection,
    files: usize,
    synchronous: Synchronous,
    cache: usize,
    journal: Option<&str>,
    mapped: usize,
    shape: Option<Shape>,
) -> rusqlite::Result<()> {
    let level = [0, 1, 2][synchronous as usize];
    for schema in &SCHEMAS[..files] {
        db.execute_batch(&format!("PRAGMA {schema}.synchronous={level}; PRAGMA {schema}.cache_size={cache}"))?;
        map_pages(db, schema, mapped)?;
        if let Some(journal) = journal {
            db.execute_batch(&format!("PRAGMA {schema}.journal_mode={journal}"))?;
        }
        if let Some(shape) = shape {
            // Without effect once there is a page.
            db.execute_batch(&statements::settings(shape, schema))?;
        }
    }
    db.execute_batch("PRAGMA temp_store=2")
}

/// Adds the SQL function `noise(seed, bytes)`, a deterministic blob.
pub fn add_noise(db: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function("noise", 2, flags, |args| {
        let (seed, bytes): (i64, i64) = (args.get(0)?, args.get(1)?);
        let bytes = usize::try_from(bytes).unwrap_or(0);
        let mut rng = SplitMix64::new(seed.cast_unsigned());
        let mut blob = Vec::with_capacity(bytes + 8);
        while blob.len() < bytes {
            blob.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        blob.truncate(bytes);
        Ok(blob)
    })
}

/// Extended code and message.
pub fn explain(error: &rusqlite::Error) -> (i32, String) {
    match error {
        rusqlite::Error::SqliteFailure(code, message) => (code.extended_code, message.clone().unwrap_or_default()),
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.extended_code, msg.clone()),
        other => (ffi::SQLITE_INTERNAL, other.to_string()),
    }
}
