//! Writing a file, page by page.

use super::{
    CHECKSUM_FLAG, CRC, END_BYTES, FRAME_HEADER_BYTES, Frame, HEADER_BYTES, Header, LtxError, Order, SIZED, index,
    packed_bytes_max,
};
use crc::{Digest, Table};
use std::io::Write;

/// A file that is being written.
pub struct Writer<W> {
    to: W,
    order: Order,
    digest: Digest<'static, u64, Table<16>>,
    frames: Vec<Frame>,
    at: u64,
    packed: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn begin(mut to: W, header: Header) -> Result<Writer<W>, LtxError> {
        let bytes = header.encode()?;
        to.write_all(&bytes)?;
        let mut digest = CRC.digest();
        digest.update(&bytes);
        let packed = vec![0; packed_bytes_max(header.page_bytes)];
        Ok(Writer { to, order: Order::new(header), digest, frames: Vec::new(), at: HEADER_BYTES as u64, packed })
    }

    /// Adds a page. Numbers ascend; a snapshot has all of them.
    pub fn page(&mut self, page: u32, image: &[u8]) -> Result<(), LtxError> {
        let mut packed = std::mem::take(&mut self.packed);
        let len = lz4_flex::block::compress_into(image, &mut packed)
            .map_err(|_| LtxError::Damaged("a page that cannot be compressed"));
        let written = len.and_then(|len| self.packed_page(page, packed.get(..len).unwrap_or_default(), image));
        self.packed = packed;
        written
    }

    /// Adds a page that is compressed as `packed`.
    pub fn packed_page(&mut self, page: u32, packed: &[u8], image: &[u8]) -> Result<(), LtxError> {
        if u32::try_from(image.len()).ok() != Some(self.order.header.page_bytes) {
            return Err(LtxError::Damaged("a page of another size"));
        }
        self.order.note(page)?;
        let mut head = [0; FRAME_HEADER_BYTES];
        let len = u32::try_from(packed.len()).map_err(|_| LtxError::Damaged("a page too long"))?;
        let numbers = page.to_be_bytes().into_iter().chain(SIZED.to_be_bytes()).chain(len.to_be_bytes());
        head.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        self.to.write_all(&head)?;
        self.to.write_all(packed)?;
        self.digest.update(&head);
        self.digest.update(image);
        let bytes = (FRAME_HEADER_BYTES as u64).saturating_add(u64::from(len));
        self.frames.push(Frame { page, offset: self.at, bytes });
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }

    /// Ends the file. Returns `to`, and the length of the file.
    pub fn finish(mut self) -> Result<(W, u64), LtxError> {
        self.order.end()?;
        let mut end = vec![0; END_BYTES];
        end.extend_from_slice(&index(&self.frames));
        end.extend_from_slice(&[0; 8]);
        self.digest.update(&end);
        end.extend_from_slice(&(self.digest.finalize() | CHECKSUM_FLAG).to_be_bytes());
        self.to.write_all(&end)?;
        Ok((self.to, self.at.saturating_add(end.len() as u64)))
    }
}
