//! Restoring: the files of a state, applied in order, become a plain SQLite file.

use crate::fence;
use crate::local::{Passing, beside, directory, is_there, sync};
use crate::ltx::Header;
use crate::plan::{Target, look, newest, plan};
use crate::report::{Level, say};
use crate::state::{Sink, apply, byte_bar};
use crate::store::{Entry, Store};
use crate::times::read_times;
use anyhow::{Context, Result, ensure};
use onewrite_core::inspect::log_path;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use tempfile::TempPath;

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

/// Makes `dest`, which must not be there, whole or not at all, with the shipped database's
/// permissions.
pub fn restore(store: &dyn Store, dest: &Path, target: Target) -> Result<Restored> {
    restore_as(store, dest, target, &|| mode(store))
}

/// Permissions if the store does not have the database's.
pub(crate) const PRIVATE: u32 = 0o600;

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

/// As [`restore`], with these permissions.
pub(crate) fn restore_as(store: &dyn Store, dest: &Path, target: Target, mode: &dyn Fn() -> u32) -> Result<Restored> {
    check_dest(dest)?;
    let dir = directory(dest);
    let what = || format!("cannot write in {}", dir.display());
    let (mut plan, mut newest) = find(store, target)?;
    let mode = mode();
    let mut tries = 1;
    loop {
        // No other user may open it before it is whole.
        let access = Permissions::from_mode(mode & PRIVATE);
        let make =
            || tempfile::Builder::new().prefix(".onewrite-restore-").permissions(access.clone()).tempfile_in(dir);
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
        let permitted = file.as_file().set_permissions(Permissions::from_mode(mode));
        permitted.with_context(|| format!("cannot set the permissions of the database in {}", dir.display()))?;
        file.as_file().sync_all().with_context(|| format!("cannot flush the database in {}", dir.display()))?;
        let named = file.persist_noclobber(dest);
        named.map_err(|e| e.error).with_context(|| format!("cannot give the database the name {}", dest.display()))?;
        sync(dir)?;
        let txid = plan.last().map_or(0, |entry| entry.name.max);
        return Ok(Restored { txid, time_ms, is_newest: txid == newest });
    }
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
pub(crate) fn check_dest(dest: &Path) -> Result<()> {
    ensure!(!is_there(dest)?, "{} is there already: move it away, or choose another name", dest.display());
    for other in [beside(dest, "-journal"), beside(dest, "-wal"), log_path(dest)] {
        let belongs = "belongs to another database, and would be read with this one: move it away";
        ensure!(!is_there(&other)?, "{} {belongs}", other.display());
    }
    Ok(())
}

/// Adjacent pages are written together, up to this many bytes.
const WRITE_BYTES: usize = 1 << 20;

struct Pages<'a> {
    file: &'a File,
    dest: &'a Path,
    bytes: Vec<u8>,
    at: u64,
    time_ms: i64,
}

impl<'a> Pages<'a> {
    fn new(file: &'a File, dest: &'a Path) -> Pages<'a> {
        Pages { file, dest, bytes: Vec::with_capacity(WRITE_BYTES), at: 0, time_ms: 0 }
    }

    fn what(&self) -> String {
        format!("cannot write {}", self.dest.display())
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all_at(&self.bytes, self.at).with_context(|| self.what())?;
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
