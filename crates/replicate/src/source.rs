//! Reads the database on one snapshot, as a reader through onewrite. Writers through onewrite do
//! not wait, opening recovers after a crash, and changes by stock SQLite are seen.

use crate::ending::moved;
use crate::host::{self, FileMark};
use crate::local::{Passing, beside, directory, locked, sync};
use crate::ltx::lock_page;
use crate::report::COUNTERS;
use crate::state::{PageHash, hash, index};
use anyhow::{Context, Result, anyhow, ensure};
use indicatif::ProgressBar;
use onewrite_core::disk::real::RealDisk;
use onewrite_core::disk::{Disk, OpenMode};
use onewrite_core::inspect::{REPLICA, sync_path};
use onewrite_core::{Engine, Error, LockLevel, Repair};
use onewrite_rusqlite::{last_error, open_with_flags, read_file_at};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use rusqlite::ffi::code_to_str;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for writers, and for a process that has the database to itself.
const BUSY: Duration = Duration::from_secs(5);
/// Images of changed pages that are kept in memory, so that the snapshot can end early.
const IMAGES_BYTES: usize = 16 << 20;
/// Bytes of page 1 that identify the state.
const HEADER_BYTES: usize = 100;

/// A snapshot of the database, kept until dropped.
pub struct Source {
    from: From,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of pages.
    pub pages: u32,
    identity: (u64, u64),
}

/// Changes since a state.
pub struct StateDiff {
    /// Nothing.
    pub is_same: bool,
    /// Hashes of all pages.
    pub hashes: Vec<PageHash>,
    /// Page 1, and the pages that differ.
    pub pages: Vec<u32>,
    /// Their images, one after the other; `None`: too many for memory.
    pub images: Option<Vec<u8>>,
    /// Hashes before, of the pages that differ or are gone.
    pub replaced: Vec<(u32, PageHash)>,
}

/// A snapshot's position in a log that other processes share, and the pages that its records name.
#[derive(Debug)]
pub struct LogPosition {
    identity: (u64, u64),
    session: String,
    tid: u64,
    /// Pages that transactions after this one have changed, each with its last transaction.
    since: u64,
    pages: Vec<(u32, u64)>,
}

impl LogPosition {
    /// Pages changed since the snapshot at `before`, except pages that are new since; `None`: not
    /// known.
    pub fn changed_since(&self, before: &LogPosition) -> Option<Vec<u32>> {
        let goes_on = (self.identity, &self.session) == (before.identity, &before.session);
        let known = goes_on && self.since <= before.tid && before.tid <= self.tid;
        let changed = self.pages.iter().filter(|(_, tid)| *tid > before.tid).map(|(page, _)| *page);
        known.then(|| changed.collect())
    }

    /// Drops the pages: this place is only compared with later ones.
    pub fn without_pages(mut self) -> LogPosition {
        self.pages = Vec::new();
        self
    }

    /// Parses the result of `PRAGMA onewrite_changes`; `None`: the log does not say.
    fn parse(text: &str, identity: (u64, u64)) -> Option<LogPosition> {
        let part = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let pages = part("pages")?.split_terminator(',').map(|page| {
            let (page, tid) = page.split_once(':')?;
            Some((page.parse().ok()?, tid.parse().ok()?))
        });
        Some(LogPosition {
            identity,
            session: part("session")?.to_owned(),
            tid: part("tid")?.parse().ok()?,
            since: part("since")?.parse().ok()?,
            pages: pages.collect::<Option<_>>()?,
        })
    }
}

/// A connection that stays open between two snapshots, so that the process need not read the log
/// anew.
#[derive(Clone, Default)]
pub struct KeptConnection(Arc<Mutex<Option<Open>>>);

struct Open {
    db: Connection,
    identity: (u64, u64),
}

impl KeptConnection {
    fn swap(&self, with: Option<Open>) -> Option<Open> {
        // No panic while this lock is held.
        std::mem::replace(&mut *locked(&self.0), with)
    }

    /// Leaves the processes of the database.
    pub fn close(&self) {
        drop(self.swap(None));
    }
}

/// A connection within a transaction; `to` may keep it for the next one.
struct Lent {
    open: Option<Open>,
    to: KeptConnection,
}

impl Lent {
    fn db(&self) -> Result<&Connection> {
        Ok(&self.open.as_ref().context("no connection")?.db)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let open = self.open.take();
        self.to.swap(open.filter(|open| open.db.execute_batch("COMMIT").is_ok()));
    }
}

/// How a snapshot is read.
enum From {
    Sqlite(Lent),
    Session(Pinned),
}

/// The lock of a [`Session`]'s connection; ends when dropped.
struct Pinned(Arc<Mutex<onewrite_core::Connection>>);

impl Drop for Pinned {
    fn drop(&mut self) {
        // The next call finds the error.
        let _ = locked(&self.0).unlock(LockLevel::None);
    }
}

/// A file and its state: two equal marks mean that nothing has changed between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    file: FileMark,
    header: Vec<u8>,
}

impl Mark {
    /// Commits from `before` to this state, by the header's counter; 0 if it is another file.
    pub fn commits_since(&self, before: &Mark) -> u32 {
        let counter =
            |mark: &Mark| mark.header.get(24..28).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
        let commits = counter(self).wrapping_sub(counter(before));
        // A smaller counter: the file was restored, or replaced.
        if self.file.identity == before.file.identity && commits < 1 << 31 { commits } else { 0 }
    }
}

fn mark_of(file: &Path) -> Result<FileMark> {
    let mark = std::fs::metadata(file).and_then(|data| host::mark(file, &data));
    mark.map_err(|e| anyhow!("cannot look at {}: {e}", file.display()))
}

/// Files of a database as they lie there. Each write of a process changes one of their times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestMark([Option<FileMark>; 4]);

/// A file whose time is younger may be written again within that time's tick.
const SETTLED: Duration = Duration::from_secs(2);

impl RestMark {
    /// `None`: a file was written a moment ago, by this clock, or cannot be looked at.
    pub fn of(file: &Path) -> Option<RestMark> {
        let settled = SystemTime::now().checked_sub(SETTLED)?;
        let mut marks = [None; 4];
        for (mark, suffix) in marks.iter_mut().zip(["", "-onewrite", "-journal", "-wal"]) {
            let path = beside(file, suffix);
            let data = match std::fs::symlink_metadata(&path) {
                Ok(data) => data,
                Err(e) if e.kind() == ErrorKind::NotFound && !suffix.is_empty() => continue,
                Err(_) => return None,
            };
            let now = host::mark(&path, &data).ok()?;
            // Under another name the database has another log.
            if !data.is_file() || now.names > 1 || now.changed > settled {
                return None;
            }
            *mark = Some(now);
        }
        Some(RestMark(marks))
    }
}

/// The database cannot be read while others use it in this way.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Occupied(String);

/// SQLite's error, with onewrite's reason if it has one.
fn explain(file: &Path, error: &rusqlite::Error) -> anyhow::Error {
    let file = file.display();
    let said = match error {
        // The text would be the URI that was opened.
        rusqlite::Error::SqliteFailure(code, Some(_)) if code.code == ErrorCode::CannotOpen => {
            code_to_str(code.extended_code).to_owned()
        }
        _ => error.to_string(),
    };
    let message = match last_error() {
        Some(why) if !said.contains(&why) => format!("cannot read {file}: {said}: {why}"),
        _ => format!("cannot read {file}: {said}"),
    };
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Occupied(message).into(),
        _ => anyhow!(message),
    }
}

impl Source {
    /// Whether the database has a page; an error if `file` is no database. A database that is busy
    /// counts as having one.
    pub fn look(file: &Path) -> Result<bool> {
        match Source::pin(file) {
            Ok(found) => Ok(found.is_some()),
            Err(e) if e.is::<Occupied>() => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// A snapshot of the newest state, and its mark. `None`: the database has no page yet.
    pub fn pin(file: &Path) -> Result<Option<(Source, Mark)>> {
        Source::pin_by(file, &KeptConnection::default())
    }

    /// As [`pin`](Source::pin), through the kept connection, which is opened if there is none of
    /// this file and given back with the snapshot.
    pub fn pin_by(file: &Path, kept: &KeptConnection) -> Result<Option<(Source, Mark)>> {
        // Before the snapshot, so that a later change is looked at again.
        let file_mark = mark_of(file)?;
        let explain = |e: rusqlite::Error| explain(file, &e);
        let identity = file_mark.identity;
        let open = match kept.swap(None).filter(|open| open.identity == identity) {
            Some(open) => open,
            None => Open { db: Source::connect(file)?, identity },
        };
        let lent = Lent { open: Some(open), to: kept.clone() };
        let db = lent.db()?;
        db.execute_batch("BEGIN").map_err(explain)?;
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(explain)?;
        let status: String = db.query_row("PRAGMA onewrite_status", [], |row| row.get(0)).map_err(explain)?;
        if status.starts_with("in_effect=no: the database is in WAL mode") {
            let file = file.display();
            let message = format!(
                "others have {file} open in WAL mode, which goes past onewrite: close them, or open it through onewrite there"
            );
            return Err(Occupied(message).into());
        }
        let number = |sql| db.query_row(sql, [], |row| row.get::<_, u32>(0)).map_err(explain);
        let (page_bytes, pages) = (number("PRAGMA page_size")?, number("PRAGMA page_count")?);
        if pages == 0 {
            return Ok(None);
        }
        let source = Source { from: From::Sqlite(lent), page_bytes, pages, identity };
        let mut image = Vec::new();
        source.read(1, &mut image)?;
        image.truncate(HEADER_BYTES);
        Ok(Some((source, Mark { file: file_mark, header: image })))
    }

    fn connect(file: &Path) -> Result<Connection> {
        let explain = |e: rusqlite::Error| explain(file, &e);
        // Writable, since recovery after a crash writes. SQLite opens a file without write
        // permission to read.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // `shipper=1` may begin where other processes wait for the shipper.
        let path = std::path::absolute(file).map_err(|e| anyhow!("cannot find {}: {e}", file.display()))?;
        let path = percent_encode(path.as_os_str().as_encoded_bytes(), NON_ALPHANUMERIC);
        let db =
            open_with_flags(format!("file:{path}?shipper=1"), flags | OpenFlags::SQLITE_OPEN_URI).map_err(explain)?;
        db.busy_timeout(BUSY).map_err(explain)?;
        db.execute_batch("PRAGMA query_only=1").map_err(explain)?;
        Ok(db)
    }

    /// The same, without giving its connection back.
    pub fn apart(mut self) -> Source {
        if let From::Sqlite(lent) = &mut self.from {
            lent.to = KeptConnection::default();
        }
        self
    }

    /// The position in the log; `None`: no other process has the database open, or the log does not
    /// say.
    pub fn place(&self) -> Result<Option<LogPosition>> {
        let text: String = match &self.from {
            From::Sqlite(lent) => lent.db()?.query_row("PRAGMA onewrite_changes", [], |row| row.get(0))?,
            From::Session(pinned) => {
                let text = locked(&pinned.0).pragma("changes", None);
                text.context("no such pragma")??
            }
        };
        Ok(LogPosition::parse(&text, self.identity))
    }

    /// The difference to the state with these hashes. `told`: the pages to look at besides new
    /// ones; `None`: all.
    pub fn compare(&self, mut hashes: Vec<PageHash>, told: Option<&[u32]>, bar: &ProgressBar) -> Result<StateDiff> {
        let pages_before = u32::try_from(hashes.len())?;
        let mut looked_at = vec![1];
        match told {
            None => looked_at.extend(2..=self.pages),
            Some(told) => {
                looked_at.extend(told.iter().filter(|page| **page <= pages_before.min(self.pages)));
                looked_at.extend(pages_before.saturating_add(1)..=self.pages);
                looked_at.sort_unstable();
                looked_at.dedup();
            }
        }
        COUNTERS.compared(u32::try_from(looked_at.len())?);
        bar.set_length(looked_at.len() as u64);
        let gone = hashes.get(usize::try_from(self.pages)?..).unwrap_or_default().iter();
        let mut replaced: Vec<_> = (self.pages.saturating_add(1)..).zip(gone.copied()).collect();
        hashes.resize(usize::try_from(self.pages)?, 0);
        let lock = lock_page(self.page_bytes);
        let (mut is_same, mut pages, mut images) = (pages_before == self.pages, Vec::new(), Some(Vec::new()));
        let mut image = Vec::new();
        for page in looked_at {
            bar.inc(1);
            let Some(known) = hashes.get_mut(index(page)).filter(|_| page != lock) else { continue };
            self.read(page, &mut image)?;
            let now = hash(&image);
            is_same &= *known == now;
            // Page 1 is in each file: followers look there for the state.
            if *known != now || page == 1 {
                replaced.push((page, std::mem::replace(known, now)));
                pages.push(page);
                images = images.filter(|images: &Vec<u8>| images.len() < IMAGES_BYTES);
                if let Some(images) = &mut images {
                    images.extend_from_slice(&image);
                }
            }
        }
        Ok(StateDiff { is_same, hashes, pages, images, replaced })
    }

    /// Reads a page.
    pub fn read(&self, page: u32, image: &mut Vec<u8>) -> Result<()> {
        moved();
        image.resize(usize::try_from(self.page_bytes)?, 0);
        let offset = u64::from(page.saturating_sub(1)) * u64::from(self.page_bytes);
        match &self.from {
            From::Sqlite(lent) => read_file_at(lent.db()?, image, offset).map_err(|e| match last_error() {
                Some(why) => anyhow!("cannot read page {page}: {e}: {why}"),
                None => anyhow!("cannot read page {page}: {e}"),
            }),
            From::Session(pinned) => {
                let read = locked(&pinned.0).read_at(image, offset);
                let read = read.with_context(|| format!("cannot read page {page}"))?;
                image.get_mut(read..).unwrap_or_default().fill(0);
                Ok(())
            }
        }
    }

    /// Page numbers that files contain, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let lock = lock_page(self.page_bytes);
        (1..=self.pages).filter(move |page| *page != lock)
    }

    /// The hashes of all pages; the lock page has none.
    pub fn hashes(&self, bar: &ProgressBar) -> Result<Vec<PageHash>> {
        bar.set_length(u64::from(self.pages));
        let mut hashes = vec![0; usize::try_from(self.pages)?];
        let mut image = Vec::new();
        let lock = lock_page(self.page_bytes);
        for (to, page) in hashes.iter_mut().zip(1..) {
            if page != lock {
                self.read(page, &mut image)?;
                *to = hash(&image);
            }
            bar.inc(1);
        }
        Ok(hashes)
    }
}

/// The shipper as a user of the database whose commits wait for it.
pub struct Session {
    db: Arc<Mutex<onewrite_core::Connection>>,
    identity: (u64, u64),
}

/// Whether a file beside the database makes commits wait for a store.
pub fn is_signed(file: &Path) -> Result<bool> {
    Ok(Engine::new(Arc::new(RealDisk::new())).open(file, OpenMode::ReadWrite, &[])?.is_signed()?)
}

/// Makes that file say that the database is, or becomes, a replica: only its follower commits.
pub fn sign_replica(file: &Path) -> Result<()> {
    Ok(Engine::new(Arc::new(RealDisk::new())).open(file, OpenMode::ReadWrite, &[])?.sign_replica()?)
}

/// From here on commits to `file` wait for the store; without a shipper they fail after `patience`.
pub fn sign_waiting(file: &Path, patience: Duration) -> Result<()> {
    // What a crash left is recovered first, since only the shipper may do that afterwards.
    Source::pin(file)?;
    let mut db = open_to_ship(file)?;
    patiently(|| db.sign_waiting(patience))?;
    Ok(db.close()?)
}

/// What the file beside a database says that is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    /// Its commits wait for the store.
    Waits,
    /// It is a replica of one whose commits do.
    Replica,
}

/// Makes the file beside the database `file`, which is not there yet and gets these permissions.
pub fn sign_before(file: &Path, signed: Signed, mode: u32) -> Result<()> {
    let sign = sync_path(file);
    let what = || format!("cannot make {}", sign.display());
    let make = || tempfile::Builder::new().prefix(".onewrite-sync-").tempfile_in(directory(file));
    let (_passing, mut new) = Passing::make(make).with_context(what)?;
    if signed == Signed::Replica {
        new.write_all(REPLICA).with_context(what)?;
    }
    host::set_file_mode(new.as_file(), mode).with_context(what)?;
    new.as_file().sync_all().with_context(what)?;
    new.persist(&sign).map_err(|e| e.error).with_context(what)?;
    sync(directory(file)).with_context(what)
}

/// Ends the waiting for the store. Refused while a process uses the database. `false`: commits did
/// not wait.
pub fn unsign(file: &Path) -> Result<bool> {
    if !is_signed(file)? {
        return Ok(false);
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new());
    let hold = Repair::open(disk.clone(), file, OpenMode::ReadWrite)?;
    let sign = sync_path(hold.path());
    let what = || format!("cannot remove {}", sign.display());
    disk.remove(&sign).and_then(|()| disk.sync_dir_of(&sign)).with_context(what)?;
    Ok(true)
}

fn open_to_ship(file: &Path) -> Result<onewrite_core::Connection> {
    let given = [("shipper".to_owned(), "1".to_owned())];
    Ok(Engine::new(Arc::new(RealDisk::new())).open(file, OpenMode::ReadWrite, &given)?)
}

/// Tries again while others use the database, up to [`BUSY`].
pub(crate) fn patiently(mut f: impl FnMut() -> onewrite_core::Result<()>) -> Result<()> {
    let deadline = Instant::now() + BUSY;
    loop {
        match f() {
            Err(Error::Busy(_) | Error::BusySnapshot) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            done => return Ok(done?),
        }
    }
}

impl Session {
    /// From here on commits to `file` wait for the store, `patience` at most.
    pub fn begin(file: &Path, patience: Duration) -> Result<Session> {
        // Before opening: a file that takes the name later is then found to be another.
        let identity = mark_of(file)?.identity;
        // SQLite must roll back a journal that is there.
        Source::pin(file)?;
        let what = || format!("commits to {} cannot wait for a store", file.display());
        let mut db = open_to_ship(file)?;
        patiently(|| db.begin_shipping(patience)).with_context(what)?;
        let db = Arc::new(Mutex::new(db));
        let watched = Arc::downgrade(&db);
        COUNTERS.watch(move || locked(&*watched.upgrade()?).wait_to_ship(0, Duration::ZERO).ok());
        Ok(Session { db, identity })
    }

    /// Whether the database with this name is still the session's.
    pub fn is_of(&self, file: &Path) -> Result<bool> {
        Ok(mark_of(file)?.identity == self.identity)
    }

    /// Transactions that wait to be sent. Waits for `count` of them, `nap` at most.
    pub fn wait(&self, count: u64, nap: Duration) -> Result<u64> {
        Ok(locked(&self.db).wait_to_ship(count, nap)?)
    }

    /// Makes all records durable here, also those of a dead process.
    pub fn flush(&self) -> Result<()> {
        Ok(locked(&self.db).flush_to_ship(BUSY)?)
    }

    /// The newest state that is durable here, and its transaction. No [`Source`]: it has no page
    /// yet.
    pub fn pin(&self) -> Result<(Option<Source>, u64)> {
        let tid = locked(&self.db).lock_to_ship()?;
        let pinned = Pinned(self.db.clone());
        let mut first = [0; HEADER_BYTES];
        let (read, bytes) = {
            let mut db = locked(&self.db);
            (db.read_at(&mut first, 0)?, db.size()?)
        };
        if bytes == 0 {
            return Ok((None, tid));
        }
        ensure!(read == first.len(), "the database has no header");
        let page_bytes = match u32::from(u16::from_be_bytes([first[16], first[17]])) {
            1 => 65_536,
            bytes => bytes,
        };
        ensure!(page_bytes >= 512 && page_bytes.is_power_of_two(), "the database has pages of {page_bytes} bytes");
        let pages = u32::try_from(bytes.div_euclid(page_bytes.into()))?;
        Ok((Some(Source { from: From::Session(pinned), page_bytes, pages, identity: self.identity }), tid))
    }

    /// The store has all transactions up to `tid`, and still belongs to this database.
    pub fn shipped(&self, tid: u64) -> Result<()> {
        Ok(locked(&self.db).shipped(tid)?)
    }

    /// The store takes nothing now.
    pub fn is_late(&self) -> Result<()> {
        Ok(locked(&self.db).store_is_late()?)
    }

    /// The store belongs to another database.
    pub fn fence(&self) -> Result<()> {
        Ok(locked(&self.db).fence()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn an_error_names_the_file_as_it_was_given() {
        let said = Some("unable to open database file: file:%2Ftmp%2Fa%2Edb?shipper=1".to_owned());
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), said);
        let text = explain(Path::new("/tmp/a.db"), &error).to_string();
        assert!(text.starts_with("cannot read /tmp/a.db: ") && !text.contains("%2F"), "{text}");
    }
}
