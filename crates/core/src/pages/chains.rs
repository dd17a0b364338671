//! Changes that recovery found, until their images are needed. A chain begins over home or zeros.
//! Its bytes are absolute, so home may be anything between the first record's base and the last
//! one's result (rule AbsoluteBytes). Before home gets newer, images that snapshots need are made
//! (rule OldImageKept).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::base::error::{Error, Result};
use crate::base::memory::{self, Room};
use crate::base::types::{PageNo, Tid};
use crate::log::record::{Form, PageChange};

/// Images of later entries are made at once.
const BYTES_MAX: u64 = 8 << 20;
/// Pages that change so often get images at once.
const WASTED_BYTES: u64 = 16 << 10;

const NONE: u32 = u32::MAX;
/// The page has an image.
const MADE: u32 = u32::MAX - 1;

struct Link {
    before: u32,
    at: u32,
    len: u32,
    /// Earlier links count.
    chain_bytes: u32,
    form: Form,
    tid: Tid,
}

#[derive(Default)]
struct Entries {
    bytes: Vec<u8>,
    links: Vec<Link>,
    page_bytes: u32,
    home_pages: u32,
}

pub struct Chains {
    entries: Entries,
    last: FxHashMap<PageNo, u32>,
    wasted_bytes: u64,
}

pub enum ChangeFate {
    Waits,
    /// Independent of earlier ones.
    Made,
    /// First make the image behind this link.
    Long(u32),
}

#[derive(Clone)]
pub struct ChangeChain {
    entries: Arc<Entries>,
    last: u32,
}

impl Chains {
    /// `ring_bytes` bounds the entries.
    pub fn new(page_bytes: u32, home_pages: u32, ring_bytes: u64) -> Result<Chains> {
        let bytes = memory::list(usize::try_from(ring_bytes.min(BYTES_MAX)).unwrap_or(0))?;
        let entries = Entries { bytes, links: Vec::new(), page_bytes, home_pages };
        Ok(Chains { entries, last: FxHashMap::default(), wasted_bytes: 0 })
    }

    pub fn has_room(&self, record_bytes: u64) -> bool {
        self.entries.bytes.len() as u64 + record_bytes <= BYTES_MAX && self.wasted_bytes <= WASTED_BYTES
    }

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
        // New memory costs more than the read of home.
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

    pub fn image(
        &self,
        page: PageNo,
        last: u32,
        home: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<Option<Vec<u8>>> {
        self.entries.image(page, last, home)
    }

    /// The pages that still wait, each with its last change.
    pub fn finish(self) -> impl Iterator<Item = (PageNo, Tid, ChangeChain)> {
        let entries = Arc::new(self.entries);
        self.last.into_iter().filter_map(move |(page, last)| {
            let tid = entries.links.get(last as usize)?.tid;
            Some((page, tid, ChangeChain { entries: entries.clone(), last }))
        })
    }
}

fn number(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::NoMemory)
}

impl ChangeChain {
    pub fn page_bytes(&self) -> u32 {
        self.entries.page_bytes
    }

    pub fn is(&self, other: &ChangeChain) -> bool {
        Arc::ptr_eq(&self.entries, &other.entries) && self.last == other.last
    }

    /// `home` is read if the chain needs it. `None`: home is shorter than at recovery.
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
