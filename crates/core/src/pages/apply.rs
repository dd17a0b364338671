//! How a record becomes versions in a page table.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use crate::base::error::{Error, IoContext, Result};
use crate::base::layout::home as at;
use crate::base::memory;
use crate::base::types::{PageNo, Tid};
use crate::disk::Disk;
use crate::disk::image_file::{self, ImageFile};
use crate::log::file::LogFile;
use crate::log::record::{PageChange, Record};
use crate::log::slot::Slot;
use crate::pages::chains::{ChainBase, ChangeChain};
use crate::pages::image::Image;
use crate::pages::table::{ImageLocation, PageTable, Readers, Streamed, StreamedTo};
use crate::sqlite_format::home::{self, DatabaseHeader, State};

pub struct RecordSource<'a> {
    pub path: &'a Path,
    pub log: &'a LogFile,
    pub slot: &'a Slot,
    /// Home may lack later ones.
    pub home_pages: u32,
    pub home: &'a dyn Fn(PageNo, &mut [u8]) -> Result<()>,
}

/// More images go to a temporary file: a log of megabytes can ask for gigabytes (invariant I6).
pub const REPLAYED_BYTES: u64 = 32 << 20;

/// Older versions have no reader: one place per page.
pub struct Overflow<'a> {
    disk: &'a dyn Disk,
    path: &'a Path,
    images: ImageFile,
}

impl<'a> Overflow<'a> {
    pub fn new(disk: &'a dyn Disk, path: &'a Path) -> Overflow<'a> {
        Overflow { disk, path, images: ImageFile::default() }
    }

    fn place(&mut self, table: &PageTable, old: &ImageLocation, image: Vec<u8>) -> Result<ImageLocation> {
        const WHAT: &str = "cannot keep a replayed image in a temporary file beside";
        if table.new_bytes() < image_file::in_memory(REPLAYED_BYTES) {
            return Ok(ImageLocation::Memory(Image::from(image)));
        }
        if let ImageLocation::Log(file, position) = old
            && self.images.is(file)
        {
            file.write_at(&image, *position).context(|| what(WHAT, self.path))?;
            return Ok(old.clone());
        }
        let (file, position) = self.images.append(self.disk, self.path, &image, || what(WHAT, self.path))?;
        Ok(ImageLocation::Log(file, position))
    }
}

/// Bytes that waited in vain, as their image is made within the replay, count so often: where pages
/// change often, images at once cost less.
const IN_VAIN: u64 = 512;

pub struct RecordApplier<'a, 'b> {
    pub source: &'a RecordSource<'b>,
    pub table: &'a mut PageTable,
    pub readers: Readers<'a>,
    pub overflow: Option<&'a mut Overflow<'b>>,
    /// Changes of so many more bytes wait until their images are needed.
    pub may_wait_bytes: u64,
}

pub fn apply(
    source: &RecordSource<'_>,
    table: &mut PageTable,
    state: &State,
    record: &Record<'_>,
    readers: Readers<'_>,
) -> Result<State> {
    RecordApplier { source, table, readers, overflow: None, may_wait_bytes: u64::MAX }.apply(state, record)
}

impl RecordApplier<'_, '_> {
    pub fn apply(&mut self, state: &State, record: &Record<'_>) -> Result<State> {
        let RecordSource { log, slot, .. } = self.source;
        let tid = record.head.tid;
        let mut done = Ok(());
        let mut header: Option<DatabaseHeader> = None;
        let mut listed = state.page_count;
        record.for_each(|page, change| {
            listed = listed.saturating_add(u32::from(page.0 > state.page_count));
            if done.is_ok() {
                done = self.change(page, tid, change, &mut header);
            }
        });
        done?;
        if record.stream.count > 0 {
            let (mut streamed, mut end) = (Streamed::default(), record.stream.index_end());
            let is_whole = log.for_each_streamed(record, |page, position, crc| {
                end = end.max(position.saturating_add(slot.page_bytes.into()));
                listed = listed.saturating_add(u32::from(page > state.page_count));
                streamed.set(PageNo(page), StreamedTo::Log(position, crc))
            })?;
            if !is_whole {
                return Err(Error::Corrupt(format!(
                    "the log {} has lost the index of what transaction {tid} streamed",
                    log.path.display()
                )));
            }
            if self.table.has_layer() {
                return Err(Error::Corrupt(format!(
                    "the log {} holds two big transactions without a checkpoint between them",
                    log.path.display()
                )));
            }
            self.table.publish_streamed(tid, streamed, log.file.clone(), end);
        }
        if listed < record.head.page_count {
            // The others streamed home.
            self.table.lists_since(tid);
        }
        if record.head.page_count == 0 {
            return Err(Error::Corrupt(format!("transaction {tid} in the log {} leaves no page", log.path.display())));
        }
        Ok(state.after(tid, slot.page_bytes, record.head.page_count, record.head.change_counter, header))
    }

    fn change(
        &mut self,
        page: PageNo,
        tid: Tid,
        change: PageChange<'_>,
        header: &mut Option<DatabaseHeader>,
    ) -> Result<()> {
        let mut note = |image: &mut [u8]| {
            if page == PageNo::HEADER {
                home::clear_mark_bytes(image);
                *header = image.get(..at::HEADER_BYTES).and_then(|h| h.try_into().ok());
            }
        };
        // Page 1 has the state's header, needed at once.
        let waits = page != PageNo::HEADER && change.bytes() <= self.may_wait_bytes;
        if waits && !change.fits(self.source.slot.page_bytes) {
            return Err(Error::unfit_change(page));
        }
        let may_wait_bytes = &mut self.may_wait_bytes;
        let old = self.table.amend(page, tid, self.readers, |place| match place {
            ImageLocation::Memory(image) => {
                let Some(image) = image.unshared() else { return Ok(false) };
                change.apply(image).ok_or_else(|| Error::unfit_change(page))?;
                note(image);
                Ok(true)
            }
            ImageLocation::Unmade(chain) if waits => {
                let is_added = chain.push(change)?;
                *may_wait_bytes -= if is_added { change.bytes() } else { 0 };
                Ok(is_added)
            }
            _ => Ok(false),
        })?;
        let Some(old) = old else { return Ok(()) };
        self.table.room(1)?;
        if waits && let Some(chain) = self.chain(page, &old, change)? {
            self.may_wait_bytes -= change.bytes();
            self.table.publish(page, tid, ImageLocation::Unmade(chain), self.readers);
            return Ok(());
        }
        if let ImageLocation::Unmade(chain) = &old {
            self.may_wait_bytes = self.may_wait_bytes.saturating_sub(IN_VAIN * chain.bytes());
        }
        let mut image = match change {
            PageChange::Delta(_) => previous_image(self.source, page, &old)?,
            PageChange::Fresh(_) | PageChange::Image(_) => memory::zeros(self.source.slot.page_bytes as usize)?,
        };
        change.apply(&mut image).ok_or_else(|| Error::unfit_change(page))?;
        note(&mut image);
        let place = match &mut self.overflow {
            Some(overflow) => overflow.place(self.table, &old, image)?,
            None => ImageLocation::Memory(Image::from(image)),
        };
        self.table.publish(page, tid, place, self.readers);
        Ok(())
    }

    fn chain(&self, page: PageNo, old: &ImageLocation, change: PageChange<'_>) -> Result<Option<ChangeChain>> {
        let base = match old {
            ImageLocation::Unmade(chain) => return chain.then(change),
            ImageLocation::Memory(image) => ChainBase::Image(image.clone()),
            ImageLocation::Home => ChainBase::Home { may_end: page.0 > self.source.home_pages },
            ImageLocation::Log(..) | ImageLocation::Kept(..) => return Ok(None),
        };
        ChangeChain::begin(base, self.source.slot.page_bytes, change)
    }
}

fn what(verb: &str, path: &Path) -> String {
    format!("{verb} the database {}", path.display())
}

fn previous_image(source: &RecordSource<'_>, page: PageNo, place: &ImageLocation) -> Result<Vec<u8>> {
    let RecordSource { path, slot, home, .. } = source;
    if let ImageLocation::Memory(old) = place {
        return memory::copy(old);
    }
    if let ImageLocation::Unmade(chain) = place {
        let size = |image: &mut [u8]| home(page, image).map(|()| image.len());
        return chain.image(page, size)?.ok_or_else(|| Error::home_ends_within(path, page));
    }
    let mut image = memory::zeros(slot.page_bytes as usize)?;
    match place {
        ImageLocation::Memory(_) | ImageLocation::Unmade(_) => {}
        ImageLocation::Log(file, position) | ImageLocation::Kept(file, position) => {
            let read = file.read_at(&mut image, *position).context(|| what("cannot read", path))?;
            if read < image.len() {
                return Err(Error::Corrupt(format!("the log of {} ends within page {page}", path.display())));
            }
        }
        ImageLocation::Home => {
            home(page, &mut image)?;
            if page == PageNo::HEADER {
                home::unmark(&mut image);
            }
        }
    }
    Ok(image)
}
