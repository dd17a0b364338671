//! Out of SQLite's WAL mode.
//!
//! The caller keeps all others from the file (rule ModeUnderLock). Each step is durable before the
//! next (rule WalBeforeHome):
//!
//! ```text
//! step                                                    a crash here leaves
//! index removed; WAL rewritten, flushed, its name too     a database in WAL mode
//! pages home, flushed                                     the same: the WAL still has them
//! header: rollback journal, new change counter and size   a plain file with everything, and its
//!                                                         WAL beside it, which says the same
//! WAL removed, directory flushed                          a plain file
//! ```
//!
//! SQLite takes a WAL beside a file for its own, whatever the header says, and so does this.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::{be_u32, home as at, wal};
use crate::base::memory::{self, Room};
use crate::base::rules::{Case, keeps};
use crate::database::Database;
use crate::disk::beside;
use crate::disk::{DiskFile, OpenMode};
use crate::sqlite_format::home::{self, State};
use crate::sqlite_format::wal::WalHead;

const CHUNK_BYTES: u64 = 256 << 10;
/// The page that SQLite locks has no frame.
const GAP_BYTES: u64 = 65536;

struct Committed {
    /// Position of the newest image.
    images: FxHashMap<u32, u64>,
    page_count: u32,
    page_bytes: u32,
    frames: u64,
    end: u64,
}

enum WalContent {
    Nothing,
    Committed(Committed),
    Stays(String),
}

fn scan(file: &dyn DiskFile, what: &dyn Fn() -> String) -> Result<WalContent> {
    let mut first = [0; wal::HEADER_BYTES];
    let got = file.read_at(&mut first, 0).context(what)?;
    let mut chain = match WalHead::decode(first.get(..got).unwrap_or_default()) {
        WalHead::Nothing => return Ok(WalContent::Nothing),
        WalHead::Version(version) => {
            return Ok(WalContent::Stays(format!("its WAL is of the unknown version {version}")));
        }
        WalHead::Chain(chain) => chain,
    };
    let page_bytes = chain.page_bytes;
    let mut frame = memory::zeros(wal::FRAME_HEAD_BYTES.saturating_add(page_bytes as usize))?;
    let mut at = wal::HEADER_BYTES as u64;
    // With its last frame.
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut all = Committed { images: FxHashMap::default(), page_count: 0, page_bytes, frames: 0, end: 0 };
    while file.read_at(&mut frame, at).context(what)? == frame.len() {
        let Some((page, commit)) = chain.next(&frame) else { break };
        open.room(1)?;
        open.push((page, at.saturating_add(wal::FRAME_HEAD_BYTES as u64)));
        at = at.saturating_add(frame.len() as u64);
        if commit != 0 {
            all.images.room(open.len())?;
            all.frames = all.frames.saturating_add(open.len() as u64);
            all.images.extend(open.drain(..));
            (all.page_count, all.end) = (commit, at);
        }
    }
    Ok(if all.end == 0 { WalContent::Nothing } else { WalContent::Committed(all) })
}

fn names(db: &Database) -> [PathBuf; 2] {
    let mut index = db.path.as_os_str().to_owned();
    index.push(wal::INDEX_SUFFIX);
    [db.wal_path().to_owned(), index.into()]
}

/// A WAL beside a name that the file lost is another's.
pub fn is_beside(db: &Database) -> Result<bool> {
    Ok(db.disk.exists(db.wal_path()).context(|| db.what("cannot look for the WAL of"))? && db.has_name()?)
}

/// Acts up to [`discard`]. Returns the reason if the WAL must stay, unchanged.
pub fn leave(db: &Database, state: &State) -> Result<Option<String>> {
    let what = || db.what("cannot take out of WAL mode");
    if !db.has_name()? {
        return Ok(Some("its file has another name by now".into()));
    }
    let [log, index] = names(db);
    let mut committed = None;
    let file = match db.disk.exists(&log).context(what)? {
        true => Some(beside::open(&*db.disk, &log, OpenMode::ReadWrite, &*db.home, what)?),
        false => None,
    };
    if let Some(file) = &file {
        match scan(&**file, &what)? {
            WalContent::Stays(why) => return Ok(Some(why)),
            WalContent::Committed(found) => committed = Some(found),
            WalContent::Nothing => {}
        }
    }
    let bytes = db.home.len().context(what)?;
    if let Some(why) = contradicts(state, bytes, committed.as_ref()) {
        return Ok(Some(why));
    }
    // If the index cannot be removed, neither can the WAL.
    let had_index = match remove(db, &index) {
        Ok(had) => had,
        Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            return Ok(Some(format!("files beside it cannot be removed: {e}")));
        }
        Err(e) => return Err(Error::io(what(), e)),
    };
    if let (Some(file), Some(committed)) = (&file, &committed) {
        let end = u64::from(committed.page_count).saturating_mul(u64::from(committed.page_bytes));
        match db.home.reserve(end).context(what) {
            Err(e) if e.is_short() => return Ok(Some(format!("there is no room for what its WAL has: {e}"))),
            reserved => reserved?,
        }
        if keeps(Case::WalBeforeHome) {
            write_again(&**file, committed.end, &what)?;
            file.sync().context(what)?;
        }
        if had_index || keeps(Case::WalBeforeHome) {
            db.disk.sync_dir_of(&log).context(what)?;
        }
        bring_home(db, &**file, committed, &what)?;
        db.home.set_len(end).context(what)?;
        if keeps(Case::HomeBeforeWalGoes) {
            db.sync_home()?;
        }
    } else if had_index {
        db.disk.sync_dir_of(&log).context(what)?;
    }
    // Without a WAL, the file is the same in either mode.
    let is_same = file.is_none() && !had_index;
    put_header(db, state, committed.map_or(state.page_count, |committed| committed.page_count), &what)?;
    if !is_same && keeps(Case::HomeBeforeWalGoes) {
        db.sync_home()?;
    }
    Ok(None)
}

/// A removal that is undone would put the WAL beside a changed file (rule WalBeforeHome).
pub fn discard(db: &Database) -> Result<()> {
    let what = || db.what("cannot remove the WAL of");
    // The removal by a dead process is flushed before the mark (rule LogBeforeMark).
    if remove(db, db.wal_path()).context(what)? { db.disk.sync_dir_of(db.wal_path()).context(what) } else { Ok(()) }
}

fn remove(db: &Database, path: &Path) -> io::Result<bool> {
    match db.disk.remove(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// SQLite reports the same.
fn contradicts(state: &State, bytes: u64, committed: Option<&Committed>) -> Option<String> {
    let page_bytes = u64::from(state.page_bytes);
    match committed {
        None => (bytes < state.bytes()).then(|| "it is shorter than its header states".to_owned()),
        Some(found) if found.page_bytes != state.page_bytes => {
            Some(format!("its WAL has pages of {} bytes, and it itself of {page_bytes}", found.page_bytes))
        }
        Some(found) => {
            let known = bytes.saturating_add(GAP_BYTES).saturating_add(found.frames.saturating_mul(page_bytes));
            let end = u64::from(found.page_count).saturating_mul(page_bytes);
            (end > known).then(|| "its WAL states a size of which the pages are missing".to_owned())
        }
    }
}

/// After a dead process's failed flush the content may be in the cache only.
fn write_again(file: &dyn DiskFile, end: u64, what: &dyn Fn() -> String) -> Result<()> {
    let mut buf = memory::zeros_of(CHUNK_BYTES.min(end))?;
    let mut at = 0;
    while at < end {
        let room = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(buf.len());
        let part = buf.get_mut(..room).unwrap_or_default();
        if file.read_at(part, at).context(what)? < part.len() {
            return Err(Error::Corrupt(format!("{}: its WAL has become shorter", what())));
        }
        file.write_at(part, at).context(what)?;
        at = at.saturating_add(part.len() as u64);
    }
    Ok(())
}

fn bring_home(db: &Database, file: &dyn DiskFile, committed: &Committed, what: &dyn Fn() -> String) -> Result<()> {
    let mut image = memory::zeros(committed.page_bytes as usize)?;
    let mut pages: Vec<(u32, u64)> = Vec::new();
    pages.room(committed.images.len())?;
    pages.extend(
        committed.images.iter().map(|(page, at)| (*page, *at)).filter(|(page, _)| *page <= committed.page_count),
    );
    pages.sort_unstable();
    for (page, at) in pages {
        if file.read_at(&mut image, at).context(what)? < image.len() {
            return Err(Error::Corrupt(format!("{}: its WAL has become shorter", what())));
        }
        let to = u64::from(page.saturating_sub(1)).saturating_mul(u64::from(committed.page_bytes));
        db.home.write_at(&image, to).context(what)?;
    }
    Ok(())
}

/// The counter is a new one, as SQLite changes the mode: no cache is of this state (rule
/// OneNumberOneState).
fn put_header(db: &Database, state: &State, page_count: u32, what: &dyn Fn() -> String) -> Result<()> {
    let mut first = [0; at::HEADER_BYTES];
    let got = db.home.read_at(&mut first, 0).context(what)?;
    if got < first.len() || !first.starts_with(at::MAGIC) || home::page_bytes(&first) != Some(state.page_bytes) {
        return Err(Error::Corrupt(format!("{}: the first page in its WAL is not a database's", what())));
    }
    let counter = be_u32(&first, at::CHANGE_COUNTER).unwrap_or(0);
    home::put_rollback(&mut first);
    home::put_counter(&mut first, counter.wrapping_add(1));
    home::put_page_count(&mut first, page_count);
    db.home.write_at(&first, 0).context(what)
}
