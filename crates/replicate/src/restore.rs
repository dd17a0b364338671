//! Restoring: the files of a state, applied one after the other, become a plain SQLite file.

use crate::local::{Passing, beside, directory, is_there, sync};
use crate::ltx::Header;
use crate::plan::{Target, plan};
use crate::state::{Sink, apply, byte_bar};
use crate::store::{Entry, Store, list_all};
use anyhow::{Context, Result, ensure};
use onewrite_core::inspect::log_path;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use tempfile::TempPath;

/// So often it begins again, if a file was merged into another one and removed meanwhile.
const TRIES: u32 = 3;

/// Makes `dest`, which must not be there, whole or not at all. Answers the transaction whose state it is.
pub fn restore(store: &dyn Store, dest: &Path, target: Target) -> Result<u64> {
    check_dest(dest)?;
    let dir = directory(dest);
    let what = || format!("cannot write in {}", dir.display());
    let mut plan = find(store, target)?;
    let mut tries = 1;
    loop {
        // What any new database gets; the process's mask is applied.
        let access = Permissions::from_mode(0o666);
        let make =
            || tempfile::Builder::new().prefix(".onewrite-restore-").permissions(access.clone()).tempfile_in(dir);
        let (_passing, file) = Passing::make(make).with_context(what)?;
        let bar = byte_bar("restoring");
        let applied = apply(store, &plan, &mut Pages::new(file.as_file(), dest), &bar);
        bar.finish_and_clear();
        if let Err(e) = applied {
            match find(store, target) {
                Ok(now) if tries < TRIES && now != plan => plan = now,
                _ => return Err(e),
            }
            tries += 1;
            continue;
        }
        file.as_file().sync_all().with_context(|| format!("cannot flush the database in {}", dir.display()))?;
        let named = file.persist_noclobber(dest);
        named.map_err(|e| e.error).with_context(|| format!("cannot give the database the name {}", dest.display()))?;
        sync(dir)?;
        return Ok(plan.last().map_or(0, |entry| entry.name.max));
    }
}

/// Which files make it.
fn find(store: &dyn Store, target: Target) -> Result<Vec<Entry>> {
    let mut entries = list_all(store)?;
    if let Target::Before(time_ms) = target {
        store.tell_times(&mut entries, time_ms)?;
    }
    plan(&entries, target)
}

/// Gives a file, which is durable, the name `dest`, which must not be there.
pub(crate) fn name(file: &Path, dest: &Path) -> Result<()> {
    let what = || format!("cannot give the database the name {}", dest.display());
    let named = TempPath::try_from_path(file).with_context(what)?.persist_noclobber(dest);
    named.map_err(|e| e.error).with_context(what)?;
    sync(directory(dest))
}

/// What lies beside a database would be taken for its own: a journal would be rolled back into it, a log would refuse it.
pub(crate) fn check_dest(dest: &Path) -> Result<()> {
    ensure!(!is_there(dest)?, "{} is there already: move it away, or choose another name", dest.display());
    for other in [beside(dest, "-journal"), beside(dest, "-wal"), log_path(dest)] {
        let belongs = "belongs to another database, and would be read with this one: move it away";
        ensure!(!is_there(&other)?, "{} {belongs}", other.display());
    }
    Ok(())
}

/// Pages that lie behind each other are written at once, so many bytes.
const WRITE_BYTES: usize = 1 << 20;

struct Pages<'a> {
    file: &'a File,
    /// For errors: what it will be called.
    dest: &'a Path,
    /// What is still to be written, and where.
    bytes: Vec<u8>,
    at: u64,
}

impl<'a> Pages<'a> {
    fn new(file: &'a File, dest: &'a Path) -> Pages<'a> {
        Pages { file, dest, bytes: Vec::with_capacity(WRITE_BYTES), at: 0 }
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
        // Pages behind the end are gone, also if the database grows again.
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
