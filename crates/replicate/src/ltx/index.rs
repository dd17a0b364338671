//! Reading single pages of a file by the index in its last bytes. The checksum covers the whole
//! file and is not verified so; what can be checked of a part, is.

use super::{
    END_BYTES, FRAME_HEADER_BYTES, Frame, HEADER_BYTES, Header, LtxError, Order, SIZED, TRAILER_BYTES,
    packed_bytes_max, u32_at, u64_at, unpack,
};

/// Bytes of the index's own length.
const LENGTH_BYTES: usize = 8;

/// The index of a file, as far as its last bytes have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TailIndex {
    /// The frames of all pages, in the order of their numbers.
    Whole(Vec<Frame>),
    /// So many of the file's last bytes have it.
    Needs(u64),
}

/// Reads the index of a file of `file_bytes` bytes with this header out of its last bytes.
pub fn read_tail(header: &Header, tail: &[u8], file_bytes: u64) -> Result<TailIndex, LtxError> {
    let short = LtxError::Damaged("it ends too early");
    let Some(before) = tail.len().checked_sub(TRAILER_BYTES.saturating_add(LENGTH_BYTES)) else { return Err(short) };
    let index_bytes = u64_at(tail, before);
    // The index lies behind the header and the end of the pages.
    let behind = index_bytes.saturating_add((TRAILER_BYTES.saturating_add(LENGTH_BYTES)) as u64);
    let Some(begin) =
        file_bytes.checked_sub(behind).filter(|at| *at >= (HEADER_BYTES.saturating_add(END_BYTES)) as u64)
    else {
        return Err(LtxError::Damaged("its index does not fit into it"));
    };
    let Some(from) = usize::try_from(index_bytes).ok().and_then(|bytes| before.checked_sub(bytes)) else {
        return Ok(TailIndex::Needs(behind));
    };
    let mut rest = tail.get(from..before).unwrap_or_default();
    let bytes_max = FRAME_HEADER_BYTES.saturating_add(packed_bytes_max(header.page_bytes)) as u64;
    let (mut frames, mut order, mut at) = (Vec::new(), Order::new(*header), HEADER_BYTES as u64);
    loop {
        let page = u32::try_from(varint(&mut rest)?).map_err(|_| LtxError::Damaged("a page where it cannot be"))?;
        if page == 0 {
            break;
        }
        let frame = Frame { page, offset: varint(&mut rest)?, bytes: varint(&mut rest)? };
        order.note(page)?;
        if frame.offset != at || frame.bytes <= FRAME_HEADER_BYTES as u64 || frame.bytes > bytes_max {
            return Err(LtxError::Damaged("its index names a page where none can be"));
        }
        at = at.saturating_add(frame.bytes);
        frames.push(frame);
    }
    order.end()?;
    if !rest.is_empty() || at.saturating_add(END_BYTES as u64) != begin {
        return Err(LtxError::Damaged("its index does not fit its pages"));
    }
    Ok(TailIndex::Whole(frames))
}

/// Takes the image of `frame`'s page out of the frame's bytes.
pub fn page_of_frame(header: &Header, frame: &Frame, bytes: &[u8]) -> Result<Vec<u8>, LtxError> {
    let Some((head, packed)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Err(LtxError::Damaged("it ends too early"));
    };
    let flags = head.get(4..).and_then(|rest| rest.first_chunk()).map_or(0, |b| u16::from_be_bytes(*b));
    let is_sized = u64::from(u32_at(head, 6)) == packed.len() as u64;
    if u32_at(head, 0) != frame.page || flags != SIZED || !is_sized || bytes.len() as u64 != frame.bytes {
        return Err(LtxError::Damaged("its index does not fit its pages"));
    }
    let mut image = Vec::new();
    unpack(packed, header.page_bytes, &mut image)?;
    Ok(image)
}

fn varint(from: &mut &[u8]) -> Result<u64, LtxError> {
    let wrong = LtxError::Damaged("its index cannot be read");
    let mut number = 0u64;
    for shift in (0..64u32).step_by(7) {
        let Some((byte, rest)) = from.split_first() else { return Err(wrong) };
        *from = rest;
        let low = u64::from(byte & 0x7f);
        if shift == 63 && low > 1 {
            return Err(wrong);
        }
        number |= low << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(wrong)
}
