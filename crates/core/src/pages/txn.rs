//! One write transaction: its pages, private until the commit.

use std::any::Any;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::base::error::{Error, Result};
use crate::base::memory;
use crate::base::types::PageNo;
use crate::log::ring::WrittenRecord;
use crate::log::several::Several;
use crate::pages::image::Image;
use crate::pages::table::Streamed;
use crate::sqlite_format::home::State;

pub enum TxnStage {
    Open,
    Prepared(PreparedCommit),
}

pub struct PreparedCommit {
    /// Without changes, the base's TID.
    pub state: State,
    /// Without streamed ones.
    pub images: Vec<(PageNo, Image)>,
    /// The scheme commits it instead of a record.
    pub own: Option<Box<dyn Any + Send>>,
    pub changed: bool,
    /// The record is in the log already, undecided.
    pub written: Option<Box<WrittenRecord>>,
}

impl PreparedCommit {
    /// The scheme's parts are empty.
    pub fn of(txn: &Txn, state: State, changed: Vec<ChangedPage>) -> Result<PreparedCommit> {
        let mut images: Vec<(PageNo, Image)> = memory::list(changed.len())?;
        images.extend(changed.into_iter().filter(|c| txn.streamed.get(c.page).is_none()).map(|c| (c.page, c.new)));
        Ok(PreparedCommit { state, images, own: None, changed: true, written: None })
    }

    pub fn nothing(base: &State) -> PreparedCommit {
        PreparedCommit { state: base.clone(), images: Vec::new(), own: None, changed: false, written: None }
    }
}

pub struct ChangedPage {
    pub page: PageNo,
    pub new: Image,
    pub old: Option<Image>,
}

/// Enough for small transactions.
const READ_PAGES: usize = 16;

pub struct Txn {
    pub base: Arc<State>,
    /// 0 until the first write to an empty database.
    pub page_bytes: u32,
    pub pages: FxHashMap<PageNo, Image>,
    /// Images of home that SQLite read: most get written and compared.
    pub read: Vec<(PageNo, Image)>,
    pub streamed: Streamed,
    /// In bytes of the log; 0: nothing has streamed.
    pub stream_from: u64,
    /// Pages behind this end of home, in bytes, stream to their places there.
    pub home_bytes: u64,
    /// Later pages of the base were cut off.
    pub base_limit: u32,
    /// As SQLite sees it.
    pub file_bytes: u64,
    pub stage: TxnStage,
    /// It cannot commit: SQLite is rolling it back (rule MergeIsSerial).
    pub doomed: bool,
    pub several: Option<Arc<Several>>,
    pub synced: bool,
    /// SQLite's syncs until FCNTL_SYNC were those of `synchronous=NORMAL`.
    pub normal: bool,
}

impl Txn {
    pub fn new(base: Arc<State>) -> Txn {
        Txn {
            page_bytes: base.page_bytes,
            pages: FxHashMap::default(),
            read: Vec::new(),
            streamed: Streamed::default(),
            stream_from: 0,
            home_bytes: u64::MAX,
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

    pub fn note_read(&mut self, page: PageNo, bytes: &[u8]) {
        if self.read.len() < READ_PAGES
            && let Ok(image) = Image::copy(bytes)
        {
            self.read.push((page, image));
        }
    }

    pub fn take_read(&mut self, page: PageNo) -> Option<Image> {
        let at = self.read.iter().position(|(read, _)| *read == page)?;
        Some(self.read.swap_remove(at).1)
    }

    pub fn rebase(&mut self, base: Arc<State>) {
        self.read.clear();
        self.base = base;
    }

    pub fn is_untouched(&self) -> bool {
        self.pages.is_empty() && self.streamed.is_empty() && self.file_bytes == self.base.bytes()
    }

    pub fn has_begun_to_stream(&self) -> bool {
        self.stream_from > 0
    }

    pub fn is_behind_home(&self, page: PageNo) -> bool {
        page.offset(self.page_bytes) >= self.home_bytes
    }

    pub fn memory_bytes(&self) -> u64 {
        self.pages.len() as u64 * u64::from(self.page_bytes)
    }

    /// Page, offset in it, range of the buffer.
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

    pub fn truncate(&mut self, len: u64) {
        // An empty database has no size of pages, so none of them either.
        self.file_bytes = if self.page_bytes > 0 { len } else { 0 };
        let size = u64::from(self.page_bytes.max(1));
        let pages = u32::try_from(len.div_ceil(size)).unwrap_or(u32::MAX);
        self.pages.retain(|page, _| page.0 <= pages);
        self.streamed.truncate(pages);
        self.base_limit = self.base_limit.min(pages);
    }
}
