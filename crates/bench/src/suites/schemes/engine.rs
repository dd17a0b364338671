//! The engines of the suite: presets of onewrite with single options changed, and journal modes of
//! stock SQLite, all in the one SQLite that the suite uses.

use crate::engines::sql::{Db, Library};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SchemeSetup {
    Stock { journal_mode: String, checkpoint_pages: u32 },
    Onewrite { options: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemeEngine {
    pub name: String,
    how: SchemeSetup,
    /// It splits pages as only the drop-in library can.
    pub needs_drop_in: bool,
    page_bytes: u32,
}

/// Pages after which SQLite checkpoints its WAL by itself.
const CHECKPOINT_PAGES: u32 = 1000;

/// A preset of onewrite.
pub fn preset(name: &str) -> SchemeEngine {
    with(name, &format!("scheme={name}"))
}

/// onewrite with these options, as in a URI.
pub fn with(name: &str, options: &str) -> SchemeEngine {
    let splits = ["mvbt", "split=lazy", "split=legacy"].iter().any(|own| options.contains(own));
    SchemeEngine {
        name: name.to_owned(),
        how: SchemeSetup::Onewrite { options: options.to_owned() },
        needs_drop_in: splits,
        page_bytes: 4096,
    }
}

pub fn wal() -> SchemeEngine {
    wal_every(CHECKPOINT_PAGES)
}

/// The same with another checkpoint interval.
pub fn wal_every(checkpoint_pages: u32) -> SchemeEngine {
    let how = SchemeSetup::Stock { journal_mode: "wal".to_owned(), checkpoint_pages };
    SchemeEngine { name: "WAL".to_owned(), how, needs_drop_in: false, page_bytes: 4096 }
}

/// Stock SQLite's rollback journal, truncated at each commit.
pub fn truncate() -> SchemeEngine {
    stock("TRUNCATE", "truncate")
}

pub fn stock(name: &str, journal_mode: &str) -> SchemeEngine {
    let how = SchemeSetup::Stock { journal_mode: journal_mode.to_owned(), checkpoint_pages: CHECKPOINT_PAGES };
    SchemeEngine { name: name.to_owned(), how, needs_drop_in: false, page_bytes: 4096 }
}

/// The bytes that a connection has written so far.
#[derive(Clone, Copy)]
pub struct WrittenPages {
    /// Pages that transactions changed.
    pub pages: u64,
    /// Transactions that an in-page scheme sent through the log; `None` of other schemes.
    pub through_log: Option<u64>,
}

/// Presets that write pages in place where they can.
const IN_PAGE: [&str; 5] = ["dhl-cc", "dhl-tc", "lsmvbt", "mvbt", "mvbt-opt"];

impl SchemeEngine {
    pub fn page_bytes(mut self, bytes: u32) -> SchemeEngine {
        self.page_bytes = bytes;
        self
    }

    pub fn describe(&self) -> String {
        let how = match &self.how {
            SchemeSetup::Stock { journal_mode, checkpoint_pages } => {
                format!("stock, journal_mode={journal_mode}, wal_autocheckpoint={checkpoint_pages}")
            }
            SchemeSetup::Onewrite { options } => format!("onewrite, {options}"),
        };
        format!(
            "{how}, page_size={}, synchronous=FULL, else SQLite's defaults, prepared, one connection",
            self.page_bytes
        )
    }

    /// Opens `path`, durable.
    pub fn open(&self, library: &Arc<Library>, path: &Path) -> Result<Db> {
        let path = path.to_str().context("the directory's name is not UTF-8")?;
        let db = match &self.how {
            SchemeSetup::Stock { .. } => Db::open(library, path, false)?,
            SchemeSetup::Onewrite { options } => {
                let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
                Db::open(library, &format!("file:{path}?vfs=onewrite&{options}"), true)?
            }
        };
        db.execute_batch(&format!("PRAGMA page_size = {}; PRAGMA synchronous = FULL", self.page_bytes))?;
        match &self.how {
            SchemeSetup::Stock { journal_mode, checkpoint_pages } => {
                let found = db.query_text(&format!("PRAGMA journal_mode = {journal_mode}"))?.unwrap_or_default();
                ensure!(found == *journal_mode, "{}: the journal mode is {found}", self.name);
                db.execute_batch(&format!("PRAGMA wal_autocheckpoint = {checkpoint_pages}"))?;
            }
            SchemeSetup::Onewrite { options } => {
                for (name, value) in options.split('&').filter_map(|option| option.split_once('=')) {
                    let found = db.query_text(&format!("PRAGMA onewrite_{name}"))?.unwrap_or_default();
                    let same = found == value || name.ends_with("_size");
                    ensure!(same, "{}: {name} is {found}, not {value}", self.name);
                }
            }
        }
        Ok(db)
    }

    /// A write-ahead log begins empty.
    pub fn settle(&self, db: &Db) -> Result<()> {
        match &self.how {
            SchemeSetup::Stock { journal_mode, .. } if journal_mode == "wal" => {
                db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            }
            _ => Ok(()),
        }
    }

    /// The bytes that `db` has written so far.
    pub fn written(&self, db: &Db) -> Result<WrittenPages> {
        if let SchemeSetup::Stock { .. } = self.how {
            return Ok(WrittenPages { pages: db.cache_writes()?, through_log: None });
        }
        let stats = db.query_text("PRAGMA onewrite_stats")?.unwrap_or_default();
        let count = |name: &str| -> Result<u64> {
            let value = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|v| v.parse().ok()).with_context(|| format!("onewrite_stats has no {name}"))
        };
        // Without records the pages that go home are the ones that were changed.
        let without_records = ["scheme=off", "scheme=dash"]
            .iter()
            .any(|s| matches!(&self.how, SchemeSetup::Onewrite { options } if options.starts_with(s)));
        let pages = if without_records {
            count("checkpoint_pages")?
        } else {
            count("in_place_pages")? + count("record_pages")?
        };
        let in_page = match &self.how {
            SchemeSetup::Onewrite { options } => {
                options.split('&').any(|o| o.strip_prefix("scheme=").is_some_and(|scheme| IN_PAGE.contains(&scheme)))
            }
            SchemeSetup::Stock { .. } => false,
        };
        let through_log =
            in_page.then(|| Ok::<_, anyhow::Error>(count("commits")? - count("in_place")?)).transpose()?;
        Ok(WrittenPages { pages, through_log })
    }
}
