//! Changes of a page, until its image is needed. Their bytes are absolute, so home may be anything
//! between the first change's base and the last one's result (rule AbsoluteBytes). Before home gets
//! newer, images that snapshots need are made (rule OldImageKept).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::layout::le_u32;
use crate::base::memory::{self, Room};
use crate::base::types::PageNo;
use crate::log::delta;
use crate::log::record::PageChange;
use crate::pages::image::Image;

/// Of each change: its length, u32.
const HEAD_BYTES: usize = 4;

/// Those of two rows or so lie within.
type ChangeBytes = SmallVec<[u8; 256]>;

/// The image below the first change.
#[derive(Clone, Debug)]
pub enum ChainBase {
    Zeros,
    Home {
        /// The rest of the page is zeros then.
        may_end: bool,
    },
    Image(Image),
}

#[derive(Debug)]
struct WaitingChanges {
    page_bytes: u32,
    base: ChainBase,
    /// One behind the other, each with its head.
    bytes: ChangeBytes,
}

#[derive(Clone, Debug)]
pub struct ChangeChain(Arc<WaitingChanges>);

impl ChangeChain {
    /// `None`: an image costs less.
    pub fn begin(base: ChainBase, page_bytes: u32, change: PageChange<'_>) -> Result<Option<ChangeChain>> {
        let (pieces, base) = match change {
            PageChange::Delta(pieces) => (pieces, base),
            PageChange::Fresh(pieces) => (pieces, ChainBase::Zeros),
            PageChange::Image(_) => return Ok(None),
        };
        // One alone may be longer than several: home is not read for it yet.
        let fits = HEAD_BYTES + pieces.len() <= page_bytes as usize;
        if fits { ChangeChain::of(base, page_bytes, &[], pieces).map(Some) } else { Ok(None) }
    }

    fn of(base: ChainBase, page_bytes: u32, before: &[u8], pieces: &[u8]) -> Result<ChangeChain> {
        let mut bytes = ChangeBytes::new();
        bytes.room(before.len() + HEAD_BYTES + pieces.len())?;
        bytes.extend_from_slice(before);
        put_change(&mut bytes, pieces);
        Ok(ChangeChain(Arc::new(WaitingChanges { page_bytes, base, bytes })))
    }

    /// False: this chain stays, for others read it or an image costs less.
    pub fn push(&mut self, change: PageChange<'_>) -> Result<bool> {
        let PageChange::Delta(pieces) = change else { return Ok(false) };
        let Some(changes) = Arc::get_mut(&mut self.0).filter(|changes| changes.has_room(pieces)) else {
            return Ok(false);
        };
        changes.bytes.room(HEAD_BYTES + pieces.len())?;
        put_change(&mut changes.bytes, pieces);
        Ok(true)
    }

    /// Of all changes here and `change`. `None`: an image costs less.
    pub fn then(&self, change: PageChange<'_>) -> Result<Option<ChangeChain>> {
        let WaitingChanges { page_bytes, base, bytes } = &*self.0;
        let PageChange::Delta(pieces) = change else {
            return ChangeChain::begin(ChainBase::Zeros, *page_bytes, change);
        };
        let fits = self.0.has_room(pieces);
        if fits { ChangeChain::of(base.clone(), *page_bytes, bytes, pieces).map(Some) } else { Ok(None) }
    }

    /// Near the next change.
    pub fn last_byte(&self) -> u8 {
        self.0.bytes.last().copied().unwrap_or(0)
    }

    /// That wait.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.len() as u64
    }

    pub fn page_bytes(&self) -> u32 {
        self.0.page_bytes
    }

    pub fn is(&self, other: &ChangeChain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// `home` is read if the chain needs it. `None`: it ends within the page.
    pub fn image(&self, page: PageNo, home: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Option<Vec<u8>>> {
        let WaitingChanges { page_bytes, base, bytes } = &*self.0;
        let mut image = match base {
            ChainBase::Image(image) => memory::copy(image)?,
            ChainBase::Zeros | ChainBase::Home { .. } => memory::zeros(*page_bytes as usize)?,
        };
        if let ChainBase::Home { may_end } = base {
            let read = home(&mut image)?;
            let behind = image.get_mut(read..).unwrap_or_default();
            if !behind.is_empty() && !may_end {
                return Ok(None);
            }
            behind.fill(0);
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let made = next_change(&mut rest).and_then(|change| delta::apply(change, &mut image));
            made.ok_or_else(|| Error::unfit_change(page))?;
        }
        Ok(Some(image))
    }
}

impl WaitingChanges {
    fn has_room(&self, pieces: &[u8]) -> bool {
        self.bytes.len() + HEAD_BYTES + pieces.len() <= self.page_bytes as usize / 2
    }
}

/// There is room for it.
fn put_change(to: &mut ChangeBytes, pieces: &[u8]) {
    to.extend_from_slice(&(pieces.len() as u32).to_le_bytes());
    to.extend_from_slice(pieces);
}

fn next_change<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(le_u32(rest, 0)?).ok()?;
    let (pieces, behind) = rest.get(HEAD_BYTES..)?.split_at_checked(len)?;
    *rest = behind;
    Some(pieces)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::layout::record as at;

    /// One piece, from `offset` on.
    fn piece(offset: u32, bytes: &[u8]) -> Vec<u8> {
        let mut piece = Vec::new();
        delta::put_number(&mut piece, offset);
        delta::put_number(&mut piece, (bytes.len() as u32 - 1) << at::PIECE_BITS | at::PIECE_BYTES);
        piece.extend_from_slice(bytes);
        piece
    }

    fn begin(base: ChainBase, change: PageChange<'_>) -> ChangeChain {
        ChangeChain::begin(base, 512, change).unwrap().unwrap()
    }

    fn made(chain: &ChangeChain, home: &[u8]) -> Option<Vec<u8>> {
        let read = |image: &mut [u8]| {
            image.get_mut(..home.len()).unwrap().copy_from_slice(home);
            Ok(home.len())
        };
        chain.image(PageNo(7), read).unwrap()
    }

    fn page(parts: &[(usize, u8)], rest: u8) -> Vec<u8> {
        let byte = |at| parts.iter().find(|(part, _)| *part == at).map_or(rest, |(_, byte)| *byte);
        (0..512).map(byte).collect()
    }

    #[test]
    fn changes_are_made_in_order_over_the_base() {
        let (one, other, more) = (piece(3, &[1]), piece(3, &[2]), piece(9, &[3]));
        let image = Image::from(vec![8; 512]);
        let bases = [(ChainBase::Zeros, 0), (ChainBase::Home { may_end: false }, 9), (ChainBase::Image(image), 8)];
        for (base, below) in bases {
            let mut chain = begin(base, PageChange::Delta(&one));
            let first = chain.clone();
            assert!(!chain.push(PageChange::Delta(&other)).unwrap(), "another holds it");
            let longer = chain.then(PageChange::Delta(&other)).unwrap().unwrap();
            assert!(!longer.is(&chain) && first.is(&chain));
            drop(first);
            assert!(chain.push(PageChange::Delta(&other)).unwrap() && chain.push(PageChange::Delta(&more)).unwrap());
            let home = [9; 512];
            assert_eq!(made(&longer, &home).unwrap(), page(&[(3, 2)], below));
            assert_eq!(made(&chain, &home).unwrap(), page(&[(3, 2), (9, 3)], below));
        }
    }

    #[test]
    fn a_new_image_forgets_the_changes_before() {
        let (one, fresh) = (piece(3, &[1]), piece(5, &[2]));
        let fresh = PageChange::Fresh(&fresh);
        let mut chain = begin(ChainBase::Home { may_end: false }, PageChange::Delta(&one));
        assert!(!chain.push(fresh).unwrap());
        assert_eq!(made(&chain, &[9; 512]).unwrap(), page(&[(3, 1)], 9));
        assert_eq!(made(&chain.then(fresh).unwrap().unwrap(), &[9; 512]).unwrap(), page(&[(5, 2)], 0));
        assert!(chain.then(PageChange::Image(&[1; 512])).unwrap().is_none());
        assert!(ChangeChain::begin(ChainBase::Zeros, 512, PageChange::Image(&[1; 512])).unwrap().is_none());
    }

    #[test]
    fn a_home_that_ends_in_the_page_is_an_error_unless_it_may() {
        let one = piece(3, &[1]);
        assert!(made(&begin(ChainBase::Home { may_end: false }, PageChange::Delta(&one)), &[9; 100]).is_none());
        let image = made(&begin(ChainBase::Home { may_end: true }, PageChange::Delta(&one)), &[9; 100]).unwrap();
        assert_eq!((image.get(..4), image.get(99..101)), (Some(&[9, 9, 9, 1][..]), Some(&[9, 0][..])));
    }

    #[test]
    fn changes_of_half_a_page_are_an_image() {
        let (short, long) = (piece(0, &[1; 100]), piece(0, &[2; 200]));
        let mut chain = begin(ChainBase::Zeros, PageChange::Delta(&short));
        assert!(
            !chain.push(PageChange::Delta(&long)).unwrap() && chain.then(PageChange::Delta(&long)).unwrap().is_none()
        );
        assert!(chain.push(PageChange::Delta(&short)).unwrap(), "it stays as it was");
        // One alone may be longer: home is not read for it yet.
        let whole = piece(0, &[3; 505]);
        assert!(ChangeChain::begin(ChainBase::Zeros, 512, PageChange::Delta(&whole)).unwrap().is_some());
        let whole = piece(0, &[3; 506]);
        assert!(ChangeChain::begin(ChainBase::Zeros, 512, PageChange::Delta(&whole)).unwrap().is_none());
    }
}
