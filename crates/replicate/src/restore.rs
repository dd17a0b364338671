//! Restoring: the files of a state, applied in order, become a plain SQLite file.

use crate::fence;
use crate::follow::is_replica;
use crate::host;
use crate::local::{Passing, beside, directory, is_there, sync};
use crate::ltx::Header;
use crate::plan::{Target, look, newest, plan};
use crate::report::{Level, say};
use crate::state::{Sink, apply, byte_bar};
use crate::store::{Entry, Store};
use crate::times::read_times;
use anyhow::{Context, Result, ensure};
use onewrite_core::Repair;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::log_path;
use onewrite_rusqlite::STOCK_VFS;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::{NamedTempFile, TempPath};

/// Attempts, as a file may be merged and removed while it is being read.
const TRIES: u32 = 3;

/// The state that was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Its transaction.
    pub txid: u64,
    /// When the shipper read it, in milliseconds since 1970.
    pub time_ms: i64,
    /// The store has no newer one.
    pub is_newest: bool,
}

/// Makes `dest` whole or not at all, with the shipped database's permissions.
pub fn restore(store: &dyn Store, dest: &Path, target: Target, how: RestoreOptions) -> Result<Restored> {
    restore_by(store, dest, target, &|| mode(store), how)
}

/// How to restore. By default the database must not be there, and is not checked by SQLite.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions {
    /// Replaces a database that no process uses.
    pub replaces: bool,
    /// The pragma that checks the database before it gets its name.
    pub check: Option<&'static str>,
}

/// The files that would be read, and whether they make the store's newest state.
pub fn planned(store: &dyn Store, target: Target) -> Result<(Vec<Entry>, bool)> {
    let (plan, newest) = find(store, target)?;
    let is_newest = plan.last().is_some_and(|last| last.name.max == newest);
    Ok((plan, is_newest))
}

/// Permissions if the store does not have the database's.
pub const PRIVATE: u32 = 0o600;

pub(crate) fn mode(store: &dyn Store) -> u32 {
    match fence::owner(store) {
        Ok(owner) => owner.and_then(|owner| owner.mode()).unwrap_or(PRIVATE),
        Err(e) => {
            let message = format!("the permissions of the database are not known, its owner alone gets any: {e:#}");
            say(Level::Warning, "no_mode", &[], &message);
            PRIVATE
        }
    }
}

/// As [`restore`], with these permissions, of a database that is not there.
pub(crate) fn restore_as(store: &dyn Store, dest: &Path, target: Target, mode: &dyn Fn() -> u32) -> Result<Restored> {
    restore_by(store, dest, target, mode, RestoreOptions::default())
}

fn restore_by(
    store: &dyn Store,
    dest: &Path,
    target: Target,
    mode: &dyn Fn() -> u32,
    how: RestoreOptions,
) -> Result<Restored> {
    let dest = &if how.replaces && is_there(dest)? { check_replaced(dest)? } else { dest.to_owned() };
    let replaces = how.replaces && is_there(dest)?;
    if !replaces {
        check_dest(dest)?;
    }
    let dir = directory(dest);
    let what = || format!("cannot write in {}", dir.display());
    let (mut plan, mut newest) = find(store, target)?;
    let mode = mode();
    let mut tries = 1;
    loop {
        // No other user may open it before it is whole.
        let mut named = tempfile::Builder::new();
        host::with_mode(named.prefix(".onewrite-restore-"), mode & PRIVATE);
        let make = || named.tempfile_in(dir);
        let (_passing, file) = Passing::make(make).with_context(what)?;
        let bar = byte_bar("restoring");
        let mut pages = Pages::new(file.as_file(), dest);
        let applied = apply(store, &plan, &mut pages, &bar);
        let time_ms = pages.time_ms;
        bar.finish_and_clear();
        if let Err(e) = applied {
            match find(store, target) {
                Ok((now, newest_now)) if tries < TRIES && now != plan => (plan, newest) = (now, newest_now),
                _ => return Err(e),
            }
            tries += 1;
            continue;
        }
        if let Some(pragma) = how.check {
            check_by_sqlite(file.path(), pragma)?;
        }
        let permitted = host::set_file_mode(file.as_file(), mode);
        permitted.with_context(|| format!("cannot set the permissions of the database in {}", dir.display()))?;
        file.as_file().sync_all().with_context(|| format!("cannot flush the database in {}", dir.display()))?;
        name_as(file, dest, replaces)?;
        let txid = plan.last().map_or(0, |entry| entry.name.max);
        return Ok(Restored { txid, time_ms, is_newest: txid == newest });
    }
}

/// The path of a database that may be replaced, without links.
fn check_replaced(dest: &Path) -> Result<PathBuf> {
    let dest = host::resolved(dest).with_context(|| format!("cannot look at {}", dest.display()))?;
    let shown = dest.display();
    ensure!(dest.is_file(), "{shown} is not a regular file");
    ensure!(!is_replica(&dest)?, "{shown} is a replica, which `onewrite follow` keeps up to date: move it away");
    hold(&dest)?;
    Ok(dest)
}

/// Keeps other processes from the database until dropped; an error if one uses it.
fn hold(dest: &Path) -> Result<Repair> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    Repair::open(disk, dest, OpenMode::ReadWrite).with_context(|| format!("cannot replace {}", dest.display()))
}

/// Gives a durable file its name. Of a database that it replaces, the files beside it go first:
/// they belong to that one.
fn name_as(file: NamedTempFile, dest: &Path, replaces: bool) -> Result<()> {
    let what = || format!("cannot give the database the name {}", dest.display());
    if !replaces {
        file.persist_noclobber(dest).map_err(|e| e.error).with_context(what)?;
        return sync(directory(dest));
    }
    let held = hold(dest)?;
    for other in [beside(dest, "-journal"), beside(dest, "-wal"), beside(dest, "-shm"), held.log_path()] {
        match std::fs::remove_file(&other) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("cannot remove {}", other.display()));
            }
            _ => {}
        }
    }
    sync(directory(dest))?;
    file.persist(dest).map_err(|e| e.error).with_context(what)?;
    sync(directory(dest))
}

/// Lets SQLite check a file that has no name yet.
fn check_by_sqlite(file: &Path, pragma: &str) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let path = percent_encode(file.as_os_str().as_encoded_bytes(), NON_ALPHANUMERIC);
    let found = Connection::open_with_flags_and_vfs(format!("file:{path}?immutable=1"), flags, STOCK_VFS)
        .and_then(|db| db.query_row(&format!("PRAGMA {pragma}(1)"), [], |row| row.get::<_, String>(0)));
    let found = found.with_context(|| format!("SQLite cannot check what was restored ({pragma})"))?;
    ensure!(found == "ok", "SQLite finds an error in what was restored ({pragma}): {found}");
    Ok(())
}

fn find(store: &dyn Store, target: Target) -> Result<(Vec<Entry>, u64)> {
    look(store, |entries| {
        if let Target::Before(time_ms) = target {
            read_times(store, entries, time_ms)?;
        }
        Ok((plan(entries, target)?, newest(entries)))
    })
}

/// Gives a durable file the name `dest`, which must not be there.
pub(crate) fn name(file: &Path, dest: &Path) -> Result<()> {
    let what = || format!("cannot give the database the name {}", dest.display());
    let named = TempPath::try_from_path(file).with_context(what)?.persist_noclobber(dest);
    named.map_err(|e| e.error).with_context(what)?;
    sync(directory(dest))
}

/// Refuses a name with leftovers: SQLite would roll a journal back into the database, and a log
/// would refuse it.
pub fn check_dest(dest: &Path) -> Result<()> {
    ensure!(!is_there(dest)?, "{} is there already: move it away, or choose another name", dest.display());
    for other in [beside(dest, "-journal"), beside(dest, "-wal"), log_path(dest)] {
        let belongs = "belongs to another database, and would be read with this one: move it away";
        ensure!(!is_there(&other)?, "{} {belongs}", other.display());
    }
    Ok(())
}

/// Adjacent pages are written together, up to this many bytes.
const WRITE_BYTES: usize = 1 << 20;

/// Writes the pages of files into a database that has no name yet.
pub struct Pages<'a> {
    file: &'a File,
    dest: &'a Path,
    bytes: Vec<u8>,
    at: u64,
    time_ms: i64,
}

impl<'a> Pages<'a> {
    /// Writes into `file`; errors name it `dest`.
    pub fn new(file: &'a File, dest: &'a Path) -> Pages<'a> {
        Pages { file, dest, bytes: Vec::with_capacity(WRITE_BYTES), at: 0, time_ms: 0 }
    }

    fn what(&self) -> String {
        format!("cannot write {}", self.dest.display())
    }

    fn flush(&mut self) -> Result<()> {
        host::write_all_at(self.file, &self.bytes, self.at).with_context(|| self.what())?;
        self.bytes.clear();
        Ok(())
    }
}

impl Sink for Pages<'_> {
    fn begin(&mut self, header: &Header) -> Result<()> {
        self.flush()?;
        self.time_ms = header.time_ms;
        // Pages behind the end are lost, even if the database grows again.
        let bytes = u64::from(header.pages) * u64::from(header.page_bytes);
        self.file.set_len(bytes).with_context(|| self.what())
    }

    fn page(&mut self, header: &Header, page: u32, image: &[u8]) -> Result<()> {
        let at = u64::from(page.saturating_sub(1)) * u64::from(header.page_bytes);
        if self.bytes.len() >= WRITE_BYTES || at != self.at + self.bytes.len() as u64 {
            self.flush()?;
            self.at = at;
        }
        self.bytes.extend_from_slice(image);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.flush()
    }
}
