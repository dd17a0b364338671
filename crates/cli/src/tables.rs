//! The tables of a database, by SQLite's `integrity_check` on one consistent state, of which
//! nothing is written back.
//!
//! Where processes use the database, this is one more reader. Where none does, the caller's locks
//! keep it as it is, and it is opened on a [`Scratch`] disk through onewrite: in the state that an
//! open to write would find, behind recovery.

use crate::live;
use crate::look::Look;
use crate::scratch::Scratch;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use onewrite_core::disk::Disk;
use onewrite_core::inspect::layout::SYNC_SUFFIX;
use onewrite_core::inspect::path_beside;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::ffi::CStr;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Problems that SQLite lists at most.
const PROBLEMS_MAX: usize = 100;
/// SQLite's cache, in KiB: an index is compared with its table row by row, in any order.
const CACHE_KIB: u32 = 64 << 10;
/// The VFS on the scratch disk.
const VFS: &CStr = c"onewrite-check";

/// The outcome of a check of tables.
pub enum Tables {
    /// They were left out.
    Left,
    /// SQLite finds nothing.
    Sound,
    /// SQLite lists these problems.
    Damaged(Vec<String>),
    /// They could not be checked, for this reason.
    Unchecked(String),
    /// Others were in the way, for this reason: it may go at another time.
    Busy(String),
}

/// Checks the tables of a database that others use, with a reader of its own. With `quick` that
/// reader begins, and no more.
pub fn check_live(path: &Path, quick: bool) -> Tables {
    let db = match live::open(path) {
        Ok(_) if quick => return Tables::Left,
        Ok(db) => db,
        Err(e) => return judge(Err(e)),
    };
    let bar = ProgressBar::new_spinner().with_message("checking the tables");
    bar.set_style(style("{msg} {spinner} {elapsed}"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let found = problems(&db);
    bar.finish_and_clear();
    judge(found.map_err(|e| live::explain(path, e)))
}

/// Checks the tables of a database that is locked by `look`.
pub fn check_locked(look: &Look) -> Tables {
    let path = look.repair.path();
    let disk = match scratch() {
        Ok(disk) => disk,
        Err(why) => return Tables::Unchecked(why),
    };
    disk.clear();
    // Commits that wait for a store keep sessions from beginning (rule StoreHasIt): no commit of
    // this one is shipped.
    let _none_is_there = disk.remove(&path_beside(path, SYNC_SUFFIX));
    let (over, is_over) = mpsc::channel::<()>();
    let found = std::thread::scope(|scope| {
        scope.spawn(move || show_progress(look, disk, &is_over));
        let found = open_scratch(path).and_then(|db| problems(&db));
        drop(over);
        found
    });
    let found = judge(found.map_err(|e| live::explain(path, e)));
    disk.clear();
    found
}

/// Asks a connection that would write to the database, which is locked by `look`. No file changes.
pub fn ask_locked<T>(look: &Look, ask: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
    let path = look.repair.path();
    let disk = scratch().map_err(anyhow::Error::msg)?;
    disk.clear();
    let answer = open_scratch(path).and_then(|db| ask(&db)).map_err(|e| live::explain(path, e));
    disk.clear();
    answer
}

/// The scratch disk, on which the VFS is registered.
fn scratch() -> Result<&'static Scratch, String> {
    static DISK: OnceLock<Result<Arc<Scratch>, String>> = OnceLock::new();
    let registered = DISK.get_or_init(|| {
        let disk = Arc::new(Scratch::default());
        onewrite_rusqlite::register_on_disk(VFS, disk.clone()).map_err(|e| e.message)?;
        Ok(disk)
    });
    registered.as_ref().map(|disk| &**disk).map_err(Clone::clone)
}

fn open_scratch(path: &Path) -> rusqlite::Result<Connection> {
    // Writes stay on the scratch disk, so the open recovers without a permission to write.
    Connection::open_with_flags_and_vfs(path, OpenFlags::SQLITE_OPEN_READ_WRITE, VFS)
}

/// The problems that SQLite lists.
fn problems(db: &Connection) -> rusqlite::Result<Vec<String>> {
    db.execute_batch(&format!("PRAGMA cache_size=-{CACHE_KIB}; PRAGMA trusted_schema=OFF"))?;
    let mut check = db.prepare(&format!("PRAGMA integrity_check({PROBLEMS_MAX})"))?;
    let (mut listed, mut rows) = (Vec::new(), check.query([])?);
    loop {
        match rows.next() {
            Ok(Some(row)) => listed.push(row.get::<_, String>(0)?),
            Ok(None) => break,
            // The list ends where the damage lets SQLite read no further.
            Err(e) if listed.is_empty() => return Err(e),
            Err(e) => {
                listed.push(e.to_string());
                break;
            }
        }
    }
    listed.retain(|problem| problem != "ok");
    Ok(listed)
}

fn judge(found: Result<Vec<String>>) -> Tables {
    let e = match found {
        Ok(listed) if listed.is_empty() => return Tables::Sound,
        Ok(listed) => {
            return Tables::Damaged(listed.iter().flat_map(|problem| problem.lines()).map(printable).collect());
        }
        Err(e) => e,
    };
    let why = format!("{e:#}");
    match e.downcast_ref::<live::Unread>().and_then(|unread| unread.code) {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Tables::Damaged(vec![why]),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Tables::Busy(why),
        _ => Tables::Unchecked(why),
    }
}

/// A line of SQLite's, which may have names from the file in it.
fn printable(line: &str) -> String {
    line.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// A bar of the bytes of the database that were read, on a terminal, until the check is over.
fn show_progress(look: &Look, disk: &Scratch, is_over: &mpsc::Receiver<()>) {
    let bar = progress(look.home_bytes, "checking the tables");
    while is_over.recv_timeout(Duration::from_millis(200)) == Err(RecvTimeoutError::Timeout) {
        bar.set_position(disk.bytes_read(look.repair.path()));
    }
    bar.finish_and_clear();
}

/// A bar for that many bytes, hidden where there are few.
pub fn progress(bytes: u64, what: &'static str) -> ProgressBar {
    const LONG: u64 = 64 << 20;
    if bytes < LONG {
        return ProgressBar::hidden();
    }
    // On standard error, and only where that is a terminal.
    let bar = ProgressBar::new(bytes).with_message(what);
    bar.set_style(style("{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}"));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
