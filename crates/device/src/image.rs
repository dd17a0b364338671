//! A disk's content, sparse and copied on write: a clone costs a pointer per chunk, so one run
//! gives hundreds of power cuts.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const CHUNK_BYTES: usize = 16 << 10;

type Chunk = [u8; CHUNK_BYTES];

/// A disk's content. Unwritten parts read as zeros and take no memory.
#[derive(Clone)]
pub struct Image {
    chunks: Vec<Option<Arc<Chunk>>>,
    len_bytes: u64,
}

impl Image {
    /// An image of zeros.
    pub fn new(len_bytes: u64) -> Image {
        let count = usize::try_from(len_bytes.div_ceil(CHUNK_BYTES as u64)).unwrap_or(usize::MAX);
        Image { chunks: vec![None; count], len_bytes }
    }

    /// The disk's size.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Memory of written chunks, shared ones included.
    pub fn used_bytes(&self) -> u64 {
        self.chunks.iter().flatten().count() as u64 * CHUNK_BYTES as u64
    }

    /// Fills `to` from `offset`; bytes beyond the end are zeros.
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        for (index, within, part) in pieces(offset, to.len()) {
            let len = part.len();
            match self.chunks.get(index).and_then(Option::as_ref) {
                Some(chunk) => to[part].copy_from_slice(&chunk[within..within + len]),
                None => to[part].fill(0),
            }
        }
    }

    /// Puts `from` at `offset`; bytes beyond the end are dropped.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        for (index, within, part) in pieces(offset, from.len()) {
            if let Some(chunk) = self.chunks.get_mut(index) {
                let chunk = chunk.get_or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
                let bytes = &from[part];
                Arc::make_mut(chunk)[within..within + bytes.len()].copy_from_slice(bytes);
            }
        }
    }

    /// Makes a range zeros.
    pub fn zero(&mut self, offset: u64, len: u64) {
        for (index, within, part) in pieces(offset, usize::try_from(len).unwrap_or(usize::MAX)) {
            match self.chunks.get_mut(index) {
                None => break,
                Some(chunk) if part.len() == CHUNK_BYTES => *chunk = None,
                Some(Some(chunk)) => Arc::make_mut(chunk)[within..within + part.len()].fill(0),
                Some(None) => {}
            }
        }
    }

    /// Reads a raw image file, whose length is rounded up to 4096 bytes.
    pub fn load(path: &Path) -> io::Result<Image> {
        let mut file = File::open(path)?;
        let mut image = Image::new(file.metadata()?.len().next_multiple_of(4096));
        let (mut offset, mut buffer) = (0, vec![0; CHUNK_BYTES]);
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                return Ok(image);
            }
            if buffer[..read].iter().any(|byte| *byte != 0) {
                image.write(offset, &buffer[..read]);
            }
            offset += read as u64;
        }
    }

    /// Writes a raw image file, sparse where nothing was written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.len_bytes)?;
        for (index, chunk) in self.chunks.iter().enumerate() {
            if let Some(chunk) = chunk {
                let offset = index as u64 * CHUNK_BYTES as u64;
                let len = usize::try_from(self.len_bytes - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
                file.seek(SeekFrom::Start(offset))?;
                file.write_all(&chunk[..len])?;
            }
        }
        file.sync_all()
    }
}

/// For each chunk: its index, offset within it, part of the buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let index = usize::try_from(at / CHUNK_BYTES as u64).ok()?;
        let within = usize::try_from(at % CHUNK_BYTES as u64).ok()?;
        let part = done..len.min(done + CHUNK_BYTES - within);
        done = part.end;
        Some((index, within, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_return_writes_and_a_clone_does_not_change() {
        let mut image = Image::new(100_000);
        let bytes: Vec<u8> = (0..40_000).map(|i| (i % 251) as u8 + 1).collect();
        image.write(10_000, &bytes);
        let before = image.clone();
        image.zero(20_000, 20_000);
        let (mut old, mut new) = (vec![9; 50_000], vec![9; 50_000]);
        before.read(5_000, &mut old);
        image.read(5_000, &mut new);
        assert!(old[..5_000].iter().all(|b| *b == 0) && old[5_000..45_000] == bytes && old[45_000..] == [0; 5_000]);
        assert!(new[..15_000] == old[..15_000] && new[15_000..35_000] == [0; 20_000] && new[35_000..] == old[35_000..]);
    }

    #[test]
    fn a_saved_image_loads_equal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut image = Image::new(81_920);
        image.write(70_000, &[7; 3_000]);
        image.save(&path).unwrap();
        let loaded = Image::load(&path).unwrap();
        assert_eq!(loaded.len_bytes(), 81_920);
        assert_eq!(loaded.used_bytes(), CHUNK_BYTES as u64);
        let mut bytes = vec![0; 3_000];
        loaded.read(70_000, &mut bytes);
        assert_eq!(bytes, [7; 3_000]);
    }
}
