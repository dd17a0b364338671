//! Restoring: the files of a state, applied one after the other, become a plain SQLite file.

use crate::ltx::Header;
use crate::plan::{Target, plan};
use crate::state::{Sink, apply, byte_bar};
use crate::store::{Store, list_all};
use anyhow::{Context, Result, ensure};
use onewrite_core::inspect::log_path;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes `dest`, which must not be there, whole or not at all. Answers the transaction whose state it is.
pub fn restore(store: &dyn Store, dest: &Path, target: Target) -> Result<u64> {
    check_dest(dest)?;
    let mut entries = list_all(store)?;
    if let Target::Before(time_ms) = target {
        store.tell_times(&mut entries, time_ms)?;
    }
    let plan = plan(&entries, target)?;
    let dir = match dest.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let what = || format!("cannot write in {}", dir.display());
    // What any new database gets; the process's mask is applied.
    let access = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new()
        .prefix(".onewrite-restore-")
        .permissions(access)
        .tempfile_in(dir)
        .with_context(what)?;
    let bar = byte_bar("restoring");
    let applied = apply(store, &plan, &mut Pages(file.as_file()), &bar);
    bar.finish_and_clear();
    applied?;
    file.as_file().sync_all().with_context(|| format!("cannot flush the database in {}", dir.display()))?;
    let named = file.persist_noclobber(dest);
    named.map_err(|e| e.error).with_context(|| format!("cannot give the database the name {}", dest.display()))?;
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| format!("cannot flush {}", dir.display()))?;
    Ok(plan.last().map_or(0, |entry| entry.name.max))
}

/// What lies beside a database would be taken for its own: a journal would be rolled back into it, a log would refuse it.
pub(crate) fn check_dest(dest: &Path) -> Result<()> {
    let beside = |suffix| {
        let mut name = dest.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let there = |path: &Path| match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e).with_context(|| format!("cannot look at {}", path.display())),
    };
    ensure!(!there(dest)?, "{} is there already: move it away, or choose another name", dest.display());
    for other in [beside("-journal"), beside("-wal"), log_path(dest)] {
        let belongs = "belongs to another database, and would be read with this one: move it away";
        ensure!(!there(&other)?, "{} {belongs}", other.display());
    }
    Ok(())
}

struct Pages<'a>(&'a File);

impl Sink for Pages<'_> {
    fn begin(&mut self, header: &Header) -> Result<()> {
        // Pages behind the end are gone, also if the database grows again.
        let bytes = u64::from(header.pages) * u64::from(header.page_bytes);
        self.0.set_len(bytes).context("cannot write the database")
    }

    fn page(&mut self, header: &Header, page: u32, image: &[u8]) -> Result<()> {
        let at = u64::from(page.saturating_sub(1)) * u64::from(header.page_bytes);
        self.0.write_all_at(image, at).context("cannot write the database")
    }
}
