//! Reading the database: through onewrite, on one snapshot, as one of its readers. Writers through onewrite are not kept
//! waiting, a crash is recovered as any open does, and what stock SQLite does is seen, too.

use crate::ltx::lock_page;
use crate::report::COUNTERS;
use crate::state::{PageHash, hash, index};
use anyhow::{Result, anyhow, bail};
use indicatif::ProgressBar;
use onewrite_rusqlite::{last_error, open_with_flags, read_file_at};
use rusqlite::{Connection, OpenFlags};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Waits that long for one that has the database to itself.
const BUSY: Duration = Duration::from_secs(5);
/// Images of changed pages are kept in memory up to there, so that the snapshot can be given up.
const IMAGES_BYTES: usize = 16 << 20;
/// Bytes of page 1 that say which state this is.
const HEADER_BYTES: usize = 100;

/// A snapshot of the database, kept until dropped.
pub struct Source {
    db: Connection,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of pages.
    pub pages: u32,
    identity: (u64, u64),
}

/// What has changed since a state.
pub struct Changed {
    /// Nothing.
    pub is_same: bool,
    /// Of all pages.
    pub hashes: Vec<PageHash>,
    /// Page 1, and the pages that differ.
    pub pages: Vec<u32>,
    /// Their images, one after the other; `None`: they are too many to be kept in memory.
    pub images: Option<Vec<u8>>,
}

/// Where a snapshot is in a log that others share, which tells of what has changed.
#[derive(Debug)]
pub struct Place {
    /// Of the file.
    identity: (u64, u64),
    session: String,
    tid: u64,
    /// Pages that transactions after this one have changed, each with the last of them.
    since: u64,
    pages: Vec<(u32, u64)>,
}

impl Place {
    /// The pages that have changed since the snapshot at `before`, but for those that the database had not then; `None`: not known.
    pub fn changed_since(&self, before: &Place) -> Option<Vec<u32>> {
        let goes_on = (self.identity, &self.session) == (before.identity, &before.session);
        let known = goes_on && self.since <= before.tid && before.tid <= self.tid;
        let changed = self.pages.iter().filter(|(_, tid)| *tid > before.tid).map(|(page, _)| *page);
        known.then(|| changed.collect())
    }

    /// To compare with later.
    pub fn without_pages(mut self) -> Place {
        self.pages = Vec::new();
        self
    }

    /// What `PRAGMA onewrite_changes` says; `None`: nothing is known.
    fn parse(text: &str, identity: (u64, u64)) -> Option<Place> {
        let part = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        let pages = part("pages")?.split_terminator(',').map(|page| {
            let (page, tid) = page.split_once(':')?;
            Some((page.parse().ok()?, tid.parse().ok()?))
        });
        Some(Place {
            identity,
            session: part("session")?.to_owned(),
            tid: part("tid")?.parse().ok()?,
            since: part("since")?.parse().ok()?,
            pages: pages.collect::<Option<_>>()?,
        })
    }
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
        let source = Source { db, page_bytes, pages, identity: file_mark.identity };
        let mut image = Vec::new();
        source.read(1, &mut image)?;
        image.truncate(HEADER_BYTES);
        Ok(Some((source, Mark { file: file_mark, header: image })))
    }

    /// Where it is in the log; `None`: no other process has the database open, or it does not say.
    pub fn place(&self) -> Result<Option<Place>> {
        let text: String = self.db.query_row("PRAGMA onewrite_changes", [], |row| row.get(0))?;
        Ok(Place::parse(&text, self.identity))
    }

    /// What has changed since the state that had these hashes. `told`: what may have, but for pages that were not there; else all
    /// pages are looked at.
    pub fn compare(&self, mut hashes: Vec<PageHash>, told: Option<&[u32]>, bar: &ProgressBar) -> Result<Changed> {
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
            // Page 1 in each file: followers look there for what has changed.
            if *known != now || page == 1 {
                *known = now;
                pages.push(page);
                images = images.filter(|images: &Vec<u8>| images.len() < IMAGES_BYTES);
                if let Some(images) = &mut images {
                    images.extend_from_slice(&image);
                }
            }
        }
        Ok(Changed { is_same, hashes, pages, images })
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
