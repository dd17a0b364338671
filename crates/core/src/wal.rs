//! Out of SQLite's WAL mode: what is committed in the WAL goes home, and the file is one with a rollback journal again.
//!
//! The caller keeps everybody else from the file (rule ModeUnderLock). Each step is durable before the next (rule WalBeforeHome):
//!
//! | step | a crash here leaves |
//! |---|---|
//! | index removed, WAL written again and flushed, its name too | a database in WAL mode |
//! | pages home, flushed | the same: the WAL still has all of them |
//! | header: rollback journal, a new change counter, the size; flushed | a plain file that has everything, and its WAL beside it, which says the same |
//! | WAL removed, directory flushed | a plain file |
//!
//! SQLite takes a WAL beside a file for its own, whatever the header says, and so does this. What counts in it: frames
//! whose salt is the header's and whose checksums go on from the frame before, up to the last one that ends a
//! transaction.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::beside;
use crate::database::Database;
use crate::disk::{DiskFile, OpenMode};
use crate::error::{Error, IoContext, Result};
use crate::home::{self, State};
use crate::layout::{be_u32, home as at, put, wal};
use crate::memory::{self, Room};
use crate::rules::{Case, keeps};

/// Bytes written again at once.
const CHUNK_BYTES: u64 = 256 << 10;
/// Pages that no frame names may lie between the end of the file and the end of the database: the one that SQLite locks.
const GAP_BYTES: u64 = 65536;

/// The header of a WAL, and the checksum so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Page size in bytes.
    pub page_bytes: u32,
    big_endian: bool,
    salt: [u8; wal::SALT_BYTES],
    sums: (u32, u32),
}

/// What the first bytes of a WAL say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing is in it that counts.
    Nothing,
    /// Another version of the format.
    Version(u32),
    /// Frames follow.
    Chain(Chain),
}

impl Head {
    /// Decodes the header of a WAL.
    pub fn decode(bytes: &[u8]) -> Head {
        let field = |at| be_u32(bytes, at).unwrap_or(0);
        let (magic, page_bytes) = (field(wal::AT_MAGIC), field(wal::AT_PAGE_BYTES));
        let sized = page_bytes.is_power_of_two() && (512..=65536).contains(&page_bytes);
        let salt = bytes.get(wal::AT_SALT..wal::AT_CHECKSUM).and_then(|salt| salt.try_into().ok());
        let (Some(salt), Some(summed), true) = (salt, bytes.get(..wal::AT_CHECKSUM), magic & !1 == wal::MAGIC && sized)
        else {
            return Head::Nothing;
        };
        let big_endian = magic & 1 == 1;
        let sums = sum((0, 0), summed, big_endian);
        if sums != (field(wal::AT_CHECKSUM), field(wal::AT_CHECKSUM + 4)) || bytes.len() < wal::HEADER_BYTES {
            return Head::Nothing;
        }
        match field(wal::AT_VERSION) {
            wal::VERSION => Head::Chain(Chain { page_bytes, big_endian, salt, sums }),
            version => Head::Version(version),
        }
    }
}

impl Chain {
    /// The page that the next frame holds, and the size of the database in pages if it ends a transaction, else 0. `None`: the
    /// WAL ends before it.
    pub fn next(&mut self, frame: &[u8]) -> Option<(u32, u32)> {
        let (head, image) = frame.split_at_checked(wal::FRAME_HEAD_BYTES)?;
        let page = be_u32(head, wal::AT_FRAME_PAGE).filter(|page| *page != 0)?;
        let commit = be_u32(head, wal::AT_FRAME_COMMIT)?;
        let salt = head.get(wal::AT_FRAME_SALT..wal::AT_FRAME_CHECKSUM)?;
        if salt != self.salt || image.len() != self.page_bytes as usize {
            return None;
        }
        let sums = sum(self.sums, head.get(..wal::AT_FRAME_SALT)?, self.big_endian);
        let sums = sum(sums, image, self.big_endian);
        if (be_u32(head, wal::AT_FRAME_CHECKSUM)?, be_u32(head, wal::AT_FRAME_CHECKSUM + 4)?) != sums {
            return None;
        }
        self.sums = sums;
        Some((page, commit))
    }
}

/// SQLite's checksum of whole pairs of words.
fn sum(mut sums: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let word = |b: &[u8]| {
        let word = <[u8; 4]>::try_from(b).unwrap_or_default();
        if big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    };
    for pair in bytes.chunks_exact(8) {
        let (one, two) = pair.split_at(4);
        sums.0 = sums.0.wrapping_add(word(one)).wrapping_add(sums.1);
        sums.1 = sums.1.wrapping_add(word(two)).wrapping_add(sums.0);
    }
    sums
}

/// What is committed in a WAL.
struct Committed {
    /// Where the newest image of each page is.
    images: FxHashMap<u32, u64>,
    /// Size of the database in pages.
    page_count: u32,
    page_bytes: u32,
    frames: u64,
    /// Where it ends, in bytes.
    end: u64,
}

/// What a scan found.
enum Found {
    Nothing,
    Committed(Committed),
    Stays(String),
}

fn scan(file: &dyn DiskFile, what: &dyn Fn() -> String) -> Result<Found> {
    let mut first = [0; wal::HEADER_BYTES];
    let got = file.read_at(&mut first, 0).context(what)?;
    let mut chain = match Head::decode(first.get(..got).unwrap_or_default()) {
        Head::Nothing => return Ok(Found::Nothing),
        Head::Version(version) => return Ok(Found::Stays(format!("its WAL is of the unknown version {version}"))),
        Head::Chain(chain) => chain,
    };
    let page_bytes = chain.page_bytes;
    let mut frame = memory::zeros(wal::FRAME_HEAD_BYTES.saturating_add(page_bytes as usize))?;
    let mut at = wal::HEADER_BYTES as u64;
    // Those of a transaction count when its last one is there.
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
    Ok(if all.end == 0 { Found::Nothing } else { Found::Committed(all) })
}

/// The names of the WAL and of its index.
fn names(db: &Database) -> [PathBuf; 2] {
    let mut index = db.path.as_os_str().to_owned();
    index.push(wal::INDEX_SUFFIX);
    [db.wal_path().to_owned(), index.into()]
}

/// Whether a WAL lies beside the file. What lies beside its name is another's if the file has lost it.
pub fn is_beside(db: &Database) -> Result<bool> {
    Ok(db.disk.exists(db.wal_path()).context(|| db.what("cannot look for the WAL of"))? && db.has_name()?)
}

/// Takes the database, of which `state` is what its first bytes say, out of WAL mode, up to the removal of the WAL
/// ([`discard`]). Answers why it stays in it, if it does: then nothing has happened to it.
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
            Found::Stays(why) => return Ok(Some(why)),
            Found::Committed(found) => committed = Some(found),
            Found::Nothing => {}
        }
    }
    let bytes = db.home.len().context(what)?;
    if let Some(why) = contradicts(state, bytes, committed.as_ref()) {
        return Ok(Some(why));
    }
    // Made anew by whoever needs it. Where it cannot be removed, neither can the WAL.
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
    put_header(db, state, committed.map_or(state.page_count, |committed| committed.page_count), &what)?;
    if keeps(Case::HomeBeforeWalGoes) {
        db.sync_home()?;
    }
    Ok(None)
}

/// Removes the WAL of a database that [`leave`] took out of WAL mode. A name that is not gone for good may come back
/// beside a file that has changed since (rule WalBeforeHome).
pub fn discard(db: &Database) -> Result<()> {
    let what = || db.what("cannot remove the WAL of");
    remove(db, db.wal_path()).context(what)?;
    db.disk.sync_dir_of(db.wal_path()).context(what)
}

/// Removes a file; false if there is none.
fn remove(db: &Database, path: &Path) -> io::Result<bool> {
    match db.disk.remove(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// Why home and WAL are not to be put together: SQLite says so, too, in its way.
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

/// What a process that died had written may be in the kernel's cache, clean, and not on the disk, should a flush have failed.
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
    // Pages that were cut off later stay where they are.
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

/// The header of a file with a rollback journal. Its counter is new, as after SQLite's own change of the mode, so that
/// nobody takes a cache for that of this state (rule OneNumberOneState); the size holds for it.
fn put_header(db: &Database, state: &State, page_count: u32, what: &dyn Fn() -> String) -> Result<()> {
    let mut first = [0; at::HEADER_BYTES];
    let got = db.home.read_at(&mut first, 0).context(what)?;
    if got < first.len() || !first.starts_with(at::MAGIC) || home::page_bytes(&first) != Some(state.page_bytes) {
        return Err(Error::Corrupt(format!("{}: the first page in its WAL is not a database's", what())));
    }
    let counter = be_u32(&first, at::CHANGE_COUNTER).unwrap_or(0);
    put(&mut first, at::WRITE_VERSION, &[1, 1]);
    home::put_counter(&mut first, counter.wrapping_add(1));
    home::put_page_count(&mut first, page_count);
    db.home.write_at(&first, 0).context(what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Seals a header and frames as SQLite does, in either byte order of the words.
    fn sealed(frames: &[(u32, u32, u8)], page_bytes: usize, big_endian: bool) -> Vec<u8> {
        let mut log = vec![0; wal::HEADER_BYTES];
        put(&mut log, wal::AT_MAGIC, &(wal::MAGIC | u32::from(big_endian)).to_be_bytes());
        put(&mut log, wal::AT_VERSION, &wal::VERSION.to_be_bytes());
        put(&mut log, wal::AT_PAGE_BYTES, &(page_bytes as u32).to_be_bytes());
        put(&mut log, wal::AT_SALT, b"salt1234");
        let mut sums = sum((0, 0), &log[..wal::AT_CHECKSUM], big_endian);
        put(&mut log, wal::AT_CHECKSUM, &sums.0.to_be_bytes());
        put(&mut log, wal::AT_CHECKSUM + 4, &sums.1.to_be_bytes());
        for (page, commit, fill) in frames {
            let mut frame = vec![*fill; wal::FRAME_HEAD_BYTES + page_bytes];
            put(&mut frame, wal::AT_FRAME_PAGE, &page.to_be_bytes());
            put(&mut frame, wal::AT_FRAME_COMMIT, &commit.to_be_bytes());
            put(&mut frame, wal::AT_FRAME_SALT, b"salt1234");
            sums = sum(sums, &frame[..wal::AT_FRAME_SALT], big_endian);
            sums = sum(sums, &frame[wal::FRAME_HEAD_BYTES..], big_endian);
            put(&mut frame, wal::AT_FRAME_CHECKSUM, &sums.0.to_be_bytes());
            put(&mut frame, wal::AT_FRAME_CHECKSUM + 4, &sums.1.to_be_bytes());
            log.extend(frame);
        }
        log
    }

    /// Pages and sizes that a WAL says, as far as it goes.
    fn walk(log: &[u8]) -> Vec<(u32, u32)> {
        let Head::Chain(mut chain) = Head::decode(&log[..log.len().min(wal::HEADER_BYTES)]) else { return Vec::new() };
        let frames = log[wal::HEADER_BYTES..].chunks(wal::FRAME_HEAD_BYTES + chain.page_bytes as usize);
        frames.map_while(|frame| chain.next(frame)).collect()
    }

    #[test]
    fn a_frame_counts_up_to_the_first_that_does_not() {
        for big_endian in [false, true] {
            let frames = [(1, 0, 3), (2, 2, 4), (1, 2, 5)];
            let log = sealed(&frames, 512, big_endian);
            assert_eq!(walk(&log), [(1, 0), (2, 2), (1, 2)]);
            for at in 0..log.len() {
                let mut bad = log.clone();
                bad[at] ^= 0x10;
                let whole = at.saturating_sub(wal::HEADER_BYTES) / (wal::FRAME_HEAD_BYTES + 512);
                let left = if at < wal::HEADER_BYTES { 0 } else { whole };
                assert_eq!(walk(&bad).len(), left, "byte {at}");
            }
            assert_eq!(walk(&log[..log.len() - 1]).len(), 2);
        }
        let mut other = sealed(&[], 512, false);
        other[wal::AT_VERSION + 3] ^= 1;
        let sums = sum((0, 0), &other[..wal::AT_CHECKSUM], false);
        put(&mut other, wal::AT_CHECKSUM, &sums.0.to_be_bytes());
        put(&mut other, wal::AT_CHECKSUM + 4, &sums.1.to_be_bytes());
        assert_eq!(Head::decode(&other), Head::Version(wal::VERSION ^ 1));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), seal: bool) {
            let mut log = if seal { sealed(&[(1, 1, 0)], 512, false) } else { Vec::new() };
            log.extend(&bytes);
            if log.len() >= wal::HEADER_BYTES {
                let _ = walk(&log);
            }
            let _ = Head::decode(&bytes);
        }
    }
}
