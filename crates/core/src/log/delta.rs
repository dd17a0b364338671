//! Differences between a page and its base: pieces of absolute bytes, in order. Zeros have only a
//! length; a b-tree page's cell pointers, of which an insert moves half, are numbers of few bits.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::ops::Range;

use crate::base::layout::{be_u16, home, le_u16, put, record as at};
use crate::base::types::PageNo;

/// Shorter equal runs are cheaper than a new head.
const MERGE_BYTES: usize = 8;
const HEAD_BYTES_MAX: usize = 6;
const NEXT_HEAD_BYTES_MAX: usize = 4;
/// Shorter zero runs are cheaper as bytes.
const ZEROS_BYTES: usize = 16;

const _: () = assert!(HEAD_BYTES_MAX <= MERGE_BYTES && 2 * NEXT_HEAD_BYTES_MAX <= ZEROS_BYTES);

pub fn bytes_max(len: usize) -> usize {
    HEAD_BYTES_MAX + len
}

/// `buf` has room for [`bytes_max`].
pub fn encode(buf: &mut Vec<u8>, page: PageNo, base: Option<&[u8]>, new: &[u8]) {
    let begin = buf.len();
    let mut behind = 0;
    for piece in Pieces::of(page, base, new) {
        let (start, len, made_of) = match &piece {
            Piece::Bytes(start, bytes) => (*start, bytes.len(), at::PIECE_BYTES),
            Piece::Zeros(start, len) => (*start, *len, at::PIECE_ZEROS),
            Piece::Numbers(start, bytes, _) => (*start, bytes.len(), at::PIECE_NUMBERS),
        };
        debug_assert!(start >= behind, "pieces are in order");
        put_number(buf, (start - behind) as u32);
        put_number(buf, ((len - 1) as u32) << at::PIECE_BITS | made_of);
        match piece {
            Piece::Bytes(_, bytes) => buf.extend_from_slice(bytes),
            Piece::Zeros(..) => {}
            Piece::Numbers(_, bytes, numbers) => numbers.encode(bytes, buf),
        }
        behind = start + len;
    }
    debug_assert!(buf.len() - begin <= bytes_max(new.len()), "a delta is longer than thought");
}

/// `None` if they do not fit the image, which is useless then.
pub fn apply(pieces: &[u8], image: &mut [u8]) -> Option<()> {
    each(pieces, |place, piece| {
        let part = image.get_mut(place)?;
        match piece {
            EncodedPiece::Bytes(bytes) => part.copy_from_slice(bytes),
            EncodedPiece::Zeros => part.fill(0),
            EncodedPiece::Numbers(numbers, packed) => numbers.decode(packed, part),
        }
        Some(())
    })
}

/// Whether [`apply`] will, to an image of `page_bytes`.
pub fn fit(pieces: &[u8], page_bytes: usize) -> bool {
    each(pieces, |place, _| (place.end <= page_bytes).then_some(())).is_some()
}

#[inline]
fn each(mut pieces: &[u8], mut visit: impl FnMut(Range<usize>, EncodedPiece<'_>) -> Option<()>) -> Option<()> {
    let mut behind = 0;
    while !pieces.is_empty() {
        let (start, len, piece) = next_piece(&mut pieces, behind)?;
        behind = start.checked_add(len)?;
        visit(start..behind, piece)?;
    }
    Some(())
}

enum EncodedPiece<'a> {
    Bytes(&'a [u8]),
    Zeros,
    Numbers(PackedNumbers, &'a [u8]),
}

/// Returns its start, at `behind` or later, and its length.
#[inline]
fn next_piece<'a>(rest: &mut &'a [u8], behind: usize) -> Option<(usize, usize, EncodedPiece<'a>)> {
    let start = behind.checked_add(usize::try_from(take_number(rest)?).ok()?)?;
    let head = take_number(rest)?;
    let len = usize::try_from(head >> at::PIECE_BITS).ok()?.checked_add(1)?;
    let told = match head & ((1 << at::PIECE_BITS) - 1) {
        at::PIECE_BYTES => EncodedPiece::Bytes(take(rest, len)?),
        at::PIECE_ZEROS => EncodedPiece::Zeros,
        at::PIECE_NUMBERS => {
            let head = take(rest, at::NUMBERS_HEAD_BYTES)?;
            let bits = Some(u32::from(*head.get(4)?)).filter(|bits| *bits <= u16::BITS && len % 2 == 0)?;
            let numbers = PackedNumbers { least: le_u16(head, 0)?, step: le_u16(head, 2)?, bits };
            EncodedPiece::Numbers(numbers, take(rest, PackedNumbers::packed_bytes(len / 2, bits)?)?)
        }
        _ => return None,
    };
    Some((start, len, told))
}

#[inline]
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (bytes, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(bytes)
}

/// Seven bits a byte, lowest first; the top bit says that another follows.
pub fn put_number(buf: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        buf.push(number as u8 | 0x80);
        number >>= 7;
    }
    buf.push(number as u8);
}

#[inline]
pub fn take_number(rest: &mut &[u8]) -> Option<u32> {
    let (number, behind) = match **rest {
        [low, ref behind @ ..] if low < 0x80 => (u32::from(low), behind),
        [low, middle, ref behind @ ..] if middle < 0x80 => (u32::from(low & 0x7f) | u32::from(middle) << 7, behind),
        [low, middle, high, ref behind @ ..] if high < 0x80 => {
            (u32::from(low & 0x7f) | u32::from(middle & 0x7f) << 7 | u32::from(high) << 14, behind)
        }
        _ => return take_long_number(rest),
    };
    *rest = behind;
    Some(number)
}

/// Numbers of pages from 2^21 on.
#[cold]
fn take_long_number(rest: &mut &[u8]) -> Option<u32> {
    let len = rest.iter().take(5).position(|byte| *byte < 0x80)? + 1;
    let (bytes, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    let number = bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f));
    u32::try_from(number).ok()
}

/// The smallest number, and the steps of each above it.
#[derive(Clone, Copy, Debug)]
struct PackedNumbers {
    least: u16,
    step: u16,
    bits: u32,
}

impl PackedNumbers {
    /// `None` if numbers are longer than the bytes, with the extra piece's head.
    fn of(bytes: &[u8]) -> Option<PackedNumbers> {
        let first = be_u16(bytes, 0)?;
        let (least, most) = numbers(bytes).fold((first, first), |(least, most), n| (least.min(n), most.max(n)));
        let mut step = StepDivider::of(0);
        for difference in numbers(bytes).map(|number| number.abs_diff(first)) {
            if !step.divides(difference) {
                step = StepDivider::of(divisor(difference, step.len));
            }
            if step.len == 1 {
                break;
            }
        }
        let steps = step.count(most.abs_diff(least));
        let step = step.len;
        let bits = u16::BITS - steps.leading_zeros();
        let told =
            at::NUMBERS_HEAD_BYTES + PackedNumbers::packed_bytes(bytes.len() / 2, bits)? + 2 * NEXT_HEAD_BYTES_MAX;
        (told <= bytes.len()).then_some(PackedNumbers { least, step, bits })
    }

    fn packed_bytes(count: usize, bits: u32) -> Option<usize> {
        Some(count.checked_mul(usize::try_from(bits).ok()?)?.div_ceil(8))
    }

    fn encode(self, bytes: &[u8], buf: &mut Vec<u8>) {
        buf.extend_from_slice(&self.least.to_le_bytes());
        buf.extend_from_slice(&self.step.to_le_bytes());
        buf.push(self.bits as u8);
        let (mut held, mut held_bits) = (0u64, 0);
        let step = StepDivider::of(self.step);
        for number in numbers(bytes) {
            let steps = step.count(number.abs_diff(self.least));
            held |= u64::from(steps) << held_bits;
            held_bits += self.bits;
            if held_bits >= u32::BITS {
                buf.extend_from_slice(&(held as u32).to_le_bytes());
                held >>= u32::BITS;
                held_bits -= u32::BITS;
            }
        }
        buf.extend(held.to_le_bytes().iter().take(held_bits.div_ceil(8) as usize));
    }

    fn decode(self, packed: &[u8], to: &mut [u8]) {
        let (mut held, mut held_bits) = (0u32, 0);
        let mut packed = packed.iter();
        for number in to.chunks_exact_mut(2) {
            while held_bits < self.bits {
                held |= u32::from(packed.next().copied().unwrap_or(0)) << held_bits;
                held_bits += 8;
            }
            let steps = held & ((1 << self.bits) - 1);
            held >>= self.bits;
            held_bits -= self.bits;
            let value = self.least.wrapping_add(self.step.wrapping_mul(steps as u16));
            put(number, 0, &value.to_be_bytes());
        }
    }
}

/// Divides by a step without a division each time.
#[derive(Clone, Copy)]
struct StepDivider {
    len: u16,
    /// 2^32 / len, rounded up: exact for numbers of 16 bits.
    inverse: u64,
}

impl StepDivider {
    fn of(len: u16) -> StepDivider {
        StepDivider { len, inverse: (1u64 << 32).checked_div(len.into()).map_or(0, |inverse| inverse + 1) }
    }

    fn count(self, distance: u16) -> u16 {
        ((u64::from(distance) * self.inverse) >> 32) as u16
    }

    fn divides(self, distance: u16) -> bool {
        self.count(distance).wrapping_mul(self.len) == distance
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.as_chunks().0.iter().map(|number| u16::from_be_bytes(*number))
}

fn divisor(mut a: u16, mut b: u16) -> u16 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

enum Piece<'a> {
    Bytes(usize, &'a [u8]),
    Zeros(usize, usize),
    Numbers(usize, &'a [u8], PackedNumbers),
}

struct Pieces<'a> {
    base: Option<&'a [u8]>,
    new: &'a [u8],
    /// Looking like a b-tree page does no harm.
    pointers: Range<usize>,
    at: usize,
    end: usize,
    numbers: Option<(Range<usize>, PackedNumbers)>,
}

impl<'a> Pieces<'a> {
    fn of(page: PageNo, base: Option<&'a [u8]>, new: &'a [u8]) -> Pieces<'a> {
        let pointers = pointers(page, new).unwrap_or(0..0);
        Pieces { base, new, pointers, at: 0, end: 0, numbers: None }
    }

    fn find_numbers(&self) -> Option<(Range<usize>, PackedNumbers)> {
        let first = self.pointers.start;
        let start = self.at.max(first);
        let end = self.end.min(self.pointers.end);
        if start >= end {
            return None;
        }
        let whole = start - (start - first) % 2..end + (end - first) % 2;
        let numbers = PackedNumbers::of(self.new.get(whole.clone())?)?;
        Some((whole, numbers))
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.at == self.end {
            (self.at, self.end) = next_range(self.base, self.new, self.end)?;
            self.numbers = self.find_numbers();
            if let Some((whole, _)) = &self.numbers {
                (self.at, self.end) = (self.at.min(whole.start), self.end.max(whole.end));
            }
        }
        let start = self.at;
        let mut end = self.end;
        match self.numbers.take() {
            Some((whole, numbers)) if whole.start == start => {
                self.at = whole.end;
                return Some(Piece::Numbers(start, self.new.get(whole)?, numbers));
            }
            Some((whole, numbers)) => {
                end = whole.start;
                self.numbers = Some((whole, numbers));
            }
            None => {}
        }
        let run = self.new.get(start..end)?;
        let piece = match zeros(run) {
            Some(zeros) if zeros.start == 0 => Piece::Zeros(start, zeros.len()),
            Some(zeros) => Piece::Bytes(start, run.get(..zeros.start)?),
            None => Piece::Bytes(start, run),
        };
        self.at += match &piece {
            Piece::Bytes(_, bytes) => bytes.len(),
            Piece::Zeros(_, len) => *len,
            Piece::Numbers(..) => 0,
        };
        Some(piece)
    }
}

fn zeros(bytes: &[u8]) -> Option<Range<usize>> {
    const { assert!(ZEROS_BYTES >= 15, "eight of them that begin at a multiple of eight are among the run") };
    let is_zero = |byte: &&u8| **byte == 0;
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().enumerate().filter(|(_, word)| **word == [0; 8]).find_map(|(n, _)| {
        let (before, behind) = bytes.split_at_checked(8 * n)?;
        let start = before.len() - before.iter().rev().take_while(is_zero).count();
        let end = before.len() + behind.iter().take_while(is_zero).count();
        (end - start >= ZEROS_BYTES).then_some(start..end)
    })
}

fn pointers(page: PageNo, image: &[u8]) -> Option<Range<usize>> {
    let header_at = if page == PageNo::HEADER { home::HEADER_BYTES } else { 0 };
    let header_bytes = match image.get(header_at)? {
        2 | 5 => 12,
        10 | 13 => 8,
        _ => return None,
    };
    let from = header_at + header_bytes;
    let pointers = from..from + 2 * usize::from(be_u16(image, header_at + 3)?);
    (pointers.end <= image.len()).then_some(pointers)
}

fn next_range(base: Option<&[u8]>, new: &[u8], from: usize) -> Option<(usize, usize)> {
    let new = new.get(from..)?;
    let (start, len) = match base {
        Some(base) => {
            let base = base.get(from..)?;
            let start = first_difference(new, base)?;
            (start, run_bytes(new.get(start..)?, base.get(start..)?))
        }
        None => {
            let start = first_nonzero(new)?;
            (start, run_bytes(new.get(start..)?, &[]))
        }
    };
    Some((from + start, from + start + len))
}

/// Zeros behind its end.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(word)
}

/// Length of the leading run of differences, over gaps too short to end it. A `base` of nothing is
/// zeros.
fn run_bytes(new: &[u8], base: &[u8]) -> usize {
    const { assert!(MERGE_BYTES == 8, "no gap within a word ends a run, and a word without a difference does") };
    let mut end = 0;
    let mut goes_on = |n: usize, word: u64| {
        let first = 8 * n + word.trailing_zeros() as usize / 8;
        let goes_on = word != 0 && first - end < MERGE_BYTES;
        if goes_on {
            end = 8 * (n + 1) - word.leading_zeros() as usize / 8;
        }
        goes_on
    };
    let (words, tail) = new.as_chunks();
    let (old_words, old_tail) = base.as_chunks();
    let both = |(new, old): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*new) ^ u64::from_le_bytes(*old);
    let is_whole = match base {
        [] => words.iter().enumerate().all(|(n, word)| goes_on(n, u64::from_le_bytes(*word))),
        _ => words.iter().zip(old_words).map(both).enumerate().all(|(n, word)| goes_on(n, word)),
    };
    if is_whole {
        goes_on(words.len(), word(tail) ^ word(old_tail));
    }
    end
}

/// Of two slices of one length.
fn first_difference(new: &[u8], base: &[u8]) -> Option<usize> {
    const RUN: usize = 256;
    // The library compares long runs with wide instructions.
    let runs = new.chunks_exact(RUN).zip(base.chunks_exact(RUN)).take_while(|(a, b)| a == b).count() * RUN;
    let (new, base) = (new.get(runs..)?, base.get(runs..)?);
    let (words, old) = (new.as_chunks::<8>().0, base.as_chunks::<8>().0);
    let words = 8 * words.iter().zip(old).take_while(|(a, b)| a == b).count();
    let rest = new.iter().zip(base).skip(words).position(|(a, b)| a != b)?;
    Some(runs + words + rest)
}

fn first_nonzero(new: &[u8]) -> Option<usize> {
    let words = 8 * new.as_chunks::<8>().0.iter().take_while(|word| **word == [0; 8]).count();
    let rest = new.iter().skip(words).position(|byte| *byte != 0)?;
    Some(words + rest)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 4096;

    /// Applies also over a torn page and the new image (invariant I8). Returns the length.
    fn told(base: Option<&[u8]>, new: &[u8]) -> usize {
        let mut buf = Vec::new();
        encode(&mut buf, PageNo(2), base, new);
        for tear in [0, 512, 2048, PAGE] {
            let mut image = base.map_or(vec![0; PAGE], <[u8]>::to_vec);
            image[..tear].copy_from_slice(&new[..tear]);
            apply(&buf, &mut image).unwrap();
            assert_eq!(image, new);
        }
        buf.len()
    }

    fn leaf(cells: &[u16]) -> Vec<u8> {
        let mut page: Vec<u8> = (0..PAGE).map(|i| (i * 31 % 251) as u8).collect();
        page[..3].copy_from_slice(&[10, 0, 0]);
        page[3..5].copy_from_slice(&(cells.len() as u16).to_be_bytes());
        for (n, cell) in cells.iter().enumerate() {
            page[8 + 2 * n..][..2].copy_from_slice(&cell.to_be_bytes());
        }
        page
    }

    #[test]
    fn zeros_are_told_and_not_repeated() {
        let base = [7; PAGE];
        let mut new = base;
        new[10] = 1;
        new[100..2100].fill(0);
        new[2100..2140].fill(9);
        new[3000..3015].fill(0);
        new[4000..].fill(0);
        assert_eq!(told(Some(&base), &new), (2 + 1) + 3 + (3 + 40) + (3 + 15) + 4);
    }

    #[test]
    fn cell_pointers_are_numbers_of_few_bits() {
        let mut cells: Vec<u16> = (0..128u16).map(|n| 4096 - 20 * (1 + n * 37 % 128)).collect();
        let base = leaf(&cells);
        cells.insert(28, 4096 - 20 * 129);
        let len = told(Some(&base), &leaf(&cells));
        // 101 pointers of eight bits, their head, the number of cells.
        assert!(len <= 101 + at::NUMBERS_HEAD_BYTES + 3 + 3, "{len}");
    }

    proptest! {
    #[test]
    fn steps_are_counted_as_by_division(len: u16, distance: u16) {
    for len in [len, len >> 8, len >> 12, 1] {
    prop_assert_eq!(StepDivider::of(len).count(distance), distance.checked_div(len).unwrap_or(0));
    prop_assert_eq!(StepDivider::of(len).divides(distance), distance.checked_rem(len).unwrap_or(distance) == 0);
    }
    }

    #[test]
    fn a_delta_makes_the_new_page_of_the_old(
    places in proptest::collection::vec(0..512u16, 2..400), step in 1..9u16, at in any::<proptest::sample::Index>(),
    edits in proptest::collection::vec((0..PAGE, 1..300usize, any::<bool>()), 0..8), fresh: bool,
    ) {
    let mut cells: Vec<u16> = places.iter().map(|place| place * step).collect();
    let base = leaf(&cells);
    let at = at.index(cells.len());
    cells.insert(at, cells[0] ^ 1);
    let mut new = leaf(&cells);
    for (from, len, zeros) in edits {
    let to = (from + len).min(PAGE);
    new[from..to].iter_mut().for_each(|b| *b = if zeros { 0 } else { b.wrapping_mul(29).wrapping_add(1) });
    }
    let len = told((!fresh).then_some(&base), &new);
    prop_assert!(len <= bytes_max(PAGE));
    }

    #[test]
    fn numbers_of_any_width_come_back(numbers in proptest::collection::vec(any::<u16>(), 16..200), shift in 0..16u32) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| (n >> shift).to_be_bytes()).collect();
    if let Some(numbers) = PackedNumbers::of(&bytes) {
    let mut packed = Vec::new();
    numbers.encode(&bytes, &mut packed);
    let mut to = vec![0; bytes.len()];
    numbers.decode(&packed[at::NUMBERS_HEAD_BYTES..], &mut to);
    prop_assert_eq!(to, bytes);
    }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0..12u8], 0..200)) {
    prop_assert_eq!(fit(&bytes, 512), apply(&bytes, &mut [0; 512]).is_some());
    }
    }
}
