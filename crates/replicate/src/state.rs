//! What is known of a state: its size, and a hash of each page. And how files are applied, to make one.

use crate::fetch::fetch;
use crate::ltx::{Header, Reader};
use crate::report::bars;
use crate::store::{Entry, Store};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::BufReader;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// A hash of a page; 0: not known. Not the checksum of LTX files: two pages of the same CRC-64 are not rare enough, where
/// what differs is two numbers beside each other.
pub type PageHash = u128;

/// The hash of a page.
pub fn hash(image: &[u8]) -> PageHash {
    xxh3_128(image).max(1)
}

/// A database, as far as it takes to tell what has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Page 1 first.
    pub hashes: Vec<PageHash>,
}

/// The place of a page in a list that begins with page 1.
pub fn index(page: u32) -> usize {
    usize::try_from(page).unwrap_or(usize::MAX).saturating_sub(1)
}

/// What takes the pages of one file after the other.
pub trait Sink {
    /// A file begins: the database has this size from here on.
    fn begin(&mut self, header: &Header) -> Result<()>;
    /// A page of it. It counts only if [`apply`] ends without an error.
    fn page(&mut self, header: &Header, page: u32, image: &[u8]) -> Result<()>;
    /// That was the last file.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}

/// What becomes of what a [`Sink`] is given; its error is not the file's.
fn taken(by_sink: Result<()>, error: &mut Option<anyhow::Error>) -> Result<()> {
    by_sink.or_else(|e| {
        *error = Some(e);
        bail!("it is not taken")
    })
}

/// Applies files in order. Their checksums, sizes and names are found right, or there is an error.
pub fn apply(store: &dyn Store, plan: &[Entry], sink: &mut dyn Sink, bar: &ProgressBar) -> Result<()> {
    bar.set_length(plan.iter().map(|entry| entry.bytes).sum());
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
        bar.inc(entry.bytes.saturating_sub(told));
        Ok(())
    });
    match untaken {
        Some(e) => Err(e),
        None => fetched.and_then(|()| sink.end()),
    }
}

impl Sink for State {
    fn begin(&mut self, header: &Header) -> Result<()> {
        self.page_bytes = header.page_bytes;
        self.hashes.resize(index(header.pages).saturating_add(1), 0);
        Ok(())
    }

    fn page(&mut self, _: &Header, page: u32, image: &[u8]) -> Result<()> {
        let to = self.hashes.get_mut(index(page)).context("a page behind the end")?;
        *to = hash(image);
        Ok(())
    }
}

impl State {
    /// What these files make.
    pub fn read(store: &dyn Store, plan: &[Entry], bar: &ProgressBar) -> Result<State> {
        let mut state = State::default();
        apply(store, plan, &mut state, bar)?;
        Ok(state)
    }
}

/// A bar for bytes that pass; shown on a terminal, and only if it takes a while.
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
        // By a thread of its own.
        bar.enable_steady_tick(Duration::from_millis(250));
    }
    bar
}
