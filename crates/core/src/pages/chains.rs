//! What the records that were found after a crash make of pages, before anybody needs an image: the bytes of their entries, in memory,
//! and for each page which of them lead to it.
//!
//! The first of a chain lies over home, or over zeros; the bytes are absolute, so home may be anything from the image that the first
//! record met to the one that the last made (rule AbsoluteBytes). Once home has a newer one, the chain is of no use any more: what a
//! snapshot needs of it is made before (rule OldImageKept).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::base::error::{Error, Result};
use crate::base::memory::{self, Room};
use crate::base::types::{PageNo, Tid};
use crate::log::record::{Form, PageChange};

/// Bytes of entries at most; behind them images are made at once.
const BYTES_MAX: u64 = 8 << 20;
/// So many bytes are taken for nothing at most, since images are made of them after all: then pages change so often that it is better to make
/// their images at once.
const WASTED_BYTES: u64 = 16 << 10;

/// No link: there is no memory for so many.
const NONE: u32 = u32::MAX;
/// The same, of a page that has an image.
const MADE: u32 = u32::MAX - 1;

/// How one record changes one page.
struct Link {
    /// The link before, or [`NONE`].
    before: u32,
    /// Where its bytes are.
    at: u32,
    len: u32,
    /// Bytes of this one and those before.
    chain_bytes: u32,
    form: Form,
    tid: Tid,
}

/// The bytes of entries.
#[derive(Default)]
struct Entries {
    bytes: Vec<u8>,
    links: Vec<Link>,
    page_bytes: u32,
    /// Pages that home had when the records were read.
    home_pages: u32,
}

/// The changes of pages by record, as they are found.
pub struct Chains {
    entries: Entries,
    /// Page → its last link, or [`MADE`].
    last: FxHashMap<PageNo, u32>,
    /// Of chains of which images were made.
    wasted_bytes: u64,
}

/// What has become of a change.
pub enum ChangeFate {
    /// It waits.
    Waits,
    /// It does not, for the page has an image from here on, which it does not depend on, or has had one before.
    Made,
    /// It does not, for there are too many bytes of the page: the image behind this link is to be made first.
    Long(u32),
}

/// The same once all are found: pages that nobody has needed so far.
pub struct Unmade {
    entries: Arc<Entries>,
    last: FxHashMap<PageNo, u32>,
}

/// The changes that lead to one version of a page.
#[derive(Clone)]
pub struct ChangeChain {
    entries: Arc<Entries>,
    last: u32,
}

impl Chains {
    /// None, of pages that are so long, over a home that has so many. `ring_bytes`: no more bytes than this can come.
    pub fn new(page_bytes: u32, home_pages: u32, ring_bytes: u64) -> Result<Chains> {
        let bytes = memory::list(usize::try_from(ring_bytes.min(BYTES_MAX)).unwrap_or(0))?;
        let entries = Entries { bytes, links: Vec::new(), page_bytes, home_pages };
        Ok(Chains { entries, last: FxHashMap::default(), wasted_bytes: 0 })
    }

    /// Whether a record that is so long may be added.
    pub fn has_room(&self, record_bytes: u64) -> bool {
        self.entries.bytes.len() as u64 + record_bytes <= BYTES_MAX && self.wasted_bytes <= WASTED_BYTES
    }

    /// Adds what `tid` makes of `page`, if it may wait.
    pub fn add(&mut self, page: PageNo, tid: Tid, change: PageChange<'_>) -> Result<ChangeFate> {
        let Entries { bytes, links, page_bytes, .. } = &mut self.entries;
        let (form, changed) = change.told();
        let len = number(changed.len())?;
        bytes.room(changed.len())?;
        links.room(1)?;
        self.last.room(1)?;
        let last = self.last.entry(page).or_insert(NONE);
        if *last == MADE {
            return Ok(ChangeFate::Made);
        }
        let before = links.get(*last as usize).filter(|_| matches!(change, PageChange::Delta(_)));
        let chain_bytes = len.saturating_add(before.map_or(0, |link| link.chain_bytes));
        // An image takes as much memory as the page, and no more with the next change. Memory that is new costs more than the read of home.
        let most = if before.is_some() { *page_bytes / 2 } else { *page_bytes };
        if chain_bytes > most {
            self.wasted_bytes += u64::from(links.get(*last as usize).map_or(0, |link| link.chain_bytes));
            let before = before.and(Some(*last));
            *last = MADE;
            return Ok(before.map_or(ChangeFate::Made, ChangeFate::Long));
        }
        let before = before.map_or(NONE, |_| *last);
        *last = number(links.len())?;
        links.push(Link { before, at: number(bytes.len())?, len, chain_bytes, form, tid });
        bytes.extend_from_slice(changed);
        Ok(ChangeFate::Waits)
    }

    /// The image of `page` behind the link `last`, over that which `home` reads.
    pub fn image(
        &self,
        page: PageNo,
        last: u32,
        home: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<Option<Vec<u8>>> {
        self.entries.image(page, last, home)
    }

    /// They are all.
    pub fn finish(mut self) -> Option<Unmade> {
        self.last.retain(|_, last| *last != MADE);
        (!self.last.is_empty()).then(|| Unmade { entries: Arc::new(self.entries), last: self.last })
    }
}

fn number(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::NoMemory)
}

impl Unmade {
    fn chain(&self, last: u32) -> Option<(Tid, ChangeChain)> {
        let link = self.entries.links.get(last as usize)?;
        Some((link.tid, ChangeChain { entries: self.entries.clone(), last }))
    }

    /// What leads to `page`, and which transaction made it last.
    pub fn get(&self, page: PageNo) -> Option<(Tid, ChangeChain)> {
        self.chain(*self.last.get(&page)?)
    }

    /// Which transaction made `page` last.
    pub fn made_by(&self, page: PageNo) -> Option<Tid> {
        Some(self.entries.links.get(*self.last.get(&page)? as usize)?.tid)
    }

    /// The same as [`Unmade::get`], and it is not here any more.
    pub fn take(&mut self, page: PageNo) -> Option<(Tid, ChangeChain)> {
        let last = self.last.remove(&page)?;
        self.chain(last)
    }

    /// Whether there is none any more.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// How many pages there are.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// The pages, in no order.
    pub fn pages(&self) -> impl Iterator<Item = PageNo> {
        self.last.keys().copied()
    }

    /// Each page with what leads to it, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (PageNo, Tid, ChangeChain)> {
        self.last.iter().filter_map(|(page, last)| self.chain(*last).map(|(tid, chain)| (*page, tid, chain)))
    }

    /// Length of a page.
    pub fn page_bytes(&self) -> u64 {
        u64::from(self.entries.page_bytes)
    }
}

impl ChangeChain {
    /// Length of the page.
    pub fn page_bytes(&self) -> u32 {
        self.entries.page_bytes
    }

    /// Whether they are the same changes.
    pub fn is(&self, other: &ChangeChain) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries) && self.last == other.last
    }

    /// The image of `page`, over that which `home` reads, if one counts: it says how many bytes home has. `None`: home is shorter than it was
    /// when the records were found.
    pub fn image(&self, page: PageNo, home: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Option<Vec<u8>>> {
        self.entries.image(page, self.last, home)
    }
}

impl Entries {
    fn image(&self, page: PageNo, last: u32, home: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Option<Vec<u8>>> {
        let mut links: Vec<&Link> = Vec::new();
        let mut at = Some(last);
        while let Some(link) = at.and_then(|at| self.links.get(at as usize)) {
            links.room(1)?;
            links.push(link);
            at = Some(link.before);
        }
        let mut image = memory::zeros(self.page_bytes as usize)?;
        let first = links.last().and_then(|link| self.change(link));
        let over_home = matches!(first, Some(PageChange::Delta(_))) && page.0 <= self.home_pages;
        if over_home && home(&mut image)? < image.len() {
            return Ok(None);
        }
        for link in links.iter().rev() {
            let Some(change) = self.change(link) else {
                return Err(Error::Corrupt(format!("changes of page {page} are lost")));
            };
            change.apply(&mut image);
        }
        Ok(Some(image))
    }

    fn change(&self, link: &Link) -> Option<PageChange<'_>> {
        let from = link.at as usize;
        Some(PageChange::of(link.form, self.bytes.get(from..from + link.len as usize)?))
    }
}
