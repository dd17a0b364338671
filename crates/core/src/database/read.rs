//! Reading pages as a snapshot sees them (invariant I4): look the page up, read it, then check
//! whether a checkpoint may have overwritten it meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::error::{Error, IoContext, Result};
use crate::base::memory;
use crate::base::types::{PageNo, PagePart, Tid};
use crate::database::Database;
use crate::database::follow;
use crate::pages::ahead::ReadAhead;
use crate::pages::chains::ChangeChain;
use crate::pages::image::Image;
use crate::pages::table::ImageLocation;
use crate::shared::member::Member;
use crate::shared::tail::Reach;
use crate::sqlite_format::home::{FileKind, State};

struct Epochs {
    ours: u64,
    /// `None` where no other process matters.
    others: Option<(Arc<Member>, Theirs)>,
}

/// Grows before another process overwrites a found page.
enum Theirs {
    /// The page is in home.
    Epoch(u64),
    /// The page is behind the ring: the next slot gives it up (rule OldImageKept).
    Slot(u64),
}

impl Theirs {
    fn hold(&self, member: &Member) -> bool {
        match *self {
            Theirs::Epoch(epoch) => member.words.same_epoch(epoch),
            Theirs::Slot(sequence) => member.words.same_generation(sequence),
        }
    }
}

struct PageLookup {
    place: ImageLocation,
    epochs: Epochs,
}

impl Database {
    fn look_up(&self, page: PageNo, tid: Tid) -> PageLookup {
        let ours = self.epoch.load(Ordering::SeqCst);
        let table = self.table.read();
        // Before the look-up: else another process could overwrite home unseen. Once a newer slot
        // is followed, the table has no streamed images.
        let guard = table.is_shared.then(|| self.member());
        let member = guard.as_ref().and_then(|member| member.as_ref());
        let others = member.map(|m| (m.words.epoch(), m.generation.load(Ordering::SeqCst)));
        let place = table.find(page, tid);
        let theirs = others.and_then(|(epoch, sequence)| match place {
            ImageLocation::Home | ImageLocation::Unmade(_) => Some(Theirs::Epoch(epoch)),
            ImageLocation::Log(..) => Some(Theirs::Slot(sequence)),
            ImageLocation::Memory(_) | ImageLocation::Kept(..) => None,
        });
        PageLookup { place, epochs: Epochs { ours, others: theirs.and_then(|theirs| Some((member?.clone(), theirs))) } }
    }

    fn look_again(&self, found: &PageLookup, page: PageNo, tid: Tid) -> Result<PageLookup> {
        if let Some((member, Theirs::Slot(_))) = &found.epochs.others {
            // Home, or the images kept of it, has the page now.
            follow::catch_up(self, member, &mut self.inner.lock(), Reach::Visible)?;
        }
        Ok(self.look_up(page, tid))
    }

    fn hold(&self, epochs: &Epochs) -> bool {
        self.epoch.load(Ordering::SeqCst) == epochs.ours
            && epochs.others.as_ref().is_none_or(|(member, theirs)| theirs.hold(member))
    }

    /// The caller checks the epoch.
    pub fn read_home_once(&self, member: Option<&Member>, tid: Tid, part: PagePart, buf: &mut [u8]) -> Result<usize> {
        let what = || self.what("cannot read");
        if let Some(member) = member
            && let Some(read) = member.kept.read(part.page, tid, part.at, buf)?
        {
            return Ok(read);
        }
        self.home.read_at(buf, part.offset()).context(what)
    }

    /// The page is within `state`. True: from home.
    pub fn read_page(&self, state: &State, page: PageNo, in_page: usize, buf: &mut [u8]) -> Result<bool> {
        if page == PageNo::HEADER
            && state.kind != FileKind::Foreign
            && let Some(from) = state.header.get(in_page..in_page + buf.len())
        {
            // SQLite asks for it in every transaction.
            buf.copy_from_slice(from);
            return Ok(false);
        }
        self.read_found(self.look_up(page, state.tid), state, page, in_page, buf)
    }

    /// True: from home.
    fn read_found(
        &self,
        mut found: PageLookup,
        state: &State,
        page: PageNo,
        in_page: usize,
        buf: &mut [u8],
    ) -> Result<bool> {
        let what = || self.what("cannot read");
        loop {
            let mut made = None;
            let member = found.epochs.others.as_ref().map(|(member, _)| &**member);
            let read = match &found.place {
                ImageLocation::Memory(image) => {
                    let from = image.get(in_page..in_page + buf.len()).unwrap_or_default();
                    if from.len() == buf.len() {
                        buf.copy_from_slice(from);
                    }
                    from.len()
                }
                ImageLocation::Log(file, position) | ImageLocation::Kept(file, position) => {
                    file.read_at(buf, position + in_page as u64).context(what)?
                }
                ImageLocation::Unmade(chain) => {
                    made = self.make(member, state.tid, page, chain)?;
                    let from = made.as_ref().and_then(|image| image.get(in_page..in_page + buf.len()));
                    from.map_or(0, |from| {
                        buf.copy_from_slice(from);
                        from.len()
                    })
                }
                ImageLocation::Home => {
                    let part = PagePart { page, page_bytes: state.page_bytes, at: in_page };
                    self.read_home_once(member, state.tid, part, buf)?
                }
            };
            if self.hold(&found.epochs) {
                if read < buf.len() {
                    // Zeros would be a wrong answer (invariant I7).
                    return Err(Error::home_ends_within(&self.path, page));
                }
                if let (Some(image), ImageLocation::Unmade(chain)) = (made, &found.place) {
                    self.table.write().made(page, chain, image);
                }
                break;
            }
            found = self.look_again(&found, page, state.tid)?;
        }
        if page == PageNo::HEADER && state.kind != FileKind::Foreign {
            let from = state.header.get(in_page..).unwrap_or_default();
            let n = from.len().min(buf.len());
            if let (Some(to), Some(from)) = (buf.get_mut(..n), from.get(..n)) {
                to.copy_from_slice(from);
            }
        }
        Ok(matches!(found.place, ImageLocation::Home))
    }

    /// `None`: home is too short now. The caller checks the epochs.
    fn make(&self, member: Option<&Member>, tid: Tid, page: PageNo, chain: &ChangeChain) -> Result<Option<Image>> {
        let part = PagePart { page, page_bytes: chain.page_bytes(), at: 0 };
        let image = chain.image(page, |image| self.read_home_once(member, tid, part, image))?;
        Ok(image.map(Image::from))
    }

    /// Snapshots need images of recovered records before home gets the one at `going` (rule
    /// OldImageKept). The caller has the writer's place.
    pub fn make_beside(&self, page: PageNo, going: &ImageLocation) -> Result<()> {
        if self.table.read().unmade_beside(page, going).is_none() {
            return Ok(());
        }
        let member = {
            let inner = self.inner.lock();
            self.table.write().release(page, inner.readers());
            inner.member.clone()
        };
        loop {
            let beside = self.table.read().unmade_beside(page, going);
            let Some((tid, chain)) = beside else { return Ok(()) };
            let made = self.make(member.as_deref(), tid, page, &chain)?;
            let Some(image) = made else { return Err(Error::home_ends_within(&self.path, page)) };
            self.table.write().made(page, &chain, image);
        }
    }

    /// False: home does not rest, or ended to while it was read.
    pub fn read_page_at_rest(
        &self,
        state: &Arc<State>,
        page: PageNo,
        ahead: &mut ReadAhead,
        buf: &mut [u8],
    ) -> Result<bool> {
        if !self.mappings.home_rests() {
            return Ok(false);
        }
        if ahead.give(page, state, buf) {
            return Ok(true);
        }
        let count = ahead.plan(page, state.page_bytes, state.page_count);
        if count > 1 {
            self.read_home_ahead(state, page, count, u64::MAX, ahead, || self.mappings.home_rests())?;
            return Ok(ahead.give(page, state, buf));
        }
        let read = self.home.read_at(buf, page.offset(state.page_bytes)).context(|| self.what("cannot read"))?;
        // Of a page that ends too soon, the other way tells.
        Ok(read == buf.len() && self.mappings.home_rests())
    }

    pub fn read_page_ahead(
        &self,
        state: &Arc<State>,
        page: PageNo,
        ahead: &mut ReadAhead,
        buf: &mut [u8],
    ) -> Result<()> {
        let size = state.page_bytes;
        let found = self.look_up(page, state.tid);
        if page == PageNo::HEADER || !matches!(found.place, ImageLocation::Home) {
            return self.read_found(found, state, page, 0, buf).map(drop);
        }
        if ahead.give(page, state, buf) {
            return Ok(());
        }
        let count = ahead.plan(page, size, state.page_count);
        if count > 1 {
            self.read_run(found.epochs, state, page, count, ahead)?;
            if ahead.give(page, state, buf) {
                return Ok(());
            }
            return self.read_page(state, page, 0, buf).map(drop);
        }
        self.read_found(found, state, page, 0, buf).map(drop)
    }

    /// Pages that were overwritten meanwhile are left out. `epochs`: from before.
    fn read_run(
        &self,
        epochs: Epochs,
        state: &Arc<State>,
        first: PageNo,
        count: u32,
        ahead: &mut ReadAhead,
    ) -> Result<()> {
        let page = |n| PageNo(first.0 + n);
        let mut good = {
            let table = self.table.read();
            let at_home = |n| u64::from(matches!(table.find(page(n), state.tid), ImageLocation::Home));
            (0..count).fold(0, |good, n| good | at_home(n) << n)
        };
        if let Some((member, _)) = &epochs.others {
            for n in 0..count {
                if good >> n & 1 == 1 && member.kept.has(page(n), state.tid)? {
                    good &= !(1 << n);
                }
            }
        }
        self.read_home_ahead(state, first, count, good, ahead, || self.hold(&epochs))
    }

    /// `good` pages were home's before the read, and afterwards if home `holds`.
    fn read_home_ahead(
        &self,
        state: &Arc<State>,
        first: PageNo,
        count: u32,
        good: u64,
        ahead: &mut ReadAhead,
        holds: impl FnOnce() -> bool,
    ) -> Result<()> {
        let size = state.page_bytes;
        let Ok(run) = ahead.room(count, size) else { return Ok(()) };
        let read = self.home.read_at(run, first.offset(size)).context(|| self.what("cannot read"))?;
        if holds() {
            ahead.filled(state, first, read, good);
        }
        Ok(())
    }

    /// For the holder of the writer's place.
    pub fn image(&self, state: &State, page: PageNo) -> Result<Image> {
        let size = state.page_bytes as usize;
        if page != PageNo::HEADER {
            let place = self.table.read().find(page, state.tid);
            let place = match place {
                ImageLocation::Unmade(_) => {
                    self.read_page(state, page, 0, &mut [0])?;
                    self.table.read().find(page, state.tid)
                }
                place => place,
            };
            if let ImageLocation::Memory(image) = place
                && image.len() == size
            {
                return Ok(image);
            }
        }
        let mut image = memory::zeros(size)?;
        self.read_page(state, page, 0, &mut image)?;
        Ok(Image::from(image))
    }
}
