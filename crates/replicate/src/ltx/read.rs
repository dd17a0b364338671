//! Reading a file, page by page. Pages count only after [`Reader::finish`] has verified the
//! checksum.

use super::{
    CHECKSUM_BYTES, CHECKSUM_FLAG, CRC, END_BYTES, FRAME_HEADER_BYTES, Frame, HEADER_BYTES, Header, LtxError, Order,
    SIZED, TRAILER_BYTES, index, packed_bytes_max, u32_at, u64_at, unpack,
};
use crc::{Digest, Table};
use std::io::{ErrorKind, Read};

/// A file that is being read.
pub struct Reader<R> {
    from: R,
    order: Order,
    digest: Digest<'static, u64, Table<16>>,
    frames: Vec<Frame>,
    at: u64,
    packed: Vec<u8>,
    ended: bool,
}

fn exact<const N: usize>(from: &mut impl Read) -> Result<[u8; N], LtxError> {
    let mut bytes = [0; N];
    read_exact(from, &mut bytes)?;
    Ok(bytes)
}

fn read_exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), LtxError> {
    from.read_exact(bytes).map_err(|e| match e.kind() {
        ErrorKind::UnexpectedEof => LtxError::Damaged("it ends too early"),
        _ => LtxError::Io(e),
    })
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub fn open(mut from: R) -> Result<Reader<R>, LtxError> {
        let bytes: [u8; HEADER_BYTES] = exact(&mut from)?;
        let header = Header::decode(&bytes)?;
        let mut digest = CRC.digest();
        digest.update(&bytes);
        Ok(Reader {
            from,
            order: Order::new(header),
            digest,
            frames: Vec::new(),
            at: HEADER_BYTES as u64,
            packed: Vec::new(),
            ended: false,
        })
    }

    /// The file's header.
    pub fn header(&self) -> &Header {
        &self.order.header
    }

    /// Reads the next page into `image` and returns its number; `None` behind the last one.
    pub fn page(&mut self, image: &mut Vec<u8>) -> Result<Option<u32>, LtxError> {
        if self.ended {
            return Ok(None);
        }
        let head: [u8; END_BYTES] = exact(&mut self.from)?;
        self.digest.update(&head);
        let page = u32_at(&head, 0);
        let flags = head.last_chunk().map_or(0, |b| u16::from_be_bytes(*b));
        if page == 0 && flags == 0 {
            self.order.end()?;
            self.ended = true;
            return Ok(None);
        }
        if flags == 0 {
            return Err(LtxError::Unsupported("its pages are LZ4 frames, as Litestream wrote before 0.5.16"));
        }
        if flags != SIZED {
            return Err(LtxError::Damaged("a page with flags that do not exist"));
        }
        self.order.note(page)?;
        let len: [u8; 4] = exact(&mut self.from)?;
        self.digest.update(&len);
        let len = u32::from_be_bytes(len);
        let page_bytes = self.order.header.page_bytes;
        let packed_len = usize::try_from(len).unwrap_or(usize::MAX);
        if packed_len > packed_bytes_max(page_bytes) {
            return Err(LtxError::Damaged("a page too long"));
        }
        self.packed.resize(packed_len, 0);
        read_exact(&mut self.from, &mut self.packed)?;
        unpack(&self.packed, page_bytes, image)?;
        self.digest.update(image);
        let bytes = (FRAME_HEADER_BYTES as u64).saturating_add(u64::from(len));
        self.frames.push(Frame { page, offset: self.at, bytes });
        self.at = self.at.saturating_add(bytes);
        Ok(Some(page))
    }

    /// The last page, compressed as in the file.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// Bytes read up to the last page.
    pub fn bytes(&self) -> u64 {
        self.at
    }

    /// Where its pages lie, in the order of their numbers, as far as they were read.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Reads and checks the bytes behind the pages.
    pub fn finish(mut self) -> Result<(), LtxError> {
        self.check_end()
    }

    /// As [`Reader::finish`], for a borrowed reader; only once.
    pub fn check_end(&mut self) -> Result<(), LtxError> {
        if !self.ended {
            return Err(LtxError::Damaged("pages that were not read"));
        }
        let index = index(&self.frames);
        let mut rest = Vec::new();
        let limit = index.len().saturating_add(TRAILER_BYTES).saturating_add(1);
        self.from.by_ref().take(limit as u64).read_to_end(&mut rest)?;
        let Some((counted, checksum)) = rest.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(LtxError::Damaged("it ends too early"));
        };
        self.digest.update(counted);
        if self.digest.clone().finalize() | CHECKSUM_FLAG != u64::from_be_bytes(*checksum) {
            return Err(LtxError::Damaged("its checksum is wrong"));
        }
        if counted.strip_prefix(index.as_slice()).is_none_or(|trailer| trailer.len() != 8 || u64_at(trailer, 0) != 0) {
            return Err(LtxError::Damaged("its index does not fit its pages"));
        }
        Ok(())
    }
}
