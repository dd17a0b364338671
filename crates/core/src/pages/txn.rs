//! One write transaction: the pages it wrote, private until it commits.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::types::{PageNo, Tid};
use crate::log::record::StreamIndex;
use crate::log::ring::WrittenRecord;
use crate::log::several::Several;
use crate::pages::table::{Image, Streamed};
use crate::sqlite_format::home::State;

/// How far a write transaction is.
pub enum TxnStage {
    /// SQLite is writing.
    Open,
    /// Encoded, with room reserved: only publication and the flush are left.
    Prepared(PreparedCommit),
}

/// What a prepared transaction will publish.
pub struct PreparedCommit {
    /// The state it makes; its TID is that of the base if nothing changed.
    pub state: State,
    /// The images that differ from the base, but for those that streamed.
    pub images: Vec<(PageNo, Image)>,
    /// The index of streamed images in the log.
    pub stream: StreamIndex,
    /// What is written in place instead of a record, if that is possible.
    pub in_place: Option<Box<Placement>>,
    /// Whether anything differs from the base.
    pub changed: bool,
    /// The record, if it is in the log already and waits for a decision.
    pub written: Option<Box<WrittenRecord>>,
}

impl PreparedCommit {
    /// Prepared to make `state`, by `changed`; what the scheme adds is empty.
    pub fn of(txn: &Txn, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        let mut images: Vec<(PageNo, Image)> = memory::list(changed.len())?;
        images.extend(changed.into_iter().filter(|c| txn.streamed.get(c.page).is_none()).map(|c| (c.page, c.new)));
        Ok(PreparedCommit {
            state,
            images,
            stream: StreamIndex::default(),
            in_place: None,
            changed: true,
            written: None,
        })
    }

    /// Prepared to change nothing.
    pub fn nothing(base: &State) -> PreparedCommit {
        PreparedCommit {
            state: base.clone(),
            images: Vec::new(),
            stream: StreamIndex::default(),
            in_place: None,
            changed: false,
            written: None,
        }
    }
}

/// One page that a transaction changed.
pub struct ChangedPage {
    /// Page number.
    pub page: PageNo,
    /// The image after.
    pub new: Image,
    /// The image before, if the page was there and the scheme needs it.
    pub old: Option<Image>,
}

/// What a transaction writes in place.
pub struct Placement {
    /// Page, image to write, and what home holds there now, if it has the page.
    pub pages: Vec<(PageNo, Image, Option<Image>)>,
    /// One page, of which the log keeps a note; else pages with trailers.
    pub note: bool,
    /// The transaction that made what home holds, where the undo records lead back to.
    pub base: Tid,
    /// How many transactions.
    pub count: usize,
}

/// So many pages are kept that a transaction read: those of a small one.
const READ_PAGES: usize = 16;

/// The overlay of one connection.
pub struct Txn {
    /// The state it builds on.
    pub base: Arc<State>,
    /// Page size in bytes; 0 until the first write to an empty database.
    pub page_bytes: u32,
    /// Pages in memory.
    pub pages: FxHashMap<PageNo, Image>,
    /// Pages that SQLite read of the base since the transaction writes, as home has them: most of them are written, and compared
    /// with that.
    pub read: Vec<(PageNo, Image)>,
    /// Pages that streamed into the log.
    pub streamed: Streamed,
    /// Where the log's streamed images began to be this transaction's, in bytes.
    pub stream_from: u64,
    /// Pages of the base above this were truncated away.
    pub base_limit: u32,
    /// Size of the database file as SQLite sees it, in bytes.
    pub file_bytes: u64,
    /// How far it is.
    pub stage: TxnStage,
    /// It cannot commit any more; SQLite is rolling it back (rule MergeIsSerial).
    pub doomed: bool,
    /// The whole of it, since FCNTL_SYNC, if it spans several files.
    pub several: Option<Arc<Several>>,
    /// SQLite asked for a sync of the database file since FCNTL_SYNC.
    pub synced: bool,
    /// SQLite's syncs up to FCNTL_SYNC were those of `synchronous=NORMAL`.
    pub normal: bool,
}

impl Txn {
    /// An empty transaction on `base`.
    pub fn new(base: Arc<State>) -> Txn {
        Txn {
            page_bytes: base.page_bytes,
            pages: FxHashMap::default(),
            read: Vec::new(),
            streamed: Streamed::default(),
            stream_from: 0,
            base_limit: base.page_count,
            file_bytes: base.bytes(),
            stage: TxnStage::Open,
            doomed: false,
            several: None,
            synced: false,
            normal: false,
            base,
        }
    }

    /// SQLite was given `bytes` as what the base has of `page`.
    pub fn note_read(&mut self, page: PageNo, bytes: &[u8]) {
        if self.read.len() < READ_PAGES
            && let Ok(image) = Image::copy(bytes)
        {
            self.read.push((page, image));
        }
    }

    /// What the base has of `page`, if SQLite was given it.
    pub fn take_read(&mut self, page: PageNo) -> Option<Image> {
        let at = self.read.iter().position(|(read, _)| *read == page)?;
        Some(self.read.swap_remove(at).1)
    }

    /// It builds on another state.
    pub fn rebase(&mut self, base: Arc<State>) {
        self.read.clear();
        self.base = base;
    }

    /// Whether SQLite changed nothing.
    pub fn is_untouched(&self) -> bool {
        self.pages.is_empty() && self.streamed.is_empty() && self.file_bytes == self.base.bytes()
    }

    /// Bytes of page images in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.pages.len() as u64 * u64::from(self.page_bytes)
    }

    /// Splits `len` bytes at `offset` into pages: page, offset in the page, range in the buffer.
    pub fn split(
        page_bytes: u32,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = Result<(PageNo, usize, std::ops::Range<usize>)>> {
        let size = u64::from(page_bytes.max(1));
        let mut done = 0usize;
        std::iter::from_fn(move || {
            if done >= len {
                return None;
            }
            let at = offset + done as u64;
            let Some(page) = PageNo::containing(at, page_bytes) else {
                done = len;
                return Some(Err(Error::Full(format!("byte {at} is beyond the largest page number"))));
            };
            let in_page = (at % size) as usize;
            let n = (size as usize - in_page).min(len - done);
            let range = done..done + n;
            done += n;
            Some(Ok((page, in_page, range)))
        })
    }

    /// Cuts the file to `len` bytes.
    pub fn truncate(&mut self, len: u64) {
        self.file_bytes = len;
        let size = u64::from(self.page_bytes.max(1));
        let pages = u32::try_from(len.div_ceil(size)).unwrap_or(u32::MAX);
        self.pages.retain(|page, _| page.0 <= pages);
        let gone: Vec<PageNo> = self.streamed.iter().map(|(p, ..)| p).filter(|p| p.0 > pages).collect();
        for page in gone {
            self.streamed.remove(page);
        }
        self.base_limit = self.base_limit.min(pages);
    }
}
