//! Merging: consecutive files become one, with the newest image of each page.

use super::{Header, LtxError, Reader, Writer, lock_page};
use onewrite_core::environment;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use tempfile::SpooledTempFile;

/// Compressed pages of more bytes go to a temporary file.
const MEMORY_BYTES: usize = 32 << 20;

/// Files that are being merged.
pub struct Merge {
    /// First transaction of the first file, and the rest of the last file's header.
    header: Option<Header>,
    /// The smallest page count so far: pages behind it that were not written since are zeros.
    fewest: u32,
    /// Compressed pages, one after the other; `pages` has their offsets and lengths.
    packed: SpooledTempFile,
    end: u64,
    pages: BTreeMap<u32, (u64, usize)>,
}

impl Default for Merge {
    fn default() -> Merge {
        let packed = SpooledTempFile::new_in(MEMORY_BYTES, environment::temp_dir());
        Merge { header: None, fewest: u32::MAX, packed, end: 0, pages: BTreeMap::new() }
    }
}

impl Merge {
    /// Adds the next file and verifies it to its end. After an error the merge is of no use.
    pub fn add(&mut self, mut reader: Reader<impl Read>) -> Result<(), LtxError> {
        let next = *reader.header();
        let header = match self.header {
            None => next,
            Some(before) if before.page_bytes != next.page_bytes => {
                return Err(LtxError::Damaged("its pages have another size than those of the file before"));
            }
            Some(before) if before.max.checked_add(1) != Some(next.min) => {
                return Err(LtxError::Damaged("it does not go on from the file before"));
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

    /// Time of the last state, in milliseconds since 1970.
    pub fn time_ms(&self) -> i64 {
        self.header.map_or(0, |header| header.time_ms)
    }

    /// Writes the merged file, as one by `node`. Returns `to`, the header, the number of pages and
    /// the length.
    pub fn write<W: Write>(mut self, to: W, node: u64) -> Result<(W, Header, u32, u64), LtxError> {
        let header = self.header.ok_or(LtxError::Damaged("nothing to merge"))?;
        let header = Header { node, ..header };
        let lock = lock_page(header.page_bytes);
        // Cut off, and added again without an image.
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
                return Err(LtxError::Damaged("a page that cannot be decompressed"));
            }
            writer.packed_page(*page, &packed, &image)?;
        }
        let pages = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        let (to, bytes) = writer.finish()?;
        Ok((to, header, pages, bytes))
    }
}
