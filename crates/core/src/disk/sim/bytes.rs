//! Chunks that copies of a file share until a write: campaigns copy disks at every crash and change
//! few bytes.

use std::sync::Arc;

const CHUNK_BYTES: usize = 4096;

type Chunk = [u8; CHUNK_BYTES];

#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    len: usize,
    /// `None`: zeros.
    chunks: Vec<Option<Arc<Chunk>>>,
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = Self::default();
        copy.write(bytes, 0);
        copy
    }
}

impl Bytes {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(&mut bytes, 0);
        bytes
    }

    /// Zeros behind the end; returns the bytes that exist.
    pub fn read(&self, buf: &mut [u8], offset: usize) -> usize {
        for (index, within, at) in parts(offset, offset + buf.len()) {
            let room = &mut buf[at..at + within.len()];
            match self.chunks.get(index) {
                Some(Some(chunk)) => room.copy_from_slice(&chunk[within]),
                _ => room.fill(0),
            }
        }
        self.len.saturating_sub(offset).min(buf.len())
    }

    /// Zeros between the end and `offset`.
    pub fn write(&mut self, buf: &[u8], offset: usize) {
        if self.len < offset + buf.len() {
            self.resize(offset + buf.len());
        }
        for (index, within, at) in parts(offset, offset + buf.len()) {
            let bytes = &buf[at..at + within.len()];
            self.chunk(index)[within].copy_from_slice(bytes);
        }
    }

    /// New bytes are zeros.
    pub fn resize(&mut self, len: usize) {
        self.zero(len, self.len);
        self.chunks.resize(len.div_ceil(CHUNK_BYTES), None);
        self.len = len;
    }

    pub fn zero(&mut self, start: usize, end: usize) {
        for (index, within, _) in parts(start, end.min(self.len)) {
            if within.len() == CHUNK_BYTES {
                self.chunks[index] = None;
            } else if self.chunks[index].is_some() {
                self.chunk(index)[within].fill(0);
            }
        }
    }

    /// False past the end.
    pub fn flip(&mut self, offset: usize, mask: u8) -> bool {
        if offset < self.len {
            self.chunk(offset / CHUNK_BYTES)[offset % CHUNK_BYTES] ^= mask;
        }
        offset < self.len
    }

    fn chunk(&mut self, index: usize) -> &mut Chunk {
        Arc::make_mut(self.chunks[index].get_or_insert_with(|| Arc::new([0; CHUNK_BYTES])))
    }
}

/// Chunk, range in it, distance from `start`.
fn parts(start: usize, end: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> {
    let mut next = start;
    std::iter::from_fn(move || {
        let (index, from, at) = (next / CHUNK_BYTES, next % CHUNK_BYTES, next - start.min(next));
        let to = CHUNK_BYTES.min(end.checked_sub(index * CHUNK_BYTES)?);
        next = (index + 1) * CHUNK_BYTES;
        (from < to).then_some((index, from..to, at))
    })
}
