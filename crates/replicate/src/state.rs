//! A state by its size and a hash of each page, and how files are applied to make one.

use crate::fetch::fetch;
use crate::ltx::{Header, Reader};
use crate::report::bars;
use crate::store::{Entry, Store};
use anyhow::{Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::BufReader;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// A hash of a page; 0: not known. Not the checksum of LTX files: CRC-64 collides too easily for
/// pages that differ in two adjacent numbers.
pub type PageHash = u128;

/// Limit of pages that files count and do not contain, such as the lock page.
const MISSING_MAX: usize = 1 << 22;

/// The hash of a page.
pub fn hash(image: &[u8]) -> PageHash {
    xxh3_128(image).max(1)
}

/// A database, reduced to page size and hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HashedState {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Hashes of all pages, page 1 first.
    pub hashes: Vec<PageHash>,
}

/// Index of a page in a list that begins with page 1.
pub fn index(page: u32) -> usize {
    usize::try_from(page).unwrap_or(usize::MAX).saturating_sub(1)
}

/// Receives the pages of one file after the other.
pub trait Sink {
    /// A file begins: the database has this size from here on.
    fn begin(&mut self, header: &Header) -> Result<()>;
    /// A page of the file. It counts only if [`apply`] ends without an error.
    fn page(&mut self, header: &Header, page: u32, image: &[u8]) -> Result<()>;
    /// The file's last page was given.
    fn end_file(&mut self, _: &Header) -> Result<()> {
        Ok(())
    }
    /// The last file was given.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Keeps a [`Sink`]'s error apart from the file's errors.
fn taken(by_sink: Result<()>, error: &mut Option<anyhow::Error>) -> Result<()> {
    by_sink.or_else(|e| {
        *error = Some(e);
        bail!("it is not taken")
    })
}

/// Applies files in order. Errors: a wrong checksum, size or name.
pub fn apply(store: &dyn Store, plan: &[Entry], sink: &mut dyn Sink, bar: &ProgressBar) -> Result<()> {
    bar.set_length(plan.iter().fold(0, |sum, entry| sum.saturating_add(entry.bytes)));
    let mut page_bytes = None;
    let mut image = Vec::new();
    let mut untaken = None;
    let fetched = fetch(store, plan, |entry, from| {
        let mut reader = Reader::open(BufReader::with_capacity(1 << 16, from))?;
        let header = *reader.header();
        ensure!((header.min, header.max) == (entry.name.min, entry.name.max), "it holds other transactions");
        let same = page_bytes.replace(header.page_bytes).is_none_or(|before| before == header.page_bytes);
        ensure!(same, "its pages have another size than those of the file before");
        taken(sink.begin(&header), &mut untaken)?;
        let mut told = 0;
        while let Some(page) = reader.page(&mut image)? {
            taken(sink.page(&header, page, &image), &mut untaken)?;
            let bytes = reader.packed().len() as u64;
            bar.inc(bytes);
            told += bytes;
        }
        reader.finish()?;
        taken(sink.end_file(&header), &mut untaken)?;
        bar.inc(entry.bytes.saturating_sub(told));
        Ok(())
    });
    match untaken {
        Some(e) => Err(e),
        None => fetched.and_then(|()| sink.end()),
    }
}

/// Hashes of pages that are being read. They take memory only as pages come: a file may claim any
/// count.
#[derive(Default)]
struct Reading {
    state: HashedState,
    /// Pages that were in no file.
    missing: usize,
}

impl Reading {
    fn grow(&mut self, pages: usize) -> Result<()> {
        let missing = pages.saturating_sub(self.state.hashes.len());
        self.missing = self.missing.saturating_add(missing);
        ensure!(self.missing <= MISSING_MAX, "it lacks more than {MISSING_MAX} of the pages that it tells of");
        if missing > 0 {
            self.state.hashes.resize(pages, 0);
        }
        Ok(())
    }
}

impl Sink for Reading {
    fn begin(&mut self, header: &Header) -> Result<()> {
        self.state.page_bytes = header.page_bytes;
        self.state.hashes.truncate(index(header.pages).saturating_add(1));
        Ok(())
    }

    fn page(&mut self, _: &Header, page: u32, image: &[u8]) -> Result<()> {
        self.grow(index(page))?;
        match self.state.hashes.get_mut(index(page)) {
            Some(to) => *to = hash(image),
            None => self.state.hashes.push(hash(image)),
        }
        Ok(())
    }

    fn end_file(&mut self, header: &Header) -> Result<()> {
        self.grow(index(header.pages).saturating_add(1))
    }
}

impl HashedState {
    /// The state that these files make.
    pub fn read(store: &dyn Store, plan: &[Entry], bar: &ProgressBar) -> Result<HashedState> {
        HashedState::default().behind(store, plan, bar)
    }

    /// The state that these files make of this one.
    pub fn behind(&self, store: &dyn Store, files: &[Entry], bar: &ProgressBar) -> Result<HashedState> {
        let mut reading = Reading { state: self.clone(), missing: 0 };
        apply(store, files, &mut reading, bar)?;
        Ok(reading.state)
    }
}

/// A bar for bytes, on a terminal, shown only if the work takes a while.
pub fn byte_bar(message: &'static str) -> ProgressBar {
    bar(message, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A bar for pages.
pub fn page_bar(message: &'static str) -> ProgressBar {
    bar(message, "{msg} {wide_bar} {pos}/{len} pages {eta}")
}

fn bar(message: &'static str, template: &str) -> ProgressBar {
    let bar = bars().add(ProgressBar::new(0).with_message(message));
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(250));
    }
    bar
}
