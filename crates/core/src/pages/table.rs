//! The page table: images newer than home, and old ones that snapshots need.
//!
//! A snapshot at S reads the newest version up to S, else home (invariant I4).
//! [`ImageLocation::Home`] is listed where older versions are kept beside it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::layout::STREAM_UNIT;
use crate::base::memory::{self, Room};
use crate::base::types::{PageNo, Tid};
use crate::disk::DiskFile;
use crate::pages::chains::ChangeChain;
use crate::pages::image::Image;
use crate::pages::snapshots::Snapshots;
use crate::sqlite_format::home::State;

/// Position in stream units; zero is none.
pub fn stream_units(position: u64) -> Result<u32> {
    let units = u32::try_from(position / STREAM_UNIT).ok().filter(|units| *units != Streamed::HOME);
    units.ok_or_else(|| Error::Full("the log is too long".into()))
}

pub fn part(image: &[u8], at: usize, len: usize) -> Result<&[u8]> {
    let short = || Error::Corrupt(format!("bytes {at} to {} of a page with {} bytes", at + len, image.len()));
    image.get(at..at + len).ok_or_else(short)
}

#[derive(Clone)]
pub enum ImageLocation {
    Memory(Image),
    /// Streamed into the log: file and byte position.
    Log(Arc<dyn DiskFile>, u64),
    /// Kept for a snapshot in a temporary file: file and byte position.
    Kept(Arc<dyn DiskFile>, u64),
    /// Not made yet: recovered changes.
    Unmade(ChangeChain),
    Home,
}

#[derive(Clone)]
struct PageVersion {
    tid: Tid,
    place: ImageLocation,
}

/// Oldest first; most pages have one.
type Versions = SmallVec<[PageVersion; 1]>;

impl PageVersion {
    fn is_newer_than_home(&self) -> bool {
        !matches!(self.place, ImageLocation::Home | ImageLocation::Kept(..))
    }

    /// Of an unmade image, its changes.
    fn bytes(&self) -> u64 {
        match &self.place {
            ImageLocation::Memory(image) => image.len() as u64,
            ImageLocation::Unmade(chain) => chain.page_bytes().into(),
            ImageLocation::Log(..) | ImageLocation::Kept(..) | ImageLocation::Home => 0,
        }
    }
}

/// Where an image of a big transaction was written before its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamedTo {
    /// Byte position behind the ring, and crc32c.
    Log(u64, u32),
    /// The page's place, behind the end that home had.
    Home,
}

/// By page: four index pages per megabyte.
#[derive(Clone, Debug, Default)]
pub struct Streamed {
    chunks: BTreeMap<u32, Vec<(u32, u32)>>,
    count: u32,
    at_home: u32,
}

const CHUNK: usize = 512;

impl Streamed {
    /// In place of a position in stream units.
    const HOME: u32 = u32::MAX;

    fn split(page: PageNo) -> (u32, usize) {
        (page.0 / CHUNK as u32, page.0 as usize % CHUNK)
    }

    fn place((units, crc): (u32, u32)) -> Option<StreamedTo> {
        match units {
            0 => None,
            Self::HOME => Some(StreamedTo::Home),
            units => Some(StreamedTo::Log(u64::from(units) * STREAM_UNIT, crc)),
        }
    }

    pub fn get(&self, page: PageNo) -> Option<StreamedTo> {
        let (chunk, at) = Self::split(page);
        Self::place(*self.chunks.get(&chunk)?.get(at)?)
    }

    pub fn set(&mut self, page: PageNo, to: StreamedTo) -> Result<()> {
        let (chunk, at) = Self::split(page);
        let slots = match self.chunks.entry(chunk) {
            Entry::Occupied(slots) => slots.into_mut(),
            Entry::Vacant(none) => {
                let mut slots = memory::list(CHUNK)?;
                slots.resize(CHUNK, (0, 0));
                none.insert(slots)
            }
        };
        let new = match to {
            StreamedTo::Log(position, crc) => (stream_units(position)?, crc),
            StreamedTo::Home => (Self::HOME, 0),
        };
        if let Some(slot) = slots.get_mut(at) {
            let old = std::mem::replace(slot, new);
            self.recount(old, new);
        }
        Ok(())
    }

    fn recount(&mut self, (old, _): (u32, u32), (new, _): (u32, u32)) {
        self.count = self.count - u32::from(old != 0) + u32::from(new != 0);
        self.at_home = self.at_home - u32::from(old == Self::HOME) + u32::from(new == Self::HOME);
    }

    pub fn remove(&mut self, page: PageNo) {
        let (chunk, at) = Self::split(page);
        if let Some(slot) = self.chunks.get_mut(&chunk).and_then(|c| c.get_mut(at)) {
            let old = std::mem::take(slot);
            self.recount(old, (0, 0));
        }
    }

    /// Removes pages behind `pages`.
    pub fn truncate(&mut self, pages: u32) {
        let gone: Vec<PageNo> = self.iter().map(|(page, _)| page).filter(|page| page.0 > pages).collect();
        gone.into_iter().for_each(|page| self.remove(page));
    }

    /// Those at home are found there, as all pages that a table does not list.
    fn forget_home(&mut self) {
        for slot in self.chunks.values_mut().flatten().filter(|(units, _)| *units == Self::HOME) {
            *slot = (0, 0);
        }
        self.count -= std::mem::take(&mut self.at_home);
    }

    pub fn len(&self) -> u32 {
        self.count
    }

    pub fn at_home(&self) -> u32 {
        self.at_home
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (PageNo, StreamedTo)> + '_ {
        self.chunks.iter().flat_map(|(chunk, slots)| {
            let page = move |at: usize| PageNo(chunk * CHUNK as u32 + at as u32);
            slots.iter().enumerate().filter_map(move |(at, slot)| Some((page(at), Self::place(*slot)?)))
        })
    }

    /// Page, byte position and crc32c.
    pub fn in_log(&self) -> impl Iterator<Item = (PageNo, u64, u32)> + '_ {
        self.iter().filter_map(|(page, to)| match to {
            StreamedTo::Log(position, crc) => Some((page, position, crc)),
            StreamedTo::Home => None,
        })
    }
}

struct Layer {
    tid: Tid,
    streamed: Streamed,
    log: Arc<dyn DiskFile>,
    /// Where the images end in the log, index included, in bytes.
    end: u64,
}

impl Layer {
    /// Whether a streamed image is newer than `listed`, or will be home's: home may hold either
    /// until the checkpoint ends (rule OldImageKept).
    fn hides(&self, listed: &PageVersion) -> bool {
        listed.tid < self.tid || (listed.tid == self.tid && matches!(listed.place, ImageLocation::Home))
    }
}

#[derive(Clone, Copy)]
pub struct Readers<'a> {
    pub snapshots: &'a Snapshots,
    /// The newest visible state: it and later ones may be pinned at any time.
    pub visible: Tid,
}

impl Readers<'_> {
    /// Whether a snapshot may read the version of `page` from `from` to `until` (rule
    /// OldImageKept); one that ends before the page cannot.
    fn need(&self, page: PageNo, from: Tid, until: Tid) -> bool {
        until > self.visible || self.snapshots.has_any_with(page, from, until)
    }
}

/// Trimming fewer kept bytes does not pay.
const TRIM_BYTES: u64 = 1 << 20;

const STEPS: usize = 64;
const STEP_PAGES: usize = 16;

/// Identifies a state: a new log reuses the last TID, and a passthrough transaction changes only
/// the counter.
pub type StateId = (Tid, u32);

pub fn state_id(state: &State) -> StateId {
    (state.tid, state.change_counter)
}

struct TableChange {
    from: StateId,
    to: StateId,
    pages: Vec<PageNo>,
}

#[derive(Default)]
pub struct PageTable {
    pages: FxHashMap<PageNo, Versions>,
    /// A big transaction's images in the log; a checkpoint follows before the next commit.
    layer: Option<Layer>,
    new_bytes: u64,
    /// Bytes in memory for snapshots.
    kept_bytes: u64,
    /// Of these, needed at the last look.
    needed_bytes: u64,
    /// Each page changed after this is listed; `None`: unknown.
    since: Option<Tid>,
    /// Each page changed after this is listed as long as its snapshot is pinned.
    whole_since: Tid,
    /// Of this process, oldest first.
    steps: VecDeque<TableChange>,
    /// A connection has asked for steps; stock SQLite never does.
    is_asked: AtomicBool,
    /// Other processes may have kept images of its pages.
    pub is_shared: bool,
}

impl PageTable {
    pub fn find(&self, page: PageNo, tid: Tid) -> ImageLocation {
        let listed = self.pages.get(&page).and_then(|v| v.iter().rev().find(|v| v.tid <= tid));
        if let Some(layer) = &self.layer
            && layer.tid <= tid
            && listed.is_none_or(|v| layer.hides(v))
            && let Some(StreamedTo::Log(position, _)) = layer.streamed.get(page)
        {
            return ImageLocation::Log(layer.log.clone(), position);
        }
        listed.map_or(ImageLocation::Home, |version| version.place.clone())
    }

    /// Looks at the newest versions of pages that are about to change. No look depends on another,
    /// so the processor waits for the memory of several at once.
    pub fn look_ahead(&self, each_page: impl FnOnce(&mut dyn FnMut(PageNo))) {
        let mut seen = 0u64;
        each_page(&mut |page| {
            let newest = self.pages.get(&page).and_then(|versions| versions.last());
            seen ^= newest.map_or(0, |newest| match &newest.place {
                ImageLocation::Unmade(chain) => chain.last_byte().into(),
                _ => newest.tid.0,
            });
        });
        std::hint::black_box(seen);
    }

    fn versions(&mut self, page: PageNo) -> &mut Versions {
        self.pages.entry(page).or_default()
    }

    /// The image of `chain` was made.
    pub fn made(&mut self, page: PageNo, chain: &ChangeChain, image: Image) {
        let is = |place: &ImageLocation| matches!(place, ImageLocation::Unmade(other) if other.is(chain));
        let version = self.pages.get_mut(&page).and_then(|versions| versions.iter_mut().find(|v| is(&v.place)));
        if let Some(version) = version {
            version.place = ImageLocation::Memory(image);
        }
    }

    /// An unmade version, other than the one at `going` to home.
    pub fn unmade_beside(&self, page: PageNo, going: &ImageLocation) -> Option<(Tid, ChangeChain)> {
        let beside = |place: &ImageLocation| match (place, going) {
            (ImageLocation::Unmade(chain), ImageLocation::Unmade(going)) if chain.is(going) => None,
            (ImageLocation::Unmade(chain), _) => Some(chain.clone()),
            _ => None,
        };
        self.pages.get(&page)?.iter().find_map(|v| Some((v.tid, beside(&v.place)?)))
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.layer.is_none()
    }

    pub fn new_bytes(&self) -> u64 {
        self.new_bytes
    }

    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    pub fn has_layer(&self) -> bool {
        self.layer.is_some()
    }

    /// `None`: it is home's.
    pub fn made_by(&self, page: PageNo, tid: Tid) -> Option<Tid> {
        let listed = self.pages.get(&page).and_then(|v| v.iter().rev().find(|v| v.tid <= tid)).map(|v| v.tid);
        let layer = self.layer.as_ref().filter(|l| l.tid <= tid && l.streamed.get(page).is_some()).map(|l| l.tid);
        listed.max(layer)
    }

    /// Changes after `tid` are listed from now on.
    pub fn lists_since(&mut self, tid: Tid) {
        self.since = Some(tid);
        self.whole_since = self.whole_since.max(tid);
    }

    /// Whether each page changed after `tid` is listed, which is pinned.
    pub fn knows_since(&self, tid: Tid) -> bool {
        self.whole_since <= tid
    }

    /// The pages changed up to `tid`, each with its last change, and the TID after which none is
    /// missing; `None`: unknown. `tid` is pinned.
    pub fn changes(&self, tid: Tid) -> Option<(Tid, Vec<(PageNo, Tid)>)> {
        let since = self.since?;
        let made_by = |page: PageNo| Some((page, self.made_by(page, tid).filter(|made_by| *made_by > since)?));
        let streamed = self.layer.iter().flat_map(|layer| layer.streamed.iter().map(|(page, _)| page));
        let others = streamed.filter(|page| !self.pages.contains_key(page));
        let mut pages: Vec<_> = self.pages.keys().copied().chain(others).filter_map(made_by).collect();
        pages.sort_unstable();
        pages.dedup();
        Some((since, pages))
    }

    /// `pages` differ between the states. Not noted if too many, or before a connection asks: a
    /// search then finds nothing (rule CacheKnowsItsState).
    pub fn note_step(&mut self, from: &State, to: &State, pages: impl ExactSizeIterator<Item = PageNo>) {
        if !*self.is_asked.get_mut()
            || pages.len() > STEP_PAGES
            || from.page_bytes != to.page_bytes
            || to.page_count < from.page_count
        {
            return;
        }
        let oldest = if self.steps.len() < STEPS { None } else { self.steps.pop_front() };
        let mut list = oldest.map_or_else(Vec::new, |step| step.pages);
        list.clear();
        // Without memory it is not noted either.
        if list.room(pages.len()).is_err() || self.steps.room(1).is_err() {
            return;
        }
        list.extend(pages);
        self.steps.push_back(TableChange { from: state_id(from), to: state_id(to), pages: list });
    }

    /// Adds pages that may differ; false: unknown.
    pub fn changed_between(&self, from: StateId, to: StateId, pages: &mut Vec<u32>) -> bool {
        self.is_asked.store(true, Relaxed);
        let mut at = to;
        for step in self.steps.iter().rev().skip_while(|step| step.to != to) {
            if at == from {
                break;
            }
            if step.to != at || pages.room(step.pages.len()).is_err() {
                return false;
            }
            pages.extend(step.pages.iter().map(|page| page.0));
            at = step.from;
        }
        at == from
    }

    /// For images of `more` pages.
    pub fn room(&mut self, more: usize) -> Result<()> {
        self.pages.room(more)
    }

    /// Drops versions without readers.
    pub fn publish(&mut self, page: PageNo, tid: Tid, place: ImageLocation, readers: Readers<'_>) {
        let added = PageVersion { tid, place };
        let versions = self.versions(page);
        let (newest, kept) = versions.split_last().map_or((0, 0), |(last, older)| (last.bytes(), bytes(older)));
        retain_needed(page, versions, tid, readers);
        // A checkpoint will write the added one: the former newest is now kept.
        let (new, still_kept) = (added.bytes(), bytes(versions));
        versions.push(added);
        self.new_bytes = self.new_bytes + new - newest;
        self.kept_bytes = self.kept_bytes + still_kept - kept;
    }

    /// Lets `change` make the newest version, if no snapshot reads it, that of `tid`. If that did
    /// not happen, returns the version's place.
    pub fn amend(
        &mut self,
        page: PageNo,
        tid: Tid,
        readers: Readers<'_>,
        change: impl FnOnce(&mut ImageLocation) -> Result<bool>,
    ) -> Result<Option<ImageLocation>> {
        if self.layer.is_some() {
            return Ok(Some(self.find(page, tid)));
        }
        let Some(newest) = self.pages.get_mut(&page).and_then(|versions| versions.last_mut()) else {
            return Ok(Some(ImageLocation::Home));
        };
        debug_assert!(newest.tid <= tid, "page {page} has a version of {}", newest.tid);
        if readers.need(page, newest.tid, tid) || !change(&mut newest.place)? {
            return Ok(Some(newest.place.clone()));
        }
        newest.tid = tid;
        Ok(None)
    }

    /// The images end with their index at byte `end` of the log.
    pub fn publish_streamed(&mut self, tid: Tid, mut streamed: Streamed, log: Arc<dyn DiskFile>, end: u64) {
        if streamed.at_home > 0 {
            streamed.forget_home();
            self.lists_since(tid);
        }
        if streamed.is_empty() {
            return;
        }
        debug_assert!(self.layer.is_none(), "a checkpoint follows each big transaction");
        self.layer = Some(Layer { tid, streamed, log, end });
    }

    /// In bytes of the log, index included; 0: none. Nothing behind is committed.
    pub fn streamed_end(&self) -> u64 {
        self.layer.as_ref().map_or(0, |layer| layer.end)
    }

    /// Newest versions newer than home, in page order.
    pub fn dirty(&self, page_count: u32) -> Result<Vec<(PageNo, ImageLocation)>> {
        let streamed = self.layer.as_ref().map_or(0, |layer| layer.streamed.len());
        let mut pages: Vec<(PageNo, ImageLocation)> = memory::list(self.pages.len() + streamed as usize)?;
        let listed = self
            .pages
            .iter()
            .filter(|(page, _)| page.0 <= page_count)
            .filter_map(|(page, versions)| Some((*page, versions.last()?)))
            .filter(|(page, last)| {
                last.is_newer_than_home()
                    && self.layer.as_ref().is_none_or(|l| last.tid >= l.tid || l.streamed.get(*page).is_none())
            })
            .map(|(page, last)| (page, last.place.clone()));
        pages.extend(listed);
        if let Some(layer @ Layer { streamed, log, .. }) = &self.layer {
            let newest = |p: &PageNo| self.pages.get(p).and_then(|v| v.last()).is_none_or(|v| layer.hides(v));
            let streamed = streamed.in_log().filter(|(p, ..)| p.0 <= page_count && newest(p));
            pages.extend(streamed.map(|(page, at, _)| (page, ImageLocation::Log(log.clone(), at))));
        }
        pages.sort_unstable_by_key(|(page, _)| *page);
        Ok(pages)
    }

    pub fn count_dirty(&self, page_count: u32, home_pages: u64) -> Result<(u64, u64)> {
        let mut count = (0, 0);
        let mut add = |page: PageNo| count = (count.0 + 1, count.1 + u64::from(u64::from(page.0) > home_pages));
        if self.layer.is_some() {
            self.dirty(page_count)?.iter().for_each(|(page, _)| add(*page));
            return Ok(count);
        }
        let listed = self.pages.iter().filter(|(_, v)| v.last().is_some_and(PageVersion::is_newer_than_home));
        listed.map(|(page, _)| *page).filter(|page| page.0 <= page_count).for_each(&mut add);
        Ok(count)
    }

    /// Keeps home's image for snapshots from `first` on, before home gets that of `now`.
    pub fn keep(&mut self, page: PageNo, first: Tid, now: Tid, place: ImageLocation) {
        if let ImageLocation::Memory(image) = &place {
            self.kept_bytes += image.len() as u64;
        }
        let versions = self.versions(page);
        let at = versions.partition_point(|v| v.tid < first);
        match versions.get_mut(at) {
            Some(PageVersion { tid, place: old @ ImageLocation::Home }) if *tid == first => *old = place,
            _ => versions.insert(at, PageVersion { tid: first, place }),
        }
        // Home had the same image where other processes' checkpoints are marked behind it.
        let mut n = 0;
        versions.retain(|v| {
            n += 1;
            n <= at + 1 || v.tid >= now || !matches!(v.place, ImageLocation::Home)
        });
        if at + 1 == versions.len() {
            versions.push(PageVersion { tid: now, place: ImageLocation::Home });
        }
    }

    /// Home has got the newest image, which has a record in the log: drops unneeded versions.
    pub fn swept(&mut self, page: PageNo, readers: Readers<'_>) {
        let Some(tid) = self.is_home(page, readers) else { return };
        self.drops_until(tid);
    }

    fn drops_until(&mut self, tid: Tid) {
        self.since = self.since.map(|since| since.max(tid));
        self.whole_since = self.whole_since.max(tid);
    }

    /// Drops unneeded versions; returns the newest TID.
    fn is_home(&mut self, page: PageNo, readers: Readers<'_>) -> Option<Tid> {
        let newest = self.pages.get_mut(&page)?.last_mut()?;
        let tid = newest.tid;
        self.new_bytes -= newest.bytes();
        newest.place = ImageLocation::Home;
        self.release(page, readers);
        Some(tid)
    }

    /// Another process's checkpoint brought home all up to `home_tid`: drops unneeded images of
    /// pages without newer ones.
    pub fn swept_elsewhere(&mut self, home_tid: Tid, readers: Readers<'_>) {
        let in_home = |v: &&PageVersion| v.tid <= home_tid && v.is_newer_than_home();
        let swept: Vec<PageNo> =
            self.pages.iter().filter(|(_, v)| v.last().filter(in_home).is_some()).map(|(page, _)| *page).collect();
        swept.into_iter().for_each(|page| self.swept(page, readers));
    }

    pub fn to_sweep(&self, page: PageNo) -> Option<(Tid, ImageLocation)> {
        let newest = self.pages.get(&page)?.last().filter(|newest| newest.is_newer_than_home())?;
        Some((newest.tid, newest.place.clone()))
    }

    pub fn keeps_in_file(&self) -> bool {
        self.pages.values().flatten().any(|version| matches!(version.place, ImageLocation::Kept(..)))
    }

    pub fn release(&mut self, page: PageNo, readers: Readers<'_>) {
        let Some(versions) = self.pages.get_mut(&page) else { return };
        let Some(newest) = versions.pop() else { return };
        let before = bytes(versions);
        retain_needed(page, versions, newest.tid, readers);
        self.kept_bytes = (self.kept_bytes + bytes(versions)).saturating_sub(before);
        let alone_at_home = versions.is_empty() && matches!(newest.place, ImageLocation::Home);
        versions.push(newest);
        if alone_at_home {
            self.pages.remove(&page);
        }
    }

    /// Drops versions that no snapshot needs. Pages behind `page_count` are not in home, and stay
    /// for snapshots.
    pub fn checkpointed(&mut self, home_tid: Tid, page_count: u32, readers: Readers<'_>) {
        debug_assert!(home_tid <= readers.visible, "home gets nothing that readers may not see yet");
        self.drops_until(home_tid);
        let layer = self.layer.take();
        self.new_bytes = 0;
        self.set_kept(0);
        let needed = readers.snapshots.has_any(Tid(0), home_tid);
        if !needed {
            self.pages = FxHashMap::default();
            return;
        }
        let mut kept_bytes = 0;
        self.pages.retain(|page, versions| {
            // Where home has a newer version than listed, or none, that is the newest.
            let streamed = layer.as_ref().filter(|l| l.streamed.get(*page).is_some()).map(|l| l.tid);
            let newer = streamed.or((page.0 > page_count).then_some(home_tid));
            if let Some(tid) = newer.filter(|tid| versions.last().is_some_and(|v| v.tid < *tid)) {
                versions.push(PageVersion { tid, place: ImageLocation::Home });
            }
            let Some(mut newest) = versions.pop() else { return false };
            let until = newest.tid;
            retain_needed(*page, versions, until, readers);
            kept_bytes += bytes(versions);
            if versions.is_empty() {
                // Only the newest is left: in home, or cut off with the file's end.
                return false;
            }
            newest.place = ImageLocation::Home;
            versions.push(newest);
            true
        });
        self.set_kept(kept_bytes);
    }

    /// `None`: in home.
    pub fn newest_tid(&self, page: PageNo) -> Option<Tid> {
        self.made_by(page, Tid(u64::MAX))
    }

    /// Another process wrote home, not all of it seen here: snapshots from `home_tid` on read home,
    /// older ones their versions.
    pub fn checkpointed_elsewhere(&mut self, home_tid: Tid, snapshots: &Snapshots) {
        let layer = self.layer.take();
        for (page, versions) in &mut self.pages {
            // Between big transaction and checkpoint, snapshots read its image in home, or home's
            // kept one.
            let streamed = layer.as_ref().filter(|l| l.streamed.get(*page).is_some()).map(|l| l.tid);
            for tid in streamed.into_iter().chain([home_tid]) {
                if versions.last().is_some_and(|v| v.tid < tid) {
                    versions.push(PageVersion { tid, place: ImageLocation::Home });
                }
            }
        }
        self.checkpointed(home_tid, u32::MAX, Readers { snapshots, visible: home_tid });
    }

    /// Whether kept images have grown enough for a trim.
    pub fn should_trim(&self) -> bool {
        self.kept_bytes > TRIM_BYTES.max(2 * self.needed_bytes)
    }

    pub fn trim(&mut self, readers: Readers<'_>) {
        let mut kept_bytes = 0;
        self.pages.retain(|page, versions| {
            let Some(newest) = versions.pop() else { return false };
            retain_needed(*page, versions, newest.tid, readers);
            kept_bytes += bytes(versions);
            let alone_at_home = versions.is_empty() && matches!(newest.place, ImageLocation::Home);
            versions.push(newest);
            !alone_at_home
        });
        self.set_kept(kept_bytes);
    }

    fn set_kept(&mut self, bytes: u64) {
        self.kept_bytes = bytes;
        self.needed_bytes = bytes;
    }

    pub fn clear(&mut self) {
        *self = PageTable { is_shared: self.is_shared, ..PageTable::default() };
    }
}

/// Of pages that are overwritten in place.
#[cfg(feature = "research")]
impl PageTable {
    /// Before home, which is at `base`, gets the newest image, which is in memory: `old`, home's
    /// image, replaces home for each snapshot up to `base`, pinned already or later.
    pub fn hold_under(&mut self, page: PageNo, base: Tid, old: ImageLocation) {
        self.since = None;
        if let ImageLocation::Memory(image) = &old {
            self.kept_bytes += image.len() as u64;
        }
        let versions = self.versions(page);
        let at = versions.partition_point(|v| v.tid <= base);
        Self::displace_home(versions, at, old);
    }

    /// Home is about to lose `old`, which replaces it in the first `count` versions. Several may be
    /// in home: a checkpoint marks one for a page beyond home's end, too.
    fn displace_home(versions: &mut Versions, count: usize, old: ImageLocation) {
        let older = versions.get(..count).unwrap_or_default();
        let from = older.iter().rposition(|v| !matches!(v.place, ImageLocation::Home)).map_or(0, |newest| newest + 1);
        debug_assert!(from < count || count == 0, "a version is newer than home");
        if from < count {
            versions.drain(from + 1..count);
        }
        match versions.get_mut(from).filter(|_| from < count) {
            Some(version) => version.place = old,
            None => versions.insert(from, PageVersion { tid: Tid::HOME, place: old }),
        }
    }

    /// Home has the newest image, which was in memory: drops unneeded versions.
    pub fn brought_home(&mut self, page: PageNo, readers: Readers<'_>) {
        self.since = None;
        self.is_home(page, readers);
    }
}

fn bytes(versions: &[PageVersion]) -> u64 {
    versions.iter().map(PageVersion::bytes).sum()
}

/// Keeps the versions, all before `until`, that a snapshot may read.
fn retain_needed(page: PageNo, versions: &mut Versions, until: Tid, readers: Readers<'_>) {
    let mut next = until;
    for at in (0..versions.len()).rev() {
        let Some(tid) = versions.get(at).map(|v| v.tid) else { continue };
        if tid >= next || !readers.need(page, tid, next) {
            versions.remove(at);
        }
        next = tid;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::disk::sim::{SimConfig, SimDisk};
    use crate::log::record::PageChange;
    use crate::pages::chains::ChainBase;

    fn image(n: u8) -> Image {
        vec![n; 512].into()
    }

    fn readers(snapshots: &Snapshots, visible: u64) -> Readers<'_> {
        Readers { snapshots, visible: Tid(visible) }
    }

    /// Home still has page 7, for an older snapshot.
    #[test]
    fn a_page_that_is_added_again_leaves_home_to_no_older_snapshot() {
        let mut table = PageTable::default();
        let mut snapshots = Snapshots::default();
        snapshots.pin(Tid(2), 9);
        table.publish(PageNo(7), Tid(3), ImageLocation::Memory(image(3)), readers(&snapshots, 2));
        table.hold_under(PageNo(7), Tid(2), ImageLocation::Memory(image(1)));
        table.brought_home(PageNo(7), readers(&snapshots, 3));
        snapshots.pin(Tid(4), 9);
        table.checkpointed(Tid(5), 6, readers(&snapshots, 5));
        assert_eq!([2, 4].map(|tid| read(&table, tid)), [Some(1), None]);
        table.publish(PageNo(7), Tid(6), ImageLocation::Memory(image(6)), readers(&snapshots, 5));
        table.hold_under(PageNo(7), Tid(5), ImageLocation::Memory(image(3)));
        table.brought_home(PageNo(7), readers(&snapshots, 6));
        assert_eq!([2, 4, 6].map(|tid| read(&table, tid)), [Some(1), Some(3), None]);
    }

    fn read(table: &PageTable, tid: u64) -> Option<u8> {
        match table.find(PageNo(7), Tid(tid)) {
            ImageLocation::Memory(i) => i.first().copied(),
            ImageLocation::Home => None,
            ImageLocation::Log(..) | ImageLocation::Kept(..) | ImageLocation::Unmade(_) => Some(255),
        }
    }

    #[test]
    fn a_snapshot_reads_the_newest_version_that_is_not_newer_than_itself() {
        let snapshots = Snapshots::from([0, 3, 5]);
        let mut table = PageTable::default();
        for tid in [2, 3, 4, 6] {
            table.publish(PageNo(7), Tid(tid), ImageLocation::Memory(image(tid as u8)), readers(&snapshots, tid));
        }
        let seen: Vec<_> = (0..8).map(|t| read(&table, t)).collect();
        // Version 2 has no reader and is gone.
        assert_eq!(seen, [None, None, None, Some(3), Some(4), Some(4), Some(6), Some(6)]);
        assert_eq!(table.new_bytes(), 512);
        assert_eq!(table.kept_bytes(), 2 * 512);
    }

    #[test]
    fn changed_pages_are_listed_from_where_none_is_missing() {
        let snapshots = Snapshots::from([4]);
        let mut table = PageTable::default();
        assert!(table.changes(Tid(0)).is_none());
        table.lists_since(Tid(1));
        for (page, tid) in [(7, 2), (8, 3), (7, 4), (8, 5)] {
            table.publish(PageNo(page), Tid(tid), ImageLocation::Memory(image(1)), readers(&snapshots, tid));
        }
        let changes = |table: &PageTable, tid| table.changes(Tid(tid)).unwrap();
        assert_eq!(changes(&table, 5), (Tid(1), vec![(PageNo(7), Tid(4)), (PageNo(8), Tid(5))]));
        assert_eq!(changes(&table, 4), (Tid(1), vec![(PageNo(7), Tid(4)), (PageNo(8), Tid(3))]));
        // Home has them: earlier changes are unknown, though an image is kept.
        table.checkpointed(Tid(5), 9, readers(&snapshots, 5));
        table.publish(PageNo(9), Tid(6), ImageLocation::Memory(image(1)), readers(&snapshots, 6));
        assert_eq!(changes(&table, 6), (Tid(5), vec![(PageNo(9), Tid(6))]));
        let mut streamed = Streamed::default();
        streamed.set(PageNo(3), StreamedTo::Log(1 << 20, 5)).unwrap();
        let log = SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap();
        table.publish_streamed(Tid(7), streamed, log, 0);
        assert_eq!(changes(&table, 7), (Tid(5), vec![(PageNo(3), Tid(7)), (PageNo(9), Tid(6))]));
        // A page in place has no record.
        table.checkpointed(Tid(7), 9, readers(&snapshots, 7));
        table.hold_under(PageNo(7), Tid(7), ImageLocation::Memory(image(4)));
        assert!(table.changes(Tid(8)).is_none());
    }

    #[test]
    fn images_that_readers_may_come_to_see_are_kept_until_they_see_newer_ones() {
        let nobody = Snapshots::default();
        let mut table = PageTable::default();
        // Readers see 1; a flush may cover 2 alone.
        for tid in 1..4 {
            table.publish(PageNo(7), Tid(tid), ImageLocation::Memory(image(tid as u8)), readers(&nobody, 1));
        }
        let seen: Vec<_> = (1..4).map(|t| read(&table, t)).collect();
        assert_eq!(seen, [Some(1), Some(2), Some(3)]);
        assert_eq!((table.new_bytes(), table.kept_bytes()), (512, 2 * 512));
        table.publish(PageNo(7), Tid(4), ImageLocation::Memory(image(4)), readers(&nobody, 3));
        assert_eq!((read(&table, 2), read(&table, 3), table.kept_bytes()), (None, Some(3), 512));
        table.trim(readers(&nobody, 4));
        assert_eq!((read(&table, 3), read(&table, 4), table.kept_bytes()), (None, Some(4), 0));
    }

    #[test]
    fn a_checkpoint_keeps_the_images_of_older_snapshots_and_no_others() {
        let mut snapshots = Snapshots::from([0]);
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(1), ImageLocation::Memory(image(1)), readers(&snapshots, 1));
        table.keep(PageNo(7), Tid(0), Tid(1), ImageLocation::Memory(image(100)));
        table.checkpointed(Tid(1), 7, readers(&snapshots, 1));
        assert_eq!((read(&table, 0), read(&table, 1), read(&table, 9)), (Some(100), None, None));
        // A second round on the kept version.
        table.publish(PageNo(7), Tid(2), ImageLocation::Memory(image(2)), readers(&snapshots, 2));
        assert_eq!((read(&table, 0), read(&table, 2)), (Some(100), Some(2)));
        table.checkpointed(Tid(2), 7, readers(&snapshots, 2));
        assert_eq!((read(&table, 0), read(&table, 2)), (Some(100), None));
        snapshots = Snapshots::default();
        table.trim(readers(&snapshots, 9));
        assert!(table.is_empty());
    }

    #[test]
    fn a_checkpoint_keeps_pages_behind_the_end_for_snapshots_that_have_them() {
        let mut snapshots = Snapshots::from([1]);
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(1), ImageLocation::Memory(image(1)), readers(&snapshots, 1));
        // Transaction 2 cuts page 7 off.
        table.checkpointed(Tid(2), 6, readers(&snapshots, 2));
        assert_eq!((read(&table, 1), table.dirty(9).unwrap().len(), table.new_bytes()), (Some(1), 0, 0));
        // Transaction 3 adds it again.
        table.publish(PageNo(7), Tid(3), ImageLocation::Memory(image(3)), readers(&snapshots, 3));
        assert_eq!((read(&table, 1), read(&table, 3), table.new_bytes()), (Some(1), Some(3), 512));
        snapshots = Snapshots::default();
        table.checkpointed(Tid(3), 7, readers(&snapshots, 3));
        assert!(table.is_empty());
    }

    #[test]
    fn a_checkpoint_of_streamed_images_keeps_those_of_older_snapshots() {
        let snapshots = Snapshots::from([1]);
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(1), ImageLocation::Memory(image(1)), readers(&snapshots, 1));
        let mut streamed = Streamed::default();
        streamed.set(PageNo(7), StreamedTo::Log(1 << 20, 5)).unwrap();
        let log = SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap();
        table.publish_streamed(Tid(2), streamed, log, 0);
        table.checkpointed(Tid(2), 7, readers(&snapshots, 2));
        assert_eq!((read(&table, 1), read(&table, 2)), (Some(1), None));
    }

    #[test]
    fn a_checkpoint_on_its_way_hides_no_streamed_image() {
        let mut table = PageTable::default();
        let mut streamed = Streamed::default();
        streamed.set(PageNo(7), StreamedTo::Log(1 << 20, 5)).unwrap();
        let log = SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap();
        table.publish_streamed(Tid(2), streamed, log, 0);
        // Home is about to get the image of 2, perhaps at a later try.
        table.keep(PageNo(7), Tid(1), Tid(2), ImageLocation::Memory(image(100)));
        assert_eq!(read(&table, 1), Some(100));
        assert!(matches!(table.find(PageNo(7), Tid(2)), ImageLocation::Log(_, p) if p == 1 << 20));
        assert!(matches!(table.dirty(7).unwrap()[..], [(PageNo(7), ImageLocation::Log(..))]));
    }

    #[test]
    fn behind_a_checkpoint_that_was_missed_a_streamed_image_is_read_in_home() {
        let snapshots = Snapshots::from([1, 2]);
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(1), ImageLocation::Memory(image(1)), readers(&snapshots, 1));
        let mut streamed = Streamed::default();
        streamed.set(PageNo(7), StreamedTo::Log(1 << 20, 5)).unwrap();
        let log = SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap();
        table.publish_streamed(Tid(2), streamed, log, 0);
        table.checkpointed_elsewhere(Tid(5), &snapshots);
        assert_eq!((read(&table, 1), read(&table, 2)), (Some(1), None));
    }

    #[test]
    fn a_version_is_not_kept_for_a_state_that_ends_before_the_page() {
        let mut snapshots = Snapshots::default();
        for (tid, pages) in [(5, 9), (6, 6)] {
            snapshots.pin(Tid(tid), pages);
        }
        let mut table = found();
        table.checkpointed_elsewhere(Tid(7), &snapshots);
        assert_eq!([7, 9].map(|page| makes(&table, page, 5)), [Some(3), Some(5)]);
        snapshots.unpin(Tid(5));
        let mut table = found();
        table.checkpointed_elsewhere(Tid(7), &snapshots);
        assert!(table.is_empty());
    }

    #[test]
    fn an_image_kept_is_read_also_behind_the_mark_of_a_checkpoint_elsewhere() {
        let snapshots = Snapshots::from([1, 2, 4]);
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(2), ImageLocation::Memory(image(2)), readers(&snapshots, 2));
        table.publish(PageNo(7), Tid(3), ImageLocation::Memory(image(3)), readers(&snapshots, 3));
        table.checkpointed(Tid(3), 7, readers(&snapshots, 3));
        table.checkpointed_elsewhere(Tid(5), &snapshots);
        assert_eq!([2, 3, 4, 5].map(|tid| read(&table, tid)), [Some(2), None, None, None]);
        // Transaction 7 overwrites the home of snapshots 3, 4 and 6.
        table.keep(PageNo(7), Tid(4), Tid(7), ImageLocation::Memory(image(3)));
        assert_eq!([2, 3, 4, 6, 7].map(|tid| read(&table, tid)), [Some(2), None, Some(3), Some(3), None]);
    }

    #[test]
    fn an_image_overwritten_in_place_is_held_as_long_as_a_snapshot_reads_it() {
        let mut snapshots = Snapshots::from([3]);
        let mut table = PageTable::default();
        for (now, old) in [(4, 100), (5, 104), (6, 105)] {
            assert!(read(&table, now).is_none());
            table.publish(PageNo(7), Tid(now), ImageLocation::Memory(image(old + 1)), readers(&snapshots, now - 1));
            table.hold_under(PageNo(7), Tid(now - 1), ImageLocation::Memory(image(old)));
            // A snapshot pinned before the change reads the held image.
            table.trim(readers(&snapshots, now - 1));
            assert_eq!(read(&table, now - 1), Some(old));
            table.brought_home(PageNo(7), readers(&snapshots, now));
        }
        assert_eq!((read(&table, 3), read(&table, 6), table.kept_bytes()), (Some(100), None, 512));
        snapshots = Snapshots::default();
        table.release(PageNo(7), readers(&snapshots, 6));
        assert!(table.is_empty());
        assert_eq!((table.kept_bytes(), table.new_bytes()), (0, 0));
    }

    #[test]
    fn a_checkpoint_without_older_snapshots_leaves_nothing() {
        let snapshots = Snapshots::from([1]);
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(1), ImageLocation::Memory(image(1)), readers(&snapshots, 1));
        table.checkpointed(Tid(1), 7, readers(&snapshots, 1));
        assert!(table.is_empty());
        assert_eq!(read(&table, 1), None);
    }

    /// Changes over zeros of transactions 3, 4 and 5, which wait.
    fn found() -> PageTable {
        let mut table = PageTable::default();
        for (page, tid) in [(7, 3), (8, 4), (9, 5)] {
            // One piece, from byte 0 on.
            let bytes = [0, 0, tid];
            let fresh = PageChange::Fresh(&bytes);
            let chain = ChangeChain::begin(ChainBase::Zeros, 512, fresh).unwrap().unwrap();
            let nobody = Snapshots::default();
            table.publish(PageNo(page), Tid(tid.into()), ImageLocation::Unmade(chain), readers(&nobody, 0));
        }
        table
    }

    fn makes(table: &PageTable, page: u32, tid: u64) -> Option<u8> {
        match table.find(PageNo(page), Tid(tid)) {
            ImageLocation::Unmade(chain) => {
                chain.image(PageNo(page), |_| unreachable!()).unwrap().unwrap().first().copied()
            }
            ImageLocation::Home => None,
            _ => Some(255),
        }
    }

    #[test]
    fn changes_of_recovery_count_as_newer_than_home_until_they_are_there() {
        let nobody = Snapshots::default();
        let mut table = found();
        assert_eq!([2, 3, 9].map(|tid| makes(&table, 7, tid)), [None, Some(3), Some(3)]);
        assert_eq!((table.new_bytes(), table.count_dirty(8, 7).unwrap()), (3 * 512, (2, 1)));
        assert_eq!(table.dirty(9).unwrap().iter().map(|(page, _)| page.0).collect::<Vec<_>>(), [7, 8, 9]);
        assert_eq!(table.newest_tid(PageNo(8)), Some(Tid(4)));
        assert!(matches!(table.to_sweep(PageNo(8)), Some((Tid(4), ImageLocation::Unmade(_)))));
        table.swept(PageNo(8), readers(&nobody, 5));
        assert!(table.to_sweep(PageNo(8)).is_none() && makes(&table, 8, 9).is_none());
        let ImageLocation::Unmade(chain) = table.find(PageNo(7), Tid(9)) else { panic!("somebody has made it") };
        table.made(PageNo(7), &chain, image(3));
        assert_eq!((read(&table, 9), table.new_bytes()), (Some(3), 2 * 512));
        table.publish(PageNo(9), Tid(6), ImageLocation::Memory(image(6)), readers(&nobody, 6));
        assert_eq!((table.new_bytes(), table.kept_bytes()), (2 * 512, 0));
        table.checkpointed(Tid(6), 9, readers(&nobody, 6));
        assert!(table.is_empty() && table.new_bytes() == 0);
    }

    #[test]
    fn changes_of_recovery_stay_for_snapshots_where_home_gets_newer_pages() {
        // Snapshot 5 reads all; a big transaction has page 7 and cuts off 9.
        let snapshots = Snapshots::from([5]);
        let mut table = found();
        let mut streamed = Streamed::default();
        streamed.set(PageNo(7), StreamedTo::Log(1 << 20, 5)).unwrap();
        let log = SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap();
        table.publish_streamed(Tid(6), streamed, log, 0);
        let dirty: Vec<_> =
            table.dirty(8).unwrap().iter().map(|(page, at)| (page.0, matches!(at, ImageLocation::Log(..)))).collect();
        assert_eq!(dirty, [(7, true), (8, false)]);
        let going = table.find(PageNo(7), Tid(6));
        assert!(table.unmade_beside(PageNo(7), &going).is_some_and(|(tid, _)| tid == Tid(3)));
        assert!(table.unmade_beside(PageNo(8), &table.find(PageNo(8), Tid(6))).is_none());
        table.checkpointed(Tid(6), 8, readers(&snapshots, 6));
        let seen = [(7, 5), (7, 6), (8, 5), (8, 6), (9, 5)].map(|(page, tid)| makes(&table, page, tid));
        assert_eq!(seen, [Some(3), None, None, None, Some(5)]);
        // Another process has brought later states home.
        let mut table = found();
        table.checkpointed_elsewhere(Tid(8), &snapshots);
        assert_eq!([(7, 5), (9, 5), (9, 8)].map(|(page, tid)| makes(&table, page, tid)), [Some(3), Some(5), None]);
    }

    #[test]
    fn streamed_images_hide_older_ones_and_not_newer_ones() {
        let snapshots = Snapshots::default();
        let mut table = PageTable::default();
        table.publish(PageNo(7), Tid(1), ImageLocation::Memory(image(1)), readers(&snapshots, 1));
        let mut streamed = Streamed::default();
        streamed.set(PageNo(7), StreamedTo::Log(1 << 20, 5)).unwrap();
        streamed.set(PageNo(9), StreamedTo::Log(2 << 20, 5)).unwrap();
        assert_eq!(streamed.len(), 2);
        let log = SimDisk::new(SimConfig::default()).temp_file(std::path::Path::new("/db")).unwrap();
        table.publish_streamed(Tid(2), streamed, log, 0);
        assert_eq!(read(&table, 1), Some(1));
        assert!(matches!(table.find(PageNo(7), Tid(2)), ImageLocation::Log(_, p) if p == 1 << 20));
        assert_eq!(table.dirty(100).unwrap().len(), 2);
        assert_eq!(table.dirty(8).unwrap().len(), 1);
        table.publish(PageNo(7), Tid(3), ImageLocation::Memory(image(3)), readers(&snapshots, 3));
        assert_eq!(read(&table, 3), Some(3));
        assert_eq!(table.dirty(100).unwrap().len(), 2);
    }
}
