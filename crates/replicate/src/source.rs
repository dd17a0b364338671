//! Reading the database: through onewrite, on one snapshot, as one of its readers. Writers through onewrite are not kept
//! waiting, a crash is recovered as any open does, and what stock SQLite does is seen, too.

use crate::ltx::lock_page;
use crate::state::{PageHash, hash};
use anyhow::{Result, anyhow, bail};
use indicatif::ProgressBar;
use onewrite_rusqlite::{last_error, open_with_flags, read_file_at};
use rusqlite::{Connection, OpenFlags};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Waits that long for one that has the database to itself.
const BUSY: Duration = Duration::from_secs(5);
/// Bytes of page 1 that say which state this is.
const HEADER_BYTES: usize = 100;

/// A snapshot of the database, kept until dropped.
pub struct Source {
    db: Connection,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of pages.
    pub pages: u32,
}

/// Which file, and which state of it: if they are the same twice, nothing has changed between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    file: FileMark,
    header: Vec<u8>,
}

/// Which file, and when it changed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileMark {
    identity: (u64, u64),
    changed: (i64, i64),
    bytes: u64,
}

impl Mark {
    /// Commits that led here from the state of `before`, as the header counts them; 0 where it is another file.
    pub fn commits_since(&self, before: &Mark) -> u32 {
        let counter =
            |mark: &Mark| mark.header.get(24..28).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
        let commits = counter(self).wrapping_sub(counter(before));
        // Counted down: the file was restored, or replaced.
        if self.file.identity == before.file.identity && commits < 1 << 31 { commits } else { 0 }
    }
}

impl FileMark {
    fn of(file: &Path) -> Result<FileMark> {
        let data = std::fs::metadata(file).map_err(|e| anyhow!("cannot look at {}: {e}", file.display()))?;
        let changed = (data.ctime(), data.ctime_nsec());
        Ok(FileMark { identity: (data.dev(), data.ino()), changed, bytes: data.len() })
    }
}

/// SQLite's error, with onewrite's reason if it has one.
fn explain(file: &Path, error: &rusqlite::Error) -> anyhow::Error {
    let file = file.display();
    match last_error() {
        Some(why) if !error.to_string().contains(&why) => anyhow!("cannot read {file}: {error}: {why}"),
        _ => anyhow!("cannot read {file}: {error}"),
    }
}

impl Source {
    /// A snapshot of the newest state, and what marks it. `None`: the database has no page yet.
    pub fn pin(file: &Path) -> Result<Option<(Source, Mark)>> {
        // Before the snapshot: what comes between is looked at again.
        let file_mark = FileMark::of(file)?;
        let explain = |e: rusqlite::Error| explain(file, &e);
        // Not only to read: after a crash, that could not recover. A file that cannot be written is opened to read.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = open_with_flags(file, flags).map_err(explain)?;
        db.busy_timeout(BUSY).map_err(explain)?;
        db.execute_batch("PRAGMA query_only=1; BEGIN").map_err(explain)?;
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(explain)?;
        let mode: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(explain)?;
        if mode == "wal" {
            let file = file.display();
            bail!(
                "others have {file} open in WAL mode, which goes past onewrite: close them, or open it through onewrite there"
            );
        }
        let number = |sql| db.query_row(sql, [], |row| row.get::<_, u32>(0)).map_err(explain);
        let (page_bytes, pages) = (number("PRAGMA page_size")?, number("PRAGMA page_count")?);
        if pages == 0 {
            return Ok(None);
        }
        let source = Source { db, page_bytes, pages };
        let mut image = Vec::new();
        source.read(1, &mut image)?;
        image.truncate(HEADER_BYTES);
        Ok(Some((source, Mark { file: file_mark, header: image })))
    }

    /// Reads a page.
    pub fn read(&self, page: u32, image: &mut Vec<u8>) -> Result<()> {
        image.resize(usize::try_from(self.page_bytes)?, 0);
        let offset = u64::from(page.saturating_sub(1)) * u64::from(self.page_bytes);
        read_file_at(&self.db, image, offset).map_err(|e| match last_error() {
            Some(why) => anyhow!("cannot read page {page}: {e}: {why}"),
            None => anyhow!("cannot read page {page}: {e}"),
        })
    }

    /// Every page that files have, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let lock = lock_page(self.page_bytes);
        (1..=self.pages).filter(move |page| *page != lock)
    }

    /// The hashes of all pages. That of the lock page is not known.
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
