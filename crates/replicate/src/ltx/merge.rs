//! Merging: several files that go on from each other become one, with the newest image of each page.

use super::{Error, Header, Reader, Writer, lock_page};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use tempfile::SpooledTempFile;

/// Compressed pages of up to that length together are kept in memory, more in a temporary file.
const MEMORY_BYTES: usize = 32 << 20;

/// Files that are being merged.
pub struct Merge {
    /// From the first file on, up to the last.
    header: Option<Header>,
    /// The fewest pages that the database had meanwhile: what lies behind them and was not written since is zeros.
    fewest: u32,
    /// Compressed pages, one after the other, and where each begins, with its length.
    packed: SpooledTempFile,
    end: u64,
    pages: BTreeMap<u32, (u64, usize)>,
}

impl Default for Merge {
    fn default() -> Merge {
        let packed = SpooledTempFile::new(MEMORY_BYTES);
        Merge { header: None, fewest: u32::MAX, packed, end: 0, pages: BTreeMap::new() }
    }
}

impl Merge {
    /// Adds the next file, which is read to its end and found right. After an error nothing can be made of it all.
    pub fn add(&mut self, mut reader: Reader<impl Read>) -> Result<(), Error> {
        let next = *reader.header();
        let header = match self.header {
            None => next,
            Some(before) if before.page_bytes != next.page_bytes => {
                return Err(Error::Damaged("its pages have another size than those of the file before"));
            }
            Some(before) if before.max.checked_add(1) != Some(next.min) => {
                return Err(Error::Damaged("it does not go on from the file before"));
            }
            Some(before) => Header { min: before.min, ..next },
        };
        self.header = Some(header);
        self.fewest = self.fewest.min(next.pages);
        self.pages.split_off(&next.pages.saturating_add(1));
        let mut image = Vec::new();
        while let Some(page) = reader.page(&mut image)? {
            let packed = reader.packed();
            self.packed.write_all(packed)?;
            self.pages.insert(page, (self.end, packed.len()));
            self.end = self.end.saturating_add(packed.len() as u64);
        }
        reader.finish()
    }

    /// When the last state was read, in milliseconds since 1970.
    pub fn time_ms(&self) -> i64 {
        self.header.map_or(0, |header| header.time_ms)
    }

    /// Writes what they make together, as a file by `node`. Gives back what was written to, its header, the number of pages and
    /// the length.
    pub fn write<W: Write>(mut self, to: W, node: u64) -> Result<(W, Header, u32, u64), Error> {
        let header = self.header.ok_or(Error::Damaged("nothing to merge"))?;
        let header = Header { node, ..header };
        let lock = lock_page(header.page_bytes);
        // Cut off, and there again without having been written.
        let lost = (self.fewest.saturating_add(1)..=header.pages).filter(|page| *page != lock);
        for page in lost {
            self.pages.entry(page).or_insert((0, 0));
        }
        let page_bytes = usize::try_from(header.page_bytes).unwrap_or(0);
        let mut writer = Writer::begin(to, header)?;
        let (mut packed, mut image) = (Vec::new(), vec![0; page_bytes]);
        for (page, (at, len)) in &self.pages {
            if *len == 0 {
                writer.page(*page, &vec![0; page_bytes])?;
                continue;
            }
            packed.resize(*len, 0);
            self.packed.seek(SeekFrom::Start(*at))?;
            self.packed.read_exact(&mut packed)?;
            if lz4_flex::block::decompress_into(&packed, &mut image).ok() != Some(page_bytes) {
                return Err(Error::Damaged("a page that cannot be decompressed"));
            }
            writer.packed_page(*page, &packed, &image)?;
        }
        let pages = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        let (to, bytes) = writer.finish()?;
        Ok((to, header, pages, bytes))
    }
}
